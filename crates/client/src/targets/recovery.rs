//! What happens when a server forgets this client.
//!
//! An MDT keeps opens and locks in memory only. After it has restarted, this client reclaims
//! everything that it had there before any other request continues, and claims the locks under
//! which it cached names and attributes (module `lock_claims`). There is nothing to reclaim at an
//! OST; its restarts are only counted, because an OST that died may have executed part of a change
//! that is requested again after its next start.
//!
//! A server that lost power may have lost changes from which this client knows the size of a file.
//! Then this client forgets the size, so that no close reports too small a size after a truncation
//! that was lost, or too large a size after a write that was lost.
//!
//! If an MDT evicted this client, what was open there is lost, and every OST refuses this client
//! permanently, so that its late writes cannot touch what others may have locked since. The client
//! learns this from the first answer of any of them, even to a ping. The mount then starts a new
//! incarnation: under a new client id, with new connections to all targets. Files opened in the old
//! incarnation are stale.
//!
//! An MDT that lost power may not know some of the files that this client has open: then those
//! opens are stale, as after an eviction. If a file has another layout than the one that this
//! client used, the client asks for it, and the next sync fails: see [`crate::operations::sync`].
//!
//! A grant whose reply arrives while the MDT restarts may be missing in the reclaimed state. So an
//! operation that acquires volatile state compares the number of restarts before its request with
//! the number after it has noted the grant, and asks again if they differ.

use std::sync::{Arc, Weak};

use layout::Layout;
use rpc::{
    Import, Recovery,
    message::{ClientReply, ClientRequest, MdtReply, MdtRequest, mdt::Reclaim},
};
use rt::{BoxFuture, Seams};
use types::{
    ClientId, FsError, FsResult, InodeNumber, MdtIndex, OstIndex,
    limits::{BODY_BYTES_MAX, RECLAIM_ENTRIES_MAX},
};

use crate::{
    client_state::ClientState,
    targets::{
        connection::{Restarts, TargetConnection, unexpected},
        target_table::TargetTable,
    },
};

/// Bytes of layouts claimed in one request, far below the limit of a message's length.
const RECLAIM_LAYOUT_BYTES: usize = BODY_BYTES_MAX / 2;

/// Cuts layouts into batches that fit a message each.
fn layout_batches(layouts: Vec<(InodeNumber, Layout)>) -> Vec<Vec<(InodeNumber, Layout)>> {
    let mut batches: Vec<Vec<(InodeNumber, Layout)>> = Vec::new();
    let mut left_bytes = 0;
    for (inode, layout) in layouts {
        let bytes = layout.bytes_estimate();
        if bytes > left_bytes || batches.last().is_some_and(|batch| batch.len() == RECLAIM_ENTRIES_MAX) {
            batches.push(Vec::new());
            left_bytes = RECLAIM_LAYOUT_BYTES;
        }
        left_bytes = left_bytes.saturating_sub(bytes);
        batches.last_mut().expect("the first one needs a batch").push((inode, layout));
    }
    assert!(batches.iter().all(|batch| batch.len() <= RECLAIM_ENTRIES_MAX), "a batch fits a message");
    batches
}

/// Recovery of an MDT's session.
pub(crate) struct MdtRecovery {
    mdt: MdtIndex,
    client: ClientId,
    targets: Weak<TargetTable>,
    client_state: Arc<ClientState>,
    restarts: Arc<Restarts>,
    seams: Seams,
}

impl MdtRecovery {
    pub fn new(
        seams: Seams,
        mdt: MdtIndex,
        client: ClientId,
        targets: Weak<TargetTable>,
        client_state: Arc<ClientState>,
        restarts: Arc<Restarts>,
    ) -> Self {
        Self { mdt, client, targets, client_state, restarts, seams }
    }

    /// This client's view of the MDT; `None` while the mount ends.
    fn target(&self) -> Option<Arc<TargetConnection>> {
        self.targets.upgrade()?.mdt(self.mdt).ok()
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
            // No request waits at the new start, unless it was repeated there.
            self.client_state.lock_waits.restarted(Some(self.mdt));
            if let Some(target) = self.targets.upgrade().and_then(|targets| targets.mdt(self.mdt).ok()) {
                target.repetitions().ask_again(None);
            }
            let locks = self.client_state.locks.at(self.mdt, self.client);
            for batch in locks.chunks(RECLAIM_ENTRIES_MAX) {
                self.reclaim(&import, has_lost, Reclaim { locks: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let held = self.client_state.exclusives_at(self.mdt);
            let exclusives = held.iter().map(|(inode, held)| (*inode, held.open)).collect();
            self.reclaim(&import, has_lost, Reclaim { exclusives, ..Reclaim::default() }).await?;
            // After the opens to which they belong.
            let mut layouts = self.client_state.opens.layouts_at(self.mdt);
            layouts.extend(held.into_iter().filter_map(|(inode, held)| Some((inode, held.layout?))));
            for layouts in layout_batches(layouts) {
                self.reclaim(&import, has_lost, Reclaim { layouts, ..Reclaim::default() }).await?;
            }
            // Versions that were lost may be given again. Before the end of this client's part:
            // until then others' changes wait.
            if let Some(target) = self.target().filter(|_| !has_lost) {
                target.claim_locks(&import, &self.seams).await?;
            }
            self.reclaim(&import, has_lost, Reclaim { done: true, ..Reclaim::default() }).await?;
            tracing::info!(target = %import.target(), opens = opens.len(), locks = locks.len(), "reclaimed");
            Ok(())
        })
    }

    fn before_connect(&self) -> BoxFuture<'_, ()> {
        self.client_state.above.withdraw_all().unwrap_or_else(|| Box::pin(std::future::ready(())))
    }

    /// Locks ended with the former connection, also those under which files were opened: none is
    /// granted again before the MDT knows what is open.
    fn resume(&self, import: &Import) -> Option<BoxFuture<'_, FsResult<()>>> {
        let target = self.target()?;
        let has_opens = target.cache().has_wanted_opens();
        if !has_opens && !target.has_claims(import) {
            return None;
        }
        let (import, mdt) = (import.clone(), self.mdt);
        Some(Box::pin(async move {
            if has_opens {
                target.tell_all_opens(&import, mdt).await?;
            }
            target.claim_locks(&import, &self.seams).await
        }))
    }

    fn evicted(&self) {
        self.restarts.noticed();
        tracing::warn!(mdt = %self.mdt, client = %self.client, "evicted: open files are stale, locks are lost");
        if let Some(targets) = self.targets.upgrade() {
            targets.begin_new_incarnation(self.client);
        }
    }

    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        let reply = match self.target() {
            Some(target) => target.called_back(&self.seams, &request),
            // The mount ends, and all its locks with it.
            None => Err(FsError::NotFound),
        };
        Box::pin(std::future::ready(reply))
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

    /// An OST's sessions outlive their leases, so this comes from an MDT, which has told the OST
    /// before this client.
    fn evicted(&self) {
        tracing::warn!(ost = %self.ost, client = %self.client, "an MDT evicted this client: requests are refused, open files are stale");
        if let Some(targets) = self.targets.upgrade() {
            targets.begin_new_incarnation(self.client);
        }
    }
}
