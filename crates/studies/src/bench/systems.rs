//! The file systems a benchmark compares: a local directory, and StriaFS in its different forms,
//! started for the run.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use rt::real::Cores;

use super::{
    leftovers::Server,
    ranks::{Access, connect},
    target::{BenchTarget, NativeTarget, PosixTarget},
    workers,
};
use node::{Node, NodeOptions, key_file};

/// Forms of a file system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum SystemKind {
    /// A directory of the local file system: the baseline.
    Local,
    /// stria up: everything in one process, through the mount.
    Mount,
    /// Servers in another process over TCP, through the mount.
    TcpMount,
    /// The native client with the servers in its own process.
    Native,
    /// The native client, servers in another process over TCP.
    TcpNative,
}

impl SystemKind {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            SystemKind::Local => "local",
            SystemKind::Mount => "mount",
            SystemKind::TcpMount => "tcp-mount",
            SystemKind::Native => "native",
            SystemKind::TcpNative => "tcp-native",
        }
    }
}

/// Numbers of targets and clients.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Metadata targets.
    pub mdts: u16,
    /// Object storage targets.
    pub osts: u16,
    /// Clients: mounts, or native ones. A local directory is the same for all.
    pub clients: u16,
}

impl Size {
    /// One client, one MDT and so many OSTs.
    pub fn with_osts(osts: u16) -> Self {
        Self { mdts: 1, osts, clients: 1 }
    }
}

/// A running system. Dropping it stops and removes everything.
pub struct System {
    /// Which.
    pub kind: SystemKind,
    /// What operations go to.
    pub target: Box<dyn BenchTarget>,
    /// Further clients of it.
    pub others: Vec<Box<dyn BenchTarget>>,
    /// Directory to give to programs, where there is one.
    pub directory: Option<PathBuf>,
    /// How other processes use it: a client each. None: they cannot.
    pub(super) access: Vec<Access>,
    children: Vec<Server>,
    node: Option<(Node, Cores)>,
    place: PathBuf,
}

impl System {
    /// Starts a system whose data live below `place`, a directory of its own.
    pub fn start(kind: SystemKind, place: PathBuf, osts: u16) -> anyhow::Result<Self> {
        Self::start_sized(kind, place, Size::with_osts(osts))
    }

    /// The same with several MDTs and clients.
    pub fn start_sized(kind: SystemKind, place: PathBuf, size: Size) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&place)?;
        match kind {
            SystemKind::Local => {
                let directory = place.join("local");
                std::fs::create_dir(&directory)?;
                Ok(Self::mounted(kind, vec![directory], Vec::new(), place))
            }
            SystemKind::Mount => {
                let mount = place.join("mnt");
                // Further mounts are processes of their own.
                let listens = size.clients > 1;
                let (child, address) = up(&place, size, &mount, listens, &[])?;
                let mut mounts = vec![mount];
                let mut children = Vec::new();
                for client in 1..size.clients {
                    let key = place.join("data/mgs").join(key_file::CLIENT_KEY_FILE);
                    let (child, mount) = mount_at(&place, client, address.as_deref(), &key)?;
                    mounts.push(mount);
                    children.push(child);
                }
                children.push(child);
                Ok(Self::mounted(kind, mounts, children, place))
            }
            SystemKind::TcpMount => {
                let (server, address) = serve(&place, size, "127.0.0.1:0", |_| Ok(()))?;
                let key = place.join("mgs0").join(key_file::CLIENT_KEY_FILE);
                let (mut mounts, mut children) = (Vec::new(), Vec::new());
                for client in 0..size.clients {
                    let (child, mount) = mount_at(&place, client, Some(&address), &key)?;
                    mounts.push(mount);
                    children.push(child);
                }
                children.push(server);
                Ok(Self::mounted(kind, mounts, children, place))
            }
            SystemKind::Native => {
                let cores = Cores::start_all()?;
                let options = NodeOptions::up(place.join("data"), size.mdts, size.osts);
                options.format_missing()?;
                let node = cores.block_on(Node::start(cores.clone(), options))?;
                Self::native(kind, (node, cores), Vec::new(), (place, size.clients))
            }
            SystemKind::TcpNative => {
                let (server, address) = serve(&place, size, "127.0.0.1:0", |_| Ok(()))?;
                let key = place.join("mgs0").join(key_file::CLIENT_KEY_FILE);
                let node = connect(&address, &key)?;
                let mut system = Self::native(kind, node, vec![server], (place, size.clients))?;
                system.access = vec![Access::Server { address, key }];
                Ok(system)
            }
        }
    }

    /// `stria up` with these parameters, mounted.
    pub fn up(place: PathBuf, osts: u16, parameters: &[String]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&place)?;
        let mount = place.join("mnt");
        let (child, _) = up(&place, Size::with_osts(osts), &mount, false, parameters)?;
        Ok(Self::mounted(SystemKind::Mount, vec![mount], vec![child], place))
    }

    /// Directories of clients; children end in this order.
    fn mounted(kind: SystemKind, directories: Vec<PathBuf>, children: Vec<Server>, place: PathBuf) -> Self {
        let target = |directory: &PathBuf| -> Box<dyn BenchTarget> { Box::new(PosixTarget::new(directory, false)) };
        let mut targets = directories.iter().map(target);
        let first = targets.next().expect("a system has a client");
        let others = targets.collect();
        let (directory, access) =
            (directories.first().cloned(), directories.into_iter().map(Access::Directory).collect());
        Self { kind, target: first, others, directory, access, children, node: None, place }
    }

    /// Clients of a process with these cores.
    fn native(
        kind: SystemKind,
        (node, cores): (Node, Cores),
        children: Vec<Server>,
        (place, clients): (PathBuf, u16),
    ) -> anyhow::Result<Self> {
        let client = || -> anyhow::Result<Box<dyn BenchTarget>> {
            let file_system = cores.block_on(node.mount_client())?;
            Ok(Box::new(NativeTarget::new(file_system, cores.clone())))
        };
        let target = client()?;
        let others = (1..clients).map(|_| client()).collect::<anyhow::Result<_>>()?;
        Ok(Self {
            kind,
            target,
            others,
            directory: None,
            access: Vec::new(),
            children,
            node: Some((node, cores)),
            place,
        })
    }

    /// Processor time used so far by this process and all servers and clients of the system.
    pub fn cpu(&self) -> Duration {
        workers::own_cpu() + self.children.iter().map(|child| workers::cpu_of(child.id())).sum::<Duration>()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if let Some((node, cores)) = self.node.take() {
            if let Err(error) = cores.block_on(node.stop()) {
                eprintln!("stopping {}: {error:#}", self.kind.name());
            }
            cores.shutdown();
        }
        // In order: clients before their servers.
        self.children.clear();
        if let Err(error) = std::fs::remove_dir_all(&self.place) {
            eprintln!("cannot remove {}: {error}", self.place.display());
        }
    }
}

