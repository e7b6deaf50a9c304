//! Token buckets: nothing is faster than its rate, and nothing slower that needs not be.

use nrs::{Scheduled, Scheduler};
use proptest::prelude::*;

use crate::requests::{queue, statfs, tickets, write};

const SECOND: u64 = 1_000_000_000;
const OPCODES: &[&str] = &["ost_write", "ost_read", "ost_statfs"];

fn rule(queue: &mut Scheduler<()>, now_ns: u64, text: &str) {
    queue.change_rules(now_ns, text, OPCODES).unwrap();
}

/// Requests of each of two clients that come out until this time, from a queue that is asked as
/// soon as it has something.
fn served(queue: &mut Scheduler<()>, mut now_ns: u64, until_ns: u64) -> [usize; 2] {
    let mut counts = [0; 2];
    loop {
        match queue.pop(now_ns) {
            Scheduled::Request(_, entry) => counts[entry.facts.client.0 as usize] += 1,
            Scheduled::NotBefore(time_ns) if time_ns <= until_ns => now_ns = time_ns,
            Scheduled::NotBefore(_) | Scheduled::Nothing => return counts,
        }
    }
}

#[test]
fn each_job_has_the_rate_of_its_rule() {
    let mut queue = queue("tbf jobid");
    rule(&mut queue, 0, "start slow jobid={dd.0} rate=10");
    rule(&mut queue, 0, "start fast jobid={dd.*} rate=100 rank=default");
    for _ in 0..5000 {
        queue.push(0, write(0, 0, 0), ());
        queue.push(0, write(1, 0, 0), ());
    }
    // And what the buckets had at the beginning.
    assert_eq!(served(&mut queue, 0, 10 * SECOND), [103, 1003]);
    rule(&mut queue, 10 * SECOND, "change slow rate=1000");
    let [slow, fast] = served(&mut queue, 10 * SECOND, 11 * SECOND);
    assert!((1000..=1003).contains(&slow), "{slow}");
    assert!((99..=101).contains(&fast), "{fast}");
    rule(&mut queue, 11 * SECOND, "stop slow");
    let [slow, _] = served(&mut queue, 11 * SECOND, 12 * SECOND);
    assert!((100..=103).contains(&slow), "it has the rate of the other rule, {slow}");
}

#[test]
fn a_lower_rate_takes_effect_with_the_next_request() {
    let mut queue = queue("tbf uid");
    for _ in 0..1000 {
        queue.push(0, write(0, 0, 0), ());
    }
    rule(&mut queue, 0, "start one uid={0} rate=100");
    served(&mut queue, 0, SECOND);
    rule(&mut queue, SECOND, "change one rate=1");
    let [slow, _] = served(&mut queue, SECOND, 4 * SECOND);
    assert!((3..=6).contains(&slow), "{slow}");
    rule(&mut queue, 4 * SECOND, "change one rate=100");
    let [fast, _] = served(&mut queue, 4 * SECOND, 5 * SECOND);
    assert!(fast >= 98, "a long wait for a token ends with the rule, {fast}");
}

#[test]
fn conditions_are_combined() {
    let mut queue = queue("tbf");
    rule(&mut queue, 0, "start both opcode={ost_statfs}&jobid={dd.0},nid={10.0.0.[5-9]@tcp} rate=1");
    for request in [statfs(0), statfs(1), write(0, 0, 0), write(7, 0, 0)] {
        for _ in 0..10 {
            queue.push(0, request.clone(), ());
        }
    }
    // Three tokens of each class; then 40 ms of the default rate for those without the rule.
    tickets(&mut queue, 0);
    let mut left = [0; 4];
    let mut now_ns = 0;
    for _ in 0..20 {
        now_ns += 2_000_000;
        for ticket in tickets(&mut queue, now_ns) {
            left[ticket as usize / 10] += 1;
        }
    }
    assert_eq!(left, [0, 7, 7, 0]);
    let rules = queue.rules();
    let expected = "both opcode={ost_statfs}&jobid={dd.0},nid={10.0.0.[5-9]@tcp} 1, ref 2\ndefault * 10000, ref 2\n";
    assert_eq!(rules, expected);
}

/// Two jobs of two clients are four classes; users are not told apart.
#[test]
fn classes_may_have_several_fields_in_common() {
    let mut queue = queue("tbf nid+jobid");
    rule(&mut queue, 0, "change default rate=1");
    let of_job = |client: u64, job: u64| nrs::Facts { job: write(job, 0, 0).job, ..write(client, 0, 0) };
    for uid in 0..10 {
        for (client, job) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            queue.push(0, nrs::Facts { uid, ..of_job(client, job) }, ());
        }
    }
    assert_eq!(tickets(&mut queue, 0).len(), 4 * 3, "each class has three tokens");
    assert_eq!(queue.rules(), "default * 1, ref 4\n");
    rule(&mut queue, 0, "start fast jobid={dd.1}&nid={10.0.0.1@tcp} rate=1000");
    // Its bucket is full again after 3 ms, the others after 3 s.
    let fast: Vec<_> = tickets(&mut queue, 5_000_000).into_iter().map(|ticket| ticket % 4).collect();
    assert_eq!(fast, [3; 3], "of one of the four classes");
}

/// Jobs that come and go leave nothing behind.
#[test]
fn classes_without_requests_are_forgotten() {
    let mut queue = queue("tbf jobid");
    for client in 0..10_000 {
        let now_ns = client * SECOND;
        queue.push(now_ns, write(client, 0, 0), ());
        assert_eq!(tickets(&mut queue, now_ns).len(), 1);
    }
    let classes: u64 = queue.rules().trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(classes < 200, "{classes}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// However requests arrive and threads become free: in any window at most `rate * t + 3`. And
    /// if the queue is asked whenever it wants to be, a class that always has requests gets its
    /// rate.
    #[test]
    fn a_class_gets_its_rate_and_no_more(
        rate in 1..2000_u64,
        steps in prop::collection::vec((0..5_usize, 0..50_000_000_u64), 1..100),
    ) {
        let mut queue = queue("tbf jobid");
        rule(&mut queue, 0, &format!("change default rate={rate}"));
        let (mut now_ns, mut times) = (0, Vec::new());
        for (arrivals, pass_ns) in steps {
            for _ in 0..arrivals {
                queue.push(now_ns, write(0, 0, 0), ());
            }
            times.extend(tickets(&mut queue, now_ns).iter().map(|_| now_ns));
            now_ns += pass_ns;
        }
        for (first, from) in times.iter().enumerate() {
            for (last, until) in times.iter().enumerate().skip(first) {
                let most = (until - from) * rate / SECOND + 3;
                let count = last - first + 1;
                prop_assert!(count as u64 <= most, "{count} in {} ns", until - from);
            }
        }
        for _ in 0..3 * rate {
            queue.push(now_ns, write(0, 0, 0), ());
        }
        let [served, _] = served(&mut queue, now_ns, now_ns + SECOND);
        prop_assert!(served as u64 >= rate - 1, "{served} of {rate}");
    }
}
