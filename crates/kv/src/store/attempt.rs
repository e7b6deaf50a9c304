//! Attempts of an operation that must not wait for the cold store, because its caller holds a lock
//! meanwhile.
//!
//! An attempt reads with [`Reads`]: from memory, and from entries loaded for its operation. A key
//! that is in neither is noted in the operation's [`Loading`], and the read fails with
//! [`Error::Missed`]: the attempt is given up. The caller releases its lock, has the missing
//! entries loaded ([`crate::Store::load_missed`]), and tries again:
//!
//! ```text
//! loop { lock -> attempt with Reads -> unlock -> given up? -> load_missed }
//! ```
//!
//! Invariants: an attempt that missed a key has failed, however the operation handled the error;
//! after [`LOADS_MAX`] loads without progress, missing entries are read at once. Downside: an
//! operation is executed about once for each read that depends on the previous one.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    loading::{self, Loaded, Wanted},
    shared::Shared,
};
use crate::{
    batch::Table,
    error::{Error, Result},
};

/// Loads of one operation before it reads the cold store under the lock: each loads all that the
/// attempt before it missed, so that only a checkpoint in progress, which makes loads useless, or a
/// very long scan gets there.
const LOADS_MAX: u32 = 64;

/// What one operation has loaded, and what its last attempt missed.
#[derive(Debug, Default)]
pub struct Loading {
    loaded: Loaded,
    missed: Mutex<BTreeSet<Wanted>>,
    loads: u32,
}

impl Loading {
    /// Whether the last attempt missed something.
    pub fn is_given_up(&self) -> bool {
        !self.missed.lock().is_empty()
    }

    /// The attempt continues without what it missed: it has done a part of its work, and ends
    /// there.
    pub fn do_without(&self) {
        self.missed.lock().clear();
    }

    /// Loads what the last attempt missed.
    pub(super) async fn load_missed(&mut self, shared: &Arc<Shared>) -> Result<()> {
        let missed = std::mem::take(self.missed.get_mut());
        self.loads += 1;
        self.loaded = loading::load(shared, missed, std::mem::take(&mut self.loaded)).await?;
        Ok(())
    }

    /// The operation is done with this table up to `key`: what was loaded of that is dropped. For
    /// operations that read on and on.
    pub fn forget_before(&mut self, table: Table, key: &[u8]) {
        if self.loaded.forget_before(table, key) {
            self.loads = 0;
        }
    }
}

/// A store as an attempt of an operation reads it.
#[derive(Clone, Copy)]
pub struct Reads<'a> {
    shared: &'a Shared,
    loading: Option<&'a Loading>,
    at_once: bool,
}

impl<'a> Reads<'a> {
    /// With `loading`, what is missed is noted there; without, everything is read at once.
    pub(super) fn new(shared: &'a Shared, loading: Option<&'a Loading>) -> Self {
        let at_once = loading.is_none_or(|loading| loading.loads >= LOADS_MAX);
        Self { shared, loading, at_once }
    }

    /// The same, but nothing is missed any more: for an attempt that cannot be given up from here
    /// on.
    pub fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    fn known(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        self.loading.and_then(|loading| self.shared.get_loaded(table, key, &loading.loaded))
    }

    fn miss(&self, wanted: Wanted) -> Error {
        if let Some(loading) = self.loading {
            loading.missed.lock().insert(wanted);
        }
        Error::Missed
    }

    /// Value of a key.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        match self.known(table, key) {
            Some(known) => Ok(known),
            None if self.at_once => self.shared.get(table, key),
            None => Err(self.miss(Wanted::Key(table, Bytes::copy_from_slice(key)))),
        }
    }

    /// Makes sure that a key can be read: for operations that know several at once, which are then
    /// loaded together.
    pub fn need(&self, table: Table, key: &[u8]) -> Result<()> {
        if self.at_once || self.known(table, key).is_some() {
            return Ok(());
        }
        Err(self.miss(Wanted::Key(table, Bytes::copy_from_slice(key))))
    }

    /// As [`crate::Store::scan`]. What was visited when it fails is no answer.
    pub fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<()> {
        let Some(loading) = self.loading.filter(|_| !self.at_once) else {
            return self.shared.scan(table, from, to, visit);
        };
        match self.shared.scan_loaded(table, from, to, &loading.loaded, visit)? {
            None => Ok(()),
            Some(wanted) => Err(self.miss(wanted)),
        }
    }
}
