//! What came of the moves of directories and files between MDTs in a run, and of changes of the
//! stripes of directories: a run in which none succeeds tests nothing of them.

use std::{fmt, ops::AddAssign};

use types::{FsError, FsResult, counted};

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCounts {
    /// Inodes that have moved.
    pub moved: u64,
    /// Inodes that were there already.
    pub there: u64,
    /// Inodes that stayed because they were in use.
    pub busy: u64,
    /// Inodes that stayed because they are more than one batch can take.
    pub too_big: u64,
    /// Inodes that stayed because of what they are.
    pub not_supported: u64,
    /// Directories that have got stripes, or have none any more.
    pub split: u64,
    /// Directories that kept the stripes that they had.
    pub not_split: u64,
}

/// From so many attempts on it is no accident that none has succeeded.
const JUDGED_FROM: u64 = 20;

impl MoveCounts {
    /// Counts an inode that was to move. What keeps one where it is, is no failure of a run.
    pub fn note_move(&mut self, was_there: bool, outcome: FsResult<()>) -> FsResult<()> {
        match outcome {
            Ok(()) if was_there => self.there += 1,
            Ok(()) => self.moved += 1,
            Err(error) => self.stays(error)?,
        }
        Ok(())
    }

    /// Counts a directory that was to get other stripes.
    pub fn note_split(&mut self, outcome: FsResult<()>) -> FsResult<()> {
        match outcome {
            Ok(()) => self.split += 1,
            Err(FsError::NotSupported) => self.not_split += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn stays(&mut self, error: FsError) -> FsResult<()> {
        match error {
            FsError::Busy => self.busy += 1,
            FsError::TooBig => self.too_big += 1,
            FsError::NotSupported => self.not_supported += 1,
            error => return Err(error),
        }
        Ok(())
    }

    /// Whether many inodes were to move, and all stayed.
    pub fn all_stayed(&self) -> bool {
        self.moved == 0 && self.busy + self.too_big + self.not_supported >= JUDGED_FROM
    }
}

impl AddAssign for MoveCounts {
    fn add_assign(&mut self, other: Self) {
        let Self { moved, there, busy, too_big, not_supported, split, not_split } = other;
        self.moved += moved;
        self.there += there;
        self.busy += busy;
        self.too_big += too_big;
        self.not_supported += not_supported;
        self.split += split;
        self.not_split += not_split;
    }
}

impl fmt::Display for MoveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { moved, there, busy, too_big, not_supported, split, not_split } = self;
        write!(f, "{} moved ({there} were there, {busy} in use, {too_big} too big, ", counted(*moved, "inode"))?;
        write!(f, "{not_supported} not supported), {} of stripes ({not_split} refused)", counted(*split, "change"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_counted_and_what_fails_is_told() {
        let mut counts = MoveCounts::default();
        for stays in [FsError::Busy, FsError::TooBig, FsError::NotSupported] {
            assert_eq!(counts.note_move(false, Err(stays)), Ok(()));
        }
        assert_eq!(counts.note_move(true, Ok(())), Ok(()));
        assert_eq!(counts.note_move(false, Err(FsError::Stale)), Err(FsError::Stale));
        assert_eq!(counts.note_split(Err(FsError::TooBig)), Err(FsError::TooBig));
        let mut refused = MoveCounts::default();
        (0..JUDGED_FROM).for_each(|_| assert_eq!(refused.note_split(Err(FsError::NotSupported)), Ok(())));
        assert!(!refused.all_stayed(), "none was to move");
        let expected = MoveCounts { there: 1, busy: 1, too_big: 1, not_supported: 1, ..MoveCounts::default() };
        assert!(counts == expected && !counts.all_stayed());
        (0..JUDGED_FROM).for_each(|_| counts += expected);
        assert!(counts.all_stayed());
        assert_eq!(counts.note_move(false, Ok(())), Ok(()));
        assert!(!counts.all_stayed());
    }
}
