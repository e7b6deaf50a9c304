//! `lfs data_version`, `lfs getsom`, `lfs hsm_state`: what Lustre's tools show about one file
//! besides its layout.
//!
//! Sizes are exact and nothing is archived, so two of these always print the same; scripts that use
//! them keep working.

use std::{
    ffi::{OsStr, OsString},
    fs::Metadata,
    io::Write,
    os::unix::fs::MetadataExt,
    path::Path,
};

use rpc::message::control::{ControlReply, ControlRequest};

use super::{
    channel::{self, CallError, Errno, strerror, when_free},
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path},
};

/// Size on MDT: it is exact (Lustre's SOM_FL_STRICT).
const SIZE_IS_EXACT: u32 = 1;

/// Options of `lfs data_version`.
pub const DATA_VERSION_OPTIONS: &[OptionSpec] = &[
    option('n', &["no-flush"], Takes::Nothing),
    option('r', &["read-flush"], Takes::Nothing),
    option('w', &["write-flush"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// Runs `lfs data_version FILE`.
pub fn data_version(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    const HELP: &str = "\
usage: lfs data_version [-n|-r|-w] FILE

Shows a number that changes whenever the data of FILE may have changed. Fails if FILE is open for
writing (16, Device or resource busy). -n, -r and -w have no effect: data are never cached.
";
    let command = "data_version";
    let Some(file) = one_file(command, DATA_VERSION_OPTIONS, HELP, arguments, output)? else { return Ok(()) };
    let file = &file.operands[0];
    let version =
        when_free(false, || version(Path::new(file))).map_err(|error| failed(command, file, error.errno()))?;
    print(output, format_args!("{version}\n"))
}

fn version(path: &Path) -> Result<u64, CallError> {
    let (directory, subject) = channel::subject(path)?;
    match channel::ask(&directory, &ControlRequest::DataVersion { subject, hold_writers: false })? {
        ControlReply::Version(version) => Ok(version),
        _ => Err(Errno(libc::EPROTO).into()),
    }
}

/// Options of `lfs getsom`.
pub const GETSOM_OPTIONS: &[OptionSpec] = &[
    option('s', &["size"], Takes::Nothing),
    option('b', &["blocks"], Takes::Nothing),
    option('f', &["flags"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// Runs `lfs getsom FILE`.
pub fn getsom(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    const HELP: &str = "\
usage: lfs getsom [-s|-b|-f] FILE

Shows size and blocks (of 512 bytes) of FILE as the metadata target knows them, or with -s the size,
-b the blocks, -f the flags only. The flags are always 1: the size is exact.
";
    let command = "getsom";
    let Some(parsed) = one_file(command, GETSOM_OPTIONS, HELP, arguments, output)? else { return Ok(()) };
    let file = &parsed.operands[0];
    let metadata = regular_file(file).map_err(|errno| failed(command, file, errno))?;
    let (size, blocks) = (metadata.size(), metadata.blocks());
    match () {
        () if parsed.has("size") => print(output, format_args!("{size}\n")),
        () if parsed.has("blocks") => print(output, format_args!("{blocks}\n")),
        () if parsed.has("flags") => print(output, format_args!("{SIZE_IS_EXACT:x}\n")),
        () => {
            print(output, format_args!("file: "))?;
            print_path(output, file, format_args!(" size: {size} blocks: {blocks} flags: {SIZE_IS_EXACT:x}\n"))
        }
    }
}

/// Attributes of a file on a StriaFS file system; of what is no file there is nothing to be known.
fn regular_file(file: &OsStr) -> Result<Metadata, Errno> {
    channel::inode(Path::new(file))?;
    let metadata = std::fs::symlink_metadata(file)?;
    if metadata.is_file() { Ok(metadata) } else { Err(Errno(libc::ENODATA)) }
}

/// Options of `lfs hsm_state`.
pub const HSM_STATE_OPTIONS: &[OptionSpec] = &[long_option(&["help"], Takes::Nothing)];

/// Runs `lfs hsm_state FILE...`.
pub fn hsm_state(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    const HELP: &str = "usage: lfs hsm_state FILE...\n\nShows the archive state of each FILE. It is always empty: there are no archives yet.\n";
    let command = "hsm_state";
    let parsed =
        parse(HSM_STATE_OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs {command}: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    if parsed.operands.is_empty() {
        return Err(Failure::new(USAGE, format!("lfs {command}: FILE must be specified")));
    }
    for file in &parsed.operands {
        channel::inode(Path::new(file)).map_err(|errno| failed(command, file, errno))?;
        print_path(output, file, format_args!(": (0x00000000)\n"))?;
    }
    Ok(())
}

/// A command line with one FILE; `None` if it asked for help.
fn one_file(
    command: &str,
    options: &[OptionSpec],
    help: &str,
    arguments: &[OsString],
    output: &mut dyn Write,
) -> Result<Option<Parsed>, Failure> {
    let wrong = |problem: &str| Failure::new(USAGE, format!("lfs {command}: {problem}"));
    let parsed = parse(options, arguments).map_err(|error| wrong(&error.to_string()))?;
    if parsed.has("help") {
        return print(output, format_args!("{help}")).map(|()| None);
    }
    match parsed.operands.len() {
        1 => Ok(Some(parsed)),
        0 => Err(wrong("FILE must be specified")),
        _ => Err(wrong("only one FILE can be specified")),
    }
}

fn failed(command: &str, file: &OsStr, Errno(errno): Errno) -> Failure {
    Failure::new(errno, format!("lfs {command}: '{}': {} ({errno})", file.display(), strerror(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Command = fn(&[OsString], &mut dyn Write) -> Outcome;

    #[test]
    fn wrong_command_lines_and_files_elsewhere_are_refused() {
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        let commands: [(&str, Command); 3] =
            [("data_version", data_version), ("getsom", getsom), ("hsm_state", hsm_state)];
        for (name, command) in commands {
            let fail = |words: &[&OsStr]| {
                let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
                command(&arguments, &mut Vec::new()).unwrap_err()
            };
            assert_eq!(fail(&[]), Failure::new(USAGE, format!("lfs {name}: FILE must be specified")));
            assert_eq!(i32::from(fail(&["-Q".as_ref(), "f".as_ref()]).status), USAGE, "{name}");
            assert_eq!(i32::from(fail(&["/nonexistent/f".as_ref()]).status), libc::ENOENT, "{name}");
            assert_eq!(i32::from(fail(&[elsewhere.path().as_ref()]).status), libc::ENOTTY, "{name}");
        }
    }
}
