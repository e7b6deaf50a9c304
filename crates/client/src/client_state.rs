//! Client state, in the sense of NFS: the opens and locks that MDTs keep for this client in memory
//! only. After a restart of an MDT this client reclaims it (see [`crate::targets::recovery`]).
//!
//! Life cycle: one per incarnation of a mount. When an MDT evicts this client, the incarnation ends
//! with all this state, and the next one begins under another client id.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use layout::Layout;
use parking_lot::Mutex;
use rpc::{
    Principal,
    message::mdt::{NotReclaimed, OpenId},
};
use rt::{Entropy, LogLimit};
use types::{ClientId, InodeNumber, MdtIndex};

use crate::{
    locks::{held_locks::HeldLocks, lock_waits::LockWaits},
    open_state::open_table::OpenTable,
    upper_cache::Above,
};

/// See the module documentation.
pub(crate) struct ClientState {
    /// Of the present incarnation.
    principal: Mutex<Principal>,
    pub opens: OpenTable,
    pub locks: HeldLocks,
    /// Requests for advisory locks.
    pub lock_waits: Arc<LockWaits>,
    /// Exclusive data locks.
    pub exclusives: Mutex<BTreeMap<InodeNumber, HeldExclusive>>,
    /// The cache above this client.
    pub above: Arc<Above>,
    /// What the log says of locks that are not given back.
    pub held_up: LogLimit,
    /// Number of power losses of OSTs that this client has noticed.
    era_noticed: AtomicU64,
}

/// An exclusive data lock of this client.
#[derive(Clone, Debug)]
pub(crate) struct HeldExclusive {
    /// The open it was taken through.
    pub open: Option<OpenId>,
    /// The layout that came with it and that its holder works on; `None`: that of the open.
    pub layout: Option<Layout>,
}

impl ClientState {
    pub fn new(principal: Principal) -> Self {
        Self {
            principal: Mutex::new(principal),
            opens: OpenTable::default(),
            era_noticed: AtomicU64::new(0),
            locks: HeldLocks::default(),
            lock_waits: Arc::default(),
            exclusives: Mutex::default(),
            above: Arc::default(),
            held_up: LogLimit::new(LogLimit::ONE_A_SECOND),
        }
    }

    /// The identity of this mount in its present incarnation.
    pub fn principal(&self) -> Principal {
        self.principal.lock().clone()
    }

    /// The id of the present incarnation.
    pub fn client(&self) -> ClientId {
        self.principal.lock().client()
    }

    /// Ends the incarnation of `client`: all that was open is stale, all locks are lost. False if
    /// it had ended before.
    pub fn end_incarnation(&self, client: ClientId, entropy: &dyn Entropy) -> bool {
        {
            let mut principal = self.principal.lock();
            if principal.client() != client {
                return false;
            }
            *principal = principal.renewed(entropy);
            assert_ne!(client, principal.client(), "a new incarnation has a client id of its own");
        }
        self.opens.lost();
        self.locks.lost();
        self.exclusives.lock().clear();
        self.lock_waits.restarted(None);
        true
    }

    /// Number of power losses of OSTs that this client has noticed.
    pub fn era_noticed(&self) -> u64 {
        self.era_noticed.load(Ordering::Acquire)
    }

    /// An OST has lost undurable changes; the number of this loss.
    pub fn notice_loss(&self) -> u64 {
        self.era_noticed.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// What is open of an inode is stale, and its locks are lost.
    pub fn lost_inode(&self, inode: InodeNumber) {
        self.opens.lost_inode(inode);
        self.locks.lost_inode(inode);
    }

    /// An MDT did not take over all that was claimed. If it lost nothing, a layout that it knows
    /// better was replaced by a change that this client has not learned of; it is asked for, and no
    /// write was lost by that.
    pub fn not_reclaimed(&self, refused: &NotReclaimed, has_lost: bool) {
        for inode in &refused.lost {
            tracing::warn!(%inode, "the creation of an open file was lost when its MDT lost power");
            self.lost_inode(*inode);
        }
        for open in refused.undone.iter().filter_map(|inode| self.opens.find(*inode)) {
            if has_lost { open.layout_undone() } else { open.outdate_layout() }
        }
    }

    pub fn exclusives_at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, HeldExclusive)> {
        let exclusives = self.exclusives.lock();
        let of_mdt = exclusives.iter().filter(|(inode, _)| inode.mdt() == mdt);
        of_mdt.map(|(inode, held)| (*inode, held.clone())).collect()
    }
}
