//! `stria up`: a whole file system in this process, mounted.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, bail};
use clap::Args;
use fuse::{Mount, MountOptions};
use host::mount_table::is_dead;
use mds::Parameters;
use rpc::{Keyring, message::mgs::ClusterMap};
use rt::{Address, real::Cores};
use types::counted;

use super::{
    Node, NodeOptions,
    config::{self, Role, TargetConfig},
    control::{NodeControl, Presence},
    daemon, format,
    identity::{DirectoryLock, Identity},
    key_file::CLIENT_KEY_FILE,
    mount_guard::MountGuard,
    parameter_names, preflight,
    processors::{self, CpuList, CpuOptions},
    service_manager::ServiceManager,
    signals,
    status::say,
    target::{self, OpenTarget, Threads},
};

/// Numbers of targets of a new file system by default.
const MDTS_DEFAULT: u16 = 1;
const OSTS_DEFAULT: u16 = 4;

/// Arguments of `stria up`.
#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Directory for all data; created if missing
    #[arg(long, default_value = "./stria-data", value_name = "DIR")]
    pub dir: PathBuf,
    /// Number of object storage targets (of a new file system; later runs may add more)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub osts: Option<u16>,
    /// Number of metadata targets (of a new file system; later runs may add more)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub mdts: Option<u16>,
    /// Mount point [default: DIR/mnt]
    #[arg(long, value_name = "PATH")]
    pub mount: Option<PathBuf>,
    /// Also serve other hosts, at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Name of a new file system [default: stria]
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,
    /// Processors to use, as 0-3,8 [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Number of threads that send, receive and execute requests [default: one per processor]
    #[arg(long, value_name = "N", value_parser = processors::parse_cores)]
    pub cores: Option<usize>,
    /// Set a parameter at start; may be repeated
    #[arg(short, long = "set", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,
}

/// Runs `stria up`.
pub fn run(arguments: UpArgs) -> anyhow::Result<()> {
    let begun = Instant::now();
    let stop = signals::stop_requested()?;
    let manager = ServiceManager::of_this_process();
    let options = options(&arguments)?;
    let cpu = CpuOptions { cpus: arguments.cpus.clone(), cores: arguments.cores };
    // Creates nothing if that is impossible.
    cpu.restrict()?;
    refuse_lost_targets(&options)?;
    refuse_wrong_parameters(&arguments, &options)?;
    preflight::check_mount_point(&mount_point(&arguments), true)?;
    manager.status(format_args!("opening {}", counted(options.targets.len(), "target")));
    let formatted = options.format_missing()?;
    let cores = cpu.start_bound()?;
    let node = Arc::new(cores.block_on(Node::start(cores.clone(), options))?);
    spare_shared_disk(&node)?;
    let result = serve(&arguments, &node, &manager, formatted, begun, stop);
    say("stopping: writing data and closing targets ...");
    manager.stopping("writing data and closing targets");
    daemon::stop(node, result)?;
    say("stopped cleanly");
    Ok(())
}

