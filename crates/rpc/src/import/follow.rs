//! Where replies should be read: on the core whose tasks wait for them, so that a reply needs no
//! other core on its way.
//!
//! Moving costs about as much as two replies that are read on a wrong core. So the reader moves
//! only after several replies in a row for one other core; if several cores call by turns, it
//! stays.

/// Replies in a row for another core, after which the reader moves there.
const REPLIES_BEFORE_MOVE: u32 = 8;

/// The core of a reader, and the one that it may move to.
#[derive(Debug)]
pub(super) struct Follow {
    home: usize,
    other: usize,
    in_row: u32,
}

impl Follow {
    /// Of a reader on the core `home`.
    pub(super) fn new(home: usize) -> Self {
        Self { home, other: home, in_row: 0 }
    }

    /// A reply was for a task of `core`; the core to move to, if it is time.
    pub(super) fn reply_for(&mut self, core: usize) -> Option<usize> {
        if core == self.home {
            self.in_row = 0;
            return None;
        }
        if core != self.other {
            (self.other, self.in_row) = (core, 0);
        }
        self.in_row += 1;
        if self.in_row < REPLIES_BEFORE_MOVE {
            return None;
        }
        *self = Self::new(core);
        Some(core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(follow: &mut Follow, cores: &[usize]) -> Vec<usize> {
        cores.iter().filter_map(|core| follow.reply_for(*core)).collect()
    }

    #[test]
    fn a_reader_follows_those_who_call_in_a_row() {
        let mut follow = Follow::new(0);
        assert_eq!(moves(&mut follow, &[0; 20]), []);
        assert_eq!(moves(&mut follow, &[2; 20]), [2]);
        assert_eq!(moves(&mut follow, &[1; 8]), [1]);
    }

    #[test]
    fn a_reader_stays_where_cores_call_by_turns() {
        let mut follow = Follow::new(0);
        assert_eq!(moves(&mut follow, &[0, 1].repeat(20)), []);
        assert_eq!(moves(&mut follow, &[1, 2].repeat(20)), []);
        assert_eq!(moves(&mut follow, &[1, 1, 1, 1, 1, 1, 1, 0].repeat(3)), []);
    }
}
