//! The table of open inodes.
//!
//! Invariants: an inode is in the table while at least one of its opens is registered; every open
//! in the table belongs to the mount's present incarnation (see [`crate::targets::recovery`]). The
//! end of the incarnation empties the table and marks all inodes stale, so that later opens start
//! with new state and old handles fail.

use std::{collections::BTreeMap, sync::Arc};

use layout::Layout;
use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, OpenId, Opened};
use types::{FsError, FsResult, InodeNumber, MdtIndex};

use crate::open_state::{
    closed_unsynced::{ClosedUnsynced, Unsynced},
    open_inode::{OpenInode, verified},
    registered_open::{AtMdt, Told},
};

#[derive(Debug, Default)]
struct Table {
    inodes: BTreeMap<InodeNumber, Arc<OpenInode>>,
    /// Of inodes that are not open.
    closed: ClosedUnsynced,
    /// Number of the mount's present incarnation.
    incarnation: u64,
    /// Opens of all inodes.
    opens: usize,
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
                unsynced.iter().for_each(|(object, era)| state.dirty(*object, *era));
            }
            None => self.closed.add(inode, unsynced),
        }
    }
}

impl Table {
    fn unregister(&mut self, open: &Arc<OpenInode>, id: OpenId) {
        let is_present = self.inodes.get(&open.inode()).is_some_and(|found| Arc::ptr_eq(found, open));
        let ends = usize::from(is_present && open.has(id));
        assert!(self.opens >= ends, "an open that ends is counted");
        self.opens -= ends;
        let Some(unsynced) = open.unregister(id) else { return };
        if is_present {
            assert_eq!(open.open_count(), 0, "an inode leaves the table after its last close");
            self.inodes.remove(&open.inode());
            self.closed.closed(open.inode(), unsynced);
        }
    }
}

/// All open inodes of this client.
#[derive(Debug, Default)]
pub(crate) struct OpenTable {
    table: Mutex<Table>,
}

impl OpenTable {
    /// Number of the mount's present incarnation, to be given to [`OpenTable::register`].
    pub fn incarnation(&self) -> u64 {
        self.table.lock().incarnation
    }

    /// The open inode, if this client has it open.
    pub fn find(&self, inode: InodeNumber) -> Option<Arc<OpenInode>> {
        self.table.lock().inodes.get(&inode).cloned()
    }

    /// Whether this client has an inode open for writing, up to the end of the close.
    pub fn is_written(&self, inode: InodeNumber) -> bool {
        self.table.lock().inodes.get(&inode).is_some_and(|open| open.is_written())
    }

    /// Registers an open that was asked for in `incarnation`; `Stale` if that has ended. `created`:
    /// the file is new, so nothing of it is anywhere else. `lost`: the last loss of uncommitted
    /// changes, which is history for this open. `current`: as in [`OpenInode::adopt`]; if not, the
    /// layout is still to be learned.
    pub fn register(
        &self,
        name: (OpenId, OpenFlags),
        opened: &Opened,
        created: bool,
        at_mdt: AtMdt,
        (incarnation, lost): (u64, u64),
        current: impl FnOnce() -> bool,
    ) -> FsResult<Arc<OpenInode>> {
        let inode = opened.entry.attributes.inode;
        opened.layout.as_ref().map(verified).transpose()?;
        let mut table = self.table.lock();
        if table.incarnation != incarnation {
            return Err(FsError::Stale);
        }
        let Table { inodes, closed, opens, .. } = &mut *table;
        // Under another number if the file has moved here from another MDT since.
        let former =
            opened.layout.as_ref().and_then(|layout| layout.named_by).filter(|namer| namer.mdt() != inode.mdt());
        let new = || Arc::new(OpenInode::new(inode, closed.take_both(inode, former), created, lost));
        let open = inodes.entry(inode).or_insert_with(new);
        assert_eq!(open.inode(), inode, "an open inode is in the table under its own number");
        assert!(open.check().is_ok(), "what is in the table belongs to the present incarnation");
        if let Some(layout) = &opened.layout {
            open.adopt(layout, current)?;
        }
        open.register(name, opened, created, at_mdt);
        *opens += 1;
        Ok(open.clone())
    }

    /// An open has ended.
    pub fn unregister(&self, open: &Arc<OpenInode>, id: OpenId) {
        self.table.lock().unregister(open, id);
    }

    /// Takes what is to be synced of an inode, whether it is open or closed.
    pub fn take_unsynced(&self, inode: InodeNumber) -> Unsynced {
        self.table.lock().take_unsynced(inode)
    }

