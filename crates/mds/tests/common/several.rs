//! Several MDTs, each on devices in memory and as if in a process of its own, which can end at any
//! moment.

use std::{collections::BTreeSet, panic::resume_unwind, sync::Arc, time::Duration};

use kv::{Batch, MemoryCold, Store, Table};
use mds::{Mdt, MdtOptions, NewRoot};
use parking_lot::Mutex;
use rpc::{
    Endpoint, Import, ImportOptions, Principal, Recovery, Role, Server, ServerOptions,
    message::{
        MdtReply, MdtRequest,
        mdt::{self, Entry, Lookup, Reclaim, Rename, RenameMode, SourceData, Unlink},
        mdt_peer::{MakeDirectory, RemoteName, RemoteNamesAfter},
        session::feature,
    },
};
use rt::{
    Address, BoxFuture, Seams, Spawn,
    memory::{HostClock, MemoryDevice, MemoryTransport, SeededEntropy, Unflushed, seams},
};
use tokio::task::JoinSet;
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, Stripes};

use super::{
    absent_osts, create_request, created, entry,
    gate::{Gate, Gated},
    root,
    steps::{Stepped, Steps},
};

const LEASE: Duration = Duration::from_secs(600);

/// Tasks of a process.
struct Process {
    /// `None`: it has ended.
    tasks: Mutex<Option<JoinSet<()>>>,
    steps: Arc<Steps>,
}

impl Process {
    fn new(steps: Arc<Steps>) -> Arc<Self> {
        Arc::new(Self { tasks: Mutex::new(Some(JoinSet::new())), steps })
    }

    /// All tasks end where they are.
    async fn kill(&self) {
        let Some(mut tasks) = self.tasks.lock().take() else { return };
        tasks.abort_all();
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }
}

impl Spawn for Process {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        if let Some(tasks) = &mut *self.tasks.lock() {
            tasks.spawn(Stepped { steps: self.steps.clone(), task: future });
        }
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// One of them.
pub struct Node {
    index: MdtIndex,
    /// Those of the clients; an MDT has others.
    seams: Seams,
    process: Arc<Process>,
    boot: u64,
    device: MemoryDevice,
    /// Of the device.
    pub gate: Arc<Gate>,
    cold: MemoryCold,
    options: MdtOptions,
    /// Those that it shows to callers.
    features: u64,
    pub mdt: Arc<Mdt>,
    server: Arc<Server>,
    /// As a client.
    pub import: Import,
    /// As fsck. Its session does not end: after a power loss an MDT might not know of the end, and
    /// wait for it.
    tool: Import,
    /// As fsck that repairs.
    pub repairer: Import,
}

fn target(index: MdtIndex) -> String {
    format!("test-{index}")
}

/// A client that had nothing open.
pub struct ComesBack;

impl Recovery for ComesBack {
    fn recover(&self, import: &Import, _: bool) -> BoxFuture<'_, FsResult<()>> {
        let import = import.clone();
        let done = MdtRequest::Reclaim(Reclaim { done: true, ..Reclaim::default() });
        Box::pin(async move { import.call(done).await.map(drop) })
    }
}

pub fn endpoint(index: MdtIndex) -> Endpoint {
    Endpoint::Remote(address(index, 1).into())
}

/// Another address of an MDT.
pub fn second_endpoint(index: MdtIndex) -> Endpoint {
    Endpoint::Remote(address(index, 2).into())
}

fn address(index: MdtIndex, port: u16) -> Address {
    Address::from(format!("{index}:{port}").as_str())
}

/// An MDT that died is back at once.
pub fn import_options() -> ImportOptions {
    ImportOptions { backoff_min: Duration::from_millis(1), backoff_max: Duration::from_millis(5), ..Default::default() }
}

fn connect(seams: &Seams, index: MdtIndex, principal: Principal) -> Import {
    // Sessions of MDTs end with a restart.
    let recovery: Option<Arc<dyn Recovery>> = (principal.role() != Role::Mdt).then(|| Arc::new(ComesBack) as _);
    Import::new(seams.clone(), &target(index), endpoint(index), principal, import_options(), recovery)
}

