//! Requests and session events as an [`rpc::Server`] passes them to the MDT: in which service they
//! wait, what executes them, and what must be written or durable before the answer is sent.

use std::sync::Arc;

use bytes::Bytes;
use kv::Lsn;
use rpc::{
    Answer, Call, Clients, Handler, Role, SessionEvent,
    message::{
        MdtReply, MdtRequest, Reply, ReplyExtension, Request,
        kind::Effect,
        lock::{Enqueue, Granted, InodeBits, Resource, inode_bit},
        mdt::{Entry, LayoutInfo},
        mdt_peer::OperationId,
        session::feature,
    },
    stored_reply,
};
use rt::{BoxFuture, CpuKind, Instant};
use types::{ClientId, FsError, FsResult, MdtIndex, ProtocolError, Slot, Xid};

use super::{
    Mdt, check,
    coordination::Coordination,
    late_closes::LateCloses,
    recovery::{self, Ending},
    waiter::Waiter,
};
use crate::{
    data::StoredData,
    namespace::{Attempt, Attempts, Namespace, Obstacle},
    ops::{
        self,
        row::{Answering, MdtRow, SERVICE, row},
    },
    tables::REPLIES,
    transaction::{
        peers::{Need, OfOthers},
        versions::Change,
    },
};

impl Handler for Mdt {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            let kind = match call.request.row().effect {
                Effect::Nothing => CpuKind::MetadataRead,
                Effect::State | Effect::Namespace | Effect::Data => CpuKind::MetadataChange,
            };
            self.seams.cpu.spend(kind, 0).await;
            if let Err(error) = self.reading().check_session(call.client) {
                return Answer::new(Err(error));
            }
            // Before the locks that the client gives back: others go on when it has closed.
            let LateCloses { closed, lsn } = match call.extension.closes.is_empty() {
                true => LateCloses::default(),
                // Its future would make that of every request larger.
                false => Box::pin(self.close_beside(&call)).await,
            };
            self.cancel_locks(call.client, &call.extension.cancels);
            let served = self.serve(&call).await.and_then(|served| readable(&call, served));
            let served = match (served, lsn) {
                // Mostly it has been, together with what the request has changed.
                (Ok(served), Some(lsn)) => self.written(lsn).await.map(|()| served),
                (served, _) => served,
            };
            match served {
                Ok(Served { reply, bulk, told }) => {
                    let Told { change, granted, changed, data, unregistered } = told;
                    let told = change.told(self.era.count(), self.store.last_durable());
                    // Damaged data do not go with the reply: a read reports the damage.
                    let data = data.and_then(|stored| stored.verified(self.options.index).ok());
                    let (data, bulk) = data.map_or((None, bulk), |(done, data)| (Some(done), data));
                    let extension = ReplyExtension { granted, changed, data, unregistered, closed, ..told };
                    Answer { extension, ..Answer::with_bulk(Ok(Reply::Mdt(reply)), bulk) }
                }
                // No operation fails with it: the MDT stops, and clients cannot give locks back.
                Err(FsError::NoDevice) => Answer::withheld(),
                Err(error) => Answer::new(Err(error)),
            }
        })
    }

    /// No request waits for other users as one of a service's threads.
    fn service(&self, request: &Request) -> &'static str {
        match request {
            Request::Mdt(request) => row(request).service,
            Request::Ost(_) | Request::Mgs(_) => SERVICE,
        }
    }

    fn persistent_reply(&self, client: ClientId, slot: Slot) -> Option<(Xid, Reply)> {
        let value = self.store.get(REPLIES, &stored_reply::key(client, slot)).ok()??;
        match stored_reply::decode(&value) {
            // The handler itself answers its repetition, because it has to enter the open again,
            Ok((_, MdtReply::Created(created))) if created.opened.is_some() => None,
            Ok((_, MdtReply::Compound(_))) => None,
            // or to wait until the data are durable.
            Ok((_, MdtReply::Data(_))) => None,
            Ok((xid, reply)) => Some((xid, Reply::Mdt(reply))),
            Err(error) => {
                tracing::error!(%client, ?slot, %error, "a stored reply is damaged");
                None
            }
        }
    }

    fn answers_repetition(&self, client: ClientId, slot: Slot) -> Option<Xid> {
        self.reading().volatile.recovery.replies.get(&(client, slot)).copied()
    }

    fn era(&self) -> u64 {
        self.era.count()
    }

    fn halt(&self) {
        self.store.halt();
    }

    /// Not with the id of a client that OSTs refuse: it would lose what it opens.
    fn may_begin(&self, client: ClientId) -> bool {
        !self.namespace().volatile.recovery.refused.contains(&client)
    }

    fn may_resume(&self, client: ClientId) -> bool {
        self.namespace().volatile.recovery.in_good_standing(client)
    }

    fn served(&self, clients: Arc<dyn Clients>) {
        self.revoker.set_clients(clients);
    }

    fn connection_begun(&self, client: ClientId) {
        self.claims.write().connection_begun(client);
        self.locks_ended(client);
    }

    /// Its requests may wait for locks of another client that ends too, and whose requests wait for
    /// its locks.
    fn session_ending(&self, event: SessionEvent) {
        match event {
            SessionEvent::Opened { .. } => {}
            SessionEvent::Evicted(client) => drop(self.drop_cache_locks_after_lease(client)),
            SessionEvent::Closed(client) => self.drop_cache_locks(client),
        }
    }

    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match event {
                SessionEvent::Opened { client, resumed: true, .. } => {
                    self.locks_ended(client);
                    tracing::info!(target = %self.target, %client, "client reconnected");
                }
                // Its requests may be repeated, and it keeps nothing here.
                SessionEvent::Opened { role: Role::Mdt, .. } => {}
                SessionEvent::Opened { client, resumed: false, in_process, .. } => {
                    self.drop_cache_locks(client);
                    // What was open is gone.
                    self.forget_presumptions(client).await;
                    if let Err(error) = recovery::begin_session(&self, client, in_process).await {
                        // The client works, and is evicted by the next restart.
                        tracing::error!(target = %self.target, %client, %error, "cannot record a session");
                    }
                }
                // Once more for those of requests that still ran when the session began to end.
                SessionEvent::Evicted(client) => {
                    self.claims.write().session_ended(client);
                    let lease_end = self.drop_cache_locks_after_lease(client);
                    let ending = Ending::Evicted { is_leased: lease_end.is_some() };
                    recovery::end_session_at_last(&self, client, ending).await;
                    if let Some(lease_end) = lease_end {
                        self.note_end_of_lease(client, lease_end);
                    }
                }
                SessionEvent::Closed(client) => {
                    self.claims.write().session_ended(client);
                    self.drop_cache_locks(client);
                    recovery::end_session_at_last(&self, client, Ending::InOrder).await;
                }
            }
        })
    }
}

