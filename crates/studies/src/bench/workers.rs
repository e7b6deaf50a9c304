//! Workers: threads that start a phase together, do their share, and are timed by the slowest, as
//! MPI ranks are.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
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

/// Waits until this process uses hardly any processor time, a few seconds at most: so that what
/// servers in it still have to do after one block is not counted with the next.
pub fn settle() {
    const WINDOW: Duration = Duration::from_millis(10);
    const WINDOWS_MAX: u32 = 300;
    for _ in 0..WINDOWS_MAX {
        let before = own_cpu();
        std::thread::sleep(WINDOW);
        if own_cpu().saturating_sub(before) < WINDOW / 20 {
            return;
        }
    }
}

/// Writes so many bytes to a file in this directory and removes it, so that what is written next
/// finds memory that the host has just used: a virtual machine may have to get other memory from
/// its own host first, at several times the cost of the write.
pub fn warm_memory(directory: &Path, bytes: u64) -> io::Result<()> {
    const MIB: usize = 1 << 20;
    let path = directory.join("warm");
    let file = File::create(&path)?;
    let data = vec![0; MIB];
    let written = (0..bytes.div_ceil(MIB as u64)).try_for_each(|number| file.write_all_at(&data, number << 20));
    drop(file);
    fs::remove_file(path)?;
    written
}

/// Processor time used so far by another process, all threads, also those that have ended; zero if
/// it is gone.
pub fn cpu_of(process: u32) -> Duration {
    /// Of a clock that counts what the scheduler gave all threads of a process (Linux,
    /// `CPUCLOCK_SCHED`).
    const SCHEDULED: libc::clockid_t = 2;
    let Ok(process) = libc::clockid_t::try_from(process) else { return Duration::ZERO };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // As clock_getcpuclockid(3) composes it.
    let clock = (!process << 3) | SCHEDULED;
    // SAFETY: the kernel writes a timespec, or fails.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warming_memory_leaves_no_file() {
        let place = tempfile::tempdir().unwrap();
        warm_memory(place.path(), 1).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        assert!(warm_memory(&place.path().join("none"), 1).is_err());
    }

    #[test]
    fn the_processor_time_of_another_process_grows_until_it_is_gone() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while cpu_of(child.id()) < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cpu_of(child.id()), Duration::ZERO);
        let own = own_cpu();
        assert!(cpu_of(std::process::id()) >= own && !own.is_zero());
    }
}
