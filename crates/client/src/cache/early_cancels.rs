//! Locks that the MDT withdrew before the reply that grants them was handled: the callback overtook
//! it in this process. They were given back at once, so the grant is ignored when it comes.
//!
//! Bounded: one is forgotten when all questions that were under way at the callback have been
//! answered, and the MDT withdraws a lock once.

use std::collections::BTreeMap;

use types::LockHandle;

use super::own_changes::Moment;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct EarlyCancels {
    /// With the first question that cannot bring the grant.
    handles: BTreeMap<LockHandle, Moment>,
}

impl EarlyCancels {
    /// A lock that is not known was withdrawn; `next`: the next question.
    pub fn note(&mut self, handle: LockHandle, next: Moment) {
        self.handles.insert(handle, next);
    }

    /// Whether a grant is to be ignored.
    pub fn contains(&self, handle: LockHandle) -> bool {
        self.handles.contains_key(&handle)
    }

    /// A question was answered; `oldest`: the oldest one that is still under way, or the next one.
    pub fn answered(&mut self, oldest: Moment) {
        if !self.handles.is_empty() {
            self.handles.retain(|_, next| oldest < *next);
        }
    }

    /// No grant can come any more.
    pub fn clear(&mut self) {
        self.handles.clear();
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.handles.len()
    }
}
