//! `lfs setstripe`: creates a file with a layout, or sets or clears a directory's default layout.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    path::Path,
};

use client::control::ControlRequest;
use layout::{LayoutSpec, StripeCount, StripeSpec};
use types::{OstIndex, limits};

use super::{
    Failure, Outcome, USAGE,
    channel::{self, Errno, strerror},
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    print, size,
};

const OPTIONS: &[OptionSpec] = &[
    option('c', &["stripe-count"], Takes::Value),
    option('S', &["stripe-size"], Takes::Value),
    option('i', &["stripe-index"], Takes::Value),
    option('d', &["delete"], Takes::Nothing),
    option('p', &["pool"], Takes::Value),
    option('L', &["layout"], Takes::Value),
    option('C', &["overstripe-count"], Takes::Value),
    option('o', &["ost"], Takes::Value),
    option('E', &["component-end"], Takes::Value),
    option('z', &["extension-size"], Takes::Value),
    option('N', &["mirror-count"], Takes::OptionalValue),
    option('y', &["yaml"], Takes::Value),
    option('I', &["component-id"], Takes::Value),
    long_option(&["component-add", "comp-add"], Takes::Nothing),
    long_option(&["component-del", "comp-del"], Takes::Nothing),
    long_option(&["component-flags", "comp-flags"], Takes::Value),
    long_option(&["copy"], Takes::Value),
    long_option(&["mode"], Takes::Value),
    long_option(&["help"], Takes::Nothing),
];

/// Options of composite layouts, pools and the like, which plain layouts do not have.
const NOT_PLAIN: &[&str] = &[
    "overstripe-count",
    "ost",
    "component-end",
    "extension-size",
    "mirror-count",
    "yaml",
    "component-id",
    "component-add",
    "component-del",
    "component-flags",
    "copy",
];

const HELP: &str = "\
usage: lfs setstripe [-c COUNT] [-S SIZE] [-i OST] FILE|DIRECTORY...
       lfs setstripe -d DIRECTORY...

Creates FILE, empty, with a layout of its own; or makes a layout the default of DIRECTORY, which
files created in it afterwards get, and directories created in it inherit.

  -c, --stripe-count COUNT  stripes, 1-2000; 0: the default; -1: one on every OST. More than there
                            are usable OSTs means all of them
  -S, --stripe-size SIZE    bytes per stripe: a multiple of 64K below 4G; K, M, G are understood,
                            a bare number below 4096 means KiB; 0: the default
  -i, --stripe-index OST    OST of the first stripe; -1: chosen by free space and turn
  -d, --delete              clear DIRECTORY's default
      --mode MODE           permission bits of a new file, octal

Exit status: 0; 4 for a wrong command line; else the error number (17: FILE exists, 25: not on StriaFS).
";

/// Runs `lfs setstripe`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed = parse(OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs setstripe: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    if let Some(name) = NOT_PLAIN.iter().find(|name| parsed.has(name)) {
        return Err(Failure::new(
            libc::EOPNOTSUPP,
            format!(
                "lfs setstripe: option '--{name}' is not supported yet; layouts have a count (-c), a size (-S) and a first OST (-i)"
            ),
        ));
    }
    refuse_pool(&parsed)?;
    let spec = spec(&parsed)?;
    let mode = mode(&parsed)?;
    if parsed.operands.is_empty() {
        return Err(usage_error("FILE must be specified"));
    }
    for operand in &parsed.operands {
        set(operand, &spec, parsed.has("delete"), mode)?;
    }
    Ok(())
}

fn usage_error(problem: impl std::fmt::Display) -> Failure {
    Failure::new(USAGE, format!("lfs setstripe setstripe: {problem}"))
}

/// Pools come later: any name is therefore one that does not exist, with Lustre's words for it.
fn refuse_pool(parsed: &Parsed) -> Outcome {
    /// Longest pool name (Lustre's LOV_MAXPOOLNAME).
    const POOL_NAME_BYTES_MAX: usize = 15;
    match parsed.value("pool") {
        None | Some("" | "ignore" | "inherit" | "none") => Ok(()),
        Some(pool) if pool.len() > POOL_NAME_BYTES_MAX => {
            let problem = format!("lfs setstripe: Invalid Poolname '{pool}': {} (22)", strerror(libc::EINVAL));
            Err(Failure::new(libc::EINVAL, problem))
        }
        Some(pool) => {
            let problem = format!("lfs setstripe: pool '{pool}' does not exist: {} (2)", strerror(libc::ENOENT));
            Err(Failure::new(libc::EINVAL, problem))
        }
    }
}

fn spec(parsed: &Parsed) -> Result<LayoutSpec, Failure> {
    let stripe_bytes = parsed.value("stripe-size").map(stripe_size).transpose()?.flatten();
    let stripe_count = parsed.value("stripe-count").map(stripe_count).transpose()?.unwrap_or_default();
    let first_ost = parsed.value("stripe-index").map(first_ost).transpose()?.flatten();
    match parsed.value("layout") {
        None | Some("raid0") => {
            Ok(LayoutSpec::Plain(StripeSpec { stripe_count, stripe_bytes, first_ost, ..StripeSpec::default() }))
        }
        Some("mdt") => {
            let problem = "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)";
            Err(Failure::new(libc::EINVAL, problem))
        }
        Some(other) => {
            let problem = format!("error: layout '{other}' is unknown, supported layouts are: 'mdt', 'raid0'");
            Err(Failure::new(libc::EINVAL, problem))
        }
    }
}

