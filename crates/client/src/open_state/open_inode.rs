//! What all opens of one inode in this client share: the layout, what is known about the size, and
//! the changes to be synced.
//!
//! Life cycle: [`OpenTable`](super::open_table::OpenTable) makes it for an inode's first open and
//! drops it after the last close. When this incarnation of the mount ends, or the MDT has lost the
//! file, it becomes stale permanently.

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
use types::{Damage, FileKind, FsError, FsResult, Generation, InodeNumber, Owner, mode};

use crate::open_state::{
    closed_unsynced::{self, Unsynced},
    record_changes::RecordChanges,
    registered_open::{AtMdt, RegisteredOpen, Told},
    size_tracker::SizeTracker,
};

/// A layout from the wire, verified to be usable.
pub(crate) fn verified(layout: &Layout) -> FsResult<&Layout> {
    layout.validate().map_err(|error| Damage::new("layout", error.to_string()))?;
    Ok(layout)
}

/// Changing state of an open inode.
#[derive(Debug)]
pub(crate) struct OpenState {
    /// Registered opens.
    opens: BTreeMap<OpenId, RegisteredOpen>,
    /// What is known of the size.
    pub tracker: SizeTracker,
    /// Objects to sync: how often their OST had lost unsynced changes before the oldest of these.
    pub unsynced: Unsynced,
    /// Objects of before this open may be unsynced too (a program may write, close, open again and
    /// fsync).
    pub unsynced_before: bool,
    /// Changes of the MDT's record of the file (creation, opens, growth) that its data depend on.
    pub record: RecordChanges,
    /// The last loss of uncommitted changes that a sync has told: see
    /// [`crate::targets::uncommitted`].
    pub loss_told: u64,
    /// The present layout may not lead to what was written: the next sync reports this.
    pub layout_undone: bool,
    /// The file may have set-id bits that a write must clear.
    pub set_id: bool,
    /// The file may have capabilities, which any write must clear.
    pub capabilities: bool,
    /// Owner of the file when it was opened last.
    pub owner: Owner,
    /// The file had no name when it was opened, or has lost one since, probably the last.
    unnamed: bool,
    /// The MDT has said so.
    told_unnamed: bool,
}

impl OpenState {
    /// Opens for writing that are not being closed.
    fn writers(&self) -> usize {
        self.opens.values().filter(|open| open.flags.has(open_flag::WRITE) && !open.closing).count()
    }

    /// Whether any open of this client is for writing.
    pub fn has_writers(&self) -> bool {
        self.writers() > 0
    }

