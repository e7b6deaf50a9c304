//! The journal: where every batch is before anything else, and the truth after a crash.
//!
//! It consists of segments, files `journal.<slot>` of one size, allocated ahead and used again when a checkpoint has made
//! their batches obsolete. What a segment holds is said by its header, not by its name. Byte tables: [`format`].
//!
//! Invariants:
//! - Batches are numbered 1, 2, 3...; a record is valid only with the number its position demands, the store's id and its
//!   segment's sequence number. So what an earlier use left behind in a segment never verifies.
//! - The end is the first record that does not verify. From there on bytes are a torn tail, unless a later record says
//!   that what is missing had been flushed: that is damage and reported ([`recovery`]).
//! - Nothing is appended behind a recovered end. Writing goes on in a new segment, whose header says where the journal
//!   was cut; the recovered part is flushed before.
//! - A batch is accepted only if allocated segments have room for it.
//!
//! Life cycle of a segment: prepared (allocated, zeroed) -> current (written) -> sealed (full) -> obsolete after a
//! checkpoint -> prepared. Downside: a batch never spans segments, so that up to the size of the largest batch is left
//! unused at a segment's end.

pub mod format;
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
