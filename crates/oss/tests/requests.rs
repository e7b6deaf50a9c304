//! What an OST answers, request by request, and what it does when its device fails.

use crate::common;

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use common::{CLIENT, INDEX, KIB, MIB, TestOst, devices, object, on_all, pattern, quiet_config, quiet_options, run};
use oss::{OpenError, Ost, OstOptions, directory::host_file, inspect};
use rpc::{
    Handler,
    checksum::checksums,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{CHECK_OBJECTS_MAX, ObjectAttributes, Read, SpaceChange, Write},
    },
};
use rt::{Device, memory::MemoryDevice};
use types::{ClientId, FsError, OstIndex, Owner};

const BLOCK: u64 = 4096;

fn is_on_host(target: &TestOst, number: u64) -> bool {
    target.objects.list(&host_file(object(number))).now_or_never().is_some_and(|files| !files.unwrap().is_empty())
}

trait Now: Future + Sized {
    /// Operations on memory are ready at once.
    fn now_or_never(self) -> Option<Self::Output> {
        match std::pin::pin!(self).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}

impl<F: Future> Now for F {}

#[test]
fn a_missing_object_is_empty_and_reading_does_not_make_it() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        assert_eq!(target.read(object(1), 0, MIB).await, b"");
        assert_eq!(target.attributes(object(1)).await, Default::default());
        assert_eq!(target.seek(object(1), 0, true).await, None);
        assert_eq!(target.truncate(object(1), 0).await.after, Default::default());
        target.space(object(1), SpaceChange::Punch { offset: 0, bytes: MIB }).await.unwrap();
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        target.done(OstRequest::Verify(object(1))).await;
        assert_eq!(target.ask(OstRequest::ListObjects(None, 10)).await, Ok(OstReply::Objects(vec![])));
    });
}

#[test]
fn as_many_objects_are_checked_at_once_as_an_answer_can_tell_of() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let most = CHECK_OBJECTS_MAX as usize;
        assert_eq!(target.ask(OstRequest::Check(vec![object(1); most])).await, Ok(OstReply::Damage(vec![])));
        assert_eq!(target.ask(OstRequest::Check(vec![object(1); most + 1])).await, Err(FsError::Invalid));
    });
}

#[test]
fn small_data_stay_inline_and_large_data_go_to_a_host_file() {
    run(async {
        let target = TestOst::new(1).await;
        let small = target.write(object(1), 0, &pattern(1, 0, 3901)).await;
        assert_eq!((small.after.size, small.after.blocks), (3901, 8));
        target.write(object(2), 0, &pattern(2, 0, MIB)).await;
        target.ost.work().await;
        assert!(!is_on_host(&target, 1), "small objects stay inline");
        assert!(is_on_host(&target, 2));
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, 3901));
        assert_eq!(target.read(object(2), 100, 70000).await, pattern(2, 100, 70000));
        // Small writes to an object that became large are written back.
        for offset in (0..20).map(|write| write * 47008) {
            target.write(object(3), offset, &pattern(3, offset, 47008)).await;
        }
        assert!(!is_on_host(&target, 3));
        let target = target.restart().await;
        target.ost.work().await;
        assert!(is_on_host(&target, 3));
        assert_eq!(target.read(object(3), 0, MIB).await, pattern(3, 0, 20 * 47008));
    });
}

#[test]
fn inline_data_beyond_the_budget_are_written_back_without_being_asked() {
    run(async {
        let options =
            OstOptions { write_back_bytes: MIB, write_back_idle: Duration::from_secs(3600), ..quiet_options() };
        let target = TestOst::with(1, MemoryDevice::new(), options).await;
        for offset in (0..32).map(|write| write * 32 * KIB) {
            target.write(object(1), offset, &pattern(1, offset, 32 * KIB)).await;
        }
        tokio::task::yield_now().await;
        assert!(!is_on_host(&target, 1), "not beyond the budget yet");
        target.write(object(1), MIB, &pattern(1, MIB, KIB)).await;
        while !is_on_host(&target, 1) {
            tokio::task::yield_now().await;
        }
        assert_eq!(target.read(object(1), 0, 2 * MIB).await, pattern(1, 0, MIB + KIB));
    });
}

#[test]
fn a_truncated_file_written_anew_goes_in_place_after_one_commit() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.sync().await;
        target.truncate(object(1), 0).await;
        let lines = || async { target.ost.inspect_object(object(1)).unwrap().join("\n") };
        target.write(object(1), 0, &pattern(2, 0, 64 * KIB)).await;
        assert!(lines().await.contains("0..16 inline"), "{}", lines().await);
        target.sync().await;
        target.write(object(1), 64 * KIB, &pattern(2, 64 * KIB, 64 * KIB)).await;
        assert!(lines().await.contains("16..32 in place since epoch"), "{}", lines().await);
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(2, 0, 128 * KIB));
    });
}

#[test]
fn damaged_transfers_are_refused_and_change_nothing() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        target.write(object(1), 0, &pattern(1, 0, 8192)).await;
        let data = pattern(2, 0, 8192);
        let mut sums = checksums(0, &data);
        sums[1] ^= 1;
        let write = Write {
            object: object(1),
            offset: 0,
            checksums: sums,
            sync: false,
            layout_generation: 0,
            owner: Owner::default(),
        };
        let answer = target.answer(CLIENT, OstRequest::Write(write.clone()), data.clone().into()).await;
        assert_eq!(answer.reply.unwrap_err(), FsError::Transfer);
        let write = Write { checksums: vec![1], ..write };
        let answer = target.answer(CLIENT, OstRequest::Write(write), data.into()).await;
        assert!(matches!(answer.reply.unwrap_err(), FsError::Protocol(_)));
        assert_eq!(target.read(object(1), 0, 8192).await, pattern(1, 0, 8192));
        assert_eq!(target.ost.statistics().counters().damaged_transfers, 1);
    });
}

