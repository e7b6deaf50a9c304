//! One tuner at work.

use tuner::{Limits, Measurement, Outcome, Tuner};

use crate::world::{Knob, Plant, World, assert_good, best};

/// A disk that does somewhat more with more to choose from.
fn saturating(threads: f64, _: f64) -> f64 {
    1600.0 * threads / (threads + 2.0)
}

/// A disk with 8 heads' worth of work, that loses time between too many streams.
fn falling(threads: f64, _: f64) -> f64 {
    100.0 * threads.min(8.0) / (1.0 + 0.03 * (threads - 8.0).max(0.0))
}

/// 12 processors, and a cost for each change between more threads than that.
fn processors(threads: f64, _: f64) -> f64 {
    2000.0 * threads.min(12.0) / (1.0 + 0.01 * (threads - 12.0).max(0.0))
}

/// Nothing changes with the number.
fn indifferent(threads: f64, _: f64) -> f64 {
    if threads < 1.0 { 3000.0 * threads } else { 3000.0 }
}

/// The best number goes from 4 to 24 and back.
fn changing(threads: f64, seconds: f64) -> f64 {
    let best = if (40.0..80.0).contains(&seconds) { 24.0 } else { 4.0 };
    150.0 * threads.min(best) / (1.0 + 0.04 * (threads - best).max(0.0))
}

/// A disk that pauses for 300 ms every 2 s.
fn pausing(threads: f64, seconds: f64) -> f64 {
    if seconds % 2.0 < 0.3 { 0.0 } else { saturating(threads, seconds) }
}

/// 4 s for each request.
fn slow(threads: f64, _: f64) -> f64 {
    0.25 * threads
}

const PLANTS: &[(&str, Plant)] =
    &[("saturating", saturating), ("falling", falling), ("processors", processors), ("indifferent", indifferent)];

#[test]
fn service_threads_are_within_5_percent_of_the_best_after_20_seconds() {
    for (name, plant) in PLANTS {
        for start in [1, 64, 12] {
            let mut world = World::server_alone(*plant, start);
            if *name == "processors" {
                world.processors = Some(12.0);
            }
            let means = world.means(20..80);
            let log: Vec<String> = world.server.tuner().log().map(ToString::to_string).collect();
            assert_good(&means, best(*plant, 0.0), &format!("{name} from {start}: {}", log.join("\n")));
        }
    }
}

/// A pause hits some windows of a trial: no setting is taken that does less. What is better is
/// found more slowly than without pauses.
#[test]
fn pauses_do_not_lead_astray() {
    for (start, least) in [(1, 0.9), (12, 0.97), (64, 0.97)] {
        let mut world = World::server_alone(pausing, start);
        world.run_until(30);
        let mean = world.run_until(90).iter().sum::<f64>();
        let log: Vec<_> = world.server.tuner().log().collect();
        for decision in &log {
            let rate = |threads: u32| saturating(threads.into(), 0.0);
            assert!(rate(decision.setting) >= 0.97 * rate(decision.from), "from {start}: {decision}");
        }
        let goal = 0.85 * saturating(f64::from(start.max(12)), 0.0);
        let log: Vec<String> = log.iter().map(ToString::to_string).collect();
        assert!(mean >= least * goal, "from {start}: {mean:.0} of {goal:.0}: {}", log.join("\n"));
    }
}

/// With a few threads fewer requests end than are needed for a comparison.
#[test]
fn few_threads_are_no_trap_for_slow_requests() {
    for start in [1, 2] {
        let mut world = World::server_alone(slow, start);
        world.run_until(90);
        let log: Vec<_> = world.server.tuner().log().collect();
        assert_eq!(log[0].outcome, Outcome::TooFew);
        assert!(world.server.tuner().setting() >= 16, "from {start}: {}", world.server.tuner().setting());
    }
}

/// Two requests at once, of 64 that may be: none of them is made to wait.
#[test]
fn a_light_load_is_not_made_to_wait() {
    let mut world = World::server_alone(saturating, 64);
    world.demand = |_| 2.0;
    world.clients[0].setting = 2;
    world.run_until(60);
    assert_eq!((world.server.tuner().setting(), world.server.tuner().log().count()), (64, 0));
}

/// Few threads are preferred where more do nothing: memory and latency are not for free.
#[test]
fn threads_that_do_nothing_are_given_up() {
    let mut world = World::server_alone(indifferent, 64);
    world.run_until(60);
    assert!(world.server.tuner().setting() <= 8, "{}", world.server.tuner().setting());
}

#[test]
fn a_load_that_changes_is_followed() {
    let mut world = World::server_alone(changing, 1);
    assert_good(&world.means(20..40), best(changing, 0.0), "the first");
    assert_good(&world.means(60..80), best(changing, 50.0), "the second");
    assert_good(&world.means(100..120), best(changing, 0.0), "the first again");
}

