//! Mount options and sources as given by mount(8) and /etc/fstab.
//!
//! ```text
//! mgs.example:/stria  /mnt/stria  fuse.stria  rw,nosuid,_netdev,timeout=30  0 0
//! ```

use std::{fmt, str::FromStr};

use host::mount_table::RESTRICTIONS;
use rt::Addresses;
use rustix::mount::MountFlags;

use crate::session::RingChoice;

/// What a mount is of: `host[:port]:/fsname`. Several addresses of the management service are
/// separated as [`Addresses::parse`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSource {
    /// Addresses of the management service.
    pub mgs: Addresses,
    /// Name of the file system.
    pub fsname: String,
}

impl fmt::Display for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:/{}", self.mgs, self.fsname)
    }
}

/// Why a source or an option is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not of the form `host[:port]:/fsname`.
    #[error("'{0}' is not a source; expected HOST[:PORT]:/FSNAME, as in 10.0.0.1:/stria")]
    Source(String),
    /// A file system name that cannot be.
    #[error("'{name}' is not a file system name: 1 to {max} letters, digits, '-' or '_'")]
    FsName {
        /// The name.
        name: String,
        /// Longest length.
        max: usize,
    },
    /// An option's value is missing, unwanted or wrong.
    #[error("mount option {option}: expected {expected}")]
    Value {
        /// As it was given.
        option: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl FromStr for MountSource {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError::Source(text.to_owned());
        let (mgs, fsname) = text.rsplit_once(":/").ok_or_else(error)?;
        let max = types::limits::FSNAME_BYTES_MAX;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if fsname.is_empty() || fsname.len() > max || !fsname.bytes().all(allowed) {
            return Err(ParseError::FsName { name: fsname.to_owned(), max });
        }
        let mgs = Addresses::parse(mgs).ok_or_else(error)?;
        Ok(MountSource { mgs, fsname: fsname.to_owned() })
    }
}

/// Options of a mount that this crate acts on; what it does not know is left to the caller in
/// `others`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Flags of mount(2) that were switched on by name.
    pub flags: MountFlags,
    /// Flags of mount(2) that were switched off by name (`dev` switches NODEV off).
    pub flags_off: MountFlags,
    /// The kernel checks permissions and access lists too, and so it may cache names and attributes
    /// (`default_permissions`, the default; `no_default_permissions`).
    pub default_permissions: bool,
    /// Change the flags of what is mounted there already, as by [`remount`](super::remount).
    pub remount: bool,
    /// Whether users other than the mounting one may enter. `None`: as far as possible, that is, if
    /// root mounts.
    pub allow_other: Option<bool>,
    /// Threads that read `/dev/fuse`, if that is the transport; `None`: one per core.
    pub threads: Option<usize>,
    /// Whether requests come over io_uring.
    pub io_uring: RingChoice,
    /// Options of other layers, in order, as `name` or `name=value`: for the caller to interpret or
    /// refuse.
    pub others: Vec<(String, Option<String>)>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            flags: MountFlags::empty(),
            flags_off: MountFlags::empty(),
            default_permissions: true,
            remount: false,
            allow_other: None,
            threads: None,
            io_uring: RingChoice::default(),
            others: Vec::new(),
        }
    }
}

/// Options that switch a flag of mount(2) on or off.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    // mount(8) keeps "dev" to itself, and libfuse's mount.fuse adds it to every mount: this one
    // reaches us as it was given.
    ("allow_dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
];

/// Names of the options that switch flags.
pub fn flag_names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|(name, ..)| *name)
}

/// Options that mean something to mount(8), systemd or fsck only.
const FOR_OTHERS: &[&str] =
    &["defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev", "_rnetdev"];

/// Options with values that are decided elsewhere; the last three stand in the mount table, from
/// where mount(8) repeats them at a remount.
const DECIDED: &[&str] = &["comment", "user", "fsname", "subtype", "user_id", "group_id", "max_read"];

impl MountOptions {
    /// Parses the text after `-o`. May be called several times; later options win.
    pub fn add(&mut self, text: &str) -> Result<(), ParseError> {
        for option in text.split(',').filter(|option| !option.is_empty()) {
            self.add_one(option)?;
        }
        Ok(())
    }

    /// Flags for a new mount. Linux opens device files without asking the file system, so nobody's
    /// permission is checked there: devices work only where `dev` or `allow_dev` asks for them.
    pub fn flags_of_mount(&self) -> MountFlags {
        self.flags | (MountFlags::NODEV - self.flags_off)
    }

    /// Flags for the remount of a mount that has these [`RESTRICTIONS`].
    pub fn flags_of_remount(&self, restrictions: MountFlags) -> MountFlags {
        self.flags | ((restrictions & RESTRICTIONS) - self.flags_off)
    }

