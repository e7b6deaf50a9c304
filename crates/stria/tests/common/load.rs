//! Writers that remember what was acknowledged.
//!
//! Each worker has a directory of its own and a model of it: names and contents. Every acknowledged
//! change goes into the model, and afterwards the directory must equal the model exactly: StriaFS
//! promises that the death of a server loses nothing that was acknowledged, synced or not.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use types::SplitMix64;

use super::{TIMEOUT, wait_for};

/// Files a worker has at a time.
const FILES_MAX: usize = 8;
/// Largest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Largest piece written at once; above 64 KiB, so that both ways of storing are taken.
const PIECE_BYTES_MAX: u64 = 160 << 10;

/// Numbers from a seed.
pub struct Random(pub u64);

impl Random {
    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let mut sequence = SplitMix64(self.0);
        let number = sequence.next_u64();
        self.0 = sequence.0;
        number % bound
    }

    /// Bytes that are nowhere the same.
    pub fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.below(u64::MAX).to_le_bytes()).take(count as usize).collect()
    }
}

/// What one worker's directory holds.
#[derive(Debug, Default)]
struct Model {
    files: BTreeMap<String, Vec<u8>>,
    /// Names of the operation that failed, if one did: it may have had its effect or not.
    doubtful: Vec<String>,
}

struct Worker {
    directory: PathBuf,
    random: Random,
    model: Model,
    next_name: u64,
    /// Names of the operation in progress.
    touched: Vec<String>,
}

struct Handle {
    name: String,
    operations: Arc<AtomicU64>,
    thread: JoinHandle<(Model, Option<String>)>,
}

/// Running workers.
pub struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<Handle>,
}

impl Load {
    /// Starts a worker in each directory (relative to `mount`), which must exist.
    pub fn start(mount: &Path, directories: &[&str], seed: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(number, name): (u64, &&str)| {
            let (stop, operations) = (Arc::clone(&stop), Arc::new(AtomicU64::new(0)));
            let (directory, counter) = (mount.join(name), Arc::clone(&operations));
            let random = Random(seed.wrapping_mul(1000).wrapping_add(number));
            let mut worker = Worker { directory, random, model: Model::default(), next_name: 0, touched: Vec::new() };
            let thread = std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(failure) = worker.step() {
                        worker.model.doubtful = worker.touched;
                        return (worker.model, Some(failure));
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                (worker.model, None)
            });
            Handle { name: (*name).to_owned(), operations, thread }
        };
        let workers = (0..).zip(directories).map(start).collect();
        Load { stop, workers }
    }

    /// Waits until every worker has done `count` operations more: the load continues.
    #[track_caller]
    pub fn wait_for_progress(&self, count: u64) {
        for worker in &self.workers {
            let goal = worker.operations.load(Ordering::Relaxed) + count;
            wait_for(&format!("progress of the worker in {}", worker.name), TIMEOUT, || {
                let done = worker.operations.load(Ordering::Relaxed) >= goal;
                (done || worker.thread.is_finished()).then_some(())
            });
        }
    }

    /// Ends the workers; panics if one saw an error.
    #[track_caller]
    pub fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.join(|failure| failure.is_none())
    }

    /// Waits until every worker has met an error, because the client is dead.
    #[track_caller]
    pub fn failed(self) -> Written {
        self.join(|failure| failure.is_some())
    }

    #[track_caller]
    fn join(self, expected: impl Fn(&Option<String>) -> bool) -> Written {
        let mut models = Vec::new();
        for worker in self.workers {
            wait_for(&format!("the end of the worker in {}", worker.name), TIMEOUT + Duration::from_secs(60), || {
                worker.thread.is_finished().then_some(())
            });
            let (model, failure) = worker.thread.join().expect("workers do not panic");
            assert!(expected(&failure), "in {}: {failure:?}", worker.name);
            models.push((worker.name, model));
        }
        Written { models }
    }
}

/// What was acknowledged.
pub struct Written {
    models: Vec<(String, Model)>,
}

