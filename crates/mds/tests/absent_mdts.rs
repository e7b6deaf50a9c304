//! What operations with parts at several MDTs do when one of these, or the client, goes away: each
//! of these was once a hole of the protocol of decision 0049.

use std::{sync::Arc, time::Duration};

use mds::Parameters;
use parking_lot::Mutex;
use rpc::{
    Import, ImportOptions, Question, Recovery,
    message::{
        ClientReply, ClientRequest, MdtReply, MdtRequest,
        lock::{CacheMode, Enqueue, InodeBits, Resource, inode_bit},
        mdt::{Lookup, Reclaim, SizeUpdate, SwapLayouts, SwapSide},
        session::feature,
    },
};
use rt::BoxFuture;
use tokio::{sync::watch, time::timeout};
use types::{FsError, FsResult, InodeNumber, LockHandle, MdtIndex, NodeKind};

use super::common::{
    ROOT, root,
    several::{Cluster, ComesBack, Node, call, import_options, make_directory, remove, second_endpoint},
};

/// After so long a test has failed.
const LONG: Duration = Duration::from_secs(30);
/// Longer than anything takes that does not wait for another MDT.
const MOMENT: Duration = Duration::from_millis(300);

pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.unwrap_or_else(|_| panic!("it takes too long: {what}"))
}

/// A client that gives no lock back before the test does.
#[derive(Default)]
pub struct Keeps {
    asked: watch::Sender<bool>,
    locks: Mutex<Vec<LockHandle>>,
}

impl Keeps {
    /// A client of an MDT that has the lock on the attributes of an inode there.
    pub async fn attributes_of(node: &Node, inode: InodeNumber) -> (Arc<Self>, Import) {
        Self::parts_of((node, 20), inode, inode_bit::ATTRIBUTES).await
    }

    /// The same with the lock on other parts, of a client with this number.
    pub async fn parts_of((node, client): (&Node, u64), inode: InodeNumber, bits: u32) -> (Arc<Self>, Import) {
        let keeps = Arc::new(Self::default());
        let holder = node.connect_with(client, import_options(), keeps.clone());
        let resource = Resource::Inode(inode, InodeBits(bits));
        let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
        let stat = Question { wanted, ..Question::from(MdtRequest::GetAttributes(inode)) };
        let answered = holder.call(stat).await.unwrap();
        keeps.locks.lock().extend(answered.extension.granted.iter().map(|granted| granted.handle));
        assert_eq!(keeps.locks.lock().len(), 1);
        (keeps, holder)
    }

    /// It was asked for its lock.
    pub async fn is_asked(&self) {
        let mut asked = self.asked.subscribe();
        in_time("the lock is asked back", asked.wait_for(|asked| *asked)).await.unwrap();
    }

    /// Whether it was asked for its lock.
    pub fn was_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// It gives its lock back.
    pub async fn give_back(&self, holder: &Import) {
        let handles = self.locks.lock().clone();
        in_time("the lock comes back", call(holder, MdtRequest::CancelLocks(handles))).await.unwrap();
    }
}

impl Recovery for Keeps {
    fn recover(&self, import: &Import, _: bool) -> BoxFuture<'_, FsResult<()>> {
        let import = import.clone();
        let done = MdtRequest::Reclaim(Reclaim { done: true, ..Reclaim::default() });
        Box::pin(async move { import.call(done).await.map(drop) })
    }

    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        if matches!(request, ClientRequest::Blocking(_)) {
            self.asked.send_replace(true);
        }
        Box::pin(std::future::ready(Ok(ClientReply::Done)))
    }
}

/// The Prepare of a removal waits at MDT 1 for a cache lock, and the client of the removal leaves:
/// the Abort must not overtake the Prepare, whose promise would stay.
#[tokio::test]
async fn nothing_stays_prepared_for_a_client_that_left_while_it_waited() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    cluster.at_rest().await;
    let (keeps, holder) = Keeps::attributes_of(one, remote).await;
    let import = zero.import.clone();
    let removal = tokio::spawn(async move { call(&import, remove(ROOT, "remote", true)).await });
    keeps.is_asked().await;
    // The client connects again: its request ends, and comes again.
    zero.import.set_address(second_endpoint(MdtIndex(0)));
    in_time("the client is back", call(&zero.import, MdtRequest::Ping)).await.unwrap();
    keeps.give_back(&holder).await;
    assert_eq!(in_time("the removal ends", removal).await.unwrap(), Ok(MdtReply::Done));
    assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
    assert_eq!(one.stat(remote).await, Err(FsError::Stale));
}

