//! Requests in flight and service threads, on a mount: direct I/O is parallel, the tuners work, and
//! what they do can be seen.

mod common;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{FileSystem, TIMEOUT, Transport, programs::program, wait::End, wait_for};

/// Requests in flight to all OSTs.
fn in_flight(system: &FileSystem) -> usize {
    let statistics = system.ctl("get_param -n 'osc.*.rpc_stats'");
    let counts = statistics.lines().filter_map(|line| line.strip_prefix("in_flight "));
    counts.map(|count| count.parse::<usize>().expect("a number")).sum()
}

/// Requests to all OSTs, up to now, that wrote.
fn writes(system: &FileSystem) -> u64 {
    let statistics = system.ctl("get_param -n 'osc.*.rpc_stats'");
    let lines = statistics.lines().filter(|line| line.starts_with("ost_write "));
    lines.map(|line| line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
}

/// Runs fio several times at once, on one file, again and again until so many requests are in
/// flight.
fn reaches(system: &FileSystem, requests: usize, programs: usize, options: &str) {
    reached_by(system, requests, programs, options, |directory, number| {
        let offset = number * (8 << 20) / programs;
        program("fio")
            .arg("--name=direct")
            .arg(format!("--filename={}", directory.join("file").display()))
            .arg(format!("--offset={offset}"))
            .args(options.split_whitespace())
            .args("--direct=1 --fallocate=none --output-format=terse".split_whitespace())
            .within(directory)
            .succeed();
    });
}

/// Runs several programs at once, again and again until so many requests are in flight. The OSTs
/// answer each after two seconds.
fn reached_by(system: &FileSystem, requests: usize, programs: usize, what: &str, run: impl Fn(&Path, usize) + Sync) {
    system.ctl("set_param 'obdfilter.*.limit_latency_us=2000000'");
    let reached = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (end, reached, run, directory) = (End(&reached), &reached, &run, system.path(0));
        for number in 0..programs {
            scope.spawn(move || {
                while !reached.load(Ordering::SeqCst) {
                    run(directory, number);
                }
            });
        }
        wait_for(&format!("{requests} requests in flight: {what}"), TIMEOUT, || {
            (in_flight(system) >= requests).then_some(())
        });
        drop(end);
        system.ctl("set_param 'obdfilter.*.limit_latency_us=0'");
    });
}

#[test]
fn direct_io_is_parallel() {
    let system = FileSystem::start(Transport::InProcess, 1);
    // What is counted below must not depend on what a tuner tries.
    system.ctl("set_param 'ost.OSS.*.tuner=off' 'osc.*.tuner=off'");
    let write = "lfs setstripe -c 4 -S 1M $A/file && dd if=/dev/zero of=$A/file bs=1M count=8 status=none";
    system.shell(write).succeed();
    for engine in ["io_uring", "libaio"] {
        for what in ["randwrite", "randread"] {
            // Many requests of one program.
            let many = format!("--rw={what} --ioengine={engine} --iodepth=8 --bs=64k --size=512k");
            reaches(&system, 8, 1, &many);
            // Of several programs.
            let few = format!("--rw={what} --ioengine={engine} --iodepth=2 --bs=64k --size=128k");
            reaches(&system, 8, 4, &few);
            // One large request: a part for each stripe.
            let large = format!("--rw={what} --ioengine={engine} --iodepth=1 --bs=8m --size=8m");
            reaches(&system, 8, 1, &large);
        }
    }
    // Threads of one program, each of which waits for its system call.
    for what in ["randwrite", "randread"] {
        let threads =
            format!("--rw={what} --ioengine=psync --thread --numjobs=8 --offset_increment=1m --bs=64k --size=256k");
        reaches(&system, 8, 1, &threads);
    }
    // A file that grows: the kernel executes one such write at a time, but its parts are parallel.
    system.shell("mkdir $A/new && lfs setstripe -c 4 -S 1M $A/new").succeed();
    let extend =
        "--name=extend --filename=new/file --unlink=1 --rw=write --ioengine=libaio --iodepth=1 --bs=8m --size=8m
        --direct=1 --fallocate=none --output-format=terse";
    reached_by(&system, 8, 1, "one write that extends its file", |directory, _| {
        program("fio").args(extend.split_whitespace()).within(directory).succeed();
    });
    system.finish();
}

