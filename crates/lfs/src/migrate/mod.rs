//! `lfs migrate`: gives files another layout, with their data, under the same inode.
//!
//! The data are copied into an unnamed file that has the new layout; then the two files swap their
//! layouts, if the data have not changed since the copy (see `client::swap`). However the tool
//! ends, an incomplete unnamed file is removed.

mod absence;
mod copy;
mod destination;
mod directories;
mod left;
mod meter;
mod pace;
mod tree;

use std::{
    ffi::{OsStr, OsString},
    io::{IsTerminal, Read, Write},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use layout::LayoutSpec;
use types::Stripes;

use self::{
    absence::Absence,
    copy::{Migration, Stop},
    destination::destination,
    meter::Meter,
    pace::Pace,
    tree::{Asked, Mounts},
};
use super::{
    channel::{self, CallError, Errno, strerror},
    dirstripe::{self, Wanted},
    layout_options::{LAYOUT_HELP, LAYOUT_OPTIONS},
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path},
    setstripe,
};

/// The options that are not about layouts.
pub const OWN_OPTIONS: &[OptionSpec] = &[
    option('A', &["auto-stripe"], Takes::Nothing),
    option('b', &["block"], Takes::Nothing),
    option('n', &["non-block"], Takes::Nothing),
    option('D', &["non-direct"], Takes::Nothing),
    option('W', &["bandwidth", "bandwidth-limit"], Takes::Value),
    option('m', &["mdt-index", "mdt"], Takes::Value),
    option('H', &["mdt-hash"], Takes::Value),
    option('d', &["directory"], Takes::Nothing),
    option('N', &["mirror-count"], Takes::OptionalValue),
    option('y', &["yaml"], Takes::Value),
    option('0', &["null"], Takes::Nothing),
    option('v', &["verbose"], Takes::Nothing),
    long_option(&["copy"], Takes::Value),
    long_option(&["restripe"], Takes::Nothing),
    long_option(&["files-from"], Takes::Value),
    long_option(&["stats"], Takes::Nothing),
    long_option(&["stats-interval"], Takes::Value),
    long_option(&["help"], Takes::Nothing),
];

const HELP: &str = "\
usage: lfs migrate [OPTIONS] [LAYOUT] FILE...
       lfs migrate [OPTIONS] -A | --copy=OTHER | --yaml=FILE  FILE...
       lfs migrate -m MDT[,MDT...] [-c COUNT | -C COUNT] [-H HASH] [-d] [-v] DIRECTORY...

Moves the data of FILE to another layout. Name, inode, times and everything else stay. Without a
LAYOUT, FILE gets that of new files in its directory. If FILE changes during the migration, it
keeps its old layout and loses no data.

  -b, --block               waits for writers and other migrations of FILE, delays new writers until
                            it has moved, and waits for its readers at the end (default)
  -n, --non-block           fails if FILE is written to or in use (16, Device or resource busy)
  -A, --auto-stripe         an automatic layout, chosen for the size of FILE, which keeps adapting
                            as FILE grows
      --copy OTHER          a layout like that of OTHER, a file or a directory
  -y, --yaml FILE           the layout that 'lfs getstripe -y' wrote to FILE; - is standard input
      --restripe            the layout of new files in FILE's directory
  -W, --bandwidth MIB       copies at most this many MiB per second
      --stats               shows progress every 5 seconds, or every --stats-interval SECONDS
                            (without it, a terminal shows the progress of large files)
  -v, --verbose             shows each FILE
      --files-from LIST     also migrates the files named in LIST, one per line (- is standard
                            input); with -0 or --null the names end with NUL
  -D, --non-direct          no effect: data are never cached
  -m, --mdt-index MDT       moves DIRECTORY and everything below it to this metadata target (-d: the
                            directory only; -1: any), without stripes. Data on OSTs stay where they
                            are. Root only. Their inode numbers change. What is in use stays, and is
                            named; so is what fails, and what is mounted below. If a metadata target
                            does not answer, the command ends and names it. It may be ended at any time;
                            run again, it goes on there. -v shows each path that has moved. A
                            directory of more than 1024 names moves in many steps: its names first,
                            then it, then what is in it
                            Several MDT, or -c COUNT from MDT on (-1: all): all directories get
                            stripes over these, and files move to the stripes of their names. With
                            -C COUNT, MDT get several stripes of a directory if they are fewer (-1 to
                            -32: that many each)
  -H, --mdt-hash HASH       how names are spread over several: fnv_1a_64 (default), all_char, crush,
                            crush2

";

const HELP_END: &str = "
Exit status: 0; 4 for a wrong command line; else the error number of the last file that failed
(16: in use or changed; 25: not on StriaFS).
";

/// Seconds between two reports of `--stats`.
const STATS_SECONDS: u64 = 5;

