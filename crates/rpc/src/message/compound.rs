//! Compounds: several operations of one caller on one MDT, in one request and one batch (compounds
//! of NFSv4; batched RPCs of Lustre).
//!
//! The steps are executed in order, each as the request of its name would be, with the same checks.
//! The first step that fails, or that is answered with a wait, ends the compound. The effects of
//! the steps before it remain; it has none itself. All changes of a compound are one batch: a crash
//! leaves all of them or none.
//!
//! A step names the inode that it is about, or an earlier step that found or made one. Only
//! operations that neither wait nor need a particular role can be steps, and a compound is not one.
//!
//! Everything that is known about a compound before its execution is checked before it
//! ([`Compound::check`]): number of steps, references, bytes of data. A step whose reply would make
//! the replies too large fails.
//!
//! Downside: the namespace of the MDT is locked from the first step to the last.

use layout::{Layout, LayoutSpec};
use serde::{Deserialize, Serialize};
use types::{
    Credentials, FsError, FsResult, InodeNumber, NodeKind, SetAttributes,
    limits::{COMPOUND_DATA_BYTES_MAX, COMPOUND_STEPS_MAX},
};

use super::{
    kind::{Effect, MdtKind},
    mdt::{Closed, Created, Entry, MdtReply, OpenFlags, OpenId, Opened, open_flag},
    ost::{Changed, OstReply, ReadDone},
};

/// Number of a step within its compound, from 0.
pub type StepNumber = u8;

/// The inode that a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepInode {
    /// This one.
    Known(InodeNumber),
    /// The one that the reply of an earlier step describes.
    Of(StepNumber),
}

/// One operation of a compound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// [`super::mdt::Lookup`]. -> Entry
    Lookup {
        /// Directory.
        parent: StepInode,
        /// Name within it.
        name: Vec<u8>,
    },
    /// -> Entry
    GetAttributes {
        /// The inode.
        inode: StepInode,
    },
    /// -> Entry, or AskObjects, which ends the compound
    SetAttributes {
        /// The inode.
        inode: StepInode,
        /// What to set.
        set: SetAttributes,
    },
    /// access(2). -> Done
    Access {
        /// The inode.
        inode: StepInode,
        /// 4 read, 2 write, 1 execute.
        mask: u32,
    },
    /// -> Target
    ReadLink {
        /// The symbolic link.
        inode: StepInode,
    },
    /// -> Value
    GetXattr {
        /// The inode.
        inode: StepInode,
        /// Full name with its prefix.
        name: Vec<u8>,
    },
    /// [`super::mdt::Open`], without truncation. -> Opened, or Waiting, which ends the compound
    Open {
        /// The file or directory.
        inode: StepInode,
        /// The client's name for this open.
        open: OpenId,
        /// How.
        flags: OpenFlags,
    },
    /// [`super::mdt::Create`], without truncation. -> Created, or Waiting, which ends the compound
    Create {
        /// Directory.
        parent: StepInode,
        /// New name.
        name: Vec<u8>,
        /// What to create.
        kind: NodeKind,
        /// Requested permission bits (12 bits), before the umask.
        mode: u32,
        /// Bits to clear, unless the directory has a default access list.
        umask: u32,
        /// Requested layout; `None` inherits.
        layout: Option<LayoutSpec>,
        /// Open the file too.
        open: Option<(OpenId, OpenFlags)>,
    },
    /// Write data of the request to a file that the client has open for writing. `NotSupported` if
    /// the range is not on this MDT. -> Written
    Write {
        /// The file.
        inode: StepInode,
        /// Byte offset.
        offset: u64,
        /// Bytes; those of the first `Write` are the first of the request's bulk data.
        bytes: u32,
        /// CRC-32C per piece, as in [`super::ost::Write`].
        checksums: Vec<u32>,
    },
    /// Read data of a file into the bulk data of the reply, in the order of the steps. As with an
    /// OST, the client checks which of its users may. `NotSupported` if the beginning of the file
    /// is not on this MDT; what is elsewhere is not read. -> Read
    Read {
        /// The file.
        inode: StepInode,
        /// Byte offset.
        offset: u64,
        /// Bytes wanted.
        bytes: u32,
    },
    /// [`super::mdt::Close`]. -> Closed
    Close {
        /// The file.
        inode: StepInode,
        /// Which open.
        open: OpenId,
        /// The open was made by an earlier step of this compound, and the `Write` of this step was
        /// the only change through it: the file has the size that it left. Without it, and if
        /// objects on OSTs may have data of the file, nothing is said of the size.
        written: Option<StepNumber>,
    },
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compound {
    /// The user for whom all steps are executed.
    pub who: Credentials,
    /// At most [`COMPOUND_STEPS_MAX`].
    pub steps: Vec<Step>,
}