/// What a client is told with a reply.
#[derive(Default)]
pub(super) struct Told {
    /// What the request changed.
    pub(super) change: Change,
    /// Locks that the client has from now on.
    pub(super) granted: Vec<Granted>,
    /// Inodes that it changed and the reply does not show.
    pub(super) changed: Vec<Entry>,
    /// All bytes of the file on this MDT, beside the reply to its open.
    pub(super) data: Option<StoredData>,
    /// The open was granted and is not registered.
    pub(super) unregistered: bool,
}

/// What a request brought.
pub(super) struct Served {
    reply: MdtReply,
    bulk: Bytes,
    told: Told,
}

/// What an attempt of a request has come to.
struct Attempted {
    outcome: FsResult<MdtReply>,
    /// The last change that its answer may show.
    lsn: Lsn,
    told: Told,
    /// Placement found too few OSTs with room.
    lacks_osts: bool,
    /// What must be durable before the answer.
    lengthened: Option<Lsn>,
    /// What other MDTs have to do first: then the outcome is no answer.
    needs: Option<Need>,
    /// Parts that others have prepared and that are of use.
    used: Vec<OperationId>,
}

impl Attempted {
    /// It holds what others have prepared, and would have to wait for one of them.
    fn failed(error: FsError, lsn: Lsn) -> Self {
        let (outcome, told, used) = (Err(error), Told::default(), Vec::new());
        Self { outcome, lsn, told, lacks_osts: false, lengthened: None, needs: None, used }
    }
}

impl From<MdtReply> for Served {
    fn from(reply: MdtReply) -> Self {
        Self { reply, bulk: Bytes::new(), told: Told::default() }
    }
}

/// A reply, unless its client cannot read it: one that does not know of several MDTs, or of striped
/// directories, or of several shards on one MDT.
fn readable(call: &Call, mut served: Served) -> FsResult<Served> {
    let knows = |features| call.features & features == features;
    match &mut served.reply {
        MdtReply::Remote(_) | MdtReply::PathsBelow(_) if !knows(feature::SEVERAL_MDTS) => Err(FsError::NotSupported),
        MdtReply::Striped(_) if !knows(feature::STRIPED_DIRECTORIES) => Err(FsError::NotSupported),
        MdtReply::Striped(map) if map.is_overstriped() && !knows(feature::OVERSTRIPED_DIRECTORIES) => {
            Err(FsError::NotSupported)
        }
        MdtReply::Layout(info) if !knows(feature::OVERSTRIPED_DIRECTORIES) => {
            // Attributes of the directory itself are shown without them.
            info.map.take_if(|map| map.is_overstriped());
            info.directory_default.take_if(|default| default.is_overstriped());
            Ok(served)
        }
        _ => Ok(served),
    }
}

