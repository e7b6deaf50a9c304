//! Load first, then lock: a request that reads from the cold store delays no other request, and an
//! attempt that is given up leaves nothing behind.

use crate::common;
#[path = "../../kv/tests/gated_cold/mod.rs"]
mod gated_cold;

use std::sync::Arc;

use bytes::Bytes;
use common::{CLIENT, KIB, MIB, TestOst, cold_config, object, parameter, parameters, pattern, quiet_options, run};
use gated_cold::GatedCold;
use oss::{Engine, OstDevices, OstOptions};
use rpc::{
    Answer, Call, Handler,
    checksum::checksums,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{Changed, ObjectAttributes, Read, SpaceChange, Write},
    },
};
use rt::memory::MemoryDevice;
use tokio::task::JoinHandle;
use types::{ClientId, FsError, Owner, Slot, Timestamp, Xid};

const BLOCK: u64 = 4096;
/// Small objects, in the tables as a whole.
const SMALL: std::ops::Range<u64> = 0..16;
const SMALL_BYTES: u64 = 50_000;
/// In its host file, with some blocks in the tables.
const LARGE: u64 = 100;
const LARGE_BYTES: u64 = 3 * MIB + 1000;
/// One block in each of very many chunks.
const SPARSE: u64 = 101;
const SPARSE_CHUNKS: u64 = 1500;

/// Without audits, which read what is counted here.
fn unaudited() -> OstOptions {
    OstOptions { audits: false, ..quiet_options() }
}

/// A target with these objects.
async fn target() -> TestOst {
    let target = TestOst::with_tables(1, MemoryDevice::new(), unaudited(), cold_config()).await;
    for number in SMALL {
        target.write(object(number), 0, &pattern(number, 0, SMALL_BYTES)).await;
    }
    target.write(object(LARGE), 0, &pattern(LARGE, 0, LARGE_BYTES)).await;
    target.write(object(LARGE), MIB, &pattern(LARGE + 1, MIB, 20 * KIB)).await;
    target
}

/// The same, with nothing in memory.
async fn cold(target: TestOst) -> (TestOst, GatedCold) {
    target.ost.stop().await.unwrap();
    let cold = GatedCold::new(target.cold.clone());
    let devices = OstDevices {
        objects: Arc::new(target.probe.clone()),
        journal: Arc::new(target.journal.clone()),
        cold: Arc::new(cold.clone()),
        throughput: Arc::default(),
    };
    let ost = common::open(&target.seams, devices, target.options.clone(), target.config.clone()).await;
    cold.take_counts();
    (TestOst { ost, ..target }, cold)
}

fn write(number: u64, offset: u64, data: &[u8]) -> OstRequest {
    let checksums = checksums(offset, data);
    OstRequest::Write(Write {
        object: object(number),
        offset,
        checksums,
        sync: false,
        layout_generation: 9,
        owner: Owner::default(),
    })
}

fn read(number: u64, offset: u64, bytes: u64) -> OstRequest {
    OstRequest::Read(Read { object: object(number), offset, bytes: bytes as u32, layout_generation: 9 })
}

fn space(number: u64, change: SpaceChange) -> OstRequest {
    OstRequest::Space(object(number), change, 9, Owner::default())
}

