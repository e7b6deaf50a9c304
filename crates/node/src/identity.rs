//! Identity of a formatted target: the file `stria-target.toml` in its directory, and the lock that
//! excludes a second process.
//!
//! Formatting starts and ends with it: the temporary file is created first, durably; at the end it
//! is renamed to its final name. So if a directory has the temporary file and not the final one,
//! its formatting was interrupted; it never held data, and is formatted again. A directory that has
//! lost its identity looks different, and is refused.

use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use oss::directory::device::DEVICE_FILE;
use serde::{Deserialize, Serialize};

use super::{
    config::{Role, TargetConfig},
    durable_file,
    key_file::{CLIENT_KEY_FILE, SERVER_KEY_FILE},
    one_device,
};

/// Version of the layout of a target's directory.
/// 2: keys; the formats of what is in it changed as well.
pub const FORMAT_VERSION: u32 = 2;
const FILE_NAME: &str = "stria-target.toml";
/// The identity before formatting is complete.
pub const UNFINISHED_NAME: &str = "stria-target.tmp";
/// What formatting makes in a target's directory.
const PARTS: [&str; 6] = ["journal", "cold", "objects", DEVICE_FILE, SERVER_KEY_FILE, CLIENT_KEY_FILE];

/// What a target is; written once by format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of the directory's layout.
    pub format_version: u32,
    /// File system it was formatted for.
    pub fsname: String,
    /// Role.
    pub role: Role,
    /// Index.
    pub index: u16,
    /// Random, unique: a target with another one cannot take its place.
    pub uuid: String,
}

/// Why a target's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Nothing was formatted there.
    #[error("{} is not a StriaFS target; format it first: stria format", .0.display())]
    NotFormatted(PathBuf),
    /// Format refuses directories with contents.
    #[error("{} is not empty; format only uses an empty or new directory (found '{}')", .0.display(), .1)]
    NotEmpty(PathBuf, String),
    /// Format refuses existing targets.
    #[error("{} already holds {}; remove it yourself if it is not needed", .0.display(), .1)]
    Formatted(PathBuf, String),
    /// The directory belongs to something else than the configuration says.
    #[error("{} holds {found}, but the configuration says {expected}", .path.display())]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// Written by a version this one does not know.
    #[error(
        "{} has format version {found}; this stria reads version {FORMAT_VERSION}: {}",
        .path.display(), version_remedy(*.found)
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The identity file does not decode.
    #[error("{}: damaged: {detail}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// Another process serves it.
    #[error("{} is in use by another stria process", .0.display())]
    InUse(PathBuf),
    /// The directory or file cannot be accessed.
    #[error("{}", .path.display())]
    Io {
        /// Directory or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What to do with a target of another version.
fn version_remedy(found: u32) -> &'static str {
    if found < FORMAT_VERSION {
        "copy its files away with the stria that made it, then format a new target"
    } else {
        "use the stria that made it, or a later one"
    }
}

/// Makes a directory, so that it and all above it are there after power loss.
fn make_durably(directory: &Path) -> io::Result<()> {
    let changed = rt::real::create_directories(directory)?;
    changed.iter().try_for_each(|directory| File::open(directory)?.sync_all())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> IdentityError + '_ {
    move |source| IdentityError::Io { path: path.to_owned(), source }
}

impl Identity {
    /// What this target is, for messages.
    pub fn describe(&self) -> String {
        format!("{} of file system '{}'", self.name(), self.fsname)
    }

    /// The target's name, as `stria-OST0003`.
    pub fn name(&self) -> String {
        TargetConfig { role: self.role, index: self.index, dir: PathBuf::new(), on_device: false }.name(&self.fsname)
    }

    /// The identity of a target that is yet to be made. Formatting begins with [`Identity::begin`],
    /// ends with [`Identity::store`].
    pub fn new(fsname: &str, role: Role, index: u16, uuid: String) -> Self {
        Self { format_version: FORMAT_VERSION, fsname: fsname.to_owned(), role, index, uuid }
    }

