//! Fuzz targets: everything that decodes bytes from a disk, a wire, the kernel or a user, fed with
//! valid encodings that were damaged at random. Nothing may panic, hang or allocate without bound;
//! what decodes must survive being encoded again.
//!
//! A run is a fixed number of inputs from a seed, so it finds the same every time;
//! `STRIA_FUZZ_SEED` chooses another seed and `STRIA_FUZZ_FACTOR` multiplies the number. A failing
//! input is printed; it becomes a named test in `regressions`.
//!
//! (cargo-fuzz needs a nightly compiler or flags that defeat the stable one, a C++ compiler and
//! minutes of building; for decoders as small as these, mutation of a good corpus reaches the same
//! places.)

mod corpus;
mod mutate;
mod regressions;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};

use mutate::Mutator;
use targets::FuzzTarget;

const SEED: u64 = 2026;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Feeds a target with its corpus as it is, then with what the mutator makes of it.
fn run(target: &FuzzTarget, corpus: &[Vec<u8>]) {
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    for input in corpus {
        feed(target, input);
    }
    let mut mutator = Mutator::new(number("STRIA_FUZZ_SEED", SEED), target.name);
    for _ in 0..target.inputs * number("STRIA_FUZZ_FACTOR", 1) {
        let mut input = mutator.input(corpus);
        if let Some(seal) = target.seal
            && mutator.chance(3, 4)
        {
            seal(&mut input);
        }
        feed(target, &input);
    }
}

fn feed(target: &FuzzTarget, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        panic!("{} fails on:\n{}", target.name, input.escape_ascii());
    }
}

macro_rules! fuzz {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            run(&targets::$name(), &corpus::$name());
        })*
    };
}

fuzz!(
    frames,
    requests,
    replies,
    greetings,
    journal_records,
    journal_segment_headers,
    store_files,
    stores,
    mdt_records,
    ost_records,
    mgs_records,
    access_lists,
    kernel_requests,
    control_pages,
    mount_options,
    lfs_command_lines,
    configurations,
    parameters
);
