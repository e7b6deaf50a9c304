//! The tables of an MDT: every key and value format, one file per family. The byte tables are in
//! docs/disk_format.md, section MDT; this module is their implementation.
//!
//! Conventions: integers in keys are big-endian, so that keys sort by number; integers in values
//! are little-endian. Every value begins with a version byte. A value that does not decode exactly
//! (unknown version, short, bytes left over, field out of range) is [`FsError::Damaged`] with its
//! table and key, never a panic and never a guess.
//!
//! | table | key | value |
//! |---|---|---|
//! | INODES | inode | attributes, first link, write epoch, layout or target ([`inode`]) |
//! | ENTRIES | directory, position (hash of the name, number) | name, inode, kind ([`entry`]) |
//! | LINKS | inode, directory, name | nothing: links beyond the first ([`link`]) |
//! | XATTRS | inode, name | value of an extended attribute or access list ([`xattr`]) |
//! | SESSIONS | client | when it was opened ([`session`]) |
//! | REPLIES | client, slot | xid and reply of the last mutation ([`session`]) |
//! | ORPHANS | inode | nothing: unlinked, but open ([`orphan`]) |
//! | DEFERRED_LOG | OST, sequence | deferred operations for that OST ([`deferred_log`]) |
//! | COUNTERS | which | identity, next inode, inodes in use ([`counter`]) |
//! | DATA | inode, slot | size, blocks and time of an object on this MDT ([`data`]) |
//! | DATA | inode, slot, block | checksum and bytes of a block of it ([`data`]) |
//! | PREPARED | operation of another MDT | what is promised for it ([`prepared`]) |
//! | DECISIONS | MDT, sequence | what it is to carry out ([`decision`]) |
//! | APPLIED | MDT | how far its decisions are carried out here ([`applied`]) |
//! | EVICTED | client | what holds of a client that was evicted ([`evicted`]) |

pub mod applied;
pub mod codec;
pub mod counter;
pub mod data;
pub mod decision;
pub mod deferred_log;
pub mod entry;
pub mod evicted;
pub mod inode;
mod layout;
pub mod link;
pub mod orphan;
pub mod prepared;
pub mod session;
pub mod xattr;

use kv::Table;

/// Inodes.
pub const INODES: Table = Table(1);
/// Names in directories.
pub const ENTRIES: Table = Table(2);
/// Links of an inode beyond its first.
pub const LINKS: Table = Table(3);
/// Extended attributes.
pub const XATTRS: Table = Table(4);
/// Sessions that a restarted MDT waits for.
pub const SESSIONS: Table = Table(5);
/// Last replies of mutations.
pub const REPLIES: Table = Table(6);
/// Unlinked inodes that were open.
pub const ORPHANS: Table = Table(7);
/// Work for OSTs.
pub const DEFERRED_LOG: Table = Table(8);
/// Identity and counters.
pub const COUNTERS: Table = Table(9);
/// Data of files: objects on this MDT and their blocks.
pub const DATA: Table = Table(10);
/// Promises for operations of other MDTs.
pub const PREPARED: Table = Table(11);
/// Decisions for other MDTs.
pub const DECISIONS: Table = Table(12);
/// Decisions of other MDTs that were carried out.
pub const APPLIED: Table = Table(13);
/// Clients that were evicted and may live.
pub const EVICTED: Table = Table(14);
/// All of them, with their names, for tools that decode a store.
pub const ALL: [(Table, &str); 14] = [
    (INODES, "inodes"),
    (ENTRIES, "entries"),
    (LINKS, "links"),
    (XATTRS, "xattrs"),
    (SESSIONS, "sessions"),
    (REPLIES, "replies"),
    (ORPHANS, "orphans"),
    (DEFERRED_LOG, "deferred_log"),
    (COUNTERS, "counters"),
    (DATA, "data"),
    (PREPARED, "prepared"),
    (DECISIONS, "decisions"),
    (APPLIED, "applied"),
    (EVICTED, "evicted"),
];

/// The first key after all keys that start with `prefix`; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_is_behind_every_longer_key() {
        assert_eq!(prefix_end(&[1, 2]), Some(vec![1, 3]));
        assert_eq!(prefix_end(&[1, 255]), Some(vec![2]));
        assert_eq!(prefix_end(&[255, 255]), None);
        assert_eq!(prefix_end(&[]), None);
    }
}
