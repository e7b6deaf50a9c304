//! Keys in files: who may read a key file, and where it is looked for.
//!
//! The server key is made when the management service is formatted, and copied into the directory
//! of each target; the client key is next to it in the management service's. Other hosts get theirs
//! by hand, as SSH keys do.
//!
//! A key file holds comments and one line: kind and version, the file system's name, 64 hexadecimal
//! digits. Symbolic links are followed; mode and owner are those of the file itself.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rpc::{Key, Keyring, auth::KeyKind};
use rustix::process::geteuid;
use types::{FsError, Refusal};

use crate::durable_file;

/// File of the server key in a target's directory.
pub const SERVER_KEY_FILE: &str = "server.key";
/// File of the client key in the directory of the management service.
pub const CLIENT_KEY_FILE: &str = "client.key";
/// Where administrators put keys.
const DIRECTORY: &str = "/etc/stria";
/// Variable of the environment that names another directory of keys, for users who have no access
/// to the usual one.
const DIRECTORY_VARIABLE: &str = "STRIA_KEY_DIR";
/// Largest file that is read: a comment and a key.
const BYTES_MAX: u64 = 4096;
/// Bits of a mode that let others than the owner in.
const OTHERS: u32 = 0o077;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read or written.
    #[error("cannot use key {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read it.
    #[error("key {} may be read by others (mode {mode:03o}): chmod 600 it, or make a new one", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another user could replace it.
    #[error("key {} belongs to user {owner}; it must belong to you or root", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It belongs to another file system.
    #[error("key {} is of file system '{found}', not '{expected}'", .path.display())]
    OtherFileSystem {
        /// The file.
        path: PathBuf,
        /// The file system it names.
        found: String,
        /// The one that was asked for.
        expected: String,
    },
    /// It holds something else.
    #[error("{} does not hold a {expected}", .path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// What was to be there.
        expected: KeyKind,
    },
    /// It holds the key of clients where that of servers is needed.
    #[error("{} holds a client key; the server key is needed here", .path.display())]
    ClientKey {
        /// The file.
        path: PathBuf,
    },
    /// There is none where it is looked for.
    #[error(
        "no {kind} of file system '{fsname}': {} is missing; copy {} there from the directory of the management service, or name it with {option}",
        .path.display(), file_name(*.kind)
    )]
    Missing {
        /// Which key.
        kind: KeyKind,
        /// The file system.
        fsname: String,
        /// Where it was looked for.
        path: PathBuf,
        /// How the command is told another file.
        option: &'static str,
    },
}

/// Name of a key in the directory of the management service.
fn file_name(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Client => CLIENT_KEY_FILE,
        KeyKind::Server => SERVER_KEY_FILE,
    }
}

/// The word that begins the line of a key.
fn tag(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Server => "stria-server-key-1",
        KeyKind::Client => "stria-client-key-1",
    }
}

/// The keys of a file. Where the client key of a file system is asked for, its server key will do:
/// the client key is computed from it, and nothing else is kept.
pub fn read(path: &Path, fsname: &str, kind: KeyKind) -> Result<Keyring, KeyFileError> {
    read_owned(path, fsname, kind, &[])
}

/// The server key in a target's directory, which may also belong to the owner of the directory.
pub fn read_of_target(directory: &Path, fsname: &str) -> Result<Keyring, KeyFileError> {
    let error = |source| KeyFileError::Io { path: directory.to_owned(), source };
    let owner = std::fs::metadata(directory).map_err(error)?.uid();
    read_owned(&directory.join(SERVER_KEY_FILE), fsname, KeyKind::Server, &[owner])
}

