//! The possible contents of a file whose users get errors: kept outside of all simulated processes.
//!
//! A change that failed may have happened, or not, until its user gets the error: from then on the
//! file does not change by itself. So after a failure several contents are possible; the first
//! reader finds one of them, and from then on all clients see the same one, until the next change.
//! An acknowledged change is in the file, whatever failed before it.
//!
//! Each place of a file is within one stripe: a change of a place is one request to one target,
//! whole or not at all. Sizes are an interval: a failed truncation may have shortened some objects,
//! but not extended the one that was to hold the new size.

use std::{collections::BTreeSet, ops::Range};

use crate::reference::pattern;

use super::Verdict;

/// Places of a file.
pub const PLACES: u64 = 28;
/// Bytes of a place: not a multiple of a block, so that neighbours share blocks.
pub const PLACE_BYTES: u64 = 9_001;
/// Bytes of a stripe, at least, and the places in it.
const STRIPE_BYTES: u64 = 64 << 10;
const PLACES_PER_STRIPE: u64 = STRIPE_BYTES / PLACE_BYTES;

/// Number of a write; 0 is a hole, or after the end of the file.
pub type Version = u32;

/// The position of a place in its file.
pub fn range(place: u64) -> Range<u64> {
    let start = place / PLACES_PER_STRIPE * STRIPE_BYTES + place % PLACES_PER_STRIPE * PLACE_BYTES;
    start..start + PLACE_BYTES
}

