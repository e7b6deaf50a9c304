//! Large, sparse, allocated, copied, unnamed and removed files; times and extended attributes.

use std::{
    fs::{self, File},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags, fallocate};
use types::SplitMix64;

use super::calls::{blocks, errno, open, seek};
use crate::common::{FileSystem, TIMEOUT, Transport, wait_for};

const TIB: u64 = 1 << 40;
const KIB: u64 = 1 << 10;

#[test]
fn a_sparse_file_of_16_tib_takes_what_was_written() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("sparse"), system.path(1).join("sparse"));
    let file = open(&a, 0);
    file.set_len(16 * TIB).expect("truncate");
    let places = [0, 3 * TIB + 12345, 16 * TIB - 5];
    for place in places {
        file.write_all_at(b"data!", place).expect("write");
    }
    let other = File::open(&b).expect("open");
    assert_eq!(other.metadata().expect("stat").len(), 16 * TIB);
    assert!(blocks(&b) <= 3 * 8, "three blocks of 4 KiB: {}", blocks(&b));
    for place in places {
        let mut found = [0; 5];
        other.read_exact_at(&mut found, place).expect("read");
        assert_eq!(&found, b"data!");
    }
    let mut hole = [1; 4096];
    other.read_exact_at(&mut hole, 10 * TIB).expect("read");
    assert_eq!(hole, [0; 4096]);
    // Data and holes, block by block.
    let (data, holes) = (libc::SEEK_DATA, libc::SEEK_HOLE);
    assert_eq!(seek(&other, 0, data).expect("data"), 0);
    assert_eq!(seek(&other, 0, holes).expect("hole"), 4096);
    let second = (3 * TIB + 12345) / 4096 * 4096;
    assert_eq!(seek(&other, 4096, data).expect("data"), second as i64);
    assert_eq!(seek(&other, second as i64, holes).expect("hole"), second as i64 + 4096);
    assert_eq!(seek(&other, second as i64 + 4096, data).expect("data"), (16 * TIB - 4096) as i64);
    assert_eq!(seek(&other, (16 * TIB - 4096) as i64, holes).expect("the end is a hole"), (16 * TIB) as i64);
    assert_eq!(errno(seek(&other, (16 * TIB) as i64, data)), libc::ENXIO);
    file.set_len(1).expect("truncate");
    assert_eq!(errno(seek(&other, 4096, data)), libc::ENXIO);
    assert!(blocks(&b) <= 8);
    drop((file, other));
    // The largest file, and nothing beyond.
    let largest = types::limits::FILE_BYTES_MAX;
    assert!(largest >= (1 << 63) - (1 << 32), "what docs/semantics.md says");
    let file = open(&a, 0);
    file.set_len(largest).expect("the largest file");
    assert_eq!(errno(file.set_len(largest + 1)), libc::EFBIG);
    file.write_all_at(b"x", largest - 1).expect("its last byte");
    assert_eq!(fs::metadata(&b).expect("stat").len(), largest);
    system.finish();
}

#[test]
fn fallocate_allocates_keeps_punches_and_zeroes() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("f"), system.path(1).join("f"));
    let file = open(&a, 0);
    fallocate(&file, FallocateFlags::empty(), 0, 100 * KIB).expect("allocate");
    assert_eq!(fs::metadata(&b).expect("stat").len(), 100 * KIB);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 200 * KIB).expect("allocate");
    assert_eq!(fs::metadata(&b).expect("stat").len(), 100 * KIB);
    file.write_all_at(&[7; 100 * KIB as usize], 0).expect("write");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 5000, 40_000).expect("punch");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 60_000, 50_000).expect("zero");
    let mut expected = vec![7; 110_000];
    expected[5000..45_000].fill(0);
    expected[60_000..110_000].fill(0);
    assert!(fs::read(&b).expect("read") == expected);
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        let refused = fallocate(&file, flags, 0, 4096);
        assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    }
    system.finish();
}

