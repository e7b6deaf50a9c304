//! How a request comes to what other MDTs have to do for it: one after the other, each time after
//! an attempt that went as far as it could. What is prepared and not decided is given up in the
//! end, and before the request waits for another operation at this MDT.

use std::collections::BTreeSet;

use rpc::message::mdt_peer::{Above, Ancestry, OperationId, Part};
use types::{FsError, FsResult, MdtIndex};

use super::{Mdt, waiter::Waiter};
use crate::{
    peers::essence,
    transaction::peers::{Need, OfOthers},
};

/// How often the parts of a request are prepared before its client is told to ask again. Each time
/// but the first, a name led elsewhere than before, or another MDT has started again.
const PREPARATIONS_MAX: usize = 64;
/// Changes of the MDT on ways to the root, beyond which a directory is not renamed: each is a round
/// trip while the tree is held, and any user can make them.
const WAYS_MAX: usize = 256;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Coordination {
    /// What others have done so far.
    pub found: OfOthers,
    preparations: usize,
    /// The last part of which the inode was not as its name says.
    stale: Option<Box<Part>>,
}

impl Coordination {
    /// All was given up while clients had locks, which says nothing of the operation.
    pub fn begins_anew(&mut self) {
        self.preparations = 0;
    }

    /// Whether it may be tried again; counts.
    pub fn may_go_on(&mut self) -> bool {
        self.preparations += 1;
        // A striped directory has a part for each shard.
        self.preparations <= PREPARATIONS_MAX + 2 * self.found.prepared.len()
    }

    /// Whether an inode that is not as its name says may be so because the name has changed
    /// meanwhile: then the operation is tried again. The name has changed before the inode, or
    /// waits for the decision. So the second time, the name is damaged.
    fn may_have_changed(&mut self, part: &Part) -> bool {
        let part = Some(Box::new(essence(part)));
        let is_known = self.stale == part;
        self.stale = part;
        !is_known
    }
}

impl Mdt {
    /// Gives up what others have prepared, except these operations.
    pub(super) fn keep_of_others(&self, others: &mut Coordination, used: &[OperationId]) {
        let (found, used) = (&mut others.found, used.iter().collect::<BTreeSet<_>>());
        let (kept, unused) = std::mem::take(&mut found.prepared)
            .into_iter()
            .partition::<Vec<_>, _>(|prepared| used.contains(&prepared.operation));
        found.prepared = kept;
        if !found.prepared.iter().any(|prepared| prepared.part == Part::Tree) {
            found.ways.clear();
        }
        unused.into_iter().for_each(|unused| self.give_up(unused.operation, unused.peer));
    }

    /// Has others do what a request needs next. If that fails, all that was prepared is given up.
    pub(super) async fn meet(&self, need: Need, others: &mut Coordination, waiter: Waiter) -> FsResult<()> {
        let outcome = self.try_to_meet(need, others, waiter).await;
        if outcome.is_err() {
            self.keep_of_others(others, &[]);
        }
        outcome
    }

    /// What a client is told whose request has been tried often enough.
    pub(super) fn tired(&self, waiter: Waiter) -> FsError {
        if waiter.asks_again { FsError::AwaitsMdt(self.options.index) } else { FsError::Busy }
    }

    async fn try_to_meet(&self, need: Need, others: &mut Coordination, waiter: Waiter) -> FsResult<()> {
        match need {
            // Repeated by its client it would come no further.
            Need::Way(_) if others.found.ways.len() >= WAYS_MAX => return Err(FsError::CrossDevice),
            Need::Part(..) | Need::TreeFirst | Need::WaysAnew if !others.may_go_on() => return Err(self.tired(waiter)),
            _ => {}
        }
        match need {
            Need::Part(peer, part, features) => {
                let prepared = match *part {
                    Part::Tree if peer == self.options.index => self.take_tree(waiter).await?,
                    part => match self.prepare_at((peer, features), part.clone(), waiter).await {
                        Err(FsError::Stale) if others.may_have_changed(&part) => return Ok(()),
                        prepared => prepared?,
                    },
                };
                others.found.prepared.push(prepared);
            }
            Need::Way(way) => match self.ask_way(way, waiter).await {
                // The shard has ended.
                Err(FsError::Stale) if others.may_go_on() => others.found.ways.clear(),
                found => drop(others.found.ways.insert(way, found?)),
            },
            Need::WaysAnew => others.found.ways.clear(),
            Need::TreeFirst => {
                self.keep_of_others(others, &[]);
                others.found.tree_first = true;
            }
        }
        Ok(())
    }

    async fn ask_way(&self, way: Above, waiter: Waiter) -> FsResult<Ancestry> {
        loop {
            match self.ask_way_once(way, waiter).await {
                Err(FsError::AwaitsMdt(_)) if !waiter.asks_again => self.pause_for_peer(waiter).await?,
                outcome => return outcome,
            }
        }
    }

    async fn ask_way_once(&self, way: Above, waiter: Waiter) -> FsResult<Ancestry> {
        let peer: MdtIndex = way.from.mdt();
        let proxy = self.ready_proxy(peer, waiter).await?;
        let asked = async {
            tokio::select! {
                biased;
                answer = proxy.above(way) => answer,
                () = proxy.connection.import.disconnected(), if waiter.asks_again => Err(FsError::AwaitsMdt(peer)),
            }
        };
        self.unless_left(Some(waiter), asked).await?
    }
}