/// Requests of all kinds, with the data of writes.
fn requests() -> Vec<(OstRequest, Vec<u8>)> {
    let data = |offset, bytes| pattern(77, offset, bytes);
    let writes =
        [(0, 100, 5000), (1, SMALL_BYTES - 10, 300), (LARGE, 2 * MIB - 7, 9000), (LARGE, 4 * MIB, MIB), (200, 0, 10)];
    let mut requests: Vec<_> = writes
        .into_iter()
        .map(|(number, offset, bytes)| (write(number, offset, &data(offset, bytes)), data(offset, bytes)))
        .collect();
    let (offset, bytes) = (5000, 30_000);
    let others = [
        read(2, 10, SMALL_BYTES),
        read(LARGE, MIB - 100, 40_000),
        read(300, 0, MIB),
        OstRequest::Glimpse(SMALL.map(object).collect()),
        space(3, SpaceChange::Truncate { size: 12_345 }),
        space(4, SpaceChange::Truncate { size: 200_000 }),
        space(LARGE, SpaceChange::Truncate { size: 2 * MIB + 1 }),
        space(5, SpaceChange::Punch { offset, bytes }),
        space(LARGE, SpaceChange::Punch { offset, bytes: MIB }),
        space(6, SpaceChange::Zero { offset, bytes, extend: false }),
        space(7, SpaceChange::Zero { offset, bytes: MIB, extend: true }),
        space(8, SpaceChange::Allocate { offset, bytes: MIB, extend: true }),
        space(LARGE, SpaceChange::Allocate { offset: 0, bytes: MIB, extend: false }),
        space(301, SpaceChange::Allocate { offset: 0, bytes: MIB, extend: false }),
        OstRequest::Seek(object(LARGE), 0, false),
        OstRequest::Seek(object(LARGE), 10_000, true),
        OstRequest::Fence(vec![object(9), object(302)], 5),
        OstRequest::Destroy(vec![object(10), object(11), object(303)], None),
        OstRequest::Check(vec![object(LARGE), object(12)]),
        OstRequest::Verify(object(13)),
        OstRequest::Verify(object(LARGE)),
        OstRequest::ListObjects(None, 100),
        OstRequest::Destroy(vec![object(LARGE)], None),
        OstRequest::Evict(ClientId(99), None),
    ];
    requests.extend(others.map(|request| (request, Vec::new())));
    requests
}

fn timeless(attributes: &mut ObjectAttributes) {
    attributes.mtime = Timestamp::default();
}

/// An answer without times.
fn told(answer: Answer) -> (Result<Reply, FsError>, Bytes) {
    let Answer { mut reply, bulk, .. } = answer;
    match &mut reply {
        Ok(Reply::Ost(OstReply::Changed(Changed { before, after }))) => [before, after].into_iter().for_each(timeless),
        Ok(Reply::Ost(OstReply::Attributes(all))) => all.iter_mut().for_each(timeless),
        Ok(Reply::Ost(OstReply::Objects(all))) => all.iter_mut().for_each(|(_, attributes)| timeless(attributes)),
        _ => {}
    }
    (reply, bulk)
}

#[test]
fn requests_read_nothing_on_the_core_that_others_need() {
    run(async {
        let (mut reads, mut loads) = (0, 0);
        for (request, data) in requests() {
            // Each finds everything cold.
            let (cold_target, cold) = cold(target().await).await;
            let answer = cold_target.answer(CLIENT, request.clone(), data.clone().into()).await;
            let (on_core, loaded) = cold.take_counts();
            println!("{on_core} reads, {loaded} loads: {:.60}", format!("{request:?}"));
            reads += on_core;
            loads += loaded;
            assert!(answer.reply.is_ok(), "{request:?} {:?}", answer.reply);
            assert!(loaded < 12, "{loaded} loads: {request:?}");
        }
        println!("{reads} reads on the core of the requests, {loads} loads");
        assert_eq!(reads, 0);
        // What was never in the cold store is not looked for there.
        assert!(loads > 20, "not cold");
    });
}

#[test]
fn requests_for_what_is_cold_leave_what_those_for_what_is_in_memory_leave() {
    run(async {
        let resident = TestOst { config: common::quiet_config(), ..target().await }.restart().await;
        let (cold_target, cold) = cold(target().await).await;
        for (request, data) in requests() {
            let answers =
                [&cold_target, &resident].map(|target| target.answer(CLIENT, request.clone(), data.clone().into()));
            let [of_cold, expected] = answers;
            assert_eq!(told(of_cold.await), told(expected.await), "{request:?}");
        }
        let (reads, loads) = cold.take_counts();
        assert!(loads > 20, "not cold: {loads} loads");
        assert_eq!(reads, 0);
        for target in [&cold_target, &resident] {
            target.ost.work().await;
            target.sync().await;
        }
        for request in (0..400).map(|number| OstRequest::Verify(object(number))) {
            cold_target.done(request).await;
        }
        let list = || OstRequest::ListObjects(None, 1000);
        let [of_cold, expected] = [&cold_target, &resident].map(|target| target.answer(CLIENT, list(), Bytes::new()));
        assert_eq!(told(of_cold.await), told(expected.await));
        use rt::Device;
        assert_eq!(
            cold_target.objects.list("objects/").await.unwrap(),
            resident.objects.list("objects/").await.unwrap()
        );
        let used = async |target: &TestOst| target.objects.space().await.unwrap();
        assert_eq!(used(&cold_target).await.bytes_free, used(&resident).await.bytes_free);
    });
}

