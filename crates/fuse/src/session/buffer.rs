//! Request buffers: page-aligned, reused, large enough for the largest WRITE.
//!
//! ```text
//! page 0                                  page 1             ...
//! |            free          | header+write_in, 80 bytes || data, as many as a request has |
//!                            ^ reads begin here          ^ a page boundary
//! ```
//! So the data of a WRITE start on a page boundary and can be passed on without a copy: the buffer
//! then becomes [`Bytes`] and returns to its pool when the last user drops them. Reuse matters
//! because the first touch of fresh memory costs more than a copy into it.

use std::{mem, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::protocol::request::{InHeader, WriteIn};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes before the data of a WRITE.
const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Where a request is read to.
const START: usize = PAGE_BYTES - HEAD_BYTES;

const _: () = assert!(START.is_multiple_of(align_of::<InHeader>()), "the header is aligned");

/// One page of memory.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Buffers not in use.
pub struct BufferPool {
    free: Mutex<Vec<Box<[Page]>>>,
    keep_max: usize,
    pages: usize,
}

impl BufferPool {
    /// An empty pool that keeps up to `keep_max` returned buffers, each for requests with up to
    /// `data_bytes` bytes of data (whole pages).
    pub fn new(keep_max: usize, data_bytes: usize) -> Arc<Self> {
        assert!(data_bytes.is_multiple_of(PAGE_BYTES), "data fill whole pages");
        let pages = 1 + data_bytes / PAGE_BYTES;
        Arc::new(Self { free: Mutex::new(Vec::with_capacity(keep_max)), keep_max, pages })
    }

    /// A buffer: a returned one, or a new one, whose pages take memory from their first use on.
    pub fn take(self: &Arc<Self>) -> Buffer {
        let pages = self.free.lock().pop();
        // SAFETY: a page is bytes, which may all be zero.
        let pages = pages.unwrap_or_else(|| unsafe { Box::new_zeroed_slice(self.pages).assume_init() });
        Buffer { pages, filled: 0, pool: self.clone() }
    }
}

/// From here on handing a whole buffer over wastes little.
const COPY_BYTES_MAX: usize = 64 * 1024;

impl BufferPool {
    /// A copy of the data of a WRITE, no more than a buffer has room for; large ones in a buffer of
    /// the pool.
    pub fn copy(self: &Arc<Self>, data: &[u8]) -> Bytes {
        if data.len() < COPY_BYTES_MAX {
            return Bytes::copy_from_slice(data);
        }
        let mut full = self.take();
        let range = PAGE_BYTES..PAGE_BYTES + data.len();
        full.pages.as_mut_bytes()[range.clone()].copy_from_slice(data);
        Bytes::from_owner(full).slice(range)
    }
}

/// A buffer with one request.
pub struct Buffer {
    pages: Box<[Page]>,
    filled: usize,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// Where to read a request to: room for the largest.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[START..]
    }

    /// Notes how many bytes of the room were filled.
    pub fn set_filled(&mut self, bytes: usize) {
        assert!(bytes <= self.space().len(), "the kernel filled {bytes} bytes, more than there is room for");
        self.filled = bytes;
    }

    /// The request.
    pub fn request(&self) -> &[u8] {
        &self.pages.as_bytes()[START..START + self.filled]
    }

    /// The data of the WRITE in this buffer: small ones copied, so that code that keeps them long
    /// does not keep a whole buffer; large ones without a copy, and the pool gives another buffer
    /// in place of this one.
    pub fn take_write_data(&mut self, bytes: usize) -> Bytes {
        let data = PAGE_BYTES..PAGE_BYTES + bytes;
        if bytes < COPY_BYTES_MAX {
            return Bytes::copy_from_slice(&self.pages.as_bytes()[data]);
        }
        let full = mem::replace(self, self.pool.take());
        Bytes::from_owner(full).slice(data)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.pages.as_bytes()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let pages = mem::take(&mut self.pages);
        let mut free = self.pool.free.lock();
        if free.len() < self.pool.keep_max {
            free.push(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA_BYTES: usize = 1 << 20;

    #[test]
    fn large_data_are_handed_over_and_their_buffer_returns() {
        let pool = BufferPool::new(4, DATA_BYTES);
        let mut buffer = pool.take();
        assert_eq!(buffer.space().len(), HEAD_BYTES + DATA_BYTES);
        buffer.space().fill(7);
        buffer.set_filled(HEAD_BYTES + 100_000);
        let address = buffer.request()[HEAD_BYTES..].as_ptr();
        let data = buffer.take_write_data(100_000);
        assert_eq!(data.as_ptr(), address);
        assert_eq!(address as usize % PAGE_BYTES, 0);
        assert!(data.len() == 100_000 && data.iter().all(|byte| *byte == 7));
        assert_eq!(buffer.request().len(), 0);
        assert_eq!(pool.free.lock().len(), 0);
        drop(data);
        assert_eq!(pool.free.lock().len(), 1);
    }

    #[test]
    fn small_data_are_copied() {
        let pool = BufferPool::new(1, DATA_BYTES);
        let mut buffer = pool.take();
        buffer.space()[HEAD_BYTES..HEAD_BYTES + 5].copy_from_slice(b"small");
        buffer.set_filled(HEAD_BYTES + 5);
        assert_eq!(buffer.take_write_data(5), &b"small"[..]);
        assert_eq!(buffer.request().len(), HEAD_BYTES + 5);
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_limit() {
        let pool = BufferPool::new(1, DATA_BYTES);
        drop((pool.take(), pool.take()));
        assert_eq!(pool.free.lock().len(), 1);
    }
}
