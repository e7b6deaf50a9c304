//! The MDT's proxy for one OST: delivers the deferred operations, and asks for the OST's
//! space and condition. One per OST, each with its own connection and tasks, so that an OST that is
//! down delays nothing else.
//!
//! Delivery is at least once, in order: records are removed after the OST has answered. Requests
//! carry the operations' sequence numbers, by which the OST leaves out what it has executed.
//!
//! The OST is asked for its space at an interval (module `pace`), and at once when a request needs
//! to know: a client says that the OST is full, or no OST seems to have space (module `space`).
//! However many requests need to know, one query is in progress, and one more for all that came
//! since it started; the timeout of one request does not end it for the others. The OST is also
//! asked as soon as its connection is interrupted: until it answers, new files prefer other OSTs;
//! after `ost_silence` they avoid it.

use std::{
    convert::Infallible,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rpc::{
    Endpoint,
    message::{OstReply, OstRequest, ost::DeferredOrigin},
};
use rt::clock;
use tokio::sync::{Notify, watch};
use types::{ClientId, FsError, FsResult, ObjectId, OstIndex};

use super::{Mdt, proxy_connection::ProxyConnection};
use crate::{
    pace::Pace,
    placement::OstReport,
    tables::{
        COUNTERS, DEFERRED_LOG,
        codec::ost_key,
        counter,
        deferred_log::{self, DeferredOperation},
    },
};

/// Objects destroyed by one request.
const OBJECTS_MAX: usize = 256;
/// Pause after a failed delivery.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// See the module documentation.
pub(crate) struct OstProxy {
    ost: OstIndex,
    pub(super) connection: ProxyConnection,
    /// Questions for space begun.
    asked: AtomicU64,
    /// The last question for space that has ended.
    answered: watch::Sender<u64>,
    /// Signalled when a request waits for a question that has not begun yet.
    space_wanted: Notify,
}

/// What the next request to the OST says.
enum Parcel {
    Destroy(Vec<ObjectId>),
    Evict(ClientId),
}

impl OstProxy {
    /// Begins to work.
    pub fn start(mdt: &Arc<Mdt>, ost: OstIndex, endpoint: Endpoint, active: bool) -> Arc<Self> {
        let wakeup = mdt.namespace().wakeup(ost);
        let connection = ProxyConnection::new(mdt.import_of(ost, endpoint), active, wakeup);
        let (asked, answered, space_wanted) = (AtomicU64::new(0), watch::Sender::new(0), Notify::new());
        let ost_proxy = Arc::new(OstProxy { ost, connection, asked, answered, space_wanted });
        mdt.spawn("mdt_deferred", ost_proxy.clone().deliver(mdt.clone()));
        mdt.spawn("mdt_statfs", ost_proxy.clone().watch_space(mdt.clone()));
        ost_proxy
    }

    async fn deliver(self: Arc<Self>, mdt: Arc<Mdt>) {
        while !self.connection.ended() {
            let parcel = if self.connection.is_active() { self.next_parcel(&mdt).await } else { Ok(None) };
            let delivered = match parcel {
                Ok(None) => {
                    self.connection.unless_ended(self.connection.wakeup.notified()).await;
                    continue;
                }
                Ok(Some((parcel, places))) => self.connection.unless_ended(self.hand_over(&mdt, parcel, places)).await,
                Err(error) => Some(Err(error)),
            };
            if let Some(Err(error)) = delivered {
                tracing::debug!(target = %mdt.name(), ost = %self.ost, %error, "cannot deliver deferred operations; trying again later");
                self.connection.unless_ended(clock::sleep(&*mdt.seams.clock, RETRY)).await;
            }
        }
    }

    /// The first records of this OST that fit one request, with their sequence numbers.
    async fn next_parcel(&self, mdt: &Mdt) -> FsResult<Option<(Parcel, RangeInclusive<u64>)>> {
        let (mut objects, mut evicted, mut places) = (Vec::new(), None, Vec::new());
        mdt.look(mdt.principal.client(), |txn| {
            // Of an attempt that was given up.
            objects.clear();
            places.clear();
            evicted = None;
            txn.scan_prefix(DEFERRED_LOG, &ost_key(self.ost), &mut |key, value| {
                let (_, sequence) = deferred_log::decode_key(key)?;
                // Only damage makes a gap.
                if places.last().is_some_and(|last| sequence.checked_sub(1) != Some(*last)) {
                    return Ok(false);
                }
                match DeferredOperation::decode(value)? {
                    DeferredOperation::Destroy(object) => objects.push(object),
                    DeferredOperation::Evict(client) if objects.is_empty() => evicted = Some(client),
                    DeferredOperation::Evict(_) => return Ok(false),
                }
                places.push(sequence);
                Ok(evicted.is_none() && objects.len() < OBJECTS_MAX)
            })
        })
        .await?;
        assert!(objects.is_empty() || evicted.is_none(), "a request to an OST is of one kind");
        let operations = objects.len() + usize::from(evicted.is_some());
        assert_eq!(places.len(), operations, "each deferred operation has its place");
        let destroy = (!objects.is_empty()).then_some(Parcel::Destroy(objects));
        let parcel = evicted.map(Parcel::Evict).or(destroy);
        Ok(parcel.and_then(|parcel| Some((parcel, *places.first()?..=*places.last()?))))
    }

    async fn hand_over(&self, mdt: &Mdt, parcel: Parcel, places: RangeInclusive<u64>) -> FsResult<()> {
        let (first, last) = places.clone().into_inner();
        // The names must be gone permanently before the data are: an OST does not forget with us.
        mdt.durable().await?;
        let origin = DeferredOrigin { source: mdt.options.index, first, era: mdt.era.count() };
        let (request, evicted) = match parcel {
            Parcel::Destroy(objects) => (OstRequest::Destroy(objects, Some(origin)), None),
            Parcel::Evict(client) => (OstRequest::Evict(client, Some(origin)), Some(client)),
        };
        self.call(request).await?;
        mdt.transact(mdt.principal.client(), |txn| {
            txn.release_space();
            places.clone().for_each(|sequence| txn.delete(DEFERRED_LOG, deferred_log::key(self.ost, sequence)));
            txn.put(COUNTERS, counter::delivered_key(self.ost), counter::encode_number(last));
            Ok(())
        })
        .await?;
        if let Some(client) = evicted {
            mdt.namespace().volatile.fence_delivered(client, self.ost);
        }
        Ok(())
    }

    /// Has objects refuse layouts before this generation, from now on.
    pub async fn fence(&self, objects: Vec<ObjectId>, generation: u64) -> FsResult<()> {
        loop {
            match self.call(OstRequest::Fence(objects.clone(), generation)).await {
                // It came back without this session, as in `ask_space`.
                Err(FsError::Evicted) if !self.connection.ended() => {}
                answer => return answer.map(drop),
            }
        }
    }

    async fn call(&self, request: OstRequest) -> FsResult<OstReply> {
        Ok(self.connection.import.call(request).await?.reply)
    }

    async fn watch_space(self: Arc<Self>, mdt: Arc<Mdt>) {
        let mut pace = Pace::default();
        while !self.connection.ended() {
            let parameters = mdt.parameters();
            let mut pause = parameters.ost_refresh;
            let mut answers = false;
            if self.connection.is_active() {
                let question = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
                answers = self.connection.unless_ended(self.ask_space(&mdt)).await == Some(true);
                let before = self.answered.send_replace(question);
                assert!(before < question, "questions for space end in order");
                let report = mdt.namespace().volatile.targets.reported(self.ost);
                if let Some(OstReport { space, .. }) = report {
                    let reserved = parameters.placement.bytes_reserved(space.bytes_total);
                    let left = space.bytes_available.saturating_sub(reserved);
                    pause = pace.next(mdt.seams.clock.now(), left, parameters.ost_refresh);
                }
            }
            let next = mdt.seams.clock.now() + pause;
            self.connection.unless_ended(clock::timeout_at(&*mdt.seams.clock, next, self.reason_to_ask(answers))).await;
        }
    }

    /// A request waits for it, or an OST that answered is no longer connected.
    async fn reason_to_ask(&self, answers: bool) {
        tokio::select! {
            biased;
            () = self.space_wanted.notified() => {}
            () = self.connection.import.disconnected(), if answers => {}
        }
    }

    /// Has the OST asked for its space. What is returned completes when a question has ended that
    /// began after this call, and placement knows the answer; for an OST that is not in use, at
    /// once.
    pub fn refresh_space(self: Arc<Self>) -> impl Future<Output = ()> {
        let before = self.asked.load(Ordering::Acquire);
        self.space_wanted.notify_one();
        async move {
            if self.connection.is_active() {
                // The sender lives in `self`: waiting cannot fail.
                let _ = self.answered.subscribe().wait_for(|answered| *answered > before).await;
            }
        }
    }

    /// True if it answered in time.
    async fn ask_space(&self, mdt: &Mdt) -> bool {
        let interrupted = async {
            self.connection.import.disconnected().await;
            mdt.namespace().volatile.targets.interrupted(self.ost);
            std::future::pending::<Infallible>().await
        };
        // If this process is suspended, that is no silence of the OST.
        let silence = rt::beat::running_for(&*mdt.seams.clock, &*mdt.seams.spawn, mdt.parameters().ost_silence);
        let answer = async {
            loop {
                match self.call(OstRequest::StatFs).await {
                    // It came back without this session. The next one will do; the import pauses
                    // before it makes one.
                    Err(FsError::Evicted) => {}
                    answer => return answer,
                }
            }
        };
        let answer = tokio::select! {
            biased;
            never = interrupted => match never {},
            answer = answer => Some(answer),
            () = silence => None,
        };
        let now = mdt.seams.clock.now();
        let targets = &mut mdt.namespace().volatile.targets;
        match answer {
            Some(Ok(OstReply::Space(space, condition))) => {
                targets.report(self.ost, OstReport { space, condition }, now);
                true
            }
            Some(Ok(_) | Err(_)) | None => {
                targets.lost(self.ost);
                false
            }
        }
    }
}
