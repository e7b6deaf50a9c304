//! Decodes the stored records, for `stria inspect`: read only, and tolerant of damage, which is
//! described where it is found.

use blocks::Summary;
use kv::{Store, Table, inspect::Schema};
use rpc::stored_reply;
use types::{ObjectId, counted, limits::BLOCK_BYTES, record::DecodeError};

use crate::{
    applied::AppliedRecord,
    chunk_record::{BlockState, CHUNK_BLOCKS, ChunkRecord},
    group_record::{PIECE_BLOCKS, decode_piece, decode_summary},
    object_record::{ObjectOrigin, ObjectRecord},
    pending_record::PendingRecord,
    replies::StoredReply,
    scrub_record::ScrubRecord,
    superblock::{
        CLEAN_KEY, ERA_KEY, Engine, MARK_KEY, Mark, RESERVED_KEY, SCRUB_KEY, SUPERBLOCK_KEY, Superblock, TOTALS_KEY,
        Totals,
    },
    tables::{
        APPLIED, BACKLOG, BITMAPS, CHUNKS, DIRTY, EVICTED, FLUSHED, GROUPS, INLINE, META, NAMES, OBJECTS, OUT_OF_USE,
        PENDING, REPLIES, object_key, parse_client_key, parse_group_key, parse_mdt_key, parse_object_key,
        parse_part_key, parse_piece_key, part_key,
    },
};

/// The tables of an OST.
pub struct OstSchema;

impl Schema for OstSchema {
    fn table(&self, table: Table) -> Option<&'static str> {
        NAMES.iter().find(|(known, _)| *known == table).map(|(_, name)| *name)
    }

    fn key(&self, table: Table, key: &[u8]) -> Result<String, String> {
        let described = match table {
            META if key == ERA_KEY => Some("era".to_owned()),
            META => Some(String::from_utf8_lossy(key).into_owned()),
            OBJECTS | FLUSHED | BACKLOG => parse_object_key(key).map(|object| object.to_string()),
            CHUNKS | DIRTY => parse_part_key(key).map(|(object, chunk)| format!("{object} chunk {chunk}")),
            INLINE => parse_part_key(key).map(|(object, block)| format!("{object} block {block}")),
            EVICTED => parse_client_key(key).map(|client| client.to_string()),
            PENDING => number(key).map(|number| number.to_string()),
            APPLIED => parse_mdt_key(key).map(|mdt| mdt.to_string()),
            GROUPS | OUT_OF_USE => parse_group_key(key).map(|group| group.to_string()),
            BITMAPS => parse_piece_key(key).map(|(group, piece)| format!("{group} piece {piece}")),
            REPLIES => stored_reply::parse_key(key).ok().map(|(client, slot)| format!("{client} slot {}", slot.0)),
            _ => Some(format!("{key:02x?}")),
        };
        described.ok_or_else(|| "malformed key".to_owned())
    }

    fn value(&self, table: Table, key: &[u8], value: &[u8]) -> Result<String, String> {
        let described = match table {
            META => describe_meta(key, value),
            OBJECTS => ObjectRecord::decode(value).map(|record| describe_object(&record)),
            CHUNKS => ChunkRecord::decode(value).map(|record| describe_chunk(&record)),
            INLINE if value.len() as u64 > BLOCK_BYTES => return Err("longer than a block".to_owned()),
            INLINE => Ok(format!("{} bytes", value.len())),
            FLUSHED => match number(value) {
                Some(epoch) => Ok(format!("through epoch {epoch}")),
                None => return Err("malformed epoch".to_owned()),
            },
            APPLIED => AppliedRecord::decode(value)
                .map(|record| format!("through operation {} of era {}", record.sequence, record.era)),
            GROUPS => decode_summary(value).map(|Summary { free, longest, runs }| {
                format!("{free} blocks are free, in {}, the longest of {longest}", counted(u64::from(runs), "run"))
            }),
            BITMAPS => decode_piece(value).map(|piece| {
                let used: u32 = piece.iter().map(|byte| byte.count_ones()).sum();
                format!("{used} of {PIECE_BLOCKS} blocks are used")
            }),
            PENDING => PendingRecord::decode(value).map(|record| format!("{} {:?}", record.object, record.blocks)),
            REPLIES => {
                let reply: Result<(_, StoredReply), _> = stored_reply::decode(value);
                return reply
                    .map(|(xid, (reply, in_place))| {
                        let place = in_place.map_or(String::new(), |(object, start, end)| {
                            format!(", in place {object} blocks {start}..{end}")
                        });
                        format!("xid {}: {reply:?}{place}", xid.0)
                    })
                    .map_err(|error| error.to_string());
            }
            _ if value.is_empty() => Ok(String::new()),
            _ => Ok(format!("{value:02x?}")),
        };
        described.map_err(|error| error.damage.to_string())
    }

    fn concerns(&self, table: Table, key: &[u8], value: &[u8], inode: u64) -> bool {
        match table {
            OBJECTS | CHUNKS | INLINE | DIRTY | FLUSHED | BACKLOG => key.starts_with(&inode.to_be_bytes()),
            PENDING => PendingRecord::decode(value).is_ok_and(|record| record.object.inode.0 == inode),
            _ => false,
        }
    }
}

