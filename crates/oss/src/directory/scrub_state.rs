//! A scrub as it is in memory: its record, and when it may read next.

use std::time::Duration;

use rt::Instant;
use types::{Timestamp, time::transfer_time};

use crate::scrub_record::{ScrubRecord, ScrubStatus};

/// Time that a scrub which was kept waiting makes up for.
const SAVED: Duration = Duration::from_millis(100);
/// How long each reading waits for requests in progress, at most.
const YIELD_MAX: Duration = Duration::from_millis(250);
/// How long it waits before it looks again whether there are some.
const YIELD: Duration = Duration::from_millis(10);
/// Time after which the position is written down.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ScrubState {
    /// None if there never was one.
    record: Option<ScrubRecord>,
    /// Counts beginnings: what was read for an earlier one is not counted.
    run: u64,
    has_task: bool,
    free_at: Instant,
    yielded: Duration,
    saved_at: Option<Instant>,
    must_save: bool,
    /// Something is not written down.
    has_changed: bool,
}

/// What the task does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Wait(Duration),
    /// Writes down the record.
    Save(Vec<u8>),
    /// Reads what follows this key, in this run.
    Read(Vec<u8>, u64),
    End,
}

impl ScrubState {
    /// As read from the tables.
    pub fn set(&mut self, record: ScrubRecord) {
        self.record = Some(record);
    }

    pub fn record(&self) -> Option<&ScrubRecord> {
        self.record.as_ref()
    }

