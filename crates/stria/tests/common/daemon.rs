//! A child process that runs until it is told to stop, and whose output lines show its progress.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// How long a daemon may take to say something, or to end. Far more than any takes: it ends tests
/// that hang.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running `stria up`, `serve` or `mount`. Killed when dropped, and when the thread that started
/// it is gone: a killed test leaves no daemons behind. One that panics fails the test.
pub struct Daemon {
    name: String,
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
    /// Length of the log when this process began.
    log_begin: usize,
}

impl Daemon {
    /// Starts `command`; its standard error goes to `log`, after what an earlier process has
    /// written there.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let errors = File::options().create(true).append(true).open(log).expect("log file");
        let log_begin = errors.metadata().expect("the log is open").len() as usize;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        // SAFETY: prctl is async-signal-safe and touches no memory of this process.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let (sender, lines) = channel();
        // Ends with the process; what nobody waits for is dropped.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { name: name.to_owned(), child, lines, log: log.to_owned(), log_begin }
    }

    /// Reads lines up to one that contains `wanted`, and returns it.
    #[track_caller]
    pub fn wait_for(&mut self, wanted: &str) -> String {
        self.comes_to(wanted).unwrap_or_else(|| {
            let status = self.child.wait();
            panic!("{} ended ({status:?}) before it said '{wanted}'\n{}", self.name, self.log())
        })
    }

    /// Reads lines up to one that contains `wanted`; `None` if the process ends without.
    #[track_caller]
    pub fn comes_to(&mut self, wanted: &str) -> Option<String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(wanted) => return Some(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("{} did not say '{wanted}'\n{}", self.name, self.log()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Asks for a clean stop and waits; the daemon must end without error.
    pub fn stop(mut self) {
        let status = self.end(Signal::TERM);
        assert!(status.success(), "{} ended with {status}\n{}", self.name, self.log());
    }

    /// Sends a signal and waits for the end, whichever it is.
    pub fn end_by(mut self, signal: Signal) -> ExitStatus {
        self.end(signal)
    }

    /// Kills at once and waits until the process is gone.
    pub fn kill(mut self) {
        self.end(Signal::KILL);
    }

    /// Waits for an end that something else has caused.
    pub fn ended(mut self) -> ExitStatus {
        self.wait()
    }

    /// What this process has logged itself.
    pub fn logged(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_begin..).unwrap_or_default()).into_owned()
    }

    /// Memory of the process, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("the process runs");
        let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm has seven numbers");
        pages * rustix::param::page_size() as u64
    }

    /// What it has logged, with earlier lives.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("--- log of {}:\n{text}---", self.name)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        let _ = kill_process(Pid::from_child(&self.child), signal);
        self.wait()
    }

    /// Its standard output closes when it ends, so waiting needs no polling.
    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{} does not end\n{}", self.name, self.log()),
            }
        }
        assert!(!self.logged().contains("panicked at"), "{} panicked\n{}", self.name, self.log());
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After a clean end both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
