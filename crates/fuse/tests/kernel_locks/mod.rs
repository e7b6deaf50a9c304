//! No callback waits for a lock of the kernel that a request of the same mount holds while it waits
//! for other clients: the table of decision note 0031, case by case. Two clients with a mount each;
//! the one holds a lock of a directory, the other one removes or changes a name in it. Requests,
//! their answers and callbacks are held until the other side waits. Needs root and `/dev/fuse`, and
//! Linux 6.16.

mod cases;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use crate::cluster::{
    Client, Cluster,
    gates::{Gate, Gates, Message},
    log::Log,
};
use cases::{CASES, Case, Then, make_tree};
use fuse::KernelCacheCount;
use rpc::message::{ClientRequest, MdtRequest, Request};
use rustix::fs::{AtFlags, Mode, chmodat, unlinkat};
use types::InodeNumber;

/// After so long without what must come, a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A thread that waits for the kernel is relieved after a second, so a case in which it is to wait
/// has to be over by then: on a host that was too slow it is tried again.
const PROMPT: Duration = Duration::from_millis(700);
const ATTEMPTS: usize = 10;

/// What the other client does with the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intrusion {
    /// The name is dropped.
    Remove,
    /// The name leads where it did, but the lock that is given back covers it, too.
    Chmod,
}

/// What is held, so that the callback meets the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// The request that holds the lock, and the callback until the request waits.
    RequestThenCallback,
    /// The request, before the other client begins.
    Request,
    /// The answer to it.
    Answer,
}

/// Ends what hangs if a test fails. To be kept within a scope of threads, which are joined before
/// the test ends.
struct AbortIfFailed<'c>([&'c Client; 2]);

impl Drop for AbortIfFailed<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.iter().for_each(|client| client.abort());
        }
    }
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < TIMEOUT, "{what}: too long");
        thread::sleep(Duration::from_millis(1));
    }
}

fn join<T>(what: &str, thread: ScopedJoinHandle<'_, T>) -> T {
    wait_until(what, || thread.is_finished());
    thread.join().unwrap()
}

/// What was counted of a mount between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    names_dropped: u64,
    epochs: u64,
    overdue: u64,
}

impl Counts {
    fn of(client: &Client) -> Self {
        let get = |count| client.kernel_cache().statistics().get(count);
        let names_dropped = get(KernelCacheCount::NamesDropped);
        Self { names_dropped, epochs: get(KernelCacheCount::Epochs), overdue: get(KernelCacheCount::Overdue) }
    }

    fn since(self, before: Self) -> Self {
        Self {
            names_dropped: self.names_dropped - before.names_dropped,
            epochs: self.epochs - before.epochs,
            overdue: self.overdue - before.overdue,
        }
    }
}

