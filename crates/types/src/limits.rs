//! Limits on everything, with their origin. Relations between them are checked at compile time.

/// Longest name of a directory entry, in bytes (POSIX NAME_MAX, as Lustre).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes (Linux PATH_MAX less its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Hard links to one file (u32 in `Attributes`, the bound is ext4's order of magnitude with room).
pub const LINKS_MAX: u32 = 1_000_000;
/// Largest file, in bytes: what off_t holds, less one maximal stripe so that stripe arithmetic
/// cannot overflow.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64 - STRIPE_BYTES_MAX;
/// Smallest stripe and the unit of stripe sizes, in bytes (Lustre's LOV_MIN_STRIPE_SIZE).
pub const STRIPE_BYTES_MIN: u64 = 64 * 1024;
/// Largest stripe, in bytes: multiples of 64 KiB below 4 GiB (Lustre).
pub const STRIPE_BYTES_MAX: u64 = (4 << 30) - STRIPE_BYTES_MIN;
/// Default stripe size (that of Lustre 2.17).
pub const STRIPE_BYTES_DEFAULT: u64 = 4 << 20;
/// Most stripes of a plain layout (Lustre's LOV_MAX_STRIPE_COUNT).
pub const STRIPE_COUNT_MAX: u32 = 2000;
/// Unit of checksums and of space on an OST, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Most data in one read or write request, in bytes (Lustre's 4 MiB `max_pages_per_rpc`).
pub const BULK_BYTES_MAX: usize = 4 << 20;
/// Most bytes of an encoded message body, without bulk data.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Most steps of a compound: the components of most paths, and what is done at their end.
pub const COMPOUND_STEPS_MAX: usize = 32;
/// Most bytes of all replies of a compound's steps, encoded: they may be stored with its changes,
/// and kept in a session's slot.
pub const COMPOUND_REPLY_BYTES_MAX: usize = 64 * 1024;
/// Most bytes that the steps of a compound write together, and that they read together: the reply
/// to a compound that opens a file is kept with them. Larger files gain little from one request.
pub const COMPOUND_DATA_BYTES_MAX: usize = 64 * 1024;
/// Shards of a directory: readdir cookies have room for as many.
pub const SHARDS_MAX: usize = 1000;
/// Shards of a directory on each MDT, if they are asked for in this way (Lustre's `-C -32`).
pub const SHARDS_PER_MDT_MAX: u16 = 32;
/// Names of a directory that gets shards: its names cannot be used while they move, which is not to
/// take minutes.
pub const SPLIT_NAMES_MAX: usize = 1 << 18;
/// Names that an inode which moves to another MDT may have, and names in it if it is a directory:
/// all of them change in one batch, which is not to take more than some milliseconds.
pub const GIVEN_NAMES_MAX: usize = 1024;
/// Inodes on further MDTs that are named in a directory which moves to another MDT, its shards
/// among them: each of them is prepared there, one after the other, while the tree is held.
pub const FOLLOWING_MAX: usize = 48;
/// Shards of a directory that gets its names back, at most: each brings some of the names of one
/// hash for which a directory has room.
pub const RETURNING_SHARDS_MAX: usize = 128;
/// Bytes of an inode that moves to another MDT, with its names, extended attributes and data there:
/// they go in one message.
pub const GIVEN_BYTES_MAX: usize = 3 << 18;
/// Files with more bytes on an MDT are not cached under the data bit: the reply to an open brings
/// all of them. Larger ones gain little from one request less.
pub const SMALL_FILE_BYTES_MAX: u32 = 64 * 1024;
/// Most bytes of what travels with a message in its frame.
pub const EXTENSION_BYTES_MAX: usize = 4096;
/// Most locks that one message cancels or grants in addition to its purpose.
pub const LOCKS_PER_MESSAGE_MAX: usize = 256;
/// Most opens that a client makes known with one request.
pub const OPENS_PER_MESSAGE_MAX: usize = 128;
/// Most accesses that a client tells with one request: with these it is as small as all requests
/// for which the return of a lock waits.
pub const ACCESSES_PER_MESSAGE_MAX: usize = 96;
/// Most bytes of a job's name (Lustre's 32, with its zero).
pub const JOB_NAME_BYTES_MAX: usize = 31;
/// Most inodes of which a reply says how their versions changed: a rename over an existing name
/// changes so many.
pub const VERSIONS_PER_CHANGE_MAX: usize = 4;
/// Most names of which a reply says how they changed: a rename changes so many.
pub const NAMES_PER_CHANGE_MAX: usize = 2;
/// Longest name of an extended attribute (Linux XATTR_NAME_MAX).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest value of an extended attribute, and of all names together (Linux XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Requests one session may have outstanding at one target; the slots a server keeps replies for.
pub const SESSION_SLOTS_MAX: u16 = 256;
/// Of these, the last so many are for what others may wait for ([`Slot`](crate::Slot)s of urgent
/// requests).
pub const URGENT_SLOTS_MAX: u16 = 8;
/// Callbacks that a client may owe one target an answer to.
pub const CALLBACK_SLOTS: u16 = 32;
/// Longest file system name (Lustre).
pub const FSNAME_BYTES_MAX: usize = 8;
/// Advisory locks one client may hold at one MDT.
pub const LOCKS_PER_CLIENT_MAX: usize = 1 << 20;
/// Locks under which one client caches what it got from one MDT. At about 140 bytes each they take
/// 140 MiB of the MDT's memory.
pub const CACHE_LOCKS_PER_CLIENT_MAX: usize = 1 << 20;
/// The same of all clients: 560 MiB.
pub const CACHE_LOCKS_MAX: usize = 1 << 22;
/// Lock owners and queued requests of one file and family: every request for a lock looks at all of
/// them, under the mutex of the whole MDT. More than one for each process of the largest programs.
pub const LOCK_PARTIES_PER_FILE_MAX: usize = 1 << 14;
/// Sessions one target keeps: about 1 KiB of memory each at rest. The largest Lustre systems have
/// some 20,000 clients.
pub const SESSIONS_PER_TARGET_MAX: usize = 1 << 16;
/// Longest name a client gives itself when it connects: a host name (64 bytes on Linux), a process,
/// and room.
pub const CLIENT_NAME_BYTES_MAX: usize = 255;
/// Longest name of a client's host, in bytes; as in Linux (`HOST_NAME_MAX`).
pub const NODE_NAME_BYTES_MAX: usize = 64;
/// Addresses of one target: more networks than a host has.
pub const ADDRESSES_PER_TARGET_MAX: usize = 8;
/// Longest name of a target: `FSNAME-OST0000`, with room.
pub const TARGET_NAME_BYTES_MAX: usize = 32;
/// Files one client may have open at one MDT (fs.nr_open of Linux; some 200 bytes of memory each).
pub const OPENS_PER_CLIENT_MAX: usize = 1 << 20;
/// Exclusive data locks one client may hold or wait for at one MDT: one for each append or
/// truncation in progress. All are claimed in one message after a restart.
pub const EXCLUSIVES_PER_CLIENT_MAX: usize = 1 << 14;
/// Opens or locks in one message of a client that claims what it had before a restart.
pub const RECLAIM_ENTRIES_MAX: usize = 4096;
/// Decisions of one MDT in one message to another; fewer if they are large.
pub const DECISIONS_PER_MESSAGE_MAX: usize = 256;
/// Operations of one MDT for which another one may have prepared something that lasts: more than
/// clients have slots. All are named in one message after a restart.
pub const PREPARED_PER_MDT_MAX: usize = 1 << 14;
/// Files whose size one client was invited to report at a time; of more, the oldest are forgotten.
/// Two full pages of a directory.
pub const SIZE_INVITATIONS_MAX: usize = 8192;
/// Supplementary groups of one caller (Linux NGROUPS_MAX).
pub const GROUPS_MAX: usize = 65536;
/// Objects in one request that asks for their attributes, makes them durable, or destroys them.
pub const OBJECTS_PER_REQUEST_MAX: usize = 8192;
/// Objects in one fence: those of one component on one OST.
pub const FENCE_OBJECTS_MAX: usize = STRIPE_COUNT_MAX as usize;
/// Largest generation of a layout.
pub const LAYOUT_GENERATION_MAX: u64 = 1 << 63;
/// Largest generation an object can be fenced at: more changes of a layout than can be made.
pub const FENCE_GENERATION_MAX: u64 = 1 << 62;
/// Largest space of a file, in 512-byte blocks, that a client can report: in bytes it is still a
/// u64.
pub const FILE_BLOCKS_MAX: u64 = u64::MAX / 512;
/// Changes of the objects of a file that a client can report: one each microsecond for nine years.
pub const FILE_CHANGES_MAX: u64 = 1 << 48;

