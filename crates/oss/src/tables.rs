//! Every table an OST keeps in its kv store, and the keys of each. Keys are big endian, so that
//! order of keys is order of objects and blocks. Byte tables of the values are next to the types
//! that encode them; docs/disk_format.md, section OST, has all of them.
//!
//! | table | key | value |
//! |---|---|---|
//! | [`META`] 1 | name | see [`superblock`](crate::superblock) |
//! | [`OBJECTS`] 2 | object | [`ObjectRecord`](crate::object_record::ObjectRecord) |
//! | [`CHUNKS`] 3 | object, chunk u64 | [`ChunkRecord`](crate::chunk_record::ChunkRecord) |
//! | [`INLINE`] 4 | object, block u64 | bytes of the block, zeros at its end left out |
//! | [`DIRTY`] 5 | object, chunk u64 | nothing: the chunk has in-place blocks that may not have been flushed |
//! | [`FLUSHED`] 6 | object | epoch u64: the object's file was flushed through this epoch |
//! | [`PENDING`] 7 | number u64 | [`PendingRecord`](crate::pending_record::PendingRecord) |
//! | [`BACKLOG`] 8 | object | nothing: a large object with inline blocks to be written back |
//! | [`EVICTED`] 9 | client u64 | nothing: this client is refused |
//! | [`REPLIES`] 10 | client u64, slot u16 | the last change of the slot, see [`rpc::stored_reply`] |
//! | [`APPLIED`] 11 | MDT u16 | [`AppliedRecord`](crate::applied::AppliedRecord): the last deferred operation of that MDT that was executed |
//! | [`GROUPS`] 12 | allocation group u32 | summary of the group, see [`group_record`](crate::group_record) |
//! | [`BITMAPS`] 13 | allocation group u32, piece u8 | 64 bytes of the group's bitmap |
//! | [`OUT_OF_USE`] 14 | allocation group u32 | nothing: the records of the group are damaged |
//!
//! An object is its inode (u64), slot (u32) and mirror (u8): 13 bytes.

use kv::Table;
use types::{ClientId, InodeNumber, MdtIndex, ObjectId};

/// Facts about the whole target.
pub const META: Table = Table(1);
/// Objects.
pub const OBJECTS: Table = Table(2);
/// States of blocks, 256 to a record.
pub const CHUNKS: Table = Table(3);
/// Bytes of blocks that are not in the host file.
pub const INLINE: Table = Table(4);
/// Chunks to verify after an unclean start.
pub const DIRTY: Table = Table(5);
/// What was flushed of a dirty object since the last mark.
pub const FLUSHED: Table = Table(6);
/// Space of host files to give back.
pub const PENDING: Table = Table(7);
/// Large objects with inline blocks.
pub const BACKLOG: Table = Table(8);
/// Clients to refuse.
pub const EVICTED: Table = Table(9);
/// Replies of changes.
pub const REPLIES: Table = Table(10);
/// How far each MDT's deferred operations were executed.
pub const APPLIED: Table = Table(11);

/// Allocation groups of a device.
pub const GROUPS: Table = Table(12);
/// Their bitmaps.
pub const BITMAPS: Table = Table(13);
/// Groups whose records are damaged, to be made anew at the next start.
pub const OUT_OF_USE: Table = Table(14);

/// All tables with their names, for tools.
pub const NAMES: [(Table, &str); 14] = [
    (META, "meta"),
    (OBJECTS, "objects"),
    (CHUNKS, "chunks"),
    (INLINE, "inline"),
    (DIRTY, "dirty"),
    (FLUSHED, "flushed"),
    (PENDING, "pending"),
    (BACKLOG, "backlog"),
    (EVICTED, "evicted"),
    (REPLIES, "replies"),
    (APPLIED, "applied"),
    (GROUPS, "groups"),
    (BITMAPS, "bitmaps"),
    (OUT_OF_USE, "out_of_use"),
];

/// Length of an object's key.
pub const OBJECT_KEY_BYTES: usize = 13;

/// Key of an object.
pub fn object_key(object: ObjectId) -> [u8; OBJECT_KEY_BYTES] {
    let mut key = [0; OBJECT_KEY_BYTES];
    key[..8].copy_from_slice(&object.inode.0.to_be_bytes());
    key[8..12].copy_from_slice(&object.slot.to_be_bytes());
    key[12] = object.mirror;
    key
}

