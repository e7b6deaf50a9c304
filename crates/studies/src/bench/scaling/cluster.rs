//! A file system on this machine whose metadata servers are processes of their own, each in a
//! control group that limits its processor time:
//!
//! ```text
//!   this process: native clients --- TCP --- MGS and OST (not limited)
//!                                       \--- MDS 0: MDT0 (cgroup)    MDS 1: MDT1 (cgroup)    ...
//!                        with two each:    MDS 0: MDT0, MDT1          MDS 1: MDT2, MDT3       ...
//! ```
//!
//! Life cycle: clients end before the servers, a server before its control group, and the directory
//! goes last.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use client::FileSystem;
use node::{Node, NodeOptions, key_file};
use rpc::auth::KeyKind;
use rt::{Address, real::Cores};
use types::MdtIndex;

use crate::bench::{
    leftovers::{Place, Server},
    processor_quota::ProcessorQuota,
    systems, workers,
};

const FSNAME: &str = "stria";
/// Memory of each target's tables: more than what a run makes.
const MEMORY_MIB: u32 = 256;
/// Until all clients know all MDTs.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A metadata server. Fields are dropped in this order.
struct Mds {
    server: Server,
    quota: ProcessorQuota,
}

/// See the module documentation.
pub struct Cluster {
    /// Native clients.
    pub clients: Vec<Arc<FileSystem>>,
    /// Where their tasks run.
    pub cores: Cores,
    node: Option<Node>,
    mds: Vec<Mds>,
    mdts: u16,
    _others: Server,
    _place: Place,
}

impl Cluster {
    /// Starts so many metadata servers, with so many MDTs each, and clients.
    pub fn start(parent: Option<&Path>, (servers, each): (u16, u16), clients: u16) -> anyhow::Result<Self> {
        let place = Place::new("stria-bench-", parent)?;
        let head = format!(
            "fsname = {FSNAME:?}\nlisten = \"127.0.0.1:0\"\nmemory_mib = {MEMORY_MIB}\nrun_dir = {:?}\n",
            place.path().join("run")
        );
        let target = |role: &str, index: u16| {
            let dir = place.path().join(format!("{role}{index}"));
            format!("\n[[target]]\nrole = {role:?}\nindex = {index}\ndir = {dir:?}\n")
        };
        let config = format!("{head}{}{}", target("mgs", 0), target("ost", 0));
        let (others, address) = systems::serve_configured(&place.path().join("mgs.toml"), &config, |_| Ok(()))?;
        let key = |file: &str| place.path().join("mgs0").join(file);
        let mut mds = Vec::new();
        for index in 0..servers {
            // A host with less than one processor has one core.
            let own = format!("mgs = {address:?}\ncores = 1\nkey = {:?}\n", key(key_file::SERVER_KEY_FILE));
            let targets: String = (index * each..(index + 1) * each).map(|mdt| target("mdt", mdt)).collect();
            let config = format!("{head}{own}{targets}");
            let path = place.path().join(format!("mds{index}.toml"));
            let (server, _) = systems::serve_configured(&path, &config, |_| Ok(()))?;
            let quota = ProcessorQuota::named(&format!("mds{index}")).context("cannot make a control group")?;
            quota.add(server.id()).context("cannot move a server into its control group")?;
            mds.push(Mds { server, quota });
        }
        let keys = key_file::read(&key(key_file::CLIENT_KEY_FILE), FSNAME, KeyKind::Client)?;
        let options = NodeOptions::client(&Address::from(address.as_str()).into(), FSNAME, rpc::Role::Client, keys);
        let cores = Cores::start_all()?;
        let node = cores.block_on(Node::start(cores.clone(), options))?;
        let (none, mdts) = (Vec::new(), servers * each);
        let mut cluster = Self { clients: none, cores, node: Some(node), mds, mdts, _others: others, _place: place };
        for _ in 0..clients {
            let node = cluster.node.as_ref().context("the cluster is running")?;
            let client = cluster.cores.block_on(node.mount_client())?;
            cluster.clients.push(client);
        }
        cluster.wait_until_known()?;
        Ok(cluster)
    }

    fn wait_until_known(&self) -> anyhow::Result<()> {
        let (mdts, begun) = (self.mdts, Instant::now());
        let known = |client: &Arc<FileSystem>| (0..mdts).all(|mdt| client.cached_locks(MdtIndex(mdt)).is_ok());
        while !self.clients.iter().all(known) {
            ensure!(begun.elapsed() < KNOWN_WITHIN, "clients do not know all of {mdts} metadata targets");
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Metadata targets of all servers.
    pub fn mdts(&self) -> u16 {
        self.mdts
    }

    /// Processor time of each metadata server from now on, in hundredths of a processor; `None`: no
    /// limit.
    pub fn limit(&self, percent: Option<u32>) -> anyhow::Result<()> {
        let limit = |mds: &Mds| mds.quota.limit(percent);
        self.mds.iter().try_for_each(limit).context("cannot limit processor time")
    }

    /// Processor time that each metadata server has used.
    pub fn server_times(&self) -> Vec<Duration> {
        self.mds.iter().map(|mds| workers::cpu_of(mds.server.id())).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What ends has no limit.
        if let Err(error) = self.limit(None) {
            eprintln!("{error:#}");
        }
        self.clients.clear();
        if let Some(Err(error)) = self.node.take().map(|node| self.cores.block_on(node.stop())) {
            eprintln!("stopping clients: {error:#}");
        }
        self.cores.shutdown();
    }
}
