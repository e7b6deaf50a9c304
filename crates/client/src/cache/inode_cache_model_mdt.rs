//! The MDT of the model: names at positions in their directories, locks of one client, and a change
//! of another client that waits for them.
//!
//! Positions are as those of the real one: names may have the same hash, and then get the first
//! number that is free, which may be that of a name that is gone.

use rpc::message::mdt::{COOKIE_PARENT, COOKIE_SELF};

use super::*;

/// A part of an inode that a change concerns.
pub(super) type Part = (InodeNumber, u32);

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub entry: Entry,
    pub version: u64,
    /// The request of this client that changed it last.
    pub changed_by: Option<u64>,
    /// Of a directory: the one above it.
    pub above: InodeNumber,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Mdt {
    pub nodes: BTreeMap<InodeNumber, Node>,
    /// Where names lead, and their cookies.
    pub names: BTreeMap<(InodeNumber, Vec<u8>), (InodeNumber, u64)>,
    pub locks: BTreeMap<LockHandle, Part>,
    /// A change of the other client waits.
    pub waiting: Option<MdtRequest>,
    next: u64,
    /// Whether it grants all that it may.
    pub is_generous: bool,
    /// What the last request did to names.
    pub told: Vec<ChangedName>,
}

pub(super) fn parts(inode: InodeNumber, bits: u32) -> Part {
    (inode, bits)
}

