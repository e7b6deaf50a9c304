//! Ends what clients should have ended by themselves, and did not. Whether or not requests arrive:
//! an MDT without requests does it at the same time as any other.
//!
//! | what a client does not do | after one to two intervals |
//! |---|---|
//! | ask again for the exclusive data lock that it was told is free | the next client in the queue is told |
//! | give back the lock on the opens of an inode whose last name it removed | it is asked for the lock |
//!
//! And a client that holds others off for far too long does not any more (module
//! [`crate::hold_ups`]).

use std::{sync::Arc, time::Duration};

use super::Mdt;

/// Far longer than a client needs.
const INTERVAL: Duration = Duration::from_secs(3);

/// Looks at all clients once per interval.
pub(crate) async fn run(mdt: Arc<Mdt>) {
    while mdt.pause(INTERVAL).await {
        let now_ns = mdt.seams.clock.now().0;
        let evicted = {
            let mut namespace = mdt.namespace();
            namespace.volatile.skip_silent();
            namespace.volatile.end_old_layout_changes(now_ns);
            namespace.volatile.ask_for_kept_locks();
            namespace.volatile.end_long_hold_ups()
        };
        mdt.ask_back_now();
        for client in evicted {
            mdt.evict_holder(client, "others waited too long for the client to end a truncation or an append");
        }
    }
}
