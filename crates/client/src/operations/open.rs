//! Opening, with or without a creation.
//!
//! Every open at the MDT is closed there: an open whose caller is gone, whose truncation fails or
//! whose handle is dropped is closed in the background, and so is an open that the MDT may have
//! made for a caller that has given up.

use std::sync::Arc;

use rpc::{
    Answered, LateOutcome, Question,
    message::{
        MdtReply, MdtRequest,
        mdt::{Close, Create, CreateUnnamed, Created, Open, OpenFlags, OpenId, Opened, open_flag},
    },
};
use rt::BoxFuture;
use types::{Attributes, Credentials, DirectoryMap, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, ProtocolError};

use crate::{
    CreatedFile, FileSystem, Interruption, OpenFile,
    cancellation::finish::finish,
    locks::exclusive::Turn,
    name_places::NamePlaces,
    open_state::registered_open::AtMdt,
    operations::{
        moving_names::{Turns, lacks_shard},
        namespace::LOOKUPS,
        truncate,
    },
    statistics::Operation,
    targets::{
        awaited_mdts::{Pauses, awaited_mdt},
        connection::{TargetConnection, stale_if_evicted, unexpected},
    },
};

/// The state before an open was requested; see [`crate::targets::recovery`].
#[derive(Clone, Copy)]
pub(crate) struct Before {
    incarnation: u64,
    restarts: u64,
    /// The last loss of uncommitted changes at the MDT.
    lost: u64,
}

impl Before {
    /// Incarnation, and the last loss.
    pub fn incarnation(&self) -> (u64, u64) {
        (self.incarnation, self.lost)
    }

    /// Whether the MDT has restarted since.
    pub fn is_current(&self, target: &TargetConnection) -> bool {
        target.restarts() == self.restarts
    }
}

/// What a creation has come to.
enum Found {
    /// A file on the MDT of its name, created or not, and open.
    Here(CreatedFile),
    /// The name leads to another MDT.
    Remote(InodeNumber),
    /// The directory is striped, and has this map; without shards: the name has not moved there.
    Striped(DirectoryMap),
    /// The shard that was asked does not exist.
    NoShard,
}

impl FileSystem {
    /// Creates and opens a regular file, or opens the one that exists unless `flags` has EXCLUSIVE
    /// (O_CREAT).
    pub async fn create_open(
        self: &Arc<Self>,
        credentials: &Credentials,
        parent: InodeNumber,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        let interruption = Interruption::default();
        self.create_open_unless(credentials, parent, name, (mode, umask), flags, interruption).await
    }

    /// As [`FileSystem::create_open`], with `mode` and `umask`; a wait for others ends with
    /// `Interrupted` when the interruption is raised.
    pub async fn create_open_unless(
        self: &Arc<Self>,
        credentials: &Credentials,
        parent: InodeNumber,
        name: &[u8],
        (mode, umask): (u32, u32),
        flags: OpenFlags,
        interruption: Interruption,
    ) -> FsResult<CreatedFile> {
        let (mut places, mut turns, mut maps) = (NamePlaces::default(), Turns::default(), 0);
        for _ in 0..LOOKUPS {
            let remote = loop {
                let id = self.next_open_id();
                let at = places.of_new(&self.directory_maps, parent, name);
                let create = Create {
                    parent: at,
                    name: name.to_vec(),
                    kind: NodeKind::Regular,
                    mode,
                    umask,
                    layout: None,
                    open: Some((id, flags)),
                };
                let request = MdtRequest::Create(credentials.clone(), create);
                match self.finish_create(at, request, (id, flags), interruption.clone()).await? {
                    Found::Here(created) => return Ok(created),
                    Found::NoShard if places.has_ended(&self.directory_maps, parent, at) => {}
                    Found::NoShard => return Err(FsError::Stale),
                    Found::Striped(map) if interruption.ends(self.turns(&map, &mut places, &mut turns)).await?? => {}
                    Found::Striped(_) if maps < LOOKUPS => maps += 1,
                    Found::Striped(_) => return Err(FsError::Stale),
                    Found::Remote(remote) => break remote,
                }
            };
            match self.open_unless(credentials, remote, flags, interruption.clone()).await {
                // It was removed after its name was looked up.
                Err(FsError::Stale) => {}
                file => {
                    let file = file?;
                    let attributes = self.get_attributes(remote, Some(&file)).await?;
                    return Ok(CreatedFile { attributes, file, created: false });
                }
            }
        }
        Err(FsError::Stale)
    }