#[test]
fn a_flipped_bit_on_the_device_is_an_error_with_the_objects_name() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.sync().await;
        target.objects.flip_bit(&host_file(object(1)), 5 * BLOCK + 17, 3);
        let expected = FsError::Corrupt { object: object(1), ost: INDEX, offset: 5 * BLOCK };
        assert_eq!(target.try_read(object(1), 0, MIB).await, Err(expected.clone()));
        assert_eq!(target.try_read(object(1), 5 * BLOCK + 100, 1).await, Err(expected.clone()));
        assert_eq!(target.ask(OstRequest::Verify(object(1))).await, Err(expected.clone()));
        // Neither are the damaged bytes used to make new data, nor does a restart take them for
        // data that never arrived.
        assert_eq!(target.write_with(object(1), 5 * BLOCK, b"x", false).await.unwrap_err(), expected);
        let target = target.power_loss(1).await;
        assert_eq!(target.try_read(object(1), 0, MIB).await, Err(expected));
        assert_eq!(target.read(object(1), 0, 5 * BLOCK).await, pattern(1, 0, 5 * BLOCK), "others are fine");
        assert_eq!(target.read(object(1), 6 * BLOCK, BLOCK).await, pattern(1, 6 * BLOCK, BLOCK));
        // A whole new block heals it.
        target.write(object(1), 5 * BLOCK, &pattern(2, 5 * BLOCK, BLOCK)).await;
        assert_eq!(target.read(object(1), 5 * BLOCK, BLOCK).await, pattern(2, 5 * BLOCK, BLOCK));
        target.done(OstRequest::Verify(object(1))).await;
    });
}

#[test]
fn rot_in_a_synced_file_shows_even_if_power_is_lost_before_the_commit() {
    run(async {
        let target = TestOst::new(1).await;
        target.write_with(object(1), 0, &pattern(1, 0, 64 * KIB), true).await.unwrap();
        target.objects.flip_bit(&host_file(object(1)), 0, 0);
        let target = target.power_loss(1).await;
        assert_eq!(target.ost.recovery().blocks_reset, 0);
        let expected = FsError::Corrupt { object: object(1), ost: INDEX, offset: 0 };
        assert_eq!(target.try_read(object(1), 0, MIB).await, Err(expected));
    });
}

#[test]
fn a_full_device_refuses_writes_whole_and_takes_deletes() {
    run(async {
        let options = OstOptions { reserve_bytes: 512 * KIB, ..quiet_options() };
        let target = TestOst::with(1, MemoryDevice::with_capacity(4 * MIB), options).await;
        let mut written = 0;
        let refused = loop {
            let data = pattern(1, written * 256 * KIB, 256 * KIB);
            match target.write_with(object(1), written * 256 * KIB, &data, false).await {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, FsError::NoSpace);
        assert_eq!(written, 14, "up to the reserve");
        assert_eq!(target.read(object(1), 0, 4 * MIB).await, pattern(1, 0, 14 * 256 * KIB), "nothing half-written");
        assert_eq!(target.ost.statistics().counters().no_space, 1);
        let OstReply::Space(space, _) = target.ask(OstRequest::StatFs).await.unwrap() else { panic!() };
        assert_eq!((space.bytes_total, space.bytes_available), (4 * MIB, 0));
        target.truncate(object(1), MIB).await;
        target.sync().await;
        target.write(object(1), MIB, &pattern(1, MIB, 256 * KIB)).await;
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        target.sync().await;
        assert_eq!(target.objects.space().await.unwrap().bytes_free, 4 * MIB);
    });
}

/// So that what a full target refuses can continue elsewhere at a block's boundary.
#[test]
fn a_full_device_fills_up_the_block_that_an_object_ends_in() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, 64 * KIB + 100)).await;
        target.write(object(2), 0, &pattern(2, 0, 64 * KIB)).await;
        // It asks the device again.
        let target = target.restart().await;
        target.objects.set_capacity(0);
        for (number, offset, bytes) in
            [(1, 0, 100), (1, 64 * KIB + 100, 4096), (1, 68 * KIB, 1), (2, 64 * KIB, 1), (3, 0, 1)]
        {
            let data = pattern(number, offset, bytes);
            let refused = target.write_with(object(number), offset, &data, false).await;
            assert_eq!(refused.unwrap_err(), FsError::NoSpace, "object {number} at {offset}");
        }
        target.write(object(1), 64 * KIB + 100, &pattern(1, 64 * KIB + 100, 50)).await;
        target.write(object(1), 64 * KIB + 150, &pattern(1, 64 * KIB + 150, 3946)).await;
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, 68 * KIB));
        let fence = OstRequest::Fence(vec![object(1), object(2)], 3);
        target.done(fence).await;
        assert_eq!(target.try_read(object(2), 0, 1).await, Err(FsError::LayoutChanged));
        let target = target.restart().await;
        assert_eq!(target.try_read(object(1), 0, 1).await, Err(FsError::LayoutChanged), "it outlasts the process");
    });
}

/// All of the first object.
async fn whole(target: &TestOst) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let piece = target.read(object(1), data.len() as u64, MIB).await;
        if piece.is_empty() {
            return data;
        }
        data.extend(piece);
    }
}

