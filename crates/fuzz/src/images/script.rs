//! Damage, as a script says it.
//!
//! | byte | of an input |
//! |---|---|
//! | 0 | the image |
//! | then 8 each | operations |
//!
//! | byte | of an operation |
//! |---|---|
//! | 0 | its kind, and the class of the blocks that it chooses from |
//! | 1..3 | the block |
//! | 3..5 | another block, or a number |
//! | 5..7 | offset within the block |
//! | 7 | a value |

use std::collections::BTreeSet;

use bytes::Bytes;
use kv::{Checkpoint, ColdStore, Operation};
use oss::directory::device::DEVICE_FILE;
use rt::Device;
use types::limits::BLOCK_BYTES;

use super::{
    made::{IMAGES, MADE, Made, Place, Summed},
    session::Parts,
};

/// Bytes of an operation.
pub const OPERATION_BYTES: usize = 8;
/// Kinds of operations: see [`Damage::execute`].
pub const KINDS: u8 = 10;
/// Classes of blocks: any, data, tables, labels and headers.
pub const CLASSES: u8 = 4;
/// Operations that count.
const OPERATIONS_MAX: usize = 16;
/// Numbers at which sizes and counts change their meaning.
const TELLING: [u64; 6] = [u64::MAX, 0, 1, 1 << 63, 1 << 31, 0xffff];

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    input: &'a [u8],
}

/// An image after the damage.
pub struct Damaged {
    pub parts: Parts,
    /// Blocks that are not as they were.
    pub changed: BTreeSet<Place>,
    /// The device ended elsewhere, at least for a while.
    pub is_cut: bool,
    /// Records were changed, and then their checksums were made right.
    pub is_sealed: bool,
}

impl<'a> Script<'a> {
    /// Any bytes are a script.
    pub fn new(input: &'a [u8]) -> Self {
        Self { input }
    }

    /// What is damaged.
    pub fn image(self) -> &'static Made {
        &MADE[usize::from(self.input.first().copied().unwrap_or(0)) % IMAGES]
    }

    /// Damages a copy of the image.
    pub async fn execute(self) -> Damaged {
        let made = self.image();
        let mut damage =
            Damage { made, parts: made.parts.copy(), touched: BTreeSet::new(), is_cut: false, is_sealed: false };
        let operations = self.input.get(1..).unwrap_or(&[]).as_chunks::<OPERATION_BYTES>().0;
        for operation in operations.iter().take(OPERATIONS_MAX) {
            damage.execute(*operation).await;
        }
        damage.finish().await
    }
}

/// An image while it is damaged.
struct Damage {
    made: &'static Made,
    parts: Parts,
    touched: BTreeSet<Place>,
    is_cut: bool,
    is_sealed: bool,
}

impl Damage {
    /// The block with this number in its class.
    fn place(&self, class: u8, number: u16) -> Place {
        let Made { data, tables, heads, .. } = self.made;
        let lists = match class {
            0 => [&data[..], &tables[..], &heads[..]],
            1 => [&data[..], &[], &[]],
            2 => [&tables[..], &[], &[]],
            _ => [&heads[..], &[], &[]],
        };
        let all = lists.iter().map(|list| list.len()).sum::<usize>().max(1);
        let place = lists.into_iter().flatten().nth(usize::from(number) % all);
        place.cloned().unwrap_or_else(|| Made::labels()[0].clone())
    }

    async fn read(&self, place: &Place) -> Vec<u8> {
        Parts::block(Made::device_of(&self.parts, &place.file), &place.file, place.block).await
    }

    /// Through the host's memory: it may be beside what the store has there.
    async fn write(&mut self, place: Place, data: Vec<u8>) {
        let device = Made::device_of(&self.parts, &place.file);
        let written = device.write_cached(&place.file, place.block * BLOCK_BYTES, vec![data.into()]).await;
        written.expect("memory has room");
        self.touched.insert(place);
    }

    async fn execute(&mut self, operation: [u8; OPERATION_BYTES]) {
        let [kind, rest @ ..] = operation;
        let [number, other, offset] = [0, 2, 4].map(|at| u16::from_le_bytes([rest[at], rest[at + 1]]));
        let (offset, value, class) = (usize::from(offset) % BLOCK_BYTES as usize, rest[6], kind % CLASSES);
        let (place, second) = (self.place(class, number), self.place(class, other));
        match kind / CLASSES % KINDS {
            0 => {
                let mut data = self.read(&place).await;
                data[offset] ^= 1 << (value % 8);
                self.write(place, data).await;
            }
            1 => {
                let mut data = self.read(&place).await;
                let end = (offset + 1 + usize::from(other) % 512).min(data.len());
                data[offset..end].fill(value);
                self.write(place, data).await;
            }
            2 => {
                for step in 0..1 + u16::from(value % 16) {
                    let place = self.place(class, number.wrapping_add(step));
                    self.write(place, vec![0; BLOCK_BYTES as usize]).await;
                }
            }
            3 => {
                let (one, two) = (self.read(&place).await, self.read(&second).await);
                self.write(place, two).await;
                self.write(second, one).await;
            }
            4 => {
                let data = self.read(&place).await;
                self.write(second, data).await;
            }
            5 => {
                // One block of the older state, or many, or all.
                let count = if value > 250 { u16::MAX } else { 1 + u16::from(value % 64) };
                for step in 0..count.min(4096) {
                    let place = self.place(class, number.wrapping_add(step));
                    let older = Made::device_of(&self.made.older, &place.file);
                    let data = Parts::block(older, &place.file, place.block).await;
                    self.write(place, data).await;
                }
            }
            6 => {
                let mut data = self.read(&place).await;
                put_number(&mut data, offset, other, value);
                self.write(place, data).await;
            }
            7 => {
                let end = if value < 128 { place.block } else { self.parts.blocks().await - u64::from(value - 127) };
                let end = if place.is_on_device() || value >= 128 { end } else { u64::from(other) };
                self.cut(end * BLOCK_BYTES + u64::from(value % 2) * offset as u64).await;
            }
            8 => {
                // A record, or a number in it, and then its checksum.
                let mut data = self.read(&place).await;
                match value % 2 {
                    0 => data[offset] ^= 1 << (value / 2 % 8),
                    _ => put_number(&mut data, offset, other, value),
                }
                self.write(place.clone(), data).await;
                self.seal(&place).await;
            }
            _ => self.change_cold_record(number, other, offset, value).await,
        }
    }

