//! Model of decision 0062: a directory on MDT 0 gets a shard there and one on MDT 1, while two
//! clients use its names, processes die, and hosts lose power. Every order of steps is visited.
//!
//! Names are numbers; even ones belong to the shard on MDT 0. One name moves with each batch.

use std::collections::{BTreeSet, HashSet};

type Name = u8;
type Names = BTreeSet<Name>;

/// Names of the directory at first. Some are removed.
const NAMES: [Name; 4] = [0, 1, 2, 3];
const STATES_MAX: usize = 3_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Map {
    None,
    Moving,
    Whole,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shard {
    number: u8,
    names: Names,
    open: bool,
}

impl Shard {
    fn new(number: u8, open: bool) -> Self {
        Self { number, names: Names::new(), open }
    }
}

/// What MDT 1 is to carry out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Decided {
    Make(u8),
    Add(Name),
    Open,
}

/// Tables of MDT 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Home {
    names: Names,
    map: Map,
    shard: Option<Shard>,
    log: Vec<(u8, Decided)>,
    sequence: u8,
}

impl Home {
    fn decide(&mut self, decided: Decided) {
        self.sequence += 1;
        self.log.push((self.sequence, decided));
    }
}

/// Tables of MDT 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Away {
    shard: Option<Shard>,
    applied: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Create(Name),
    Remove(Name),
    Lookup(Name),
    List,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    request: Request,
    /// The number of the shards, once it knows that there are some.
    map: Option<u8>,
    /// Maps that were not true any more.
    forgotten: u8,
    /// What it has listed, and up to which name when it learned of the shards.
    shown: Vec<Name>,
    split_at: Option<Name>,
    /// Where its request was executed.
    done: Option<Site>,
    durable: bool,
    /// A power loss may have taken what it did.
    excused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Site {
    Home,
    Away,
    /// A listing ends with an error.
    Failed,
}

/// What the protocol would be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Shards are closed until they have all names.
    Closed,
    /// Decisions leave when they are durable.
    Durable,
    /// A shard that may come is waited for.
    Waiting,
    /// A listing skips what it has shown before the split.
    Skipping,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    home: Home,
    home_durable: Home,
    away: Away,
    away_durable: Away,
    /// MDT 1 has given this number away, and MDT 0 has it; both forget in a restart.
    held: Option<u8>,
    prepared: Option<u8>,
    /// Numbers are not used twice, whatever is lost.
    last_number: u8,
    /// MDT 1 has started again, and has not heard of MDT 0.
    unheard: bool,
    clients: Vec<Client>,
    faults: u8,
    losses: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Prepare,
    Begin,
    Move,
    Open,
    Flush(Site),
    /// The answer to it arrives, or not.
    Deliver(bool),
    Join,
    Client(usize),
    Die(Site),
    LosePower(Site),
}

impl World {
    fn new(requests: &[Request], faults: u8) -> Self {
        let names = NAMES.into_iter().collect();
        let home = Home { names, map: Map::None, shard: None, log: Vec::new(), sequence: 0 };
        let away = Away { shard: None, applied: 0 };
        let client = |request: &Request| Client {
            request: *request,
            map: None,
            forgotten: 0,
            shown: Vec::new(),
            split_at: None,
            done: None,
            durable: false,
            excused: false,
        };
        Self {
            home_durable: home.clone(),
            home,
            away_durable: away.clone(),
            away,
            held: None,
            prepared: None,
            last_number: 0,
            unheard: false,
            clients: requests.iter().map(client).collect(),
            faults,
            losses: 0,
        }
    }

