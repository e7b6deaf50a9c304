//! What this client knows about the size of a file that it writes.
//!
//! As long as this client is the only source of changes, it knows the file's data attributes
//! without asking an OST: those that the MDT knew, plus the changes by its own writes. It reports
//! them to the MDT at the last close, so that a file that is created, written and closed costs no
//! request for its size. The MDT's write epoch guards this: an epoch given to a client stays the
//! file's epoch only while that client is the only one to change the file.
//!
//! Invariants: `known` is `Some` only if the attributes were exact when epoch `known.epoch` was
//! given to this client or when it truncated the file under it, and they include every change that
//! this client made since. Whenever anything is in doubt (a second writer, a request whose effect
//! is unknown, a server that lost changes when its host lost power) `known` becomes `None`, and the
//! MDT asks for a glimpse at the end. So errors here cannot cause a wrong size, only an additional
//! request. Life cycle: one per open inode; empty while it has no writer. Downside: after any
//! doubt, knowledge returns only with a truncation or the next open.

use rpc::message::{
    mdt::{Entry, SizeUpdate},
    ost::Changed,
};
use types::{SeenChanges, SeenProof, Timestamp};

use crate::objects::data_attributes::DataAttributes;

/// Exact data attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    epoch: u64,
    size: u64,
    /// May be momentarily off while replies of one object overtake each other; signed, so that the
    /// sum is right at the end.
    blocks: i64,
    /// Changes of all objects.
    changes: u64,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SizeTracker {
    known: Option<Known>,
    /// Changes sent whose outcome has not arrived.
    in_flight: u32,
    /// Changes ever sent.
    begun: u64,
    /// Time of this client's latest change.
    changed_at: Option<Timestamp>,
    /// The file was truncated since this client began to write to it.
    was_truncated: bool,
}

