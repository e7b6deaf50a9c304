//! Moves finished files that lie badly for how they are read ([`mds::Mdt::next_move`]), in the background, with a client of
//! its own in the process of the metadata target. The client is mounted while there is something to move, so that a restart
//! waits for nobody who cannot come back.
//!
//! Life cycle: [`Mover::start`]; [`Mover::stop`] before clients and targets end: a move under way is given up, and what it
//! made goes with its session.

use std::{fmt, sync::Arc, time::Duration};

use client::{FileSystem, MountOptions, courtesy::Courtesy};
use layout::LayoutSpec;
use mds::Mdt;
use parking_lot::Mutex;
use rt::{Seams, clock};
use tokio::sync::watch;
use types::{Credentials, FsError, FsResult, InodeNumber};

/// How long a file that is in use is left alone before it is tried again: the reader that made it worth a move has it open still.
const PAUSES_WHILE_IN_USE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Files moved.
    files: u64,
    /// Their bytes.
    bytes: u64,
    /// Files that were written to, or open at the end.
    in_use: u64,
    /// Files that could not be moved for any other reason.
    failed: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {} samples [files] {} bytes", "moved", self.files, self.bytes)?;
        writeln!(f, "{:<24} {} samples [files]", "in_use", self.in_use)?;
        writeln!(f, "{:<24} {} samples [files]", "failed", self.failed)
    }
}

/// See the module documentation.
pub struct Mover {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    figures: Arc<Mutex<Figures>>,
}

impl Mover {
    /// Begins to work for `mdt`, with clients mounted with these options.
    pub fn start(seams: &Seams, mdt: &Arc<Mdt>, options: impl Fn() -> MountOptions + Send + Sync + 'static) -> Self {
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let figures: Arc<Mutex<Figures>> = Arc::default();
        let work =
            Work { seams: seams.clone(), mdt: Arc::clone(mdt), options: Box::new(options), figures: figures.clone() };
        seams.spawn.spawn(
            "mover",
            Box::pin(async move {
                work.run(stopping).await;
                end.send_replace(true);
            }),
        );
        Self { stop, ended, figures }
    }

    /// What was done, for a parameter.
    pub fn figures(&self) -> Arc<Mutex<Figures>> {
        self.figures.clone()
    }

    /// Ends it.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // It has ended as well if the task is gone.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}

struct Work {
    seams: Seams,
    mdt: Arc<Mdt>,
    options: Box<dyn Fn() -> MountOptions + Send + Sync>,
    figures: Arc<Mutex<Figures>>,
}

impl Work {
    async fn run(self, mut stopping: watch::Receiver<bool>) {
        let mut mounted: Option<Arc<FileSystem>> = None;
        loop {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stop| *stop) => break,
                () = self.move_next(&mut mounted) => {}
            }
            if self.mdt.moves_waiting() == 0
                && let Some(client) = mounted.take()
            {
                client.unmount().await;
            }
        }
        if let Some(client) = mounted {
            client.unmount().await;
        }
    }

    /// Waits for a file and moves it.
    async fn move_next(&self, mounted: &mut Option<Arc<FileSystem>>) {
        let inode = self.mdt.next_move().await;
        let mut pauses = PAUSES_WHILE_IN_USE.into_iter();
        let moved = loop {
            let bytes_per_second = self.mdt.parameters().migration_bytes_per_second;
            if bytes_per_second == 0 {
                return;
            }
            let moved = self.try_move(inode, bytes_per_second, mounted).await;
            match (&moved, pauses.next()) {
                (Err(FsError::Busy), Some(pause)) => clock::sleep(&*self.seams.clock, pause).await,
                _ => break moved,
            }
        };
        tracing::info!(target = self.mdt.name(), %inode, outcome = ?moved, "a file that lies badly was to be moved");
        self.count(&moved);
    }

    async fn try_move(
        &self,
        inode: InodeNumber,
        bytes_per_second: u64,
        mounted: &mut Option<Arc<FileSystem>>,
    ) -> FsResult<u64> {
        let client = match mounted {
            Some(client) => client,
            None => mounted.insert(FileSystem::mount(self.seams.clone(), (self.options)()).await?),
        };
        let mut courtesy = Courtesy::new(bytes_per_second);
        client.migrate(&Credentials::root(), inode, LayoutSpec::Automatic, false, Some(&mut courtesy)).await
    }

    fn count(&self, moved: &FsResult<u64>) {
        let mut figures = self.figures.lock();
        match moved {
            Ok(bytes) => {
                figures.files += 1;
                figures.bytes += bytes;
            }
            Err(FsError::Busy) => figures.in_use += 1,
            // Removed since.
            Err(FsError::NotFound | FsError::Stale) => {}
            Err(_) => figures.failed += 1,
        }
    }
}
