//! A pool of reusable, page-aligned byte buffers.
//!
//! The first touch of fresh memory costs more than copying into it, so large buffers are kept for
//! their next use. A [`Buffer`] becomes [`Bytes`] without a copy, and its memory returns to the
//! pool when the last slice of them is gone.
//!
//! Sizes are powers of two from 4 KiB to 4 MiB, and 4 MiB + 64 KiB for users that add a header or
//! trailer to the largest bulk data. Longer buffers are not pooled. The pool limits the bytes that
//! it keeps idle, not those in use: the users of buffers limit these.
//!
//! Downside: a buffer has up to twice the requested size, and contains old data: every byte is
//! initialised, but with earlier contents. Overwrite all bytes that you pass on.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use types::limits::BULK_BYTES_MAX;

/// Alignment of every buffer and smallest size, in bytes: a page, which direct I/O asks for.
pub const BUFFER_ALIGNMENT: usize = 4096;
/// Room beyond the largest bulk data in a pooled buffer, in bytes.
pub const BUFFER_SLACK_BYTES: usize = 64 << 10;
/// Longest buffer that is pooled, in bytes.
pub const BUFFER_BYTES_MAX: usize = BULK_BYTES_MAX + BUFFER_SLACK_BYTES;

/// Powers of two from a page to the largest bulk data.
const POWERS: usize = (BULK_BYTES_MAX / BUFFER_ALIGNMENT).ilog2() as usize + 1;
/// Sizes: those, and the one with slack.
const CLASSES: usize = POWERS + 1;

const _: () = assert!(BULK_BYTES_MAX.is_power_of_two(), "the largest bulk data fill a size class");

/// A pool. Clones are the same pool.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

/// What a pool holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStatistics {
    /// Bytes kept for their next use.
    pub idle_bytes: usize,
    /// Buffers given out that had been used before.
    pub reused: u64,
    /// Buffers given out that had to be allocated.
    pub allocated: u64,
}

struct Shared {
    idle_bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: [Vec<Memory>; CLASSES],
    statistics: BufferStatistics,
}

impl BufferPool {
    /// A pool that keeps at most `idle_bytes_max` bytes for their next use.
    pub fn new(idle_bytes_max: usize) -> Self {
        Self { shared: Arc::new(Shared { idle_bytes_max, state: Mutex::default() }) }
    }

    /// A buffer of `length` bytes, with old contents.
    pub fn take(&self, length: usize) -> Buffer {
        let class = class_of(length);
        let reused = class.and_then(|class| {
            let mut state = self.shared.state.lock();
            let memory = state.idle[class].pop();
            match &memory {
                Some(memory) => {
                    state.statistics.idle_bytes -= memory.bytes();
                    state.statistics.reused += 1;
                }
                None => state.statistics.allocated += 1,
            }
            memory
        });
        let memory = reused.unwrap_or_else(|| Memory::allocate(class.map_or(length, class_bytes)));
        Buffer { memory: Some(memory), length, pool: self.shared.clone() }
    }

    /// What the pool holds and has done.
    pub fn statistics(&self) -> BufferStatistics {
        self.shared.state.lock().statistics
    }
}

impl Shared {
    fn give_back(&self, memory: Memory) {
        let bytes = memory.bytes();
        let Some(class) = class_of(bytes).filter(|class| class_bytes(*class) == bytes) else { return };
        let mut state = self.state.lock();
        if state.statistics.idle_bytes + bytes <= self.idle_bytes_max {
            state.statistics.idle_bytes += bytes;
            state.idle[class].push(memory);
        }
    }
}

/// The smallest class that holds `length` bytes.
fn class_of(length: usize) -> Option<usize> {
    if length > BULK_BYTES_MAX {
        return (length <= BUFFER_BYTES_MAX).then_some(POWERS);
    }
    let pages = length.div_ceil(BUFFER_ALIGNMENT).max(1);
    Some(pages.next_power_of_two().ilog2() as usize)
}

fn class_bytes(class: usize) -> usize {
    if class == POWERS { BUFFER_BYTES_MAX } else { BUFFER_ALIGNMENT << class }
}

/// Bytes of one's own, page-aligned.
pub struct Buffer {
    /// Present until the buffer is dropped.
    memory: Option<Memory>,
    length: usize,
    pool: Arc<Shared>,
}

impl Buffer {
    /// The bytes to share; their memory returns to the pool with the last slice of them.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Shortens the buffer to `length`; longer is not possible.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only a dropped buffer has no memory")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = self.memory();
        debug_assert!(self.length <= memory.bytes());
        // SAFETY: the memory has at least `length` bytes, all initialised, and belongs to this
        // buffer.
        unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.memory().start;
        // SAFETY: as in `deref`; `self` is borrowed mutably, so nothing else sees the bytes.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
    }
}

/// An allocation: `layout.size()` initialised bytes.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation has one owner and is accessed only through it.
unsafe impl Send for Memory {}
// SAFETY: a shared reference to it gives no access but reading.
unsafe impl Sync for Memory {}

impl Memory {
    fn allocate(bytes: usize) -> Self {
        assert!(bytes > 0, "an allocation has a size");
        let layout = Layout::from_size_align(bytes, BUFFER_ALIGNMENT).expect("no buffer exceeds the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fall_into_the_smallest_class() {
        for (length, bytes) in [
            (0, 4096),
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, 2 << 20),
            (4 << 20, 4 << 20),
            ((4 << 20) + 1, BUFFER_BYTES_MAX),
            (BUFFER_BYTES_MAX, BUFFER_BYTES_MAX),
        ] {
            let class = class_of(length).expect("pooled");
            assert!(class < CLASSES);
            assert_eq!(class_bytes(class), bytes, "{length}");
        }
        assert_eq!(class_of(BUFFER_BYTES_MAX + 1), None);
    }

    #[test]
    fn memory_returns_with_the_last_slice() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(5000);
        assert_eq!((buffer.len(), buffer.as_ptr() as usize % BUFFER_ALIGNMENT), (5000, 0));
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(7);
        buffer.truncate(4500);
        let address = buffer.as_ptr();
        let bytes = buffer.freeze();
        let slice = bytes.slice(4400..);
        drop(bytes);
        assert_eq!(pool.statistics().idle_bytes, 0);
        assert_eq!(slice, [7; 100].as_slice());
        drop(slice);
        assert_eq!(pool.statistics(), BufferStatistics { idle_bytes: 8192, reused: 0, allocated: 1 });
        assert_eq!(pool.take(8192).as_ptr(), address);
        assert_eq!(pool.statistics().reused, 1);
    }

    #[test]
    fn what_is_kept_idle_is_bounded() {
        let pool = BufferPool::new(16 << 10);
        let buffers: Vec<Buffer> = (0..10).map(|_| pool.take(4096)).collect();
        drop(buffers);
        assert_eq!(pool.statistics().idle_bytes, 16 << 10);
        drop(pool.take(BUFFER_BYTES_MAX + 1));
        assert_eq!(pool.statistics().idle_bytes, 16 << 10, "what is too long is not kept");
    }
}
