//! Data under power loss: a client writes numbered versions of blocks to its files, truncates them,
//! removes them, and syncs from time to time. It also gives its own files, and those of its
//! neighbour, other layouts ([`super::moves`]).
//!
//! After a power loss every block holds one of the versions that it may hold, whole: on an OST that
//! kept its power the last one acknowledged; else the last one that was synced, or that is older
//! than the commit interval, or any later one. A version whose write is in progress is possible in
//! any case. A file exists if it was synced; one that was removed is gone permanently if the
//! removal was synced or is older than the commit interval, else it may be back: then with all its
//! data.
//!
//! [`super::judge`] checks all this.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{AllocateMode, FileSystem, OpenFile, WriteOptions};
use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::{BoxFuture, Entropy};
use types::{Credentials, FsResult, InodeNumber, limits::BLOCK_BYTES};

use super::{
    Verdict,
    alarm::Alarm,
    block::{BLOCK, Version, contents, version_of},
    ledger::{BLOCKS, Change, FileLedger, Ledger, Removed},
    loss::{Blackout, Loss},
};
use crate::{
    Random, Simulation,
    cluster::{Cluster, client_host},
    log::EventLog,
};

/// Blocks of one write, at most: more than what goes to host files at once.
const WRITE_BLOCKS_MAX: u64 = 30;
/// Files of one client at most.
const FILES_MAX: usize = 4;
/// One write in so many is synchronous.
const SYNCHRONOUS_ONE_IN: u64 = 10;
/// Longest pause between operations.
const PAUSE: Duration = Duration::from_millis(300);
const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);

/// The part of one client.
pub struct Data {
    client: u16,
    ledger: Arc<Mutex<Ledger>>,
    /// Of a client whose files this one moves too.
    neighbour: Arc<Mutex<Ledger>>,
    random: Arc<Random>,
}

impl Data {
    /// The parts of these clients, each the neighbour of the one before.
    pub fn of_clients(cluster: &Cluster, clients: &[u16]) -> Vec<Arc<Self>> {
        let ledgers: Vec<Arc<Mutex<Ledger>>> = clients.iter().map(|_| Arc::default()).collect();
        let part = |(index, client): (usize, &u16)| {
            let random = Random::for_purpose(cluster.seed(), &format!("data {client}"));
            let (ledger, neighbour) = (ledgers[index].clone(), ledgers[(index + 1) % ledgers.len()].clone());
            Arc::new(Self { client: *client, ledger, neighbour, random: Arc::new(random) })
        };
        clients.iter().enumerate().map(part).collect()
    }

    fn worker(&self, cluster: &Cluster, blackout: &Blackout) -> Worker {
        let (file_system, _) = cluster.file_system(self.client).expect("clients are mounted between rounds");
        Worker {
            client: self.client,
            file_system,
            ledger: self.ledger.clone(),
            neighbour: self.neighbour.clone(),
            random: self.random.clone(),
            blackout: blackout.clone(),
            log: cluster.log().clone(),
            simulation: cluster.simulation().clone(),
        }
    }

    /// Makes a first file.
    pub async fn prepare(&self, cluster: &Cluster) -> Verdict {
        let worker = self.worker(cluster, &Blackout::default());
        let prepared = cluster.on_client(self.client, async move { worker.make_file().await }).await;
        prepared.ok_or("the client died before anything began")?
    }

    /// Begins to work, until the power goes.
    pub fn work(&self, cluster: &Cluster, blackout: &Blackout) -> BoxFuture<'static, Option<Verdict>> {
        let worker = self.worker(cluster, blackout);
        Box::pin(cluster.begin_on_client(self.client, async move { worker.run().await }))
    }

    /// Looks at what is left, and continues from there.
    pub async fn judge(&self, cluster: &Cluster, loss: &Loss) -> Verdict {
        let (worker, loss, bound) = (self.worker(cluster, &Blackout::default()), loss.clone(), loss.danger_max);
        let judged = cluster.on_client(self.client, async move { worker.judge(&loss, bound).await }).await;
        judged.ok_or("the client died while it looked")?
    }

    /// Closes everything.
    pub async fn close(&self, cluster: &Cluster) -> Verdict {
        let worker = self.worker(cluster, &Blackout::default());
        let closed = cluster.on_client(self.client, async move {
            let open: Vec<_> = worker.ledger.lock().files.values_mut().filter_map(FileLedger::take_open).collect();
            for file in open {
                worker.file_system.close(file, None).await?;
            }
            FsResult::Ok(())
        });
        closed.await.ok_or("the client died while it closed files")?.map_err(|error| format!("close: {error}"))
    }
}

/// A client at work, or looking.
pub(super) struct Worker {
    pub client: u16,
    pub file_system: Arc<FileSystem>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub neighbour: Arc<Mutex<Ledger>>,
    pub random: Arc<Random>,
    pub blackout: Blackout,
    log: EventLog,
    pub simulation: Simulation,
}

