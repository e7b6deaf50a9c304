//! `lfs mkdir` (also called `lfs setdirstripe`): on which MDTs a directory and its names are to be.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use rpc::message::{
    control::{ControlReply, ControlRequest, Subject},
    mgs::TargetRole,
};
use types::{
    DirectoryMap, InodeNumber, MdtIndex, NameHash, ShardCount, Stripes, counted,
    limits::{RETURNING_SHARDS_MAX, SHARDS_MAX, SHARDS_PER_MDT_MAX, SPLIT_NAMES_MAX},
    mdts_from,
};

use super::{
    channel::{self, CallError, Errno, strerror},
    directory_default,
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

/// Permission bits of new directories that the umask may clear.
const MODE_DEFAULT: u32 = 0o777;

/// What `mkdir` and `setdirstripe` call the number of stripes: of which each is on another metadata
/// target, or several on one.
pub(crate) const COUNT_OPTIONS: [&str; 2] = ["mdt-count", "mdt-overcount"];
/// The command that also spreads the names of directories that exist.
const SPLITTING: &str = "setdirstripe";

/// Runs `lfs mkdir`.
pub fn mkdir(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    make("mkdir", arguments, output)
}

/// Runs `lfs setdirstripe`.
pub fn setdirstripe(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    make(SPLITTING, arguments, output)
}

fn make(command: &str, arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let wrong = |problem: String| Failure::new(USAGE, format!("lfs {command}: {problem}"));
    let parsed = parse(MAKE_OPTIONS, arguments).map_err(|error| wrong(error.to_string()))?;
    if parsed.has("help") {
        return print(
            output,
            format_args!(
                "usage: lfs {command} [-i INDEX[,INDEX...]] [-c COUNT|-C COUNT] [-H HASH] [-o MODE] DIR...\n       lfs {command} -D [-i INDEX] [-c COUNT|-C COUNT] [-H HASH] [-X LEVELS] [--max-inherit-rr LEVELS] DIR...\n       lfs {command} -d DIR...\n\nCreates directories; with -D, sets what mkdir(2) gives new directories in DIR, and in those; with -d, ends that.\n\n  -i, --mdt-index INDEX     the metadata target that has DIR and everything made in it; -1, which is the\n                            default: as mkdir(2) makes it. Several: DIR is striped over these\n  -c, --mdt-count COUNT     the names in DIR are on COUNT metadata targets, from INDEX on; -1: on all\n  -C, --mdt-overcount COUNT the names in DIR are in COUNT stripes, several of them on one metadata target if\n                            there are fewer targets; -1 to -32: that many on each\n  -H, --mdt-hash HASH       how names are spread over these: fnv_1a_64 (default), all_char, crush, crush2\n  -o, --mode MODE           permission bits, octal\n  -D, --default             set the default of DIR, which exists; directories in it stay as they are\n  -d, --delete              end the default of DIR\n  -X, --max-inherit LEVELS  for how many levels of new directories below DIR the default counts, 1 to 250; -1: for\n                            all. Without it 3 with stripes, else all\n      --max-inherit-rr LEVELS\n                            for how many levels each new directory is on another metadata target, in turn or by\n                            free space, 0 (default) to 250; -1: for all. Only without INDEX\n\nlfs setdirstripe with -c, -C or several INDEX also spreads the names of a DIR that exists and has no stripes, and with\n-c 1 takes the names of a striped DIR back to the metadata target that has it. All can be used meanwhile; it takes\nabout a second for 10,000. Inodes stay where they are.\n\nWithout -c and -i, a new directory is made as mkdir(2) makes it. Only root may choose another metadata target than\nthat of the directory above, or several, and set defaults; the owner of the root directory may set that of it.\nOwners of other directories may not. If there are fewer than COUNT for -c, nothing is created\nor set; if some are taken out of use later, new directories get those that are left.\n\nExit status: 0; 4 for a wrong command line; else the error number (17: DIR exists, 19: no such target, fewer than\nCOUNT, or more than 1000 stripes; 95: a metadata target is of an earlier release).\n"
            ),
        );
    }
    let is_default = directory_default::is_asked_for(&parsed).map_err(wrong)?;
    let wanted = Wanted::of(&parsed, COUNT_OPTIONS).map_err(wrong)?;
    let (mode, umask) = mode(&parsed).map_err(wrong)?;
    if parsed.operands.is_empty() {
        return Err(wrong("DIR must be specified".to_owned()));
    }
    if is_default {
        return directory_default::set(command, &parsed, &wanted);
    }
    for operand in &parsed.operands {
        let path = Path::new(operand);
        if command == SPLITTING && (!wanted.is_plain() || wanted.has_count) && path.is_dir() {
            split_one(command, path, &wanted)?;
            continue;
        }
        make_one(command, path, &wanted, (mode, umask))?;
    }
    Ok(())
}

/// Where a directory is to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// MDTs, in order; none: from that of the directory above on.
    pub(crate) mdts: Vec<MdtIndex>,
    /// How many stripes.
    pub(crate) count: ShardCount,
    pub(crate) hash: NameHash,
    /// A count was given: no default applies.
    has_count: bool,
}

