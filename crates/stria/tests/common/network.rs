//! Hosts made of network namespaces: each has its own port space and one link to a bridge in a
//! namespace of its own. Nothing is added to the namespace in which the tests run, so no traffic
//! can take another path.
//!
//! Names are `stria-<pid>-<n>-<host>`; they are removed with the [`Network`], even when a test
//! panics, and the next test process removes what a killed one left behind.

use std::{
    fs::File,
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "stria-";
/// First three bytes of every host's address.
const SUBNET: &str = "10.77.0";

/// A bridge, and the hosts at it.
pub struct Network {
    prefix: String,
    hub: Namespace,
    hosts: AtomicU32,
}

impl Network {
    /// A network without hosts.
    pub fn new() -> Network {
        static NETWORKS: AtomicU32 = AtomicU32::new(0);
        remove_stale();
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{number}", std::process::id());
        let hub = Namespace::add(format!("{prefix}-hub"));
        hub.ip("link add bridge type bridge forward_delay 0");
        hub.ip("link set bridge up");
        Network { prefix, hub, hosts: AtomicU32::new(0) }
    }

    /// Adds a host; the first has the address 10.77.0.1.
    pub fn host(&self, name: &str) -> Host {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed) + 1;
        let namespace = Namespace::add(format!("{}-{name}", self.prefix));
        let address = format!("{SUBNET}.{number}");
        self.hub.ip(&format!("link add {name} type veth peer name eth0 netns {}", namespace.name));
        self.hub.ip(&format!("link set {name} master bridge up"));
        namespace.ip("link set lo up");
        namespace.ip(&format!("address add {address}/24 dev eth0"));
        namespace.ip("link set eth0 up");
        Host { name: name.to_owned(), address, namespace, hub: self.hub.name.clone() }
    }
}

/// A host of a [`Network`].
pub struct Host {
    /// Short name.
    pub name: String,
    /// IPv4 address.
    pub address: String,
    namespace: Namespace,
    hub: String,
}

impl Host {
    /// A command that runs on this host. Only its network is the host's; files and mounts are
    /// everybody's.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let namespace = File::open(self.namespace.path()).expect("the namespace exists as long as the host");
        // SAFETY: setns is async-signal-safe and touches no memory of this process.
        unsafe {
            command
                .pre_exec(move || Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?));
        }
        command
    }

    /// Runs `operation` on a thread of this process that is on this host; sockets it makes stay
    /// there.
    pub fn within<T: Send>(&self, operation: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.namespace.path()).expect("the namespace exists as long as the host");
        let enter = move || move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter().expect("root may enter namespaces");
                operation()
            });
            thread.join().expect("the operation does not panic")
        })
    }

    /// Pulls the network cable.
    pub fn cut(&self) {
        ip(&["-n", &self.hub, "link", "set", &self.name, "down"]);
    }

    /// Puts it back.
    pub fn repair(&self) {
        ip(&["-n", &self.hub, "link", "set", &self.name, "up"]);
    }
}

/// A named network namespace; deleted when dropped.
struct Namespace {
    name: String,
}

impl Namespace {
    fn add(name: String) -> Namespace {
        ip(&["netns", "add", &name]);
        Namespace { name }
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Runs `ip` with these words in the namespace.
    fn ip(&self, words: &str) {
        let mut arguments = vec!["-n", &self.name];
        arguments.extend(words.split(' '));
        ip(&arguments);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

fn ip(arguments: &[&str]) {
    let Output { status, stderr, .. } =
        Command::new("ip").args(arguments).output().expect("these tests need root and iproute2");
    assert!(status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&stderr));
}

/// Deletes namespaces of test processes that are gone.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else { return };
    for name in entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            drop(Namespace { name });
        }
    }
}