    /// Begins to make a target of a directory that is new, empty, or left behind by an interrupted
    /// formatting, of which nothing stays. No other process does the same as long as the caller
    /// holds the lock.
    pub fn begin(directory: &Path) -> Result<DirectoryLock, IdentityError> {
        make_durably(directory).map_err(io_error(directory))?;
        Self::check_vacant(directory)?;
        let lock = DirectoryLock::take(directory)?;
        // Another process may have made a target of it before the lock was taken.
        Self::check_vacant(directory)?;
        let begin = || -> io::Result<()> {
            let mark = directory.join(UNFINISHED_NAME);
            File::create(&mark)?.sync_all()?;
            durable_file::sync_name(&mark)?;
            for part in PARTS.map(|part| directory.join(part)) {
                let removed = if part.is_dir() { std::fs::remove_dir_all(part) } else { std::fs::remove_file(part) };
                match removed {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
            Ok(())
        };
        begin().map_err(io_error(directory))?;
        Ok(lock)
    }

    /// Whether the directory's formatting began and was interrupted.
    pub fn is_unfinished(directory: &Path) -> bool {
        matches!(Self::load(directory), Err(IdentityError::NotFormatted(_))) && directory.join(UNFINISHED_NAME).exists()
    }

    /// Refuses an existing directory that cannot become a target; changes nothing.
    pub fn check_vacant(directory: &Path) -> Result<(), IdentityError> {
        match Self::load(directory) {
            Err(IdentityError::NotFormatted(_)) => {}
            Ok(existing) => return Err(IdentityError::Formatted(directory.to_owned(), existing.describe())),
            Err(error) => return Err(error),
        }
        let is_unfinished = Self::is_unfinished(directory);
        for entry in std::fs::read_dir(directory).map_err(io_error(directory))? {
            let name = entry.map_err(io_error(directory))?.file_name().to_string_lossy().into_owned();
            let is_mark = [UNFINISHED_NAME, DirectoryLock::FILE_NAME].contains(&name.as_str());
            let is_part = is_unfinished && PARTS.contains(&name.as_str());
            if !is_mark && !is_part {
                return Err(IdentityError::NotEmpty(directory.to_owned(), name));
            }
        }
        Ok(())
    }

    /// Writes the identity durably: the last step of format, so that a half-formatted directory is
    /// not taken for a target.
    pub fn store(&self, directory: &Path) -> Result<(), IdentityError> {
        let path = directory.join(FILE_NAME);
        let temporary = directory.join(UNFINISHED_NAME);
        let text = toml::to_string(self)
            .map_err(|error| IdentityError::Damaged { path: path.clone(), detail: error.to_string() })?;
        let write = || -> io::Result<()> {
            // The directory may be another user's already: no link of that one is followed.
            let mut options = File::options();
            options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
            durable_file::replace(&path, (&temporary, options.open(&temporary)?), text.as_bytes())
        };
        write().map_err(io_error(&path))
    }

    /// Reads the identity of a directory, or of a device that is a target.
    pub fn load(directory: &Path) -> Result<Self, IdentityError> {
        if one_device::is_device(directory) {
            return one_device::identity(directory);
        }
        let path = directory.join(FILE_NAME);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(IdentityError::NotFormatted(directory.to_owned()));
            }
            text => text.map_err(io_error(&path))?,
        };
        let damaged = |detail: String| IdentityError::Damaged { path: path.clone(), detail };
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| damaged(error.to_string()))?;
        match table.get("format_version").and_then(toml::Value::as_integer) {
            Some(version) if version == i64::from(FORMAT_VERSION) => {}
            Some(version) => {
                let found = u32::try_from(version).unwrap_or(u32::MAX);
                return Err(IdentityError::Version { path: directory.to_owned(), found });
            }
            None => return Err(damaged("no format_version".to_owned())),
        }
        table.try_into().map_err(|error: toml::de::Error| damaged(error.to_string()))
    }

    /// Reads the identity and compares it with what the configuration expects.
    pub fn expect(target: &TargetConfig, fsname: &str) -> Result<Self, IdentityError> {
        let found = Self::load(&target.dir)?;
        let expected = Identity { fsname: fsname.to_owned(), role: target.role, index: target.index, ..found.clone() };
        if found != expected {
            return Err(IdentityError::Mismatch {
                path: target.dir.clone(),
                found: found.describe(),
                expected: expected.describe(),
            });
        }
        Ok(found)
    }
}

