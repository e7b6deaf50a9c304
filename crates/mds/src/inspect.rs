//! The tables of an MDT in words, for `stria inspect`: read only, with damage described where it is
//! found.

use kv::{Table, inspect::Schema};
use layout::{
    Backing, BackingSpec, Component, END_OF_FILE, Form, Layout, LayoutSpec, PlainLayout, StripeCount, StripeSpec,
};
use rpc::{
    message::{MdtReply, mdt_peer::OperationId},
    stored_reply,
};
use types::{Damage, Fid, FileKind, FsResult, InodeNumber, Timestamp, attributes::file_flag, counted};

use crate::{
    known_size,
    tables::{
        ALL, APPLIED, COUNTERS, DATA, DECISIONS, DEFERRED_LOG, ENTRIES, EVICTED, INODES, LINKS, ORPHANS, PREPARED,
        REPLIES, SESSIONS, XATTRS, applied,
        codec::{client_of_key, inode_of_key},
        counter::{self, Counters, Identity},
        data::{self, BLOCK, DataKey, ObjectRecord},
        decision::{self, DecidedPart, Decision, LedNames, MovedName, ReturnedNames},
        deferred_log::{self, DeferredOperation},
        entry::{EntryRecord, Position},
        evicted::EvictedRecord,
        inode::{Inode, InodeData, Link},
        link, orphan,
        prepared::{self, Promise},
        session::SessionRecord,
        xattr,
    },
};

/// Bytes of an extended attribute or a target that are shown.
const SHOWN_BYTES: usize = 64;

/// The tables of an MDT.
pub struct MdtSchema;

impl Schema for MdtSchema {
    fn table(&self, table: Table) -> Option<&'static str> {
        ALL.iter().find(|(known, _)| *known == table).map(|(_, name)| *name)
    }

    fn key(&self, table: Table, key: &[u8]) -> Result<String, String> {
        describe_key(table, key).map_err(|error| error.to_string())
    }

    fn value(&self, table: Table, key: &[u8], value: &[u8]) -> Result<String, String> {
        describe_value(table, key, value).map_err(|error| error.to_string())
    }

    fn concerns(&self, table: Table, key: &[u8], value: &[u8], inode: u64) -> bool {
        let leads = |bytes: &[u8]| bytes.starts_with(&inode.to_be_bytes());
        match table {
            INODES | LINKS | XATTRS | ORPHANS | DATA => leads(key),
            // As the directory, and as what a name leads to.
            ENTRIES => {
                let target = EntryRecord::decode(value).ok().and_then(|record| record.target);
                leads(key) || target.is_some_and(|target| target.inode.0 == inode)
            }
            PREPARED => prepared::decode(value).is_ok_and(|(_, inodes)| inodes.contains(&InodeNumber(inode))),
            DECISIONS => Decision::decode(value).is_ok_and(|decision| decision.inode.0 == inode),
            DEFERRED_LOG => {
                matches!(DeferredOperation::decode(value), Ok(DeferredOperation::Destroy(object)) if object.inode.0 == inode)
            }
            _ => false,
        }
    }
}

