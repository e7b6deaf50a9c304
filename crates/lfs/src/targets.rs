//! `lfs osts`, `lfs mdts`, `lfs check`, `lfs getname`, `lfs sync`, `lfs flushctx`: the targets as
//! this mount sees them.

use std::{ffi::OsString, io::Write, path::Path};

use rpc::message::control::TargetStatus;
use rpc::message::mgs::TargetRole;
use types::counted;

use super::{
    channel::{self, Errno, Mount, strerror},
    options::{OptionSpec, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, at_each, print},
};

/// Runs `lfs osts [PATH]`.
pub fn osts(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    list("osts", "OBDS:", arguments, output, |role| match role {
        TargetRole::Ost(index) => Some(index.0),
        TargetRole::Mdt(_) => None,
    })
}

/// Runs `lfs mdts [PATH]`.
pub fn mdts(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    list("mdts", "MDTS:", arguments, output, |role| match role {
        TargetRole::Mdt(index) => Some(index.0),
        TargetRole::Ost(_) => None,
    })
}

fn list(
    command: &str,
    title: &str,
    arguments: &[OsString],
    output: &mut dyn Write,
    index: impl Fn(TargetRole) -> Option<u16>,
) -> Outcome {
    if arguments.iter().any(|argument| argument == "--help") {
        return print(
            output,
            format_args!(
                "usage: lfs {command} [PATH]\n\nLists index, name and state of the targets of the file system at PATH, or of all mounted\nones. INACTIVE targets were deactivated (stria ctl deactivate) or do not answer this mount; lfs check shows which.\n"
            ),
        );
    }
    at_each(&mounts(command, arguments)?, |mount| {
        let targets = targets(command, mount)?;
        print(output, format_args!("{title}\n"))?;
        for target in targets {
            if let Some(index) = index(target.role) {
                let state = state(&target);
                print(output, format_args!("{index}: {} {state}\n", target.uuid))?;
            }
        }
        Ok(())
    })
}

/// As Lustre has it: whether this mount can use the target, for whatever reason it cannot.
fn state(target: &TargetStatus) -> &'static str {
    if target.active && target.connected { "ACTIVE" } else { "INACTIVE" }
}

/// Runs `lfs check {mds|osts|servers|all} [PATH]`.
pub fn check(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    const HELP: &str = "usage: lfs check {mds|osts|servers|all} [PATH]\n\nShows for each server whether this host's mount has a working connection to it. Targets that were\ndeactivated (stria ctl deactivate) are listed as inactive and are not a failure.\n\nExit status: 0; 110 if a server that is in use does not answer.\n";
    let Some((kind, rest)) = arguments.split_first() else {
        return Err(Failure::new(USAGE, "lfs check: server type must be specified: mds, osts, servers or all"));
    };
    let kind = kind.to_string_lossy();
    let (mds, ost) = match &*kind {
        "mds" | "mdts" => (true, false),
        "osts" => (false, true),
        "servers" | "all" => (true, true),
        "--help" => return print(output, format_args!("{HELP}")),
        other => {
            return Err(Failure::new(
                USAGE,
                format!("lfs check: unrecognized server type '{other}': expected mds, osts, servers or all"),
            ));
        }
    };
    let mut dead = 0;
    at_each(&mounts("check", rest)?, |mount| {
        let (_, client) = name("check", mount)?;
        let id = client.rsplit('-').next().unwrap_or_default().to_owned();
        for target in targets("check", mount)? {
            let (wanted, kind) = match target.role {
                TargetRole::Mdt(_) => (mds, "mdc"),
                TargetRole::Ost(_) => (ost, "osc"),
            };
            if !wanted {
                continue;
            }
            dead += usize::from(target.active && !target.connected);
            print(output, format_args!("{}\n", checked(&target, kind, &id)))?;
        }
        Ok(())
    })?;
    match dead {
        0 => Ok(()),
        count => Err(Failure::new(libc::ETIMEDOUT, format!("lfs check: no answer from {}", counted(count, "server")))),
    }
}

/// A line of `lfs check`.
fn checked(target: &TargetStatus, kind: &str, client: &str) -> String {
    let device = target.uuid.trim_end_matches("_UUID");
    let state = match (target.active, target.connected) {
        (false, _) => format!("inactive: it was deactivated; to activate it: stria ctl activate {device}"),
        (true, true) => "active.".to_owned(),
        (true, false) => "not answering.".to_owned(),
    };
    format!("{device}-{kind}-{client} {state}")
}

