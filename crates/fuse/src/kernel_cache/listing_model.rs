//! Random interleavings of a kernel that keeps names, handles, this mount, and another client.
//!
//! The kernel is `fs/fuse/readdir.c` of Linux 6.18, with two names per page. Names carry the number
//! of changes that the directory had seen when the mount answered; how many names there are depends
//! on it, too. The mtime never changes, as if everybody restored it.
//!
//! Property: what is served at the beginning of the directory has seen all changes that have
//! returned; what is served further on has seen those that had when the program was at the
//! beginning.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use types::SplitMix64;

use super::*;

const NAMES_PER_PAGE: usize = 2;
const HANDLES_MAX: usize = 3;
const VALIDITY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Entry {
    changes: u64,
    cookie: u64,
}

/// `fi->rdc`, the pages, and the directory's iversion.
#[derive(Debug, Default)]
struct Kernel {
    cached: bool,
    size: usize,
    position: u64,
    version: u64,
    iversion_at_start: u64,
    iversion: u64,
    pages: BTreeMap<usize, Vec<Entry>>,
}

#[derive(Debug, PartialEq)]
enum Step {
    /// OPENDIR is answered.
    Opening,
    Idle,
    /// READDIR is sent.
    Asking,
    Releasing,
}

#[derive(Debug)]
struct Handle {
    opening: Opening,
    step: Step,
    /// The answer to READDIR, and how it ends the directory.
    answer: Option<(Vec<Entry>, Ending)>,
    position: u64,
    /// `ff->readdir`.
    stream: (usize, u64, u64),
    /// Changes that had returned when it was at the beginning.
    must_show: u64,
}

/// What a part of `fuse_readdir_cached` comes to.
enum Cached {
    Uncached,
    Served,
    Again,
}

impl Kernel {
    fn reset(&mut self) {
        (self.cached, self.size, self.position) = (false, 0, 0);
        self.version += 1;
    }

    /// `fuse_readdir_cached`. Returns false if the mount has to be asked.
    fn read_cached(&mut self, handle: &mut Handle, names_max: usize, returned: u64) -> bool {
        if handle.stream.1 != handle.position {
            (handle.stream.0, handle.stream.1) = (0, 0);
        }
        let mut served = 0;
        loop {
            if !self.cached {
                if handle.position == 0 && self.size == 0 {
                    self.iversion_at_start = self.iversion;
                }
                return false;
            }
            if handle.position == 0 && self.iversion != self.iversion_at_start {
                self.reset();
                continue;
            }
            match self.read_page(handle, &mut served, names_max, returned) {
                Cached::Uncached => return false,
                Cached::Served => return true,
                Cached::Again => {}
            }
        }
    }

    fn read_page(&mut self, handle: &mut Handle, served: &mut usize, names_max: usize, returned: u64) -> Cached {
        if handle.stream.2 != self.version {
            (handle.stream.0, handle.stream.1) = (0, 0);
        }
        if handle.stream.1 == 0 {
            handle.stream.2 = self.version;
        }
        assert!(self.size >= handle.stream.0, "the kernel would warn");
        if handle.stream.0 == self.size {
            return Cached::Served;
        }
        let Some(page) = self.pages.get(&(handle.stream.0 / NAMES_PER_PAGE)) else {
            self.reset();
            return Cached::Again;
        };
        let mut found = false;
        for entry in page.clone().iter().skip(handle.stream.0 % NAMES_PER_PAGE) {
            if handle.stream.1 == handle.position {
                found = true;
                if *served == names_max {
                    return Cached::Served;
                }
                let must_show = if handle.position == 0 { returned } else { handle.must_show };
                assert!(entry.changes >= must_show, "{entry:?} is served after {must_show} changes to {handle:?}");
                *served += 1;
                handle.position = entry.cookie;
            }
            handle.stream.1 = entry.cookie;
            handle.stream.0 += 1;
        }
        match (handle.stream.0.is_multiple_of(NAMES_PER_PAGE), found) {
            (true, _) => Cached::Again,
            (false, true) => Cached::Served,
            (false, false) => Cached::Uncached,
        }
    }

