//! The management service on a store in memory: its answers, what survives, and when waiting
//! clients are informed.

mod common;

use std::{sync::atomic::Ordering, time::Duration};

use common::Host;
use rpc::{
    Endpoint, Handler, Import, ImportOptions, Server, ServerOptions, SessionEvent,
    message::{
        MgsReply, MgsRequest,
        mgs::{ClusterMap, Register, TargetRole, TargetState},
        ost::TargetCondition,
    },
};
use rt::Instant;
use tokio::time::timeout;
use types::{ClientId, FsError, FsResult, MdtIndex, OstIndex, Refusal, SpaceUsage};

/// Who asks.
const PROCESS: ClientId = ClientId(1);

fn register(role: TargetRole, uuid: &str, address: &str) -> MgsRequest {
    let space = SpaceUsage { bytes_total: 100, ..SpaceUsage::default() };
    MgsRequest::Register(Register {
        fsname: "stria".into(),
        role,
        uuid: uuid.into(),
        addresses: vec![address.into()],
        space,
        condition: TargetCondition { degraded: true, ..TargetCondition::default() },
    })
}

fn ost(index: u16) -> TargetRole {
    TargetRole::Ost(OstIndex(index))
}

fn map(reply: FsResult<MgsReply>) -> ClusterMap {
    match reply {
        Ok(MgsReply::Map(map)) => map,
        other => panic!("expected a map: {other:?}"),
    }
}

#[tokio::test]
async fn what_was_answered_survives_power_loss() {
    let mut host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    assert_eq!(mgs.map().version, 1);
    let mdt = TargetRole::Mdt(MdtIndex(0));
    let after_first = map(mgs.execute(PROCESS, register(ost(0), "u0", "a:1")).await);
    assert_eq!(after_first.targets.len(), 1);
    map(mgs.execute(PROCESS, register(mdt, "m0", "a:1")).await);
    assert_eq!(mgs.execute(PROCESS, MgsRequest::SetState(ost(0), TargetState::Inactive)).await, Ok(MgsReply::Done));
    for (pattern, value) in [("osc.*.max_rpcs_in_flight", "8"), ("jobid_var", "x"), ("osc.*.max_rpcs_in_flight", "16")]
    {
        let request = MgsRequest::SetParameter(pattern.into(), value.into());
        assert_eq!(mgs.execute(PROCESS, request).await, Ok(MgsReply::Done));
    }
    for request in [
        MgsRequest::PoolNew("fast".into()),
        MgsRequest::PoolNew("gone".into()),
        MgsRequest::PoolAdd("fast".into(), vec![OstIndex(0)]),
        MgsRequest::PoolDestroy("gone".into()),
    ] {
        assert_eq!(mgs.execute(PROCESS, request).await, Ok(MgsReply::Done));
    }
    let before = mgs.map();
    assert_eq!(before.pools.len(), 1);
    host.power_loss();
    drop(mgs);

    let mgs = host.open("stria").await.unwrap();
    assert_eq!(mgs.map(), before);
    let roles: Vec<_> = before.targets.iter().map(|target| (target.role, target.state)).collect();
    assert_eq!(roles, [(mdt, TargetState::Active), (ost(0), TargetState::Inactive)]);
    assert_eq!(before.parameters[1].1, "16");
    let again = map(mgs.execute(PROCESS, register(ost(0), "u0", "a:1")).await);
    assert_eq!(again.version, before.version, "a repeated report changes nothing");
    mgs.close().await.unwrap();
    assert!(mgs.execute(PROCESS, register(ost(1), "u1", "a:1")).await.is_err());
    assert_eq!(mgs.map(), before, "a change that was not stored is not shown");
}

#[tokio::test]
async fn another_file_system_is_refused() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    mgs.close().await.unwrap();
    let refusal = host.open("other").await.err();
    let expected = Refusal::OtherStore { formatted: "stria".to_owned(), requested: "other".to_owned() };
    assert_eq!(refusal, Some(expected.into()));
    assert!(matches!(Host::new().open("much too long").await.err(), Some(FsError::Refused(_))));
}

#[tokio::test]
async fn reports_are_remembered_and_refusals_are_not() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    host.clock.advance(Duration::from_secs(3));
    map(mgs.execute(PROCESS, register(ost(0), "u0", "a:1")).await);
    let taken = mgs.execute(PROCESS, register(ost(0), "thief", "b:1")).await;
    assert!(matches!(taken, Err(FsError::Refused(refusal)) if refusal.to_string().contains("taken by uuid u0")));
    let report = mgs.reports()[&ost(0)];
    assert_eq!(report.seen, Instant(3_000_000_000));
    assert!(report.condition.degraded && report.space.bytes_total == 100);
}

