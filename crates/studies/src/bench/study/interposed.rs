//! The emulation of dynamic striping: the segments of a file are files in directories of their own,
//! and this shows them as one. The study did this under IOR with a layer between it and the C
//! library.
//!
//! Segment `i` holds the bytes from where segment `i - 1` ends to its own end, from its offset 0
//! on.

use std::io;

use bytes::Bytes;

use crate::bench::target::TargetFile;

/// A part of the file.
pub struct Part {
    /// Where it ends in the whole.
    pub end: u64,
    /// What holds it.
    pub file: Box<dyn TargetFile>,
}

/// Several files as one.
pub struct Interposed(Vec<Part>);

impl Interposed {
    /// Parts in order; the last one's end is the largest offset there can be.
    pub fn new(parts: Vec<Part>) -> Self {
        Self(parts)
    }

    /// Calls `transfer(part, offset in it, range of the buffer)` for every part of a range.
    fn each(
        &self,
        offset: u64,
        bytes: usize,
        mut transfer: impl FnMut(&dyn TargetFile, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut start, mut done) = (0, 0);
        for Part { end, file } in &self.0 {
            let at = offset + done as u64;
            if done < bytes && at < *end {
                let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(bytes - done);
                transfer(&**file, at - start, done..done + count)?;
                done += count;
            }
            start = *end;
        }
        if done == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl TargetFile for Interposed {
    fn write_at(&self, data: &Bytes, offset: u64) -> io::Result<()> {
        self.each(offset, data.len(), |file, at, range| file.write_at(&data.slice(range), at))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.each(offset, buffer.len(), |file, at, range| file.read_at(&mut buffer[range], at))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|part| part.file.sync())
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.0.into_iter().try_for_each(|part| part.file.close())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::target::{BenchTarget, PosixTarget};

    #[test]
    fn parts_read_back_as_one_file() {
        let place = tempfile::tempdir().unwrap();
        let target = PosixTarget::new(place.path(), false);
        let part = |name, end| Part { end, file: target.create(name).unwrap() };
        let file = Interposed::new(vec![part("a", 10), part("b", 25), part("c", u64::MAX)]);
        let data: Bytes = (0..100).collect::<Vec<u8>>().into();
        for (from, to) in [(30, 100), (0, 9), (9, 26), (26, 30)] {
            file.write_at(&data.slice(from..to), from as u64).unwrap();
        }
        let mut read = vec![0; 100];
        file.read_at(&mut read, 0).unwrap();
        assert_eq!(read, data);
        let length = |name| std::fs::metadata(place.path().join(name)).unwrap().len();
        assert_eq!((length("a"), length("b"), length("c")), (10, 15, 75));
        assert!(file.read_at(&mut read, 1).is_err(), "an end is an error");
    }
}
