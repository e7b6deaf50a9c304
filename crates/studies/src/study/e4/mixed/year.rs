//! A year of use: writers that make files at once, and files that are removed when their time has
//! come, at a fill that does not change.
//!
//! Every writer writes one file after the other, 1 MiB a call; whose call is next is random. Before
//! a file begins, those whose lifetime ends first are removed until it has room. So the device
//! stays as full as it is, and time is what was written.
//!
//! Windows of files that are complete are given back as the store does it: after 30 s without a
//! write, in turns of a second. The clock goes as fast as the OST's share of its server can write,
//! without a pause: the worst case.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use types::SplitMix64;

use super::{
    super::{
        run::Run,
        workload::{File, Target, WRITE_BLOCKS},
    },
    profile::{Lifetimes, Sizes},
};

/// Seconds after which windows are idle: the store's.
const IDLE_SECONDS: u64 = 30;
/// Blocks in windows that are given back in a turn, each second: the store's 1 GiB.
const IDLE_BLOCKS: u64 = 262_144;

/// A complete file.
pub(super) struct Live {
    /// When it is removed, in blocks written.
    expires: u64,
    /// In the order of their beginning.
    number: u64,
    /// Who wrote it.
    writer: u32,
    runs: Box<[Run]>,
}

impl Live {
    /// Runs of the device, in the file's order.
    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.range().end - run.range().start).sum()
    }

    fn key(&self) -> (u64, u64) {
        (self.expires, self.number)
    }
}

impl PartialEq for Live {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Live {}

impl PartialOrd for Live {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Live {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// A file that is written.
struct Growing {
    file: File,
    wanted: u64,
    expires: u64,
}

/// Who writes, and how much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Writers at once.
    pub(super) writers: u32,
    /// Blocks that files have, all together, at most.
    pub(super) used_max: u64,
    /// Blocks that are written in a second.
    pub(super) blocks_per_second: u64,
}

/// See the module documentation.
pub(super) struct Year {
    target: Target,
    using: Use,
    sizes: Sizes,
    lifetimes: Lifetimes,
    random: SplitMix64,
    growing: Vec<Option<Growing>>,
    live: BinaryHeap<Reverse<Live>>,
    /// Blocks of all files, those that are still to be written included.
    used: u64,
    /// Files have been removed to make room for others.
    is_full: bool,
    written: u64,
    seconds: u64,
}

impl Year {
    /// A year that has not begun.
    pub(super) fn new(target: Target, using: Use, (sizes, lifetimes): (Sizes, Lifetimes), seed: u64) -> Self {
        let growing = (0..using.writers).map(|_| None).collect();
        let (random, live) = (SplitMix64(seed), BinaryHeap::new());
        Self { target, using, sizes, lifetimes, random, growing, live, used: 0, is_full: false, written: 0, seconds: 0 }
    }

    /// The device.
    pub(super) fn target(&mut self) -> &mut Target {
        &mut self.target
    }

    /// Blocks written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Complete files, in the order of a walk: the files of one writer after those of another, each
    /// in the order of their beginning.
    pub(super) fn files(&self) -> Vec<&Live> {
        let mut files: Vec<&Live> = self.live.iter().map(|live| &live.0).collect();
        files.sort_unstable_by_key(|file| (file.writer, file.number));
        files
    }

    /// Writes until so many blocks were written in all, and until the device is as full as it is
    /// to be.
    pub(super) fn run(&mut self, written: u64) -> Result<(), String> {
        while self.written < written || !self.is_full {
            self.step()?;
        }
        Ok(())
    }

    /// One call of one writer.
    fn step(&mut self) -> Result<(), String> {
        let writer = (self.random.next_u64() % u64::from(self.using.writers)) as usize;
        let mut growing = match self.growing[writer].take() {
            Some(growing) => growing,
            None => self.begin()?,
        };
        let blocks = WRITE_BLOCKS.min(growing.wanted - growing.file.blocks);
        self.target.call(&mut growing.file, blocks)?;
        self.written += blocks;
        if growing.file.blocks < growing.wanted {
            self.growing[writer] = Some(growing);
        } else {
            let Growing { file, expires, .. } = growing;
            let (number, runs) = (file.object.inode.0, file.runs.into_boxed_slice());
            self.live.push(Reverse(Live { expires, number, writer: writer as u32, runs }));
        }
        self.pass_time()
    }

    /// Makes room for a file, and begins it.
    fn begin(&mut self) -> Result<Growing, String> {
        let wanted = self.sizes.draw(&mut self.random);
        while self.used + wanted > self.using.used_max {
            let Reverse(first) = self.live.pop().ok_or("a file is larger than all that is to be used")?;
            self.is_full = true;
            self.used -= first.blocks();
            self.target.remove(first.number, &first.runs)?;
        }
        self.used += wanted;
        let lifetime = self.lifetimes.draw(&mut self.random) * self.using.used_max as f64;
        Ok(Growing { file: self.target.create(), wanted, expires: self.written + lifetime as u64 })
    }

    /// The store's task.
    fn pass_time(&mut self) -> Result<(), String> {
        let now = self.written / self.using.blocks_per_second.max(1);
        if now == self.seconds {
            return Ok(());
        }
        self.seconds = now;
        self.target.give_up_idle(now, now.saturating_sub(IDLE_SECONDS), IDLE_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use blocks::{Allocator, Geometry, Policy};

    use super::{super::profile::Profile, *};

    const BLOCKS: u64 = 64 * 32_768;

    fn year(seed: u64) -> Year {
        let allocator = Allocator::new(Geometry::new(BLOCKS).unwrap(), Policy::default());
        let using = Use { writers: 8, used_max: BLOCKS * 4 / 5, blocks_per_second: 10_000 };
        let of = (Sizes::new(Profile::Pramod, 0, 64 << 20).unwrap(), Lifetimes::new(Profile::WangLanl));
        Year::new(Target::new(allocator), using, of, seed)
    }

    fn places(year: &Year) -> Vec<(u32, u64, Vec<std::ops::Range<u64>>)> {
        let place = |file: &&Live| (file.writer, file.number, file.runs.iter().map(|run| run.range()).collect());
        year.files().iter().map(place).collect()
    }

    #[test]
    fn the_same_seed_leads_to_the_same_files_and_the_fill_is_kept() {
        let (mut one, mut other) = (year(1), year(1));
        for written in [BLOCKS, 2 * BLOCKS, 3 * BLOCKS] {
            one.run(written).unwrap();
            let used: u64 = one.files().iter().map(|file| file.blocks()).sum();
            let growing: u64 = one.growing.iter().flatten().map(|growing| growing.file.blocks).sum();
            let allocator = one.target.allocator();
            assert_eq!(allocator.free_blocks() + allocator.window_blocks() + used + growing, BLOCKS);
            assert!(used <= BLOCKS * 4 / 5 && used > BLOCKS * 3 / 4, "{used}");
        }
        other.run(3 * BLOCKS).unwrap();
        assert_eq!(places(&one), places(&other));
        other.target.allocator().audit();
        other = year(2);
        other.run(3 * BLOCKS).unwrap();
        assert_ne!(places(&one), places(&other));
    }

    #[test]
    fn blocks_of_files_are_different_ones() {
        let mut year = year(3);
        year.run(3 * BLOCKS).unwrap();
        let mut all: Vec<_> = places(&year).into_iter().flat_map(|(.., runs)| runs).collect();
        all.sort_unstable_by_key(|run| run.start);
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
}
