//! A smoke test of POSIX calls through the kernel: the shipped client, MDT and OSTs in this process
//! over devices in memory, mounted on a directory. Needs root and `/dev/fuse`. The full test is
//! pjdfstest; this one tests what the adapter itself decides.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
        },
    },
    path::Path,
    process::{Child, Command},
    ptr, slice, thread,
    time::{Duration, Instant},
};

use crate::cluster::{Cluster, program};
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, RenameFlags, XattrFlags};

fn errno<T: std::fmt::Debug>(result: Result<T, impl Into<io::Error>>) -> i32 {
    result.unwrap_err().into().raw_os_error().unwrap()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn read_write(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn files_are_written_read_renamed_and_removed() {
    let cluster = Cluster::mounted();
    let (old, new) = (cluster.path("old"), cluster.path("new"));
    let data = pattern(3_000_001);
    fs::write(&old, &data).unwrap();
    assert_eq!(fs::metadata(&old).unwrap().len(), data.len() as u64);
    assert!(fs::read(&old).unwrap() == data);
    fs::rename(&old, &new).unwrap();
    assert_eq!(errno(fs::metadata(&old)), libc::ENOENT);
    let mut file = read_write(&new);
    file.write_all_at(b"patched", 1_048_570).unwrap();
    let mut part = [0; 9];
    file.read_exact_at(&mut part, 1_048_569).unwrap();
    assert_eq!(&part[1..8], b"patched");
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), data.len() as u64);
    file.set_len(10).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&new).unwrap(), data[..10]);
    File::options().write(true).truncate(true).open(&new).unwrap();
    assert_eq!(fs::metadata(&new).unwrap().len(), 0);
    fs::remove_file(&new).unwrap();
    file.write_all_at(b"unlinked, still open", 0).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "unlinked, still open");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

