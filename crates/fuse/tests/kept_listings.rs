//! Listings that the kernel keeps: two clients with a mount each, over one MDT. Needs root and
//! `/dev/fuse`, and Linux 6.16.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io::{self, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::cluster::{
    Client, Cluster,
    program::{self, Program},
};
use client::Operation;
use fuse::KernelCacheCount;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, linkat, openat, seek};

fn pair() -> Cluster {
    Cluster::mounted().with_another("")
}

/// Over `/dev/fuse`, and over io_uring where the kernel offers it.
fn pairs() -> [Cluster; 2] {
    ["io_uring=off", ""].map(|options| Cluster::mounted_with(options).with_another(options))
}

/// One getdents64(2): names, inodes and the position after each; nothing at the end.
fn page(directory: impl AsFd, buffer: &mut [MaybeUninit<u8>]) -> Vec<(String, u64, u64)> {
    let mut entries = RawDir::new(directory, buffer);
    let mut page = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        page.push((name, entry.ino(), entry.next_entry_cookie()));
        if entries.is_buffer_empty() {
            break;
        }
    }
    page
}

/// All names from where an open directory is, but for `.` and `..`.
fn rest(directory: &File, buffer_bytes: usize) -> Vec<String> {
    let mut buffer = vec![MaybeUninit::uninit(); buffer_bytes];
    let mut names = Vec::new();
    loop {
        let page = page(directory, &mut buffer);
        if page.is_empty() {
            break names;
        }
        names.extend(page.into_iter().map(|(name, ..)| name).filter(|name| name != "." && name != ".."));
    }
}

/// rewinddir(3), and all names.
fn again(directory: &File) -> BTreeSet<String> {
    seek(directory, SeekFrom::Start(0)).unwrap();
    rest(directory, 32 << 10).into_iter().collect()
}