fn describe_key(table: Table, key: &[u8]) -> FsResult<String> {
    Ok(match table {
        INODES => fid(inode_of_key("inode", key)?),
        ENTRIES => {
            let (directory, position) = EntryRecord::decode_key(key)?;
            format!("{} position {:#x}", fid(directory), position.0)
        }
        LINKS => {
            let (inode, link) = link::decode_key(key)?;
            format!("{} '{}' in {}", fid(inode), link.name.escape_ascii(), fid(link.parent))
        }
        XATTRS => {
            let (inode, name) = xattr::decode_key(key)?;
            format!("{} '{}'", fid(inode), name.escape_ascii())
        }
        SESSIONS => client_of_key("session", key)?.to_string(),
        EVICTED => client_of_key("evicted client", key)?.to_string(),
        REPLIES => {
            let (client, slot) = stored_reply::parse_key(key)?;
            format!("{client} slot {}", slot.0)
        }
        ORPHANS => fid(orphan::decode_key(key)?),
        DEFERRED_LOG => {
            let (ost, sequence) = deferred_log::decode_key(key)?;
            format!("{ost} number {sequence}")
        }
        COUNTERS if key == counter::IDENTITY => "identity".to_owned(),
        COUNTERS if key == counter::COUNTERS => "counters".to_owned(),
        DATA => match data::decode_key(key)? {
            DataKey::Object(object) => format!("object {object}"),
            DataKey::Block(object, block) => format!("object {object} block {block}"),
        },
        COUNTERS if key == counter::ERA => "era".to_owned(),
        COUNTERS if counter::parse_delivered_key(key).is_some() => {
            counter::parse_delivered_key(key).map_or(String::new(), |ost| format!("delivered to {ost}"))
        }
        COUNTERS if key == counter::START => "start".to_owned(),
        COUNTERS if counter::parse_decided_key(key).is_some() => {
            counter::parse_decided_key(key).map_or(String::new(), |mdt| format!("delivered to {mdt}"))
        }
        COUNTERS if counter::parse_split_key(key).is_some() => {
            counter::parse_split_key(key).map_or(String::new(), |inode| format!("names of {} move", fid(inode)))
        }
        COUNTERS if counter::parse_return_key(key).is_some() => {
            let shown = |(directory, shard)| format!("names of {} come back from {}", fid(directory), fid(shard));
            counter::parse_return_key(key).map_or(String::new(), shown)
        }
        PREPARED => operation(prepared::decode_key(key)?),
        DECISIONS => {
            let (mdt, sequence) = decision::decode_key(key)?;
            format!("{mdt} number {sequence}")
        }
        APPLIED => applied::decode_key(key)?.to_string(),
        _ => format!("{key:02x?}"),
    })
}

fn describe_value(table: Table, key: &[u8], value: &[u8]) -> FsResult<String> {
    Ok(match table {
        INODES => describe_inode(&Inode::decode(inode_of_key("inode", key)?, value)?),
        ENTRIES => describe_entry(&EntryRecord::decode(value)?),
        LINKS => link::decode_value(value).map(|()| String::new())?,
        XATTRS => {
            let bytes = xattr::decode(value)?;
            format!("{} bytes: {}", bytes.len(), shown(bytes))
        }
        SESSIONS => {
            let SessionRecord { opened, process } = SessionRecord::decode(value)?;
            let place = process.map_or(String::new(), |process| format!(", in process {process:#x}"));
            format!("opened {}{place}", time(opened))
        }
        EVICTED => {
            let EvictedRecord { is_refused, is_leased, time: at } = EvictedRecord::decode(value)?;
            let refused = if is_refused { ", refused by OSTs" } else { "" };
            let leased = if is_leased { ", may serve until its lease ends" } else { "" };
            format!("evicted {}{refused}{leased}", time(at))
        }
        REPLIES => {
            let (xid, reply): (_, MdtReply) = stored_reply::decode(value)?;
            format!("xid {}: {}", xid.0, cut(format!("{reply:?}")))
        }
        ORPHANS => orphan::decode_value(value).map(|()| String::new())?,
        DEFERRED_LOG => match DeferredOperation::decode(value)? {
            DeferredOperation::Destroy(object) => format!("destroy object {object}"),
            DeferredOperation::Evict(client) => format!("refuse client {client}"),
        },
        COUNTERS if key == counter::IDENTITY => {
            let identity = Identity::decode(value)?;
            format!("{}-{}", identity.fsname, identity.mdt)
        }
        COUNTERS if key == counter::COUNTERS => {
            let counters = Counters::decode(value)?;
            format!("next inode {:#x}, {} in use", counters.next_inode, counted(counters.inodes, "inode"))
        }
        DATA => describe_data(key, value)?,
        COUNTERS if key == counter::ERA => {
            let era = kv::PowerLossEra::decode(value);
            era.map_err(|error| Damage::new("era", error.to_string()))?.to_string()
        }
        COUNTERS if counter::parse_delivered_key(key).is_some() => {
            format!("through operation {}", counter::decode_number(value)?)
        }
        COUNTERS if key == counter::START => format!("number {:#x}", counter::decode_number(value)?),
        COUNTERS if counter::parse_decided_key(key).is_some() => {
            format!("through decision {}", counter::decode_number(value)?)
        }
        PREPARED => {
            let (promise, inodes) = prepared::decode(value)?;
            let inodes: Vec<String> = inodes.into_iter().map(fid).collect();
            format!("{} {}", describe_promise(promise), inodes.join(" "))
        }
        DECISIONS => describe_decision(&Decision::decode(value)?)?,
        APPLIED => format!("through decision {}", applied::decode(value)?),
        _ => format!("{value:02x?}"),
    })
}

