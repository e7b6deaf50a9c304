//! Objects in many pieces on a device: which are merged, and that nobody sees it.

use crate::common;

use std::{
    pin::pin,
    task::{Context, Waker},
};

use common::{
    BLOCK, KIB, MIB, TestOst, extents, fill, free, is_filled, object, parameter, parameters, pattern, quiet_config,
    quiet_options, run, statistic_of,
};
use oss::{Engine, OstOptions, directory::device::DEVICE_FILE};
use proptest::prelude::*;
use rpc::message::{OstRequest, ost::SpaceChange};
use rt::memory::MemoryDevice;
use types::SplitMix64;

/// 64 MiB.
const DEVICE: Engine = Engine::on_device(16_384);

/// Enough for everything that tests have.
fn moving() -> OstOptions {
    OstOptions { defrag_bytes_per_second: 1 << 30, ..quiet_options() }
}

async fn target_with(options: OstOptions) -> TestOst {
    target_on(DEVICE, options).await
}

async fn target_on(engine: Engine, options: OstOptions) -> TestOst {
    TestOst::with_all(engine, 1, MemoryDevice::new(), options, quiet_config()).await
}

fn statistic(target: &TestOst, name: &str) -> u64 {
    statistic_of(target, "defrag_stats", name)
}

/// Writes an object in pieces of `piece` bytes: every other one is overwritten, to a new place.
async fn write_in_pieces(target: &TestOst, number: u64, bytes: u64, piece: u64) {
    fill(target, number, number, 0..bytes).await;
    target.sync().await;
    for offset in (0..bytes).step_by(2 * piece as usize) {
        target.write(object(number), offset, &pattern(number, offset, piece)).await;
    }
    target.sync().await;
    assert_eq!(extents(target, number).await as u64, bytes / piece);
}

/// Lets the target merge, and makes what it did durable.
async fn work(target: &TestOst) {
    target.ost.work().await;
    assert_eq!(target.ost.check_device(), Ok(Vec::new()));
    target.sync().await;
}

#[test]
fn what_is_read_in_pieces_becomes_one_and_reads_the_same() {
    run(async {
        let target = target_with(moving()).await;
        write_in_pieces(&target, 1, 8 * MIB, 64 * KIB).await;
        write_in_pieces(&target, 2, 4 * MIB, 64 * KIB).await;
        let (before, left) = (target.attributes(object(1)).await, free(&target).await);
        work(&target).await;
        assert_eq!((extents(&target, 1).await, statistic(&target, "sections_counted")), (128, 0), "nobody read it");
        assert!(is_filled(&target, 1, 1, 0..8 * MIB).await);
        assert_eq!((statistic(&target, "sections_counted"), statistic(&target, "sections_due")), (1, 1));
        work(&target).await;
        assert_eq!(
            (extents(&target, 1).await, extents(&target, 2).await),
            (1, 64),
            "{}",
            parameter(&target, "defrag_stats")
        );
        assert_eq!((statistic(&target, "merges"), statistic(&target, "bytes_moved")), (1, 8 * MIB));
        assert_eq!((statistic(&target, "extents_before"), statistic(&target, "extents_after")), (128, 1));
        assert_eq!(target.attributes(object(1)).await, before, "nothing changed");
        assert_eq!(free(&target).await, left);
        assert!(is_filled(&target, 1, 1, 0..8 * MIB).await);
        work(&target).await;
        assert_eq!(statistic(&target, "merges"), 1, "there is nothing left to be done");
        let target = target.power_loss(7).await;
        assert_eq!(target.ost.recovery().blocks_reset, 0);
        assert!(is_filled(&target, 1, 1, 0..8 * MIB).await && is_filled(&target, 2, 2, 0..4 * MIB).await);
        assert_eq!(extents(&target, 1).await, 1);
        target.done(OstRequest::Verify(object(1))).await;
        target.done(OstRequest::Destroy(vec![object(1), object(2)], None)).await;
        target.sync().await;
        assert_eq!(free(&target).await, 16_384 - 2);
    });
}

