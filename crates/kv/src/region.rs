//! A store on a part of one device, without a file system: where its journal and its cold store
//! are.
//!
//! ```text
//! | store file | journal segment 0 | segment 1 | ... | gap | tree (cold store) |
//! ```
//!
//! The store's files ([`crate::superblock`], [`crate::journal`]) have fixed places and lengths, so
//! there is no table of files that could be damaged. A segment that was never used is zeros, which
//! the journal knows as a prepared one. The gap keeps the tree away from what is written through
//! the page cache.
//!
//! Downside: the part cannot grow, and its journal has as many segments as it was made with (see
//! `store::room` for a store that dies again and again).

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use rt::{BoxFuture, Device};
use types::SpaceUsage;

use crate::{
    cold::tree::{TreeCold, TreePart},
    config::{Config, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN},
    journal::{SEGMENT_PREFIX, format::SEGMENT_HEADER_BYTES, segment_name, segment_slot},
    superblock::STORE_FILE,
};

/// Bytes of the store file's place.
const STORE_FILE_BYTES: u64 = 4096;
/// Segments that a part may have.
pub const SEGMENTS_MAX: u32 = 1024;

/// Where everything is, in bytes from the beginning of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// The store file.
    pub store_at: u64,
    /// Size of a journal segment.
    pub segment_bytes: u64,
    /// Journal segments.
    pub segments: u32,
    /// The tree.
    pub tree_at: u64,
    /// Its length.
    pub tree_bytes: u64,
}

impl RegionLayout {
    /// The layout of a part; `None` if it is too small, or nothing of it is possible. The tree
    /// begins at a multiple of `alignment`.
    pub fn new(part: Range<u64>, segment_bytes: u64, segments: u32, alignment: u64) -> Option<RegionLayout> {
        let is_possible = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
            && segment_bytes.is_multiple_of(SEGMENT_HEADER_BYTES)
            && (3..=SEGMENTS_MAX).contains(&segments)
            && part.start.is_multiple_of(STORE_FILE_BYTES)
            && alignment.is_power_of_two();
        let journal_end = part.start.checked_add(STORE_FILE_BYTES)?.checked_add(segment_bytes * u64::from(segments))?;
        let tree_at = journal_end.checked_next_multiple_of(alignment)?;
        let tree_bytes = part.end.checked_sub(tree_at)?;
        (is_possible && tree_bytes > 0).then_some(RegionLayout {
            store_at: part.start,
            segment_bytes,
            segments,
            tree_at,
            tree_bytes,
        })
    }

    /// The same settings for a store with this layout.
    pub fn configure(&self, config: Config) -> Config {
        Config {
            segment_bytes: self.segment_bytes,
            segments_max: self.segments,
            reserve_bytes: config.reserve_bytes.min(self.segment_bytes / 4),
            // Nothing but the tree takes space.
            device_reserve_bytes: config.device_reserve_bytes.min(self.tree_bytes / 16),
            // The places have no metadata that a flush would have to change.
            zero_segments: false,
            ..config
        }
    }

    /// The place of a file.
    fn place(&self, file: &str) -> Option<Range<u64>> {
        if file == STORE_FILE {
            return Some(self.store_at..self.store_at + STORE_FILE_BYTES);
        }
        let slot = segment_slot(file).filter(|slot| *slot < self.segments)?;
        let start = self.store_at + STORE_FILE_BYTES + u64::from(slot) * self.segment_bytes;
        Some(start..start + self.segment_bytes)
    }

    /// The part of the tree. `at_once`: see [`TreePart::at_once`].
    pub fn tree(&self, at_once: Arc<dyn Device>, device: Arc<dyn Device>, file: &str) -> TreePart {
        TreePart { at_once, device, file: file.to_owned(), offset: self.tree_at, bytes: self.tree_bytes }
    }

