//! How long the oldest batch has waited for its flush: the times at which batches were handed to
//! the kernel.
//!
//! Downside: times closer together than [`RESOLUTION`] count as the first of them, so an age may be
//! too high by that.

use std::{collections::VecDeque, time::Duration};

use rt::Instant;

use crate::batch::Lsn;

/// Bounds the number of marks: a hundred for each second without a flush.
const RESOLUTION: Duration = Duration::from_millis(10);

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Ages {
    /// Every batch after the mark before, up to this one, began to be written at this time or
    /// later.
    marks: VecDeque<(Lsn, Instant)>,
}

impl Ages {
    /// Batches up to `last` are being written now, those up to `flushed` are durable. If these are
    /// the same, the write is a mark only, which no caller waits for.
    pub fn writing(&mut self, last: Lsn, flushed: Lsn, now: Instant) {
        if last <= flushed {
            return;
        }
        match self.marks.back_mut() {
            Some((lsn, begun)) if now.since(*begun) < RESOLUTION => *lsn = last,
            _ => self.marks.push_back((last, now)),
        }
    }

    /// Batches up to `last` are durable.
    pub fn flushed(&mut self, last: Lsn) {
        while self.marks.front().is_some_and(|(lsn, _)| *lsn <= last) {
            self.marks.pop_front();
        }
    }

    /// When the oldest batch that is not durable was written, or a little earlier.
    pub fn oldest(&self) -> Option<Instant> {
        self.marks.front().map(|(_, begun)| *begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unflushed_batch_has_the_age() {
        let mut ages = Ages::default();
        let at = |milliseconds: u64| Instant(milliseconds * 1_000_000);
        assert_eq!(ages.oldest(), None);
        for (lsn, time) in [(1, 100), (2, 105), (5, 120), (9, 500)] {
            ages.writing(Lsn(lsn), Lsn(0), at(time));
        }
        assert_eq!(ages.marks.len(), 3);
        ages.flushed(Lsn(1));
        assert_eq!(ages.oldest(), Some(at(100)), "batch 2 shares its time");
        ages.flushed(Lsn(2));
        assert_eq!(ages.oldest(), Some(at(120)));
        ages.flushed(Lsn(7));
        assert_eq!(ages.oldest(), Some(at(500)));
        ages.flushed(Lsn(9));
        assert_eq!(ages.oldest(), None);
        ages.writing(Lsn(9), Lsn(9), at(600));
        assert_eq!(ages.oldest(), None, "a mark is no change");
    }
}
