//! Every transition of a session.

use types::ClientId;

use super::*;
use crate::auth::Role;

const NOW: Instant = Instant(1_000);
const HERE: u64 = 77;
const BEFORE: u64 = 66;

fn connect(generation: u64, resume: bool, incarnation: u64) -> Connect {
    Connect {
        version_min: 2,
        version_max: 2,
        features: 0,
        target: "stria-MDT0000".to_owned(),
        client: ClientId(1),
        client_name: "test".to_owned(),
        connection: Generation(generation),
        resume,
        incarnation,
        role: Role::Client,
        node: "host".to_owned(),
        claim: None,
    }
}

fn plan(session: Option<&mut Session>, connect: &Connect) -> ConnectPlan {
    plan_connect(session, NOW, connect, HERE, Resumable::OfEarlierStarts)
}

fn open(generation: u64) -> Session {
    let mut session = Session::new(NOW, Generation(generation), SlotTable::new(4), false);
    session.opened();
    session
}

fn used(generation: u64) -> Session {
    let mut session = open(generation);
    assert_eq!(session.arrive(NOW, Generation(generation), Slot(0), Xid(1), None), Arrival::Execute);
    session.finish(Slot(0), Xid(1), None);
    session
}

#[test]
fn a_new_client_gets_a_new_session() {
    assert_eq!(plan(None, &connect(1, false, 0)), ConnectPlan::Open { resumed: false });
}

#[test]
fn a_client_of_an_earlier_incarnation_is_continued_if_the_target_knows_it() {
    let connect = connect(5, true, BEFORE);
    assert_eq!(plan(None, &connect), ConnectPlan::Open { resumed: true });
    assert_eq!(plan_connect(None, NOW, &connect, HERE, Resumable::None), ConnectPlan::Refuse(FsError::Evicted));
}

#[test]
fn a_client_whose_session_is_gone_was_evicted() {
    let connect = connect(5, true, HERE);
    assert_eq!(plan(None, &connect), ConnectPlan::Refuse(FsError::Evicted));
    let continued = plan_connect(None, NOW, &connect, HERE, Resumable::All);
    assert_eq!(continued, ConnectPlan::Open { resumed: true }, "unless all that matters is stored");
}

#[test]
fn a_reconnection_waits_for_running_requests_and_drops_the_old_connection_at_once() {
    let mut session = open(1);
    assert_eq!(session.arrive(NOW, Generation(1), Slot(0), Xid(1), None), Arrival::Execute);
    let again = connect(2, true, HERE);
    assert_eq!(plan(Some(&mut session), &again), ConnectPlan::Wait);
    assert_eq!(session.arrive(NOW, Generation(1), Slot(1), Xid(1), None), Arrival::Ignore);
    assert!(session.is_waited_for());
    assert!(session.finish(Slot(0), Xid(1), None), "the last running request ends the drain");
    assert_eq!(plan(Some(&mut session), &again), ConnectPlan::Ready { resumed: true });
    assert!(!session.is_waited_for());
    assert_eq!(session.arrive(NOW, Generation(2), Slot(1), Xid(1), None), Arrival::Execute);
}

#[test]
fn a_connection_that_was_overtaken_is_refused() {
    let mut session = open(3);
    assert_eq!(plan(Some(&mut session), &connect(2, true, HERE)), ConnectPlan::Refuse(FsError::Busy));
    assert_eq!(session.generation(), Generation(3));
}

#[test]
fn a_lost_answer_to_the_first_connect_costs_nothing() {
    let mut session = open(1);
    assert_eq!(plan(Some(&mut session), &connect(2, false, 0)), ConnectPlan::Ready { resumed: false });
}

#[test]
fn a_lost_answer_after_a_restart_does_not_hide_the_restart() {
    let mut session = Session::new(NOW, Generation(1), SlotTable::new(4), true);
    session.opened();
    assert_eq!(plan(Some(&mut session), &connect(2, true, BEFORE)), ConnectPlan::Ready { resumed: false });
    assert_eq!(plan(Some(&mut session), &connect(3, true, HERE)), ConnectPlan::Ready { resumed: true });
}

#[test]
fn a_client_that_starts_anew_ends_its_old_session() {
    assert_eq!(plan(Some(&mut used(1)), &connect(2, false, 0)), ConnectPlan::Replace);
    let mut continued = Session::new(NOW, Generation(1), SlotTable::new(4), true);
    continued.opened();
    assert_eq!(plan(Some(&mut continued), &connect(2, false, 0)), ConnectPlan::Replace);
}

