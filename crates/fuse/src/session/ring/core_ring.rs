//! The io_uring of one core, and the task on that core that serves it.
//!
//! The task waits, through the core's tokio runtime, for the ring's descriptor and for answers that
//! are to be passed on. One turn passes on all answers there are and fetches requests, in one
//! io_uring_enter(2), serves the requests, and repeats until nothing is left, or until
//! [`REQUESTS_PER_TURN`] have been served: then the core's other tasks and sockets have precedence.
//!
//! Life of an entry:
//! ```text
//! REGISTER -> in the kernel -> held (a request) -> answered -> COMMIT_AND_FETCH -> in the kernel ...
//!                    '-> an error: the kernel refused the entry (its memory serves another one, if the
//!                                  queue gets more), or the connection has ended
//! ```
//! Ends when the kernel has given back all entries, which it does when the last user of the mount
//! is gone. If the session stops before, because the mount was detached from its users, their
//! requests are answered with ENOTCONN until then, or until the cores are stopped.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use host::errno::Errno;
use io_uring::{IoUring, cqueue, squeue};
use rustix::event::EventfdFlags;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};
use zerocopy::FromBytes;

use super::held::{Answered, Commit, HeldEntry};
use super::memory::{EntryBlock, EntryBytes, EntryMemory};
use super::queues::{ENTRIES_FIRST, Queue};
use super::submission;
use crate::protocol::request::InHeader;
use crate::protocol::ring::decode_entry;
use crate::protocol::{Incoming, Opcode, Operation};
use crate::session::buffer::BufferPool;
use crate::session::device::Device;
use crate::session::dispatch::{self, Dispatcher};
use crate::session::responder::Responder;

/// Requests served before the core's other tasks have their turn.
const REQUESTS_PER_TURN: usize = 64;
/// Submissions that wait for one io_uring_enter(2); more are passed on in several.
const SUBMISSIONS_MAX: u32 = 128;
/// IORING_ENTER_GETEVENTS: also do what is deferred until we ask, which includes the delivery of
/// requests.
const GET_EVENTS: u32 = 1;
/// Attempts to give the queues their first entries while the kernel is short of memory.
const START_ATTEMPTS_MAX: usize = 1000;

/// What the rings of a session have in common.
pub struct Shared {
    pub device: Arc<Device>,
    pub dispatcher: Arc<Dispatcher>,
    pub pool: Arc<BufferPool>,
    /// Says that the session has ended.
    pub ending: watch::Sender<bool>,
    /// Entries that the kernel gave back without a request while the connection existed.
    pub refused: Arc<AtomicU64>,
    /// For how many bytes of a request entries have memory, ...
    pub data_bytes: usize,
    /// ... and with how many they are registered.
    pub entry_bytes: EntryBytes,
}

/// Ends the session when a ring ends, for whatever reason: its requests would wait forever, so the
/// process must let go of the mount.
struct EndsSession(Arc<Shared>);

impl Drop for EndsSession {
    fn drop(&mut self) {
        self.0.ending.send_replace(true);
    }
}

/// An io_uring that no thread uses yet: the first one that enables it.
pub type IdleRing = IoUring<squeue::Entry128, cqueue::Entry>;

/// Sets up an io_uring. Delivery of requests is deferred until the core asks, so that it interrupts
/// nothing else on the core.
pub fn set_up() -> io::Result<IdleRing> {
    IoUring::<squeue::Entry128, cqueue::Entry>::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_r_disabled()
        .setup_cqsize(8 * SUBMISSIONS_MAX)
        .build(SUBMISSIONS_MAX)
}

/// See the module documentation.
pub struct CoreRing {
    ring: IdleRing,
    shared: Arc<Shared>,
    queues: Vec<Queue>,
    entries: Vec<Entry>,
    /// Entries that the kernel gave back without a request, to be registered instead of new ones.
    unused: Vec<usize>,
    answered: Arc<Answered>,
    /// The first moment at which it was decided what the kernel may keep of an answer, among those
    /// that the next io_uring_enter(2) passes on.
    decided: Option<Instant>,
    /// Reused lists of commits and of completions (entry, result).
    commits: Vec<Commit>,
    completions: Vec<(usize, i32)>,
    /// A copy of the names and values of the request being served: its answer may overwrite them.
    request: Vec<u8>,
    /// The session is stopping: requests are refused.
    stopping: bool,
    /// The kernel ends the connection: entries come back without a request.
    closing: bool,
}

