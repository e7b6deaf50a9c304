//! Attends to a pending request: ends it when its caller is being killed, and logs once what a long
//! wait is for.
//!
//! The kernel sends INTERRUPT once per request, at the first signal, which need not be the fatal
//! one, and which `/proc` may show a moment later. So from then on the caller's signals are checked
//! repeatedly, at growing intervals, until the request is answered. If one is fatal, the caller
//! gets EINTR, and the work is dropped. The client is made for callers that give up: unsent
//! requests are not sent; sent requests take effect once or not at all; operations that must be
//! completed (opens, closes, appends) are completed in the background.
//!
//! Over io_uring, Linux 6.18 sends no INTERRUPT for a signal that comes between the system call and
//! the delivery of the request to the ring. So the signals of a caller are looked at once, soon
//! after its request had to wait, and one that is found counts as an INTERRUPT.
//!
//! A process that exits closes its files, and the kernel does not interrupt this (FLUSH, which
//! releases fcntl locks) for any signal. Such a process waits until its wait is logged, and no
//! longer.
//!
//! Downside: a write that was sent may take effect after its process has ended, within the
//! `timeout`.

use std::{fs, sync::Arc, time::Duration};

use rpc::ImportState;
use tokio::time::{Instant, sleep, timeout_at};
use types::{FsError, FsResult, InodeNumber, MdtIndex};

use super::{call::Adapter, caller::Caller, fatal};
use crate::kernel_cache::WaitingRequest;
use crate::protocol::Opcode;
use crate::session::Answer;

/// After so long, the log says what a request waits for.
const LONG: Duration = Duration::from_secs(3);
/// After so long, a signal whose INTERRUPT the kernel did not send is looked for: rarely, so that
/// few requests are looked at, and soon enough for a user who presses ^C.
const SIGNAL_LOOK: Duration = Duration::from_millis(100);
/// First and longest pause between two looks at the signals of a caller that was interrupted.
const LOOK_PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// A request that may have to wait.
pub struct Wait {
    pub adapter: Arc<Adapter>,
    pub opcode: Opcode,
    pub caller: Caller,
    pub inode: InodeNumber,
    pub unique: u64,
    pub trace: u64,
}

/// Does the work of a request, unless its caller is being killed meanwhile.
pub async fn attend<F>(wait: Wait, mut work: F) -> FsResult<Answer>
where
    F: Future<Output = FsResult<Answer>> + Unpin,
{
    tokio::select! {
        biased;
        answer = &mut work => answer,
        // Begins only if the work is pending.
        () = wait.until_killed() => Err(FsError::Interrupted),
    }
}

impl Wait {
    async fn until_killed(&self) {
        let mut registration = self.adapter.pending.register(self.unique);
        let (opcode, thread) = (self.opcode, self.caller.thread);
        let since = std::time::Instant::now();
        let request = WaitingRequest { opcode, node: self.inode.0, thread, since };
        let _entry = self.adapter.kernel.waiting().enter(self.unique, request);
        let long = Instant::now() + LONG;
        let mut told = false;
        let look = Instant::now() + SIGNAL_LOOK;
        if timeout_at(look, registration.interrupted()).await.is_ok() {
            return self.until_fatal(long, told).await;
        }
        if fatal::has_signal(self.caller.thread) {
            self.adapter.interrupts.interrupt(self.unique);
            return self.until_fatal(long, told).await;
        }
        if timeout_at(long, registration.interrupted()).await.is_err() {
            self.tell();
            told = true;
            if self.is_flush_of_the_dying() {
                return;
            }
            registration.interrupted().await;
        }
        self.until_fatal(long, told).await;
    }

    /// Checks the signals of a caller that was interrupted until one is fatal.
    async fn until_fatal(&self, long: Instant, mut told: bool) {
        let (mut pause, longest) = LOOK_PAUSES;
        while !fatal::is_being_killed(self.caller.thread) {
            sleep(pause).await;
            pause = longest.min(2 * pause);
            if !told && Instant::now() >= long {
                self.tell();
                told = true;
            }
            if told && self.is_flush_of_the_dying() {
                return;
            }
        }
    }

    /// A process that is ending does not wait for others in close(2).
    fn is_flush_of_the_dying(&self) -> bool {
        self.opcode == Opcode::Flush && fatal::is_ending(self.caller.thread)
    }

    fn tell(&self) {
        let thread = self.caller.thread;
        let program = fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
        let (operation, program, inode) = (self.opcode.label(), program.trim(), self.inode);
        let seconds = LONG.as_secs();
        if self.opcode == Opcode::SetLockWait {
            tracing::debug!(thread, program, %inode, "a process has waited {seconds} s for a lock that another process holds");
            return;
        }
        let file_system = &self.adapter.file_system;
        let awaited = describe(&file_system.awaited(self.trace), &file_system.awaited_elsewhere(self.trace));
        tracing::warn!(operation, thread, program, %inode, "a process has waited {seconds} s for {awaited}");
    }
}

/// What a request waits for, in words; `elsewhere`: which MDTs others need for it.
fn describe(awaited: &[(String, ImportState)], elsewhere: &[MdtIndex]) -> String {
    let words = |(target, state): &(String, ImportState)| match state {
        ImportState::Full => format!("an answer from {target}"),
        ImportState::Recover => format!("the recovery of {target}"),
        _ => format!("a connection to {target}"),
    };
    let needed = |mdt: &MdtIndex| format!("{mdt}, which another metadata target needs for this");
    match (awaited, elsewhere) {
        ([], []) => "other users of the file, or a server in this process".to_owned(),
        (awaited, []) => awaited.iter().map(words).collect::<Vec<_>>().join(", "),
        (_, elsewhere) => elsewhere.iter().map(needed).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_is_named() {
        let target = |name: &str, state| (name.to_owned(), state);
        let both = [target("s-MDT0000", ImportState::Full), target("s-OST0001", ImportState::Disconnected)];
        assert_eq!(describe(&both, &[]), "an answer from s-MDT0000, a connection to s-OST0001");
        assert_eq!(describe(&[target("s-MDT0000", ImportState::Recover)], &[]), "the recovery of s-MDT0000");
        assert_eq!(describe(&both, &[MdtIndex(2)]), "MDT0002, which another metadata target needs for this");
        assert!(describe(&[], &[]).contains("other users"));
    }
}