    /// Makes an empty store: nothing of an earlier one can be taken for a part of it. `tree`: a
    /// random number.
    pub async fn format(&self, device: Arc<dyn Device>, file: &str, node_bytes: usize, tree: u64) -> io::Result<()> {
        let names = (0..self.segments).map(segment_name).chain([STORE_FILE.to_owned()]);
        for place in names.filter_map(|name| self.place(&name)) {
            let zeros = Bytes::from_static(&[0; SEGMENT_HEADER_BYTES as usize]);
            device.write(file, place.start, vec![zeros]).await?;
        }
        device.flush(file).await?;
        TreeCold::create(&self.tree(device.clone(), device, file), node_bytes, tree).await
    }
}

/// The files of a store in a part of a device: all that its journal needs of a device, and no more.
/// Files exist always, have their full lengths, and cannot be made.
pub struct RegionFiles {
    device: Arc<dyn Device>,
    file: String,
    layout: RegionLayout,
    /// Takes all the space that can be taken. None: nothing is asked about space.
    tree: Option<Arc<TreeCold>>,
}

impl RegionFiles {
    /// The files of this layout within `file`.
    pub fn new(device: Arc<dyn Device>, file: &str, layout: RegionLayout, tree: Option<Arc<TreeCold>>) -> RegionFiles {
        RegionFiles { device, file: file.to_owned(), layout, tree }
    }

    /// The place of so many bytes of a file.
    fn range(&self, file: &str, offset: u64, bytes: u64) -> io::Result<Range<u64>> {
        let place = self.layout.place(file).ok_or_else(|| no_room(file))?;
        let start = place.start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|end| *end <= place.end);
        match (start, end) {
            (Some(start), Some(end)) => Ok(start..end),
            _ => Err(no_room(file)),
        }
    }
}

fn no_room(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, format!("the device has no room for so much of '{file}'"))
}

fn ready<T: Send + 'static>(result: io::Result<T>) -> BoxFuture<'static, io::Result<T>> {
    Box::pin(std::future::ready(result))
}

impl Device for RegionFiles {
    fn read(&self, file: &str, offset: u64, mut buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let Some(place) = self.layout.place(file) else { return ready(Ok((buffer, 0))) };
        let available = (place.end - place.start).saturating_sub(offset);
        let (wanted, bytes) = (buffer.len(), available.min(buffer.len() as u64) as usize);
        if bytes == 0 {
            return ready(Ok((buffer, 0)));
        }
        buffer.truncate(bytes);
        let read = self.device.read(&self.file, place.start + offset, buffer);
        Box::pin(async move {
            let (mut buffer, filled) = read.await?;
            buffer.resize(wanted, 0);
            Ok((buffer, filled))
        })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        match self.range(file, offset, bytes as u64) {
            Ok(range) => self.device.write(&self.file, range.start, pieces),
            Err(error) => ready(Err(error)),
        }
    }

    fn flush(&self, _file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.device.flush(&self.file)
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        ready(Ok(self.layout.place(file).map(|place| place.end - place.start)))
    }

    /// Only to a length that the file's place has room for; its length stays.
    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        ready(self.range(file, 0, length).map(drop))
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        match self.range(file, offset, bytes) {
            Ok(range) => self.device.punch(&self.file, range.start, range.end - range.start),
            Err(error) => ready(Err(error)),
        }
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        ready(self.range(file, offset, bytes).map(drop))
    }

    /// Clears the beginning of a file, without which it is none.
    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        match self.layout.place(file) {
            Some(place) => {
                let zeros = Bytes::from_static(&[0; SEGMENT_HEADER_BYTES as usize]);
                self.device.write(&self.file, place.start, vec![zeros])
            }
            None => ready(Ok(())),
        }
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let segments = (0..self.layout.segments).map(segment_name);
        let mut names: Vec<String> = segments.chain([STORE_FILE.to_owned()]).collect();
        names.retain(|name| name.starts_with(prefix));
        names.sort_unstable();
        ready(Ok(names))
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        let space = self.tree.as_ref().map(|tree| tree.space());
        ready(space.ok_or_else(|| io::ErrorKind::Unsupported.into()))
    }
}

