//! The management service as a target: executes requests, stores the map, and informs clients that
//! wait for it.
//!
//! Invariants: a map is shown only once it is durable, so a version that a client has seen never
//! stands for another map; decisions are sequential, under a mutex that is never held across an
//! await.
//!
//! Life cycle: [`Mgs::open`] on an open store, creating the file system's record in an empty one;
//! [`Mgs::close`]. The targets' reports of their space are volatile.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kv::{Batch, Lsn, Store};
use parking_lot::Mutex;
use rpc::{
    Answer, Call, Clients, Handler, SessionEvent,
    message::{
        MgsReply, MgsRequest, Reply, Request,
        mgs::{ClusterMap, Register, TargetRole},
        ost::TargetCondition,
    },
};
use rt::{BoxFuture, Clock, Instant, Seams};
use tokio::sync::{Notify, watch};
use types::{ClientId, FsError, FsResult, ProtocolError, Refusal, Slot, SpaceUsage, Xid};

use crate::{TARGET_NAME, cluster::Cluster, holders::Holders, tables};

/// Longest time a request for the map waits for another version.
const POLL_TIME: Duration = Duration::from_secs(1);

/// Service of requests that may wait for another map.
const SERVICE_MAP: &str = "mgs_map";

/// What a target last said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetReport {
    /// When, by the MGS's clock.
    pub seen: Instant,
    /// Space.
    pub space: SpaceUsage,
    /// Condition.
    pub condition: TargetCondition,
}

/// The newest map, and the batch that stores it; `None` if it was durable when the store was
/// opened.
struct Decided {
    cluster: Cluster,
    lsn: Option<Lsn>,
}

/// The management service.
pub struct Mgs {
    clock: Arc<dyn Clock>,
    store: Store,
    decided: Mutex<Decided>,
    reports: Mutex<BTreeMap<TargetRole, TargetReport>>,
    holders: Mutex<Holders>,
    published: watch::Sender<Arc<ClusterMap>>,
    /// Clients with sessions that have waited for another map: told when their sessions end.
    waiting: Mutex<BTreeMap<ClientId, Arc<Notify>>>,
    /// Those of the server that serves this service: to it, requests that wait give their threads
    /// back.
    clients: Mutex<Option<Arc<dyn Clients>>>,
}

impl Mgs {
    /// Serves the file system in `store`, creating it there if the store is empty. Another file
    /// system's store is refused.
    pub async fn open(seams: &Seams, store: Store, fsname: &str) -> FsResult<Arc<Mgs>> {
        let cluster = match load(&store)? {
            Some(cluster) if cluster.map().fsname == fsname => cluster,
            Some(cluster) => {
                let (formatted, requested) = (cluster.map().fsname.clone(), fsname.to_owned());
                return Err(Refusal::OtherStore { formatted, requested }.into());
            }
            None => {
                let (cluster, batch) = Cluster::create(fsname)?;
                let lsn = store.apply(batch).map_err(store_error)?;
                store.durable(lsn).await.map_err(store_error)?;
                cluster
            }
        };
        let (published, _) = watch::channel(Arc::new(cluster.map().clone()));
        let decided = Mutex::new(Decided { cluster, lsn: None });
        Ok(Arc::new(Mgs {
            clock: seams.clock.clone(),
            store,
            decided,
            reports: Mutex::default(),
            holders: Mutex::default(),
            published,
            waiting: Mutex::default(),
            clients: Mutex::default(),
        }))
    }

