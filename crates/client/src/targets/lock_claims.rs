//! Claiming the locks under which this client cached names and attributes, when it has connected to
//! an MDT again: the cache stays as it is, as far as nothing has changed meanwhile (module
//! `cache::inode_cache::claims`).
//!
//! Nothing else is sent before the claims are answered, so they take a limited time: the inodes may
//! have to be read from a disk first, and others may wait for the end of the recovery.

use std::time::Duration;

use rpc::{
    Answered, Import,
    message::{
        MdtReply, MdtRequest,
        mdt::{ClaimLocks, LockClaim},
        session::feature,
    },
};
use rt::Seams;
use types::{FsError, FsResult, LockHandle, limits::LOCKS_PER_MESSAGE_MAX};

use crate::targets::connection::{TargetConnection, unexpected};

/// What is not claimed by then is dropped. A small part of the window in which clients come back
/// after a restart.
const CLAIMING_MAX: Duration = Duration::from_secs(2);

impl TargetConnection {
    /// Whether there is anything to claim on a new connection.
    pub fn has_claims(&self, import: &Import) -> bool {
        import.supports(feature::LOCK_CLAIMS) && self.cache().lock_count() > 0
    }

    /// Claims the locks of the former connection on this one. An error ends the connection.
    pub async fn claim_locks(&self, import: &Import, seams: &Seams) -> FsResult<()> {
        let Some(era) = import.era().filter(|_| self.has_claims(import)) else { return Ok(()) };
        let claims = self.cache().begin_claim(import);
        let deadline = seams.clock.now() + CLAIMING_MAX;
        let mut claimed = 0;
        for batch in claims.chunks(LOCKS_PER_MESSAGE_MAX) {
            if seams.clock.now() >= deadline {
                break;
            }
            let granted = match claim(import, era, batch).await {
                Ok(granted) => granted,
                Err(error @ (FsError::Unreachable { .. } | FsError::Evicted)) => return Err(error),
                Err(error) => {
                    tracing::warn!(target = %import.target(), %error, "cannot claim locks: dropping the cache");
                    break;
                }
            };
            claimed += granted.iter().flatten().count();
            self.cache().claimed(import, batch, &granted);
        }
        self.cache().end_claim(import);
        tracing::info!(target = %import.target(), locks = claims.len(), claimed, "claimed locks");
        Ok(())
    }
}

/// The new handles of these locks, as far as they are granted.
async fn claim(import: &Import, era: u64, claims: &[LockClaim]) -> FsResult<Vec<Option<LockHandle>>> {
    let request = MdtRequest::ClaimLocks(ClaimLocks { era, locks: claims.to_vec() });
    let Answered { reply, .. } = import.call(request).await?;
    match reply {
        MdtReply::LocksClaimed(granted) if granted.len() == claims.len() => Ok(granted),
        reply => Err(unexpected(reply)),
    }
}
