//! A cold store on a part of a device, without a file system: a tree of nodes of the same size.
//!
//! Nodes are never changed: an update writes new ones, from the leaves that it concerns up to the
//! top (module `update`). A commit flushes them and then writes the root, which names the top, to
//! the place that the commit before did not use (module `root`). What was written since the commit
//! before, and what the committed tree has, is not overwritten before the next one (module
//! `space`). So after a crash the last root that is whole is the tree, and there is nothing to
//! repair. Each node has a checksum, and is named with the commit that wrote it, and no node is
//! written twice for a commit; so damage and lost writes are errors, see module `node`.
//!
//! Space: if there are no free nodes, but some that wait for a commit, the tree in memory is
//! committed with the checkpoint of before, which the contract of cold stores allows. So changes
//! need no more room than the entries they add, plus a few nodes: a store that refuses changes in
//! time can always write its checkpoints, and removals give back space without any rewriting.
//!
//! Concurrency: one writer. Readers hold a lock for as long as they read, which the writer takes
//! for the moment in which the changed tree becomes the one that is read. Jobs are executed in the
//! order in which they came, by whatever waits for one of them, or by a thread
//! ([`TreeCold::with_threads`]).
//!
//! A failure of the device is final until the tree is opened again; so is a job that is given up
//! while it is executed, because the device may still write for it.
//!
//! Life cycle: [`TreeCold::create`] once, then [`TreeCold::open`] -> use -> [`ColdStore::close`];
//! the drop of the handle waits for its thread.
//!
//! Downside: a change of one entry writes a node for each level. Checkpoints sort what they write,
//! so entries that are neighbours share these; changes all over a large table cost a leaf each, and
//! have to read it first. An open reads all nodes but the leaves, about 0.3% of the tree.

mod cache;
mod node;
mod part;
mod root;
mod search;
mod space;
mod update;

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use rt::BoxFuture;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use types::SpaceUsage;

pub use self::part::TreePart;
use self::{
    cache::Cache,
    node::{NODE_BYTES_MAX, NODE_BYTES_MIN, Reference, Shape},
    root::Root,
    search::Reader,
    space::Space,
    update::{Change, Update},
};
use super::{
    Checkpoint, ColdStore,
    readers::Readers,
    worker::{Worker, wait},
};
use crate::{
    batch::{Operation, Table},
    error::is_no_space,
};

/// What is asked of the tree, and where the outcome goes.
struct Job {
    order: Order,
    reply: oneshot::Sender<io::Result<()>>,
}

enum Order {
    Write(Vec<Operation>),
    Commit(Checkpoint),
    Close,
}

/// What readers see.
#[derive(Debug)]
struct View {
    top: Option<(Reference, u8)>,
    closed: bool,
}

/// What the writer has.
struct Writer {
    space: Space,
    /// The last commit.
    root: Root,
    /// Why nothing is written any more.
    failed: Option<String>,
}

struct Shared {
    reader: Reader,
    view: RwLock<View>,
    writer: AsyncMutex<Writer>,
    jobs: Mutex<VecDeque<Job>>,
    /// Of the last commit.
    checkpoint: Mutex<Option<Checkpoint>>,
    /// Nodes that are free, at once or after a commit.
    available: AtomicU64,
    nodes: u64,
}

struct Threads {
    readers: Readers,
    worker: Worker,
}

/// See the module documentation.
pub struct TreeCold {
    shared: Arc<Shared>,
    threads: Option<Threads>,
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn full_key(table: Table, key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(1 + key.len());
    full.put_u8(table.0);
    full.put_slice(key);
    full.freeze()
}

impl TreeCold {
    /// Makes an empty tree; whatever the part held is lost. `tree` is a random number.
    pub async fn create(part: &TreePart, node_bytes: usize, tree: u64) -> io::Result<()> {
        let impossible = || io::Error::new(io::ErrorKind::InvalidInput, "not a size for a tree and its nodes");
        if !(NODE_BYTES_MIN..=NODE_BYTES_MAX).contains(&node_bytes) || !node_bytes.is_power_of_two() {
            return Err(impossible());
        }
        let first = Root::nodes_for_places(node_bytes);
        let nodes = part.bytes / node_bytes as u64;
        if nodes < 2 * first {
            return Err(impossible());
        }
        let shape = Shape { tree, node_bytes };
        // Of another tree nothing must be left that could be taken for a later commit.
        let root = Root { shape, commit: 1, nodes, used: first, checkpoint: None, top: None };
        for commit in [1, 2] {
            part.write_root(&Root { commit, ..root }).await?;
        }
        Ok(())
    }

