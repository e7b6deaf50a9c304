//! One server process of a simulated cluster: how each role opens its target, serves it and
//! registers it.
//!
//! The same steps as in the daemons, over simulated devices. Life cycle: [`format`] once, then
//! [`open`] by every process; the value that [`open`] returns lives as long as the process.

use std::{fmt, sync::Arc, time::Duration};

use kv::Store;
use layout::FileSystemDefault;
use mds::{Mdt, MdtOptions, NewRoot};
use mgs::{Mgs, Registrar, Watcher, registrar};
use oss::{Engine, Ost, OstDevices, OstOptions, directory::device::DEVICE_FILE, tables_part::TablesPart};
use rpc::{
    Endpoint, Handler, Import, ImportOptions, Keyring, Principal, Server, ServerOptions,
    message::mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
};
use rt::{Address, Addresses, Seams};
use types::{Credentials, MdtIndex, OstIndex, limits::BLOCK_BYTES};

use crate::{device::Devices, upper_cache::UpperPlan};

/// Name of the simulated file system.
pub const FSNAME: &str = "lab";
/// Its first MDT, with the root directory; the only one in most runs.
pub const MDT: MdtIndex = MdtIndex(0);

/// What a server process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The management server.
    Mgs,
    /// A metadata server, with the MDT of this index.
    Mds(u16),
    /// An object storage server, numbered from 0. Where servers have one target each, the OST of
    /// this index is on it.
    Oss(u16),
}

impl Role {
    /// Name of its host.
    pub fn host(self) -> String {
        self.to_string()
    }

    /// Where it listens, before and after every restart.
    pub fn address(self) -> Address {
        Address(format!("{self}:988").into())
    }

    /// Its target in the cluster map, if servers have one OST each; the MGS has none.
    pub fn target(self) -> Option<TargetRole> {
        match self {
            Role::Mgs => None,
            Role::Mds(index) => Some(TargetRole::Mdt(MdtIndex(index))),
            Role::Oss(index) => Some(TargetRole::Ost(OstIndex(index))),
        }
    }

    /// The OSTs that an object storage server has if each has so many; none of others.
    pub fn osts(self, each: u16) -> impl Iterator<Item = OstIndex> {
        let osts = match self {
            Role::Oss(server) => server * each..(server + 1) * each,
            Role::Mgs | Role::Mds(_) => 0..0,
        };
        osts.map(OstIndex)
    }

    /// Name under which its target is connected to, if servers have one OST each.
    pub fn target_name(self) -> String {
        self.target().map_or_else(|| mgs::TARGET_NAME.to_owned(), |role| role.target_name(FSNAME))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Mgs => f.write_str("mgs"),
            Role::Mds(0) => f.write_str("mds"),
            Role::Mds(index) => write!(f, "mds{index}"),
            Role::Oss(index) => write!(f, "oss{index}"),
        }
    }
}

/// Which OSTs keep their objects on devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engines {
    /// None: all have host files.
    #[default]
    HostFiles,
    /// All.
    Devices,
    /// Those with odd indices.
    Mixed,
    /// All, with their tables on the same device.
    OneDevice,
    /// Those with odd indices, with their tables on the same device.
    MixedOneDevice,
}

/// Blocks of a device: 8 allocation groups.
const DEVICE_BLOCKS: u64 = 1 << 18;

/// Of these, blocks of the tables, if they are on the device: enough for every workload.
const TABLES_BLOCKS: u64 = 1 << 13;

impl Engines {
    /// The engine of an OST whose tables have this configuration.
    pub fn of(self, ost: OstIndex, store: &kv::Config) -> Engine {
        let tables = TablesPart {
            blocks: TABLES_BLOCKS,
            segment_bytes: store.segment_bytes as u32,
            segments: store.segments_max,
            node_bytes: 4096,
            alignment: 4096,
        };
        match self {
            Engines::Mixed | Engines::MixedOneDevice if ost.0.is_multiple_of(2) => Engine::Directory,
            Engines::HostFiles => Engine::Directory,
            Engines::Devices | Engines::Mixed => Engine::on_device(DEVICE_BLOCKS),
            Engines::OneDevice | Engines::MixedOneDevice => {
                Engine::Blocks { blocks: DEVICE_BLOCKS, tables: Some(tables) }
            }
        }
    }

    /// The same OSTs, with their tables on their devices.
    pub fn with_tables(self) -> Self {
        match self {
            Engines::Devices => Engines::OneDevice,
            Engines::Mixed => Engines::MixedOneDevice,
            other => other,
        }
    }
}

/// Settings of all servers and clients of a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A session that sends nothing for this long is evicted; also the MDT's recovery window.
    pub lease: Duration,
    /// How long clients have to give back a lock of the MDT: its `ldlm_timeout`.
    pub lock_timeout: Duration,
    /// Settings of connections.
    pub import: ImportOptions,
    /// Settings of tables.
    pub store: kv::Config,
    /// Whether MDTs check all of their tables after each commit: it finds bugs, and takes time with
    /// every file that there is.
    pub mdt_audits: bool,
    /// Settings of OSTs.
    pub ost: OstOptions,
    /// Where OSTs keep their objects.
    pub engines: Engines,
    /// Layout of new files.
    pub layout: FileSystemDefault,
    /// Caches above the clients, if they have any.
    pub upper_cache: Option<UpperPlan>,
    /// With how many names directories split by themselves, if they do.
    pub split_names: Option<u64>,
}

