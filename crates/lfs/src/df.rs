//! `lfs df`: space and inodes of every target, in Lustre's columns.

use std::{collections::BTreeMap, ffi::OsString, io::Write, path::Path};

use rpc::message::control::TargetStatus;
use rpc::message::mgs::TargetRole;
use types::{DeviceId, SpaceUsage};

use super::{
    channel::{self, Errno, Mount, strerror},
    df_json,
    options::{OptionSpec, Takes, option, parse},
    outcome::{Failure, Outcome, USAGE, at_each, print, print_path},
    pools, size,
};

/// The options.
pub const OPTIONS: &[OptionSpec] = &[
    option('h', &["human-readable"], Takes::Nothing),
    option('H', &["si"], Takes::Nothing),
    option('i', &["inodes"], Takes::Nothing),
    option('l', &["lazy"], Takes::Nothing),
    option('m', &["mdt"], Takes::Nothing),
    option('o', &["ost"], Takes::Nothing),
    option('p', &["pool"], Takes::Value),
    option('v', &["verbose"], Takes::Nothing),
    super::options::long_option(&["json"], Takes::Nothing),
    super::options::long_option(&["help"], Takes::Nothing),
];

const HELP: &str = "\
usage: lfs df [-h|-H|--json] [-i] [-m] [-o] [-p POOL] [PATH...]

Shows the space of every target of the file systems that contain PATH, or of all mounted ones.
After the mount point: D degraded, N creates no new objects, R read only, S out of space, I out of inodes.

  -h, --human-readable  sizes with units        -i, --inodes  inodes instead of space
  -H, --si              sizes with units of 1000
  -m, --mdt             metadata targets only   -o, --ost     object storage targets only
  -p, --pool POOL       only OSTs of this pool
      --json            JSON lines: one object per target, then one of kind summary, for each mount

Fields of JSON: mount, kind (mdt, ost, summary), bytes_total, bytes_used, bytes_available, inodes_total,
inodes_used, inodes_free, and of targets index, uuid, address, active, connected, degraded, no_create,
read_only, device. A target that cannot be reached has no bytes and inodes. The summary counts bytes of OSTs
(with -m of MDTs) and inodes of MDTs.

A target shows the space of its device, less its own reserve. The summary counts a device once;
targets with the same `device` share it, and without --json a line after the summary names them.
";

/// Which numbers to print.
#[derive(Clone, Copy)]
struct Columns {
    /// Sizes have units, which are powers of this.
    units: Option<u32>,
    inodes: bool,
}

/// Total, used and available in the unit of the columns.
#[derive(Clone, Copy)]
struct Row {
    total: u64,
    used: u64,
    available: u64,
}

/// Runs `lfs df`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed = parse(OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs df: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    let units = match (parsed.has("human-readable"), parsed.has("si")) {
        (_, true) => Some(1000),
        (true, false) => Some(1024),
        (false, false) => None,
    };
    let columns = Columns { units, inodes: parsed.has("inodes") };
    let (mdts, osts) = match (parsed.has("mdt"), parsed.has("ost")) {
        (false, false) => (true, true),
        chosen => chosen,
    };
    at_each(&mounts(&parsed.operands)?, |mount| {
        let targets = channel::targets(&mount.point).map_err(|Errno(errno)| {
            Failure::new(errno, format!("lfs df: '{}': {}", mount.point.display(), strerror(errno)))
        })?;
        let pool = parsed.value("pool").map(|name| pools::at(mount, name)).transpose().map_err(|Errno(errno)| {
            let name = parsed.value("pool").unwrap_or_default();
            Failure::new(errno, format!("lfs df: pool '{name}': {}", strerror(errno)))
        })?;
        let wanted = |target: &&TargetStatus| match target.role {
            TargetRole::Mdt(_) => mdts,
            TargetRole::Ost(ost) => osts && pool.as_ref().is_none_or(|pool| pool.osts.contains(&ost)),
        };
        let shown: Vec<&TargetStatus> = targets.iter().filter(wanted).collect();
        if parsed.has("json") {
            return df_json::show(mount, &shown, osts, output);
        }
        table(mount, &shown, osts, columns, output)
    })
}

