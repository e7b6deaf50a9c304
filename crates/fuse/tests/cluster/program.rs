//! Tests that run again as a program of their own, as programs on a mount are.
//!
//! A page fault on a file of the mount waits for the mount, and may hold the lock of the address
//! space meanwhile. The mount needs that lock if it is the same process, for instance to start a
//! thread: then both wait for ever. So whatever maps files of a mount is another process than the
//! mount.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Names the mount point to the program.
const POINT: &str = "STRIA_TEST_MOUNT_POINT";

/// In the program: the mount point.
pub fn mount_point() -> Option<PathBuf> {
    env::var_os(POINT).map(PathBuf::from)
}

/// A test of this binary as a program. Ends with the end of its standard input, if it looks at it.
pub struct Program(Child);

impl Program {
    /// Starts it.
    pub fn start(test: &str, point: &Path) -> Program {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(POINT, point);
        Program(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// It is to end, and to have succeeded.
    pub fn succeed(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the program failed: {status}");
    }
}

impl Drop for Program {
    /// Of a test that failed: its mount is about to end. What has ended cannot be killed.
    fn drop(&mut self) {
        if self.0.kill().is_ok() {
            let _ = self.0.wait();
        }
    }
}
