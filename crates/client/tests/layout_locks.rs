//! Layouts under a lock: what is not written yet is read without asking the MDT, and what another
//! client writes there is found at once. Servers are the shipped ones.

use crate::support;

use rpc::message::mdt::{OpenFlags, open_flag};
use support::{READ_WRITE, asked_for_layout, create, read, real::RealCluster, write};
use types::Credentials;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_hole_is_read_under_the_lock_and_growth_is_seen_at_once() {
    let cluster = RealCluster::automatic(2).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    write(&one, &file, 0, &[1; 1000]).await;
    let reader = two.open(&Credentials::root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    for mebibyte in [1, 64, 2000, 1] {
        assert_eq!(read(&two, &reader, mebibyte * MIB, 100).await, []);
    }
    assert_eq!(read(&two, &reader, 0, 4096).await, [1; 1000]);
    assert_eq!(asked_for_layout(&two), 0, "the lock came with the open");
    for (number, mebibyte) in [(1, 1), (2, 64), (3, 2000)] {
        write(&one, &file, mebibyte * MIB, &[7; 100]).await;
        assert_eq!(read(&two, &reader, mebibyte * MIB, 4096).await, [7; 100]);
        assert_eq!(read(&two, &reader, (mebibyte + 1) * MIB, 4096).await, []);
        assert!(asked_for_layout(&two) <= number, "once for each time that the layout grew");
    }
    assert!(asked_for_layout(&two) > 0);
}

/// Without locks, a hole is not believed before the MDT was asked.
#[tokio::test]
async fn without_locks_the_mdt_is_asked_at_a_hole() {
    let cluster = RealCluster::automatic(2).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    two.set_cached_locks_max(types::MdtIndex(0), 0).unwrap();
    let file = create(&one, "file", READ_WRITE).await;
    write(&one, &file, 0, &[1; 1000]).await;
    let reader = two.open(&Credentials::root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    assert_eq!(read(&two, &reader, MIB, 100).await, []);
    assert!(asked_for_layout(&two) > 0);
    write(&one, &file, 64 * MIB, &[7; 100]).await;
    assert_eq!(read(&two, &reader, 64 * MIB, 4096).await, [7; 100]);
}

/// Both write where the layout has to grow, each while the other has the lock on it.
#[tokio::test]
async fn writers_that_grow_a_file_in_turn_find_each_others_data() {
    let cluster = RealCluster::automatic(3).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    let other = two.open(&Credentials::root(), file.inode(), OpenFlags(READ_WRITE)).await.unwrap();
    for (number, mebibyte) in [1, 64, 1024, 20_000].into_iter().enumerate() {
        let (near, far) = ([number as u8; 5000], [number as u8 + 100; 5000]);
        let at = mebibyte * MIB;
        let (first, second) = tokio::join!(write(&one, &file, at, &near), write(&two, &other, at + MIB, &far));
        let ((), ()) = (first, second);
        assert_eq!(read(&two, &other, at, 5000).await, near);
        assert_eq!(read(&one, &file, at + MIB, 5000).await, far);
    }
}
