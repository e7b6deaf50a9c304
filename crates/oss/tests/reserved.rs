//! Space that fallocate reserved counts in addition to the blocks that hold data, compared with a
//! model of two sets of blocks. Data and holes do not change.

use crate::common;

use std::{collections::BTreeSet, ops::Range};

use common::{MIB, TestOst, object, on_all, pattern};
use oss::{options::IN_PLACE_BYTES_MIN, reserved::RANGES_MAX};
use proptest::prelude::*;
use rpc::message::{OstRequest, ost::SpaceChange};

const BLOCK: u64 = 4096;
/// More than one chunk of 1 MiB.
const SPAN: u64 = MIB + 60 * BLOCK;

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, bytes: u64 },
    Change(SpaceChange),
    Destroy,
    Work,
    Restart,
    Crash,
}

fn any_range() -> impl Strategy<Value = (u64, u64)> {
    let offset = prop_oneof![0..SPAN, (0..SPAN / BLOCK).prop_map(|block| block * BLOCK), Just(0)];
    let bytes = prop_oneof![1..3 * BLOCK, (1..64u64).prop_map(|blocks| blocks * BLOCK), 64 * 1024..SPAN];
    (offset, bytes).prop_map(|(offset, bytes)| (offset, bytes.min(SPAN - offset)))
}

fn any_change() -> impl Strategy<Value = SpaceChange> {
    let size = prop_oneof![0..SPAN, (0..SPAN / BLOCK).prop_map(|block| block * BLOCK)];
    prop_oneof![
        2 => size.prop_map(|size| SpaceChange::Truncate { size }),
        3 => any_range().prop_map(|(offset, bytes)| SpaceChange::Punch { offset, bytes }),
        2 => (any_range(), any::<bool>())
            .prop_map(|((offset, bytes), extend)| SpaceChange::Zero { offset, bytes, extend }),
        6 => (any_range(), any::<bool>())
            .prop_map(|((offset, bytes), extend)| SpaceChange::Allocate { offset, bytes, extend }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_range().prop_map(|(offset, bytes)| Step::Write { offset, bytes }),
        8 => any_change().prop_map(Step::Change),
        1 => Just(Step::Destroy),
        2 => Just(Step::Work),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ]
}

/// Blocks of an object.
#[derive(Default)]
pub struct Model {
    pub size: u64,
    /// Those that hold data.
    pub held: BTreeSet<u64>,
    /// Those in ranges that are reserved.
    pub reserved: BTreeSet<u64>,
}

pub fn touched(offset: u64, bytes: u64) -> Range<u64> {
    offset / BLOCK..(offset + bytes).div_ceil(BLOCK)
}

impl Model {
    /// The blocks that are removed as a whole where a range becomes zeros.
    fn removed(&self, offset: u64, bytes: u64) -> Range<u64> {
        let end = offset + bytes;
        offset.div_ceil(BLOCK)..if end >= self.size { end.div_ceil(BLOCK) } else { end / BLOCK }
    }

    fn give_back(&mut self, blocks: &Range<u64>) {
        self.held.retain(|block| !blocks.contains(block));
        self.reserved.retain(|block| !blocks.contains(block));
    }

    pub fn change(&mut self, change: SpaceChange) {
        let mut extended = 0;
        match change {
            SpaceChange::Truncate { size } => {
                if size <= self.size {
                    self.give_back(&(size.div_ceil(BLOCK)..u64::MAX));
                }
                self.size = size;
            }
            SpaceChange::Punch { offset, bytes } => self.give_back(&self.removed(offset, bytes)),
            SpaceChange::Zero { offset, bytes, extend } => {
                let removed = self.removed(offset, bytes);
                self.held.retain(|block| !removed.contains(block));
                extended = if extend { offset + bytes } else { 0 };
            }
            SpaceChange::Allocate { offset, bytes, extend } => {
                if bytes >= IN_PLACE_BYTES_MIN {
                    self.reserved.extend(touched(offset, bytes));
                }
                extended = if extend { offset + bytes } else { 0 };
            }
        }
        self.size = self.size.max(extended);
    }

    pub fn write(&mut self, offset: u64, bytes: u64) {
        self.held.extend(touched(offset, bytes));
        self.size = self.size.max(offset + bytes);
    }

    /// Blocks that count as the object's.
    pub fn taken(&self) -> u64 {
        self.held.union(&self.reserved).count() as u64
    }

    pub fn reserved_ranges(&self) -> usize {
        self.reserved.iter().filter(|block| !self.reserved.contains(&(**block + 1))).count()
    }
}

async fn step(target: TestOst, model: &mut Model, step: Step) -> TestOst {
    match step {
        Step::Write { offset, bytes } => {
            target.write(object(1), offset, &pattern(1, offset, bytes)).await;
            model.write(offset, bytes);
        }
        Step::Change(change) => {
            let changed = target.space(object(1), change).await.unwrap();
            assert_eq!(changed.after.blocks, target.attributes(object(1)).await.blocks, "what the client is told");
            model.change(change);
        }
        Step::Destroy => {
            target.done(OstRequest::Destroy(vec![object(1)], None)).await;
            *model = Model::default();
        }
        Step::Work => target.ost.work().await,
        Step::Restart => return target.restart().await,
        Step::Crash => return target.crash().await,
    }
    target
}

/// The blocks that hold data, as lseek(2) finds them.
async fn data_of(target: &TestOst) -> BTreeSet<u64> {
    let (mut data, mut at) = (BTreeSet::new(), 0);
    while let Some(start) = target.seek(object(1), at, true).await {
        at = target.seek(object(1), start, false).await.expect("data end somewhere");
        data.extend(touched(start, at - start));
    }
    data
}

async fn check(target: &TestOst, model: &Model) {
    let attributes = target.attributes(object(1)).await;
    assert_eq!((attributes.size, attributes.blocks), (model.size, model.taken() * BLOCK / 512));
    assert_eq!(data_of(target).await, model.held);
    target.done(OstRequest::Verify(object(1))).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 4000, ..ProptestConfig::default() })]
    #[test]
    fn what_is_reserved_counts_until_it_is_given_back(steps in prop::collection::vec(any_step(), 1..30)) {
        on_all(async |engine| {
            let (mut target, mut model) = (TestOst::on(engine, 1).await, Model::default());
            for one in steps.clone() {
                target = step(target, &mut model, one).await;
                // Of more, the smallest is forgotten: the test of the record has that.
                if model.reserved_ranges() > RANGES_MAX {
                    return;
                }
                check(&target, &model).await;
            }
        });
    }
}

