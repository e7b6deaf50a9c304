//! Programs of callers, for the names of their jobs.
//!
//! `/proc` is read at most once a second for each thread. Downside: a thread that executes another
//! program, or whose number is given to another one, is named after the former for up to that long.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use types::JobName;

use super::caller::Caller;

/// How long a name is used.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Most threads whose names are kept: more than work at a time.
const THREADS_MAX: usize = 4096;

/// A caller as it was looked up, and when.
struct Known {
    uid: u32,
    job: JobName,
    since: Instant,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Programs(Mutex<HashMap<u32, Known>>);

impl Programs {
    /// Program and user of a caller, as Lustre's `procname_uid` has them: `dd.0`.
    pub(super) fn job(&self, caller: &Caller) -> JobName {
        self.job_at(Instant::now(), caller, |thread| fs::read_to_string(format!("/proc/{thread}/comm")).ok())
    }

    fn job_at(&self, now: Instant, caller: &Caller, look: impl FnOnce(u32) -> Option<String>) -> JobName {
        let Caller { uid, thread, .. } = *caller;
        let is_good = |known: &Known| known.uid == uid && now.saturating_duration_since(known.since) < AGE_MAX;
        if let Some(known) = self.0.lock().get(&thread).filter(|known| is_good(known)) {
            return known.job;
        }
        // A caller of another pid namespace is not visible.
        let program = look(thread).unwrap_or_default();
        let job = JobName::new(&format!("{}.{uid}", program.trim_end()));
        let mut known = self.0.lock();
        if known.len() >= THREADS_MAX {
            known.retain(|_, known| now.saturating_duration_since(known.since) < AGE_MAX);
        }
        if known.len() < THREADS_MAX {
            known.insert(thread, Known { uid, job, since: now });
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn caller(thread: u32, uid: u32) -> Caller {
        Caller { uid, gid: 0, thread }
    }

    #[test]
    fn a_program_is_looked_up_once_a_second() {
        let (programs, looks) = (Programs::default(), Cell::new(0));
        let begin = Instant::now();
        let job = |after_ms: u64, caller: Caller, program: &'static str| {
            let look = |_| {
                looks.set(looks.get() + 1);
                Some(format!("{program}\n"))
            };
            programs.job_at(begin + Duration::from_millis(after_ms), &caller, look).as_str().to_owned()
        };
        assert_eq!(job(0, caller(7, 1), "sh"), "sh.1");
        assert_eq!(job(999, caller(7, 1), "dd"), "sh.1");
        assert_eq!((job(999, caller(8, 1), "cp"), looks.get()), ("cp.1".to_owned(), 2));
        assert_eq!(job(999, caller(8, 2), "cp"), "cp.2", "it changed its user");
        assert_eq!(job(1000, caller(7, 1), "dd"), "dd.1");
    }

    #[test]
    fn names_of_no_more_than_so_many_threads_are_kept() {
        let (programs, begin) = (Programs::default(), Instant::now());
        for thread in 0..2 * THREADS_MAX as u32 {
            programs.job_at(begin, &caller(thread, 0), |_| None);
        }
        assert_eq!(programs.0.lock().len(), THREADS_MAX);
        assert_eq!(programs.job_at(begin + AGE_MAX, &caller(u32::MAX, 3), |_| None).as_str(), ".3");
        assert_eq!(programs.0.lock().len(), 1, "the old ones are forgotten");
    }

    #[test]
    fn the_own_program_is_found() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let job = Programs::default().job(&caller(thread, 5));
        assert!(job.as_str().ends_with(".5") && job.as_str().len() > 2, "{job:?}");
    }
}
