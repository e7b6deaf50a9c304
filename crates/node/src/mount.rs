//! `stria mount` and `stria umount`: a client of a file system that is served elsewhere.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fuse::{
    Mount, MountOptions, MountSource,
    mount::{MountError, helper::HelperRequest},
};
use rpc::{Role, auth::KeyKind};
use tokio::sync::watch;

use super::{
    Node, NodeOptions, background,
    control::{NodeControl, Presence},
    daemon, holders, key_file, preflight,
    processors::{self, CpuList, CpuOptions},
    reachability::TIMEOUT,
    service_manager::ServiceManager,
    signals,
    status::say,
};
use crate::ctl::run_dir;
use crate::mount_guard::MountGuard;

/// Arguments of `stria mount`.
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// HOST[:PORT][,HOST[:PORT]...]:/FSNAME
    pub source: String,
    /// Mount point
    pub mount_point: PathBuf,
    /// Mount options as for mount(8), separated by commas; see below
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// File of the client key [default: /etc/stria/FSNAME.client.key]; the same as -o key=FILE
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Ignore unknown mount options
    #[arg(short, long)]
    pub sloppy: bool,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Log file of the background process [default: the system's log; without /dev/log, a file in
    /// the run directory]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Started by another `stria mount`, which waits
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
}

impl MountArgs {
    /// Whether the process logs to the system's log, because its standard error is not visible.
    pub fn uses_system_log(&self) -> bool {
        self.detached && self.log.is_none()
    }
}

/// Arguments of `stria umount`.
#[derive(Clone, Debug, Args)]
pub struct UmountArgs {
    /// Mount point
    pub mount_point: PathBuf,
    /// Detach the mount even if files are open
    #[arg(short, long)]
    pub lazy: bool,
}

/// Runs `stria mount`.
pub fn run(arguments: &MountArgs) -> anyhow::Result<()> {
    let (options, client) = options(arguments)?;
    if options.remount {
        return Ok(fuse::mount::remount(&arguments.mount_point, &options)?);
    }
    let source: MountSource = arguments.source.parse()?;
    preflight::check_mount_point(&arguments.mount_point, false)?;
    match arguments.foreground {
        true => foreground(&source, arguments, &options, &client).inspect_err(|error| {
            if arguments.uses_system_log() {
                tracing::error!("{error:#}");
            }
        }),
        false => background::start(arguments),
    }
}

/// Does what mount(8) asks for.
pub fn run_as_helper(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<()> {
    let HelperRequest { source, point, options, fake, sloppy } = HelperRequest::parse(arguments)?;
    let arguments = MountArgs {
        source,
        mount_point: point,
        options,
        key: None,
        sloppy,
        foreground: false,
        log: None,
        detached: false,
    };
    if fake {
        return self::options(&arguments).map(drop);
    }
    run(&arguments)
}

/// Runs `stria umount`.
pub fn unmount(arguments: &UmountArgs) -> anyhow::Result<()> {
    match fuse::mount::unmount(&arguments.mount_point, arguments.lazy) {
        Err(MountError::Busy { point }) => {
            let holders = holders::describe(&point);
            bail!("{} is {holders}; stop that first, or detach the mount anyway with --lazy", point.display())
        }
        unmounted => Ok(unmounted?),
    }
}

/// Options of this crate: the rest was understood by the mount.
struct ClientOptions {
    timeout: Option<Duration>,
    key: Option<PathBuf>,
    cpu: CpuOptions,
}

fn options(arguments: &MountArgs) -> anyhow::Result<(MountOptions, ClientOptions)> {
    let mut options = MountOptions::default();
    for text in &arguments.options {
        options.add(text)?;
    }
    let mut client = ClientOptions { timeout: None, key: arguments.key.clone(), cpu: CpuOptions::default() };
    for (name, value) in &options.others {
        match (name.as_str(), value.as_deref()) {
            ("timeout", Some(value)) => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                let seconds =
                    seconds.with_context(|| format!("mount option timeout={value}: expected seconds, 1 or more"))?;
                client.timeout = Some(Duration::from_secs(seconds));
            }
            ("key", Some(value)) if !value.is_empty() => client.key = Some(PathBuf::from(value)),
            ("key", _) => bail!("mount option key: expected key=FILE"),
            ("cpus", value) => {
                // Commas separate options.
                let cpus = value.unwrap_or_default().replace(':', ",").parse::<CpuList>();
                client.cpu.cpus = Some(cpus.map_err(|error| anyhow!("mount option cpus: {error}"))?);
            }
            ("cores", value) => {
                let cores = processors::parse_cores(value.unwrap_or_default());
                client.cpu.cores = Some(cores.map_err(|error| anyhow!("mount option cores: {error}"))?);
            }
            (name, _) if arguments.sloppy => tracing::warn!("mount option '{name}' is unknown and ignored"),
            (name, _) => bail!("unknown mount option '{name}'"),
        }
    }
    Ok((options, client))
}

