//! An operation as the journal has it.

use bytes::Bytes;

use super::patch::Patch;
use crate::batch::{Operation, Table};

/// A change of one key: with its whole value, or with what changes in it. The journal has the whole
/// value in front of its patches, after the beginning of every checkpoint: so neither what a
/// checkpoint wrote nor what it has made obsolete is needed to know a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedOperation {
    /// As it was applied.
    Whole(Operation),
    /// A put, of which the journal has the value before.
    Patched(Table, Bytes, Patch),
}

impl LoggedOperation {
    /// An operation that replaces a value which the journal has, or has none to go by.
    pub fn new(operation: &Operation, replaced: Option<&[u8]>) -> Self {
        match (operation, replaced) {
            (Operation::Put(table, key, value), Some(replaced)) => match Patch::between(replaced, value) {
                Some(patch) => Self::Patched(*table, key.clone(), patch),
                None => Self::Whole(operation.clone()),
            },
            _ => Self::Whole(operation.clone()),
        }
    }

    /// Table it changes.
    pub fn table(&self) -> Table {
        match self {
            Self::Whole(operation) => operation.table(),
            Self::Patched(table, ..) => *table,
        }
    }

    /// Key it changes.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Whole(operation) => operation.key(),
            Self::Patched(_, key, _) => key,
        }
    }

    /// The operation that was applied. `value`: the value of a key before it.
    pub fn resolve(self, value: impl FnOnce(Table, &[u8]) -> Option<Bytes>) -> Result<Operation, &'static str> {
        match self {
            Self::Whole(operation) => Ok(operation),
            Self::Patched(table, key, patch) => {
                let old = value(table, &key).ok_or("a change of a value that the journal does not have")?;
                let new = patch.apply(&old).ok_or("a change of another value than the journal has")?;
                Ok(Operation::Put(table, key, new))
            }
        }
    }
}
