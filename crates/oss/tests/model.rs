//! Random operations, crashes and power losses against a model: an array of bytes with, per block,
//! the versions that may come back.
//!
//! Promises: after the death of the process everything acknowledged is there; after a power loss
//! every block is some version no older than the last synced one, never a mixture, and reading it
//! never fails.

use crate::common;

use std::collections::BTreeMap;

use common::{MIB, TestOst, cold_config, object, on_all, pattern, quiet_config, quiet_options};
use oss::{Engine, OstOptions, options::IN_PLACE_BYTES_MIN};
use proptest::prelude::*;
use rpc::message::{OstReply, OstRequest, ost::SpaceChange};
use rt::{Device, memory::MemoryDevice};
use types::ObjectId;

const BLOCK: u64 = 4096;
/// More than one chunk of 1 MiB.
const SPAN: u64 = MIB + 40 * BLOCK;

#[derive(Clone, Debug)]
enum Step {
    Write { object: u64, offset: u64, bytes: u64, sync: bool },
    Truncate { object: u64, size: u64 },
    Punch { object: u64, offset: u64, bytes: u64 },
    Zero { object: u64, offset: u64, bytes: u64, extend: bool },
    Allocate { object: u64, offset: u64, bytes: u64, extend: bool },
    Read { object: u64, offset: u64, bytes: u64 },
    Destroy { object: u64 },
    Sync { object: Option<u64> },
    Work,
    Restart,
    Crash,
    PowerLoss { seed: u64 },
}

fn any_object() -> impl Strategy<Value = u64> {
    0u64..2
}

/// Offsets that are often aligned, lengths of all orders of magnitude.
fn any_range() -> impl Strategy<Value = (u64, u64)> {
    let offset = prop_oneof![0..SPAN, (0..SPAN / BLOCK).prop_map(|block| block * BLOCK), Just(0)];
    let bytes = prop_oneof![1..200u64, 1..3 * BLOCK, (1..64u64).prop_map(|blocks| blocks * BLOCK), 64 * 1024..SPAN];
    (offset, bytes).prop_map(|(offset, bytes)| (offset, bytes.min(SPAN - offset)))
}

fn any_step() -> impl Strategy<Value = Step> {
    let range = || (any_object(), any_range());
    prop_oneof![
        10 => (range(), prop::bool::weighted(0.1))
            .prop_map(|((object, (offset, bytes)), sync)| Step::Write { object, offset, bytes, sync }),
        3 => (any_object(), prop_oneof![Just(0), 0..SPAN]).prop_map(|(object, size)| Step::Truncate { object, size }),
        3 => range().prop_map(|(object, (offset, bytes))| Step::Punch { object, offset, bytes }),
        2 => (range(), any::<bool>())
            .prop_map(|((object, (offset, bytes)), extend)| Step::Zero { object, offset, bytes, extend }),
        1 => (range(), any::<bool>())
            .prop_map(|((object, (offset, bytes)), extend)| Step::Allocate { object, offset, bytes, extend }),
        3 => range().prop_map(|(object, (offset, bytes))| Step::Read { object, offset, bytes }),
        1 => any_object().prop_map(|object| Step::Destroy { object }),
        2 => prop::option::of(any_object()).prop_map(|object| Step::Sync { object }),
        3 => Just(Step::Work),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
        3 => any::<u64>().prop_map(|seed| Step::PowerLoss { seed }),
    ]
}

/// What an object is, and what it may become by a power loss.
#[derive(Default)]
struct Model {
    contents: Vec<u8>,
    /// Sizes since the last sync, the synced one included.
    sizes: Vec<u64>,
    /// Growth by writes since then: one too large for one batch of the journal may survive in part,
    /// in whole blocks.
    growths: Vec<(u64, u64)>,
    /// Contents of each block since the last sync, the synced one included; a block not listed has
    /// not changed.
    versions: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Space may be reserved for it. How much is the matter of another test.
    reserves: bool,
}

impl Model {
    fn block(&self, block: u64) -> Vec<u8> {
        let start = (block * BLOCK).min(self.contents.len() as u64) as usize;
        let end = (start + BLOCK as usize).min(self.contents.len());
        let mut bytes = self.contents[start..end].to_vec();
        bytes.resize(BLOCK as usize, 0);
        bytes
    }

