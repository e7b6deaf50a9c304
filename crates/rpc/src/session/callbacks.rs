//! Callbacks of one session, the target's side: which are outstanding, so that each is executed
//! once whatever the network does.
//!
//! The client keeps the last transaction of each slot, as a target does for its requests
//! ([`SlotTable`](super::SlotTable)). A slot is in use until its callback was answered; a callback
//! that no caller waits for any more keeps its slot until then, because the client may still
//! execute it.
//!
//! Transactions of a session begin above those of every earlier session of this start of the target
//! (they begin at its clock), so a client that kept its slots across a session that ended here
//! ignores none of them.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use types::{FsError, FsResult, Slot, Xid, limits::CALLBACK_SLOTS};

use crate::message::ClientReply;

/// The result of a callback, as it reaches the code that waits for it.
pub type CallbackResult = FsResult<ClientReply>;

/// See the module documentation.
#[derive(Debug)]
pub struct Callbacks {
    next: Xid,
    /// `None`: no caller waits any more.
    outstanding: BTreeMap<Slot, (Xid, Option<oneshot::Sender<CallbackResult>>)>,
}

impl Callbacks {
    /// None yet; the first has this number.
    pub fn new(first: Xid) -> Self {
        Self { next: first, outstanding: BTreeMap::new() }
    }

    /// A slot for a new callback; `None`: all are in use.
    pub fn begin(&mut self, waiter: oneshot::Sender<CallbackResult>) -> Option<(Slot, Xid)> {
        let slot = (0..CALLBACK_SLOTS).map(Slot).find(|slot| !self.outstanding.contains_key(slot))?;
        let xid = self.next;
        self.next = Xid(xid.0 + 1);
        self.outstanding.insert(slot, (xid, Some(waiter)));
        Some((slot, xid))
    }

    /// The client answered. False if nothing waited for this answer: it is a copy.
    pub fn answered(&mut self, slot: Slot, xid: Xid, result: CallbackResult) -> bool {
        if self.outstanding.get(&slot).is_none_or(|(outstanding, _)| *outstanding != xid) {
            return false;
        }
        if let Some((_, Some(waiter))) = self.outstanding.remove(&slot) {
            // One that is gone needs no answer.
            let _ = waiter.send(result);
        }
        true
    }

    /// The session ended: all that wait are told.
    pub fn end(&mut self) {
        for (_, waiter) in std::mem::take(&mut self.outstanding).into_values() {
            if let Some(waiter) = waiter {
                // One that is gone needs no answer.
                let _ = waiter.send(Err(FsError::Evicted));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_reach_who_waits_for_them_and_copies_do_not() {
        let mut callbacks = Callbacks::new(Xid(100));
        let (first, mut first_told) = oneshot::channel();
        let (second, mut second_told) = oneshot::channel();
        assert_eq!(callbacks.begin(first), Some((Slot(0), Xid(100))));
        assert_eq!(callbacks.begin(second), Some((Slot(1), Xid(101))));
        assert!(!callbacks.answered(Slot(1), Xid(100), Ok(ClientReply::Done)), "another transaction");
        assert!(callbacks.answered(Slot(0), Xid(100), Ok(ClientReply::Done)));
        assert_eq!(first_told.try_recv(), Ok(Ok(ClientReply::Done)));
        assert!(!callbacks.answered(Slot(0), Xid(100), Err(FsError::Invalid)), "a copy");
        let (third, _) = oneshot::channel();
        assert_eq!(callbacks.begin(third), Some((Slot(0), Xid(102))), "the slot is free again");
        callbacks.end();
        assert_eq!(second_told.try_recv(), Ok(Err(FsError::Evicted)));
    }

    #[test]
    fn there_are_so_many_slots() {
        let mut callbacks = Callbacks::new(Xid(1));
        let begun = std::iter::from_fn(|| callbacks.begin(oneshot::channel().0)).count();
        assert_eq!(begun, usize::from(CALLBACK_SLOTS));
    }
}
