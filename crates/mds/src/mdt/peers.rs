//! This MDT among others: begins to speak with them when the map has some, and coordinates
//! operations that have parts at them.
//!
//! A request that depends on an MDT which is not there, or has something in doubt, does not wait
//! for it long: its client has a slot as long as it does. It is answered `AwaitsMdt`, and its
//! client asks again, if the caller still wants to know.

use std::{sync::Arc, time::Duration};

use rpc::{
    Endpoint, ImportState,
    message::{
        mdt_peer::{OperationId, Part, Prepared},
        session::feature,
    },
};
use rt::{Instant, clock};
use tokio::sync::oneshot;
use types::{FileKind, FsError, FsResult, InodeNumber, MdtIndex};

use super::{Mdt, mdt_proxy::MdtProxy, waiter::Waiter};
use crate::{
    peers::{COUNT_BITS, GivenUp, PeerChange, PreparedOperation, PreparedPart},
    tables::{COUNTERS, DECISIONS, counter},
};

/// Pause after something that the store refused.
const RETRY: Duration = Duration::from_secs(1);

/// How long a request waits for another MDT before its client is told to ask again: some round
/// trips and flushes, after which most of what is in doubt is decided. A client with requests in
/// all its slots sends hundreds per second besides those that wait.
pub(super) const PEER_WAIT: Duration = Duration::from_millis(100);

/// How long after a start new directories that may be on any MDT wait for the first map. The
/// management server sends it within moments, unless it is down.
const FIRST_MAP_WAIT: Duration = Duration::from_secs(2);

/// Another MDT: where it is, and whether it is in use.
pub(super) type OtherMdt = (MdtIndex, Endpoint, bool);

/// The number after `last` in a power-loss era.
fn next_start(last: u64, era: u64) -> u64 {
    last.saturating_add(1).max((era << COUNT_BITS).saturating_add(1))
}

/// Follows the map of other MDTs.
pub(super) async fn run(mdt: Arc<Mdt>) {
    let (mut maps, mut stopping) = (mdt.other_mdts.subscribe(), mdt.stopping.subscribe());
    let mut has_begun = false;
    loop {
        let others = maps.borrow_and_update().clone().unwrap_or_default();
        while !has_begun {
            match begin(&mdt, &others).await {
                Ok(()) => has_begun = true,
                Err(error) => {
                    tracing::error!(target = %mdt.name(), %error, "cannot record a start, retrying");
                    if !mdt.pause(RETRY).await {
                        return;
                    }
                }
            }
        }
        update(&mdt, &others);
        mdt.mdts_known.send_replace(true);
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            // The sender lives in the MDT.
            _ = maps.changed() => {}
        }
    }
}

/// Ends the wait for the first map where it is not needed.
pub(super) async fn end_first_wait(mdt: Arc<Mdt>) {
    if mdt.pause(FIRST_MAP_WAIT).await {
        mdt.namespace().volatile.peers.map_is_late();
        if !*mdt.mdts_known.borrow() {
            tracing::info!(target = %mdt.name(), "no cluster map yet: new directories are made here");
        }
    }
}

/// This start gets its number. It is not durable at once: after a power loss the era is another.
async fn begin(mdt: &Mdt, others: &[OtherMdt]) -> FsResult<()> {
    let era = mdt.era.count();
    let start = mdt
        .transact(mdt.principal.client(), |txn| {
            let last = txn.get(COUNTERS, counter::START)?.map_or(Ok(0), |value| counter::decode_number(&value))?;
            let start = next_start(last, era);
            txn.release_space();
            txn.put(COUNTERS, counter::START.to_vec(), counter::encode_number(start));
            Ok(start)
        })
        .await?;
    mdt.namespace().volatile.peers.begin(start, in_use(others));
    Ok(())
}

fn in_use(others: &[OtherMdt]) -> impl Iterator<Item = MdtIndex> {
    others.iter().filter(|(_, _, active)| *active).map(|(peer, ..)| *peer)
}

