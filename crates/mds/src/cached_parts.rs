//! Which parts of inodes, among those that clients cache under locks, a batch changes. Compares
//! what the tables have with what the batch puts there, so no operation has to declare what it
//! changes.
//!
//! | in the batch | part |
//! |---|---|
//! | a name of a directory is put or removed | its `DIRECTORY`; `LOOKUP` of the inode to which the name led until then |
//! | a name of an inode ends or becomes another one, as its own records say | `LOOKUP`: the name may be on another MDT |
//! | an inode's record | `ATTRIBUTES`, if anything that clients see of them differs; `LAYOUT`; `XATTRS` |
//! | its mode gets a set-id bit | also `XATTRS`: writers are told, to clear it |
//! | its layout becomes one that the former cannot have grown to | also `OPEN` and `DATA`: readers with the former do not find the data |
//! | its removal, while it has a name | all |
//! | its record among the orphans: it has no name any more | `OPEN`, `DATA` |
//! | an object on this MDT, or a block of it | `DATA` |
//! | an extended attribute | `XATTRS`; of an access list also `ATTRIBUTES` |
//!
//! A change of only the access time is treated separately: it is caused by reading, and reads do
//! not wait. Removing an inode that has no name any more changes nothing that is cached: other
//! clients gave back their locks when its last name was removed, and none has been granted since.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kv::{Operation, Table};
use lock::{InodeBits, inode_bit};
use types::{
    Attributes, FsResult, InodeNumber, Timestamp,
    access_list::{ACCESS_NAME, DEFAULT_NAME},
    permission::without_set_id,
};

use crate::tables::{
    DATA, ENTRIES, INODES, LINKS, ORPHANS, XATTRS,
    codec::inode_of_key,
    data::{self, DataKey},
    entry::EntryRecord,
    inode::{Inode, InodeData},
    link, xattr,
};

/// See the module documentation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedParts {
    changed: BTreeMap<InodeNumber, InodeBits>,
    /// Inodes of which only the access time changes.
    accessed: BTreeSet<InodeNumber>,
    /// Inodes that are removed.
    removed: Vec<InodeNumber>,
    /// Inodes that have no name any more, and exist.
    unnamed: Vec<InodeNumber>,
}

impl CachedParts {
    /// Of a batch; `stored`: a value as the tables have it before. Records are compared of inodes
    /// of which `is_cached` says that others have cached something; the rest is not told. What
    /// cannot be decoded is not cached by any client: it was never shown.
    pub fn changed_by(
        operations: &[Operation],
        stored: impl Fn(Table, &[u8]) -> FsResult<Option<Bytes>>,
        is_cached: impl Fn(InodeNumber) -> bool,
    ) -> FsResult<Self> {
        let mut parts = Self::default();
        // Of several operations on one key the last counts.
        let mut last: BTreeMap<(Table, &[u8]), &Operation> = BTreeMap::new();
        let mut with_data = BTreeSet::new();
        for operation in operations {
            match operation.table() {
                ENTRIES | INODES | LINKS | XATTRS | ORPHANS => {
                    last.insert((operation.table(), operation.key()), operation);
                }
                DATA => {
                    if let Ok(DataKey::Object(object) | DataKey::Block(object, _)) = data::decode_key(operation.key()) {
                        with_data.insert(object.inode);
                    }
                }
                _ => {}
            }
        }
        for ((table, key), operation) in last {
            let after = match operation {
                Operation::Put(_, _, value) => Some(value),
                Operation::Delete(..) => None,
            };
            let inode = inode_of_key("inode", key).ok();
            match table {
                ENTRIES => parts.entry(key, stored(table, key)?.as_ref(), after),
                XATTRS => parts.xattr(key),
                LINKS => parts.link(key, after),
                ORPHANS => parts.orphan(inode.filter(|_| after.is_some())),
                _ => {
                    parts.removed.extend(inode.filter(|_| after.is_none()));
                    if let Some(inode) = inode.filter(|inode| is_cached(*inode)) {
                        parts.inode(inode, stored(table, key)?.as_ref(), after);
                    }
                }
            }
        }
        // The data of an inode that is removed go with it.
        with_data.retain(|inode| is_cached(*inode) && !parts.removed.contains(inode));
        with_data.into_iter().for_each(|inode| parts.add(inode, InodeBits(inode_bit::DATA)));
        parts.accessed.retain(|inode| !parts.changed.get(inode).is_some_and(|bits| bits.meets(ATTRIBUTES)));
        Ok(parts)
    }