    /// `fuse_add_dirent_to_cache`.
    fn append(&mut self, entry: Entry, position: u64) {
        if self.cached || position != self.position {
            return;
        }
        let page = self.size / NAMES_PER_PAGE;
        if self.size.is_multiple_of(NAMES_PER_PAGE) {
            self.pages.insert(page, vec![entry]);
        } else {
            let Some(names) = self.pages.get_mut(&page) else { return };
            names.push(entry);
        }
        self.size += 1;
        self.position = entry.cookie;
    }

    /// What `fuse_readdir_uncached` does with an answer.
    fn receive(&mut self, handle: &mut Handle, names_max: usize) {
        let (names, ending) = handle.answer.take().expect("it was answered");
        let keeps = handle.opening != Opening::Apart;
        if names.is_empty() && ending != Ending::Short && keeps && self.position == handle.position {
            self.cached = true;
            self.pages.retain(|page, _| page * NAMES_PER_PAGE < self.size);
        }
        for (count, entry) in names.into_iter().enumerate() {
            if keeps {
                self.append(entry, handle.position);
            }
            if count == names_max {
                break;
            }
            handle.position = entry.cookie;
        }
    }
}

/// A change by another client, or by this one without the kernel's knowledge.
#[derive(Debug, PartialEq)]
enum Change {
    /// The names are being dropped from the kernel, if they have to be.
    Other {
        drops: bool,
    },
    Unknown {
        span: Option<u64>,
        drops: bool,
    },
    /// It is made; the names are being dropped again.
    UnknownMade {
        drops: bool,
    },
}

struct World {
    random: SplitMix64,
    /// Every so many steps that may disturb do.
    calm: u64,
    kernel: Kernel,
    listing: Listing,
    handles: Vec<Handle>,
    span: Option<u64>,
    spans: u64,
    /// Changes made, and those of which the caller knows.
    made: u64,
    returned: u64,
    change: Option<Change>,
    expiry_drops: bool,
    now: Instant,
    served_at_beginning: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64(seed),
            calm: 1 + seed % 40,
            kernel: Kernel::default(),
            listing: Listing::default(),
            handles: Vec::new(),
            span: None,
            spans: 0,
            made: 0,
            returned: 0,
            change: None,
            expiry_drops: false,
            now: Instant::now(),
            served_at_beginning: 0,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn lock_span(&self) -> Option<LockSpan> {
        self.span.map(|number| LockSpan { number: SpanNumber(number, 0), validity: VALIDITY })
    }

    fn renew_span(&mut self) {
        self.spans += 1;
        self.span = self.span.map(|_| self.spans);
    }

    /// A lock comes with an answer, unless another client is about to change the directory.
    fn may_lock(&mut self) {
        if self.span.is_none()
            && !matches!(self.change, Some(Change::Other { .. } | Change::Unknown { .. }))
            && self.below(4) != 0
        {
            self.spans += 1;
            self.span = Some(self.spans);
        }
    }

    fn step(&mut self) {
        let disturbs = self.below(self.calm) == 0;
        match self.below(24) {
            14..20 if !disturbs && self.change.is_none() => {}
            0..3 if self.handles.len() < HANDLES_MAX => self.open(),
            0..14 if !self.handles.is_empty() => {
                let chosen = self.below(self.handles.len() as u64) as usize;
                self.step_of_handle(chosen);
            }
            14..17 => self.step_of_change(),
            17 if self.handles.iter().all(|handle| handle.step != Step::Asking) => {
                // A change through the kernel, which holds the directory's lock.
                (self.made, self.kernel.iversion) = (self.made + 1, self.kernel.iversion + 1);
                self.returned = self.made;
                self.renew_span();
            }
            18 => {
                let page = self.below(3) as usize;
                self.kernel.pages.remove(&page);
            }
            19 => self.now += VALIDITY / 3,
            20 => self.expiry_drops |= self.listing.expire(self.now),
            21 if std::mem::take(&mut self.expiry_drops) => self.kernel.pages.clear(),
            _ => {}
        }
    }

