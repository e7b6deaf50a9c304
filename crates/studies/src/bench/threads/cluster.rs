//! A file system in miniature on this machine: one server with all targets and some clients, each
//! in a network namespace of its own; the server is in a control group that may limit its processor
//! time, and its targets may be limited.
//!
//! ```text
//!   bridge --- server: MGS, MDT, OSTs (cgroup)
//!         \--- client1: mount    client2: mount    ...
//! ```
//!
//! Life cycle: clients end before the server, the server before its control group, all of them
//! before the network, and the directory goes last.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use node::{key_file, tuner_state::TunerState};

use super::Setting;
use crate::bench::{
    leftovers::{Place, Server},
    network::{Host, Network},
    processor_quota::ProcessorQuota,
    systems,
};

/// Parameters of the service whose threads are varied, and of the requests to its targets.
const SERVICE: &str = "ost.OSS.ost_io";
const REQUESTS: &str = "osc.*";

/// A mounted client.
struct Client {
    mount: Server,
    _host: Host,
}

/// See the module documentation.
pub struct Cluster {
    /// Mount points of the clients.
    pub mounts: Vec<PathBuf>,
    control: PathBuf,
    clients: Vec<Client>,
    _server: Server,
    _server_host: Host,
    quota: ProcessorQuota,
    _network: Network,
    _place: Place,
}

/// What is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of each target, in MiB/s; 0: none.
    pub ost_mbps: u64,
    /// Microseconds of each request to a target.
    pub ost_latency_us: u64,
    /// Of the server's processes, in hundredths of a processor; `None`: none.
    pub processor_percent: Option<u32>,
}

impl Cluster {
    /// Starts everything.
    pub fn start(parent: Option<&Path>, osts: u16, clients: u16) -> anyhow::Result<Self> {
        let place = Place::new("stria-bench-", parent)?;
        let mut network = Network::new().context("cannot make network namespaces")?;
        let quota = ProcessorQuota::new().context("cannot make a control group")?;
        let server_host = network.host("server")?;
        let servers = place.path().join("servers");
        std::fs::create_dir(&servers)?;
        let listen = format!("{}:988", server_host.address);
        let prepare = |command: &mut Command| Ok(server_host.runs(command)?);
        let (server, address) = systems::serve(&servers, systems::Size::with_osts(osts), &listen, prepare)?;
        quota.add(server.id()).context("cannot move the server into its control group")?;
        let control = place.path().join("control");
        std::fs::create_dir(&control)?;
        // The sockets of all daemons of this cluster, and of no others of this host.
        link_socket(&servers.join("run"), server.id(), &control)?;
        let (mut mounted, mut mounts) = (Vec::new(), Vec::new());
        for number in 1..=clients {
            let host = network.host(&format!("client{number}"))?;
            let point = place.path().join(format!("mnt{number}"));
            std::fs::create_dir(&point)?;
            let mut command = systems::own_command()?;
            command.args(["mount", "--foreground", &format!("{address}:/stria")]).arg(&point);
            command.arg("--key").arg(servers.join("mgs0").join(key_file::CLIENT_KEY_FILE));
            host.runs(&mut command)?;
            let (mount, _) = systems::start(command, "mounted")?;
            link_socket(&node::ctl::default_run_dir(), mount.id(), &control)?;
            mounted.push(Client { mount, _host: host });
            mounts.push(point);
        }
        Ok(Self {
            mounts,
            control,
            clients: mounted,
            _server: server,
            _server_host: server_host,
            quota,
            _network: network,
            _place: place,
        })
    }

    /// Limits from now on.
    pub fn limit(&self, limits: Limits) -> anyhow::Result<()> {
        self.quota.limit(limits.processor_percent).context("cannot limit processor time")?;
        self.set(&[
            format!("obdfilter.*.limit_mbps={}", limits.ost_mbps),
            format!("obdfilter.*.limit_latency_us={}", limits.ost_latency_us),
            // As a device: what is idle while requests wait for a service thread is lost.
            "obdfilter.*.limit_burst_us=0".to_owned(),
        ])
    }

    /// Fixed numbers from now on.
    pub fn fix(&self, setting: Setting) -> anyhow::Result<()> {
        self.set(&[
            format!("{SERVICE}.tuner=off"),
            format!("{REQUESTS}.tuner=off"),
            format!("{SERVICE}.threads_max={}", setting.threads),
            format!("{REQUESTS}.max_rpcs_in_flight={}", setting.in_flight),
        ])
    }

    /// Tuners from now on, on the server and on all clients, which begin with `start` and choose up
    /// to `most`.
    pub fn tune(&self, start: Setting, most: Setting) -> anyhow::Result<()> {
        self.fix(most)?;
        self.set(&[format!("{SERVICE}.tuner=on:{}", start.threads), format!("{REQUESTS}.tuner=on:{}", start.in_flight)])
    }

    /// The numbers at present: service threads, and requests in flight of each client to each
    /// target.
    pub fn chosen(&self) -> anyhow::Result<(u32, Vec<u32>)> {
        let number = |line: &str| Ok(TunerState::parse(line)?.setting);
        let numbers = |prefix: &str| -> anyhow::Result<Vec<u32>> {
            self.get(&format!("{prefix}.tuner_state"))?.lines().map(number).collect()
        };
        let threads = numbers(SERVICE)?;
        let Some(threads) = threads.first() else { bail!("the server shows no number of threads") };
        Ok((*threads, numbers(REQUESTS)?))
    }

    /// What the tuners decided.
    pub fn decisions(&self) -> anyhow::Result<String> {
        Ok(self.get(&format!("{SERVICE}.tuner_log"))? + &self.get(&format!("{REQUESTS}.tuner_log"))?)
    }

    fn set(&self, assignments: &[String]) -> anyhow::Result<()> {
        self.ctl("set_param", assignments).map(drop)
    }

    fn get(&self, pattern: &str) -> anyhow::Result<String> {
        self.ctl("get_param", &["-n".to_owned(), pattern.to_owned()])
    }

    fn ctl(&self, command: &str, arguments: &[String]) -> anyhow::Result<String> {
        let mut ctl = systems::own_command()?;
        let output = ctl.arg("ctl").arg("--run-dir").arg(&self.control).arg(command).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "stria ctl {command} {arguments:?}: {}", said.trim_end());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Before the server that they wait for.
        self.clients.drain(..).for_each(|client| drop(client.mount));
    }
}

/// A link to the control socket of a daemon.
fn link_socket(run_dir: &Path, process: u32, control: &Path) -> anyhow::Result<()> {
    let name = format!("{process}.sock");
    Ok(std::os::unix::fs::symlink(run_dir.join(&name), control.join(name))?)
}