impl Written {
    /// Compares directories below `mount` with what was acknowledged: names, sizes, every byte.
    #[track_caller]
    pub fn compare(&self, mount: &Path) {
        let mut files = 0;
        for (directory, model) in &self.models {
            let path = mount.join(directory);
            let mut names: Vec<String> = fs::read_dir(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
                .map(|entry| entry.expect("entries can be read").file_name().to_string_lossy().into_owned())
                .collect();
            names.retain(|name| !model.doubtful.contains(name));
            names.sort();
            let certain = || model.files.iter().filter(|(name, _)| !model.doubtful.contains(name));
            let expected: Vec<&String> = certain().map(|(name, _)| name).collect();
            assert_eq!(names.iter().collect::<Vec<_>>(), expected, "names in {}", path.display());
            for (name, expected) in certain() {
                compare_file(&path.join(name), expected);
                files += 1;
            }
        }
        assert!(files > 0, "a load that left nothing proves nothing");
    }
}

/// Compares a file with its expected contents; the error names the first difference.
#[track_caller]
pub fn compare_file(path: &Path, expected: &[u8]) {
    let found = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let difference = found.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!(difference, None, "first different byte of {}", path.display());
    assert_eq!(found.len(), expected.len(), "size of {}", path.display());
}

impl Worker {
    /// One operation, its effect noted when it was acknowledged. An error says which operation
    /// failed and how.
    fn step(&mut self) -> Result<(), String> {
        self.touched.clear();
        let choice = self.random.below(100);
        let name = self.pick();
        self.touched.extend(name.clone());
        let told = |what: &str, name: &str| {
            let text = format!("{what} {name}");
            move |error: io::Error| format!("{text}: {error}")
        };
        match name {
            None => self.create().map_err(told("create", "")),
            Some(_) if choice < 20 && self.model.files.len() < FILES_MAX => self.create().map_err(told("create", "")),
            Some(name) if choice < 70 => self.write(&name).map_err(told("write", &name)),
            Some(name) if choice < 80 => self.truncate(&name).map_err(told("truncate", &name)),
            Some(name) if choice < 90 => self.rename(&name).map_err(told("rename", &name)),
            Some(name) => self.remove(&name).map_err(told("remove", &name)),
        }
    }

    fn pick(&mut self) -> Option<String> {
        let count = self.model.files.len() as u64;
        let index = if count == 0 { return None } else { self.random.below(count) };
        self.model.files.keys().nth(index as usize).cloned()
    }

    fn new_name(&mut self) -> String {
        self.next_name += 1;
        let name = format!("f{}", self.next_name);
        self.touched.push(name.clone());
        name
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.new_name();
        File::create_new(self.directory.join(&name))?;
        self.model.files.insert(name.clone(), Vec::new());
        self.write(&name)
    }

    /// Writes some pieces; half of the time syncs them.
    fn write(&mut self, name: &str) -> io::Result<()> {
        let file = File::options().write(true).open(self.directory.join(name))?;
        for _ in 0..=self.random.below(3) {
            let length = self.model.files[name].len() as u64;
            let offset = self.random.below((length + 1).min(FILE_BYTES_MAX - PIECE_BYTES_MAX));
            let count = 1 + self.random.below(PIECE_BYTES_MAX);
            let piece = self.random.bytes(count);
            let written = file.write_at(&piece, offset)?;
            let contents = self.model.files.get_mut(name).expect("the file is in the model");
            let end = offset as usize + written;
            contents.resize(contents.len().max(end), 0);
            contents[offset as usize..end].copy_from_slice(&piece[..written]);
        }
        if self.random.below(2) == 0 { file.sync_all() } else { Ok(()) }
    }

    fn truncate(&mut self, name: &str) -> io::Result<()> {
        let size = self.random.below(FILE_BYTES_MAX / 2);
        File::options().write(true).open(self.directory.join(name))?.set_len(size)?;
        self.model.files.get_mut(name).expect("the file is in the model").resize(size as usize, 0);
        Ok(())
    }

    fn rename(&mut self, name: &str) -> io::Result<()> {
        let new_name = self.new_name();
        fs::rename(self.directory.join(name), self.directory.join(&new_name))?;
        let contents = self.model.files.remove(name).expect("the file is in the model");
        self.model.files.insert(new_name, contents);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.directory.join(name))?;
        self.model.files.remove(name);
        Ok(())
    }
}
