//! What the current thread logs.

use std::{io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tracing::subscriber::DefaultGuard;

/// After so long without a line, a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// See the module documentation.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// What this thread logs until the guard is dropped.
    pub fn of_this_thread() -> (Log, DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let format = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
        let subscriber = format.with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that have all of these words.
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has_all).map(str::to_owned).collect()
    }

    /// Waits for such a line.
    pub async fn wait_for(&self, words: &[&str]) -> String {
        let found = async {
            loop {
                match self.lines(words).pop() {
                    Some(line) => return line,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let found = tokio::time::timeout(TIMEOUT, found).await;
        found.unwrap_or_else(|_| panic!("no line with {words:?}: {:?}", self.lines(&[])))
    }
}
