//! Opening a store: identify, recover the journal, load what fits, find room for the next segment.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use rt::{Device, ReadMostly, Seams};
use tokio::sync::{Notify, watch};

use super::{
    age::Ages,
    checkpoint::Progress,
    room::make_room,
    shared::{Shared, State, Statistics},
    tasks::prepare_segment,
};
use crate::{
    batch::{Batch, Lsn, Table, Term},
    cold::{Checkpoint, ColdStore},
    config::Config,
    error::{Error, Result},
    journal::{
        format::{HeaderState, NUMBER_MAX, SEGMENT_HEADER_BYTES},
        recovery::{Recovered, find_segments, read_range, recover},
        segment_name,
        writer::{Start, Writer},
    },
    pipeline::Pipeline,
    superblock::{STORE_FILE, Superblock},
    tables::Tables,
};

/// What is recovered is written again in pieces of this size.
const SECURED_BYTES: u64 = 1 << 20;

pub(super) async fn open(
    seams: Seams,
    device: Arc<dyn Device>,
    cold: Arc<dyn ColdStore>,
    config: Config,
    replay: &mut (dyn FnMut(Lsn, &Batch) + Send),
) -> Result<Arc<Shared>> {
    config.check()?;
    let (mut superblock, mut checkpoint) = identify(&seams, &*device, &*cold, &config).await?;
    let mut tables = Tables::new();
    // Zeros are written to a file from its beginning on.
    let prepared_bytes = config.zero_segments.then_some(superblock.segment_bytes);
    let mut recovered = recover(&*device, superblock.store, checkpoint, prepared_bytes, &mut |lsn, operations| {
        let mut batch = Batch::default();
        for operation in operations {
            let operation = operation.resolve(|table, key| tables.changed(table, key))?;
            tables.apply(&operation);
            batch.operations.push(operation);
        }
        replay(lsn, &batch);
        Ok(())
    })
    .await?;
    load(&*cold, &mut tables, config.memory_bytes as usize)?;
    let sequence = superblock.count_open(&*device, recovered.sequence).await?;
    secure(&*device, &recovered).await?;
    let places = (&*device, &*cold);
    checkpoint = make_room(places, (&superblock, &config), checkpoint, &mut tables, &mut recovered).await?;
    let journal = start_writer(&*device, &superblock, sequence, &config, recovered).await?;
    let halted: Arc<AtomicBool> = Arc::default();
    let (written_to, flushed_to) = (journal.written(), journal.flushed());
    let shared = Arc::new(Shared {
        seams,
        device,
        cold,
        config,
        store: superblock.store,
        segment_bytes: superblock.segment_bytes,
        state: Mutex::new(State {
            journal,
            dirty: tables.dirty(),
            poison: None,
            halted: Arc::clone(&halted),
            closed: false,
            closing: false,
            checkpoint_failed: false,
            cold_full: false,
            journal_full: false,
            commit_armed: false,
            device_space: None,
            preparing: false,
            checkpoints: Progress::new(checkpoint.lsn),
            ages: Ages::default(),
            statistics: Statistics::default(),
        }),
        written_to: AtomicU64::new(written_to.0),
        flushed_to: AtomicU64::new(flushed_to.0),
        tables: ReadMostly::new(tables),
        halted,
        writing: Pipeline::new(),
        flushing: Pipeline::new(),
        changed: Notify::new(),
        commit_wanted: Notify::new(),
        checkpoint_wanted: Notify::new(),
        segment_wanted: Notify::new(),
        space_wanted: Notify::new(),
        stop: watch::Sender::new(false),
        tasks: watch::Sender::new(0),
    });
    shared.ask_space().await;
    Ok(shared)
}

