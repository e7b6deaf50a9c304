//! How a command ends, and what it prints.

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
};

use crate::channel::Mount;

/// A command that failed: what to print on standard error and the exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// One or more lines.
    pub message: String,
}

impl Failure {
    /// A failure with this exit status and message.
    pub fn new(status: i32, message: impl Into<String>) -> Self {
        Self { status: u8::try_from(status).unwrap_or(1), message: message.into() }
    }
}

/// Exit status of `lfs` for a wrong command line (Lustre's CMD_HELP).
pub const USAGE: i32 = 4;

/// What a command returns.
pub type Outcome = Result<(), Failure>;

/// Does the same at all mounts. One where it fails, because its servers or its process are gone, is
/// no reason to leave out the others: each failure is reported, the last one as the outcome.
pub fn at_each(mounts: &[Mount], mut work: impl FnMut(&Mount) -> Outcome) -> Outcome {
    let mut last: Option<Failure> = None;
    for mount in mounts {
        if let Err(failure) = work(mount)
            && let Some(earlier) = last.replace(failure)
        {
            eprintln!("{}", earlier.message);
        }
    }
    last.map_or(Ok(()), Err)
}

/// Writes to the command's output.
pub fn print(output: &mut dyn Write, text: std::fmt::Arguments<'_>) -> Outcome {
    output.write_fmt(text).map_err(write_failure)
}

/// Writes a path as it is, and `rest` after it.
pub fn print_path(output: &mut dyn Write, path: impl AsRef<OsStr>, rest: std::fmt::Arguments<'_>) -> Outcome {
    output.write_all(path.as_ref().as_bytes()).map_err(write_failure)?;
    print(output, rest)
}

/// A failure to write to the command's output.
pub fn write_failure(error: io::Error) -> Failure {
    Failure::new(1, format!("lfs: cannot write: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_fails_leaves_out_no_other() {
        let mounts: Vec<Mount> = ["/a", "/dead", "/b", "/gone", "/c"].map(|point| Mount { point: point.into() }).into();
        let mut done = Vec::new();
        let outcome = at_each(&mounts, |mount| {
            let name = mount.point.to_string_lossy().into_owned();
            done.push(name.clone());
            if name.len() > 2 { Err(Failure::new(libc::ENOTCONN, name)) } else { Ok(()) }
        });
        assert_eq!(outcome, Err(Failure::new(libc::ENOTCONN, "/gone")));
        assert_eq!(done, ["/a", "/dead", "/b", "/gone", "/c"]);
        assert_eq!(at_each(&[], |_| unreachable!("there is none")), Ok(()));
    }
}
