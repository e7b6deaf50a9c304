//! How long clients have to give back locks that they were asked for. Pure; `mdt/lock_deadlines.rs`
//! acts on it.
//!
//! Time is counted in ticks, [`TICKS`] to a `ldlm_timeout`, so that time during which this process
//! was suspended does not count. Each lock has a time of its own, from when it was asked for,
//! whether or not a change waits for it:
//!
//! | after | what happens |
//! |---|---|
//! | half of the time | the client is reminded, by a second callback |
//! | all of it, and the client has answered that it is busy | it has as much time again, [`ROUNDS_MAX`] times in all |
//! | all of it | the client is evicted |
//!
//! A client that is not reached does not answer the reminder either, so silence evicts it after one
//! round.
//!
//! Downside: locks that have come back stay in the queue until their time has passed, or until as
//! many others have been asked for.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use lock::Revocation;
use tokio::sync::Notify;
use types::{ClientId, LockHandle};

/// Ticks in the time that a client has. A lock is asked for between two ticks, so one more passes.
pub(crate) const TICKS: u32 = 8;
/// Ticks until the reminder.
const REMINDER_TICKS: u64 = TICKS as u64 / 2;
/// Ticks from there to the end.
const FINAL_TICKS: u64 = TICKS as u64 + 1 - REMINDER_TICKS;
/// How often a busy client has the whole time: a client that cannot give a lock back hinders others
/// no longer than that, and until its lease has ended. By default that is 3 times 9 ticks of 2.5 s,
/// and 30 s: less than the 100 s that are promised.
const ROUNDS_MAX: u32 = 3;

/// A lock that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    revocation: Revocation,
    /// The tick at which something is to be done.
    due: u64,
    round: u32,
}

/// What is to be done at a tick.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Locks of which the clients are to be reminded.
    pub remind: Vec<Revocation>,
    /// Clients whose time is over.
    pub evict: BTreeSet<ClientId>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct LockDeadlines {
    now: u64,
    /// In the order of `due`, since all wait for the same number of ticks.
    to_remind: VecDeque<Asked>,
    /// Their clients were reminded; in the order of `due`.
    to_end: VecDeque<Asked>,
    /// Locks whose clients are busy.
    busy: BTreeSet<LockHandle>,
    wakeup: Arc<Notify>,
}

impl LockDeadlines {
    /// A client is asked for a lock. Forgets some of those that have come back.
    pub fn asked(&mut self, revocation: Revocation, exists: impl Fn(LockHandle) -> bool) {
        for _ in 0..2 {
            let _ = self.to_remind.pop_front_if(|asked| !exists(asked.revocation.handle));
        }
        let due = self.now + REMINDER_TICKS;
        assert!(self.to_remind.back().is_none_or(|last| last.due <= due), "reminders are in the order of their time");
        self.to_remind.push_back(Asked { revocation, due, round: 1 });
        self.wakeup.notify_one();
    }

    /// A client is about to give back a lock that exists; told in answer to a reminder. If that
    /// comes too late for this round, it counts for the next.
    pub fn is_busy(&mut self, handle: LockHandle) {
        self.busy.insert(handle);
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.to_remind.is_empty() && self.to_end.is_empty()
    }

    /// Rung when a client is asked for a lock.
    pub fn wakeup(&self) -> Arc<Notify> {
        self.wakeup.clone()
    }

