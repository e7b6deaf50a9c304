//! What wakes the thread that looks after a fjall store's space: the store's owner, and fjall when it begins to merge tables,
//! which it tells by making a filter. The filter keeps everything.
//!
//! Downside: the end of a merge is told by nobody.

use std::{panic::AssertUnwindSafe, sync::mpsc};

use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};

/// Wakes the thread that looks after space. One wake-up is kept while it works: what it has not seen is seen behind that.
pub(super) struct Wakes(AssertUnwindSafe<mpsc::SyncSender<()>>);

impl Wakes {
    /// The other end is the thread's, whose channel keeps one.
    pub fn new(wake: mpsc::SyncSender<()>) -> Wakes {
        Wakes(AssertUnwindSafe(wake))
    }

    /// Another handle.
    pub fn share(&self) -> Wakes {
        Wakes(AssertUnwindSafe(self.0.clone()))
    }

    /// There may be something to do.
    pub fn wake(&self) {
        // Full: it will look anyway.
        let _ = self.0.try_send(());
    }
}

/// Told by fjall when it begins to merge tables.
impl Factory for Wakes {
    fn name(&self) -> &str {
        "replaced tables"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        self.wake();
        Box::new(KeepAll)
    }
}

/// Changes nothing about a merge.
struct KeepAll;

impl CompactionFilter for KeepAll {
    fn filter_item(&mut self, _: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        Ok(Verdict::Keep)
    }
}
