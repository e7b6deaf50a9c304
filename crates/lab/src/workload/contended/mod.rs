//! Contended mode: all clients fight over three names in each of two directories while servers die
//! and the network fails. They create, remove, rename, link, look, list and change modes, as fast
//! as they can, and mostly look: so each answer is about what others change at the same time, and
//! many come from caches.
//!
//! What clients were told must fit one order of all operations ([`history`]). The states that are
//! possible at the end of a round are where the next one begins, with caches as they are.
//!
//! In most seeds, clients look through caches above them ([`UpperCopies`]), which take their time
//! to drop what is withdrawn. In every other seed living clients are evicted, also for that: then
//! an operation may fail because its session has ended, and was done or not. After a round in which
//! that happened, a client lists what there is.
//!
//! With several MDTs the directories are on any of them, or striped, and some operations have
//! several moments ([`halves`]). Some directories split in the middle of a round: lists of that
//! round say nothing, since they show each name at another moment.

mod halves;
mod history;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use client::{FileSystem, NewNode};
use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, RenameMode, open_flag};
use rt::{BoxFuture, Entropy};
use types::{Attributes, Credentials, DirectoryMap, FsError, FsResult, InodeNumber, NodeKind, SetAttributes, Stripes};

use self::{
    halves::halves,
    history::{Event, History, explain},
    state::{Operation, Outcome, Place, Shown, State},
};
use crate::{
    Random, Simulation,
    checkers::finishes,
    cluster::{Cluster, client_host},
    faults::{Chaos, FaultPlan, spread},
    upper_cache::UpperCopies,
};

const DIRECTORIES: u8 = 2;
const NAMES: u8 = 3;
/// Operations of a client in one round: the search for an order goes through all positions.
const ROUND: u64 = 8;
/// One operation in so many comes after a pause, so that faults and ends of leases hit what is
/// cached.
const PAUSE_RARITY: u64 = 12;
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_secs(5));
const MODES: [u32; 3] = [0o600, 0o644, 0o666];
/// Rounds in a million in which a directory gets other stripes or moves.
const SPLITS: u32 = 150_000;
/// Of a million of these, those that move it.
const MOVES: u32 = 400_000;
/// A round that takes longer than this under faults gets a calm network and all servers.
const TIMEOUT: Duration = Duration::from_secs(120);

fn root() -> Credentials {
    Credentials::root()
}

/// The name of a directory in the root.
fn directory_name(directory: u8) -> Vec<u8> {
    format!("d{directory}").into_bytes()
}

fn name_of(name: u8) -> Vec<u8> {
    format!("n{name}").into_bytes()
}

/// One client.
struct Fighter {
    file_system: Arc<FileSystem>,
    /// Numbers of the directories, as far as this client knows.
    directories: Mutex<Vec<InodeNumber>>,
    upper: Option<Arc<UpperCopies>>,
    may_be_evicted: bool,
    random: Random,
    /// Files that this client has seen, the last ones.
    known: Mutex<Vec<InodeNumber>>,
    /// Counts what happens, in the order in which it does.
    moments: Arc<AtomicU64>,
    simulation: Simulation,
}

