//! Mounts and sessions with the real kernel, and a handler of a few lines instead of a file system.
//! Needs root and `/dev/fuse`; without them the tests fail, they do not skip.

#[path = "cluster/free.rs"]
mod free;

use std::{
    fs,
    io::{self, Read},
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fuse::mount::fusermount;
use fuse::protocol::reply::{Attr, AttributesOut, EntryOut, OpenOut, WriteOut};
use fuse::protocol::{Incoming, Operation};
use fuse::session::{
    Answer, EntryBytes, Handler, Responder, RingChoice, Session, SessionError, SessionOptions, Transport,
};
use fuse::{Mount, MountError, MountOptions, Unmounted};
use host::errno::Errno;
use host::mount_table;
use rt::BoxFuture;
use rt::real::Cores;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::sync::Semaphore;
use types::FsError;

const SOURCE: &str = "mgs.test:9800:/test";
const TEXT: &[u8] = b"hello, kernel\n";
const FILE_NODE: u64 = 2;
/// Whether the kernel offers FUSE over io_uring; absent before Linux 6.14.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
/// Pages of a request at most; absent before Linux 6.13.
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// A root directory with one file `hello`. Looking up `panic` panics; looking up `slow...` waits
/// until it is released.
struct Toy {
    waiting: Semaphore,
    released: Semaphore,
    /// Answers that came too late.
    late: AtomicUsize,
    /// Bytes of each READ and WRITE.
    transfers: Mutex<Vec<u32>>,
}

fn attributes(node: u64) -> Attr {
    let (mode, size) = if node == FILE_NODE { (libc::S_IFREG | 0o644, TEXT.len()) } else { (libc::S_IFDIR | 0o755, 0) };
    Attr { inode: node, mode, size: size as u64, links: 1, block_size: 4096, ..Attr::default() }
}

impl Handler for Toy {
    fn handle(
        self: Arc<Self>,
        incoming: Incoming<'_>,
        data: Bytes,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        let node = incoming.header.node;
        match incoming.operation {
            Operation::GetAttributes(_) => {
                let out = AttributesOut { attributes: attributes(node), ..AttributesOut::default() };
                responder.send(Ok(Answer::of(&out)));
            }
            Operation::Lookup { name: b"hello" } => {
                let out = EntryOut { node: FILE_NODE, attributes: attributes(FILE_NODE), ..EntryOut::default() };
                responder.send(Ok(Answer::of(&out)));
            }
            Operation::Lookup { name: name @ (b"prompt" | b"late") } => {
                let out = EntryOut { node: FILE_NODE, attributes: attributes(FILE_NODE), ..EntryOut::default() };
                let age = Duration::from_secs(if name == b"late" { 2 } else { 0 });
                let decided = Instant::now().checked_sub(age);
                responder.send(Ok(Answer { decided, ..Answer::of(&out) }));
            }
            Operation::Lookup { name: b"panic" } => panic!("on purpose"),
            Operation::Lookup { name } if name.starts_with(b"slow") => {
                return Some(Box::pin(async move {
                    self.waiting.add_permits(1);
                    self.released.acquire().await.unwrap().forget();
                    responder.send(Err(FsError::NotPermitted));
                }));
            }
            Operation::Lookup { .. } => responder.send(Err(FsError::NotFound)),
            Operation::Open(_) => responder.send(Ok(Answer::of(&OpenOut { flags: 1, ..OpenOut::default() }))),
            Operation::Read(read) => {
                self.transfers.lock().unwrap().push(read.size);
                let from = (read.offset as usize).min(TEXT.len());
                let (first, second) = TEXT[from..].split_at((TEXT.len() - from) / 2);
                let pieces = vec![Bytes::from_static(first), Bytes::from_static(second)];
                responder.send(Ok(Answer { pieces, ..Answer::default() }));
            }
            Operation::Write { write, .. } => {
                assert_eq!(data.len(), write.size as usize);
                assert!(data.iter().all(|byte| *byte == 7));
                self.transfers.lock().unwrap().push(write.size);
                responder.send(Ok(Answer::of(&WriteOut { size: write.size, padding: 0 })));
            }
            Operation::Forget(_) | Operation::BatchForget { .. } | Operation::Interrupt(_) => responder.forget(),
            Operation::Statx(_) => responder.refuse(Errno::NO_SUCH_OPERATION),
            _ => responder.send(Ok(Answer::done())),
        }
        None
    }

    fn answered_late(&self) {
        self.late.fetch_add(1, Ordering::SeqCst);
    }
}

/// A toy mounted on a directory of its own.
struct Fixture {
    toy: Arc<Toy>,
    cores: Cores,
    directory: tempfile::TempDir,
    io_uring: RingChoice,
}

impl Fixture {
    fn new() -> Self {
        Self::over(RingChoice::Auto)
    }

    fn over(io_uring: RingChoice) -> Self {
        let toy = Toy {
            waiting: Semaphore::new(0),
            released: Semaphore::new(0),
            late: AtomicUsize::new(0),
            transfers: Mutex::default(),
        };
        let (cores, directory) = (Cores::start(2).unwrap(), tempfile::tempdir().unwrap());
        Self { toy: Arc::new(toy), cores, directory, io_uring }
    }

    fn mount(&self) -> Result<Mount, MountError> {
        let options = MountOptions { io_uring: self.io_uring, ..MountOptions::default() };
        let mount =
            || Mount::with_handler(self.toy.clone(), SOURCE, self.directory.path(), &options, self.cores.clone());
        if self.io_uring == RingChoice::On { while_offered(mount) } else { mount() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.cores.shutdown();
    }
}

/// Runs a test over every transport that the kernel knows.
fn over_each(test: impl Fn(Fixture)) {
    test(Fixture::over(RingChoice::Off));
    if Path::new(ENABLE_URING).exists() {
        test(Fixture::over(RingChoice::On));
    }
}

/// Mounts while the kernel offers FUSE over io_uring. It looks at this at the mount only, and what
/// it offers to other mounts of this host stays as it was.
fn while_offered<T>(mount: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = fs::read_to_string(ENABLE_URING).unwrap();
    fs::write(ENABLE_URING, "Y").unwrap();
    let mounted = mount();
    fs::write(ENABLE_URING, before.trim()).unwrap();
    mounted
}

/// Mounts while the kernel allows requests of so many pages. It looks at this at the mount only.
fn while_allowed<T>(pages: u32, mount: impl FnOnce() -> T) -> T {
    let before = fs::read_to_string(PAGES_LIMIT).unwrap();
    fs::write(PAGES_LIMIT, pages.to_string()).unwrap();
    let mounted = mount();
    fs::write(PAGES_LIMIT, before.trim()).unwrap();
    mounted
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_mount_is_shown_served_and_gone() {
    over_each(check_life);
}

fn check_life(fixture: Fixture) {
    let mount = fixture.mount().unwrap();
    let entry = mount_table::find(mount.point()).unwrap().unwrap();
    assert_eq!((entry.kind.as_str(), entry.source.as_str()), ("fuse.stria", SOURCE));
    let expected = if fixture.io_uring == RingChoice::On { Transport::IoUring } else { Transport::Device };
    assert_eq!(mount.transport(), expected);
    assert_eq!(mount.ring_entries_refused().load(Ordering::Relaxed), 0);
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
    assert_eq!(errno(fs::metadata(fixture.path("absent"))), libc::ENOENT);
    let ended = mount.ended();
    assert!(!*ended.borrow());
    free::wait_until_free(mount.point());
    assert_eq!(mount.unmount().unwrap(), Unmounted::Clean);
    assert!(*ended.borrow());
    assert_eq!(fs::read_dir(fixture.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_point_is_mounted_once() {
    let fixture = Fixture::new();
    let mount = fixture.mount().unwrap();
    let again = fixture.mount().map(|mount| mount.point().to_owned());
    assert!(matches!(&again, Err(MountError::AlreadyMounted { mounted, .. }) if mounted == SOURCE), "{again:?}");
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT, "the first is unharmed");
    mount.unmount().unwrap();
}

#[test]
fn a_busy_mount_is_detached_and_its_users_see_errors() {
    over_each(check_detached);
}

fn check_detached(fixture: Fixture) {
    let mount = fixture.mount().unwrap();
    let mut file = fs::File::open(fixture.path("hello")).unwrap();
    assert_eq!(mount.unmount().unwrap(), Unmounted::Detached);
    assert_eq!(errno(file.read(&mut [0; 4])), libc::ENOTCONN);
    assert!(mount_table::find(fixture.directory.path()).unwrap().is_none());
}

#[test]
fn an_unmount_by_somebody_else_ends_the_session() {
    over_each(check_foreign_unmount);
}

fn check_foreign_unmount(fixture: Fixture) {
    let mount = fixture.mount().unwrap();
    let mut ended = mount.ended();
    fuse::mount::unmount(fixture.directory.path(), false).unwrap();
    fixture.cores.block_on(ended.wait_for(|ended| *ended)).unwrap();
    // What is mounted there now is not ours to remove.
    let other = Fixture::new();
    let replacement = Mount::with_handler(
        other.toy.clone(),
        SOURCE,
        fixture.directory.path(),
        &MountOptions::default(),
        other.cores.clone(),
    )
    .unwrap();
    assert_eq!(mount.unmount().unwrap(), Unmounted::Before);
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
    free::wait_until_free(replacement.point());
    assert_eq!(replacement.unmount().unwrap(), Unmounted::Clean);
}

#[test]
fn a_dropped_mount_is_unmounted() {
    let fixture = Fixture::new();
    drop(fixture.mount().unwrap());
    assert!(mount_table::find(fixture.directory.path()).unwrap().is_none());
}

#[test]
fn what_a_killed_process_left_is_cleaned_up() {
    let fixture = Fixture::new();
    let point = fixture.directory.path();
    leave_dead_mount(point, mount_table::FILE_SYSTEM_TYPE);
    assert_eq!(errno(fs::metadata(point)), libc::ENOTCONN);
    let mount = fixture.mount().unwrap();
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
    mount.unmount().unwrap();
    assert!(mount_table::find(point).unwrap().is_none(), "the dead mount is gone too");
}

#[test]
fn dead_mounts_of_other_programs_are_left_alone() {
    let fixture = Fixture::new();
    let point = fixture.directory.path();
    leave_dead_mount(point, "fuse.other");
    let result = fixture.mount().map(|_| ());
    rustix::mount::unmount(point, UnmountFlags::DETACH).unwrap();
    assert!(matches!(result, Err(MountError::DeadForeign { kind, .. }) if kind == "fuse.other"));
}

/// The state in which a killed server leaves its mount point: mounted, with no open device.
fn leave_dead_mount(point: &Path, kind: &str) {
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount(SOURCE, point, kind, MountFlags::empty(), data.as_c_str()).unwrap();
}

/// A process was stopped after it had decided what the kernel may keep of an answer.
#[test]
fn it_is_noticed_if_the_kernel_gets_an_answer_too_late() {
    over_each(check_late);
}

fn check_late(fixture: Fixture) {
    let mount = fixture.mount().unwrap();
    let late = || fixture.toy.late.load(Ordering::SeqCst);
    fs::metadata(fixture.path("prompt")).unwrap();
    fs::metadata(fixture.path("hello")).unwrap();
    assert_eq!(late(), 0);
    fs::metadata(fixture.path("late")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while late() == 0 {
        assert!(Instant::now() < deadline, "nobody noticed");
        thread::yield_now();
    }
    mount.unmount().unwrap();
}

#[test]
fn a_panic_is_an_input_output_error_and_no_more() {
    over_each(check_panic);
}

fn check_panic(fixture: Fixture) {
    let mount = fixture.mount().unwrap();
    for _ in 0..4 {
        assert_eq!(errno(fs::metadata(fixture.path("panic"))), libc::EIO);
    }
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
    mount.unmount().unwrap();
}

#[test]
fn pending_requests_do_not_hold_up_others() {
    over_each(check_pending);
}

fn check_pending(fixture: Fixture) {
    let mount = fixture.mount().unwrap();
    let (tell, told) = mpsc::channel();
    /// More than a ring has entries at first, for all processors together.
    const WAITING: u32 = 1300;
    /// Fewer than a queue keeps spare entries: it gets more once its core has run.
    const AT_ONCE: u32 = 130;
    const _: () = assert!(WAITING.is_multiple_of(AT_ONCE));
    for first in (0..WAITING).step_by(AT_ONCE as usize) {
        for number in first..first + AT_ONCE {
            let (path, tell) = (fixture.path(&format!("slow{number}")), tell.clone());
            thread::spawn(move || tell.send(errno(fs::metadata(path))).unwrap());
        }
        fixture.cores.block_on(fixture.toy.waiting.acquire_many(AT_ONCE)).unwrap().forget();
    }
    // More requests wait than there are workers, or entries at first; others are served meanwhile.
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
    assert!(told.try_recv().is_err());
    fixture.toy.released.add_permits(WAITING as usize);
    for _ in 0..WAITING {
        assert_eq!(told.recv().unwrap(), libc::EPERM);
    }
    mount.unmount().unwrap();
}

#[test]
fn requests_are_as_large_as_the_host_allows() {
    if Path::new(PAGES_LIMIT).exists() {
        over_each(check_large_requests);
    }
}

fn check_large_requests(fixture: Fixture) {
    const PAGES: u32 = 768;
    let mount = while_allowed(PAGES, || fixture.mount().unwrap());
    let file = fs::File::options().read(true).write(true).open(fixture.path("hello")).unwrap();
    // The kernel counts the pages of the program's memory.
    let mut memory = vec![7; (4 << 20) + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let data = &mut memory[start..start + (4 << 20)];
    assert_eq!(file.write_at(data, 0).unwrap(), data.len());
    assert_eq!(file.read_at(data, 0).unwrap(), TEXT.len());
    drop(file);
    mount.unmount().unwrap();
    let most = PAGES * 4096;
    assert_eq!(*fixture.toy.transfers.lock().unwrap(), [most, (4 << 20) - most, most]);
}

/// The way of users who are not root, taken by root: whether others may open `/dev/fuse` depends on
/// the host.
#[test]
fn the_helper_mounts_and_unmounts() {
    let fixture = Fixture::new();
    let point = fixture.directory.path();
    let options = format!("fsname={},subtype=stria", fusermount::escape("a:1,b:2:/test"));
    let device = fusermount::mount(point, &options).unwrap();
    let how = session_options(RingChoice::Auto, EntryBytes::of_each(DATA_BYTES));
    let session = Session::start(device, how, fixture.toy.clone(), fixture.cores.clone()).unwrap();
    let entry = mount_table::find(point).unwrap().unwrap();
    assert_eq!((entry.kind.as_str(), entry.source.as_str()), ("fuse.stria", "a:1,b:2:/test"));
    let file = fs::File::open(fixture.path("hello")).unwrap();
    assert_eq!(fusermount::unmount(point, false).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    drop(file);
    free::wait_until_free(point);
    fusermount::unmount(point, false).unwrap();
    fixture.cores.block_on(session.ended().wait_for(|ended| *ended)).unwrap();
    session.stop();
    let complaint = fusermount::mount(&fixture.path("absent"), &options).unwrap_err();
    assert!(complaint.to_string().contains("No such file or directory"), "{complaint}");
}

fn session_options(io_uring: RingChoice, entry_bytes: EntryBytes) -> SessionOptions {
    SessionOptions { threads: 2, features: 0, io_uring, data_bytes: DATA_BYTES, entry_bytes }
}

/// Bytes of data of a request at most.
const DATA_BYTES: usize = 1 << 20;
/// Less payload than the kernel demands of an entry of io_uring: it refuses the registration.
const TOO_FEW_BYTES: usize = 4096;

/// A session on the fixture's directory with such entries. The kernel must offer io_uring.
fn start_over_io_uring(fixture: &Fixture, entry_bytes: EntryBytes) -> Result<Session, SessionError> {
    let how = session_options(fixture.io_uring, entry_bytes);
    let device = fusermount::mount(fixture.directory.path(), "fsname=refused,subtype=stria").unwrap();
    Session::start(device, how, fixture.toy.clone(), fixture.cores.clone())
}

/// Ends a session that was mounted by [`start_over_io_uring`].
fn end(fixture: &Fixture, session: Session) {
    free::wait_until_free(fixture.directory.path());
    fusermount::unmount(fixture.directory.path(), false).unwrap();
    fixture.cores.block_on(session.ended().wait_for(|ended| *ended)).unwrap();
    session.stop();
}

#[test]
fn without_a_first_entry_requests_come_over_the_device() {
    if !Path::new(ENABLE_URING).exists() {
        return;
    }
    let refused = EntryBytes { first: TOO_FEW_BYTES, ..EntryBytes::of_each(DATA_BYTES) };
    let fixture = Fixture::over(RingChoice::Auto);
    let session = while_offered(|| start_over_io_uring(&fixture, refused).unwrap());
    assert_eq!(session.transport(), Transport::Device);
    assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
    end(&fixture, session);
    let fixture = Fixture::over(RingChoice::On);
    let error = while_offered(|| start_over_io_uring(&fixture, refused).map(|_| ()).unwrap_err().to_string());
    assert!(error.contains("io_uring=on cannot be fulfilled: the kernel refused an entry of queue "), "{error}");
    fusermount::unmount(fixture.directory.path(), true).unwrap();
}

/// A session of which every entry but the first of each queue was refused, and how many that are.
fn start_with_refused_entries(fixture: &Fixture) -> (Session, u64) {
    /// Entries that a queue gets besides its first.
    const FURTHER: u64 = 511;
    let processors = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let queues = processors.trim().rsplit(['-', ',']).next().unwrap().parse::<u64>().unwrap() + 1;
    let refused = EntryBytes { further: TOO_FEW_BYTES, ..EntryBytes::of_each(DATA_BYTES) };
    let session = start_over_io_uring(fixture, refused).unwrap();
    assert_eq!(session.transport(), Transport::IoUring);
    let deadline = Instant::now() + Duration::from_secs(20);
    while session.entries_refused().load(Ordering::Relaxed) < queues * FURTHER {
        assert!(Instant::now() < deadline, "not all of {queues} queues have asked");
        thread::yield_now();
    }
    (session, queues)
}

#[test]
fn refused_entries_are_counted_and_the_others_serve() {
    if !Path::new(ENABLE_URING).exists() {
        return;
    }
    /// Requests after which a queue asks again for what was refused.
    const ASKS_AGAIN: u64 = 1024;
    let fixture = Fixture::over(RingChoice::On);
    // After a refusal Linux 6.18 takes answers only as long as it offers io_uring to others.
    let session = while_offered(|| {
        let (session, queues) = start_with_refused_entries(&fixture);
        let count = || session.entries_refused().load(Ordering::Relaxed);
        let before = count();
        assert_eq!(fs::read(fixture.path("hello")).unwrap(), TEXT);
        let requests = queues * ASKS_AGAIN + 100;
        for number in 0..requests {
            assert_eq!(errno(fs::metadata(fixture.path(&format!("absent{number}")))), libc::ENOENT);
        }
        let again = count() - before;
        assert!((1..=requests / ASKS_AGAIN).contains(&again), "{again} more refusals in {requests} requests");
        free::wait_until_free(fixture.directory.path());
        fusermount::unmount(fixture.directory.path(), false).unwrap();
        session
    });
    fixture.cores.block_on(session.ended().wait_for(|ended| *ended)).unwrap();
    session.stop();
}

/// No program waits for an answer that the kernel does not take.
#[test]
fn a_mount_whose_answers_are_refused_ends() {
    if !Path::new(ENABLE_URING).exists() {
        return;
    }
    let fixture = Fixture::over(RingChoice::On);
    while_offered(|| {
        let (session, _) = start_with_refused_entries(&fixture);
        // Now as if an administrator had set it.
        fs::write(ENABLE_URING, "N").unwrap();
        let (path, ended) = (fixture.path("hello"), session.ended());
        let asking = thread::spawn(move || fs::metadata(path).map(|_| ()));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !*ended.borrow() && !asking.is_finished() {
            assert!(Instant::now() < deadline, "the program waits for its answer");
            thread::yield_now();
        }
        assert!(*ended.borrow(), "the kernel took the answer: {:?}", asking.join());
        session.stop();
        fusermount::unmount(fixture.directory.path(), true).unwrap();
        fixture.cores.shutdown();
        let error = errno(asking.join().unwrap());
        assert!([libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].contains(&error), "{error}");
    });
}
