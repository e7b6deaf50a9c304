//! What the tests of the store share: a store on devices in memory that survives its process.

#![allow(dead_code, reason = "every test file uses another part")]

use std::{collections::BTreeMap, sync::Arc};

use kv::{Batch, Config, Lsn, MemoryCold, Store, Table};
use rt::{
    Seams,
    memory::{MemoryDevice, MemoryTransport, SeededEntropy, Unflushed, seams},
};

/// The contents of a store as a model.
pub type Model = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

pub fn test_seams() -> Seams {
    seams(&MemoryTransport::new(), 1)
}

/// A host: what outlives a store's process.
pub struct Host {
    pub device: MemoryDevice,
    pub cold: MemoryCold,
    pub config: Config,
}

impl Host {
    pub fn new() -> Host {
        Host { device: MemoryDevice::new(), cold: MemoryCold::new(), config: Config::small() }
    }

    pub async fn open(&self) -> Store {
        self.try_open().await.expect("the store opens")
    }

    pub async fn try_open(&self) -> kv::Result<Store> {
        self.replay().await.map(|(store, _)| store)
    }

    /// Opens, and returns the batches that were replayed.
    pub async fn replay(&self) -> kv::Result<(Store, Vec<(Lsn, Batch)>)> {
        let mut batches = Vec::new();
        let store = Store::open(
            test_seams(),
            Arc::new(self.device.clone()),
            Arc::new(self.cold.clone()),
            self.config.clone(),
            &mut |lsn, batch| batches.push((lsn, batch.clone())),
        )
        .await?;
        Ok((store, batches))
    }

    /// The process died: its handles are dead.
    pub fn crash(&mut self) {
        self.device = self.device.crash();
        self.cold = self.cold.crash();
    }

    pub fn power_loss(&mut self, seed: u64, unflushed: Unflushed) {
        let entropy = SeededEntropy::new(seed);
        self.device = self.device.power_loss(&entropy, unflushed);
        self.cold = self.cold.power_loss(&entropy);
    }
}

/// Everything a store shows.
pub fn contents(store: &Store) -> Model {
    let mut model = Model::new();
    for number in 0..=u8::MAX {
        store
            .scan(Table(number), &[], None, &mut |key, value| {
                model.insert((number, key.to_vec()), value.to_vec());
                true
            })
            .expect("scans succeed");
    }
    model
}

/// One put.
pub fn put(table: u8, key: &[u8], value: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.put(Table(table), key.to_vec(), value.to_vec());
    batch
}
