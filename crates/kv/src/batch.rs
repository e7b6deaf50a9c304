//! The unit of atomic change: a list of puts and deletes.

use bytes::Bytes;

/// A table within a store: keys of different tables never meet. Each user of kv lists its tables in
/// one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(pub u8);

/// Number of a batch in the journal: 1, 2, 3 without gaps. A batch is durable when the journal is
/// durable up to its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// The leadership that decided a batch: a term of the consensus between the copies of a store. 0,
/// since there is one copy; recovery checks that it never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Create or replace.
    Put(Table, Bytes, Bytes),
    /// Remove; a missing key is fine.
    Delete(Table, Bytes),
}

impl Operation {
    /// Table it changes.
    pub fn table(&self) -> Table {
        match self {
            Operation::Put(table, ..) | Operation::Delete(table, _) => *table,
        }
    }

    /// Key it changes.
    pub fn key(&self) -> &Bytes {
        match self {
            Operation::Put(_, key, _) | Operation::Delete(_, key) => key,
        }
    }

    /// Bytes of key and value.
    pub fn bytes(&self) -> usize {
        match self {
            Operation::Put(_, key, value) => key.len() + value.len(),
            Operation::Delete(_, key) => key.len(),
        }
    }
}

/// Changes that become visible together and survive together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In order; a later operation on the same key wins.
    pub operations: Vec<Operation>,
}

impl Batch {
    /// Adds a put.
    pub fn put(&mut self, table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.operations.push(Operation::Put(table, key.into(), value.into()));
    }

    /// Adds a delete.
    pub fn delete(&mut self, table: Table, key: impl Into<Bytes>) {
        self.operations.push(Operation::Delete(table, key.into()));
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}
