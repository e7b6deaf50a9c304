//! Memory of ring entries, in blocks of several.
//!
//! ```text
//! page 0               page 1 ...
//! | EntryHeader, Vectors || payload, as large as a request's data |   next entry ...
//! ```
//! Anonymous memory: a page takes memory from its first use on, so an entry that was never used
//! takes none. Most requests are small and touch two pages of their entry; an entry that has
//! carried a large READ or WRITE keeps what that took. The kernel uses the entry that was answered
//! last, so few entries do the work of a mount with little in flight.

use std::{io, ptr::NonNull, sync::Arc};

use crate::protocol::ring::EntryHeader;
use crate::session::buffer::PAGE_BYTES;

/// Header and payload of an entry, as REGISTER describes them to the kernel.
pub type Vectors = [libc::iovec; 2];

/// Bytes of payload with which entries are registered: those that were negotiated, for which each
/// has memory. Entries with less are refused by the kernel: so tests provoke refusals.
#[derive(Clone, Copy, Debug)]
pub struct EntryBytes {
    /// Of the first entry of each queue, which must not be refused.
    pub first: usize,
    /// Of all others.
    pub further: usize,
}

impl EntryBytes {
    /// As many for each.
    pub fn of_each(bytes: usize) -> Self {
        Self { first: bytes, further: bytes }
    }
}

/// Bytes from an entry to the next.
fn stride(payload_bytes: usize) -> usize {
    PAGE_BYTES + payload_bytes
}

/// Where the vectors of an entry are.
const VECTORS_OFFSET: usize = PAGE_BYTES / 2;

const _: () = assert!(size_of::<EntryHeader>() <= VECTORS_OFFSET);

/// A block of entries.
pub struct EntryBlock {
    start: NonNull<u8>,
    count: usize,
    payload_bytes: usize,
}

// SAFETY: it is an address range; access to its bytes is by `EntryMemory`, whose users keep to its
// rules.
unsafe impl Send for EntryBlock {}
// SAFETY: as above.
unsafe impl Sync for EntryBlock {}

impl EntryBlock {
    /// Memory for `count` entries with payloads of so many bytes (whole pages), all zeros.
    pub fn allocate(count: usize, payload_bytes: usize) -> io::Result<Arc<Self>> {
        assert!(count > 0, "a block has entries");
        let bytes = count * stride(payload_bytes);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new anonymous mapping affects no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("no mapping begins at address 0");
        Ok(Arc::new(Self { start, count, payload_bytes }))
    }
}

impl Drop for EntryBlock {
    fn drop(&mut self) {
        // SAFETY: mapped in `allocate` with this length; all that could use it hold the `Arc`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * stride(self.payload_bytes)) };
    }
}

/// The memory of one entry. Either the kernel has it, or one holder: only the holder may call the
/// methods that access its bytes.
#[derive(Clone)]
pub struct EntryMemory {
    block: Arc<EntryBlock>,
    start: NonNull<u8>,
}

// SAFETY: an address in a block that it keeps alive; see there.
unsafe impl Send for EntryMemory {}
// SAFETY: as above.
unsafe impl Sync for EntryMemory {}

impl EntryMemory {
    /// All entries of a block.
    pub fn of(block: &Arc<EntryBlock>) -> impl Iterator<Item = Self> {
        (0..block.count).map(|index| {
            // SAFETY: within the mapping.
            let start = unsafe { block.start.add(index * stride(block.payload_bytes)) };
            Self { block: block.clone(), start }
        })
    }

    /// Keeps the memory mapped for the rest of the process: the kernel may still write to it.
    pub fn leak(&self) {
        std::mem::forget(self.block.clone());
    }

    /// Where the entry is, as the kernel wants to be told: in the entry's own memory, so that it is
    /// there whenever a submission that names it is passed on. Not while the kernel has the entry.
    pub fn vectors(&self, payload_bytes: usize) -> *const Vectors {
        assert!(payload_bytes <= self.payload_bytes(), "an entry has no more memory");
        let vectors = [
            libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: size_of::<EntryHeader>() },
            libc::iovec { iov_base: self.payload_start().cast(), iov_len: payload_bytes },
        ];
        // SAFETY: the place is aligned and in the first page, after the header. Nothing else uses
        // these bytes.
        unsafe {
            let place = self.start.as_ptr().add(VECTORS_OFFSET).cast::<Vectors>();
            place.write(vectors);
            place
        }
    }

    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> usize {
        self.block.payload_bytes
    }

    /// A copy of the header.
    ///
    /// # Safety
    /// The caller holds the entry.
    pub unsafe fn header(&self) -> EntryHeader {
        // SAFETY: page-aligned, initialised, and nothing writes while the caller holds the entry.
        unsafe { self.start.as_ptr().cast::<EntryHeader>().read() }
    }

    /// Replaces the header.
    ///
    /// # Safety
    /// The caller holds the entry.
    pub unsafe fn set_header(&self, header: EntryHeader) {
        // SAFETY: page-aligned, and nothing else accesses it while the caller holds the entry.
        unsafe { self.start.as_ptr().cast::<EntryHeader>().write(header) }
    }

    /// The payload.
    ///
    /// # Safety
    /// The caller holds the entry, and nothing writes the payload while the slice is in use.
    pub unsafe fn payload(&self) -> &[u8] {
        // SAFETY: mapped, initialised, and not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.payload_start(), self.payload_bytes()) }
    }

    /// Writes the payload; the slices together must not be longer than
    /// [`EntryMemory::payload_bytes`].
    ///
    /// # Safety
    /// The caller holds the entry, and no slice of the payload is in use.
    pub unsafe fn set_payload<'a>(&self, slices: impl Iterator<Item = &'a [u8]>) {
        let mut filled = 0;
        for slice in slices {
            assert!(slice.len() <= self.payload_bytes() - filled, "an answer is longer than its entry");
            // SAFETY: within the payload by the assertion; the source is other memory, because no
            // slice of the payload exists.
            unsafe { self.payload_start().add(filled).copy_from_nonoverlapping(slice.as_ptr(), slice.len()) };
            filled += slice.len();
        }
    }

    fn payload_start(&self) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(PAGE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;

    #[test]
    fn entries_do_not_overlap() {
        let block = EntryBlock::allocate(3, BYTES).unwrap();
        let entries: Vec<_> = EntryMemory::of(&block).collect();
        drop(block);
        let pieces = [vec![1; BYTES - 5], vec![2; 5]];
        // SAFETY: no kernel knows these entries, and one thread uses them.
        unsafe {
            entries[1].set_payload(pieces.iter().map(Vec::as_slice));
            let mut header = entries[1].header();
            header.state.commit_id = 9;
            entries[1].set_header(header);
            assert_eq!(entries[1].header().state.commit_id, 9);
            assert_eq!(entries[1].payload()[BYTES - 6..], [1, 2, 2, 2, 2, 2]);
            for other in [0, 2] {
                assert_eq!(entries[other].header().state.commit_id, 0);
                assert!(entries[other].payload().iter().all(|byte| *byte == 0));
            }
        }
        // SAFETY: it is in the block.
        let vectors = unsafe { *entries[2].vectors(BYTES) };
        assert_eq!(vectors.map(|vector| vector.iov_len), [288, BYTES]);
        assert_eq!(vectors[1].iov_base as usize - vectors[0].iov_base as usize, PAGE_BYTES);
    }
}
