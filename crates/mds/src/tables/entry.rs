//! ENTRIES: one record per name of a directory. Key: directory (8), position (8). Value, version 1:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 1 |
//! | 1 | 1 | flags: 1 names with the same hash follow, 2 the name itself is gone |
//! | 2 | 1 | kind, as in INODES; 0 if the name is gone |
//! | 3 | 8 | inode; 0 if the name is gone |
//! | 11 | rest | name |
//!
//! Position: `hash56 << 7 | number`: 63 bits, so that it is a positive readdir cookie. The hash is
//! the upper 56 bits of XXH3-64 of the name, at least 1, so that positions begin above the cookies
//! of `.` and `..`. The number separates names with equal hashes. Number 0 always exists while a
//! higher one does (flag 2 if its own name is gone), so that a look-up of a missing name is one
//! read.
//!
//! In a shard of a striped directory the hash has 46 bits, so that the index of the shard has room
//! above it in a cookie: `index << 53 | position`.

use rpc::message::mdt::{COOKIE_HASH_BITS, COOKIE_PARENT, first_cookie};
use types::{
    Damage, FileKind, FsResult, InodeNumber,
    limits::RETURNING_SHARDS_MAX,
    record::{RecordReader, RecordWriter},
    striping::SHARD_INDEX_BITS,
};

use super::codec::{key_of, kind_number, kind_of, split_number};

const VERSION: u8 = 1;
const WHAT: &str = "directory entry";
const FLAG_MORE: u8 = 1;
const FLAG_GONE: u8 = 2;
const NUMBER_BITS: u32 = u64::BITS - 1 - COOKIE_HASH_BITS;
/// Names with equal hashes that one directory can hold.
pub const COLLISIONS_MAX: u64 = 1 << NUMBER_BITS;

const _: () = assert!(COLLISIONS_MAX == RETURNING_SHARDS_MAX as u64, "each shard may bring back a name of any hash");
const _: () = assert!(COOKIE_PARENT < 1 << NUMBER_BITS, "the first position is above the cookies of . and ..");

/// Bits below those of the hash that a shard uses.
const GROUP_BITS: u32 = NUMBER_BITS + SHARD_INDEX_BITS;

/// Where a name is in its directory; also its readdir cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Position {
    /// The first position of a name in a directory that is no shard.
    pub fn of(name: &[u8]) -> Self {
        Self(first_cookie(name, COOKIE_HASH_BITS))
    }

    /// The first position of a name in this directory.
    pub fn of_name_in(directory: InodeNumber, name: &[u8]) -> Self {
        match directory.is_shard() {
            true => Self(first_cookie(name, COOKIE_HASH_BITS - SHARD_INDEX_BITS)),
            false => Self::of(name),
        }
    }

    /// After all names.
    pub const END: Self = Self(u64::MAX);

    /// Of a position in a directory that is no shard: the first and the last position there of
    /// names that have the same hash in a shard.
    pub fn group(self) -> (Self, Self) {
        let group = (self.0 >> GROUP_BITS).max(1);
        let first = if group == 1 { 0 } else { group << GROUP_BITS };
        (Self(first), Self(group << GROUP_BITS | ((1 << GROUP_BITS) - 1)))
    }

    /// Of a position in a directory that is no shard: in a shard.
    pub fn in_shard(self) -> Self {
        Self(self.0 >> SHARD_INDEX_BITS)
    }

    /// Of a position in a shard: the first one like it in a directory that is no shard, which is in
    /// the same group.
    pub fn of_shard(self) -> Self {
        Self(self.0 << SHARD_INDEX_BITS)
    }

    /// The position with the same hash and this number.
    pub fn with_number(self, number: u64) -> Self {
        assert!(number < COLLISIONS_MAX, "a collision number has {NUMBER_BITS} bits");
        Self(self.0 & !(COLLISIONS_MAX - 1) | number)
    }

    /// Its number among names with equal hashes.
    pub fn number(self) -> u64 {
        self.0 & (COLLISIONS_MAX - 1)
    }
}

/// A name and what it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedInode {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub inode: InodeNumber,
    /// Its kind.
    pub kind: FileKind,
}

