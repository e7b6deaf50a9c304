//! Load first, then lock: an attempt of an operation under the namespace's mutex never waits for the cold store. What memory does
//! not know ends the attempt; it is loaded without the mutex, and the operation is tried again
//! ([docs/decisions/0015](../../../../docs/decisions/0015-load-first.md)).
//!
//! An attempt can be given up as long as it has changed nothing that a failure keeps: batches, counters and opens come into being
//! at commit, but the volatile state is changed directly. So whoever takes that for changing ([`Tracked`]) is not
//! given up any more: what it misses from then on is read under the mutex.

use std::ops::{Deref, DerefMut};

use kv::{Loaded, Wanted};
use parking_lot::Mutex;

use crate::volatile::Volatile;

/// What one operation has loaded, and what its last attempt missed.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// For the attempts to come.
    pub loaded: Loaded,
    pub(super) missed: Mutex<Vec<Wanted>>,
}

impl Loading {
    /// Takes what the last attempt missed; it was given up if that is anything.
    pub fn take_missed(&mut self) -> Vec<Wanted> {
        std::mem::take(self.missed.get_mut())
    }

    /// Whether the attempt is given up.
    pub fn is_given_up(&self) -> bool {
        !self.missed.lock().is_empty()
    }
}

/// The volatile state, and whether it may have been changed.
pub(crate) struct Tracked<'n> {
    volatile: &'n mut Volatile,
    pub(super) touched: bool,
}

impl<'n> Tracked<'n> {
    pub(super) fn new(volatile: &'n mut Volatile) -> Self {
        Self { volatile, touched: false }
    }
}

impl Deref for Tracked<'_> {
    type Target = Volatile;

    fn deref(&self) -> &Volatile {
        self.volatile
    }
}

impl DerefMut for Tracked<'_> {
    fn deref_mut(&mut self) -> &mut Volatile {
        self.touched = true;
        self.volatile
    }
}
