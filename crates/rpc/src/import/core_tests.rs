//! Every decision of the client's half of a session.

use tokio::sync::oneshot;

use super::*;
use crate::{
    codec::opcode,
    message::{MdtReply, MdtRequest, Request},
};

const START: Instant = Instant(1_000_000_000);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn options() -> ImportOptions {
    ImportOptions { timeout: seconds(100), resend: seconds(5), ..ImportOptions::default() }
}

fn greeting(incarnation: u64) -> Connected {
    Connected {
        version: 1,
        features: 0,
        incarnation,
        resumed: false,
        slots: 16,
        lease_ms: 60_000,
        era: 0,
        urgent_slots: 1,
        ticket: None,
    }
}

/// An import's core that was connected at `START`.
fn full() -> Core {
    let mut core = Core::new("stria-MDT0000".into(), class::NORMAL, &options());
    core.generation = Generation(1);
    assert!(core.connected(START, &greeting(7)).is_empty());
    assert!(core.full(START, 7, None).is_empty());
    core
}

struct Sent {
    frame: Frame,
    reply: oneshot::Receiver<CallResult>,
}

fn send(core: &mut Core, now: Instant, purpose: Purpose) -> Sent {
    let request = Request::Mdt(MdtRequest::StatFs);
    let body = codec::encode_request(&Default::default(), &request).unwrap();
    let slot = core.take_slot(purpose).unwrap();
    let (caller, reply) = oneshot::channel();
    let parts = (body, Bytes::new(), None);
    let frame = core.begin(now, now, slot, opcode::of(&request), parts, 5, purpose, Some((0, caller)));
    Sent { frame, reply }
}

fn answer(frame: &Frame, flags: u16, body: Bytes) -> Frame {
    Frame::new(FrameHeader { flags: frame_flag::REPLY | flags, ..frame.header }, body, Bytes::new()).unwrap()
}

fn done(frame: &Frame) -> Frame {
    answer(frame, 0, codec::encode_reply(&Default::default(), &Reply::Mdt(MdtReply::Done)).unwrap().bytes)
}

fn complete(received: Received) -> Completion {
    match received {
        Received::Complete(completion) => completion,
        _ => panic!("the call should be over"),
    }
}

fn is_nothing(received: Received) -> bool {
    matches!(received, Received::Nothing)
}

#[test]
fn a_reply_ends_its_call_and_frees_its_slot() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    assert_eq!((sent.frame.header.slot, sent.frame.header.xid, sent.frame.header.connection), (1, 1, 1));
    assert_eq!((sent.frame.header.version, sent.frame.header.trace), (1, 5));
    let completion = complete(core.receive(START, done(&sent.frame), 0));
    let answered = completion.result.unwrap();
    assert_eq!((answered.reply, answered.extension), (Reply::Mdt(MdtReply::Done), ReplyExtension::default()));
    assert_eq!(core.slots.used(), 0);
    assert!(is_nothing(core.receive(START, done(&sent.frame), 0)), "a copy of the reply");
    let next = send(&mut core, START, Purpose::Ordinary);
    assert_eq!((next.frame.header.slot, next.frame.header.xid), (1, 2));
    assert!(is_nothing(core.receive(START, done(&sent.frame), 0)), "a late copy does not answer the next call");
}

#[test]
fn late_requests_go_out_again_at_growing_intervals_with_their_number() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    assert!(core.due(START + seconds(4)).is_empty());
    let again = core.due(START + seconds(5));
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].header.slot, again[0].header.xid), (sent.frame.header.slot, sent.frame.header.xid));
    assert_eq!(again[0].body, sent.frame.body);
    assert!(core.due(START + seconds(14)).is_empty());
    assert_eq!(core.due(START + seconds(15)).len(), 1);
    assert_eq!(core.counters.resent, 2);
}

#[test]
fn a_busy_server_is_asked_again_soon() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    assert!(matches!(core.receive(START, answer(&sent.frame, frame_flag::BUSY, Bytes::new()), 1), Received::Earlier));
    assert!(core.due(START).is_empty());
    assert_eq!(core.due(START + Duration::from_millis(2)).len(), 1);
    assert_eq!(core.counters.busy, 1);
    assert!(busy_pause(0, 0) >= BUSY_PAUSE / 2 && busy_pause(u32::MAX, u64::MAX) <= Duration::from_secs(1));
}

