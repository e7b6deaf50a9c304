//! Model of decision 0065: a directory on MDT 0 has a shard there and one on MDT 1. Their names
//! come back to the directory, and move on to other shards if the directory is to get these, while
//! two clients use the names, processes die, and hosts lose power. Every order of steps is visited.
//!
//! Each shard has a place of its own: names before it have gone back.

use std::collections::BTreeMap;

use super::common::{
    explorer::{self, is_long},
    names_model::{ALL, NAMES, Name, Names, REQUESTS, Request, check_counts, check_shown, place_after, site_of},
};

/// Number of the shards at first; others have higher ones.
const OLD: u8 = 1;
const STATES_MAX: usize = 4_000_000;
/// A listing that has not ended by then does not end.
const PHASES_MAX: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Map {
    None,
    Whole(u8),
    /// Names come back from these shards.
    Merging(u8),
    /// Names move to these shards.
    Splitting(u8),
}

impl Map {
    fn number(self) -> Option<u8> {
        match self {
            Map::None => None,
            Map::Whole(number) | Map::Merging(number) | Map::Splitting(number) => Some(number),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shard {
    names: Names,
    /// Those before it have come.
    come: Name,
    /// It gives its names back, and those before this place have gone.
    gone: Option<Name>,
}

impl Shard {
    fn new(names: Names, come: Name) -> Self {
        Self { names, come, gone: None }
    }

    /// The first name goes; `None`: there is none. And the place after it.
    fn give(&mut self) -> (Option<Name>, Name) {
        let name = self.names.pop_first();
        let place = place_after(name, &self.names);
        self.gone = Some(place);
        (name, place)
    }
}

/// What the other MDT is to carry out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Decided {
    Make(u8),
    /// A name, if the batch has one for this shard; those before this place are there then.
    Add(u8, Option<Name>, Name),
    /// The shard is to give its names back.
    Give(u8),
    /// A name that comes back, if there is one; those before this place are there then.
    Return(Option<Name>, Name),
    /// All names are back, from all shards.
    Drop(u8),
}

/// Tables of an MDT. Only MDT 0 has a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Tables {
    map: Map,
    names: Names,
    /// Names before it have moved to the shards.
    place: Name,
    /// Names before it have come back, from each shard.
    back: [Name; 2],
    shards: BTreeMap<u8, Shard>,
    log: Vec<(u8, Decided)>,
    sequence: u8,
    applied: u8,
}

impl Tables {
    fn decide(&mut self, decided: Decided) {
        self.sequence += 1;
        self.log.push((self.sequence, decided));
    }
}

/// What a listing reads: the directory itself (`None`), or its shards with this number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Phase {
    of: Option<u8>,
    /// What it has seen of the directory, or of each shard: from a name on, up to another one.
    seen: [Vec<(Name, Name)>; 2],
    /// The last places up to which names were gone from there.
    told: [Name; 2],
    /// The shard that it reads.
    at: usize,
    /// Shards have to have the names before it.
    needed: Name,
}

impl Phase {
    fn has_seen(&self, name: Name) -> bool {
        let part = if self.of.is_some() { site_of(name) } else { 0 };
        self.seen[part].iter().any(|(from, to)| (*from..*to).contains(&name))
    }

