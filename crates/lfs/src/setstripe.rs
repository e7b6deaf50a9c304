//! `lfs setstripe`: creates a file with a layout, changes the components of one, or sets or clears
//! a directory's default.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    path::Path,
};

use layout::LayoutSpec;
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::FsError;

use super::{
    channel::{self, CallError, Errno, strerror},
    components,
    layout_options::{LAYOUT_HELP, LAYOUT_OPTIONS, layout, usage_error},
    missing_osts,
    options::{OptionSpec, Parsed, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print},
};

/// The options that are not about layouts.
pub const OWN_OPTIONS: &[OptionSpec] = &[
    option('d', &["delete"], Takes::Nothing),
    option('N', &["mirror-count"], Takes::OptionalValue),
    option('y', &["yaml"], Takes::Value),
    option('I', &["component-id", "comp-id"], Takes::Value),
    long_option(&["component-add", "comp-add"], Takes::Nothing),
    long_option(&["component-del", "comp-del"], Takes::Nothing),
    long_option(&["component-set", "comp-set"], Takes::Nothing),
    long_option(&["component-flags", "comp-flags"], Takes::Value),
    long_option(&["copy"], Takes::Value),
    long_option(&["ec"], Takes::Value),
    long_option(&["mode"], Takes::Value),
    long_option(&["help"], Takes::Nothing),
];

/// What mirrored files have.
const NOT_YET: &[&str] = &["mirror-count", "ec", "component-set"];

const HELP: &str = "\
usage: lfs setstripe [LAYOUT] FILE|DIRECTORY...
       lfs setstripe --copy=OTHER | --yaml=FILE  FILE|DIRECTORY...
       lfs setstripe --component-add -E END [LAYOUT] FILE...
       lfs setstripe --component-del {-I ID | --component-flags FLAGS} FILE...
       lfs setstripe -d DIRECTORY...

Creates an empty FILE with the given layout, or sets the default layout of DIRECTORY. New files in
DIRECTORY get this layout, and new directories inherit it as their default.

";

const HELP_END: &str = "
      --copy OTHER          a layout like that of OTHER, a file or a directory
  -y, --yaml FILE           the layout that 'lfs getstripe -y' wrote to FILE; - is standard input
      --component-add       adds components after the last one of FILE
      --component-del       deletes components, which must be the last ones, and the data in them
  -I, --component-id ID     the component to delete
      --component-flags F   deletes those with flag init, ^init (no objects yet) or extension
  -d, --delete              clears DIRECTORY's default
      --mode MODE           permission bits of a new file, octal

Example: lfs setstripe -E 4M -c 1 -E 64M -c 4 -E -1 -c -1 FILE

Exit status: 0; 4 for a wrong command line; else the error number (17: FILE exists, 25: not on StriaFS).
";

/// Runs `lfs setstripe`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let options = [LAYOUT_OPTIONS, OWN_OPTIONS].concat();
    let parsed = parse(&options, arguments).map_err(|error| Failure::new(USAGE, format!("lfs setstripe: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}{LAYOUT_HELP}{HELP_END}"));
    }
    if let Some(name) = NOT_YET.iter().find(|name| parsed.has(name)) {
        let problem =
            format!("lfs setstripe: option '--{name}' is not supported yet: files have no mirrors and no parity");
        return Err(Failure::new(libc::EOPNOTSUPP, problem));
    }
    if let Some(name) = ["component-id", "component-flags"].iter().find(|name| parsed.has(name))
        && !parsed.has("component-del")
    {
        return Err(usage_error(format_args!(
            "--{name} selects what --component-del deletes, and cannot be used without it"
        )));
    }
    let spec = asked(&parsed)?;
    let mode = mode(&parsed)?;
    if parsed.operands.is_empty() {
        return Err(usage_error("FILE must be specified"));
    }
    let one = |operand: &OsString| match () {
        () if parsed.has("component-add") => components::add(operand, &spec),
        () if parsed.has("component-del") => components::delete(operand, &parsed),
        () => set(operand, &spec, parsed.has("delete"), mode),
    };
    all(&parsed.operands, one)
}

