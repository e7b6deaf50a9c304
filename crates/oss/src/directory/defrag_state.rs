//! What is known for merging the pieces of objects: what their readers lose, how much may be moved
//! now, and what was done. In memory only.

use std::{fmt::Write, time::Duration};

use blocks::{ReadLosses, SECTION_BLOCKS, Section};
use rt::Instant;
use types::{ObjectId, limits::BLOCK_BYTES};

use crate::chunk_record::BlockState;

/// How much an idle budget saves up, if turns come at least that often, and what it begins with.
const SAVED: Duration = Duration::from_secs(1);

/// Why a section stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Some of its blocks are inline or not flushed, or changed while they were copied.
    Changing,
    /// Its pieces are long enough, or its object is gone.
    NoGain,
    /// There is no free run for it, or no space where the tables are.
    NoRun,
    /// Reading it took very long.
    Slow,
    /// It could not be read, or is damaged.
    Failed,
}

/// Since the start, or since they were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DefragCounts {
    /// Sequences of pieces that became one piece.
    pub merges: u64,
    /// Pieces of these, before.
    pub pieces_before: u64,
    /// Their blocks.
    pub blocks_moved: u64,
    /// Blocks that changed while they were copied.
    pub blocks_changed: u64,
    /// Turns in which nothing was moved, although something was due, for the load of the device.
    pub turns_busy: u64,
    changing: u64,
    no_gain: u64,
    no_run: u64,
    slow: u64,
    failed: u64,
}

/// Bytes that may be moved. What is moved may be more than is left, once: then the following has to
/// wait for longer.
#[derive(Debug, Default)]
struct Budget {
    left: i64,
    /// When it was filled up last.
    at: Option<Instant>,
}

impl Budget {
    /// `interval`: that between two turns.
    fn fill(&mut self, now: Instant, bytes_per_second: u64, interval: Duration) {
        let full = bytes_of(SAVED.max(interval), bytes_per_second);
        let passed = self.at.map_or(SAVED, |at| now.since(at));
        let more = bytes_of(passed, bytes_per_second);
        // Less than a byte: the time is added up.
        if more > 0 {
            self.at = Some(now);
        }
        self.left = self.left.saturating_add(more).min(full);
    }
}

