//! What clients fight over, in the simplest form: names in directories, and files with a mode.
//! Every operation here happens at one moment.
//!
//! Inodes have the numbers that the file system gave them: a number is never used again, so it
//! tells which creation an answer is about.

use std::collections::{BTreeMap, BTreeSet};

use types::{FsError, InodeNumber};

/// A name: number of the directory, number of the name.
pub type Place = (u8, u8);

/// What is shown of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// The file.
    pub inode: InodeNumber,
    /// Permission bits.
    pub mode: u32,
    /// Names.
    pub links: u32,
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new file of this mode.
    Create(Place, u32),
    /// Removes a name.
    Unlink(Place),
    /// rename(2).
    Rename(Place, Place),
    /// rename(2) with RENAME_NOREPLACE.
    RenameNew(Place, Place),
    /// rename(2) with RENAME_EXCHANGE.
    Exchange(Place, Place),
    /// Another name for a file that was looked up before.
    Link(InodeNumber, Place),
    /// What a name leads to.
    Look(Place),
    /// Attributes of a file that was looked up before.
    Stat(InodeNumber),
    /// Changes the mode of such a file.
    SetMode(InodeNumber, u32),
    /// Names of a directory.
    List(u8),
    /// The first half of a look: which file has a name. The second one is a stat.
    Leads(Place),
    /// The first half of a link: the name. The second one is a stat.
    LinkName(InodeNumber, Place),
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Done,
    /// This file.
    Shown(Shown),
    /// This file, and nothing of its attributes.
    Leads(InodeNumber),
    /// These names.
    Names(Vec<(u8, InodeNumber)>),
    /// An error.
    Failed(FsError),
    /// That its session has ended: it was done or not.
    Unknown,
}

impl Outcome {
    /// The files that it shows.
    pub fn files(&self) -> Vec<InodeNumber> {
        match self {
            Outcome::Shown(shown) => vec![shown.inode],
            Outcome::Leads(inode) => vec![*inode],
            Outcome::Names(names) => names.iter().map(|(_, inode)| *inode).collect(),
            Outcome::Done | Outcome::Failed(_) | Outcome::Unknown => Vec::new(),
        }
    }
}

/// Everything there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    names: BTreeMap<Place, InodeNumber>,
    /// Mode and number of names of files that have one.
    files: BTreeMap<InodeNumber, (u32, u32)>,
}

impl State {
    /// The states after an operation, if it may have had this outcome in this state. `created`:
    /// files that a creation of unknown outcome may have made.
    pub fn after(&self, operation: &Operation, outcome: &Outcome, created: &BTreeSet<InodeNumber>) -> Vec<State> {
        match (outcome, operation) {
            (Outcome::Unknown, Operation::Create(_, mode)) => {
                let made = |inode| Outcome::Shown(Shown { inode, mode: *mode, links: 1 });
                let with = created.iter().filter_map(|inode| self.once_done(operation, &made(*inode)));
                with.chain([self.clone()]).collect()
            }
            (Outcome::Unknown, _) => self.once_done(operation, outcome).into_iter().chain([self.clone()]).collect(),
            (told, _) => {
                let mut next = self.clone();
                let expected = next.execute(operation, told).unwrap_or_else(Outcome::Failed);
                (expected == *told).then_some(next).into_iter().collect()
            }
        }
    }

    /// The state after an operation that was done, whatever its client was told; `None`: it would
    /// have failed.
    fn once_done(&self, operation: &Operation, outcome: &Outcome) -> Option<State> {
        let mut next = self.clone();
        next.execute(operation, outcome).ok().filter(|_| next != *self)?;
        Some(next)
    }

    fn execute(&mut self, operation: &Operation, outcome: &Outcome) -> Result<Outcome, FsError> {
        match operation {
            Operation::Create(place, mode) => self.create(*place, *mode, outcome),
            Operation::Unlink(place) => self.unlink(*place),
            Operation::Rename(from, to) => self.rename(*from, *to),
            Operation::RenameNew(from, to) => self.rename_new(*from, *to),
            Operation::Exchange(from, to) => self.exchange(*from, *to),
            Operation::Link(inode, place) => self.link(*inode, *place, outcome),
            Operation::Look(place) => self.named(*place).map(|inode| self.show(inode)),
            Operation::Stat(inode) => self.stat(*inode, outcome),
            Operation::SetMode(inode, mode) => self.set_mode(*inode, *mode, outcome),
            Operation::Leads(place) => self.named(*place).map(Outcome::Leads),
            Operation::LinkName(inode, place) => self.link(*inode, *place, outcome).map(|_| Outcome::Done),
            Operation::List(directory) => {
                let of_directory = self.names.range((*directory, 0)..=(*directory, u8::MAX));
                Ok(Outcome::Names(of_directory.map(|((_, name), inode)| (*name, *inode)).collect()))
            }
        }
    }