impl Wanted {
    /// The options: what the command calls the number of stripes, see [`COUNT_OPTIONS`].
    pub(crate) fn of(parsed: &Parsed, [option, over]: [&str; 2]) -> Result<Self, String> {
        let mdts = indices(parsed)?;
        let count = match (parsed.value(option), parsed.value(over)) {
            (Some(_), Some(_)) => return Err(format!("options '--{option}' and '--{over}' exclude each other")),
            (Some("-1"), None) => ShardCount::All,
            (Some(text), None) => ShardCount::Exactly(stripe_count(text)?),
            (None, Some(text)) => overstriped(text, mdts.len() > 1)?,
            (None, None) => ShardCount::Exactly(mdts.len().max(1) as u16),
        };
        let fits = match count {
            ShardCount::Exactly(count) => usize::from(count) == mdts.len(),
            ShardCount::Overstriped(count) => usize::from(count) >= mdts.len(),
            ShardCount::PerMdt(_) => true,
            ShardCount::All => false,
        };
        if mdts.len() > 1 && !fits {
            return Err(format!("the stripe count is not that of the {} MDT targets given", mdts.len()));
        }
        let name = parsed.value("mdt-hash").unwrap_or_default();
        let hash = match name {
            "" => NameHash::default(),
            name => NameHash::of_name(name).ok_or_else(|| format!("bad directory hash type '{name}'"))?,
        };
        Ok(Self { mdts, count, hash, has_count: parsed.has(option) || parsed.has(over) })
    }

    /// Whether it is one MDT, or none in particular.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.count, ShardCount::Exactly(0 | 1))
    }

    /// The request to end the stripes of a directory on this MDT.
    fn without_stripes(&self, mdt: MdtIndex) -> Result<Stripes, String> {
        match self.mdts.first() {
            Some(other) if *other != mdt => {
                Err(format!("without stripes its names are on {mdt}, which has it, not on {other}"))
            }
            _ => Ok(Stripes { hash: self.hash, mdts: vec![mdt] }),
        }
    }

    /// The stripes, where there are these MDTs; an error names how many there are. `above`: the MDT
    /// of the directory above.
    pub(crate) fn stripes(&self, mut there: Vec<MdtIndex>, above: MdtIndex) -> Result<Stripes, String> {
        there.sort();
        let found = || counted(there.len() as u64, "metadata target");
        if let Some(MdtIndex(missing)) = self.mdts.iter().find(|mdt| !there.contains(mdt)) {
            return Err(format!("there is no MDT with index {missing}: {} in use (see lfs mdts)", found()));
        }
        let around = match self.mdts[..] {
            [] => mdts_from(&there, above, there.len()),
            [first] => mdts_from(&there, first, there.len()),
            _ => self.mdts.clone(),
        };
        let count = self.count.on(around.len());
        if count > SHARDS_MAX {
            return Err(format!("{count} stripes are not possible: a directory has at most {SHARDS_MAX}"));
        }
        if let ShardCount::Exactly(count) = self.count
            && usize::from(count) > around.len()
        {
            let others = format!("-c -1: all of them; -C {count}: several stripes on each");
            return Err(format!("{count} stripes are not possible: {} in use ({others})", found()));
        }
        let mdts = self.count.place(&around);
        // All of them may be one: as without the option.
        Ok(Stripes { hash: self.hash, mdts: if mdts.len() == 1 { Vec::new() } else { mdts } })
    }
}

