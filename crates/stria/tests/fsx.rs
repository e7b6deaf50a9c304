//! fsx: random operations on one file, every read is compared with the expected data; on one client
//! and on two, with objects in host files and on devices. `./test` runs all of it over `/dev/fuse`
//! and over io_uring, with every other seed over each (`STRIA_TEST_EACH_WAY=1`): both ways meet all
//! mixes of operations, and the file system below meets every seed once.
//!
//! `STRIA_TEST_LONG=1` runs every seed with every mix of operations, and five times as many of
//! them.

mod common;

use std::{ops::Range, path::Path, sync::Mutex};

use common::{FileSystem, Program, Transport, file_system::offers_ring, layouts::grow_in, long, programs::program};

/// Operations of each run, as long as a test of every change may be.
const OPERATIONS: u64 = 8_000;
/// Operations of each run when there is time.
const OPERATIONS_LONG: u64 = 100_000;
const SEEDS: Range<u64> = 0..10;
/// Mixes of operations: files in `tests/fsx/`.
const MIXES: [&str; 3] = ["calls", "mapped", "aligned"];

/// One run of fsx.
struct Run<'a> {
    directory: &'a Path,
    mix: &'a str,
    seed: u64,
    operations: u64,
}

impl Run<'_> {
    /// Runs it on the file `name`.
    fn on(&self, name: &str) {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fsx/{}.toml", self.mix));
        let Program(mut command) = program("fsx");
        command.arg("-f").arg(config).args(["-S", &self.seed.to_string()]);
        command.args(["-N", &self.operations.to_string()]);
        // The history of a failure is printed; the file it expected stays with the rest of the data
        // and is removed.
        command.args(["-P", env!("CARGO_TARGET_TMPDIR")]).arg(self.directory.join(name));
        let output = Program(command).output();
        let text = format!("{}{}", output.stdout, output.stderr);
        let tail: Vec<&str> = text.lines().rev().take(60).collect();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
        assert!(output.status == 0, "fsx, {}, seed {}:\n{tail}", self.mix, self.seed);
    }

    fn name(&self) -> String {
        format!("{}{}", self.mix, self.seed)
    }
}

/// Does all runs, two at a time.
fn all(runs: Vec<Run<'_>>) {
    let runs = Mutex::new(runs.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(run) = { runs.lock().expect("nobody panics while taking a run").next() } {
                    run.on(&run.name());
                }
            });
        }
    });
}

fn start(transport: Transport, clients: usize) -> FileSystem {
    let system = FileSystem::start(transport, clients);
    system.expect_offered_transport();
    system
}

fn operations() -> u64 {
    if long() { OPERATIONS_LONG } else { OPERATIONS }
}

/// Seeds that are run the way that the kernel offers: all, or half of them if there are two ways.
fn seeds() -> impl Iterator<Item = u64> {
    let each_way = std::env::var_os("STRIA_TEST_EACH_WAY").is_some_and(|value| value == "1") && !long();
    let first = u64::from(each_way && offers_ring());
    SEEDS.skip(first as usize).step_by(if each_way { 2 } else { 1 })
}

/// Mixes of a seed: one in turn, or all.
fn mixes(seed: u64) -> Vec<&'static str> {
    if long() { MIXES.to_vec() } else { vec![MIXES[seed as usize % MIXES.len()]] }
}

#[test]
fn one_client_reads_what_it_wrote() {
    let system = start(Transport::InProcess, 1);
    let runs = seeds().flat_map(|seed| mixes(seed).into_iter().map(move |mix| (seed, mix)));
    let directory = system.root();
    all(runs.map(|(seed, mix)| Run { directory, mix, seed, operations: operations() }).collect());
    system.finish();
}

/// On files that grow over watermarks.
#[test]
fn one_client_reads_what_it_wrote_over_components() {
    let system = start(Transport::InProcess, 1);
    let directory = system.root();
    grow_in(directory);
    let operations = operations() / 2;
    all(MIXES.iter().zip(0..).map(|(mix, seed)| Run { directory, mix, seed, operations }).collect());
    system.finish();
}

/// Each operation asks the servers.
#[test]
fn one_client_reads_what_it_wrote_without_caches() {
    let system = start(Transport::Tcp, 1);
    system.switch_caches_off();
    let directory = system.root();
    let operations = operations() / 4;
    all(MIXES.iter().zip(SEEDS).map(|(mix, seed)| Run { directory, mix, seed, operations }).collect());
    system.finish();
}

/// All objects are on devices of their OSTs. Then without caches: each operation asks the servers.
#[test]
fn one_client_reads_what_it_wrote_to_devices() {
    let system = FileSystem::start_all_on_devices(1);
    system.expect_offered_transport();
    let directory = system.root();
    for (first, operations) in [(0, operations() / 2), (3, operations() / 8)] {
        let runs = MIXES.iter().zip(first..).map(|(mix, seed)| Run { directory, mix, seed, operations });
        all(runs.collect());
        system.switch_caches_off();
    }
    system.finish();
}

/// Each on its own file, both at once.
#[test]
fn two_clients_do_not_disturb_each_other() {
    let system = start(Transport::Tcp, 2);
    let runs = seeds().zip(0..).flat_map(|(seed, turn)| mixes(seed + 1).into_iter().map(move |mix| (seed, turn, mix)));
    let runs = runs.map(|(seed, turn, mix)| {
        let directory = system.path(turn % 2);
        Run { directory, mix, seed, operations: operations() }
    });
    all(runs.collect());
    system.finish();
}

/// A file goes from one client to the other and back, and each empties it before it begins. In
/// between, each reads what a local file system has after the same operations.
#[test]
fn a_file_is_handed_from_client_to_client() {
    const TURNS: u64 = 12;
    let system = start(Transport::Tcp, 2);
    let local = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    for (turn, mix) in (0..TURNS).zip(MIXES.into_iter().cycle()) {
        let (writer, reader) = (system.path(turn as usize % 2), system.path((turn + 1) as usize % 2));
        for directory in [local.path(), writer] {
            Run { directory, mix, seed: turn, operations: 1000 }.on("file");
        }
        let (found, expected) = (std::fs::read(reader.join("file")), std::fs::read(local.path().join("file")));
        assert!(found.expect("read") == expected.expect("read"), "turn {turn}: the other client reads something else");
    }
    system.finish();
}
