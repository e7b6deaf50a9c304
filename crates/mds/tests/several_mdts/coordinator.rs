//! The coordinator's half: an operation takes its steps in order, and is decided or begins again.

use std::collections::BTreeSet;

use super::{
    node::{Action, Node, Running},
    plan::{Outcome, Plan, Step, plan},
    rules::Rule,
    tables::needs_promise,
    vocabulary::{Answer, Ino, Message, OpId, Part, ROOT, Refusal, Request, StepId, Target},
};

impl Node {
    pub(super) fn plan(&self, request: Request, source: Option<Ino>) -> Plan {
        let own = match request {
            Request::Rename(from, _) | Request::Exchange(from, _) if from.target() == self.me => {
                self.tables.entries.get(&from).copied()
            }
            _ => source,
        };
        plan(&self.tables, self.me, request, own, self.rules)
    }

    pub(super) fn begin(&mut self, op: OpId, request: (u8, Request), source: Option<Ino>, actions: &mut Vec<Action>) {
        self.next = op.number + 1;
        let plan = self.plan(request.1, source);
        self.running.insert(op, Running { request, source, plan, done: 0, is_asked: false, waits: false });
        self.advance(op, actions);
    }

    pub(super) fn can_go_on(&self, op: OpId) -> bool {
        let running = &self.running[&op];
        match running.plan.steps.get(running.done) {
            Some(Step::Acquire(target, parts)) if *target == self.me => {
                !self.locked(Some(op), parts, Rule::WritersWait)
            }
            Some(Step::Walk { at, .. }) if at.home() == self.me => !self.moves(op, *at),
            _ => true,
        }
    }

    /// Goes on with an operation until it waits or ends.
    pub(super) fn advance(&mut self, op: OpId, actions: &mut Vec<Action>) {
        loop {
            let can_go_on = self.can_go_on(op);
            let running = self.running.get_mut(&op).expect("it runs");
            (running.waits, running.is_asked) = (!can_go_on, false);
            if !can_go_on {
                return;
            }
            let done = running.done;
            let Some(step) = running.plan.steps.get(done).cloned() else { return self.decide(op, actions) };
            let step_id = (op, done as u8);
            match step {
                Step::Acquire(target, parts) if target == self.me => {
                    if let Some(refusal) = parts.iter().find_map(|part| self.tables.check(*part, self.rules).err()) {
                        return self.refused(op, refusal, actions);
                    }
                    self.holds.insert(step_id, parts);
                    self.running.get_mut(&op).expect("it runs").done += 1;
                }
                Step::Walk { at, .. } if at.home() == self.me => {
                    let parent = self.tables.parent(at);
                    if !self.walked(op, parent) {
                        return self.refused(op, Refusal::Failed, actions);
                    }
                }
                Step::Acquire(..) | Step::Walk { .. } => return self.ask_others(op, actions),
            }
        }
    }

    /// Whether an operation waits for an answer of another MDT.
    pub(super) fn asks(&self, op: OpId, other: Target) -> bool {
        let running = &self.running[&op];
        match running.plan.steps.get(running.done) {
            Some(Step::Acquire(target, _)) => *target == other,
            Some(Step::Walk { at, .. }) => at.home() == other,
            None => false,
        }
    }

    /// Sends, perhaps again, what the present step of an operation asks another MDT.
    pub(super) fn ask_others(&mut self, op: OpId, actions: &mut Vec<Action>) {
        // Without a connection it is sent later.
        if self.known.iter().any(|(other, start)| *start == 0 && self.asks(op, *other)) {
            return;
        }
        self.running.get_mut(&op).expect("it runs").is_asked = true;
        let running = &self.running[&op];
        let step = (op, running.done as u8);
        match &running.plan.steps[running.done] {
            Step::Acquire(target, parts) => {
                let promise = running.plan.outcome == Outcome::Commit
                    && parts.iter().any(|part| needs_promise(*part, self.rules));
                actions.push(Action::Send(*target, Message::Prepare { step, parts: parts.clone(), promise }));
            }
            Step::Walk { at, .. } => actions.push(Action::Send(at.home(), Message::Parent(step, *at))),
        }
    }

    /// One directory further up. False: there is no way up.
    pub(super) fn walked(&mut self, op: OpId, parent: Option<Ino>) -> bool {
        let running = self.running.get_mut(&op).expect("it runs");
        let Step::Walk { at, forbidden } = &mut running.plan.steps[running.done] else { return true };
        let Some(parent) = parent else { return false };
        // Where the walk began counts too.
        if *at == *forbidden || parent == *forbidden {
            let names = running.plan.steps.split_off(running.done);
            running.plan.outcome = Outcome::Refuse;
            running.plan.steps.extend(names.into_iter().filter_map(only_names));
        } else if parent == ROOT {
            running.done += 1;
        } else {
            *at = parent;
        }
        true
    }

