//! Model of decision 0062: a directory on MDT 0 gets a shard there and one on MDT 1, while two
//! clients use its names, processes die, and hosts lose power. Every order of steps is visited.
//!
//! The place up to which names have moved says where a name is: those before it are in the shards,
//! the others in the directory.

use super::common::{
    explorer::{self, is_long},
    names_model::{ALL, NAMES, Name, Names, REQUESTS, Request, check_counts, check_shown, place_after, site_of},
};

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
    /// Those before it are here.
    place: Name,
}

impl Shard {
    fn new(number: u8, without: Without) -> Self {
        Self { number, names: Names::new(), place: if without == Without::Place { ALL } else { 0 } }
    }
}

/// What MDT 1 is to carry out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Decided {
    Make(u8),
    /// A name, if the batch has one for this MDT; those before this place are there then.
    Add(Option<Name>, Name),
}

/// Tables of MDT 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Home {
    names: Names,
    map: Map,
    /// Names before it have moved.
    place: Name,
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    request: Request,
    /// The number of the shards, once it knows that there are some.
    map: Option<u8>,
    /// Maps that were not true any more.
    forgotten: u8,
    /// What it has listed; of the directory, the parts of it that it has seen: from a name on, up
    /// to another one.
    shown: Vec<Name>,
    seen: Vec<(Name, Name)>,
    /// How many names it had listed when it went on in the shards.
    in_shards: Option<usize>,
    /// The last place that it was told.
    told: Name,
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
    /// Shards have the names before the place, and no others.
    Place,
    /// Decisions leave when they are durable.
    Durable,
    /// A shard that may come is waited for.
    Waiting,
    /// A listing skips what it has shown of the directory.
    Skipping,
    /// It waits until a shard has all that the directory did not show.
    Needed,
    /// It fails if the directory has lost a split of which it has seen a part.
    Failing,
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
    Flush(Site),
    /// The answer to it arrives, or not.
    Deliver(bool),
    Join,
    /// It asks the directory, or the shard.
    Client(usize, bool),
    Die(Site),
    LosePower(Site),
}

impl explorer::World for World {
    type Step = Step;
    type Without = Without;

    fn steps(&self, without: Without) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |possible: bool, step: Step| steps.extend(possible.then_some(step));
        let is_moving = self.home.map == Map::Moving;
        add(self.home.map == Map::None && self.prepared.is_none(), Step::Prepare);
        add(self.home.map == Map::None && self.prepared.is_some(), Step::Begin);
        add(is_moving, Step::Move);
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
            for is_home in [true, false] {
                let step = Step::Client(index, is_home);
                add(client.done.is_none(), step);
            }
        }
        for site in [Site::Home, Site::Away] {
            add(self.faults > 0, Step::Die(site));
            add(self.faults > 0, Step::LosePower(site));
        }
        steps
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
                    (self.home.map, self.home.place) = (Map::Moving, 0);
                    self.home.shard = Some(Shard::new(number, without));
                    self.home.decide(Decided::Make(number));
                }
            }
            Step::Move => self.move_name(),
            Step::Flush(site) => self.flush(site),
            Step::Deliver(answered) => self.deliver(answered, without),
            Step::Join => self.unheard = false,
            Step::Client(index, is_home) => {
                let mut client = self.clients[index].clone();
                match is_home {
                    true => self.ask_directory(&mut client, without),
                    false => self.ask_shard(&mut client, without),
                }
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

    fn is_fault(step: Step) -> bool {
        matches!(step, Step::Die(_) | Step::LosePower(_))
    }

    fn check(&self) -> Result<(), String> {
        let holds = |client: &Client| (client.request, client.done.is_some() && !client.excused);
        check_counts(self.clients.iter().map(holds), |name| self.count(name))?;
        let requests = self.clients.iter().map(|client| client.request);
        for client in &self.clients {
            if client.forgotten > self.losses {
                return Err("a map was wrong without a power loss".to_owned());
            }
            if let Some(Site::Home | Site::Away) = client.done {
                check_shown(client.request, &client.shown, requests.clone())?;
            }
        }
        Ok(())
    }

    fn check_rest(&self) -> Result<(), String> {
        let is_whole = self.home.map == Map::Whole
            && self.home.log.is_empty()
            && self.away.shard.as_ref().is_some_and(|shard| shard.place == ALL);
        match is_whole && self.clients.iter().all(|client| client.done.is_some()) {
            true => Ok(()),
            false => Err("something waits for ever".to_owned()),
        }
    }
}