struct Entry {
    memory: EntryMemory,
    /// The answer that was passed on last, until the kernel has taken it.
    commit: Option<Commit>,
    /// Index in `queues`.
    queue: usize,
}

/// How a turn ended.
enum Turn {
    /// There is nothing to do.
    Idle,
    /// Other tasks have been delayed enough.
    More,
    /// There will never be anything to do.
    Ended,
}

impl CoreRing {
    /// Gives each queue its first entry. Must be called, as everything else, on the core.
    pub fn start(ring: IdleRing, queues: Vec<u16>, shared: Arc<Shared>) -> io::Result<Self> {
        let mut this = Self {
            ring,
            shared,
            queues: queues.into_iter().map(Queue::new).collect(),
            entries: Vec::new(),
            unused: Vec::new(),
            answered: Arc::default(),
            decided: None,
            commits: Vec::new(),
            completions: Vec::new(),
            request: Vec::new(),
            stopping: false,
            closing: false,
        };
        this.ring.submitter().register_enable_rings()?;
        for queue in 0..this.queues.len() {
            this.add_entries(queue, 1, this.shared.entry_bytes.first)?;
        }
        for _ in 0..START_ATTEMPTS_MAX {
            if this.enter()? {
                break;
            }
        }
        if !this.ring.submission().is_empty() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        this.collect();
        match this.completions.iter().find(|(_, result)| *result < 0) {
            None => Ok(this),
            Some((entry, result)) => {
                let number = this.queues[this.entries[*entry].queue].number;
                let error = io::Error::from_raw_os_error(-result);
                Err(io::Error::new(error.kind(), format!("the kernel refused an entry of queue {number}: {error}")))
            }
        }
    }

