//! Deletes inodes whose last name was removed (module `removed`) when their grace period is over.

use std::{sync::Arc, time::Duration};

use types::FsResult;

use super::Mdt;
use crate::removed::BATCH;

/// Pause after the store refused to end some.
const RETRY: Duration = Duration::from_secs(1);

/// Ends removed inodes when their time is over.
pub(crate) async fn run(mdt: Arc<Mdt>) {
    let wakeup = mdt.namespace().volatile.removed.wakeup();
    let mut stopping = mdt.stopping.subscribe();
    loop {
        let next = mdt.namespace().volatile.removed.next_deadline();
        let due = async {
            match next {
                Some(deadline) => mdt.seams.clock.sleep_until(deadline).await,
                None => wakeup.notified().await,
            }
        };
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = due => {}
        }
        if let Err(error) = end_due(&mdt).await {
            tracing::error!(target = %mdt.name(), %error, "cannot finish removing files; retrying");
            if !mdt.pause(RETRY).await {
                return;
            }
        }
    }
}

/// Ends those whose time is over; what cannot be ended comes again.
async fn end_due(mdt: &Mdt) -> FsResult<()> {
    loop {
        let now = mdt.seams.clock.now();
        let mut due = Vec::new();
        let ended = mdt
            .transact(mdt.principal.client(), |txn| {
                txn.must_not_wait();
                // As long as something of them is not in memory nothing is taken out.
                txn.need_inodes(txn.volatile.removed.due(now).into_iter())?;
                due = txn.volatile.removed.take_due(now);
                due.iter().try_for_each(|number| txn.reap(*number).map(drop))
            })
            .await;
        if let Err(error) = ended {
            let removed = &mut mdt.namespace().volatile.removed;
            due.into_iter().for_each(|number| removed.add(number, now));
            return Err(error);
        }
        if due.len() < BATCH {
            return Ok(());
        }
    }
}
