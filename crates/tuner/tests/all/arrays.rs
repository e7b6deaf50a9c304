//! One tuner at work on arrays of drives as in study E2: curves and noise as in the lab
//! (docs/experiments.md, "E2 with tuners"). Drives with caches, streams that drift apart.

use tuner::Limits;

use crate::world::{Knob, Plant, World, between, jain};

/// Writes of 8 clients with a thread each, in MiB/s.
fn writes(threads: f64, _: f64) -> f64 {
    const POINTS: [(f64, f64); 8] = [
        (1.0, 73.0),
        (2.0, 100.0),
        (4.0, 302.0),
        (8.0, 421.0),
        (16.0, 463.0),
        (32.0, 492.0),
        (64.0, 533.0),
        (256.0, 557.0),
    ];
    between(&POINTS, threads)
}

/// The same, but half of it in the first seconds, as in the lab where the file begins.
fn slow_at_first(threads: f64, seconds: f64) -> f64 {
    if seconds < 6.0 && threads < 6.0 { 0.55 * writes(threads, seconds) } else { writes(threads, seconds) }
}

/// Reads of 8 clients with 8 threads each while the streams are in step.
fn reads(threads: f64, _: f64) -> f64 {
    const POINTS: [(f64, f64); 9] = [
        (1.0, 106.0),
        (2.0, 114.0),
        (4.0, 122.0),
        (8.0, 151.0),
        (16.0, 234.0),
        (32.0, 384.0),
        (64.0, 530.0),
        (128.0, 597.0),
        (256.0, 600.0),
    ];
    between(&POINTS, threads)
}

/// With many threads the streams drift apart within some seconds; with fewer they come together.
fn drift(threads: f64, _: f64) -> f64 {
    if threads > 100.0 { 0.15 } else { -0.4 }
}

/// Reads of 8 clients with 8 threads each, of streams that keep together or apart by themselves.
fn reads_in_step(threads: f64, _: f64) -> f64 {
    const POINTS: [(f64, f64); 7] =
        [(1.0, 130.0), (2.0, 230.0), (4.0, 480.0), (8.0, 600.0), (16.0, 633.0), (32.0, 644.0), (256.0, 648.0)];
    between(&POINTS, threads)
}

/// What part of that they do while they are out of step.
fn part_apart(threads: f64) -> f64 {
    const POINTS: [(f64, f64); 8] =
        [(1.0, 0.8), (2.0, 0.5), (8.0, 0.26), (16.0, 0.4), (32.0, 0.62), (64.0, 0.75), (128.0, 0.32), (256.0, 0.2)];
    between(&POINTS, threads)
}

/// The largest numbers take them apart within a second; somewhat smaller ones leave them as they
/// are; with few threads they slowly lose step.
fn drift_with_memory(threads: f64, apart: f64) -> f64 {
    match threads {
        threads if threads > 180.0 => 0.6,
        threads if threads > 100.0 => {
            if apart < 0.3 {
                -0.1
            } else {
                0.1
            }
        }
        threads if threads > 40.0 => -0.3,
        _ => {
            if apart < 0.5 {
                0.02
            } else {
                0.0
            }
        }
    }
}

fn log(world: &World) -> String {
    world.server.tuner().log().map(|line| format!("\n{:.1} {line}", line.now_ns as f64 / 1e9)).collect()
}

/// What one run reached of the best: means over 5 s from 20 s on are steady, and later it is this
/// part of it at least.
fn reached(world: &mut World, best: f64, least_later: f64, what: &str) -> f64 {
    let means = world.means(20..40);
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    let spread = means.iter().map(|one| (one / mean - 1.0).abs()).fold(0.0, f64::max);
    assert!(spread <= 0.06, "{what}: {:.1}%: {means:.0?}{}", spread * 100.0, log(world));
    let shares = world.run_until(50);
    assert!(jain(&shares) >= 0.95, "{what}: {shares:.0?}{}", log(world));
    let later = world.means(50..100);
    let of_later = later.iter().sum::<f64>() / later.len() as f64;
    for (mean, least) in [(mean, 0.93), (of_later, least_later)] {
        assert!(mean >= least * best, "{what}: {mean:.0} of {best:.0}: {means:.0?} {later:.0?}{}", log(world));
    }
    mean / best
}