/// More than are possible anywhere are refused where it is known how many that is.
fn stripe_count(text: &str) -> Result<u16, String> {
    let count: u64 = text.parse().map_err(|_| format!("invalid stripe count '{text}'"))?;
    Ok(u16::try_from(count).unwrap_or(u16::MAX))
}

/// Stripes of which several may be on one MDT; with a negative number, so many on each.
/// `are_listed`: these MDTs are given.
fn overstriped(text: &str, are_listed: bool) -> Result<ShardCount, String> {
    match text.strip_prefix('-').map(stripe_count).transpose()? {
        Some(1) if !are_listed => Ok(ShardCount::All),
        Some(count @ 1..=SHARDS_PER_MDT_MAX) => Ok(ShardCount::PerMdt(count)),
        Some(_) => Err(format!("invalid stripe count '{text}': -1 to -{SHARDS_PER_MDT_MAX}, or how many in all")),
        None => Ok(match stripe_count(text)? {
            count @ (0 | 1) => ShardCount::Exactly(count),
            count => ShardCount::Overstriped(count),
        }),
    }
}

/// The MDTs that were asked for; none: that of the directory above.
fn indices(parsed: &Parsed) -> Result<Vec<MdtIndex>, String> {
    let Some(text) = parsed.value("mdt-index").filter(|text| *text != "-1") else { return Ok(Vec::new()) };
    let index = |part: &str| match part.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => part.parse(),
    };
    let indices: Result<Vec<_>, _> = text.split(',').map(|part| index(part).map(MdtIndex)).collect();
    let mut mdts = indices.map_err(|_| format!("invalid MDT target(s) '{text}'"))?;
    let all = mdts.clone();
    mdts.sort();
    mdts.dedup();
    if mdts.len() == all.len() { Ok(all) } else { Err(format!("duplicate MDT target(s) '{text}'")) }
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

/// Spreads the names of a directory that exists, or takes them back.
fn split_one(command: &str, path: &Path, wanted: &Wanted) -> Outcome {
    let failed = |error: &CallError| refused(command, path.as_os_str(), error);
    let there = mdts(path).map_err(|errno| failed(&errno.into()))?;
    let inode = channel::inode(path).map_err(|errno| failed(&errno.into()))?;
    let wrong = |errno: i32, problem: String| {
        let shown = path.display();
        Failure::new(errno, format!("lfs {command}: dirstripe error on '{shown}': {problem}"))
    };
    let stripes = match wanted.is_plain() {
        true => wanted.without_stripes(inode.mdt()).map_err(|problem| wrong(libc::EINVAL, problem))?,
        false => wanted.stripes(there, inode.mdt()).map_err(|problem| wrong(libc::ENODEV, problem))?,
    };
    if stripes.mdts.is_empty() {
        // All metadata targets are one: that has the names already.
        return Ok(());
    }
    let ends = stripes.mdts.len() == 1;
    channel::ask(path, &ControlRequest::SplitDirectory(stripes)).map(drop).map_err(|error| match error.errno() {
        Errno(errno @ libc::E2BIG) => {
            let what = if ends { "one of its stripes" } else { "it" };
            let further =
                if ends { format!(", or it has more than {RETURNING_SHARDS_MAX} stripes") } else { String::new() };
            wrong(errno, format!("{what} has more than {SPLIT_NAMES_MAX} names{further}"))
        }
        Errno(errno @ libc::EOPNOTSUPP) if ends => {
            wrong(errno, "a metadata target with one of its stripes is of an earlier release".to_owned())
        }
        Errno(errno @ libc::EOPNOTSUPP) => {
            let striped = "it has other stripes already: end these first (-c 1)";
            wrong(errno, format!("{striped}; or a metadata target is of an earlier release"))
        }
        _ => failed(&error),
    })
}

