//! Defaults for new directories, set through a mount that knows of one MDT.

use crate::support;

use std::time::Duration;

use client::control::execute;
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use rt::trace;
use support::{ROOT, real::RealCluster};
use types::{Credentials, DirectoryDefault, FsError, ShardCount};

const STRIPE: u64 = 65536;

fn default(count: u16) -> ControlRequest {
    let count = ShardCount::Exactly(count);
    ControlRequest::SetDirectoryDefault(Some(DirectoryDefault {
        count,
        first: None,
        hash: None,
        levels: None,
        spread_levels: Some(0),
    }))
}

/// Whether there are as many MDTs as it says is known as soon as the MDT has a cluster map.
#[tokio::test]
async fn a_default_is_set_as_soon_as_the_mdt_knows_which_others_there_are() {
    let cluster = RealCluster::new(STRIPE, 1).await;
    let fs = cluster.mount().await;
    let ask = |request| {
        let fs = fs.clone();
        tokio::spawn(async move { execute(&fs, &Credentials::root(), (ROOT, None), request).await })
    };
    let (possible, impossible, killed) = (ask(default(1)), ask(default(2)), ask(default(1)));
    // The MDT itself waits for its map for a while before it answers.
    while fs.awaited_elsewhere(trace::current()).is_empty() {
        assert!(!possible.is_finished() && !impossible.is_finished(), "the MDT has no map");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    // That asks nobody else.
    assert_eq!(ask(ControlRequest::SetDirectoryDefault(None)).await.unwrap(), ControlReply::Done);
    cluster.tell_mdts();
    assert_eq!(possible.await.unwrap(), ControlReply::Done);
    assert_eq!(impossible.await.unwrap(), ControlReply::Error(FsError::NoDeviceOrAddress));
    let ControlReply::Layout { directory_default, .. } = ask(ControlRequest::GetLayout(Subject::This)).await.unwrap()
    else {
        panic!("no layout");
    };
    assert_eq!(directory_default.map(|default| default.count), Some(ShardCount::Exactly(1)));
}
