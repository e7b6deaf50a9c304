//! A service that works on requests at once: those that began together end together, so that its
//! rate shows in lumps.

use tuner::{Limits, Measurement, Tuner};

const STEP_NS: u64 = 5_000_000;
/// Requests that programs keep under way.
const PROGRAMS: usize = 64;

/// 100 requests per second for each of up to 8 at once, and less with more of them.
fn rate(executing: usize) -> f64 {
    let executing = executing as f64;
    100.0 * executing.min(8.0) / (1.0 + 0.03 * (executing - 8.0).max(0.0))
}

/// Requests per second from 20 to 40 s, and what was decided.
fn run(start: u32) -> (f64, String) {
    let mut measured = Measurement::default();
    let mut tuner = Tuner::new(Limits::service_threads(2, 64), start, &measured);
    let (mut threads, mut next_ns) = (start, 0);
    // What has been done of each.
    let mut executing: Vec<f64> = Vec::new();
    let mut done = [0; 2];
    for (part, seconds) in [20u64, 40].into_iter().enumerate() {
        while measured.now_ns < seconds * 1_000_000_000 {
            while executing.len() < PROGRAMS.min(threads as usize) {
                executing.push(0.0);
            }
            measured.now_ns += STEP_NS;
            measured.busy_ns += STEP_NS * executing.len() as u64;
            let progress = rate(executing.len()) / executing.len() as f64 * STEP_NS as f64 / 1e9;
            executing.iter_mut().for_each(|part| *part += progress);
            let before = executing.len();
            executing.retain(|part| *part < 1.0);
            let ended = (before - executing.len()) as u64;
            done[part] += ended;
            measured.requests += ended;
            measured.work += ended;
            measured.waited += if (threads as usize) < PROGRAMS { ended } else { 0 };
            measured.waiting = (PROGRAMS - executing.len().max(threads as usize).min(PROGRAMS)) as u64;
            if measured.now_ns >= next_ns {
                let step = tuner.step(&measured);
                (threads, next_ns) = (step.setting, step.next_ns);
            }
        }
    }
    let log = tuner.log().map(|line| format!("\n{:.1} {line}", line.now_ns as f64 / 1e9)).collect();
    (done[1] as f64 / 20.0, log)
}

#[test]
fn requests_that_end_together_are_counted_in_time() {
    for start in [2, 3, 5, 13, 30, 64] {
        let (found, log) = run(start);
        assert!(found >= 0.95 * rate(8), "from {start}: {found} of {}{log}", rate(8));
    }
}
