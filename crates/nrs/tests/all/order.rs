//! The orders that policies promise, and how long a request waits at most.

use nrs::{Direction, PolicyName, Scheduled, Scheduler, Selection, Settings};
use proptest::prelude::*;

use crate::requests::{next, object_id, queue, statfs, tickets, write};

/// Largest quantum of tests that change it.
const QUANTUM_MAX: usize = 8;
/// Lowest rate of tests that change it.
const LOWEST_RATE: u64 = 5;

/// All classes get another rate, or those of one job get a rule for themselves, or lose it.
fn change_rules(queue: &mut Scheduler<()>, now_ns: u64, rate: u64, number: usize) {
    let text = match number % 4 {
        1 => format!("start own jobid={{dd.1}} rate={rate}"),
        2 => format!("change own rate={rate}"),
        3 => "stop own".to_owned(),
        _ => format!("change default rate={rate}"),
    };
    queue.change_rules(now_ns, &text, &["ost_write"]).unwrap();
}

#[test]
fn fifo_keeps_the_order_of_arrival() {
    let mut queue = queue("fifo");
    for client in [3, 1, 2, 1] {
        queue.push(0, write(client, client, 9 - client), ());
    }
    assert_eq!(tickets(&mut queue, 0), [0, 1, 2, 3]);
}

#[test]
fn crrn_gives_each_client_its_quantum() {
    let mut queue = queue("crrn");
    queue.configure(queue.settings().with("nrs_crrn_quantum", "2").unwrap());
    for client in [1, 1, 1, 1, 1, 2, 2, 2, 3] {
        queue.push(0, write(client, 0, 0), ());
    }
    assert_eq!(tickets(&mut queue, 0), [0, 1, 5, 6, 8, 2, 3, 7, 4]);
}

/// The one with many requests does not keep the one that sends one at a time waiting, nor the other
/// way round.
#[test]
fn crrn_is_fair_to_a_client_that_sends_one_request_at_a_time() {
    let mut queue = queue("crrn");
    queue.configure(queue.settings().with("nrs_crrn_quantum", "1").unwrap());
    for _ in 0..100 {
        queue.push(0, write(1, 0, 0), ());
    }
    queue.push(0, write(2, 0, 0), ());
    let mut counts = [0; 3];
    for _ in 0..50 {
        let client = next(&mut queue, 0).facts.client.0;
        counts[client as usize] += 1;
        if client == 2 {
            queue.push(0, write(2, 0, 0), ());
        }
    }
    assert_eq!(counts, [0, 25, 25]);
}

#[test]
fn orr_sorts_the_batches_of_objects_by_offset() {
    let mut queue = queue("orr");
    queue.configure(queue.settings().with("nrs_orr_quantum", "3").unwrap());
    for (object, offset) in [(1, 30), (1, 10), (2, 5), (1, 20), (1, 0), (2, 1)] {
        queue.push(0, write(1, object, offset), ());
    }
    let seen: Vec<_> = std::iter::from_fn(|| match queue.pop(0) {
        Scheduled::Request(PolicyName::Orr, entry) => entry.facts.data.map(|data| (data.object, data.offset)),
        _ => None,
    })
    .collect();
    let expected = [(1, 10), (1, 20), (1, 30), (2, 1), (2, 5), (1, 0)];
    assert_eq!(seen, expected.map(|(object, offset)| (object_id(object), offset)));
}

#[test]
fn trr_sorts_the_batches_of_targets_by_offset() {
    let mut queue = queue("trr");
    // Objects with even numbers are on one target, the others on another.
    for (object, offset) in [(1, 30), (2, 10), (3, 20), (4, 5)] {
        queue.push(0, write(1, object, offset), ());
    }
    assert_eq!(tickets(&mut queue, 0), [2, 0, 3, 1]);
}

/// Requests that a policy is not for are left to the fallback, and both take turns.
#[test]
fn orr_and_trr_leave_other_requests_to_the_fallback() {
    for policy in ["orr", "trr"] {
        let mut queue = queue(policy);
        for _ in 0..3 {
            queue.push(0, write(1, 1, 0), ());
        }
        for _ in 0..3 {
            queue.push(0, statfs(1), ());
        }
        assert_eq!(tickets(&mut queue, 0), [0, 3, 1, 4, 2, 5]);
        queue.configure(queue.settings().with(&format!("nrs_{policy}_supported"), "reads").unwrap());
        queue.push(0, write(1, 1, 0), ());
        assert!(matches!(queue.pop(0), Scheduled::Request(PolicyName::Fifo, _)), "a write");
        let mut read = write(1, 1, 0);
        read.data = read.data.map(|data| nrs::DataRange { direction: Direction::Read, ..data });
        queue.push(0, read, ());
        let name = if policy == "orr" { PolicyName::Orr } else { PolicyName::Trr };
        assert!(matches!(queue.pop(0), Scheduled::Request(popped, _) if popped == name));
    }
}