fn operation(OperationId { coordinator, start, number }: OperationId) -> String {
    format!("{coordinator} start {start:#x} operation {number}")
}

fn describe_promise(promise: Promise) -> &'static str {
    match promise {
        Promise::DropLink => "drop a link of",
        Promise::MoveLink => "move a link of",
        Promise::AddLink => "add a link to",
        Promise::MoveName => "move a name of directory",
        Promise::Attributes => "change attributes of",
        Promise::Give => "give away",
        Promise::LeadNames => "change names of directory",
        Promise::Follow => "follow the name of",
        Promise::Correct => "correct a name of",
    }
}

fn describe_link(link: &Link) -> String {
    format!("'{}' in {}", link.name.escape_ascii(), fid(link.parent))
}

fn describe_decision(decision: &Decision) -> FsResult<String> {
    let what = match &decision.part {
        DecidedPart::Make { record, .. } => {
            format!(
                "make directory {}: {}",
                fid(decision.inode),
                describe_inode(&Inode::decode(decision.inode, record)?)
            )
        }
        DecidedPart::DropLink(link) => format!("drop link of {}, {}", fid(decision.inode), describe_link(link)),
        DecidedPart::AddLink(link) => format!("add link to {}, {}", fid(decision.inode), describe_link(link)),
        DecidedPart::MoveLink(old, new) => {
            format!("move link of {}, {}, to {}", fid(decision.inode), describe_link(old), describe_link(new))
        }
        DecidedPart::MoveName(MovedName { name, inode, new, target, .. }) => {
            let old = describe_link(&Link { parent: decision.inode, name: name.clone() });
            let now = target.map_or(String::new(), |(inode, _)| format!("; it leads to {}", fid(inode)));
            format!("move name {old} of {} to {}{now}", fid(*inode), describe_link(new))
        }
        DecidedPart::CopyAttributes(_) => format!("copy attributes to {}", fid(decision.inode)),
        DecidedPart::AddNames { names, place } => {
            let last = if *place == Position::END { ", the last" } else { "" };
            format!("add {} to shard {}{last}", counted(names.len() as u64, "name"), fid(decision.inode))
        }
        DecidedPart::Give(to) => format!("give away {}, now {}", fid(decision.inode), fid(*to)),
        DecidedPart::LeadNames(LedNames { from, to, names, .. }) => {
            let names = counted(names.len() as u64, "name");
            format!("lead {names} of {} from {} to {}", fid(decision.inode), fid(*from), fid(*to))
        }
        DecidedPart::GiveNames => format!("shard {} gives its names back", fid(decision.inode)),
        DecidedPart::ReturnNames(ReturnedNames { shard, names, place, .. }) => {
            let last = if *place == Position::END { ", the last" } else { "" };
            let names = counted(names.len() as u64, "name");
            format!("return {names} of shard {} to {}{last}", fid(*shard), fid(decision.inode))
        }
        DecidedPart::Tree => "give the tree back".to_owned(),
    };
    Ok(format!("{}: {what}", operation(decision.operation)))
}

fn describe_data(key: &[u8], value: &[u8]) -> FsResult<String> {
    if let DataKey::Object(_) = data::decode_key(key)? {
        let ObjectRecord { size, mtime, blocks, changes } = ObjectRecord::decode(value)?;
        return Ok(format!("size {size}, {}, change {changes}, mtime {}", counted(blocks, "block"), time(mtime)));
    }
    let (checksum, bytes) = data::decode_block(value)?;
    match data::load_block(value, &mut [0; BLOCK])? {
        Some(_) => Ok(format!("checksum {checksum:08x}, {} bytes: {}", bytes.len(), shown(bytes))),
        None => Err(Damage::new("block", format!("checksum {checksum:08x} does not match its data")).into()),
    }
}

