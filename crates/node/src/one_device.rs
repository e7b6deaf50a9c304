//! Object storage targets that have nothing but a device, or one large file: the label says which
//! target it is, and has the server key; tables and objects are beside it (`oss::one_device`).
//!
//! The path of such a target is that of the device. Whatever is no directory is looked at as one.

use std::{
    fs::File,
    io::{self, ErrorKind, Seek, SeekFrom},
    os::unix::fs::{FileExt, fchown},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use bytes::Bytes;
use oss::{
    Engine, Ost, OstDevices, Throughput,
    device_label::DeviceLabel,
    directory::device::{DEVICE_FILE, write_labels},
    one_device::OneDevice,
    tables_part::{ONE_DEVICE_BYTES_MIN, TablesPart},
};
use rpc::Key;
use rt::{
    Device, Entropy,
    real::{Execution, LocalDirectory, SystemEntropy},
};
use types::{OstIndex, limits::BLOCK_BYTES};

use super::{
    config::{Role, TargetConfig},
    identity::{Identity, IdentityError},
    process,
    storage::{OneDeviceStorage, check_device, make_file},
    target::{self, Threads},
};

/// Part of a target's memory that the tree of its tables gets.
const TREE_SHARE: u64 = 8;
/// Memory that formatting needs for a handful of records.
const FORMAT_MEMORY_BYTES: u64 = 64 << 20;

/// The label of the target that a device is; `None` if it is none. Of two copies that can be read,
/// the first.
pub fn label(path: &Path) -> io::Result<Option<DeviceLabel>> {
    let mut file = File::open(path)?;
    let blocks = file.seek(SeekFrom::End(0))? / BLOCK_BYTES;
    if blocks < 2 {
        return Ok(None);
    }
    let copy = |place: u64| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.read_exact_at(&mut block, place * BLOCK_BYTES)?;
        Ok(DeviceLabel::decode(&block).ok().filter(|label| label.tables.is_some()))
    };
    match copy(0) {
        Ok(Some(label)) => Ok(Some(label)),
        // The other one may be readable.
        first => match (copy(blocks - 1), first) {
            (Ok(Some(label)), _) => Ok(Some(label)),
            (_, Err(error)) => Err(error),
            (last, _) => last,
        },
    }
}

/// Whether a path is looked at as a device that is a target: there is something that is no
/// directory.
pub fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_dir())
}

/// What the label of a device says of the target that it is.
pub fn identity(path: &Path) -> Result<Identity, IdentityError> {
    let found = label(path).map_err(|source| IdentityError::Io { path: path.to_owned(), source })?;
    let label = found.filter(|label| !label.is_unfinished());
    let label = label.ok_or_else(|| IdentityError::NotFormatted(path.to_owned()))?;
    Ok(Identity::new(&label.fsname, Role::Ost, label.index.0, label.uuid()))
}

/// The server key on a device.
pub fn server_key(path: &Path) -> anyhow::Result<Key> {
    let label = label(path).with_context(|| format!("cannot read {}", path.display()))?;
    let key = label.and_then(|label| label.key);
    key.with_context(|| format!("{} is not a StriaFS target; format it first: stria format", path.display()))
}

/// The device, for this process alone.
fn hold(path: &Path, threads: &Threads) -> anyhow::Result<OneDevice> {
    let held = LocalDirectory::of_file(path, DEVICE_FILE, Execution::Pooled, Arc::clone(&threads.ost_io));
    let pooled = held.with_context(|| format!("cannot use {}", path.display()))?;
    let inline = pooled.with_execution(Execution::Inline).with_flushers(Arc::clone(&threads.flush));
    let (at_once, tables): (Arc<dyn Device>, Arc<dyn Device>) = (Arc::new(inline.clone()), Arc::new(inline));
    Ok(OneDevice { at_once, tables, objects: Arc::new(pooled.with_flushers(Arc::clone(&threads.ost_flush))) })
}

