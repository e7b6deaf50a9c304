//! How far a check has come, in a file (`--resume FILE`): one that was ended goes on from there.
//!
//! What takes long is kept: the namespace of each MDT, names over several MDTs, and objects that
//! were read, each with what was found. Lists of inodes and objects are read again. What was
//! checked was right at that moment, as is everything that a check of a file system in use says.
//!
//! Life cycle: read at the begin; written when a part is done, and every [`INTERVAL`] while objects
//! are read; removed when a complete check has been reported. Only a file of the caller that nobody
//! else may write to is believed. Downside: two checks with one file overwrite what the other
//! notes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{ErrorKind, Read as _},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rpc::message::{mdt::Finding, mgs::TargetRole};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use types::ObjectId;

use super::FsckArgs;
use crate::durable_file;

/// Between two records of objects that were read.
const INTERVAL: Duration = Duration::from_secs(5);
/// Of the file.
const FORMAT: u32 = 1;

/// Objects of a target that were checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedObjects {
    /// The last of them.
    pub last: Option<ObjectId>,
    /// Damaged ones.
    pub findings: Vec<Finding>,
}

/// What is in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    format: u32,
    source: String,
    repair: bool,
    data: bool,
    /// By MDT.
    namespaces: BTreeMap<String, Vec<Finding>>,
    /// Of names over these MDTs.
    names: Option<(BTreeSet<String>, Vec<Finding>)>,
    /// By target.
    objects: BTreeMap<String, CheckedObjects>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// `None`: nothing is kept.
    path: Option<PathBuf>,
    record: Record,
    written: Option<Instant>,
}

