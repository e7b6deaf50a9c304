//! Makes an import and starts its task.

use std::sync::Arc;

use parking_lot::Mutex;
use rt::Seams;
use tokio::sync::{Notify, Semaphore};
use types::limits::SESSION_SLOTS_MAX;

use super::{
    core::Core,
    driver,
    handle::{Closer, Import, Recovery},
    inner::{Guarded, Inner},
    options::{Endpoint, ImportOptions},
    permits::Permits,
    tuned::Turns,
    waiting::Waiting,
};
use crate::{
    auth::Principal,
    codec::opcode::Family,
    server::{BYTES_IN_WORK_MAX, URGENT_BYTES_IN_WORK_MAX},
    tuning::Tuning,
};

impl Import {
    /// An import that begins to connect. The target's name says which requests it understands (and
    /// so how to ping it): `MGS`, `<fsname>-MDT<index>` or `<fsname>-OST<index>`.
    pub fn new(
        seams: Seams,
        target: &str,
        endpoint: Endpoint,
        principal: Principal,
        options: ImportOptions,
        recovery: Option<Arc<dyn Recovery>>,
    ) -> Import {
        let target: Arc<str> = target.into();
        let permits = options.rpcs_in_flight_max.clamp(1, SESSION_SLOTS_MAX - 1);
        let guarded = Guarded {
            core: Core::new(target.clone(), principal.role().class(), &options),
            link: None,
            endpoint,
            turn: 0,
            readdressed: false,
            link_lost: false,
            session_lost: false,
            worked: false,
            closing: false,
            ends_with_session: false,
            leaving: false,
            wanted: permits,
            wanted_max: permits,
            changes_wanted: permits.saturating_sub(1).max(1),
            waiting: Waiting::default(),
        };
        let inner = Arc::new(Inner {
            family: Family::of_target(&target),
            seams,
            target,
            principal,
            options,
            recovery,
            guarded: Mutex::new(guarded),
            permits: Permits::new(permits),
            changes: Permits::new(permits.saturating_sub(1).max(1)),
            urgent: Permits::new(1),
            turns: Turns::default(),
            tuning: Tuning::off(),
            memory: Arc::new(Semaphore::new(BYTES_IN_WORK_MAX)),
            urgent_memory: Arc::new(Semaphore::new(URGENT_BYTES_IN_WORK_MAX)),
            control: Semaphore::new(1),
            changed: Notify::new(),
            wake: Notify::new(),
            resend: Notify::new(),
            timeout_due: Notify::new(),
        });
        inner.seams.spawn.spawn_spread("import", Box::pin(driver::run(inner.clone())));
        let import = Import { _closer: Some(Arc::new(Closer(inner.clone()))), inner, recovering: false };
        if import.inner.options.tunes {
            import.tune();
        }
        import
    }
}
