//! A process next to a mount's daemon that unblocks the programs that use the mount if the daemon
//! is killed.
//!
//! A thread of the daemon may wait in the kernel for the lock of a directory, to withdraw a name in
//! it. A program holds that lock until the daemon answers it. If the daemon is killed then, the
//! thread lives on, keeps the connection to the kernel open, and both wait forever. The guard sees
//! a daemon of which only such threads are left, and aborts the connection.
//!
//! Life cycle: the guard is a child of the daemon, and ends with it. Downside: one small process
//! for each mount.

use std::{
    io,
    os::unix::process::{CommandExt, parent_id},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use clap::Args;
use fuse::mount::Mount;
use rustix::mount::{UnmountFlags, unmount};

/// Between two looks at the daemon. One that exits in order is in this state for less time.
const PERIOD: Duration = Duration::from_millis(500);

/// `stria mount-guard`: what it guards.
#[derive(Clone, Debug, Args)]
pub struct MountGuardArgs {
    /// The daemon: this process's parent
    process: u32,
    /// Number of its connection to the kernel
    connection: u32,
    /// Where it is mounted
    point: PathBuf,
}

/// A guard, ended when dropped.
pub(crate) struct MountGuard(Option<Child>);

impl MountGuard {
    /// Starts a guard for a mount of this process. Without one the mount works all the same.
    pub fn start(mount: &Mount) -> Self {
        let started = Self::spawn(mount);
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot guard the mount: programs that use it may hang if this process is killed");
        }
        Self(started.ok())
    }

    fn spawn(mount: &Mount) -> io::Result<Child> {
        let connection = mount.connection().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mount-guard").arg(std::process::id().to_string()).arg(connection.to_string()).arg(mount.point());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals from a terminal are for the daemon.
        command.process_group(0).spawn()
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take()
            && let Err(error) = child.kill().and_then(|()| child.wait())
        {
            tracing::debug!(%error, "cannot end the process that guards a mount");
        }
    }
}

/// Guards the parent until it is gone.
pub fn run(arguments: &MountGuardArgs) -> anyhow::Result<()> {
    let mut was_dying = false;
    while parent_id() == arguments.process {
        let is_dying = is_zombie(arguments.process);
        if is_dying && was_dying {
            abort(arguments.connection, &arguments.point)?;
        }
        was_dying = is_dying;
        thread::sleep(PERIOD);
    }
    Ok(())
}

/// Whether a process has ended but for some of its threads. (As long as it has any, it is still the
/// parent of its children.)
fn is_zombie(process: u32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    text.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('Z'))
}

/// Ends a connection: all its requests fail.
fn abort(connection: u32, point: &Path) -> io::Result<()> {
    if std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1").is_ok() {
        return Ok(());
    }
    // The file system of the connections is not mounted. Whether the mount is busy does not matter.
    match unmount(point, UnmountFlags::FORCE) {
        Err(error) if error != rustix::io::Errno::BUSY => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_ended_are_told_from_others() {
        assert!(!is_zombie(std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        let id = child.id();
        while !is_zombie(id) {
            thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_zombie(id));
    }
}