#[test]
fn a_long_request_is_no_lost_request() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    for second in (50..500).step_by(50) {
        let now = START + seconds(second);
        assert!(core.end_timed_out(now).is_empty(), "after {second} s");
        assert!(is_nothing(core.receive(now, answer(&sent.frame, frame_flag::RUNNING, Bytes::new()), 0)));
    }
    assert_eq!(core.slots.used(), 1);
    let mut sent = sent;
    assert!(sent.reply.try_recv().is_err());
}

#[test]
fn a_call_to_a_silent_server_times_out_and_its_slot_stays_taken() {
    let mut core = full();
    let sent = send(&mut core, START + seconds(1), Purpose::Ordinary);
    assert!(core.end_timed_out(START + seconds(100)).is_empty());
    let timed_out = core.end_timed_out(START + seconds(101));
    assert_eq!(timed_out.len(), 1);
    assert_eq!(timed_out[0].1, FsError::Unreachable { target: "stria-MDT0000".to_owned(), seconds: 100, cause: None });
    assert_eq!(core.slots.used(), 1, "its outcome is not known");
    assert_eq!(core.due(START + seconds(101)).len(), 1, "so it goes on asking");
    let completion = complete(core.receive(START + seconds(102), done(&sent.frame), 0));
    assert!(completion.caller.is_none());
    assert_eq!(core.slots.used(), 0);
}

#[test]
fn the_outcome_of_an_abandoned_request_is_reported_once_it_is_known() {
    for answered in [true, false] {
        let mut core = full();
        let sent = send(&mut core, START, Purpose::Ordinary);
        let (late, mut late_outcome) = oneshot::channel();
        core.tell_late(Slot(1), late);
        assert_eq!(core.end_timed_out(START + seconds(101)).len(), 1);
        assert!(late_outcome.try_recv().is_err());
        if answered {
            complete(core.receive(START + seconds(102), done(&sent.frame), 0)).deliver();
            assert!(matches!(late_outcome.try_recv(), Ok(Ok(_))));
        } else {
            core.disconnected(START + seconds(102));
            core.generation = Generation(2);
            core.connected(START + seconds(103), &greeting(7));
            assert!(
                matches!(late_outcome.try_recv(), Err(oneshot::error::TryRecvError::Closed)),
                "nobody will ever know"
            );
        }
    }
}

#[test]
fn a_dropped_call_keeps_its_slot_until_the_next_connection() {
    let mut core = full();
    drop(send(&mut core, START, Purpose::Ordinary).reply);
    let kept = send(&mut core, START, Purpose::Ordinary);
    assert!(core.disconnected(START).is_empty());
    assert_eq!(core.slots.used(), 2);
    core.generation = Generation(2);
    assert_eq!(core.connected(START, &greeting(7)), [Purpose::Ordinary]);
    let again = core.full(START, 7, None);
    assert_eq!(again.len(), 1);
    let (old, new) = (kept.frame.header, again[0].header);
    assert_eq!((new.slot, new.xid, new.connection), (old.slot, old.xid, 2));
    assert!(is_nothing(core.receive(START, done(&kept.frame), 0)), "a reply of the old connection");
    complete(core.receive(START, done(&again[0]), 0));
}

#[test]
fn calls_of_a_recovery_end_with_their_connection_and_others_wait() {
    let mut core = full();
    let mut ordinary = send(&mut core, START, Purpose::Ordinary);
    core.disconnected(START);
    core.generation = Generation(2);
    core.connected(START, &greeting(8));
    core.state = ImportState::Recover;
    let reclaim = send(&mut core, START, Purpose::Recovery);
    assert_eq!(reclaim.frame.header.slot, 0);
    let due = core.due(START + seconds(50));
    assert_eq!(due.len(), 1, "only the recovery's own call is on this connection");
    assert_eq!(due[0].header.slot, 0);
    assert!(core.next_due(START + seconds(50)) > START + seconds(50));
    let ended = core.disconnected(START + seconds(51));
    assert_eq!(ended.len(), 1);
    assert!(matches!(ended[0].1, FsError::Unreachable { .. }));
    assert!(ordinary.reply.try_recv().is_err(), "the ordinary call still waits");
    assert_eq!(core.session, Some(7), "until the recovery is done the restart is not forgotten");
}

#[test]
fn a_recovery_that_never_ends_is_no_sign_of_life() {
    let mut core = full();
    let _ordinary = send(&mut core, START, Purpose::Ordinary);
    core.disconnected(START);
    core.connected(START + seconds(1), &greeting(8));
    core.state = ImportState::Recover;
    let reclaim = send(&mut core, START + seconds(99), Purpose::Recovery);
    complete(core.receive(START + seconds(99), done(&reclaim.frame), 0));
    assert_eq!(core.end_timed_out(START + seconds(100)).len(), 1);
}

