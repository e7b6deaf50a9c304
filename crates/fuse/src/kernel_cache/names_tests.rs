//! The kernel is a pipe here: full, it lets notifications hang as long as a lock would.

use std::{
    io::{PipeReader, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    task::{Context, Poll, Waker},
    thread,
};

use rt::BoxFuture;

use super::*;
use crate::kernel_cache::waiting::WaitingRequest;
use crate::kernel_cache::withdrawal::Parts;
use crate::protocol::Opcode;
use crate::protocol::notify::MINOR_OF_EPOCHS;
use crate::session::device::Device;

/// Far longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn is_done(future: &mut BoxFuture<'static, ()>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

struct Kernel {
    names: Arc<Names>,
    waiting: Arc<Waiting>,
    _device: Arc<Device>,
    reader: PipeReader,
    filled: usize,
}

impl Kernel {
    fn new(hangs: bool) -> Self {
        let (reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: the descriptor is open, and the command takes no argument.
        let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
        let filled = if hangs { usize::try_from(size).unwrap() } else { 0 };
        writer.write_all(&vec![0; filled]).unwrap();
        let device = Arc::new(Device::from_descriptor(OwnedFd::from(writer)));
        let notifications = Notifications::new(&device, MINOR_OF_EPOCHS);
        let waiting = Arc::<Waiting>::default();
        let names = Names::new(notifications, waiting.clone(), Arc::default());
        Self { names, waiting, _device: device, reader, filled }
    }

    fn withdraw(
        &self,
        parent: u64,
        bytes: &[u8],
        invalidation: Invalidation,
        since: Instant,
    ) -> (BoxFuture<'static, ()>, Option<Finished>) {
        let mut parts = Parts::default();
        let refused = self.names.withdraw(Arc::new(Name::new(parent, bytes)), invalidation, since, parts.add());
        (parts.complete(), refused)
    }

    /// The lock is free.
    fn go_on(&mut self) {
        self.reader.read_exact(&mut vec![0; self.filled]).unwrap();
        while self.names.is_busy() {
            thread::yield_now();
        }
    }
}

#[test]
fn names_are_dropped_by_threads() {
    let mut kernel = Kernel::new(false);
    let (mut withdrawn, refused) = kernel.withdraw(5, b"x", Invalidation::Drop, Instant::now());
    assert!(refused.is_none());
    kernel.go_on();
    assert!(is_done(&mut withdrawn));
    let mut message = [0; 16 + 16 + 2];
    kernel.reader.read_exact(&mut message).unwrap();
    assert_eq!(&message[32..], b"x\0");
}

/// A look-up that waits for a target that is down holds the lock for as long, and began a moment
/// ago.
#[test]
fn nothing_queues_behind_a_look_up_that_is_not_answered() {
    let mut kernel = Kernel::new(false);
    let request = WaitingRequest { opcode: Opcode::Lookup, node: 5, thread: 0, since: Instant::now() };
    let entry = kernel.waiting.enter(1, request);
    let since = Instant::now() - WITHDRAWAL_TIMEOUT;
    let (mut expired, _) = kernel.withdraw(5, b"expires", Invalidation::Expire, Instant::now());
    let (mut dropped, _) = kernel.withdraw(5, b"dropped", Invalidation::Drop, since);
    let (mut other, _) = kernel.withdraw(6, b"other", Invalidation::Drop, Instant::now());
    while !is_done(&mut other) {
        thread::yield_now();
    }
    assert!(!is_done(&mut expired) && !is_done(&mut dropped));
    // All names are outdated instead.
    let overdue = kernel.names.overdue(Instant::now());
    assert_eq!(overdue.names.iter().map(|name| &*name.bytes).collect::<Vec<_>>(), [b"dropped"]);
    overdue.finished.into_iter().for_each(Finished::tell);
    assert!(is_done(&mut dropped) && !is_done(&mut expired));
    drop(entry);
    kernel.go_on();
    assert!(is_done(&mut expired));
    let told = |kernel: &mut Kernel, name: &[u8]| {
        let mut message = vec![0; 16 + 16 + name.len() + 1];
        kernel.reader.read_exact(&mut message).unwrap();
        assert_eq!(&message[32..32 + name.len()], name);
    };
    told(&mut kernel, b"other");
    told(&mut kernel, b"expires");
    told(&mut kernel, b"dropped");
    let (mut last, _) = kernel.withdraw(5, b"last", Invalidation::Drop, Instant::now());
    kernel.go_on();
    assert!(is_done(&mut last));
    told(&mut kernel, b"last");
}

/// Programs that look at names all the time do not hold a withdrawal up, as long as each look-up is
/// answered soon.
#[test]
fn a_withdrawal_does_not_wait_for_look_ups_that_come_later() {
    let mut kernel = Kernel::new(false);
    let enter = |kernel: &Kernel, unique, since| {
        kernel.waiting.enter(unique, WaitingRequest { opcode: Opcode::Lookup, node: 5, thread: 0, since })
    };
    let first = enter(&kernel, 1, Instant::now());
    let (mut withdrawn, _) = kernel.withdraw(5, b"x", Invalidation::Drop, Instant::now());
    // It began after the withdrawal in any case, and is not answered in this test.
    let later = enter(&kernel, 2, Instant::now() + TIMEOUT);
    drop(first);
    let begun = Instant::now();
    while !is_done(&mut withdrawn) {
        assert!(begun.elapsed() < TIMEOUT, "it waits for the second one");
        thread::yield_now();
    }
    drop(later);
    kernel.go_on();
}

/// A name may come when a thread has just told the kernel of the last one of its directory.
#[test]
fn names_of_one_directory_come_at_any_moment() {
    let mut kernel = Kernel::new(false);
    const NAMES: usize = 2000;
    let mut reader = kernel.reader.try_clone().unwrap();
    let drained = thread::spawn(move || reader.read_exact(&mut vec![0; NAMES * (16 + 16 + 2)]).unwrap());
    for _ in 0..NAMES {
        let (mut withdrawn, refused) = kernel.withdraw(5, b"x", Invalidation::Drop, Instant::now());
        assert!(refused.is_none());
        while !is_done(&mut withdrawn) {
            thread::yield_now();
        }
    }
    kernel.go_on();
    drained.join().unwrap();
    assert_eq!(kernel.names.state.lock().withdrawals.len(), 0);
}

#[test]
fn under_a_change_all_names_are_outdated_instead() {
    let kernel = Kernel::new(false);
    assert!(kernel.names.begin_change(5).is_empty());
    let (mut withdrawn, refused) = kernel.withdraw(5, b"x", Invalidation::Drop, Instant::now());
    assert!(!is_done(&mut withdrawn));
    refused.unwrap().tell();
    assert!(is_done(&mut withdrawn));
    let (mut withdrawn, refused) = kernel.withdraw(5, b"x", Invalidation::Expire, Instant::now());
    assert!(refused.is_none() && is_done(&mut withdrawn), "the MDT checks, too");
    kernel.names.end_change(5);
    assert!(kernel.withdraw(5, b"x", Invalidation::Drop, Instant::now()).1.is_none());
}

/// No client waits for that.
#[test]
fn a_name_expires_after_the_changes_that_hold_its_directory() {
    let mut kernel = Kernel::new(false);
    for _ in 0..2 {
        assert!(kernel.names.begin_change(5).is_empty());
        let (mut withdrawn, refused) = kernel.withdraw(5, b"x", Invalidation::Expire, Instant::now());
        assert!(refused.is_none() && is_done(&mut withdrawn));
    }
    kernel.names.end_change(5);
    assert!(!kernel.names.is_busy(), "another change holds the lock");
    kernel.names.end_change(5);
    kernel.go_on();
    let mut message = [0; 16 + 16 + 2];
    kernel.reader.read_exact(&mut message).unwrap();
    assert_eq!(&message[28..], b"\x01\0\0\0x\0", "FUSE_EXPIRE_ONLY");
    assert!(kernel.names.state.lock().after_changes.is_empty());
}

/// The kernel keeps the validity of what it moves.
#[test]
fn a_name_expires_where_a_rename_has_moved_it() {
    let mut kernel = Kernel::new(false);
    for parent in [5, 6] {
        assert!(kernel.names.begin_change(parent).is_empty());
    }
    assert!(kernel.withdraw(5, b"x", Invalidation::Expire, Instant::now()).1.is_none());
    let [x, y, z] = [(5, b"x"), (6, b"y"), (6, b"z")].map(|(parent, name)| Name::new(parent, name));
    kernel.names.renamed(&z, &x, false);
    assert_eq!(kernel.names.state.lock().after_changes.len(), 1, "what was replaced is gone");
    kernel.names.renamed(&x, &y, false);
    kernel.names.renamed(&z, &y, true);
    let expected = [b"y", b"z"].map(|name| name.to_vec().into_boxed_slice());
    assert!(kernel.names.state.lock().after_changes[&6].keys().eq(&expected));
    kernel.names.end_change(6);
    kernel.go_on();
    let mut message = [0; 16 + 16 + 2];
    for name in [b"y", b"z"] {
        kernel.reader.read_exact(&mut message).unwrap();
        assert_eq!(message[28..], [1, 0, 0, 0, name[0], 0], "FUSE_EXPIRE_ONLY");
    }
}

#[test]
fn a_change_that_arrives_while_the_kernel_waits_completes_what_waits_for_it() {
    let mut kernel = Kernel::new(true);
    let now = Instant::now();
    let mut withdrawn: Vec<_> =
        [b"x", b"y"].map(|name| kernel.withdraw(5, name, Invalidation::Drop, now).0).into_iter().collect();
    let (mut of_other_directory, _) = kernel.withdraw(6, b"z", Invalidation::Drop, now);
    let finished = kernel.names.begin_change(5);
    assert_eq!(finished.len(), 2);
    assert!(!withdrawn.iter_mut().any(is_done));
    finished.into_iter().for_each(Finished::tell);
    assert!(withdrawn.iter_mut().all(is_done) && !is_done(&mut of_other_directory));
    kernel.names.end_change(5);
    kernel.go_on();
    assert!(is_done(&mut of_other_directory));
}

#[test]
fn what_takes_too_long_is_found_once() {
    let mut kernel = Kernel::new(true);
    let now = Instant::now();
    let (mut withdrawn, _) = kernel.withdraw(5, b"x", Invalidation::Drop, now);
    assert!(kernel.names.overdue(now).names.is_empty());
    let overdue = kernel.names.overdue(now + WITHDRAWAL_TIMEOUT);
    assert_eq!(*overdue.names[0], Name::new(5, b"x"));
    overdue.finished.into_iter().for_each(Finished::tell);
    assert!(is_done(&mut withdrawn));
    assert!(kernel.names.overdue(now + WITHDRAWAL_TIMEOUT).names.is_empty());
    kernel.go_on();
}

/// Any user can have listings that the kernel cannot drop, and many of them.
#[test]
fn names_do_not_wait_for_listings() {
    let kernel = Kernel::new(true);
    let now = Instant::now();
    let listings = 0..LISTINGS_MAX as u64 + 10;
    let mut withdrawn: Vec<_> =
        listings.clone().map(|parent| kernel.withdraw(parent, b"", Invalidation::Listing, now).0).collect();
    let mut name = kernel.withdraw(5, b"x", Invalidation::Drop, now).0;
    let begun = Instant::now();
    loop {
        let state = kernel.names.state.lock();
        let running = state.withdrawals.iter().filter(|(_, directory)| directory.running.is_some());
        let (names, listings): (Vec<_>, Vec<_>) = running.partition(|((_, kind), _)| *kind == Kind::Name);
        assert!(listings.len() <= LISTINGS_MAX && state.of_listings.count <= LISTINGS_MAX);
        if (names.len(), listings.len()) == (1, LISTINGS_MAX) {
            break;
        }
        drop(state);
        assert!(begun.elapsed() < Duration::from_secs(30), "they do not all hang");
        thread::yield_now();
    }
    let mut overdue = kernel.names.overdue(now + WITHDRAWAL_TIMEOUT);
    assert!(withdrawn.iter_mut().all(is_done), "those without a thread are given up, too");
    overdue.listings.sort_unstable();
    assert_eq!((overdue.listings, overdue.finished.len()), (listings.collect(), 1));
    assert!(!is_done(&mut name));
    overdue.finished.into_iter().for_each(Finished::tell);
    assert!(is_done(&mut name));
    // Without a reader nothing hangs in a pipe.
    let Kernel { names, reader, .. } = kernel;
    drop(reader);
    while names.is_busy() {
        thread::yield_now();
    }
}

#[test]
fn threads_are_as_many_as_directories_in_which_the_kernel_waits() {
    // Fewer than a pipe has pages: each of these messages takes one.
    const HANG: usize = 12;
    let mut kernel = Kernel::new(true);
    let withdrawn: Vec<_> =
        (0..HANG as u64).map(|parent| kernel.withdraw(parent, b"x", Invalidation::Drop, Instant::now()).0).collect();
    let begun = Instant::now();
    let hang = |kernel: &Kernel| {
        let state = kernel.names.state.lock();
        state.withdrawals.values().filter(|directory| directory.running.is_some()).count()
    };
    while hang(&kernel) < HANG {
        assert!(begun.elapsed() < Duration::from_secs(30), "only {} hang", hang(&kernel));
        thread::yield_now();
    }
    kernel.go_on();
    assert!(withdrawn.into_iter().all(|mut withdrawn| is_done(&mut withdrawn)));
}