    fn steps(&self, without: Without) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |possible: bool, step: Step| steps.extend(possible.then_some(step));
        let is_moving = self.home.map == Map::Moving;
        add(self.home.map == Map::None && self.prepared.is_none(), Step::Prepare);
        add(self.home.map == Map::None && self.prepared.is_some(), Step::Begin);
        add(is_moving && !self.home.names.is_empty(), Step::Move);
        add(is_moving && self.home.names.is_empty(), Step::Open);
        add(self.home != self.home_durable, Step::Flush(Site::Home));
        add(self.away != self.away_durable, Step::Flush(Site::Away));
        let first = self.home.log.first();
        let leaves =
            first.is_some_and(|(sequence, _)| *sequence <= self.home_durable.sequence || without == Without::Durable);
        for answered in [true, false] {
            // A second copy of what was not answered changes nothing.
            let is_new = first.is_some_and(|(sequence, _)| *sequence > self.away.applied);
            add(leaves && (answered || is_new), Step::Deliver(answered));
        }
        add(self.unheard && self.home.log.is_empty(), Step::Join);
        for (index, client) in self.clients.iter().enumerate() {
            add(client.done.is_none() && self.after(Step::Client(index), without) != *self, Step::Client(index));
        }
        for site in [Site::Home, Site::Away] {
            add(self.faults > 0, Step::Die(site));
            add(self.faults > 0, Step::LosePower(site));
        }
        steps
    }

    fn after(&self, step: Step, without: Without) -> Self {
        let mut world = self.clone();
        world.take(step, without);
        world
    }

    fn take(&mut self, step: Step, without: Without) {
        match step {
            Step::Prepare => {
                self.last_number += 1;
                (self.held, self.prepared) = (Some(self.last_number), Some(self.last_number));
            }
            Step::Begin => {
                let number = self.prepared.take().expect("it is prepared");
                // One of a start of MDT 1 that has ended is not used.
                if self.held == Some(number) {
                    self.home.map = Map::Moving;
                    self.home.shard = Some(Shard::new(number, without == Without::Closed));
                    self.home.decide(Decided::Make(number));
                }
            }
            Step::Move => {
                let name = self.home.names.pop_first().expect("there is one");
                match &mut self.home.shard {
                    Some(shard) if name.is_multiple_of(2) => drop(shard.names.insert(name)),
                    _ => self.home.decide(Decided::Add(name)),
                }
            }
            Step::Open => {
                self.home.map = Map::Whole;
                self.home.shard.iter_mut().for_each(|shard| shard.open = true);
                self.home.decide(Decided::Open);
            }
            Step::Flush(site) => self.flush(site),
            Step::Deliver(answered) => self.deliver(answered, without),
            Step::Join => self.unheard = false,
            Step::Client(index) => {
                let mut client = self.clients[index].clone();
                self.ask(&mut client, without);
                self.clients[index] = client;
            }
            Step::Die(site) => self.fail(site),
            Step::LosePower(site) => {
                let lost = self.clients.iter_mut().filter(|client| client.done == Some(site) && !client.durable);
                lost.for_each(|client| client.excused = true);
                match site {
                    Site::Home => self.home = self.home_durable.clone(),
                    _ => self.away = self.away_durable.clone(),
                }
                self.losses += 1;
                self.fail(site);
            }
        }
    }

    fn flush(&mut self, site: Site) {
        match site {
            Site::Home => self.home_durable = self.home.clone(),
            _ => self.away_durable = self.away.clone(),
        }
        let done = self.clients.iter_mut().filter(|client| client.done == Some(site));
        done.for_each(|client| client.durable = true);
    }

    /// What a process had in memory is gone. MDT 1 gives up what a former start of MDT 0 had
    /// prepared and not decided.
    fn fail(&mut self, site: Site) {
        self.faults -= 1;
        let is_decided = |number| self.home.log.iter().any(|(_, decided)| *decided == Decided::Make(number));
        match site {
            Site::Home => {
                self.prepared = None;
                self.held = self.held.filter(|number| is_decided(*number));
            }
            _ => (self.held, self.unheard) = (None, true),
        }
    }

    fn deliver(&mut self, answered: bool, without: Without) {
        let (sequence, decided) = self.home.log[0].clone();
        if sequence > self.away.applied {
            match decided {
                Decided::Make(number) => {
                    self.away.shard = Some(Shard::new(number, without == Without::Closed));
                    self.held = None;
                }
                Decided::Add(name) => drop(self.away.shard.as_mut().map(|shard| shard.names.insert(name))),
                Decided::Open => self.away.shard.iter_mut().for_each(|shard| shard.open = true),
            }
            self.away.applied = sequence;
            self.flush(Site::Away);
        }
        if answered {
            self.home.log.remove(0);
        }
    }

    /// A client sends its request, or the next one of a listing, and has the answer; or nothing
    /// changes: it waits.
    fn ask(&mut self, client: &mut Client, without: Without) {
        let Some(number) = client.map else {
            if self.home.map != Map::None {
                client.map = self.home.shard.as_ref().map(|shard| shard.number);
                client.split_at = client.shown.last().copied();
                return;
            }
            return answer(&mut self.home.names, client, Site::Home);
        };
        if client.request == Request::List {
            return self.list(client, number, without != Without::Skipping);
        }
        let (Request::Create(name) | Request::Remove(name) | Request::Lookup(name)) = client.request else { return };
        let site = if name.is_multiple_of(2) { Site::Home } else { Site::Away };
        if let Some(shard) = self.shard(client, number, site, without) {
            answer(&mut shard.names, client, site);
        }
    }

    /// The shard, if it is open. If it does not exist, the map is forgotten.
    fn shard(&mut self, client: &mut Client, number: u8, site: Site, without: Without) -> Option<&mut Shard> {
        let may_come = site == Site::Away && (self.unheard || self.held == Some(number));
        let shard = match site {
            Site::Home => &mut self.home.shard,
            _ => &mut self.away.shard,
        };
        match shard {
            Some(shard) if shard.number == number => Some(shard).filter(|shard| shard.open),
            _ if may_come && without != Without::Waiting => None,
            _ => {
                client.map = None;
                client.forgotten += 1;
                None
            }
        }
    }

    fn list(&mut self, client: &mut Client, number: u8, skips: bool) {
        let forgotten = client.forgotten;
        let split_at = client.split_at.filter(|_| skips);
        let is_of = |site: Site, name: &Name| name.is_multiple_of(2) == (site == Site::Home);
        // Since the shards are listed one after the other, the last of the second one is the end.
        for site in [Site::Home, Site::Away] {
            let in_shards = client.shown.iter().skip(plain_count(client));
            let last = in_shards.copied().filter(|name| is_of(site, name)).max();
            let Some(shard) = self.shard(client, number, site, Without::Nothing) else {
                if client.forgotten > forgotten {
                    client.done = Some(Site::Failed);
                }
                return;
            };
            let next =
                shard.names.iter().copied().find(|name| {
                    last.is_none_or(|last| *name > last) && split_at.is_none_or(|split_at| *name > split_at)
                });
            let Some(next) = next else { continue };
            client.shown.push(next);
            return;
        }
        client.done = Some(Site::Away);
    }

    fn count(&self, name: Name) -> usize {
        let of = |shard: &Option<Shard>| shard.as_ref().is_some_and(|shard| shard.names.contains(&name));
        let is_on_its_way =
            |(sequence, decided): &&(u8, Decided)| *sequence > self.away.applied && *decided == Decided::Add(name);
        usize::from(self.home.names.contains(&name))
            + usize::from(of(&self.home.shard))
            + usize::from(of(&self.away.shard))
            + self.home.log.iter().filter(is_on_its_way).count()
    }

    fn check(&self) -> Result<(), String> {
        for name in 0..8 {
            let of_name =
                |client: &&Client| matches!(client.request, Request::Create(of) | Request::Remove(of) if of == name);
            let changed = self.clients.iter().find(of_name);
            let count = self.count(name);
            let expected = match changed {
                None => usize::from(NAMES.contains(&name)),
                Some(client) if client.done.is_some() && !client.excused => {
                    usize::from(matches!(client.request, Request::Create(_)))
                }
                Some(_) if count <= 1 => continue,
                Some(_) => 1,
            };
            if count != expected {
                return Err(format!("name {name} is there {count} times, not {expected}"));
            }
        }
        for client in &self.clients {
            if client.forgotten > self.losses {
                return Err("a map was wrong without a power loss".to_owned());
            }
            if let (Request::Lookup(name), Some(_)) = (client.request, client.done)
                && client.shown != [name]
            {
                return Err(format!("name {name} was not found"));
            }
            if let (Request::List, Some(Site::Home | Site::Away)) = (client.request, client.done) {
                self.check_listing(&client.shown)?;
            }
        }
        Ok(())
    }

    fn check_listing(&self, shown: &[Name]) -> Result<(), String> {
        for name in NAMES {
            let is_removed = self.clients.iter().any(|client| client.request == Request::Remove(name));
            let times = shown.iter().filter(|of| **of == name).count();
            if times > 1 || times == 0 && !is_removed {
                return Err(format!("name {name} was listed {times} times: {shown:?}"));
            }
        }
        Ok(())
    }

    /// When nothing more happens.
    fn check_rest(&self) -> Result<(), String> {
        let is_whole = self.home.map == Map::Whole
            && self.home.log.is_empty()
            && self.away.shard.as_ref().is_some_and(|shard| shard.open);
        match is_whole && self.clients.iter().all(|client| client.done.is_some()) {
            true => Ok(()),
            false => Err("something waits for ever".to_owned()),
        }
    }
}

