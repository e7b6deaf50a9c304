//! The bytes of one file in memory, and operations on them.
//!
//! Blocks are shared until they are written: reserved space and the copy that survives a power loss
//! cost no memory.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;

use crate::Entropy;

/// Unit of space, in bytes.
pub(super) const BLOCK_BYTES: u64 = types::limits::BLOCK_BYTES;
/// What a disk writes whole or not at all, in bytes.
const SECTOR_BYTES: u64 = 512;

type Block = [u8; BLOCK_BYTES as usize];

/// Shared by everything that reads as zeros but has its space.
static ZEROS: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0; BLOCK_BYTES as usize]));

/// Contents of a file. Blocks that are missing read as zeros; bytes of a block beyond `length` are
/// zeros.
#[derive(Clone, Default)]
pub(super) struct Image {
    pub length: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

/// A change of a file that power loss may undo until the file is flushed.
#[derive(Clone)]
pub(super) enum Change {
    Create,
    Remove,
    Write { offset: u64, pieces: Vec<Bytes> },
    Truncate { length: u64 },
    Punch { offset: u64, bytes: u64 },
    Allocate { offset: u64, bytes: u64 },
}

impl Image {
    /// Fills `buffer` from `offset`; the number of bytes there are.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let bytes = self.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        for_each_part(offset, bytes as u64, |block, within, at| match self.blocks.get(&block) {
            Some(data) => buffer[at.clone()].copy_from_slice(&data[within..within + at.len()]),
            None => buffer[at].fill(0),
        });
        bytes
    }

    /// Blocks that writing or allocating the range would add.
    pub fn missing_blocks(&self, offset: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let (first, last) = (offset / BLOCK_BYTES, (offset + bytes - 1) / BLOCK_BYTES);
        (last - first + 1) - self.blocks.range(first..=last).count() as u64
    }

    /// Blocks that have space.
    pub fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Their numbers, in order.
    pub fn blocks_with_space(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for_each_part(offset, data.len() as u64, |block, within, at| {
            let target = Arc::make_mut(self.blocks.entry(block).or_insert_with(|| ZEROS.clone()));
            target[within..within + at.len()].copy_from_slice(&data[at]);
        });
        if !data.is_empty() {
            self.length = self.length.max(offset + data.len() as u64);
        }
    }

    fn zero(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes);
        let whole = offset.div_ceil(BLOCK_BYTES)..end / BLOCK_BYTES;
        if whole.start < whole.end {
            let emptied: Vec<u64> = self.blocks.range(whole).map(|(block, _)| *block).collect();
            emptied.iter().for_each(|block| drop(self.blocks.remove(block)));
        }
        for (edge, from, to) in [
            (offset / BLOCK_BYTES, offset % BLOCK_BYTES, (end - offset / BLOCK_BYTES * BLOCK_BYTES).min(BLOCK_BYTES)),
            (end / BLOCK_BYTES, (offset.max(end / BLOCK_BYTES * BLOCK_BYTES)) % BLOCK_BYTES, end % BLOCK_BYTES),
        ] {
            if let Some(block) = self.blocks.get_mut(&edge).filter(|_| from < to) {
                Arc::make_mut(block)[from as usize..to as usize].fill(0);
            }
        }
    }

    fn truncate(&mut self, length: u64) {
        self.blocks.split_off(&length.div_ceil(BLOCK_BYTES));
        if !length.is_multiple_of(BLOCK_BYTES) {
            self.zero(length, BLOCK_BYTES - length % BLOCK_BYTES);
        }
        self.length = length;
    }

    fn allocate(&mut self, offset: u64, bytes: u64) {
        if bytes > 0 {
            for block in offset / BLOCK_BYTES..=(offset + bytes - 1) / BLOCK_BYTES {
                self.blocks.entry(block).or_insert_with(|| ZEROS.clone());
            }
        }
    }

    /// Flips one bit, as rot does. Nothing happens where there is no data.
    pub fn flip_bit(&mut self, offset: u64, bit: u8) {
        if let Some(block) = self.blocks.get_mut(&(offset / BLOCK_BYTES)).filter(|_| offset < self.length) {
            Arc::make_mut(block)[(offset % BLOCK_BYTES) as usize] ^= 1 << (bit % 8);
        }
    }
}

