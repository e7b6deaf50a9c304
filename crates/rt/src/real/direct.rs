//! Large transfers of held files past the page cache (O_DIRECT): from and to page-aligned memory.
//!
//! Through the page cache, data are copied once more, pages are allocated for them and given back,
//! and a thread of the kernel writes them. On a virtual disk of a busy host, with requests of
//! 1 MiB, O_DIRECT took a tenth of the processor time (decision note 0048).
//!
//! Small reads go through the page cache, which remembers what was read: so do transfers that are
//! not of whole pages of the file, and all of a file whose file system does not take others. Linux
//! keeps both kinds consistent as long as nothing near a direct write is dirty in the page cache: a
//! direct read finds what is dirty there, a direct write removes what is there.
//!
//! Data from memory that is not aligned are copied first, as those of requests that begin within a
//! page.
//!
//! Downside: what was read in large transfers is not remembered, and is read from the disk again.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, IoSlice},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use rustix::{fs::OFlags, io::Errno, param::page_size};
use types::limits::BULK_BYTES_MAX;

use crate::buffer::{BUFFER_ALIGNMENT, Buffer, BufferPool};

/// Shorter reads go through the page cache.
pub const DIRECT_BYTES_MIN: usize = 64 << 10;
/// Pieces of one call: what Linux takes (IOV_MAX).
const PIECES_MAX: usize = 1024;
/// What direct transfers are multiples of: the largest block of a disk.
const ALIGNMENT: u64 = BUFFER_ALIGNMENT as u64;

/// A file that was opened a second time, for such transfers.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    /// The file system has refused one.
    refused: AtomicBool,
}

impl DirectFile {
    /// The same file as an open one; `None` if its file system has no direct transfers.
    pub fn of(open: &File) -> Option<Self> {
        if page_size() as u64 > ALIGNMENT {
            return None;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        // Not by its name, which may lead elsewhere by now.
        let file = options.open(format!("/proc/self/fd/{}", open.as_raw_fd())).ok()?;
        Some(Self { file, refused: AtomicBool::new(false) })
    }

    /// Whether a read is one for this file.
    pub fn takes_read(&self, offset: u64, bytes: usize) -> bool {
        bytes >= DIRECT_BYTES_MIN && self.takes_write(offset, bytes)
    }

    /// Whether a write is: any of whole pages. The page cache may keep several pages as one, and
    /// what is dirty in it would keep old contents of its neighbours.
    pub fn takes_write(&self, offset: u64, bytes: usize) -> bool {
        bytes > 0
            && offset.is_multiple_of(ALIGNMENT)
            && (bytes as u64).is_multiple_of(ALIGNMENT)
            && !self.refused.load(Ordering::Relaxed)
    }

    /// Writes all pieces, one after the other, with as few calls as the kernel takes. False: it has
    /// to be done through the page cache.
    pub fn write(&self, pool: &BufferPool, mut offset: u64, pieces: &[Bytes]) -> io::Result<bool> {
        let mut rest = pieces.iter().map(|piece| &piece[..]).filter(|piece| !piece.is_empty()).collect::<Vec<_>>();
        rest.reverse();
        while !rest.is_empty() {
            let parts = aligned_parts(pool, &mut rest);
            let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part.bytes())).collect();
            let bytes = slices.iter().map(|slice| slice.len() as u64).sum::<u64>();
            if !self.write_aligned(offset, &mut slices)? {
                return Ok(false);
            }
            offset += bytes;
        }
        Ok(true)
    }

    fn write_aligned(&self, mut offset: u64, mut slices: &mut [IoSlice<'_>]) -> io::Result<bool> {
        while !slices.is_empty() {
            match rustix::io::pwritev(&self.file, slices, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    offset += bytes as u64;
                    IoSlice::advance_slices(&mut slices, bytes);
                    // The rest is not aligned any more.
                    if !slices.is_empty() && !bytes.is_multiple_of(BUFFER_ALIGNMENT) {
                        return Ok(false);
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return self.or_refused(error.into()).map(|()| false),
            }
        }
        Ok(true)
    }

    /// The bytes that fill `buffer`, fewer only at the end of the file. `None`: it has to be done
    /// through the page cache.
    pub fn read_from(&self, offset: u64, mut buffer: Buffer) -> io::Result<Option<Bytes>> {
        let Some(filled) = self.fill(offset, &mut buffer)? else { return Ok(None) };
        buffer.truncate(filled);
        Ok(Some(buffer.freeze()))
    }

    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => {
                    done += bytes;
                    if !bytes.is_multiple_of(BUFFER_ALIGNMENT) {
                        // The end of the file, as far as can be seen.
                        return Ok((done == buffer.len()).then_some(done));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.or_refused(error).map(|()| None),
            }
        }
        Ok(Some(done))
    }

    /// A file system that takes no direct transfers, or wants another alignment, says so when the
    /// first one is made.
    fn or_refused(&self, error: io::Error) -> io::Result<()> {
        if ![Errno::INVAL, Errno::OPNOTSUPP].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
            return Err(error);
        }
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "large transfers go through the page cache: the file takes no direct ones");
        }
        Ok(())
    }
}