impl Mdt {
    pub fn new() -> Self {
        let mut mdt = Self { next: 100, ..Self::default() };
        mdt.add(ROOT, FileKind::Directory, ROOT);
        mdt
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn add(&mut self, inode: InodeNumber, kind: FileKind, above: InodeNumber) {
        let attributes = Attributes { links: 1, mode: 0o755, ..Attributes::zeroed(inode, kind) };
        let entry = Entry { accounted: NOW, ..Entry::of(attributes) };
        self.nodes.insert(inode, Node { entry, version: 1, changed_by: None, above });
    }

    pub fn find(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        self.names.get(&(parent, name.to_vec())).map(|(inode, _)| *inode)
    }

    pub fn is_directory(&self, inode: InodeNumber) -> bool {
        self.nodes.get(&inode).is_some_and(|node| node.entry.attributes.kind == FileKind::Directory)
    }

    pub fn directories(&self) -> Vec<InodeNumber> {
        self.nodes.keys().copied().filter(|inode| self.is_directory(*inode)).collect()
    }

    /// Lets a name lead somewhere.
    pub fn point(&mut self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        let place = (parent, name.to_vec());
        let known = self.names.get(&place).map(|(_, cookie)| *cookie);
        let is_taken = |cookie: &u64| self.names.iter().any(|((of, _), (_, taken))| (*of, taken) == (parent, cookie));
        let cookie = known.or_else(|| (hash(name)..).find(|cookie| !is_taken(cookie))).expect("numbers do not end");
        self.names.insert(place, (inode, cookie));
        let kind = self.nodes[&inode].entry.attributes.kind;
        self.tell(parent, name, cookie, Some((inode, kind)));
    }

    /// Removes a name.
    pub fn cut(&mut self, parent: InodeNumber, name: &[u8]) {
        let (_, cookie) = self.names.remove(&(parent, name.to_vec())).expect("it exists");
        self.tell(parent, name, cookie, None);
    }

    pub fn tell(&mut self, directory: InodeNumber, name: &[u8], cookie: u64, target: Option<(InodeNumber, FileKind)>) {
        self.told.push(ChangedName { directory, name: name.to_vec(), cookie, target });
    }

    pub fn is_empty(&self, directory: InodeNumber) -> bool {
        self.names.keys().all(|(parent, _)| *parent != directory)
    }

    /// Whether a directory is this one or below it.
    pub fn is_within(&self, mut directory: InodeNumber, other: InodeNumber) -> bool {
        while directory != other && directory != ROOT {
            directory = self.nodes[&directory].above;
        }
        directory == other
    }

    /// What a change makes visible, in parts of inodes.
    pub fn concerned(&self, request: &MdtRequest) -> Vec<Part> {
        let directory = |inode| parts(inode, inode_bit::DIRECTORY | inode_bit::ATTRIBUTES);
        let named = |parent, name: &[u8]| {
            let found = self.find(parent, name);
            found.map(|inode| parts(inode, inode_bit::LOOKUP | inode_bit::ATTRIBUTES))
        };
        let removed = |parent, name: &[u8]| {
            let found = self.find(parent, name);
            found.map(|inode| parts(inode, SHOWN | inode_bit::DIRECTORY))
        };
        match request {
            MdtRequest::SetAttributes(_, inode, _) => vec![parts(*inode, inode_bit::ATTRIBUTES)],
            MdtRequest::Create(_, create) => vec![directory(create.parent)],
            MdtRequest::Link(_, link) => vec![directory(link.parent), parts(link.inode, inode_bit::ATTRIBUTES)],
            MdtRequest::Unlink(_, unlink) => {
                [directory(unlink.parent)].into_iter().chain(removed(unlink.parent, &unlink.name)).collect()
            }
            MdtRequest::Rename(_, rename) => [directory(rename.parent), directory(rename.new_parent)]
                .into_iter()
                .chain(named(rename.parent, &rename.name))
                .chain(removed(rename.new_parent, &rename.new_name))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The locks of the cache's client in the way of the change that waits.
    pub fn in_the_way(&self) -> Vec<LockHandle> {
        let concerned = self.waiting.as_ref().map(|request| self.concerned(request)).unwrap_or_default();
        let conflicts = |(inode, bits): &Part| concerned.iter().any(|(other, of)| other == inode && of & bits != 0);
        self.locks.iter().filter(|(_, part)| conflicts(part)).map(|(handle, _)| *handle).collect()
    }

    pub fn change(&mut self, inode: InodeNumber, by: Option<u64>, links: i64) {
        let Some(node) = self.nodes.get_mut(&inode) else { return };
        node.entry.attributes.size += 1;
        node.entry.attributes.links = (i64::from(node.entry.attributes.links) + links) as u32;
        node.changed_by = by;
        node.version += 1;
        if node.entry.attributes.links == 0 {
            self.nodes.remove(&inode);
        }
    }

    pub fn execute(&mut self, request: &MdtRequest, by: Option<u64>) -> FsResult<MdtReply> {
        self.told.clear();
        let entry = |mdt: &Self, inode| mdt.nodes.get(&inode).map(|node| node.entry.clone()).ok_or(FsError::Stale);
        match request {
            MdtRequest::Lookup(_, lookup) => {
                let inode = self.find(lookup.parent, &lookup.name).ok_or(FsError::NotFound)?;
                Ok(MdtReply::Entry(entry(self, inode)?))
            }
            MdtRequest::GetAttributes(inode) => Ok(MdtReply::Entry(entry(self, *inode)?)),
            MdtRequest::ReadDirectory(read) => {
                if !self.is_directory(read.inode) {
                    return Err(FsError::Stale);
                }
                let rest: Vec<_> =
                    self.listing(read.inode).into_iter().filter(|found| found.cookie > read.cookie).collect();
                let count = rest.len().min(read.entries_max as usize);
                let end = count == rest.len();
                Ok(MdtReply::Directory(rest.into_iter().take(count).collect(), end))
            }
            MdtRequest::SetAttributes(_, inode, _) => {
                entry(self, *inode)?;
                self.change(*inode, by, 0);
                Ok(MdtReply::Entry(entry(self, *inode)?))
            }
            MdtRequest::Create(_, create) => {
                if !self.is_directory(create.parent) {
                    return Err(FsError::Stale);
                }
                if self.find(create.parent, &create.name).is_some() {
                    return Err(FsError::Exists);
                }
                let inode = InodeNumber(self.number());
                self.add(inode, create.kind.file_kind(), create.parent);
                self.point(create.parent, &create.name, inode);
                self.change(create.parent, by, 0);
                Ok(MdtReply::Created(Box::new(Created { entry: entry(self, inode)?, created: true, opened: None })))
            }
            MdtRequest::Link(_, link) => {
                entry(self, link.inode)?;
                if !self.is_directory(link.parent) || self.is_directory(link.inode) {
                    return Err(FsError::NotPermitted);
                }
                if self.find(link.parent, &link.name).is_some() {
                    return Err(FsError::Exists);
                }
                self.point(link.parent, &link.name, link.inode);
                self.change(link.parent, by, 0);
                self.change(link.inode, by, 1);
                Ok(MdtReply::Entry(entry(self, link.inode)?))
            }
            MdtRequest::Unlink(_, unlink) => {
                let inode = self.find(unlink.parent, &unlink.name).ok_or(FsError::NotFound)?;
                if !self.is_empty(inode) {
                    return Err(FsError::NotEmpty);
                }
                self.cut(unlink.parent, &unlink.name);
                self.change(unlink.parent, by, 0);
                self.change(inode, by, -1);
                Ok(MdtReply::Done)
            }
            MdtRequest::Rename(_, rename) => self.rename(rename, by),
            other => panic!("the model does not know {other:?}"),
        }
    }

    pub fn rename(&mut self, rename: &Rename, by: Option<u64>) -> FsResult<MdtReply> {
        let inode = self.find(rename.parent, &rename.name).ok_or(FsError::NotFound)?;
        let replaced = self.find(rename.new_parent, &rename.new_name);
        if replaced == Some(inode) {
            return Ok(MdtReply::Done);
        }
        if !self.is_directory(rename.new_parent) {
            return Err(FsError::Stale);
        }
        if self.is_directory(inode) && self.is_within(rename.new_parent, inode) {
            return Err(FsError::Invalid);
        }
        if replaced.is_some_and(|replaced| !self.is_empty(replaced)) {
            return Err(FsError::NotEmpty);
        }
        self.cut(rename.parent, &rename.name);
        self.point(rename.new_parent, &rename.new_name, inode);
        self.nodes.get_mut(&inode).expect("names lead to inodes").above = rename.new_parent;
        self.change(rename.parent, by, 0);
        self.change(rename.new_parent, by, 0);
        self.change(inode, by, 0);
        if let Some(replaced) = replaced {
            self.change(replaced, by, -1);
        }
        Ok(MdtReply::Done)
    }

    /// The names of a directory, in the order of their cookies.
    pub fn listing(&self, directory: InodeNumber) -> Vec<DirectoryEntry> {
        let found = |name: &[u8], inode: InodeNumber, cookie: u64| DirectoryEntry {
            name: name.to_vec(),
            inode,
            kind: self.nodes[&inode].entry.attributes.kind,
            cookie,
            entry: (cookie > COOKIE_PARENT).then(|| self.nodes[&inode].entry.clone()),
            locks: Vec::new(),
            version: self.nodes[&inode].version,
        };
        let of_directory = self.names.iter().filter(|((parent, _), _)| *parent == directory);
        let names = of_directory.map(|((_, name), (inode, cookie))| found(name, *inode, *cookie));
        let dots = [found(b".", directory, COOKIE_SELF), found(b"..", self.nodes[&directory].above, COOKIE_PARENT)];
        let mut all: Vec<_> = dots.into_iter().chain(names).collect();
        all.sort_by_key(|found| found.cookie);
        all
    }

    /// Grants locks on some inodes of a page.
    pub fn grant_page(&mut self, page: &mut [DirectoryEntry], dice: &mut SplitMix64) {
        let concerned = self.waiting.as_ref().map(|request| self.concerned(request)).unwrap_or_default();
        for found in page.iter_mut().filter(|found| found.entry.is_some()) {
            let bits = self.grantable(found.inode, SHOWN, &concerned) & dice.next_u64() as u32;
            if bits != 0 {
                let handle = LockHandle(self.number());
                self.locks.insert(handle, (found.inode, bits));
                found.locks = vec![(handle, InodeBits(bits))];
            }
        }
    }

    /// Bits of an inode that neither the client holds nor a change concerns.
    pub fn grantable(&self, inode: InodeNumber, bits: u32, concerned: &[Part]) -> u32 {
        let taken = self.locks.values().chain(concerned).filter(|part| part.0 == inode);
        bits & !taken.fold(0, |all, part| all | part.1)
    }

    /// What comes with the reply to a change: versions, and inodes of whose attributes the client
    /// has the lock.
    pub fn beside(&self, number: u64, before: &BTreeMap<InodeNumber, u64>) -> ReplyExtension {
        let changed = |(inode, node): &(&InodeNumber, &Node)| {
            node.changed_by == Some(number) && before.get(inode) != Some(&node.version)
        };
        let version = |(inode, node): (&InodeNumber, &Node)| InodeVersion {
            inode: *inode,
            before: before.get(inode).copied().unwrap_or(0),
            after: node.version,
        };
        let versions = self.nodes.iter().filter(changed).map(version).collect();
        let held = |inode: &InodeNumber| self.grantable(*inode, inode_bit::ATTRIBUTES, &[]) == 0;
        let shown = self.nodes.iter().filter(changed).filter(|(inode, _)| held(inode));
        let changed = shown.map(|(_, node)| node.entry.clone()).collect();
        let (change, names) = (Some(Change { versions, ..Change::default() }), self.told.clone());
        ReplyExtension { change, changed, names, ..ReplyExtension::default() }
    }

    /// Grants some of what is wanted and not held, unless the change that waits is in the way.
    pub fn grant(&mut self, wanted: Enqueue, shown: Option<InodeNumber>, dice: &mut SplitMix64) -> Vec<Granted> {
        let Resource::Inode(named, InodeBits(bits)) = wanted.resource else { return Vec::new() };
        let concerned = self.waiting.as_ref().map(|request| self.concerned(request)).unwrap_or_default();
        let mut granted = Vec::new();
        // What there is to know of the names in a new directory.
        let of_new = |inode| if self.is_directory(inode) && self.is_empty(inode) { 0 } else { inode_bit::DIRECTORY };
        let of_shown = shown.map(|inode| (inode, bits & !of_new(inode)));
        let all = if self.is_generous || dice.next_u64().is_multiple_of(2) { u32::MAX } else { 0 };
        for (inode, bits) in [(named, bits & inode_bit::DIRECTORY)].into_iter().chain(of_shown) {
            let grantable = self.grantable(inode, bits, &concerned) & (dice.next_u64() as u32 | all);
            if grantable != 0 {
                let handle = LockHandle(self.number());
                self.locks.insert(handle, (inode, grantable));
                let resource = Resource::Inode(inode, InodeBits(grantable));
                let version = self.nodes.get(&inode).map_or(0, |node| node.version);
                granted.push(Granted { handle, resource, mode: CacheMode::Read, version });
            }
        }
        granted
    }
}

/// Where the search for a free position begins: two of the names have the same hash.
fn hash(name: &[u8]) -> u64 {
    match name {
        b"a" | b"b" => 16,
        b"c" => 32,
        _ => 24,
    }
}
