//! What a device with the objects of a target looks like: its bitmap as a picture, the lengths of
//! its free runs, and in how many pieces objects are.
//!
//! Pure: the caller shows the entries of the target's tables, in their order ([`crate::tables`]),
//! so that the bitmap of no more than one group is in memory. A group of which the tables have no
//! bitmap is free as a whole.
//!
//! Downside: nothing is compared. Records that contradict each other give a map of what the bitmaps
//! say; [`crate::device_records`] finds the contradictions.

use blocks::{BITMAP_BYTES, FreeRuns, Geometry, Histogram, Picture, layout_score};
use kv::Table;
use types::{ObjectId, limits::BLOCK_BYTES};

use crate::{
    chunk_record::ChunkRecord,
    device_records::extents,
    group_record::{PIECE_BYTES, decode_piece},
    superblock::{Engine, SUPERBLOCK_KEY, Superblock, device_geometry},
    tables::{BITMAPS, CHUNKS, META, parse_part_key, parse_piece_key},
};

/// Classes of objects by the number of their pieces: 1, 2, 3-4, 5-8, and so on, doubling.
const PIECE_CLASSES: usize = 24;

/// Pieces of objects: runs of a device, each as long as it goes on there in the order of the
/// object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectPieces {
    objects: u64,
    blocks: u64,
    pieces: u64,
    /// The object with the most.
    most: Option<(ObjectId, u64)>,
    classes: [u64; PIECE_CLASSES],
}

impl ObjectPieces {
    fn add(&mut self, object: ObjectId, blocks: u64, pieces: u64) {
        self.objects += 1;
        self.blocks += blocks;
        self.pieces += pieces;
        if self.most.is_none_or(|(_, most)| pieces > most) {
            self.most = Some((object, pieces));
        }
        // The logarithm, rounded up.
        let class = pieces.next_power_of_two().ilog2() as usize;
        self.classes[class.min(PIECE_CLASSES - 1)] += 1;
    }

    /// Objects that have blocks of the device.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Blocks of all of them.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Pieces of all of them.
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// An object with more pieces than all others, or as many, and their number.
    pub fn most(&self) -> Option<(ObjectId, u64)> {
        self.most
    }

    /// The layout score of all objects together: the part of the blocks, except the first one of
    /// each object, that follow their predecessor ([`layout_score`]).
    pub fn score(&self) -> f64 {
        layout_score(self.blocks + 1 - self.objects.min(self.blocks), self.pieces + 1 - self.objects.min(self.pieces))
    }

    /// Classes that have objects: fewest and most pieces, and objects.
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let bounds = |class: usize| (if class == 0 { 1 } else { (1 << (class - 1)) + 1 }, 1 << class);
        let last = |class: usize, most| if class + 1 == PIECE_CLASSES { u64::MAX } else { most };
        let classes = self.classes.iter().enumerate().filter(|(_, objects)| **objects > 0);
        classes.map(move |(class, objects)| {
            let (fewest, most) = bounds(class);
            (fewest, last(class, most), *objects)
        })
    }
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceMap {
    /// The target.
    pub target: String,
    geometry: Geometry,
    picture: Picture,
    /// Free space by the length of its runs.
    pub free: Histogram,
    /// Objects by the number of their pieces.
    pub objects: ObjectPieces,
}

impl DeviceMap {
    /// Blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks()
    }

    /// Allocation groups of the device.
    pub fn groups(&self) -> u32 {
        self.geometry.groups()
    }

    /// Bytes that a cell of the picture shows, about: cells differ by a block.
    pub fn cell_bytes(&self) -> u64 {
        self.picture.cell_bytes()
    }

    /// The bitmap.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// The bitmap in lines of so many characters.
    pub fn text(&self, columns: usize) -> String {
        self.picture.text(columns)
    }

    /// The bitmap as an SVG document, in rows of so many cells.
    pub fn svg(&self, columns: usize) -> String {
        let title = format!(
            "{}: {} blocks of {BLOCK_BYTES} bytes, a cell is {} KiB, light cells are free",
            self.target,
            self.blocks(),
            self.cell_bytes() >> 10
        );
        self.picture.svg(&title, columns)
    }

    /// The bitmap as a PNG image, in rows of so many cells.
    pub fn png(&self, columns: usize) -> Vec<u8> {
        self.picture.png(columns)
    }
}

/// Why there is no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMap {
    /// The target has host files.
    #[error("{0} keeps each object in a file of its directory; only a target with a device has a map")]
    HostFiles(String),
    /// The superblock is missing or damaged.
    #[error("the superblock of the target is missing or damaged")]
    Superblock,
}