#[test]
fn tuners_work_and_explain_themselves() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let explain = |service: &str| {
        let run_dir = system.place().data("up").join("run");
        system.shell(&format!("stria explain --service {service} --run-dir {}", run_dir.display()))
    };
    for what in ["ost.OSS.*.tuner", "mds.MDS.*.tuner", "osc.*.tuner", "mdc.*.tuner"] {
        let tuners = system.ctl(&format!("get_param -n '{what}'"));
        assert!(!tuners.is_empty() && tuners.lines().all(|mode| mode == "on"), "by default: {what}: {tuners}");
    }
    let quiet = explain("ost_io").succeed();
    assert!(quiet.contains("ost.OSS.ost_io.tuner=on\n"), "{quiet}");
    assert!(quiet.contains("tuner on: 256 threads of at most 256"), "nothing to tune yet: {quiet}");

    // So few that requests wait for a thread while fio runs.
    system.ctl("set_param ost.OSS.ost_io.threads_max=4 'obdfilter.*.limit_latency_us=2000'");
    system.ctl("set_param ost.OSS.ost_io.tuner=on");
    system.shell("dd if=/dev/zero of=$A/file bs=1M count=8 status=none").succeed();
    let directory = system.path(0);
    let decided = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let options = "--name=load --rw=randwrite --ioengine=libaio --iodepth=64 --direct=1 --bs=16k --size=8m
                --fallocate=none --time_based --runtime=12 --output-format=terse";
            program("fio")
                .arg(format!("--filename={}", directory.join("file").display()))
                .args(options.split_whitespace())
                .within(directory)
                .succeed()
        });
        let decided = wait_for("a decision of a tuner", TIMEOUT, || {
            let log = system.ctl("get_param -n '*.*.*.tuner_log'");
            log.contains(" compared for ").then_some(log)
        });
        load.join().expect("fio succeeds");
        decided
    });
    assert!(decided.contains("/s, ") && decided.contains(" waiting)"), "{decided}");

    // A value set by hand wins.
    system.ctl("set_param 'obdfilter.*.limit_latency_us=0'");
    system.ctl("set_param ost.OSS.ost_io.threads_max=7 'osc.*.max_rpcs_in_flight=9'");
    assert!(
        system.ctl("get_param -n ost.OSS.ost_io.tuner_log").starts_with("tuner off (the value was set by hand): 7 ")
    );
    assert_eq!(system.ctl("get_param -n ost.OSS.ost_io.tuner"), "off (the value was set by hand)\n");
    let windows = system.ctl("get_param -n 'osc.*.max_rpcs_in_flight'");
    assert!(!windows.is_empty() && windows.lines().all(|count| count == "9"), "{windows}");
    let tuners = system.ctl("get_param -n 'osc.*.tuner'");
    assert!(tuners.lines().all(|mode| mode.starts_with("off")), "{tuners}");
    system.ctl("set_param ost.OSS.ost_io.tuner=on");
    assert!(explain("ost_io").succeed().contains("tuner on: 7 threads of at most 7"));
    // A search can begin anywhere.
    system.ctl("set_param ost.OSS.ost_io.tuner=on:3 'osc.*.tuner=on:2'");
    assert!(explain("ost_io").succeed().contains("tuner on: 3 threads of at most 7"));
    let tuners = system.ctl("get_param -n 'osc.*.tuner_log'");
    assert!(
        tuners.lines().all(|line| !line.starts_with("tuner") || line == "tuner on: 2 requests of at most 9"),
        "{tuners}"
    );

    for (command, refusal) in [
        ("set_param ost.OSS.ost_io.tuner=perhaps", "expected on or off"),
        ("set_param ost.OSS.ost_io.threads_max=0", "expected a number from 1 to 1024"),
        ("set_param ost.OSS.ost_io.threads_max=10000", "expected a number from 1 to 1024"),
        ("set_param mds.MDS.mdt.threads_max=10000", "expected a number from 1 to 4096"),
        ("set_param 'osc.*.max_rpcs_in_flight=0'", "expected a number from 1 to"),
        ("set_param 'osc.*.max_dirty_mb=32'", "a mount holds no dirty data"),
        ("set_param 'mdc.*.max_mod_rpcs_in_flight=64'", "expected a number from 1 to 63, which is less than max_rpcs"),
        ("set_param 'osc.*.max_pages_per_rpc=0'", "expected a number from 1 to 1024"),
        ("set_param 'osc.*.max_pages_per_rpc=5M'", "or 4096 to 4194304 bytes, a multiple of 4096"),
    ] {
        let run_dir = system.place().data("up").join("run");
        let refused = system.shell(&format!("stria ctl --run-dir {} {command}", run_dir.display())).output();
        assert!(refused.status != 0 && refused.stderr.contains(refusal), "{command}: {}", refused.stderr);
    }
    // Lustre's names for other limits of connections.
    assert_eq!(system.ctl("get_param -n 'mdc.*.max_mod_rpcs_in_flight' 'mdc.*.max_pages_per_rpc'"), "63\n1024\n");
    system.ctl("set_param 'mdc.*.max_mod_rpcs_in_flight=7' 'osc.*.max_pages_per_rpc=64K'");
    assert_eq!(system.ctl("get_param -n 'mdc.*.max_mod_rpcs_in_flight'"), "7\n");
    assert!(system.ctl("get_param -n 'osc.*.max_pages_per_rpc'").lines().all(|pages| pages == "16"));
    let before = writes(&system);
    system.shell("dd if=/dev/zero of=$A/file bs=1M count=1 seek=4 conv=notrunc oflag=direct status=none").succeed();
    assert_eq!(writes(&system) - before, 16, "1 MiB in requests of 64 KiB");
    let unknown = explain("nosuch").output();
    assert!(unknown.status != 0 && unknown.stderr.contains("allowed: ost, ost_io, mdt"), "{}", unknown.stderr);
    system.finish();
}
