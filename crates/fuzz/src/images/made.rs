//! The images that are damaged: small targets whose objects were written, overwritten, cut and
//! removed, with everything that their blocks held at any time.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::LazyLock,
};

use bytes::Bytes;
use kv::{
    ColdStore, MemoryCold, Table,
    journal::format::{Record, SEGMENT_HEADER_BYTES},
    superblock::STORE_FILE,
};
use oss::{Engine, directory::device::DEVICE_FILE, tables_part::TablesPart};
use rpc::message::ost::{ExtentPlace, SpaceChange};
use rt::{Device, memory::MemoryDevice};
use types::{InodeNumber, ObjectId, limits::BLOCK_BYTES};

use super::session::{Parts, Session};

/// Images there are: with the tables elsewhere and on the device, each left by a crash and closed.
pub const IMAGES: usize = 4;
/// Blocks of a device: two groups, and a part of a third.
const BLOCKS: u64 = 70_000;
/// The part with the tables: a journal of 2 MiB, and a tree of 6 MiB.
const TABLES: TablesPart =
    TablesPart { blocks: 2048, segment_bytes: 256 << 10, segments: 8, node_bytes: 4096, alignment: 4096 };
const KIB: u64 = 1024;
const MIB: u64 = 1024 * 1024;

/// The images. Each is made when it is asked for.
pub static MADE: [LazyLock<Made>; IMAGES] = [
    LazyLock::new(|| make(false, false)),
    LazyLock::new(|| make(false, true)),
    LazyLock::new(|| make(true, false)),
    LazyLock::new(|| make(true, true)),
];

/// The objects of images.
pub fn object(number: u64) -> ObjectId {
    ObjectId::new(InodeNumber(0x100 + number), 0)
}

/// Data that differ from block to block and from version to version, without zeros.
pub fn pattern(version: u64, offset: u64, bytes: u64) -> Vec<u8> {
    let mixed = |at: u64| ((at ^ version.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1;
    (offset..offset + bytes).map(mixed).collect()
}

/// Runs something in a runtime of its own, whose tasks end with it.
pub fn run_alone<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made").block_on(future)
}

/// A block of a file: of the device, or of the journal if that is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of the file; only the device has that of the device.
    pub file: String,
    /// Number of the block.
    pub block: u64,
}

impl Place {
    fn new(file: &str, block: u64) -> Self {
        Self { file: file.to_owned(), block }
    }

    /// Whether it is on the device.
    pub fn is_on_device(&self) -> bool {
        self.file == DEVICE_FILE
    }
}

/// Bytes of a file with a checksum.
#[derive(Clone, Debug)]
pub struct Summed {
    pub file: String,
    /// Where the checksum is.
    pub at: u64,
    /// What it is of.
    pub bytes: Range<u64>,
}

/// See the module documentation.
pub struct Made {
    pub parts: Parts,
    /// As it was closed some time before.
    pub older: Parts,
    pub is_clean: bool,
    /// What objects hold.
    pub contents: BTreeMap<ObjectId, Vec<u8>>,
    /// What their blocks have held, besides nothing at all.
    pub history: BTreeMap<(ObjectId, u64), Vec<Vec<u8>>>,
    /// Sizes that they have had.
    pub sizes: BTreeMap<ObjectId, BTreeSet<u64>>,
    /// Blocks of objects that are on the device, and where.
    pub on_device: BTreeMap<(ObjectId, u64), u64>,
    /// Blocks worth damaging.
    pub data: Vec<Place>,
    pub tables: Vec<Place>,
    /// Labels, roots and headers.
    pub heads: Vec<Place>,
    /// What has a checksum besides data.
    pub summed: Vec<Summed>,
    /// Records of the cold store that is elsewhere.
    pub cold: Vec<(Table, Bytes, Bytes)>,
}

impl Made {
    /// The file's device among these parts.
    pub fn device_of<'p>(parts: &'p Parts, file: &str) -> &'p MemoryDevice {
        match &parts.elsewhere {
            Some((journal, _)) if file != DEVICE_FILE => journal,
            _ => &parts.device,
        }
    }

    /// The blocks that have a copy of the label.
    pub fn labels() -> [Place; 2] {
        [0, BLOCKS - 1].map(|block| Place::new(DEVICE_FILE, block))
    }
}

/// What objects hold and have held.
#[derive(Default)]
struct Model {
    contents: BTreeMap<ObjectId, Vec<u8>>,
    history: BTreeMap<(ObjectId, u64), Vec<Vec<u8>>>,
    sizes: BTreeMap<ObjectId, BTreeSet<u64>>,
}

impl Model {
    /// An object has changed to this.
    fn set(&mut self, object: ObjectId, contents: Vec<u8>) {
        self.sizes.entry(object).or_default().insert(contents.len() as u64);
        for (block, bytes) in (0..).zip(contents.chunks(BLOCK_BYTES as usize)) {
            let mut whole = bytes.to_vec();
            whole.resize(BLOCK_BYTES as usize, 0);
            let versions = self.history.entry((object, block)).or_default();
            if !versions.contains(&whole) {
                versions.push(whole);
            }
        }
        self.contents.insert(object, contents);
    }
}

