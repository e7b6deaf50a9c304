//! Names under power loss: one client changes the namespace step by step, with a model for each
//! step since the last sync.
//!
//! The MDT has one journal, so after a power loss the namespace is as it was after some step: not
//! before the last sync, nor more than the commit interval ago. If the MDT kept its power it is the
//! last step. The operation in progress may have happened before the loss, or after it (its client
//! repeats it), on the remaining namespace. If acknowledged steps are lost, the next sync reports
//! it. (With several MDTs each has a journal of its own: see [`super::names_over_mdts`].)

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::{BoxFuture, Entropy, Instant};
use types::{Credentials, FsResult, MdtIndex};

use super::{
    NAMES_CLIENT, Verdict,
    alarm::{Alarm, Lost},
    loss::{Blackout, Loss},
    names_over_mdts,
};
use crate::{
    Random,
    cluster::{Cluster, client_host},
    log::{EventLog, summary},
    native::Native,
    reference::{Generator, Model, Operation, Outcome, Shape, Subject},
};

/// Everything happens below this directory.
const PREFIX: &str = "names";
/// One operation in so many is a sync.
const SYNC_ONE_IN: u64 = 8;
/// Longest pause between operations.
const PAUSE: Duration = Duration::from_millis(100);

/// The namespace after an acknowledged step.
#[derive(Clone)]
pub(super) struct Step {
    pub model: Model,
    pub acknowledged: Instant,
    /// What was done, and the MDT that decided it: with several MDTs.
    pub change: Option<(Operation, MdtIndex)>,
}

/// What was done since the last sync.
pub(super) struct Ledger {
    /// The first is durable.
    pub steps: Vec<Step>,
    pub under_way: Option<Operation>,
    pub alarm: Alarm,
}

/// A namespace that may be left.
pub(super) struct Candidate {
    /// Number of its last acknowledged step; with several MDTs, of those that are left.
    pub step: usize,
    /// With the operation in progress.
    pub more: bool,
    pub model: Model,
}

/// The part of one client.
pub struct Names {
    ledger: Arc<Mutex<Ledger>>,
    generator: Arc<Generator>,
    random: Arc<Random>,
    /// Files stay open in it from round to round.
    native: Mutex<Option<Native>>,
}

fn is_of_names(operation: &Operation) -> bool {
    match operation.subject() {
        Subject::Entries | Subject::Mode => true,
        Subject::Xattrs => !matches!(operation, Operation::GetXattr { .. }),
        Subject::Looks => matches!(operation, Operation::Move { .. }),
        Subject::Data => false,
    }
}

impl Names {
    /// The part of this cluster's first client.
    pub fn new(cluster: &Cluster) -> Self {
        let seed = cluster.seed();
        let shape = Shape { prefix: PREFIX.to_owned(), ..Shape::default() };
        let first = Step { model: Model::new(), acknowledged: cluster.simulation().now(), change: None };
        Self {
            ledger: Arc::new(Mutex::new(Ledger { steps: vec![first], under_way: None, alarm: Alarm::default() })),
            generator: Arc::new(Generator::new(seed, shape)),
            random: Arc::new(Random::for_purpose(seed, "names")),
            native: Mutex::new(None),
        }
    }

    /// The client's file system, with what is open in it; a new one if the client was mounted
    /// again.
    fn native(&self, cluster: &Cluster) -> Native {
        let (file_system, _) = cluster.file_system(NAMES_CLIENT).expect("clients are mounted between rounds");
        let mut native = self.native.lock();
        if native.as_ref().is_none_or(|native| !Arc::ptr_eq(native.file_system(), &file_system)) {
            let random = Random::for_purpose(cluster.seed(), &format!("names {:?}", cluster.simulation().now()));
            *native = Some(Native::new(file_system, random).over_mdts(cluster.places()));
        }
        native.clone().expect("just set")
    }

    /// Makes the directory.
    pub async fn prepare(&self, cluster: &Cluster) -> Verdict {
        let native = self.native(cluster);
        let make = Operation::MakeDirectory { path: PREFIX.to_owned(), mode: 0o755 };
        let outcome = self.ledger.lock().steps[0].model.apply(&make);
        let prepared = cluster.on_client(NAMES_CLIENT, async move { (native.apply(&make).await, sync(&native).await) });
        match prepared.await {
            Some((made, Ok(()))) if made == outcome => Ok(()),
            other => Err(format!("the directory of names cannot be made: {other:?}")),
        }
    }