    /// These parts, too.
    pub fn add(&mut self, inode: InodeNumber, bits: InodeBits) {
        if !bits.is_empty() {
            *self.changed.entry(inode).or_default() |= bits;
        }
    }

    fn entry(&mut self, key: &[u8], before: Option<&Bytes>, after: Option<&Bytes>) {
        let target = |value: Option<&Bytes>| value.and_then(|value| EntryRecord::decode(value).ok()?.target);
        let (before, after) = (target(before), target(after));
        let Ok((directory, _)) = EntryRecord::decode_key(key) else { return };
        if before == after {
            return;
        }
        self.add(directory, InodeBits(inode_bit::DIRECTORY));
        if let Some(before) = before {
            self.add(before.inode, LOOKUP);
        }
    }

    fn inode(&mut self, number: InodeNumber, before: Option<&Bytes>, after: Option<&Bytes>) {
        let decoded = |value: Option<&Bytes>| value.and_then(|value| Inode::decode(number, value).ok());
        let (before, after) = (decoded(before), decoded(after));
        match (before, after) {
            (Some(before), Some(after)) => {
                self.add(number, difference(&before, &after));
                if before.first_link.is_some() && before.first_link != after.first_link {
                    self.add(number, LOOKUP);
                }
                if before.attributes.atime != after.attributes.atime {
                    self.accessed.insert(number);
                }
            }
            (Some(before), None) if before.attributes.links > 0 => self.add(number, InodeBits::ALL),
            (_, None) | (None, Some(_)) => {}
        }
    }

    fn xattr(&mut self, key: &[u8]) {
        let Ok((inode, name)) = xattr::decode_key(key) else { return };
        let is_list = name == ACCESS_NAME || name == DEFAULT_NAME;
        self.add(inode, InodeBits(inode_bit::XATTRS | if is_list { inode_bit::ATTRIBUTES } else { 0 }));
    }

    fn link(&mut self, key: &[u8], after: Option<&Bytes>) {
        if let (Ok((inode, _)), None) = (link::decode_key(key), after) {
            self.add(inode, LOOKUP);
        }
    }

    fn orphan(&mut self, inode: Option<InodeNumber>) {
        if let Some(inode) = inode {
            self.add(inode, InodeBits(inode_bit::OPEN | inode_bit::DATA));
            self.unnamed.push(inode);
        }
    }

    /// Parts that clients may have cached.
    pub fn changed(&self) -> Vec<(InodeNumber, InodeBits)> {
        self.changed.iter().map(|(inode, bits)| (*inode, *bits)).collect()
    }

    /// Attributes of which only the access time changes.
    pub fn accessed(&self) -> Vec<(InodeNumber, InodeBits)> {
        self.accessed.iter().map(|inode| (*inode, ATTRIBUTES)).collect()
    }

    /// Inodes that have no name any more, and exist until they are closed.
    pub fn unnamed(&self) -> &[InodeNumber] {
        &self.unnamed
    }

    /// Inodes that exist no more.
    pub fn removed(&self) -> &[InodeNumber] {
        &self.removed
    }
}

const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const LOOKUP: InodeBits = InodeBits(inode_bit::LOOKUP);

/// What differs besides the access time.
fn difference(before: &Inode, after: &Inode) -> InodeBits {
    let seen = |inode: &Inode| Attributes { atime: Timestamp::default(), ..inode.attributes };
    let target = |inode: &Inode| match &inode.data {
        InodeData::Symlink(target) => Some(target.clone()),
        InodeData::Regular(_) | InodeData::Directory(_) | InodeData::Special => None,
    };
    let attributes = seen(before) != seen(after)
        || target(before) != target(after)
        || (before.size_known, before.epoch, before.accounted) != (after.size_known, after.epoch, after.accounted)
        || (before.access_list, before.default_list) != (after.access_list, after.default_list);
    let layout = match (&before.data, &after.data) {
        (InodeData::Symlink(_), InodeData::Symlink(_)) => false,
        (before, after) => before != after,
    };
    let grown = match (&before.data, &after.data) {
        (InodeData::Regular(before), InodeData::Regular(after)) => before == after || after.has_grown_from(before),
        _ => true,
    };
    let bit = |differs: bool, bit: u32| if differs { bit } else { 0 };
    InodeBits(
        bit(attributes, inode_bit::ATTRIBUTES)
            | bit(layout || before.map_version != after.map_version, inode_bit::LAYOUT)
            | bit(!grown, inode_bit::OPEN | inode_bit::DATA)
            | bit(before.xattrs != after.xattrs || gets_set_id(before, after), inode_bit::XATTRS),
    )
}

