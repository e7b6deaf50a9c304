//! Moves the names of directories that get shards, one batch after the other
//! ([`crate::ops::split`]). What a former start has begun goes on.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rpc::{
    Call,
    message::{MdtReply, MdtRequest, Request, mdt_peer::SplitDirectory},
};
use types::{Credentials, FsError, FsResult, InodeNumber, Slot, Stripes, Xid};

use super::{Mdt, handler::Told};
use crate::{
    ops::row::row,
    tables::{COUNTERS, counter},
};

/// Pause after something that keeps names from moving: another MDT that is not there, mostly.
const RETRY: Duration = Duration::from_millis(500);
/// Pause for something in doubt.
const MOMENT: Duration = Duration::from_millis(20);

/// Moves names, until the MDT stops.
pub(super) async fn run(mdt: Arc<Mdt>) {
    let mut stopping = mdt.stopping.subscribe();
    loop {
        let begun = mdt.split_wakeup.notified();
        match step_all(&mdt).await {
            Ok(true) => {}
            Ok(false) => tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = begun => {}
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
    let split = SplitDirectory { directory, stripes: Stripes::default() };
    let request = MdtRequest::SplitDirectory(Credentials::root(), split);
    let call = Call::plain(mdt.principal.client(), Slot(0), Xid(0), Request::Mdt(request.clone()), Bytes::new());
    // Its future is large.
    match Box::pin(mdt.run(&call, &request, &row(&request), &mut Told::default())).await? {
        MdtReply::Done => {
            tracing::info!(target = %mdt.name(), %directory, "all names of a directory are in its shards");
            Ok(())
        }
        _ => Ok(()),
    }
}
