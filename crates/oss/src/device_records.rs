//! Compares the records of all objects with those of the device: every block that a chunk names is
//! used by the bitmaps, no block has two owners, nothing else is used, and the summaries of the
//! groups are those of their bitmaps.
//!
//! Pure: the caller shows all entries of the target's tables, and then asks for the problems.
//!
//! Downside: all extents are held in memory, 16 bytes each.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use blocks::{BITMAP_BYTES, FreeRuns, Geometry, Summary};
use kv::Table;

use crate::{
    chunk_record::ChunkRecord,
    group_record::{PIECE_BYTES, decode_piece, decode_summary},
    superblock::Engine,
    tables::{BITMAPS, CHUNKS, GROUPS, OUT_OF_USE, parse_group_key, parse_piece_key},
};

/// Problems that are described, at most.
const PROBLEMS_MAX: usize = 100;

/// What the tables have of a device. See the module documentation.
#[derive(Debug, Default)]
pub struct DeviceRecords {
    /// Runs of blocks that chunks name.
    named: Vec<Range<u64>>,
    bitmaps: BTreeMap<u32, Box<[u8; BITMAP_BYTES]>>,
    summaries: BTreeMap<u32, Summary>,
    /// With the group that they are about, if it is one.
    problems: Vec<(Option<u32>, String)>,
    /// Groups whose records are known to be damaged, and not compared.
    out_of_use: BTreeSet<u32>,
}

/// Runs of blocks on the device that a chunk names.
pub fn extents(record: &ChunkRecord) -> impl Iterator<Item = Range<u64>> {
    let runs = record.states().chunk_by(|a, b| a.is_followed_by(b));
    runs.filter_map(|run| run[0].address().map(|first| first..first.saturating_add(run.len() as u64)))
}

impl DeviceRecords {
    /// Takes an entry of a table. A chunk that does not decode is not its matter: its object is
    /// damaged, and its blocks count as nobody's.
    pub fn note(&mut self, table: Table, key: &[u8], value: &[u8]) {
        if table == CHUNKS {
            self.named.extend(ChunkRecord::decode(value).iter().flat_map(extents));
        } else if table == GROUPS {
            match (parse_group_key(key), decode_summary(value)) {
                (Some(group), Ok(summary)) => drop(self.summaries.insert(group, summary)),
                (group, _) => self.problems.push((group, format!("malformed summary of group {key:02x?}"))),
            }
        } else if table == BITMAPS {
            self.note_piece(key, value);
        } else if table == OUT_OF_USE {
            parse_group_key(key).into_iter().for_each(|group| self.leave_out(group));
        }
    }

    /// The records of a group are damaged: it is out of use.
    pub fn leave_out(&mut self, group: u32) {
        self.out_of_use.insert(group);
    }

    fn note_piece(&mut self, key: &[u8], value: &[u8]) {
        let place = parse_piece_key(key).zip(decode_piece(value).ok());
        let Some(((group, number), piece)) =
            place.filter(|((_, number), _)| usize::from(*number) < BITMAP_BYTES / PIECE_BYTES)
        else {
            let group = parse_piece_key(key).map(|(group, _)| group);
            return self.problems.push((group, format!("malformed piece {key:02x?} of a bitmap")));
        };
        let bitmap = self.bitmaps.entry(group).or_insert_with(|| Box::new([0; BITMAP_BYTES]));
        let start = usize::from(number) * PIECE_BYTES;
        bitmap[start..start + PIECE_BYTES].copy_from_slice(&piece);
    }

    /// What is wrong with the records of a device, in words.
    pub fn problems(mut self, engine: Engine) -> Vec<String> {
        let Engine::Blocks { blocks, .. } = engine else { return Vec::new() };
        let Some(geometry) = Geometry::new(blocks).filter(|geometry| geometry.blocks() > 1) else {
            return vec![format!("a device cannot have {blocks} blocks")];
        };
        let last = self.bitmaps.keys().chain(self.summaries.keys()).max();
        if let Some(last) = last.filter(|last| **last >= geometry.groups()) {
            self.problems.push((None, format!("group {last} is not on the device")));
        }
        let named = self.named_by_group(geometry, engine);
        for group in (0..geometry.groups()).filter(|group| !self.out_of_use.contains(group)).collect::<Vec<_>>() {
            let named = named.get(&group).map_or(&[][..], Vec::as_slice);
            self.compare_group(geometry, group, named);
        }
        let is_told = |group: Option<u32>| group.is_none_or(|group| !self.out_of_use.contains(&group));
        let told = self.problems.into_iter().filter(|(group, _)| is_told(*group)).map(|(_, problem)| problem);
        told.take(PROBLEMS_MAX).collect()
    }

