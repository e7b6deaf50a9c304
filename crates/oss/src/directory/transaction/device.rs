//! Changes of blocks on the target's device.
//!
//! A block that is written gets another place on the device, and the record remembers the former
//! one while the new one is not known to be flushed: a power loss may keep the record and lose the
//! bytes. The former blocks are free in the tables at once, but not given out again before the
//! commit that ends the epoch.
//!
//! So a former place is one of the last *flushed* state, and in no other epoch than the one in
//! which it was left. That is why a block whose flush has begun and has not ended is not replaced
//! on the device: its former place would be older than what this flush is to make durable, and
//! could be given out when the flush has ended. Its new contents go inline.

use types::{Damage, FsError, FsResult, RecordDamage};

use super::Transaction;
use crate::{
    chunk_record::{BlockState, ChunkRecord, Former},
    object_record::ObjectRecord,
    superblock::RESERVED_KEY,
    tables::META,
};

/// What a run of blocks adds to a batch, where it is alone in its piece of a bitmap and in its
/// group: a piece, and the summary of the group.
pub(in crate::directory) const RUN_BYTES: usize = 160;

/// Whether new contents of a block may go to the device. `flushed`: epoch up to which its object is
/// flushed; `present`: the present one.
pub(in crate::directory) fn may_be_replaced(state: &BlockState, flushed: u64, present: u64) -> bool {
    match *state {
        BlockState::Absent => true,
        BlockState::OnDevice { epoch, .. } => epoch <= flushed || epoch == present,
        BlockState::InPlace { .. } | BlockState::Inline { .. } => false,
    }
}

