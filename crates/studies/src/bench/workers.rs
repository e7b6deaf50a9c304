//! Workers: threads that start a phase together, do their share, and are timed by the slowest, as
//! MPI ranks are.

use std::{
    io,
    sync::Barrier,
    time::{Duration, Instant},
};

/// Runs `work(rank)` on `workers` threads at once; the time from the first one's start to the last
/// one's end.
pub fn run(workers: usize, work: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<Duration> {
    let barrier = Barrier::new(workers);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|rank| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let outcome = work(rank);
                    (start, Instant::now(), outcome)
                })
            })
            .collect();
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for handle in handles {
            let (start, end, outcome) = handle.join().map_err(|_| io::Error::other("a benchmark worker panicked"))?;
            outcome?;
            starts.push(start);
            ends.push(end);
        }
        let (Some(first), Some(last)) = (starts.into_iter().min(), ends.into_iter().max()) else {
            return Ok(Duration::ZERO);
        };
        Ok(last - first)
    })
}

/// Processor time used so far by this process, all threads.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Processor time used so far by another process; zero if it is gone.
pub fn cpu_of(process: u32) -> Duration {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return Duration::ZERO };
    let Some((_, fields)) = text.rsplit_once(") ") else { return Duration::ZERO };
    let mut times = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap_or(0));
    let ticks = times.next().unwrap_or(0) + times.next().unwrap_or(0);
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
