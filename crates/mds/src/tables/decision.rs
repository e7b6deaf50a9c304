//! DECISIONS: what this MDT has decided and another one is to carry out, in order for each MDT.
//! Key: MDT (2), sequence (8). Sequence numbers of one MDT follow each other without a gap, from 1
//! on, and are never used twice: COUNTERS has the last one that was removed. Value, version 1:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 1 |
//! | 1 | 1 | 1 make a directory, 2 drop a link, 3 move a link, 4 add a link, 5 move a name, 6 the tree, 7 copy attributes, 8 add names, 9 give an inode, 10 lead names, 11 give names back, 12 return names |
//! | 2 | 18 | the operation: coordinator (2), its start (8), number (8) |
//! | 20 | 8 | inode; of 5: the directory; of 6: the root; of 7, 8 and 11: the shard; of 10 and 12: the directory |
//! | 28 | .. | by kind |
//!
//! Make a directory:
//!
//! | bytes | field |
//! |---|---|
//! | 4+n | value of INODES of the new directory |
//! | per attribute: 2+n, 4+n | name and value of an extended attribute (an access list), to the end |
//!
//! Drop or add a link:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | the directory that had, or has, the name |
//! | 2+n | the name |
//!
//! Move a link:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | the directory that had the name |
//! | 2+n | the name |
//! | 8 | the directory that has the new name |
//! | 2+n | the new name |
//!
//! Move a name, which led to an inode:
//!
//! | bytes | field |
//! |---|---|
//! | 2+n | the name |
//! | 8 | inode |
//! | 1 | its kind, as in INODES |
//! | 8 | the directory that has its new name |
//! | 2+n | the new name |
//! | 8, 1 | inode and kind to which the name leads now; nothing if it is gone |
//!
//! The tree: nothing.
//!
//! Copy attributes to a shard:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | bits of times that are copied, too: 1 access, 2 change of contents |
//! | 4+n | value of INODES of the striped directory |
//! | per attribute: 2+n, 4+n | name and value of an access list, to the end |
//!
//! Add names to a shard:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 1 if all names are there with these; 2 if those up to a place are; 0 if none is to be used yet |
//! | 8 | with 2: the place, as a position in a directory that is no shard |
//! | per name: 2+n, 8, 1 | name, inode and its kind, to the end |
//!
//! Give an inode to the MDT that decides: it is gone here, and names here that led to it lead to
//! where it is; inodes here that are named in it, a directory, are named there:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | its number there |
//!
//! Lead names of a directory to an inode that has got another number:
//!
//! | bytes | field |
//! |---|---|
//! | 8, 8 | its former number, its number |
//! | 1 | its kind, as in INODES |
//! | per name: 2+n | name, to the end |
//!
//! Give names back: nothing. Return names to a directory:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | the shard from which they come |
//! | 12, 12, 12 | atime, mtime and ctime of the shard |
//! | 1 | 1 if all names of the shard are back with these; 2 if those up to a place are |
//! | 8 | with 2: the place, as a position in the directory |
//! | per name: 2+n, 8, 1 | name, inode and its kind, to the end |

use rpc::message::mdt_peer::OperationId;
use types::{
    Damage, FileKind, FsResult, InodeNumber, MdtIndex, Timestamp,
    record::{DecodeError, RecordReader, RecordWriter},
};

use super::{
    codec::{kind_number, kind_of, split_number},
    entry::{NamedInode, Position},
    inode::Link,
};

const VERSION: u8 = 1;
const WHAT: &str = "decision";
const MAKE_DIRECTORY: u8 = 1;
const DROP_LINK: u8 = 2;
const MOVE_LINK: u8 = 3;
const ADD_LINK: u8 = 4;
const MOVE_NAME: u8 = 5;
const TREE: u8 = 6;
const COPY_ATTRIBUTES: u8 = 7;
const ADD_NAMES: u8 = 8;
const GIVE: u8 = 9;
const LEAD_NAMES: u8 = 10;
const GIVE_NAMES: u8 = 11;
const RETURN_NAMES: u8 = 12;
const NOT_YET: u8 = 0;
const ALL_THERE: u8 = 1;
const UP_TO_PLACE: u8 = 2;
const TIME_ACCESS: u8 = 1;
const TIME_CONTENTS: u8 = 2;

