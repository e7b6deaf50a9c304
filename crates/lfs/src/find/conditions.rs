//! The tests of `lfs find`: parsed from the options, and applied to a file.

use std::{cmp::Ordering, ffi::CString, os::unix::fs::MetadataExt, path::Path};

use host::accounts;
use layout::text::{Pattern, Row};
use types::{InodeNumber, OstIndex, size as units};

use super::{
    candidate::{Candidate, Described},
    clock::{self, Clock, Moment},
    permission::Permission,
    usage_error,
};
use crate::{
    channel::Errno,
    compare::{Compare, sign},
    component_filter::{FlagMatch, position},
    getstripe::ost_index,
    options::Parsed,
    outcome::Failure,
    size,
};

/// A comparison of a value that comes in units: `N` means whatever is rounded to N units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounded {
    wanted: Ordering,
    limit: u64,
    unit: u64,
}

impl Rounded {
    /// Reads one; `value` reads what follows the sign: the limit and its unit.
    fn parse(text: &str, value: impl FnOnce(&str) -> Option<(u64, u64)>) -> Option<Self> {
        let (wanted, text) = sign(text);
        let (limit, unit) = value(text)?;
        Some(Self { wanted, limit, unit })
    }

    /// Sizes are rounded up: a file of one byte has a size of 1M, and is not smaller than that.
    fn matches_size(&self, found: u64) -> bool {
        let next = found.saturating_add(self.unit);
        match self.wanted {
            Ordering::Less => next <= self.limit,
            Ordering::Equal => found <= self.limit && next > self.limit,
            Ordering::Greater => found > self.limit,
        }
    }

    /// Ages are rounded down: a file of 36 hours has an age of one day, and is not older than that.
    fn matches_age(&self, seconds: i64) -> bool {
        let (limit, next) = (self.limit as i64, (self.limit as i64).saturating_add(self.unit as i64));
        match self.wanted {
            Ordering::Less => seconds < limit,
            Ordering::Equal => seconds >= limit && seconds < next,
            Ordering::Greater => seconds >= next,
        }
    }
}

/// What `-L` can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Raid0,
    Mdt,
    Overstriped,
    Automatic,
    /// Known to Lustre, and nothing here is so: released, compress, foreign.
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Age(Clock, Rounded),
    Newer(Clock, Moment),
    Name(CString),
    Types(Vec<char>),
    Size(Rounded),
    Blocks(Rounded),
    Owner(u32),
    Group(u32),
    Project(Compare),
    Permission(Permission),
    Links(Compare),
    Xattr(CString, Option<CString>),
    StripeCount(Compare),
    StripeSize(Rounded),
    ExtensionSize(Rounded),
    FirstOst(Vec<OstIndex>),
    AnyOst(Vec<OstIndex>),
    Mdt(Vec<u16>),
    MdtCount(Compare),
    MdtHash(String),
    Layout(Vec<Kind>),
    Pool(String),
    ComponentCount(Compare),
    ComponentStart(Compare),
    ComponentEnd(Compare),
    ComponentFlags(FlagMatch),
    MirrorCount(Compare),
    MirrorState(String),
}

/// All of them; each with whether it is negated.
#[derive(Debug, PartialEq, Eq)]
pub struct Tests {
    tests: Vec<(Test, bool)>,
    /// Seconds since 1970 when the search began.
    now: i64,
}

impl Tests {
    /// From the options.
    pub fn new(parsed: &Parsed) -> Result<Self, Failure> {
        let mut tests = Vec::new();
        for (name, value, negated) in parsed.with_negation() {
            let Some(value) = value else { continue };
            if ["maxdepth", "mindepth", "skip", "threads", "printf"].contains(&name) {
                continue;
            }
            let test = match name.strip_prefix("newer") {
                Some(letters) => newer(letters, value)?,
                None => test(name, value).ok_or_else(|| usage_error(wrong_value(name, value)))?,
            };
            tests.push((test, negated));
        }
        // What lstat(2) tells is looked at first, so that fewer layouts are asked for.
        tests.sort_by_key(|(test, _)| test.needs_layout());
        Ok(Self { tests, now: clock::moment(std::time::SystemTime::now()).0 })
    }

