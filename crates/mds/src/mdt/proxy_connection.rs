//! What the proxies of OSTs and of other MDTs have in common: the connection, a wake-up when there
//! is work, and whether the map says that the target is in use.

use std::sync::Arc;

use rpc::{Endpoint, Import};
use tokio::sync::{Notify, watch};

/// See the module documentation.
pub(super) struct ProxyConnection {
    pub import: Import,
    pub wakeup: Arc<Notify>,
    /// Whether the map says that the target is in use; `None` once the proxy is to end.
    active: watch::Sender<Option<bool>>,
}

impl ProxyConnection {
    /// Of a proxy that `wakeup` tells that there is work.
    pub fn new(import: Import, active: bool, wakeup: Arc<Notify>) -> Self {
        Self { import, wakeup, active: watch::Sender::new(Some(active)) }
    }

    /// The map changed.
    pub fn update(&self, endpoint: Endpoint, active: bool) {
        self.import.set_address(endpoint);
        self.active.send_replace(Some(active));
        self.wakeup.notify_one();
    }

    /// Ends the proxy without waiting.
    pub fn retire(&self) {
        self.active.send_replace(None);
        self.wakeup.notify_one();
    }

    /// Ends the proxy and its session at the target.
    pub async fn stop(&self) {
        self.retire();
        self.import.close().await;
    }

    pub fn ended(&self) -> bool {
        self.active.borrow().is_none()
    }

    pub fn is_active(&self) -> bool {
        *self.active.borrow() == Some(true)
    }

    /// The output of `future`, or `None` if the proxy ends first.
    pub async fn unless_ended<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut active = self.active.subscribe();
        tokio::select! {
            biased;
            _ = active.wait_for(Option::is_none) => None,
            value = future => Some(value),
        }
    }
}
