//! `stria fsck`: checks the namespace for consistency with itself and with the objects, on a
//! running file system or a stopped `up`.
//!
//! Everything goes through the servers' own requests, so it works on any number of hosts and while
//! the file system is in use: a finding that another client's work could explain is checked again
//! before it is reported.

mod arguments;
mod checkpoint;
mod cycles;
mod names;
mod objects;
mod progress;
mod repairs;
mod targets;
mod verdict;

use std::{
    ffi::OsStr,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use fuse::MountSource;
use oss::directory::host_files::UnreferencedFile;
use rpc::{
    Import, Role,
    message::{
        MdtReply, MdtRequest,
        mdt::{Finding, ScannedInode},
        mgs::TargetRole,
    },
};
use rt::{Clock, real::Cores};
use serde::Serialize;
use types::{Credentials, Fid, OstIndex, counted};

use crate::{Node, NodeOptions, config, key_file, reachability::tell_while_any, signals, up};
pub use arguments::FsckArgs;
use checkpoint::Checkpoint;
use objects::ObjectCheck;
use progress::Progress;
use targets::{Targets, visit_inodes};

/// What a check counted and found.
#[derive(Debug, Default)]
pub struct Summary {
    /// Inodes seen.
    pub inodes: u64,
    /// Of these, regular files.
    pub files: u64,
    /// Objects seen.
    pub objects: u64,
    /// Files without writers whose size only their objects know.
    pub size_unknown: u64,
    /// Inodes whose records do not decode; the check of the namespace reports each. Any object may
    /// be theirs.
    pub damaged: u64,
    /// Objects that have lost data: only a copy can bring them back.
    pub damaged_objects: u64,
    /// Targets of another version, which cannot tell whether host files are whole, and what they
    /// say instead.
    pub unchecked: Vec<(OstIndex, String)>,
    /// Targets that administrators took out of use: neither asked nor waited for.
    pub deactivated: Vec<TargetRole>,
    /// Files that have data on targets which were not asked: their sizes cannot be compared.
    pub uncompared: u64,
    /// Objects that belong to no file of the metadata targets that were read: since then there are
    /// others, or it is not known whether there are.
    pub unjudged: u64,
    /// Files of the targets of this process that belong to no object.
    pub unreferenced: Vec<Unreferenced>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// A file in the directory of a target of this process that belongs to no object.
#[derive(Debug)]
pub struct Unreferenced {
    path: PathBuf,
    kind: UnreferencedKind,
    removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreferencedKind {
    /// Not made by StriaFS.
    Foreign,
    /// A former host file, of an object that does not exist any more.
    OfNoObject,
    /// The host file of an object that a file has and its target does not know: the only copy of
    /// its data.
    OfLostRecord,
}

impl Unreferenced {
    fn problem(&self) -> &'static str {
        match self.kind {
            UnreferencedKind::Foreign => "does not belong to StriaFS",
            UnreferencedKind::OfNoObject => "host file that belongs to no object",
            UnreferencedKind::OfLostRecord => {
                "host file of an object whose record is lost; kept, because it is the only copy of its data"
            }
        }
    }
}

/// An unreferenced file as a JSON line.
#[derive(Serialize)]
struct JsonUnreferenced<'a> {
    file: &'a str,
    problem: &'a str,
    removed: bool,
}

/// What was counted, as the last JSON line.
#[derive(Serialize)]
struct JsonSummary {
    summary: &'static str,
    complete: bool,
    inodes: u64,
    files: u64,
    objects: u64,
    problems: usize,
    repaired: usize,
    damaged_objects: u64,
    size_unknown: u64,
    unreferenced: usize,
    unchecked: Vec<String>,
    deactivated: Vec<String>,
    uncompared: u64,
    unjudged: u64,
}

impl JsonSummary {
    fn new(summary: &Summary, complete: bool) -> Self {
        let problems = summary.findings.len();
        Self {
            summary: summary.word(complete),
            complete,
            inodes: summary.inodes,
            files: summary.files,
            objects: summary.objects,
            problems,
            repaired: problems - summary.problems_left(),
            damaged_objects: summary.damaged_objects,
            size_unknown: summary.size_unknown,
            unreferenced: summary.unreferenced.iter().filter(|file| !file.removed).count(),
            unchecked: summary.unchecked.iter().map(|(ost, _)| ost.to_string()).collect(),
            deactivated: summary.deactivated.iter().map(ToString::to_string).collect(),
            uncompared: summary.uncompared,
            unjudged: summary.unjudged,
        }
    }
}

/// A finding as a JSON line.
#[derive(Serialize)]
struct JsonFinding<'a> {
    inode: u64,
    fid: String,
    problem: &'a str,
    repaired: bool,
}

