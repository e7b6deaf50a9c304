//! One target as this client sees it: its connection, whether it is in use, and what it last said of its space.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rpc::{
    Answered, Fate, Import, ImportState,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest, Reply, Request,
        control::TargetStatus,
        mgs::{MapTarget, TargetRole, TargetState},
        ost::TargetCondition,
    },
};
use types::{FsError, FsResult, ObjectId, SpaceUsage, limits::OBJECTS_PER_REQUEST_MAX};

use crate::targets::uncommitted::Uncommitted;

/// Name of a target: `stria-OST0003`.
pub(crate) fn target_name(fsname: &str, role: TargetRole) -> String {
    match role {
        TargetRole::Mdt(index) => format!("{fsname}-{index}"),
        TargetRole::Ost(index) => format!("{fsname}-{index}"),
    }
}

/// What a reply of the wrong kind becomes.
pub(crate) fn unexpected(reply: impl std::fmt::Debug) -> FsError {
    FsError::Protocol(format!("unexpected reply {reply:?}"))
}

/// Counts restarts of one target as this client notices them, before it sends anything to the new start.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    count: AtomicU64,
    /// The last of the losses that this client has noticed, of any OST, that was this target's; 0: none was.
    last_loss: AtomicU64,
}

impl Restarts {
    /// Number of restarts noticed.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The target restarted.
    pub fn noticed(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// It has lost undurable changes: the loss with this number.
    pub fn lost(&self, number: u64) {
        self.last_loss.fetch_max(number, Ordering::AcqRel);
    }
}

/// What the cluster map says, and what the target said.
#[derive(Debug)]
struct Known {
    address: String,
    space: Option<SpaceUsage>,
    condition: TargetCondition,
}

/// A target. See the module documentation.
pub(crate) struct TargetConnection {
    role: TargetRole,
    import: RwLock<Import>,
    active: AtomicBool,
    restarts: Arc<Restarts>,
    known: Mutex<Known>,
    uncommitted: Uncommitted,
}

impl TargetConnection {
    pub fn new(map: &MapTarget, import: Import, restarts: Arc<Restarts>) -> Self {
        let known = Known { address: map.address.clone(), space: None, condition: TargetCondition::default() };
        let active = AtomicBool::new(map.state == TargetState::Active);
        let (import, known) = (RwLock::new(import), Mutex::new(known));
        Self { role: map.role, import, active, restarts, known, uncommitted: Uncommitted::default() }
    }

    pub fn role(&self) -> TargetRole {
        self.role
    }

    /// The present connection.
    pub fn import(&self) -> Import {
        self.import.read().clone()
    }

    /// A new life begins: the old connection ends with the calls that still use it.
    pub fn replace_import(&self, import: Import) {
        *self.import.write() = import;
    }

    /// To be counted by the connection's recovery.
    pub fn restarts_counter(&self) -> Arc<Restarts> {
        self.restarts.clone()
    }

    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Restarts of the target noticed so far.
    pub fn restarts(&self) -> u64 {
        self.restarts.count()
    }

    /// Number of the last loss of undurable changes noticed of this target, among those of all OSTs; 0: none.
    pub fn last_loss(&self) -> u64 {
        self.restarts.last_loss.load(Ordering::Acquire)
    }

    /// Takes over what a newer cluster map says; true if the address changed.
    pub fn update(&self, map: &MapTarget) -> bool {
        self.active.store(map.state == TargetState::Active, Ordering::Release);
        let mut known = self.known.lock();
        let moved = known.address != map.address;
        known.address.clone_from(&map.address);
        moved
    }

    async fn call(&self, request: Request, bulk: Bytes, changes: bool) -> FsResult<Answered> {
        self.call_by(&self.import(), request, bulk, changes).await
    }

    fn check_active(&self, import: &Import) -> FsResult<()> {
        match self.is_active() {
            true => Ok(()),
            false => {
                let detail = "the target is inactive".to_owned();
                Err(FsError::Device { target: import.target().to_owned(), detail })
            }
        }
    }