/// A decision of one MDT, as far as it concerns another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The operation.
    pub operation: OperationId,
    /// The inode.
    pub inode: InodeNumber,
    /// What becomes of it.
    pub part: DecidedPart,
}

/// Names and values of extended attributes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What is to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecidedPart {
    /// The directory is made.
    Make {
        /// Value of INODES.
        record: Vec<u8>,
        /// Its extended attributes.
        xattrs: Xattrs,
    },
    /// The inode has lost this name.
    DropLink(Link),
    /// The inode has the second name instead of the first.
    MoveLink(Link, Link),
    /// The inode has this name, too.
    AddLink(Link),
    /// A name of the directory.
    MoveName(MovedName),
    /// Another directory may get another parent.
    Tree,
    /// The shard has these attributes of its directory.
    CopyAttributes(CopiedAttributes),
    /// The shard has these names, too.
    AddNames {
        /// The names.
        names: Vec<NamedInode>,
        /// With these, all names up to this position are there, or all of all
        /// ([`Position::END`]).
        place: Position,
    },
    /// The inode is at the MDT that decides, under this number.
    Give(InodeNumber),
    /// Names of the directory lead to another number of the same inode.
    LeadNames(LedNames),
    /// The shard gives its names back to its directory.
    GiveNames,
    /// The directory has these names, too.
    ReturnNames(ReturnedNames),
}

/// Names that lead to an inode which has got another number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedNames {
    /// Its number until then.
    pub from: InodeNumber,
    /// Its number.
    pub to: InodeNumber,
    /// What it is.
    pub kind: FileKind,
    /// The names.
    pub names: Vec<Vec<u8>>,
}

/// Names that come back from a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnedNames {
    /// The shard.
    pub shard: InodeNumber,
    /// Its times.
    pub times: ShardTimes,
    /// The names.
    pub names: Vec<NamedInode>,
    /// With these, all names of the shard up to this position are back, or all of all
    /// ([`Position::END`]).
    pub place: Position,
}

/// What stat shows of the times of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardTimes {
    /// Of the last access.
    pub atime: Timestamp,
    /// Of the last change of its names.
    pub mtime: Timestamp,
    /// Of the last change.
    pub ctime: Timestamp,
}

/// What a shard takes over from its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedAttributes {
    /// The time of the last access, too.
    pub atime: bool,
    /// The time of the last change of the contents, too.
    pub mtime: bool,
    /// Value of INODES of the directory.
    pub record: Vec<u8>,
    /// Its access lists.
    pub xattrs: Xattrs,
}

/// A name that has ended, or leads elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedName {
    /// The name.
    pub name: Vec<u8>,
    /// To what it led.
    pub inode: InodeNumber,
    /// What that is.
    pub kind: FileKind,
    /// The name of that now.
    pub new: Link,
    /// To what the name leads now.
    pub target: Option<(InodeNumber, FileKind)>,
}

/// The key.
pub fn key(mdt: MdtIndex, sequence: u64) -> Vec<u8> {
    [&mdt_key(mdt)[..], &sequence.to_be_bytes()].concat()
}

/// What the keys of an MDT begin with.
pub fn mdt_key(mdt: MdtIndex) -> [u8; 2] {
    mdt.0.to_be_bytes()
}

/// MDT and sequence of a key.
pub fn decode_key(key: &[u8]) -> FsResult<(MdtIndex, u64)> {
    let malformed = || Damage::new(WHAT, "malformed key");
    let (mdt, rest) = key.split_first_chunk::<2>().ok_or_else(malformed)?;
    match split_number(WHAT, rest)? {
        (sequence, []) => Ok((MdtIndex(u16::from_be_bytes(*mdt)), sequence)),
        _ => Err(malformed().into()),
    }
}

