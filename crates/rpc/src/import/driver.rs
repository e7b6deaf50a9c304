//! The task of an import: connects, recovers, repeats requests, pings, and ends calls that have
//! waited too long. A task of its own reads the replies of a connection (`reader`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rt::{Address, Connection, Frame, Instant, Sender, clock};
use types::{FsError, Generation};

use super::{
    core::Purpose,
    greeting::Greeting,
    handle::{Hook, Import},
    inner::{Inner, Link},
    options::{Endpoint, ImportState},
    reader::Reader,
    trouble::Cause,
};
use crate::{
    auth::{self, Ticket},
    codec::{
        self,
        opcode::{self, Family},
    },
    message::{
        RequestExtension, bounds,
        session::{Claim, Connect, Connected, feature},
    },
    server::Server,
};

/// The timeout of calls is checked this many times over its length.
const TIMEOUT_CHECKS: u32 = 32;
const TIMEOUT_CHECK_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_CHECK_MAX: Duration = Duration::from_secs(1);
/// Most doublings of the pause between attempts to connect.
const BACKOFF_DOUBLINGS: usize = 16;

/// Why a connection, or an attempt at one, ended.
#[derive(Debug)]
pub(super) enum End {
    /// The import is being closed.
    Closing,
    /// The target is elsewhere now.
    Readdressed,
    /// The session is gone.
    Evicted,
    /// The server refuses this client whatever it does.
    Refused(FsError),
    /// Anything that may be better next time.
    Lost(Cause),
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        End::Lost(Cause::from(error))
    }
}

impl End {
    pub(super) fn lost(reason: impl Into<String>) -> Self {
        End::Lost(Cause::Other(reason.into()))
    }
}

/// Runs until the import is closed.
pub(super) async fn run(inner: Arc<Inner>) {
    tokio::select! {
        biased;
        () = keep_connected(&inner) => {}
        () = watch_timeout(&inner) => {}
    }
    inner.finish();
}

/// Connects again and again until the import is closed.
async fn keep_connected(inner: &Arc<Inner>) {
    let mut failures = 0;
    loop {
        let end = tokio::select! {
            biased;
            end = told(inner) => end,
            end = connect_and_serve(inner) => end,
        };
        let worked = inner.disconnect();
        failures = if worked { 0 } else { failures + 1 };
        let places = inner.places();
        // Of several addresses all are tried before the import pauses, or believes a refusal.
        let others_left = failures % places != 0;
        // An address through which nothing more comes may still let a handshake pass.
        let silent = matches!(&end, End::Lost(Cause::NoAnswer));
        let mut end = Some(end);
        while let Some(now) = end.take() {
            match now {
                End::Closing => return,
                End::Readdressed => break,
                // It ends its session itself.
                End::Evicted if inner.guarded.lock().leaving => return,
                End::Evicted => inner.evict(),
                End::Refused(error) if others_left => inner.lost(Cause::Other(error.to_string()), worked),
                End::Refused(error) => inner.refuse(error),
                End::Lost(cause) => inner.lost(cause, worked),
            }
            if !worked || silent {
                inner.try_next_address();
            }
            let pause = if others_left { Duration::ZERO } else { inner.backoff(failures / places) };
            tokio::select! {
                biased;
                told = told(inner) => end = Some(told),
                () = clock::sleep(&*inner.seams.clock, pause) => {}
            }
        }
    }
}

/// Completes when other code ends the present connection.
async fn told(inner: &Arc<Inner>) -> End {
    loop {
        {
            let mut guarded = inner.guarded.lock();
            let link_lost = std::mem::take(&mut guarded.link_lost);
            let is_over = guarded.ends_with_session && guarded.core.session.is_none();
            if guarded.closing || is_over {
                return End::Closing;
            }
            if std::mem::take(&mut guarded.session_lost) {
                return End::Evicted;
            }
            if std::mem::take(&mut guarded.readdressed) {
                return End::Readdressed;
            }
            if link_lost {
                return End::lost("the server stopped");
            }
        }
        inner.wake.notified().await;
    }
}