    fn open(&mut self) {
        self.may_lock();
        let looks = self.below(4) == 0;
        let opening = self.listing.open(self.lock_span(), looks, self.now);
        let (answer, step) = (None, Step::Opening);
        let stream = (0, 0, 0);
        self.handles.push(Handle { opening, step, answer, position: 0, stream, must_show: 0 });
    }

    fn step_of_handle(&mut self, chosen: usize) {
        let names_max = 1 + self.below(6) as usize;
        let choice = self.below(8);
        match self.handles[chosen].step {
            Step::Opening => {
                if self.handles[chosen].opening == Opening::Anew {
                    self.kernel.pages.clear();
                }
                self.handles[chosen].step = Step::Idle;
            }
            Step::Idle if choice == 0 => self.handles[chosen].position = 0,
            // seekdir(3) to where the program has been, or may have been.
            Step::Idle if choice == 1 && names_max < 3 => {
                let position = self.handles[chosen].position;
                self.handles[chosen].position = position.min(names_max as u64);
            }
            Step::Idle if choice == 1 => self.handles[chosen].step = Step::Releasing,
            Step::Idle => self.read(chosen, names_max),
            Step::Asking if self.handles[chosen].answer.is_none() => self.answer(chosen),
            Step::Asking => {
                self.kernel.receive(&mut self.handles[chosen], names_max);
                self.handles[chosen].step = Step::Idle;
            }
            Step::Releasing => {
                let handle = self.handles.swap_remove(chosen);
                if handle.opening != Opening::Apart {
                    self.listing.close();
                }
            }
        }
    }

    fn read(&mut self, chosen: usize, names_max: usize) {
        let handle = &mut self.handles[chosen];
        let is_first = handle.position == 0;
        if is_first {
            handle.must_show = self.returned;
        }
        let keeps = handle.opening != Opening::Apart;
        if keeps && self.kernel.read_cached(handle, names_max, self.returned) {
            self.served_at_beginning += u64::from(is_first);
        } else {
            handle.step = Step::Asking;
        }
    }

    /// The mount answers READDIR: names that fit, or the end.
    fn answer(&mut self, chosen: usize) {
        self.may_lock();
        let (span, position) = (self.lock_span(), self.handles[chosen].position);
        let count = 2 + self.made % 4;
        let fit = 1 + self.below(5);
        let (changes, is_bare) = (self.made, self.below(2) == 0);
        let names: Vec<Entry> =
            (position + 1..=count).take(fit as usize).map(|cookie| Entry { changes, cookie }).collect();
        let handle = &self.handles[chosen];
        let is_end = names.is_empty();
        let ending = match handle.opening {
            Opening::Apart => Ending::Complete,
            _ if is_end => self.listing.finish(span, self.now),
            _ => {
                self.listing.show(span, self.now);
                if is_bare {
                    self.listing.show_bare();
                }
                Ending::Complete
            }
        };
        if ending == Ending::Dropped {
            self.kernel.pages.clear();
        }
        self.handles[chosen].answer = Some((names, ending));
    }

    fn step_of_change(&mut self) {
        self.change = match self.change.take() {
            None if self.below(3) == 0 => {
                self.span = None;
                Some(Change::Other { drops: self.listing.end() })
            }
            None if self.below(3) == 0 => {
                let (span, drops) = (self.span.take(), self.listing.end());
                Some(Change::Unknown { span, drops })
            }
            None => None,
            Some(Change::Other { drops }) => {
                self.drop_pages(drops);
                self.made += 1;
                self.returned = self.made;
                None
            }
            Some(Change::Unknown { span, drops }) => {
                self.drop_pages(drops);
                self.made += 1;
                self.spans += 1;
                self.span = self.span.or(span.map(|_| self.spans));
                Some(Change::UnknownMade { drops: self.listing.end() })
            }
            Some(Change::UnknownMade { drops }) => {
                self.drop_pages(drops);
                self.returned = self.made;
                None
            }
        };
    }

    fn drop_pages(&mut self, drops: bool) {
        if drops {
            self.kernel.pages.clear();
        }
    }
}

#[test]
fn nothing_outdated_is_served_from_the_beginning() {
    let mut served = 0;
    for seed in 0..30_000 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        served += world.served_at_beginning;
    }
    assert!(served > 100_000, "the kernel served only {served} listings");
}