fn list(path: &Path) -> BTreeSet<String> {
    rest(&File::open(path).unwrap(), 32 << 10).into_iter().collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// Requests for names of directories.
fn reads(client: &Client) -> u64 {
    client.file_system().statistics().get(Operation::Readdir).samples
}

/// Lists a directory until the kernel has all its names.
fn warm(client: &Client, name: &str) -> BTreeSet<String> {
    for _ in 0..10 {
        list(&client.path(name));
        let before = reads(client);
        let names = list(&client.path(name));
        if reads(client) == before {
            return names;
        }
        // RELEASEDIR may be on its way.
        thread::sleep(Duration::from_millis(20));
    }
    panic!("the kernel does not keep {name}");
}

fn make(client: &Client, names: &[&str]) {
    fs::create_dir(client.path("d")).unwrap();
    for name in names {
        fs::write(client.path("d").join(name), b"").unwrap();
    }
}

/// A change of names that leaves no trace in the times of the directory.
fn secretly(client: &Client, change: impl FnOnce(&Path)) {
    let path = client.path("d");
    let before = fs::metadata(&path).unwrap();
    change(&path);
    let times = FileTimes::new().set_modified(before.modified().unwrap()).set_accessed(before.accessed().unwrap());
    File::open(&path).unwrap().set_times(times).unwrap();
}

#[test]
fn a_warm_listing_reads_no_names_from_the_mount() {
    pairs().iter().for_each(list_again);
}

fn list_again(cluster: &Cluster) {
    let [a, b] = cluster.clients() else { panic!() };
    let names: Vec<String> = (0..3000).map(|number| format!("a name that is rather long {number}")).collect();
    make(a, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let all: BTreeSet<String> = names.into_iter().collect();
    for client in [a, b] {
        assert_eq!(warm(client, "d"), all);
        let before = (reads(client), client.kernel_cache().statistics().get(KernelCacheCount::ListingsServed));
        for _ in 0..10 {
            assert_eq!(list(&client.path("d")), all);
        }
        let after = (reads(client), client.kernel_cache().statistics().get(KernelCacheCount::ListingsServed));
        assert_eq!(after, (before.0, before.1 + 10));
    }
}

/// Attributes of how many files the kernel is given with a listing.
fn given_with_list(client: &Client, name: &str) -> u64 {
    let given = || client.kernel_cache().statistics().get(KernelCacheCount::AttributesGiven);
    // It is not one of those.
    fs::metadata(client.path(name)).unwrap();
    let before = given();
    list(&client.path(name));
    given() - before
}

/// READDIRPLUS is answered from what the client knows, and attributes that it shows are valid.
#[test]
fn programs_that_look_at_no_file_are_given_names_alone() {
    const FILES: u64 = 9;
    for cluster in pairs() {
        let [a, _] = cluster.clients() else { panic!() };
        let directory = |number: usize| format!("d{number}");
        for number in 0..12 {
            fs::create_dir(a.path(&directory(number))).unwrap();
            (0..FILES).for_each(|file| fs::write(a.path(&directory(number)).join(format!("f{file}")), b"").unwrap());
        }
        let in_a_thread = |work: &(dyn Fn() + Sync)| thread::scope(|scope| scope.spawn(work).join().unwrap());
        in_a_thread(&|| {
            let given: Vec<u64> = (0..10).map(|number| given_with_list(a, &directory(number))).collect();
            assert_eq!(given, [[FILES; 8].as_slice(), &[0; 2]].concat());
            warm(a, "d8");
            warm(a, "d9");
            // A program that reads the names from this one.
            in_a_thread(&|| assert!(fs::metadata(a.path("d9/f0")).unwrap().is_file()));
            assert_eq!(given_with_list(a, "d10"), FILES);
        });
        let served = || a.kernel_cache().statistics().get(KernelCacheCount::ListingsServed);
        in_a_thread(&|| {
            let before = served();
            assert_eq!(given_with_list(a, "d8"), FILES, "the names that the kernel keeps are not enough");
            assert_eq!(served(), before);
            warm(a, "d8");
            assert!(served() > before);
        });
    }
}

#[test]
fn nothing_is_kept_without_checks_of_the_kernel() {
    let cluster = Cluster::mounted_with("no_default_permissions");
    let [a] = cluster.clients() else { panic!() };
    make(a, &["f"]);
    for _ in 0..4 {
        let before = reads(a);
        assert_eq!(list(&a.path("d")), set(["f"]));
        assert_eq!(reads(a), before + 2);
    }
}

/// Whatever one mount does, the other one lists at once, and so does a program that had the
/// directory open before, from its beginning. Nobody can tell by the times.
#[test]
fn changes_are_listed_at_once() {
    pairs().iter().for_each(change_and_list);
}

fn change_and_list(cluster: &Cluster) {
    let [a, b] = cluster.clients() else { panic!() };
    make(a, &["f"]);
    fs::create_dir(a.path("other")).unwrap();
    type Step = (fn(&Path), &'static [&'static str]);
    let steps: [Step; 8] = [
        (|d| fs::write(d.join("g"), b"").unwrap(), &["f", "g"]),
        (|d| fs::rename(d.join("g"), d.join("h")).unwrap(), &["f", "h"]),
        (|d| fs::create_dir(d.join("sub")).unwrap(), &["f", "h", "sub"]),
        (|d| fs::remove_file(d.join("f")).unwrap(), &["h", "sub"]),
        (|d| fs::rename(d.join("sub"), d.join("../other/sub")).unwrap(), &["h"]),
        (|d| fs::hard_link(d.join("h"), d.join("f")).unwrap(), &["f", "h"]),
        (|d| fs::remove_dir(d.join("../other/sub")).unwrap(), &["f", "h"]),
        (|d| fs::remove_file(d.join("h")).unwrap(), &["f"]),
    ];
    for (changer, viewer) in [(a, b), (b, a), (a, a)] {
        for (change, names) in steps {
            let held = File::open(viewer.path("d")).unwrap();
            again(&held);
            drop(held);
            warm(viewer, "d");
            let held = File::open(viewer.path("d")).unwrap();
            again(&held);
            secretly(changer, change);
            let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(list(&viewer.path("d")), names);
            assert_eq!(again(&held), names, "rewound");
            assert_eq!(again(&held), names, "rewound again");
            assert_eq!(list(&viewer.path("d")), names);
        }
    }
}

/// An unnamed file is not listed before it gets a name.
#[test]
fn unnamed_files_are_not_listed() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    make(a, &["f"]);
    warm(a, "d");
    warm(b, "d");
    let unnamed = openat(CWD, a.path("d"), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR).unwrap();
    for client in [a, b] {
        assert_eq!(list(&client.path("d")), set(["f"]));
    }
    linkat(&unnamed, "", CWD, a.path("d/g"), AtFlags::EMPTY_PATH).unwrap();
    for client in [a, b] {
        assert_eq!(list(&client.path("d")), set(["f", "g"]));
    }
}

