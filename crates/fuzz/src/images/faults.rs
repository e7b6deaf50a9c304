//! Faults built into reads, to show that examinations find them: a fuzzer that finds nothing may be
//! one that cannot find anything.
//!
//! A fault is between the target and the examination: what the target answers is spoiled with what
//! is on the device, as if the target had read it wrongly.

use rpc::message::ost::{Extent, ExtentPlace};
use types::{FsError, FsResult, ObjectId, limits::BLOCK_BYTES};

use super::session::Session;

/// What is wrong with reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// Data on the device are not compared with their checksums.
    NotCompared,
    /// Of the last block of each extent on the device, the bytes are those of the block after it,
    /// with the checksum of that.
    BlockAfterExtent,
}

impl ReadFault {
    /// All of them.
    pub const ALL: [ReadFault; 2] = [ReadFault::NotCompared, ReadFault::BlockAfterExtent];

    /// What a read of whole blocks answers with this fault: bytes, and the size of the object.
    /// `answer`: what it answers without.
    pub(super) async fn spoil(
        self,
        session: &Session,
        (object, offset, bytes): (ObjectId, u64, usize),
        answer: FsResult<(Vec<u8>, u64)>,
    ) -> FsResult<(Vec<u8>, u64)> {
        match (self, answer) {
            (ReadFault::NotCompared, Err(FsError::Corrupt { .. })) => {
                let (extents, size) = (session.extents(object).await?, session.size(object).await?);
                let (mut data, end) = (Vec::new(), size.min(offset + bytes as u64));
                for at in (offset..end).step_by(BLOCK_BYTES as usize) {
                    let part = (end - at).min(BLOCK_BYTES) as usize;
                    match place_of(&extents, at) {
                        Some(place) => data.extend_from_slice(&session.on_device(place).await[..part]),
                        None => data.extend_from_slice(&session.read_right(object, at, part).await?.0),
                    }
                }
                Ok((data, size))
            }
            (ReadFault::BlockAfterExtent, Ok((mut data, size))) => {
                for Extent { offset: start, bytes, place } in session.extents(object).await? {
                    let ExtentPlace::Device(address) = place else { continue };
                    let last = start.saturating_add(bytes).saturating_sub(BLOCK_BYTES);
                    let within = last.checked_sub(offset).and_then(|at| data.get_mut(at as usize..));
                    let Some(part) = within.filter(|part| !part.is_empty()) else { continue };
                    let after = session.on_device(address / BLOCK_BYTES + bytes / BLOCK_BYTES).await;
                    let part_bytes = part.len().min(after.len());
                    part[..part_bytes].copy_from_slice(&after[..part_bytes]);
                }
                Ok((data, size))
            }
            (_, answer) => answer,
        }
    }
}

/// The block of the device that has the object's bytes from this offset on.
fn place_of(extents: &[Extent], offset: u64) -> Option<u64> {
    let has = |extent: &&Extent| (extent.offset..extent.offset.saturating_add(extent.bytes)).contains(&offset);
    let extent = extents.iter().find(has)?;
    let ExtentPlace::Device(start) = extent.place else { return None };
    Some((start + offset - extent.offset) / BLOCK_BYTES)
}
