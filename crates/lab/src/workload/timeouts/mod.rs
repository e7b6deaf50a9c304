//! Timeouts mode: callers give up before faults are over. Server processes are suspended and
//! resumed, devices hang, and sometimes all other faults happen too; clients change and read shared
//! files, and continue according to the results.
//!
//! A client that gets an error for a change may rely on it: either the change has happened by then
//! or it never will, so what this client or others see and write from then on stays ([`ledger`]).
//! All clients see the same. One client at a time uses a file, as with programs that lock it.

mod ledger;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{AllocateMode, FileSystem, OpenFile, WriteOptions};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::Entropy;
use tokio::sync::Mutex;
use types::{Credentials, FsError, FsResult, InodeNumber};

use self::ledger::{Change, Ledger, PLACE_BYTES, PLACES, contents, range};
use super::Verdict;
use crate::{
    Random, Simulation,
    checkers::finishes,
    cluster::{Cluster, client_host},
    directory_places::Places,
    faults::{Chaos, FaultPlan, spread},
    log::EventLog,
};

/// Files that all clients use: about as many as clients, so that they often wait for each other's
/// failures.
const FILES: usize = 4;
/// Faults continue for this long at most; clients that have not finished by then finish without
/// faults.
const FAULTS_LAST: Duration = Duration::from_secs(120);
/// Shortest pause between operations.
const PAUSE_MIN: Duration = Duration::from_micros(10);
/// Operations in a million after which the directory of the file gets other stripes or moves.
const SPLITS: u32 = 40_000;
/// Of a million of these, those that move it.
const MOVES: u32 = 500_000;
/// So often is looked up again what came to a number that the directory had before it moved: moves
/// that were given up may still be on their way.
const TRIES_MAX: usize = 4;
const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);

/// A file, and the client that may use it now.
struct Shared {
    /// Its name in the root; `None`: the root.
    directory: Option<String>,
    name: String,
    inode: InodeNumber,
    state: Mutex<State>,
}

/// What is known of a file.
#[derive(Default)]
struct State {
    ledger: Ledger,
    version_next: ledger::Version,
}

/// Runs the workload; returns the number of faults.
pub async fn run(cluster: &Cluster, plan: FaultPlan, operations: u64) -> Result<u64, String> {
    let files = prepare(cluster).await?;
    let chaos = Chaos::begin(cluster, plan);
    let parts: Vec<_> = cluster
        .clients()
        .into_iter()
        .map(|client| {
            let user = User::new(cluster, client, &files);
            (client, cluster.begin_on_client(client, user.work(operations)))
        })
        .collect();
    let mut working = Box::pin(async move {
        for (client, part) in parts {
            let verdict = part.await.ok_or_else(|| format!("{} died", client_host(client)))?;
            verdict.map_err(|reason| format!("{}: {reason}", client_host(client)))?;
        }
        Ok::<(), String>(())
    });
    let early = cluster.within(FAULTS_LAST, working.as_mut()).await;
    let faults = chaos.end().await?;
    match early {
        Some(outcome) => outcome?,
        None => finishes(cluster, "the clients' work", working).await??,
    }
    // Requests that were given up would arrive until then.
    cluster.simulation().sleep(cluster.options().settings.import.timeout * 2).await;
    for client in cluster.clients() {
        let user = User::new(cluster, client, &files);
        let judged = finishes(cluster, "looking at the files", cluster.on_client(client, user.judge())).await?;
        judged.ok_or("a client died after the faults")?.map_err(|reason| format!("at the end: {reason}"))?;
    }
    Ok(faults)
}

/// Makes the files; if there are several MDTs, each in a directory of its own.
async fn prepare(cluster: &Cluster) -> Result<Arc<Vec<Shared>>, String> {
    let (file_system, _) = cluster.file_system(0).ok_or("client 0 is not mounted")?;
    let random = Random::for_purpose(cluster.seed(), "directories of shared files");
    let places = cluster.places().clone();
    let made = cluster.on_client(0, async move {
        let mut files = Vec::new();
        for number in 0..FILES {
            let name = format!("shared{number}");
            let (root, top) = (Credentials::root(), InodeNumber::ROOT);
            let directory = places.are_several().then(|| format!("d{number}"));
            let parent = match &directory {
                None => top,
                Some(name) => {
                    let directory = places.new_directory(&random, (top, name));
                    file_system.make_directory(&root, directory).await?
                }
            };
            let created = file_system.create_open(&root, parent, name.as_bytes(), 0o644, 0, READ_WRITE).await?.file;
            let inode = created.inode();
            file_system.close(created, None).await?;
            files.push(Shared { directory, name, inode, state: Mutex::default() });
        }
        FsResult::Ok(files)
    });
    let files = made.await.ok_or("the client died before anything began")?;
    files.map(Arc::new).map_err(|error| format!("prepare: {error}"))
}

