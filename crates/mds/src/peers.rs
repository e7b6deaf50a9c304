//! What this MDT keeps in memory about operations on names and inodes of several MDTs
//! (docs/decisions/0049-namespace-over-several-mdts.md): what it has prepared for others, its own
//! operations for which others have prepared something, and which MDTs it has heard since it
//! started.
//!
//! An inode of which something is prepared is neither shown nor changed until the decision, or the
//! end of the operation. Of an inode that does not exist it is not known, before all others have
//! answered, whether one of them has decided that it exists.
//!
//! A request may need several parts. Each is an operation of its own here; one batch decides them
//! all.
//!
//! Life cycle: volatile. What lasts is in the tables PREPARED and DECISIONS, and is entered again
//! when the MDT starts. With one MDT all of it is empty.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rpc::message::{
    mdt_peer::{OperationId, Part, Prepared},
    moved_inode::GivenInode,
};
use tokio::sync::{Notify, futures::OwnedNotified};
use types::{Attributes, InodeNumber, MdtIndex, limits::PREPARED_PER_MDT_MAX, mode::S_ISVTX};

use crate::tables::prepared::Promise;

/// Bits of a start's number that count the starts of one power-loss era.
pub(crate) const COUNT_BITS: u32 = 32;

/// The power-loss era of a start.
pub(crate) fn era_of(start: u64) -> u64 {
    start >> COUNT_BITS
}

/// Whether an MDT has lost power between two starts.
pub(crate) fn has_lost_power(before: u64, after: u64) -> bool {
    era_of(before) != era_of(after)
}

/// Something prepared for an operation: of another MDT; the tree also for one of this MDT.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Preparation {
    /// What is locked; nothing with the tree.
    inodes: Vec<InodeNumber>,
    /// What is in the table PREPARED.
    promise: Option<Promise>,
}

impl Preparation {
    /// Whether this inode gets another name, perhaps in another directory.
    fn moves(&self, inode: InodeNumber) -> bool {
        match self.promise {
            Some(Promise::MoveLink | Promise::Follow | Promise::Correct) => true,
            Some(Promise::MoveName) => self.inodes.first() != Some(&inode),
            // Or it, or its directory, another number.
            Some(Promise::Give) => true,
            Some(Promise::DropLink | Promise::AddLink | Promise::Attributes | Promise::LeadNames) | None => false,
        }
    }
}

/// A part without those attributes of directories that may change and say nothing of whether it
/// is permitted. What a sticky directory permits depends on its owner.
pub(crate) fn essence(part: &Part) -> Part {
    let of = |directory: &Attributes| Attributes {
        mode: directory.mode & S_ISVTX,
        uid: directory.uid,
        ..Attributes::zeroed(directory.inode, directory.kind)
    };
    let mut part = part.clone();
    match &mut part {
        Part::DropLink(part) => part.parent = of(&part.parent),
        Part::MoveLink(part) => part.parent = of(&part.parent),
        Part::MoveName(part) => part.new_parent = of(&part.new_parent),
        Part::MakeDirectory
        | Part::MakeShard
        | Part::AddLink(_)
        | Part::CopyAttributes(_)
        | Part::Tree
        | Part::FollowName(_)
        | Part::GiveInode(_)
        | Part::GiveStriped(_)
        | Part::LeadNames(_)
        | Part::GiveNames(_)
        | Part::CorrectLink(_) => {}
    }
    part
}

/// Whether two parts differ only in what [`essence`] leaves out. Most that differ are of other
/// inodes: of these nothing is copied.
fn is_alike(one: &Part, other: &Part) -> bool {
    let may_be = match (one, other) {
        (Part::DropLink(one), Part::DropLink(other)) => one.inode == other.inode,
        (Part::MoveLink(one), Part::MoveLink(other)) => one.inode == other.inode,
        (Part::MoveName(one), Part::MoveName(other)) => one.name == other.name,
        _ => false,
    };
    may_be && essence(one) == essence(other)
}

/// What another MDT answers that has prepared a part.
#[derive(Clone, Debug)]
pub(crate) enum PreparedPart {
    /// Of all but the other one.
    Prepared(Box<Prepared>),
    /// Of [`Part::GiveInode`].
    Given(Arc<GivenInode>),
}