    fn cursor(&self) -> Name {
        self.seen[self.at].last().map_or(0, |(_, to)| *to)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    request: Request,
    /// The number of the shards that it knows.
    map: Option<u8>,
    shown: Vec<Name>,
    phases: Vec<Phase>,
    /// Where its request was executed.
    done: Option<usize>,
    /// It was told that something is gone which is there.
    failed: bool,
    durable: bool,
    /// A power loss may have taken what it did.
    excused: bool,
}

/// What the protocol would be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The directory has the names before the place of their shard, and no others.
    Back,
    /// A shard has only names that are not gone.
    Gone,
    /// Decisions leave when they are durable.
    Durable,
    /// The map stays until all names are back from all shards.
    AllBack,
    /// Shards stay until the map has ended.
    Kept,
    /// Shards are listed before the directory to which their names go.
    Order,
    /// A listing skips what it has shown.
    Skipping,
    /// It waits until the directory has all that the shards did not show.
    Needed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    mdts: [Tables; 2],
    durable: [Tables; 2],
    /// The directory gets other shards.
    gets_others: bool,
    /// MDT 1 has given this number away, and MDT 0 has it; both forget in a restart.
    held: Option<u8>,
    prepared: Option<u8>,
    /// Numbers are not used twice, whatever is lost.
    last_number: u8,
    /// MDT 1 has started again, and has not heard of MDT 0.
    unheard: bool,
    clients: Vec<Client>,
    faults: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    /// A shard gives a name back.
    Give(usize),
    Prepare,
    Finish,
    /// A name of the directory moves to the new shards.
    Move,
    Flush(usize),
    /// What this MDT has decided arrives at the other one; and the answer to it, or not.
    Deliver(usize, bool),
    Join,
    /// It asks the directory, or the shard.
    Client(usize, bool),
    Die(usize),
    LosePower(usize),
}

fn of_site(site: usize) -> Names {
    NAMES.into_iter().filter(|name| site_of(*name) == site).collect()
}

impl explorer::World for World {
    type Step = Step;
    type Without = Without;

    fn steps(&self, without: Without) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |possible: bool, step: Step| steps.extend(possible.then_some(step));
        let home = &self.mdts[0];
        add(home.map == Map::Whole(OLD), Step::Begin);
        for site in 0..2 {
            let gives = |shard: &Shard| shard.gone.is_some_and(|place| place < ALL);
            add(self.mdts[site].shards.get(&OLD).is_some_and(gives), Step::Give(site));
        }
        let is_merging = home.map == Map::Merging(OLD);
        let waits_for_all = without != Without::AllBack;
        let is_back = home.back[0] == ALL && (home.back[1] == ALL || !waits_for_all);
        add(self.gets_others && is_merging && self.prepared.is_none(), Step::Prepare);
        add(is_merging && is_back && (self.prepared.is_some() || !self.gets_others), Step::Finish);
        add(matches!(home.map, Map::Splitting(_)), Step::Move);
        for site in 0..2 {
            add(self.mdts[site] != self.durable[site], Step::Flush(site));
            let first = self.mdts[site].log.first();
            let is_durable = |sequence: u8| sequence <= self.durable[site].sequence || without == Without::Durable;
            let leaves = first.is_some_and(|(sequence, _)| is_durable(*sequence));
            for answered in [true, false] {
                // A second copy of what was not answered changes nothing.
                let is_new = first.is_some_and(|(sequence, _)| *sequence > self.mdts[1 - site].applied);
                add(leaves && (answered || is_new), Step::Deliver(site, answered));
            }
        }
        add(self.unheard && home.log.is_empty(), Step::Join);
        for (index, client) in self.clients.iter().enumerate() {
            for is_home in [true, false] {
                let step = Step::Client(index, is_home);
                add(client.done.is_none() && !client.failed, step);
            }
        }
        for site in 0..2 {
            add(self.faults > 0, Step::Die(site));
            add(self.faults > 0, Step::LosePower(site));
        }
        steps
    }

    fn take(&mut self, step: Step, without: Without) {
        match step {
            Step::Begin => {
                let home = &mut self.mdts[0];
                (home.map, home.back) = (Map::Merging(OLD), [0; 2]);
                home.shards.get_mut(&OLD).expect("the map has it").gone = Some(0);
                home.decide(Decided::Give(OLD));
            }
            Step::Give(site) => self.give(site, without),
            Step::Prepare => {
                self.last_number += 1;
                (self.held, self.prepared) = (Some(self.last_number), Some(self.last_number));
            }
            Step::Finish => self.finish(),
            Step::Move => self.move_name(),
            Step::Flush(site) => self.flush(site),
            Step::Deliver(from, answered) => self.deliver(from, answered),
            Step::Join => self.unheard = false,
            Step::Client(index, is_home) => {
                let mut client = self.clients[index].clone();
                match (client.request, is_home) {
                    (Request::List, true) => self.list(&mut client, without),
                    (Request::List, false) => {}
                    (_, true) => self.ask_directory(&mut client, without),
                    (_, false) => self.ask_shard(&mut client, without),
                }
                self.clients[index] = client;
            }
            Step::Die(site) => self.fail(site),
            Step::LosePower(site) => {
                let lost = self.clients.iter_mut().filter(|client| client.done == Some(site) && !client.durable);
                lost.for_each(|client| client.excused = true);
                self.mdts[site] = self.durable[site].clone();
                self.fail(site);
            }
        }
    }

    fn is_fault(step: Step) -> bool {
        matches!(step, Step::Die(_) | Step::LosePower(_))
    }

    fn check(&self) -> Result<(), String> {
        let holds = |client: &Client| (client.request, client.done.is_some() && !client.excused);
        check_counts(self.clients.iter().map(holds), |name| self.count(name))?;
        let requests = self.clients.iter().map(|client| client.request);
        for client in &self.clients {
            if client.failed {
                return Err("a shard of the map is missing".to_owned());
            }
            if client.phases.len() > PHASES_MAX {
                return Err("a listing does not end".to_owned());
            }
            if client.done.is_some() {
                check_shown(client.request, &client.shown, requests.clone())?;
            }
        }
        Ok(())
    }

    fn check_rest(&self) -> Result<(), String> {
        let [home, away] = &self.mdts;
        let has_ended = match home.map {
            Map::None => !self.gets_others && home.shards.is_empty() && away.shards.is_empty(),
            Map::Whole(number) if number > OLD => {
                let is_whole =
                    |tables: &Tables| tables.shards.len() == 1 && tables.shards.values().all(|shard| shard.come == ALL);
                self.gets_others && home.names.is_empty() && is_whole(home) && is_whole(away)
            }
            _ => false,
        };
        let is_quiet = home.log.is_empty() && away.log.is_empty();
        match has_ended && is_quiet && self.clients.iter().all(|client| client.done.is_some()) {
            true => Ok(()),
            false => Err("something waits for ever".to_owned()),
        }
    }
}

