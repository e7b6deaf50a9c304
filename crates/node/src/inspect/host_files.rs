//! Compares host files of an OST's objects with its tables: unreferenced files, missing files, and,
//! for a single inode, every block with its checksum. Of a target with a device it compares the
//! device's label, the bitmaps with the objects' blocks, and those of a single inode.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use kv::Table;
use oss::{
    Engine, Superblock,
    chunk_record::{CHUNK_BLOCKS, ChunkRecord},
    device_label::DeviceLabel,
    device_records::DeviceRecords,
    inspect::{host_file, parse_host_file},
    object_record::ObjectRecord,
    superblock::SUPERBLOCK_KEY,
    tables::{CHUNKS, META, OBJECTS, parse_object_key, parse_part_key},
};
use rpc::checksum::crc32c;
use types::{InodeNumber, ObjectId, counted, limits::BLOCK_BYTES};

use super::{Fact, InspectionReport};

/// Directory of host files within a target's.
const OBJECTS_DIRECTORY: &str = "objects";

/// What the tables say of host files, and then what there is.
pub struct HostFiles {
    directory: PathBuf,
    /// Where the target's device is, if it has one.
    device_path: PathBuf,
    inode: Option<InodeNumber>,
    /// Objects that have, or may have, a host file.
    records: BTreeMap<ObjectId, ObjectRecord>,
    /// Blocks that are in the host files of the inode asked for, with their checksums.
    blocks: BTreeMap<ObjectId, Vec<StoredBlock>>,
    superblock: Option<Superblock>,
    device: DeviceRecords,
}

/// A block outside of the tables.
#[derive(Debug)]
struct StoredBlock {
    /// Its number within the object.
    block: u64,
    checksum: u32,
    /// Block of the device that has it; `None`: it is in the host file.
    address: Option<u64>,
}

impl HostFiles {
    /// Of the target in `directory`; blocks of `inode` are to be verified.
    pub fn new(directory: &Path, device_path: PathBuf, inode: Option<InodeNumber>) -> Self {
        Self {
            directory: directory.to_owned(),
            device_path,
            inode,
            records: BTreeMap::new(),
            blocks: BTreeMap::new(),
            superblock: None,
            device: DeviceRecords::default(),
        }
    }

    /// Notes an entry of the target's tables. What does not decode has been reported as such.
    pub fn note(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.device.note(table, key, value);
        if table == META && key == SUPERBLOCK_KEY {
            self.superblock = Superblock::decode(value).ok();
        }
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
            let in_place = numbered.filter(|(_, state)| state.is_outside_tables()).filter_map(|(block, state)| {
                Some(StoredBlock { block, checksum: state.checksum()?, address: state.address() })
            });
            self.blocks.entry(object).or_default().extend(in_place);
        }
    }

    /// Compares them with the files, or with the device.
    pub fn inspect(mut self, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
        if let Some(superblock) = self.superblock.take()
            && let Engine::Blocks { blocks, .. } = superblock.engine
        {
            return self.inspect_device(&superblock, blocks, report);
        }
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

    fn inspect_device(
        mut self,
        superblock: &Superblock,
        blocks: u64,
        report: &mut InspectionReport<'_>,
    ) -> anyhow::Result<()> {
        let path = self.device_path.clone();
        report.heading(format_args!("device {}: {}", path.display(), counted(blocks, "block")))?;
        match File::open(&path) {
            Err(error) => report.damage(format_args!("{}: {error}", path.display()))?,
            Ok(device) => {
                for place in DeviceLabel::places(blocks) {
                    let label = read_block(&device, place * BLOCK_BYTES).map_err(|error| error.to_string());
                    match label.and_then(|block| DeviceLabel::decode(&block).map_err(|error| error.to_string())) {
                        Ok(label) if label.is_of(superblock, blocks) => {}
                        Ok(_) => report.damage(format_args!("block {place}: the label of another target"))?,
                        Err(error) => report.damage(format_args!("block {place}: {error}"))?,
                    }
                }
            }
        }
        for problem in std::mem::take(&mut self.device).problems(superblock.engine) {
            report.damage(format_args!("{problem}"))?;
        }
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
            let is_on_device = blocks.iter().any(|stored| stored.address.is_some());
            let path = if is_on_device { self.device_path.clone() } else { self.directory.join(host_file(*object)) };
            let Ok(file) = File::open(path) else { continue };
            let mut good = 0;
            for StoredBlock { block, checksum, address } in blocks {
                let offset = block.saturating_mul(BLOCK_BYTES);
                match read_block(&file, address.unwrap_or(*block).saturating_mul(BLOCK_BYTES)) {
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
