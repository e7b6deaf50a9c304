//! Studies in miniature on real mounts: `stria bench ior --segments`, the emulation, and
//! rate-limited targets.
//!
//! Rates have an upper bound here, from the limits, and no lower bound: no test may depend on the
//! speed of a machine.

mod common;

use std::{path::Path, process::Command};

use common::{Daemon, FileSystem, Place, TIMEOUT, Transport, programs::program, wait_for};
use rustix::process::Signal;

/// Runs `stria bench`; the JSON lines it wrote.
fn bench(place: &Place, arguments: &str) -> Vec<serde_json::Value> {
    run(place, "bench", arguments)
}

/// Runs `stria study`; the JSON lines it wrote.
fn study(place: &Place, arguments: &str) -> Vec<serde_json::Value> {
    run(place, "study", arguments)
}

fn run(place: &Place, command: &str, arguments: &str) -> Vec<serde_json::Value> {
    let directory = place.data("bench");
    std::fs::create_dir_all(&directory).expect("mkdir");
    let json = place.data("lines.json");
    let output = program(env!("CARGO_BIN_EXE_stria"))
        .arg(command)
        .args(arguments.split_whitespace())
        .arg("--dir")
        .arg(&directory)
        .arg("--json")
        .arg(&json);
    let text = output.succeed();
    assert!(text.contains("MiB/s") || text.contains("ops/s"), "{text}");
    let lines = std::fs::read_to_string(&json).expect("JSON lines");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Several mounts of several MDTs, in a process with the servers and without, do what they count.
#[test]
fn metadata_operations_run_over_several_mdts_and_mounts() {
    let place = Place::new();
    let history = place.data("history.jsonl");
    let load = "--mdts 2 --clients 2 --stripes 0 --directories 3 --workers 2 --files 10 --repeat 1 --osts 1";
    let systems = "--systems local,mount,tcp-mount,tcp-native";
    let lines = bench(&place, &format!("mdsrate {load} {systems} --history {}", history.display()));
    assert_eq!(lines.len(), 4 * 11, "systems and phases");
    for line in lines {
        let operations = if line["phase"] == "readdir" { 6 * 20 } else { 6 * 10 };
        assert_eq!((&line["operations"], &line["workers"]), (&operations.into(), &6.into()), "{line}");
        assert_eq!(line["bench"], "mdsrate-striped");
    }
    let refused = program(env!("CARGO_BIN_EXE_stria")).args(["bench", "mdsrate", "--stripes", "3"]).output();
    assert!(refused.status != 0 && refused.stderr.contains("more need --mdts 3"), "{refused:?}");
}

/// Workers that are processes do the same, on a directory, on mounts and as native clients; those
/// that fail end all.
#[test]
fn metadata_operations_run_in_processes() {
    let place = Place::new();
    let history = place.data("history.jsonl");
    let load = "--processes --mdts 2 --clients 2 --directories 2 --workers 1,2 --files 10 --repeat 1 --osts 1";
    let lines =
        bench(&place, &format!("mdsrate {load} --systems local,mount,tcp-native --history {}", history.display()));
    assert_eq!(lines.len(), 2 * 3 * 10, "numbers of workers, systems and phases");
    for (number, line) in lines.iter().enumerate() {
        let workers = if number < 3 * 10 { 2 } else { 4 };
        let each = if line["phase"] == "readdir" { workers / 2 * 10 } else { 10 };
        assert_eq!((&line["operations"], &line["workers"]), (&(workers * each).into(), &workers.into()), "{line}");
        assert!(line["seconds"].as_f64() > Some(0.0) && line["cpu_seconds"].as_f64() > Some(0.0), "{line}");
    }
    let directory = place.data("bench");
    assert_eq!(std::fs::read_dir(&directory).expect("the directory").count(), 0, "cleaned up");
    let failing = program(env!("CARGO_BIN_EXE_stria"))
        .args(["bench", "mdsrate", "--processes", "--systems", "native", "--workers", "2", "--dir"])
        .arg(&directory)
        .output();
    assert!(failing.status != 0 && failing.stderr.contains("use tcp-native"), "{failing:?}");
}

fn rate(line: &serde_json::Value) -> f64 {
    let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
    number("bytes") / f64::from(1 << 20) / number("seconds")
}

/// A limited target gives what it may and no more: two are twice as fast at most.
#[test]
fn segments_are_as_fast_as_their_targets_may_be() {
    let place = Place::new();
    let lines = bench(
        &place,
        "ior --segments 1x1M:rest --segments 1x1M:8M,2x1M:rest --mib 24 --workers 4 --repeat 1 --osts 4 --ost-mbps 16
         --ost-latency-us 0",
    );
    let jobs: Vec<_> = lines.iter().map(|line| (line["job"].as_str(), line["phase"].as_str())).collect();
    let segments = "1x1M:8M,2x1M:rest";
    let wanted = [("1x1M:rest", "write"), ("1x1M:rest", "read"), (segments, "write"), (segments, "read")];
    assert_eq!(jobs, wanted.map(|(job, phase)| (Some(job), Some(phase))));
    // What an idle target has saved up is 80 KiB of 24 MiB.
    for (line, mbps_max) in lines.iter().zip([16.1, 16.1, 48.3, 48.3]) {
        assert!(rate(line) <= mbps_max, "{} MiB/s: {line}", rate(line));
    }
}

/// The emulation on a mount leaves a directory per segment with its layout, on any other file
/// system plain directories.
#[test]
fn the_emulation_runs_on_a_mount_and_elsewhere_and_cleans_up() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let place = Place::new();
    let common = "--mib 6 --workers 3 --repeat 1";
    let at = format!("--at {}", system.root().display());
    let lines = bench(&place, &format!("ior --segments 1x1M:2M,2x1M:rest --emulate {common} {at}"));
    assert_eq!(lines.len(), 2);
    assert_eq!(std::fs::read_dir(system.root()).expect("the mount").count(), 0, "cleaned up");
    system.finish();
    let [a, b] = ["a", "b"].map(|name| place.data(name));
    for directory in [&a, &b] {
        std::fs::create_dir(directory).expect("mkdir");
    }
    let list = format!("{}:2M,{}:rest", a.display(), b.display());
    let at = format!("--at {}", place.data("bench").display());
    assert_eq!(bench(&place, &format!("ior --segments {list} --emulate {common} {at}")).len(), 2);
    let output = program(env!("CARGO_BIN_EXE_stria"))
        .args(["bench", "ior", "--segments", &list, "--at"])
        .arg(place.data("bench"))
        .output();
    assert!(output.status != 0 && output.stderr.contains("--emulate"), "{output:?}");
}

