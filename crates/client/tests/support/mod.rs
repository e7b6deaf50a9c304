//! Clusters in this process, of fakes and of the shipped servers, and clients of them.
#![allow(dead_code, missing_docs)] // Each test uses some of it.

pub mod fake_mdt;
pub mod fake_ost;
#[path = "../../../mds/tests/common/log.rs"]
pub mod log;
pub mod real;
pub mod script;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use client::{FileSystem, MountOptions, NewNode, OpenFile, WriteOptions};
use fake_mdt::FakeMdt;
use fake_ost::FakeOst;
use layout::LayoutSpec;
use parking_lot::Mutex;
use rpc::{
    Endpoint, Server, ServerOptions,
    message::{
        ClientReply, ClientRequest,
        client::Blocking,
        lock::{CacheMode, InodeBits, Resource, inode_bit},
        mdt::{OpenFlags, open_flag},
        mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
    },
};
use rt::{
    Address, Clock, Seams,
    fault::FaultyTransport,
    memory::{MemoryTransport, seams},
};
use tokio::sync::watch;
use types::{ClientId, Credentials, InodeNumber, LockHandle, MdtIndex, NodeKind, OstIndex};

pub const ROOT: InodeNumber = InodeNumber::ROOT;
pub const READ_WRITE: u32 = open_flag::READ | open_flag::WRITE;
const LEASE: Duration = Duration::from_secs(60);

/// Where remote clients find the servers.
pub const SERVERS: &str = "servers:1";

/// How often a client asked its MDT for a layout.
pub fn asked_for_layout(fs: &FileSystem) -> u64 {
    let statistics = fs.connections().into_iter().map(|(_, _, statistics)| statistics);
    let of_layouts = |name: &str| name.ends_with("_getlayout") || name.ends_with("_get_layout");
    let opcodes = statistics.flat_map(|statistics| statistics.opcodes);
    opcodes.filter(|opcode| of_layouts(opcode.name)).map(|opcode| opcode.calls).sum()
}

/// See the module documentation.
pub struct Cluster {
    pub mdt: Arc<FakeMdt>,
    pub osts: Vec<Arc<FakeOst>>,
    network: MemoryTransport,
    server: Arc<Mutex<Arc<Server>>>,
    map: watch::Sender<Arc<ClusterMap>>,
    seeds: AtomicU64,
}

/// The first map of a cluster whose targets are all at one address.
fn cluster_map(roles: Vec<TargetRole>, address: &str) -> ClusterMap {
    let target =
        |role| MapTarget { role, uuid: String::new(), addresses: vec![address.to_owned()], state: TargetState::Active };
    ClusterMap {
        version: 1,
        fsname: "stria".to_owned(),
        targets: roles.into_iter().map(target).collect(),
        parameters: Vec::new(),
        pools: Vec::new(),
    }
}

impl Cluster {
    /// One MDT and as many OSTs as its files have stripes.
    pub fn new(stripe_bytes: u64, stripe_count: u16) -> Self {
        Self::with_osts(stripe_bytes, stripe_count, stripe_count)
    }

    /// As [`Cluster::new`]; with twice as many OSTs as stripes, an object of the first half can go
    /// to the second.
    pub fn with_osts(stripe_bytes: u64, stripe_count: u16, ost_count: u16) -> Self {
        let mdt = Arc::new(FakeMdt::new(stripe_bytes, stripe_count, ost_count));
        let osts: Vec<Arc<FakeOst>> = (0..ost_count).map(|_| Arc::default()).collect();
        let network = MemoryTransport::new();
        let server = serve(&network, 1, &mdt, &osts);
        let mut roles = vec![TargetRole::Mdt(MdtIndex(0))];
        roles.extend((0..ost_count).map(|index| TargetRole::Ost(OstIndex(index))));
        let map = cluster_map(roles, "1");
        Self {
            mdt,
            osts,
            network,
            server: Arc::new(Mutex::new(server)),
            map: watch::Sender::new(Arc::new(map)),
            seeds: AtomicU64::new(2),
        }
    }

