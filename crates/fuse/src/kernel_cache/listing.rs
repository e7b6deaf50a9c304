//! What the kernel may keep of the names of one directory: pure.
//!
//! Of an open directory the kernel is told whether it keeps the names that it reads
//! (FOPEN_CACHE_DIR) and whether those that it has remain (FOPEN_KEEP_CACHE). From its source
//! (Linux 6.18, `fs/fuse/readdir.c`), for handles opened with FOPEN_CACHE_DIR:
//!
//! - Names are appended to those that are kept where these end, until an empty answer at the same
//!   position completes them. Only complete names are served without a request. An answer that is
//!   shorter than an entry ends the directory for the program, and completes nothing.
//! - At the beginning of the directory the kernel starts again if it has changed the directory
//!   itself, or knows another mtime. It does not ask for the mtime.
//! - Names whose page is missing are not served: once complete, they are started again.
//! - Without FOPEN_KEEP_CACHE, opening drops the pages. So does INVAL_INODE with a range.
//!
//! So a program that reads from the beginning sees what the MDT has, if
//!
//! 1. names are complete only if all of them, through whichever handle they were read, belong to
//!    one [span](LockSpan) of locks on the listing; otherwise they are dropped first;
//! 2. a directory is opened with them only in that span;
//! 3. when the span ends, they are dropped if they may be complete and a handle may read them again
//!    (`rewinddir`), before the locks are given back.
//!
//! For the first, answers on their way to the kernel matter: it processes them when it likes, but
//! before it closes their handle. So a listing is begun anew only when no handle is open of those
//! that may add to it, and no second one is opened before the kernel has dropped what it had, which
//! its first request proves. A listing is completed only through the only open handle: another one
//! could have an answer on its way that is added after all was dropped.
//!
//! Names whose files were shown without attributes (`adapter/walkers.rs`) are served to programs
//! that are shown no others. For one that is, the listing is begun anew, or it is opened apart as
//! long as handles of others are open.
//!
//! Downside: if the kernel has kept names that it was not allowed to complete, and the last of them
//! is removed, then the kernel completes no listing of the directory until it drops the inode:
//! names are appended only where the kept ones end, and nothing makes it start again. Such a
//! directory is listed as without FOPEN_CACHE_DIR.

use std::time::Instant;

use client::{LockSpan, SpanNumber};

/// How a directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The names that the kernel keeps are not served through this handle, and stay as they are.
    Apart,
    /// The kernel drops the names that it has, and keeps those that it reads.
    Anew,
    /// It serves what it has, and adds to it.
    Joined,
}

/// How the end of a directory is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The kernel takes its names for complete.
    Complete,
    /// The same, after it has dropped them, so that it starts again.
    Dropped,
    /// For the program only.
    Short,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Listing {
    /// Open handles through which names are kept.
    open: u32,
    /// That of all names read through them since the kernel started. `Some`: it has dropped what
    /// it had before the first of them.
    span: Option<SpanNumber>,
    /// Names of different spans were read through them, or of none.
    is_mixed: bool,
    /// The kernel may have had all names since then.
    is_complete: bool,
    /// Some of its files were shown without attributes.
    is_bare: bool,
    /// So long they may be served. Attributes that came with them are valid about as long; then it
    /// is better to read the names again with attributes than to look up each name.
    until: Option<Instant>,
}

impl Listing {
    fn is_of(&self, span: Option<LockSpan>) -> bool {
        !self.is_mixed && span.is_some_and(|span| self.span == Some(span.number))
    }

    /// The directory is opened, in a span in which the names may be served. `looks`: the program
    /// is shown the attributes of files.
    pub fn open(&mut self, span: Option<LockSpan>, looks: bool, now: Instant) -> Opening {
        let is_fresh = !self.is_complete || self.until.is_some_and(|until| until > now);
        let is_enough = !(self.is_bare && looks);
        if is_fresh && is_enough && self.is_of(span) {
            self.open += 1;
            return Opening::Joined;
        }
        if self.open > 0 {
            return Opening::Apart;
        }
        *self = Self { open: 1, ..Self::default() };
        Opening::Anew
    }

    /// A handle through which names are kept is closed: no answer to it is on its way any more.
    pub fn close(&mut self) {
        assert!(self.open > 0, "a handle is closed once");
        self.open -= 1;
    }

    /// Names are about to be shown without the attributes of files.
    pub fn show_bare(&mut self) {
        self.is_bare = true;
    }

    /// Names are about to be shown through such a handle, as they are in a span.
    pub fn show(&mut self, span: Option<LockSpan>, now: Instant) {
        match span {
            Some(LockSpan { number, validity }) if self.span.is_none_or(|known| known == number) => {
                self.span = Some(number);
                self.until = Some(now + validity);
            }
            _ => self.is_mixed = true,
        }
    }

    /// The end of the directory is about to be shown through such a handle.
    pub fn finish(&mut self, span: Option<LockSpan>, now: Instant) -> Ending {
        self.show(span, now);
        if self.open > 1 {
            return Ending::Short;
        }
        let is_clean = self.is_of(span);
        self.is_complete |= is_clean;
        if is_clean {
            return Ending::Complete;
        }
        (self.span, self.is_mixed, self.is_bare) = (None, false, false);
        Ending::Dropped
    }

    /// The names are outdated. Whether the kernel has to drop them, because handles are open that
    /// may read them again.
    pub fn end(&mut self) -> bool {
        self.is_mixed = true;
        self.open > 0 && self.is_complete
    }

    /// Whether the kernel has to drop them because they have been served long enough.
    pub fn expire(&mut self, now: Instant) -> bool {
        let is_over = self.serves_until().is_some_and(|until| until <= now);
        if is_over {
            self.until = None;
        }
        is_over
    }

    /// Until when open handles may be served.
    pub fn serves_until(&self) -> Option<Instant> {
        self.until.filter(|_| self.open > 0 && self.is_complete)
    }

    /// Handles of which answers may be on their way.
    pub fn is_open(&self) -> bool {
        self.open > 0
    }
}

#[cfg(test)]
#[path = "listing_model.rs"]
mod model;