    /// Begins to work, until the power goes.
    pub fn work(&self, cluster: &Cluster, blackout: &Blackout) -> BoxFuture<'static, Option<Verdict>> {
        let worker = Worker {
            native: self.native(cluster),
            ledger: self.ledger.clone(),
            generator: self.generator.clone(),
            random: self.random.clone(),
            has_several_mdts: cluster.options().mdts > 1,
            blackout: blackout.clone(),
            log: cluster.log().clone(),
            simulation: cluster.simulation().clone(),
        };
        Box::pin(cluster.begin_on_client(NAMES_CLIENT, async move { worker.run().await }))
    }

    /// Looks at what is left, and continues from there.
    pub async fn judge(&self, cluster: &Cluster, loss: &Loss) -> Verdict {
        let native = self.native(cluster);
        let (several, looking) = (cluster.options().mdts > 1, native.clone());
        let look = async move {
            // A host without power closes no connection. Until its client notices, with the next
            // request, it serves what it has cached, lost changes included.
            looking.file_system().statfs().await?;
            if several {
                names_over_mdts::settle(&looking).await;
            }
            FsResult::Ok(dump_file_system(&looking).await)
        };
        let seen = cluster.on_client(NAMES_CLIENT, look).await.ok_or("the client died while it looked")?;
        let seen = seen.map_err(|error| format!("names: the client cannot connect again: {error}"))?;
        let mut ledger = self.ledger.lock();
        let mut candidates = match several {
            true => names_over_mdts::candidates(&ledger, loss, loss.danger_max)?,
            false => candidates(&ledger, loss, loss.danger_max),
        };
        let found = candidates.iter_mut().rposition(|candidate| dump_model(&mut candidate.model) == seen);
        let Some(found) = found else {
            let count = candidates.len();
            let mut compared = |candidate: usize| difference(&dump_model(&mut candidates[candidate].model), &seen);
            let (first, last) = (compared(0), compared(count - 1));
            return Err(format!(
                "names are as after none of the {count} steps possible; compared with the first: {first}; with the last: {last}; \
                 under way: {:?}",
                ledger.under_way
            ));
        };
        let Candidate { step, more, model } = candidates.swap_remove(found);
        let last = ledger.steps.len() - 1;
        cluster.log().event("names", format_args!("as after step {step} of {last}, the one under way: {more}"));
        if loss.clients {
            ledger.alarm = Alarm::default();
        } else if !several {
            ledger.alarm.lost(Lost { at_mdt: step < last, at_ost: false, perhaps: loss.hit_names() });
        }
        (ledger.steps, ledger.under_way) =
            (vec![Step { model, acknowledged: cluster.simulation().now(), change: None }], None);
        Ok(())
    }

    /// Closes everything.
    pub async fn close(&self, cluster: &Cluster) -> Verdict {
        let native = self.native(cluster);
        let closed = cluster.on_client(NAMES_CLIENT, async move { native.close_all().await }).await;
        closed.ok_or("the client died while it closed files")?.map_err(|error| format!("close: {error}"))
    }
}

/// Namespaces that may be left.
fn candidates(ledger: &Ledger, loss: &Loss, bound: Duration) -> Vec<Candidate> {
    let last = ledger.steps.len() - 1;
    let first = match loss.hit_names() {
        // What was acknowledged longer ago than the commit interval is durable.
        true => ledger.steps.iter().rposition(|step| loss.at.since(step.acknowledged) > bound).unwrap_or(0),
        false => last,
    };
    let mut candidates = Vec::new();
    for (step, Step { model, .. }) in ledger.steps.iter().enumerate().skip(first) {
        if let Some(under_way) = &ledger.under_way {
            let mut model = model.clone();
            model.apply(under_way);
            candidates.push(Candidate { step, more: true, model });
        }
        candidates.push(Candidate { step, more: false, model: model.clone() });
    }
    candidates
}

struct Worker {
    native: Native,
    ledger: Arc<Mutex<Ledger>>,
    generator: Arc<Generator>,
    random: Arc<Random>,
    has_several_mdts: bool,
    blackout: Blackout,
    log: EventLog,
    simulation: crate::Simulation,
}

impl Worker {
    async fn run(self) -> Verdict {
        while !self.blackout.happened() {
            if self.random.below(SYNC_ONE_IN) == 0 {
                self.sync().await?;
            } else {
                self.change().await?;
            }
            if self.random.below(4) == 0 {
                self.simulation.sleep(Duration::from_nanos(self.random.below(PAUSE.as_nanos() as u64))).await;
            }
        }
        Ok(())
    }