/// A target and what it should hold.
struct Maker {
    session: Session,
    model: Model,
}

impl Maker {
    async fn write(&mut self, number: u64, version: u64, bytes: Range<u64>, sync: bool) {
        let data = pattern(number * 100 + version, bytes.start, bytes.end - bytes.start);
        self.session.write(object(number), bytes.start, &data, sync).await.expect("there is room");
        let mut contents = self.model.contents.get(&object(number)).cloned().unwrap_or_default();
        contents.resize(contents.len().max(bytes.end as usize), 0);
        contents[bytes.start as usize..bytes.end as usize].copy_from_slice(&data);
        self.model.set(object(number), contents);
    }

    async fn change(&mut self, number: u64, change: SpaceChange) {
        self.session.change_space(object(number), change).await.expect("there is room");
        let mut contents = self.model.contents.get(&object(number)).cloned().unwrap_or_default();
        match change {
            SpaceChange::Truncate { size } => contents.resize(size as usize, 0),
            SpaceChange::Punch { offset, bytes } => {
                let end = contents.len().min((offset + bytes) as usize);
                contents[offset as usize..end].fill(0);
            }
            SpaceChange::Allocate { .. } => {}
            SpaceChange::Zero { .. } => panic!("not among the changes here"),
        }
        self.model.set(object(number), contents);
    }

    async fn destroy(&mut self, number: u64) {
        self.session.destroy(object(number)).await.expect("there is room");
        self.model.contents.remove(&object(number));
    }

    /// Everything is durable, and what was put off is done.
    async fn settle(&self) {
        self.session.sync().await.expect("memory does not fail");
        for _ in 0..3 {
            self.session.work().await;
        }
        self.session.sync().await.expect("memory does not fail");
    }

    /// Objects of all kinds in all groups: in many pieces, in one, with holes, in the tables.
    async fn begin(&mut self) {
        self.session.set("prealloc_table", "16 32 64");
        for offset in (0..512 * KIB).step_by(64 << 10) {
            self.write(1, 1, offset..offset + 64 * KIB, false).await;
            self.write(2, 1, offset..offset + 64 * KIB, false).await;
        }
        self.session.set("prealloc_table", "adaptive");
        self.session.set("mb_last_group", "1");
        self.write(3, 1, 0..MIB, false).await;
        self.write(3, 1, MIB..MIB + 512 * KIB, false).await;
        self.session.set("mb_last_group", "2");
        self.write(4, 1, 3 * MIB..3 * MIB + 300 * KIB, false).await;
        self.write(5, 1, 0..10_000, true).await;
        self.write(6, 1, 0..300 * KIB, false).await;
        self.write(6, 2, 40_000..48_000, false).await;
        self.settle().await;
    }

    /// Some of them overwritten, cut, removed; others in their places.
    async fn go_on(&mut self) {
        self.write(3, 2, 128 * KIB..640 * KIB, false).await;
        self.destroy(2).await;
        self.change(1, SpaceChange::Truncate { size: 200_001 }).await;
        self.change(4, SpaceChange::Punch { offset: 3 * MIB + 5000, bytes: 100_000 }).await;
        self.settle().await;
        self.session.set("mb_last_group", "0");
        self.write(7, 1, 0..700 * KIB, false).await;
        self.write(5, 2, 3000..12_000, false).await;
        self.write(6, 3, 100_000..104_096, true).await;
        self.write(8, 1, 0..100, false).await;
        self.change(8, SpaceChange::Allocate { offset: 0, bytes: 256 * KIB, extend: false }).await;
        self.settle().await;
        // Of these nothing is flushed.
        self.write(3, 3, 256 * KIB..512 * KIB, false).await;
        self.write(9, 1, 0..128 * KIB, false).await;
        self.write(9, 2, 4096..12_288, false).await;
        self.write(7, 2, 0..4096, false).await;
    }

    /// The blocks of all objects that are on the device, and where.
    async fn on_device(&self) -> BTreeMap<(ObjectId, u64), u64> {
        let mut on_device = BTreeMap::new();
        for object in self.model.contents.keys() {
            for extent in self.session.extents(*object).await.expect("nothing is damaged yet") {
                let ExtentPlace::Device(start) = extent.place else { continue };
                let blocks = 0..extent.bytes.div_ceil(BLOCK_BYTES);
                on_device.extend(
                    blocks.map(|block| ((*object, extent.offset / BLOCK_BYTES + block), start / BLOCK_BYTES + block)),
                );
            }
        }
        on_device
    }
}