    /// An object was changed and its data may not be durable.
    pub fn dirty(&mut self, object: (u32, Location), era: u64) {
        closed_unsynced::note(&mut self.unsynced, object, era);
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct OpenInode {
    inode: InodeNumber,
    /// Of regular files: the newest one known; locked after the table's lock and before the
    /// state's.
    layout: Mutex<Option<Arc<Layout>>>,
    /// How often the layout was outdated: the MDT withdrew its lock, or this client changes it.
    layout_outdated: AtomicU64,
    /// How many of these came before the MDT was asked for it last.
    layout_asked: AtomicU64,
    /// Held shared by operations that change data under the layout that they have read, and
    /// exclusively while objects are moved (see [`crate::placement::no_space`]). Truncations have
    /// the exclusive data lock instead.
    pub changing: tokio::sync::RwLock<()>,
    stale: AtomicBool,
    state: Mutex<OpenState>,
    /// Held by an fsync: what it took over from the state is not durable before it ends.
    pub syncing: tokio::sync::Mutex<()>,
}

impl OpenInode {
    /// An inode that gets its first open. `unsynced`: what this client wrote to it before.
    /// `created`: the file is new, so nothing of it is anywhere else. `lost`: the last loss of
    /// uncommitted changes, which is history for this open.
    pub(super) fn new(inode: InodeNumber, unsynced: Unsynced, created: bool, lost: u64) -> Self {
        let state = OpenState {
            opens: BTreeMap::new(),
            tracker: SizeTracker::default(),
            unsynced,
            unsynced_before: !created,
            record: RecordChanges::of_new_record(),
            loss_told: lost,
            layout_undone: false,
            set_id: false,
            capabilities: false,
            owner: Owner::default(),
            unnamed: false,
            told_unnamed: false,
        };
        Self {
            inode,
            layout: Mutex::default(),
            layout_outdated: AtomicU64::new(0),
            layout_asked: AtomicU64::new(0),
            changing: tokio::sync::RwLock::default(),
            stale: AtomicBool::new(false),
            state: Mutex::new(state),
            syncing: tokio::sync::Mutex::default(),
        }
    }

    /// Adds an open that the MDT granted, or that was made without asking it.
    pub(super) fn register(&self, (id, flags): (OpenId, OpenFlags), opened: &Opened, created: bool, at_mdt: AtMdt) {
        let attributes = &opened.entry.attributes;
        let mut state = self.state.lock();
        let previous =
            state.opens.insert(id, RegisteredOpen { flags, closing: false, at_mdt, unasked: at_mdt != AtMdt::Known });
        assert!(previous.is_none(), "an open is registered once");
        state.set_id |= attributes.mode & (mode::S_ISUID | mode::S_ISGID) != 0 && attributes.kind == FileKind::Regular;
        state.capabilities |= opened.capabilities;
        state.owner = attributes.owner();
        state.unnamed |= attributes.links == 0;
        state.told_unnamed = attributes.links == 0;
        if flags.has(open_flag::WRITE) {
            // The MDT's record changed: only now does it say that the objects are to be asked for
            // the size.
            state.record.changed();
            // The objects are truncated later, if they are to be.
            let is_exact = (created || opened.entry.size_unknown.is_none()) && !opened.truncate;
            let size_known = is_exact.then_some(&opened.entry);
            state.tracker.opened(opened.epoch, size_known);
        }
    }

    /// An open has ended. After the last one: what is to be synced.
    pub(super) fn unregister(&self, id: OpenId) -> Option<Unsynced> {
        let mut state = self.state.lock();
        state.opens.remove(&id);
        if !state.has_writers() {
            state.tracker.reset();
        }
        state.opens.is_empty().then(|| std::mem::take(&mut state.unsynced))
    }

    /// The registered opens.
    pub(super) fn opens(&self) -> Vec<(OpenId, OpenFlags)> {
        self.state.lock().opens.iter().map(|(id, open)| (*id, open.flags)).collect()
    }

    /// Whether an open is registered.
    pub(super) fn has(&self, id: OpenId) -> bool {
        self.state.lock().opens.contains_key(&id)
    }

    /// Whether the MDT knows an open.
    pub fn at_mdt(&self, id: OpenId) -> AtMdt {
        self.state.lock().opens.get(&id).map_or(AtMdt::Known, |open| open.at_mdt)
    }

    /// Whether an open was made without asking the MDT, which may be told of it at this moment.
    pub fn was_unasked(&self, id: OpenId) -> bool {
        self.state.lock().opens.get(&id).is_some_and(|open| open.unasked)
    }

    /// Whether the MDT may not know one of the opens, and may still be told.
    pub(super) fn has_untold(&self) -> bool {
        self.state.lock().opens.values().any(RegisteredOpen::is_untold)
    }

    /// Opens that the MDT may not know, at most `count`, and whether no request has begun to tell
    /// it before. It is told from now on.
    pub(super) fn begin_telling(&self, count: usize) -> Vec<(Told, bool)> {
        let mut state = self.state.lock();
        let untold = state.opens.iter_mut().filter(|(_, open)| open.is_untold()).take(count);
        let begin = |(id, open): (&OpenId, &mut RegisteredOpen)| {
            let before = std::mem::replace(&mut open.at_mdt, AtMdt::Telling);
            ((self.inode, *id, open.flags), before == AtMdt::Unknown)
        };
        untold.map(begin).collect()
    }

    /// The MDT knows an open.
    pub(super) fn told(&self, id: OpenId) {
        if let Some(open) = self.state.lock().opens.get_mut(&id) {
            open.at_mdt = AtMdt::Known;
        }
    }

    /// Whether any registered open is for writing.
    pub(super) fn is_written(&self) -> bool {
        self.state.lock().opens.values().any(|open| open.flags.has(open_flag::WRITE))
    }

    /// Number of registered opens.
    pub(super) fn open_count(&self) -> usize {
        self.state.lock().opens.len()
    }

    /// What is open of it is stale from now on.
    pub(super) fn end(&self) {
        self.stale.store(true, Ordering::Release);
    }

    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// The layout of a regular file, as far as this client knows it; `None` if the MDT must be
    /// asked: what was known is outdated.
    pub fn layout(&self) -> FsResult<Option<Arc<Layout>>> {
        let layout = self.layout.lock().clone().ok_or(FsError::Invalid)?;
        let asked = self.layout_asked.load(Ordering::Acquire);
        let outdated = self.layout_outdated();
        assert!(asked <= outdated, "no layout is asked for before it is outdated");
        Ok((asked == outdated).then_some(layout))
    }

    /// The layout is about to change, or has: nothing is read or written before the MDT was asked
    /// for it again.
    pub fn outdate_layout(&self) {
        self.layout_outdated.fetch_add(1, Ordering::AcqRel);
    }

    /// The MDT lost a change of the layout: another one holds than the one that was written by.
    pub fn layout_undone(&self) {
        self.outdate_layout();
        self.state().layout_undone = true;
    }

    /// How often it was outdated.
    pub fn layout_outdated(&self) -> u64 {
        self.layout_outdated.load(Ordering::Acquire)
    }

    /// The MDT has told the layout; it was asked when it had been outdated so often. If it was once
    /// more meanwhile, it still is.
    pub fn layout_asked(&self, outdated: u64) {
        assert!(outdated <= self.layout_outdated(), "no layout is asked for before it is outdated");
        self.layout_asked.fetch_max(outdated, Ordering::AcqRel);
    }

    /// Takes over a layout that the MDT told, unless a newer one is known; returns the newest. What
    /// was written by it is to be found only once the MDT has committed it.
    ///
    /// `None` if the MDT is not the one any more that told it, says `current`: it may have lost
    /// what it told, so it is to be asked again. What is taken over while `current`, on the other
    /// hand, is claimed from the MDT's next start.
    pub fn adopt(&self, told: &Layout, current: impl FnOnce() -> bool) -> FsResult<Option<Arc<Layout>>> {
        let told = verified(told)?;
        let mut layout = self.layout.lock();
        if !current() {
            return Ok(None);
        }
        if let Some(known) = layout.as_ref().filter(|known| told.generation <= known.generation) {
            return Ok(Some(known.clone()));
        }
        let before = layout.as_ref().map(|known| known.generation);
        assert!(before < Some(told.generation), "the generation of a layout never goes back");
        let newest = Arc::new(told.clone());
        *layout = Some(newest.clone());
        self.state.lock().record.changed();
        Ok(Some(newest))
    }

    /// The layout, if the MDT may lose it with its power: it grew, and that is not known to be
    /// durable.
    pub(super) fn undurable_layout(&self) -> Option<(InodeNumber, Layout)> {
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

    /// Fails once the incarnation of the mount in which it was opened has ended, or its MDT has
    /// lost the file.
    pub fn check(&self) -> FsResult<()> {
        if self.stale.load(Ordering::Acquire) { Err(FsError::Stale) } else { Ok(()) }
    }

    pub fn state(&self) -> MutexGuard<'_, OpenState> {
        self.state.lock()
    }

    /// Whether the MDT has said that the file has no name, and this client has not given it one.
    pub fn has_no_name(&self) -> bool {
        self.state().told_unnamed
    }

    /// Whether it has lost a name while it was open.
    pub fn may_have_no_name(&self) -> bool {
        self.state().unnamed
    }

    /// The MDT says that it has no name.
    pub fn note_no_name(&self) {
        self.state().told_unnamed = true;
    }

    /// This client gives it a name.
    pub fn gets_name(&self) {
        self.state().told_unnamed = false;
    }

    /// Whether the file may have set-id bits or capabilities.
    pub fn has_privileges(&self) -> bool {
        let state = self.state();
        state.set_id || state.capabilities
    }

    /// The close of an open begins: what it may tell of the size. Only the last writer knows, and
    /// only if it was alone.
    pub fn closing(&self, id: OpenId) -> Option<SizeUpdate> {
        let mut state = self.state.lock();
        let open = state.opens.get_mut(&id)?;
        assert!(!open.closing, "an open is closed once");
        open.closing = true;
        let writes = open.flags.has(open_flag::WRITE);
        if writes && !state.has_writers() { state.tracker.update() } else { None }
    }

    /// Whether all its opens are being closed.
    pub fn is_closing(&self) -> bool {
        self.state().opens.values().all(|open| open.closing)
    }

    /// A report of the size of before, unless it has come into doubt.
    pub fn still(&self, update: Option<SizeUpdate>) -> Option<SizeUpdate> {
        let state = self.state();
        update.filter(|update| state.tracker.update().as_ref() == Some(update))
    }

    /// The file has lost a name, probably its last.
    pub fn lost_name(&self) {
        self.state().unnamed = true;
    }

    /// Whether nothing at this client or at the MDT depends on the close of its only open: what it
    /// reports is about a file that this client has only added to, and the file goes on existing.
    pub fn may_close_late(&self) -> bool {
        let state = self.state();
        state.opens.len() == 1 && !state.unnamed && !state.tracker.was_truncated()
    }
}