fn is_aligned(data: &[u8]) -> bool {
    data.as_ptr().addr().is_multiple_of(BUFFER_ALIGNMENT) && data.len().is_multiple_of(BUFFER_ALIGNMENT)
}

/// Bytes that are written as they are, or a copy of some that cannot be.
enum Part<'a> {
    Own(&'a [u8]),
    Copied(Buffer),
}

impl Part<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Copied(buffer) => buffer,
        }
    }
}

/// Takes what one call writes from `rest`, pieces in reverse order of which none is empty. All of
/// it is aligned if `rest` has whole pages.
fn aligned_parts<'a>(pool: &BufferPool, rest: &mut Vec<&'a [u8]>) -> Vec<Part<'a>> {
    let (mut parts, mut copied) = (Vec::new(), 0);
    while parts.len() < PIECES_MAX
        && copied < BULK_BYTES_MAX
        && let Some(piece) = rest.last()
    {
        if is_aligned(piece) {
            parts.extend(rest.pop().map(Part::Own));
            continue;
        }
        let mut bytes = 0;
        for piece in rest.iter().rev() {
            if bytes > 0 && bytes % BUFFER_ALIGNMENT == 0 && is_aligned(piece) {
                break;
            }
            bytes += piece.len();
        }
        let mut buffer = pool.take(bytes.min(BULK_BYTES_MAX - copied));
        take_from(rest, &mut buffer);
        copied += buffer.len();
        parts.push(Part::Copied(buffer));
    }
    parts
}