    /// Waits until the MDT knows so many opens.
    pub async fn until_open(&self, count: usize) {
        let known = async {
            while self.mdt.open_count() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let outcome = tokio::time::timeout(Duration::from_secs(60), known).await;
        outcome.unwrap_or_else(|_| panic!("the MDT knows {} opens, not {count}", self.mdt.open_count()));
    }

    fn next_seed(&self) -> u64 {
        self.seeds.fetch_add(1, Ordering::Relaxed)
    }

    /// A further client.
    pub async fn mount(&self) -> Arc<FileSystem> {
        let server = self.server.clone();
        let resolve = move |_: &MapTarget| Endpoint::Local(server.lock().clone());
        let options = MountOptions::new(
            self.map.subscribe(),
            Arc::new(resolve),
            rpc::Principal::of_test(self.next_seed(), rpc::Role::Client),
        );
        mounted(seams(&self.network, self.next_seed()), options).await
    }

    /// A further client, on another host whose clock this is.
    pub async fn mount_remote(&self, clock: Arc<dyn Clock>) -> Arc<FileSystem> {
        self.mount_by(Seams { clock, ..seams(&self.network, self.next_seed()) }).await
    }

    /// A further client on another host, and its network.
    pub async fn mount_breakable(&self) -> (Arc<FileSystem>, FaultyTransport) {
        let seams = seams(&self.network, self.next_seed());
        let transport = FaultyTransport::new(&seams);
        let fs = self.mount_by(Seams { transport: Arc::new(transport.clone()), ..seams }).await;
        (fs, transport)
    }

    async fn mount_by(&self, seams: Seams) -> Arc<FileSystem> {
        let server = self.server.lock().clone();
        let address = server.listen(&Address::from(SERVERS)).await.expect("nobody else listens there");
        let resolve = move |_: &MapTarget| Endpoint::Remote(address.clone().into());
        let principal = rpc::Principal::of_test(self.next_seed(), rpc::Role::Client);
        let options = MountOptions::new(self.map.subscribe(), Arc::new(resolve), principal);
        mounted(seams, options).await
    }

    /// The MDT withdraws a lock from a client, and waits for the answer, not for the lock.
    pub async fn withdraw(&self, client: ClientId, handle: LockHandle) {
        assert_eq!(self.ask_back(client, handle).await, Ok(ClientReply::Done));
    }

    /// The MDT asks for a lock.
    pub async fn ask_back(&self, client: ClientId, handle: LockHandle) -> types::FsResult<ClientReply> {
        let resource = Resource::Inode(ROOT, InodeBits(inode_bit::LOOKUP));
        let blocking = ClientRequest::Blocking(Blocking { handle, resource, mode: CacheMode::Write });
        let server = self.server.lock().clone();
        server.call_back("stria-MDT0000", client, blocking).await
    }

    /// All targets stop; [`Cluster::restart`] starts them again.
    pub async fn stop(&self) {
        let server = self.server.lock().clone();
        server.stop().await;
    }

    /// All targets stop and start again: the same tables, another incarnation.
    pub async fn restart(&self) {
        let seed = self.next_seed();
        let old = std::mem::replace(&mut *self.server.lock(), serve(&self.network, seed, &self.mdt, &self.osts));
        old.stop().await;
        self.change_map(|target| target.addresses = vec![seed.to_string()]);
    }

    /// As [`Cluster::restart`], but the former start, which is returned, still answers what it has
    /// begun.
    pub fn move_on(&self) -> Arc<Server> {
        let seed = self.next_seed();
        let old = std::mem::replace(&mut *self.server.lock(), serve(&self.network, seed, &self.mdt, &self.osts));
        self.change_map(|target| target.addresses = vec![seed.to_string()]);
        old
    }

    /// Publishes another map.
    pub fn change_map(&self, change: impl Fn(&mut MapTarget)) {
        self.map.send_modify(|map| {
            let mut changed = ClusterMap::clone(map);
            changed.version += 1;
            changed.targets.iter_mut().for_each(change);
            *map = Arc::new(changed);
        });
    }

    /// Another MDT is served; clients learn of it by [`Cluster::publish_mdt`].
    pub fn add_mdt(&self, index: MdtIndex, mdt: &Arc<FakeMdt>) {
        self.server.lock().add_target(&format!("stria-{index}"), mdt.clone(), LEASE);
    }

    /// The next map has this MDT.
    pub fn publish_mdt(&self, index: MdtIndex) {
        self.map.send_modify(|map| {
            let mut changed = ClusterMap::clone(map);
            changed.version += 1;
            let first = changed.targets[0].clone();
            changed.targets.push(MapTarget { role: TargetRole::Mdt(index), ..first });
            *map = Arc::new(changed);
        });
    }

    /// Evicts a client from the MDT.
    pub async fn evict(&self, client: ClientId) {
        let server = self.server.lock().clone();
        assert!(server.evict("stria-MDT0000", client).await, "the client has a session");
    }

    /// Requests handled since `before`, by name, over all targets.
    pub fn requests_since(&self, before: &BTreeMap<&'static str, usize>) -> BTreeMap<&'static str, usize> {
        let mut counts = self.requests();
        for (name, count) in before {
            *counts.get_mut(name).expect("counts only grow") -= count;
        }
        counts.retain(|_, count| *count > 0);
        counts
    }

    /// Requests handled so far, by name, over all targets.
    pub fn requests(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = self.mdt.counts();
        for ost in &self.osts {
            for (name, count) in ost.counts() {
                *counts.entry(name).or_default() += count;
            }
        }
        counts
    }
}

fn serve(network: &MemoryTransport, seed: u64, mdt: &Arc<FakeMdt>, osts: &[Arc<FakeOst>]) -> Arc<Server> {
    let server = Server::new(seams(network, seed), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target("stria-MDT0000", mdt.clone(), LEASE);
    for (index, ost) in osts.iter().enumerate() {
        server.add_target(&format!("stria-OST{index:04x}"), ost.clone(), LEASE);
    }
    server
}

pub async fn create(fs: &Arc<FileSystem>, name: &str, flags: u32) -> Arc<OpenFile> {
    let flags = OpenFlags(flags);
    let created = fs.create_open(&Credentials::root(), ROOT, name.as_bytes(), 0o644, 0, flags).await;
    created.expect("a file can be created").file
}

pub async fn with_layout(fs: &Arc<FileSystem>, name: &str, spec: LayoutSpec) -> Arc<OpenFile> {
    let (name_bytes, kind) = (name.as_bytes().to_vec(), NodeKind::Regular);
    let node = NewNode { parent: ROOT, name: name_bytes, kind, mode: 0o644, umask: 0, layout: Some(spec) };
    fs.create(&Credentials::root(), node).await.unwrap();
    create(fs, name, READ_WRITE).await
}

pub async fn write(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, offset: u64, data: &[u8]) {
    let data = bytes::Bytes::copy_from_slice(data);
    let bytes = data.len();
    assert_eq!(fs.write(file, offset, data, WriteOptions::default()).await, Ok(bytes));
}

pub async fn append(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, data: &[u8]) {
    let options = WriteOptions { append: true, ..WriteOptions::default() };
    let data = bytes::Bytes::copy_from_slice(data);
    let bytes = data.len();
    assert_eq!(fs.write(file, 0, data, options).await, Ok(bytes));
}

pub async fn read(fs: &FileSystem, file: &OpenFile, offset: u64, bytes: usize) -> Vec<u8> {
    fs.read(file, offset, bytes).await.expect("the file can be read").into_bytes().to_vec()
}

pub async fn size(fs: &FileSystem, inode: InodeNumber) -> u64 {
    fs.get_attributes(inode, None).await.expect("the file exists").size
}

/// A mount that sends each close at once: what a test does next finds files closed.
pub async fn mounted(seams: Seams, options: MountOptions) -> Arc<FileSystem> {
    let fs = FileSystem::mount(seams, options).await.expect("the cluster is up");
    fs.set_close_delay_ms(0);
    fs
}

/// Lets everything continue that does not wait for somebody else.
pub async fn others_run() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
