//! Operations on names and inodes of several MDTs, within a transaction.

use std::{collections::BTreeMap, mem, sync::Arc};

use lock::InodeBits;
use rpc::message::{
    mdt_peer::{Above, Ancestry, OperationId, Part, Prepared},
    moved_inode::GivenInode,
};
use types::{Damage, FsError, FsResult, InodeNumber, MdtIndex};

use super::Transaction;
use crate::{
    peers::{PeerChange, PreparedOperation, PreparedPart},
    tables::{
        COUNTERS, DECISIONS, counter,
        decision::{self, DecidedPart, Decision},
        prefix_end,
    },
};

/// The MDT that has the tree.
const TREE_MDT: MdtIndex = MdtIndex(0);

/// Directories above each other before a cycle is suspected: more than any path the kernel can
/// name one by one.
const DEPTH_MAX: usize = 1 << 20;

/// What other MDTs have done so far for the operation of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfOthers {
    /// Parts that they have prepared.
    pub prepared: Vec<PreparedOperation>,
    /// What they said of ways to the root, while the tree was held.
    pub ways: BTreeMap<Above, Ancestry>,
    /// The operation needs the tree, which it learned when other parts were prepared: it comes
    /// first.
    pub tree_first: bool,
}

/// What an operation needs of other MDTs before it can succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// This part has to be prepared, by an MDT that knows these features.
    Part(MdtIndex, Box<Part>, u64),
    /// What the MDT of `from` knows of the way to the root.
    Way(Above),
    /// The same from the beginning: a shard on the way has ended, and what was in it is in its
    /// directory now.
    WaysAnew,
    /// The tree, before all else.
    TreeFirst,
}