/// One entry of a table in words: `table key: value`.
fn describe(table: Table, key: &[u8], value: &[u8]) -> String {
    kv::inspect::describe(&OstSchema, table, key, Some(value)).unwrap_or_else(|text| format!("DAMAGED {text}"))
}

/// The object of a host file's path within the target, and the path of an object's host file.
pub use crate::directory::{host_file, parse_host_file};

/// Everything stored about one object, a line each.
pub fn describe_object_entries(kv: &Store, object: ObjectId) -> Result<Vec<String>, kv::Error> {
    let superblock = kv.get(META, SUPERBLOCK_KEY)?.and_then(|bytes| Superblock::decode(&bytes).ok());
    let is_on_device = superblock.is_some_and(|superblock| superblock.engine != Engine::Directory);
    let place = if is_on_device { "on the device".to_owned() } else { format!("host file {}", host_file(object)) };
    let mut lines = vec![format!("object {object}, {place}")];
    for table in [OBJECTS, FLUSHED, BACKLOG] {
        let key = object_key(object);
        lines.extend(kv.get(table, &key)?.map(|value| describe(table, &key, &value)));
    }
    for table in [CHUNKS, DIRTY, INLINE] {
        kv.scan(table, &part_key(object, 0), Some(&part_key(object, u64::MAX)), &mut |key, value| {
            lines.push(describe(table, key, value));
            true
        })?;
    }
    Ok(lines)
}

fn describe_meta(key: &[u8], value: &[u8]) -> Result<String, DecodeError> {
    Ok(match key {
        SUPERBLOCK_KEY => {
            let block = Superblock::decode(value)?;
            let device = match block.engine {
                Engine::Directory => String::new(),
                Engine::Blocks { blocks, tables: None } => format!(", on a device of {}", counted(blocks, "block")),
                Engine::Blocks { blocks, tables: Some(tables) } => {
                    format!(", on a device of {}, {} of them for the tables", counted(blocks, "block"), tables.blocks)
                }
            };
            format!("{} {}{device}", block.target(), block.uuid())
        }
        MARK_KEY => format!("flushed through epoch {}", Mark::decode(value)?.epoch),
        TOTALS_KEY => {
            let totals = Totals::decode(value)?;
            format!("{}, {}", counted(totals.objects, "object"), counted(totals.blocks, "block"))
        }
        CLEAN_KEY => "closed cleanly".to_owned(),
        SCRUB_KEY => {
            let scrub = ScrubRecord::decode(value)?;
            format!("{}, {} checked", scrub.status.name(), counted(scrub.blocks, "block"))
        }
        RESERVED_KEY if value.len() == 8 => {
            let blocks = value.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
            format!("{} reserved without data", counted(blocks, "block"))
        }
        ERA_KEY => match kv::PowerLossEra::decode(value) {
            Ok(era) => era.to_string(),
            Err(error) => error.to_string(),
        },
        _ => format!("{value:02x?}"),
    })
}

