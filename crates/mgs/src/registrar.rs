//! Keeps a target registered with the management service: reports it at its start and then
//! regularly, with its space and condition, so that the MGS knows that it is alive.
//!
//! Life cycle: one task per target, from [`Registrar::start`] until the registrar is dropped. A
//! refusal (wrong file system, index taken) is shown by [`Registrar::state`] and tried again: an
//! administrator may correct it.

use std::{sync::Arc, time::Duration};

use rpc::{
    Import,
    message::{
        MgsReply, MgsRequest,
        mgs::{ClusterMap, Register, TargetRole},
        ost::TargetCondition,
    },
    unexpected,
};
use rt::{BoxFuture, Clock, Seams};
use tokio::sync::watch;
use types::{FsError, FsResult, ProtocolError, SpaceUsage};

use crate::race::unless;

/// Time between reports.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// What a target says of its space and condition now.
pub type Measure = Arc<dyn Fn() -> BoxFuture<'static, (SpaceUsage, TargetCondition)> + Send + Sync>;

/// The target that registers. Fixed for the lifetime of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// File system it was formatted for.
    pub fsname: String,
    /// Role and index.
    pub role: TargetRole,
    /// Identity written at format time.
    pub uuid: String,
    /// Where others reach it.
    pub addresses: Vec<String>,
}

/// How the last report ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// No report was answered yet.
    #[default]
    Pending,
    /// The MGS knows this target.
    Registered,
    /// The MGS refuses this target, or did not answer.
    Failed(FsError),
}

/// Keeps one target registered until it is dropped.
pub struct Registrar {
    states: watch::Receiver<Registration>,
}

impl Registrar {
    /// Begins to report.
    pub fn start(seams: &Seams, import: Import, identity: Identity, measure: Measure) -> Registrar {
        let (sender, states) = watch::channel(Registration::default());
        let task = report_always(seams.clock.clone(), import, identity, measure, sender);
        seams.spawn.spawn("mgs_registrar", Box::pin(task));
        Registrar { states }
    }

    /// How the last report ended.
    pub fn state(&self) -> Registration {
        self.states.borrow().clone()
    }

    /// Waits until the MGS knows this target.
    pub async fn succeeded(&self) {
        let mut states = self.states.clone();
        // The sender ends with the registrar: nothing waits for it any more.
        let _ = states.wait_for(|state| *state == Registration::Registered).await;
    }

    /// Waits for the end of the first report: registered, or why not.
    pub async fn first(&self) -> FsResult<()> {
        let mut states = self.states.clone();
        let state = states.wait_for(|state| *state != Registration::Pending).await.map(|state| state.clone());
        match state {
            Ok(Registration::Failed(error)) => Err(error),
            Ok(_) => Ok(()),
            Err(_) => Err(ProtocolError::NotRegistering.into()),
        }
    }
}

async fn report_always(
    clock: Arc<dyn Clock>,
    import: Import,
    identity: Identity,
    measure: Measure,
    sender: watch::Sender<Registration>,
) {
    loop {
        let attempt = async {
            let (space, condition) = measure().await;
            register(&import, &identity, space, condition).await
        };
        let state = match unless(sender.closed(), attempt).await {
            None => return,
            Some(Ok(_)) => Registration::Registered,
            Some(Err(error)) => Registration::Failed(error),
        };
        sender.send_if_modified(|published| {
            let differs = *published != state;
            if differs && let Registration::Failed(error) = &state {
                tracing::warn!(target = %identity.role.target_name(&identity.fsname), %error, "cannot register a target; retrying");
            }
            *published = state;
            differs
        });
        if unless(sender.closed(), rt::clock::sleep(&*clock, REPORT_INTERVAL)).await.is_none() {
            return;
        }
    }
}

/// Reports a target once. The answer is the map that contains it.
pub async fn register(
    import: &Import,
    identity: &Identity,
    space: SpaceUsage,
    condition: TargetCondition,
) -> FsResult<ClusterMap> {
    let Identity { fsname, role, uuid, addresses } = identity.clone();
    let register = Register { fsname, role, uuid, addresses, space, condition };
    match import.call(MgsRequest::Register(register)).await?.reply {
        MgsReply::Map(map) => Ok(map),
        reply => Err(unexpected(reply)),
    }
}