    async fn sync(&self) -> Verdict {
        let acknowledged = self.ledger.lock().steps.len();
        let outcome = match self.has_several_mdts {
            true => self.native.file_system().sync_all().await,
            false => sync(&self.native).await,
        };
        self.log.event(&client_host(NAMES_CLIENT), format_args!("sync of names -> {outcome:?}"));
        let mut ledger = self.ledger.lock();
        let vouched = match self.has_several_mdts {
            // Which of the others have lost something is not told apart.
            true => Ok(outcome.is_ok()),
            false => ledger.alarm.judge(&outcome, self.blackout.happened()),
        };
        if vouched.map_err(|reason| format!("names: {reason}"))? {
            ledger.steps.drain(..acknowledged - 1);
            // Its model has its change, which is as durable.
            ledger.steps[0].change = None;
        }
        Ok(())
    }

    async fn change(&self) -> Verdict {
        let operation = loop {
            let operation = self.generator.operation();
            if is_of_names(&operation) {
                break operation;
            }
        };
        self.ledger.lock().under_way = Some(operation.clone());
        let change = match self.has_several_mdts {
            true => Some((operation.clone(), names_over_mdts::decides(&self.native, &operation).await)),
            false => None,
        };
        let actual = self.native.apply(&operation).await;
        self.log.event(&client_host(NAMES_CLIENT), format_args!("{operation:?} -> {}", summary(&actual)));
        if self.blackout.happened() {
            return Ok(());
        }
        let mut ledger = self.ledger.lock();
        let mut model = ledger.steps.last().expect("there is always a first step").model.clone();
        let expected = model.apply(&operation);
        ledger.under_way = None;
        ledger.steps.push(Step { model, acknowledged: self.simulation.now(), change });
        if expected == actual {
            Ok(())
        } else {
            Err(format!("{operation:?}\n  model: {expected:?}\n  file system: {actual:?}"))
        }
    }
}

/// fsync of the directory: all changes of names before it are durable.
async fn sync(native: &Native) -> FsResult<()> {
    let (file_system, found) = (native.file_system(), native.resolve(PREFIX).await?);
    let directory = file_system.open(&Credentials::root(), found.inode, OpenFlags(open_flag::READ)).await?;
    let synced = file_system.fsync(&directory, false).await;
    file_system.close(directory, None).await?;
    synced
}

/// A namespace as text, by path.
type Dump = BTreeMap<String, String>;

/// What is told of each path.
fn questions(path: &str) -> Vec<Operation> {
    let path = || path.to_owned();
    let xattr = |number: u64| Operation::GetXattr { path: path(), name: format!("user.x{number}") };
    vec![Operation::Stat { path: path() }, Operation::ReadLink { path: path() }, xattr(0), xattr(1), xattr(2)]
}

fn dump_model(model: &mut Model) -> Dump {
    let paths = model.paths();
    let answers = |model: &mut Model, path: &str| {
        let outcomes: Vec<Outcome> = questions(path).iter().map(|question| model.apply(question)).collect();
        format!("{outcomes:?}")
    };
    paths
        .into_iter()
        .filter(|path| path.starts_with(PREFIX))
        .map(|path| (path.clone(), answers(model, &path)))
        .collect()
}

async fn dump_file_system(native: &Native) -> Dump {
    let mut dump = Dump::new();
    let mut pending = vec![PREFIX.to_owned()];
    while let Some(path) = pending.pop() {
        let mut outcomes = Vec::new();
        for question in questions(&path) {
            outcomes.push(native.apply(&question).await);
        }
        if let Outcome::Names(names) = native.apply(&Operation::List { path: path.clone() }).await {
            pending.extend(names.into_iter().map(|name| format!("{path}/{name}")));
        }
        dump.insert(path, format!("{outcomes:?}"));
    }
    dump
}

/// The paths on which two namespaces differ.
fn difference(expected: &Dump, seen: &Dump) -> String {
    let paths: BTreeSet<_> = expected.keys().chain(seen.keys()).collect();
    let different = paths.into_iter().filter(|path| expected.get(*path) != seen.get(*path));
    let mut described =
        different.map(|path| format!("{path}: expected {:?}, found {:?}", expected.get(path), seen.get(path)));
    let Some(first) = described.next() else { return "no difference".to_owned() };
    described.fold(first, |list, one| format!("{list}; {one}"))
}