/// An object while its chunks are shown.
#[derive(Clone, Copy, Debug)]
struct Current {
    object: ObjectId,
    blocks: u64,
    pieces: u64,
    /// End of its last piece on the device.
    end: u64,
}

/// Makes a map of the entries of a target's tables.
#[derive(Debug)]
pub struct MapBuilder {
    cells: u32,
    superblock: Option<Superblock>,
    /// What is known of the device, once its size is.
    map: Option<DeviceMap>,
    object: Option<Current>,
    /// The next group of which nothing was added.
    next_group: u32,
    bitmap: Box<[u8; BITMAP_BYTES]>,
    /// The group that `bitmap` is of.
    group: Option<u32>,
}

impl MapBuilder {
    /// Of a target; the picture will have so many cells, at most one for each block.
    pub fn new(cells: u32) -> Self {
        let bitmap = Box::new([0; BITMAP_BYTES]);
        Self { cells, superblock: None, map: None, object: None, next_group: 0, bitmap, group: None }
    }

    /// Takes the next entry. What does not decode is left out.
    pub fn note(&mut self, table: Table, key: &[u8], value: &[u8]) {
        if table == META && key == SUPERBLOCK_KEY {
            self.superblock = Superblock::decode(value).ok();
            self.map = self.superblock.as_ref().and_then(|superblock| empty_map(superblock, self.cells));
        } else if table == CHUNKS {
            if let (Some((object, _)), Ok(record)) = (parse_part_key(key), ChunkRecord::decode(value)) {
                self.note_chunk(object, &record);
            }
        } else if table == BITMAPS
            && let (Some((group, piece)), Ok(bytes)) = (parse_piece_key(key), decode_piece(value))
        {
            self.note_piece(group, piece, &bytes);
        }
    }

    fn note_chunk(&mut self, object: ObjectId, record: &ChunkRecord) {
        if self.object.is_some_and(|current| current.object != object) {
            self.end_object();
        }
        for blocks in extents(record) {
            let current = self.object.get_or_insert(Current { object, blocks: 0, pieces: 0, end: u64::MAX });
            current.blocks += blocks.end - blocks.start;
            current.pieces += u64::from(current.end != blocks.start);
            current.end = blocks.end;
        }
    }

    fn end_object(&mut self) {
        if let (Some(map), Some(Current { object, blocks, pieces, .. })) = (&mut self.map, self.object.take()) {
            map.objects.add(object, blocks, pieces);
        }
    }

    fn note_piece(&mut self, group: u32, piece: u8, bytes: &[u8; PIECE_BYTES]) {
        if self.group != Some(group) {
            self.end_group();
            self.group = Some(group);
        }
        if let Some(place) = self.bitmap.as_chunks_mut::<PIECE_BYTES>().0.get_mut(usize::from(piece)) {
            *place = *bytes;
        }
    }

    /// Adds the group whose bitmap was shown, and those before it that have none.
    fn end_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        let bitmap = std::mem::replace(&mut self.bitmap, Box::new([0; BITMAP_BYTES]));
        let Some(map) = &mut self.map else { return };
        let geometry = map.geometry;
        // Entries come in order; others are not of a table.
        if group >= geometry.groups() || group < self.next_group {
            return;
        }
        (self.next_group..group).for_each(|free| map.add_group(free, &FreeRuns::all(geometry.blocks_of(free))));
        map.add_group(group, &FreeRuns::from_bitmap(&bitmap, geometry.blocks_of(group)));
        self.next_group = group + 1;
    }

    /// The map: all entries were shown.
    pub fn finish(mut self) -> Result<DeviceMap, NoMap> {
        self.end_object();
        self.end_group();
        let Some(superblock) = self.superblock else { return Err(NoMap::Superblock) };
        let Some(mut map) = self.map else {
            return Err(match superblock.engine {
                Engine::Directory => NoMap::HostFiles(superblock.target()),
                Engine::Blocks { .. } => NoMap::Superblock,
            });
        };
        let geometry = map.geometry;
        (self.next_group..geometry.groups())
            .for_each(|free| map.add_group(free, &FreeRuns::all(geometry.blocks_of(free))));
        map.free = map.free.finish();
        Ok(map)
    }
}

impl DeviceMap {
    fn add_group(&mut self, group: u32, runs: &FreeRuns) {
        self.picture.add(group, runs);
        let start = self.geometry.start_of(group);
        runs.iter().for_each(|run| self.free.add(start + u64::from(run.start), run.end - run.start));
    }
}