    /// Serves until the session ends.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let _ends_session = EndsSession(self.shared.clone());
        let readiness = match self.watch() {
            Ok(readiness) => readiness,
            Err(error) => return tracing::error!(%error, "cannot wait for requests over io_uring"),
        };
        if let Err(error) = self.complete_queues() {
            tracing::warn!(%error, "registered fewer io_uring entries than planned");
        }
        loop {
            self.stopping = *stop.borrow();
            match self.turn() {
                Ok(Turn::Ended) => return,
                Ok(Turn::More) => tokio::task::yield_now().await,
                Ok(Turn::Idle) => self.wait(&readiness, &mut stop).await,
                Err(error) => return tracing::error!(%error, "io_uring failed; requests of this core are not served"),
            }
        }
    }

    /// A descriptor that becomes readable again and again, whenever something arrives at the ring.
    /// It is never read: the runtime watches for edges. (The ring's own descriptor does not tell of
    /// work that the ring defers until it is asked.)
    fn watch(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.ring.submitter().register_eventfd(event.as_raw_fd())?;
        // SAFETY: the descriptor is owned by the `AsyncFd` and never replaced.
        Ok(unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }?)
    }

    fn complete_queues(&mut self) -> io::Result<()> {
        (0..self.queues.len()).try_for_each(|queue| self.add_further(queue, ENTRIES_FIRST - 1))
    }

    fn add_further(&mut self, queue: usize, count: usize) -> io::Result<()> {
        self.add_entries(queue, count, self.shared.entry_bytes.further)
    }

    /// Registers entries: first those that are not used any more, then new ones.
    fn add_entries(&mut self, queue: usize, count: usize, payload_bytes: usize) -> io::Result<()> {
        let new = count.saturating_sub(self.unused.len());
        if new > 0 {
            let block = EntryBlock::allocate(new, self.shared.data_bytes)?;
            self.unused.extend(self.entries.len()..self.entries.len() + new);
            self.entries.extend(EntryMemory::of(&block).map(|memory| Entry { memory, commit: None, queue }));
        }
        for _ in 0..count {
            let Some(&entry) = self.unused.last() else { unreachable!("as many as are asked for were made") };
            let vectors = self.entries[entry].memory.vectors(payload_bytes);
            let number = self.queues[queue].number;
            if !self.submit(&submission::register(self.shared.device.descriptor(), entry, vectors, number))? {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.unused.pop();
            self.entries[entry].queue = queue;
            self.queues[queue].registered();
        }
        Ok(())
    }

    /// Waits for something to do: requests, answers, the end.
    async fn wait(&mut self, readiness: &AsyncFd<OwnedFd>, stop: &mut watch::Receiver<bool>) {
        tokio::select! {
            biased;
            ready = readiness.readable() => {
                // The runtime fails only when it is being dropped, and then this task is too.
                if let Ok(mut ready) = ready {
                    ready.clear_ready();
                }
            }
            () = self.answered.wait() => {}
            _ = stop.changed(), if !self.stopping => {}
        }
    }

    /// Adds entries to queues that have few left.
    fn add_missing(&mut self) {
        for queue in 0..self.queues.len() {
            let missing = self.queues[queue].missing();
            if missing == 0 {
                continue;
            }
            let (number, entries) = (self.queues[queue].number, self.queues[queue].entries());
            match self.add_further(queue, missing) {
                Ok(()) => tracing::debug!(number, entries, missing, "adding entries for requests that wait"),
                Err(error) => {
                    tracing::warn!(number, entries, %error, "no memory for entries for requests that wait");
                    self.queues[queue].is_full();
                }
            }
        }
    }

    fn turn(&mut self) -> io::Result<Turn> {
        let mut served = 0;
        loop {
            let passed_on = self.pass_on_answers()? & self.enter()?;
            self.collect();
            if self.completions.is_empty() {
                if !passed_on {
                    // The kernel is short of memory; nothing would tell when it is not.
                    return Ok(Turn::More);
                }
                break;
            }
            served += self.completions.len();
            self.serve_collected()?;
            if !self.stopping && !self.closing {
                self.add_missing();
            }
            if served >= REQUESTS_PER_TURN {
                return Ok(Turn::More);
            }
        }
        let entries: usize = self.queues.iter().map(Queue::entries).sum();
        Ok(if entries == 0 { Turn::Ended } else { Turn::Idle })
    }

    fn in_kernel(&self) -> usize {
        self.queues.iter().map(Queue::in_kernel).sum()
    }

    /// Whether there was room for all of them; the rest stays for the next turn.
    fn pass_on_answers(&mut self) -> io::Result<bool> {
        let mut commits = std::mem::take(&mut self.commits);
        if commits.is_empty() {
            self.answered.take(&mut commits);
        }
        while let Some(commit @ Commit { entry, commit_id, decided }) = commits.last().copied() {
            let queue = self.entries[entry].queue;
            let number = self.queues[queue].number;
            if !self.submit(&submission::commit(self.shared.device.descriptor(), entry, number, commit_id))? {
                break;
            }
            self.queues[queue].committed();
            self.entries[entry].commit = Some(commit);
            self.decided = [self.decided, decided].into_iter().flatten().min();
            commits.pop();
        }
        self.commits = commits;
        Ok(self.commits.is_empty())
    }

    /// Queues a submission; passes on those before it if there is no room. False if there is none
    /// nevertheless.
    fn submit(&mut self, submission: &squeue::Entry128) -> io::Result<bool> {
        for passed_on in [false, true] {
            // SAFETY: the submission names memory of an entry, which stays mapped while the kernel
            // has the entry (see `drop`), and a descriptor that `shared` keeps open.
            if unsafe { self.ring.submission().push(submission) }.is_ok() {
                return Ok(true);
            }
            if !passed_on {
                self.enter()?;
                self.collect();
            }
        }
        Ok(false)
    }

    /// Passes on submissions and lets the kernel deliver what it has for us. Whether it took all
    /// submissions.
    fn enter(&mut self) -> io::Result<bool> {
        let submissions = self.ring.submission().len() as u32;
        // SAFETY: no argument but the numbers.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(submissions, 0, GET_EVENTS, None) };
        if let Some(decided) = self.decided.take() {
            self.shared.device.given(decided);
        }
        match result {
            // EBUSY and EAGAIN: completions are to be collected first, or memory is short.
            Ok(_) => Ok(self.ring.submission().is_empty()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                Ok(self.ring.submission().is_empty())
            }
            Err(error) => Err(error),
        }
    }

    fn collect(&mut self) {
        let completions = self.ring.completion();
        self.completions.extend(completions.map(|completion| (completion.user_data() as usize, completion.result())));
    }

    fn serve_collected(&mut self) -> io::Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        for (entry, result) in completions.drain(..) {
            let queue = &mut self.queues[self.entries[entry].queue];
            let passed_on = self.entries[entry].commit.take();
            if result >= 0 {
                queue.received();
                self.serve(entry);
                continue;
            }
            if let (Some(commit), libc::ENOMEM | libc::EAGAIN) = (passed_on, -result) {
                // The kernel had no memory to take the answer: it is passed on again.
                queue.received();
                self.commits.push(commit);
                continue;
            }
            self.unused.push(entry);
            if matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) {
                queue.lost();
                self.closing = true;
                continue;
            }
            queue.refused();
            let error = io::Error::from_raw_os_error(-result);
            if passed_on.is_some() {
                // The program that made the request would wait forever. Linux 6.18 does so after it
                // has refused an entry, if the parameter enable_uring is N by then.
                return Err(io::Error::new(error.kind(), format!("the kernel refused an answer: {error}")));
            }
            if self.shared.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!(
                    queue = queue.number,
                    %error,
                    "the kernel gave an entry back without a request; fuse.ring_entries_refused counts further ones"
                );
            }
        }
        self.completions = completions;
        Ok(())
    }

    /// Serves the request in an entry.
    fn serve(&mut self, entry: usize) {
        let Entry { memory, queue, .. } = &self.entries[entry];
        // SAFETY: the entry's command has just completed with a request, once.
        let held = unsafe { HeldEntry::new(memory.clone(), entry, self.answered.clone()) };
        let (mut entry_header, queue) = (held.header(), &self.queues[*queue]);
        let (header, _) = InHeader::read_from_prefix(&entry_header.in_out).expect("a header fits in its part");
        let responder = |held| Responder::over_ring(held, header.unique);
        if self.stopping {
            return responder(held).refuse(Errno::NOT_CONNECTED);
        }
        if header.opcode == Opcode::Write as u32 {
            let incoming = match decode_entry(&entry_header, held.payload()) {
                Ok(incoming) => incoming,
                Err(error) => return dispatch::refuse(&error, responder(held)),
            };
            let Operation::Write { write, data } = incoming.operation else { unreachable!("its opcode is WRITE's") };
            let (header, opcode, data) = (incoming.header, incoming.opcode, self.shared.pool.copy(data));
            let incoming = Incoming { header, opcode, operation: Operation::Write { write, data: &[] } };
            return self.shared.dispatcher.serve(incoming, data, responder(held));
        }
        self.request.clear();
        let payload = held.payload();
        let payload_bytes = payload.len().min(entry_header.state.payload_bytes as usize);
        self.request.extend_from_slice(&payload[..payload_bytes]);
        entry_header.state.payload_bytes = payload_bytes as u32;
        match decode_entry(&entry_header, &self.request) {
            Err(error) => dispatch::refuse(&error, responder(held)),
            Ok(Incoming { opcode: Opcode::SetLockWait, .. }) if !queue.may_wait() => {
                responder(held).refuse(Errno::NO_LOCKS);
            }
            Ok(incoming) => self.shared.dispatcher.serve(incoming, Bytes::new(), responder(held)),
        }
    }
}

impl Drop for CoreRing {
    fn drop(&mut self) {
        if self.in_kernel() > 0 {
            // Closing the ring cancels the kernel's use of the entries, some time later.
            self.entries.iter().for_each(|entry| entry.memory.leak());
        }
    }
}
