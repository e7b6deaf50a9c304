//! Object storage targets that have nothing but a device, or one large file: the label says which
//! target it is, and has the server key; tables and objects are beside it (`oss::one_device`).
//!
//! The path of such a target is that of the device. Whatever is no directory is looked at as one.

use std::{
    fs::File,
    io::{self, ErrorKind, Seek, SeekFrom},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, bail};
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
    private_file, process,
    status::say,
    storage::{OneDeviceStorage, check_device, make_file},
    target::{self, Threads},
};

/// Part of a target's memory that the tree of its tables gets.
const TREE_SHARE: u64 = 8;
/// Memory that formatting needs for a handful of records.
const FORMAT_MEMORY_BYTES: u64 = 64 << 20;

/// The label of the target that a device is ([`DeviceLabel::find`]).
pub fn label(path: &Path) -> io::Result<Option<DeviceLabel>> {
    // Opening a pipe must not wait for its other end.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let blocks = file.seek(SeekFrom::End(0))? / BLOCK_BYTES;
    DeviceLabel::find(blocks, |place| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.read_exact_at(&mut block, place * BLOCK_BYTES)?;
        Ok(block)
    })
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
    // Before it has the key.
    if let Some(notice) = private_file::take_over(path, owner)? {
        say(notice);
    }
    let blocks = File::open(path)?.seek(SeekFrom::End(0))? / BLOCK_BYTES;
    let part = part_of(blocks * BLOCK_BYTES, storage.tables)?;
    let new = New { path, blocks, part, fsname, index: target.index, key, force: storage.force };
    let cores = rt::real::Cores::start(1)?;
    let made = cores.block_on(make(process::seams(&cores), new));
    cores.shutdown();
    made
}

/// A target that is to be made.
struct New<'a> {
    path: &'a Path,
    blocks: u64,
    part: TablesPart,
    fsname: &'a str,
    index: u16,
    key: &'a Key,
    /// Whatever is there is not needed.
    force: bool,
}

async fn make(seams: rt::Seams, new: New<'_>) -> anyhow::Result<()> {
    let New { path, blocks, part, fsname, index, key, force } = new;
    let device = hold(path, &Threads::start()?)?;
    // Another process may have made a target of it before it was held.
    if let (Ok(existing), false) = (identity(path), force) {
        return Err(IdentityError::Formatted(path.to_owned(), existing.describe()).into());
    }
    device.clear_labels(blocks).await?;
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
    use std::{
        fs::Permissions,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

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
    fn of_two_that_format_a_device_the_second_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        let made = OneDeviceStorage { size: Some(ONE_DEVICE_BYTES_MIN), ..OneDeviceStorage::default() };
        let key = Key::random(&SystemEntropy);
        format(&target(&path), &made, "stria", &key, None).unwrap();
        let before = Identity::load(&path).unwrap();
        // The second one looked at it before the first one had begun.
        let blocks = ONE_DEVICE_BYTES_MIN / BLOCK_BYTES;
        let part = part_of(ONE_DEVICE_BYTES_MIN, None).unwrap();
        let new = New { path: &path, blocks, part, fsname: "other", index: 3, key: &key, force: false };
        let cores = rt::real::Cores::start(1).unwrap();
        let refused = cores.block_on(make(process::seams(&cores), new)).unwrap_err();
        cores.shutdown();
        assert!(refused.to_string().contains("already holds stria-OST0003 of file system 'stria'"), "{refused:#}");
        assert_eq!(Identity::load(&path).unwrap(), before);
    }

    #[test]
    fn an_existing_file_is_private_before_it_has_the_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        let file = File::create(&path).unwrap();
        file.set_len(ONE_DEVICE_BYTES_MIN).unwrap();
        file.set_permissions(Permissions::from_mode(0o644)).unwrap();
        let me = file.metadata().unwrap();
        // Only root gives files away.
        let owner = if me.uid() == 0 { (4711, 4712) } else { (me.uid(), me.gid()) };
        format(&target(&path), &OneDeviceStorage::default(), "stria", &Key::random(&SystemEntropy), Some(owner))
            .unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o600, owner.0, owner.1));
    }

    /// A label with a checksum, of a device that would be far larger.
    #[test]
    fn a_label_of_a_larger_device_is_not_believed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        let blocks = 1 << 40;
        let tables = Some(TablesPart { blocks: 1 << 39, ..TablesPart::of_new(1 << 20, None).unwrap() });
        let key = Some(Key::random(&SystemEntropy));
        let label = DeviceLabel { index: OstIndex(3), identity: [1; 16], fsname: "stria".into(), blocks, tables, key };
        let file = File::create(&path).unwrap();
        file.set_len(ONE_DEVICE_BYTES_MIN).unwrap();
        for place in DeviceLabel::places(ONE_DEVICE_BYTES_MIN / BLOCK_BYTES) {
            file.write_all_at(&label.encode(), place * BLOCK_BYTES).unwrap();
        }
        let refused = Identity::load(&path).unwrap_err();
        assert!(std::error::Error::source(&refused).unwrap().to_string().contains("and it has 65536"), "{refused}");
        let threads = Threads::start().unwrap();
        assert!(open(&path, &threads, FORMAT_MEMORY_BYTES).is_err() && server_key(&path).is_err());
    }

    #[test]
    fn a_pipe_is_no_target_and_nothing_waits_for_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(matches!(Identity::load(&path), Err(IdentityError::Io { .. })));
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
