//! Threads that are bound to processors.
//!
//! A mount serves a program on the processor on which the program runs: to wake a thread there
//! costs a fraction of waking one elsewhere, which in a virtual machine means an interrupt between
//! processors. So its cores and the threads that read the kernel's requests are bound, one to each
//! processor.
//!
//! A thread inherits this from the one that starts it; threads for other purposes give it up
//! ([`use_all_processors`]).

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// All processors that this process may use, if any of its threads is bound.
static ALL: OnceLock<CpuSet> = OnceLock::new();

/// The processors that this process may use, in the order of their numbers; none if they are not
/// known. To be called by a thread that is not bound.
pub(super) fn all() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let set = ALL.get_or_init(|| set);
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
}

/// Binds the calling thread. If the host refuses (the processor may be gone), it runs anywhere.
pub(super) fn bind(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(processor, %error, "cannot bind a thread to its processor");
    }
}

/// Lets the calling thread run on all processors that this process may use, whatever thread started
/// it.
pub fn use_all_processors() {
    if let Some(set) = ALL.get() {
        // Of a thread that is not bound, this changes nothing.
        if let Err(error) = sched_setaffinity(None, set) {
            tracing::debug!(%error, "cannot unbind a thread from its processor");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
    }

    #[test]
    fn a_bound_thread_passes_it_on_until_that_is_given_up() {
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
}
