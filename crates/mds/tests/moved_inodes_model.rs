//! Model of decision 0066: an inode moves to another MDT, while another client uses it or changes
//! its names, processes die, and hosts lose power. Every order of steps is visited.
//!
//! The inode is on MDT `OLD` and moves to `NEW`, which decides. Its name is in a directory on one
//! of these, or on `THIRD`. Changes of names on another MDT than the inode are those of decision
//! 0049 in short: the inode is promised, the MDT of the name decides. (`several_mdts` is about
//! these; here is how a move meets them.)

use std::collections::{BTreeMap, BTreeSet};

use super::common::explorer;

type Mdt = usize;
/// Of an inode: 0 on MDT `OLD`, others on `NEW`.
type Number = u8;
type Names = BTreeSet<char>;

const OLD: Mdt = 0;
const NEW: Mdt = 1;
const THIRD: Mdt = 2;
const STATES_MAX: usize = 3_000_000;

fn mdt_of(number: Number) -> Mdt {
    if number == 0 { OLD } else { NEW }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Inode {
    number: Number,
    names: Names,
    /// Stands for all attributes.
    value: u8,
    /// `None`: the objects are to be asked.
    size: Option<u8>,
}

/// What is locked until the decision, or the end of the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Promise {
    client: usize,
    coordinator: Mdt,
    start: u8,
    inode: bool,
    directory: bool,
    gives: bool,
}

/// What another MDT is to carry out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Decision {
    /// The inode is elsewhere, under this number, and names here lead there.
    Give(Number),
    /// Names lead there that led to `OLD`.
    Lead(Number),
    /// The inode has these names.
    Names(Names),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Tables {
    inode: Option<Inode>,
    entries: BTreeMap<char, Number>,
    promises: Vec<Promise>,
    log: Vec<(Mdt, u8, usize, Decision)>,
    decided: [u8; 3],
    applied: [u8; 3],
}

impl Tables {
    fn inode_is_locked(&self) -> bool {
        self.promises.iter().any(|promise| promise.inode)
    }

    fn directory_is_locked(&self) -> bool {
        self.promises.iter().any(|promise| promise.directory)
    }

    fn decide(&mut self, mdt: Mdt, client: usize, decision: Decision) {
        self.decided[mdt] += 1;
        self.log.push((mdt, self.decided[mdt], client, decision));
    }

    fn lead(&mut self, to: Number) {
        self.entries.values_mut().for_each(|number| *number = to);
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Give(to) => {
                self.inode = None;
                self.lead(to);
            }
            Decision::Lead(to) => self.lead(to),
            Decision::Names(names) => {
                self.inode = self.inode.take().filter(|_| !names.is_empty()).map(|inode| Inode { names, ..inode });
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Move,
    Set,
    /// Open, write, close.
    Write,
    Unlink,
    Rename,
    Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Done,
    NotFound,
    Busy,
    /// What no client is to be told.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    request: Request,
    /// To what the name leads, as it was told.
    known: Option<Number>,
    opened: bool,
    written: bool,
    /// What others have prepared; the coordinator forgets it when it dies.
    given: Option<Inode>,
    led: bool,
    outcome: Option<Outcome>,
    /// Where it was executed.
    done_at: Mdt,
    durable: bool,
    /// A power loss may have taken what it did.
    excused: bool,
}

/// What the protocol would be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Decisions leave when they are durable.
    Durable,
    /// What is promised stays so when the process dies.
    Lasting,
    /// A directory on a further MDT is promised with the inode.
    Directory,
    /// An inode that is open stays.
    Open,
    /// If the coordinator may have lost its decision, the size is asked of the objects.
    Doubt,
    /// A client whose number is stale looks the name up again.
    Again,
    /// The inode exists at its new MDT before it is removed at the old one.
    Kept,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The MDT of the directory.
    home: Mdt,
    tables: [Tables; 3],
    durable: [Tables; 3],
    starts: [u8; 3],
    /// Which MDT has heard of the start of which other one.
    joined: [[bool; 3]; 3],
    /// Numbers are not used twice, whatever is lost.
    last_number: Number,
    /// Bytes of the objects, which the OSTs have.
    objects: u8,
    clients: Vec<Client>,
    faults: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Client(usize),
    GiveUp(usize),
    Flush(Mdt),
    /// The first decision for another MDT; the answer arrives, or not.
    Deliver(Mdt, Mdt, bool),
    Join(Mdt, Mdt),
    Die(Mdt),
    LosePower(Mdt),
}

impl explorer::World for World {
    type Step = Step;
    type Without = Without;

