//! The mounted file system: its parts, how it is started and stopped. The operations are in files
//! of their own, by topic.
//!
//! Errors: every operation may fail with `Unreachable` (a target did not answer within the
//! timeout), `Stale` (the session in which a file was opened was evicted) and `GroupsNeeded`. The
//! last means: nothing has happened, the decision depends on the caller's supplementary groups;
//! call again with `credentials.groups` filled in.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use rpc::{
    Answered, Import, ImportStatistics, Question, Tuning,
    message::{
        MdtReply, MdtRequest,
        mdt::{OpenId, open_flag},
        mgs::{ClusterMap, TargetRole},
    },
};
use rt::{BoxFuture, Seams};
use tokio::sync::watch;
use types::{
    ClientId, FsError, FsResult, InodeNumber, MdtIndex,
    limits::{BLOCK_BYTES, BULK_BYTES_MAX},
};

use crate::{
    cache::{
        connection_id::ConnectionId,
        inode_cache::InodeCache,
        served::{Served, ServedLock},
    },
    cancellation::{finish::Abandoned, interruption::Interruption},
    client_state::ClientState,
    directory_maps::DirectoryMaps,
    job_ids::JobIds,
    locks::exclusive::ExclusiveQueues,
    name_places::NamePlaces,
    names_elsewhere::NamesElsewhere,
    open_state::{open_file::OpenFile, open_table::OpenTable},
    operations::moving_names::{Turns, lacks_shard},
    options::MountOptions,
    statistics::{Operation, Statistics},
    targets::{
        awaited_mdts::{AwaitedMdts, Pauses, awaited_mdt},
        connection::{TargetConnection, stale_if_evicted, target_name},
        named_mdts::named_mdts,
        target_table::{Connector, TargetTable},
        told_opens::depends_on_opens,
    },
    upper_cache::{LockSpan, SpanNumber, UpperCache},
};

/// `statahead_max`, unless another number is set: a page of as many names takes the MDT some 3 ms.
const STATAHEAD_DEFAULT: u32 = 512;

/// `close_delay_ms`, unless another number is set: a program that goes on makes its next request to
/// the MDT sooner.
const CLOSE_DELAY_DEFAULT_MS: u32 = 5;

/// A mounted file system.
pub struct FileSystem {
    pub(crate) seams: Seams,
    pub(crate) targets: Arc<TargetTable>,
    pub(crate) client_state: Arc<ClientState>,
    pub(crate) exclusive: ExclusiveQueues,
    pub(crate) statistics: Statistics,
    pub(crate) directory_maps: DirectoryMaps,
    pub(crate) names_elsewhere: NamesElsewhere,
    awaited_mdts: AwaitedMdts,
    job_ids: JobIds,
    fsname: String,
    pub(crate) unasked_opens_max: usize,
    next_open: AtomicU64,
    statahead_max: AtomicU32,
    close_delay_ms: AtomicU32,
    /// Dropped at the unmount, which ends the task that follows the cluster map.
    mounted: watch::Sender<bool>,
}

impl FileSystem {
    /// Mounts: connects to the targets of the cluster map (waiting until it has the first MDT) and
    /// looks at the root directory. Fails with `Unreachable` if that MDT does not answer within the
    /// timeout.
    pub async fn mount(seams: Seams, options: MountOptions) -> FsResult<Arc<FileSystem>> {
        let file_system = Self::connect(seams, options).await?;
        file_system.find_root().await?;
        Ok(file_system)
    }

