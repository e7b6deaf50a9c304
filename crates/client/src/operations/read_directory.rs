//! Reading directories: pages of names, from the cache if the whole listing is known.

use std::sync::Arc;

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{COOKIE_PARENT, DirectoryEntry, Entry, MovingNames, ReadDirectory, ReturningNames, open_flag},
};
use types::{Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber};

use crate::{
    DirectoryItem, DirectoryPage, EntryAttributes, FileSystem, LockSpan, OpenFile,
    cache::{inode_cache::InodeCache, listings::Listed},
    open_state::{
        listing_place::{Back, Next},
        registered_open::AtMdt,
    },
    statistics::Operation,
    targets::{
        awaited_mdts::Pauses,
        connection::{stale_if_evicted, unexpected},
    },
};

/// Whether names of what was read are on the move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamesMove {
    No,
    /// To shards; the place up to which they are there.
    ToShards(u64),
    /// Back from shards: of each the place up to which they are back, or gone.
    Back(Vec<(InodeNumber, u64)>),
}

impl FileSystem {
    /// Names of an open directory after `cookie` (0: from the beginning), at least with those
    /// attributes that are asked for, but for striped directories: what their shards add has to be
    /// asked for at each.
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use client::{EntryAttributes, NewFile};
    /// use rpc::message::mdt::{OpenFlags, open_flag};
    /// use types::{Credentials, InodeNumber};
    ///
    /// # with_file_system(async |file_system| {
    /// let (root, parent) = (Credentials::root(), InodeNumber::ROOT);
    /// for name in [&b"one"[..], b"two"] {
    ///     let file = NewFile { parent, name: name.to_vec(), mode: 0o644, umask: 0 };
    ///     file_system.create_with_data(&root, file, name.to_vec().into()).await?;
    /// }
    /// let directory = file_system.open(&root, parent, OpenFlags(open_flag::READ)).await?;
    /// let page = file_system.read_directory(&directory, 0, 100, EntryAttributes::OfAll).await?;
    /// let mut names: Vec<_> = page.items.iter().map(|entry| entry.name.clone()).collect();
    /// names.sort();
    /// assert!(page.end && names.ends_with(&[b"one".to_vec(), b"two".to_vec()]));
    /// file_system.close(directory, None).await
    /// # });
    /// ```
    pub async fn read_directory(
        &self,
        directory: &OpenFile,
        cookie: u64,
        entries_max: u32,
        attributes: EntryAttributes,
    ) -> FsResult<DirectoryPage> {
        self.count(Operation::Readdir);
        if directory.kind() != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        directory.open.check()?;
        let is_resumed = cookie > COOKIE_PARENT && directory.listing.lock().is_new();
        let known = match is_resumed && self.may_be_striped() {
            // The cookie is of a listing through another open, as NFS servers continue one.
            true => self.directory_map(directory.inode()).await?,
            false => self.directory_maps.get(directory.inode()),
        };
        directory.listing.lock().ask(cookie, known);
        loop {
            let next = directory.listing.lock().next(cookie);
            let page = match next {
                Next::Shards(map, after) => {
                    if !directory.flags().has(open_flag::READ) {
                        return Err(FsError::BadHandle);
                    }
                    self.read_striped(directory, &map, (cookie, after, entries_max), attributes).await?
                }
                Next::Directory(after) => self.read_own(directory, (cookie, after, entries_max), attributes).await?,
            };
            if let Some(page) = page {
                return Ok(page);
            }
        }
    }

    /// The same of what the directory itself has after the cookie `after` of its own; `None`: it
    /// goes on elsewhere. `cookie`: that of the listing.
    async fn read_own(
        &self,
        directory: &OpenFile,
        (cookie, mut after, entries_max): (u64, u64, u32),
        attributes: EntryAttributes,
    ) -> FsResult<Option<DirectoryPage>> {
        let (inode, mut pauses) = (directory.inode(), Pauses::default());
        loop {
            let (mut page, names_move) = match self.read_part(directory, inode, (after, entries_max), attributes).await
            {
                Err(FsError::CrossDevice) => {
                    self.go_on_in_shards(directory, cookie, u64::MAX).await?;
                    return Ok(None);
                }
                read => read?,
            };
            let awaited = {
                let mut listing = directory.listing.lock();
                if listing.gone() > 0 && !matches!(names_move, NamesMove::ToShards(_)) {
                    // A power loss has brought names back: from the beginning, without those shown.
                    listing.begin(None, cookie, 0)?;
                    return Ok(None);
                }
                match &names_move {
                    NamesMove::Back(places) => listing.back(places),
                    NamesMove::No | NamesMove::ToShards(_) => Back::All,
                }
            };
            match awaited {
                Back::All => {}
                Back::Await(shard) => {
                    self.pause(&mut pauses, shard.mdt()).await;
                    continue;
                }
                Back::ShardsFirst => {
                    self.go_on_in_shards(directory, cookie, u64::MAX).await?;
                    return Ok(None);
                }
            }
            let gone = match names_move {
                NamesMove::ToShards(place) => Some(place),
                NamesMove::No | NamesMove::Back(_) => None,
            };
            if let Some(place) = gone
                && page.end
                && page.items.is_empty()
            {
                let needed = directory.listing.lock().gone().max(place);
                self.go_on_in_shards(directory, cookie, needed).await?;
                return Ok(None);
            }
            for item in page.items.iter_mut().filter(|item| item.name == b".." && item.inode.is_shard()) {
                // An MDT does not know of which directory a shard on another one is.
                item.inode = self.lookup(&Credentials::root(), inode, b"..").await?.inode;
            }
            let last = page.items.last().map_or(after, |last| last.cookie);
            let mut listing = directory.listing.lock();
            listing.gave(0, (after, last), gone);
            if listing.is_first() {
                return Ok(Some(DirectoryPage { end: page.end && gone.is_none(), ..page }));
            }
            let mut items = page.items;
            items.retain(|item| !listing.has_shown(&item.name));
            let end = page.end && gone.is_none();
            if end || !items.is_empty() {
                return Ok(Some(DirectoryPage { items, end, span: None }));
            }
            after = last;
        }
    }

