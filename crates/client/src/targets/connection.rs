//! One target as this client sees it: its connection, whether it is in use, and its last report of
//! its space.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::{Mutex, RwLock};
pub(crate) use rpc::unexpected;
use rpc::{
    Answered, Ask, Import, ImportState, LateOutcome, Question,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest,
        control::TargetStatus,
        mdt::Entry,
        mgs::{MapTarget, TargetRole, TargetState},
        ost::TargetCondition,
    },
};
use types::{
    FsError, FsResult, ObjectId, SpaceUsage,
    limits::{BULK_BYTES_MAX, OBJECTS_PER_REQUEST_MAX},
};

use crate::{
    cache::target_cache::TargetCache,
    client_state::ClientState,
    open_state::open_table::OpenTable,
    targets::{late_closes::LateCloses, repetitions::Repetitions, uncommitted::Uncommitted},
    upper_cache::Above,
};

/// Name of a target: `stria-OST0003`.
pub(crate) fn target_name(fsname: &str, role: TargetRole) -> String {
    match role {
        TargetRole::Mdt(index) => format!("{fsname}-{index}"),
        TargetRole::Ost(index) => format!("{fsname}-{index}"),
    }
}

/// A reply that must be without data.
pub(crate) fn done(answered: Answered<MdtReply>) -> FsResult<()> {
    match answered.reply {
        MdtReply::Done => Ok(()),
        reply => Err(unexpected(reply)),
    }
}

/// A reply that must be an inode.
pub(crate) fn entry(answered: Answered<MdtReply>) -> FsResult<Entry> {
    match answered.reply {
        MdtReply::Entry(entry) => Ok(entry),
        reply => Err(unexpected(reply)),
    }
}

/// A session lost while a request was outstanding: whether it took effect is unknown, and what was
/// open is gone. (The kernel tries operations on paths once more after `Stale`.)
pub(crate) fn stale_if_evicted(error: FsError) -> FsError {
    match error {
        FsError::Evicted => FsError::Stale,
        error => error,
    }
}

/// Counts restarts of one target as this client notices them, before it sends anything to the new
/// start.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    count: AtomicU64,
    /// The latest power loss of this target, counted among those of all OSTs that this client has
    /// noticed; 0: none.
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
    addresses: Vec<String>,
    space: Option<SpaceUsage>,
    condition: TargetCondition,
}

/// A target. See the module documentation.
pub(crate) struct TargetConnection {
    role: TargetRole,
    import: RwLock<Import>,
    active: AtomicBool,
    /// Most data in one request.
    bulk_bytes_max: AtomicUsize,
    restarts: Arc<Restarts>,
    known: Mutex<Known>,
    uncommitted: Uncommitted,
    cache: TargetCache,
    repetitions: Repetitions,
    client_state: Arc<ClientState>,
    /// Held by a request that reports opens.
    telling: tokio::sync::Mutex<Option<LateOutcome>>,
    /// Held by a request that tells of accesses.
    telling_accesses: tokio::sync::Mutex<()>,
    closes: LateCloses,
}

impl TargetConnection {
    pub fn new(map: &MapTarget, import: Import, restarts: Arc<Restarts>, client_state: Arc<ClientState>) -> Self {
        let known = Known { addresses: map.addresses.clone(), space: None, condition: TargetCondition::default() };
        let active = AtomicBool::new(map.state == TargetState::Active);
        let cache = TargetCache::default();
        cache.begin_session(import.client());
        let (import, known) = (RwLock::new(import), Mutex::new(known));
        Self {
            role: map.role,
            import,
            active,
            bulk_bytes_max: AtomicUsize::new(BULK_BYTES_MAX),
            restarts,
            known,
            uncommitted: Uncommitted::default(),
            cache,
            repetitions: Repetitions::default(),
            client_state,
            telling: tokio::sync::Mutex::default(),
            telling_accesses: tokio::sync::Mutex::default(),
            closes: LateCloses::default(),
        }
    }

    pub fn role(&self) -> TargetRole {
        self.role
    }

    /// Most data in one request.
    pub fn bulk_bytes_max(&self) -> usize {
        self.bulk_bytes_max.load(Ordering::Relaxed)
    }

