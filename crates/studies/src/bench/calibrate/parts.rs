//! What parts of the code cost by themselves.

use std::{fs::File, hint::black_box, io, os::unix::fs::FileExt, path::Path, sync::mpsc};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::checksum::checksums;

use super::{super::workers::own_cpu, MIB, cost};

/// Large enough that it does not stay in the caches of a core.
const BUFFER_BYTES: usize = 32 * MIB;

/// Nanoseconds of processor time.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// A byte is copied.
    pub copy_byte: f64,
    /// The checksum of a byte is computed.
    pub checksum_byte: f64,
    /// A thread wakes another.
    pub wake_up: f64,
    /// A small batch is appended to a journal.
    pub append: f64,
    /// A byte more in it.
    pub append_byte: f64,
}

impl Parts {
    /// Measures once, with files in this directory.
    pub fn measure(directory: &Path) -> io::Result<Self> {
        const ROUNDS: u32 = 2;
        const HOPS: u32 = 4000;
        const APPENDS: u32 = 4000;
        let (from, to) = (Bytes::from(vec![1; BUFFER_BYTES]), Mutex::new(vec![2; BUFFER_BYTES]));
        let copy = cost(own_cpu, ROUNDS, |_| {
            let mut to = to.lock();
            to.copy_from_slice(black_box(&from));
            black_box(&mut *to);
            Ok(())
        })?
        .cpu;
        let checksum = cost(own_cpu, ROUNDS, |_| {
            black_box(checksums(0, black_box(&from)));
            Ok(())
        })?
        .cpu;
        let file = File::create(directory.join("append"))?;
        let append = |bytes: usize| {
            let end = file.metadata()?.len();
            let offset = |number: u32| end + u64::from(number) * bytes as u64;
            cost(own_cpu, APPENDS, |number| file.write_all_at(&from[..bytes], offset(number)))
        };
        let (small, large) = (append(512)?.cpu, append(4096)?.cpu);
        Ok(Self {
            copy_byte: copy / BUFFER_BYTES as f64,
            checksum_byte: checksum / BUFFER_BYTES as f64,
            wake_up: wake_up(HOPS)?,
            append: small,
            append_byte: ((large - small) / (4096.0 - 512.0)).max(0.0),
        })
    }
}

/// One thread wakes another, which wakes it in turn.
fn wake_up(hops: u32) -> io::Result<f64> {
    let ((there, arrived), (back, returned)) = (mpsc::channel(), mpsc::channel());
    let other = std::thread::spawn(move || {
        while let Ok(token) = arrived.recv() {
            if back.send(token).is_err() {
                return;
            }
        }
    });
    let gone = |_| io::Error::other("a thread ended");
    let returned = Mutex::new(returned);
    let both = cost(own_cpu, hops / 2, |hop| {
        there.send(hop).map_err(|error| gone(error.to_string()))?;
        returned.lock().recv().map(drop).map_err(|error| gone(error.to_string()))
    });
    drop(there);
    other.join().map_err(|_| io::Error::other("a thread panicked"))?;
    Ok(both?.cpu / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_code_cost_something() {
        let place = tempfile::tempdir().unwrap();
        let parts = Parts::measure(place.path()).unwrap();
        assert!(parts.copy_byte > 0.0 && parts.checksum_byte > 0.0 && parts.append > 0.0 && parts.wake_up > 0.0);
    }
}
