//! What is kept of one answer of the MDT: everything that was under a lock when the answer was
//! given, and that no change by this client has concerned since.

use std::sync::Arc;

use bytes::Bytes;
use layout::{Backing, Layout};
use rpc::message::{
    MdtReply, OstReply, ReplyExtension,
    lock::{InodeBits, inode_bit},
    mdt::{DirectoryEntry, Entry, LayoutInfo},
};
use types::{FileKind, FsError, InodeNumber, LockHandle, ObjectId, mode};

use super::{
    cached_inode::{LISTING_BITS, Privileges},
    inode_cache::InodeCache,
    own_changes::Moment,
    question::{Asked, Question, Renamed, changes_data},
};

/// Keeps what one answer says.
pub(super) struct Keeper<'a> {
    pub cache: &'a mut InodeCache,
    pub question: &'a Question,
    pub asked: Moment,
    /// Locks that came with it, in order.
    pub granted: &'a [LockHandle],
    /// Names that it removed led where they were known to lead.
    pub is_certain: bool,
    /// All bytes of the object of a file on the MDT, if they came with it.
    pub data: Option<&'a Bytes>,
}

impl Keeper<'_> {
    /// Whether the answer was given while this client had these bits.
    fn covers(&self, inode: InodeNumber, bits: u32) -> bool {
        self.cache.bits_since(inode, self.asked, self.granted) & bits == bits
    }

    /// Whether nothing of the inode but its times can have changed since.
    fn holds(&self, inode: InodeNumber) -> bool {
        self.cache.changes.permissions_hold(inode, self.asked, &self.question.changes)
    }

    pub fn keep(&mut self, reply: &MdtReply) {
        match (&self.question.asked, reply) {
            (Asked::Name(parent, name) | Asked::Linked(parent, name), MdtReply::Entry(entry)) => {
                self.keep_name(*parent, name, entry.attributes.inode);
                self.keep_entry(entry, true);
            }
            (Asked::Name(parent, name), MdtReply::Absent) => self.keep_missing(*parent, name),
            (Asked::Name(parent, name), MdtReply::Remote(inode)) => self.keep_elsewhere(*parent, name, *inode),
            (Asked::Attributes(_), MdtReply::Entry(entry)) => {
                self.keep_entry(entry, true);
                self.keep_base(entry, entry.epoch);
            }
            (Asked::Created(parent, name, flags), MdtReply::Created(created)) => {
                self.keep_name(*parent, name, created.entry.attributes.inode);
                self.keep_entry(&created.entry, !changes_data(*flags));
                let opened = created.opened.as_ref().filter(|_| created.created && changes_data(*flags));
                self.keep_base(&created.entry, opened.map(|opened| opened.epoch));
                if let Some(opened) = created.opened.as_ref().filter(|_| changes_data(*flags)) {
                    self.keep_privileges(&created.entry, opened.capabilities);
                }
                if let Some(layout) = created.opened.as_ref().and_then(|opened| opened.layout.as_ref()) {
                    self.keep_layout(created.entry.attributes.inode, layout);
                }
                let has_names = created.entry.map_version == 0;
                if created.created && created.entry.attributes.kind == FileKind::Directory && has_names {
                    self.keep_complete(created.entry.attributes.inode);
                    // Which directory has the shard is not known here.
                    if !parent.is_shard() {
                        self.keep_empty(created.entry.attributes.inode, *parent);
                    }
                }
            }
            (Asked::Opened(flags), MdtReply::Opened(opened)) => {
                self.keep_entry(&opened.entry, !changes_data(*flags));
                if changes_data(*flags) {
                    self.keep_privileges(&opened.entry, opened.capabilities);
                }
                if let Some(layout) = &opened.layout {
                    let inode = opened.entry.attributes.inode;
                    self.keep_layout(inode, layout);
                    if let Some(Backing::Mdt { slot }) = layout.components.first().map(|first| &first.backing) {
                        self.keep_data(ObjectId::new(inode, *slot));
                    }
                }
            }
            (Asked::Data(object), MdtReply::Data(OstReply::Read(_))) => self.keep_data(*object),
            (Asked::Layout(inode), MdtReply::Layout(LayoutInfo { layout: Some(layout), .. })) => {
                self.keep_layout(*inode, layout);
            }
            (Asked::Layout(inode), MdtReply::ExclusiveGranted(granted)) => self.keep_layout(*inode, &granted.layout),
            (Asked::Target(inode), MdtReply::Target(target)) => self.keep_target(*inode, target),
            (Asked::Xattr(inode, name), MdtReply::Value(value)) => self.keep_xattr(*inode, name, Some(value)),
            (Asked::Xattr(inode, name), MdtReply::Absent) => self.keep_xattr(*inode, name, None),
            (Asked::XattrNames(inode, is_root), MdtReply::Names(names)) => {
                self.keep_xattr_names(*inode, *is_root, names);
            }
            (Asked::Cleared(inode), MdtReply::Done) => self.keep_cleared(*inode, true),
            (Asked::WithoutCapabilities(inode), MdtReply::Done) => self.keep_cleared(*inode, false),
            (Asked::Unlinked((parent, name), _), MdtReply::Done) => self.keep_missing(*parent, name),
            (Asked::Renamed(Renamed { moved: Some(moved), to, .. }), MdtReply::Done) if self.is_certain => {
                self.keep_name(to.0, &to.1, *moved);
            }
            (Asked::Page(directory, cookie), MdtReply::Directory(page, is_end)) => {
                self.keep_page(*directory, *cookie, page, *is_end);
            }
            _ => {}
        }
    }

    pub fn keep_absence(&mut self, error: &FsError) {
        match (&self.question.asked, error) {
            (Asked::Name(parent, name), FsError::NotFound) => self.keep_missing(*parent, name),
            (Asked::Xattr(inode, name), FsError::NoData) => self.keep_xattr(*inode, name, None),
            (Asked::WithoutCapabilities(inode), FsError::NoData) => self.keep_cleared(*inode, false),
            _ => {}
        }
    }

    fn keep_name(&mut self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        if self.covers(inode, inode_bit::LOOKUP)
            && self.cache.changes.name_holds(parent, name, self.asked, &self.question.changes)
        {
            self.cache.names.lead(parent, name, inode);
        }
    }

    fn keep_missing(&mut self, parent: InodeNumber, name: &[u8]) {
        let complete = self.cache.names.is_complete(parent) && self.covers(parent, inode_bit::ATTRIBUTES);
        if (complete || self.covers(parent, inode_bit::DIRECTORY))
            && self.cache.changes.name_holds(parent, name, self.asked, &self.question.changes)
        {
            self.cache.names.miss(parent, name);
        }
    }

    /// The MDT of a name grants no lock on an inode that is elsewhere.
    fn keep_elsewhere(&mut self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        if self.covers(parent, inode_bit::DIRECTORY)
            && self.cache.changes.name_holds(parent, name, self.asked, &self.question.changes)
        {
            self.cache.names.lead_elsewhere(parent, name, inode);
        }
    }

    /// A new directory has no names that this client does not know.
    fn keep_complete(&mut self, inode: InodeNumber) {
        if self.covers(inode, inode_bit::ATTRIBUTES)
            && self.cache.changes.attributes_hold(inode, self.asked, &self.question.changes)
        {
            self.cache.names.complete(inode);
        }
    }

    /// The same of its listing.
    fn keep_empty(&mut self, directory: InodeNumber, parent: InodeNumber) {
        if self.covers(directory, LISTING_BITS)
            && self.cache.changes.listing_holds(directory, self.asked, &self.question.changes)
        {
            let epoch = self.cache.epoch;
            self.cache.listings.begin(directory, parent, epoch);
        }
    }

    /// An inode without a name may be gone at any time.
    fn keep_entry(&mut self, entry: &Entry, exact: bool) {
        let inode = entry.attributes.inode;
        if entry.attributes.links == 0 || !self.holds(inode) {
            return;
        }
        if self.covers(inode, inode_bit::ATTRIBUTES) {
            let exact = exact && self.cache.changes.attributes_hold(inode, self.asked, &self.question.changes);
            let exact = exact.then_some(self.cache.epoch);
            self.cache.inode(inode).keep(entry, exact);
        }
        if entry.no_public_xattrs && self.covers(inode, inode_bit::XATTRS) {
            self.cache.inode(inode).keep_no_public_xattrs();
        }
    }

    /// A file was opened for writing.
    fn keep_privileges(&mut self, entry: &Entry, capabilities: bool) {
        let inode = entry.attributes.inode;
        if self.covers(inode, inode_bit::XATTRS) {
            let set_id = entry.attributes.mode & (mode::S_ISUID | mode::S_ISGID) != 0;
            self.cache.inode(inode).privileges = Some(Privileges { set_id, capabilities });
        }
    }

    /// Capabilities, and perhaps set-id bits, were cleared.
    fn keep_cleared(&mut self, inode: InodeNumber, set_id: bool) {
        if self.covers(inode, inode_bit::XATTRS) {
            let known = &mut self.cache.inode(inode).privileges;
            let had_set_id = known.is_none_or(|known| known.set_id);
            *known = Some(Privileges { set_id: had_set_id && !set_id, capabilities: false });
        }
    }

    fn keep_layout(&mut self, inode: InodeNumber, layout: &Layout) {
        if self.covers(inode, inode_bit::LAYOUT)
            && self.cache.changes.layout_holds(inode, self.asked, &self.question.changes)
        {
            self.cache.inode(inode).layout = Some(Arc::new(layout.clone()));
        }
    }

    fn keep_data(&mut self, object: ObjectId) {
        let inode = object.inode;
        if let Some(data) = self.data
            && self.covers(inode, inode_bit::DATA)
            && self.cache.changes.data_hold(inode, self.asked, &self.question.changes)
        {
            let epoch = self.cache.epoch;
            self.cache.small_files.keep(object, data, epoch);
        }
    }

    /// What the MDT knows of a file that this client alone has open for writing: the lock on its
    /// attributes ends when another client opens it.
    fn keep_base(&mut self, entry: &Entry, write_epoch: Option<u64>) {
        let inode = entry.attributes.inode;
        let (Some(write_epoch), true) = (write_epoch, entry.attributes.links > 0) else { return };
        if self.covers(inode, inode_bit::ATTRIBUTES)
            && self.cache.changes.attributes_hold(inode, self.asked, &self.question.changes)
        {
            let epoch = self.cache.epoch;
            self.cache.inode(inode).keep_base(entry, write_epoch, epoch);
        }
    }

    /// A change of an inode was answered: the last one under way leaves its attributes known, if
    /// all told their versions. `shown`: an inode that the reply shows; `beside`: what came beside
    /// it.
    pub fn keep_changed(&mut self, inode: InodeNumber, shown: Option<&Entry>, beside: Option<&ReplyExtension>) {
        let told = beside
            .and_then(|beside| beside.change.as_ref())
            .and_then(|change| change.versions.iter().find(|version| version.inode == inode && version.after != 0));
        let shown = beside.iter().flat_map(|beside| &beside.changed).chain(shown);
        let shown = shown.into_iter().find(|entry| entry.attributes.inode == inode);
        let shown = shown.filter(|_| self.covers(inode, inode_bit::ATTRIBUTES));
        let ended = self.cache.versions.end(inode, told.map(|version| version.after), shown);
        let Some(entry) = ended.filter(|entry| entry.attributes.links > 0) else { return };
        // The lock was held since the newest change was asked for, or the episode would be in
        // doubt.
        if self.covers_now(inode) && !self.cache.changes.anything_changes(&self.question.changes) {
            let epoch = self.cache.epoch;
            self.cache.inode(inode).keep(&entry, Some(epoch));
        }
    }

    fn covers_now(&self, inode: InodeNumber) -> bool {
        self.cache.inodes.get(&inode).is_some_and(|inode| inode.bits().0 & inode_bit::ATTRIBUTES != 0)
    }

    fn keep_target(&mut self, inode: InodeNumber, target: &[u8]) {
        if self.covers(inode, inode_bit::ATTRIBUTES) && self.holds(inode) {
            self.cache.inode(inode).target = Some(target.to_vec());
        }
    }

    fn keep_xattr(&mut self, inode: InodeNumber, name: &[u8], value: Option<&[u8]>) {
        if self.covers(inode, inode_bit::XATTRS) && self.holds(inode) {
            self.cache.inode(inode).keep_xattr(name, value);
        }
    }

    /// The layout is among them, if it is not too large: it grows only while a client has the file
    /// open for writing, and then only that client has the lock on its attributes.
    fn keep_xattr_names(&mut self, inode: InodeNumber, is_root: bool, names: &[Vec<u8>]) {
        if self.covers(inode, inode_bit::XATTRS | inode_bit::ATTRIBUTES) && self.holds(inode) {
            self.cache.inode(inode).keep_xattr_names(is_root, names);
        }
    }

    fn keep_page(&mut self, directory: InodeNumber, cookie: u64, page: &[DirectoryEntry], is_end: bool) {
        // Who asks for attributes asks for those of inodes on other MDTs next.
        let wanted = self.question.wanted.map_or(InodeBits::NONE, |(_, bits)| bits);
        let shows_attributes = wanted.meets(InodeBits(inode_bit::LOOKUP));
        for found in page {
            let is_elsewhere = || found.inode.mdt() != directory.mdt() && found.name != b"..";
            if let Some(entry) = &found.entry {
                self.keep_name(directory, &found.name, found.inode);
                self.keep_entry(entry, true);
            } else if shows_attributes && is_elsewhere() && self.cache.has_room_elsewhere() {
                self.keep_elsewhere(directory, &found.name, found.inode);
            }
        }
        if self.covers(directory, LISTING_BITS)
            && self.cache.changes.listing_holds(directory, self.asked, &self.question.changes)
        {
            let (epoch, locks_max) = (self.cache.epoch, self.cache.locks_max());
            self.cache.listings.keep((directory, cookie), (page, is_end), epoch, locks_max);
        }
    }
}
