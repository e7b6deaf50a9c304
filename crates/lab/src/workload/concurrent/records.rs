//! Records of a file that clients write, each at its own places: the acknowledged contents of every
//! place, and the contents that it may have because a write is in progress. Outlives the clients.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::Verdict;
use crate::reference::pattern;

/// The possible contents of a place: seeds of patterns.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The last that was acknowledged.
    written: Option<u8>,
    /// One whose outcome is open.
    under_way: Option<u8>,
}

/// See the module documentation.
pub struct Records {
    bytes: u64,
    places: Mutex<BTreeMap<u64, Place>>,
}

impl Records {
    /// Records of this size; nothing is written yet.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, places: Mutex::default() }
    }

    /// Where a place begins.
    pub fn offset(&self, place: u64) -> u64 {
        place * self.bytes
    }

    /// Bytes of a record.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// A record of this seed at this place.
    pub fn contents(&self, place: u64, seed: u8) -> Vec<u8> {
        pattern(seed, self.offset(place), self.bytes())
    }

    /// The record is about to be written.
    pub fn begin(&self, place: u64, seed: u8) {
        self.places.lock().entry(place).or_default().under_way = Some(seed);
    }

    /// It was acknowledged.
    pub fn end(&self, place: u64, seed: u8) {
        self.places.lock().insert(place, Place { written: Some(seed), under_way: None });
    }

    /// Whether a write never ended.
    pub fn is_any_under_way(&self) -> bool {
        self.places.lock().values().any(|place| place.under_way.is_some())
    }

    /// The end of the last record that was acknowledged.
    pub fn end_of_last(&self) -> u64 {
        let places = self.places.lock();
        let last = places.iter().rev().find(|(_, place)| place.written.is_some());
        last.map_or(0, |(number, _)| self.offset(number + 1))
    }

    /// Every place of a file with these data holds what it was told to, unless a write there never
    /// ended.
    pub fn judge(&self, data: &[u8]) -> Verdict {
        for (number, place) in &*self.places.lock() {
            let range = self.offset(*number) as usize..self.offset(number + 1) as usize;
            let found = data.get(range.clone());
            let as_told = place.written.is_some_and(|seed| found == Some(&self.contents(*number, seed)[..]));
            if !as_told && place.under_way.is_none() {
                return Err(format!("place {number} (bytes {range:?} of {}) is not as written", data.len()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_holds_what_was_acknowledged_unless_a_write_never_ended() {
        let records = Records::new(100);
        records.begin(1, 7);
        assert!(records.is_any_under_way() && records.judge(&[]).is_ok() && records.end_of_last() == 0);
        records.end(1, 7);
        let data = [vec![0; 100], records.contents(1, 7)].concat();
        assert!(!records.is_any_under_way() && records.end_of_last() == 200);
        assert!(records.judge(&data).is_ok());
        assert!(records.judge(&data[..199]).is_err());
        records.end(1, 8);
        assert!(records.judge(&data).is_err());
        records.begin(1, 9);
        assert!(records.judge(&data).is_ok());
    }
}
