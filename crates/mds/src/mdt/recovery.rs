//! Sessions over time: the recovery after a restart, the end of clients, and who must be told
//! before their locks are granted to others.
//!
//! After a restart, clients with a recorded session are *expected*. Each reclaims what it had open
//! and locked; meanwhile no lock is granted and no unlinked file is deleted. Recovery is over when
//! no client is expected any more: all came back, left, or were evicted when the window closed.
//! Clients in the MDT's former process, which cannot come back, are evicted at once. An eviction
//! tells all OSTs to refuse the client (a deferred operation); until those in use have confirmed
//! it, the client's locks are kept, so that no other client reads or writes what a late write could
//! still change.
//!
//! An evicted client may live, and serves from its cache until its lease ends. That is on disk with
//! the end of its session: a start that finds such a client changes nothing that it may serve for
//! the recovery window, which is no shorter than a lease.

use std::{collections::VecDeque, pin::pin, sync::Arc};

use parking_lot::Mutex;
use rt::beat;
use tokio::sync::mpsc;
use types::{ClientId, FsError, FsResult, OstIndex};

use super::Mdt;
use crate::{namespace::Namespace, ops::sessions, tables::orphan, transaction::Context, volatile::Recovery};

/// Pause after something that the store refused.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// Sessions that are ended at a time. Their batches go to the kernel together.
const EVICTIONS_AT_A_TIME: usize = 64;
/// Unlinked files ended in one transaction.
const ORPHANS_PER_BATCH: usize = 256;

/// Waits for the clients of the former start, then ends the state that no client reclaimed.
pub(crate) async fn run(mdt: Arc<Mdt>) {
    let (clock, spawn) = (mdt.seams.clock.clone(), mdt.seams.spawn.clone());
    // Time during which this process is suspended is not part of the window: no client could come
    // back.
    let mut window = pin!(beat::running_for(&*clock, &*spawn, mdt.options.recovery_window));
    let mut is_over = false;
    let mut stopping = mdt.stopping.subscribe();
    let are_gone = !mdt.namespace().volatile.recovery.gone.is_empty();
    if are_gone && !evict(&mdt, |recovery| recovery.gone.iter().copied().collect()).await {
        return;
    }
    loop {
        let recovered = mdt.recovery_wakeup.notified();
        if !mdt.namespace().volatile.recovery.running() {
            break;
        }
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = recovered => {}
            () = &mut window, if !is_over => is_over = true,
        }
        if is_over && !evict(&mdt, |recovery| recovery.expected.iter().copied().collect()).await {
            return;
        }
    }
    finish(&mdt).await;
}

/// Waits until the leases of clients that the former start evicted have ended.
pub(crate) async fn end_leases(mdt: Arc<Mdt>) {
    if mdt.namespace().volatile.recovery.leased.is_empty() {
        return;
    }
    let (clock, spawn) = (mdt.seams.clock.clone(), mdt.seams.spawn.clone());
    let mut stopping = mdt.stopping.subscribe();
    tokio::select! {
        biased;
        _ = stopping.wait_for(|stopping| *stopping) => return,
        () = beat::running_for(&*clock, &*spawn, mdt.options.recovery_window) => {}
    }
    let clients = mdt.namespace().volatile.recovery.leases_ended();
    for client in clients {
        if !lease_ended(&mdt, client).await {
            return;
        }
    }
}

/// The lease of an evicted client has ended: a later start need not wait for that. False if the MDT
/// stops before the store takes it.
pub(crate) async fn lease_ended(mdt: &Arc<Mdt>, client: ClientId) -> bool {
    loop {
        match mdt.transact(mdt.principal.client(), |txn| sessions::lease_ended(txn, client)).await {
            Ok(()) => return true,
            Err(error) => {
                tracing::error!(target = %mdt.name(), %client, %error, "cannot note the end of a lease, retrying");
            }
        }
        if !mdt.pause(RETRY).await {
            return false;
        }
    }
}

/// Evicts clients that did not come back; false if the MDT stops before. Waits for the map first:
/// without it, it is not known which OSTs to tell. Clients that came back by then, or come back
/// while others are evicted, stay. Some are evicted at a time: each waits for the store, and
/// others' changes wait for all.
async fn evict(mdt: &Arc<Mdt>, missing: impl FnOnce(&Recovery) -> VecDeque<ClientId>) -> bool {
    let (mut known, mut stopping) = (mdt.map_known.subscribe(), mdt.stopping.subscribe());
    tokio::select! {
        biased;
        _ = stopping.wait_for(|stopping| *stopping) => return false,
        _ = known.wait_for(|known| *known) => {}
    }
    let missing = Arc::new(Mutex::new(missing(&mdt.namespace().volatile.recovery)));
    // Closed when no task is left.
    let (running, mut all_ended) = mpsc::channel::<()>(1);
    for _ in 0..EVICTIONS_AT_A_TIME.min(missing.lock().len()) {
        let (this, missing, running) = (mdt.clone(), missing.clone(), running.clone());
        let evictions = async move {
            let next = || missing.lock().pop_front();
            while let Some(client) = next() {
                if !end_session_at_last(&this, client, Ending::NotRecovered).await {
                    break;
                }
            }
            drop(running);
        };
        mdt.seams.spawn.spawn("recovery_evictions", Box::pin(evictions));
    }
    drop(running);
    let ended = all_ended.recv().await;
    assert!(ended.is_none(), "nothing is sent");
    !*mdt.stopping.borrow()
}

