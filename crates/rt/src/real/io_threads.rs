//! A pool of threads for system calls that block, with one FIFO queue. How many threads there are
//! is a run-time parameter, like the service threads of Lustre's `ost_io`.
//!
//! Life cycle: threads start with the pool and when their number is increased; superfluous ones end
//! after their current job; when the pool is dropped they finish the queue and end. Downside: every
//! job costs two thread switches (5-20 us).

use std::{collections::VecDeque, io, panic::AssertUnwindSafe, sync::Arc};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use super::use_all_processors;
use crate::BoxFuture;

/// Most threads of one pool.
pub const IO_THREADS_MAX: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

/// The pool.
pub struct IoThreads {
    shared: Arc<Shared>,
}

/// What a pool has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoThreadsStatistics {
    /// Threads there shall be.
    pub threads: usize,
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// Jobs being executed.
    pub running: usize,
    /// Jobs executed since the start.
    pub served: u64,
}

struct Shared {
    name: String,
    state: Mutex<State>,
    work: Condvar,
    /// The last job there was has ended.
    rested: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads there shall be; 0 once the pool is dropped.
    wanted: usize,
    /// Threads there are.
    alive: usize,
    running: usize,
    served: u64,
}

impl IoThreads {
    /// A pool whose threads are called `name`, with `threads` threads (1..=[`IO_THREADS_MAX`]).
    pub fn new(name: &str, threads: usize) -> io::Result<Self> {
        let (name, rested) = (name.to_owned(), Notify::new());
        let shared = Shared { name, state: Mutex::default(), work: Condvar::new(), rested };
        let pool = Self { shared: Arc::new(shared) };
        pool.set_threads(threads)?;
        Ok(pool)
    }

    /// Changes the number of threads (1..=[`IO_THREADS_MAX`]). More start at once; fewer as jobs
    /// end. If the host refuses further threads, the number is what could be started.
    pub fn set_threads(&self, threads: usize) -> io::Result<()> {
        if !(1..=IO_THREADS_MAX).contains(&threads) {
            let text = format!("{threads} threads requested; the limit is 1 to {IO_THREADS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut state = self.shared.state.lock();
        state.wanted = threads;
        while state.alive < state.wanted {
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name(self.shared.name.clone());
            if let Err(error) = builder.spawn(move || {
                use_all_processors();
                shared.serve();
            }) {
                state.wanted = state.alive.max(1);
                return Err(error);
            }
            state.alive += 1;
        }
        self.shared.work.notify_all();
        Ok(())
    }

    /// What the pool has done so far.
    pub fn statistics(&self) -> IoThreadsStatistics {
        let state = self.shared.state.lock();
        IoThreadsStatistics {
            threads: state.wanted,
            queued: state.queue.len(),
            running: state.running,
            served: state.served,
        }
    }

    /// Waits until there is no job, those of dropped futures included.
    pub async fn rest(&self) {
        loop {
            let mut rested = std::pin::pin!(self.shared.rested.notified());
            rested.as_mut().enable();
            if self.shared.state.lock().is_at_rest() {
                return;
            }
            rested.await;
        }
    }

    /// Executes `job` on a thread of the pool; queued at the future's first poll, and then executed
    /// even if the future is dropped. A job that panics is an error.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            // The receiver is gone if the caller gave up.
            shared.push(Box::new(move || drop(tell.send(job()))));
            told.await.unwrap_or_else(|_| Err(io::Error::other("an I/O job panicked")))
        })
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.shared.state.lock().wanted = 0;
        self.shared.work.notify_all();
    }
}

impl State {
    fn is_at_rest(&self) -> bool {
        self.queue.is_empty() && self.running == 0
    }
}