#[test]
fn a_moved_directory_lists_the_one_above_it() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    make(a, &["f"]);
    fs::create_dir(a.path("other")).unwrap();
    let above = |directory: &File| {
        seek(directory, SeekFrom::Start(0)).unwrap();
        let names = page(directory, &mut vec![MaybeUninit::uninit(); 4096]);
        names.into_iter().find(|(name, ..)| name == "..").unwrap().1
    };
    for mover in [a, b] {
        for (from, to) in [("d", "other/d"), ("other/d", "d")] {
            warm(a, from);
            let held = File::open(a.path(from)).unwrap();
            again(&held);
            fs::rename(mover.path(from), mover.path(to)).unwrap();
            let expected = std::os::unix::fs::MetadataExt::ino(&fs::metadata(a.path(to).parent().unwrap()).unwrap());
            assert_eq!(above(&held), expected);
            assert_eq!(above(&File::open(a.path(to)).unwrap()), expected);
        }
    }
}

/// Positions mean the same wherever names come from, and however few fit into the buffer.
#[test]
fn positions_are_stable() {
    let cluster = pair();
    let [a, _] = cluster.clients() else { panic!() };
    let names: Vec<String> = (0..400).map(|number| format!("{number:0width$}", width = 3 + number % 40)).collect();
    make(a, &names.iter().map(String::as_str).collect::<Vec<_>>());
    // The first time from the mount, then from the kernel.
    for round in 0..3 {
        let directory = File::open(a.path("d")).unwrap();
        let (mut positions, mut buffer) = (Vec::new(), vec![MaybeUninit::uninit(); 80]);
        loop {
            let page = page(&directory, &mut buffer);
            if page.is_empty() {
                break;
            }
            positions.extend(page.into_iter().map(|(name, _, position)| (name, position)));
        }
        assert_eq!(positions.len(), names.len() + 2);
        for number in [0, 1, 7, 200, 399, 400, 150] {
            seek(&directory, SeekFrom::Start(positions[number].1)).unwrap();
            let next = page(&directory, &mut buffer);
            assert_eq!(next[0].0, positions[number + 1].0, "round {round}");
        }
        seek(&directory, SeekFrom::Start(positions[401].1)).unwrap();
        assert_eq!(page(&directory, &mut buffer), [], "round {round}");
    }
    warm(a, "d");
}

/// While names come and go on both mounts, those that stay are listed once each.
#[test]
fn names_that_stay_are_listed_once_while_others_change() {
    pairs().iter().for_each(list_while_names_change);
}

fn list_while_names_change(cluster: &Cluster) {
    const STAYING: usize = 200;
    let names: Vec<String> = (0..STAYING).map(|number| format!("stays {number}")).collect();
    make(&cluster.clients()[0], &names.iter().map(String::as_str).collect::<Vec<_>>());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, client) in cluster.clients().iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                for round in 0..150 {
                    let path = client.path(&format!("d/comes {number} {}", round % 7));
                    match round % 14 {
                        0..7 => drop(File::create(&path).unwrap()),
                        _ => fs::remove_file(&path).unwrap(),
                    }
                }
                is_over.store(true, Ordering::SeqCst);
            });
            for buffer_bytes in [300, 32 << 10] {
                scope.spawn(move || {
                    let held = File::open(client.path("d")).unwrap();
                    while !is_over.load(Ordering::SeqCst) {
                        let opened = File::open(client.path("d")).unwrap();
                        for directory in [&opened, &held] {
                            seek(directory, SeekFrom::Start(0)).unwrap();
                            let mut counts = BTreeMap::new();
                            for name in rest(directory, buffer_bytes) {
                                *counts.entry(name).or_insert(0) += 1;
                            }
                            let staying: Vec<_> = counts.iter().filter(|(name, _)| name.starts_with('s')).collect();
                            assert_eq!(staying.len(), STAYING);
                            assert!(staying.iter().all(|(_, count)| **count == 1), "{counts:?}");
                        }
                    }
                });
            }
        }
    });
    let [a, b] = cluster.clients() else { panic!() };
    assert_eq!(list(&a.path("d")), list(&b.path("d")));
}

