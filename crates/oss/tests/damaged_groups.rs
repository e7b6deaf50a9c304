//! Groups of a device whose records are damaged: they go out of use, and are made anew at the next
//! start.

use crate::common;

use bytes::Bytes;
use common::{
    INDEX, MIB, TestOst, change_tables, devices, fill, free, is_filled, object, parameters, pattern, quiet_config,
    quiet_options, run, statistic,
};
use oss::{
    Engine, Ost,
    superblock::CLEAN_KEY,
    tables::{BITMAPS, GROUPS, META, OUT_OF_USE, group_key, piece_key},
};
use rpc::message::OstRequest;
use rt::{Entropy, memory::SeededEntropy};
use types::FsError;

/// Two groups, the second one of 24 MiB.
const TWO_GROUPS: Engine = Engine::on_device(32_768 + 6144);

/// A stopped target: objects 1 and 2 are in the first group, 3 and 4 in the second one.
async fn stopped(seed: u64) -> TestOst {
    let target = TestOst::on(TWO_GROUPS, seed).await;
    fill(&target, 1, 1, 0..2 * MIB).await;
    fill(&target, 2, 2, 0..2 * MIB).await;
    parameters(&target).set("obdfilter.*.mb_last_group", "1").unwrap();
    fill(&target, 3, 3, 0..2 * MIB).await;
    fill(&target, 4, 4, 0..2 * MIB).await;
    target.ost.stop().await.unwrap();
    target
}

/// Opens it without a comparison of its records.
async fn opened(target: TestOst) -> TestOst {
    let devices = devices(&target.probe, &target.journal, &target.cold);
    let seams = target.seams.clone();
    let ost = Ost::open(seams, devices, "stria", INDEX, quiet_options(), quiet_config()).await.expect("it opens");
    TestOst { ost, ..target }
}

fn noted(target: &TestOst) -> usize {
    let mut noted = 0;
    target
        .ost
        .scan_table(OUT_OF_USE, |_, _| {
            noted += 1;
            Ok(())
        })
        .unwrap();
    noted
}

#[test]
fn a_damaged_group_goes_out_of_use_and_is_made_anew_at_the_next_start() {
    for power_is_lost in [false, true] {
        run(async {
            let target = stopped(1).await;
            change_tables(&target, |_| {
                let mut batch = kv::Batch::default();
                batch.put(BITMAPS, Bytes::copy_from_slice(&piece_key(0, 0)), vec![0xff; 63]);
                batch
            })
            .await;
            let target = opened(target).await;
            let before = free(&target).await;
            // The first write that frees blocks there finds it; its own data go elsewhere.
            fill(&target, 1, 5, 0..2 * MIB).await;
            assert_eq!((statistic(&target, "groups_damaged"), noted(&target)), (1, 1), "noted with what it freed");
            assert!(free(&target).await < before - 30_000);
            target.done(OstRequest::Destroy(vec![object(2), object(4)], None)).await;
            target.sync().await;
            fill(&target, 6, 6, 0..8 * MIB).await;
            for (number, version, bytes) in [(1, 5, 2 * MIB), (3, 3, 2 * MIB), (6, 6, 8 * MIB)] {
                assert!(is_filled(&target, number, version, 0..bytes).await, "object {number}");
            }
            assert_eq!(target.ost.check_device(), Ok(Vec::new()), "what is out of use is not compared");
            target.sync().await;
            // This compares all records.
            let target = if power_is_lost { target.power_loss(1).await } else { target.restart().await };
            assert_eq!((statistic(&target, "groups_damaged"), noted(&target)), (0, 0));
            assert_eq!(free(&target).await, before + 1024 - 2048, "what was freed is free");
            for (number, version, bytes) in [(1, 5, 2 * MIB), (3, 3, 2 * MIB), (6, 6, 8 * MIB)] {
                assert!(is_filled(&target, number, version, 0..bytes).await, "object {number}");
            }
        });
    }
}