/// A map of a device of which nothing is known but its size; `None`: the target has none.
fn empty_map(superblock: &Superblock, cells: u32) -> Option<DeviceMap> {
    let Engine::Blocks { blocks, .. } = superblock.engine else { return None };
    let geometry = device_geometry(blocks)?;
    Some(DeviceMap {
        target: superblock.target(),
        geometry,
        picture: Picture::new(geometry, cells),
        free: Histogram::default(),
        objects: ObjectPieces::default(),
    })
}

#[cfg(test)]
mod tests {
    use types::{InodeNumber, OstIndex};

    use super::*;
    use crate::{
        chunk_record::BlockState,
        tables::{part_key, piece_key},
    };

    /// Two groups, and half of a third.
    const BLOCKS: u64 = 2 * 32_768 + 16_384;

    fn superblock(engine: Engine) -> Vec<u8> {
        Superblock { index: OstIndex(3), identity: [0; 16], fsname: "stria".to_owned(), engine }.encode()
    }

    fn builder(engine: Engine) -> MapBuilder {
        let mut builder = MapBuilder::new(5);
        builder.note(META, SUPERBLOCK_KEY, &superblock(engine));
        builder
    }

    /// Blocks of an object's chunk that are on the device: first block of the object, and places.
    fn chunk(builder: &mut MapBuilder, object: u64, number: u64, places: &[(u64, u64)]) {
        let mut record = ChunkRecord::default();
        for (block, address) in places {
            record.set(*block, BlockState::OnDevice { checksum: 0, epoch: 0, address: *address });
        }
        builder.note(CHUNKS, &part_key(ObjectId::new(InodeNumber(object), 0), number), &record.encode());
    }

    fn used(builder: &mut MapBuilder, group: u32, blocks: std::ops::Range<u32>) {
        let mut runs = FreeRuns::all(32_768);
        runs.take(&blocks).unwrap();
        for piece in blocks.start / 512..=(blocks.end - 1) / 512 {
            builder.note(BITMAPS, &piece_key(group, piece as u8), &runs.used_piece(piece));
        }
    }

    #[test]
    fn a_map_shows_what_the_bitmaps_and_the_chunks_say() {
        let mut map = builder(Engine::on_device(BLOCKS));
        // In one piece, across the end of a chunk and a hole.
        chunk(&mut map, 1, 0, &[(0, 100), (1, 101)]);
        chunk(&mut map, 1, 1, &[(300, 102)]);
        // In three.
        chunk(&mut map, 2, 0, &[(0, 50), (1, 49), (2, 48)]);
        used(&mut map, 1, 0..16_384);
        let map = map.finish().unwrap();
        // A cell is half of a group.
        assert_eq!(map.text(5), "  █  \n");
        assert_eq!((map.blocks(), map.groups(), map.cell_bytes()), (BLOCKS, 3, 64 << 20));
        assert_eq!((map.free.runs(), map.free.blocks(), map.free.longest()), (2, BLOCKS - 16_384, 32_768));
        let objects = &map.objects;
        assert_eq!((objects.objects(), objects.blocks(), objects.pieces()), (2, 6, 4));
        assert_eq!(objects.most(), Some((ObjectId::new(InodeNumber(2), 0), 3)));
        assert_eq!(objects.classes().collect::<Vec<_>>(), [(1, 1, 1), (3, 4, 1)]);
        assert_eq!(objects.score(), 0.5, "of four blocks with a predecessor, two follow it");
        let svg = map.svg(5);
        assert!(svg.starts_with("<svg ") && svg.contains("stria-OST0003") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn a_free_device_and_no_device() {
        let map = builder(Engine::on_device(BLOCKS)).finish().unwrap();
        assert_eq!((map.text(5).as_str(), map.free.blocks(), map.objects.score()), ("     \n", BLOCKS, 1.0));
        assert_eq!(builder(Engine::Directory).finish(), Err(NoMap::HostFiles("stria-OST0003".to_owned())));
        assert_eq!(MapBuilder::new(5).finish(), Err(NoMap::Superblock));
        assert_eq!(builder(Engine::on_device(5)).finish(), Err(NoMap::Superblock), "too small");
    }

    #[test]
    fn damaged_entries_are_left_out() {
        let mut map = builder(Engine::on_device(BLOCKS));
        for table in [CHUNKS, BITMAPS] {
            for bytes in [&b""[..], &[0xff; 5], &[0xff; 64], &[0; 21]] {
                map.note(table, bytes, bytes);
            }
        }
        map.note(BITMAPS, &piece_key(7, 0), &[0xff; 64]);
        map.note(BITMAPS, &piece_key(0, 200), &[0xff; 64]);
        let map = map.finish().unwrap();
        assert_eq!((map.free.blocks(), map.objects.objects()), (BLOCKS, 0));
    }
}
