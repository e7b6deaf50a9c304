//! The steps of one call: a permit, a slot, the request out, the reply in.

use std::sync::Arc;

use bytes::Bytes;
use rt::{
    BoxFuture, Frame, Instant, Sender, clock,
    trace::{self, Origin},
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, SemaphorePermit, TryAcquireError, oneshot};
use types::{FsError, FsResult, LockHandle, Slot, Xid, limits::BULK_BYTES_MAX};

use super::{
    core::{Purpose, busy_pause},
    handle::Import,
    inner::{Guarded, Inner, Link},
    options::ImportState,
    question::{Answered, CallResult, Caller},
};
use crate::{
    codec::{
        self, Body,
        opcode::{self, Opcode},
    },
    cost,
    handler::Answer,
    message::{Request, RequestExtension, kind::Effect, lock::Enqueue, mdt::Close},
    server::{LocalLink, LocalOutcome, SlotToken, memory_of},
};

/// A taken slot of an in-process call. Dropped when the request no longer runs: the slot is free
/// again.
struct LocalSlot {
    inner: Arc<Inner>,
    slot: Slot,
    purpose: Purpose,
    opcode: Opcode,
    started: Instant,
    executed: bool,
}

impl SlotToken for LocalSlot {
    fn slot(&self) -> Slot {
        self.slot
    }

    fn executed(&mut self) {
        self.executed = true;
    }
}

impl Drop for LocalSlot {
    fn drop(&mut self) {
        let now = self.inner.now();
        {
            let core = &mut self.inner.guarded.lock().core;
            core.slots.give_back(self.slot);
            if self.executed {
                let time = now.since(self.started);
                core.counters.answered((self.opcode, self.purpose), time, time);
            }
        }
        self.inner.slot_freed(self.purpose);
    }
}

/// A caller that waits, until this is dropped.
struct Waits<'a> {
    inner: &'a Inner,
    trace: u64,
}

impl<'a> Waits<'a> {
    fn begin(inner: &'a Inner) -> Self {
        let trace = trace::current();
        inner.guarded.lock().waiting.begin(trace);
        Self { inner, trace }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.inner.guarded.lock().waiting.end(self.trace);
    }
}

/// The right to take a slot; given back when it is dropped.
struct Turn<'a> {
    slot: SemaphorePermit<'a>,
    /// Of a change.
    change: Option<SemaphorePermit<'a>>,
}

impl Turn<'_> {
    /// It ends with the slot, which is taken now ([`Inner::slot_freed`]).
    fn forget(self) {
        self.slot.forget();
        if let Some(change) = self.change {
            change.forget();
        }
    }
}

/// What a request of the user is for.
fn purpose_of(request: &Request) -> Purpose {
    let row = request.row();
    match request {
        _ if row.urgent => Purpose::Urgent,
        Request::Mdt(_) if row.effect == Effect::Namespace => Purpose::Change,
        _ => Purpose::Ordinary,
    }
}

/// What the caller says of locks and opens with a request.
pub(super) struct Beside {
    /// One that it would like to have.
    pub(super) wanted: Option<Enqueue>,
    /// Those that it gives back.
    pub(super) cancels: Vec<LockHandle>,
    /// Opens that end before it.
    pub(super) closes: Vec<Close>,
}

/// What a call may do now.
enum Entry {
    Local(Arc<LocalLink>, LocalSlot, Xid),
    Remote(Arc<dyn Sender>, Frame, oneshot::Receiver<CallResult>),
    /// The body must be encoded first.
    Encode,
    /// Not connected, or recovering.
    Wait,
    /// The server grants fewer slots than there are permits: this one is not valid any more.
    NoSlot,
    Failed(FsError),
}

impl Import {
    /// Whether calls through this handle go out in a state, as part of a recovery or not; `None`:
    /// they wait.
    fn recovers(&self, state: ImportState) -> Option<bool> {
        match state {
            ImportState::Full => Some(false),
            ImportState::Recover if self.recovering => Some(true),
            _ => None,
        }
    }