fn opened(device: &OneDevice, part: &TablesPart, memory_bytes: u64) -> anyhow::Result<OstDevices> {
    let cache_bytes = usize::try_from(memory_bytes / TREE_SHARE)?;
    let opened = device.open(part, cache_bytes, true, Arc::<Throughput>::default());
    opened.context("cannot open the tables on it")
}

/// The settings of tables in a part of a device.
fn configured(part: &TablesPart, memory_bytes: u64) -> anyhow::Result<kv::Config> {
    let layout = part.layout().context("its label names an impossible part for the tables")?;
    Ok(layout.configure(target::config(memory_bytes)))
}

/// What a target on a device opens.
pub fn open(path: &Path, threads: &Threads, memory_bytes: u64) -> anyhow::Result<(OstDevices, kv::Config)> {
    let device = hold(path, threads)?;
    // Now that nothing else can change it.
    let part = label(path)?.and_then(|label| label.tables);
    let part = part.with_context(|| format!("{} is not a StriaFS target", path.display()))?;
    let devices = opened(&device, &part, memory_bytes).with_context(|| format!("cannot use {}", path.display()))?;
    Ok((devices, configured(&part, memory_bytes)?))
}

/// Refuses a device that cannot become a target; changes nothing.
pub fn check(target: &TargetConfig, storage: &OneDeviceStorage) -> anyhow::Result<()> {
    let path = &target.dir;
    if target.role != Role::Ost {
        bail!("only an object storage target can have nothing but a device: give the {} a directory", target.role);
    }
    let bytes = match storage.size {
        Some(bytes) if path.symlink_metadata().is_err() => bytes,
        Some(_) => bail!("{} exists; --size is for a file that is to be made", path.display()),
        None => {
            let found = path.symlink_metadata();
            if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                bail!("{} does not exist; with --size SIZE a file is made", path.display());
            }
            if let (Ok(existing), false) = (identity(path), storage.force) {
                return Err(IdentityError::Formatted(path.clone(), existing.describe()).into());
            }
            check_device(path, storage.force).with_context(|| format!("cannot use {}", path.display()))?
        }
    };
    part_of(bytes, storage.tables).map(drop)
}

fn part_of(bytes: u64, tables: Option<u64>) -> anyhow::Result<TablesPart> {
    if bytes < ONE_DEVICE_BYTES_MIN {
        bail!(
            "a device for tables and data needs {} MiB, and this one has {}",
            ONE_DEVICE_BYTES_MIN >> 20,
            bytes >> 20
        );
    }
    TablesPart::of_new(bytes / BLOCK_BYTES, tables).with_context(|| {
        let wanted = tables.unwrap_or_default() >> 20;
        format!(
            "--tables: {wanted} MiB are not possible on a device of {} MiB: leave it out for a default",
            bytes >> 20
        )
    })
}

/// Makes a target of a device, or of a file that is made. `owner`: of the file, if it is one.
pub fn format(
    target: &TargetConfig,
    storage: &OneDeviceStorage,
    fsname: &str,
    key: &Key,
    owner: Option<(u32, u32)>,
) -> anyhow::Result<()> {
    check(target, storage)?;
    let path = &target.dir;
    if let Some(bytes) = storage.size {
        make_file(path, bytes).with_context(|| format!("cannot make {} of {bytes} bytes", path.display()))?;
    }
    let mut file = File::options().read(true).write(true).open(path)?;
    if let Some((uid, gid)) = owner
        && file.metadata()?.is_file()
    {
        fchown(&file, Some(uid), Some(gid))
            .with_context(|| format!("cannot change the owner of {}", path.display()))?;
    }
    let blocks = file.seek(SeekFrom::End(0))? / BLOCK_BYTES;
    drop(file);
    let part = part_of(blocks * BLOCK_BYTES, storage.tables)?;
    let cores = rt::real::Cores::start(1)?;
    let made = cores.block_on(make(process::seams(&cores), path.clone(), blocks, part, fsname, target.index, key));
    cores.shutdown();
    made
}