fn update(mdt: &Arc<Mdt>, others: &[OtherMdt]) {
    let mut proxies = mdt.mdt_proxies.lock();
    if *mdt.stopping.borrow() {
        // Those that are there are being stopped.
        return;
    }
    mdt.namespace().volatile.peers.use_others(in_use(others));
    for (peer, endpoint, active) in others {
        if !active {
            mdt.namespace().volatile.peers.leave_out(*peer);
        }
        match proxies.get(peer) {
            Some(proxy) => proxy.connection.update(endpoint.clone(), *active),
            None => drop(proxies.insert(*peer, MdtProxy::start(mdt, *peer, endpoint.clone(), *active))),
        }
    }
}

/// Features of an MDT that can prepare a part, beside those of all that know several MDTs. It is
/// not asked without: nothing has changed by then.
fn required(part: &Part) -> u64 {
    match part {
        Part::GiveInode(_) | Part::LeadNames(_) => feature::MOVING_INODES,
        // The directory itself moves, and its shards, which have no name, or inodes follow it.
        Part::FollowName(part) if part.parent == part.shard => match part.name.is_empty() {
            true => feature::MOVING_INODES | feature::MOVING_STRIPED,
            false => feature::MOVING_INODES | feature::MOVING_NAMES,
        },
        Part::FollowName(_) => feature::MOVING_NAMES,
        Part::GiveNames(_) => feature::RETURNING_NAMES,
        Part::CorrectLink(_) => feature::NAME_REPAIRS,
        _ => 0,
    }
}

impl Mdt {
    /// Tells which MDTs there are, where, and whether they are in use; this one may be among them.
    pub fn update_mdts(self: &Arc<Self>, mdts: &[(MdtIndex, Endpoint, bool)]) {
        let others: Vec<OtherMdt> = mdts.iter().filter(|(mdt, ..)| *mdt != self.options.index).cloned().collect();
        let is_new = self.other_mdts.borrow().is_none();
        if is_new && others.is_empty() && !self.namespace().volatile.peers.is_early() {
            self.namespace().volatile.peers.use_others([]);
            self.mdts_known.send_replace(true);
            return;
        }
        self.other_mdts.send_replace(Some(others));
        if is_new {
            self.spawn("mdt_peers", run(self.clone()));
        }
    }

    /// Operations with other MDTs that are not over: what is prepared, in progress, or to be
    /// delivered, and the MDTs that are to be heard. For tests.
    pub fn pending_of_several(&self) -> usize {
        let namespace = self.namespace();
        let mut decisions = 0;
        let scanned = self.store.scan(DECISIONS, &[], None, &mut |_, _| {
            decisions += 1;
            true
        });
        scanned.map_or(usize::MAX, |_| decisions + namespace.volatile.peers.pending())
    }

    fn mdt_proxy(&self, peer: MdtIndex) -> FsResult<Arc<MdtProxy>> {
        self.mdt_proxies.lock().get(&peer).cloned().ok_or(FsError::NoDeviceOrAddress)
    }

    /// Waits for progress with what another MDT has in doubt, until a time; longer if the client
    /// of the request does not ask again.
    pub(super) async fn progress_of_peer<T>(
        &self,
        (peer, until): (MdtIndex, Instant),
        waiter: Option<Waiter>,
        progress: impl Future<Output = T>,
    ) -> FsResult<T> {
        let progress = self.unless_left(waiter, progress);
        if waiter.is_none_or(|waiter| !waiter.asks_again) {
            return progress.await;
        }
        clock::timeout_at(&*self.seams.clock, until, progress).await.unwrap_or(Err(FsError::AwaitsMdt(peer)))
    }

