//! Changes that this client makes. The MDT withdraws locks from all clients but the one that makes
//! a change, so this client must determine what its own changes make stale.
//!
//! Two dangers. A question that was sent before a change may be answered with the old state after
//! the change was answered: so the contents of an answer are kept only if none of them has been
//! changed since the question was sent. And while a change is under way, it is not known whether it
//! has happened: so what it is about is neither served nor kept.
//!
//! Invariant: `last` has every change that began or ended after the oldest question under way.

use std::collections::{BTreeMap, BTreeSet};

use types::InodeNumber;

use super::subject::Subject;

/// A moment: how many questions and changes came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct OwnChanges {
    now: u64,
    /// Questions that were sent and not answered, by the moment when they were.
    questions: BTreeSet<Moment>,
    /// How many changes of each subject are under way.
    under_way: BTreeMap<Subject, u32>,
    /// When a change of each subject began or ended last.
    last: BTreeMap<Subject, Moment>,
    /// The same, by time.
    by_moment: BTreeMap<Moment, Subject>,
}

impl OwnChanges {
    fn tick(&mut self) -> Moment {
        self.now += 1;
        Moment(self.now)
    }

    /// A question is about to be sent.
    pub fn asked(&mut self) -> Moment {
        let moment = self.tick();
        assert!(self.questions.insert(moment), "each question has a moment of its own");
        moment
    }

    /// A question was answered, or its answer will never be used.
    pub fn answered(&mut self, asked: Moment) {
        assert!(self.questions.remove(&asked), "a question that was asked ends once");
        let oldest = self.oldest_question();
        while let Some(first) = self.by_moment.first_entry().filter(|first| *first.key() < oldest) {
            let (moment, subject) = first.remove_entry();
            assert_eq!(self.last.remove(&subject), Some(moment), "the last change of each subject is in both tables");
        }
    }

    /// The oldest question under way; the next one, if there is none.
    pub fn oldest_question(&self) -> Moment {
        self.questions.first().copied().unwrap_or(self.next_question())
    }

    /// Number of the next question.
    pub fn next_question(&self) -> Moment {
        Moment(self.now + 1)
    }

    /// A change of these begins: to be called before its question is [`OwnChanges::asked`].
    pub fn begin(&mut self, subjects: &[Subject]) {
        for subject in subjects {
            *self.under_way.entry(subject.clone()).or_default() += 1;
        }
        self.note(subjects);
    }

    /// It was answered.
    pub fn end(&mut self, subjects: &[Subject]) {
        for subject in subjects {
            match self.under_way.get_mut(subject) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => drop(self.under_way.remove(subject)),
                None => unreachable!("a change ends after it began"),
            }
        }
        self.note(subjects);
    }

    /// These changed at some time before.
    pub fn note(&mut self, subjects: &[Subject]) {
        if self.questions.is_empty() {
            return;
        }
        for subject in subjects {
            let moment = self.tick();
            if let Some(before) = self.last.insert(subject.clone(), moment) {
                let former = self.by_moment.remove(&before);
                assert_eq!(former.as_ref(), Some(subject), "the last change of each subject is in both tables");
            }
            assert!(self.by_moment.insert(moment, subject.clone()).is_none(), "one change ends at a moment");
        }
    }

    /// Whether a change of this, besides those of `own`, is under way.
    fn is_changing(&self, subject: &Subject, own: &[Subject]) -> bool {
        let count = self.under_way.get(subject).copied().unwrap_or(0);
        let own = own.iter().filter(|each| *each == subject).count();
        u64::from(count) > own as u64
    }

    /// Whether what was asked at that moment, in a change of `own` or in none, still holds.
    fn holds(&self, subject: &Subject, asked: Moment, own: &[Subject]) -> bool {
        !self.is_changing(subject, own) && self.last.get(subject).is_none_or(|last| *last < asked)
    }

    /// Whether attributes of an inode may be served, as far as permissions depend on them.
    pub fn permissions_stable(&self, inode: InodeNumber) -> bool {
        self.under_way.is_empty() || !self.is_changing(&Subject::Inode(inode), &[])
    }

    /// Whether all its attributes may be served.
    pub fn attributes_stable(&self, inode: InodeNumber) -> bool {
        self.under_way.is_empty()
            || [Subject::AllAttributes, Subject::Inode(inode), Subject::Times(inode)]
                .iter()
                .all(|subject| !self.is_changing(subject, &[]))
    }

    /// Whether its layout may be served.
    pub fn layout_stable(&self, inode: InodeNumber) -> bool {
        self.under_way.is_empty() || layout(inode).iter().all(|subject| !self.is_changing(subject, &[]))
    }

    /// Whether it may be kept.
    pub fn layout_holds(&self, inode: InodeNumber, asked: Moment, own: &[Subject]) -> bool {
        layout(inode).iter().all(|subject| self.holds(subject, asked, own))
    }

    /// Whether its data may be served.
    pub fn data_stable(&self, inode: InodeNumber) -> bool {
        self.under_way.is_empty() || data(inode).iter().all(|subject| !self.is_changing(subject, &[]))
    }

    /// Whether they may be kept.
    pub fn data_hold(&self, inode: InodeNumber, asked: Moment, own: &[Subject]) -> bool {
        data(inode).iter().all(|subject| self.holds(subject, asked, own))
    }

    /// Whether a name may be served.
    pub fn name_stable(&self, parent: InodeNumber, name: &[u8]) -> bool {
        self.under_way.is_empty() || !self.is_changing(&Subject::Name(parent, name.to_vec()), &[])
    }

    /// Whether the names of a directory may be served as a whole, with `..`.
    pub fn listing_stable(&self, directory: InodeNumber) -> bool {
        self.under_way.is_empty() || listing(directory).iter().all(|subject| !self.is_changing(subject, &[]))
    }

    /// Whether they may be kept.
    pub fn listing_holds(&self, directory: InodeNumber, asked: Moment, own: &[Subject]) -> bool {
        listing(directory).iter().all(|subject| self.holds(subject, asked, own))
    }

    /// Whether attributes of inodes that are not known are being changed, by another change than
    /// `own`.
    pub fn anything_changes(&self, own: &[Subject]) -> bool {
        self.is_changing(&Subject::AllAttributes, own)
    }

    /// Whether the permissions, extended attributes and the link target of an inode in an answer
    /// may be kept.
    pub fn permissions_hold(&self, inode: InodeNumber, asked: Moment, own: &[Subject]) -> bool {
        self.holds(&Subject::Inode(inode), asked, own)
    }

    /// Whether all its attributes may be kept.
    pub fn attributes_hold(&self, inode: InodeNumber, asked: Moment, own: &[Subject]) -> bool {
        [Subject::AllAttributes, Subject::Inode(inode), Subject::Times(inode)]
            .iter()
            .all(|subject| self.holds(subject, asked, own))
    }

    /// Whether where a name leads may be kept.
    pub fn name_holds(&self, parent: InodeNumber, name: &[u8], asked: Moment, own: &[Subject]) -> bool {
        self.holds(&Subject::Name(parent, name.to_vec()), asked, own)
    }
}

