//! The control socket of a daemon: `<run dir>/<pid>.sock`, for root and the daemon's user.
//!
//! One thread accepts and answers one request after the other: control is rare, and must work when
//! everything else is busy. Life cycle: made when the daemon is ready, removed when it stops; a
//! file left by a dead daemon is recognised because nothing listens on it, and is removed by the
//! next program that looks.

use std::{
    fs::Permissions,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::{
    protocol::{CtlReply, CtlRequest},
    run_dir,
};

/// Longest request or reply line.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// How long a silent peer is waited for.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Answers requests.
pub trait Responder: Send + Sync + 'static {
    /// The answer to one request. May block.
    fn respond(&self, request: CtlRequest) -> CtlReply;
}

/// A daemon's open control socket. Dropping it removes the file.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl ControlSocket {
    /// Opens the socket of this process in `run_dir` and answers from now on.
    pub fn open(run_dir: &Path, responder: Arc<dyn Responder>) -> io::Result<Self> {
        run_dir::prepare(run_dir)?;
        let path = run_dir.join(format!("{}.sock", std::process::id()));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let answered = stream.and_then(|stream| answer(stream, &*responder));
                if let Err(error) = answered {
                    tracing::debug!("control socket: {error}");
                }
            }
        })?;
        Ok(Self { path })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(mut stream: UnixStream, responder: &dyn Responder) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(&stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => responder.respond(request),
        Err(error) => CtlReply::Error(format!("cannot parse the request: {error}")),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// The daemons of this host that answer in `run_dir`, by process id; sockets of dead ones are
/// removed.
pub fn daemons(run_dir: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match run_dir::check(run_dir).and_then(|()| std::fs::read_dir(run_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let process = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".sock")?.parse().ok());
        let Some(process) = process else { continue };
        let is_there = match connected(&path, None) {
            // One that has no room for another caller is there.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other.map(drop),
        };
        let gone = match is_there {
            Ok(()) => {
                found.push((process, path));
                continue;
            }
            // Not found: the file itself has just gone, or it is a link to one that has.
            Err(error) if [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound].contains(&error.kind()) => {
                std::fs::remove_file(&path)
            }
            Err(error) => Err(error),
        };
        // Daemons come and go while this looks: one that has just ended has removed its file, or
        // somebody else has.
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Connects to a socket; `WouldBlock` if the daemon has no room for another caller within
/// `timeout`; `None`: at once.
fn connected(path: &Path, timeout: Option<Duration>) -> io::Result<UnixStream> {
    let flags = if timeout.is_none() { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, timeout)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Sends one request to the daemon at `path`.
pub fn ask(path: &Path, request: &CtlRequest) -> io::Result<CtlReply> {
    ask_for(path, request, TIMEOUT)
}

/// As [`ask`]; `TimedOut` if the daemon is silent for longer than `timeout`.
pub fn ask_for(path: &Path, request: &CtlRequest, timeout: Duration) -> io::Result<CtlReply> {
    let answered = || {
        let mut stream = connected(path, Some(timeout))?;
        stream.set_read_timeout(Some(timeout))?;
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        stream.write_all(text.as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
        Ok(line)
    };
    let line = answered().map_err(|error: io::Error| match error.kind() {
        // What a time-out of a socket is.
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", timeout.as_secs_f32()))
        }
        _ => error,
    })?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Responder for Echo {
        fn respond(&self, request: CtlRequest) -> CtlReply {
            CtlReply::Error(format!("{request:?}"))
        }
    }

    #[test]
    fn a_daemon_is_found_asked_and_gone() {
        let place = tempfile::tempdir().unwrap();
        let socket = ControlSocket::open(place.path(), Arc::new(Echo)).unwrap();
        let found = daemons(place.path()).unwrap();
        assert_eq!(found.len(), 1);
        let reply = ask(&found[0].1, &CtlRequest::Get { pattern: "*".into() }).unwrap();
        assert!(matches!(reply, CtlReply::Error(text) if text.contains("Get")));
        drop(socket);
        assert!(daemons(place.path()).unwrap().is_empty());
    }

    #[test]
    fn a_daemon_is_found_where_it_is_registered_until_it_ends() {
        let (place, registry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let socket = ControlSocket::open(place.path(), Arc::new(Echo)).unwrap();
        let registration = run_dir::Registration::within(registry.path(), socket.path()).unwrap();
        let found = daemons(registry.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert!(ask(&found[0].1, &CtlRequest::Targets).is_ok());
        // A killed daemon leaves both; the next program that looks removes the link when the socket
        // is dead or gone.
        let dead = place.path().join("4294967295.sock");
        drop(UnixListener::bind(&dead).unwrap());
        for _ in 0..2 {
            std::mem::forget(run_dir::Registration::within(registry.path(), &dead).unwrap());
            assert_eq!(daemons(registry.path()).unwrap().len(), 1);
            assert!(!registry.path().join("4294967295.sock").is_symlink());
            let _ = std::fs::remove_file(&dead);
        }
        drop(registration);
        assert!(daemons(registry.path()).unwrap().is_empty());
        // In its own directory it is found without a link.
        drop(run_dir::Registration::within(place.path(), socket.path()).unwrap());
        assert_eq!(daemons(place.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_daemon_without_room_for_callers_is_found_and_keeps_nobody_waiting() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("7.sock");
        // Nobody accepts, as in a process that is stopped.
        let _listener = UnixListener::bind(&path).unwrap();
        let mut callers = Vec::new();
        while let Ok(caller) = connected(&path, None) {
            callers.push(caller);
        }
        assert_eq!(daemons(place.path()).unwrap(), [(7, path.clone())]);
        let refused = ask_for(&path, &CtlRequest::Targets, Duration::from_millis(50)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
        callers.pop();
        let silent = ask_for(&path, &CtlRequest::Targets, Duration::from_millis(50)).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut, "{silent}");
    }

    #[test]
    fn garbage_is_answered_with_an_error_and_dead_sockets_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let _socket = ControlSocket::open(place.path(), Arc::new(Echo)).unwrap();
        let path = &daemons(place.path()).unwrap()[0].1;
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(b"\x00\xffgarbage\n").unwrap();
        let mut reply = String::new();
        // Bytes that are not UTF-8 end the conversation; what matters is that the next one works.
        let _ = stream.read_to_string(&mut reply);
        assert!(ask(path, &CtlRequest::Targets).is_ok());
        drop(UnixListener::bind(place.path().join("4294967295.sock")).unwrap());
        assert_eq!(daemons(place.path()).unwrap().len(), 1);
        assert!(!place.path().join("4294967295.sock").exists());
    }
}
