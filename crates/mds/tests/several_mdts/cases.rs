//! The cases: pairs of operations on one small tree.
//!
//! ```text
//! /        MDT 0
//! |- 1 = A MDT 0: 0 = S (striped), 1 = F, 3 = E (MDT 1, empty), 5 = D (MDT 0), D/2 = C (MDT 1)
//! |- 2 = B MDT 1: 1 = F, 2 = G, 3 = H (MDT 0, empty)
//! ```

use super::{
    Explored, explore,
    rules::{Rule, Rules},
    vocabulary::{
        Ino, Place, ROOT,
        Request::{self, Create, Exchange, Link, Links, Lookup, Mkdir, Rename, Rmdir, Unlink},
    },
    world::Case,
};

const A: Ino = Ino(0x01);
const B: Ino = Ino(0x11);
const C: Ino = Ino(0x13);
const D: Ino = Ino(0x02);
const E: Ino = Ino(0x12);
const H: Ino = Ino(0x03);
const S: Ino = Ino(0x06);
const F: Ino = Ino(0x08);
const G: Ino = Ino(0x18);
/// New ones.
const DIRECTORY: Ino = Ino(0x14);
const STRIPED: Ino = Ino(0x07);
const FILE: Ino = Ino(0x19);

fn tree() -> Vec<Request> {
    vec![
        Mkdir(Place(ROOT, 1), A),
        Mkdir(Place(ROOT, 2), B),
        Mkdir(Place(A, 0), S),
        Create(Place(A, 1), F),
        Link(F, Place(B, 1)),
        Create(Place(B, 2), G),
        Mkdir(Place(A, 3), E),
        Mkdir(Place(A, 5), D),
        Mkdir(Place(D, 2), C),
        Mkdir(Place(B, 3), H),
    ]
}

/// Every kind of operation, on names that meet.
fn operations() -> Vec<Request> {
    vec![
        Create(Place(E, 1), FILE),
        Create(Place(S, 1), FILE),
        Mkdir(Place(A, 4), DIRECTORY),
        Mkdir(Place(B, 4), STRIPED),
        Unlink(Place(A, 1)),
        Unlink(Place(B, 1)),
        Rmdir(Place(A, 3)),
        Rmdir(Place(A, 0)),
        Link(F, Place(B, 4)),
        Link(G, Place(A, 4)),
        Link(F, Place(S, 1)),
        // Files: to a free name, over another file, over another name of the same one.
        Rename(Place(A, 1), Place(B, 4)),
        Rename(Place(A, 1), Place(B, 2)),
        Rename(Place(B, 2), Place(A, 1)),
        Rename(Place(A, 1), Place(B, 1)),
        Rename(Place(B, 2), Place(S, 1)),
        // Directories: to a free name, over an empty one, the striped one, and into each other.
        Rename(Place(A, 3), Place(B, 4)),
        Rename(Place(A, 3), Place(B, 3)),
        Rename(Place(B, 3), Place(A, 0)),
        Rename(Place(A, 5), Place(H, 1)),
        Rename(Place(B, 3), Place(C, 1)),
        Exchange(Place(A, 3), Place(B, 2)),
        Exchange(Place(B, 2), Place(A, 1)),
    ]
}

/// The same operation with another number for what it makes.
fn other(request: Request) -> Request {
    match request {
        Create(at, ino) => Create(at, Ino(ino.0 + 1)),
        Mkdir(at, STRIPED) => Mkdir(at, Ino(0x17)),
        Mkdir(at, ino) => Mkdir(at, Ino(ino.0 + 1)),
        _ => request,
    }
}

/// What a third client looks at, one after the other.
const READERS: [[Request; 2]; 6] = [
    [Lookup(Place(A, 1)), Lookup(Place(B, 2))],
    [Lookup(Place(B, 2)), Links(F)],
    [Lookup(Place(B, 4)), Lookup(Place(A, 3))],
    [Lookup(Place(B, 1)), Links(F)],
    [Lookup(Place(A, 1)), Lookup(Place(B, 4))],
    [Lookup(Place(A, 4)), Links(G)],
];

/// On MDT 2: T, T/1 = X, striped over MDT 0 and 1, T/2 = F. And a file K, A/6, on MDT 0 like its
/// only name.
const T: Ino = Ino(0x21);
const X: Ino = Ino(0x07);
const K: Ino = Ino(0x0b);

fn three(clients: &[&[Request]], crashes: u8, copies: u8) -> Case {
    let mut before = tree();
    before.extend([Mkdir(Place(ROOT, 3), T), Mkdir(Place(T, 1), X), Link(F, Place(T, 2)), Create(Place(A, 6), K)]);
    let clients = clients.iter().map(|client| client.to_vec()).collect();
    let rules = Rules::default();
    Case { targets: 3, before, clients, crashes, copies, leaves: 0, late: false, absent: None, rules }
}

fn two(clients: &[&[Request]], crashes: u8, copies: u8) -> Case {
    let clients = clients.iter().map(|client| client.to_vec()).collect();
    let rules = Rules::default();
    Case { targets: 2, before: tree(), clients, crashes, copies, leaves: 0, late: false, absent: None, rules }
}