/// What a listing of a directory depends on.
fn listing(directory: InodeNumber) -> [Subject; 3] {
    [Subject::AllAttributes, Subject::Above(directory), Subject::Names(directory)]
}

/// What the layout of a file depends on.
fn layout(inode: InodeNumber) -> [Subject; 2] {
    [Subject::Inode(inode), Subject::Layout(inode)]
}

/// What the data of a file on the MDT depend on: a compound may write to an inode that this client
/// cannot name.
fn data(inode: InodeNumber) -> [Subject; 3] {
    [Subject::AllAttributes, Subject::Inode(inode), Subject::Data(inode)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InodeNumber = InodeNumber(7);

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let mut changes = OwnChanges::default();
        let before = changes.asked();
        let subjects = [Subject::Times(ONE)];
        changes.begin(&subjects);
        let change = changes.asked();
        assert!(!changes.attributes_stable(ONE), "nobody knows whether it has happened");
        assert!(changes.permissions_stable(ONE), "they do not depend on times");
        let between = changes.asked();
        assert!(changes.attributes_hold(ONE, change, &subjects), "the change's own answer says what it made");
        assert!(!changes.attributes_hold(ONE, between, &[]));
        changes.end(&subjects);
        changes.answered(change);
        assert!(changes.attributes_stable(ONE));
        assert!(!changes.attributes_hold(ONE, before, &[]));
        assert!(!changes.attributes_hold(ONE, between, &[]));
        assert!(changes.permissions_hold(ONE, before, &[]));
        let after = changes.asked();
        assert!(changes.attributes_hold(ONE, after, &[]));
    }

    #[test]
    fn two_changes_at_once_leave_nothing_to_keep() {
        let mut changes = OwnChanges::default();
        let subjects = [Subject::Inode(ONE)];
        changes.begin(&subjects);
        let one = changes.asked();
        changes.begin(&subjects);
        let other = changes.asked();
        assert!(!changes.attributes_hold(ONE, one, &subjects));
        changes.end(&subjects);
        assert!(!changes.attributes_stable(ONE), "the other one is still under way");
        assert!(!changes.attributes_hold(ONE, other, &subjects), "which of them came first is unknown");
        changes.end(&subjects);
        assert!(changes.attributes_stable(ONE));
    }

    #[test]
    fn what_no_question_can_be_about_is_forgotten() {
        let mut changes = OwnChanges::default();
        let oldest = changes.asked();
        for inode in 0..100 {
            let subjects = [Subject::Name(ONE, vec![inode])];
            changes.begin(&subjects);
            let asked = changes.asked();
            changes.end(&subjects);
            changes.answered(asked);
        }
        assert_eq!((changes.last.len(), changes.by_moment.len()), (100, 100));
        changes.answered(oldest);
        assert_eq!((changes.last.len(), changes.by_moment.len(), changes.under_way.len()), (0, 0, 0));
    }

    #[test]
    fn the_removal_of_an_unknown_name_concerns_all_attributes() {
        let mut changes = OwnChanges::default();
        changes.begin(&[Subject::AllAttributes]);
        assert!(!changes.attributes_stable(ONE));
        assert!(changes.permissions_stable(ONE));
    }
}