/// What a running server process holds.
pub struct Serving {
    /// The server.
    pub server: Arc<Server>,
    /// Its object storage targets.
    pub osts: Vec<Arc<Ost>>,
    /// Its metadata target, if it has one.
    pub mdt: Option<Arc<Mdt>>,
    /// Its management service, if it has one.
    pub mgs: Option<Arc<Mgs>>,
    /// The cluster map as it knows it, if it follows it.
    pub maps: Option<Watcher>,
    _registrars: Vec<Registrar>,
}

/// A target of a server with what a process has opened of its disk.
pub struct TargetDevices {
    /// Which OST it is, if it is one.
    pub ost: Option<OstIndex>,
    /// Its disk.
    pub devices: Devices,
}

/// Makes a role's targets on empty devices.
pub async fn format(role: Role, seams: &Seams, targets: &[TargetDevices], settings: &Settings) -> Result<(), String> {
    for target in targets {
        format_one(role, seams, target, settings).await?;
    }
    Ok(())
}

async fn format_one(role: Role, seams: &Seams, target: &TargetDevices, settings: &Settings) -> Result<(), String> {
    let TargetDevices { ost, devices } = target;
    match role {
        // The MGS makes its records when it is opened first.
        Role::Mgs => Ok(()),
        Role::Mds(index) => {
            let (journal, cold, store) = (devices.journal.clone(), devices.cold.clone(), settings.store.clone());
            let owner = Credentials::root();
            let formatted =
                Mdt::format(seams, journal, cold, store, FSNAME, MdtIndex(index), &NewRoot::of(owner)).await;
            formatted.map_err(|error| error.to_string())
        }
        Role::Oss(_) => {
            let (index, store) = (ost.ok_or("an object storage server has OSTs")?, settings.store.clone());
            let engine = settings.engines.of(index, &store);
            if let Engine::Blocks { blocks, tables: None } = engine {
                let made = devices.objects.truncate(DEVICE_FILE, blocks * BLOCK_BYTES).await;
                made.map_err(|error| error.to_string())?;
            }
            let formatted = Ost::format_with(seams, &ost_devices(devices), FSNAME, index, engine, store).await;
            formatted.map(drop).map_err(|error| error.to_string())
        }
    }
}

/// Opens a role's targets and serves them.
pub async fn open(
    role: Role,
    seams: &Seams,
    targets: Vec<TargetDevices>,
    settings: &Settings,
) -> Result<Serving, String> {
    let server = Server::new(seams.clone(), ServerOptions { contain_panics: false, ..ServerOptions::new(keys()) });
    let mut serving = Serving { server, osts: Vec::new(), mdt: None, mgs: None, maps: None, _registrars: Vec::new() };
    for TargetDevices { ost, devices } in targets {
        let (name, handler) = open_target(&mut serving, (role, ost), seams, devices, settings).await?;
        serving.server.add_target(&name, handler, settings.lease);
    }
    serving.server.listen(&role.address()).await.map_err(|error| format!("cannot listen: {error}"))?;
    if let (Some(mdt), Some(target)) = (serving.mdt.clone(), role.target()) {
        let import = mgs_import(seams, &role.host(), settings);
        let identity = identity(role, target, format!("{}_UUID", role.target_name()));
        serving._registrars.push(register(seams, None, identity, import.clone()));
        let watcher = Watcher::start(seams, import);
        follow_map(seams, mdt, &watcher);
        serving.maps = Some(watcher);
    }
    for ost in &serving.osts {
        let import = mgs_import(seams, &role.host(), settings);
        let identity = identity(role, TargetRole::Ost(ost.index()), ost.uuid());
        serving._registrars.push(register(seams, Some(ost.clone()), identity, import));
    }
    Ok(serving)
}

/// Opens one target; its name, and what executes its requests.
async fn open_target(
    serving: &mut Serving,
    (role, ost): (Role, Option<OstIndex>),
    seams: &Seams,
    devices: Devices,
    settings: &Settings,
) -> Result<(String, Arc<dyn Handler>), String> {
    Ok(match role {
        Role::Mgs => {
            let mgs = serving.mgs.insert(open_mgs(seams, devices, settings).await?).clone();
            (role.target_name(), mgs)
        }
        Role::Mds(index) => {
            let options = mdt_options(settings, MdtIndex(index));
            let opened = Mdt::open(seams.clone(), devices.journal, devices.cold, options).await;
            let mdt = serving.mdt.insert(opened.map_err(|error| error.to_string())?).clone();
            (role.target_name(), mdt)
        }
        Role::Oss(_) => {
            let index = ost.ok_or("an object storage server has OSTs")?;
            let (options, store) = (settings.ost.clone(), settings.store.clone());
            let opened = Ost::open(seams.clone(), ost_devices(&devices), FSNAME, index, options, store).await;
            let ost = opened.map_err(|error| error.to_string())?;
            serving.osts.push(ost.clone());
            (ost.name().to_owned(), ost)
        }
    })
}