/// A record of ENTRIES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// Records with the same hash and higher numbers exist. Only in number 0.
    pub more: bool,
    /// The name; `None` if it is gone and the record only stands for those after it.
    pub target: Option<NamedInode>,
}

impl EntryRecord {
    /// The key.
    pub fn key(directory: InodeNumber, position: Position) -> Vec<u8> {
        key_of(&[directory.0, position.0])
    }

    /// Directory and position of a key.
    pub fn decode_key(key: &[u8]) -> FsResult<(InodeNumber, Position)> {
        let (directory, rest) = split_number(WHAT, key)?;
        match split_number(WHAT, rest)? {
            (position, []) => Ok((InodeNumber(directory), Position(position))),
            _ => Err(Damage::new(WHAT, "key too long").into()),
        }
    }

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let more = if self.more { FLAG_MORE } else { 0 };
        let mut writer = RecordWriter::new(VERSION);
        match &self.target {
            Some(target) => writer.u8(more).u8(kind_number(target.kind)).u64(target.inode.0).rest(&target.name),
            None => writer.u8(more | FLAG_GONE).u8(0).u64(0),
        };
        writer.finish()
    }

    /// From the value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new(WHAT, value, VERSION)?;
        let (flags, kind, inode) = (reader.u8()?, reader.u8()?, reader.u64()?);
        if flags & !(FLAG_MORE | FLAG_GONE) != 0 {
            return Err(reader.invalid("unknown flags").into());
        }
        let name = reader.rest().to_vec();
        let gone = flags & FLAG_GONE != 0;
        if gone != name.is_empty() {
            return Err(reader.invalid("a name is both present and removed, or neither").into());
        }
        let target =
            if gone { None } else { Some(NamedInode { name, inode: InodeNumber(inode), kind: kind_of(kind)? }) };
        Ok(Self { more: flags & FLAG_MORE != 0, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_group_have_the_same_place_in_a_shard() {
        let shard = InodeNumber(300).as_shard();
        for number in 0..2000 {
            let name = format!("name{number}").into_bytes();
            let ((first, last), of_shard) = (Position::of(&name).group(), Position::of_name_in(shard, &name));
            assert!(first <= Position::of(&name) && Position::of(&name) < last);
            assert_eq!(first.in_shard(), of_shard);
            for number in [0, 1, COLLISIONS_MAX - 1] {
                let there = of_shard.with_number(number);
                assert_eq!((there.of_shard().in_shard(), there.of_shard().group()), (there, (first, last)));
                assert!(there.of_shard() < last, "some of the group are left");
            }
        }
        let (first, last) = Position(5 << GROUP_BITS | 1234).group();
        assert_eq!((first.group(), last.group()), ((first, last), (first, last)));
        assert_eq!(Position(last.0 + 1).group().0, Position(last.0 + 1));
        // Two hashes of a shard are one.
        assert_eq!(Position(1 << 7).group(), Position(1 << GROUP_BITS).group());
        assert_eq!(Position(1 << 7).group().0, Position(0));
    }

    #[test]
    fn round_trips() {
        let target = NamedInode { name: b"a \xff name".to_vec(), inode: InodeNumber(99), kind: FileKind::Fifo };
        for record in [
            EntryRecord { more: false, target: Some(target.clone()) },
            EntryRecord { more: true, target: Some(target) },
            EntryRecord { more: true, target: None },
        ] {
            assert_eq!(EntryRecord::decode(&record.encode()), Ok(record));
        }
        let position = Position::of(b"x").with_number(5);
        let key = EntryRecord::key(InodeNumber(3), position);
        assert_eq!(EntryRecord::decode_key(&key), Ok((InodeNumber(3), position)));
        assert_eq!(position.number(), 5);
        assert!(EntryRecord::decode_key(&key[1..]).is_err());
        assert!(EntryRecord::decode(&[1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(EntryRecord::decode(&[1, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, b'x']).is_err());
    }

    #[test]
    fn positions_are_positive_cookies_behind_those_of_the_dots() {
        for name in 0u32..10_000 {
            let position = Position::of(&name.to_be_bytes());
            assert!(position.0 > COOKIE_PARENT && i64::try_from(position.0).is_ok());
            assert_eq!(position.number(), 0);
        }
    }
}
