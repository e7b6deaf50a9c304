//! The one request by which a file leaves an OST that has no space ([`LeaveFullOst`]).

use layout::{ComponentId, Extent};
use serde::{Deserialize, Serialize};
use types::{Generation, InodeNumber, OstIndex};

use super::mdt::OpenId;

/// Give data that an OST refused for lack of space other objects, or objects that were never
/// created other OSTs. The caller holds the file's exclusive data lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveFullOst {
    /// The file.
    pub inode: InodeNumber,
    /// The caller's open for writing.
    pub open: OpenId,
    /// Generation of the layout that is to be changed. If the file has another, that one is the
    /// answer.
    pub generation: Generation,
    /// What is to be done.
    pub step: LeaveStep,
}

impl LeaveFullOst {
    /// The component whose objects are to be fenced, and the generation before which they refuse
    /// layouts.
    pub fn fence(&self) -> Option<(ComponentId, Generation)> {
        match self.step {
            LeaveStep::Fence(component) => Some((component, self.generation.next())),
            LeaveStep::LeaveOut(..) | LeaveStep::Relocate(_) => None,
        }
    }
}

/// A step of [`LeaveFullOst`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaveStep {
    /// Give the layout its next generation, and have the objects of this component refuse all
    /// earlier ones. Nobody but the caller is told the layout before the next step, or before the
    /// lock is released.
    Fence(ComponentId),
    /// After [`LeaveStep::Fence`]: leave a range, in whole blocks of 4096 bytes, out of the
    /// component. It gets other objects when it is written next. The caller found after the fence
    /// that no object has data in the range.
    LeaveOut(ComponentId, Extent),
    /// Assign other OSTs to objects that were never created. The caller is the only client to have
    /// the file open, has no change of it in progress, and found that the objects do not exist.
    Relocate(Relocation),
}

/// Which objects get other OSTs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocation {
    /// The epoch under which the caller knows the file exactly: it proves that the caller is the
    /// only source of changes.
    pub epoch: u64,
    /// The objects' slots.
    pub slots: Vec<u32>,
    /// OSTs that refused so far, now or before: they are not chosen.
    pub refused: Vec<OstIndex>,
}