#[test]
fn connects_wait_while_a_session_opens_or_ends() {
    let mut opening = Session::new(NOW, Generation(1), SlotTable::new(4), false);
    assert_eq!(plan(Some(&mut opening), &connect(1, false, 0)), ConnectPlan::Wait);
    assert_eq!(opening.arrive(NOW, Generation(1), Slot(0), Xid(1), None), Arrival::Gone);
    opening.opened();
    assert_eq!(plan(Some(&mut opening), &connect(1, false, 0)), ConnectPlan::Ready { resumed: false });
    assert!(opening.end());
    assert!(!opening.end(), "it ends once");
    assert_eq!(plan(Some(&mut opening), &connect(2, true, HERE)), ConnectPlan::Wait);
}

#[test]
fn requests_of_a_session_that_ends_or_connects_again_are_not_held_back() {
    let mut session = open(1);
    assert!(session.may_hold_back(Generation(1)));
    plan(Some(&mut session), &connect(2, true, HERE));
    assert!(!session.may_hold_back(Generation(1)) && session.may_hold_back(Generation(2)));
    session.end();
    assert!(!session.may_hold_back(Generation(2)));
}

#[test]
fn an_ending_session_executes_nothing_and_tells_so_once_its_requests_have_ended() {
    let mut session = open(1);
    assert_eq!(session.arrive(NOW, Generation(1), Slot(0), Xid(1), None), Arrival::Execute);
    session.end();
    assert_eq!(session.arrive(NOW, Generation(1), Slot(1), Xid(1), None), Arrival::Ignore);
    assert_eq!(plan(Some(&mut session), &connect(2, true, HERE)), ConnectPlan::Wait);
    assert!(session.finish(Slot(0), Xid(1), None));
    session.ended();
    assert_eq!(session.arrive(NOW, Generation(2), Slot(1), Xid(1), None), Arrival::Gone);
}

#[test]
fn a_lease_runs_out_without_requests_only() {
    let lease = Duration::from_secs(30);
    let late = NOW + Duration::from_secs(31);
    assert!(open(1).expired(late, lease));
    assert!(!open(1).expired(NOW + lease, lease));

    let mut running = open(1);
    running.arrive(NOW, Generation(1), Slot(0), Xid(1), None);
    assert!(!running.expired(late, lease), "its request is still running");
    assert!(running.silent(late, lease) && !running.silent(NOW + lease, lease));
    running.finish(Slot(0), Xid(1), None);
    assert!(running.expired(late, lease), "the client did not ping while it waited");

    let mut pinned = open(1);
    pinned.pin(NOW, true);
    assert!(!pinned.expired(late, lease));
    pinned.pin(late, false);
    assert!(pinned.expired(late + Duration::from_secs(31), lease));

    let mut ending = open(1);
    ending.end();
    assert!(!ending.expired(late, lease));
}

#[test]
fn a_request_of_an_old_connection_does_not_extend_the_lease() {
    let mut session = open(2);
    let late = NOW + Duration::from_secs(31);
    assert_eq!(session.arrive(late, Generation(1), Slot(0), Xid(1), None), Arrival::Ignore);
    assert!(session.expired(late, Duration::from_secs(30)));
}

#[test]
fn a_request_is_executed_until_its_deadline() {
    let mut session = open(1);
    let later = NOW + Duration::from_nanos(1);
    assert_eq!(session.arrive(NOW, Generation(1), Slot(0), Xid(1), Some(NOW)), Arrival::Execute);
    assert_eq!(session.arrive(later, Generation(1), Slot(1), Xid(1), Some(NOW)), Arrival::Expired);
    assert_eq!(session.running(), 1);
}

/// A session with a request that runs.
fn busy_cell() -> std::sync::Arc<SessionCell> {
    let cell = SessionCell::new(ClientId(1), "test", "host".into(), open(1), NOW);
    assert_eq!(cell.arrive(NOW, Generation(1), Slot(0), Xid(1), None), Arrival::Execute);
    cell
}

#[tokio::test]
async fn a_client_has_left_when_nobody_waits_for_its_answers() {
    let clock = rt::memory::seams(&rt::memory::MemoryTransport::new(), 1).clock;
    let (moment, hour) = (Duration::from_millis(20), Duration::from_secs(3600));
    let cell = busy_cell();
    cell.with(|session| session.pin(clock.now(), false));
    assert!(tokio::time::timeout(moment, cell.left(&*clock, hour)).await.is_err());
    let mut left = Box::pin(cell.left(&*clock, hour));
    assert!(tokio::time::timeout(moment, &mut left).await.is_err());
    assert_eq!(cell.with(|session| plan(Some(session), &connect(2, true, HERE))), ConnectPlan::Wait);
    cell.notify();
    left.await;
    // Its end begins.
    let cell = busy_cell();
    assert!(cell.with(Session::end));
    cell.left(&*clock, hour).await;
    // It is silent.
    busy_cell().left(&*clock, Duration::from_millis(1)).await;
}
