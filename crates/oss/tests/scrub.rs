//! Comparing all data with their checksums, in the background.

use crate::common;

use std::{sync::atomic::Ordering, time::Duration};

use common::{
    BLOCK, DEVICE, KIB, MIB, TestOst, cold_config, fill, is_filled, object, on_all, parameter, parameters, pattern,
    quiet_options, run, statistic_of,
};
use oss::{
    Engine, OstOptions,
    directory::{device::DEVICE_FILE, host_file},
};
use rpc::message::{
    OstReply, OstRequest,
    ost::{ExtentPlace, ExtentsQuery, SpaceChange},
};
use rt::{Device, memory::MemoryDevice};
use types::SplitMix64;

/// Long enough for anything here, however busy the host is.
const PATIENCE: Duration = Duration::from_secs(60);

async fn target_with(engine: Engine, options: OstOptions) -> TestOst {
    TestOst::with_all(engine, 1, MemoryDevice::new(), options, cold_config()).await
}

fn statistic(target: &TestOst, name: &str) -> u64 {
    statistic_of(target, "scrub_report", name)
}

fn set(target: &TestOst, name: &str, value: &str) {
    parameters(target).set(&format!("obdfilter.*.{name}"), value).unwrap();
}

async fn until(target: &TestOst, reached: impl Fn(&TestOst) -> bool) {
    let begun = std::time::Instant::now();
    while !reached(target) {
        assert!(begun.elapsed() < PATIENCE, "{}", parameter(target, "scrub_report"));
        tokio::task::yield_now().await;
    }
}

async fn completed(target: &TestOst) {
    until(target, |target| parameter(target, "scrub") == "completed").await;
}

async fn scrub(target: &TestOst) {
    set(target, "scrub", "start");
    completed(target).await;
}

