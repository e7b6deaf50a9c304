//! The participant's half: what other MDTs prepare, decide and abort here.

use super::{
    node::{Action, Node},
    rules::Rule,
    vocabulary::{Message, Part, Record, Refusal, StepId, Target},
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
        let is_late = step.0.start < self.joined.get(&from).copied().unwrap_or(0);
        if is_late && self.rules.hold(Rule::LatePreparesRefused) || self.is_copy(step) {
            return Some(());
        }
        let is_tree = parts.contains(&Part::Tree) && self.rules.hold(Rule::TreeIsDurable);
        let durably = promise && self.rules.hold(Rule::PromisesAreDurable) || is_tree;
        let reply = Message::Prepared(step);
        let answer = if durably { Action::SendDurably(from, reply) } else { Action::Send(from, reply) };
        if self.tables.prepared.contains_key(&step) || self.holds.contains_key(&step) {
            self.executed.insert(step);
            actions.push(answer);
            return Some(());
        }
        if self.locked(Some(step.0), &parts, Rule::WritersWait) {
            return None;
        }
        self.executed.insert(step);
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

    fn is_copy(&self, step: StepId) -> bool {
        self.executed.contains(&step) && self.rules.hold(Rule::PreparesOnce)
    }

    /// A Prepare that waits ends without having prepared anything.
    pub(super) fn tire(&mut self, from: Target, step: StepId, actions: &mut Vec<Action>) {
        self.executed.insert(step);
        actions.push(Action::Send(from, Message::Refused(step, Refusal::Busy)));
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
        self.join_if_heard(from, actions);
    }
}
