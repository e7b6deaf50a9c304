//! MDTs, the messages between them, and clients; and all that can happen next.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use super::{
    node::{Action, Event, Node},
    reference::Reference,
    rules::Rules,
    tables::Tables,
    vocabulary::{Answer, Ino, Message, OpId, Place, ROOT, Request, Target},
};

/// A message on its way, over a connection between two starts; 0: whatever start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Envelope {
    from: Target,
    start: u8,
    to: Target,
    to_start: u8,
    message: Message,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Server {
    pub(super) node: Node,
    durable: Rc<Tables>,
    /// The tables after each batch that is not durable.
    pending: Vec<Rc<Tables>>,
    /// Messages that leave when all batches are durable.
    outbox: Vec<Envelope>,
    /// Requests that are answered, not durably.
    undurable: BTreeSet<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    /// The coordinator works on it.
    taken: bool,
    invoked: bool,
    pub(super) after: u32,
    pub(super) answer: Option<Answer>,
    pub(super) changed: bool,
    pub(super) may_be_undone: bool,
}

#[derive(Clone, Debug, Hash)]
pub struct World {
    pub(super) servers: Vec<Server>,
    pub(super) network: Vec<Envelope>,
    pub(super) asked: Vec<Asked>,
    crashes: u8,
    copies: u8,
    leaves: u8,
    late: bool,
    pub(super) absent: Option<Target>,
    /// A power loss has taken changes.
    pub(super) lost: bool,
    /// The request that the last step has answered: a crash now may take the answer away.
    answered: Option<u8>,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Ask(usize),
    Deliver(usize),
    /// A message arrives, and once more later.
    Copy(usize),
    Wake(Target, OpId),
    /// The client of an operation leaves, and asks again.
    Leave(Target, OpId),
    /// A Prepare that waits is answered without having been executed.
    Tire(usize),
    Flush(Target),
    /// An MDT ends and starts again; what it keeps: so many of the batches that are not durable;
    /// whether its last answer is lost.
    Crash(Target, usize, bool),
}

/// What happens in a run.
#[derive(Clone, Debug)]
pub struct Case {
    pub targets: u8,
    /// Done before, without faults.
    pub before: Vec<Request>,
    /// What each client asks for, one after the other.
    pub clients: Vec<Vec<Request>>,
    pub crashes: u8,
    /// Messages that arrive twice.
    pub copies: u8,
    /// Waits that end before what they wait for has come.
    pub leaves: u8,
    /// Whether requests of a start arrive although the next one is known: its session lasts until
    /// its lease ends. Answers need the connection, which is gone.
    pub late: bool,
    /// An MDT that is down from the beginning, for ever.
    pub absent: Option<Target>,
    pub rules: Rules,
}

/// What does not change during a run.
pub struct Fixed {
    pub requests: Vec<Request>,
    /// The request that its client must have answered before.
    previous: Vec<Option<usize>>,
    sources: Vec<Option<Ino>>,
    pub(super) start: Reference,
}

impl Fixed {
    fn new(clients: &[Vec<Request>], start: Reference) -> Self {
        let (mut requests, mut previous) = (Vec::new(), Vec::new());
        for client in clients {
            for (index, request) in client.iter().enumerate() {
                previous.push((index > 0).then(|| requests.len() - 1));
                requests.push(*request);
            }
        }
        let source = |request: &Request| match request {
            Request::Rename(from, _) | Request::Exchange(from, _) => start.found(*from),
            _ => None,
        };
        let sources = requests.iter().map(source).collect();
        Fixed { requests, previous, sources, start }
    }
}

impl World {
    /// The beginning of a run.
    pub fn new(case: &Case) -> (World, Fixed) {
        let root = (ROOT, super::tables::Inode { links: 1, places: BTreeSet::from([Place(ROOT, 0)]) });
        let node = |me| {
            let mut tables = Tables::default();
            if me == 0 {
                tables.inodes.extend([root.clone()]);
                tables.shards.insert(ROOT);
            }
            let others: Vec<Target> = (0..case.targets).filter(|other| *other != me).collect();
            Node::new(me, &others, tables, Rules::default())
        };
        let mut world = World::of((0..case.targets).map(node).collect(), case.before.len());
        let before = Fixed::new(std::slice::from_ref(&case.before), Reference::default());
        loop {
            let mut fixed = Fixed::new(std::slice::from_ref(&case.before), world.reference());
            fixed.previous = before.previous.clone();
            let Some(step) = world.steps(&fixed).into_iter().next() else { break };
            world.take(step, &fixed);
        }
        let done = |asked: &Asked| asked.answer == Some(Answer::Done);
        assert!(world.asked.iter().all(done), "what happens before succeeds: {:?}", world.asked);
        let fixed = Fixed::new(&case.clients, world.reference());
        let nodes = world.servers.into_iter().map(|server| {
            let Node { me, known, mut tables, .. } = server.node;
            (tables.replies, tables.log) = (BTreeMap::new(), BTreeMap::new());
            (tables.logged, tables.applied) = (BTreeMap::new(), BTreeMap::new());
            Node::new(me, &known.into_keys().collect::<Vec<_>>(), tables, case.rules)
        });
        let world = World::of(nodes.collect(), fixed.requests.len());
        let Case { crashes, copies, leaves, late, absent, .. } = *case;
        (World { crashes, copies, leaves, late, absent, ..world }, fixed)
    }

