//! `lfs find`: walks directories and shows the files that pass all tests of attributes and layouts.
//!
//! A test is decided by the result of lstat(2) if that is sufficient; the layout is requested only
//! if a test or the format needs it. Sizes are exact: the MDT knows those of files that are not
//! being written, and asks for the others.

mod candidate;
mod clock;
mod conditions;
mod format;
mod permission;
mod walk;

use std::{ffi::OsString, io::Write, path::PathBuf};

use self::{conditions::Tests, format::Format, walk::Walk};
use super::{
    options::{NOT, OptionSpec, Parsed, Takes, long_option, option, parse_long_only},
    outcome::{Failure, Outcome, USAGE, print},
};

/// The options.
pub const OPTIONS: &[OptionSpec] = &[
    option('A', &["atime"], Takes::Value),
    option('M', &["mtime"], Takes::Value),
    option('C', &["ctime"], Takes::Value),
    option('B', &["btime", "Btime"], Takes::Value),
    long_option(&["amin"], Takes::Value),
    long_option(&["mmin"], Takes::Value),
    long_option(&["cmin"], Takes::Value),
    long_option(&["bmin", "Bmin"], Takes::Value),
    option('n', &["name"], Takes::Value),
    option('t', &["type"], Takes::Value),
    option('s', &["size"], Takes::Value),
    option('b', &["blocks"], Takes::Value),
    option('u', &["uid"], Takes::Value),
    option('U', &["user"], Takes::Value),
    option('g', &["gid"], Takes::Value),
    option('G', &["group"], Takes::Value),
    long_option(&["projid"], Takes::Value),
    long_option(&["perm"], Takes::Value),
    long_option(&["links"], Takes::Value),
    long_option(&["xattr"], Takes::Value),
    option('D', &["maxdepth"], Takes::Value),
    long_option(&["mindepth"], Takes::Value),
    option('c', &["stripe-count"], Takes::Value),
    option('S', &["stripe-size"], Takes::Value),
    option('z', &["extension-size", "ext-size"], Takes::Value),
    option('i', &["stripe-index", "index"], Takes::Value),
    option('O', &["ost", "obd"], Takes::Value),
    option('m', &["mdt-index", "mdt"], Takes::Value),
    option('T', &["mdt-count"], Takes::Value),
    option('H', &["mdt-hash"], Takes::Value),
    option('L', &["layout"], Takes::Value),
    long_option(&["pool"], Takes::Value),
    long_option(&["component-count", "comp-count"], Takes::Value),
    long_option(&["component-start", "comp-start"], Takes::Value),
    option('E', &["component-end", "comp-end"], Takes::Value),
    long_option(&["component-flags", "comp-flags"], Takes::Value),
    option('N', &["mirror-count"], Takes::Value),
    long_option(&["mirror-state"], Takes::Value),
    option('l', &["lazy"], Takes::Nothing),
    option('k', &["skip"], Takes::Value),
    long_option(&["threads"], Takes::Value),
    option('P', &["print"], Takes::Nothing),
    option('0', &["print0"], Takes::Nothing),
    long_option(&["printf"], Takes::Value),
    long_option(&["ls"], Takes::Nothing),
    long_option(&[NOT], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
    long_option(&["newer"], Takes::Value),
    long_option(&["neweraa"], Takes::Value),
    long_option(&["neweraB", "newerab"], Takes::Value),
    long_option(&["newerac"], Takes::Value),
    long_option(&["neweram"], Takes::Value),
    long_option(&["newerat"], Takes::Value),
    long_option(&["newerBa", "newerba"], Takes::Value),
    long_option(&["newerBB", "newerBb", "newerbB", "newerbb"], Takes::Value),
    long_option(&["newerBc", "newerbc"], Takes::Value),
    long_option(&["newerBm", "newerbm"], Takes::Value),
    long_option(&["newerBt", "newerbt"], Takes::Value),
    long_option(&["newerca"], Takes::Value),
    long_option(&["newercB", "newercb"], Takes::Value),
    long_option(&["newercc"], Takes::Value),
    long_option(&["newercm"], Takes::Value),
    long_option(&["newerct"], Takes::Value),
    long_option(&["newerma"], Takes::Value),
    long_option(&["newermB", "newermb"], Takes::Value),
    long_option(&["newermc"], Takes::Value),
    long_option(&["newermm"], Takes::Value),
    long_option(&["newermt"], Takes::Value),
];

const HELP: &str = "\
usage: lfs find DIRECTORY|FILE... [[!] TEST]... [ACTION]

Shows everything below DIRECTORY that passes all tests. N is equal to, +N more than, -N less than;
! negates the test after it. Long options may start with one dash.

  -A, --atime [+-]N[smhdwy]     last read, changed (-M, --mtime), attributes changed (-C, --ctime),
                                created (-B, --btime) that long ago; without a unit: days, with --amin,
                                --mmin, --cmin, --bmin minutes. Units add up, as in 8h20m, and ages
                                are rounded down to the smallest: +1 is 2 days and more, +24h 25 hours
      --newer[XY] FILE          changed later than FILE; X of what is found, Y of FILE: a, B, c, m;
                                Y is t: FILE is a time, '2026-01-31 12:00:00', '12:00' of today, or
                                seconds since 1970
  -n, --name PATTERN            name, with *, ? and [..]
  -t, --type [bcdflps],..       kind
  -s, --size [+-]N[bKMGTPE]     size, rounded up to the unit: -1M is an empty file, 1M one of up to 1 MiB
  -b, --blocks [+-]N[bKMGTPE]   space in use, likewise; without a unit: blocks of 512 bytes
                                K, M, G are powers of 1024, KB, MB, GB of 1000; b: blocks of 512 bytes
  -u, --uid, -U, --user USER    owner, by number or name; -g, --gid, -G, --group: group
      --perm [-/]MODE           permission bits: exactly, - all of, / any of them; octal or symbolic
      --links [+-]N             number of names
      --projid N                project id, as chattr -p sets it (files: needs read permission)
      --xattr NAME[=VALUE]      has this extended attribute; both are patterns
  -D, --maxdepth N              at most N levels below the operand; --mindepth N: at least

Layouts (for directories, the default layout; for one value, that of the last component with objects):

  -c, --stripe-count [+-]N      -S, --stripe-size [+-]N[KMG]      -z, --extension-size [+-]N[KMG]
  -i, --stripe-index OST,..     first OST         -O, --ost OST,..        any OST
  -L, --layout PATTERN          a component is: raid0, mdt, overstriped, automatic, released
      --pool POOL               a component is in POOL; '': in no pool
  -m, --mdt-index MDT,..        -T, --mdt-count [+-]N             -H, --mdt-hash HASH
      --component-count [+-]N   0: plain layouts
      --component-start [+-]N   -E, --component-end [+-]N         --component-flags FLAG,..
  -N, --mirror-count [+-]N      --mirror-state STATE              [^]ro, [^]wp, [^]sp

  -l, --lazy                    no effect: sizes are always exact
  -k, --skip PERCENT            skips a random part of the files
      --threads N               directories that are read in parallel, 1 by default; with more, the
                                order of the output is undefined

  -P, --print                   path and newline (default)       -0, --print0   path and NUL
      --ls                      as 'ls -dils'
      --printf FORMAT           %a %c %t %w times (%A@ %C@ %T@ %W@ in seconds), %b blocks, %k KiB,
                                %s size, %g %G group, %u %U user, %m %M mode, %n links, %i inode,
                                %p path, %y type, %%; %LF FID, %Lc stripes, %LS stripe size,
                                %Li first OST, %Lo all OSTs, %Lp pool, %LP project, %Lh hash,
                                %La %LA attributes; escapes \\n \\t \\0 \\\\ ...

Exit status: 0; 4 for a wrong command line; else the last error number (find continues after errors).
";

/// Most threads of a walk.
const THREADS_MAX: usize = 256;

/// What is done with files that pass.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Path and this byte.
    Path(u8),
    /// A format.
    Formatted(Format),
}

