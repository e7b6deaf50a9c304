//! Tells clients that wait what they wait for (module [`crate::waiters`]): a callback for each notice.
//!
//! A callback is repeated on each new connection until the client has answered, as long as its session
//! exists; so is no notice lost, however the network behaves. A client whose session ends asks again in
//! its next one; so do all when the MDT starts again.

use std::sync::Arc;

use tokio::sync::mpsc;
use types::FsError;

use super::{Mdt, cache::BUSY_PAUSE};
use crate::waiters::Notice;

/// Delivers notices until the MDT stops.
pub(crate) async fn run(mdt: Arc<Mdt>, mut delivery: mpsc::UnboundedReceiver<Notice>) {
    let mut stopping = mdt.stopping.subscribe();
    loop {
        let notice = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            notice = delivery.recv() => notice.expect("the sender lives in the MDT"),
        };
        let this = mdt.clone();
        mdt.seams.spawn.spawn("notice", Box::pin(async move { this.deliver(notice).await }));
    }
}

impl Mdt {
    async fn deliver(&self, Notice { client, request }: Notice) {
        let Some(clients) = self.revoker.clients() else { return };
        let turns = self.revoker.turns_of(client);
        let _turn = turns.acquire().await;
        loop {
            match clients.call_back(client, request.clone()).await {
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
}
