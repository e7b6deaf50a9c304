//! Passes files that are worth migrating to another layout (module `moves`) to the client that
//! migrates them.

use layout::migration;
use types::{InodeNumber, OstIndex};

use super::Mdt;

impl Mdt {
    /// Waits for the next finished file whose layout is poor for the way it is read. Files are told
    /// once; the caller moves it, and reports the end with [`Mdt::move_ended`].
    pub async fn next_move(&self) -> InodeNumber {
        let wakeup = self.namespace().volatile.moves.wakeup();
        loop {
            let rung = wakeup.notified();
            if let Some(inode) = self.namespace().volatile.moves.take() {
                return inode;
            }
            rung.await;
        }
    }

    /// The file of [`Mdt::next_move`] has moved, or is gone; or it could not be moved, and comes
    /// again.
    pub fn move_ended(&self, inode: InodeNumber, is_over: bool) {
        let moves = &mut self.namespace().volatile.moves;
        if is_over { moves.forget(inode) } else { moves.failed(inode) }
    }

    /// Files that wait for [`Mdt::next_move`].
    pub fn moves_waiting(&self) -> usize {
        self.namespace().volatile.moves.waiting()
    }

    /// Whether a copy that is on `osts` by now, of a file of `size` bytes whose data from `start`
    /// on are not copied yet, leaves half of what is free as far as is known here
    /// ([`migration::has_space`]).
    pub fn has_space_for_copy(&self, start: u64, size: u64, osts: &[OstIndex]) -> bool {
        let policy = self.parameters().placement;
        let available = self.namespace().volatile.targets.available_parts(&policy);
        // One that gets no new objects now is full, or out of reach.
        let has_space = |ost: &OstIndex| {
            let free = available.iter().find(|(index, _)| index == ost).map_or(0, |(_, free)| *free);
            migration::has_space_on(start, size, available.len(), free)
        };
        let free: Vec<u64> = available.iter().map(|(_, free)| *free).collect();
        migration::has_space(start, size, &free) && osts.iter().all(has_space)
    }
}
