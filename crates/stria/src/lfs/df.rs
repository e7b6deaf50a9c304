//! `lfs df`: space and inodes of every target, in Lustre's columns.

use std::{ffi::OsString, io::Write, path::Path};

use client::control::TargetStatus;
use rpc::message::mgs::TargetRole;
use types::SpaceUsage;

use super::{
    Failure, Outcome, USAGE, at_each,
    channel::{self, Errno, Mount, strerror},
    options::{OptionSpec, Takes, option, parse},
    pools, print, print_path, size,
};

const OPTIONS: &[OptionSpec] = &[
    option('h', &["human-readable"], Takes::Nothing),
    option('H', &["si"], Takes::Nothing),
    option('i', &["inodes"], Takes::Nothing),
    option('l', &["lazy"], Takes::Nothing),
    option('m', &["mdt"], Takes::Nothing),
    option('o', &["ost"], Takes::Nothing),
    option('p', &["pool"], Takes::Value),
    option('v', &["verbose"], Takes::Nothing),
    super::options::long_option(&["help"], Takes::Nothing),
];

const HELP: &str = "\
usage: lfs df [-h|-H] [-i] [-m] [-o] [-p POOL] [PATH...]

Shows the space of every target of the file systems PATH is on, or of all that are mounted.
Behind the mount point: D degraded, N creates no new objects, R read only, S out of space, I out of inodes.

  -h, --human-readable  sizes with units        -i, --inodes  inodes instead of space
  -H, --si              sizes with units of 1000
  -m, --mdt             metadata targets only   -o, --ost     object storage targets only
  -p, --pool POOL       only OSTs of this pool
";

/// Which figures to print.
#[derive(Clone, Copy)]
struct Columns {
    /// Sizes have units, which are powers of this.
    units: Option<u32>,
    inodes: bool,
}

/// Total, used and available in the unit of the columns.
#[derive(Clone, Copy, Default)]
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
        table(mount, &shown, osts, columns, output)
    })
}

fn mounts(operands: &[OsString]) -> Result<Vec<Mount>, Failure> {
    if operands.is_empty() {
        return channel::mounts().map_err(|error| Failure::new(1, format!("lfs df: the mount table: {error}")));
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
    let mut total = Row::default();
    for target in targets {
        let (label, counts) = match target.role {
            TargetRole::Mdt(index) => (format!("[MDT:{}]", index.0), columns.inodes || !osts),
            TargetRole::Ost(index) => (format!("[OST:{}]", index.0), !columns.inodes),
        };
        let Some(space) = &target.space else {
            let state = if target.active { "not reachable" } else { "inactive device" };
            print(output, format_args!("{:<20}: {state}\n", target.uuid))?;
            continue;
        };
        let row = Row::of(space, columns);
        line(output, &target.uuid, row, &mount.point, columns)?;
        print(output, format_args!("{label}{}\n", letters(target, space)))?;
        if counts {
            total = total.plus(row);
        }
    }
    print(output, format_args!("\n"))?;
    line(output, "filesystem_summary:", total, &mount.point, columns)?;
    print(output, format_args!("\n"))
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

/// State letters behind the mount point, in brackets, as Lustre's `lfs df` marks targets.
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
            let used = space.inodes_total.saturating_sub(space.inodes_free);
            return Self { total: space.inodes_total, used, available: space.inodes_free };
        }
        Self {
            total: space.bytes_total / 1024,
            used: space.bytes_total.saturating_sub(space.bytes_free) / 1024,
            available: space.bytes_available / 1024,
        }
    }

    fn plus(self, other: Row) -> Self {
        Self {
            total: self.total.saturating_add(other.total),
            used: self.used.saturating_add(other.used),
            available: self.available.saturating_add(other.available),
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
    fn foreign_and_missing_paths_fail_as_in_lustre() {
        let fail = |path: &str| run(&[path.into()], &mut Vec::new()).unwrap_err();
        assert_eq!(fail("/proc"), Failure::new(95, "df:/proc Not a StriaFS file system"));
        assert_eq!(fail("/nonexist"), Failure::new(2, "error: invalid path '/nonexist': No such file or directory"));
    }
}