    /// Whether a candidate passes all.
    pub fn pass(&self, candidate: &Candidate<'_>) -> Result<bool, Errno> {
        for (test, negated) in &self.tests {
            if test.matches(candidate, self.now)? == *negated {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What is wrong with a value; of a size also why.
fn wrong_value(name: &str, value: &str) -> String {
    let is_size = ["size", "blocks", "component-"].iter().any(|part| name.contains(part));
    let hint = if is_size { size::hint(sign(value).1) } else { String::new() };
    format!("invalid value '{value}' of --{name}{hint}")
}

/// `--newerXY FILE`.
fn newer(letters: &str, value: &str) -> Result<Test, Failure> {
    let wrong = || usage_error(format_args!("invalid value '{value}' of --newer{letters}"));
    let mut letters = letters.chars();
    let of = Clock::of_letter(letters.next().unwrap_or('m')).ok_or_else(wrong)?;
    let reference = match letters.next().unwrap_or('m') {
        't' => clock::point(value),
        letter => {
            let metadata = std::fs::metadata(Path::new(value)).map_err(|error| {
                let Errno(errno) = error.into();
                let problem = crate::channel::strerror(errno);
                Failure::new(errno, format!("lfs find: cannot stat '{value}': {problem}"))
            })?;
            Clock::of_letter(letter).and_then(|clock| clock.read(&metadata))
        }
    };
    Ok(Test::Newer(of, reference.ok_or_else(wrong)?))
}

fn test(name: &str, value: &str) -> Option<Test> {
    let number = |text: &str| text.parse().ok();
    let bytes = |text: &str| sized(text, 1);
    let age = |clock| Rounded::parse(value, clock::age).map(|rounded| Test::Age(clock, rounded));
    let minutes = |clock| Rounded::parse(value, clock::age_in_minutes).map(|rounded| Test::Age(clock, rounded));
    Some(match name {
        "atime" => age(Clock::Access)?,
        "mtime" => age(Clock::Modification)?,
        "ctime" => age(Clock::Change)?,
        "btime" => age(Clock::Birth)?,
        "amin" => minutes(Clock::Access)?,
        "mmin" => minutes(Clock::Modification)?,
        "cmin" => minutes(Clock::Change)?,
        "bmin" => minutes(Clock::Birth)?,
        "name" => Test::Name(CString::new(value).ok()?),
        "type" => Test::Types(value.split(',').map(kind).collect::<Option<_>>()?),
        "size" => Test::Size(Rounded::parse(value, bytes)?),
        "blocks" => Test::Blocks(Rounded::parse(value, |text| sized(text, 512))?),
        "uid" | "user" => Test::Owner(value.parse().ok().or_else(|| accounts::user_id(value))?),
        "gid" | "group" => Test::Group(value.parse().ok().or_else(|| accounts::group_id(value))?),
        "projid" => Test::Project(Compare::parse_count(value, number)?),
        "perm" => Test::Permission(Permission::parse(value)?),
        "links" => Test::Links(Compare::parse_count(value, number)?),
        "xattr" => {
            let (name, content) = value.split_once('=').map_or((value, None), |(name, content)| (name, Some(content)));
            Test::Xattr(CString::new(name).ok()?, content.map(CString::new).transpose().ok()?)
        }
        other => layout_test(other, value)?,
    })
}

fn layout_test(name: &str, value: &str) -> Option<Test> {
    let number = |text: &str| text.parse().ok();
    let stripe = |text: &str| Some((size::of_stripes(text).ok()?, 1));
    let count = || Compare::parse_count(value, number);
    Some(match name {
        "stripe-count" => Test::StripeCount(count()?),
        "stripe-size" => Test::StripeSize(Rounded::parse(value, stripe)?),
        "extension-size" => Test::ExtensionSize(Rounded::parse(value, stripe)?),
        "stripe-index" => Test::FirstOst(osts(value)?),
        "ost" => Test::AnyOst(osts(value)?),
        "mdt-index" => Test::Mdt(value.split(',').map(mdt).collect::<Option<_>>()?),
        "mdt-count" => Test::MdtCount(count()?),
        "mdt-hash" => Test::MdtHash(value.to_owned()),
        "layout" => Test::Layout(value.split(',').map(pattern).collect::<Option<_>>()?),
        "pool" => Test::Pool(value.to_owned()),
        "component-count" => Test::ComponentCount(count()?),
        "component-start" => Test::ComponentStart(Compare::parse(value, false, position)?),
        "component-end" => Test::ComponentEnd(Compare::parse(value, false, position)?),
        "component-flags" => Test::ComponentFlags(FlagMatch::parse(value, false).ok()?),
        "mirror-count" => Test::MirrorCount(count()?),
        "mirror-state" if ["ro", "wp", "sp"].contains(&value.trim_start_matches('^')) => {
            Test::MirrorState(value.to_owned())
        }
        _ => return None,
    })
}

/// A size and its unit: what one of the number counts for.
fn sized(text: &str, bare_unit: u64) -> Option<(u64, u64)> {
    let (number, unit) = units::split(text);
    let unit = match unit {
        "" => bare_unit,
        // Blocks, as in find(1).
        "b" => 512,
        unit => units::unit_bytes(unit).ok()?,
    };
    Some((number.parse::<u64>().ok()?.checked_mul(unit)?, unit))
}

fn kind(text: &str) -> Option<char> {
    let mut letters = text.chars();
    let letter = letters.next().filter(|letter| "bcdflps".contains(*letter))?;
    letters.next().is_none().then_some(letter)
}

fn osts(text: &str) -> Option<Vec<OstIndex>> {
    text.split(',').map(|one| ost_index(one).ok()).collect()
}

/// An MDT by index or by name (`stria-MDT0000`).
fn mdt(text: &str) -> Option<u16> {
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    match name.rsplit_once("-MDT") {
        Some((_, hexadecimal)) => u16::from_str_radix(hexadecimal, 16).ok(),
        None => name.parse().ok(),
    }
}

fn pattern(text: &str) -> Option<Kind> {
    Some(match text {
        "raid0" => Kind::Raid0,
        "mdt" => Kind::Mdt,
        "overstriped" => Kind::Overstriped,
        "automatic" => Kind::Automatic,
        "released" | "compress" | "foreign" => Kind::Never,
        _ => return None,
    })
}

/// Whether a text is like a pattern of the shell.
fn is_like(pattern: &CString, text: &[u8]) -> bool {
    let Ok(text) = CString::new(text) else { return false };
    // SAFETY: both are terminated strings that live through the call.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 }
}

impl Test {
    fn needs_layout(&self) -> bool {
        use Test::*;
        !matches!(
            self,
            Age(..)
                | Newer(..)
                | Name(_)
                | Types(_)
                | Size(_)
                | Blocks(_)
                | Owner(_)
                | Group(_)
                | Project(_)
                | Permission(_)
                | Links(_)
                | Xattr(..)
        )
    }

    fn matches(&self, candidate: &Candidate<'_>, now: i64) -> Result<bool, Errno> {
        if self.needs_layout() {
            // Only files and directories have layouts.
            if !['f', 'd'].contains(&candidate.kind()) {
                let mdt = InodeNumber(candidate.metadata.ino()).mdt();
                return Ok(matches!(self, Test::Mdt(indices) if indices.contains(&mdt.0)));
            }
            let described = candidate.described()?;
            return Ok(self.matches_layout(candidate, described));
        }
        let metadata = &candidate.metadata;
        Ok(match self {
            Test::Age(clock, age) => {
                clock.read(metadata).is_some_and(|(seconds, _)| age.matches_age(now.saturating_sub(seconds)))
            }
            Test::Newer(clock, reference) => clock.read(metadata).is_some_and(|moment| moment > *reference),
            Test::Name(pattern) => is_like(pattern, candidate.name()),
            Test::Types(kinds) => kinds.contains(&candidate.kind()),
            Test::Size(wanted) => wanted.matches_size(metadata.size()),
            Test::Blocks(wanted) => wanted.matches_size(metadata.blocks().saturating_mul(512)),
            Test::Owner(uid) => metadata.uid() == *uid,
            Test::Group(gid) => metadata.gid() == *gid,
            Test::Project(wanted) => wanted.matches(project(candidate.path)?),
            Test::Permission(wanted) => wanted.matches(metadata.mode()),
            Test::Links(wanted) => wanted.matches(metadata.nlink()),
            Test::Xattr(name, value) => has_xattr(candidate.path, name, value.as_ref())?,
            _ => unreachable!("needs the layout"),
        })
    }

    fn matches_layout(&self, candidate: &Candidate<'_>, described: &Described) -> bool {
        let rows = &described.rows;
        let chosen = |wanted: &dyn Fn(&Row) -> bool| described.chosen().is_some_and(wanted);
        let any = |wanted: &dyn Fn(&Row) -> bool| rows.iter().any(wanted);
        // Without a layout of its own nothing is said of components.
        let count = if described.composite { rows.len() as u64 } else { 0 };
        match self {
            Test::StripeCount(wanted) => {
                chosen(&|row| u64::try_from(row.stripe_count).is_ok_and(|count| wanted.matches(count)))
            }
            Test::StripeSize(wanted) => chosen(&|row| !row.extension && wanted.matches_size(row.stripe_bytes)),
            Test::ExtensionSize(wanted) => any(&|row| row.extension && wanted.matches_size(row.stripe_bytes)),
            Test::FirstOst(osts) => any(&|row| row.first_ost().is_some_and(|ost| osts.contains(&ost))),
            Test::AnyOst(osts) => any(&|row| row.objects.iter().any(|(_, ost)| osts.contains(ost))),
            Test::Mdt(indices) => indices.contains(&described.inode.mdt().0),
            Test::MdtCount(wanted) => candidate.kind() == 'd' && wanted.matches(described.stripes()),
            Test::MdtHash(hash) => candidate.kind() == 'd' && hash == described.hash(),
            Test::Layout(kinds) => any(&|row| kinds.iter().any(|kind| kind.is_of(row))),
            Test::Pool(pool) if pool.is_empty() => !rows.is_empty() && rows.iter().all(|row| row.pool.is_none()),
            Test::Pool(pool) => any(&|row| row.pool.as_ref() == Some(pool)),
            Test::ComponentCount(wanted) => !rows.is_empty() && wanted.matches(count),
            Test::ComponentStart(wanted) => described.composite && any(&|row| wanted.matches(row.extent.start)),
            Test::ComponentEnd(wanted) => described.composite && any(&|row| wanted.matches(row.extent.end)),
            Test::ComponentFlags(flags) => described.composite && any(&|row| flags.matches(row)),
            Test::MirrorCount(wanted) => !rows.is_empty() && wanted.matches(1),
            // A file without mirrors is in none of the states of one that has some.
            Test::MirrorState(state) => !rows.is_empty() && state.starts_with('^'),
            _ => unreachable!("needs no layout"),
        }
    }
}

impl Kind {
    fn is_of(self, row: &Row) -> bool {
        match self {
            Kind::Raid0 => matches!(row.pattern, Pattern::Raid0 | Pattern::Overstriped),
            Kind::Mdt => row.pattern == Pattern::Mdt,
            Kind::Overstriped => row.pattern == Pattern::Overstriped,
            Kind::Automatic => row.pattern == Pattern::Automatic,
            Kind::Never => false,
        }
    }
}

fn project(path: &Path) -> Result<u64, Errno> {
    host::project::project_of(path).map(u64::from).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn has_xattr(path: &Path, name: &CString, value: Option<&CString>) -> Result<bool, Errno> {
    /// XATTR_LIST_MAX and XATTR_SIZE_MAX of Linux.
    const BYTES_MAX: usize = 64 << 10;
    let failed = |error: rustix::io::Errno| Errno(error.raw_os_error());
    let mut names = vec![0; BYTES_MAX];
    let bytes = rustix::fs::llistxattr(path, &mut names[..]).map_err(failed)?;
    for found in names[..bytes].split(|byte| *byte == 0).filter(|found| !found.is_empty() && is_like(name, found)) {
        let Some(value) = value else { return Ok(true) };
        let found = CString::new(found).expect("split at NUL");
        let mut content = vec![0; BYTES_MAX];
        let bytes = rustix::fs::lgetxattr(path, &found, &mut content[..]).map_err(failed)?;
        if is_like(value, &content[..bytes]) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_their_unit() {
        let matches = |text: &str, found| Rounded::parse(text, |text| sized(text, 1)).unwrap().matches_size(found);
        assert!(matches("1M", 1) && matches("1M", 1 << 20) && !matches("1M", (1 << 20) + 1) && !matches("1M", 0));
        assert!(matches("+1M", (1 << 20) + 1) && !matches("+1M", 1 << 20));
        assert!(matches("-1M", 0) && !matches("-1M", 1), "one byte is rounded up to a MiB");
        assert!(matches("-2M", 1 << 20) && !matches("-2M", (1 << 20) + 1) && matches("-7", 6) && !matches("-7", 7));
        assert!(matches("7", 7) && !matches("7", 6) && matches("0", 0));
    }

    #[test]
    fn ages_are_rounded_down_to_their_unit() {
        let matches = |text: &str, seconds| Rounded::parse(text, clock::age).unwrap().matches_age(seconds);
        assert!(matches("1h", 3600) && matches("1h", 7199) && !matches("1h", 7200) && !matches("1h", 3599));
        assert!(matches("+1", 2 * 86400) && !matches("+1", 2 * 86400 - 1), "36 hours are one day");
        assert!(matches("+90s", 91) && !matches("+90s", 90) && matches("+0", 86400) && !matches("+0", 3600));
        assert!(matches("8h20m", 500 * 60 + 59) && !matches("8h20m", 501 * 60) && matches("+8h20m", 501 * 60));
        assert!(matches("-1", 0) && matches("-1", -5) && !matches("-1", 86400));
    }

    #[test]
    fn only_of_sizes_units_are_ambiguous() {
        assert!(wrong_value("size", "+1mb").contains("ambiguous"));
        assert_eq!(wrong_value("uid", "1mb"), "invalid value '1mb' of --uid");
    }

    #[test]
    fn values_are_read() {
        assert_eq!(kind("f"), Some('f'));
        assert_eq!((kind("fd"), kind("x"), kind("")), (None, None, None));
        assert_eq!((mdt("stria-MDT000a"), mdt("1"), mdt("x")), (Some(10), Some(1), None));
        assert_eq!(sized("3", 512), Some((1536, 512)));
        assert_eq!(sized("3K", 512), Some((3072, 1024)));
        assert_eq!((sized("3b", 1), sized("b", 1), sized("3xb", 1)), (Some((1536, 512)), None, None));
        assert!(is_like(&CString::new("*.[ch]").unwrap(), b"\xff.c"));
    }
}