/// Whether the mode gets a bit that a write clears.
fn gets_set_id(before: &Inode, after: &Inode) -> bool {
    let (before, after) = (before.attributes.mode, after.attributes.mode);
    before != after && without_set_id(after) != after
}

#[cfg(test)]
mod tests {
    use types::{FileKind, ObjectId};

    use super::*;
    use crate::tables::{
        entry::{NamedInode, Position},
        inode::{Link, tests::sample},
    };

    const DIRECTORY: InodeNumber = InodeNumber(2);

    fn changed(before: Option<Bytes>, operation: Operation) -> CachedParts {
        CachedParts::changed_by(&[operation], |_, _| Ok(before.clone()), |_| true).unwrap()
    }

    fn put(inode: &Inode) -> Operation {
        Operation::Put(INODES, Inode::key(inode.number()).into(), inode.encode().into())
    }

    fn bits(parts: &CachedParts) -> u32 {
        parts.changed().iter().fold(0, |all, (_, bits)| all | bits.0)
    }

    #[test]
    fn records_are_compared() {
        let before = sample(FileKind::Regular);
        let change = |change: &dyn Fn(&mut Inode)| {
            let mut after = before.clone();
            after.version += 1;
            change(&mut after);
            changed(Some(before.encode().into()), put(&after))
        };
        assert_eq!(change(&|_| {}), CachedParts::default(), "only its version");
        assert_eq!(bits(&change(&|inode| inode.attributes.links += 1)), inode_bit::ATTRIBUTES);
        assert_eq!(bits(&change(&|inode| inode.epoch += 1)), inode_bit::ATTRIBUTES);
        assert_eq!(bits(&change(&|inode| inode.xattrs = !inode.xattrs)), inode_bit::XATTRS);
        let chmod = |before: u32, after: u32| {
            let (mut former, mut inode) = (sample(FileKind::Regular), sample(FileKind::Regular));
            (former.attributes.mode, inode.attributes.mode) = (before, after);
            bits(&changed(Some(former.encode().into()), put(&inode)))
        };
        let both = inode_bit::ATTRIBUTES | inode_bit::XATTRS;
        assert_eq!((chmod(0o100755, 0o104755), chmod(0o102666, 0o102676)), (both, both));
        assert_eq!(
            (chmod(0o104755, 0o100755), chmod(0o100666, 0o102666)),
            (inode_bit::ATTRIBUTES, inode_bit::ATTRIBUTES)
        );
        let read = change(&|inode| inode.attributes.atime.seconds += 1);
        assert_eq!((bits(&read), read.accessed()), (0, vec![(before.number(), ATTRIBUTES)]));
        let both = change(&|inode| {
            inode.attributes.atime.seconds += 1;
            inode.attributes.ctime.seconds += 1;
        });
        assert_eq!((bits(&both), both.accessed()), (inode_bit::ATTRIBUTES, vec![]));
    }

    #[test]
    fn a_name_on_another_mdt_ends_with_the_record_of_the_inode() {
        let before = sample(FileKind::Directory);
        let after = |first_link: Option<Link>| {
            let after = Inode { first_link, ..before.clone() };
            bits(&changed(Some(before.encode().into()), put(&after)))
        };
        let link = |parent: u64, name: &[u8]| Some(Link { parent: InodeNumber(parent), name: name.to_vec() });
        assert_eq!(after(before.first_link.clone()), 0);
        assert_eq!((after(link(9, b"other")), after(None)), (inode_bit::LOOKUP, inode_bit::LOOKUP));
        let unnamed = Inode { first_link: None, ..before.clone() };
        assert_eq!(bits(&changed(Some(unnamed.encode().into()), put(&before))), 0, "it had no name");
        let further = || Bytes::from(link::key(before.number(), &link(9, b"other").unwrap()));
        let put = Operation::Put(LINKS, further(), link::value().into());
        assert_eq!(bits(&changed(None, put)), 0, "one more name");
        assert_eq!(bits(&changed(None, Operation::Delete(LINKS, further()))), inode_bit::LOOKUP);
    }

