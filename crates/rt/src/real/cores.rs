//! One thread per core, each with a single-threaded tokio runtime, sharing nothing: a task stays on
//! the core it was spawned on, so it never waits for another core and its wake-ups cost no system
//! call.
//!
//! Threads that are not cores (FUSE threads, `main`) have two ways to run futures.
//! [`Cores::block_on`] waits for a future, polling it on the calling thread.
//! [`Cores::run_inline_or_spawn`] polls on the calling thread, which is sufficient for an operation
//! that never waits; one that waits continues on the core that wakes it (module `visit`).
//!
//! Life: [`Cores::start`], then [`Cores::shutdown`], which drops every task where it stands. Tasks
//! hold `Cores` as their `Spawn`, so nothing stops by itself when the last handle outside goes.
//!
//! Downside: there is no load balancing. A core with long tasks delays its other tasks while
//! another core is idle. On servers threads are not bound to processors, so that the kernel can at
//! least move them away from other work; a mount binds them (module `processors`). A task that
//! panics is logged and gone; the binary decides, with a panic hook, whether the process should end
//! too.

use std::{
    cell::Cell,
    convert::Infallible,
    io,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, watch},
};

use super::{processors, turn, visit};
use crate::{BoxFuture, Spawn};

/// Most cores that can be asked for.
pub const CORES_MAX: usize = 1024;
/// Timers that [`Spawn::all_cores_ran`] sets on each core, one after the other.
const TURNS: u32 = 3;
/// The shortest time that tokio's timers know.
const TURN: Duration = Duration::from_millis(1);
/// How long a stopping core waits for name look-ups that tokio runs on threads of its own.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// The core whose tasks this thread runs at present: identity of its `Cores`, index.
    static PLACE: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    /// A number of this thread, for threads that are not cores.
    static VISITOR: Cell<usize> = Cell::new(VISITORS.fetch_add(1, Ordering::Relaxed));
}

static VISITORS: AtomicUsize = AtomicUsize::new(0);

/// The cores of a process. Clones are the same cores.
#[derive(Clone)]
pub struct Cores {
    shared: Arc<Shared>,
}

struct Shared {
    handles: Vec<Handle>,
    next: AtomicUsize,
    stop: watch::Sender<bool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    waiting: visit::Waiting,
    /// The processor of each core; empty if they are not bound.
    processors: Vec<usize>,
}

impl Cores {
    /// Starts `count` cores (1..=[`CORES_MAX`]).
    pub fn start(count: usize) -> io::Result<Self> {
        Self::start_on(count, Vec::new())
    }

    fn start_on(count: usize, processors: Vec<usize>) -> io::Result<Self> {
        if !(1..=CORES_MAX).contains(&count) {
            let text = format!("{count} cores requested; the limit is 1 to {CORES_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (stop, stopped) = watch::channel(false);
        let runtimes: Vec<_> =
            (0..count).map(|_| Builder::new_current_thread().enable_all().build()).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            handles: runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
            next: AtomicUsize::new(0),
            stop,
            threads: Mutex::default(),
            waiting: visit::Waiting::default(),
            processors,
        });
        let identity = Arc::as_ptr(&shared) as usize;
        let (running, all_stopped) = std::sync::mpsc::channel::<Infallible>();
        let all_stopped = Arc::new(Mutex::new(all_stopped));
        for (index, runtime) in runtimes.into_iter().enumerate() {
            let (mut stopped, running, all_stopped) = (stopped.clone(), running.clone(), all_stopped.clone());
            let processor = shared.processors.get(index).copied();
            let thread = std::thread::Builder::new().name(format!("core-{index}")).spawn(move || {
                PLACE.set(Some((identity, index)));
                processor.into_iter().for_each(processors::bind);
                runtime.spawn(turn::begin());
                // An error means that the sender is gone, and with it all code that could have
                // spawned tasks.
                let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                // A task may have begun on another core and wait for a timer of that core, which
                // fires when its runtime ends. So no runtime ends while a core still polls.
                drop(running);
                let _ = all_stopped.lock().recv();
                runtime.shutdown_timeout(LOOKUP_TIMEOUT);
            })?;
            shared.threads.lock().push(thread);
        }
        Ok(Self { shared })
    }

    /// Starts as many cores as the host lets this process use.
    pub fn start_all() -> io::Result<Self> {
        Self::start_or_all(None)
    }

    /// Starts `count` cores; `None`: as many as the host lets this process use.
    pub fn start_or_all(count: Option<usize>) -> io::Result<Self> {
        // Before any thread of this process is bound.
        processors::all();
        Self::start(count.map_or_else(usable, Ok)?)
    }

    /// The same, each bound to a processor of its own, if there are as many. A process that may use
    /// only a part of the time of its processors has fewer cores than processors.
    pub fn start_bound(count: Option<usize>) -> io::Result<Self> {
        let (count, processors) = (count.map_or_else(usable, Ok)?, processors::processors_in_use());
        Self::start_on(count, if processors.len() == count { processors } else { Vec::new() })
    }

