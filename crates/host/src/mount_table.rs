//! The mount table: what is mounted where, as far as mounts and tools need it.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::mount::MountFlags;

/// Type of our mounts in the table.
pub const FILE_SYSTEM_TYPE: &str = "fuse.stria";

/// Flags that restrict what files on a mount can do. A remount that does not name them leaves them
/// as they are.
pub const RESTRICTIONS: MountFlags = MountFlags::NODEV.union(MountFlags::NOSUID).union(MountFlags::NOEXEC);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of its device.
    pub device: String,
    /// Directory it is mounted on.
    pub point: PathBuf,
    /// Type.
    pub kind: String,
    /// Source.
    pub source: String,
    /// Whether the file system itself is read-only, wherever it is mounted.
    pub read_only: bool,
    /// Those of [`RESTRICTIONS`](RESTRICTIONS) that hold here.
    pub restrictions: MountFlags,
}

/// Whether an access to a mount failed because the process that served it is gone: "Transport
/// endpoint is not connected"; or, over io_uring, where the kernel ends the connection in the
/// background, "Software caused connection abort" for requests that were queued meanwhile, and
/// "Operation canceled" for those that it was handing to a thread of the process.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// All mounts of this process's namespace, in order of mounting (later ones cover earlier ones).
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// What is mounted on exactly `point`: the topmost.
pub fn find(point: &Path) -> io::Result<Option<MountEntry>> {
    Ok(read()?.into_iter().rfind(|entry| entry.point == point))
}

/// Format: `id parent major:minor root point options [tag...] - type source superoptions`
/// (proc_pid_mountinfo(5)).
fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = words.nth(2)?;
    let point = words.nth(1)?;
    let own_options = words.next()?;
    words.find(|word| *word == b"-")?;
    let (kind, source, options) = (words.next()?, words.next()?, words.next()?);
    let text = |word| String::from_utf8_lossy(&unescape(word)).into_owned();
    Some(MountEntry {
        device: text(device),
        point: OsString::from_vec(unescape(point)).into(),
        kind: text(kind),
        source: text(source),
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
        restrictions: restrictions(own_options),
    })
}

fn restrictions(options: &[u8]) -> MountFlags {
    let flag = |option: &[u8]| match option {
        b"nodev" => MountFlags::NODEV,
        b"nosuid" => MountFlags::NOSUID,
        b"noexec" => MountFlags::NOEXEC,
        _ => MountFlags::empty(),
    };
    options.split(|byte| *byte == b',').map(flag).collect()
}

/// Blank, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_and_escapes_are_understood() {
        let table = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 22 0:40 / /mnt/with\\040blank rw,nosuid - fuse.stria mgs:9800:/stria rw,user_id=0\n\
            31 22 0:41 / /mnt/frozen ro - fuse.stria mgs:9800:/stria ro,user_id=0\n\
            32 22 0:40 / /mnt/bound ro - fuse.stria mgs:9800:/stria rw,user_id=0\n\
            garbage\n";
        let entries = parse(table);
        assert_eq!(entries.iter().map(|entry| entry.read_only).collect::<Vec<_>>(), [false, false, true, false]);
        let expected = MountEntry {
            device: "0:40".to_owned(),
            point: "/mnt/with blank".into(),
            kind: FILE_SYSTEM_TYPE.to_owned(),
            source: "mgs:9800:/stria".to_owned(),
            read_only: false,
            restrictions: MountFlags::NOSUID,
        };
        assert_eq!(entries[1], expected);
        assert_eq!(restrictions(b"rw,noexec,nodev,relatime"), MountFlags::NODEV | MountFlags::NOEXEC);
        assert_eq!(unescape(b"a\\134\\0"), b"a\\\\0");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(find(Path::new("/")).unwrap().is_some());
        assert_eq!(find(Path::new("/nothing/here")).unwrap(), None);
    }
}