/// What another MDT has prepared for an operation of this one.
#[derive(Clone, Debug)]
pub(crate) struct PreparedOperation {
    /// The operation.
    pub operation: OperationId,
    /// The other MDT.
    pub peer: MdtIndex,
    /// Its part.
    pub part: Part,
    /// Its answer.
    pub answer: PreparedPart,
}

impl PreparedOperation {
    /// Whether this is what was prepared.
    fn is_for(&self, peer: MdtIndex, part: &Part) -> bool {
        self.peer == peer && (self.part == *part || is_alike(&self.part, part))
    }

    /// Whether a later start of the other MDT does not know of it.
    fn is_forgotten_by(&self, start: u64) -> bool {
        let since = match &self.answer {
            PreparedPart::Prepared(prepared) => prepared.start,
            PreparedPart::Given(given) => given.start,
        };
        matches!(self.part, Part::MakeDirectory | Part::MakeShard | Part::Tree) && since < start
    }
}

/// An operation of this MDT, from when another one is asked to prepare a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Running {
    /// The other MDT has answered, or will not.
    is_answered: bool,
    /// It will not be decided. Only one that is not answered is kept: the other MDT may still
    /// prepare its part, and is told when it has.
    is_given_up: bool,
}

/// What is to be done for an operation that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// Nothing: it was decided, or ends when the other MDT has answered.
    Nothing,
    /// The other MDT is to be told.
    Abort,
}

/// What an operation changes here once its batch exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerChange {
    /// This inode is locked for an operation, until a restart at most.
    Hold(OperationId, InodeNumber),
    /// These are locked for it, also after restarts.
    Promise(OperationId, Promise, Vec<InodeNumber>),
    /// It has the tree, until a restart at most.
    Tree(OperationId),
    /// Nothing is prepared for this operation any more.
    Release(OperationId),
    /// An own operation was decided.
    Decided(u64),
    /// An MDT has this start.
    Started(MdtIndex, u64),
    /// An MDT has answered, and its decisions are carried out.
    Heard(MdtIndex),
    /// Decisions were carried out.
    Applied,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Number of this start; 0: this MDT has not begun to speak with others.
    start: u64,
    /// A former start knew of other MDTs, and which there are is not known yet.
    is_early: bool,
    /// The other MDTs in use, in order; `None`: they are not known yet.
    in_use: Option<Vec<MdtIndex>>,
    /// What may be on any MDT does not wait for them.
    is_late: bool,
    /// MDTs that may have decided what this one has not heard of.
    unheard: BTreeSet<MdtIndex>,
    /// The newest start of each MDT that is known.
    starts: BTreeMap<MdtIndex, u64>,
    prepared: BTreeMap<OperationId, Preparation>,
    /// The inodes of `prepared`.
    locked: BTreeMap<InodeNumber, OperationId>,
    /// The one of `prepared` that has the tree. Of MDT 0 only.
    tree: Option<OperationId>,
    /// The last number of an own operation.
    last: u64,
    /// Own operations that may be decided, or for which something may be prepared yet.
    running: BTreeMap<u64, Running>,
    /// Signalled with each change that a request may wait for.
    progress: Arc<Notify>,
}

impl Peers {
    /// A former start knew of others: until it is known which there are, none of them was heard.
    pub fn began_before(&mut self) {
        self.is_early = true;
    }

    /// Whether a former start knew of other MDTs, and they are not known yet.
    pub fn is_early(&self) -> bool {
        self.is_early
    }

    /// A promise of a former start.
    pub fn promised(&mut self, operation: OperationId, (promise, inodes): (Promise, Vec<InodeNumber>)) {
        // Only damage makes two of one inode, or names one twice.
        let distinct: BTreeSet<&InodeNumber> = inodes.iter().collect();
        if distinct.len() == inodes.len() && !inodes.iter().any(|inode| self.locked.contains_key(inode)) {
            self.prepare(operation, Some(promise), inodes);
        }
    }

    /// These other MDTs are in use; `start`: the number of this start, if there are any. After a
    /// former start that knew of some, they have to be heard.
    pub fn begin(&mut self, start: u64, others: impl IntoIterator<Item = MdtIndex>) {
        assert_eq!(self.start, 0, "a start begins once to speak with others");
        if std::mem::take(&mut self.is_early) {
            self.unheard = others.into_iter().collect();
        }
        self.start = start;
        self.progress.notify_waiters();
    }

