//! What the models of directories that split and merge have in common: names, what clients want of
//! them, and what they may be told.
//!
//! Names are numbers, in the order in which they move, one with each batch; even ones belong to the
//! shard on MDT 0.

use std::collections::BTreeSet;

pub type Name = u8;
pub type Names = BTreeSet<Name>;

/// Names of the directory at first. Some are removed.
pub const NAMES: [Name; 3] = [0, 1, 5];
/// The place when all names have moved.
pub const ALL: Name = Name::MAX;
/// All names that are used are less.
const END: Name = 8;

pub const REQUESTS: [Request; 6] =
    [Request::Create(2), Request::Create(3), Request::Remove(1), Request::Lookup(0), Request::Lookup(5), Request::List];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Create(Name),
    Remove(Name),
    Lookup(Name),
    List,
}

impl Request {
    /// Of a listing none.
    pub fn name(self) -> Option<Name> {
        match self {
            Request::Create(name) | Request::Remove(name) | Request::Lookup(name) => Some(name),
            Request::List => None,
        }
    }

    /// It is executed where the names are.
    pub fn execute(self, names: &mut Names, shown: &mut Vec<Name>) {
        match self {
            Request::Create(name) => drop(names.insert(name)),
            Request::Remove(name) => drop(names.remove(&name)),
            Request::Lookup(name) => shown.extend(names.contains(&name).then_some(name)),
            Request::List => {}
        }
    }

    /// Which name it changes.
    fn changes(self) -> Option<Name> {
        self.name().filter(|_| matches!(self, Request::Create(_) | Request::Remove(_)))
    }
}

/// The MDT of the shard to which a name belongs.
pub fn site_of(name: Name) -> usize {
    usize::from(!name.is_multiple_of(2))
}

/// The place up to which names have moved after this one; `left`: those that have not.
pub fn place_after(name: Option<Name>, left: &Names) -> Name {
    match left.is_empty() {
        true => ALL,
        false => name.map_or(ALL, |name| name + 1),
    }
}

/// Each name is there as often as it should be, wherever it is. `clients`: what they want, and
/// whether they were told that it is done, and no power loss may have taken it.
pub fn check_counts(
    clients: impl Iterator<Item = (Request, bool)> + Clone,
    count: impl Fn(Name) -> usize,
) -> Result<(), String> {
    for name in 0..END {
        let (changed, count) = (clients.clone().find(|(request, _)| request.changes() == Some(name)), count(name));
        let expected = match changed {
            None => usize::from(NAMES.contains(&name)),
            Some((request, true)) => usize::from(matches!(request, Request::Create(_))),
            Some(_) if count <= 1 => continue,
            Some(_) => 1,
        };
        if count != expected {
            return Err(format!("name {name} is there {count} times, not {expected}"));
        }
    }
    Ok(())
}

/// What a client was shown that was told everything: `others`, what all clients want.
pub fn check_shown(
    request: Request,
    shown: &[Name],
    others: impl Iterator<Item = Request> + Clone,
) -> Result<(), String> {
    match request {
        Request::Create(_) | Request::Remove(_) => return Ok(()),
        Request::Lookup(name) if shown == [name] => return Ok(()),
        Request::Lookup(name) => return Err(format!("name {name} was not found")),
        Request::List => {}
    }
    for name in NAMES {
        let is_removed = others.clone().any(|other| other == Request::Remove(name));
        let times = shown.iter().filter(|of| **of == name).count();
        if times > 1 || times == 0 && !is_removed {
            return Err(format!("name {name} was listed {times} times: {shown:?}"));
        }
    }
    Ok(())
}
