//! What an MDT forgets when it stops: opens, locks, waiting requests, clients that may still come
//! back, and its knowledge of OSTs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kv::Lsn;
use layout::ComponentId;
use lock::{AdvisoryLocks, ExclusiveLocks, InodeBits, LockFamily, LockOwner, WaitTicket, inode_bit};
use parking_lot::Mutex;
use rpc::message::mdt::SetLock;
use rt::Instant;
use tokio::sync::{Notify, futures::OwnedNotified};
use types::{ClientId, InodeNumber, LockHandle, OstIndex, Slot, Timestamp, Xid, limits};

use crate::{
    cache_locks::{CacheLocks, LOCKS_PER_STEP},
    growing_directories::GrowingDirectories,
    history::History,
    hold_ups::HoldUps,
    hot_directories::HotDirectories,
    invitations::Invitations,
    moves::Moves,
    opens::{OpenFile, OpenKey, OpenTable},
    peers::Peers,
    placement::Targets,
    presumed_opens::Until,
    removed::Removed,
    spread::Spread,
    tables::evicted::EvictedRecord,
    waiters::Waiters,
};

const OPEN: InodeBits = InodeBits(inode_bit::OPEN);

/// The time after a start in which clients of the former start come back.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Known clients that have not finished reclaiming.
    pub expected: BTreeSet<ClientId>,
    /// Those of `expected` that cannot come back: their process has ended.
    pub gone: BTreeSet<ClientId>,
    /// Clients that have.
    pub recovered: BTreeSet<ClientId>,
    /// Clients of `expected` that were evicted and may still have a connection. Every request of
    /// theirs is refused, so that they learn it.
    pub evicted: BTreeSet<ClientId>,
    /// Clients that the former start evicted and whose leases may not have ended: what they may
    /// serve is not changed.
    pub leased: BTreeSet<ClientId>,
    /// Clients that OSTs refuse permanently, or are to be told to refuse.
    pub refused: BTreeSet<ClientId>,
    /// Last mutations of the former start: a repeat of one is answered from REPLIES.
    pub replies: BTreeMap<(ClientId, Slot), Xid>,
    /// How often this MDT lost power, and with it growth of files that no client may have claimed:
    /// because their clients did not come back, or had closed them.
    pub era: u64,
    /// Whether what no client claimed has ended too.
    pub ended: bool,
    /// Signalled when a client is not expected any more.
    progress: Arc<Notify>,
}

impl Recovery {
    /// Whether a client of the former start may still come back with what it had.
    pub fn running(&self) -> bool {
        !self.expected.is_empty()
    }

    /// A client was evicted, by this start or one before.
    pub fn was_evicted(&mut self, client: ClientId, record: EvictedRecord) {
        if record.is_refused {
            self.refused.insert(client);
        }
        if record.is_leased {
            self.leased.insert(client);
        }
    }

    /// Whether other clients of the former start may be alive and have not come back, or may serve
    /// what they were granted there although they were evicted; what tells when there is one less.
    pub fn others_cache(&self, client: ClientId) -> Option<OwnedNotified> {
        let to_come = self.expected.iter().any(|expected| *expected != client && !self.gone.contains(expected));
        let cache = to_come || self.leased.iter().any(|leased| *leased != client);
        cache.then(|| self.progress.clone().notified_owned())
    }

    /// A client serves nothing any more that the former start granted it.
    pub fn lease_ended(&mut self, client: ClientId) {
        if self.leased.remove(&client) {
            self.progress.notify_waiters();
        }
    }

    /// The leases of all clients that the former start evicted have ended; returns which these are.
    pub fn leases_ended(&mut self) -> BTreeSet<ClientId> {
        self.progress.notify_waiters();
        std::mem::take(&mut self.leased)
    }

    /// Whether the client has a session that lasted over the restart: what it says about the former
    /// start is believed.
    pub fn in_good_standing(&self, client: ClientId) -> bool {
        self.expected.contains(&client) || self.recovered.contains(&client)
    }

