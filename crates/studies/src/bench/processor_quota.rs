//! A limit on the processor time of a process, by a control group (cgroup) of its own: version 2
//! (`cpu.max`) where it has the controller `cpu`, version 1 (`cpu.cfs_quota_us`) otherwise.
//!
//! Names are `stria-study-PID`, or `stria-study-PID-NAME` if a program needs several; the next run
//! removes what a killed one has left. Downside: needs
//! root, and a kernel with bandwidth control of the scheduler.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    leftovers::{Kept, KernelObject},
    network::is_stale,
};

const PREFIX: &str = "stria-study-";
/// Short, so that a group does not rest for most of a window in which something is measured.
const PERIOD_US: u64 = 10_000;

/// Of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group for processor time.
pub struct ProcessorQuota {
    directory: PathBuf,
    version: Version,
    _kept: Kept,
}

impl ProcessorQuota {
    /// An empty group without a limit.
    pub fn new() -> io::Result<Self> {
        Self::called(format!("{PREFIX}{}", std::process::id()))
    }

    /// The same, of a program that has several: each has a name.
    pub fn named(name: &str) -> io::Result<Self> {
        Self::called(format!("{PREFIX}{}-{name}", std::process::id()))
    }

    fn called(name: String) -> io::Result<Self> {
        let missing = || io::Error::other("this host has no control groups for processor time (cgroup, cpu)");
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let (root, version) = hierarchy(&mounts, offers_processor_time).ok_or_else(missing)?;
        remove_stale(&root);
        let directory = root.join(name);
        let kept = Kept::new(KernelObject::ControlGroup(directory.clone()))?;
        let group = Self { directory, version, _kept: kept };
        // What cannot be limited fails here, before anything is measured.
        group.limit(None)?;
        Ok(group)
    }

    /// Moves a process, with all its threads, into the group.
    pub fn add(&self, process: u32) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), process.to_string())
    }

    /// Processors' time from now on, in hundredths of one; `None`: no limit.
    pub fn limit(&self, percent: Option<u32>) -> io::Result<()> {
        let quota_us = percent.map(|percent| PERIOD_US * u64::from(percent) / 100);
        let write = |name: &str, text: String| {
            let path = self.directory.join(name);
            fs::write(&path, text).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        match self.version {
            Version::Two => {
                let quota = quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                write("cpu.max", format!("{quota} {PERIOD_US}"))
            }
            Version::One => {
                write("cpu.cfs_period_us", PERIOD_US.to_string())?;
                write("cpu.cfs_quota_us", quota_us.map_or_else(|| "-1".to_owned(), |quota| quota.to_string()))
            }
        }
    }
}

/// Whether groups made in a directory of version 2 have limits of processor time.
fn offers_processor_time(root: &Path) -> bool {
    let controllers = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    let has_it = |text: &str| text.split_whitespace().any(|controller| controller == "cpu");
    // The host has switched it on, or root does so here.
    has_it(&controllers) || fs::write(root.join("cgroup.subtree_control"), "+cpu").is_ok()
}

/// Where groups for processor time are made, by the lines of `/proc/self/mounts`.
fn hierarchy(mounts: &str, offers: impl Fn(&Path) -> bool) -> Option<(PathBuf, Version)> {
    let lines = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let point = |words: &[&str]| words.get(1).map(PathBuf::from);
    let second = lines().filter(|words| words.get(2) == Some(&"cgroup2")).filter_map(|words| point(&words));
    let first = lines().filter(|words| {
        let has_it = |options: &&str| options.split(',').any(|option| option == "cpu");
        words.get(2) == Some(&"cgroup") && words.get(3).is_some_and(has_it)
    });
    let first = first.filter_map(|words| point(&words)).next();
    second
        .into_iter()
        .find(|root| offers(root))
        .map(|root| (root, Version::Two))
        .or(first.map(|root| (root, Version::One)))
}

fn remove_stale(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten().filter(|entry| is_stale(&entry.file_name().to_string_lossy(), PREFIX)) {
        Kept::remove_stale(&KernelObject::ControlGroup(entry.path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_two_is_used_where_it_limits_processor_time() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = |offers: bool| hierarchy(mounts, |_| offers);
        assert_eq!(found(true), Some((PathBuf::from("/sys/fs/cgroup/unified"), Version::Two)));
        assert_eq!(found(false), Some((PathBuf::from("/sys/fs/cgroup/cpu"), Version::One)));
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n", |_| true), None);
    }
}