    /// Makes the calling thread, which is not a core, keep to a core: what it begins continues
    /// there, and it is bound to the same processor.
    pub fn keep_to(&self, core: usize) {
        VISITOR.set(core);
        self.shared.processors.get(core % self.count()).copied().into_iter().for_each(processors::bind);
    }

    /// The core of a processor; of one that has none, any.
    pub fn of_processor(&self, processor: usize) -> usize {
        let bound = self.shared.processors.iter().position(|bound| *bound == processor);
        bound.unwrap_or(processor % self.count())
    }

    /// How many cores there are.
    pub fn count(&self) -> usize {
        self.shared.handles.len()
    }

    /// Waits for `future`, polling it on the calling thread, which must not be a core: a core would
    /// wait for itself.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let index = self.index_for_this_thread();
        let _visit = Visit::begin(self.identity(), index);
        self.shared.handles[index].block_on(future)
    }

    /// Polls `future` on the calling thread; if it is pending, the core that wakes it continues
    /// with it. `name` appears in logs.
    pub fn run_inline_or_spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let index = self.index_for_this_thread();
        let _visit = Visit::begin(self.identity(), index);
        let _entered = self.shared.handles[index].enter();
        visit::begin(self, index, name, Box::pin(future));
    }

    /// Stops all cores and waits until their threads have ended. Tasks are dropped where they
    /// stand; what is spawned afterwards never runs. Must not be called on a core. A second call
    /// does nothing.
    pub fn shutdown(&self) {
        assert!(PLACE.get().is_none_or(|(cores, _)| cores != self.identity()), "a core cannot wait for its own end");
        self.shared.stop.send_replace(true);
        self.shared.waiting.stop();
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a core panicked outside its tasks");
            }
        }
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }

    /// Operations of visiting threads that wait.
    pub(super) fn waiting(&self) -> &visit::Waiting {
        &self.shared.waiting
    }

    /// The core whose tasks this thread runs at present.
    pub(super) fn core_of_this_thread(&self) -> Option<usize> {
        PLACE.get().filter(|(cores, _)| *cores == self.identity()).map(|(_, index)| index)
    }

    /// This core, or the one that this visiting thread keeps to.
    fn index_for_this_thread(&self) -> usize {
        self.core_of_this_thread().unwrap_or_else(|| VISITOR.get() % self.count())
    }
}

impl Spawn for Cores {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        match PLACE.get() {
            Some((cores, index)) if cores == self.identity() => self.spawn_on(index, name, future),
            _ => self.spawn_spread(name, future),
        }
    }

    fn spawn_spread(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.spawn_on(self.shared.next.fetch_add(1, Ordering::Relaxed), name, future);
    }

    fn spawn_on(&self, core: usize, name: &'static str, future: BoxFuture<'static, ()>) {
        self.shared.handles[core % self.count()].spawn(Task { name, future });
    }

    fn here(&self) -> usize {
        self.index_for_this_thread()
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        let (running, mut ran) = mpsc::channel::<Infallible>(1);
        for index in 0..self.count() {
            let running = running.clone();
            let turns = async move {
                // A timer fires only after the core has asked the kernel what arrived; the tasks
                // that this wakes have run when the next one fires.
                for _ in 0..TURNS {
                    tokio::time::sleep(TURN).await;
                }
                drop(running);
            };
            self.spawn_on(index, "turn of a core", Box::pin(turns));
        }
        drop(running);
        Box::pin(async move {
            // Ends when all senders are gone, also those of cores that are shut down.
            ran.recv().await;
        })
    }
}

/// Number of processors that the host lets this process use.
fn usable() -> io::Result<usize> {
    Ok(std::thread::available_parallelism()?.get().min(CORES_MAX))
}

/// While it lives, what this thread spawns goes to one core.
struct Visit {
    before: Option<(usize, usize)>,
}

impl Visit {
    fn begin(identity: usize, index: usize) -> Self {
        Self { before: PLACE.replace(Some((identity, index))) }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        PLACE.set(self.before);
    }
}

