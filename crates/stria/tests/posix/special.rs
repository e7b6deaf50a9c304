//! Special files, access lists and who may do what.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
};

use rustix::fs::{CWD, FileType, Mode};

use super::calls::open;
use crate::common::{FileSystem, Transport};

#[test]
fn pipes_sockets_and_devices_work() {
    let mut system = FileSystem::start(Transport::Tcp, 2);
    system.set_mount_options("dev");
    system.unmount(1);
    system.mount(1);
    let (a, b) = (system.path(0), system.path(1));
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, a.join(name), kind, Mode::from_bits_truncate(0o666), device).expect("mknod");
    };
    make("pipe", FileType::Fifo, 0);
    make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make("disk", FileType::BlockDevice, rustix::fs::makedev(259, 1_000_000));
    let other = |name: &str| fs::symlink_metadata(b.join(name)).expect("stat");
    assert!(other("pipe").file_type().is_fifo());
    assert!(other("null").file_type().is_char_device());
    assert!(other("disk").file_type().is_block_device());
    assert_eq!(other("null").rdev(), rustix::fs::makedev(1, 3));
    assert_eq!(other("disk").rdev(), rustix::fs::makedev(259, 1_000_000));
    // Without the option dev, devices are names and no more.
    let refused = fs::File::open(a.join("null")).expect_err("mounts are nodev");
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    // They do what they are for: between processes of one host, since a pipe is the kernel's.
    open(&b.join("null"), 0).write_all(b"into nothing").expect("write");
    std::thread::scope(|scope| {
        scope.spawn(|| fs::write(a.join("pipe"), b"through the pipe").expect("write"));
        assert_eq!(fs::read(a.join("pipe")).expect("read"), b"through the pipe");
    });
    let listener = UnixListener::bind(a.join("socket")).expect("bind");
    assert!(other("socket").file_type().is_socket());
    std::thread::scope(|scope| {
        scope.spawn(|| listener.accept().expect("accept").0.write_all(b"hello").expect("write"));
        let mut text = String::new();
        UnixStream::connect(a.join("socket")).expect("connect").read_to_string(&mut text).expect("read");
        assert_eq!(text, "hello");
    });
    system.finish();
}

/// Runs a line as another user, with further groups, on client B; returns its exit status.
fn as_user(system: &FileSystem, user: u32, groups: &str, line: &str) -> i32 {
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let command = format!("cd $B && setpriv --reuid={user} --regid={user} {groups} bash -c '{line}' 2>/dev/null");
    system.shell(&command).output().status
}

#[test]
fn access_lists_are_inherited_and_obeyed_everywhere() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let run = |line: &str| system.shell(&format!("umask 022; cd $A && {line}")).succeed();
    run("mkdir d && chmod 750 d && setfacl -m u:5001:rx,d:u:5001:rw,d:g:5002:r d && echo data > d/file && mkdir d/sub");
    assert_eq!(run("getfacl -cnpE d/file | head -6"), {
        "user::rw-\nuser:5001:rw-\ngroup::r-x\ngroup:5002:r--\nmask::rw-\nother::---\n"
    });
    let inherited = system.shell("cd $B && getfacl -cnp d/sub | grep default:user:5001").succeed();
    assert_eq!(inherited, "default:user:5001:rw-\n");
    let (read, write) = ("cat d/file", "echo more >> d/file");
    assert_eq!(as_user(&system, 5001, "", read), 0);
    assert_eq!(as_user(&system, 5001, "", write), 0);
    assert_ne!(as_user(&system, 5001, "", "echo x > d/new"), 0, "r-x on the directory");
    assert_ne!(as_user(&system, 5003, "", read), 0, "nobody in particular");
    assert_ne!(as_user(&system, 5003, "5002", read), 0, "the directory is closed to the group");
    run("setfacl -m g:5002:x d");
    assert_eq!(as_user(&system, 5003, "5002", read), 0, "by a further group of the process");
    assert_ne!(as_user(&system, 5003, "5002", write), 0);
    // chmod changes the mask, and so what the list gives.
    run("chmod g-w d/file");
    assert_ne!(as_user(&system, 5001, "", write), 0);
    run("setfacl -b d/file");
    assert_ne!(as_user(&system, 5001, "", read), 0);
    system.finish();
}