/// Runs the workload; returns the number of faults.
pub async fn run(cluster: &Cluster, plan: FaultPlan, operations: u64) -> Result<u64, String> {
    // A client that dies leaves an operation of which it is not known whether it happened.
    let plan = FaultPlan { client_dies: false, ..plan };
    let (directories, maps) = make_directories(cluster).await?;
    // Of the directories, if there are several MDTs.
    let mut maps = cluster.places().are_several().then_some(maps);
    let splits = Random::for_purpose(cluster.seed(), "contended splits");
    let moments = Arc::new(AtomicU64::new(0));
    let fighter = |client: u16| {
        let (file_system, _) = cluster.file_system(client).expect("clients live through this workload");
        let random = Random::for_purpose(cluster.seed(), &format!("{} contended", client_host(client)));
        let (directories, moments) = (Mutex::new(directories.clone()), moments.clone());
        let (known, simulation) = (Mutex::default(), cluster.simulation().clone());
        let upper = cluster.upper_caches().into_iter().find(|(number, _)| *number == client).map(|(_, upper)| upper);
        let may_be_evicted = plan.evictions;
        let fighter = Fighter { file_system, directories, upper, may_be_evicted, random, known, moments, simulation };
        (client, Arc::new(fighter))
    };
    let fighters: BTreeMap<u16, Arc<Fighter>> = cluster.clients().into_iter().map(fighter).collect();
    let (mut possible, mut known) = (BTreeSet::from([State::default()]), BTreeSet::new());
    let (mut chaos, mut faults) = (Chaos::begin(cluster, plan), 0);
    for number in 0..operations.div_ceil(ROUND) {
        let several = maps.is_some();
        let split = several.then(|| split(cluster, &fighters, &splits));
        let mut round = Box::pin(async {
            let (history, split) = tokio::join!(play(cluster, &fighters), settled(split));
            split?;
            let found = if several { Some(find_maps(cluster, &fighters).await?) } else { None };
            Ok::<_, String>((history?, found))
        });
        let (history, found) = match cluster.within(TIMEOUT, round.as_mut()).await {
            Some(played) => played?,
            None => {
                faults += chaos.end().await?;
                let played = finishes(cluster, &format!("round {number}"), round).await??;
                chaos = Chaos::begin(cluster, plan);
                played
            }
        };
        let mut history = match (&maps, &found) {
            (Some(before), Some(after)) => in_halves(history, before, after),
            _ => history,
        };
        maps = found;
        if history.iter().flatten().any(|event| event.outcome == Outcome::Unknown) {
            history[0].extend(list_all(cluster, &fighters).await?);
        }
        let (after, explained) = explain(&history, &possible, &known);
        if after.is_empty() {
            return Err(format!(
                "round {number}: no order explains more than {explained} of these answers\n  before: {possible:?}\n{}",
                told(&history)
            ));
        }
        cluster.log().event("lab", format_args!("round {number}: {} states are possible", after.len()));
        known.extend(history.iter().flatten().flat_map(|event| event.outcome.files()));
        possible = after;
    }
    faults += chaos.end().await?;
    Ok(faults)
}

type Directories = (Vec<InodeNumber>, Vec<Option<DirectoryMap>>);

async fn make_directories(cluster: &Cluster) -> Result<Directories, String> {
    let (file_system, _) = cluster.file_system(0).ok_or("client 0 is not mounted")?;
    let random = Random::for_purpose(cluster.seed(), "contended directories");
    let places = cluster.places().clone();
    let make = async move {
        let (mut made, mut maps) = (Vec::new(), Vec::new());
        for directory in 0..DIRECTORIES {
            let (parent, name) = (InodeNumber::ROOT, directory_name(directory));
            let inode = match places.are_several() {
                false => {
                    let kind = NodeKind::Directory;
                    let node = NewNode { parent, name, kind, mode: 0o755, umask: 0, layout: None };
                    file_system.create(&root(), node).await?.inode
                }
                true => {
                    let make = places.new_directory(&random, (parent, &String::from_utf8_lossy(&name)));
                    file_system.make_directory(&root(), make).await?
                }
            };
            maps.push(file_system.layout_info(inode).await?.map);
            made.push(inode);
        }
        FsResult::Ok((made, maps))
    };
    let made = cluster.on_client(0, make).await.ok_or("a client died before anything began")?;
    made.map_err(|error| format!("mkdir: {error}"))
}

/// One round of all clients at once.
async fn play(cluster: &Cluster, fighters: &BTreeMap<u16, Arc<Fighter>>) -> Result<History, String> {
    let begin = |(client, fighter): (&u16, &Arc<Fighter>)| {
        let (fighter, log, host) = (fighter.clone(), cluster.log().clone(), client_host(*client));
        let part = async move {
            let mut events = Vec::new();
            for _ in 0..ROUND {
                if fighter.random.below(PAUSE_RARITY) == 0 {
                    let pause = spread(&fighter.random, PAUSE.0, PAUSE.1);
                    fighter.simulation.sleep(pause).await;
                }
                let event = fighter.next().await;
                log.event(&host, format_args!("{:?} -> {:?}", event.operation, event.outcome));
                events.push(event);
            }
            events
        };
        cluster.begin_on_client(*client, part)
    };
    let parts: Vec<_> = fighters.iter().map(begin).collect();
    let mut history = Vec::new();
    for part in parts {
        history.push(part.await.ok_or("a client died in a workload that kills none")?);
    }
    Ok(history)
}