impl Worker {
    pub fn note(&self, what: impl std::fmt::Display) {
        self.log.event(&client_host(self.client), what);
    }

    /// An error counts unless the power is gone.
    pub fn unless_dark(&self, what: &str, result: FsResult<()>) -> Verdict {
        match result {
            Err(error) if !self.blackout.happened() => Err(format!("{what}: {error}")),
            _ => Ok(()),
        }
    }

    async fn run(self) -> Verdict {
        while !self.blackout.happened() {
            let names: Vec<String> = self.ledger.lock().files.keys().cloned().collect();
            if names.is_empty() {
                self.make_file().await?;
                continue;
            }
            let name = self.random.pick(&names).clone();
            match self.random.below(100) {
                0..42 => self.write(&name).await?,
                42..50 => self.truncate(&name).await?,
                50..55 => self.punch(&name).await?,
                55..70 => self.sync(&name).await?,
                70..82 => self.read(&name).await?,
                82..87 if names.len() < FILES_MAX => self.make_file().await?,
                87..89 => self.remove(&name).await?,
                89..91 => self.close(&name).await?,
                91..94 => self.migrate(&name).await?,
                94..96 => self.migrate_of_neighbour().await?,
                96..98 => self.swap(&name, self.random.pick::<String>(&names)).await?,
                _ => self.simulation.sleep(Duration::from_nanos(self.random.below(PAUSE.as_nanos() as u64))).await,
            }
        }
        Ok(())
    }

    async fn make_file(&self) -> Verdict {
        let name = format!("data{}-{}", self.client, self.ledger.lock().new_file());
        let made = self.try_make(&name).await;
        self.note(format_args!("make {name} -> {:?}", made.as_ref().map(|file| file.inode)));
        match made {
            Ok(mut file) => {
                // What a client was told in the dark is worth nothing before a sync.
                let mut ledger = self.ledger.lock();
                file.alarm = Alarm::allowed(ledger.mdt_loss_unnoticed);
                ledger.files.insert(name, file);
                Ok(())
            }
            Err(error) => self.unless_dark("create", Err(error)),
        }
    }

    async fn try_make(&self, name: &str) -> FsResult<FileLedger> {
        let (root, parent) = (Credentials::root(), InodeNumber::ROOT);
        let flags = OpenFlags(READ_WRITE.0 | open_flag::EXCLUSIVE);
        let created = self.file_system.create_open(&root, parent, name.as_bytes(), 0o644, 0, flags).await?;
        Ok(FileLedger::new(created.file.inode(), self.simulation.now(), created.file))
    }

    /// The open file; opens it if need be. `None`: that fails because the power is gone.
    async fn file(&self, name: &str) -> Result<Option<Arc<OpenFile>>, String> {
        let (inode, open) = {
            let mut ledger = self.ledger.lock();
            let file = ledger.file(name);
            (file.inode, file.open.clone())
        };
        if open.is_some() {
            return Ok(open);
        }
        match self.file_system.open(&Credentials::root(), inode, READ_WRITE).await {
            Ok(opened) => {
                let mut ledger = self.ledger.lock();
                let unnoticed = ledger.mdt_loss_unnoticed;
                let file = ledger.file(name);
                let alarm = Alarm::allowed(unnoticed || std::mem::take(&mut file.loss_untold));
                (file.open, file.alarm) = (Some(opened.clone()), alarm);
                Ok(Some(opened))
            }
            Err(error) => self.unless_dark("open", Err(error)).map(|()| None),
        }
    }

    /// Some blocks in a row.
    fn pick_blocks(&self) -> Range<u64> {
        let start = self.random.below(BLOCKS);
        start..(start + 1 + self.random.below(WRITE_BLOCKS_MAX)).min(BLOCKS)
    }

    /// The change was acknowledged, if the power is still there. `durable`: with the promise to
    /// survive.
    fn end(&self, name: &str, blocks: Range<u64>, version: Version, durable: bool) {
        if self.blackout.happened() && !durable {
            return;
        }
        let now = self.simulation.now();
        let mut ledger = self.ledger.lock();
        for block in ledger.file(name).blocks_mut(blocks) {
            block.acknowledge(version, now);
            if durable {
                block.synced(now);
            }
        }
    }

