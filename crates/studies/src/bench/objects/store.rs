//! The stores that `stria bench objects` compares: files of the local file system, and an OST in
//! this process on both kinds of object stores. Each is called directly: no client, no network.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::bail;
use bytes::Bytes;
use node::{
    config::{Role, TargetConfig},
    format::format_target,
    storage::Storage,
    target::{self, OpenTarget, Threads},
};
use oss::{
    Ost, OstOptions,
    device_map::{DeviceMap, MapBuilder},
    tables::{BITMAPS, CHUNKS, META},
};
use parking_lot::RwLock;
use rpc::{
    Call, Handler, Key, Keyring,
    checksum::checksums,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{ExtentPlace, ExtentsQuery, Read, Write},
    },
};
use rt::{
    parameters::ParameterTree,
    real::{Cores, SystemEntropy},
};
use rustix::fs::OFlags;
use types::{ClientId, InodeNumber, ObjectId, Owner, Slot, Xid, limits::BULK_BYTES_MAX};

use super::file_system::FileSystem;

/// Of targets that are made for a measurement.
const FSNAME: &str = "bench";
/// Memory of a target's tables: the default of `stria serve` for one target.
const MEMORY_BYTES: u64 = 256 << 20;
/// Turns of a target's task after which what is still inline stays there.
const WRITE_BACK_TURNS_MAX: u32 = 1000;

/// Kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum StoreKind {
    /// A file of the local file system for each object: the baseline.
    Local,
    /// The same on a new ext4 on the device, or on a loop device. Needs root.
    Ext4,
    /// The same on a new XFS.
    Xfs,
    /// An OST that keeps its objects in files of the local file system.
    Directory,
    /// An OST with a device of its own, or one large file in its place.
    Blocks,
}

impl StoreKind {
    /// Whether it is a file system that is made for the measurement.
    pub fn is_made(self) -> bool {
        matches!(self, StoreKind::Ext4 | StoreKind::Xfs)
    }

    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Local => "local",
            StoreKind::Ext4 => "ext4",
            StoreKind::Xfs => "xfs",
            StoreKind::Directory => "directory",
            StoreKind::Blocks => "blocks",
        }
    }
}

/// How a write is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Durable by a later commit.
    Buffered,
    /// The same, past the page cache. An OST has no other way to write.
    Direct,
    /// Durable when it returns.
    Synced,
}

/// A store under measurement. `rank` is the worker that asks.
pub trait Store: Send + Sync {
    /// Writes to an object, which is made if missing. Direct writes are of whole blocks, which are
    /// aligned in memory.
    fn write(&self, rank: usize, object: u64, offset: u64, data: &Bytes, mode: WriteMode) -> io::Result<()>;
    /// Reads so many bytes, which the object has.
    fn read(&self, rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()>;
    /// Removes an object.
    fn remove(&self, rank: usize, object: u64) -> io::Result<()>;
    /// Makes everything durable.
    fn commit(&self) -> io::Result<()>;
    /// How often [`Store::commit`] is to be called meanwhile; `None`: it commits by itself.
    fn commit_interval(&self) -> Option<Duration>;
    /// What it has written since it was made, by cause; `None` if it does not count that.
    fn written_by_cause(&self) -> io::Result<Option<String>> {
        Ok(None)
    }
    /// Does what was put off: moves data to where they are to stay, and makes that durable.
    fn settle(&self) -> io::Result<()>;
}

/// Files of a directory, open as long as they exist.
pub struct LocalFiles {
    /// By object, and whether it is open for direct writes. Closed before the file system goes.
    open: RwLock<BTreeMap<(u64, bool), Arc<File>>>,
    root: PathBuf,
    _file_system: Option<FileSystem>,
}

impl LocalFiles {
    /// In a new directory.
    pub fn new(root: PathBuf) -> io::Result<Self> {
        std::fs::create_dir(&root)?;
        Ok(Self { root, open: RwLock::default(), _file_system: None })
    }

    /// On a file system of their own.
    pub fn on(file_system: FileSystem) -> Self {
        Self { root: file_system.root().to_owned(), open: RwLock::default(), _file_system: Some(file_system) }
    }

    fn path(&self, object: u64) -> PathBuf {
        // As the directory store does: 256 directories keep each of them short.
        self.root.join(format!("{:02x}/{object:016x}", object & 0xff))
    }

