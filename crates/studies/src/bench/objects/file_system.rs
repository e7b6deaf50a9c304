//! A local file system made for a measurement, on the same kind of device as the store `blocks`
//! has.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use super::super::leftovers::{Kept, KernelObject, command};

/// Programs that make file systems: name, package, options for one on a device or file that may
/// hold data. Blocks are not discarded: what is measured begins on a device that was used before.
const EXT4: (&str, &str, &[&str]) =
    ("mkfs.ext4", "e2fsprogs", &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]);
const XFS: (&str, &str, &[&str]) = ("mkfs.xfs", "xfsprogs", &["-q", "-f", "-K"]);

/// Kinds of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

/// A new file system, mounted until dropped.
pub struct FileSystem {
    _mount: Kept,
    root: PathBuf,
}

impl FileSystem {
    /// On a device, all contents of which are lost; mounted on a directory, which exists.
    pub fn on_device(kind: FileSystemKind, device: &Path, directory: &Path) -> io::Result<Self> {
        let (program, package, options) = match kind {
            FileSystemKind::Ext4 => EXT4,
            FileSystemKind::Xfs => XFS,
        };
        let arguments: Vec<&OsStr> = options.iter().map(OsStr::new).chain([device.as_os_str()]).collect();
        command(program, package, &arguments)?;
        let (device, root) = (device.to_owned(), directory.to_owned());
        let mount = KernelObject::Mount { device, directory: root.clone() };
        Ok(Self { _mount: Kept::new(mount)?, root })
    }

    /// On a new file of so many bytes, through a loop device, which goes with the mount.
    pub fn on_file(kind: FileSystemKind, (file, bytes): (&Path, u64), directory: &Path) -> io::Result<Self> {
        File::create_new(file)?.set_len(bytes)?;
        let options = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
        let arguments: Vec<&OsStr> = options.into_iter().chain([file.as_os_str()]).collect();
        let device = PathBuf::from(command("losetup", "util-linux", &arguments)?);
        let made = Self::on_device(kind, &device, directory);
        // While it is mounted, this only notes that it is to go.
        let detached = command("losetup", "util-linux", &[OsStr::new("--detach"), device.as_os_str()]);
        let made = made?;
        detached?;
        Ok(made)
    }

    /// The directory on which it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_is_named() {
        let place = tempfile::tempdir().unwrap();
        let missing = command("mkfs.no-such-program", "some-package", &[]).unwrap_err().to_string();
        assert!(missing.contains("mkfs.no-such-program") && missing.contains("some-package"), "{missing}");
        let device = place.path().join("device");
        let refused = FileSystem::on_device(FileSystemKind::Ext4, &device, place.path()).err().unwrap().to_string();
        assert!(refused.contains("mkfs.ext4") && refused.contains("device"), "{refused}");
    }
}