fn make(one_device: bool, is_clean: bool) -> Made {
    run_alone(async {
        let tables = one_device.then_some(TABLES);
        let elsewhere = (!one_device).then(|| (MemoryDevice::new(), MemoryCold::new()));
        let parts = Parts { device: MemoryDevice::new(), elsewhere };
        parts.format(Engine::Blocks { blocks: BLOCKS, tables }, BLOCKS).await;
        let open = async || Session::open(&parts).await.expect("it was made");
        let mut maker = Maker { session: open().await, model: Model::default() };
        maker.begin().await;
        maker.session.stop().await.expect("memory does not fail");
        let older = parts.copy();
        let mut maker = Maker { session: open().await, model: maker.model };
        maker.go_on().await;
        let on_device = maker.on_device().await;
        let mut parts_left = parts.copy();
        if is_clean {
            maker.session.stop().await.expect("memory does not fail");
            parts_left = parts.copy();
        }
        let Model { contents, history, sizes } = maker.model;
        let mut made = Made {
            parts: parts_left,
            older,
            is_clean,
            contents,
            history,
            sizes,
            on_device,
            data: Vec::new(),
            tables: Vec::new(),
            heads: Vec::new(),
            summed: Vec::new(),
            cold: Vec::new(),
        };
        made.note_places(tables).await;
        made
    })
}

impl Made {
    /// Sorts the blocks that have data by what they are of, and finds what has checksums.
    async fn note_places(&mut self, tables: Option<TablesPart>) {
        let own = tables.map_or(0..0, |part| part.range());
        let used: BTreeSet<u64> = [&self.parts, &self.older]
            .into_iter()
            .flat_map(|parts| parts.device.blocks_with_space(DEVICE_FILE))
            .collect();
        let labels = Self::labels();
        for place in used.into_iter().map(|block| Place::new(DEVICE_FILE, block)) {
            match () {
                () if labels.contains(&place) => {}
                () if own.contains(&place.block) => self.tables.push(place),
                () => self.data.push(place),
            }
        }
        for Place { file, block } in &labels {
            let start = block * BLOCK_BYTES;
            self.summed.push(Summed { file: file.clone(), at: start + 4092, bytes: start..start + 4092 });
        }
        self.heads.extend(labels);
        match tables.and_then(|part| part.layout()) {
            Some(layout) => {
                self.note_head(DEVICE_FILE, layout.store_at);
                for segment in 0..u64::from(layout.segments) {
                    let start = layout.store_at + BLOCK_BYTES + segment * layout.segment_bytes;
                    self.note_segment(DEVICE_FILE, start, layout.segment_bytes).await;
                }
                for (number, node) in
                    (0..layout.tree_bytes / BLOCK_BYTES).map(|number| (number, layout.tree_at + number * BLOCK_BYTES))
                {
                    // The places of the root are the first two blocks.
                    let (at, bytes) = match number {
                        0 | 1 => (node + 508, node..node + 508),
                        _ => (node, node + 4..node + BLOCK_BYTES),
                    };
                    if number < 2 {
                        self.heads.push(Place::new(DEVICE_FILE, node / BLOCK_BYTES));
                    }
                    self.summed.push(Summed { file: DEVICE_FILE.to_owned(), at, bytes });
                }
            }
            None => {
                self.note_head(STORE_FILE, 0);
                for name in Self::journal(&self.parts).list("").await.expect("memory can be read") {
                    let blocks = Self::journal(&self.parts).blocks_with_space(&name);
                    self.tables.extend(blocks.into_iter().map(|block| Place::new(&name, block)));
                    if name != STORE_FILE {
                        let length = Self::journal(&self.parts).length(&name).await.expect("memory can be read");
                        self.note_segment(&name, 0, length.unwrap_or(0)).await;
                    }
                }
            }
        }
        let Some((_, cold)) = &self.parts.elsewhere else { return };
        for table in (0..=u8::MAX).map(Table) {
            let mut note = |key: &[u8], value: &[u8]| {
                self.cold.push((table, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                true
            };
            cold.scan(table, &[], None, &mut note).expect("memory can be read");
        }
    }

    fn journal(parts: &Parts) -> &MemoryDevice {
        Self::device_of(parts, STORE_FILE)
    }

    /// The first 64 bytes of the store's file or of a segment.
    fn note_head(&mut self, file: &str, start: u64) {
        self.heads.push(Place::new(file, start / BLOCK_BYTES));
        self.summed.push(Summed { file: file.to_owned(), at: start + 60, bytes: start..start + 60 });
    }

    /// A segment of the journal: its header, and its records as far as they are whole.
    async fn note_segment(&mut self, file: &str, start: u64, bytes: u64) {
        self.note_head(file, start);
        let device = Self::device_of(&self.parts, file);
        let read = device.read(file, start, vec![0; bytes as usize]).await;
        let (content, _) = read.expect("memory can be read");
        let mut offset = SEGMENT_HEADER_BYTES;
        while let Some(record) = content.get(offset as usize..).and_then(Record::decode) {
            let end = offset + kv::journal::format::RECORD_HEADER_BYTES as u64 + u64::from(record.payload_bytes);
            self.summed.push(Summed {
                file: file.to_owned(),
                at: start + offset,
                bytes: start + offset + 4..start + end,
            });
            offset += record.space();
        }
    }
}
