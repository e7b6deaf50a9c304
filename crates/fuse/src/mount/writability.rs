//! Whether a mount may be written to: `-o ro`, and changes of it by remounts.
//!
//! The kernel prevents changes through a read-only mount, except by ioctls, which it passes on
//! whatever they do. So the adapter checks here before an ioctl changes something.
//!
//! Life cycle: [`Writability::new`] with the options, [`Writability::mounted`] when the device has
//! its number. From then on the mount table, which remounts change, decides.
//!
//! Downside: a read-only bind mount of a writable mount is not noticed: an ioctl does not say
//! through which mount it came. For a mount that was detached while in use, its original options
//! count.

use std::sync::OnceLock;

use host::mount_table;
use rustix::mount::MountFlags;
use types::{FsError, FsResult};

use super::MountOptions;

/// See the module documentation.
pub struct Writability {
    at_first: bool,
    device_number: OnceLock<String>,
}

impl Writability {
    /// Of a mount that is being made with these options.
    pub fn new(options: &MountOptions) -> Self {
        Self { at_first: !options.flags.contains(MountFlags::RDONLY), device_number: OnceLock::new() }
    }

    /// It has been mounted, as this device.
    pub fn mounted(&self, device_number: &str) {
        // A mount is made once.
        let _ = self.device_number.set(device_number.to_owned());
    }

    /// `ReadOnly` unless the mount may be written to now.
    pub fn require(&self) -> FsResult<()> {
        let known = self.device_number.get().and_then(|device| {
            let mounts =
                mount_table::read().inspect_err(|error| tracing::warn!(%error, "cannot read the mount table")).ok()?;
            mounts.into_iter().find(|mount| mount.device == *device)
        });
        let writable = known.map_or(self.at_first, |mount| !mount.read_only);
        if writable { Ok(()) } else { Err(FsError::ReadOnly) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &str) -> Writability {
        let mut parsed = MountOptions::default();
        parsed.add(options).unwrap();
        Writability::new(&parsed)
    }

    #[test]
    fn options_count_until_the_mount_table_has_the_mount() {
        assert_eq!(of("rw").require(), Ok(()));
        let read_only = of("ro");
        assert_eq!(read_only.require(), Err(FsError::ReadOnly));
        read_only.mounted("no such device");
        assert_eq!(read_only.require(), Err(FsError::ReadOnly));
    }

    #[test]
    fn the_mount_table_outweighs_the_options() {
        // Every Linux shows its processes here, and never read-only.
        let mounts = mount_table::read().unwrap();
        let processes = mounts.into_iter().find(|mount| mount.kind == "proc" && !mount.read_only).expect("/proc");
        let mount = of("ro");
        mount.mounted(&processes.device);
        assert_eq!(mount.require(), Ok(()));
    }
}
