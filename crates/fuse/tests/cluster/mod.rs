//! A mounted file system in this process: the shipped MDT, OSTs and client, over devices in memory.

mod free;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::FileSystem;
use fuse::{Mount, MountOptions, Unmounted};
use kv::MemoryCold;
use layout::{FileSystemDefault, ResolvedCount};
use mds::{Mdt, MdtOptions};
use oss::{Ost, OstDevices, OstOptions};
use rpc::{Endpoint, Server, ServerOptions, message::mgs::TargetRole};
use rt::Seams;
use rt::memory::{MemoryDevice, MemoryTransport, SeededEntropy};
use rt::real::{Cores, SystemClock};
use types::{Credentials, MdtIndex, OstIndex};

const FSNAME: &str = "stria";
const OST_COUNT: u16 = 3;
const LEASE: Duration = Duration::from_secs(60);

/// See the module documentation. Unmounts and stops when dropped.
pub struct Cluster {
    mount: Option<Mount>,
    file_system: Arc<FileSystem>,
    server: Arc<Server>,
    cores: Cores,
    point: tempfile::TempDir,
}

impl Cluster {
    /// Formats, starts and mounts.
    pub fn mounted() -> Cluster {
        Self::mounted_with("")
    }

    /// As [`Cluster::mounted`], with mount options as mount(8) takes them.
    pub fn mounted_with(mount_options: &str) -> Cluster {
        let cores = Cores::start(2).unwrap();
        let seams = Seams {
            clock: Arc::new(SystemClock),
            spawn: Arc::new(cores.clone()),
            entropy: Arc::new(SeededEntropy::new(1)),
            transport: Arc::new(MemoryTransport::new()),
        };
        let (server, file_system) = cores.block_on(start(seams));
        let point = tempfile::tempdir().unwrap();
        let mut options = MountOptions::default();
        options.add(mount_options).unwrap();
        let mount = Mount::new(file_system.clone(), "test:0:/stria", point.path(), &options, cores.clone()).unwrap();
        Cluster { mount: Some(mount), file_system, server, cores, point }
    }

    /// The mount point.
    pub fn point(&self) -> &Path {
        self.point.path()
    }

    /// A path below it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point().join(name)
    }
}

async fn start(seams: Seams) -> (Arc<Server>, Arc<FileSystem>) {
    let server = Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    let endpoint = Endpoint::Local(server.clone());
    let osts: Vec<_> = (0..OST_COUNT).map(OstIndex).collect();
    for index in &osts {
        let ost = start_ost(&seams, *index).await;
        server.add_target(ost.name(), ost.clone(), LEASE);
    }
    let mdt = start_mdt(&seams).await;
    mdt.update_map(&osts.iter().map(|index| (*index, endpoint.clone(), true)).collect::<Vec<_>>());
    server.add_target(mdt.name(), mdt.clone(), LEASE);
    let mut targets = vec![(TargetRole::Mdt(MdtIndex(0)), endpoint.clone())];
    targets.extend(osts.iter().map(|index| (TargetRole::Ost(*index), endpoint.clone())));
    let options = client::MountOptions::fixed(FSNAME, targets, rpc::Principal::of_test(1, rpc::Role::Client));
    let file_system = FileSystem::mount(seams, options).await.unwrap();
    (server, file_system)
}

/// Files get a stripe on every OST, so that the tests cross stripes.
async fn start_mdt(seams: &Seams) -> Arc<Mdt> {
    let (device, cold) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryCold::new()));
    let mut options = MdtOptions::new(FSNAME, MdtIndex(0));
    options.store = kv::Config::small();
    options.parameters.default_layout =
        FileSystemDefault { stripe_count: ResolvedCount::All, stripe_bytes: 256 << 10, automatic: false };
    Mdt::format(seams, device.clone(), cold.clone(), kv::Config::small(), FSNAME, MdtIndex(0), &Credentials::root())
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
        if !std::thread::panicking() {
            free::wait_until_free(self.point.path());
        }
        let unmounted = self.mount.take().expect("mounted once").unmount();
        let stop = async {
            self.file_system.unmount().await;
            self.server.stop().await;
        };
        self.cores.block_on(stop);
        self.cores.shutdown();
        if !std::thread::panicking() {
            assert_eq!(unmounted.unwrap(), Unmounted::Clean, "a test left something open");
        }
    }
}
