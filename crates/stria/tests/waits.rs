//! Processes that wait for a server that is down: what ends their waits, what does not, and what
//! the log says about them.

mod common;

use std::{
    fs,
    io::Read,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use common::{FileSystem, TIMEOUT, Transport, programs::program, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// How long a process that is killed may take to end: less than half of what the mount waits for a
/// server.
const SOON: Duration = Duration::from_secs(45);

/// Reads a file, and lives through SIGUSR1.
const READER: &str =
    "$SIG{USR1} = sub {}; open(F, '<', $ARGV[0]) or die; defined(sysread(F, $x, 9)) or die $!; print $x";

/// Writes to the beginning of a file that exists.
const WRITER: &str = "open(F, '+<', $ARGV[0]) or die; syswrite(F, $ARGV[1]) or die $!";

/// Locks a file as fcntl(2) does, waiting for it if need be, says so, and holds it.
const LOCKER: &str =
    "use Fcntl; open(F, '+<', $ARGV[0]) or die; my $lock = pack('s s x4 q q l x4', F_WRLCK, 0, 0, 0, 0);
    fcntl(F, F_SETLKW, $lock) or die $!; $| = 1; print \"locked\\n\"; sleep $ARGV[1]";

/// A process of a test that waits.
struct Waiting {
    child: Child,
}

impl Waiting {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("the program is there") }
    }

    /// Waits until it prints its first byte.
    fn has_begun(mut self) -> Self {
        let output = self.child.stdout.as_mut().expect("it is piped");
        output.read_exact(&mut [0]).expect("the process says something");
        self
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it has not been waited for");
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_some()
    }

    #[track_caller]
    fn ends_soon(&mut self) -> ExitStatus {
        wait_for("the end of a killed process", SOON, || self.child.try_wait().expect("it is a child"))
    }

    /// Sends a fatal signal, and waits for the end.
    #[track_caller]
    fn dies_of(mut self, signal: Signal) {
        self.signal(signal);
        assert_eq!(self.ends_soon().signal(), Some(signal.as_raw()));
    }
}

/// Lines of the log about waits.
fn told(system: &FileSystem) -> Vec<String> {
    let log = system.client_log(0);
    log.lines().filter(|line| line.contains("a process has waited 3 s")).map(str::to_owned).collect()
}

/// Waits until the log tells of so many waits.
#[track_caller]
fn wait_until_told(system: &FileSystem, count: usize) {
    wait_for("lines about waits", TIMEOUT, || (told(system).len() >= count).then_some(()));
}

#[test]
fn a_fatal_signal_ends_a_wait_for_a_dead_target_and_no_other_signal_does() {
    let mut system = FileSystem::start(Transport::Tcp, 1);
    let root = system.root().to_owned();
    system
        .shell("for name in read written appended; do lfs setstripe -c 1 -i 0 $A/$name && printf text > $A/$name; done")
        .succeed();
    let [read, written, appended] = ["read", "written", "appended"].map(|name| root.join(name).display().to_string());
    system.kill_server(1);
    let cat = || Waiting::start("cat", &[&read]);
    let perl = || Waiting::start("perl", &["-e", READER, &read]);
    let (killed, terminated, dumped) = (cat(), cat(), cat());
    let writer = Waiting::start("dd", &["if=/dev/zero", &format!("of={written}"), "bs=4", "count=1", "conv=notrunc"]);
    let appender = Waiting::start("sh", &["-c", "printf more >> $0", &appended]);
    let (mut patient, late) = (perl(), perl());
    wait_until_told(&system, 7);

    // One that is caught, twice: the kernel tells of the first one only.
    for reader in [&patient, &late, &patient, &late] {
        reader.signal(Signal::USR1);
    }
    killed.dies_of(Signal::KILL);
    terminated.dies_of(Signal::TERM);
    // With its core dump, it ends a process in another way. (Not SIGQUIT: whatever a shell starts
    // in the background ignores it.)
    dumped.dies_of(Signal::ABORT);
    writer.dies_of(Signal::KILL);
    appender.dies_of(Signal::KILL);
    late.dies_of(Signal::KILL);
    assert!(!patient.has_ended(), "reads do not end by signals that are caught");
    let lines = told(&system);
    assert_eq!(lines.len(), 7, "each wait is told of once: {lines:#?}");
    for operation in ["read", "write"] {
        let named =
            |line: &&String| line.contains(&format!("operation=\"{operation}\"")) && line.contains("stria-OST0000");
        assert!(lines.iter().filter(named).count() >= 2, "{operation}: {lines:#?}");
    }

    system.start_server(1);
    let status = wait_for("the end of the patient reader", TIMEOUT, || patient.child.try_wait().expect("a child"));
    let output = patient.child.wait_with_output().expect("output");
    assert!(status.success() && output.stdout == b"text", "{output:?}");
    // Nothing is left of them that others would wait for, and what they did happened once or not at
    // all.
    system.shell("printf end >> $A/appended").succeed();
    let text = fs::read_to_string(&appended).expect("read");
    assert!(["textend", "textmoreend"].contains(&text.as_str()), "{text}");
    let bytes = fs::read(&written).expect("read");
    assert!(bytes == b"text" || bytes == [0; 4], "{bytes:?}");
    system.finish();
}

