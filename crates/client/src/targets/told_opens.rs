//! Tells an MDT of opens that this client made without a request, under locks on the opens of their
//! inodes.
//!
//! The MDT has to know an open before such a lock is given back, before anything is asked that
//! depends on it ([`depends_on_opens`]), and when locks have ended with their connection
//! ([`TargetConnection::tell_all_opens`]). Opens are reported by one request at a time. The close
//! of an open that is possibly just being reported waits for the end of the report, because an open
//! must not be reported after its close.

use std::{sync::Arc, time::Duration};

use rpc::{
    Import, LateOutcome, Question,
    message::{
        MdtReply, MdtRequest,
        mdt::{LockMode, RegisterOpens},
    },
};
use rt::{Seams, Spawn, clock};
use types::{FsError, FsResult, InodeNumber, MdtIndex, limits::OPENS_PER_MESSAGE_MAX};

use crate::{
    cancellation::finish::finish,
    open_state::registered_open::Told,
    targets::connection::{TargetConnection, unexpected},
};

/// Inodes of which the MDT must know this client's opens before it executes this request: those of
/// which it asks for an open, or of which it must not replace the layout while they are open.
pub(crate) fn depends_on_opens(request: &MdtRequest) -> Vec<InodeNumber> {
    use MdtRequest as R;
    match request {
        R::SetLock(set) if set.mode != LockMode::Unlock => vec![set.inode],
        R::DataVersion(_, version) => vec![version.inode],
        R::SwapLayouts(_, swap) => vec![swap.first.inode, swap.second.inode],
        R::ChangeLayout(_, inode, _) | R::RemoveXattr(_, inode, _) => vec![*inode],
        R::SetXattr(_, set) => vec![set.inode],
        R::Lookup(..)
        | R::GetAttributes(_)
        | R::SetAttributes(..)
        | R::Access(..)
        | R::Create(..)
        | R::CreateUnnamed(..)
        | R::Open(..)
        | R::Close(_)
        | R::ReportSize(_)
        | R::ExclusiveBegin(..)
        | R::ExclusiveEnd(_)
        | R::ClearPrivileges(_)
        | R::Unlink(..)
        | R::Rename(..)
        | R::Link(..)
        | R::ReadLink(_)
        | R::ReadDirectory(_)
        | R::GetXattr(..)
        | R::ListXattr(..)
        | R::GetLayout(_)
        | R::SetDefaultLayout(..)
        | R::SetDirectoryDefault(..)
        | R::SplitDirectory(..)
        | R::MoveInode(..)
        | R::RepairName(..)
        | R::InodePaths(..)
        | R::SetLock(_)
        | R::CancelLock(_)
        | R::GetLock(_)
        | R::StatFs
        | R::Commit
        | R::Reclaim(_)
        | R::Ping
        | R::Check(..)
        | R::ScanInodes(..)
        | R::RepairSize(..)
        | R::Disconnect
        | R::Instantiate(_)
        | R::ChangeData(_)
        | R::ReadData(_)
        | R::Compound(_)
        | R::ReportFull(_)
        | R::LeaveFullOst(_)
        | R::DropPrivileges(..)
        | R::CancelLocks(_)
        | R::RegisterOpens(_)
        | R::NoteAccesses(_)
        | R::ClaimLocks(_)
        | R::MakeDirectory(..)
        | R::Prepare(_)
        | R::Abort(_)
        | R::Decisions(_)
        | R::Join(_)
        | R::RemoteNames(..)
        | R::Above(_) => Vec::new(),
        R::PlaceElsewhere(removed) | R::RenewLayout(removed) | R::LeaveOut(removed) => removed.never(),
    }
}

impl TargetConnection {
    /// Makes the opens of these inodes known to this MDT, if they are not. Once begun it is
    /// completed.
    pub async fn make_known(self: &Arc<Self>, spawn: &Arc<dyn Spawn>, mut inodes: Vec<InodeNumber>) -> FsResult<()> {
        inodes.retain(|inode| self.opens().has_untold(*inode));
        if inodes.is_empty() {
            return Ok(());
        }
        let this = self.clone();
        finish(spawn, move |_| async move { this.tell_opens(&inodes).await }).await
    }

    /// As [`TargetConnection::make_known`]; must not be dropped.
    pub async fn tell_opens(&self, inodes: &[InodeNumber]) -> FsResult<()> {
        let mut turn = self.telling().lock().await;
        loop {
            if let Some(late) = turn.take() {
                late.known().await;
            }
            let import = self.import();
            let opens = self.opens().begin_telling(inodes, OPENS_PER_MESSAGE_MAX);
            if opens.is_empty() {
                return Ok(());
            }
            // What is open belongs to the present incarnation.
            if self.import().client() == import.client() {
                self.tell(&import, &opens, false, &mut turn).await?;
                self.opens().told(&opens);
            }
        }
    }

    /// Completes when no request that reports opens is under way, not even one that was given up.
    pub async fn told(&self) {
        if let Some(late) = self.telling().lock().await.take() {
            late.known().await;
        }
    }

    /// As [`TargetConnection::told`], but waits no longer than callers do for a silent MDT; false
    /// if that was too short.
    pub async fn told_in_time(self: &Arc<Self>, seams: &Seams, timeout: Duration) -> bool {
        let this = self.clone();
        // What was taken is always completed.
        let told = finish(&seams.spawn, move |_| async move { this.told().await });
        clock::timeout_at(&*seams.clock, seams.clock.now() + timeout, told).await.is_some()
    }

    /// A new connection begins. Nothing else is sent before the MDT knows all opens. What another
    /// request may be telling is known only after that request.
    pub async fn tell_all_opens(&self, import: &Import, mdt: MdtIndex) -> FsResult<()> {
        let opens = self.opens().begin_telling_all(mdt);
        if self.import().client() != import.client() {
            return Err(FsError::Evicted);
        }
        let mut rest = opens.as_slice();
        loop {
            let (opens, others) = rest.split_at(rest.len().min(OPENS_PER_MESSAGE_MAX));
            rest = others;
            let told: Vec<Told> = opens.iter().map(|(told, _)| *told).collect();
            self.tell(import, &told, rest.is_empty(), &mut None).await?;
            let first: Vec<Told> = opens.iter().filter(|(_, is_first)| *is_first).map(|(told, _)| *told).collect();
            self.opens().told(&first);
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// `late`: what becomes of the request, if it was given up.
    async fn tell(
        &self,
        import: &Import,
        opens: &[Told],
        complete: bool,
        late: &mut Option<LateOutcome>,
    ) -> FsResult<()> {
        assert!(opens.len() <= OPENS_PER_MESSAGE_MAX, "{} opens in one message", opens.len());
        let request = MdtRequest::RegisterOpens(RegisterOpens { opens: opens.to_vec(), complete });
        match import.call(Question::with_late_outcome(request, late)).await?.reply {
            MdtReply::Done => Ok(()),
            // What is open by now belongs to another incarnation.
            MdtReply::NotReclaimed(_) if self.import().client() != import.client() => Err(FsError::Evicted),
            MdtReply::NotReclaimed(refused) => {
                self.client_state().not_reclaimed(&refused, false);
                Ok(())
            }
            reply => Err(unexpected(reply)),
        }
    }
}