/// B/1 = E on MDT 1, E/1 = H and H/1 = D on MDT 0, D/2 = C on MDT 1: what moves D away from below E
/// is decided by MDT 0 alone, and what moves E below D then by MDT 1.
fn deep(clients: &[&[Request]], crashes: u8) -> Case {
    let before = vec![
        Mkdir(Place(ROOT, 1), A),
        Mkdir(Place(ROOT, 2), B),
        Mkdir(Place(B, 1), E),
        Mkdir(Place(E, 1), H),
        Mkdir(Place(H, 1), D),
        Mkdir(Place(D, 2), C),
    ];
    Case { before, ..two(clients, crashes, 0) }
}

/// A wait ends before what it waits for has come.
fn leaving(case: Case) -> Case {
    Case { leaves: 1, ..case }
}

/// Explores cases of which each must be right.
fn all_right(what: &str, cases: impl IntoIterator<Item = Case>) {
    let (mut number, mut sum) = (0, Explored::default());
    for case in cases {
        match explore(&case) {
            Ok(Explored { states, ends }) => sum = Explored { states: sum.states + states, ends: sum.ends + ends },
            Err(reason) => panic!("{case:?}: {reason}"),
        }
        number += 1;
    }
    println!("{what}: {number} cases, {} states, {} at rest", sum.states, sum.ends);
    assert!(sum.states > 1000 && sum.ends > number, "{what}: {sum:?}");
}

fn pairs() -> Vec<(Request, Request)> {
    let operations = operations();
    let with =
        |(index, one): (usize, &Request)| operations[index..].iter().map(|two| (*one, other(*two))).collect::<Vec<_>>();
    operations.iter().enumerate().flat_map(with).collect()
}

#[test]
fn all_pairs_with_a_crash() {
    all_right("pairs, one crash", pairs().into_iter().map(|(one, other)| two(&[&[one], &[other]], 1, 0)));
}

#[test]
fn all_pairs_with_readers() {
    let with = |(index, (one, other)): (usize, (Request, Request))| {
        two(&[&[one], &[other], &READERS[index % READERS.len()][..]], 0, 0)
    };
    all_right("pairs and a reader", pairs().into_iter().enumerate().map(with));
}

#[test]
fn all_pairs_with_a_message_that_comes_twice() {
    all_right("pairs, one copy", pairs().into_iter().map(|(one, other)| two(&[&[one], &[other]], 0, 1)));
}

#[test]
fn all_pairs_with_a_wait_that_ends() {
    all_right("pairs, one wait ends", pairs().into_iter().map(|(one, other)| leaving(two(&[&[one], &[other]], 0, 0))));
}

#[test]
fn each_operation_with_a_wait_that_ends_and_a_crash_or_a_copy() {
    let each = |crashes, copies| operations().into_iter().map(move |one| leaving(two(&[&[one]], crashes, copies)));
    all_right("one operation, a wait ends, a crash", each(1, 0));
    all_right("one operation, a wait ends, a copy", each(0, 1));
}

#[test]
fn each_operation_with_crashes_copies_and_readers() {
    let each = |crashes, copies| operations().into_iter().map(move |one| two(&[&[one]], crashes, copies));
    all_right("one operation, two crashes", each(2, 0));
    all_right("one operation, a crash and a copy", each(1, 1));
    let readers = operations().into_iter().flat_map(|one| READERS.map(|reader| two(&[&[one], &reader], 1, 0)));
    all_right("one operation, a reader, a crash", readers);
}

#[test]
fn pairs_with_two_crashes() {
    let pairs = [
        (Rmdir(Place(A, 3)), Create(Place(E, 1), FILE)),
        (Rename(Place(A, 1), Place(B, 2)), Unlink(Place(B, 1))),
        (Link(F, Place(B, 4)), Unlink(Place(A, 1))),
        (Mkdir(Place(A, 4), DIRECTORY), Rename(Place(A, 3), Place(B, 3))),
    ];
    all_right("pairs, two crashes", pairs.map(|(one, other)| two(&[&[one], &[other]], 2, 0)));
}

#[test]
fn three_targets_with_a_crash() {
    let pairs = [
        (Rmdir(Place(T, 1)), Create(Place(X, 0), Ino(0x09))),
        (Rename(Place(B, 2), Place(T, 2)), Unlink(Place(T, 2))),
        (Rename(Place(B, 3), Place(T, 1)), Mkdir(Place(X, 1), DIRECTORY)),
        (Exchange(Place(B, 2), Place(T, 2)), Rename(Place(A, 1), Place(B, 2))),
    ];
    all_right("three MDTs, one crash", pairs.map(|(one, other)| three(&[&[one], &[other]], 1, 0)));
}