/// Perhaps a client gives one of the directories other stripes, or moves it, in the middle of the
/// round.
fn split(
    cluster: &Cluster,
    fighters: &BTreeMap<u16, Arc<Fighter>>,
    random: &Random,
) -> Option<BoxFuture<'static, Option<FsResult<()>>>> {
    if !random.happens(SPLITS) {
        return None;
    }
    let (client, fighter) = fighters.iter().nth(random.below(fighters.len() as u64) as usize)?;
    let (fighter, places) = (fighter.clone(), cluster.places().clone());
    let (directory, moves) = (random.below(u64::from(DIRECTORIES)) as u8, random.happens(MOVES));
    let (log, host) = (cluster.log().clone(), client_host(*client));
    let (after, seed) = (spread(random, PAUSE.0, PAUSE.1), random.below(u64::MAX));
    let work = async move {
        fighter.simulation.sleep(after).await;
        let random = Random::for_purpose(seed, "stripes");
        let number = fighter.look_directory(directory).await?;
        let (what, placed) = match moves {
            true => ("move", places.move_inode(&fighter.file_system, number, &random).await),
            false => ("split", places.split(&fighter.file_system, number, &random).await),
        };
        log.event(&host, format_args!("{what} of directory {directory}, {number} -> {placed:?}"));
        placed
    };
    Some(Box::pin(cluster.begin_on_client(*client, work)))
}

/// The split, or the move, is over. It may be that its client was evicted meanwhile.
async fn settled(split: Option<Option<BoxFuture<'static, Option<FsResult<()>>>>>) -> Result<(), String> {
    let Some(split) = split.flatten() else { return Ok(()) };
    match split.await.ok_or("a client died in a workload that kills none")? {
        Ok(()) | Err(FsError::Stale) => Ok(()),
        Err(error) => Err(format!("a split or a move: {error}")),
    }
}

/// The maps of the directories, of which all names are in their shards.
async fn find_maps(
    cluster: &Cluster,
    fighters: &BTreeMap<u16, Arc<Fighter>>,
) -> Result<Vec<Option<DirectoryMap>>, String> {
    let (client, fighter) = fighters.iter().next().ok_or("no client is there to look")?;
    let fighter = fighter.clone();
    let find = async move {
        let mut maps = Vec::new();
        for directory in 0..DIRECTORIES {
            maps.push(loop {
                let looked = async {
                    let number = fighter.look_directory(directory).await?;
                    Ok((number, fighter.file_system.layout_info(number).await?.map))
                };
                let (number, found) = match looked.await {
                    Ok(found) => found,
                    // The session has ended.
                    Err(FsError::Stale) => continue,
                    Err(error) => break Err(error),
                };
                let Some(map) = found else { break Ok(None) };
                let (hash, mdts) = (map.hash, map.shards.iter().map(|shard| shard.mdt()).collect::<Vec<_>>());
                if mdts == [number.mdt()] {
                    // It was made so, or followed its names. To ask for that would end its stripes.
                    break Ok(Some(map));
                }
                // Returns when that is so.
                match fighter.file_system.split_directory(&root(), number, Stripes { hash, mdts }).await {
                    Ok(()) => break Ok(Some(map)),
                    Err(FsError::Stale) => {}
                    Err(error) => break Err(error),
                }
            }?);
        }
        FsResult::Ok(maps)
    };
    let found = cluster.begin_on_client(*client, find).await.ok_or("a client died in a workload that kills none")?;
    found.map_err(|error| format!("where names are: {error}"))
}

/// What happened at one moment each. A list of a directory that has split meanwhile says nothing.
fn in_halves(history: History, before: &[Option<DirectoryMap>], after: &[Option<DirectoryMap>]) -> History {
    let has_split = |event: &Event| match event.operation {
        Operation::List(directory) => before[usize::from(directory)] != after[usize::from(directory)],
        _ => false,
    };
    let of_client = |events: Vec<Event>| {
        events.into_iter().filter(|event| !has_split(event)).flat_map(|event| halves(event, after)).collect()
    };
    history.into_iter().map(of_client).collect()
}

/// What there is once a round is over, as the first client sees it.
async fn list_all(cluster: &Cluster, fighters: &BTreeMap<u16, Arc<Fighter>>) -> Result<Vec<Event>, String> {
    let (client, fighter) = fighters.iter().next().ok_or("no client is there to look")?;
    let fighter = fighter.clone();
    let list = async move {
        let mut events = Vec::new();
        for directory in 0..DIRECTORIES {
            let mut event = fighter.told(Operation::List(directory)).await;
            while event.outcome == Outcome::Unknown {
                event = fighter.told(Operation::List(directory)).await;
            }
            events.push(event);
        }
        events
    };
    let listed = cluster.on_client(*client, list).await;
    listed.ok_or_else(|| "a client died in a workload that kills none".to_owned())
}