/// New contents need space only until they have replaced the old ones.
#[test]
fn what_a_full_device_holds_can_be_overwritten_again_and_again() {
    run(async {
        let options = OstOptions { reserve_bytes: MIB, ..quiet_options() };
        let target = TestOst::with(1, MemoryDevice::with_capacity(16 * MIB), options).await;
        let piece = 256 * KIB;
        let mut written = 0;
        while target.write_with(object(1), written * piece, &pattern(1, written * piece, piece), false).await.is_ok() {
            written += 1;
        }
        assert_eq!(written, 60, "up to the reserve");
        for seed in 2..4 {
            for number in 0..written {
                // Not at the boundaries of blocks.
                let offset = (number * piece).saturating_sub(1000);
                target.write(object(1), offset, &pattern(seed, offset, piece)).await;
            }
            let end = (written - 1) * piece + piece - 1000;
            assert!(whole(&target).await[..end as usize] == pattern(seed, 0, end), "seed {seed}");
        }
        // What also touches blocks without data is refused as a whole.
        let (last, before) = ((written - 1) * piece, whole(&target).await);
        let refused = target.write_with(object(1), last, &pattern(7, last, 2 * piece), false).await;
        assert_eq!(refused.unwrap_err(), FsError::NoSpace);
        target.sync().await;
        let target = target.power_loss(1).await;
        assert!(whole(&target).await == before);
        target.done(OstRequest::Verify(object(1))).await;
    });
}

/// As long as they wait they are in the tables, and a checkpoint of them may take twice their
/// bytes.
#[test]
fn data_that_wait_for_write_back_are_no_reason_to_refuse_others() {
    run(async {
        let reserve = 256 * KIB;
        let config = kv::Config {
            device_reserve_bytes: reserve,
            dirty_bytes: 64 << 20,
            memory_bytes: 128 << 20,
            segments_max: 256,
            ..quiet_config()
        };
        let target = TestOst::with(1, MemoryDevice::with_capacity(8 * MIB), quiet_options()).await;
        target.ost.stop().await.unwrap();
        let devices = devices(&target.probe, &target.journal, &target.cold);
        let ost = Ost::open(target.seams.clone(), devices, "stria", INDEX, quiet_options(), config).await.unwrap();
        let target = TestOst { ost, ..target };
        // In place, so that what is written over it waits to go there.
        target.write(object(1), 0, &pattern(1, 0, 2 * MIB)).await;
        target.sync().await;
        for piece in 0..64 {
            target.write(object(1), piece * 32 * KIB, &pattern(2, piece * 32 * KIB, 32 * KIB)).await;
        }
        // Room for what follows besides the reserve, but not besides twice what waits.
        let space = target.objects.space().await.unwrap();
        target.objects.set_capacity(space.bytes_total - space.bytes_available + reserve + MIB);
        let OstReply::Space(space, _) = target.ask(OstRequest::StatFs).await.unwrap() else { panic!() };
        assert_eq!(space.bytes_available, 0, "all that waits counts");
        target.write(object(2), 0, &pattern(3, 0, 256 * KIB)).await;
        let allocate = SpaceChange::Allocate { offset: 0, bytes: 256 * KIB, extend: true };
        target.space(object(3), allocate).await.unwrap();
        assert_eq!(target.read(object(1), 0, 2 * MIB).await, pattern(2, 0, 2 * MIB));
        let refused = target.write_with(object(4), 0, &pattern(4, 0, MIB), false).await;
        assert_eq!(refused.unwrap_err(), FsError::NoSpace, "it has no room");
    });
}

#[test]
fn a_device_that_fills_up_behind_the_targets_back_is_noticed_by_the_write() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, 64 * KIB)).await;
        target.objects.set_capacity(0);
        let write = target.write_with(object(1), 64 * KIB, &pattern(1, 64 * KIB, 64 * KIB), false).await;
        assert_eq!(write.unwrap_err(), FsError::NoSpace);
        let allocate = SpaceChange::Allocate { offset: 0, bytes: MIB, extend: true };
        assert_eq!(target.space(object(1), allocate).await.unwrap_err(), FsError::NoSpace);
        assert_eq!(target.attributes(object(1)).await.size, 64 * KIB);
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, 64 * KIB));
        // What is refused leaves no object behind: its file may be placed elsewhere.
        assert_eq!(target.space(object(2), allocate).await.unwrap_err(), FsError::NoSpace);
        let write = target.write_with(object(3), 0, &pattern(3, 0, 64 * KIB), false).await;
        assert_eq!(write.unwrap_err(), FsError::NoSpace);
        let listed = target.ask(OstRequest::ListObjects(None, 10)).await.unwrap();
        assert!(matches!(listed, OstReply::Objects(objects) if objects.len() == 1), "object 1 alone");
        target.objects.set_capacity(64 * MIB);
        let keep_size = SpaceChange::Allocate { offset: 0, bytes: MIB, extend: false };
        target.space(object(2), keep_size).await.unwrap();
        let reserved = target.attributes(object(2)).await;
        assert_eq!((reserved.size, reserved.blocks), (0, 2048));
        assert_ne!(reserved.mtime, ObjectAttributes::default().mtime, "its time tells that it exists");
    });
}

/// The bytes are in the host file, the record is not made.
#[test]
fn a_write_that_ends_behind_its_bytes_leaves_no_file_behind() {
    run(async {
        let target = TestOst::new(1).await;
        target.probe.slow.store(true, Ordering::Relaxed);
        let data = pattern(1, 0, 64 * KIB);
        let mut write = Box::pin(target.write_with(object(1), 0, &data, false));
        while !is_on_host(&target, 1) {
            assert!((&mut write).now_or_never().is_none(), "the test means to give up half way");
        }
        drop(write);
        target.probe.slow.store(false, Ordering::Relaxed);
        let target = target.restart().await;
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
        assert!(!is_on_host(&target, 1));
        assert!(!target.restart().await.ost.recovery().unclean);
    });
}

