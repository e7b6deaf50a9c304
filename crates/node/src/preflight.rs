//! Checks before anything is formatted or mounted, so that a refusal leaves nothing behind.
//!
//! Downside: changes between the check and the work are noticed only by the work, which may then
//! leave an incomplete result.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use fuse::mount::MountError;
use oss::OstOptions;
use rustix::fs::{Access, access, statvfs};
use types::counted;

use super::{
    config::{Role, TargetConfig},
    identity::Identity,
    storage::Storage,
};

/// What a target of any role takes from the start: two journal segments of 16 MiB, fjall's journal
/// of 64 MiB, which gets its space when it is written, and small files.
const TARGET_BYTES: u64 = 100 << 20;
/// Space beyond the reserves, without which a target is full from the beginning.
const HEADROOM_BYTES: u64 = 16 << 20;

/// Refuses targets that cannot be made where they are to be: something else is there, or there is
/// not enough space. `storage`: of new object storage targets.
pub fn check_targets(targets: &[&TargetConfig], storage: &Storage, fsname: &str) -> anyhow::Result<()> {
    let mut devices: BTreeMap<u64, Demand> = BTreeMap::new();
    for target in targets.iter().filter(|target| !target.on_device) {
        let demand = demand(target, storage).with_context(|| format!("cannot format {}", target.name(fsname)))?;
        match devices.get_mut(&demand.device) {
            Some(known) => known.add(&demand),
            None => drop(devices.insert(demand.device, demand)),
        }
    }
    match devices.values().find_map(Demand::refusal) {
        Some(refusal) => bail!(refusal),
        None => Ok(()),
    }
}

/// Refuses a mount point that is none. `makes`: a missing one will be made.
pub fn check_mount_point(point: &Path, makes: bool) -> anyhow::Result<()> {
    match fuse::mount::check(point) {
        Err(MountError::NotFound { .. }) if makes => {
            let made = existing_above(point).and_then(|above| try_to_make(&above));
            made.with_context(|| format!("cannot create the mount point {}", point.display()))
        }
        checked => Ok(checked?),
    }
}

/// What is to be made on a device, and what it has.
#[derive(Debug)]
struct Demand {
    device: u64,
    /// A directory on it, for messages.
    place: PathBuf,
    free_bytes: u64,
    roles: Vec<Role>,
    /// Of the files that are made for the data of objects.
    file_bytes: u64,
}

/// What a target asks of its device. An error if its directory cannot become a target.
fn demand(target: &TargetConfig, storage: &Storage) -> anyhow::Result<Demand> {
    let place = existing_above(&target.dir)?;
    let mut given_back = 0;
    if place == target.dir {
        Identity::check_vacant(&place)?;
        // Of an interrupted formatting nothing stays.
        given_back = bytes_below(&place);
    }
    let space = statvfs(&place).with_context(|| format!("cannot access {}", place.display()))?;
    let device = std::fs::metadata(&place)?.dev();
    let free_bytes = (space.f_bavail * space.f_frsize).saturating_add(given_back);
    let file_bytes = match (target.role, storage) {
        (Role::Ost, Storage::File(bytes)) => *bytes,
        _ => 0,
    };
    Ok(Demand { device, place, free_bytes, roles: vec![target.role], file_bytes })
}

/// `path`, or the nearest directory above it that exists, which this process must be able to write
/// to.
fn existing_above(path: &Path) -> anyhow::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    for above in absolute.ancestors() {
        match std::fs::metadata(above) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Ok(found) if found.is_dir() => {
                let writable = access(above, Access::WRITE_OK | Access::EXEC_OK);
                writable.with_context(|| format!("cannot write to {}", above.display()))?;
                return Ok(if above == absolute { path.to_owned() } else { above.to_owned() });
            }
            Ok(_) => bail!("{} is not a directory", above.display()),
            // A file in the middle of the path: it is the next one above.
            Err(error) if error.kind() == ErrorKind::NotADirectory => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot access {}", above.display())),
        }
    }
    bail!("{} has no root", absolute.display())
}

/// Whether a directory can be made in `above`: where the kernel makes all entries, as in /proc,
/// permission to write does not tell. Leaves nothing behind.
fn try_to_make(above: &Path) -> anyhow::Result<()> {
    let trial = above.join(format!(".stria-{}", std::process::id()));
    std::fs::create_dir(&trial).with_context(|| format!("cannot create anything in {}", above.display()))?;
    std::fs::remove_dir(&trial).with_context(|| format!("cannot remove {}", trial.display()))
}

/// Space of all files below a directory, as far as it can be read.
fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.blocks().saturating_mul(512),
        Err(_) => 0,
    });
    bytes.sum()
}

impl Demand {
    fn add(&mut self, other: &Demand) {
        // Each has what is free now, and what its own directory gives back.
        let free_now = self.free_bytes.min(other.free_bytes);
        self.free_bytes = self.free_bytes.saturating_add(other.free_bytes - free_now);
        self.roles.extend(&other.roles);
        self.file_bytes = self.file_bytes.saturating_add(other.file_bytes);
    }