fn mounts(operands: &[OsString]) -> Result<Vec<Mount>, Failure> {
    if operands.is_empty() {
        return channel::mounts()
            .map_err(|error| Failure::new(1, format!("lfs df: cannot read the mount table: {error}")));
    }
    operands
        .iter()
        .map(|operand| match channel::mount_of(Path::new(operand)) {
            Ok(Some(mount)) => Ok(mount),
            Ok(None) => {
                Err(Failure::new(libc::EOPNOTSUPP, format!("df:{} Not a StriaFS file system", operand.display())))
            }
            Err(Errno(errno)) => {
                let problem = format!("error: invalid path '{}': {}", operand.display(), strerror(errno));
                Err(Failure::new(errno, problem))
            }
        })
        .collect()
}

fn table(mount: &Mount, targets: &[&TargetStatus], osts: bool, columns: Columns, output: &mut dyn Write) -> Outcome {
    let (unit, used, free, percent) = match (columns.inodes, columns.units) {
        (true, _) => ("Inodes", "IUsed", "IFree", "IUse%"),
        (false, Some(_)) => ("bytes", "Used", "Available", "Use%"),
        (false, None) => ("1K-blocks", "Used", "Available", "Use%"),
    };
    print(output, format_args!("{:<20} {unit:>11} {used:>11} {free:>11} {percent:>4}  Mounted on\n", "UUID"))?;
    for target in targets {
        let Some(space) = &target.space else {
            let state = if target.active { "not reachable" } else { "inactive device" };
            print(output, format_args!("{:<20}: {state}\n", target.uuid))?;
            continue;
        };
        let row = Row::of(space, columns);
        line(output, &target.uuid, row, &mount.point, columns)?;
        print(output, format_args!("[{}]{}\n", label(target.role), letters(target, space)))?;
    }
    print(output, format_args!("\n"))?;
    let total = Row::of(&summary(targets, osts), columns);
    line(output, "filesystem_summary:", total, &mount.point, columns)?;
    print(output, format_args!("\n"))?;
    for sharing in shared_devices(targets) {
        let labels: Vec<String> = sharing.into_iter().map(label).collect();
        print(output, format_args!("one device, counted once: {}\n", labels.join(" ")))?;
    }
    Ok(())
}

/// What these targets have together, each device counted once. `osts`: object storage targets are
/// among them.
pub fn summary(targets: &[&TargetStatus], osts: bool) -> SpaceUsage {
    let of = |inodes: bool| {
        let counted = targets.iter().filter(move |target| counts(target.role, osts, inodes));
        SpaceUsage::sum(counted.filter_map(|target| target.space))
    };
    let inodes = of(true);
    SpaceUsage { inodes_total: inodes.inodes_total, inodes_free: inodes.inodes_free, ..of(false) }
}

/// Targets that live on one device, for each that has several of these.
fn shared_devices(targets: &[&TargetStatus]) -> Vec<Vec<TargetRole>> {
    let mut devices: BTreeMap<DeviceId, Vec<TargetRole>> = BTreeMap::new();
    for target in targets {
        if let Some(device) = target.space.and_then(|space| space.device) {
            devices.entry(device).or_default().push(target.role);
        }
    }
    devices.into_values().filter(|sharing| sharing.len() > 1).collect()
}

/// `OST:3`, as it stands in brackets next to the mount point.
fn label(role: TargetRole) -> String {
    match role {
        TargetRole::Mdt(index) => format!("MDT:{}", index.0),
        TargetRole::Ost(index) => format!("OST:{}", index.0),
    }
}

/// Whether the summary counts inodes, or bytes, of a target: bytes are the OSTs', where there are
/// any.
fn counts(role: TargetRole, osts: bool, inodes: bool) -> bool {
    match role {
        TargetRole::Mdt(_) => inodes || !osts,
        TargetRole::Ost(_) => !inodes,
    }
}

/// A line of the table up to the mount point; the caller ends it.
fn line(output: &mut dyn Write, name: &str, row: Row, point: &Path, columns: Columns) -> Outcome {
    let shown = |value: u64| match (columns.inodes, columns.units) {
        (false, Some(power)) => size::scaled(value * 1024, power),
        _ => value.to_string(),
    };
    print(
        output,
        format_args!(
            "{name:<20} {:>11} {:>11} {:>11} {:>3}%  ",
            shown(row.total),
            shown(row.used),
            shown(row.available),
            row.percent(),
        ),
    )?;
    print_path(output, point, format_args!(""))
}

/// State letters after the mount point, in brackets, as Lustre's `lfs df` marks targets.
fn letters(target: &TargetStatus, space: &SpaceUsage) -> String {
    let mut letters = String::new();
    let condition = target.condition;
    for (set, letter) in [
        (condition.degraded, 'D'),
        (condition.no_create, 'N'),
        (condition.read_only, 'R'),
        (space.bytes_total > 0 && space.bytes_available == 0, 'S'),
        (space.inodes_total > 0 && space.inodes_free == 0, 'I'),
    ] {
        if set {
            letters.push(letter);
        }
    }
    if letters.is_empty() { letters } else { format!(" {letters}") }
}

