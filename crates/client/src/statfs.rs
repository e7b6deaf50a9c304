//! Space of the whole file system.
//!
//! All targets are asked at once; of one that does not answer soon the last known figures count, so that `df` works while
//! a target is down.

use std::{sync::Arc, time::Duration};

use rpc::message::mgs::TargetRole;
use types::{FsResult, SpaceUsage};

use crate::{FileSystem, control::TargetStatus, join::join_all, statistics::Operation, target::Target};

/// How long `df` waits for a target; long enough for a busy one, short enough for a person.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl FileSystem {
    /// Space of all OSTs and inodes of all MDTs; of those that do not answer the last known figures.
    pub async fn statfs(&self) -> FsResult<SpaceUsage> {
        self.count(Operation::Statfs);
        let mut sum = SpaceUsage::default();
        for (target, _) in self.ask_spaces().await {
            let Some(space) = target.space() else { continue };
            match target.role() {
                TargetRole::Ost(_) => {
                    sum.bytes_total = sum.bytes_total.saturating_add(space.bytes_total);
                    sum.bytes_free = sum.bytes_free.saturating_add(space.bytes_free);
                    sum.bytes_available = sum.bytes_available.saturating_add(space.bytes_available);
                }
                TargetRole::Mdt(_) => {
                    sum.inodes_total = sum.inodes_total.saturating_add(space.inodes_total);
                    sum.inodes_free = sum.inodes_free.saturating_add(space.inodes_free);
                }
            }
        }
        Ok(sum)
    }

    /// Bytes that all OSTs together have for new data; `None` if nothing is known of one. Of OSTs that share a device, each counts
    /// the same bytes: there may be less.
    pub(crate) async fn bytes_available(&self) -> Option<u64> {
        let spaces = self.ask_spaces().await;
        let osts = spaces.iter().filter(|(target, _)| matches!(target.role(), TargetRole::Ost(_)));
        let available = osts.map(|(target, _)| target.space().map(|space| space.bytes_available));
        available.reduce(|sum, one| Some(sum?.saturating_add(one?))).flatten()
    }

    /// All targets with what they say of themselves now, MDTs by index, then OSTs by index.
    pub async fn target_statuses(&self) -> Vec<TargetStatus> {
        self.ask_spaces().await.iter().map(|(target, reached)| target.status(*reached)).collect()
    }

    /// Asks every active target for its space; tells which answered.
    async fn ask_spaces(&self) -> Vec<(Arc<Target>, bool)> {
        let targets = self.targets.all();
        let deadline = self.seams.clock.now() + ANSWER_WITHIN;
        let ask = |target: &Arc<Target>| {
            let target = target.clone();
            async move {
                let asked = target.is_active()
                    && rt::clock::timeout_at(&*self.seams.clock, deadline, target.ask_space()).await == Some(Ok(()));
                (target, asked)
            }
        };
        join_all(targets.iter().map(ask).collect()).await
    }
}
