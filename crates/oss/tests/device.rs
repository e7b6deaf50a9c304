//! Objects on a device: what is written where, and what a power loss leaves.

use crate::common;

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use common::{
    BLOCK, CLIENT, DEVICE, INDEX, KIB, MIB, TestOst, change_tables, devices, fill, free, is_filled, object, parameter,
    parameters, pattern, probe::Probe, quiet_config, quiet_options, run, statistic,
};
use oss::{
    Engine, Ost, OstOptions,
    chunk_record::{BlockState, ChunkRecord},
    directory::device::DEVICE_FILE,
    superblock::CLEAN_KEY,
    tables::{CHUNKS, GROUPS, META, group_key, part_key},
};
use rpc::{
    Handler,
    message::{
        OstReply, OstRequest,
        ost::{Extent, ExtentPlace, ExtentsQuery, FoundExtents, SpaceChange},
    },
};
use rt::{
    Device,
    memory::{MemoryDevice, SeededEntropy, Unflushed},
};
use types::{FsError, Slot};

/// Bytes of the device that are not zeros, labels left out.
async fn held_bytes(target: &TestOst) -> usize {
    let bytes = 4094 * BLOCK;
    let (data, _) = target.objects.read(DEVICE_FILE, BLOCK, vec![0; bytes as usize]).await.unwrap();
    data.iter().filter(|byte| **byte != 0).count()
}

#[test]
fn freed_blocks_are_discarded_if_that_is_wanted() {
    for discard in [false, true] {
        run(async {
            let options = OstOptions { discard, ..quiet_options() };
            let target = TestOst::with_all(DEVICE, 1, MemoryDevice::new(), options, quiet_config()).await;
            let before = free(&target).await;
            for number in 1..=3 {
                fill(&target, number, number, 0..2 * MIB).await;
            }
            target.sync().await;
            let destroy = OstRequest::Destroy(vec![object(1), object(3)], None);
            target.done(destroy).await;
            target.sync().await;
            assert_eq!(held_bytes(&target).await, 6 << 20, "a commit waits for no discard");
            assert_eq!(free(&target).await, before - 512);
            target.ost.work().await;
            let held = held_bytes(&target).await;
            assert_eq!(held, if discard { 2 << 20 } else { 6 << 20 }, "discard: {discard}");
            assert_eq!(statistic(&target, "discarded"), if discard { 1024 } else { 0 });
            assert_eq!(free(&target).await, before - 512);
            // They are used again, and what is still there is not touched.
            fill(&target, 4, 4, 0..12 * MIB).await;
            target.sync().await;
            assert!(is_filled(&target, 2, 2, 0..2 * MIB).await && is_filled(&target, 4, 4, 0..12 * MIB).await);
            let target = target.power_loss(3).await;
            assert!(is_filled(&target, 2, 2, 0..2 * MIB).await && is_filled(&target, 4, 4, 0..12 * MIB).await);
        });
    }
}

