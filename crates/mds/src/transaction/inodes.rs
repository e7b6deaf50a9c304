//! Inodes and their links within a transaction.

use rpc::message::mdt::OpenId;
use types::{
    Credentials, FileKind, FsError, FsResult, InodeNumber,
    access_list::{ACCESS_NAME, AccessList},
    limits, permission,
};

use super::Transaction;
use crate::{
    known_size,
    opens::OpenKey,
    protection,
    tables::{
        self, DATA, ENTRIES, INODES, LINKS, ORPHANS, XATTRS, deferred_log::DeferredOperation, inode::Inode,
        inode::Link, link, orphan,
    },
};

impl Transaction<'_> {
    /// An inode, if it exists.
    pub fn find_inode(&self, number: InodeNumber) -> FsResult<Option<Inode>> {
        let value = self.get(INODES, &Inode::key(number))?;
        value.map(|value| self.decode_inode(number, &value)).transpose()
    }

    /// An inode from its record.
    pub fn decode_inode(&self, number: InodeNumber, value: &[u8]) -> FsResult<Inode> {
        let mut inode = Inode::decode(number, value)?;
        self.note_lengthened(number);
        known_size::doubt(&mut inode, self.context.era);
        Ok(inode)
    }

    /// An inode that the caller looked up earlier: if it is gone, the answer is `Stale`. Waits if
    /// other MDTs have in doubt whether it exists.
    pub fn inode(&self, number: InodeNumber) -> FsResult<Inode> {
        if let Some(mdt) = self.volatile.peers.locked_by(number) {
            return self.wait_for_peer(mdt);
        }
        match self.find_inode(number)? {
            Some(inode) => Ok(inode),
            None if number.mdt() != self.mdt => Err(FsError::Stale),
            None => match self.volatile.peers.may_come_from(self.mdt) {
                Some(mdt) => self.wait_for_peer(mdt),
                None => Err(FsError::Stale),
            },
        }
    }

    /// Whether this MDT has an inode, if it exists.
    pub fn is_here(&self, number: InodeNumber) -> bool {
        number.mdt() == self.mdt
    }

    /// What an inode is: if it is here, not what its name says, which may be damaged.
    pub fn kind_here(&self, number: InodeNumber, stated: FileKind) -> FsResult<FileKind> {
        let here = if self.is_here(number) { self.find_inode(number)? } else { None };
        Ok(here.map_or(stated, |inode| inode.kind()))
    }

    /// A directory.
    pub fn directory(&self, number: InodeNumber) -> FsResult<Inode> {
        let inode = self.inode(number)?;
        if inode.is_directory() { Ok(inode) } else { Err(FsError::NotDirectory) }
    }

    /// A directory that `who` may search, and that has this name if there is one: every look-up of
    /// a name goes through here.
    pub fn searchable(&self, who: &Credentials, number: InodeNumber, name: &[u8]) -> FsResult<Inode> {
        let directory = self.enterable(who, number)?;
        self.has_name(&directory, name)?;
        Ok(directory)
    }

    /// The same, whether it has names of its own or is striped.
    pub fn enterable(&self, who: &Credentials, number: InodeNumber) -> FsResult<Inode> {
        let directory = self.directory(number)?;
        self.require(who, &directory, permission::EXECUTE)?;
        Ok(directory)
    }

    /// `who` must have these permissions, else `AccessDenied`; no user writes to what is immutable.
    pub fn require(&self, who: &Credentials, inode: &Inode, wanted: u32) -> FsResult<()> {
        if wanted & permission::WRITE != 0 {
            protection::check_write(&inode.attributes)?;
        }
        self.require_mode(who, inode, wanted)
    }

    /// As [`Transaction::require`], whatever the inode's flags forbid.
    pub fn require_mode(&self, who: &Credentials, inode: &Inode, wanted: u32) -> FsResult<()> {
        let list = self.access_list(who, inode)?;
        permission::access(who, &inode.attributes, list.as_ref(), wanted).or(FsError::AccessDenied)
    }

    /// The access list, where the decision can depend on it.
    fn access_list(&self, who: &Credentials, inode: &Inode) -> FsResult<Option<AccessList>> {
        if !inode.access_list || permission::owns(who, &inode.attributes) {
            return Ok(None);
        }
        self.stored_list(inode.number(), ACCESS_NAME)
    }

    /// A number never used before.
    pub fn new_number(&mut self) -> InodeNumber {
        let counters = &mut self.changes.counters;
        let number = InodeNumber::new(self.mdt, counters.next_inode);
        counters.next_inode += 1;
        counters.inodes += 1;
        number
    }

    /// Whether any client has the inode open.
    pub fn is_open(&self, number: InodeNumber) -> bool {
        self.volatile.opens.is_open(number)
    }

    /// The caller's open of this name, which must be of this inode.
    pub fn own_open(&self, number: InodeNumber, open: OpenId) -> FsResult<OpenKey> {
        let key = OpenKey { client: self.context.client, open };
        let file = self.volatile.opens.get(key).ok_or(FsError::BadHandle)?;
        if file.inode == number { Ok(key) } else { Err(FsError::BadHandle) }
    }

    /// Fails unless the caller's client has the inode open.
    pub fn require_open(&self, number: InodeNumber) -> FsResult<()> {
        let opens = self.volatile.opens.of_inode(number, self.context.client).opens;
        if opens > 0 { Ok(()) } else { Err(FsError::BadHandle) }
    }

    /// Fails unless the caller's client may change the inode's data: it has it open for writing, or
    /// the exclusive data lock (a truncation by path).
    pub fn require_writer(&self, number: InodeNumber) -> FsResult<()> {
        let client = self.context.client;
        let writes = self.volatile.opens.of_inode(number, client).writers > 0;
        let is_locked = self.volatile.exclusive.holder(number) == Some(client);
        if writes || is_locked { Ok(()) } else { Err(FsError::BadHandle) }
    }

    /// Notes another name of an inode; the caller has counted it in `links`.
    pub fn add_link(&mut self, inode: &mut Inode, new: Link) {
        match inode.first_link {
            None => inode.first_link = Some(new),
            Some(_) => self.put(LINKS, link::key(inode.number(), &new), link::value()),
        }
    }

    /// The inode has another link instead of one, and is not changed by that for programs.
    pub fn replace_link(&mut self, inode: &mut Inode, old: &Link, new: Link) -> FsResult<()> {
        if inode.first_link.as_ref() == Some(old) {
            inode.first_link = Some(new);
        } else {
            self.remove_link(inode, old)?;
            self.add_link(inode, new);
        }
        self.put_inode(inode);
        Ok(())
    }

    /// Forgets a name of an inode.
    pub fn remove_link(&mut self, inode: &mut Inode, old: &Link) -> FsResult<()> {
        if inode.first_link.as_ref() != Some(old) {
            self.delete(LINKS, link::key(inode.number(), old));
            return Ok(());
        }
        inode.first_link = None;
        if inode.is_directory() {
            return Ok(());
        }
        if let Some(next) = self.further_links(inode.number(), 1)?.pop() {
            self.delete(LINKS, link::key(inode.number(), &next));
            inode.first_link = Some(next);
        }
        Ok(())
    }

    /// Names beyond the first, at most `count`.
    pub fn further_links(&self, number: InodeNumber, count: usize) -> FsResult<Vec<Link>> {
        let mut links = Vec::new();
        self.scan_prefix(LINKS, &number.0.to_be_bytes(), &mut |key, _| {
            links.push(link::decode_key(key)?.1);
            Ok(links.len() < count)
        })?;
        Ok(links)
    }

    /// A name of `inode` was removed: it lives on with the others, or for the grace and until its
    /// last close.
    pub fn drop_link(&mut self, inode: &mut Inode, old: &Link) -> FsResult<()> {
        self.remove_link(inode, old)?;
        inode.attributes.links = if inode.is_directory() { 0 } else { inode.attributes.links.saturating_sub(1) };
        inode.change(self.now());
        self.release_space();
        if inode.attributes.links > 0 {
            self.put_inode(inode);
            return Ok(());
        }
        let grace = !self.context.parameters.removal_grace.is_zero();
        let may_be_open = self.volatile.may_open_unasked(self.context.client, inode.number());
        // Nobody uses a shard whose names are in its directory.
        let has_ended = inode.number().is_shard() && inode.names_return();
        if self.is_open(inode.number()) || !has_ended && (grace || may_be_open || self.volatile.recovery.running()) {
            if grace {
                self.keep_removed(inode.number());
            }
            inode.not_linkable = true;
            self.put(ORPHANS, orphan::key(inode.number()), orphan::value());
            self.put_inode(inode);
            return Ok(());
        }
        self.destroy(inode)
    }

    /// Removes an inode permanently, and its objects.
    pub fn destroy(&mut self, inode: &Inode) -> FsResult<()> {
        let number = inode.number();
        assert_ne!(number, InodeNumber::ROOT, "the root is never removed");
        assert!(!self.is_open(number), "inode {number} is removed, and it is open");
        self.release_space();
        self.remove_inode(inode);
        if inode.access_list || inode.default_list || inode.xattrs {
            self.delete_prefix(XATTRS, &number.0.to_be_bytes())?;
        }
        for (ost, object) in inode.objects() {
            self.tell(ost, DeferredOperation::Destroy(object));
        }
        if inode.may_have_data_here() {
            self.delete_data(number)?;
        }
        self.changes.counters.inodes = self.changes.counters.inodes.saturating_sub(1);
        Ok(())
    }

    /// Removes all that is here of an inode which another MDT has now. Its objects stay.
    pub fn remove_given(&mut self, inode: &Inode) -> FsResult<()> {
        let number = inode.number();
        assert_ne!(number, InodeNumber::ROOT, "the root does not move");
        self.release_space();
        self.remove_inode(inode);
        for table in [LINKS, XATTRS, ENTRIES, DATA] {
            self.delete_prefix(table, &number.0.to_be_bytes())?;
        }
        self.changes.counters.inodes = self.changes.counters.inodes.saturating_sub(1);
        Ok(())
    }

    /// Destroys an inode that was recorded as an orphan, if nothing keeps it; true if it did. One
    /// that is to get a name of another MDT is looked at again when that is decided.
    pub fn reap(&mut self, number: InodeNumber) -> FsResult<bool> {
        match self.volatile.peers.locked_by(number) {
            Some(_) => Ok(false),
            None => self.reap_released(number),
        }
    }

    /// The same of one for which nothing is prepared any more.
    pub fn reap_released(&mut self, number: InodeNumber) -> FsResult<bool> {
        if self.is_open(number) || self.volatile.removed.contains(number) || self.volatile.recovery.running() {
            return Ok(false);
        }
        match self.find_inode(number)? {
            Some(inode) if inode.attributes.links == 0 => self.destroy(&inode)?,
            _ => {}
        }
        self.delete(ORPHANS, orphan::key(number));
        Ok(true)
    }

    /// Makes room for one more name of a directory's child.
    pub fn count_subdirectory(&self, directory: &mut Inode) -> FsResult<()> {
        if directory.attributes.links >= limits::LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        directory.attributes.links += 1;
        Ok(())
    }

    /// The contents of a directory changed.
    pub fn touch_directory(&self, directory: &mut Inode) {
        directory.change_contents(self.now());
    }

    /// Whether an inode has this name, as far as its records say.
    pub fn has_link(&self, inode: &Inode, named: &Link) -> FsResult<bool> {
        if inode.first_link.as_ref() == Some(named) {
            return Ok(true);
        }
        Ok(!inode.is_directory() && self.get(LINKS, &link::key(inode.number(), named))?.is_some())
    }

    /// The parent of a directory; the root is its own.
    pub fn parent_of(&self, directory: &Inode) -> InodeNumber {
        directory.first_link.as_ref().map_or(directory.number(), |link| link.parent)
    }

    /// All keys of a table after `after`, at most `count`, with their values.
    pub fn page(&self, table: kv::Table, after: Option<&[u8]>, count: usize) -> FsResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let from = after.map_or(Vec::new(), |key| [key, &[0]].concat());
        let mut page = Vec::new();
        self.scan(table, &from, None, &mut |key, value| {
            page.push((key.to_vec(), value.to_vec()));
            Ok(page.len() < count)
        })?;
        Ok(page)
    }

    /// Orphans after `after`, at most `count`.
    pub fn orphans(&self, after: Option<&[u8]>, count: usize) -> FsResult<Vec<InodeNumber>> {
        let page = self.page(tables::ORPHANS, after, count)?;
        page.iter().map(|(key, _)| orphan::decode_key(key)).collect()
    }
}