/// As on ext4, which gives these figures. (The first 64 KiB of a file without a chosen layout are
/// not reserved.)
#[test]
fn what_fallocate_reserves_is_in_st_blocks() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("f"), system.path(1).join("f"));
    system.shell("lfs setstripe -c 1 $A/f").succeed();
    let file = open(&a, 0);
    let expect = |step: &str, expected: u64| assert_eq!(blocks(&a), expected, "{step}");
    let allocate = |flags, offset, bytes| fallocate(&file, flags, offset, bytes).expect("fallocate");
    let write = |offset, bytes| file.write_all_at(&vec![7; bytes], offset).expect("write");
    let keep = FallocateFlags::KEEP_SIZE;
    allocate(FallocateFlags::empty(), 0, 1024 * KIB);
    expect("reserved", 2048);
    write(200 * KIB, 100 << 10);
    write(5, 10);
    expect("written inside", 2048);
    write(1024 * KIB, 64 << 10);
    expect("written after it", 2176);
    allocate(FallocateFlags::ZERO_RANGE, 200 * KIB, 48 * KIB);
    expect("zeroed", 2176);
    allocate(FallocateFlags::PUNCH_HOLE | keep, 4096, 8192);
    expect("punched", 2160);
    allocate(keep, 2048 * KIB, 1024 * KIB);
    expect("reserved after the end", 4208);
    assert_eq!(blocks(&b), 4208);
    assert_eq!(fs::metadata(&a).expect("stat").len(), 1088 * KIB);
    file.set_len(1088 * KIB).expect("truncate");
    expect("truncated to the size it has", 2160);
    allocate(keep, 2048 * KIB, 1024 * KIB);
    file.set_len(512 * KIB).expect("truncate");
    expect("truncated", 1008);
    file.set_len(4096 * KIB).expect("truncate");
    expect("extended", 1008);
    assert_eq!(seek(&file, 4096, libc::SEEK_DATA).expect("data"), 248 << 10, "what is only reserved is a hole");
    drop(file);
    assert_eq!(blocks(&b), 1008);
    fs::write(&a, "").expect("truncate");
    expect("emptied", 0);
    // Of its first 64 KiB, one block holds data.
    let automatic = open(&system.path(0).join("automatic"), 0);
    fallocate(&automatic, FallocateFlags::empty(), 0, 1024 * KIB).expect("fallocate");
    automatic.write_all_at(b"data", 0).expect("write");
    assert_eq!(blocks(&system.path(1).join("automatic")), 2048 - 128 + 8);
    drop(automatic);
    system.finish();
}

/// Pseudo-random bytes.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64(seed);
    std::iter::repeat_with(|| random.next_u64() as u8).take(bytes).collect()
}

#[test]
fn copy_file_range_copies_between_files_and_within_one() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let data = noise(3 << 20, 1);
    let (from, to) = (system.root().join("from"), system.root().join("to"));
    fs::write(&from, &data).expect("write");
    let (source, sink) = (open(&from, 0), open(&to, 0));
    let copy = |mut from: u64, mut to: u64, bytes: usize| {
        let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &sink, Some(&mut to), bytes);
        copied.expect("copy_file_range")
    };
    let mut done = 0;
    while done < data.len() - 777 {
        done += copy(777 + done as u64, 100 + done as u64, data.len() - 777 - done);
    }
    let copied = fs::read(&to).expect("read");
    assert!(copied[..100] == [0; 100] && copied[100..] == data[777..]);
    assert_eq!(copy(data.len() as u64, 0, 10), 0, "nothing after the end");
    // cp uses it.
    crate::common::programs::program("cp").args(["--reflink=auto"]).arg(&from).arg(system.root().join("cp")).succeed();
    assert!(fs::read(system.root().join("cp")).expect("read") == data);
    system.finish();
}

#[test]
fn an_unnamed_file_gets_a_name_or_vanishes() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0), system.path(1));
    let unnamed = || {
        let mode = Mode::from_bits_truncate(0o640);
        File::from(rustix::fs::open(a, OFlags::TMPFILE | OFlags::RDWR, mode).expect("O_TMPFILE"))
    };
    let (kept, lost) = (unnamed(), unnamed());
    kept.write_all_at(b"kept", 0).expect("write");
    lost.write_all_at(b"lost", 0).expect("write");
    assert_eq!(kept.metadata().expect("stat").nlink(), 0);
    let path = format!("/proc/self/fd/{}", kept.as_raw_fd());
    rustix::fs::linkat(CWD, &path, CWD, a.join("named"), AtFlags::SYMLINK_FOLLOW).expect("linkat");
    drop((kept, lost));
    assert_eq!(fs::read(b.join("named")).expect("read"), b"kept");
    let metadata = fs::metadata(b.join("named")).expect("stat");
    assert_eq!((metadata.nlink(), metadata.mode() & 0o777), (1, 0o640));
    assert_eq!(fs::read_dir(b).expect("opendir").count(), 1);
    system.finish();
}

