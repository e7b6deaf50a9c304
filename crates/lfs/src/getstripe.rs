//! `lfs getstripe`: shows the layout of files and the default layout of directories.

use std::{
    ffi::OsString,
    io::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use layout::{
    Form, Layout, LayoutSpec,
    text::{self, Composite, DirectoryDefault, Pattern, Row, Style},
};
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::{Fid, InodeNumber, OstIndex};

use super::{
    channel::{self, Errno, strerror},
    component_filter::ComponentFilter,
    df_json,
    getstripe_json::Shown,
    options::{NOT, OptionSpec, Parsed, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path},
};

/// The options.
pub const OPTIONS: &[OptionSpec] = &[
    option('c', &["stripe-count"], Takes::Nothing),
    option('S', &["stripe-size"], Takes::Nothing),
    option('i', &["stripe-index"], Takes::Nothing),
    option('p', &["pool"], Takes::Nothing),
    option('L', &["layout"], Takes::Nothing),
    option('F', &["fid"], Takes::Nothing),
    option('g', &["generation"], Takes::Nothing),
    option('m', &["mdt-index"], Takes::Nothing),
    option('N', &["mirror-count"], Takes::Nothing),
    option('E', &["component-end", "comp-end"], Takes::OptionalValue),
    option('I', &["component-id", "comp-id"], Takes::OptionalValue),
    option('z', &["extension-size", "ext-size"], Takes::Nothing),
    option('O', &["obd", "ost"], Takes::Value),
    option('D', &["default"], Takes::Nothing),
    option('d', &["directory"], Takes::Nothing),
    option('r', &["recursive"], Takes::Nothing),
    option('R', &["raw"], Takes::Nothing),
    option('q', &["quiet"], Takes::Nothing),
    option('v', &["verbose"], Takes::Nothing),
    option('y', &["yaml"], Takes::Nothing),
    long_option(&["component-count", "comp-count"], Takes::Nothing),
    long_option(&["component-start", "comp-start"], Takes::OptionalValue),
    long_option(&["component-flags", "comp-flags"], Takes::OptionalValue),
    long_option(&["mirror-id"], Takes::Value),
    long_option(&["mirror-index"], Takes::Value),
    long_option(&["hex-idx"], Takes::Nothing),
    long_option(&["json"], Takes::Nothing),
    long_option(&[NOT], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// Switches that show one value instead of everything, in the order they are printed, with the
/// value's label.
const FIELDS: &[(&str, &str)] = &[
    ("component-count", "lcm_entry_count:   "),
    ("mirror-count", "lcm_mirror_count:  "),
    ("component-id", "lcme_id:             "),
    ("component-flags", "lcme_flags:          "),
    ("component-start", "lcme_extent.e_start: "),
    ("component-end", "lcme_extent.e_end:   "),
    ("stripe-count", "lmm_stripe_count:  "),
    ("stripe-size", "lmm_stripe_size:   "),
    ("extension-size", "lmm_extension_size: "),
    ("layout", "lmm_pattern:       "),
    ("stripe-index", "lmm_stripe_offset: "),
    ("pool", "lmm_pool:          "),
    ("generation", "lmm_layout_gen:    "),
    ("mdt-index", "lmm_mdt_index:     "),
    ("fid", "lmm_fid:           "),
];

const HELP: &str = "\
usage: lfs getstripe [OPTIONS] FILE|DIRECTORY...

Shows the layout of files. For a directory it shows the default layout, then the layout of the files
in it (everything below it with -r; only the directory itself with -d).

One value; for files with components, that of the last component that has objects:

  -c, --stripe-count   number of stripes            -S, --stripe-size   bytes per stripe
  -i, --stripe-index   OST of the first stripe      -L, --layout        pattern
  -m, --mdt-index      MDT that holds the inode     -F, --fid           file identifier
  -g, --generation     generation of the layout     -p, --pool          pool
  -N, --mirror-count   number of mirrors            -I, --component-id
      --component-count                             -E, --component-end
      --component-start                             -z, --extension-size: step of the first component
      --component-flags                                 that can still grow; 0: there is none

With a value, as in -I2 or --component-start=+16M, these show only matching components:
-I, --component-start, -E, --component-flags, --mirror-id, --mirror-index. +N is more than N, -N
less; ! before the option negates it. Flags are init, extension; ^init means without init.
No file has mirrors yet: number and index of the mirror are 0 everywhere.

  -O, --ost INDEX      only files with an object on this OST (index or name)
  -d, --directory      the directory itself, not what is in it
  -D, --default        the directory's default layout
  -R, --raw            only what is set on the directory itself; zeros if nothing is
  -r, --recursive      everything below
  -q, --quiet          objects only                 -v, --verbose       also magic and FID
  -y, --yaml           YAML                             --hex-idx       OST indices in hexadecimal
      --json           JSON lines: one object per file and directory

Fields of JSON: path, kind (file, directory), fid, mdt, generation (null for a default), own (whether the
directory has a default of its own), automatic, components: id, start, end (null: end of file),
instantiated, extension, pattern, stripe_count (-1: all OSTs), stripe_bytes (for extension: the step
size), pool, objects: ost, object.

Exit status: 0; 4 for a wrong command line; else the error number (2: no such file, 25: not on StriaFS).
";

/// The server's answer for one path.
pub struct Found {
    /// Which.
    pub inode: InodeNumber,
    /// It is a directory.
    pub directory: bool,
    /// Of a file.
    pub layout: Option<Layout>,
    /// The default set on a directory.
    pub own_default: Option<LayoutSpec>,
    /// The layout of new files in it.
    pub effective_default: Option<LayoutSpec>,
}

struct Query<'a> {
    parsed: &'a Parsed,
    style: Style,
    fields: Vec<(&'static str, &'static str)>,
    components: ComponentFilter,
    ost: Option<OstIndex>,
    json: bool,
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
    let query = Query::new(&parsed)?;
    if let Some((name, _)) = query.fields.first().filter(|_| query.json) {
        return Err(Failure::new(USAGE, format!("lfs getstripe: --json shows all values, not only --{name}")));
    }
    for operand in &parsed.operands {
        query.show(Path::new(operand), output)?;
    }
    Ok(())
}

/// Whether the option asks for a value rather than for components that have one.
fn is_switch(parsed: &Parsed, name: &str) -> bool {
    parsed.options.iter().any(|(found, value)| *found == name && value.is_none())
}

/// An OST by index or by name (`stria-OST0003`, `stria-OST0003_UUID`).
pub fn ost_index(text: &str) -> Result<OstIndex, Failure> {
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
        ControlReply::Layout { inode, directory, layout, own_default, effective_default, .. } => {
            Ok(Found { inode, directory, layout, own_default, effective_default })
        }
        _ => Err(Errno(libc::EPROTO)),
    }
}

impl<'a> Query<'a> {
    fn new(parsed: &'a Parsed) -> Result<Self, Failure> {
        let components = ComponentFilter::new(parsed);
        Ok(Self {
            style: Style {
                hexadecimal: parsed.has("hex-idx"),
                verbose: parsed.has("verbose"),
                quiet: parsed.has("quiet"),
                yaml: parsed.has("yaml"),
            },
            fields: FIELDS.iter().copied().filter(|(name, _)| is_switch(parsed, name)).collect(),
            components: components.map_err(|problem| Failure::new(USAGE, format!("lfs getstripe: {problem}")))?,
            ost: parsed.value("obd").map(ost_index).transpose()?,
            json: parsed.has("json"),
            parsed,
        })
    }

    fn show(&self, path: &Path, output: &mut dyn Write) -> Outcome {
        let found = channel::subject(path).and_then(|(directory, subject)| find(&directory, subject));
        let found = found.map_err(|errno| failure(path, errno))?;
        self.print(path, &found, output)?;
        if found.directory && !self.parsed.has("directory") && !self.parsed.has("default") {
            return self.show_contents(path, output);
        }
        Ok(())
    }

    /// Files of a directory; with `-r` everything below it. An explicit stack bounds memory by
    /// breadth, not by depth of calls.
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

    /// Whether it has an object on the OST that is asked for.
    fn is_wanted(&self, found: &Found) -> bool {
        let Some(ost) = self.ost else { return true };
        let rows = found.layout.as_ref().map(text::rows).unwrap_or_default();
        rows.iter().any(|row| row.objects.iter().any(|(_, holder)| *holder == ost))
    }

    fn print(&self, path: &Path, found: &Found, output: &mut dyn Write) -> Outcome {
        if !self.is_wanted(found) {
            return Ok(());
        }
        if self.json {
            let is_wanted = |row: &Row| self.components.is_open() || self.components.matches(row);
            let shown = Shown::new(path.to_string_lossy().into_owned(), found, self.parsed.has("raw"), is_wanted);
            return shown.map_or(Ok(()), |shown| df_json::print_line(&shown, output));
        }
        match (&found.layout, found.directory) {
            (Some(layout), _) => self.print_file(path, found.inode, layout, output),
            (None, true) => self.print_directory(path, found, output),
            (None, false) => Ok(()),
        }
    }

    fn print_file(&self, path: &Path, inode: InodeNumber, layout: &Layout, output: &mut dyn Write) -> Outcome {
        let rows = text::rows(layout);
        let about = About { inode, generation: layout.shown_generation(), form: layout.form, components: rows.len() };
        if !self.fields.is_empty() {
            return self.print_rows(&about, &rows, |row| row.instantiated, output);
        }
        if !self.style.yaml || self.parsed.operands.len() > 1 {
            print_path(output, path, format_args!("\n"))?;
        }
        if self.components.is_open() {
            return print(output, format_args!("{}", text::file(inode, layout, self.style)));
        }
        let chosen: Vec<Row> = rows.iter().filter(|row| self.components.matches(row)).cloned().collect();
        let shown = Composite {
            inode: Some(inode),
            generation: layout.shown_generation(),
            entry_count: rows.len(),
            bytes: text::verbose_bytes(&rows),
            rows: &chosen,
        };
        print(output, format_args!("{}", text::composite(&shown, self.style)))
    }

    fn print_directory(&self, path: &Path, found: &Found, output: &mut dyn Write) -> Outcome {
        let raw = self.parsed.has("raw");
        let (own, effective) = (found.own_default.as_ref(), found.effective_default.as_ref());
        let rows = match if raw { own } else { own.or(effective) } {
            Some(LayoutSpec::Composite(components)) => Some(text::rows_of_default(components)),
            _ => None,
        };
        if !self.fields.is_empty() {
            return match rows {
                Some(rows) => {
                    let about =
                        About { inode: found.inode, generation: 0, form: Form::Composite, components: rows.len() };
                    // A default has no objects: its last component counts.
                    self.print_rows(&about, &rows, |_| true, output)
                }
                None => self.print_plain_default(found.inode, &DirectoryDefault::new(own, effective, raw), output),
            };
        }
        if !self.parsed.has("directory") || self.parsed.operands.len() > 1 {
            print_path(output, path, format_args!("\n"))?;
        }
        let Some(rows) = rows else {
            let default = DirectoryDefault::new(own, effective, raw);
            return print(output, format_args!("{}", default.text(self.style.yaml)));
        };
        let chosen: Vec<Row> = rows.iter().filter(|row| self.components.matches(row)).cloned().collect();
        let shown = Composite { inode: None, generation: 0, entry_count: rows.len(), bytes: 0, rows: &chosen };
        print(output, format_args!("{}", text::composite(&shown, self.style)))
    }

    /// Fields of the components that are asked for; if none are, of the last one that `counts`, but
    /// the extension size, which no component with objects has: that is of the first one that is
    /// room for another, as Lustre shows it.
    fn print_rows(
        &self,
        about: &About,
        rows: &[Row],
        counts: impl Fn(&Row) -> bool,
        output: &mut dyn Write,
    ) -> Outcome {
        let chosen: Vec<&Row> = match self.components.is_open() {
            true => rows.iter().rfind(|row| counts(row)).or(rows.first()).into_iter().collect(),
            false => rows.iter().filter(|row| self.components.matches(row)).collect(),
        };
        if rows.is_empty() {
            return self.print_fields(output, |field| about.value(field).unwrap_or_default());
        }
        let extension = rows.iter().find(|row| row.extension && self.components.is_open());
        for (position, row) in chosen.into_iter().enumerate() {
            if position > 0 {
                print(output, format_args!("\n"))?;
            }
            self.print_fields(output, |field| {
                let row = extension.filter(|_| field == "extension-size").unwrap_or(row);
                about.value(field).unwrap_or_else(|| value_of(row, about, field))
            })?;
        }
        Ok(())
    }

    fn print_plain_default(&self, inode: InodeNumber, default: &DirectoryDefault, output: &mut dyn Write) -> Outcome {
        let about = About { inode, generation: 0, form: Form::Plain, components: 0 };
        self.print_fields(output, |field| match field {
            "stripe-count" => default.stripe_count.to_string(),
            "stripe-size" => default.stripe_size.to_string(),
            "layout" => default.pattern.to_owned(),
            "stripe-index" => default.stripe_offset.to_string(),
            "pool" => default.pool.clone().unwrap_or_default(),
            other => about.value(other).unwrap_or_default(),
        })
    }

    /// One field is printed bare; several are printed with their names, as Lustre does.
    fn print_fields(&self, output: &mut dyn Write, value: impl Fn(&str) -> String) -> Outcome {
        if let [(field, _)] = self.fields[..] {
            return print(output, format_args!("{}\n", value(field)));
        }
        for (field, label) in &self.fields {
            print(output, format_args!("{label}{}\n", value(field)))?;
        }
        Ok(())
    }
}

/// What is to be said of an inode and its layout as a whole.
struct About {
    inode: InodeNumber,
    generation: u64,
    form: Form,
    components: usize,
}

impl About {
    fn value(&self, field: &str) -> Option<String> {
        Some(match field {
            "component-count" if self.form == Form::Plain => "0".to_owned(),
            "component-count" => self.components.to_string(),
            "mirror-count" => "1".to_owned(),
            "generation" => self.generation.to_string(),
            "mdt-index" => self.inode.mdt().0.to_string(),
            "fid" => Fid::from(self.inode).to_string(),
            _ => return None,
        })
    }
}

/// A field of a component.
fn value_of(row: &Row, about: &About, field: &str) -> String {
    match field {
        "component-id" => row.id.map_or("N/A".to_owned(), |id| id.0.to_string()),
        "component-flags" => row.flags().to_owned(),
        "component-start" => row.extent.start.to_string(),
        "component-end" => text::end(row.extent.end),
        "stripe-count" => row.stripe_count.to_string(),
        "stripe-size" | "extension-size" => match row.extension == (field == "extension-size") {
            true => row.stripe_bytes.to_string(),
            false => "0".to_owned(),
        },
        "layout" => row.pattern.name().to_owned(),
        "stripe-index" if row.pattern == Pattern::Mdt => about.inode.mdt().0.to_string(),
        "stripe-index" => row.first_ost().map_or("-1".to_owned(), |ost| ost.0.to_string()),
        _ => row.pool.clone().unwrap_or_default(),
    }
}

/// Names of a directory, and whether they are directories.
pub(crate) fn sorted_names(directory: &Path) -> std::io::Result<Vec<(std::ffi::OsString, bool)>> {
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
    use layout::{BackingSpec, ComponentSpec, END_OF_FILE, PlainLayout, StripeCount, StripeSpec};

    use super::*;

    #[test]
    fn osts_are_named_by_index_or_name() {
        assert_eq!(ost_index("3").unwrap(), OstIndex(3));
        assert_eq!(ost_index("stria-OST000a").unwrap(), OstIndex(10));
        assert_eq!(ost_index("stria-OST0001_UUID").unwrap(), OstIndex(1));
        assert_eq!(ost_index("x").unwrap_err().status, 4);
    }

    #[test]
    fn the_extension_size_is_that_of_the_first_component_that_can_grow() {
        let striped = |count| StripeSpec { stripe_count: StripeCount::Exactly(count), ..StripeSpec::default() };
        let mut layout = Layout::composite(&[
            ComponentSpec { end: 1 << 30, backing: BackingSpec::Extended(striped(1), 64 << 20) },
            ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Extended(striped(4), 128 << 20) },
        ]);
        let shown = |layout: &Layout, words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let parsed = parse(OPTIONS, &words).unwrap();
            let (rows, mut output) = (text::rows(layout), Vec::new());
            let about = About { inode: InodeNumber(1), generation: 1, form: layout.form, components: rows.len() };
            Query::new(&parsed).unwrap().print_rows(&about, &rows, |row| row.instantiated, &mut output).unwrap();
            String::from_utf8(output).unwrap()
        };
        assert_eq!(shown(&layout, &["-z"]), "67108864\n");
        layout.extend(0, 64 << 20).unwrap();
        let plain = PlainLayout { stripe_bytes: 65536, osts: vec![OstIndex(0)] };
        layout.instantiate(0, plain, striped(1)).unwrap();
        assert_eq!(shown(&layout, &["-z"]), "67108864\n", "the component with objects has none of its own");
        assert_eq!(shown(&layout, &["-cz"]), "lmm_stripe_count:  1\nlmm_extension_size: 67108864\n");
        assert_eq!(shown(&layout, &["-z", "-I1"]), "0\n");
        let ids = shown(&layout, &["-I", "--component-flags=extension"]);
        assert_eq!(shown(&layout, &["-z", "--component-flags=extension"]), "67108864\n\n134217728\n", "{ids}");
    }

    #[test]
    fn wrong_command_lines_fail_as_in_lustre() {
        let fail = |words: &[&str]| {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            run(&arguments, &mut Vec::new()).unwrap_err()
        };
        assert_eq!(fail(&[]), Failure::new(4, "error: getstripe: no filename|pathname"));
        assert_eq!(fail(&["--mirror-id=0", "f"]), Failure::new(4, "lfs getstripe: invalid mirror ID '0'"));
        let missing = fail(&["/nonexistent/nofile"]);
        let words = "lfs: getstripe for '/nonexistent/nofile' failed: No such file or directory";
        assert_eq!(missing, Failure::new(2, words));
    }
}
