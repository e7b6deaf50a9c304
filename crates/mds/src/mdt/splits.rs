//! Moves the names of directories that get shards, and of shards that give them back, one batch
//! after the other ([`crate::ops::split`], [`crate::ops::merge`]). What a former start has begun
//! goes on. Directories that have become large, hot or small begin here, if they may.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rpc::{
    Call, Import, ImportState,
    message::{MdtReply, MdtRequest, Request, mdt_peer::SplitDirectory, session::feature},
};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, Slot, Stripes, Xid};

use super::{
    Mdt,
    handler::Told,
    split_warnings::{SplitWarnings, advice},
};
use crate::{
    ops::{merge, row::row, split},
    tables::{COUNTERS, counter},
};

/// Pause after something that keeps names from moving: another MDT that is not there, mostly.
const RETRY: Duration = Duration::from_millis(500);
/// Pause for something in doubt.
const MOMENT: Duration = Duration::from_millis(20);

/// Moves names, until the MDT stops.
pub(super) async fn run(mdt: Arc<Mdt>) {
    let mut stopping = mdt.stopping.subscribe();
    let growing = mdt.namespace().volatile.growing.lock().wakeup();
    let shrinking = mdt.namespace().volatile.shrinking.lock().wakeup();
    let hot = mdt.namespace().volatile.hot.lock().wakeup();
    let mut warnings = SplitWarnings::default();
    loop {
        let (begun, grown, shrunk) = (mdt.split_wakeup.notified(), growing.notified(), shrinking.notified());
        let heated = hot.notified();
        begin_large(&mdt).await;
        begin_hot(&mdt).await;
        begin_small(&mdt).await;
        match step_all(&mdt, &mut warnings).await {
            Ok(true) => {}
            Ok(false) => tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = begun => {}
                () = grown => {}
                () = shrunk => {}
                () = heated => {}
            },
            Err(error) => {
                tracing::debug!(target = %mdt.name(), %error, "cannot move names to shards now; trying again later");
                let pause = if matches!(error, FsError::AwaitsMdt(_)) { MOMENT } else { RETRY };
                if !mdt.pause(pause).await {
                    return;
                }
            }
        }
        if *stopping.borrow() {
            return;
        }
    }
}

/// Directories that have become large get shards. What fails is tried again with some more names,
/// or with as many more as make a directory large, if it is the directory that cannot have shards.
async fn begin_large(mdt: &Mdt) {
    loop {
        let Some(directory) = mdt.namespace().volatile.growing.lock().take_due() else { return };
        let look = mdt.look(mdt.principal.client(), |txn| split::when_large(txn, directory)).await;
        let begun = match look {
            Ok((names, None)) => {
                mdt.namespace().volatile.growing.lock().counted(directory, names);
                continue;
            }
            Ok((_, Some(request))) => ask_by_itself(mdt, request).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(_) => tracing::info!(target = %mdt.name(), %directory, "a large directory gets shards"),
            Err(error) => {
                let stays = matches!(error, FsError::TooBig | FsError::NoSpace);
                let names = if stays { 1 } else { mdt.parameters().split_names };
                mdt.namespace().volatile.growing.lock().counted(directory, names);
                tracing::warn!(target = %mdt.name(), %directory, %error, "a large directory cannot get shards")
            }
        }
    }
}

/// Directories in which several clients change much get shards.
async fn begin_hot(mdt: &Mdt) {
    loop {
        let Some(directory) = mdt.namespace().volatile.hot.lock().take_due() else { return };
        let look = mdt.look(mdt.principal.client(), |txn| split::split_by_itself(txn, directory)).await;
        let begun = match look {
            Ok(None) => continue,
            Ok(Some(request)) => ask_by_itself(mdt, request).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(_) => tracing::info!(target = %mdt.name(), %directory, "a hot directory gets shards"),
            Err(error) => tracing::warn!(target = %mdt.name(), %directory, %error, "a hot directory cannot get shards"),
        }
    }
}

/// Directories that have split by themselves and have become small get their names back. What fails
/// is tried again when some more names are gone.
async fn begin_small(mdt: &Mdt) {
    loop {
        let Some(shard) = mdt.namespace().volatile.shrinking.lock().take_due() else { return };
        let look = mdt.look(mdt.principal.client(), |txn| merge::when_small(txn, shard)).await;
        let (names, begun) = match look {
            Ok((names, None)) => (names, None),
            Ok((names, Some(request))) => (names, Some((request.directory, ask_by_itself(mdt, request).await))),
            Err(error) => (1, Some((shard, Err(error)))),
        };
        mdt.namespace().volatile.shrinking.lock().counted(shard, names.max(1));
        match begun {
            None => {}
            Some((directory, Ok(_))) => {
                tracing::info!(target = %mdt.name(), %directory, "a small directory gets its names back from its shards")
            }
            Some((directory, Err(error))) => {
                tracing::info!(target = %mdt.name(), %directory, %error, "a small directory cannot get its names back from its shards now")
            }
        }
    }
}

