//! Power mode: clients work, servers lose power with torn writes, and what was synced must be
//! there.
//!
//! In rounds: clients change names and data and sync from time to time; then one server, several or
//! all lose power, sometimes together with the clients; everything is started again and checked,
//! sometimes once more after `stria fsck --repair` has removed what it finds. Synced changes are
//! present; changes on hosts that kept their power are present; changes older than the commit
//! interval are present; every other change is present whole or not at all ([`names`] and [`data`]
//! say exactly what this means for them). A file that is replaced as a whole by a rename, without
//! any sync, has its old or its new contents ([`replace`]). The next sync reports the loss of
//! unsynced changes ([`alarm`]).

mod alarm;
mod block;
mod data;
mod judge;
mod ledger;
mod loss;
mod moves;
mod names;
mod names_over_mdts;
mod replace;

use std::{sync::Arc, time::Duration};

use rt::Entropy;

use self::{
    data::Data,
    loss::{Blackout, Loss},
    names::Names,
    replace::Replacement,
};
use super::Verdict;
use crate::{
    Random,
    checkers::{self, finishes},
    cluster::Cluster,
    faults::{Chaos, FaultPlan, spread},
    network::DELAY_MAX,
};

/// The client that changes names.
const NAMES_CLIENT: u16 = 0;
/// Time between the begin of a round and the power loss.
const CALM: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(2));
/// How long hosts are without power.
const DARK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// After one power loss in so many, objects without a file are removed, and everything is looked at
/// once more.
const REPAIR_ONE_IN: u64 = 3;
/// Operations of the workload to one round.
const OPERATIONS_PER_ROUND: u64 = 50;

/// Runs the workload; returns the number of faults.
pub async fn run(cluster: &Cluster, plan: FaultPlan, operations: u64) -> Result<u64, String> {
    let random = Random::for_purpose(cluster.seed(), "power");
    let names = Arc::new(Names::new(cluster));
    let clients: Vec<u16> = cluster.clients().into_iter().filter(|client| *client != NAMES_CLIENT).collect();
    let data = Data::of_clients(cluster, &clients);
    let replacement = Replacement::of_clients(cluster, &clients);
    names.prepare(cluster).await?;
    replacement.prepare(cluster).await?;
    for data in &data {
        data.prepare(cluster).await?;
    }
    let mut faults = 0;
    for round in 0..operations.div_ceil(OPERATIONS_PER_ROUND) {
        cluster.log().event("power", format_args!("round {round}"));
        // Kills would start servers that have no power.
        let chaos = Chaos::begin(cluster, FaultPlan { kills: false, client_dies: false, ..plan });
        let blackout = Blackout::default();
        let mut working = vec![names.work(cluster, &blackout), replacement.work(cluster, &blackout)];
        working.extend(data.iter().map(|data| data.work(cluster, &blackout)));
        cluster.simulation().sleep(spread(&random, CALM.0, CALM.1)).await;
        blackout.happens();
        let loss = lose_power(cluster, plan, &random);
        cluster.simulation().sleep(spread(&random, DARK.0, DARK.1)).await;
        // Everything starts again.
        faults += 1 + chaos.end().await?;
        for worker in working {
            // A worker that ended with its client says nothing.
            if let Some(verdict) = finishes(cluster, "work under way when the power went", worker).await? {
                verdict?;
            }
        }
        if loss.clients {
            // What they had sent may still arrive: before they are evicted, nothing keeps it away.
            cluster.simulation().sleep(DELAY_MAX * 2).await;
            finishes(cluster, "requests of clients that died", checkers::requests_end(cluster)).await?;
            for client in 0..cluster.options().clients {
                finishes(cluster, "a mount", cluster.mount(client)).await??;
            }
        }
        finishes(cluster, "looking at the names", names.judge(cluster, &loss)).await??;
        judge_data(cluster, &data, &loss).await?;
        finishes(cluster, "looking at the replaced file", replacement.judge(cluster, &loss)).await??;
        if random.below(REPAIR_ONE_IN) == 0 {
            checkers::orphans_go(cluster).await?;
            judge_data(cluster, &data, &Loss::nothing(cluster)).await?;
            replacement.judge(cluster, &Loss::nothing(cluster)).await?;
        }
    }
    close(cluster, &names, &data).await?;
    Ok(faults)
}

async fn judge_data(cluster: &Cluster, data: &[Arc<Data>], loss: &Loss) -> Verdict {
    for data in data {
        finishes(cluster, "looking at the data", data.judge(cluster, loss)).await??;
    }
    Ok(())
}

/// Takes the power away.
fn lose_power(cluster: &Cluster, plan: FaultPlan, random: &Random) -> Loss {
    let loss = Loss::of_seed(cluster, plan, random);
    cluster.log().event("power", format_args!("{loss:?}"));
    for role in &loss.roles {
        cluster.lose_power(*role);
    }
    if loss.clients {
        for client in cluster.clients() {
            cluster.kill_client(client);
        }
    }
    loss
}

async fn close(cluster: &Cluster, names: &Names, data: &[Arc<Data>]) -> Verdict {
    names.close(cluster).await?;
    for data in data {
        data.close(cluster).await?;
    }
    Ok(())
}
