//! Reading.
//!
//! The layout splits a read into one request per object (several above `max_pages_per_rpc`, 4 MiB
//! unless it is changed), all in flight at once; the replies are put in file order without copying.
//!
//! Where does the file end? Only the objects know. An object returns fewer bytes than requested at
//! its own end. The missing bytes are a hole if the file continues in another object; otherwise
//! they are beyond the end of the file:
//!
//! ```text
//! stripe         0        1        2        3        read of stripes 0..2:
//! object 0   [ data ]                                full
//! object 1            [ da|                          short: hole, because
//! object 2                     [ data |              object 2 has bytes after it
//! object 3                              (untouched)  if it has bytes, object 2's missing bytes are a hole too
//! ```
//!
//! 1. Every byte has an object and every request was answered in full: the range is within the
//!    file, and no other request is needed. This is the common case. (For bytes without objects the
//!    client asks for the layout again, because other clients may have instantiated their
//!    component.)
//! 2. Else each answer carries its object's size, which implies a lower bound of the file's size.
//!    If the bound reaches the end of the range, all missing bytes are holes.
//! 3. Else, if the read touched every object of the layout (always true with one stripe), the bound
//!    is the size.
//! 4. Else the sizes of the untouched objects are glimpsed. Only reads at the end of a striped file
//!    need this.

use std::collections::BTreeSet;

use bytes::Bytes;
use layout::{Coverage, Layout, ObjectRange};
use rt::BoxFuture;
use types::{FsError, FsResult, limits::FILE_BYTES_MAX};

use crate::{
    FileSystem, OpenFile, ReadData,
    join::join_all,
    objects::object::{Object, ObjectData},
    open_state::open_inode::OpenInode,
    statistics::Operation,
};

impl FileSystem {
    /// Reads; short only at the end of the file.
    pub async fn read(&self, file: &OpenFile, offset: u64, bytes: usize) -> FsResult<ReadData> {
        file.check_readable()?;
        let bytes = (bytes as u64).min(FILE_BYTES_MAX.saturating_sub(offset));
        if bytes == 0 {
            return Ok(ReadData::default());
        }
        let data = self.read_range(&file.open, offset, bytes).await?;
        self.statistics.count_bytes(Operation::ReadBytes, data.len());
        Ok(data)
    }

    /// Boxed, see [`BoxFuture`].
    fn read_range<'a>(&'a self, open: &'a OpenInode, offset: u64, bytes: u64) -> BoxFuture<'a, FsResult<ReadData>> {
        Box::pin(self.read_range_inner(open, offset, bytes))
    }

    async fn read_range_inner(&self, open: &OpenInode, offset: u64, bytes: u64) -> FsResult<ReadData> {
        loop {
            let layout = match self.layout_of(open).await? {
                layout if layout.coverage(offset, bytes) == Coverage::Complete => layout,
                _ => self.layout_as_of_now(open).await?,
            };
            match self.read_by(open, &layout, offset, bytes).await {
                Err(FsError::LayoutChanged) => {
                    self.newer_layout(open.inode(), Some(open), layout.generation).await?;
                }
                outcome => return outcome,
            }
        }
    }

    /// One attempt under this layout.
    async fn read_by(&self, open: &OpenInode, layout: &Layout, offset: u64, bytes: u64) -> FsResult<ReadData> {
        let inode = open.inode();
        let chunks = self.requests_of(inode, layout, offset, bytes);
        let read = |chunk: &ObjectRange| {
            let object = Object::new(inode, layout, (chunk.slot, chunk.location), Some(open));
            self.read_object(object, layout, chunk.offset, chunk.bytes)
        };
        let outcomes = join_all(chunks.iter().map(read).collect()).await;
        let parts: Vec<ObjectData> = outcomes.into_iter().collect::<FsResult<_>>()?;
        let end = self.end_of_read(open, layout, (offset, bytes), &chunks, &parts).await?;
        Ok(assemble(offset, end.max(offset), &chunks, &parts))
    }

