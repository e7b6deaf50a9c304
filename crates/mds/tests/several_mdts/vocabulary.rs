//! Inodes, places, what clients ask for, and what MDTs send each other.

use std::collections::BTreeSet;

/// Index of an MDT.
pub type Target = u8;

/// The home MDT in the upper four bits. In the lower four: 0 to 7 directories, of which 6 and 7 are
/// striped over MDT 0 and MDT 1; 8 to 15 files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u8);

/// The root directory, on MDT 0.
pub const ROOT: Ino = Ino(0);

impl Ino {
    pub fn home(self) -> Target {
        self.0 >> 4
    }

    pub fn is_directory(self) -> bool {
        self.0 & 15 < 8
    }

    /// The MDTs that have names of this directory.
    pub fn shards(self) -> Vec<Target> {
        if matches!(self.0 & 15, 6 | 7) { vec![0, 1] } else { vec![self.home()] }
    }
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub Ino, pub u8);

impl Place {
    /// The MDT that has the name.
    pub fn target(self) -> Target {
        let shards = self.0.shards();
        shards[usize::from(self.1) % shards.len()]
    }
}

/// What a client asks for. A client of a rename or exchange says what it believes the source to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Create(Place, Ino),
    Mkdir(Place, Ino),
    Unlink(Place),
    Rmdir(Place),
    Link(Ino, Place),
    Rename(Place, Place),
    Exchange(Place, Place),
    Lookup(Place),
    Links(Ino),
}

impl Request {
    /// The MDT that decides.
    pub fn coordinator(self) -> Target {
        match self {
            Request::Create(at, _) | Request::Mkdir(at, _) | Request::Unlink(at) | Request::Rmdir(at) => at.target(),
            Request::Link(_, at) | Request::Rename(_, at) | Request::Exchange(_, at) | Request::Lookup(at) => {
                at.target()
            }
            Request::Links(ino) => ino.home(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Done,
    Failed,
    Found(Option<Ino>),
    Links(u8),
}

/// One attempt of an operation. Never used again: `start` is the start of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    pub coordinator: Target,
    pub start: u8,
    pub number: u8,
}

/// A step of an attempt at one MDT.
pub type StepId = (OpId, u8);

/// A change at one MDT, as it is prepared, logged and applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    SetName {
        at: Place,
        from: Option<Ino>,
        to: Option<Ino>,
    },
    MakeShard(Ino),
    RemoveShard(Ino),
    MakeInode(Ino, Place),
    RemoveInode(Ino, Place),
    AddLink(Ino, Place),
    DropLink(Ino, Place),
    MoveLink(Ino, Place, Place),
    /// Held by the one rename at a time that may change who is above whom; on MDT 0.
    Tree,
}

/// A decision in the log for one MDT.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    pub sequence: u8,
    pub step: StepId,
    pub parts: Vec<Part>,
}

/// Why an MDT does not prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    Failed,
    /// The name leads elsewhere than the coordinator believed.
    Changed(Place, Option<Ino>),
    /// What it is about is locked for another operation, and it has waited long enough.
    Busy,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// `promise`: what is prepared must survive a power loss.
    Prepare {
        step: StepId,
        parts: Vec<Part>,
        promise: bool,
    },
    Prepared(StepId),
    Refused(StepId, Refusal),
    /// Which directory is this one in?
    Parent(StepId, Ino),
    ParentIs(StepId, Ino, Option<Ino>),
    /// All decisions for the receiver that it is not known to have made durable.
    Log(Vec<Record>),
    /// Decisions up to this one are applied, durably.
    Logged(u8),
    Abort(OpId),
    /// The sender has started again, and the decisions of its former starts are delivered: what it
    /// has promised to the receiver.
    Join(BTreeSet<OpId>),
    /// The answer: the last decision for the receiver, which may be on its way, and those of the
    /// promised operations that do not run any more.
    Joined(u8, BTreeSet<OpId>),
}

impl Message {
    pub fn is_request(&self) -> bool {
        match self {
            Message::Prepare { .. } | Message::Parent(..) | Message::Log(_) | Message::Abort(_) | Message::Join(_) => {
                true
            }
            Message::Prepared(_)
            | Message::Refused(..)
            | Message::ParentIs(..)
            | Message::Logged(_)
            | Message::Joined(..) => false,
        }
    }
}
