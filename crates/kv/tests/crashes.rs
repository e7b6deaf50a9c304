//! Random histories of a store against a model: batches, checkpoints, clean and unclean shutdowns,
//! torn writes, cancelled waits. After each start the store must show exactly the first `n` batches
//! for some `n` that includes every promise made.

use crate::common;

use std::{
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use common::{Host, Model, contents};
use kv::{Batch, Config, Error, Lsn, Operation, Store, Table};
use proptest::prelude::*;
use rt::memory::Unflushed;

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<(u8, u8, Option<u16>)>),
    Written,
    /// Starts waiting and gives up after the first poll.
    WrittenCancelled,
    Durable,
    DurableCancelled,
    Checkpoint,
    /// Lets the background tasks run for so many turns.
    Rest(u8),
    /// Asks for a checkpoint and continues before it is done.
    CheckpointCancelled,
    Crash,
    PowerLoss(u64, bool),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let operation = (0..3u8, 0..40u8, proptest::option::weighted(0.75, prop_oneof![Just(10u16), Just(100), 0..600u16]));
    prop_oneof![
        30 => proptest::collection::vec(operation, 1..8).prop_map(Step::Apply),
        6 => Just(Step::Written),
        3 => Just(Step::WrittenCancelled),
        4 => Just(Step::Durable),
        2 => Just(Step::DurableCancelled),
        2 => Just(Step::Checkpoint),
        8 => (1..12u8).prop_map(Step::Rest),
        3 => Just(Step::CheckpointCancelled),
        2 => Just(Step::Crash),
        3 => (any::<u64>(), any::<bool>()).prop_map(|(seed, torn)| Step::PowerLoss(seed, torn)),
        1 => Just(Step::Close),
    ]
}

/// The store under test and what it promised.
struct TestedStore {
    host: Host,
    store: Option<Store>,
    /// Contents after each batch.
    history: Vec<Model>,
    written: Lsn,
    durable: Lsn,
    /// Makes every value unique.
    counter: u64,
}

impl TestedStore {
    async fn begin(slow: Option<u64>, in_region: bool) -> TestedStore {
        let config = Config {
            segment_bytes: 16 << 10,
            segments_max: 6,
            reserve_bytes: 1 << 10,
            memory_bytes: 24 << 10,
            dirty_bytes: 8 << 10,
            step_entries: 5,
            commit_interval: Duration::from_secs(3600),
            ..Config::small()
        };
        let host = match in_region {
            true => Host { slow, ..Host::with_region(config, 1 << 20).await },
            false => Host { slow, config, ..Host::new() },
        };
        let store = Some(host.open().await);
        TestedStore { host, store, history: vec![Model::new()], written: Lsn(0), durable: Lsn(0), counter: 0 }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("alive between steps")
    }

    async fn apply(&mut self, operations: Vec<(u8, u8, Option<u16>)>) {
        let mut batch = Batch::default();
        let mut model = self.history.last().unwrap().clone();
        for (table, key, length) in operations {
            // Some keys are too long to be stored in place.
            let key = vec![key; 1 + usize::from(key)];
            match length {
                Some(length) => {
                    self.counter += 1;
                    let mut value = self.counter.to_le_bytes().to_vec();
                    value.resize(8 + usize::from(length), table);
                    model.insert((table, key.clone()), value.clone());
                    batch.put(Table(table), key, value);
                }
                None => {
                    model.remove(&(table, key.clone()));
                    batch.delete(Table(table), key);
                }
            }
        }
        let lsn = match self.store().apply(batch.clone()) {
            Err(Error::Overloaded) => {
                self.store().ready().await.unwrap();
                self.store().apply(batch).unwrap()
            }
            other => other.unwrap(),
        };
        self.history.push(model);
        assert_eq!(lsn.0 as usize, self.history.len() - 1);
    }

    async fn perform(&mut self, step: Step) {
        let last = self.store().last();
        let mut context = Context::from_waker(Waker::noop());
        match step {
            Step::Apply(operations) => self.apply(operations).await,
            Step::Written => {
                self.store().written(last).await.unwrap();
                self.written = last;
            }
            Step::WrittenCancelled => drop(pin!(self.store().written(last)).poll(&mut context)),
            Step::Durable => {
                self.store().durable(last).await.unwrap();
                (self.written, self.durable) = (last, last);
            }
            Step::DurableCancelled => drop(pin!(self.store().durable(last)).poll(&mut context)),
            Step::Checkpoint => {
                let reached = self.store().checkpoint().await.unwrap();
                assert_eq!(reached, last);
                (self.written, self.durable) = (last, last);
            }
            Step::CheckpointCancelled => drop(pin!(self.store().checkpoint()).poll(&mut context)),
            Step::Rest(turns) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            Step::Crash => {
                self.host.crash();
                self.restart(self.written).await;
            }
            Step::PowerLoss(seed, torn) => {
                self.host.power_loss(seed, if torn { Unflushed::Torn } else { Unflushed::KeptOrLost });
                self.restart(self.durable).await;
            }
            Step::Close => {
                self.store().close().await.unwrap();
                self.restart(last).await;
            }
        }
    }

