//! Model of decision 0062: a directory on MDT 0 gets a shard there and one on MDT 1, while two
//! clients use its names, processes die, and hosts lose power. Every order of steps is visited.
//!
//! Names are numbers, in the order in which they move, one with each batch; even ones belong to the
//! shard on MDT 0. The place up to which names have moved says where a name is: those before it are
//! in the shards, the others in the directory.

use std::collections::{BTreeSet, HashSet};

type Name = u8;
type Names = BTreeSet<Name>;

/// Names of the directory at first. Some are removed.
const NAMES: [Name; 3] = [0, 1, 5];
/// The place when all names have moved.
const ALL: Name = Name::MAX;
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
                add(client.done.is_none() && self.after(step, without) != *self, step);
            }
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

    /// The first name moves; with the last one, all have moved.
    fn move_name(&mut self) {
        let name = self.home.names.pop_first();
        let place = match self.home.names.is_empty() {
            true => ALL,
            false => name.map_or(ALL, |name| name + 1),
        };
        self.home.place = place;
        if place == ALL {
            self.home.map = Map::Whole;
        }
        let shard = self.home.shard.as_mut().expect("the map has it");
        shard.names.extend(name.filter(|name| name.is_multiple_of(2)));
        shard.place = shard.place.max(place);
        let away = name.filter(|name| !name.is_multiple_of(2));
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
                Map::None => answer(&mut self.home.names, client, Site::Home),
                Map::Moving if name >= self.home.place => answer(&mut self.home.names, client, Site::Home),
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
        let (Request::Create(name) | Request::Remove(name) | Request::Lookup(name)) = client.request else { return };
        let site = if name.is_multiple_of(2) { Site::Home } else { Site::Away };
        if let Some(shard) = self.shard(client, number, site, without)
            && name < shard.place
        {
            answer(&mut shard.names, client, site);
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
        let is_of = |site: Site, name: &Name| name.is_multiple_of(2) == (site == Site::Home);
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
            && self.away.shard.as_ref().is_some_and(|shard| shard.place == ALL);
        match is_whole && self.clients.iter().all(|client| client.done.is_some()) {
            true => Ok(()),
            false => Err("something waits for ever".to_owned()),
        }
    }
}

/// A request is executed where the names are.
fn answer(names: &mut Names, client: &mut Client, site: Site) {
    match client.request {
        Request::Create(name) => drop(names.insert(name)),
        Request::Remove(name) => drop(names.remove(&name)),
        Request::Lookup(name) => client.shown.extend(names.contains(&name).then_some(name)),
        Request::List => return,
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

const REQUESTS: [Request; 6] =
    [Request::Create(2), Request::Create(3), Request::Remove(1), Request::Lookup(0), Request::Lookup(5), Request::List];

#[test]
fn no_name_is_lost_or_doubled_in_any_order_of_steps() {
    let (mut cases, mut states) = (0, 0);
    for (index, first) in REQUESTS.into_iter().enumerate() {
        for second in REQUESTS.into_iter().skip(index + 1) {
            // With a fault there are 1.3 million states of each: they were explored once.
            let is_large = matches!((first, second), (Request::Create(_), Request::List));
            let faults = u8::from(!is_large);
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
