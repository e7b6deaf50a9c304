//! A child process that runs until it is told to stop, and whose lines say how far it is.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a daemon may take to say something, or to end. Far more than any takes: it ends tests that hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running `stria up`, `serve` or `mount`. Killed when dropped.
pub struct Daemon {
    name: String,
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command`; its standard error goes to `log`, after what an earlier life has written there.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let errors = File::options().create(true).append(true).open(log).expect("log file");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let (sender, lines) = channel();
        // Ends with the process; what nobody waits for is dropped.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { name: name.to_owned(), child, lines, log: log.to_owned() }
    }

    /// Reads lines up to one that contains `wanted`, and returns it.
    pub fn wait_for(&mut self, wanted: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(wanted) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("{} did not say '{wanted}'\n{}", self.name, self.log()),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    panic!("{} ended ({status:?}) before it said '{wanted}'\n{}", self.name, self.log());
                }
            }
        }
    }

    /// Asks for a clean stop and waits; the daemon must end without error.
    pub fn stop(mut self) {
        let status = self.end(Signal::TERM);
        assert!(status.success(), "{} ended with {status}\n{}", self.name, self.log());
    }

    /// Kills at once and waits until the process is gone.
    pub fn kill(mut self) {
        self.end(Signal::KILL);
    }

    /// Waits for an end that something else has caused.
    pub fn ended(mut self) -> ExitStatus {
        self.wait()
    }

    /// What it has logged.
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
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().expect("a child can be waited for"),
                Err(RecvTimeoutError::Timeout) => panic!("{} does not end\n{}", self.name, self.log()),
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After a clean end both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