/// All below a directory: names, inodes, permissions, links.
fn tree(directory: &Path) -> Vec<(String, u64, u32, u64)> {
    let mut found = Vec::new();
    let mut rest = vec![directory.to_owned()];
    while let Some(path) = rest.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            let name = entry.path().strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
            found.push((name, metadata.ino(), metadata.mode(), metadata.nlink()));
            if metadata.is_dir() {
                rest.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn is_held(case: &Case, hold: Hold, message: Message<'_>) -> bool {
    match (hold, message) {
        (Hold::Answer, Message::Answer(request)) => (case.held)(request),
        (Hold::Request | Hold::RequestThenCallback, Message::Request(request)) => (case.held)(request),
        _ => false,
    }
}

fn hold_callbacks(gates: &Gates, client: &Client) -> Gate {
    let holder = client.file_system().client_id();
    gates.close(move |client, message| {
        client == holder && matches!(message, Message::Callback(ClientRequest::Blocking(_)))
    })
}

impl Intrusion {
    /// Through a descriptor: the directory may be moved meanwhile.
    fn run(self, directory: &File) -> io::Result<()> {
        match self {
            Intrusion::Remove => unlinkat(directory, "x", AtFlags::empty())?,
            Intrusion::Chmod => chmodat(directory, "x", Mode::from_raw_mode(0o604), AtFlags::empty())?,
        }
        Ok(())
    }
}

/// One way in which the lock of a directory and a callback meet.
struct Meeting<'c> {
    gates: &'c Gates,
    holder: &'c Client,
    intruder: &'c Client,
    case: &'static Case,
    intrusion: Intrusion,
    hold: Hold,
    /// A directory of its own.
    name: String,
}

impl Meeting<'_> {
    fn what(&self) -> String {
        format!("{} while {:?} is held, {:?}, in {}", self.case.name, self.hold, self.intrusion, self.name)
    }

    /// False: the host was too slow to tell.
    fn happens(&self) -> bool {
        let &Meeting { gates, holder, intruder, case, intrusion, hold, .. } = self;
        let (ours, theirs, what) = (holder.path(&self.name), intruder.path(&self.name), self.what());
        make_tree(&theirs);
        let opened = (case.prepare)(&ours, &theirs);
        for _ in 0..2 {
            for name in ["d/x", "d/file", "d/sub", "other/file"] {
                fs::metadata(ours.join(name)).unwrap();
            }
        }
        (case.disturb)(&theirs);
        let directory = InodeNumber(fs::metadata(ours.join("d")).unwrap().ino());
        let intruders = File::open(theirs.join("d")).unwrap();
        let (before, id) = (Counts::of(holder), holder.file_system().client_id());
        let request = gates.close(move |client, message| client == id && is_held(case, hold, message));
        let mut begun = Instant::now();
        let is_prompt = thread::scope(|scope| {
            let _abort = AbortIfFailed([holder, intruder]);
            let intrude = || intrusion.run(&intruders);
            let (operation, intrusion) = match hold {
                Hold::RequestThenCallback => {
                    let callbacks = hold_callbacks(gates, holder);
                    let intrusion = scope.spawn(intrude);
                    callbacks.wait(&what);
                    let operation = scope.spawn(|| (case.operate)(&ours, opened.as_ref()));
                    request.wait(&what);
                    begun = Instant::now();
                    callbacks.open();
                    (operation, intrusion)
                }
                Hold::Request | Hold::Answer => {
                    let operation = scope.spawn(|| (case.operate)(&ours, opened.as_ref()));
                    request.wait(&what);
                    begun = Instant::now();
                    (operation, scope.spawn(intrude))
                }
            };
            if case.then == Then::Waits {
                let name = (directory, b"x".to_vec());
                wait_until(&what, || intrusion.is_finished() || holder.kernel_cache().leaving().contains(&name));
            } else {
                wait_until(&what, || intrusion.is_finished());
            }
            let is_prompt = begun.elapsed() < PROMPT;
            if is_prompt || case.then != Then::Waits {
                assert_eq!(intrusion.is_finished(), case.then != Then::Waits, "{what}");
                assert!(request.count() > 0, "{what}: the lock was held meanwhile");
            }
            request.open();
            let outcome = join(&what, operation).err().and_then(|error| error.raw_os_error());
            assert_eq!(outcome, case.fails, "{what}");
            join(&what, intrusion).unwrap();
            is_prompt && begun.elapsed() < PROMPT
        });
        self.check(&ours, &theirs, Counts::of(holder).since(before), is_prompt);
        is_prompt || case.then != Then::Waits
    }

    fn check(&self, ours: &Path, theirs: &Path, counts: Counts, is_prompt: bool) {
        let what = self.what();
        let removes = self.intrusion == Intrusion::Remove;
        match self.case.then {
            Then::Waits if is_prompt => {
                assert!(counts.names_dropped > 0 && counts.epochs == 0 && counts.overdue == 0, "{what}: {counts:?}");
            }
            Then::Waits => {}
            Then::Epoch => assert!(counts.epochs > 0 && counts.overdue == 0, "{what}: {counts:?}"),
            Then::NothingWaits => {
                assert!(counts.names_dropped > 0 && counts.epochs == 0 && counts.overdue == 0, "{what}: {counts:?}");
            }
        }
        let seen = tree(ours);
        assert_eq!(seen, tree(theirs), "{what}");
        let of_x = seen.iter().find(|(name, ..)| name.ends_with("d/x") || name == "d/x");
        assert_eq!(of_x.map(|(_, _, mode, _)| mode & 0o777), (!removes).then_some(0o604), "{what}");
        for (name, is_there) in self.case.leaves {
            assert_eq!(seen.iter().any(|(seen, ..)| seen == name), *is_there, "{what}: {name}");
        }
    }
}

