//! What an administrator can change about the allocator, under the names of ldiskfs.

use crate::{free_runs::GROUP_RUNS_MAX, geometry::GROUP_BLOCKS};

/// Entries of a table, at most: ldiskfs's `EXT4_MAX_PREALLOC_TABLE`.
pub const TABLE_ENTRIES_MAX: usize = 64;

/// Smallest adaptive window of large requests and objects: 1 MiB, what a bulk request carries.
const ADAPTIVE_BLOCKS_MIN: u64 = 256;

/// Part of the free space that adaptive windows may hold, all of them together.
const ADAPTIVE_SHARE: u64 = 8;

/// Part of what windows may still hold that the next one gets, however many there are: most belong
/// to objects that are complete, and will be given back.
const ADAPTIVE_NEXT: u64 = 4;

/// Tunables of the allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Windows of large objects by their size; `None`: they grow with the object.
    pub prealloc_table: Option<PreallocTable>,
    /// A request of at least so many blocks gets a window of its object.
    pub mb_small_req: u32,
    /// An object of at least so many blocks gets windows of its own.
    pub mb_large_req: u32,
    /// Blocks of a window that small objects of one locality share.
    pub mb_group_prealloc: u32,
    /// Free runs of a group that are looked at for a place that is aligned and not before the
    /// allocation pointer, before any place is taken.
    pub mb_max_to_scan: u32,
    /// Free blocks that only requests with [`crate::Request::may_use_reserve`] get.
    pub reserve_blocks: u64,
}

impl Default for Policy {
    /// As ldiskfs (`ext4-prealloc.patch`), with adaptive windows; all runs of a group are looked
    /// at.
    fn default() -> Self {
        Self {
            prealloc_table: None,
            mb_small_req: 256,
            mb_large_req: 1024,
            mb_group_prealloc: 512,
            mb_max_to_scan: GROUP_RUNS_MAX,
            reserve_blocks: 0,
        }
    }
}

impl Policy {
    /// As ldiskfs with this table.
    pub fn with_table(table: PreallocTable) -> Self {
        Self { prealloc_table: Some(table), ..Self::default() }
    }

    /// Whether windows are as large as objects are.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.prealloc_table.is_none()
    }

    /// Whether a request, or its object, is so large that it gets a window of its object, and not
    /// one that small objects share. `end`: blocks of the object after the request.
    pub(crate) fn is_large(&self, blocks: u32, end: u64) -> bool {
        blocks >= self.mb_small_req || end >= u64::from(self.mb_large_req)
    }

    /// Whether an object goes on at its end: then it gets an adaptive window of its own, also while
    /// it is small. In the window of their locality, objects that are written together would
    /// alternate with each request. `size`: blocks of the object after the request. The last one
    /// may be written in part, and is not of the request then.
    pub(crate) fn goes_on(&self, (logical, end): (u64, u64), size: u64) -> bool {
        self.is_adaptive() && logical > 0 && end + 1 >= size
    }

    /// Where a window ends, in blocks of the object, that begins with a request.
    ///
    /// `end`: end of the request; `size`: blocks of the object; `is_large`: as [`Self::is_large`]
    /// says; `free`: free blocks that the request may use; `windows`: how many there are, and
    /// `held` their blocks.
    pub(crate) fn window_end(
        &self,
        (logical, end): (u64, u64),
        (size, is_large): (u64, bool),
        free: u64,
        (windows, held): (usize, u64),
    ) -> u64 {
        let size = size.max(end);
        let end_of_window = match &self.prealloc_table {
            Some(table) => table.window_end(end, size),
            None => {
                let equal = free / ADAPTIVE_SHARE / (windows as u64 + 1);
                let share = equal.max(((free + held) / ADAPTIVE_SHARE).saturating_sub(held) / ADAPTIVE_NEXT);
                let least = if is_large { ADAPTIVE_BLOCKS_MIN } else { 1 };
                let blocks = size.min(share).clamp(least, u64::from(GROUP_BLOCKS));
                end.next_multiple_of(1 << blocks.ilog2())
            }
        };
        end_of_window.min(logical + u64::from(GROUP_BLOCKS)).max(end)
    }
}

/// Sizes of windows in blocks, ascending. ldiskfs's `prealloc_table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreallocTable(Vec<u32>);

/// Why a table was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a table of pre-allocation windows has 1 to 64 ascending numbers of blocks from 1 to 32768")]
pub struct InvalidTable;

impl PreallocTable {
    /// A table with these entries.
    pub fn new(entries: &[u32]) -> Result<Self, InvalidTable> {
        let fits = (1..=TABLE_ENTRIES_MAX).contains(&entries.len());
        let in_range = entries.iter().all(|blocks| (1..=GROUP_BLOCKS).contains(blocks));
        let ascending = entries.is_sorted_by(|one, next| one < next);
        if fits && in_range && ascending { Ok(Self(entries.to_vec())) } else { Err(InvalidTable) }
    }

    /// Blocks of its largest window.
    pub fn largest(&self) -> u32 {
        *self.0.last().expect("a table has an entry")
    }

