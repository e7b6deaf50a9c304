//! Operations on names and attributes: one request to the MDT that holds the directory or inode.
//! Sizes of files that may be open for writing are completed from their objects.

use std::sync::Arc;

use layout::Layout;
use rpc::{
    Question,
    message::{
        MdtReply, MdtRequest,
        mdt::{Create, Entry, Link, Lookup, Rename, RenameMode, SetXattr, SourceData, SyncFirst, Unlink, XattrMode},
        mdt_peer::{Decided, MakeDirectory},
    },
};
use types::{
    Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, MdtIndex, SeenChanges, SeenProof, SetAttributes,
    mode,
};

use crate::{
    FileSystem, NewNode, OpenFile,
    cache::cached_inode::CAPABILITIES_NAME,
    directory_maps::merged,
    name_places::NamePlaces,
    open_state::open_inode::verified,
    statistics::Operation,
    targets::connection::{done, entry, stale_if_evicted, unexpected},
};

/// How often a name is looked up that leads to another MDT, where the inode is gone each time.
pub(crate) const LOOKUPS: usize = 16;

impl FileSystem {
    /// Attributes of a name. `.` and `..` are understood.
    pub async fn lookup(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<Attributes> {
        self.count(Operation::Lookup);
        let place = self.directory_maps.place(parent, name);
        let known = || {
            self.cached(place, |cache, opens| {
                let found = cache.lookup(credentials, (place, name), |inode| opens.is_written(inode))?;
                Some(found.map(|found| (found, cache.is_striped(&found))))
            })
        };
        if let Some(found) = known() {
            return self.with_shards(found?).await;
        }
        // Boxed: what is known is found without the memory that a request needs.
        Box::pin(async move {
            if let Some(found) = self.lookup_elsewhere(credentials, place, name).await {
                return found;
            }
            if self.look_ahead(place, name).await?
                && let Some(found) = known()
            {
                return self.with_shards(found?).await;
            }
            self.ask_for_name(credentials, parent, name).await
        })
        .await
    }

    /// The same, by requests.
    async fn ask_for_name(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<Attributes> {
        let lookup = Lookup { parent, name: name.to_vec() };
        for _ in 0..LOOKUPS {
            let request = || MdtRequest::Lookup(credentials.clone(), lookup.clone());
            let remote = match self.call_for_name(parent, request).await?.reply {
                MdtReply::Entry(entry) => {
                    return self.with_shards((self.complete(&entry).await?, entry.map_version > 0)).await;
                }
                MdtReply::Remote(remote) => remote,
                reply => return Err(unexpected(reply)),
            };
            if remote.is_shard() {
                // Of `..`: its MDT knows the directory of which it is a shard, unless it has ended.
                match Box::pin(self.lookup(credentials, remote, name)).await {
                    Err(FsError::Stale) => continue,
                    found => return found,
                }
            }
            if let Some(found) = self.attributes_elsewhere(remote).await {
                return found;
            }
        }
        Err(FsError::Stale)
    }

    /// The same without a request to the MDT of the name, if it is known to lead to another one.
    async fn lookup_elsewhere(
        &self,
        credentials: &Credentials,
        parent: InodeNumber,
        name: &[u8],
    ) -> Option<FsResult<Attributes>> {
        let remote = self.cached(parent, |cache, _| cache.lookup_elsewhere(credentials, parent, name))?;
        self.attributes_elsewhere(remote).await
    }

    /// Of what a name on another MDT leads to; `None`: it was removed after that was looked up.
    async fn attributes_elsewhere(&self, remote: InodeNumber) -> Option<FsResult<Attributes>> {
        match self.get_attributes(remote, None).await {
            Err(FsError::Stale) => None,
            Ok(attributes) if attributes.links == 0 => None,
            found => Some(found),
        }
    }

    /// Attributes of an inode; `Stale` if it was reached through an open file whose session is
    /// lost.
    pub async fn get_attributes(&self, inode: InodeNumber, file: Option<&OpenFile>) -> FsResult<Attributes> {
        self.get_attributes_named(inode, file, || None).await
    }

    /// The same of an inode that a program has found by this directory and name: those of the names
    /// that follow may be asked for with it.
    pub async fn get_attributes_named(
        &self,
        inode: InodeNumber,
        file: Option<&OpenFile>,
        name: impl FnOnce() -> Option<(InodeNumber, Vec<u8>)>,
    ) -> FsResult<Attributes> {
        self.count(Operation::Getattr);
        file.map_or(Ok(()), |file| file.open.check())?;
        let known = || {
            self.cached(inode, |cache, opens| {
                let found = cache.attributes(inode, |inode| opens.is_written(inode))?;
                Some((found, cache.is_striped(&found)))
            })
        };
        if let Some(known) = known() {
            return self.with_shards(known).await;
        }
        if let Some(own) = self.own_attributes(inode) {
            return Ok(own);
        }
        let name = name();
        // Boxed: what is known is found without the memory that a request needs.
        Box::pin(async move {
            if let Some((parent, name)) = name
                && self.look_ahead(self.directory_maps.place(parent, &name), &name).await?
                && let Some(known) = known()
            {
                return self.with_shards(known).await;
            }
            let begun = self.changes_begun(inode);
            let entry = self.call(inode, MdtRequest::GetAttributes(inode)).await.and_then(entry)?;
            self.with_shards((self.complete_since(&entry, begun).await?, entry.map_version > 0)).await
        })
        .await
    }

    /// Changes attributes other than the size.
    pub async fn set_attributes(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        changes: SetAttributes,
        file: Option<&OpenFile>,
    ) -> FsResult<Attributes> {
        self.count(Operation::Setattr);
        file.map_or(Ok(()), |file| file.open.check())?;
        let begun = self.changes_begun(inode);
        let entry = self.set_attributes_seen(credentials, inode, changes).await?;
        if let Some(open) = self.client_state.opens.find(inode) {
            let mut state = open.state();
            let set_id = entry.attributes.mode & (mode::S_ISUID | mode::S_ISGID) != 0;
            state.set_id = set_id && entry.attributes.kind == FileKind::Regular;
        }
        if entry.map_version > 0
            && let Some(map) = Box::pin(self.directory_map(inode)).await?
        {
            self.directory_maps.changed(&map, &changes, &entry.attributes);
        }
        self.with_shards((self.complete_since(&entry, begun).await?, entry.map_version > 0)).await
    }

    /// One request, with what the objects say if a time that is set must account for it.
    async fn set_attributes_seen(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        mut changes: SetAttributes,
    ) -> FsResult<Entry> {
        changes.seen = match (changes.mtime, self.client_state.opens.find(inode)) {
            (Some(_), Some(open)) => open.state().tracker.seen(),
            _ => None,
        };
        loop {
            let request = MdtRequest::SetAttributes(credentials.clone(), inode, changes);
            let layout = match self.call(inode, request).await?.reply {
                MdtReply::Entry(entry) => return Ok(entry),
                MdtReply::AskObjects(layout) => layout,
                reply => return Err(unexpected(reply)),
            };
            let found = self.glimpse(inode, verified(&layout)?).await?.changes;
            let proof = SeenProof::Asked { generation: layout.generation };
            changes.seen = Some(SeenChanges { changes: found, proof });
        }
    }

    /// access(2): `mask` of 4 read, 2 write, 1 execute.
    pub async fn access(&self, credentials: &Credentials, inode: InodeNumber, mask: u32) -> FsResult<()> {
        self.count(Operation::Access);
        if let Some(decided) = self.cached(inode, |cache, _| cache.access(credentials, inode, mask)) {
            return decided;
        }
        self.call(inode, MdtRequest::Access(credentials.clone(), inode, mask)).await.and_then(done)
    }

    /// Creates a node of any kind (mknod, mkdir, symlink).
    pub async fn create(&self, credentials: &Credentials, node: NewNode) -> FsResult<Attributes> {
        self.count(match node.kind.file_kind() {
            FileKind::Directory => Operation::Mkdir,
            FileKind::Symlink => Operation::Symlink,
            _ => Operation::Mknod,
        });
        let NewNode { parent, name, kind, mode, umask, layout } = node;
        let create = Create { parent, name, kind, mode, umask, layout, open: None };
        match self.ask_open(parent, MdtRequest::Create(credentials.clone(), create)).await? {
            MdtReply::Created(created) => {
                // A directory may be striped by the default of the one above.
                if let Err(error) = self.note_striped(&created.entry).await {
                    tracing::debug!(%error, "the stripes of a new directory are asked for when they are needed");
                }
                self.complete(&created.entry).await
            }
            // On other MDTs, by that default.
            MdtReply::Decided(decided) => self.decided(*decided, None).await,
            // The MDT is older.
            MdtReply::Remote(inode) => self.get_attributes(inode, None).await,
            reply => Err(unexpected(reply)),
        }
    }

    /// Attributes of what was decided. Its MDT is not asked: that it does not answer, or that
    /// somebody has removed it since, is no failure of what has happened. `begun`: see
    /// [`FileSystem::complete_since`].
    async fn decided(&self, decided: Decided, begun: Option<u64>) -> FsResult<Attributes> {
        let Decided { entry, map } = decided;
        let Some(map) = map else { return self.complete_since(&entry, begun).await };
        // A new one, as its shards are.
        let shards: Vec<_> = map.shards.iter().map(|shard| Attributes { inode: *shard, ..entry.attributes }).collect();
        self.directory_maps.learn(map)?;
        shards.iter().for_each(|shard| self.directory_maps.saw(*shard));
        Ok(merged(entry.attributes, &shards))
    }

    /// Makes a directory on MDTs of the caller's choice.
    pub async fn make_directory(&self, credentials: &Credentials, make: MakeDirectory) -> FsResult<InodeNumber> {
        self.count(Operation::Mkdir);
        let parent = make.parent;
        // `NoDevice` if there is no such MDT.
        for mdt in make.stripes.mdts.iter().chain([&make.mdt]) {
            self.targets.mdt(*mdt)?;
        }
        if make.stripes.is_overstriped() {
            let of_name = self.directory_maps.place(parent, &make.name).mdt();
            self.can_overstripe(make.stripes.mdts.iter().copied().chain([make.mdt, of_name]))?;
        }
        let request = || MdtRequest::MakeDirectory(credentials.clone(), make.clone());
        match self.call_for_name(parent, request).await?.reply {
            MdtReply::Created(created) => Ok(created.entry.attributes.inode),
            reply => Err(unexpected(reply)),
        }
    }

    /// Moves an inode to another MDT, where it gets another number (root only). `Busy` if it is
    /// open, on any client; `TooBig` if it has more names, or data on its MDT, than move at once.
    pub async fn move_inode(&self, credentials: &Credentials, inode: InodeNumber, to: MdtIndex) -> FsResult<()> {
        let request = MdtRequest::MoveInode(credentials.clone(), inode);
        self.call_mdt(to, request).await.and_then(done)
    }

    /// unlink(2).
    pub async fn unlink(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<()> {
        self.count(Operation::Unlink);
        let unlink = || Unlink { parent, name: name.to_vec(), directory: false };
        let request = || MdtRequest::Unlink(credentials.clone(), unlink());
        self.call_for_name(parent, request).await.and_then(done)
    }

    /// rmdir(2).
    pub async fn remove_directory(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<()> {
        self.count(Operation::Rmdir);
        let unlink = || Unlink { parent, name: name.to_vec(), directory: true };
        let request = || MdtRequest::Unlink(credentials.clone(), unlink());
        self.call_for_name(parent, request).await.and_then(done)
    }

    /// renameat2(2): `from` and `to` are a directory and a name in it. What was written to a file
    /// is durable on its OSTs before it replaces another one.
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use client::NewFile;
    /// use rpc::message::mdt::RenameMode;
    /// use types::{Credentials, FsError, InodeNumber};
    ///
    /// # with_file_system(async |file_system| {
    /// let (root, parent) = (Credentials::root(), InodeNumber::ROOT);
    /// let file = NewFile { parent, name: b"new".to_vec(), mode: 0o644, umask: 0 };
    /// let made = file_system.create_with_data(&root, file, "text".into()).await?;
    /// file_system.rename(&root, (parent, b"new"), (parent, b"old"), RenameMode::Replace).await?;
    /// assert_eq!(file_system.lookup(&root, parent, b"old").await?.inode, made.inode);
    /// assert_eq!(file_system.lookup(&root, parent, b"new").await.unwrap_err(), FsError::NotFound);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn rename(
        &self,
        credentials: &Credentials,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> FsResult<()> {
        /// Each time but the first, another client has renamed another file to the old name
        /// meanwhile.
        const ATTEMPTS: usize = 16;
        self.count(Operation::Rename);
        let era = self.client_state.era_noticed();
        let (parent, name, source_data) = (from.0, from.1.to_vec(), SourceData::SyncIfAsked);
        let (new_parent, new_name) = (to.0, to.1.to_vec());
        let mdt_era = self.targets.mdt_of(parent)?.import().era();
        let same_directory = false;
        let mut rename = Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era, same_directory };
        let (mut knows_maps, mut places) = (!self.targets.has_several_mdts(), NamePlaces::default());
        let exchanged = (mode == RenameMode::Exchange).then_some(to);
        // What gets another name, as far as is known.
        let renamed: Vec<_> = match self.targets.has_several_mdts() {
            true => [from].into_iter().chain(exchanged).map(|(parent, name)| self.target_of(parent, name)).collect(),
            false => Vec::new(),
        };
        if mode == RenameMode::Replace
            && let Some((inode, layout)) = self.replacing(credentials, from, to)
        {
            // The MDT would ask for that.
            self.sync_objects(inode, verified(&layout)?, era).await?;
            rename.source_data = SourceData::Synced(inode);
        }
        for attempt in 1..=ATTEMPTS {
            let old_place = places.of_old(&self.directory_maps, parent, from.1);
            // The MDT that has the new name decides.
            let request = MdtRequest::Rename(credentials.clone(), rename.clone());
            let asked = self.call_placed(new_parent, Question::from(request), &mut places).await;
            if matches!(asked, Err(FsError::CrossDevice)) && !knows_maps {
                // The old name may be in a striped directory of which this client does not know.
                knows_maps = true;
                let maps = [self.directory_map(parent).await?, self.directory_map(new_parent).await?];
                if maps.iter().any(Option::is_some) {
                    continue;
                }
            }
            let may_have_moved = old_place.is_shard() || self.directory_maps.get(parent).is_some();
            if may_have_moved && attempt < ATTEMPTS {
                match asked {
                    // Names of the directory move, and the old one is elsewhere, or was: it may
                    // have come meanwhile to the shard that was asked.
                    Err(FsError::CrossDevice) => {
                        places.old = Some(self.place_of_name(credentials, parent, from.1).await?);
                        continue;
                    }
                    // Of the shard that had the old name, which has ended, or of something else.
                    Err(FsError::Stale) => {
                        let now = self.place_of_name(credentials, parent, from.1).await?;
                        places = NamePlaces::of_old_in(now);
                        if now != old_place {
                            continue;
                        }
                    }
                    _ => {}
                }
            }
            let asked = asked.map_err(stale_if_evicted)?;
            match asked.reply {
                MdtReply::Done => {
                    let mdt = places.of_new(&self.directory_maps, to.0, to.1).mdt();
                    renamed.into_iter().for_each(|inode| self.names_elsewhere.changed(inode, mdt, asked.era));
                    return Ok(());
                }
                MdtReply::SyncFirst(SyncFirst { inode, layout }) => {
                    self.sync_objects(inode, verified(&layout)?, era).await?;
                    rename.source_data = SourceData::Synced(inode);
                }
                reply => return Err(unexpected(reply)),
            }
        }
        Err(FsError::Busy)
    }

    /// The file that a rename puts in the place of another one, and its layout, if all of that is
    /// cached; unless the file is empty, or the user may not change the directories.
    fn replacing(
        &self,
        who: &Credentials,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
    ) -> Option<(InodeNumber, Arc<Layout>)> {
        let (inode, replaced) = (self.target_of(from.0, from.1)?, self.target_of(to.0, to.1)?);
        let is_refused = |parent| self.look(parent, |cache| cache.may_change_names(who, parent)) == Some(false);
        if inode == replaced || is_refused(from.0) || is_refused(to.0) {
            return None;
        }
        let attributes = self.cached(inode, |cache, opens| cache.attributes(inode, |inode| opens.is_written(inode)));
        if attributes.is_some_and(|known| known.size == 0 && known.blocks == 0) {
            return None;
        }
        Some((inode, self.look(inode, |cache| cache.layout(inode))?))
    }

    /// The inode to which a name leads, if that is cached.
    fn target_of(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        let parent = self.directory_maps.place(parent, name);
        self.cached(parent, |cache, _| cache.target_of(parent, name))
    }

    /// link(2); also names an unnamed file.
    pub async fn link(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
    ) -> FsResult<Attributes> {
        self.count(Operation::Link);
        let link = || Link { inode, parent, name: name.to_vec() };
        if let Some(open) = self.client_state.opens.find(inode) {
            open.gets_name();
        }
        let begun = self.changes_begun(inode);
        let (mut places, request) = (NamePlaces::default(), MdtRequest::Link(credentials.clone(), link()));
        let answered = self.call_placed(parent, Question::from(request), &mut places).await;
        let answered = answered.map_err(stale_if_evicted)?;
        let place = places.of_new(&self.directory_maps, parent, name);
        self.names_elsewhere.changed(Some(inode), place.mdt(), answered.era);
        match answered.reply {
            MdtReply::Entry(entry) => self.complete(&entry).await,
            // It is on another MDT.
            MdtReply::Decided(decided) => self.decided(*decided, begun).await,
            // One of both MDTs is older.
            MdtReply::Remote(inode) => self.get_attributes(inode, None).await,
            reply => Err(unexpected(reply)),
        }
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, inode: InodeNumber) -> FsResult<Vec<u8>> {
        self.count(Operation::Readlink);
        let now = self.seams.clock.wall();
        if let Some(target) = self.cached(inode, |cache, _| cache.target(inode, now)) {
            return Ok(target);
        }
        match self.call(inode, MdtRequest::ReadLink(inode)).await?.reply {
            MdtReply::Target(target) => Ok(target),
            reply => Err(unexpected(reply)),
        }
    }

    /// Value of an extended attribute.
    pub async fn get_xattr(&self, credentials: &Credentials, inode: InodeNumber, name: &[u8]) -> FsResult<Vec<u8>> {
        self.count(Operation::Getxattr);
        if let Some(value) = self.cached(inode, |cache, _| cache.xattr(inode, name)) {
            return value;
        }
        match self.call(inode, MdtRequest::GetXattr(credentials.clone(), inode, name.to_vec())).await?.reply {
            MdtReply::Value(value) => Ok(value),
            reply => Err(unexpected(reply)),
        }
    }

    /// Names of extended attributes.
    pub async fn list_xattr(&self, credentials: &Credentials, inode: InodeNumber) -> FsResult<Vec<Vec<u8>>> {
        self.count(Operation::Listxattr);
        let known =
            self.cached(inode, |cache, opens| cache.xattr_names(credentials, inode, |inode| opens.is_written(inode)));
        if let Some(names) = known {
            return Ok(names);
        }
        match self.call(inode, MdtRequest::ListXattr(credentials.clone(), inode)).await?.reply {
            MdtReply::Names(names) => Ok(names),
            reply => Err(unexpected(reply)),
        }
    }

    /// Sets an extended attribute.
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use rpc::message::mdt::XattrMode;
    /// use types::{Credentials, FsError, InodeNumber};
    ///
    /// # with_file_system(async |file_system| {
    /// let (root, top) = (Credentials::root(), InodeNumber::ROOT);
    /// file_system.set_xattr(&root, top, b"user.owner", b"physics", XattrMode::Any).await?;
    /// assert_eq!(file_system.get_xattr(&root, top, b"user.owner").await?, b"physics");
    /// file_system.remove_xattr(&root, top, b"user.owner").await?;
    /// assert_eq!(file_system.get_xattr(&root, top, b"user.owner").await, Err(FsError::NoData));
    /// # Ok(())
    /// # });
    /// ```
    pub async fn set_xattr(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        self.count(Operation::Setxattr);
        let set = SetXattr { inode, name: name.to_vec(), value: value.to_vec(), mode };
        // A layout may have to wait until the MDT knows the OSTs.
        match self.ask_open(inode, MdtRequest::SetXattr(credentials.clone(), set)).await? {
            MdtReply::Done => {}
            reply => return Err(unexpected(reply)),
        }
        if name == CAPABILITIES_NAME
            && let Some(open) = self.client_state.opens.find(inode)
        {
            open.state().capabilities = true;
        }
        Ok(())
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, credentials: &Credentials, inode: InodeNumber, name: &[u8]) -> FsResult<()> {
        self.count(Operation::Removexattr);
        self.call(inode, MdtRequest::RemoveXattr(credentials.clone(), inode, name.to_vec())).await.and_then(done)
    }
}
