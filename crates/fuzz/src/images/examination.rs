//! What is done with a damaged image, and what must hold of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use bytes::Bytes;
use kv::{Operation, Table, superblock::Superblock};
use oss::{device_map::MapBuilder, device_records::DeviceRecords, inspect::OstSchema};
use rpc::message::ost::SpaceChange;
use types::{
    FsError, FsResult, ObjectId,
    limits::{BLOCK_BYTES, BULK_BYTES_MAX},
};

use super::{
    faults::ReadFault,
    made::{Made, object, pattern, run_alone},
    script::{Damaged, Script},
    session::{Parts, Session},
};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Cells of the map.
const CELLS: u32 = 500;
/// The most of an object that is read: damaged records may say that it has far more.
const READ_BYTES_MAX: u64 = 6 << 20;

/// What may be expected of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// All but these blocks of the device, which are of no table, is as it was.
    Data(BTreeSet<u64>),
    /// Tables are damaged, or the last changes may be lost: blocks are as they were at some time.
    Blocks,
    /// Records say what somebody wants them to say.
    Nothing,
}

impl Trust {
    fn of(made: &Made, damaged: &Damaged) -> Trust {
        let labels = Made::labels();
        let is_of_data = |place: &&super::made::Place| {
            place.is_on_device() && (labels.contains(place) || made.data.binary_search(place).is_ok())
        };
        match () {
            () if damaged.is_sealed => Trust::Nothing,
            () if damaged.is_cut || !made.is_clean || !damaged.changed.iter().all(|place| is_of_data(&place)) => {
                Trust::Blocks
            }
            () => Trust::Data(damaged.changed.iter().map(|place| place.block).collect()),
        }
    }
}

/// What an examination came to, so that it is known what inputs reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What the image was expected to be: data alone, tables as well, or anything.
    pub data_only: bool,
    /// See above.
    pub sealed: bool,
    /// The tables could be mapped.
    pub mapped: bool,
    /// The target opened.
    pub opened: bool,
    /// It opened again after it was used.
    pub reopened: bool,
    /// Blocks that were read and are as they should be.
    pub blocks_read: u64,
    /// Blocks, or whole reads, that were refused.
    pub blocks_refused: u64,
    /// New data that were read again as they were written.
    pub new_data_read: u64,
    /// Scrubs that came to an end.
    pub scrubs: u64,
}

/// Damages an image and examines it; panics if something is wrong.
pub fn examine(script: &Script<'_>) -> Outcome {
    examine_with(script, None)
}

/// The same of a target whose reads may have a fault, which must be found by some scripts.
pub fn examine_with(script: &Script<'_>, fault: Option<ReadFault>) -> Outcome {
    let made = script.image();
    run_alone(async {
        let damaged = script.execute().await;
        let trust = Trust::of(made, &damaged);
        let (data_only, sealed) = (matches!(trust, Trust::Data(_)), trust == Trust::Nothing);
        let outcome = Outcome { data_only, sealed, ..Outcome::default() };
        let mut examination = Examination { made, trust, fault, outcome, new: BTreeMap::new() };
        examination.map(&damaged.parts).await;
        examination.open_and_use(&damaged.parts).await;
        examination.outcome
    })
}

struct Examination {
    made: &'static Made,
    trust: Trust,
    fault: Option<ReadFault>,
    outcome: Outcome,
    /// What this has written, by object.
    new: BTreeMap<ObjectId, Vec<u8>>,
}

/// An error must say something.
fn told(error: &impl Debug, text: &str) {
    assert!(!text.trim().is_empty(), "an error without words: {error:?}");
}