fn long_bytes<'a>(reader: &mut RecordReader<'a>) -> Result<&'a [u8], DecodeError> {
    let bytes = reader.u32()?;
    reader.take(bytes as usize)
}

fn write_link(writer: &mut RecordWriter, Link { parent, name }: &Link) {
    writer.u64(parent.0).short_bytes(name);
}

fn read_link(reader: &mut RecordReader<'_>) -> Result<Link, DecodeError> {
    let parent = InodeNumber(reader.u64()?);
    Ok(Link { parent, name: reader.short_bytes()?.to_vec() })
}

fn write_moved(writer: &mut RecordWriter, MovedName { name, inode, kind, new, target }: &MovedName) {
    writer.short_bytes(name).u64(inode.0).u8(kind_number(*kind));
    write_link(writer, new);
    if let Some((inode, kind)) = target {
        writer.u64(inode.0).u8(kind_number(*kind));
    }
}

fn read_moved(reader: &mut RecordReader<'_>) -> FsResult<MovedName> {
    let name = reader.short_bytes()?.to_vec();
    let (inode, kind) = read_inode(reader)?;
    let new = read_link(reader)?;
    let target = if reader.is_empty() { None } else { Some(read_inode(reader)?) };
    Ok(MovedName { name, inode, kind, new, target })
}

fn write_names(writer: &mut RecordWriter, names: &[NamedInode], place: Position) {
    match place {
        Position(0) => writer.u8(NOT_YET),
        Position::END => writer.u8(ALL_THERE),
        Position(place) => writer.u8(UP_TO_PLACE).u64(place),
    };
    for NamedInode { name, inode, kind } in names {
        writer.short_bytes(name).u64(inode.0).u8(kind_number(*kind));
    }
}

fn read_names(reader: &mut RecordReader<'_>) -> FsResult<(Vec<NamedInode>, Position)> {
    let place = match reader.u8()? {
        NOT_YET => Position(0),
        ALL_THERE => Position::END,
        UP_TO_PLACE => Position(reader.u64()?),
        _ => return Err(reader.invalid("neither the last names nor others").into()),
    };
    let mut names = Vec::new();
    while !reader.is_empty() {
        let name = reader.short_bytes()?.to_vec();
        let (inode, kind) = read_inode(reader)?;
        names.push(NamedInode { name, inode, kind });
    }
    Ok((names, place))
}

fn read_returned(reader: &mut RecordReader<'_>) -> FsResult<ReturnedNames> {
    let shard = InodeNumber(reader.u64()?);
    let times = ShardTimes { atime: reader.time()?, mtime: reader.time()?, ctime: reader.time()? };
    let (names, place) = read_names(reader)?;
    Ok(ReturnedNames { shard, times, names, place })
}

fn read_led(reader: &mut RecordReader<'_>) -> FsResult<LedNames> {
    let from = InodeNumber(reader.u64()?);
    let (to, kind) = read_inode(reader)?;
    let mut names = Vec::new();
    while !reader.is_empty() {
        names.push(reader.short_bytes()?.to_vec());
    }
    Ok(LedNames { from, to, kind, names })
}

fn read_inode(reader: &mut RecordReader<'_>) -> FsResult<(InodeNumber, FileKind)> {
    Ok((InodeNumber(reader.u64()?), kind_of(reader.u8()?)?))
}

fn write_inode(writer: &mut RecordWriter, record: &[u8], xattrs: &Xattrs) {
    writer.u32(record.len() as u32).rest(record);
    for (name, value) in xattrs {
        writer.short_bytes(name).u32(value.len() as u32).rest(value);
    }
}

fn read_inode_value(reader: &mut RecordReader<'_>) -> Result<(Vec<u8>, Xattrs), DecodeError> {
    let record = long_bytes(reader)?.to_vec();
    let mut xattrs = Vec::new();
    while !reader.is_empty() {
        xattrs.push((reader.short_bytes()?.to_vec(), long_bytes(reader)?.to_vec()));
    }
    Ok((record, xattrs))
}