/// One object is longer than a section, and than a group of its device has free in one run.
#[test]
fn sections_of_an_object_follow_each_other() {
    run(async {
        let engine = Engine::on_device(2 * 32_768);
        let target = TestOst::with_all(engine, 1, MemoryDevice::new(), moving(), common::cold_config()).await;
        write_in_pieces(&target, 1, 40 * MIB, 64 * KIB).await;
        assert!(is_filled(&target, 1, 1, 0..40 * MIB).await);
        work(&target).await;
        assert_eq!((extents(&target, 1).await, statistic(&target, "merges")), (1, 5));
        assert!(is_filled(&target, 1, 1, 0..40 * MIB).await);
    });
}

#[test]
fn what_pays_for_no_move_stays_where_it_is() {
    run(async {
        let target = target_with(moving()).await;
        write_in_pieces(&target, 1, 8 * MIB, 512 * KIB).await;
        write_in_pieces(&target, 2, 8 * MIB, MIB).await;
        // Small reads need one positioning wherever the blocks are.
        for offset in (0..8 * MIB).step_by(60 * KIB as usize) {
            target.read(object(1), offset, 60 * KIB).await;
        }
        assert_eq!(statistic(&target, "sections_counted"), 0);
        for reading in 1..=2 {
            assert!(is_filled(&target, 1, 1, 0..8 * MIB).await && is_filled(&target, 2, 2, 0..8 * MIB).await);
            work(&target).await;
            let merged = extents(&target, 1).await == 1;
            assert_eq!(merged, reading == 2, "two readings pay for 512 KiB each: {reading}");
        }
        for _ in 0..10 {
            assert!(is_filled(&target, 2, 2, 0..8 * MIB).await);
            work(&target).await;
        }
        assert_eq!(extents(&target, 2).await, 8, "1 MiB each is enough");
        assert!(statistic(&target, "left_no_gain") > 0);
    });
}

#[test]
fn off_means_off() {
    run(async {
        let target = target_with(moving()).await;
        let set = |name: &str, value: &str| parameters(&target).set(&format!("obdfilter.*.{name}"), value);
        for (name, default, value) in [("defrag_mbps", "1024", "7"), ("defrag_busy_pct", "100", "30")] {
            assert_eq!(parameter(&target, name), default);
            set(name, value).unwrap();
            assert_eq!(parameter(&target, name), value);
            assert!(set(name, "-1").is_err());
        }
        assert!(set("defrag_busy_pct", "101").is_err());
        set("defrag_busy_pct", "100").unwrap();
        write_in_pieces(&target, 1, 4 * MIB, 64 * KIB).await;
        assert!(is_filled(&target, 1, 1, 0..4 * MIB).await);
        set("defrag_mbps", "0").unwrap();
        work(&target).await;
        assert!(is_filled(&target, 1, 1, 0..4 * MIB).await);
        work(&target).await;
        set("defrag_mbps", "1024").unwrap();
        work(&target).await;
        assert_eq!((extents(&target, 1).await, statistic(&target, "sections_counted")), (64, 0), "nothing is counted");
        assert!(is_filled(&target, 1, 1, 0..4 * MIB).await);
        work(&target).await;
        assert_eq!(extents(&target, 1).await, 1);
        set("defrag_stats", "0").unwrap();
        assert_eq!(statistic(&target, "merges"), 0);
        let hosted = TestOst::new(1).await;
        let refused = parameters(&hosted).set("obdfilter.*.defrag_mbps", "16").unwrap_err().to_string();
        assert!(refused.contains("no device"), "{refused}");
        assert!(parameter(&hosted, "defrag_stats").contains("no device"));
        assert_eq!(OstOptions::default().defrag_bytes_per_second, 16 << 20);
    });
}

