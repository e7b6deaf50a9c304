//! What all opens of one inode in this client share, and the table of open inodes.
//!
//! Invariants: an inode is in the table while at least one of its opens is registered; every open in the table belongs to
//! the mount's present life (see [`crate::recovery`]). Its end empties the table and marks all inodes stale, so that later
//! opens begin with new state and old handles fail.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use layout::{Layout, Location};
use parking_lot::{Mutex, MutexGuard};
use rpc::message::mdt::{OpenFlags, OpenId, Opened, SizeUpdate, open_flag};
use types::{FileKind, FsError, FsResult, Generation, InodeNumber, MdtIndex, mode};

use crate::{
    closed_unsynced::{self, ClosedUnsynced, Unsynced},
    size_tracker::SizeTracker,
};

/// A layout from the wire, verified to be usable.
pub(crate) fn verified(layout: &Layout) -> FsResult<&Layout> {
    layout.validate().map_err(|error| FsError::Damaged(error.to_string()))?;
    Ok(layout)
}

/// Which changes of a record at the MDT are durable. A commit covers what happened before it was asked for; what happened
/// while it was under way needs another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordChanges {
    /// Changes this client knows of.
    made: u64,
    /// How many of them are known to be durable.
    durable: u64,
}

impl RecordChanges {
    /// The record changed, or may have.
    pub fn changed(&mut self) {
        self.made += 1;
    }

    /// Whether all of them are durable.
    pub fn is_durable(self) -> bool {
        self.made == self.durable
    }

    /// A commit that was asked for when the changes were `before` is done.
    pub fn committed(&mut self, before: RecordChanges) {
        self.durable = self.durable.max(before.made);
    }
}

/// Changing state of an open inode.
#[derive(Debug)]
pub(crate) struct OpenState {
    /// Registered opens; `true` once a close is under way.
    opens: BTreeMap<OpenId, (OpenFlags, bool)>,
    /// What is known of the size.
    pub tracker: SizeTracker,
    /// Objects to sync: how often their OST had lost unsynced changes before the oldest of these.
    pub unsynced: Unsynced,
    /// Objects of before this open may be unsynced too (a program may write, close, open again and fsync).
    pub unsynced_before: bool,
    /// Changes of the MDT's record of the file (creation, opens, growth) that its data depend on.
    pub record: RecordChanges,
    /// The last loss of uncommitted changes that a sync has told: see [`crate::uncommitted`].
    pub loss_told: u64,
    /// What was written may not be found by the layout that holds now: to be told by the next sync.
    pub layout_undone: bool,
    /// The file may have set-id bits that a write must clear.
    pub set_id: bool,
    /// The file may have capabilities, which any write must clear.
    pub capabilities: bool,
}

impl OpenState {
    /// Opens for writing that are not being closed.
    fn writers(&self) -> usize {
        self.opens.values().filter(|(flags, closing)| flags.has(open_flag::WRITE) && !closing).count()
    }

    /// Whether any open of this client is for writing.
    pub fn has_writers(&self) -> bool {
        self.writers() > 0
    }