    /// Creates an unnamed file and opens it (O_TMPFILE); `link` can name it unless `flags` has
    /// EXCLUSIVE.
    pub async fn create_unnamed(
        self: &Arc<Self>,
        credentials: &Credentials,
        parent: InodeNumber,
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        let id = self.next_open_id();
        let create = CreateUnnamed { parent, mode, umask, open: (id, flags) };
        let request = MdtRequest::CreateUnnamed(credentials.clone(), create);
        match self.finish_create(parent, request, (id, flags), Interruption::default()).await? {
            Found::Here(created) => Ok(created),
            Found::Striped(_) | Found::NoShard => Err(FsError::Stale),
            Found::Remote(remote) => Err(unexpected(MdtReply::Remote(remote))),
        }
    }

    /// The same on an MDT on which the directory is, or has a shard; else `NoDeviceOrAddress`.
    pub async fn create_unnamed_on(
        self: &Arc<Self>,
        credentials: &Credentials,
        (parent, mdt): (InodeNumber, MdtIndex),
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        let part = self.part_on(parent, mdt).await?.ok_or(FsError::NoDeviceOrAddress)?;
        match self.create_unnamed(credentials, part, mode, umask, flags).await {
            Err(FsError::Stale) if part.is_shard() => {
                // It has ended, or the session has: nothing has a name.
                self.directory_maps.forget_shard(parent, part);
                let part = self.part_on(parent, mdt).await?.ok_or(FsError::NoDeviceOrAddress)?;
                self.create_unnamed(credentials, part, mode, umask, flags).await
            }
            created => created,
        }
    }

    /// The same, and where that gives `NoDeviceOrAddress`, beside a file on that MDT, for one that
    /// is to stay without a name. The caller may write to that file, and come to it.
    pub async fn create_unnamed_on_or_beside(
        self: &Arc<Self>,
        credentials: &Credentials,
        (parent, mdt): (InodeNumber, MdtIndex),
        beside: Option<InodeNumber>,
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        match (self.create_unnamed_on(credentials, (parent, mdt), mode, umask, flags).await, beside) {
            (Err(FsError::NoDeviceOrAddress), Some(file)) => {
                // It is named by its number.
                self.require_path(credentials, file).await?;
                self.create_unnamed_beside(credentials, file, mode, umask, flags).await
            }
            (created, _) => created,
        }
    }

    /// The same on the MDT of a file, whatever directories are there. `NoDeviceOrAddress`: the MDT
    /// is of an earlier release.
    pub(crate) async fn create_unnamed_beside(
        self: &Arc<Self>,
        credentials: &Credentials,
        file: InodeNumber,
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        match self.create_unnamed(credentials, file, mode, umask, flags).await {
            Err(FsError::NotDirectory) => Err(FsError::NoDeviceOrAddress),
            created => created,
        }
    }

    async fn finish_create(
        self: &Arc<Self>,
        parent: InodeNumber,
        request: MdtRequest,
        (id, flags): (OpenId, OpenFlags),
        interruption: Interruption,
    ) -> FsResult<Found> {
        self.count(Operation::Open);
        let this = self.clone();
        finish(&self.seams.spawn, move |abandoned| async move {
            this.begin(parent, &abandoned).await?;
            let interruption = interruption.or_abandoned(abandoned);
            let before = this.before_open(parent)?;
            let given_up = this.given_up(parent)?;
            let mut late_outcome = None;
            let reply = match this.ask_open_unless(parent, request, &interruption, &mut late_outcome).await {
                Ok(answered) => answered.reply,
                outcome if lacks_shard(&outcome, parent) => return Ok(Found::NoShard),
                Err(error) => {
                    if let Some(late_outcome) = late_outcome {
                        given_up.open(late_outcome, (parent, id), flags.has(open_flag::TRUNCATE), None);
                    }
                    return Err(stale_if_evicted(error));
                }
            };
            let Created { created, opened, .. } = match reply {
                MdtReply::Created(created) => *created,
                MdtReply::Remote(remote) => return Ok(Found::Remote(remote)),
                MdtReply::Striped(map) => return Ok(Found::Striped(map)),
                reply => return Err(unexpected(reply)),
            };
            let opened = opened.ok_or(ProtocolError::NotOpened)?;
            let file = this.opened((id, flags), &opened, created, before, None).await?;
            let attributes = this.opened_attributes(&opened, created).await?;
            Ok(Found::Here(CreatedFile { attributes, file, created }))
        })
        .await
    }

    /// Opens a file or directory.
    pub async fn open(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        flags: OpenFlags,
    ) -> FsResult<Arc<OpenFile>> {
        self.open_unless(credentials, inode, flags, Interruption::default()).await
    }

