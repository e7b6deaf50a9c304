//! The participant's half: what other MDTs prepare, decide and abort here, and what a restart of
//! one of them means.

use std::collections::BTreeSet;

use super::{
    node::{Action, Node},
    plan::{Outcome, Step},
    rules::Rule,
    tables::needs_promise,
    vocabulary::{Message, OpId, Part, Record, StepId, Target},
};

impl Node {
    pub(super) fn prepare(
        &mut self,
        from: Target,
        step: StepId,
        parts: Vec<Part>,
        promise: bool,
        actions: &mut Vec<Action>,
    ) -> Option<()> {
        let durably = promise && self.rules.hold(Rule::PromisesAreDurable);
        let reply = Message::Prepared(step);
        let answer = if durably { Action::SendDurably(from, reply) } else { Action::Send(from, reply) };
        if self.tables.prepared.contains_key(&step) || self.holds.contains_key(&step) {
            actions.push(answer);
            return Some(());
        }
        if self.locked(Some(step.0), &parts, Rule::WritersWait) {
            return None;
        }
        if let Some(refusal) = parts.iter().find_map(|part| self.tables.check(*part, self.rules).err()) {
            actions.push(Action::Send(from, Message::Refused(step, refusal)));
            return Some(());
        }
        if promise {
            self.tables.prepared.insert(step, parts);
            actions.push(Action::Write);
        } else {
            self.holds.insert(step, parts);
        }
        actions.push(answer);
        Some(())
    }

    pub(super) fn abort(&mut self, concerns: impl Fn(&StepId) -> bool, actions: &mut Vec<Action>) {
        let before = self.tables.prepared.len();
        self.tables.prepared.retain(|step, _| !concerns(step));
        if self.tables.prepared.len() < before {
            actions.push(Action::Write);
        }
        let me = self.me;
        self.holds.retain(|step, _| step.0.coordinator == me || !concerns(step));
    }

    /// Applies the decisions of another MDT that are new.
    pub(super) fn hear(&mut self, from: Target, records: &[Record], actions: &mut Vec<Action>) {
        let Some(last) = records.last() else { return };
        let applied = self.tables.applied.get(&from).copied().unwrap_or(0);
        let mut news = false;
        for record in records {
            if record.sequence <= applied && self.rules.hold(Rule::AppliedOnce) {
                // A copy of the request came after the decision.
                news |= self.tables.prepared.remove(&record.step).is_some();
                self.holds.remove(&record.step);
                continue;
            }
            record.parts.iter().for_each(|part| self.tables.apply(*part));
            self.tables.prepared.remove(&record.step);
            self.holds.remove(&record.step);
            news = true;
        }
        if news {
            self.tables.applied.insert(from, last.sequence.max(applied));
            actions.push(Action::Write);
        }
        let logged = Message::Logged(last.sequence);
        let durably = self.rules.hold(Rule::LoggedAfterDurable);
        actions.push(if durably { Action::SendDurably(from, logged) } else { Action::Send(from, logged) });
    }

    /// Another MDT has started again. It has lost its holds, its attempts that are not decided, and
    /// what it was sent.
    pub(super) fn hello(
        &mut self,
        from: Target,
        start: u8,
        records: &[Record],
        prepared: BTreeSet<OpId>,
        actions: &mut Vec<Action>,
    ) {
        self.hear(from, records, actions);
        if self.rules.hold(Rule::EarlierStartsAbort) {
            self.abort(|step| step.0.coordinator == from && step.0.start < start, actions);
        }
        self.unheard.remove(&from);
        let aborted = prepared.into_iter().filter(|op| !self.running.contains_key(op) && !self.tables.is_logged(*op));
        let welcome = Message::Welcome(self.tables.log_for(from), aborted.collect());
        actions.push(Action::SendDurably(from, welcome));
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
            } else if self.asks(op, from) {
                self.ask_others(op, actions);
            }
        }
    }
}
