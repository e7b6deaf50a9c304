//! `stria`: every role of StriaFS in one binary. This crate contains only the commands; their
//! implementations are in the crates below.

mod cli;
mod generate;
mod lab_command;
mod log_filter;

use std::{ffi::OsString, io::IsTerminal, path::Path, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};
use fuse::mount::helper::is_helper_call;
use lfs::explain::ExplainArgs;
use node::{signals, system_log::SystemLog};
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

use cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let called_as =
        arguments.first().and_then(|path| Path::new(path).file_name()?.to_str()).unwrap_or("stria").to_owned();
    if called_as == "lfs" {
        signals::end_by_closed_pipes();
        return ExitCode::from(lfs::main(&arguments[1..]));
    }
    if is_helper_call(called_as.as_ref(), arguments.get(1).map(OsString::as_os_str)) {
        return status(node::mount::run_as_helper(arguments.into_iter().skip(1)));
    }
    if let [_, help, lfs, rest @ ..] = &arguments[..]
        && help == "help"
        && lfs == "lfs"
    {
        signals::end_by_closed_pipes();
        let words: Vec<OsString> = std::iter::once("help".into()).chain(rest.iter().cloned()).collect();
        return ExitCode::from(lfs::main(&words));
    }
    let matches = Cli::command().get_matches_from(&arguments);
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if is_tool(&cli.command) {
        signals::end_by_closed_pipes();
    }
    if let Command::Lfs { arguments } = &cli.command {
        return ExitCode::from(lfs::main(arguments));
    }
    start_log(&cli.command);
    if let Err(error) = rt::real::raise_open_files_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    status(run(cli.command))
}

/// Whether a command only looks or asks, so that it may end where its reader has gone away. All
/// others serve, mount or make something: they continue when their output is not read. (`fsck`
/// serves until it reports.)
fn is_tool(command: &Command) -> bool {
    match command {
        Command::Lfs { .. }
        | Command::Ctl(_)
        | Command::Inspect(_)
        | Command::Explain(_)
        | Command::Advise(_)
        | Command::Lab(_) => true,
        Command::Up(_)
        | Command::Format(_)
        | Command::Demo(_)
        | Command::Serve(_)
        | Command::Mount(_)
        | Command::Umount(_)
        | Command::Fsck(_)
        | Command::Bench(_)
        | Command::Study(_)
        | Command::Generate(_)
        | Command::MountGuard(_) => false,
    }
}

/// The exit status, after the reason on standard error.
fn status(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stria: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(arguments) => node::up::run(arguments),
        Command::Demo(arguments) => studies::run_demo(&arguments),
        Command::Format(arguments) => node::format::run(&arguments),
        Command::Serve(arguments) => node::serve::run(&arguments),
        Command::Mount(arguments) => node::mount::run(&arguments),
        Command::Umount(arguments) => node::mount::unmount(&arguments),
        Command::MountGuard(arguments) => node::mount_guard::run(&arguments),
        Command::Lfs { .. } => unreachable!("handled before the log starts"),
        Command::Ctl(arguments) => node::ctl::run(arguments),
        Command::Inspect(arguments) => node::inspect::run(&arguments),
        Command::Explain(ExplainArgs { service: Some(service), run_dir, json, .. }) => {
            node::ctl::explain_service(&service, run_dir, json)
        }
        Command::Explain(arguments) => lfs::explain::run(&arguments),
        Command::Advise(arguments) => {
            lfs::explain::advise(&arguments);
            Ok(())
        }
        Command::Fsck(arguments) => node::fsck::run(&arguments),
        Command::Bench(arguments) => studies::run_bench(arguments.command),
        Command::Study(arguments) => studies::run_study(arguments.command),
        Command::Lab(arguments) => lab_command::run(&arguments.command),
        Command::Generate(arguments) => generate::run(&arguments),
    }
}

/// A server and a mount log what their operator wants to know, everything else only what is wrong;
/// `STRIA_LOG` overrides. A panic outside of requests ends a server: it is a bug, and a process
/// that continues without one of its tasks would leave others waiting forever, while one that is
/// gone is recovered from. One in a request ends the service of its target only
/// (docs/decisions/0017-panics.md).
fn start_log(command: &Command) {
    let default = match command {
        Command::Serve(_) | Command::Mount(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    };
    let wanted = std::env::var_os("STRIA_LOG").map(|wanted| wanted.to_string_lossy().into_owned());
    let (filter, warning) = log_filter::filter(wanted.as_deref(), default);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_target(false);
    let in_background = matches!(command, Command::Mount(arguments) if arguments.uses_system_log());
    match SystemLog::open() {
        Ok(system) if in_background => {
            log.with_writer(system).without_time().with_level(false).with_ansi(false).finish().with(filter).init();
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
        _ => log.with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).finish().with(filter).init(),
    }
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    if matches!(command, Command::Up(_) | Command::Serve(_)) {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            if !rt::contain::is_contained() {
                std::process::abort();
            }
        }));
    }
}