const _: () = assert!(SEGMENT_HEADER_BYTES == STORE_FILE_BYTES, "every place has room for a cleared beginning");
const _: () = assert!(!SEGMENT_PREFIX.is_empty(), "segments have names of their own");

#[cfg(test)]
mod tests {
    use rt::memory::MemoryDevice;

    use super::*;

    fn layout() -> RegionLayout {
        RegionLayout::new(4096..(1 << 20), 16 << 10, 4, 64 << 10).unwrap()
    }

    #[test]
    fn parts_have_their_places_and_impossible_ones_are_refused() {
        let expected = RegionLayout {
            store_at: 4096,
            segment_bytes: 16 << 10,
            segments: 4,
            tree_at: 128 << 10,
            tree_bytes: 896 << 10,
        };
        assert_eq!(layout(), expected);
        for (part, segment_bytes, segments, alignment) in [
            (4096..(128 << 10), 16 << 10, 4, 64 << 10),
            (4096..8192, 16 << 10, 4, 4096),
            (100..(1 << 20), 16 << 10, 4, 4096),
            (0..(1 << 20), 16 << 10, 2, 4096),
            (0..(1 << 20), 8 << 10, 4, 4096),
            (0..(1 << 20), 16 << 10, 4, 5000),
            (u64::MAX - 4095..u64::MAX, 16 << 10, 4, 4096),
        ] {
            let found = RegionLayout::new(part.clone(), segment_bytes, segments, alignment);
            assert_eq!(found, None, "{part:?} {segment_bytes} {segments} {alignment}");
        }
    }

    #[tokio::test]
    async fn files_have_fixed_places_and_nothing_is_written_outside() {
        let memory = MemoryDevice::new();
        memory.truncate("d", 1 << 20).await.unwrap();
        let device: Arc<dyn Device> = Arc::new(memory.clone());
        memory.write("d", 0, vec![vec![7; 1 << 20].into()]).await.unwrap();
        layout().format(device.clone(), "d", 4096, 1).await.unwrap();
        let tree = TreeCold::open(&layout().tree(device.clone(), device.clone(), "d"), 0).unwrap();
        let files = RegionFiles::new(device, "d", layout(), Some(Arc::new(tree)));
        assert_eq!(files.list("").await.unwrap(), ["journal.0", "journal.1", "journal.2", "journal.3", "store"]);
        assert_eq!(files.list("journal.").await.unwrap().len(), 4);
        assert_eq!(files.length("journal.3").await.unwrap(), Some(16 << 10));
        for none in ["journal.4", "journal.03", "other"] {
            assert_eq!(files.length(none).await.unwrap(), None);
            assert_eq!(files.read(none, 0, vec![1; 3]).await.unwrap().1, 0);
            assert!(files.write(none, 0, vec![Bytes::from_static(b"x")]).await.is_err());
        }
        for name in ["store", "journal.0", "journal.3"] {
            let (found, filled) = files.read(name, 0, vec![1; 4096]).await.unwrap();
            assert!(filled == 4096 && found.iter().all(|byte| *byte == 0), "nothing is left of what was there");
        }
        let end = (16 << 10) - 3;
        files.write("journal.3", end, vec![Bytes::from_static(b"end")]).await.unwrap();
        assert!(files.write("journal.3", end + 1, vec![Bytes::from_static(b"end")]).await.is_err());
        assert!(
            files.truncate("journal.3", (16 << 10) + 1).await.is_err()
                && files.allocate("store", 0, 5000).await.is_err()
        );
        let (found, filled) = files.read("journal.3", end, vec![1; 10]).await.unwrap();
        assert_eq!((&found[..filled], found.len()), (&b"end"[..], 10));
        let (found, _) = memory.read("d", 4096 + 4096 + (64 << 10) - 3, vec![0; 4]).await.unwrap();
        assert_eq!(found, b"end\x07");
        files.remove("journal.3").await.unwrap();
        assert!(files.space().await.unwrap().bytes_available > 0);
    }
}
