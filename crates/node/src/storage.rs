//! Where an OST that is formatted will keep the data of its objects: in a host file for each, on a
//! block device, or in one large file; and, of one that has no directory, its tables as well.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    os::unix::fs::{FileExt, OpenOptionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use oss::{Engine, device_label::DeviceLabel, directory::device::DEVICE_FILE, superblock::DEVICE_BLOCKS_MIN};
use rustix::fs::{FallocateFlags, fallocate};
use types::limits::BLOCK_BYTES;

use crate::durable_file;

/// Bytes of the largest device.
const DEVICE_BYTES_MAX: u64 = 1 << 58;
/// Where a device has what tells its use: the labels of partition tables, file systems, volumes and
/// swap are in its first bytes, backups of them and those of some arrays in its last ones.
const FIRST_BYTES: u64 = 128 << 10;
const LAST_BYTES: u64 = 1 << 20;

const _: () = assert!(FIRST_BYTES + LAST_BYTES <= DEVICE_BLOCKS_MIN * BLOCK_BYTES, "every device has both");

/// Kinds of stores, as they are named on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// A file of the host's file system for each object
    #[default]
    Directory,
    /// Blocks of a device, or of one large file
    Blocks,
}

/// Arguments that choose the storage of object storage targets.
#[derive(Clone, Debug, Default, Args)]
pub struct StorageArgs {
    /// Where object storage targets keep the data of objects
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineName,
    /// With --engine blocks: the block device, or an existing file, for the objects of the only
    /// target that is formatted; its tables are in its directory. All that it holds is lost.
    /// Targets without a directory name their device in the configuration (device = "DEV")
    #[arg(long, value_name = "DEV", conflicts_with = "size")]
    pub device: Option<PathBuf>,
    /// Format a device even if it seems to hold data, which are lost
    #[arg(long)]
    pub force: bool,
    /// With --engine blocks: the size of a file to be made in the target's directory, or in place
    /// of the device that the configuration names, as 100G
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Of targets without a directory: the size of the part of the device that has the tables, as
    /// 20G. Default: 1/32 of the device, more of a small one
    #[arg(long, value_name = "SIZE")]
    pub tables: Option<String>,
}

/// How targets that have nothing but a device are formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneDeviceStorage {
    /// Bytes of files that are to be made; `None`: the devices exist.
    pub size: Option<u64>,
    /// Whatever they hold is not needed.
    pub force: bool,
    /// Bytes of the part with the tables, if not the default.
    pub tables: Option<u64>,
}

/// Where an OST is to keep the data of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In host files.
    HostFiles,
    /// On a block device, or in an existing file.
    Device {
        /// Its absolute path.
        path: PathBuf,
        /// Whatever it holds is not needed.
        force: bool,
    },
    /// In a file of so many bytes, which is to be made.
    File(u64),
}

/// A size on the command line.
fn parse_bytes(option: &str, text: &str, min: u64) -> anyhow::Result<u64> {
    let range = min..=DEVICE_BYTES_MAX;
    rt::parameters::parse_size(text, 1, &range).map_err(|error| anyhow::anyhow!("{option}: {error}"))
}

impl StorageArgs {
    /// What the arguments say for targets without a directory.
    pub fn one_device(&self) -> anyhow::Result<OneDeviceStorage> {
        if self.device.is_some() {
            bail!("the configuration names the device of a target without a directory: leave out --device");
        }
        let bytes = |option: &str, text: &Option<String>| {
            text.as_deref().map(|text| parse_bytes(option, text, BLOCK_BYTES)).transpose()
        };
        let (size, tables) = (bytes("--size", &self.size)?, bytes("--tables", &self.tables)?);
        Ok(OneDeviceStorage { size, force: self.force, tables })
    }