    /// Where the read ends: `wanted`, or the end of the file if that comes first.
    async fn end_of_read(
        &self,
        open: &OpenInode,
        layout: &Layout,
        (offset, bytes): (u64, u64),
        chunks: &[ObjectRange],
        parts: &[ObjectData],
    ) -> FsResult<u64> {
        let both = || chunks.iter().zip(parts);
        let wanted = offset + bytes;
        let full = both().all(|(chunk, part)| part.data.len() as u64 == chunk.bytes);
        if full && layout.coverage(offset, bytes) == Coverage::Complete {
            return Ok(wanted);
        }
        let bound = both().map(|(chunk, part)| layout.file_size(chunk.slot, part.size)).max().unwrap_or(0);
        if bound >= wanted {
            return Ok(wanted);
        }
        let layout = self.layout_as_of_now(open).await?;
        let touched: BTreeSet<u32> = chunks.iter().map(|chunk| chunk.slot).collect();
        let untouched: Vec<u32> =
            layout.objects().map(|(slot, _)| slot).filter(|slot| !touched.contains(slot)).collect();
        if untouched.is_empty() {
            return Ok(bound);
        }
        let data_attributes = self.glimpse_some(open.inode(), &layout, untouched).await?;
        Ok(bound.max(data_attributes.size).min(wanted))
    }
}

/// The bytes `offset..end` of the file in order; what no part covers is zeros.
fn assemble(offset: u64, end: u64, chunks: &[ObjectRange], parts: &[ObjectData]) -> ReadData {
    let mut pieces: Vec<(u64, Bytes)> = Vec::with_capacity(chunks.len());
    for (chunk, part) in chunks.iter().zip(parts) {
        let arrived = part.data.len() as u64;
        for piece in chunk.pieces() {
            let start = piece.object_offset - chunk.offset;
            let stop = (start + piece.bytes).min(arrived);
            if start < stop {
                pieces.push((piece.file_offset, part.data.slice(start as usize..stop as usize)));
            }
        }
    }
    pieces.sort_unstable_by_key(|(file_offset, _)| *file_offset);
    let mut data = ReadData::default();
    let mut next = offset;
    for (file_offset, piece) in pieces {
        assert!(file_offset >= next, "the parts of a read do not overlap");
        data.push_zeros((file_offset - next) as usize);
        next = file_offset + piece.len() as u64;
        data.push(piece);
    }
    data.push_zeros(end.saturating_sub(next) as usize);
    assert_eq!(data.len() as u64, end - offset, "a read returns what there is up to its end");
    data
}

#[cfg(test)]
mod tests {
    use layout::{PlainLayout, StripeSpec};
    use types::{Generation, OstIndex};

    use super::*;

    const STRIPE: u64 = 65536;

    fn parts(sizes: [u64; 3], offset: u64, bytes: u64) -> (Vec<ObjectRange>, Vec<ObjectData>) {
        let plain = PlainLayout { stripe_bytes: STRIPE, osts: (0..3).map(OstIndex).collect() };
        let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
        let chunks: Vec<ObjectRange> = layout.ranges(offset, bytes).collect();
        let part = |chunk: &ObjectRange| {
            let size = sizes[chunk.slot as usize];
            let arrived = chunk.bytes.min(size.saturating_sub(chunk.offset));
            ObjectData { data: Bytes::from(vec![chunk.slot as u8 + 1; arrived as usize]), size }
        };
        let parts = chunks.iter().map(part).collect();
        (chunks, parts)
    }

    #[test]
    fn full_parts_interleave_without_copies() {
        let (chunks, parts) = parts([2 * STRIPE; 3], 0, 6 * STRIPE);
        let data = assemble(0, 6 * STRIPE, &chunks, &parts);
        let owners: Vec<u8> = data.pieces().iter().map(|piece| piece[0]).collect();
        assert_eq!(owners, [1, 2, 3, 1, 2, 3]);
        assert_eq!(data.pieces()[1].as_ptr(), parts[1].data.as_ptr());
    }

    #[test]
    fn short_and_missing_parts_are_zeros_up_to_the_end() {
        let (chunks, parts) = parts([10, 0, 5], 4, 3 * STRIPE);
        let data = assemble(4, 2 * STRIPE + 9, &chunks, &parts).into_bytes();
        assert_eq!(data.len() as u64, 2 * STRIPE + 5);
        assert_eq!(&data[..8], [1, 1, 1, 1, 1, 1, 0, 0]);
        let tail = (2 * STRIPE - 4) as usize;
        assert_eq!(&data[tail - 1..], [0, 3, 3, 3, 3, 3, 0, 0, 0, 0]);
    }
}