    fn file(&self, object: u64, direct: bool) -> io::Result<Arc<File>> {
        if let Some(file) = self.open.read().get(&(object, direct)) {
            return Ok(file.clone());
        }
        let path = self.path(object);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        if direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        let file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
                options.open(&path)?
            }
            opened => opened?,
        };
        match self.open.write().entry((object, direct)) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => Ok(place.insert(Arc::new(file)).clone()),
        }
    }
}

impl Store for LocalFiles {
    fn write(&self, _rank: usize, object: u64, offset: u64, data: &Bytes, mode: WriteMode) -> io::Result<()> {
        let file = self.file(object, mode == WriteMode::Direct)?;
        file.write_all_at(data, offset)?;
        if mode == WriteMode::Synced { file.sync_data() } else { Ok(()) }
    }

    fn read(&self, _rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()> {
        self.file(object, false)?.read_exact_at(&mut vec![0; bytes], offset)
    }

    fn remove(&self, _rank: usize, object: u64) -> io::Result<()> {
        let mut open = self.open.write();
        open.remove(&(object, false));
        open.remove(&(object, true));
        drop(open);
        std::fs::remove_file(self.path(object))
    }

    fn commit(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }

    fn commit_interval(&self) -> Option<Duration> {
        Some(OstOptions::default().commit_interval)
    }

    fn settle(&self) -> io::Result<()> {
        self.commit()
    }
}

/// An OST. Stopped when dropped.
pub struct Target {
    ost: Arc<Ost>,
    parameters: ParameterTree,
    cores: Cores,
    next: AtomicU64,
}

impl Target {
    /// A new one in a directory, which is made, with its objects there.
    pub fn start(directory: &Path, storage: &Storage) -> anyhow::Result<Self> {
        let config = TargetConfig { role: Role::Ost, index: 0, dir: directory.to_owned(), on_device: false };
        let key = Key::random(&SystemEntropy);
        format_target(&config, storage, FSNAME, &key, None)?;
        let cores = Cores::start_all()?;
        let (seams, threads) = (node::seams(&cores), Threads::start()?);
        let keys = Keyring::server(key);
        let opened = cores.block_on(target::open(&seams, &config, FSNAME, &threads, MEMORY_BYTES, &keys))?;
        let OpenTarget::Ost(ost) = opened else { bail!("{} is no object storage target", directory.display()) };
        let parameters = ParameterTree::default();
        ost.register_parameters(&parameters)?;
        Ok(Self { ost, parameters, cores, next: AtomicU64::new(1) })
    }

    /// Executes a request as one of a worker's session; returns the reply and its bulk data.
    fn call(&self, rank: usize, request: OstRequest, bulk: Bytes) -> io::Result<(OstReply, Bytes)> {
        self.cores.block_on(self.ask(rank, request, bulk))
    }