    pub fn is_running(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.status == ScrubStatus::Running)
    }

    /// Begins, or goes on with what was stopped; `anew`: from the beginning in any case.
    pub fn start(&mut self, anew: bool, now: Timestamp) {
        match &mut self.record {
            Some(record) if !anew && record.status != ScrubStatus::Completed => {
                record.status = ScrubStatus::Running;
                record.ended = Timestamp::default();
            }
            record => {
                *record = Some(ScrubRecord::begin(now));
                self.run += 1;
            }
        }
        self.must_save = true;
    }

    /// Stops one that runs.
    pub fn stop(&mut self, now: Timestamp) {
        if self.is_running() {
            self.end(ScrubStatus::Stopped, now);
        }
    }

    /// Whether one is due by itself, so long after the last one was completed, or if it was so by a
    /// clock that was set back since. One that was stopped or has failed waits for an
    /// administrator.
    pub fn is_due(&self, interval: Duration, now: Timestamp) -> bool {
        match &self.record {
            _ if interval.is_zero() => false,
            None => true,
            Some(record) if record.status == ScrubStatus::Completed => {
                let nanoseconds = interval.as_nanos().try_into().unwrap_or(u64::MAX);
                record.ended.plus(nanoseconds) <= now || now.plus(nanoseconds) < record.ended
            }
            Some(_) => false,
        }
    }

    /// Whether a task has to be started for it.
    pub fn takes_task(&mut self) -> bool {
        self.is_running() && !std::mem::replace(&mut self.has_task, true)
    }

    /// What is next. The task ends when nothing is left to be written down: so two of them never
    /// write it down at the same time.
    pub fn turn(&mut self, now: Instant, is_busy: bool, is_stopping: bool) -> Turn {
        if let Some(bytes) = self.due_record(now, is_stopping) {
            return Turn::Save(bytes);
        }
        let record = self.record.as_ref().filter(|record| record.status == ScrubStatus::Running && !is_stopping);
        let Some(record) = record else {
            self.has_task = false;
            return Turn::End;
        };
        if self.free_at > now {
            return Turn::Wait(self.free_at.since(now));
        }
        if is_busy && self.yielded < YIELD_MAX {
            self.yielded += YIELD;
            return Turn::Wait(YIELD);
        }
        self.yielded = Duration::ZERO;
        Turn::Read(record.position.clone(), self.run)
    }

    /// So many bytes were read, beginning at that time. `rate` in bytes per second, 0: no limit.
    pub fn spend(&mut self, begun: Instant, bytes: u64, rate: u64) {
        if rate > 0 {
            let earliest = Instant(begun.0.saturating_sub(SAVED.as_nanos() as u64));
            self.free_at = self.free_at.max(earliest) + transfer_time(bytes, rate);
        }
    }

    /// The record of this run, to be changed, if it is still the present one.
    pub fn of_run(&mut self, run: u64) -> Option<&mut ScrubRecord> {
        let record = self.record.as_mut().filter(|_| self.run == run)?;
        self.has_changed = true;
        Some(record)
    }

    /// Whether this run is the present one, and runs.
    pub fn goes_on(&self, run: u64) -> bool {
        self.run == run && self.is_running()
    }

    /// It ends.
    pub fn end(&mut self, status: ScrubStatus, now: Timestamp) {
        if let Some(record) = &mut self.record {
            (record.status, record.ended) = (status, now);
            self.must_save = true;
        }
    }

    /// Something was found that is written down at once.
    pub fn save_soon(&mut self) {
        self.must_save = true;
    }

    /// The record, if it is to be written down now.
    fn due_record(&mut self, now: Instant, is_stopping: bool) -> Option<Vec<u8>> {
        let is_old = self.saved_at.is_none_or(|saved| now.since(saved) >= SAVE_INTERVAL);
        let wanted = self.must_save || (self.has_changed && (is_old || is_stopping));
        if !wanted {
            return None;
        }
        (self.must_save, self.has_changed, self.saved_at) = (false, false, Some(now));
        self.record.as_ref().map(ScrubRecord::encode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(milliseconds: u64) -> Instant {
        Instant(1_000_000_000 + milliseconds * 1_000_000)
    }

    fn wall(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn running() -> ScrubState {
        let mut state = ScrubState::default();
        state.start(false, wall(5));
        state
    }

    /// How often it reads in so many milliseconds, at 1 MiB a time.
    fn readings(state: &mut ScrubState, milliseconds: u64, rate: u64, is_busy: bool) -> u64 {
        let (mut readings, mut now) = (0, at(0));
        while now < at(milliseconds) {
            match state.turn(now, is_busy, false) {
                Turn::Wait(time) => now = now + time,
                Turn::Save(_) => {}
                Turn::Read(..) => {
                    state.spend(now, MIB, rate);
                    readings += 1;
                    now = now + Duration::from_micros(100);
                }
                Turn::End => panic!("it runs"),
            }
        }
        readings
    }

    #[test]
    fn the_rate_is_kept_and_requests_come_first() {
        let read = readings(&mut running(), 10_000, 64 * MIB, false);
        assert!((640..=650).contains(&read), "{read}");
        assert_eq!(readings(&mut running(), 1_000, 0, false), 10_000, "no limit");
        let read = readings(&mut running(), 10_000, 64 * MIB, true);
        assert!((38..=41).contains(&read), "{read}: 4 a second, however many requests there are");
    }

    #[test]
    fn what_was_stopped_goes_on_and_what_is_complete_begins_anew() {
        let mut state = running();
        state.of_run(1).unwrap().blocks = 7;
        state.stop(wall(6));
        assert!(!state.is_running() && !state.goes_on(1));
        state.start(false, wall(7));
        assert!(state.goes_on(1));
        assert_eq!((state.record().unwrap().blocks, state.record().unwrap().begun), (7, wall(5)));
        state.start(true, wall(8));
        assert_eq!((state.record().unwrap().blocks, state.record().unwrap().begun), (0, wall(8)));
        assert!(state.of_run(1).is_none(), "what was read for the first one does not count");
        state.end(ScrubStatus::Completed, wall(9));
        state.stop(wall(10));
        assert_eq!(state.record().unwrap().ended, wall(9), "there is nothing to be stopped");
        state.start(false, wall(11));
        assert_eq!(state.record().unwrap().begun, wall(11));
    }

    #[test]
    fn one_is_due_some_time_after_the_last_was_completed() {
        let (mut state, day) = (ScrubState::default(), Duration::from_secs(86_400));
        assert!(state.is_due(day, wall(0)) && !state.is_due(Duration::ZERO, wall(0)));
        state.start(false, wall(0));
        assert!(!state.is_due(day, wall(90_000)), "it runs");
        state.end(ScrubStatus::Completed, wall(100));
        assert!(!state.is_due(day, wall(86_499)) && state.is_due(day, wall(86_500)));
        state.end(ScrubStatus::Stopped, wall(100));
        assert!(!state.is_due(day, wall(200_000)), "somebody stopped it");
    }

    #[test]
    fn there_is_one_task_and_the_position_is_written_down_now_and_then() {
        let mut state = running();
        assert!(state.takes_task() && !state.takes_task());
        let is_saved =
            |state: &mut ScrubState, now, is_stopping| matches!(state.turn(at(now), false, is_stopping), Turn::Save(_));
        assert!(is_saved(&mut state, 0, false) && !is_saved(&mut state, 1, false));
        state.of_run(1).unwrap().blocks = 7;
        assert!(!is_saved(&mut state, 29_000, false) && is_saved(&mut state, 30_000, false));
        assert!(!is_saved(&mut state, 90_000, false), "nothing is new");
        state.of_run(1).unwrap().blocks = 8;
        assert!(is_saved(&mut state, 90_000, true));
        assert_eq!(state.turn(at(90_000), false, true), Turn::End);
        assert!(state.takes_task(), "the first one has ended");
    }

    /// Otherwise the next task might write down something newer before.
    #[test]
    fn a_task_ends_when_everything_is_written_down() {
        let mut state = running();
        assert!(state.takes_task());
        state.stop(wall(6));
        assert!(matches!(state.turn(at(0), false, false), Turn::Save(_)));
        state.start(false, wall(7));
        state.stop(wall(8));
        assert!(!state.takes_task() && matches!(state.turn(at(0), false, false), Turn::Save(_)));
        assert_eq!(state.turn(at(0), false, false), Turn::End);
        state.start(false, wall(9));
        assert!(state.takes_task());
    }

    #[test]
    fn a_clock_that_was_set_back_delays_no_scrub() {
        let (mut state, day) = (running(), Duration::from_secs(86_400));
        state.end(ScrubStatus::Completed, wall(1_000_000));
        assert!(!state.is_due(day, wall(999_999)), "a little");
        assert!(state.is_due(day, wall(5)));
    }
}