/// MDT 0 has decided, not durably, when MDT 1 starts again and asks what was decided; then MDT 0
/// loses power. MDT 1 must not wait for a decision that does not exist any more.
#[tokio::test]
async fn a_restarted_mdt_does_not_wait_for_decisions_that_a_power_loss_took() {
    let mut cluster = Cluster::new(2).await;
    let remote = cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    cluster.at_rest().await;
    cluster.0[0].gate.close_flushes();
    cluster.0[0].remove(ROOT, "remote", true).await.unwrap();
    cluster.restart(&[1]).await;
    // It asks; the answer waits until the decision is durable, or else has no promise to keep.
    tokio::time::sleep(MOMENT).await;
    cluster.0[0].lose_power().await;
    cluster.start(&[0]).await;
    let names = in_time("both are at rest", cluster.at_rest()).await;
    assert_eq!(names.iter().map(|found| found.inode).collect::<Vec<_>>(), [remote], "the removal is lost, as a whole");
    let one = &cluster.0[1];
    assert_eq!(in_time("it is served", one.stat(remote)).await.unwrap().attributes.links, 2);
    let missing = InodeNumber(remote.0 + 1000);
    assert_eq!(in_time("what does not exist is known not to", one.stat(missing)).await, Err(FsError::Stale));
}

/// More requests than a client may have in flight wait for an MDT that is down. The client reaches
/// the other MDT, and none of the requests is lost.
#[tokio::test]
async fn waits_for_an_absent_mdt_keep_no_client_from_the_others() {
    const WAITING: u16 = 200;
    let mut cluster = Cluster::new(2).await;
    for number in 0..WAITING {
        cluster.0[0].make_directory(ROOT, &format!("gone{number}"), 1).await.unwrap();
    }
    let there = cluster.0[0].make_directory(ROOT, "there", 1).await.unwrap();
    cluster.at_rest().await;
    cluster.0[1].crash().await;
    let import = cluster.0[0].import.clone();
    assert!(import.max_rpcs_in_flight() < WAITING, "{}", import.max_rpcs_in_flight());
    let removals: Vec<_> = (0..WAITING)
        .map(|number| {
            let import = import.clone();
            tokio::spawn(async move { call(&import, remove(ROOT, &format!("gone{number}"), true)).await })
        })
        .collect();
    for round in 0..20 {
        tokio::time::sleep(MOMENT / 20).await;
        let stat = timeout(MOMENT * 10, cluster.0[0].stat(ROOT)).await;
        assert_eq!(stat.expect("it is served").unwrap().attributes.links, 3 + u32::from(WAITING), "{round}");
    }
    assert!(removals.iter().all(|removal| !removal.is_finished()));
    cluster.start(&[1]).await;
    for removal in removals {
        assert_eq!(in_time("the removals end", removal).await.unwrap(), Ok(MdtReply::Done));
    }
    let names = in_time("all ends", cluster.at_rest()).await;
    assert_eq!(names.iter().map(|found| found.inode).collect::<Vec<_>>(), [there]);
}

/// The same at the other side: what an absent coordinator has in doubt.
#[tokio::test]
async fn waits_for_what_is_in_doubt_keep_no_client_from_the_rest() {
    let mut cluster = Cluster::new(2).await;
    let remote = cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    let other = cluster.0[0].make_directory(ROOT, "other", 1).await.unwrap();
    cluster.at_rest().await;
    // It is promised, and not decided: nothing that MDT 0 writes gets through.
    cluster.0[0].gate.close();
    let import = cluster.0[0].import.clone();
    let removal = tokio::spawn(async move { call(&import, remove(ROOT, "remote", true)).await });
    in_time("it is promised", async { while timeout(MOMENT, cluster.0[1].stat(remote)).await.is_ok() {} }).await;
    cluster.0[0].crash().await;
    let import = cluster.0[1].import.clone();
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let import = import.clone();
            tokio::spawn(async move { call(&import, MdtRequest::GetAttributes(remote)).await })
        })
        .collect();
    for round in 0..20 {
        tokio::time::sleep(MOMENT / 20).await;
        let stat = timeout(MOMENT * 10, cluster.0[1].stat(other)).await;
        assert_eq!(stat.expect("it is served").unwrap().attributes.links, 2, "{round}");
    }
    assert!(waiting.iter().all(|stat| !stat.is_finished()));
    cluster.0[0].gate.open();
    cluster.start(&[0]).await;
    assert_eq!(in_time("the removal ends", removal).await.unwrap(), Ok(MdtReply::Done));
    for stat in waiting {
        let stat = in_time("waiting requests are answered", stat).await.unwrap();
        assert!(matches!(stat, Ok(MdtReply::Entry(_)) | Err(FsError::Stale)), "{stat:?}");
    }
    assert_eq!(in_time("all ends", cluster.at_rest()).await.len(), 1);
}

