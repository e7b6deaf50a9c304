//! Limits of processor time by control groups (cgroup, versions 1 and 2), as containers have them.
//!
//! Both versions count, in `cpu.stat` of each group with a limit, the periods of the scheduler in
//! which the group wanted to run, and those at whose end it had used up what it may use. How many
//! of them these are says how short processor time is, whatever the limit.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where this process's groups are.
#[derive(Debug)]
pub(super) struct ControlGroups {
    /// Mount points, and the name of the controller in `/proc/self/cgroup`: none for version 2.
    hierarchies: Vec<(PathBuf, Option<&'static str>)>,
}

/// The counters of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Periods {
    group: PathBuf,
    all: u64,
    exhausted: u64,
}

impl ControlGroups {
    pub(super) fn of_host() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mounts").unwrap_or_default())
    }

    /// By the lines of `/proc/self/mounts`.
    fn parse(mounts: &str) -> Self {
        let hierarchy = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let point = PathBuf::from(words.get(1)?);
            match *words.get(2)? {
                "cgroup2" => Some((point, None)),
                "cgroup" if words.get(3)?.split(',').any(|option| option == "cpu") => Some((point, Some("cpu"))),
                _ => None,
            }
        };
        Self { hierarchies: mounts.lines().filter_map(hierarchy).collect() }
    }

    /// The counters of all groups of this process that have a limit now, or had one.
    pub(super) fn periods(&self) -> Vec<Periods> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = self.hierarchies.iter().flat_map(|(point, controller)| groups(point, *controller, &own));
        groups.filter_map(Periods::read).collect()
    }
}

/// The groups of a process from its own to the outermost one that shows, by the lines of its
/// `/proc/PID/cgroup`: `NUMBER:CONTROLLERS:PATH`. In a container the path may be one of the host.
fn groups(point: &Path, controller: Option<&str>, own: &str) -> Vec<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_it = match controller {
            Some(controller) => controllers.split(',').any(|other| other == controller),
            None => controllers.is_empty(),
        };
        is_it.then(|| Path::new(path.trim_start_matches('/')))
    });
    let path = path.unwrap_or(Path::new(""));
    path.ancestors().map(|path| point.join(path)).collect()
}

impl Periods {
    fn read(group: PathBuf) -> Option<Self> {
        let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
        Self::parse(group, &text)
    }

    /// Lines `NAME VALUE`; groups without a limit have none of these names, or only zeros.
    fn parse(group: PathBuf, text: &str) -> Option<Self> {
        let value = |name: &str| {
            let of_line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
            text.lines().find_map(of_line)
        };
        let all = value("nr_periods").filter(|all| *all > 0)?;
        Some(Self { group, all, exhausted: value("nr_throttled")? })
    }

    /// The share of the periods since `before` in which the group used up what it may use.
    pub(super) fn exhausted_since(&self, before: &[Self]) -> Option<f64> {
        let before = before.iter().find(|before| before.group == self.group)?;
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let exhausted = self.exhausted.saturating_sub(before.exhausted).min(all);
        Some(exhausted as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "12:cpuset:/\n3:cpu,cpuacct:/system.slice/stria.service\n1:name=systemd:/x\n0::/machine/a\n";

    #[test]
    fn hierarchies_with_processor_time_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup2\n\n";
        let expected =
            vec![("/sys/fs/cgroup/cpu".into(), Some("cpu")), ("/sys/fs/cgroup/unified".into(), None::<&str>)];
        assert_eq!(ControlGroups::parse(mounts).hierarchies, expected);
    }

    #[test]
    fn all_groups_up_to_the_outermost_one_count() {
        let found = |controller| groups(Path::new("/g"), controller, OWN);
        assert_eq!(found(None), ["/g/machine/a", "/g/machine", "/g/"].map(PathBuf::from));
        assert_eq!(found(Some("cpu")), ["/g/system.slice/stria.service", "/g/system.slice", "/g/"].map(PathBuf::from));
        assert_eq!(groups(Path::new("/g"), None, "x\n"), [PathBuf::from("/g/")], "a list that is not known");
    }

    #[test]
    fn the_share_of_exhausted_periods_is_what_is_used() {
        let parse = |text| Periods::parse("/g".into(), text);
        let before = parse("usage_usec 5\nnr_periods 100\nnr_throttled 40\nthrottled_usec 7\n").unwrap();
        let after = parse("nr_periods 120\nnr_throttled 59\nthrottled_time 7\n").unwrap();
        assert_eq!(after.exhausted_since(std::slice::from_ref(&before)), Some(0.95));
        assert_eq!(before.exhausted_since(std::slice::from_ref(&before)), None, "no period passed");
        assert_eq!(before.exhausted_since(&[after]), None, "the counters went back");
        assert_eq!(before.exhausted_since(&[]), None, "the process was in another group");
        for without in ["", "usage_usec 5\n", "nr_periods 0\nnr_throttled 0\n", "nr_periods 5\n", "nr_periods x\n"] {
            assert_eq!(parse(without), None, "{without}");
        }
    }
}
