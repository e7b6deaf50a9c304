//! Wakes the thread that manages a fjall store's space.

use std::sync::mpsc;

/// Wakes the thread that looks after space. One wake-up is kept while it works: what it has not
/// seen, it sees after that.
pub(super) struct Wakes(mpsc::SyncSender<()>);

impl Wakes {
    /// The other end is the thread's, whose channel keeps one.
    pub fn new(wake: mpsc::SyncSender<()>) -> Wakes {
        Wakes(wake)
    }

    /// There may be something to do.
    pub fn wake(&self) {
        // Full: it will look anyway.
        let _ = self.0.try_send(());
    }
}
