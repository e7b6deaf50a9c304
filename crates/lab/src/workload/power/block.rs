//! What is known about one block: which version is durable, and which were written since.

use std::time::Duration;

use rt::Instant;
use types::limits::BLOCK_BYTES;

use crate::reference::pattern;

/// Bytes of a block.
pub const BLOCK: usize = BLOCK_BYTES as usize;

/// Number of a write; larger is later. 0 is a hole, or after the end of the file.
pub type Version = u32;

/// Not the number of any open that is still there.
const NO_OPEN: u32 = u32::MAX;

/// A version that was written.
#[derive(Clone, Copy, Debug)]
struct Written {
    version: Version,
    /// Number of the open that it went through.
    open: u32,
    /// `None`: in progress.
    acknowledged: Option<Instant>,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Block {
    durable: Version,
    later: Vec<Written>,
}

impl Block {
    /// A version is about to be written.
    pub fn begin(&mut self, version: Version, open: u32) {
        self.later.push(Written { version, open, acknowledged: None });
    }

    /// It was acknowledged.
    pub fn acknowledge(&mut self, version: Version, now: Instant) {
        for written in self.later.iter_mut().filter(|written| written.version == version) {
            written.acknowledged.get_or_insert(now);
        }
    }

    /// A sync that began at `begun` succeeded.
    pub fn synced(&mut self, begun: Instant) {
        let before = |written: &Written| written.acknowledged.is_some_and(|time| time <= begun);
        if let Some(position) = self.later.iter().rposition(before) {
            self.durable = self.later[position].version;
            self.later.drain(..=position);
        }
    }

    /// The version that a read must see while nothing is in progress.
    pub fn last(&self) -> Version {
        let acknowledged = self.later.iter().rev().find(|written| written.acknowledged.is_some());
        acknowledged.map_or(self.durable, |written| written.version)
    }

    /// The last version that was begun.
    pub fn last_begun(&self) -> Version {
        self.later.last().map_or(self.durable, |written| written.version)
    }

    /// Versions that may be there after a power loss at `at`. `lost`: the block's OST was hit; then
    /// what was acknowledged longer than `bound` before is there nevertheless.
    pub fn possible(&self, lost: bool, at: Instant, bound: Duration) -> Vec<Version> {
        let old = |written: &Written| written.acknowledged.is_some_and(|time| at.since(time) > bound);
        let first = match lost {
            true => self.later.iter().rposition(old),
            false => self.later.iter().rposition(|written| written.acknowledged.is_some()),
        };
        let later = self.later[first.unwrap_or(0)..].iter().map(|written| written.version);
        let durable = if first.is_none() { Some(self.durable) } else { None };
        durable.into_iter().chain(later).collect()
    }

    /// The block is another file's now: what was written went through none of that file's opens.
    pub fn forget_opens(&mut self) {
        self.later.iter_mut().for_each(|written| written.open = NO_OPEN);
    }

    /// Whether something was written that is not known to be durable.
    pub fn is_dirty(&self) -> bool {
        !self.later.is_empty()
    }

    /// Whether acknowledged writes through this open are gone if `version` is there.
    pub fn is_lost(&self, version: Version, open: u32) -> bool {
        let survivor = self.later.iter().rposition(|written| written.version == version);
        let after = survivor.map_or(0, |position| position + 1);
        self.later[after..].iter().any(|written| written.open == open && written.acknowledged.is_some())
    }

    /// `version` was found at `at`, after a power loss. `lost_at`: the block's OST was hit then; so
    /// nobody has promised that it stays, and nothing between it and the durable one is left,
    /// unless it came after the loss, over whatever had survived. Else all that could come back at
    /// the next loss still can.
    pub fn adopt(&mut self, version: Version, lost_at: Option<Instant>, at: Instant) {
        let found = self.later.iter().rposition(|written| written.version == version);
        self.later.truncate(found.map_or(0, |position| position + 1));
        let acknowledged = self.later.last().and_then(|written| written.acknowledged);
        let survived = lost_at.is_some_and(|lost_at| acknowledged.is_some_and(|time| time <= lost_at));
        if survived && found.is_some() {
            self.later = vec![Written { version, open: NO_OPEN, acknowledged: Some(at) }];
        }
        if let Some(last) = self.later.last_mut() {
            last.acknowledged.get_or_insert(at);
        }
    }
}

/// The bytes of a block's version.
pub fn contents(block: u64, version: Version) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    let mut bytes = pattern(version as u8, block * BLOCK_BYTES, BLOCK);
    bytes[..4].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The version of a block in a file's data that begin with block `first`, if it is one as a whole.
pub fn version_of(block: u64, data: &[u8], first: u64) -> Option<Version> {
    let start = ((block - first) as usize * BLOCK).min(data.len());
    let mut whole = data[start..(start + BLOCK).min(data.len())].to_vec();
    whole.resize(BLOCK, 0);
    let version = Version::from_le_bytes([whole[0], whole[1], whole[2], whole[3]]);
    (whole == contents(block, version)).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, acknowledged: Option<u64>) -> Written {
        Written { version, open: 1, acknowledged: acknowledged.map(|millis| Instant(millis * 1_000_000)) }
    }

    #[test]
    fn what_a_block_may_hold() {
        let later = vec![written(2, Some(10)), written(3, Some(500)), written(4, None)];
        let block = Block { durable: 1, later };
        let (at, bound) = (Instant(600_000_000), Duration::from_millis(200));
        assert_eq!(block.last(), 3);
        assert_eq!(block.possible(false, at, bound), [3, 4], "power was kept");
        assert_eq!(block.possible(true, at, bound), [2, 3, 4], "2 is older than the commit interval");
        assert_eq!(block.possible(true, at, Duration::from_secs(9)), [1, 2, 3, 4]);
        let mut synced = block.clone();
        synced.synced(Instant(20_000_000));
        assert_eq!(synced.possible(true, at, Duration::from_secs(9)), [2, 3, 4]);
        assert!(block.is_lost(2, 1) && !block.is_lost(2, 2) && !block.is_lost(3, 1) && !block.is_lost(4, 1));
        let untouched = Block { durable: 7, later: Vec::new() };
        assert_eq!(untouched.possible(true, at, bound), [7]);
    }

    #[test]
    fn what_a_block_may_hold_after_the_next_loss() {
        let later = vec![written(2, Some(10)), written(3, Some(500)), written(4, None)];
        let block = Block { durable: 1, later };
        let (first, second, bound) = (Instant(600_000_000), Instant(700_000_000), Duration::from_secs(9));
        let after = |found, lost| {
            let mut block = block.clone();
            block.adopt(found, lost, Instant(650_000_000));
            block.possible(true, second, bound)
        };
        assert_eq!(after(3, None), [1, 2, 3], "all of it is still in danger");
        assert_eq!(after(4, None), [1, 2, 3, 4]);
        assert_eq!(after(3, Some(first)), [1, 3]);
        assert_eq!(after(4, Some(first)), [1, 2, 3, 4], "it came after the loss: any before it may have survived that");
        assert_eq!(after(1, Some(first)), [1]);
    }

    #[test]
    fn a_torn_block_is_no_version() {
        let old = contents(3, 8);
        let mut torn = contents(3, 9);
        assert_eq!(version_of(3, &torn, 3), Some(9));
        torn[2048..2560].copy_from_slice(&old[2048..2560]);
        assert_eq!(version_of(3, &torn, 3), None);
        assert_eq!(version_of(3, &[], 0), Some(0), "after the end");
        assert_eq!(version_of(3, &old[..100], 3), None, "cut off");
    }
}