    #[test]
    fn removal_takes_everything_from_what_has_a_name() {
        let mut inode = sample(FileKind::Regular);
        let delete = || Operation::Delete(INODES, Inode::key(inode.number()).into());
        let removed = changed(Some(inode.encode().into()), delete());
        assert_eq!((bits(&removed), removed.removed()), (InodeBits::ALL.0, &[inode.number()][..]));
        let number = inode.number();
        inode.attributes.links = 0;
        let removed = changed(Some(inode.encode().into()), Operation::Delete(INODES, Inode::key(number).into()));
        assert_eq!((bits(&removed), removed.removed()), (0, &[number][..]), "its last name went before");
    }

    #[test]
    fn names_belong_to_the_directory_and_to_the_inode_they_led_to() {
        let position = Position::of(b"name");
        let record = |inode: u64, more: bool| {
            let target = NamedInode { name: b"name".to_vec(), inode: InodeNumber(inode), kind: FileKind::Regular };
            Bytes::from(EntryRecord { more, target: Some(target) }.encode())
        };
        let key = || Bytes::from(EntryRecord::key(DIRECTORY, position));
        let (names, lookup) = (InodeBits(inode_bit::DIRECTORY), InodeBits(inode_bit::LOOKUP));
        let new = changed(None, Operation::Put(ENTRIES, key(), record(7, false)));
        assert_eq!(new.changed(), [(DIRECTORY, names)]);
        let replaced = changed(Some(record(7, false)), Operation::Put(ENTRIES, key(), record(8, false)));
        assert_eq!(replaced.changed(), [(DIRECTORY, names), (InodeNumber(7), lookup)]);
        let removed = changed(Some(record(7, false)), Operation::Delete(ENTRIES, key()));
        assert_eq!(removed.changed(), [(DIRECTORY, names), (InodeNumber(7), lookup)]);
        let chained = changed(Some(record(7, false)), Operation::Put(ENTRIES, key(), record(7, true)));
        assert_eq!(chained, CachedParts::default(), "another name with the same hash");
    }

    #[test]
    fn objects_and_their_blocks_are_data() {
        let object = ObjectId::new(InodeNumber(7), 0);
        let data = InodeBits(inode_bit::DATA);
        for key in [data::object_key(object), data::block_key(object, 3)] {
            let put = Operation::Put(DATA, key.clone().into(), Bytes::from_static(b"value"));
            for operation in [put, Operation::Delete(DATA, key.into())] {
                assert_eq!(changed(None, operation).changed(), [(object.inode, data)]);
            }
        }
        let nobody = |operation| CachedParts::changed_by(&[operation], |_, _| Ok(None), |_| false).unwrap();
        let delete = Operation::Delete(DATA, data::object_key(object).into());
        assert_eq!(nobody(delete), CachedParts::default(), "it is cached by nobody");
    }

    #[test]
    fn data_that_go_with_an_inode_without_a_name_change_nothing() {
        let mut inode = sample(FileKind::Regular);
        inode.attributes.links = 0;
        let (key, stored) = (Inode::key(inode.number()), Bytes::from(inode.encode()));
        let object = data::object_key(ObjectId::new(inode.number(), 0));
        let operations = [Operation::Delete(DATA, object.into()), Operation::Delete(INODES, key.into())];
        let stored = |table, _: &[u8]| Ok((table == INODES).then(|| stored.clone()));
        let parts = CachedParts::changed_by(&operations, stored, |_| true).unwrap();
        assert_eq!((bits(&parts), parts.removed()), (0, &[inode.number()][..]));
    }

    #[test]
    fn access_lists_are_attributes_too() {
        let of = |name: &[u8]| {
            let key = xattr::key(InodeNumber(7), name);
            bits(&changed(None, Operation::Put(XATTRS, key.into(), xattr::encode(b"1").into())))
        };
        assert_eq!(of(b"user.a"), inode_bit::XATTRS);
        assert_eq!(of(ACCESS_NAME), inode_bit::XATTRS | inode_bit::ATTRIBUTES);
    }
}
