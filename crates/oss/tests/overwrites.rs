//! Short overwrites of blocks that are on a device: they go to new places there at once.

use oss::directory::device::DEVICE_FILE;
use rpc::{Call, Handler, message::Request};
use types::{Slot, Xid};

use crate::{
    common::{
        BLOCK, CLIENT, DEVICE, MIB, TestOst, free, object, parameter, parameters, pattern, run, statistic,
        write_request,
    },
    device::{has_inline, lines, records_survive},
};

#[test]
fn blocks_on_the_device_get_new_places_and_the_rest_goes_inline() {
    run(async {
        let target = TestOst::overwriting_at_once(1).await;
        let write = async |version, block: u64, blocks: u64| {
            target.write(object(1), block * BLOCK, &pattern(version, block * BLOCK, blocks * BLOCK)).await;
        };
        write(1, 0, 256).await;
        target.sync().await;
        write(2, 3, 1).await;
        assert!(lines(&target).contains("3..4 on the device since epoch"), "{}", lines(&target));
        assert_eq!(parameter(&target, "writeback_pending_bytes"), "0");
        // Again, and in part.
        write(3, 3, 1).await;
        assert!(lines(&target).contains("3..4 on the device since epoch"), "{}", lines(&target));
        target.write(object(1), 7 * BLOCK, b"part").await;
        assert!(lines(&target).contains("7..8 inline"), "a part of a block: {}", lines(&target));
        write(2, 7, 1).await;
        assert!(lines(&target).contains("7..8 inline"), "until it is written back: {}", lines(&target));
        write(2, 256, 2).await;
        assert!(lines(&target).contains("chunk 1: 0..2 inline"), "what is new: {}", lines(&target));
        let (at, durable) = (5 * BLOCK, true);
        target.write_with(object(1), at, &pattern(2, at, BLOCK), durable).await.unwrap();
        assert!(lines(&target).contains("5..6 inline"), "one flush is enough for it: {}", lines(&target));
        // It is synced no more.
        for _ in 0..2 {
            target.sync().await;
        }
        // Shorter than what the administrator wants there.
        assert_eq!(parameter(&target, "overwrite_kb"), "4");
        parameters(&target).set("obdfilter.*.overwrite_kb", "8").unwrap();
        write(2, 9, 1).await;
        write(2, 11, 2).await;
        assert!(lines(&target).contains("9..10 inline"), "{}", lines(&target));
        assert!(lines(&target).contains("11..13 on the device since epoch"), "{}", lines(&target));
        for wrong in ["3", "65", "0"] {
            assert!(parameters(&target).set("obdfilter.*.overwrite_kb", wrong).is_err(), "{wrong}");
        }
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        let mut expected = pattern(1, 0, MIB);
        for (version, block, blocks) in [(3, 3, 1), (2, 5, 1), (2, 7, 1), (2, 9, 1), (2, 11, 2)] {
            let (start, bytes) = (block * BLOCK, blocks * BLOCK);
            expected[start as usize..(start + bytes) as usize].copy_from_slice(&pattern(version, start, bytes));
        }
        assert!(target.read(object(1), 0, MIB).await == expected);
        target.ost.work().await;
        assert!(!has_inline(&target, 1) && target.read(object(1), 0, MIB).await == expected);
        let target = target.crash().await;
        assert!(target.read(object(1), 0, MIB).await == expected);
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
    });
}

/// Where blocks of an object are on the device that do not follow others, in order.
fn lone_addresses(target: &TestOst) -> Vec<u64> {
    let lines = lines(target);
    let address = |run: &str| {
        let (blocks, places) = run.split_once(" on the device")?;
        let (start, end) = blocks.rsplit(' ').next()?.split_once("..")?;
        let is_one = start.parse::<u64>().ok()? + 1 == end.parse().ok()?;
        let (_, address) = places.split_once(" at ")?;
        is_one.then(|| address.split_once("..")?.0.parse().ok()).flatten()
    };
    lines.split(", ").filter_map(address).collect()
}

/// The kernel writes them all together then, and what is left is free after the next commit.
#[test]
fn blocks_that_are_overwritten_one_after_the_other_follow_each_other() {
    run(async {
        let target = TestOst::overwriting_at_once(1).await;
        target.write(object(1), 0, &pattern(1, 0, MIB)).await;
        target.sync().await;
        let before = free(&target).await;
        let mut expected = pattern(1, 0, MIB);
        for block in (0..60).step_by(6) {
            overwrite(&target, &mut expected, 2, block).await;
        }
        let addresses = lone_addresses(&target);
        assert!(addresses.len() == 10 && addresses.windows(2).all(|two| two[0] + 1 == two[1]), "{}", lines(&target));
        target.sync().await;
        assert_eq!((free(&target).await, statistic(&target, "free")), (before, before), "the rest of the area is free");
        assert!(target.read(object(1), 0, MIB).await == expected);
        // Others may have it at once.
        for number in 2..5 {
            target.write(object(number), 0, &pattern(1, 0, 3 * MIB)).await;
        }
        assert!(target.power_loss(1).await.read(object(1), 0, MIB).await == expected);
    });
}

