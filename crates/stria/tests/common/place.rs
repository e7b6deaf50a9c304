//! Where a test runs: data on the disk of the target directory, mount points on short paths that
//! every user may enter.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// Directories of one test. Mounts that are left in it are detached, and everything is removed,
/// when it is dropped.
pub struct Place {
    data: TempDir,
    /// `/tmp/stria-XXXXXX`: short, of one length everywhere, and open to all users.
    outer: TempDir,
    mounts: Vec<PathBuf>,
}

impl Place {
    /// A new place. Fails the test where it cannot work.
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test mounts a file system and needs root");
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing: load the kernel module fuse");
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory for data");
        let outer = tempfile::Builder::new().prefix("stria-").tempdir_in("/tmp").expect("directory for mount points");
        std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o755)).expect("own directory");
        let place = Self { data, outer, mounts: Vec::new() };
        let bin = place.bin();
        std::fs::create_dir(&bin).expect("directory for programs");
        for name in ["stria", "lfs"] {
            symlink(env!("CARGO_BIN_EXE_stria"), bin.join(name)).expect("link to the program");
        }
        place
    }

    /// A path for data, logs and configurations.
    pub fn data(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    /// Mounts a tmpfs with these options on a new directory for data: a device of known size with
    /// nothing else on it.
    pub fn mount_device(&mut self, name: &str, options: &str) -> PathBuf {
        let point = self.data(name);
        std::fs::create_dir(&point).expect("the directory is new");
        let options = std::ffi::CString::new(options).expect("options have no NUL");
        rustix::mount::mount("data", &point, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).expect("mount");
        self.mounts.push(point.clone());
        point
    }

    /// Directory with the binary under its names, to be put on PATH.
    pub fn bin(&self) -> PathBuf {
        self.outer.path().join("bin")
    }

    /// PATH with [`Place::bin`] in front.
    pub fn path_variable(&self) -> String {
        format!("{}:{}", self.bin().display(), std::env::var("PATH").unwrap_or_default())
    }

    /// A new mount point.
    pub fn mount_point(&mut self, name: &str) -> PathBuf {
        let point = self.outer.path().join(name);
        if !self.mounts.contains(&point) {
            std::fs::create_dir(&point).expect("mount point");
            self.mounts.push(point.clone());
        }
        point
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for point in &self.mounts {
            // A file system under test is mounted only if the test has failed.
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
    }
}
