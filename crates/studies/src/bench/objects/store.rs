//! The stores that `stria bench objects` compares: files of the local file system, and an OST in
//! this process on both kinds of object stores. Each is called directly: no client, no network.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io,
    os::unix::fs::FileExt,
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
use oss::{Ost, OstOptions};
use parking_lot::RwLock;
use rpc::{
    Call, Handler, Key, Keyring,
    checksum::checksums,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{Read, Write},
    },
};
use rt::{
    parameters::ParameterTree,
    real::{Cores, SystemEntropy},
};
use types::{ClientId, InodeNumber, ObjectId, Owner, Slot, Xid};

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
    /// An OST that keeps its objects in files of the local file system.
    Directory,
    /// An OST with a device of its own, or one large file in its place.
    Blocks,
}

impl StoreKind {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Local => "local",
            StoreKind::Directory => "directory",
            StoreKind::Blocks => "blocks",
        }
    }
}

/// A store under measurement. `rank` is the worker that asks.
pub trait Store: Send + Sync {
    /// Writes to an object, which is made if missing.
    fn write(&self, rank: usize, object: u64, offset: u64, data: &Bytes) -> io::Result<()>;
    /// Reads so many bytes, which the object has.
    fn read(&self, rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()>;
    /// Removes an object.
    fn remove(&self, rank: usize, object: u64) -> io::Result<()>;
    /// Makes everything durable.
    fn commit(&self) -> io::Result<()>;
    /// How often [`Store::commit`] is to be called meanwhile; `None`: it commits by itself.
    fn commit_interval(&self) -> Option<Duration>;
    /// Does what was put off: moves data to where they are to stay, and makes that durable.
    fn settle(&self) -> io::Result<()>;
}

/// Files of a directory, open as long as they exist.
pub struct LocalFiles {
    root: PathBuf,
    open: RwLock<BTreeMap<u64, Arc<File>>>,
}

impl LocalFiles {
    /// In a new directory.
    pub fn new(root: PathBuf) -> io::Result<Self> {
        std::fs::create_dir(&root)?;
        Ok(Self { root, open: RwLock::default() })
    }

    fn path(&self, object: u64) -> PathBuf {
        // As the directory store does: 256 directories keep each of them short.
        self.root.join(format!("{:02x}/{object:016x}", object & 0xff))
    }

    fn file(&self, object: u64) -> io::Result<Arc<File>> {
        if let Some(file) = self.open.read().get(&object) {
            return Ok(file.clone());
        }
        let path = self.path(object);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
                options.open(&path)?
            }
            opened => opened?,
        };
        match self.open.write().entry(object) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => Ok(place.insert(Arc::new(file)).clone()),
        }
    }
}

impl Store for LocalFiles {
    fn write(&self, _rank: usize, object: u64, offset: u64, data: &Bytes) -> io::Result<()> {
        self.file(object)?.write_all_at(data, offset)
    }

    fn read(&self, _rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()> {
        self.file(object)?.read_exact_at(&mut vec![0; bytes], offset)
    }

    fn remove(&self, _rank: usize, object: u64) -> io::Result<()> {
        drop(self.open.write().remove(&object));
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
        let config = TargetConfig { role: Role::Ost, index: 0, dir: directory.to_owned() };
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
        let (slot, xid) = (Slot(rank as u16), Xid(self.next.fetch_add(1, Ordering::Relaxed)));
        let call = Call::plain(ClientId(1), slot, xid, Request::Ost(request), bulk);
        let answer = self.cores.block_on(self.ost.clone().handle(call));
        match answer.reply {
            Ok(Reply::Ost(reply)) => Ok((reply, answer.bulk)),
            Ok(other) => Err(io::Error::other(format!("an object storage target answers {other:?}"))),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let name = format!("obdfilter.{}.{name}", self.ost.name());
        self.parameters.set(&name, value).map(drop).map_err(io::Error::other)
    }

    /// Whether data are inline that are to move.
    fn has_backlog(&self) -> io::Result<bool> {
        let name = format!("obdfilter.{}.writeback_pending_bytes", self.ost.name());
        let values = self.parameters.get(&name).map_err(io::Error::other)?;
        Ok(values.iter().any(|(_, bytes)| bytes != "0"))
    }
}

fn object_id(object: u64) -> ObjectId {
    /// Numbers below are those of special inodes.
    const FIRST: u64 = 0x100;
    ObjectId::new(InodeNumber(FIRST + object), 0)
}

impl Store for Target {
    fn write(&self, rank: usize, object: u64, offset: u64, data: &Bytes) -> io::Result<()> {
        let checksums = checksums(offset, data);
        let (object, owner) = (object_id(object), Owner::default());
        let write = Write { object, offset, checksums, sync: false, layout_generation: 0, owner };
        self.call(rank, OstRequest::Write(write), data.clone()).map(drop)
    }

    fn read(&self, rank: usize, object: u64, offset: u64, bytes: usize) -> io::Result<()> {
        let length = u32::try_from(bytes).map_err(io::Error::other)?;
        let read = Read { object: object_id(object), offset, bytes: length, layout_generation: 0 };
        let (_, data) = self.call(rank, OstRequest::Read(read), Bytes::new())?;
        if data.len() == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
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