/// The preset runs all of table 3 and says of every sentence whether it holds. (By its older name.)
#[test]
fn table_3_runs_in_miniature() {
    let place = Place::new();
    let lines = bench(&place, "e1 ior --scale 262144 --scale-osts 16 --scale-tasks 16 --repeat 1 --ost-mbps 64");
    assert_eq!(lines.len(), 12, "six configurations, two phases");
    assert!(lines.iter().all(|line| line["scale"]["bytes"] == 262144 && line["bytes"] == 16 << 20));
}

/// Both phases under both schedules, over six layouts.
#[test]
fn table_4_runs_in_miniature() {
    let place = Place::new();
    let options = "--scale 32768 --scale-osts 16 --scale-tasks 32 --repeat 1 --ost-mbps 0 --ost-latency-us 0";
    let lines = study(&place, &format!("flow-records live {options}"));
    assert_eq!(lines.len(), 6 * 2 * 3, "configurations, schedules, phases and their total");
    let reads: std::collections::BTreeSet<_> =
        lines.iter().filter(|line| line["phase"] == "model").map(|line| line["operations"].as_u64()).collect();
    assert_eq!(reads.len(), 1, "the same records are read whatever the layout: {reads:?}");
}

/// Flows that [`capture`] makes.
const FLOWS: u32 = 3000;
/// Hosts of the own network in them, by turns; one in sixteen is modelled.
const HOSTS: u32 = 64;