#[test]
fn who_may_not_read_gets_no_names_that_are_kept() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    make(a, &["f"]);
    let lists = || {
        let output = Command::new("ls").arg(a.path("d")).uid(5001).gid(5001).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for changer in [a, b] {
        for _ in 0..3 {
            fs::set_permissions(changer.path("d"), Permissions::from_mode(0o755)).unwrap();
            warm(a, "d");
            assert_eq!(lists(), (true, "f\n".to_owned()));
            fs::set_permissions(changer.path("d"), Permissions::from_mode(0o711)).unwrap();
            assert_eq!(lists(), (false, String::new()));
        }
    }
}

/// Names are copied into memory that the same mount provides, page by page, while another client
/// takes the lock away.
#[test]
fn names_copied_into_a_file_of_the_mount_hold_up_nobody() {
    if let Some(point) = program::mount_point() {
        return list_into_memory(&point);
    }
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    let names: Vec<String> = (0..500).map(|number| format!("{number:050}")).collect();
    make(a, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let program = Program::start("kept_listings::names_copied_into_a_file_of_the_mount_hold_up_nobody", &a.path(""));
    let listed = a.path("listed");
    let begun = Instant::now();
    while !listed.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the program lists nothing");
        thread::sleep(Duration::from_millis(5));
    }
    for round in 0..100 {
        let path = b.path(&format!("d/new{}", round % 2));
        if round % 4 < 2 { drop(File::create(path).unwrap()) } else { fs::remove_file(path).unwrap() }
    }
    program.succeed();
    let overdue = a.kernel_cache().statistics().get(KernelCacheCount::Overdue);
    assert!(overdue < 10, "{overdue} of 100 changes waited for a second");
}

/// The program of this test: lists into a mapped file until its standard input ends.
fn list_into_memory(point: &Path) {
    const BYTES: usize = 64 << 10;
    let memory = OpenOptions::new().read(true).write(true).create_new(true).open(point.join("memory")).unwrap();
    memory.set_len(BYTES as u64).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            io::stdin().read_to_end(&mut Vec::new()).unwrap();
            is_over.store(true, Ordering::SeqCst);
        });
        while !is_over.load(Ordering::SeqCst) {
            let directory = File::open(point.join("d")).unwrap();
            // SAFETY: a new mapping of a file that nothing shortens, removed below.
            let address = unsafe {
                let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
                libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, memory.as_raw_fd(), 0)
            };
            assert_ne!(address, libc::MAP_FAILED);
            // SAFETY: as long as the mapping; only this thread has it.
            let buffer = unsafe { std::slice::from_raw_parts_mut(address.cast::<MaybeUninit<u8>>(), BYTES) };
            let listed: usize = (0..3).map(|_| page(&directory, buffer).len()).sum();
            // SAFETY: mapped above, and not used any more.
            assert_eq!(unsafe { libc::munmap(address, BYTES) }, 0);
            assert!(listed >= 502, "{listed}");
            if !point.join("listed").exists() {
                fs::write(point.join("listed"), b"").unwrap();
            }
        }
    });
}

/// What the kernel serves to a directory that stays open is read again from time to time, since a
/// client without a connection may have lost its locks.
#[test]
fn a_directory_that_stays_open_is_read_again() {
    let cluster = pair();
    let [a, _] = cluster.clients() else { panic!() };
    make(a, &["f"]);
    warm(a, "d");
    let held = File::open(a.path("d")).unwrap();
    again(&held);
    let before = reads(a);
    let mut waited = Duration::ZERO;
    while reads(a) == before {
        assert!(waited < Duration::from_secs(60), "it is served for ever");
        thread::sleep(Duration::from_millis(100));
        waited += Duration::from_millis(100);
        assert_eq!(again(&held), set(["f"]));
    }
}