/// New data never lack the space that a move takes.
#[test]
fn a_full_device_is_left_alone() {
    run(async {
        let target = target_with(moving()).await;
        write_in_pieces(&target, 1, 8 * MIB, 64 * KIB).await;
        let rest = free(&target).await * BLOCK;
        fill(&target, 2, 2, 0..rest - 64 * KIB).await;
        assert!(is_filled(&target, 1, 1, 0..8 * MIB).await);
        work(&target).await;
        assert_eq!((statistic(&target, "left_no_run"), statistic(&target, "merges")), (1, 0));
        // A quarter of 4 MiB at a time.
        target.space(object(2), SpaceChange::Punch { offset: 0, bytes: 4 * MIB }).await.unwrap();
        target.sync().await;
        assert!(is_filled(&target, 1, 1, 0..8 * MIB).await);
        work(&target).await;
        let (extents, merges) = (extents(&target, 1).await, statistic(&target, "merges"));
        assert!(extents <= 70 && merges >= 4, "{extents} extents after {merges} merges: what was free in one run");
        fill(&target, 2, 2, 0..4 * MIB).await;
        target.write(object(2), rest - 64 * KIB, &pattern(2, rest - 64 * KIB, 64 * KIB)).await;
        assert_eq!(free(&target).await, 0);
        assert!(is_filled(&target, 1, 1, 0..8 * MIB).await && is_filled(&target, 2, 2, 0..rest).await);
    });
}

#[test]
fn sections_that_are_written_are_left_alone() {
    run(async {
        let target = target_with(moving()).await;
        write_in_pieces(&target, 1, 8 * MIB, 64 * KIB).await;
        // Not written back, as the object is not idle.
        parameters(&target).set("obdfilter.*.writeback_idle_ms", "3600000").unwrap();
        target.write(object(1), 5 * MIB, b"small").await;
        target.read(object(1), 0, 4 * MIB).await;
        work(&target).await;
        assert_eq!((statistic(&target, "left_changing"), statistic(&target, "merges")), (1, 0));
        parameters(&target).set("obdfilter.*.writeback_idle_ms", "1").unwrap();
        work(&target).await;
        target.write(object(1), MIB, &pattern(1, MIB, 64 * KIB)).await;
        target.read(object(1), 0, 4 * MIB).await;
        // The target commits before it merges, so this is flushed by then.
        work(&target).await;
        assert_eq!(statistic(&target, "merges"), 1);
        assert!(is_filled(&target, 1, 1, 0..5 * MIB).await);
        assert_eq!(target.read(object(1), 5 * MIB, 5).await, b"small");
    });
}

#[test]
fn sparse_and_reserved_objects_keep_their_holes_and_their_space() {
    run(async {
        let target = target_with(moving()).await;
        let allocate = SpaceChange::Allocate { offset: 0, bytes: 8 * MIB, extend: true };
        target.space(object(1), allocate).await.unwrap();
        for offset in (0..32).rev().map(|piece| piece * 256 * KIB) {
            target.write(object(1), offset, &pattern(1, offset, 64 * KIB)).await;
        }
        target.sync().await;
        let (before, left, pieces) =
            (target.attributes(object(1)).await, free(&target).await, extents(&target, 1).await);
        let contents = [target.read(object(1), 0, 4 * MIB).await, target.read(object(1), 4 * MIB, 4 * MIB).await];
        work(&target).await;
        assert_eq!(
            (extents(&target, 1).await, statistic(&target, "merges")),
            (32, 1),
            "an extent is without holes: {pieces}"
        );
        assert_eq!(statistic(&target, "bytes_moved"), 2 * MIB);
        assert_eq!((target.attributes(object(1)).await, free(&target).await), (before, left));
        assert!(contents == [target.read(object(1), 0, 4 * MIB).await, target.read(object(1), 4 * MIB, 4 * MIB).await]);
        target.done(OstRequest::Verify(object(1))).await;
        assert_eq!(target.seek(object(1), 0, false).await, Some(64 * KIB));
    });
}

/// The block is named, as when it is read, and stays where it is.
#[test]
fn damaged_blocks_are_not_moved() {
    run(async {
        let target = target_with(moving()).await;
        write_in_pieces(&target, 1, 4 * MIB, 64 * KIB).await;
        assert!(is_filled(&target, 1, 1, 0..4 * MIB).await);
        let lines = target.ost.inspect_object(object(1)).unwrap().join("\n");
        let address: u64 = lines.split_once(" at ").unwrap().1.split_once("..").unwrap().0.parse().unwrap();
        target.objects.flip_bit(DEVICE_FILE, (address + 3) * BLOCK + 17, 3);
        work(&target).await;
        assert_eq!((statistic(&target, "left_failed"), extents(&target, 1).await), (1, 64));
        assert!(target.try_read(object(1), 3 * BLOCK, BLOCK).await.is_err());
        assert_eq!(target.read(object(1), 4 * BLOCK, MIB).await, pattern(1, 4 * BLOCK, MIB));
    });
}