fn describe_inode(inode: &Inode) -> String {
    let attributes = &inode.attributes;
    let mut parts = vec![
        format!("{} {:04o}", kind(attributes.kind), attributes.mode),
        format!("links {}", attributes.links),
        format!("uid {} gid {} project {}", attributes.uid, attributes.gid, attributes.project),
        format!("version {}", inode.version),
        format!("size {} blocks {}", attributes.size, attributes.blocks),
    ];
    if matches!(attributes.kind, FileKind::CharacterDevice | FileKind::BlockDevice) {
        parts.push(format!("device {:#x}", attributes.device));
    }
    if attributes.kind == FileKind::Regular {
        let size_known = if inode.size_known { "size known" } else { "size not known" };
        parts.push(format!("{size_known}, {}", known_size::describe(inode.epoch)));
    }
    for (present, what) in [
        (inode.access_list, "access list"),
        (inode.default_list, "default access list"),
        (inode.xattrs, "attributes"),
        (inode.not_linkable, "cannot be linked"),
        (attributes.flags & file_flag::IMMUTABLE != 0, "immutable"),
        (attributes.flags & file_flag::APPEND_ONLY != 0, "append-only"),
        (attributes.flags & file_flag::PROJECT_INHERIT != 0, "project id is inherited"),
        (inode.is_striped(), "striped directory"),
        (inode.names_move() && !inode.names_return(), "names move"),
        (inode.names_return(), "names go back"),
        (inode.directory_default.is_some(), "default for new directories"),
    ] {
        parts.extend(present.then(|| what.to_owned()));
    }
    parts.push(match &inode.first_link {
        Some(link) => format!("named '{}' in {}", link.name.escape_ascii(), fid(link.parent)),
        None => "without a name".to_owned(),
    });
    parts.push(format!(
        "atime {} mtime {} ctime {} btime {}",
        time(attributes.atime),
        time(attributes.mtime),
        time(attributes.ctime),
        time(attributes.btime)
    ));
    match &inode.data {
        InodeData::Regular(layout) => parts.push(describe_layout(layout)),
        InodeData::Directory(Some(spec)) => parts.push(describe_spec(spec)),
        InodeData::Symlink(target) => parts.push(format!("target '{}'", shown(target))),
        InodeData::Directory(None) | InodeData::Special => {}
    }
    parts.join(", ")
}

fn describe_entry(record: &EntryRecord) -> String {
    let more = if record.more { ", further names with this hash" } else { "" };
    match &record.target {
        Some(target) => {
            format!("'{}' -> {} {}{more}", target.name.escape_ascii(), kind(target.kind), fid(target.inode))
        }
        None => format!("gone{more}"),
    }
}

fn describe_layout(layout: &Layout) -> String {
    let generation = layout.generation.0;
    let named_by = layout.named_by.map_or(String::new(), |inode| format!(", objects named by inode {inode}"));
    if let (Form::Plain, [Component { backing: Backing::Striped { plain, .. }, .. }]) =
        (layout.form, layout.components.as_slice())
    {
        return format!("{}, generation {generation}{named_by}", describe_stripes(plain));
    }
    let parts: Vec<String> = layout.components.iter().map(describe_component).collect();
    format!("components {}, generation {generation}{named_by}", parts.join("; "))
}

fn describe_stripes(plain: &PlainLayout) -> String {
    let osts: Vec<String> = plain.osts.iter().map(|ost| ost.0.to_string()).collect();
    format!("stripes of {} on OSTs {}", plain.stripe_bytes, osts.join(" "))
}

fn describe_component(component: &Component) -> String {
    let what = match &component.backing {
        Backing::Pending(stripes) => format!("not instantiated ({})", describe_request(stripes)),
        Backing::Striped { plain, first_slot, .. } => format!("{} from slot {first_slot}", describe_stripes(plain)),
        Backing::Mdt { slot } => format!("on the MDT, slot {slot}"),
        Backing::Extension { step_bytes } => format!("space for extension by {step_bytes}"),
        Backing::Automatic => "automatic".to_owned(),
    };
    let why = component.reason.map_or(String::new(), |reason| format!(", for {}", reason.name()));
    format!("{} [{}, {}) {what}{why}", component.id.0, component.extent.start, end(component.extent.end))
}

fn end(end: u64) -> String {
    if end == END_OF_FILE { "end of file".to_owned() } else { end.to_string() }
}

