//! mount(8), umount(8) and /etc/fstab.

use std::fs;

use crate::{
    common::{FileSystem, Output, Transport},
    namespace::{Namespace, besides_log, refused},
};

/// How mount(8) finds the program: by a link of its own in /sbin, or through libfuse's mount.fuse
/// by its name.
const WAYS: [&str; 2] = [
    "mkdir $S/sbin && ln -s $S/bin/stria $S/sbin/mount.fuse.stria && mount --bind $S/sbin $(readlink -f /sbin)",
    // Within mount(8) a shell looks for it, on a PATH of its own.
    "mkdir $S/local && ln -s $S/bin/stria $S/local/stria && mount --bind $S/local /usr/local/bin",
];

fn options(namespace: &Namespace) -> String {
    namespace.shell("findmnt -n -o OPTIONS $S/mnt").succeed()
}

#[test]
fn a_line_in_fstab_is_mounted() {
    let system = FileSystem::start(Transport::Tcp, 1);
    fs::write(system.root().join("file"), "there").unwrap();
    for way in WAYS {
        let namespace = Namespace::beside(&system);
        namespace.shell(way).succeed();
        namespace.shell("echo $SOURCE $S/mnt fuse.stria noatime,nosuid,_netdev,timeout=60 0 0 > /etc/fstab").succeed();
        let Output { status, stdout, stderr } = namespace.shell("mount $S/mnt && cat $S/mnt/file").output();
        assert_eq!((status, &*stdout, &*besides_log(&stderr)), (0, "there", ""), "{way}");
        let shown = namespace.shell("findmnt -n -o SOURCE,FSTYPE $S/mnt").succeed();
        let columns: Vec<&str> = shown.split_whitespace().collect();
        assert_eq!(columns, [&*system.source(), "fuse.stria"]);
        let shown = options(&namespace);
        assert!(shown.contains("noatime") && shown.contains("nosuid") && shown.contains("rw,"), "{shown}");
        namespace.shell("umount $S/mnt").succeed();
        assert_eq!(namespace.shell("ls $S/mnt").succeed(), "");
        // What all of boot does: every line, also with nothing left to do.
        namespace.shell("mount -a && mount -a && cat $S/mnt/file && umount -a -t fuse.stria").succeed();
        assert_eq!(namespace.shell("ls $S/mnt").succeed(), "");
        drop(namespace);
    }
    system.finish();
}

#[test]
fn mount_of_the_type_takes_options_and_fails_with_the_reason() {
    let system = FileSystem::start(Transport::Tcp, 1);
    fs::write(system.root().join("file"), "there").unwrap();
    for way in WAYS {
        let namespace = Namespace::beside(&system);
        namespace.shell(way).succeed();
        namespace.shell("mount -t fuse.stria -o ro,timeout=60 $SOURCE $S/mnt").succeed();
        let shown = options(&namespace);
        assert!(shown.starts_with("ro,") && shown.contains("nodev") && !shown.contains("nosuid"), "{shown}");
        let said = refused(namespace.shell("echo x > $S/mnt/file"));
        assert!(said.contains("Read-only file system"), "{said}");
        namespace.shell("mount -o remount,rw $S/mnt && echo new > $S/mnt/file").succeed();
        assert_eq!(fs::read_to_string(system.root().join("file")).unwrap(), "new\n");
        namespace.shell("mount -o remount,ro,noexec $S/mnt").succeed();
        let shown = options(&namespace);
        assert!(shown.starts_with("ro,") && shown.contains("noexec") && shown.contains("nodev"), "{shown}");
        namespace
            .shell("umount $S/mnt && mount -t fuse.stria -o allow_dev,default_permissions $SOURCE $S/mnt")
            .succeed();
        namespace.shell("mount -o remount,ro $S/mnt").succeed();
        let shown = options(&namespace);
        assert!(shown.contains("default_permissions") && !shown.contains("nodev"), "{shown}");
        namespace.shell("umount $S/mnt && echo there > $S/file").succeed();

        let wrong_name = system.source().replace(":/stria", ":/other");
        for (line, expected) in [
            (
                format!("mount -t fuse.stria {wrong_name} $S/mnt"),
                "the file system at this address is 'stria', not 'other'",
            ),
            ("mount -t fuse.stria -o frobnicate $SOURCE $S/mnt".to_owned(), "unknown mount option 'frobnicate'"),
            ("mount -t fuse.stria -o timeout=soon $SOURCE $S/mnt".to_owned(), "mount option timeout"),
            ("mount -t fuse.stria /dev/null $S/mnt".to_owned(), "stria"),
        ] {
            let said = refused(namespace.shell(&line));
            assert!(said.contains(expected), "{line}: {said}");
            assert!(refused(namespace.shell("findmnt $S/mnt || { echo none >&2; false; }")).contains("none"), "{line}");
        }
        drop(namespace);
    }
    system.finish();
}

/// The kernel does not keep ioctls from changing a read-only mount.
#[test]
fn nothing_is_changed_through_ioctls_of_a_read_only_mount() {
    let system = FileSystem::start(Transport::Tcp, 1);
    system.shell("cd $A && mkdir d && lfs setstripe -c 2 two && lfs setstripe -c 1 one && lfs setstripe -E 4M grows && echo 1 > one").succeed();
    let layouts = system.shell("cd $A && lfs getstripe -c d one two grows && ls").succeed();
    let namespace = Namespace::beside(&system);
    let changes = [
        "lfs setstripe -c 1 $S/mnt/new",
        "lfs setstripe -c 3 $S/mnt/d",
        "lfs setstripe -d $S/mnt/d",
        "lfs setstripe --component-add -E -1 $S/mnt/grows",
        "lfs swap_layouts $S/mnt/one $S/mnt/two",
        "lfs migrate -c 3 $S/mnt/one",
        "setfattr -n lustre.lov -v 0x00 $S/mnt/two",
    ];
    for mount in
        ["stria mount -o ro $SOURCE $S/mnt", "stria mount $SOURCE $S/mnt && stria mount -o remount,ro x $S/mnt"]
    {
        namespace.shell(mount).succeed();
        for change in changes {
            let said = refused(namespace.shell(change));
            assert!(said.contains("Read-only file system"), "{mount}: {change}: {said}");
        }
        assert_eq!(namespace.shell("cd $S/mnt && lfs getstripe -c d one two grows && ls").succeed(), layouts);
        namespace.shell("cd $S/mnt && lfs path2fid one && lfs df .").succeed();
        namespace.shell("stria umount $S/mnt").succeed();
    }
    namespace.shell("stria mount -o ro $SOURCE $S/mnt && stria mount -o remount,rw x $S/mnt").succeed();
    namespace.shell("lfs setstripe -c 1 $S/mnt/new && stria umount $S/mnt").succeed();
    drop(namespace);
    system.finish();
}

/// `mount -f` does everything but the mount, `-s` tolerates options of other systems. mount.fuse
/// passes neither on.
#[test]
fn the_helper_fakes_and_tolerates() {
    let system = FileSystem::start(Transport::Tcp, 0);
    let namespace = Namespace::beside(&system);
    namespace.shell(WAYS[0]).succeed();
    namespace.shell("mount -f -t fuse.stria $SOURCE $S/mnt").succeed();
    assert_eq!(namespace.shell("findmnt $S/mnt || true").succeed(), "");
    namespace.shell("mount -s -t fuse.stria -o frobnicate $SOURCE $S/mnt && umount $S/mnt").succeed();
    drop(namespace);
    system.finish();
}
