//! Runs one target under libFuzzer, which provides `main` and the command line:
//! <https://llvm.org/docs/LibFuzzer.html#options>. `./test fuzz` builds and calls it.
//!
//! `STRIA_FUZZ_TARGET` names the target; without it, the program prints all names. Valid encodings
//! are written to the first directory among the arguments, which is libFuzzer's corpus.
//!
//! The compiler must have inserted counters, or libFuzzer sees no coverage: `./test` has the flags.

#![no_main]

use std::{fs, path::PathBuf, process::exit, sync::OnceLock};

use fuzz::FuzzTarget;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static TARGET: OnceLock<FuzzTarget> = OnceLock::new();

fn target() -> &'static FuzzTarget {
    TARGET.get_or_init(choose)
}

fn choose() -> FuzzTarget {
    let Some(name) = std::env::var_os("STRIA_FUZZ_TARGET") else {
        fuzz::all().iter().for_each(|target| println!("{}", target.name));
        exit(0);
    };
    fuzz::all().into_iter().find(|target| name == target.name).unwrap_or_else(|| {
        eprintln!("{}: no such fuzz target", name.display());
        exit(2);
    })
}

/// libFuzzer reads its corpus after this. (Later than here, an exit would count as a failure.)
fn write_seeds() {
    let target = target();
    let Some(corpus) = std::env::args_os().skip(1).map(PathBuf::from).find(|path| path.is_dir()) else { return };
    for (number, seed) in (target.corpus)().iter().enumerate() {
        let path = corpus.join(format!("seed-{number}"));
        fs::write(&path, seed).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}

fuzz_target!(init: write_seeds(), |input: &[u8]| (target().run)(input));

// One in four inputs stays as libFuzzer made it: wrong checksums are input as well.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let changed = fuzzer_mutate(data, size, max_size);
    if let Some(seal) = target().seal
        && !seed.is_multiple_of(4)
    {
        seal(&mut data[..changed]);
    }
    changed
});
