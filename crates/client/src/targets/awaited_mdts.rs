//! Pauses between copies of a request that an MDT answered [`FsError::AwaitsMdt`]: it depends on
//! another MDT, which is not there or has an operation in doubt.
//!
//! Nothing calls back: the MDT that answered does not learn of all that ends the wait. A request
//! that waits so takes a slot for a moment now and then, so others find slots however many wait.
//! Downside: it goes on up to [`PAUSE_MAX`] after what it waits for.
//!
//! [`FsError::AwaitsMdt`]: types::FsError::AwaitsMdt

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use rt::{Clock, clock, trace};
use types::{FsError, FsResult, MdtIndex};

/// The first pause; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Requests that wait so at this moment, in this process, by trace id: how many for each MDT. No
/// connection waits for an answer meanwhile, so nothing else knows for what they wait.
static WAITING: Mutex<BTreeMap<(u64, MdtIndex), usize>> = Mutex::new(BTreeMap::new());

/// The MDTs on which work with this trace id depends at other MDTs, and which it waits for.
pub fn awaited_elsewhere(trace: u64) -> Vec<MdtIndex> {
    let of_trace = (trace, MdtIndex(0))..=(trace, MdtIndex(u16::MAX));
    WAITING.lock().range(of_trace).map(|((_, mdt), _)| *mdt).collect()
}

/// One request in [`WAITING`], until it is dropped.
struct Waits(u64, MdtIndex);

impl Waits {
    fn begin(trace: u64, mdt: MdtIndex) -> Self {
        *WAITING.lock().entry((trace, mdt)).or_default() += 1;
        Self(trace, mdt)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut waiting = WAITING.lock();
        if let Some(count) = waiting.get_mut(&(self.0, self.1)) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&(self.0, self.1));
            }
        }
    }
}

/// See the module documentation.
pub(crate) struct Pauses {
    next: Duration,
    /// From the first pause on, also while the next copy is on its way.
    waits: Option<Waits>,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: PAUSE_MIN, waits: None }
    }
}

impl Pauses {
    /// Waits before the next copy.
    pub async fn pause(&mut self, clock: &dyn Clock, mdt: MdtIndex) {
        if self.waits.as_ref().is_none_or(|waits| waits.1 != mdt) {
            self.waits = Some(Waits::begin(trace::current(), mdt));
        }
        let pause = self.next();
        if pause < PAUSE_MAX && self.next == PAUSE_MAX {
            tracing::warn!(
                awaited = %mdt,
                "a request waits for a metadata target that is not there, or has not decided an operation; see there"
            );
        }
        clock::sleep(clock, pause).await;
    }

    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
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

    #[test]
    fn waits_are_known_by_trace_until_they_end() {
        let trace = 77;
        let [one, again, other] = [1, 1, 2].map(|mdt| Waits::begin(trace, MdtIndex(mdt)));
        assert_eq!(awaited_elsewhere(trace), [MdtIndex(1), MdtIndex(2)]);
        assert_eq!(awaited_elsewhere(trace + 1), []);
        drop((one, other));
        assert_eq!(awaited_elsewhere(trace), [MdtIndex(1)]);
        drop(again);
        assert_eq!(awaited_elsewhere(trace), []);
    }
}
