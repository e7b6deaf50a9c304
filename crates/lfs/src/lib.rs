//! `lfs`: the commands that Lustre's users know, with the same options, formats, exit statuses and
//! errors (captured from 2.17).
//!
//! Everything goes through the mount by the control ioctl, so it works for any user and needs no
//! connection.
//!
//! Paths are bytes: they are accepted and printed as they are. Only messages on standard error
//! replace bytes that are not text.

pub mod channel;
mod compare;
mod component_filter;
mod components;
pub mod definition;
mod df;
mod df_json;
mod directory_default;
mod dirstripe;
pub mod explain;
mod fid;
mod fiemap;
mod file_state;
mod find;
mod getdirstripe;
mod getstripe;
mod getstripe_json;
mod layout_options;
mod migrate;
mod missing_osts;
pub mod options;
mod outcome;
mod pools;
mod setstripe;
pub mod size;
mod swap_layouts;
mod targets;

use std::{
    ffi::OsString,
    io::{self, Write},
};

use rt::parameters::near;

pub use self::outcome::{Failure, USAGE};
use self::{
    layout_options::LAYOUT_OPTIONS,
    options::OptionSpec,
    outcome::{Outcome, print},
};

type Run = fn(&[OsString], &mut dyn Write) -> Outcome;

/// A command of `lfs`.
struct Command {
    name: &'static str,
    run: Run,
    /// In one line.
    purpose: &'static str,
    /// Tables of its options; none if it only has `--help`.
    options: &'static [&'static [OptionSpec]],
}

const fn command(
    name: &'static str,
    run: Run,
    options: &'static [&'static [OptionSpec]],
    purpose: &'static str,
) -> Command {
    Command { name, run, purpose, options }
}

const COMMANDS: &[Command] = &[
    command(
        "setstripe",
        setstripe::run,
        &[LAYOUT_OPTIONS, setstripe::OWN_OPTIONS],
        "create a file with a layout, or set a directory's default layout",
    ),
    command(
        "getstripe",
        getstripe::run,
        &[getstripe::OPTIONS],
        "show the layout of files and the default layout of directories",
    ),
    command("find", find::run, &[find::OPTIONS], "find files below a directory by attributes and layouts"),
    command(
        "migrate",
        migrate::run,
        &[LAYOUT_OPTIONS, migrate::OWN_OPTIONS],
        "move data of files to another layout; -m: directories to another metadata target",
    ),
    command("swap_layouts", swap_layouts::run, &[], "swap the layouts and data of two files"),
    command("mkdir", dirstripe::mkdir, &[dirstripe::MAKE_OPTIONS], "create directories on a metadata target"),
    command(
        "setdirstripe",
        dirstripe::setdirstripe,
        &[dirstripe::MAKE_OPTIONS],
        "the same as mkdir; -D sets the default of a directory",
    ),
    command(
        "getdirstripe",
        getdirstripe::run,
        &[getdirstripe::OPTIONS],
        "show on which metadata target directories are",
    ),
    command("df", df::run, &[df::OPTIONS], "show space or inodes of every target"),
    command(
        "pool_list",
        pools::list,
        &[],
        "list the pools of a file system, or the OSTs of one: pool_list FSNAME[.POOL]",
    ),
    command("osts", targets::osts, &[], "list the object storage targets"),
    command("mdts", targets::mdts, &[], "list the metadata targets"),
    command("check", targets::check, &[], "show whether the servers answer: check {mds|osts|servers|all} [PATH]"),
    command(
        "getname",
        targets::getname,
        &[targets::GETNAME_OPTIONS],
        "show the name of the file system and of this client",
    ),
    command("sync", targets::sync, &[], "make everything written so far durable on all targets: sync [PATH]"),
    command("path2fid", fid::path2fid, &[fid::PATH2FID_OPTIONS], "show the FID of a path"),
    command("fid2path", fid::fid2path, &[fid::FID2PATH_OPTIONS], "show the paths of a FID: fid2path MOUNT FID..."),
    command("rmfid", fid::rmfid, &[fid::RMFID_OPTIONS], "remove files by FID: rmfid MOUNT FID..."),
    command(
        "data_version",
        file_state::data_version,
        &[file_state::DATA_VERSION_OPTIONS],
        "show the version of a file's data",
    ),
    command("fiemap", fiemap::run, &[fiemap::OPTIONS], "show where the data of files are on the targets"),
    command(
        "getsom",
        file_state::getsom,
        &[file_state::GETSOM_OPTIONS],
        "show the size that the metadata target knows",
    ),
    command(
        "hsm_state",
        file_state::hsm_state,
        &[file_state::HSM_STATE_OPTIONS],
        "show the archive state of files (always empty)",
    ),
    command("flushctx", targets::flushctx, &[targets::FLUSHCTX_OPTIONS], "discard cached credentials (there are none)"),
];