/// The keys of the cluster.
fn keys() -> Keyring {
    Keyring::server("5a".repeat(32).parse().expect("a key has 64 digits"))
}

/// A new client of a role on this host.
pub fn principal(seams: &Seams, role: rpc::Role, host: &str) -> Principal {
    Principal::random(&*seams.entropy, role, host, host, keys())
}

/// A connection to the MGS.
pub fn mgs_import(seams: &Seams, name: &str, settings: &Settings) -> Import {
    let endpoint = Endpoint::Remote(Role::Mgs.address().into());
    // No process here is hostile: all have the server key.
    let principal = principal(seams, rpc::Role::Ost, name);
    Import::new(seams.clone(), mgs::TARGET_NAME, endpoint, principal, settings.import.clone(), None)
}

/// The way to a target of the cluster map.
pub fn endpoint(target: &MapTarget) -> Endpoint {
    Endpoint::Remote(Addresses::of_texts(&target.addresses))
}

async fn open_mgs(seams: &Seams, devices: Devices, settings: &Settings) -> Result<Arc<Mgs>, String> {
    let store = Store::open(seams.clone(), devices.journal, devices.cold, settings.store.clone(), &mut |_, _| {}).await;
    Mgs::open(seams, store.map_err(|error| error.to_string())?, FSNAME).await.map_err(|error| error.to_string())
}

fn ost_devices(devices: &Devices) -> OstDevices {
    OstDevices {
        objects: devices.objects.clone(),
        journal: devices.journal.clone(),
        cold: devices.cold.clone(),
        throughput: Arc::default(),
    }
}

fn mdt_options(settings: &Settings, index: MdtIndex) -> MdtOptions {
    let mut options = MdtOptions::new(FSNAME, index);
    options.recovery_window = settings.lease;
    options.store = settings.store.clone();
    options.import = settings.import.clone();
    options.keys = keys();
    options.parameters.default_layout = settings.layout;
    options.parameters.lock_timeout = settings.lock_timeout;
    // Absent MDTs come back, however long a seed stops them: what needs one waits for it.
    options.parameters.mdt_silence = Duration::ZERO;
    options.parameters.splits_directories = settings.split_names.is_some();
    options.parameters.split_names = settings.split_names.unwrap_or(options.parameters.split_names);
    // As often as is possible.
    options.parameters.merge_names = options.parameters.split_names;
    options.audits = settings.mdt_audits;
    options
}

/// What a target tells of itself.
fn identity(role: Role, target: TargetRole, uuid: String) -> registrar::Identity {
    registrar::Identity { fsname: FSNAME.to_owned(), role: target, uuid, addresses: vec![role.address().to_string()] }
}

fn register(seams: &Seams, ost: Option<Arc<Ost>>, identity: registrar::Identity, import: Import) -> Registrar {
    let measure: registrar::Measure = Arc::new(move || {
        let ost = ost.clone();
        Box::pin(async move {
            match ost {
                Some(ost) => (ost.space().await.unwrap_or_default(), ost.condition()),
                None => Default::default(),
            }
        })
    });
    Registrar::start(seams, import, identity, measure)
}

/// Tells the MDT where the OSTs and other MDTs are, now and whenever that changes.
fn follow_map(seams: &Seams, mdt: Arc<Mdt>, watcher: &Watcher) {
    let mut maps = watcher.subscribe();
    let follow = async move {
        loop {
            let map = Arc::clone(&maps.borrow_and_update());
            // Version 0 says that nothing is known yet, not that there are no OSTs.
            if map.version > 0 {
                mdt.update_pools(&map.pools);
                mdt.update_map(&ost_endpoints(&map));
                mdt.update_mdts(&mdt_endpoints(&map));
            }
            if maps.changed().await.is_err() {
                return;
            }
        }
    };
    seams.spawn.spawn("map_follower", Box::pin(follow));
}

fn mdt_endpoints(map: &ClusterMap) -> Vec<(MdtIndex, Endpoint, bool)> {
    let mdt = |target: &MapTarget| match target.role {
        TargetRole::Mdt(index) => Some((index, endpoint(target), target.state == TargetState::Active)),
        TargetRole::Ost(_) => None,
    };
    map.targets.iter().filter_map(mdt).collect()
}

fn ost_endpoints(map: &ClusterMap) -> Vec<(OstIndex, Endpoint, bool)> {
    let ost = |target: &MapTarget| match target.role {
        TargetRole::Ost(index) => Some((index, endpoint(target), target.state == TargetState::Active)),
        TargetRole::Mdt(_) => None,
    };
    map.targets.iter().filter_map(ost).collect()
}