#[test]
fn the_allocator_is_tuned_under_the_names_of_ldiskfs() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let set = |name: &str, value: &str| parameters(&target).set(&format!("obdfilter.*.{name}"), value);
        for (name, default, value) in [
            ("prealloc_table", "adaptive", "256 512 1024"),
            ("mb_group_prealloc", "512", "64"),
            ("mb_small_req", "256", "16"),
            ("mb_large_req", "1024", "128"),
            ("mb_max_to_scan", "16384", "200"),
            ("mb_last_group", "0", "0"),
            ("mb_last_start", "0", "2048"),
            ("discard", "0", "1"),
        ] {
            assert_eq!(parameter(&target, name), default, "{name}");
            set(name, value).unwrap();
            assert_eq!(parameter(&target, name), value, "{name}");
        }
        for (name, value) in [("prealloc_table", "512 256"), ("mb_small_req", "0"), ("mb_max_to_scan", "16385")] {
            assert!(set(name, value).is_err(), "{name}={value}");
        }
        let refused = set("mb_last_group", "1").unwrap_err().to_string();
        assert!(refused.contains("the device has groups 0 to 0"), "{refused}");
        let refused = set("mb_last_start", "4096").unwrap_err().to_string();
        assert!(refused.contains("has blocks 0 to 4095"), "{refused}");
        let many: Vec<String> = (1..=64).map(|number| (number * 16).to_string()).collect();
        set("prealloc_table", &many.join(" ")).unwrap();
        assert_eq!(parameter(&target, "prealloc_table"), many.join(" "));
        assert!(set("prealloc_table", &format!("{} 2000", many.join(" "))).is_err(), "65 entries");
        set("prealloc_table", "256 512 1024").unwrap();
        // A window of the table: the object has 1 MiB of it, the rest is kept for it.
        fill(&target, 1, 1, 0..MIB).await;
        assert_eq!(statistic(&target, "in_windows"), 0, "256 blocks, as many as were written");
        fill(&target, 1, 1, MIB..MIB + 64 * KIB).await;
        assert_eq!(statistic(&target, "in_windows"), 240, "the next entry is for 512 blocks");
        set("prealloc_table", "adaptive").unwrap();
        assert_eq!(parameter(&target, "prealloc_table"), "adaptive");
        let hosted = TestOst::new(1).await;
        for (name, value) in [("mb_small_req", "16"), ("mb_last_group", "0"), ("mb_last_start", "0"), ("discard", "1")]
        {
            let refused = parameters(&hosted).set(&format!("obdfilter.*.{name}"), value).unwrap_err().to_string();
            assert!(refused.contains("no device"), "{refused}");
        }
    });
}

/// The study sets the pointer back before each measurement, with both.
#[test]
fn the_next_window_is_where_the_allocation_pointer_is() {
    run(async {
        // Two groups.
        let target = TestOst::on(Engine::on_device(65_536), 1).await;
        let set = |name: &str, value: u64| {
            parameters(&target).set(&format!("obdfilter.*.{name}"), &value.to_string()).unwrap();
        };
        set("mb_last_start", 8192);
        set("mb_last_group", 1);
        assert_eq!((statistic(&target, "mb_last_group"), statistic(&target, "mb_last_start")), (1, 8192));
        fill(&target, 1, 1, 0..MIB).await;
        let found = extents(&target, 0, u64::MAX, 9).await.extents;
        let place = ExtentPlace::Device((32_768 + 8192) * BLOCK);
        assert_eq!(found, [Extent { offset: 0, bytes: MIB, place }]);
        assert_eq!((statistic(&target, "mb_last_group"), statistic(&target, "mb_last_start")), (1, 8192 + 256));
        set("mb_last_start", 0);
        assert_eq!(statistic(&target, "mb_last_group"), 1, "each is set by itself");
    });
}

/// Blocks that wait for their discard are not given out, but nothing is refused for them.
#[test]
fn blocks_that_wait_for_their_discard_are_used_if_there_are_no_others() {
    run(async {
        let options = OstOptions { discard: true, ..quiet_options() };
        let target = TestOst::with_all(DEVICE, 1, MemoryDevice::new(), options, quiet_config()).await;
        fill(&target, 1, 1, 0..14 * MIB).await;
        target.sync().await;
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        target.sync().await;
        assert_eq!(statistic(&target, "discard_waiting"), 3584);
        fill(&target, 2, 2, 0..MIB).await;
        assert_eq!(statistic(&target, "discard_waiting"), 3584, "others are free");
        fill(&target, 3, 3, 0..14 * MIB).await;
        assert_eq!((statistic(&target, "discard_waiting"), statistic(&target, "not_discarded")), (0, 3584));
        assert_eq!(parameter(&target, "writeback_pending_bytes"), "0", "all of it went to the device at once");
        target.ost.work().await;
        assert!(is_filled(&target, 2, 2, 0..MIB).await && is_filled(&target, 3, 3, 0..14 * MIB).await);
        let target = target.power_loss(3).await;
        assert!(is_filled(&target, 2, 2, 0..MIB).await && is_filled(&target, 3, 3, 0..14 * MIB).await);
    });
}