/// More holes than the record has ranges: the smallest ones are forgotten, each with its blocks
/// that hold no data.
#[test]
fn a_reservation_in_many_pieces_is_counted_as_far_as_it_is_known() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let blocks = async || target.attributes(object(1)).await.blocks * 512 / BLOCK;
        target.space(object(1), SpaceChange::Allocate { offset: 0, bytes: 4 * MIB, extend: true }).await.unwrap();
        assert_eq!(blocks().await, 1024);
        // Pieces of 10 to 110 blocks, four blocks of data in each.
        let (mut start, mut pieces) = (0, Vec::new());
        for piece in 1..12 {
            target.write(object(1), start * BLOCK, &pattern(1, 0, 4 * BLOCK)).await;
            let end = start + 10 * piece;
            target.space(object(1), SpaceChange::Punch { offset: end * BLOCK, bytes: BLOCK }).await.unwrap();
            pieces.push(end - start);
            start = end + 1;
            target.done(OstRequest::Verify(object(1))).await;
            let known = (1024 - start..).take(1).chain(pieces.iter().copied());
            let mut known: Vec<u64> = known.collect();
            known.sort_unstable();
            let forgotten = known.len().saturating_sub(RANGES_MAX);
            let expected = known[forgotten..].iter().sum::<u64>() + 4 * forgotten as u64;
            assert_eq!(blocks().await, expected, "{piece}");
        }
        target.space(object(1), SpaceChange::Truncate { size: 0 }).await.unwrap();
        assert_eq!(blocks().await, 0);
    });
}