/// Runs `stria fsck`. Exit status 0: clean; otherwise an error that counts what is left.
pub fn run(arguments: &FsckArgs) -> anyhow::Result<()> {
    let cores = Cores::start_all()?;
    let options = options(arguments)?;
    let mut checkpoint = Checkpoint::read(arguments)?;
    let node = cores.block_on(Node::start(cores.clone(), options))?;
    let (mut summary, mut progress) = (Summary::default(), Progress::new());
    let checked = cores.block_on(async {
        let objects = check(&node, arguments, &mut checkpoint, &mut summary, &mut progress).await?;
        find_unreferenced(&node, &objects, arguments.repair, &mut summary).await
    });
    progress.end();
    let (fsname, kind) = (node.fsname().to_owned(), role(arguments).key());
    let checked = checked.map_err(|error| key_file::named_in(error, arguments.key.as_deref(), &fsname, kind));
    let stopped = cores.block_on(node.stop());
    cores.shutdown();
    signals::end_by_closed_pipes();
    // What was found before the check failed is as true, and what was repaired is done.
    let is_complete = checked.is_ok();
    let reported = if checked.is_ok() || summary.has_begun() || arguments.json {
        report(&summary, checked.is_ok(), arguments)
    } else {
        Ok(())
    };
    checked.context("the check stopped early")?;
    stopped?;
    std::io::stdout().flush()?;
    if is_complete {
        checkpoint.complete()?;
    }
    reported
}

/// A check that changes nothing needs no more than a client's key.
fn role(arguments: &FsckArgs) -> Role {
    if arguments.repair { Role::Repair } else { Role::Tool }
}

/// A running file system by its source, or the directory of a stopped one.
fn options(arguments: &FsckArgs) -> anyhow::Result<NodeOptions> {
    let source: &OsStr = &arguments.source;
    if let Some(source) = source.to_str().filter(|source| source.contains(":/")) {
        let MountSource { mgs, fsname } = source.parse()?;
        let role = role(arguments);
        let keys = key_file::find(arguments.key.as_deref(), &fsname, role.key(), "--key FILE")?;
        return Ok(NodeOptions::client(&mgs, &fsname, role, keys));
    }
    let directory = Path::new(source);
    let (mdts, osts) = (up::existing(directory, config::Role::Mdt)?, up::existing(directory, config::Role::Ost)?);
    if mdts == 0 || osts == 0 {
        bail!(
            "{} holds no StriaFS file system; give the directory of a stopped `stria up`, or HOST:/FSNAME",
            directory.display()
        );
    }
    let mut options = NodeOptions::up(directory.to_owned(), mdts, osts);
    options.fsname = crate::identity::Identity::load(&directory.join("mgs"))?.fsname;
    Ok(options)
}