/// The object of a key, if it has the right length.
pub fn parse_object_key(key: &[u8]) -> Option<ObjectId> {
    let (inode, rest) = key.split_first_chunk()?;
    let (slot, rest) = rest.split_first_chunk()?;
    let [mirror] = rest.try_into().ok()?;
    let inode = InodeNumber(u64::from_be_bytes(*inode));
    Some(ObjectId { inode, slot: u32::from_be_bytes(*slot), mirror })
}

/// Key of something numbered within an object: a chunk or a block.
pub fn part_key(object: ObjectId, number: u64) -> [u8; OBJECT_KEY_BYTES + 8] {
    let mut key = [0; OBJECT_KEY_BYTES + 8];
    key[..OBJECT_KEY_BYTES].copy_from_slice(&object_key(object));
    key[OBJECT_KEY_BYTES..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Object and number of a part's key, if it has the right length.
pub fn parse_part_key(key: &[u8]) -> Option<(ObjectId, u64)> {
    if key.len() != OBJECT_KEY_BYTES + 8 {
        return None;
    }
    let (object, number) = key.split_at(OBJECT_KEY_BYTES);
    Some((parse_object_key(object)?, u64::from_be_bytes(number.try_into().ok()?)))
}

/// Key of an MDT.
pub fn mdt_key(mdt: MdtIndex) -> [u8; 2] {
    mdt.0.to_be_bytes()
}

/// The MDT of a key, if it has the right length.
pub fn parse_mdt_key(key: &[u8]) -> Option<MdtIndex> {
    Some(MdtIndex(u16::from_be_bytes(key.try_into().ok()?)))
}

/// Key of a client.
pub fn client_key(client: ClientId) -> [u8; 8] {
    client.0.to_be_bytes()
}

/// The client of a key, if it has the right length.
pub fn parse_client_key(key: &[u8]) -> Option<ClientId> {
    Some(ClientId(u64::from_be_bytes(key.try_into().ok()?)))
}

/// Key of an allocation group.
pub fn group_key(group: u32) -> [u8; 4] {
    group.to_be_bytes()
}

/// The allocation group of a key, if it has the right length.
pub fn parse_group_key(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.try_into().ok()?))
}

/// Key of a piece of a group's bitmap.
pub fn piece_key(group: u32, piece: u8) -> [u8; 5] {
    let mut key = [piece; 5];
    key[..4].copy_from_slice(&group.to_be_bytes());
    key
}

/// Group and piece of a piece's key, if it has the right length.
pub fn parse_piece_key(key: &[u8]) -> Option<(u32, u8)> {
    let (group, rest) = key.split_first_chunk()?;
    let [piece] = rest.try_into().ok()?;
    Some((u32::from_be_bytes(*group), piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_and_sort_like_objects() {
        let ids: Vec<ObjectId> = [(1, 0, 0), (1, 0, 3), (1, 1, 0), (1, 256, 0), (2, 0, 255), (1 << 48, 7, 0)]
            .map(|(inode, slot, mirror)| ObjectId { inode: InodeNumber(inode), slot, mirror })
            .to_vec();
        for pair in ids.windows(2) {
            assert!(object_key(pair[0]) < object_key(pair[1]));
            assert!(part_key(pair[0], u64::MAX) < part_key(pair[1], 0));
        }
        for id in ids {
            assert_eq!(parse_object_key(&object_key(id)), Some(id));
            assert_eq!(parse_part_key(&part_key(id, 99)), Some((id, 99)));
        }
        assert_eq!(parse_mdt_key(&mdt_key(MdtIndex(0x102))), Some(MdtIndex(0x102)));
        assert_eq!(parse_group_key(&group_key(0x102)), Some(0x102));
        assert_eq!(parse_piece_key(&piece_key(0x102, 63)), Some((0x102, 63)));
        assert!(piece_key(1, 63) < piece_key(2, 0));
        assert_eq!((parse_group_key(b"short"), parse_piece_key(b"shor")), (None, None));
        assert_eq!(parse_object_key(b"short"), None);
        assert_eq!(parse_object_key(b"much too long."), None);
        assert_eq!(parse_part_key(b"short"), None);
        assert_eq!(parse_client_key(&client_key(ClientId(5))), Some(ClientId(5)));
    }
}