    /// The listing goes on in the shards that the directory has now, if it has any.
    async fn go_on_in_shards(&self, directory: &OpenFile, cookie: u64, needed: u64) -> FsResult<()> {
        let map = self.layout_info(directory.inode()).await?.map;
        let Some(map) = map else { return Ok(()) };
        self.directory_maps.learn(map.clone())?;
        directory.listing.lock().begin(Some(Arc::new(map)), cookie, needed)
    }

    /// The same of the directory itself, if it is not striped (`CrossDevice`), or of one of its
    /// shards; and whether names move meanwhile.
    pub(super) async fn read_part(
        &self,
        directory: &OpenFile,
        inode: InodeNumber,
        (cookie, entries_max): (u64, u32),
        attributes: EntryAttributes,
    ) -> FsResult<(DirectoryPage, NamesMove)> {
        if let Some(page) = self.cached_page(directory, inode, (cookie, entries_max), attributes) {
            return Ok((page, NamesMove::No));
        }
        let (open, is_shard) = (directory.id(), inode != directory.inode());
        let attributes = attributes != EntryAttributes::None;
        let before = self.span(inode, |cache| cache.span(inode));
        let reply = loop {
            let is_known = !is_shard && directory.open.at_mdt(open) == AtMdt::Known;
            let unasked = (!is_known).then_some(directory.flags());
            let request = ReadDirectory { inode, open, cookie, entries_max, attributes, unasked };
            match self.call(inode, MdtRequest::ReadDirectory(request)).await {
                // The lock is gone under which it was opened, or the incarnation in which it was.
                Err(FsError::BadHandle) if !is_shard => {
                    directory.open.check()?;
                    if is_known {
                        return Err(FsError::BadHandle);
                    }
                    let target = self.targets.mdt_of(inode)?;
                    target.make_known(&self.seams.spawn, vec![inode]).await.map_err(stale_if_evicted)?;
                    directory.open.check()?;
                }
                answered => break answered?.reply,
            }
        };
        let (entries, end, names_move) = match reply {
            MdtReply::Directory(entries, end) => (entries, end, NamesMove::No),
            MdtReply::MovingNames(MovingNames { entries, end, place }) => (entries, end, NamesMove::ToShards(place)),
            MdtReply::ReturningNames(ReturningNames { entries, end, places }) => {
                (entries, end, NamesMove::Back(places))
            }
            MdtReply::Striped(_) => return Err(FsError::CrossDevice),
            reply => return Err(unexpected(reply)),
        };
        let span = self.span(inode, |cache| {
            let during = before.map(|before| before.number).filter(|before| cache.span(inode) == Some(*before));
            during.or_else(|| cache.span_of_page((inode, cookie), (&entries, end)))
        });
        let known: Vec<_> = entries.iter().filter_map(|entry| entry.entry.as_ref()).collect();
        let mut completed = self.complete_all(&known).await.into_iter();
        let mut shown = |entry: &Entry| completed.next()?.ok().filter(|_| entry.map_version == 0);
        let item = |entry: DirectoryEntry| DirectoryItem {
            attributes: entry.entry.as_ref().and_then(&mut shown),
            name: entry.name,
            inode: entry.inode,
            kind: entry.kind,
            cookie: entry.cookie,
        };
        let page = DirectoryPage { items: entries.into_iter().map(item).collect(), end, span };
        Ok((DirectoryPage { span: page.span.filter(|_| names_move == NamesMove::No), ..page }, names_move))
    }

    /// The same from the cache. If attributes of one name are missing, the MDT is asked for all.
    fn cached_page(
        &self,
        directory: &OpenFile,
        inode: InodeNumber,
        (cookie, entries_max): (u64, u32),
        attributes: EntryAttributes,
    ) -> Option<DirectoryPage> {
        if !directory.flags().has(open_flag::READ) || entries_max == 0 {
            return None;
        }
        let count = entries_max as usize;
        let changes_access_time = !directory.flags().has(open_flag::NO_ACCESS_TIME);
        let wall = changes_access_time.then(|| self.seams.clock.wall());
        let mut number = None;
        let query = |cache: &mut InodeCache| {
            let opens = &self.client_state.opens;
            let page = cache.page((inode, cookie), count, attributes, wall, |inode| opens.is_written(inode))?;
            number = cache.span(inode);
            Some(page)
        };
        let ((page, end), validity) = self.targets.mdt_of(inode).ok()?.serve_for(&self.seams, query)?;
        self.count(Operation::CacheHits);
        let span = number.map(|number| LockSpan { number, validity });
        let item = |(listed, attributes): (Listed, Option<Attributes>)| {
            let Listed { name, inode, kind, cookie } = listed;
            DirectoryItem { name: name.into_vec(), inode, kind, cookie, attributes }
        };
        Some(DirectoryPage { items: page.into_iter().map(item).collect(), end, span })
    }
}
