//! Mounting by users other than root: the set-uid helper `fusermount3` of libfuse mounts and passes
//! the opened device back.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
};

use crate::session::device::Device;

/// Name of the helper, found through PATH.
const HELPER: &str = "fusermount3";

/// Mounts `point` with these options (`name,name=value`). The helper's complaint becomes the
/// error's text.
pub fn mount(point: &Path, options: &str) -> io::Result<Device> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The helper accepts any descriptor for the answer; its standard input needs no inheritance
    // tricks.
    let child = Command::new(HELPER)
        .args(["-o", options, "--"])
        .arg(point)
        .env("_FUSE_COMMFD", "0")
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(explain_absence)?;
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(complaint(&output.stderr)));
    }
    Ok(Device::from_descriptor(received?))
}

/// Unmounts `point`; `lazy`: also if it is busy.
pub fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    let output = command.output().map_err(explain_absence)?;
    if output.status.success() {
        return Ok(());
    }
    let text = complaint(&output.stderr);
    let busy = text.contains("busy");
    Err(if busy { io::Error::new(io::ErrorKind::ResourceBusy, text) } else { io::Error::other(text) })
}

fn explain_absence(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        let text = "fusermount3 is not installed; it is needed to mount without being root (Debian: package fuse3)";
        // Not of the kind "not found": the mount point is there.
        return io::Error::other(text);
    }
    error
}

fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr).trim().replace('\n', "; ");
    if text.is_empty() { format!("{HELPER} failed without saying why") } else { text }
}

/// The descriptor that comes with one byte over the socket.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::other(format!("{HELPER} sent no descriptor")))
}

/// A value as it may stand in the helper's option list, where a comma ends an option.
pub fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_and_backslashes_are_escaped() {
        assert_eq!(escape("a:1,b:2:/stria"), "a:1\\,b:2:/stria");
        assert_eq!(escape("a\\b"), "a\\\\b");
    }
}
