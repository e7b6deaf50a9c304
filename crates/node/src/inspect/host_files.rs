//! Compares host files of an OST's objects with its tables: unreferenced files, missing files, and,
//! for a single inode, every block with its checksum.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use kv::Table;
use oss::{
    chunk_record::{BlockState, CHUNK_BLOCKS, ChunkRecord},
    inspect::{host_file, parse_host_file},
    object_record::ObjectRecord,
    tables::{CHUNKS, OBJECTS, parse_object_key, parse_part_key},
};
use rpc::checksum::crc32c;
use types::{InodeNumber, ObjectId, counted, limits::BLOCK_BYTES};

use super::{Fact, InspectionReport};

/// Directory of host files within a target's.
const OBJECTS_DIRECTORY: &str = "objects";

/// What the tables say of host files, and then what there is.
pub struct HostFiles {
    directory: PathBuf,
    inode: Option<InodeNumber>,
    /// Objects that have, or may have, a host file.
    records: BTreeMap<ObjectId, ObjectRecord>,
    /// Blocks that are in the host files of the inode asked for, with their checksums.
    blocks: BTreeMap<ObjectId, Vec<(u64, u32)>>,
}

impl HostFiles {
    /// Of the target in `directory`; blocks of `inode` are to be verified.
    pub fn new(directory: &Path, inode: Option<InodeNumber>) -> Self {
        Self { directory: directory.to_owned(), inode, records: BTreeMap::new(), blocks: BTreeMap::new() }
    }

    /// Notes an entry of the target's tables. What does not decode has been reported as such.
    pub fn note(&mut self, table: Table, key: &[u8], value: &[u8]) {
        if table == OBJECTS
            && let (Some(object), Ok(record)) = (parse_object_key(key), ObjectRecord::decode(value))
            && record.host_file
        {
            self.records.insert(object, record);
        }
        if table == CHUNKS
            && let Some((object, chunk)) = parse_part_key(key)
            && self.inode == Some(object.inode)
            && let Ok(record) = ChunkRecord::decode(value)
        {
            let numbered = (chunk.saturating_mul(CHUNK_BLOCKS)..).zip(record.states());
            let in_place = numbered.filter_map(|(block, state)| match state {
                BlockState::InPlace { checksum, .. } => Some((block, *checksum)),
                BlockState::Absent | BlockState::Inline { .. } => None,
            });
            self.blocks.entry(object).or_default().extend(in_place);
        }
    }

    /// Compares them with the files.
    pub fn inspect(self, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
        let root = self.directory.join(OBJECTS_DIRECTORY);
        if !root.is_dir() {
            return report.damage(format_args!("{} is missing", root.display()));
        }
        report.heading(format_args!("host files:"))?;
        let (mut files, mut bytes, mut unreferenced) = (0u64, 0u64, 0u64);
        for name in list(&root)? {
            let Some(object) = parse_host_file(&name).filter(|object| host_file(*object) == name) else {
                report.damage(format_args!("{name}: not a name of a host file"))?;
                continue;
            };
            let metadata = self.directory.join(&name).metadata()?;
            files += 1;
            bytes += metadata.len();
            let is_unreferenced = !self.records.contains_key(&object);
            unreferenced += u64::from(is_unreferenced);
            if report.shows_entries() && self.inode.is_none_or(|inode| inode == object.inode) {
                let note =
                    if is_unreferenced { ", belongs to no object: removed when the target is opened" } else { "" };
                let bytes = metadata.len();
                report.line(
                    || Fact::HostFile { file: &name, object: object.to_string(), bytes, of_no_object: is_unreferenced },
                    format_args!("    {name}: object {object}, {bytes} bytes{note}"),
                )?;
            }
        }
        report.line(
            || Fact::HostFiles { files, bytes, of_no_object: unreferenced },
            format_args!("  {} of {bytes} bytes in all, {unreferenced} without an object", counted(files, "file")),
        )?;
        self.report_missing(report)?;
        self.verify(report)
    }

    fn report_missing(&self, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
        for (object, record) in &self.records {
            let in_place = record.blocks.saturating_sub(record.inline_blocks);
            let path = self.directory.join(host_file(*object));
            if in_place > 0 && !path.exists() {
                report.damage(format_args!(
                    "object {object}: its host file {} with {} is missing",
                    path.display(),
                    counted(in_place, "block")
                ))?;
            }
        }
        Ok(())
    }

    /// Reads the blocks of the inode asked for.
    fn verify(&self, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
        for (object, blocks) in self.blocks.iter().filter(|(_, blocks)| !blocks.is_empty()) {
            let Ok(file) = File::open(self.directory.join(host_file(*object))) else { continue };
            let mut good = 0;
            for (block, checksum) in blocks {
                let offset = block * BLOCK_BYTES;
                match read_block(&file, offset) {
                    Ok(contents) if crc32c(&contents) == *checksum => good += 1,
                    Ok(contents) => report.damage(format_args!(
                        "object {object} at byte {offset}: checksum {:08x}, recorded {checksum:08x}",
                        crc32c(&contents)
                    ))?,
                    Err(error) => report.damage(format_args!("object {object} at byte {offset}: {error}"))?,
                }
            }
            report.line(
                || Fact::Blocks { object: object.to_string(), verified: good, blocks: blocks.len() as u64 },
                format_args!("  object {object}: {good} of {} blocks in place verify", blocks.len()),
            )?;
        }
        Ok(())
    }
}

/// A block of a host file; bytes after the end of the file are zeros.
fn read_block(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut contents = vec![0; BLOCK_BYTES as usize];
    let mut filled = 0;
    while filled < contents.len() {
        match file.read_at(&mut contents[filled..], offset + filled as u64)? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    Ok(contents)
}

/// Files two levels below, as `objects/xx/name`, sorted.
fn list(root: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for directory in root.read_dir()? {
        let directory = directory?;
        let parent = directory.file_name().to_string_lossy().into_owned();
        if !directory.file_type()?.is_dir() {
            names.push(format!("{OBJECTS_DIRECTORY}/{parent}"));
            continue;
        }
        for entry in directory.path().read_dir()? {
            names.push(format!("{OBJECTS_DIRECTORY}/{parent}/{}", entry?.file_name().to_string_lossy()));
        }
    }
    names.sort();
    Ok(names)
}