/// Does the same to all operands: if one fails, those after it are still processed. The first
/// failure gives the exit status, as in Lustre.
fn all(operands: &[OsString], mut one: impl FnMut(&OsString) -> Outcome) -> Outcome {
    let mut failures = operands.iter().filter_map(|operand| one(operand).err()).collect::<Vec<_>>();
    let Some(last) = failures.pop() else { return Ok(()) };
    failures.iter().for_each(|failure| eprintln!("{}", failure.message));
    let status = failures.first().map_or(last.status, |first| first.status);
    Err(Failure { status, ..last })
}

/// The layout asked for: by options, as a copy, or in YAML.
pub fn asked(parsed: &Parsed) -> Result<LayoutSpec, Failure> {
    let sources = ["copy", "yaml", "component-add", "component-del", "delete"];
    let given: Vec<&str> = sources.into_iter().filter(|name| parsed.has(name)).collect();
    if let [first, second, ..] = given[..] {
        return Err(usage_error(format_args!("--{first} and --{second} exclude each other")));
    }
    let spec = layout(parsed)?;
    let (copy, yaml) = (parsed.value("copy"), parsed.value("yaml"));
    if !spec.is_open() && (copy.is_some() || yaml.is_some() || parsed.has("component-del") || parsed.has("delete")) {
        return Err(usage_error(format_args!("--{} cannot be combined with layout options", given[0])));
    }
    match (copy, yaml) {
        (Some(other), _) => copied(other),
        (_, Some(file)) => written(file),
        _ => Ok(spec),
    }
}

/// The layout of another file, or the default of a directory.
fn copied(other: &str) -> Result<LayoutSpec, Failure> {
    let fail = |errno: i32| {
        Failure::new(
            errno,
            format!("lfs setstripe: cannot copy the layout of '{other}': {} ({errno})", strerror(errno)),
        )
    };
    let found = channel::subject(Path::new(other))
        .and_then(|(directory, subject)| channel::call(&directory, &ControlRequest::GetLayout(subject)));
    match found.map_err(|Errno(errno)| fail(errno))? {
        ControlReply::Layout { layout: Some(layout), .. } => layout.request().ok_or_else(|| fail(libc::ENODATA)),
        ControlReply::Layout { directory: true, own_default, .. } => own_default.ok_or_else(|| fail(libc::ENODATA)),
        _ => Err(fail(libc::EINVAL)),
    }
}

/// The layout in a file of YAML.
fn written(file: &str) -> Result<LayoutSpec, Failure> {
    let text = match file {
        "-" => std::io::read_to_string(std::io::stdin()),
        path => std::fs::read_to_string(path),
    };
    let text = text.map_err(|error| {
        let Errno(errno) = Errno::from(error);
        Failure::new(errno, format!("lfs setstripe: cannot read '{file}': {} ({errno})", strerror(errno)))
    })?;
    let spec = layout::text::yaml::parse(&text);
    spec.map_err(|problem| Failure::new(libc::EINVAL, format!("lfs setstripe: '{file}': {problem}")))
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
        () if directory && delete => channel::ask(path, &ControlRequest::SetDefaultLayout(None)),
        () if directory => channel::ask(path, &ControlRequest::SetDefaultLayout(Some(spec.clone()))),
        () => create(path, spec, mode, metadata.is_ok()),
    };
    result.map(drop).map_err(|error| explained(operand, spec, failure(operand, &error)))
}

/// The failure, with the reason if it is that OSTs were asked for that are not there.
pub fn explained(operand: &OsStr, spec: &LayoutSpec, failure: Failure) -> Failure {
    if i32::from(failure.status) != libc::EINVAL {
        return failure;
    }
    let targets = channel::targets(&channel::parent(Path::new(operand))).unwrap_or_default();
    match missing_osts::refusal(spec, &targets) {
        Some(reason) => Failure { message: format!("{}: {reason}", failure.message), ..failure },
        None => failure,
    }
}