    /// The first part of [`FileSystem::mount`], for callers that tell what it waits for: begins to
    /// connect to the targets of the cluster map. [`FileSystem::find_root`] is the second.
    pub async fn connect(seams: Seams, options: MountOptions) -> FsResult<Arc<FileSystem>> {
        let MountOptions { mut map, resolve, principal, import, unasked_opens_max } = options;
        let root = TargetRole::Mdt(InodeNumber::ROOT.mdt());
        let deadline = seams.clock.now() + import.timeout;
        let Some(Some(first)) = rt::clock::timeout_at(&*seams.clock, deadline, map_with(&mut map, root)).await else {
            let target = target_name(&map.borrow().fsname, root);
            return Err(FsError::Unreachable { target, seconds: import.timeout.as_secs() as u32, cause: None });
        };
        let client_state = Arc::new(ClientState::new(principal));
        let connector =
            Connector { seams: seams.clone(), options: import.into(), resolve, client_state: client_state.clone() };
        let targets = TargetTable::new(connector);
        targets.update(first.clone());
        let file_system = Arc::new(FileSystem {
            seams,
            targets,
            client_state,
            exclusive: ExclusiveQueues::default(),
            statistics: Statistics::default(),
            directory_maps: DirectoryMaps::default(),
            names_elsewhere: NamesElsewhere::default(),
            awaited_mdts: AwaitedMdts::default(),
            job_ids: JobIds::default(),
            fsname: first.fsname.clone(),
            unasked_opens_max,
            next_open: AtomicU64::new(1),
            statahead_max: AtomicU32::new(STATAHEAD_DEFAULT),
            close_delay_ms: AtomicU32::new(CLOSE_DELAY_DEFAULT_MS),
            mounted: watch::Sender::new(true),
        });
        let follow = follow_map(Arc::downgrade(&file_system), map, file_system.mounted.subscribe());
        file_system.seams.spawn.spawn("client map", Box::pin(follow));
        Ok(file_system)
    }

    /// Looks at the root directory.
    pub async fn find_root(&self) -> FsResult<()> {
        self.get_attributes(InodeNumber::ROOT, None).await.map(drop)
    }

    /// The connection to the MDT of the root directory.
    pub fn root_import(&self) -> FsResult<Import> {
        Ok(self.targets.mdt_of(InodeNumber::ROOT)?.import())
    }

    /// Ends all sessions. Files still open are closed by the servers. Targets that do not answer
    /// are waited for no longer than a connection tries to disconnect.
    pub async fn unmount(&self) {
        self.mounted.send_replace(false);
        let close = |target: &Arc<TargetConnection>| {
            let (target, import) = (target.clone(), target.import());
            async move {
                target.settle_closes(&self.seams).await;
                target.tell_last_accesses(&self.seams).await;
                import.close().await
            }
        };
        let targets = self.targets.end();
        crate::join::join_all(targets.iter().map(close).collect()).await;
        // There are no callbacks any more: what waits ends with an error.
        self.client_state.lock_waits.restarted(None);
        targets.iter().for_each(|target| target.repetitions().ask_again(None));
    }

    /// Name of the file system.
    pub fn fsname(&self) -> &str {
        &self.fsname
    }

    /// This mount's principal; another one after an eviction.
    pub fn client_id(&self) -> ClientId {
        self.client_state.client()
    }

    /// Name of this mount, as `lfs getname` shows it: `stria-` and 16 hexadecimal digits.
    pub fn name(&self) -> String {
        format!("{}-{}", self.fsname, self.client_id())
    }

    /// Counters of operations, for the parameter tree (`llite.*.stats`).
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Number of open files and directories.
    pub fn open_count(&self) -> usize {
        self.client_state.opens.len()
    }

    /// Every target with the state and statistics of its connection, MDTs by index, then OSTs by
    /// index: for the parameter tree (`mdc.*`, `osc.*`).
    pub fn connections(&self) -> Vec<(TargetRole, rpc::ImportState, ImportStatistics)> {
        let connection =
            |target: &Arc<TargetConnection>| (target.role(), target.import().state(), target.import().statistics());
        self.targets.all().iter().map(connection).collect()
    }

    /// Changes after each cluster map that was taken over, and at the unmount.
    pub fn target_updates(&self) -> watch::Receiver<()> {
        self.targets.updates()
    }

    /// Targets that work with this trace id waits for at this moment, with the states of their
    /// connections. Targets of this process are not among them.
    pub fn awaited(&self, trace: u64) -> Vec<(String, rpc::ImportState)> {
        let imports = self.targets.all().into_iter().map(|target| target.import());
        let awaited = imports.filter(|import| import.is_awaited(trace));
        awaited.map(|import| (import.target().to_owned(), import.state())).collect()
    }

    /// MDTs that other MDTs need for work with this trace id, and that it waits for.
    pub fn awaited_elsewhere(&self, trace: u64) -> Vec<MdtIndex> {
        self.awaited_mdts.of_trace(trace)
    }