#[test]
fn another_policy_orders_what_waits_already() {
    let mut queue = queue("fifo");
    for client in [1, 1, 1, 2] {
        queue.push(0, write(client, 0, 0), ());
    }
    queue.configure(queue.settings().with("nrs_crrn_quantum", "1").unwrap());
    queue.select(0, Selection::of(PolicyName::Crrn), 0);
    assert_eq!(next(&mut queue, 0).ticket, 0);
    assert_eq!(next(&mut queue, 0).ticket, 3);
    queue.push(0, write(3, 0, 0), ());
    queue.select(0, Selection::FIFO, 0);
    assert_eq!(tickets(&mut queue, 0), [1, 2, 4], "back in order of arrival");
}

#[test]
fn delay_holds_back_the_share_that_is_asked_for() {
    let mut settings = Settings::default();
    for (name, value) in [("nrs_delay_min", "2"), ("nrs_delay_max", "4"), ("nrs_delay_pct", "50")] {
        settings = settings.with(name, value).unwrap();
    }
    let mut queue = Scheduler::default();
    queue.configure(settings);
    queue.select(0, Selection::of(PolicyName::Delay), 42);
    for _ in 0..1000 {
        queue.push(0, write(1, 1, 0), ());
    }
    let at_once = tickets(&mut queue, 0).len();
    assert!((400..600).contains(&at_once), "{at_once}");
    assert_eq!(tickets(&mut queue, 1_999_999_999), [], "none before the least delay");
    let half = tickets(&mut queue, 3_000_000_000).len();
    assert!((150..350).contains(&half), "{half}");
    assert_eq!(at_once + half + tickets(&mut queue, 4_000_000_000).len(), 1000, "none after the longest delay");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// With `n` earlier requests of its group and `g` groups: `(n / q + 1) * g * q + q` others.
    #[test]
    fn waiting_is_bounded_whatever_arrives_later(
        policy in prop::sample::select(vec!["crrn", "orr", "trr"]),
        quantum in 1..8_usize,
        before in prop::collection::vec((0..4_u64, 0..100_u64), 0..80),
        later in prop::collection::vec((0..4_u64, 0..100_u64), 1..20),
        own in 0..4_u64,
    ) {
        let mut queue = queue(policy);
        let text = quantum.to_string();
        queue.configure(queue.settings().with(&format!("nrs_{policy}_quantum"), &text).unwrap());
        let request = |(group, offset): (u64, u64)| write(group, group, offset);
        let group_of = |number: u64| if policy == "trr" { number % 2 } else { number };
        for (number, &arrival) in before.iter().enumerate() {
            queue.push(0, request(arrival), ());
            // The turn of some group may have begun.
            if number % 3 == 2 {
                next(&mut queue, 0);
            }
        }
        let earlier = before.iter().filter(|(group, _)| group_of(*group) == group_of(own)).count();
        let groups = if policy == "trr" { 2 } else { 4 };
        // The highest offset: sorting is against it.
        let ticket = queue.push(0, request((own, 1000)), ());
        let bound = (earlier / quantum + 1) * groups * quantum + quantum;
        let mut waited = 0;
        for number in 0.. {
            if next(&mut queue, 0).ticket == ticket {
                break;
            }
            waited += 1;
            prop_assert!(waited <= bound, "{waited} others, at most {bound}");
            // More arrives than is executed.
            queue.push(0, request(later[number % later.len()]), ());
            queue.push(0, request((own, 0)), ());
        }
    }

    /// The settings of a policy change while requests wait: as above, with the smallest quantum for
    /// its own group's turns and the largest one for those of others. A change of policy begins
    /// anew with all that wait, in order of arrival. Requests that the policy is not for any more
    /// share the turns with those it is for.
    #[test]
    fn waiting_is_bounded_while_settings_and_policies_change(
        policy in prop::sample::select(vec!["crrn", "orr", "trr"]),
        before in prop::collection::vec((0..4_u64, 0..100_u64), 0..40),
        later in prop::collection::vec((0..4_u64, 0..100_u64), 1..20),
        own in 0..4_u64,
        quanta in prop::collection::vec(1..=QUANTUM_MAX, 1..20),
        supported in prop::collection::vec(prop::sample::select(vec!["reads", "reads_and_writes"]), 1..5),
        changes in prop::collection::vec((0..200_usize, prop::sample::select(vec!["fifo", "crrn", "orr", "trr"])), 0..4),
    ) {
        let mut queue = queue(policy);
        let request = |(group, offset): (u64, u64)| write(group, group, offset);
        let set = |queue: &mut Scheduler<()>, number: usize| {
            let mut settings = queue.settings();
            for policy in ["crrn", "orr", "trr"] {
                let quantum = quanta[number % quanta.len()].to_string();
                settings = settings.with(&format!("nrs_{policy}_quantum"), &quantum).unwrap();
                if policy != "crrn" {
                    let supported = supported[number % supported.len()];
                    settings = settings.with(&format!("nrs_{policy}_supported"), supported).unwrap();
                }
            }
            queue.configure(settings);
        };
        for (number, &arrival) in before.iter().enumerate() {
            set(&mut queue, number);
            queue.push(0, request(arrival), ());
        }
        let ticket = queue.push(0, request((own, 1000)), ());
        const GROUPS: usize = 4;
        let bound = (before.len() + 1) * GROUPS * QUANTUM_MAX + QUANTUM_MAX;
        let bound = 2 * bound * (changes.len() + 1);
        for waited in 0.. {
            prop_assert!(waited <= bound, "{waited} others, at most {bound}");
            set(&mut queue, waited);
            for (_, policy) in changes.iter().filter(|(at, _)| *at == waited) {
                queue.select(0, policy.parse().unwrap(), 7);
            }
            if next(&mut queue, 0).ticket == ticket {
                break;
            }
            queue.push(0, request(later[waited % later.len()]), ());
            queue.push(0, request((own, 0)), ());
        }
    }

    /// With `n` earlier requests of its class a request waits for `n + 1` tokens at most, at the
    /// lowest rate that its class has meanwhile, whatever arrives and whichever rules come and go.
    #[test]
    fn tbf_holds_back_no_longer_than_the_lowest_rate_says(
        earlier in 0..8_u64,
        rates in prop::collection::vec(LOWEST_RATE..100_u64, 1..20),
        later in prop::collection::vec(0..4_u64, 1..20),
        pauses_ms in prop::collection::vec(1..200_u64, 1..20),
    ) {
        let mut queue = queue("tbf jobid");
        change_rules(&mut queue, 0, rates[0], 0);
        for _ in 0..earlier {
            queue.push(0, write(1, 0, 0), ());
        }
        let ticket = queue.push(0, write(1, 0, 0), ());
        let bound_ns = (earlier + 1) * (1_000_000_000 / LOWEST_RATE);
        let mut now_ns = 0;
        for number in 0.. {
            if tickets(&mut queue, now_ns).contains(&ticket) {
                break;
            }
            prop_assert!(now_ns <= bound_ns, "held back for {now_ns} ns, at most {bound_ns}");
            // As the scheduler is asked: when it wants to be, or at the next arrival.
            let pause_ns = pauses_ms[number % pauses_ms.len()] * 1_000_000;
            let asked_ns = match queue.pop(now_ns) {
                Scheduled::NotBefore(time_ns) => time_ns,
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            };
            now_ns = asked_ns.min(now_ns + pause_ns);
            change_rules(&mut queue, now_ns, rates[number % rates.len()], number + 1);
            queue.push(now_ns, write(later[number % later.len()], 0, 0), ());
        }
    }

    /// What is delayed comes out after the longest delay, whatever arrives and however the delays
    /// of later requests are set.
    #[test]
    fn delay_holds_back_no_longer_than_its_longest_delay(
        delays in prop::collection::vec((0..5_u64, 0..5_u64, 0..=100_u64), 1..10),
        arrivals_ms in prop::collection::vec(1..1000_u64, 1..60),
    ) {
        let mut queue = queue("delay");
        let (mut now_ns, mut due) = (0, std::collections::BTreeMap::new());
        for (number, pause_ms) in arrivals_ms.into_iter().enumerate() {
            let (least, more, percent) = delays[number % delays.len()];
            let most = least + more;
            let mut settings = queue.settings();
            let values = [("pct", percent), ("min", 0), ("max", most), ("min", least)];
            for (name, value) in values {
                settings = settings.with(&format!("nrs_delay_{name}"), &value.to_string()).unwrap();
            }
            queue.configure(settings);
            due.insert(queue.push(now_ns, write(1, 1, 0), ()), now_ns + most * 1_000_000_000);
            for ticket in tickets(&mut queue, now_ns) {
                due.remove(&ticket);
            }
            prop_assert!(due.values().all(|due_ns| *due_ns > now_ns), "{now_ns}: {due:?}");
            now_ns += pause_ms * 1_000_000;
        }
    }
}