/// Holds a target's directory for one process; released when dropped, also by the death of the
/// process.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Of a target without a directory, the device is held where it is opened.
    _file: Option<File>,
}

impl DirectoryLock {
    /// Name of the lock's file within a target's directory.
    pub const FILE_NAME: &str = "stria-target.lock";

    /// Takes the lock, or reports that another process has it.
    pub fn take(directory: &Path) -> Result<Self, IdentityError> {
        if one_device::is_device(directory) {
            return match rt::real::open_alone(directory) {
                Ok(_) => Ok(Self { _file: None }),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    Err(IdentityError::InUse(directory.to_owned()))
                }
                Err(source) => Err(IdentityError::Io { path: directory.to_owned(), source }),
            };
        }
        let path = directory.join(Self::FILE_NAME);
        let file = File::options().create(true).write(true).truncate(false).open(&path).map_err(io_error(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: Some(file) }),
            Err(std::fs::TryLockError::WouldBlock) => Err(IdentityError::InUse(directory.to_owned())),
            Err(std::fs::TryLockError::Error(source)) => Err(IdentityError::Io { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_formatted_once_and_recognised() {
        let place = tempfile::tempdir().unwrap();
        let target = TargetConfig { role: Role::Ost, index: 3, dir: place.path().join("ost"), on_device: false };
        assert!(matches!(Identity::expect(&target, "stria"), Err(IdentityError::NotFormatted(_))));
        let identity = Identity::new("stria", Role::Ost, 3, "u".into());
        let lock = Identity::begin(&target.dir).unwrap();
        identity.store(&target.dir).unwrap();
        drop(lock);
        assert_eq!(Identity::expect(&target, "stria").unwrap(), identity);
        assert!(matches!(Identity::expect(&target, "other"), Err(IdentityError::Mismatch { .. })));
        let again = Identity::begin(&target.dir);
        assert!(matches!(again, Err(IdentityError::Formatted(..))), "{again:?}");
    }

    #[test]
    fn what_an_interrupted_format_left_is_removed_but_not_what_lost_its_identity() {
        let place = tempfile::tempdir().unwrap();
        drop(Identity::begin(place.path()).unwrap());
        assert!(Identity::is_unfinished(place.path()));
        let inside = place.path().join("journal/0");
        std::fs::create_dir(place.path().join("journal")).unwrap();
        std::fs::write(&inside, "half a journal").unwrap();
        let _lock = Identity::begin(place.path()).unwrap();
        assert!(!inside.exists());
        assert!(matches!(Identity::begin(place.path()), Err(IdentityError::InUse(_))));

        let place = tempfile::tempdir().unwrap();
        drop(Identity::begin(place.path()).unwrap());
        Identity::new("stria", Role::Mdt, 0, "u".into()).store(place.path()).unwrap();
        let inside = place.path().join("journal/0");
        std::fs::create_dir(place.path().join("journal")).unwrap();
        std::fs::write(&inside, "a whole journal").unwrap();
        std::fs::remove_file(place.path().join(FILE_NAME)).unwrap();
        let refused = Identity::begin(place.path());
        assert!(matches!(&refused, Err(IdentityError::NotEmpty(_, name)) if name == "journal"), "{refused:?}");
        assert!(inside.exists());
    }

    #[test]
    fn foreign_directories_and_versions_are_refused() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("thesis.tex"), "years of work").unwrap();
        let refused = Identity::begin(place.path());
        assert!(matches!(refused, Err(IdentityError::NotEmpty(_, name)) if name == "thesis.tex"));
        std::fs::write(place.path().join(FILE_NAME), "format_version = 99\n").unwrap();
        assert!(matches!(Identity::load(place.path()), Err(IdentityError::Version { found: 99, .. })));
        std::fs::write(place.path().join(FILE_NAME), "\u{0}\u{1}garbage").unwrap();
        assert!(matches!(Identity::load(place.path()), Err(IdentityError::Damaged { .. })));
    }

    #[test]
    fn one_process_has_a_target() {
        let place = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(place.path()).unwrap();
        assert!(matches!(DirectoryLock::take(place.path()), Err(IdentityError::InUse(_))));
        drop(lock);
        DirectoryLock::take(place.path()).unwrap();
    }
}
