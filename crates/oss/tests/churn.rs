//! Three days of churn on a device that is 95% full: does its free space drift?
//!
//! Objects of 4 KiB to 4 MiB are made, overwritten, extended, truncated, punched, reserved, read
//! and removed, in bursts, in virtual time, while the target's own tasks commit, write back,
//! checkpoint, discard, merge pieces, give windows back and scrub. It is restarted, dies and loses
//! power. At the end of each hour nothing is asked of it for a minute. Then
//!
//! - free space is that of the device, less what it keeps for itself, less the blocks of it that
//!   the objects say they have; what may be written is that less what is reserved. Exactly, in all
//!   counts: the allocator's, that of each group, statfs, the bitmaps and the chunks in the tables;
//! - nothing is held by windows, waits for a commit, a discard or write-back, or is promised;
//! - each object has the blocks that the model says.
//!
//! Nothing is refused while the model has room for it. Twice a day, the device is filled to its
//! last block, and parts of objects are overwritten then. Whatever is read is as it was written. At
//! the end everything is removed, and all space is free.
//!
//! `STRIA_TEST_LONG=1` does four times as much in each hour, with three seeds.

use crate::{
    common,
    reserved::{Model, touched},
};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use common::{
    BLOCK, KIB, MIB, TABLES, TestOst, free, object, parameter, pattern, run, statistic, statistic_of,
    virtual_clock::VirtualClock,
};
use kv::Config;
use oss::{
    Engine, OstOptions,
    chunk_record::{BlockState, ChunkRecord},
    group_record::decode_piece,
    options::{IN_PLACE_BYTES_MIN, INLINE_OBJECT_BYTES_MAX},
    tables::{BITMAPS, CHUNKS},
};
use rpc::message::{
    OstReply, OstRequest,
    ost::{ExtentPlace, ExtentsQuery, SpaceChange},
};
use rt::{Clock, Instant, memory::MemoryDevice};
use types::{FsError, SplitMix64};

/// 64 MiB for objects.
const BLOCKS: u64 = 16_384;
const HOURS: u64 = 72;
const HOUR: Duration = Duration::from_secs(3600);
/// Of an hour, for the pauses between bursts.
const PAUSES: Duration = Duration::from_secs(2400);
/// Within which the target comes to rest: windows are given back after 30 s.
const REST: Duration = Duration::from_secs(60);
const BURST: u64 = 8;
/// Operations of an hour, in a test of every change.
const OPERATIONS: u64 = 24;
/// Of an object.
const BYTES_MAX: u64 = 8 * MIB;

/// An object, as it should be.
#[derive(Default)]
struct Expected {
    contents: Vec<u8>,
    blocks: Model,
}

impl Expected {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        self.contents.resize(self.contents.len().max(end), 0);
        self.contents[offset as usize..end].copy_from_slice(data);
        self.blocks.write(offset, data.len() as u64);
    }

    fn change(&mut self, change: SpaceChange) {
        self.blocks.change(change);
        if let SpaceChange::Punch { offset, bytes } = change {
            let end = self.contents.len().min((offset + bytes) as usize);
            self.contents[(offset as usize).min(end)..end].fill(0);
        }
        self.contents.resize(self.blocks.size as usize, 0);
    }

    /// Blocks of a range that it has no space for.
    fn new_blocks(&self, offset: u64, bytes: u64) -> u64 {
        let Model { held, reserved, .. } = &self.blocks;
        touched(offset, bytes).filter(|block| !held.contains(block) && !reserved.contains(block)).count() as u64
    }

    fn reserved_blocks(&self) -> u64 {
        self.blocks.reserved.difference(&self.blocks.held).count() as u64
    }
}

/// What an object says of its blocks.
#[derive(Default)]
struct Places {
    held: BTreeSet<u64>,
    on_device: u64,
}

/// What happened by itself: a test in which it did not shows little.
#[derive(Default)]
struct Seen {
    discards: bool,
    merges: bool,
    /// When they ended.
    scrubs: BTreeSet<u64>,
    /// The last batch of each.
    checkpoints: BTreeSet<u64>,
}

