//! Several MDTs in one process, each on devices in memory and with a server of its own.

use std::{sync::Arc, time::Duration};

use kv::MemoryCold;
use mds::{Mdt, MdtOptions};
use rpc::{
    Endpoint, Handler, Import, ImportOptions, Principal, Recovery, Role, Server, ServerOptions,
    message::{
        MdtReply, MdtRequest,
        mdt::{Entry, Lookup, Reclaim, Unlink},
        mdt_peer::{MakeDirectory, RemoteName, RemoteNamesAfter},
    },
};
use rt::{
    BoxFuture, Seams,
    memory::{HostClock, MemoryDevice, MemoryTransport, SeededEntropy, Unflushed, seams},
};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind};

use super::{absent_osts, create_request, created, entry, root};

const LEASE: Duration = Duration::from_secs(600);

/// One of them.
pub struct Node {
    index: MdtIndex,
    seams: Seams,
    boot: u64,
    device: MemoryDevice,
    cold: MemoryCold,
    options: MdtOptions,
    pub mdt: Arc<Mdt>,
    server: Arc<Server>,
    /// As a client.
    pub import: Import,
}

fn target(index: MdtIndex) -> String {
    format!("test-{index}")
}

/// A client that had nothing open.
struct ComesBack;

impl Recovery for ComesBack {
    fn recover(&self, import: &Import, _: bool) -> BoxFuture<'_, FsResult<()>> {
        let import = import.clone();
        let done = MdtRequest::Reclaim(Reclaim { done: true, ..Reclaim::default() });
        Box::pin(async move { import.call(done).await.map(drop) })
    }
}

fn import(seams: &Seams, index: MdtIndex, server: &Arc<Server>, principal: Principal) -> Import {
    let (endpoint, options) = (Endpoint::Local(server.clone()), ImportOptions::default());
    let recovery: Option<Arc<dyn Recovery>> = (principal.role() == Role::Client).then(|| Arc::new(ComesBack) as _);
    Import::new(seams.clone(), &target(index), endpoint, principal, options, recovery)
}

impl Node {
    async fn new(network: &MemoryTransport, index: MdtIndex) -> Self {
        let boot = 1;
        let seams = Seams { clock: Arc::new(HostClock { boot }), ..seams(network, 7 + u64::from(index.0)) };
        let (device, cold) = (MemoryDevice::new(), MemoryCold::new());
        let mut options = MdtOptions::new("test", index);
        options.keys = rpc::Keyring::of_test();
        options.store = kv::Config::small();
        // Only what is waited for is durable.
        options.store.commit_interval = Duration::from_secs(3600);
        options.recovery_window = LEASE;
        options.audits = true;
        options.parameters.removal_grace = Duration::ZERO;
        let (journal, tables) = (Arc::new(device.clone()), Arc::new(cold.clone()));
        let (config, owner) = (options.store.clone(), Credentials::root());
        Mdt::format(&seams, journal, tables, config, "test", index, &owner).await.expect("an empty store is formatted");
        let (mdt, server) = open(&seams, &device, &cold, &options).await;
        let import = import(&seams, index, &server, Principal::of_test(1, Role::Client));
        Self { index, seams, boot, device, cold, options, mdt, server, import }
    }

    /// The process dies; it is started again by [`Node::start`].
    pub async fn crash(&mut self) {
        self.end().await;
        (self.device, self.cold) = (self.device.crash(), self.cold.crash());
    }

    /// Nothing is answered any more, nor changed.
    async fn end(&self) {
        self.server.stop().await;
        self.mdt.halt();
    }

    /// The host loses power: everything since the last flush is gone.
    pub async fn lose_power(&mut self) {
        self.end().await;
        let entropy = SeededEntropy::new(self.boot);
        self.boot += 1;
        self.seams.clock = Arc::new(HostClock { boot: self.boot });
        (self.device, self.cold) = (self.device.power_loss(&entropy, Unflushed::Lost), self.cold.power_loss(&entropy));
    }

