//! Pauses between copies of a request that an MDT answered [`FsError::AwaitsMdt`]: it depends on
//! another MDT, which is not there or has an operation in doubt.
//!
//! Nothing calls back: the MDT that answered does not learn of all that ends the wait. A request
//! that waits so takes a slot for a moment now and then, so others find slots however many wait.
//! Downside: it goes on up to [`PAUSE_MAX`] after what it waits for.
//!
//! [`FsError::AwaitsMdt`]: types::FsError::AwaitsMdt

use std::time::Duration;

use rt::{Clock, clock};
use types::{FsError, FsResult, MdtIndex};

/// The first pause; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// See the module documentation.
pub(crate) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Pauses {
    /// Waits before the next copy.
    pub async fn pause(&mut self, clock: &dyn Clock, mdt: MdtIndex) {
        let pause = self.next();
        if pause < PAUSE_MAX && self.0 == PAUSE_MAX {
            tracing::warn!(
                awaited = %mdt,
                "a request waits for a metadata target that is not there, or has not decided an operation; see there"
            );
        }
        clock::sleep(clock, pause).await;
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// The MDT for which a request waits that came to this: it is to be sent again after a pause.
pub(crate) fn awaited_mdt<T>(outcome: &FsResult<T>) -> Option<MdtIndex> {
    match outcome {
        Err(FsError::AwaitsMdt(mdt)) => Some(*mdt),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut pauses = Pauses::default();
        assert_eq!([pauses.next(), pauses.next()], [PAUSE_MIN, PAUSE_MIN * 2]);
        for _ in 0..10 {
            pauses.next();
        }
        assert_eq!([pauses.next(), pauses.next()], [PAUSE_MAX, PAUSE_MAX]);
        assert_eq!(awaited_mdt::<()>(&Err(FsError::AwaitsMdt(MdtIndex(1)))), Some(MdtIndex(1)));
        assert_eq!([awaited_mdt(&Ok(())), awaited_mdt::<()>(&Err(FsError::Stale))], [None, None]);
    }
}