impl World {
    fn new(requests: &[Request], gets_others: bool, faults: u8) -> Self {
        let tables = |site: usize| Tables {
            map: if site == 0 { Map::Whole(OLD) } else { Map::None },
            names: Names::new(),
            place: 0,
            back: [0; 2],
            shards: BTreeMap::from([(OLD, Shard::new(of_site(site), ALL))]),
            log: Vec::new(),
            sequence: 0,
            applied: 0,
        };
        let client = |request: &Request| Client {
            request: *request,
            map: None,
            shown: Vec::new(),
            phases: Vec::new(),
            done: None,
            failed: false,
            durable: false,
            excused: false,
        };
        Self {
            mdts: [tables(0), tables(1)],
            durable: [tables(0), tables(1)],
            gets_others,
            held: None,
            prepared: None,
            last_number: OLD,
            unheard: false,
            clients: requests.iter().map(client).collect(),
            faults,
        }
    }

    fn give(&mut self, site: usize, without: Without) {
        let tables = &mut self.mdts[site];
        let (name, place) = tables.shards.get_mut(&OLD).expect("it gives names").give();
        if place == ALL && without == Without::Kept {
            tables.shards.remove(&OLD);
        }
        match site {
            0 => {
                tables.names.extend(name);
                tables.back[0] = place;
            }
            _ => tables.decide(Decided::Return(name, place)),
        }
    }

    /// All names are back. In the same batch the directory may get other shards.
    fn finish(&mut self) {
        let next = self.prepared.take();
        if next.is_some() && self.held != next {
            // Of a start of MDT 1 that has ended.
            return;
        }
        let home = &mut self.mdts[0];
        home.shards.remove(&OLD);
        home.decide(Decided::Drop(OLD));
        home.map = next.map_or(Map::None, Map::Splitting);
        home.place = 0;
        if let Some(number) = next {
            home.shards.insert(number, Shard::new(Names::new(), 0));
            home.decide(Decided::Make(number));
        }
    }