/// Nobody looks for unreferenced files after a clean end.
#[test]
fn a_file_whose_removal_failed_or_was_lost_does_not_stay() {
    run(async {
        for seed in 1..=16 {
            let target = TestOst::new(seed).await;
            for number in 1..=2 {
                target.write(object(number), 0, &pattern(1, 0, 64 * KIB)).await;
            }
            target.sync().await;
            target.done(OstRequest::Destroy(vec![object(1)], None)).await;
            target.probe.fail_removals.store(true, Ordering::Relaxed);
            target.sync().await;
            target.probe.fail_removals.store(false, Ordering::Relaxed);
            assert!(is_on_host(&target, 1), "the test means it to stay for now");
            let target = swept(target.restart().await).await;
            assert!(!is_on_host(&target, 1));
            target.done(OstRequest::Destroy(vec![object(2)], None)).await;
            target.ost.stop().await.unwrap();
            let target = target.power_loss(seed).await;
            assert!(!target.ost.recovery().unclean);
            assert!(!is_on_host(&target, 2), "seed {seed}");
        }
    });
}

/// Lets the sweep have its time.
async fn swept(target: TestOst) -> TestOst {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    target
}

/// A part of the bytes was written before there was no more room.
#[test]
fn a_write_that_fails_half_way_gives_its_space_back() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, 64 * KIB)).await;
        let used = target.objects.space().await.unwrap();
        target.objects.set_capacity(used.bytes_total - used.bytes_free + 32 * KIB);
        target.probe.slow.store(true, Ordering::Relaxed);
        let write = target.write_with(object(1), 64 * KIB, &pattern(1, 64 * KIB, 64 * KIB), false).await;
        assert_eq!(write.unwrap_err(), FsError::NoSpace);
        assert_eq!(target.objects.space().await.unwrap().bytes_free, 32 * KIB);
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, 64 * KIB));
    });
}

#[test]
fn what_a_failed_write_gives_back_is_not_reserved_any_more() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, 64 * KIB)).await;
        let allocate = SpaceChange::Allocate { offset: 64 * KIB, bytes: 64 * KIB, extend: true };
        target.space(object(1), allocate).await.unwrap();
        let used = target.objects.space().await.unwrap();
        target.objects.set_capacity(used.bytes_total - used.bytes_free + 32 * KIB);
        target.probe.slow.store(true, Ordering::Relaxed);
        let write = target.write_with(object(1), 64 * KIB, &pattern(1, 64 * KIB, 128 * KIB), false).await;
        assert_eq!(write.unwrap_err(), FsError::NoSpace);
        assert_eq!(target.objects.space().await.unwrap().bytes_free, 96 * KIB);
        assert_eq!(target.attributes(object(1)).await.blocks, 128);
        target.done(OstRequest::Verify(object(1))).await;
    });
}

/// One bad sector is one block that cannot be read, not a target that does not open.
#[test]
fn a_target_with_an_unreadable_unflushed_block_opens() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        let (objects, journal, cold) = (target.objects.crash(), target.journal.crash(), target.cold.crash());
        let probe = common::probe::Probe::new(objects.clone());
        *probe.unreadable.lock() = Some((host_file(object(1)), 5 * BLOCK));
        let ost = common::open(&target.seams, devices(&probe, &journal, &cold), quiet_options(), quiet_config()).await;
        assert_eq!((ost.recovery().blocks_reset, ost.era()), (0, 0));
        let target = TestOst { objects, probe, journal, cold, ost, ..target };
        assert_eq!(target.read(object(1), 0, 5 * BLOCK).await, pattern(1, 0, 5 * BLOCK));
        let read = target.try_read(object(1), 0, MIB).await;
        assert!(matches!(read, Err(FsError::Device { .. })), "{read:?}");
        assert_eq!(target.read(object(1), 6 * BLOCK, MIB).await, pattern(1, 6 * BLOCK, MIB - 6 * BLOCK));
    });
}

/// Resetting what never arrived takes no room that is kept for giving space back.
#[test]
fn a_target_with_missing_blocks_opens_on_a_full_device() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.objects.flip_bit(&host_file(object(1)), 5 * BLOCK, 0);
        let (objects, journal, cold) = (target.objects.crash(), target.journal.crash(), target.cold.crash());
        journal.set_capacity(0);
        let devices = devices(&common::probe::Probe::new(objects), &journal, &cold);
        let config = kv::Config { device_reserve_bytes: MIB, ..quiet_config() };
        let ost = Ost::open(target.seams.clone(), devices, "stria", INDEX, quiet_options(), config).await.unwrap();
        assert_eq!(ost.recovery().blocks_reset, 1);
    });
}

#[test]
fn a_read_only_device_is_a_read_only_target_that_still_reads() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.sync().await;
        target.objects.set_read_only(true);
        let write = target.write_with(object(2), 0, &pattern(1, 0, MIB), false).await;
        assert_eq!(write.unwrap_err(), FsError::ReadOnly);
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, MIB));
    });
}