#[test]
fn an_eviction_tells_every_caller() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    let other = send(&mut core, START, Purpose::Ordinary);
    let error = codec::encode(&FsError::Evicted).unwrap();
    let received = core.receive(START, answer(&sent.frame, frame_flag::ERROR, error), 0);
    assert!(matches!(received, Received::Evicted), "an eviction");
    assert_eq!(core.evicted().len(), 2, "also the one whose request was answered");
    assert_eq!((core.session, core.state), (None, ImportState::Evicted));
    assert_eq!(core.slots.used(), 2);
    drop(other);
    assert_eq!(core.connected(START, &greeting(7)), [Purpose::Ordinary, Purpose::Ordinary]);
    assert!(core.full(START, 7, None).is_empty(), "nothing of the old session goes out in the new one");
}

#[test]
fn pings_keep_the_lease_and_ask_a_quiet_server_for_a_sign_of_life() {
    let mut core = full();
    assert!(!core.needs_ping(START + seconds(19)));
    assert!(core.needs_ping(START + seconds(20)), "a third of the lease");
    assert_eq!(core.next_due(START + seconds(19)), START + seconds(20));
    let _sent = send(&mut core, START, Purpose::Ordinary);
    assert!(!core.needs_ping(START + seconds(4)));
    assert!(core.needs_ping(START + seconds(5)));
    core.disconnected(START);
    assert!(!core.needs_ping(START + seconds(20)));
}

/// The server sees that the client lives however long it takes to answer: its device may hang.
#[test]
fn copies_of_a_ping_without_an_answer_keep_the_lease() {
    for purpose in [Purpose::Ping, Purpose::Recovery] {
        let mut core = full();
        core.connected(START, &Connected { lease_ms: 3_000, ..greeting(7) });
        let sent = send(&mut core, START, purpose);
        assert_eq!(core.take_slot(Purpose::Ping), None, "no other ping can be sent");
        core.state = match purpose {
            Purpose::Recovery => ImportState::Recover,
            _ => ImportState::Full,
        };
        for second in 1..20 {
            assert_eq!(core.next_due(START + seconds(second - 1)), START + seconds(second));
            let [copy] = &*core.due(START + seconds(second)) else { panic!("a third of the lease") };
            assert_eq!((copy.header.slot, copy.header.xid), (sent.frame.header.slot, sent.frame.header.xid));
            core.receive(START + seconds(second), answer(copy, frame_flag::RUNNING, Bytes::new()), 0);
        }
    }
}

/// A connection that died unnoticed would keep the slots of requests that were given up for the
/// resend interval, and no other request could go out.
#[test]
fn a_lost_ping_is_repeated_within_the_timeout_of_calls() {
    let mut core = full();
    core.timeout = Duration::from_millis(800);
    let _given_up = send(&mut core, START, Purpose::Ordinary);
    let probe = Duration::from_millis(200);
    assert!(core.needs_ping(START + probe));
    let ping = send(&mut core, START + probe, Purpose::Ping);
    assert!(core.due(START + probe).is_empty());
    let [copy] = &*core.due(START + probe * 2) else { panic!("nothing came back") };
    assert_eq!((copy.header.slot, copy.header.xid), (ping.frame.header.slot, ping.frame.header.xid));
    assert!(core.next_due(START + probe * 2) <= START + probe * 3);
}

#[test]
fn a_connection_without_answers_is_given_up() {
    let mut core = full();
    assert!(!core.is_silent(START + seconds(1000)), "nothing is outstanding");
    let sent = send(&mut core, START, Purpose::Ordinary);
    assert!(!core.is_silent(START + seconds(20)));
    assert!(core.is_silent(START + seconds(21)));
    core.receive(START + seconds(10), answer(&sent.frame, frame_flag::RUNNING, Bytes::new()), 0);
    assert!(!core.is_silent(START + seconds(21)));
}

#[test]
fn slots_beyond_the_grant_are_noticed() {
    let mut core = full();
    let _sent: Vec<_> = (0..6).map(|_| send(&mut core, START, Purpose::Ordinary)).collect();
    core.connected(START, &Connected { slots: 7, ..greeting(8) });
    assert!(!core.lost_slots());
    core.connected(START, &Connected { slots: 6, ..greeting(8) });
    assert!(core.lost_slots());
    assert_eq!(core.take_slot(Purpose::Ordinary), None);
}