fn serve(
    arguments: &UpArgs,
    node: &Arc<Node>,
    manager: &ServiceManager,
    formatted: usize,
    begun: Instant,
    mut stop: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let cores = node.cores().clone();
    cores.block_on(node.registered())?;
    let file_system = cores.block_on(node.mount_client())?;
    let directory = arguments.dir.canonicalize().with_context(|| format!("cannot use {}", arguments.dir.display()))?;
    let presence = Presence {
        run_dir: &directory.join("run"),
        source: format!("{}:/{}", directory.display(), node.fsname()),
        role: "stria up".to_owned(),
    };
    let control = NodeControl::open(node, presence, &arguments.parameters)?;
    let mount_point = make_mount_point(arguments)?;
    let source = match &node.address {
        Some(address) => format!("{address}:/{}", node.fsname()),
        None => format!("{}:/{}", arguments.dir.display(), node.fsname()),
    };
    let mount = Mount::new(file_system, &source, &mount_point, &MountOptions::default(), cores.clone())?;
    node.shown_mount.show(&mount);
    let _guard = MountGuard::start(&mount);
    let made = if formatted > 0 { format!(" ({} created)", counted(formatted, "target")) } else { String::new() };
    say(format_args!(
        "file system '{}': MGS, {}, {} in {}{made}",
        node.fsname(),
        counted(node.mdts.len(), "MDT"),
        counted(node.osts.len(), "OST"),
        arguments.dir.display()
    ));
    for target in node.missing_targets() {
        say(format_args!(
            "warning: {target} is not in {}: its data cannot be read until it is put back",
            arguments.dir.display()
        ));
    }
    if let Some(address) = &node.address {
        let key = arguments.dir.join("mgs").join(CLIENT_KEY_FILE);
        say(format_args!(
            "serving other hosts at {address}: copy {} there, then stria mount --key client.key {source} DIR",
            key.display()
        ));
    }
    match control.is_found() {
        true => say("parameters: stria ctl get_param '*'"),
        false => say(format_args!("parameters: stria ctl --run-dir {}/run get_param '*'", arguments.dir.display())),
    }
    say(format_args!(
        "mounted at {} after {} ms; Ctrl-C unmounts and stops",
        mount.point().display(),
        begun.elapsed().as_millis()
    ));
    manager.ready(format_args!("mounted at {}", mount.point().display()));
    if daemon::serve_mount(&cores, &mount, &mut stop) {
        say("unmounted by another program");
    }
    drop(control);
    daemon::unmount(mount)
}

/// Creates nothing if requested parameters do not exist.
fn refuse_wrong_parameters(arguments: &UpArgs, options: &NodeOptions) -> anyhow::Result<()> {
    if options.targets.iter().all(|target| format::is_target(&target.dir)) {
        return Ok(());
    }
    parameter_names::check(&arguments.parameters, &options.targets, &options.fsname, true)
}

/// Creates no target again that the file system has had: there are files on it, and its directory
/// must be put back. Asks the management service's tables before anything is formatted.
fn refuse_lost_targets(options: &NodeOptions) -> anyhow::Result<()> {
    let Some(service) = options.targets.iter().find(|target| target.role == Role::Mgs) else { return Ok(()) };
    let mut missing = options.targets.iter().filter(|target| !format::is_target(&target.dir)).peekable();
    if missing.peek().is_none() || !format::is_target(&service.dir) {
        return Ok(());
    }
    let cores = Cores::start(1)?;
    let map = cores.block_on(last_map(&cores, service, &options.fsname));
    cores.shutdown();
    let map = map?;
    let is_known = |target: &&TargetConfig| map.targets.iter().any(|known| Some(known.role) == target.map_role());
    match missing.find(is_known) {
        None => Ok(()),
        Some(lost) => bail!(
            "{} belongs to this file system, but {} is missing; put it back: stria up does not create it again, because it contained files",
            lost.name(&options.fsname),
            lost.dir.display()
        ),
    }
}

/// The cluster map as stored by a management service that is not running.
async fn last_map(cores: &Cores, service: &TargetConfig, fsname: &str) -> anyhow::Result<Arc<ClusterMap>> {
    /// For a table of targets.
    const MEMORY_BYTES: u64 = 64 << 20;
    Identity::expect(service, fsname)?;
    let _lock = DirectoryLock::take(&service.dir)?;
    let (seams, threads) = (super::seams(cores), Threads::start()?);
    match target::open(&seams, service, fsname, &threads, MEMORY_BYTES, &Keyring::default()).await? {
        OpenTarget::Mgs(mgs) => {
            mgs.close().await?;
            Ok(mgs.map())
        }
        OpenTarget::Mdt(_) | OpenTarget::Ost(_) => unreachable!("opened as a management service"),
    }
}

