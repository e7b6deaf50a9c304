//! Groups of the device whose records are damaged: a bitmap that cannot be read or contradicts its
//! summary, a summary that no group can have, used blocks in a group that is recorded as free.
//!
//! Such a group goes out of use: nothing is given out of it, and what is freed there is not
//! counted. It is noted in table OUT_OF_USE, by the first batch that frees blocks there, or by the
//! store's task, which tries again until it succeeds. At the next start its records are made anew
//! from those of the objects, which say which blocks are used.
//!
//! Invariant: the records of a group are as its objects have it, or it is in OUT_OF_USE.
//!
//! Downside: to make them anew, the records of all objects are read.

use std::collections::{BTreeMap, BTreeSet};

use blocks::{FreeRuns, GROUP_BLOCKS, Geometry, Summary};
use bytes::Bytes;
use kv::Batch;
use types::{FsError, FsResult};

use super::{DirectoryStore, device_space::DeviceSpace, records::Records};
use crate::{
    chunk_record::ChunkRecord,
    device_records::extents,
    group_record::{PIECE_BLOCKS, PIECE_BYTES, decode_summary, encode_summary},
    superblock::{Engine, device_geometry},
    tables::{BITMAPS, CHUNKS, GROUPS, OUT_OF_USE, group_key, parse_group_key, parse_piece_key, piece_key},
};

/// Groups that are noted in one batch.
const NOTED_MAX: usize = 1024;
/// Groups whose records are made anew by one batch: 256 keys each.
const MADE_ANEW_MAX: usize = 8;
/// Pieces of a bitmap.
const PIECES: u32 = GROUP_BLOCKS / PIECE_BLOCKS;
/// A piece without used blocks.
const NONE: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

impl DirectoryStore {
    /// Loads a group; if its records are damaged, it is out of use instead.
    pub(super) fn load_group(&self, device: &mut DeviceSpace, records: &Records<'_>, group: u32) -> FsResult<()> {
        let damage = match records.bitmap(group) {
            Ok(bitmap) => match device.load(group, &bitmap) {
                Ok(()) => return Ok(()),
                Err(wrong) => wrong.to_string(),
            },
            Err(FsError::Damaged(damage)) => damage.to_string(),
            Err(error) => return Err(error),
        };
        tracing::error!(target = %self.target, group, %damage, "a group of the device is out of use until the next start");
        device.put_out_of_use(group);
        self.wanted.notify_one();
        Ok(())
    }

    /// Notes groups that are out of use, so that the next start makes their records anew.
    pub(super) async fn note_out_of_use(&self) {
        let groups = self.volatile.lock().device.as_ref().map_or(Vec::new(), |device| device.unnoted(NOTED_MAX));
        if groups.is_empty() {
            return;
        }
        let noted = async {
            let lsn = self.apply_marked(|_| {
                let mut batch = Batch::default();
                groups.iter().for_each(|group| batch.put(OUT_OF_USE, key(*group), Bytes::new()));
                batch
            });
            self.durable(lsn.await?).await
        };
        match noted.await {
            Ok(()) => self.volatile.lock().device.iter_mut().for_each(|device| device.noted(&groups)),
            Err(error) if self.may_complain() => {
                tracing::warn!(target = %self.target, %error, "damaged groups are not noted yet, trying again");
            }
            Err(_) => {}
        }
    }

    /// Makes the records of damaged groups anew, before anything else uses them. Returns those for
    /// which that is not possible: they stay out of use.
    pub(super) async fn mend_groups(&self, unclean: bool) -> FsResult<BTreeSet<u32>> {
        let Engine::Blocks { blocks, .. } = self.superblock.engine else { return Ok(BTreeSet::new()) };
        // What is wrong otherwise is an error where the free space is opened.
        let Some(geometry) = device_geometry(blocks) else { return Ok(BTreeSet::new()) };
        let summaries = self.entries(GROUPS, |key, value| Some((parse_group_key(key)?, decode_summary(value).ok())))?;
        let mut damaged: BTreeSet<u32> = self.entries(OUT_OF_USE, |key, _| parse_group_key(key))?.into_iter().collect();
        damaged.retain(|group| *group < geometry.groups());
        let is_possible = |group: u32, summary: &Option<Summary>| {
            group >= geometry.groups() || summary.is_some_and(|summary| summary.is_possible(geometry.blocks_of(group)))
        };
        damaged
            .extend(summaries.iter().filter(|(group, summary)| !is_possible(*group, summary)).map(|(group, _)| *group));
        if unclean {
            damaged.extend(self.used_in_free_groups(geometry, &summaries.into_iter().collect())?);
        }
        if damaged.is_empty() {
            return Ok(damaged);
        }
        tracing::error!(target = %self.target, groups = ?damaged, "making the records of damaged groups anew");
        match self.groups_by_objects(geometry, &damaged) {
            Ok(groups) => self.put_groups(groups).await.map(|()| BTreeSet::new()),
            Err(error) => {
                tracing::error!(target = %self.target, %error, "damaged groups stay out of use");
                Ok(damaged)
            }
        }
    }