    /// What the arguments say for targets with directories, if so many of them are object storage
    /// targets; there may be `others`, without directories, too.
    pub fn storage(&self, osts: usize, others: usize) -> anyhow::Result<Storage> {
        if osts == 0 && others > 0 {
            return Ok(Storage::HostFiles);
        }
        if self.tables.is_some() {
            bail!("--tables is for targets without a directory, which have device = \"DEV\" in the configuration");
        }
        if self.force && self.device.is_none() && others == 0 {
            bail!("--force is for a device: name it with --device DEV");
        }
        match (self.engine, &self.device, &self.size) {
            (EngineName::Directory, None, None) => Ok(Storage::HostFiles),
            (EngineName::Directory, ..) => bail!("--device and --size are for --engine blocks"),
            (EngineName::Blocks, None, None) => bail!("--engine blocks needs --device DEV or --size SIZE"),
            (EngineName::Blocks, Some(_), _) if osts != 1 => {
                bail!("--device is for one object storage target, and {osts} are to be formatted")
            }
            (EngineName::Blocks, Some(device), _) => {
                Ok(Storage::Device { path: std::path::absolute(device)?, force: self.force })
            }
            (EngineName::Blocks, None, Some(size)) => {
                Ok(Storage::File(parse_bytes("--size", size, DEVICE_BLOCKS_MIN * BLOCK_BYTES)?))
            }
        }
    }
}

impl Storage {
    /// Makes it in the directory of a target that is being formatted.
    pub fn make(&self, directory: &Path) -> anyhow::Result<Engine> {
        let bytes = match self {
            Storage::HostFiles => {
                let path = directory.join("objects");
                std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
                return Ok(Engine::Directory);
            }
            Storage::Device { path, force } => {
                let bytes = check_device(path, *force).with_context(|| format!("cannot use {}", path.display()))?;
                let link = directory.join(DEVICE_FILE);
                symlink(path, &link).with_context(|| format!("cannot create {}", link.display()))?;
                bytes
            }
            Storage::File(bytes) => {
                let path = directory.join(DEVICE_FILE);
                make_file(&path, *bytes).with_context(|| format!("cannot make {} of {bytes} bytes", path.display()))?;
                *bytes
            }
        };
        Ok(Engine::on_device(bytes / BLOCK_BYTES))
    }
}

/// A file that has its space: the host's file system cannot run out of it later.
pub(super) fn make_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let has_space = fallocate(&file, FallocateFlags::empty(), 0, bytes);
    if has_space.is_err() {
        // It was made here, and is useless.
        let _ = std::fs::remove_file(path);
    }
    has_space?;
    file.sync_all()?;
    Ok(durable_file::sync_name(path)?)
}

/// Bytes of a device that nothing uses and that holds nothing, as far as can be seen. `force`: what
/// it holds is not looked at.
pub(super) fn check_device(device: &Path, force: bool) -> anyhow::Result<u64> {
    let mut file = rt::real::open_alone(device)?;
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes < DEVICE_BLOCKS_MIN * BLOCK_BYTES {
        bail!("it has {bytes} bytes, and at least {} are needed", DEVICE_BLOCKS_MIN * BLOCK_BYTES);
    }
    if !force && let Some(found) = data_of(&file, bytes)? {
        bail!("it has {found}; if they are not needed any more, use --force");
    }
    Ok(bytes)
}

