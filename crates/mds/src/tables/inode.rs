//! INODES: one record per inode. Key: inode number (8). Value, version 3:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 3 |
//! | 1 | 1 | kind: 1 regular, 2 directory, 3 symlink, 4 fifo, 5 socket, 6 character device, 7 block device |
//! | 2 | 2 | flags: 1 size known, 2 has access list, 4 has default access list, 8 has other xattrs, 16 may not be linked, 32 changes are counted, 64 immutable, 128 append-only, 256 project id is inherited, 512 striped directory, 1024 shard of one, 2048 default for new directories |
//! | 4 | 24 | mode, links, uid, gid, device, project id (4 each) |
//! | 28 | 8 | version of the inode: 1 when it was made, one more with each batch that changes it |
//! | 36 | 16 | size, blocks (8 each) |
//! | 52 | 60 | atime, mtime, ctime, btime, accounted (12 each: seconds 8, nanoseconds 4) |
//! | 112 | 8 | write epoch |
//! | 120 | 8 | directory of the first link; 0: no link |
//! | 128 | 2+n | name of the first link |
//! | .. | 12 | if changes are counted: changes of objects accounted for (8), changes of the record since they were (4); else 0 |
//! | .. | 8 | directory: version of its map to shards; 0: it is not striped. Even: its names move to the shards. Of a shard 0, or the position in the directory up to which its names are there |
//! | .. | 3+8n | striped directory: hash (1, as Lustre numbers them), count of its shards (2), the shards (8 each) |
//! | .. | 5 | shard: hash (1), its index (2), count of all shards (2) |
//! | .. | 8 | default for new directories: count of shards (2; 0: one on each MDT; plus 0x8000: several on an MDT if there are fewer; plus 0xc000: on each MDT), whether a first one is given (1), the first (2), hash (1; 0: none is given), levels (1; 0: all), levels of which names choose the first (1; 255: all) |
//! | .. | rest | regular: layout; directory: default layout; symlink: target; else nothing |
//!
//! A batch changes an inode if it changes its record, names in it, its names or its extended
//! attributes (module `transaction::versions`).
//!
//! A shard has its directory as the directory of its first link, and an empty name there.
//!
//! Layouts and default layouts: module [`super::layout`].

use layout::{Layout, LayoutSpec, Location};
use rpc::message::mdt::Entry;
use types::{
    Accounted, Attributes, DirectoryDefault, DirectoryMap, FileKind, FsResult, InodeNumber, MdtIndex, NameHash,
    ObjectId, OstIndex, ShardCount, ShardPlace, Timestamp,
    attributes::file_flag,
    limits,
    record::{DecodeError, RecordReader, RecordWriter},
};

use super::{
    codec::{kind_number, kind_of},
    layout::{decode_layout, decode_spec, encode_layout, encode_spec},
};
use crate::known_size;

const VERSION: u8 = 3;
const WHAT: &str = "inode";
const FLAG_SIZE_KNOWN: u16 = 1;
const FLAG_ACCESS_LIST: u16 = 2;
const FLAG_DEFAULT_LIST: u16 = 4;
const FLAG_XATTRS: u16 = 8;
const FLAG_NOT_LINKABLE: u16 = 16;
const FLAG_COUNTED: u16 = 32;
const FLAG_IMMUTABLE: u16 = 64;
const FLAG_APPEND_ONLY: u16 = 128;
const FLAG_PROJECT_INHERIT: u16 = 256;
const FLAG_STRIPED: u16 = 512;
const FLAG_SHARD: u16 = 1024;
const FLAG_DIRECTORY_DEFAULT: u16 = 2048;
/// Flags of files, as they are stored.
const FILE_FLAGS: [(u16, u32); 3] = [
    (FLAG_IMMUTABLE, file_flag::IMMUTABLE),
    (FLAG_APPEND_ONLY, file_flag::APPEND_ONLY),
    (FLAG_PROJECT_INHERIT, file_flag::PROJECT_INHERIT),
];
/// More than are ever given out.
const EPOCH_MAX: u64 = 1 << 62;
/// Counting up from it never overflows.
const VERSION_MAX: u64 = 1 << 62;
const FLAGS_ALL: u16 = 4095;
/// All levels of directories, where no number of them is that.
const LEVELS_ALL: u8 = u8::MAX;

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The directory.
    pub parent: InodeNumber,
    /// The name in it.
    pub name: Vec<u8>,
}

