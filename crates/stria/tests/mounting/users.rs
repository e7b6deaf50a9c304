//! Mounts by users other than root: through fusermount3, for themselves.

use std::fs;

use crate::{
    common::{FileSystem, Place, Program, TIMEOUT, Transport, wait_for},
    namespace::{NOBODY, Namespace, refused},
};

/// A running file system with one file, and a directory of nobody.
fn system() -> FileSystem {
    let system = FileSystem::start(Transport::Tcp, 1);
    fs::write(system.root().join("file"), "there").unwrap();
    fs::create_dir(system.root().join("home")).unwrap();
    std::os::unix::fs::chown(system.root().join("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    system
}

#[test]
fn an_ordinary_user_mounts_for_himself() {
    let system = system();
    let namespace = Namespace::beside(&system);
    let line =
        "stria mount -o dev,suid,default_permissions $SOURCE $S/own && cat $S/own/file && echo mine > $S/own/home/mine";
    assert_eq!(namespace.as_nobody(line).succeed(), "there");
    assert_eq!(fs::read_to_string(system.root().join("home/mine")).unwrap(), "mine\n");
    let said = refused(namespace.as_nobody("echo x > $S/own/file"));
    assert!(said.contains("Permission denied"), "{said}");
    let shown = namespace.as_nobody("findmnt -n -o OPTIONS $S/own").succeed();
    assert!(shown.contains("nosuid,nodev") && !shown.contains("allow_other"), "{shown}");
    assert!(shown.contains("default_permissions"), "{shown}");
    // No other user has access, and only its user can unmount it.
    let said = refused(namespace.shell("cat $S/own/file"));
    assert!(said.contains("Permission denied"), "{said}");
    let other = "setpriv --reuid=12345 --regid=12345 --clear-groups";
    let said = refused(namespace.shell(&format!("{other} stria umount $S/own")));
    assert!(said.starts_with("stria: ") && said.lines().count() == 1, "{said}");
    namespace.as_nobody("stria umount $S/own").succeed();
    assert_eq!(namespace.as_nobody("ls $S/own").succeed(), "");
    drop(namespace);
    system.finish();
}

#[test]
fn others_are_let_in_where_the_administrator_allows_it() {
    let system = system();
    let namespace = Namespace::beside(&system);
    let mount = "stria mount -o allow_other $SOURCE $S/own";
    let said = refused(namespace.as_nobody(mount));
    assert!(said.contains("allow_other") && said.contains("'user_allow_other' is set in /etc/fuse.conf"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    namespace.shell("echo user_allow_other > /etc/fuse.conf").succeed();
    namespace.as_nobody(mount).succeed();
    assert_eq!(namespace.shell("cat $S/own/file").succeed(), "there");
    // The file system decides by who asks, not by who mounted.
    let other = "setpriv --reuid=12345 --regid=12345 --clear-groups";
    let said = refused(namespace.shell(&format!("{other} touch $S/own/home/foreign")));
    assert!(said.contains("Permission denied"), "{said}");
    namespace.as_nobody("stria umount $S/own").succeed();
    drop(namespace);
    system.finish();
}

#[test]
fn what_a_user_may_not_is_refused_with_the_reason() {
    let system = system();
    let namespace = Namespace::beside(&system);
    let expect = |line: &str, parts: &[&str]| {
        let said = refused(namespace.as_nobody(line));
        assert!(said.lines().count() == 1, "{line}: {said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{line}: '{part}' is missing in {said}"));
    };
    expect("stria mount $SOURCE $S/mnt", &["/mnt", "no write access to mountpoint"]);
    namespace.shell("echo mount_max = 0 > /etc/fuse.conf").succeed();
    expect("stria mount $SOURCE $S/own", &["/own", "too many FUSE filesystems mounted"]);
    namespace.shell(": > /etc/fuse.conf && mkdir $S/empty").succeed();
    expect("PATH=$S/empty $S/bin/stria mount $SOURCE $S/own", &["fusermount3 is not installed"]);
    namespace.shell("chmod 600 /dev/fuse").succeed();
    expect("stria mount $SOURCE $S/own", &["/dev/fuse", "Permission denied"]);
    namespace.shell("chmod 666 /dev/fuse").succeed();
    // After all that, it works.
    namespace.as_nobody("stria mount $SOURCE $S/own && cat $S/own/file && stria umount $S/own").succeed();
    drop(namespace);
    system.finish();
}

#[test]
fn a_killed_mount_of_a_user_is_replaced() {
    let system = system();
    let namespace = Namespace::beside(&system);
    for _ in 0..2 {
        assert_eq!(namespace.as_nobody("stria mount $SOURCE $S/own && cat $S/own/file").succeed(), "there");
        namespace.shell("pkill -KILL $MOUNTING").succeed();
        wait_for("the end of the mounting process", TIMEOUT, || {
            namespace.as_nobody("ls $S/own").output().stderr.contains("not connected").then_some(())
        });
    }
    namespace.as_nobody("stria umount $S/own").succeed();
    assert_eq!(namespace.as_nobody("ls $S/own").succeed(), "");
    drop(namespace);
    system.finish();
}

#[test]
fn a_line_in_fstab_may_let_users_mount() {
    let system = system();
    let namespace = Namespace::beside(&system);
    namespace
        .shell(
            "mkdir $S/sbin && ln -s $S/bin/stria $S/sbin/mount.fuse.stria && mount --bind $S/sbin $(readlink -f /sbin)",
        )
        .succeed();
    namespace.shell("echo $SOURCE $S/own fuse.stria noauto,user 0 0 > /etc/fstab").succeed();
    assert_eq!(namespace.as_nobody("mount $S/own && cat $S/own/file").succeed(), "there");
    let shown = namespace.as_nobody("findmnt -n -o OPTIONS $S/own").succeed();
    assert!(shown.contains(&format!("user_id={NOBODY}")), "{shown}");
    namespace.as_nobody("stria umount $S/own").succeed();
    drop(namespace);
    system.finish();
}

#[test]
fn ctl_finds_the_mounts_of_its_user() {
    let system = system();
    let namespace = Namespace::beside(&system);
    namespace.make_tmp_private();
    let own = |prefix: &str, line: &str| -> Program { namespace.as_nobody(&format!("export {prefix}; {line}")) };
    for prefix in ["XDG_RUNTIME_DIR=$S/runtime", "XDG_RUNTIME_DIR="] {
        let said = refused(own(prefix, "stria ctl dl"));
        assert!(said.contains("no stria daemon answers in"), "{said}");
        own(prefix, "stria mount $SOURCE $S/own").succeed();
        let list = own(prefix, "stria ctl dl").succeed();
        assert!(list.contains("osc") && list.contains("stria-OST0000"), "{list}");
        let value = own(prefix, "stria ctl set_param timeout=50 && stria ctl get_param -n timeout").succeed();
        assert!(value.ends_with("50\n"), "{value}");
        own(prefix, "stria umount $S/own").succeed();
        wait_for("the end of the mount", TIMEOUT, || (own(prefix, "stria ctl dl").output().status != 0).then_some(()));
    }
    // Root's mounts are root's.
    namespace.shell("stria mount $SOURCE $S/mnt && stria ctl dl").succeed();
    let said = refused(namespace.as_nobody("stria ctl --run-dir /run/stria dl"));
    assert!(said.contains("/run/stria"), "{said}");
    namespace.shell("stria umount $S/mnt").succeed();
    // Another user created a directory of this name first: it is not used.
    namespace.shell(&format!("rm -r /tmp/stria-{NOBODY} && mkdir -m 777 /tmp/stria-{NOBODY}")).succeed();
    let said = refused(own("XDG_RUNTIME_DIR=", "stria ctl dl"));
    assert!(said.contains("it belongs to another user, or others can write to it"), "{said}");
    own("XDG_RUNTIME_DIR=", "stria mount $SOURCE $S/own && cat $S/own/file && stria umount $S/own").succeed();
    drop(namespace);
    system.finish();
}

#[test]
fn up_works_for_an_ordinary_user() {
    let place = Place::new();
    let mut namespace = Namespace::new(&place);
    namespace.set("DIR", namespace.root().join("own/data"));
    let log = place.data("up.log");
    let up = "stria up --dir $DIR --mount $DIR/mnt";
    for contents in ["first", "second"] {
        let mut daemon = namespace.daemon("up", true, up, &log);
        daemon.wait_for("mounted at");
        let line = "cd $DIR/mnt && stat -c '%u %g' . && cat file; mkdir -p d && lfs df . | grep -c ^stria-OST";
        let before = if contents == "first" { "" } else { "first" };
        let expected = format!("{NOBODY} {NOBODY}\n{before}4\n");
        assert_eq!(namespace.as_nobody(line).succeed(), expected);
        namespace.as_nobody(&format!("printf {contents} > $DIR/mnt/file")).succeed();
        namespace.as_nobody("stria ctl --run-dir $DIR/run get_param -n version").succeed();
        daemon.stop();
    }
    let found = namespace.as_nobody("stria fsck --data $DIR").succeed();
    assert!(found.contains(" 0 problems"), "{found}");
}