    /// As [`FileSystem::open`]; a wait for others ends with `Interrupted` when the interruption is
    /// raised.
    pub async fn open_unless(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        flags: OpenFlags,
        interruption: Interruption,
    ) -> FsResult<Arc<OpenFile>> {
        self.count(Operation::Open);
        if let Some(outcome) = self.open_unasked(credentials, inode, flags).await {
            return outcome;
        }
        let id = self.next_open_id();
        let (this, credentials) = (self.clone(), credentials.clone());
        finish(&self.seams.spawn, move |abandoned| async move {
            this.begin(inode, &abandoned).await?;
            let interruption = interruption.or_abandoned(abandoned);
            let turn = match flags.has(open_flag::TRUNCATE) {
                true => Some(this.take_turn(inode, &interruption).await?),
                false => None,
            };
            let mut asked = this.asked_flags(flags);
            loop {
                let before = this.before_open(inode)?;
                let given_up = this.given_up(inode)?;
                let request = MdtRequest::Open(credentials.clone(), Open { inode, open: id, flags: asked });
                let mut late_outcome = None;
                match this.ask_open_unless(inode, request, &interruption, &mut late_outcome).await {
                    Ok(Answered { reply: MdtReply::Opened(opened), extension, .. }) if extension.unregistered => {
                        match this.opened_unregistered((id, flags), &opened, &extension, before).await {
                            Some(outcome) => return outcome,
                            None => asked = flags,
                        }
                    }
                    Ok(Answered { reply: MdtReply::Opened(opened), .. }) => {
                        return this.opened((id, flags), &opened, false, before, turn).await;
                    }
                    Ok(Answered { reply, .. }) => return Err(unexpected(reply)),
                    Err(error) => {
                        if let Some(late_outcome) = late_outcome {
                            given_up.open(late_outcome, (inode, id), flags.has(open_flag::TRUNCATE), turn);
                        } else if error == FsError::Interrupted && turn.is_some() {
                            // It may have waited for the exclusive data lock: others may have its
                            // place.
                            this.decline_exclusive(inode, turn).await;
                        }
                        return Err(stale_if_evicted(error));
                    }
                }
            }
        })
        .await
    }

    /// Sends an open, a creation, a change of layouts and so on, again as long as it has to wait:
    /// for a file's exclusive data lock or the end of a migration, or for an MDT that recovers or
    /// does not know the OSTs yet.
    pub(crate) async fn ask_open(&self, at: InodeNumber, request: MdtRequest) -> FsResult<MdtReply> {
        let asked = self.ask_until_ready(at, request.into(), &Interruption::default()).await;
        Ok(asked.map_err(stale_if_evicted)?.reply)
    }

    /// As [`FileSystem::ask_open`], until that is raised; `late_outcome` as in [`Question`].
    async fn ask_open_unless(
        &self,
        at: InodeNumber,
        request: MdtRequest,
        interruption: &Interruption,
        late_outcome: &mut Option<LateOutcome>,
    ) -> FsResult<Answered<MdtReply>> {
        let question = Question::with_late_outcome(request, late_outcome);
        self.ask_until_ready(at, question, interruption).await
    }