/// If all OSTs are directories on one disk, no file is read faster from more of them, so none is
/// migrated.
fn spare_shared_disk(node: &Node) -> anyhow::Result<()> {
    let mut disks = BTreeSet::new();
    for directory in node.ost_directories() {
        let found = std::fs::metadata(directory).with_context(|| format!("cannot access {}", directory.display()))?;
        disks.insert(found.dev());
    }
    for mdt in node.mdts.iter().filter(|_| disks.len() < 2) {
        mdt.target.set_parameters(Parameters { migration_bytes_per_second: 0, ..mdt.target.parameters() });
    }
    Ok(())
}

/// Targets that exist and those asked for. Fewer than exist cannot be requested, because they hold
/// files.
fn options(arguments: &UpArgs) -> anyhow::Result<NodeOptions> {
    arguments.fsname.as_deref().map_or(Ok(()), config::check_fsname)?;
    if std::fs::metadata(&arguments.dir).is_ok_and(|found| !found.is_dir()) {
        bail!(
            "--dir {} is not a directory; name a new or empty one, or that of an earlier stria up",
            arguments.dir.display()
        );
    }
    arguments.parameters.iter().try_for_each(|assignment| parameter_names::split_assignment(assignment).map(drop))?;
    let (mdts, osts) = (
        Wanted { role: Role::Mdt, count: arguments.mdts, default: MDTS_DEFAULT },
        Wanted { role: Role::Ost, count: arguments.osts, default: OSTS_DEFAULT },
    );
    let is_new = existing(&arguments.dir, Role::Ost)? == 0;
    let mut options =
        NodeOptions::up(arguments.dir.clone(), mdts.in_directory(&arguments.dir)?, osts.in_directory(&arguments.dir)?);
    if is_new {
        refuse_foreign_directory(arguments)?;
    }
    // The directory knows its name. If another one was given, opening the targets tells.
    let mgs = arguments.dir.join("mgs");
    if !is_new || format::is_target(&mgs) {
        options.fsname = Identity::load(&mgs)?.fsname;
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

/// How many targets of a role were asked for.
struct Wanted {
    role: Role,
    count: Option<u16>,
    default: u16,
}

impl Wanted {
    /// How many to serve. A start that was interrupted while it formatted targets is completed.
    fn in_directory(&self, directory: &Path) -> anyhow::Result<u16> {
        let (existing, begun) = (existing(directory, self.role)?, begun(directory, self.role));
        match self.count {
            None if existing.max(begun) == 0 => Ok(self.default),
            None => Ok(existing.max(begun)),
            Some(wanted) if wanted < existing => {
                let kind = self.role.to_string();
                bail!(
                    "{} has {} that hold files; --{kind}s {wanted} would lose some",
                    directory.display(),
                    counted(existing, &kind.to_uppercase())
                )
            }
            Some(wanted) => Ok(wanted),
        }
    }
}

fn place(directory: &Path, role: Role, index: u16) -> PathBuf {
    directory.join(format!("{role}{index}"))
}

/// The numbers in the names of directories `ost0`, `ost1` and so on, whatever is in them.
fn numbers(directory: &Path, role: Role) -> impl Iterator<Item = u16> {
    let (entries, prefix) = (std::fs::read_dir(directory).into_iter().flatten().flatten(), role.to_string());
    entries.filter_map(move |entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok())
}

/// The intended number of targets of a role when formatting was interrupted; 0 if it was not.
fn begun(directory: &Path, role: Role) -> u16 {
    let begun = numbers(directory, role).filter(|index| Identity::is_unfinished(&place(directory, role, *index)));
    begun.max().map_or(0, |highest| highest.saturating_add(1))
}

/// How many targets of a role there are, from their directories `ost0`, `ost1` and so on, none of
/// which may be missing.
pub fn existing(directory: &Path, role: Role) -> anyhow::Result<u16> {
    let is_target = |index: &u16| format::is_target(&place(directory, role, *index));
    let count = (0..u16::MAX).take_while(is_target).count() as u16;
    if let Some(higher) = numbers(directory, role).filter(|index| *index > count && is_target(index)).min() {
        let (missing, there) = (place(directory, role, count), place(directory, role, higher));
        bail!(
            "{} is missing, but {} exists: put the missing directory back; both hold files",
            missing.display(),
            there.display()
        );
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

fn mount_point(arguments: &UpArgs) -> PathBuf {
    arguments.mount.clone().unwrap_or_else(|| arguments.dir.join("mnt"))
}

fn make_mount_point(arguments: &UpArgs) -> anyhow::Result<PathBuf> {
    let point = mount_point(arguments);
    match std::fs::create_dir_all(&point) {
        // A dead mount of an earlier run is there and cannot be looked at; the mount cleans it up.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) if is_dead(&error) => {}
        made => made.with_context(|| format!("cannot create the mount point {}", point.display()))?,
    }
    Ok(point)
}

#[cfg(test)]
mod tests {
    use rpc::auth::KeyKind;

    use super::*;
    use crate::key_file::{self, SERVER_KEY_FILE};

    fn make(directory: &Path, role: Role, index: u16) {
        drop(Identity::begin(directory).unwrap());
        let key = "5a".repeat(32).parse().unwrap();
        key_file::write(&directory.join(SERVER_KEY_FILE), "stria", KeyKind::Server, &key).unwrap();
        Identity::new("stria", role, index, "u".into()).store(directory).unwrap();
    }

    fn osts(directory: &Path, count: Option<u16>) -> anyhow::Result<u16> {
        Wanted { role: Role::Ost, count, default: OSTS_DEFAULT }.in_directory(directory)
    }

    fn mdts(directory: &Path, count: Option<u16>) -> anyhow::Result<u16> {
        Wanted { role: Role::Mdt, count, default: MDTS_DEFAULT }.in_directory(directory)
    }

    fn ost(directory: &Path, index: u16) -> PathBuf {
        place(directory, Role::Ost, index)
    }

    #[test]
    fn an_interrupted_start_is_completed_with_as_many_osts_as_it_was_to_have() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(osts(place.path(), None).unwrap(), OSTS_DEFAULT);
        // Interrupted as early as can be: the last one was begun, nothing else.
        drop(Identity::begin(&ost(place.path(), 5)).unwrap());
        assert_eq!(osts(place.path(), None).unwrap(), 6);
        assert_eq!(existing(place.path(), Role::Ost).unwrap(), 0);
        (0..2).for_each(|index| make(&ost(place.path(), index), Role::Ost, index));
        assert_eq!(osts(place.path(), None).unwrap(), 6);
        assert_eq!(osts(place.path(), Some(8)).unwrap(), 8);
        osts(place.path(), Some(1)).unwrap_err();
        let options = NodeOptions::up(place.path().to_owned(), 1, 6);
        std::fs::create_dir(ost(place.path(), 5).join("objects")).unwrap();
        assert_eq!(options.format_missing().unwrap(), 6, "the MGS, the MDT and four OSTs");
        assert_eq!(osts(place.path(), None).unwrap(), 6);
        assert_eq!(options.format_missing().unwrap(), 0);
        std::fs::remove_dir_all(ost(place.path(), 4)).unwrap();
        let refused = osts(place.path(), None).unwrap_err().to_string();
        assert!(refused.contains("ost4 is missing"), "{refused}");
    }

    #[test]
    fn mdts_are_added_and_none_is_left_out() {
        let place = tempfile::tempdir().unwrap();
        let at = |index| super::place(place.path(), Role::Mdt, index);
        assert_eq!(mdts(place.path(), None).unwrap(), MDTS_DEFAULT);
        (0..2).for_each(|index| make(&at(index), Role::Mdt, index));
        assert_eq!((mdts(place.path(), None).unwrap(), mdts(place.path(), Some(3)).unwrap()), (2, 3));
        let refused = mdts(place.path(), Some(1)).unwrap_err().to_string();
        assert!(refused.contains("has 2 MDTs that hold files; --mdts 1 would lose some"), "{refused}");
        make(&at(3), Role::Mdt, 3);
        let refused = mdts(place.path(), None).unwrap_err().to_string();
        assert!(refused.contains("mdt2 is missing"), "{refused}");
    }
}