    fn steps(&self, _: Without) -> Vec<Step> {
        let mut steps: Vec<Step> =
            (0..self.clients.len()).flat_map(|of| [Step::Client(of), Step::GiveUp(of)]).collect();
        for mdt in [OLD, NEW, THIRD] {
            steps.push(Step::Flush(mdt));
            for other in [OLD, NEW, THIRD] {
                steps.extend([
                    Step::Deliver(mdt, other, true),
                    Step::Deliver(mdt, other, false),
                    Step::Join(mdt, other),
                ]);
            }
            if self.faults > 0 {
                steps.extend([Step::Die(mdt), Step::LosePower(mdt)]);
            }
        }
        steps
    }

    fn take(&mut self, step: Step, without: Without) {
        match step {
            Step::Client(index) if self.clients[index].outcome.is_none() => self.go_on(index, without),
            Step::Client(_) => {}
            Step::GiveUp(index) => self.give_up(index),
            Step::Flush(mdt) => self.flush(mdt),
            Step::Deliver(from, to, answered) => self.deliver(from, to, answered, without),
            Step::Join(mdt, other) => self.join(mdt, other, without),
            Step::Die(mdt) => self.fail(mdt, without),
            Step::LosePower(mdt) => {
                let lost = self.clients.iter_mut().filter(|client| client.outcome.is_some() && client.done_at == mdt);
                lost.filter(|client| !client.durable).for_each(|client| client.excused = true);
                // What is open there was told to a start whose changes are lost.
                let open = self.clients.iter_mut().filter(|client| client.opened && client.outcome.is_none());
                open.filter(|client| client.known.map(mdt_of) == Some(mdt)).for_each(|client| client.excused = true);
                self.tables[mdt] = self.durable[mdt].clone();
                // An era has begun: sizes are doubted.
                self.tables[mdt].inode.iter_mut().for_each(|inode| inode.size = None);
                self.fail(mdt, without);
            }
        }
    }

    fn is_fault(step: Step) -> bool {
        matches!(step, Step::Die(_) | Step::LosePower(_))
    }

    fn check(&self) -> Result<(), String> {
        if self.clients.iter().any(|client| client.outcome == Some(Outcome::Failed) && !client.excused) {
            return Err("a client was told of the move".to_owned());
        }
        let removes = self.clients.iter().any(|client| client.request == Request::Unlink);
        if !removes && self.tables.iter().all(|tables| tables.inode.is_none()) {
            return Err("the objects belong to no inode".to_owned());
        }
        let is_open = self.clients.iter().any(|client| client.opened && client.outcome.is_none());
        let home = &self.tables[self.home];
        for (name, number) in home.entries.iter().filter(|_| !home.directory_is_locked()) {
            let there = &self.tables[mdt_of(*number)];
            if there.inode_is_locked() {
                continue;
            }
            let Some(inode) = there.inode.as_ref().filter(|inode| inode.number == *number) else {
                return Err(format!("{name} leads to nothing"));
            };
            if self.done(Request::Set).is_some_and(|client| client.outcome == Some(Outcome::Done)) && inode.value == 0 {
                return Err("an attribute is lost".to_owned());
            }
            if inode.size.is_some_and(|size| size != self.objects) && !is_open {
                return Err("a wrong size is known".to_owned());
            }
        }
        Ok(())
    }

