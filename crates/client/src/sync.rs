//! Making data and metadata durable.
//!
//! fsync flushes the objects this client wrote since the last fsync of the open inode; the first fsync flushes all objects
//! of a file that existed before the open, because a program may write, close, open again and fsync. Together with them
//! the MDT commits, so that the file and its layout are there to find the data by.
//!
//! Lost writes are not silent: if a target restarted between a write and the fsync, the write may have been lost with its
//! memory. The object's modification time tells: it is not older than that write if the write survived. If it is, the
//! fsync fails, once, and the caller knows that data written before are gone.
//!
//! One fsync of an open inode at a time: the next one finds what the one before could not make durable, and does not return
//! before what that took over is.

use std::collections::BTreeMap;

use bytes::Bytes;
use layout::{Layout, Location};
use rpc::message::{MdtReply, MdtRequest, OstReply, OstRequest, mgs::TargetRole};
use types::{FileKind, FsError, FsResult, ObjectId, OstIndex};

use crate::{
    FileSystem, OpenFile,
    join::join_all,
    objects::holder_of,
    open_inode::{OpenInode, Unsynced},
    statistics::Operation,
    target::unexpected,
};

/// What one fsync takes over from the open inode. Given back when dropped before [`Pending::flushed`]: the fsync failed, or
/// its caller gave up.
struct Pending<'a> {
    open: &'a OpenInode,
    unsynced: BTreeMap<u32, Unsynced>,
    /// All objects.
    whole: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.open.state();
        for (slot, unsynced) in std::mem::take(&mut self.unsynced) {
            state.dirty(slot, unsynced.restarts, unsynced.mtime);
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
    fn flushed(mut self) -> BTreeMap<u32, Unsynced> {
        self.whole = false;
        std::mem::take(&mut self.unsynced)
    }

    /// Slots to flush, by OST.
    fn by_ost(&self, layout: &Layout) -> BTreeMap<OstIndex, Vec<u32>> {
        let mut by_ost: BTreeMap<OstIndex, Vec<u32>> = BTreeMap::new();
        for (slot, location) in layout.objects().filter(|(slot, _)| self.whole || self.unsynced.contains_key(slot)) {
            match location {
                Location::Ost(ost) => by_ost.entry(ost).or_default().push(slot),
                // Durable with the MDT's commit.
                Location::Mdt => {}
            }
        }
        by_ost
    }

    /// Whether data on the MDT were written.
    fn touches_mdt(&self, layout: &Layout) -> bool {
        self.unsynced.keys().any(|slot| layout.location(*slot) == Some(Location::Mdt))
    }
}

impl FileSystem {
    /// Returns when everything this client wrote to the file is durable (of a directory: all its changes).
    pub async fn fsync(&self, file: &OpenFile, data_only: bool) -> FsResult<()> {
        self.count(Operation::Fsync);
        let open = &*file.open;
        open.check()?;
        if file.kind() != FileKind::Regular {
            return self.mdt_done(open.inode(), MdtRequest::Commit).await;
        }
        let _turn = open.syncing.lock().await;
        let pending = Pending::take(open);
        // Asked for afterwards: what is pending lies where this layout says, even if it changed a moment ago.
        let layout = self.layout_of(open).await?;
        self.flush_and_commit(open, &layout, &pending, data_only).await?;
        // Nothing is given back: a loss is reported once, to the fsync that finds it.
        self.check_lost(open, &layout, &pending.flushed()).await
    }

    async fn flush_and_commit(
        &self,
        open: &OpenInode,
        layout: &Layout,
        pending: &Pending<'_>,
        data_only: bool,
    ) -> FsResult<()> {
        let by_ost = pending.by_ost(layout);
        let flushes = by_ost.iter().map(|(ost, slots)| {
            let objects = slots.iter().map(|&slot| ObjectId { inode: open.inode(), slot }).collect();
            self.flush_ost(*ost, objects)
        });
        let commit = async {
            if data_only && !pending.touches_mdt(layout) {
                self.commit_once(open).await
            } else {
                self.commit(open).await
            }
        };
        let (flushed, committed) = join_both(join_all(flushes.collect()), commit).await;
        flushed.into_iter().collect::<FsResult<()>>()?;
        committed
    }

    async fn flush_ost(&self, ost: OstIndex, objects: Vec<ObjectId>) -> FsResult<()> {
        match self.targets.ost(ost)?.ost(OstRequest::Sync(objects), Bytes::new()).await {
            Ok((OstReply::Done, _)) => Ok(()),
            Ok((reply, _)) => Err(unexpected(reply)),
            Err(FsError::Evicted) => Err(FsError::Stale),
            Err(error) => Err(error),
        }
    }

    /// Fails if a write from before a restart of its target is not there any more.
    async fn check_lost(&self, open: &OpenInode, layout: &Layout, flushed: &BTreeMap<u32, Unsynced>) -> FsResult<()> {
        for (&slot, unsynced) in flushed {
            let Some(location) = layout.location(slot) else { continue };
            let target = self.targets.get(holder_of(open.inode(), location))?;
            if target.restarts() == unsynced.restarts {
                continue;
            }
            let figures = self.glimpse_some(open.inode(), layout, vec![slot]).await?;
            if figures.mtime < unsynced.mtime {
                let detail = format!("unsynced writes to inode {} were lost when the target restarted", open.inode());
                return Err(FsError::Device { target: target.import().target().to_owned(), detail });
            }
        }
        Ok(())
    }

    /// sync(2): everything acknowledged by any target is durable when it returns. All targets are tried before the first
    /// error is returned; inactive ones are left out.
    pub async fn sync_all(&self) -> FsResult<()> {
        self.count(Operation::Sync);
        let targets: Vec<_> = self.targets.all().into_iter().filter(|target| target.is_active()).collect();
        let sync = |target: &std::sync::Arc<crate::target::Target>| {
            let target = target.clone();
            async move {
                match target.role() {
                    TargetRole::Mdt(_) => match target.mdt(MdtRequest::Commit).await? {
                        MdtReply::Done => Ok(()),
                        reply => Err(unexpected(reply)),
                    },
                    TargetRole::Ost(ost) => self.flush_ost(ost, Vec::new()).await,
                }
            }
        };
        let outcomes = join_all(targets.iter().map(sync).collect()).await;
        outcomes.into_iter().collect()
    }
}

/// Both outputs; both futures make progress at once.
async fn join_both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    tokio::join!(biased; first, second)
}
