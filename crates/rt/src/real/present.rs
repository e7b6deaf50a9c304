//! Small reads of what the host has in memory, without a thread of a pool.
//!
//! A job of [`IoThreads`](super::IoThreads) costs two thread switches, more than copying a few
//! blocks from the page cache. With RWF_NOWAIT the kernel copies what is there, and fails where it
//! would have to wait for the disk or for a lock.
//!
//! Downside: a read that has to wait costs one system call more. A file system that does not know
//! the flag is asked once.

use std::{
    fs::File,
    io::IoSliceMut,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Longer reads copy for so long that they would delay the other tasks of a core.
pub(super) const PRESENT_BYTES_MAX: usize = 64 << 10;

/// Whether the file system of a directory knows such reads.
#[derive(Debug, Default)]
pub(super) struct PresentReads {
    unknown: AtomicBool,
}

impl PresentReads {
    /// Fills `buffer`, of at most [`PRESENT_BYTES_MAX`], from the file, if all of it is in memory.
    /// Else its contents are arbitrary, and the file must be read as usual.
    pub fn fill(&self, file: &File, offset: u64, buffer: &mut [u8]) -> bool {
        if buffer.len() > PRESENT_BYTES_MAX || self.unknown.load(Ordering::Relaxed) {
            return false;
        }
        match preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            Ok(bytes) => bytes == buffer.len(),
            Err(Errno::OPNOTSUPP) => {
                self.unknown.store(true, Ordering::Relaxed);
                false
            }
            // Whatever it is, the usual read finds it too.
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, mpsc},
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::{
        Device,
        real::{Execution, IoThreads, LocalDirectory},
    };

    const NAME: &str = "objects";

    /// The only thread of the pool is busy. What is in memory is read nevertheless; what may not
    /// be, or is long, waits for the thread.
    #[test]
    fn small_reads_of_what_is_in_memory_need_no_thread() {
        let place = tempfile::tempdir().unwrap();
        let mut file = File::create(place.path().join(NAME)).unwrap();
        let contents: Vec<u8> = (0..2 * PRESENT_BYTES_MAX).map(|at| (at / 4096) as u8).collect();
        file.write_all(&contents).unwrap();
        let probe = File::open(place.path().join(NAME)).unwrap();
        let reads = PresentReads::default();
        let is_known = reads.fill(&probe, 0, &mut [0; 4096]);
        assert_eq!(is_known, !reads.unknown.load(Ordering::Relaxed), "just written: it is in memory");

        let threads = Arc::new(IoThreads::new("test", 1).unwrap());
        let device = LocalDirectory::open(place.path(), Execution::Pooled, threads.clone()).unwrap();
        let (release, released) = mpsc::channel::<()>();
        let mut busy = threads.run(move || released.recv().map_err(io::Error::other));
        let mut context = Context::from_waker(Waker::noop());
        assert!(busy.as_mut().poll(&mut context).is_pending());
        let mut read = |offset: usize, bytes: usize| {
            let mut read = device.read(NAME, offset as u64, vec![0xee; bytes]);
            let polled = read.as_mut().poll(&mut context);
            (polled.map(Result::unwrap), read)
        };
        let (polled, first) = read(4096, 4096);
        assert!(polled.is_pending(), "the file is not open yet");
        release.send(()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(first).unwrap(), (contents[4096..8192].to_vec(), 4096));

        let (release, released) = mpsc::channel::<()>();
        let mut busy = threads.run(move || released.recv().map_err(io::Error::other));
        assert!(busy.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let (polled, _) = read(8192, PRESENT_BYTES_MAX);
        let expected = contents[8192..8192 + PRESENT_BYTES_MAX].to_vec();
        match is_known {
            true => assert_eq!(polled, Poll::Ready((expected, PRESENT_BYTES_MAX))),
            false => assert!(polled.is_pending()),
        }
        let (polled, long) = read(0, PRESENT_BYTES_MAX + 1);
        assert!(polled.is_pending(), "a long one");
        let (polled, beyond) = read(contents.len() - 1, 2);
        assert!(polled.is_pending(), "whether the file has ended is looked at as usual");
        release.send(()).unwrap();
        assert_eq!(runtime.block_on(long).unwrap().1, PRESENT_BYTES_MAX + 1);
        assert_eq!(runtime.block_on(beyond).unwrap().1, 1);
    }
}
