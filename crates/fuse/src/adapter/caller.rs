//! The caller of a request: credentials from its header, supplementary groups from `/proc` when a
//! decision depends on them.

use types::{Credentials, FsError, FsResult};

use crate::protocol::request::InHeader;

/// The process that made a request.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// File system user.
    pub uid: u32,
    /// File system group.
    pub gid: u32,
    /// The thread; 0 if unknown (write-back, or a process of a foreign pid namespace).
    pub thread: u32,
}

impl Caller {
    /// From the header of its request.
    pub fn new(header: &InHeader) -> Self {
        Self { uid: header.uid, gid: header.gid, thread: header.pid }
    }

    /// Runs an operation under the caller's credentials, first without supplementary groups; if the
    /// server answers that it needs them (in which case nothing has happened), looks them up and
    /// runs it once more. The kernel does not send them, and most decisions do without.
    pub async fn run<T, F>(&self, operation: impl Fn(Credentials) -> F) -> FsResult<T>
    where
        F: Future<Output = FsResult<T>>,
    {
        let credentials = Credentials { uid: self.uid, gid: self.gid, groups: None };
        match operation(credentials.clone()).await {
            Err(FsError::GroupsNeeded) => operation(Credentials { groups: Some(self.groups()), ..credentials }).await,
            result => result,
        }
    }

    /// The thread's supplementary groups. It waits for this request, so they cannot change
    /// meanwhile. Unknown threads have none: that can only deny what would be allowed.
    fn groups(&self) -> Vec<u32> {
        match std::fs::read_to_string(format!("/proc/{}/status", self.thread)) {
            Ok(status) => parse_groups(&status),
            Err(error) => {
                tracing::warn!(thread = self.thread, %error, "cannot look up supplementary groups; assuming none");
                Vec::new()
            }
        }
    }
}

/// The `Groups:` line of a `/proc/<pid>/status`.
fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_their_line() {
        let status = "Name:\tGroups: 9\nGid:\t5\t5\t5\t5\nFDSize:\t64\nGroups:\t4 24 4294967294 \nNStgid:\t1\n";
        assert_eq!(parse_groups(status), [4, 24, 4_294_967_294]);
        assert_eq!(parse_groups("Groups:\t\n"), Vec::<u32>::new());
        assert_eq!(parse_groups(""), Vec::<u32>::new());
    }

    #[test]
    fn the_own_thread_can_be_looked_up() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut own: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut found = Caller { uid: 0, gid: 0, thread }.groups();
        own.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, own);
    }

    #[test]
    fn groups_are_looked_up_once_and_only_if_needed() {
        use std::{
            pin::pin,
            task::{Context, Poll, Waker},
        };
        let caller = Caller { uid: 1, gid: 2, thread: 0 };
        for needs_groups in [false, true] {
            let calls = std::cell::Cell::new(0);
            let calls = &calls;
            let mut work = pin!(caller.run(|credentials| async move {
                calls.set(calls.get() + 1);
                if needs_groups && credentials.groups.is_none() {
                    return Err(FsError::GroupsNeeded);
                }
                Ok((credentials.uid, credentials.gid))
            }));
            let result = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(result, Poll::Ready(Ok((1, 2))));
            assert_eq!(calls.get(), if needs_groups { 2 } else { 1 });
        }
    }
}