/// Lustre's commands that are understood but cannot be done yet, and why.
const NOT_YET: &[(&str, &str)] = &[
    ("mirror", "files have no mirrors"),
    ("quota", "there are no quotas"),
    ("setquota", "there are no quotas"),
    ("project", "there are no project quotas"),
    ("changelog", "there are no changelogs"),
    ("changelog_clear", "there are no changelogs"),
    ("ladvise", "servers do not accept advice"),
    ("hsm_archive", "there are no archives"),
    ("hsm_restore", "there are no archives"),
    ("hsm_release", "there are no archives"),
    ("hsm_remove", "there are no archives"),
    ("hsm_cancel", "there are no archives"),
    ("hsm_action", "there are no archives"),
    ("hsm_set", "there are no archives"),
    ("hsm_clear", "there are no archives"),
];

/// Runs `lfs ARGUMENTS`; returns the exit status.
pub fn main(arguments: &[OsString]) -> u8 {
    let mut output = io::BufWriter::new(io::stdout().lock());
    let outcome = dispatch(arguments, &mut output);
    if let Err(error) = output.flush() {
        eprintln!("lfs: cannot write: {error}");
        return 1;
    }
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("{}", failure.message);
            failure.status
        }
    }
}

fn dispatch(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(Failure::new(USAGE, usage()));
    };
    let name = name.to_string_lossy();
    match &*name {
        "--version" | "version" => print(output, format_args!("lfs {}\n", env!("CARGO_PKG_VERSION"))),
        "--list-commands" => {
            let done = COMMANDS.iter().map(|command| command.name);
            let names: Vec<&str> = done.chain(NOT_YET.iter().map(|(name, _)| *name)).collect();
            print(output, format_args!("{}\n", names.join(" ")))
        }
        "help" if !rest.is_empty() => dispatch(&[rest[0].clone(), "--help".into()], output),
        "help" | "--help" | "-h" => print(output, format_args!("{}\n", usage())),
        _ => {
            let command = COMMANDS.iter().find(|command| command.name == name);
            let later = NOT_YET.iter().find(|(known, _)| *known == name);
            match (command, later) {
                (Some(command), _) => (command.run)(rest, output),
                (None, Some((_, reason))) => {
                    Err(Failure::new(libc::EOPNOTSUPP, format!("lfs {name}: not supported yet: {reason}")))
                }
                (None, None) => {
                    let near = near(&name, COMMANDS.iter().map(|command| command.name));
                    let meant =
                        if near.is_empty() { String::new() } else { format!(" Did you mean {}?", near.join(", ")) };
                    let problem = format!("lfs: '{name}' is not a valid command.{meant} See 'lfs --list-commands'.");
                    Err(Failure::new(1, problem))
                }
            }
        }
    }
}

fn usage() -> String {
    let mut text = String::from("usage: lfs COMMAND [OPTIONS] ...\n\nCommands (see lfs COMMAND --help):\n");
    for Command { name, purpose, .. } in COMMANDS {
        text.push_str(&format!("  {name:<12} {purpose}\n"));
    }
    text.push_str("\nNot supported yet:\n");
    for (name, reason) in NOT_YET {
        text.push_str(&format!("  {name:<15} {reason}\n"));
    }
    text.push_str("\nlfs works on mounted StriaFS file systems only, for any user, through the mount.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_yet_is_told_from_what_is_unknown() {
        let fail = |words: &str| {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            dispatch(&words, &mut Vec::new()).unwrap_err()
        };
        for rest in ["", " create -N2 f", " extend -N f", " split --mirror-id 1 f", " delete --mirror-id 1 f"] {
            assert_eq!(i32::from(fail(&format!("mirror{rest}")).status), libc::EOPNOTSUPP, "mirror{rest}");
        }
        for rest in ["resync f", "verify f", "read -N 1 f", "write -N 1 f", "copy -i 1 -o 2 f"] {
            let failure = fail(&format!("mirror {rest}"));
            let message = "lfs mirror: not supported yet: files have no mirrors".to_owned();
            assert_eq!(failure, Failure::new(libc::EOPNOTSUPP, message), "{rest}");
        }
        for (name, reason) in NOT_YET {
            let message = format!("lfs {name}: not supported yet: {reason}");
            assert_eq!(fail(&format!("{name} .")), Failure::new(libc::EOPNOTSUPP, message));
        }
        assert_eq!(fail("badcmd").status, 1);
    }

    #[test]
    fn help_of_a_command_is_that_of_the_command() {
        let said = |words: &str| {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let mut output = Vec::new();
            assert_eq!(dispatch(&words, &mut output), Ok(()), "{words:?}");
            String::from_utf8(output).expect("text")
        };
        for Command { name, .. } in COMMANDS {
            assert_eq!(said(&format!("help {name}")), said(&format!("{name} --help")));
            assert!(said(&format!("help {name}")).contains(&format!("usage: lfs {name}")), "{name}");
        }
        for (name, _) in NOT_YET {
            assert!(said("help").contains(&format!("  {name} ")) && said("--list-commands").contains(name), "{name}");
        }
        assert_eq!(dispatch(&["help".into(), "badcmd".into()], &mut Vec::new()).expect_err("no command").status, 1);
    }
}