struct Churn {
    target: TestOst,
    clock: VirtualClock,
    /// Blocks that objects may have.
    usable: u64,
    random: SplitMix64,
    objects: BTreeMap<u64, Expected>,
    /// Number of the last object, and of the last write.
    last: u64,
    version: u64,
    seen: Seen,
}

impl Churn {
    async fn new(engine: Engine, seed: u64) -> Self {
        let mut random = SplitMix64(seed);
        let clock = VirtualClock::new();
        let options = OstOptions {
            audits: true,
            reserve_bytes: 0,
            discard: true,
            write_back_bytes: MIB,
            overwrite_bytes_min: if random.next_u64().is_multiple_of(2) { BLOCK } else { IN_PLACE_BYTES_MIN },
            auto_scrub: 6 * HOUR,
            ..OstOptions::default()
        };
        let device = MemoryDevice::new();
        let target = TestOst::with_clock(Arc::new(clock.clone()), engine, seed, device, options, Config::small()).await;
        let Engine::Blocks { blocks, .. } = engine else { panic!("{engine:?} has no device") };
        let usable = blocks - engine.own_blocks().into_iter().map(|own| own.end - own.start).sum::<u64>();
        let (objects, seen) = Default::default();
        Self { target, clock, usable, random, objects, last: 0, version: 0, seen }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end.max(1)
    }

    /// From 4 KiB to 4 MiB: each power of two as often as the others.
    fn any_bytes(&mut self) -> u64 {
        let octave = (4 * KIB) << self.below(10);
        octave + self.below(octave)
    }

    fn any_object(&mut self) -> Option<u64> {
        let place = self.below(self.objects.len() as u64) as usize;
        self.objects.keys().nth(place).copied()
    }

