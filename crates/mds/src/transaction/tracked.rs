//! Load first, then lock: an attempt of an operation under the namespace's mutex never waits for
//! the cold store. An entry that is not in memory ends the attempt; it is loaded without the mutex
//! ([`kv::Loading`]), and the operation is tried again
//! ([docs/decisions/0015](../../../../docs/decisions/0015-load-first.md)).
//!
//! An attempt can be given up as long as it has changed nothing that would persist: batches,
//! counters and opens are created at commit, but the volatile state is changed directly. So an
//! attempt that takes the volatile state for a change ([`Tracked`]) is not given up any more:
//! entries that it misses from then on are read under the mutex.

use std::ops::{Deref, DerefMut};

use crate::{
    opens::{EarlyOpen, OpenFile, OpenKey},
    volatile::Volatile,
};

/// The volatile state, and whether it may have been changed.
pub(crate) struct Tracked<'n> {
    volatile: &'n mut Volatile,
    pub(super) touched: bool,
}

impl<'n> Tracked<'n> {
    pub(super) fn new(volatile: &'n mut Volatile) -> Self {
        Self { volatile, touched: false }
    }

    /// Makes an open that is taken back if the attempt ends: it does not count as a change.
    pub(super) fn open_early(&mut self, key: OpenKey, file: OpenFile) -> EarlyOpen {
        EarlyOpen::make(&mut self.volatile.opens, key, file)
    }

    /// Takes such an open back.
    pub(super) fn take_back(&mut self, early: EarlyOpen) {
        early.take_back(&mut self.volatile.opens);
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