    fn synced(&mut self) {
        self.sizes.clear();
        self.growths.clear();
        self.versions.clear();
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let blocks = SPAN.div_ceil(BLOCK);
        let before: Vec<Vec<u8>> = (0..blocks).map(|block| self.block(block)).collect();
        let size = self.contents.len() as u64;
        change(&mut self.contents);
        if self.sizes.is_empty() {
            self.sizes.push(size);
        }
        self.sizes.push(self.contents.len() as u64);
        for (block, before) in (0..).zip(before) {
            let after = self.block(block);
            if after != before {
                let versions = self.versions.entry(block).or_insert_with(|| vec![before]);
                versions.push(after);
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        self.growths.push((self.contents.len() as u64, end as u64));
        self.change(|contents| {
            contents.resize(contents.len().max(end), 0);
            contents[offset as usize..end].copy_from_slice(data);
        });
    }

    fn zero(&mut self, offset: u64, bytes: u64, extend: bool) {
        self.change(|contents| {
            if extend {
                contents.resize(contents.len().max((offset + bytes) as usize), 0);
            }
            let end = contents.len().min((offset + bytes) as usize);
            contents[(offset as usize).min(end)..end].fill(0);
        });
    }

    /// Takes over what a power loss left, if it is allowed.
    fn accept(&mut self, found: Vec<u8>) {
        let size = found.len() as u64;
        let sizes = if self.sizes.is_empty() { vec![self.contents.len() as u64] } else { self.sizes.clone() };
        let partly = |(from, to): &(u64, u64)| size.is_multiple_of(BLOCK) && (*from..*to).contains(&size);
        assert!(sizes.contains(&size) || self.growths.iter().any(partly), "size {size} is none of {sizes:?}");
        let found = Model { contents: found, ..Model::default() };
        for block in 0..SPAN.div_ceil(BLOCK) {
            let bytes = found.block(block);
            match self.versions.get(&block) {
                // After the end of a shorter version the block reads as zeros, in part.
                Some(versions) => {
                    let cut = |version: &Vec<u8>| {
                        let keep = size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
                        let mut cut = version.clone();
                        cut[keep..].fill(0);
                        cut
                    };
                    let known = versions.iter().any(|version| cut(version) == bytes);
                    assert!(known, "block {block} is none of its {} versions", versions.len());
                }
                None => assert_eq!(bytes, self.block(block), "block {block} was synced and not changed since"),
            }
        }
        *self = Model { reserves: self.reserves, ..found };
    }
}

struct World {
    target: TestOst,
    models: [Model; 2],
    version: u64,
}

impl World {
    async fn step(mut self, step: Step) -> Self {
        let target = &self.target;
        match step {
            Step::Write { object: number, offset, bytes, sync } => {
                self.version += 1;
                let data = pattern(self.version, offset, bytes);
                let changed = target.write_with(object(number), offset, &data, sync).await.unwrap();
                let model = &mut self.models[number as usize];
                assert_eq!(changed.before.size, model.contents.len() as u64);
                model.write(offset, &data);
                assert_eq!(changed.after.size, model.contents.len() as u64);
                if sync {
                    model.synced();
                }
            }
            Step::Truncate { object: number, size } => {
                target.truncate(object(number), size).await;
                self.models[number as usize].change(|contents| contents.resize(size as usize, 0));
            }
            Step::Punch { object: number, offset, bytes } => {
                target.space(object(number), SpaceChange::Punch { offset, bytes }).await.unwrap();
                self.models[number as usize].zero(offset, bytes, false);
            }
            Step::Zero { object: number, offset, bytes, extend } => {
                target.space(object(number), SpaceChange::Zero { offset, bytes, extend }).await.unwrap();
                self.models[number as usize].zero(offset, bytes, extend);
            }
            Step::Allocate { object: number, offset, bytes, extend } => {
                target.space(object(number), SpaceChange::Allocate { offset, bytes, extend }).await.unwrap();
                self.models[number as usize].reserves = true;
                if extend {
                    let end = (offset + bytes) as usize;
                    self.models[number as usize].change(|contents| contents.resize(contents.len().max(end), 0));
                }
            }
            Step::Read { object: number, offset, bytes } => {
                let found = target.read(object(number), offset, bytes).await;
                let contents = &self.models[number as usize].contents;
                let end = contents.len().min((offset + bytes) as usize);
                assert!(found == contents[(offset as usize).min(end)..end], "object {number} {offset}+{bytes}");
            }
            Step::Destroy { object: number } => {
                target.done(OstRequest::Destroy(vec![object(number)], None)).await;
                self.models[number as usize].change(Vec::clear);
                self.models[number as usize].reserves = false;
                // Durable when acknowledged; everything before it is in the same journal.
                self.models[number as usize].synced();
            }
            Step::Sync { object: None } => {
                target.sync().await;
                self.models.iter_mut().for_each(Model::synced);
            }
            Step::Sync { object: Some(number) } => {
                target.done(OstRequest::Sync(vec![object(number)])).await;
                self.models[number as usize].synced();
            }
            Step::Work => target.ost.work().await,
            Step::Restart => {
                self.target = self.target.restart().await;
                assert_eq!(self.target.ost.recovery().blocks_verified, 0, "all was flushed");
                self.check_all().await;
                self.models.iter_mut().for_each(Model::synced);
            }
            Step::Crash => {
                self.target = self.target.crash().await;
                assert!(self.target.ost.recovery().unclean);
                assert_eq!(self.target.ost.recovery().blocks_reset, 0, "the kernel had every byte");
                self.check_all().await;
                // Opening makes what it found durable.
                self.models.iter_mut().for_each(Model::synced);
            }
            Step::PowerLoss { seed } => {
                self.target = self.target.power_loss(seed).await;
                for (number, model) in (0..).zip(&mut self.models) {
                    model.accept(read_all(&self.target, object(number)).await);
                }
                self.check_all().await;
            }
        }
        self
    }

    /// Every object reads as its model says, and its record agrees with its blocks.
    async fn check_all(&self) {
        let mut objects = Vec::new();
        for (number, model) in (0..).zip(&self.models) {
            let id = object(number);
            let found = read_all(&self.target, id).await;
            assert_eq!(found.len(), model.contents.len(), "size of object {number}");
            let differs = (0..SPAN.div_ceil(BLOCK)).find(|block| {
                let start = (block * BLOCK) as usize;
                let end = found.len().min(start + BLOCK as usize);
                start < end && found[start..end] != model.contents[start..end]
            });
            assert_eq!(differs, None, "object {number}: first block that differs");
            self.target.done(OstRequest::Verify(id)).await;
            let attributes = self.target.attributes(id).await;
            assert_eq!(attributes.size, model.contents.len() as u64);
            let data = data_bytes(&self.target, id, attributes.size).await;
            let taken = attributes.blocks * 512;
            assert!(taken == data || (model.reserves && taken > data), "object {number}: {taken} {data}");
            if attributes.mtime != Default::default() {
                objects.push(id);
            }
        }
        let OstReply::Objects(listed) = self.target.ask(OstRequest::ListObjects(None, 10)).await.unwrap() else {
            panic!("a list was asked for");
        };
        for id in objects {
            assert!(listed.iter().any(|(listed, _)| *listed == id));
        }
    }
}

async fn read_all(target: &TestOst, id: ObjectId) -> Vec<u8> {
    target.read(id, 0, SPAN).await
}

/// Bytes of all blocks that hold data, found by walking data and holes.
async fn data_bytes(target: &TestOst, id: ObjectId, size: u64) -> u64 {
    let (mut sum, mut at) = (0, 0);
    while let Some(start) = target.seek(id, at, true).await {
        let end = target.seek(id, start, false).await.expect("data end somewhere");
        assert!(start < end && end <= size);
        sum += end.div_ceil(BLOCK) * BLOCK - start / BLOCK * BLOCK;
        at = end;
    }
    sum
}

/// Pieces of objects are merged whenever the target works; reads of 64 KiB say where. `at_once`:
/// overwritten blocks of a device get new places there, however few they are.
fn moving_options(at_once: bool) -> OstOptions {
    let quiet = quiet_options();
    let overwrite_bytes_min = if at_once { BLOCK } else { IN_PLACE_BYTES_MIN };
    OstOptions { defrag_bytes_per_second: 1 << 30, overwrite_bytes_min, ..quiet }
}

/// Runs a history, and gives everything back at its end.
async fn check_history(target: TestOst, steps: Vec<Step>) {
    let mut world = World { target, models: Default::default(), version: 0 };
    for step in steps {
        world = world.step(step).await;
    }
    world.check_all().await;
    // Everything removed and swept, every byte of the device is free again.
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
    let both = vec![object(0), object(1)];
    world.target.done(OstRequest::Destroy(both, None)).await;
    world.target.sync().await;
    assert_eq!(world.target.ost.check_device(), Ok(Vec::new()), "bitmaps and extents agree");
    let (space, labels) = match world.target.engine {
        Engine::Directory => (world.target.objects.space().await.unwrap(), 0),
        Engine::Blocks { .. } => (world.target.ost.space().await.unwrap(), 2 * BLOCK),
    };
    assert_eq!(space.bytes_free, space.bytes_total - labels, "space was not given back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 4000, ..ProptestConfig::default() })]
    #[test]
    fn random_histories_keep_the_promises(
        steps in prop::collection::vec(any_step(), 1..40), at_once in any::<bool>()
    ) {
        on_all(async |engine| {
            let options = moving_options(at_once);
            let target = TestOst::with_all(engine, 1, MemoryDevice::new(), options, quiet_config()).await;
            check_history(target, steps.clone()).await;
        });
    }

    /// Nearly everything is to be loaded first.
    #[test]
    fn random_histories_keep_the_promises_in_cold_tables(
        steps in prop::collection::vec(any_step(), 1..40), at_once in any::<bool>()
    ) {
        on_all(async |engine| {
            let options = moving_options(at_once);
            let target = TestOst::with_all(engine, 1, MemoryDevice::new(), options, cold_config()).await;
            check_history(target, steps.clone()).await;
        });
    }
}
