//! One server process of a simulated cluster: how each role opens its target, serves it and
//! registers it.
//!
//! The same steps as in the daemons, over simulated devices. Life cycle: [`format`] once, then
//! [`open`] by every process; the value that [`open`] returns lives as long as the process.

use std::{fmt, sync::Arc, time::Duration};

use kv::Store;
use layout::FileSystemDefault;
use mds::{Mdt, MdtOptions};
use mgs::{Mgs, Registrar, Watcher, registrar};
use oss::{Ost, OstDevices, OstOptions};
use rpc::{
    Endpoint, Handler, Import, ImportOptions, Keyring, Principal, Server, ServerOptions,
    message::mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
};
use rt::{Address, Addresses, Seams};
use types::{Credentials, MdtIndex, OstIndex};

use crate::device::Devices;

/// Name of the simulated file system.
pub const FSNAME: &str = "lab";
/// Its only MDT.
pub const MDT: MdtIndex = MdtIndex(0);

/// What a server process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The management server.
    Mgs,
    /// The metadata server, with MDT 0.
    Mds,
    /// An object storage server, with the OST of this index.
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

    /// Its target in the cluster map; the MGS has none.
    pub fn target(self) -> Option<TargetRole> {
        match self {
            Role::Mgs => None,
            Role::Mds => Some(TargetRole::Mdt(MDT)),
            Role::Oss(index) => Some(TargetRole::Ost(OstIndex(index))),
        }
    }

    /// Name under which its target is connected to.
    pub fn target_name(self) -> String {
        self.target().map_or_else(|| mgs::TARGET_NAME.to_owned(), |role| role.target_name(FSNAME))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Mgs => f.write_str("mgs"),
            Role::Mds => f.write_str("mds"),
            Role::Oss(index) => write!(f, "oss{index}"),
        }
    }
}

/// Settings of all servers and clients of a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A session that sends nothing for this long is evicted; also the MDT's recovery window.
    pub lease: Duration,
    /// Settings of connections.
    pub import: ImportOptions,
    /// Settings of tables.
    pub store: kv::Config,
    /// Settings of OSTs.
    pub ost: OstOptions,
    /// Layout of new files.
    pub layout: FileSystemDefault,
}

/// What a running server process holds.
pub struct Serving {
    /// The server.
    pub server: Arc<Server>,
    /// Its object storage target, if it has one.
    pub ost: Option<Arc<Ost>>,
    /// Its metadata target, if it has one.
    pub mdt: Option<Arc<Mdt>>,
    /// Its management service, if it has one.
    pub mgs: Option<Arc<Mgs>>,
    /// The cluster map as it knows it, if it follows it.
    pub maps: Option<Watcher>,
    _registrar: Option<Registrar>,
}

/// Makes a role's target on empty devices.
pub async fn format(role: Role, seams: &Seams, devices: &Devices, settings: &Settings) -> Result<(), String> {
    match role {
        // The MGS makes its records when it is opened first.
        Role::Mgs => Ok(()),
        Role::Mds => {
            let (journal, cold, store) = (devices.journal.clone(), devices.cold.clone(), settings.store.clone());
            let formatted = Mdt::format(seams, journal, cold, store, FSNAME, MDT, &Credentials::root()).await;
            formatted.map_err(|error| error.to_string())
        }
        Role::Oss(index) => {
            let store = settings.store.clone();
            let formatted = Ost::format(seams, &ost_devices(devices), FSNAME, OstIndex(index), store).await;
            formatted.map(drop).map_err(|error| error.to_string())
        }
    }
}

/// Opens a role's target and serves it.
pub async fn open(role: Role, seams: &Seams, devices: Devices, settings: &Settings) -> Result<Serving, String> {
    let server = Server::new(seams.clone(), ServerOptions { contain_panics: false, ..ServerOptions::new(keys()) });
    let mut serving = Serving { server, ost: None, mdt: None, mgs: None, maps: None, _registrar: None };
    let handler: Arc<dyn Handler> = match role {
        Role::Mgs => serving.mgs.insert(open_mgs(seams, devices, settings).await?).clone(),
        Role::Mds => {
            let opened = Mdt::open(seams.clone(), devices.journal, devices.cold, mdt_options(settings)).await;
            serving.mdt.insert(opened.map_err(|error| error.to_string())?).clone()
        }
        Role::Oss(index) => {
            let (ost, store) = (settings.ost.clone(), settings.store.clone());
            let opened = Ost::open(seams.clone(), ost_devices(&devices), FSNAME, OstIndex(index), ost, store).await;
            serving.ost.insert(opened.map_err(|error| error.to_string())?).clone()
        }
    };
    serving.server.add_target(&role.target_name(), handler, settings.lease);
    serving.server.listen(&role.address()).await.map_err(|error| format!("cannot listen: {error}"))?;
    if let Some(target) = role.target() {
        let import = mgs_import(seams, &role.host(), settings);
        serving._registrar = Some(register(seams, &serving, target, import.clone(), role));
        if let Some(mdt) = &serving.mdt {
            let watcher = Watcher::start(seams, import);
            follow_map(seams, mdt.clone(), &watcher);
            serving.maps = Some(watcher);
        }
    }
    Ok(serving)
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

fn mdt_options(settings: &Settings) -> MdtOptions {
    let mut options = MdtOptions::new(FSNAME, MDT);
    options.recovery_window = settings.lease;
    options.store = settings.store.clone();
    options.import = settings.import.clone();
    options.keys = keys();
    options.parameters.default_layout = settings.layout;
    options.audits = true;
    options
}

fn register(seams: &Seams, serving: &Serving, target: TargetRole, import: Import, role: Role) -> Registrar {
    let ost = serving.ost.clone();
    let uuid = ost.as_ref().map_or_else(|| format!("{}_UUID", role.target_name()), |ost| ost.uuid());
    let addresses = vec![role.address().to_string()];
    let identity = registrar::Identity { fsname: FSNAME.to_owned(), role: target, uuid, addresses };
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

/// Tells the MDT where the OSTs are, now and whenever that changes.
fn follow_map(seams: &Seams, mdt: Arc<Mdt>, watcher: &Watcher) {
    let mut maps = watcher.subscribe();
    let follow = async move {
        loop {
            let map = Arc::clone(&maps.borrow_and_update());
            // Version 0 says that nothing is known yet, not that there are no OSTs.
            if map.version > 0 {
                mdt.update_pools(&map.pools);
                mdt.update_map(&ost_endpoints(&map));
            }
            if maps.changed().await.is_err() {
                return;
            }
        }
    };
    seams.spawn.spawn("map_follower", Box::pin(follow));
}

fn ost_endpoints(map: &ClusterMap) -> Vec<(OstIndex, Endpoint, bool)> {
    let ost = |target: &MapTarget| match target.role {
        TargetRole::Ost(index) => Some((index, endpoint(target), target.state == TargetState::Active)),
        TargetRole::Mdt(_) => None,
    };
    map.targets.iter().filter_map(ost).collect()
}