    pub fn set_bulk_bytes_max(&self, bytes: usize) {
        self.bulk_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// The present connection.
    pub fn import(&self) -> Import {
        self.import.read().clone()
    }

    /// Whether requests can go out at this moment.
    pub fn is_connected(&self) -> bool {
        self.import.read().state() == ImportState::Full
    }

    /// Whether this is a connection of an incarnation that has ended.
    pub fn is_of_former_session(&self, import: &Import) -> bool {
        self.import.read().client() != import.client()
    }

    /// A new incarnation begins: the old connection ends with the calls that still use it, or with
    /// its session.
    pub fn replace_import(&self, import: Import) {
        let mut present = self.import.write();
        self.cache.begin_session(import.client());
        let former = std::mem::replace(&mut *present, import);
        former.end_with_session();
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

    /// Number of the last loss of undurable changes noticed of this target, among those of all
    /// OSTs; 0: none.
    pub fn last_loss(&self) -> u64 {
        self.restarts.last_loss.load(Ordering::Acquire)
    }

    /// Takes over what a newer cluster map says; true if the addresses changed.
    pub fn update(&self, map: &MapTarget) -> bool {
        self.active.store(map.state == TargetState::Active, Ordering::Release);
        assert_eq!(map.role, self.role, "a connection is updated with the entry of its own target");
        let mut known = self.known.lock();
        let moved = known.addresses != map.addresses;
        known.addresses.clone_from(&map.addresses);
        moved
    }

    /// Waits until this target can be asked; returns the connection, which is that of a new
    /// incarnation if one begins meanwhile.
    pub async fn connected(&self) -> FsResult<Import> {
        loop {
            let import = self.import();
            match import.connected().await {
                Ok(()) => return Ok(import),
                Err(FsError::Evicted) if self.import().client() != import.client() => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn check_active(&self, import: &Import) -> FsResult<()> {
        match self.is_active() {
            true => Ok(()),
            false => {
                let detail = "the target is inactive".to_owned();
                Err(FsError::Device { target: import.target().to_owned(), detail })
            }
        }
    }

    /// Asks this target. [`FileSystem::call`](crate::FileSystem) is for requests about an inode.
    pub async fn call<'a, R: Ask>(&self, question: impl Into<Question<'a, R>>) -> FsResult<Answered<R::Reply>> {
        self.call_by(&self.import(), question).await
    }

    /// As [`TargetConnection::call`], by a connection that was the present one when the caller made
    /// sure that its incarnation continues.
    pub async fn call_by<'a, R: Ask>(
        &self,
        import: &Import,
        question: impl Into<Question<'a, R>>,
    ) -> FsResult<Answered<R::Reply>> {
        self.check_active(import)?;
        let question = question.into();
        let needs_sync = question.request.row().needs_sync();
        let answered = import.call(question).await?;
        if needs_sync {
            self.uncommitted.changed(answered.era);
        }
        Ok(answered)
    }

    /// Everything this MDT has acknowledged is durable afterwards. Returns [`Uncommitted::lost`].
    pub async fn commit(&self) -> FsResult<u64> {
        let changes = self.uncommitted.begin();
        let Answered { reply, era, .. } = self.call(MdtRequest::Commit).await.map_err(stale_if_evicted)?;
        match reply {
            MdtReply::Done => Ok(self.uncommitted.committed(changes, era)),
            reply => Err(unexpected(reply)),
        }
    }

    /// Everything this OST has acknowledged is durable afterwards. Returns [`Uncommitted::lost`].
    pub async fn flush(&self) -> FsResult<u64> {
        let changes = self.uncommitted.begin();
        let era = self.flush_objects(Vec::new()).await?;
        Ok(self.uncommitted.committed(changes, era))
    }

    /// These objects of this OST are durable afterwards; all, if there are none. Returns the era
    /// of [`rpc::Answered`].
    pub async fn flush_objects(&self, mut objects: Vec<ObjectId>) -> FsResult<u64> {
        let mut era = 0;
        while objects.len() > OBJECTS_PER_REQUEST_MAX {
            let some = objects.split_off(objects.len() - OBJECTS_PER_REQUEST_MAX);
            era = self.flush_some(some).await?.max(era);
        }
        Ok(self.flush_some(objects).await?.max(era))
    }

    async fn flush_some(&self, objects: Vec<ObjectId>) -> FsResult<u64> {
        self.era_after(OstRequest::Sync(objects)).await
    }

    /// How often this OST has lost what was not durable.
    pub async fn era(&self) -> FsResult<u64> {
        self.era_after(OstRequest::Ping).await
    }

    /// The era of [`rpc::Answered`] with the answer to a request to an OST.
    async fn era_after(&self, request: OstRequest) -> FsResult<u64> {
        let Answered { reply, era, .. } = self.call(request).await.map_err(stale_if_evicted)?;
        match reply {
            OstReply::Done => Ok(era),
            reply => Err(unexpected(reply)),
        }
    }

    /// Of an MDT: what is cached of its inodes.
    pub fn cache(&self) -> &TargetCache {
        &self.cache
    }

    /// Of an MDT: when requests are sent again.
    pub fn repetitions(&self) -> &Repetitions {
        &self.repetitions
    }

    /// The cache above this client.
    pub fn above(&self) -> &Above {
        &self.client_state.above
    }

    /// What MDTs keep for this client.
    pub(super) fn client_state(&self) -> &ClientState {
        &self.client_state
    }

    /// This client's opens.
    pub(super) fn opens(&self) -> &OpenTable {
        &self.client_state.opens
    }

    /// See the fields.
    pub(super) fn telling(&self) -> &tokio::sync::Mutex<Option<LateOutcome>> {
        &self.telling
    }

    /// See the fields.
    pub(super) fn telling_accesses(&self) -> &tokio::sync::Mutex<()> {
        &self.telling_accesses
    }

    /// Of an MDT: closes that nobody waits for.
    pub(super) fn closes(&self) -> &LateCloses {
        &self.closes
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

    /// Asks for the target's space.
    pub async fn ask_space(&self) -> FsResult<()> {
        let (space, condition) = match self.role {
            TargetRole::Mdt(_) => match self.call(MdtRequest::StatFs).await.map_err(stale_if_evicted)?.reply {
                MdtReply::Space(space) => (space, TargetCondition::default()),
                reply => return Err(unexpected(reply)),
            },
            TargetRole::Ost(_) => match self.call(OstRequest::StatFs).await?.reply {
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
            address: known.addresses.join(","),
            active: self.is_active(),
            connected: import.state() == ImportState::Full,
            condition: known.condition,
            space: if reached { known.space } else { None },
        }
    }
}
