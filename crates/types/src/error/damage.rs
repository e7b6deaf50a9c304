//! What is wrong with a stored structure.
//!
//! Most damage is a record, key or table whose bytes are wrong: [`Damage::Record`]. The other
//! variants are structures that decode and contradict each other.

use std::borrow::Cow;

use crate::{InodeNumber, ObjectId};

/// A stored structure that does not decode or contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A record, key or table whose bytes are wrong.
    #[error("{what}: {problem}")]
    Record {
        /// The kind of record, and where it is if that is not obvious: "directory entry", "record
        /// of object ... on stria-OST0003".
        what: Cow<'static, str>,
        /// What is wrong with it.
        problem: RecordDamage,
    },
    /// The record of an object counts other blocks than the object has.
    #[error(
        "object {object} on {target} counts {} blocks, {} of them {part}, but has {} and {}",
        counted.0, counted.1, found.0, found.1
    )]
    Blocks {
        /// The object.
        object: ObjectId,
        /// The target that holds it, as `stria-OST0003`.
        target: String,
        /// The blocks that are counted separately: "inline".
        part: &'static str,
        /// All blocks, and that part, by the record.
        counted: (u64, u64),
        /// All blocks, and that part, that there are.
        found: (u64, u64),
    },
    /// The record of an object counts other reserved blocks than the object has.
    #[error("object {object} on {target} counts {counted} reserved blocks without data, but has {found}")]
    ReservedBlocks {
        /// The object.
        object: ObjectId,
        /// The target that holds it, as `stria-OST0003`.
        target: String,
        /// By the record.
        counted: u64,
        /// There are.
        found: u64,
    },
    /// A directory has a name of an inode that does not exist.
    #[error("a name in directory {directory} refers to missing inode {inode}")]
    MissingInode {
        /// The directory.
        directory: InodeNumber,
        /// The missing inode.
        inode: InodeNumber,
    },
    /// The parents of this directory do not lead to the root.
    #[error("directory {0} is in a cycle")]
    Cycle(InodeNumber),
    /// An object of this file is fenced against the layout that the MDT has.
    #[error("the objects of file {0} refuse the layout that its metadata target has")]
    LayoutsRefused(InodeNumber),
    /// In the words of a server in another process.
    #[error("{0}")]
    Told(String),
}

impl Damage {
    /// A record, key or table whose bytes are wrong.
    pub fn new(what: impl Into<Cow<'static, str>>, problem: impl Into<RecordDamage>) -> Self {
        Damage::Record { what: what.into(), problem: problem.into() }
    }
}

/// What is wrong with the bytes of a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordDamage {
    /// It ends in the middle of a field.
    #[error("too short")]
    Short,
    /// Bytes after its last field.
    #[error("{0} bytes after the end")]
    Trailing(usize),
    /// Another version of the format.
    #[error("version {found}, expected {expected}")]
    Version {
        /// In the record.
        found: u8,
        /// The version that this release reads.
        expected: u8,
    },
    /// A field has a value it cannot have.
    #[error("{0} out of range")]
    OutOfRange(&'static str),
    /// Its key, which no record of its table can have.
    #[error("malformed key {0:02x?}")]
    Key(Vec<u8>),
    /// Fields contradict each other, or what they make up is not valid.
    #[error("{0}")]
    Invalid(String),
}

impl From<&str> for RecordDamage {
    fn from(problem: &str) -> Self {
        RecordDamage::Invalid(problem.to_owned())
    }
}

impl From<String> for RecordDamage {
    fn from(problem: String) -> Self {
        RecordDamage::Invalid(problem)
    }
}
