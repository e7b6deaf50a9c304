//! flock and fcntl locks between two clients, and within one.

use std::{fs::File, io, path::Path, process::Child, sync::mpsc::channel, time::Duration};

use super::calls::{errno, flock, lock, open};
use crate::common::{FileSystem, Program, TIMEOUT, Transport, programs::program, wait_for};

const SET: i32 = libc::F_SETLK;
const WAIT: i32 = libc::F_SETLKW;
const ASK: i32 = libc::F_GETLK;
const READ: i32 = libc::F_RDLCK;
const WRITE: i32 = libc::F_WRLCK;
const FREE: i32 = libc::F_UNLCK;

fn two_clients() -> (FileSystem, File, File) {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (open(&system.path(0).join("file"), 0), open(&system.path(1).join("file"), 0));
    (system, a, b)
}

#[test]
fn byte_ranges_are_locked_across_clients() {
    let (system, a, b) = two_clients();
    lock(&a, SET, WRITE, 100, 50).expect("free");
    assert_eq!(errno(lock(&b, SET, READ, 149, 1)), libc::EAGAIN);
    lock(&b, SET, WRITE, 150, 0).expect("the next byte is free");
    lock(&b, SET, WRITE, 0, 100).expect("so are those before");
    let holder = lock(&b, ASK, WRITE, 0, 0).expect("ask");
    assert_eq!((holder.l_type as i32, holder.l_start, holder.l_len), (WRITE, 100, 50));
    // Turned into a shared lock, in the middle only: readers may come, writers not.
    lock(&a, SET, READ, 110, 10).expect("own lock");
    lock(&b, SET, READ, 110, 10).expect("shared");
    assert_eq!(errno(lock(&b, SET, WRITE, 110, 10)), libc::EAGAIN);
    lock(&a, SET, FREE, 0, 0).expect("unlock");
    lock(&b, SET, WRITE, 0, 0).expect("all is free");
    assert_eq!(errno(lock(&a, SET, READ, 5, 1)), libc::EAGAIN);
    // Closing any descriptor of the file ends the locks of the process, as POSIX wants it.
    drop(open(&system.path(1).join("file"), 0));
    lock(&a, SET, WRITE, 0, 0).expect("free again");
    drop((a, b));
    system.finish();
}

#[test]
fn whole_files_are_locked_across_clients_apart_from_ranges() {
    let (system, a, b) = two_clients();
    flock(&a, libc::LOCK_SH).expect("free");
    flock(&b, libc::LOCK_SH | libc::LOCK_NB).expect("shared");
    assert_eq!(errno(flock(&b, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
    lock(&b, SET, WRITE, 0, 0).expect("the other kind of lock");
    flock(&a, libc::LOCK_UN).expect("unlock");
    flock(&b, libc::LOCK_EX | libc::LOCK_NB).expect("alone");
    // A second opening of one client is another owner.
    let second = open(&system.path(1).join("file"), 0);
    assert_eq!(errno(flock(&second, libc::LOCK_SH | libc::LOCK_NB)), libc::EWOULDBLOCK);
    drop(b);
    // Child processes that other tests start hold copies of all descriptors until they execute
    // their program.
    wait_for("closed is unlocked", TIMEOUT, || flock(&second, libc::LOCK_EX | libc::LOCK_NB).ok());
    // Locks of open file descriptions.
    lock(&a, libc::F_OFD_SETLK, WRITE, 0, 10).expect("free");
    let third = open(&system.path(0).join("file"), 0);
    assert_eq!(errno(lock(&third, libc::F_OFD_SETLK, READ, 9, 1)), libc::EAGAIN);
    drop(a);
    wait_for("closed is unlocked", TIMEOUT, || lock(&third, libc::F_OFD_SETLK, WRITE, 0, 10).ok());
    drop((second, third));
    system.finish();
}

/// The kernel reports the last close without the program's knowledge. Each round is a process of
/// its own, whose descriptors nobody else has copies of.
#[test]
fn what_was_closed_is_unlocked_for_whoever_comes_next_on_the_mount() {
    let (system, a, b) = two_clients();
    drop(b);
    let rounds = "for round in $(seq 200); do flock --nonblock --no-fork \"$1\" true || exit 1; done";
    let Program(mut shell) = program("sh");
    shell.args(["-c", rounds, "sh"]).arg(system.path(0).join("file"));
    assert!(shell.status().expect("sh starts").success(), "nobody holds it");
    // Closing a duplicate unlocks nothing.
    flock(&a, libc::LOCK_EX).expect("nobody holds it");
    drop(a.try_clone().expect("duplicated"));
    assert_eq!(errno(flock(&open(&system.path(0).join("file"), 0), libc::LOCK_SH | libc::LOCK_NB)), libc::EWOULDBLOCK);
    drop(a);
    system.finish();
}

#[test]
fn waiting_locks_are_granted_in_turn_and_counted() {
    const ROUNDS: u64 = 200;
    let (system, a, b) = two_clients();
    let counter = |client: usize| system.path(client).join("counter");
    std::fs::write(counter(0), b"0").expect("write");
    std::thread::scope(|scope| {
        for (client, file) in [(0, &a), (1, &b)] {
            let path = counter(client);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    lock(file, WAIT, WRITE, 0, 0).expect("granted at last");
                    let count: u64 = std::fs::read_to_string(&path).expect("read").parse().expect("a number");
                    std::fs::write(&path, (count + 1).to_string()).expect("write");
                    lock(file, SET, FREE, 0, 0).unwrap_or_else(|error| panic!("round {round}: {error}"));
                }
            });
        }
    });
    assert_eq!(std::fs::read_to_string(counter(1)).expect("read"), (2 * ROUNDS).to_string());
    drop((a, b));
    system.finish();
}

