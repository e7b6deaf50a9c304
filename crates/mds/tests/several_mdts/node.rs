//! One MDT as a state machine without time: an event in, actions out. It coordinates operations on
//! names of its own (module `coordinator`), and takes part in those of others (`participant`).
//! `None`: the event has to wait.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    joining::Joining,
    plan::{Plan, Step},
    rules::{Rule, Rules},
    tables::{Resource, Tables},
    vocabulary::{Answer, Ino, Message, OpId, Part, Place, Refusal, Request, StepId, Target},
};

/// What happens to an MDT.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client asks. The number is that of the request, the inode what its source is believed to
    /// be.
    Ask(u8, Request, Option<Ino>),
    /// A message of a start of another MDT.
    Receive(Target, u8, Message),
    /// An operation that waits for its own MDT tries again.
    Wake(OpId),
    /// Nobody waits for an operation any more: its client is gone, or is told to ask again.
    Leave(OpId),
    /// A Prepare has waited long enough.
    Tire(Target, StepId),
}

/// What an MDT wants done.
#[derive(Clone, Debug)]
pub enum Action {
    Send(Target, Message),
    /// Sent when everything written so far is durable.
    SendDurably(Target, Message),
    Answer(u8, Answer),
    /// Nothing was done: the client asks again.
    AskAgain(u8),
    /// The answer is written with the change.
    Commit(u8),
    /// The tables have changed: one batch.
    Write,
}

/// An operation that this MDT coordinates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Running {
    pub(super) request: (u8, Request),
    pub(super) source: Option<Ino>,
    pub(super) plan: Plan,
    /// Steps that have succeeded.
    pub(super) done: usize,
    /// Another MDT was asked for the next one.
    pub(super) is_asked: bool,
    /// It waits for operations on this MDT, not for an answer.
    pub waits: bool,
}

impl Running {
    /// Number of the request.
    pub fn number(&self) -> u8 {
        self.request.0
    }
}

#[derive(Clone, Debug, Hash)]
pub struct Node {
    pub me: Target,
    pub start: u8,
    pub tables: Tables,
    /// Last start of each other MDT that is known; 0: none.
    pub known: BTreeMap<Target, u8>,
    /// Last start of other MDTs that has joined.
    pub(super) joined: BTreeMap<Target, u8>,
    /// MDTs whose decisions have not been heard since this start.
    pub joining: BTreeMap<Target, Joining>,
    pub running: BTreeMap<OpId, Running>,
    /// Locks without a promise, those of own operations included.
    pub holds: BTreeMap<StepId, Vec<Part>>,
    /// Steps of attempts that were given up, which another MDT has not answered.
    pub ending: BTreeMap<StepId, Target>,
    /// What this start has executed for others: a copy of it gets the same answer, which is on its
    /// way.
    pub(super) executed: BTreeSet<StepId>,
    pub(super) next: u8,
    pub rules: Rules,
}

impl Node {
    pub fn new(me: Target, others: &[Target], tables: Tables, rules: Rules) -> Self {
        let known = others.iter().map(|other| (*other, 1)).collect();
        Node {
            me,
            start: 1,
            tables,
            known,
            joined: BTreeMap::new(),
            joining: BTreeMap::new(),
            running: BTreeMap::new(),
            holds: BTreeMap::new(),
            ending: BTreeMap::new(),
            executed: BTreeSet::new(),
            next: 0,
            rules,
        }
    }

    pub fn step(&mut self, event: Event) -> Option<Vec<Action>> {
        let mut actions = Vec::new();
        match event {
            Event::Ask(number, request, source) => self.ask(number, request, source, &mut actions)?,
            Event::Receive(from, start, message) => self.receive(from, start, message, &mut actions)?,
            Event::Wake(op) => {
                if !self.can_go_on(op) {
                    return None;
                }
                self.advance(op, &mut actions);
            }
            Event::Leave(op) => {
                let running = self.running.remove(&op)?;
                self.release(op, &running, &mut actions);
            }
            Event::Tire(from, step) => self.tire(from, step, &mut actions),
        }
        Some(actions)
    }

