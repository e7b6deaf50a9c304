//! Hosts for a study on one machine: network namespaces, each with one link to a bridge in a
//! namespace of its own. Nothing is added to the namespace in which this program runs.
//!
//! Names are `stria-study-PID-HOST`; they are removed with the [`Network`], and the next run
//! removes what a killed one has left. Downside: needs root, and `ip` (iproute2).

use std::{fs::File, io, os::fd::AsFd, os::unix::process::CommandExt, path::Path, process::Command};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::leftovers::{Kept, KernelObject, ip};

const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "stria-study-";
/// First three bytes of every host's address.
const SUBNET: &str = "10.78.0";

/// A bridge, and the hosts at it.
pub struct Network {
    hub: Namespace,
    hosts: u32,
}

impl Network {
    /// A network without hosts.
    pub fn new() -> io::Result<Self> {
        remove_stale();
        let hub = Namespace::add("hub")?;
        hub.ip("link add bridge type bridge forward_delay 0")?;
        hub.ip("link set bridge up")?;
        Ok(Self { hub, hosts: 0 })
    }

    /// Adds a host; the first has the address 10.78.0.1.
    pub fn host(&mut self, name: &str) -> io::Result<Host> {
        self.hosts += 1;
        let namespace = Namespace::add(name)?;
        let address = format!("{SUBNET}.{}", self.hosts);
        self.hub.ip(&format!("link add {name} type veth peer name eth0 netns {}", namespace.name))?;
        self.hub.ip(&format!("link set {name} master bridge up"))?;
        namespace.ip("link set lo up")?;
        namespace.ip(&format!("address add {address}/24 dev eth0"))?;
        namespace.ip("link set eth0 up")?;
        Ok(Host { address, namespace })
    }
}

/// A host of a [`Network`].
pub struct Host {
    /// IPv4 address.
    pub address: String,
    namespace: Namespace,
}

impl Host {
    /// Lets a command run on this host. Only its network is the host's; files and mounts are those
    /// of all.
    pub fn runs(&self, command: &mut Command) -> io::Result<()> {
        let namespace = File::open(Path::new(NAMESPACES).join(&self.namespace.name))?;
        // SAFETY: setns is async-signal-safe and touches no memory of this process.
        unsafe {
            command
                .pre_exec(move || Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?));
        }
        Ok(())
    }
}

/// A named network namespace.
struct Namespace {
    name: String,
    _kept: Kept,
}

impl Namespace {
    fn add(host: &str) -> io::Result<Self> {
        let name = format!("{PREFIX}{}-{host}", std::process::id());
        let kept = Kept::new(KernelObject::NetworkNamespace(name.clone()))?;
        Ok(Self { name, _kept: kept })
    }

    /// Runs `ip` with these words in the namespace.
    fn ip(&self, words: &str) -> io::Result<()> {
        let mut arguments = vec!["-n", &self.name];
        arguments.extend(words.split(' '));
        ip(&arguments)
    }
}

/// Whether the process that gave something this name is gone.
pub(super) fn is_stale(name: &str, prefix: &str) -> bool {
    let owner = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists())
}

/// Deletes namespaces of runs that were killed.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else { return };
    for name in entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        if is_stale(&name, PREFIX) {
            Kept::remove_stale(&KernelObject::NetworkNamespace(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_processes_have_left_is_stale() {
        let own = format!("{PREFIX}{}-hub", std::process::id());
        assert!(!is_stale(&own, PREFIX));
        // Above the largest number that Linux gives a process.
        assert!(is_stale("stria-study-4194305-hub", PREFIX));
        for other in ["stria-1-hub", "stria-study-", "stria-study-x-hub", "else"] {
            assert!(!is_stale(other, PREFIX), "{other}");
        }
    }
}
