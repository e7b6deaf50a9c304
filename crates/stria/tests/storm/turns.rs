//! One operation at a time, on a mount chosen at random: each answer is that of the model.

use std::{path::PathBuf, time::Instant};

use lab::reference::{Generator, Local, Model, Operation, Outcome, Shape};
use types::FsError;

use crate::{duration, start};

/// Operations in one directory, before the next one begins empty.
const OPERATIONS: u64 = 1000;
/// Operations in a story of a failure.
const STORY: usize = 15;

#[test]
fn mounts_that_take_turns_agree_with_the_model() {
    let (system, points) = start();
    let (begun, mut seed) = (Instant::now(), 0);
    while begun.elapsed() < duration() {
        turns(seed, &points, begun);
        seed += 1;
    }
    system.finish();
}

fn turns(seed: u64, points: &[PathBuf], begun: Instant) {
    let name = format!("seed{seed}");
    std::fs::create_dir(points[0].join(&name)).expect("a new directory");
    let locals: Vec<Local> = points.iter().map(|point| Local::new(point.join(&name))).collect();
    // Names matter here, not data.
    let generator = Generator::new(seed, Shape { names: 3, depth: 2, bytes_max: 70_000, prefix: String::new() });
    let (mut model, mut history) = (Model::new(), Vec::new());
    for number in 0..OPERATIONS {
        if begun.elapsed() > 2 * duration() {
            return;
        }
        let operation = generator.operation();
        // No pattern in it, but the same in every run.
        let mount = (seed + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 33;
        let mount = mount % locals.len();
        let expected = model.apply(&operation);
        let found = apply(&locals[mount], &operation);
        history.push(format!("mount {mount}: {operation:?}"));
        if found != expected {
            let story = history[history.len().saturating_sub(STORY)..].join("\n  ");
            panic!(
                "seed {seed}, operation {number}\n  {story}\nfound {}, the model has {}",
                short(&found),
                short(&expected)
            );
        }
        // Every mount has in its caches what it sees now.
        if number % 10 == 0 {
            let look = Operation::List { path: String::new() };
            let expected = model.apply(&look);
            for (mount, local) in locals.iter().enumerate() {
                assert!(
                    local.apply(&look) == expected,
                    "seed {seed}, operation {number}: mount {mount} lists otherwise"
                );
            }
            for path in model.paths() {
                let look = Operation::Stat { path };
                let expected = model.apply(&look);
                for (mount, local) in locals.iter().enumerate() {
                    let found = local.apply(&look);
                    let story = history[history.len().saturating_sub(STORY)..].join("\n  ");
                    assert!(
                        found == expected,
                        "seed {seed}, operation {number}\n  {story}\n{look:?} on mount {mount}: {found:?}, the model has {expected:?}"
                    );
                }
            }
        }
    }
}

/// As [`Local::apply`], with the one deviation that docs/semantics.md allows: a rename of, or onto,
/// a directory that another mount has just moved fails once, and a look at the names corrects it.
fn apply(local: &Local, operation: &Operation) -> Outcome {
    let found = local.apply(operation);
    let Operation::Rename { from, to, .. } = operation else { return found };
    let text = std::io::Error::from_raw_os_error(libc::ESTALE).to_string();
    if !matches!(&found, Outcome::Failed(FsError::Device { detail, .. }) if *detail == text) {
        return found;
    }
    for path in [from, to] {
        local.apply(&Operation::Stat { path: path.clone() });
    }
    local.apply(operation)
}

fn short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Data(data) => format!("{} bytes, first {:?}", data.len(), data.first()),
        other => format!("{other:?}"),
    }
}