    /// The blocks of objects, labels and tables in each group, in order; tells of those with two
    /// owners.
    fn named_by_group(&mut self, geometry: Geometry, engine: Engine) -> BTreeMap<u32, Vec<Range<u32>>> {
        let mut named = std::mem::take(&mut self.named);
        named.extend(engine.own_blocks());
        named.sort_unstable_by_key(|extent| extent.start);
        let (mut end, mut by_group) = (0, BTreeMap::<u32, Vec<Range<u32>>>::new());
        for extent in named {
            if extent.start < end {
                self.problems.push((None, format!("block {} of the device has two owners", extent.start)));
            }
            if extent.end > geometry.blocks() {
                self.problems.push((None, format!("block {} is not on the device", extent.end - 1)));
            }
            let start = extent.start.max(end);
            end = end.max(extent.end);
            let within = start.min(geometry.blocks())..extent.end.min(geometry.blocks());
            if !within.is_empty() {
                geometry.pieces(within).for_each(|(group, piece)| by_group.entry(group).or_default().push(piece));
            }
        }
        by_group
    }

    fn compare_group(&mut self, geometry: Geometry, group: u32, named: &[Range<u32>]) {
        let (start, blocks) = (geometry.start_of(group), geometry.blocks_of(group));
        let all = FreeRuns::all(blocks);
        let found = self.bitmaps.get(&group).map_or_else(|| all.clone(), |map| FreeRuns::from_bitmap(map, blocks));
        let mut expected = all.clone();
        let taken = named.iter().try_for_each(|blocks| expected.take(blocks));
        debug_assert_eq!(taken, Ok(()), "each block is named once by now");
        if found != expected {
            let is_free = |runs: &FreeRuns, block: u32| runs.run_at(block).is_some();
            let differs = (0..blocks).find(|block| is_free(&found, *block) != is_free(&expected, *block)).unwrap_or(0);
            let block = start + u64::from(differs);
            let problem = match is_free(&found, differs) {
                true => format!("block {block} of the device is used, and free by the bitmap of its group"),
                false => {
                    format!("block {block} of the device belongs to nothing, and is used by the bitmap of its group")
                }
            };
            self.problems.push((Some(group), problem));
        }
        let summary = self.summaries.get(&group).copied().unwrap_or_else(|| all.summary());
        if summary != found.summary() {
            let found = found.summary();
            let problem = format!("group {group} of the device is described as {summary:?}, and is {found:?}");
            self.problems.push((Some(group), problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{InodeNumber, ObjectId};

    use super::*;
    use crate::{
        chunk_record::BlockState,
        group_record::encode_summary,
        tables::{group_key, part_key, piece_key},
    };

    const BLOCKS: u64 = 40_000;

    /// An object with blocks 10 to 14, and what belongs to that.
    fn records() -> Vec<(Table, Vec<u8>, Vec<u8>)> {
        let mut chunk = ChunkRecord::default();
        for block in 0..4 {
            chunk.set(block, BlockState::OnDevice { checksum: 0, epoch: 0, address: 10 + block });
        }
        let geometry = Geometry::new(BLOCKS).unwrap();
        let mut records = vec![(CHUNKS, part_key(ObjectId::new(InodeNumber(1), 0), 0).to_vec(), chunk.encode())];
        for (group, used) in [(0, &[(0, 1), (10, 14)][..]), (1, &[(7231, 7232)])] {
            let mut runs = FreeRuns::all(geometry.blocks_of(group));
            for (start, end) in used {
                runs.take(&(*start..*end)).unwrap();
                let piece = start / 512;
                records.push((BITMAPS, piece_key(group, piece as u8).to_vec(), runs.used_piece(piece).to_vec()));
            }
            records.push((GROUPS, group_key(group).to_vec(), encode_summary(runs.summary())));
        }
        records
    }

    fn problems(change: impl FnOnce(&mut Vec<(Table, Vec<u8>, Vec<u8>)>)) -> String {
        let (mut all, mut device) = (records(), DeviceRecords::default());
        change(&mut all);
        all.iter().for_each(|(table, key, value)| device.note(*table, key, value));
        device.problems(Engine::on_device(BLOCKS)).join("\n")
    }

    #[test]
    fn records_that_agree_have_no_problems() {
        assert_eq!(problems(|_| {}), "");
    }

    #[test]
    fn what_contradicts_is_told() {
        assert_eq!(
            problems(|all| drop(all.remove(0))),
            "block 10 of the device belongs to nothing, and is used by the bitmap of its group"
        );
        let again = problems(|all| {
            let (table, mut key, value) = all[0].clone();
            key[0] = 1;
            all.push((table, key, value));
        });
        assert_eq!(again, "block 10 of the device has two owners");
        let free = problems(|all| all[2].2.fill(0));
        assert!(
            free.starts_with("block 0 of the device is used, and free by the bitmap of its group\ngroup 0"),
            "{free}"
        );
        let described = problems(|all| all[3].2[1] ^= 1);
        assert!(described.starts_with("group 0 of the device is described as"), "{described}");
        let malformed = problems(|all| all[2].2.truncate(1));
        assert!(malformed.starts_with("malformed piece"), "{malformed}");
        let noted = problems(|all| {
            all[2].2.truncate(1);
            all.push((OUT_OF_USE, group_key(0).to_vec(), Vec::new()));
        });
        assert_eq!(noted, "", "it is out of use");
        let far = problems(|all| all[3].1[0] = 1);
        assert!(far.starts_with("group 16777216 is not on the device"), "{far}");
    }
}
