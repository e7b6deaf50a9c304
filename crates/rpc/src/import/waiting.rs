//! Callers that wait before their requests are sent, by trace id, so that the log of a long wait
//! can name the target.

use std::collections::BTreeMap;

/// How many calls wait, by the trace id of their request.
#[derive(Default)]
pub(super) struct Waiting(BTreeMap<u64, usize>);

impl Waiting {
    /// Whether a call with this trace id waits.
    pub(super) fn contains(&self, trace: u64) -> bool {
        self.0.contains_key(&trace)
    }

    pub(super) fn begin(&mut self, trace: u64) {
        *self.0.entry(trace).or_default() += 1;
    }

    pub(super) fn end(&mut self, trace: u64) {
        if let Some(count) = self.0.get_mut(&trace) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&trace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_waits_until_all_its_calls_have_ended() {
        let mut waiting = Waiting::default();
        waiting.begin(7);
        waiting.begin(7);
        waiting.end(7);
        assert!(waiting.contains(7) && !waiting.contains(8));
        waiting.end(7);
        assert!(!waiting.contains(7) && waiting.0.is_empty());
    }
}