#[test]
fn the_first_failed_flush_ends_all_changes_and_reopening_recovers() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.sync().await;
        target.write(object(2), 0, &pattern(2, 0, MIB)).await;
        target.probe.fail_flushes.store(true, Ordering::Relaxed);
        let sync = target.ask(OstRequest::Sync(vec![object(2)])).await;
        assert!(matches!(sync, Err(FsError::Device { ref target, .. }) if target == "stria-OST0003"), "{sync:?}");
        target.probe.fail_flushes.store(false, Ordering::Relaxed);
        for request in [OstRequest::Sync(vec![]), OstRequest::Destroy(vec![object(1)], None)] {
            let refused = target.ask(request).await.unwrap_err();
            assert!(refused.to_string().contains("the disk is gone"), "{refused}");
        }
        assert!(target.write_with(object(3), 0, b"x", false).await.is_err());
        assert!(target.ost.condition().read_only);
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, MIB), "reading goes on");
        let target = target.power_loss(3).await;
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, MIB));
        target.write(object(3), 0, b"x").await;
    });
}

/// The kernel shows what it failed to write, as clean: a flush after the start has nothing to do,
/// and tells no error.
#[test]
fn what_a_failed_flush_left_in_the_cache_is_written_again() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.probe.fail_flushes.store(true, Ordering::Relaxed);
        assert!(target.ask(OstRequest::Sync(vec![object(1)])).await.is_err());
        target.objects.fail_writeback();
        let target = target.crash().await;
        assert_eq!(target.ost.recovery().blocks_reset, 0);
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, MIB));
        let target = target.power_loss(1).await;
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(1, 0, MIB), "it was taken for durable");
    });
}

/// The same, but the kernel dropped a block meanwhile: nobody would know, since the host did not
/// end.
#[test]
fn a_block_found_missing_is_a_loss_even_if_the_host_lives_on() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.objects.flip_bit(&host_file(object(1)), 5 * BLOCK, 0);
        let target = target.crash().await;
        assert_eq!((target.ost.recovery().blocks_reset, target.ost.era()), (1, 1));
        let mut expected = pattern(1, 0, MIB);
        expected[5 * BLOCK as usize..6 * BLOCK as usize].fill(0);
        assert_eq!(target.read(object(1), 0, MIB).await, expected);
        let target = target.crash().await;
        assert_eq!((target.ost.recovery().blocks_reset, target.ost.era()), (0, 1), "it is durable, and counts once");
        target.write(object(2), 0, &pattern(2, 0, MIB)).await;
        target.objects.flip_bit(&host_file(object(2)), 5 * BLOCK, 0);
        let target = target.power_loss(1).await;
        assert_eq!(target.ost.era(), 2, "a start counts once, whatever the reasons");
    });
}

/// The change waits for its record; a fence waits for the change.
#[test]
fn an_allocation_that_fails_takes_no_fence_with_it() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(2), 0, &pattern(1, 0, 64 * KIB)).await;
        target.objects.set_capacity(0);
        target.probe.slow.store(true, Ordering::Relaxed);
        let allocate = SpaceChange::Allocate { offset: 0, bytes: MIB, extend: true };
        let fence = async {
            for _ in 0..1000 {
                if target.probe.allocating.load(Ordering::Relaxed) {
                    break;
                }
                tokio::task::yield_now().await;
            }
            assert!(target.probe.allocating.load(Ordering::Relaxed), "the device is asked");
            target.done(OstRequest::Fence(vec![object(1)], 5)).await;
        };
        let (allocated, ()) = tokio::join!(target.space(object(1), allocate), fence);
        assert_eq!(allocated.unwrap_err(), FsError::NoSpace);
        assert_eq!(target.try_read(object(1), 0, 1).await, Err(FsError::LayoutChanged));
    });
}

#[test]
fn sync_of_some_objects_flushes_only_their_files() {
    run(async {
        let target = TestOst::new(1).await;
        for number in 1..=3 {
            target.write(object(number), 0, &pattern(number, 0, 64 * KIB)).await;
        }
        target.write(object(4), 0, b"inline").await;
        target.probe.take_flushes();
        target.done(OstRequest::Sync(vec![object(2), object(4)])).await;
        target.done(OstRequest::Sync(vec![object(2)])).await;
        assert_eq!(target.probe.take_flushes(), [(host_file(object(2)), 1)].into());
        target.sync().await;
        let flushed: Vec<String> = target.probe.take_flushes().into_keys().collect();
        assert_eq!(flushed, [host_file(object(1)), host_file(object(3))], "the second is flushed already");
    });
}

