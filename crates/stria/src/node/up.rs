//! `stria up`: a whole file system in this process, mounted.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, bail};
use fuse::{Mount, MountOptions, Unmounted};
use mds::Parameters;
use rt::{Address, real::Cores};

use super::{
    Node, NodeOptions,
    config::{self, Role},
    control::{self, NodeControl},
    format,
    identity::Identity,
    signals,
    status::say,
};
use crate::cli::UpArgs;

/// OSTs of a new file system where nobody says how many.
const OSTS_DEFAULT: u16 = 4;

/// Runs `stria up`.
pub fn run(arguments: UpArgs) -> anyhow::Result<()> {
    let begun = Instant::now();
    let stop = signals::stop_requested()?;
    let options = options(&arguments)?;
    let formatted = options.format_missing()?;
    let mount_point = mount_point(&arguments)?;
    let cores = Cores::start_all()?;
    let node = Arc::new(cores.block_on(Node::start(cores.clone(), options))?);
    spare_shared_disk(&node)?;
    let result = serve(&arguments, &node, &mount_point, formatted, begun, stop);
    say("stopping: what is open is written, targets close ...");
    let node = Arc::into_inner(node).context("the node is still in use")?;
    let stopped = cores.block_on(node.stop());
    cores.shutdown();
    result.and(stopped)?;
    say("stopped cleanly");
    Ok(())
}

fn serve(
    arguments: &UpArgs,
    node: &Arc<Node>,
    mount_point: &Path,
    formatted: usize,
    begun: Instant,
    mut stop: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let cores = node.cores().clone();
    cores.block_on(node.registered())?;
    let file_system = cores.block_on(node.mount_client())?;
    let control = NodeControl::open(node, &arguments.dir.join("run"), &arguments.parameters)?;
    let source = match &node.address {
        Some(address) => format!("{address}:/{}", node.fsname()),
        None => format!("{}:/{}", arguments.dir.display(), node.fsname()),
    };
    let mount = Mount::new(file_system, &source, mount_point, &MountOptions::default(), cores.clone())?;
    let made = if formatted > 0 { format!(" ({formatted} targets made)") } else { String::new() };
    say(format_args!(
        "file system '{}': MGS, {} MDT, {} OSTs in {}{made}",
        node.fsname(),
        node.mdts.len(),
        node.osts.len(),
        arguments.dir.display()
    ));
    if let Some(address) = &node.address {
        say(format_args!("serving other hosts at {address}: stria mount {source} DIR"));
    }
    say(format_args!("parameters: stria ctl --run-dir {}/run get_param '*'", arguments.dir.display()));
    say(format_args!(
        "mounted at {} after {} ms; Ctrl-C unmounts and stops",
        mount.point().display(),
        begun.elapsed().as_millis()
    ));
    let mut ended = mount.ended();
    cores.block_on(async {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            _ = ended.wait_for(|ended| *ended) => say("unmounted by somebody else"),
        }
    });
    drop(control);
    match mount.unmount()? {
        Unmounted::Detached => say("the mount was in use; it is detached, and its users get errors"),
        Unmounted::Clean | Unmounted::Before => {}
    }
    Ok(())
}

/// Where all OSTs are directories on one disk, no file is read faster from more of them: none is moved for that.
fn spare_shared_disk(node: &Node) -> anyhow::Result<()> {
    let mut disks = BTreeSet::new();
    for directory in node.ost_directories() {
        let found = std::fs::metadata(directory).with_context(|| format!("cannot look at {}", directory.display()))?;
        disks.insert(found.dev());
    }
    for mdt in node.mdts.iter().filter(|_| disks.len() < 2) {
        mdt.target.set_parameters(Parameters { migration_bytes_per_second: 0, ..mdt.target.parameters() });
    }
    Ok(())
}

/// Targets that exist and those asked for. Fewer than exist cannot be asked for: files lie on them.
fn options(arguments: &UpArgs) -> anyhow::Result<NodeOptions> {
    arguments.fsname.as_deref().map_or(Ok(()), config::check_fsname)?;
    arguments.parameters.iter().try_for_each(|assignment| control::split_assignment(assignment).map(drop))?;
    let existing = existing_osts(&arguments.dir)?;
    let osts = match (arguments.osts, existing) {
        (None, 0) => OSTS_DEFAULT,
        (None, existing) => existing,
        (Some(wanted), existing) if wanted < existing => {
            bail!("{} has {existing} OSTs with files on them; --osts {wanted} would lose some", arguments.dir.display())
        }
        (Some(wanted), _) => wanted,
    };
    let mut options = NodeOptions::up(arguments.dir.clone(), osts);
    if existing == 0 {
        refuse_foreign_directory(arguments)?;
    } else {
        // The directory knows its name. If another one was given, opening the targets tells.
        options.fsname = Identity::load(&arguments.dir.join("mgs"))?.fsname;
    }
    if let Some(fsname) = &arguments.fsname {
        options.fsname.clone_from(fsname);
    }
    options.listen = arguments.listen.as_deref().map(Address::with_port);
    if let Some(listen) = options.listen.as_ref().filter(|listen| !listen.is_complete()) {
        bail!("--listen {listen}: expected HOST:PORT");
    }
    Ok(options)
}

/// How many OSTs there are, from their directories `ost0`, `ost1` and so on, none of which may be missing.
fn existing_osts(directory: &Path) -> anyhow::Result<u16> {
    let ost = |index: u16| directory.join(format!("{}{index}", Role::Ost));
    let is_target = |index: &u16| format::is_target(&ost(*index));
    let count = (0..u16::MAX).take_while(is_target).count() as u16;
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(count) };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ost")?.parse().ok());
    if let Some(higher) = numbers.filter(|index| *index > count && is_target(index)).min() {
        bail!("{} is missing, but {} is there: files lie on both", ost(count).display(), ost(higher).display());
    }
    Ok(count)
}

/// A new file system goes into a new or empty directory only (a mount point `mnt` in it is fine).
fn refuse_foreign_directory(arguments: &UpArgs) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(&arguments.dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot use {}", arguments.dir.display()))?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let ours = ["mgs", "mnt", "run"].contains(&name.to_string_lossy().as_ref())
            || name.to_string_lossy().starts_with("mdt")
            || name.to_string_lossy().starts_with("ost");
        if !ours {
            bail!(
                "{} is not empty and holds no StriaFS file system (found '{}'); choose another --dir",
                arguments.dir.display(),
                name.display()
            );
        }
    }
    Ok(())
}

fn mount_point(arguments: &UpArgs) -> anyhow::Result<PathBuf> {
    let point = arguments.mount.clone().unwrap_or_else(|| arguments.dir.join("mnt"));
    match std::fs::create_dir_all(&point) {
        // A dead mount of an earlier run is there and cannot be looked at; the mount cleans it up.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        made => made.with_context(|| format!("cannot make the mount point {}", point.display()))?,
    }
    Ok(point)
}
