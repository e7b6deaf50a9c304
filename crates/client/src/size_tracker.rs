//! What this client knows of the size of a file it writes.
//!
//! As long as this client is the only source of changes, it knows the file's figures without asking an OST: those it had
//! when it was settled, plus what its own writes changed. It tells the MDT at the last close, so that a file that is
//! created, written and closed costs no request for its size. The MDT's write epoch guards this: an epoch that was given
//! to somebody stays the file's epoch only while he is the only one to change the file.
//!
//! Invariants: `known` is `Some` only if the figures were exact when epoch `known.epoch` was given to this client or when
//! it truncated the file under it, and every change this client made since is in them. Whenever anything is in doubt (a
//! second writer, a request whose effect is unknown, a server that lost changes with its host's power) `known` becomes
//! `None`, and the MDT asks for a glimpse at the end. So a wrong size cannot arise here, only a further request. Life cycle: one per open inode; empty while it has no
//! writer. Downside: after any doubt, knowledge returns only with a truncation or the next open.

use rpc::message::{mdt::SizeUpdate, ost::Changed};
use types::{Attributes, Timestamp};

use crate::glimpse::Figures;

/// Exact figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    epoch: u64,
    size: u64,
    /// May be momentarily off while replies of one object overtake each other; signed, so that the sum is right at the end.
    blocks: i64,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SizeTracker {
    known: Option<Known>,
    /// Changes sent whose outcome has not arrived.
    in_flight: u32,
    /// Changes ever sent.
    begun: u64,
    /// Time of this client's last change since the times were last set by hand.
    changed_at: Option<Timestamp>,
}

impl SizeTracker {
    /// An open for writing was given epoch `epoch`. `settled`: the attributes, if they were exact at this moment.
    pub fn opened(&mut self, epoch: u64, settled: Option<&Attributes>) {
        self.known =
            settled.map(|attributes| Known { epoch, size: attributes.size, blocks: blocks(attributes.blocks) });
    }

    /// No writer is left.
    pub fn reset(&mut self) {
        let SizeTracker { in_flight, begun, .. } = *self;
        *self = SizeTracker { in_flight, begun, ..SizeTracker::default() };
    }

    /// A change is about to be sent.
    pub fn begin(&mut self) {
        self.in_flight += 1;
        self.begun += 1;
    }

    /// An object changed; `file_size` is the file size its new size implies.
    pub fn changed(&mut self, file_size: u64, change: &Changed) {
        if let Some(known) = &mut self.known {
            known.size = known.size.max(file_size);
            known.blocks += blocks(change.after.blocks) - blocks(change.before.blocks);
        }
        self.changed_at = self.changed_at.max(Some(change.after.mtime));
    }

    /// A change came to its end; if not `sure`, what it did is unknown.
    pub fn end(&mut self, sure: bool) {
        assert!(self.in_flight > 0, "a change ended that did not begin");
        self.in_flight -= 1;
        if !sure {
            self.known = None;
        }
    }

    /// Number of changes begun so far, to be given to [`SizeTracker::truncated`].
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// All objects were truncated under the exclusive lock and epoch `epoch`: the figures are `figures` unless this client
    /// changed anything meanwhile, which shows in `begun`: the number of changes expected up to now.
    pub fn truncated(&mut self, epoch: u64, figures: &Figures, begun: u64) {
        let alone = self.in_flight == 0 && self.begun == begun;
        self.known = alone.then_some(Known { epoch, size: figures.size, blocks: blocks(figures.blocks) });
        self.changed_at = self.changed_at.max(Some(figures.mtime));
    }

    /// Something happened whose effect is unknown.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// A server lost changes that were acknowledged: whoever truncates meanwhile does not know the figures either.
    pub fn lost(&mut self) {
        self.forget();
        self.begun += 1;
    }

    /// Times were set by hand: what was written before has no say in them any more.
    pub fn times_set(&mut self) {
        self.changed_at = None;
    }

    /// The exact size, if `epoch` is the one this client knows about and nothing is in flight.
    pub fn size_under(&self, epoch: u64) -> Option<u64> {
        self.known.filter(|known| known.epoch == epoch && self.in_flight == 0).map(|known| known.size)
    }

