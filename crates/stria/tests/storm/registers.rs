//! Numbers that only grow, each kept in a part of the file system that mounts cache: the target of
//! a symbolic link, the size of a file, an extended attribute, the one name in a directory, a mode.
//!
//! What one mount has written, or anybody has seen, everybody sees from then on: a look that
//! answers a smaller number was answered from a cache that should have been withdrawn.

use std::{
    fs,
    io::Error,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::XattrFlags;

/// Where a number is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Target of a link that is replaced by rename.
    Link,
    /// Size of a file that is truncated to it.
    Size,
    /// An extended attribute.
    Attribute,
    /// The only name in a directory, which is renamed.
    Name,
    /// Low bits of the mode of a file.
    Mode,
}

pub const KINDS: [Kind; 5] = [Kind::Link, Kind::Size, Kind::Attribute, Kind::Name, Kind::Mode];

/// Modes that a mode can count through.
const MODES: u64 = 0o1000;
const XATTR: &str = "user.number";

/// A number with one writer. The same name on all mounts.
pub struct Register {
    pub kind: Kind,
    name: String,
    /// What everybody must see at least.
    known: AtomicU64,
}

impl Register {
    /// Makes it, with the number 0.
    pub fn make(kind: Kind, owner: usize, root: &Path) -> Self {
        let register = Self { kind, name: format!("register-{kind:?}-{owner}"), known: AtomicU64::new(0) };
        let path = register.path(root);
        match kind {
            Kind::Link => symlink("0", path).expect("symlink"),
            Kind::Size | Kind::Attribute | Kind::Mode => drop(fs::File::create_new(&path).expect("create")),
            Kind::Name => {
                fs::create_dir(&path).expect("mkdir");
                drop(fs::File::create_new(path.join("0")).expect("create"));
            }
        }
        if matches!(kind, Kind::Attribute | Kind::Mode) {
            register.write(root, 0).expect("the first number");
        }
        register
    }

    fn path(&self, root: &Path) -> PathBuf {
        root.join(&self.name)
    }

    /// What everybody must see at least.
    pub fn known(&self) -> u64 {
        self.known.load(Ordering::SeqCst)
    }

    /// Writes a number through a mount. When it returns, everybody sees it.
    pub fn write(&self, root: &Path, number: u64) -> Result<(), Error> {
        let path = self.path(root);
        match self.kind {
            Kind::Link => {
                let new = root.join(format!("{}-new", self.name));
                // A writer that was interrupted may have left it.
                let _ = fs::remove_file(&new);
                symlink(number.to_string(), &new)?;
                fs::rename(new, path)?;
            }
            Kind::Size => fs::File::options().write(true).open(path)?.set_len(number)?,
            Kind::Attribute => {
                rustix::fs::setxattr(path, XATTR, number.to_string().as_bytes(), XattrFlags::empty())?;
            }
            Kind::Name => {
                let before = only_name(&path)?;
                fs::rename(path.join(before.to_string()), path.join(number.to_string()))?;
            }
            Kind::Mode => fs::set_permissions(path, fs::Permissions::from_mode((number % MODES) as u32))?,
        }
        self.known.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    fn read(&self, root: &Path) -> Result<u64, Error> {
        let path = self.path(root);
        let number = |text: &str| text.parse().map_err(|_| Error::other(format!("not a number: {text}")));
        match self.kind {
            Kind::Link => number(&fs::read_link(path)?.to_string_lossy()),
            Kind::Size => Ok(fs::symlink_metadata(path)?.size()),
            Kind::Attribute => {
                let mut value = [0; 32];
                let count = rustix::fs::getxattr(path, XATTR, &mut value)?;
                number(&String::from_utf8_lossy(&value[..count]))
            }
            Kind::Name => only_name(&path),
            Kind::Mode => Ok(u64::from(fs::symlink_metadata(path)?.mode()) % MODES),
        }
    }

    /// Looks through a mount; says what is wrong if the answer is older than what is known.
    pub fn look(&self, root: &Path) -> Result<Result<(), String>, Error> {
        let known = self.known();
        let mut seen = self.read(root)?;
        if self.kind == Kind::Mode {
            // Of a number that is within half of all modes from the one that is known.
            let ahead = (seen + MODES - known % MODES) % MODES;
            seen = if ahead < MODES / 2 { known + ahead } else { known.saturating_sub(MODES - ahead) };
        }
        self.known.fetch_max(seen, Ordering::SeqCst);
        if seen < known {
            return Ok(Err(format!("{}: {} shows {seen} after {known} was seen", self.name, root.display())));
        }
        Ok(Ok(()))
    }
}

/// The number that is the only name in a directory.
fn only_name(path: &Path) -> Result<u64, Error> {
    let names: Vec<_> = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    match &*names {
        [entry] => {
            let text = entry.file_name().to_string_lossy().into_owned();
            text.parse().map_err(|_| Error::other(format!("not a number: {text}")))
        }
        // Renamed while the directory was read: a listing in several calls is not atomic.
        other => Err(Error::other(format!("{} names", other.len()))),
    }
}
