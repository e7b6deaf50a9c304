//! Tests of the array: geometry, and what streams cost.

use std::{collections::BTreeSet, future::poll_fn, task::Poll, time::Duration};

use lab::executor::RunLimits;

use super::*;
use crate::model::spindle::zeros;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Eight drives of 100 MiB/s with data, in stripes of 1 MiB.
const MODEL: RaidModel = RaidModel {
    data_drives: 8,
    parity_drives: 2,
    chunk_bytes: 128 * KIB,
    cache_stripes: 8,
    misaligned_bytes: 0,
    drive: DriveModel {
        positioning: Duration::from_millis(8),
        rotation: Duration::from_micros(8333),
        bytes_per_second: 100 * MIB,
        write_cache_bytes: 0,
        read_ahead: None,
    },
};
/// With drives that have a write cache.
const CACHED: RaidModel = RaidModel { drive: DriveModel { write_cache_bytes: 64 * MIB, ..MODEL.drive }, ..MODEL };
const MISALIGNED: RaidModel = RaidModel { misaligned_bytes: 260 * KIB, ..MODEL };

/// One call of 1 MiB.
fn call(array: &Raid, access: Access, offset: u64) -> BoxFuture<'static, io::Result<()>> {
    match access {
        Access::Write => array.write("f", offset, vec![zeros(MIB as usize)]),
        Access::Read => {
            let read = array.read("f", offset, vec![0; MIB as usize]);
            Box::pin(async move { read.await.map(drop) })
        }
    }
}

