//! What a device does when its process cannot open more files. This test has a process of its own,
//! because it lowers the limit of the process.

use std::{
    fs::File,
    future::Future,
    io::ErrorKind,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use bytes::Bytes;
use rt::{
    Device,
    real::{Execution, IoThreads, LocalDirectory},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DESCRIPTORS: u64 = 128;

/// Else a moment without descriptors would end all changes to a target, as if its disk had failed.
#[test]
fn a_flush_without_descriptors_waits_and_fails_nothing() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), ..limit }).unwrap();
    let place = tempfile::tempdir().unwrap();
    let threads = Arc::new(IoThreads::new("test", 1).unwrap());
    let device = LocalDirectory::open(place.path(), Execution::Inline, Arc::clone(&threads)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let write = |name: String| runtime.block_on(device.write(&name, 0, vec![Bytes::from_static(b"data")]));
    for number in 0..2 * DESCRIPTORS {
        write(format!("a/{number}")).unwrap();
    }
    // The last one is cached, and misses the directory; the first one is not.
    for name in [format!("a/{}", 2 * DESCRIPTORS - 1), "a/0".to_owned()] {
        let others: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(others.len() > DESCRIPTORS as usize / 4, "the device leaves descriptors to others");
        // A flush is over for its caller a moment before its thread counts it.
        runtime.block_on(threads.rest());
        let served = threads.statistics().served;
        let mut flush = pin!(device.flush(&name));
        assert!(flush.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        while threads.statistics().running == 0 && threads.statistics().served == served {
            std::thread::yield_now();
        }
        // Time for the flush to go wrong; a right one waits.
        (0..1000).for_each(|_| std::thread::yield_now());
        assert_eq!(threads.statistics().served, served, "{name}");
        assert_eq!(write("b/new".to_owned()).unwrap_err().kind(), ErrorKind::ResourceBusy);
        drop(others);
        runtime.block_on(flush).unwrap();
    }
    write("b/new".to_owned()).unwrap();
    runtime.block_on(device.flush("b/new")).unwrap();
}