/// What an inode has beyond attributes, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InodeData {
    /// Where the file's bytes are.
    Regular(Layout),
    /// The default layout set on the directory or inherited when it was made.
    Directory(Option<LayoutSpec>),
    /// Target.
    Symlink(Vec<u8>),
    /// Fifos, sockets and devices.
    Special,
}

/// Where the names of a directory are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Striping {
    /// In the directory.
    #[default]
    None,
    /// In these shards.
    Over(NameHash, Vec<InodeNumber>),
    /// It is a shard, and has those of another directory that belong here.
    Shard(ShardPlace),
}

/// Values of [`Inode::map_version`].
pub mod map_version {
    /// The directory was made with its shards.
    pub const MADE: u64 = 1;
    /// Its names move to shards, as somebody has asked for. With the last one it grows by one.
    pub const SPLITS: u64 = 2;
    /// Its names come back from the shards.
    pub const MERGES: u64 = 4;
    /// Its names move to shards because it was large. With the last one it grows by one.
    pub const SPLITS_BY_ITSELF: u64 = 6;
    /// It has got its shards because it was large.
    pub const SPLIT_BY_ITSELF: u64 = SPLITS_BY_ITSELF + 1;
    /// Of a shard: its names go back to the directory.
    pub const SHARD_GIVES: u64 = u64::MAX;
}

/// A record of INODES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What stat shows.
    pub attributes: Attributes,
    /// Grows by one with each batch that changes the inode; 0: it was never stored.
    pub version: u64,
    /// Size, blocks and mtime are exact (always true of anything but regular files).
    pub size_known: bool,
    /// Write epoch ([`crate::known_size`]).
    pub epoch: u64,
    /// What becomes of a directory's map to shards ([`map_version`]); 0: it is not striped. Even
    /// while its names move. Of a shard 0, or, while its names come, the position in the directory
    /// up to which they are there; [`map_version::SHARD_GIVES`]: they go back to the directory.
    pub map_version: u64,
    /// Of a directory.
    pub striping: Striping,
    /// What new directories in a directory get.
    pub directory_default: Option<DirectoryDefault>,
    /// Changes of objects that `attributes.mtime` accounts for.
    pub accounted: Accounted,
    /// XATTRS holds an access list.
    pub access_list: bool,
    /// XATTRS holds a default access list.
    pub default_list: bool,
    /// XATTRS holds further attributes.
    pub xattrs: bool,
    /// Made by O_TMPFILE with O_EXCL: it can never get a name.
    pub not_linkable: bool,
    /// The first name, or `None` while it has none. Of a directory its only one; of the root
    /// itself, with no name.
    pub first_link: Option<Link>,
    /// By kind.
    pub data: InodeData,
}

/// What can be told of a value without decoding all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    /// What it is.
    pub kind: FileKind,
    /// Size, blocks and mtime are exact.
    pub size_known: bool,
    /// Names that lead to it; of a directory: 2, and its subdirectories.
    pub links: u32,
    /// A directory whose names are in shards.
    pub is_striped: bool,
    /// Its names may be on their way to shards, or to it.
    pub may_move: bool,
    /// Version of the inode.
    pub version: u64,
}

impl Brief {
    /// From a value of INODES.
    pub fn of(value: &[u8]) -> FsResult<Brief> {
        let mut reader = RecordReader::new(WHAT, value, VERSION)?;
        let kind = kind_of(reader.u8()?)?;
        let flags = reader.u16()?;
        let [size_known, is_striped] = [FLAG_SIZE_KNOWN, FLAG_STRIPED].map(|flag| flags & flag != 0);
        let (_mode, links) = (reader.u32()?, reader.u32()?);
        let _ids_and_device = reader.take(16)?;
        let may_move = is_striped || flags & FLAG_SHARD != 0;
        Ok(Brief { kind, size_known, links, is_striped, may_move, version: reader.u64()? })
    }
}