fn make_one(command: &str, path: &Path, wanted: &Wanted, (mode, umask): (u32, u32)) -> Outcome {
    let operand = path.as_os_str();
    let failed = |error: &CallError| refused(command, operand, error);
    let name = path.file_name().ok_or(Errno(libc::EEXIST)).map_err(|errno| failed(&errno.into()))?;
    let (name, above) = (name.as_bytes().to_vec(), channel::parent(path));
    let stripes = match wanted.is_plain() {
        true => Stripes::default(),
        false => {
            let there = mdts(&above).map_err(|errno| failed(&errno.into()))?;
            let parent = channel::inode(&above).map_err(|errno| failed(&errno.into()))?;
            wanted.stripes(there, parent.mdt()).map_err(|problem| {
                let shown = operand.display();
                Failure::new(libc::ENODEV, format!("lfs {command}: dirstripe error on '{shown}': {problem}"))
            })?
        }
    };
    let given = stripes.mdts.first().or(wanted.mdts.first()).copied();
    if let Some(missing) = given.filter(|_| wanted.is_plain()) {
        let there = mdts(&above).map_err(|errno| failed(&errno.into()))?;
        if !there.contains(&missing) {
            let (shown, words) = (operand.display(), strerror(libc::ENODEV));
            let problem = format!("{words}: {missing} is not in use (see lfs mdts)");
            return Err(Failure::new(libc::ENODEV, format!("lfs {command}: dirstripe error on '{shown}': {problem}")));
        }
    }
    let mdt = match given {
        None if wanted.has_count => Some(mdt_of_name(&above, &name).map_err(|errno| failed(&errno.into()))?),
        given => given,
    };
    let request = ControlRequest::MakeDirectory { name, mode, umask, mdt, stripes };
    channel::ask(&above, &request).map(drop).map_err(|error| failed(&error))
}

/// The MDT on which a directory is made that has no default, and for which none is asked.
fn mdt_of_name(above: &Path, name: &[u8]) -> Result<MdtIndex, Errno> {
    let (inode, map) = map_of(above, Subject::This).map_err(|error| error.errno())?;
    Ok(map.and_then(|map| map.shard_of(name)).unwrap_or(inode).mdt())
}

/// The MDTs that are in use.
pub(crate) fn mdts(path: &Path) -> Result<Vec<MdtIndex>, Errno> {
    let mdt = |role| match role {
        TargetRole::Mdt(mdt) => Some(mdt),
        TargetRole::Ost(_) => None,
    };
    let targets = channel::targets(path)?.into_iter().filter(|target| target.active);
    Ok(targets.filter_map(|target| mdt(target.role)).collect())
}

/// In Lustre's words.
pub(crate) fn refused(command: &str, operand: &OsStr, error: &CallError) -> Failure {
    let (Errno(errno), shown) = (error.errno(), operand.display());
    let message = match errno {
        libc::EEXIST => format!("lfs {command}: dirstripe error on '{shown}': stripe already set"),
        libc::EOPNOTSUPP => format!(
            "lfs {command}: dirstripe error on '{shown}': a metadata target is of a release that does not know such \
             stripes: update all of them ({errno})"
        ),
        libc::ENOENT => format!("lfs {command}: cannot resolve path '{shown}': {} ({errno})", strerror(errno)),
        _ => format!("lfs {command}: dirstripe error on '{shown}': {}", strerror(errno)),
    };
    Failure::new(errno, message)
}