/// Recovery is over: locks are granted again, and unlinked files that no client has open are
/// deleted.
async fn finish(mdt: &Arc<Mdt>) {
    {
        let mut namespace = mdt.namespace();
        let volatile = &mut namespace.volatile;
        assert!(!volatile.recovery.running(), "recovery is over when no client is expected any more");
        volatile.waiters.wake_start();
    }
    let mut after: Option<Vec<u8>> = None;
    loop {
        let ended = mdt
            .transact(mdt.principal.client(), |txn| {
                let orphans = txn.orphans(after.as_deref(), ORPHANS_PER_BATCH)?;
                txn.need_inodes(orphans.iter().copied())?;
                for inode in &orphans {
                    txn.reap(*inode)?;
                    if txn.is_large() {
                        return Ok(Some(*inode));
                    }
                }
                Ok(orphans.last().copied())
            })
            .await;
        match ended {
            Ok(Some(last)) => after = Some(orphan::key(last)),
            Ok(None) => break,
            Err(error) => {
                tracing::error!(target = %mdt.name(), %error, "cannot remove unlinked files, retrying");
                if !mdt.pause(RETRY).await {
                    return;
                }
            }
        }
    }
    let was_ended = std::mem::replace(&mut mdt.namespace().volatile.recovery.ended, true);
    assert!(!was_ended, "recovery ends once");
}

/// A session begins. What the same client had in an earlier one is gone.
pub(crate) async fn begin_session(mdt: &Arc<Mdt>, client: ClientId, in_process: bool) -> FsResult<()> {
    if !end_session_at_last(mdt, client, Ending::InOrder).await {
        return Err(FsError::NoDevice);
    }
    let process = in_process.then_some(mdt.options.process);
    mdt.transact(client, |txn| sessions::begin(txn, client, process)).await?;
    // A power loss right after the mount must not make a stranger of the client.
    mdt.durable().await
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its client closed it, or it is gone and a new one follows.
    InOrder,
    /// Its lease ran out, or it was evicted before. The connection ends, too.
    Evicted {
        /// It may serve what it was granted until its lease ends; [`lease_ended`] is to follow.
        is_leased: bool,
    },
    /// Its client did not come back after a restart. It may have a connection, and learns from its
    /// next request.
    NotRecovered,
}

/// As [`end_session`], tried again until the store takes it; false if the MDT stops before.
pub(crate) async fn end_session_at_last(mdt: &Arc<Mdt>, client: ClientId, ending: Ending) -> bool {
    loop {
        match end_session(mdt, client, ending).await {
            Ok(()) => return true,
            Err(error) => tracing::error!(target = %mdt.name(), %client, %error, "cannot end a session, retrying"),
        }
        if !mdt.pause(RETRY).await {
            return false;
        }
    }
}

/// A session ends: opens are closed, locks released. After an error, which is the store's, the
/// client still has what was not released: no other client gets a lock before the OSTs are to be
/// told of its last holder. May be repeated.
pub(crate) async fn end_session(mdt: &Arc<Mdt>, client: ClientId, ending: Ending) -> FsResult<()> {
    // Not the client's: it may have been evicted.
    let context = mdt.context(mdt.principal.client());
    let forget = |namespace: &mut Namespace| {
        let is_wanted = ending != Ending::NotRecovered || namespace.volatile.recovery.is_missing(client);
        let forgotten = is_wanted.then(|| forget(namespace, &context, client, ending)).transpose();
        (forgotten, namespace.last())
    };
    let (forgotten, lsn) = mdt.with_space(0, forget).await;
    mdt.ask_back_now();
    mdt.written(lsn).await?;
    if forgotten?.is_none() {
        return Ok(());
    }
    {
        let mut namespace = mdt.namespace();
        let volatile = &mut namespace.volatile;
        volatile.recovery.forget(client);
        volatile.invitations.forget(client);
        if ending != Ending::NotRecovered {
            // It has no connection, or a new session.
            volatile.recovery.evicted.remove(&client);
        }
        // Its requests have ended: it leaves nothing out any more, and no fence is above the
        // layout.
        volatile.end_layout_changes_of(client);
        if !volatile.fences.holds(client) {
            volatile.release_locks(client);
        }
        volatile.waiters.session_ended(client);
    }
    mdt.forget_presumptions(client).await;
    mdt.recovery_wakeup.notify_one();
    while mdt.transact(mdt.principal.client(), |txn| sessions::abandon_some(txn, client)).await? {}
    Ok(())
}

/// In one step, under the namespace's lock: the session's records go, OSTs are to be told, and the
/// client is refused.
fn forget(namespace: &mut Namespace, context: &Context, client: ClientId, ending: Ending) -> FsResult<()> {
    let fenced = namespace.transact(context, |txn| {
        let fence = ending != Ending::InOrder && sessions::may_write(txn, client);
        if ending == Ending::InOrder {
            sessions::lease_ended(txn, client)?;
        }
        sessions::forget(txn, client, (fence, ending == Ending::Evicted { is_leased: true }))?;
        Ok(fence)
    })?;
    let volatile = &mut namespace.volatile;
    if ending == Ending::InOrder {
        volatile.recovery.lease_ended(client);
    }
    if fenced {
        volatile.recovery.refused.insert(client);
        // Before an OST proxy can look: it may have told its OST by the time the kernel has the
        // batch.
        let told: Vec<OstIndex> = volatile.targets.active().collect();
        volatile.fences.raise(client, told);
    }
    if ending == Ending::NotRecovered {
        volatile.recovery.evict(client);
        tracing::warn!(target = %namespace.target(), %client, "evicted: the client did not reconnect after the restart");
    }
    Ok(())
}
