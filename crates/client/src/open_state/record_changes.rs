//! Which changes of a record at the MDT are durable.
//!
//! A commit covers the changes before it was requested; changes made while it was in progress need
//! another one.

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordChanges {
    /// Changes this client knows of.
    made: u64,
    /// How many of them are known to be durable.
    durable: u64,
}

impl RecordChanges {
    /// Of a record that this client learns of now, of which nothing is known to be durable.
    pub fn of_new_record() -> Self {
        Self { made: 1, durable: 0 }
    }

    /// The record changed, or may have.
    pub fn changed(&mut self) {
        self.made += 1;
    }

    /// Whether all of them are durable.
    pub fn is_durable(self) -> bool {
        assert!(self.durable <= self.made, "only changes that were made are durable");
        self.made == self.durable
    }

    /// A commit that was asked for when the changes were `before` is done.
    pub fn committed(&mut self, before: RecordChanges) {
        assert!(before.made <= self.made, "a commit covers changes that were made");
        self.durable = self.durable.max(before.made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_does_not_cover_what_changed_while_it_was_under_way() {
        let mut record = RecordChanges::default();
        record.changed();
        let before = record;
        record.changed();
        record.committed(before);
        assert!(!record.is_durable(), "the file grew after the commit was asked for");
        record.committed(record);
        assert!(record.is_durable());
        record.committed(before);
        assert!(record.is_durable(), "a commit that comes late takes nothing back");
    }
}
