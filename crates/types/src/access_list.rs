//! POSIX access lists (POSIX.1e draft 17, withdrawn, as implemented in Linux: fs/posix_acl.c):
//! decoding, validity, and what chmod, creation and setxattr do with them. Pure.
//!
//! The form is that of the xattrs `system.posix_acl_access` and `system.posix_acl_default` (Linux
//! include/uapi/linux/posix_acl_xattr.h), little-endian: version 2 (4), then per entry tag (2),
//! permissions (2), id (4).

use crate::{FsError, FsResult};

/// Name of the access list among extended attributes.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// Name of the default access list.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";
const VERSION: u32 = 2;
const UNDEFINED_ID: u32 = u32::MAX;
const ENTRY_BYTES: usize = 8;

/// Whom an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner,
    /// This user.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// This group.
    Group(u32),
    /// Bound of everything but owner and others.
    Mask,
    /// Everybody else.
    Other,
}

/// One entry: permissions are 4 read, 2 write, 1 execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessEntry {
    /// For whom.
    pub tag: Tag,
    /// What.
    pub permissions: u32,
}

/// A valid access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessList {
    entries: Vec<AccessEntry>,
}

impl AccessList {
    /// From the xattr's value. `None`: an empty list, which means its removal. Invalid lists are
    /// `Invalid`.
    pub fn decode(value: &[u8]) -> FsResult<Option<Self>> {
        let (version, mut rest) = value.split_first_chunk::<4>().ok_or(FsError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::NotSupported);
        }
        if rest.is_empty() {
            return Ok(None);
        }
        let mut entries = Vec::with_capacity(rest.len() / ENTRY_BYTES);
        while let Some((entry, following)) = rest.split_first_chunk::<ENTRY_BYTES>() {
            entries.push(decode_entry(*entry)?);
            rest = following;
        }
        let list = Self { entries };
        if rest.is_empty() && list.is_valid() { Ok(Some(list)) } else { Err(FsError::Invalid) }
    }

    /// The xattr's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id) = match entry.tag {
                Tag::Owner => (0x01u16, UNDEFINED_ID),
                Tag::User(id) => (0x02, id),
                Tag::OwningGroup => (0x04, UNDEFINED_ID),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, UNDEFINED_ID),
                Tag::Other => (0x20, UNDEFINED_ID),
            };
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&(entry.permissions as u16).to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    /// Owner, users, owning group, groups, mask, others, in this order; each unnamed one once; a
    /// mask if anybody is named.
    fn is_valid(&self) -> bool {
        let rank = |tag: Tag| match tag {
            Tag::Owner => 0,
            Tag::User(_) => 1,
            Tag::OwningGroup => 2,
            Tag::Group(_) => 3,
            Tag::Mask => 4,
            Tag::Other => 5,
        };
        let count = |wanted: u32| self.entries.iter().filter(|entry| rank(entry.tag) == wanted).count();
        let named = count(1) + count(3);
        self.entries.is_sorted_by_key(|entry| rank(entry.tag))
            && count(0) == 1
            && count(2) == 1
            && count(5) == 1
            && (count(4) == 1 || (count(4) == 0 && named == 0))
    }

    /// The entries in order.
    pub fn entries(&self) -> &[AccessEntry] {
        &self.entries
    }

    fn get(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
    }

    fn get_mut(&mut self, tag: Tag) -> Option<&mut u32> {
        self.entries.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.permissions)
    }

    /// The permissions that bound users, groups and the owning group.
    pub fn mask(&self) -> u32 {
        self.get(Tag::Mask).unwrap_or(7)
    }

    /// The entry that the group bits of the mode stand for: the mask, or the owning group if there
    /// is none.
    fn group_class(&mut self) -> &mut u32 {
        let tag = if self.get(Tag::Mask).is_some() { Tag::Mask } else { Tag::OwningGroup };
        self.get_mut(tag).expect("a valid list has an owning group")
    }

    /// The nine permission bits that this list shows as a mode.
    pub fn mode(&self) -> u32 {
        let of = |tag| self.get(tag).expect("a valid list has owner, owning group and others");
        let group = self.get(Tag::Mask).unwrap_or_else(|| of(Tag::OwningGroup));
        of(Tag::Owner) << 6 | group << 3 | of(Tag::Other)
    }

    /// Whether the nine mode bits say all that this list says.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// chmod: the mode's bits become those of owner, group class and others.
    pub fn set_mode(&mut self, mode: u32) {
        let bits = |shift: u32| mode >> shift & 7;
        *self.get_mut(Tag::Owner).expect("a valid list has an owner") = bits(6);
        *self.group_class() = bits(3);
        *self.get_mut(Tag::Other).expect("a valid list has others") = bits(0);
    }

    /// Creation in a directory with this default list: the child's access list, and its nine bits,
    /// both restricted to the mode asked for.
    pub fn for_child(&self, mode: u32) -> (AccessList, u32) {
        let mut child = self.clone();
        let bits = |shift: u32| mode >> shift & 7;
        *child.get_mut(Tag::Owner).expect("a valid list has an owner") &= bits(6);
        *child.group_class() &= bits(3);
        *child.get_mut(Tag::Other).expect("a valid list has others") &= bits(0);
        let mode = child.mode();
        (child, mode)
    }
}