    /// These other MDTs are in use from now on.
    pub fn use_others(&mut self, others: impl IntoIterator<Item = MdtIndex>) {
        let mut others: Vec<MdtIndex> = others.into_iter().collect();
        others.sort();
        // A map that is wrong must not stop this MDT.
        others.dedup();
        self.in_use = Some(others);
        self.progress.notify_waiters();
    }

    /// The MDTs in use, in order, this one among them; `None`: they are not known yet.
    pub fn in_use(&self, me: MdtIndex) -> Option<Vec<MdtIndex>> {
        let mut all = self.in_use.clone()?;
        let place = all.partition_point(|mdt| *mdt < me);
        all.insert(place, me);
        Some(all)
    }

    /// The map does not come: what may be on any MDT is on this one, until it does.
    pub fn map_is_late(&mut self) {
        self.is_late = true;
        self.progress.notify_waiters();
    }

    /// Whether that has happened.
    pub fn is_map_late(&self) -> bool {
        self.is_late && self.in_use.is_none()
    }

    /// An MDT is out of use: it is not waited for.
    pub fn leave_out(&mut self, mdt: MdtIndex) {
        if self.unheard.remove(&mdt) {
            self.progress.notify_waiters();
        }
    }

    /// Number of this start; 0 before it is known.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The newest start of an MDT that is known; 0: none.
    pub fn start_of(&self, mdt: MdtIndex) -> u64 {
        self.starts.get(&mdt).copied().unwrap_or(0)
    }

    /// The MDT that has an operation on this inode in doubt.
    pub fn locked_by(&self, inode: InodeNumber) -> Option<MdtIndex> {
        self.locked.get(&inode).map(|operation| operation.coordinator)
    }

    /// Whether this inode may be given away: it is not open.
    pub fn is_given(&self, inode: InodeNumber) -> bool {
        let preparation = self.locked.get(&inode).and_then(|operation| self.prepared.get(operation));
        preparation.is_some_and(|found| found.promise == Some(Promise::Give) && found.inodes.first() == Some(&inode))
    }

    /// The MDT that has in doubt what is above this directory.
    pub fn moved_by(&self, inode: InodeNumber) -> Option<MdtIndex> {
        let operation = self.locked.get(&inode)?;
        self.prepared.get(operation).is_some_and(|found| found.moves(inode)).then_some(operation.coordinator)
    }

    /// Whether there are other MDTs, as far as is known.
    pub fn has_others(&self) -> bool {
        self.start != 0 || self.is_early
    }

    /// The MDT for which an operation has to wait that wants the tree. After a restart of this MDT
    /// all others have answered first: those that had the tree have decided, or begin again.
    pub fn keeps_tree(&self, me: MdtIndex) -> Option<MdtIndex> {
        self.may_come_from(me).or(self.tree.map(|operation| operation.coordinator))
    }

    /// Gives the tree to a new operation of this MDT. Else the MDT for which it has to wait; the
    /// own one, if too many operations are in progress.
    pub fn take_tree(&mut self, me: MdtIndex) -> Result<OperationId, MdtIndex> {
        if let Some(other) = self.keeps_tree(me) {
            return Err(other);
        }
        let operation = self.run(me).ok_or(me)?;
        assert_eq!(self.answered(operation), GivenUp::Nothing, "it has just begun");
        self.apply(PeerChange::Tree(operation));
        Ok(operation)
    }

    /// An MDT that may have decided that an inode exists which does not exist here; `me`: which
    /// there are is not known.
    pub fn may_come_from(&self, me: MdtIndex) -> Option<MdtIndex> {
        if self.is_early { Some(me) } else { self.unheard.first().copied() }
    }

    /// The inodes that are prepared for an operation.
    pub fn prepared(&self, operation: OperationId) -> Option<Vec<InodeNumber>> {
        self.prepared.get(&operation).map(|preparation| preparation.inodes.clone())
    }

    /// Operations of an MDT for which something is prepared that lasts.
    pub fn promised_to(&self, coordinator: MdtIndex) -> impl Iterator<Item = OperationId> {
        self.of(coordinator).filter(|(_, preparation)| preparation.promise.is_some()).map(|(operation, _)| operation)
    }