    /// An object was changed and its data may not be durable.
    pub fn dirty(&mut self, object: (u32, Location), losses: u64) {
        closed_unsynced::note(&mut self.unsynced, object, losses);
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct OpenInode {
    inode: InodeNumber,
    /// Of regular files: the newest one known; locked after the table's lock and before the state's.
    layout: Mutex<Option<Arc<Layout>>>,
    /// How often the MDT may have moved objects or not: it is to be asked.
    layout_doubts: AtomicU64,
    /// How many of these it has answered.
    layout_doubts_answered: AtomicU64,
    /// Held, shared, by whatever changes data under a layout taken meanwhile; alone by who has objects moved (see
    /// [`crate::elsewhere`]). Truncations have the exclusive data lock instead.
    pub changing: tokio::sync::RwLock<()>,
    stale: AtomicBool,
    state: Mutex<OpenState>,
    /// Held by an fsync: what it took over from the state is not durable before it ends.
    pub syncing: tokio::sync::Mutex<()>,
}

impl OpenInode {
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// The layout of a regular file, as far as this client knows it; `None` if the MDT must be asked.
    pub fn layout(&self) -> FsResult<Option<Arc<Layout>>> {
        let layout = self.layout.lock().clone().ok_or(FsError::Invalid)?;
        let answered = self.layout_doubts_answered.load(Ordering::Acquire);
        Ok((answered == self.layout_doubts()).then_some(layout))
    }

    /// The MDT may have moved objects or not: nothing is read or written before it has told.
    pub fn doubt_layout(&self) {
        self.layout_doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// The MDT lost a change of the layout: another one holds than the one that was written by.
    pub fn layout_undone(&self) {
        self.doubt_layout();
        self.state().layout_undone = true;
    }

    /// How often it was doubted.
    pub fn layout_doubts(&self) -> u64 {
        self.layout_doubts.load(Ordering::Acquire)
    }

    /// The MDT has told what it was asked after so many doubts. A doubt that came meanwhile remains.
    pub fn trust_layout(&self, doubts: u64) {
        self.layout_doubts_answered.fetch_max(doubts, Ordering::AcqRel);
    }

    /// Takes over a layout that the MDT told, unless a newer one is known; returns the newest. What was written by it is to
    /// be found only once the MDT has committed it.
    ///
    /// `None` if the MDT is not the one any more that told it, says `current`: it may have lost what it told, so it is to be
    /// asked again. What is taken over while `current`, on the other hand, is claimed from the MDT's next start.
    pub fn adopt(&self, told: &Layout, current: impl FnOnce() -> bool) -> FsResult<Option<Arc<Layout>>> {
        let told = verified(told)?;
        let mut layout = self.layout.lock();
        if !current() {
            return Ok(None);
        }
        if let Some(known) = layout.as_ref().filter(|known| told.generation <= known.generation) {
            return Ok(Some(known.clone()));
        }
        let newest = Arc::new(told.clone());
        *layout = Some(newest.clone());
        self.state.lock().record.changed();
        Ok(Some(newest))
    }

    /// The layout, if the MDT may lose it with its power: it grew, and that is not known to be durable.
    fn undurable_layout(&self) -> Option<(InodeNumber, Layout)> {
        let layout = self.layout.lock();
        let durable = self.state.lock().record.is_durable();
        let layout = layout.as_ref().filter(|layout| !durable && layout.generation > Generation(1))?;
        Some((self.inode, Layout::clone(layout)))
    }

    /// The only open of this client, if it is the only one.
    pub fn only_id(&self) -> Option<OpenId> {
        let state = self.state.lock();
        let mut ids = state.opens.keys();
        ids.next().copied().filter(|_| ids.next().is_none())
    }

    /// Fails once the life of the mount in which it was opened is over, or its MDT has lost the file.
    pub fn check(&self) -> FsResult<()> {
        if self.stale.load(Ordering::Acquire) { Err(FsError::Stale) } else { Ok(()) }
    }

    pub fn state(&self) -> MutexGuard<'_, OpenState> {
        self.state.lock()
    }

    /// The close of an open begins: what it may tell of the size. Only the last writer knows, and only if it was alone.
    pub fn closing(&self, id: OpenId) -> Option<SizeUpdate> {
        let mut state = self.state.lock();
        let (flags, closing) = state.opens.get_mut(&id)?;
        *closing = true;
        let writes = flags.has(open_flag::WRITE);
        if writes && !state.has_writers() { state.tracker.update() } else { None }
    }
}

#[derive(Debug, Default)]
struct Table {
    inodes: BTreeMap<InodeNumber, Arc<OpenInode>>,
    /// Of inodes that are not open.
    closed: ClosedUnsynced,
    /// Number of the mount's present life.
    life: u64,
}

impl Table {
    fn take_unsynced(&mut self, inode: InodeNumber) -> Unsynced {
        match self.inodes.get(&inode) {
            Some(open) => std::mem::take(&mut open.state().unsynced),
            None => self.closed.take(inode),
        }
    }

    fn add_unsynced(&mut self, inode: InodeNumber, unsynced: &Unsynced) {
        match self.inodes.get(&inode) {
            Some(open) => {
                let mut state = open.state();
                unsynced.iter().for_each(|(object, losses)| state.dirty(*object, *losses));
            }
            None => self.closed.add(inode, unsynced),
        }
    }
}

/// All open inodes of this client.
#[derive(Debug, Default)]
pub(crate) struct OpenTable {
    table: Mutex<Table>,
}

impl OpenTable {
    /// Number of the mount's present life, to be given to [`OpenTable::register`].
    pub fn life(&self) -> u64 {
        self.table.lock().life
    }

    /// The open inode, if this client has it open.
    pub fn find(&self, inode: InodeNumber) -> Option<Arc<OpenInode>> {
        self.table.lock().inodes.get(&inode).cloned()
    }

    /// Registers an open that was asked for in `life`; `Stale` if that has ended. `created`: the file is new,
    /// so nothing of it is anywhere else. `lost`: the last loss of uncommitted changes, which is history for this open.
    /// `current`: as in [`OpenInode::adopt`]; if not, the layout is still to be learned.
    pub fn register(
        &self,
        id: OpenId,
        flags: OpenFlags,
        opened: &Opened,
        created: bool,
        (life, lost): (u64, u64),
        current: impl FnOnce() -> bool,
    ) -> FsResult<Arc<OpenInode>> {
        let attributes = &opened.entry.attributes;
        let inode = attributes.inode;
        opened.layout.as_ref().map(verified).transpose()?;
        let mut table = self.table.lock();
        if table.life != life {
            return Err(FsError::Stale);
        }
        let Table { inodes, closed, .. } = &mut *table;
        let open = inodes.entry(inode).or_insert_with(|| {
            Arc::new(OpenInode {
                inode,
                layout: Mutex::default(),
                layout_doubts: AtomicU64::new(0),
                layout_doubts_answered: AtomicU64::new(0),
                changing: tokio::sync::RwLock::default(),
                stale: AtomicBool::new(false),
                state: Mutex::new(OpenState {
                    opens: BTreeMap::new(),
                    tracker: SizeTracker::default(),
                    unsynced: closed.take(inode),
                    unsynced_before: !created,
                    record: RecordChanges { made: 1, durable: 0 },
                    loss_told: lost,
                    layout_undone: false,
                    set_id: false,
                    capabilities: false,
                }),
                syncing: tokio::sync::Mutex::default(),
            })
        });
        if let Some(layout) = &opened.layout {
            open.adopt(layout, current)?;
        }
        let mut state = open.state.lock();
        state.opens.insert(id, (flags, false));
        state.set_id |= attributes.mode & (mode::S_ISUID | mode::S_ISGID) != 0 && attributes.kind == FileKind::Regular;
        state.capabilities |= opened.capabilities;
        if flags.has(open_flag::WRITE) {
            // The MDT's record changed: only now does it say that the objects are to be asked for the size.
            state.record.changed();
            let settled = (created || opened.entry.unsettled.is_none()).then_some(attributes);
            state.tracker.opened(opened.epoch, settled);
        }
        drop(state);
        Ok(open.clone())
    }

    /// An open has ended.
    pub fn unregister(&self, open: &Arc<OpenInode>, id: OpenId) {
        let mut table = self.table.lock();
        let mut state = open.state.lock();
        state.opens.remove(&id);
        if !state.has_writers() {
            state.tracker.reset();
        }
        let present = table.inodes.get(&open.inode).is_some_and(|found| Arc::ptr_eq(found, open));
        if present && state.opens.is_empty() {
            table.inodes.remove(&open.inode);
            table.closed.closed(open.inode, std::mem::take(&mut state.unsynced));
        }
    }

    /// Two inodes have swapped their layouts, or perhaps, if that is not `certain`: what is to be synced goes with the objects.
    pub fn exchange_unsynced(&self, one: InodeNumber, other: InodeNumber, certain: bool) {
        let mut table = self.table.lock();
        let (of_one, of_other) = (table.take_unsynced(one), table.take_unsynced(other));
        for (inode, new, old) in [(one, &of_other, &of_one), (other, &of_one, &of_other)] {
            table.add_unsynced(inode, new);
            if !certain {
                table.add_unsynced(inode, old);
            }
        }
    }

    /// A sync of everything begins: what was closed before is its business.
    pub fn take_closed(&self) -> ClosedUnsynced {
        std::mem::take(&mut self.table.lock().closed)
    }

    /// It failed, so that somebody else is to tell.
    pub fn give_closed_back(&self, before: ClosedUnsynced) {
        let mut table = self.table.lock();
        let since = std::mem::replace(&mut table.closed, before);
        table.closed.append(since);
    }

    /// A life ended: all that was open is stale.
    pub fn lost(&self) {
        let mut table = self.table.lock();
        table.life += 1;
        for open in std::mem::take(&mut table.inodes).into_values() {
            open.stale.store(true, Ordering::Release);
        }
    }

    /// A server has lost changes that were not synced: what objects hold is to be asked.
    pub fn lost_changes(&self) {
        let table = self.table.lock();
        table.inodes.values().for_each(|open| open.state().tracker.lost());
    }

    /// The MDT has lost the file: what is open of it is stale.
    pub fn lost_inode(&self, inode: InodeNumber) {
        let mut table = self.table.lock();
        table.closed.take(inode);
        if let Some(open) = table.inodes.remove(&inode) {
            open.stale.store(true, Ordering::Release);
        }
    }

    /// All opens at an MDT.
    pub fn at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, OpenId, OpenFlags)> {
        let table = self.table.lock();
        let of_mdt = table.inodes.values().filter(|open| open.inode.mdt() == mdt);
        let opens_of = |open: &Arc<OpenInode>| {
            let state = open.state.lock();
            state.opens.iter().map(|(id, (flags, _))| (open.inode, *id, *flags)).collect::<Vec<_>>()
        };
        of_mdt.flat_map(opens_of).collect()
    }

    /// Layouts that an MDT may have lost, of all that is open there.
    pub fn layouts_at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, Layout)> {
        let table = self.table.lock();
        let of_mdt = table.inodes.values().filter(|open| open.inode.mdt() == mdt);
        of_mdt.filter_map(|open| open.undurable_layout()).collect()
    }

    /// Number of opens.
    pub fn len(&self) -> usize {
        self.table.lock().inodes.values().map(|open| open.state.lock().opens.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_does_not_cover_what_changed_while_it_was_under_way() {
        let mut record = RecordChanges::default();
        record.changed();
        let before = record;
        record.changed();
        record.committed(before);
        assert!(!record.is_durable(), "the file grew after the commit was asked for");
        record.committed(record);
        assert!(record.is_durable());
        record.committed(before);
        assert!(record.is_durable(), "a commit that comes late takes nothing back");
    }
}
