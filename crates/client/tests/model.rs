//! Random operations of two clients on one striped file, against a vector of bytes. Servers are
//! fakes.

use crate::support;

use proptest::prelude::*;
use rpc::message::mdt::OpenFlags;
use support::{
    Cluster, READ_WRITE, create,
    script::{Client, STRIPE, Step, play, steps},
    size,
};
use types::{Credentials, InodeNumber};

async fn run(stripe_count: u16, script: Vec<(bool, Step)>) {
    let cluster = Cluster::new(STRIPE, stripe_count);
    let first = cluster.mount().await;
    let file = create(&first, "file", READ_WRITE).await;
    let inode: InodeNumber = file.inode();
    let second = cluster.mount().await;
    let other = second.open(&Credentials::root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    let clients = [Client { fs: first, file }, Client { fs: second, file: other }];
    let (model, [one, two]) = play(clients, &script).await;
    one.fs.close(one.file, None).await.unwrap();
    two.fs.close(two.file, None).await.unwrap();
    assert!(cluster.mdt.size_known(inode));
    assert_eq!(size(&one.fs, inode).await, model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn two_clients_see_one_file(
        stripe_count in 1u16..=5,
        script in prop::collection::vec((any::<bool>(), steps()), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(stripe_count, script));
    }

    #[test]
    fn a_sole_writer_knows_the_size_at_close(
        stripe_count in 1u16..=3,
        script in prop::collection::vec(steps(), 1..15),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::new(STRIPE, stripe_count);
            let fs = cluster.mount().await;
            let file = create(&fs, "file", READ_WRITE).await;
            let inode = file.inode();
            let mut client = Client { fs, file };
            let mut model = Vec::new();
            let mut sole = true;
            for step in &script {
                // A second open of the same client, and a truncation by path, count as strangers.
                sole &= !matches!(step, Step::Reopen { .. } | Step::Truncate { by_path: true, .. });
                client.apply(step, 1, &mut model).await;
            }
            let expected = client.fs.get_attributes(inode, None).await.unwrap();
            let before = cluster.requests();
            client.fs.close(client.file, None).await.unwrap();
            if sole {
                assert_eq!(cluster.requests_since(&before).len(), 1, "the close alone");
            }
            assert!(cluster.mdt.size_known(inode));
            let size_known = client.fs.get_attributes(inode, None).await.unwrap();
            assert_eq!((size_known.size, size_known.blocks), (model.len() as u64, expected.blocks));
        });
    }
}
