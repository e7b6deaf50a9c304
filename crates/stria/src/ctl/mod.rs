//! `stria ctl`: parameters, statistics and target states of the daemons of this host, in the manner of `lctl`.

mod pool;
pub mod protocol;
pub mod run_dir;
pub mod socket;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cli::{CtlArgs, CtlCommand};
use protocol::{CtlReply, CtlRequest, Parameter, PoolChange, PoolLine};

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
            for reply in ask_all(&paths, &CtlRequest::Targets)? {
                let CtlReply::Targets(targets) = reply else { continue };
                for target in targets {
                    println!("{number:>3} {:<7} {:<10} {} {}", target.state, target.kind, target.name, target.address);
                    number += 1;
                }
            }
            Ok(())
        }
        CtlCommand::PoolNew { pool } => {
            change_pool(&paths, &pool, PoolChange::New)?;
            println!("Pool {pool} created");
            Ok(())
        }
        CtlCommand::PoolAdd { pool, osts } => change_members(&paths, &pool, &osts, PoolChange::Add, "added to"),
        CtlCommand::PoolRemove { pool, osts } => {
            change_members(&paths, &pool, &osts, PoolChange::Remove, "removed from")
        }
        CtlCommand::PoolDestroy { pool } => {
            change_pool(&paths, &pool, PoolChange::Destroy)?;
            println!("Pool {pool} destroyed");
            Ok(())
        }
        CtlCommand::PoolList { name } => list_pools(&paths, &name),
        CtlCommand::Deactivate { target } => done_by_any(&paths, &CtlRequest::SetState { target, active: false }),
        CtlCommand::Activate { target } => done_by_any(&paths, &CtlRequest::SetState { target, active: true }),
    }
}

fn change_pool(paths: &[PathBuf], name: &str, change: PoolChange) -> anyhow::Result<()> {
    let (fsname, pool) = pool::parse_pool(name).map_err(anyhow::Error::msg)?;
    let (fsname, pool) = (fsname.to_owned(), pool.to_owned());
    done_by_any(paths, &CtlRequest::ChangePool { fsname, pool, change })
}

