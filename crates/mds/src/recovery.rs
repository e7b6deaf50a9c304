//! Sessions over time: the recovery after a restart, the end of clients, and who must be told before their locks go on.
//!
//! After a restart, clients with a recorded session are *expected*. Each reclaims what it had open and locked; meanwhile no
//! lock is granted and no unlinked file ends. Recovery is over when nobody is expected any more: all came back, left, or
//! were evicted when the window closed; at once, if they lived in the MDT's former process, which cannot come back.
//! An eviction tells all OSTs to refuse the client (outbox); until those in use have heard it, the client's locks stay, so
//! that nobody reads or writes what a late write could still change.

use std::sync::Arc;

use rt::clock;
use types::{ClientId, FsError, FsResult, OstIndex};

use crate::{mdt::Mdt, namespace::Namespace, ops::sessions, tables::orphan};

/// Pause after something that the store refused.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// Unlinked files ended in one transaction.
const ORPHANS_PER_BATCH: usize = 256;

/// Waits for the clients of the former start, then ends what nobody claimed.
pub(crate) async fn run(mdt: Arc<Mdt>) {
    let deadline = mdt.seams.clock.now() + mdt.options.recovery_window;
    let mut stopping = mdt.stopping.subscribe();
    let gone = mdt.namespace().volatile.recovery.gone.clone();
    if !gone.is_empty() && !evict(&mdt, gone).await {
        return;
    }
    loop {
        let recovered = mdt.recovery_bell.notified();
        if !mdt.namespace().volatile.recovery.running() {
            break;
        }
        let event = async {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => true,
                () = recovered => false,
            }
        };
        match clock::timeout_at(&*mdt.seams.clock, deadline, event).await {
            Some(true) => return,
            Some(false) => {}
            None => {
                if !evict(&mdt, mdt.recovering_clients()).await {
                    return;
                }
            }
        }
    }
    finish(&mdt).await;
}

/// Evicts clients that did not come back; false if the MDT stops before. Waits for the map first: without it nobody knows
/// whom to tell.
async fn evict(mdt: &Arc<Mdt>, missing: impl IntoIterator<Item = ClientId>) -> bool {
    let (mut known, mut stopping) = (mdt.map_known.subscribe(), mdt.stopping.subscribe());
    tokio::select! {
        biased;
        _ = stopping.wait_for(|stopping| *stopping) => return false,
        _ = known.wait_for(|known| *known) => {}
    }
    for client in missing {
        tracing::warn!(target = %mdt.name(), %client, "the client did not come back");
        if !end_session_at_last(mdt, client, true).await {
            return false;
        }
    }
    true
}

/// Recovery is over: locks are granted again, unlinked files that nobody has open end.
async fn finish(mdt: &Arc<Mdt>) {
    mdt.namespace().volatile.waiters.wake_all();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let ended = mdt
            .transact(mdt.client, |txn| {
                let orphans = txn.orphans(after.as_deref(), ORPHANS_PER_BATCH)?;
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
                tracing::error!(target = %mdt.name(), %error, "unlinked files do not end yet");
                if !mdt.pause(RETRY).await {
                    return;
                }
            }
        }
    }
    mdt.namespace().volatile.recovery.ended = true;
}

/// A client has reclaimed everything.
pub(crate) fn client_recovered(mdt: &Mdt, client: ClientId) {
    let recovery = &mut mdt.namespace().volatile.recovery;
    if recovery.expected.remove(&client) {
        recovery.recovered.insert(client);
    }
    mdt.recovery_bell.notify_one();
}

/// A session begins. What the same client had in an earlier one is gone.
pub(crate) async fn begin_session(mdt: &Arc<Mdt>, client: ClientId, in_process: bool) -> FsResult<()> {
    if !end_session_at_last(mdt, client, false).await {
        return Err(FsError::NoDevice);
    }
    let process = in_process.then_some(mdt.options.process);
    mdt.transact(client, |txn| sessions::begin(txn, client, process)).await?;
    // A loss of power right after the mount must not make a stranger of the client.
    mdt.durable().await
}

/// As [`end_session`], tried again until the store takes it; false if the MDT stops before.
pub(crate) async fn end_session_at_last(mdt: &Arc<Mdt>, client: ClientId, evicted: bool) -> bool {
    loop {
        match end_session(mdt, client, evicted).await {
            Ok(()) => return true,
            Err(error) => tracing::error!(target = %mdt.name(), %client, %error, "a session does not end yet"),
        }
        if !mdt.pause(RETRY).await {
            return false;
        }
    }
}

/// A session ends, `evicted` or in order: opens are closed, locks released. After an error, which is the store's, the client
/// still has what was not released: nobody gets a lock before the OSTs are to be told of its last holder. May be repeated.
pub(crate) async fn end_session(mdt: &Arc<Mdt>, client: ClientId, evicted: bool) -> FsResult<()> {
    let context = mdt.context(client);
    let forget = |namespace: &mut Namespace| {
        let fenced = namespace.transact(&context, |txn| {
            let fence = evicted && sessions::may_write(txn, client);
            sessions::forget(txn, client, fence)?;
            Ok(fence)
        });
        if fenced == Ok(true) {
            // Before an agent can look: it may have told its OST by the time the kernel has the batch.
            let told: Vec<OstIndex> = namespace.volatile.targets.active().collect();
            namespace.volatile.fences.raise(client, told);
        }
        (fenced, namespace.last())
    };
    let (fenced, lsn) = mdt.with_room(0, forget).await;
    mdt.written(lsn).await?;
    fenced?;
    {
        let mut namespace = mdt.namespace();
        let volatile = &mut namespace.volatile;
        volatile.recovery.forget(client);
        if !volatile.fences.holds(client) {
            volatile.release_locks(client);
        }
    }
    mdt.recovery_bell.notify_one();
    while mdt.transact(client, |txn| sessions::abandon_some(txn, client)).await? {}
    Ok(())
}

/// `ost` refuses `client` from now on.
pub(crate) fn fence_delivered(namespace: &mut Namespace, client: ClientId, ost: OstIndex) {
    if namespace.volatile.fences.delivered(client, ost) {
        namespace.volatile.release_locks(client);
    }
}

/// An OST is out of use: nobody waits for it.
pub(crate) fn release_fences(namespace: &mut Namespace, ost: OstIndex) {
    for client in namespace.volatile.fences.waiting_for(ost) {
        fence_delivered(namespace, client, ost);
    }
}

/// Takes requests out of queues that were not asked again.
pub(crate) async fn expire_locks(mdt: Arc<Mdt>) {
    const INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
    while mdt.pause(INTERVAL).await {
        let now_ns = mdt.seams.clock.now().0;
        mdt.namespace().volatile.expire_waiters(now_ns);
    }
}