/// The write of a killed process has been sent: it may take effect, but not after a later one.
#[test]
fn what_a_killed_writer_has_sent_does_not_undo_a_later_write() {
    let system = FileSystem::start(Transport::Tcp, 1);
    system.shell("lfs setstripe -c 1 -i 0 $A/file && printf text > $A/file").succeed();
    let path = system.root().join("file");
    let name = path.display().to_string();
    let write = |text: &str| Waiting::start("perl", &["-e", WRITER, &name, text]);
    let server = system.server_pid(1).to_string();
    let signal = |name: &str| program("kill").args([&format!("-{name}"), &server]).succeed();
    signal("STOP");
    let killed = write("dead");
    wait_until_told(&system, 1);
    killed.dies_of(Signal::KILL);
    let mut later = write("live");
    wait_until_told(&system, 2);
    signal("CONT");
    assert!(later.ends_soon().success());
    assert_eq!(fs::read_to_string(&path).expect("read"), "live");
    system.finish();
}

#[test]
fn a_fatal_signal_ends_waits_for_a_dead_metadata_server() {
    let mut system = FileSystem::start(Transport::Tcp, 1);
    let root = system.root().to_owned();
    fs::create_dir(root.join("d")).expect("mkdir");
    fs::write(root.join("d/file"), "text").expect("write");
    let [directory, file, new] = ["d", "d/file", "d/new"].map(|name| root.join(name).display().to_string());
    // Closing the file releases the lock.
    let locker = Waiting::start("perl", &["-e", LOCKER, &file, "1000"]).has_begun();
    system.kill_server(0);
    locker.dies_of(Signal::KILL);
    let waiting = [
        Waiting::start("stat", &[&file]),
        Waiting::start("cat", &[&file]),
        Waiting::start("touch", &[&new]),
        Waiting::start("ls", &[&directory]),
        Waiting::start("flock", &[&directory, "true"]),
    ];
    // Nobody waits for the close of the locker.
    wait_until_told(&system, waiting.len());
    for process in waiting {
        process.dies_of(Signal::KILL);
    }
    system.start_server(0);
    wait_for("the mount works again", TIMEOUT, || fs::read(&file).ok());
    let mut next = Waiting::start("perl", &["-e", LOCKER, &file, "0"]);
    assert!(next.ends_soon().success(), "the lock is released");
    system.shell("flock $A/d touch $A/d/other && rm -r $A/d").succeed();
    system.finish();
}

/// Others answer, but need the one that is down.
#[test]
fn a_fatal_signal_ends_waits_for_one_of_several_mdts() {
    let mut system = FileSystem::start_with_mdts_apart(1, 3);
    // Each process has a directory of its own: the kernel makes changes in one directory wait for
    // each other, and renames from one directory to another.
    system
        .shell(
            "cd $A && mkdir p{1..5} && touch p1/file p2/file && lfs mkdir -i 1 far && echo text > far/file && \
             lfs mkdir -i 1 p3/gone && lfs mkdir -i 2 two && lfs mkdir -i 1 two/gone && lfs mkdir -c -1 s t && touch s/{a..z}",
        )
        .succeed();
    let root = system.root().to_owned();
    let at = |name: &str| root.join(name).display().to_string();
    let server = system.server_of_mdt(1);
    system.kill_server(server);
    let renames = Waiting::start("mv", &[&at("p1/file"), &at("far/moved")]);
    let waiting = [
        Waiting::start("cat", &[&at("far/file")]),
        Waiting::start("ls", &[&at("s")]),
        Waiting::start("rmdir", &[&at("p3/gone")]),
        Waiting::start("rmdir", &[&at("two/gone")]),
        Waiting::start("chmod", &["700", &at("t")]),
        Waiting::start(
            "bash",
            &["-c", &format!("PATH={} exec lfs mkdir -c -1 {}", system.place().path_variable(), at("p4/new"))],
        ),
    ];
    wait_until_told(&system, 1 + waiting.len());
    let lines = told(&system);
    assert!(lines.iter().all(|line| line.contains("MDT0001")), "{lines:#?}");
    // Where the mount is connected to the MDT that it asks, it says so of the other one.
    assert!(lines.iter().any(|line| line.contains("which another metadata target needs")), "{lines:#?}");
    system.shell("cd $A && touch p2/new && mv p2/new p2/moved && mkdir p5/dir && ls -l p2 p5").succeed();
    renames.dies_of(Signal::KILL);
    system.shell("cd $A && mv p2/moved p5/ && mv p5/dir p2/ && ls -l p2 p5").succeed();
    for process in waiting {
        process.dies_of(Signal::KILL);
    }
    system.start_server(server);
    // What they began happened as a whole or not at all, and nothing of it stays locked.
    system
        .shell("cd $A && cat far/file && ls s && stat -c %a t && touch p{1..5}/last && rm -r * && lfs mkdir -c 3 s")
        .succeed();
    assert_eq!(system.shell("ls -A $A").succeed(), "s\n");
    system.finish();
}