/// All rows of the table, each with both clients in both roles.
#[test]
fn no_callback_waits_for_a_request_that_waits_for_others() {
    let cluster = Cluster::pair_on_network();
    let [a, b] = cluster.clients() else { panic!() };
    for (number, case) in CASES.iter().enumerate() {
        for intrusion in [Intrusion::Remove, Intrusion::Chmod] {
            for hold in [Hold::Request, Hold::Answer, Hold::RequestThenCallback] {
                for (role, holder, intruder) in [("a", a, b), ("b", b, a)] {
                    let happens = |attempt: usize| {
                        let name = format!("{number}-{intrusion:?}-{hold:?}-{role}-{attempt}");
                        let gates = cluster.gates();
                        Meeting { gates, holder, intruder, case, intrusion, hold, name }.happens()
                    };
                    assert!((0..ATTEMPTS).any(happens), "{}: this host is too slow", case.name);
                }
            }
        }
    }
}

/// A directory that the first client has in its kernel, with all that is in it.
fn warm_tree(name: &str, holder: &Client, intruder: &Client) -> (PathBuf, PathBuf) {
    let (ours, theirs) = (holder.path(name), intruder.path(name));
    make_tree(&theirs);
    for _ in 0..2 {
        for name in ["d/x", "d/file", "d/target", "d/sub", "other/file"] {
            fs::metadata(ours.join(name)).unwrap();
        }
    }
    (ours, theirs)
}

fn hold_requests(gates: &Gates, client: &Client, choice: fn(&MdtRequest) -> bool) -> Gate {
    let id = client.file_system().client_id();
    gates.close(move |client, message| {
        client == id && matches!(message, Message::Request(Request::Mdt(request)) if choice(request))
    })
}

