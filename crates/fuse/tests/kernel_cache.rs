//! What the kernel caches of names and attributes: two clients with a mount each, over one MDT.
//! Needs root and `/dev/fuse`, and Linux 6.16.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::cluster::{Client, Cluster};
use client::Operation;
use fuse::KernelCacheCount;
use rustix::fs::{CWD, FileType, Mode, mknodat};

const DEEP: &str = "a/b/c/d/file";

fn pair() -> Cluster {
    Cluster::mounted().with_another("")
}

/// Requests about names and attributes that a mount was sent by the kernel.
fn looks(client: &Client) -> u64 {
    let statistics = client.file_system().statistics();
    [Operation::Lookup, Operation::Getattr, Operation::Access, Operation::Getxattr]
        .map(|operation| statistics.get(operation).samples)
        .iter()
        .sum()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn make_deep(client: &Client) {
    fs::create_dir_all(client.path("a/b/c/d")).unwrap();
    fs::write(client.path(DEEP), b"text").unwrap();
}

/// Makes everything on the way to a path valid in the kernel.
fn warm(path: &Path) {
    for _ in 0..3 {
        drop(fs::metadata(path));
    }
}

#[test]
fn a_warm_stat_makes_no_request() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    make_deep(a);
    for client in [a, b] {
        let path = client.path(DEEP);
        warm(&path);
        let before = looks(client);
        for _ in 0..100 {
            assert_eq!(fs::metadata(&path).unwrap().len(), 4);
        }
        assert_eq!(looks(client), before);
    }
}

#[test]
fn a_listing_makes_names_and_attributes_valid() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    fs::create_dir(a.path("d")).unwrap();
    // Not opened: the kernel closes later than it says, and until then a size is not known.
    for number in 0..100 {
        mknodat(CWD, a.path(&format!("d/{number}")), FileType::RegularFile, Mode::RUSR, 0).unwrap();
    }
    // A second listing finds everything that the first one taught the client.
    for _ in 0..2 {
        for entry in fs::read_dir(b.path("d")).unwrap() {
            entry.unwrap().metadata().unwrap();
        }
    }
    let before = looks(b);
    for number in 0..100 {
        fs::metadata(b.path(&format!("d/{number}"))).unwrap();
    }
    assert_eq!(looks(b), before);
}

#[test]
fn nothing_is_given_without_checks_of_the_kernel() {
    let cluster = Cluster::mounted_with("no_default_permissions");
    let [a] = cluster.clients() else { panic!() };
    make_deep(a);
    warm(&a.path(DEEP));
    let before = looks(a);
    fs::metadata(a.path(DEEP)).unwrap();
    assert!(looks(a) > before);
    assert_eq!(a.kernel_cache().counts(), (1, 0));
}

/// Each change that the one makes is seen by the other at once, whose kernel has everything cached.
#[test]
fn changes_by_others_are_seen_at_once() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    for (changer, viewer) in [(a, b), (b, a)] {
        make_deep(changer);
        let (theirs, ours) = (|name: &str| changer.path(name), |name: &str| viewer.path(name));
        let mode = || fs::metadata(ours(DEEP)).unwrap().mode() & 0o7777;
        warm(&ours(DEEP));
        for bits in [0o600, 0o640, 0o755] {
            fs::set_permissions(theirs(DEEP), Permissions::from_mode(bits)).unwrap();
            assert_eq!(mode(), bits);
        }
        for size in [10, 20, 5] {
            warm(&ours(DEEP));
            OpenOptions::new().write(true).open(theirs(DEEP)).unwrap().set_len(size).unwrap();
            assert_eq!(fs::metadata(ours(DEEP)).unwrap().len(), size);
        }
        warm(&ours(DEEP));
        OpenOptions::new().append(true).open(theirs(DEEP)).unwrap().write_all(b"more").unwrap();
        assert_eq!(fs::metadata(ours(DEEP)).unwrap().len(), 9);

        // Names.
        warm(&ours(DEEP));
        fs::hard_link(theirs(DEEP), theirs("a/link")).unwrap();
        assert_eq!(fs::metadata(ours(DEEP)).unwrap().nlink(), 2);
        warm(&ours("a/link"));
        fs::remove_file(theirs("a/link")).unwrap();
        assert_eq!(errno(fs::metadata(ours("a/link"))), Some(libc::ENOENT));
        assert_eq!(fs::metadata(ours(DEEP)).unwrap().nlink(), 1);
        warm(&ours(DEEP));
        fs::rename(theirs(DEEP), theirs("a/b/moved")).unwrap();
        assert_eq!(errno(fs::metadata(ours(DEEP))), Some(libc::ENOENT));
        warm(&ours("a/b/moved"));
        fs::write(theirs("a/other"), b"").unwrap();
        let other = fs::metadata(theirs("a/other")).unwrap().ino();
        fs::rename(theirs("a/other"), theirs("a/b/moved")).unwrap();
        assert_eq!(fs::metadata(ours("a/b/moved")).unwrap().ino(), other, "it was replaced");

        // A directory above, while the path is warm below it.
        warm(&ours("a/b/c/d"));
        fs::rename(theirs("a/b"), theirs("a/x")).unwrap();
        assert_eq!(errno(fs::metadata(ours("a/b/c/d"))), Some(libc::ENOENT));
        warm(&ours("a/x/c/d"));
        fs::set_permissions(theirs("a/x"), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(fs::metadata(ours("a/x")).unwrap().mode() & 0o7777, 0o700);
        symlink("c", theirs("a/x/s")).unwrap();
        warm(&ours("a/x/s/d"));
        fs::remove_file(theirs("a/x/s")).unwrap();
        symlink("nowhere", theirs("a/x/s")).unwrap();
        assert_eq!(errno(fs::metadata(ours("a/x/s/d"))), Some(libc::ENOENT));
        fs::remove_dir(theirs("a/x/c/d")).unwrap();
        assert_eq!(errno(fs::metadata(ours("a/x/c/d"))), Some(libc::ENOENT));
        fs::remove_dir_all(theirs("a")).unwrap();
        assert_eq!(errno(fs::metadata(ours("a"))), Some(libc::ENOENT));
    }
}

