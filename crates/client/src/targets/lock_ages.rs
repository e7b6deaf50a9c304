//! Locks that were not used for long are given back (`lru_max_age`): a client with nothing to do
//! leaves its place in the MDT's tables to others.

use std::{sync::Arc, time::Duration};

use rt::{Seams, clock};

use crate::targets::connection::TargetConnection;

/// Between two looks at the ages.
pub const INTERVAL: Duration = Duration::from_secs(10);

impl TargetConnection {
    /// Sees to it that the locks of this client do not become too old, in the background.
    pub fn watch_lock_ages(self: &Arc<Self>, seams: &Seams) {
        if !self.cache().begin_to_age() {
            return;
        }
        let (target, seams) = (Arc::downgrade(self), seams.clone());
        let spawn = seams.spawn.clone();
        let work = async move {
            loop {
                clock::sleep(&*seams.clock, INTERVAL).await;
                let Some(target) = target.upgrade() else { return };
                let has_more = target.cache().give_up_unused(seams.clock.now(), target.above().is_there());
                target.give_locks_back(&seams);
                if !has_more {
                    return;
                }
            }
        };
        spawn.spawn("lock ages", Box::pin(work));
    }
}