/// How many of the names that were shown were shown before there were shards.
fn plain_count(client: &Client) -> usize {
    let is_last = |name: &Name| client.split_at == Some(*name);
    client.shown.iter().position(is_last).map_or(0, |position| position + 1)
}

/// A request is executed where the names are.
fn answer(names: &mut Names, client: &mut Client, site: Site) {
    match client.request {
        Request::Create(name) => drop(names.insert(name)),
        Request::Remove(name) => drop(names.remove(&name)),
        Request::Lookup(name) => client.shown.extend(names.contains(&name).then_some(name)),
        Request::List => {
            let last = client.shown.last().copied();
            if let Some(next) = names.iter().find(|name| last.is_none_or(|last| **name > last)) {
                return client.shown.push(*next);
            }
        }
    }
    client.done = Some(site);
}

fn explore(requests: &[Request], faults: u8, without: Without) -> Result<usize, String> {
    let first = World::new(requests, faults);
    let (mut seen, mut next) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(world) = next.pop() {
        world.check().map_err(|reason| format!("{requests:?}: {reason}: {world:#?}"))?;
        let steps = world.steps(without);
        let goes_on = steps.iter().any(|step| !matches!(step, Step::Die(_) | Step::LosePower(_)));
        if !goes_on {
            world.check_rest().map_err(|reason| format!("{requests:?}: {reason}: {world:#?}"))?;
        }
        for step in steps {
            let after = world.after(step, without);
            if !seen.contains(&after) {
                seen.insert(after.clone());
                next.push(after);
            }
        }
        assert!(seen.len() <= STATES_MAX, "too many states: {requests:?}");
    }
    Ok(seen.len())
}

