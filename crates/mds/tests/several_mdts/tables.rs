//! What an MDT stores, and what its parts of operations do to it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    rules::{Rule, Rules},
    vocabulary::{Answer, Ino, Part, Place, Record, Refusal, StepId, Target},
};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    /// Changed by one each time, so that a change that is applied twice shows.
    pub links: u8,
    /// LINKS and the first link: where its names are.
    pub places: BTreeSet<Place>,
}

/// The tables of one MDT. A batch replaces them as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tables {
    pub inodes: BTreeMap<Ino, Inode>,
    pub entries: BTreeMap<Place, Ino>,
    /// Directories of which this MDT has names.
    pub shards: BTreeSet<Ino>,
    pub prepared: BTreeMap<StepId, Vec<Part>>,
    /// Decisions for other MDTs, and how many there were.
    pub log: BTreeMap<Target, Vec<Record>>,
    pub logged: BTreeMap<Target, u8>,
    /// Decisions of other MDTs that were applied.
    pub applied: BTreeMap<Target, u8>,
    /// Answers to clients, by number of the request.
    pub replies: BTreeMap<u8, Answer>,
}

impl Tables {
    /// Whether a part can be done now.
    pub fn check(&self, part: Part, rules: Rules) -> Result<(), Refusal> {
        let ok = match part {
            Part::SetName { at, from, .. } => {
                let found = self.entries.get(&at).copied();
                if self.shards.contains(&at.0) && found != from && rules.hold(Rule::NamesAreCompared) {
                    return Err(Refusal::Changed(at, found));
                }
                self.shards.contains(&at.0)
            }
            Part::RemoveShard(directory) => {
                self.shards.contains(&directory) && !self.entries.keys().any(|at| at.0 == directory)
            }
            Part::AddLink(ino, _) => self.inodes.contains_key(&ino),
            _ => true,
        };
        if ok { Ok(()) } else { Err(Refusal::Failed) }
    }

    /// Does a decided part. If it cannot, a rule was broken, and what is left shows it.
    pub fn apply(&mut self, part: Part) {
        match part {
            Part::SetName { at, to: Some(ino), .. } => {
                self.entries.insert(at, ino);
            }
            Part::SetName { at, to: None, .. } => {
                self.entries.remove(&at);
            }
            Part::MakeShard(directory) => {
                self.shards.insert(directory);
            }
            Part::RemoveShard(directory) => {
                self.shards.remove(&directory);
            }
            Part::MakeInode(ino, at) => {
                self.inodes.insert(ino, Inode { links: 1, places: BTreeSet::from([at]) });
            }
            Part::RemoveInode(ino, at) | Part::DropLink(ino, at) => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.links = inode.links.saturating_sub(1);
                    inode.places.remove(&at);
                    if inode.links == 0 {
                        self.inodes.remove(&ino);
                    }
                }
            }
            Part::AddLink(ino, at) => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.links += 1;
                    inode.places.insert(at);
                }
            }
            Part::MoveLink(ino, from, to) => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.places.remove(&from);
                    inode.places.insert(to);
                }
            }
            Part::Tree => {}
        }
    }

    /// Writes a decision for another MDT down.
    pub fn decide(&mut self, target: Target, step: StepId, parts: &[Part]) {
        let sequence = self.logged.entry(target).or_default();
        *sequence += 1;
        let record = Record { sequence: *sequence, step, parts: parts.to_vec() };
        self.log.entry(target).or_default().push(record);
    }

    /// Decisions for another MDT that it may not have durably.
    pub fn log_for(&self, target: Target) -> Vec<Record> {
        self.log.get(&target).cloned().unwrap_or_default()
    }

    /// Whether decisions that this MDT has not heard of since it started may concern a part: it may
    /// have held something of it for another MDT, without a promise.
    pub fn may_have_been_held(&self, me: Target, part: Part) -> bool {
        match part {
            Part::SetName { at, .. } => !self.shards.contains(&at.0),
            Part::RemoveShard(directory) => !self.shards.contains(&directory),
            Part::MakeShard(_) | Part::MakeInode(..) => false,
            Part::RemoveInode(ino, _) | Part::AddLink(ino, _) | Part::DropLink(ino, _) | Part::MoveLink(ino, ..) => {
                let Some(inode) = self.inodes.get(&ino) else { return true };
                // A directory is promised.
                !ino.is_directory() && inode.places.iter().any(|at| at.target() != me)
            }
            Part::Tree => true,
        }
    }

    pub fn parent(&self, directory: Ino) -> Option<Ino> {
        self.inodes.get(&directory)?.places.first().map(|place| place.0)
    }
}

/// Whether a restart of the MDT must not take the preparation away. Other changes need no promise:
/// the decision repeats them and nothing can prevent them, only nobody must see the state before.
pub fn needs_promise(part: Part, rules: Rules) -> bool {
    match part {
        Part::Tree | Part::DropLink(..) | Part::MakeShard(_) | Part::MakeInode(..) => false,
        Part::MoveLink(ino, ..) => ino.is_directory(),
        Part::AddLink(..) => rules.hold(Rule::AddedLinksArePromised),
        Part::RemoveShard(_) | Part::RemoveInode(..) => rules.hold(Rule::EmptinessIsPromised),
        Part::SetName { .. } => rules.hold(Rule::NamesArePromised),
    }
}

/// What a part locks. A shard is locked shared by operations on its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Name(Place),
    NameIn(Ino),
    Shard(Ino),
    Inode(Ino),
    Tree,
}

impl Resource {
    pub fn of(part: Part) -> Vec<Resource> {
        match part {
            Part::SetName { at, .. } => vec![Resource::Name(at), Resource::NameIn(at.0)],
            Part::MakeShard(directory) | Part::RemoveShard(directory) => vec![Resource::Shard(directory)],
            Part::MakeInode(ino, _) | Part::RemoveInode(ino, _) | Part::AddLink(ino, _) => vec![Resource::Inode(ino)],
            Part::DropLink(ino, _) | Part::MoveLink(ino, ..) => vec![Resource::Inode(ino)],
            Part::Tree => vec![Resource::Tree],
        }
    }

    pub fn meets(self, other: Resource, rules: Rules) -> bool {
        match (self, other) {
            (Resource::NameIn(_), Resource::NameIn(_)) => false,
            (Resource::NameIn(one), Resource::Shard(two)) | (Resource::Shard(one), Resource::NameIn(two)) => {
                one == two && rules.hold(Rule::FreezeExcludesNames)
            }
            _ => self == other,
        }
    }
}