fn foreground(
    source: &MountSource,
    arguments: &MountArgs,
    mount_options: &MountOptions,
    client_options: &ClientOptions,
) -> anyhow::Result<()> {
    let mut stop = signals::stop_requested()?;
    let cores = client_options.cpu.start_bound()?;
    let key = client_options.key.as_deref();
    let keys = key_file::find(key, &source.fsname, KeyKind::Client, "-o key=FILE")?;
    let options = NodeOptions::client(&source.mgs, &source.fsname, Role::Client, keys);
    let node = Arc::new(cores.block_on(Node::start(cores.clone(), options))?);
    let served = serve(source, arguments, mount_options, client_options, &node, &mut stop)
        .map_err(|error| key_file::named_in(error, key, &source.fsname, KeyKind::Client));
    // Servers are told that the client leaves, also if it could not be mounted.
    daemon::stop(node, served)
}

/// Mounts, and serves the mount until it ends.
fn serve(
    source: &MountSource,
    arguments: &MountArgs,
    mount_options: &MountOptions,
    client_options: &ClientOptions,
    node: &Arc<Node>,
    stop: &mut watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let cores = node.cores();
    let tell = |waiting: &str| say(format_args!("{waiting} (giving up after {} s)", TIMEOUT.as_secs()));
    let file_system = cores.block_on(async {
        tokio::select! {
            mounted = node.mount_client_telling(tell) => mounted,
            _ = stop.wait_for(|stop| *stop) => bail!("stopped by a signal before {source} was mounted"),
        }
    })?;
    if let Some(timeout) = client_options.timeout {
        file_system.set_timeout(timeout);
    }
    // Others ask for it from other working directories.
    let point = std::path::absolute(&arguments.mount_point)?;
    let presence = Presence {
        run_dir: &run_dir::default_path(),
        source: source.to_string(),
        role: format!("stria mount at {}", point.display()),
    };
    let control = match NodeControl::open(node, presence, &[]) {
        Ok(control) => Some(control),
        Err(error) => {
            tracing::warn!("stria ctl will not see this mount: {error:#}");
            None
        }
    };
    let mount = Mount::new(file_system, &source.to_string(), &arguments.mount_point, mount_options, cores.clone())?;
    node.shown_mount.show(&mount);
    if arguments.detached {
        background::stand_alone()?;
    }
    let guard = MountGuard::start(&mount);
    let mounted = format!("{} {source} at {}", background::READY, mount.point().display());
    say(&mounted);
    let manager = ServiceManager::of_this_process();
    manager.ready(&mounted);
    if arguments.detached {
        background::fall_silent(arguments.log.is_some())?;
    }
    daemon::serve_mount(cores, &mount, stop);
    drop(control);
    manager.stopping("unmounting");
    daemon::unmount(mount)?;
    drop(guard);
    Ok(())
}
