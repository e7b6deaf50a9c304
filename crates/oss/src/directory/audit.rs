//! Checks an object's records after each change, for tests and simulations
//! ([`OstOptions::audits`](crate::OstOptions::audits)): the relations that module `transaction`
//! promises must hold between the object's record, its chunk records, its inline blocks and the
//! volatile state.
//!
//! | state | asserted |
//! |---|---|
//! | record | what is stored is what the change computed; a missing object has neither chunks nor inline blocks |
//! | counts | blocks, inline blocks and reserved blocks without data are the sums over the chunk records |
//! | size | every block that holds data begins before the object ends, and inline bytes end before it |
//! | chunks | a stored chunk holds data; in-place blocks require a host file, an epoch that has begun, and a range that is not tainted |
//! | device | blocks of a chunk are not free by the bitmaps; what is kept of groups is as it is made anew |
//! | DIRTY | a chunk with blocks that are not known to be flushed has a key |
//! | INLINE | exactly the blocks whose state is inline, without zeros at their ends |
//! | BACKLOG | exactly the large objects with inline blocks, in the table and in memory |
//! | totals | the table has those in memory |
//!
//! Downside: each change costs a walk over all chunks and inline blocks of its object, under the
//! store's mutex; and damage that the tables had before counts as a breach. So the audit is off by
//! default, and unsuitable for objects of many gigabytes.

use std::fmt;

use kv::{Store, Table};
use types::{Damage, FsError, FsResult, ObjectId, limits::BLOCK_BYTES, record::DecodeError};

use super::{counts::Counts, device_space::DeviceSpace, host_file_state::HostFileState};
use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS, CHUNK_MAX, ChunkRecord},
    error::kv_error,
    object_record::ObjectRecord,
    options::INLINE_OBJECT_BYTES_MAX,
    superblock::{MARK_KEY, Mark, TOTALS_KEY, Totals},
    tables::{BACKLOG, CHUNKS, DIRTY, FLUSHED, INLINE, META, OBJECTS, object_key, parse_part_key, part_key},
};

/// An object whose records are to be checked.
pub(super) struct Audit<'a> {
    kv: &'a Store,
    target: &'a str,
    volatile: &'a HostFileState,
    object: ObjectId,
}

/// The name of what is checked, as in messages.
impl fmt::Display for Audit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {} on {}", self.object, self.target)
    }
}

impl<'a> Audit<'a> {
    /// Of this object; the caller holds the store's mutex, so that the tables and `volatile` belong
    /// together.
    pub fn new(kv: &'a Store, target: &'a str, volatile: &'a HostFileState, object: ObjectId) -> Self {
        Self { kv, target, volatile, object }
    }

    /// Asserts that a change which left the object as `after` left sound records. Where the tables
    /// cannot be read, nothing can be said.
    pub fn assert_sound(&self, after: &ObjectRecord) {
        let Err(error) = self.check(after) else { return };
        assert!(
            !matches!(error, FsError::Damaged(_)),
            "{self}: a change left a record that cannot be decoded: {error}"
        );
        tracing::warn!(object = %self.object, %error, "cannot audit a change");
    }

    fn check(&self, after: &ObjectRecord) -> FsResult<()> {
        let stored = self.get(OBJECTS, &object_key(self.object))?.map(|bytes| ObjectRecord::decode(&bytes));
        let stored = stored.transpose().map_err(|error| self.damaged(error))?;
        assert_eq!(stored.unwrap_or_default(), *after, "{self}: the stored record is the one that was computed");
        let chunks = self.chunks()?;
        assert!(stored.is_some() || chunks.is_empty(), "{self}: chunks are left of an object that does not exist");
        self.assert_counts(after, &chunks);
        let flushed = self.flushed()?;
        for (number, chunk) in &chunks {
            self.assert_chunk(after, *number, chunk)?;
            self.assert_dirty(*number, chunk, flushed)?;
        }
        self.assert_inline(after, &chunks)?;
        self.assert_backlog(after)?;
        self.volatile.device.iter().for_each(DeviceSpace::audit_recorded);
        let totals = self.get(META, TOTALS_KEY)?.map(|bytes| Totals::decode(&bytes));
        let totals = totals.transpose().map_err(|error| self.damaged(error))?;
        assert_eq!(totals.unwrap_or_default(), self.volatile.totals, "{self}: the stored totals are those in memory");
        Ok(())
    }