/// One client at work.
struct User {
    file_system: Arc<FileSystem>,
    files: Arc<Vec<Shared>>,
    open: BTreeMap<usize, Arc<OpenFile>>,
    random: Random,
    splits: Random,
    places: Places,
    /// Longest pause between operations.
    pause_max: Duration,
    simulation: Simulation,
    log: EventLog,
    who: String,
}

impl User {
    fn new(cluster: &Cluster, client: u16, files: &Arc<Vec<Shared>>) -> Self {
        let (file_system, _) = cluster.file_system(client).expect("clients live through this workload");
        let who = client_host(client);
        let random = Random::for_purpose(cluster.seed(), &format!("impatient {who}"));
        Self {
            file_system,
            files: files.clone(),
            open: BTreeMap::new(),
            random,
            splits: Random::for_purpose(cluster.seed(), &format!("splits {who}")),
            places: cluster.places().clone(),
            pause_max: cluster.options().settings.import.timeout / 4,
            simulation: cluster.simulation().clone(),
            log: cluster.log().clone(),
            who,
        }
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.log.event(&self.who, what);
    }

    async fn work(mut self, operations: u64) -> Verdict {
        let files = self.files.clone();
        for _ in 0..operations {
            self.simulation.sleep(spread(&self.random, PAUSE_MIN, self.pause_max)).await;
            let number = self.random.below(FILES as u64) as usize;
            let shared = &files[number];
            let state = &mut *shared.state.lock().await;
            let used = match self.random.below(100) {
                0..40 => self.write(number, state).await,
                40..46 => self.change(number, Change::Truncate(self.random.below(PLACES)), state).await,
                46..52 => self.change(number, Change::Punch(self.random.below(PLACES)), state).await,
                52..75 => self.read(number, self.random.below(PLACES), state).await,
                75..90 => self.stat(number, state).await,
                _ => self.close(number).await,
            };
            used.map_err(|reason| format!("{}: {reason}", shared.name))?;
            if self.places.are_several() && self.splits.happens(SPLITS) {
                self.place(shared).await.map_err(|reason| format!("{}: {reason}", shared.name))?;
            }
        }
        for number in 0..FILES {
            self.close(number).await?;
        }
        Ok(())
    }

    /// Gives the directory of a file other stripes, or moves it, and finds the file in it.
    async fn place(&mut self, shared: &Shared) -> Verdict {
        let Some(directory) = self.directory(shared).await? else { return Ok(()) };
        let (what, placed) = match self.splits.happens(MOVES) {
            true => ("move", self.places.move_inode(&self.file_system, directory, &self.splits).await),
            false => ("split", self.places.split(&self.file_system, directory, &self.splits).await),
        };
        self.note(format_args!("{}: {what} -> {placed:?}", shared.name));
        match placed {
            // One that was given up has moved it meanwhile.
            Err(FsError::Stale) => {}
            placed => drop(self.unless_unreachable(what, placed)?),
        }
        for _ in 0..TRIES_MAX {
            let Some(directory) = self.directory(shared).await? else { return Ok(()) };
            let found = self.file_system.lookup(&Credentials::root(), directory, shared.name.as_bytes()).await;
            if matches!(found, Err(FsError::Stale)) {
                continue;
            }
            return match self.unless_unreachable("lookup", found)? {
                Some(found) if found.inode != shared.inode => Err(format!("the name leads to {}", found.inode)),
                _ => Ok(()),
            };
        }
        Err("the directory has moved again and again".to_owned())
    }

    /// The directory of a file, as it is found now; `None`: it cannot be looked up in time.
    async fn directory(&self, shared: &Shared) -> Result<Option<InodeNumber>, String> {
        let Some(name) = &shared.directory else { return Ok(Some(InodeNumber::ROOT)) };
        let found = self.file_system.lookup(&Credentials::root(), InodeNumber::ROOT, name.as_bytes()).await;
        Ok(self.unless_unreachable("lookup of the directory", found)?.map(|found| found.inode))
    }

