//! State shared by the handles of an import and its task.

use std::sync::Arc;

use parking_lot::Mutex;
use rt::{Instant, Seams, Sender};
use tokio::sync::{Notify, Semaphore};
use types::Slot;

use super::{
    core::{Core, Purpose},
    handle::Recovery,
    options::{Endpoint, ImportOptions},
    permits::Permits,
    slots,
    waiting::Waiting,
};
use crate::{auth::Principal, codec::opcode::Family, server::LocalLink};

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
    /// The endpoint changed since the driver looked.
    pub(super) readdressed: bool,
    /// Somebody found the present link dead.
    pub(super) link_lost: bool,
    /// Somebody found the session gone.
    pub(super) session_lost: bool,
    /// Calls could go out since the last disconnection.
    pub(super) worked: bool,
    pub(super) closing: bool,
    /// Wanted `max_rpcs_in_flight`.
    pub(super) wanted: u16,
    /// Callers whose requests are not sent yet.
    pub(super) waiting: Waiting,
}

/// How many of so many requests may be such that wait for others.
pub(super) fn waiting_max(requests: u16) -> u16 {
    (requests - requests / 4).clamp(1, requests.max(2) - 1)
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
    /// One permit per call that waits for others, besides that for its slot.
    pub(super) waiting: Permits,
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
    pub(super) impatient: Notify,
}

impl Inner {
    pub(super) fn now(&self) -> Instant {
        self.seams.clock.now()
    }

    pub(super) fn begin_close(&self) {
        self.guarded.lock().closing = true;
        self.wake.notify_one();
    }

    /// A slot is free again: lets the next call have it.
    pub(super) fn slot_freed(&self, slot: Slot) {
        if slot == slots::CONTROL {
            self.control.add_permits(1);
        } else {
            self.permits.give_back();
        }
    }

    /// A permit was not used.
    pub(super) fn permit_back(&self, purpose: Purpose) {
        self.slot_freed(if purpose == Purpose::Ordinary { slots::FIRST_ORDINARY } else { slots::CONTROL });
    }

    /// Makes the number of permits what is wanted and granted.
    pub(super) fn adjust_permits(&self) {
        let guarded = self.guarded.lock();
        let goal = guarded.wanted.clamp(1, guarded.core.ordinary_slots().max(1));
        self.permits.resize(goal);
        self.waiting.resize(waiting_max(goal));
    }
}