/// What others write stays, and only that is not moved.
#[test]
fn what_changes_during_a_move_is_the_writers() {
    run(async {
        let target = target_with(moving()).await;
        write_in_pieces(&target, 1, 4 * MIB, 64 * KIB).await;
        assert!(is_filled(&target, 1, 1, 0..4 * MIB).await);
        target.probe.hold_flushes();
        {
            let mut turn = pin!(target.ost.work());
            assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the run is flushed");
            target.write(object(1), MIB, &pattern(2, MIB, 128 * KIB)).await;
            target.write(object(1), 3 * MIB + 5, &pattern(2, 3 * MIB + 5, 100)).await;
            target.space(object(1), SpaceChange::Punch { offset: 2 * MIB, bytes: 4 * BLOCK }).await.unwrap();
            target.probe.release_flushes();
            turn.await;
        }
        assert_eq!(statistic(&target, "blocks_changed"), 32 + 1 + 4);
        assert_eq!(statistic(&target, "bytes_moved"), (1024 - 37) * BLOCK);
        let mut expected = pattern(1, 0, 4 * MIB);
        for range in [MIB..MIB + 128 * KIB, 3 * MIB + 5..3 * MIB + 105] {
            let data = pattern(2, range.start, range.end - range.start);
            expected[range.start as usize..range.end as usize].copy_from_slice(&data);
        }
        expected[2 * MIB as usize..][..4 * BLOCK as usize].fill(0);
        assert!(target.read(object(1), 0, 4 * MIB).await == expected);
        work(&target).await;
        let target = target.power_loss(3).await;
        assert!(target.read(object(1), 0, 4 * MIB).await == expected);
        target.done(OstRequest::Verify(object(1))).await;
        // An object that is gone has no blocks to be moved.
        write_in_pieces(&target, 2, MIB, 64 * KIB).await;
        assert!(is_filled(&target, 2, 2, 0..MIB).await);
        target.probe.hold_flushes();
        {
            let mut turn = pin!(target.ost.work());
            assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the run is flushed");
            let mut destroy = pin!(target.done(OstRequest::Destroy(vec![object(2)], None)));
            let is_done = destroy.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            target.probe.release_flushes();
            turn.await;
            if !is_done {
                destroy.await;
            }
        }
        target.sync().await;
        assert_eq!((free(&target).await, statistic(&target, "merges")), (16_384 - 2 - 1020, 0));
    });
}

/// A turn is interrupted at every point at which it waits.
#[test]
fn a_crash_at_any_point_leaves_every_byte() {
    const BYTES: u64 = MIB;
    let small = Engine::on_device(4096);
    let (mut point, mut moved, mut not_moved) = (0, 0, 0);
    let mut ended = false;
    while !ended {
        for seed in 0..5 {
            ended = run(async {
                let target = target_on(small, moving()).await;
                write_in_pieces(&target, 1, BYTES, 128 * KIB).await;
                assert!(is_filled(&target, 1, 1, 0..BYTES).await);
                target.probe.slow.store(true, std::sync::atomic::Ordering::Relaxed);
                let ended = {
                    // By the write, the records are with the kernel; the second turn commits them.
                    let mut turns = pin!(async {
                        target.ost.work().await;
                        tokio::task::yield_now().await;
                        target.write(object(3), 0, b"small").await;
                        tokio::task::yield_now().await;
                        target.ost.work().await;
                        tokio::task::yield_now().await;
                    });
                    (0..=point).any(|_| turns.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready())
                };
                let target = if seed == 0 { target.crash().await } else { target.power_loss(seed).await };
                assert!(is_filled(&target, 1, 1, 0..BYTES).await, "point {point}, seed {seed}");
                target.done(OstRequest::Verify(object(1))).await;
                let pieces = extents(&target, 1).await;
                assert!(pieces == 1 || pieces == 8, "point {point}, seed {seed}: all of it or nothing: {pieces}");
                *if pieces == 1 { &mut moved } else { &mut not_moved } += 1;
                // What was free is free, and what is written there does not harm the object.
                let rest = free(&target).await * BLOCK;
                assert_eq!(rest, (4096 - 2) * BLOCK - BYTES, "point {point}, seed {seed}");
                fill(&target, 2, 2, 0..rest).await;
                assert!(is_filled(&target, 1, 1, 0..BYTES).await, "point {point}, seed {seed}");
                assert_eq!(target.ost.check_device(), Ok(Vec::new()));
                ended
            });
        }
        point += 1;
    }
    println!("{point} points, 5 crashes at each: moved {moved}, not moved {not_moved}");
    assert!(moved > 5 && not_moved > 50, "{point} points: {moved}, {not_moved}");
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, bytes: u64 },
    Truncate { size: u64 },
    Punch { offset: u64, bytes: u64 },
    Read { offset: u64, bytes: u64 },
    Destroy,
    Sync,
    Wait(usize),
}

