//! `lfs setdirstripe -D`, and what `lfs getdirstripe -D` shows of it: what new directories in a
//! directory get.

use std::path::Path;

use rpc::message::control::ControlRequest;
use types::{DirectoryDefault, MdtIndex, ShardCount};

use super::{
    channel::{self, CallError, Errno, strerror},
    dirstripe::{self, Wanted},
    getdirstripe::{self, Field},
    options::Parsed,
    outcome::{Failure, Outcome, USAGE},
};

/// Levels for which a default with stripes counts if no number is given, as in Lustre.
const LEVELS_WITH_STRIPES: u8 = 3;

/// Where there is no default: mkdir(2) makes a directory without stripes on the MDT of its name.
const NONE: DirectoryDefault =
    DirectoryDefault { count: ShardCount::Exactly(1), first: None, hash: None, levels: None, spread_levels: Some(0) };

/// Options that say what the default is, and `-o`, which no default has.
const CONTENT: &[&str] =
    &["mdt-count", "mdt-overcount", "mdt-index", "mdt-hash", "max-inherit", "max-inherit-rr", "mode"];

/// Options that only a default has.
const ONLY_DEFAULT: &[&str] = &["max-inherit", "max-inherit-rr"];

/// Whether a default is asked for, or its end. An error says which options do not go together.
pub(crate) fn is_asked_for(parsed: &Parsed) -> Result<bool, String> {
    let given = |names: &[&'static str]| names.iter().copied().find(|name| parsed.has(name));
    if parsed.has("delete") {
        return match given(CONTENT) {
            Some(name) => Err(format!("option '--{name}' is not possible with --delete")),
            None => Ok(true),
        };
    }
    if parsed.has("default") {
        return match parsed.has("mode") {
            true => Err("option '--mode' is not possible with --default".to_owned()),
            false => Ok(true),
        };
    }
    match given(ONLY_DEFAULT) {
        Some(name) => Err(format!("option '--{name}' needs --default (-D)")),
        None => Ok(false),
    }
}

/// `lfs setdirstripe -D`, `-d`.
pub(crate) fn set(command: &str, parsed: &Parsed, wanted: &Wanted) -> Outcome {
    let default = match parsed.has("delete") {
        true => None,
        false => {
            let default = default(parsed, wanted);
            Some(default.map_err(|problem| Failure::new(USAGE, format!("lfs {command}: {problem}")))?)
        }
    };
    for operand in &parsed.operands {
        set_one(command, Path::new(operand), default, wanted)?;
    }
    Ok(())
}

fn default(parsed: &Parsed, wanted: &Wanted) -> Result<DirectoryDefault, String> {
    if wanted.mdts.len() > 1 {
        return Err("a default has one MDT target, the first one (-i)".to_owned());
    }
    let first = wanted.mdts.first().copied();
    let count = if wanted.is_plain() { ShardCount::Exactly(1) } else { wanted.count };
    let usual = if wanted.is_plain() { None } else { Some(LEVELS_WITH_STRIPES) };
    let levels = match parsed.value("max-inherit") {
        Some(text) => number(text).filter(|levels| *levels != Some(0)).ok_or_else(|| {
            format!("invalid max-inherit '{text}': -1 (for all levels), or 1 to {}", DirectoryDefault::LEVELS_MAX)
        })?,
        None => usual,
    };
    let spread_levels = match parsed.value("max-inherit-rr") {
        Some(text) => number(text).ok_or_else(|| {
            format!("invalid max-inherit-rr '{text}': -1 (for all levels), or 0 to {}", DirectoryDefault::LEVELS_MAX)
        })?,
        None => Some(0),
    };
    if first.is_some() && spread_levels != Some(0) {
        return Err("option '--max-inherit-rr' needs an MDT index of -1 (-i)".to_owned());
    }
    let hash = parsed.has("mdt-hash").then_some(wanted.hash);
    Ok(DirectoryDefault { count, first, hash, levels, spread_levels })
}

/// Outer `None`: it is none; inner: all levels.
fn number(text: &str) -> Option<Option<u8>> {
    match text {
        "-1" => Some(None),
        text => text.parse().ok().filter(|levels| *levels <= DirectoryDefault::LEVELS_MAX).map(Some),
    }
}

fn set_one(command: &str, path: &Path, default: Option<DirectoryDefault>, wanted: &Wanted) -> Outcome {
    let shown = path.display();
    let unable = |errno: i32| {
        let problem = format!("lfs {command}: unable to open '{shown}': {} ({errno})", strerror(errno));
        Failure::new(errno, problem)
    };
    let failed = |error: &CallError| dirstripe::refused(command, path.as_os_str(), error);
    let found = std::fs::metadata(path).map_err(|error| unable(Errno::from(error).0))?;
    if !found.is_dir() {
        return Err(unable(libc::ENOTDIR));
    }
    if default.is_some() {
        let there = dirstripe::mdts(path).map_err(|errno| failed(&errno.into()))?;
        wanted.stripes(there, MdtIndex(0)).map_err(|problem| {
            Failure::new(libc::ENODEV, format!("lfs {command}: dirstripe error on '{shown}': {problem}"))
        })?;
    }
    let request = ControlRequest::SetDirectoryDefault(default);
    channel::ask(path, &request).map(drop).map_err(|error| failed(&error))
}

/// A default as `lfs getdirstripe -D` shows it; of a directory that has none, what mkdir(2) does
/// there, or with `raw` that it has none.
pub(crate) fn fields(default: Option<&DirectoryDefault>, raw: bool, hexadecimal: bool) -> Vec<Field> {
    let or_all = |number: Option<u8>| number.map_or(-1, i32::from).to_string();
    let unset = DirectoryDefault { count: ShardCount::Exactly(u16::from(!raw)), ..NONE };
    let default = default.unwrap_or(&unset);
    let count = match default.count {
        ShardCount::All => -1,
        ShardCount::Exactly(count) | ShardCount::Overstriped(count) => i32::from(count),
        ShardCount::PerMdt(count) => -i32::from(count),
    };
    let first = getdirstripe::shown_index(default.first, hexadecimal);
    let hash = getdirstripe::shown_hash(default.hash, default.is_overstriped());
    vec![
        Field { option: "mdt-count", label: "lmv_stripe_count:", value: count.to_string() },
        Field { option: "mdt-index", label: "lmv_stripe_offset:", value: first },
        Field { option: "mdt-hash", label: "lmv_hash_type:", value: hash },
        Field { option: "max-inherit", label: "lmv_max_inherit:", value: or_all(default.levels) },
        Field { option: "max-inherit-rr", label: "lmv_max_inherit_rr:", value: or_all(default.spread_levels) },
    ]
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use types::NameHash;

    use super::*;
    use crate::{
        dirstripe::{COUNT_OPTIONS, MAKE_OPTIONS},
        options::parse,
    };

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn asked(line: &str) -> Result<DirectoryDefault, String> {
        let parsed = parse(MAKE_OPTIONS, &words(line)).map_err(|error| error.to_string())?;
        assert!(is_asked_for(&parsed)?, "{line}");
        default(&parsed, &Wanted::of(&parsed, COUNT_OPTIONS)?)
    }

    fn shown(default: &DirectoryDefault) -> String {
        let fields = fields(Some(default), false, false).into_iter();
        fields.map(|Field { label, value, .. }| format!("{label} {value}")).collect::<Vec<_>>().join(" ")
    }

    /// The lines that Lustre 2.17.0 shows for these commands.
    #[test]
    fn defaults_are_read_and_shown_as_in_lustre() {
        let two = asked("-D -c 2 dd").unwrap();
        assert_eq!(
            shown(&two),
            "lmv_stripe_count: 2 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 3 lmv_max_inherit_rr: 0"
        );
        assert_eq!(
            shown(&two.inherited().unwrap()),
            "lmv_stripe_count: 2 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 2 lmv_max_inherit_rr: 0"
        );
        assert_eq!(
            shown(&asked("-D -i -1 -c 1 --max-inherit 3 --max-inherit-rr 2 dd").unwrap()),
            "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 3 lmv_max_inherit_rr: 2"
        );
        let all = asked("-D -c -1 -i 2 -H crush -X -1 dd").unwrap();
        assert_eq!(
            all,
            DirectoryDefault {
                count: ShardCount::All,
                first: Some(MdtIndex(2)),
                hash: Some(NameHash::Crush),
                levels: None,
                spread_levels: Some(0)
            }
        );
        assert_eq!(asked("-D -i 1 dd").unwrap().levels, None, "without stripes: for all levels");
        assert_eq!(asked("-D -c -1 dd").unwrap().levels, Some(3));
        let over = |line: &str| shown(&asked(line).unwrap());
        assert_eq!(
            [over("-D -C 8 d"), over("-D -C -2 -X -1 -H crush d")],
            [
                "lmv_stripe_count: 8 lmv_stripe_offset: -1 lmv_hash_type: none,overstriped lmv_max_inherit: 3 lmv_max_inherit_rr: 0",
                "lmv_stripe_count: -2 lmv_stripe_offset: -1 lmv_hash_type: crush,overstriped lmv_max_inherit: -1 lmv_max_inherit_rr: 0"
            ]
        );
        assert_eq!([asked("-D -C -1 d"), asked("-D -C 1 d")], [asked("-D -c -1 d"), asked("-D -c 1 d")]);
        assert!(asked("-D -c 2 -X 250 --max-inherit-rr -1 d").unwrap().is_possible());
    }

    #[test]
    fn wrong_defaults_are_refused() {
        for (line, problem) in [
            ("-D -X 0 d", "invalid max-inherit '0': -1 (for all levels), or 1 to 250"),
            ("-D -X 251 d", "invalid max-inherit '251': -1 (for all levels), or 1 to 250"),
            ("-D -X -2 d", "invalid max-inherit '-2': -1 (for all levels), or 1 to 250"),
            ("-D --max-inherit-rr 251 d", "invalid max-inherit-rr '251': -1 (for all levels), or 0 to 250"),
            ("-D -i 1 --max-inherit-rr 1 d", "option '--max-inherit-rr' needs an MDT index of -1 (-i)"),
            ("-D -i 1,2 d", "a default has one MDT target, the first one (-i)"),
            ("-D -o 700 d", "option '--mode' is not possible with --default"),
            ("-d -c 2 d", "option '--mdt-count' is not possible with --delete"),
            ("-d -C 2 d", "option '--mdt-overcount' is not possible with --delete"),
            ("-X 3 d", "option '--max-inherit' needs --default (-D)"),
            ("--max-inherit-rr 3 d", "option '--max-inherit-rr' needs --default (-D)"),
        ] {
            assert_eq!(asked(line), Err(problem.to_owned()), "{line}");
        }
        let is_asked = |line: &str| is_asked_for(&parse(MAKE_OPTIONS, &words(line)).unwrap());
        assert_eq!([is_asked("-d d"), is_asked("-D -d d"), is_asked("-c 2 d")], [Ok(true), Ok(true), Ok(false)]);
    }
}