#[tokio::test]
async fn an_mdt_that_is_silent_for_too_long_is_unreachable() {
    let mut cluster = Cluster::with_timeout(2, MOMENT).await;
    cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    cluster.at_rest().await;
    cluster.0[1].crash().await;
    let removal = in_time("it fails", cluster.0[0].remove(ROOT, "remote", true)).await;
    assert!(matches!(&removal, Err(FsError::Unreachable { target, .. }) if target.contains("MDT0001")), "{removal:?}");
    cluster.start(&[1]).await;
    in_time("it is back", async { while cluster.0[0].remove(ROOT, "remote", true).await.is_err() {} }).await;
    assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
}

/// 0: it is waited for as long as it takes. What counts is the value at the moment, also for
/// requests that wait already.
#[tokio::test]
async fn the_silence_that_is_waited_for_changes_while_requests_wait() {
    let mut cluster = Cluster::with_timeout(2, MOMENT).await;
    cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    cluster.at_rest().await;
    let mdt = cluster.0[0].mdt.clone();
    let wait_for = |silence| mdt.set_parameters(Parameters { mdt_silence: silence, ..mdt.parameters() });
    let begin = |cluster: &Cluster| {
        let import = cluster.0[0].import.clone();
        tokio::spawn(async move { call(&import, remove(ROOT, "remote", true)).await })
    };
    wait_for(Duration::ZERO);
    cluster.0[1].crash().await;
    let patient = begin(&cluster);
    // Others end after a third of this.
    tokio::time::sleep(MOMENT * 3).await;
    assert!(!patient.is_finished(), "it waits");
    wait_for(MOMENT);
    let failed = in_time("it fails", patient).await.unwrap();
    assert!(matches!(&failed, Err(FsError::Unreachable { target, .. }) if target.contains("MDT0001")), "{failed:?}");
    wait_for(Duration::ZERO);
    let patient = begin(&cluster);
    tokio::time::sleep(MOMENT).await;
    assert!(!patient.is_finished(), "it waits");
    cluster.start(&[1]).await;
    assert_eq!(in_time("it is done", patient).await.unwrap(), Ok(MdtReply::Done));
    assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
}

/// Clients of release 0.1.0 know one MDT.
#[tokio::test]
async fn clients_that_do_not_know_of_several_mdts_are_told_what_they_can_read() {
    let mut cluster = Cluster::new(2).await;
    let remote = cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    cluster.0[0].create(ROOT, "local", NodeKind::Directory).await.unwrap();
    cluster.at_rest().await;
    let features = feature::ALL & !feature::SEVERAL_MDTS;
    let connect = |node: usize| {
        let options = ImportOptions { features, ..import_options() };
        cluster.0[node].connect_with(21 + node as u64, options, Arc::new(ComesBack))
    };
    let [old, old_at_one] = [connect(0), connect(1)];
    let lookup = |name: &str| MdtRequest::Lookup(root(), Lookup { parent: ROOT, name: name.into() });
    let ask = async |request| old.call(request).await.map(|answered| answered.reply);
    assert_eq!(ask(lookup("remote")).await, Err(FsError::NotSupported));
    assert!(matches!(ask(lookup("local")).await, Ok(MdtReply::Entry(_))));
    // It waits for an answer, as it always did.
    cluster.0[1].crash().await;
    let removal = tokio::spawn(async move { old.call(remove(ROOT, "remote", true)).await });
    tokio::time::sleep(MOMENT).await;
    assert!(!removal.is_finished());
    cluster.start(&[1]).await;
    assert!(in_time("it is answered", removal).await.unwrap().is_ok());
    let stat = MdtRequest::GetAttributes(remote);
    assert_eq!(in_time("it is gone", old_at_one.call(stat)).await.map(drop), Err(FsError::Stale));
}

#[tokio::test]
async fn files_of_different_mdts_do_not_swap_their_data() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    let here = zero.create(ROOT, "file", NodeKind::Fifo).await.unwrap();
    let there = one.create(remote, "file", NodeKind::Fifo).await.unwrap();
    let known = SizeUpdate { epoch: 0, size: 0, blocks: 0, mtime: None, changes: 0 };
    let side = |inode| SwapSide { inode, open: None, known };
    let swap = SwapLayouts { first: side(here), second: side(there) };
    assert_eq!(zero.call(MdtRequest::SwapLayouts(root(), swap)).await, Err(FsError::CrossDevice));
}

/// What happens to MDTs or to the client in the middle of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Dies(&'static [usize]),
    LosesPower(&'static [usize]),
    /// The client connects again.
    Leaves,
}