/// Finds out which store this is and whether its parts belong together; creates it if there is
/// nothing at all.
async fn identify(
    seams: &Seams,
    device: &dyn Device,
    cold: &dyn ColdStore,
    config: &Config,
) -> Result<(Superblock, Checkpoint)> {
    let superblock = Superblock::read(device).await?;
    let checkpoint = cold.checkpoint().map_err(|error| Error::cold("read", error))?;
    let segments = find_segments(device).await?;
    let journaled = segments.iter().any(|found| found.header != HeaderState::Blank);
    let Some(superblock) = superblock else {
        if journaled || checkpoint.is_some() {
            let reason = "there is a journal or a cold store".to_owned();
            return Err(Error::Missing { what: STORE_FILE, reason });
        }
        let superblock = Superblock::create(device, &*seams.entropy, config.segment_bytes).await?;
        return Ok((superblock, begin_cold(cold, superblock.store).await?));
    };
    match checkpoint {
        Some(checkpoint) if checkpoint.store != superblock.store => Err(Error::WrongStore {
            file: "the cold store".to_owned(),
            found: checkpoint.store,
            expected: superblock.store,
        }),
        Some(checkpoint) if checkpoint.lsn.0 > NUMBER_MAX => Err(Error::Corrupt {
            file: "the cold store".to_owned(),
            offset: 0,
            reason: format!("its checkpoint names batch {}, which is impossible", checkpoint.lsn.0),
        }),
        Some(checkpoint) if checkpoint.lsn > Lsn(0) && segments.is_empty() => {
            let reason = format!("the cold store has batches up to {}", checkpoint.lsn.0);
            Err(Error::Missing { what: "the journal", reason })
        }
        Some(checkpoint) => Ok((superblock, checkpoint)),
        None if journaled => Err(Error::Missing { what: "the cold store", reason: "there is a journal".to_owned() }),
        None => Ok((superblock, begin_cold(cold, superblock.store).await?)),
    }
}

/// Makes the cold store this store's.
async fn begin_cold(cold: &dyn ColdStore, store: u64) -> Result<Checkpoint> {
    let checkpoint = Checkpoint { store, lsn: Lsn(0), term: Term(0) };
    cold.commit(checkpoint).await.map_err(|error| Error::cold("initialise", error))?;
    Ok(checkpoint)
}

/// Reads the cold store into memory as long as it fits.
fn load(cold: &dyn ColdStore, tables: &mut Tables, budget: usize) -> Result<()> {
    for number in 0..=u8::MAX {
        let table = Table(number);
        let mut insert = |key: &[u8], value: &[u8]| {
            if tables.bytes() >= budget {
                tables.set_incomplete(table);
                return false;
            }
            tables.insert_clean(table, key, Bytes::copy_from_slice(value));
            true
        };
        cold.scan(table, &[], None, &mut insert).map_err(|error| Error::cold("scan", error))?;
    }
    Ok(())
}

/// Makes the recovered journal durable, and what was cut from it invisible to later recoveries,
/// before anything new.
///
/// What was read is written again first, in place: a flush that failed before this start may have
/// left it in the kernel's cache alone, as clean, so that no flush would write it. The same bytes
/// over the same bytes do no harm if they are torn.
async fn secure(device: &dyn Device, recovered: &Recovered) -> Result<()> {
    for &(slot, end) in &recovered.contents {
        let name = segment_name(slot);
        let mut offset = 0;
        while offset < end {
            let bytes = Bytes::from(read_range(device, &name, offset, SECURED_BYTES.min(end - offset)).await?);
            if bytes.is_empty() {
                return Err(Error::device("read", &name, std::io::ErrorKind::UnexpectedEof.into()));
            }
            let next = offset + bytes.len() as u64;
            device.write(&name, offset, vec![bytes]).await.map_err(|error| Error::device("write", &name, error))?;
            offset = next;
        }
        device.flush(&name).await.map_err(|error| Error::device("flush", &name, error))?;
    }
    for slot in &recovered.discarded {
        let name = segment_name(*slot);
        let zeros = Bytes::from_static(&[0; SEGMENT_HEADER_BYTES as usize]);
        device.write(&name, 0, vec![zeros]).await.map_err(|error| Error::device("write", &name, error))?;
        device.flush(&name).await.map_err(|error| Error::device("flush", &name, error))?;
    }
    Ok(())
}

/// Prepares a segment if there is none, and continues in it.
async fn start_writer(
    device: &dyn Device,
    superblock: &Superblock,
    sequence: u64,
    config: &Config,
    recovered: Recovered,
) -> Result<Writer> {
    let (prepared, unprepared): (Vec<_>, Vec<_>) = recovered.free.iter().partition(|(_, prepared)| *prepared);
    let mut ready: VecDeque<u32> = prepared.iter().map(|(slot, _)| *slot).collect();
    let mut unprepared: Vec<u32> = unprepared.iter().map(|(slot, _)| *slot).collect();
    let mut slots_end = recovered.slots_end;
    if ready.is_empty() {
        let slot = unprepared.pop().unwrap_or(slots_end);
        slots_end = slots_end.max(slot + 1);
        prepare_segment(device, slot, superblock.segment_bytes, config.zero_segments).await?;
        ready.push_back(slot);
    }
    Ok(Writer::new(Start {
        store: superblock.store,
        segment_bytes: superblock.segment_bytes,
        last: recovered.last,
        term: recovered.term,
        sequence,
        sealed: recovered.sealed,
        ready,
        unprepared,
        slots_end,
    }))
}