/// What nobody else has asked for.
async fn ask_by_itself(mdt: &Mdt, request: SplitDirectory) -> FsResult<MdtReply> {
    let directory = request.directory;
    let begins = |directory| mdt.namespace().volatile.growing.lock().begin(directory);
    begins(Some(directory));
    let asked = ask(mdt, request).await;
    begins(None);
    asked
}

impl Mdt {
    /// Whether names of a directory can move while they are used: all MDTs know how that is done.
    /// `NotSupported`: one is of an earlier release; `AwaitsMdt`: one is not there, and it is not
    /// known of which release it is.
    pub(super) async fn may_move_names(&self, request: &SplitDirectory) -> FsResult<()> {
        let SplitDirectory { directory, stripes } = request;
        if stripes.mdts.is_empty() {
            // They move already.
            return Ok(());
        }
        if let [alone] = stripes.mdts[..]
            && alone != directory.mdt()
        {
            // The directory follows its names, and what is named in it follows the directory.
            self.none_is_older(feature::MOVING_NAMES | feature::MOVING_INODES)?;
            return self.all_know(&stripes.mdts, feature::MOVING_NAMES | feature::MOVING_STRIPED);
        }
        let over = if stripes.is_overstriped() { feature::OVERSTRIPED_DIRECTORIES } else { 0 };
        // Inodes on any MDT may follow their names.
        self.none_is_older(feature::MOVING_NAMES | over)?;
        if stripes.mdts[..] != [directory.mdt()] {
            return self.all_know(&stripes.mdts, feature::MOVING_NAMES | over);
        }
        let found = self.look(self.principal.client(), |txn| txn.find_inode(*directory)).await?;
        let map = found.and_then(|found| found.map());
        let shards: Vec<MdtIndex> = map.iter().flat_map(|map| &map.shards).map(|shard| shard.mdt()).collect();
        self.all_know(&shards, feature::RETURNING_NAMES)
    }

    /// Whether an MDT may have several shards of a directory: all that are there know of it.
    pub(super) fn may_overstripe(&self) -> FsResult<()> {
        self.none_is_older(feature::OVERSTRIPED_DIRECTORIES)
    }

    /// Whether none of the MDTs that are there is of an earlier release. Those that are absent may
    /// have no part in it; else they refuse theirs.
    pub(super) fn none_is_older(&self, feature: u64) -> FsResult<()> {
        let proxies = self.mdt_proxies.lock();
        let is_older = |import: &Import| import.state() == ImportState::Full && !import.supports(feature);
        match proxies.values().any(|proxy| is_older(&proxy.connection.import)) {
            true => Err(FsError::NotSupported),
            false => Ok(()),
        }
    }

    fn all_know(&self, mdts: &[MdtIndex], feature: u64) -> FsResult<()> {
        for mdt in mdts.iter().filter(|mdt| **mdt != self.options.index) {
            let Some(proxy) = self.mdt_proxies.lock().get(mdt).cloned() else {
                let is_known = *self.mdts_known.borrow();
                return Err(if is_known { FsError::NoDeviceOrAddress } else { FsError::AwaitsMdt(*mdt) });
            };
            self.knows(&proxy, feature)?;
        }
        Ok(())
    }
}

/// A batch for each directory; false if there is none. The last error, if no names could move.
async fn step_all(mdt: &Mdt, warnings: &mut SplitWarnings) -> FsResult<bool> {
    let directories = directories(mdt).await?;
    warnings.keep(&directories);
    let (mut moved, mut failed) = (directories.is_empty(), None);
    for directory in &directories {
        match step(mdt, *directory).await {
            Ok(()) => {
                warnings.moves(*directory);
                moved = true;
            }
            Err(error) => {
                if warnings.is_due(*directory, &error, mdt.seams.clock.now()) {
                    let advice = advice(&error);
                    tracing::warn!(target = %mdt.name(), %directory, %error, advice, "names of a directory do not move to or from its stripes at present; trying again");
                }
                failed = Some(error);
            }
        }
    }
    match failed {
        Some(error) if !moved => Err(error),
        _ => Ok(!directories.is_empty()),
    }
}

/// Directories whose names move.
async fn directories(mdt: &Mdt) -> FsResult<Vec<InodeNumber>> {
    let mut found = Vec::new();
    mdt.look(mdt.principal.client(), |txn| {
        found.clear();
        txn.scan_prefix(COUNTERS, counter::SPLITS, &mut |key, _| {
            found.extend(counter::parse_split_key(key));
            Ok(true)
        })
    })
    .await?;
    Ok(found)
}

async fn step(mdt: &Mdt, directory: InodeNumber) -> FsResult<()> {
    if ask(mdt, SplitDirectory { directory, stripes: Stripes::default() }).await? == MdtReply::Done {
        tracing::info!(target = %mdt.name(), %directory, "all names of a directory that were to move have moved");
    }
    Ok(())
}

/// A request of this MDT to itself.
async fn ask(mdt: &Mdt, split: SplitDirectory) -> FsResult<MdtReply> {
    let request = MdtRequest::SplitDirectory(Credentials::root(), split);
    let call = Call::plain(mdt.principal.client(), Slot(0), Xid(0), Request::Mdt(request.clone()), Bytes::new());
    // Its future is large.
    Box::pin(mdt.run(&call, &request, &row(&request), &mut Told::default())).await
}
