//! MDTs know the cluster map earlier than clients: what they name may be on a target of which the
//! client does not know yet.

use crate::support;

use std::{sync::Arc, time::Duration};

use support::{Cluster, ROOT, fake_mdt::FakeMdt, others_run};
use types::{Credentials, FileKind, FsError, InodeNumber, MdtIndex};

const STRIPE: u64 = 65536;
const ADDED: MdtIndex = MdtIndex(1);

/// A name that leads to a directory on an MDT which is not in the map.
fn cluster_with_news() -> (Cluster, InodeNumber) {
    let (cluster, mdt) = (Cluster::new(STRIPE, 1), Arc::new(FakeMdt::new(STRIPE, 1, 1)));
    let far = InodeNumber::new(ADDED, 0x200);
    mdt.add(far, FileKind::Directory);
    cluster.add_mdt(ADDED, &mdt);
    cluster.mdt.lead_elsewhere("far", far);
    (cluster, far)
}

#[tokio::test]
async fn a_name_that_leads_to_a_new_mdt_waits_for_the_map_that_has_it() {
    let (cluster, far) = cluster_with_news();
    let fs = cluster.mount().await;
    let lookup = {
        let fs = fs.clone();
        tokio::spawn(async move { fs.lookup(&Credentials::root(), ROOT, b"far").await })
    };
    // One whose caller is killed.
    let killed = fs.clone();
    let killed = tokio::spawn(async move { killed.lookup(&Credentials::root(), ROOT, b"far").await });
    others_run().await;
    assert!(!lookup.is_finished() && !killed.is_finished(), "no map has it");
    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    cluster.publish_mdt(ADDED);
    assert_eq!(lookup.await.unwrap().map(|found| found.inode), Ok(far));
}

#[tokio::test]
async fn it_does_not_wait_for_ever() {
    let (cluster, far) = cluster_with_news();
    let fs = cluster.mount().await;
    fs.set_timeout(Duration::from_millis(200));
    assert_eq!(fs.lookup(&Credentials::root(), ROOT, b"far").await, Err(FsError::NoDevice));
    // A number that nobody has named is not waited for.
    fs.set_timeout(Duration::from_secs(3600));
    assert_eq!(fs.get_attributes(far, None).await, Err(FsError::NoDevice));
}
