//! Seeds that must pass after every change. More of them: `stria lab run --seeds 1000`.

use lab::{Failure, Mode, SeedOptions, SeedReport, move_counts::MoveCounts};

/// As many of each mode as take some seconds: with several clients at once a seed takes up to ten
/// times as long.
const SEEDS: [(Mode, u64); 5] =
    [(Mode::Serial, 25), (Mode::Power, 15), (Mode::Timeouts, 12), (Mode::Concurrent, 12), (Mode::Contended, 8)];
/// How often the invariants are checked while a seed runs, at least.
const LOOKS_MIN: u64 = 5;

fn options(seed: u64, mode: Mode) -> SeedOptions {
    SeedOptions { seed, operations: 80, mode: Some(mode), faults: None }
}

/// One run, with room for deep futures: unoptimised builds need more stack than test threads have.
fn run_seed(options: SeedOptions) -> Result<SeedReport, Box<Failure>> {
    const STACK_BYTES: usize = 256 << 20;
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || lab::run_seed(options));
    thread.expect("a thread").join().expect("failures are returned")
}

fn hold(mode: Mode) {
    let (mut faults, mut moves) = (0, MoveCounts::default());
    let (_, seeds) = SEEDS.into_iter().find(|(of, _)| *of == mode).expect("every mode has some");
    for seed in 0..seeds {
        match run_seed(options(seed, mode)) {
            Ok(report) => {
                faults += report.faults;
                moves += report.moves;
                assert!(report.looks >= LOOKS_MIN, "seed {seed}: invariants were checked {} times", report.looks);
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(faults > seeds, "{faults} faults in {seeds} seeds: the faults do not happen");
    assert!(!moves.all_stayed(), "{mode}: {moves}");
}

#[test]
fn one_operation_at_a_time_agrees_with_the_model_under_faults() {
    hold(Mode::Serial);
}

#[test]
fn clients_at_once_keep_the_invariants_under_faults() {
    hold(Mode::Concurrent);
}

#[test]
fn loss_of_power_takes_nothing_that_was_synced() {
    hold(Mode::Power);
}

#[test]
fn what_failed_is_not_done_later() {
    hold(Mode::Timeouts);
}

#[test]
fn clients_that_fight_over_names_agree_on_one_order() {
    hold(Mode::Contended);
}

#[test]
fn the_same_seed_gives_the_same_log() {
    let modes = [Mode::Serial, Mode::Concurrent, Mode::Power, Mode::Timeouts, Mode::Contended];
    for (seed, mode) in (3..).zip(modes) {
        let log = || run_seed(options(seed, mode)).map(|report| report.log).map_err(|failure| failure.to_string());
        assert_eq!(log(), log(), "seed {seed}");
    }
}
