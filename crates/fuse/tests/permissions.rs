//! What the kernel does about permissions on a mount: device files, special files, access lists,
//! sticky directories, programs that may be executed but not read. Needs root and `/dev/fuse`.

use std::{
    fs::{self, OpenOptions, Permissions},
    os::unix::{
        fs::{OpenOptionsExt, PermissionsExt, chown, lchown, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
};

use crate::cluster::Cluster;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, makedev, mknodat};

const NOBODY: u32 = 65534;
const SOMEBODY: u32 = 5001;

/// Runs a program as an ordinary user without further groups (the standard library clears them).
fn as_user(uid: u32, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(program).args(arguments).uid(uid).gid(uid).output()
}

/// Runs a line of the shell as nobody; whether it succeeded.
fn may(line: &str) -> bool {
    as_user(NOBODY, "sh", &["-c", line]).unwrap().status.success()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn make_node(path: &Path, kind: FileType, device: u64, mode: u32) {
    mknodat(CWD, path, kind, Mode::empty(), device).unwrap();
    set_mode(path, mode);
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Reads a fifo that nobody writes to, or a device, as nobody.
fn nobody_reads(path: &Path) -> bool {
    may(&format!("dd if={} of=/dev/null count=1 iflag=nonblock status=none", path.display()))
}

#[test]
fn device_files_are_devices_only_where_that_is_asked_for() {
    let cluster = Cluster::mounted();
    let null = cluster.path("null");
    make_node(&null, FileType::CharacterDevice, makedev(1, 3), 0o666);
    assert_eq!(errno(fs::File::open(&null)), libc::EACCES);
    drop(cluster);

    let cluster = Cluster::mounted_with("dev");
    let null = cluster.path("null");
    make_node(&null, FileType::CharacterDevice, makedev(1, 3), 0o666);
    fs::write(&null, b"into nothing").unwrap();
}

#[test]
fn the_kernel_checks_special_files() {
    let cluster = Cluster::mounted_with("dev");
    let (zero, fifo) = (cluster.path("zero"), cluster.path("fifo"));
    make_node(&zero, FileType::CharacterDevice, makedev(1, 5), 0o600);
    make_node(&fifo, FileType::Fifo, 0, 0o600);
    assert!(!nobody_reads(&zero) && !nobody_reads(&fifo));
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
    fs::File::open(&zero).unwrap();
    set_mode(&zero, 0o604);
    set_mode(&fifo, 0o604);
    assert!(nobody_reads(&zero) && nobody_reads(&fifo));
}

#[test]
fn the_kernel_obeys_access_lists() {
    let cluster = Cluster::mounted();
    let (directory, file) = (cluster.path("d"), cluster.path("d/f"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, b"text").unwrap();
    set_mode(&directory, 0o700);
    set_mode(&file, 0o600);
    let read = format!("cat {}", file.display());
    assert!(!may(&read));
    // As setfacl -m u:65534:rx writes it: version 2; then tag, permissions and id of each entry.
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [entry(1, 7, none), entry(2, 5, NOBODY), entry(4, 0, none), entry(16, 5, none), entry(32, 0, none)];
    let list = [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
    for path in [&directory, &file] {
        rustix::fs::setxattr(path, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    }
    assert!(may(&read));
    assert!(!may(&format!("echo more >> {}", file.display())), "the list lets read");
    rustix::fs::removexattr(&directory, "system.posix_acl_access").unwrap();
    assert!(!may(&read), "the directory is closed again");
}

/// With `no_default_permissions` the kernel does not know of sticky directories.
#[test]
fn links_in_sticky_directories_are_not_followed() {
    let switch = "/proc/sys/fs/protected_symlinks";
    let before = fs::read_to_string(switch).unwrap();
    fs::write(switch, "1").unwrap();
    let cluster = Cluster::mounted();
    let directory = cluster.path("tmp");
    fs::create_dir(&directory).unwrap();
    set_mode(&directory, 0o1777);
    fs::write(cluster.path("target"), b"text").unwrap();
    symlink("../target", directory.join("own")).unwrap();
    symlink("../target", directory.join("trap")).unwrap();
    lchown(directory.join("trap"), Some(SOMEBODY), None).unwrap();
    let read = |name: &str| may(&format!("cat {}", directory.join(name).display()));
    let read = (read("own"), read("trap"));
    fs::write(switch, before).unwrap();
    assert_eq!(read, (true, false), "the one is of the directory's owner, the other of somebody else");
}

#[test]
fn programs_are_executed_by_users_who_may_not_read_them() {
    for options in ["", "no_default_permissions"] {
        let cluster = Cluster::mounted_with(options);
        let program = cluster.path("echo");
        fs::copy("/bin/echo", &program).unwrap();
        set_mode(&program, 0o111);
        let said = as_user(NOBODY, &program, &["done"]).unwrap();
        assert_eq!(said.stdout, b"done\n", "{options}");
        assert!(!may(&format!("cat {} > /dev/null", program.display())), "{options}");
        // A script is read by its interpreter.
        let script = cluster.path("script");
        fs::write(&script, "#!/bin/sh\necho done\n").unwrap();
        set_mode(&script, 0o111);
        assert!(!as_user(NOBODY, &script, &[]).unwrap().status.success(), "{options}");
        set_mode(&script, 0o555);
        assert_eq!(as_user(NOBODY, &script, &[]).unwrap().stdout, b"done\n", "{options}");
        // Others' bits count for others, and root executes what anybody may.
        set_mode(&program, 0o766);
        assert_eq!(errno(as_user(NOBODY, &program, &[])), libc::EACCES, "{options}");
        set_mode(&program, 0o666);
        assert_eq!(errno(Command::new(&program).output()), libc::EACCES, "{options}");
        chown(&program, Some(SOMEBODY), None).unwrap();
        set_mode(&program, 0o100);
        assert_eq!(Command::new(&program).arg("root").output().unwrap().stdout, b"root\n", "{options}");
    }
}

#[test]
fn a_program_is_not_truncated_while_it_is_executed() {
    let cluster = Cluster::mounted();
    let program = cluster.path("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let length = fs::metadata(&program).unwrap().len();
    let mut running = Command::new(&program).arg("100").spawn().unwrap();
    let open = |flags| rustix::fs::open(&program, flags, Mode::empty()).map_err(std::io::Error::from);
    let refused = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR].map(|access| errno(open(access | OFlags::TRUNC)));
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(refused, [libc::ETXTBSY; 3]);
    assert_eq!(fs::metadata(&program).unwrap().len(), length);
    // The kernel closes a program some time after its last process has ended.
    let since = std::time::Instant::now();
    while let Err(error) = open(OFlags::RDONLY | OFlags::TRUNC) {
        assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
        assert!(since.elapsed() < std::time::Duration::from_secs(60), "the program is still busy");
    }
    assert_eq!(fs::metadata(&program).unwrap().len(), 0);
}
