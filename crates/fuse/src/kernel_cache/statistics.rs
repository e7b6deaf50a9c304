//! What the caches of the kernel were given, and what was withdrawn from them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Replies that made attributes valid.
    AttributesGiven,
    /// Replies that made a name valid.
    NamesGiven,
    /// Notifications about the attributes of an inode.
    AttributesDropped,
    /// Notifications about a name.
    NamesDropped,
    /// Directories that were opened so that the kernel serves their names.
    ListingsServed,
    /// Notifications about the listing of a directory.
    ListingsDropped,
    /// Times that all names were declared outdated.
    Epochs,
    /// Withdrawals that took longer than a second.
    Overdue,
}

/// Names of [`Count`]s, in order.
const NAMES: [(Count, &str); 8] = [
    (Count::AttributesGiven, "attributes_given"),
    (Count::NamesGiven, "names_given"),
    (Count::AttributesDropped, "attributes_dropped"),
    (Count::NamesDropped, "names_dropped"),
    (Count::ListingsServed, "listings_served"),
    (Count::ListingsDropped, "listings_dropped"),
    (Count::Epochs, "epochs"),
    (Count::Overdue, "overdue"),
];

/// Counters.
#[derive(Debug, Default)]
pub struct Statistics([AtomicU64; NAMES.len()]);

impl Statistics {
    pub(super) fn add(&self, count: Count) {
        self.0[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often it happened.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }

    /// All counters, by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().map(|(count, name)| (name, self.get(count)))
    }
}
