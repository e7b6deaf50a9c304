//! Several clients at work on the same names and files at once.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::calls::open;
use crate::common::{FileSystem, Transport};

#[test]
fn appends_of_all_clients_are_whole_and_all_there() {
    const RECORDS: usize = 300;
    let system = FileSystem::start(Transport::Tcp, 2);
    let striped = system.shell("lfs setstripe -c 4 -S 64k $A/log").output();
    assert_eq!(striped.status, 0, "{}", striped.stderr);
    // Records of odd lengths, some across stripes.
    let record = |writer: usize, number: usize| {
        let text = format!("writer {writer} record {number} ");
        let length = 50 + (writer * 7919 + number * 104_729) % 3000;
        format!("{text}{}\n", "x".repeat(length))
    };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = system.path(writer % 2).join("log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).expect("open");
                for number in 0..RECORDS {
                    let text = record(writer, number);
                    assert_eq!(file.write(text.as_bytes()).expect("write"), text.len(), "written as a whole");
                }
            });
        }
    });
    let text = fs::read_to_string(system.path(1).join("log")).expect("read");
    let found: BTreeSet<&str> = text.lines().collect();
    let expected: Vec<String> = (0..4).flat_map(|w| (0..RECORDS).map(move |number| record(w, number))).collect();
    assert!(expected.iter().all(|record| found.contains(record.trim_end())), "a record is missing or torn");
    assert_eq!(text.lines().count(), expected.len());
    assert_eq!(text.len(), expected.iter().map(String::len).sum::<usize>());
    system.finish();
}

#[test]
fn exclusive_creation_and_links_have_one_winner() {
    const NAMES: usize = 200;
    let system = FileSystem::start(Transport::Tcp, 2);
    let wins = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for client in 0..2 {
            let (root, wins) = (system.path(client), &wins);
            scope.spawn(move || {
                let own = root.join(format!("own{client}"));
                File::create(&own).expect("create");
                for number in 0..NAMES {
                    let name = root.join(format!("name{number}"));
                    let won = match number % 4 {
                        0 => File::create_new(&name).is_ok(),
                        1 => fs::create_dir(&name).is_ok(),
                        2 => fs::hard_link(&own, &name).is_ok(),
                        _ => std::os::unix::fs::symlink("target", &name).is_ok(),
                    };
                    wins.fetch_add(u32::from(won), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(wins.load(Ordering::Relaxed), NAMES as u32, "each name has one winner");
    assert_eq!(fs::read_dir(system.root()).expect("opendir").count(), NAMES + 2);
    system.finish();
}

/// A name that is replaced by rename, again and again, is always there, with one of its contents
/// whole.
#[test]
fn replacing_by_rename_is_atomic_to_others() {
    const ROUNDS: u32 = 300;
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0), system.path(1));
    let contents = |round: u32| format!("{round}\n").repeat(20_000);
    fs::write(a.join("file"), contents(0)).expect("write");
    let last = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                fs::write(a.join("new"), contents(round)).expect("write");
                fs::rename(a.join("new"), a.join("file")).expect("rename");
                last.store(round, Ordering::SeqCst);
            }
        });
        scope.spawn(|| {
            let mut seen = 0;
            while seen < ROUNDS {
                let before = last.load(Ordering::SeqCst);
                let text = fs::read_to_string(b.join("file")).expect("the name is always there");
                let round: u32 = text.lines().next().and_then(|line| line.parse().ok()).expect("a number");
                assert!(round >= before && round >= seen, "old contents: {round} after {before} and {seen}");
                assert!(text == contents(round), "contents of several files");
                seen = round;
            }
        });
    });
    system.finish();
}

/// Whatever is done to a name by its path: between look-up and use it is replaced, and nobody
/// notices.
#[test]
fn names_replaced_without_pause_are_always_there() {
    const ROUNDS: u32 = 1500;
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0), system.path(1));
    fs::write(a.join("file"), "0").expect("write");
    std::os::unix::fs::symlink("0", a.join("link")).expect("symlink");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                fs::write(a.join("new"), round.to_string()).expect("write");
                fs::rename(a.join("new"), a.join("file")).expect("rename");
                std::os::unix::fs::symlink(round.to_string(), a.join("new link")).expect("symlink");
                fs::rename(a.join("new link"), a.join("link")).expect("rename");
            }
            done.store(true, Ordering::SeqCst);
        });
        for point in [a, b] {
            scope.spawn(|| {
                let mut rounds = 0;
                while !done.load(Ordering::SeqCst) || rounds == 0 {
                    let (file, link) = (point.join("file"), point.join("link"));
                    fs::metadata(&file).expect("stat");
                    fs::read_link(&link)
                        .expect("readlink")
                        .to_str()
                        .expect("a number")
                        .parse::<u32>()
                        .expect("a number");
                    fs::read_to_string(&file).expect("read").parse::<u32>().expect("a number");
                    File::options().append(true).open(&file).expect("open for writing");
                    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
                    rounds += 1;
                }
            });
        }
    });
    system.finish();
}

/// Interleaved records of several writers, as parallel programs write them; none disturbs its
/// neighbours.
#[test]
fn disjoint_writes_of_all_clients_meet_in_one_file() {
    const RECORD: usize = 47_008;
    const RECORDS: usize = 400;
    let system = FileSystem::start(Transport::Tcp, 2);
    system.shell("lfs setstripe -c 4 -S 1M $A/shared").succeed();
    let byte = |record: usize| (record % 251) as u8 + 1;
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let file = open(&system.path(writer % 2).join("shared"), 0);
            scope.spawn(move || {
                for record in (writer..RECORDS).step_by(4) {
                    file.write_all_at(&[byte(record); RECORD], (record * RECORD) as u64).expect("write");
                }
            });
        }
    });
    for client in 0..2 {
        let data = fs::read(system.path(client).join("shared")).expect("read");
        assert_eq!(data.len(), RECORD * RECORDS);
        for (record, bytes) in data.chunks(RECORD).enumerate() {
            assert!(bytes.iter().all(|found| *found == byte(record)), "client {client}, record {record}");
        }
    }
    system.finish();
}

/// Sizes and times while another client writes.
#[test]
fn attributes_are_exact_while_others_write() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("file"), system.path(1).join("file"));
    let file = open(&a, 0);
    let mut last = (0, 0);
    for round in 1..=50u64 {
        file.write_all_at(&[1; 1000], round * 100_000).expect("write");
        let metadata = fs::metadata(&b).expect("stat");
        assert_eq!(metadata.len(), round * 100_000 + 1000);
        let changed = (metadata.mtime(), metadata.mtime_nsec());
        assert!(changed > last, "mtime goes forward");
        last = changed;
    }
    let other = open(&b, 0);
    other.set_len(77).expect("truncate");
    assert_eq!(file.metadata().expect("stat").len(), 77);
    drop((file, other));
    let (here, there) = (fs::metadata(&a).expect("stat"), fs::metadata(&b).expect("stat"));
    assert_eq!((here.len(), here.mtime_nsec(), here.blocks()), (there.len(), there.mtime_nsec(), there.blocks()));
    system.finish();
}