/// Runs `lfs migrate`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let options = [LAYOUT_OPTIONS, OWN_OPTIONS].concat();
    let parsed = parse(&options, arguments).map_err(|error| Failure::new(USAGE, format!("lfs migrate: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}{LAYOUT_HELP}{HELP_END}"));
    }
    if parsed.has("mirror-count") {
        let problem = "lfs migrate: option '--mirror-count' is not supported yet: files have no mirrors";
        return Err(Failure::new(libc::EOPNOTSUPP, problem));
    }
    if parsed.has("block") && parsed.has("non-block") {
        return Err(usage_error("--block and --non-block exclude each other"));
    }
    let wanted = destination(&parsed)?;
    let spec = asked(&parsed)?;
    let bytes_per_second = bandwidth(&parsed)?;
    let stats_seconds = match parsed.value("stats-interval") {
        Some(text) => text.parse().ok().filter(|seconds| *seconds > 0).ok_or_else(|| wrong("stats-interval", text))?,
        None => STATS_SECONDS,
    };
    let files = files(&parsed)?;
    if files.is_empty() {
        return Err(usage_error("FILE must be specified"));
    }
    let mut outcome = Ok(());
    for file in &files {
        if parsed.has("verbose") && wanted.is_none() {
            print_path(output, file, format_args!("\n"))?;
        }
        let moved = match &wanted {
            Some(wanted) => move_directory(Path::new(file), wanted, &parsed, output),
            None => {
                let reports = parsed.has("stats").then_some(stats_seconds);
                let meter = Meter::new(Path::new(file), reports.is_none() && std::io::stderr().is_terminal());
                let mut pace = Pace::new(bytes_per_second, reports, meter);
                let migration = Migration { spec: &spec, block: !parsed.has("non-block") };
                migration.run(Path::new(file), &mut pace, output)
            }
        };
        let (failure, is_last) = match moved {
            Ok(()) => continue,
            Err(Stop::All(failure)) => (failure, true),
            Err(Stop::File(error)) => (setstripe::explained(file, &spec, failure(file, &error)), false),
        };
        // The caller prints the last one.
        if let Err(earlier) = std::mem::replace(&mut outcome, Err(failure)) {
            let Failure { message, .. } = earlier;
            eprintln!("{message}");
        }
        if is_last {
            break;
        }
    }
    outcome
}

fn usage_error(problem: impl std::fmt::Display) -> Failure {
    Failure::new(USAGE, format!("lfs migrate: {problem}"))
}

fn wrong(option: &str, value: &str) -> Failure {
    usage_error(format_args!("invalid value '{value}' of --{option}"))
}

fn failure(file: &OsStr, error: &CallError) -> Failure {
    let (Errno(errno), shown) = (error.errno(), file.display());
    let message = match error {
        CallError::Refused(types::FsError::Refused(problem)) => {
            format!("lfs migrate: {problem}: {} (2)", strerror(libc::ENOENT))
        }
        _ => format!("lfs migrate: {shown} migrate failed: {} ({errno})", strerror(errno)),
    };
    Failure::new(errno, message)
}

/// The requested layout.
fn asked(parsed: &Parsed) -> Result<LayoutSpec, Failure> {
    // What is understood as for setstripe is reported as of this command.
    let renamed = |failure: Failure| {
        let message = failure.message.replace("lfs setstripe setstripe:", "lfs migrate:");
        Failure { message: message.replace("lfs setstripe:", "lfs migrate:"), ..failure }
    };
    let spec = setstripe::asked(parsed).map_err(renamed)?;
    match (parsed.has("auto-stripe"), parsed.has("restripe"), spec.is_open()) {
        (true, _, false) | (_, true, false) | (true, true, _) => {
            Err(usage_error("-A and --restripe cannot be combined with layout options"))
        }
        (true, ..) => Ok(LayoutSpec::Automatic),
        _ => Ok(spec),
    }
}

fn bandwidth(parsed: &Parsed) -> Result<Option<u64>, Failure> {
    let Some(text) = parsed.value("bandwidth") else { return Ok(None) };
    let bytes = text.parse::<u64>().ok().filter(|mib| *mib > 0).and_then(|mib| mib.checked_mul(1 << 20));
    bytes.map(Some).ok_or_else(|| wrong("bandwidth", text))
}

/// Operands, and the lines of the list.
fn files(parsed: &Parsed) -> Result<Vec<OsString>, Failure> {
    let mut files = parsed.operands.clone();
    let Some(list) = parsed.value("files-from") else { return Ok(files) };
    let mut bytes = Vec::new();
    let read = match list {
        "-" => std::io::stdin().read_to_end(&mut bytes),
        path => std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|error| {
        let Errno(errno) = error.into();
        Failure::new(errno, format!("lfs migrate: cannot read '{list}': {} ({errno})", strerror(errno)))
    })?;
    let end = if parsed.has("null") { 0 } else { b'\n' };
    let lines = bytes.split(|byte| *byte == end).filter(|line| !line.is_empty());
    files.extend(lines.map(|line| OsString::from_vec(line.to_vec())));
    Ok(files)
}