    /// The map as all clients see it.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.published.borrow().clone()
    }

    /// Follows the map without a connection, within the process of the MGS.
    pub fn subscribe(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.published.subscribe()
    }

    /// What targets last said of themselves, since this start of the MGS.
    pub fn reports(&self) -> BTreeMap<TargetRole, TargetReport> {
        self.reports.lock().clone()
    }

    /// Closes the store. Later changes fail; the map can still be read.
    pub async fn close(&self) -> FsResult<()> {
        self.store.close().await.map_err(store_error)
    }

    /// Executes a request of a client, which is a process.
    pub async fn execute(&self, client: ClientId, request: MgsRequest) -> FsResult<MgsReply> {
        match request {
            MgsRequest::Register(report) => {
                self.change(|cluster| self.register(cluster, client, &report)).await?;
                self.note(&report);
                Ok(MgsReply::Map(ClusterMap::clone(&self.map())))
            }
            MgsRequest::GetMap(known) => Ok(MgsReply::Map(self.map_other_than(client, known).await)),
            MgsRequest::SetParameter(pattern, value) => {
                self.change(|cluster| cluster.set_parameter(&pattern, &value)).await
            }
            MgsRequest::SetState(role, state) => self.change(|cluster| cluster.set_state(role, state)).await,
            MgsRequest::Ping | MgsRequest::Disconnect => Ok(MgsReply::Done),
            MgsRequest::PoolNew(name) => self.change(|cluster| cluster.new_pool(&name)).await,
            MgsRequest::PoolAdd(name, osts) => self.change(|cluster| cluster.add_to_pool(&name, &osts)).await,
            MgsRequest::PoolRemove(name, osts) => self.change(|cluster| cluster.remove_from_pool(&name, &osts)).await,
            MgsRequest::PoolDestroy(name) => self.change(|cluster| cluster.destroy_pool(&name)).await,
        }
    }

    fn register(&self, cluster: &mut Cluster, process: ClientId, report: &Register) -> FsResult<Option<Batch>> {
        let (now, mut holders) = (self.clock.now(), self.holders.lock());
        holders.check(now, process, report)?;
        let batch = cluster.register(report)?;
        holders.note(now, process, report);
        Ok(batch)
    }

    async fn map_other_than(&self, client: ClientId, known: u64) -> ClusterMap {
        let mut maps = self.published.subscribe();
        let waiting = Arc::clone(self.waiting.lock().entry(client).or_default());
        let leaves = waiting.notified();
        let changed = async {
            tokio::select! {
                biased;
                _ = maps.wait_for(|map| map.version != known) => {}
                () = leaves => {}
            }
        };
        let clients = self.clients.lock().clone();
        let _parked = clients.and_then(|clients| clients.park(SERVICE_MAP));
        rt::clock::timeout_at(&*self.clock, self.clock.now() + POLL_TIME, changed).await;
        ClusterMap::clone(&self.map())
    }

    /// Decides, stores, and shows the map that results once it is durable. The answer to a request
    /// that changes nothing waits as well: what it finds may not be durable yet.
    async fn change(&self, decide: impl FnOnce(&mut Cluster) -> FsResult<Option<Batch>>) -> FsResult<MgsReply> {
        let (lsn, map) = self.decide(decide)?;
        if let Some(lsn) = lsn {
            self.store.durable(lsn).await.map_err(store_error)?;
        }
        self.published.send_if_modified(|published| {
            let newer = map.version > published.version;
            if newer {
                *published = Arc::new(map);
            }
            newer
        });
        Ok(MgsReply::Done)
    }

    /// The decision takes effect only if the store accepts it.
    fn decide(
        &self,
        decide: impl FnOnce(&mut Cluster) -> FsResult<Option<Batch>>,
    ) -> FsResult<(Option<Lsn>, ClusterMap)> {
        let mut decided = self.decided.lock();
        let mut next = decided.cluster.clone();
        if let Some(batch) = decide(&mut next)? {
            let lsn = self.store.apply(batch).map_err(store_error)?;
            *decided = Decided { cluster: next, lsn: Some(lsn) };
        }
        Ok((decided.lsn, decided.cluster.map().clone()))
    }

    /// The client of a session that ends waits for no map any more.
    fn stop_waiting(&self, event: SessionEvent) {
        if let SessionEvent::Closed(client) | SessionEvent::Evicted(client) = event
            && let Some(waiting) = self.waiting.lock().remove(&client)
        {
            waiting.notify_waiters();
        }
    }

    fn note(&self, report: &Register) {
        let note = TargetReport { seen: self.clock.now(), space: report.space, condition: report.condition };
        self.reports.lock().insert(report.role, note);
    }
}

impl Handler for Mgs {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            let reply = match call.request {
                Request::Mgs(request) => self.execute(call.client, request).await,
                _ => Err(ProtocolError::misdirected(TARGET_NAME, "requests to the management service").into()),
            };
            Answer::new(reply.map(Reply::Mgs))
        })
    }

    fn halt(&self) {
        self.store.halt();
    }

    /// Requests that wait for another map hold no service thread meanwhile. They have a service of
    /// their own, so that its times are not taken for those of other requests.
    fn service(&self, request: &Request) -> &'static str {
        match request {
            Request::Mgs(MgsRequest::GetMap(_)) => SERVICE_MAP,
            Request::Mgs(
                MgsRequest::Register(_)
                | MgsRequest::SetParameter(..)
                | MgsRequest::SetState(..)
                | MgsRequest::Ping
                | MgsRequest::PoolNew(_)
                | MgsRequest::PoolAdd(..)
                | MgsRequest::PoolRemove(..)
                | MgsRequest::PoolDestroy(_)
                | MgsRequest::Disconnect,
            ) => "mgs",
            // Refused at once.
            Request::Mdt(_) | Request::Ost(_) => "mgs",
        }
    }

    fn served(&self, clients: Arc<dyn Clients>) {
        *self.clients.lock() = Some(clients);
    }

    /// Every request can be executed again.
    fn persistent_reply(&self, _client: ClientId, _slot: Slot) -> Option<(Xid, Reply)> {
        None
    }

    /// A session ends when its requests have, and its client waits for that.
    fn session_ending(&self, event: SessionEvent) {
        self.stop_waiting(event);
    }

    /// No request of the session executes any more. One that began while it ended may have waited.
    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()> {
        self.stop_waiting(event);
        Box::pin(std::future::ready(()))
    }
}

/// The file system as stored; `None` in an empty store.
fn load(store: &Store) -> FsResult<Option<Cluster>> {
    let Some(record) = store.get(tables::CLUSTER, &[]).map_err(store_error)? else { return Ok(None) };
    let record = tables::decode_cluster(&record)?;
    let targets = scan(store, tables::TARGETS, tables::decode_target)?;
    let parameters = scan(store, tables::PARAMETERS, tables::decode_parameter)?;
    let pools = scan(store, tables::POOLS, tables::decode_pool)?;
    Ok(Some(Cluster::load(record, targets, parameters, pools)))
}

fn scan<T>(store: &Store, table: kv::Table, decode: impl Fn(&[u8], &[u8]) -> FsResult<T>) -> FsResult<Vec<T>> {
    let mut decoded = Ok(Vec::new());
    store
        .scan(table, &[], None, &mut |key, value| {
            match (decode(key, value), &mut decoded) {
                (Ok(record), Ok(records)) => records.push(record),
                (Err(error), _) => decoded = Err(error),
                (Ok(_), Err(_)) => {}
            }
            decoded.is_ok()
        })
        .map_err(store_error)?;
    decoded
}

fn store_error(error: kv::Error) -> FsError {
    if error.is_no_space() {
        FsError::NoSpace
    } else {
        FsError::Device { target: TARGET_NAME.to_owned(), detail: error.to_string() }
    }
}