fn report(summary: &Summary, is_complete: bool, arguments: &FsckArgs) -> anyhow::Result<()> {
    for finding in &summary.findings {
        let fid = Fid::from(finding.inode).to_string();
        if arguments.json {
            let line =
                JsonFinding { inode: finding.inode.0, fid, problem: &finding.problem, repaired: finding.repaired };
            println!("{}", serde_json::to_string(&line)?);
        } else {
            println!("{fid}: {}{}", finding.problem, if finding.repaired { " (repaired)" } else { "" });
        }
    }
    for found in &summary.unreferenced {
        let (file, problem, removed) = (found.path.to_string_lossy(), found.problem(), found.removed);
        if arguments.json {
            println!("{}", serde_json::to_string(&JsonUnreferenced { file: &file, problem, removed })?);
        } else {
            println!("{file}: {problem}{}", if removed { " (removed)" } else { "" });
        }
    }
    for (ost, reason) in &summary.unchecked {
        eprintln!("stria: warning: {}", unchecked(*ost, reason, arguments.data));
    }
    for role in &summary.deactivated {
        eprintln!(
            "stria: warning: {role} is deactivated and was not checked; to check it, activate it first (stria ctl activate)"
        );
    }
    if summary.unjudged > 0 {
        eprintln!(
            "stria: warning: metadata targets were added or changed while this check ran, or the MGS does not answer: \
             {} may belong to files there and were not judged; check again",
            counted(summary.unjudged, "object")
        );
    }
    let left = summary.problems_left();
    if !arguments.json {
        if summary.size_unknown > 0 {
            println!(
                "{} not known to the MDT after a writer died: the next reader asks the objects; --repair does so now",
                counted(summary.size_unknown, "file size")
            );
        }
        if summary.damaged_objects > 0 {
            println!(
                "{} with lost data: restore the files (lfs fid2path) from a copy, or remove them",
                counted(summary.damaged_objects, "object")
            );
        }
        let foreign = summary.unreferenced.iter().filter(|file| file.kind == UnreferencedKind::Foreign).count();
        if foreign > 0 {
            println!("{} not from StriaFS, which never removes such files", counted(foreign, "file"));
        }
        if summary.damaged > 0 && arguments.repair {
            println!(
                "{} cannot be decoded: orphan objects may belong to such inodes and are not destroyed",
                counted(summary.damaged, "inode")
            );
        }
        println!(
            "{}{}, {}, {}: {}, {} repaired",
            if is_complete { "" } else { "incomplete: " },
            counted(summary.inodes, "inode"),
            counted(summary.files, "file"),
            counted(summary.objects, "object"),
            counted(summary.findings.len(), "problem"),
            summary.findings.len() - left
        );
        println!("{}", summary.verdict(is_complete));
    } else {
        println!("{}", serde_json::to_string(&JsonSummary::new(summary, is_complete))?);
    }
    match left {
        0 => Ok(()),
        count if arguments.repair => bail!("{} could not be repaired", counted(count, "problem")),
        count if count as u64 == summary.damaged_objects => {
            bail!("{}; --repair cannot bring lost data back", counted(count, "problem"))
        }
        count => bail!("{}; --repair repairs what can be repaired", counted(count, "problem")),
    }
}

/// That a target was not asked everything.
fn unchecked(ost: OstIndex, reason: &str, data_are_read: bool) -> String {
    let otherwise = match data_are_read {
        true => "all of its data were read instead",
        false => "to check them, read all data with --data",
    };
    format!("{ost} runs another version and cannot report missing or truncated host files ({reason}); {otherwise}")
}

/// Looks for unreferenced files of the targets of this process. Only former host files are removed:
/// all others were put there by users or other programs. What may belong to a file is kept, like
/// orphan objects.
async fn find_unreferenced(
    node: &Node,
    objects: &ObjectCheck,
    repair: bool,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    for (ost, directory) in node.osts.iter().zip(node.ost_directories()) {
        for UnreferencedFile { file, object } in ost.target.unreferenced_files().await? {
            if object.is_some() && (summary.unjudged > 0 || !objects::knows_all_files(&summary.deactivated)) {
                continue;
            }
            let kind = match object {
                None => UnreferencedKind::Foreign,
                Some(object) if objects.is_expected(object, ost.role) => UnreferencedKind::OfLostRecord,
                Some(_) => UnreferencedKind::OfNoObject,
            };
            let removed = object.filter(|_| repair && kind == UnreferencedKind::OfNoObject && summary.damaged == 0);
            if let Some(object) = removed {
                ost.target.remove_unreferenced(object).await?;
            }
            summary.unreferenced.push(Unreferenced { path: directory.join(file), kind, removed: removed.is_some() });
        }
    }
    Ok(())
}

