//! When to warn that names of a directory do not move: each step is tried again soon, and most
//! failures end by themselves, because another MDT starts again or decides what it has in doubt.
//!
//! Only of directories whose steps fail at present is anything kept.

use std::{collections::BTreeMap, time::Duration};

use rt::Instant;
use types::{FsError, InodeNumber};

/// How long an MDT may be waited for before that is worth a warning.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two warnings of the same directory.
const PAUSE: Duration = Duration::from_secs(60);

/// A directory whose steps fail.
struct Failing {
    /// `None`: the last step did something.
    since: Option<Instant>,
    warned: Option<Instant>,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct SplitWarnings(BTreeMap<InodeNumber, Failing>);

impl SplitWarnings {
    /// A step of a directory failed: whether to warn.
    pub fn is_due(&mut self, directory: InodeNumber, error: &FsError, now: Instant) -> bool {
        let failing = self.0.entry(directory).or_insert(Failing { since: None, warned: None });
        let since = *failing.since.get_or_insert(now);
        let is_late = !matches!(error, FsError::AwaitsMdt(_)) || now.since(since) >= PATIENCE;
        let is_due = is_late && failing.warned.is_none_or(|warned| now.since(warned) >= PAUSE);
        if is_due {
            failing.warned = Some(now);
        }
        is_due
    }

    /// The names of no others are to move.
    pub fn keep(&mut self, directories: &[InodeNumber]) {
        self.0.retain(|directory, _| directories.contains(directory));
    }

    /// A step of a directory did something.
    pub fn moves(&mut self, directory: InodeNumber) {
        if let Some(failing) = self.0.get_mut(&directory) {
            failing.since = None;
        }
    }
}

/// What to do about a step that fails.
pub(super) fn advice(error: &FsError) -> &'static str {
    match error {
        FsError::AwaitsMdt(_) | FsError::Unreachable { .. } | FsError::NoDevice | FsError::Evicted => {
            "start that metadata target if it is down, or look for the reason in its log"
        }
        FsError::NoDeviceOrAddress => "put all metadata targets that have stripes of it into use again",
        FsError::NotSupported => "update the metadata servers: one is of an earlier release",
        FsError::NoSpace => "make room on the metadata targets, or for names that have the same hash",
        FsError::TooBig => "move names from it to another directory",
        FsError::Damaged(_) | FsError::Corrupt { .. } | FsError::CorruptOnMdt { .. } | FsError::Device { .. } => {
            "look at the device of the metadata target, and run stria fsck"
        }
        _ => "report this with the logs of the metadata targets",
    }
}

#[cfg(test)]
mod tests {
    use types::MdtIndex;

    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber(0x200);

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_directory_is_warned_of_once_a_minute() {
        let (mut warnings, other) = (SplitWarnings::default(), InodeNumber(0x201));
        let due = |warnings: &mut SplitWarnings, seconds| {
            (0..seconds).filter(|second| warnings.is_due(DIRECTORY, &FsError::NoSpace, at(*second))).collect::<Vec<_>>()
        };
        assert_eq!(due(&mut warnings, 130), [0, 60, 120]);
        assert!(warnings.is_due(other, &FsError::NoSpace, at(1)), "each directory by itself");
        warnings.moves(DIRECTORY);
        assert!(!warnings.is_due(DIRECTORY, &FsError::NoSpace, at(179)), "also if some steps succeed");
        assert!(warnings.is_due(DIRECTORY, &FsError::NoSpace, at(180)));
        warnings.keep(&[DIRECTORY]);
        assert_eq!(warnings.0.keys().collect::<Vec<_>>(), [&DIRECTORY]);
    }

    #[test]
    fn an_mdt_that_is_absent_for_a_moment_is_no_reason() {
        let (mut warnings, absent) = (SplitWarnings::default(), FsError::AwaitsMdt(MdtIndex(1)));
        let due: Vec<_> = (0..70).filter(|second| warnings.is_due(DIRECTORY, &absent, at(*second))).collect();
        assert_eq!(due, [5, 65]);
        warnings.moves(DIRECTORY);
        assert!(!warnings.is_due(DIRECTORY, &absent, at(71)), "it moved in between");
        assert!(advice(&absent).starts_with("start that metadata target"));
    }
}