    /// The client has reclaimed everything: it is not evicted for being late any more.
    pub fn client_recovered(&mut self, client: ClientId) {
        if self.expected.remove(&client) {
            self.progress.notify_waiters();
            let is_new = self.recovered.insert(client);
            assert!(is_new, "a client that is still expected has not recovered");
        }
    }

    /// Whether the client did not come back, so that it is to be evicted; also if that has begun
    /// and the store failed.
    pub fn is_missing(&self, client: ClientId) -> bool {
        self.expected.contains(&client) || self.evicted.contains(&client)
    }

    /// The client is evicted: it may reclaim nothing any more.
    pub fn evict(&mut self, client: ClientId) {
        self.forget(client);
        assert!(!self.in_good_standing(client), "nothing that an evicted client says about its opens is believed");
        self.evicted.insert(client);
    }

    /// Nothing of this client is known any more.
    pub fn forget(&mut self, client: ClientId) {
        if self.expected.remove(&client) {
            self.progress.notify_waiters();
        }
        self.gone.remove(&client);
        self.recovered.remove(&client);
        let of_client: Vec<_> =
            self.replies.range((client, Slot(0))..=(client, Slot(u16::MAX))).map(|(key, _)| *key).collect();
        of_client.iter().for_each(|key| {
            self.replies.remove(key);
        });
    }
}

/// Evicted clients that some OST has not been told to refuse yet: until then their late writes may
/// arrive.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    pending: BTreeMap<ClientId, BTreeSet<OstIndex>>,
}

impl Fences {
    /// `client` is evicted; these OSTs must be told. Without any, nothing is pending.
    pub fn raise(&mut self, client: ClientId, osts: impl IntoIterator<Item = OstIndex>) {
        let pending = self.pending.entry(client).or_default();
        pending.extend(osts);
        if pending.is_empty() {
            self.pending.remove(&client);
        }
        debug_assert!(self.pending.values().all(|osts| !osts.is_empty()), "a fence that is raised waits for an OST");
    }

    /// `ost` refuses `client` from now on, or is out of use; true if that was the client's last
    /// pending OST.
    pub fn delivered(&mut self, client: ClientId, ost: OstIndex) -> bool {
        let Some(pending) = self.pending.get_mut(&client) else { return false };
        pending.remove(&ost);
        let last = pending.is_empty();
        if last {
            self.pending.remove(&client);
        }
        last
    }

    /// All of them, by client.
    pub fn pending(&self) -> &BTreeMap<ClientId, BTreeSet<OstIndex>> {
        &self.pending
    }

    /// Clients that wait for `ost` to be told.
    pub fn waiting_for(&self, ost: OstIndex) -> Vec<ClientId> {
        self.pending.iter().filter(|(_, pending)| pending.contains(&ost)).map(|(client, _)| *client).collect()
    }

    /// OSTs that some fence waits for.
    pub fn pending_osts(&self) -> BTreeSet<OstIndex> {
        self.pending.values().flatten().copied().collect()
    }

    /// Whether the locks of this client must not be granted to others yet.
    pub fn holds(&self, client: ClientId) -> bool {
        self.pending.contains_key(&client)
    }

    /// Whether late writes may still reach one of these OSTs.
    pub fn touch(&self, mut osts: impl Iterator<Item = OstIndex>) -> bool {
        !self.pending.is_empty() && osts.any(|ost| self.pending.values().any(|pending| pending.contains(&ost)))
    }
}

/// A client is about to leave something out of a component.
#[derive(Clone, Copy, Debug)]
struct LayoutChange {
    client: ClientId,
    component: ComponentId,
    /// Its objects refuse older layouts.
    is_fenced: bool,
    begun_ns: u64,
}

/// How long a file stays closed to all others while a client looks for the range that it leaves
/// out: far longer than that takes. Then the client begins again.
const LAYOUT_CHANGE_MAX: Duration = Duration::from_secs(60);

