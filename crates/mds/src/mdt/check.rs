//! Checks (and repairs) the namespace, record by record ([`ops::check`](crate::ops::check)), while
//! other requests are executed in between.

use std::{future::poll_fn, task::Poll};

use rpc::message::mdt::Finding;
use types::{FsError, FsResult};

use super::{Mdt, waiter::Waiter};
use crate::{
    ops::check::{self, CheckReport, Pass},
    transaction::Transaction,
};

/// Records per transaction.
const PAGE: usize = 256;

/// Runs all passes, for a request.
pub(super) async fn run(mdt: &Mdt, waiter: Waiter, repair: bool) -> FsResult<Vec<Finding>> {
    let mut report = CheckReport::new(repair);
    for (table, pass) in check::PASSES {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let keys = mdt.transact(mdt.principal.client(), |txn| txn.page(table, after.as_deref(), PAGE)).await?;
            let Some((last, _)) = keys.last() else { break };
            after = Some(last.clone());
            for (key, _) in &keys {
                check_one(mdt, waiter, (table, key), pass, &mut report).await?;
            }
            yield_now().await;
        }
    }
    Ok(report.into_findings())
}

/// One record in one transaction: as it is now, not as the page showed it.
async fn check_one(
    mdt: &Mdt,
    waiter: Waiter,
    (table, key): (kv::Table, &[u8]),
    pass: Pass,
    report: &mut CheckReport,
) -> FsResult<()> {
    let check = |txn: &mut Transaction<'_>| check::record(txn, report, table, key, pass);
    // A repair waits for the locks of clients that have cached what it changes.
    let checked = mdt.transact_for(Some(waiter), mdt.principal.client(), check).await;
    match checked {
        Err(FsError::Damaged(damage)) => {
            report.damaged(key, damage.to_string());
            Ok(())
        }
        outcome => outcome,
    }
}

/// Lets other tasks of this core run.
pub(super) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