/// Reply of a step.
#[expect(
    clippy::large_enum_variant,
    reason = "the large ones are the frequent ones; a box would cost each an allocation"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StepReply {
    /// Success without data.
    Done,
    /// An inode.
    Entry(Entry),
    /// A new node.
    Created(Created),
    /// An open file.
    Opened(Opened),
    /// A closed file.
    Closed(Closed),
    /// Target of a symbolic link.
    Target(Vec<u8>),
    /// Value of an extended attribute.
    Value(Vec<u8>),
    /// Data were written.
    Written(Changed),
    /// With bulk data: as many bytes as requested, less those at or after `size`.
    Read(ReadDone),
    /// Nothing was done: others hold what the step needs. The last reply.
    Waiting,
    /// Nothing was done: the objects of this layout are to be asked first. The last reply.
    AskObjects(Layout),
}

/// Answer to [`Compound`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompoundReply {
    /// Of the first steps, in order. (If stored data turn out to be damaged, steps after the read
    /// that found it have been executed, and their replies are missing.)
    pub replies: Vec<StepReply>,
    /// Of the step after these; `None`: none failed.
    pub error: Option<FsError>,
}

impl Step {
    /// The request that it is.
    pub const fn kind(&self) -> MdtKind {
        match self {
            Step::Lookup { .. } => MdtKind::Lookup,
            Step::GetAttributes { .. } => MdtKind::GetAttributes,
            Step::SetAttributes { .. } => MdtKind::SetAttributes,
            Step::Access { .. } => MdtKind::Access,
            Step::ReadLink { .. } => MdtKind::ReadLink,
            Step::GetXattr { .. } => MdtKind::GetXattr,
            Step::Open { .. } => MdtKind::Open,
            Step::Create { .. } => MdtKind::Create,
            Step::Write { .. } => MdtKind::ChangeData,
            Step::Read { .. } => MdtKind::ReadData,
            Step::Close { .. } => MdtKind::Close,
        }
    }

    /// The inode that it is about, or whose names it is about.
    pub const fn inode(&self) -> StepInode {
        match self {
            Step::Lookup { parent: inode, .. }
            | Step::GetAttributes { inode }
            | Step::SetAttributes { inode, .. }
            | Step::Access { inode, .. }
            | Step::ReadLink { inode }
            | Step::GetXattr { inode, .. }
            | Step::Open { inode, .. }
            | Step::Create { parent: inode, .. }
            | Step::Write { inode, .. }
            | Step::Read { inode, .. }
            | Step::Close { inode, .. } => *inode,
        }
    }

    /// Whether its reply describes an inode.
    const fn finds_inode(&self) -> bool {
        match self {
            Step::Lookup { .. }
            | Step::GetAttributes { .. }
            | Step::SetAttributes { .. }
            | Step::Open { .. }
            | Step::Create { .. } => true,
            Step::Access { .. }
            | Step::ReadLink { .. }
            | Step::GetXattr { .. }
            | Step::Write { .. }
            | Step::Read { .. }
            | Step::Close { .. } => false,
        }
    }

    /// How the file is opened, if the step opens one.
    pub const fn opens(&self) -> Option<(OpenId, OpenFlags)> {
        match self {
            Step::Open { open, flags, .. } => Some((*open, *flags)),
            Step::Create { open, .. } => *open,
            Step::Lookup { .. }
            | Step::GetAttributes { .. }
            | Step::SetAttributes { .. }
            | Step::Access { .. }
            | Step::ReadLink { .. }
            | Step::GetXattr { .. }
            | Step::Write { .. }
            | Step::Read { .. }
            | Step::Close { .. } => None,
        }
    }