impl Node {
    async fn new(network: &MemoryTransport, steps: Arc<Steps>, index: MdtIndex, peer_timeout: Duration) -> Self {
        let boot = 1;
        let seams = seams(network, 7 + u64::from(index.0));
        let (device, cold) = (MemoryDevice::new(), MemoryCold::new());
        let mut options = MdtOptions::new("test", index);
        options.keys = rpc::Keyring::of_test();
        options.import = ImportOptions { timeout: peer_timeout, ..import_options() };
        options.parameters.mdt_silence = peer_timeout;
        options.store = kv::Config::small();
        // Only what is waited for is durable.
        options.store.commit_interval = Duration::from_secs(3600);
        options.recovery_window = LEASE;
        options.audits = true;
        options.parameters.removal_grace = Duration::ZERO;
        let (journal, tables) = (Arc::new(device.clone()), Arc::new(cold.clone()));
        let (config, owner) = (options.store.clone(), Credentials::root());
        Mdt::format(&seams, journal, tables, config, "test", index, &NewRoot::of(owner))
            .await
            .expect("an empty store is formatted");
        let process = Process::new(steps);
        let gate = Arc::new(Gate::default());
        let features = feature::ALL;
        let (mdt, server) = open(&seams, &process, boot, (&device, &gate, &cold), (&options, features)).await;
        let import = connect(&seams, index, Principal::of_test(1, Role::Client));
        let tool = connect(&seams, index, Principal::of_test(9, Role::Tool));
        let repairer = connect(&seams, index, Principal::of_test(8, Role::Repair));
        Self { index, seams, process, boot, device, gate, cold, options, features, mdt, server, import, tool, repairer }
    }

    /// The process dies; it is started again by [`Node::start`].
    pub async fn crash(&mut self) {
        self.process.kill().await;
        (self.device, self.cold) = (self.device.crash(), self.cold.crash());
    }

    /// The host loses power: everything since the last flush is gone.
    pub async fn lose_power(&mut self) {
        self.process.kill().await;
        let entropy = SeededEntropy::new(self.boot);
        self.boot += 1;
        (self.device, self.cold) = (self.device.power_loss(&entropy, Unflushed::Lost), self.cold.power_loss(&entropy));
    }

    /// The process dies, and its tables change without its knowledge. [`Node::start`] is next.
    pub async fn damage(&mut self, change: impl FnOnce(&mut Batch)) {
        self.damage_seeing(|_, batch| change(batch)).await;
    }

    /// The same; the change depends on what is stored.
    pub async fn damage_seeing(&mut self, change: impl FnOnce(&Store, &mut Batch)) {
        // They would find it.
        self.options.audits = false;
        let store = self.open_store().await;
        let mut batch = Batch::default();
        change(&store, &mut batch);
        let lsn = store.apply(batch).unwrap();
        store.durable(lsn).await.unwrap();
        store.close().await.unwrap();
    }

    /// The process dies. Returns the records of these tables: table, key, value. [`Node::start`] is
    /// next.
    pub async fn records(&mut self, tables: &[Table]) -> Vec<(Table, Vec<u8>, Vec<u8>)> {
        let store = self.open_store().await;
        let mut records = Vec::new();
        for table in tables {
            store
                .scan(*table, &[], None, &mut |key, value| {
                    records.push((*table, key.to_vec(), value.to_vec()));
                    true
                })
                .unwrap();
        }
        store.close().await.unwrap();
        records
    }

    async fn open_store(&mut self) -> Store {
        self.crash().await;
        let (device, cold) = (Arc::new(self.device.clone()), Arc::new(self.cold.clone()));
        Store::open(self.seams.clone(), device, cold, self.options.store.clone(), &mut |_, _| {}).await.unwrap()
    }

    /// Starts after the end of the process.
    pub async fn start(&mut self) {
        self.process = Process::new(self.process.steps.clone());
        self.gate.open_flushes();
        let stored = (&self.device, &self.gate, &self.cold);
        let options = (&self.options, self.features);
        (self.mdt, self.server) = open(&self.seams, &self.process, self.boot, stored, options).await;
    }

    /// From the next start on it is of a release without these features.
    pub fn set_missing(&mut self, features: u64) {
        self.features = feature::ALL & !features;
    }

    /// From the next start on its commits may leave what the check complains about.
    pub fn tolerates_damage(&mut self) {
        self.options.audits = false;
    }