    fn of(nodes: Vec<Node>, requests: usize) -> World {
        let server = |node: Node| Server {
            durable: Rc::new(node.tables.clone()),
            node,
            pending: Vec::new(),
            outbox: Vec::new(),
            undurable: BTreeSet::new(),
        };
        let servers = nodes.into_iter().map(server).collect();
        World {
            servers,
            network: Vec::new(),
            asked: vec![Asked::default(); requests],
            crashes: 0,
            copies: 0,
            leaves: 0,
            late: false,
            absent: None,
            lost: false,
            answered: None,
        }
    }

    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// All that can happen, except for crashes.
    pub fn steps(&self, fixed: &Fixed) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, asked) in self.asked.iter().enumerate() {
            let is_next = fixed.previous[index].is_none_or(|previous| self.asked[previous].answer.is_some());
            if is_next && !asked.taken && asked.answer.is_none() && self.can(self.ask(index, fixed)) {
                steps.push(Step::Ask(index));
            }
        }
        for (index, envelope) in self.network.iter().enumerate() {
            let is_known = index > 0 && self.network[index - 1] == *envelope;
            if is_known || self.absent == Some(envelope.to) {
                continue;
            }
            if self.can((envelope.to, self.arrival(index))) {
                steps.push(Step::Deliver(index));
                if self.copies > 0 {
                    steps.push(Step::Copy(index));
                }
            } else if self.leaves > 0 && matches!(envelope.message, Message::Prepare { .. }) {
                steps.push(Step::Tire(index));
            }
        }
        for server in &self.servers {
            let waiting = server.node.running.iter().filter(|(_, running)| running.waits);
            let wakes = waiting.map(|(op, _)| (server.node.me, Event::Wake(*op)));
            steps.extend(wakes.filter(|wake| self.can(wake.clone())).map(|(target, event)| match event {
                Event::Wake(op) => Step::Wake(target, op),
                _ => unreachable!("they wake"),
            }));
            if self.leaves > 0 {
                steps.extend(server.node.running.keys().map(|op| Step::Leave(server.node.me, *op)));
            }
            if !server.outbox.is_empty() {
                steps.push(Step::Flush(server.node.me));
            }
        }
        steps
    }

    pub fn crashes(&self, fixed: &Fixed) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.crashes > 0 {
            for server in self.servers.iter().filter(|server| self.absent != Some(server.node.me)) {
                let answered = self
                    .answered
                    .is_some_and(|number| fixed.requests[usize::from(number)].coordinator() == server.node.me);
                for kept in 0..=server.pending.len() {
                    steps.push(Step::Crash(server.node.me, kept, false));
                    steps.extend(answered.then_some(Step::Crash(server.node.me, kept, true)));
                }
            }
        }
        steps
    }

    fn ask(&self, index: usize, fixed: &Fixed) -> (Target, Event) {
        let request = fixed.requests[index];
        (request.coordinator(), Event::Ask(index as u8, request, fixed.sources[index]))
    }

    fn arrival(&self, index: usize) -> Event {
        let Envelope { from, start, message, .. } = self.network[index].clone();
        Event::Receive(from, start, message)
    }

    fn can(&self, (target, event): (Target, Event)) -> bool {
        // Only these wait.
        let waits = match &event {
            Event::Ask(..) | Event::Wake(_) => true,
            Event::Leave(_) | Event::Tire(..) => false,
            Event::Receive(_, _, message) => matches!(message, Message::Prepare { .. } | Message::Parent(..)),
        };
        !waits || self.servers[usize::from(target)].node.clone().step(event).is_some()
    }

    pub fn take(&mut self, step: Step, fixed: &Fixed) {
        let answered = self.answered.take();
        match step {
            Step::Ask(index) => {
                let answered = |(_, asked): &(usize, &Asked)| asked.answer.is_some();
                let after = self.asked.iter().enumerate().filter(answered).map(|(other, _)| 1 << other).sum();
                let asked = &mut self.asked[index];
                asked.taken = true;
                if !asked.invoked {
                    (asked.invoked, asked.after) = (true, after);
                }
                let (target, event) = self.ask(index, fixed);
                self.happen(target, event);
            }
            Step::Deliver(index) | Step::Copy(index) => {
                let (to, event) = (self.network[index].to, self.arrival(index));
                if let Step::Copy(_) = step {
                    self.copies -= 1;
                } else {
                    self.network.remove(index);
                }
                self.happen(to, event);
            }
            Step::Wake(target, op) => self.happen(target, Event::Wake(op)),
            Step::Leave(target, op) => {
                self.leaves -= 1;
                let number = self.servers[usize::from(target)].node.running[&op].number();
                self.asked[usize::from(number)].taken = false;
                self.happen(target, Event::Leave(op));
            }
            Step::Tire(index) => {
                self.leaves -= 1;
                let Envelope { from, to, message, .. } = self.network.remove(index);
                let Message::Prepare { step, .. } = message else { unreachable!("only these tire") };
                self.happen(to, Event::Tire(from, step));
            }
            Step::Flush(target) => self.flush(target),
            Step::Crash(target, kept, loses_answer) => {
                self.crash(target, kept, answered.filter(|_| loses_answer), fixed);
            }
        }
        if self.crashes == 0 {
            self.answered = None;
            (0..self.servers.len()).for_each(|target| self.flush(target as Target));
        }
        let (servers, late) = (&self.servers, self.late);
        self.network.retain(|envelope| {
            let receiver = &servers[usize::from(envelope.to)].node;
            let is_late = envelope.start < receiver.known[&envelope.from];
            (envelope.to_start == 0 || envelope.to_start == receiver.start)
                && (!is_late || late && envelope.message.is_request())
        });
        self.network.sort_unstable();
    }

    fn happen(&mut self, target: Target, event: Event) {
        let actions = self.servers[usize::from(target)].node.step(event).expect("it can happen");
        self.perform(target, actions);
    }

    fn perform(&mut self, target: Target, actions: Vec<Action>) {
        let server = &mut self.servers[usize::from(target)];
        let (from, start) = (target, server.node.start);
        for action in actions {
            let address = |to: Target, message: Message, node: &Node| Envelope {
                from,
                start,
                to,
                to_start: node.known[&to],
                message,
            };
            match action {
                Action::Send(to, message) => self.network.push(address(to, message, &server.node)),
                Action::SendDurably(to, message) => {
                    let envelope = address(to, message, &server.node);
                    let is_durable = server.pending.is_empty();
                    if is_durable { self.network.push(envelope) } else { server.outbox.push(envelope) }
                }
                Action::Write => server.pending.push(Rc::new(server.node.tables.clone())),
                Action::Commit(number) => {
                    server.undurable.insert(number);
                    self.asked[usize::from(number)].changed = true;
                }
                Action::AskAgain(number) => self.asked[usize::from(number)].taken = false,
                Action::Answer(number, answer) => {
                    let asked = &mut self.asked[usize::from(number)];
                    asked.answer.get_or_insert(answer);
                    self.answered = Some(number);
                }
            }
        }
        server.outbox.sort_unstable();
    }

    fn flush(&mut self, target: Target) {
        let server = &mut self.servers[usize::from(target)];
        if let Some(last) = server.pending.pop() {
            server.durable = last;
        }
        server.pending.clear();
        server.undurable.clear();
        self.network.append(&mut server.outbox);
    }

    fn crash(&mut self, target: Target, kept: usize, lost_answer: Option<u8>, fixed: &Fixed) {
        self.crashes -= 1;
        if let Some(number) = lost_answer {
            let asked = &mut self.asked[usize::from(number)];
            (asked.answer, asked.changed) = (None, false);
            self.servers[usize::from(target)].undurable.remove(&number);
        }
        let server = &mut self.servers[usize::from(target)];
        let loses = kept < server.pending.len();
        self.lost |= loses;
        if kept > 0 {
            server.durable = server.pending[kept - 1].clone();
        }
        for number in std::mem::take(&mut server.undurable) {
            self.asked[usize::from(number)].may_be_undone |= loses;
        }
        server.pending.clear();
        server.outbox.clear();
        let actions = server.node.restart((*server.durable).clone());
        self.perform(target, actions);
        for (index, asked) in self.asked.iter_mut().enumerate() {
            if asked.answer.is_none() && fixed.requests[index].coordinator() == target {
                asked.taken = false;
            }
        }
    }

    pub(super) fn reference(&self) -> Reference {
        let entries = self.servers.iter().flat_map(|server| server.node.tables.entries.clone());
        Reference { entries: entries.collect() }
    }
}