    /// Operations of starts of an MDT before this one.
    pub fn of_starts_before(&self, coordinator: MdtIndex, start: u64) -> Vec<OperationId> {
        self.of(coordinator).map(|(operation, _)| operation).filter(|operation| operation.start < start).collect()
    }

    fn of(&self, coordinator: MdtIndex) -> impl Iterator<Item = (OperationId, &Preparation)> {
        let first = OperationId { coordinator, start: 0, number: 0 };
        let last = OperationId { coordinator, start: u64::MAX, number: u64::MAX };
        self.prepared.range(first..=last).map(|(operation, preparation)| (*operation, preparation))
    }

    /// Begins an operation of this MDT, of which another one is asked to prepare a part; `None`:
    /// too many are in progress.
    pub fn run(&mut self, me: MdtIndex) -> Option<OperationId> {
        assert_ne!(self.start, 0, "operations belong to a start");
        if self.running.len() >= PREPARED_PER_MDT_MAX {
            return None;
        }
        self.last += 1;
        self.running.insert(self.last, Running::default());
        Some(OperationId { coordinator: me, start: self.start, number: self.last })
    }

    /// Whether an operation of this MDT may still be decided.
    pub fn is_running(&self, operation: OperationId) -> bool {
        let running = self.running.get(&operation.number).filter(|_| operation.start == self.start);
        running.is_some_and(|running| !running.is_given_up)
    }

    /// The other MDT has answered, or never will: nothing is prepared for this operation from now
    /// on. Returns what is to be done if it was given up meanwhile.
    pub fn answered(&mut self, operation: OperationId) -> GivenUp {
        let running = self.running.get_mut(&operation.number).expect("an operation is known until it is answered");
        assert!(!running.is_answered, "operation {} is answered once", operation.number);
        running.is_answered = true;
        if running.is_given_up { self.end(operation.number) } else { GivenUp::Nothing }
    }

    /// An operation of this MDT will not be decided, unless it was.
    pub fn give_up(&mut self, operation: OperationId) -> GivenUp {
        match self.running.get_mut(&operation.number) {
            Some(running) if operation.start == self.start => {
                running.is_given_up = true;
                if running.is_answered { self.end(operation.number) } else { GivenUp::Nothing }
            }
            _ => GivenUp::Nothing,
        }
    }

    fn end(&mut self, number: u64) -> GivenUp {
        self.running.remove(&number);
        GivenUp::Abort
    }

    /// Whether this operation can be decided now with this part.
    pub fn can_decide(&self, prepared: &PreparedOperation, peer: MdtIndex, part: &Part) -> bool {
        prepared.is_for(peer, part)
            && self.is_running(prepared.operation)
            && !prepared.is_forgotten_by(self.start_of(peer))
    }

    /// What is not over: prepared, in progress, not heard.
    pub fn pending(&self) -> usize {
        self.prepared.len() + self.running.len() + self.unheard.len() + usize::from(self.is_early)
    }

    /// Completes with the next change of what requests wait for.
    pub fn progress(&self) -> OwnedNotified {
        self.progress.clone().notified_owned()
    }

    fn prepare(&mut self, operation: OperationId, promise: Option<Promise>, inodes: Vec<InodeNumber>) {
        for inode in &inodes {
            let other = self.locked.insert(*inode, operation);
            assert!(other.is_none(), "inode {inode} is locked for {other:?}");
        }
        let before = self.prepared.insert(operation, Preparation { inodes, promise });
        assert!(before.is_none(), "a part of {operation:?} is prepared once");
    }

    fn release(&mut self, operation: OperationId) {
        let Some(Preparation { inodes, .. }) = self.prepared.remove(&operation) else { return };
        for inode in inodes {
            let locked = self.locked.remove(&inode);
            assert_eq!(locked, Some(operation), "inode {inode} is locked as long as it is prepared");
        }
        self.tree.take_if(|holder| *holder == operation);
    }