    async fn ask(&self, rank: usize, request: OstRequest, bulk: Bytes) -> io::Result<(OstReply, Bytes)> {
        let (slot, xid) = (Slot(rank as u16), Xid(self.next.fetch_add(1, Ordering::Relaxed)));
        let call = Call::plain(ClientId(1), slot, xid, Request::Ost(request), bulk);
        let answer = self.ost.clone().handle(call).await;
        match answer.reply {
            Ok(Reply::Ost(reply)) => Ok((reply, answer.bulk)),
            Ok(other) => Err(io::Error::other(format!("an object storage target answers {other:?}"))),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Sets one of its parameters.
    pub fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let name = format!("obdfilter.{}.{name}", self.ost.name());
        self.parameters.set(&name, value).map(drop).map_err(io::Error::other)
    }

    /// One of its parameters.
    pub fn shown(&self, name: &str) -> io::Result<String> {
        let name = format!("obdfilter.{}.{name}", self.ost.name());
        let values = self.parameters.get(&name).map_err(io::Error::other)?;
        Ok(values.into_iter().map(|(_, value)| value).collect())
    }

    /// Whether data are inline that are to move.
    fn has_backlog(&self) -> io::Result<bool> {
        Ok(self.shown("writeback_pending_bytes")? != "0")
    }

    /// Reads so many bytes, which the object has and which two requests can carry, at once.
    pub fn read_call(&self, rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()> {
        let (first, second) = (bytes.min(BULK_BYTES_MAX), bytes.saturating_sub(BULK_BYTES_MAX));
        self.cores.block_on(async {
            let rest = async {
                if second == 0 {
                    return Ok(());
                }
                self.read_part(rank, object, offset + first as u64, second).await
            };
            let (one, two) = tokio::join!(self.read_part(rank, object, offset, first), rest);
            one.and(two)
        })
    }

    async fn read_part(&self, rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()> {
        let length = u32::try_from(bytes).map_err(io::Error::other)?;
        let read = Read { object: object_id(object), offset, bytes: length, layout_generation: 0 };
        let (_, data) = self.ask(rank, OstRequest::Read(read), Bytes::new()).await?;
        if data.len() == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Where an object's data are on the device: pieces.
    pub fn pieces(&self, object: u64) -> io::Result<u64> {
        /// Extents of an answer.
        const EXTENTS_MAX: u32 = 1024;
        let (mut pieces, mut offset, mut end) = (0, 0, None);
        loop {
            let query = ExtentsQuery { object: object_id(object), offset, bytes: u64::MAX, extents_max: EXTENTS_MAX };
            let (reply, _) = self.call(0, OstRequest::Extents(query), Bytes::new())?;
            let OstReply::Extents(found) = reply else {
                return Err(io::Error::other(format!("an object storage target answers {reply:?}")));
            };
            for extent in &found.extents {
                let ExtentPlace::Device(start) = extent.place else { continue };
                pieces += u64::from(end != Some(start));
                end = Some(start + extent.bytes);
            }
            match found.next {
                Some(next) => offset = next,
                None => return Ok(pieces),
            }
        }
    }

    /// What its device looks like, by its tables, as `stria inspect --map` shows it.
    pub fn map(&self, cells: u32) -> io::Result<DeviceMap> {
        let mut map = MapBuilder::new(cells);
        for table in [META, CHUNKS, BITMAPS] {
            let scanned = self.ost.scan_table(table, |key, value| {
                map.note(table, key, value);
                Ok(())
            });
            scanned.map_err(io::Error::other)?;
        }
        map.finish().map_err(io::Error::other)
    }
}

fn object_id(object: u64) -> ObjectId {
    /// Numbers below are those of special inodes.
    const FIRST: u64 = 0x100;
    ObjectId::new(InodeNumber(FIRST + object), 0)
}

impl Store for Target {
    fn write(&self, rank: usize, object: u64, offset: u64, data: &Bytes, mode: WriteMode) -> io::Result<()> {
        let checksums = checksums(offset, data);
        let (object, owner, sync) = (object_id(object), Owner::default(), mode == WriteMode::Synced);
        let write = Write { object, offset, checksums, sync, layout_generation: 0, owner };
        self.call(rank, OstRequest::Write(write), data.clone()).map(drop)
    }

    fn read(&self, rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()> {
        self.cores.block_on(self.read_part(rank, object, offset, bytes))
    }

    fn remove(&self, rank: usize, object: u64) -> io::Result<()> {
        self.call(rank, OstRequest::Destroy(vec![object_id(object)], None), Bytes::new()).map(drop)
    }

    fn commit(&self) -> io::Result<()> {
        self.call(0, OstRequest::Sync(Vec::new()), Bytes::new()).map(drop)
    }

    fn commit_interval(&self) -> Option<Duration> {
        None
    }

    fn written_by_cause(&self) -> io::Result<Option<String>> {
        self.shown("write_stats").map(Some)
    }

    fn settle(&self) -> io::Result<()> {
        let usual = OstOptions::default().write_back_idle.as_millis().to_string();
        self.set("writeback_idle_ms", "1")?;
        for _ in 0..WRITE_BACK_TURNS_MAX {
            if !self.has_backlog()? {
                break;
            }
            // It moves what was left alone for that long.
            std::thread::sleep(Duration::from_millis(2));
            self.cores.block_on(self.ost.work());
        }
        self.set("writeback_idle_ms", &usual)?;
        self.commit()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.ost.unregister_parameters(&self.parameters);
        if let Err(error) = self.cores.block_on(self.ost.stop()) {
            eprintln!("stopping: {error}");
        }
        self.cores.shutdown();
    }
}
