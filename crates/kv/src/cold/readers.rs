//! Threads that read a cold store for tasks that must not block a core.
//!
//! Life cycle: they start with the store and end when its handle is gone and the queue is empty.
//! Nothing waits for them: their reads of a closed store fail.

use std::{
    io,
    sync::{Arc, mpsc},
};

use parking_lot::Mutex;

/// Enough to keep a disk busy with short reads.
const THREADS: usize = 4;

type Work = Box<dyn FnOnce() + Send>;

/// See the module documentation.
pub(super) struct Readers(mpsc::Sender<Work>);

impl Readers {
    pub fn start() -> io::Result<Readers> {
        let (sender, queue) = mpsc::channel::<Work>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREADS {
            let queue = queue.clone();
            let thread = std::thread::Builder::new().name("kv_read".to_owned());
            thread.spawn(move || {
                loop {
                    let next = queue.lock().recv();
                    let Ok(work) = next else { return };
                    work();
                }
            })?;
        }
        Ok(Readers(sender))
    }

    pub fn run(&self, work: Work) {
        if let Err(mpsc::SendError(work)) = self.0.send(work) {
            // A panic ended them all: the caller reads.
            work();
        }
    }
}