/// This program.
pub(super) fn own_command() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's executable")?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).env("STRIA_LOG", "warn");
    Ok(command)
}

/// `stria up`; also the address at which others reach it, if it `listens`.
fn up(
    place: &Path,
    size: Size,
    mount: &Path,
    listens: bool,
    parameters: &[String],
) -> anyhow::Result<(Server, Option<String>)> {
    let mut command = own_command()?;
    command.arg("up").arg("--dir").arg(place.join("data")).args(["--osts", &size.osts.to_string()]);
    command.args(["--mdts", &size.mdts.to_string()]).arg("--mount").arg(mount);
    if listens {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    for parameter in parameters {
        command.args(["--set", parameter]);
    }
    let (child, said) = start(command, "mounted")?;
    let address = said.split_once("serving other hosts at ").and_then(|(_, rest)| rest.split(": ").next());
    Ok((child, address.map(str::to_owned)))
}

/// A mount of a client by itself; `address`: of the MGS.
fn mount_at(place: &Path, client: u16, address: Option<&str>, key: &Path) -> anyhow::Result<(Server, PathBuf)> {
    let address = address.context("the servers did not say at which address they listen")?;
    let mount = place.join(format!("mnt{client}"));
    std::fs::create_dir(&mount)?;
    let mut command = own_command()?;
    command.args(["mount", "--foreground", &format!("{address}:/stria")]).arg(&mount);
    command.arg("--key").arg(key);
    let (child, _) = start(command, "mounted")?;
    Ok((child, mount))
}

/// Servers of all roles in one process of their own, which listen there, after `prepare` has said
/// where the process runs; returns the address of the MGS.
pub(super) fn serve(
    place: &Path,
    size: Size,
    listen: &str,
    prepare: impl FnOnce(&mut Command) -> anyhow::Result<()>,
) -> anyhow::Result<(Server, String)> {
    let mut config = format!("fsname = \"stria\"\nlisten = {listen:?}\nrun_dir = {:?}\n", place.join("run"));
    for (role, count) in [("mgs", 1), ("mdt", size.mdts), ("ost", size.osts)] {
        for index in 0..count {
            let dir = place.join(format!("{role}{index}"));
            config.push_str(&format!("\n[[target]]\nrole = \"{role}\"\nindex = {index}\ndir = {dir:?}\n"));
        }
    }
    serve_configured(&place.join("serve.toml"), &config, prepare)
}

/// Servers with this configuration, which is written to a file, in a process of their own; returns
/// the address at which they listen.
pub(super) fn serve_configured(
    path: &Path,
    config: &str,
    prepare: impl FnOnce(&mut Command) -> anyhow::Result<()>,
) -> anyhow::Result<(Server, String)> {
    std::fs::write(path, config)?;
    let mut format = own_command()?;
    let output = format.arg("format").arg(path).output()?;
    if !output.status.success() {
        bail!("stria format failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut command = own_command()?;
    command.arg("serve").arg(path);
    prepare(&mut command)?;
    let (child, said) = start(command, "serving ")?;
    let line = said.lines().last().unwrap_or_default();
    let address = line.split_once(" at ").and_then(|(_, rest)| rest.split(';').next());
    let address = address.with_context(|| format!("no address in '{line}'"))?.trim().to_owned();
    Ok((child, address))
}

/// Starts a daemon and waits until a line of its output contains `ready`; also its output up to
/// then.
pub(super) fn start(mut command: Command, ready: &str) -> anyhow::Result<(Server, String)> {
    let started = Server::start(&mut command);
    let mut child = started.with_context(|| format!("cannot start {command:?}"))?;
    let mut output = BufReader::new(child.take_output().context("the child's output is not piped")?);
    let mut said = String::new();
    loop {
        let before = said.len();
        if output.read_line(&mut said)? == 0 {
            let status = child.wait()?;
            bail!("{command:?} ended before it was ready: {status}");
        }
        if said[before..].contains(ready) {
            break;
        }
    }
    // The pipe stays open and is drained, so that the daemon never blocks on its own output.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    Ok((child, said))
}
