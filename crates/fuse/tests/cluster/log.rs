//! The log of this process, for tests of what it says.

use std::{
    io,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// After so long without a line, a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

static LOG: OnceLock<Log> = OnceLock::new();

/// Warnings and errors of all tests of this process so far.
#[derive(Default)]
pub struct Log(Mutex<Vec<u8>>);

/// Where tracing writes.
struct Writer(&'static Log);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The log, which is kept from the first call on.
    pub fn kept() -> &'static Log {
        LOG.get_or_init(|| {
            let log = || Writer(LOG.wait());
            let format = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
            format.with_writer(log).init();
            Log::default()
        })
    }

    /// The lines that have all of these words.
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has_all).map(str::to_owned).collect()
    }

    /// Waits for such a line.
    pub fn wait_for(&self, words: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.lines(words).pop() {
                return line;
            }
            assert!(begun.elapsed() < TIMEOUT, "no line with {words:?} in the log");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