/// The lines that name damage.
fn damage(target: &TestOst) -> Vec<String> {
    let report = parameter(target, "scrub_report");
    let lines = report.lines().filter_map(|line| line.strip_prefix("damage "));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// The file with a block of an object, and the block's place there.
async fn place(target: &TestOst, number: u64, block: u64) -> (String, u64) {
    let query = ExtentsQuery { object: object(number), offset: block * BLOCK, bytes: BLOCK, extents_max: 1 };
    let OstReply::Extents(found) = target.ask(OstRequest::Extents(query)).await.unwrap() else { panic!() };
    match found.extents[0].place {
        ExtentPlace::Device(at) => (DEVICE_FILE.to_owned(), at),
        ExtentPlace::HostFile => (host_file(object(number)), block * BLOCK),
        ExtentPlace::Tables => panic!("in the tables"),
    }
}

async fn flip_bit(target: &TestOst, number: u64, block: u64) {
    let (file, at) = place(target, number, block).await;
    target.objects.flip_bit(&file, at + 17, 3);
}

fn named(number: u64, blocks: std::ops::Range<u64>) -> String {
    format!("object {} bytes {}..{}", object(number), blocks.start * BLOCK, blocks.end * BLOCK)
}

#[test]
fn damage_is_found_counted_and_named() {
    on_all(async |engine| {
        let target = target_with(engine, quiet_options()).await;
        assert_eq!(parameter(&target, "scrub"), "init");
        for number in 1..=3 {
            fill(&target, number, number, 0..2 * MIB).await;
        }
        target.write(object(4), 0, &pattern(4, 0, 10 * KIB)).await;
        target.truncate(object(5), 1 << 40).await;
        target.sync().await;
        scrub(&target).await;
        assert_eq!(statistic(&target, "bytes_checked"), 6 * MIB + 12 * KIB, "also what is in the tables");
        assert_eq!((statistic(&target, "damaged_blocks"), statistic(&target, "progress_pct")), (0, 100));
        for block in [5, 6, 255, 256, 300] {
            flip_bit(&target, 1, block).await;
        }
        *target.probe.unreadable.lock() = Some(place(&target, 3, 511).await);
        scrub(&target).await;
        let expected = [named(1, 5..7), named(1, 255..257), named(1, 300..301), named(3, 511..512)];
        assert_eq!(damage(&target), expected, "{}", parameter(&target, "scrub_report"));
        assert_eq!((statistic(&target, "damaged_blocks"), statistic(&target, "damaged_objects")), (6, 2));
        assert_eq!(statistic(&target, "bytes_checked"), 6 * MIB + 12 * KIB, "it goes on after damage");
        // What is written anew is whole again.
        *target.probe.unreadable.lock() = None;
        fill(&target, 1, 9, 0..2 * MIB).await;
        let target = target.restart().await;
        assert_eq!(damage(&target), expected, "the last report is kept");
        scrub(&target).await;
        assert_eq!((damage(&target), statistic(&target, "damaged_objects")), (Vec::new(), 0));
        assert!(is_filled(&target, 1, 9, 0..2 * MIB).await && is_filled(&target, 3, 3, 0..2 * MIB).await);
    });
}

/// The blocks that the scrub is about to read belong to others by the time it reads them.
#[test]
fn blocks_that_are_used_again_while_they_are_read_are_no_damage() {
    run(async {
        let target = target_with(DEVICE, quiet_options()).await;
        fill(&target, 1, 1, 0..4 * MIB).await;
        target.sync().await;
        let (_, first) = place(&target, 1, 0).await;
        target.probe.hold_reads();
        set(&target, "scrub", "start");
        until(&target, |target| target.probe.reading.load(Ordering::Relaxed)).await;
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        target.sync().await;
        fill(&target, 2, 2, 0..14 * MIB).await;
        let (held, _) = target.objects.read(DEVICE_FILE, first, vec![0; BLOCK as usize]).await.unwrap();
        assert_ne!(held, pattern(1, 0, BLOCK), "the place has another's data");
        target.probe.release_reads();
        completed(&target).await;
        assert_eq!((statistic(&target, "damaged_blocks"), damage(&target)), (0, Vec::new()));
    });
}

/// An overwrite does not wait for the scrub.
#[test]
fn writers_do_not_wait_for_what_the_scrub_reads() {
    on_all(async |engine| {
        let target = target_with(engine, quiet_options()).await;
        fill(&target, 1, 1, 0..MIB).await;
        target.sync().await;
        target.probe.hold_reads();
        set(&target, "scrub", "start");
        until(&target, |target| target.probe.reading.load(Ordering::Relaxed)).await;
        fill(&target, 1, 2, 0..MIB).await;
        target.truncate(object(1), 128 * KIB).await;
        target.probe.release_reads();
        completed(&target).await;
        assert_eq!(statistic(&target, "damaged_blocks"), 0);
    });
}

#[test]
fn a_store_in_use_has_no_false_alarms() {
    on_all(async |engine| {
        let target = target_with(engine, quiet_options()).await;
        target.probe.slow.store(true, Ordering::Relaxed);
        let mut random = SplitMix64(7);
        let mut scrubs = 0;
        for step in 0..1500u64 {
            if parameter(&target, "scrub") != "scanning" {
                scrubs += 1;
                set(&target, "scrub", "start");
            }
            let number = 1 + (random.next_u64() % 6);
            let offset = (random.next_u64() % 32) * 16 * KIB;
            match random.next_u64() % 12 {
                0 => target.done(OstRequest::Destroy(vec![object(number)], None)).await,
                1 => drop(target.truncate(object(number), offset).await),
                2 => {
                    let change = SpaceChange::Punch { offset, bytes: 128 * KIB };
                    target.space(object(number), change).await.unwrap();
                }
                3 => target.sync().await,
                4 => target.ost.work().await,
                kind => {
                    let bytes = if kind < 8 { 7 * KIB } else { 96 * KIB };
                    target.write(object(number), offset, &pattern(step, offset, bytes)).await;
                }
            }
            assert_eq!(statistic(&target, "damaged_blocks"), 0, "step {step}: {}", parameter(&target, "scrub_report"));
        }
        completed(&target).await;
        assert_eq!(statistic(&target, "damaged_blocks"), 0);
        assert!(scrubs > 0 && statistic(&target, "bytes_checked") > 0, "{scrubs}");
    });
}

#[test]
fn a_scrub_goes_on_after_a_restart() {
    run(async {
        let slow = OstOptions { scrub_bytes_per_second: 1, ..quiet_options() };
        let mut target = target_with(DEVICE, slow).await;
        fill(&target, 1, 1, 0..4 * MIB).await;
        target.sync().await;
        flip_bit(&target, 1, 3).await;
        set(&target, "scrub", "start");
        until(&target, |target| statistic(target, "bytes_checked") == MIB).await;
        assert_eq!((statistic(&target, "progress_pct"), statistic(&target, "damaged_blocks")), (25, 1));
        target.options.scrub_bytes_per_second = 0;
        // Repaired, so that it would not be found once more.
        flip_bit(&target, 1, 3).await;
        let target = target.restart().await;
        completed(&target).await;
        assert_eq!((statistic(&target, "bytes_checked"), damage(&target)), (4 * MIB, vec![named(1, 3..4)]));
    });
}

/// What was read since the position was written down is read again, and counted once.
#[test]
fn a_scrub_goes_on_after_kills_and_losses_of_power() {
    const OBJECTS: u64 = 12;
    on_all(async |engine| {
        for seed in 1..=6 {
            let mut random = SplitMix64(seed);
            let mut target = target_with(engine, quiet_options()).await;
            for number in 1..=OBJECTS {
                fill(&target, number, number, 0..MIB).await;
            }
            target.sync().await;
            let made: Vec<(u64, u64)> = [2, 5, 6, 11].map(|number| (number, random.next_u64() % (MIB / BLOCK))).into();
            for (number, block) in &made {
                flip_bit(&target, *number, *block).await;
            }
            for round in 0..8 {
                // The beginning, too, may be lost.
                set(&target, "scrub", "start");
                let before = statistic(&target, "bytes_checked");
                until(&target, |target| {
                    statistic(target, "bytes_checked") >= before + 2 * MIB || parameter(target, "scrub") == "completed"
                })
                .await;
                let (number, offset) = (OBJECTS + 1 + random.next_u64() % 3, random.next_u64() % MIB);
                target.write(object(number), offset, &pattern(round, offset, 96 * KIB)).await;
                if random.next_u64().is_multiple_of(2) {
                    target.sync().await;
                }
                target = match random.next_u64() % 3 {
                    0 => target.crash().await,
                    1 => target.power_loss(seed * 100 + round).await,
                    _ => target.restart().await,
                };
            }
            for number in OBJECTS + 1..=OBJECTS + 3 {
                target.done(OstRequest::Destroy(vec![object(number)], None)).await;
            }
            scrub(&target).await;
            let expected: Vec<_> = made.iter().map(|(number, block)| named(*number, *block..block + 1)).collect();
            assert_eq!(damage(&target), expected, "seed {seed}: {}", parameter(&target, "scrub_report"));
            assert_eq!(statistic(&target, "damaged_blocks"), made.len() as u64, "seed {seed}");
            set(&target, "scrub", "reset");
            completed(&target).await;
            assert_eq!((damage(&target), statistic(&target, "bytes_checked")), (expected, OBJECTS * MIB));
        }
    });
}

/// A disk may try each block for seconds.
#[test]
fn a_scrub_of_a_failing_disk_ends_between_two_blocks_and_writers_wait_for_one() {
    on_all(async |engine| {
        let target = target_with(engine, quiet_options()).await;
        fill(&target, 1, 1, 0..MIB).await;
        target.sync().await;
        // A target that is opened again has another probe.
        let first = target.probe.clone();
        let failed = |target: &TestOst| target.probe.failed_reads.load(Ordering::Relaxed);
        target.probe.fail_reads.store(true, Ordering::Relaxed);
        set(&target, "scrub", "start");
        until(&target, |target| failed(target) > 3).await;
        let before = failed(&target);
        fill(&target, 1, 2, 128 * KIB..256 * KIB).await;
        assert!(failed(&target) - before < 20, "{} reads came first", failed(&target) - before);
        set(&target, "scrub", "stop");
        let before = failed(&target);
        let target = target.restart().await;
        let more = first.failed_reads.load(Ordering::Relaxed) - before;
        assert!(more < 3, "{more} reads came first");
        assert_eq!((parameter(&target, "scrub").as_str(), statistic(&target, "damaged_blocks")), ("stopped", 0));
        target.probe.fail_reads.store(true, Ordering::Relaxed);
        set(&target, "scrub", "start");
        until(&target, |target| failed(target) > 3).await;
        let probe = target.probe.clone();
        let target = target.restart().await;
        assert!(probe.failed_reads.load(Ordering::Relaxed) < 10, "the end of the target waits for one read");
        completed(&target).await;
        assert_eq!((statistic(&target, "bytes_checked"), damage(&target)), (MIB, Vec::new()));
    });
}

#[test]
fn a_scrub_that_was_stopped_goes_on_when_it_is_started() {
    run(async {
        let slow = OstOptions { scrub_bytes_per_second: 1, ..quiet_options() };
        let target = target_with(DEVICE, slow).await;
        fill(&target, 1, 1, 0..4 * MIB).await;
        target.sync().await;
        set(&target, "scrub", "start");
        until(&target, |target| statistic(target, "bytes_checked") == MIB).await;
        set(&target, "scrub", "stop");
        let target = target.restart().await;
        assert_eq!((parameter(&target, "scrub").as_str(), statistic(&target, "bytes_checked")), ("stopped", MIB));
        set(&target, "scrub_mbps", "0");
        scrub(&target).await;
        assert_eq!(statistic(&target, "bytes_checked"), 4 * MIB, "each once");
        set(&target, "scrub", "reset");
        completed(&target).await;
        assert_eq!(statistic(&target, "bytes_checked"), 4 * MIB);
        for (name, value) in [("scrub", "faster"), ("scrub", ""), ("scrub_mbps", "-1"), ("auto_scrub", "x")] {
            assert!(parameters(&target).set(&format!("obdfilter.*.{name}"), value).is_err(), "{name}={value}");
        }
        assert!(parameters(&target).set("obdfilter.*.scrub_report", "1").is_err());
        assert_eq!(OstOptions::default().scrub_bytes_per_second, 64 << 20);
    });
}

#[test]
fn one_begins_by_itself_if_that_is_wanted() {
    run(async {
        let often = Duration::from_millis(1);
        let target = target_with(DEVICE, OstOptions { commit_interval: often, ..quiet_options() }).await;
        fill(&target, 1, 1, 0..MIB).await;
        set(&target, "auto_scrub", "3600");
        completed(&target).await;
        assert_eq!(statistic(&target, "damaged_blocks"), 0);
    });
}