const REQUESTS: [Request; 7] = [
    Request::Create(4),
    Request::Create(5),
    Request::Remove(2),
    Request::Remove(1),
    Request::Lookup(0),
    Request::Lookup(3),
    Request::List,
];

#[test]
fn no_name_is_lost_or_doubled_in_any_order_of_steps() {
    let (mut cases, mut states) = (0, 0);
    for (index, first) in REQUESTS.into_iter().enumerate() {
        for second in REQUESTS.into_iter().skip(index + 1) {
            states += explore(&[first, second], 1, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
            cases += 1;
        }
        states += explore(&[first], 2, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
    }
    assert_eq!(cases, 21);
    assert!(states > 10_000, "{states} states");
    println!("{states} states");
}

#[test]
fn each_rule_is_needed() {
    for (without, request, faults) in [
        (Without::Closed, Request::Lookup(0), 0),
        (Without::Closed, Request::Lookup(3), 0),
        (Without::Durable, Request::Lookup(1), 1),
        (Without::Waiting, Request::Lookup(3), 0),
        (Without::Skipping, Request::List, 0),
    ] {
        assert!(explore(&[request], faults, without).is_err(), "without {without:?}");
        assert!(explore(&[request], faults, Without::Nothing).is_ok(), "{request:?}");
    }
}
