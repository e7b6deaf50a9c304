//! State shared by the handles of an import and its task.

use std::sync::Arc;

use parking_lot::Mutex;
use rt::{Instant, Seams, Sender};
use tokio::sync::{Notify, Semaphore};

use super::{
    core::{Core, Purpose},
    handle::Recovery,
    options::{Endpoint, ImportOptions},
    permits::Permits,
    tuned::Turns,
    waiting::Waiting,
};
use crate::{auth::Principal, codec::opcode::Family, server::LocalLink, tuning::Tuning};

/// How calls reach the target at present.
#[derive(Clone)]
pub(super) enum Link {
    Local(Arc<LocalLink>),
    Remote(Arc<dyn Sender>),
}

/// Everything behind the import's lock.
pub(super) struct Guarded {
    pub(super) core: Core,
    pub(super) link: Option<Link>,
    pub(super) endpoint: Endpoint,
    /// Which of the endpoint's addresses is in use or tried: the one that worked last, until it
    /// does not.
    pub(super) turn: usize,
    /// The endpoint changed since the driver looked.
    pub(super) readdressed: bool,
    /// The present link was found dead.
    pub(super) link_lost: bool,
    /// The session was found gone.
    pub(super) session_lost: bool,
    /// Calls could go out since the last disconnection.
    pub(super) worked: bool,
    pub(super) closing: bool,
    /// Its principal has ended: it is closed with its session, and no other one begins. The hook
    /// `evicted` is called then, because this import may be the first to learn of an eviction, and
    /// callers hear `Evicted`.
    pub(super) ends_with_session: bool,
    /// [`super::Import::close`] asks the server to end the session. Not the same as
    /// `ends_with_session`: that the session is found gone is no eviction now, so the hook is not
    /// called, and callers hear `Unreachable`. Both may be set.
    pub(super) leaving: bool,
    /// Wanted `max_rpcs_in_flight`, as the tuner or somebody else chose it.
    pub(super) wanted: u16,
    /// The most that the tuner may choose, and what is wanted without it.
    pub(super) wanted_max: u16,
    /// Wanted `max_mod_rpcs_in_flight`.
    pub(super) changes_wanted: u16,
    /// Callers whose requests are not sent yet.
    pub(super) waiting: Waiting,
}

impl Guarded {
    /// The turn at which a new endpoint continues: at the present address, if that stays.
    pub(super) fn turn_at(&self, new: &Endpoint) -> usize {
        match (&self.endpoint, new) {
            (Endpoint::Remote(old), Endpoint::Remote(new)) => {
                let present = old.at(self.turn);
                new.iter().position(|address| address == present).unwrap_or(0)
            }
            (Endpoint::Local(_), _) | (_, Endpoint::Local(_)) => 0,
        }
    }
}

/// What callers and the driver share.
pub(super) struct Inner {
    pub(super) seams: Seams,
    pub(super) target: Arc<str>,
    pub(super) family: Option<Family>,
    pub(super) principal: Principal,
    pub(super) options: ImportOptions,
    pub(super) recovery: Option<Arc<dyn Recovery>>,
    pub(super) guarded: Mutex<Guarded>,
    /// One permit per ordinary request that may be outstanding; held until its slot is free again.
    pub(super) permits: Permits,
    /// One permit, besides the ordinary one, per request that changes names or attributes.
    pub(super) changes: Permits,
    /// One permit per urgent request that may be outstanding.
    pub(super) urgent: Permits,
    pub(super) turns: Turns,
    pub(super) tuning: Arc<Tuning>,
    /// Bytes that large requests may take at the target until they are answered: it reads from a
    /// connection only as long as they do not take more, and must always read urgent requests.
    pub(super) memory: Arc<Semaphore>,
    /// The same for urgent ones.
    pub(super) urgent_memory: Arc<Semaphore>,
    /// One permit for the control slot.
    pub(super) control: Semaphore,
    /// Wakes callers that wait for another state.
    pub(super) changed: Notify,
    /// Wakes the driver.
    pub(super) wake: Notify,
    /// Wakes the part of the driver that sends again.
    pub(super) resend: Notify,
    /// Wakes the part of the driver that ends calls when the timeout is zero: a call began, or the
    /// timeout changed.
    pub(super) timeout_due: Notify,
}

impl Inner {
    pub(super) fn now(&self) -> Instant {
        self.seams.clock.now()
    }

    pub(super) fn begin_close(&self) {
        self.guarded.lock().closing = true;
        self.wake.notify_one();
    }

    /// The slot of a request for this purpose is free again, or was not used: lets the next have
    /// it.
    pub(super) fn slot_freed(&self, purpose: Purpose) {
        match purpose {
            Purpose::Ordinary => self.permits.give_back(),
            Purpose::Change => {
                self.permits.give_back();
                self.changes.give_back();
            }
            Purpose::Urgent => self.urgent.give_back(),
            Purpose::Recovery | Purpose::Ping => self.control.add_permits(1),
        }
    }

    /// Whether it is the number of requests that limits how many are changes: with more of them
    /// more changes could be outstanding.
    pub(super) fn limits_changes(&self) -> bool {
        self.changes.count() + 1 >= self.permits.count()
    }

    /// Makes the number of permits what is wanted and granted. Fewer of them are for changes, also
    /// with what the tuner chooses: questions do not wait for these.
    pub(super) fn adjust_permits(&self) {
        let guarded = self.guarded.lock();
        let goal = guarded.wanted.clamp(1, guarded.core.ordinary_slots().max(1));
        self.permits.resize(goal);
        self.changes.resize(guarded.changes_wanted.min(goal.saturating_sub(1)).max(1));
        self.urgent.resize(guarded.core.urgent_slots().max(1));
    }
}
