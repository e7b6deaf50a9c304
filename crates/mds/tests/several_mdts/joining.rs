//! What a start of an MDT means: it delivers what its former starts have decided, joins the others,
//! and waits for what they have decided; the others end what its former starts have not decided.

use std::collections::BTreeSet;

use super::{
    node::{Action, Node},
    plan::{Outcome, Step},
    rules::Rule,
    tables::{Tables, needs_promise},
    vocabulary::{Message, OpId, Target},
};

/// How far this start is with another MDT.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Joining {
    /// Decisions of former starts, up to this one, are to be delivered before.
    Delivers(u8),
    /// It has asked.
    Asked,
    /// The last decision to wait for, and what does not run any more.
    Answered(u8, BTreeSet<OpId>),
}

impl Node {
    /// Starts again with what the store has kept, which is durable from now on.
    pub fn restart(&mut self, tables: Tables) -> Vec<Action> {
        let others: Vec<Target> = self.known.keys().copied().collect();
        *self = Node { start: self.start + 1, ..Node::new(self.me, &others, tables, self.rules) };
        self.known.values_mut().for_each(|start| *start = 0);
        let mut actions = Vec::new();
        for other in others {
            let log = self.tables.log_for(other);
            let last = log.last().map_or(0, |record| record.sequence);
            self.joining.insert(other, Joining::Delivers(last));
            if !log.is_empty() {
                actions.push(Action::SendDurably(other, Message::Log(log)));
            }
            self.join_if_delivered(other, &mut actions);
        }
        actions
    }

    /// Asks another MDT once it has the decisions of former starts.
    fn join_if_delivered(&mut self, other: Target, actions: &mut Vec<Action>) {
        let Some(Joining::Delivers(last)) = self.joining.get(&other) else { return };
        let is_left = self.tables.log_for(other).first().is_some_and(|record| record.sequence <= *last);
        if is_left && self.rules.hold(Rule::FormerDecisionsFirst) {
            return;
        }
        self.joining.insert(other, Joining::Asked);
        self.send_join(other, actions);
    }

    fn send_join(&self, other: Target, actions: &mut Vec<Action>) {
        let promised = self.tables.prepared.keys().map(|step| step.0).filter(|op| op.coordinator == other);
        actions.push(Action::SendDurably(other, Message::Join(promised.collect())));
    }

    /// A message of a start of another MDT has come. What was sent to a former one is sent again,
    /// as far as it is not answered: the connection to that one is gone.
    pub(super) fn heard_of(&mut self, from: Target, start: u8, actions: &mut Vec<Action>) {
        let known = self.known[&from];
        if start <= known {
            return;
        }
        self.known.insert(from, start);
        // What went to the first start, or to whatever start, has arrived.
        if start > known.max(1) {
            let log = self.tables.log_for(from);
            if !log.is_empty() {
                actions.push(Action::SendDurably(from, Message::Log(log)));
            }
            if self.joining.get(&from) == Some(&Joining::Asked) {
                self.send_join(from, actions);
            }
            self.ending.retain(|_, target| *target != from);
        }
        let asking: Vec<OpId> = self.running.keys().copied().filter(|op| self.asks(*op, from)).collect();
        asking.into_iter().for_each(|op| self.ask_others(op, actions));
    }

    /// Decisions up to this one are carried out durably by another MDT.
    pub(super) fn logged(&mut self, from: Target, sequence: u8, actions: &mut Vec<Action>) {
        let log = self.tables.log.entry(from).or_default();
        let before = log.len();
        log.retain(|record| record.sequence > sequence);
        if log.len() < before {
            actions.push(Action::Write);
        }
        if log.is_empty() {
            self.tables.log.remove(&from);
        }
        self.join_if_delivered(from, actions);
    }

    /// Another MDT has started again: it has lost its holds, its attempts that are not decided, and
    /// what it was sent.
    pub(super) fn join(&mut self, from: Target, start: u8, promised: &BTreeSet<OpId>, actions: &mut Vec<Action>) {
        let joined = self.joined.entry(from).or_default();
        let is_new = start > *joined;
        *joined = start.max(*joined);
        if self.rules.hold(Rule::EarlierStartsAbort) {
            self.abort(|step| step.0.coordinator == from && step.0.start < start, actions);
        }
        let last = self.tables.log_for(from).last().map_or(0, |record| record.sequence);
        let ended = promised.iter().copied().filter(|op| !self.running.contains_key(op)).collect();
        let answer = Message::Joined(last, ended);
        let durably = self.rules.hold(Rule::JoinedIsDurable);
        actions.push(if durably { Action::SendDurably(from, answer) } else { Action::Send(from, answer) });
        if is_new {
            self.begin_again_without_holds_at(from, actions);
        }
    }

    /// A hold is lost with a restart: a new attempt, because locks are taken in order.
    fn begin_again_without_holds_at(&mut self, from: Target, actions: &mut Vec<Action>) {
        let ops: Vec<OpId> = self.running.keys().copied().collect();
        for op in ops {
            let running = &self.running[&op];
            let lost = running.plan.steps.iter().take(running.done).any(|step| {
                matches!(step, Step::Acquire(target, parts)
                    if *target == from && (running.plan.outcome != Outcome::Commit
                        || !parts.iter().any(|part| needs_promise(*part, self.rules))))
            });
            if lost && self.rules.hold(Rule::LostHoldsRestart) {
                self.again(op, actions);
            }
        }
    }

    /// The other MDT has answered this start.
    pub(super) fn answered(&mut self, from: Target, last: u8, ended: BTreeSet<OpId>, actions: &mut Vec<Action>) {
        if self.joining.get(&from) == Some(&Joining::Asked) {
            self.joining.insert(from, Joining::Answered(last, ended));
            self.join_if_heard(from, actions);
        }
    }

    /// What the other MDT had decided is carried out: it is heard.
    pub(super) fn join_if_heard(&mut self, from: Target, actions: &mut Vec<Action>) {
        let Some(Joining::Answered(last, ended)) = self.joining.get(&from) else { return };
        let applied = self.tables.applied.get(&from).copied().unwrap_or(0);
        if applied < *last && self.rules.hold(Rule::JoinedNamesDecisions) {
            return;
        }
        let ended = ended.clone();
        self.joining.remove(&from);
        if self.rules.hold(Rule::JoinedEnds) {
            self.abort(|step| ended.contains(&step.0), actions);
        }
    }
}