/// A discard that is under way has its blocks, whatever else happens.
#[test]
fn blocks_are_not_given_out_while_their_discard_is_under_way() {
    run(async {
        let options = OstOptions { discard: true, ..quiet_options() };
        let target = TestOst::with_all(DEVICE, 1, MemoryDevice::new(), options, quiet_config()).await;
        fill(&target, 1, 1, 0..14 * MIB).await;
        target.sync().await;
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        target.sync().await;
        target.probe.hold_discards();
        let mut turn = std::pin::pin!(target.ost.work());
        assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let under_way = 3584 - statistic(&target, "discard_waiting");
        assert!(under_way > 0);
        // All but those: what waits is released.
        fill(&target, 2, 2, 0..12 * MIB).await;
        assert_eq!(statistic(&target, "not_discarded"), 3584 - under_way);
        target.probe.release_discards();
        turn.await;
        target.ost.work().await;
        assert!(is_filled(&target, 2, 2, 0..12 * MIB).await);
        assert_eq!(statistic(&target, "discarded"), under_way);
    });
}

async fn extents(target: &TestOst, offset: u64, bytes: u64, extents_max: u32) -> FoundExtents {
    let query = ExtentsQuery { object: object(1), offset, bytes, extents_max };
    match target.ask(OstRequest::Extents(query)).await.unwrap() {
        OstReply::Extents(found) => found,
        other => panic!("{other:?}"),
    }
}

/// The device has the bytes of the object where the extents say.
async fn compare_extents(target: &TestOst, found: &[Extent]) {
    for Extent { offset, bytes, place } in found {
        let ExtentPlace::Device(start) = *place else { continue };
        let (data, filled) = target.objects.read(DEVICE_FILE, start, vec![0; *bytes as usize]).await.unwrap();
        assert_eq!(filled as u64, *bytes);
        assert!(data == target.read(object(1), *offset, *bytes).await, "{bytes} bytes at {offset}");
    }
}

#[test]
fn extents_are_where_the_data_are() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        assert_eq!(extents(&target, 0, u64::MAX, 9).await, FoundExtents::default(), "there is no object");
        // In one piece across chunks, a hole, and small data, which are in the tables.
        fill(&target, 1, 1, 0..3 * MIB).await;
        target.write(object(1), 5 * MIB, &pattern(1, 5 * MIB, 8 * KIB)).await;
        let found = extents(&target, 0, u64::MAX, 9).await;
        let ([first, second], None) = (&found.extents[..], found.next) else { panic!("{found:?}") };
        assert_eq!((first.offset, first.bytes), (0, 3 * MIB));
        assert_eq!(*second, Extent { offset: 5 * MIB, bytes: 8 * KIB, place: ExtentPlace::Tables });
        compare_extents(&target, &found.extents).await;
        // New data get new places: the middle one is elsewhere.
        target.sync().await;
        target.write(object(1), MIB, &pattern(2, MIB, MIB)).await;
        let found = extents(&target, 0, u64::MAX, 9).await;
        let ranges: Vec<_> = found.extents.iter().map(|extent| (extent.offset / MIB, extent.bytes / KIB)).collect();
        assert_eq!(ranges, [(0, 1024), (1, 1024), (2, 1024), (5, 8)]);
        compare_extents(&target, &found.extents).await;
        // A range, and pages of one extent.
        let within = extents(&target, MIB + 5, MIB, 9).await.extents;
        assert_eq!(
            within.iter().map(|one| (one.offset, one.bytes)).collect::<Vec<_>>(),
            [(MIB, MIB), (2 * MIB, BLOCK)]
        );
        let (mut pages, mut next) = (Vec::new(), Some(0));
        while let Some(offset) = next {
            let page = extents(&target, offset, u64::MAX, 1).await;
            assert!(page.extents.len() <= 1 && page.next.is_none_or(|next| next > offset), "{page:?}");
            pages.extend(page.extents);
            next = page.next;
        }
        assert_eq!(pages, found.extents);
    });
}

#[test]
fn extents_of_host_files_are_known_to_the_host_only() {
    run(async {
        let target = TestOst::new(1).await;
        fill(&target, 1, 1, 0..2 * MIB).await;
        let found = extents(&target, 0, u64::MAX, 9).await;
        let expected = [Extent { offset: 0, bytes: 2 * MIB, place: ExtentPlace::HostFile }];
        assert_eq!((found.extents.as_slice(), found.next), (&expected[..], None));
    });
}