/// Packets of UDP in a file of pcap, each a flow of its own with one end in 10.0.0.0/8.
fn capture() -> Vec<u8> {
    let mut file = Vec::new();
    // Magic, version 2.4, no time zone, whole packets, Ethernet.
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1_u32] {
        file.extend(word.to_le_bytes());
    }
    for number in 0..FLOWS {
        let ends = [0x0a00_0000 | (number % HOSTS), 0xc633_6400 | (number % 200)];
        let [source, destination] = if number % 2 == 0 { ends } else { [ends[1], ends[0]] };
        let payload = vec![0; 20 + number as usize % 400];
        let udp_bytes = 8 + payload.len() as u16;
        let mut packet = [[0; 12].as_slice(), &[8, 0, 0x45, 0]].concat();
        packet.extend((20 + udp_bytes).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend([source.to_be_bytes(), destination.to_be_bytes()].concat());
        packet.extend([1024 + number as u16, 53, udp_bytes, 0].map(u16::to_be_bytes).concat());
        packet.extend(payload);
        let bytes = packet.len() as u32;
        for word in [1_600_000_000 + number / 1000, number % 1000, bytes, bytes] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// What nfpcapd collects of the packets, once plain and once compressed.
fn collected(place: &Place) -> Vec<String> {
    let packets = place.data("packets.pcap");
    std::fs::write(&packets, capture()).expect("packets");
    let collect = |(name, compression): (&str, &[&str])| {
        let directory = place.data(name);
        std::fs::create_dir(&directory).expect("mkdir");
        let collector = program("nfpcapd").args(compression).arg("-r").arg(&packets).arg("-w").arg(&directory);
        collector.args(["-t", "3600"]).succeed();
        let files: Vec<_> =
            std::fs::read_dir(&directory).expect("directory").map(|entry| entry.unwrap().path()).collect();
        let [file] = files.as_slice() else { panic!("one file of an hour, not {files:?}") };
        file.display().to_string()
    };
    [("plain", [].as_slice()), ("compressed", &["-z"])].map(collect).to_vec()
}

/// nfdump's own files are read by nfdump; a file of records may follow them.
#[test]
fn table_4_runs_on_files_of_nfdump() {
    let place = Place::new();
    let files = collected(&place);
    let records = place.data("records");
    let host = [10, 0, 0, 16].into_iter().chain([0; 44]);
    std::fs::write(&records, host.collect::<Vec<u8>>()).expect("a record");
    let input = format!("--input {} {}", files.join(" "), records.display());
    let options = "--scale-osts 16 --scale-tasks 32 --repeat 1 --ost-mbps 0 --ost-latency-us 0";
    let lines = bench(&place, &format!("e1 netflow {options} {input}"));
    assert_eq!(lines.len(), 36);
    let phase = |name: &'static str| lines.iter().filter(move |line| line["phase"] == name);
    let (flows, modelled) =
        (2 * FLOWS + 1, 2 * (0..FLOWS).filter(|flow| (flow % HOSTS).is_multiple_of(16)).count() + 1);
    assert!(phase("index").all(|line| line["bytes"] == u64::from(flows) * 48), "{lines:?}");
    assert!(phase("model").all(|line| line["operations"] == modelled), "{modelled}: {lines:?}");
}

/// Without the program, and where it finds nothing to read, the reason is said.
#[test]
fn files_of_nfdump_need_nfdump_and_flows() {
    let place = Place::new();
    let files = collected(&place);
    let run = |file: &str, path: &str| {
        let stria = program(env!("CARGO_BIN_EXE_stria")).args(["study", "flow-records", "live", "--input", file]);
        let output = stria.env("PATH", path).output();
        assert_ne!(output.status, 0, "{output:?}");
        output.stderr
    };
    let missing = run(&files[0], "/nowhere");
    assert!(missing.contains("apt-get install nfdump"), "{missing}");
    let broken = place.data("broken");
    std::fs::write(&broken, &std::fs::read(&files[0]).expect("a file")[..40]).expect("broken");
    let unreadable = run(&broken.display().to_string(), &std::env::var("PATH").expect("PATH"));
    assert!(unreadable.contains("nfdump") && unreadable.contains("broken"), "{unreadable}");
}

/// The database is made, copied and searched; blastn fails if it does not find what was cut out of
/// it.
#[test]
fn table_5_runs_in_miniature() {
    program("blastn").arg("-version").succeed();
    let place = Place::new();
    let options = "--scale 100000 --scale-osts 16 --scale-tasks 64 --repeat 1 --ost-mbps 0 --ost-latency-us 0";
    let lines = study(&place, &format!("blast live {options}"));
    assert_eq!(lines.len(), 18);
    assert!(lines.iter().all(|line| line["operations"] == 1 && line["bytes"].as_u64() > Some(700_000)), "{lines:?}");
}

/// Begins E2 live in a directory, with few and short measurements.
fn begin_service_threads(place: &Place, directory: &Path, options: &str) -> Daemon {
    let fixed = "--clients 2 --tasks 4 --osts 2 --threads 1,8 --in-flight 1,8 --seconds 0.2 --search 0.5";
    begin(place, directory, &format!("service-threads --live {fixed} {options}"))
}

/// Begins a live study in a directory.
fn begin(place: &Place, directory: &Path, arguments: &str) -> Daemon {
    std::fs::create_dir_all(directory).expect("mkdir");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
    command.arg("study").args(arguments.split_whitespace());
    command.arg("--dir").arg(directory).arg("--json").arg(place.data("lines.json"));
    Daemon::start("study", command, &place.data("study.log"))
}

/// Nothing of a process that is gone is left: no file, mount, namespace, control group or process.
fn expect_nothing_left(directory: &Path, process: u32) {
    assert_eq!(std::fs::read_dir(directory).expect("the directory").count(), 0, "files");
    let text = |path: &str| std::fs::read_to_string(path).expect("proc");
    let place = directory.to_str().expect("a name in UTF-8");
    assert!(!text("/proc/self/mounts").contains(place), "mounts: {}", text("/proc/self/mounts"));
    let name = format!("stria-study-{process}");
    for parent in ["/run/netns", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"] {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        for entry in entries.flatten() {
            assert!(!entry.file_name().to_string_lossy().starts_with(&name), "{}", entry.path().display());
        }
    }
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(place), "{}", String::from_utf8_lossy(&line));
    }
}