fn describe_request(spec: &StripeSpec) -> String {
    let count = match spec.stripe_count {
        StripeCount::Default => "default".to_owned(),
        StripeCount::Exactly(count) => count.to_string(),
        StripeCount::All => "all".to_owned(),
        StripeCount::Overstriped(count) => format!("{count} overstriped"),
        StripeCount::PerOst(count) => format!("{count} per OST"),
    };
    let bytes = spec.stripe_bytes.map_or("default".to_owned(), |bytes| bytes.to_string());
    let first = spec.first_ost.map_or("any".to_owned(), |ost| ost.0.to_string());
    let mut text = format!("stripe count {count}, stripe size {bytes}, first OST {first}");
    if !spec.osts.is_empty() {
        let osts: Vec<String> = spec.osts.iter().map(|ost| ost.0.to_string()).collect();
        text.push_str(&format!(", OSTs {}", osts.join(" ")));
    }
    if let Some(pool) = &spec.pool {
        text.push_str(&format!(", pool {pool}"));
    }
    text
}

fn describe_spec(spec: &LayoutSpec) -> String {
    let what = match spec {
        LayoutSpec::Plain(stripes) => describe_request(stripes),
        LayoutSpec::Automatic => "automatic".to_owned(),
        LayoutSpec::Composite(components) => {
            let part = |component: &layout::ComponentSpec| {
                let backing = match &component.backing {
                    BackingSpec::Striped(stripes) => describe_request(stripes),
                    BackingSpec::Mdt => "on the MDT".to_owned(),
                    BackingSpec::Extended(stripes, step) => format!("{} by {step}", describe_request(stripes)),
                    BackingSpec::Automatic => "automatic".to_owned(),
                };
                format!("up to {}: {backing}", end(component.end))
            };
            components.iter().map(part).collect::<Vec<_>>().join("; ")
        }
    };
    format!("default layout: {what}")
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharacterDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

fn fid(inode: InodeNumber) -> String {
    Fid::from(inode).to_string()
}

fn time(time: Timestamp) -> String {
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

/// Bytes as text, cut off when long.
fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN_BYTES { "..." } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii())
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(4 * SHOWN_BYTES) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::inode::tests::sample;

    #[test]
    fn records_are_described_and_damage_is_named() {
        let inode = sample(FileKind::Regular);
        let key = Inode::key(inode.number());
        let text = MdtSchema.value(INODES, &key, &inode.encode()).unwrap();
        assert!(
            text.starts_with("file 6755, links 3, uid 1000 gid 4000000000 project 4000000001, version 7"),
            "{text}"
        );
        assert!(text.contains("named 'name \\xff' in [0x200000400:0x1:0x0]"), "{text}");
        assert!(text.ends_with("stripes of 1048576 on OSTs 3 0, generation 1"), "{text}");
        assert!(MdtSchema.value(INODES, &key, &inode.encode()[1..]).is_err());
        assert!(MdtSchema.key(INODES, &key[1..]).is_err());
        assert!(MdtSchema.concerns(INODES, &key, &[], inode.number().0));
        assert!(!MdtSchema.concerns(INODES, &key, &[], 7));
    }

    #[test]
    fn data_are_described_and_compared_with_their_checksum() {
        let object = types::ObjectId::new(InodeNumber(0x100), 0);
        let key = data::block_key(object, 3);
        assert_eq!(MdtSchema.key(DATA, &key).as_deref(), Ok("object [0x200000400:0x100:0x0]:0 block 3"));
        let mut block = [0; BLOCK];
        block[..5].copy_from_slice(b"hello");
        let mut value = data::encode_block(rpc::checksum::crc32c(&block), &block);
        let text = MdtSchema.value(DATA, &key, &value).unwrap();
        assert!(text.ends_with("5 bytes: hello"), "{text}");
        value[6] ^= 1;
        assert!(MdtSchema.value(DATA, &key, &value).is_err());
        let record = ObjectRecord { size: 7, mtime: Timestamp { seconds: 1, nanoseconds: 2 }, blocks: 1, changes: 3 };
        let text = MdtSchema.value(DATA, &data::object_key(object), &record.encode()).unwrap();
        assert_eq!(text, "size 7, 1 block, change 3, mtime 1.000000002");
        assert!(MdtSchema.concerns(DATA, &key, &[], 0x100));
    }

    #[test]
    fn nonsense_never_panics() {
        for table in (0..=u8::MAX).map(Table) {
            for bytes in [&b""[..], b"\x01", &[0; 8], &[0xff; 200]] {
                let _ = (MdtSchema.key(table, bytes), MdtSchema.value(table, bytes, bytes));
                MdtSchema.concerns(table, bytes, bytes, 7);
            }
        }
    }
}
