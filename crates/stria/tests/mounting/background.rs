//! `stria mount` and `stria umount` from a shell: it returns when the mount works, or says why it
//! does not.

use std::{fs, net::TcpListener};

use crate::{
    common::{FileSystem, Output, TIMEOUT, Transport, wait_for},
    namespace::{Namespace, besides_log, refused},
};

/// Processes of mounts in the namespace.
fn mounting(namespace: &Namespace) -> usize {
    let count = namespace.shell("pgrep -c $MOUNTING || true").succeed();
    count.trim().parse().expect("pgrep counts")
}

fn expect_no_mounting(namespace: &Namespace) {
    wait_for("the end of the mounting process", TIMEOUT, || (mounting(namespace) == 0).then_some(()));
}

#[test]
fn it_returns_when_the_mount_works_and_umount_ends_it() {
    let system = FileSystem::start(Transport::Tcp, 1);
    fs::write(system.root().join("file"), "there").unwrap();
    let namespace = Namespace::beside(&system);
    for point in ["$S/mnt", "./mnt", "mnt/"] {
        let line = format!("cd $S && stria mount $SOURCE {point} && cat $S/mnt/file && echo new > $S/mnt/new");
        let Output { status, stdout, stderr } = namespace.shell(&line).output();
        assert_eq!((status, &*stdout, &*besides_log(&stderr)), (0, "there", ""), "{point}");
        assert_eq!(fs::read_to_string(system.root().join("new")).unwrap(), "new\n");
        let table = namespace.shell("df --output=source,target $S/mnt | tail -1").succeed();
        let columns: Vec<&str> = table.split_whitespace().collect();
        assert_eq!(columns, [system.source(), namespace.root().join("mnt").to_string_lossy().into_owned()]);
        assert_eq!(mounting(&namespace), 1);
        assert_eq!(namespace.shell("readlink /proc/$(pgrep $MOUNTING)/cwd").succeed(), "/\n");
        let Output { status, stdout, stderr } = namespace.shell(&format!("cd $S && stria umount {point}")).output();
        assert_eq!((status, &*stdout, &*stderr), (0, "", ""), "{point}");
        assert_eq!(namespace.shell("ls $S/mnt").succeed(), "");
        expect_no_mounting(&namespace);
    }
    drop(namespace);
    system.finish();
}

#[test]
fn it_fails_with_the_reason_if_the_mount_fails() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let namespace = Namespace::beside(&system);
    let wrong_name = system.source().replace(":/stria", ":/other");
    for (line, expected) in [
        (
            format!("stria mount {wrong_name} $S/mnt"),
            "stria: the file system at this address is 'stria', not 'other'\n",
        ),
        ("stria mount $SOURCE $S/absent".to_owned(), "/absent does not exist\n"),
        ("stria mount $SOURCE $S/fuse".to_owned(), "/fuse is not a directory\n"),
        ("stria mount -o frobnicate $SOURCE $S/mnt".to_owned(), "stria: unknown mount option 'frobnicate'\n"),
        ("stria mount --log $S/absent/log $SOURCE $S/mnt".to_owned(), "cannot open the log file: "),
        // An earlier mount's reason is not this one's.
        (
            format!("echo 'stria: an old reason' > $S/log; stria mount --log $S/log {wrong_name} $S/mnt"),
            "stria: the file system at this address is 'stria', not 'other'\n",
        ),
    ] {
        let said = refused(namespace.shell(&line));
        assert!(said.contains(expected) && said.lines().count() == 1, "{line}: {said}");
    }
    assert!(namespace.shell("cat $S/log").succeed().contains("not 'other'"), "the log file has it too");
    refused(namespace.shell("mount --bind /dev/null /dev/fuse && stria mount $SOURCE $S/mnt"));
    namespace.shell("umount /dev/fuse").succeed();
    // Two mounts under a wrong name, and one without FUSE: servers need not wait for their leases.
    wait_for("the sessions of the mounts that failed to be closed", TIMEOUT, || {
        let log = system.server_log(0);
        let closed = |target: &str| {
            let ended = log.lines().filter(|line| line.contains(&format!("session ended target={target} ")));
            ended.filter(|line| line.ends_with("reason=closed by the client")).count()
        };
        ((closed("MGS"), closed("stria-MDT0000")) == (3, 1)).then_some(())
    });
    namespace.shell("stria mount -s -o frobnicate $SOURCE $S/mnt").succeed();
    let said = refused(namespace.shell("stria mount $SOURCE $S/mnt"));
    assert!(said.contains("is already mounted on"), "{said}");
    namespace.shell("stria umount $S/mnt").succeed();
    expect_no_mounting(&namespace);
    drop(namespace);
    system.finish();
}

