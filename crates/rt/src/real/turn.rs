//! The end of a core's turn: work that is done once for all tasks that were ready together.
//!
//! ```text
//!   tasks that are ready:   A (asks for the end of the turn)   B (asks too)   C
//!   then, once:             the work that A and B asked for
//! ```
//!
//! So the frames of several tasks leave in one system call. A core has a task that does this work:
//! the first request of a turn wakes it, and it runs after the tasks that are ready by then.
//!
//! Life cycle: begins with its core ([`begin`]). When the core stops, what was asked for by then is
//! still done. Threads that are not cores have no turns.

use std::{
    cell::RefCell,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

/// Work for the end of a turn.
pub(super) trait EndOfTurn: Send + Sync {
    /// Does it; must not wait.
    fn end_of_turn(self: Arc<Self>);
}

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// The turn of a core.
#[derive(Default)]
struct Turn {
    work: Vec<Arc<dyn EndOfTurn>>,
    /// Of the task; `None` before it ran.
    waker: Option<Waker>,
}

/// Has `work` done at the end of this core's turn. On a thread that is not a core it is handed
/// back.
pub(super) fn at_end<W: EndOfTurn + 'static>(work: Arc<W>) -> Result<(), Arc<W>> {
    TURN.with_borrow_mut(|turn| {
        let Some(turn) = turn else { return Err(work) };
        if let Some(waker) = turn.waker.as_ref().filter(|_| turn.work.is_empty()) {
            waker.wake_by_ref();
        }
        turn.work.push(work);
        Ok(())
    })
}

/// Makes the calling thread a core that has turns; the task that does the work, to run on it.
pub(super) fn begin() -> impl Future<Output = ()> + Send + 'static {
    TURN.set(Some(Turn::default()));
    run()
}

/// Runs until it is dropped, on the thread of the core.
async fn run() {
    let _end = End;
    poll_fn(|context| {
        let work = TURN.with_borrow_mut(|turn| {
            let turn = turn.get_or_insert_default();
            turn.waker.get_or_insert_with(|| context.waker().clone());
            std::mem::take(&mut turn.work)
        });
        let work = done(work);
        TURN.with_borrow_mut(|turn| {
            // Its memory serves the next turn, unless that has begun.
            if let Some(turn) = turn.as_mut().filter(|turn| turn.work.is_empty()) {
                turn.work = work;
            }
        });
        Poll::<()>::Pending
    })
    .await;
}

/// Does it all; the empty list.
fn done(mut work: Vec<Arc<dyn EndOfTurn>>) -> Vec<Arc<dyn EndOfTurn>> {
    work.drain(..).for_each(EndOfTurn::end_of_turn);
    work
}

/// The last turn ends when this is dropped.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        if let Some(turn) = TURN.take() {
            done(turn.work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Spawn, real::Cores};

    #[derive(Debug)]
    struct Tell(&'static str, mpsc::Sender<&'static str>);

    impl EndOfTurn for Tell {
        fn end_of_turn(self: Arc<Self>) {
            self.1.send(self.0).unwrap();
        }
    }

    /// Asks for the end of the turn, then tells that it ran.
    fn ask(cores: &Cores, name: &'static str, tell: &mpsc::Sender<&'static str>) {
        let (work, tell) = (Arc::new(Tell("end", tell.clone())), tell.clone());
        let task = async move {
            assert!(at_end(work).is_ok(), "a core has turns");
            tell.send(name).unwrap();
        };
        cores.spawn_on(0, name, Box::pin(task));
    }

    #[test]
    fn work_is_done_after_the_tasks_that_are_ready() {
        let cores = Cores::start(1).unwrap();
        let (tell, told) = mpsc::channel();
        let (spawn, inner_tell) = (cores.clone(), tell.clone());
        let both = async move {
            ask(&spawn, "first", &inner_tell);
            ask(&spawn, "second", &inner_tell);
        };
        cores.spawn_on(0, "both", Box::pin(both));
        let order: Vec<_> = (0..4).map(|_| told.recv().unwrap()).collect();
        assert_eq!(order, ["first", "second", "end", "end"]);
        ask(&cores, "third", &tell);
        assert_eq!([told.recv().unwrap(), told.recv().unwrap()], ["third", "end"], "another turn");
        cores.shutdown();
    }

    #[test]
    fn a_thread_that_is_no_core_has_no_turns() {
        let (tell, told) = mpsc::channel();
        let work = at_end(Arc::new(Tell("end", tell))).expect_err("handed back");
        assert!(told.try_recv().is_err(), "nobody has done it");
        work.end_of_turn();
        assert_eq!(told.recv().unwrap(), "end");
    }

    #[test]
    fn a_core_that_stops_ends_its_last_turn() {
        let cores = Cores::start(1).unwrap();
        let (tell, told) = mpsc::channel();
        let (asked, was_asked) = mpsc::channel();
        let stop = cores.clone();
        let last = async move {
            // The core must stop between this and the end of the turn.
            std::thread::spawn(move || stop.shutdown());
            assert!(at_end(Arc::new(Tell("end", tell))).is_ok());
            asked.send(()).unwrap();
        };
        cores.spawn_on(0, "last", Box::pin(last));
        was_asked.recv().unwrap();
        assert_eq!(told.recv().unwrap(), "end");
        cores.shutdown();
    }
}
