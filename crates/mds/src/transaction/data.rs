//! Objects on this MDT within a transaction. Each change does what an OST does to an object (crate
//! oss, `directory`), so that users of a file do not notice where its bytes are.
//!
//! Reads come before puts: a transaction's own changes are searched one by one.

use std::ops::Range;

use rpc::{
    checksum::crc32c,
    message::ost::{Changed, ObjectAttributes, SpaceChange},
};
use types::{Damage, FsError, FsResult, InodeNumber, ObjectId, limits::BLOCK_BYTES};

use super::Transaction;
use crate::{
    data::{NewBlock, NewData},
    tables::{
        DATA,
        data::{self, BLOCK, DataKey, ObjectRecord},
    },
};

/// Data on their way from one inode to another: keys as they were, values.
pub(crate) struct MovedData(Vec<(Vec<u8>, Vec<u8>)>);

impl MovedData {
    /// What it takes of a batch, at most.
    pub fn bytes(&self) -> u64 {
        /// Of a record that is put and deleted, without key and value; by far.
        const HEAD_BYTES: usize = 64;
        self.0.iter().map(|(key, value)| (HEAD_BYTES + 2 * key.len() + value.len()) as u64).sum()
    }
}

impl Transaction<'_> {
    /// The record of an object; a missing one is empty.
    pub fn object(&self, object: ObjectId) -> FsResult<ObjectRecord> {
        let value = self.get(DATA, &data::object_key(object))?;
        value.map_or(Ok(ObjectRecord::default()), |value| ObjectRecord::decode(&value))
    }

    /// Visits the blocks an object has in a range, in order, with their stored values, until
    /// `visit` returns false.
    pub fn visit_blocks(
        &self,
        object: ObjectId,
        blocks: Range<u64>,
        mut visit: impl FnMut(u64, &[u8]) -> FsResult<bool>,
    ) -> FsResult<()> {
        let (from, to) = (data::block_key(object, blocks.start), data::block_key(object, blocks.end));
        self.scan(DATA, &from, Some(&to), &mut |key, value| match data::decode_key(key)? {
            DataKey::Block(_, block) => visit(block, value),
            DataKey::Object(_) => Err(Damage::new("data", "an object among blocks").into()),
        })
    }

    fn held(&self, object: ObjectId, blocks: Range<u64>) -> FsResult<Vec<u64>> {
        let mut held = Vec::new();
        self.visit_blocks(object, blocks, |block, _| {
            held.push(block);
            Ok(true)
        })?;
        Ok(held)
    }

    /// Verified contents of a block; `None` if the object does not hold it.
    fn load(&self, object: ObjectId, block: u64) -> FsResult<Option<Vec<u8>>> {
        let Some(value) = self.get(DATA, &data::block_key(object, block))? else { return Ok(None) };
        let mut contents = vec![0; BLOCK];
        self.verified(object, block, &value, &mut contents)?;
        Ok(Some(contents))
    }

    /// Fills `contents`, zeros, with a block's; its checksum.
    fn verified(&self, object: ObjectId, block: u64, value: &[u8], contents: &mut [u8]) -> FsResult<u32> {
        let corrupt = || FsError::CorruptOnMdt { object, mdt: self.mdt, offset: block * BLOCK_BYTES };
        data::load_block(value, contents)?.ok_or_else(corrupt)
    }

    fn put_block(&mut self, object: ObjectId, block: u64, contents: &[u8]) {
        self.put(DATA, data::block_key(object, block), data::encode_block(crc32c(contents), contents));
    }

    /// Puts the record and says what changed.
    fn put_object(&mut self, object: ObjectId, before: ObjectAttributes, after: ObjectRecord) -> Changed {
        self.put(DATA, data::object_key(object), after.encode());
        Changed { before, after: after.attributes() }
    }

    /// Writes data, which are not empty and within the object's limits.
    pub fn write_object(&mut self, object: ObjectId, new: &NewData) -> FsResult<Changed> {
        let mut record = self.object(object)?;
        let before = record.attributes();
        let held = self.held(object, new.range())?;
        let mut merged = Vec::new();
        for block in new.blocks() {
            if let NewBlock::Part { block, start, bytes } = block {
                let mut contents = self.load(object, *block)?.unwrap_or_else(|| vec![0; BLOCK]);
                contents[*start..*start + bytes.len()].copy_from_slice(bytes);
                merged.push((*block, contents));
            }
        }
        for (block, contents) in merged {
            self.put_block(object, block, &contents);
        }
        for block in new.blocks() {
            if let NewBlock::Whole { block, value } = block {
                self.put(DATA, data::block_key(object, *block), value.clone());
            }
        }
        let range = new.range();
        assert!(held.len() as u64 <= range.end - range.start, "the blocks that are held are in the range");
        record.blocks += (range.end - range.start) - held.len() as u64;
        record.size = record.size.max(new.end());
        record.change(self.now());
        Ok(self.put_object(object, before, record))
    }

    /// Changes the space of an object. The range is within the object's limits.
    pub fn change_object_space(&mut self, object: ObjectId, change: SpaceChange) -> FsResult<Changed> {
        match change {
            SpaceChange::Truncate { size } => self.truncate_object(object, size),
            // Room is the store's as a whole: only the size can change.
            SpaceChange::Allocate { offset, bytes, extend } => {
                self.extend_object(object, if extend { offset.saturating_add(bytes) } else { 0 })
            }
            SpaceChange::Punch { offset, bytes } => self.zero_object(object, offset, bytes, false),
            SpaceChange::Zero { offset, bytes, extend } => self.zero_object(object, offset, bytes, extend),
        }
    }

    fn exists(&self, object: ObjectId) -> FsResult<bool> {
        Ok(self.get(DATA, &data::object_key(object))?.is_some())
    }

    fn extend_object(&mut self, object: ObjectId, size: u64) -> FsResult<Changed> {
        let mut record = self.object(object)?;
        let before = record.attributes();
        if size <= record.size {
            return Ok(Changed { before, after: before });
        }
        record.size = size;
        record.change(self.now());
        Ok(self.put_object(object, before, record))
    }

    fn truncate_object(&mut self, object: ObjectId, size: u64) -> FsResult<Changed> {
        let mut record = self.object(object)?;
        let before = record.attributes();
        if size == 0 && !self.exists(object)? {
            return Ok(Changed { before, after: before });
        }
        if size < record.size {
            self.release_space();
            record.blocks -= self.remove_range(object, &record, size, u64::MAX)?;
        }
        record.size = size;
        record.change(self.now());
        Ok(self.put_object(object, before, record))
    }

    fn zero_object(&mut self, object: ObjectId, offset: u64, bytes: u64, extend: bool) -> FsResult<Changed> {
        let end = offset.saturating_add(bytes);
        let mut record = self.object(object)?;
        let before = record.attributes();
        if !self.exists(object)? && !extend {
            return Ok(Changed { before, after: before });
        }
        if offset < record.size {
            self.release_space();
            record.blocks -= self.remove_range(object, &record, offset, end)?;
        }
        record.size = if extend { record.size.max(end) } else { record.size };
        record.change(self.now());
        Ok(self.put_object(object, before, record))
    }

    /// Makes `start..end` of an object zeros: whole blocks go, the blocks at its edges are changed.
    /// The number of blocks removed.
    fn remove_range(&mut self, object: ObjectId, record: &ObjectRecord, start: u64, end: u64) -> FsResult<u64> {
        // The bytes after the object's end in its last block are zeros already: the whole block may
        // go.
        let whole_end = if end >= record.size { u64::MAX } else { end / BLOCK_BYTES };
        let whole = start.div_ceil(BLOCK_BYTES)..whole_end;
        let mut edges = Vec::new();
        for edge in [start / BLOCK_BYTES, end / BLOCK_BYTES] {
            let first = edge * BLOCK_BYTES;
            let from = start.saturating_sub(first).min(BLOCK_BYTES) as usize;
            let to = (end - first.min(end)).min(BLOCK_BYTES) as usize;
            if from >= to || whole.contains(&edge) || edges.iter().any(|(known, _)| *known == edge) {
                continue;
            }
            if let Some(mut contents) = self.load(object, edge)? {
                contents[from..to].fill(0);
                edges.push((edge, contents));
            }
        }
        let gone = if whole.start < whole.end { self.held(object, whole)? } else { Vec::new() };
        for (block, contents) in edges {
            self.put_block(object, block, &contents);
        }
        for block in &gone {
            self.delete(DATA, data::block_key(object, *block));
        }
        Ok(gone.len() as u64)
    }

    /// Offset of the next data, or hole, at or after `offset`; the object's end counts as a hole.
    pub fn seek_object(&self, object: ObjectId, offset: u64, data: bool) -> FsResult<Option<u64>> {
        let size = self.object(object)?.size;
        if offset >= size {
            return Ok(None);
        }
        let first = offset / BLOCK_BYTES;
        let (mut held, mut hole) = (None, first);
        self.visit_blocks(object, first..u64::MAX, |block, _| {
            held.get_or_insert(block);
            let follows = block == hole;
            hole += u64::from(follows);
            Ok(!data && follows)
        })?;
        let at = |block: u64| offset.max(block * BLOCK_BYTES);
        Ok(if data { held.map(at).filter(|at| *at < size) } else { Some(at(hole).min(size)) })
    }

    /// Objects after `after` in order, at most `count`.
    pub fn list_objects(&self, after: Option<ObjectId>, count: usize) -> FsResult<Vec<(ObjectId, ObjectRecord)>> {
        let mut objects = Vec::new();
        let mut from = match after {
            Some(object) => crate::tables::prefix_end(&data::object_key(object)),
            None => Some(Vec::new()),
        };
        while let Some(start) = from.take().filter(|_| objects.len() < count) {
            let mut next = None;
            self.scan(DATA, &start, None, &mut |key, value| {
                // A block without its object is the check's to report.
                let (DataKey::Object(object) | DataKey::Block(object, _)) = data::decode_key(key)?;
                if key.len() == data::object_key(object).len() {
                    objects.push((object, ObjectRecord::decode(value)?));
                }
                next = crate::tables::prefix_end(&data::object_key(object));
                Ok(false)
            })?;
            from = next;
        }
        Ok(objects)
    }

    /// Takes all data of an inode away, to be given to another ([`Transaction::give_data`]).
    pub fn take_data(&mut self, inode: InodeNumber) -> FsResult<MovedData> {
        let mut records = Vec::new();
        self.scan_prefix(DATA, &inode.0.to_be_bytes(), &mut |key, value| {
            records.push((key.to_vec(), value.to_vec()));
            Ok(true)
        })?;
        records.iter().for_each(|(key, _)| self.delete(DATA, key.clone()));
        Ok(MovedData(records))
    }

    /// Gives an inode, which has none left, the data of another, under the same slots.
    pub fn give_data(&mut self, inode: InodeNumber, data: MovedData) {
        let number = inode.0.to_be_bytes();
        for (mut key, value) in data.0 {
            key[..number.len()].copy_from_slice(&number);
            self.put(DATA, key, value);
        }
    }

    /// Removes all data of an inode.
    pub fn delete_data(&mut self, inode: InodeNumber) -> FsResult<()> {
        self.delete_prefix(DATA, &inode.0.to_be_bytes())
    }

    /// Compares everything stored of an object with its checksums and its record.
    pub fn verify_object(&self, object: ObjectId) -> FsResult<()> {
        let record = self.object(object)?;
        let (mut held, mut after_end) = (0, 0);
        self.visit_blocks(object, 0..u64::MAX, |block, value| {
            held += 1;
            after_end += u64::from(block >= record.size.div_ceil(BLOCK_BYTES));
            self.verified(object, block, value, &mut vec![0; BLOCK]).map(|_| true)
        })?;
        if held != record.blocks || after_end > 0 {
            let (target, counted) = (self.target.to_owned(), (record.blocks, 0));
            return Err(
                Damage::Blocks { object, target, part: "after its end", counted, found: (held, after_end) }.into()
            );
        }
        Ok(())
    }
}