/// Fills `buffer` with what comes first of `rest`, pieces in reverse order, and takes it from them.
fn take_from(rest: &mut Vec<&[u8]>, buffer: &mut [u8]) {
    let mut filled = 0;
    while filled < buffer.len() {
        let piece = rest.pop().expect("the pieces have so many bytes");
        let (part, after) = piece.split_at(piece.len().min(buffer.len() - filled));
        buffer[filled..filled + part.len()].copy_from_slice(part);
        filled += part.len();
        if !after.is_empty() {
            rest.push(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| ((at / 512 * 31 + at + seed) % 251) as u8).collect()
    }

    /// A file of 8 MiB where direct transfers work.
    fn file() -> (tempfile::NamedTempFile, DirectFile) {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let direct = DirectFile::of(file.as_file()).expect("the sources are on a disk");
        (file, direct)
    }

    #[test]
    fn what_is_written_one_way_is_read_the_other_way() {
        let (file, direct) = file();
        let pool = BufferPool::new(0);
        let whole = pattern(1, 6 << 20);
        // Neither begins at a page; the second one is longer than a buffer.
        let pieces = [&whole[..100 * KIB + 7], &whole[100 * KIB + 7..5 << 20], &[], &whole[5 << 20..]];
        let pieces: Vec<Bytes> = pieces.map(Bytes::copy_from_slice).into();
        assert!(direct.write(&pool, 4096, &pieces).unwrap());
        let mut found = vec![0; whole.len()];
        file.as_file().read_exact_at(&mut found, 4096).unwrap();
        assert!(found == whole);
        // Dirty pages are found, and overwritten ones are not remembered.
        let small = pattern(2, 4 * KIB);
        file.as_file().write_all_at(&small, 8192).unwrap();
        let read = direct.read_from(0, pool.take(64 * KIB)).unwrap().expect("nothing is in its way");
        assert!(read.len() == 64 * KIB && read[8192..12_288] == small && read[12_288..] == whole[8192..60 * KIB]);
        let mut buffer = pool.take(64 * KIB);
        buffer.fill(7);
        assert!(direct.write(&pool, 0, &[buffer.freeze()]).unwrap());
        let mut found = vec![0; 64 * KIB];
        file.as_file().read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
    }

    /// Aligned pieces are not copied, whatever is between them.
    #[test]
    fn pieces_are_written_together_and_only_those_that_are_not_aligned_are_copied() {
        let pool = BufferPool::new(0);
        let aligned = |seed: usize, bytes: usize| {
            let mut buffer = pool.take(bytes);
            buffer.copy_from_slice(&pattern(seed, bytes));
            buffer.freeze()
        };
        let page = BUFFER_ALIGNMENT;
        let odd = |bytes| Bytes::from(pattern(5, bytes + 1)).slice(1..);
        let pieces = [aligned(1, page), aligned(2, 2 * page), odd(100), odd(page - 100), aligned(3, page), odd(page)];
        let mut rest: Vec<&[u8]> = pieces.iter().rev().map(|piece| &piece[..]).collect();
        let parts = aligned_parts(&pool, &mut rest);
        let shapes: Vec<_> =
            parts.iter().map(|part| (matches!(part, Part::Own(_)), part.bytes().len() / page)).collect();
        assert_eq!(shapes, [(true, 1), (true, 2), (false, 1), (true, 1), (false, 1)]);
        assert!(rest.is_empty() && parts.iter().all(|part| is_aligned(part.bytes())));
        let (file, direct) = file();
        // More pieces than one call takes.
        let many: Vec<Bytes> = (0..1500).map(|seed| aligned(seed, page)).chain(pieces).collect();
        assert!(direct.write(&pool, 4096, &many).unwrap());
        let mut found = vec![0; many.iter().map(Bytes::len).sum()];
        file.as_file().read_exact_at(&mut found, 4096).unwrap();
        assert!(found == many.concat());
    }

    #[test]
    fn a_read_ends_with_the_file() {
        let (file, direct) = file();
        let end = (8 << 20) - 64 * KIB as u64;
        let read = |offset| {
            let read = direct.read_from(offset, BufferPool::new(0).take(128 * KIB)).unwrap();
            read.map(|bytes| bytes.len())
        };
        assert_eq!((read(end), read(8 << 20)), (Some(64 * KIB), Some(0)));
        file.as_file().set_len((8 << 20) - 5).unwrap();
        assert_eq!(read(end), None, "it does not end with a page");
    }

    #[test]
    fn large_reads_and_all_writes_of_whole_pages_are_direct() {
        let (_file, direct) = file();
        for (offset, bytes, expected) in
            [(0, 64 * KIB, true), (0, 60 * KIB, false), (512, 64 * KIB, false), (4096, 64 * KIB + 512, false)]
        {
            assert_eq!(direct.takes_read(offset, bytes), expected, "{bytes} bytes at {offset}");
        }
        for (offset, bytes, expected) in [(0, 4 * KIB, true), (0, 0, false), (512, 4 * KIB, false), (0, 512, false)] {
            assert_eq!(direct.takes_write(offset, bytes), expected, "{bytes} bytes at {offset}");
        }
        direct.or_refused(Errno::INVAL.into()).unwrap();
        assert!(!direct.takes_write(0, 64 * KIB), "it was refused once");
        assert!(direct.or_refused(Errno::IO.into()).is_err(), "an error of the disk is one");
    }
}