    /// A tick: what is due. `exists`: whether a lock has not come back.
    pub fn tick(&mut self, exists: impl Fn(LockHandle) -> bool) -> Due {
        self.now += 1;
        let (now, mut due) = (self.now, Due::default());
        while let Some(asked) = self.to_end.pop_front_if(|asked| asked.due <= now) {
            assert!((1..=ROUNDS_MAX).contains(&asked.round), "round {} of {ROUNDS_MAX}", asked.round);
            let is_busy = self.busy.remove(&asked.revocation.handle);
            if !exists(asked.revocation.handle) {
                continue;
            }
            if is_busy && asked.round < ROUNDS_MAX {
                self.to_remind.push_back(Asked { due: now + REMINDER_TICKS, round: asked.round + 1, ..asked });
            } else {
                due.evict.insert(asked.revocation.client);
            }
        }
        while let Some(asked) = self.to_remind.pop_front_if(|asked| asked.due <= now) {
            if exists(asked.revocation.handle) {
                due.remind.push(asked.revocation);
                let due = now + FINAL_TICKS;
                assert!(self.to_end.back().is_none_or(|last| last.due <= due), "ends are in the order of their time");
                self.to_end.push_back(Asked { due, ..asked });
            }
        }
        if !due.evict.is_empty() {
            let busy = &mut self.busy;
            let mut stays = |asked: &Asked| {
                let Revocation { client, handle, .. } = asked.revocation;
                let is_evicted = due.evict.contains(&client);
                if is_evicted {
                    busy.remove(&handle);
                }
                !is_evicted
            };
            self.to_remind.retain(&mut stays);
            self.to_end.retain(&mut stays);
            due.remind.retain(|revocation| !due.evict.contains(&revocation.client));
        }
        if self.is_empty() {
            self.busy.clear();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use lock::InodeBits;
    use types::InodeNumber;

    use super::*;

    const FIRST: u64 = 1;
    const SECOND: u64 = 2;

    fn lock(client: u64, handle: u64) -> Revocation {
        let (client, handle) = (ClientId(client), LockHandle(handle));
        Revocation { client, handle, inode: InodeNumber(7), bits: InodeBits(2) }
    }

    fn ask(deadlines: &mut LockDeadlines, client: u64, handle: u64) {
        deadlines.asked(lock(client, handle), |_| true);
    }

    /// The ticks, from 1, at which something is due in so many; all locks but `back` exist, and
    /// each reminder is answered "busy" if `busy`.
    fn ticks(deadlines: &mut LockDeadlines, count: u32, back: &[u64], busy: bool) -> Vec<(u32, Due)> {
        let mut found = Vec::new();
        for tick in 1..=count {
            let due = deadlines.tick(|handle| !back.contains(&handle.0));
            if busy {
                due.remind.iter().for_each(|reminded| deadlines.is_busy(reminded.handle));
            }
            if due != Due::default() {
                found.push((tick, due));
            }
        }
        found
    }

    fn remind(client: u64, handle: u64) -> Due {
        Due { remind: vec![lock(client, handle)], evict: BTreeSet::new() }
    }

    fn evict(client: u64) -> Due {
        Due { remind: Vec::new(), evict: [ClientId(client)].into() }
    }

    #[test]
    fn silence_is_reminded_of_and_then_evicted() {
        let mut deadlines = LockDeadlines::default();
        ask(&mut deadlines, FIRST, 10);
        assert_eq!(ticks(&mut deadlines, 20, &[], false), [(4, remind(FIRST, 10)), (9, evict(FIRST))]);
        assert!(deadlines.is_empty());
    }

    #[test]
    fn what_came_back_is_forgotten() {
        let mut deadlines = LockDeadlines::default();
        ask(&mut deadlines, FIRST, 10);
        ask(&mut deadlines, SECOND, 11);
        assert_eq!(ticks(&mut deadlines, 4, &[10], false), [(4, remind(SECOND, 11))]);
        assert_eq!(ticks(&mut deadlines, 9, &[10, 11], false), []);
        assert!(deadlines.is_empty());
        for handle in 0..1000 {
            deadlines.asked(lock(FIRST, handle), |_| false);
        }
        assert!(deadlines.to_remind.len() <= 2);
    }

    #[test]
    fn a_busy_client_has_the_time_three_times() {
        let mut deadlines = LockDeadlines::default();
        ask(&mut deadlines, FIRST, 10);
        let found = ticks(&mut deadlines, 100, &[], true);
        let reminders = found[..3].iter().map(|(tick, due)| (*tick, due == &remind(FIRST, 10)));
        assert_eq!(reminders.collect::<Vec<_>>(), [4, 13, 22].map(|tick| (tick, true)));
        assert_eq!(found[3..], [(27, evict(FIRST))]);
        assert!(deadlines.is_empty() && deadlines.busy.is_empty());
    }

    /// Each lock has its own time, and one that is not coming evicts its client.
    #[test]
    fn a_client_that_is_busy_with_one_lock_is_evicted_for_another() {
        let mut deadlines = LockDeadlines::default();
        ask(&mut deadlines, FIRST, 10);
        assert_eq!(ticks(&mut deadlines, 2, &[], false), []);
        ask(&mut deadlines, FIRST, 11);
        ask(&mut deadlines, SECOND, 12);
        assert_eq!(ticks(&mut deadlines, 2, &[], true), [(2, remind(FIRST, 10))]);
        let both = Due { remind: vec![lock(FIRST, 11), lock(SECOND, 12)], ..Due::default() };
        assert_eq!(ticks(&mut deadlines, 2, &[], false), [(2, both)]);
        deadlines.is_busy(LockHandle(12));
        assert_eq!(ticks(&mut deadlines, 7, &[], false), [(5, evict(FIRST))]);
        assert_eq!(deadlines.to_remind.len(), 1, "only that of the second");
    }
}
