//! Clients that an MDT evicted: their late requests must not touch data that others may have locked
//! since.
//!
//! An eviction is durable before it is acknowledged, and acknowledged after the last running
//! request of the client has ended. Client ids are never reused, so evictions are never undone.
//! Downside: 8 bytes per evicted client, permanently.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
};

use bytes::Bytes;
use kv::{Batch, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;
use types::{ClientId, FsError, FsResult};

use crate::{
    service_threads::{SERVICE, ServiceThreads},
    tables::{EVICTED, client_key, parse_client_key},
};

#[derive(Default)]
struct State {
    evicted: BTreeSet<ClientId>,
    running: BTreeMap<ClientId, usize>,
}

impl State {
    fn check(&self, client: ClientId) -> FsResult<()> {
        if self.evicted.contains(&client) { Err(FsError::Evicted) } else { Ok(()) }
    }
}

/// The clients that are refused, and those that are being served.
#[derive(Default)]
pub(crate) struct Evictions {
    state: Mutex<State>,
    drained: Notify,
}

/// A request of a client in progress.
pub(crate) struct Running<'a> {
    evictions: &'a Evictions,
    client: ClientId,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.evictions.state.lock();
        let requests = state.running.get_mut(&self.client).expect("a running request is counted for its client");
        assert!(*requests > 0, "clients without running requests are not in the table");
        *requests -= 1;
        if *requests == 0 {
            state.running.remove(&self.client);
            self.evictions.drained.notify_waiters();
        }
    }
}

impl Evictions {
    /// Reads the table.
    pub fn load(kv: &Store) -> Result<Self, kv::Error> {
        let mut evicted = BTreeSet::new();
        kv.scan(EVICTED, &[], None, &mut |key, _| {
            evicted.extend(parse_client_key(key));
            true
        })?;
        Ok(Self { state: Mutex::new(State { evicted, ..State::default() }), ..Self::default() })
    }

    /// Refuses a client that was evicted.
    pub fn check(&self, client: ClientId) -> FsResult<()> {
        self.state.lock().check(client)
    }

    /// Lets a request begin, unless its client was evicted.
    pub fn enter(&self, client: ClientId) -> FsResult<Running<'_>> {
        let mut state = self.state.lock();
        state.check(client)?;
        *state.running.entry(client).or_default() += 1;
        Ok(Running { evictions: self, client })
    }

    /// Refuses a client from now on; returns when that is durable, with the rest of the batch, and
    /// nothing of the client is running. It waits for that without a service thread.
    pub async fn evict(
        &self,
        kv: &Store,
        threads: &ServiceThreads,
        client: ClientId,
        mut batch: Batch,
    ) -> Result<(), kv::Error> {
        self.state.lock().evicted.insert(client);
        batch.put(EVICTED, Bytes::copy_from_slice(&client_key(client)), Bytes::new());
        let lsn = kv.apply_reserved(batch)?;
        kv.durable(lsn).await?;
        loop {
            let mut drained = pin!(self.drained.notified());
            drained.as_mut().enable();
            {
                let state = self.state.lock();
                assert!(state.evicted.contains(&client), "an eviction is never undone");
                if !state.running.contains_key(&client) {
                    return Ok(());
                }
            }
            let _parked = threads.park(SERVICE);
            drained.await;
        }
    }

    /// Number of clients evicted so far.
    pub fn count(&self) -> usize {
        self.state.lock().evicted.len()
    }
}
