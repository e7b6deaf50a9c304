//! Watchers and registrars against a management service, over real sessions in memory.

mod common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{HandClock, Host};
use mgs::{
    Mgs, Registrar, Registration, TARGET_NAME, Watcher,
    registrar::{Identity, Measure, REPORT_INTERVAL},
};
use rpc::{
    Endpoint, Import, ImportOptions, Server, ServerOptions,
    message::{
        MgsReply, MgsRequest,
        mgs::{TargetRole, TargetState},
        ost::TargetCondition,
    },
};
use rt::{Address, BoxFuture, Seams, Spawn};
use tokio::sync::watch;
use types::{ClientId, OstIndex, Refusal, SpaceUsage};

/// Who asks.
const PROCESS: ClientId = ClientId(9);
const OST: TargetRole = TargetRole::Ost(OstIndex(0));

async fn serve(seams: &Seams, mgs: Arc<Mgs>) -> (Arc<Server>, Address) {
    let server = Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target(TARGET_NAME, mgs, Duration::from_secs(60));
    let address = server.listen(&Address::from("mgs:0")).await.unwrap();
    (server, address)
}

fn connect(seams: &Seams, address: &Address, client: u64) -> Import {
    let endpoint = Endpoint::Remote(address.clone().into());
    let options = ImportOptions { backoff_min: Duration::from_millis(1), ..ImportOptions::default() };
    Import::new(seams.clone(), TARGET_NAME, endpoint, rpc::Principal::of_test(client, rpc::Role::Ost), options, None)
}

fn identity(uuid: &str) -> Identity {
    Identity { fsname: "stria".into(), role: OST, uuid: uuid.into(), addresses: vec!["oss:1".into()] }
}

/// Measures nothing, and counts how often it was asked.
fn counted(count: &Arc<watch::Sender<u32>>) -> Measure {
    let count = count.clone();
    Arc::new(move || {
        count.send_modify(|count| *count += 1);
        Box::pin(std::future::ready((SpaceUsage::default(), TargetCondition::default())))
    })
}

#[tokio::test]
async fn watchers_see_what_registrars_bring() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let (_server, address) = serve(&host.seams, mgs.clone()).await;
    let watcher = Watcher::start(&host.seams, connect(&host.seams, &address, 1));
    assert_eq!(watcher.first().await.unwrap().fsname, "stria");
    assert_eq!(watcher.addresses(OST), None);

    let count = Arc::new(watch::Sender::new(0));
    let import = connect(&host.seams, &address, 2);
    let registrar = Registrar::start(&host.seams, import, identity("u0"), counted(&count));
    assert_eq!(registrar.first().await, Ok(()));
    assert_eq!(registrar.state(), Registration::Registered);
    watcher.wait_for(|map| map.targets.len() == 1).await.unwrap();
    assert_eq!(watcher.addresses(OST), Some(vec!["oss:1".to_owned()]));

    let inactive = MgsRequest::SetState(OST, TargetState::Inactive);
    assert_eq!(mgs.execute(PROCESS, inactive).await, Ok(MgsReply::Done));
    let map = watcher.wait_for(|map| map.targets[0].state == TargetState::Inactive).await.unwrap();
    assert_eq!(map, mgs.map());
}

/// The service's clock stands still: what waits for another map waits until the session ends.
#[tokio::test]
async fn a_client_that_leaves_ends_its_session_at_once() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let (server, address) = serve(&host.seams, mgs).await;
    let import = connect(&host.seams, &address, 1);
    let watcher = Watcher::start(&host.seams, import.clone());
    watcher.first().await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.sessions(TARGET_NAME).len(), 1);
    import.close().await;
    assert!(server.sessions(TARGET_NAME).is_empty(), "no lease has to run out");
}

