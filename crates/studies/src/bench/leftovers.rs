//! What a benchmark or the demo must not leave behind, however it ends: running servers, their
//! directory, their control groups and network namespaces.
//!
//! All are listed here as long as they exist. Dropping them stops and removes them; a signal
//! (Ctrl-C, SIGTERM, the end of the terminal) does so for all, and ends the process. One lock
//! covers each creation and each removal: the signal handler finds everything that was created, and
//! code that cleans up at the same moment waits instead of ending the process in the middle.
//!
//! Servers are in process groups of their own, so that Ctrl-C does not reach them a second time,
//! which would end them without unmounting; the kernel tells them to stop if this process is
//! killed.
//!
//! Downside: only in that case the rest remains.

use std::{
    ffi::{OsStr, c_int},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus},
    sync::OnceLock,
};

use anyhow::Context;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
use signal_hook::{consts::SIGHUP, iterator::Signals};

use node::signals;

/// Everything there is, in the order in which it was made.
static LEFTOVERS: Mutex<Leftovers> =
    Mutex::new(Leftovers { servers: Vec::new(), kernel_objects: Vec::new(), places: Vec::new() });

struct Leftovers {
    servers: Vec<Pid>,
    kernel_objects: Vec<KernelObject>,
    places: Vec<PathBuf>,
}

impl Leftovers {
    /// Clients are younger than their servers and stop before them.
    fn remove(&self) {
        for server in self.servers.iter().rev() {
            let _ = kill_process(*server, Signal::TERM);
            let _ = waitpid(Some(*server), WaitOptions::empty());
        }
        for object in self.kernel_objects.iter().rev() {
            if let Err(error) = object.remove() {
                eprintln!("cannot remove {object:?}: {error}");
            }
        }
        for place in &self.places {
            if let Err(error) = remove(place) {
                eprintln!("cannot remove {}: {error}", place.display());
            }
        }
    }
}

/// A new directory, removed with all that is in it when dropped.
pub struct Place(PathBuf);

impl Place {
    /// Makes one below `parent`, or where temporary files go.
    pub fn new(prefix: &str, parent: Option<&Path>) -> anyhow::Result<Self> {
        clean_up_on_signals()?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix);
        let mut leftovers = LEFTOVERS.lock();
        let made = parent.map_or_else(|| builder.tempdir(), |parent| builder.tempdir_in(parent));
        let path = made.context("cannot create a temporary directory")?.keep();
        leftovers.places.push(path.clone());
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut leftovers = LEFTOVERS.lock();
        leftovers.places.retain(|place| *place != self.0);
        if let Err(error) = remove(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Something of the kernel that exists until it is removed, and that processes are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelObject {
    /// A control group, by its directory.
    ControlGroup(PathBuf),
    /// A network namespace, by the name that `ip netns` gives it.
    NetworkNamespace(String),
    /// A block device that is mounted on a directory.
    Mount {
        /// The device.
        device: PathBuf,
        /// The directory, which exists.
        directory: PathBuf,
    },
}

impl KernelObject {
    fn make(&self) -> io::Result<()> {
        match self {
            KernelObject::ControlGroup(directory) => std::fs::create_dir(directory),
            KernelObject::NetworkNamespace(name) => ip(&["netns", "add", name]),
            KernelObject::Mount { device, directory } => {
                command("mount", "util-linux", &[device.as_os_str(), directory.as_os_str()]).map(drop)
            }
        }
    }

    fn remove(&self) -> io::Result<()> {
        match self {
            KernelObject::ControlGroup(directory) => std::fs::remove_dir(directory),
            KernelObject::NetworkNamespace(name) => ip(&["netns", "delete", name]),
            KernelObject::Mount { directory, .. } => {
                // After a signal, files are still open; the end of the process closes them.
                command("umount", "util-linux", &[OsStr::new("--lazy"), directory.as_os_str()]).map(drop)
            }
        }
    }
}

/// Runs `ip`.
pub fn ip(arguments: &[&str]) -> io::Result<()> {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    command("ip", "iproute2", &arguments).map(drop)
}

/// Runs a program of a package; returns what it says.
pub fn command(program: &str, package: &str, arguments: &[&OsStr]) -> io::Result<String> {
    let run = Command::new(program).args(arguments).output();
    let output = run.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot run {program} (of the package {package}): {error}"))
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let arguments = arguments.join(OsStr::new(" "));
            Err(io::Error::other(format!("{program} {}: {}", arguments.display(), said.trim_end())))
        }
    }
}

/// A [`KernelObject`], removed when dropped: after the processes in it have ended.
pub struct Kept(KernelObject);

impl Kept {
    /// Makes it.
    pub fn new(object: KernelObject) -> io::Result<Self> {
        clean_up_on_signals()?;
        let mut leftovers = LEFTOVERS.lock();
        object.make()?;
        leftovers.kernel_objects.push(object.clone());
        Ok(Self(object))
    }

    /// Removes what a process that was killed has left.
    pub fn remove_stale(object: &KernelObject) {
        if let Err(error) = object.remove() {
            eprintln!("cannot remove {object:?}, which an earlier run left: {error}");
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut leftovers = LEFTOVERS.lock();
        leftovers.kernel_objects.retain(|object| *object != self.0);
        if let Err(error) = self.0.remove() {
            eprintln!("cannot remove {:?}: {error}", self.0);
        }
    }
}

/// Removes a directory also if servers of this process still make files in it.
fn remove(place: &Path) -> io::Result<()> {
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        match std::fs::remove_dir_all(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            removed => return removed,
        }
    }
    std::fs::remove_dir_all(place)
}

/// A server, or a client that mounts, in a process of its own; told to stop and waited for when
/// dropped.
pub struct Server(Child);

impl Server {
    /// Starts it.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.process_group(0);
        // SAFETY: prctl is async-signal-safe and touches no memory of this process.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let mut leftovers = LEFTOVERS.lock();
        let child = command.spawn()?;
        leftovers.servers.push(Pid::from_child(&child));
        Ok(Self(child))
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// What it says; once, if its command pipes it.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Waits for an end that was not requested.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut leftovers = LEFTOVERS.lock();
        let pid = Pid::from_child(&self.0);
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.0.wait();
        }
        leftovers.servers.retain(|server| *server != pid);
    }
}

/// From now on the first signal that asks this process to stop removes everything and ends it, a
/// second one ends it at once.
pub fn clean_up_on_signals() -> io::Result<()> {
    static WATCHED: OnceLock<()> = OnceLock::new();
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new(signals::stopping(&std::fs::read_to_string("/proc/self/status")?))?;
    let watch = move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            match is_ending {
                true if signal != SIGHUP => std::process::exit(status_of(signal)),
                true => {}
                false => {
                    is_ending = true;
                    std::thread::spawn(move || {
                        // Held to the end: no thread makes anything, or ends the process, before
                        // all is removed.
                        let leftovers = LEFTOVERS.lock();
                        leftovers.remove();
                        std::process::exit(status_of(signal));
                    });
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
    Ok(())
}

/// The exit status that shells give a process which a signal ended.
fn status_of(signal: c_int) -> i32 {
    128 + signal
}