/// A sparse object of many chunks takes several answers, of which each is limited.
#[test]
fn one_answer_takes_a_limited_amount_of_work() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let last = 1100 * MIB;
        for offset in (0..=last).step_by(MIB as usize) {
            target.write(object(1), offset, b"data").await;
        }
        let first = extents(&target, 0, u64::MAX, 5000).await;
        assert_eq!((first.extents.len(), first.next), (1024, Some(1024 * MIB)));
        let rest = extents(&target, 1024 * MIB, u64::MAX, 5000).await;
        assert_eq!((rest.extents.len(), rest.next), (77, None));
    });
}

/// What the tables have of the first object.
/// The records of the first object.
pub fn lines(target: &TestOst) -> String {
    target.ost.inspect_object(object(1)).unwrap().join("\n")
}

/// Whether blocks of an object are in the tables.
pub fn has_inline(target: &TestOst, number: u64) -> bool {
    let lines = target.ost.inspect_object(object(number)).unwrap();
    lines.iter().any(|line| line.starts_with("chunks ") && line.contains("inline"))
}

/// The first block of the device that an object's first chunk names.
fn first_address(target: &TestOst) -> u64 {
    let lines = lines(target);
    let after = lines.split_once(" at ").expect("a block is on the device").1;
    after.split_once("..").unwrap().0.parse().unwrap()
}

#[test]
fn large_data_are_written_once_and_to_new_places() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        assert!(lines(&target).contains("0..256 on the device since epoch"), "{}", lines(&target));
        let (first, left) = (first_address(&target), free(&target).await);
        target.write(object(1), 0, &pattern(2, 0, MIB)).await;
        assert!(lines(&target).contains("0..256 on the device since epoch"), "{}", lines(&target));
        assert_ne!(first_address(&target), first, "the old data may be all that a power loss leaves");
        assert_eq!(free(&target).await, left, "what was overwritten is free");
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(2, 0, MIB));
        target.sync().await;
        target.write_with(object(1), 3 * BLOCK, &pattern(3, 3 * BLOCK, BLOCK), true).await.unwrap();
        assert!(lines(&target).contains("3..4 inline"), "small synced changes go to the journal: {}", lines(&target));
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        target.ost.work().await;
        assert!(!has_inline(&target, 1), "written back: {}", lines(&target));
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        let target = target.crash().await;
        assert_eq!(target.read(object(1), 3 * BLOCK, BLOCK).await, pattern(3, 3 * BLOCK, BLOCK));
        assert_eq!(target.read(object(1), 0, 3 * BLOCK).await, pattern(2, 0, 3 * BLOCK));
    });
}

/// A loss of power that the journal survives, and of the data what happens to be on the device.
pub async fn records_survive(target: TestOst, seed: u64) -> TestOst {
    // The journal becomes durable by this, and the device is not flushed.
    target.done(OstRequest::Sync(vec![object(2)])).await;
    let entropy = SeededEntropy::new(seed);
    let objects = target.objects.power_loss(&entropy, Unflushed::KeptOrLost);
    let journal = target.journal.power_loss(&entropy, Unflushed::Lost);
    let cold = target.cold.power_loss(&entropy);
    let probe = Probe::new(objects.clone());
    let devices = devices(&probe, &journal, &cold);
    let ost = common::open(&target.seams, devices, quiet_options(), quiet_config()).await;
    TestOst { objects, probe, journal, cold, ost, ..target }
}

/// The records of the new data survive, and the data do not.
#[test]
fn overwritten_data_come_back_if_the_new_ones_are_lost() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..12 {
        run(async {
            let target = TestOst::on(DEVICE, seed).await;
            target.write(object(1), 0, &pattern(1, 0, MIB)).await;
            target.sync().await;
            // Twice: the former place is that of the first ones.
            target.write(object(1), 0, &pattern(2, 0, MIB)).await;
            target.write(object(1), 0, &pattern(3, 0, MIB)).await;
            let target = records_survive(target, seed).await;
            let found = target.read(object(1), 0, MIB).await;
            let is_new = found == pattern(3, 0, MIB);
            assert!(is_new || found == pattern(1, 0, MIB), "seed {seed}: all of one write");
            assert_eq!(target.ost.recovery().blocks_reset, if is_new { 0 } else { 256 });
            assert_eq!(target.ost.persistent_reply(CLIENT, Slot(0)).is_some(), is_new);
            target.done(OstRequest::Verify(object(1))).await;
            (old, new) = (old + u32::from(!is_new), new + u32::from(is_new));
            // What came back is not given out: other data leave it alone.
            for number in 2..5 {
                target.write(object(number), 0, &pattern(number, 0, 3 * MIB)).await;
                target.sync().await;
            }
            assert!(target.read(object(1), 0, MIB).await == found);
        });
    }
    assert!(old > 0 && new > 0, "both happen: {old} {new}");
}

