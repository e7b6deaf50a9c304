//! Making data and metadata durable.
//!
//! fsync flushes the objects this client wrote since the last fsync of the open inode; the first
//! fsync flushes all objects of a file that existed before the open, because a program may write,
//! close, open again and fsync. At the same time the MDT commits, so that the file and its layout,
//! which are needed to find the data, are durable too.
//!
//! Lost changes are reported: a target whose host loses power forgets what was not durable, and
//! says how often that has happened ([`rpc::message::session::Connected::era`]). If it happened
//! between a change and its sync, the sync fails, once, and the caller knows that earlier changes
//! may be lost. (A target whose process dies forgets nothing.) For files that were closed without a
//! sync, the next fsync after they are opened again on this client reports the loss
//! ([`crate::open_state::closed_unsynced`]), unless a [`FileSystem::sync_all`] succeeded before.
//!
//! If an MDT lost a file in a power loss although it is open here, the open is stale: no sync of it
//! succeeds again. If the MDT lost a change of the layout, it may be impossible to find data
//! written since: the next sync of the file fails, too.
//!
//! A file that replaces another one by a rename has its objects made durable first, whichever
//! client wrote them: [`FileSystem::sync_objects`].
//!
//! A name of the file may be on another MDT. If this client has changed it, that MDT commits, too
//! ([`crate::names_elsewhere`]).
//!
//! Only one fsync of an open inode runs at a time: the next one takes over what the previous one
//! could not make durable, and returns only when that is durable.

use std::collections::BTreeMap;

use layout::{Layout, Location};
use rpc::message::mgs::TargetRole;
use types::{FileKind, FsResult, InodeNumber, OstIndex};

use crate::{
    FileSystem, OpenFile,
    join::join_all,
    open_state::{closed_unsynced::Unsynced, open_inode::OpenInode, open_table::OpenTable},
    statistics::Operation,
};

/// The power-loss era of each OST.
type Eras = BTreeMap<OstIndex, u64>;

/// The state that one fsync takes over from the open inode. Returned when dropped before
/// [`Pending::flushed`]: the fsync failed, or its caller gave up.
struct Pending<'a> {
    open: &'a OpenInode,
    unsynced: Unsynced,
    /// All objects.
    whole: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.open.state();
        for (object, era) in std::mem::take(&mut self.unsynced) {
            state.dirty(object, era);
        }
        state.unsynced_before |= self.whole;
    }
}

impl<'a> Pending<'a> {
    fn take(open: &'a OpenInode) -> Self {
        let mut state = open.state();
        let unsynced = std::mem::take(&mut state.unsynced);
        let whole = std::mem::take(&mut state.unsynced_before);
        Self { open, unsynced, whole }
    }

    /// All of it is flushed; the objects that were written.
    fn flushed(mut self) -> Unsynced {
        self.whole = false;
        std::mem::take(&mut self.unsynced)
    }

    /// Slots to flush, by OST.
    fn by_ost(&self, layout: &Layout) -> ByOst {
        by_ost(layout, |object| self.whole || self.unsynced.contains_key(object))
    }

    /// Whether data on the MDT were written.
    fn touches_mdt(&self) -> bool {
        self.unsynced.keys().any(|(_, location)| *location == Location::Mdt)
    }
}

/// Slots of a file by the OST that holds them.
type ByOst = BTreeMap<OstIndex, Vec<u32>>;

/// Those of a layout's objects on OSTs that are wanted. (Data on an MDT are durable with its
/// commit.)
fn by_ost(layout: &Layout, wanted: impl Fn(&(u32, Location)) -> bool) -> ByOst {
    let mut by_ost = ByOst::new();
    for (slot, location) in layout.objects().filter(wanted) {
        if let Location::Ost(ost) = location {
            by_ost.entry(ost).or_default().push(slot);
        }
    }
    by_ost
}

/// What a rename takes over of what this client wrote to its source. Given back when dropped before
/// [`OfSource::flushed`].
struct OfSource<'a> {
    opens: &'a OpenTable,
    inode: InodeNumber,
    unsynced: Unsynced,
}

impl<'a> OfSource<'a> {
    fn take(opens: &'a OpenTable, inode: InodeNumber) -> Self {
        let (on_osts, on_mdt): (Unsynced, Unsynced) =
            opens.take_unsynced(inode).into_iter().partition(|((_, location), _)| *location != Location::Mdt);
        opens.add_unsynced(inode, &on_mdt);
        Self { opens, inode, unsynced: on_osts }
    }

