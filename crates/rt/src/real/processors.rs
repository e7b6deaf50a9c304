//! On which processors the threads of this process run.
//!
//! A mount serves a program on the processor on which the program runs: to wake a thread there
//! costs a fraction of waking one elsewhere, which in a virtual machine means an interrupt between
//! processors. So its cores and the threads that read the kernel's requests are bound, one to each
//! processor.
//!
//! A thread inherits this from the one that starts it; threads for other purposes give it up
//! ([`use_all_processors`]).
//!
//! The process can be restricted to some of its processors while it runs ([`restrict_processors`]),
//! as taskset(1) does for all of its threads. A thread that is bound to one of the others then
//! shares one of these, and returns to its own when the restriction ends. The number of threads
//! stays the same.
//!
//! Invariant: a thread that is bound, and lives, has its processor in [`Places::bound`]; a thread
//! removes itself before its number can be given to another one.

use std::{collections::BTreeMap, fs, io};

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity},
};

/// Rounds in which threads are looked for that a thread started while it was not restricted yet.
const ROUNDS_MAX: usize = 100;

static PLACES: Mutex<Places> = Mutex::new(Places { all: None, chosen: None, bound: BTreeMap::new() });

struct Places {
    /// All processors that this process may use; known from its start on.
    all: Option<CpuSet>,
    /// Those it is restricted to.
    chosen: Option<CpuSet>,
    /// The processors of bound threads, by the number of the thread.
    bound: BTreeMap<i32, usize>,
}

/// Why a process cannot be restricted to some processors.
#[derive(Debug, thiserror::Error)]
pub enum RestrictError {
    /// There must be one at least.
    #[error("no processor is named; allowed: {}", show_processors(.allowed))]
    Empty {
        /// Those that the process may use.
        allowed: Vec<usize>,
    },
    /// The process may not use it.
    #[error("this process may not use processor {processor}; allowed: {}", show_processors(.allowed))]
    NotAllowed {
        /// The first one.
        processor: usize,
        /// Those that it may use.
        allowed: Vec<usize>,
    },
    /// The host refuses.
    #[error("cannot change the processors of a thread: {0}")]
    Host(#[from] io::Error),
}

impl Places {
    /// Where a thread may run. `None`: anywhere, as far as is known.
    fn of(&self, thread: Pid) -> Option<CpuSet> {
        let usable = self.chosen.or(self.all);
        let Some(processor) = self.bound.get(&thread.as_raw_nonzero().get()) else { return usable };
        let place = match usable.map(|set| numbers(&set)).filter(|numbers| !numbers.is_empty()) {
            Some(numbers) if !numbers.contains(processor) => numbers[processor % numbers.len()],
            Some(_) | None => *processor,
        };
        let mut one = CpuSet::new();
        one.set(place);
        Some(one)
    }

    /// The calling thread's.
    fn apply_here(&self) {
        if let Some(set) = self.of(gettid())
            // If the host refuses (the processor may be gone), it runs where it did.
            && let Err(error) = sched_setaffinity(None, &set)
        {
            tracing::debug!(%error, "cannot move a thread to its processors");
        }
    }

    /// Those of all threads of this process.
    fn apply(&self) -> io::Result<()> {
        for _ in 0..ROUNDS_MAX {
            let (mut has_moved, mut are_allowed) = (false, false);
            for entry in fs::read_dir("/proc/self/task")? {
                let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
                let Some(thread) = number.and_then(Pid::from_raw) else { continue };
                let Some(wanted) = self.of(thread) else { return Ok(()) };
                let moved = sched_getaffinity(Some(thread)).and_then(|found| {
                    if found != wanted {
                        sched_setaffinity(Some(thread), &wanted)?;
                    }
                    // The host may allow fewer processors than at the start.
                    Ok(found != wanted && sched_getaffinity(Some(thread))? != found)
                });
                match moved {
                    Ok(moved) => (has_moved, are_allowed) = (has_moved | moved, true),
                    // It has ended.
                    Err(Errno::SRCH) => {}
                    // The host refuses: its processor is gone, or the kernel binds the thread.
                    Err(Errno::INVAL) => tracing::debug!(?thread, "a thread stays on its processors"),
                    Err(error) => return Err(error.into()),
                }
            }
            if !are_allowed {
                return Err(Errno::INVAL.into());
            }
            if !has_moved {
                return Ok(());
            }
        }
        Err(io::Error::other("threads start faster than they can be moved"))
    }
}

fn numbers(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
}

/// Removes a thread that ends.
struct Bound;

impl Drop for Bound {
    fn drop(&mut self) {
        PLACES.lock().bound.remove(&gettid().as_raw_nonzero().get());
    }
}

thread_local! {
    static BOUND: Bound = const { Bound };
}

/// The processors that this process may use, in the order of their numbers; none if they are not
/// known. To be called first by a thread that is not bound.
pub(super) fn all() -> Vec<usize> {
    let mut places = PLACES.lock();
    if places.all.is_none() {
        places.all = sched_getaffinity(None).ok();
    }
    places.all.as_ref().map(numbers).unwrap_or_default()
}

/// Binds the calling thread.
pub(super) fn bind(processor: usize) {
    BOUND.with(|Bound| {});
    let mut places = PLACES.lock();
    places.bound.insert(gettid().as_raw_nonzero().get(), processor);
    places.apply_here();
}

/// Lets the calling thread run on all processors that this process uses, whatever thread started
/// it.
pub fn use_all_processors() {
    let mut places = PLACES.lock();
    places.bound.remove(&gettid().as_raw_nonzero().get());
    places.apply_here();
}

/// The processors to which this process is restricted; all that it may use if it is not.
pub fn processors_in_use() -> Vec<usize> {
    let all = all();
    PLACES.lock().chosen.as_ref().map(numbers).unwrap_or(all)
}

/// Restricts all threads of this process, from now on, to some of the processors that it may use.
/// If that fails, those to which it was restricted before stay.
pub fn restrict_processors(processors: &[usize]) -> Result<(), RestrictError> {
    let allowed = all();
    if let Some(processor) = processors.iter().copied().find(|number| !allowed.contains(number)) {
        return Err(RestrictError::NotAllowed { processor, allowed });
    }
    if processors.is_empty() {
        return Err(RestrictError::Empty { allowed });
    }
    let mut set = CpuSet::new();
    processors.iter().for_each(|number| set.set(*number));
    let mut places = PLACES.lock();
    let before = places.chosen.replace(set);
    places.apply().map_err(|error| {
        places.chosen = before;
        if let Err(error) = places.apply() {
            tracing::warn!(%error, "some threads stay on other processors");
        }
        RestrictError::Host(error)
    })
}

/// Processors as `0-3,8`.
pub fn show_processors(processors: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in processors {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let show = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(show).collect::<Vec<_>>().join(",")
}

/// Processors in a text such as `0-3,8`; `None` if it is not such a text.
pub fn parse_processors(text: &str) -> Option<Vec<usize>> {
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number < CpuSet::MAX_CPU);
    let mut set = CpuSet::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        (first..=last).for_each(|number| set.set(number));
    }
    Some(numbers(&set))
}

