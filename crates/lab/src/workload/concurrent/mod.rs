//! Concurrent mode: all clients at once, on shared files and on their own, while servers die and
//! the network fails; in some seeds a client dies too. When the faults are over all clients must
//! finish, and each scenario checks the result.
//!
//! One scenario per file. A scenario keeps its evidence (what clients were told) outside of the
//! simulated processes, so that it outlives them.

mod actor;
mod appends;
mod churn;
mod counter;
mod creates;
mod moves;
mod records;
mod renames;
mod scenario;
mod writes;

use std::{sync::Arc, time::Duration};

use rt::BoxFuture;

use self::{actor::Actor, scenario::Scenario};
use super::Verdict;
use crate::{
    Random,
    checkers::finishes,
    cluster::{Cluster, client_host},
    faults::{Chaos, FaultPlan, spread},
};

/// Faults continue for this long at most; clients that have not finished by then finish without
/// faults.
const FAULTS_LAST: Duration = Duration::from_secs(30);
/// When a client that is to die dies.
const DEATH: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(5));
/// When the directory of a scenario gets stripes.
const SPLIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(2));
/// Operations of the workload to one round of each scenario of each client.
const OPERATIONS_PER_ROUND: u64 = 10;

fn scenarios() -> Vec<Arc<dyn Scenario>> {
    vec![
        Arc::new(appends::Appends::default()),
        Arc::new(churn::Churn),
        Arc::new(counter::Counter::default()),
        Arc::new(creates::Creates::default()),
        Arc::new(moves::Moves::default()),
        Arc::new(renames::Renames::default()),
        Arc::new(writes::Writes::default()),
    ]
}

/// Runs the workload; returns the number of faults.
pub async fn run(cluster: &Cluster, plan: FaultPlan, operations: u64) -> Result<u64, String> {
    let random = Random::for_purpose(cluster.seed(), "concurrent");
    let rounds = operations.div_ceil(OPERATIONS_PER_ROUND);
    let doomed = if plan.client_dies { Some(*random.pick(&cluster.clients())) } else { None };
    let scenarios = scenarios();
    for scenario in &scenarios {
        let (inner, actor) = (scenario.clone(), Actor::new(cluster, 0, scenario.name()));
        let prepared = cluster.on_client(0, async move {
            actor.make_directory().await?;
            inner.prepare(&actor).await
        });
        prepared.await.ok_or("a client died before anything began")??;
    }
    let chaos = Chaos::begin(cluster, plan);
    let mut parts: Vec<Part> = Vec::new();
    if let Some(splitter) = cluster.clients().into_iter().find(|client| doomed != Some(*client)) {
        parts.extend(
            scenarios.iter().map(|scenario| (splitter, scenario.clone(), split(cluster, splitter, scenario, &random))),
        );
    }
    for client in cluster.clients() {
        parts.extend(
            scenarios.iter().map(|scenario| (client, scenario.clone(), start(cluster, client, scenario, rounds))),
        );
    }
    let death = doomed.map(|client| (client, spread(&random, DEATH.0, DEATH.1)));
    let done = wait_for_all(cluster, parts, death, chaos).await?;
    for scenario in &scenarios {
        let witness = cluster.clients().into_iter().next().ok_or("no client is left")?;
        let (inner, actor) = (scenario.clone(), Actor::new(cluster, witness, scenario.name()));
        let judged = cluster.on_client(witness, async move { inner.judge(&actor, doomed).await });
        let judged = finishes(cluster, scenario.name(), judged).await?.ok_or("a client died after the faults")?;
        judged.map_err(|reason| format!("{}: {reason}", scenario.name()))?;
    }
    Ok(done)
}

type Part = (u16, Arc<dyn Scenario>, BoxFuture<'static, Option<Verdict>>);

/// Starts one client's part of a scenario as a task of its process.
fn start(
    cluster: &Cluster,
    client: u16,
    scenario: &Arc<dyn Scenario>,
    rounds: u64,
) -> BoxFuture<'static, Option<Verdict>> {
    let (inner, actor) = (scenario.clone(), Actor::new(cluster, client, scenario.name()));
    let work = cluster.begin_on_client(client, async move { inner.play(&actor, rounds).await });
    Box::pin(work)
}

/// Gives the directory of a scenario stripes in the middle of it, or another MDT.
fn split(
    cluster: &Cluster,
    client: u16,
    scenario: &Arc<dyn Scenario>,
    random: &Random,
) -> BoxFuture<'static, Option<Verdict>> {
    let actor = Actor::new(cluster, client, scenario.name());
    let (after, simulation) = (spread(random, SPLIT.0, SPLIT.1), cluster.simulation().clone());
    let work = cluster.begin_on_client(client, async move {
        simulation.sleep(after).await;
        actor.split_directory().await
    });
    Box::pin(work)
}

/// Lets faults happen, ends them, and waits for every part.
async fn wait_for_all(
    cluster: &Cluster,
    parts: Vec<Part>,
    death: Option<(u16, Duration)>,
    chaos: Chaos,
) -> Result<u64, String> {
    let doomed = death.map(|(client, _)| client);
    if let Some((client, after)) = death {
        cluster.simulation().sleep(after).await;
        cluster.kill_client(client);
    }
    let mut parts = parts.into_iter();
    let mut waiting = Box::pin(async move {
        for (client, scenario, part) in parts.by_ref() {
            match part.await {
                Some(verdict) => {
                    verdict.map_err(|reason| format!("{} {}: {reason}", client_host(client), scenario.name()))?;
                }
                None if doomed == Some(client) => {}
                None => return Err(format!("{} died", client_host(client))),
            }
        }
        Ok(())
    });
    let early = cluster.within(FAULTS_LAST, waiting.as_mut()).await;
    let faults = chaos.end().await?;
    match early {
        Some(outcome) => outcome?,
        None => finishes(cluster, "the clients' work", waiting).await??,
    }
    Ok(faults)
}
