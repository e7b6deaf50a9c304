//! The command line of `stria fsck`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

/// Output of `stria fsck`.
const FSCK_OUTPUT: &str = "\
The last line says clean, or how many problems are left. Exit status: 0 if none is left, else 1.

JSON (--json): one object per line. A problem has inode, fid, problem, repaired; an unreferenced file among the host \
files of a stopped file system has file, problem, removed. The last line has summary (clean; no problems, but \
unreferenced files or targets that could not be checked fully; not clean), complete, inodes, files, objects, \
problems, repaired, damaged_objects, size_unknown, unreferenced, unchecked (targets that could not be checked \
fully), deactivated (targets that were not asked), uncompared (files with data on targets that were not asked) and \
unjudged (objects that may belong to files of metadata targets which were added meanwhile).";

/// Arguments of `stria fsck`.
#[derive(Clone, Debug, Args)]
#[command(after_help = FSCK_OUTPUT)]
pub struct FsckArgs {
    /// HOST[:PORT]:/FSNAME of a running file system, or the directory of a stopped `stria up`
    pub source: OsString,
    /// Key file for a running file system: the client key, or with --repair the server key
    /// [default: /etc/stria/FSNAME.client.key or .server.key]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Repair what can be repaired
    #[arg(long)]
    pub repair: bool,
    /// Also read all data and verify checksums
    #[arg(long)]
    pub data: bool,
    /// Note in FILE how far the check has come; if there is such a file, go on from there, with the
    /// same SOURCE, --repair and --data. A complete check removes it
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Print findings as JSON lines, the last of which is a summary
    #[arg(long)]
    pub json: bool,
}