#[test]
fn concurrent_writes_to_one_range_never_mix_and_readers_see_one_of_them() {
    on_all(async |engine| {
        const WRITERS: u64 = 6;
        let target = std::sync::Arc::new(TestOst::on(engine, 1).await);
        target.probe.slow.store(true, Ordering::Relaxed);
        for (offset, bytes) in [(0, 128 * KIB), (300, 100_000), (BLOCK, 3000)] {
            let written = |version: u64| pattern(version, offset, bytes);
            target.write(object(1), offset, &written(0)).await;
            let mut tasks = Vec::new();
            for number in 0..3 * WRITERS {
                let target = target.clone();
                tasks.push(tokio::spawn(async move {
                    if number % 3 == 0 {
                        target.write(object(1), offset, &pattern(number / 3, offset, bytes)).await;
                    } else {
                        let found = target.read(object(1), offset, bytes).await;
                        let known = (0..WRITERS).any(|version| found == pattern(version, offset, bytes));
                        assert!(known, "a mixture of writes was read");
                    }
                    if number == WRITERS {
                        target.ost.work().await;
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let last = target.read(object(1), offset, bytes).await;
            assert!((0..WRITERS).any(|version| last == written(version)));
            target.done(OstRequest::Verify(object(1))).await;
        }
    });
}

/// A truncation is durable, and the host file is to be cut where the object was, far after the
/// file's end. Meanwhile a write below the cut makes the file longer.
#[test]
fn cutting_a_host_file_takes_nothing_that_is_written_meanwhile() {
    run(async {
        let target = std::sync::Arc::new(TestOst::new(1).await);
        target.write(object(1), 0, &pattern(1, 0, 64 * KIB)).await;
        target.truncate(object(1), 4 * MIB).await;
        target.sync().await;
        target.truncate(object(1), 2 * MIB).await;
        target.probe.slow.store(true, Ordering::Relaxed);
        let committing = tokio::spawn({
            let target = target.clone();
            async move { target.sync().await }
        });
        for part in 0..20 {
            let offset = (part + 1) * 64 * KIB;
            target.write(object(1), offset, &pattern(2, offset, 64 * KIB)).await;
        }
        committing.await.unwrap();
        target.done(OstRequest::Verify(object(1))).await;
        assert!(target.read(object(1), 64 * KIB, 20 * 64 * KIB).await == pattern(2, 64 * KIB, 20 * 64 * KIB));
    });
}

#[test]
fn writes_to_neighbouring_ranges_of_one_chunk_all_arrive() {
    run(async {
        let target = std::sync::Arc::new(TestOst::new(1).await);
        target.probe.slow.store(true, Ordering::Relaxed);
        // Neighbours share a block at each seam, large ones go in place, small ones inline.
        let parts: Vec<(u64, u64)> = (0..8).map(|part| (part * 80_000, 80_000)).collect();
        let mut tasks = Vec::new();
        for (offset, bytes) in parts {
            let target = target.clone();
            tasks.push(tokio::spawn(async move {
                target.write(object(1), offset, &pattern(1, offset, bytes)).await;
                target.write(object(1), offset + 1000, &pattern(2, offset + 1000, 500)).await;
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut expected = pattern(1, 0, 640_000);
        for part in 0..8 {
            let at = part * 80_000 + 1000;
            expected[at..at + 500].copy_from_slice(&pattern(2, at as u64, 500));
        }
        assert!(target.read(object(1), 0, MIB).await == expected);
        target.done(OstRequest::Verify(object(1))).await;
        assert_eq!(target.attributes(object(1)).await.blocks, 640_000u64.div_ceil(BLOCK) * 8);
    });
}

#[test]
fn changes_during_write_back_win() {
    run(async {
        let target = std::sync::Arc::new(TestOst::new(1).await);
        for offset in (0..8).map(|part| part * 32 * KIB) {
            target.write(object(1), offset, &pattern(1, offset, 32 * KIB)).await;
        }
        target.probe.slow.store(true, Ordering::Relaxed);
        let worker = {
            let target = target.clone();
            tokio::spawn(async move { target.ost.work().await })
        };
        while !is_on_host(&target, 1) {
            tokio::task::yield_now().await;
        }
        target.write(object(1), 0, &pattern(2, 0, 5000)).await;
        target.space(object(1), SpaceChange::Punch { offset: 64 * KIB, bytes: 128 * KIB }).await.unwrap();
        // Small writes, which ask for no commit: what is tainted now must not be copied in the next
        // round.
        target.write(object(1), 64 * KIB, &pattern(3, 64 * KIB, 32 * KIB)).await;
        target.write(object(1), 96 * KIB, &pattern(3, 96 * KIB, 32 * KIB)).await;
        assert!(!worker.is_finished(), "the test means to change what is being copied");
        worker.await.unwrap();
        target.sync().await;
        let mut expected = pattern(1, 0, 256 * KIB);
        expected[..5000].copy_from_slice(&pattern(2, 0, 5000));
        expected[64 << 10..192 << 10].fill(0);
        expected[64 << 10..128 << 10].copy_from_slice(&pattern(3, 64 * KIB, 64 * KIB));
        let target = std::sync::Arc::into_inner(target).unwrap();
        assert!(target.read(object(1), 0, MIB).await == expected);
        let target = target.power_loss(5).await;
        assert!(target.read(object(1), 0, MIB).await == expected);
        target.done(OstRequest::Verify(object(1))).await;
    });
}

#[test]
fn an_object_destroyed_during_write_back_stays_destroyed() {
    run(async {
        let target = std::sync::Arc::new(TestOst::new(1).await);
        for offset in (0..8).map(|part| part * 32 * KIB) {
            target.write(object(1), offset, &pattern(1, offset, 32 * KIB)).await;
        }
        target.probe.slow.store(true, Ordering::Relaxed);
        let worker = {
            let target = target.clone();
            tokio::spawn(async move { target.ost.work().await })
        };
        while !is_on_host(&target, 1) {
            tokio::task::yield_now().await;
        }
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        assert!(!worker.is_finished(), "the test means to destroy what is being copied");
        worker.await.unwrap();
        target.sync().await;
        assert_eq!(target.ask(OstRequest::ListObjects(None, 10)).await, Ok(OstReply::Objects(vec![])));
        assert!(!is_on_host(&target, 1));
    });
}

#[test]
fn an_evicted_client_is_refused_for_good_after_its_last_request_ended() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let late = ClientId(99);
        target.probe.slow.store(true, Ordering::Relaxed);
        let data = pattern(1, 0, MIB);
        let write = Write {
            object: object(1),
            offset: 0,
            checksums: checksums(0, &data),
            sync: false,
            layout_generation: 0,
            owner: Owner::default(),
        };
        let mut running = Box::pin(target.answer(late, OstRequest::Write(write.clone()), data.clone().into()));
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(running.as_mut().poll(context).is_pending())).await
        );
        let mut evict = Box::pin(target.ask(OstRequest::Evict(late, None)));
        for _ in 0..3 {
            let pending =
                std::future::poll_fn(|context| std::task::Poll::Ready(evict.as_mut().poll(context).is_pending())).await;
            assert!(pending, "a request of the client is still running");
        }
        running.await.reply.expect("it began before the eviction");
        assert_eq!(evict.await, Ok(OstReply::Done));
        let refused = target.answer(late, OstRequest::Write(write.clone()), data.clone().into()).await;
        assert_eq!(refused.reply.unwrap_err(), FsError::Evicted);
        let refused = target.answer(late, OstRequest::Ping, Bytes::new()).await;
        assert_eq!(refused.reply.unwrap_err(), FsError::Evicted, "a client that only pings must learn it, too");
        let target = target.power_loss(1).await;
        let refused = target.answer(late, OstRequest::Write(write), data.into()).await;
        assert_eq!(refused.reply.unwrap_err(), FsError::Evicted);
        target.write(object(1), 0, b"others may").await;
    });
}

#[test]
fn data_and_holes_are_found() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        target.write(object(1), 2 * BLOCK, &pattern(1, 0, BLOCK)).await;
        target.write(object(1), 3 * MIB + 100, &pattern(1, 0, 100)).await;
        let end = 3 * MIB + 200;
        for (offset, data, found) in [
            (0, true, Some(2 * BLOCK)),
            (2 * BLOCK + 5, true, Some(2 * BLOCK + 5)),
            (3 * BLOCK, true, Some(3 * MIB)),
            (0, false, Some(0)),
            (2 * BLOCK, false, Some(3 * BLOCK)),
            (3 * MIB, false, Some(end)),
            (end, false, None),
            (end, true, None),
        ] {
            assert_eq!(target.seek(object(1), offset, data).await, found, "{offset} {data}");
        }
        target.truncate(object(1), 10 * MIB).await;
        assert_eq!(target.seek(object(1), 4 * MIB, true).await, None);
        assert_eq!(target.seek(object(1), 4 * MIB, false).await, Some(4 * MIB));
    });
}

#[test]
fn requests_out_of_bounds_are_refused() {
    run(async {
        let target = TestOst::new(1).await;
        let too_large = Read { object: object(1), offset: 0, bytes: u32::MAX, layout_generation: 0 };
        assert_eq!(target.ask(OstRequest::Read(too_large)).await, Err(FsError::Invalid));
        assert_eq!(target.write_with(object(1), u64::MAX - 1, b"xyz", false).await.unwrap_err(), FsError::FileTooLarge);
        assert_eq!(
            target.write_with(object(1), i64::MAX as u64, b"x", false).await.unwrap_err(),
            FsError::FileTooLarge
        );
        for change in [
            SpaceChange::Truncate { size: u64::MAX },
            SpaceChange::Allocate { offset: u64::MAX, bytes: 1, extend: true },
            SpaceChange::Punch { offset: 1, bytes: u64::MAX },
            SpaceChange::Zero { offset: i64::MAX as u64, bytes: 1, extend: true },
        ] {
            assert_eq!(target.space(object(1), change).await.unwrap_err(), FsError::FileTooLarge, "{change:?}");
        }
        let nothing = SpaceChange::Punch { offset: 0, bytes: 0 };
        assert_eq!(target.space(object(1), nothing).await.unwrap_err(), FsError::Invalid);
        let empty = target.write_with(object(1), 5, b"", false).await.unwrap();
        assert_eq!(empty.after, Default::default());
        assert_eq!(target.read(object(1), u64::MAX - 5, 100).await, b"");
        let misdirected = Request::Mgs(rpc::message::MgsRequest::Ping);
        let call = rpc::Call::plain(CLIENT, Default::default(), Default::default(), misdirected, Bytes::new());
        assert!(matches!(target.ost.clone().handle(call).await.reply, Err(FsError::Protocol(_))));
    });
}

#[test]
fn very_large_sparse_objects_cost_what_they_hold() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let far = 16 << 40;
        target.write(object(1), far, b"end").await;
        assert_eq!(target.attributes(object(1)).await.blocks, 8);
        assert_eq!(target.read(object(1), far - 4, 100).await, b"\0\0\0\0end");
        assert_eq!(target.seek(object(1), 0, true).await, Some(far));
        target.space(object(1), SpaceChange::Punch { offset: 0, bytes: far }).await.unwrap();
        target.truncate(object(1), 1 << 40).await;
        let attributes = target.attributes(object(1)).await;
        assert_eq!((attributes.size, attributes.blocks), (1 << 40, 0));
    });
}