/// Makes calls from `first` on, in order, `depth` of them at a time.
async fn stream(array: Raid, access: Access, first: u64, calls: u64, depth: usize) {
    let mut waiting = (first..first + calls).map(|number| call(&array, access, number * MIB));
    let mut running = Vec::new();
    loop {
        running.extend(waiting.by_ref().take(depth - running.len()));
        if running.is_empty() {
            return;
        }
        poll_fn(|context| {
            let before = running.len();
            running.retain_mut(|one| match one.as_mut().poll(context) {
                Poll::Ready(outcome) => {
                    outcome.unwrap();
                    false
                }
                Poll::Pending => true,
            });
            if running.len() < before { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Lets each stream write or read so many MiB, `depth` calls of 1 MiB at a time; MiB/s of all, and
/// what the array did.
fn rate(model: RaidModel, access: Access, streams: u64, calls: u64, depth: usize) -> (f64, RaidStatistics) {
    let simulation = Simulation::new(1);
    let raid = Raid::new(&simulation, model);
    let (clock, array) = (simulation.clone(), raid.clone());
    let seconds = simulation.run(RunLimits::default(), async move {
        if access == Access::Read {
            array.truncate("f", streams * calls * MIB).await.unwrap();
        }
        let begun = clock.now();
        let (finished, mut all) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..streams {
            let (work, finished) = (stream(array.clone(), access, number * calls, calls, depth), finished.clone());
            let task = async move {
                work.await;
                finished.send(()).unwrap();
            };
            clock.spawn(ProcessId(1), "stream", Box::pin(task));
        }
        for _ in 0..streams {
            all.recv().await.unwrap();
        }
        clock.now().since(begun).as_secs_f64()
    });
    ((streams * calls) as f64 / seconds.unwrap(), raid.statistics())
}

#[test]
fn chunks_of_a_stripe_are_on_different_drives_and_parity_rotates() {
    let mut with_parity = vec![0; 10];
    for stripe in 0..10 {
        let drives: BTreeSet<usize> = (0..10).map(|chunk| MODEL.drive_of(stripe, chunk)).collect();
        assert_eq!(drives.len(), 10);
        (8..10).for_each(|parity| with_parity[MODEL.drive_of(stripe, parity)] += 1);
    }
    assert_eq!(with_parity, [2; 10]);
}

#[test]
fn a_partial_stripe_reads_what_is_less() {
    let chunk = MODEL.chunk_bytes;
    // Six of eight chunks: the other two.
    let most = MODEL.read_before(std::slice::from_ref(&(2 * chunk..8 * chunk)));
    assert_eq!(most, [(0, 0..chunk), (1, 0..chunk)]);
    // 4 KiB of one chunk: itself and its parity.
    let little = MODEL.read_before(std::slice::from_ref(&(chunk..chunk + 4 * KIB)));
    assert_eq!(little, [(1, 0..4 * KIB), (8, 0..4 * KIB), (9, 0..4 * KIB)]);
    assert!(MODEL.read_before(std::slice::from_ref(&(0..MODEL.stripe_bytes()))).is_empty());
}

#[test]
fn one_aligned_stream_writes_whole_stripes_at_the_drives_rate() {
    let (rate, did) = rate(MODEL, Access::Write, 1, 256, 4);
    assert!((700.0..801.0).contains(&rate), "{rate} MiB/s");
    assert_eq!(did, RaidStatistics { whole: 256, partial: 0 });
}

#[test]
fn calls_without_a_pause_keep_up_with_the_platters() {
    let one = rate(MODEL, Access::Write, 1, 64, 1).0;
    let four = rate(MODEL, Access::Write, 1, 64, 4).0;
    // The next one comes in time; `drive` tests what a pause costs.
    assert!(one > 700.0 && four > 700.0, "{one} and {four} MiB/s");
}

#[test]
fn a_write_cache_hides_the_turns_but_not_the_rate() {
    let (rate, did) = rate(CACHED, Access::Write, 1, 4096, 1);
    // The caches of all drives together keep 640 of 4096 MiB, and a fifth of that is parity.
    assert!((760.0..=950.0).contains(&rate), "{rate} MiB/s");
    assert_eq!(did, RaidStatistics { whole: 4096, partial: 0 });
}

#[test]
fn a_flush_waits_for_what_the_caches_hold() {
    let simulation = Simulation::new(1);
    let (clock, raid) = (simulation.clone(), Raid::new(&simulation, CACHED));
    let ran = simulation.run(RunLimits::default(), async move {
        raid.write("f", 0, vec![zeros(MIB as usize)]).await.unwrap();
        let written = clock.now();
        raid.flush("f").await.unwrap();
        let flushed = clock.now();
        raid.flush("f").await.unwrap();
        (written.0, flushed.since(written) >= Duration::from_millis(1), clock.now() == flushed)
    });
    assert_eq!(ran.unwrap(), (1, true, true));
}

#[test]
fn misaligned_calls_of_one_stream_complete_each_others_stripes() {
    let (rate, did) = rate(MISALIGNED, Access::Write, 1, 512, 8);
    assert!(did.partial * 2 < did.whole, "{did:?}");
    assert!(rate > 100.0, "{rate} MiB/s");
}

#[test]
fn many_misaligned_streams_break_stripes_apart() {
    let (one, _) = rate(MISALIGNED, Access::Write, 1, 512, 8);
    let (many, did) = rate(MISALIGNED, Access::Write, 16, 32, 1);
    assert!(did.partial > did.whole, "{did:?}");
    assert!(many < one, "{many} against {one} MiB/s");
}

#[test]
fn readers_of_different_places_cost_positionings() {
    let one = rate(MODEL, Access::Read, 1, 256, 8).0;
    let sixteen = rate(MODEL, Access::Read, 16, 16, 1).0;
    assert!(one > 600.0, "{one} MiB/s");
    assert!(sixteen < one, "{sixteen} MiB/s");
}

#[test]
fn contents_other_than_zeros_are_refused_and_lengths_are_kept() {
    let simulation = Simulation::new(1);
    let raid = Raid::new(&simulation, MISALIGNED);
    let ran = simulation.run(RunLimits::default(), async move {
        raid.write("f", 0, vec![zeros(5000)]).await.unwrap();
        raid.flush("f").await.unwrap();
        let (data, bytes) = raid.read("f", 1000, vec![7; 9000]).await.unwrap();
        assert!(bytes == 4000 && data[..bytes].iter().all(|byte| *byte == 0));
        assert_eq!(raid.length("f").await.unwrap(), Some(5000));
        assert_eq!(raid.list("").await.unwrap(), ["f"]);
        raid.remove("f").await.unwrap();
        assert_eq!(raid.length("f").await.unwrap(), None);
        raid.write("f", 0, vec![vec![0, 1].into()]).await.map_err(|error| error.kind())
    });
    assert_eq!(ran.unwrap(), Err(io::ErrorKind::InvalidInput));
}