    /// Waits before a request is sent again that depends on this MDT.
    pub(crate) async fn pause(&self, pauses: &mut Pauses, mdt: MdtIndex) {
        pauses.pause(&self.awaited_mdts, &*self.seams.clock, mdt).await;
    }

    /// Which job requests belong to.
    pub fn job_ids(&self) -> &JobIds {
        &self.job_ids
    }

    /// Changes how long operations wait for a silent target (the `timeout` parameter).
    pub fn set_timeout(&self, timeout: std::time::Duration) {
        self.targets.set_timeout(timeout);
    }

    /// Changes how many requests may be outstanding at one target (`max_rpcs_in_flight`).
    pub fn set_rpcs_in_flight_max(&self, role: TargetRole, count: u16) {
        self.targets.set_rpcs_in_flight_max(role, count);
    }

    /// How many requests may be outstanding at one target at present; `None` if it is not known.
    pub fn rpcs_in_flight_max(&self, role: TargetRole) -> Option<u16> {
        self.targets.rpcs_in_flight_max(role)
    }

    /// The most requests that may be outstanding at one target with whatever its tuner chooses;
    /// `None` if that is not known.
    pub fn rpcs_in_flight_limit(&self, role: TargetRole) -> Option<u16> {
        self.targets.rpcs_in_flight_limit(role)
    }

    /// Changes how many changes of names and attributes may be outstanding at one MDT
    /// (`max_mod_rpcs_in_flight`), at least 1.
    pub fn set_changes_in_flight_max(&self, mdt: MdtIndex, count: u16) {
        self.targets.set_changes_in_flight_max(mdt, count);
    }

    /// How many changes of names and attributes may be outstanding at one MDT; `None` if it is not
    /// known.
    pub fn changes_in_flight_max(&self, mdt: MdtIndex) -> Option<u16> {
        self.targets.changes_in_flight_max(mdt)
    }

    /// Changes how much data one request to a target reads or writes at most
    /// (`max_pages_per_rpc`): at least a block of 4096 bytes, at most what a message takes.
    pub fn set_bulk_bytes_max(&self, role: TargetRole, bytes: usize) {
        self.targets.set_bulk_bytes_max(role, bytes.clamp(BLOCK_BYTES as usize, BULK_BYTES_MAX));
    }

    /// How much data one request to a target reads or writes at most.
    pub fn bulk_bytes_max(&self, role: TargetRole) -> usize {
        self.targets.bulk_bytes_max(role)
    }

    /// The tuner of the requests to one target; `None` if that is not known.
    pub fn tuning(&self, role: TargetRole) -> Option<Arc<Tuning>> {
        self.targets.tuning(role)
    }

    /// Switches the tuner of the requests to one target on or off.
    pub fn set_tuner(&self, role: TargetRole, on: bool) {
        self.targets.set_tuner(role, on);
    }

    /// Switches the tuner of the requests to one target on; it begins with so many in flight.
    pub fn tune_from(&self, role: TargetRole, count: u16) {
        self.targets.tune_from(role, count);
    }