/// A flush has begun, and what is written now would be lost together with what it flushes.
#[test]
fn what_replaces_data_that_are_being_flushed_goes_to_the_journal() {
    for (seed, is_begun) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        run(async {
            let target = TestOst::on(DEVICE, seed).await;
            fill(&target, 1, 1, 0..MIB).await;
            target.sync().await;
            fill(&target, 1, 2, 0..MIB).await;
            let data = pattern(3, 0, MIB);
            let context = &mut Context::from_waker(Waker::noop());
            let mut sync = Box::pin(target.sync());
            let mut write = Box::pin(target.write_with(object(1), 0, &data, false));
            if is_begun {
                // It has places on the device already.
                target.probe.hold_writes(DEVICE_FILE);
                assert!(write.as_mut().poll(context).is_pending());
            }
            target.probe.hold_flushes();
            assert!(sync.as_mut().poll(context).is_pending());
            target.probe.release_writes();
            write.await.unwrap();
            assert!(has_inline(&target, 1), "{}", lines(&target));
            target.probe.release_flushes();
            sync.await;
            assert_eq!(target.ost.check_device(), Ok(Vec::new()));
            // Others get what the first data had.
            fill(&target, 2, 4, 0..13 * MIB).await;
            target.sync().await;
            let target = target.power_loss(seed).await;
            assert!(is_filled(&target, 1, 3, 0..MIB).await);
            assert!(is_filled(&target, 2, 4, 0..13 * MIB).await);
        });
    }
}

#[test]
fn freed_blocks_are_used_again_after_the_commit_and_not_before() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let all = free(&target).await;
        fill(&target, 1, 1, 0..12 * MIB).await;
        target.sync().await;
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        assert_eq!(free(&target).await, all, "free for whom asks, at once");
        // Less than 4 MiB are free by now; the rest of these go to the journal.
        fill(&target, 2, 2, 0..3 * MIB).await;
        assert!(!has_inline(&target, 2));
        fill(&target, 2, 2, 3 * MIB..5 * MIB).await;
        assert!(has_inline(&target, 2));
        target.sync().await;
        fill(&target, 3, 3, 0..8 * MIB).await;
        assert!(!has_inline(&target, 3));
        let target = target.power_loss(1).await;
        target.done(OstRequest::Verify(object(2))).await;
        target.done(OstRequest::Verify(object(3))).await;
    });
}

#[test]
fn a_full_device_is_filled_to_its_last_block_and_can_be_overwritten() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let (piece, blocks) = (256 * KIB, free(&target).await);
        assert_eq!(blocks, 4096 - 2, "all but the labels");
        let mut written = 0;
        while target.write_with(object(1), written * piece, &pattern(1, written * piece, piece), false).await.is_ok() {
            written += 1;
        }
        assert_eq!(written, blocks / 64);
        let rest = free(&target).await * BLOCK;
        assert_eq!(rest, 62 * BLOCK);
        target.write(object(2), 0, &pattern(2, 0, rest)).await;
        assert_eq!(free(&target).await, 0);
        for (number, bytes) in [(2, 64 * KIB), (3, BLOCK)] {
            let refused = target.write_with(object(number), rest, &pattern(1, rest, bytes), false).await;
            assert_eq!(refused.unwrap_err(), FsError::NoSpace);
        }
        for version in 3..6 {
            for number in 0..written {
                target.write(object(1), number * piece, &pattern(version, number * piece, piece)).await;
                if number % 8 == 0 {
                    target.ost.work().await;
                }
            }
            assert_eq!(target.ost.check_device(), Ok(Vec::new()));
            for number in 0..written {
                assert!(target.read(object(1), number * piece, piece).await == pattern(version, number * piece, piece));
            }
        }
        let target = target.power_loss(1).await;
        target.done(OstRequest::Verify(object(1))).await;
        target.done(OstRequest::Destroy(vec![object(1), object(2)], None)).await;
        target.sync().await;
        assert_eq!(free(&target).await, blocks);
    });
}

