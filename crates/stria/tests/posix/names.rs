//! Many names in a directory, long names and unusual ones.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use super::calls::errno;
use crate::common::{FileSystem, Transport, long};

/// Makes `count` files with two threads, reads the directory, and removes them, reading meanwhile.
fn fill_and_empty(directory: &Path, count: usize) {
    let name = |number: usize| format!("file-{number:07}");
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                for number in (half..count).step_by(2) {
                    File::create_new(directory.join(name(number))).expect("create");
                }
            });
        }
    });
    let listed = |directory: &Path| -> Vec<OsString> {
        fs::read_dir(directory).expect("opendir").map(|entry| entry.expect("readdir").file_name()).collect()
    };
    let names = listed(directory);
    assert_eq!(names.len(), count, "every name once");
    let unique: BTreeSet<OsString> = names.into_iter().collect();
    assert!((0..count).all(|number| unique.contains(OsStr::new(&name(number)))), "and none is missing");
    assert_eq!(fs::metadata(directory.join(name(count / 2))).expect("stat").len(), 0);
    // Reading while others remove: names that stay are neither skipped nor repeated.
    let mut entries = fs::read_dir(directory).expect("opendir");
    let mut seen: Vec<OsString> = entries.by_ref().take(100).map(|entry| entry.expect("readdir").file_name()).collect();
    let stays = |number: usize| number.is_multiple_of(10);
    for number in (0..count).filter(|number| !stays(*number)) {
        fs::remove_file(directory.join(name(number))).expect("unlink");
    }
    seen.extend(entries.map(|entry| entry.expect("readdir").file_name()));
    let staying: BTreeSet<OsString> = (0..count).filter(|number| stays(*number)).map(|n| name(n).into()).collect();
    let found: Vec<&OsString> = seen.iter().filter(|name| staying.contains(*name)).collect();
    assert_eq!(found.len(), staying.len(), "names that stay are read once each");
    assert_eq!(errno(fs::remove_dir(directory)), libc::ENOTEMPTY);
    staying.iter().for_each(|name| fs::remove_file(directory.join(name)).expect("unlink"));
    assert_eq!(listed(directory), Vec::<OsString>::new());
    fs::remove_dir(directory).expect("rmdir");
}

#[test]
fn a_directory_takes_a_hundred_thousand_names() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let directory = system.root().join("many");
    fs::create_dir(&directory).expect("mkdir");
    fill_and_empty(&directory, if long() { 1_000_000 } else { 100_000 });
    system.finish();
}

#[test]
fn a_directory_takes_many_names_over_tcp() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let directory = system.root().join("many");
    fs::create_dir(&directory).expect("mkdir");
    fill_and_empty(&directory, 10_000);
    system.finish();
}

#[test]
fn names_and_paths_may_be_as_long_as_posix_says() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0), system.path(1));
    let longest = "é".repeat(127) + "x";
    assert_eq!(longest.len(), 255);
    fs::write(a.join(&longest), b"long").expect("255 bytes are allowed");
    assert_eq!(fs::read(b.join(&longest)).expect("read"), b"long");
    assert_eq!(errno(File::create(a.join("x".repeat(256)))), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::create_dir(a.join("x".repeat(256)))), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::rename(a.join(&longest), a.join("x".repeat(256)))), libc::ENAMETOOLONG);
    // Any bytes but / and NUL.
    let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let odd = OsStr::from_bytes(&bytes);
    fs::write(a.join(odd), b"odd").expect("any bytes are allowed");
    let listed = fs::read_dir(b).expect("opendir").map(|entry| entry.expect("readdir").file_name());
    assert!(listed.collect::<Vec<_>>().contains(&odd.to_owned()));
    // A symbolic link as long as links may be, and deep directories.
    let target = "t".repeat(4095);
    std::os::unix::fs::symlink(&target, a.join("link")).expect("4095 bytes are allowed");
    assert_eq!(fs::read_link(b.join("link")).expect("readlink").as_os_str().len(), 4095);
    let mut deep = a.to_owned();
    while deep.as_os_str().len() + 101 < 4095 {
        deep.push("d".repeat(100));
        fs::create_dir(&deep).expect("mkdir");
    }
    let inode = fs::metadata(&deep).expect("stat").ino();
    let other = b.join(deep.strip_prefix(a).expect("below the mount"));
    assert_eq!(fs::metadata(other).expect("stat").ino(), inode);
    system.finish();
}

/// The limit of links is that of docs/semantics.md; reaching it takes a while.
#[test]
fn a_file_has_many_links() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let (file, links) = (system.root().join("file"), if long() { 1_000_000 } else { 2_000 });
    File::create(&file).expect("create");
    for number in 1..links {
        if number % 10_000 == 1 {
            fs::create_dir(system.root().join(format!("links{}", number / 10_000))).expect("mkdir");
        }
        let link = system.root().join(format!("links{}/{number}", number / 10_000));
        fs::hard_link(&file, link).expect("link");
    }
    assert_eq!(fs::metadata(&file).expect("stat").nlink(), links);
    if long() {
        assert_eq!(errno(fs::hard_link(&file, system.root().join("one-too-many"))), libc::EMLINK);
    }
    fs::remove_file(&file).expect("unlink");
    assert_eq!(fs::metadata(system.root().join("links0/1")).expect("stat").nlink(), links - 1);
    system.finish();
}