    /// What it changes. Data that are written are kept by the MDT like names.
    pub const fn effect(&self) -> Effect {
        match self.kind().row().effect {
            Effect::Data => Effect::Namespace,
            effect @ (Effect::Nothing | Effect::State | Effect::Namespace) => effect,
        }
    }
}

impl Compound {
    /// What it changes: what the step does that changes most.
    pub fn effect(&self) -> Effect {
        let changes = |effect| self.steps.iter().any(|step| step.effect() == effect);
        match () {
            () if changes(Effect::Namespace) => Effect::Namespace,
            () if changes(Effect::State) => Effect::State,
            () => Effect::Nothing,
        }
    }

    /// Bytes of data that it writes.
    pub fn bytes_written(&self) -> u64 {
        let bytes = |step: &Step| if let Step::Write { bytes, .. } = step { u64::from(*bytes) } else { 0 };
        self.steps.iter().map(bytes).sum()
    }

    /// Bytes of data that it reads, at most.
    pub fn bytes_read(&self) -> u64 {
        let bytes = |step: &Step| if let Step::Read { bytes, .. } = step { u64::from(*bytes) } else { 0 };
        self.steps.iter().map(bytes).sum()
    }

    /// Fails if it cannot be executed whatever the MDT has: it has too many steps or bytes of data
    /// (`TooBig`); it has none, refers to a step that is not before the one that refers to it or
    /// that finds no inode, truncates, opens by one id twice, closes what it has not opened or has
    /// closed, or reads data and changes names or data (`Invalid`: the reply that is stored with a
    /// change has no data).
    pub fn check(&self) -> FsResult<()> {
        let bytes_max = COMPOUND_DATA_BYTES_MAX as u64;
        if self.steps.len() > COMPOUND_STEPS_MAX || self.bytes_written() > bytes_max || self.bytes_read() > bytes_max {
            return Err(FsError::TooBig);
        }
        let reads = self.steps.iter().any(|step| matches!(step, Step::Read { .. }));
        if self.steps.is_empty() || reads && self.effect() == Effect::Namespace {
            return Err(FsError::Invalid);
        }
        let are_valid = self.steps.iter().enumerate().all(|(at, step)| self.is_valid(&self.steps[..at], step));
        if are_valid { Ok(()) } else { Err(FsError::Invalid) }
    }

    fn is_valid(&self, before: &[Step], step: &Step) -> bool {
        let refers = match step.inode() {
            StepInode::Known(_) => true,
            StepInode::Of(number) => before.get(usize::from(number)).is_some_and(Step::finds_inode),
        };
        let is_write = |number: StepNumber| matches!(before.get(usize::from(number)), Some(Step::Write { .. }));
        let opened = |id: OpenId| before.iter().any(|step| step.opens().is_some_and(|(open, _)| open == id));
        let closed = |id: OpenId| before.iter().any(|step| matches!(step, Step::Close { open, .. } if *open == id));
        let closes = match step {
            Step::Close { open, written, .. } => written.is_none_or(is_write) && opened(*open) && !closed(*open),
            _ => true,
        };
        let opens = step.opens().is_none_or(|(id, flags)| !opened(id) && !flags.has(open_flag::TRUNCATE));
        refers && closes && opens
    }
}

impl StepReply {
    /// The inode that it describes.
    pub const fn inode(&self) -> Option<InodeNumber> {
        match self {
            StepReply::Entry(entry)
            | StepReply::Created(Created { entry, .. })
            | StepReply::Opened(Opened { entry, .. }) => Some(entry.attributes.inode),
            StepReply::Done
            | StepReply::Closed(_)
            | StepReply::Target(_)
            | StepReply::Value(_)
            | StepReply::Written(_)
            | StepReply::Read(_)
            | StepReply::Waiting
            | StepReply::AskObjects(_) => None,
        }
    }