impl Inode {
    /// Its number.
    pub fn number(&self) -> InodeNumber {
        self.attributes.inode
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.attributes.kind
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }

    /// The map of a striped directory.
    pub fn map(&self) -> Option<DirectoryMap> {
        match &self.striping {
            Striping::Over(hash, shards) => {
                Some(DirectoryMap { master: self.number(), hash: *hash, shards: shards.clone() })
            }
            Striping::None | Striping::Shard(_) => None,
        }
    }

    /// Whether it is a striped directory.
    pub fn is_striped(&self) -> bool {
        matches!(self.striping, Striping::Over(..))
    }

    /// Whether its record says that an MDT may have several shards of a directory, this one or new
    /// ones in it: earlier releases cannot read that.
    pub fn is_overstriped(&self) -> bool {
        self.directory_default.is_some_and(|default| default.is_overstriped())
            || self.map().is_some_and(|map| map.is_overstriped())
    }

    /// The striped directory of which this is a shard.
    pub fn master(&self) -> Option<InodeNumber> {
        match &self.striping {
            Striping::Shard(_) => self.first_link.as_ref().map(|link| link.parent),
            Striping::None | Striping::Over(..) => None,
        }
    }

    /// The striped directory that this is, or of which it is a shard.
    pub fn striped(&self) -> Option<InodeNumber> {
        if self.is_striped() { Some(self.number()) } else { self.master() }
    }

    /// The directory that programs see.
    pub fn whole(&self) -> InodeNumber {
        self.master().unwrap_or(self.number())
    }

    /// Whether names go back from the shards of this directory, or from this shard.
    pub fn names_return(&self) -> bool {
        match &self.striping {
            Striping::None => false,
            Striping::Over(..) => self.map_version == map_version::MERGES,
            Striping::Shard(_) => self.map_version == map_version::SHARD_GIVES,
        }
    }

    /// Whether the names of this striped directory are moving to its shards, or to this shard; or
    /// back.
    pub fn names_move(&self) -> bool {
        match &self.striping {
            Striping::None => false,
            Striping::Over(..) => self.map_version.is_multiple_of(2),
            Striping::Shard(_) => self.map_version > 0,
        }
    }

    /// The layout of a regular file.
    pub fn layout(&self) -> Option<&Layout> {
        match &self.data {
            InodeData::Regular(layout) => Some(layout),
            _ => None,
        }
    }

    /// Whether the file has objects, for all that is known: it was opened for writing or truncated.
    pub fn may_have_objects(&self) -> bool {
        known_size::may_have_objects(self)
    }

    /// All objects the file may have on OSTs: none before it was first opened for writing.
    pub fn objects(&self) -> Vec<(OstIndex, ObjectId)> {
        if !known_size::may_have_objects(self) {
            return Vec::new();
        }
        let on_ost = |(slot, location)| match location {
            Location::Ost(ost) => Some((ost, slot)),
            Location::Mdt => None,
        };
        let of = |layout: &Layout| {
            let named = |(ost, slot)| (ost, layout.object(self.number(), slot));
            layout.objects().filter_map(on_ost).map(named).collect()
        };
        self.layout().map(of).unwrap_or_default()
    }

    /// Whether this MDT may hold data of it.
    pub fn may_have_data_here(&self) -> bool {
        let on_mdt = |layout: &Layout| layout.objects().any(|(_, location)| location == Location::Mdt);
        known_size::may_have_objects(self) && self.layout().is_some_and(on_mdt)
    }