    fn named(&self, place: Place) -> Result<InodeNumber, FsError> {
        self.names.get(&place).copied().ok_or(FsError::NotFound)
    }

    fn show(&self, inode: InodeNumber) -> Outcome {
        let (mode, links) = self.files[&inode];
        Outcome::Shown(Shown { inode, mode, links })
    }

    fn create(&mut self, place: Place, mode: u32, outcome: &Outcome) -> Result<Outcome, FsError> {
        if self.names.contains_key(&place) {
            return Err(FsError::Exists);
        }
        // Which number is free is not for this model to say.
        let Outcome::Shown(Shown { inode, .. }) = outcome else { return Ok(Outcome::Done) };
        if self.files.contains_key(inode) {
            return Ok(Outcome::Done);
        }
        self.names.insert(place, *inode);
        self.files.insert(*inode, (mode, 1));
        Ok(self.show(*inode))
    }

    fn drop_name(&mut self, inode: InodeNumber) {
        let (_, links) = self.files.get_mut(&inode).expect("a name leads to a file");
        *links -= 1;
        if *links == 0 {
            self.files.remove(&inode);
        }
    }

    fn unlink(&mut self, place: Place) -> Result<Outcome, FsError> {
        let inode = self.names.remove(&place).ok_or(FsError::NotFound)?;
        self.drop_name(inode);
        Ok(Outcome::Done)
    }

    fn rename(&mut self, from: Place, to: Place) -> Result<Outcome, FsError> {
        let moved = self.named(from)?;
        if self.names.get(&to) == Some(&moved) {
            // Two names of one file: rename does nothing.
            return Ok(Outcome::Done);
        }
        self.names.remove(&from);
        if let Some(replaced) = self.names.insert(to, moved) {
            self.drop_name(replaced);
        }
        Ok(Outcome::Done)
    }

    fn rename_new(&mut self, from: Place, to: Place) -> Result<Outcome, FsError> {
        self.named(from)?;
        if self.names.contains_key(&to) {
            return Err(FsError::Exists);
        }
        self.rename(from, to)
    }

    fn exchange(&mut self, from: Place, to: Place) -> Result<Outcome, FsError> {
        let (one, other) = (self.named(from)?, self.named(to)?);
        self.names.insert(from, other);
        self.names.insert(to, one);
        Ok(Outcome::Done)
    }

    /// A file without a name is there for a while after its last name went, or is not: both answers
    /// are right. It gets no name again.
    fn gone(outcome: &Outcome) -> Result<Outcome, FsError> {
        match outcome {
            Outcome::Failed(FsError::NotFound) => Err(FsError::NotFound),
            _ => Err(FsError::Stale),
        }
    }

    fn link(&mut self, inode: InodeNumber, place: Place, outcome: &Outcome) -> Result<Outcome, FsError> {
        let is_taken = self.names.contains_key(&place);
        let Some((_, links)) = self.files.get_mut(&inode) else {
            return if is_taken && *outcome == Outcome::Failed(FsError::Exists) {
                Err(FsError::Exists)
            } else {
                Self::gone(outcome)
            };
        };
        if is_taken {
            return Err(FsError::Exists);
        }
        *links += 1;
        self.names.insert(place, inode);
        Ok(self.show(inode))
    }

    fn stat(&self, inode: InodeNumber, outcome: &Outcome) -> Result<Outcome, FsError> {
        match (self.files.get(&inode), outcome) {
            (Some(_), _) => Ok(self.show(inode)),
            // Modes of files without a name are not followed.
            (None, Outcome::Shown(shown)) => Ok(Outcome::Shown(Shown { inode, links: 0, mode: shown.mode })),
            (None, _) => Self::gone(outcome),
        }
    }

    fn set_mode(&mut self, inode: InodeNumber, new: u32, outcome: &Outcome) -> Result<Outcome, FsError> {
        match self.files.get_mut(&inode) {
            Some((mode, _)) => {
                *mode = new;
                Ok(self.show(inode))
            }
            None if matches!(outcome, Outcome::Shown(_)) => Ok(Outcome::Shown(Shown { inode, links: 0, mode: new })),
            None => Self::gone(outcome),
        }
    }
}