    fn check_rest(&self) -> Result<(), String> {
        let is_over = |tables: &Tables| tables.promises.is_empty() && tables.log.is_empty();
        if !self.tables.iter().all(is_over) || self.clients.iter().any(|client| client.outcome.is_none()) {
            return Err("something waits for ever".to_owned());
        }
        let inodes: Vec<&Inode> = self.tables.iter().filter_map(|tables| tables.inode.as_ref()).collect();
        let entries = &self.tables[self.home].entries;
        match inodes[..] {
            [] if entries.is_empty() && self.clients.iter().any(|client| client.request == Request::Unlink) => {}
            [inode] => {
                let names: Names = entries.keys().copied().collect();
                if names != inode.names || entries.values().any(|number| *number != inode.number) {
                    return Err(format!("{inode:?} has the names {entries:?}"));
                }
                let is_moved = inode.number > 0;
                let moved = self.done(Request::Move).map(|client| client.outcome == Some(Outcome::Done));
                if moved.is_some_and(|moved| moved != is_moved) {
                    return Err(format!("it was moved: {moved:?}, and {is_moved}"));
                }
            }
            _ => return Err(format!("{inodes:?}, {entries:?}")),
        }
        for (request, names) in [(Request::Unlink, ""), (Request::Rename, "b"), (Request::Link, "ab")] {
            if let Some(Client { outcome: Some(Outcome::Done), .. }) = self.done(request)
                && !entries.keys().copied().eq(names.chars())
            {
                return Err(format!("after {request:?}: {entries:?}"));
            }
        }
        Ok(())
    }
}

impl World {
    fn new(home: Mdt, requests: &[Request], faults: u8) -> Self {
        let mut tables = [Tables::default(), Tables::default(), Tables::default()];
        tables[OLD].inode = Some(Inode { number: 0, names: Names::from(['a']), value: 0, size: Some(1) });
        tables[home].entries.insert('a', 0);
        let client = |request: &Request| Client {
            request: *request,
            known: None,
            opened: false,
            written: false,
            given: None,
            led: false,
            outcome: None,
            done_at: OLD,
            durable: false,
            excused: false,
        };
        Self {
            home,
            durable: tables.clone(),
            tables,
            starts: [0; 3],
            joined: [[true; 3]; 3],
            last_number: 0,
            objects: 1,
            clients: requests.iter().map(client).collect(),
            faults,
        }
    }

    fn fail(&mut self, mdt: Mdt, without: Without) {
        self.faults -= 1;
        self.starts[mdt] += 1;
        self.joined[mdt] = [false; 3];
        let coordinated: Vec<usize> = (0..self.clients.len()).filter(|index| self.coordinator(*index) == mdt).collect();
        for index in coordinated {
            (self.clients[index].given, self.clients[index].led) = (None, false);
        }
        if without == Without::Lasting {
            self.tables[mdt].promises.clear();
        }
    }

    fn flush(&mut self, mdt: Mdt) {
        self.durable[mdt] = self.tables[mdt].clone();
        let done = self.clients.iter_mut().filter(|client| client.outcome.is_some() && client.done_at == mdt);
        done.for_each(|client| client.durable = true);
    }

    fn deliver(&mut self, from: Mdt, to: Mdt, answered: bool, without: Without) {
        let Some(at) = self.tables[from].log.iter().position(|(mdt, ..)| *mdt == to) else { return };
        let entry = self.tables[from].log[at].clone();
        if !self.durable[from].log.contains(&entry) && without != Without::Durable {
            return;
        }
        let (_, sequence, client, decision) = entry;
        if sequence > self.tables[to].applied[from] {
            self.tables[to].carry_out(decision);
            self.tables[to].applied[from] = sequence;
            self.tables[to].promises.retain(|promise| promise.coordinator != from || promise.client != client);
            self.flush(to);
        }
        if answered {
            self.tables[from].log.remove(at);
        }
    }

    /// A start is told to another MDT once all that former ones have decided was carried out there.
    fn join(&mut self, mdt: Mdt, other: Mdt, without: Without) {
        if self.joined[mdt][other] || self.tables[mdt].log.iter().any(|(to, ..)| *to == other) {
            return;
        }
        if self.tables[other].log.iter().any(|(to, ..)| *to == mdt) {
            // Its answer names what it has decided: that comes first.
            return;
        }
        self.joined[mdt][other] = true;
        self.end_promises(mdt, other, without);
        let (start, tables) = (self.starts[mdt], &mut self.tables[other]);
        let is_former = |promise: &Promise| promise.coordinator == mdt && promise.start < start;
        if without != Without::Doubt && tables.promises.iter().any(|promise| is_former(promise) && promise.gives) {
            tables.inode.iter_mut().for_each(|inode| inode.size = None);
        }
        tables.promises.retain(|promise| !is_former(promise));
        self.flush(other);
    }

