//! The file systems a benchmark compares: a local directory, and StriaFS in its different forms,
//! started for the run.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use rt::{Address, real::Cores};

use super::{
    leftovers::Server,
    target::{BenchTarget, NativeTarget, PosixTarget},
    workers,
};
use node::{Node, NodeOptions, key_file};
use rpc::auth::KeyKind;

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

/// A running system. Dropping it stops and removes everything.
pub struct System {
    /// Which.
    pub kind: SystemKind,
    /// What operations go to.
    pub target: Box<dyn BenchTarget>,
    /// Directory to give to programs, where there is one.
    pub directory: Option<PathBuf>,
    children: Vec<Server>,
    node: Option<(Node, Cores)>,
    place: PathBuf,
}

impl System {
    /// Starts a system whose data live below `place`, a directory of its own.
    pub fn start(kind: SystemKind, place: PathBuf, osts: u16) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&place)?;
        match kind {
            SystemKind::Local => {
                let directory = place.join("local");
                std::fs::create_dir(&directory)?;
                Ok(Self::mounted(kind, directory, Vec::new(), place))
            }
            SystemKind::Mount => {
                let mount = place.join("mnt");
                let child = up(&place, osts, &mount, &[])?;
                Ok(Self::mounted(kind, mount, vec![child], place))
            }
            SystemKind::TcpMount => {
                let (server, address) = serve(&place, osts, "127.0.0.1:0", |_| Ok(()))?;
                let mount = place.join("mnt");
                std::fs::create_dir(&mount)?;
                let mut command = own_command()?;
                command.args(["mount", "--foreground", &format!("{address}:/stria")]).arg(&mount);
                command.arg("--key").arg(place.join("mgs0").join(key_file::CLIENT_KEY_FILE));
                let (client, _) = start(command, "mounted")?;
                Ok(Self::mounted(kind, mount, vec![client, server], place))
            }
            SystemKind::Native => {
                let cores = Cores::start_all()?;
                let options = NodeOptions::up(place.join("data"), 1, osts);
                options.format_missing()?;
                let node = cores.block_on(Node::start(cores.clone(), options))?;
                let file_system = cores.block_on(node.mount_client())?;
                let target = Box::new(NativeTarget::new(file_system, cores.clone()));
                Ok(Self { kind, target, directory: None, children: Vec::new(), node: Some((node, cores)), place })
            }
            SystemKind::TcpNative => {
                let (server, address) = serve(&place, osts, "127.0.0.1:0", |_| Ok(()))?;
                let cores = Cores::start_all()?;
                let keys =
                    key_file::read(&place.join("mgs0").join(key_file::CLIENT_KEY_FILE), "stria", KeyKind::Client)?;
                let address = Address::from(address.as_str()).into();
                let (node, file_system) = cores.block_on(Node::connect(cores.clone(), &address, "stria", keys))?;
                let target = Box::new(NativeTarget::new(file_system, cores.clone()));
                Ok(Self { kind, target, directory: None, children: vec![server], node: Some((node, cores)), place })
            }
        }
    }

    /// `stria up` with these parameters, mounted.
    pub fn up(place: PathBuf, osts: u16, parameters: &[String]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&place)?;
        let mount = place.join("mnt");
        let child = up(&place, osts, &mount, parameters)?;
        Ok(Self::mounted(SystemKind::Mount, mount, vec![child], place))
    }

    fn mounted(kind: SystemKind, directory: PathBuf, children: Vec<Server>, place: PathBuf) -> Self {
        let target = Box::new(PosixTarget::new(&directory, false));
        Self { kind, target, directory: Some(directory), children, node: None, place }
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

fn up(place: &Path, osts: u16, mount: &Path, parameters: &[String]) -> anyhow::Result<Server> {
    let mut command = own_command()?;
    command.arg("up").arg("--dir").arg(place.join("data")).args(["--osts", &osts.to_string()]);
    command.arg("--mount").arg(mount);
    for parameter in parameters {
        command.args(["--set", parameter]);
    }
    Ok(start(command, "mounted")?.0)
}

/// Servers of all roles in one process of their own, which listen there, after `prepare` has said
/// where the process runs; returns the address of the MGS.
pub(super) fn serve(
    place: &Path,
    osts: u16,
    listen: &str,
    prepare: impl FnOnce(&mut Command) -> anyhow::Result<()>,
) -> anyhow::Result<(Server, String)> {
    let mut config = format!("fsname = \"stria\"\nlisten = {listen:?}\nrun_dir = {:?}\n", place.join("run"));
    for (role, count) in [("mgs", 1), ("mdt", 1), ("ost", osts)] {
        for index in 0..count {
            let dir = place.join(format!("{role}{index}"));
            config.push_str(&format!("\n[[target]]\nrole = \"{role}\"\nindex = {index}\ndir = {dir:?}\n"));
        }
    }
    let path = place.join("serve.toml");
    std::fs::write(&path, config)?;
    let mut format = own_command()?;
    let output = format.arg("format").arg(&path).output()?;
    if !output.status.success() {
        bail!("stria format failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut command = own_command()?;
    command.arg("serve").arg(&path);
    prepare(&mut command)?;
    let (child, line) = start(command, "serving ")?;
    let address = line.split_once(" at ").and_then(|(_, rest)| rest.split(';').next());
    let address = address.with_context(|| format!("no address in '{}'", line.trim_end()))?.trim().to_owned();
    Ok((child, address))
}

/// Starts a daemon and waits until a line of its output contains `ready`; also that line.
pub(super) fn start(mut command: Command, ready: &str) -> anyhow::Result<(Server, String)> {
    let started = Server::start(&mut command);
    let mut child = started.with_context(|| format!("cannot start {command:?}"))?;
    let mut output = BufReader::new(child.take_output().context("the child's output is not piped")?);
    let mut line = String::new();
    loop {
        line.clear();
        if output.read_line(&mut line)? == 0 {
            let status = child.wait()?;
            bail!("{command:?} ended before it was ready: {status}");
        }
        if line.contains(ready) {
            break;
        }
    }
    // The pipe stays open and is drained, so that the daemon never blocks on its own output.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    Ok((child, line))
}
