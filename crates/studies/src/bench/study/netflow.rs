//! E1's netflow workload: one large file of flow records, read in two phases.
//!
//! 1. *index*: tasks read parts of the file in large calls and note where the records of every
//!    modelled host are.
//! 2. *model*: the records of every such host are read again, one by one at their offsets (very
//!    small random reads), and a model of its traffic is computed: mean and deviation of octets.
//!
//! Synchronous: every task has an equal share of parts, then of hosts. Asynchronous: a task takes
//! the next part, or the next host, when it is ready. The models of both must agree.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;

use super::{
    job::{Files, at_once, close_all, open_all},
    nfdump,
};
use crate::{
    bench::{
        caches::{CacheKind, drop_caches},
        target::TargetFile,
    },
    study::{
        Job, Outcome,
        e1::scheduled,
        flow::{CALL_BYTES, Flow, Generator, RECORD_BYTES, whole_records},
    },
};

/// How work is given to tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Equal shares.
    Synchronous,
    /// The next one when ready.
    Asynchronous,
}

impl Schedule {
    /// Both.
    pub const ALL: [Schedule; 2] = [Schedule::Synchronous, Schedule::Asynchronous];

    /// Name of a job's outcomes under this schedule.
    fn name(self, job: &str) -> String {
        scheduled(job, self == Schedule::Synchronous)
    }
}

/// Where records come from.
#[derive(Debug)]
pub enum Source {
    /// Made up.
    Generated(Generator),
    /// A file of records.
    File(File),
}

impl Source {
    /// The files that were given, one after the other, or a generator for so many bytes; and the
    /// bytes of its records. What has to be copied for that is in `place` while the source lives.
    pub fn new(inputs: &[PathBuf], bytes: u64, place: Option<&Path>) -> anyhow::Result<(Self, u64)> {
        let file = match inputs {
            [] => return Ok((Source::Generated(Generator::for_bytes(bytes)), whole_records(bytes))),
            [path] if !is_of_nfdump(path)? => open(path)?,
            paths => gathered(paths, place)?,
        };
        let bytes = whole_records(file.metadata()?.len());
        ensure!(bytes > 0, "the input has no record of {RECORD_BYTES} bytes");
        Ok((Source::File(file), bytes))
    }

    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Source::Generated(generator) => {
                generator.fill(offset, buffer);
                Ok(())
            }
            Source::File(file) => file.read_exact_at(buffer, offset),
        }
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn is_of_nfdump(path: &Path) -> anyhow::Result<bool> {
    let mut magic = [0; 2];
    match open(path)?.read_exact(&mut magic) {
        Ok(()) => Ok(nfdump::is_nfdump(magic)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The records of all files in one that has no name.
fn gathered(paths: &[PathBuf], place: Option<&Path>) -> anyhow::Result<File> {
    let target = place.map_or_else(tempfile::tempfile, tempfile::tempfile_in);
    let mut target = target.context("cannot create a temporary file")?;
    for path in paths {
        if is_of_nfdump(path)? {
            nfdump::convert(path, &target)?;
        } else {
            let file = open(path)?;
            let bytes = whole_records(file.metadata()?.len());
            io::copy(&mut file.take(bytes), &mut target).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(target)
}

/// Writes the records; not measured.
pub fn write(source: &Source, bytes: u64, files: &Files) -> io::Result<()> {
    let file = files.open(0)?;
    let mut offset = 0;
    while offset < bytes {
        let mut buffer = vec![0; CALL_BYTES.min(bytes - offset) as usize];
        source.fill(offset, &mut buffer)?;
        file.write_at(&Bytes::from(buffer), offset)?;
        offset += CALL_BYTES;
    }
    file.sync()?;
    file.close()
}

/// Where the records of each host are.
type Index = BTreeMap<u32, Vec<u64>>;

/// What is known of a host's traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Flows.
    pub flows: u64,
    /// Octets of a flow.
    pub mean: f64,
    /// Standard deviation of that.
    pub deviation: f64,
}

/// Runs both phases; also returns the models, which no schedule may change.
pub fn run(
    job: &Job,
    bytes: u64,
    files: &Files,
    schedule: Schedule,
) -> io::Result<(Vec<Outcome>, BTreeMap<u32, Model>)> {
    drop_caches(CacheKind::Pages);
    let parts: Vec<u64> = (0..bytes.div_ceil(CALL_BYTES)).map(|call| call * CALL_BYTES).collect();
    let index = Mutex::new(Index::new());
    let indexed = each(job, files, schedule, &parts, |file, offset| {
        let mut buffer = vec![0; CALL_BYTES.min(bytes - offset) as usize];
        file.read_at(&mut buffer, *offset)?;
        let found = look_at(*offset, &buffer);
        let mut index = index.lock().expect("no panic while locked");
        found.into_iter().for_each(|(host, offsets)| index.entry(host).or_default().extend(offsets));
        Ok(())
    })?;
    let hosts: Vec<(u32, Vec<u64>)> = index.into_inner().expect("no panic while locked").into_iter().collect();
    if hosts.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no flow comes from one of the private addresses that are modelled",
        ));
    }
    drop_caches(CacheKind::Pages);
    let models = Mutex::new(BTreeMap::new());
    let modelled = each(job, files, schedule, &hosts, |file, (host, offsets)| {
        let model = model(file, offsets)?;
        models.lock().expect("no panic while locked").insert(*host, model);
        Ok(())
    })?;
    let reads: u64 = hosts.iter().map(|(_, offsets)| offsets.len() as u64).sum();
    let outcome = |phase, operations, bytes, time: Duration| Outcome {
        job: schedule.name(&job.name),
        phase,
        bytes,
        operations,
        seconds: time.as_secs_f64(),
    };
    let outcomes = vec![
        outcome("index", parts.len() as u64, bytes, indexed),
        outcome("model", reads, reads * RECORD_BYTES as u64, modelled),
        outcome("total", parts.len() as u64 + reads, bytes, indexed + modelled),
    ];
    Ok((outcomes, models.into_inner().expect("no panic while locked")))
}

/// Records of modelled hosts in a part of the file.
fn look_at(offset: u64, part: &[u8]) -> Index {
    let mut found = Index::new();
    let (records, _) = part.as_chunks::<RECORD_BYTES>();
    for (number, record) in records.iter().enumerate() {
        if let Some(host) = Flow::decode(record).modelled() {
            found.entry(host).or_default().push(offset + (number * RECORD_BYTES) as u64);
        }
    }
    found
}

fn model(file: &dyn TargetFile, offsets: &[u64]) -> io::Result<Model> {
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut record = [0; RECORD_BYTES];
    for offset in offsets {
        file.read_at(&mut record, *offset)?;
        let octets = f64::from(Flow::decode(&record).octets);
        sum += octets;
        squares += octets * octets;
    }
    let flows = offsets.len() as f64;
    let mean = sum / flows;
    Ok(Model { flows: offsets.len() as u64, mean, deviation: (squares / flows - mean * mean).max(0.0).sqrt() })
}

/// Does `work` for every item, as the schedule says, by all tasks.
fn each<I: Sync>(
    job: &Job,
    files: &Files,
    schedule: Schedule,
    items: &[I],
    work: impl Fn(&dyn TargetFile, &I) -> io::Result<()> + Sync,
) -> io::Result<Duration> {
    let next = AtomicUsize::new(0);
    let tasks = job.tasks as usize;
    let opened = open_all(job, files)?;
    let time = at_once(&opened, |file, rank| {
        match schedule {
            Schedule::Synchronous => {
                let rank = rank as usize;
                let share = items.len() * rank / tasks..items.len() * (rank + 1) / tasks;
                items[share].iter().try_for_each(|item| work(file, item))?;
            }
            Schedule::Asynchronous => {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(file, item)?;
                }
            }
        }
        Ok(())
    })?;
    close_all(opened)?;
    Ok(time)
}