/// In Lustre's words.
pub fn failure(operand: &OsStr, error: &CallError) -> Failure {
    let (Errno(errno), shown) = (error.errno(), operand.display());
    let message = match (error, errno) {
        (CallError::Refused(FsError::Refused(problem)), _) => {
            format!("lfs setstripe: {problem}: {} (2)", strerror(libc::ENOENT))
        }
        (_, libc::EEXIST) => format!("lfs setstripe: setstripe error for '{shown}': stripe already set"),
        (_, libc::ENOENT) => format!("lfs setstripe: unable to open '{shown}': {} ({errno})", strerror(errno)),
        _ => format!("lfs setstripe: setstripe error for '{shown}': {}", strerror(errno)),
    };
    Failure::new(errno, message)
}

fn create(path: &Path, spec: &LayoutSpec, mode: u32, exists: bool) -> Result<ControlReply, CallError> {
    use std::os::unix::ffi::OsStrExt;
    let directory = channel::parent(path);
    if exists && channel::mount_of(path)?.is_none() {
        return Err(Errno(libc::ENOTTY).into());
    }
    let name = path.file_name().ok_or(Errno(libc::EINVAL))?.as_bytes().to_vec();
    channel::ask(&directory, &ControlRequest::CreateWithLayout { name, mode, spec: spec.clone() })
}

/// The layout of an existing file.
pub fn layout_of(path: &Path) -> Result<(std::path::PathBuf, Subject, Option<layout::Layout>), CallError> {
    let (directory, subject) = channel::subject(path)?;
    match channel::ask(&directory, &ControlRequest::GetLayout(subject.clone()))? {
        ControlReply::Layout { layout, .. } => Ok((directory, subject, layout)),
        _ => Err(Errno(libc::EPROTO).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(words: &str) -> (u8, String) {
        let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let failure = run(&arguments, &mut Vec::new()).expect_err(words);
        (failure.status, failure.message)
    }

    #[test]
    fn wrong_command_lines_fail_as_in_lustre() {
        for (words, expected, message) in [
            ("", 4, "lfs setstripe setstripe: FILE must be specified"),
            ("-c 1", 4, "lfs setstripe setstripe: FILE must be specified"),
            ("-Q x", 4, "lfs setstripe: unrecognized option '-Q'"),
            ("--copy=a --yaml=b x", 4, "lfs setstripe setstripe: --copy and --yaml exclude each other"),
            ("--copy=a -c 2 x", 4, "lfs setstripe setstripe: --copy cannot be combined with layout options"),
        ] {
            assert_eq!(status(words), (expected, message.to_owned()), "{words}");
        }
    }

    #[test]
    fn an_operand_that_fails_leaves_out_none_behind_it() {
        let operands = ["a", "exists", "b", "absent"].map(OsString::from);
        let mut done = Vec::new();
        let outcome = all(&operands, |operand| {
            done.push(operand.clone());
            match operand.to_str() {
                Some("exists") => Err(Failure::new(libc::EEXIST, "exists")),
                Some("absent") => Err(Failure::new(libc::ENOENT, "absent")),
                _ => Ok(()),
            }
        });
        assert_eq!(done, operands);
        assert_eq!(outcome, Err(Failure::new(libc::EEXIST, "absent")), "the first one's status, the last one's words");
    }

    #[test]
    fn what_is_asked_for_is_shown_in_one_column() {
        let mut help = Vec::new();
        run(&["--help".into()], &mut help).unwrap();
        let help = String::from_utf8(help).unwrap();
        assert!(help.contains("\n  -c, --stripe-count"), "{help}");
    }

    #[test]
    fn what_mirrors_need_is_refused_by_name() {
        let (code, message) = status("-N 2 f");
        assert_eq!(i32::from(code), libc::EOPNOTSUPP);
        assert!(message.contains("--mirror-count"), "{message}");
    }
}