#[test]
fn a_deadlock_is_found() {
    let (system, a, b) = two_clients();
    lock(&a, SET, WRITE, 0, 1).expect("free");
    lock(&b, SET, WRITE, 1, 1).expect("free");
    // The second request gets the error; the first one continues when the second gives up.
    let ask = |file: &File, wanted: i64, own: i64| {
        let outcome = lock(file, WAIT, WRITE, wanted, 1);
        lock(file, SET, FREE, own, 1).expect("unlock");
        outcome.map(drop)
    };
    let outcomes: Vec<io::Result<()>> = std::thread::scope(|scope| {
        let tasks = [scope.spawn(|| ask(&a, 1, 0)), scope.spawn(|| ask(&b, 0, 1))];
        tasks.into_iter().map(|task| task.join().expect("no panic")).collect()
    });
    let refused = |outcome: &&io::Result<()>| outcome.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EDEADLK));
    assert_eq!(outcomes.iter().filter(refused).count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    drop((a, b));
    system.finish();
}

#[test]
fn waiting_for_a_lock_can_be_interrupted() {
    extern "C" fn nothing(_: i32) {}
    let (system, a, b) = two_clients();
    // SAFETY: the handler does nothing; without SA_RESTART the call ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    lock(&a, SET, WRITE, 0, 0).expect("free");
    flock(&a, libc::LOCK_EX).expect("free");
    type Wait = fn(&File) -> io::Result<()>;
    let waits: [Wait; 2] = [|file| lock(file, WAIT, WRITE, 0, 0).map(drop), |file| flock(file, libc::LOCK_EX)];
    for wait in waits {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let b = &b;
            scope.spawn(move || {
                // SAFETY: pthread_self has no preconditions.
                sender.send((unsafe { libc::pthread_self() }, None)).expect("the test listens");
                let outcome = wait(b);
                sender.send((unsafe { libc::pthread_self() }, Some(outcome))).expect("the test listens");
            });
            let (thread, _) = receiver.recv().expect("the thread says who it is");
            // A signal before the call waits does nothing, so it is sent until the call has ended.
            let outcome = loop {
                // SAFETY: the thread lives until its second message has been received.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                match receiver.recv_timeout(Duration::from_millis(20)) {
                    Ok((_, outcome)) => break outcome.expect("the second message has it"),
                    Err(error) => assert_eq!(error, std::sync::mpsc::RecvTimeoutError::Timeout),
                }
            };
            assert_eq!(errno(outcome), libc::EINTR);
        });
    }
    lock(&a, SET, FREE, 0, 0).expect("unlock");
    flock(&a, libc::LOCK_UN).expect("unlock");
    lock(&b, SET, WRITE, 0, 0).expect("the interrupted request left nothing behind");
    flock(&b, libc::LOCK_EX | libc::LOCK_NB).expect("nor did the other");
    drop((a, b));
    system.finish();
}

/// After a signal whose handler says SA_RESTART the kernel asks again for the same lock, at once.
#[test]
fn a_lock_waited_for_under_signals_is_held() {
    const ROUNDS: usize = 20;
    extern "C" fn nothing(_: i32) {}
    let (system, a, b) = two_clients();
    // SAFETY: the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    for round in 0..ROUNDS {
        flock(&a, libc::LOCK_EX).expect("free");
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // SAFETY: pthread_self has no preconditions.
                sender.send(unsafe { libc::pthread_self() }).expect("the test listens");
                flock(&b, libc::LOCK_EX)
            });
            let thread = receiver.recv().expect("the thread says who it is");
            for signals in 0.. {
                // SAFETY: the thread is not joined before the end of this loop.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(1));
                if signals == round {
                    flock(&a, libc::LOCK_UN).expect("unlock");
                }
                if waiting.is_finished() {
                    break;
                }
            }
            waiting.join().expect("no panic").expect("granted at last");
        });
        assert_eq!(errno(flock(&a, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK, "round {round}");
        flock(&b, libc::LOCK_UN).expect("unlock");
    }
    drop((a, b));
    system.finish();
}

/// A process that holds a lock until it is killed.
fn holder(path: &Path) -> Child {
    let Program(mut command) = program("flock");
    command.args(["--no-fork", "--exclusive"]).arg(path).args(["sleep", "1000"]).spawn().expect("flock starts")
}

#[test]
fn locks_end_with_their_process_and_with_their_client() {
    let (mut system, a, b) = two_clients();
    drop(a);
    let mut process = holder(&system.path(0).join("file"));
    let is_held = || flock(&b, libc::LOCK_EX | libc::LOCK_NB).is_err();
    let free = || flock(&b, libc::LOCK_UN).expect("unlock");
    wait_for("the process has the lock", TIMEOUT, || {
        let held = is_held();
        free();
        held.then_some(())
    });
    process.kill().expect("own child");
    process.wait().expect("own child");
    wait_for("the lock ends with its process", TIMEOUT, || (!is_held()).then_some(()));
    free();
    // The whole client dies: its lease runs out, and others get the lock.
    let mut process = holder(&system.path(0).join("file"));
    wait_for("the process has the lock", TIMEOUT, || {
        let held = is_held();
        free();
        held.then_some(())
    });
    system.kill_client(0);
    wait_for("the lock ends with its client", TIMEOUT, || (!is_held()).then_some(()));
    process.kill().expect("own child");
    process.wait().expect("own child");
    drop(b);
    system.finish();
}
