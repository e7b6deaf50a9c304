//! `stria mount` and `stria umount`: a client of a file system that is served elsewhere.

use std::{ffi::OsString, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use fuse::{Mount, MountOptions, MountSource, Unmounted, mount::helper::HelperRequest};
use rt::{Address, real::Cores};

use super::{Node, background, control::NodeControl, signals, status::say};
use crate::{
    cli::{MountArgs, UmountArgs},
    ctl::run_dir,
};

/// Runs `stria mount`.
pub fn run(arguments: &MountArgs) -> anyhow::Result<()> {
    let (options, client) = options(arguments)?;
    if options.remount {
        return Ok(fuse::mount::remount(&arguments.mount_point, &options)?);
    }
    let source: MountSource = arguments.source.parse()?;
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
    let arguments =
        MountArgs { source, mount_point: point, options, sloppy, foreground: false, log: None, detached: false };
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

/// Does the work, which asks the management service, and says so where that takes long.
async fn patiently<T>(cores: &Cores, mgs: &Address, work: impl Future<Output = T>) -> T {
    /// How long nobody wonders: a third of the time after which it is given up.
    const MOMENT: Duration = Duration::from_secs(10);
    let clock = super::seams(cores).clock;
    let (deadline, mut work) = (clock.now() + MOMENT, std::pin::pin!(work));
    match rt::clock::timeout_at(&*clock, deadline, work.as_mut()).await {
        Some(done) => done,
        None => {
            say(format_args!("{} the management service at {mgs} ...", background::WAITING));
            work.await
        }
    }
}

fn foreground(
    source: &MountSource,
    arguments: &MountArgs,
    mount_options: &MountOptions,
    client_options: &ClientOptions,
) -> anyhow::Result<()> {
    let mut stop = signals::stop_requested()?;
    let cores = Cores::start_all()?;
    let mgs = source.mgs.first().context("a source names a host")?;
    let (node, file_system) = cores.block_on(async {
        tokio::select! {
            connected = patiently(&cores, mgs, Node::connect(cores.clone(), mgs, &source.fsname)) => connected,
            _ = stop.wait_for(|stop| *stop) => bail!("asked to stop before {source} was mounted"),
        }
    })?;
    if let Some(patience) = client_options.patience {
        file_system.set_patience(patience);
    }
    let node = Arc::new(node);
    let control = match NodeControl::open(&node, &run_dir::default_path(), &[]) {
        Ok(control) => Some(control),
        Err(error) => {
            tracing::warn!("stria ctl will not see this mount: {error:#}");
            None
        }
    };
    let mount = Mount::new(file_system, &source.to_string(), &arguments.mount_point, mount_options, cores.clone())?;
    if arguments.detached {
        background::stand_alone()?;
    }
    say(format_args!("{} {source} at {}", background::READY, mount.point().display()));
    if arguments.detached {
        background::fall_silent(arguments.log.is_some())?;
    }
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