    /// `changes`: what a sync must make durable.
    async fn call_by(&self, import: &Import, request: Request, bulk: Bytes, changes: bool) -> FsResult<Answered> {
        self.check_active(import)?;
        let answered = import.call_counted(request, bulk).await?;
        if changes {
            self.uncommitted.changed(answered.losses);
        }
        Ok(answered)
    }

    /// Calls this MDT. A session lost meanwhile is `Stale`: whether the request took effect is unknown, and what was
    /// open is gone. (The kernel tries operations on paths once more after it.)
    pub async fn mdt(&self, request: MdtRequest) -> FsResult<MdtReply> {
        Ok(self.mdt_with(request, Bytes::new()).await?.0)
    }

    /// As [`TargetConnection::mdt`]; with the error comes the fate of a request that may have been, or be, executed nevertheless.
    pub async fn mdt_with_fate(&self, request: MdtRequest) -> Result<MdtReply, (FsError, Option<Fate>)> {
        let import = self.import();
        self.check_active(&import).map_err(|error| (error, None))?;
        let changes = request.row().needs_sync();
        match import.call_with_fate(Request::Mdt(request), Bytes::new()).await {
            Ok(Answered { reply: Reply::Mdt(reply), losses, .. }) => {
                if changes {
                    self.uncommitted.changed(losses);
                }
                Ok(reply)
            }
            Ok(answered) => Err((unexpected(answered.reply), None)),
            Err((FsError::Evicted, _)) => Err((FsError::Stale, None)),
            Err(failed) => Err(failed),
        }
    }

    /// As [`TargetConnection::mdt`], with data beside request and reply.
    pub async fn mdt_with(&self, request: MdtRequest, bulk: Bytes) -> FsResult<(MdtReply, Bytes)> {
        self.mdt_counted(request, bulk).await.map(|(reply, bulk, _)| (reply, bulk))
    }

    /// As [`TargetConnection::mdt_with`]; with the losses of [`rpc::Answered`].
    async fn mdt_counted(&self, request: MdtRequest, bulk: Bytes) -> FsResult<(MdtReply, Bytes, u64)> {
        let changes = request.row().needs_sync();
        match self.call(Request::Mdt(request), bulk, changes).await {
            Ok(Answered { reply: Reply::Mdt(reply), bulk, losses }) => Ok((reply, bulk, losses)),
            Ok(answered) => Err(unexpected(answered.reply)),
            Err(FsError::Evicted) => Err(FsError::Stale),
            Err(error) => Err(error),
        }
    }

    /// Everything this MDT has acknowledged is durable afterwards. Returns [`Uncommitted::lost`].
    pub async fn commit(&self) -> FsResult<u64> {
        let changes = self.uncommitted.begin();
        match self.mdt_counted(MdtRequest::Commit, Bytes::new()).await? {
            (MdtReply::Done, _, losses) => Ok(self.uncommitted.committed(changes, losses)),
            (reply, ..) => Err(unexpected(reply)),
        }
    }

    /// Everything this OST has acknowledged is durable afterwards. Returns [`Uncommitted::lost`].
    pub async fn flush(&self) -> FsResult<u64> {
        let changes = self.uncommitted.begin();
        let losses = self.flush_objects(Vec::new()).await?;
        Ok(self.uncommitted.committed(changes, losses))
    }

    /// These objects of this OST are durable afterwards; all, if there are none. Returns the losses of [`rpc::Answered`].
    pub async fn flush_objects(&self, mut objects: Vec<ObjectId>) -> FsResult<u64> {
        let mut losses = 0;
        while objects.len() > OBJECTS_PER_REQUEST_MAX {
            let some = objects.split_off(objects.len() - OBJECTS_PER_REQUEST_MAX);
            losses = self.flush_some(some).await?.max(losses);
        }
        Ok(self.flush_some(objects).await?.max(losses))
    }

    async fn flush_some(&self, objects: Vec<ObjectId>) -> FsResult<u64> {
        match self.ost_counted(OstRequest::Sync(objects), Bytes::new()).await {
            Ok((OstReply::Done, _, losses)) => Ok(losses),
            Ok((reply, ..)) => Err(unexpected(reply)),
            Err(FsError::Evicted) => Err(FsError::Stale),
            Err(error) => Err(error),
        }
    }

