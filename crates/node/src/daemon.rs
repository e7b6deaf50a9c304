//! Common to the processes of `stria up`, `serve` and `mount`: how they wait for a signal to stop,
//! and how they stop.

use std::sync::Arc;

use anyhow::Context;
use fuse::{Mount, Unmounted};
use rt::real::Cores;
use tokio::sync::watch;

use crate::{Node, holders, status::say};

/// Serves a mount until `stop`, or until another program unmounts it: then true.
pub fn serve_mount(cores: &Cores, mount: &Mount, stop: &mut watch::Receiver<bool>) -> bool {
    let mut ended = mount.ended();
    cores.block_on(async {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => false,
            _ = ended.wait_for(|ended| *ended) => true,
        }
    })
}

/// Unmounts a mount, unless another program has done so. Reports which processes used it.
pub fn unmount(mount: Mount) -> anyhow::Result<()> {
    let holders = holders::describe(mount.point());
    match mount.unmount()? {
        Unmounted::Detached => {
            say(format_args!("the mount was {holders}; it was detached, and programs that still use it get errors"));
        }
        Unmounted::Clean | Unmounted::Before => {}
    }
    Ok(())
}

/// Ends clients and targets of a node that is no longer used, and its threads. Fails with what it
/// has failed with before, if it has.
pub fn stop(node: Arc<Node>, result: anyhow::Result<()>) -> anyhow::Result<()> {
    let node = Arc::into_inner(node).context("the node is still in use")?;
    let cores = node.cores().clone();
    let stopped = cores.block_on(node.stop());
    cores.shutdown();
    result.and(stopped)
}