    pub(super) fn locked(&self, op: Option<OpId>, parts: &[Part], by_others: Rule) -> bool {
        if !self.rules.hold(by_others) {
            return false;
        }
        let is_early = !self.joining.is_empty() && self.rules.hold(Rule::HearBeforeServing);
        if is_early && parts.iter().any(|part| self.tables.may_have_been_held(self.me, *part)) {
            return true;
        }
        let wanted: Vec<Resource> = parts.iter().flat_map(|part| Resource::of(*part)).collect();
        let locks = self.tables.prepared.iter().chain(&self.holds).filter(|(step, _)| Some(step.0) != op);
        let mut held = locks.flat_map(|(_, parts)| parts.iter().flat_map(|part| Resource::of(*part)));
        held.any(|held| wanted.iter().any(|wanted| wanted.meets(held, self.rules)))
    }

    fn ask(&mut self, number: u8, request: Request, source: Option<Ino>, actions: &mut Vec<Action>) -> Option<()> {
        if let Some(reply) = self.tables.replies.get(&number) {
            actions.push(Action::Answer(number, *reply));
            return Some(());
        }
        match request {
            Request::Lookup(at) => {
                let part = Part::SetName { at, from: None, to: None };
                if self.locked(None, &[part], Rule::ReadersWait) {
                    return None;
                }
                actions.push(Action::Answer(number, Answer::Found(self.tables.entries.get(&at).copied())));
            }
            Request::Links(ino) => {
                if self.locked(None, &[Part::DropLink(ino, Place(ino, 0))], Rule::ReadersWait) {
                    return None;
                }
                let links = self.tables.inodes.get(&ino).map_or(0, |inode| inode.links);
                actions.push(Action::Answer(number, Answer::Links(links)));
            }
            _ => {
                let op = OpId { coordinator: self.me, start: self.start, number: self.next };
                if let Some(Step::Acquire(target, parts)) = self.plan(request, source).steps.first()
                    && *target == self.me
                    && self.locked(None, parts, Rule::WritersWait)
                {
                    return None;
                }
                self.begin(op, (number, request), source, actions);
            }
        }
        Some(())
    }

    /// Whether somebody else is moving a directory.
    pub(super) fn moves(&self, op: OpId, directory: Ino) -> bool {
        let locks = self.tables.prepared.iter().chain(&self.holds).filter(|(step, _)| step.0 != op);
        let mut parts = locks.flat_map(|(_, parts)| parts);
        parts.any(|part| matches!(part, Part::MoveLink(ino, ..) if *ino == directory))
    }

    fn receive(&mut self, from: Target, start: u8, message: Message, actions: &mut Vec<Action>) -> Option<()> {
        self.heard_of(from, start, actions);
        let is_late = start < self.known[&from];
        match message {
            Message::Prepare { step, parts, promise } => self.prepare(from, step, parts, promise, actions)?,
            Message::Prepared(step) => self.prepared(from, step, actions),
            Message::Refused(step, refusal) => {
                if self.is_at(step) {
                    self.refused(step.0, refusal, actions);
                }
                self.ending.remove(&step);
            }
            Message::Parent(step, directory) => {
                let is_missing = !self.tables.inodes.contains_key(&directory);
                if self.moves(step.0, directory) || is_missing && !self.joining.is_empty() {
                    return None;
                }
                let parent = self.tables.parent(directory);
                actions.push(Action::Send(from, Message::ParentIs(step, directory, parent)));
            }
            Message::ParentIs(step, directory, parent) => {
                let asked = |running: &Running| matches!(running.plan.steps.get(running.done), Some(Step::Walk { at, .. }) if *at == directory);
                if self.is_at(step) && asked(&self.running[&step.0]) {
                    if self.walked(step.0, parent) {
                        self.advance(step.0, actions);
                    } else {
                        self.refused(step.0, Refusal::Failed, actions);
                    }
                }
            }
            Message::Log(records) => self.hear(from, &records, actions),
            Message::Logged(sequence) => self.logged(from, sequence, actions),
            Message::Abort(op) => self.abort(|step| step.0 == op, actions),
            Message::Join(promised) => self.join(from, start, &promised, actions),
            Message::Joined(last, ended) => self.answered(from, last, ended, actions),
        }
        // Nobody is there any more to be answered.
        let is_answer = |action: &Action| match action {
            Action::Send(to, message) | Action::SendDurably(to, message) => *to == from && !message.is_request(),
            _ => false,
        };
        actions.retain(|action| !is_late || !is_answer(action));
        Some(())
    }
}