async fn make(
    seams: rt::Seams,
    path: PathBuf,
    blocks: u64,
    part: TablesPart,
    fsname: &str,
    index: u16,
    key: &Key,
) -> anyhow::Result<()> {
    let device = hold(&path, &Threads::start()?)?;
    // First of all the device is no target any more.
    for place in DeviceLabel::places(blocks) {
        let zeros = Bytes::from_static(&[0; BLOCK_BYTES as usize]);
        device.tables.write(DEVICE_FILE, place * BLOCK_BYTES, vec![zeros]).await?;
    }
    device.format(&part, SystemEntropy.next_u64()).await?;
    let devices = opened(&device, &part, FORMAT_MEMORY_BYTES)?;
    let engine = Engine::Blocks { blocks, tables: Some(part) };
    let config = configured(&part, FORMAT_MEMORY_BYTES)?;
    let superblock = Ost::format_with(&seams, &devices, fsname, OstIndex(index), engine, config).await?;
    // With the key the target is complete.
    let label = DeviceLabel { key: Some(key.clone()), ..DeviceLabel::of(&superblock, blocks) };
    write_labels(&*devices.objects, &label).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(dir: &Path) -> TargetConfig {
        TargetConfig { role: Role::Ost, index: 3, dir: dir.to_owned(), on_device: true }
    }

    fn refused(path: &Path, storage: &OneDeviceStorage) -> String {
        format!("{:#}", check(&target(path), storage).unwrap_err())
    }

    #[test]
    fn a_file_becomes_a_target_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        let made = OneDeviceStorage { size: Some(ONE_DEVICE_BYTES_MIN), ..OneDeviceStorage::default() };
        let key = Key::random(&SystemEntropy);
        format(&target(&path), &made, "stria", &key, None).unwrap();
        let found = Identity::load(&path).unwrap();
        assert_eq!((found.role, found.index, &found.fsname[..]), (Role::Ost, 3, "stria"));
        assert_eq!(server_key(&path).unwrap(), key);
        let existing = OneDeviceStorage::default();
        assert!(refused(&path, &made).contains("--size is for a file that is to be made"));
        assert!(refused(&path, &existing).contains("already holds stria-OST0003 of file system 'stria'"));
        // The other copy of the label is enough.
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        assert_eq!(Identity::load(&path).unwrap(), found);
        // Neither is there: its data still are.
        file.write_all_at(&[0; 4096], ONE_DEVICE_BYTES_MIN - 4096).unwrap();
        assert!(matches!(Identity::load(&path), Err(IdentityError::NotFormatted(_))));
        assert!(refused(&path, &existing).contains("other data"));
        let forced = OneDeviceStorage { force: true, ..existing };
        format(&target(&path), &forced, "stria", &key, None).unwrap();
        assert!(Identity::load(&path).is_ok());
    }

    #[test]
    fn what_cannot_be_a_target_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        let existing = OneDeviceStorage::default();
        assert!(refused(&path, &existing).contains("does not exist; with --size SIZE a file is made"));
        let small = OneDeviceStorage { size: Some(64 << 20), ..existing };
        assert!(refused(&path, &small).contains("needs 256 MiB, and this one has 64"));
        let large = OneDeviceStorage { size: Some(1 << 30), tables: Some(1 << 30), ..existing };
        assert!(refused(&path, &large).contains("--tables: 1024 MiB are not possible on a device of 1024 MiB"));
        let mdt = TargetConfig { role: Role::Mdt, ..target(&path) };
        assert!(check(&mdt, &existing).unwrap_err().to_string().contains("give the mdt a directory"));
        std::fs::write(&path, vec![1; ONE_DEVICE_BYTES_MIN as usize]).unwrap();
        assert!(refused(&path, &existing).contains("its first 128 KiB are not all zeros"));
        assert!(!path.with_extension("other").exists());
    }
}
