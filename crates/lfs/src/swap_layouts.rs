//! `lfs swap_layouts FILE1 FILE2`: the files swap their layouts and data; names, owners and times
//! stay the same.

use std::{
    ffi::OsString,
    io::Write,
    path::{Path, PathBuf},
};

use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::InodeNumber;

use super::{
    channel::{self, CallError, Errno, strerror, when_free},
    outcome::{Failure, Outcome, USAGE, print},
};

const HELP: &str = "\
usage: lfs swap_layouts FILE1 FILE2

Swaps the layouts of two files, and with them their data, atomically. Names, owners, permissions and
modification times stay. Needs read and write permission on both; neither may be open.

Exit status: 0; 4 for a wrong command line; else the error number (16: in use).
";

/// A file to be swapped.
struct Side {
    directory: PathBuf,
    subject: Subject,
    inode: InodeNumber,
    version: u64,
}

/// Runs `lfs swap_layouts`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    if arguments.iter().any(|argument| argument == "--help") {
        return print(output, format_args!("{HELP}"));
    }
    let arguments = arguments.strip_prefix(&["--".into()]).unwrap_or(arguments);
    let [first, second] = arguments else {
        return Err(Failure::new(USAGE, format!("lfs swap_layouts: two files must be specified\n{HELP}")));
    };
    let swapped = when_free(false, || swap(Path::new(first), Path::new(second)));
    swapped.map_err(|error| {
        let Errno(errno) = error.errno();
        let (first, second) = (first.display(), second.display());
        let problem = strerror(errno);
        Failure::new(errno, format!("lfs swap_layouts: cannot swap layouts of '{first}' and '{second}': {problem}"))
    })
}

fn swap(first: &Path, second: &Path) -> Result<(), CallError> {
    let (first, second) = (side(first)?, side(second)?);
    let request = ControlRequest::SwapLayouts {
        first: (first.subject, first.version),
        second: (second.inode, Some(second.version)),
    };
    channel::ask(&first.directory, &request).map(drop)
}

fn side(path: &Path) -> Result<Side, CallError> {
    // Of a link, the file it leads to.
    let path = std::fs::canonicalize(path)?;
    let (directory, subject) = channel::subject(&path)?;
    let request = ControlRequest::DataVersion { subject: subject.clone(), hold_writers: false };
    let ControlReply::Version(version) = channel::ask(&directory, &request)? else {
        return Err(Errno(libc::EPROTO).into());
    };
    Ok(Side { inode: channel::inode(&path)?, directory, subject, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_are_needed() {
        for arguments in [&[][..], &["a"], &["a", "b", "c"]] {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(i32::from(run(&arguments, &mut Vec::new()).unwrap_err().status), USAGE);
        }
        let missing = run(&["/nonexistent/a".into(), "/nonexistent/b".into()], &mut Vec::new()).unwrap_err();
        assert_eq!(i32::from(missing.status), libc::ENOENT);
    }
}
