//! Tells clients that wait what they wait for (module [`crate::waiters`]): a callback for each
//! notice, by a few tasks for each client. Evicts clients with too many
//! notices.
//!
//! A callback is repeated on each new connection until the client has answered, as long as its
//! session exists; so is no notice lost, however the network behaves. A client whose session ends
//! asks again in its next one; so do all when the MDT starts again.

use std::sync::Arc;

use types::{ClientId, FsError};

use super::{Mdt, cache::BUSY_PAUSE};
use crate::waiters::{Notice, Work};

/// Begins deliveries and evictions until the MDT stops.
pub(crate) async fn run(mdt: Arc<Mdt>) {
    let wakeup = mdt.namespace().volatile.waiters.wakeup();
    let mut stopping = mdt.stopping.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = wakeup.notified() => {}
        }
        let work = mdt.namespace().volatile.waiters.take_work();
        for work in work {
            let this = mdt.clone();
            match work {
                Work::Deliver(client) => {
                    mdt.seams.spawn.spawn("notices", Box::pin(async move { this.deliver_to(client).await }));
                }
                Work::Evict(client) => {
                    mdt.seams.spawn.spawn("notices_eviction", Box::pin(async move { this.evict_deaf(client).await }));
                }
            }
        }
    }
}

impl Mdt {
    /// Delivers notices to a client until none is pending.
    async fn deliver_to(&self, client: ClientId) {
        let mut done = None;
        // No client is called back when the MDT stops: clients ask its next start.
        while !*self.stopping.borrow() {
            let Some(notice) = self.namespace().volatile.waiters.next(client, done) else { return };
            self.deliver(client, notice).await;
            done = Some(notice);
        }
    }

    async fn deliver(&self, client: ClientId, notice: Notice) {
        let Some(clients) = self.revoker.clients() else { return };
        loop {
            match clients.call_back(client, notice.request()).await {
                Err(FsError::Busy) if self.pause(BUSY_PAUSE).await => {}
                // It waits no more; or it asks the next start, or in its next session.
                Ok(_) | Err(FsError::NotFound | FsError::Evicted | FsError::NoDevice | FsError::Busy) => return,
                Err(error) => {
                    tracing::warn!(target = %self.name(), %client, %error, "cannot notify a waiting client");
                    return;
                }
            }
        }
    }

    /// Ends the session of a client that has too many notices pending.
    async fn evict_deaf(&self, client: ClientId) {
        let is_ended = match self.revoker.clients() {
            Some(clients) => {
                let (name, pending_max) = (clients.name(client), self.options.notices_per_client_max);
                tracing::warn!(
                    target = %self.name(), %client, name, pending_max,
                    "evicted: the client does not answer callbacks, and too many notices are pending for it"
                );
                clients.evict(client).await
            }
            None => false,
        };
        if !is_ended {
            // It has no session, or that is ending.
            self.namespace().volatile.waiters.session_ended(client);
        }
    }
}
