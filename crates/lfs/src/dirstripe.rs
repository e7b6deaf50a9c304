//! `lfs mkdir` (also called `lfs setdirstripe`) and `lfs getdirstripe`: on which MDT a directory
//! is. Directories are not striped yet, so what only striped ones have is refused.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use rpc::message::control::{ControlReply, ControlRequest};
use types::{Fid, InodeNumber, MdtIndex};

use super::{
    channel::{self, CallError, Errno, strerror},
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print},
};

/// Options of `lfs mkdir`.
pub const MAKE_OPTIONS: &[OptionSpec] = &[
    option('i', &["mdt-index", "mdt", "index"], Takes::Value),
    option('c', &["mdt-count", "count"], Takes::Value),
    option('C', &["mdt-overcount", "overcount"], Takes::Value),
    option('H', &["mdt-hash", "hash-type"], Takes::Value),
    option('o', &["mode"], Takes::Value),
    option('D', &["default", "default_stripe"], Takes::Nothing),
    option('d', &["delete"], Takes::Nothing),
    option('X', &["max-inherit"], Takes::Value),
    long_option(&["max-inherit-rr"], Takes::Value),
    long_option(&["help"], Takes::Nothing),
];

/// Options of `lfs getdirstripe`.
pub const SHOW_OPTIONS: &[OptionSpec] = &[
    option('c', &["mdt-count", "count"], Takes::Nothing),
    option('i', &["mdt-index", "index"], Takes::Nothing),
    option('m', &["mdt"], Takes::Nothing),
    option('H', &["mdt-hash", "hash-type"], Takes::Nothing),
    option('F', &["fid"], Takes::Nothing),
    option('y', &["yaml"], Takes::Nothing),
    option('D', &["default"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// What only striped directories and defaults have.
const STRIPED: &[&str] = &["mdt-overcount", "mdt-hash", "default", "delete", "max-inherit", "max-inherit-rr"];

/// Permission bits of new directories that the umask may clear.
const MODE_DEFAULT: u32 = 0o777;

/// Runs `lfs mkdir`.
pub fn mkdir(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    make("mkdir", arguments, output)
}

/// Runs `lfs setdirstripe`.
pub fn setdirstripe(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    make("setdirstripe", arguments, output)
}

fn make(command: &str, arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let wrong = |problem: String| Failure::new(USAGE, format!("lfs {command}: {problem}"));
    let parsed = parse(MAKE_OPTIONS, arguments).map_err(|error| wrong(error.to_string()))?;
    if parsed.has("help") {
        return print(
            output,
            format_args!(
                "usage: lfs {command} [-i INDEX] [-o MODE] DIR...\n\nCreates directories.\n\n  -i, --mdt-index INDEX     the metadata target that has DIR and everything made in it; -1, which is the\n                            default: that of the directory above\n  -c, --mdt-count 1         one metadata target: directories are not striped yet\n  -o, --mode MODE           permission bits, octal\n\nOnly root may choose another metadata target than that of the directory above.\n\nExit status: 0; 4 for a wrong command line; else the error number (17: DIR exists, 19: no such target).\n"
            ),
        );
    }
    refuse_striped(command, &parsed)?;
    let mdt = index(&parsed).map_err(wrong)?;
    let (mode, umask) = mode(&parsed).map_err(wrong)?;
    if parsed.operands.is_empty() {
        return Err(wrong("DIR must be specified".to_owned()));
    }
    for operand in &parsed.operands {
        make_one(Path::new(operand), mdt, (mode, umask)).map_err(|error| refused(command, operand, &error))?;
    }
    Ok(())
}

/// What would be a striped directory, or a default for directories, is refused rather than made
/// otherwise.
fn refuse_striped(command: &str, parsed: &Parsed) -> Outcome {
    let count = parsed.value("mdt-count").map_or(Ok(1), str::parse::<i64>);
    let count = count.map_err(|_| {
        let text = parsed.value("mdt-count").unwrap_or_default();
        Failure::new(USAGE, format!("lfs {command}: invalid stripe count '{text}'"))
    })?;
    let several = parsed.value("mdt-index").is_some_and(|list| list.contains(','));
    if let Some(name) = STRIPED.iter().find(|name| parsed.has(name)) {
        let problem = format!("lfs {command}: option '--{name}' is not supported yet: directories are not striped");
        return Err(Failure::new(libc::EOPNOTSUPP, problem));
    }
    if count != 1 || several {
        let problem = format!("lfs {command}: several metadata targets for one directory are not supported yet");
        return Err(Failure::new(libc::EOPNOTSUPP, problem));
    }
    Ok(())
}

/// The MDT that was asked for; `None`: that of the directory above.
fn index(parsed: &Parsed) -> Result<Option<MdtIndex>, String> {
    let Some(text) = parsed.value("mdt-index").filter(|text| *text != "-1") else { return Ok(None) };
    let index = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    index.map(|index| Some(MdtIndex(index))).map_err(|_| format!("invalid MDT target(s) '{text}'"))
}

/// Permission bits and the umask, which does not apply to bits that were asked for.
fn mode(parsed: &Parsed) -> Result<(u32, u32), String> {
    if let Some(text) = parsed.value("mode") {
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777);
        return bits.map(|bits| (bits, 0)).ok_or_else(|| format!("invalid mode '{text}'"));
    }
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    Ok((MODE_DEFAULT, mask.bits()))
}

fn make_one(path: &Path, mdt: Option<MdtIndex>, (mode, umask): (u32, u32)) -> Result<(), CallError> {
    let name = path.file_name().ok_or(Errno(libc::EEXIST))?.as_bytes().to_vec();
    let request = ControlRequest::MakeDirectory { name, mode, umask, mdt };
    channel::ask(&channel::parent(path), &request).map(drop)
}

/// In Lustre's words.
fn refused(command: &str, operand: &OsStr, error: &CallError) -> Failure {
    let (Errno(errno), shown) = (error.errno(), operand.display());
    let message = match errno {
        libc::EEXIST => format!("lfs {command}: dirstripe error on '{shown}': stripe already set"),
        libc::ENOENT => format!("lfs {command}: cannot resolve path '{shown}': {} ({errno})", strerror(errno)),
        _ => format!("lfs {command}: dirstripe error on '{shown}': {}", strerror(errno)),
    };
    Failure::new(errno, message)
}

/// Runs `lfs getdirstripe`.
pub fn getdirstripe(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let wrong = |problem: String| Failure::new(USAGE, format!("lfs getdirstripe: {problem}"));
    let parsed = parse(SHOW_OPTIONS, arguments).map_err(|error| wrong(error.to_string()))?;
    if parsed.has("help") {
        return print(
            output,
            format_args!(
                "usage: lfs getdirstripe [-c|-i|-m|-H|-F|-y] DIR...\n\nShows on which metadata target directories are. (A directory that is not striped has 0 stripes.)\n\n  -c, --mdt-count           only the number of stripes\n  -i, --mdt-index, -m       only the index of the metadata target\n  -H, --mdt-hash            only the hash\n  -F, --fid                 only the FID\n  -y, --yaml                YAML\n"
            ),
        );
    }
    if parsed.has("default") {
        let problem = "lfs getdirstripe: option '--default' is not supported yet: directories are not striped";
        return Err(Failure::new(libc::EOPNOTSUPP, problem));
    }
    if parsed.operands.is_empty() {
        return Err(wrong("DIR must be specified".to_owned()));
    }
    for operand in &parsed.operands {
        let inode = directory(Path::new(operand)).map_err(|Errno(errno)| {
            let (shown, reason) = (operand.display(), strerror(errno));
            Failure::new(errno, format!("lfs: getdirstripe for '{shown}' failed: {reason}"))
        })?;
        show(inode, &parsed, output)?;
    }
    Ok(())
}

fn directory(path: &Path) -> Result<InodeNumber, Errno> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(Errno(libc::ENOTDIR));
    }
    match channel::call(path, &ControlRequest::GetInode(rpc::message::control::Subject::This))? {
        ControlReply::Inode(inode) => Ok(inode),
        _ => Err(Errno(libc::EPROTO)),
    }
}