    /// What it says of an open.
    pub const fn opened(&self) -> Option<&Opened> {
        match self {
            StepReply::Created(Created { opened, .. }) => opened.as_ref(),
            StepReply::Opened(opened) => Some(opened),
            StepReply::Done
            | StepReply::Entry(_)
            | StepReply::Closed(_)
            | StepReply::Target(_)
            | StepReply::Value(_)
            | StepReply::Written(_)
            | StepReply::Read(_)
            | StepReply::Waiting
            | StepReply::AskObjects(_) => None,
        }
    }

    /// Whether nothing was done, so that the compound ends here.
    pub const fn ends(&self) -> bool {
        match self {
            StepReply::Waiting | StepReply::AskObjects(_) => true,
            StepReply::Done
            | StepReply::Entry(_)
            | StepReply::Created(_)
            | StepReply::Opened(_)
            | StepReply::Closed(_)
            | StepReply::Target(_)
            | StepReply::Value(_)
            | StepReply::Written(_)
            | StepReply::Read(_) => false,
        }
    }
}

impl TryFrom<MdtReply> for StepReply {
    type Error = MdtReply;

    /// The reply of the request that a step is.
    fn try_from(reply: MdtReply) -> Result<Self, MdtReply> {
        Ok(match reply {
            MdtReply::Done => StepReply::Done,
            MdtReply::Entry(entry) => StepReply::Entry(entry),
            MdtReply::Created(created) => StepReply::Created(*created),
            MdtReply::Opened(opened) => StepReply::Opened(*opened),
            MdtReply::Closed(closed) => StepReply::Closed(closed),
            MdtReply::Target(target) => StepReply::Target(target),
            MdtReply::Value(value) => StepReply::Value(value),
            MdtReply::Data(OstReply::Changed(changed)) => StepReply::Written(changed),
            MdtReply::Data(OstReply::Read(done)) => StepReply::Read(done),
            MdtReply::Waiting => StepReply::Waiting,
            MdtReply::AskObjects(layout) => StepReply::AskObjects(layout),
            other @ (MdtReply::ExclusiveGranted(_)
            | MdtReply::Directory(..)
            | MdtReply::Names(_)
            | MdtReply::Layout(_)
            | MdtReply::Paths(_)
            | MdtReply::Lock(_)
            | MdtReply::Space(_)
            | MdtReply::Findings(_)
            | MdtReply::Scanned(_)
            | MdtReply::Data(_)
            | MdtReply::Compound(_)
            | MdtReply::Version(_)
            | MdtReply::NotReclaimed(_)
            | MdtReply::SyncFirst(_)
            | MdtReply::Remote(_)
            | MdtReply::PathsBelow(_)
            | MdtReply::Prepared(_)
            | MdtReply::Joined(_)
            | MdtReply::RemoteNames(_)
            | MdtReply::Ancestry(_)
            | MdtReply::Striped(_)
            | MdtReply::Decided(_)
            | MdtReply::MovingNames(_)
            | MdtReply::Given(_)
            | MdtReply::ReturningNames(_)
            | MdtReply::Absent
            | MdtReply::LocksClaimed(_)
            | MdtReply::Queued
            | MdtReply::AccessesNoted(_)) => return Err(other),
        })
    }
}

impl CompoundReply {
    /// The opens that are left by `compound`, whose reply this is: those that a step made and no
    /// later one ended.
    pub fn opens_left<'a>(&'a self, compound: &'a Compound) -> impl Iterator<Item = ((OpenId, OpenFlags), &'a Opened)> {
        let done = || compound.steps.iter().zip(&self.replies);
        done().enumerate().filter_map(move |(at, (step, reply))| {
            let (open, opened) = (step.opens()?, reply.opened()?);
            let is_closed =
                done().skip(at + 1).any(|(later, _)| matches!(later, Step::Close { open: of, .. } if *of == open.0));
            (!is_closed).then_some((open, opened))
        })
    }
}

#[cfg(test)]
#[path = "compound_tests.rs"]
mod tests;