/// Number and map of the directory that is open, or has this name there.
pub(crate) fn map_of(path: &Path, subject: Subject) -> Result<(InodeNumber, Option<DirectoryMap>), CallError> {
    match channel::ask(path, &ControlRequest::GetLayout(subject))? {
        ControlReply::Layout { inode, map, .. } => Ok((inode, map.map(|map| *map))),
        _ => Err(Errno(libc::EPROTO).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn wrong_command_lines_fail_as_in_lustre() {
        for (line, status, message) in [
            ("", USAGE, "lfs mkdir: DIR must be specified"),
            ("-i abc d", USAGE, "lfs mkdir: invalid MDT target(s) 'abc'"),
            ("-i 65536 d", USAGE, "lfs mkdir: invalid MDT target(s) '65536'"),
            ("-c x d", USAGE, "lfs mkdir: invalid stripe count 'x'"),
            ("-o 999 d", USAGE, "lfs mkdir: invalid mode '999'"),
            ("-Q d", USAGE, "lfs mkdir: unrecognized option '-Q'"),
            ("-c -2 d", USAGE, "lfs mkdir: invalid stripe count '-2'"),
            ("-c 2 -H foo d", USAGE, "lfs mkdir: bad directory hash type 'foo'"),
            ("-i 0,0 d", USAGE, "lfs mkdir: duplicate MDT target(s) '0,0'"),
            ("-i 0,1 -c 3 d", USAGE, "lfs mkdir: the stripe count is not that of the 2 MDT targets given"),
            ("-i 0,1,2 -C 2 d", USAGE, "lfs mkdir: the stripe count is not that of the 3 MDT targets given"),
            ("-C 2 -c 2 d", USAGE, "lfs mkdir: options '--mdt-count' and '--mdt-overcount' exclude each other"),
            ("-C x d", USAGE, "lfs mkdir: invalid stripe count 'x'"),
            ("-C -33 d", USAGE, "lfs mkdir: invalid stripe count '-33': -1 to -32, or how many in all"),
            ("-C -0 d", USAGE, "lfs mkdir: invalid stripe count '-0': -1 to -32, or how many in all"),
            ("-X 3 d", USAGE, "lfs mkdir: option '--max-inherit' needs --default (-D)"),
            ("-D -c 2", USAGE, "lfs mkdir: DIR must be specified"),
            ("-D -c 2 /none", libc::ENOENT, "lfs mkdir: unable to open '/none': No such file or directory (2)"),
            ("-d /none", libc::ENOENT, "lfs mkdir: unable to open '/none': No such file or directory (2)"),
        ] {
            let failure = mkdir(&words(line), &mut Vec::new()).expect_err(line);
            assert_eq!(failure, Failure::new(status, message), "{line}");
        }
    }

    #[test]
    fn stripes_go_around_and_too_many_are_refused() {
        let wanted = |line: &str| Wanted::of(&parse(MAKE_OPTIONS, &words(line)).unwrap(), COUNT_OPTIONS).unwrap();
        let stripes = |line: &str| {
            let found = wanted(line).stripes([0, 1, 2, 4].map(MdtIndex).to_vec(), MdtIndex(1));
            found.map(|stripes| stripes.mdts.into_iter().map(|mdt| mdt.0).collect::<Vec<_>>())
        };
        assert_eq!(stripes("-c 2 d"), Ok(vec![1, 2]));
        assert_eq!(stripes("-c 3 -i 4 d"), Ok(vec![4, 0, 1]));
        assert_eq!(stripes("-c -1 -i 2 d"), Ok(vec![2, 4, 0, 1]));
        assert_eq!(stripes("-i 2,0 -H crush d"), Ok(vec![2, 0]));
        let refused = stripes("-c 24 d").unwrap_err();
        assert_eq!(
            refused,
            "24 stripes are not possible: 4 metadata targets in use (-c -1: all of them; -C 24: several stripes on each)"
        );
        assert_eq!(stripes("-C 6 d"), Ok(vec![1, 2, 4, 0, 1, 2]));
        assert_eq!(stripes("-C 3 -i 4 d"), Ok(vec![4, 0, 1]));
        assert_eq!(stripes("-C -2 d"), Ok(vec![1, 2, 4, 0, 1, 2, 4, 0]));
        assert_eq!(stripes("-C 5 -i 2,0 d"), Ok(vec![2, 0, 2, 0, 2]));
        assert_eq!([stripes("-C -2 -i 2,0 d"), stripes("-C -1 -i 2,0 d")], [Ok(vec![2, 0, 2, 0]), Ok(vec![2, 0])]);
        assert_eq!([stripes("-C -1 d"), stripes("-C 1 d")], [Ok(vec![1, 2, 4, 0]), Ok(vec![])]);
        for line in ["-C 1001 d", "-c 1001 d", "-C 99999999 d"] {
            let refused = stripes(line).unwrap_err();
            assert!(refused.ends_with("stripes are not possible: a directory has at most 1000"), "{refused}");
        }
        let missing = "there is no MDT with index 3: 4 metadata targets in use (see lfs mdts)";
        assert_eq!([stripes("-i 2,3 d"), stripes("-c 2 -i 3 d")], [Err(missing.to_owned()), Err(missing.to_owned())]);
        let alone = wanted("-c -1 d").stripes(vec![MdtIndex(0)], MdtIndex(0));
        assert_eq!(alone, Ok(Stripes::default()), "all of them is one");
        let several = wanted("-C 3 d").stripes(vec![MdtIndex(0)], MdtIndex(0));
        assert_eq!(several.map(|stripes| stripes.mdts), Ok(vec![MdtIndex(0); 3]), "on one");
        assert!(wanted("-i 2 d").is_plain() && wanted("d").is_plain() && wanted("-c 1 d").is_plain());
    }
}