fn read_owned(path: &Path, fsname: &str, kind: KeyKind, owners: &[u32]) -> Result<Keyring, KeyFileError> {
    let error = |source| KeyFileError::Io { path: path.to_owned(), source };
    let not_a_key = || KeyFileError::NotAKey { path: path.to_owned(), expected: kind };
    // A pipe is not waited for.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(error)?;
    let found = file.metadata().map_err(error)?;
    if !found.is_file() || found.len() > BYTES_MAX {
        return Err(not_a_key());
    }
    if found.mode() & OTHERS != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode: found.mode() & 0o777 });
    }
    if ![0, geteuid().as_raw()].contains(&found.uid()) && !owners.contains(&found.uid()) {
        return Err(KeyFileError::Foreign { path: path.to_owned(), owner: found.uid() });
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(error)?;
    let text = String::from_utf8(bytes).map_err(|_| not_a_key())?;
    let words: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect();
    let [found, named, digits] = words[..] else { return Err(not_a_key()) };
    let kinds = [KeyKind::Server, KeyKind::Client];
    let held = kinds.into_iter().find(|kind| found == tag(*kind)).ok_or_else(not_a_key)?;
    let key: Key = digits.parse().map_err(|_| not_a_key())?;
    if named != fsname {
        let (found, expected) = (named.to_owned(), fsname.to_owned());
        return Err(KeyFileError::OtherFileSystem { path: path.to_owned(), found, expected });
    }
    match (held, kind) {
        (KeyKind::Server, KeyKind::Server) => Ok(Keyring::server(key)),
        (KeyKind::Server, KeyKind::Client) => Ok(Keyring::server(key).of_clients()),
        (KeyKind::Client, KeyKind::Client) => Ok(Keyring::client(key)),
        (KeyKind::Client, KeyKind::Server) => Err(KeyFileError::ClientKey { path: path.to_owned() }),
    }
}

/// Where the key of this file system is looked for on this host.
pub fn default_path(fsname: &str, kind: KeyKind) -> PathBuf {
    let directory = std::env::var_os(DIRECTORY_VARIABLE).map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from);
    directory.join(format!("{fsname}.{}", file_name(kind)))
}

/// Where it is looked for on other hosts.
pub fn usual_path(fsname: &str, kind: KeyKind) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{fsname}.{}", file_name(kind)))
}

/// An error of a process that used the key in this file; with the name of the file, if the key may
/// be the reason.
pub fn named_in(error: anyhow::Error, named: Option<&Path>, fsname: &str, kind: KeyKind) -> anyhow::Error {
    let is_unproven = error.chain().any(|cause| match cause.downcast_ref() {
        Some(FsError::Refused(refusal)) => matches!(**refusal, Refusal::Unproven(_)),
        _ => false,
    });
    if !is_unproven {
        return error;
    }
    let path = named.map_or_else(|| default_path(fsname, kind), Path::to_owned);
    anyhow::anyhow!("{error:#}; the key here is in {}", path.display())
}

/// The keys in the file that was named, or else in the usual place. `option`: how the command is
/// told another file.
pub fn find(named: Option<&Path>, fsname: &str, kind: KeyKind, option: &'static str) -> Result<Keyring, KeyFileError> {
    if let Some(path) = named {
        return read(path, fsname, kind);
    }
    let path = default_path(fsname, kind);
    match read(&path, fsname, kind) {
        Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(KeyFileError::Missing { kind, fsname: fsname.to_owned(), path, option })
        }
        found => found,
    }
}

/// Writes a key durably to a new file that only its owner can read.
pub fn write(path: &Path, fsname: &str, kind: KeyKind, key: &Key) -> Result<(), KeyFileError> {
    let write = || -> io::Result<()> {
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(path)?;
        writeln!(
            file,
            "# The {kind} of file system '{fsname}'. Any program that has it can act as one of its {}.",
            holders(kind)
        )?;
        writeln!(file, "{} {fsname} {}", tag(kind), key.to_text())?;
        file.sync_all()?;
        durable_file::sync_name(path)
    };
    write().map_err(|source| KeyFileError::Io { path: path.to_owned(), source })
}

