//! `stria serve`: the targets of one host.

use std::{convert::Infallible, path::PathBuf, sync::Arc};

use clap::Args;
use types::counted;

use super::{
    Node, NodeOptions,
    config::Config,
    control::{NodeControl, Presence},
    daemon,
    reachability::tell_while_any,
    service_manager::ServiceManager,
    signals,
    status::say,
};
use crate::ctl::run_dir;

/// Arguments of `stria serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Configuration file of the daemon
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
}

/// Runs `stria serve`.
pub fn run(arguments: &ServeArgs) -> anyhow::Result<()> {
    let config = Config::read(&arguments.config)?;
    let mut stop = signals::stop_requested()?;
    let manager = ServiceManager::of_this_process();
    manager.status(format_args!("opening {}", counted(config.targets.len(), "target")));
    let cores = config.cpu_options()?.start()?;
    let options = NodeOptions::daemon(&config);
    let node = Arc::new(cores.block_on(Node::start(cores.clone(), options))?);
    let parameters = config.assignments();
    let presence = Presence {
        run_dir: &config.run_dir.unwrap_or_else(run_dir::default_path),
        source: format!("{}:/{}", node.mgs_address().unwrap_or_default(), node.fsname()),
        role: "stria serve".to_owned(),
    };
    let control = NodeControl::open(&node, presence, &parameters)?;
    let names: Vec<String> = config.targets.iter().map(|target| target.name(&config.fsname)).collect();
    let address = node.address.as_ref().map(ToString::to_string).unwrap_or_default();
    let serving = format!("serving {} at {address}", names.join(", "));
    say(format_args!("{serving}; Ctrl-C stops"));
    manager.ready(format_args!("{serving}; not registered with the management service yet"));
    let result = cores.block_on(async {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => Ok(()),
            refused = node.refused() => Err(refused),
            never = report_registration(&node, &manager, &serving) => match never {},
        }
    });
    drop(control);
    say("stopping ...");
    manager.stopping("writing data and closing targets");
    daemon::stop(node, result)?;
    say("stopped cleanly");
    Ok(())
}

/// Tells the user and the service manager why targets cannot register yet, and when all are
/// registered. The daemon is ready before that: while the management service is down it serves the
/// clients that know it, and the service manager would give up a start that waited for another
/// host.
async fn report_registration(node: &Node, manager: &ServiceManager, serving: &str) -> Infallible {
    let tell = |waiting: &str| {
        say(waiting);
        manager.status(format_args!("{serving}; {waiting}"));
    };
    if let ((), true) = tell_while_any([&node.mgs_import], node.all_registered(), tell).await {
        say(format_args!("registered with MGS {}", node.mgs_address().unwrap_or_default()));
    }
    manager.status(serving);
    std::future::pending().await
}