/// All of it.
#[derive(Debug)]
pub(crate) struct Volatile {
    /// Open files.
    pub opens: OpenTable,
    /// fcntl and flock locks.
    pub locks: AdvisoryLocks,
    /// Exclusive data locks.
    pub exclusive: ExclusiveLocks,
    /// Files whose layout the holder of the exclusive data lock is about to change: their objects
    /// refuse the layouts before the present one, which nobody else is shown.
    layout_changes: BTreeMap<InodeNumber, LayoutChange>,
    /// For how long.
    pub layouts_withheld: HoldUps,
    /// Files off which an open holds writers.
    pub writers_held_off: HoldUps,
    /// Clients that wait for either, and for other things.
    pub waiters: Waiters,
    /// Locks under which clients cache. Reads grant them beside each other: for a moment each has
    /// this mutex, and nothing that is granted changes before they have ended.
    pub cache: Mutex<CacheLocks>,
    /// Clients of the former start.
    pub recovery: Recovery,
    /// Evicted clients.
    pub fences: Fences,
    /// The clients that may report sizes.
    pub invitations: Invitations,
    /// Inodes whose last name was removed a moment ago.
    pub removed: Removed,
    /// OSTs.
    pub targets: Targets,
    /// Files whose layout is poor for the way they are read.
    pub moves: Moves,
    /// The sizes of finished files.
    pub history: History,
    /// Files whose objects got bytes that they did not have, by a change that may not be durable
    /// yet. No client is told before it is: if it were lost, what was written there without a sync
    /// would be back when the component grows there again. (New objects need no such care: a lost
    /// one's slot is never given again.)
    pub lengthened: BTreeMap<InodeNumber, Lsn>,
    /// Operations on names and inodes of several MDTs.
    pub peers: Peers,
    /// Where the next directory goes. (A choice is no change of what an operation is about: an
    /// attempt that makes one can be given up.)
    pub spread: Mutex<Spread>,
    /// Directories that may become large.
    pub growing: Mutex<GrowingDirectories>,
    /// Shards whose directories may become small.
    pub shrinking: Mutex<GrowingDirectories>,
    /// Directories in which much is made and removed.
    pub hot: Mutex<HotDirectories>,
}

impl Volatile {
    /// Nothing open, nothing known, of an MDT that starts now; `random` for placement. A client may
    /// have `opens_max` files open.
    pub fn new(now: Timestamp, random: u64, opens_max: usize) -> Self {
        Self {
            opens: OpenTable::new(opens_max),
            locks: AdvisoryLocks::new(limits::LOCKS_PER_CLIENT_MAX),
            exclusive: ExclusiveLocks::default(),
            layout_changes: BTreeMap::new(),
            layouts_withheld: HoldUps::of_layouts(),
            writers_held_off: HoldUps::of_writers(),
            waiters: Waiters::default(),
            cache: Mutex::new(CacheLocks::new(now)),
            recovery: Recovery::default(),
            fences: Fences::default(),
            invitations: Invitations::default(),
            removed: Removed::default(),
            targets: Targets::new(random),
            moves: Moves::default(),
            history: History::default(),
            lengthened: BTreeMap::new(),
            peers: Peers::default(),
            spread: Mutex::new(Spread::new(random)),
            growing: Mutex::default(),
            shrinking: Mutex::default(),
            hot: Mutex::default(),
        }
    }

    /// Whether a client may have opened an inode for reading without a request: it has the lock on
    /// its opens, or had it a moment ago.
    pub fn may_open_unasked(&self, client: ClientId, inode: InodeNumber) -> bool {
        self.cache.lock().holds(client, inode, OPEN) || self.opens.presumed.has(client, inode)
    }

    /// A client removed the last name of an inode. If it has the lock on its opens, it gives the
    /// lock back by itself, and registers its opens before that.
    pub fn lost_name(&mut self, client: ClientId, inode: InodeNumber) {
        if self.cache.lock().holds(client, inode, OPEN) {
            self.opens.presumed.add(client, inode, Until::LockGivenBack);
        }
        self.opens.presumed.lost_name(inode);
    }

