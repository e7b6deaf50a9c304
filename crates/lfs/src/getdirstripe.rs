//! `lfs getdirstripe`: on which MDTs directories and their names are, and what new directories in
//! them get. The lines are Lustre's.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    path::{Path, PathBuf},
};

use rpc::message::{
    control::{ControlReply, ControlRequest, Subject},
    mgs::TargetRole,
};
use types::{DirectoryDefault, DirectoryMap, Fid, InodeNumber, MdtIndex, NameHash};

use super::{
    channel::{self, Errno, strerror},
    directory_default, getstripe,
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path},
};

/// The options.
pub const OPTIONS: &[OptionSpec] = &[
    option('c', &["mdt-count", "count"], Takes::Nothing),
    option('T', &["mdt-count"], Takes::Nothing),
    option('i', &["mdt-index", "index"], Takes::Nothing),
    option('m', &["mdt-index", "mdt"], Takes::Nothing),
    option('H', &["mdt-hash", "hash-type"], Takes::Nothing),
    option('F', &["fid"], Takes::Nothing),
    option('O', &["obd"], Takes::Value),
    option('r', &["recursive"], Takes::Nothing),
    option('R', &["raw"], Takes::Nothing),
    option('v', &["verbose"], Takes::Nothing),
    option('y', &["yaml"], Takes::Nothing),
    option('D', &["default"], Takes::Nothing),
    option('X', &["max-inherit"], Takes::Nothing),
    long_option(&["max-inherit-rr"], Takes::Nothing),
    long_option(&["hex-idx"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

const HELP: &str = "\
usage: lfs getdirstripe [OPTIONS] DIR...

Shows on which metadata targets directories and their names are. A directory that is not striped
has 0 stripes.

  -D, --default        what new directories in DIR get (lfs setdirstripe -D); -1: all metadata
                       targets, no first one, or all levels
  -R, --raw            with -D: 0 stripes if nothing is set on DIR itself
  -r, --recursive      all directories below DIR, too, each with its path
  -O, --obd MDT        only directories with names on this metadata target (index or name), each with
                       its path, and only their stripes there
  -v, --verbose        also FID and magic
  -y, --yaml           YAML
      --hex-idx        indices of metadata targets in hexadecimal

One value; several of them, with their names:

  -c, -T, --mdt-count  number of stripes
  -i, -m, --mdt-index  index of the first metadata target
  -H, --mdt-hash       hash
  -F, --fid            FID
  -X, --max-inherit    for how many levels the default counts (-D)
      --max-inherit-rr for how many levels new directories are on metadata targets in turn or by
                       space (-D)

Exit status: 0; 4 for a wrong command line; else the error number (2: no such directory, 19: no such
metadata target, 20: not a directory, 25: not on StriaFS).
";

/// Options that only a default has.
const ONLY_DEFAULT: [&str; 2] = ["max-inherit", "max-inherit-rr"];

/// Lustre's magic numbers of a directory's stripes and of a default.
const MAGIC: u32 = 0x0cd2_0cd0;
const MAGIC_OF_DEFAULT: u32 = 0x0cd3_0cd0;

/// Runs `lfs getdirstripe`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let wrong = |problem: String| Failure::new(USAGE, format!("lfs getdirstripe: {problem}"));
    let parsed = parse(OPTIONS, arguments).map_err(|error| wrong(error.to_string()))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    let query = Query::new(&parsed).map_err(wrong)?;
    if parsed.operands.is_empty() {
        return Err(wrong("DIR must be specified".to_owned()));
    }
    parsed.operands.iter().try_for_each(|operand| query.show_from(Path::new(operand), output))
}

/// What the server says of a directory.
struct Found {
    inode: InodeNumber,
    map: Option<DirectoryMap>,
    default: Option<DirectoryDefault>,
}

impl Found {
    fn of(path: &Path) -> Result<Self, Errno> {
        if !std::fs::metadata(path)?.is_dir() {
            return Err(Errno(libc::ENOTDIR));
        }
        match channel::call(path, &ControlRequest::GetLayout(Subject::This))? {
            ControlReply::Layout { inode, map, directory_default: default, .. } => {
                Ok(Self { inode, map: map.map(|map| *map), default })
            }
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    fn shards(&self) -> &[InodeNumber] {
        self.map.as_ref().map_or(&[], |map| &map.shards)
    }
}

/// A value that is shown: the option that asks for it, and its name.
pub(crate) struct Field {
    pub(crate) option: &'static str,
    pub(crate) label: &'static str,
    pub(crate) value: String,
}

/// An MDT, or none (-1).
pub(crate) fn shown_index(mdt: Option<MdtIndex>, hexadecimal: bool) -> String {
    match mdt {
        None => "-1".to_owned(),
        // As C's `%#x` has it.
        Some(MdtIndex(mdt)) if hexadecimal && mdt > 0 => format!("{mdt:#x}"),
        Some(MdtIndex(mdt)) => mdt.to_string(),
    }
}

/// A hash as Lustre shows it, with whether an MDT may have several stripes.
pub(crate) fn shown_hash(hash: Option<NameHash>, is_overstriped: bool) -> String {
    format!("{}{}", hash.map_or("none", NameHash::name), if is_overstriped { ",overstriped" } else { "" })
}

/// A FID without brackets.
fn bare(inode: InodeNumber) -> String {
    Fid::from(inode).to_string().trim_matches(['[', ']']).to_owned()
}

/// The option `-O`: an MDT by index or by name (`stria-MDT0003`, `stria-MDT0003_UUID`).
fn mdt_index(text: &str) -> Result<MdtIndex, String> {
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    let parsed = match name.rsplit_once("-MDT") {
        Some((_, hexadecimal)) => u16::from_str_radix(hexadecimal, 16),
        None => name.parse(),
    };
    parsed.map(MdtIndex).map_err(|_| format!("invalid MDT '{text}'"))
}

fn failure(path: &Path, Errno(errno): Errno) -> Failure {
    Failure::new(errno, format!("lfs: getdirstripe for '{}' failed: {}", path.display(), strerror(errno)))
}

struct Query<'a> {
    parsed: &'a Parsed,
    /// Only directories with names there.
    mdt: Option<MdtIndex>,
    of_default: bool,
    yaml: bool,
    hexadecimal: bool,
}

impl<'a> Query<'a> {
    fn new(parsed: &'a Parsed) -> Result<Self, String> {
        let of_default = parsed.has("default");
        if let Some(name) = ONLY_DEFAULT.into_iter().find(|name| !of_default && parsed.has(name)) {
            return Err(format!("option '--{name}' needs --default (-D)"));
        }
        let mdt = parsed.value("obd").map(mdt_index).transpose()?;
        if of_default && mdt.is_some() {
            return Err("option '--obd' is not possible with --default: that is for directories to come".to_owned());
        }
        let (yaml, hexadecimal) = (parsed.has("yaml"), parsed.has("hex-idx"));
        Ok(Self { parsed, mdt, of_default, yaml, hexadecimal })
    }

    /// A directory, and with `-r` all below it, each before what is in it. What disappears
    /// meanwhile is not missed.
    fn show_from(&self, operand: &Path, output: &mut dyn Write) -> Outcome {
        let recursive = self.parsed.has("recursive");
        self.check_mdt(operand)?;
        let mut pending: Vec<PathBuf> = vec![operand.to_owned()];
        while let Some(path) = pending.pop() {
            let is_below = path != operand;
            let found = match Found::of(&path) {
                Err(Errno(libc::ENOENT)) if is_below => continue,
                found => found.map_err(|errno| failure(&path, errno))?,
            };
            self.show(&path, &found, output)?;
            if !recursive {
                continue;
            }
            match getstripe::sorted_names(&path) {
                Err(error) if is_below && error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(failure(&path, error.into())),
                Ok(names) => {
                    let directories = names.into_iter().filter(|(_, is_directory)| *is_directory);
                    pending.extend(directories.rev().map(|(name, _)| path.join(name)));
                }
            }
        }
        Ok(())
    }

    /// Nothing would be found on an MDT that there is not.
    fn check_mdt(&self, path: &Path) -> Outcome {
        let Some(mdt) = self.mdt else { return Ok(()) };
        let targets = channel::targets(path).map_err(|errno| failure(path, errno))?;
        if targets.iter().any(|target| target.role == TargetRole::Mdt(mdt)) {
            return Ok(());
        }
        let problem = format!("there is no MDT with index {} (see lfs mdts)", mdt.0);
        Err(Failure::new(libc::ENODEV, format!("lfs: getdirstripe for '{}' failed: {problem}", path.display())))
    }

    fn show(&self, path: &Path, found: &Found, output: &mut dyn Write) -> Outcome {
        let shards = found.shards();
        let is_on = |mdt: MdtIndex| match shards {
            [] => found.inode.mdt() == mdt,
            shards => shards.iter().any(|shard| shard.mdt() == mdt),
        };
        if !self.mdt.is_none_or(is_on) {
            return Ok(());
        }
        if self.parsed.has("recursive") || self.mdt.is_some() {
            let prefix = if self.of_default { "(Default)" } else { "" };
            print_path(output, OsStr::new(prefix), format_args!(""))?;
            print_path(output, path, format_args!("\n"))?;
        }
        let fields = match self.of_default {
            true => directory_default::fields(found.default.as_ref(), self.parsed.has("raw"), self.hexadecimal),
            false => self.fields_of_directory(found),
        };
        let is_all = self.show_fields(found.inode, fields, output)?;
        if is_all && !self.of_default { self.show_objects(found, output) } else { Ok(()) }
    }

    fn fields_of_directory(&self, found: &Found) -> Vec<Field> {
        let (map, shards) = (found.map.as_ref(), found.shards());
        let first = shards.first().copied().unwrap_or(found.inode).mdt();
        let hash = shown_hash(map.map(|map| map.hash), map.is_some_and(DirectoryMap::is_overstriped));
        vec![
            Field { option: "mdt-count", label: "lmv_stripe_count:", value: shards.len().to_string() },
            Field {
                option: "mdt-index",
                label: "lmv_stripe_offset:",
                value: shown_index(Some(first), self.hexadecimal),
            },
            Field { option: "mdt-hash", label: "lmv_hash_type:", value: hash },
        ]
    }

    /// Those that are asked for, or all; true: all. One alone is shown without its name.
    fn show_fields(&self, inode: InodeNumber, fields: Vec<Field>, output: &mut dyn Write) -> Result<bool, Failure> {
        let magic = if self.of_default { MAGIC_OF_DEFAULT } else { MAGIC };
        let about = [
            Field { option: "fid", label: "lmv_fid:", value: bare(inode) },
            Field { option: "verbose", label: "lmv_magic:", value: format!("{magic:#x}") },
        ];
        let all: Vec<Field> = about.into_iter().chain(fields).collect();
        let is_verbose = self.parsed.has("verbose");
        let is_asked = |field: &&Field| field.option != "verbose" && self.parsed.has(field.option);
        let asked: Vec<&Field> = all.iter().filter(is_asked).collect();
        let chosen: Vec<&Field> = match (is_verbose, &asked[..]) {
            (true, _) => all.iter().collect(),
            (false, []) => all.iter().filter(|field| !matches!(field.option, "fid" | "verbose")).collect(),
            (false, [only]) => return print(output, format_args!("{}\n", only.value)).map(|()| false),
            (false, _) => asked.clone(),
        };
        let (width, between) = if self.yaml { (18, "\n") } else { (0, " ") };
        let line = |Field { label, value, .. }: &&Field| format!("{label:<width$} {value}");
        let lines: Vec<String> = chosen.iter().map(line).collect();
        print(output, format_args!("{}\n", lines.join(between)))?;
        Ok(is_verbose || asked.is_empty())
    }

    /// The stripes; those on one MDT are marked if only they are asked for.
    fn show_objects(&self, found: &Found, output: &mut dyn Write) -> Outcome {
        let shards = found.shards();
        let objects = if shards.is_empty() && self.yaml { std::slice::from_ref(&found.inode) } else { shards };
        if self.yaml {
            print(output, format_args!("lmv_objects:\n"))?;
        } else if !objects.is_empty() {
            print(output, format_args!("mdtidx\t\t FID[seq:oid:ver]\n"))?;
        }
        for object in objects.iter().filter(|object| self.mdt.is_none_or(|mdt| object.mdt() == mdt)) {
            let mdt = shown_index(Some(object.mdt()), self.hexadecimal);
            if self.yaml {
                let fid = bare(*object);
                print(output, format_args!("      - l_mdt_idx: {mdt}\n        l_fid:     {fid}\n"))?;
            } else {
                let mark = if self.mdt.is_some() { " *" } else { "" };
                print(output, format_args!("{mdt:>6}\t\t {}\t\t{mark}\n", Fid::from(*object)))?;
            }
        }
        if self.yaml { print(output, format_args!("\n")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use types::ShardCount;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn shown(line: &str, found: &Found) -> String {
        let (parsed, mut output) = (parse(OPTIONS, &words(line)).unwrap(), Vec::new());
        Query::new(&parsed).unwrap().show(Path::new("d"), found, &mut output).unwrap();
        String::from_utf8(output).unwrap()
    }

    fn plain(mdt: u16) -> Found {
        Found { inode: InodeNumber::new(MdtIndex(mdt), 0x402), map: None, default: None }
    }

    /// Of MDT 1, with shards there: index and number.
    fn striped(hash: NameHash, shards: &[(u16, u64)]) -> Found {
        let shards = shards.iter().map(|(mdt, at)| InodeNumber::new(MdtIndex(*mdt), *at).as_shard()).collect();
        let inode = InodeNumber::new(MdtIndex(1), 3);
        Found { inode, map: Some(DirectoryMap { master: inode, hash, shards }), default: None }
    }

    #[test]
    fn wrong_command_lines_fail() {
        for (line, status, problem) in [
            ("", USAGE, "DIR must be specified"),
            ("-Q d", USAGE, "unrecognized option '-Q'"),
            ("-X d", USAGE, "option '--max-inherit' needs --default (-D)"),
            ("--max-inherit-rr d", USAGE, "option '--max-inherit-rr' needs --default (-D)"),
            ("-O x d", USAGE, "invalid MDT 'x'"),
            ("-O stria-OST0001 d", USAGE, "invalid MDT 'stria-OST0001'"),
            ("-D -O 0 d", USAGE, "option '--obd' is not possible with --default: that is for directories to come"),
        ] {
            let failure = run(&words(line), &mut Vec::new()).expect_err(line);
            assert_eq!(failure, Failure::new(status, format!("lfs getdirstripe: {problem}")), "{line}");
        }
    }

    #[test]
    fn a_directory_is_shown_in_lustres_formats() {
        let d = plain(1);
        assert_eq!(shown("d", &d), "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n");
        let one = ["-c", "-T", "-i", "-m", "--mdt-index", "-H", "-F", "-cy"].map(|line| shown(line, &d));
        assert_eq!(one, ["0\n", "0\n", "1\n", "1\n", "1\n", "none\n", "0x240000400:0x402:0x0\n", "0\n"]);
        assert_eq!(
            shown("-y d", &d),
            "lmv_stripe_count:  0\nlmv_stripe_offset: 1\nlmv_hash_type:     none\nlmv_objects:\n      - l_mdt_idx: 1\n        l_fid:     0x240000400:0x402:0x0\n\n"
        );
        assert_eq!(shown("-H -c d", &d), "lmv_stripe_count: 0 lmv_hash_type: none\n", "in Lustre's order");
        assert_eq!(shown("-cFy d", &d), "lmv_fid:           0x240000400:0x402:0x0\nlmv_stripe_count:  0\n");
    }

    /// The lines that Lustre 2.17.0 shows for these commands, with the numbers that are here.
    #[test]
    fn a_striped_directory_is_shown_in_lustres_formats() {
        let sd2 = striped(NameHash::Fnv1a64, &[(1, 4), (0, 4)]);
        let shards = sd2.shards();
        let [one, two] = [Fid::from(shards[0]), Fid::from(shards[1])];
        let title = "mdtidx\t\t FID[seq:oid:ver]\n";
        let rows = format!("{title}     1\t\t {one}\t\t\n     0\t\t {two}\t\t\n");
        let fields = "lmv_stripe_count: 2 lmv_stripe_offset: 1 lmv_hash_type: fnv_1a_64\n";
        assert_eq!(shown("d", &sd2), format!("{fields}{rows}"));
        let verbose = format!("lmv_fid: 0x240000400:0x3:0x0 lmv_magic: 0xcd20cd0 {fields}{rows}");
        assert_eq!([shown("-v d", &sd2), shown("-cv d", &sd2)], [verbose.clone(), verbose]);
        assert_eq!(
            shown("--hex d", &sd2),
            format!(
                "lmv_stripe_count: 2 lmv_stripe_offset: 0x1 lmv_hash_type: fnv_1a_64\n{title}   0x1\t\t {one}\t\t\n     0\t\t {two}\t\t\n"
            )
        );
        assert_eq!(["-c", "-i", "-H"].map(|line| shown(line, &sd2)), ["2\n", "1\n", "fnv_1a_64\n"]);
        let yaml = shown("-y --hex-idx d", &sd2);
        assert!(yaml.contains("lmv_stripe_offset: 0x1\n") && yaml.contains("      - l_mdt_idx: 0x1\n"), "{yaml}");
        assert_eq!(yaml.matches("l_mdt_idx").count(), 2);
        let over = striped(NameHash::Crush, &[(1, 4), (0, 4), (1, 5)]);
        let first = "lmv_stripe_count: 3 lmv_stripe_offset: 1 lmv_hash_type: crush,overstriped\n";
        assert!(shown("d", &over).starts_with(first));
        assert_eq!([shown("-c d", &over), shown("-H d", &over)], ["3\n", "crush,overstriped\n"]);
        assert_eq!(shown("-y d", &over).matches("l_mdt_idx: 1").count(), 2);
    }

    #[test]
    fn only_directories_and_stripes_of_an_mdt_are_shown_if_it_is_given() {
        let sd2 = striped(NameHash::Fnv1a64, &[(1, 4), (0, 4)]);
        let fields = "lmv_stripe_count: 2 lmv_stripe_offset: 1 lmv_hash_type: fnv_1a_64\n";
        let row = format!("     0\t\t {}\t\t *\n", Fid::from(sd2.shards()[1]));
        let expected = format!("d\n{fields}mdtidx\t\t FID[seq:oid:ver]\n{row}");
        for mdt in ["0", "stria-MDT0000", "stria-MDT0000_UUID"] {
            assert_eq!(shown(&format!("-O {mdt}"), &sd2), expected);
        }
        assert_eq!([shown("-O 2 d", &sd2), shown("-O 0 d", &plain(1))], ["", ""]);
        assert_eq!([shown("-c -O 0 d", &sd2), shown("-c -O 1 d", &plain(1))], ["d\n2\n", "d\n0\n"]);
        assert_eq!(shown("-r -c", &plain(1)), "d\n0\n");
    }

    /// The lines that Lustre 2.17.0 shows for these commands.
    #[test]
    fn a_default_is_shown_in_lustres_formats() {
        let of = |default| Found { default, ..plain(1) };
        let default = |count, levels| DirectoryDefault {
            count: ShardCount::Exactly(count),
            first: None,
            hash: None,
            levels,
            spread_levels: Some(0),
        };
        let two = of(Some(default(2, Some(3))));
        let line =
            "lmv_stripe_count: 2 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: 3 lmv_max_inherit_rr: 0\n";
        assert_eq!([shown("-D dd", &two), shown("-DR dd", &two), shown("-D --hex dd", &two)], [line; 3]);
        assert_eq!(
            shown("-Dy dd", &two),
            "lmv_stripe_count:  2\nlmv_stripe_offset: -1\nlmv_hash_type:     none\nlmv_max_inherit:   3\nlmv_max_inherit_rr: 0\n"
        );
        assert_eq!(
            [shown("-D -v dd", &two), shown("-D -r dd", &two)],
            [format!("lmv_fid: 0x240000400:0x402:0x0 lmv_magic: 0xcd30cd0 {line}"), format!("(Default)d\n{line}")]
        );
        let all = of(Some(DirectoryDefault {
            count: ShardCount::All,
            first: Some(MdtIndex(10)),
            hash: Some(NameHash::Crush),
            ..default(1, None)
        }));
        let each = ["-Dc", "-Di", "-Dm", "-DH", "-DX", "-D --max-inherit-rr", "-Di --hex"];
        assert_eq!(each.map(|line| shown(line, &all)), ["-1\n", "10\n", "10\n", "crush\n", "-1\n", "0\n", "0xa\n"]);
        assert_eq!(
            [shown("-D d", &plain(1)), shown("-DR d", &plain(1))],
            [1, 0].map(|count| format!(
                "lmv_stripe_count: {count} lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 0\n"
            ))
        );
    }
}