impl Shared {
    fn push(&self, job: Job) {
        self.state.lock().queue.push_back(job);
        self.work.notify_one();
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            // Of a dropped pool every thread helps with what is left; else superfluous ones leave
            // it to the others.
            let ends = state.alive > state.wanted && (state.wanted > 0 || state.queue.is_empty());
            if ends {
                state.alive -= 1;
                // The wake-up that ended this thread may have been meant for a job.
                self.work.notify_one();
                return;
            }
            let Some(job) = state.queue.pop_front() else {
                self.work.wait(&mut state);
                continue;
            };
            state.running += 1;
            drop(state);
            // Dropping the job's channel tells its caller.
            let panicked = std::panic::catch_unwind(AssertUnwindSafe(job)).is_err();
            if panicked {
                tracing::error!(pool = self.name, "an I/O job panicked");
            }
            state = self.state.lock();
            state.running -= 1;
            state.served += 1;
            if state.is_at_rest() {
                self.rested.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use super::*;

    fn wait<T>(future: BoxFuture<'static, io::Result<T>>) -> io::Result<T> {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Polls a job once, so that it is queued.
    fn queue(pool: &IoThreads, job: impl FnOnce() + Send + 'static) {
        let mut future = pool.run(move || {
            job();
            Ok(())
        });
        let _ = future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    }

    #[test]
    fn one_thread_serves_in_order() {
        let pool = IoThreads::new("io", 1).unwrap();
        let (tell, told) = mpsc::channel();
        for number in 0..100 {
            let tell = tell.clone();
            queue(&pool, move || tell.send(number).unwrap());
        }
        assert_eq!((0..100).map(|_| told.recv().unwrap()).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        assert_eq!(wait(pool.run(|| Ok(std::thread::current().name().unwrap().to_owned()))).unwrap(), "io");
    }

    #[test]
    fn the_number_of_threads_follows_the_parameter() {
        let pool = IoThreads::new("io", 1).unwrap();
        pool.set_threads(3).unwrap();
        // Passes only if three jobs run at the same time.
        let barrier = Arc::new(Barrier::new(4));
        for _ in 0..3 {
            let barrier = barrier.clone();
            queue(&pool, move || {
                barrier.wait();
            });
        }
        barrier.wait();
        pool.set_threads(1).unwrap();
        while pool.shared.state.lock().alive > 1 {
            std::thread::yield_now();
        }
        assert_eq!(wait(pool.run(|| Ok(5))).unwrap(), 5);
        assert_eq!(pool.statistics().threads, 1);
        assert!(pool.statistics().served >= 3);
        assert!(pool.set_threads(0).is_err());
        assert!(pool.set_threads(IO_THREADS_MAX + 1).is_err());
    }

    #[test]
    fn a_panicking_job_is_an_error_and_the_thread_lives() {
        let pool = IoThreads::new("io", 1).unwrap();
        assert!(wait(pool.run::<()>(|| panic!("on purpose"))).is_err());
        assert_eq!(wait(pool.run(|| Ok(1))).unwrap(), 1);
    }

    #[test]
    fn a_pool_at_rest_has_no_job_not_even_one_that_nobody_waits_for() {
        let pool = IoThreads::new("io", 2).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(pool.rest());
        let barrier = Arc::new(Barrier::new(2));
        for _ in 0..2 {
            let barrier = barrier.clone();
            queue(&pool, move || {
                barrier.wait();
            });
        }
        queue(&pool, || ());
        runtime.block_on(pool.rest());
        let statistics = pool.statistics();
        assert_eq!((statistics.queued, statistics.running, statistics.served), (0, 0, 3));
    }

    #[test]
    fn a_dropped_pool_finishes_its_queue_and_ends() {
        let pool = IoThreads::new("io", 2).unwrap();
        let (tell, told) = mpsc::channel();
        for number in 0..50 {
            let tell = tell.clone();
            queue(&pool, move || tell.send(number).unwrap());
        }
        drop((pool, tell));
        let mut numbers: Vec<_> = told.iter().collect();
        numbers.sort();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    }
}