    /// The OSTs its layout names; none for anything but regular files.
    pub fn osts(&self) -> impl Iterator<Item = OstIndex> + '_ {
        let ost = |(_, location)| match location {
            Location::Ost(ost) => Some(ost),
            Location::Mdt => None,
        };
        self.layout().into_iter().flat_map(Layout::objects).filter_map(ost)
    }

    /// As messages carry it.
    pub fn entry(&self) -> Entry {
        let size_unknown = if self.size_known { None } else { self.layout().cloned().map(Box::new) };
        let Accounted { time: accounted, changes, records } = self.accounted;
        let map_version = if self.is_striped() { self.map_version } else { 0 };
        let Self { attributes, access_list, default_list, xattrs, .. } = *self;
        let no_public_xattrs = !access_list && !default_list && !xattrs;
        Entry {
            attributes,
            size_unknown,
            accounted,
            quiet: None,
            changes,
            records,
            map_version,
            access_list,
            no_public_xattrs,
            epoch: (!self.size_known).then_some(self.epoch),
        }
    }

    /// Something of it changes: its ctime becomes later than any client has seen it, also if this
    /// MDT's clock was set back.
    pub fn change(&mut self, now: Timestamp) {
        self.attributes.ctime = now.max(self.attributes.ctime.next());
        if !self.size_known {
            self.accounted.records = self.accounted.records.saturating_add(1);
        }
    }

    /// As [`Inode::change`], of the contents: of a directory, or by a truncation.
    pub fn change_contents(&mut self, now: Timestamp) {
        let now = now.max(self.accounted.time.next());
        self.change(now);
        self.attributes.mtime = self.attributes.ctime;
        self.accounted.time = self.attributes.mtime;
    }

    /// The key.
    pub fn key(inode: InodeNumber) -> Vec<u8> {
        inode.0.to_be_bytes().to_vec()
    }

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_at(self.version)
    }

    /// The value that this inode has under another version.
    pub fn encode_at(&self, version: u64) -> Vec<u8> {
        let attributes = &self.attributes;
        let mut writer = RecordWriter::new(VERSION);
        writer.u8(kind_number(attributes.kind)).u16(self.flags());
        let Attributes { mode, links, uid, gid, device, project, .. } = *attributes;
        for field in [mode, links, uid, gid, device, project] {
            writer.u32(field);
        }
        writer.u64(version).u64(attributes.size).u64(attributes.blocks);
        for time in [attributes.atime, attributes.mtime, attributes.ctime, attributes.btime, self.accounted.time] {
            writer.time(time);
        }
        writer.u64(self.epoch);
        match &self.first_link {
            Some(link) => writer.u64(link.parent.0).short_bytes(&link.name),
            None => writer.u64(0).short_bytes(&[]),
        };
        if self.is_counted() {
            writer.u64(self.accounted.changes).u32(self.accounted.records);
        }
        match &self.data {
            InodeData::Regular(layout) => encode_layout(&mut writer, layout),
            InodeData::Directory(spec) => {
                writer.u64(self.map_version);
                write_striping(&mut writer, &self.striping);
                self.directory_default.iter().for_each(|default| write_default(&mut writer, default));
                encode_spec(&mut writer, spec.as_ref());
            }
            InodeData::Symlink(target) => {
                writer.rest(target);
            }
            InodeData::Special => {}
        }
        writer.finish()
    }

    fn is_counted(&self) -> bool {
        self.accounted.changes > 0 || self.accounted.records > 0
    }

    fn flags(&self) -> u16 {
        let bit = |set: bool, flag: u16| if set { flag } else { 0 };
        bit(self.size_known, FLAG_SIZE_KNOWN)
            | bit(self.access_list, FLAG_ACCESS_LIST)
            | bit(self.default_list, FLAG_DEFAULT_LIST)
            | bit(self.xattrs, FLAG_XATTRS)
            | bit(self.not_linkable, FLAG_NOT_LINKABLE)
            | bit(self.is_counted(), FLAG_COUNTED)
            | bit(self.is_striped(), FLAG_STRIPED)
            | bit(matches!(self.striping, Striping::Shard(_)), FLAG_SHARD)
            | bit(self.directory_default.is_some(), FLAG_DIRECTORY_DEFAULT)
            | FILE_FLAGS.iter().fold(0, |set, &(stored, flag)| set | bit(self.attributes.flags & flag != 0, stored))
    }

    /// From key and value.
    pub fn decode(inode: InodeNumber, value: &[u8]) -> FsResult<Inode> {
        let mut reader = RecordReader::new(WHAT, value, VERSION)?;
        let kind = kind_of(reader.u8()?)?;
        let flags = reader.u16()?;
        if flags & !FLAGS_ALL != 0 {
            return Err(reader.invalid("unknown flags").into());
        }
        let (mode, links, uid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (gid, device, project) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let version = reader.u64()?;
        if !(1..=VERSION_MAX).contains(&version) {
            return Err(reader.out_of_range("version of the inode").into());
        }
        let (size, blocks) = (reader.u64()?, reader.u64()?);
        let (atime, mtime, ctime, btime) = (reader.time()?, reader.time()?, reader.time()?, reader.time()?);
        let time = reader.time()?;
        let epoch = reader.u64()?;
        if epoch > EPOCH_MAX {
            return Err(reader.out_of_range("write epoch").into());
        }
        let parent = InodeNumber(reader.u64()?);
        let name = reader.short_bytes()?.to_vec();
        if name.len() > limits::NAME_BYTES_MAX {
            return Err(reader.invalid("name too long").into());
        }
        let counted = flags & FLAG_COUNTED != 0;
        let (changes, records) = if counted { (reader.u64()?, reader.u32()?) } else { (0, 0) };
        let of_file = FILE_FLAGS.iter().filter(|(stored, _)| flags & stored != 0).fold(0, |set, (_, flag)| set | flag);
        let map_version = if kind == FileKind::Directory { reader.u64()? } else { 0 };
        let striping = read_striping(&mut reader, (inode, kind), flags)?;
        let has_version = match striping {
            Striping::None => map_version == 0,
            Striping::Over(..) => map_version > 0,
            Striping::Shard(_) => true,
        };
        if !has_version {
            return Err(reader.invalid("a map without a version, or a version without a map").into());
        }
        let directory_default = match flags & FLAG_DIRECTORY_DEFAULT {
            0 => None,
            _ if kind == FileKind::Directory => Some(read_default(&mut reader)?),
            _ => return Err(reader.invalid("only a directory has a default for new directories").into()),
        };
        let data = match kind {
            FileKind::Regular => InodeData::Regular(decode_layout(&mut reader)?),
            FileKind::Directory => InodeData::Directory(decode_spec(&mut reader)?),
            FileKind::Symlink => InodeData::Symlink(reader.rest().to_vec()),
            _ => InodeData::Special,
        };
        reader.finish()?;
        let attributes = Attributes {
            inode,
            kind,
            mode,
            links,
            uid,
            gid,
            device,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            flags: of_file,
            project,
        };
        Ok(Inode {
            attributes,
            version,
            size_known: flags & FLAG_SIZE_KNOWN != 0,
            epoch,
            map_version,
            striping,
            directory_default,
            accounted: Accounted { time, changes, records },
            access_list: flags & FLAG_ACCESS_LIST != 0,
            default_list: flags & FLAG_DEFAULT_LIST != 0,
            xattrs: flags & FLAG_XATTRS != 0,
            not_linkable: flags & FLAG_NOT_LINKABLE != 0,
            first_link: (parent.0 != 0).then_some(Link { parent, name }),
            data,
        })
    }
}