impl Transaction<'_> {
    /// Whether new contents of a block may go to the device.
    pub fn may_be_replaced(&mut self, block: u64) -> FsResult<bool> {
        let (flushed, present) = (self.volatile.flushed_epoch(self.object), self.volatile.epoch);
        Ok(may_be_replaced(&self.state(block)?, flushed, present))
    }

    /// The block's bytes were written to this block of the device, which is in progress.
    pub fn put_on_device(&mut self, block: u64, checksum: u32, address: u64) -> FsResult<()> {
        let (epoch, number) = (self.volatile.epoch, ChunkRecord::of_block(block));
        let record = &self.open_chunk(number)?.record;
        let former = match record.state(block) {
            BlockState::OnDevice { checksum, epoch: 0, address } => Some(Former { checksum, address }),
            BlockState::OnDevice { epoch: old, .. } => {
                assert_eq!(old, epoch, "a block that is being flushed is not replaced on the device");
                record.former(block)
            }
            BlockState::Absent => None,
            old @ (BlockState::InPlace { .. } | BlockState::Inline { .. }) => {
                panic!("only absent blocks and blocks on the device are written there, not {old:?}")
            }
        };
        self.set_state(block, BlockState::OnDevice { checksum, epoch, address })?;
        if let Some(former) = former {
            self.open_chunk(number)?.record.set_former(block, former);
        }
        self.note_recorded(address);
        self.note_fresh(number);
        Ok(())
    }

    /// The bytes of an inline block are in this block of the device, which is in progress, and
    /// flushed.
    pub fn move_to_device(&mut self, block: u64, checksum: u32, address: u64) -> FsResult<()> {
        let old = self.set_state(block, BlockState::OnDevice { checksum, epoch: 0, address })?;
        assert_eq!(old, BlockState::Inline { checksum }, "only an unchanged inline block is moved");
        self.note_recorded(address);
        Ok(())
    }

    /// The bytes of a flushed block are also in another block of the device, which is in progress,
    /// and flushed there.
    pub fn move_on_device(&mut self, block: u64, checksum: u32, (from, to): (u64, u64)) -> FsResult<()> {
        let old = self.set_state(block, BlockState::OnDevice { checksum, epoch: 0, address: to })?;
        let expected = BlockState::OnDevice { checksum, epoch: 0, address: from };
        assert_eq!(old, expected, "only an unchanged block that is flushed is moved");
        self.note_recorded(to);
        Ok(())
    }

    fn note_recorded(&mut self, address: u64) {
        if self.device.record(address) {
            self.batch_bytes += RUN_BYTES;
        }
    }

    /// The block is where it was before its epoch.
    pub(super) fn reset_on_device(&mut self, block: u64) -> FsResult<()> {
        let former = self.open_chunk(ChunkRecord::of_block(block))?.record.former(block);
        let Some(Former { checksum, address }) = former else {
            return self.set_state(block, BlockState::Absent).map(drop);
        };
        self.need_group_of(address)?;
        self.set_state(block, BlockState::OnDevice { checksum, epoch: 0, address })?;
        if self.device.claim(address) {
            self.batch_bytes += RUN_BYTES;
        }
        Ok(())
    }

    /// No record names this block of the device any more.
    pub(super) fn free_on_device(&mut self, address: u64) -> FsResult<()> {
        self.need_group_of(address)?;
        if self.device.free(address) {
            self.batch_bytes += RUN_BYTES;
        }
        Ok(())
    }

    /// Makes sure that the group of a block is loaded. Labels and tables are no object's,
    /// whatever a damaged record says.
    fn need_group_of(&mut self, address: u64) -> FsResult<()> {
        let damaged = || self.store.damaged(self.object, RecordDamage::OutOfRange("address of a block"));
        let device = self.volatile.device.as_mut().ok_or_else(damaged)?;
        let is_own = self.store.superblock.engine.own_blocks().iter().any(|own| own.contains(&address));
        let group = device.group_of(address).filter(|_| !is_own).ok_or_else(damaged)?;
        if device.is_loaded(group) {
            return Ok(());
        }
        self.store.load_group(device, &self.records, group)
    }

    /// Adds to the batch what the tables have of the device then: after all changes, before
    /// [`Transaction::commit`].
    pub fn prepared(mut self) -> FsResult<Self> {
        if let Some(device) = &mut self.volatile.device {
            device.put(&self.device, &mut self.batch).map_err(|wrong| self.store.inconsistent(&wrong))?;
        }
        Ok(self)
    }

    /// Adds to the batch what is reserved on the device then, and returns it. `before`: the object
    /// before the change.
    pub(super) fn put_reserved_on_device(&mut self, before: &ObjectRecord) -> u64 {
        let Some(device) = &self.volatile.device else { return 0 };
        let now = device.reserved.saturating_add(self.record.reserved.empty()).saturating_sub(before.reserved.empty());
        if now != device.reserved {
            self.put(META, RESERVED_KEY.into(), now.to_le_bytes().to_vec().into());
        }
        now
    }

    /// The batch was applied.
    pub(super) fn applied_on_device(&mut self, reserved: u64, lsn: kv::Lsn) {
        let changes = std::mem::take(&mut self.device);
        let Some(device) = &mut self.volatile.device else { return };
        device.reserved = reserved;
        let applied = device.applied(changes, lsn.0);
        let dropped = if self.destroyed { device.drop_windows(self.object) } else { Ok(()) };
        if let Err(wrong) = applied.and(dropped.map_err(blocks::Refusal::from)) {
            // What the tables have was computed from the same state: this cannot be.
            self.volatile.failure.get_or_insert_with(|| format!("the free space of the device: {wrong}"));
        }
    }

    /// Reserves space on the device for blocks of the object, or refuses: as
    /// [`Transaction::reserve`].
    pub fn reserve_on_device(&mut self, blocks: &std::ops::Range<u64>) -> FsResult<()> {
        let before = self.record.reserved.empty();
        self.reserve(blocks)?;
        let more = self.record.reserved.empty().saturating_sub(before);
        let backlog = self.volatile.backlog_blocks;
        let available = self.volatile.device.as_ref().map_or(0, |device| device.available(backlog));
        if more > available { Err(FsError::NoSpace) } else { Ok(()) }
    }
}

impl super::DirectoryStore {
    /// The error that the records of the device contradict each other.
    pub(in crate::directory) fn inconsistent(&self, wrong: &blocks::Inconsistent) -> FsError {
        Damage::new(format!("free space of {}", self.target), wrong.to_string()).into()
    }
}
