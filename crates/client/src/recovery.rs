//! What happens when a server forgets this client.
//!
//! An MDT keeps opens and locks in memory only. After it restarted, this client claims again all it had there before any
//! other request goes on. There is nothing to claim at an OST; its restarts are only counted, for one that died may have done a
//! part of the change that its next start is asked for again.
//!
//! A server that lost power may have lost changes by which this client knows the size of a file. What is known is forgotten then, so
//! that no close cuts off what a truncation took away that was lost, or tells of more than there is.
//!
//! If an MDT evicted this client, what was open there is lost, and every OST refuses this client from then on and for
//! good, so that its late writes cannot touch what others may have locked since. The mount then begins a new life: under
//! a new client id, with new connections to all targets. Files opened in the old life are stale.
//!
//! An MDT that lost power may not know what this client has open: then those opens are stale, as if their life had ended.
//! Where another layout holds than the one this client worked by, it is asked for, and the next sync fails: see
//! [`crate::sync`].
//!
//! A grant whose reply arrives while the MDT restarts may be missing in what was claimed. So whoever takes something
//! volatile compares the number of restarts before its request with that after it has noted the grant, and asks again if
//! they differ.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use layout::Layout;
use parking_lot::Mutex;
use rpc::{
    Import, Recovery,
    message::{
        MdtReply, MdtRequest, Reply, Request,
        mdt::{NotReclaimed, OpenId, Reclaim},
    },
};
use rt::BoxFuture;
use types::{ClientId, FsResult, InodeNumber, MdtIndex, limits::BODY_BYTES_MAX};

use crate::{
    held_locks::HeldLocks,
    open_inode::OpenTable,
    target::{Restarts, unexpected},
    targets::Targets,
};

/// Opens or locks claimed in one request, far below the limit of a message's length.
const RECLAIM_BATCH: usize = 4096;
/// Bytes of layouts claimed in one request, likewise.
const RECLAIM_LAYOUT_BYTES: usize = BODY_BYTES_MAX / 2;

/// The state at MDTs that ends with them: what recovery is about.
pub(crate) struct Volatile {
    client: AtomicU64,
    pub opens: OpenTable,
    pub locks: HeldLocks,
    /// Exclusive data locks.
    pub exclusives: Mutex<BTreeMap<InodeNumber, HeldExclusive>>,
}

/// An exclusive data lock of this client.
#[derive(Clone, Debug)]
pub(crate) struct HeldExclusive {
    /// The open it was taken through.
    pub open: Option<OpenId>,
    /// The layout that came with it and that its holder works on; `None`: that of the open.
    pub layout: Option<Layout>,
}

impl Volatile {
    pub fn new(client: ClientId) -> Self {
        Self {
            client: AtomicU64::new(client.0),
            opens: OpenTable::default(),
            locks: HeldLocks::default(),
            exclusives: Mutex::default(),
        }
    }

    /// Who this mount is in its present life.
    pub fn client(&self) -> ClientId {
        ClientId(self.client.load(Ordering::Acquire))
    }

    /// Ends the life of `client`: all that was open is stale, all locks are lost. False if it had ended before.
    pub fn end_life(&self, client: ClientId, successor: ClientId) -> bool {
        if self.client.compare_exchange(client.0, successor.0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.opens.lost();
        self.locks.lost();
        self.exclusives.lock().clear();
        true
    }

    /// An MDT did not take over all that was claimed. If it lost nothing, a layout that it knows better was replaced by a
    /// change that this client has not heard of; it is asked for, and no write was lost by that.
    fn not_reclaimed(&self, refused: &NotReclaimed, has_lost: bool) {
        for inode in &refused.lost {
            tracing::warn!(%inode, "the creation of an open file was lost with its MDT's power");
            self.opens.lost_inode(*inode);
            self.locks.lost_inode(*inode);
        }
        for open in refused.undone.iter().filter_map(|inode| self.opens.find(*inode)) {
            if has_lost { open.layout_undone() } else { open.doubt_layout() }
        }
    }

    fn exclusives_at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, HeldExclusive)> {
        let exclusives = self.exclusives.lock();
        let of_mdt = exclusives.iter().filter(|(inode, _)| inode.mdt() == mdt);
        of_mdt.map(|(inode, held)| (*inode, held.clone())).collect()
    }
}

/// Cuts layouts into batches that fit a message each.
fn layout_batches(layouts: Vec<(InodeNumber, Layout)>) -> Vec<Vec<(InodeNumber, Layout)>> {
    let mut batches: Vec<Vec<(InodeNumber, Layout)>> = Vec::new();
    let mut room = 0;
    for (inode, layout) in layouts {
        let bytes = layout.bytes_estimate();
        if bytes > room {
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
    targets: Weak<Targets>,
    volatile: Arc<Volatile>,
    restarts: Arc<Restarts>,
}

impl MdtRecovery {
    pub fn new(
        mdt: MdtIndex,
        client: ClientId,
        targets: Weak<Targets>,
        volatile: Arc<Volatile>,
        restarts: Arc<Restarts>,
    ) -> Self {
        Self { mdt, client, targets, volatile, restarts }
    }

    async fn reclaim(&self, import: &Import, has_lost: bool, reclaim: Reclaim) -> FsResult<()> {
        match import.call(Request::Mdt(MdtRequest::Reclaim(reclaim)), bytes::Bytes::new()).await?.0 {
            Reply::Mdt(MdtReply::Done) => Ok(()),
            Reply::Mdt(MdtReply::NotReclaimed(refused)) => {
                self.volatile.not_reclaimed(&refused, has_lost);
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
                self.volatile.opens.lost_changes();
            }
            let opens = self.volatile.opens.at(self.mdt);
            for batch in opens.chunks(RECLAIM_BATCH) {
                self.reclaim(&import, has_lost, Reclaim { opens: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let locks = self.volatile.locks.at(self.mdt, self.client);
            for batch in locks.chunks(RECLAIM_BATCH) {
                self.reclaim(&import, has_lost, Reclaim { locks: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let held = self.volatile.exclusives_at(self.mdt);
            let exclusives = held.iter().map(|(inode, held)| (*inode, held.open)).collect();
            self.reclaim(&import, has_lost, Reclaim { exclusives, ..Reclaim::default() }).await?;
            // Behind what they are of.
            let mut layouts = self.volatile.opens.layouts_at(self.mdt);
            layouts.extend(held.into_iter().filter_map(|(inode, held)| Some((inode, held.layout?))));
            for layouts in layout_batches(layouts) {
                self.reclaim(&import, has_lost, Reclaim { layouts, ..Reclaim::default() }).await?;
            }
            self.reclaim(&import, has_lost, Reclaim { done: true, ..Reclaim::default() }).await?;
            tracing::info!(target = import.target(), opens = opens.len(), locks = locks.len(), "reclaimed");
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
    volatile: Arc<Volatile>,
    restarts: Arc<Restarts>,
}

impl OstRecovery {
    pub fn new(volatile: Arc<Volatile>, restarts: Arc<Restarts>) -> Self {
        Self { volatile, restarts }
    }
}

impl Recovery for OstRecovery {
    fn recover(&self, _import: &Import, has_lost: bool) -> BoxFuture<'_, FsResult<()>> {
        self.restarts.noticed();
        if has_lost {
            self.volatile.opens.lost_changes();
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