/// What is written to the device takes next to nothing there.
#[test]
fn tables_with_little_space_take_the_records_of_a_whole_device() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        target.objects.allocate(DEVICE_FILE, 0, 4096 * BLOCK).await.unwrap();
        let objects = target.objects.clone();
        let limit = |left: u64| objects.set_capacity(4096 * BLOCK + quiet_config().device_reserve_bytes + left);
        // Less than one write has.
        limit(256 * KIB);
        for piece in 0..14 {
            target.write(object(1), piece * MIB, &pattern(1, piece * MIB, MIB)).await;
            // Overwritten at once: to new places, too.
            if piece < 2 {
                target.write(object(1), piece * MIB, &pattern(1, piece * MIB, MIB)).await;
                target.sync().await;
            }
        }
        assert!(!has_inline(&target, 1) && is_filled(&target, 1, 1, 0..14 * MIB).await);
        let left = free(&target).await;
        assert_eq!(left, 2 * 256 - 2);
        // The data would fit, but not their records. (Answers about space are used for a while.)
        limit(0);
        let target = target.restart().await;
        assert_eq!(free(&target).await, 0);
        let refused = target.write_with(object(2), 0, &pattern(2, 0, MIB), false).await;
        assert_eq!(refused.unwrap_err(), FsError::NoSpace);
        limit(256 * KIB);
        assert_eq!(free(&target).await, left);
        target.write(object(2), 0, &pattern(2, 0, MIB)).await;
        // What overwrites a full device goes to the tables, which have little.
        target.write(object(3), 0, &pattern(3, 0, (left - 256) * BLOCK)).await;
        assert_eq!(free(&target).await, 0);
        limit(3 * MIB);
        for version in 4..6 {
            for piece in 0..14 {
                target.write(object(1), piece * MIB, &pattern(version, piece * MIB, MIB)).await;
            }
            assert!(is_filled(&target, 1, version, 0..14 * MIB).await);
        }
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
    });
}

#[test]
fn what_is_reserved_on_a_device_is_not_given_to_others() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let all = free(&target).await;
        let allocate = |offset, bytes| SpaceChange::Allocate { offset, bytes, extend: false };
        target.space(object(1), allocate(0, 12 * MIB)).await.unwrap();
        assert_eq!(free(&target).await, all - 12 * 256);
        assert_eq!(target.space(object(2), allocate(0, 5 * MIB)).await, Err(FsError::NoSpace));
        fill(&target, 2, 2, 0..3 * MIB).await;
        let refused = target.write_with(object(2), 3 * MIB, &pattern(2, 3 * MIB, MIB), false).await;
        assert_eq!(refused.unwrap_err(), FsError::NoSpace);
        let target = target.restart().await;
        for piece in 0..6 {
            target.write(object(1), piece * 2 * MIB, &pattern(1, piece * 2 * MIB, 2 * MIB)).await;
        }
        assert_eq!(free(&target).await, all - 15 * 256);
        target.done(OstRequest::Verify(object(1))).await;
    });
}

/// The device may still work on what a request had begun when it was given up.
#[test]
fn blocks_of_a_write_that_was_given_up_are_free_when_the_device_has_ended_it() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let all = free(&target).await;
        target.probe.hold_writes(DEVICE_FILE);
        {
            let data = pattern(1, 0, MIB);
            let mut write = std::pin::pin!(target.write_with(object(1), 0, &data, false));
            assert_eq!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(drop), Poll::Pending);
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        // Nothing is promised any more, and none of the blocks is used by others.
        assert_eq!(free(&target).await, all);
        target.probe.release_writes();
        fill(&target, 2, 2, 0..8 * MIB).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        fill(&target, 2, 2, 8 * MIB..15 * MIB).await;
        assert!(is_filled(&target, 2, 2, 0..15 * MIB).await);
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
    });
}