    async fn pass(&self, time: Duration) {
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            let step = Duration::from_secs(if end.since(self.clock.now()) <= REST { 1 } else { 10 });
            self.clock.advance(step.min(end.since(self.clock.now()))).await;
        }
    }

    /// Blocks that new data may take for certain. (Small objects are in the tables.)
    fn room(&self) -> u64 {
        self.usable - self.objects.values().map(|expected| expected.blocks.taken()).sum::<u64>()
    }

    /// Removes objects, but for this one, until so many blocks more leave 5% free.
    async fn make_room(&mut self, blocks: u64, but: u64) {
        while self.room() < blocks + self.usable / 20 {
            match self.any_object() {
                Some(number) if number != but => self.remove(number).await,
                _ => {}
            }
        }
    }

    async fn remove(&mut self, number: u64) {
        self.target.done(OstRequest::Destroy(vec![object(number)], None)).await;
        self.objects.remove(&number);
    }

    /// Writes as clients do: a request for each 1 MiB.
    async fn write(&mut self, number: u64, offset: u64, bytes: u64) {
        let mut at = offset;
        while at < offset + bytes {
            let end = (offset + bytes).min((at / MIB + 1) * MIB);
            self.version += 1;
            let (data, sync) = (pattern(self.version, at, end - at), self.below(10) == 0);
            let room = self.room();
            let expected = self.objects.entry(number).or_default();
            let new = expected.new_blocks(at, end - at);
            let written = self.target.write_with(object(number), at, &data, sync).await;
            if let Err(error) = written {
                panic!("{error}: {new} new blocks of object {number}, with room for {room}");
            }
            expected.write(at, &data);
            at = end;
        }
    }

    async fn write_with_room(&mut self, number: u64, offset: u64, bytes: u64) {
        let new = self.objects.entry(number).or_default().new_blocks(offset, bytes);
        self.make_room(new, number).await;
        self.write(number, offset, bytes).await;
    }

    async fn change(&mut self, number: u64, change: SpaceChange) {
        self.target.space(object(number), change).await.unwrap();
        let expected = self.objects.get_mut(&number).unwrap();
        let had_reserved = !expected.blocks.reserved.is_empty();
        expected.change(change);
        // Which blocks are reserved is not asked after a power loss.
        if had_reserved || !expected.blocks.reserved.is_empty() {
            self.target.sync().await;
        }
    }

    async fn operate(&mut self) {
        let (what, bytes) = (self.below(20), self.any_bytes());
        let Some(number) = self.any_object().filter(|_| what >= 7) else {
            self.last += 1;
            return self.write_with_room(self.last, 0, bytes).await;
        };
        let size = self.objects[&number].blocks.size;
        let offset = match (self.below(size), self.below(4)) {
            (offset, 0) => offset,
            (offset, _) => offset / BLOCK * BLOCK,
        };
        let (to_end, more) = (bytes.min(size - offset), bytes.min(BYTES_MAX.saturating_sub(size)));
        match what {
            7..=11 if to_end > 0 => self.write_with_room(number, offset, to_end).await,
            12..=13 if more > 0 => self.write_with_room(number, size, more).await,
            14 => {
                let size = self.below(size + size / 4).min(BYTES_MAX);
                self.change(number, SpaceChange::Truncate { size }).await;
            }
            15 if to_end > 0 => self.change(number, SpaceChange::Punch { offset, bytes: to_end }).await,
            // More ranges than this are not kept.
            16 if more > 0 && self.objects[&number].blocks.reserved_ranges() < 4 => {
                self.make_room(bytes.div_ceil(BLOCK) + 1, number).await;
                self.change(number, SpaceChange::Allocate { offset: size, bytes: more, extend: true }).await;
            }
            17 => self.remove(number).await,
            _ if self.objects[&number].blocks.reserved_ranges() > 4 => self.remove(number).await,
            _ => self.compare(number).await,
        }
    }

    async fn compare(&self, number: u64) {
        let expected = &self.objects[&number].contents;
        for offset in (0..=expected.len() as u64).step_by(MIB as usize) {
            let end = expected.len().min((offset + MIB) as usize);
            let found = self.target.read(object(number), offset, MIB).await;
            assert!(found == expected[(offset as usize).min(end)..end], "object {number} from {offset} on");
        }
    }

    /// What an object says of its blocks, if it has any.
    async fn places(&self, number: u64) -> Places {
        let mut places = Places::default();
        let mut next = Some(0);
        while let Some(offset) = next {
            let query = ExtentsQuery { object: object(number), offset, bytes: u64::MAX, extents_max: u32::MAX };
            let OstReply::Extents(found) = self.target.ask(OstRequest::Extents(query)).await.unwrap() else {
                panic!("extents were asked for")
            };
            for extent in found.extents {
                places.held.extend(touched(extent.offset, extent.bytes));
                places.on_device +=
                    if matches!(extent.place, ExtentPlace::Device(_)) { extent.bytes / BLOCK } else { 0 };
            }
            next = found.next;
        }
        places
    }

    /// A minute without requests; then everything is compared.
    async fn rest(&mut self) {
        self.pass(REST).await;
        let (mut on_device, mut reserved) = (0, 0);
        for (number, expected) in &self.objects {
            let places = self.places(*number).await;
            assert!(places.held == expected.blocks.held, "blocks of object {number}");
            let is_on_device = places.on_device == places.held.len() as u64;
            assert!(
                is_on_device || expected.blocks.size <= INLINE_OBJECT_BYTES_MAX,
                "object {number} is in the tables"
            );
            assert_eq!(self.target.attributes(object(*number)).await.size, expected.blocks.size);
            on_device += places.on_device;
            reserved += expected.reserved_blocks();
        }
        let (target, expected) = (&self.target, self.usable - on_device);
        assert_eq!(statistic(target, "free"), expected, "free blocks of the allocator");
        assert_eq!(statistic(target, "reserved"), reserved);
        for name in ["in_windows", "retired", "promised", "discard_waiting", "groups_damaged"] {
            assert_eq!(statistic(target, name), 0, "{name}");
        }
        assert_eq!(parameter(target, "writeback_pending_bytes"), "0");
        let groups = parameter(target, "mb_groups");
        assert_eq!(groups.lines().nth(1).unwrap().split_whitespace().nth(1), Some(expected.to_string().as_str()));
        let space = target.ost.space().await.unwrap();
        assert_eq!(space.bytes_free / BLOCK, expected - reserved);
        assert_eq!(space.bytes_available, space.bytes_free, "the tables have space");
        assert_eq!(self.counted(), (on_device, self.usable - expected), "chunks and bitmaps in the tables");
        assert_eq!(target.ost.check_device(), Ok(Vec::new()));
        self.note_seen();
    }

    /// Blocks that chunks name, and those that the bitmaps have as used by objects.
    fn counted(&self) -> (u64, u64) {
        let (mut named, mut used) = (BTreeSet::new(), 0);
        let chunk = |_: &[u8], value: &[u8]| {
            let record = ChunkRecord::decode(value).expect("a record of a chunk");
            named.extend(record.states().iter().filter_map(BlockState::address));
            Ok(())
        };
        self.target.ost.scan_table(CHUNKS, chunk).unwrap();
        let piece = |_: &[u8], value: &[u8]| {
            used += decode_piece(value)
                .expect("a piece of a bitmap")
                .iter()
                .map(|byte| u64::from(byte.count_ones()))
                .sum::<u64>();
            Ok(())
        };
        self.target.ost.scan_table(BITMAPS, piece).unwrap();
        let own: u64 = self.target.engine.own_blocks().into_iter().map(|own| own.end - own.start).sum();
        (named.len() as u64, used - own)
    }

    fn note_seen(&mut self) {
        let target = &self.target;
        self.seen.discards |= statistic(target, "discarded") > 0;
        self.seen.merges |= statistic_of(target, "defrag_stats", "merges") > 0;
        self.seen.checkpoints.insert(target.ost.table_statistics().checkpoint.0);
        if parameter(target, "scrub") == "completed" {
            assert_eq!(statistic_of(target, "scrub_report", "damaged_blocks"), 0);
            self.seen.scrubs.insert(statistic_of(target, "scrub_report", "time_ended"));
        }
    }

    /// To 95% of the device, to the block.
    async fn fill(&mut self) {
        self.rest().await;
        let more = free(&self.target).await.checked_sub(self.usable / 20).expect("5% were left free");
        let can_grow = |size: u64| size > INLINE_OBJECT_BYTES_MAX && size < BYTES_MAX;
        let mut left = more;
        while left > 0 {
            let found = self.objects.iter().find(|(_, expected)| can_grow(expected.blocks.size));
            let (number, start) = match found {
                Some((number, expected)) => (*number, expected.blocks.size.next_multiple_of(BLOCK)),
                None => {
                    self.last += 1;
                    (self.last, 2 * INLINE_OBJECT_BYTES_MAX)
                }
            };
            let blocks = left.min(256);
            self.write(number, start, blocks * BLOCK).await;
            left -= blocks;
        }
        self.rest().await;
        assert_eq!(free(&self.target).await, self.usable / 20);
    }

    /// To the last block, and back.
    async fn fill_up(&mut self) {
        self.last += 1;
        let filler = self.last;
        let mut left = free(&self.target).await;
        while left > 0 {
            let blocks = left.min(1 + self.below(256));
            let start = self.objects.get(&filler).map_or(0, |filler| filler.blocks.size);
            // Small objects are in the tables, and take none.
            let start = start.max(2 * INLINE_OBJECT_BYTES_MAX);
            self.write(filler, start, blocks * BLOCK).await;
            left -= blocks;
            assert_eq!(free(&self.target).await, left);
        }
        let data = Bytes::from_static(&[1; BLOCK as usize]);
        let refused = self.target.write_with(object(filler + 1), 0, &data, false).await;
        assert_eq!(refused.unwrap_err(), FsError::NoSpace);
        self.last += 1;
        for _ in 0..10 {
            let size = self.objects[&filler].blocks.size;
            let offset = self.below(size - 2 * INLINE_OBJECT_BYTES_MAX) + 2 * INLINE_OBJECT_BYTES_MAX;
            let bytes = self.any_bytes().min(size - offset).min(256 * KIB);
            self.write(filler, offset, bytes).await;
        }
        self.rest().await;
        assert_eq!(free(&self.target).await, 0);
        self.compare_all().await;
        self.remove(filler).await;
        self.rest().await;
        assert_eq!(free(&self.target).await, self.usable / 20);
    }

    async fn compare_all(&self) {
        for number in self.objects.keys() {
            self.compare(*number).await;
        }
    }

    /// In the middle of everything. What was not synced may be lost; what is found counts.
    async fn lose_power(mut self) -> Self {
        self.note_seen();
        let (clock, seed) = (self.clock.next_boot(), self.below(u64::MAX));
        self.target = self.target.power_loss_until(Arc::new(clock.clone()), seed).await;
        self.clock = clock;
        for number in self.objects.keys().copied().collect::<Vec<_>>() {
            let attributes = self.target.attributes(object(number)).await;
            if attributes.mtime == Default::default() {
                self.objects.remove(&number);
                continue;
            }
            let held = self.places(number).await.held;
            let mut contents = Vec::new();
            for offset in (0..attributes.size).step_by(MIB as usize) {
                contents.extend(self.target.read(object(number), offset, MIB).await);
            }
            let expected = self.objects.get_mut(&number).unwrap();
            expected.contents = contents;
            expected.blocks.size = attributes.size;
            expected.blocks.held = held;
            assert_eq!(attributes.blocks, expected.blocks.taken() * BLOCK / 512, "object {number}");
        }
        self
    }

    async fn hour(mut self, hour: u64, operations: u64) -> Self {
        let end = Instant(0) + HOUR * (hour as u32 + 1);
        let loss = if hour % 4 == 1 { self.below(operations) } else { u64::MAX };
        for operation in 0..operations {
            self.operate().await;
            let pause = Duration::from_millis(self.below(3000));
            self.pass(pause).await;
            if operation % BURST == BURST - 1 {
                self.pass(PAUSES / (operations / BURST) as u32).await;
            }
            if operation == loss {
                self = self.lose_power().await;
            }
        }
        self.fill().await;
        if hour % 12 == 5 {
            self.fill_up().await;
        }
        if hour.is_multiple_of(6) {
            self.compare_all().await;
        }
        self = self.reopen(hour).await;
        let left = end.since(self.clock.now());
        assert!(!left.is_zero(), "an hour is too short for so much");
        self.pass(left).await;
        self
    }

    /// At rest everything is durable: no end changes anything.
    async fn reopen(mut self, hour: u64) -> Self {
        self.target = match hour % 12 {
            3 => self.target.restart().await,
            7 => self.target.crash().await,
            11 => {
                self.clock = self.clock.next_boot();
                let (clock, seed) = (Arc::new(self.clock.clone()), self.below(u64::MAX));
                self.target.power_loss_until(clock, seed).await
            }
            _ => return self,
        };
        self.rest().await;
        self.compare_all().await;
        self
    }
}