#[test]
fn permissions_hold_for_users_groups_and_sticky_directories() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let root = system.path(0);
    let set = |name: &str, mode: u32| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
    };
    fs::create_dir(root.join("tmp")).expect("mkdir");
    set("tmp", 0o1777);
    assert_eq!(as_user(&system, 5001, "", "umask 022; echo mine > tmp/mine"), 0);
    let metadata = fs::metadata(root.join("tmp/mine")).expect("stat");
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (5001, 5001, 0o644));
    assert_ne!(as_user(&system, 5002, "", "rm -f tmp/mine"), 0, "sticky");
    assert_ne!(as_user(&system, 5002, "", "mv -f tmp/mine tmp/yours"), 0, "sticky");
    assert_ne!(as_user(&system, 5002, "", "echo x >> tmp/mine"), 0);
    assert_ne!(as_user(&system, 5001, "", "chown 5002 tmp/mine"), 0);
    assert_ne!(as_user(&system, 5001, "", "chgrp 5003 tmp/mine"), 0, "not a member");
    assert_eq!(as_user(&system, 5001, "5003", "chgrp 5003 tmp/mine"), 0, "a member");
    assert_eq!(as_user(&system, 5001, "", "mv tmp/mine tmp/other && rm tmp/other"), 0);
    // The group of a set-gid directory is inherited, and so is the bit by directories.
    fs::create_dir(root.join("team")).expect("mkdir");
    std::os::unix::fs::chown(root.join("team"), None, Some(5003)).expect("chown");
    set("team", 0o2777);
    assert_eq!(as_user(&system, 5001, "", "echo x > team/file && mkdir team/sub"), 0);
    let sub = fs::metadata(root.join("team/sub")).expect("stat");
    assert_eq!(fs::metadata(root.join("team/file")).expect("stat").gid(), 5003);
    assert_eq!((sub.gid(), sub.mode() & 0o2000), (5003, 0o2000));
    // Writing takes set-id bits away.
    fs::write(root.join("program"), b"x").expect("write");
    set("program", 0o6777);
    assert_eq!(as_user(&system, 5001, "", "echo x >> program"), 0);
    assert_eq!(fs::metadata(root.join("program")).expect("stat").mode() & 0o7777, 0o777);
    system.finish();
}

/// As ext4 does: the table is what the same lines give there.
#[test]
fn fallocate_takes_set_id_bits_and_capabilities_away() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let run = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    for (groups, mode, after) in [
        ("", "2666", "666"),
        ("", "2676", "676"),
        ("", "6666", "666"),
        ("5003", "2666", "2666"),
        ("5003", "2676", "676"),
        ("5003", "6666", "2666"),
    ] {
        for change in ["fallocate -l 16384 f", "fallocate -n -l 32768 f", "fallocate -p -o 0 -l 4096 f"] {
            run(&format!("rm -f f && touch f && chown 0:5003 f && truncate -s 8192 f && chmod {mode} f"));
            assert_eq!(as_user(&system, 5001, groups, change), 0, "{change}");
            assert_eq!(run("stat -c %a f").trim(), after, "{change} of {mode} by a member of '{groups}'");
        }
    }
    run("chmod 666 f && setcap cap_net_raw+ep f");
    assert_eq!(as_user(&system, 5001, "", "fallocate -l 16384 f"), 0);
    assert_eq!(run("getcap f"), "");
    // Only Linux itself takes them away for others.
    run("setcap cap_net_raw+ep f");
    assert_ne!(as_user(&system, 5001, "", "setfattr -x security.capability f"), 0);
    assert_ne!(run("getcap f"), "");
    system.finish();
}
