//! `stria mount` and `stria umount`: a client of a file system that is served elsewhere.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use fuse::{Mount, MountOptions, MountSource, Unmounted, mount::helper::HelperRequest};
use rt::real::Cores;

use super::{Node, control::NodeControl, signals, status::say};
use crate::{
    cli::{MountArgs, UmountArgs},
    ctl::RUN_DIR_DEFAULT,
};

/// What the foreground process says when the mount works; the background waits for it.
const READY: &str = "mounted";

/// Runs `stria mount`.
pub fn run(arguments: &MountArgs) -> anyhow::Result<()> {
    let (options, client) = options(arguments)?;
    if options.remount {
        return Ok(fuse::mount::remount(&arguments.mount_point, &options)?);
    }
    let source: MountSource = arguments.source.parse()?;
    match arguments.foreground {
        true => foreground(&source, &arguments.mount_point, &options, &client),
        false => background(arguments),
    }
}

/// Does what mount(8) asks for.
pub fn run_as_helper(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<()> {
    let HelperRequest { source, point, options, fake, sloppy } = HelperRequest::parse(arguments)?;
    let arguments = MountArgs { source, mount_point: point, options, sloppy, foreground: false, log: None };
    if fake {
        return self::options(&arguments).map(drop);
    }
    run(&arguments)
}

/// Runs `stria umount`.
pub fn unmount(arguments: &UmountArgs) -> anyhow::Result<()> {
    Ok(fuse::mount::unmount(&arguments.mount_point, arguments.lazy)?)
}

/// Options of this crate: the rest was understood by the mount.
struct ClientOptions {
    patience: Option<Duration>,
}

fn options(arguments: &MountArgs) -> anyhow::Result<(MountOptions, ClientOptions)> {
    let mut options = MountOptions::default();
    for text in &arguments.options {
        options.add(text)?;
    }
    let mut client = ClientOptions { patience: None };
    for (name, value) in &options.others {
        match (name.as_str(), value.as_deref()) {
            ("timeout", Some(seconds)) => {
                let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0);
                let seconds = seconds.with_context(|| format!("mount option timeout={seconds:?}: expected seconds"))?;
                client.patience = Some(Duration::from_secs(seconds));
            }
            (name, _) if arguments.sloppy => tracing::warn!("mount option '{name}' is unknown and ignored"),
            (name, _) => bail!("unknown mount option '{name}'"),
        }
    }
    Ok((options, client))
}

fn foreground(
    source: &MountSource,
    point: &Path,
    mount_options: &MountOptions,
    client_options: &ClientOptions,
) -> anyhow::Result<()> {
    let mut stop = signals::stop_requested()?;
    let cores = Cores::start_all()?;
    let mgs = source.mgs.first().context("a source names a host")?;
    let (node, file_system) = cores.block_on(Node::connect(cores.clone(), mgs, &source.fsname))?;
    if let Some(patience) = client_options.patience {
        file_system.set_patience(patience);
    }
    let node = Arc::new(node);
    let control = match NodeControl::open(&node, RUN_DIR_DEFAULT.as_ref(), &[]) {
        Ok(control) => Some(control),
        Err(error) => {
            tracing::warn!("stria ctl will not see this mount: {error:#}");
            None
        }
    };
    let mount = Mount::new(file_system, &source.to_string(), point, mount_options, cores.clone())?;
    say(format_args!("{READY} {source} at {}", mount.point().display()));
    let mut ended = mount.ended();
    cores.block_on(async {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            _ = ended.wait_for(|ended| *ended) => {}
        }
    });
    drop(control);
    if mount.unmount()? == Unmounted::Detached {
        say("the mount was in use; it is detached, and its users get errors");
    }
    let node = Arc::into_inner(node).context("the node is still in use")?;
    let stopped = cores.block_on(node.stop());
    cores.shutdown();
    stopped
}

/// Starts this program again in the foreground mode, detached, and waits until the mount works or has failed.
fn background(arguments: &MountArgs) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's file")?);
    command.arg("mount").arg("--foreground").arg(&arguments.source).arg(&arguments.mount_point);
    command.args(arguments.sloppy.then_some("--sloppy"));
    for text in &arguments.options {
        command.args([OsString::from("-o"), OsString::from(text)]);
    }
    let log = match &arguments.log {
        Some(path) => File::options().create(true).append(true).open(path),
        None => tempfile::tempfile(),
    }
    .context("cannot open the log file")?;
    let mut errors = log.try_clone()?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // A session of its own: the mount outlives the terminal it was made from.
    // SAFETY: setsid is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let mut child = command.spawn().context("cannot start the background process")?;
    let output = child.stdout.take().context("the child's output is not piped")?;
    for line in BufReader::new(output).lines() {
        if line?.starts_with(READY) {
            return Ok(());
        }
    }
    let status = child.wait()?;
    let mut text = String::new();
    std::io::Seek::rewind(&mut errors)?;
    errors.read_to_string(&mut text)?;
    let last = text.lines().rev().find_map(|line| line.strip_prefix("stria: ")).unwrap_or("no reason given");
    bail!("{last} ({status})")
}
