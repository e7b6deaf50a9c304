//! Waits that the caller may end: an open, or a truncation by path, that waits for another user of
//! the file, perhaps for as long as a migration takes; and a reservation's search for space,
//! between its steps.
//!
//! To wait for another user means to repeat the request, answered `Waiting`, when the MDT calls
//! back. An interrupted caller gets `Interrupted` at once, when nothing has happened at the MDT. If
//! the request was granted, the operation is completed as if it had not been interrupted.

use std::{future::pending, sync::Arc};

use tokio::sync::watch;
use types::{FsError, FsResult};

use super::finish::Abandoned;

/// Set once, by the code that wants the wait to end. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Interruption {
    raised: Arc<watch::Sender<bool>>,
    /// Of an operation that [`finish`](super::finish::finish) runs.
    caller: Option<Abandoned>,
}

impl Interruption {
    /// Ends the wait.
    pub fn raise(&self) {
        self.raised.send_replace(true);
    }

    /// The same, which also ends waits when the caller is gone: what a killed process waits to do
    /// must not happen after others know of its end.
    pub(crate) fn or_abandoned(self, caller: Abandoned) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Whether the wait is to end.
    pub(crate) fn is_raised(&self) -> bool {
        *self.raised.borrow() || self.caller.as_ref().is_some_and(Abandoned::is_set)
    }

    /// The output of a wait at which nothing has happened yet.
    pub(crate) async fn ends<T>(&self, wait: impl Future<Output = T>) -> FsResult<T> {
        let mut raised = self.raised.subscribe();
        let gone = async {
            match &self.caller {
                Some(caller) => caller.set().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            output = wait => Ok(output),
            // The sender lives in `self`.
            _ = raised.wait_for(|raised| *raised) => Err(FsError::Interrupted),
            () = gone => Err(FsError::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_waits_is_interrupted() {
        let interruption = Interruption::default();
        let (result, ()) =
            tokio::join!(interruption.ends(std::future::pending::<()>()), async { interruption.raise() });
        assert_eq!(result, Err(FsError::Interrupted));
        assert_eq!(interruption.ends(std::future::pending::<()>()).await, Err(FsError::Interrupted));
        assert_eq!(interruption.ends(async { 7 }).await, Ok(7));
    }
}
