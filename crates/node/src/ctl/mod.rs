//! `stria ctl`: parameters, statistics and target states of the daemons of this host, like `lctl`.

mod arguments;
mod daemons;
mod explain;
mod parameters;
mod pool;
pub(crate) mod protocol;
pub(crate) mod run_dir;
mod show;
pub(crate) mod socket;

use anyhow::bail;

pub use arguments::{CtlArgs, CtlCommand};
use daemons::{Daemon, Daemons, ask_all, done_by_any};
pub use explain::explain_service;
use parameters::Question;
use protocol::{CtlReply, CtlRequest, PoolChange, PoolLine, TargetLine};
pub use run_dir::default_path as default_run_dir;
use show::{Headings, Style};

/// Runs `stria ctl`.
pub fn run(arguments: CtlArgs) -> anyhow::Result<()> {
    let run_dir = arguments.run_dir.unwrap_or_else(run_dir::default_path);
    let daemons = Daemons::find(&run_dir, arguments.fs.as_deref())?;
    let headings = if daemons.are_of_several() { Headings::Always } else { Headings::OfSeveral };
    let style = Style { json: arguments.json, headings };
    match arguments.command {
        CtlCommand::GetParam { values_only, permanent, patterns } => {
            let (style, text): (_, fn(&_) -> String) = match values_only {
                true => (Style { headings: Headings::Never, ..style }, show::value),
                false => (style, show::assignment),
            };
            if permanent {
                return parameters::show_permanent(&daemons.all(), style, text);
            }
            parameters::show(&daemons.all(), &patterns, Question::Values, style, text)
        }
        CtlCommand::ListParam { mark, names_only, patterns } => {
            let text = |parameter: &protocol::Parameter| match names_only || mark {
                true => show::name(parameter, mark),
                false => show::description(parameter),
            };
            parameters::show(&daemons.all(), &patterns, Question::Names, style, text)
        }
        CtlCommand::SetParam { permanent, delete, assignments } => {
            let meant = daemons.of_one("set_param", None)?;
            if delete {
                return assignments.iter().try_for_each(|name| parameters::remove_permanent(&meant, name));
            }
            each(&assignments, |assignment| parameters::set(&meant, assignment, permanent, style))
        }
        CtlCommand::Dl => list_targets(&daemons.all(), style),
        CtlCommand::PoolNew { pool } => {
            change_pool(&daemons, "pool_new", &pool, PoolChange::New)?;
            style.tell(format_args!("Pool {pool} created"));
            Ok(())
        }
        CtlCommand::PoolAdd { pool, osts } => {
            let change = Change { command: "pool_add", change: PoolChange::Add, done: "added to" };
            change_members(&daemons, &pool, &osts, change, style)
        }
        CtlCommand::PoolRemove { pool, osts } => {
            let change = Change { command: "pool_remove", change: PoolChange::Remove, done: "removed from" };
            change_members(&daemons, &pool, &osts, change, style)
        }
        CtlCommand::PoolDestroy { pool } => {
            change_pool(&daemons, "pool_destroy", &pool, PoolChange::Destroy)?;
            style.tell(format_args!("Pool {pool} destroyed"));
            Ok(())
        }
        CtlCommand::PoolList { name } => list_pools(&daemons.all(), &name, style),
        CtlCommand::Deactivate { target } => set_state(&daemons, "deactivate", target, false),
        CtlCommand::Activate { target } => set_state(&daemons, "activate", target, true),
    }
}

/// Targets as each daemon knows them.
fn list_targets(daemons: &[&Daemon], style: Style) -> anyhow::Result<()> {
    let targets = |(daemon, reply)| match reply {
        CtlReply::Targets(targets) => Some((daemon, targets)),
        _ => None,
    };
    let answers: Vec<(&Daemon, Vec<TargetLine>)> =
        ask_all(daemons, &CtlRequest::Targets)?.into_iter().filter_map(targets).collect();
    style.print(&answers, |target| target, show::targets(&answers))
}

/// A target's name begins with that of its file system.
fn set_state(daemons: &Daemons, command: &str, target: String, active: bool) -> anyhow::Result<()> {
    let fsname = target.split_once('-').map(|(fsname, _)| fsname);
    let known = fsname.filter(|fsname| daemons.all().iter().any(|daemon| daemon.info.fsname == *fsname));
    done_by_any(&daemons.of_one(command, known)?, &CtlRequest::SetState { target, active })
}

fn change_pool(daemons: &Daemons, command: &str, name: &str, change: PoolChange) -> anyhow::Result<()> {
    let (fsname, pool) = pool::parse_pool(name).map_err(anyhow::Error::msg)?;
    let meant = daemons.of_one(command, Some(fsname))?;
    let (fsname, pool) = (fsname.to_owned(), pool.to_owned());
    done_by_any(&meant, &CtlRequest::ChangePool { fsname, pool, change })
}

/// What becomes of the OSTs of a pool.
struct Change<F> {
    command: &'static str,
    change: F,
    done: &'static str,
}

/// Does something with each, as lctl does: what is refused of one is no reason to leave out the
/// others. The last refusal is the outcome; those before it are printed.
fn each<T>(all: impl IntoIterator<Item = T>, mut act: impl FnMut(T) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut refused: Option<anyhow::Error> = None;
    for one in all {
        if let Err(error) = act(one)
            && let Some(earlier) = refused.replace(error)
        {
            eprintln!("stria: {earlier:#}");
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Changes a pool OST by OST, so that each is answered for.
fn change_members(
    daemons: &Daemons,
    name: &str,
    osts: &[String],
    change: Change<impl Fn(Vec<u16>) -> PoolChange>,
    style: Style,
) -> anyhow::Result<()> {
    let (fsname, _) = pool::parse_pool(name).map_err(anyhow::Error::msg)?;
    let mut indices = Vec::new();
    for text in osts {
        indices.extend(pool::parse_osts(fsname, text).map_err(anyhow::Error::msg)?);
    }
    each(indices, |ost| {
        change_pool(daemons, change.command, name, (change.change)(vec![ost.0]))?;
        style.tell(format_args!("OST {fsname}-{ost}_UUID {} pool {name}", change.done));
        Ok(())
    })
}

/// Pools of a file system, or the OSTs of one, in lctl's words. All daemons of a file system know
/// the same pools: one answers.
fn list_pools(daemons: &[&Daemon], name: &str, style: Style) -> anyhow::Result<()> {
    let fsname = name.split('.').next().unwrap_or_default();
    let mut answers: Vec<(&Daemon, Vec<PoolLine>)> = Vec::new();
    for (daemon, reply) in ask_all(daemons, &CtlRequest::Pools)? {
        let is_known = daemon.info.file_system.is_some()
            && answers.iter().any(|(known, _)| known.info.file_system == daemon.info.file_system);
        if let CtlReply::Pools(mut pools) = reply
            && daemon.info.fsname == fsname
            && !is_known
        {
            pools.retain(|pool| pool.name == name || !name.contains('.'));
            answers.push((daemon, pools));
        }
    }
    if answers.is_empty() {
        bail!("no daemon on this host belongs to file system '{fsname}'");
    }
    if name.contains('.') {
        if answers.iter().all(|(_, pools)| pools.is_empty()) {
            bail!("Pool {name} not found");
        }
        return style.print(&answers, show::Pool::from, |pool| {
            let members: String = pool.members.iter().map(|member| format!("\n{member}")).collect();
            format!("Pool: {name}{members}")
        });
    }
    style.tell(format_args!("Pools from {name}:"));
    style.print(&answers, show::Pool::from, |pool| pool.name.clone())
}