    fn flushed(mut self) -> Unsynced {
        std::mem::take(&mut self.unsynced)
    }
}

impl Drop for OfSource<'_> {
    fn drop(&mut self) {
        self.opens.add_unsynced(self.inode, &self.unsynced);
    }
}

impl FileSystem {
    /// Returns when everything this client wrote to the file is durable, and the names that it gave
    /// it (of a directory: all its changes).
    pub async fn fsync(&self, file: &OpenFile, data_only: bool) -> FsResult<()> {
        self.count(Operation::Fsync);
        let open = &*file.open;
        open.check()?;
        self.commit_names(open.inode(), file.kind()).await?;
        if file.kind() != FileKind::Regular {
            let lost = self.commit(open).await?;
            return self.tell_lost(open, lost);
        }
        self.sync_inode(open, data_only).await
    }

    /// Names of a striped directory are on the MDTs of its shards: these commit, too. So do those
    /// where this client has changed a name of the inode.
    async fn commit_names(&self, inode: InodeNumber, kind: FileKind) -> FsResult<()> {
        let mut to_commit = self.names_elsewhere.of(inode);
        to_commit.leave_out(|mdt| self.targets.mdt(mdt).is_ok_and(|target| target.is_active()));
        // With the era that makes a loss of changes news.
        let mut others = to_commit.mdts.clone();
        let map = match self.directory_maps.may_lack(inode) {
            true if kind == FileKind::Directory => self.directory_map(inode).await?,
            _ => self.directory_maps.get(inode),
        };
        for shard in map.iter().flat_map(|map| &map.shards).filter(|shard| shard.mdt() != inode.mdt()) {
            let known = self.targets.mdt_of(*shard)?.uncommitted().lost();
            others.entry(shard.mdt()).or_insert(known);
        }
        let commits = others.into_iter().map(|(mdt, known)| {
            let to_commit = &to_commit;
            async move {
                let target = self.targets.mdt(mdt)?;
                let lost = target.commit().await?;
                self.names_elsewhere.committed(inode, to_commit, mdt, lost);
                if lost > known { Err(target.lost_changes()) } else { Ok(()) }
            }
        });
        join_all(commits.collect()).await.into_iter().collect()
    }

    /// Returns when everything this client wrote to a regular file is durable.
    pub(crate) async fn sync_inode(&self, open: &OpenInode, data_only: bool) -> FsResult<()> {
        let _turn = open.syncing.lock().await;
        let pending = Pending::take(open);
        // The layout is requested afterwards: pending data are where this layout says, even if it
        // changed a moment ago.
        let layout = self.layout_of(open).await?;
        let (era, lost) = self.flush_and_commit(open, &layout, &pending, data_only).await?;
        // The MDT may have come back without the file meanwhile.
        open.check()?;
        // Nothing is given back: losses are reported once, by the fsync that finds them.
        let here = self.tell_lost(open, lost);
        here.and(self.check_lost(&pending.flushed(), &era))
    }

    /// Losses of the OSTs, and the last loss of the MDT's.
    async fn flush_and_commit(
        &self,
        open: &OpenInode,
        layout: &Layout,
        pending: &Pending<'_>,
        data_only: bool,
    ) -> FsResult<(Eras, u64)> {
        let by_ost = pending.by_ost(layout);
        let commit = async {
            let durable = open.state().record.is_durable();
            if data_only && durable && !pending.touches_mdt() { Ok(0) } else { self.commit(open).await }
        };
        let flush = self.flush_slots(open.inode(), layout, &by_ost, &pending.unsynced);
        let (era, committed) = join_both(flush, commit).await;
        Ok((era?, committed?))
    }

    /// Makes objects durable. Returns the power-loss eras of their OSTs, and of OSTs where data
    /// were written that have been moved since: the move made them durable at their new place, but
    /// only the old OST can tell whether they were lost before they were copied.
    async fn flush_slots(
        &self,
        inode: InodeNumber,
        layout: &Layout,
        by_ost: &ByOst,
        unsynced: &Unsynced,
    ) -> FsResult<Eras> {
        let flushes = by_ost.iter().map(|(&ost, slots)| async move {
            let objects = slots.iter().map(|&slot| layout.object(inode, slot)).collect();
            Ok((ost, self.targets.ost(ost)?.flush_objects(objects).await?))
        });
        let mut era = join_all(flushes.collect()).await.into_iter().collect::<FsResult<Eras>>()?;
        let written = unsynced.keys().filter_map(|(_, location)| match location {
            Location::Ost(ost) => Some(*ost),
            Location::Mdt => None,
        });
        for ost in written {
            let target = self.targets.ost(ost)?;
            // Losses of a target that was taken out of use will not become known.
            if !era.contains_key(&ost) && target.is_active() {
                era.insert(ost, target.era().await?);
            }
        }
        Ok(era)
    }