impl Examination {
    /// What `stria inspect`, also with `--map`, does.
    async fn map(&mut self, parts: &Parts) {
        let (journal, cold) = match parts.look().await {
            Ok(found) => found,
            Err(error) => return told(&error, &error),
        };
        let _ = kv::inspect::store(&*journal, &*cold).await;
        let mut records: BTreeMap<(u8, Bytes), Bytes> = BTreeMap::new();
        for table in (0..=u8::MAX).map(Table) {
            let mut note = |key: &[u8], value: &[u8]| {
                records.insert((table.0, Bytes::copy_from_slice(key)), Bytes::copy_from_slice(value));
                true
            };
            // What is found before the damage counts.
            let _ = cold.scan(table, &[], None, &mut note);
        }
        let checkpoint = cold.checkpoint().ok().flatten().unwrap_or_default();
        if let Ok(Some(superblock)) = Superblock::read(&*journal).await {
            let mut replay = |_, batch: &kv::Batch| {
                for operation in &batch.operations {
                    match operation {
                        Operation::Put(table, key, value) => {
                            records.insert((table.0, key.clone()), value.clone());
                        }
                        Operation::Delete(table, key) => {
                            records.remove(&(table.0, key.clone()));
                        }
                    }
                }
            };
            let _ = kv::inspect::replay(&*journal, superblock.store, checkpoint, &mut replay).await;
        }
        let (mut map, mut device, mut engine) = (MapBuilder::new(CELLS), DeviceRecords::default(), None);
        for ((table, key), value) in &records {
            let described = kv::inspect::describe(&OstSchema, Table(*table), key, Some(value));
            let text = described.unwrap_or_else(|text| text);
            told(&key, &text);
            map.note(Table(*table), key, value);
            device.note(Table(*table), key, value);
            if Table(*table) == oss::tables::META && key[..] == *oss::superblock::SUPERBLOCK_KEY {
                engine = oss::Superblock::decode(value).ok().map(|superblock| superblock.engine);
            }
        }
        if let Some(engine) = engine {
            let problems = device.problems(engine);
            assert!(!matches!(self.trust, Trust::Data(_)) || problems.is_empty(), "{problems:?}");
        }
        match map.finish() {
            Ok(map) => {
                self.outcome.mapped = true;
                let _ = (map.text(50), map.svg(50), map.png(50), map.free.score(), map.objects.score());
            }
            Err(error) => {
                assert!(!matches!(self.trust, Trust::Data(_)), "only data are damaged: {error}");
                told(&error, &error.to_string());
            }
        }
    }

    async fn open_and_use(&mut self, parts: &Parts) {
        let session = match Session::open_with(parts, self.fault).await {
            Ok(session) => session,
            Err(error) => {
                let both_labels =
                    |changed: &BTreeSet<u64>| Made::labels().iter().all(|label| changed.contains(&label.block));
                let is_expected = match &self.trust {
                    Trust::Data(changed) => both_labels(changed),
                    _ => true,
                };
                assert!(is_expected, "only data are damaged: {error}");
                return told(&error, &error);
            }
        };
        self.outcome.opened = true;
        self.look_at(&session).await;
        self.change(&session).await;
        self.read_new(&session).await;
        for _ in 0..2 {
            session.work().await;
        }
        self.read_new(&session).await;
        self.outcome.scrubs += u64::from(session.scrub().await.is_some());
        let _ = session.stop().await;
        let again = Session::open_with(&parts.after_crash(), self.fault).await;
        let Ok(session) = again else { return };
        self.outcome.reopened = true;
        self.read_new(&session).await;
        let _ = session.check_device();
        let _ = session.stop().await;
    }