    /// Groups that the tables have as free as a whole, and which have used blocks by their bitmaps:
    /// these are not read before blocks are given out. (The last group, whose bitmap has more bits
    /// than it has blocks, is none of them if it is as it should be: it has a label.)
    fn used_in_free_groups(
        &self,
        geometry: Geometry,
        summaries: &BTreeMap<u32, Option<Summary>>,
    ) -> FsResult<BTreeSet<u32>> {
        let is_free = |group: u32| {
            let summary = summaries.get(&group);
            let is_full = |summary: &Option<Summary>| summary.is_some_and(|one| one.free == geometry.blocks_of(group));
            group < geometry.groups() && summary.is_none_or(is_full)
        };
        let (mut from, mut used) = (Vec::new(), BTreeSet::new());
        loop {
            let mut next = None;
            let scanned = self.kv.scan(BITMAPS, &from, None, &mut |key, value| {
                let Some((group, _)) = parse_piece_key(key) else { return true };
                let is_used = is_free(group) && value.iter().any(|byte| *byte != 0);
                if is_used {
                    used.insert(group);
                }
                if is_used || !is_free(group) {
                    next = group.checked_add(1);
                    return next.is_none();
                }
                true
            });
            scanned.map_err(|error| self.kv_error(error))?;
            match next {
                Some(group) => from = group_key(group).to_vec(),
                None => return Ok(used),
            }
        }
    }

    /// The free blocks of these groups: those that neither an object, nor a label, nor the tables
    /// have. A chunk that
    /// does not decode is damaged, and what it has is lost.
    fn groups_by_objects(&self, geometry: Geometry, groups: &BTreeSet<u32>) -> FsResult<BTreeMap<u32, FreeRuns>> {
        let mut free: BTreeMap<u32, FreeRuns> =
            groups.iter().map(|group| (*group, FreeRuns::all(geometry.blocks_of(*group)))).collect();
        let mut wrong = None;
        let mut take = |blocks: std::ops::Range<u64>| {
            let end = blocks.end.min(geometry.blocks());
            for (group, piece) in geometry.pieces(blocks.start.min(end)..end) {
                let Some(runs) = free.get_mut(&group) else { continue };
                // A block with two owners is taken once.
                let parts: Vec<_> = runs.within(&piece).collect();
                wrong = wrong.take().or_else(|| parts.iter().find_map(|part| runs.take(part).err()));
            }
        };
        self.superblock.engine.own_blocks().into_iter().for_each(&mut take);
        let scanned = self.kv.scan(CHUNKS, &[], None, &mut |_, value| {
            ChunkRecord::decode(value).iter().flat_map(extents).for_each(&mut take);
            true
        });
        scanned.map_err(|error| self.kv_error(error))?;
        match wrong {
            None => Ok(free),
            Some(wrong) => Err(self.inconsistent(&wrong)),
        }
    }

    async fn put_groups(&self, groups: BTreeMap<u32, FreeRuns>) -> FsResult<()> {
        let groups: Vec<(u32, FreeRuns)> = groups.into_iter().collect();
        for part in groups.chunks(MADE_ANEW_MAX) {
            self.apply_marked(|_| {
                let mut batch = Batch::default();
                for (group, runs) in part {
                    batch.put(GROUPS, key(*group), encode_summary(runs.summary()));
                    batch.delete(OUT_OF_USE, key(*group));
                    // Also those that no group has.
                    for number in 0..=u8::MAX {
                        let place = Bytes::copy_from_slice(&piece_key(*group, number));
                        let piece = if u32::from(number) < PIECES { runs.used_piece(u32::from(number)) } else { NONE };
                        if piece == NONE {
                            batch.delete(BITMAPS, place);
                        } else {
                            batch.put(BITMAPS, place, Bytes::copy_from_slice(&piece));
                        }
                    }
                }
                batch
            })
            .await?;
        }
        Ok(())
    }
}

fn key(group: u32) -> Bytes {
    Bytes::copy_from_slice(&group_key(group))
}