/// A commit gives out what was freed before it, and what it is about to flush must be written by
/// then: also a write that nobody waits for any more.
#[test]
fn a_commit_waits_for_short_overwrites_that_have_begun() {
    for is_given_up in [false, true] {
        run(async {
            let target = TestOst::overwriting_at_once(1).await;
            target.write(object(1), 0, &pattern(1, 0, MIB)).await;
            target.sync().await;
            let mut expected = pattern(1, 0, MIB);
            overwrite(&target, &mut expected, 2, 3).await;
            target.probe.hold_writes(DEVICE_FILE);
            let (request, bulk) = write_request(object(1), 5 * BLOCK, &pattern(2, 5 * BLOCK, BLOCK), false);
            let writing = target.ost.clone().handle(Call::plain(CLIENT, Slot(1), Xid(1), Request::Ost(request), bulk));
            let writing = tokio::spawn(writing);
            let turns = async || {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            };
            turns().await;
            if is_given_up {
                writing.abort();
            }
            let ost = target.ost.clone();
            let committing = tokio::spawn(async move { ost.work().await });
            turns().await;
            assert!(!committing.is_finished());
            target.probe.release_writes();
            committing.await.unwrap();
            assert_eq!(writing.await.is_ok(), !is_given_up);
            if !is_given_up {
                expected[5 * BLOCK as usize..6 * BLOCK as usize].copy_from_slice(&pattern(2, 5 * BLOCK, BLOCK));
            }
            assert!(target.read(object(1), 0, MIB).await == expected);
            target.sync().await;
            assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        });
    }
}

/// Each sync would have to flush the device and the journal, instead of the journal alone.
#[test]
fn overwrites_of_objects_that_are_synced_go_inline() {
    run(async {
        let target = TestOst::overwriting_at_once(1).await;
        for number in 1..3 {
            target.write(object(number), 0, &pattern(1, 0, MIB)).await;
        }
        target.sync().await;
        target.done(rpc::message::OstRequest::Sync(vec![object(1)])).await;
        let write = async |number, block: u64| {
            target.write(object(number), block * BLOCK, &pattern(2, block * BLOCK, BLOCK)).await;
        };
        for (block, is_inline) in [(3, true), (5, true), (7, false)] {
            write(1, block).await;
            let line = format!("{block}..{} inline", block + 1);
            assert_eq!(lines(&target).contains(&line), is_inline, "{}", lines(&target));
            write(2, block).await;
            assert!(!has_inline(&target, 2), "another object");
            target.sync().await;
        }
    });
}

/// Else each would be a request to the device, and the journal would fill faster than it empties.
#[test]
fn what_is_written_back_of_many_places_of_an_object_goes_to_one_of_the_device() {
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        target.write(object(1), 0, &pattern(1, 0, 2 * MIB)).await;
        target.sync().await;
        let mut expected = pattern(1, 0, 2 * MIB);
        for block in (0..512).step_by(7) {
            let data = pattern(2, block * BLOCK, BLOCK);
            target.write(object(1), block * BLOCK, &data).await;
            expected[(block * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&data);
        }
        target.ost.work().await;
        assert!(!has_inline(&target, 1), "{}", lines(&target));
        let addresses = lone_addresses(&target);
        assert!(
            addresses.len() > 70 && addresses.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "{addresses:?}: {}",
            lines(&target)
        );
        assert!(target.read(object(1), 0, 2 * MIB).await == expected);
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        let target = target.power_loss(3).await;
        assert!(target.read(object(1), 0, 2 * MIB).await == expected);
    });
}

