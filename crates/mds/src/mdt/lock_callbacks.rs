//! Asks clients for locks (module [`crate::lock_callbacks`]).
//!
//! The lock comes back with another request: a callback only makes sure that the client has heard,
//! or is gone. It is repeated on each new connection until the client has answered, as long as its
//! session exists.

use lock::Revocation;
use rpc::message::{
    ClientReply, ClientRequest,
    client::Blocking,
    lock::{CacheMode, Resource},
};
use types::{ClientId, FsError};

use super::{Mdt, cache::BUSY_PAUSE};
use crate::lock_callbacks::{Caller, LockCallback};

impl Mdt {
    /// Asks clients to give locks back; waits for nothing.
    pub(super) fn ask_back(&self, callers: Vec<Caller>) {
        for caller in callers {
            let Some(mdt) = self.me.upgrade() else { return };
            self.seams.spawn.spawn("lock_callback", Box::pin(async move { mdt.call_for_locks(caller).await }));
        }
    }

    /// Asks for what is to be asked back, after changes that no request waits for.
    pub(super) fn ask_back_now(&self) {
        let callers = self.namespace().volatile.cache.lock().take_asked();
        self.ask_back(callers);
    }

    /// Makes callbacks to a client until none is pending.
    async fn call_for_locks(&self, caller: Caller) {
        loop {
            let Some(callback) = self.namespace().volatile.cache.lock().next_callback(caller) else { return };
            self.ask_for_lock(caller.client, callback).await;
        }
    }

    async fn ask_for_lock(&self, client: ClientId, LockCallback { revocation, again }: LockCallback) {
        let Some(clients) = self.revoker.clients() else { return };
        let Revocation { handle, inode, bits, .. } = revocation;
        let blocking = Blocking { handle, resource: Resource::Inode(inode, bits), mode: CacheMode::Write };
        loop {
            match clients.call_back(client, ClientRequest::Blocking(blocking)).await {
                // It has no such lock, and will not take it for granted: it keeps nothing.
                Err(FsError::NotFound) => return self.cancel_locks(client, &[handle]),
                Err(FsError::Busy) if self.pause(BUSY_PAUSE).await => {}
                Ok(ClientReply::StillBusy) if again => return self.namespace().volatile.cache.lock().is_busy(handle),
                // Its locks go with its session, or with the server.
                Ok(_) | Err(FsError::Evicted | FsError::NoDevice | FsError::Busy) => return,
                Err(error) => {
                    tracing::warn!(target = %self.name(), %client, %error, "cannot ask a client to give a lock back");
                    return;
                }
            }
        }
    }
}