/// What is known is kept, and the time without load is no measurement: not of the present setting,
/// nor of one that was tried when the load ended.
#[test]
fn a_load_that_comes_again_after_a_pause_finds_its_setting() {
    for requests in [0, 30] {
        for ends in 20..28 {
            let mut world = World::server_alone(falling, 64);
            world.run_until(ends);
            for round in 0..3 {
                world.pause(60, requests);
                let start = ends + 66 * round + 60;
                let mean = world.run_until(start + 6).iter().sum::<f64>();
                let log: Vec<String> = world.server.tuner().log().map(ToString::to_string).collect();
                let what = format!("{requests} requests, pause at {ends} s: {}", log.join("\n"));
                assert!(mean >= 0.9 * best(falling, 0.0), "{mean:.0}: {what}");
                assert!(world.server.tuner().log().all(|decision| decision.outcome != Outcome::TooFew), "{what}");
            }
        }
    }
}

#[test]
fn the_default_is_not_made_worse() {
    for (name, plant) in PLANTS {
        for start in [12, 64] {
            let default = plant(f64::from(start), 0.0);
            let mut world = World::server_alone(*plant, start);
            let whole = world.means(0..60);
            let mean = whole.iter().sum::<f64>() / whole.len() as f64;
            assert!(mean >= 0.97 * default, "{name}: {mean} of {default}");
        }
    }
}

/// Much noise: the trials show nothing, so nothing changes for the worse.
#[test]
fn noise_does_not_lead_astray() {
    for (name, plant) in PLANTS {
        for start in [8, 64] {
            let mut world = World::server_alone(*plant, start);
            world.noise = 0.9;
            let default = plant(f64::from(start), 0.0);
            let means = world.means(20..80);
            let mean = means.iter().sum::<f64>() / means.len() as f64;
            assert!(mean >= 0.92 * default, "{name} from {start}: {mean} of {default}");
        }
    }
}

/// A client whose own requests in flight cost it time, as threads of a busy host do.
#[test]
fn requests_in_flight_are_within_5_percent_of_the_best() {
    fn cost(in_flight: f64) -> f64 {
        1.0 / (1.0 + 0.03 * (in_flight - 4.0).max(0.0))
    }
    for start in [1, 64] {
        let client = Knob::tuned(Limits::requests_in_flight(1, 64), start, 0);
        let mut world = World::new(falling, Knob::fixed(64), vec![client]);
        world.client_cost = cost;
        let best = (1..=64).map(|count| falling(f64::from(count), 0.0) * cost(f64::from(count))).fold(0.0, f64::max);
        assert_good(&world.means(20..80), best, &format!("from {start}"));
    }
}

/// Half of the processors are idle: what executes at once is not limited by the threads.
#[test]
fn a_setting_that_limits_nothing_stays() {
    let mut world = World::server_alone(saturating, 16);
    world.demand = |_| 4.0;
    world.run_until(60);
    assert_eq!(world.server.tuner().setting(), 16);
}

#[test]
fn without_work_nothing_changes() {
    let limits = Limits::service_threads(1, 64);
    let mut measured = Measurement::default();
    let mut tuner = Tuner::new(limits, 7, &measured);
    for _ in 0..1000 {
        let step = tuner.step(&measured);
        assert_eq!(step.setting, 7);
        measured.now_ns = step.next_ns;
    }
    assert_eq!(tuner.log().count(), 0);
}

/// A load that ends in the middle of a trial leaves the setting that was there before.
#[test]
fn a_trial_without_work_is_abandoned() {
    let limits = Limits::service_threads(1, 64);
    let mut measured = Measurement::default();
    let mut tuner = Tuner::new(limits, 7, &measured);
    for _ in 0..100 {
        let step = tuner.step(&measured);
        measured.now_ns = step.next_ns;
        if step.setting == 7 {
            (measured.requests, measured.work) = (measured.requests + 100, measured.work + 100);
            measured.waited += 100;
        }
    }
    assert_eq!(tuner.setting(), 7);
    let outcomes: Vec<_> = tuner.log().map(|decision| decision.outcome).collect();
    assert!(!outcomes.is_empty() && outcomes.iter().all(|outcome| *outcome == Outcome::Abandoned), "{outcomes:?}");
}

#[test]
fn settings_stay_within_their_limits_whatever_is_measured() {
    let limits = Limits::service_threads(3, 11);
    let mut measured = Measurement::default();
    let mut tuner = Tuner::new(limits, 1000, &measured);
    assert_eq!(tuner.setting(), 11);
    let mut random = 1u64;
    for round in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let step = tuner.step(&measured);
        assert!((3..=11).contains(&step.setting), "{step:?}");
        // Counters that go back were reset; times come early, late and at once.
        measured.now_ns += (random >> 20) % 400_000_000;
        measured.requests = if round % 97 == 0 { 0 } else { measured.requests + (random >> 33) % 500 };
        measured.work = measured.requests.saturating_mul(random >> 60);
        measured.busy_ns = measured.busy_ns.wrapping_add(random >> 30);
        measured.waited = measured.requests;
        measured.processors = Some((random >> 50) as f64 / 10_000.0);
    }
}