#[tokio::test]
async fn a_target_that_lives_twice_is_at_one_place_and_the_other_is_told() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let reports = |process, address| mgs.execute(ClientId(process), register(ost(0), "u0", address));
    let address = |map: ClusterMap| map.targets[0].addresses[0].clone();
    assert_eq!(address(map(reports(1, "a:1").await)), "a:1");
    assert_eq!(address(map(reports(2, "b:1").await)), "b:1", "a failover takes effect at once");
    let refused = reports(1, "a:1").await;
    let served_twice = Refusal::ServedTwice {
        target: "stria-OST0000".to_owned(),
        uuid: "u0".to_owned(),
        address: "a:1".to_owned(),
        newer_address: "b:1".to_owned(),
    };
    assert_eq!(refused, Err(served_twice.into()));
    assert_eq!((address((*mgs.map()).clone()), mgs.map().version), ("b:1".to_owned(), 3));
    host.clock.advance(Duration::from_secs(16));
    assert_eq!(address(map(reports(1, "a:1").await)), "a:1", "the other has not reported for long");
}

#[tokio::test]
async fn whoever_waits_for_the_map_hears_of_changes_at_once() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    assert_eq!(map(mgs.execute(PROCESS, MgsRequest::GetMap(0)).await).version, 1, "an old version is answered at once");

    let waiting = tokio::spawn({
        let mgs = mgs.clone();
        async move { map(mgs.execute(PROCESS, MgsRequest::GetMap(1)).await) }
    });
    while host.clock.sleepers.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    map(mgs.execute(PROCESS, register(ost(0), "u0", "a:1")).await);
    let heard = waiting.await.unwrap();
    assert_eq!((heard.version, heard.targets.len()), (2, 1), "the clock has not moved");

    let waiting = tokio::spawn({
        let mgs = mgs.clone();
        async move { map(mgs.execute(PROCESS, MgsRequest::GetMap(2)).await) }
    });
    while host.clock.sleepers.load(Ordering::Relaxed) < 3 {
        tokio::task::yield_now().await;
    }
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(waiting.await.unwrap().version, 2, "after a second as it is");
}

/// A request for the map that begins while its session ends leaves nothing for the client.
#[tokio::test]
async fn a_session_that_has_ended_waits_for_no_map() {
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    mgs.session_ending(SessionEvent::Closed(PROCESS));
    let waiting = tokio::spawn({
        let mgs = mgs.clone();
        async move { map(mgs.execute(PROCESS, MgsRequest::GetMap(1)).await) }
    });
    while host.clock.sleepers.load(Ordering::Relaxed) < 1 {
        tokio::task::yield_now().await;
    }
    mgs.clone().session_event(SessionEvent::Closed(PROCESS)).await;
    assert_eq!(waiting.await.unwrap().version, 1, "the clock has not moved");
}

/// More processes than there are service threads follow the map.
#[tokio::test]
async fn requests_that_wait_for_another_map_hold_no_thread() {
    const WAITING: usize = 5;
    let host = Host::new();
    let mgs = host.open("stria").await.unwrap();
    let options = ServerOptions { service_threads: 2, ..ServerOptions::new(rpc::Keyring::of_test()) };
    let server = Server::new(host.seams.clone(), options);
    server.add_target(mgs::TARGET_NAME, mgs.clone(), Duration::from_secs(3600));
    let principal = rpc::Principal::of_test(1, rpc::Role::Client).claiming(PROCESS);
    let (endpoint, options) = (Endpoint::Local(server.clone()), ImportOptions::default());
    let import = Import::new(host.seams.clone(), mgs::TARGET_NAME, endpoint, principal, options, None);
    let ask = |known| {
        let import = import.clone();
        tokio::spawn(async move { import.call(MgsRequest::GetMap(known)).await.map(|answered| answered.reply) })
    };
    let waiting: Vec<_> = (0..WAITING).map(|_| ask(1)).collect();
    let service = server.service("mgs_map");
    let all_wait = async {
        while service.statistics().in_flight < WAITING {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), all_wait).await.expect("all of them wait");
    assert_eq!(map(ask(0).await.unwrap()).version, 1, "one that need not wait is answered");
    assert!(waiting.iter().all(|request| !request.is_finished()));
    map(mgs.execute(PROCESS, register(ost(0), "u0", "a:1")).await);
    for request in waiting {
        assert_eq!(map(request.await.unwrap()).version, 2);
    }
    assert_eq!(service.statistics().waiting_max, 0);
}
