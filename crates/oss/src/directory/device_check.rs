//! Compares the records of objects with those of the device: every block of an object is used by
//! the bitmaps, no block has two owners, and nothing else is used.
//!
//! Downside: the check of the whole device holds the store's mutex while it reads all chunk records
//! and bitmaps, and keeps all extents in memory, 16 bytes each. It is for a target that serves
//! nobody: `stria fsck --data`, tests, simulations.

use std::{collections::BTreeMap, ops::Range};

use blocks::{BITMAP_BYTES, FreeRuns, Geometry, Summary};
use kv::Loading;
use types::{FsResult, ObjectId};

use super::{DirectoryStore, records::Records};
use crate::{
    chunk_record::ChunkRecord,
    device_label::DeviceLabel,
    group_record::decode_summary,
    superblock::Engine,
    tables::{BITMAPS, CHUNKS, GROUPS, parse_group_key, parse_part_key, parse_piece_key},
};

/// Problems that are described, at most.
const PROBLEMS_MAX: usize = 100;

/// Runs of blocks on the device that a chunk names.
fn extents(record: &ChunkRecord) -> impl Iterator<Item = Range<u64>> {
    let runs = record.states().chunk_by(|a, b| a.is_followed_by(b));
    runs.filter_map(|run| run[0].address().map(|first| first..first.saturating_add(run.len() as u64)))
}