    /// Waits for clients. If other operations wait meanwhile for what is prepared, not for longer
    /// than they wait for other MDTs: a client that is dead or slow would hold them up for as long
    /// as it may keep its locks. These are asked back all the same, so the next attempt may find
    /// them gone.
    pub(super) async fn not_long_if_held<T>(
        &self,
        waiter: Option<Waiter>,
        until: &mut Option<Instant>,
        progress: impl Future<Output = FsResult<T>>,
    ) -> FsResult<T> {
        if !waiter.is_some_and(|waiter| waiter.holds) {
            return progress.await;
        }
        let until = *until.get_or_insert_with(|| self.seams.clock.now() + PEER_WAIT);
        let progress = clock::timeout_at(&*self.seams.clock, until, progress).await;
        progress.unwrap_or(Err(FsError::AwaitsMdt(self.options.index)))
    }

    /// Begins an operation of which another MDT has to prepare a part. `NoDeviceOrAddress`: there
    /// is no such MDT; `NoDevice`: this one stops, or nobody waits for the answer; `AwaitsMdt`: the
    /// client is to ask again; `NotSupported`: it does not know these features.
    pub(super) async fn prepare_at(
        &self,
        peer: (MdtIndex, u64),
        part: Part,
        waiter: Waiter,
    ) -> FsResult<PreparedOperation> {
        loop {
            match self.prepare_once(peer, part.clone(), waiter).await {
                Err(FsError::AwaitsMdt(_)) if !waiter.asks_again => self.pause_for_peer(waiter).await?,
                outcome => return outcome,
            }
        }
    }

    /// Waits for a moment in which another MDT may come back.
    pub(super) async fn pause_for_peer(&self, waiter: Waiter) -> FsResult<()> {
        self.unless_left(Some(waiter), clock::sleep(&*self.seams.clock, PEER_WAIT)).await
    }

    /// Waits until the map is known.
    async fn mdts_known(&self, waiter: Waiter, until: Instant) -> FsResult<()> {
        let mut known = self.mdts_known.subscribe();
        // The sender lives in `self`: waiting cannot fail.
        let map = async { drop(known.wait_for(|known| *known).await) };
        self.progress_of_peer((self.options.index, until), Some(waiter), map).await
    }

    /// The proxy for an MDT to which requests can go out now.
    pub(super) async fn ready_proxy(&self, peer: MdtIndex, waiter: Waiter) -> FsResult<Arc<MdtProxy>> {
        let until = self.seams.clock.now() + PEER_WAIT;
        self.mdts_known(waiter, until).await?;
        let proxy = self.mdt_proxy(peer)?;
        match self.progress_of_peer((peer, until), Some(waiter), proxy.ready()).await {
            Err(FsError::AwaitsMdt(_)) => return Err(proxy.absence(self)),
            ready => ready??,
        }
        Ok(proxy)
    }

    /// Takes the tree, which is here, for an operation of this MDT.
    pub(super) async fn take_tree(&self, waiter: Waiter) -> FsResult<PreparedOperation> {
        let (me, until) = (self.options.index, self.seams.clock.now() + PEER_WAIT);
        self.mdts_known(waiter, until).await?;
        loop {
            let (taken, start, progress) = {
                let peers = &mut self.namespace().volatile.peers;
                (peers.take_tree(me), peers.start(), peers.progress())
            };
            match taken {
                Ok(operation) => {
                    let (inode, kind) = (InodeNumber::ROOT, FileKind::Directory);
                    let prepared =
                        Prepared { inode, start, kind, undurable: None, parent: None, map: None, entry: None };
                    let answer = PreparedPart::Prepared(Box::new(prepared));
                    return Ok(PreparedOperation { operation, peer: me, part: Part::Tree, answer });
                }
                Err(other) => self.progress_of_peer((other, until), Some(waiter), progress).await?,
            }
        }
    }

