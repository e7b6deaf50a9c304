//! The target on a real directory: local files, I/O threads, the real cold store.

use crate::common;

use std::sync::Arc;

use common::{INDEX, KIB, MIB, TestOst, object, pattern, probe::Probe, quiet_config, quiet_options, run};
use kv::{FjallCold, MemoryCold};
use oss::{Ost, OstDevices, directory::host_file};
use rpc::message::{OstRequest, ost::SpaceChange};
use rt::{
    memory::{MemoryDevice, MemoryTransport, seams},
    real::{Execution, IoThreads, LocalDirectory},
};

fn devices(root: &std::path::Path) -> OstDevices {
    let threads = Arc::new(IoThreads::new("ost_io", 2).unwrap());
    let objects = LocalDirectory::open(root.join("data"), Execution::Pooled, threads).unwrap();
    OstDevices {
        journal: Arc::new(objects.with_execution(Execution::Inline)),
        objects: Arc::new(objects),
        cold: Arc::new(FjallCold::open(&root.join("cold"), Default::default()).unwrap()),
        throughput: Arc::default(),
    }
}

async fn open(root: &std::path::Path) -> TestOst {
    let seams = seams(&MemoryTransport::new(), 1);
    let ost = Ost::open(seams.clone(), devices(root), "stria", INDEX, quiet_options(), quiet_config()).await.unwrap();
    // The memory devices of the common target are not used.
    let objects = MemoryDevice::new();
    let (probe, journal) = (Probe::new(objects.clone()), MemoryDevice::new());
    TestOst {
        seams,
        objects,
        probe,
        journal,
        cold: MemoryCold::new(),
        options: quiet_options(),
        config: quiet_config(),
        engine: oss::Engine::Directory,
        ost,
    }
}

#[test]
fn objects_survive_a_restart_and_give_their_space_back() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run(async {
        let seams = seams(&MemoryTransport::new(), 1);
        Ost::format(&seams, &devices(path), "stria", INDEX, quiet_config()).await.unwrap();
        let target = open(path).await;
        for part in 0..8 {
            target.write(object(1), part * MIB, &pattern(1, part * MIB, MIB)).await;
        }
        target.write(object(1), 3 * MIB + 5, &pattern(2, 0, 100 * KIB)).await;
        target.write(object(2), 10, b"small").await;
        target.space(object(1), SpaceChange::Punch { offset: 5 * MIB, bytes: MIB }).await.unwrap();
        target.space(object(3), SpaceChange::Allocate { offset: 0, bytes: MIB, extend: true }).await.unwrap();
        target.ost.work().await;
        target.ost.stop().await.unwrap();
        drop(target);

        let target = open(path).await;
        assert!(!target.ost.recovery().unclean);
        let mut expected = pattern(1, 0, 8 * MIB);
        expected[3 * (1 << 20) + 5..][..100 << 10].copy_from_slice(&pattern(2, 0, 100 * KIB));
        expected[5 << 20..6 << 20].fill(0);
        for part in 0..2 {
            let at = part * 4 * MIB;
            assert!(target.read(object(1), at, 4 * MIB).await == expected[at as usize..][..4 << 20]);
        }
        assert_eq!(target.read(object(2), 0, 100).await, b"\0\0\0\0\0\0\0\0\0\0small");
        assert_eq!(target.read(object(3), 0, 4 * MIB).await, vec![0; 1 << 20]);
        for number in 1..=3 {
            target.done(OstRequest::Verify(object(number))).await;
        }
        let host = path.join("data").join(host_file(object(1)));
        assert!(host.exists());
        target.done(OstRequest::Destroy(vec![object(1), object(2), object(3)], None)).await;
        target.sync().await;
        assert!(!host.exists());
        target.ost.stop().await.unwrap();
    });
}
