//! One operation at a time, on a mount chosen at random: each answer is that of the model. Also
//! while some mounts are stopped or killed, with all that they have cached.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use lab::reference::{Generator, Local, Model, Operation, Outcome, Shape};
use types::FsError;

use crate::{
    accidents::{SLACK, Stopped, WAIT_MAX},
    common::load::Random,
    duration, mounts, setting, start,
};

/// Operations in one directory, before the next one begins empty.
const OPERATIONS: u64 = 1000;
/// Operations in a story of a failure.
const STORY: usize = 15;
/// Accidents at least, however short the run is: one of each kind.
const ACCIDENTS_MIN: u64 = 2;
/// Operations of the others while mounts are dead, and between two accidents.
const OPERATIONS_BETWEEN: u64 = 40;
/// Pause before a mount that is not back yet is looked through again.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[test]
fn mounts_that_take_turns_agree_with_the_model() {
    let (system, points) = start();
    let (begun, mut seed) = (Instant::now(), 0);
    while begun.elapsed() < duration() {
        let mut turns = Turns::begin(seed, &points);
        while turns.number < OPERATIONS && begun.elapsed() < 2 * duration() {
            // No pattern in it, but the same in every run.
            let mount = (seed + turns.number).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 33;
            turns.step(mount % points.len());
            // Every mount has in its caches what it sees now.
            if turns.number.is_multiple_of(10) {
                turns.look(&all());
            }
        }
        seed += 1;
    }
    system.finish();
}

/// Mounts hold locks on all that they have seen when they are stopped or killed. The others go on
/// within the stated time, and what continues, or is mounted again, shows nothing old.
#[test]
fn mounts_that_take_turns_agree_with_the_model_while_some_are_stopped_and_killed() {
    let (mut system, points) = start();
    let seed = setting("STRIA_STORM_SEED", 1);
    let (begun, mut random) = (Instant::now(), Random(seed));
    let mut turns = Turns::begin(seed, &points);
    let mut accidents = 0;
    while begun.elapsed() < duration() || accidents < ACCIDENTS_MIN {
        if turns.number > OPERATIONS {
            turns = Turns::begin(turns.seed + 1, &points);
        }
        turns.go_on(&all(), OPERATIONS_BETWEEN, &mut random);
        turns.look(&all());
        let victims = draw_victims(&mut random);
        let others: Vec<usize> = all().into_iter().filter(|mount| !victims.contains(mount)).collect();
        if accidents % 2 == 0 {
            let time = Duration::from_secs(1 + random.below(setting("STRIA_STORM_STOP_SECONDS", 3)));
            turns.note(format!("mounts {victims:?} are stopped for {time:?}"));
            let stopped: Vec<Stopped> = victims.iter().map(|victim| Stopped::begin(&system, *victim, time)).collect();
            while !stopped.iter().all(Stopped::is_over) {
                turns.go_on(&others, 1, &mut random);
            }
            stopped.into_iter().for_each(Stopped::end);
            turns.note(format!("mounts {victims:?} continue"));
            turns.expect_back(&victims);
        } else {
            turns.note(format!("mounts {victims:?} are killed"));
            victims.iter().for_each(|victim| system.kill_client(*victim));
            turns.go_on(&others, OPERATIONS_BETWEEN, &mut random);
            victims.iter().for_each(|victim| system.mount(*victim));
            turns.note(format!("mounts {victims:?} are there again"));
        }
        turns.look(&all());
        accidents += 1;
    }
    system.finish();
}

fn all() -> Vec<usize> {
    (0..mounts()).collect()
}

/// Less than half of the mounts, and never the first.
fn draw_victims(random: &mut Random) -> Vec<usize> {
    let count = 1 + random.below((mounts() as u64 - 1) / 2) as usize;
    let first = random.below(mounts() as u64 - 1) as usize;
    (0..count).map(|number| 1 + (first + number) % (mounts() - 1)).collect()
}

/// One directory, in which mounts take turns.
struct Turns {
    seed: u64,
    /// Operations so far.
    number: u64,
    locals: Vec<Local>,
    generator: Generator,
    model: Model,
    history: Vec<String>,
}