/// Tells callers who have waited too long. With a zero timeout there is nothing to look at between
/// two calls.
async fn watch_timeout(inner: &Arc<Inner>) {
    loop {
        let (timeout, rests) = {
            let core = &inner.guarded.lock().core;
            (core.timeout, core.no_call_can_time_out())
        };
        if rests {
            inner.timeout_due.notified().await;
            continue;
        }
        let pause = (timeout / TIMEOUT_CHECKS).clamp(TIMEOUT_CHECK_MIN, TIMEOUT_CHECK_MAX);
        clock::sleep(&*inner.seams.clock, pause).await;
        let timed_out = {
            let now = inner.now();
            inner.guarded.lock().core.end_timed_out(now)
        };
        for (caller, error) in timed_out {
            tracing::warn!(target = %inner.target, %error, "a request timed out");
            // A caller that is gone needs no answer.
            let _ = caller.send(Err(error));
        }
    }
}

async fn connect_and_serve(inner: &Arc<Inner>) -> End {
    if let Some(recovery) = &inner.recovery {
        recovery.before_connect().await;
    }
    let (endpoint, turn, connect, ticket) = inner.begin_connect();
    let deadline = inner.now() + inner.options.connect_timeout;
    let served = match endpoint {
        Endpoint::Local(server) => serve_local(inner, &server, connect, deadline).await,
        Endpoint::Remote(addresses) => serve_remote(inner, addresses.at(turn), (connect, ticket), deadline).await,
    };
    served.unwrap_or_else(|end| end)
}

/// What a refusal of a connection means.
pub(super) fn refused(error: FsError) -> End {
    match error {
        FsError::Evicted => End::Evicted,
        FsError::Protocol(_) | FsError::Refused(_) | FsError::TooMany(_) => End::Refused(error),
        other => End::lost(format!("refused by the server: {other}")),
    }
}

async fn serve_local(
    inner: &Arc<Inner>,
    server: &Arc<Server>,
    connect: Connect,
    deadline: Instant,
) -> Result<End, End> {
    let link = clock::timeout_at(
        &*inner.seams.clock,
        deadline,
        server.connect_local(&connect, Arc::new(Hook(inner.recovery.clone()))),
    )
    .await
    .ok_or(End::Lost(Cause::NoAnswer))?
    .map_err(refused)?;
    let connected = link.connected().clone();
    let stopped = link.stopped();
    inner.fail_remote_requests();
    inner.attach(Link::Local(Arc::new(link)), &connected, 0)?;
    recover(inner, &connected).await?;
    let again = inner.become_full(&connected);
    debug_assert!(again.is_empty(), "nothing sent over a network is outstanding in process");
    stopped.await;
    Err(End::lost("the server stopped"))
}

async fn serve_remote(
    inner: &Arc<Inner>,
    address: &Address,
    (connect, ticket): (Connect, Option<Ticket>),
    deadline: Instant,
) -> Result<End, End> {
    let connecting = inner.seams.transport.connect(address);
    let connection =
        clock::timeout_at(&*inner.seams.clock, deadline, connecting).await.ok_or(End::Lost(Cause::NoAnswer))??;
    let Connection { sender, mut receiver, peer } = connection;
    let sender = CloseOnDrop(sender);
    let generation = connect.connection;
    let (connected, clock_ns) =
        Greeting::new(inner, &*sender.0, deadline).greet(&mut *receiver, connect, ticket).await?;
    tracing::debug!(target = %inner.target, peer, ?connected, "connected");
    inner.attach(Link::Remote(sender.0.clone()), &connected, clock_ns)?;
    let read = Reader::start(inner, &sender.0, receiver, generation);
    tokio::select! {
        biased;
        end = read => Err(end.unwrap_or_else(|_| End::lost("the core that read from it stopped"))),
        end = establish(inner, &*sender.0, &connected) => end,
        end = repeat(inner, &*sender.0) => end,
        () = watch_silence(inner) => Err(End::Lost(Cause::NoAnswer)),
    }
}