#[test]
fn removals_larger_than_a_batch_happen_in_parts() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        // Every second block of 64 MiB, so that each is a key to delete.
        for chunk in 0..64u64 {
            for block in (0..256).step_by(8) {
                target.write(object(1), chunk * MIB + block * BLOCK, &[1; 4096]).await;
            }
        }
        assert_eq!(target.attributes(object(1)).await.blocks, 64 * 32 * 8);
        target.truncate(object(1), 10).await;
        let attributes = target.attributes(object(1)).await;
        assert_eq!((attributes.size, attributes.blocks), (10, 8));
        target.done(OstRequest::Verify(object(1))).await;
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        assert_eq!(target.ask(OstRequest::ListObjects(None, 10)).await, Ok(OstReply::Objects(vec![])));
    });
}

#[test]
fn parameters_are_read_and_set() {
    run(async {
        let target = TestOst::new(1).await;
        let tree = rt::parameters::ParameterTree::new();
        target.ost.register_parameters(&tree).unwrap();
        let set = |name: &str, value: &str| tree.set(&format!("obdfilter.*.{name}"), value);
        let get = |name: &str| tree.get(&format!("obdfilter.*.{name}")).unwrap()[0].1.clone();
        for (name, value) in [("uuid", "1"), ("degraded", "2"), ("commit_interval_ms", "0"), ("writeback_mb", "x")] {
            assert!(set(name, value).is_err(), "{name}");
        }
        for (name, value) in [("degraded", "1"), ("no_create", "1"), ("readonly", "1"), ("writeback_mb", "7")] {
            set(name, value).unwrap();
            assert_eq!(get(name), value);
        }
        let condition = target.ost.condition();
        assert!(condition.degraded && condition.no_create && condition.read_only);
        assert_eq!(target.write_with(object(1), 0, b"x", false).await.unwrap_err(), FsError::ReadOnly);
        set("readonly", "0").unwrap();
        target.write(object(1), 0, b"x").await;
        assert!(get("stats").contains("write_bytes               1 samples [bytes] 1\n"), "{}", get("stats"));
        set("stats", "clear").unwrap();
        assert_eq!(target.ost.statistics().counters().write.requests, 0);
        assert_eq!(get("kbytestotal"), (1u64 << 40).to_string());
        target.ost.unregister_parameters(&tree);
        assert!(tree.list("obdfilter").is_err());
    });
}