/// Checks several courses of the same: each of them, and their mean. It is no worse later.
fn check(starts: &[u32], best: f64, world: impl Fn(u32) -> World) {
    check_later(starts, best, 0.93, world);
}

fn check_later(starts: &[u32], best: f64, least_later: f64, world: impl Fn(u32) -> World) {
    const SEEDS: u64 = 8;
    for start in starts {
        let of_seed = |seed| {
            let mut world = world(*start);
            world.skip_random(seed);
            reached(&mut world, best, least_later, &format!("from {start}, seed {seed}"))
        };
        let all: Vec<f64> = (0..SEEDS).map(of_seed).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean >= 0.95, "from {start}: {all:.3?}");
    }
}

/// A search costs no more than 3% of what the default does.
#[test]
fn the_default_is_kept_while_the_search_goes_on() {
    let of_seed = |seed| {
        let mut world = World::large_server_alone(writes, 256);
        (world.cache, world.lump_seconds) = (0.2, 0.07);
        world.skip_random(seed);
        world.run_until(40).iter().sum::<f64>() / writes(256.0, 0.0)
    };
    let all: Vec<f64> = (0..8).map(of_seed).collect();
    assert!(all.iter().sum::<f64>() / all.len() as f64 >= 0.97, "{all:.3?}");
}

/// What a plateau hides is found although nothing waited when the search began.
#[test]
fn the_largest_setting_is_tried_once_requests_wait() {
    fn plateau(threads: f64, _: f64) -> f64 {
        between(&[(1.0, 80.0), (16.0, 500.0), (160.0, 500.0), (256.0, 550.0)], threads)
    }
    let mut world = World::large_server_alone(plateau, 64);
    world.noise = 0.01;
    world.demand = |seconds| if seconds < 4.0 { 20.0 } else { 300.0 };
    world.run_until(30);
    assert_eq!(world.server.tuner().setting(), 256, "{}", log(&world));
}

#[test]
fn caches_that_fill_and_drain_do_not_hide_what_is_best() {
    for plant in [writes as Plant, slow_at_first] {
        check(&[1, 64, 256], writes(256.0, 0.0), |start| {
            let mut world = World::large_server_alone(plant, start);
            (world.cache, world.lump_seconds) = (0.2, 0.07);
            world
        });
    }
}

/// Many threads do more for some seconds, and then a third.
#[test]
fn a_rate_that_falls_after_seconds_leads_back() {
    check(&[1, 64, 256], reads(64.0, 0.0), |start| {
        let mut world = World::large_server_alone(reads, start);
        world.drift = drift;
        world
    });
}

/// The largest numbers take streams apart at once, and what was before does not bring them
/// together again; where fewer bring them together, the largest ones do as much for a moment.
#[test]
fn a_trial_that_harms_or_helps_does_not_lead_astray() {
    // Once a minute at most it is tried again, and some seconds are lost.
    const LEAST: f64 = 0.88;
    let world = |start| {
        let mut world = World::large_server_alone(reads_in_step, start);
        (world.drift, world.part_apart, world.apart) = (drift_with_memory, part_apart, 1.0);
        world
    };
    check_later(&[1, 64, 256], reads_in_step(64.0, 0.0), LEAST, world);
    check_later(&[64, 256], reads_in_step(64.0, 0.0), LEAST, |start| {
        let mut world = world(start);
        (world.cache, world.lump_seconds, world.noise) = (0.05, 0.1, 0.3);
        world
    });
}

/// Eight clients and their server, all of which have tuners.
#[test]
fn clients_and_their_server_do_not_chase_each_other() {
    for client in [1, 64] {
        check(&[1, 64, 256], writes(256.0, 0.0), |start| {
            let limits = Limits::requests_in_flight(1, 64);
            let clients = (0..8).map(|index| Knob::tuned(limits, client, 7_000_000 * index)).collect();
            let server = Knob::tuned(Limits::service_threads(2, 256), start, 0);
            let mut world = World::new(writes, server, clients);
            (world.cache, world.lump_seconds) = (0.2, 0.07);
            world
        });
    }
}
