//! Waits that the caller may end: an open, or a truncation by path, that waits for another user of
//! the file, perhaps for as long as a migration takes; and a reservation's search for space,
//! between its steps.
//!
//! To wait for another user means to repeat the request while the answer is `Waiting`. An
//! interrupted caller gets `Interrupted` at the next such answer, when nothing has happened at the
//! MDT; the MDT holds no request for longer than a second. If the request was granted, the
//! operation is completed as if it had not been interrupted.
//!
//! Downside: an interruption takes up to that second.

use std::sync::Arc;

use rpc::message::MdtReply;
use tokio::sync::watch;
use types::{FsError, FsResult};

/// Set once, by the code that wants the wait to end. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Interruption(Arc<watch::Sender<bool>>);

impl Interruption {
    /// Ends the wait.
    pub fn raise(&self) {
        self.0.send_replace(true);
    }

    /// Whether the wait is to end.
    pub(crate) fn is_raised(&self) -> bool {
        *self.0.borrow()
    }

    /// The output of a wait at which nothing has happened yet.
    pub(crate) async fn ends<T>(&self, wait: impl Future<Output = T>) -> FsResult<T> {
        let mut raised = self.0.subscribe();
        tokio::select! {
            biased;
            output = wait => Ok(output),
            // The sender lives in `self`.
            _ = raised.wait_for(|raised| *raised) => Err(FsError::Interrupted),
        }
    }

    /// An answer of the MDT, unless it says to wait and the wait is to end.
    pub(crate) fn ends_at(&self, reply: MdtReply) -> FsResult<MdtReply> {
        match reply {
            MdtReply::Waiting if self.is_raised() => Err(FsError::Interrupted),
            reply => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_waits_is_interrupted() {
        let interruption = Interruption::default();
        assert_eq!(interruption.ends_at(MdtReply::Waiting), Ok(MdtReply::Waiting));
        let (result, ()) =
            tokio::join!(interruption.ends(std::future::pending::<()>()), async { interruption.raise() });
        assert_eq!(result, Err(FsError::Interrupted));
        assert_eq!(interruption.ends_at(MdtReply::Waiting), Err(FsError::Interrupted));
        assert_eq!(interruption.ends_at(MdtReply::Done), Ok(MdtReply::Done));
        assert_eq!(interruption.ends(async { 7 }).await, Ok(7));
    }
}