const SPAN: u64 = 3 * MIB;

fn any_step() -> impl Strategy<Value = Step> {
    let range = || {
        let bytes = prop_oneof![1..2 * BLOCK, 64 * KIB..300 * KIB, Just(64 * KIB)];
        (prop_oneof![0..SPAN, (0..SPAN / BLOCK).prop_map(|block| block * BLOCK)], bytes)
            .prop_map(|(offset, bytes)| (offset, bytes.min(SPAN - offset)))
    };
    prop_oneof![
        6 => range().prop_map(|(offset, bytes)| Step::Write { offset, bytes }),
        1 => (0..SPAN).prop_map(|size| Step::Truncate { size }),
        2 => range().prop_map(|(offset, bytes)| Step::Punch { offset, bytes }),
        2 => (0..SPAN, 64 * KIB..SPAN).prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        1 => Just(Step::Destroy),
        1 => Just(Step::Sync),
        8 => (1usize..40).prop_map(Step::Wait),
    ]
}

/// Carries out steps, and what the object has then.
async fn change(target: &TestOst, contents: &mut Vec<u8>, steps: &[Step]) {
    for (version, step) in (2..).zip(steps) {
        match *step {
            Step::Write { offset, bytes } => {
                let data = pattern(version, offset, bytes);
                target.write(object(1), offset, &data).await;
                let end = (offset + bytes) as usize;
                contents.resize(contents.len().max(end), 0);
                contents[offset as usize..end].copy_from_slice(&data);
            }
            Step::Truncate { size } => {
                target.truncate(object(1), size).await;
                contents.resize(size as usize, 0);
            }
            Step::Punch { offset, bytes } => {
                target.space(object(1), SpaceChange::Punch { offset, bytes }).await.unwrap();
                let end = contents.len().min((offset + bytes) as usize);
                contents[(offset as usize).min(end)..end].fill(0);
            }
            Step::Read { offset, bytes } => {
                let end = contents.len().min((offset + bytes) as usize);
                let found = target.read(object(1), offset, bytes).await;
                assert!(found == contents[(offset as usize).min(end)..end], "{offset}+{bytes}");
            }
            Step::Destroy => {
                target.done(OstRequest::Destroy(vec![object(1)], None)).await;
                contents.clear();
            }
            Step::Sync => target.sync().await,
            Step::Wait(times) => {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 500, ..ProptestConfig::default() })]

    /// Others write while blocks move; then power is lost.
    #[test]
    fn contents_never_change_by_a_move(steps in prop::collection::vec(any_step(), 1..30), seed in any::<u64>()) {
        run(async {
            let target = target_with(moving()).await;
            write_in_pieces(&target, 1, SPAN, 64 * KIB).await;
            assert!(is_filled(&target, 1, 1, 0..SPAN).await);
            target.probe.slow.store(true, std::sync::atomic::Ordering::Relaxed);
            let mut contents = pattern(1, 0, SPAN);
            let turns = async {
                for _ in 0..3 {
                    target.ost.work().await;
                    tokio::task::yield_now().await;
                }
            };
            tokio::join!(turns, change(&target, &mut contents, &steps));
            assert!(target.read(object(1), 0, SPAN).await == contents);
            target.done(OstRequest::Verify(object(1))).await;
            work(&target).await;
            let target = target.power_loss(seed).await;
            assert!(target.read(object(1), 0, SPAN).await == contents);
            target.done(OstRequest::Verify(object(1))).await;
            target.done(OstRequest::Destroy(vec![object(1)], None)).await;
            target.sync().await;
            assert_eq!(free(&target).await, 16_384 - 2);
        });
    }
}