impl Transaction<'_> {
    /// Decisions for another MDT that it has not answered, in order. Not from the beginning of the
    /// table, which takes time to pass what was deleted.
    pub fn visit_decisions(&self, mdt: MdtIndex, visit: &mut dyn FnMut(u64, &[u8]) -> FsResult<bool>) -> FsResult<()> {
        let answered = self.get(COUNTERS, &counter::decided_key(mdt))?;
        let answered = answered.map_or(Ok(0), |value| counter::decode_number(&value))?;
        let (from, to) = (decision::key(mdt, answered.saturating_add(1)), prefix_end(&decision::mdt_key(mdt)));
        self.scan(DECISIONS, &from, to.as_deref(), &mut |key, value| visit(decision::decode_key(key)?.1, value))
    }

    /// What other MDTs have done for this operation.
    pub fn set_of_others(&mut self, others: &OfOthers) {
        if !others.prepared.is_empty() || others.tree_first {
            self.others = others.clone();
        }
    }

    /// What other MDTs have to do before this operation can succeed; they are asked once all that
    /// this MDT knows allows the operation.
    pub fn take_needs(&mut self) -> Option<Need> {
        self.needs.take()
    }

    /// Parts that are of use to the operation, as far as it came.
    pub fn take_used(&mut self) -> Vec<OperationId> {
        mem::take(&mut self.used)
    }

    /// It is tried again, once others have done this. The error is no answer.
    fn need_others<T>(&mut self, need: Need) -> FsResult<T> {
        self.needs = Some(need);
        Err(FsError::Busy)
    }

    /// The operation of a part, and the answer, if another MDT has prepared it. An error that is no
    /// answer otherwise: it is asked, and the operation is tried again.
    pub fn prepared(&mut self, peer: MdtIndex, part: Part) -> FsResult<(OperationId, Prepared)> {
        let found = self.prepared_operation(peer, part)?;
        match &found.answer {
            PreparedPart::Prepared(prepared) => Ok((found.operation, Prepared::clone(prepared))),
            PreparedPart::Given(_) => Err(FsError::Invalid),
        }
    }

    /// The same of an inode that another MDT gives away.
    pub fn given(&mut self, inode: InodeNumber) -> FsResult<(OperationId, Arc<GivenInode>)> {
        let found = self.prepared_operation(inode.mdt(), Part::GiveInode(inode))?;
        match &found.answer {
            PreparedPart::Given(given) => Ok((found.operation, given.clone())),
            PreparedPart::Prepared(_) => Err(FsError::Invalid),
        }
    }

    fn prepared_operation(&mut self, peer: MdtIndex, part: Part) -> FsResult<&PreparedOperation> {
        assert!(peer != self.mdt || part == Part::Tree, "other MDTs prepare their parts");
        let can_decide = |found: &PreparedOperation| self.volatile.peers.can_decide(found, peer, &part);
        // Numbers are asked for in the same order each time, and each one is another.
        let is_number = matches!(part, Part::MakeDirectory | Part::MakeShard);
        let from = if is_number { self.numbers_taken } else { 0 };
        let prepared = &self.others.prepared;
        // Most attempts ask for all parts in the same order.
        let next = Some(self.used.len()).filter(|next| !is_number && prepared.get(*next).is_some_and(can_decide));
        match next.or_else(|| (from..prepared.len()).find(|at| can_decide(&prepared[*at]))) {
            Some(at) => {
                if is_number {
                    self.numbers_taken = at + 1;
                }
                let found = &self.others.prepared[at];
                self.used.push(found.operation);
                Ok(found)
            }
            None => self.need_others(Need::Part(peer, Box::new(part), self.of_peers)),
        }
    }

    /// From here on only MDTs prepare parts that know these features.
    pub fn peers_must_know(&mut self, features: u64) {
        self.of_peers |= features;
    }

    /// Whether the operation has to hold the tree, as came out before.
    pub fn takes_tree_first(&self) -> bool {
        self.others.tree_first
    }

    /// From now on no other operation gives a directory another parent. With one MDT that is so.
    pub fn hold_tree(&mut self) -> FsResult<()> {
        if self.tree.is_none() && self.volatile.peers.has_others() {
            self.tree = Some(self.prepared(TREE_MDT, Part::Tree)?.0);
        }
        Ok(())
    }

    /// The same, if other parts may be prepared: they are given back before.
    pub fn hold_tree_first(&mut self) -> FsResult<()> {
        match self.tree.is_none() && self.volatile.peers.has_others() {
            true => self.need_others(Need::TreeFirst),
            false => Ok(()),
        }
    }

    /// With the batch the tree is given back. By MDT 0 the next one gets it when the batch is
    /// durable; by other MDTs, too, since decisions leave then.
    pub fn give_tree_back(&mut self) {
        match self.tree.take() {
            Some(operation) if self.mdt == TREE_MDT => {
                self.change_peers(PeerChange::Decided(operation.number));
                self.change_peers(PeerChange::Release(operation));
            }
            Some(operation) => {
                let (inode, part) = (InodeNumber::ROOT, DecidedPart::Tree);
                self.decide(TREE_MDT, Decision { operation, inode, part });
            }
            None => {}
        }
    }

    /// The batch decides an operation of this MDT, and another one carries this out.
    pub fn decide(&mut self, peer: MdtIndex, decision: Decision) {
        self.change_peers(PeerChange::Decided(decision.operation.number));
        self.changes.decisions.push((peer, decision));
    }

    /// The same for something of which no part was prepared: whatever the other one does before,
    /// it can be carried out.
    pub fn decide_unprepared(&mut self, peer: MdtIndex, inode: InodeNumber, part: DecidedPart) {
        let operation = OperationId { coordinator: self.mdt, start: self.volatile.peers.start(), number: 0 };
        self.changes.decisions.push((peer, Decision { operation, inode, part }));
    }

    /// Whether a directory is another one or above it; the tree is held.
    pub fn is_above(&mut self, directory: InodeNumber, from: InodeNumber) -> FsResult<bool> {
        let mut from = from;
        // On a way without a cycle no part repeats.
        for _ in 0..=self.others.ways.len() {
            let at = match self.way_up(directory, from) {
                Ok(Ancestry::Above) => return Ok(true),
                Ok(Ancestry::NotAbove) => return Ok(false),
                Ok(Ancestry::GoesOn(at)) => at,
                Err(FsError::Stale) => return self.need_others(Need::WaysAnew),
                Err(error) => return Err(error),
            };
            let way = Above { directory, from: at };
            match self.others.ways.get(&way) {
                Some(Ancestry::Above) => return Ok(true),
                Some(Ancestry::NotAbove) => return Ok(false),
                Some(Ancestry::GoesOn(next)) => from = *next,
                None => return self.need_others(Need::Way(way)),
            }
        }
        Err(Damage::Cycle(from).into())
    }

    /// Whether a directory is another one or above it, as far as this MDT knows. Waits at
    /// directories that are about to get another parent. `Stale`: there is no such shard.
    pub fn way_up(&self, directory: InodeNumber, from: InodeNumber) -> FsResult<Ancestry> {
        let mut at = from;
        for _ in 0..DEPTH_MAX {
            if at == directory {
                return Ok(Ancestry::Above);
            }
            if at == InodeNumber::ROOT {
                return Ok(Ancestry::NotAbove);
            }
            if !self.is_here(at) {
                return Ok(Ancestry::GoesOn(at));
            }
            let peers = &self.volatile.peers;
            if let Some(mdt) = peers.moved_by(at) {
                return self.wait_for_peer(mdt);
            }
            match self.find_inode(at)? {
                Some(found) => match found.first_link {
                    Some(link) => at = link.parent,
                    None if at.is_shard() => return Err(FsError::Stale),
                    None => return Ok(Ancestry::NotAbove),
                },
                None => {
                    // A number that is held is that of a directory to be made: what is above it is
                    // decided with it.
                    return match peers.locked_by(at).or(peers.may_come_from(self.mdt)) {
                        Some(mdt) => self.wait_for_peer(mdt),
                        // What was in it has another way.
                        None if at.is_shard() => Err(FsError::Stale),
                        None => Ok(Ancestry::NotAbove),
                    };
                }
            }
        }
        Err(Damage::Cycle(from).into())
    }

    /// To be done when the batch is applied.
    pub fn change_peers(&mut self, change: PeerChange) {
        self.changes.peers.push(change);
    }

    /// No client may have these parts of an inode cached when the batch is applied.
    pub fn withdraw(&mut self, inode: InodeNumber, bits: InodeBits) {
        self.changes.withdrawn.push((inode, bits));
    }

    /// The operation has come to what this other MDT has in doubt: it is tried again when that is
    /// known. One that cannot wait fails.
    pub fn wait_for_peer<T>(&self, mdt: MdtIndex) -> FsResult<T> {
        if self.loading.is_some() && !self.has_touched() {
            self.awaits_peer.set(Some(mdt));
        }
        Err(FsError::Busy)
    }

    /// The MDT for which it waits: what it fails with is no answer.
    pub fn awaits_peer(&self) -> Option<MdtIndex> {
        self.awaits_peer.get()
    }

    /// A number never used before, for an inode that another MDT may decide to make.
    pub fn reserve_number(&mut self) -> InodeNumber {
        let counters = &mut self.changes.counters;
        let number = InodeNumber::new(self.mdt, counters.next_inode);
        counters.next_inode += 1;
        self.changes.reserved += 1;
        number
    }

    /// An inode is made with a number that was reserved before.
    pub fn adopt_number(&mut self, number: InodeNumber) {
        let counters = &mut self.changes.counters;
        // Only a store that is older than its decisions has not given it yet.
        let next = counters.next_inode.max(number.counter() + 1);
        self.changes.reserved += next - mem::replace(&mut counters.next_inode, next);
        counters.inodes += 1;
        self.changes.adopted += 1;
    }
}