#[test]
fn a_late_answer_to_connect_is_not_taken_for_the_answer_to_a_ping() {
    let mut core = full();
    let ping = send(&mut core, START, Purpose::Ping);
    let body = codec::encode(&greeting(7)).unwrap();
    let mut late = answer(&ping.frame, 0, body);
    late.header.opcode = opcode::CONNECT.0;
    assert_eq!((late.header.slot, late.header.xid, late.header.connection), (0, 1, 1));
    assert!(is_nothing(core.receive(START, late, 0)));
    complete(core.receive(START, done(&ping.frame), 0));
}

#[test]
fn frames_that_are_no_replies_end_the_connection() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    assert!(matches!(core.receive(START, sent.frame.clone(), 0), Received::Garbage(_)));
    let damaged = answer(&sent.frame, 0, Bytes::from_static(&[99]));
    assert!(matches!(complete(core.receive(START, damaged, 0)).result, Err(FsError::Protocol(_))));
}

/// The timer that repeats and pings was due at once, again and again.
#[test]
fn with_a_zero_timeout_a_connection_is_watched_at_a_measured_pace() {
    let mut core = full();
    core.timeout = Duration::ZERO;
    assert!(core.no_call_can_time_out());
    assert!(core.next_due(START) >= START + PROBE_AFTER_MIN / 2);
    let sent = send(&mut core, START, Purpose::Ordinary);
    assert!(!core.no_call_can_time_out());
    assert!(core.next_due(START) >= START + PROBE_AFTER_MIN / 2);
    assert_eq!(core.end_timed_out(START).len(), 1);
    assert!(core.no_call_can_time_out(), "its outcome is unknown, and nobody waits for it");
    complete(core.receive(START, done(&sent.frame), 0));
}

/// A recovery that does not come to its end has told nobody.
#[test]
fn a_loss_is_known_until_a_recovery_after_it_is_over() {
    let mut core = full();
    core.connected(START, &greeting(8));
    assert!(!core.has_lost(), "the process died, the host did not");
    core.full(START, 8, None);
    core.connected(START, &Connected { era: 1, ..greeting(9) });
    assert!(core.has_lost());
    core.disconnected(START);
    core.connected(START, &Connected { era: 1, ..greeting(10) });
    assert!(core.has_lost(), "the process died in the middle");
    core.full(START, 10, None);
    assert!(!core.has_lost());
}

/// An import's core that was connected at `START` to a target whose clock was at 50 s then.
fn full_with_clock() -> Core {
    let mut core = full();
    core.hear_clock(START, NANOSECONDS * 50);
    core
}

const NANOSECONDS: u64 = 1_000_000_000;

/// What a target's clock shows for sure so many seconds after it showed `told` seconds, in
/// nanoseconds: it may be slow.
fn shown(told: u64, passed: u64) -> u64 {
    told * NANOSECONDS + passed * (NANOSECONDS - NANOSECONDS / 500)
}

#[test]
fn a_request_says_on_the_targets_clock_when_its_caller_gives_up() {
    let mut core = full();
    assert_eq!(
        send(&mut core, START, Purpose::Ordinary).frame.header.deadline_ns,
        0,
        "the target's clock is not known"
    );
    let mut core = full_with_clock();
    let sent = send(&mut core, START + seconds(10), Purpose::Ordinary);
    assert_eq!(sent.frame.header.deadline_ns, shown(50, 110), "10 s on, and then the timeout");
    let mut running = answer(&sent.frame, frame_flag::RUNNING, Bytes::new());
    running.header.deadline_ns = NANOSECONDS * 90;
    assert!(is_nothing(core.receive(START + seconds(40), running, 0)));
    let again = core.due(START + seconds(40));
    assert_eq!(again[0].header.deadline_ns, shown(90, 100), "a sign of life is waited on from there");
    core.connected(START + seconds(41), &greeting(8));
    let again = core.full(START + seconds(41), 8, None);
    assert_eq!(again[0].header.deadline_ns, 0, "another start has another clock");
}

#[test]
fn a_clock_told_on_an_older_connection_does_not_count() {
    let mut core = full_with_clock();
    let sent = send(&mut core, START, Purpose::Ordinary);
    core.generation = Generation(2);
    let mut late = done(&sent.frame);
    late.header.deadline_ns = NANOSECONDS * 1000;
    assert!(is_nothing(core.receive(START, late, 0)));
    assert_eq!(send(&mut core, START, Purpose::Ordinary).frame.header.deadline_ns, shown(50, 100));
}