    async fn write(&self, name: &str) -> Verdict {
        let blocks = self.pick_blocks();
        let sync = self.random.below(SYNCHRONOUS_ONE_IN) == 0;
        let Some(file) = self.file(name).await? else { return Ok(()) };
        let change = if sync { Change::SynchronousWrite } else { Change::Write };
        let version = self.ledger.lock().begin(name, blocks.clone(), change);
        let data: Vec<u8> = blocks.clone().flat_map(|block| contents(block, version)).collect();
        let options = WriteOptions { append: false, sync, keep_set_id: true };
        let bytes = data.len();
        let written = self.file_system.write(&file, blocks.start * BLOCK_BYTES, Bytes::from(data), options).await;
        self.note(format_args!("{name}: write {blocks:?} version {version} sync {sync} -> {written:?}"));
        match written {
            Ok(count) if count == bytes => self.end(name, blocks, version, sync),
            Ok(count) if !self.blackout.happened() => return Err(format!("wrote {count} of {bytes} bytes")),
            Ok(_) => {}
            // Written, but without the promise: the file's name may be lost, for all the client
            // knows.
            Err(error) if sync && self.ledger.lock().file(name).alarm.judge_write(&error) => {
                self.end(name, blocks, version, false);
            }
            Err(error) => return self.unless_dark("write", Err(error)),
        }
        Ok(())
    }

    async fn truncate(&self, name: &str) -> Verdict {
        let size = self.random.below(BLOCKS);
        let Some(file) = self.file(name).await? else { return Ok(()) };
        self.ledger.lock().begin(name, size..BLOCKS, Change::Hole);
        let bytes = size * BLOCK_BYTES;
        let truncated = self.file_system.truncate(&Credentials::root(), file.inode(), Some(&file), bytes).await;
        self.note(format_args!("{name}: truncate to {size} blocks -> {:?}", truncated.as_ref().map(|_| ())));
        if truncated.is_ok() {
            self.end(name, size..BLOCKS, 0, false);
        }
        self.unless_dark("truncate", truncated.map(drop))
    }

    async fn punch(&self, name: &str) -> Verdict {
        let blocks = self.pick_blocks();
        let Some(file) = self.file(name).await? else { return Ok(()) };
        self.ledger.lock().begin(name, blocks.clone(), Change::Hole);
        let (offset, bytes) = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
        let punched = self.file_system.allocate(&file, AllocateMode::Punch, offset, bytes).await;
        self.note(format_args!("{name}: punch {blocks:?} -> {punched:?}"));
        if punched.is_ok() {
            self.end(name, blocks, 0, false);
        }
        self.unless_dark("punch", punched)
    }

    async fn sync(&self, name: &str) -> Verdict {
        let Some(file) = self.file(name).await? else { return Ok(()) };
        let begun = self.simulation.now();
        let synced = self.file_system.fsync(&file, false).await;
        self.note(format_args!("{name}: sync -> {synced:?}"));
        let mut ledger = self.ledger.lock();
        ledger.mdt_loss_unnoticed = false;
        let vouched = ledger.file(name).alarm.judge(&synced, self.blackout.happened());
        if vouched.map_err(|reason| format!("{name}: {reason}"))? {
            ledger.file(name).synced(begun);
            ledger.names_synced(begun);
        }
        Ok(())
    }

    async fn read(&self, name: &str) -> Verdict {
        let blocks = self.pick_blocks();
        let Some(file) = self.file(name).await? else { return Ok(()) };
        let bytes = (blocks.end - blocks.start) as usize * BLOCK;
        let read = match self.file_system.read(&file, blocks.start * BLOCK_BYTES, bytes).await {
            Ok(read) => read.into_bytes(),
            Err(error) => return self.unless_dark("read", Err(error)),
        };
        if self.blackout.happened() {
            return Ok(());
        }
        let mut ledger = self.ledger.lock();
        for block in blocks.clone() {
            let found = version_of(block, &read, blocks.start);
            let expected = ledger.file(name).blocks[block as usize].last();
            if found != Some(expected) {
                return Err(format!("{name}: block {block} reads as version {found:?}, expected {expected}"));
            }
        }
        Ok(())
    }

    pub async fn close(&self, name: &str) -> Verdict {
        let Some(open) = self.ledger.lock().file(name).take_open() else { return Ok(()) };
        let closed = self.file_system.close(open, None).await;
        self.note(format_args!("{name}: close -> {closed:?}"));
        self.unless_dark("close", closed)
    }

    async fn remove(&self, name: &str) -> Verdict {
        self.close(name).await?;
        {
            let mut ledger = self.ledger.lock();
            let file = ledger.files.remove(name).expect("the worker knows which files there are");
            ledger.removed.insert(name.to_owned(), Removed { file, acknowledged: None });
        }
        let removed = self.file_system.unlink(&Credentials::root(), InodeNumber::ROOT, name.as_bytes()).await;
        self.note(format_args!("{name}: remove -> {removed:?}"));
        if removed.is_ok() && !self.blackout.happened() {
            let now = self.simulation.now();
            self.ledger.lock().removed.get_mut(name).expect("just put there").acknowledged = Some(now);
        }
        self.unless_dark("remove", removed)
    }
}