    fn move_name(&mut self) {
        let home = &mut self.mdts[0];
        let Map::Splitting(number) = home.map else { unreachable!("names move") };
        let name = home.names.pop_first();
        home.place = place_after(name, &home.names);
        if home.place == ALL {
            home.map = Map::Whole(number);
        }
        let shard = home.shards.get_mut(&number).expect("the map has it");
        shard.names.extend(name.filter(|name| site_of(*name) == 0));
        shard.come = home.place;
        home.decide(Decided::Add(number, name.filter(|name| site_of(*name) == 1), home.place));
    }

    fn flush(&mut self, site: usize) {
        self.durable[site] = self.mdts[site].clone();
        let done = self.clients.iter_mut().filter(|client| client.done == Some(site));
        done.for_each(|client| client.durable = true);
    }

    /// What a process had in memory is gone. MDT 1 gives up what a former start of MDT 0 had
    /// prepared and not decided.
    fn fail(&mut self, site: usize) {
        self.faults -= 1;
        let log = &self.mdts[0].log;
        let is_decided = |number| log.iter().any(|(_, decided)| *decided == Decided::Make(number));
        match site {
            0 => {
                self.prepared = None;
                self.held = self.held.filter(|number| is_decided(*number));
            }
            _ => (self.held, self.unheard) = (None, true),
        }
    }

    fn deliver(&mut self, from: usize, answered: bool) {
        let (sequence, decided) = self.mdts[from].log[0].clone();
        let tables = &mut self.mdts[1 - from];
        if sequence > tables.applied {
            match decided {
                Decided::Make(number) => {
                    tables.shards.insert(number, Shard::new(Names::new(), 0));
                    self.held = None;
                }
                Decided::Add(number, name, place) => {
                    let shard = tables.shards.get_mut(&number).expect("decisions come in order");
                    shard.names.extend(name);
                    shard.come = place;
                }
                Decided::Give(number) => {
                    tables.shards.get_mut(&number).expect("it has names").gone = Some(0);
                }
                Decided::Return(name, place) => {
                    tables.names.extend(name);
                    tables.back[1] = place;
                }
                Decided::Drop(number) => drop(tables.shards.remove(&number)),
            }
            tables.applied = sequence;
            self.flush(1 - from);
        }
        if answered {
            self.mdts[from].log.remove(0);
        }
    }

    /// A client sends its request to the directory. It has the answer, or learns of the shards.
    fn ask_directory(&mut self, client: &mut Client, without: Without) {
        let home = &mut self.mdts[0];
        let name = client.name();
        let is_there = match home.map {
            Map::None => true,
            Map::Whole(_) => false,
            Map::Merging(_) => name < home.back[site_of(name)] || without == Without::Back,
            Map::Splitting(_) => name >= home.place,
        };
        match is_there {
            true => client.answer(&mut home.names, 0),
            false => client.map = home.map.number(),
        }
    }

    /// To the shard, or waits: the name is elsewhere, or on its way.
    fn ask_shard(&mut self, client: &mut Client, without: Without) {
        let Some(number) = client.map else {
            // It has learned of the shards by another name.
            client.map = self.mdts[0].map.number();
            return;
        };
        let (name, site) = (client.name(), site_of(client.name()));
        if let Some(shard) = self.shard(number, site) {
            let has_gone = shard.gone.is_some_and(|place| name < place) && without != Without::Gone;
            if name < shard.come && !has_gone {
                client.answer(&mut shard.names, site);
            }
        } else if !self.may_come(number, site) {
            // The directory is asked for its map. If that is the same, the program is told.
            client.map = None;
            client.failed = self.mdts[0].map.number() == Some(number);
        }
    }