    /// How often this OST has lost what was not durable.
    pub async fn losses(&self) -> FsResult<u64> {
        match self.ost_counted(OstRequest::Ping, Bytes::new()).await {
            Ok((OstReply::Done, _, losses)) => Ok(losses),
            Ok((reply, ..)) => Err(unexpected(reply)),
            Err(FsError::Evicted) => Err(FsError::Stale),
            Err(error) => Err(error),
        }
    }

    /// Changes at this target that nothing made durable yet.
    pub fn uncommitted(&self) -> &Uncommitted {
        &self.uncommitted
    }

    /// What a sync says that finds changes missing.
    pub fn lost_changes(&self) -> FsError {
        let detail = "changes that were not synced may have been lost when its host lost power".to_owned();
        FsError::Device { target: self.import().target().to_owned(), detail }
    }

    /// Calls this OST.
    pub async fn ost(&self, request: OstRequest, bulk: Bytes) -> FsResult<(OstReply, Bytes)> {
        self.ost_counted(request, bulk).await.map(|(reply, bulk, _)| (reply, bulk))
    }

    /// As [`TargetConnection::ost`]; with the losses of [`rpc::Answered`].
    async fn ost_counted(&self, request: OstRequest, bulk: Bytes) -> FsResult<(OstReply, Bytes, u64)> {
        let changes = request.row().needs_sync();
        match self.call(Request::Ost(request), bulk, changes).await? {
            Answered { reply: Reply::Ost(reply), bulk, losses } => Ok((reply, bulk, losses)),
            answered => Err(unexpected(answered.reply)),
        }
    }

    /// A request for objects of this target: those of an OST, or data on an MDT. With the losses of [`rpc::Answered`].
    pub async fn objects(&self, request: OstRequest, bulk: Bytes) -> FsResult<(OstReply, Bytes, u64)> {
        self.objects_by(&self.import(), request, bulk).await
    }

    /// As [`TargetConnection::objects`], by a connection that was the present one when the caller made sure that its life goes on.
    pub async fn objects_by(
        &self,
        import: &Import,
        request: OstRequest,
        bulk: Bytes,
    ) -> FsResult<(OstReply, Bytes, u64)> {
        let (request, changes) = if matches!(self.role, TargetRole::Ost(_)) {
            let changes = request.row().needs_sync();
            (Request::Ost(request), changes)
        } else {
            let request = match request.row().changed_object() {
                Some(_) => MdtRequest::ChangeData(request),
                None => MdtRequest::ReadData(request),
            };
            let changes = request.row().needs_sync();
            (Request::Mdt(request), changes)
        };
        match self.call_by(import, request, bulk, changes).await? {
            Answered { reply: Reply::Ost(reply) | Reply::Mdt(MdtReply::Data(reply)), bulk, losses } => {
                Ok((reply, bulk, losses))
            }
            answered => Err(unexpected(answered.reply)),
        }
    }

    /// Asks for the target's space.
    pub async fn ask_space(&self) -> FsResult<()> {
        let (space, condition) = match self.role {
            TargetRole::Mdt(_) => match self.mdt(MdtRequest::StatFs).await? {
                MdtReply::Space(space) => (space, TargetCondition::default()),
                reply => return Err(unexpected(reply)),
            },
            TargetRole::Ost(_) => match self.ost(OstRequest::StatFs, Bytes::new()).await?.0 {
                OstReply::Space(space, condition) => (space, condition),
                reply => return Err(unexpected(reply)),
            },
        };
        let mut known = self.known.lock();
        (known.space, known.condition) = (Some(space), condition);
        Ok(())
    }

    /// The last known space.
    pub fn space(&self) -> Option<SpaceUsage> {
        self.known.lock().space
    }

    /// For `lfs df` and `lfs osts`. `reached`: whether it just answered.
    pub fn status(&self, reached: bool) -> TargetStatus {
        let (import, known) = (self.import(), self.known.lock());
        TargetStatus {
            role: self.role,
            uuid: format!("{}_UUID", import.target()),
            address: known.address.clone(),
            active: self.is_active(),
            connected: import.state() == ImportState::Full,
            condition: known.condition,
            space: if reached { known.space } else { None },
        }
    }
}