fn write_striping(writer: &mut RecordWriter, striping: &Striping) {
    match striping {
        Striping::None => {}
        Striping::Over(hash, shards) => {
            writer.u8(hash.number()).u16(shards.len() as u16);
            for shard in shards {
                writer.u64(shard.0);
            }
        }
        Striping::Shard(ShardPlace { hash, index, count }) => {
            writer.u8(hash.number()).u16(*index).u16(*count);
        }
    }
}

fn read_striping(
    reader: &mut RecordReader<'_>,
    (inode, kind): (InodeNumber, FileKind),
    flags: u16,
) -> Result<Striping, DecodeError> {
    let (is_striped, is_shard) = (flags & FLAG_STRIPED != 0, flags & FLAG_SHARD != 0);
    if is_shard != inode.is_shard() || (is_striped || is_shard) && kind != FileKind::Directory {
        return Err(reader.invalid("only a directory is striped or a shard, and shards have numbers of their own"));
    }
    if !is_striped && !is_shard {
        return Ok(Striping::None);
    }
    let hash = NameHash::of_number(reader.u8()?).ok_or_else(|| reader.out_of_range("hash of names"))?;
    if is_shard {
        let (index, count) = (reader.u16()?, reader.u16()?);
        return match index < count {
            true => Ok(Striping::Shard(ShardPlace { hash, index, count })),
            false => Err(reader.out_of_range("index of a shard")),
        };
    }
    let count = reader.u16()?;
    let shards = (0..count).map(|_| reader.u64().map(InodeNumber)).collect::<Result<Vec<_>, _>>()?;
    let map = DirectoryMap { master: inode, hash, shards };
    if map.is_possible() { Ok(Striping::Over(hash, map.shards)) } else { Err(reader.invalid("impossible shards")) }
}