    /// A new name for an open.
    pub(crate) fn next_open_id(&self) -> OpenId {
        OpenId(self.next_open.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts an operation.
    pub(crate) fn count(&self, operation: Operation) {
        self.statistics.count(operation);
    }

    /// What the cache of the MDT that holds `inode` answers, if it can; see [`InodeCache`].
    pub(crate) fn cached<T>(
        &self,
        inode: InodeNumber,
        query: impl FnOnce(&mut InodeCache, &OpenTable) -> Option<T>,
    ) -> Option<T> {
        let target = self.targets.mdt_of(inode).ok()?;
        let found = target.serve(&self.seams, |cache| query(cache, &self.client_state.opens))?;
        self.count(Operation::CacheHits);
        Some(found)
    }

    /// The same of what is not an answer to an operation.
    pub(crate) fn look<T>(&self, inode: InodeNumber, query: impl FnOnce(&mut InodeCache) -> Option<T>) -> Option<T> {
        self.targets.mdt_of(inode).ok()?.serve(&self.seams, query)
    }

    /// Largest number of names whose attributes are prefetched at once, ahead of lookups.
    pub fn statahead_max(&self) -> u32 {
        self.statahead_max.load(Ordering::Relaxed)
    }

    /// Changes that (`statahead_max`); 0: nothing is asked for ahead.
    pub fn set_statahead_max(&self, names: u32) {
        self.statahead_max.store(names, Ordering::Relaxed);
    }

    /// How many milliseconds a close that nobody depends on waits for a request that takes it
    /// along.
    pub fn close_delay_ms(&self) -> u32 {
        self.close_delay_ms.load(Ordering::Relaxed)
    }

    /// Changes that (`close_delay_ms`); 0: each close is a request of its own, at once.
    pub fn set_close_delay_ms(&self, delay_ms: u32) {
        self.close_delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// The same, for a close at this moment.
    pub(crate) fn close_delay(&self) -> Duration {
        let delay_ms = if *self.mounted.borrow() { self.close_delay_ms() } else { 0 };
        Duration::from_millis(delay_ms.into())
    }

    /// Locks under which attributes and names of an MDT are cached, and how many are kept at most.
    pub fn cached_locks(&self, mdt: MdtIndex) -> FsResult<(usize, usize)> {
        let target = self.targets.mdt(mdt)?;
        Ok((target.cache().lock_count(), target.cache().locks_max()))
    }

    /// Inodes of an MDT on which this client has such locks.
    pub fn locked_inodes(&self, mdt: MdtIndex) -> FsResult<usize> {
        Ok(self.targets.mdt(mdt)?.cache().inode_count())
    }

    /// The locks under which this client serves from its cache of an MDT at this moment, and the id
    /// by which the MDT knows it; `None`: it would serve nothing. For simulations.
    pub fn served_locks(&self, mdt: MdtIndex) -> Option<(ClientId, Vec<ServedLock>)> {
        let target = self.targets.mdt(mdt).ok().filter(|target| target.is_active())?;
        let locks = |cache: &InodeCache, connection: ConnectionId| (connection.0, cache.served_locks(connection));
        target.cache().look(&target.import(), &*self.seams.clock, locks)
    }

    /// What it would serve; the same.
    pub fn served(&self, mdt: MdtIndex) -> Option<Served> {
        let target = self.targets.mdt(mdt).ok().filter(|target| target.is_active())?;
        let opens = &self.client_state.opens;
        let look = |cache: &InodeCache, connection| cache.served(connection, |inode| opens.is_written(inode));
        target.cache().look(&target.import(), &*self.seams.clock, look)
    }

    /// Gives all of them back (`lru_size=clear`).
    pub fn clear_cached_locks(&self, mdt: MdtIndex) -> FsResult<()> {
        self.targets.mdt(mdt)?.clear_locks(&self.seams);
        Ok(())
    }

    /// Changes how many are kept at most (`lru_size`); 0: nothing is cached.
    pub fn set_cached_locks_max(&self, mdt: MdtIndex, locks_max: usize) -> FsResult<()> {
        let target = self.targets.mdt(mdt)?;
        target.set_locks_max(&self.seams, locks_max);
        Ok(())
    }

    /// How long locks of an MDT that are not used are kept (`lru_max_age`).
    pub fn lock_age_max(&self, mdt: MdtIndex) -> FsResult<Duration> {
        Ok(self.targets.mdt(mdt)?.cache().lock_age_max())
    }

    /// Changes that; takes effect within ten seconds.
    pub fn set_lock_age_max(&self, mdt: MdtIndex, age_max: Duration) -> FsResult<()> {
        self.targets.mdt(mdt)?.cache().set_lock_age_max(age_max);
        Ok(())
    }

    /// Memory in bytes that cached data of small files on an MDT take, and may take at most.
    pub fn cached_small_bytes(&self, mdt: MdtIndex) -> FsResult<(u64, u64)> {
        Ok(self.targets.mdt(mdt)?.cache().small_files_usage())
    }

    /// Changes how much it may be (`max_cached_small_mb`); 0: no data are cached.
    pub fn set_cached_small_bytes_max(&self, mdt: MdtIndex, bytes_max: u64) -> FsResult<()> {
        self.targets.mdt(mdt)?.cache().set_small_files_bytes_max(bytes_max);
        Ok(())
    }

    /// Whether names and attributes of an MDT are cached at all.
    pub fn is_caching(&self, mdt: MdtIndex) -> bool {
        self.targets.mdt(mdt).is_ok_and(|target| target.cache().locks_max() > 0)
    }

    /// Sets the cache above this client: at most one, before it is given anything to keep.
    pub fn set_upper_cache(&self, cache: Weak<dyn UpperCache>) {
        self.client_state.above.set(cache);
    }

    /// The span of an open directory's listing at this moment, if it may be served above this
    /// client without asking: reading the directory changes no access time. To be asked after the
    /// upper cache has noted that it may keep something.
    pub fn listing_span(&self, directory: &OpenFile) -> Option<LockSpan> {
        let changes_access_time = !directory.flags().has(open_flag::NO_ACCESS_TIME);
        let wall = changes_access_time.then(|| self.seams.clock.wall());
        let inode = directory.inode();
        self.span(inode, |cache| {
            let is_unseen = wall.is_none_or(|wall| cache.is_read_unseen(inode, wall));
            cache.span(inode).filter(|_| is_unseen)
        })
    }

    /// A span that is looked for in the cache.
    pub(crate) fn span(
        &self,
        inode: InodeNumber,
        query: impl FnOnce(&mut InodeCache) -> Option<SpanNumber>,
    ) -> Option<LockSpan> {
        let found = self.targets.mdt_of(inode).ok()?.serve_for(&self.seams, query);
        found.map(|(number, validity)| LockSpan { number, validity })
    }

    /// Waits until requests to the MDT of an inode can go out, before the first one of an operation
    /// that then must not stop. `Interrupted` if the caller is gone by then: what a killed process
    /// had not begun must not undo what others did after its end.
    pub(crate) async fn begin(&self, inode: InodeNumber, abandoned: &Abandoned) -> FsResult<()> {
        self.targets.mdt_of(inode)?.connected().await.map_err(stale_if_evicted)?;
        if abandoned.is_set() { Err(FsError::Interrupted) } else { Ok(()) }
    }

    /// Sends a request to the MDT that holds `inode`; again while it depends on another MDT that is
    /// not there, as long as the caller waits. If the session is lost meanwhile, the error is
    /// `Stale`. With one MDT, the answer to the first request for a name in a striped directory is
    /// the caller's to understand: see [`FileSystem::call_for_name`].
    pub(crate) async fn call<'a>(
        &self,
        inode: InodeNumber,
        question: impl Into<Question<'a, MdtRequest>>,
    ) -> FsResult<Answered<MdtReply>> {
        match self.may_be_striped() {
            true => self.call_placed(inode, question.into(), &mut NamePlaces::default()).await,
            false => {
                let outcome = self.call_once(inode, question.into()).await;
                self.learns_map(&outcome, None)?;
                outcome
            }
        }
        .map_err(stale_if_evicted)
    }

    /// The same with what is known of where its names are, and comes out. Errors as those of
    /// [`FileSystem::call_once`].
    pub(crate) fn call_placed<'a>(
        &'a self,
        inode: InodeNumber,
        question: Question<'a, MdtRequest>,
        places: &'a mut NamePlaces,
    ) -> BoxFuture<'a, FsResult<Answered<MdtReply>>> {
        // Rare, and would make every call's future larger.
        Box::pin(self.call_repeatedly(inode, question, places, None))
    }