    /// Sends a request again, when the MDT calls back, as long as the answer is to wait, until that
    /// is raised. Errors as those of [`FileSystem::call_once`].
    pub(crate) fn ask_until_ready<'a>(
        &'a self,
        at: InodeNumber,
        question: Question<'a, MdtRequest>,
        interruption: &'a Interruption,
    ) -> BoxFuture<'a, FsResult<Answered<MdtReply>>> {
        Box::pin(self.ask_until_ready_inner(at, question, interruption))
    }

    async fn ask_until_ready_inner(
        &self,
        at: InodeNumber,
        mut question: Question<'_, MdtRequest>,
        interruption: &Interruption,
    ) -> FsResult<Answered<MdtReply>> {
        // A creation may wait for a file that has the name already.
        let names = matches!(question.request, MdtRequest::Create(..) | MdtRequest::Compound(_));
        let awaited = (!names).then_some(at);
        // What is opened along with it is noted for the MDT of `at`: the caller begins again with
        // the shard of a striped directory.
        let opens = matches!(&question.request, MdtRequest::Create(_, create) if create.open.is_some());
        let (mut pauses, mut places, mut turns) = (Pauses::default(), NamePlaces::default(), Turns::default());
        loop {
            let again = Question::with_bulk(question.request.clone(), question.bulk.clone());
            let mut again = Question { late_outcome: question.late_outcome.as_deref_mut(), ..again };
            let learned = (!opens).then(|| self.directory_maps.learned());
            let target = if opens { at } else { self.directory_maps.place_request(at, &mut again.request, &places) };
            // The MDT that answers calls back: in a striped directory not the one of `at`.
            let listening = self.targets.mdt_of(target)?.repetitions().listen(awaited);
            let outcome = self.call_once(target, again).await;
            if !opens
                && let Ok(Answered { reply: MdtReply::Striped(map), .. }) = &outcome
                && interruption.ends(self.turns(map, &mut places, &mut turns)).await??
            {
                continue;
            }
            if self.learns_map(&outcome, learned)? {
                continue;
            }
            if lacks_shard(&outcome, target) && places.has_ended(&self.directory_maps, at, target) {
                continue;
            }
            if let Some(mdt) = awaited_mdt(&outcome) {
                interruption.ends(self.pause(&mut pauses, mdt)).await?;
                continue;
            }
            let answered = outcome?;
            match answered.reply {
                MdtReply::Waiting => interruption.ends(listening.heard()).await?,
                _ => return Ok(answered),
            }
        }
    }

    /// What to remember before an open at the MDT of `inode`.
    pub(crate) fn before_open(&self, inode: InodeNumber) -> FsResult<Before> {
        let incarnation = self.client_state.opens.incarnation();
        let target = self.targets.mdt_of(inode)?;
        Ok(Before { incarnation, restarts: target.restarts(), lost: target.uncommitted().lost() })
    }

    /// Takes over an open that the MDT granted, and does what O_TRUNC leaves to the client: within
    /// `turn`, if it could be taken before.
    pub(crate) async fn opened(
        self: &Arc<Self>,
        (id, flags): (OpenId, OpenFlags),
        opened: &Opened,
        created: bool,
        before: Before,
        turn: Option<Turn>,
    ) -> FsResult<Arc<OpenFile>> {
        let inode = opened.entry.attributes.inode;
        let target = self.targets.mdt_of(inode)?;
        let current = || before.is_current(&target);
        let open = match self.client_state.opens.register(
            (id, flags),
            opened,
            created,
            AtMdt::Known,
            before.incarnation(),
            current,
        ) {
            Ok(open) => open,
            Err(error) => {
                let close = Close { inode, open: id, update: None, flock_owner: None };
                if let Err(error) = self.call(inode, MdtRequest::Close(close)).await {
                    tracing::debug!(%error, "cannot close an open from before the eviction");
                }
                if opened.truncate {
                    self.decline_exclusive(inode, turn).await;
                }
                return Err(error);
            }
        };
        let file = Arc::new(OpenFile::new(open, &opened.entry.attributes, id, flags, Arc::downgrade(self)));
        if !current()
            && let Err(error) = self.open_again(&file, &target).await
        {
            if opened.truncate {
                self.decline_exclusive(inode, turn).await;
            }
            return Err(error);
        }
        if opened.truncate {
            self.empty(&file, opened.epoch, before.restarts, turn).await?;
        }
        Ok(file)
    }

    /// The MDT restarted while it granted an open: whether the new start knows of it is unknown.
    /// Permission was checked.
    pub(super) async fn open_again(&self, file: &OpenFile, target: &TargetConnection) -> FsResult<()> {
        let done = open_flag::TRUNCATE | open_flag::EXCLUSIVE | open_flag::EXECUTE;
        let flags = OpenFlags(file.flags().0 & !done);
        let open = Open { inode: file.inode(), open: file.id(), flags };
        loop {
            let restarts = target.restarts();
            let opened = match self.ask_open(file.inode(), MdtRequest::Open(Credentials::root(), open.clone())).await? {
                MdtReply::Opened(opened) => opened,
                reply => return Err(unexpected(reply)),
            };
            file.open.state().tracker.forget();
            let Some(layout) = &opened.layout else { return Ok(()) };
            if file.open.adopt(layout, || target.restarts() == restarts)?.is_some() {
                return Ok(());
            }
        }
    }

    /// O_TRUNC: the MDT holds the exclusive data lock for this open until all objects are empty.
    async fn empty(&self, file: &OpenFile, epoch: u64, restarts: u64, turn: Option<Turn>) -> FsResult<()> {
        let (inode, open) = (file.inode(), &*file.open);
        let section = self.adopt_exclusive(file, epoch, restarts, turn).await?;
        // Under the lock: nothing is added to the layout that would have to be emptied too.
        let outcome = match self.layout_as_of_now(open).await {
            Ok(layout) => self.truncate_objects(inode, Some(open), &layout, 0, &section).await,
            Err(error) => Err(error),
        };
        let update = truncate::report(Some(open), section.epoch, 0, &outcome);
        self.end_exclusive(section, update).await;
        outcome.map(|_| ())
    }

    /// Attributes after an open.
    async fn opened_attributes(&self, opened: &Opened, created: bool) -> FsResult<Attributes> {
        let attributes = opened.entry.attributes;
        if created || opened.truncate {
            return Ok(Attributes { size: 0, blocks: 0, ..attributes });
        }
        self.complete(&opened.entry).await
    }
}