fn bytes_of(time: Duration, bytes_per_second: u64) -> i64 {
    let bytes = time.as_nanos().saturating_mul(u128::from(bytes_per_second)) / 1_000_000_000;
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct DefragState {
    losses: ReadLosses,
    budget: Budget,
    pub counts: DefragCounts,
    /// When the load was looked at last, and for how long the device had been busy until then.
    load: Option<(Instant, Duration)>,
}

impl DefragState {
    /// A reading found these blocks of an object.
    pub fn note_read(&mut self, object: ObjectId, first: u64, states: &[BlockState]) {
        let mut at = 0;
        while at < states.len() {
            let block = first + at as u64;
            let rest = (SECTION_BLOCKS - block % SECTION_BLOCKS) as usize;
            let end = states.len().min(at + rest);
            self.losses.add(Section::of(object, block), breaks(&states[at..end]));
            at = end;
        }
    }

    /// For which part of the time since the last question the device was busy, in percent.
    pub fn load_percent(&mut self, now: Instant, busy: Duration) -> u64 {
        let (since, before) = self.load.replace((now, busy)).unwrap_or((now, busy));
        let passed = now.since(since).as_nanos();
        let percent = (busy.saturating_sub(before).as_nanos() * 100).checked_div(passed).unwrap_or(0);
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    /// Whether a section is due.
    pub fn is_due(&self) -> bool {
        self.losses.counts().1 > 0
    }

    /// The next section that is due, and what its readers lost, if anything may be moved now.
    /// `interval`: that between two turns.
    pub fn next(&mut self, now: Instant, bytes_per_second: u64, interval: Duration) -> Option<(Section, u64)> {
        self.budget.fill(now, bytes_per_second, interval);
        if self.budget.left > 0 { self.losses.take() } else { None }
    }

    /// A section is not paid for yet.
    pub fn put_back(&mut self, section: Section, lost: u64, price: u64) {
        self.losses.put_back(section, lost, price);
    }

    /// Of what the readers of a section lost, so much was not needed.
    pub fn give_back(&mut self, section: Section, lost: u64) {
        self.losses.add(section, lost);
    }

    /// So many blocks are read to be moved.
    pub fn spend(&mut self, blocks: u64) {
        let bytes = i64::try_from(blocks * BLOCK_BYTES).unwrap_or(i64::MAX);
        self.budget.left = self.budget.left.saturating_sub(bytes);
    }

    /// A section stays as it is.
    pub fn leave(&mut self, why: Left) {
        let counts = &mut self.counts;
        *match why {
            Left::Changing => &mut counts.changing,
            Left::NoGain => &mut counts.no_gain,
            Left::NoRun => &mut counts.no_run,
            Left::Slow => &mut counts.slow,
            Left::Failed => &mut counts.failed,
        } += 1;
    }

    /// Forgets what readers lost: nothing is to be moved.
    pub fn forget(&mut self) {
        self.losses.clear();
    }

    /// A line for each number.
    pub fn describe(&self) -> String {
        let (counted, due) = self.losses.counts();
        let counts = &self.counts;
        let mut text = String::new();
        for (name, value) in [
            ("sections_counted", counted as u64),
            ("sections_due", due as u64),
            ("merges", counts.merges),
            ("extents_before", counts.pieces_before),
            ("extents_after", counts.merges),
            ("bytes_moved", counts.blocks_moved * BLOCK_BYTES),
            ("blocks_changed", counts.blocks_changed),
            ("turns_busy", counts.turns_busy),
            ("left_changing", counts.changing),
            ("left_no_gain", counts.no_gain),
            ("left_no_run", counts.no_run),
            ("left_slow", counts.slow),
            ("left_failed", counts.failed),
        ] {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<17}{value}");
        }
        text.trim_end().to_owned()
    }
}

/// How often blocks of an object that are on the device do not follow the one before.
fn breaks(states: &[BlockState]) -> u64 {
    let (mut before, mut breaks) = (None, 0);
    for address in states.iter().filter_map(BlockState::address) {
        breaks += u64::from(before.is_some_and(|before| before + 1 != address));
        before = Some(address);
    }
    breaks
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;

    const MIB: u64 = 1 << 20;
    const OBJECT: ObjectId = ObjectId::new(InodeNumber(9), 0);

    fn at(milliseconds: u64) -> Instant {
        Instant(1_000_000_000 + milliseconds * 1_000_000)
    }

    fn on_device(address: u64) -> BlockState {
        BlockState::OnDevice { checksum: 0, epoch: 0, address }
    }

    /// Blocks of a section that are nowhere together: 2 are enough to be looked at.
    fn read_in_pieces(state: &mut DefragState, section: u64) {
        let states: Vec<_> = (0..3).map(|block| on_device(10 + 2 * block)).collect();
        state.note_read(OBJECT, section * SECTION_BLOCKS, &states);
    }

    #[test]
    fn what_readers_lose_is_counted_by_section() {
        let mut state = DefragState::default();
        let hole = [BlockState::Absent, BlockState::Inline { checksum: 0 }];
        let first: Vec<_> =
            [1, 2, 9, 10].map(on_device).into_iter().chain(hole).chain([11, 30].map(on_device)).collect();
        assert_eq!(breaks(&first), 2, "nothing is lost at a hole");
        state.note_read(OBJECT, SECTION_BLOCKS - 6, &first);
        assert_eq!(state.next(at(0), MIB, SAVED), None, "one in each section, and none between them");
        state.note_read(OBJECT, SECTION_BLOCKS - 6, &first);
        let taken = [(); 3].map(|()| state.next(at(0), MIB, SAVED));
        let section = |number| Section { object: OBJECT, number };
        assert_eq!(taken, [Some((section(0), 2)), Some((section(1), 2)), None]);
    }

    #[test]
    fn no_more_is_moved_than_the_budget_allows_on_average() {
        let mut state = DefragState::default();
        (0..1000).for_each(|section| read_in_pieces(&mut state, section));
        let mut moved = 0;
        for millisecond in (0..10_000).step_by(7) {
            while state.next(at(millisecond), 16 * MIB, SAVED).is_some() {
                state.spend(SECTION_BLOCKS);
                moved += 8 * MIB;
            }
        }
        assert!((160 * MIB..=184 * MIB).contains(&moved), "10 s, one that was saved, and one move: {}", moved / MIB);
        let mut slow = DefragState::default();
        read_in_pieces(&mut slow, 0);
        slow.spend(1);
        assert_eq!(slow.next(at(0), 1, SAVED), None, "4096 bytes take longer than a second");
        for millisecond in (0..=4_095_000).step_by(500) {
            assert_eq!(slow.next(at(millisecond), 1, SAVED), None, "{millisecond}");
        }
        assert!(slow.next(at(4_097_000), 1, SAVED).is_some(), "however often it is asked");
    }

    /// Turns come once in an interval, and end when nothing may be moved.
    #[test]
    fn as_much_is_moved_if_turns_are_rare() {
        for seconds in [1, 5, 60] {
            let mut state = DefragState::default();
            (0..4000).for_each(|section| read_in_pieces(&mut state, section));
            let mut moved = 0;
            for second in (0..=600).step_by(seconds as usize) {
                while state.next(at(second * 1000), 16 * MIB, Duration::from_secs(seconds)).is_some() {
                    state.spend(SECTION_BLOCKS);
                    moved += 8;
                }
            }
            assert_eq!(moved, 16 * 601, "{seconds} s");
        }
    }

    #[test]
    fn the_load_is_that_since_the_last_look() {
        let mut state = DefragState::default();
        let mut load = |now, busy| state.load_percent(at(now), Duration::from_millis(busy));
        assert_eq!((load(0, 500), load(1000, 1000), load(1000, 1000), load(3000, 1500)), (0, 50, 0, 25));
    }

    #[test]
    fn numbers_have_names() {
        let mut state = DefragState::default();
        read_in_pieces(&mut state, 0);
        state.leave(Left::NoRun);
        state.counts.blocks_moved = 3;
        let text = state.describe();
        for line in ["sections_due     1", "bytes_moved      12288", "left_no_run      1", "left_failed      0"] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        state.forget();
        assert!(!state.is_due());
    }
}
