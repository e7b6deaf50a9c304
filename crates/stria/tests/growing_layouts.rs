//! Automatic layouts on mounts: files that grow past watermarks read back correctly, and
//! `stria explain` gives the reasons for their layouts.

mod common;

use std::{
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use common::{FileSystem, Transport, load::Random, wait_for};

/// Writes at each watermark into a file that is sparse between them.
fn grow(system: &FileSystem, name: &str) -> String {
    for mebibyte in [0, 3, 5, 63, 64, 1023, 1024] {
        let line = format!(
            "yes {mebibyte} | head -c 1500000 | dd of=$A/{name} bs=1M seek={mebibyte} conv=notrunc iflag=fullblock status=none"
        );
        system.shell(&line).succeed();
    }
    system.shell(&format!("stria explain $A/{name}")).succeed()
}

#[test]
fn a_file_grows_through_the_watermarks_and_reads_back() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let explained = grow(&system, "grown");
    for expected in [
        "automatic: the layout grows with the file",
        "  0 B .. 64 KiB: on the metadata target",
        // Written by 1 MiB at a time: the same four stripes from there on.
        "  64 KiB .. 1 GiB: 4 stripes of 1 MiB on OSTs ",
        "why: written in large requests: such files start with 4 OSTs\n",
        // Where it ends depends on the free space of the disk below.
        "  1 GiB .. ",
        ": 4 stripes of 2 MiB on OSTs ",
        "why: no more than 4 OSTs accepted new objects\n",
        "decided when the file is written beyond ",
    ] {
        assert!(explained.contains(expected), "{expected} is missing:\n{explained}");
    }
    let json = system.shell("stria explain --json $A/grown").succeed();
    let json: serde_json::Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(json["components"].as_array().map(Vec::len), Some(4), "{json}");
    assert_eq!(json["objects"], 9);
    // The same bytes on a local file.
    let local = system.place().data("local");
    system.shell(&format!("cp --sparse=always $A/grown {}", local.display())).succeed();
    system.unmount(0);
    system.mount(0);
    system.shell(&format!("cmp $A/grown {}", local.display())).succeed();
    for mebibyte in [0, 5, 64, 1024] {
        let line = format!("dd if=$A/grown bs=1M skip={mebibyte} count=1 status=none | head -n 1");
        assert_eq!(system.shell(&line).succeed(), format!("{mebibyte}\n"));
    }
    assert_eq!(system.shell("stat -c %s $A/grown").succeed(), format!("{}\n", (1u64 << 30) + 1_500_000));
    system.shell("truncate -s 100M $A/grown && rm $A/grown").succeed();
    system.finish();
}

/// `explain` printed 1398 MB/s after a write of 246: it took each OST for a disk of 350.
#[test]
fn estimates_rest_on_what_the_targets_did() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let explain = |system: &FileSystem| -> serde_json::Value {
        let json = system.shell("stria explain --json $A/file").succeed();
        serde_json::from_str(&json).expect("one object")
    };
    let fresh = system.shell("stria explain $A").succeed();
    assert!(fresh.contains("Estimated with 4 OSTs on 1 device of 350 MB/s (assumed"), "{fresh}");
    system.ctl("set_param obdfilter.*.limit_mbps=10");
    // One writer keeps one OST at a time busy, four keep all of them.
    let writers = "lfs setstripe -c 4 -S 1M $A/file && truncate -s 64M $A/file; for ost in 0 1 2 3; do
        dd if=/dev/zero of=$A/file bs=16M count=1 seek=$ost conv=notrunc,fsync status=none & done; wait";
    system.shell(writers).succeed();
    let json = explain(&system);
    assert_eq!(
        (&json["speed_source"], &json["osts"], &json["devices"]),
        (&"lately".into(), &4.into(), &1.into()),
        "{json}"
    );
    let speed = json["ost_bytes_per_second"].as_u64().expect("a number");
    assert!((15_000_000..60_000_000).contains(&speed), "four OSTs of 10 MB/s on one device: {json}");
    assert!(json["components"][0]["one_client_bytes_per_second"].as_u64().expect("a number") <= speed, "{json}");
    // After a start nothing was measured yet: some of the file is read for it.
    system.unmount(0);
    system.mount(0);
    assert_eq!(explain(&system)["speed_source"], "reading");
    let told = system.shell("stria explain --ost-speed 100 $A/file").succeed();
    assert!(told.contains("4 OSTs on 1 device of 100 MB/s (--ost-speed)"), "{told}");
    // An OST that nobody can reach.
    system.ctl("deactivate stria-OST0002");
    let waits = common::wait_for("the deactivation", common::TIMEOUT, || {
        let text = system.shell("stria explain $A/file").succeed();
        text.contains("3 OSTs on 1 device").then_some(text)
    });
    assert!(waits.contains("holds 64 MiB; waits for OST 2, which does not answer"), "{waits}");
    assert!(waits.contains("whole file   waits for OST 2, which does not answer; then"), "{waits}");
    system.ctl("activate stria-OST0002");
    system.finish();
}