    /// From the next start on, others are asked for their space so often.
    pub fn set_refresh(&mut self, refresh: Duration) {
        self.options.parameters.ost_refresh = refresh;
    }

    /// Changes the capacity of the device.
    pub fn set_capacity(&self, bytes: u64) {
        self.device.set_capacity(bytes);
    }

    /// A request of a client; once more if it has to begin a session.
    pub async fn call(&self, request: MdtRequest) -> FsResult<MdtReply> {
        call(&self.import, request).await
    }

    /// Another caller.
    pub fn connect(&self, number: u64, role: Role) -> Import {
        connect(&self.seams, self.index, Principal::of_test(number, role))
    }

    /// A client with these options.
    pub fn connect_with(&self, number: u64, options: ImportOptions, recovery: Arc<dyn Recovery>) -> Import {
        let principal = Principal::of_test(number, Role::Client);
        Import::new(self.seams.clone(), &target(self.index), endpoint(self.index), principal, options, Some(recovery))
    }

    pub async fn stat(&self, inode: InodeNumber) -> FsResult<Entry> {
        entry(self.call(MdtRequest::GetAttributes(inode)).await?)
    }

    pub async fn create(&self, parent: InodeNumber, name: &str, kind: NodeKind) -> FsResult<InodeNumber> {
        let create = create_request(parent, name, kind, 0o755, None);
        Ok(created(self.call(MdtRequest::Create(root(), create)).await?).entry.attributes.inode)
    }

    pub async fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &str) -> FsResult<()> {
        let link = mdt::Link { inode, parent, name: name.as_bytes().to_vec() };
        match self.call(MdtRequest::Link(root(), link)).await? {
            MdtReply::Entry(_) | MdtReply::Decided(_) => Ok(()),
            other => panic!("a link was answered {other:?}"),
        }
    }

    pub async fn make_directory(&self, parent: InodeNumber, name: &str, mdt: u16) -> FsResult<InodeNumber> {
        Ok(created(self.call(make_directory(parent, name, mdt)).await?).entry.attributes.inode)
    }

    pub async fn remove(&self, parent: InodeNumber, name: &str, directory: bool) -> FsResult<()> {
        match self.call(remove(parent, name, directory)).await? {
            MdtReply::Done => Ok(()),
            other => panic!("a removal was answered {other:?}"),
        }
    }

    pub async fn lookup(&self, parent: InodeNumber, name: &str) -> FsResult<InodeNumber> {
        let lookup = Lookup { parent, name: name.as_bytes().to_vec() };
        match self.call(MdtRequest::Lookup(root(), lookup)).await? {
            MdtReply::Remote(inode) => Ok(inode),
            MdtReply::Entry(entry) => Ok(entry.attributes.inode),
            MdtReply::Absent => Err(FsError::NotFound),
            other => panic!("a lookup was answered {other:?}"),
        }
    }

    async fn remote_names(&self, of_names: bool) -> Vec<RemoteName> {
        let (mut found, mut key) = (Vec::new(), None);
        loop {
            let request = MdtRequest::RemoteNames(root(), RemoteNamesAfter { of_names, key });
            match call(&self.tool, request).await.expect("tools may ask") {
                MdtReply::RemoteNames(answer) => {
                    found.extend(answer.found);
                    key = answer.next;
                }
                other => panic!("{other:?}"),
            }
            if key.is_none() {
                break;
            }
        }
        found.sort();
        found
    }
}

pub fn make_directory(parent: InodeNumber, name: &str, mdt: u16) -> MdtRequest {
    let (name, mdt) = (name.as_bytes().to_vec(), MdtIndex(mdt));
    MdtRequest::MakeDirectory(
        root(),
        MakeDirectory { parent, name, mode: 0o755, umask: 0, mdt, stripes: Stripes::default() },
    )
}

pub fn rename(
    (parent, name): (InodeNumber, &str),
    (new_parent, new_name): (InodeNumber, &str),
    mode: RenameMode,
) -> MdtRequest {
    let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
    let source_data = SourceData::AsIs;
    MdtRequest::Rename(
        root(),
        Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era: None, same_directory: false },
    )
}

pub fn remove(parent: InodeNumber, name: &str, directory: bool) -> MdtRequest {
    MdtRequest::Unlink(root(), Unlink { parent, name: name.as_bytes().to_vec(), directory })
}