    /// Opens the tree, which uses about `cache_bytes` of memory, and for each GiB of its part 8 KiB
    /// more. What the last commit wrote is written again first: a flush that failed may have left
    /// it in the kernel's cache alone. Then it is committed once more: nodes that were written for
    /// the next commit before a crash are not those of the next commit from here on.
    pub fn open(part: &TreePart, cache_bytes: usize) -> io::Result<TreeCold> {
        let tree = TreeCold::look(part, cache_bytes)?;
        let at_once = TreePart { device: part.at_once.clone(), ..part.clone() };
        {
            let mut writer = tree.shared.writer.try_lock().map_err(io::Error::other)?;
            let found = writer.root;
            writer.root.commit += 1;
            for root in [&found, &writer.root] {
                wait(at_once.write_root(root))?;
            }
        }
        Ok(tree)
    }

    /// As [`TreeCold::open`], to look at it only: writes nothing.
    pub fn look(part: &TreePart, cache_bytes: usize) -> io::Result<TreeCold> {
        let root = part.read_root()?.ok_or_else(|| invalid("the tables' tree has no root".to_owned()))?;
        let node_bytes = root.shape.node_bytes;
        if root.nodes > part.bytes / node_bytes as u64 {
            return Err(invalid("the tables' tree is larger than its part of the device".to_owned()));
        }
        let first = Root::nodes_for_places(node_bytes);
        if root.nodes < first {
            return Err(invalid("the root of the tables' tree is damaged: its values are impossible".to_owned()));
        }
        let reader =
            Reader { media: part.clone(), shape: root.shape, cache: Mutex::new(Cache::new(cache_bytes, node_bytes)) };
        let mut space = Space::new(root.nodes, first);
        if let Some((top, level)) = root.top {
            reader.mark(&mut space, top, level, true)?;
        }
        if space.used() != root.used {
            let (found, named) = (space.used(), root.used);
            return Err(invalid(format!("the tables' tree has {found} nodes, and its root says {named}")));
        }
        let shared = Shared {
            reader,
            view: RwLock::new(View { top: root.top, closed: false }),
            checkpoint: Mutex::new(root.checkpoint),
            available: AtomicU64::new(space.available()),
            nodes: root.nodes,
            writer: AsyncMutex::new(Writer { space, root, failed: None }),
            jobs: Mutex::default(),
        };
        Ok(TreeCold { shared: Arc::new(shared), threads: None })
    }

    /// Executes jobs on a thread, and reads that may block on others, instead of where they are
    /// waited for. They end with this handle.
    pub fn with_threads(mut self) -> io::Result<TreeCold> {
        let shared = self.shared.clone();
        let worker = Worker::start(move || wait(shared.work()))?;
        self.threads = Some(Threads { readers: Readers::start()?, worker });
        Ok(self)
    }

    /// The space of the tree's part of the device.
    pub fn space(&self) -> SpaceUsage {
        let node_bytes = self.shared.reader.shape.node_bytes as u64;
        let available = self.shared.available.load(Ordering::Acquire) * node_bytes;
        SpaceUsage {
            bytes_total: self.shared.nodes * node_bytes,
            bytes_free: available,
            bytes_available: available,
            inodes_total: 0,
            inodes_free: u64::MAX,
            device: None,
        }
    }

    fn submit(&self, order: Order) -> BoxFuture<'static, io::Result<()>> {
        let (reply, outcome) = oneshot::channel();
        self.shared.jobs.lock().push_back(Job { order, reply });
        let is_own_work = self.threads.as_ref().is_none_or(|threads| !threads.worker.wake());
        let shared = self.shared.clone();
        Box::pin(async move {
            if is_own_work {
                shared.work().await;
            }
            outcome.await.unwrap_or_else(|_| Err(io::Error::other("a change of the tables was given up")))
        })
    }
}

impl Shared {
    /// Executes all jobs there are.
    async fn work(&self) {
        let mut writer = self.writer.lock().await;
        loop {
            let Some(job) = self.jobs.lock().pop_front() else { return };
            let done = self.execute(&mut writer, job.order).await;
            self.available.store(writer.space.available(), Ordering::Release);
            // Nobody may want to know.
            let _ = job.reply.send(done);
        }
    }