    /// The figures to close with; `None` if they are not known exactly.
    pub fn update(&self) -> Option<SizeUpdate> {
        let known = self.known.filter(|_| self.in_flight == 0)?;
        let blocks = u64::try_from(known.blocks).ok()?;
        Some(SizeUpdate { epoch: known.epoch, size: known.size, blocks, mtime: self.changed_at })
    }
}

/// Blocks as a signed number. No object has 2^63 of them (2^72 bytes).
fn blocks(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::ObjectAttributes;
    use types::{FileKind, InodeNumber};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn attributes(size: u64, blocks: u64) -> Attributes {
        Attributes {
            inode: InodeNumber(7),
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size,
            blocks,
            atime: at(1),
            mtime: at(1),
            ctime: at(1),
            btime: at(1),
        }
    }

    fn change(blocks_before: u64, blocks_after: u64, mtime: i64) -> Changed {
        let object = |blocks, mtime| ObjectAttributes { size: 0, blocks, mtime: at(mtime) };
        Changed { before: object(blocks_before, 0), after: object(blocks_after, mtime) }
    }

    #[test]
    fn a_sole_writer_knows_the_figures() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&attributes(100, 8)));
        tracker.begin();
        assert_eq!(tracker.update(), None, "not while a write is in flight");
        tracker.changed(5000, &change(8, 16, 9));
        tracker.end(true);
        assert_eq!(tracker.size_under(5), Some(5000));
        assert_eq!(tracker.size_under(6), None);
        let update = SizeUpdate { epoch: 5, size: 5000, blocks: 16, mtime: Some(at(9)) };
        assert_eq!(tracker.update(), Some(update));
    }

    #[test]
    fn replies_that_overtake_each_other_sum_up() {
        let mut tracker = SizeTracker::default();
        tracker.opened(1, Some(&attributes(0, 0)));
        for _ in 0..2 {
            tracker.begin();
        }
        tracker.changed(8192, &change(8, 16, 3));
        tracker.changed(4096, &change(0, 8, 2));
        tracker.end(true);
        tracker.end(true);
        let update = SizeUpdate { epoch: 1, size: 8192, blocks: 16, mtime: Some(at(3)) };
        assert_eq!(tracker.update(), Some(update));
    }

    #[test]
    fn a_second_writer_ends_the_knowledge() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&attributes(100, 8)));
        tracker.opened(6, None);
        assert_eq!(tracker.update(), None);
        assert_eq!((tracker.size_under(5), tracker.size_under(6)), (None, None));
    }

    #[test]
    fn unknown_effects_end_the_knowledge() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&attributes(100, 8)));
        tracker.begin();
        tracker.end(false);
        assert_eq!(tracker.update(), None);
    }

    #[test]
    fn truncation_makes_known_unless_something_else_changed() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, None);
        let figures = Figures { size: 10, blocks: 8, mtime: at(4) };
        for others in [0, 1] {
            let expected = tracker.begun() + 1;
            for _ in 0..1 + others {
                tracker.begin();
                tracker.changed(20, &change(0, 16, 3));
                tracker.end(true);
            }
            tracker.truncated(5, &figures, expected);
            let update = SizeUpdate { epoch: 5, size: 10, blocks: 8, mtime: Some(at(4)) };
            assert_eq!(tracker.update(), (others == 0).then_some(update));
        }
    }

    #[test]
    fn a_loss_in_the_middle_of_a_truncation_leaves_nothing_known() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&attributes(100, 8)));
        let expected = tracker.begun() + 1;
        tracker.begin();
        tracker.lost();
        tracker.changed(20, &change(0, 16, 3));
        tracker.end(true);
        tracker.truncated(5, &Figures { size: 10, blocks: 8, mtime: at(4) }, expected);
        assert_eq!(tracker.update(), None, "one of the objects may have been truncated before the loss");
    }

    #[test]
    fn times_set_by_hand_hold_until_the_next_write() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&attributes(0, 0)));
        tracker.changed(1, &change(0, 8, 50));
        tracker.times_set();
        assert_eq!(tracker.update().unwrap().mtime, None, "tar set an old time after its writes");
        tracker.changed(1, &change(8, 8, 60));
        assert_eq!(tracker.update().unwrap().mtime, Some(at(60)));
    }
}