/// A request on its way.
fn begin(target: &TestOst, slot: u16, request: OstRequest, data: &[u8]) -> JoinHandle<Answer> {
    let bulk = Bytes::copy_from_slice(data);
    let call = Call::plain(CLIENT, Slot(slot), Xid(1), Request::Ost(request), bulk);
    tokio::spawn(target.ost.clone().handle(call))
}

/// Others run until so many loads wait for the gate.
async fn until_waiting(cold: &GatedCold, loads: u64) {
    while cold.waiting() < loads {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_slow_load_of_one_request_holds_up_no_other() {
    run(async {
        let (target, cold) = cold(target().await).await;
        target.write(object(200), 0, &pattern(1, 0, 10_000)).await;
        // Its records are in memory, its first block is not.
        target.write(object(1), BLOCK, &pattern(2, BLOCK, BLOCK)).await;
        cold.set_open(false);
        let slow = [
            begin(&target, 1, read(0, 0, 100), &[]),
            begin(&target, 2, write(2, 10, &[7; 10]), &[7; 10]),
            begin(&target, 3, OstRequest::Destroy(vec![object(3)], None), &[]),
            begin(&target, 4, space(4, SpaceChange::Truncate { size: 5 }), &[]),
            begin(&target, 5, OstRequest::Glimpse(vec![object(200), object(5)]), &[]),
        ];
        let same_range = begin(&target, 6, read(1, 0, 2 * BLOCK), &[]);
        until_waiting(&cold, 6).await;
        assert_eq!(target.read(object(200), 0, 10_000).await, pattern(1, 0, 10_000));
        target.write(object(200), 5, b"changed").await;
        assert_eq!(target.attributes(object(200)).await.size, 10_000);
        // Also none that needs the same range: the lock is released.
        target.write(object(1), BLOCK, &pattern(3, BLOCK, BLOCK)).await;
        target.sync().await;
        assert!(slow.iter().all(|request| !request.is_finished()) && !same_range.is_finished());
        cold.set_open(true);
        for request in slow {
            let answer = request.await.unwrap();
            assert!(answer.reply.is_ok(), "{:?}", answer.reply);
        }
        let found = same_range.await.unwrap().bulk;
        let first = pattern(1, 0, BLOCK);
        assert!(found[..BLOCK as usize] == first && found[BLOCK as usize..] == pattern(3, BLOCK, BLOCK));
    });
}

/// What changes while it is loaded is seen as it is then.
#[test]
fn a_request_that_waits_for_a_load_sees_what_happened_meanwhile() {
    run(async {
        let (target, cold) = cold(target().await).await;
        // Everything of the object but the block that is written in part is in memory.
        target.write(object(1), BLOCK, &pattern(2, BLOCK, BLOCK)).await;
        cold.set_open(false);
        let slow = begin(&target, 1, write(1, 10, &[7; 10]), &[7; 10]);
        until_waiting(&cold, 1).await;
        let whole = pattern(3, 0, BLOCK);
        let between = target.write(object(1), 0, &whole).await;
        cold.set_open(true);
        let changed = match slow.await.unwrap().reply {
            Ok(Reply::Ost(OstReply::Changed(changed))) => changed,
            other => panic!("{other:?}"),
        };
        assert_eq!((changed.before, changed.after.changes), (between.after, between.after.changes + 1));
        assert!(changed.after.mtime >= between.after.mtime);
        let mut expected = whole;
        expected[10..20].fill(7);
        assert_eq!(target.read(object(1), 0, BLOCK).await, expected);
    });
}

#[test]
fn the_chunks_of_an_object_are_loaded_in_pages() {
    run(async {
        let target = target().await;
        for chunk in 0..SPARSE_CHUNKS {
            target.write(object(SPARSE), chunk * MIB, &pattern(chunk, 0, 100)).await;
        }
        let (target, cold) = cold(target).await;
        let expect = |what: &str, loads_max: u64| {
            let (reads, loads) = cold.take_counts();
            println!("{what}: {reads} reads, {loads} loads");
            assert_eq!(reads, 0, "{what}");
            assert!((1..=loads_max).contains(&loads), "{what}: {loads} loads");
        };
        assert_eq!(target.seek(object(SPARSE), BLOCK, true).await, Some(MIB));
        expect("a search for data", 2);
        assert_eq!(target.seek(object(SPARSE), 5, false).await, Some(BLOCK));
        expect("a search for a hole", 2);
        let punch = SpaceChange::Punch { offset: 0, bytes: MIB * SPARSE_CHUNKS / 2 };
        target.space(object(SPARSE), punch).await.unwrap();
        expect("a punch", 10);
        // Half of it is written back.
        target.ost.work().await;
        // Batches are small, and so many, with these tables.
        expect("write-back", 100);
        target.done(OstRequest::Destroy(vec![object(SPARSE)], None)).await;
        expect("a removal", 10);
        target.done(OstRequest::Verify(object(SPARSE))).await;
        assert_eq!(target.attributes(object(SPARSE)).await, ObjectAttributes::default());
    });
}

/// That says nothing about the data.
#[test]
fn a_scrub_that_cannot_read_the_tables_fails_and_reports_no_damage() {
    run(async {
        let (target, cold) = cold(target().await).await;
        let scrub = async || {
            parameters(&target).set("obdfilter.*.scrub", "start").unwrap();
            while parameter(&target, "scrub") == "scanning" {
                tokio::task::yield_now().await;
            }
            let report = parameter(&target, "scrub_report");
            assert!(report.contains("damaged_blocks   0"), "{report}");
            parameter(&target, "scrub")
        };
        cold.fail_gets(true);
        assert_eq!(scrub().await, "failed");
        cold.fail_gets(false);
        assert_eq!(scrub().await, "completed", "it goes on");
    });
}

/// The groups of the device that an overwrite frees blocks of are loaded together, not one by one
/// in attempts to record it.
#[test]
fn groups_of_overwritten_blocks_are_loaded_together() {
    const GROUPS: u64 = 6;
    const GROUP_BLOCKS: u64 = 32_768;
    const PART: u64 = 64 * KIB;
    run(async {
        let engine = Engine::Blocks { blocks: GROUPS * GROUP_BLOCKS, tables: None };
        let config = kv::Config { memory_bytes: 1 << 10, ..cold_config() };
        let target = TestOst::with_all(engine, 1, MemoryDevice::new(), unaudited(), config).await;
        // From the end: no part is in the window of another.
        for group in (0..GROUPS).rev() {
            parameters(&target).set("obdfilter.*.mb_last_group", &group.to_string()).unwrap();
            target.write(object(1), group * PART, &pattern(1, group * PART, PART)).await;
        }
        let (target, cold) = cold(target).await;
        target.read(object(1), 0, GROUPS * PART).await;
        let (_, loads_of_read) = cold.take_counts();
        assert!(loads_of_read > 0, "nothing was in memory");
        target.write(object(1), 0, &pattern(2, 0, GROUPS * PART)).await;
        let (on_core, loads) = cold.take_counts();
        assert_eq!(on_core, 0);
        assert!(loads <= GROUPS / 2 + 1, "{loads} loads for {GROUPS} groups");
        assert_eq!(target.read(object(1), 0, GROUPS * PART).await, pattern(2, 0, GROUPS * PART));
    });
}
