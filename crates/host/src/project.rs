//! The project id of a file, which Linux shows in `struct fsxattr` only.

use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
};

/// Bytes of `struct fsxattr`.
pub const FSXATTR_BYTES: usize = 28;
/// Where it has the project id.
pub const PROJECT: Range<usize> = 12..16;
/// Number of the ioctl that reads it.
pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;

/// The project id of a regular file or directory; 0 for other kinds, and on file systems without
/// project ids. The caller needs permission to read the file.
pub fn project_of(path: &Path) -> io::Result<u32> {
    let kind = path.symlink_metadata()?.file_type();
    if kind.is_symlink() || kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Ok(0);
    }
    // Another kind of file may have taken the name since: it is neither followed nor waited for.
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let mut structure = [0_u8; FSXATTR_BYTES];
    // SAFETY: the descriptor is open, and the ioctl writes a `struct fsxattr`, which has these
    // bytes.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR.into(), structure.as_mut_ptr()) };
    if outcome == 0 {
        let project = structure[PROJECT].try_into().expect("4 bytes");
        return Ok(u32::from_ne_bytes(project));
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EOPNOTSUPP)) => Ok(0),
        error => Err(error),
    }
}
