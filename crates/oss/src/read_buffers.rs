//! Reusable buffers for device reads: the first touch of fresh memory costs more than copying into
//! it.
//!
//! A buffer is handed out as [`Bytes`] and returns when the last slice of them is dropped. The
//! number of idle buffers that the pool keeps is bounded. Downside: a buffer keeps its largest
//! size.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers shorter than this are not worth keeping.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// Idle buffers kept: with the largest requests 64 MiB.
const BUFFERS_MAX: usize = 16;

/// The pool.
#[derive(Clone, Default)]
pub(crate) struct ReadBuffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

struct Lent {
    buffer: Vec<u8>,
    home: Weak<Mutex<Vec<Vec<u8>>>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        let mut idle = home.lock();
        if idle.len() < BUFFERS_MAX {
            idle.push(std::mem::take(&mut self.buffer));
        }
    }
}

impl ReadBuffers {
    /// A buffer of `bytes` bytes, with old contents.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < BUFFER_BYTES_MIN {
            return vec![0; bytes];
        }
        match self.idle.lock().pop() {
            Some(mut buffer) => {
                buffer.resize(bytes, 0);
                buffer
            }
            None => vec![0; bytes],
        }
    }

    /// The bytes to share; the buffer returns with the last slice of them.
    pub fn share(&self, buffer: Vec<u8>) -> Bytes {
        if buffer.len() < BUFFER_BYTES_MIN {
            return buffer.into();
        }
        Bytes::from_owner(Lent { buffer, home: Arc::downgrade(&self.idle) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_with_the_last_slice() {
        let buffers = ReadBuffers::default();
        let shared = buffers.share(buffers.take(1 << 20));
        let slice = shared.slice(5..10);
        drop(shared);
        assert_eq!(buffers.idle.lock().len(), 0);
        drop(slice);
        assert_eq!(buffers.idle.lock().len(), 1);
        assert_eq!(buffers.take(BUFFER_BYTES_MIN).len(), BUFFER_BYTES_MIN);
        assert_eq!(buffers.idle.lock().len(), 0);
        drop(buffers.share(buffers.take(10)));
        assert_eq!(buffers.idle.lock().len(), 0, "small ones are not kept");
    }
}
