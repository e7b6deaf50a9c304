//! A cluster of the shipped MDT and OSTs on devices in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, MountOptions};
use kv::{Config, MemoryCold};
use layout::{FileSystemDefault, ResolvedCount};
use mds::{Mdt, MdtOptions, NewRoot};
use oss::{Ost, OstDevices, OstOptions};
use parking_lot::Mutex;
use rpc::{
    Call, Endpoint, Handler, Server, ServerOptions,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest, Reply, Request,
        mgs::{ClusterMap, MapTarget, TargetRole},
    },
};
use rt::{
    Device, Seams,
    fault::{DeviceFaults, FaultyDevice},
    memory::{HostClock, MemoryDevice, MemoryTransport, SeededEntropy, ShiftedClock, Unflushed, seams},
};
use tokio::sync::watch;
use types::{ClientId, Credentials, InodeNumber, MdtIndex, ObjectId, OstIndex, Slot, Xid};

use super::{LEASE, mounted};

/// How far the clocks of OSTs are ahead of the others' clocks.
const SECONDS_AHEAD: [i64; 3] = [-30, 45, -4];

pub struct RealCluster {
    network: MemoryTransport,
    /// Run of the MDT's host.
    boot: u64,
    tables: MemoryDevice,
    cold: MemoryCold,
    options: MdtOptions,
    mdt: Mutex<Arc<Mdt>>,
    osts: Vec<Arc<Ost>>,
    /// Of the OSTs' objects.
    pub devices: Vec<MemoryDevice>,
    /// Switches of these.
    faults: Vec<DeviceFaults>,
    ost_server: Arc<Server>,
    mdt_server: Arc<Mutex<Arc<Server>>>,
    map: watch::Sender<Arc<ClusterMap>>,
    seeds: std::sync::atomic::AtomicU64,
    opens_max: usize,
}

impl RealCluster {
    /// One MDT and some OSTs; files are striped over all of them.
    pub async fn new(stripe_bytes: u64, osts: u16) -> Self {
        Self::with_stripes(stripe_bytes, ResolvedCount::All, osts).await
    }

    /// As [`RealCluster::new`]; files have this many stripes.
    pub async fn with_stripes(stripe_bytes: u64, stripe_count: ResolvedCount, osts: u16) -> Self {
        Self::with_default(FileSystemDefault { automatic: false, stripe_count, stripe_bytes }, osts).await
    }

    /// As shipped: layouts grow with their files.
    pub async fn automatic(osts: u16) -> Self {
        Self::with_default(FileSystemDefault::default(), osts).await
    }