fn describe_object(record: &ObjectRecord) -> String {
    let fence = if record.fence > 0 { format!(", fenced before generation {}", record.fence) } else { String::new() };
    let origin = match record.origin {
        None => String::new(),
        Some(ObjectOrigin { layout_generation, owner }) => format!(
            ", of generation {layout_generation}, uid {} gid {} project {}",
            owner.uid, owner.gid, owner.project
        ),
    };
    let changes = if record.changes > 0 { format!(", change {}", record.changes) } else { String::new() };
    let ranges: Vec<String> = record.reserved.ranges().map(|range| format!("{}..{}", range.start, range.end)).collect();
    let reserved = match record.reserved.empty() {
        _ if ranges.is_empty() => String::new(),
        empty => format!(", reserved {} ({empty} without data)", ranges.join(" ")),
    };
    format!(
        "size {}, {} blocks of {BLOCK_BYTES}, {} of them inline, changed {}.{:09}{changes}, {} host file{origin}{reserved}{fence}",
        record.size,
        record.blocks,
        record.inline_blocks,
        record.mtime.seconds,
        record.mtime.nanoseconds,
        if record.host_file { "has a" } else { "no" },
    )
}

/// Runs of blocks, numbered within the chunk.
fn describe_chunk(record: &ChunkRecord) -> String {
    let mut runs = Vec::new();
    let mut start = 0;
    let kind = |state: &BlockState| match *state {
        BlockState::Absent => "absent".to_owned(),
        BlockState::Inline { .. } => "inline".to_owned(),
        BlockState::InPlace { epoch: 0, .. } => "in place".to_owned(),
        BlockState::InPlace { epoch, .. } => format!("in place since epoch {epoch}"),
        BlockState::OnDevice { epoch: 0, .. } => "on the device".to_owned(),
        BlockState::OnDevice { epoch, .. } => format!("on the device since epoch {epoch}"),
    };
    for run in record.states().chunk_by(|a, b| kind(a) == kind(b) && a.is_followed_by(b)) {
        let end = start + run.len();
        let place =
            run[0].address().map_or(String::new(), |first| format!(" at {first}..{}", first + run.len() as u64));
        if run[0] != BlockState::Absent {
            runs.push(format!("{start}..{end} {}{place}", kind(&run[0])));
        }
        start = end;
    }
    assert_eq!(start as u64, CHUNK_BLOCKS, "runs cover the chunk");
    runs.join(", ")
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_described_and_damage_is_named() {
        let object = ObjectId::new(types::InodeNumber(0x101), 2);
        let mut chunk = ChunkRecord::default();
        chunk.set(3, BlockState::Inline { checksum: 1 });
        chunk.set(4, BlockState::InPlace { checksum: 1, epoch: 9 });
        assert_eq!(
            describe(CHUNKS, &part_key(object, 7), &chunk.encode()),
            "chunks [0x200000400:0x101:0x0]:2 chunk 7: 3..4 inline, 4..5 in place since epoch 9"
        );
        let damaged = describe(OBJECTS, &object_key(object), &[9]);
        assert!(damaged.starts_with("DAMAGED objects [0x200000400:0x101:0x0]:2: version 9"), "{damaged}");
        assert_eq!(describe(DIRTY, b"x", b""), "DAMAGED dirty 78: malformed key");
        for (table, _) in NAMES {
            for bytes in [&b""[..], b"1234567890123456789012345678901234567890"] {
                assert!(!describe(table, bytes, bytes).is_empty());
            }
        }
    }
}
