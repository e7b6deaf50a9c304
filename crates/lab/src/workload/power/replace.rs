//! A file is replaced as a whole under power loss: a client writes a new file without a sync,
//! closes it or not, and this client or another one renames it over the old one.
//!
//! After a power loss the name refers to one whole version: if the MDT kept its power, the last one
//! whose rename was acknowledged; else one that is durable or later. The rename in progress may
//! have happened in any case.
//!
//! A client that notices only during a rename that a server has lost power cannot know whether the
//! data were written before: the rename fails, once for each client and loss, and has not happened.

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, WriteOptions};
use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, RenameMode, open_flag};
use rt::{BoxFuture, Entropy};
use types::{Credentials, FsError, FsResult, InodeNumber};

use super::{
    Verdict,
    block::{BLOCK, Block, Version, contents},
    loss::{Blackout, Loss},
};
use crate::{
    Random, Simulation,
    cluster::{Cluster, client_host},
    log::EventLog,
};

const NAME: &[u8] = b"replaced";
const NEW_NAME: &[u8] = b"replaced.new";
/// Blocks of one version, at most: most versions reach beyond the part on the MDT, and to several
/// OSTs.
const BLOCKS_MAX: u64 = 60;
/// One version in so many is renamed while its writer has it open.
const OPEN_ONE_IN: u64 = 3;
/// After one rename in so many the names are synced: then they are durable long before the OSTs
/// commit by themselves.
const SYNC_ONE_IN: u64 = 2;

/// The whole of a version.
fn whole(version: Version) -> Vec<u8> {
    let blocks = 1 + u64::from(version) * 37 % BLOCKS_MAX;
    (0..blocks).flat_map(|block| contents(block, version)).collect()
}

/// The part of two clients.
pub struct Replacement {
    /// The one that writes, and renames at times.
    writer: u16,
    other: u16,
    state: Arc<Mutex<State>>,
    random: Arc<Random>,
}

#[derive(Default)]
struct State {
    /// Which version the name holds.
    name: Block,
    /// Renames that may fail because a client notices a power loss.
    alarms: usize,
}

impl Replacement {
    /// The part of the first of these clients, and of the last.
    pub fn of_clients(cluster: &Cluster, clients: &[u16]) -> Self {
        let random = Arc::new(Random::for_purpose(cluster.seed(), "replace"));
        let (writer, other) = (clients[0], *clients.last().expect("there are clients beside that of the names"));
        Self { writer, other, state: Arc::default(), random }
    }

    fn worker(&self, cluster: &Cluster, blackout: &Blackout) -> Worker {
        let file_system = |client| cluster.file_system(client).expect("clients are mounted between rounds").0;
        Worker {
            writer: file_system(self.writer),
            other: file_system(self.other),
            host: client_host(self.writer),
            state: self.state.clone(),
            random: self.random.clone(),
            blackout: blackout.clone(),
            log: cluster.log().clone(),
            simulation: cluster.simulation().clone(),
        }
    }

    /// Makes a first file, durably: it replaces nothing.
    pub async fn prepare(&self, cluster: &Cluster) -> Verdict {
        let worker = self.worker(cluster, &Blackout::default());
        let prepared = cluster.on_client(self.writer, async move { worker.replace(1, true).await });
        let prepared = prepared.await.ok_or("the client died before anything began")?;
        prepared.map_err(|error| format!("the file to be replaced cannot be made: {error}"))
    }

    /// Begins to work, until the power goes.
    pub fn work(&self, cluster: &Cluster, blackout: &Blackout) -> BoxFuture<'static, Option<Verdict>> {
        let worker = self.worker(cluster, blackout);
        Box::pin(cluster.begin_on_client(self.writer, async move { worker.run().await }))
    }

    /// Looks at what is left, and continues from there.
    pub async fn judge(&self, cluster: &Cluster, loss: &Loss) -> Verdict {
        let (worker, loss, bound) = (self.worker(cluster, &Blackout::default()), loss.clone(), loss.danger_max);
        let judged = cluster.on_client(self.writer, async move {
            let found = worker.find().await?;
            let possible = worker.state.lock().name.possible(loss.hit_names(), loss.at, bound);
            if !possible.contains(&found) {
                return Err(format!("version {found} was found, expected one of {possible:?}"));
            }
            worker.log.event(&worker.host, format_args!("the replaced file is version {found} of {possible:?}"));
            let lost_at = loss.hit_names().then_some(loss.at);
            let mut state = worker.state.lock();
            state.name.adopt(found, lost_at, worker.simulation.now());
            state.alarms += 2 * loss.roles.len();
            Ok(())
        });
        let judged = judged.await.ok_or("the client died while it looked")?;
        judged.map_err(|reason| format!("the replaced file: {reason}"))
    }
}