/// Most closes that go along with one request.
pub const CLOSES_PER_MESSAGE_MAX: usize = 8;

/// Most bytes of an encoded number of 64 bits.
const NUMBER_BYTES: usize = 10;
/// An encoded object name: length, inode, slot.
const OBJECT_BYTES: usize = 1 + NUMBER_BYTES + 5;
/// Encoded attributes of an object: length, size, blocks, changes, and a time of at most 17 bytes.
const OBJECT_ATTRIBUTES_BYTES: usize = 1 + 3 * NUMBER_BYTES + 17;
/// An encoded close: length, inode, open, perhaps a lock owner, and a report of a size, four
/// numbers and a time.
const CLOSE_BYTES: usize = 1 + 2 * NUMBER_BYTES + 1 + NUMBER_BYTES + 1 + 1 + 4 * NUMBER_BYTES + 1 + 17;
/// An encoded lock of a claim: length, six numbers, two enums, the length of the range.
const HELD_LOCK_BYTES: usize = 1 + 6 * NUMBER_BYTES + 2 + 1;
/// An encoded exclusive lock of a claim: inode, and perhaps an open.
const EXCLUSIVE_BYTES: usize = NUMBER_BYTES + 1 + NUMBER_BYTES;

const _: () = assert!(STRIPE_BYTES_MIN.is_multiple_of(BLOCK_BYTES), "a checksum block must not straddle stripes");
const _: () =
    assert!((BULK_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES), "a request must carry whole checksum blocks");
