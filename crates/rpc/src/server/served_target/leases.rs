//! The leases of a target's sessions: which clients have been silent for too long, and what becomes
//! of their sessions.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rt::{Beat, Instant, Tick, beat::all_cores_ran_within};

use super::ServedTarget;
use crate::{handler::SessionEvent, session::SessionCell};

/// Leases are checked this many times per lease; a session ends at most that fraction late.
const LEASE_CHECKS: u32 = 8;
const LEASE_CHECK_MIN: Duration = Duration::from_millis(1);

impl ServedTarget {
    /// Evicts sessions whose lease has run out, until the target's service ends.
    pub(in crate::server) async fn watch_leases(self: Arc<Self>) {
        let clock = self.shared.seams.clock.clone();
        let interval = (self.lease / LEASE_CHECKS).max(LEASE_CHECK_MIN);
        let mut beat = Beat::new(clock.now(), interval);
        let mut stopped = std::pin::pin!(self.stopped());
        loop {
            let tick = tokio::select! {
                biased;
                () = &mut stopped => return,
                tick = beat.tick(&*clock) => tick,
            };
            self.note_stall(&tick);
            if !tick.may_judge || !self.has_silent(tick.now) {
                continue;
            }
            // This core ran in time. Another one may not have, and may have to read yet what the
            // clients of its connections sent. One that does not run for a whole lease serves its
            // clients no more than a server that is down does; it must not keep all others.
            let all_ran = tokio::select! {
                biased;
                () = &mut stopped => return,
                all_ran = all_cores_ran_within(&*clock, &*self.shared.seams.spawn, self.lease) => all_ran,
            };
            if !all_ran {
                tracing::error!(target = %self.name, lease = ?self.lease, "a core of this server does not run");
            }
            // The wait was no pause of this core.
            beat = Beat::new(clock.now(), interval);
            self.evict_expired(tick.now);
        }
    }

    /// Time during which this process did not run does not count against its clients.
    fn note_stall(&self, &Tick { now, stalled, .. }: &Tick) {
        if stalled.is_zero() {
            return;
        }
        tracing::warn!(target = %self.name, ?stalled, "the server was suspended; leases are extended");
        for cell in self.sessions.lock().values() {
            cell.with(|session| session.excuse(now, stalled));
        }
    }

    fn has_silent(&self, now: Instant) -> bool {
        self.sessions.lock().values().any(|cell| cell.with(|session| session.silent(now, self.lease)))
    }

    /// Begins the end of all sessions whose lease had run out at `now`. Each ends in a task of its
    /// own: one that takes long, because its requests do or the target's device hangs, holds up no
    /// other. A later check ends the sessions of silent clients whose requests are still running;
    /// those that a scheduler holds back are released now.
    fn evict_expired(self: &Arc<Self>, now: Instant) {
        let cells: Vec<_> = self.sessions.lock().values().cloned().collect();
        let is_silent =
            |cell: &&Arc<SessionCell>| cell.with(|session| session.running() > 0 && session.silent(now, self.lease));
        let silent: BTreeSet<_> = cells.iter().filter(is_silent).map(|cell| cell.client).collect();
        if !silent.is_empty() {
            self.release(&silent);
        }
        for cell in cells {
            if !cell.with(|session| session.expired(now, self.lease) && session.end()) {
                continue;
            }
            tracing::warn!(target = %self.name, client = %cell.client, name = cell.client_name, "lease expired");
            let target = self.clone();
            let end = async move {
                target.conclude(&cell, SessionEvent::Evicted(cell.client)).await;
                cell.detach();
            };
            self.shared.seams.spawn.spawn("eviction", Box::pin(end));
        }
    }
}
