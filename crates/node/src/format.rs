//! `stria format`: formats the targets of a configuration.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use host::accounts;
use rpc::{Key, Keyring, auth::KeyKind};
use rt::{Entropy, real::SystemEntropy};
use rustix::{
    fs::{AtFlags, CWD, Dir, Gid, Mode, OFlags, Uid, chownat, fchown, openat, statat},
    io::Errno,
    process::geteuid,
};

use super::{
    config::{Config, Role, TargetConfig},
    identity::{Identity, IdentityError, UNFINISHED_NAME},
    key_file::{self, CLIENT_KEY_FILE, SERVER_KEY_FILE},
    one_device, parameter_names, preflight, private_file, server_key,
    status::say,
    storage::{OneDeviceStorage, Storage, StorageArgs},
    target,
};

/// Numbers of a user and of that user's group.
type Owner = (u32, u32);

/// Arguments of `stria format`.
#[derive(Clone, Debug, Args)]
pub struct FormatArgs {
    /// Configuration file of the daemon whose targets are to be formatted
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// Only targets of this role
    #[arg(long)]
    pub role: Option<Role>,
    /// Skip targets that are already formatted; used to add new ones
    #[arg(long)]
    pub missing_only: bool,
    /// Make this user the owner of the targets, also of files that are their devices, so that it
    /// can serve them (packages use stria). The owner of a block device is not changed
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Where the data of objects are to be
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// Runs `stria format`.
pub fn run(arguments: &FormatArgs) -> anyhow::Result<()> {
    let config = Config::read(&arguments.config)?;
    parameter_names::check(&config.assignments(), &config.targets, &config.fsname, false)
        .with_context(|| format!("configuration {}", arguments.config.display()))?;
    let chosen: Vec<&TargetConfig> =
        config.targets.iter().filter(|target| arguments.role.is_none_or(|role| role == target.role)).collect();
    if chosen.is_empty() {
        bail!("{} has no target of that role", arguments.config.display());
    }
    let owner = arguments.user.as_deref().map(owner).transpose()?;
    let is_new = |target: &TargetConfig| !(arguments.missing_only && Identity::load(&target.dir).is_ok());
    let new: Vec<&TargetConfig> = chosen.iter().copied().filter(|target| is_new(target)).collect();
    let (alone, in_directories): (Vec<&TargetConfig>, Vec<_>) = new.iter().partition(|target| target.on_device);
    let osts = in_directories.iter().filter(|target| target.role == Role::Ost).count();
    let storage = arguments.storage.storage(osts, alone.len())?;
    let one_device = if alone.is_empty() { OneDeviceStorage::default() } else { arguments.storage.one_device()? };
    preflight::check_targets(&new, &storage, &config.fsname)?;
    for target in &alone {
        one_device::check(target, &one_device)
            .with_context(|| format!("cannot format {}", target.name(&config.fsname)))?;
    }
    let new_mgs = new.iter().copied().find(|target| target.role == Role::Mgs);
    // If there is nothing to do, no key is needed.
    let key = if new.is_empty() { None } else { Some(key_for(&config)?) };
    for target in chosen {
        let Some(key) = key.as_ref().filter(|_| is_new(target)) else {
            say(format_args!("{} in {}: already formatted", target.name(&config.fsname), target.dir.display()));
            continue;
        };
        let formatted = match target.on_device {
            true => one_device::format(target, &one_device, &config.fsname, key, owner),
            false => format_target(target, &storage, &config.fsname, key, owner),
        };
        match formatted {
            Err(error) if arguments.missing_only && is_formatted(&error) => {
                say(format_args!("{} in {}: already formatted", target.name(&config.fsname), target.dir.display()));
            }
            formatted => {
                formatted.with_context(|| format!("cannot format {}", target.name(&config.fsname)))?;
                say(format_args!("{} in {}: formatted", target.name(&config.fsname), target.dir.display()));
            }
        }
    }
    if let Some(mgs) = new_mgs {
        tell_keys(&mgs.dir, &config.fsname);
    }
    Ok(())
}

/// Says where the keys of the file system are, and which hosts need them.
fn tell_keys(mgs: &Path, fsname: &str) {
    for (kind, file, hosts) in
        [(KeyKind::Server, SERVER_KEY_FILE, "serve targets"), (KeyKind::Client, CLIENT_KEY_FILE, "mount")]
    {
        let (key, path) = (mgs.join(file), key_file::usual_path(fsname, kind));
        say(format_args!("copy {} to hosts that {hosts}, as {}", key.display(), path.display()));
    }
}

/// The server key of the targets that are to be made: that of the other targets of this host, or
/// the one in the file that the configuration names, which must be the same. Where the management
/// service is made, a new one.
fn key_for(config: &Config) -> anyhow::Result<Key> {
    let fsname = &config.fsname;
    let existing = server_key::of_targets(&config.targets, fsname)?;
    let named = config.key.as_deref().map(|path| server_key::find(Some(path), fsname)).transpose()?;
    match (existing, named) {
        (Some(existing), Some(named)) if existing != named => {
            bail!("the server key in the configuration differs from the key of the targets that are formatted already")
        }
        (Some(key), _) | (None, Some(key)) => Ok(key),
        (None, None) if config.targets.iter().any(|target| target.role == Role::Mgs) => Ok(Key::random(&SystemEntropy)),
        (None, None) => server_key::find(None, fsname),
    }
}

fn is_formatted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(IdentityError::Formatted(..)))
}

