//! Load first, then lock: an attempt of an operation under the namespace's lock never waits for
//! the cold store. An entry that is not in memory ends the attempt; it is loaded without the lock
//! ([`kv::Loading`]), and the operation is tried again
//! ([docs/decisions/0015](../../../../docs/decisions/0015-load-first.md)).
//!
//! An attempt can be given up as long as it has changed nothing that would persist: batches,
//! counters and opens are created at commit, but the volatile state is changed directly. So an
//! attempt that takes the volatile state for a change ([`Tracked`]) is not given up any more:
//! entries that it misses from then on are read under the lock.
//!
//! Requests that only read are executed beside each other ([`Tracked::beside`]): the volatile state
//! is shared then, and none of them takes it for a change. That they have no reason to is known
//! before ([`MdtRow::reads_beside`](crate::ops::row::MdtRow::reads_beside)).

use std::ops::{Deref, DerefMut};

use crate::{
    opens::{EarlyOpen, OpenFile, OpenKey},
    volatile::Volatile,
};

/// The volatile state, and whether it may have been changed.
pub(crate) struct Tracked<'n> {
    volatile: Access<'n>,
    pub(super) touched: bool,
}

enum Access<'n> {
    Alone(&'n mut Volatile),
    Beside(&'n Volatile),
}

impl<'n> Tracked<'n> {
    pub(super) fn new(volatile: &'n mut Volatile) -> Self {
        Self { volatile: Access::Alone(volatile), touched: false }
    }

    /// Of an operation that only reads, while others do.
    pub(super) fn beside(volatile: &'n Volatile) -> Self {
        Self { volatile: Access::Beside(volatile), touched: false }
    }

    fn alone(&mut self) -> &mut Volatile {
        match &mut self.volatile {
            Access::Alone(volatile) => volatile,
            Access::Beside(_) => unreachable!("an operation that is executed beside others only reads"),
        }
    }

    /// Makes an open that is taken back if the attempt ends: it does not count as a change.
    pub(super) fn open_early(&mut self, key: OpenKey, file: OpenFile) -> EarlyOpen {
        EarlyOpen::make(&mut self.alone().opens, key, file)
    }

    /// Takes such an open back.
    pub(super) fn take_back(&mut self, early: EarlyOpen) {
        early.take_back(&mut self.alone().opens);
    }
}

impl Deref for Tracked<'_> {
    type Target = Volatile;

    fn deref(&self) -> &Volatile {
        match &self.volatile {
            Access::Alone(volatile) => volatile,
            Access::Beside(volatile) => volatile,
        }
    }
}

impl DerefMut for Tracked<'_> {
    fn deref_mut(&mut self) -> &mut Volatile {
        self.touched = true;
        self.alone()
    }
}