    /// Makes all objects of a file durable on their OSTs, whichever client wrote them, before a
    /// rename that began at `era` ([`crate::client_state::ClientState::era_noticed`]) puts the file
    /// in the place of another one. Fails, once, if an OST has lost what this client wrote, or has
    /// lost changes since: then what others wrote may be gone as well. OSTs out of use are left
    /// out.
    pub(crate) async fn sync_objects(&self, inode: InodeNumber, layout: &Layout, era: u64) -> FsResult<()> {
        let open = self.client_state.opens.find(inode);
        let _turn = match &open {
            Some(open) => Some(open.syncing.lock().await),
            None => None,
        };
        let source = OfSource::take(&self.client_state.opens, inode);
        let mut by_ost = by_ost(layout, |_| true);
        by_ost.retain(|ost, _| self.targets.ost(*ost).is_ok_and(|target| target.is_active()));
        let flushed = self.flush_slots(inode, layout, &by_ost, &source.unsynced).await?;
        self.check_lost(&source.flushed(), &flushed)?;
        for ost in by_ost.into_keys() {
            let target = self.targets.ost(ost)?;
            if target.last_loss() > era {
                return Err(target.lost_changes());
            }
        }
        Ok(())
    }

    /// Fails if the OST of one of these objects, of which all are flushed now, lost power between
    /// its change and the flush. (What an MDT lost of its objects, it lost with the rest.)
    fn check_lost(&self, flushed: &Unsynced, era: &Eras) -> FsResult<()> {
        for ((_, location), &before) in flushed {
            let Location::Ost(ost) = location else { continue };
            if era.get(ost).is_some_and(|&era| era > before) {
                return Err(self.targets.ost(*ost)?.lost_changes());
            }
        }
        Ok(())
    }

    /// Makes durable what the MDT has acknowledged. Returns the last loss that took changes of this
    /// client before.
    async fn commit(&self, open: &OpenInode) -> FsResult<u64> {
        let before = open.state().record;
        let target = self.targets.mdt_of(open.inode())?;
        let lost = target.commit().await?;
        open.state().record.committed(before);
        Ok(lost)
    }

    /// Fails if this open inode has not learned of this loss yet.
    fn tell_lost(&self, open: &OpenInode, lost: u64) -> FsResult<()> {
        let mut state = open.state();
        let undone = std::mem::take(&mut state.layout_undone);
        if lost <= state.loss_told && !undone {
            return Ok(());
        }
        state.loss_told = lost.max(state.loss_told);
        drop(state);
        Err(self.targets.mdt_of(open.inode())?.lost_changes())
    }

    /// The file's creation and layout are durable afterwards, so that its data will be found. Asked
    /// once per change of them.
    pub(crate) async fn commit_once(&self, open: &OpenInode) -> FsResult<()> {
        if open.state().record.is_durable() {
            return Ok(());
        }
        let lost = self.commit(open).await?;
        self.tell_lost(open, lost)
    }

    /// sync(2): everything acknowledged by any target is durable when it returns; fails once if a
    /// target lost changes of this client before. All targets are tried before the first error is
    /// returned; inactive ones are left out.
    pub async fn sync_all(&self) -> FsResult<()> {
        self.count(Operation::Sync);
        let closed = self.client_state.opens.take_closed();
        let targets: Vec<_> = self.targets.all().into_iter().filter(|target| target.is_active()).collect();
        let sync = |target: &std::sync::Arc<crate::targets::connection::TargetConnection>| {
            let target = target.clone();
            async move {
                let lost = match target.role() {
                    TargetRole::Mdt(_) => {
                        target.settle_closes(&self.seams).await;
                        target.commit().await?
                    }
                    TargetRole::Ost(_) => target.flush().await?,
                };
                if target.uncommitted().is_news(lost) { Err(target.lost_changes()) } else { Ok(()) }
            }
        };
        let outcomes = join_all(targets.iter().map(sync).collect()).await;
        let outcome: FsResult<()> = outcomes.into_iter().collect();
        if outcome.is_err() {
            self.client_state.opens.give_closed_back(closed);
        }
        outcome
    }
}

/// Both outputs; both futures make progress at once.
async fn join_both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    tokio::join!(biased; first, second)
}
