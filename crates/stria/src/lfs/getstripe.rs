//! `lfs getstripe`: shows the layout of files and the default layout of directories.

use std::{
    ffi::OsString,
    io::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use client::control::{ControlReply, ControlRequest, Subject};
use layout::{Layout, LayoutSpec};
use types::{Fid, InodeNumber, OstIndex};

use super::{
    Failure, Outcome, USAGE,
    channel::{self, Errno, strerror},
    layout_text::{self, DirectoryDefault, Style},
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    print, print_path,
};

const OPTIONS: &[OptionSpec] = &[
    option('c', &["stripe-count"], Takes::Nothing),
    option('S', &["stripe-size"], Takes::Nothing),
    option('i', &["stripe-index"], Takes::Nothing),
    option('p', &["pool"], Takes::Nothing),
    option('L', &["layout"], Takes::Nothing),
    option('F', &["fid"], Takes::Nothing),
    option('g', &["generation"], Takes::Nothing),
    option('m', &["mdt-index"], Takes::Nothing),
    option('O', &["obd", "ost"], Takes::Value),
    option('D', &["default"], Takes::Nothing),
    option('d', &["directory"], Takes::Nothing),
    option('r', &["recursive"], Takes::Nothing),
    option('R', &["raw"], Takes::Nothing),
    option('q', &["quiet"], Takes::Nothing),
    option('v', &["verbose"], Takes::Nothing),
    option('y', &["yaml"], Takes::Nothing),
    long_option(&["hex-idx"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// Switches that show one value instead of everything, in the order they are printed.
const FIELDS: &[&str] =
    &["stripe-count", "stripe-size", "layout", "stripe-index", "pool", "generation", "mdt-index", "fid"];

const HELP: &str = "\
usage: lfs getstripe [OPTIONS] FILE|DIRECTORY...

Shows the layout of files. Of a directory it shows the default layout, then the layout of the files
in it (all below it with -r; itself only with -d).

  -c, --stripe-count   number of stripes            -S, --stripe-size   bytes per stripe
  -i, --stripe-index   OST of the first stripe      -L, --layout        pattern (raid0)
  -m, --mdt-index      MDT that holds the inode     -F, --fid           file identifier
  -g, --generation     generation of the layout     -p, --pool          pool (none yet)
  -O, --ost INDEX      only files with an object on this OST (index or name)
  -d, --directory      the directory itself, not what is in it
  -D, --default        the directory's default layout
  -R, --raw            only what is set on the directory itself; zeros if nothing is
  -r, --recursive      everything below
  -q, --quiet          objects only                 -v, --verbose       also magic and FID
  -y, --yaml           YAML                             --hex-idx       OST indices in hexadecimal

Exit status: 0; 4 for a wrong command line; else the error number (2: no such file, 25: not on StriaFS).
";

/// What the server says of one path.
struct Found {
    inode: InodeNumber,
    directory: bool,
    layout: Option<Layout>,
    own_default: Option<LayoutSpec>,
    effective_default: Option<LayoutSpec>,
}

struct Query<'a> {
    parsed: &'a Parsed,
    style: Style,
    fields: Vec<&'static str>,
    ost: Option<OstIndex>,
}

/// Runs `lfs getstripe`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed = parse(OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs getstripe: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    if parsed.operands.is_empty() {
        return Err(Failure::new(USAGE, "error: getstripe: no filename|pathname"));
    }
    let query = Query {
        style: Style {
            hexadecimal: parsed.has("hex-idx"),
            verbose: parsed.has("verbose"),
            quiet: parsed.has("quiet"),
            yaml: parsed.has("yaml"),
        },
        fields: FIELDS.iter().copied().filter(|field| parsed.has(field)).collect(),
        ost: parsed.value("obd").map(ost_index).transpose()?,
        parsed: &parsed,
    };
    for operand in &parsed.operands {
        query.show(Path::new(operand), output)?;
    }
    Ok(())
}

/// An OST by index or by name (`stria-OST0003`, `stria-OST0003_UUID`).
fn ost_index(text: &str) -> Result<OstIndex, Failure> {
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    let parsed = match name.rsplit_once("-OST") {
        Some((_, hexadecimal)) => u16::from_str_radix(hexadecimal, 16),
        None => name.parse(),
    };
    parsed.map(OstIndex).map_err(|_| Failure::new(USAGE, format!("lfs getstripe: invalid OST '{text}'")))
}

fn failure(path: &Path, Errno(errno): Errno) -> Failure {
    let path = path.display();
    if errno == libc::ENOTTY {
        let problem = strerror(errno);
        return Failure::new(
            errno,
            format!("lfs getstripe: cb_getstripe: '{path}' not on a StriaFS file system?: {problem} ({errno})"),
        );
    }
    Failure::new(errno, format!("lfs: getstripe for '{path}' failed: {}", strerror(errno)))
}

fn find(directory: &Path, subject: Subject) -> Result<Found, Errno> {
    match channel::call(directory, &ControlRequest::GetLayout(subject))? {
        ControlReply::Layout { inode, directory, layout, own_default, effective_default } => {
            Ok(Found { inode, directory, layout, own_default, effective_default })
        }
        _ => Err(Errno(libc::EPROTO)),
    }
}

impl Query<'_> {
    fn show(&self, path: &Path, output: &mut dyn Write) -> Outcome {
        let found = channel::subject(path).and_then(|(directory, subject)| find(&directory, subject));
        let found = found.map_err(|errno| failure(path, errno))?;
        self.print(path, &found, output)?;
        if found.directory && !self.parsed.has("directory") && !self.parsed.has("default") {
            return self.show_contents(path, output);
        }
        Ok(())
    }

    /// Files of a directory; with `-r` everything below it. An explicit stack bounds memory by breadth, not by depth of calls.
    fn show_contents(&self, directory: &Path, output: &mut dyn Write) -> Outcome {
        let mut pending: Vec<PathBuf> = vec![directory.to_owned()];
        while let Some(current) = pending.pop() {
            let names = sorted_names(&current).map_err(|error| failure(&current, Errno::from(error)))?;
            for (name, is_directory) in names {
                let path = current.join(&name);
                if is_directory && !self.parsed.has("recursive") {
                    continue;
                }
                let subject = Subject::Name(name.as_bytes().to_vec());
                let found = match find(&current, subject) {
                    Err(Errno(libc::ENOENT)) => continue,
                    found => found.map_err(|errno| failure(&path, errno))?,
                };
                self.print(&path, &found, output)?;
                if is_directory {
                    pending.push(path);
                }
            }
        }
        Ok(())
    }

    fn print(&self, path: &Path, found: &Found, output: &mut dyn Write) -> Outcome {
        match (&found.layout, found.directory) {
            (Some(layout), _) => self.print_file(path, found.inode, layout, output),
            (None, true) => self.print_directory(path, found, output),
            (None, false) => Ok(()),
        }
    }

    fn print_file(&self, path: &Path, inode: InodeNumber, layout: &Layout, output: &mut dyn Write) -> Outcome {
        let Some(plain) = layout.as_plain() else {
            let problem =
                format!("lfs getstripe: '{}' has components, which this version does not show", path.display());
            return Err(Failure::new(libc::EOPNOTSUPP, problem));
        };
        if self.ost.is_some_and(|ost| !plain.osts.contains(&ost)) {
            return Ok(());
        }
        if self.fields.is_empty() {
            if !self.style.yaml || self.parsed.operands.len() > 1 {
                print_path(output, path, format_args!("\n"))?;
            }
            return print(output, format_args!("{}", layout_text::file(inode, layout, plain, self.style)));
        }
        self.print_fields(output, |field| match field {
            "stripe-count" => plain.osts.len().to_string(),
            "stripe-size" => plain.stripe_bytes.to_string(),
            "layout" => "raid0".to_owned(),
            "stripe-index" => plain.osts[0].0.to_string(),
            "generation" => layout.shown_generation().to_string(),
            "mdt-index" => inode.mdt().0.to_string(),
            "fid" => Fid::from(inode).to_string(),
            _ => String::new(),
        })
    }

    fn print_directory(&self, path: &Path, found: &Found, output: &mut dyn Write) -> Outcome {
        if self.ost.is_some() {
            return Ok(());
        }
        let default =
            DirectoryDefault::new(found.own_default.as_ref(), found.effective_default.as_ref(), self.parsed.has("raw"));
        if self.fields.is_empty() {
            if !self.parsed.has("directory") || self.parsed.operands.len() > 1 {
                print_path(output, path, format_args!("\n"))?;
            }
            return print(output, format_args!("{}", default.text(self.style.yaml)));
        }
        self.print_fields(output, |field| match field {
            "stripe-count" => default.stripe_count.to_string(),
            "stripe-size" => default.stripe_size.to_string(),
            "layout" => default.pattern.to_owned(),
            "stripe-index" => default.stripe_offset.to_string(),
            "generation" => "0".to_owned(),
            "mdt-index" => found.inode.mdt().0.to_string(),
            "fid" => Fid::from(found.inode).to_string(),
            _ => String::new(),
        })
    }

    /// One field is printed bare; several are printed with their names, as Lustre does.
    fn print_fields(&self, output: &mut dyn Write, value: impl Fn(&str) -> String) -> Outcome {
        if let [field] = self.fields[..] {
            return print(output, format_args!("{}\n", value(field)));
        }
        for field in &self.fields {
            let label = match *field {
                "stripe-count" => "lmm_stripe_count:  ",
                "stripe-size" => "lmm_stripe_size:   ",
                "layout" => "lmm_pattern:       ",
                "stripe-index" => "lmm_stripe_offset: ",
                "generation" => "lmm_layout_gen:    ",
                "mdt-index" => "lmm_mdt_index:     ",
                "fid" => "lmm_fid:           ",
                _ => "lmm_pool:          ",
            };
            print(output, format_args!("{label}{}\n", value(field)))?;
        }
        Ok(())
    }
}

fn sorted_names(directory: &Path) -> std::io::Result<Vec<(OsString, bool)>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        names.push((entry.file_name(), entry.file_type()?.is_dir()));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osts_are_named_by_index_or_name() {
        assert_eq!(ost_index("3").unwrap(), OstIndex(3));
        assert_eq!(ost_index("stria-OST000a").unwrap(), OstIndex(10));
        assert_eq!(ost_index("stria-OST0001_UUID").unwrap(), OstIndex(1));
        assert_eq!(ost_index("x").unwrap_err().status, 4);
    }

    #[test]
    fn wrong_command_lines_fail_as_in_lustre() {
        let fail = |words: &[&str]| {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            run(&arguments, &mut Vec::new()).unwrap_err()
        };
        assert_eq!(fail(&[]), Failure::new(4, "error: getstripe: no filename|pathname"));
        let missing = fail(&["/nonexistent/nofile"]);
        let words = "lfs: getstripe for '/nonexistent/nofile' failed: No such file or directory";
        assert_eq!(missing, Failure::new(2, words));
    }
}