#[test]
fn what_nobody_waits_for_is_repeated_as_late_and_its_slot_is_free_when_the_target_says_so() {
    let mut core = full_with_clock();
    let mut given_up = send(&mut core, START, Purpose::Ordinary);
    assert_eq!(core.end_timed_out(START + seconds(100)).len(), 1);
    drop(send(&mut core, START + seconds(100), Purpose::Ordinary).reply);
    let queries = core.due(START + seconds(105));
    assert_eq!(queries.iter().map(|frame| frame.header.deadline_ns).collect::<Vec<_>>(), [1, 1]);
    for query in &queries {
        complete(core.receive(START + seconds(105), answer(query, frame_flag::EXPIRED, Bytes::new()), 0));
    }
    assert_eq!(core.slots.used(), 0);
    assert!(given_up.reply.try_recv().is_err());
}

#[test]
fn a_late_request_that_is_still_wanted_goes_out_under_the_next_number() {
    let mut core = full_with_clock();
    let mut sent = send(&mut core, START, Purpose::Ordinary);
    let expired = answer(&sent.frame, frame_flag::EXPIRED, Bytes::new());
    assert!(matches!(core.receive(START, expired.clone(), 0), Received::Earlier));
    let again = core.due(START + seconds(1));
    let (old, new) = (sent.frame.header, again[0].header);
    assert_eq!((new.slot, new.xid), (old.slot, old.xid + 1));
    assert!(is_nothing(core.receive(START, expired, 0)), "a copy of the note");
    let completion = complete(core.receive(START + seconds(1), done(&again[0]), 0));
    assert!(completion.result.is_ok());
    completion.deliver();
    assert!(sent.reply.try_recv().is_ok());
    assert_eq!(core.slots.used(), 0);
}

#[test]
fn a_ping_that_nobody_waits_for_has_a_deadline_to_come() {
    let mut core = full_with_clock();
    drop(send(&mut core, START, Purpose::Ping).reply);
    let again = core.due(START + seconds(5));
    assert_eq!(again[0].header.deadline_ns, shown(50, 100));
}

/// Their latency would be that of the load, and pings alone would be a load.
#[test]
fn pings_and_recoveries_are_answered_but_are_no_work() {
    let mut core = full();
    for (number, purpose) in [(0, Purpose::Ping), (0, Purpose::Recovery), (1, Purpose::Ordinary), (2, Purpose::Urgent)]
    {
        let sent = send(&mut core, START, purpose);
        complete(core.receive(START + seconds(1), done(&sent.frame), 0));
        assert_eq!(core.counters.work(), (number, number * 1_000_000_000), "{purpose:?}");
    }
    assert_eq!(core.counters.snapshot(0).opcodes[0].calls, 4, "statistics count all");
}

#[test]
fn a_lease_counts_from_when_an_answered_request_was_sent() {
    let mut core = full();
    assert_eq!(core.leased_until(), Instant(0), "nothing was answered yet");
    let first = send(&mut core, START + seconds(1), Purpose::Ordinary);
    let second = send(&mut core, START + seconds(2), Purpose::Ordinary);
    complete(core.receive(START + seconds(20), done(&second.frame), 0));
    assert_eq!(core.leased_until(), START + seconds(2 + 45), "a quarter of 60 s is left out");
    complete(core.receive(START + seconds(21), done(&first.frame), 0));
    assert_eq!(core.leased_until(), START + seconds(2 + 45));
    core.generation = Generation(2);
    core.connected(START + seconds(30), &greeting(7));
    assert_eq!(core.leased_until(), Instant(0), "of another connection");
}

#[test]
fn an_answer_says_by_which_connection_its_request_was_sent_first() {
    let mut core = full();
    let sent = send(&mut core, START, Purpose::Ordinary);
    core.disconnected(START + seconds(1));
    core.generation = Generation(2);
    core.connected(START + seconds(2), &greeting(7));
    let again = core.full(START + seconds(2), 7, None);
    let completion = complete(core.receive(START + seconds(3), done(&again[0]), 0));
    assert_eq!(completion.result.unwrap().connection, Generation(1));
    assert_eq!(sent.frame.header.connection, 1);
    assert_eq!(core.leased_until(), START + seconds(2 + 45), "it was sent again by this one");
}