fn write_default(writer: &mut RecordWriter, default: &DirectoryDefault) {
    let DirectoryDefault { count, first, hash, levels, spread_levels } = *default;
    writer.u16(count.number()).u8(u8::from(first.is_some())).u16(first.map_or(0, |first| first.0));
    writer.u8(hash.map_or(0, NameHash::number)).u8(levels.unwrap_or(0)).u8(spread_levels.unwrap_or(LEVELS_ALL));
}

fn read_default(reader: &mut RecordReader<'_>) -> Result<DirectoryDefault, DecodeError> {
    let (count, has_first, first) = (reader.u16()?, reader.u8()?, reader.u16()?);
    let hash = match reader.u8()? {
        0 => None,
        number => Some(NameHash::of_number(number).ok_or_else(|| reader.out_of_range("hash of names"))?),
    };
    let (levels, spread_levels) = (reader.u8()?, reader.u8()?);
    let default = DirectoryDefault {
        count: ShardCount::of_number(count),
        first: (has_first > 0).then_some(MdtIndex(first)),
        hash,
        levels: (levels > 0).then_some(levels),
        spread_levels: (spread_levels < LEVELS_ALL).then_some(spread_levels),
    };
    match has_first <= 1 && (has_first == 1 || first == 0) && default.is_possible() {
        true => Ok(default),
        false => Err(reader.invalid("impossible default for new directories")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use layout::{PlainLayout, StripeSpec};
    use proptest::prelude::*;
    use types::Generation;

    use super::*;

    /// A regular file with two stripes and everything set.
    pub(crate) fn sample(kind: FileKind) -> Inode {
        let time = |seconds| Timestamp { seconds, nanoseconds: 999_999_999 };
        let plain = PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(3), OstIndex(0)] };
        let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
        let data = match kind {
            FileKind::Regular => InodeData::Regular(layout),
            FileKind::Directory => InodeData::Directory(Some(LayoutSpec::Automatic)),
            FileKind::Symlink => InodeData::Symlink(b"../target".to_vec()),
            _ => InodeData::Special,
        };
        Inode {
            attributes: Attributes {
                inode: InodeNumber(0x1_0000_0000_0123),
                kind,
                mode: 0o6755,
                links: 3,
                uid: 1000,
                gid: 4_000_000_000,
                device: 0x0800_0001,
                size: u64::MAX,
                blocks: 12,
                atime: time(-1),
                mtime: time(i64::MAX),
                ctime: time(0),
                btime: time(1),
                flags: file_flag::ALL,
                project: 4_000_000_001,
            },
            version: 7,
            size_known: false,
            epoch: 77,
            map_version: 0,
            accounted: Accounted { time: time(5), changes: 6, records: 7 },
            access_list: true,
            default_list: false,
            xattrs: true,
            not_linkable: false,
            striping: Striping::None,
            directory_default: None,
            first_link: Some(Link { parent: InodeNumber::ROOT, name: b"name \xff".to_vec() }),
            data,
        }
    }

    #[test]
    fn every_kind_round_trips() {
        for kind in [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharacterDevice,
            FileKind::BlockDevice,
        ] {
            let inode = sample(kind);
            assert_eq!(Inode::decode(inode.number(), &inode.encode()), Ok(inode));
        }
        let shard = |mdt| InodeNumber::new(MdtIndex(mdt), 5).as_shard();
        let mut striped = sample(FileKind::Directory);
        striped.map_version = 9;
        striped.striping = Striping::Over(NameHash::default(), vec![shard(1), shard(0)]);
        assert_eq!(Inode::decode(striped.number(), &striped.encode()), Ok(striped.clone()));
        let second = InodeNumber::new(MdtIndex(1), 6).as_shard();
        striped.striping = Striping::Over(NameHash::default(), vec![shard(1), shard(0), second]);
        assert_eq!(Inode::decode(striped.number(), &striped.encode()), Ok(striped));
        let given = DirectoryDefault {
            count: ShardCount::Exactly(2),
            first: Some(MdtIndex(7)),
            hash: Some(NameHash::Crush),
            levels: Some(3),
            spread_levels: Some(0),
        };
        let open =
            DirectoryDefault { count: ShardCount::All, first: None, hash: None, levels: None, spread_levels: None };
        let of = |count| DirectoryDefault { count, ..given };
        for default in [given, open, of(ShardCount::Overstriped(5)), of(ShardCount::PerMdt(32))] {
            let mut directory = sample(FileKind::Directory);
            directory.directory_default = Some(default);
            assert_eq!(Inode::decode(directory.number(), &directory.encode()), Ok(directory.clone()));
            directory.directory_default = Some(DirectoryDefault { count: ShardCount::Exactly(1001), ..default });
            assert!(Inode::decode(directory.number(), &directory.encode()).is_err(), "more than there can be");
        }
        let mut bare = sample(FileKind::Directory);
        bare.data = InodeData::Directory(None);
        bare.first_link = None;
        bare.accounted = Accounted { time: bare.accounted.time, ..Accounted::default() };
        assert_eq!(Inode::decode(bare.number(), &bare.encode()), Ok(bare));
    }

    /// Version 3, byte by byte.
    #[test]
    fn golden_bytes() {
        let inode = sample(FileKind::Symlink);
        let time = |seconds: i64| [&seconds.to_le_bytes()[..], &999_999_999_u32.to_le_bytes()].concat();
        let words = [0o6755_u32, 3, 1000, 4_000_000_000, 0x0800_0001, 4_000_000_001];
        let mut golden = vec![3, 3, 0xf4, 1];
        golden[2] = 0b1110_1010;
        words.iter().for_each(|word| golden.extend(word.to_le_bytes()));
        [7, u64::MAX, 12].iter().for_each(|field: &u64| golden.extend(field.to_le_bytes()));
        [-1, i64::MAX, 0, 1, 5].iter().for_each(|seconds| golden.extend(time(*seconds)));
        [77, 1].iter().for_each(|field: &u64| golden.extend(field.to_le_bytes()));
        golden.extend([6, 0]);
        golden.extend(b"name \xff");
        golden.extend(6_u64.to_le_bytes());
        golden.extend(7_u32.to_le_bytes());
        golden.extend(b"../target");
        assert_eq!(inode.encode(), golden);
        for version in [1, 2, 4] {
            golden[0] = version;
            let error = Inode::decode(inode.number(), &golden).unwrap_err();
            assert_eq!(error.to_string(), format!("damaged metadata: inode: version {version}, expected 3"));
        }
    }

    #[test]
    fn a_version_is_one_at_least_and_a_checksum_type_is_known() {
        let inode = sample(FileKind::Regular);
        for version in [0, VERSION_MAX + 1] {
            assert!(Inode::decode(inode.number(), &inode.encode_at(version)).is_err(), "{version}");
        }
        let mut value = inode.encode();
        // After the name and the counts of changes: the layout's generation, then the type.
        let checksum_type = 128 + 2 + 6 + 12 + 8;
        assert_eq!(value[checksum_type], 0);
        value[checksum_type] = 7;
        let error = Inode::decode(inode.number(), &value).unwrap_err();
        assert!(error.to_string().contains("checksums of type 7, which this version cannot verify"), "{error}");
    }

    #[test]
    fn a_file_never_opened_for_writing_has_no_objects() {
        let mut inode = sample(FileKind::Regular);
        assert_eq!(inode.objects().len(), 2);
        inode.epoch = 0;
        assert_eq!(inode.objects(), vec![]);
    }

    proptest! {
        #[test]
        fn damaged_values_are_errors_never_panics(cut in 0usize..140, position in 0usize..140, byte in any::<u8>()) {
            let inode = sample(FileKind::Regular);
            let mut value = inode.encode();
            if position < value.len() {
                value[position] = byte;
            }
            let _ = Inode::decode(inode.number(), &value);
            value.truncate(cut.min(value.len() - 1));
            prop_assert!(Inode::decode(inode.number(), &value).is_err());
        }
    }
}