impl SizeTracker {
    /// An open for writing was given epoch `epoch`. `size_known`: the inode, if it was exact at
    /// this moment.
    pub fn opened(&mut self, epoch: u64, size_known: Option<&Entry>) {
        self.known = size_known.map(|entry| {
            let attributes = &entry.attributes;
            Known { epoch, size: attributes.size, blocks: blocks(attributes.blocks), changes: entry.changes }
        });
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
        assert!(self.in_flight > 0, "a change is noted before it ends");
        if let Some(known) = &mut self.known {
            known.size = known.size.max(file_size);
            known.blocks += blocks(change.after.blocks) - blocks(change.before.blocks);
            let further = change.after.changes.saturating_sub(change.before.changes);
            known.changes = known.changes.saturating_add(further);
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

    /// All objects were truncated under the exclusive lock and epoch `epoch`: the file has these
    /// data attributes unless this client changed anything meanwhile, which shows in `begun`: the
    /// number of changes expected up to now.
    pub fn truncated(&mut self, epoch: u64, data_attributes: &DataAttributes, begun: u64) {
        assert!(u64::from(self.in_flight) <= self.begun, "only a change that began is in flight");
        let alone = self.in_flight == 0 && self.begun == begun;
        let DataAttributes { size, changes, .. } = *data_attributes;
        self.was_truncated = true;
        self.known =
            alone.then_some(Known { epoch, size, blocks: blocks(data_attributes.blocks), changes: changes.count });
        self.changed_at = self.changed_at.max(Some(changes.last));
    }

    /// Whether the file was truncated since this client began to write to it.
    pub fn was_truncated(&self) -> bool {
        self.was_truncated
    }

    /// Something happened whose effect is unknown.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// A server lost changes that were acknowledged: a truncation in progress does not know the
    /// size, blocks and times either.
    pub fn lost(&mut self) {
        self.forget();
        self.begun += 1;
    }

    /// What a time that is set now would account for, as far as this client alone knows it.
    pub fn seen(&self) -> Option<SeenChanges> {
        let known = self.update()?;
        Some(SeenChanges { changes: known.data_changes(), proof: SeenProof::Alone { epoch: known.epoch } })
    }

    /// The exact size, if `epoch` is the one this client knows about and nothing is in flight.
    pub fn size_under(&self, epoch: u64) -> Option<u64> {
        self.known.filter(|known| known.epoch == epoch && self.in_flight == 0).map(|known| known.size)
    }

    /// The data attributes that this client alone determines, if `epoch` is the file's and nothing
    /// was changed since [`SizeTracker::begun`] was `begun`: so they are those of the moment at
    /// which the MDT told the epoch.
    pub fn alone(&self, epoch: u64, begun: u64) -> Option<SizeUpdate> {
        self.update().filter(|known| known.epoch == epoch && self.begun == begun)
    }

    /// The data attributes to close with; `None` if they are not known exactly.
    pub fn update(&self) -> Option<SizeUpdate> {
        let known = self.known.filter(|_| self.in_flight == 0)?;
        let blocks = u64::try_from(known.blocks).ok()?;
        let Known { epoch, size, changes, .. } = known;
        Some(SizeUpdate { epoch, size, blocks, mtime: self.changed_at, changes })
    }
}

/// Blocks as a signed number. No object has 2^63 of them (2^72 bytes).
fn blocks(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::ObjectAttributes;
    use types::{Attributes, DataChanges, FileKind, InodeNumber};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    /// Of a file of known size whose objects changed three times.
    fn entry(size: u64, blocks: u64) -> Entry {
        let zeroed = Attributes::zeroed(InodeNumber(7), FileKind::Regular);
        let times = Attributes { atime: at(1), mtime: at(1), ctime: at(1), btime: at(1), ..zeroed };
        let attributes = Attributes { mode: 0o644, links: 1, size, blocks, ..times };
        Entry { accounted: at(1), changes: 3, ..Entry::of(attributes) }
    }

    /// The change of an object that changed seven times before.
    fn change(blocks_before: u64, blocks_after: u64, mtime: i64) -> Changed {
        let object = |blocks, mtime, changes| ObjectAttributes { size: 0, blocks, mtime: at(mtime), changes };
        Changed { before: object(blocks_before, 0, 7), after: object(blocks_after, mtime, 8) }
    }

    #[test]
    fn a_sole_writer_knows_the_data_attributes() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&entry(100, 8)));
        tracker.begin();
        assert_eq!(tracker.update(), None, "not while a write is in flight");
        tracker.changed(5000, &change(8, 16, 9));
        tracker.end(true);
        assert_eq!(tracker.size_under(5), Some(5000));
        assert_eq!(tracker.size_under(6), None);
        let update = SizeUpdate { epoch: 5, size: 5000, blocks: 16, mtime: Some(at(9)), changes: 4 };
        assert_eq!(tracker.update(), Some(update));
    }

    #[test]
    fn replies_that_overtake_each_other_sum_up() {
        let mut tracker = SizeTracker::default();
        tracker.opened(1, Some(&entry(0, 0)));
        for _ in 0..2 {
            tracker.begin();
        }
        tracker.changed(8192, &change(8, 16, 3));
        tracker.changed(4096, &change(0, 8, 2));
        tracker.end(true);
        tracker.end(true);
        let update = SizeUpdate { epoch: 1, size: 8192, blocks: 16, mtime: Some(at(3)), changes: 5 };
        assert_eq!(tracker.update(), Some(update));
    }

    #[test]
    fn a_second_writer_ends_the_knowledge() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&entry(100, 8)));
        tracker.opened(6, None);
        assert_eq!(tracker.update(), None);
        assert_eq!((tracker.size_under(5), tracker.size_under(6)), (None, None));
    }

    #[test]
    fn unknown_effects_end_the_knowledge() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&entry(100, 8)));
        tracker.begin();
        tracker.end(false);
        assert_eq!(tracker.update(), None);
    }

    #[test]
    fn truncation_makes_known_unless_something_else_changed() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, None);
        let changes = DataChanges { count: 9, last: at(4) };
        let data_attributes = DataAttributes { size: 10, blocks: 8, changes };
        for others in [0, 1] {
            let expected = tracker.begun() + 1;
            for _ in 0..1 + others {
                tracker.begin();
                tracker.changed(20, &change(0, 16, 3));
                tracker.end(true);
            }
            tracker.truncated(5, &data_attributes, expected);
            let update = SizeUpdate { epoch: 5, size: 10, blocks: 8, mtime: Some(at(4)), changes: 9 };
            assert_eq!(tracker.update(), (others == 0).then_some(update));
        }
    }

    #[test]
    fn a_loss_in_the_middle_of_a_truncation_leaves_nothing_known() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&entry(100, 8)));
        let expected = tracker.begun() + 1;
        tracker.begin();
        tracker.lost();
        tracker.changed(20, &change(0, 16, 3));
        tracker.end(true);
        tracker.truncated(5, &DataAttributes { size: 10, blocks: 8, ..DataAttributes::default() }, expected);
        assert_eq!(tracker.update(), None, "one of the objects may have been truncated before the loss");
    }

    #[test]
    fn times_set_by_hand_account_for_what_was_written_before() {
        let mut tracker = SizeTracker::default();
        tracker.opened(5, Some(&entry(0, 0)));
        tracker.begin();
        assert_eq!(tracker.seen(), None, "nobody knows whether the write comes before");
        tracker.changed(1, &change(0, 8, 50));
        tracker.end(true);
        let seen = tracker.seen().unwrap();
        assert_eq!(seen.changes, DataChanges { count: 4, last: at(50) });
        assert_eq!(seen.proof, SeenProof::Alone { epoch: 5 });
    }
}
