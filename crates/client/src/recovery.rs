//! What happens when a server forgets this client.
//!
//! An MDT keeps opens and locks in memory only. After it restarted, this client claims again all it had there before any
//! other request goes on. An OST has nothing to claim.
//!
//! If an MDT evicted this client, what was open there is lost, and every OST refuses this client from then on and for
//! good, so that its late writes cannot touch what others may have locked since. The mount then begins a new life: under
//! a new client id, with new connections to all targets. Files opened in the old life are stale.
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

use layout::{Backing, Component, Layout};
use parking_lot::Mutex;
use rpc::{
    Import, Recovery,
    message::{
        MdtReply, MdtRequest, Reply, Request,
        mdt::{OpenId, Reclaim},
        session::Connected,
    },
};
use rt::BoxFuture;
use types::{ClientId, FsResult, InodeNumber, MdtIndex};

use crate::{
    held_locks::HeldLocks,
    open_inode::OpenTable,
    target::{Restarts, unexpected},
    targets::Targets,
};

/// Opens or locks claimed in one request, far below the limit of a message's length.
const RECLAIM_BATCH: usize = 4096;
/// Components and stripes of layouts claimed in one request, likewise: a component takes at most some hundred bytes.
const RECLAIM_UNITS: usize = 8192;

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

    fn exclusives_at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, HeldExclusive)> {
        let exclusives = self.exclusives.lock();
        let of_mdt = exclusives.iter().filter(|(inode, _)| inode.mdt() == mdt);
        of_mdt.map(|(inode, held)| (*inode, held.clone())).collect()
    }
}

/// What a component takes in a message: itself, its stripes, and the OSTs that were asked for.
fn units(component: &Component) -> usize {
    let asked = match &component.backing {
        Backing::Pending(spec) | Backing::Striped { spec, .. } => spec.osts.len(),
        Backing::Mdt { .. } | Backing::Extension { .. } | Backing::Automatic => 0,
    };
    1 + component.slots().len() + asked
}

/// Cuts layouts into batches that fit a message each.
fn layout_batches(layouts: Vec<(InodeNumber, Layout)>) -> Vec<Vec<(InodeNumber, Layout)>> {
    let mut batches: Vec<Vec<(InodeNumber, Layout)>> = Vec::new();
    let mut room = 0;
    for (inode, layout) in layouts {
        let units = layout.components.iter().map(units).sum::<usize>();
        if units > room {
            batches.push(Vec::new());
            room = RECLAIM_UNITS;
        }
        room = room.saturating_sub(units);
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

    async fn reclaim(&self, import: &Import, reclaim: Reclaim) -> FsResult<()> {
        match import.call(Request::Mdt(MdtRequest::Reclaim(reclaim)), bytes::Bytes::new()).await?.0 {
            Reply::Mdt(MdtReply::Done) => Ok(()),
            reply => Err(unexpected(reply)),
        }
    }
}

impl Recovery for MdtRecovery {
    fn recover(&self, import: &Import, _connected: &Connected) -> BoxFuture<'_, FsResult<()>> {
        let import = import.clone();
        Box::pin(async move {
            self.restarts.noticed();
            let opens = self.volatile.opens.at(self.mdt);
            for batch in opens.chunks(RECLAIM_BATCH) {
                self.reclaim(&import, Reclaim { opens: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let locks = self.volatile.locks.at(self.mdt, self.client);
            for batch in locks.chunks(RECLAIM_BATCH) {
                self.reclaim(&import, Reclaim { locks: batch.to_vec(), ..Reclaim::default() }).await?;
            }
            let held = self.volatile.exclusives_at(self.mdt);
            let exclusives = held.iter().map(|(inode, held)| (*inode, held.open)).collect();
            self.reclaim(&import, Reclaim { exclusives, ..Reclaim::default() }).await?;
            // Behind what they are of.
            let mut layouts = self.volatile.opens.layouts_at(self.mdt);
            layouts.extend(held.into_iter().filter_map(|(inode, held)| Some((inode, held.layout?))));
            for layouts in layout_batches(layouts) {
                self.reclaim(&import, Reclaim { layouts, ..Reclaim::default() }).await?;
            }
            self.reclaim(&import, Reclaim { done: true, ..Reclaim::default() }).await?;
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