    /// Reads and checks everything, changes nothing.
    async fn look_at(&mut self, session: &Session) {
        let listed = session.list().await;
        let mut objects: BTreeSet<ObjectId> = self.made.sizes.keys().copied().collect();
        match listed {
            Ok(found) => {
                let found: BTreeSet<ObjectId> = found.into_iter().map(|(object, _)| object).collect();
                if let Trust::Data(_) = self.trust {
                    assert!(found.iter().eq(self.made.contents.keys()), "the objects are those that were written");
                }
                objects.extend(found.into_iter().take(50));
            }
            Err(error) => self.refused(None, &error),
        }
        for object in objects {
            self.read_old(session, object).await;
            let extents = session.extents(object).await;
            let checked = session.check(object).await;
            if let Trust::Data(changed) = &self.trust {
                let damaged = self.made.on_device.range((object, 0)..=(object, u64::MAX));
                let is_damaged = damaged.into_iter().any(|(_, at)| changed.contains(at));
                assert!(extents.is_ok(), "only data are damaged: {extents:?}");
                assert_eq!(checked.is_err(), is_damaged, "{object}: {checked:?}");
            }
            if let Err(error) = checked {
                self.refused(Some(object), &error);
            }
        }
        let scrubbed = session.scrub().await;
        self.outcome.scrubs += u64::from(scrubbed.is_some());
        let device = session.check_device();
        if let Trust::Data(changed) = &self.trust {
            let damaged = self.made.on_device.values().filter(|at| changed.contains(at)).count() as u64;
            assert_eq!(scrubbed, Some(damaged), "a scrub finds all damage, and no other");
            assert_eq!(device, Ok(Vec::new()), "bitmaps and extents agree");
        }
    }

    /// Notes an error, which must say what it is about.
    fn refused(&mut self, object: Option<ObjectId>, error: &FsError) {
        told(error, &error.to_string());
        if let (Trust::Data(_), Some(object)) = (&self.trust, object) {
            let names = matches!(error, FsError::Corrupt { object: named, .. } if *named == object);
            assert!(names, "an error that names {object}, not {error:?}");
        }
        self.outcome.blocks_refused += 1;
    }

    /// Reads an object as it was before the damage.
    async fn read_old(&mut self, session: &Session, object: ObjectId) {
        let mut size = READ_BYTES_MAX;
        let mut offset = 0;
        while offset < size.min(READ_BYTES_MAX) {
            match session.read(object, offset, BULK_BYTES_MAX).await {
                Ok((data, found)) => {
                    size = found;
                    self.compare_size(object, size);
                    self.compare(object, offset, &data);
                }
                Err(error) => {
                    self.refused(Some(object), &error);
                    // The others of them can be read, if it is a matter of single blocks.
                    let end = (offset + BULK_BYTES_MAX as u64).min(READ_BYTES_MAX);
                    for at in (offset..end).step_by(BLOCK) {
                        match session.read(object, at, BLOCK).await {
                            Ok((data, found)) => {
                                size = found;
                                self.compare(object, at, &data);
                            }
                            Err(error) => self.refused_block(object, at / BLOCK_BYTES, &error),
                        }
                        if at >= size {
                            break;
                        }
                    }
                }
            }
            offset += BULK_BYTES_MAX as u64;
        }
    }

    fn refused_block(&mut self, object: ObjectId, block: u64, error: &FsError) {
        self.refused(Some(object), error);
        if let Trust::Data(changed) = &self.trust {
            let at = self.made.on_device.get(&(object, block));
            assert!(at.is_some_and(|at| changed.contains(at)), "block {block} of {object} is intact: {error}");
        }
    }

    fn compare_size(&self, object: ObjectId, size: u64) {
        match &self.trust {
            Trust::Data(_) => {
                let expected = self.made.contents.get(&object).map_or(0, |contents| contents.len() as u64);
                assert_eq!(size, expected, "size of {object}");
            }
            Trust::Blocks => {
                let sizes = self.made.sizes.get(&object);
                let is_known = size == 0 || sizes.is_some_and(|sizes| sizes.contains(&size));
                assert!(is_known, "{object} never had {size} bytes, but {sizes:?}");
            }
            Trust::Nothing => {}
        }
    }