/// A task that tells of its panic.
struct Task {
    name: &'static str,
    future: BoxFuture<'static, ()>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        match std::panic::catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(_) => {
                tracing::error!(task = task.name, "a task panicked");
                Poll::Ready(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::contain;

    fn thread_name() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    #[test]
    fn tasks_stay_on_their_core_and_others_are_spread() {
        let cores = Cores::start(2).unwrap();
        let (tell, told) = mpsc::channel();
        for _ in 0..4 {
            let (inner, tell) = (cores.clone(), tell.clone());
            cores.spawn(
                "outer",
                Box::pin(async move {
                    let outer = thread_name();
                    inner.spawn("inner", Box::pin(async move { tell.send((outer, thread_name())).unwrap() }));
                }),
            );
        }
        let mut seen: Vec<_> = (0..4).map(|_| told.recv().unwrap()).collect();
        seen.sort();
        let pair = |name: &str| (name.to_owned(), name.to_owned());
        assert_eq!(seen, [pair("core-0"), pair("core-0"), pair("core-1"), pair("core-1")]);
        cores.shutdown();
    }

    #[test]
    fn what_is_ready_runs_inline_and_what_waits_moves_to_a_core() {
        let cores = Cores::start(2).unwrap();
        let (tell, told) = mpsc::channel();
        let ready = tell.clone();
        cores.run_inline_or_spawn("ready", async move { ready.send(thread_name()).unwrap() });
        assert_eq!(told.try_recv().unwrap(), thread_name());
        let (release, released) = oneshot::channel::<()>();
        cores.run_inline_or_spawn("waits", async move {
            tell.send(thread_name()).unwrap();
            released.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send(thread_name()).unwrap();
        });
        assert_eq!(told.try_recv().unwrap(), thread_name(), "the first poll is inline");
        release.send(()).unwrap();
        assert!(told.recv().unwrap().starts_with("core-"));
        cores.shutdown();
    }

    #[test]
    fn a_core_that_is_held_up_has_not_run() {
        let cores = Cores::start(2).unwrap();
        cores.block_on(cores.all_cores_ran());
        // Not the one whose timers this thread uses.
        let other = cores.index_for_this_thread() + 1;
        let (release, released) = mpsc::channel::<()>();
        let (tell, told) = oneshot::channel();
        let hold_up = async move {
            tell.send(()).unwrap();
            released.recv().unwrap();
        };
        cores.spawn_on(other, "holds up its core", Box::pin(hold_up));
        cores.block_on(told).unwrap();
        cores.block_on(async {
            let mut ran = cores.all_cores_ran();
            let still_waiting = tokio::time::timeout(20 * TURNS * TURN, &mut ran).await;
            assert!(still_waiting.is_err(), "one core has not run");
            release.send(()).unwrap();
            ran.await;
        });
        cores.shutdown();
    }

    #[test]
    fn a_panic_ends_its_task_only() {
        let cores = Cores::start(1).unwrap();
        cores.spawn("panics", Box::pin(async { panic!("on purpose") }));
        assert_eq!(cores.block_on(async { 7 }), 7);
        let (tell, told) = oneshot::channel();
        cores.spawn("lives", Box::pin(async { tell.send(()).unwrap() }));
        cores.block_on(told).unwrap();
        cores.shutdown();
    }

    #[test]
    fn shutdown_drops_tasks_and_ends_threads() {
        struct Tell(mpsc::Sender<()>);
        impl Drop for Tell {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let cores = Cores::start(2).unwrap();
        let (tell, told) = mpsc::channel();
        let held = Tell(tell);
        let spawn = cores.clone();
        cores.spawn(
            "forever",
            Box::pin(async move {
                let _held = (held, spawn);
                std::future::pending().await
            }),
        );
        cores.shutdown();
        told.try_recv().expect("the task was dropped before shutdown returned");
        cores.shutdown();
    }

    #[test]
    fn tasks_with_timers_of_another_core_are_not_polled_after_its_end() {
        const TASKS: usize = 100;
        const FAR: Duration = Duration::from_secs(3600);
        for _ in 0..20 {
            let cores = Cores::start(2).unwrap();
            let sleeps = cores.block_on(async { [(); TASKS].map(|()| Box::pin(tokio::time::sleep(FAR))) });
            // Not the one whose timers these are.
            let other = cores.index_for_this_thread() + 1;
            let (tell, told) = mpsc::channel();
            for sleep in sleeps {
                let tell = tell.clone();
                let task = async move {
                    tell.send("begins").unwrap();
                    if contain::Contained::new(None, sleep).await.is_err() {
                        tell.send("panicked").unwrap();
                    }
                };
                cores.spawn_on(other, "waits for a timer of another core", Box::pin(task));
            }
            drop(tell);
            (0..TASKS).for_each(|_| assert_eq!(told.recv().unwrap(), "begins"));
            cores.shutdown();
            assert!(told.recv().is_err(), "a task panicked");
        }
    }

    #[test]
    fn bound_cores_and_threads_that_keep_to_them_run_on_their_processors() {
        fn processor() -> usize {
            rustix::thread::sched_getcpu()
        }
        let _alone = processors::tests::ALONE.lock();
        let cores = Cores::start_bound(None).unwrap();
        let all = processors::all();
        if all.len() != cores.count() {
            return; // Only a part of the time is granted to this process.
        }
        for (core, expected) in all.into_iter().enumerate() {
            assert_eq!(cores.of_processor(expected), core);
            let (tell, told) = mpsc::channel();
            cores.spawn_on(core, "where", Box::pin(async move { tell.send(processor()).unwrap() }));
            assert_eq!(told.recv().unwrap(), expected);
            let keeps = cores.clone();
            let kept = move || {
                keeps.keep_to(core);
                (processor(), keeps.here())
            };
            assert_eq!(std::thread::spawn(kept).join().unwrap(), (expected, core));
        }
        cores.shutdown();
    }

    #[test]
    fn impossible_numbers_are_refused() {
        assert!(Cores::start(0).is_err());
        assert!(Cores::start(CORES_MAX + 1).is_err());
        assert!(Cores::start_bound(Some(0)).is_err());
        let cores = Cores::start_or_all(Some(3)).unwrap();
        assert_eq!(cores.count(), 3);
        cores.shutdown();
    }
}