const _: () = assert!(XATTR_VALUE_BYTES_MAX + XATTR_NAME_BYTES_MAX < BODY_BYTES_MAX, "an attribute fits a message");
const _: () =
    assert!(OBJECTS_PER_REQUEST_MAX * OBJECT_BYTES < BODY_BYTES_MAX, "the objects of a request fit a message");
const _: () = assert!(
    OBJECTS_PER_REQUEST_MAX * OBJECT_ATTRIBUTES_BYTES < BODY_BYTES_MAX,
    "what is said of all objects of a request fits the answer"
);
const _: () = assert!(FENCE_OBJECTS_MAX <= OBJECTS_PER_REQUEST_MAX, "a fence is no larger than other requests");
const _: () = assert!(
    LOCKS_PER_MESSAGE_MAX * NUMBER_BYTES
        + JOB_NAME_BYTES_MAX
        + (VERSIONS_PER_CHANGE_MAX + 2) * OBJECT_ATTRIBUTES_BYTES
        + CLOSES_PER_MESSAGE_MAX * CLOSE_BYTES
        < EXTENSION_BYTES_MAX,
    "what a request says beside its message fits its extension"
);
const _: () = assert!(RECLAIM_ENTRIES_MAX * HELD_LOCK_BYTES < BODY_BYTES_MAX, "a batch of a claim fits a message");
const _: () =
    assert!(EXCLUSIVES_PER_CLIENT_MAX * EXCLUSIVE_BYTES < BODY_BYTES_MAX, "exclusive locks are claimed in one message");
const _: () = assert!(GIVEN_BYTES_MAX < BODY_BYTES_MAX - BODY_BYTES_MAX / 8, "an inode that moves fits a message");
const _: () =
    assert!(PREPARED_PER_MDT_MAX * EXCLUSIVE_BYTES < BODY_BYTES_MAX, "prepared operations are named in one message");
const _: () = assert!(GROUPS_MAX * 5 < BODY_BYTES_MAX / 2, "the groups of a caller leave room for its request");
const _: () = assert!(FENCE_GENERATION_MAX <= LAYOUT_GENERATION_MAX / 2, "a layout can pass any fence and change on");
const _: () = assert!(LOCK_PARTIES_PER_FILE_MAX <= LOCKS_PER_CLIENT_MAX, "one client cannot have more than it may");
const _: () = assert!(SESSION_SLOTS_MAX as usize <= EXCLUSIVES_PER_CLIENT_MAX, "every slot can carry an append");
