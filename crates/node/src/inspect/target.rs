//! One target: identity, store, journal, tables, host files.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::bail;
use kv::{Table, inspect::Schema, superblock::Superblock};

use super::{Fact, InspectionReport, host_files::HostFiles, journal, parts::Parts, tables};
use crate::{
    config::Role,
    identity::{DirectoryLock, Identity},
    one_device,
};

/// Inspects the target in a directory, or on a device.
pub async fn inspect(directory: &Path, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    let _lock = DirectoryLock::share(directory)?;
    let role = show_identity(directory, report)?;
    let schema = schema(role);
    let parts = Parts::of(directory)?;
    let missing = parts.missing();
    for path in &missing {
        report.damage(format_args!("{} is missing", path.display()))?;
    }
    let superblock = show_superblock(&parts, report).await?;
    if !missing.contains(&parts.journal_path()) {
        report.heading(format_args!("journal:"))?;
        journal::inspect(&parts, &*schema, report).await?;
    }
    let mut files = HostFiles::new(directory, parts.device_path(), report.inode);
    if missing.is_empty() {
        let visit: tables::Visitor<'_> = &mut |table, key, value| files.note(table, key, value);
        tables::inspect(&parts, superblock.as_ref(), &*schema, report, visit).await?;
    }
    if role == Some(Role::Ost) {
        files.inspect(report)?;
    }
    Ok(())
}

fn show_identity(directory: &Path, report: &mut InspectionReport<'_>) -> anyhow::Result<Option<Role>> {
    match Identity::load(directory) {
        Ok(identity) => {
            let Identity { format_version, fsname, role, uuid, .. } = &identity;
            let fact = || Fact::Identity {
                name: identity.name(),
                fsname: fsname.clone(),
                format_version: *format_version,
                uuid: uuid.clone(),
            };
            report.line(
                fact,
                format_args!(
                    "{}: {}\nformat version {format_version}, uuid {uuid}",
                    directory.display(),
                    identity.describe()
                ),
            )?;
            Ok(Some(*role))
        }
        Err(error) => {
            report.heading(format_args!("{}:", directory.display()))?;
            report.damage(format_args!("identity: {error}"))?;
            Ok(None)
        }
    }
}

async fn show_superblock(parts: &Parts, report: &mut InspectionReport<'_>) -> anyhow::Result<Option<Superblock>> {
    match Superblock::read(&*parts.journal()?).await {
        Ok(Some(superblock)) => {
            let Superblock { version, store, segment_bytes, opens } = superblock;
            report.line(
                || Fact::Store { store: format!("{store:016x}"), version, segment_bytes, opened: opens },
                format_args!(
                    "store {store:016x}: version {version}, segments of {segment_bytes} bytes, opened {opens} times"
                ),
            )?;
            Ok(Some(superblock))
        }
        Ok(None) => {
            report.damage(format_args!("store: its file is missing or was never completed"))?;
            Ok(None)
        }
        Err(error) => {
            report.damage(format_args!("store: {error}"))?;
            Ok(None)
        }
    }
}

/// What the tables of a role mean.
fn schema(role: Option<Role>) -> Box<dyn Schema + Sync> {
    match role {
        Some(Role::Mgs) => Box::new(mgs::inspect::MgsSchema),
        Some(Role::Mdt) => Box::new(mds::inspect::MdtSchema),
        Some(Role::Ost) => Box::new(oss::inspect::OstSchema),
        None => Box::new(Unknown),
    }
}

/// The tables of the target that a journal directory belongs to.
pub fn schema_above(journal: &Path) -> Box<dyn Schema + Sync> {
    let identity = journal.canonicalize().ok().and_then(|path| Identity::load(path.parent()?).ok());
    schema(identity.map(|identity| identity.role))
}

/// Tables of an unknown owner: bytes as they are.
struct Unknown;

impl Schema for Unknown {
    fn table(&self, _table: Table) -> Option<&'static str> {
        Some("table")
    }

    fn key(&self, table: Table, key: &[u8]) -> Result<String, String> {
        Ok(format!("{} {}", table.0, key.escape_ascii()))
    }

    fn value(&self, _table: Table, _key: &[u8], value: &[u8]) -> Result<String, String> {
        Ok(format!("{} bytes", value.len()))
    }

    fn concerns(&self, _table: Table, _key: &[u8], _value: &[u8], _inode: u64) -> bool {
        false
    }
}

impl DirectoryLock {
    /// Keeps servers away while a target is looked at, and creates nothing: without a lock file
    /// it was never served.
    pub(super) fn share(directory: &Path) -> anyhow::Result<Option<File>> {
        if one_device::is_device(directory) {
            return match rt::real::open_alone(directory) {
                Ok(file) => Ok(Some(file)),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    bail!("{} is in use by another stria process; stop it first", directory.display())
                }
                Err(error) => bail!("{}: {error}", directory.display()),
            };
        }
        let path: PathBuf = directory.join(Self::FILE_NAME);
        let Ok(file) = File::open(&path) else { return Ok(None) };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(file)),
            Err(std::fs::TryLockError::WouldBlock) => bail!(
                "{} is in use by another stria process; stop it first, or inspect a segment of {}",
                directory.display(),
                directory.join("journal").display()
            ),
            Err(std::fs::TryLockError::Error(error)) => bail!("{}: {error}", path.display()),
        }
    }
}