async fn check(
    node: &Node,
    arguments: &FsckArgs,
    checkpoint: &mut Checkpoint,
    summary: &mut Summary,
    progress: &mut Progress,
) -> anyhow::Result<ObjectCheck> {
    progress.begin("connecting to all targets".to_owned(), None);
    let tell = progress.teller();
    if let Some(done) = checkpoint.done() {
        tell(&format!("stria: going on: not checked again is what was done before of {done}"));
    }
    let (targets, _) = tell_while_any([&node.mgs_import], Targets::connect(node, role(arguments)), &tell).await;
    let targets = targets?;
    summary.deactivated.clone_from(&targets.deactivated);
    let work = check_targets(&targets, &*node.seams().clock, arguments, checkpoint, summary, progress);
    let (checked, _) = tell_while_any(targets.imports(), work, &tell).await;
    targets.close().await;
    checked
}

async fn check_targets(
    targets: &Targets,
    clock: &dyn Clock,
    arguments: &FsckArgs,
    checkpoint: &mut Checkpoint,
    summary: &mut Summary,
    progress: &mut Progress,
) -> anyhow::Result<ObjectCheck> {
    let mut objects = ObjectCheck::default();
    // Before each MDT is checked by itself: what has a name on another one is not nameless.
    if targets.mdts.len() > 1 {
        summary.findings.extend(check_names(targets, clock, arguments, checkpoint, progress).await?);
    }
    for (role, mdt) in &targets.mdts {
        let findings = match checkpoint.namespace(*role) {
            Some(findings) => findings,
            None => {
                progress.begin(format!("{role}: checking names"), None);
                let reply = mdt.call(MdtRequest::Check(Credentials::root(), arguments.repair)).await?.reply;
                let MdtReply::Findings(mut findings) = reply else { bail!("unexpected answer to Check") };
                if arguments.repair {
                    findings = repairs::finish(targets, clock, findings).await?;
                }
                checkpoint.namespace_checked(*role, &findings)?;
                findings
            }
        };
        summary.findings.extend(findings);
        progress.begin(format!("{role}: reading inodes"), None);
        scan(mdt, summary, &mut objects, progress).await?;
    }
    for (role, _) in targets.mdts.iter().chain(&targets.osts) {
        progress.begin(format!("{role}: reading {}objects", if arguments.data { "data of " } else { "" }), None);
        summary.objects += objects.read_target(targets, *role, arguments.data, checkpoint, summary, progress).await?;
        checkpoint.write()?;
    }
    objects.judge(targets, clock, arguments.repair, summary, progress).await?;
    Ok(objects)
}

/// Compares names with the inodes on other MDTs, and repairs what differs.
async fn check_names(
    targets: &Targets,
    clock: &dyn Clock,
    arguments: &FsckArgs,
    checkpoint: &mut Checkpoint,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Finding>> {
    let mdts: Vec<_> = targets.mdts.iter().map(|(role, _)| *role).collect();
    if let Some(findings) = checkpoint.names(&mdts) {
        return Ok(findings);
    }
    progress.begin("comparing names with inodes on other MDTs".to_owned(), None);
    let differences = names::compare(targets, clock, progress).await?;
    let mut findings = match arguments.repair {
        true => repairs::settle(targets, clock, differences).await?,
        false => differences.iter().map(|(is_name, found)| names::finding(*is_name, found)).collect(),
    };
    progress.begin("following directories to the root over several MDTs".to_owned(), None);
    findings.extend(cycles::check(targets, clock, progress).await?);
    checkpoint.names_checked(&mdts, &findings)?;
    Ok(findings)
}

async fn scan(
    mdt: &Import,
    summary: &mut Summary,
    objects: &mut ObjectCheck,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let visit = |inode: ScannedInode| {
        progress.advance(1);
        summary.inodes += 1;
        summary.damaged += u64::from(inode.damaged);
        summary.files += u64::from(inode.layout.is_some());
        objects.expect(inode);
    };
    Ok(visit_inodes(mdt, visit).await?)
}