impl Row {
    fn of(space: &SpaceUsage, columns: Columns) -> Self {
        if columns.inodes {
            return Self { total: space.inodes_total, used: space.inodes_used(), available: space.inodes_free };
        }
        Self {
            total: space.bytes_total / 1024,
            used: space.bytes_used() / 1024,
            available: space.bytes_available / 1024,
        }
    }

    /// Use in percent of what could be used, rounded up, as df(1) does.
    fn percent(self) -> u64 {
        let usable = u128::from(self.used) + u128::from(self.available);
        if usable == 0 { 0 } else { (u128::from(self.used) * 100).div_ceil(usable) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::TargetCondition;
    use types::{MdtIndex, OstIndex};

    use super::*;

    fn target(role: TargetRole, uuid: &str, total: u64, used: u64, available: u64) -> TargetStatus {
        let space = SpaceUsage {
            bytes_total: total * 1024,
            bytes_free: (total - used) * 1024,
            bytes_available: available * 1024,
            inodes_total: 10,
            inodes_free: 9,
            device: None,
        };
        TargetStatus {
            role,
            uuid: uuid.into(),
            address: String::new(),
            active: true,
            connected: true,
            condition: TargetCondition::default(),
            space: Some(space),
        }
    }

    /// The captured table, column for column.
    #[test]
    fn the_table_has_lustres_columns() {
        let targets = [
            target(TargetRole::Mdt(MdtIndex(0)), "lustre-MDT0000_UUID", 3474180, 1776, 3143024),
            target(TargetRole::Ost(OstIndex(0)), "lustre-OST0000_UUID", 5765420, 1528, 5432936),
        ];
        let mount = Mount { point: "/mnt/lustre".into() };
        let mut output = Vec::new();
        let columns = Columns { units: None, inodes: false };
        table(&mount, &targets.iter().collect::<Vec<_>>(), true, columns, &mut output).unwrap();
        let expected = "\
UUID                   1K-blocks        Used   Available Use%  Mounted on
lustre-MDT0000_UUID      3474180        1776     3143024   1%  /mnt/lustre[MDT:0]
lustre-OST0000_UUID      5765420        1528     5432936   1%  /mnt/lustre[OST:0]

filesystem_summary:      5765420        1528     5432936   1%  /mnt/lustre
";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }

    #[test]
    fn the_summary_counts_a_device_once_and_names_who_shares_it() {
        let on = |role, device: u64, total, used, available| {
            let mut target = target(role, "u", total, used, available);
            target.space.as_mut().unwrap().device = Some(DeviceId(device));
            target
        };
        let ost = |index| TargetRole::Ost(OstIndex(index));
        let targets = [
            on(TargetRole::Mdt(MdtIndex(0)), 1, 1000, 300, 700),
            on(ost(0), 1, 1000, 400, 600),
            on(ost(1), 1, 1000, 400, 600),
            on(ost(2), 2, 500, 100, 400),
        ];
        let targets: Vec<&TargetStatus> = targets.iter().collect();
        let mount = Mount { point: "/mnt".into() };
        let mut output = Vec::new();
        table(&mount, &targets, true, Columns { units: None, inodes: false }, &mut output).unwrap();
        let shown = String::from_utf8(output).unwrap();
        let (_, end) = shown.split_once("filesystem_summary:").unwrap();
        let numbers: Vec<&str> = end.lines().next().unwrap().split_whitespace().take(3).collect();
        assert_eq!(numbers, ["1500", "500", "1000"], "{shown}");
        assert!(end.ends_with("\none device, counted once: MDT:0 OST:0 OST:1\n"), "{shown}");
        assert_eq!(summary(&targets[..1], false).bytes_total, 1000 << 10, "lfs df -m counts bytes of MDTs");
    }

    #[test]
    fn foreign_and_missing_paths_fail_as_in_lustre() {
        let fail = |path: &str| run(&[path.into()], &mut Vec::new()).unwrap_err();
        assert_eq!(fail("/proc"), Failure::new(95, "df:/proc Not a StriaFS file system"));
        assert_eq!(fail("/nonexist"), Failure::new(2, "error: invalid path '/nonexist': No such file or directory"));
    }
}