    /// Everything there is, without faults.
    async fn judge(mut self) -> Verdict {
        let files = self.files.clone();
        for (number, shared) in files.iter().enumerate() {
            let state = &mut *shared.state.lock().await;
            let judged = async {
                self.stat(number, state).await?;
                for place in 0..PLACES {
                    self.read(number, place, state).await?;
                }
                match state.ledger.is_anything_open() {
                    true => Err("it cannot be read although all faults are over".to_owned()),
                    false => self.close(number).await,
                }
            };
            judged.await.map_err(|reason| format!("{} {}: {reason}", self.who, shared.name))?;
        }
        Ok(())
    }

    /// The only failure there is: no answer in time.
    fn unless_unreachable<T>(&self, what: &str, result: FsResult<T>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(FsError::Unreachable { .. }) => Ok(None),
            Err(error) => Err(format!("{what}: {error}")),
        }
    }

    /// The open file; `None`: it could not be opened.
    async fn file(&mut self, number: usize) -> Result<Option<Arc<OpenFile>>, String> {
        if let Some(open) = self.open.get(&number) {
            return Ok(Some(open.clone()));
        }
        let opened = self.file_system.open(&Credentials::root(), self.files[number].inode, READ_WRITE).await;
        self.note(format_args!("{number}: open -> {:?}", opened.as_ref().map(drop)));
        let opened = self.unless_unreachable("open", opened)?;
        self.open.extend(opened.clone().map(|file| (number, file)));
        Ok(opened)
    }

    async fn write(&mut self, number: usize, state: &mut State) -> Verdict {
        state.version_next += 1;
        let change = Change::Write(self.random.below(PLACES), state.version_next);
        self.change(number, change, state).await
    }

    async fn change(&mut self, number: usize, change: Change, state: &mut State) -> Verdict {
        let Some(file) = self.file(number).await? else { return Ok(()) };
        let changed = self.execute(&file, change).await;
        self.note(format_args!("{number}: {change:?} -> {changed:?}"));
        match self.unless_unreachable("change", changed)? {
            Some(()) => state.ledger.done(change),
            None => state.ledger.failed(change),
        }
        Ok(())
    }

    async fn execute(&self, file: &Arc<OpenFile>, change: Change) -> FsResult<()> {
        match change {
            Change::Write(place, version) => {
                let options = WriteOptions { append: false, sync: false, keep_set_id: true };
                let data = Bytes::from(contents(place, version));
                let written = self.file_system.write(file, range(place).start, data, options).await?;
                assert_eq!(written as u64, PLACE_BYTES, "a place is one request");
                Ok(())
            }
            Change::Punch(place) => {
                self.file_system.allocate(file, AllocateMode::Punch, range(place).start, PLACE_BYTES).await
            }
            Change::Truncate(place) => {
                let size = range(place).start;
                self.file_system.truncate(&Credentials::root(), file.inode(), Some(file), size).await.map(drop)
            }
        }
    }

    async fn read(&mut self, number: usize, place: u64, state: &mut State) -> Verdict {
        let Some(file) = self.file(number).await? else { return Ok(()) };
        let read = self.file_system.read(&file, range(place).start, PLACE_BYTES as usize).await;
        let read = read.map(|data| data.into_bytes());
        self.note(format_args!("{number}: read {place} -> {:?}", read.as_ref().map(|data| data.len())));
        match self.unless_unreachable("read", read)? {
            Some(data) => state.ledger.saw_data(place, &data),
            None => Ok(()),
        }
    }

    async fn stat(&mut self, number: usize, state: &mut State) -> Verdict {
        let found =
            self.file_system.get_attributes(self.files[number].inode, self.open.get(&number).map(AsRef::as_ref)).await;
        let size = found.map(|attributes| attributes.size);
        self.note(format_args!("{number}: stat -> {size:?}"));
        match self.unless_unreachable("stat", size)? {
            Some(size) => state.ledger.saw_size(size),
            None => Ok(()),
        }
    }

    async fn close(&mut self, number: usize) -> Verdict {
        let Some(file) = self.open.remove(&number) else { return Ok(()) };
        let closed = self.file_system.close(file, None).await;
        self.note(format_args!("{number}: close -> {closed:?}"));
        self.unless_unreachable("close", closed).map(drop)
    }
}