    async fn restart(&mut self, promised: Lsn) {
        self.store = None;
        let (store, replayed) = self.host.replay().await.unwrap();
        let last = store.last();
        assert!(last >= promised, "batch {promised:?} was promised, {last:?} came back");
        assert!((last.0 as usize) < self.history.len(), "nothing is invented");
        for (index, (lsn, batch)) in replayed.iter().enumerate() {
            assert_eq!(lsn.0, last.0 - (replayed.len() - index - 1) as u64, "replayed in order, up to the last");
            assert!(!batch.operations.is_empty());
        }
        self.history.truncate(last.0 as usize + 1);
        (self.written, self.durable) = (last, last);
        self.store = Some(store);
        self.check();
    }

    fn check(&self) {
        let model = self.history.last().unwrap();
        let shown = contents(self.store());
        let wrong: Vec<_> =
            shown.iter().filter(|(key, value)| model.get(*key) != Some(*value)).map(|(key, _)| key).collect();
        let lost: Vec<_> = model.keys().filter(|key| !shown.contains_key(*key)).collect();
        assert!(wrong.is_empty() && lost.is_empty(), "wrong or unexpected {wrong:?}, lost {lost:?}");
        for table in 0..3u8 {
            for key in 0..40u8 {
                let key = vec![key; 1 + usize::from(key)];
                let value = self.store().get(Table(table), &key).unwrap();
                assert_eq!(value.as_deref(), model.get(&(table, key)).map(Vec::as_slice));
            }
        }
    }
}

/// Takes a few seconds.
const CASES: u32 = 300;

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, max_shrink_iters: 3000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_promises(
        steps in proptest::collection::vec(step(), 1..150),
        slow in proptest::option::weighted(0.8, any::<u64>()),
        in_region in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(live(slow, in_region, steps));
    }
}

/// Operations keep their order within a batch.
#[test]
fn a_later_operation_of_a_batch_wins() {
    let mut batch = Batch::default();
    batch.put(Table(0), &b"k"[..], &b"1"[..]);
    batch.delete(Table(0), &b"k"[..]);
    batch.put(Table(0), &b"k"[..], &b"2"[..]);
    assert!(matches!(batch.operations.last(), Some(Operation::Put(..))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let host = Host::new();
        let store = host.open().await;
        store.apply(batch).unwrap();
        assert_eq!(store.get(Table(0), b"k").unwrap().unwrap(), "2");
    });
}

async fn live(slow: Option<u64>, in_region: bool, steps: Vec<Step>) {
    let mut tested = TestedStore::begin(slow, in_region).await;
    for step in steps {
        tested.perform(step).await;
    }
    tested.check();
    tested.perform(Step::PowerLoss(0, true)).await;
}

/// Each start after a crash begins a segment: where there is a fixed number of them, what they have
/// goes to the cold store before the first change.
#[tokio::test]
async fn a_store_in_a_region_survives_any_number_of_crashes_without_a_checkpoint() {
    let change = || Step::Apply(vec![(0, 1, Some(10)), (1, 2, Some(300))]);
    let once = || [change(), Step::Durable, Step::Crash];
    live(None, true, (0..20).flat_map(|_| once()).collect()).await;
}

/// The header of a segment was lost with the power, its record was not, and the next segment had
/// the same sequence number: the record came back to life in it.
#[tokio::test]
async fn sequence_numbers_are_never_given_twice() {
    let delete = || Step::Apply(vec![(0, 0, None)]);
    let seed = 3_650_521_843_778_485_125;
    live(
        None,
        false,
        vec![
            delete(),
            Step::Durable,
            Step::Crash,
            delete(),
            Step::Close,
            delete(),
            Step::Written,
            Step::PowerLoss(seed, true),
            Step::Apply(vec![(0, 0, Some(10))]),
            Step::Written,
        ],
    )
    .await;
}