/// Calls, once more if a session has to begin or another MDT has to answer first: what is repeated
/// has not been executed.
pub async fn call(import: &Import, request: MdtRequest) -> FsResult<MdtReply> {
    loop {
        match import.call(request.clone()).await {
            Err(FsError::Evicted) => {}
            Err(FsError::AwaitsMdt(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
            answered => return Ok(answered?.reply),
        }
    }
}

async fn open(
    seams: &Seams,
    process: &Arc<Process>,
    boot: u64,
    (device, gate, cold): (&MemoryDevice, &Arc<Gate>, &MemoryCold),
    (options, features): (&MdtOptions, u64),
) -> (Arc<Mdt>, Arc<Server>) {
    let seams = Seams { clock: Arc::new(HostClock { boot }), spawn: process.clone(), ..seams.clone() };
    let gated = Gated { device: device.clone(), gate: gate.clone() };
    let (device, cold) = (Arc::new(gated), Arc::new(cold.clone()));
    let mdt = Mdt::open(seams.clone(), device, cold, options.clone()).await.expect("a formatted store opens");
    mdt.update_map(&absent_osts(1));
    let server = Server::new(seams, ServerOptions { features, ..ServerOptions::new(rpc::Keyring::of_test()) });
    server.add_target(&target(options.index), mdt.clone(), LEASE);
    for port in [1, 2] {
        server.listen(&address(options.index, port)).await.expect("the address is free after the end of the process");
    }
    (mdt, server)
}

/// All of them.
pub struct Cluster(pub Vec<Node>, pub Arc<Steps>);

impl Cluster {
    pub async fn new(count: u16) -> Self {
        Self::with_timeout(count, Duration::from_secs(100)).await
    }

    /// MDTs that call another one unreachable when it has been silent for so long.
    pub async fn with_timeout(count: u16, peer_timeout: Duration) -> Self {
        let network = MemoryTransport::new();
        let (mut nodes, steps) = (Vec::new(), Arc::new(Steps::default()));
        for index in 0..count {
            nodes.push(Node::new(&network, steps.clone(), MdtIndex(index), peer_timeout).await);
        }
        let cluster = Self(nodes, steps);
        cluster.update_map();
        cluster
    }

    /// Tells all of them where the others are.
    pub fn update_map(&self) {
        let mdts: Vec<(MdtIndex, Endpoint, bool)> =
            self.0.iter().map(|node| (node.index, endpoint(node.index), true)).collect();
        self.0.iter().for_each(|node| node.mdt.update_mdts(&mdts));
    }

    /// The processes of these die at once, and start again.
    pub async fn restart(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.0[*node].crash().await;
        }
        self.start(nodes).await;
    }

    pub async fn start(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.0[*node].start().await;
        }
        self.update_map();
    }

    /// All processes end: what is left of them would go on as long as the test.
    pub async fn end(self) {
        for mut node in self.0 {
            node.crash().await;
        }
    }

    /// What MDTs say of names and inodes on different MDTs, and others do not; true: a name.
    pub async fn contradictions(&self) -> Vec<(bool, RemoteName)> {
        let (mut names, mut inodes) = (BTreeSet::new(), BTreeSet::new());
        for node in &self.0 {
            names.extend(node.remote_names(true).await);
            inodes.extend(node.remote_names(false).await);
        }
        let of_inodes = inodes.difference(&names).map(|name| (false, name.clone()));
        of_inodes.chain(names.difference(&inodes).map(|name| (true, name.clone()))).collect()
    }

    /// Waits until nothing is prepared or to be delivered.
    pub async fn all_is_decided(&self) {
        while self.0.iter().any(|node| node.mdt.pending_of_several() != 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until names and inodes on different MDTs are the same on both sides, and nothing is
    /// prepared or to be delivered; returns the names.
    pub async fn at_rest(&self) -> Vec<RemoteName> {
        loop {
            let (mut names, mut inodes) = (Vec::new(), Vec::new());
            for node in &self.0 {
                names.extend(node.remote_names(true).await);
                inodes.extend(node.remote_names(false).await);
            }
            names.sort();
            inodes.sort();
            let pending: usize = self.0.iter().map(|node| node.mdt.pending_of_several()).sum();
            if names == inodes && pending == 0 {
                return names;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