/// The kernel checks these by the owner that it knows.
#[test]
fn new_owners_may_change_what_they_own_at_once() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    let as_user = |client: &Client, line: &str| {
        let path = client.path("tmp/f");
        let line = line.replace('$', path.to_str().unwrap());
        Command::new("sh").args(["-c", &line]).uid(5001).gid(5001).output().unwrap().status.success()
    };
    fs::create_dir(a.path("tmp")).unwrap();
    fs::set_permissions(a.path("tmp"), Permissions::from_mode(0o1777)).unwrap();
    for _ in 0..20 {
        fs::write(a.path("tmp/f"), b"").unwrap();
        warm(&b.path("tmp/f"));
        assert!(!as_user(b, "chmod 600 $ 2>/dev/null"));
        warm(&b.path("tmp/f"));
        chown(a.path("tmp/f"), Some(5001), None).unwrap();
        assert!(as_user(b, "chmod 600 $"));
        chown(a.path("tmp/f"), Some(0), None).unwrap();
        assert!(!as_user(b, "rm -f $ 2>/dev/null"));
        warm(&b.path("tmp/f"));
        chown(a.path("tmp/f"), Some(5001), None).unwrap();
        assert!(as_user(b, "rm -f $"));
    }
}

/// The kernel keeps names of what it creates, with the owner that it had then. Programs look before
/// they change; these do not.
#[test]
fn new_owners_of_new_files_may_change_them_at_once() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    let as_owner = |work: &(dyn Fn() -> io::Result<()> + Sync)| {
        let in_thread = || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(5001)).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(in_thread).join().unwrap())
    };
    fs::create_dir(a.path("tmp")).unwrap();
    fs::set_permissions(a.path("tmp"), Permissions::from_mode(0o1777)).unwrap();
    for round in 0..12 {
        let path = a.path(&format!("tmp/{round}"));
        // Open while it is given away, or not; or a directory.
        let open = match round % 3 {
            0 => Some(File::create(&path).unwrap()),
            1 => File::create(&path).map(|_| None).unwrap(),
            _ => fs::create_dir(&path).map(|()| None).unwrap(),
        };
        chown(b.path(&format!("tmp/{round}")), Some(5001), None).unwrap();
        match round / 3 % 2 {
            0 => as_owner(&|| fs::set_permissions(&path, Permissions::from_mode(0o700))).unwrap(),
            _ if round % 3 == 2 => as_owner(&|| fs::remove_dir(&path)).unwrap(),
            _ => as_owner(&|| fs::remove_file(&path)).unwrap(),
        }
        drop(open);
    }
}