    fn shard(&mut self, number: u8, site: usize) -> Option<&mut Shard> {
        self.mdts[site].shards.get_mut(&number)
    }

    fn may_come(&self, number: u8, site: usize) -> bool {
        site == 1 && (self.unheard || self.held == Some(number))
    }

    /// The next name of a listing, or the next place where it looks for names.
    fn list(&mut self, client: &mut Client, without: Without) {
        let Some(phase) = client.phases.last() else {
            let of = match self.mdts[0].map {
                Map::None | Map::Splitting(_) => None,
                Map::Merging(_) if without == Without::Order => None,
                Map::Whole(number) | Map::Merging(number) => Some(number),
            };
            return client.phases.push(Phase { of, needed: ALL, ..Phase::default() });
        };
        match phase.of {
            None => self.list_directory(client, without),
            Some(number) => self.list_shards(client, number, without),
        }
    }

    fn list_directory(&mut self, client: &mut Client, without: Without) {
        let mut phase = client.phases.last().expect("it has begun").clone();
        let shards = |number| Phase { of: Some(number), needed: ALL, ..Phase::default() };
        let home = &self.mdts[0];
        let place = match home.map {
            // Names have come back: it begins again, without those that it has shown.
            Map::None | Map::Merging(_) if phase.told[0] > 0 => return client.phases.push(Phase::default()),
            Map::None => 0,
            Map::Whole(number) => return client.phases.push(shards(number)),
            Map::Splitting(_) => home.place,
            Map::Merging(number) => {
                let of_shards = client.phases.iter().rev().find(|earlier| earlier.of == Some(number));
                match of_shards {
                    None if without == Without::Order => {}
                    None => return client.phases.push(shards(number)),
                    Some(shards) if without != Without::Needed && (0..2).any(|at| home.back[at] < shards.told[at]) => {
                        return;
                    }
                    Some(_) => {}
                }
                0
            }
        };
        phase.told[0] = phase.told[0].max(place);
        let from = phase.cursor().max(place);
        let next = home.names.range(from..).next().copied();
        phase.seen[0].push((from, next.map_or(ALL, |name| name + 1)));
        client.show(next, without);
        let needed = phase.told[0];
        *client.phases.last_mut().expect("it has begun") = phase;
        match (next, home.map) {
            (Some(_), _) => {}
            (None, Map::Splitting(number)) => client.phases.push(Phase { needed, ..shards(number) }),
            (None, Map::Merging(number)) if without == Without::Order => client.phases.push(shards(number)),
            (None, _) => client.done = Some(0),
        }
    }

    fn list_shards(&mut self, client: &mut Client, number: u8, without: Without) {
        let mut phase = client.phases.last().expect("it has begun").clone();
        let (at, is_first) = (phase.at, client.phases.len() == 1);
        if self.may_come(number, at) && self.shard(number, at).is_none() {
            return;
        }
        let map = self.mdts[0].map.number();
        let Some(shard) = self.shard(number, at) else {
            if map == Some(number) {
                client.failed = true;
                return;
            }
            // All other names are in the directory, or elsewhere by now.
            (at..2).for_each(|at| phase.told[at] = ALL);
            *client.phases.last_mut().expect("it has begun") = phase;
            return client.phases.push(Phase::default());
        };
        if shard.come < phase.needed {
            if is_first && client.shown.is_empty() {
                client.phases.push(Phase::default());
            }
            return;
        }
        let gone = shard.gone.unwrap_or(0);
        phase.told[at] = phase.told[at].max(gone);
        let from = phase.cursor().max(gone);
        let next = shard.names.range(from..).next().copied();
        phase.seen[at].push((from, next.map_or(ALL, |name| name + 1)));
        client.show(next, without);
        phase.at += usize::from(next.is_none());
        let is_end = phase.at == 2;
        let goes_on = phase.told != [0; 2] && without != Without::Order;
        phase.at = phase.at.min(1);
        *client.phases.last_mut().expect("it has begun") = phase;
        match (is_end, goes_on) {
            (false, _) => {}
            (true, true) => client.phases.push(Phase::default()),
            (true, false) => client.done = Some(1),
        }
    }

