//! One descriptor of `/dev/fuse`. Every worker has its own clone: a request must be answered on the
//! descriptor it was read from, and clones spare the workers a common queue of requests in
//! progress.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::buffer::Buffer;
use crate::protocol::reply::OutHeader;

/// Makes a freshly opened `/dev/fuse` a clone of another (FUSE_DEV_IOC_CLONE: `_IOR(229, 0, u32)`).
const IOCTL_CLONE: libc::c_ulong = 0x8004_e500;
/// Most pieces of one writev(2) (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// An answer that says for how long the kernel may keep something comes too late if the kernel got
/// it so long after that was decided: it counts from when it gets it. A process that was not
/// stopped meanwhile needs microseconds. What an answer says ends a quarter of the lease before the
/// target evicts this client, which is more than this.
const LATE: Duration = Duration::from_secs(1);

/// What is done about an answer that came too late.
type WhenLate = Box<dyn Fn() + Send + Sync>;

/// What a read of the device gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request is in the buffer.
    Request,
    /// A signal came, or a request was withdrawn while being read: read again.
    Again,
    /// The file system was unmounted or its connection aborted: no request will ever come.
    Ended,
}

/// An open `/dev/fuse`.
pub struct Device {
    file: OwnedFd,
    /// Of all descriptors of the mount.
    when_late: Arc<OnceLock<WhenLate>>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Device {
    /// Opens the device; it belongs to no mount yet.
    pub fn open() -> io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        Ok(Self::from_descriptor(file.into()))
    }

    /// Takes a descriptor that already belongs to a mount (from fusermount3).
    pub fn from_descriptor(file: OwnedFd) -> Self {
        Self { file, when_late: Arc::default() }
    }

    /// Another descriptor of the same mount, which must have answered INIT.
    pub fn try_clone(&self) -> io::Result<Self> {
        let clone = Self { when_late: self.when_late.clone(), ..Self::open()? };
        let mut original: u32 = self.file.as_raw_fd().unsigned_abs();
        // SAFETY: the ioctl reads one u32 from the pointer, which is valid for the call; the
        // descriptor is open.
        let result = unsafe { libc::ioctl(clone.file.as_raw_fd(), IOCTL_CLONE, &raw mut original) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(clone)
    }

    /// Number of the descriptor, for mount(2).
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Waits for the next request.
    pub fn receive(&self, buffer: &mut Buffer) -> io::Result<Received> {
        match rustix::io::read(&self.file, buffer.space()) {
            Ok(0) => Ok(Received::Ended),
            Ok(bytes) => {
                buffer.set_filled(bytes);
                Ok(Received::Request)
            }
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Received::Again),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Ended),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a request: `error` is 0 or a positive errno, in which case nothing else is sent. An
    /// answer the kernel no longer waits for is success.
    pub fn send(&self, unique: u64, error: i32, head: &[u8], pieces: &[Bytes]) -> io::Result<()> {
        if pieces.len() + 2 > PIECES_MAX {
            return self.send(unique, error, head, &[Bytes::from(pieces.concat())]);
        }
        let body = if error == 0 { head.len() + pieces.iter().map(Bytes::len).sum::<usize>() } else { 0 };
        let header = OutHeader { length: (size_of::<OutHeader>() + body) as u32, error: -error, unique };
        let result = if body == 0 {
            rustix::io::write(&self.file, header.as_bytes())
        } else {
            let mut slices = Vec::with_capacity(2 + pieces.len());
            slices.extend([IoSlice::new(header.as_bytes()), IoSlice::new(head)]);
            slices.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
            rustix::io::writev(&self.file, &slices)
        };
        match result {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says what is to be done when the kernel got an answer too late. It must not wait.
    pub fn set_when_late(&self, when_late: WhenLate) {
        assert!(self.when_late.set(when_late).is_ok(), "a device has one session");
    }

    /// The kernel has just got an answer of which it was decided at this moment what it may keep.
    pub fn given(&self, decided: Instant) {
        if decided.elapsed() > LATE
            && let Some(when_late) = self.when_late.get()
        {
            when_late();
        }
    }

    /// Sends a notification.
    pub fn notify(&self, code: i32, body: &[&[u8]]) -> Result<(), Errno> {
        let length = size_of::<OutHeader>() + body.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { length: length as u32, error: code, unique: 0 };
        let mut slices = vec![IoSlice::new(header.as_bytes())];
        slices.extend(body.iter().map(|part| IoSlice::new(part)));
        rustix::io::writev(&self.file, &slices).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