#[test]
fn directories_and_jobs_are_explained() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let automatic = system.shell("stria explain $A").succeed();
    assert!(automatic.contains("new files get automatic layouts") && automatic.contains("from 64 MiB"), "{automatic}");
    system.end_automatic_layouts();
    let plain = system.shell("stria explain $A").succeed();
    assert!(plain.contains("new files get 1 stripe of 4 MiB from start to end"), "{plain}");
    let missing = system.shell("stria explain $A/missing").output();
    assert!(missing.status == 1 && missing.stderr.contains("No such file or directory"), "{}", missing.stderr);
    let foreign = system.shell("stria explain /proc").output();
    assert!(foreign.status == 1 && foreign.stderr.contains("is not on a StriaFS file system"), "{}", foreign.stderr);
    let advice = system.shell("stria advise --processes 512 --size 1T --shared").succeed();
    assert!(advice.contains("512 processes on 32 clients write 1 TiB in one shared file"), "{advice}");
    assert!(advice.contains("Leave it to the file system"), "{advice}");
    system.finish();
}

/// What MPI-IO, HDF5 and virtual machines do first. The length needs no object on an OST, wherever
/// it is looked at.
#[test]
fn a_length_given_first_needs_no_object_and_lasts() {
    let mut system = FileSystem::start(Transport::Tcp, 2);
    system.shell("truncate -s 40M $A/announced && truncate -s 30M $A/announced").succeed();
    let explained = || system.shell("stria explain $A/announced").succeed();
    assert!(explained().contains("announced: 30 MiB (0 B of data) in 1 object;"), "{}", explained());
    assert_eq!(system.shell("stat -c %s $B/announced").succeed(), format!("{}\n", 30 << 20));
    system.shell("cmp -n 31457280 $B/announced /dev/zero && lfs getstripe $A/announced").succeed();
    system.unmount(0);
    system.mount(0);
    assert_eq!(system.shell("stat -c %s $A/announced").succeed(), format!("{}\n", 30 << 20));
    system.shell("printf end | dd of=$A/announced bs=1M seek=29 conv=notrunc status=none").succeed();
    assert_eq!(system.shell("dd if=$B/announced bs=1M skip=29 status=none | head -c 3").succeed(), "end");
    assert_eq!(system.shell("stat -c %s $B/announced").succeed(), format!("{}\n", 30 << 20));
    system.shell("truncate -s 29M $B/announced && lfs migrate -c 2 $A/announced").succeed();
    assert_eq!(system.shell("stat -c %s $A/announced").succeed(), format!("{}\n", 29 << 20));
    system.check();
    system.finish();
}

/// A move gives way to other work, by pauses of up to a minute between two pieces, and gives up a
/// file that is in use.
const TIMEOUT_FOR_A_MOVE: Duration = Duration::from_secs(600);
/// After this, it is read again, for a move that was given up to be begun again. Far more than
/// reading takes, so that it is mostly not in use.
const BETWEEN_READS: Duration = Duration::from_secs(30);

/// A file that began with small writes has its first 64 MiB on one OST; read often, it is moved to
/// where it would lie had its size been known.
#[test]
fn a_finished_file_that_is_read_often_is_moved_in_the_background() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let path = system.root().join("read-often");
    let data = Random(11).bytes(72 << 20);
    let mut file = fs::File::create(&path).expect("create");
    // By its first bytes on an OST it seems to be a log.
    let (first, rest) = data.split_at(100 << 10);
    file.write_all(first).and_then(|()| file.sync_all()).and_then(|()| file.write_all(rest)).expect("write");
    drop(file);
    let widths = || system.shell("stria explain $A/read-often").succeed();
    assert!(widths().contains("64 KiB .. 64 MiB: 1 stripe"), "{}", widths());
    let before = fs::metadata(&path).expect("stat");
    system.ctl("set_param 'lod.*.migrate_mbps=4000'");
    let migration = || system.ctl("get_param -n 'mdt.*.migration'");
    let moved = |text: &String| text.lines().any(|line| line.starts_with("moved") && line.contains(" 1 samples"));
    let mut read_at: Option<Instant> = None;
    wait_for("the file is moved", TIMEOUT_FOR_A_MOVE, || {
        if read_at.is_none_or(|at| at.elapsed() > BETWEEN_READS) {
            for _ in 0..2 {
                assert!(fs::read(&path).expect("read") == data);
            }
            // After a failure it takes twice as many; opening counts as well.
            for _ in 0..if read_at.is_some() { 64 } else { 0 } {
                drop(fs::File::open(&path).expect("open"));
            }
            read_at = Some(Instant::now());
        }
        Some(migration()).filter(moved)
    });
    assert!(widths().contains("64 KiB .. 1 GiB: 4 stripes"), "{}", widths());
    assert!(fs::read(&path).expect("read") == data);
    let after = fs::metadata(&path).expect("stat");
    assert_eq!((after.ino(), after.mtime(), after.mtime_nsec()), (before.ino(), before.mtime(), before.mtime_nsec()));
    system.check();
    system.finish();
}
