//! A mounted file system in this process: the shipped MDT, OSTs and client, over devices in memory.
//! Any number of clients mount it.

mod free;
pub mod gates;
pub mod log;
pub mod program;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::FileSystem;
use fuse::{KernelCache, Mount, MountOptions, Unmounted};
use kv::MemoryCold;
use layout::{FileSystemDefault, ResolvedCount};
use mds::{Mdt, MdtOptions, NewRoot};
use oss::{Ost, OstDevices, OstOptions};
use rpc::{Endpoint, Server, ServerOptions, message::mgs::TargetRole};
use rt::fault::FaultyTransport;
use rt::memory::{MemoryDevice, MemoryTransport, SeededEntropy};
use rt::real::{Cores, SystemClock};
use rt::{Address, Seams};
use types::{Credentials, MdtIndex, OstIndex};

use gates::Gates;

const FSNAME: &str = "stria";
const OST_COUNT: u16 = 3;
const LEASE: Duration = Duration::from_secs(60);
/// Where the server listens, if clients come over a network.
const SERVER: &str = "server:988";

/// See the module documentation. Unmounts and stops when dropped.
pub struct Cluster {
    seams: Seams,
    server: Arc<Server>,
    cores: Cores,
    gates: Gates,
    clients: Vec<Client>,
}

/// A client with its mount.
pub struct Client {
    mount: Option<Mount>,
    file_system: Arc<FileSystem>,
    point: tempfile::TempDir,
    /// Its way to the server, unless it is in this process.
    network: Option<FaultyTransport>,
}

impl Cluster {
    /// Formats, starts and mounts.
    pub fn mounted() -> Cluster {
        Self::mounted_with("")
    }

    /// As [`Cluster::mounted`], with mount options as mount(8) takes them.
    pub fn mounted_with(mount_options: &str) -> Cluster {
        let mut cluster = Self::started();
        cluster.add_client(mount_options, None);
        cluster
    }

    /// The same with two clients that come over a network, which can be broken.
    pub fn pair_on_network() -> Cluster {
        let mut cluster = Self::started();
        let listening = cluster.cores.block_on(cluster.server.listen(&Address::from(SERVER)));
        assert_eq!(listening.unwrap(), Address::from(SERVER));
        for _ in 0..2 {
            let network = FaultyTransport::new(&cluster.seams);
            cluster.add_client("", Some(network));
        }
        cluster
    }

    fn started() -> Cluster {
        let cores = Cores::start(2).unwrap();
        let seams = Seams {
            clock: Arc::new(SystemClock),
            spawn: Arc::new(cores.clone()),
            entropy: Arc::new(SeededEntropy::new(1)),
            transport: Arc::new(MemoryTransport::new()),
            cpu: rt::Cpu::default(),
        };
        let gates = Gates::default();
        let server = cores.block_on(start(seams.clone(), &gates));
        Cluster { seams, server, cores, gates, clients: Vec::new() }
    }

    /// Mounts it once more, as another client.
    pub fn with_another(mut self, mount_options: &str) -> Cluster {
        self.add_client(mount_options, None);
        self
    }

    fn add_client(&mut self, mount_options: &str, network: Option<FaultyTransport>) {
        let (endpoint, seams) = match &network {
            None => (Endpoint::Local(self.server.clone()), self.seams.clone()),
            Some(network) => {
                let seams = Seams { transport: Arc::new(network.clone()), ..self.seams.clone() };
                (Endpoint::Remote(SERVER.into()), seams)
            }
        };
        let mut targets = vec![(TargetRole::Mdt(MdtIndex(0)), endpoint.clone())];
        targets.extend((0..OST_COUNT).map(|index| (TargetRole::Ost(OstIndex(index)), endpoint.clone())));
        let principal = rpc::Principal::of_test(1 + self.clients.len() as u64, rpc::Role::Client);
        let options = client::MountOptions::fixed(FSNAME, targets, principal);
        let file_system = self.cores.block_on(FileSystem::mount(seams, options)).unwrap();
        let point = tempfile::tempdir().unwrap();
        let mut options = MountOptions::default();
        options.add(mount_options).unwrap();
        let mount =
            Mount::new(file_system.clone(), "test:0:/stria", point.path(), &options, self.cores.clone()).unwrap();
        self.clients.push(Client { mount: Some(mount), file_system, point, network });
    }