impl Mdt {
    async fn serve(self: &Arc<Self>, call: &Call) -> FsResult<Served> {
        let Request::Mdt(request) = &call.request else {
            return Err(ProtocolError::misdirected(&self.target, "requests to metadata targets").into());
        };
        let row = row(request);
        if let Some(counter) = row.counter {
            self.statistics.count(counter);
        }
        let _claiming = match self.claiming(call.client, request, &row) {
            Ok(claiming) => claiming,
            Err(refused) => return Ok(MdtReply::LocksClaimed(vec![None; refused]).into()),
        };
        let mut told = Told::default();
        if row.reads_beside
            && let Some(reply) = self.read_beside(call, request, &mut told).await?
        {
            return Ok(Served { reply, bulk: Bytes::new(), told });
        }
        // In boxes: futures are moved when they are made, and with them those that they contain.
        let reply = match row.answering {
            Answering::ReadData(question) => {
                let (reply, bulk) = Box::pin(self.read_data(call, question, &mut told)).await?;
                return Ok(Served { reply, bulk, told });
            }
            Answering::Compound(compound) => {
                let (reply, bulk) = Box::pin(self.compound(call, compound, &row, &mut told)).await?;
                return Ok(Served { reply, bulk, told });
            }
            Answering::Operation => Box::pin(self.run(call, request, &row, &mut told)).await?,
            Answering::Space => MdtReply::Space(self.space().await?),
            Answering::Commit => {
                self.durable().await?;
                MdtReply::Done
            }
            Answering::Check(who, repair) => {
                ops::root_only::require_root(who)?;
                MdtReply::Findings(Box::pin(check::run(self, Waiter::of(call, row.service), repair)).await?)
            }
            Answering::CancelLocks(handles) => {
                self.cancel_locks(call.client, handles);
                MdtReply::Done
            }
            Answering::Disconnect => {
                Box::pin(recovery::end_session(self, call.client, Ending::InOrder)).await?;
                MdtReply::Done
            }
            Answering::ChangeData(change) => Box::pin(self.change_data(call, change)).await?,
            Answering::ReportFull(ost) => {
                if self.namespace().volatile.opens.of(call.client).writers == 0 {
                    return Err(FsError::NotPermitted);
                }
                Box::pin(self.refresh_space(row.service, ost)).await;
                self.namespace().volatile.targets.refused(ost, self.seams.clock.now());
                MdtReply::Done
            }
        };
        if row.durable {
            self.durable().await?;
        }
        if let (Some(leave), MdtReply::Layout(LayoutInfo { layout: Some(layout), .. })) = (row.leave, &reply) {
            let _parked = self.park(row.service);
            self.fence(call.client, leave, layout).await?;
        }
        Ok(Served { reply, bulk: Bytes::new(), told })
    }

    /// Notes on disk that the lease of an evicted client has ended, when it has.
    fn note_end_of_lease(self: &Arc<Self>, client: ClientId, lease_end: Instant) {
        let mdt = self.clone();
        let note = async move {
            let wait = lease_end.since(mdt.seams.clock.now());
            if mdt.pause(wait).await {
                recovery::lease_ended(&mdt, client).await;
            }
        };
        self.spawn("mdt_lease_end", note);
    }

    /// The answer to a request that is not executed: to a repetition; and to one that needs OSTs,
    /// as long as there is no map. In this order: a client that is to ask again does so with a new
    /// request, which would be executed a second time.
    pub(super) async fn first_answer(&self, call: &Call, row: &MdtRow<'_>) -> FsResult<Option<MdtReply>> {
        if let Some(reply) = self.repeated(call).await? {
            return Ok(Some(reply));
        }
        let waits = row.places_objects && !self.map_is_known(call.client);
        Ok(waits.then_some(MdtReply::Waiting))
    }

    /// Whether there was a map since this start: until then there is no OST to place a file on, and
    /// the client is told when there is.
    fn map_is_known(&self, client: ClientId) -> bool {
        if *self.map_known.borrow() {
            return true;
        }
        self.namespace().volatile.waiters.wait_for_start(client);
        // It may have come before the client was entered.
        *self.map_known.borrow()
    }

