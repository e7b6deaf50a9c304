//! The log of a background process: the system's log, through the datagram socket `/dev/log` of
//! syslogd and journald (RFC 3164, section 4.1, without time and host, which they add).
//!
//! One event is one datagram. The process never waits: events that the log does not accept at once
//! are lost, as are all events while no daemon serves the socket. Downside: a process that must not
//! lose lines needs a file of its own (`--log`).

use std::{
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The socket of the system's log.
const SOCKET: &str = "/dev/log";
/// Facility "system daemons".
const DAEMON: u8 = 3;
/// Longest datagram: what syslogd takes without cutting.
const DATAGRAM_BYTES_MAX: usize = 8 << 10;

/// See the module documentation.
#[derive(Debug)]
pub struct SystemLog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl SystemLog {
    /// The log of this host.
    pub fn open() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    /// Whether a log daemon accepts messages: containers have no `/dev/log`.
    pub fn is_served() -> bool {
        Self::is_served_at(Path::new(SOCKET))
    }

    fn is_served_at(path: &Path) -> bool {
        UnixDatagram::unbound().and_then(|socket| socket.connect(path)).is_ok()
    }

    fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.to_owned() })
    }
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = EventWriter<'a>;

    fn make_writer(&'a self) -> EventWriter<'a> {
        EventWriter { log: self, severity: severity(Level::INFO) }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> EventWriter<'a> {
        EventWriter { log: self, severity: severity(*event.level()) }
    }
}

/// Severity of RFC 3164, table 2.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Writes one event, which comes in one piece.
#[derive(Debug)]
pub struct EventWriter<'a> {
    log: &'a SystemLog,
    severity: u8,
}

impl Write for EventWriter<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let priority = DAEMON * 8 + self.severity;
        let mut datagram = format!("<{priority}>stria[{}]: ", std::process::id()).into_bytes();
        datagram.extend(event.trim_ascii_end());
        datagram.truncate(DATAGRAM_BYTES_MAX);
        // By path each time: the log may be restarted.
        let _ = self.log.socket.send_to(&datagram, &self.log.path);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_datagrams_and_nobody_listening_is_no_error() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        let log = SystemLog::at(&path).unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(log).without_time().with_level(false).with_ansi(false);
        tracing::subscriber::with_default(subscriber.with_target(false).finish(), || {
            tracing::error!("lost");
            assert!(!SystemLog::is_served_at(&path));
            let reader = UnixDatagram::bind(&path).unwrap();
            assert!(SystemLog::is_served_at(&path));
            tracing::warn!(ost = 3, "it does not answer");
            tracing::error!("{}", "x".repeat(2 * DATAGRAM_BYTES_MAX));
            let mut bytes = [0; 2 * DATAGRAM_BYTES_MAX];
            let length = reader.recv(&mut bytes).unwrap();
            let expected = format!("<28>stria[{}]: it does not answer ost=3", std::process::id());
            assert_eq!(std::str::from_utf8(&bytes[..length]).unwrap(), expected);
            assert_eq!(reader.recv(&mut bytes).unwrap(), DATAGRAM_BYTES_MAX);
            assert!(bytes.starts_with(b"<27>"));
        });
    }
}
