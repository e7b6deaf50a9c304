//! Write-back: inline blocks of large objects move to their host files, when there are many of them or nothing else
//! happens. Small objects stay inline.
//!
//! A round copies some megabytes of one object: 1. collect inline blocks outside of tainted ranges; 2. make their records
//! durable; 3. write them to the host file; 4. flush it; 5. under the range lock, record those that did not change
//! meanwhile as in place. Requests go on during 1-4: they never write such blocks in place (rule 1), and what they change
//! is noted in `writing_back`. Nothing is punched meanwhile, because a round and a commit exclude each other.
//!
//! A full device ends the round without harm: the blocks stay inline.

use bytes::Bytes;
use types::{FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{BLOCK, DirectoryStore, host_file, transaction::Transaction};
use crate::chunk_record::CHUNK_BLOCKS;

/// Blocks copied in one round: 16 MiB, so that a commit waits for one flush of that at most.
const ROUND_BLOCKS_MAX: usize = 4096;

static ZEROS: [u8; BLOCK] = [0; BLOCK];

struct Copied {
    block: u64,
    checksum: u32,
    data: Bytes,
}

impl DirectoryStore {
    /// Writes back until the backlog is within its budget; when idle, all of it.
    pub(super) async fn write_back_due(&self) -> FsResult<()> {
        let mut after: Option<ObjectId> = None;
        loop {
            let object = {
                let volatile = self.volatile.lock();
                let options = self.options.lock();
                let idle = self.seams.clock.now().since(volatile.last_change) >= options.write_back_idle;
                let over = volatile.backlog_blocks * BLOCK_BYTES > options.write_back_bytes;
                if volatile.failure.is_some() || !(idle || over) {
                    return Ok(());
                }
                let behind = volatile.backlog.keys().find(|object| after.is_none_or(|after| **object > after));
                behind.copied()
            };
            // One pass over all objects; what could not be moved waits for the next turn.
            let Some(object) = object else { return Ok(()) };
            if self.is_stopping() {
                return Ok(());
            }
            if !self.write_back(object).await? {
                after = Some(object);
            }
        }
    }

    /// One round for one object. False when there was nothing (more) to be moved.
    pub(super) async fn write_back(&self, object: ObjectId) -> FsResult<bool> {
        let _turn = self.committing.lock().await;
        if self.load_object(object)?.is_none() {
            return Ok(false);
        }
        // First, so that from now on removed blocks are tainted.
        self.update(object, |transaction| {
            if transaction.exists() {
                transaction.note_host_file();
            }
            Ok(())
        })
        .await?;
        self.volatile.lock().writing_back = Some((object, Default::default()));
        let moved = self.write_back_round(object).await;
        self.volatile.lock().writing_back = None;
        moved
    }

    async fn write_back_round(&self, object: ObjectId) -> FsResult<bool> {
        let copied = self.collect_inline(object)?;
        let (Some(first), Some(last)) = (copied.first(), copied.last()) else { return Ok(false) };
        let blocks = first.block..last.block + 1;
        let lsn = self.volatile.lock().last_lsn;
        self.durable(lsn).await?;
        let file = host_file(object);
        for run in copied.chunk_by(|a, b| a.block + 1 == b.block) {
            let pieces = run.iter().flat_map(|copy| {
                let padding = Bytes::from_static(&ZEROS[copy.data.len()..]);
                [copy.data.clone(), padding].into_iter().filter(|piece| !piece.is_empty())
            });
            let written = self.device.write(&file, run[0].block * BLOCK_BYTES, pieces.collect()).await;
            written.map_err(|error| self.device_error("writing an object back", &error))?;
        }
        self.device.flush(&file).await.map_err(|error| self.poison("flushing an object", &error))?;
        let _guard = self.locks.exclusive(object, blocks).await;
        let moved = self.record_moved(object, &copied).await?;
        Ok(moved > 0)
    }

    /// Contents of inline blocks that may be written to the host file, in order. Damaged ones stay where they are: reading
    /// them names them.
    fn collect_inline(&self, object: ObjectId) -> FsResult<Vec<Copied>> {
        let mut copied = Vec::new();
        let mut next = 0;
        while let Some(chunk) = self.next_chunk(object, next)? {
            next = chunk + 1;
            // Under the mutex, so that states and contents belong together.
            let volatile = self.volatile.lock();
            let record = self.load_chunk(object, chunk)?.unwrap_or_default();
            for (block, state) in (chunk * CHUNK_BLOCKS..).zip(record.states()) {
                let Some(checksum) = state.checksum().filter(|_| state.is_inline()) else { continue };
                if volatile.is_tainted(object, &(block..block + 1)) {
                    continue;
                }
                let mut contents = vec![0; BLOCK];
                if self.load_inline(object, block, *state, &mut contents).is_ok() {
                    copied.push(Copied { block, checksum, data: contents.into() });
                }
            }
            if copied.len() >= ROUND_BLOCKS_MAX {
                break;
            }
        }
        Ok(copied)
    }

    /// Records the copies whose blocks did not change; returns how many.
    async fn record_moved(&self, object: ObjectId, copied: &[Copied]) -> FsResult<usize> {
        // A moved block costs a key to delete and a checksum in its chunk.
        let part_length = (self.batch_bytes / 64).max(1);
        let mut moved = 0;
        for part in copied.chunks(part_length) {
            let mut moved_now = 0;
            let record = |transaction: &mut Transaction<'_>| {
                moved_now = 0;
                for copy in part {
                    if !transaction.changed_during_write_back(copy.block) {
                        transaction.move_in_place(copy.block, copy.checksum)?;
                        moved_now += 1;
                    }
                }
                Ok(())
            };
            self.update(object, record).await?;
            moved += moved_now;
        }
        Ok(moved)
    }
}
