//! Reports the state of a daemon to the service manager, by the protocol of sd_notify(3): one
//! datagram of `NAME=VALUE` lines to the socket that `$NOTIFY_SOCKET` names. Without that variable,
//! under a shell or in a test, nothing is sent.
//!
//! The manager waits for `READY=1` before it starts units that come after the daemon, and shows the
//! last `STATUS=` on request (`systemctl status`). A message that cannot be sent is dropped: the
//! daemon serves nevertheless, and a manager that never receives the readiness message reports this
//! itself.

use std::{
    ffi::OsStr,
    fmt::Display,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// The variable that names the socket.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// How long a message may wait for a manager that does not read.
const TIMEOUT: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug)]
pub struct ServiceManager {
    /// `None`: no service manager asked to be told.
    socket: Option<UnixDatagram>,
}

impl ServiceManager {
    /// The one that started this process, if any.
    pub fn of_this_process() -> Self {
        let socket = std::env::var_os(VARIABLE).and_then(|address| {
            Self::connect(&address)
                .inspect_err(|error| tracing::warn!("{VARIABLE}={}: {error}", address.display()))
                .ok()
        });
        Self { socket }
    }

    /// A socket that sends to a path, or to an abstract name, which is written with an `@`.
    fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(socket)
    }

    /// What the daemon does now.
    pub fn status(&self, text: impl Display) {
        self.send(&message("", &text.to_string()));
    }

    /// It is ready to be used.
    pub fn ready(&self, text: impl Display) {
        self.send(&message("READY=1\n", &text.to_string()));
    }

    /// It begins to stop.
    pub fn stopping(&self, text: impl Display) {
        self.send(&message("STOPPING=1\n", &text.to_string()));
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes())
        {
            tracing::debug!("cannot notify the service manager: {error}");
        }
    }
}

/// A message with this state and status; a status is one line.
fn message(state: &str, status: &str) -> String {
    format!("{state}STATUS={}\n", status.replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(listener: &UnixDatagram) -> String {
        let mut bytes = [0; 1024];
        let length = listener.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn states_reach_sockets_with_paths_and_abstract_names() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let name = format!("stria-test-{}", std::process::id());
        let listeners = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (listener, address) in listeners {
            let manager = ServiceManager { socket: Some(ServiceManager::connect(&address).unwrap()) };
            manager.status("opening 2 targets");
            manager.ready("serving\nall");
            manager.stopping("writing");
            assert_eq!(heard(&listener), "STATUS=opening 2 targets\n");
            assert_eq!(heard(&listener), "READY=1\nSTATUS=serving all\n");
            assert_eq!(heard(&listener), "STOPPING=1\nSTATUS=writing\n");
            // A manager that has gone away does no harm.
            drop(listener);
            manager.status("alone");
        }
    }

    #[test]
    fn without_a_socket_nothing_is_sent() {
        ServiceManager { socket: None }.ready("unheard");
        assert!(ServiceManager::connect(OsStr::new("/nonexistent/socket")).is_err());
        assert!(ServiceManager::connect(OsStr::new("")).is_err());
    }
}