/// Ends the connection when its driver turns away from it.
struct CloseOnDrop(Arc<dyn Sender>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Recovers, then sends what is outstanding from before. Does not complete unless something fails.
async fn establish(inner: &Arc<Inner>, sender: &dyn Sender, connected: &Connected) -> Result<End, End> {
    recover(inner, connected).await?;
    for frame in inner.become_full(connected) {
        sender.send(frame).await?;
    }
    std::future::pending().await
}

/// Sends late requests again, and pings.
async fn repeat(inner: &Arc<Inner>, sender: &dyn Sender) -> Result<End, End> {
    loop {
        let now = inner.now();
        let next = inner.guarded.lock().core.next_due(now);
        tokio::select! {
            biased;
            () = inner.resend.notified() => {}
            () = inner.seams.clock.sleep_until(next) => {}
        }
        let now = inner.now();
        let mut due = inner.guarded.lock().core.due(now);
        due.extend(inner.ping(now));
        for frame in due {
            sender.send(frame).await?;
        }
    }
}

/// Lets the hook reclaim, if the server restarted since the session was opened; or tell what has to
/// be told on each new connection.
async fn recover(inner: &Arc<Inner>, connected: &Connected) -> Result<(), End> {
    let session = inner.guarded.lock().core.session;
    let (Some(recovery), Some(session)) = (&inner.recovery, session) else { return Ok(()) };
    let import = Import { inner: inner.clone(), _closer: None, recovering: true };
    let recovering = if session == connected.incarnation {
        let Some(resuming) = recovery.resume(&import) else { return Ok(()) };
        inner.guarded.lock().core.state = ImportState::Recover;
        resuming
    } else {
        let has_lost = {
            let core = &mut inner.guarded.lock().core;
            core.state = ImportState::Recover;
            core.has_lost()
        };
        tracing::info!(target = %inner.target, has_lost, "the server restarted; recovering");
        recovery.recover(&import, has_lost)
    };
    inner.changed.notify_waiters();
    match recovering.await {
        Ok(()) => Ok(()),
        Err(FsError::Evicted) => Err(End::Evicted),
        Err(error) => Err(End::lost(format!("recovery failed: {error}"))),
    }
}

/// Completes when a connection with outstanding requests has been silent for too long.
async fn watch_silence(inner: &Arc<Inner>) {
    loop {
        clock::sleep(&*inner.seams.clock, inner.options.resend).await;
        let now = inner.now();
        if inner.guarded.lock().core.is_silent(now) {
            return;
        }
    }
}

impl Inner {
    /// Pause before the next attempt after this many failures, half of it by chance.
    fn backoff(&self, failures: usize) -> Duration {
        let ceiling = self.options.backoff_max.max(self.options.backoff_min);
        let pause = self.options.backoff_min.saturating_mul(1 << failures.min(BACKOFF_DOUBLINGS)).min(ceiling);
        pause / 2 + pause / 2 * (self.seams.entropy.below(1024) as u32) / 1024
    }

    /// Where to connect (which of the addresses), the next `Connect`, and the ticket of the session
    /// that it continues.
    fn begin_connect(&self) -> (Endpoint, usize, Connect, Option<Ticket>) {
        let mut guarded = self.guarded.lock();
        guarded.readdressed = false;
        guarded.core.state = ImportState::Connecting;
        guarded.core.generation = guarded.core.generation.next();
        let connect = Connect {
            version_min: self.options.version_min,
            version_max: self.options.version_max,
            features: self.options.features,
            target: self.target.to_string(),
            client: self.principal.client,
            client_name: bounds::client_name(&self.principal.name),
            connection: Generation(guarded.core.generation.0),
            resume: guarded.core.session.is_some(),
            incarnation: guarded.core.session.unwrap_or(0),
            role: self.principal.role,
            node: bounds::node_name(&self.principal.node),
            claim: Some(Claim::Key { nonce: auth::nonce(&*self.seams.entropy) }),
        };
        (guarded.endpoint.clone(), guarded.turn, connect, guarded.core.ticket)
    }

    /// Takes a new connection into use; no call goes out yet. `clock_ns`: the target's.
    fn attach(&self, link: Link, connected: &Connected, clock_ns: u64) -> Result<(), End> {
        let now = self.now();
        let (freed, lost_slots) = {
            let mut guarded = self.guarded.lock();
            guarded.link = Some(link);
            let core = &mut guarded.core;
            let freed = core.connected(now, connected);
            if connected.features & feature::DEADLINES != 0 {
                core.hear_clock(now, clock_ns);
            }
            (freed, core.lost_slots())
        };
        for purpose in freed {
            self.slot_freed(purpose);
        }
        self.adjust_permits();
        // The server grants fewer slots than before its restart, so some requests cannot be
        // repeated.
        if lost_slots { Err(End::Evicted) } else { Ok(()) }
    }

    /// Opens the gate for calls; returns what is to be sent again.
    fn become_full(&self, connected: &Connected) -> Vec<Frame> {
        let now = self.now();
        let mut guarded = self.guarded.lock();
        guarded.worked = true;
        guarded.core.trouble.end();
        let frames = guarded.core.full(now, connected.incarnation, connected.ticket);
        drop(guarded);
        self.changed.notify_waiters();
        frames
    }

    /// A ping, if it is time and the control slot is free.
    fn ping(&self, now: Instant) -> Option<Frame> {
        let family: Family = self.family?;
        let mut guarded = self.guarded.lock();
        if !guarded.core.needs_ping(now) {
            return None;
        }
        let permit = self.control.try_acquire().ok()?;
        let body = codec::encode_request(&RequestExtension::default(), &family.ping()).expect("a ping is small");
        let slot = guarded.core.take_slot(Purpose::Ping)?;
        permit.forget();
        let opcode = opcode::of(&family.ping());
        Some(guarded.core.begin(now, now, slot, opcode, (body, Bytes::new(), None), 0, Purpose::Ping, None))
    }

    /// The connection is gone. Returns whether calls could go out.
    fn disconnect(&self) -> bool {
        let now = self.now();
        let (worked, ended) = {
            let mut guarded = self.guarded.lock();
            guarded.link = None;
            guarded.link_lost = false;
            (std::mem::take(&mut guarded.worked), guarded.core.disconnected(now))
        };
        self.changed.notify_waiters();
        for (caller, error) in ended {
            // A caller that is gone needs no answer.
            let _ = caller.send(Err(error));
        }
        worked
    }

    /// How many addresses the target has.
    fn places(&self) -> usize {
        self.guarded.lock().endpoint.places()
    }

    /// The present address does not work.
    fn try_next_address(&self) {
        let mut guarded = self.guarded.lock();
        guarded.turn = (guarded.turn + 1) % guarded.endpoint.places();
    }

    /// The connection, or an attempt at one, ended. `worked`: calls could go out.
    fn lost(&self, cause: Cause, worked: bool) {
        let now = self.now();
        let (place, news) = {
            let guarded = &mut *self.guarded.lock();
            let place = guarded.endpoint.place(guarded.turn);
            let news = guarded.core.trouble.note(now, &place, guarded.endpoint.places(), cause.clone());
            (place, news)
        };
        self.changed.notify_waiters();
        if worked {
            tracing::info!("lost the connection to {} {place}: {cause}", self.target);
        } else if let Some(news) = news {
            tracing::info!("cannot reach {}; trying again", news.of(&self.target, &place));
        }
    }

    /// The session is gone: tells the hook, then the callers, which may ask again at once.
    fn evict(&self) {
        tracing::warn!(target = %self.target, client = %self.principal.client, "evicted by the server");
        let callers = self.guarded.lock().core.evicted();
        if let Some(recovery) = &self.recovery {
            recovery.evicted();
        }
        for caller in callers {
            // A caller that is gone needs no answer.
            let _ = caller.send(Err(FsError::Evicted));
        }
    }

    /// The server does not speak with us: tells the callers of now and of later, until it does.
    fn refuse(&self, error: FsError) {
        let (callers, before) = {
            let mut guarded = self.guarded.lock();
            let before = guarded.core.refused.replace(error.clone());
            (guarded.core.abandon_all(), before)
        };
        if before.as_ref() != Some(&error) {
            tracing::error!(target = %self.target, %error, "refused by the server");
        }
        self.changed.notify_waiters();
        for caller in callers {
            // A caller that is gone needs no answer.
            let _ = caller.send(Err(error.clone()));
        }
    }

    /// Requests that went out over a network cannot be repeated in process: their callers are told
    /// that the server they were sent to is gone.
    fn fail_remote_requests(&self) {
        let now = self.now();
        let callers = self.guarded.lock().core.abandon_all();
        for caller in callers {
            let error = self.guarded.lock().core.unreachable(now, now);
            // A caller that is gone needs no answer.
            let _ = caller.send(Err(error));
        }
    }

    /// The import is closed.
    fn finish(&self) {
        let now = self.now();
        let callers = {
            let mut guarded = self.guarded.lock();
            guarded.closing = true;
            guarded.link = None;
            if guarded.ends_with_session {
                guarded.core.refused = Some(FsError::Evicted);
            }
            guarded.core.state = ImportState::Closed;
            guarded.core.abandon_all()
        };
        self.permits.close();
        self.changes.close();
        self.urgent.close();
        self.memory.close();
        self.urgent_memory.close();
        self.control.close();
        self.changed.notify_waiters();
        for caller in callers {
            let error = self.guarded.lock().core.gone(now, now);
            // A caller that is gone needs no answer.
            let _ = caller.send(Err(error));
        }
    }

    /// Waits until the driver has closed the import.
    pub(super) async fn until_closed(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.guarded.lock().core.state == ImportState::Closed {
                return;
            }
            changed.await;
        }
    }
}