fn decode_entry(bytes: [u8; ENTRY_BYTES]) -> FsResult<AccessEntry> {
    let [tag0, tag1, permissions0, permissions1, id @ ..] = bytes;
    let id = u32::from_le_bytes(id);
    let tag = match u16::from_le_bytes([tag0, tag1]) {
        0x01 => Tag::Owner,
        0x02 if id != UNDEFINED_ID => Tag::User(id),
        0x04 => Tag::OwningGroup,
        0x08 if id != UNDEFINED_ID => Tag::Group(id),
        0x10 => Tag::Mask,
        0x20 => Tag::Other,
        _ => return Err(FsError::Invalid),
    };
    let permissions = u32::from(u16::from_le_bytes([permissions0, permissions1]));
    if permissions > 7 { Err(FsError::Invalid) } else { Ok(AccessEntry { tag, permissions }) }
}

/// Builds a list for tests.
#[cfg(test)]
pub(crate) fn list(entries: &[(Tag, u32)]) -> AccessList {
    AccessList {
        entries: entries
            .iter()
            .map(|(tag, permissions)| AccessEntry { tag: *tag, permissions: *permissions })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> AccessList {
        list(&[
            (Tag::Owner, 7),
            (Tag::User(1000), 6),
            (Tag::OwningGroup, 5),
            (Tag::Group(2000), 4),
            (Tag::Mask, 6),
            (Tag::Other, 1),
        ])
    }

    #[test]
    fn round_trips_and_says_its_mode() {
        assert_eq!(AccessList::decode(&named().encode()), Ok(Some(named())));
        assert_eq!(named().mode(), 0o761);
        let minimal = list(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)]);
        assert_eq!((minimal.mode(), minimal.is_minimal(), minimal.mask()), (0o640, true, 7));
        assert_eq!(AccessList::decode(&VERSION.to_le_bytes()), Ok(None));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let invalid = [
            list(&[(Tag::Owner, 6), (Tag::OwningGroup, 4)]),
            list(&[(Tag::Owner, 6), (Tag::User(1), 4), (Tag::OwningGroup, 4), (Tag::Other, 0)]),
            list(&[(Tag::OwningGroup, 4), (Tag::Owner, 6), (Tag::Other, 0)]),
            list(&[(Tag::Owner, 6), (Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)]),
            list(&[(Tag::Owner, 8), (Tag::OwningGroup, 4), (Tag::Other, 0)]),
        ];
        for wrong in invalid {
            assert_eq!(AccessList::decode(&wrong.encode()), Err(FsError::Invalid), "{wrong:?}");
        }
        assert_eq!(AccessList::decode(&named().encode()[..20][..19]), Err(FsError::Invalid));
        assert_eq!(AccessList::decode(&[1, 0, 0, 0]), Err(FsError::NotSupported));
        assert_eq!(AccessList::decode(&[]), Err(FsError::Invalid));
    }

    #[test]
    fn chmod_changes_the_mask_and_spares_the_owning_group() {
        let mut changed = named();
        changed.set_mode(0o640);
        assert_eq!(changed.mode(), 0o640);
        assert_eq!(changed.get(Tag::OwningGroup), Some(5));
        assert_eq!(changed.get(Tag::Mask), Some(4));
        let mut minimal = list(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)]);
        minimal.set_mode(0o777);
        assert_eq!(minimal.get(Tag::OwningGroup), Some(7));
    }

    #[test]
    fn a_child_gets_no_more_than_its_mode() {
        let (child, mode) = named().for_child(0o640);
        assert_eq!(mode, 0o640);
        assert_eq!(
            (child.get(Tag::User(1000)), child.get(Tag::Mask), child.get(Tag::Other)),
            (Some(6), Some(4), Some(0))
        );
        let (_, mode) = named().for_child(0o777);
        assert_eq!(mode, 0o761, "the default list bounds the mode");
    }
}