/// The kernel keeps access lists, and that there are none, however long attributes are valid.
#[test]
fn access_lists_of_others_are_seen_at_once() {
    const NAME: &str = "system.posix_acl_access";
    // As `setfacl -m u:<id>:<permissions>` writes it: version 2; then tag, permissions and id of
    // each entry.
    let list = |permissions: u16, id: u32| {
        let entry = |tag: u16, permissions: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let entries =
            [entry(1, 7, none), entry(2, permissions, id), entry(4, 0, none), entry(16, 7, none), entry(32, 0, none)];
        [&2_u32.to_le_bytes()[..], &entries.concat()].concat()
    };
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    fs::create_dir(a.path("d")).unwrap();
    fs::write(a.path("d/f"), b"text").unwrap();
    fs::set_permissions(a.path("d"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(a.path("d/f"), Permissions::from_mode(0o644)).unwrap();
    for (changer, viewer) in [(a, b), (b, a)] {
        let open = File::open(viewer.path("d")).unwrap();
        let seen = || {
            let mut value = vec![0; 256];
            rustix::fs::fgetxattr(&open, NAME, &mut value[..]).map(|bytes| value[..bytes].to_vec())
        };
        let may = || {
            let path = viewer.path("d/f");
            Command::new("cat").arg(path).uid(5001).gid(5001).output().unwrap().status.success()
        };
        for round in 0..5 {
            assert!(!may());
            // An answer to a change makes no attributes valid.
            open.set_permissions(Permissions::from_mode(0o700)).unwrap();
            assert_eq!(seen(), Err(rustix::io::Errno::NODATA), "round {round}");
            let set = |list: &[u8]| {
                rustix::fs::setxattr(changer.path("d"), NAME, list, rustix::fs::XattrFlags::empty()).unwrap();
            };
            set(&list(7, 5001));
            assert_eq!(seen(), Ok(list(7, 5001)), "round {round}");
            assert!(may(), "round {round}");
            open.set_permissions(Permissions::from_mode(0o770)).unwrap();
            assert_eq!(seen(), Ok(list(7, 5001)));
            set(&list(7, 5002));
            assert_eq!(seen(), Ok(list(7, 5002)), "round {round}");
            assert!(!may(), "round {round}");
            rustix::fs::removexattr(changer.path("d"), NAME).unwrap();
            fs::set_permissions(changer.path("d"), Permissions::from_mode(0o700)).unwrap();
        }
    }
}

/// The kernel moves what it has cached of a name to the new name.
/// The process was stopped while it answered: what the kernel got so late it may not keep.
#[test]
fn nothing_is_served_that_the_kernel_got_too_late() {
    let cluster = pair();
    let [a, _] = cluster.clients() else { panic!() };
    make_deep(a);
    let path = a.path(DEEP);
    warm(&path);
    let before = looks(a);
    fs::metadata(&path).unwrap();
    assert_eq!(looks(a), before, "the kernel has everything");
    // Not before the kernel has heard that attributes are outdated: that is a thread's work.
    cluster.block_on(a.kernel_cache().is_overdue());
    let asked = looks(a);
    fs::metadata(&path).unwrap();
    assert!(looks(a) >= asked + DEEP.split('/').count() as u64, "each name is looked up again");
    warm(&path);
    let before = looks(a);
    fs::metadata(&path).unwrap();
    assert_eq!(looks(a), before, "and kept again");
}

#[test]
fn names_that_this_mount_renamed_are_withdrawn_under_their_new_name() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    make_deep(a);
    fs::write(a.path("a/e"), b"e").unwrap();
    warm(&a.path(DEEP));
    warm(&a.path("a/e"));
    fs::rename(a.path(DEEP), a.path("a/new")).unwrap();
    warm(&a.path("a/new"));
    fs::remove_file(b.path("a/new")).unwrap();
    assert_eq!(errno(fs::metadata(a.path("a/new"))), Some(libc::ENOENT));
    fs::rename(a.path("a/e"), a.path("a/b/e")).unwrap();
    fs::rename(b.path("a/b/e"), b.path("a/f")).unwrap();
    assert_eq!(errno(fs::metadata(a.path("a/b/e"))), Some(libc::ENOENT));
    assert_eq!(fs::read(a.path("a/f")).unwrap(), b"e");
}

/// Both remove what the other one has cached, in the same directory: each of the requests holds a
/// lock of the kernel that the withdrawal for the other one would wait for.
#[test]
fn clients_that_change_one_directory_at_once_do_not_wait_for_each_other() {
    const ROUNDS: usize = 100;
    let cluster = pair();
    let clients = cluster.clients();
    fs::create_dir(clients[0].path("d")).unwrap();
    let (barrier, begun) = (Barrier::new(2), Instant::now());
    thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                let own = |round: usize| client.path(&format!("d/{number}-{round}"));
                let of_other = |round: usize| client.path(&format!("d/{}-{round}", 1 - number));
                for round in 0..ROUNDS {
                    fs::write(own(round), b"").unwrap();
                    barrier.wait();
                    warm(&own(round));
                    warm(&of_other(round));
                    barrier.wait();
                    match round % 3 {
                        0 => fs::remove_file(own(round)).unwrap(),
                        1 => fs::rename(own(round), client.path(&format!("d/{number}-renamed"))).unwrap(),
                        _ => fs::remove_file(of_other(round)).unwrap(),
                    }
                    barrier.wait();
                    assert_eq!(errno(fs::metadata(own(round))), Some(libc::ENOENT), "round {round}");
                    assert_eq!(errno(fs::metadata(of_other(round))), Some(libc::ENOENT), "round {round}");
                }
            });
        }
    });
    let epochs: u64 =
        clients.iter().map(|client| client.kernel_cache().statistics().get(KernelCacheCount::Epochs)).sum();
    let overdue: u64 =
        clients.iter().map(|client| client.kernel_cache().statistics().get(KernelCacheCount::Overdue)).sum();
    assert!(epochs > 0, "no withdrawal ever met a change");
    assert_eq!(overdue, 0);
    // One withdrawal that waits for the watchdog takes a second.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Creations, lookups, listings, renames and removals of both, all in one directory.
