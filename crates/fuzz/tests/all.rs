//! The fuzz targets without a fuzzer: valid encodings, then what random damage makes of them.
//!
//! A run is a fixed number of inputs from a seed, so it finds the same every time;
//! `STRIA_FUZZ_SEED` chooses another seed and `STRIA_FUZZ_FACTOR` multiplies the number. With
//! `STRIA_FUZZ_INPUT`, a target gets only the contents of this file: the command that `./test fuzz`
//! prints for an input that fails.

mod configurations;
mod mutate;
mod regressions;
mod whole_images;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzz::{FuzzTarget, targets};
use mutate::Mutator;

const SEED: u64 = 2026;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Feeds a target with its corpus as it is, then with what the mutator makes of it.
fn run(target: &FuzzTarget) {
    if let Some(path) = std::env::var_os("STRIA_FUZZ_INPUT") {
        let input = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return (target.run)(&input);
    }
    let corpus = (target.corpus)();
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    for input in &corpus {
        feed(target, input);
    }
    let mut mutator = Mutator::new(number("STRIA_FUZZ_SEED", SEED), target.name);
    for _ in 0..target.inputs * number("STRIA_FUZZ_FACTOR", 1) {
        let mut input = mutator.input(&corpus);
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
            run(&targets::$name());
        })*

        #[test]
        fn every_target_has_a_test_of_its_name() {
            let names: Vec<&str> = fuzz::all().iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

fuzz!(
    frames,
    requests,
    extensions,
    replies,
    greetings,
    journal_records,
    journal_segment_headers,
    store_files,
    stores,
    trees,
    mdt_records,
    ost_records,
    device_records,
    device_labels,
    images,
    mgs_records,
    access_lists,
    layout_xattrs,
    kernel_requests,
    ring_requests,
    control_pages,
    mount_options,
    lfs_command_lines,
    parameters
);