    /// Bytes to make the targets and to have any room in them: the reserves of targets on one
    /// device are the same bytes.
    fn needed_bytes(&self) -> u64 {
        let reserve = |role: &Role| match role {
            Role::Ost => OstOptions::default().reserve_bytes,
            Role::Mgs | Role::Mdt => kv::Config::default().device_reserve_bytes,
        };
        let tables = TARGET_BYTES * self.roles.len() as u64;
        let reserve = self.roles.iter().map(reserve).max().unwrap_or(0);
        (tables + reserve + HEADROOM_BYTES).saturating_add(self.file_bytes)
    }

    fn refusal(&self) -> Option<String> {
        let needed = self.needed_bytes();
        if self.free_bytes >= needed {
            return None;
        }
        let count = |role: Role| self.roles.iter().filter(|other| **other == role).count();
        let (mdts, osts) = (count(Role::Mdt), count(Role::Ost));
        let parts = [
            (count(Role::Mgs) > 0).then(|| "the MGS".to_owned()),
            (mdts > 0).then(|| counted(mdts, "MDT")),
            (osts > 0).then(|| counted(osts, "OST")),
        ];
        let hint = if osts > 1 { "use a larger device, or fewer OSTs" } else { "use a larger device" };
        Some(format!(
            "{} has {} MiB free, but {} there need {} MiB; nothing was created: {hint}",
            self.place.display(),
            self.free_bytes >> 20,
            parts.into_iter().flatten().collect::<Vec<_>>().join(", "),
            needed.div_ceil(1 << 20)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(role: Role, dir: &Path) -> TargetConfig {
        TargetConfig { role, index: 0, dir: dir.to_owned(), on_device: false }
    }

    #[test]
    fn what_is_too_small_is_told_with_what_is_needed() {
        let roles = vec![Role::Mgs, Role::Mdt, Role::Ost, Role::Ost, Role::Ost, Role::Ost];
        let mut demand = Demand { device: 1, place: "/data".into(), free_bytes: 600 << 20, roles, file_bytes: 0 };
        assert_eq!(
            demand.refusal().unwrap(),
            "/data has 600 MiB free, but the MGS, 1 MDT, 4 OSTs there need 744 MiB; nothing was created: use a larger device, \
             or fewer OSTs"
        );
        demand.free_bytes = 744 << 20;
        assert_eq!(demand.refusal(), None);
        let place = tempfile::tempdir().unwrap();
        let new: Vec<TargetConfig> = ["a", "b"].map(|name| target(Role::Ost, &place.path().join(name))).into();
        let new: Vec<&TargetConfig> = new.iter().collect();
        // Each alone would fit.
        let free = statvfs(place.path()).unwrap();
        let half = Storage::File(free.f_bavail * free.f_frsize / 5 * 3);
        let refused = format!("{:#}", check_targets(&new, &half, "stria").unwrap_err());
        assert!(refused.contains("2 OSTs there need"), "{refused}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    fn lengths_below(directory: &Path) -> u64 {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let length = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
            found if found.is_dir() => lengths_below(&entry.path()),
            found => found.len().max(found.blocks() * 512),
        };
        entries.map(length).sum()
    }

    /// The constant that the refusal rests on.
    #[test]
    fn formatting_takes_what_is_asked_for_and_hardly_less() {
        let place = tempfile::tempdir().unwrap();
        for (index, role) in [Role::Mgs, Role::Mdt, Role::Ost].into_iter().enumerate() {
            let target = target(role, &place.path().join(index.to_string()));
            super::super::format::format_target(
                &target,
                &Storage::HostFiles,
                "stria",
                &rpc::Key::random(&rt::real::SystemEntropy),
                None,
            )
            .unwrap();
            let bytes = lengths_below(&target.dir);
            assert!((TARGET_BYTES / 10 * 9..=TARGET_BYTES).contains(&bytes), "{role}: {bytes}");
        }
    }

    #[test]
    fn other_contents_files_and_places_below_files_are_refused_without_a_trace() {
        let place = tempfile::tempdir().unwrap();
        let (file, full) = (place.path().join("file"), place.path().join("full"));
        std::fs::write(&file, "text").unwrap();
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("thesis.tex"), "years of work").unwrap();
        let fine = target(Role::Mgs, &place.path().join("a/b/c"));
        let refused = |dir: &Path| {
            let targets = [&fine, &target(Role::Ost, dir)].map(Clone::clone);
            let refused = check_targets(&targets.iter().collect::<Vec<_>>(), &Storage::HostFiles, "stria");
            format!("{:#}", refused.unwrap_err())
        };
        assert!(refused(&file).ends_with("file is not a directory"));
        assert!(refused(&file.join("below/ost")).ends_with("file is not a directory"));
        assert!(refused(&full).contains("is not empty") && refused(&full).contains("thesis.tex"));
        check_targets(&[&fine], &Storage::HostFiles, "stria").unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "nothing was made");
        assert_eq!(std::fs::read_dir(&full).unwrap().count(), 1);
    }
}
