//! Moves directories to other metadata targets while this one has clearly more than its part of all
//! inodes ([`mds::BalancePlanner`]), with a client of its own in the process of the target.
//!
//! Life cycle: [`Balancer::start`]; [`Balancer::stop`] before clients and targets end: each inode
//! has moved or has not, and the next start goes on with what is left.

use std::{fmt, sync::Arc, time::Duration};

use client::migration::{Balanced, Balancing, InodePace};
use mds::{BalancePlan, BalancePlanner, BalanceState, Mdt};
use parking_lot::Mutex;
use rt::{Seams, clock};
use tokio::sync::watch;
use types::{FsError, FsResult};

use super::{
    background_client::{BackgroundClient, BackgroundOptions},
    worker::Worker,
};

/// How often it is looked whether it is time for another pass.
const TICK: Duration = Duration::from_secs(1);
/// Between two passes, in intervals at which metadata targets tell their space. (Whether all have
/// told it since the last moves is up to the planner.)
const INTERVALS: u32 = 2;

/// What was done since the start, and what is going on.
#[derive(Clone, Copy, Debug, Default)]
pub struct BalancerReport {
    state: BalanceState,
    directories: u64,
    total: Balanced,
}

impl fmt::Display for BalancerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Balanced { moved, in_use, failed } = self.total;
        writeln!(f, "{:<24} {}", "state", self.state)?;
        writeln!(f, "{:<24} {moved} samples [inodes] {} subtrees", "moved", self.directories)?;
        writeln!(f, "{:<24} {in_use} samples [inodes]", "in_use")?;
        writeln!(f, "{:<24} {failed} samples [inodes]", "failed")
    }
}

/// See the module documentation.
pub struct Balancer {
    worker: Worker,
    report: Arc<Mutex<BalancerReport>>,
}

impl Balancer {
    /// Begins to work for `mdt`, with clients mounted with these options.
    pub fn start(seams: &Seams, mdt: &Arc<Mdt>, options: BackgroundOptions) -> Self {
        let report: Arc<Mutex<BalancerReport>> = Arc::default();
        let work = Work {
            seams: seams.clone(),
            mdt: Arc::clone(mdt),
            planner: BalancePlanner::new(Arc::clone(mdt)),
            client: BackgroundClient::new(seams, options),
            pace: Mutex::default(),
            report: report.clone(),
        };
        Self { worker: Worker::start(seams, "balancer", |stopping| work.run(stopping)), report }
    }

    /// What was done, for a parameter.
    pub fn report(&self) -> Arc<Mutex<BalancerReport>> {
        self.report.clone()
    }

    /// Ends it.
    pub async fn stop(self) {
        self.worker.stop().await;
    }
}

struct Work {
    seams: Seams,
    mdt: Arc<Mdt>,
    planner: BalancePlanner,
    client: BackgroundClient,
    pace: Mutex<InodePace>,
    report: Arc<Mutex<BalancerReport>>,
}

impl Work {
    async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stop| *stop) => break,
                () = self.pass() => {}
            }
        }
        self.client.unmount().await;
    }

    /// Looks once whether there is something to move, moves it, and waits for what others say then.
    async fn pass(&mut self) {
        let plan = self.planner.next().await.unwrap_or_else(|error| {
            tracing::warn!(target = %self.mdt.name(), %error, "cannot find out which directories to move to another MDT");
            None
        });
        self.note(self.planner.state());
        match plan {
            None => self.client.unmount().await,
            Some(plan) => {
                if let Err(error) = self.carry_out(&plan).await {
                    tracing::warn!(target = %self.mdt.name(), %error, "cannot move directories to another MDT now");
                }
                self.planner.ended();
            }
        }
        let ended = self.seams.clock.now();
        while self.seams.clock.now().since(ended) < INTERVALS * self.mdt.parameters().ost_refresh {
            let left =
                (INTERVALS * self.mdt.parameters().ost_refresh).saturating_sub(self.seams.clock.now().since(ended));
            clock::sleep(&*self.seams.clock, left.min(TICK)).await;
        }
    }

    fn note(&self, state: BalanceState) {
        let before = std::mem::replace(&mut self.report.lock().state, state);
        let gives = |state| matches!(state, BalanceState::Gives(_));
        match (gives(before), gives(state)) {
            (false, true) => {
                tracing::info!(target = %self.mdt.name(), %state, "this MDT has more than its part of all inodes");
            }
            (true, false) => {
                tracing::info!(target = %self.mdt.name(), %state, "this MDT gives no more inodes to others")
            }
            _ => {}
        }
    }

    async fn carry_out(&mut self, plan: &BalancePlan) -> FsResult<()> {
        if plan.directories.is_empty() {
            return Ok(());
        }
        let client = self.client.mounted().await?;
        let rate = || self.mdt.parameters().balance.inodes_per_second;
        let balancing = Balancing::new(&client, (self.mdt.index(), plan.to), plan.inodes, &rate, &self.pace);
        for directory in &plan.directories {
            let balanced = match balancing.move_directory(*directory).await {
                // It was removed, or has moved, since.
                Err(FsError::NotFound | FsError::Stale) => continue,
                balanced => balanced?,
            };
            let Balanced { moved, in_use, failed } = balanced;
            tracing::info!(target = %self.mdt.name(), %directory, to = %plan.to, moved, in_use, failed, "moved a directory to an MDT that has less");
            let mut report = self.report.lock();
            report.directories += u64::from(moved > 0);
            report.total.moved += moved;
            report.total.in_use += in_use;
            report.total.failed += failed;
        }
        Ok(())
    }
}
