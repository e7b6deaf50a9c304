//! `stria ctl`: parameters, statistics and target states of the daemons of this host, in the manner of `lctl`.

pub mod protocol;
pub mod run_dir;
pub mod socket;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cli::{CtlArgs, CtlCommand};
use protocol::{CtlReply, CtlRequest, Parameter};

/// Runs `stria ctl`.
pub fn run(arguments: CtlArgs) -> anyhow::Result<()> {
    let run_dir = arguments.run_dir.unwrap_or_else(run_dir::default_path);
    let daemons =
        socket::daemons(&run_dir).with_context(|| format!("cannot look for daemons in {}", run_dir.display()))?;
    if daemons.is_empty() {
        bail!("no stria daemon answers in {}; is one running, with another --run-dir?", run_dir.display());
    }
    let paths: Vec<PathBuf> = daemons.into_iter().map(|(_, path)| path).collect();
    match arguments.command {
        CtlCommand::GetParam { values_only, patterns } => for_patterns(
            &paths,
            &patterns,
            |pattern| CtlRequest::Get { pattern },
            |parameter| {
                show(parameter, values_only);
            },
        ),
        CtlCommand::ListParam { mark, patterns } => for_patterns(
            &paths,
            &patterns,
            |pattern| CtlRequest::List { pattern },
            |parameter| {
                println!("{}{}", parameter.name, if mark && parameter.writable { "=" } else { "" });
            },
        ),
        CtlCommand::SetParam { permanent, assignments } => {
            for assignment in assignments {
                set(&paths, &assignment, permanent)?;
            }
            Ok(())
        }
        CtlCommand::Dl => {
            let mut number = 0;
            for path in &paths {
                let CtlReply::Targets(targets) = ask(path, &CtlRequest::Targets)? else { continue };
                for target in targets {
                    println!("{number:>3} {:<7} {:<10} {} {}", target.state, target.kind, target.name, target.address);
                    number += 1;
                }
            }
            Ok(())
        }
        CtlCommand::Deactivate { target } => done_by_any(&paths, &CtlRequest::SetState { target, active: false }),
        CtlCommand::Activate { target } => done_by_any(&paths, &CtlRequest::SetState { target, active: true }),
    }
}

/// One line for a short value; long ones stand below their name, as in lctl.
fn show(parameter: &Parameter, values_only: bool) {
    let value = parameter.value.trim_end();
    match (values_only, value.contains('\n')) {
        (true, _) => println!("{value}"),
        (false, false) => println!("{}={value}", parameter.name),
        (false, true) => println!("{}=\n{value}", parameter.name),
    }
}

fn ask(path: &Path, request: &CtlRequest) -> anyhow::Result<CtlReply> {
    match socket::ask(path, request).with_context(|| format!("the daemon behind {} does not answer", path.display()))? {
        CtlReply::Error(problem) => bail!(problem),
        reply => Ok(reply),
    }
}

fn for_patterns(
    paths: &[PathBuf],
    patterns: &[String],
    request: impl Fn(String) -> CtlRequest,
    mut show: impl FnMut(&Parameter),
) -> anyhow::Result<()> {
    for pattern in patterns {
        let mut found: Vec<Parameter> = Vec::new();
        for path in paths {
            if let CtlReply::Parameters(parameters) = ask(path, &request(pattern.clone()))? {
                found.extend(parameters);
            }
        }
        if found.is_empty() {
            bail!("no parameter matches '{pattern}'; see: stria ctl list_param");
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found.iter().for_each(&mut show);
    }
    Ok(())
}

fn set(paths: &[PathBuf], assignment: &str, permanent: bool) -> anyhow::Result<()> {
    let Some((name, value)) = assignment.split_once('=') else {
        bail!("'{assignment}': expected NAME=VALUE");
    };
    let (name, value) = (name.to_owned(), value.to_owned());
    if permanent && value.is_empty() {
        // Removes the permanent setting; what is set now stays.
        return done_by_any(paths, &CtlRequest::SetPermanent { name, value });
    }
    let mut changed = Vec::new();
    for path in paths {
        let request = CtlRequest::Set { pattern: name.clone(), value: value.clone() };
        if let CtlReply::Parameters(parameters) = ask(path, &request)? {
            changed.extend(parameters);
        }
    }
    match (permanent, changed.is_empty()) {
        (false, true) => bail!("no parameter matches '{name}'; see: stria ctl list_param"),
        (false, false) => changed.iter().for_each(|parameter| show(parameter, false)),
        (true, unknown) => {
            // The value was good for this host's daemons; other hosts may have parameters that these do not.
            done_by_any(paths, &CtlRequest::SetPermanent { name: name.clone(), value })?;
            if unknown {
                eprintln!("stria: no daemon of this host has '{name}'; it was stored for others");
            }
        }
    }
    Ok(())
}

/// For requests that concern the whole file system: any daemon passes them on.
fn done_by_any(paths: &[PathBuf], request: &CtlRequest) -> anyhow::Result<()> {
    let mut last = None;
    for path in paths {
        match ask(path, request) {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("there is at least one daemon"))
}