impl Checkpoint {
    /// Of a check that begins, or goes on.
    pub fn read(arguments: &FsckArgs) -> anyhow::Result<Self> {
        let begun = Record {
            format: FORMAT,
            source: source_of(arguments),
            repair: arguments.repair,
            data: arguments.data,
            ..Record::default()
        };
        let Some(path) = &arguments.resume else { return Ok(Self { record: begun, ..Self::default() }) };
        let record = match read_own(path) {
            Ok(Some(text)) => Record::decode(&text, &begun)
                .with_context(|| format!("{}: a check cannot go on from it", path.display()))?,
            Ok(None) => begun,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mut checkpoint = Self { path: Some(path.clone()), record, written: None };
        // That it cannot be written is told now, not after hours.
        checkpoint.write()?;
        Ok(checkpoint)
    }

    /// What is done already, in words; `None`: nothing.
    pub fn done(&self) -> Option<String> {
        let Record { namespaces, names, objects, .. } = &self.record;
        let names = names.as_ref().map(|_| "names over several MDTs".to_owned());
        let of_objects = objects.keys().map(|target| format!("objects of {target}"));
        let parts: Vec<_> = namespaces.keys().cloned().chain(names).chain(of_objects).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// What was found in the namespace of an MDT, if that was checked.
    pub fn namespace(&self, mdt: TargetRole) -> Option<Vec<Finding>> {
        self.record.namespaces.get(&mdt.to_string()).cloned()
    }

    /// The namespace of an MDT was checked.
    pub fn namespace_checked(&mut self, mdt: TargetRole, findings: &[Finding]) -> anyhow::Result<()> {
        self.record.namespaces.insert(mdt.to_string(), findings.to_vec());
        self.write()
    }

    /// What was found of names over these MDTs, if they were compared.
    pub fn names(&self, mdts: &[TargetRole]) -> Option<Vec<Finding>> {
        let (of, findings) = self.record.names.as_ref()?;
        (*of == by_name(mdts)).then(|| findings.clone())
    }

    /// Names over these MDTs were compared.
    pub fn names_checked(&mut self, mdts: &[TargetRole], findings: &[Finding]) -> anyhow::Result<()> {
        self.record.names = Some((by_name(mdts), findings.to_vec()));
        self.write()
    }

    /// Which objects of a target were checked.
    pub fn objects(&self, target: TargetRole) -> CheckedObjects {
        self.record.objects.get(&target.to_string()).cloned().unwrap_or_default()
    }

    /// The objects of a target were checked up to this one.
    pub fn objects_checked(&mut self, target: TargetRole, last: ObjectId, findings: &[Finding]) -> anyhow::Result<()> {
        let checked = self.record.objects.entry(target.to_string()).or_default();
        checked.last = Some(last);
        checked.findings.extend_from_slice(findings);
        match self.written.is_some_and(|written| written.elapsed() < INTERVAL) {
            true => Ok(()),
            false => self.write(),
        }
    }

    /// A complete check has been reported.
    pub fn complete(&self) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// What was noted so far is in the file from now on.
    pub fn write(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        replace(path, &serde_json::to_vec(&self.record)?)
            .with_context(|| format!("cannot write {}; name another file with --resume", path.display()))?;
        self.written = Some(Instant::now());
        Ok(())
    }
}

impl Record {
    /// Of the same check as the one that begins.
    fn decode(text: &[u8], begun: &Self) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let Head { format } = serde_json::from_slice(text).context("it is not of stria fsck: name another file")?;
        if format != FORMAT {
            bail!("it has format {format}, this release knows {FORMAT}: remove it, and the check begins anew");
        }
        let record: Self =
            serde_json::from_slice(text).context("it is damaged: remove it, and the check begins anew")?;
        record.is_of(begun)?;
        Ok(record)
    }

    /// Whether it is of a check of the same things.
    fn is_of(&self, begun: &Self) -> anyhow::Result<()> {
        let of = |record: &Self| (record.source.clone(), record.repair, record.data);
        if of(self) != of(begun) {
            let options = [(self.repair, " --repair"), (self.data, " --data")];
            let options: String = options.iter().filter(|(is_set, _)| *is_set).map(|(_, option)| *option).collect();
            bail!(
                "it is of `stria fsck{options} {}`: name the same file system and options, or another file",
                self.source
            );
        }
        Ok(())
    }
}

fn by_name(targets: &[TargetRole]) -> BTreeSet<String> {
    targets.iter().map(ToString::to_string).collect()
}

/// The same for each way to write a directory.
fn source_of(arguments: &FsckArgs) -> String {
    let path = Path::new(&arguments.source).canonicalize().ok();
    path.map_or_else(|| arguments.source.to_string_lossy().into_owned(), |path| path.to_string_lossy().into_owned())
}

/// What is in a file of the caller's; `None`: there is none.
fn read_own(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        bail!("it must be a file of your own that nobody else can write to");
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(Some(text))
}

/// The file has this text from now on, or what it had before. Nobody else can read it: it has
/// names.
fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".unfinished");
    let temporary = path.with_file_name(name);
    // What an earlier check left behind. No link of another user is followed.
    let _ = fs::remove_file(&temporary);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    durable_file::replace(path, (&temporary, file), text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use types::{InodeNumber, MdtIndex, OstIndex};

    use super::*;

    const MDT: TargetRole = TargetRole::Mdt(MdtIndex(1));
    const OST: TargetRole = TargetRole::Ost(OstIndex(2));

    fn arguments(resume: Option<PathBuf>, data: bool) -> FsckArgs {
        FsckArgs { source: "mgs:/stria".into(), key: None, repair: false, data, json: false, resume }
    }

    fn finding(number: u64) -> Finding {
        Finding { inode: InodeNumber(number), problem: "lost".to_owned(), repaired: false }
    }

    #[test]
    fn a_check_goes_on_with_what_was_done_and_found() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state");
        let mut first = Checkpoint::read(&arguments(Some(path.clone()), true)).unwrap();
        assert_eq!((first.done(), first.namespace(MDT)), (None, None));
        first.namespace_checked(MDT, &[finding(7)]).unwrap();
        let last = ObjectId::new(InodeNumber(9), 1);
        first.written = None;
        first.objects_checked(OST, last, &[finding(8)]).unwrap();
        first.objects_checked(OST, ObjectId::new(InodeNumber(10), 0), &[]).unwrap();
        let second = Checkpoint::read(&arguments(Some(path.clone()), true)).unwrap();
        assert_eq!(second.done().unwrap(), "MDT0001, objects of OST0002");
        assert_eq!((second.namespace(MDT), second.names(&[MDT])), (Some(vec![finding(7)]), None));
        let expected = CheckedObjects { last: Some(last), findings: vec![finding(8)] };
        assert_eq!(second.objects(OST), expected, "the last page was not written yet");
        let refused = Checkpoint::read(&arguments(Some(path.clone()), false)).unwrap_err();
        assert!(format!("{refused:#}").contains("`stria fsck --data mgs:/stria`"), "{refused:#}");
        let mut second = second;
        second.names_checked(&[MDT], &[finding(1)]).unwrap();
        let third = Checkpoint::read(&arguments(Some(path.clone()), true)).unwrap();
        assert_eq!(third.names(&[MDT]), Some(vec![finding(1)]));
        assert_eq!(third.names(&[MDT, TargetRole::Mdt(MdtIndex(2))]), None, "one that was not there");
        third.complete().unwrap();
        third.complete().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_others_is_left_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notes");
        fs::write(&path, "mine").unwrap();
        let refused = || format!("{:#}", Checkpoint::read(&arguments(Some(path.clone()), false)).unwrap_err());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(refused().contains("it is not of stria fsck"), "{}", refused());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(refused().contains("nobody else can write"), "{}", refused());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        let nowhere = place.path().join("none/state");
        assert!(Checkpoint::read(&arguments(Some(nowhere), false)).is_err());
        let mut none = Checkpoint::read(&arguments(None, false)).unwrap();
        none.names_checked(&[MDT], &[]).unwrap();
        none.complete().unwrap();
    }
}
