//! Telling an MDT of opens that this client made without asking it, under locks on the opens of their
//! inodes.
//!
//! The MDT has to know an open before such a lock is given back, before anything is asked that
//! depends on it ([`depends_on_opens`]), and when locks have ended with their connection
//! ([`TargetConnection::tell_all_opens`]). One request at a time tells; a close of an open of which
//! the MDT may just be told waits for that, since the MDT must not hear of an open after its end.

use std::sync::Arc;

use rpc::{
    Import,
    message::{
        MdtReply, MdtRequest,
        mdt::{LockMode, RegisterOpens},
    },
};
use rt::Spawn;
use types::{FsResult, InodeNumber, MdtIndex, limits::OPENS_PER_MESSAGE_MAX};

use crate::{
    cancellation::finish::finish,
    open_state::registered_open::Told,
    targets::connection::{TargetConnection, unexpected},
};

/// Inodes of which the MDT must know this client's opens before it executes this request: those of
/// which it asks for an open, or of which it must not replace the layout while they are open.
pub(crate) fn depends_on_opens(request: &MdtRequest) -> Vec<InodeNumber> {
    match request {
        MdtRequest::SetLock(set) if set.mode != LockMode::Unlock => vec![set.inode],
        MdtRequest::RenewLayout(renew) => vec![renew.inode],
        MdtRequest::DataVersion(_, version) => vec![version.inode],
        MdtRequest::SwapLayouts(_, swap) => vec![swap.first.inode, swap.second.inode],
        MdtRequest::ChangeLayout(_, inode, _) | MdtRequest::RemoveXattr(_, inode, _) => vec![*inode],
        MdtRequest::SetXattr(_, set) => vec![set.inode],
        _ => Vec::new(),
    }
}

impl TargetConnection {
    /// Makes the opens of these inodes known to this MDT, if they are not. Once begun it comes to its
    /// end.
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
        let _turn = self.telling().lock().await;
        loop {
            let import = self.import();
            let opens = self.opens().begin_telling(inodes, OPENS_PER_MESSAGE_MAX);
            if opens.is_empty() {
                return Ok(());
            }
            // What is open belongs to the present incarnation.
            if self.import().client() == import.client() {
                self.tell(&import, opens, false).await?;
            }
        }
    }

    /// Completes when no request is under way that tells of opens.
    pub async fn told(&self) {
        drop(self.telling().lock().await);
    }

    /// A new connection begins. Nothing else is sent before the MDT knows all opens.
    pub async fn tell_all_opens(&self, import: &Import, mdt: MdtIndex) -> FsResult<()> {
        loop {
            let opens = self.opens().begin_telling_all(mdt, OPENS_PER_MESSAGE_MAX);
            let complete = opens.len() < OPENS_PER_MESSAGE_MAX;
            self.tell(import, opens, complete).await?;
            if complete {
                return Ok(());
            }
        }
    }

    async fn tell(&self, import: &Import, opens: Vec<Told>, complete: bool) -> FsResult<()> {
        let request = RegisterOpens { opens: opens.clone(), complete };
        match import.call(MdtRequest::RegisterOpens(request)).await?.reply {
            MdtReply::Done => {}
            MdtReply::NotReclaimed(refused) => self.client_state().not_reclaimed(&refused, false),
            reply => return Err(unexpected(reply)),
        }
        self.opens().told(&opens);
        Ok(())
    }
}