/// What a device of so many bytes seems to hold.
fn data_of(device: &File, bytes: u64) -> std::io::Result<Option<String>> {
    // After the last whole block there may be a rest, of which nothing is used.
    for place in DeviceLabel::places(bytes / BLOCK_BYTES) {
        let mut block = vec![0; BLOCK_BYTES as usize];
        device.read_exact_at(&mut block, place * BLOCK_BYTES)?;
        if let Ok(label) = DeviceLabel::decode(&block) {
            if label.is_unfinished() {
                // What is there is of a formatting that was interrupted.
                return Ok(None);
            }
            return Ok(Some(format!("the data of {}", oss::superblock::target_name(&label.fsname, label.index))));
        }
    }
    for (name, start, length) in [("first", 0, FIRST_BYTES), ("last", bytes - LAST_BYTES, LAST_BYTES)] {
        let mut part = vec![0; length as usize];
        device.read_exact_at(&mut part, start)?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(Some(format!("other data: its {name} {} KiB are not all zeros", length >> 10)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(engine: EngineName, device: Option<&str>, size: Option<&str>) -> StorageArgs {
        StorageArgs {
            engine,
            device: device.map(PathBuf::from),
            size: size.map(str::to_owned),
            ..StorageArgs::default()
        }
    }

    fn device(path: &Path) -> Storage {
        Storage::Device { path: path.to_owned(), force: false }
    }

    fn label() -> DeviceLabel {
        let (index, fsname) = (types::OstIndex(3), "stria".into());
        DeviceLabel { index, identity: [1; 16], fsname, blocks: 1 << 20, tables: None, key: None }
    }

    /// The refusal of a device.
    fn refused(path: &Path) -> String {
        let directory = tempfile::tempdir().unwrap();
        let refused = format!("{:#}", device(path).make(directory.path()).unwrap_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
        refused
    }

    #[test]
    fn arguments_say_where_data_are() {
        use EngineName::{Blocks, Directory};
        let storage = |engine, device, size, osts| {
            arguments(engine, device, size).storage(osts, 0).map_err(|error| error.to_string())
        };
        assert_eq!(storage(Directory, None, None, 3), Ok(Storage::HostFiles));
        assert_eq!(storage(Blocks, Some("/dev/vdb"), None, 1), Ok(device("/dev/vdb".as_ref())));
        assert_eq!(storage(Blocks, None, Some("100G"), 3), Ok(Storage::File(100 << 30)));
        for (engine, device, size, osts, expected) in [
            (Directory, Some("/dev/vdb"), None, 1, "are for --engine blocks"),
            (Directory, None, Some("1G"), 1, "are for --engine blocks"),
            (Blocks, None, None, 1, "needs --device DEV or --size SIZE"),
            (Blocks, Some("/dev/vdb"), None, 2, "one object storage target, and 2"),
            (Blocks, None, Some("1M"), 1, "--size: "),
            (Blocks, None, Some("much"), 1, "--size: "),
        ] {
            let refused = storage(engine, device, size, osts).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn a_file_has_its_space_and_what_is_no_device_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let bytes = DEVICE_BLOCKS_MIN * BLOCK_BYTES;
        let made = Storage::File(bytes).make(place.path()).unwrap();
        assert_eq!(made, Engine::on_device(DEVICE_BLOCKS_MIN));
        let file = place.path().join(DEVICE_FILE);
        let found = std::fs::metadata(&file).unwrap();
        assert!(found.len() == bytes && std::os::unix::fs::MetadataExt::blocks(&found) * 512 >= bytes);
        assert!(refused(place.path()).contains("neither a block device nor a file"));
        assert!(refused(&place.path().join("missing")).contains("No such file"));
        let small = place.path().join("small");
        std::fs::write(&small, "text").unwrap();
        assert!(refused(&small).contains("has 4 bytes"));
    }

    #[test]
    fn a_device_with_data_is_refused_and_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        let bytes = DEVICE_BLOCKS_MIN * BLOCK_BYTES + 512;
        let label = label();
        let (ours, target) = (label.encode(), "it has the data of stria-OST0003; ");
        for (offset, data, expected) in [
            // The magic number of ext4, in its superblock at 1 KiB.
            (1024 + 56, &[0x53, 0xef][..], "its first 128 KiB are not all zeros"),
            (510, &[0x55, 0xaa], "its first 128 KiB"),
            // That of swap; of btrfs; of the backup of a partition table.
            (4086, b"SWAPSPACE2", "its first 128 KiB"),
            ((64 << 10) + 64, b"_BHRfS_M", "its first 128 KiB"),
            (bytes - 512, b"EFI PART", "its last 1024 KiB"),
            (0, &ours, target),
            (bytes - 512 - BLOCK_BYTES, &ours, target),
        ] {
            let file = File::create(&path).unwrap();
            file.set_len(bytes).unwrap();
            file.write_all_at(data, offset).unwrap();
            let before = std::fs::read(&path).unwrap();
            let refusal = refused(&path);
            assert!(refusal.contains(expected) && refusal.contains("use --force"), "{refusal}");
            assert!(std::fs::read(&path).unwrap() == before);
            let directory = tempfile::tempdir().unwrap();
            let forced = Storage::Device { path: path.clone(), force: true }.make(directory.path()).unwrap();
            assert_eq!(forced, Engine::on_device(DEVICE_BLOCKS_MIN));
        }
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(device(&path).make(directory.path()).unwrap(), Engine::on_device(DEVICE_BLOCKS_MIN));
        assert_eq!(std::fs::read_link(directory.path().join(DEVICE_FILE)).unwrap(), path);
    }
}