async fn churn(engine: Engine, seed: u64, operations: u64) {
    let mut churn = Churn::new(engine, seed).await;
    for hour in 0..HOURS {
        churn = churn.hour(hour, operations).await;
    }
    churn.compare_all().await;
    for number in churn.objects.keys().copied().collect::<Vec<_>>() {
        churn.remove(number).await;
    }
    churn.rest().await;
    assert_eq!(free(&churn.target).await, churn.usable);
    churn.target = churn.target.restart().await;
    churn.rest().await;
    assert_eq!(free(&churn.target).await, churn.usable);
    let Seen { discards, merges, scrubs, checkpoints } = churn.seen;
    assert!(discards && merges && scrubs.len() >= 6 && checkpoints.len() as u64 >= HOURS, "{scrubs:?} {checkpoints:?}");
}

/// With seeds from this one on.
fn run_churn(engine: Engine, first: u64) {
    let is_long = std::env::var_os("STRIA_TEST_LONG").is_some_and(|value| value == "1");
    let (seeds, operations) = if is_long { (3, 4 * OPERATIONS) } else { (1, OPERATIONS) };
    for seed in (first..).step_by(2).take(seeds) {
        println!("seed {seed}");
        run(churn(engine, seed, operations));
    }
}

#[test]
fn free_space_does_not_drift_in_three_days_at_95_percent() {
    run_churn(Engine::on_device(BLOCKS), 1);
}

#[test]
fn free_space_does_not_drift_where_the_tables_are_on_the_device_too() {
    run_churn(Engine::Blocks { blocks: BLOCKS + TABLES.blocks, tables: Some(TABLES) }, 2);
}
