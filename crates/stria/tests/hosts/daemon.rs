//! A `stria` process of a test: started, watched through its log, killed.

use std::{
    fs::File,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Signal, set_parent_process_death_signal};

/// The program under test.
pub const STRIA: &str = env!("CARGO_BIN_EXE_stria");
/// How long things may take that must happen; generous, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(20);

/// Waits until `look` gives something.
#[track_caller]
pub fn wait_for<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {} s: {what}", patience.as_secs());
        thread::sleep(POLL);
    }
}

/// A running process. Killed when dropped, and when the thread that started it ends.
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    /// Length of the log when this process started.
    log_begin: usize,
}

impl Daemon {
    /// Starts `command` with output and errors appended to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Daemon {
        let file = File::options().create(true).append(true).open(log).expect("the log can be written");
        let log_begin = file.metadata().expect("the log was just opened").len() as usize;
        let errors = file.try_clone().expect("a descriptor can be duplicated");
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        // SAFETY: prctl is async-signal-safe and touches no memory of this process.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        Daemon { name: name.to_owned(), child, log: log.to_owned(), log_begin }
    }

    /// What this process has written so far.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).expect("the log can be read");
        String::from_utf8_lossy(bytes.get(self.log_begin..).unwrap_or(&[])).into_owned()
    }

    /// Waits until the process has written `text`.
    #[track_caller]
    pub fn wait_for_log(&mut self, text: &str) {
        wait_for(&format!("'{text}' in the log of {}", self.name), PATIENCE, || {
            let ended = self.child.try_wait().expect("the process is ours");
            let log = self.log();
            let found = log.contains(text);
            assert!(found || ended.is_none(), "{} ended ({ended:?}):\n{log}", self.name);
            found.then_some(())
        });
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let ended = self.child.wait();
        let log = self.log();
        if !thread::panicking() {
            assert!(!log.contains("panicked at"), "{} panicked:\n{log}", self.name);
            let aborted = ended.ok().and_then(|status| status.signal()).is_some_and(|signal| signal == 6);
            assert!(!aborted, "{} aborted:\n{log}", self.name);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
        if thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("--- end of the log of {} ---", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}