impl DirectoryStore {
    /// Whether the bitmaps have all blocks of an object, in words if not. The object is locked.
    pub(super) async fn check_blocks(&self, loading: &mut Loading, object: ObjectId) -> FsResult<Option<String>> {
        let mut next = 0;
        while let Some((chunk, record)) = self.next_chunk(loading, object, next).await? {
            let look = |records: &Records<'_>| {
                extents(&record).find_map(|blocks| self.check_extent(records, blocks).transpose()).transpose()
            };
            if let Some(problem) = self.look(loading, look).await? {
                return Ok(Some(format!("object {object} on {}: {problem}", self.target)));
            }
            next = chunk + 1;
        }
        Ok(None)
    }

    fn check_extent(&self, records: &Records<'_>, blocks: Range<u64>) -> FsResult<Option<String>> {
        let mut volatile = self.volatile.lock();
        let Some(device) = &mut volatile.device else { return Ok(None) };
        if blocks.end > device.blocks() {
            return Ok(Some(format!("blocks {blocks:?} are not on the device")));
        }
        let groups = [blocks.start, blocks.end - 1].map(|block| device.group_of(block));
        for group in groups.into_iter().flatten() {
            if !device.is_loaded(group) {
                device.load(group, &*records.bitmap(group)?).map_err(|wrong| self.inconsistent(&wrong))?;
            }
        }
        Ok(device.first_unused(&blocks).map(|block| format!("block {block} of the device is marked as free")))
    }

    /// What is wrong with the records of the device as a whole, in words.
    pub(crate) fn check_device(&self) -> FsResult<Vec<String>> {
        let Engine::Blocks { blocks } = self.superblock.engine else { return Ok(Vec::new()) };
        let Some(geometry) = Geometry::new(blocks) else { return Ok(vec!["the device has no size".to_owned()]) };
        // All batches are applied under it.
        let _volatile = self.volatile.lock();
        let mut problems = Vec::new();
        let named = self.named_blocks(geometry, &mut problems)?;
        let (bitmaps, summaries) = (self.bitmaps(geometry, &mut problems)?, self.summaries(geometry, &mut problems)?);
        let mut next = named.iter().peekable();
        for group in 0..geometry.groups() {
            let (start, blocks) = (geometry.start_of(group), geometry.blocks_of(group));
            let mut expected = FreeRuns::all(blocks);
            while let Some(extent) = next.next_if(|extent| extent.start < start + u64::from(blocks)) {
                // What is named twice was found before.
                let _ = expected.take(&((extent.start - start) as u32..(extent.end - start) as u32));
            }
            let found =
                bitmaps.get(&group).map_or_else(|| FreeRuns::all(blocks), |map| FreeRuns::from_bitmap(map, blocks));
            if found != expected {
                let differs =
                    (0..blocks).find(|block| found.run_at(*block).is_some() != expected.run_at(*block).is_some());
                let block = differs.map_or(start, |block| start + u64::from(block));
                let (says, is) =
                    if expected.run_at((block - start) as u32).is_some() { ("used", "no") } else { ("free", "an") };
                problems.push(format!("block {block}: the bitmap says it is {says}, and {is} object has it"));
            }
            let summary = summaries.get(&group).copied().unwrap_or_else(|| FreeRuns::all(blocks).summary());
            if summary != found.summary() {
                problems.push(format!("group {group}: its summary {summary:?} is not that of its bitmap"));
            }
        }
        problems.truncate(PROBLEMS_MAX);
        Ok(problems)
    }

    /// All extents of objects and labels, cut at the ends of groups, in order.
    fn named_blocks(&self, geometry: Geometry, problems: &mut Vec<String>) -> FsResult<Vec<Range<u64>>> {
        let mut named: Vec<Range<u64>> = DeviceLabel::places(geometry.blocks()).map(|block| block..block + 1).to_vec();
        let mut damage = None;
        let scanned = self.kv.scan(CHUNKS, &[], None, &mut |key, value| {
            let object = parse_part_key(key).map(|(object, _)| object);
            match ChunkRecord::decode(value) {
                Ok(record) => named.extend(extents(&record)),
                Err(error) => damage = Some(self.damaged(object.unwrap_or_default(), error.damage)),
            }
            damage.is_none()
        });
        scanned.map_err(|error| self.kv_error(error))?;
        if let Some(error) = damage {
            return Err(error);
        }
        named.sort_unstable_by_key(|extent| extent.start);
        for pair in named.windows(2).filter(|pair| pair[0].end > pair[1].start) {
            problems.push(format!("block {} of the device has two owners", pair[1].start));
        }
        let beyond = named.last().map_or(0, |last| last.end);
        if beyond > geometry.blocks() {
            problems.push(format!("block {} is not on the device", beyond - 1));
        }
        let end = geometry.blocks();
        let within = named.into_iter().map(|extent| extent.start.min(end)..extent.end.min(end));
        let pieces = within.flat_map(|extent| {
            geometry.pieces(extent).map(|(group, piece)| {
                let start = geometry.start_of(group);
                start + u64::from(piece.start)..start + u64::from(piece.end)
            })
        });
        Ok(pieces.collect())
    }

    fn bitmaps(
        &self,
        geometry: Geometry,
        problems: &mut Vec<String>,
    ) -> FsResult<BTreeMap<u32, Box<[u8; BITMAP_BYTES]>>> {
        let mut groups = std::collections::BTreeSet::new();
        let scanned = self.kv.scan(BITMAPS, &[], None, &mut |key, _| {
            match parse_piece_key(key).filter(|(group, _)| *group < geometry.groups()) {
                Some((group, _)) => drop(groups.insert(group)),
                None => problems.push(format!("malformed key {key:02x?} of a bitmap")),
            }
            true
        });
        scanned.map_err(|error| self.kv_error(error))?;
        groups.into_iter().map(|group| Ok((group, self.records(None).bitmap(group)?))).collect()
    }

    fn summaries(&self, geometry: Geometry, problems: &mut Vec<String>) -> FsResult<BTreeMap<u32, Summary>> {
        let mut summaries = BTreeMap::new();
        let scanned = self.kv.scan(GROUPS, &[], None, &mut |key, value| {
            let group = parse_group_key(key).filter(|group| *group < geometry.groups());
            match (group, decode_summary(value)) {
                (Some(group), Ok(summary)) => drop(summaries.insert(group, summary)),
                _ => problems.push(format!("malformed summary of group {key:02x?}")),
            }
            true
        });
        scanned.map_err(|error| self.kv_error(error))?;
        Ok(summaries)
    }
}