fn stripe_size(text: &str) -> Result<Option<u64>, Failure> {
    let invalid = || usage_error(format_args!("invalid stripe size '{text}'"));
    let bytes = size::parse(text, true).ok_or_else(invalid)?;
    if bytes > limits::STRIPE_BYTES_MAX && bytes % limits::STRIPE_BYTES_MIN == 0 {
        let problem = format!("lfs setstripe: error: stripe size '{bytes}' over 4GB limit: Invalid argument (22)");
        return Err(Failure::new(libc::EINVAL, problem));
    }
    if bytes % limits::STRIPE_BYTES_MIN != 0 {
        return Err(invalid());
    }
    Ok((bytes != 0).then_some(bytes))
}

fn stripe_count(text: &str) -> Result<StripeCount, Failure> {
    let invalid = || usage_error(format_args!("invalid stripe count '{text}'"));
    match text.parse::<i64>().map_err(|_| invalid())? {
        -1 => Ok(StripeCount::All),
        0 => Ok(StripeCount::Default),
        count if (1..=i64::from(limits::STRIPE_COUNT_MAX)).contains(&count) => Ok(StripeCount::Exactly(count as u32)),
        _ => Err(invalid()),
    }
}

fn first_ost(text: &str) -> Result<Option<OstIndex>, Failure> {
    let invalid = || usage_error(format_args!("invalid stripe offset '{text}'"));
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    match i64::from_str_radix(digits, radix).map_err(|_| invalid())? {
        -1 => Ok(None),
        index => u16::try_from(index).map(|index| Some(OstIndex(index))).map_err(|_| invalid()),
    }
}

/// Permission bits of new files: `--mode`, or what the umask leaves.
fn mode(parsed: &Parsed) -> Result<u32, Failure> {
    if let Some(text) = parsed.value("mode") {
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777);
        return bits.ok_or_else(|| usage_error(format_args!("invalid mode '{text}'")));
    }
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    Ok(0o644 & !mask.bits())
}

fn set(operand: &OsStr, spec: &LayoutSpec, delete: bool, mode: u32) -> Outcome {
    let path = Path::new(operand);
    let metadata = std::fs::metadata(path);
    let directory = metadata.as_ref().is_ok_and(std::fs::Metadata::is_dir);
    let result = match () {
        () if directory && delete => channel::call(path, &ControlRequest::SetDefaultLayout(None)),
        () if directory => channel::call(path, &ControlRequest::SetDefaultLayout(Some(spec.clone()))),
        () => create(path, spec, mode, metadata.is_ok()),
    };
    result.map(drop).map_err(|Errno(errno)| match errno {
        libc::EEXIST => failure(operand, errno, "stripe already set"),
        libc::ENOENT => {
            let (shown, problem) = (operand.display(), strerror(errno));
            Failure::new(errno, format!("lfs setstripe: unable to open '{shown}': {problem} ({errno})"))
        }
        _ => failure(operand, errno, &strerror(errno)),
    })
}

fn failure(operand: &OsStr, errno: i32, problem: &str) -> Failure {
    Failure::new(errno, format!("lfs setstripe: setstripe error for '{}': {problem}", operand.display()))
}

fn create(path: &Path, spec: &LayoutSpec, mode: u32, exists: bool) -> Result<client::control::ControlReply, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let directory = channel::parent(path);
    if exists && channel::mount_of(path)?.is_none() {
        return Err(Errno(libc::ENOTTY));
    }
    let name = path.file_name().ok_or(Errno(libc::EINVAL))?.as_bytes().to_vec();
    channel::call(&directory, &ControlRequest::CreateWithLayout { name, mode, spec: spec.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(words: &str) -> (u8, String) {
        let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let failure = run(&arguments, &mut Vec::new()).expect_err(words);
        (failure.status, failure.message)
    }

    /// The lines of the captured edge cases that need no file system.
    #[test]
    fn wrong_command_lines_fail_as_in_lustre() {
        for (words, expected, message) in [
            ("-S 100000 e1", 4, "lfs setstripe setstripe: invalid stripe size '100000'"),
            ("-S 65537 e2", 4, "lfs setstripe setstripe: invalid stripe size '65537'"),
            ("-S 4G e3", 22, "lfs setstripe: error: stripe size '4294967296' over 4GB limit: Invalid argument (22)"),
            ("-S 1 e3c", 4, "lfs setstripe setstripe: invalid stripe size '1'"),
            ("-S abc e3d", 4, "lfs setstripe setstripe: invalid stripe size 'abc'"),
            ("-c 99999 e4", 4, "lfs setstripe setstripe: invalid stripe count '99999'"),
            ("-c 2001 e4b", 4, "lfs setstripe setstripe: invalid stripe count '2001'"),
            ("-c -2 e6", 4, "lfs setstripe setstripe: invalid stripe count '-2'"),
            ("-c abc e6b", 4, "lfs setstripe setstripe: invalid stripe count 'abc'"),
            ("-i -2 e8", 4, "lfs setstripe setstripe: invalid stripe offset '-2'"),
            (
                "-p toolongpoolnametoolongpoolname e",
                22,
                "lfs setstripe: Invalid Poolname 'toolongpoolnametoolongpoolname': Invalid argument (22)",
            ),
            (
                "-L mdt m4",
                22,
                "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)",
            ),
            ("", 4, "lfs setstripe setstripe: FILE must be specified"),
            ("-c 1", 4, "lfs setstripe setstripe: FILE must be specified"),
            ("-Q x", 4, "lfs setstripe: unrecognized option '-Q'"),
        ] {
            assert_eq!(status(words), (expected, message.to_owned()), "{words}");
        }
    }

    #[test]
    fn composite_options_are_refused_by_name() {
        let (code, message) = status("-E 16M -c 1 f");
        assert_eq!(i32::from(code), libc::EOPNOTSUPP);
        assert!(message.contains("--component-end"), "{message}");
    }
}