/// Overwrites a block of the first object.
async fn overwrite(target: &TestOst, expected: &mut [u8], version: u64, block: u64) {
    let data = pattern(version, block * BLOCK, BLOCK);
    target.write(object(1), block * BLOCK, &data).await;
    expected[(block * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&data);
}

/// A round of write-back moves what it finds places for, and what was not overwritten meanwhile.
/// The rest is moved by a later one.
#[test]
fn a_round_of_write_back_may_move_a_part() {
    const OVERWRITTEN: u64 = 300;
    run(async {
        let target = TestOst::on(DEVICE, 1).await;
        let pending = |target: &TestOst| parameter(target, "writeback_pending_bytes").parse::<u64>().unwrap() / BLOCK;
        let mut expected = pattern(1, 0, 6 * MIB);
        for offset in (0..6 * MIB).step_by(MIB as usize) {
            target.write(object(1), offset, &expected[offset as usize..][..MIB as usize]).await;
        }
        // Others leave few blocks.
        let left = OVERWRITTEN / 3;
        let mut others = free(&target).await - left;
        let mut number = 2;
        while others > 0 {
            let blocks = others.min(256);
            target.write(object(number), 0, &pattern(1, 0, blocks * BLOCK)).await;
            (others, number) = (others - blocks, number + 1);
        }
        target.sync().await;
        for block in (0..OVERWRITTEN).map(|number| number * 4) {
            overwrite(&target, &mut expected, 2, block).await;
        }
        assert_eq!(pending(&target), OVERWRITTEN, "they are in the tables");
        // What they free is taken by a write that does not end.
        target.sync().await;
        target.probe.hold_writes(DEVICE_FILE);
        let (request, bulk) = write_request(object(2), 0, &pattern(3, 0, MIB), false);
        let writing = target.ost.clone().handle(Call::plain(CLIENT, Slot(1), Xid(1), Request::Ost(request), bulk));
        let writing = tokio::spawn(writing);
        while statistic(&target, "free") > OVERWRITTEN + left - 256 {
            tokio::task::yield_now().await;
        }
        let held = target.probe.hold_no_more_writes(DEVICE_FILE);
        target.ost.work().await;
        let after = pending(&target);
        assert!((1..OVERWRITTEN).contains(&after), "{after} of {OVERWRITTEN} wait for a place");
        assert!(target.read(object(1), 0, 4 * MIB).await == expected[..4 * MIB as usize]);
        held.close();
        assert!(writing.await.unwrap().reply.is_ok());
        target.sync().await;
        // Some are overwritten while a round moves them.
        target.probe.hold_writes(DEVICE_FILE);
        let ost = target.ost.clone();
        let work = tokio::spawn(async move { ost.work().await });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let mut changed = 0;
        for block in (0..OVERWRITTEN).map(|number| number * 4).filter(|block| block % 3 == 0) {
            let is_inline = lines(&target).contains(&format!("{}..{} inline", block % 256, block % 256 + 1));
            changed += u64::from(is_inline);
            overwrite(&target, &mut expected, 4, block).await;
        }
        target.probe.release_writes();
        work.await.unwrap();
        assert!(changed > 0);
        for _ in 0..3 {
            target.sync().await;
            target.ost.work().await;
        }
        assert_eq!(pending(&target), 0);
        assert!(target.read(object(1), 0, 4 * MIB).await == expected[..4 * MIB as usize]);
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        let target = target.power_loss(3).await;
        assert!(target.read(object(1), 4 * MIB, 2 * MIB).await == expected[4 * MIB as usize..]);
        assert!(target.read(object(2), 0, MIB).await == pattern(3, 0, MIB));
    });
}

/// Each by itself: some of the data survive with their records, others do not.
#[test]
fn each_block_comes_back_whose_new_data_are_lost() {
    let (mut all_old, mut all_new) = (0, 0);
    for seed in 0..12 {
        run(async {
            let target = TestOst::overwriting_at_once(seed).await;
            target.write(object(1), 0, &pattern(1, 0, MIB)).await;
            target.sync().await;
            let blocks = (0..256u64).step_by(5);
            for (version, block) in [2, 3].into_iter().flat_map(|version| blocks.clone().map(move |one| (version, one)))
            {
                target.write(object(1), block * BLOCK, &pattern(version, block * BLOCK, BLOCK)).await;
            }
            let target = records_survive(target, seed).await;
            let found = target.read(object(1), 0, MIB).await;
            let (mut old, mut new) = (0, 0);
            for (block, contents) in found.chunks_exact(BLOCK as usize).enumerate() {
                let of = |version| pattern(version, block as u64 * BLOCK, BLOCK);
                let is_overwritten = block % 5 == 0;
                let is_new = contents == of(3);
                assert!(if is_new { is_overwritten } else { contents == of(1) }, "seed {seed}: block {block}");
                old += u64::from(is_overwritten && !is_new);
                new += u64::from(is_new);
            }
            assert_eq!(target.ost.recovery().blocks_reset, old);
            target.done(rpc::message::OstRequest::Verify(object(1))).await;
            assert_eq!(target.ost.check_device(), Ok(Vec::new()));
            (all_old, all_new) = (all_old + old, all_new + new);
            // What came back is not given out.
            for number in 2..5 {
                target.write(object(number), 0, &pattern(number, 0, 3 * MIB)).await;
                target.sync().await;
            }
            assert!(target.read(object(1), 0, MIB).await == found);
        });
    }
    assert!(all_old > 0 && all_new > 0, "both happen: {all_old} {all_new}");
}