/// Moves a directory and what is below it. On any MDT (-1) it is already.
fn move_directory(path: &Path, wanted: &Wanted, parsed: &Parsed, output: &mut dyn Write) -> Result<(), Stop> {
    if wanted.mdts.is_empty() && wanted.is_plain() {
        return channel::inode(path).map(drop).map_err(Stop::from);
    }
    let absence = Absence::on(path);
    let begun = begin_directory(path, wanted).map_err(|stop| match stop {
        Stop::File(error) => absence.end(path, &error, 0).unwrap_or(Stop::File(error)),
        all => all,
    });
    let (mounts, named, stripes) = begun?;
    let is_directory = std::fs::symlink_metadata(&named).map_err(CallError::from)?.is_dir();
    let shown = parsed.has("verbose").then_some(output);
    let asked = Asked::new(mounts, (&named, stripes.mdts[0]), shown);
    directories::migrate(&asked, stripes, &named, is_directory, parsed.has("directory"))
}

/// The mounts, the path by a name, and the MDTs of a directory that is to move.
fn begin_directory(path: &Path, wanted: &Wanted) -> Result<(Mounts, PathBuf, Stripes), Stop> {
    std::fs::symlink_metadata(path).map_err(CallError::from)?;
    let (mounts, named) = (Mounts::read()?, tree::named(path)?);
    // What moves is not opened, except for a root.
    let there = dirstripe::mdts(&mounts.subject(&named).0)?;
    let stripes = destination::stripes(wanted, there, path)?;
    Ok((mounts, named, stripes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_command_lines_are_refused() {
        for (words, status, problem) in [
            ("", USAGE, "FILE must be specified"),
            ("-c 2", USAGE, "FILE must be specified"),
            ("-Q f", USAGE, "unrecognized option '-Q'"),
            ("-b -n f", USAGE, "--block and --non-block exclude each other"),
            ("-A -c 2 f", USAGE, "-A and --restripe cannot be combined with layout options"),
            ("-W fast f", USAGE, "invalid value 'fast' of --bandwidth"),
            ("-m x d", USAGE, "invalid MDT target(s) 'x'"),
            ("-m 0,x d", USAGE, "invalid MDT target(s) '0,x'"),
            ("-m -2 d", USAGE, "invalid MDT target(s) '-2'"),
            ("-m 0 -H foo d", USAGE, "bad stripe hash type 'foo'"),
            ("-m 0 -S 1M d", USAGE, "--stripe-size is for files: it cannot be combined with --mdt-index"),
            ("-d d", USAGE, "--directory is for directories: migrate should specify MDT index"),
            ("-H crush d", USAGE, "--mdt-hash is for directories: migrate should specify MDT index"),
            ("-m 0", USAGE, "FILE must be specified"),
            ("-m 0 -H crush d", USAGE, "--mdt-hash is for several MDTs (-m 0,1 or -c COUNT)"),
            ("-m 0,0 d", USAGE, "duplicate MDT target(s) '0,0'"),
            ("-m 0,-1 d", USAGE, "invalid MDT target(s) '0,-1'"),
            ("-m 0 -c x d", USAGE, "invalid stripe count 'x'"),
            ("-m 0 -c 0 d", USAGE, "invalid stripe count '0'"),
            ("-m 0,1 -c 3 d", USAGE, "the stripe count is not that of the 2 MDT targets given"),
            ("-m 0,1,2 -C 2 d", USAGE, "the stripe count is not that of the 3 MDT targets given"),
            ("-m 0 -C 4 -c 2 d", USAGE, "options '--stripe-count' and '--overstripe-count' exclude each other"),
            ("-m 0 -C -33 d", USAGE, "invalid stripe count '-33': -1 to -32, or how many in all"),
            ("-c abc f", USAGE, "invalid stripe count 'abc'"),
            ("--copy=a -c 2 f", USAGE, "--copy cannot be combined with layout options"),
            ("-N f", libc::EOPNOTSUPP, "option '--mirror-count' is not supported yet: files have no mirrors"),
        ] {
            let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let failure = run(&arguments, &mut Vec::new()).expect_err(words);
            assert_eq!(failure, Failure::new(status, format!("lfs migrate: {problem}")), "{words}");
        }
    }

    #[test]
    fn missing_files_fail_and_the_others_go_on() {
        let arguments = ["-c1", "/nonexistent/a", "/nonexistent/b"].map(OsString::from);
        let failure = run(&arguments, &mut Vec::new()).unwrap_err();
        let expected = "lfs migrate: /nonexistent/b migrate failed: No such file or directory (2)";
        assert_eq!(failure, Failure::new(2, expected));
    }
}