    /// ldiskfs's rule (`ext4_mb_normalize_request`): an object that fits an entry gets the smallest
    /// such window; a larger one gets the largest window, aligned within the object.
    fn window_end(&self, end: u64, size: u64) -> u64 {
        match self.0.iter().find(|blocks| size <= u64::from(**blocks)) {
            Some(blocks) => u64::from(*blocks),
            None => end.next_multiple_of(u64::from(self.largest())),
        }
    }
}

impl std::str::FromStr for PreallocTable {
    type Err = InvalidTable;

    /// As ldiskfs reads it: numbers separated by spaces.
    fn from_str(text: &str) -> Result<Self, InvalidTable> {
        let entries: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
        Self::new(&entries.map_err(|_| InvalidTable)?)
    }
}

impl std::fmt::Display for PreallocTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries: Vec<String> = self.0.iter().map(u32::to_string).collect();
        formatter.write_str(&entries.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(table: &str) -> Policy {
        Policy::with_table(table.parse().unwrap())
    }

    #[test]
    fn tables_are_read_as_they_are_written() {
        let table: PreallocTable = " 256 512  1024 2048\n".parse().unwrap();
        assert_eq!((table.to_string().as_str(), table.largest()), ("256 512 1024 2048", 2048));
        for wrong in ["", "0", "512 256", "256 256", "32769", "1 x", "-1"] {
            assert_eq!(wrong.parse::<PreallocTable>(), Err(InvalidTable), "{wrong}");
        }
    }

    #[test]
    fn a_table_has_up_to_64_entries() {
        let entries: Vec<u32> = (1..=TABLE_ENTRIES_MAX as u32).map(|number| number * 512).collect();
        let table = PreallocTable::new(&entries).unwrap();
        assert_eq!((table.to_string().parse(), table.largest()), (Ok(table.clone()), 32_768));
        for (size, window) in [(1, 512), (512, 512), (513, 1024), (32_000, 32_256), (32_768, 32_768), (40_000, 65_536)]
        {
            assert_eq!(table.window_end(size, size), window, "an object of {size} blocks");
        }
        let more: Vec<u32> = (1..=TABLE_ENTRIES_MAX as u32 + 1).collect();
        assert_eq!(PreallocTable::new(&more), Err(InvalidTable));
    }

    #[test]
    fn small_objects_get_the_smallest_window_that_fits_and_large_ones_the_largest() {
        let policy = policy("128 256 512");
        let end = |logical, end, size| policy.window_end((logical, end), (size, true), 1 << 30, (0, 0));
        assert_eq!(end(0, 10, 0), 128);
        assert_eq!(end(100, 129, 0), 256);
        assert_eq!(end(0, 10, 300), 512, "the object is that large already");
        assert_eq!(end(600, 700, 0), 1024, "aligned within the object");
        assert_eq!(end(1024, 1280, 0), 1536);
        assert_eq!(end(0, 2000, 0), 2048, "a request is never cut");
    }

    #[test]
    fn the_smallest_table_of_the_study_gives_requests_of_1_mib_1_mib() {
        assert_eq!(policy("32 64 128").window_end((512, 768), (512, true), 1 << 30, (0, 0)), 768);
    }

    #[test]
    fn adaptive_windows_grow_with_the_object_and_shrink_with_the_free_space() {
        let adaptive = Policy::default();
        let blocks = |logical: u64, free, windows| {
            adaptive.window_end((logical, logical + 256), (logical, true), free, windows) - logical
        };
        assert_eq!(blocks(0, 1 << 30, (0, 0)), 256);
        assert_eq!(blocks(2048, 1 << 30, (0, 0)), 2048);
        assert_eq!(blocks(1 << 20, 1 << 30, (0, 0)), u64::from(GROUP_BLOCKS));
        assert_eq!(blocks(1 << 20, 1 << 20, (19, 1 << 17)), 4096, "an eighth of the free space for 20 windows");
        assert_eq!(blocks(1 << 20, 15 << 16, (1000, 1 << 16)), 16_384, "a quarter of what is left of an eighth");
        assert_eq!(blocks(1 << 20, 100, (19, 0)), 256);
    }

    #[test]
    fn small_objects_that_go_on_get_windows_as_large_as_they_are() {
        let adaptive = Policy::default();
        let end = |(logical, end), free| adaptive.window_end((logical, end), (end, false), free, (0, 0));
        assert_eq!([end((16, 32), 1 << 30), end((32, 48), 1 << 30), end((64, 80), 1 << 30)], [32, 64, 128]);
        assert_eq!(end((64, 80), 0), 80, "nothing is left for windows");
        assert!(adaptive.goes_on((16, 32), 32) && adaptive.goes_on((16, 32), 33), "the last block in part");
        assert!(!adaptive.goes_on((0, 16), 16) && !adaptive.goes_on((16, 32), 64), "its beginning and its middle");
        assert!(!policy("128 256 512").goes_on((16, 32), 32), "ldiskfs has no such rule");
    }
}