    async fn execute(&self, writer: &mut Writer, order: Order) -> io::Result<()> {
        if let Order::Close = order {
            let is_changed = self.check_open().is_ok() && self.view.read().top != writer.root.top;
            let committed = match is_changed && writer.failed.is_none() {
                // What was written is to be there.
                true => self.commit(writer, writer.root.checkpoint).await,
                false => Ok(()),
            };
            self.view.write().closed = true;
            return committed;
        }
        self.check_open()?;
        if let Some(failed) = &writer.failed {
            return Err(io::Error::other(format!("an earlier change of the tables failed: {failed}")));
        }
        match order {
            Order::Write(operations) => self.write(writer, &changes(operations)).await,
            Order::Commit(checkpoint) => self.commit(writer, Some(checkpoint)).await,
            Order::Close => Ok(()),
        }
    }

    fn check_open(&self) -> io::Result<()> {
        match self.view.read().closed {
            true => Err(io::Error::other("the tables' tree is closed")),
            false => Ok(()),
        }
    }

    /// Makes changes, in as many steps as the free space requires.
    async fn write(&self, writer: &mut Writer, changes: &[Change]) -> io::Result<()> {
        let mut parts = vec![changes];
        while let Some(part) = parts.pop() {
            match self.write_part(writer, part).await {
                Ok(()) => {}
                Err(error) if is_no_space(&error) && writer.failed.is_none() => {
                    if writer.space.has_retired() {
                        let checkpoint = writer.root.checkpoint;
                        self.commit(writer, checkpoint).await?;
                        parts.push(part);
                    } else if part.len() > 1 {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second, first]);
                    } else {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn write_part(&self, writer: &mut Writer, changes: &[Change]) -> io::Result<()> {
        let before = self.view.read().top;
        let mut update = Update::new(&self.reader, &mut writer.space, writer.root.commit + 1);
        let after = update.apply(before, changes)?;
        let pages = update.pages();
        writer.failed = Some("it was given up".to_owned());
        let written = self.reader.media.write_pages(self.reader.shape.node_bytes, pages).await;
        writer.failed = written.as_ref().err().map(io::Error::to_string);
        written?;
        // No reader is within the tree as it was: what only that has may be overwritten.
        let mut view = self.view.write();
        view.top = after;
        update.finish();
        Ok(())
    }

    async fn commit(&self, writer: &mut Writer, checkpoint: Option<Checkpoint>) -> io::Result<()> {
        let (commit, used) = (writer.root.commit + 1, writer.space.used());
        let root = Root { commit, used, checkpoint, top: self.view.read().top, ..writer.root };
        writer.failed = Some("it was given up".to_owned());
        let media = &self.reader.media;
        let committed = async {
            media.flush().await?;
            media.write_root(&root).await
        }
        .await;
        writer.failed = committed.as_ref().err().map(io::Error::to_string);
        committed?;
        writer.root = root;
        writer.space.committed();
        *self.checkpoint.lock() = checkpoint;
        Ok(())
    }
}

/// Operations as changes of the tree: of several on one key the last one counts.
fn changes(operations: Vec<Operation>) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::with_capacity(operations.len());
    for operation in operations {
        let key = full_key(operation.table(), operation.key());
        let value = match operation {
            Operation::Put(_, _, value) => Some(value),
            Operation::Delete(..) => None,
        };
        match changes.last_mut() {
            Some(last) if last.key == key => last.value = value,
            _ => changes.push(Change { key, value }),
        }
    }
    changes
}

impl ColdStore for TreeCold {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>> {
        self.shared.check_open()?;
        let view = self.shared.view.read();
        let Some(top) = view.top else { return Ok(None) };
        self.shared.reader.get(top, &full_key(table, key))
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        self.shared.check_open()?;
        let view = self.shared.view.read();
        let Some(top) = view.top else { return Ok(()) };
        let end = match (to, table.0.checked_add(1)) {
            (Some(to), _) => Some(full_key(table, to)),
            (None, Some(next)) => Some(full_key(Table(next), &[])),
            (None, None) => None,
        };
        let mut visit = |key: &[u8], value: &[u8]| visit(&key[1..], value);
        self.shared.reader.scan(top, &full_key(table, from), end.as_deref(), &mut visit).map(drop)
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        match &self.threads {
            Some(threads) => threads.readers.run(work),
            None => work(),
        }
    }

    fn write(&self, operations: Vec<Operation>) -> BoxFuture<'static, io::Result<()>> {
        self.submit(Order::Write(operations))
    }

    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        self.submit(Order::Commit(checkpoint))
    }

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        self.shared.check_open()?;
        Ok(*self.shared.checkpoint.lock())
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let closed = self.submit(Order::Close);
        Box::pin(async move {
            // It was closed before, or is now.
            let _ = closed.await;
        })
    }
}

#[cfg(test)]
mod tests;