    fn get(&self, table: Table, key: &[u8]) -> FsResult<Option<bytes::Bytes>> {
        self.kv.get(table, key).map_err(|error| kv_error(self.target, error))
    }

    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &bytes::Bytes)) -> FsResult<()> {
        let (from, to) = (part_key(self.object, 0), part_key(self.object, u64::MAX));
        let scanned = self.kv.scan(table, &from, Some(&to), &mut |key, value| {
            visit(key, value);
            true
        });
        scanned.map_err(|error| kv_error(self.target, error))
    }

    fn damaged(&self, error: DecodeError) -> FsError {
        Damage::new(self.to_string(), error.damage).into()
    }

    /// All chunk records of the object.
    fn chunks(&self) -> FsResult<Vec<(u64, ChunkRecord)>> {
        let mut chunks = Vec::new();
        self.scan(CHUNKS, &mut |key, value| {
            let number = parse_part_key(key).map_or(u64::MAX, |(_, chunk)| chunk);
            assert!(number <= CHUNK_MAX, "{self}: chunk {number} is one that an object may have");
            chunks.push(ChunkRecord::decode(value).map(|chunk| (number, chunk)));
        })?;
        chunks.into_iter().collect::<Result<_, _>>().map_err(|error| self.damaged(error))
    }

    /// The epoch through which the tables say that the host file is flushed.
    fn flushed(&self) -> FsResult<u64> {
        let mark = self.get(META, MARK_KEY)?.and_then(|bytes| Mark::decode(&bytes).ok()).unwrap_or_default();
        let of_object = self.get(FLUSHED, &object_key(self.object))?;
        let of_object = of_object.and_then(|bytes| Some(u64::from_be_bytes(bytes[..].try_into().ok()?)));
        Ok(of_object.unwrap_or(0).max(mark.epoch))
    }

    fn assert_counts(&self, after: &ObjectRecord, chunks: &[(u64, ChunkRecord)]) {
        let mut counts = Counts::of(after);
        chunks.iter().for_each(|(number, chunk)| counts.add(*number, chunk));
        assert_eq!(after.blocks, counts.blocks, "{self}: its count of blocks is the sum over its chunks");
        assert_eq!(after.inline_blocks, counts.inline, "{self}: its count of inline blocks is the sum over its chunks");
        assert_eq!(
            after.reserved.empty(),
            counts.reserved_empty(),
            "{self}: its count of reserved blocks without data is that of its chunks"
        );
    }

    fn assert_chunk(&self, after: &ObjectRecord, number: u64, chunk: &ChunkRecord) -> FsResult<()> {
        assert!(!chunk.is_absent(), "{self}: chunk {number} is stored and holds no data");
        let taints = self.volatile.taints.get(&self.object);
        for (block, state) in (number * CHUNK_BLOCKS..).zip(chunk.states()) {
            let epoch = state.epoch();
            assert!(epoch <= self.volatile.epoch, "{self}: block {block} is of epoch {epoch}, which has not begun");
            if !state.is_in_place() {
                continue;
            }
            assert!(after.host_file, "{self}: block {block} is in place, and there is no host file");
            let is_tainted = taints.is_some_and(|taints| taints.contains_key(&block));
            assert!(!is_tainted, "{self}: block {block} is in place in a tainted range");
        }
        let last = chunk.states().iter().rposition(|state| *state != BlockState::Absent).unwrap_or(0) as u64;
        for run in chunk.states().chunk_by(BlockState::is_followed_by) {
            let Some((device, first)) = self.volatile.device.as_ref().zip(run[0].address()) else { continue };
            let unused = device.first_unused(&(first..first + run.len() as u64));
            assert_eq!(unused, None, "{self}: a block of chunk {number} is free on the device");
        }
        let start = (number * CHUNK_BLOCKS + last) * BLOCK_BYTES;
        assert!(start < after.size, "{self}: a block begins at byte {start}, after its end at {}", after.size);
        Ok(())
    }

    fn assert_dirty(&self, number: u64, chunk: &ChunkRecord, flushed: u64) -> FsResult<()> {
        let is_unflushed = |state: &BlockState| state.epoch() > flushed;
        if chunk.states().iter().any(is_unflushed) {
            let is_noted = self.get(DIRTY, &part_key(self.object, number))?.is_some();
            assert!(is_noted, "{self}: chunk {number} has unflushed blocks, and no key in DIRTY");
        }
        Ok(())
    }

    fn assert_inline(&self, after: &ObjectRecord, chunks: &[(u64, ChunkRecord)]) -> FsResult<()> {
        let blocks_of = |(number, chunk): &'_ (u64, ChunkRecord)| {
            let blocks: Vec<u64> = (number * CHUNK_BLOCKS..)
                .zip(chunk.states())
                .filter_map(|(block, state)| state.is_inline().then_some(block))
                .collect();
            blocks
        };
        let mut wanted = chunks.iter().flat_map(blocks_of);
        self.scan(INLINE, &mut |key, value| {
            let block = parse_part_key(key).map(|(_, block)| block);
            assert_eq!(block, wanted.next(), "{self}: INLINE has exactly the blocks whose state is inline");
            let end = block.unwrap_or(0) * BLOCK_BYTES + value.len() as u64;
            assert!(value.len() as u64 <= BLOCK_BYTES, "{self}: an inline block has {} bytes", value.len());
            assert!(value.last() != Some(&0), "{self}: zeros at the end of an inline block are left out");
            assert!(end <= after.size, "{self}: inline bytes end at {end}, after its end at {}", after.size);
        })?;
        assert_eq!(wanted.next(), None, "{self}: INLINE has the bytes of this inline block");
        Ok(())
    }

    fn assert_backlog(&self, after: &ObjectRecord) -> FsResult<()> {
        let waits = after.size > INLINE_OBJECT_BYTES_MAX && after.inline_blocks > 0;
        let is_noted = self.get(BACKLOG, &object_key(self.object))?.is_some();
        assert_eq!(is_noted, waits, "{self}: BACKLOG has exactly the large objects with inline blocks");
        let counted = self.volatile.backlog.get(&self.object).copied();
        assert_eq!(counted, waits.then_some(after.inline_blocks), "{self}: the backlog counts its inline blocks");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use bytes::Bytes;
    use kv::Batch;

    use super::*;
    use crate::directory::{
        host_file_state::{HostWork, Taint},
        test_store::{OBJECT, TestStore, quiet},
    };

    /// A store with a large object: 64 KiB in place from 0, 32 KiB inline from 1 MiB.
    async fn with_object() -> TestStore {
        let test = TestStore::new(quiet()).await;
        test.write(OBJECT, 0, vec![7; 64 << 10]).await;
        test.write_inline(OBJECT, 1 << 20).await;
        test
    }

    /// What is asserted of the object as the store has it; empty if all of it holds.
    fn breach(test: &TestStore) -> String {
        let volatile = test.store().volatile.lock();
        let after = test.store().records(None).object(OBJECT).unwrap().unwrap_or_default();
        let check = || Audit::new(&test.store().kv, &test.store().target, &volatile, OBJECT).assert_sound(&after);
        let Err(panic) = catch_unwind(AssertUnwindSafe(check)) else { return String::new() };
        panic.downcast_ref::<String>().expect("a panic with a text").clone()
    }

    /// What the audit reports after the tables were changed without the store's knowledge.
    async fn breach_after(change: impl FnOnce(&TestStore, &mut Batch)) -> String {
        let test = with_object().await;
        assert_eq!(breach(&test), "");
        let mut batch = Batch::default();
        change(&test, &mut batch);
        test.store().kv.apply(batch).unwrap();
        breach(&test)
    }

    fn key(number: u64) -> Bytes {
        Bytes::copy_from_slice(&part_key(OBJECT, number))
    }

    fn put_record(test: &TestStore, batch: &mut Batch, change: impl FnOnce(&mut ObjectRecord)) {
        let mut record = test.store().records(None).object(OBJECT).unwrap().unwrap();
        change(&mut record);
        batch.put(OBJECTS, Bytes::copy_from_slice(&object_key(OBJECT)), record.encode());
    }

    fn put_chunk(test: &TestStore, batch: &mut Batch, number: u64, change: impl FnOnce(&mut ChunkRecord)) {
        let mut chunk = test.store().records(None).chunk(OBJECT, number).unwrap().unwrap();
        change(&mut chunk);
        batch.put(CHUNKS, key(number), chunk.encode());
    }

    #[tokio::test]
    async fn counts_that_differ_from_the_chunks_are_found_and_named() {
        let breach = breach_after(|test, batch| put_record(test, batch, |record| record.blocks += 1)).await;
        assert!(breach.contains("its count of blocks is the sum over its chunks"), "{breach}");
        assert!(breach.contains(&OBJECT.to_string()) && breach.contains("stria-OST0000"), "{breach}");
        let inline = breach_after(|test, batch| put_record(test, batch, |record| record.inline_blocks -= 1)).await;
        assert!(inline.contains("its count of inline blocks"), "{inline}");
        let reserve = |record: &mut ObjectRecord| {
            let none = record.reserved;
            record.reserved = none.after(&none.with(&(0..300)), 0, 0);
        };
        let reserved = breach_after(|test, batch| put_record(test, batch, reserve)).await;
        assert!(reserved.contains("its count of reserved blocks"), "{reserved}");
    }

    #[tokio::test]
    async fn what_is_left_of_a_missing_object_is_found() {
        let delete = |_: &TestStore, batch: &mut Batch| {
            batch.delete(OBJECTS, Bytes::copy_from_slice(&object_key(OBJECT)));
        };
        let breach = breach_after(delete).await;
        assert!(breach.contains("chunks are left of an object that does not exist"), "{breach}");
    }

    #[tokio::test]
    async fn blocks_after_the_end_are_found() {
        let blocks = breach_after(|test, batch| put_record(test, batch, |record| record.size = 1 << 20)).await;
        assert!(blocks.contains("a block begins at byte 1077248, after its end at 1048576"), "{blocks}");
        let bytes = breach_after(|test, batch| put_record(test, batch, |record| record.size -= 1)).await;
        assert!(bytes.contains("inline bytes end at 1081344, after its end at 1081343"), "{bytes}");
    }

    #[tokio::test]
    async fn inline_bytes_and_states_belong_together() {
        let missing = breach_after(|_, batch| batch.delete(INLINE, key(257))).await;
        assert!(missing.contains("INLINE has exactly"), "{missing}");
        let last = breach_after(|_, batch| batch.delete(INLINE, key(263))).await;
        assert!(last.contains("INLINE has the bytes"), "{last}");
        let other = breach_after(|_, batch| batch.put(INLINE, key(3), vec![1])).await;
        assert!(other.contains("INLINE has exactly"), "{other}");
        let zeros = breach_after(|_, batch| batch.put(INLINE, key(257), vec![1, 0])).await;
        assert!(zeros.contains("zeros at the end"), "{zeros}");
    }

    #[tokio::test]
    async fn blocks_in_place_have_a_host_file_an_epoch_and_a_key() {
        let file = breach_after(|test, batch| put_record(test, batch, |record| record.host_file = false)).await;
        assert!(file.contains("there is no host file"), "{file}");
        let dirty = breach_after(|_, batch| batch.delete(DIRTY, key(0))).await;
        assert!(dirty.contains("no key in DIRTY"), "{dirty}");
        let ahead = |chunk: &mut ChunkRecord| {
            chunk.set(0, BlockState::InPlace { checksum: 1, epoch: 99 });
        };
        let epoch = breach_after(|test, batch| put_chunk(test, batch, 0, ahead)).await;
        assert!(epoch.contains("epoch 99, which has not begun"), "{epoch}");
        let tainted = breach_after(|test, _| {
            let taint = Taint { epoch: 1, work: HostWork::Keep };
            test.store().volatile.lock().taints.entry(OBJECT).or_default().insert(3..5, taint);
        });
        let tainted = tainted.await;
        assert!(tainted.contains("block 3 is in place in a tainted range"), "{tainted}");
    }

    #[tokio::test]
    async fn a_lost_backlog_and_other_totals_are_found() {
        let object = Bytes::copy_from_slice(&object_key(OBJECT));
        let backlog = breach_after(|_, batch| batch.delete(BACKLOG, object)).await;
        assert!(backlog.contains("BACKLOG has exactly"), "{backlog}");
        let totals = Totals { objects: 9, blocks: 9 };
        let other = breach_after(|_, batch| batch.put(META, Bytes::from_static(TOTALS_KEY), totals.encode())).await;
        assert!(other.contains("the stored totals"), "{other}");
    }

    #[tokio::test]
    #[should_panic(expected = "its count of blocks")]
    async fn a_change_is_audited_where_that_is_wanted() {
        let test = with_object().await;
        let mut batch = Batch::default();
        put_record(&test, &mut batch, |record| record.blocks += 1);
        test.store().kv.apply(batch).unwrap();
        test.write(OBJECT, 0, vec![1; 10]).await;
    }
}