    /// Runs a request in the namespace; and once more, with fresh reports, if no OST seems to have
    /// space; and once more for each part that other MDTs have to prepare. `told`: what its client
    /// is told with the reply.
    pub(super) async fn run(
        &self,
        call: &Call,
        request: &MdtRequest,
        row: &MdtRow<'_>,
        told: &mut Told,
    ) -> FsResult<MdtReply> {
        if let Some(reply) = self.first_answer(call, row).await? {
            return Ok(reply);
        }
        match request {
            MdtRequest::SplitDirectory(_, split) => Box::pin(self.may_move_names(split)).await?,
            MdtRequest::MakeDirectory(_, make) if make.stripes.is_overstriped() => self.may_overstripe()?,
            MdtRequest::SetDirectoryDefault(_, _, Some(default)) if default.is_overstriped() => {
                self.may_overstripe()?
            }
            _ => {}
        }
        let data_bytes = if row.moves_data { self.moved_bytes_limit() } else { 0 };
        let wanted = self.wanted(call);
        let waiter = Waiter::of(call, row.service);
        let mut refreshed = false;
        let mut others = Coordination::default();
        let mut chosen = None;
        loop {
            let transact = |namespace: &mut Namespace, attempts: &mut Attempts| {
                self.attempt(call, request, row, (wanted, &others.found, &mut chosen), namespace, attempts)
            };
            let holds = waiter.holds || !others.found.prepared.is_empty();
            let holder = Waiter { holds, ..waiter };
            let attempted = match self.load_and_run(Some(holder), Some(data_bytes), transact).await {
                Ok(attempted) => self.written(attempted.lsn).await.map(|()| attempted),
                Err(error) => Err(error),
            };
            let begins_again = matches!(&attempted, Ok(Attempted { outcome: Err(FsError::AwaitsMdt(_)), .. }));
            let (needs, used) = match &attempted {
                Ok(Attempted { needs: Some(need), used, .. }) => (Some(need.clone()), &used[..]),
                _ => (None, &[][..]),
            };
            self.keep_of_others(&mut others, used);
            if matches!(&attempted, Err(FsError::AwaitsMdt(_))) && !waiter.asks_again {
                // All is given up, and clients still have locks.
                others.begins_anew();
                Box::pin(self.pause_for_peer(waiter)).await?;
                continue;
            }
            if let Some(need) = needs {
                // Rare, and large: it would make every request's future as large.
                Box::pin(self.meet(need, &mut others, waiter)).await?;
                continue;
            }
            if begins_again {
                match others.may_go_on() {
                    true => continue,
                    false => return Err(self.tired(waiter)),
                }
            }
            let Attempted { outcome, told: news, lacks_osts, lengthened, .. } = attempted?;
            if matches!(outcome, Err(FsError::NoSpace)) && lacks_osts && !refreshed {
                refreshed = true;
                Box::pin(self.refresh_all_space(row.service)).await;
                continue;
            }
            if let (Err(_), Some(lock)) = (&outcome, row.lock) {
                self.namespace().volatile.refuse_lock(call.client, lock);
            }
            let reply = outcome?;
            if reply == MdtReply::Waiting && matches!(request, MdtRequest::Decisions(_)) {
                // The others are another batch.
                continue;
            }
            *told = news;
            if let Some(lsn) = lengthened {
                self.lengthened_for_good(lsn).await?;
            }
            if row.reclaims.is_some() {
                self.recovery_wakeup.notify_one();
            }
            if matches!(request, MdtRequest::SplitDirectory(..)) {
                self.split_wakeup.notify_one();
            }
            if row.registers_all_opens || row.reclaims.is_some() {
                self.end_presumptions(call.client);
            }
            return Ok(reply);
        }
    }

