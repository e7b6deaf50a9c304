//! How locks are given back to an MDT, in the background: first the cache above lets go of what is
//! under them, then they go beside the next request, or with one of their own (`cache::cancels`).

use std::{sync::Arc, time::Duration};

use rpc::{
    Answered, ImportState,
    message::{
        MdtReply, MdtRequest,
        lock::{InodeBits, inode_bit},
    },
};
use rt::{BoxFuture, Clock, Seams, clock};
use types::{FsError, LockHandle, limits::VERSIONS_PER_CHANGE_MAX};

use crate::{cache::cancels::Released, join::join_all, targets::connection::TargetConnection};

/// Between two attempts to give locks back, each of which takes as long as callers wait.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long locks wait for a request that takes them along; at most twice as long. The kernel has
/// dropped a name that it removed by then, and need not be asked to.
const ROUND: Duration = Duration::from_millis(500);

impl TargetConnection {
    /// The MDT asks for a lock.
    pub(super) fn withdraw(self: &Arc<Self>, seams: &Seams, handle: LockHandle) {
        let released = self.cache().withdraw(&self.import(), handle, self.above().is_there());
        match released.and_then(|released| self.above().withdraw(released.inode, released.parts)) {
            Some(withdrawn) => {
                let (this, seams) = (self.clone(), seams.clone());
                let spawn = seams.spawn.clone();
                let work = async move {
                    withdrawn.await;
                    this.asked_back(&seams, handle);
                };
                spawn.spawn("lock withdrawal", Box::pin(work));
            }
            None => self.asked_back(seams, handle),
        }
    }

    /// A change of this client concerned an inode that could not be named before: the cache above
    /// lets go of the attributes of those that it changed, or of everything.
    pub(super) async fn withdraw_doubtful(&self, answered: Option<&Answered<MdtReply>>) {
        if !self.above().is_there() {
            return;
        }
        match answered.and_then(|answered| answered.extension.change.as_ref()) {
            Some(change) if change.versions.len() < VERSIONS_PER_CHANGE_MAX => {
                let attributes = InodeBits(inode_bit::ATTRIBUTES);
                let inodes = change.versions.iter().map(|version| version.inode);
                let withdrawn = inodes.filter_map(|inode| self.above().withdraw(inode, attributes)).collect();
                join_all::<BoxFuture<'static, ()>>(withdrawn).await;
            }
            _ => {
                if let Some(withdrawn) = self.above().withdraw_all() {
                    withdrawn.await;
                }
            }
        }
    }

    fn asked_back(self: &Arc<Self>, seams: &Seams, handle: LockHandle) {
        self.cache().cancels().asked_back(handle);
        self.give_locks_back(seams);
    }

    /// Changes how many locks are kept at most; 0: nothing is cached.
    pub fn set_locks_max(self: &Arc<Self>, seams: &Seams, locks_max: usize) {
        self.cache().set_locks_max(locks_max, self.above().is_there());
        self.cache().cancels().hurry();
        self.give_locks_back(seams);
    }

    /// Gives back the locks that are not used any more, in the background.
    pub fn give_locks_back(self: &Arc<Self>, seams: &Seams) {
        let (sends, gathers) = {
            let mut cancels = self.cache().cancels();
            (cancels.begin_to_send(), cancels.begin_to_gather())
        };
        if sends {
            let (this, clock) = (self.clone(), seams.clock.clone());
            seams.spawn.spawn("lock cancels", Box::pin(async move { this.send_cancels(&*clock).await }));
        }
        if gathers {
            let (this, seams) = (self.clone(), seams.clone());
            let spawn = seams.spawn.clone();
            spawn.spawn("idle locks", Box::pin(async move { this.gather_cancels(&seams).await }));
        }
    }

    async fn send_cancels(&self, clock: &dyn Clock) {
        loop {
            let handles = self.cache().cancels().next_urgent();
            if handles.is_empty() {
                return;
            }
            let import = self.import();
            // As long as the MDT may wait for it. All other errors end the session, and the locks
            // with it.
            while let Err(FsError::Unreachable { .. }) = import.call(MdtRequest::CancelLocks(handles.clone())).await {
                if import.state() == ImportState::Closed {
                    break;
                }
                clock::sleep(clock, INTERVAL).await;
            }
        }
    }

    async fn gather_cancels(self: &Arc<Self>, seams: &Seams) {
        loop {
            clock::sleep(&*seams.clock, ROUND).await;
            let Some(leaving) = self.cache().cancels().next_round() else { return };
            let let_go = |Released { handle, inode, parts }: Released| async move {
                if let Some(withdrawn) = self.above().withdraw(inode, parts) {
                    withdrawn.await;
                }
                handle
            };
            let left = join_all(leaving.into_iter().map(let_go).collect()).await;
            self.cache().cancels().left(left);
            self.give_locks_back(seams);
        }
    }
}