    /// Ends the device.
    async fn cut(&mut self, bytes: u64) {
        self.parts.device.truncate(DEVICE_FILE, bytes).await.expect("memory has room");
        self.is_cut = true;
    }

    /// Makes the checksums right of what is in a block.
    async fn seal(&mut self, place: &Place) {
        self.is_sealed = true;
        let block = place.block * BLOCK_BYTES..(place.block + 1) * BLOCK_BYTES;
        let overlaps = |summed: &&Summed| {
            let end = summed.bytes.end.max(summed.at + 4);
            summed.file == place.file && summed.bytes.start.min(summed.at) < block.end && block.start < end
        };
        for Summed { file, at, bytes } in self.made.summed.iter().filter(overlaps) {
            let device = Made::device_of(&self.parts, file);
            let read = device.read(file, bytes.start, vec![0; (bytes.end - bytes.start) as usize]).await;
            let sum = crc_fast::crc32_iscsi(&read.expect("memory can be read").0);
            let sum = Bytes::copy_from_slice(&sum.to_le_bytes());
            device.write_cached(file, *at, vec![sum]).await.expect("memory has room");
            self.touched.insert(Place { file: file.clone(), block: at / BLOCK_BYTES });
        }
    }

    /// Changes a record of a cold store that is elsewhere, as no checksum would notice it.
    async fn change_cold_record(&mut self, number: u16, other: u16, offset: usize, value: u8) {
        let Some((_, cold)) = &self.parts.elsewhere else { return };
        let records = &self.made.cold;
        let (table, key, found) = &records[usize::from(number) % records.len()];
        let (mut key, mut bytes) = (key.to_vec(), found.to_vec());
        let mut operations = Vec::new();
        match value % 8 {
            0 => operations.push(Operation::Delete(*table, key.clone().into())),
            1 if !key.is_empty() => {
                let at = offset % key.len();
                key[at] ^= 1 << (other % 8);
            }
            2 => bytes = records[usize::from(other) % records.len()].2.to_vec(),
            3 => bytes.truncate(offset % (bytes.len() + 1)),
            4 | 5 if !bytes.is_empty() => {
                let at = offset % bytes.len();
                bytes[at] ^= 1 << (other % 8);
            }
            _ if !bytes.is_empty() => {
                let at = offset % bytes.len();
                put_number(&mut bytes, at, other, value / 8);
            }
            _ => {}
        }
        if operations.is_empty() {
            operations.push(Operation::Put(*table, key.into(), bytes.into()));
        }
        let checkpoint = cold.checkpoint().expect("memory can be read").unwrap_or(Checkpoint::default());
        cold.write(operations).await.expect("memory has room");
        cold.commit(checkpoint).await.expect("memory has room");
        self.is_sealed = true;
    }

    async fn finish(self) -> Damaged {
        let Damage { made, parts, touched, is_cut, is_sealed } = self;
        let mut changed = BTreeSet::new();
        for place in touched {
            let block = async |parts| Parts::block(Made::device_of(parts, &place.file), &place.file, place.block).await;
            if block(&parts).await != block(&made.parts).await {
                changed.insert(place);
            }
        }
        // What is on disks is durable.
        for device in [Some(&parts.device), parts.elsewhere.as_ref().map(|(journal, _)| journal)].into_iter().flatten()
        {
            for name in device.list("").await.expect("memory can be read") {
                device.flush(&name).await.expect("memory does not fail");
            }
        }
        Damaged { parts, changed, is_cut, is_sealed }
    }
}

/// Writes a telling number of one, two, four or eight bytes.
fn put_number(data: &mut [u8], offset: usize, which: u16, value: u8) {
    let number = TELLING[usize::from(which) % TELLING.len()].wrapping_sub(u64::from(value / 2 % 4));
    let bytes = 1 << (value / 8 % 4);
    for (place, byte) in data.iter_mut().skip(offset).zip(&number.to_le_bytes()[..bytes]) {
        *place = *byte;
    }
}
