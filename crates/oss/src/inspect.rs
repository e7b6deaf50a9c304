//! Decoding what is stored, for `stria inspect`: read only, and tolerant of damage, which is described in its place.

use kv::{Store, Table};
use types::{ObjectId, limits::BLOCK_BYTES};

use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS, ChunkRecord},
    directory::host_file,
    object_record::ObjectRecord,
    pending_record::PendingRecord,
    superblock::{CLEAN_KEY, MARK_KEY, Mark, SUPERBLOCK_KEY, Superblock, TOTALS_KEY, Totals},
    tables::{
        BACKLOG, CHUNKS, DIRTY, EVICTED, FLUSHED, INLINE, META, NAMES, OBJECTS, PENDING, object_key, parse_client_key,
        parse_object_key, parse_part_key, part_key,
    },
};

/// One entry of a table in words: `table key: value`.
pub fn describe(table: Table, key: &[u8], value: &[u8]) -> String {
    let name = NAMES.iter().find(|(known, _)| *known == table).map_or("unknown table", |(_, name)| name);
    let key_text = match table {
        META => String::from_utf8_lossy(key).into_owned(),
        OBJECTS | FLUSHED | BACKLOG => or_bytes(key, parse_object_key(key).map(|object| object.to_string())),
        CHUNKS | DIRTY => or_bytes(key, parse_part_key(key).map(|(object, chunk)| format!("{object} chunk {chunk}"))),
        INLINE => or_bytes(key, parse_part_key(key).map(|(object, block)| format!("{object} block {block}"))),
        EVICTED => or_bytes(key, parse_client_key(key).map(|client| client.to_string())),
        PENDING => or_bytes(key, number(key).map(|number| number.to_string())),
        _ => or_bytes(key, None),
    };
    let value_text = match table {
        META => describe_meta(key, value),
        OBJECTS => damaged(ObjectRecord::decode(value).map(|record| describe_object(&record))),
        CHUNKS => damaged(ChunkRecord::decode(value).map(|record| describe_chunk(&record))),
        INLINE => format!("{} bytes", value.len()),
        FLUSHED => or_bytes(value, number(value).map(|epoch| format!("through epoch {epoch}"))),
        PENDING => damaged(PendingRecord::decode(value).map(|record| format!("{} {:?}", record.object, record.blocks))),
        _ if value.is_empty() => String::new(),
        _ => or_bytes(value, None),
    };
    format!("{name} {key_text}: {value_text}")
}

/// Everything stored about one object, a line each.
pub fn describe_object_entries(kv: &Store, object: ObjectId) -> Result<Vec<String>, kv::Error> {
    let mut lines = vec![format!("object {object}, host file {}", host_file(object))];
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

fn describe_meta(key: &[u8], value: &[u8]) -> String {
    match key {
        SUPERBLOCK_KEY => {
            let text = |block: Superblock| format!("{} {}", block.target(), block.uuid());
            damaged(Superblock::decode(value).map(text))
        }
        MARK_KEY => damaged(Mark::decode(value).map(|mark| format!("flushed through epoch {}", mark.epoch))),
        TOTALS_KEY => {
            let text = |totals: Totals| format!("{} objects, {} blocks", totals.objects, totals.blocks);
            damaged(Totals::decode(value).map(text))
        }
        CLEAN_KEY => "closed well".to_owned(),
        _ => or_bytes(value, None),
    }
}

fn describe_object(record: &ObjectRecord) -> String {
    format!(
        "size {}, {} blocks of {BLOCK_BYTES}, {} of them inline, changed {}.{:09}, {} host file",
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
    };
    for run in record.states().chunk_by(|a, b| kind(a) == kind(b)) {
        let end = start + run.len();
        if run[0] != BlockState::Absent {
            runs.push(format!("{start}..{end} {}", kind(&run[0])));
        }
        start = end;
    }
    assert_eq!(start as u64, CHUNK_BLOCKS, "runs cover the chunk");
    runs.join(", ")
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn or_bytes(bytes: &[u8], text: Option<String>) -> String {
    text.unwrap_or_else(|| format!("{bytes:02x?}"))
}

fn damaged<E: std::fmt::Display>(text: Result<String, E>) -> String {
    text.unwrap_or_else(|error| format!("DAMAGED: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_described_and_damage_is_named() {
        let object = ObjectId { inode: types::InodeNumber(0x101), slot: 2 };
        let mut chunk = ChunkRecord::default();
        chunk.set(3, BlockState::Inline { checksum: 1 });
        chunk.set(4, BlockState::InPlace { checksum: 1, epoch: 9 });
        assert_eq!(
            describe(CHUNKS, &part_key(object, 7), &chunk.encode()),
            "chunks 0x101:0x2 chunk 7: 3..4 inline, 4..5 in place since epoch 9"
        );
        assert!(describe(OBJECTS, &object_key(object), &[9]).contains("DAMAGED: version 9"));
        assert_eq!(describe(DIRTY, b"x", b""), "dirty [78]: ");
        for (table, _) in NAMES {
            for bytes in [&b""[..], b"1234567890123456789012345678901234567890"] {
                assert!(!describe(table, bytes, bytes).is_empty());
            }
        }
    }
}