    /// Asks for locks on opens that clients should have given back by themselves an interval ago:
    /// they removed the last name of the inode. To be called once per interval.
    pub fn ask_for_kept_locks(&mut self) {
        for (client, inode) in self.opens.presumed.overdue() {
            self.cache.lock().ask_for_own(client, inode, OPEN);
        }
    }

    /// A client gives locks back.
    pub fn cancel_locks(&mut self, client: ClientId, handles: &[LockHandle], now: Instant) {
        let cancelled = self.cache.lock().cancel(client, handles);
        let inodes = cancelled.iter().filter(|lock| lock.bits.meets(OPEN)).map(|lock| lock.inode).collect();
        let Self { opens, cache, .. } = self;
        let unnamed = opens.presumed.end_on(client, inodes, |inode| cache.lock().holds(client, inode, OPEN));
        self.end_unnamed(unnamed, now);
    }

    /// Removes some of the locks that a client does not have any more, up to this one. If it has
    /// not reported its opens yet, what it may have opened under them is presumed open. Returns
    /// whether there are more.
    pub fn drop_locks(&mut self, client: ClientId, last: LockHandle, now: Instant) -> bool {
        let dropped = self.cache.lock().drop_some(client, last);
        if self.opens.presumed.awaits_registration(client) {
            for lock in dropped.locks.iter().filter(|lock| lock.bits.meets(OPEN)) {
                self.opens.presumed.add(client, lock.inode, Until::Registered);
            }
        }
        let has_ended_more = self.end_presumptions(client, now);
        dropped.has_more || has_ended_more
    }

    /// Ends some of the presumptions about a client that have no reason any more; returns whether
    /// there may be more. Inodes without a name are ended in the background, unless they are open.
    pub fn end_presumptions(&mut self, client: ClientId, now: Instant) -> bool {
        let Self { opens, cache, .. } = self;
        let ended = opens.presumed.end(client, LOCKS_PER_STEP, |inode| cache.lock().holds(client, inode, OPEN));
        self.end_unnamed(ended.unnamed, now);
        ended.has_more
    }

    /// Inodes without a name that nobody is presumed to have open any more.
    fn end_unnamed(&mut self, inodes: Vec<InodeNumber>, now: Instant) {
        for inode in inodes {
            if !self.removed.contains(inode) {
                self.removed.add(inode, now);
            }
        }
    }

    /// An open ends; requests that waited for its end continue.
    pub fn remove_open(&mut self, key: OpenKey) -> Option<OpenFile> {
        let file = self.opens.get(key)?;
        let (inode, held) = (file.inode, self.opens.is_held(file.inode));
        let file = self.opens.remove(key);
        if !self.opens.written_by_others(inode, None) {
            self.targets.load.end(inode);
        }
        if held && !self.opens.is_held(inode) {
            self.waiters.wake(inode);
        }
        file
    }

    /// Whether this client has to wait before it writes to the inode, because an open holds writers
    /// off. If that open waits for the client, it stops holding them off: what it has copied so
    /// far, it copies again (the epoch shows this).
    pub fn must_wait(&mut self, inode: InodeNumber, client: ClientId) -> bool {
        if self.opens.is_waited_for(inode, client) {
            self.end_hold(inode);
        }
        self.opens.is_held(inode)
    }

    /// Writers of the inode need not wait any more.
    pub fn end_hold(&mut self, inode: InodeNumber) {
        if self.opens.end_hold(inode) {
            self.waiters.wake(inode);
        }
    }

    /// The holder of the exclusive data lock is about to change the layout of an inode. It has no
    /// more time if it begins again meanwhile.
    pub fn begin_layout_change(&mut self, inode: InodeNumber, client: ClientId, component: ComponentId, now_ns: u64) {
        assert_eq!(self.exclusive.holder(inode), Some(client), "only the holder of the lock changes the layout");
        let former = self.layout_changes.get(&inode).filter(|former| former.client == client);
        let begun_ns = former.map_or(now_ns, |former| former.begun_ns);
        self.layout_changes.insert(inode, LayoutChange { client, component, is_fenced: false, begun_ns });
    }