impl World {
    fn new(requests: &[Request], faults: u8) -> Self {
        let names = NAMES.into_iter().collect();
        let home = Home { names, map: Map::None, place: 0, shard: None, log: Vec::new(), sequence: 0 };
        let away = Away { shard: None, applied: 0 };
        let client = |request: &Request| Client {
            request: *request,
            map: None,
            forgotten: 0,
            shown: Vec::new(),
            seen: Vec::new(),
            in_shards: None,
            told: 0,
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

    /// The first name moves; with the last one, all have moved.
    fn move_name(&mut self) {
        let name = self.home.names.pop_first();
        let place = place_after(name, &self.home.names);
        self.home.place = place;
        if place == ALL {
            self.home.map = Map::Whole;
        }
        let shard = self.home.shard.as_mut().expect("the map has it");
        shard.names.extend(name.filter(|name| site_of(*name) == 0));
        shard.place = shard.place.max(place);
        let away = name.filter(|name| site_of(*name) == 1);
        self.home.decide(Decided::Add(away, place));
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
                    self.away.shard = Some(Shard::new(number, without));
                    self.held = None;
                }
                Decided::Add(name, place) => self.away.shard.iter_mut().for_each(|shard| {
                    shard.names.extend(name);
                    shard.place = shard.place.max(place);
                }),
            }
            self.away.applied = sequence;
            self.flush(Site::Away);
        }
        if answered {
            self.home.log.remove(0);
        }
    }

    /// A client sends its request to the directory, or the next one of a listing. It has the
    /// answer, or learns of the shards; or nothing changes: it waits.
    fn ask_directory(&mut self, client: &mut Client, without: Without) {
        let shard = self.home.shard.as_ref().map(|shard| shard.number);
        match client.request {
            Request::List if client.in_shards.is_none() => self.list_directory(client, without),
            Request::List => {}
            Request::Create(name) | Request::Remove(name) | Request::Lookup(name) => match self.home.map {
                Map::None => client.answer(&mut self.home.names, Site::Home),
                Map::Moving if name >= self.home.place => client.answer(&mut self.home.names, Site::Home),
                Map::Moving | Map::Whole => client.map = shard,
            },
        }
    }

    fn ask_shard(&mut self, client: &mut Client, without: Without) {
        let Some(number) = client.map else {
            // It has learned of the shards by another name.
            client.map = self.home.shard.as_ref().filter(|_| self.home.map != Map::None).map(|shard| shard.number);
            return;
        };
        if client.request == Request::List {
            return self.list_shards(client, number, without);
        }
        let Some(name) = client.request.name() else { return };
        let site = if site_of(name) == 0 { Site::Home } else { Site::Away };
        if let Some(shard) = self.shard(client, number, site, without)
            && name < shard.place
        {
            client.answer(&mut shard.names, site);
        }
    }

    /// The shard. If it does not exist, the map is forgotten.
    fn shard(&mut self, client: &mut Client, number: u8, site: Site, without: Without) -> Option<&mut Shard> {
        let may_come = site == Site::Away && (self.unheard || self.held == Some(number));
        let shard = match site {
            Site::Home => &mut self.home.shard,
            _ => &mut self.away.shard,
        };
        match shard {
            Some(shard) if shard.number == number => Some(shard),
            _ if may_come && without != Without::Waiting => None,
            _ => {
                client.map = None;
                client.forgotten += 1;
                None
            }
        }
    }

    /// What the directory has left, one name after the other.
    fn list_directory(&mut self, client: &mut Client, without: Without) {
        let has_gaps = client.told > 0 && without != Without::Failing;
        let place = match self.home.map {
            // It has shown names after a place that does not hold any more.
            Map::None if has_gaps => return client.done = Some(Site::Failed),
            Map::None => 0,
            Map::Moving => self.home.place,
            Map::Whole => ALL,
        };
        client.told = client.told.max(place);
        let from = client.seen.last().map_or(0, |(_, to)| *to).max(place);
        let next = self.home.names.range(from..).next().copied();
        client.shown.extend(next);
        client.seen.push((from, next.map_or(ALL, |name| name + 1)));
        if next.is_none() {
            match self.home.map {
                Map::None => client.done = Some(Site::Home),
                _ => client.in_shards = Some(client.shown.len()),
            }
            client.map = self.home.shard.as_ref().map(|shard| shard.number);
        }
    }

    /// Then what they have that it has not shown.
    fn list_shards(&mut self, client: &mut Client, number: u8, without: Without) {
        let Some(in_shards) = client.in_shards else { return };
        let (forgotten, needed) = (client.forgotten, client.told);
        let seen = if without == Without::Skipping { Vec::new() } else { client.seen.clone() };
        let is_of = |site: Site, name: &Name| (site_of(*name) == 0) == (site == Site::Home);
        // Since the shards are listed one after the other, the last of the second one is the end.
        for site in [Site::Home, Site::Away] {
            let last = client.shown.iter().skip(in_shards).copied().filter(|name| is_of(site, name)).max();
            let Some(shard) = self.shard(client, number, site, Without::Nothing) else {
                if client.forgotten > forgotten {
                    client.done = Some(Site::Failed);
                }
                return;
            };
            if shard.place < needed && without != Without::Needed {
                return;
            }
            let is_new = |name: &Name| {
                last.is_none_or(|last| *name > last) && !seen.iter().any(|(from, to)| (*from..*to).contains(name))
            };
            let Some(next) = shard.names.iter().copied().find(is_new) else { continue };
            client.shown.push(next);
            return;
        }
        client.done = Some(Site::Away);
    }

    fn count(&self, name: Name) -> usize {
        let of = |shard: &Option<Shard>| shard.as_ref().is_some_and(|shard| shard.names.contains(&name));
        let is_on_its_way = |(sequence, decided): &&(u8, Decided)| {
            *sequence > self.away.applied && matches!(decided, Decided::Add(Some(of), _) if *of == name)
        };
        usize::from(self.home.names.contains(&name))
            + usize::from(of(&self.home.shard))
            + usize::from(of(&self.away.shard))
            + self.home.log.iter().filter(is_on_its_way).count()
    }
}