    /// What an MDT that starts has promised to another one, and that does not run there any more.
    fn end_promises(&mut self, mdt: Mdt, other: Mdt, without: Without) {
        let (start, clients) = (self.starts[other], &self.clients);
        let runs = |promise: &Promise| {
            let client = &clients[promise.client];
            let is_prepared = if promise.inode { client.given.is_some() } else { client.led };
            promise.start == start && client.outcome.is_none() && is_prepared
        };
        let tables = &mut self.tables[mdt];
        let has_ended = |promise: &Promise| promise.coordinator == other && !runs(promise);
        if without != Without::Doubt && tables.promises.iter().any(|promise| has_ended(promise) && promise.gives) {
            tables.inode.iter_mut().for_each(|inode| inode.size = None);
        }
        tables.promises.retain(|promise| !has_ended(promise));
    }

    fn coordinator(&self, index: usize) -> Mdt {
        if self.clients[index].request == Request::Move { NEW } else { self.home }
    }

    /// A request that comes to what another one has locked gives up what was prepared for it.
    fn give_up(&mut self, index: usize) {
        let (coordinator, client) = (self.coordinator(index), &mut self.clients[index]);
        if client.outcome.is_some() || client.given.is_none() {
            return;
        }
        let waits = match client.request {
            Request::Move => self.home == THIRD && !client.led && self.tables[THIRD].directory_is_locked(),
            _ => self.tables[self.home].directory_is_locked(),
        };
        if waits {
            (client.given, client.led) = (None, false);
            for tables in &mut self.tables {
                tables.promises.retain(|promise| promise.coordinator != coordinator || promise.client != index);
            }
        }
    }

    fn prepare(&mut self, index: usize, mdt: Mdt, (inode, directory, gives): (bool, bool, bool)) {
        let coordinator = self.coordinator(index);
        let start = self.starts[coordinator];
        let promise = Promise { client: index, coordinator, start, inode, directory, gives };
        self.tables[mdt].promises.push(promise);
        self.flush(mdt);
    }

    /// The next thing that becomes of a request; nothing, if it waits.
    fn go_on(&mut self, index: usize, without: Without) {
        match self.clients[index].request {
            Request::Move => self.move_inode(index, without),
            Request::Set | Request::Write => self.use_inode(index, without),
            Request::Unlink | Request::Rename | Request::Link => self.change_names(index),
        }
    }

    fn end(&mut self, index: usize, outcome: Outcome, mdt: Mdt) {
        let client = &mut self.clients[index];
        (client.outcome, client.done_at, client.given) = (Some(outcome), mdt, None);
    }