#[test]
fn rot_on_the_device_is_an_error_with_the_objects_name() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.sync().await;
        target.objects.flip_bit(DEVICE_FILE, (first_address(&target) + 5) * BLOCK + 17, 3);
        let expected = FsError::Corrupt { object: object(1), ost: INDEX, offset: 5 * BLOCK };
        assert_eq!(target.try_read(object(1), 0, MIB).await, Err(expected.clone()));
        assert_eq!(target.ask(OstRequest::Verify(object(1))).await, Err(expected.clone()));
        assert_eq!(target.write_with(object(1), 5 * BLOCK, b"x", false).await.unwrap_err(), expected);
        let target = target.power_loss(1).await;
        assert_eq!(target.try_read(object(1), 0, MIB).await, Err(expected));
        assert_eq!(target.read(object(1), 0, 5 * BLOCK).await, pattern(1, 0, 5 * BLOCK));
        target.write(object(1), 0, &pattern(2, 0, MIB)).await;
        assert_eq!(target.read(object(1), 0, MIB).await, pattern(2, 0, MIB));
    });
}

/// Freeing them would give a label out.
#[test]
fn records_that_name_labels_or_what_the_device_does_not_have_are_damaged() {
    for address in [4095, 4096, 1 << 40] {
        run(async {
            let target = TestOst::on(DEVICE, 1).await;
            target.write(object(1), 0, &pattern(1, 0, MIB)).await;
            target.ost.stop().await.unwrap();
            change_tables(&target, |kv| {
                let key = Bytes::copy_from_slice(&part_key(object(1), 0));
                let mut record = ChunkRecord::decode(&kv.get(CHUNKS, &key).unwrap().unwrap()).unwrap();
                record.set(7, BlockState::OnDevice { checksum: 1, epoch: 0, address });
                let mut batch = kv::Batch::default();
                batch.put(CHUNKS, key, record.encode());
                batch
            })
            .await;
            let devices = devices(&target.probe, &target.journal, &target.cold);
            let seams = target.seams.clone();
            let ost = Ost::open(seams, devices, "stria", INDEX, quiet_options(), quiet_config()).await.unwrap();
            let target = TestOst { ost, ..target };
            let overwritten = target.write_with(object(1), 0, &pattern(2, 0, MIB), false).await;
            let removed = target.ask(OstRequest::Destroy(vec![object(1)], None)).await;
            for refused in [overwritten.map(drop), removed.map(drop)] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("address of a block"), "{refused}");
            }
            target.sync().await;
            fill(&target, 2, 2, 0..14 * MIB).await;
            target.ost.stop().await.unwrap();
            assert_eq!(open_again(&target, &target.probe).await, Ok(()), "the labels are intact");
            let label = |place| target.objects.read(DEVICE_FILE, place * BLOCK, vec![0; 8]);
            assert_eq!(label(0).await.unwrap().0, b"StriaOST");
            assert_eq!(label(4095).await.unwrap().0, b"StriaOST");
        });
    }
}

/// Else the blocks of the objects there would be given out a second time.
#[test]
fn a_group_with_used_blocks_that_is_recorded_as_free_is_made_anew() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.ost.stop().await.unwrap();
        let mut batch = kv::Batch::default();
        batch.delete(GROUPS, Bytes::copy_from_slice(&group_key(0)));
        batch.delete(META, Bytes::from_static(CLEAN_KEY));
        change_tables(&target, |_| batch).await;
        let target = target.reopened().await;
        fill(&target, 2, 2, 0..14 * MIB).await;
        assert!(is_filled(&target, 1, 1, 0..MIB).await && is_filled(&target, 2, 2, 0..14 * MIB).await);
    });
}