/// Options of `lfs getname`.
pub const GETNAME_OPTIONS: &[OptionSpec] = &[
    option('i', &["instance"], Takes::Nothing),
    option('n', &["fsname"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// Runs `lfs getname [PATH]`.
pub fn getname(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    const HELP: &str = "usage: lfs getname [-i|-n] [PATH]\n\nShows the name of this client: file system and client id; -i: the id, -n: the file system.\n";
    let parsed =
        parse(GETNAME_OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs getname: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    at_each(&mounts("getname", &parsed.operands)?, |mount| {
        let (fsname, client) = name("getname", mount)?;
        let instance = client.strip_prefix(&*fsname).and_then(|rest| rest.strip_prefix('-')).unwrap_or(&client);
        let shown = match (parsed.has("instance"), parsed.has("fsname")) {
            (true, false) => instance,
            (false, true) => &fsname,
            _ => &client,
        };
        print(output, format_args!("{shown}\n"))
    })
}

/// Runs `lfs sync [PATH]`: what sync(2) would do if the kernel passed it on.
pub fn sync(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    if arguments.iter().any(|argument| argument == "--help") {
        let help = "usage: lfs sync [PATH]\n\nMakes everything that was acknowledged so far durable, on all targets of the file system at PATH, or of all\nmounted ones. (Linux does not forward sync(2) and syncfs(2) to file systems in user space; it does forward fsync(2).)\n";
        return print(output, format_args!("{help}"));
    }
    at_each(&mounts("sync", arguments)?, |mount| {
        channel::sync(&mount.point).map_err(|errno| failure("sync", mount, errno))
    })
}

/// Options of `lfs flushctx`.
pub const FLUSHCTX_OPTIONS: &[OptionSpec] = &[
    option('k', &["kdestroy"], Takes::Nothing),
    option('r', &["reap"], Takes::Nothing),
    long_option(&["help"], Takes::Nothing),
];

/// Runs `lfs flushctx [MOUNT...]`: succeeds where there is a mount, which keeps nothing of who its
/// users are.
pub fn flushctx(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    const HELP: &str = "usage: lfs flushctx [MOUNT...]\n\nDiscards cached credentials of the user. There are none: each request carries them. -k and -r are not supported.\n";
    let parsed =
        parse(FLUSHCTX_OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs flushctx: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    if let Some(name) = ["kdestroy", "reap"].into_iter().find(|name| parsed.has(name)) {
        let problem = format!("lfs flushctx: option '--{name}' is not supported yet: there is no Kerberos");
        return Err(Failure::new(libc::EOPNOTSUPP, problem));
    }
    if parsed.operands.is_empty() {
        return mounts("flushctx", &[]).map(drop);
    }
    parsed.operands.chunks(1).try_for_each(|operand| mounts("flushctx", operand).map(drop))
}

fn mounts(command: &str, operands: &[OsString]) -> Result<Vec<Mount>, Failure> {
    let Some(operand) = operands.first() else {
        return match channel::mounts() {
            Ok(mounts) if mounts.is_empty() => {
                Err(Failure::new(libc::ENODEV, format!("lfs {command}: no StriaFS file system is mounted")))
            }
            Ok(mounts) => Ok(mounts),
            Err(error) => Err(Failure::new(1, format!("lfs {command}: cannot read the mount table: {error}"))),
        };
    };
    let shown = operand.display();
    match channel::mount_of(Path::new(operand)) {
        Ok(Some(mount)) => Ok(vec![mount]),
        Ok(None) => {
            Err(Failure::new(libc::ENODEV, format!("lfs {command}: '{shown}' is not on a StriaFS file system")))
        }
        Err(Errno(errno)) => Err(Failure::new(errno, format!("lfs {command}: '{shown}': {}", strerror(errno)))),
    }
}

fn targets(command: &str, mount: &Mount) -> Result<Vec<TargetStatus>, Failure> {
    channel::targets(&mount.point).map_err(|errno| failure(command, mount, errno))
}

fn name(command: &str, mount: &Mount) -> Result<(String, String), Failure> {
    channel::name(&mount.point).map_err(|errno| failure(command, mount, errno))
}

fn failure(command: &str, mount: &Mount, Errno(errno): Errno) -> Failure {
    Failure::new(errno, format!("lfs {command}: '{}': {}", mount.point.display(), strerror(errno)))
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::TargetCondition;
    use types::OstIndex;

    use super::*;

    fn target(active: bool, connected: bool) -> TargetStatus {
        TargetStatus {
            role: TargetRole::Ost(OstIndex(0)),
            uuid: "stria-OST0000_UUID".to_owned(),
            address: "0@lo".to_owned(),
            active,
            connected,
            condition: TargetCondition::default(),
            space: None,
        }
    }

    #[test]
    fn targets_out_of_use_or_out_of_reach_are_inactive() {
        for (active, connected, expected) in
            [(true, true, "ACTIVE"), (true, false, "INACTIVE"), (false, true, "INACTIVE"), (false, false, "INACTIVE")]
        {
            assert_eq!(state(&target(active, connected)), expected, "{active} {connected}");
        }
    }

    #[test]
    fn a_check_tells_what_was_taken_out_of_use_from_what_does_not_answer() {
        let line = |active, connected| checked(&target(active, connected), "osc", "0123");
        assert_eq!(line(true, true), "stria-OST0000-osc-0123 active.");
        assert_eq!(line(true, false), "stria-OST0000-osc-0123 not answering.");
        let out =
            "stria-OST0000-osc-0123 inactive: it was deactivated; to activate it: stria ctl activate stria-OST0000";
        assert_eq!((line(false, true).as_str(), line(false, false).as_str()), (out, out));
    }

    #[test]
    fn what_flushctx_cannot_do_is_named() {
        let fail = |words: &[&str]| {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            flushctx(&arguments, &mut Vec::new()).unwrap_err()
        };
        assert_eq!(i32::from(fail(&["-k"]).status), libc::EOPNOTSUPP);
        assert_eq!(i32::from(fail(&["-Q"]).status), USAGE);
        assert_eq!(i32::from(fail(&["/nonexistent"]).status), libc::ENOENT);
    }
}
