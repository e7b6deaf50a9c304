//! What the MDT asks OSTs about their space beside the questions at intervals (module `agent`):
//! when a client says that one is full, and before anybody is told that there is no space. What it
//! knows may be as old as the interval, so an OST that has room again, or takes new objects again,
//! would be passed over meanwhile.
//!
//! Bounds: a request asks once and waits [`WAIT_MAX`]; each OST gets one question at a time,
//! however many wait for it. An OST that does not answer is not waited for: its agent asks it all
//! the time, and knows as soon as it is back.
//!
//! Downside: where no OST has room, every creation costs a question to each, together with all that
//! come meanwhile.

use std::{collections::BTreeSet, sync::Arc};

use rt::clock;
use types::OstIndex;

use super::{Mdt, WAIT_MAX, agent::Agent};

impl Mdt {
    /// Asks an OST for its space now, and waits a while for the answer.
    pub(crate) async fn refresh_space(&self, ost: OstIndex) {
        let agents = self.agents().into_iter().filter(|(of, _)| *of == ost);
        self.refresh(agents.map(|(_, agent)| agent).collect()).await;
    }

    /// Asks all OSTs that answer, at once.
    pub(crate) async fn refresh_all_space(&self) {
        let silent: BTreeSet<OstIndex> =
            self.osts().into_iter().filter(|(_, view)| !view.connected).map(|(ost, _)| ost).collect();
        let agents = self.agents().into_iter().filter(|(ost, _)| !silent.contains(ost));
        self.refresh(agents.map(|(_, agent)| agent).collect()).await;
    }

    async fn refresh(&self, agents: Vec<Arc<Agent>>) {
        // All questions begin here; their answers are waited for one after the other.
        let answers: Vec<_> = agents.into_iter().map(Agent::refresh_space).collect();
        let deadline = self.seams.clock.now() + WAIT_MAX;
        let all = async {
            for answer in answers {
                answer.await;
            }
        };
        // Without an answer in time the agent's own question tells that the OST is lost.
        clock::timeout_at(&*self.seams.clock, deadline, all).await;
    }
}