/// Opens a stopped target on this device, and stops it.
async fn open_again(target: &TestOst, device: &Probe) -> Result<(), String> {
    let devices = devices(device, &target.journal, &target.cold);
    let options = OstOptions { audits: true, ..quiet_options() };
    match Ost::open(target.seams.clone(), devices, "stria", INDEX, options, quiet_config()).await {
        Ok(ost) => ost.stop().await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_device_is_told_by_its_label() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.ost.stop().await.unwrap();
        let open = async |objects: &MemoryDevice| open_again(&target, &Probe::new(objects.clone())).await;
        for copy in [0, 4095] {
            target.objects.flip_bit(DEVICE_FILE, copy * BLOCK + 20, 1);
            assert_eq!(open(&target.objects).await, Ok(()), "one copy is enough");
            let mut block = vec![0; BLOCK as usize];
            block = target.objects.read(DEVICE_FILE, copy * BLOCK, block).await.unwrap().0;
            assert_eq!(&block[..8], b"StriaOST", "and the other is written again");
        }
        for copy in [0, 4095] {
            let probe = Probe::new(target.objects.clone());
            *probe.unreadable.lock() = Some((DEVICE_FILE.to_owned(), copy * BLOCK));
            assert_eq!(open_again(&target, &probe).await, Ok(()), "one copy is enough");
            // Each start flushes the device once.
            assert_eq!(probe.take_flushes().get(DEVICE_FILE), Some(&2), "and the other is written again");
            target.objects.flip_bit(DEVICE_FILE, (4095 - copy) * BLOCK + 20, 1);
            let refused = open_again(&target, &probe).await.unwrap_err();
            assert!(refused.contains("a bad sector") && refused.contains("checksum"), "{refused}");
            target.objects.flip_bit(DEVICE_FILE, (4095 - copy) * BLOCK + 20, 1);
        }
        let other = TestOst::on(DEVICE, 2).await;
        let refused = open(&other.objects).await.unwrap_err();
        assert!(refused.contains("belongs to stria-OST0003"), "{refused}");
        let none = open(&MemoryDevice::new()).await.unwrap_err();
        assert!(none.contains("not found"), "{none}");
    });
}

/// Even if nothing is missing but what the last label was in.
#[test]
fn a_device_that_became_smaller_is_refused_and_stays_as_it_is() {
    run(async {
        for bytes in [4095 * BLOCK, 4096 * BLOCK - 1, 8 * MIB, BLOCK, 100, 0] {
            let target = TestOst::on(DEVICE, 1).await;
            target.ost.stop().await.unwrap();
            target.objects.truncate(DEVICE_FILE, bytes).await.unwrap();
            let refused = open_again(&target, &Probe::new(target.objects.clone())).await.unwrap_err();
            assert!(refused.contains("smaller than it was formatted"), "{refused}");
            assert_eq!(target.objects.length(DEVICE_FILE).await.unwrap(), Some(bytes));
        }
    });
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    run(async {
        let target = TestOst::new(1).await;
        let fresh = || devices(&Probe::new(MemoryDevice::new()), &MemoryDevice::new(), &kv::MemoryCold::new());
        for blocks in [0, 1, 4095, 1 << 50] {
            let engine = Engine::on_device(blocks);
            let refused = Ost::format_with(&target.seams, &fresh(), "stria", INDEX, engine, quiet_config()).await;
            assert!(refused.unwrap_err().to_string().contains("at least 16 MiB"));
        }
    });
}

/// More than one allocation group, and tables of which next to nothing is in memory.
#[test]
fn an_object_across_groups_is_written_removed_and_written_again() {
    run(async {
        let engine = Engine::on_device(3 * 32_768 + 100);
        let (objects, options) = (MemoryDevice::new(), quiet_options());
        let mut target = TestOst::with_all(engine, 1, objects, options, common::cold_config()).await;
        let all = free(&target).await;
        for round in 0..2 {
            for piece in 0..75 {
                let offset = piece * 4 * MIB;
                fill(&target, 1 + piece % 2, round, offset..offset + 4 * MIB).await;
            }
            let checked = target.ask(OstRequest::Check(vec![object(1), object(2)])).await;
            assert_eq!(checked, Ok(OstReply::Damage(Vec::new())));
            target = target.restart().await;
            for piece in 0..75 {
                let offset = piece * 4 * MIB;
                assert!(target.read(object(1 + piece % 2), offset, MIB).await == pattern(round, offset, MIB));
            }
            target.done(OstRequest::Destroy(vec![object(1), object(2)], None)).await;
            target.sync().await;
            assert_eq!(free(&target).await, all);
            assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        }
    });
}
