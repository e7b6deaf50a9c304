//! What readers have lost because the data of an object are in pieces: positionings, counted by
//! section of an object, in a bounded table.
//!
//! A section is *due* when its count reaches its price, which is that of a first look until it is
//! known what moving costs. Due sections are taken in the order of objects and of their blocks,
//! round and round, so that neighbours follow each other and none waits for ever.
//!
//! If the table is full, all counts are halved, and sections whose counts become 0 go: old losses
//! weigh less than new ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, Range},
};

use types::ObjectId;

/// Blocks of a section: 8 MiB.
pub const SECTION_BLOCKS: u64 = 2048;

/// Sections that are counted, at most.
const SECTIONS_MAX: usize = 16_384;

/// Positionings lost before a section is looked at: fewer pay for no move.
const FIRST_LOOK: u64 = 2;

/// A part of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Section {
    /// The object.
    pub object: ObjectId,
    /// Its number within the object.
    pub number: u64,
}

impl Section {
    /// The section that has a block of an object.
    pub fn of(object: ObjectId, block: u64) -> Self {
        Self { object, number: block / SECTION_BLOCKS }
    }

    /// Its blocks, within the object.
    pub fn blocks(self) -> Range<u64> {
        self.number * SECTION_BLOCKS..(self.number + 1) * SECTION_BLOCKS
    }
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    lost: u64,
    price: u64,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct ReadLosses {
    sections: BTreeMap<Section, Loss>,
    /// Those that have lost their price.
    due: BTreeSet<Section>,
    /// The one that was taken last.
    hand: Section,
    sections_max: usize,
}

impl Default for ReadLosses {
    fn default() -> Self {
        Self::with_room(SECTIONS_MAX)
    }
}

impl ReadLosses {
    fn with_room(sections_max: usize) -> Self {
        Self { sections: BTreeMap::new(), due: BTreeSet::new(), hand: Section::default(), sections_max }
    }

    /// A reading of a section lost so many positionings.
    pub fn add(&mut self, section: Section, lost: u64) {
        if lost > 0 {
            self.put(section, lost, FIRST_LOOK);
        }
    }

    /// A section that was taken is not paid for yet: it costs so much, of which this is lost.
    pub fn put_back(&mut self, section: Section, lost: u64, price: u64) {
        self.put(section, lost, price);
    }

    fn put(&mut self, section: Section, lost: u64, price: u64) {
        if !self.sections.contains_key(&section) && self.sections.len() >= self.sections_max {
            self.halve();
            if self.sections.len() >= self.sections_max {
                return;
            }
        }
        let loss = self.sections.entry(section).or_insert(Loss { lost: 0, price });
        loss.lost = loss.lost.saturating_add(lost);
        loss.price = loss.price.max(price);
        if loss.lost >= loss.price {
            self.due.insert(section);
        }
    }

    fn halve(&mut self) {
        let due = &mut self.due;
        self.sections.retain(|section, loss| {
            loss.lost /= 2;
            if loss.lost < loss.price {
                due.remove(section);
            }
            loss.lost > 0
        });
    }

    /// The next section that is due, and what was lost, which is forgotten.
    pub fn take(&mut self) -> Option<(Section, u64)> {
        let after = self.due.range((Bound::Excluded(self.hand), Bound::Unbounded)).next();
        let section = *after.or_else(|| self.due.first())?;
        self.due.remove(&section);
        self.hand = section;
        let loss = self.sections.remove(&section).expect("a section that is due is counted");
        Some((section, loss.lost))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sections.clear();
        self.due.clear();
    }

    /// Sections that are counted, and how many of them are due.
    pub fn counts(&self) -> (usize, usize) {
        (self.sections.len(), self.due.len())
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;

    fn section(object: u64, number: u64) -> Section {
        Section { object: ObjectId::new(InodeNumber(object), 0), number }
    }

    #[test]
    fn a_section_is_due_when_its_price_is_lost() {
        let mut losses = ReadLosses::default();
        losses.add(section(1, 0), 1);
        losses.add(section(1, 1), 0);
        assert_eq!((losses.counts(), losses.take()), ((1, 0), None));
        losses.add(section(1, 0), 2);
        assert_eq!(losses.take(), Some((section(1, 0), 3)));
        assert_eq!((losses.counts(), losses.take()), ((0, 0), None), "it is forgotten");
        losses.put_back(section(1, 0), 3, 16);
        losses.add(section(1, 0), 12);
        assert_eq!(losses.take(), None);
        losses.add(section(1, 0), 1);
        assert_eq!(losses.take(), Some((section(1, 0), 16)));
    }

    #[test]
    fn sections_are_taken_in_order_and_round_and_round() {
        let mut losses = ReadLosses::default();
        for one in [section(2, 5), section(1, 7), section(1, 3)] {
            losses.add(one, 9);
        }
        assert_eq!(losses.take(), Some((section(1, 3), 9)));
        losses.add(section(1, 3), 9);
        assert_eq!(losses.take(), Some((section(1, 7), 9)));
        assert_eq!(losses.take(), Some((section(2, 5), 9)));
        assert_eq!(losses.take(), Some((section(1, 3), 9)));
        assert_eq!((Section::of(section(1, 0).object, 4095), section(1, 1).blocks()), (section(1, 1), 2048..4096));
    }

    #[test]
    fn a_full_table_forgets_what_was_lost_long_ago() {
        let mut losses = ReadLosses::with_room(3);
        losses.add(section(1, 0), 100);
        losses.add(section(2, 0), 3);
        losses.add(section(3, 0), 1);
        assert_eq!(losses.counts(), (3, 2));
        losses.add(section(4, 0), 5);
        assert_eq!(losses.counts(), (3, 2), "the third one went, and 1 is no price of the second");
        losses.add(section(5, 0), 5);
        assert_eq!(losses.counts(), (3, 3), "the second one went");
        let taken: Vec<_> = std::iter::from_fn(|| losses.take()).collect();
        assert_eq!(taken, [(section(1, 0), 25), (section(4, 0), 2), (section(5, 0), 5)]);
        let mut busy = ReadLosses::with_room(2);
        for _ in 0..3 {
            busy.add(section(1, 0), 1000);
            busy.add(section(2, 0), 1000);
            busy.add(section(3, 0), 1);
        }
        assert_eq!(busy.counts(), (2, 2), "there is no room for what loses less");
        busy.clear();
        assert_eq!((busy.counts(), busy.take()), ((0, 0), None));
    }
}