#[test]
fn without_a_system_log_it_says_where_it_logs_instead() {
    let system = FileSystem::start(Transport::Tcp, 0);
    let namespace = Namespace::beside(&system);
    namespace.shell("test ! -e /dev/log || mount --bind /dev/null $(readlink -f /dev/log)").succeed();
    let Output { status, stderr, .. } = namespace.shell("stria mount $SOURCE $S/mnt").output();
    let prefix = "stria: there is no system log (/dev/log) here: the mount logs to ";
    let log = stderr.trim_end().strip_prefix(prefix).unwrap_or_else(|| panic!("{status}: {stderr}"));
    assert!(log.starts_with("/run/stria/mount-") && log.ends_with("-mnt.log"), "{log}");
    // Its servers go away: that it says, and why it cannot reach them.
    system.finish();
    wait_for("lines in the log", TIMEOUT, || {
        let text = namespace.shell(&format!("cat {log}")).succeed();
        text.contains("connection refused").then_some(())
    });
}

/// A script that holds a lock in a descriptor, as with flock(1), does not hand it to a daemon that
/// outlives it.
#[test]
fn it_keeps_nothing_of_its_starter() {
    let system = FileSystem::start(Transport::Tcp, 0);
    let namespace = Namespace::beside(&system);
    namespace.shell("exec 9> $S/lock && flock 9 && stria mount $SOURCE $S/mnt").succeed();
    namespace.shell("flock --nonblock $S/lock true").succeed();
    // Its own session: the end of a terminal is not its end.
    let session = namespace.shell("p=$(pgrep $MOUNTING); ps -o pid=,sid=,tty= $p").succeed();
    let columns: Vec<&str> = session.split_whitespace().collect();
    assert!(columns[0] == columns[1] && columns[2] == "?", "{session}");
    // Its standard error is its log where there is no system log.
    namespace
        .shell("ls -l /proc/$(pgrep $MOUNTING)/fd/{0,1,2} | grep -cE '/dev/null|/run/stria/mount-.*log' | grep -x 3")
        .succeed();
    namespace.shell("stria umount $S/mnt").succeed();
    drop(namespace);
    system.finish();
}

#[test]
fn a_mount_that_was_given_up_does_not_come_later() {
    // A port that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let system = FileSystem::start(Transport::Tcp, 0);
    let mut namespace = Namespace::beside(&system);
    namespace.set("SILENT", format!("{}:/stria", silent.local_addr().unwrap()));
    let log = system.place().data("given-up.log");
    let waiting = namespace.daemon("mount", false, "stria mount $SILENT $S/mnt", &log);
    wait_for("the mounting process", TIMEOUT, || (mounting(&namespace) == 1).then_some(()));
    waiting.kill();
    expect_no_mounting(&namespace);
    drop(namespace);
    system.finish();
}

#[test]
fn a_busy_mount_is_unmounted_lazily_only() {
    let system = FileSystem::start(Transport::Tcp, 1);
    fs::write(system.root().join("file"), "there").unwrap();
    let namespace = Namespace::beside(&system);
    namespace.shell("mkfifo $S/hold && stria mount --log $S/log $SOURCE $S/mnt").succeed();
    let log = system.place().data("reader.log");
    let mut reader =
        namespace.daemon("reader", false, "bash -c 'exec 3< $S/mnt/file; echo open; read -r < $S/hold'", &log);
    reader.wait_for("open");
    let said = refused(namespace.shell("stria umount $S/mnt"));
    assert!(said.contains("/mnt is in use by ") && said.contains("--lazy"), "{said}");
    assert_eq!(namespace.shell("cat $S/mnt/file").succeed(), "there");
    namespace.shell("stria umount --lazy $S/mnt").succeed();
    assert_eq!(namespace.shell("ls $S/mnt").succeed(), "");
    let said = refused(namespace.shell("stria umount $S/mnt"));
    assert!(said.contains("is not a StriaFS mount"), "{said}");
    // The last user goes, and with it the process.
    reader.kill();
    expect_no_mounting(&namespace);
    drop(namespace);
    system.finish();
}