    pub(super) fn decide(&mut self, op: OpId, actions: &mut Vec<Action>) {
        let running = self.running.remove(&op).expect("it runs");
        let number = running.request.0;
        if running.plan.outcome != Outcome::Commit {
            self.release(op, &running, actions);
            let nothing = running.plan.outcome == Outcome::Nothing;
            return actions.push(Action::Answer(number, if nothing { Answer::Done } else { Answer::Failed }));
        }
        let mut told = BTreeSet::new();
        for (index, step) in running.plan.steps.iter().enumerate() {
            match step {
                Step::Acquire(target, parts) if *target == self.me => {
                    parts.iter().for_each(|part| self.tables.apply(*part));
                }
                Step::Acquire(target, parts) => {
                    self.tables.decide(*target, (op, index as u8), parts);
                    told.insert(*target);
                }
                Step::Walk { .. } => {}
            }
        }
        self.holds.retain(|step, _| step.0 != op);
        if self.rules.hold(Rule::RepliesAreStored) {
            self.tables.replies.insert(number, Answer::Done);
        }
        actions.extend([Action::Write, Action::Commit(number), Action::Answer(number, Answer::Done)]);
        for target in told {
            let log = Message::Log(self.tables.log_for(target));
            let durably = self.rules.hold(Rule::DecisionsAreDurable);
            actions.push(if durably { Action::SendDurably(target, log) } else { Action::Send(target, log) });
        }
    }

    /// Gives back what an attempt has locked. What it may have locked with its present step, at
    /// another MDT that has not answered, it gives back when that one has.
    pub(super) fn release(&mut self, op: OpId, running: &Running, actions: &mut Vec<Action>) {
        self.holds.retain(|step, _| step.0 != op);
        let mut others = BTreeSet::new();
        for (index, step) in running.plan.steps.iter().enumerate().take(running.done + 1) {
            let Step::Acquire(target, _) = step else { continue };
            if *target == self.me || index == running.done && !running.is_asked {
                continue;
            }
            if index == running.done && self.rules.hold(Rule::AbortsFollowAnswers) {
                self.ending.insert((op, index as u8), *target);
            } else {
                others.insert(*target);
            }
        }
        actions.extend(others.into_iter().map(|target| Action::Send(target, Message::Abort(op))));
    }

    pub(super) fn refused(&mut self, op: OpId, refusal: Refusal, actions: &mut Vec<Action>) {
        self.running.get_mut(&op).expect("it runs").is_asked = false;
        match refusal {
            Refusal::Failed => {
                let running = self.running.remove(&op).expect("it runs");
                self.release(op, &running, actions);
                actions.push(Action::Answer(running.request.0, Answer::Failed));
            }
            Refusal::Busy => {
                let running = self.running.remove(&op).expect("it runs");
                self.release(op, &running, actions);
                actions.push(Action::AskAgain(running.request.0));
            }
            Refusal::Changed(at, found) => {
                let running = self.running.get_mut(&op).expect("it runs");
                if let Request::Rename(from, _) | Request::Exchange(from, _) = running.request.1
                    && from == at
                {
                    running.source = found;
                }
                self.again(op, actions);
            }
        }
    }

    /// Another attempt from the beginning.
    pub(super) fn again(&mut self, op: OpId, actions: &mut Vec<Action>) {
        let running = self.running.remove(&op).expect("it runs");
        self.release(op, &running, actions);
        let next = OpId { coordinator: self.me, start: self.start, number: self.next };
        self.begin(next, running.request, running.source, actions);
    }

    /// Whether an operation waits for the answer to this step.
    pub(super) fn is_at(&self, step: StepId) -> bool {
        self.running.get(&step.0).is_some_and(|running| running.done == usize::from(step.1) && !running.waits)
    }

    pub(super) fn prepared(&mut self, from: Target, step: StepId, actions: &mut Vec<Action>) {
        let asked = |running: &Running| matches!(running.plan.steps.get(running.done), Some(Step::Acquire(target, _)) if *target == from);
        if self.is_at(step) && asked(&self.running[&step.0]) {
            self.running.get_mut(&step.0).expect("it runs").done += 1;
            self.advance(step.0, actions);
        } else if self.ending.remove(&step).is_some() {
            actions.push(Action::Send(from, Message::Abort(step.0)));
        }
    }
}

/// What is left of a step when an operation only makes sure of its names.
fn only_names(step: Step) -> Option<Step> {
    let Step::Acquire(target, parts) = step else { return None };
    let same = |part: Part| match part {
        Part::SetName { at, from, .. } => Some(Part::SetName { at, from, to: from }),
        _ => None,
    };
    let names: Vec<Part> = parts.into_iter().filter_map(same).collect();
    (!names.is_empty()).then_some(Step::Acquire(target, names))
}