#[cfg(test)]
mod tests {
    use crate::study::{Pattern, Striping};
    use layout::END_OF_FILE;

    use super::*;

    #[test]
    fn both_schedules_make_the_models_that_the_records_give() {
        let place = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let directory = place.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            directory
        };
        let files = Files::Parts(vec![(directory("a"), 1 << 20), (directory("b"), END_OF_FILE)]);
        let (source, bytes) = Source::new(&[], 3 << 20, None).unwrap();
        write(&source, bytes, &files).unwrap();
        let job = Job {
            name: "j".to_owned(),
            setting: String::new(),
            striping: Striping::Automatic,
            pattern: Pattern::Shared,
            tasks: 3,
            task_bytes: bytes / 3,
            transfer_bytes: CALL_BYTES,
        };
        let [one, other] = Schedule::ALL.map(|schedule| run(&job, bytes, &files, schedule).unwrap());
        let Source::Generated(generator) = source else { panic!("generated") };
        let flows = (0..bytes / RECORD_BYTES as u64).map(|number| generator.flow(number));
        let wanted = flows.filter(|flow| flow.modelled().is_some()).count() as u64;
        assert_eq!(one.1.values().map(|model| model.flows).sum::<u64>(), wanted);
        assert_eq!(one.1.keys().collect::<Vec<_>>(), other.1.keys().collect::<Vec<_>>());
        for (host, model) in &one.1 {
            let same = other.1[host];
            assert_eq!(model.flows, same.flows);
            assert!((model.mean - same.mean).abs() < 1e-6 * model.mean, "{model:?} {same:?}");
        }
        assert_eq!((one.0[1].operations, one.0[0].job.as_str()), (wanted, "j sync"));
    }

    #[test]
    fn whole_records_of_all_files_are_taken_in_order() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, contents: &[u8]| {
            let path = place.path().join(name);
            std::fs::write(&path, contents).unwrap();
            path
        };
        let (two, one, none) = (file("two", &[7; 100]), file("one", &[8; 50]), file("none", &[9; 10]));
        assert_eq!(Source::new(std::slice::from_ref(&two), 0, None).unwrap().1, 96);
        let (source, bytes) = Source::new(&[two, one], 0, Some(place.path())).unwrap();
        assert_eq!(bytes, 144);
        let mut contents = [0; 144];
        source.fill(0, &mut contents).unwrap();
        assert_eq!(contents, *[[7; 96].as_slice(), &[8; 48]].concat());
        assert!(Source::new(&[none], 0, None).is_err());
        assert!(Source::new(&[place.path().join("missing")], 0, None).is_err());
    }
}