#[test]
fn a_target_is_formatted_once_and_opened_as_what_it_is() {
    run(async {
        let target = TestOst::new(1).await;
        target.ost.stop().await.unwrap();
        let devices = devices(&target.probe, &target.journal, &target.cold);
        let again = Ost::format(&target.seams, &devices, "stria", INDEX, quiet_config()).await;
        assert!(matches!(again, Err(OpenError::AlreadyFormatted(name)) if name == "stria-OST0003"));
        let open = |fsname: &'static str, index| {
            Ost::open(target.seams.clone(), devices.clone(), fsname, index, quiet_options(), quiet_config())
        };
        for (fsname, index) in [("other", INDEX), ("stria", OstIndex(4))] {
            assert!(matches!(open(fsname, index).await, Err(OpenError::OtherTarget { .. })));
        }
        let ost = open("stria", INDEX).await.unwrap();
        assert_eq!(ost.uuid(), target.ost.uuid());
        let fresh = TestOst::new(2).await;
        assert_ne!(fresh.ost.uuid(), ost.uuid());
        let empty = common::devices(
            &common::probe::Probe::new(MemoryDevice::new()),
            &MemoryDevice::new(),
            &kv::MemoryCold::new(),
        );
        let none = Ost::open(target.seams.clone(), empty, "stria", INDEX, quiet_options(), quiet_config()).await;
        assert!(matches!(none, Err(OpenError::NotFormatted)));
        let bad = Ost::format(&target.seams, &devices, "far too long", INDEX, quiet_config()).await;
        assert!(matches!(bad, Err(OpenError::FsName(_))));
    });
}

/// What an MDT goes by when it chooses where new objects go.
#[test]
fn what_a_target_has_to_do_adds_up_while_it_does_it() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let work = async || match target.ask(OstRequest::StatFs).await.unwrap() {
            OstReply::Space(_, condition) => condition.work_us,
            other => panic!("{other:?}"),
        };
        let before = work().await;
        target.ost.limit().set_latency(Duration::from_millis(100));
        tokio::join!(target.write(object(1), 0, b"x"), target.write(object(2), 0, b"y"));
        let written = work().await;
        // Of 100 ms each, the second one after the first, less what a device that was idle has
        // saved up.
        assert!(written - before >= 150_000, "{} us", written - before);
        rt::clock::sleep(&*target.seams.clock, Duration::from_millis(10)).await;
        assert_eq!(work().await, written, "idle");
        target.read(object(1), 0, 1).await;
        assert!(work().await - written >= 50_000);
        assert_eq!(target.ost.condition().work_us, 0, "no client is told that did not ask");
    });
}

#[test]
fn services_and_inspection() {
    run(async {
        let target = TestOst::new(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        let read = OstRequest::Read(Read { object: object(1), offset: 0, bytes: 1, layout_generation: 0 });
        assert_eq!(target.ost.service(&Request::Ost(read)), "ost_io");
        assert_eq!(target.ost.service(&Request::Ost(OstRequest::StatFs)), "ost");
        let lines = target.ost.inspect_object(object(1)).unwrap();
        assert!(lines.iter().any(|line| line.contains("0..256 in place since epoch 1")), "{lines:#?}");
        assert!(kv::inspect::describe(&inspect::OstSchema, oss::tables::OBJECTS, b"", Some(b"")).is_err());
        let answer = target.answer(CLIENT, OstRequest::Ping, Bytes::new()).await;
        assert_eq!(answer.reply, Ok(Reply::Ost(OstReply::Done)));
    });
}

#[test]
fn only_the_end_of_the_host_without_an_end_of_the_target_is_a_loss() {
    on_all(async |engine| {
        let mut target = TestOst::on(engine, 1).await;
        assert_eq!(target.ost.era(), 0);
        target = target.crash().await;
        assert_eq!(target.ost.era(), 0, "the process died");
        target = target.power_loss(1).await;
        assert_eq!(target.ost.era(), 1);
        target.ost.stop().await.unwrap();
        target = target.power_loss(2).await;
        assert_eq!(target.ost.era(), 1, "it had stopped in good order");
        target = target.power_loss(3).await;
        assert_eq!(target.ost.era(), 2, "the count itself is durable");
    });
}