/// What creates a name looks it up first, under the exclusive lock; such a lookup is no change. So
/// the thread waits for a lock that the change then goes on to hold.
#[test]
fn a_change_that_arrives_while_the_kernel_waits_for_its_lock_ends_the_wait() {
    type Make = (&'static str, fn(&Path) -> io::Result<()>);
    let cluster = Cluster::pair_on_network();
    let [a, b] = cluster.clients() else { panic!() };
    let makes: [Make; 3] = [
        ("CREATE", |path| File::create_new(path).map(drop)),
        ("MKDIR", |path| fs::create_dir(path)),
        ("LINK", |path| fs::hard_link(path.with_file_name("file"), path)),
    ];
    for (operation, make) in makes {
        for (role, holder, intruder) in [("a", a, b), ("b", b, a)] {
            let happens = |attempt: usize| {
                let what = format!("{operation}-{role}-{attempt}");
                let (ours, theirs) = warm_tree(&what, holder, intruder);
                fs::write(theirs.join("d/another"), b"").unwrap();
                let directory = InodeNumber(fs::metadata(ours.join("d")).unwrap().ino());
                let before = Counts::of(holder);
                let gates = cluster.gates();
                let lookup = hold_requests(gates, holder, |request| matches!(request, MdtRequest::Lookup(..)));
                let is_change = |request: &MdtRequest| matches!(request, MdtRequest::Create(..) | MdtRequest::Link(..));
                let change = hold_requests(gates, holder, is_change);
                let took = thread::scope(|scope| {
                    let _abort = AbortIfFailed([holder, intruder]);
                    let making = scope.spawn(|| make(&ours.join("d/new")));
                    lookup.wait(&what);
                    let begun = Instant::now();
                    let removing = scope.spawn(|| fs::remove_file(theirs.join("d/x")));
                    let name = (directory, b"x".to_vec());
                    wait_until(&what, || holder.kernel_cache().leaving().contains(&name) || removing.is_finished());
                    lookup.open();
                    change.wait(&what);
                    join(&what, removing).unwrap();
                    assert!(change.count() > 0, "{what}: it still holds the lock");
                    let took = begun.elapsed();
                    change.open();
                    join(&what, making).unwrap();
                    took
                });
                let counts = Counts::of(holder).since(before);
                let seen = tree(&ours);
                assert_eq!(seen, tree(&theirs), "{what}");
                let is_there = |name: &str| seen.iter().any(|(seen, ..)| seen == name);
                assert_eq!((is_there("d/x"), is_there("d/new")), (false, true), "{what}");
                assert!(took >= PROMPT || (counts.epochs, counts.overdue) == (1, 0), "{what}: {counts:?}");
                took < PROMPT
            };
            assert!((0..ATTEMPTS).any(happens), "{operation}: this host is too slow, or the watchdog ends the wait");
        }
    }
}

/// Each of them removes a name that the other one has, in the same directory, at the same time: the
/// one's request holds the lock for which the other one's callback would wait, and the reverse.
#[test]
fn two_clients_that_hold_the_lock_of_one_directory_get_each_others_locks() {
    type Change = (&'static str, fn(&Path, &str) -> io::Result<()>);
    let changes: [Change; 4] = [
        ("UNLINK", |directory, name| fs::remove_file(directory.join(name))),
        ("RMDIR", |directory, name| fs::remove_dir(directory.join(format!("{name}-directory")))),
        ("RENAME", |directory, name| fs::rename(directory.join(name), directory.join(format!("{name}-moved")))),
        ("LINK", |directory, name| fs::hard_link(directory.join(name), directory.join(format!("{name}-link")))),
    ];
    let cluster = Cluster::pair_on_network();
    let [a, b] = cluster.clients() else { panic!() };
    let is_change = |request: &MdtRequest| {
        matches!(request, MdtRequest::Unlink(..) | MdtRequest::Rename(..) | MdtRequest::Link(..))
    };
    for (of_a, change_a) in changes {
        for (of_b, change_b) in changes {
            let what = format!("{of_a}-{of_b}");
            fs::create_dir(a.path(&what)).unwrap();
            for name in ["one", "two"] {
                fs::write(a.path(&what).join(name), b"").unwrap();
                fs::create_dir(a.path(&what).join(format!("{name}-directory"))).unwrap();
            }
            for client in [a, b, a, b] {
                for name in ["one", "two", "one-directory", "two-directory"] {
                    fs::metadata(client.path(&what).join(name)).unwrap();
                }
            }
            let before = [a, b].map(Counts::of);
            let held = [a, b].map(|client| hold_requests(cluster.gates(), client, is_change));
            thread::scope(|scope| {
                let _abort = AbortIfFailed([a, b]);
                let changing =
                    [scope.spawn(|| change_a(&a.path(&what), "one")), scope.spawn(|| change_b(&b.path(&what), "two"))];
                held.iter().for_each(|held| held.wait(&what));
                held.iter().for_each(Gate::open);
                changing.into_iter().for_each(|changing| join(&what, changing).unwrap());
            });
            let counts = [(a, before[0]), (b, before[1])].map(|(client, before)| Counts::of(client).since(before));
            assert!(counts.iter().all(|counts| counts.overdue == 0), "{what}: {counts:?}");
            let both_remove = of_a != "LINK" && of_b != "LINK";
            assert!(!both_remove || counts.iter().any(|counts| counts.epochs > 0), "{what}: {counts:?}");
            assert_eq!(tree(&a.path(&what)), tree(&b.path(&what)), "{what}");
        }
    }
}

/// A request that waits for a connection holds its locks. The connection waits until the kernel has
/// dropped everything.
#[test]
fn a_new_connection_does_not_wait_for_requests_that_wait_for_it() {
    type Wait = (&'static str, &'static str, fn(&Path, &File) -> io::Result<()>);
    let waits: [Wait; 3] = [
        ("lookup", "LOOKUP", |path, _| match fs::metadata(path.join("missing")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }),
        ("readdir", "READDIR", |_, directory| {
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
            let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
            while let Some(entry) = entries.next() {
                entry?;
            }
            Ok(())
        }),
        ("unlink", "UNLINK", |path, _| fs::remove_file(path.join("file"))),
    ];
    let cluster = Cluster::pair_on_network();
    let [a, b] = cluster.clients() else { panic!() };
    for (label, what, wait) in waits {
        for (role, holder, intruder) in [("a", a, b), ("b", b, a)] {
            let what = format!("{what}-{role}");
            let (ours, theirs) = warm_tree(&what, holder, intruder);
            let opened = File::open(ours.join("d")).unwrap();
            fs::write(theirs.join("d/another"), b"").unwrap();
            let directory = fs::metadata(ours.join("d")).unwrap().ino();
            let before = Counts::of(holder);
            holder.disconnect();
            thread::scope(|scope| {
                let _abort = AbortIfFailed([a, b]);
                let waiting = scope.spawn(|| wait(&ours.join("d"), &opened));
                wait_until(&what, || holder.kernel_cache().waiting().describe(directory).contains(label));
                let removing = scope.spawn(|| fs::remove_file(theirs.join("d/x")));
                holder.reconnect();
                join(&what, waiting).unwrap();
                join(&what, removing).unwrap();
            });
            let counts = Counts::of(holder).since(before);
            assert!(counts.epochs > 0 && counts.overdue == 0, "{what}: {counts:?}");
            let seen = tree(&ours);
            assert_eq!(seen, tree(&theirs), "{what}");
            assert!(!seen.iter().any(|(name, ..)| name == "d/x"), "{what}");
        }
    }
}

/// The watchdog: whatever holds the lock, a callback waits a second for it, and the log says what
/// for.
#[test]
fn what_holds_up_a_callback_for_a_second_is_named_and_waited_for_no_longer() {
    let log = Log::kept();
    let cluster = Cluster::pair_on_network();
    let [a, b] = cluster.clients() else { panic!() };
    for (role, holder, intruder) in [("a", a, b), ("b", b, a)] {
        let (ours, theirs) = warm_tree(role, holder, intruder);
        let watched = format!("watched-{role}");
        fs::rename(theirs.join("d/x"), theirs.join("d").join(&watched)).unwrap();
        for _ in 0..2 {
            fs::metadata(ours.join("d").join(&watched)).unwrap();
        }
        let directory = fs::metadata(ours.join("d")).unwrap().ino();
        let before = Counts::of(holder);
        let lookup = hold_requests(cluster.gates(), holder, |request| matches!(request, MdtRequest::Lookup(..)));
        thread::scope(|scope| {
            let _abort = AbortIfFailed([a, b]);
            let looking = scope.spawn(|| {
                let thread = rustix::thread::gettid().as_raw_nonzero();
                (thread, fs::metadata(ours.join("d/missing")).map(drop))
            });
            lookup.wait(role);
            let begun = Instant::now();
            join(role, scope.spawn(|| fs::remove_file(theirs.join("d").join(&watched)))).unwrap();
            assert!(begun.elapsed() >= Duration::from_secs(1) && lookup.count() > 0);
            let line = log.wait_for(&["has not dropped a name for a second", &format!("name=\"{watched}\"")]);
            lookup.open();
            let (thread, outcome) = join(role, looking);
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::NotFound);
            let request = format!("lookup of {} (thread {thread})", thread_name());
            let directory = format!("directory={}", InodeNumber(directory));
            assert!(line.contains(&directory) && line.contains(&request), "{line}");
        });
        let counts = Counts::of(holder).since(before);
        assert_eq!((counts.epochs, counts.overdue), (1, 1), "{counts:?}");
        assert_eq!(tree(&ours), tree(&theirs));
    }
}

/// What /proc says of threads of a test that have no name of their own: that of the test, cut.
fn thread_name() -> String {
    fs::read_to_string("/proc/thread-self/comm").unwrap().trim().to_owned()
}
