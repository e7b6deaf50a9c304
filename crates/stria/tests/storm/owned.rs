//! Names that one worker owns, in directories that all workers use: each answer is that of the
//! model, on whichever mount, and at the end every mount shows what the model has.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use lab::reference::{Local, Model, Operation, Outcome, RenameFlag};

use crate::{
    accidents::{SLACK, WAIT_MAX},
    common::load::Random,
    turns::{LOOK_AGAIN, is_stale},
};

/// Names that a worker uses in a directory.
const NAMES: u64 = 4;
/// Operations in a story of a failure.
const STORY: usize = 15;

/// See the module documentation.
pub struct Owned {
    worker: usize,
    locals: Vec<Local>,
    homes: Vec<String>,
    model: Model,
    random: Random,
    history: Vec<String>,
}

impl Owned {
    /// In directories that exist and are empty.
    pub fn new(worker: usize, points: &[PathBuf], homes: &[String], seed: u64) -> Self {
        let mut model = Model::new();
        for path in homes {
            model.apply(&Operation::MakeDirectory { path: path.clone(), mode: 0o755 });
        }
        let locals = points.iter().map(Local::new).collect();
        let (homes, random) = (homes.to_vec(), Random(seed << 8 | worker as u64));
        Self { worker, locals, homes, model, random, history: Vec::new() }
    }

    /// Works until it is over; counts what was done.
    pub fn work(&mut self, is_over: &AtomicBool, done: &AtomicU64) {
        while !is_over.load(Ordering::SeqCst) {
            let operation = self.draw();
            let mount = self.draw_mount();
            self.step(mount, operation);
            if self.random.below(4) == 0 {
                let look = self.draw_look();
                let mount = self.draw_mount();
                self.step(mount, look);
            }
            done.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Every mount shows exactly what the model has. Returns how many names that are.
    pub fn expect_same(&mut self) -> usize {
        let paths = self.own_paths();
        let mounts = self.locals.len();
        for (number, path) in paths.iter().enumerate() {
            (0..mounts).for_each(|mount| self.step(mount, Operation::Stat { path: path.clone() }));
            self.step(number % mounts, Operation::Read { path: path.clone(), offset: 0, bytes: 1 << 10 });
            self.step(number % mounts, Operation::List { path: path.clone() });
        }
        for path in self.homes.clone() {
            (0..mounts).for_each(|mount| self.step(mount, Operation::List { path: path.clone() }));
        }
        paths.len()
    }

    /// One operation; its answer must be that of the model.
    fn step(&mut self, mount: usize, operation: Operation) {
        let expected = self.model.apply(&operation);
        let found = self.without_others(self.apply(mount, &operation));
        self.history.push(format!("mount {mount}: {operation:?}"));
        let last = &self.history[self.history.len().saturating_sub(STORY)..];
        assert!(
            found == expected,
            "worker {}\n  {}\nfound {found:?}, the model has {expected:?}",
            self.worker,
            last.join("\n  ")
        );
    }

    /// With the one deviation that docs/semantics.md allows: the kernel cannot adopt the new place
    /// of a directory while another rename is on its way on that mount.
    fn apply(&self, mount: usize, operation: &Operation) -> Outcome {
        let begun = Instant::now();
        loop {
            let found = self.locals[mount].apply(operation);
            if !is_stale(&found) || begun.elapsed() > WAIT_MAX + SLACK {
                return found;
            }
            std::thread::sleep(LOOK_AGAIN);
            if let Operation::Rename { from, to, .. } = operation {
                for path in [from, to] {
                    self.locals[mount].apply(&Operation::Stat { path: path.clone() });
                }
            }
        }
    }

    /// A listing without the names of others.
    fn without_others(&self, outcome: Outcome) -> Outcome {
        let prefix = self.prefix();
        let is_own = |name: &String| name.trim_start_matches('.').starts_with(&prefix);
        match outcome {
            Outcome::Names(names) => Outcome::Names(names.into_iter().filter(is_own).collect()),
            other => other,
        }
    }

    fn prefix(&self) -> String {
        format!("w{}n", self.worker)
    }

    fn own_paths(&self) -> Vec<String> {
        self.model.paths().into_iter().filter(|path| !self.homes.contains(path)).collect()
    }

    /// Mostly the worker's own one.
    fn draw_mount(&mut self) -> usize {
        let count = self.locals.len();
        match self.random.below(4) {
            0 => self.random.below(count as u64) as usize,
            _ => self.worker % count,
        }
    }

    /// Some path: in a directory that all use, or in one of its own there.
    fn draw_path(&mut self) -> String {
        let mut path = self.homes[self.random.below(self.homes.len() as u64) as usize].clone();
        for _ in 0..=self.random.below(2) {
            path = format!("{path}/{}{}", self.prefix(), self.random.below(NAMES));
        }
        path
    }

    /// The path of something that exists, if anything does.
    fn draw_existing(&mut self) -> String {
        let mut paths = self.own_paths();
        if paths.is_empty() {
            return self.draw_path();
        }
        paths.swap_remove(self.random.below(paths.len() as u64) as usize)
    }

    fn draw_look(&mut self) -> Operation {
        match self.random.below(4) {
            0 => Operation::Stat { path: self.draw_path() },
            1 => Operation::Stat { path: self.draw_existing() },
            2 => Operation::Read { path: self.draw_existing(), offset: 0, bytes: 1 << 10 },
            _ => Operation::List { path: self.homes[self.random.below(self.homes.len() as u64) as usize].clone() },
        }
    }

    /// A change, mostly a rename.
    fn draw(&mut self) -> Operation {
        let seed = self.random.below(256) as u8;
        match self.random.below(100) {
            0..12 => Operation::Create { path: self.draw_path(), mode: 0o644, exclusive: true },
            // As programs do that rename it then.
            12..18 => {
                let path = self.draw_path();
                let (directory, name) = path.rsplit_once('/').expect("it has a directory");
                Operation::Create { path: format!("{directory}/.{name}.tmp"), mode: 0o644, exclusive: false }
            }
            18..26 => Operation::MakeDirectory { path: self.draw_path(), mode: 0o755 },
            26..32 => Operation::Write { path: self.draw_existing(), offset: 0, bytes: 1 + usize::from(seed), seed },
            32..40 => Operation::Link { from: self.draw_existing(), to: self.draw_path() },
            40..45 => Operation::Unlink { path: self.draw_existing() },
            45..48 => Operation::RemoveDirectory { path: self.draw_existing() },
            48..56 => self.draw_rename(RenameFlag::Exchange, true),
            56..64 => self.draw_rename(RenameFlag::NoReplace, false),
            64..76 => self.draw_rename(RenameFlag::Replace, true),
            _ => self.draw_rename(RenameFlag::Replace, false),
        }
    }

    /// `onto`: something that exists.
    fn draw_rename(&mut self, flag: RenameFlag, onto: bool) -> Operation {
        let from = self.draw_existing();
        let to = if onto { self.draw_existing() } else { self.draw_path() };
        Operation::Rename { from, to, flag }
    }
}