pub const FAULTS: [Fault; 7] = [
    Fault::Dies(&[0]),
    Fault::Dies(&[1]),
    Fault::Dies(&[0, 1]),
    Fault::LosesPower(&[0]),
    Fault::LosesPower(&[1]),
    Fault::LosesPower(&[0, 1]),
    Fault::Leaves,
];

/// An operation, with the names before and after.
struct Operation {
    request: MdtRequest,
    before: &'static [&'static str],
    after: &'static [&'static str],
}

/// `asked`: the MDT whose client leaves.
pub async fn happen(cluster: &mut Cluster, fault: Fault, asked: usize) {
    let nodes = match fault {
        Fault::Dies(nodes) | Fault::LosesPower(nodes) => nodes,
        Fault::Leaves => &[],
    };
    for node in nodes {
        match fault {
            Fault::LosesPower(_) => cluster.0[*node].lose_power().await,
            _ => cluster.0[*node].crash().await,
        }
    }
    cluster.1.go_on();
    if let Fault::Leaves = fault {
        cluster.0[asked].import.set_address(second_endpoint(MdtIndex(asked as u16)));
    }
    cluster.start(nodes).await;
}

/// The fault happens after so many steps of the MDTs while this is done at one of them. Returns
/// what came of it, and whether it was over by then.
pub async fn interrupt<T: Send + 'static>(
    (what, cluster): (&str, &mut Cluster),
    (fault, at): (Fault, usize),
    steps: usize,
    work: impl Future<Output = T> + Send + 'static,
) -> (T, bool) {
    cluster.1.allow(steps);
    let working = tokio::spawn(work);
    // Some tasks always have something to do: they look for OSTs that are not there.
    in_time(what, cluster.1.used_up()).await;
    let pending = cluster.0.iter().map(|node| node.mdt.pending_of_several()).sum::<usize>();
    let is_over = working.is_finished() && pending == 0;
    happen(cluster, fault, at).await;
    (in_time(what, working).await.unwrap(), is_over)
}

/// The fault happens after so many steps of the MDTs; false if the operation was over by then.
async fn after_steps(operation: &Operation, fault: Fault, steps: usize) -> bool {
    let case = format!("{:?}, {fault:?} after {steps} steps", operation.request);
    let mut cluster = Cluster::new(2).await;
    for name in operation.before {
        cluster.0[0].make_directory(ROOT, name, 1).await.unwrap();
    }
    cluster.at_rest().await;
    let (import, request) = (cluster.0[0].import.clone(), operation.request.clone());
    let asked = async move { call(&import, request).await };
    let (answered, is_over) = interrupt((&case, &mut cluster), (fault, 0), steps, asked).await;
    assert!(answered.is_ok(), "{case}: {answered:?}");
    let found: Vec<_> = in_time(&case, cluster.at_rest()).await;
    let names: Vec<&str> = found.iter().map(|found| std::str::from_utf8(&found.name).unwrap()).collect();
    let is_undone = matches!(fault, Fault::LosesPower(nodes) if nodes.contains(&0)) && names == operation.before;
    assert!(names == operation.after || is_undone, "{case}: {names:?}");
    assert_eq!(cluster.0[0].stat(ROOT).await.unwrap().attributes.links as usize, 2 + names.len(), "{case}");
    for found in &found {
        let stat = in_time(&case, cluster.0[1].stat(found.inode)).await;
        assert_eq!(stat.unwrap().attributes.links, 2, "{case}");
        // Nothing of it is prepared any more.
        let name = std::str::from_utf8(&found.name).unwrap();
        in_time(&case, cluster.0[0].remove(ROOT, name, true)).await.unwrap();
    }
    assert_eq!(in_time(&case, cluster.at_rest()).await, [], "{case}");
    cluster.end().await;
    !is_over
}

async fn after_each_step(operation: Operation) {
    for fault in FAULTS {
        let mut steps = 0;
        while after_steps(&operation, fault, steps).await {
            steps += 1;
        }
        assert!(steps > 10, "{:?} takes some steps, not {steps}", operation.request);
        println!("{:?}, {fault:?}: {steps} steps", operation.request.row().name);
    }
}

#[tokio::test]
async fn a_directory_is_made_whatever_happens_at_each_step() {
    after_each_step(Operation { request: make_directory(ROOT, "new", 1), before: &[], after: &["new"] }).await;
}

#[tokio::test]
async fn a_directory_is_removed_whatever_happens_at_each_step() {
    after_each_step(Operation { request: remove(ROOT, "old", true), before: &["old"], after: &[] }).await;
}

#[tokio::test]
async fn a_directory_is_renamed_whatever_happens_at_each_step() {
    let request = super::remote_directories::rename_in_root("old", "new");
    after_each_step(Operation { request, before: &["old"], after: &["new"] }).await;
}
