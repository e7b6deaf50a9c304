//! Serial mode: generated operations one after the other, each by a client chosen at random, each
//! compared with the reference model at once, while servers die and the network fails.
//!
//! Every operation has exactly the effect and the result that POSIX requires, whatever was lost,
//! duplicated or repeated on the way. There are no power losses here: acknowledged changes must be
//! kept.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use types::FileKind;

use crate::{
    Random,
    checkers::finishes,
    cluster::{Cluster, client_host},
    faults::{Chaos, FaultPlan},
    log::summary,
    native::Native,
    reference::{Facts, Generator, Model, Operation, Outcome, Shape},
};

/// Clients and the model they are compared with.
struct Serial {
    cluster: Cluster,
    random: Random,
    natives: BTreeMap<u16, Native>,
    model: Model,
}

/// An operation that takes longer than this under faults gets a calm network and all servers.
const TIMEOUT: Duration = Duration::from_secs(120);

/// As long as the MDT of a shard is not there, stat counts its subdirectories as they were last
/// seen. Such an answer has to become right when all are there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOKS_MAX: u64 = 400;

/// Runs the workload; returns the number of faults.
pub async fn run(cluster: &Cluster, plan: FaultPlan, operations: u64) -> Result<u64, String> {
    let seed = cluster.seed();
    let native = |client: u16| {
        let (file_system, _) = cluster.file_system(client).expect("clients live through this workload");
        let native = Native::new(file_system, Random::for_purpose(seed, &client_host(client)));
        (client, native.over_mdts(cluster.places()))
    };
    let mut serial = Serial {
        cluster: cluster.clone(),
        random: Random::for_purpose(seed, "serial"),
        natives: cluster.clients().into_iter().map(native).collect(),
        model: Model::new(),
    };
    let generator = Generator::new(seed, Shape::default());
    let (mut chaos, mut faults) = (Chaos::begin(cluster, plan), 0);
    for _ in 0..operations {
        let operation = generator.operation();
        let described = format!("{operation:?}");
        let mut work = pin!(serial.compare(operation));
        if let Some(compared) = cluster.within(TIMEOUT, work.as_mut()).await {
            compared?;
            continue;
        }
        faults += chaos.end().await?;
        finishes(cluster, &described, work).await??;
        chaos = Chaos::begin(cluster, plan);
    }
    faults += chaos.end().await?;
    finishes(cluster, "the comparison of everything", serial.compare_everything()).await??;
    serial.close().await?;
    Ok(faults)
}

impl Serial {
    fn pick_client(&self) -> u16 {
        let clients: Vec<u16> = self.natives.keys().copied().collect();
        *self.random.pick(&clients)
    }

    /// One operation by one client, against the model.
    async fn compare(&mut self, operation: Operation) -> Result<(), String> {
        let client = self.pick_client();
        let expected = self.model.apply(&operation);
        let (native, operation) = (self.natives[&client].clone(), Arc::new(operation));
        let (described, again) = (format!("{operation:?}"), operation.clone());
        let mut looks = 0;
        let actual = loop {
            let (native, again) = (native.clone(), again.clone());
            let actual = self.cluster.on_client(client, async move { native.apply(&again).await }).await;
            let actual = actual.ok_or("a client died in a workload that kills none")?;
            looks += 1;
            if looks == LOOKS_MAX || !may_be_outdated(&expected, &actual) {
                break actual;
            }
            self.cluster.simulation().sleep(LOOK_AGAIN).await;
        };
        self.cluster.log().event(&client_host(client), format_args!("{described} -> {}", summary(&actual)));
        if expected == actual {
            return Ok(());
        }
        Err(format!("{}: {described}\n  model: {}\n  file system: {}", client_host(client), summary(&expected), {
            let difference = difference(&expected, &actual);
            format!("{}{difference}", summary(&actual))
        }))
    }

    /// Everything there is, as every client sees it.
    async fn compare_everything(&mut self) -> Result<(), String> {
        let mut paths = self.model.paths();
        paths.sort();
        for path in paths {
            self.compare(Operation::Stat { path: path.clone() }).await?;
            self.compare(Operation::List { path: path.clone() }).await?;
            self.compare(Operation::Read { path, offset: 0, bytes: 4 << 20 }).await?;
        }
        self.compare(Operation::List { path: String::new() }).await
    }

    async fn close(self) -> Result<(), String> {
        for (client, native) in self.natives {
            let closed = self.cluster.on_client(client, async move { native.close_all().await }).await;
            closed.ok_or("a client died")?.map_err(|error| format!("{} cannot close: {error}", client_host(client)))?;
        }
        Ok(())
    }
}

/// Whether these are facts of a directory that differ in the number of subdirectories only.
fn may_be_outdated(expected: &Outcome, actual: &Outcome) -> bool {
    let (Outcome::Facts(expected), Outcome::Facts(actual)) = (expected, actual) else { return false };
    let is_directory = expected.kind == FileKind::Directory;
    is_directory && expected != actual && *expected == (Facts { links: expected.links, ..actual.clone() })
}

/// Where data differ first.
fn difference(expected: &Outcome, actual: &Outcome) -> String {
    let (Outcome::Data(expected), Outcome::Data(actual)) = (expected, actual) else { return String::new() };
    let Some(at) = expected.iter().zip(actual).position(|(one, other)| one != other) else { return String::new() };
    let end = |data: &[u8]| (at + 8).min(data.len());
    let different = expected.iter().zip(actual).filter(|(one, other)| one != other).count();
    format!(
        "\n  {different} bytes differ, first at {at}: model {:02x?}, file system {:02x?}",
        &expected[at..end(expected)],
        &actual[at..end(actual)]
    )
}