/// At work, or looking.
struct Worker {
    writer: Arc<FileSystem>,
    other: Arc<FileSystem>,
    host: String,
    state: Arc<Mutex<State>>,
    random: Arc<Random>,
    blackout: Blackout,
    log: EventLog,
    simulation: Simulation,
}

impl Worker {
    async fn run(self) -> Verdict {
        let first = self.state.lock().name.last_begun() + 1;
        for version in first.. {
            match self.replace(version, false).await {
                _ if self.blackout.happened() => break,
                Ok(()) => {}
                Err(error) => return Err(format!("replacing a file by version {version}: {error}")),
            }
        }
        Ok(())
    }

    async fn replace(&self, version: Version, sync: bool) -> FsResult<()> {
        let (root, parent) = (Credentials::root(), InodeNumber::ROOT);
        match self.writer.unlink(&root, parent, NEW_NAME).await {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let flags = OpenFlags(open_flag::READ | open_flag::WRITE | open_flag::EXCLUSIVE);
        let file = self.writer.create_open(&root, parent, NEW_NAME, 0o644, 0, flags).await?.file;
        let data = whole(version);
        let bytes = data.len();
        let options = WriteOptions { sync, ..WriteOptions::default() };
        let written = self.writer.write(&file, 0, Bytes::from(data), options).await?;
        assert_eq!(written, bytes, "without error the whole is written");
        let mut open = Some(file);
        if self.random.below(OPEN_ONE_IN) > 0 {
            self.writer.close(open.take().expect("just opened"), None).await?;
        }
        if self.blackout.happened() {
            // What is lost by now was not complete when it was renamed.
            return Ok(());
        }
        self.state.lock().name.begin(version, 0);
        let renamer = if self.random.below(2) == 0 { &self.writer } else { &self.other };
        let renamed = renamer.rename(&root, (parent, NEW_NAME), (parent, NAME), RenameMode::Replace).await;
        self.log.event(&self.host, format_args!("replace by version {version}, {bytes} bytes -> {renamed:?}"));
        if renamed.is_ok() && !self.blackout.happened() {
            self.state.lock().name.acknowledge(version, self.simulation.now());
        }
        match renamed {
            Err(FsError::Device { .. }) if self.allows_alarm() => {}
            renamed => renamed?,
        }
        if sync || self.random.below(SYNC_ONE_IN) == 0 {
            self.sync_names().await?;
        }
        match open {
            Some(file) => self.writer.close(file, None).await,
            None => Ok(()),
        }
    }

    fn allows_alarm(&self) -> bool {
        let alarms = &mut self.state.lock().alarms;
        let allowed = *alarms > 0;
        *alarms = alarms.saturating_sub(1);
        allowed
    }

    /// What was renamed is durable, unless the directory has a loss of an earlier round to tell.
    async fn sync_names(&self) -> FsResult<()> {
        let begun = self.simulation.now();
        let flags = OpenFlags(open_flag::READ);
        let directory = self.writer.open(&Credentials::root(), InodeNumber::ROOT, flags).await?;
        let synced = self.writer.fsync(&directory, false).await;
        self.writer.close(directory, None).await?;
        if synced.is_ok() && !self.blackout.happened() {
            self.state.lock().name.synced(begun);
        }
        Ok(())
    }

    /// The version that the name holds; 0: there is none.
    async fn find(&self) -> Result<Version, String> {
        let (root, flags) = (Credentials::root(), OpenFlags(open_flag::READ));
        let inode = match self.writer.lookup(&root, InodeNumber::ROOT, NAME).await {
            Ok(found) => found.inode,
            Err(FsError::NotFound) => return Ok(0),
            Err(error) => return Err(format!("look-up: {error}")),
        };
        let failed = |error| format!("read: {error}");
        let file = self.writer.open(&root, inode, flags).await.map_err(failed)?;
        let data = self.writer.read(&file, 0, (BLOCKS_MAX as usize + 1) * BLOCK).await;
        self.writer.close(file, None).await.map_err(failed)?;
        let data = data.map_err(failed)?.into_bytes();
        let version = data.first_chunk().map_or(0, |bytes| Version::from_le_bytes(*bytes));
        let expected = whole(version);
        match data.iter().zip(&expected).position(|(found, expected)| found != expected) {
            None if data.len() == expected.len() => Ok(version),
            differs => Err(format!(
                "{} bytes were found that begin as version {version} of {} bytes and differ at {differs:?}",
                data.len(),
                expected.len()
            )),
        }
    }
}