#[tokio::test]
async fn a_refused_target_is_told_why() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let (_server, address) = serve(&host.seams, mgs).await;
    let count = Arc::new(watch::Sender::new(0));
    let start = |client, uuid| {
        Registrar::start(&host.seams, connect(&host.seams, &address, client), identity(uuid), counted(&count))
    };
    let owner = start(1, "u0");
    assert_eq!(owner.first().await, Ok(()));
    let thief = start(2, "u1");
    let refusal = "stria-OST0000: the index is taken by uuid u0 at oss:1, this target has uuid u1";
    assert_eq!(thief.first().await, Err(Refusal::Told(refusal.to_owned()).into()));
}

#[tokio::test]
async fn reports_are_repeated() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let (_server, address) = serve(&host.seams, mgs.clone()).await;
    let clock = HandClock::new();
    let seams = Seams { clock: clock.clone(), ..host.seams.clone() };
    let count = Arc::new(watch::Sender::new(0));
    let registrar = Registrar::start(&seams, connect(&host.seams, &address, 1), identity("u0"), counted(&count));
    assert_eq!(registrar.first().await, Ok(()));
    for expected in 2..5 {
        clock.advance(REPORT_INTERVAL);
        count.subscribe().wait_for(|count| *count == expected).await.unwrap();
    }
    assert_eq!(mgs.map().version, 2, "repeated reports change nothing");
}

#[tokio::test]
async fn a_watcher_follows_a_service_that_moved() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let (server, address) = serve(&host.seams, mgs.clone()).await;
    let import = connect(&host.seams, &address, 1);
    let watcher = Watcher::start(&host.seams, import.clone());
    watcher.first().await.unwrap();
    // A stopping server lets requests finish: the watcher's may wait for up to a second of the
    // service's clock.
    let mut stopped = std::pin::pin!(server.stop());
    loop {
        tokio::select! {
            () = &mut stopped => break,
            () = tokio::task::yield_now() => host.clock.advance(Duration::from_secs(1)),
        }
    }
    mgs.execute(PROCESS, MgsRequest::SetParameter("jobid_var".into(), "x".into())).await.unwrap();
    assert_eq!(watcher.map().version, 1, "the old map stays valid");
    let (_server, address) = serve(&host.seams, mgs).await;
    import.set_address(Endpoint::Remote(address.into()));
    let map = watcher.wait_for(|map| map.version == 2).await.unwrap();
    assert_eq!(map.parameters, [("jobid_var".to_owned(), "x".to_owned())]);
}

/// Counts the tasks that run, by name.
struct CountingSpawn {
    inner: Arc<dyn Spawn>,
    running: Arc<watch::Sender<BTreeMap<&'static str, u32>>>,
}

impl Spawn for CountingSpawn {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        let running = self.running.clone();
        running.send_modify(|running| *running.entry(name).or_default() += 1);
        let counted = async move {
            future.await;
            running.send_modify(|running| *running.get_mut(name).expect("counted at its start") -= 1);
        };
        self.inner.spawn(name, Box::pin(counted));
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        self.inner.all_cores_ran()
    }
}

#[tokio::test]
async fn tasks_end_with_their_owners() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let (_server, address) = serve(&host.seams, mgs).await;
    let running = Arc::new(watch::Sender::new(BTreeMap::new()));
    let inner = host.seams.spawn.clone();
    let spawn = Arc::new(CountingSpawn { inner, running: running.clone() });
    let seams = Seams { spawn, ..host.seams.clone() };
    let watcher = Watcher::start(&seams, connect(&host.seams, &address, 1));
    let subscription = watcher.subscribe();
    let count = Arc::new(watch::Sender::new(0));
    let registrar = Registrar::start(&seams, connect(&host.seams, &address, 2), identity("u0"), counted(&count));
    registrar.first().await.unwrap();
    watcher.first().await.unwrap();
    drop(watcher);
    assert_eq!(running.borrow()["mgs_watcher"], 1, "a subscription keeps it alive");
    drop(subscription);
    drop(registrar);
    running.subscribe().wait_for(|running| running.values().all(|count| *count == 0)).await.unwrap();
}
