//! How the MDT asks OSTs about their space in addition to the queries at intervals (module
//! `ost_proxy`): when a client says that one is full, and before any client is told that there is
//! no space. The MDT's knowledge may be as old as the interval, so an OST that has space again, or
//! accepts new objects again, would be passed over meanwhile.
//!
//! Bounds: a request asks once and waits [`WAIT_MAX`]; each OST gets one query at a time, however
//! many requests wait for it. An OST that does not answer is not waited for: its proxy asks it all
//! the time, and knows as soon as it is back.
//!
//! Downside: if no OST has space, every creation costs a query to each OST, shared by all creations
//! that come meanwhile.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rt::clock;
use types::OstIndex;

use super::{Mdt, ost_proxy::OstProxy};

/// Longest time that a request waits for the answers of OSTs.
const WAIT_MAX: Duration = Duration::from_secs(1);

impl Mdt {
    /// Asks an OST for its space now, and waits a while for the answer. `service`: the one whose
    /// thread the request has.
    pub(crate) async fn refresh_space(&self, service: &'static str, ost: OstIndex) {
        let ost_proxies = self.ost_proxies().into_iter().filter(|(of, _)| *of == ost);
        self.refresh(service, ost_proxies.map(|(_, ost_proxy)| ost_proxy).collect()).await;
    }

    /// Asks all OSTs that answer, at once; otherwise as [`Mdt::refresh_space`].
    pub(crate) async fn refresh_all_space(&self, service: &'static str) {
        let silent: BTreeSet<OstIndex> =
            self.osts().into_iter().filter(|(_, view)| !view.connected).map(|(ost, _)| ost).collect();
        let ost_proxies = self.ost_proxies().into_iter().filter(|(ost, _)| !silent.contains(ost));
        self.refresh(service, ost_proxies.map(|(_, ost_proxy)| ost_proxy).collect()).await;
    }

    async fn refresh(&self, service: &'static str, ost_proxies: Vec<Arc<OstProxy>>) {
        let _parked = self.park(service);
        // All questions begin here; their answers are waited for one after the other.
        let answers: Vec<_> = ost_proxies.into_iter().map(OstProxy::refresh_space).collect();
        let deadline = self.seams.clock.now() + WAIT_MAX;
        let all = async {
            for answer in answers {
                answer.await;
            }
        };
        // Without an answer in time, the proxy's own question shows that the OST is lost.
        clock::timeout_at(&*self.seams.clock, deadline, all).await;
    }
}