impl Turns {
    /// In a new directory.
    fn begin(seed: u64, points: &[PathBuf]) -> Self {
        let name = format!("seed{seed}");
        std::fs::create_dir(points[0].join(&name)).expect("a new directory");
        // Names matter here, not data.
        let shape = Shape { names: 3, depth: 2, bytes_max: 70_000, prefix: String::new() };
        Self {
            seed,
            number: 0,
            locals: points.iter().map(|point| Local::new(point.join(&name))).collect(),
            generator: Generator::new(seed, shape),
            model: Model::new(),
            history: Vec::new(),
        }
    }

    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    /// Seed, number, and what happened last.
    fn story(&self) -> String {
        let last = self.history[self.history.len().saturating_sub(STORY)..].join("\n  ");
        format!("seed {}, operation {}\n  {last}\n", self.seed, self.number)
    }

    /// The next operation, on a mount: its answer must be that of the model.
    fn step(&mut self, mount: usize) {
        let operation = self.generator.operation();
        let expected = self.model.apply(&operation);
        let begun = Instant::now();
        let found = apply(&self.locals[mount], &operation);
        let took = begun.elapsed();
        self.note(format!("mount {mount}: {operation:?}"));
        assert!(found == expected, "{}found {}, the model has {}", self.story(), short(&found), short(&expected));
        assert!(took < WAIT_MAX + SLACK, "{}took {took:?}", self.story());
        self.number += 1;
    }

    /// So many operations, each on one of these mounts.
    fn go_on(&mut self, mounts: &[usize], operations: u64, random: &mut Random) {
        for _ in 0..operations {
            self.step(mounts[random.below(mounts.len() as u64) as usize]);
        }
    }

    /// All that these mounts show is what the model has.
    fn look(&mut self, mounts: &[usize]) {
        for (look, expected) in self.looks() {
            for mount in mounts {
                self.judge(*mount, &look, &self.locals[*mount].apply(&look), &expected);
            }
        }
    }

    /// These mounts were stopped. From the moment when they continue, they show nothing old; they
    /// may fail until they are connected again.
    fn expect_back(&mut self, mounts: &[usize]) {
        let begun = Instant::now();
        for (look, expected) in self.looks() {
            for mount in mounts {
                let found = loop {
                    let found = self.locals[*mount].apply(&look);
                    if !matches!(found, Outcome::Failed(FsError::Device { .. })) {
                        break found;
                    }
                    assert!(begun.elapsed() < WAIT_MAX + SLACK, "{}mount {mount}: {found:?}", self.story());
                    std::thread::sleep(LOOK_AGAIN);
                };
                self.judge(*mount, &look, &found, &expected);
            }
        }
    }

    fn judge(&self, mount: usize, look: &Operation, found: &Outcome, expected: &Outcome) {
        assert!(
            found == expected,
            "{}{look:?} on mount {mount}: {}, the model has {}",
            self.story(),
            short(found),
            short(expected)
        );
    }

    /// A listing of the directory, and a look at each path of the model, with their answers.
    fn looks(&mut self) -> Vec<(Operation, Outcome)> {
        let paths = self.model.paths().into_iter().map(|path| Operation::Stat { path });
        let looks: Vec<_> = std::iter::once(Operation::List { path: String::new() }).chain(paths).collect();
        looks.into_iter().map(|look| (look.clone(), self.model.apply(&look))).collect()
    }
}

/// As [`Local::apply`], with the one deviation that docs/semantics.md allows: a rename of, or onto,
/// a directory that another mount has just moved fails once, and a look at the names corrects it.
fn apply(local: &Local, operation: &Operation) -> Outcome {
    let found = local.apply(operation);
    let Operation::Rename { from, to, .. } = operation else { return found };
    if !is_stale(&found) {
        return found;
    }
    for path in [from, to] {
        local.apply(&Operation::Stat { path: path.clone() });
    }
    local.apply(operation)
}

/// ESTALE.
pub fn is_stale(outcome: &Outcome) -> bool {
    let text = std::io::Error::from_raw_os_error(libc::ESTALE).to_string();
    matches!(outcome, Outcome::Failed(FsError::Device { detail, .. }) if *detail == text)
}

fn short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Data(data) => format!("{} bytes, first {:?}", data.len(), data.first()),
        other => format!("{other:?}"),
    }
}
