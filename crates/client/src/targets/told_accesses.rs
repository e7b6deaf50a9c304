//! Tells an MDT of accesses that this client decided and that change access times
//! (`cache::accesses`): in the background, before the lock of such an inode is given back, before
//! its access time is set, and at the unmount. By one request at a time.

use std::{sync::Arc, time::Duration};

use rpc::{
    Answered, ImportState,
    message::{MdtReply, MdtRequest, Step},
};
use rt::{Seams, Spawn, clock};
use types::{FsError, FsResult};

use crate::{
    cache::accesses::Due,
    cancellation::finish::finish,
    targets::connection::{TargetConnection, unexpected},
};

/// How long an access waits for others that go with it. Until then other clients see the earlier
/// time.
const DELAY: Duration = Duration::from_secs(1);
/// The most that an unmount waits for them.
const UNMOUNT_MAX: Duration = Duration::from_secs(2);

impl TargetConnection {
    /// After the cache was used: has what it noted sent, in the background.
    pub(super) fn send_accesses(self: &Arc<Self>, seams: &Seams) {
        match self.cache().take_due_accesses() {
            Due::Nothing => {}
            Due::Now => {
                let this = self.clone();
                seams.spawn.spawn("access times", Box::pin(async move { this.tell_accesses_or_not().await }));
            }
            Due::Later => {
                let (this, clock) = (self.clone(), seams.clock.clone());
                let later = async move {
                    loop {
                        clock::sleep(&*clock, DELAY).await;
                        this.tell_accesses_or_not().await;
                        if this.cache().ends_schedule_of_accesses() {
                            return;
                        }
                    }
                };
                seams.spawn.spawn("access times", Box::pin(later));
            }
        }
    }

    /// For callers that go on whatever becomes of them.
    pub(super) async fn tell_accesses_or_not(&self) {
        if let Err(error) = self.tell_accesses().await {
            tracing::debug!(%error, "cannot tell the MDT of access times");
        }
    }

    /// The MDT knows of all accesses so far, or did not take them. An error: it cannot be reached,
    /// and some are to be told again. Must not be dropped.
    async fn tell_accesses(&self) -> FsResult<()> {
        let last = self.cache().last_access();
        let _turn = self.telling_accesses().lock().await;
        loop {
            let import = self.import();
            let accesses = self.cache().begin_telling_accesses(last);
            if accesses.is_empty() {
                return Ok(());
            }
            let outcome = match import.call(MdtRequest::NoteAccesses(accesses.clone())).await {
                Ok(Answered { reply: MdtReply::AccessesNoted(noted), .. }) if noted.len() == accesses.len() => {
                    Ok(noted)
                }
                Ok(Answered { reply, .. }) => Err(unexpected(reply)),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(noted) => self.cache().told_accesses(&accesses, &noted),
                Err(error) => {
                    // Otherwise their locks end, or the MDT does not understand them.
                    let may_repeat = matches!(error, FsError::Unreachable { .. });
                    let may_repeat = may_repeat && import.state() != ImportState::Closed;
                    self.cache().failed_to_tell_accesses(&accesses, may_repeat);
                    if may_repeat {
                        return Err(error);
                    }
                    tracing::debug!(%error, "the MDT does not take access times");
                }
            }
        }
    }

    /// Whether a request sets an access time before which the MDT has to know of accesses.
    fn follows_accesses(&self, request: &MdtRequest) -> bool {
        match request {
            MdtRequest::SetAttributes(_, inode, set) => set.atime.is_some() && self.cache().has_access(*inode),
            // Its inodes are known to the MDT only.
            MdtRequest::Compound(compound) => {
                let sets = |step: &Step| matches!(step, Step::SetAttributes { set, .. } if set.atime.is_some());
                compound.steps.iter().any(sets) && self.cache().has_accesses()
            }
            _ => false,
        }
    }

    /// A request is about to be sent. If it sets an access time, no earlier access to that inode
    /// comes after it. An error: the MDT cannot be reached.
    pub async fn tell_accesses_first(self: &Arc<Self>, spawn: &Arc<dyn Spawn>, request: &MdtRequest) -> FsResult<()> {
        if !self.follows_accesses(request) {
            return Ok(());
        }
        let this = self.clone();
        finish(spawn, move |_| async move { this.tell_accesses().await }).await
    }

    /// The session is about to end.
    pub async fn tell_last_accesses(self: &Arc<Self>, seams: &Seams) {
        if self.cache().has_accesses() {
            let this = self.clone();
            let told = finish(&seams.spawn, move |_| async move { this.tell_accesses_or_not().await });
            clock::timeout_at(&*seams.clock, seams.clock.now() + UNMOUNT_MAX, told).await;
        }
    }
}