#[test]
fn a_group_that_is_only_read_is_noted_by_the_task() {
    run(async {
        let target = stopped(1).await;
        change_tables(&target, |_| {
            let mut batch = kv::Batch::default();
            batch.put(BITMAPS, Bytes::copy_from_slice(&piece_key(1, 70)), vec![0; 64]);
            batch
        })
        .await;
        let target = opened(target).await;
        // New data find it, and nothing of it changes.
        parameters(&target).set("obdfilter.*.mb_last_group", "1").unwrap();
        fill(&target, 5, 5, 0..2 * MIB).await;
        assert_eq!(statistic(&target, "groups_damaged"), 1);
        target.ost.work().await;
        assert_eq!(noted(&target), 1);
        assert!(is_filled(&target, 5, 5, 0..2 * MIB).await);
    });
}

/// Damages a value of each group that has one.
fn damage(kv: &kv::Store, entropy: &SeededEntropy) -> kv::Batch {
    let mut batch = kv::Batch::default();
    batch.delete(META, Bytes::from_static(CLEAN_KEY));
    for group in 0..2 {
        let summary = (GROUPS, Bytes::copy_from_slice(&group_key(group)));
        let pieces = (0..64).map(|piece| (BITMAPS, Bytes::copy_from_slice(&piece_key(group, piece))));
        let entries = std::iter::once(summary).chain(pieces);
        let mut known: Vec<_> = entries
            .filter_map(|(table, key)| kv.get(table, &key).unwrap().map(|value| (table, key, value.to_vec())))
            .collect();
        if known.is_empty() || entropy.below(4) == 0 {
            continue;
        }
        // The summary as often as all pieces.
        let place = if entropy.below(2) == 0 { 0 } else { entropy.below(known.len() as u64) as usize };
        let (table, key, mut value) = known.swap_remove(place);
        match entropy.below(3) {
            0 => value.truncate(entropy.below(value.len() as u64) as usize),
            1 => value.push(entropy.below(256) as u8),
            _ => {
                let at = entropy.below(value.len() as u64) as usize;
                value[at] ^= 1 << entropy.below(8);
            }
        }
        batch.put(table, key, value);
    }
    batch
}

#[test]
fn random_damage_of_groups_is_never_a_panic_or_wrong_data() {
    for seed in 0..16 {
        run(async {
            let entropy = SeededEntropy::new(seed);
            let target = stopped(seed).await;
            change_tables(&target, |kv| damage(kv, &entropy)).await;
            let target = opened(target).await;
            let mut versions = vec![1, 2, 3, 4, 0, 0];
            for step in 0..12 {
                let number = 1 + entropy.below(6);
                let version = &mut versions[number as usize - 1];
                if entropy.below(3) == 0 {
                    target.done(OstRequest::Destroy(vec![object(number)], None)).await;
                    *version = 0;
                } else {
                    let data = pattern(100 + step, 0, 2 * MIB);
                    match target.write_with(object(number), 0, &data, false).await {
                        Ok(_) => *version = 100 + step,
                        // All groups may be out of use.
                        Err(error) => assert_eq!(error, FsError::NoSpace),
                    }
                }
                if entropy.below(3) == 0 {
                    target.sync().await;
                }
                if entropy.below(4) == 0 {
                    target.ost.work().await;
                }
                for (number, version) in (1..).zip(&versions).filter(|(_, version)| **version > 0) {
                    assert!(is_filled(&target, number, *version, 0..2 * MIB).await, "seed {seed}, object {number}");
                }
            }
            // All that is left is freed, so that each damaged group is found.
            target.done(OstRequest::Destroy((1..=6).map(object).collect(), None)).await;
            target.sync().await;
            let target = target.restart().await;
            assert_eq!(statistic(&target, "groups_damaged"), 0);
            assert_eq!(free(&target).await, 32_768 + 6144 - 2, "seed {seed}");
            fill(&target, 7, 7, 0..32 * MIB).await;
            assert!(is_filled(&target, 7, 7, 0..32 * MIB).await);
        });
    }
}
