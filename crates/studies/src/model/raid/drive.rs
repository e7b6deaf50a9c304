//! One drive of an array: what waits for it, in which order it is served, and how long that takes.
//!
//! | operation | takes, besides its bytes at the streaming rate |
//! |---|---|
//! | continues where the head is | nothing; a write that comes after a pause waits until the place comes round again |
//! | a little further on | the time in which the head passes over what is between |
//! | anywhere else | a positioning |
//!
//! Order: upwards from the head, then again from the lowest (C-LOOK), but what has waited for
//! longer than its limit goes first, as in Linux's deadline scheduler. The drive has no write
//! cache. Downside: seek distance makes no difference.

use std::time::Duration;

use rt::Instant;
use types::time::transfer_time;

/// Parameters of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DriveModel {
    /// Moving the head to another place, with half a turn.
    pub positioning: Duration,
    /// A turn of the platters.
    pub rotation: Duration,
    /// Streaming rate.
    pub bytes_per_second: u64,
}

/// Reads that have waited for so long go first (Linux: `read_expire` of the deadline scheduler).
const READ_EXPIRES: Duration = Duration::from_millis(500);
/// Writes that have waited for so long go first (Linux: `write_expire`).
const WRITE_EXPIRES: Duration = Duration::from_secs(5);

/// What is done with bytes of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the platter.
    Read,
    /// To the platter.
    Write,
}

/// A range of a drive, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveOperation {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// What is done.
    pub access: Access,
    /// The group of operations that it belongs to.
    pub group: u64,
    /// When it arrived.
    pub arrived: Instant,
}

/// A drive.
#[derive(Debug, Default)]
pub struct Drive {
    waiting: Vec<DriveOperation>,
    /// After the last byte that was served.
    head: u64,
    /// When that was.
    head_at: Instant,
    /// Whether something serves it.
    pub is_running: bool,
}

impl Drive {
    /// Adds an operation.
    pub fn add(&mut self, operation: DriveOperation) {
        self.waiting.push(operation);
    }

    /// Whether operations wait.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next operation, and how long it takes from now on.
    pub fn begin(&mut self, model: &DriveModel, now: Instant) -> Option<(DriveOperation, Duration)> {
        let operation = self.waiting.remove(self.next(now)?);
        let lost = self.time_to(model, now, &operation);
        let time = lost + transfer_time(operation.bytes, model.bytes_per_second);
        self.head = operation.start + operation.bytes;
        self.head_at = now + time;
        Some((operation, time))
    }

    /// Place of the next operation in `waiting`.
    fn next(&self, now: Instant) -> Option<usize> {
        let limit = |operation: &DriveOperation| match operation.access {
            Access::Read => READ_EXPIRES,
            Access::Write => WRITE_EXPIRES,
        };
        let numbered = || self.waiting.iter().enumerate();
        let expired = numbered().filter(|(_, one)| now.since(one.arrived) >= limit(one));
        if let Some((place, _)) = expired.min_by_key(|(_, one)| (one.arrived, one.start)) {
            return Some(place);
        }
        let upwards = numbered().filter(|(_, one)| one.start >= self.head).min_by_key(|(_, one)| one.start);
        upwards.or_else(|| numbered().min_by_key(|(_, one)| one.start)).map(|(place, _)| place)
    }

    /// Until the head is where the operation begins.
    fn time_to(&self, model: &DriveModel, now: Instant, operation: &DriveOperation) -> Duration {
        let Some(gap) = operation.start.checked_sub(self.head) else { return model.positioning };
        let passing = transfer_time(gap, model.bytes_per_second);
        if passing >= model.positioning {
            return model.positioning;
        }
        if operation.access == Access::Read {
            // The drive has read on while it had nothing to do.
            return passing;
        }
        let pause = now.since(self.head_at).as_nanos();
        let turn = model.rotation.as_nanos().max(1);
        // How far the place still is, in time: what the pause has already brought past is a turn away.
        let wait = (passing.as_nanos() + turn - pause % turn) % turn;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    /// 128 KiB take 1.28 ms.
    const MODEL: DriveModel = DriveModel {
        positioning: Duration::from_millis(8),
        rotation: Duration::from_millis(8),
        bytes_per_second: 100_000 * KIB,
    };

    fn operation(start_kib: u64, access: Access) -> DriveOperation {
        DriveOperation { start: start_kib * KIB, bytes: 128 * KIB, access, group: 0, arrived: Instant(0) }
    }

    /// Serves all that waits, from `now` on; the places in order, and the time of each.
    fn served(drive: &mut Drive, mut now: Instant) -> Vec<(u64, Duration)> {
        let mut served = Vec::new();
        while let Some((operation, time)) = drive.begin(&MODEL, now) {
            now = now + time;
            served.push((operation.start / KIB, time));
        }
        served
    }

    #[test]
    fn what_waits_is_served_upwards_and_neighbours_cost_their_bytes_only() {
        let mut drive = Drive::default();
        for start in [1_000_128, 128, 1_000_000, 0, 256] {
            drive.add(operation(start, Access::Write));
        }
        let bytes = Duration::from_micros(1280);
        let far = bytes + MODEL.positioning;
        let expected = [(0, bytes), (128, bytes), (256, bytes), (1_000_000, far), (1_000_128, bytes)];
        assert_eq!(served(&mut drive, Instant(0)), expected);
        // And again from the lowest.
        drive.add(operation(512, Access::Write));
        assert_eq!(served(&mut drive, Instant(0)), [(512, far)]);
    }

    #[test]
    fn a_gap_is_passed_over_if_that_is_faster() {
        let mut drive = Drive::default();
        drive.add(operation(400, Access::Read));
        assert_eq!(served(&mut drive, Instant(0)), [(400, Duration::from_micros(4000 + 1280))]);
    }

    #[test]
    fn a_write_after_a_pause_waits_for_its_place_and_a_read_does_not() {
        let pause = |access, micros: u64| {
            let mut drive = Drive::default();
            drive.add(operation(0, access));
            let (_, first) = drive.begin(&MODEL, Instant(0)).unwrap();
            drive.add(operation(128, access));
            drive.begin(&MODEL, Instant(0) + first + Duration::from_micros(micros)).unwrap().1
        };
        let bytes = Duration::from_micros(1280);
        assert_eq!(pause(Access::Write, 0), bytes);
        assert_eq!(pause(Access::Write, 1000), bytes + Duration::from_millis(7));
        assert_eq!(pause(Access::Write, 9000), bytes + Duration::from_millis(7), "a turn later");
        assert_eq!(pause(Access::Read, 1000), bytes);
    }

    #[test]
    fn what_has_waited_too_long_goes_first() {
        let mut drive = Drive::default();
        drive.add(operation(0, Access::Read));
        drive.begin(&MODEL, Instant(0)).unwrap();
        drive.add(operation(900_000, Access::Read));
        let now = Instant(0) + READ_EXPIRES;
        drive.add(DriveOperation { arrived: now, ..operation(128, Access::Read) });
        assert_eq!(drive.begin(&MODEL, now).unwrap().0.start, 900_000 * KIB);
    }
}