    /// Starts after the end of the process.
    pub async fn start(&mut self) {
        (self.mdt, self.server) = open(&self.seams, &self.device, &self.cold, &self.options).await;
        self.import.set_address(Endpoint::Local(self.server.clone()));
    }

    /// A request of a client; once more if it has to begin a session.
    pub async fn call(&self, request: MdtRequest) -> FsResult<MdtReply> {
        call(&self.import, request).await
    }

    /// Another caller.
    pub fn connect(&self, number: u64, role: Role) -> Import {
        import(&self.seams, self.index, &self.server, Principal::of_test(number, role))
    }

    pub async fn stat(&self, inode: InodeNumber) -> FsResult<Entry> {
        entry(self.call(MdtRequest::GetAttributes(inode)).await?)
    }

    pub async fn create(&self, parent: InodeNumber, name: &str, kind: NodeKind) -> FsResult<InodeNumber> {
        let create = create_request(parent, name, kind, 0o755, None);
        Ok(created(self.call(MdtRequest::Create(root(), create)).await?).entry.attributes.inode)
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
        let tool = self.connect(9, Role::Tool);
        let request = MdtRequest::RemoteNames(root(), RemoteNamesAfter { of_names, key: None });
        let mut found = match call(&tool, request).await.expect("tools may ask") {
            MdtReply::RemoteNames(answer) => answer.found,
            other => panic!("{other:?}"),
        };
        tool.close().await;
        found.sort();
        found
    }
}

pub fn make_directory(parent: InodeNumber, name: &str, mdt: u16) -> MdtRequest {
    let (name, mdt) = (name.as_bytes().to_vec(), MdtIndex(mdt));
    MdtRequest::MakeDirectory(root(), MakeDirectory { parent, name, mode: 0o755, umask: 0, mdt })
}

pub fn remove(parent: InodeNumber, name: &str, directory: bool) -> MdtRequest {
    MdtRequest::Unlink(root(), Unlink { parent, name: name.as_bytes().to_vec(), directory })
}

/// Calls, once more if a session has to begin: what is repeated has not been executed.
pub async fn call(import: &Import, request: MdtRequest) -> FsResult<MdtReply> {
    loop {
        match import.call(request.clone()).await {
            Err(FsError::Evicted) => {}
            answered => return Ok(answered?.reply),
        }
    }
}

async fn open(
    seams: &Seams,
    device: &MemoryDevice,
    cold: &MemoryCold,
    options: &MdtOptions,
) -> (Arc<Mdt>, Arc<Server>) {
    let (device, cold) = (Arc::new(device.clone()), Arc::new(cold.clone()));
    let mdt = Mdt::open(seams.clone(), device, cold, options.clone()).await.expect("a formatted store opens");
    mdt.update_map(&absent_osts(1));
    let server = Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target(&target(options.index), mdt.clone(), LEASE);
    (mdt, server)
}

/// All of them.
pub struct Cluster(pub Vec<Node>);

impl Cluster {
    pub async fn new(count: u16) -> Self {
        let network = MemoryTransport::new();
        let mut nodes = Vec::new();
        for index in 0..count {
            nodes.push(Node::new(&network, MdtIndex(index)).await);
        }
        let cluster = Self(nodes);
        cluster.update_map();
        cluster
    }

    /// Tells all of them where the others are.
    pub fn update_map(&self) {
        let mdts: Vec<(MdtIndex, Endpoint, bool)> =
            self.0.iter().map(|node| (node.index, Endpoint::Local(node.server.clone()), true)).collect();
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

    /// Waits until names and inodes on different MDTs are the same on both sides, and nothing is
    /// prepared or to be delivered; returns the names.
    pub async fn at_rest(&self) -> Vec<RemoteName> {
        loop {
            let (mut names, mut inodes) = (Vec::new(), Vec::new());
            for node in &self.0 {
                names.extend(node.remote_names(true).await);
                inodes.extend(node.remote_names(false).await);
            }
            (names.sort(), inodes.sort());
            let pending: usize = self.0.iter().map(|node| node.mdt.pending_of_several()).sum();
            if names == inodes && pending == 0 {
                return names;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
