//! Where an OST that is formatted will keep the data of its objects: in a host file for each, on a
//! block device, or in one large file.

use std::{
    fs::File,
    io::{ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use oss::{
    Engine,
    device_label::DeviceLabel,
    directory::device::{DEVICE_BLOCKS_MIN, DEVICE_FILE},
};
use rustix::fs::{FallocateFlags, fallocate};
use types::limits::BLOCK_BYTES;

/// Bytes of the largest device.
const DEVICE_BYTES_MAX: u64 = 1 << 58;

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
    /// With --engine blocks: the block device, or an existing file, of the only target that is
    /// formatted. All that it holds is lost
    #[arg(long, value_name = "DEV", conflicts_with = "size")]
    pub device: Option<PathBuf>,
    /// With --engine blocks: the size of a file to be made in the target's directory, as 100G
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
}

/// Where an OST is to keep the data of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In host files.
    HostFiles,
    /// On a block device, or in an existing file.
    Device(PathBuf),
    /// In a file of so many bytes, which is to be made.
    File(u64),
}

impl StorageArgs {
    /// What the arguments say, if so many object storage targets are formatted.
    pub fn storage(&self, osts: usize) -> anyhow::Result<Storage> {
        match (self.engine, &self.device, &self.size) {
            (EngineName::Directory, None, None) => Ok(Storage::HostFiles),
            (EngineName::Directory, ..) => bail!("--device and --size are for --engine blocks"),
            (EngineName::Blocks, None, None) => bail!("--engine blocks needs --device DEV or --size SIZE"),
            (EngineName::Blocks, Some(_), _) if osts != 1 => {
                bail!("--device is for one object storage target, and {osts} are to be formatted")
            }
            (EngineName::Blocks, Some(device), _) => Ok(Storage::Device(std::path::absolute(device)?)),
            (EngineName::Blocks, None, Some(size)) => {
                let range = DEVICE_BLOCKS_MIN * BLOCK_BYTES..=DEVICE_BYTES_MAX;
                let bytes =
                    rt::parameters::parse_size(size, 1, &range).map_err(|error| anyhow::anyhow!("--size: {error}"))?;
                Ok(Storage::File(bytes))
            }
        }
    }
}

impl Storage {
    /// Makes it in the directory of a target that is being formatted.
    pub fn make(&self, directory: &Path) -> anyhow::Result<Engine> {
        let (place, bytes) = match self {
            Storage::HostFiles => {
                let path = directory.join("objects");
                std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
                return Ok(Engine::Directory);
            }
            Storage::Device(device) => {
                let bytes = check_device(device).with_context(|| format!("cannot use {}", device.display()))?;
                let link = directory.join(DEVICE_FILE);
                symlink(device, &link).with_context(|| format!("cannot create {}", link.display()))?;
                (device.clone(), bytes)
            }
            Storage::File(bytes) => {
                let path = directory.join(DEVICE_FILE);
                make_file(&path, *bytes).with_context(|| format!("cannot make {} of {bytes} bytes", path.display()))?;
                (path, *bytes)
            }
        };
        let blocks = bytes / BLOCK_BYTES;
        if blocks < DEVICE_BLOCKS_MIN {
            bail!("{} has {bytes} bytes, and at least {} are needed", place.display(), DEVICE_BLOCKS_MIN * BLOCK_BYTES);
        }
        Ok(Engine::Blocks { blocks })
    }
}

/// A file that has its space: the host's file system cannot run out of it later.
fn make_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    file.sync_all()?;
    Ok(())
}

/// Bytes of a device that nothing uses, as far as can be seen.
fn check_device(device: &Path) -> anyhow::Result<u64> {
    let kind = std::fs::metadata(device)?.file_type();
    let mut options = File::options();
    options.read(true).write(true);
    if kind.is_block_device() {
        // Linux refuses it while the device is mounted, or part of another one.
        options.custom_flags(libc::O_EXCL);
    } else if !kind.is_file() {
        bail!("it is neither a block device nor a file");
    }
    let mut file = match options.open(device) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => bail!("it is in use"),
        opened => opened?,
    };
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes >= BLOCK_BYTES {
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.seek(SeekFrom::Start(0))?;
        file.read_exact(&mut block)?;
        if let Ok(label) = DeviceLabel::decode(&block) {
            bail!(
                "it has the data of {}; if they are not needed any more, overwrite its first {BLOCK_BYTES} bytes",
                oss::superblock::target_name(&label.fsname, label.index)
            );
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(engine: EngineName, device: Option<&str>, size: Option<&str>) -> StorageArgs {
        StorageArgs { engine, device: device.map(PathBuf::from), size: size.map(str::to_owned) }
    }

    #[test]
    fn arguments_say_where_data_are() {
        use EngineName::{Blocks, Directory};
        let storage = |engine, device, size, osts| {
            arguments(engine, device, size).storage(osts).map_err(|error| error.to_string())
        };
        assert_eq!(storage(Directory, None, None, 3), Ok(Storage::HostFiles));
        assert_eq!(storage(Blocks, Some("/dev/vdb"), None, 1), Ok(Storage::Device("/dev/vdb".into())));
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
        assert_eq!(made, Engine::Blocks { blocks: DEVICE_BLOCKS_MIN });
        let file = place.path().join(DEVICE_FILE);
        let found = std::fs::metadata(&file).unwrap();
        assert!(found.len() == bytes && std::os::unix::fs::MetadataExt::blocks(&found) * 512 >= bytes);
        let refused = |device: &Path| {
            let directory = tempfile::tempdir().unwrap();
            format!("{:#}", Storage::Device(device.to_owned()).make(directory.path()).unwrap_err())
        };
        assert!(refused(place.path()).contains("neither a block device nor a file"));
        assert!(refused(&place.path().join("missing")).contains("No such file"));
        let small = place.path().join("small");
        std::fs::write(&small, "text").unwrap();
        assert!(refused(&small).contains("has 4 bytes"));
        let label = DeviceLabel { index: types::OstIndex(3), identity: [1; 16], fsname: "stria".into(), blocks: 9 };
        std::fs::write(&file, label.encode()).unwrap();
        assert!(refused(&file).contains("it has the data of stria-OST0003"));
    }
}