#[cfg(test)]
pub mod tests {
    use std::sync::mpsc;

    use super::*;

    fn mine() -> Vec<usize> {
        numbers(&sched_getaffinity(None).unwrap())
    }

    /// Tests that change the process do not run at the same time.
    pub static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_bound_thread_passes_it_on_until_that_is_given_up() {
        let _alone = ALONE.lock();
        let all = all();
        assert_eq!(all, mine());
        let last = *all.last().unwrap();
        let bound = move || {
            bind(last);
            assert_eq!(mine(), [last]);
            std::thread::spawn(move || {
                let inherited = mine();
                use_all_processors();
                (inherited, mine())
            })
            .join()
            .unwrap()
        };
        assert_eq!(std::thread::spawn(bound).join().unwrap(), (vec![last], all));
    }

    #[test]
    fn a_restricted_process_uses_no_other_processor() {
        let _alone = ALONE.lock();
        let all = all();
        let (first, last) = (all[0], *all.last().unwrap());
        let (tell, told) = mpsc::channel();
        let threads = [None, Some(first), Some(last)].map(|processor| {
            let (tell, (ask, asked)) = (tell.clone(), mpsc::channel::<()>());
            let thread = std::thread::spawn(move || {
                processor.into_iter().for_each(bind);
                while asked.recv().is_ok() {
                    tell.send(mine()).unwrap();
                }
            });
            (thread, ask)
        });
        let places = || {
            let place = |(_, ask): &(_, mpsc::Sender<()>)| {
                ask.send(()).unwrap();
                told.recv().unwrap()
            };
            threads.each_ref().map(place)
        };
        assert_eq!(places(), [all.clone(), vec![first], vec![last]]);
        restrict_processors(&[last]).unwrap();
        assert_eq!(processors_in_use(), [last]);
        assert_eq!((places(), mine()), ([vec![last], vec![last], vec![last]], vec![last]));
        assert_eq!(std::thread::spawn(mine).join().unwrap(), [last]);
        restrict_processors(&all).unwrap();
        assert_eq!((places(), mine()), ([all.clone(), vec![first], vec![last]], all.clone()));
        for (thread, ask) in threads {
            drop(ask);
            thread.join().unwrap();
        }
        assert!(PLACES.lock().bound.is_empty(), "threads that have ended are forgotten");
    }

    #[test]
    fn processors_that_the_process_may_not_use_are_refused_with_those_it_may() {
        let _alone = ALONE.lock();
        let all = all();
        let beyond = CpuSet::MAX_CPU - 1;
        let refused = restrict_processors(&[all[0], beyond]).unwrap_err().to_string();
        let expected = format!("this process may not use processor {beyond}; allowed: {}", show_processors(&all));
        assert_eq!(refused, expected);
        assert!(matches!(restrict_processors(&[]), Err(RestrictError::Empty { .. })));
        assert_eq!(processors_in_use(), all);
    }

    #[test]
    fn processors_are_written_as_ranges() {
        for (text, numbers) in [("0", vec![0]), ("0-2", vec![0, 1, 2]), ("0-1,3,5-6", vec![0, 1, 3, 5, 6])] {
            assert_eq!(parse_processors(text), Some(numbers.clone()));
            assert_eq!(show_processors(&numbers), text);
        }
        assert_eq!(parse_processors("3, 1-2,2"), Some(vec![1, 2, 3]));
        for wrong in ["", "x", "1-", "2-1", "0,", "-1", "99999999999999999999", "5000-5001"] {
            assert_eq!(parse_processors(wrong), None, "{wrong}");
        }
    }
}
