//! The journal: every batch is written here first, and after a crash it is authoritative.
//!
//! It consists of segments, files `journal.<slot>` of the same size, allocated ahead and reused
//! when a checkpoint has made their batches obsolete. The header of a segment, not its name, says
//! what it contains. Byte tables: [`format`].
//!
//! Invariants:
//! - Batches are numbered 1, 2, 3...; a record is valid only with the number that its position
//!   requires, the store's id and its segment's sequence number. So bytes of an earlier use of a
//!   segment never verify.
//! - The journal ends at the first record that does not verify. The bytes after it are a torn tail,
//!   unless a later record says that a missing batch had been flushed: that is damage and is
//!   reported ([`recovery`]).
//! - Nothing is appended after a recovered end. Writing continues in a new segment, whose header
//!   says where the journal was cut off; the recovered part is flushed before.
//! - A batch is accepted only if allocated segments have space for it.
//!
//! Life cycle of a segment: prepared (allocated, zeroed) -> current (written) -> sealed (full) ->
//! obsolete after a checkpoint -> prepared. Downside: a batch never spans segments, so up to the
//! size of the largest batch is left unused at the end of a segment.

pub mod format;
pub mod logged;
pub mod patch;
pub(crate) mod recovery;
pub(crate) mod writer;

/// Common beginning of the names of all segments.
pub const SEGMENT_PREFIX: &str = "journal.";

/// Name of the segment in a slot.
pub fn segment_name(slot: u32) -> String {
    format!("{SEGMENT_PREFIX}{slot}")
}

/// Slots are below this: far more than any store uses.
const SLOTS_MAX: u32 = 1 << 20;

/// Slot of a segment's name, `None` for other files.
pub fn segment_slot(name: &str) -> Option<u32> {
    let slot = name.strip_prefix(SEGMENT_PREFIX)?.parse().ok()?;
    (slot < SLOTS_MAX && segment_name(slot) == name).then_some(slot)
}