/// Everything that the command line requests.
struct Search {
    tests: Tests,
    depth: std::ops::RangeInclusive<usize>,
    skip_percent: u64,
    action: Action,
}

/// Runs `lfs find`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed =
        parse_long_only(OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs find: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    if parsed.operands.is_empty() {
        return Err(usage_error("DIRECTORY or FILE must be specified"));
    }
    let search = Search {
        depth: number(&parsed, "mindepth")?.unwrap_or(0)..=number(&parsed, "maxdepth")?.unwrap_or(usize::MAX),
        skip_percent: match number(&parsed, "skip")?.unwrap_or(0) {
            percent @ 0..=100 => percent as u64,
            other => return Err(usage_error(format_args!("invalid percentage '{other}'"))),
        },
        tests: Tests::new(&parsed)?,
        action: action(&parsed)?,
    };
    let threads = number(&parsed, "threads")?.unwrap_or(1);
    if !(1..=THREADS_MAX).contains(&threads) {
        return Err(usage_error(format_args!("invalid number of threads '{threads}'")));
    }
    let roots: Vec<PathBuf> = parsed.operands.iter().map(PathBuf::from).collect();
    Walk::new(&search, roots).run(threads, output)
}

fn usage_error(problem: impl std::fmt::Display) -> Failure {
    Failure::new(USAGE, format!("lfs find: {problem}"))
}

fn number(parsed: &Parsed, name: &str) -> Result<Option<usize>, Failure> {
    let Some(text) = parsed.value(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| usage_error(format_args!("invalid value '{text}' of --{name}")))
}

/// The last action counts.
fn action(parsed: &Parsed) -> Result<Action, Failure> {
    let mut action = Action::Path(b'\n');
    for (name, value) in &parsed.options {
        action =
            match *name {
                "print" => Action::Path(b'\n'),
                "print0" => Action::Path(0),
                "ls" => Action::Formatted(Format::ls()),
                "printf" => {
                    let format = Format::parse(value.as_deref().unwrap_or_default());
                    Action::Formatted(format.map_err(|directive| {
                        usage_error(format_args!("unknown directive '{directive}' in the format"))
                    })?)
                }
                _ => continue,
            };
    }
    Ok(action)
}

#[cfg(test)]
mod command_lines {
    use super::*;

    #[test]
    fn wrong_command_lines_are_refused() {
        for (words, problem) in [
            ("", "DIRECTORY or FILE must be specified"),
            (". -Q", "unrecognized option '-Q'"),
            (". -type x", "invalid value 'x' of --type"),
            (". -size 3x", "invalid value '3x' of --size"),
            (". -user nobodyknows", "invalid value 'nobodyknows' of --user"),
            (". -mtime abc", "invalid value 'abc' of --mtime"),
            (". -perm 9", "invalid value '9' of --perm"),
            (". -printf %q", "unknown directive '%q' in the format"),
            (". --threads 0", "invalid number of threads '0'"),
            (". -L foo", "invalid value 'foo' of --layout"),
            (". -skip 101", "invalid percentage '101'"),
        ] {
            let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let failure = run(&arguments, &mut Vec::new()).expect_err(words);
            assert_eq!(failure, Failure::new(USAGE, format!("lfs find: {problem}")), "{words}");
        }
    }
}