/// A history in words, in the order in which operations began.
fn told(history: &History) -> String {
    let mut events: Vec<(usize, &Event)> = history
        .iter()
        .enumerate()
        .flat_map(|(client, events)| events.iter().map(move |event| (client, event)))
        .collect();
    events.sort_by_key(|(_, event)| event.begun);
    let mut text = String::new();
    for (client, Event { operation, outcome, begun, ended }) in events {
        let _ = writeln!(text, "  client{client} {begun}..{ended} {operation:?} -> {outcome:?}");
    }
    text
}

impl Fighter {
    async fn next(&self) -> Event {
        self.told(self.choose()).await
    }

    /// Does an operation.
    async fn told(&self, operation: Operation) -> Event {
        let (begun, client) = (self.moments.fetch_add(1, Ordering::Relaxed), self.file_system.client_id());
        let outcome = loop {
            let asked = self.directories.lock().clone();
            let outcome = self.execute(&operation).await.unwrap_or_else(Outcome::Failed);
            let may_have_moved = outcome == Outcome::Failed(FsError::Stale) && self.file_system.client_id() == client;
            // As the kernel does it: what came to a number that a directory does not have any more
            // is done again.
            if !may_have_moved || self.look_directories().await == Ok(asked) {
                break outcome;
            }
        };
        let is_lost = outcome == Outcome::Failed(FsError::Stale) && self.file_system.client_id() != client;
        let outcome = if is_lost && self.may_be_evicted { Outcome::Unknown } else { outcome };
        let ended = self.moments.fetch_add(1, Ordering::Relaxed);
        if let Outcome::Shown(shown) = &outcome {
            let mut known = self.known.lock();
            known.retain(|inode| *inode != shown.inode);
            known.push(shown.inode);
            if known.len() > usize::from(NAMES) {
                known.remove(0);
            }
        }
        Event { operation, outcome, begun, ended }
    }

    fn place(&self) -> Place {
        (self.random.below(u64::from(DIRECTORIES)) as u8, self.random.below(u64::from(NAMES)) as u8)
    }

    fn choose(&self) -> Operation {
        let (place, mode) = (self.place(), *self.random.pick(&MODES));
        let known = self.known.lock().clone();
        let inode = if known.is_empty() { None } else { Some(*self.random.pick(&known)) };
        match (self.random.below(20), inode) {
            (0..3, _) => Operation::Create(place, mode),
            (3..5, _) => Operation::Unlink(place),
            (5, _) => Operation::Rename(place, self.place()),
            (6, _) => Operation::RenameNew(place, self.place()),
            (7, _) => Operation::Exchange(place, self.place()),
            (8, Some(inode)) => Operation::Link(inode, place),
            (9, Some(inode)) => Operation::SetMode(inode, mode),
            (10..13, Some(inode)) => Operation::Stat(inode),
            (13..15, _) => Operation::List(place.0),
            _ => Operation::Look(place),
        }
    }

    fn at(&self, (directory, name): Place) -> (InodeNumber, Vec<u8>) {
        (self.directories.lock()[usize::from(directory)], name_of(name))
    }

    /// The number that a directory has now.
    async fn look_directory(&self, directory: u8) -> FsResult<InodeNumber> {
        let name = directory_name(directory);
        let found = self.file_system.lookup(&root(), InodeNumber::ROOT, &name).await?.inode;
        self.directories.lock()[usize::from(directory)] = found;
        Ok(found)
    }

    /// The numbers that all directories have now.
    async fn look_directories(&self) -> FsResult<Vec<InodeNumber>> {
        let mut found = Vec::new();
        for directory in 0..DIRECTORIES {
            found.push(self.look_directory(directory).await?);
        }
        Ok(found)
    }

