//! Which programs look at the files that they list: pure.
//!
//! READDIRPLUS shows attributes with the names, because `ls -l` would ask for each of them
//! otherwise. `find` needs those of directories only, and for it they are the greater part of the
//! work, of the mount and of the kernel. Whether a program looks at what it was shown cannot be
//! seen: the kernel answers. So now and then a program is shown the names of files without their
//! attributes. One that does not ask for any of them gets no others from then on; one that does
//! gets them again at once, and the next trial comes after twice as many pages.
//!
//! Downside: a trial costs a program that looks at files one request for each of up to
//! [`TRIAL_FILES_MAX`] of them. A program that begins to look at files late asks for those of one
//! page.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Pages with attributes before the first trial, and after it if they are used.
const FIRST_PAGES: u32 = 2;
const AGAIN_PAGES: u32 = 32;
const AGAIN_PAGES_MAX: u32 = 1024;
/// No trial is made with a page of more files.
const TRIAL_FILES_MAX: usize = 64;
/// Most threads of which something is known: more than list directories at a time. When there are
/// more, all are new.
const THREADS_MAX: usize = 1024;

/// A thread of a program.
#[derive(Clone, Copy, Debug)]
struct Walker {
    /// Pages until the next trial. `None`: there is one, or it has shown that nothing is needed.
    pages: Option<u32>,
    /// Pages after it, if the attributes are needed.
    again: u32,
}

impl Walker {
    const NEW: Self = Self { pages: Some(FIRST_PAGES), again: AGAIN_PAGES };
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Walkers(Mutex<HashMap<u32, Walker>>);

impl Walkers {
    /// Whether a thread is shown the attributes of files.
    pub fn is_shown(&self, thread: u32) -> bool {
        self.0.lock().get(&thread).is_none_or(|walker| walker.pages.is_some())
    }

    /// A page with so many files is about to be shown. Whether with their attributes.
    pub fn lists(&self, thread: u32, files: usize) -> bool {
        let mut walkers = self.0.lock();
        if walkers.len() >= THREADS_MAX && !walkers.contains_key(&thread) {
            walkers.clear();
        }
        let walker = walkers.entry(thread).or_insert(Walker::NEW);
        walker.pages = match walker.pages {
            Some(0) if (1..=TRIAL_FILES_MAX).contains(&files) => None,
            Some(pages) if files > 0 => Some(pages.saturating_sub(1)),
            unchanged => unchanged,
        };
        walker.pages.is_some()
    }

    /// A thread asks for the attributes of a file.
    pub fn looks(&self, thread: u32) {
        if let Some(walker) = self.0.lock().get_mut(&thread)
            && walker.pages.is_none()
        {
            walker.pages = Some(walker.again);
            walker.again = AGAIN_PAGES_MAX.min(2 * walker.again);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIND: u32 = 1;
    const LS: u32 = 2;

    #[test]
    fn a_program_that_looks_at_no_file_gets_names_alone() {
        let walkers = Walkers::default();
        let shown: Vec<bool> = (0..100).map(|_| walkers.lists(FIND, 16)).collect();
        assert_eq!(shown.iter().position(|shown| !shown), Some(FIRST_PAGES as usize));
        assert!(shown[FIRST_PAGES as usize..].iter().all(|shown| !shown));
        assert!(!walkers.is_shown(FIND) && walkers.is_shown(LS));
        // It executes another program.
        walkers.looks(FIND);
        assert!(walkers.is_shown(FIND) && walkers.lists(FIND, 16));
    }

    #[test]
    fn a_program_that_looks_at_files_is_tried_less_and_less() {
        let walkers = Walkers::default();
        let mut trials = Vec::new();
        for page in 0..4000 {
            walkers.looks(LS);
            if !walkers.lists(LS, 16) {
                trials.push(page);
            }
        }
        assert_eq!(trials, [2, 35, 100, 229, 486, 999, 2024, 3049]);
    }

    #[test]
    fn large_pages_and_directories_alone_are_no_trial() {
        let walkers = Walkers::default();
        assert!((0..100).all(|_| walkers.lists(LS, TRIAL_FILES_MAX + 1)));
        assert!((0..100).all(|_| walkers.lists(LS, 0)));
        assert!(!walkers.lists(LS, TRIAL_FILES_MAX));
        assert!(!walkers.lists(LS, 100_000), "it looked at none");
    }

    #[test]
    fn memory_is_bounded() {
        let walkers = Walkers::default();
        for thread in 0..10 * THREADS_MAX as u32 {
            walkers.lists(thread, 1);
        }
        assert!(walkers.0.lock().len() <= THREADS_MAX);
    }
}
