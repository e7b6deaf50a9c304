//! Names, paths, attributes, sizes and options of `lfs` out of bounds.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, XattrFlags, mkdirat, openat, setxattr};

use crate::{common::Output, site::Site};

#[track_caller]
fn fails<T>(result: io::Result<T>, errno: i32) {
    let error = result.err().expect("it cannot work");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
}

#[test]
fn names_and_paths_end_at_their_limits() {
    let site = Site::running(1);
    let root = site.path("");
    let longest = "n".repeat(255);
    fs::write(root.join(&longest), "long").unwrap();
    assert_eq!(fs::read_to_string(root.join(&longest)).unwrap(), "long");
    let too_long = "n".repeat(256);
    fails(File::create(root.join(&too_long)), libc::ENAMETOOLONG);
    fails(fs::metadata(root.join(&too_long)), libc::ENAMETOOLONG);
    fails(fs::create_dir(root.join(&too_long)), libc::ENAMETOOLONG);
    fails(fs::rename(root.join(&longest), root.join(&too_long)), libc::ENAMETOOLONG);
    fails(fs::hard_link(root.join(&longest), root.join(&too_long)), libc::ENAMETOOLONG);
    fails(std::os::unix::fs::symlink("x", root.join(&too_long)), libc::ENAMETOOLONG);
    fails(std::os::unix::fs::symlink("t".repeat(4096), root.join("link")), libc::ENAMETOOLONG);
    std::os::unix::fs::symlink("t".repeat(4095), root.join("link")).unwrap();
    assert_eq!(fs::read_link(root.join("link")).unwrap().as_os_str().len(), 4095);
    let path: PathBuf = root.join(vec!["d"; 3000].join("/"));
    fails(fs::metadata(&path), libc::ENAMETOOLONG);
    // Deeper than any path can say, step by step, and back.
    let mut directory = openat(CWD, &root, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..40 {
        mkdirat(&directory, "d".repeat(255), Mode::RWXU).unwrap();
        directory = openat(&directory, "d".repeat(255), OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let file = openat(&directory, "file", OFlags::CREATE | OFlags::RDWR, Mode::RWXU).unwrap();
    File::from(file).write_all_at(b"deep", 0).unwrap();
    let file = openat(&directory, "file", OFlags::RDONLY, Mode::empty()).unwrap();
    let mut text = [0; 4];
    File::from(file).read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"deep");
    fs::remove_file(root.join(&longest)).ok();
    for name in [&b"new\nline"[..], b"\xff\xfe", b" ", b"-rf", b"*", b"\\"] {
        let path = root.join(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
    }
    site.expect_clean();
}

#[test]
fn attributes_and_sizes_end_at_their_limits() {
    let site = Site::running(1);
    let path = site.path("file");
    let file = File::create(&path).unwrap();
    let set = |name: &str, bytes: usize| Ok(setxattr(&path, name, &vec![7; bytes], XattrFlags::empty())?);
    set(&format!("user.{}", "n".repeat(250)), 10).unwrap();
    fails(set(&format!("user.{}", "n".repeat(251)), 10), libc::ERANGE);
    set("user.large", 65536).unwrap();
    fails(set("user.larger", 65537), libc::E2BIG);
    fails(set("nonsense.name", 1), libc::EOPNOTSUPP);
    fails(file.write_at(b"x", i64::MAX as u64 - 1), libc::EFBIG);
    fails(file.set_len(i64::MAX as u64), libc::EFBIG);
    file.set_len(16 << 40).unwrap();
    file.write_all_at(b"end", (16 << 40) - 3).unwrap();
    let mut end = [0; 3];
    File::open(&path).unwrap().read_exact_at(&mut end, (16 << 40) - 3).unwrap();
    assert_eq!(&end, b"end");
    site.expect_clean();
}

/// A wrong call of `lfs`: arguments (`@` is the mount), exit status, and what must be said.
type WrongCall = (&'static [&'static str], i32, &'static [&'static str]);

const WRONG_CALLS: &[WrongCall] = &[
    (&[], 4, &["usage"]),
    (&["frobnicate"], 1, &["'frobnicate' is not a valid command"]),
    (&["setstripe"], 4, &[]),
    (&["setstripe", "-c"], 4, &["-c"]),
    (&["setstripe", "--frobnicate", "@/new"], 4, &["frobnicate"]),
    (&["setstripe", "-c", "many", "@/new"], 4, &["many"]),
    (&["setstripe", "-c", "2001", "@/new"], 4, &["2001"]),
    (&["setstripe", "-c", "-2", "@/new"], 4, &["-2"]),
    (&["setstripe", "-S", "1000000", "@/new"], 4, &["stripe size"]),
    (&["setstripe", "-S", "lots", "@/new"], 4, &["lots"]),
    (&["setstripe", "-S", "8G", "@/new"], 22, &["stripe size", "over 4GB limit"]),
    (&["setstripe", "-i", "77", "@/new"], 22, &["@/new"]),
    (&["setstripe", "-i", "x", "@/new"], 4, &["x"]),
    (&["setstripe", "-c", "1", "@/full"], 17, &["@/full"]),
    (&["setstripe", "-c", "1", "@/missing/new"], 2, &["@/missing/new"]),
    (&["setstripe", "-c", "1", "/proc/new"], 25, &["/proc/new", "Inappropriate ioctl"]),
    (&["getstripe"], 4, &[]),
    (&["getstripe", "@/missing"], 2, &["@/missing"]),
    (&["getstripe", "--frobnicate", "@"], 4, &["frobnicate"]),
    (&["df", "/proc"], 95, &["/proc", "Not a StriaFS file system"]),
    (&["df", "--frobnicate"], 4, &["frobnicate"]),
    (&["osts", "/proc"], 19, &["/proc"]),
    (&["check", "nonsense"], 4, &["nonsense"]),
    (&["path2fid", "@/missing"], 2, &["@/missing"]),
    (&["path2fid"], 4, &[]),
    (&["fid2path", "@", "[0x200000400:0x7777:0x0]"], 2, &["[0x200000400:0x7777:0x0]"]),
    (&["fid2path", "@", "nonsense"], 22, &["nonsense"]),
    (&["fid2path", "@"], 4, &[]),
];

#[test]
fn wrong_calls_of_lfs_say_what_is_wrong_and_change_nothing() {
    let site = Site::running(1);
    fs::write(site.path("full"), "data").unwrap();
    let mount = site.name("").trim_end_matches('/').to_owned();
    let mut wrong = Vec::new();
    for (arguments, status, parts) in WRONG_CALLS {
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace('@', &mount)).collect();
        let words: Vec<&str> = ["lfs"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let Output { status: found, stderr: said, .. } = site.output(&words);
        let complete = parts.iter().all(|part| said.contains(&part.replace('@', &mount)));
        if found != *status || !complete || said.trim().is_empty() {
            wrong.push(format!("{words:?}: expected {status} and {parts:?}, got {found}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let names: Vec<_> = fs::read_dir(site.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [Path::new("full")], "nothing was created");
}