#[test]
fn busy_directories_make_progress_and_agree() {
    let cluster = pair();
    let clients = cluster.clients();
    fs::create_dir(clients[0].path("d")).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in clients {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let entries = fs::read_dir(client.path("d")).unwrap();
                    let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
                    for path in paths {
                        drop(fs::metadata(path));
                    }
                }
            });
        }
        thread::scope(|scope| {
            for (number, client) in clients.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..150 {
                        // Both use the same names.
                        let (one, other) = (client.path(&format!("d/{}", round % 7)), client.path("d/other"));
                        match (round + number) % 4 {
                            0 => drop(File::create(&one)),
                            1 => drop(fs::rename(&one, &other)),
                            2 => drop(fs::remove_file(&one)),
                            _ => drop(fs::hard_link(&other, &one)),
                        }
                    }
                });
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    let list = |client: &Client| {
        let entries = fs::read_dir(client.path("d")).unwrap().map(|entry| entry.unwrap());
        let mut all: Vec<_> = entries
            .map(|entry| {
                let metadata = entry.metadata().unwrap();
                (entry.file_name(), metadata.ino(), metadata.nlink())
            })
            .collect();
        all.sort();
        all
    };
    assert_eq!(list(&clients[0]), list(&clients[1]));
}

#[test]
fn what_the_kernel_forgets_is_forgotten() {
    let cluster = pair();
    let [a, b] = cluster.clients() else { panic!() };
    make_deep(a);
    for number in 0..50 {
        fs::write(a.path(&format!("a/{number}")), b"").unwrap();
        fs::rename(a.path(&format!("a/{number}")), a.path(&format!("a/b/{number}"))).unwrap();
    }
    for client in [a, b] {
        for entry in fs::read_dir(client.path("a/b")).unwrap() {
            entry.unwrap().metadata().unwrap();
        }
        warm(&client.path(DEEP));
        assert!(client.kernel_cache().counts().0 > 50);
    }
    // Forgetting is asynchronous, and what is being written back is kept.
    let begun = Instant::now();
    loop {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        let counts = [a, b].map(|client| client.kernel_cache().counts());
        if counts == [(1, 0); 2] {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{counts:?}");
        thread::sleep(Duration::from_millis(20));
    }
    // Nothing was forgotten too early: what comes now is found anew.
    assert_eq!(fs::read(b.path(DEEP)).unwrap(), b"text");
}

/// The close of a file goes with the next request to the MDT.
#[test]
fn creating_writing_and_closing_costs_two_requests() {
    const FILES: u64 = 50;
    let cluster = Cluster::mounted();
    let client = cluster.clients()[0].file_system();
    // As long as the kernel takes between two files on a host that is busy.
    client.set_close_delay_ms(60_000);
    let requests = || -> u64 {
        let connections = client.connections();
        let opcodes = connections.iter().flat_map(|(_, _, statistics)| &statistics.opcodes);
        opcodes.filter(|opcode| !opcode.name.contains("ping")).map(|opcode| opcode.calls).sum()
    };
    fs::create_dir(cluster.path("d")).unwrap();
    fs::write(cluster.path("d/first"), b"data").unwrap();
    let before = requests();
    for number in 0..FILES {
        fs::write(cluster.path(&format!("d/{number}")), b"data").unwrap();
    }
    assert_eq!(requests() - before, 2 * FILES, "{:?}", client.connections());
    client.set_close_delay_ms(0);
    let mut names: Vec<_> = fs::read_dir(cluster.path("d")).unwrap().map(|entry| entry.unwrap()).collect();
    names.sort_by_key(|entry| entry.file_name());
    assert_eq!(names.len() as u64, FILES + 1);
    assert!(names.iter().all(|entry| entry.metadata().unwrap().len() == 4));
}
