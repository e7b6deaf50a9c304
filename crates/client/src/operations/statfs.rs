//! Space of the whole file system.
//!
//! All targets are asked at once. For a target that does not answer soon, the last known numbers
//! are used, so that `df` works while a target is down.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rpc::message::{control::TargetStatus, mgs::TargetRole};
use types::{DeviceId, FsResult, SpaceUsage};

use crate::{FileSystem, join::join_all, statistics::Operation, targets::connection::TargetConnection};

/// How long `df` waits for a target; long enough for a busy one, short enough for a person.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl FileSystem {
    /// Space of all OSTs and inodes of all MDTs, each device counted once; of those that do not
    /// answer, what they reported last.
    pub async fn statfs(&self) -> FsResult<SpaceUsage> {
        self.count(Operation::Statfs);
        let spaces = self.ask_spaces().await;
        let osts = sum(&spaces, is_ost);
        let mdts = sum(&spaces, |role| !is_ost(role));
        Ok(SpaceUsage { inodes_total: mdts.inodes_total, inodes_free: mdts.inodes_free, ..osts })
    }

    /// Bytes that all OSTs together have for new data; `None` if nothing is known of one.
    pub(crate) async fn bytes_available(&self) -> Option<u64> {
        let spaces = self.ask_spaces().await;
        let mut osts = spaces.iter().map(|(target, _)| target).filter(|target| is_ost(target.role()));
        let known = osts.all(|target| target.space().is_some());
        known.then(|| sum(&spaces, is_ost).bytes_available)
    }

    /// All targets with what they say of themselves now, MDTs by index, then OSTs by index.
    pub async fn target_statuses(&self) -> Vec<TargetStatus> {
        self.ask_spaces().await.iter().map(|(target, reached)| target.status(*reached)).collect()
    }

    /// Asks every active target for its space; tells which answered.
    async fn ask_spaces(&self) -> Vec<(Arc<TargetConnection>, bool)> {
        let targets = self.targets.all();
        let deadline = self.seams.clock.now() + ANSWER_WITHIN;
        let ask = |target: &Arc<TargetConnection>| {
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

fn is_ost(role: TargetRole) -> bool {
    matches!(role, TargetRole::Ost(_))
}

/// What targets of some roles have together. What a target said that does not answer now is older
/// than what others say of the same device.
fn sum(spaces: &[(Arc<TargetConnection>, bool)], wanted: impl Fn(TargetRole) -> bool) -> SpaceUsage {
    let of = |reached: bool| {
        let targets = spaces.iter().filter(move |(_, answered)| *answered == reached).map(|(target, _)| target);
        targets.filter(|target| wanted(target.role())).filter_map(|target| target.space())
    };
    let devices: BTreeSet<DeviceId> = of(true).filter_map(|space| space.device).collect();
    let old = of(false).filter(|space| space.device.is_none_or(|device| !devices.contains(&device)));
    SpaceUsage::sum(of(true).chain(old))
}
