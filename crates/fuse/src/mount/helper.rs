//! The mount helper, called by mount(8) for `mount -t fuse.stria SOURCE DIR -o OPTIONS` and lines
//! of /etc/fstab.
//!
//! mount(8) looks for `/sbin/mount.fuse.stria` and calls it as
//! `mount.fuse.stria SOURCE DIR [-sfnv] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]`. Without that
//! program it calls libfuse's `mount.fuse3`, which runs the program named after the dot, through a
//! shell and the shell's own PATH (mount(8) takes away the user's): `stria SOURCE DIR -o OPTIONS`.
//! Both expect the program to return, with status 0, when the mount is usable: the binary serves
//! the mount from a process of its own.
//!
//! Only the form of the call is parsed here: sources and options are parsed in the same place as
//! those of `stria mount`. One option is dropped: `mount.fuse3` adds `dev` to every mount that is
//! not `nodev`, so it says nothing about what the user wants (`allow_dev` does).

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// What mount(8) asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HelperRequest {
    /// What to mount; of a remount, what the mount table shows.
    pub source: String,
    /// Where.
    pub point: PathBuf,
    /// How: texts after `-o`, each with options separated by commas.
    pub options: Vec<String>,
    /// Do everything but the mount (`-f`).
    pub fake: bool,
    /// Ignore options that are not understood (`-s`).
    pub sloppy: bool,
}

/// Why a call is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// Source or directory is missing.
    #[error("usage: mount.fuse.stria HOST[:PORT]:/FSNAME DIRECTORY [-sfnv] [-o OPTIONS]")]
    Usage,
    /// An unknown option letter.
    #[error("unknown option '{0}'")]
    Unknown(String),
    /// `-N`.
    #[error("mounting in another namespace (-N) is not supported")]
    Namespace,
}

/// Whether a program started under this name with this first argument is being called by mount(8),
/// not by a person with a subcommand: no subcommand looks like a source.
pub fn is_helper_call(program: &OsStr, first_argument: Option<&OsStr>) -> bool {
    let name = Path::new(program).file_name().unwrap_or(program);
    let by_name = name == "mount.fuse.stria" || name == "mount.stria";
    by_name || first_argument.is_some_and(|text| text.to_string_lossy().contains(":/"))
}

impl HelperRequest {
    /// Parses the arguments, without the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, HelperError> {
        let mut arguments = arguments.into_iter();
        let mut positional = Vec::new();
        let mut request = Self::default();
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy();
            let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                positional.push(argument);
                continue;
            };
            let mut value = |attached: &str| match attached {
                "" => arguments.next().map(|next| next.to_string_lossy().into_owned()).ok_or(HelperError::Usage),
                attached => Ok(attached.to_owned()),
            };
            let mut rest = letters.chars();
            match (rest.next(), rest.as_str()) {
                (Some('o'), attached) => request.options.push(without_dev(&value(attached)?)),
                (Some('t'), attached) => drop(value(attached)?),
                (Some('N'), _) => return Err(HelperError::Namespace),
                _ => request.add_letters(letters)?,
            }
        }
        let [source, point] = <[OsString; 2]>::try_from(positional).map_err(|_| HelperError::Usage)?;
        Ok(Self { source: source.to_string_lossy().into_owned(), point: point.into(), ..request })
    }

    /// Letters without values; `-n` (no /etc/mtab) and `-v` mean nothing here.
    fn add_letters(&mut self, letters: &str) -> Result<(), HelperError> {
        for letter in letters.chars() {
            match letter {
                'f' => self.fake = true,
                's' => self.sloppy = true,
                'n' | 'v' => {}
                _ => return Err(HelperError::Unknown(format!("-{letters}"))),
            }
        }
        Ok(())
    }
}

/// Options without `dev`; see the module documentation.
fn without_dev(options: &str) -> String {
    options.split(',').filter(|option| *option != "dev").collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<HelperRequest, HelperError> {
        HelperRequest::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn calls_of_mount_and_of_its_fuse_helper_are_understood() {
        let from_mount = parse(&["mgs:/stria", "/mnt/x", "-v", "-o", "ro,timeout=5", "-t", "fuse.stria"]).unwrap();
        assert_eq!(from_mount.source, "mgs:/stria");
        assert_eq!(from_mount.point, Path::new("/mnt/x"));
        assert_eq!(from_mount.options, ["ro,timeout=5"]);
        assert!(!from_mount.fake && !from_mount.sloppy);
        assert_eq!(parse(&["mgs:/stria", "/mnt/x", "-oro,timeout=5"]).unwrap(), from_mount);
        let from_mount_fuse = parse(&["mgs:/stria", "/mnt/x", "-o", "rw,allow_dev,dev,suid"]).unwrap();
        assert_eq!(from_mount_fuse.options, ["rw,allow_dev,suid"], "mount.fuse3 has added dev");
        let flagged = parse(&["-fsn", "/some/dir:/stria", "/mnt/x"]).unwrap();
        assert!(flagged.fake && flagged.sloppy);
    }

    #[test]
    fn other_calls_are_refused_by_cause() {
        assert_eq!(parse(&["mgs:9800:/stria"]), Err(HelperError::Usage));
        assert_eq!(parse(&["mgs:9800:/stria", "/a", "/b"]), Err(HelperError::Usage));
        assert_eq!(parse(&["mgs:9800:/stria", "/a", "-o"]), Err(HelperError::Usage));
        assert_eq!(parse(&["mgs:9800:/stria", "/a", "-x"]), Err(HelperError::Unknown("-x".to_owned())));
        assert_eq!(parse(&["mgs:9800:/stria", "/a", "-N", "1"]), Err(HelperError::Namespace));
    }

    #[test]
    fn subcommands_are_not_taken_for_sources() {
        let call = |program: &str, first: &str| is_helper_call(OsStr::new(program), Some(OsStr::new(first)));
        assert!(call("/sbin/mount.fuse.stria", "anything"));
        assert!(call("stria", "mgs:/stria") && call("stria", "/srv/data:/stria"));
        assert!(!call("/usr/bin/stria", "mount"));
        assert!(!is_helper_call(OsStr::new("stria"), None));
    }
}