    /// What can hold messages between clients and targets.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Waits, on the thread of the test.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.cores.block_on(future)
    }

    /// The clients, in the order in which they mounted.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// The first mount point.
    pub fn point(&self) -> &Path {
        self.clients[0].point.path()
    }

    /// A path below it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point().join(name)
    }
}

impl Client {
    /// A path below the mount point.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    /// The client below the mount.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    /// What the kernel caches of the mount.
    pub fn kernel_cache(&self) -> &Arc<KernelCache> {
        self.mount.as_ref().unwrap().kernel_cache().unwrap()
    }

    /// Breaks its connections to the server, and lets it make no others.
    pub fn disconnect(&self) {
        let (network, server) = (self.network.as_ref().unwrap(), Address::from(SERVER));
        network.cut(&server);
        network.reset(&server);
    }

    /// It may connect again.
    pub fn reconnect(&self) {
        self.network.as_ref().unwrap().heal(&Address::from(SERVER));
    }

    /// Ends all requests of programs: for tests that failed, whose programs would hang otherwise.
    pub fn abort(&self) {
        if self.network.is_some() {
            self.reconnect();
        }
        if let Some(connection) = self.mount.as_ref().and_then(Mount::connection) {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
        }
    }
}

async fn start(seams: Seams, gates: &Gates) -> Arc<Server> {
    let server = Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    let endpoint = Endpoint::Local(server.clone());
    let osts: Vec<_> = (0..OST_COUNT).map(OstIndex).collect();
    for index in &osts {
        let ost = start_ost(&seams, *index).await;
        server.add_target(ost.name(), gates.before(ost.clone()), LEASE);
    }
    let mdt = start_mdt(&seams).await;
    mdt.update_map(&osts.iter().map(|index| (*index, endpoint.clone(), true)).collect::<Vec<_>>());
    server.add_target(mdt.name(), gates.before(mdt.clone()), LEASE);
    server
}

/// Files get a stripe on every OST, so that the tests cross stripes.
async fn start_mdt(seams: &Seams) -> Arc<Mdt> {
    let (device, cold) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryCold::new()));
    let mut options = MdtOptions::new(FSNAME, MdtIndex(0));
    options.store = kv::Config::small();
    options.parameters.default_layout =
        FileSystemDefault { stripe_count: ResolvedCount::All, stripe_bytes: 256 << 10, automatic: false };
    Mdt::format(
        seams,
        device.clone(),
        cold.clone(),
        kv::Config::small(),
        FSNAME,
        MdtIndex(0),
        &NewRoot::of(Credentials::root()),
    )
    .await
    .unwrap();
    Mdt::open(seams.clone(), device, cold, options).await.unwrap()
}

async fn start_ost(seams: &Seams, index: OstIndex) -> Arc<Ost> {
    let devices = OstDevices {
        journal: Arc::new(MemoryDevice::new()),
        objects: Arc::new(MemoryDevice::new()),
        cold: Arc::new(MemoryCold::new()),
        throughput: Arc::default(),
    };
    Ost::format(seams, &devices, FSNAME, index, kv::Config::small()).await.unwrap();
    Ost::open(seams.clone(), devices, FSNAME, index, OstOptions::default(), kv::Config::small()).await.unwrap()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut unmounted = Vec::new();
        for client in &mut self.clients {
            if !std::thread::panicking() {
                free::wait_until_free(client.point.path());
            }
            unmounted.push(client.mount.take().expect("mounted once").unmount());
            self.cores.block_on(client.file_system.unmount());
        }
        self.cores.block_on(self.server.stop());
        self.cores.shutdown();
        if !std::thread::panicking() {
            for unmounted in unmounted {
                assert_eq!(unmounted.unwrap(), Unmounted::Clean, "a test left something open");
            }
        }
    }
}
