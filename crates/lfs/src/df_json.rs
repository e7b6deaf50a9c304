//! `lfs df --json`: a line for each target, and one for each file system.

use std::{io::Write, path::Path};

use rpc::message::control::TargetStatus;
use rpc::message::mgs::TargetRole;
use serde::Serialize;
use types::SpaceUsage;

use super::{
    channel::Mount,
    df::summary,
    outcome::{Outcome, print},
};

/// A target.
#[derive(Serialize)]
struct DfTarget<'a> {
    mount: String,
    kind: &'static str,
    index: u16,
    uuid: &'a str,
    address: &'a str,
    active: bool,
    connected: bool,
    degraded: bool,
    no_create: bool,
    read_only: bool,
    device: Option<String>,
    #[serde(flatten)]
    space: Option<Space>,
}

/// All targets of a mount that are shown.
#[derive(Serialize)]
struct Summary {
    mount: String,
    kind: &'static str,
    #[serde(flatten)]
    space: Space,
}

#[derive(Clone, Copy, Serialize)]
struct Space {
    bytes_total: u64,
    bytes_used: u64,
    bytes_available: u64,
    inodes_total: u64,
    inodes_used: u64,
    inodes_free: u64,
}

impl From<&SpaceUsage> for Space {
    fn from(space: &SpaceUsage) -> Self {
        Self {
            bytes_total: space.bytes_total,
            bytes_used: space.bytes_used(),
            bytes_available: space.bytes_available,
            inodes_total: space.inodes_total,
            inodes_used: space.inodes_used(),
            inodes_free: space.inodes_free,
        }
    }
}

/// Prints the targets of a mount. `osts`: object storage targets are among them.
pub fn show(mount: &Mount, targets: &[&TargetStatus], osts: bool, output: &mut dyn Write) -> Outcome {
    let point = |point: &Path| point.to_string_lossy().into_owned();
    for target in targets {
        let space = target.space.as_ref().map(Space::from);
        let (kind, index) = match target.role {
            TargetRole::Mdt(index) => ("mdt", index.0),
            TargetRole::Ost(index) => ("ost", index.0),
        };
        let line = DfTarget {
            mount: point(&mount.point),
            kind,
            index,
            uuid: &target.uuid,
            address: &target.address,
            active: target.active,
            connected: target.connected,
            degraded: target.condition.degraded,
            no_create: target.condition.no_create,
            read_only: target.condition.read_only,
            device: target.space.and_then(|space| space.device).map(|device| device.to_string()),
            space,
        };
        print_line(&line, output)?;
    }
    print_line(
        &Summary { mount: point(&mount.point), kind: "summary", space: Space::from(&summary(targets, osts)) },
        output,
    )
}

/// A value as a line of JSON.
pub fn print_line(line: &impl Serialize, output: &mut dyn Write) -> Outcome {
    let text = serde_json::to_string(line).map_err(|error| super::Failure::new(1, format!("lfs: {error}")))?;
    print(output, format_args!("{text}\n"))
}
