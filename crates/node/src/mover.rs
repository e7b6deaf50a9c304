//! Migrates finished files whose layout is poor for the way they are read
//! ([`mds::Mdt::next_move`]), in the background, with a client of its own in the process of the
//! metadata target, mounted only while there are files to migrate.
//!
//! Life cycle: [`Mover::start`]; [`Mover::stop`] before clients and targets end: a migration in
//! progress is given up, and its copy is removed with its session.

use std::{fmt, sync::Arc, time::Duration};

use client::migration::{Background, Rest, Restraint, Throttle};
use layout::LayoutSpec;
use mds::Mdt;
use parking_lot::Mutex;
use rt::{BoxFuture, Seams};
use tokio::sync::watch;
use types::{Credentials, FsError, FsResult, InodeNumber};

use super::{
    background_client::{BackgroundClient, BackgroundOptions},
    worker::Worker,
};

/// How long a file that is in use when it is copied is left alone before the swap is tried again:
/// the reader that made it worth a move may have it open still. In all a minute, in which the copy
/// takes space and other files wait.
const PAUSES_WHILE_IN_USE: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(32),
];

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoverCounters {
    /// Files moved.
    files: u64,
    /// Their bytes.
    bytes: u64,
    /// Files that were written to, or open at the end.
    in_use: u64,
    /// Files given up for lack of space, or because `migrate_mbps` became 0.
    given_up: u64,
    /// Files that could not be moved for any other reason.
    failed: u64,
}

impl fmt::Display for MoverCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {} samples [files] {} bytes", "moved", self.files, self.bytes)?;
        writeln!(f, "{:<24} {} samples [files]", "in_use", self.in_use)?;
        writeln!(f, "{:<24} {} samples [files]", "given_up", self.given_up)?;
        writeln!(f, "{:<24} {} samples [files]", "failed", self.failed)
    }
}

/// See the module documentation.
pub struct Mover {
    worker: Worker,
    counters: Arc<Mutex<MoverCounters>>,
}

impl Mover {
    /// Begins to work for `mdt`, with clients mounted with these options.
    pub fn start(seams: &Seams, mdt: &Arc<Mdt>, options: BackgroundOptions) -> Self {
        let counters: Arc<Mutex<MoverCounters>> = Arc::default();
        let work = Work { mdt: Arc::clone(mdt), counters: counters.clone() };
        let client = BackgroundClient::new(seams, options);
        Self { worker: Worker::start(seams, "mover", |stopping| work.run(client, stopping)), counters }
    }

    /// What was done, for a parameter.
    pub fn counters(&self) -> Arc<Mutex<MoverCounters>> {
        self.counters.clone()
    }

    /// Ends it.
    pub async fn stop(self) {
        self.worker.stop().await;
    }
}

struct Work {
    mdt: Arc<Mdt>,
    counters: Arc<Mutex<MoverCounters>>,
}

impl Work {
    async fn run(self, mut client: BackgroundClient, mut stopping: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stop| *stop) => break,
                () = self.move_next(&mut client) => {}
            }
            if self.mdt.moves_waiting() == 0 {
                client.unmount().await;
            }
        }
        client.unmount().await;
    }

    /// Waits for a file and moves it.
    async fn move_next(&self, client: &mut BackgroundClient) {
        let inode = self.mdt.next_move().await;
        let moved = self.try_move(inode, client).await;
        // Or it was removed since.
        self.mdt.move_ended(inode, matches!(moved, Ok(_) | Err(FsError::NotFound | FsError::Stale)));
        tracing::info!(target = %self.mdt.name(), %inode, outcome = ?moved, "background migration of a file finished");
        self.count(&moved);
    }

    async fn try_move(&self, inode: InodeNumber, client: &mut BackgroundClient) -> FsResult<u64> {
        if self.mdt.parameters().migration_bytes_per_second == 0 {
            return Err(FsError::Interrupted);
        }
        let client = client.mounted().await?;
        let mut background =
            Background { throttle: Throttle::default(), restraint: self, swap_pauses: &PAUSES_WHILE_IN_USE };
        client.migrate(&Credentials::root(), inode, LayoutSpec::Automatic, false, Some(&mut background)).await
    }

    fn count(&self, moved: &FsResult<u64>) {
        let mut counters = self.counters.lock();
        match moved {
            Ok(bytes) => {
                counters.files += 1;
                counters.bytes += bytes;
            }
            Err(FsError::Busy) => counters.in_use += 1,
            Err(FsError::Interrupted) => counters.given_up += 1,
            // Removed since.
            Err(FsError::NotFound | FsError::Stale) => {}
            Err(_) => counters.failed += 1,
        }
    }
}

impl Restraint for Work {
    fn allowance(&self, rest: Rest) -> BoxFuture<'_, u64> {
        let has_space = self.mdt.has_space_for_copy(rest.start, rest.size, &rest.osts);
        let bytes_per_second = self.mdt.parameters().migration_bytes_per_second;
        Box::pin(async move { if has_space { bytes_per_second } else { 0 } })
    }
}
