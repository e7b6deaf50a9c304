//! Moves the names of directories that get shards, one batch after the other
//! ([`crate::ops::split`]). What a former start has begun goes on. Directories that have become
//! large begin here, if they may.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rpc::{
    Call,
    message::{MdtReply, MdtRequest, Request, mdt_peer::SplitDirectory, session::feature},
};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, Slot, Stripes, Xid};

use super::{Mdt, handler::Told, mdt_proxy::MdtProxy};
use crate::{
    ops::{row::row, split},
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
    loop {
        let (begun, grown) = (mdt.split_wakeup.notified(), growing.notified());
        begin_large(&mdt).await;
        match step_all(&mdt).await {
            Ok(true) => {}
            Ok(false) => tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = begun => {}
                () = grown => {}
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
            Ok((_, Some(request))) => match mdt.know_moving_names(&request.stripes.mdts) {
                true => ask(mdt, request).await,
                // It would refuse the names.
                false => Err(FsError::NotSupported),
            },
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

impl Mdt {
    /// Whether these MDTs can have shards to which names move while they are used. One that is not
    /// there, or of an earlier release, is not known to.
    fn know_moving_names(&self, mdts: &[MdtIndex]) -> bool {
        let proxies = self.mdt_proxies.lock();
        let knows = |mdt: &MdtIndex| {
            let supports = |proxy: &Arc<MdtProxy>| proxy.connection.import.supports(feature::MOVING_NAMES);
            *mdt == self.options.index || proxies.get(mdt).is_some_and(supports)
        };
        mdts.iter().all(knows)
    }
}

/// A batch for each directory; false if there is none. The last error, if no names could move.
async fn step_all(mdt: &Mdt) -> FsResult<bool> {
    let directories = directories(mdt).await?;
    let (mut moved, mut failed) = (directories.is_empty(), None);
    for directory in &directories {
        match step(mdt, *directory).await {
            Ok(()) => moved = true,
            Err(error) => failed = Some(error),
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
        tracing::info!(target = %mdt.name(), %directory, "all names of a directory are in its shards");
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