    /// Gives back what was not synced.
    pub fn add_unsynced(&self, inode: InodeNumber, unsynced: &Unsynced) {
        self.table.lock().add_unsynced(inode, unsynced);
    }

    /// Two inodes have swapped their layouts, or perhaps, if that is not `certain`: what is to be
    /// synced goes with the objects.
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

    /// A sync of everything begins: what was closed before is its business, also if the MDT is
    /// still to be told.
    pub fn take_closed(&self) -> ClosedUnsynced {
        let mut table = self.table.lock();
        let Table { inodes, closed, .. } = &mut *table;
        for open in inodes.values().filter(|open| open.is_closing()) {
            let unsynced = std::mem::take(&mut open.state().unsynced);
            closed.closed(open.inode(), unsynced);
        }
        std::mem::take(closed)
    }

    /// It failed, so another sync has to report it.
    pub fn give_closed_back(&self, before: ClosedUnsynced) {
        let mut table = self.table.lock();
        let since = std::mem::replace(&mut table.closed, before);
        table.closed.append(since);
    }

    /// An incarnation ended: everything that was open is stale.
    pub fn lost(&self) {
        let mut table = self.table.lock();
        table.incarnation += 1;
        table.opens = 0;
        for open in std::mem::take(&mut table.inodes).into_values() {
            open.end();
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
            assert!(table.opens >= open.open_count(), "opens that end are counted");
            table.opens -= open.open_count();
            open.end();
        }
    }

    /// Whether the MDT may not know one of this client's opens of an inode.
    pub fn has_untold(&self, inode: InodeNumber) -> bool {
        self.table.lock().inodes.get(&inode).is_some_and(|open| open.has_untold())
    }

    /// Opens of these inodes that their MDT may not know, at most `count`: it is told from now on.
    pub fn begin_telling(&self, inodes: &[InodeNumber], count: usize) -> Vec<Told> {
        let table = self.table.lock();
        let mut told = Vec::new();
        for open in inodes.iter().filter_map(|inode| table.inodes.get(inode)) {
            told.extend(open.begin_telling(count - told.len()).into_iter().map(|(told, _)| told));
        }
        assert!(told.len() <= count, "no more than fit into one message");
        told
    }

    /// All opens that this MDT may not know, and whether no request has begun to tell it before.
    pub fn begin_telling_all(&self, mdt: MdtIndex) -> Vec<(Told, bool)> {
        let table = self.table.lock();
        let of_mdt = table.inodes.values().filter(|open| open.inode().mdt() == mdt);
        of_mdt.flat_map(|open| open.begin_telling(usize::MAX)).collect()
    }

    /// The MDT knows these.
    pub fn told(&self, opens: &[Told]) {
        let table = self.table.lock();
        for (inode, id, _) in opens {
            if let Some(open) = table.inodes.get(inode) {
                open.told(*id);
            }
        }
    }

    /// Ends an open that the MDT was not told of. Otherwise returns what it knows.
    pub fn end_untold(&self, open: &Arc<OpenInode>, id: OpenId) -> AtMdt {
        // An MDT is told of opens that were looked up with the table locked.
        let mut table = self.table.lock();
        let at_mdt = open.at_mdt(id);
        if at_mdt == AtMdt::Unknown {
            table.unregister(open, id);
        }
        at_mdt
    }

    /// All opens at an MDT, which knows them from now on.
    pub fn at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, OpenId, OpenFlags)> {
        let table = self.table.lock();
        let of_mdt = table.inodes.values().filter(|open| open.inode().mdt() == mdt);
        let opens_of = |open: &Arc<OpenInode>| {
            let (inode, opens) = (open.inode(), open.opens());
            assert!(!opens.is_empty(), "an inode in the table is open");
            opens.iter().for_each(|(id, _)| open.told(*id));
            opens.into_iter().map(move |(id, flags)| (inode, id, flags))
        };
        of_mdt.flat_map(opens_of).collect()
    }

    /// Layouts that an MDT may have lost, of all that is open there.
    pub fn layouts_at(&self, mdt: MdtIndex) -> Vec<(InodeNumber, Layout)> {
        let table = self.table.lock();
        let of_mdt = table.inodes.values().filter(|open| open.inode().mdt() == mdt);
        of_mdt.filter_map(|open| open.undurable_layout()).collect()
    }

    /// Number of opens.
    pub fn len(&self) -> usize {
        self.table.lock().opens
    }
}
