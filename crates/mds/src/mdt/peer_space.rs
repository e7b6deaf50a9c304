//! How this MDT knows the space of others: it asks each at an interval, and has [`Spread`] know
//! when one does not answer, so that new directories go elsewhere.
//!
//! [`Spread`]: crate::spread::Spread

use std::sync::Arc;

use rpc::message::{MdtReply, MdtRequest};
use rt::clock;

use super::{Mdt, mdt_proxy::MdtProxy};

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
                mdt.namespace().volatile.spread.lock().lost(self.peer());
            }
        }
    }

    /// Whether it answered. Own space is looked up together with that of others: it counts only in
    /// comparison.
    async fn ask_space(&self, mdt: &Mdt) -> bool {
        let (asked, own) = (self.call(MdtRequest::StatFs).await, mdt.space().await);
        let namespace = mdt.namespace();
        let mut spread = namespace.volatile.spread.lock();
        if let Ok(own) = own {
            spread.report(mdt.options.index, own);
        }
        match asked {
            Ok(MdtReply::Space(space)) => spread.report(self.peer(), space),
            _ => spread.lost(self.peer()),
        }
        matches!(asked, Ok(MdtReply::Space(_)))
    }
}