#[test]
fn names_are_made_linked_exchanged_and_removed() {
    let cluster = Cluster::mounted();
    let path = |name: &str| cluster.path(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("d/f"), b"f").unwrap();
    fs::write(path("g"), b"g").unwrap();
    symlink("d/f", path("s")).unwrap();
    assert_eq!(fs::read_link(path("s")).unwrap(), Path::new("d/f"));
    assert_eq!(fs::read(path("s")).unwrap(), b"f");
    fs::hard_link(path("g"), path("d/h")).unwrap();
    assert_eq!(fs::metadata(path("g")).unwrap().nlink(), 2);
    let root = File::open(cluster.point()).unwrap();
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(&root, from, &root, to, flags);
    assert_eq!(errno(rename("g", "d/f", RenameFlags::NOREPLACE)), libc::EEXIST);
    rename("g", "d/f", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(path("g")).unwrap(), b"f");
    assert_eq!(errno(rename("g", "d/f", RenameFlags::WHITEOUT)), libc::EINVAL);
    assert_eq!(errno(fs::remove_dir(path("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::create_dir(path("d"))), libc::EEXIST);
    assert_eq!(errno(fs::write(path(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
    fs::write(path(&"n".repeat(255)), b"").unwrap();
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(&root, "fifo", rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(&root, "null", rustix::fs::FileType::CharacterDevice, mode, device).unwrap();
    assert_eq!(fs::metadata(path("null")).unwrap().rdev(), device);
}

#[test]
fn directories_of_a_thousand_are_read_whole() {
    let cluster = Cluster::mounted();
    let directory = cluster.path("many");
    fs::create_dir(&directory).unwrap();
    let names: BTreeSet<String> =
        (0..1000).map(|number| format!("{number:0width$}", width = 1 + number % 200)).collect();
    for name in &names {
        File::create(directory.join(name)).unwrap();
    }
    let read = || -> BTreeSet<String> {
        let entries = fs::read_dir(&directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(read(), names);
    // With attributes: the kernel switches to READDIRPLUS when entries are looked up as they are
    // read.
    let with_attributes = fs::read_dir(&directory).unwrap();
    assert_eq!(with_attributes.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file()).count(), 1000);
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(read().is_empty());
    fs::remove_dir(&directory).unwrap();
}

/// A mapping that unmaps itself.
struct Mapping {
    address: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(file: &File, bytes: usize, flags: libc::c_int) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { address: address.cast(), bytes })
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this long and lives as long as self; nobody else in this process
        // writes to it.
        unsafe { slice::from_raw_parts_mut(self.address, self.bytes) }
    }

    fn sync(&self) {
        // SAFETY: the range is the mapping's.
        assert_eq!(unsafe { libc::msync(self.address.cast(), self.bytes, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's, and nothing borrows it any more.
        unsafe { libc::munmap(self.address.cast(), self.bytes) };
    }
}

#[test]
fn mappings_read_and_write_files() {
    if let Some(point) = program::mount_point() {
        return map(&point.join("mapped"));
    }
    let cluster = Cluster::mounted();
    program::Program::start("posix::mappings_read_and_write_files", cluster.point()).succeed();
}

fn map(path: &Path) {
    let data = pattern(1_300_000);
    fs::write(path, &data).unwrap();
    let file = read_write(path);
    let mut shared = Mapping::new(&file, data.len(), libc::MAP_SHARED).unwrap();
    assert!(shared.bytes() == data);
    shared.bytes()[1_048_576..][..5].copy_from_slice(b"dirty");
    shared.sync();
    let mut part = [0; 5];
    File::open(path).unwrap().read_exact_at(&mut part, 1_048_576).unwrap();
    assert_eq!(&part, b"dirty");
    // Written back after the descriptor is closed, by whatever handle the kernel still has, in
    // nobody's name.
    shared.bytes()[..5].copy_from_slice(b"later");
    drop(file);
    drop(shared);
    assert_eq!(&fs::read(path).unwrap()[..5], b"later");
    let mut private = Mapping::new(&read_write(path), data.len(), libc::MAP_PRIVATE).unwrap();
    private.bytes()[..5].copy_from_slice(b"mine!");
    assert_eq!(&fs::read(path).unwrap()[..5], b"later");
    assert_eq!(fs::metadata(path).unwrap().len(), data.len() as u64);
}

/// `flock(1)` of util-linux: another process.
fn flock_program(path: &Path, options: &[&str]) -> Child {
    Command::new("flock").args(options).arg(path).arg("true").spawn().unwrap()
}

#[test]
fn flock_excludes_other_processes() {
    let cluster = Cluster::mounted();
    let path = cluster.path("lock");
    let file = read_write(&path);
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    assert!(!flock_program(&path, &["-n"]).wait().unwrap().success());
    let mut waiting = flock_program(&path, &[]);
    wait_in_system_call(&waiting, libc::SYS_flock);
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    assert!(waiting.wait().unwrap().success());
    // Closing releases it too.
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    drop(file);
    assert!(flock_program(&path, &["-w", "60"]).wait().unwrap().success());
}

#[test]
fn a_signal_ends_the_wait_for_a_lock() {
    let cluster = Cluster::mounted();
    let path = cluster.path("lock");
    let file = read_write(&path);
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut waiting = flock_program(&path, &[]);
    wait_in_system_call(&waiting, libc::SYS_flock);
    waiting.kill().unwrap();
    assert!(!waiting.wait().unwrap().success());
    // Its place in the queue is gone: the lock passes to the next request.
    drop(file);
    assert!(flock_program(&path, &["-w", "60"]).wait().unwrap().success());
}

/// Returns when the process is inside this system call.
fn wait_in_system_call(process: &Child, number: libc::c_long) {
    let path = format!("/proc/{}/syscall", process.id());
    let wanted = format!("{number} ");
    while !fs::read_to_string(&path).unwrap().starts_with(&wanted) {
        thread::yield_now();
    }
}

/// fcntl(2) locks of open file descriptions: they exclude each other within one process.
fn ofd_lock(file: &File, command: libc::c_int, kind: libc::c_int, start: i64, bytes: i64) -> io::Result<libc::flock> {
    // SAFETY: plain data, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) = (kind as i16, libc::SEEK_SET as i16, start, bytes);
    // SAFETY: the command takes a pointer to this structure.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}

#[test]
fn record_locks_exclude_by_range_and_end_with_their_file() {
    let cluster = Cluster::mounted();
    let path = cluster.path("records");
    let (first, second) = (read_write(&path), read_write(&path));
    ofd_lock(&first, libc::F_OFD_SETLK, libc::F_WRLCK, 100, 50).unwrap();
    assert_eq!(errno(ofd_lock(&second, libc::F_OFD_SETLK, libc::F_RDLCK, 149, 1).map(|_| ())), libc::EAGAIN);
    ofd_lock(&second, libc::F_OFD_SETLK, libc::F_WRLCK, 150, 1).unwrap();
    let found = ofd_lock(&second, libc::F_OFD_GETLK, libc::F_WRLCK, 0, 0).unwrap();
    assert_eq!((found.l_type as i32, found.l_start, found.l_len), (libc::F_WRLCK, 100, 50));
    // flock is another family.
    rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop(first);
    // The kernel releases files in the background, so the lock is waited for.
    ofd_lock(&second, libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 0).unwrap();
}

#[test]
fn unnamed_files_get_names_later() {
    let cluster = Cluster::mounted();
    let unnamed =
        |flags| OpenOptions::new().write(true).mode(0o640).custom_flags(libc::O_TMPFILE | flags).open(cluster.point());
    let mut file = unnamed(0).unwrap();
    file.write_all(b"once unnamed").unwrap();
    assert_eq!(fs::read_dir(cluster.point()).unwrap().count(), 0);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let link = |file: &File, name: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(rustix::fs::CWD, from, rustix::fs::CWD, cluster.path(name), AtFlags::SYMLINK_FOLLOW)
    };
    link(&file, "named").unwrap();
    assert_eq!(fs::read(cluster.path("named")).unwrap(), b"once unnamed");
    assert_eq!(fs::metadata(cluster.path("named")).unwrap().permissions().mode(), 0o100_640);
    assert_eq!(errno(link(&unnamed(libc::O_EXCL).unwrap(), "never")), libc::ENOENT);
}

/// Asks through an open file, until those who had the files open before are gone: the kernel
/// releases files in the background.
fn when_free(file: &File, request: &ControlRequest) -> ControlReply {
    let busy = ControlReply::Error(types::FsError::Busy);
    let begun = Instant::now();
    loop {
        let reply = host::ioctl::call(file, request).unwrap();
        if reply != busy || begun.elapsed() > Duration::from_secs(60) {
            return reply;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_number_does_not_reach_the_data_of_an_unnamed_file() {
    let cluster = Cluster::mounted();
    fs::set_permissions(cluster.point(), fs::Permissions::from_mode(0o755)).unwrap();
    let unnamed =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(cluster.point()).unwrap();
    unnamed.write_all_at(b"between us", 0).unwrap();
    unnamed.set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
    let own = cluster.path("own");
    fs::write(&own, b"mine").unwrap();
    std::os::unix::fs::chown(&own, Some(1000), Some(1000)).unwrap();
    let file = File::open(&own).unwrap();
    let version = ControlRequest::DataVersion { subject: Subject::This, hold_writers: false };
    let ControlReply::Version(version) = when_free(&file, &version) else { panic!("no version") };
    let inode = |file: &File| types::InodeNumber(file.metadata().unwrap().ino());
    let by_number = ControlRequest::SwapLayouts { first: (Subject::This, version), second: (inode(&unnamed), None) };
    let refused = as_user(1000, 1000, &[], || host::ioctl::call(&file, &by_number).unwrap());
    assert_eq!(refused, ControlReply::Error(types::FsError::Invalid));
    assert_eq!(fs::read(&own).unwrap(), b"mine");
    let take = ControlRequest::TakeLayout { of: inode(&file), version };
    assert_eq!(when_free(&unnamed, &take), ControlReply::Done, "who has it open");
    assert_eq!(fs::read(&own).unwrap(), b"between us");
}

#[test]
fn space_is_allocated_punched_zeroed_and_found() {
    let cluster = Cluster::mounted();
    let file = read_write(&cluster.path("sparse"));
    const MEGABYTE: u64 = 1 << 20;
    file.write_all_at(&[7; 8192], 0).unwrap();
    file.write_all_at(&[8; 8192], 8 * MEGABYTE).unwrap();
    let seek = |offset, whence| {
        // SAFETY: plain system call on an open descriptor.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
    };
    assert_eq!(seek(0, libc::SEEK_HOLE).unwrap(), 8192);
    assert_eq!(seek(8192, libc::SEEK_DATA).unwrap(), 8 * MEGABYTE as i64);
    assert_eq!(seek(8 * MEGABYTE as i64, libc::SEEK_HOLE).unwrap(), 8 * MEGABYTE as i64 + 8192);
    assert_eq!(errno(seek(9 * MEGABYTE as i64, libc::SEEK_DATA)), libc::ENXIO);
    let fallocate = |flags, offset, bytes| rustix::fs::fallocate(&file, flags, offset, bytes);
    fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
    assert_eq!(seek(0, libc::SEEK_DATA).unwrap(), 8 * MEGABYTE as i64);
    fallocate(FallocateFlags::ZERO_RANGE, 8 * MEGABYTE, 4096).unwrap();
    let mut part = [1; 8192];
    file.read_exact_at(&mut part, 8 * MEGABYTE).unwrap();
    assert!(part[..4096] == [0; 4096] && part[4096..] == [8; 4096]);
    fallocate(FallocateFlags::empty(), 0, 16 * MEGABYTE).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 16 * MEGABYTE);
    fallocate(FallocateFlags::KEEP_SIZE, 16 * MEGABYTE, MEGABYTE).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 16 * MEGABYTE);
    assert_eq!(errno(fallocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
}

#[test]
fn extended_attributes_are_kept() {
    let cluster = Cluster::mounted();
    let path = cluster.path("file");
    let file = read_write(&path);
    let set = |name: &str, value: &[u8], flags| rustix::fs::fsetxattr(&file, name, value, flags);
    set("user.color", b"blue", XattrFlags::CREATE).unwrap();
    assert_eq!(errno(set("user.color", b"red", XattrFlags::CREATE)), libc::EEXIST);
    assert_eq!(errno(set("user.shape", b"round", XattrFlags::REPLACE)), libc::ENODATA);
    let mut value = [0; 16];
    assert_eq!(rustix::fs::getxattr(&path, "user.color", &mut value).unwrap(), 4);
    assert_eq!(&value[..4], b"blue");
    assert_eq!(errno(rustix::fs::getxattr(&path, "user.color", &mut [0; 3])), libc::ERANGE);
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: without room, the call only asks for the size.
    assert_eq!(unsafe { libc::getxattr(name.as_ptr(), c"user.color".as_ptr(), ptr::null_mut(), 0) }, 4);
    let mut names = [0; 64];
    let length = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert!(names[..length].starts_with(b"user.color\0"));
    rustix::fs::removexattr(&path, "user.color").unwrap();
    assert_eq!(errno(rustix::fs::getxattr(&path, "user.color", &mut value)), libc::ENODATA);
}

#[test]
fn times_are_set_and_creation_is_known() {
    let cluster = Cluster::mounted();
    let path = cluster.path("file");
    let file = read_write(&path);
    let long_ago = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::new(86_400, 123_456_789);
    file.set_times(fs::FileTimes::new().set_modified(long_ago)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.modified().unwrap(), long_ago);
    assert!(metadata.created().unwrap() > long_ago);
    assert!(metadata.accessed().unwrap() >= metadata.created().unwrap());
}

#[test]
fn the_file_system_has_space() {
    let cluster = Cluster::mounted();
    let before = rustix::fs::statvfs(cluster.point()).unwrap();
    assert!(before.f_blocks > 0 && before.f_bavail > 0 && before.f_files > 0);
    assert_eq!((before.f_namemax, before.f_frsize), (255, 4096));
}

#[test]
fn appends_go_to_the_end_there_is() {
    let cluster = Cluster::mounted();
    let path = cluster.path("log");
    let open = || File::options().append(true).create(true).open(&path).unwrap();
    thread::scope(|scope| {
        for letter in b'a'..b'e' {
            let mut file = open();
            scope.spawn(move || (0..100).for_each(|_| file.write_all(&[letter; 10]).unwrap()));
        }
    });
    let text = fs::read(&path).unwrap();
    assert_eq!(text.len(), 4000);
    assert!(text.chunks(10).all(|record| record.iter().all(|byte| *byte == record[0])));
    // pwrite(2) appends too, on Linux; and the flag can be switched off.
    let file = open();
    file.write_all_at(b"end", 0).unwrap();
    assert!(fs::read(&path).unwrap().ends_with(b"end"));
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty()).unwrap();
    file.write_all_at(b"BEGIN", 0).unwrap();
    assert_eq!(&fs::read(&path).unwrap()[..5], b"BEGIN");
    assert_eq!(fs::metadata(&path).unwrap().len(), 4003);
}

/// The kernel cuts them into requests of at most 1 MiB, each of which is appended by itself.
#[test]
fn large_appends_of_one_mount_are_whole() {
    const RECORD: usize = (5 << 20) + 4321;
    const RECORDS: usize = 3;
    let cluster = Cluster::mounted();
    let path = cluster.path("log");
    File::create(&path).unwrap();
    thread::scope(|scope| {
        for writer in 0..4 {
            // Descriptions of their own, as those of several processes are.
            let mut file = File::options().append(true).open(&path).unwrap();
            scope.spawn(move || {
                for _ in 0..RECORDS {
                    let record: Vec<u8> = (0..RECORD).map(|index| (index / 4096 * 4 + writer) as u8).collect();
                    assert_eq!(file.write(&record).unwrap(), RECORD, "at once");
                }
            });
        }
    });
    let text = fs::read(&path).unwrap();
    assert_eq!(text.len(), 4 * RECORDS * RECORD);
    for record in text.chunks(RECORD) {
        let writer = record[0] as usize;
        let torn = (0..RECORD).find(|index| record[*index] != (index / 4096 * 4 + writer) as u8);
        assert_eq!(torn, None, "a record of writer {writer}");
    }
}

/// The kernel leaves access times to the server of a mount, and does not tell it the mount's
/// options.
#[test]
fn mounts_that_keep_access_times_keep_them() {
    let accessed = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.atime(), found.atime_nsec())
    };
    for (options, kept_of_files, kept_of_directories) in
        [("noatime", true, true), ("nodiratime", false, true), ("relatime", false, false)]
    {
        let cluster = Cluster::mounted_with(options);
        let (file, directory) = (cluster.path("file"), cluster.path("directory"));
        fs::write(&file, b"x").unwrap();
        fs::create_dir(&directory).unwrap();
        let before = (accessed(&file), accessed(&directory));
        assert_eq!(fs::read(&file).unwrap(), b"x");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        let after = (accessed(&file), accessed(&directory));
        assert_eq!((before.0 == after.0, before.1 == after.1), (kept_of_files, kept_of_directories), "{options}");
    }
    let cluster = Cluster::mounted_with("ro");
    let before = accessed(cluster.point());
    assert_eq!(fs::read_dir(cluster.point()).unwrap().count(), 0);
    assert_eq!(accessed(cluster.point()), before, "ro");
}

#[test]
fn ranges_are_copied_within_the_file_system() {
    let cluster = Cluster::mounted();
    let data = pattern(5_000_000);
    fs::write(cluster.path("from"), &data).unwrap();
    let (from, to) = (File::open(cluster.path("from")).unwrap(), read_write(&cluster.path("to")));
    let (mut source, mut sink) = (1000, 0);
    while rustix::fs::copy_file_range(&from, Some(&mut source), &to, Some(&mut sink), 1 << 30).unwrap() > 0 {}
    assert!(fs::read(cluster.path("to")).unwrap() == data[1000..]);
}

/// Runs `work` in a thread of another identity.
fn as_user<T: Send>(uid: libc::uid_t, gid: libc::gid_t, groups: &[libc::gid_t], work: impl FnOnce() -> T + Send) -> T {
    let change = || {
        // SAFETY: the system calls themselves change this thread only (the C library's functions
        // would change all).
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
        }
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            change();
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn supplementary_groups_count() {
    let cluster = Cluster::mounted();
    let path = cluster.path("for the group");
    fs::write(&path, b"secret").unwrap();
    fs::set_permissions(cluster.point(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(500), Some(600)).unwrap();
    assert_eq!(as_user(1000, 600, &[], || fs::read(&path).unwrap()), b"secret");
    assert_eq!(as_user(1000, 1000, &[1, 600, 2], || fs::read(&path).unwrap()), b"secret");
    assert_eq!(as_user(1000, 1000, &[1, 601], || errno(fs::read(&path))), libc::EACCES);
    assert_eq!(as_user(1000, 1000, &[1, 600], || errno(fs::write(&path, b"x"))), libc::EACCES);
}

#[test]
fn set_id_bits_do_not_survive_foreign_writes() {
    let cluster = Cluster::mounted();
    fs::set_permissions(cluster.point(), fs::Permissions::from_mode(0o755)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let prepare = |name: &str, bits: u32| {
        let path = cluster.path(name);
        fs::write(&path, b"data").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        path
    };
    let write = |path: &Path| File::options().write(true).open(path).unwrap().write_all(b"x").unwrap();
    let path = prepare("written", 0o6777);
    write(&path);
    assert_eq!(mode(&path), 0o6777, "root may keep them");
    as_user(1000, 1000, &[], || write(&path));
    assert_eq!(mode(&path), 0o777);
    let path = prepare("truncated", 0o6777);
    as_user(1000, 1000, &[], || File::options().write(true).open(&path).unwrap().set_len(1).unwrap());
    assert_eq!(mode(&path), 0o777);
    let path = prepare("emptied", 0o6777);
    as_user(1000, 1000, &[], || drop(File::options().write(true).truncate(true).open(&path).unwrap()));
    assert_eq!(mode(&path), 0o777);
    let path = prepare("allocated", 0o6777);
    let allocate = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4096).unwrap();
    };
    allocate(&path);
    assert_eq!(mode(&path), 0o6777, "root may keep them");
    as_user(1000, 1000, &[], || allocate(&path));
    assert_eq!(mode(&path), 0o777);
    let path = prepare("given away", 0o6755);
    std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn the_umask_is_applied_at_the_server() {
    let cluster = Cluster::mounted();
    let name = CString::new(cluster.path("masked").as_os_str().as_bytes()).unwrap();
    // SAFETY: the name lives through the calls; from the first of them on the mask is this thread's
    // own.
    let masked = move || unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FS), 0);
        libc::umask(0o027);
        let file = libc::open(name.as_ptr(), libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC, 0o666);
        assert!(file >= 0);
        libc::close(file)
    };
    assert_eq!(thread::spawn(masked).join().unwrap(), 0);
    assert_eq!(fs::metadata(cluster.path("masked")).unwrap().permissions().mode(), 0o100_640);
}

#[test]
fn the_control_channel_answers_on_files_and_directories() {
    let cluster = Cluster::mounted();
    fs::write(cluster.path("file"), b"data").unwrap();
    let directory = File::open(cluster.point()).unwrap();
    let ControlReply::Name(fsname, client) = host::ioctl::call(directory.as_fd(), &ControlRequest::Name).unwrap()
    else {
        panic!("not a name")
    };
    assert!(client.starts_with(&format!("{fsname}-")));
    let inode = fs::metadata(cluster.path("file")).unwrap().ino();
    let by_name = ControlRequest::GetInode(Subject::Name(b"file".to_vec()));
    let ControlReply::Inode(found) = host::ioctl::call(&directory, &by_name).unwrap() else { panic!("no inode") };
    assert_eq!(found.0, inode);
    let file = File::open(cluster.path("file")).unwrap();
    let layout = host::ioctl::call(&file, &ControlRequest::GetLayout(Subject::This)).unwrap();
    assert!(matches!(layout, ControlReply::Layout { directory: false, layout: Some(_), .. }), "{layout:?}");
    // Every other ioctl, such as the question for a terminal, is refused as on a local file.
    assert!(!file.is_terminal());
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
}