impl Decision {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let Decision { operation: OperationId { coordinator, start, number }, inode, part } = self;
        let kind = match part {
            DecidedPart::Make { .. } => MAKE_DIRECTORY,
            DecidedPart::DropLink(_) => DROP_LINK,
            DecidedPart::MoveLink(..) => MOVE_LINK,
            DecidedPart::AddLink(_) => ADD_LINK,
            DecidedPart::MoveName(_) => MOVE_NAME,
            DecidedPart::Tree => TREE,
            DecidedPart::CopyAttributes(_) => COPY_ATTRIBUTES,
            DecidedPart::AddNames { .. } => ADD_NAMES,
            DecidedPart::Give(_) => GIVE,
            DecidedPart::LeadNames(_) => LEAD_NAMES,
            DecidedPart::GiveNames => GIVE_NAMES,
            DecidedPart::ReturnNames(_) => RETURN_NAMES,
        };
        let mut writer = RecordWriter::new(VERSION);
        writer.u8(kind).u16(coordinator.0).u64(*start).u64(*number).u64(inode.0);
        match part {
            DecidedPart::Make { record, xattrs } => {
                write_inode(&mut writer, record, xattrs);
            }
            DecidedPart::CopyAttributes(CopiedAttributes { atime, mtime, record, xattrs }) => {
                let bit = |set: bool, bit: u8| if set { bit } else { 0 };
                writer.u8(bit(*atime, TIME_ACCESS) | bit(*mtime, TIME_CONTENTS));
                write_inode(&mut writer, record, xattrs);
            }
            DecidedPart::DropLink(name) | DecidedPart::AddLink(name) => write_link(&mut writer, name),
            DecidedPart::MoveLink(old, new) => {
                write_link(&mut writer, old);
                write_link(&mut writer, new);
            }
            DecidedPart::MoveName(moved) => write_moved(&mut writer, moved),
            DecidedPart::AddNames { names, place } => write_names(&mut writer, names, *place),
            DecidedPart::ReturnNames(ReturnedNames { shard, times, names, place }) => {
                writer.u64(shard.0).time(times.atime).time(times.mtime).time(times.ctime);
                write_names(&mut writer, names, *place);
            }
            DecidedPart::Give(to) => {
                writer.u64(to.0);
            }
            DecidedPart::LeadNames(LedNames { from, to, kind, names }) => {
                writer.u64(from.0).u64(to.0).u8(kind_number(*kind));
                for name in names {
                    writer.short_bytes(name);
                }
            }
            DecidedPart::GiveNames | DecidedPart::Tree => {}
        }
        writer.finish()
    }

    /// From the value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new(WHAT, value, VERSION)?;
        let kind = reader.u8()?;
        let coordinator = MdtIndex(reader.u16()?);
        let operation = OperationId { coordinator, start: reader.u64()?, number: reader.u64()? };
        let inode = InodeNumber(reader.u64()?);
        let part = match kind {
            MAKE_DIRECTORY => {
                let (record, xattrs) = read_inode_value(&mut reader)?;
                DecidedPart::Make { record, xattrs }
            }
            COPY_ATTRIBUTES => {
                let times = reader.u8()?;
                if times & !(TIME_ACCESS | TIME_CONTENTS) != 0 {
                    return Err(reader.invalid("unknown times").into());
                }
                let (record, xattrs) = read_inode_value(&mut reader)?;
                let (atime, mtime) = (times & TIME_ACCESS != 0, times & TIME_CONTENTS != 0);
                DecidedPart::CopyAttributes(CopiedAttributes { atime, mtime, record, xattrs })
            }
            DROP_LINK => DecidedPart::DropLink(read_link(&mut reader)?),
            MOVE_LINK => DecidedPart::MoveLink(read_link(&mut reader)?, read_link(&mut reader)?),
            ADD_LINK => DecidedPart::AddLink(read_link(&mut reader)?),
            MOVE_NAME => DecidedPart::MoveName(read_moved(&mut reader)?),
            GIVE => DecidedPart::Give(InodeNumber(reader.u64()?)),
            LEAD_NAMES => DecidedPart::LeadNames(read_led(&mut reader)?),
            ADD_NAMES => {
                let (names, place) = read_names(&mut reader)?;
                DecidedPart::AddNames { names, place }
            }
            GIVE_NAMES => DecidedPart::GiveNames,
            RETURN_NAMES => DecidedPart::ReturnNames(read_returned(&mut reader)?),
            TREE => DecidedPart::Tree,
            _ => return Err(reader.invalid("unknown kind of decision").into()),
        };
        reader.finish()?;
        Ok(Decision { operation, inode, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let key = key(MdtIndex(513), 1 << 40);
        assert_eq!(decode_key(&key), Ok((MdtIndex(513), 1 << 40)));
        assert!(decode_key(&key[..9]).is_err());
        let operation = OperationId { coordinator: MdtIndex(2), start: 1 << 40, number: 3 };
        let xattrs = vec![(b"system.a".to_vec(), vec![1; 300]), (b"system.b".to_vec(), Vec::new())];
        let make = DecidedPart::Make { record: vec![3, 2, 1], xattrs: xattrs.clone() };
        let copied = CopiedAttributes { atime: true, mtime: false, record: vec![3, 2, 1], xattrs };
        let copy = DecidedPart::CopyAttributes(copied);
        let link = |name: &[u8]| Link { parent: InodeNumber(1), name: name.to_vec() };
        let moved = |target| {
            let (inode, kind) = (InodeNumber(9), FileKind::Regular);
            DecidedPart::MoveName(MovedName { name: b"name".to_vec(), inode, kind, new: link(b"new"), target })
        };
        let links = [DecidedPart::DropLink(link(b"name")), DecidedPart::AddLink(link(b"name"))];
        let names = [moved(None), moved(Some((InodeNumber(7), FileKind::Directory)))];
        let rename = DecidedPart::MoveLink(link(b"old"), link(b"new"));
        let kind = FileKind::Regular;
        let named = |name: &[u8]| NamedInode { name: name.to_vec(), inode: InodeNumber(1 << 40), kind };
        let add = |place| DecidedPart::AddNames { names: vec![named(b"one"), named(b"two")], place };
        let adds = [Position(0), Position(1 << 40), Position::END].map(add);
        let led = LedNames { from: InodeNumber(5), to: InodeNumber(6), kind, names: vec![b"one".to_vec()] };
        let moved = [DecidedPart::Give(InodeNumber(6)), DecidedPart::LeadNames(led)];
        let time = |seconds| Timestamp { seconds, nanoseconds: 9 };
        let times = ShardTimes { atime: time(-1), mtime: time(2), ctime: time(1 << 40) };
        let (shard, names_back) = (InodeNumber(3).as_shard(), vec![named(b"one"), named(b"two")]);
        let back = ReturnedNames { shard, times, names: names_back, place: Position(1 << 40) };
        let back = DecidedPart::ReturnNames(back);
        for part in [make, copy, rename, back].into_iter().chain(moved).chain(adds).chain(links).chain(names) {
            let decision = Decision { operation, inode: InodeNumber(1 << 50), part };
            let mut value = decision.encode();
            assert_eq!(Decision::decode(&value), Ok(decision));
            value.pop();
            assert!(Decision::decode(&value).is_err());
        }
        let tree = Decision { operation, inode: InodeNumber::ROOT, part: DecidedPart::Tree };
        let give = Decision { part: DecidedPart::GiveNames, ..tree.clone() };
        assert_eq!(Decision::decode(&give.encode()), Ok(give));
        assert_eq!(Decision::decode(&tree.encode()), Ok(tree));
        let mut unknown = vec![1, 13];
        unknown.extend([0; 26]);
        assert!(Decision::decode(&unknown).is_err());
    }
}
