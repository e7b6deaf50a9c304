//! Whether a device shows what positioning costs: pieces of 1 MiB are read in order and in any
//! order, past the page cache. On drives that rotate the latter takes twice as long; on flash, and
//! on virtual disks with a cache below, as long as the former. There rates say nothing about
//! fragmentation.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;

use crate::bench::random::shuffled;

/// Bytes of a piece.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces of a round.
const PIECES: u64 = 48;
/// Rounds, in turns.
const ROUNDS: usize = 3;
/// A device that reads pieces in any order this much slower than in order shows positioning.
const SHOWN_BELOW: f64 = 0.75;

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Positioning {
    /// MiB/s in the order of the device, and in any order; 0 if it was not measured.
    in_order: f64,
    in_any_order: f64,
}

impl Positioning {
    /// Of a device, or a file in place of one, that is full of data.
    pub fn of(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        // A file system that has no direct reads is in memory.
        let Ok(file) = file else { return Ok(Self::default()) };
        let pieces = io::Seek::seek(&mut &file, io::SeekFrom::End(0))? / PIECE_BYTES as u64;
        let mut best = [Duration::MAX; 2];
        for round in 0..ROUNDS as u64 {
            let first = round * PIECES % pieces.saturating_sub(PIECES).max(1);
            let in_order = read(&file, (0..PIECES).map(|piece| (first + piece) % pieces))?;
            let in_any_order = read(&file, (0..PIECES).map(|piece| shuffled(round * PIECES + piece, pieces)))?;
            best = [best[0].min(in_order), best[1].min(in_any_order)];
        }
        let [in_order, in_any_order] = best.map(|time| PIECES as f64 / time.as_secs_f64());
        Ok(Self { in_order, in_any_order })
    }

    /// Whether rates on it say something about fragmentation.
    pub fn is_shown(&self) -> bool {
        self.in_any_order < self.in_order * SHOWN_BELOW
    }
}

impl fmt::Display for Positioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { in_order, in_any_order } = self;
        if *in_order == 0.0 {
            return write!(f, "rates: what positioning costs on the device is not known, so they are not judged");
        }
        write!(
            f,
            "rates: the device reads 1 MiB at a time in order with {in_order:.0} MiB/s, in any order with {in_any_order:.0}: "
        )?;
        match self.is_shown() {
            true => write!(f, "it shows what positioning costs"),
            false => write!(f, "positioning costs next to nothing, so that rates say nothing about fragmentation"),
        }
    }
}

fn read(file: &File, pieces: impl Iterator<Item = u64>) -> io::Result<Duration> {
    let mut buffer = vec![0u8; 2 * PIECE_BYTES];
    let aligned = buffer.as_ptr().align_offset(PIECE_BYTES);
    let target = &mut buffer[aligned..aligned + PIECE_BYTES];
    let begun = Instant::now();
    for piece in pieces {
        file.read_exact_at(target, piece * PIECE_BYTES as u64)?;
    }
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_positioning_is_told_from_one_with() {
        let rotating = Positioning { in_order: 100.0, in_any_order: 50.0 };
        let flash = Positioning { in_order: 1000.0, in_any_order: 950.0 };
        assert!(rotating.is_shown() && !flash.is_shown() && !Positioning::default().is_shown());
        assert!(rotating.to_string().ends_with("it shows what positioning costs"));
        assert!(flash.to_string().contains("say nothing about fragmentation"));
        assert!(Positioning::default().to_string().contains("not known"));
    }
}
