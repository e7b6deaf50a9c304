//! Room for the journal at an opening.
//!
//! Nothing is appended after a recovered end: each opening begins a segment. So many deaths of the
//! process in a row, each before its first checkpoint was done, leave a segment each. Where no more
//! can be made, on a full device or in a part of one, everything recovered goes to the cold store
//! first, and the segments are used again.

use rt::Device;

use super::{space::STEP_BYTES, tasks::prepare_segment};
use crate::{
    cold::{Checkpoint, ColdStore},
    config::Config,
    error::{Error, Result},
    journal::recovery::Recovered,
    superblock::Superblock,
    tables::{Cursor, Tables},
};

/// Makes sure that there is a segment to begin with; the last checkpoint then. What was recovered
/// is durable in the journal.
pub(super) async fn make_room(
    (device, cold): (&dyn Device, &dyn ColdStore),
    (superblock, config): (&Superblock, &Config),
    checkpoint: Checkpoint,
    tables: &mut Tables,
    recovered: &mut Recovered,
) -> Result<Checkpoint> {
    if !recovered.free.is_empty() {
        return Ok(checkpoint);
    }
    let slot = recovered.slots_end;
    match prepare_segment(device, slot, superblock.segment_bytes, config.zero_segments).await {
        Ok(()) => {
            recovered.slots_end += 1;
            recovered.free.push((slot, true));
            Ok(checkpoint)
        }
        Err(error) if error.is_no_space() && !recovered.sealed.is_empty() => {
            let checkpoint = Checkpoint { store: superblock.store, lsn: recovered.last, term: recovered.term };
            empty_journal(cold, config, checkpoint, tables).await?;
            recovered.free = recovered.sealed.drain(..).map(|sealed| (sealed.slot, true)).collect();
            Ok(checkpoint)
        }
        Err(error) => Err(error),
    }
}

/// A checkpoint of a store that nobody uses yet.
async fn empty_journal(
    cold: &dyn ColdStore,
    config: &Config,
    checkpoint: Checkpoint,
    tables: &mut Tables,
) -> Result<()> {
    if let Some(hook) = &config.before_checkpoint {
        hook(checkpoint.lsn).await.map_err(|cause| Error::Hook { cause: cause.into() })?;
    }
    let (frozen, mut cursor) = (tables.freeze(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let step = tables.walk(&from, frozen, config.step_entries, STEP_BYTES);
        if !step.operations.is_empty() {
            cold.write(step.operations.clone()).await.map_err(|error| Error::cold("write", error))?;
            tables.mark_clean(&step.operations, frozen);
        }
        cursor = step.next;
    }
    cold.commit(checkpoint).await.map_err(|error| Error::cold("commit", error))
}