    fn move_inode(&mut self, index: usize, without: Without) {
        let Some(given) = self.clients[index].given.clone() else {
            let is_open = self.clients.iter().any(|client| client.opened && client.outcome.is_none());
            let old = &self.tables[OLD];
            // For what clients have cached of the name.
            let has_name = self.home == OLD;
            if old.inode_is_locked() || has_name && old.directory_is_locked() {
                return;
            }
            let Some(inode) = old.inode.clone() else { return self.end(index, Outcome::NotFound, OLD) };
            if is_open && without != Without::Open {
                return self.end(index, Outcome::Busy, OLD);
            }
            self.prepare(index, OLD, (true, has_name, true));
            self.clients[index].given = Some(inode);
            return;
        };
        if self.home == THIRD && !self.clients[index].led && without != Without::Directory {
            if !self.tables[THIRD].directory_is_locked() {
                self.prepare(index, THIRD, (false, true, false));
                self.clients[index].led = true;
            }
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        // An inode whose objects may have changed since is asked for its size.
        let made = Inode { number, ..given };
        let new = &mut self.tables[NEW];
        match without {
            // It is told to the new MDT as to any other, and is nowhere until then.
            Without::Kept => {}
            _ => new.inode = Some(made),
        }
        new.lead(number);
        if self.home == THIRD {
            new.decide(THIRD, index, Decision::Lead(number));
        }
        new.decide(OLD, index, Decision::Give(number));
        self.end(index, Outcome::Done, NEW);
    }

    fn use_inode(&mut self, index: usize, without: Without) {
        let Some(known) = self.clients[index].known else {
            let home = &self.tables[self.home];
            if !home.directory_is_locked() {
                match home.entries.values().next().copied() {
                    Some(number) => self.clients[index].known = Some(number),
                    None => self.end(index, Outcome::NotFound, self.home),
                }
            }
            return;
        };
        let mdt = mdt_of(known);
        let tables = &mut self.tables[mdt];
        let client = &mut self.clients[index];
        let ends = client.written;
        // What ends state does not wait.
        if tables.inode_is_locked() && !ends {
            return;
        }
        let Some(inode) = tables.inode.as_mut().filter(|inode| inode.number == known) else {
            if client.opened || without == Without::Again {
                return self.end(index, Outcome::Failed, mdt);
            }
            client.known = None;
            return;
        };
        match (client.request, client.opened, client.written) {
            (Request::Set, ..) => {
                inode.value = 1;
                self.end(index, Outcome::Done, mdt);
            }
            (_, false, _) => (client.opened, inode.size) = (true, None),
            (_, true, false) => (client.written, self.objects) = (true, 2),
            (_, true, true) => {
                inode.size = Some(self.objects);
                self.end(index, Outcome::Done, mdt);
            }
        }
    }

    fn names_after(request: Request, mut names: Names) -> Names {
        match request {
            Request::Unlink => names.clear(),
            Request::Rename => names = Names::from(['b']),
            _ => drop(names.insert('b')),
        }
        names
    }

    fn change_names(&mut self, index: usize) {
        let (home, request) = (self.home, self.clients[index].request);
        if self.tables[home].directory_is_locked() {
            return;
        }
        let Some(number) = self.tables[home].entries.get(&'a').copied() else {
            return self.end(index, Outcome::NotFound, home);
        };
        let at = mdt_of(number);
        if self.clients[index].given.is_none() {
            let there = &self.tables[at];
            let found = there.inode.clone().filter(|inode| inode.number == number);
            // `Stale`: the name has changed meanwhile, and the request begins again.
            let (false, Some(inode)) = (there.inode_is_locked(), found) else { return };
            if at != home {
                self.prepare(index, at, (true, false, false));
                self.clients[index].given = Some(inode);
                return;
            }
            self.clients[index].given = Some(inode);
        }
        let Some(inode) = self.clients[index].given.clone() else { return };
        if inode.number != number {
            return;
        }
        let names = Self::names_after(request, inode.names);
        let tables = &mut self.tables[home];
        tables.entries = names.iter().map(|name| (*name, number)).collect();
        match at == home {
            true => tables.carry_out(Decision::Names(names)),
            false => tables.decide(at, index, Decision::Names(names)),
        }
        self.end(index, Outcome::Done, home);
    }

    fn done(&self, request: Request) -> Option<&Client> {
        self.clients.iter().find(|client| client.request == request && client.outcome.is_some() && !client.excused)
    }
}

fn explore(home: Mdt, requests: &[Request], faults: u8, without: Without) -> Result<usize, String> {
    let explored = explorer::explore(World::new(home, requests, faults), without, STATES_MAX);
    explored.map_err(|reason| format!("{home}, {requests:?}: {reason}"))
}

const OTHERS: [Request; 5] = [Request::Set, Request::Write, Request::Unlink, Request::Rename, Request::Link];

#[test]
fn an_inode_moves_as_a_whole_in_any_order_of_steps() {
    let mut states = 0;
    for home in [OLD, NEW, THIRD] {
        states += explore(home, &[Request::Move], 2, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
        for (index, other) in OTHERS.into_iter().enumerate() {
            states +=
                explore(home, &[Request::Move, other], 1, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
            for third in OTHERS.into_iter().skip(index + 1).filter(|_| index < 2) {
                if (other, third) == (Request::Write, Request::Unlink) {
                    // What is open without a name stays where it is, which is not modelled.
                    continue;
                }
                let requests = [Request::Move, other, third];
                states += explore(home, &requests, 0, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
            }
        }
    }
    assert!(states > 10_000, "{states} states");
    println!("{states} states");
}

#[test]
fn each_rule_is_needed() {
    for (without, home, request, faults) in [
        (Without::Durable, NEW, Request::Set, 1),
        (Without::Lasting, NEW, Request::Set, 1),
        (Without::Directory, THIRD, Request::Set, 0),
        (Without::Open, NEW, Request::Write, 0),
        (Without::Doubt, NEW, Request::Write, 1),
        (Without::Again, NEW, Request::Set, 0),
        (Without::Kept, OLD, Request::Set, 0),
    ] {
        assert!(explore(home, &[Request::Move, request], faults, without).is_err(), "without {without:?}");
        assert!(explore(home, &[Request::Move, request], faults, Without::Nothing).is_ok(), "{request:?}");
    }
}
