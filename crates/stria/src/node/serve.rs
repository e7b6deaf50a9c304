//! `stria serve`: the targets of one host.

use std::sync::Arc;

use anyhow::Context;
use rt::real::Cores;

use super::{Node, NodeOptions, config::Config, control::NodeControl, signals, status::say};
use crate::{cli::ServeArgs, ctl::run_dir};

/// Runs `stria serve`.
pub fn run(arguments: &ServeArgs) -> anyhow::Result<()> {
    let config = Config::read(&arguments.config)?;
    let mut stop = signals::stop_requested()?;
    let cores = Cores::start_all()?;
    let options = NodeOptions::daemon(&config);
    let node = Arc::new(cores.block_on(Node::start(cores.clone(), options))?);
    let parameters = config.assignments();
    let control = NodeControl::open(&node, &config.run_dir.unwrap_or_else(run_dir::default_path), &parameters)?;
    let names: Vec<String> = config.targets.iter().map(|target| target.name(&config.fsname)).collect();
    let address = node.address.as_ref().map(ToString::to_string).unwrap_or_default();
    say(format_args!("serving {} at {address}; Ctrl-C stops", names.join(", ")));
    let result = cores.block_on(async {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => Ok(()),
            refused = node.refused() => Err(refused),
        }
    });
    drop(control);
    say("stopping ...");
    let node = Arc::into_inner(node).context("the node is still in use")?;
    let stopped = cores.block_on(node.stop());
    cores.shutdown();
    result.and(stopped)?;
    say("stopped cleanly");
    Ok(())
}