impl Client {
    /// Its request is executed where the names are.
    fn answer(&mut self, names: &mut Names, site: Site) {
        self.request.execute(names, &mut self.shown);
        self.done = Some(site);
    }
}

fn explore(requests: &[Request], faults: u8, without: Without) -> Result<usize, String> {
    let explored = explorer::explore(World::new(requests, faults), without, STATES_MAX);
    explored.map_err(|reason| format!("{requests:?}: {reason}"))
}

/// `STRIA_TEST_LONG=1`: two requests with a fault, too; 5 million states.
#[test]
fn no_name_is_lost_or_doubled_in_any_order_of_steps() {
    let (mut cases, mut states) = (0, 0);
    for (index, first) in REQUESTS.into_iter().enumerate() {
        for second in REQUESTS.into_iter().skip(index + 1) {
            let faults = u8::from(is_long());
            states += explore(&[first, second], faults, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
            cases += 1;
        }
        states += explore(&[first], 2, Without::Nothing).unwrap_or_else(|reason| panic!("{reason}"));
    }
    assert_eq!(cases, 15);
    assert!(states > 10_000, "{states} states");
    println!("{states} states");
}

#[test]
fn each_rule_is_needed() {
    for (without, request, faults) in [
        (Without::Place, Request::Lookup(0), 0),
        (Without::Place, Request::Lookup(5), 0),
        (Without::Durable, Request::Lookup(1), 1),
        (Without::Waiting, Request::Lookup(5), 0),
        (Without::Skipping, Request::List, 0),
        (Without::Needed, Request::List, 0),
        (Without::Failing, Request::List, 1),
    ] {
        assert!(explore(&[request], faults, without).is_err(), "without {without:?}");
        assert!(explore(&[request], faults, Without::Nothing).is_ok(), "{request:?}");
    }
}