/// Changes a pool OST by OST, as lctl does, so that each is answered for; what is refused of one is no reason to leave out
/// the others. The last refusal is the outcome.
fn change_members(
    paths: &[PathBuf],
    name: &str,
    osts: &[String],
    change: impl Fn(Vec<u16>) -> PoolChange,
    changed: &str,
) -> anyhow::Result<()> {
    let (fsname, _) = pool::parse_pool(name).map_err(anyhow::Error::msg)?;
    let mut indices = Vec::new();
    for text in osts {
        indices.extend(pool::parse_osts(fsname, text).map_err(anyhow::Error::msg)?);
    }
    let mut refused: Option<anyhow::Error> = None;
    for ost in indices {
        match change_pool(paths, name, change(vec![ost.0])) {
            Ok(()) => println!("OST {fsname}-{ost}_UUID {changed} pool {name}"),
            Err(error) => {
                if let Some(earlier) = refused.replace(error) {
                    eprintln!("stria: {earlier:#}");
                }
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Pools of a file system, or the OSTs of one, in lctl's words.
fn list_pools(paths: &[PathBuf], name: &str) -> anyhow::Result<()> {
    let mut pools: Vec<PoolLine> = Vec::new();
    for reply in ask_all(paths, &CtlRequest::Pools)? {
        if let CtlReply::Pools(lines) = reply {
            pools.extend(lines.into_iter().filter(|line| !pools.contains(line)).collect::<Vec<_>>());
        }
    }
    if name.contains('.') {
        let Some(found) = pools.iter().find(|line| line.name == name) else { bail!("Pool {name} not found") };
        println!("Pool: {name}");
        found.members.iter().for_each(|member| println!("{member}"));
        return Ok(());
    }
    let prefix = format!("{name}-");
    let has_target = |reply: &CtlReply| matches!(reply, CtlReply::Targets(targets) if targets.iter().any(|target| target.name.starts_with(&prefix)));
    if !ask_all(paths, &CtlRequest::Targets)?.iter().any(has_target) {
        bail!("no daemon of this host knows a file system '{name}'");
    }
    println!("Pools from {name}:");
    let own = pools.iter().filter(|line| line.name.split('.').next() == Some(name));
    own.for_each(|line| println!("{}", line.name));
    Ok(())
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
    answer(path, request).and_then(accepted)
}

fn answer(path: &Path, request: &CtlRequest) -> anyhow::Result<CtlReply> {
    socket::ask(path, request).with_context(|| format!("the daemon behind {} does not answer", path.display()))
}

/// An error if the daemon refused what it was asked.
fn accepted(reply: CtlReply) -> anyhow::Result<CtlReply> {
    match reply {
        CtlReply::Error(problem) => bail!(problem),
        reply => Ok(reply),
    }
}

/// What all daemons answer. One that ended since it was found, or hangs, is left out with a warning: the others, which know
/// nothing of it, can be looked at and set all the same. That none answers is an error, and so is a refusal of any.
fn ask_all(paths: &[PathBuf], request: &CtlRequest) -> anyhow::Result<Vec<CtlReply>> {
    let mut replies = Vec::new();
    let mut silent = Vec::new();
    for path in paths {
        match answer(path, request) {
            Ok(reply) => replies.push(accepted(reply)?),
            Err(error) => silent.push(error),
        }
    }
    if replies.is_empty()
        && let Some(error) = silent.pop()
    {
        return Err(error);
    }
    silent.iter().for_each(|error| eprintln!("stria: warning: {error:#}"));
    Ok(replies)
}

fn for_patterns(
    paths: &[PathBuf],
    patterns: &[String],
    request: impl Fn(String) -> CtlRequest,
    mut show: impl FnMut(&Parameter),
) -> anyhow::Result<()> {
    for pattern in patterns {
        let mut found: Vec<Parameter> = Vec::new();
        for reply in ask_all(paths, &request(pattern.clone()))? {
            if let CtlReply::Parameters(parameters) = reply {
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
    for reply in ask_all(paths, &CtlRequest::Set { pattern: name.clone(), value: value.clone() })? {
        if let CtlReply::Parameters(parameters) = reply {
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

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, sync::Arc};

    use super::{
        socket::{ControlSocket, Responder},
        *,
    };

    /// Has no parameters, and refuses everything else.
    struct Plain;

    impl Responder for Plain {
        fn respond(&self, request: CtlRequest) -> CtlReply {
            match request {
                CtlRequest::Get { .. } => CtlReply::Parameters(Vec::new()),
                other => CtlReply::Error(format!("not here: {other:?}")),
            }
        }
    }

    #[test]
    fn daemons_that_end_while_they_are_asked_are_left_out() {
        let place = tempfile::tempdir().unwrap();
        let _socket = ControlSocket::open(place.path(), Arc::new(Plain)).unwrap();
        let (_, there) = socket::daemons(place.path()).unwrap().remove(0);
        let [gone, dead, mute] = ["1.sock", "2.sock", "3.sock"].map(|name| place.path().join(name));
        drop(UnixListener::bind(&dead).unwrap());
        let listener = UnixListener::bind(&mute).unwrap();
        let ending = std::thread::spawn(move || drop(listener.accept()));
        let get = CtlRequest::Get { pattern: "*".into() };
        let replies = ask_all(&[gone.clone(), dead.clone(), mute, there.clone()], &get).unwrap();
        assert!(matches!(replies[..], [CtlReply::Parameters(_)]));
        ending.join().unwrap();
        let error = ask_all(&[gone.clone(), dead], &get).unwrap_err();
        assert!(format!("{error:#}").contains("does not answer"), "{error:#}");
        let error = ask_all(&[gone, there], &CtlRequest::Targets).unwrap_err();
        assert!(error.to_string().contains("not here"), "{error:#}");
    }
}