    async fn execute(&self, operation: &Operation) -> FsResult<Outcome> {
        let (file_system, root) = (&self.file_system, root());
        match operation {
            Operation::Create(place, mode) => {
                let (parent, name) = self.at(*place);
                let kind = NodeKind::Regular;
                let node = NewNode { parent, name: name.clone(), kind, mode: *mode, umask: 0, layout: None };
                let made = self.change(&[*place], &[], file_system.create(&root, node)).await?;
                Ok(self.made(made, (parent, &name)))
            }
            Operation::Unlink(place) => {
                let (parent, name) = self.at(*place);
                let unlink = file_system.unlink(&root, parent, &name);
                self.change(&[*place], &[], unlink).await.map(|()| Outcome::Done)
            }
            Operation::Rename(from, to) => self.rename(*from, *to, RenameMode::Replace).await,
            Operation::RenameNew(from, to) => self.rename(*from, *to, RenameMode::NoReplace).await,
            Operation::Exchange(from, to) => self.rename(*from, *to, RenameMode::Exchange).await,
            Operation::Link(inode, place) => {
                let (parent, name) = self.at(*place);
                let link = file_system.link(&root, *inode, parent, &name);
                let linked = self.change(&[*place], &[*inode], link).await?;
                Ok(self.made(linked, (parent, &name)))
            }
            Operation::Look(place) => self.look(*place).await,
            Operation::Stat(inode) => self.stat(*inode).await,
            Operation::SetMode(inode, mode) => {
                let change = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                let set = file_system.set_attributes(&root, *inode, change, None);
                self.change(&[], &[*inode], set).await.map(shown)
            }
            Operation::List(directory) => self.list(*directory).await.map(Outcome::Names),
            Operation::Leads(_) | Operation::LinkName(..) => unreachable!("halves are told, not done"),
        }
    }

    /// A change that concerns these names and files, and what the names lead to.
    async fn change<T>(
        &self,
        places: &[Place],
        files: &[InodeNumber],
        change: impl Future<Output = FsResult<T>>,
    ) -> FsResult<T> {
        let Some(upper) = &self.upper else { return change.await };
        let names: Vec<_> = places.iter().map(|place| self.at(*place)).collect();
        let names: Vec<_> = names.iter().map(|(parent, name)| (*parent, name.as_slice())).collect();
        upper.change(&self.file_system, &names, files, change).await
    }

    /// A change made a name for this file.
    fn made(&self, made: Attributes, name: (InodeNumber, &[u8])) -> Outcome {
        if let Some(upper) = &self.upper {
            upper.made(&self.file_system, made, name);
        }
        shown(made)
    }

    async fn look(&self, place: Place) -> FsResult<Outcome> {
        let (parent, name) = self.at(place);
        let found = match &self.upper {
            Some(upper) => upper.look(&self.file_system, (parent, &name)).await,
            None => self.file_system.lookup(&root(), parent, &name).await,
        };
        found.map(shown)
    }

    async fn stat(&self, inode: InodeNumber) -> FsResult<Outcome> {
        let found = match &self.upper {
            Some(upper) => upper.stat(&self.file_system, inode).await,
            None => self.file_system.get_attributes(inode, None).await,
        };
        found.map(shown)
    }

    async fn rename(&self, from: Place, to: Place, mode: RenameMode) -> FsResult<Outcome> {
        let ((old_parent, old), (new_parent, new)) = (self.at(from), self.at(to));
        let root = root();
        let rename = self.file_system.rename(&root, (old_parent, &old), (new_parent, &new), mode);
        self.change(&[from, to], &[], rename).await.map(|()| Outcome::Done)
    }

    /// In one page: it shows what there is at one moment.
    async fn list(&self, directory: u8) -> FsResult<Vec<(u8, InodeNumber)>> {
        let number = self.directories.lock()[usize::from(directory)];
        let flags = OpenFlags(open_flag::READ);
        let opened = self.file_system.open(&root(), number, flags).await?;
        let page = self.file_system.read_directory(&opened, 0, 100, client::EntryAttributes::OfAll).await;
        self.file_system.close(opened, None).await?;
        let shown = page?.items.into_iter().filter(|item| item.name != b"." && item.name != b"..");
        let number_of = |name: &[u8]| (0..NAMES).find(|number| name_of(*number) == name);
        let names = shown.map(|item| Some((number_of(&item.name)?, item.inode)));
        let mut names: Vec<_> = names.collect::<Option<_>>().ok_or(FsError::Invalid)?;
        names.sort();
        Ok(names)
    }
}

fn shown(attributes: Attributes) -> Outcome {
    Outcome::Shown(Shown { inode: attributes.inode, mode: attributes.mode, links: attributes.links })
}