    async fn with_default(default_layout: FileSystemDefault, osts: u16) -> Self {
        let network = MemoryTransport::new();
        let ost_server = Server::new(seams(&network, 1), ServerOptions::new(rpc::Keyring::of_test()));
        let mut roles = vec![TargetRole::Mdt(MdtIndex(0))];
        let (mut running, mut devices, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for index in (0..osts).map(OstIndex) {
            let device = MemoryDevice::new();
            let faulty = FaultyDevice::new(Arc::new(device.clone()), Arc::new(SeededEntropy::new(u64::from(index.0))));
            faults.push(faulty.faults());
            let ost = start_ost(&network, index, faulty).await;
            devices.push(device);
            ost_server.add_target(&format!("stria-{index}"), ost.clone(), LEASE);
            roles.push(TargetRole::Ost(index));
            running.push(ost);
        }
        let (tables, cold) = (MemoryDevice::new(), MemoryCold::new());
        let mut options = MdtOptions::new("stria", MdtIndex(0));
        options.store = Config::small();
        options.parameters.default_layout = default_layout;
        let (device, config) = (Arc::new(tables.clone()), Config::small());
        let formatted = Mdt::format(
            &seams(&network, 3),
            device,
            Arc::new(cold.clone()),
            config,
            "stria",
            MdtIndex(0),
            &NewRoot::of(Credentials::root()),
        )
        .await;
        formatted.expect("an empty device can be formatted");
        let (mdt, mdt_server) = start_mdt(on_host(&network, 4, 1), &tables, &cold, &options, &ost_server, osts).await;
        let map = super::cluster_map(roles, "4");
        Self {
            network,
            boot: 1,
            tables,
            cold,
            options,
            mdt: Mutex::new(mdt),
            osts: running,
            devices,
            faults,
            ost_server,
            mdt_server: Arc::new(Mutex::new(mdt_server)),
            map: watch::Sender::new(Arc::new(map)),
            seeds: 5.into(),
            opens_max: types::limits::OPENS_PER_CLIENT_MAX,
        }
    }

    /// What is removed is gone with its last close, without a grace.
    pub fn without_grace(mut self) -> Self {
        self.options.parameters.removal_grace = Duration::ZERO;
        let mdt = self.mdt.lock().clone();
        mdt.set_parameters(self.options.parameters);
        self
    }

    fn next_seed(&self) -> u64 {
        self.seeds.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// A client may have no more files open: so many that it opens without asking, and so many for
    /// which it asks.
    pub async fn with_opens_max(mut self, opens_max: usize) -> Self {
        self.opens_max = opens_max;
        self.options.opens_per_client_max = opens_max;
        self.crash_mdt().await;
        self
    }

    /// A further client.
    pub async fn mount(&self) -> Arc<FileSystem> {
        self.mount_ahead(0).await
    }

    /// A further client, whose clock is ahead by so many seconds.
    pub async fn mount_ahead(&self, seconds: i64) -> Arc<FileSystem> {
        let (mdt, ost) = (self.mdt_server.clone(), self.ost_server.clone());
        let resolve = move |target: &MapTarget| match target.role {
            TargetRole::Mdt(_) => Endpoint::Local(mdt.lock().clone()),
            TargetRole::Ost(_) => Endpoint::Local(ost.clone()),
        };
        let principal = rpc::Principal::of_test(self.next_seed(), rpc::Role::Client);
        let options = MountOptions::new(self.map.subscribe(), Arc::new(resolve), principal);
        let options = MountOptions { unasked_opens_max: self.opens_max, ..options };
        let seams = Seams { clock: Arc::new(ShiftedClock { seconds }), ..seams(&self.network, self.next_seed()) };
        mounted(seams, options).await
    }

    /// The MDT's process dies and another takes its place.
    pub async fn crash_mdt(&mut self) {
        (self.tables, self.cold) = (self.tables.crash(), self.cold.crash());
        self.replace_mdt().await;
    }

    /// The MDT's host loses power, and with it what was not flushed; it comes back.
    pub async fn lose_power_of_mdt(&mut self) {
        let entropy = SeededEntropy::new(1);
        self.boot += 1;
        self.tables = self.tables.power_loss(&entropy, Unflushed::Lost);
        self.cold = self.cold.power_loss(&entropy);
        self.replace_mdt().await;
    }

    async fn replace_mdt(&mut self) {
        let seed = self.next_seed();
        let osts = self.osts.len() as u16;
        let seams = on_host(&self.network, seed, self.boot);
        let (mdt, server) = start_mdt(seams, &self.tables, &self.cold, &self.options, &self.ost_server, osts).await;
        *self.mdt.lock() = mdt;
        let old = std::mem::replace(&mut *self.mdt_server.lock(), server);
        old.stop().await;
        self.map.send_modify(|map| {
            let mut changed = ClusterMap::clone(map);
            changed.version += 1;
            changed.targets[0].addresses = vec![seed.to_string()];
            *map = Arc::new(changed);
        });
    }

    /// Evicts a client from the MDT.
    pub async fn evict(&self, client: ClientId) {
        let server = self.mdt_server.lock().clone();
        assert!(server.evict("stria-MDT0000", client).await, "the client has a session");
    }

    /// How many sessions the MDT has.
    pub fn sessions_at_mdt(&self) -> usize {
        self.mdt_server.lock().sessions("stria-MDT0000").len()
    }

    /// An OST refuses a client from now on, as if an MDT had told it; no MDT knows.
    pub async fn refuse(&self, ost: OstIndex, client: ClientId) {
        assert_eq!(self.ask(ost, OstRequest::Evict(client, None)).await, OstReply::Done);
    }

    /// Nothing more fits on an OST: the MDT does not know yet.
    pub fn fill(&self, ost: OstIndex) {
        self.devices[usize::from(ost.0)].set_capacity(0);
    }

    /// The quota of an OST's device is used up, whatever room it has.
    pub fn use_up_quota(&self, ost: OstIndex) {
        self.faults[usize::from(ost.0)].set_quota_used_up(true);
    }

    /// Bytes that an OST's device has left.
    pub async fn left(&self, ost: OstIndex) -> u64 {
        self.devices[usize::from(ost.0)].space().await.expect("a device in memory answers").bytes_available
    }

    /// Leaves an OST's device this many bytes.
    pub async fn leave(&self, ost: OstIndex, bytes: u64) {
        let device = &self.devices[usize::from(ost.0)];
        let space = device.space().await.expect("a device in memory answers");
        device.set_capacity(space.bytes_total - space.bytes_available + bytes);
    }

    async fn ask(&self, ost: OstIndex, request: OstRequest) -> OstReply {
        let (request, ost) = (Request::Ost(request), self.osts[usize::from(ost.0)].clone());
        let call = Call::plain(ClientId(1), Slot(0), Xid(1), request, Bytes::new());
        match ost.handle(call).await.reply {
            Ok(Reply::Ost(reply)) => reply,
            other => panic!("an OST answered {other:?}"),
        }
    }

    /// The objects an OST has.
    pub async fn objects(&self, ost: OstIndex) -> Vec<ObjectId> {
        match self.ask(ost, OstRequest::ListObjects(None, 1000)).await {
            OstReply::Objects(objects) => objects.into_iter().map(|(object, _)| object).collect(),
            other => panic!("a list of objects was answered {other:?}"),
        }
    }

    /// Asks the MDT for something in the name of a client.
    pub async fn ask_mdt(&self, client: ClientId, request: MdtRequest) -> MdtReply {
        let mdt = self.mdt.lock().clone();
        let call = Call::plain(client, Slot(0), Xid(1), Request::Mdt(request), Bytes::new());
        match mdt.handle(call).await.reply {
            Ok(Reply::Mdt(reply)) if reply != MdtReply::Waiting => reply,
            other => panic!("the MDT answered {other:?}"),
        }
    }

    /// Fences an object, as an MDT does before the layout changes.
    pub async fn fence(&self, ost: OstIndex, inode: InodeNumber, slot: u32, generation: u64) {
        let fence = OstRequest::Fence(vec![ObjectId::new(inode, slot)], generation);
        assert_eq!(self.ask(ost, fence).await, OstReply::Done);
    }

    /// The MDT learns that it is the only one.
    pub fn tell_mdts(&self) {
        self.mdt.lock().update_mdts(&[]);
    }

    /// Opens known to the MDT.
    pub fn open_files(&self) -> usize {
        self.mdt.lock().open_files()
    }
}

async fn start_ost(network: &MemoryTransport, index: OstIndex, objects: FaultyDevice) -> Arc<Ost> {
    let clock = Arc::new(ShiftedClock { seconds: SECONDS_AHEAD[usize::from(index.0) % SECONDS_AHEAD.len()] });
    let seams = Seams { clock, ..seams(network, 100 + u64::from(index.0)) };
    let devices = OstDevices {
        objects: Arc::new(objects),
        journal: Arc::new(MemoryDevice::new()),
        cold: Arc::new(MemoryCold::new()),
        throughput: Arc::default(),
    };
    Ost::format(&seams, &devices, "stria", index, Config::small()).await.expect("empty devices can be formatted");
    let options = OstOptions { reserve_bytes: 0, ..OstOptions::default() };
    Ost::open(seams, devices, "stria", index, options, Config::small()).await.expect("formatted devices open")
}

/// Seams in a run of the MDT's host.
fn on_host(network: &MemoryTransport, seed: u64, boot: u64) -> Seams {
    Seams { clock: Arc::new(HostClock { boot }), ..seams(network, seed) }
}

async fn start_mdt(
    seams: Seams,
    tables: &MemoryDevice,
    cold: &MemoryCold,
    options: &MdtOptions,
    ost_server: &Arc<Server>,
    osts: u16,
) -> (Arc<Mdt>, Arc<Server>) {
    let (device, cold) = (Arc::new(tables.clone()), Arc::new(cold.clone()));
    let mdt = Mdt::open(seams.clone(), device, cold, options.clone()).await.expect("a formatted device opens");
    let endpoints: Vec<_> =
        (0..osts).map(|index| (OstIndex(index), Endpoint::Local(ost_server.clone()), true)).collect();
    mdt.update_map(&endpoints);
    let server = Server::new(seams, ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target("stria-MDT0000", mdt.clone(), LEASE);
    (mdt, server)
}