    /// Compares what was read from a block on with what it may be.
    fn compare(&mut self, object: ObjectId, offset: u64, data: &[u8]) {
        for (block, found) in (offset / BLOCK_BYTES..).zip(data.chunks(BLOCK)) {
            let is_right = match &self.trust {
                Trust::Data(changed) => {
                    let contents = self.made.contents.get(&object).map_or(&[][..], Vec::as_slice);
                    let start = (block * BLOCK_BYTES) as usize;
                    let at = self.made.on_device.get(&(object, block));
                    at.is_none_or(|at| !changed.contains(at)) && contents.get(start..start + found.len()) == Some(found)
                }
                Trust::Blocks => {
                    let versions = self.made.history.get(&(object, block)).map_or(&[][..], Vec::as_slice);
                    let is_zeros = found.iter().all(|byte| *byte == 0);
                    is_zeros || versions.iter().any(|version| version[..found.len()] == *found)
                }
                Trust::Nothing => true,
            };
            assert!(is_right, "block {block} of {object} is not as it was written");
            self.outcome.blocks_read += 1;
        }
    }

    /// Changes of all kinds, most of which may be refused.
    async fn change(&mut self, session: &Session) {
        const KIB: u64 = 1024;
        let fresh = object(1000);
        for (version, start, bytes, sync) in
            [(1, 0, 200 * KIB, false), (2, 1 << 20, 70 * KIB, true), (3, 300 * KIB, 5000, false), (4, 10, 100, true)]
        {
            let data = pattern(version, start, bytes);
            let written = session.write(fresh, start, &data, sync).await;
            self.note_new(fresh, start, &data, &written);
            self.read_new(session).await;
        }
        // Over what may be damaged: what is written to whole blocks is whole again.
        for (number, start, bytes) in [(3, 64 * KIB, 128 * KIB), (6, 0, 8192), (1, 4096, 4096)] {
            let data = pattern(number + 7, start, bytes);
            if session.write(object(number), start, &data, false).await.is_ok() {
                match session.read(object(number), start, bytes as usize).await {
                    Ok((found, _)) => assert!(found == data, "{} is as it was written", object(number)),
                    Err(error) => told(&error, &error.to_string()),
                }
            }
        }
        for (number, change) in [
            (3, SpaceChange::Truncate { size: 700_001 }),
            (3, SpaceChange::Punch { offset: 10_000, bytes: 300_000 }),
            (4, SpaceChange::Zero { offset: 3 << 20, bytes: 5000, extend: true }),
            (8, SpaceChange::Allocate { offset: 0, bytes: 1 << 20, extend: true }),
        ] {
            let _ = session.change_space(object(number), change).await;
        }
        for number in [1, 5, 7] {
            let _ = session.destroy(object(number)).await;
        }
        let _ = session.sync().await;
        let other = object(1001);
        let data = pattern(9, 0, 900 * KIB);
        let written = session.write(other, 0, &data, false).await;
        self.note_new(other, 0, &data, &written);
        let _ = session.sync().await;
    }

    fn note_new(&mut self, object: ObjectId, start: u64, data: &[u8], written: &FsResult<()>) {
        let Err(error) = written else {
            let contents = self.new.entry(object).or_default();
            let end = start as usize + data.len();
            contents.resize(contents.len().max(end), 0);
            contents[start as usize..end].copy_from_slice(data);
            return;
        };
        told(error, &error.to_string());
        assert!(!matches!(self.trust, Trust::Data(_)), "new data find their place: {error}");
    }

    /// Reads what this has written.
    async fn read_new(&mut self, session: &Session) {
        for (object, contents) in &self.new {
            for (number, expected) in contents.chunks(BULK_BYTES_MAX).enumerate() {
                let offset = (number * BULK_BYTES_MAX) as u64;
                match session.read(*object, offset, expected.len()).await {
                    Ok((found, _)) => {
                        assert!(found == expected, "{object} is as it was written");
                        self.outcome.new_data_read += 1;
                    }
                    Err(error) => {
                        told(&error, &error.to_string());
                        assert!(!matches!(self.trust, Trust::Data(_)), "new data can be read: {error}");
                    }
                }
            }
        }
    }
}