/// The bytes of a place's version.
pub fn contents(place: u64, version: Version) -> Vec<u8> {
    if version == 0 {
        return vec![0; PLACE_BYTES as usize];
    }
    let mut bytes = pattern(version as u8, range(place).start, PLACE_BYTES as usize);
    bytes[..4].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// A change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This version is written to this place.
    Write(u64, Version),
    /// A place becomes a hole.
    Punch(u64),
    /// The file ends where this place begins.
    Truncate(u64),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Ledger {
    places: Vec<BTreeSet<Version>>,
    size_min: u64,
    size_max: u64,
}

impl Default for Ledger {
    /// An empty file.
    fn default() -> Self {
        Self { places: vec![BTreeSet::from([0]); PLACES as usize], size_min: 0, size_max: 0 }
    }
}

impl Ledger {
    /// A change was acknowledged.
    pub fn done(&mut self, change: Change) {
        match change {
            Change::Write(place, version) => {
                self.places[place as usize] = BTreeSet::from([version]);
                self.size_min = self.size_min.max(range(place).end);
                self.size_max = self.size_max.max(range(place).end);
            }
            Change::Punch(place) => self.places[place as usize] = BTreeSet::from([0]),
            Change::Truncate(place) => {
                self.places[place as usize..].fill(BTreeSet::from([0]));
                self.size_min = range(place).start;
                self.size_max = range(place).start;
            }
        }
    }

    /// The user of a change was told that it failed: it has happened, or never will.
    pub fn failed(&mut self, change: Change) {
        match change {
            Change::Write(place, version) => {
                self.places[place as usize].insert(version);
                self.size_max = self.size_max.max(range(place).end);
            }
            Change::Punch(place) => {
                self.places[place as usize].insert(0);
            }
            Change::Truncate(place) => {
                self.places[place as usize..].iter_mut().for_each(|possible| {
                    possible.insert(0);
                });
                self.size_min = self.size_min.min(self.end_before(place));
                self.size_max = self.size_max.max(range(place).start);
            }
        }
    }

    /// The minimum end of the data before a place.
    fn end_before(&self, place: u64) -> u64 {
        let holds_data = |number: &u64| !self.places[*number as usize].contains(&0);
        (0..place).rev().find(holds_data).map_or(0, |last| range(last).end)
    }

    /// The file was seen to have this size.
    pub fn saw_size(&mut self, size: u64) -> Verdict {
        if !(self.size_min..=self.size_max).contains(&size) {
            return Err(format!("its size is {size}, expected {} to {}", self.size_min, self.size_max));
        }
        (self.size_min, self.size_max) = (size, size);
        Ok(())
    }

    /// These data were read at a place: fewer than requested at the end of the file.
    pub fn saw_data(&mut self, place: u64, data: &[u8]) -> Verdict {
        let (range, bytes) = (range(place), data.len() as u64);
        let (least, most) = match bytes {
            0 => (0, range.start),
            PLACE_BYTES => (range.end, u64::MAX),
            _ => (range.start + bytes, range.start + bytes),
        };
        let (size_min, size_max) = (self.size_min.max(least), self.size_max.min(most));
        if size_min > size_max {
            let expected = format!("{} to {}", self.size_min, self.size_max);
            return Err(format!("place {place} has {bytes} bytes, expected of a file of {expected}"));
        }
        let mut whole = data.to_vec();
        whole.resize(PLACE_BYTES as usize, 0);
        let possible = &mut self.places[place as usize];
        let Some(found) = possible.iter().copied().find(|version| contents(place, *version) == whole) else {
            let version = Version::from_le_bytes([whole[0], whole[1], whole[2], whole[3]]);
            return Err(format!("place {place} begins like version {version}, expected all of one of {possible:?}"));
        };
        *possible = BTreeSet::from([found]);
        (self.size_min, self.size_max) = (size_min, size_max);
        Ok(())
    }

    /// Changes whose outcome has not been checked since they failed.
    pub fn is_anything_open(&self) -> bool {
        self.size_min < self.size_max || self.places.iter().any(|possible| possible.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_in_one_stripe_each_and_do_not_overlap() {
        for place in 0..PLACES {
            let Range { start, end } = range(place);
            assert_eq!(start / STRIPE_BYTES, (end - 1) / STRIPE_BYTES);
            assert!(place == 0 || range(place - 1).end <= start);
        }
    }

    #[test]
    fn what_was_seen_after_a_failure_stays() {
        for happened in [false, true] {
            let mut ledger = Ledger::default();
            ledger.done(Change::Write(3, 1));
            ledger.failed(Change::Write(3, 2));
            assert!(ledger.is_anything_open());
            let (one, other) = if happened { (2, 1) } else { (1, 2) };
            assert_eq!(ledger.saw_data(3, &contents(3, one)), Ok(()));
            assert!(!ledger.is_anything_open());
            assert_eq!(ledger.saw_data(3, &contents(3, one)), Ok(()));
            assert!(ledger.saw_data(3, &contents(3, other)).is_err());
        }
    }

    #[test]
    fn what_was_acknowledged_is_there_whatever_failed_before() {
        let mut ledger = Ledger::default();
        ledger.failed(Change::Write(3, 1));
        ledger.done(Change::Write(3, 2));
        for wrong in [0, 1] {
            assert!(ledger.clone().saw_data(3, &contents(3, wrong)).is_err());
        }
        let torn = [&contents(3, 1)[..5000], &contents(3, 2)[5000..]].concat();
        assert!(ledger.clone().saw_data(3, &torn).is_err());
        assert_eq!(ledger.saw_data(3, &contents(3, 2)), Ok(()));
    }

    #[test]
    fn sizes_are_what_was_seen() {
        let mut ledger = Ledger::default();
        ledger.done(Change::Write(3, 1));
        let (start, end) = (range(3).start, range(3).end);
        assert!(ledger.clone().saw_size(start).is_err());
        ledger.done(Change::Write(0, 2));
        ledger.failed(Change::Truncate(2));
        assert!(ledger.clone().saw_size(end + 1).is_err() && ledger.clone().saw_size(range(0).end - 1).is_err());
        let mut cut = ledger.clone();
        assert_eq!(cut.saw_size(range(2).start), Ok(()));
        assert!(cut.clone().saw_data(3, &contents(3, 1)).is_err(), "it is after the end");
        assert_eq!(cut.saw_data(3, &[]), Ok(()));
        assert_eq!(ledger.saw_data(3, &contents(3, 1)), Ok(()));
        assert!(ledger.saw_size(range(2).start).is_err(), "it was seen to be longer");
        assert_eq!(ledger.saw_size(end), Ok(()));
    }
}
