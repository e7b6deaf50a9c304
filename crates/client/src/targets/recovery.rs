//! What happens when a server forgets this client.
//!
//! An MDT keeps opens and locks in memory only. After it restarted, this client claims again all it had there before any
//! other request goes on. There is nothing to claim at an OST; its restarts are only counted, for one that died may have done a
//! part of the change that its next start is asked for again.
//!
//! A server that lost power may have lost changes by which this client knows the size of a file. What is known is forgotten then, so
//! that no close cuts off what a truncation took away that was lost, or tells of more than there is.
//!
//! If an MDT evicted this client, what was open there is lost, and every OST refuses this client permanently, so that its late
//! writes cannot touch what others may have locked since. The client learns it from the first answer of any of them, be it to a
//! ping. The mount then begins a new life: under a new client id, with new connections to all targets. Files opened in the
//! old life are stale.
//!
//! An MDT that lost power may not know what this client has open: then those opens are stale, as if their life had ended.
//! Where another layout holds than the one this client worked by, it is asked for, and the next sync fails: see
//! [`crate::operations::sync`].
//!
//! A grant whose reply arrives while the MDT restarts may be missing in what was claimed. So whoever takes something
//! volatile compares the number of restarts before its request with that after it has noted the grant, and asks again if
//! they differ.

use std::sync::{Arc, Weak};

use layout::Layout;
use rpc::{
    Import, Recovery,
    message::{MdtReply, MdtRequest, mdt::Reclaim},
};
use rt::BoxFuture;
use types::{
    ClientId, FsResult, InodeNumber, MdtIndex, OstIndex,
    limits::{BODY_BYTES_MAX, RECLAIM_ENTRIES_MAX},
};

use crate::{
    client_state::ClientState,
    targets::{
        connection::{Restarts, unexpected},
        target_table::TargetTable,
    },
};

/// Bytes of layouts claimed in one request, far below the limit of a message's length.
const RECLAIM_LAYOUT_BYTES: usize = BODY_BYTES_MAX / 2;

/// Cuts layouts into batches that fit a message each.
fn layout_batches(layouts: Vec<(InodeNumber, Layout)>) -> Vec<Vec<(InodeNumber, Layout)>> {
    let mut batches: Vec<Vec<(InodeNumber, Layout)>> = Vec::new();
    let mut room = 0;
    for (inode, layout) in layouts {
        let bytes = layout.bytes_estimate();
        if bytes > room || batches.last().is_some_and(|batch| batch.len() == RECLAIM_ENTRIES_MAX) {
            batches.push(Vec::new());
            room = RECLAIM_LAYOUT_BYTES;
        }
        room = room.saturating_sub(bytes);
        batches.last_mut().expect("the first one needs a batch").push((inode, layout));
    }
    batches
}

/// Recovery of an MDT's session.
pub(crate) struct MdtRecovery {
    mdt: MdtIndex,
    client: ClientId,
    targets: Weak<TargetTable>,
    client_state: Arc<ClientState>,
    restarts: Arc<Restarts>,
}

impl MdtRecovery {
    pub fn new(
        mdt: MdtIndex,
        client: ClientId,
        targets: Weak<TargetTable>,
        client_state: Arc<ClientState>,
        restarts: Arc<Restarts>,
    ) -> Self {
        Self { mdt, client, targets, client_state, restarts }
    }

    async fn reclaim(&self, import: &Import, has_lost: bool, reclaim: Reclaim) -> FsResult<()> {
        match import.call(MdtRequest::Reclaim(reclaim)).await?.reply {
            MdtReply::Done => Ok(()),
            MdtReply::NotReclaimed(refused) => {
                self.client_state.not_reclaimed(&refused, has_lost);
                Ok(())
            }
            reply => Err(unexpected(reply)),
        }
    }
}

impl Recovery for MdtRecovery {
    fn recover(&self, import: &Import, has_lost: bool) -> BoxFuture<'_, FsResult<()>> {
        let import = import.clone();
        Box::pin(async move {
            self.restarts.noticed();
            if has_lost {
                self.client_state.opens.lost_changes();
            }
            let opens = self.client_state.opens.at(self.mdt);
            for batch in opens.chunks(RECLAIM_ENTRIES_MAX) {
                self.reclaim(&import, has_lost, Reclaim { opens: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let locks = self.client_state.locks.at(self.mdt, self.client);
            for batch in locks.chunks(RECLAIM_ENTRIES_MAX) {
                self.reclaim(&import, has_lost, Reclaim { locks: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let held = self.client_state.exclusives_at(self.mdt);
            let exclusives = held.iter().map(|(inode, held)| (*inode, held.open)).collect();
            self.reclaim(&import, has_lost, Reclaim { exclusives, ..Reclaim::default() }).await?;
            // Behind what they are of.
            let mut layouts = self.client_state.opens.layouts_at(self.mdt);
            layouts.extend(held.into_iter().filter_map(|(inode, held)| Some((inode, held.layout?))));
            for layouts in layout_batches(layouts) {
                self.reclaim(&import, has_lost, Reclaim { layouts, ..Reclaim::default() }).await?;
            }
            self.reclaim(&import, has_lost, Reclaim { done: true, ..Reclaim::default() }).await?;
            tracing::info!(target = %import.target(), opens = opens.len(), locks = locks.len(), "reclaimed");
            Ok(())
        })
    }

    fn evicted(&self) {
        self.restarts.noticed();
        tracing::warn!(mdt = %self.mdt, client = %self.client, "evicted: open files are stale, locks are lost");
        if let Some(targets) = self.targets.upgrade() {
            targets.begin_new_life(self.client);
        }
    }
}

/// Recovery of an OST's session.
pub(crate) struct OstRecovery {
    ost: OstIndex,
    client: ClientId,
    targets: Weak<TargetTable>,
    client_state: Arc<ClientState>,
    restarts: Arc<Restarts>,
}

impl OstRecovery {
    pub fn new(
        ost: OstIndex,
        client: ClientId,
        targets: Weak<TargetTable>,
        client_state: Arc<ClientState>,
        restarts: Arc<Restarts>,
    ) -> Self {
        Self { ost, client, targets, client_state, restarts }
    }
}

impl Recovery for OstRecovery {
    fn recover(&self, _import: &Import, has_lost: bool) -> BoxFuture<'_, FsResult<()>> {
        self.restarts.noticed();
        if has_lost {
            self.restarts.lost(self.client_state.notice_loss());
            self.client_state.opens.lost_changes();
        }
        Box::pin(std::future::ready(Ok(())))
    }

    /// An OST's sessions outlive their leases, so this comes from an MDT, which has told the OST before this client.
    fn evicted(&self) {
        tracing::warn!(ost = %self.ost, client = %self.client, "refused since an MDT evicted this client: open files are stale");
        if let Some(targets) = self.targets.upgrade() {
            targets.begin_new_life(self.client);
        }
    }
}