    /// The objects of the component refuse older layouts.
    pub fn layout_fenced(&mut self, inode: InodeNumber, client: ClientId, component: ComponentId) {
        let change = self.layout_changes.get_mut(&inode);
        if let Some(change) = change.filter(|change| (change.client, change.component) == (client, component)) {
            change.is_fenced = true;
        }
    }

    /// Whether a client may leave something out of a component: nobody else can write there.
    pub fn may_leave_out(&self, inode: InodeNumber, client: ClientId, component: ComponentId) -> bool {
        let change = self.layout_changes.get(&inode);
        change.is_some_and(|change| (change.client, change.component, change.is_fenced) == (client, component, true))
    }

    /// Which client is about to change the layout of an inode, if any.
    pub fn layout_changing_by(&self, inode: InodeNumber) -> Option<ClientId> {
        self.layout_changes.get(&inode).map(|change| change.client)
    }

    /// Ends changes of layouts that take too long.
    pub fn end_old_layout_changes(&mut self, now_ns: u64) {
        let is_old =
            |change: &LayoutChange| now_ns.saturating_sub(change.begun_ns) > LAYOUT_CHANGE_MAX.as_nanos() as u64;
        let old = self.layout_changes.iter().filter(|(_, change)| is_old(change));
        for (inode, client) in old.map(|(inode, change)| (*inode, change.client)).collect::<Vec<_>>() {
            tracing::warn!(%inode, %client, "a change of the layout took too long; other clients continue");
            self.end_layout_change(inode, client);
        }
    }

    /// A client changes no layouts any more.
    pub fn end_layout_changes_of(&mut self, client: ClientId) {
        let changing = self.layout_changes.iter().filter(|(_, change)| change.client == client);
        for inode in changing.map(|(inode, _)| *inode).collect::<Vec<_>>() {
            self.end_layout_change(inode, client);
        }
    }

    /// Whether nobody is shown the layout of an inode at present.
    pub fn is_layout_changing(&self, inode: InodeNumber) -> bool {
        self.layout_changes.contains_key(&inode)
    }

    /// The client does not change the layout of an inode any more: requests that wait for it
    /// continue.
    pub fn end_layout_change(&mut self, inode: InodeNumber, client: ClientId) {
        if self.layout_changing_by(inode) == Some(client) {
            self.layout_changes.remove(&inode);
            self.waiters.wake(inode);
        }
    }

    /// Releases all locks of a client; it waits for nothing any more.
    pub fn release_locks(&mut self, client: ClientId) {
        self.waiters.forget(client);
        let mut completed = Vec::new();
        self.locks.drop_client(client, &mut completed);
        self.waiters.complete(completed);
        self.end_layout_changes_of(client);
        for (inode, next) in self.exclusive.drop_client(client) {
            self.waiters.wake_client(inode, next);
            self.waiters.wake(inode);
        }
        assert!(!self.exclusive.holds_any(client), "all locks of the client are released");
    }

    /// Releases the advisory locks of an owner whose last descriptor of a file was closed.
    pub fn release_owner(&mut self, inode: InodeNumber, family: LockFamily, owner: LockOwner) {
        let mut completed = Vec::new();
        self.locks.drop_owner(inode, family, owner, &mut completed);
        self.waiters.complete(completed);
    }

    /// A client gives up an advisory lock that it waits for. False if it does not wait.
    pub fn cancel_wait(
        &mut self,
        inode: InodeNumber,
        family: LockFamily,
        client: ClientId,
        ticket: WaitTicket,
    ) -> bool {
        let mut completed = Vec::new();
        let cancelled = self.locks.cancel(inode, family, client, ticket, &mut completed);
        self.waiters.complete(completed);
        cancelled
    }

