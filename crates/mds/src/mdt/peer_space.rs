//! How this MDT knows the space of others: it asks each at an interval, and has [`Spread`] know
//! when one does not answer, so that new directories go elsewhere.
//!
//! No question waits for an MDT that cannot be reached: it is asked as soon as it can be.
//!
//! [`Spread`]: crate::spread::Spread

use std::{pin::pin, sync::Arc, time::Duration};

use rpc::message::{MdtReply, MdtRequest};
use rt::clock;
use types::{FsError, FsResult};

use super::{Mdt, mdt_proxy::MdtProxy};

/// After this time, an MDT that is still to be reached counts as one that does not answer: at the
/// start of this MDT, others are not connected yet.
const PATIENCE: Duration = Duration::from_secs(1);

impl MdtProxy {
    /// Until the proxy ends.
    pub(super) async fn watch_space(self: Arc<Self>, mdt: Arc<Mdt>) {
        while !self.connection.ended() {
            let answers =
                self.connection.is_active() && self.connection.unless_ended(self.ask_space(&mdt)).await == Some(true);
            let next = mdt.seams.clock.now() + mdt.parameters().ost_refresh;
            let gone = async {
                match answers {
                    true => self.connection.import.disconnected().await,
                    false => std::future::pending().await,
                }
            };
            let is_gone = self.connection.unless_ended(clock::timeout_at(&*mdt.seams.clock, next, gone)).await;
            if let Some(Some(())) = is_gone {
                self.note_lost(&mdt);
            }
        }
    }

    /// Asks as soon as it can be reached. Whether it answered. Own space is looked up together with
    /// that of others: it counts only in comparison.
    async fn ask_space(&self, mdt: &Mdt) -> bool {
        let space = loop {
            match self.reached(mdt).await {
                Ok(()) => {}
                // It is silent for longer than others are waited for.
                Err(FsError::Unreachable { .. }) if !self.connection.ended() => continue,
                Err(_) => {
                    self.note_lost(mdt);
                    return false;
                }
            }
            let asked = tokio::select! {
                biased;
                asked = self.call(MdtRequest::StatFs) => asked,
                () = self.connection.import.disconnected() => Err(FsError::Evicted),
            };
            match asked {
                Ok(MdtReply::Space(space)) => break space,
                // Its connection ended, or it came back without this session.
                Err(FsError::Evicted) => self.note_lost(mdt),
                Ok(_) | Err(_) => {
                    self.note_lost(mdt);
                    return false;
                }
            }
        };
        let own = mdt.space().await;
        let namespace = mdt.namespace();
        let mut spread = namespace.volatile.spread.lock();
        if let Ok(own) = own {
            spread.report(mdt.options.index, own);
        }
        spread.report(self.peer(), space);
        true
    }

    /// Waits until it can be reached.
    async fn reached(&self, mdt: &Mdt) -> FsResult<()> {
        let (clock, mut reached) = (&*mdt.seams.clock, pin!(self.connection.import.connected()));
        if let Some(outcome) = clock::timeout_at(clock, clock.now() + PATIENCE, &mut reached).await {
            return outcome;
        }
        self.note_lost(mdt);
        reached.await
    }

    fn note_lost(&self, mdt: &Mdt) {
        mdt.namespace().volatile.spread.lock().lost(self.peer());
    }
}
