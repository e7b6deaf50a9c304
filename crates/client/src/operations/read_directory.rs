//! Reading directories: pages of names, from the cache if the whole listing is known.

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{COOKIE_PARENT, DirectoryEntry, Entry, MovingNames, ReadDirectory, open_flag},
};
use types::{Attributes, FileKind, FsError, FsResult, InodeNumber};

use crate::{
    DirectoryItem, DirectoryPage, EntryAttributes, FileSystem, LockSpan, OpenFile,
    cache::{inode_cache::InodeCache, listings::Listed},
    open_state::{listing_place::Next, registered_open::AtMdt},
    statistics::Operation,
    targets::connection::{stale_if_evicted, unexpected},
};

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
        let has_map = self.directory_maps.get(directory.inode()).is_some();
        let mut next = directory.listing.lock().after(cookie, has_map);
        loop {
            if let Next::Shards(after) = next {
                let map = self.directory_map(directory.inode()).await?.ok_or(FsError::Stale)?;
                if !directory.flags().has(open_flag::READ) {
                    return Err(FsError::BadHandle);
                }
                if let Some(page) = self.read_striped(directory, &map, (after, entries_max), attributes).await? {
                    return Ok(page);
                }
                // Its names move, and this is the beginning.
            }
            match self.read_own(directory, (cookie, entries_max), attributes).await? {
                Some(page) => return Ok(page),
                None => next = Next::Shards(cookie.min(COOKIE_PARENT)),
            }
        }
    }

    /// The same of what the directory itself has, or has left; `None`: it goes on in the shards.
    async fn read_own(
        &self,
        directory: &OpenFile,
        (cookie, entries_max): (u64, u32),
        attributes: EntryAttributes,
    ) -> FsResult<Option<DirectoryPage>> {
        let inode = directory.inode();
        let (page, place) = match self.read_part(directory, inode, (cookie, entries_max), attributes).await {
            Err(FsError::CrossDevice) => {
                directory.listing.lock().goes_on_in_shards(cookie, None);
                return Ok(None);
            }
            read => read?,
        };
        let last = page.items.last().map_or(cookie, |last| last.cookie);
        let mut listing = directory.listing.lock();
        if place.is_some() && page.end && page.items.is_empty() {
            listing.goes_on_in_shards(cookie, place);
            return Ok(None);
        }
        match listing.gave((cookie, last), place) {
            true => Ok(Some(DirectoryPage { end: page.end && place.is_none(), ..page })),
            false => Err(FsError::Stale),
        }
    }

    /// The same of the directory itself, if it is not striped (`CrossDevice`), or of one of its
    /// shards. While names move, with the place up to which they have moved.
    pub(super) async fn read_part(
        &self,
        directory: &OpenFile,
        inode: InodeNumber,
        (cookie, entries_max): (u64, u32),
        attributes: EntryAttributes,
    ) -> FsResult<(DirectoryPage, Option<u64>)> {
        if let Some(page) = self.cached_page(directory, inode, (cookie, entries_max), attributes) {
            return Ok((page, None));
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
        let (entries, end, place) = match reply {
            MdtReply::Directory(entries, end) => (entries, end, None),
            MdtReply::MovingNames(MovingNames { entries, end, place }) => (entries, end, Some(place)),
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
        Ok((DirectoryPage { span: page.span.filter(|_| place.is_none()), ..page }, place))
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
