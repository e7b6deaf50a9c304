//! Which device a directory is on, so that space reported by several targets on one device is
//! counted once.
//!
//! A device is a mounted file system of the host: the number its superblock has in the kernel,
//! together with the kernel's boot id, which differs between hosts and is the same in all
//! containers and namespaces of one. The number comes from /proc/self/mountinfo: stat(2) returns
//! another one for each subvolume of btrfs.
//!
//! Downside: space that is shared below the level of file systems is not detected: overlays over
//! one disk, data sets of a ZFS pool, volumes of a thin pool, an NFS export that two hosts mount.
//! Each of these counts separately.

use std::{fs, path::Path};

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use types::DeviceId;

/// The device below `path`; `None` where the system does not tell.
pub(super) fn of(path: &Path) -> Option<DeviceId> {
    let boot = parse_boot_id(&fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)?;
    let status = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID).ok()?;
    let has_mount = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::MNT_ID);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let superblock = has_mount.then(|| superblock_of(&mounts, status.stx_mnt_id)).flatten();
    let (major, minor) = superblock.unwrap_or((status.stx_dev_major, status.stx_dev_minor));
    Some(DeviceId::new(boot, makedev(major, minor)))
}

/// The 128 bits of a UUID in text.
fn parse_boot_id(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// Major and minor number of the superblock of a mount, by proc_pid_mountinfo(5): `36 35 98:0 /root
/// /point ...`.
fn superblock_of(mounts: &str, mount: u64) -> Option<(u32, u32)> {
    let mount = mount.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&mount))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_the_number_of_its_superblock() {
        let mounts = "\
21 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
36 21 0:43 /a /mnt/a rw - btrfs /dev/vdb rw,subvol=/a
37 21 0:43 /b /mnt/b rw - btrfs /dev/vdb rw,subvol=/b
";
        assert_eq!(superblock_of(mounts, 21), Some((254, 1)));
        assert_eq!((superblock_of(mounts, 36), superblock_of(mounts, 37)), (Some((0, 43)), Some((0, 43))));
        assert_eq!(superblock_of(mounts, 2), None);
        assert_eq!(superblock_of("36\n37 x\n38 1 x", 36), None);
        assert_eq!(superblock_of("36\n37 x\n38 1 x", 38), None);
        assert_eq!(parse_boot_id("00000000-0000-0000-0000-0000000000ff\n"), Some(255));
        assert_eq!(parse_boot_id("none"), None);
    }

    #[test]
    fn directories_of_one_file_system_have_one_device() {
        let place = tempfile::tempdir().unwrap();
        let below = place.path().join("below");
        fs::create_dir(&below).unwrap();
        assert!(of(&below).is_some());
        assert_eq!(of(&below), of(place.path()));
        assert_ne!(of(&below), of(Path::new("/proc")));
        assert_eq!(of(&below.join("missing")), None);
    }
}