    fn count(&self, name: Name) -> usize {
        let is_in = |names: &Names| usize::from(names.contains(&name));
        let of_tables = |site: usize| {
            let tables = &self.mdts[site];
            let is_on_its_way = |(sequence, decided): &&(u8, Decided)| {
                *sequence > self.mdts[1 - site].applied
                    && matches!(decided, Decided::Add(_, Some(of), _) | Decided::Return(Some(of), _) if *of == name)
            };
            is_in(&tables.names)
                + tables.shards.values().map(|shard| is_in(&shard.names)).sum::<usize>()
                + tables.log.iter().filter(is_on_its_way).count()
        };
        of_tables(0) + of_tables(1)
    }
}

impl Client {
    fn name(&self) -> Name {
        self.request.name().expect("a listing is asked for otherwise")
    }

    /// A request is executed where the names are.
    fn answer(&mut self, names: &mut Names, site: usize) {
        self.request.execute(names, &mut self.shown);
        self.done = Some(site);
    }

    /// Unless it was shown by what the listing has read before this.
    fn show(&mut self, name: Option<Name>, without: Without) {
        let earlier = self.phases.len() - 1;
        let is_new =
            |name: &Name| without == Without::Skipping || !self.phases[..earlier].iter().any(|of| of.has_seen(*name));
        self.shown.extend(name.filter(is_new));
    }
}

fn explore(requests: &[Request], gets_others: bool, faults: u8, without: Without) -> Result<usize, String> {
    let explored = explorer::explore(World::new(requests, gets_others, faults), without, STATES_MAX);
    explored.map_err(|reason| format!("{requests:?}: {reason}"))
}

fn explored(requests: &[Request], gets_others: bool, faults: u8) -> usize {
    explore(requests, gets_others, faults, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"))
}

/// `STRIA_TEST_LONG=1`: with one fault more, but for a listing beside a change; 4.5 million states.
#[test]
fn names_come_back_in_any_order_of_steps() {
    let mut states = 0;
    for (index, first) in REQUESTS.into_iter().enumerate() {
        for second in REQUESTS.into_iter().skip(index + 1) {
            let lists = second == Request::List;
            if is_long() || !lists || matches!(first, Request::Create(3) | Request::Remove(_)) {
                states += explored(&[first, second], false, u8::from(is_long() && !lists));
            }
        }
        states += explored(&[first], false, 1 + u8::from(is_long()));
    }
    assert!(states > 10_000, "{states} states");
    println!("{states} states");
}

/// `STRIA_TEST_LONG=1`: all others, too (1.7 million states), and requests for names with a fault.
#[test]
fn names_go_on_to_other_shards_in_any_order_of_steps() {
    let mut states = 0;
    for request in REQUESTS {
        if is_long() || matches!(request, Request::Create(3) | Request::Lookup(5)) {
            states += explored(&[request], true, u8::from(is_long() && request != Request::List));
        }
    }
    assert!(states > 10_000, "{states} states");
    println!("{states} states");
}

#[test]
fn each_rule_of_merging_is_needed() {
    for (without, request, faults) in [
        (Without::Back, Request::Lookup(5), 0),
        (Without::Back, Request::Lookup(0), 0),
        (Without::Gone, Request::Lookup(5), 0),
        (Without::Gone, Request::Lookup(0), 0),
        (Without::Durable, Request::Lookup(1), 1),
        (Without::AllBack, Request::Lookup(5), 0),
        (Without::Kept, Request::Lookup(5), 0),
        (Without::Order, Request::List, 0),
        (Without::Skipping, Request::List, 0),
        (Without::Needed, Request::List, 0),
    ] {
        assert!(explore(&[request], false, faults, without).is_err(), "without {without:?}: {request:?}");
        assert!(explore(&[request], false, faults, Without::Nothing).is_ok(), "{request:?}");
    }
}
