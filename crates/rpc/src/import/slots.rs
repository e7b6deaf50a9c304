//! The client's side of the slots: which are free, and the last xid of each.
//!
//! Slot 0 is the control slot: pings, and the calls of a recovery, which must not wait for the
//! slots of the requests that wait for the recovery. The lowest free slot is used first, so that a
//! client with few requests uses few slots.

use types::{Slot, Xid, limits::SESSION_SLOTS_MAX};

/// The slot of pings and recoveries.
pub(super) const CONTROL: Slot = Slot(0);

const WORDS: usize = (SESSION_SLOTS_MAX as usize).div_ceil(64);

/// All slots of one import.
pub(super) struct Slots {
    /// Bit set: free.
    free: [u64; WORDS],
    /// Last transaction of each slot, up to the highest that was ever taken.
    xids: Vec<u64>,
    used: usize,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { free: [u64::MAX; WORDS], xids: Vec::new(), used: 0 }
    }

    /// Slots in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Takes the control slot, if it is free.
    pub(super) fn take_control(&mut self) -> Option<(Slot, Xid)> {
        (self.free[0] & 1 != 0).then(|| self.take(CONTROL))
    }

    /// Takes the lowest other slot below `end`, if one is free.
    pub(super) fn take_ordinary(&mut self, end: u16) -> Option<(Slot, Xid)> {
        self.take_within(CONTROL.0 + 1, end)
    }

    /// Takes the lowest of the slots from `start` to before `end`, if one is free.
    pub(super) fn take_within(&mut self, start: u16, end: u16) -> Option<(Slot, Xid)> {
        let first = usize::from(start / 64);
        for (word, free) in self.free.iter().enumerate().skip(first) {
            let candidates = if word == first { free & (u64::MAX << (start % 64)) } else { *free };
            if candidates != 0 {
                let slot = Slot((word * 64) as u16 + candidates.trailing_zeros() as u16);
                return (slot.0 < end).then(|| self.take(slot));
            }
        }
        None
    }

    fn take(&mut self, slot: Slot) -> (Slot, Xid) {
        let index = usize::from(slot.0);
        self.free[index / 64] &= !(1 << (index % 64));
        if index >= self.xids.len() {
            self.xids.resize(index + 1, 0);
        }
        self.xids[index] += 1;
        self.used += 1;
        (slot, Xid(self.xids[index]))
    }

    /// The next transaction of a slot in use, whose last one is past.
    pub(super) fn renew(&mut self, slot: Slot) -> Xid {
        let xid = &mut self.xids[usize::from(slot.0)];
        *xid += 1;
        Xid(*xid)
    }

    /// Gives a slot back; its transaction is past.
    pub(super) fn give_back(&mut self, slot: Slot) {
        let index = usize::from(slot.0);
        let bit = 1 << (index % 64);
        assert_eq!(self.free[index / 64] & bit, 0, "slot {index} was not in use");
        self.free[index / 64] |= bit;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_slots_come_first_and_count_their_transactions() {
        let mut slots = Slots::new();
        assert_eq!(slots.take_ordinary(4), Some((Slot(1), Xid(1))));
        assert_eq!(slots.take_ordinary(4), Some((Slot(2), Xid(1))));
        slots.give_back(Slot(1));
        assert_eq!(slots.take_ordinary(4), Some((Slot(1), Xid(2))));
        assert_eq!(slots.take_ordinary(4), Some((Slot(3), Xid(1))));
        assert_eq!(slots.take_ordinary(4), None);
        assert_eq!(slots.used(), 3);
    }

    #[test]
    fn a_slot_goes_on_counting_without_being_given_back() {
        let mut slots = Slots::new();
        assert_eq!(slots.take_ordinary(4), Some((Slot(1), Xid(1))));
        assert_eq!(slots.renew(Slot(1)), Xid(2));
        assert_eq!(slots.used(), 1);
        slots.give_back(Slot(1));
        assert_eq!(slots.take_ordinary(4), Some((Slot(1), Xid(3))));
    }

    #[test]
    fn the_control_slot_is_apart() {
        let mut slots = Slots::new();
        assert_eq!(slots.take_control(), Some((CONTROL, Xid(1))));
        assert_eq!(slots.take_control(), None);
        slots.give_back(CONTROL);
        assert_eq!(slots.take_control(), Some((CONTROL, Xid(2))));
    }

    #[test]
    fn a_range_of_slots_is_apart() {
        let mut slots = Slots::new();
        assert_eq!(slots.take_within(62, 65), Some((Slot(62), Xid(1))));
        assert_eq!(slots.take_within(62, 65), Some((Slot(63), Xid(1))));
        assert_eq!(slots.take_within(62, 65), Some((Slot(64), Xid(1))));
        assert_eq!(slots.take_within(62, 65), None);
        assert_eq!(slots.take_ordinary(62), Some((Slot(1), Xid(1))));
    }

    #[test]
    fn every_slot_can_be_used() {
        let mut slots = Slots::new();
        let count = std::iter::from_fn(|| slots.take_ordinary(SESSION_SLOTS_MAX)).count();
        assert_eq!(count, usize::from(SESSION_SLOTS_MAX) - 1);
    }
}
