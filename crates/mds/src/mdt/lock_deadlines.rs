//! Reminds clients of locks that they were asked for, and evicts those that do not give them back
//! (module [`crate::lock_deadlines`]), whether or not a change waits for them, and those that do
//! not answer (module [`crate::lock_callbacks`]).
//!
//! An evicted client may be alive. It serves from its cache until its lease ends, so its locks are
//! kept until then.

use std::sync::Arc;

use rt::{Beat, beat::all_cores_ran_within};
use types::ClientId;

use super::Mdt;
use crate::{cache_locks::DueLocks, lock_deadlines::TICKS};

/// Watches the time of all locks that were asked for.
pub(crate) async fn run(mdt: Arc<Mdt>) {
    let asked = mdt.namespace().volatile.cache.lock().asked_for();
    let mut stopping = mdt.stopping.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = asked.notified() => {}
        }
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = watch(&mdt) => {}
        }
    }
}

/// Until no client is to give a lock back, or to answer.
async fn watch(mdt: &Arc<Mdt>) {
    let (clock, spawn) = (&*mdt.seams.clock, &*mdt.seams.spawn);
    while !mdt.namespace().volatile.cache.lock().nothing_asked() {
        let interval = mdt.parameters().lock_timeout / TICKS;
        let mut beat = Beat::new(clock.now(), interval);
        while !beat.tick(clock).await.may_judge {}
        // What arrived in time is read before any client is evicted.
        all_cores_ran_within(clock, spawn, interval).await;
        let DueLocks { callers, late, deaf } = mdt.namespace().volatile.cache.lock().tick();
        mdt.ask_back(callers);
        late.into_iter().for_each(|client| mdt.evict_holder(client, "the client did not give back a lock in time"));
        deaf.into_iter().for_each(|client| mdt.evict_holder(client, "the client does not answer callbacks for locks"));
    }
}

impl Mdt {
    /// Ends the session of a client that does not give a lock back, or does not answer.
    pub(super) fn evict_holder(&self, client: ClientId, reason: &'static str) {
        let Some(clients) = self.revoker.clients() else { return };
        let name = clients.name(client);
        tracing::warn!(target = %self.name(), %client, name, "evicted: {reason}");
        let evict = async move {
            // Without a session it has been evicted, and its locks go with its lease.
            let _ = clients.evict(client).await;
        };
        self.seams.spawn.spawn("lock_eviction", Box::pin(evict));
    }
}