    /// Whether another MDT has these features. `NotSupported`: it is there, and has not; a
    /// connection that was lost this moment says nothing.
    pub(super) fn knows(&self, proxy: &MdtProxy, features: u64) -> FsResult<()> {
        let import = &proxy.connection.import;
        if import.supports(features) {
            return Ok(());
        }
        Err(if import.state() == ImportState::Full { FsError::NotSupported } else { proxy.absence(self) })
    }

    async fn prepare_once(
        &self,
        (peer, features): (MdtIndex, u64),
        part: Part,
        waiter: Waiter,
    ) -> FsResult<PreparedOperation> {
        let proxy = self.ready_proxy(peer, waiter).await?;
        self.knows(&proxy, required(&part) | features)?;
        let asked = match &part {
            Part::GiveInode(inode) if proxy.connection.import.supports(feature::MOVING_STRIPED) => {
                Part::GiveStriped(*inode)
            }
            part => part.clone(),
        };
        let begun = self.namespace().volatile.peers.run(self.options.index);
        let operation = begun.ok_or(FsError::AwaitsMdt(peer))?;
        let answer = self.begin_to_prepare(&proxy, operation, asked)?;
        // An MDT that is there answers in time: it does not wait long for others either.
        let answered = async {
            tokio::select! {
                biased;
                answered = answer => answered.unwrap_or(Err(FsError::NoDevice)),
                () = proxy.connection.import.disconnected(), if waiter.asks_again => Err(FsError::AwaitsMdt(peer)),
            }
        };
        match self.unless_left(Some(waiter), answered).await {
            Ok(Ok(answer)) => Ok(PreparedOperation { operation, peer, part, answer }),
            Ok(Err(error)) | Err(error) => {
                self.give_up(operation, peer);
                Err(error)
            }
        }
    }

    /// Asks the other MDT in a task that ends when it has answered, also if nobody waits any more:
    /// only then can an Abort follow.
    fn begin_to_prepare(
        &self,
        proxy: &Arc<MdtProxy>,
        operation: OperationId,
        part: Part,
    ) -> FsResult<oneshot::Receiver<FsResult<PreparedPart>>> {
        let mdt = self.me.upgrade().ok_or(FsError::NoDevice)?;
        let (tell, answer) = oneshot::channel();
        let (proxy, this) = (proxy.clone(), mdt.clone());
        let ask = async move {
            let outcome = proxy.prepare(&this, operation, part).await;
            let given_up = this.namespace().volatile.peers.answered(operation);
            match given_up {
                // Its request may have ended this moment, and gives it up then.
                GivenUp::Nothing => drop(tell.send(outcome)),
                GivenUp::Abort => proxy.abort(&this, operation).await,
            }
        };
        mdt.spawn("mdt_prepare", ask);
        Ok(answer)
    }

    /// An operation that was not decided will not be: what is prepared for it ends.
    pub(super) fn give_up(&self, operation: OperationId, peer: MdtIndex) {
        let given_up = self.namespace().volatile.peers.give_up(operation);
        if given_up == GivenUp::Nothing {
            return;
        }
        if peer == self.options.index {
            return self.namespace().volatile.peers.apply(PeerChange::Release(operation));
        }
        if let (Ok(proxy), Some(mdt)) = (self.mdt_proxy(peer), self.me.upgrade()) {
            let task = {
                let mdt = mdt.clone();
                async move { proxy.abort(&mdt, operation).await }
            };
            mdt.spawn("mdt_abort", task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::has_lost_power;

    #[test]
    fn each_start_has_a_greater_number_also_if_the_last_was_lost() {
        let first = next_start(0, 0);
        assert_eq!((first, next_start(first, 0)), (1, 2));
        let after_loss = next_start(2, 1);
        assert_eq!(after_loss, (1 << 32) + 1, "also if starts of the former era are not known");
        assert_eq!(next_start(0, 1), after_loss);
        assert_eq!(next_start(after_loss, 1), after_loss + 1);
        assert!(has_lost_power(first, after_loss) && !has_lost_power(after_loss, next_start(after_loss, 1)));
    }
}
