//! When to free the space of deleted entries of an LSM tree: deleted keys and their tombstones are
//! dropped by rewriting the remaining entries.
//!
//! The tree's own compactions consider only the sizes of levels. Deleting everything writes next to
//! nothing, so they do nothing, and a device filled with small values stays full. So the whole tree
//! is rewritten when the dead entries are large compared with the free space, and there is space to
//! write the remaining entries.
//!
//! The size of dead entries is estimated from counts: each tombstone hides a value of average size,
//! and takes no space itself. Deleted keys that were never on disk make the estimate too high,
//! which costs at most one rewrite: their tombstones disappear with it.
//!
//! Downside: the remaining entries must fit into the free space. On a full device of which half was
//! deleted, only the tree's own compactions free space, where they happen to find dead entries.

/// Dead bytes below which rewriting is not worth it.
const DEAD_BYTES_MIN: u64 = 16 << 20;
/// Free bytes per dead byte above which space is not short enough,
const FREE_PER_DEAD: u64 = 2;
/// unless it is so little that a target may refuse to write: it keeps back some of it.
const FREE_BYTES_SHORT: u64 = 512 << 20;
/// Space that is left free besides what is written: for indices and filters, and for a checkpoint
/// meanwhile.
const MARGIN_BYTES: u64 = 4 << 20;

/// What is known of a tree without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    /// Bytes of the tree's files.
    pub tables_bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    pub tombstones: u64,
    /// Free bytes of the device.
    pub free_bytes: u64,
    /// What others take of them while the tree is rewritten: the store's journals.
    pub growth_bytes: u64,
}

impl Estimate {
    /// Bytes of what the tombstones hide.
    pub fn dead_bytes(&self) -> u64 {
        let values = self.entries.saturating_sub(self.tombstones);
        let hidden = self.tombstones.min(values);
        if values == 0 {
            // Tombstones alone, of tables that are gone.
            return self.tables_bytes;
        }
        let bytes = u128::from(self.tables_bytes) * u128::from(hidden) / u128::from(values);
        u64::try_from(bytes).expect("no more than the tree has")
    }

    /// What rewriting the tree writes before anything is given back, at most, by this estimate.
    pub fn rewritten_bytes(&self) -> u64 {
        let live = self.tables_bytes - self.dead_bytes();
        live.saturating_add(live / 8).saturating_add(MARGIN_BYTES)
    }

    /// Whether the dead entries are large compared with the free space.
    pub fn is_worth_it(&self) -> bool {
        let dead = self.dead_bytes();
        dead >= DEAD_BYTES_MIN && self.free_bytes <= dead.saturating_mul(FREE_PER_DEAD).max(FREE_BYTES_SHORT)
    }

    /// Whether the tree is to be rewritten now: that is worth it, and there is room.
    pub fn is_due(&self) -> bool {
        let rewritten = self.rewritten_bytes();
        // The less there is to write, the less time others have.
        let needed = rewritten.saturating_add(self.growth_bytes.min(rewritten));
        self.is_worth_it() && self.free_bytes >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn estimate(tables_mib: u64, entries: u64, tombstones: u64, free_mib: u64) -> Estimate {
        Estimate { tables_bytes: tables_mib * MIB, entries, tombstones, free_bytes: free_mib * MIB, growth_bytes: 0 }
    }

    #[test]
    fn what_is_dead_is_estimated_by_counts() {
        assert_eq!(estimate(100, 1000, 0, 0).dead_bytes(), 0);
        assert_eq!(estimate(80, 1000, 200, 0).dead_bytes(), 20 * MIB, "200 of 800 values");
        assert_eq!(estimate(100, 1000, 900, 0).dead_bytes(), 100 * MIB, "never more than there is");
        assert_eq!(estimate(100, 1000, 1200, 0).dead_bytes(), 100 * MIB, "of what is in buffers, too");
        assert_eq!(estimate(0, 0, 0, 0).dead_bytes(), 0);
    }

    #[test]
    fn a_tree_is_rewritten_if_that_gives_back_what_matters_and_has_space() {
        assert!(estimate(500, 1000, 500, 30).is_due(), "everything was deleted from a full device");
        assert!(!estimate(500, 1000, 10, 30).is_due(), "10 MiB");
        assert!(!estimate(500, 1000, 500, 2000).is_due(), "there is space");
        assert!(!estimate(500, 1000, 250, 30).is_due(), "no room for what is left");
        assert!(estimate(500, 1000, 250, 400).is_due());
        assert!(estimate(20, 1000, 500, 140).is_due(), "a target may keep back 128 MiB");
        assert!(!estimate(500, 1000, 500, 3).is_due(), "no room at all");
        let crowded = Estimate { growth_bytes: 64 * MIB, ..estimate(500, 1000, 250, 400) };
        assert!(!crowded.is_due(), "others need the room");
        let crowded = Estimate { growth_bytes: 64 * MIB, ..estimate(500, 1000, 500, 30) };
        assert!(crowded.is_due(), "it is done before they need much");
    }
}