fn owner(user: &str) -> anyhow::Result<Owner> {
    accounts::user(user).with_context(|| format!("there is no user '{user}' on this host"))
}

/// Formats one target; its directory must be new, empty, or left behind by an interrupted
/// formatting. Everything in it, and a file that it uses as its device, belongs to `owner`
/// afterwards, if given, otherwise to the user who runs this. `storage`: of objects, if it has any.
pub fn format_target(
    target: &TargetConfig,
    storage: &Storage,
    fsname: &str,
    key: &Key,
    owner: Option<Owner>,
) -> anyhow::Result<()> {
    let identity = Identity::new(fsname, target.role, target.index, uuid());
    let _lock = Identity::begin(&target.dir)?;
    let cores = rt::real::Cores::start(1)?;
    let made = cores.block_on(target::format(&cores, target, storage, fsname));
    cores.shutdown();
    made?;
    key_file::write(&target.dir.join(SERVER_KEY_FILE), fsname, KeyKind::Server, key)?;
    if target.role == Role::Mgs {
        let keys = Keyring::server(key.clone());
        let client = keys.key(KeyKind::Client).context("a server has the client key")?;
        key_file::write(&target.dir.join(CLIENT_KEY_FILE), fsname, KeyKind::Client, client)?;
    }
    if let (Role::Ost, Storage::Device { path, .. }) = (target.role, storage)
        && let Some(notice) = private_file::take_over(path, owner)?
    {
        say(notice);
    }
    // Before it is complete, so that a target never belongs to two users.
    if let Some(owner) = owner {
        hand_over(&target.dir, owner)
            .with_context(|| format!("cannot change the owner of {}", target.dir.display()))?;
    }
    identity.store(&target.dir)?;
    Ok(())
}

/// Makes a user the owner of the directory of a target that is being formatted, and of everything
/// in it.
fn hand_over(directory: &Path, (uid, gid): Owner) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, directory, flags, Mode::empty())?;
    // The directory that was started, not one that was put in its place: its mark belongs to this
    // process's user.
    if statat(&directory, UNFINISHED_NAME, AtFlags::SYMLINK_NOFOLLOW)?.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it was replaced while it was being formatted"));
    }
    Ok(give(&directory, (Uid::from_raw(uid), Gid::from_raw(gid)))?)
}

/// Each directory after its contents, and no path twice: the new owner may already change the
/// directories above, and could insert a link to something else.
fn give(directory: &OwnedFd, owner: (Uid, Gid)) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (uid, gid) = (Some(owner.0), Some(owner.1));
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match openat(directory, name, flags, Mode::empty()) {
            Ok(below) => give(&below, owner)?,
            Err(Errno::NOTDIR | Errno::LOOP) => chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?,
            Err(error) => return Err(error),
        }
    }
    fchown(directory, uid, gid)
}

/// Whether a directory already holds a target.
pub fn is_target(directory: &Path) -> bool {
    !matches!(Identity::load(directory), Err(IdentityError::NotFormatted(_)))
}

fn uuid() -> String {
    let random = SystemEntropy;
    format!("{:016x}{:016x}", random.next_u64(), random.next_u64())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn an_existing_file_for_objects_goes_to_the_owner_with_its_directory() {
        let place = tempfile::tempdir().unwrap();
        let (dir, image) = (place.path().join("ost"), place.path().join("image"));
        let file = fs::File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o666)).unwrap();
        let me = fs::metadata(place.path()).unwrap();
        let owner = if me.uid() == 0 { (4711, 4712) } else { (me.uid(), me.gid()) };
        let target = TargetConfig { role: Role::Ost, index: 0, dir: dir.clone(), on_device: false };
        let storage = Storage::Device { path: image, force: false };
        format_target(&target, &storage, "stria", &Key::random(&SystemEntropy), Some(owner)).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o600, owner.0, owner.1));
        let mut below = vec![dir];
        while let Some(path) = below.pop() {
            let found = fs::symlink_metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), owner, "{}", path.display());
            if found.is_dir() {
                below.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }

    #[test]
    fn only_a_target_that_is_being_made_is_handed_over_and_nothing_it_links_to() {
        let place = tempfile::tempdir().unwrap();
        let (made, precious) = (place.path().join("made"), place.path().join("precious"));
        for directory in [&made, &precious] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), "text").unwrap();
        }
        fs::create_dir(made.join("below")).unwrap();
        symlink(&precious, made.join("below/link")).unwrap();
        fs::write(made.join(UNFINISHED_NAME), "").unwrap();
        // Only root gives files away.
        let me = fs::metadata(place.path()).unwrap();
        let owner = if me.uid() == 0 { (4711, 4712) } else { (me.uid(), me.gid()) };
        assert!(hand_over(&precious, owner).is_err());
        hand_over(&made, owner).unwrap();
        for name in ["", "file", "below", "below/link", UNFINISHED_NAME] {
            let found = fs::symlink_metadata(made.join(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), owner, "{name}");
        }
        for path in [&precious, &precious.join("file")] {
            assert_eq!(fs::metadata(path).unwrap().uid(), me.uid());
        }
    }
}