/// Every load is swept and compared with the tuner; the speed of this machine does not matter.
#[test]
fn service_threads_run_in_miniature_and_leave_nothing() {
    let place = Place::new();
    let directory = place.data("bench");
    let options = "--loads writes,reads,processor --rounds 1 --repeat 2";
    let mut study = begin_service_threads(&place, &directory, options);
    let process = study.pid();
    for _ in 0..3 {
        study.wait_for("is within 5% of the best of the sweep");
    }
    assert!(study.ended().success());
    expect_nothing_left(&directory, process);
    let lines = std::fs::read_to_string(place.data("lines.json")).expect("JSON lines");
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |load: &'static str| lines.iter().filter(move |line| line["load"] == load);
    for load in ["writes", "reads", "processor"] {
        let swept = of(load).filter(|line| line["mib_per_second"].as_f64() > Some(0.0)).count();
        let starts: Vec<_> = of(load).filter_map(|line| line["comparison"]["start"].as_u64()).collect();
        assert_eq!((swept, starts), (4, vec![1, 8, 1, 8]), "{load}: {lines:?}");
    }
    // The limits hold: two targets with 2 ms for a request of 16 KiB, and what an idle one saves
    // up.
    let limited = of("reads").filter_map(|line| line["mib_per_second"].as_f64());
    assert!(limited.clone().all(|rate| rate < 2.0 * 7.9 * 1.1), "{:?}", limited.collect::<Vec<_>>());
}

/// Metadata servers have what processor time they may have, and all files are made, found and
/// removed, in separate directories and in one that is striped over all.
#[test]
fn metadata_scaling_runs_in_miniature_and_leaves_nothing() {
    /// Hundredths of a processor.
    const PERCENT: f64 = 10.0;
    let place = Place::new();
    let directory = place.data("bench");
    let options = "--servers 1,2 --percent 10 --clients 3 --task-files 10 --repeat 1";
    let mut study = begin(&place, &directory, &format!("metadata-scaling --live {options}"));
    let process = study.pid();
    study.wait_for("unlink: in one striped directory at least 85% of linear from 1 to 2 MDS");
    assert!(study.ended().success());
    expect_nothing_left(&directory, process);
    let lines = std::fs::read_to_string(place.data("lines.json")).expect("JSON lines");
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // What is compared runs one after the other.
    let loads = [["1x1, 16 directories", "2x1, 32 directories"], ["1x1, striped, 64 tasks", "2x1, striped, 128 tasks"]];
    let of_load = |cells: &[&'static str; 2]| {
        let cells = *cells;
        ["mknod", "stat", "unlink"].into_iter().flat_map(move |phase| cells.map(|cell| (Some(cell), Some(phase))))
    };
    let wanted = loads.iter().flat_map(of_load);
    let found = lines.iter().map(|line| (line["cell"].as_str(), line["phase"].as_str()));
    assert_eq!(found.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    for line in &lines {
        let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
        let servers = if line["cell"].as_str().is_some_and(|cell| cell.starts_with('2')) { 2.0 } else { 1.0 };
        // Until the first task has done all of its own; the study fails if another one does not.
        assert!((10.0..=servers * 64.0 * 10.0).contains(&number("operations")), "{line}");
        // Nothing is served from the caches of clients, and no server rests.
        assert!(number("requests") > 0.9 && number("server_use_min") > 0.0, "{line}");
        // The kernel notices at its next tick that a limit is reached, and takes back what was used
        // until then.
        let used = number("server_use") * number("seconds") * PERCENT / 100.0;
        assert!(used <= number("seconds") * 1.2 * PERCENT / 100.0 + 0.02, "{used} s of processor time: {line}");
    }
}

/// Ctrl-C in the middle of a measurement removes everything, too.
#[test]
fn an_interrupted_study_leaves_nothing() {
    let place = Place::new();
    let directory = place.data("bench");
    let study = begin_service_threads(&place, &directory, "--rounds 1000");
    let process = study.pid();
    wait_for("a measurement", TIMEOUT, || {
        let lines = std::fs::read_to_string(place.data("lines.json")).unwrap_or_default();
        (!lines.is_empty()).then_some(())
    });
    let status = study.end_by(Signal::INT);
    assert_eq!(status.code(), Some(130), "{status}");
    expect_nothing_left(&directory, process);
}