fn holders(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Server => "servers",
        KeyKind::Client => "clients",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn key() -> Key {
        "0123456789abcdef".repeat(4).parse().unwrap()
    }

    fn refusal(path: &Path, kind: KeyKind) -> String {
        read(path, "stria", kind).unwrap_err().to_string()
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_a_client_key_is_no_server_key() {
        let place = tempfile::tempdir().unwrap();
        let (server, client) = (place.path().join("server"), place.path().join("client"));
        write(&server, "stria", KeyKind::Server, &key()).unwrap();
        write(&client, "stria", KeyKind::Client, &key()).unwrap();
        assert_eq!(std::fs::metadata(&server).unwrap().mode() & 0o777, 0o600);
        let keys = read(&server, "stria", KeyKind::Server).unwrap();
        assert_eq!(keys.key(KeyKind::Server), Some(&key()));
        let derived = read(&server, "stria", KeyKind::Client).unwrap();
        assert_eq!((derived.key(KeyKind::Server), derived.key(KeyKind::Client)), (None, keys.key(KeyKind::Client)));
        assert_eq!(read(&client, "stria", KeyKind::Client).unwrap().key(KeyKind::Client), Some(&key()));
        assert!(
            refusal(&client, KeyKind::Server).ends_with("client holds a client key; the server key is needed here")
        );
        let again = write(&server, "stria", KeyKind::Server, &key());
        assert!(matches!(again, Err(KeyFileError::Io { .. })), "a key is never replaced");
    }

    #[test]
    fn a_key_of_another_file_system_is_refused_by_both_names() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("k");
        write(&path, "other", KeyKind::Client, &key()).unwrap();
        assert!(refusal(&path, KeyKind::Client).ends_with("k is of file system 'other', not 'stria'"));
    }

    #[test]
    fn a_key_that_others_can_read_or_own_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("k");
        write(&path, "stria", KeyKind::Server, &key()).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o610] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = refusal(&path, KeyKind::Server);
            assert!(refused.contains(&format!("(mode {mode:03o}): chmod 600 it")), "{refused}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if geteuid().is_root() {
            chown(&path, Some(4711), None).unwrap();
            let refused = refusal(&path, KeyKind::Server);
            assert!(refused.ends_with("belongs to user 4711; it must belong to you or root"), "{refused}");
            let target = place.path().join("target");
            std::fs::create_dir(&target).unwrap();
            std::fs::rename(&path, target.join(SERVER_KEY_FILE)).unwrap();
            let refused = read_of_target(&target, "stria").unwrap_err();
            assert!(matches!(refused, KeyFileError::Foreign { owner: 4711, .. }), "{refused}");
            chown(&target, Some(4711), None).unwrap();
            read_of_target(&target, "stria").unwrap();
        }
    }

    #[test]
    fn what_is_no_key_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("k");
        let digits = key().to_text();
        let long = "x".repeat(BYTES_MAX as usize + 1);
        let texts = [
            String::new(),
            "\0".to_owned(),
            long,
            "# a comment only\n".to_owned(),
            format!("stria-client-key-1 {digits}"),
            format!("stria-client-key-2 stria {digits}"),
            "stria-client-key-1 stria 12".to_owned(),
            format!("stria-client-key-1 stria {digits}\nstria-client-key-1 stria {digits}"),
        ];
        for text in texts.iter().map(String::as_bytes).chain([&b"\xff\xfe"[..]]) {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let refused = refusal(&path, KeyKind::Client);
            assert!(refused.ends_with("does not hold a client key"), "{refused}");
        }
        assert!(refusal(place.path(), KeyKind::Client).ends_with("does not hold a client key"), "a directory");
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(refusal(&pipe, KeyKind::Client).ends_with("does not hold a client key"), "a pipe without a writer");
    }

    #[test]
    fn links_lead_to_keys_and_what_is_missing_is_named_with_a_remedy() {
        let place = tempfile::tempdir().unwrap();
        let (path, link) = (place.path().join("k"), place.path().join("link"));
        symlink(&path, &link).unwrap();
        let refused = read(&link, "stria", KeyKind::Client).unwrap_err();
        assert!(matches!(refused, KeyFileError::Io { .. }), "{refused}");
        write(&path, "stria", KeyKind::Client, &key()).unwrap();
        read(&link, "stria", KeyKind::Client).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refusal(&link, KeyKind::Client).contains("mode 644"), "that of the file, not of the link");
        let missing = find(None, "nosuch", KeyKind::Client, "--key FILE").unwrap_err().to_string();
        assert!(missing.contains("/etc/stria/nosuch.client.key is missing; copy client.key there"), "{missing}");
        assert!(missing.ends_with(", or name it with --key FILE"), "{missing}");
    }

    #[test]
    fn a_key_that_was_refused_is_named() {
        let refused = FsError::from(Refusal::Unproven("other key".to_owned()));
        let refused = anyhow::Error::new(refused).context("refused by MGS a:1");
        let named = named_in(refused, Some(Path::new("/k")), "stria", KeyKind::Client);
        assert_eq!(named.to_string(), "refused by MGS a:1: other key; the key here is in /k");
        let other = named_in(FsError::Busy.into(), None, "stria", KeyKind::Client);
        assert_eq!(other.to_string(), "device or resource busy");
        let usual = named_in(FsError::from(Refusal::Unproven("no".to_owned())).into(), None, "stria", KeyKind::Server);
        assert_eq!(usual.to_string(), "no; the key here is in /etc/stria/stria.server.key");
    }
}
