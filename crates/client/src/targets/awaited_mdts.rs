//! Pauses between copies of a request that an MDT answered [`FsError::AwaitsMdt`]: it depends on
//! another MDT, which is not there or has an operation in doubt.
//!
//! Nothing calls back: the MDT that answered does not learn of all that ends the wait. A request
//! that waits so takes a slot for a moment now and then, so others find slots however many wait.
//! Downside: it goes on up to [`PAUSE_MAX`] after what it waits for.
//!
//! [`FsError::AwaitsMdt`]: types::FsError::AwaitsMdt

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rt::{Clock, clock, trace};
use types::{FsError, FsResult, MdtIndex};

/// The first pause; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Requests of a mount that wait so at this moment, by trace id: how many for each MDT. No
/// connection waits for an answer meanwhile, so nothing else knows for what they wait.
#[derive(Clone, Default)]
pub(crate) struct AwaitedMdts(Arc<Mutex<BTreeMap<(u64, MdtIndex), usize>>>);

impl AwaitedMdts {
    /// Those that work with this trace id waits for.
    pub fn of_trace(&self, trace: u64) -> Vec<MdtIndex> {
        let of_trace = (trace, MdtIndex(0))..=(trace, MdtIndex(u16::MAX));
        self.0.lock().range(of_trace).map(|((_, mdt), _)| *mdt).collect()
    }

    fn begin(&self, trace: u64, mdt: MdtIndex) -> Waits {
        *self.0.lock().entry((trace, mdt)).or_default() += 1;
        Waits { trace, mdt, all: self.clone() }
    }
}

/// One request in [`AwaitedMdts`], until it is dropped.
struct Waits {
    trace: u64,
    mdt: MdtIndex,
    all: AwaitedMdts,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&(self.trace, self.mdt)) {
            *count -= 1;
            if *count == 0 {
                all.remove(&(self.trace, self.mdt));
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
    /// Waits before the next copy. As long as there are these pauses, it is among `all`.
    pub async fn pause(&mut self, all: &AwaitedMdts, clock: &dyn Clock, mdt: MdtIndex) {
        if self.waits.as_ref().is_none_or(|waits| waits.mdt != mdt) {
            self.waits = Some(all.begin(trace::current(), mdt));
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
        let (trace, all) = (77, AwaitedMdts::default());
        let [one, again, other] = [1, 1, 2].map(|mdt| all.begin(trace, MdtIndex(mdt)));
        assert_eq!(all.of_trace(trace), [MdtIndex(1), MdtIndex(2)]);
        assert_eq!(all.of_trace(trace + 1), []);
        assert_eq!(AwaitedMdts::default().of_trace(trace), [], "another mount of the same process");
        drop((one, other));
        assert_eq!(all.of_trace(trace), [MdtIndex(1)]);
        drop(again);
        assert_eq!(all.of_trace(trace), []);
    }
}