impl Change {
    /// Makes the whole change to a file (`None`: there is none).
    pub fn apply(&self, file: &mut Option<Image>) {
        match self {
            Change::Create => *file = Some(file.take().unwrap_or_default()),
            Change::Remove => *file = None,
            Change::Write { offset, pieces } => {
                if let Some(image) = file {
                    pieces.iter().fold(*offset, |at, piece| {
                        image.write(at, piece);
                        at + piece.len() as u64
                    });
                }
            }
            Change::Truncate { length } => file.iter_mut().for_each(|image| image.truncate(*length)),
            Change::Punch { offset, bytes } => file.iter_mut().for_each(|image| image.zero(*offset, *bytes)),
            Change::Allocate { offset, bytes } => file.iter_mut().for_each(|image| image.allocate(*offset, *bytes)),
        }
    }

    /// Makes an arbitrary part of the change: any subset of the sectors of a write, and its length
    /// or not.
    pub fn apply_torn(&self, file: &mut Option<Image>, entropy: &dyn Entropy) {
        let (Change::Write { offset, pieces }, Some(image)) = (self, file.as_mut()) else {
            return self.apply(file);
        };
        let data: Vec<u8> = pieces.iter().flatten().copied().collect();
        let end = offset + data.len() as u64;
        let mut at = *offset;
        while at < end {
            let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
            if entropy.below(2) == 0 {
                image.write(at, &data[(at - offset) as usize..(next - offset) as usize]);
            }
            at = next;
        }
        if entropy.below(2) == 0 && !data.is_empty() {
            image.length = image.length.max(end);
        }
    }
}

/// Visits the parts of a range that are in one block each: block number, offset within the block,
/// place in the range.
fn for_each_part(offset: u64, bytes: u64, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < bytes {
        let within = (offset + done) % BLOCK_BYTES;
        let part = (BLOCK_BYTES - within).min(bytes - done);
        visit((offset + done) / BLOCK_BYTES, within as usize, done as usize..(done + part) as usize);
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SeededEntropy;

    /// The same operations on a vector of bytes give the same bytes.
    #[test]
    fn behaves_like_an_array_of_bytes() {
        const SPAN: u64 = 5 * BLOCK_BYTES;
        let entropy = SeededEntropy::new(7);
        let (mut file, mut model) = (Some(Image::default()), Vec::new());
        for step in 0..2000u32 {
            let (offset, bytes) = (entropy.below(SPAN), entropy.below(SPAN / 2));
            match entropy.below(5) {
                0 | 1 => {
                    let data = vec![step as u8 | 1; bytes as usize];
                    let end = (offset + bytes) as usize;
                    if bytes > 0 {
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&data);
                    }
                    let (head, tail) = data.split_at(data.len() / 3);
                    let pieces = vec![Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)];
                    Change::Write { offset, pieces }.apply(&mut file);
                }
                2 => {
                    let (from, to) = ((offset as usize).min(model.len()), ((offset + bytes) as usize).min(model.len()));
                    model[from..to].fill(0);
                    Change::Punch { offset, bytes }.apply(&mut file);
                }
                3 => {
                    model.resize(offset as usize, 0);
                    Change::Truncate { length: offset }.apply(&mut file);
                }
                _ => Change::Allocate { offset, bytes }.apply(&mut file),
            }
            let image = file.as_ref().unwrap();
            let mut read = vec![0xee; model.len() + 10];
            assert_eq!(image.read(0, &mut read), model.len(), "step {step}");
            assert_eq!(&read[..model.len()], &model, "step {step}");
            assert_eq!(image.length, model.len() as u64);
        }
    }
}