    /// One attempt of a request. `wanted`: locks; then what other MDTs have done for it, and which
    /// one was chosen for the directory that it makes.
    fn attempt(
        &self,
        call: &Call,
        request: &MdtRequest,
        row: &MdtRow<'_>,
        (wanted, others, chosen): (Option<Enqueue>, &OfOthers, &mut Option<MdtIndex>),
        namespace: &mut Namespace,
        attempts: &mut Attempts,
    ) -> Attempt<Attempted> {
        let context = self.context_of(call);
        let (mut lacks_osts, mut lengthened, mut data, mut needs, mut used) = (false, None, None, None, Vec::new());
        let outcome = namespace.attempt(&context, Some(attempts), |txn| {
            txn.set_of_others(others);
            txn.set_chosen_mdt(*chosen);
            data = ops::data::beside_open(txn, request, wanted)?;
            let reply = ops::run(txn, request);
            lacks_osts = txn.lacks_osts();
            (needs, used) = (txn.take_needs(), txn.take_used());
            *chosen = txn.chosen_mdt();
            let reply = reply?;
            if row.stored {
                txn.keep_reply(call, &reply)?;
            }
            lengthened = txn.lengthened();
            Ok(reply)
        });
        let holds = !others.prepared.is_empty();
        if let Attempt::Blocked(Obstacle::Peer(peer, _)) = &outcome
            && holds
            && !Waiter::of(call, row.service).may_hold_for(*peer, self.options.index)
        {
            return Attempt::Done(Attempted::failed(FsError::AwaitsMdt(*peer), namespace.last()));
        }
        outcome.map(|mut outcome| {
            let mut told = Told { change: namespace.take_change(), ..Told::default() };
            if let Ok(reply) = &mut outcome {
                namespace.volatile.invitations.note(call.client, reply);
                told.granted = wanted.map_or(Vec::new(), |wanted| {
                    let wanted = if data.is_some() { wanted } else { without_data(wanted) };
                    namespace.grant(call.client, wanted, request, reply)
                });
                let is_open = matches!(reply, MdtReply::Opened(_));
                told.unregistered = is_open && namespace.unregister(call.client, request, &told.granted);
                let may_keep = |data: &StoredData| namespace.may_keep_data(call.client, data.object.inode);
                told.data = data.filter(|data| is_open && may_keep(data));
                told.changed = namespace.shown_beside(&context, &mut told.change, Some(reply));
            }
            if outcome.is_ok() && row.reclaims.is_some_and(|reclaim| reclaim.done) {
                namespace.volatile.recovery.client_recovered(call.client);
            }
            let lsn = namespace.last();
            let lengthened = lengthened.map(|before| before.unwrap_or(lsn));
            Attempted { outcome, lsn, told, lacks_osts, lengthened, needs, used }
        })
    }

    /// The locks that a client wants with a reply, as far as this MDT grants any.
    pub(super) fn wanted(&self, call: &Call) -> Option<Enqueue> {
        let parameters = self.parameters();
        if !parameters.cache_locks || !self.revoker.is_served() {
            return None;
        }
        let is_off = if parameters.open_locks { InodeBits::NONE } else { InodeBits(inode_bit::OPEN) };
        call.extension.wanted.map(|wanted| without(wanted, is_off))
    }

    /// The stored reply, if this is the repetition of a mutation that a former start of this MDT
    /// answered or was about to. An open that was part of it is entered again: the client did not
    /// know of it when it reclaimed.
    pub(super) async fn repeated(&self, call: &Call) -> FsResult<Option<MdtReply>> {
        if !self.reading().volatile.recovery.replies.contains_key(&(call.client, call.slot)) {
            return Ok(None);
        }
        let mut namespace = self.namespace();
        let context = self.context(call.client);
        if namespace.volatile.recovery.replies.remove(&(call.client, call.slot)) != Some(call.xid) {
            return Ok(None);
        }
        namespace.transact(&context, |txn| {
            let stored = txn.get(REPLIES, &stored_reply::key(call.client, call.slot))?;
            let stored = stored.map(|value| stored_reply::decode::<MdtReply>(&value)).transpose()?;
            let Some((_, reply)) = stored else { return Ok(None) };
            match (&reply, &call.request) {
                (MdtReply::Created(created), Request::Mdt(request)) => {
                    if let (Some(opened), Some(open)) = (&created.opened, row(request).opens) {
                        match ops::create::enter_again(txn, open, opened) {
                            // It ended before its creator came back: without a name as an orphan,
                            // else it was removed. The creator never saw it: another one will do.
                            Err(FsError::Stale) => return Ok(None),
                            entered => entered?,
                        }
                    }
                }
                (MdtReply::Compound(reply), Request::Mdt(MdtRequest::Compound(compound))) => {
                    ops::compound::enter_again(txn, compound, reply)?;
                }
                _ => {}
            }
            Ok(Some(reply))
        })
    }
}

/// What is wanted besides these parts.
fn without(wanted: Enqueue, parts: InodeBits) -> Enqueue {
    match wanted.resource {
        Resource::Inode(inode, bits) => Enqueue { resource: Resource::Inode(inode, bits & !parts), ..wanted },
        Resource::Object(..) => wanted,
    }
}

pub(super) fn without_data(wanted: Enqueue) -> Enqueue {
    without(wanted, InodeBits(inode_bit::DATA))
}