    /// A batch was applied.
    pub fn apply(&mut self, change: PeerChange) {
        match change {
            PeerChange::Hold(operation, inode) => return self.prepare(operation, None, vec![inode]),
            PeerChange::Promise(operation, promise, inodes) => return self.prepare(operation, Some(promise), inodes),
            PeerChange::Tree(operation) => {
                assert!(self.tree.is_none(), "one operation has the tree");
                self.tree = Some(operation);
                return self.prepare(operation, None, Vec::new());
            }
            PeerChange::Release(operation) => self.release(operation),
            PeerChange::Decided(number) => {
                let decided = self.running.remove(&number).expect("an operation is decided once");
                assert!(decided.is_answered && !decided.is_given_up, "operation {number} can be decided");
                return;
            }
            PeerChange::Started(mdt, start) => {
                let known = self.starts.entry(mdt).or_default();
                *known = start.max(*known);
            }
            PeerChange::Heard(mdt) => drop(self.unheard.remove(&mdt)),
            PeerChange::Applied => {}
        }
        self.progress.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt_peer::DropLink;

    use super::*;

    const OTHER: MdtIndex = MdtIndex(1);
    const INODE: InodeNumber = InodeNumber(7);

    fn operation(start: u64, number: u64) -> OperationId {
        OperationId { coordinator: OTHER, start, number }
    }

    #[test]
    fn inodes_are_locked_until_the_operation_ends() {
        let mut peers = Peers::default();
        peers.apply(PeerChange::Hold(operation(1, 1), INODE));
        peers.apply(PeerChange::Promise(operation(2, 1), Promise::DropLink, vec![InodeNumber(8)]));
        let locked = |peers: &Peers, number: u64| peers.locked_by(InodeNumber(number));
        assert_eq!([7, 8, 9].map(|number| locked(&peers, number)), [Some(OTHER), Some(OTHER), None]);
        assert_eq!(peers.promised_to(OTHER).collect::<Vec<_>>(), [operation(2, 1)]);
        assert_eq!(peers.promised_to(MdtIndex(2)).count(), 0);
        assert_eq!(peers.of_starts_before(OTHER, 2), [operation(1, 1)]);
        peers.apply(PeerChange::Release(operation(1, 1)));
        peers.apply(PeerChange::Release(operation(1, 1)));
        assert!(locked(&peers, 7).is_none() && peers.prepared(operation(1, 1)).is_none());
    }

    #[test]
    fn after_a_restart_all_others_are_to_be_heard() {
        let mut peers = Peers::default();
        peers.begin(1, [OTHER]);
        let me = MdtIndex(0);
        assert_eq!(peers.may_come_from(me), None, "nothing was decided before the first start");
        let mut peers = Peers::default();
        peers.began_before();
        assert_eq!(peers.may_come_from(me), Some(me), "it does not know yet which others there are");
        peers.begin(2, [OTHER, MdtIndex(2)]);
        peers.apply(PeerChange::Heard(OTHER));
        assert_eq!(peers.may_come_from(me), Some(MdtIndex(2)));
        peers.leave_out(MdtIndex(2));
        assert_eq!(peers.may_come_from(me), None);
    }

    /// A directory may have become sticky, or got another owner, after a part was prepared.
    #[test]
    fn what_is_prepared_is_used_only_as_long_as_the_directory_permits_the_same() {
        let mut peers = Peers::default();
        peers.begin(1, [OTHER]);
        let operation = peers.run(MdtIndex(0)).unwrap();
        assert_eq!(peers.answered(operation), GivenUp::Nothing);
        let kind = types::FileKind::Directory;
        let open = Attributes { mode: 0o777, ..Attributes::zeroed(InodeNumber(9), kind) };
        let drop_link = |parent: Attributes| {
            let who = types::Credentials::root();
            let name = b"name".to_vec();
            Part::DropLink(DropLink { inode: INODE, parent, name, directory: false, who })
        };
        let prepared = Prepared { inode: INODE, start: 1, kind, undurable: None, parent: None, map: None, entry: None };
        let answer = PreparedPart::Prepared(Box::new(prepared));
        let found = PreparedOperation { operation, peer: OTHER, part: drop_link(open), answer };
        let is_used = |parent: Attributes| peers.can_decide(&found, OTHER, &drop_link(parent));
        assert!(is_used(Attributes { size: 5, links: 7, mode: 0o700, ..open }));
        assert!(!is_used(Attributes { mode: 0o1777, ..open }));
        assert!(!is_used(Attributes { uid: 5, ..open }));
    }

    #[test]
    fn a_number_is_used_only_as_long_as_its_mdt_has_not_started_again() {
        let mut peers = Peers::default();
        peers.begin(5, [OTHER]);
        let of = |peers: &mut Peers, part: Part| {
            let kind = types::FileKind::Directory;
            let prepared =
                Prepared { inode: INODE, start: 3, kind, undurable: None, parent: None, map: None, entry: None };
            let operation = peers.run(MdtIndex(0)).unwrap();
            assert_eq!(peers.answered(operation), GivenUp::Nothing);
            PreparedOperation { operation, peer: OTHER, part, answer: PreparedPart::Prepared(Box::new(prepared)) }
        };
        let made = of(&mut peers, Part::MakeDirectory);
        assert!(peers.can_decide(&made, OTHER, &Part::MakeDirectory));
        assert!(!peers.can_decide(&made, MdtIndex(2), &Part::MakeDirectory));
        peers.apply(PeerChange::Started(OTHER, 4));
        peers.apply(PeerChange::Started(OTHER, 3));
        assert!(!peers.can_decide(&made, OTHER, &Part::MakeDirectory));
        assert_eq!(peers.give_up(made.operation), GivenUp::Abort);
        assert_eq!(peers.give_up(made.operation), GivenUp::Nothing);
        let again = of(&mut peers, Part::MakeDirectory);
        assert_ne!(again.operation, made.operation);
        peers.apply(PeerChange::Decided(again.operation.number));
        assert!(!peers.is_running(again.operation));
    }

    #[test]
    fn one_operation_has_the_tree_once_all_others_were_heard() {
        let me = MdtIndex(0);
        let mut peers = Peers::default();
        assert!(!peers.has_others());
        peers.began_before();
        assert!(peers.has_others());
        assert_eq!(peers.take_tree(me), Err(me), "it does not know yet which others there are");
        peers.begin(2, [OTHER]);
        assert_eq!(peers.take_tree(me), Err(OTHER));
        peers.apply(PeerChange::Heard(OTHER));
        let own = peers.take_tree(me).unwrap();
        assert_eq!((peers.keeps_tree(me), peers.take_tree(me)), (Some(me), Err(me)));
        assert_eq!(peers.give_up(own), GivenUp::Abort);
        peers.apply(PeerChange::Release(own));
        peers.apply(PeerChange::Tree(operation(1, 1)));
        assert_eq!(peers.keeps_tree(me), Some(OTHER));
        peers.apply(PeerChange::Release(operation(1, 1)));
        assert_eq!((peers.keeps_tree(me), peers.pending()), (None, 0));
    }

    #[test]
    fn what_gets_another_name_is_known() {
        let mut peers = Peers::default();
        let inodes = [7, 8, 9].map(InodeNumber);
        peers.promised(operation(1, 1), (Promise::MoveName, inodes.to_vec()));
        peers.promised(operation(1, 2), (Promise::DropLink, vec![InodeNumber(10)]));
        peers.promised(operation(1, 3), (Promise::MoveLink, vec![InodeNumber(8)]));
        peers.promised(operation(1, 4), (Promise::Give, vec![InodeNumber(12), InodeNumber(13)]));
        assert_eq!([12, 13, 8].map(|number| peers.is_given(InodeNumber(number))), [true, false, false]);
        let moved = |number| peers.moved_by(InodeNumber(number)).is_some();
        assert_eq!([7, 8, 9, 10, 11, 13].map(moved), [false, true, true, false, false, true]);
        assert_eq!(peers.prepared(operation(1, 1)), Some(inodes.to_vec()));
        assert_eq!(peers.prepared(operation(1, 3)), None, "damage");
    }

    /// An Abort could overtake the Prepare otherwise, and what is prepared then would stay.
    #[test]
    fn what_is_given_up_ends_when_the_other_mdt_has_answered() {
        let mut peers = Peers::default();
        peers.begin(1, [OTHER]);
        let operation = peers.run(MdtIndex(0)).unwrap();
        assert_eq!(peers.give_up(operation), GivenUp::Nothing);
        assert_eq!((peers.is_running(operation), peers.pending()), (false, 1));
        assert_eq!(peers.give_up(operation), GivenUp::Nothing);
        assert_eq!(peers.answered(operation), GivenUp::Abort);
        assert_eq!(peers.pending(), 0);
        while peers.run(MdtIndex(0)).is_some() {}
        assert_eq!(peers.pending(), PREPARED_PER_MDT_MAX);
    }
}