    /// As [`FileSystem::call`]; a wait for another MDT ends with `Interrupted` when that is raised.
    pub(crate) async fn call_unless<'a>(
        &'a self,
        inode: InodeNumber,
        question: Question<'a, MdtRequest>,
        interruption: &'a Interruption,
    ) -> FsResult<Answered<MdtReply>> {
        if !self.targets.has_several_mdts() {
            return self.call(inode, question).await;
        }
        let places = &mut NamePlaces::default();
        Box::pin(self.call_repeatedly(inode, question, places, Some(interruption))).await.map_err(stale_if_evicted)
    }

    async fn call_repeatedly(
        &self,
        inode: InodeNumber,
        mut question: Question<'_, MdtRequest>,
        places: &mut NamePlaces,
        interruption: Option<&Interruption>,
    ) -> FsResult<Answered<MdtReply>> {
        let (mut pauses, mut turns) = (Pauses::default(), Turns::default());
        loop {
            let again = Question::with_bulk(question.request.clone(), question.bulk.clone());
            let mut again = Question { late_outcome: question.late_outcome.as_deref_mut(), ..again };
            // Which shards it reads is up to the caller.
            let reads = matches!(&question.request, MdtRequest::ReadDirectory(_));
            let learned = (!reads).then(|| self.directory_maps.learned());
            let at = self.directory_maps.place_request(inode, &mut again.request, places);
            let outcome = self.call_once(at, again).await;
            if let Ok(Answered { reply: MdtReply::Striped(map), .. }) = &outcome
                && self.turns(map, places, &mut turns).await?
            {
                continue;
            }
            if self.learns_map(&outcome, learned)? {
                continue;
            }
            if lacks_shard(&outcome, at) && places.has_ended(&self.directory_maps, inode, at) {
                continue;
            }
            match awaited_mdt(&outcome) {
                Some(mdt) => {
                    let pause = self.pause(&mut pauses, mdt);
                    match interruption {
                        Some(interruption) => interruption.ends(pause).await?,
                        None => pause.await,
                    }
                }
                None => return outcome,
            }
        }
    }

    /// As [`FileSystem::call`], once. If the session is lost, the error is `Evicted`: the request
    /// may have been executed. `Stale` says that it was not.
    pub(crate) async fn call_once(
        &self,
        inode: InodeNumber,
        question: Question<'_, MdtRequest>,
    ) -> FsResult<Answered<MdtReply>> {
        self.ask_target(&self.targets.mdt_of(inode)?, question).await
    }

    async fn ask_target(
        &self,
        target: &Arc<TargetConnection>,
        question: Question<'_, MdtRequest>,
    ) -> FsResult<Answered<MdtReply>> {
        let inodes = depends_on_opens(&question.request);
        target.make_known(&self.seams.spawn, inodes).await?;
        target.tell_accesses_first(&self.seams.spawn, &question.request).await?;
        let answered = target.ask_mdt(&self.seams, &self.client_state.opens, question).await?;
        if let Some(mdt) = named_mdts(&answered.reply).find(|mdt| self.targets.mdt(*mdt).is_err()) {
            // Rare, and would make every call's future larger.
            Box::pin(self.learn_of_mdts(mdt, &answered.reply)).await;
        }
        Ok(answered)
    }

    /// A request about inodes of other MDTs, to this one. Waits for MDTs that it awaits.
    pub(crate) async fn call_mdt(&self, mdt: MdtIndex, request: MdtRequest) -> FsResult<Answered<MdtReply>> {
        let mut pauses = Pauses::default();
        loop {
            let outcome = self.ask_target(&self.targets.mdt(mdt)?, request.clone().into()).await;
            match awaited_mdt(&outcome) {
                Some(mdt) => self.pause(&mut pauses, mdt).await,
                None => return outcome.map_err(stale_if_evicted),
            }
        }
    }

    /// Waits until the MDTs are known that an answer names. If that takes too long, what is asked
    /// of them fails; what was done has happened.
    async fn learn_of_mdts(&self, unknown: MdtIndex, reply: &MdtReply) {
        tracing::info!(%unknown, "waiting for the cluster map that has this metadata target");
        for mdt in named_mdts(reply) {
            if let Err(error) = self.targets.get_named(TargetRole::Mdt(mdt)).await {
                tracing::warn!(%mdt, %error, "no cluster map has this metadata target");
                return;
            }
        }
    }
}

/// The cluster map as soon as it has this target; `None` if its source is gone.
async fn map_with(map: &mut watch::Receiver<Arc<ClusterMap>>, role: TargetRole) -> Option<Arc<ClusterMap>> {
    let has_role = |map: &Arc<ClusterMap>| map.targets.iter().any(|target| target.role == role);
    let found = map.wait_for(has_role).await.ok()?;
    Some(Arc::clone(&found))
}

/// Keeps the targets as the newest cluster map says, until the unmount.
async fn follow_map(
    file_system: Weak<FileSystem>,
    mut map: watch::Receiver<Arc<ClusterMap>>,
    mut mounted: watch::Receiver<bool>,
) {
    loop {
        let newest = map.borrow_and_update().clone();
        match file_system.upgrade() {
            Some(file_system) => file_system.targets.update(newest),
            None => return,
        }
        tokio::select! {
            biased;
            _ = mounted.wait_for(|mounted| !mounted) => return,
            changed = map.changed() => if changed.is_err() { return },
        }
    }
}