    /// `late`: told the outcome of the request if its caller gives up after it was sent; taken when
    /// it is. Boxed, see [`BoxFuture`].
    pub(super) fn exchange<'a>(
        &'a self,
        request: Request,
        bulk: Bytes,
        beside: &'a Beside,
        late: &'a mut Option<Caller>,
    ) -> BoxFuture<'a, CallResult> {
        Box::pin(self.exchange_inner(request, bulk, beside, late))
    }

    async fn exchange_inner(
        &self,
        mut request: Request,
        mut bulk: Bytes,
        beside: &Beside,
        late: &mut Option<Caller>,
    ) -> CallResult {
        if bulk.len() > BULK_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let started = self.inner.now();
        let opcode = opcode::of(&request);
        let (mut body, mut memory) = (None, None);
        let mut refusals = 0;
        loop {
            let purpose = match self.recovers(self.state()) {
                Some(true) => Purpose::Recovery,
                _ => purpose_of(&request),
            };
            let permit = self.permit(purpose, started).await?;
            let mut entry = self.enter(started, opcode, purpose, (body.as_ref(), &bulk, &mut memory), late);
            if let Entry::Encode = entry {
                let encoded = body.insert(codec::encode_request(&self.extension(beside), &request)?);
                let bytes = memory_of(&request, encoded.bytes.len() + bulk.len());
                // Calls of a recovery go out one at a time, before all others that hold memory.
                if bytes > 0 && purpose != Purpose::Recovery {
                    memory = Some(self.memory(purpose, bytes, started).await?);
                }
                entry = self.enter(started, opcode, purpose, (body.as_ref(), &bulk, &mut memory), late);
            }
            self.watch();
            match entry {
                Entry::Local(link, token, xid) => {
                    permit.forget();
                    match link
                        .call(
                            started,
                            xid,
                            (self.inner.principal.role().class(), self.extension(beside)),
                            request,
                            bulk,
                            token,
                        )
                        .await
                    {
                        LocalOutcome::Answered(answer) => {
                            self.note_error(&link, opcode, &answer.reply);
                            let Answer { reply, bulk, extension, .. } = answer;
                            let (era, connection) = (link.connected().era, link.generation());
                            return reply.map(|reply| Answered { reply, bulk, extension, era, connection });
                        }
                        LocalOutcome::Busy(request_back, bulk_back) => {
                            (request, bulk) = (request_back, bulk_back);
                            let pause = busy_pause(refusals, self.inner.seams.entropy.next_u64());
                            refusals += 1;
                            clock::sleep(&*self.inner.seams.clock, pause).await;
                        }
                        LocalOutcome::Disconnected(request_back, bulk_back) => {
                            (request, bulk) = (request_back, bulk_back);
                            self.inner.lose(&link, false);
                        }
                        LocalOutcome::Gone => {
                            self.inner.lose(&link, true);
                            return Err(FsError::Evicted);
                        }
                    }
                }
                Entry::Remote(sender, frame, reply) => {
                    permit.forget();
                    return self.send_and_wait(&*sender, frame, reply, started).await;
                }
                Entry::NoSlot => {
                    permit.forget();
                    self.inner.slot_freed(purpose);
                    (body, memory) = (None, None);
                    // Those of before a restart of the server, which granted other slots, come
                    // back.
                    let pause = busy_pause(refusals, self.inner.seams.entropy.next_u64());
                    refusals += 1;
                    clock::sleep(&*self.inner.seams.clock, pause).await;
                }
                Entry::Failed(error) => return Err(error),
                Entry::Wait | Entry::Encode => {
                    drop(permit);
                    // Others may have permits and wait for memory.
                    (body, memory) = (None, None);
                    self.ready(started).await?;
                }
            }
        }
    }

    /// What is said with a request of the present task.
    fn extension(&self, beside: &Beside) -> RequestExtension {
        let Origin { uid, gid, job, project, .. } = trace::origin();
        let Beside { wanted, cancels, closes } = beside;
        let (job, wanted, cancels, closes) = (job.as_str().to_owned(), *wanted, cancels.clone(), closes.clone());
        RequestExtension { uid, gid, job, wanted, cancels, closes, project, ..RequestExtension::default() }
    }

    /// Takes a slot, if the import is in a state to call.
    fn enter(
        &self,
        started: Instant,
        opcode: Opcode,
        purpose: Purpose,
        (body, bulk, memory): (Option<&Body>, &Bytes, &mut Option<OwnedSemaphorePermit>),
        late: &mut Option<Caller>,
    ) -> Entry {
        let mut guarded = self.inner.guarded.lock();
        let Guarded { core, link, closing, .. } = &mut *guarded;
        if *closing {
            return Entry::Failed(core.gone(started, started));
        }
        if let Some(refused) = &core.refused {
            return Entry::Failed(refused.clone());
        }
        let recovers = purpose == Purpose::Recovery;
        let (Some(link), true) = (link, self.recovers(core.state) == Some(recovers)) else { return Entry::Wait };
        let body = match (&*link, body) {
            (Link::Remote(_), None) => return Entry::Encode,
            (_, body) => body.cloned().unwrap_or_default(),
        };
        let Some(slot) = core.take_slot(purpose) else { return Entry::NoSlot };
        match link {
            Link::Local(link) => {
                let token =
                    LocalSlot { inner: self.inner.clone(), slot: slot.0, purpose, opcode, started, executed: false };
                Entry::Local(link.clone(), token, slot.1)
            }
            Link::Remote(sender) => {
                let (caller, reply) = oneshot::channel();
                let now = self.inner.now();
                let parts = (body, bulk.clone(), memory.take());
                let caller = Some((self.inner.seams.spawn.here(), caller));
                let frame = core.begin(now, started, slot, opcode, parts, trace::current(), purpose, caller);
                if let Some(late) = late.take() {
                    core.tell_late(slot.0, late);
                }
                if core.timeout.is_zero() {
                    self.inner.timeout_due.notify_one();
                }
                Entry::Remote(sender.clone(), frame, reply)
            }
        }
    }

    /// Sends a request and waits for its reply. A frame that could not be sent goes out again
    /// later.
    async fn send_and_wait(
        &self,
        sender: &dyn Sender,
        frame: Frame,
        mut reply: oneshot::Receiver<CallResult>,
        started: Instant,
    ) -> CallResult {
        // The reply first: it also says that a caller has waited too long for a peer that does not
        // read.
        let send = cost::send(&self.inner.seams.cpu, sender, frame);
        let early = tokio::select! {
            biased;
            early = &mut reply => Some(early),
            sent = send => {
                if let Err(error) = sent {
                    tracing::debug!(target = %self.inner.target, %error, "request not sent yet");
                }
                None
            }
        };
        let answered = match early {
            Some(early) => early,
            None => reply.await,
        };
        answered.unwrap_or_else(|_| Err(self.inner.guarded.lock().core.unreachable(self.inner.now(), started)))
    }

    /// Waits for the right to take a slot.
    async fn permit(&self, purpose: Purpose, started: Instant) -> FsResult<Turn<'_>> {
        let inner = &self.inner;
        let (semaphore, is_tuned) = match purpose {
            Purpose::Ordinary | Purpose::Change => (inner.permits.semaphore(), true),
            Purpose::Urgent => (inner.urgent.semaphore(), false),
            Purpose::Recovery | Purpose::Ping => (&inner.control, false),
        };
        // First: changes that wait for each other must not keep others from the slots.
        let (mut awaits, mut change) = (None, None);
        if purpose == Purpose::Change {
            let changes = inner.changes.semaphore();
            let now = changes.try_acquire();
            // Where the limit of changes is what they wait for, the tuner can change nothing.
            awaits = (now.is_err() && inner.limits_changes()).then(|| inner.turns.await_turn());
            change = Some(self.acquire(now, changes.acquire(), started).await?);
        }
        let now = semaphore.try_acquire();
        let _awaits = awaits.or_else(|| (now.is_err() && is_tuned).then(|| inner.turns.await_turn()));
        Ok(Turn { slot: self.acquire(now, semaphore.acquire(), started).await?, change })
    }

    /// Waits until a large request may be sent: only others that were sent before can be in its
    /// way.
    async fn memory(&self, purpose: Purpose, bytes: u32, started: Instant) -> FsResult<OwnedSemaphorePermit> {
        let memory = if purpose == Purpose::Urgent { &self.inner.urgent_memory } else { &self.inner.memory };
        let now = memory.clone().try_acquire_many_owned(bytes);
        self.acquire(now, memory.clone().acquire_many_owned(bytes), started).await
    }

    /// A permit: this one, or the one that comes later.
    async fn acquire<P>(
        &self,
        now: Result<P, TryAcquireError>,
        later: impl Future<Output = Result<P, AcquireError>>,
        started: Instant,
    ) -> FsResult<P> {
        if let Ok(permit) = now {
            return Ok(permit);
        }
        let _waits = Waits::begin(&self.inner);
        let mut acquire = std::pin::pin!(later);
        loop {
            let deadline = self.inner.guarded.lock().core.deadline(started);
            match clock::timeout_at(&*self.inner.seams.clock, deadline, acquire.as_mut()).await {
                Some(Ok(permit)) => return Ok(permit),
                Some(Err(_)) => return Err(self.inner.gave_up(started)),
                None => {}
            }
            let core = &self.inner.guarded.lock().core;
            if core.deadline(started) <= self.inner.now() {
                return Err(core.unreachable(self.inner.now(), started));
            }
        }
    }

    /// Waits until calls through this handle can go out.
    pub(super) async fn ready(&self, started: Instant) -> FsResult<()> {
        let mut waits = None;
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            let now = self.inner.now();
            let deadline = {
                let guarded = self.inner.guarded.lock();
                let core = &guarded.core;
                if let Some(refused) = &core.refused {
                    return Err(refused.clone());
                }
                if self.recovers(core.state).is_some() {
                    return Ok(());
                }
                // A recovery's calls end with its connection.
                let gave_up = self.recovering || guarded.closing || core.deadline(started) <= now;
                if gave_up {
                    return Err(core.unreachable(now, started));
                }
                core.deadline(started)
            };
            waits.get_or_insert_with(|| Waits::begin(&self.inner));
            // Whichever came first, the state is looked at again.
            let _ = clock::timeout_at(&*self.inner.seams.clock, deadline, changed).await;
        }
    }

    /// Counts an error of an in-process call, and notices an eviction.
    fn note_error<T>(&self, link: &Arc<LocalLink>, opcode: Opcode, reply: &FsResult<T>) {
        let Err(error) = reply else { return };
        self.inner.guarded.lock().core.counters.failed(opcode);
        if *error == FsError::Evicted {
            self.inner.lose(link, true);
        }
    }
}

impl Inner {
    /// What a caller is told that gives up now.
    fn gave_up(&self, started: Instant) -> FsError {
        self.guarded.lock().core.gone(self.now(), started)
    }

    /// An in-process link turned out to be dead, or its session to be gone.
    fn lose(&self, dead: &Arc<LocalLink>, session: bool) {
        let mut guarded = self.guarded.lock();
        let present = matches!(&guarded.link, Some(Link::Local(link)) if Arc::ptr_eq(link, dead));
        if present {
            guarded.link = None;
            guarded.core.state = ImportState::Disconnected;
            guarded.link_lost = true;
            guarded.session_lost |= session;
            drop(guarded);
            self.wake.notify_one();
        }
    }
}
