//! What the log says of withdrawals that take too long.

use std::{
    fs::{self, File},
    io::{self, PipeReader, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    thread,
};

use parking_lot::Mutex;

use super::*;
use crate::{
    kernel_cache::{WaitingRequest, withdrawal::Parts},
    protocol::{Opcode, notify::MINOR_OF_EPOCHS},
    session::device::Device,
};

const NODE: u64 = 5;
/// After so long a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A log of one thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// With what is logged meanwhile.
    fn of(&self, work: impl FnOnce()) -> String {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, work);
        self.text()
    }
}

fn logged(work: impl FnOnce()) -> String {
    Log::default().of(work)
}

fn teller(device: &Arc<Device>) -> Teller {
    let notifications = Notifications::new(device, MINOR_OF_EPOCHS);
    let names = Names::new(notifications.clone(), Arc::default(), Arc::default());
    Teller::new(notifications, Arc::default(), names, Arc::default(), Arc::default())
}

/// A kernel that hangs in all notifications: a full pipe. And what fills it.
fn hanging() -> (Arc<Device>, PipeReader, usize) {
    let (reader, mut writer) = io::pipe().unwrap();
    // SAFETY: the descriptor is open, and the command takes no argument.
    let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    let filled = usize::try_from(size).unwrap();
    writer.write_all(&vec![0; filled]).unwrap();
    (Arc::new(Device::from_descriptor(OwnedFd::from(writer))), reader, filled)
}

fn has_words(line: &str, words: &[&str]) {
    assert!(words.iter().all(|word| line.contains(word)), "{words:?} in: {line}");
}

/// A request of this thread about the inode, which is not answered.
fn request(teller: &Teller, opcode: Opcode) -> (impl Drop + use<>, String) {
    let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
    let entry = teller.waiting.enter(1, WaitingRequest { opcode, node: NODE, thread, since: Instant::now() });
    let program = fs::read_to_string("/proc/thread-self/comm").unwrap();
    (entry, format!("{} of {} (thread {thread})", opcode.label(), program.trim()))
}

#[test]
fn names_and_listings_that_the_kernel_does_not_drop_are_logged_with_what_holds_them_up() {
    let (device, mut reader, filled) = hanging();
    let mut teller = teller(&device);
    let (_entry, words) = request(&teller, Opcode::Create);
    let (mut name, mut listing, now) = (Parts::default(), Parts::default(), Instant::now());
    let withdrawn = Arc::new(Name::new(NODE, b"held"));
    assert!(teller.names.withdraw(withdrawn, Invalidation::Drop, now, name.add()).is_none());
    let withdrawn = Arc::new(Name::new(NODE, b""));
    assert!(teller.names.withdraw(withdrawn, Invalidation::Listing, now, listing.add()).is_none());
    assert_eq!(logged(|| teller.look(now)), "", "it is not late yet");
    let log = Log::default();
    let log = thread::scope(|scope| {
        // The declaration that all names are outdated goes the same way: it hangs until here, too.
        scope.spawn(|| {
            let begun = Instant::now();
            while log.text().lines().count() < 2 && begun.elapsed() < TIMEOUT {
                thread::yield_now();
            }
            reader.read_exact(&mut vec![0; filled]).unwrap();
        });
        log.of(|| teller.look(now + WITHDRAWAL_TIMEOUT))
    });
    let lines: Vec<&str> = log.lines().collect();
    let directory = format!("directory={}", types::InodeNumber(NODE));
    let [of_listing, of_name] = lines[..] else { panic!("{log}") };
    has_words(of_listing, &["the names of a directory for a second", &directory, &words]);
    has_words(of_name, &["not dropped a name for a second", &directory, "name=\"held\"", &words]);
    assert_eq!((teller.statistics.get(Count::Overdue), teller.statistics.get(Count::Epochs)), (2, 1));
    assert_eq!(logged(|| teller.look(now + 2 * WITHDRAWAL_TIMEOUT)), "", "once");
}

#[test]
fn inodes_that_stay_unknown_to_the_kernel_are_logged_with_their_requests() {
    // Nothing can be written here, so the kernel never says that it knows the inode.
    let device = Arc::new(Device::from_descriptor(OwnedFd::from(File::open("/dev/null").unwrap())));
    let mut teller = teller(&device);
    let (_entry, words) = request(&teller, Opcode::Lookup);
    teller.table.prepare(NODE, true, None, Instant::now());
    let mut parts = Parts::default();
    let begun = Instant::now();
    let refused = logged(|| teller.execute(Job::Attributes(vec![NODE], parts.add())));
    assert!(refused.contains("the kernel refused a notification"), "{refused}");
    assert_eq!(teller.statistics.get(Count::Overdue), 0);
    let log = logged(|| teller.look(begun + 2 * WITHDRAWAL_TIMEOUT));
    let inode = format!("inode={}", types::InodeNumber(NODE));
    let [line] = log.lines().collect::<Vec<_>>()[..] else { panic!("{log}") };
    has_words(line, &["the kernel does not know inodes", &inode, "inodes=1", &words]);
    assert_eq!(teller.statistics.get(Count::Overdue), 1);
}