fn show(inode: InodeNumber, parsed: &Parsed, output: &mut dyn Write) -> Outcome {
    let (mdt, fid) = (inode.mdt().0, Fid::from(inode));
    match () {
        () if parsed.has("mdt-count") => print(output, format_args!("0\n")),
        () if parsed.has("mdt-index") || parsed.has("mdt") => print(output, format_args!("{mdt}\n")),
        () if parsed.has("mdt-hash") => print(output, format_args!("none\n")),
        () if parsed.has("fid") => print(output, format_args!("{fid}\n")),
        () if parsed.has("yaml") => {
            let fid = fid.to_string();
            let fid = fid.trim_matches(['[', ']']);
            print(
                output,
                format_args!(
                    "lmv_stripe_count:  0\nlmv_stripe_offset: {mdt}\nlmv_hash_type:     none\nlmv_objects:\n      - l_mdt_idx: {mdt}\n        l_fid:     {fid}\n\n"
                ),
            )
        }
        () => print(output, format_args!("lmv_stripe_count: 0 lmv_stripe_offset: {mdt} lmv_hash_type: none\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn wrong_command_lines_fail_as_in_lustre_and_stripes_are_refused() {
        for (line, status, message) in [
            ("", USAGE, "lfs mkdir: DIR must be specified"),
            ("-i abc d", USAGE, "lfs mkdir: invalid MDT target(s) 'abc'"),
            ("-i 65536 d", USAGE, "lfs mkdir: invalid MDT target(s) '65536'"),
            ("-c x d", USAGE, "lfs mkdir: invalid stripe count 'x'"),
            ("-o 999 d", USAGE, "lfs mkdir: invalid mode '999'"),
            ("-Q d", USAGE, "lfs mkdir: unrecognized option '-Q'"),
            ("-c 2 d", libc::EOPNOTSUPP, "lfs mkdir: several metadata targets for one directory are not supported yet"),
            (
                "-i 0,1 d",
                libc::EOPNOTSUPP,
                "lfs mkdir: several metadata targets for one directory are not supported yet",
            ),
            (
                "-H crush d",
                libc::EOPNOTSUPP,
                "lfs mkdir: option '--mdt-hash' is not supported yet: directories are not striped",
            ),
        ] {
            let failure = mkdir(&words(line), &mut Vec::new()).expect_err(line);
            assert_eq!(failure, Failure::new(status, message), "{line}");
        }
        let failure = getdirstripe(&[], &mut Vec::new()).expect_err("no directory");
        assert_eq!(failure, Failure::new(USAGE, "lfs getdirstripe: DIR must be specified"));
    }

    #[test]
    fn a_directory_is_shown_in_lustres_formats() {
        let inode = InodeNumber::new(MdtIndex(1), 0x402);
        let shown = |line: &str| {
            let (parsed, mut output) = (parse(SHOW_OPTIONS, &words(line)).unwrap(), Vec::new());
            show(inode, &parsed, &mut output).unwrap();
            String::from_utf8(output).unwrap()
        };
        assert_eq!(shown("d"), "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n");
        assert_eq!([shown("-c d"), shown("-i d"), shown("-m d"), shown("-H d")], ["0\n", "1\n", "1\n", "none\n"]);
        let yaml = shown("-y d");
        assert!(yaml.starts_with("lmv_stripe_count:  0\nlmv_stripe_offset: 1\nlmv_hash_type:     none\n"), "{yaml}");
        assert!(yaml.contains("      - l_mdt_idx: 1\n        l_fid:     0x"), "{yaml}");
    }
}