    /// A request for a lock is answered with an error: it does not stay in the queue.
    pub fn refuse_lock(&mut self, client: ClientId, request: &SetLock) {
        if let Some(ticket) = request.ticket {
            self.cancel_wait(request.inode, request.family, client, ticket);
        }
    }

    /// A client releases the exclusive data lock of an inode. False if it does not hold it: then it
    /// gives up its place in the queue, and its users that still want it ask again.
    pub fn end_exclusive(&mut self, inode: InodeNumber, client: ClientId) -> bool {
        let outcome = self.exclusive.end(inode, client);
        let next = match outcome {
            Ok(next) => next,
            Err(_) if self.exclusive.waits(inode, client) => {
                self.waiters.wake_client(inode, client);
                self.exclusive.cancel(inode, client)
            }
            Err(_) => None,
        };
        if let Some(next) = next {
            self.waiters.wake_client(inode, next);
        }
        if outcome.is_ok() {
            self.end_layout_change(inode, client);
            self.waiters.wake(inode);
        }
        outcome.is_ok()
    }

    /// `ost` refuses `client` from now on.
    pub fn fence_delivered(&mut self, client: ClientId, ost: OstIndex) {
        if self.fences.delivered(client, ost) {
            self.release_locks(client);
        }
    }

    /// An OST is out of use: nothing waits for it.
    pub fn release_fences(&mut self, ost: OstIndex) {
        for client in self.fences.waiting_for(ost) {
            self.fence_delivered(client, ost);
        }
    }

    /// Clients that were told to ask again for the exclusive data lock, and did not, lose their
    /// places.
    pub fn skip_silent(&mut self) {
        for (inode, next) in self.exclusive.skip_silent() {
            self.waiters.wake_client(inode, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_falls_with_its_last_ost() {
        let mut fences = Fences::default();
        let client = ClientId(1);
        fences.raise(client, [OstIndex(0), OstIndex(2)]);
        assert!(
            fences.holds(client) && fences.touch([OstIndex(2)].into_iter()) && !fences.touch([OstIndex(1)].into_iter())
        );
        assert!(!fences.delivered(client, OstIndex(0)));
        assert_eq!(fences.waiting_for(OstIndex(2)), [client]);
        assert!(fences.delivered(client, OstIndex(2)));
        assert!(!fences.holds(client) && !fences.touch([OstIndex(2)].into_iter()));
        fences.raise(client, []);
        assert!(!fences.holds(client));
    }

    #[test]
    fn forgetting_a_client_spares_the_others() {
        let mut recovery = Recovery::default();
        for client in [ClientId(1), ClientId(2)] {
            recovery.expected.insert(client);
            recovery.replies.insert((client, Slot(u16::MAX)), Xid(1));
        }
        recovery.forget(ClientId(1));
        assert_eq!(recovery.replies.keys().map(|(client, _)| *client).collect::<Vec<_>>(), [ClientId(2)]);
        assert!(recovery.running());
        recovery.forget(ClientId(2));
        assert!(!recovery.running());
    }

    #[test]
    fn what_an_evicted_client_may_serve_is_not_changed_by_others_until_its_lease_has_ended() {
        let mut recovery = Recovery::default();
        let record = EvictedRecord { is_refused: true, is_leased: false, time: Timestamp::default() };
        recovery.was_evicted(ClientId(1), record);
        assert!(recovery.others_cache(ClientId(2)).is_none(), "its lease has ended");
        recovery.was_evicted(ClientId(1), EvictedRecord { is_leased: true, ..record });
        assert!(recovery.others_cache(ClientId(1)).is_none() && recovery.others_cache(ClientId(2)).is_some());
        assert!(!recovery.running(), "nobody is waited for");
        assert_eq!(recovery.leases_ended(), [ClientId(1)].into());
        assert!(recovery.others_cache(ClientId(2)).is_none() && recovery.refused.contains(&ClientId(1)));
    }
}