#[test]
fn a_removed_file_lives_until_its_last_close_on_any_client() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("file"), system.path(1).join("file"));
    fs::write(&a, noise(1 << 20, 2)).expect("write");
    let (here, there) = (open(&a, 0), File::open(&b).expect("open"));
    fs::remove_file(&b).expect("unlink");
    assert_eq!(errno(File::open(&a)), libc::ENOENT);
    here.write_all_at(b"still here", 500_000).expect("write");
    let mut found = [0; 10];
    there.read_exact_at(&mut found, 500_000).expect("read");
    assert_eq!(&found, b"still here");
    assert_eq!(there.metadata().expect("stat").nlink(), 0);
    drop(here);
    there.read_exact_at(&mut found, 500_000).expect("read");
    // A new file of that name is another one; replacing by rename keeps the old one for those who
    // have it.
    fs::write(&a, b"new").expect("write");
    fs::write(a.with_extension("tmp"), b"newest").expect("write");
    let old = File::open(&b).expect("open");
    fs::rename(a.with_extension("tmp"), &a).expect("rename");
    assert_eq!(std::io::read_to_string(old).expect("read"), "new");
    assert_eq!(fs::read(&b).expect("read"), b"newest");
    there.read_exact_at(&mut found, 500_000).expect("read");
    drop(there);
    // The objects of what was removed are gone: that is what the check at the end looks for.
    system.finish();
}

#[test]
fn times_have_nanoseconds_and_a_wide_range() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("file"), system.path(1).join("file"));
    fs::write(&a, b"x").expect("write");
    for (seconds, nanoseconds) in [(1, 1), (0, 0), (-5, 999_999_999), (1 << 33, 123_456_789)] {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &a, &times, AtFlags::empty()).expect("utimensat");
        let found = fs::metadata(&b).expect("stat");
        assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanoseconds));
        assert_eq!((found.atime(), found.atime_nsec()), (seconds, nanoseconds));
    }
    // Reading is an access, unless it is asked not to be one.
    let accessed = || fs::metadata(&b).map(|found| (found.atime(), found.atime_nsec())).expect("stat");
    let quietly = OFlags::RDONLY | OFlags::NOATIME;
    let before = accessed();
    drop(rustix::fs::open(&a, quietly, Mode::empty()).expect("open"));
    assert_eq!(accessed(), before);
    drop(File::open(&a).expect("open"));
    // Others are told of it afterwards.
    wait_for("the new access time on the other mount", TIMEOUT, || (accessed() != before).then_some(()));
    // Changes of all kinds move ctime forward, and mtime where contents change.
    let times = |path: &Path| {
        let metadata = fs::metadata(path).expect("stat");
        ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()))
    };
    let before = times(&b);
    fs::set_permissions(&a, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    let changed = times(&b);
    assert!(changed.0 == before.0 && changed.1 > before.1);
    fs::write(&a, b"yy").expect("write");
    assert!(times(&b).0 != changed.0 && times(&b).1 > changed.1);
    system.finish();
}

#[test]
fn extended_attributes_are_kept_listed_and_limited() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("file"), system.path(1).join("file"));
    fs::write(&a, b"").expect("write");
    let value = noise(10_000, 3);
    rustix::fs::setxattr(&a, "user.large", &value, XattrFlags::CREATE).expect("setxattr");
    rustix::fs::setxattr(&a, "user.empty", b"", XattrFlags::empty()).expect("setxattr");
    rustix::fs::setxattr(&a, "trusted.mine", b"1", XattrFlags::empty()).expect("setxattr");
    let mut found = vec![0; 65536];
    let bytes = rustix::fs::getxattr(&b, "user.large", found.as_mut_slice()).expect("getxattr");
    assert!(found[..bytes] == value);
    let bytes = rustix::fs::listxattr(&b, found.as_mut_slice()).expect("listxattr");
    let mut names: Vec<&[u8]> = found[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let layout: [&[u8]; 2] = [b"lustre.lov", b"trusted.lov"];
    assert_eq!(names, [layout[0], layout[1], b"trusted.mine", b"user.empty", b"user.large"]);
    use rustix::io::Errno;
    let set = |name: &str, flags| rustix::fs::setxattr(&a, name, b"v", flags);
    assert_eq!(set("user.large", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.absent", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("nonsense.x", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::removexattr(&a, "user.absent"), Err(Errno::NODATA));
    rustix::fs::removexattr(&a, "user.large").expect("removexattr");
    let gone = rustix::fs::getxattr(&b, "user.large", found.as_mut_slice());
    assert_eq!(gone, Err(Errno::NODATA));
    system.finish();
}