/// What has no part at an absent MDT goes on, although an MDT restarts that cannot hear from it.
#[test]
fn others_go_on_without_an_absent_target() {
    let pairs = [
        (Rename(Place(A, 6), Place(B, 4)), Create(Place(A, 4), Ino(0x09))),
        (Rmdir(Place(A, 3)), Unlink(Place(A, 6))),
        (Create(Place(E, 1), FILE), Mkdir(Place(A, 4), DIRECTORY)),
        (Link(G, Place(A, 4)), Lookup(Place(A, 1))),
    ];
    let without = |(one, other)| Case { absent: Some(2), ..three(&[&[one], &[other]], 1, 0) };
    all_right("one MDT absent, one crash", pairs.map(without));
    let waits = explore(&Case { absent: Some(0), ..three(&[&[Link(F, Place(T, 3))]], 0, 0) });
    assert!(waits.is_err_and(|reason| reason.starts_with("somebody waits for ever")), "F is on the absent MDT");
}

/// Requests of an earlier start arrive late.
fn late(case: Case) -> Case {
    Case { late: true, ..case }
}

#[test]
fn late_messages_of_an_earlier_start_do_no_harm() {
    all_right("late messages", operations().into_iter().map(|one| late(two(&[&[one]], 2, 0))));
}

/// A case that fails without the rule.
fn needs(rule: Rule) -> Case {
    let into_c = Rename(Place(B, 3), Place(C, 1));
    let into_h = Rename(Place(A, 5), Place(H, 1));
    match rule {
        Rule::PromisesAreDurable => three(&[&[Rmdir(Place(T, 1))], &[Create(Place(X, 0), Ino(0x09))]], 1, 0),
        Rule::EmptinessIsPromised => two(&[&[Rmdir(Place(A, 3))], &[Create(Place(E, 1), FILE)]], 1, 0),
        Rule::NamesArePromised => three(&[&[Rename(Place(A, 6), Place(B, 4))], &[Unlink(Place(A, 6))]], 1, 0),
        Rule::AddedLinksArePromised => two(&[&[Link(G, Place(A, 4))], &[Unlink(Place(B, 2))]], 1, 0),
        Rule::DecisionsAreDurable | Rule::LoggedAfterDurable | Rule::RepliesAreStored | Rule::AppliedOnce => {
            two(&[&[Unlink(Place(B, 1))]], 1, 0)
        }
        Rule::EarlierStartsAbort => two(&[&[Rmdir(Place(A, 3))]], 1, 0),
        Rule::JoinedEnds => leaving(two(&[&[Rmdir(Place(A, 3))]], 1, 0)),
        Rule::JoinedIsDurable => two(&[&[Rmdir(Place(A, 3))]], 2, 0),
        Rule::FormerDecisionsFirst => two(&[&[Rmdir(Place(A, 3))], &[Create(Place(E, 1), FILE)]], 1, 0),
        Rule::AbortsFollowAnswers => leaving(two(&[&[Link(G, Place(A, 4))]], 0, 0)),
        Rule::PreparesOnce => two(&[&[Link(G, Place(A, 4))]], 0, 1),
        Rule::LatePreparesRefused => late(two(&[&[Link(G, Place(A, 4))]], 1, 0)),
        Rule::ReadersWait => {
            two(&[&[Rename(Place(A, 1), Place(B, 4))], &[Lookup(Place(B, 4)), Lookup(Place(A, 1))]], 0, 0)
        }
        Rule::LostHoldsRestart => three(&[&[Rename(Place(B, 2), Place(T, 2))], &[Lookup(Place(T, 2)), Links(F)]], 1, 0),
        Rule::HearBeforeServing | Rule::JoinedNamesDecisions => {
            two(&[&[Unlink(Place(B, 1))], &[Lookup(Place(B, 1)), Links(F)]], 1, 0)
        }
        Rule::WritersWait | Rule::FreezeExcludesNames => {
            two(&[&[Rmdir(Place(A, 3))], &[Create(Place(E, 1), FILE)]], 0, 0)
        }
        Rule::EveryShardIsAsked => two(&[&[Rmdir(Place(A, 0))]], 0, 0),
        Rule::Ordered => two(&[&[Rmdir(Place(A, 3))], &[Rename(Place(A, 3), Place(B, 4))]], 0, 0),
        Rule::NamesAreCompared => two(&[&[Create(Place(S, 1), FILE)], &[Link(F, Place(S, 1))]], 0, 0),
        Rule::TreeLock | Rule::LoopCheck => two(&[&[into_h], &[into_c]], 0, 0),
        Rule::TreeLockAlways => two(&[&[into_c], &[into_h]], 0, 0),
        Rule::TreeIsDurable => deep(&[&[Rename(Place(H, 1), Place(A, 1))], &[Rename(Place(B, 1), Place(C, 1))]], 1),
    }
}

#[test]
fn no_rule_can_be_left_out() {
    for rule in Rule::ALL {
        let case = needs(rule);
        let right = explore(&case).unwrap_or_else(|reason| panic!("{rule:?}: {reason}"));
        let wrong = explore(&Case { rules: Rules(Some(rule)), ..case }).expect_err(&format!("{rule:?} is not needed"));
        println!("{rule:?}: {} states; without it: {}", right.states, wrong.lines().next().unwrap_or_default());
    }
}