    fn add_one(&mut self, option: &str) -> Result<(), ParseError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let wrong = |expected| ParseError::Value { option: option.to_owned(), expected };
        if let Some((_, flag, on)) = FLAGS.iter().find(|(known, ..)| *known == name) {
            if value.is_some() {
                return Err(wrong("no value"));
            }
            self.flags.set(*flag, *on);
            self.flags_off.set(*flag, !*on);
            return Ok(());
        }
        let ignored = FOR_OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-");
        match (name, value) {
            (name, Some(_)) if DECIDED.contains(&name) => {}
            _ if ignored => {}
            ("remount", None) => self.remount = true,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("default_permissions", None) => self.default_permissions = true,
            ("no_default_permissions", None) => self.default_permissions = false,
            (
                "remount" | "allow_other" | "noallow_other" | "default_permissions" | "no_default_permissions",
                Some(_),
            ) => return Err(wrong("no value")),
            ("threads", value) => {
                let threads = value.and_then(|value| value.parse().ok()).filter(|threads| (1..=1024).contains(threads));
                self.threads = Some(threads.ok_or_else(|| wrong("a number from 1 to 1024"))?);
            }
            ("io_uring", value) => {
                let choice = value.and_then(|value| value.parse().ok());
                self.io_uring = choice.ok_or_else(|| wrong("auto, on or off"))?;
            }
            _ => self.others.push((name.to_owned(), value.map(str::to_owned))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions, ParseError> {
        let mut options = MountOptions::default();
        options.add(text).map(|()| options)
    }

    #[test]
    fn sources_name_management_servers_and_file_system() {
        let source: MountSource = "mgs1:9800,[fe80::1],10.0.0.1:/stria".parse().unwrap();
        assert_eq!(source.mgs.to_texts(), ["mgs1:9800", "[fe80::1]:988", "10.0.0.1:988"]);
        assert_eq!(source.fsname, "stria");
        assert_eq!(source.to_string(), "mgs1:9800,[fe80::1]:988,10.0.0.1:988:/stria");
        let as_in_lustre: MountSource = "mgs1:9800:mgs2:988:/stria".parse().unwrap();
        assert_eq!(as_in_lustre.to_string(), "mgs1:9800,mgs2:988:/stria");
    }

    #[test]
    fn other_sources_are_refused() {
        for text in ["", "/dev/sda1", ":/stria", "mgs:port:/stria", ":9800:/stria", "mgs:9800", "mgs:9800,:/stria"] {
            assert!(matches!(text.parse::<MountSource>(), Err(ParseError::Source(_))), "{text}");
        }
        for text in ["mgs:9800:/", "mgs:9800:/ninechars", "mgs:9800:/a/b", "mgs:9800:/a b"] {
            assert!(matches!(text.parse::<MountSource>(), Err(ParseError::FsName { .. })), "{text}");
        }
    }

    #[test]
    fn flags_are_set_and_taken_back_in_order() {
        let options = parse("defaults,ro,nosuid,nodev,rw,dev").unwrap();
        assert_eq!(options.flags, MountFlags::NOSUID);
    }

    #[test]
    fn devices_work_only_where_they_are_asked_for() {
        let nodev = |text: &str| parse(text).unwrap().flags_of_mount().contains(MountFlags::NODEV);
        for text in ["", "rw,suid", "nodev", "dev,nodev"] {
            assert!(nodev(text), "{text}");
        }
        for text in ["dev", "allow_dev", "nodev,dev"] {
            assert!(!nodev(text), "{text}");
        }
        assert_eq!(parse("ro,dev").unwrap().flags_of_mount(), MountFlags::RDONLY);
    }

    #[test]
    fn a_remount_keeps_restrictions_that_it_does_not_name() {
        let remount = |text: &str, now: MountFlags| parse(text).unwrap().flags_of_remount(now);
        let now = MountFlags::NODEV | MountFlags::NOSUID;
        assert_eq!(remount("remount,ro", now), now | MountFlags::RDONLY);
        assert_eq!(remount("remount,ro", MountFlags::RDONLY), MountFlags::RDONLY, "a mount with devices keeps them");
        assert_eq!(remount("remount,rw,dev", now | MountFlags::RDONLY), MountFlags::NOSUID);
        assert_eq!(remount("remount,exec,suid,nodev", RESTRICTIONS), MountFlags::NODEV);
    }

    #[test]
    fn what_is_meant_for_others_is_ignored_and_the_unknown_is_passed_on() {
        let text = "_netdev,x-systemd.automount,comment=a b,timeout=30,,flag,threads=3,io_uring=off,allow_other";
        let options = parse(text).unwrap();
        let others = [("timeout".to_owned(), Some("30".to_owned())), ("flag".to_owned(), None)];
        assert_eq!(options.others, others);
        assert_eq!((options.threads, options.allow_other), (Some(3), Some(true)));
        assert_eq!((options.io_uring, MountOptions::default().io_uring), (RingChoice::Off, RingChoice::Auto));
        assert_eq!(options.flags, MountFlags::empty());
    }

    #[test]
    fn a_remount_repeats_what_the_mount_table_shows() {
        let text = "ro,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576,dev,suid";
        let options = parse(text).unwrap();
        assert_eq!(options.flags, MountFlags::RDONLY | MountFlags::RELATIME);
        assert!(options.remount && options.default_permissions && options.others.is_empty());
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let (none, threads, io_uring) = ("no value", "a number from 1 to 1024", "auto, on or off");
        for (text, expected) in [
            ("ro=1", none),
            ("remount=1", none),
            ("threads", threads),
            ("threads=0", threads),
            ("threads=x", threads),
            ("threads=1025", threads),
            ("io_uring", io_uring),
            ("io_uring=yes", io_uring),
            ("allow_other=yes", none),
            ("default_permissions=1", none),
            ("no_default_permissions=1", none),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert_eq!(refused, format!("mount option {text}: expected {expected}"));
        }
    }
}