/// Objects of a store that was in use for a while: their numbers and sizes.
struct Aged {
    target: TestOst,
    objects: Vec<(u64, u64)>,
}

impl Aged {
    /// Four objects at a time grow together, parts of random ones are overwritten, and random ones
    /// are removed, so that the device is that full.
    async fn new(percent: u64) -> Self {
        let options = OstOptions { audits: false, defrag_bytes_per_second: 0, ..quiet_options() };
        let mut aged = Self { target: target_with(options).await, objects: Vec::new() };
        let (mut random, mut number) = (SplitMix64(percent), 0);
        for _ in 0..60 {
            let mut growing: Vec<(u64, u64, u64)> = Vec::new();
            for _ in 0..4 {
                number += 1;
                growing.push((number, 0, (1 + random.next_u64() % 24) * 128 * KIB));
            }
            while !growing.is_empty() {
                let next = (random.next_u64() % growing.len() as u64) as usize;
                let (number, size, wanted) = &mut growing[next];
                aged.make_room(&mut random, percent).await;
                fill(&aged.target, *number, *number, *size..*size + 128 * KIB).await;
                *size += 128 * KIB;
                if size == wanted {
                    aged.objects.push((*number, *size));
                    growing.swap_remove(next);
                }
            }
            for _ in 0..24 {
                let (number, size) = aged.objects[(random.next_u64() % aged.objects.len() as u64) as usize];
                let offset = random.next_u64() % (size / (64 * KIB)) * 64 * KIB;
                fill(&aged.target, number, number, offset..offset + 64 * KIB).await;
            }
            aged.target.sync().await;
        }
        aged
    }

    async fn make_room(&mut self, random: &mut SplitMix64, percent: u64) {
        while free(&self.target).await < 16_384 * (100 - percent) / 100 {
            let place = (random.next_u64() % self.objects.len() as u64) as usize;
            let (number, _) = self.objects.swap_remove(place);
            self.target.done(OstRequest::Destroy(vec![object(number)], None)).await;
            self.target.sync().await;
        }
    }

    /// Reads every object, and lets the target merge what it wants to; extents of all objects then.
    async fn read(&self) -> usize {
        for (number, size) in &self.objects {
            assert!(is_filled(&self.target, *number, *number, 0..*size).await);
        }
        loop {
            let before = statistic(&self.target, "merges");
            work(&self.target).await;
            if statistic(&self.target, "merges") == before {
                break;
            }
        }
        self.extents().await
    }

    async fn extents(&self) -> usize {
        let mut sum = 0;
        for (number, _) in &self.objects {
            sum += extents(&self.target, *number).await;
        }
        sum
    }
}

/// The table is in docs/decisions/0060.
#[test]
fn an_aged_store_is_read_in_fewer_pieces() {
    for (percent, fewer) in [(50, 4), (80, 2), (90, 1)] {
        run(async {
            let aged = Aged::new(percent).await;
            let (objects, before) = (aged.objects.len(), aged.extents().await);
            let bytes: u64 = aged.objects.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(aged.read().await, before, "it is off");
            parameters(&aged.target).set("obdfilter.*.defrag_mbps", "1024").unwrap();
            let after = [aged.read().await, aged.read().await, aged.read().await];
            let moved = statistic(&aged.target, "bytes_moved");
            println!(
                "{percent}% full: {objects} objects, {} MiB, {before} extents; {after:?} after 1, 2, 3 readings; {} MiB moved",
                bytes / MIB,
                moved / MIB
            );
            assert!(after[0] < before && after[2] <= before / fewer, "{before}: {after:?}");
            assert!(moved <= 2 * bytes, "{moved} of {bytes}");
        });
    }
}
