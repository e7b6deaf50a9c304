//! Random histories, compared with a map that has the state of each block.

use std::{collections::BTreeMap, ops::Range};

use blocks::{Allocator, FreeRuns, Geometry, Policy, ReadTicket, Refusal, Request};
use proptest::{prelude::*, sample::Index};

use super::{bitmap, object};

/// Two groups, of which the second is short.
const BLOCKS: u64 = 32_768 + 3000;
const RESERVE: u64 = 500;

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        object: u64,
        /// Blocks of the write that have places already.
        before: u64,
        logical: u64,
        blocks: u32,
        /// Blocks of the object after the beginning of the request.
        size: u64,
        has_goal: bool,
        may_use_reserve: bool,
    },
    /// In one run, after the last used blocks if there is a goal.
    AllocateRun {
        blocks: u32,
        has_goal: bool,
    },
    Record(Index),
    Abandon(Index),
    Free {
        extent: Index,
        from: Index,
        blocks: u64,
    },
    /// A batch that names blocks in progress and frees others, which is applied or not.
    Batch {
        record: Index,
        extent: Index,
        from: Index,
        blocks: u64,
        is_applied: bool,
    },
    Durable,
    BeginRead,
    EndRead(Index),
    DropWindows(u64),
    /// So much time passes, and windows are given up that were idle for so long.
    GiveUpIdle {
        passes: u64,
        idle: u64,
        blocks_max: u64,
    },
    SetPointer(u32, u32),
    ChangePolicy(usize),
    Unload,
    /// The process ends, and another one finds what was recorded.
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let blocks = prop_oneof![1u32..20, 200u32..300, 1u32..6000];
    let before = prop_oneof![3 => Just(0), 1 => 0u64..100];
    let logical = prop_oneof![0u64..600, 0u64..20_000];
    let size = prop_oneof![2 => Just(0), 1 => 0u64..1000];
    let allocate = ((0u64..6, before, logical, blocks, size), any::<bool>(), prop::bool::weighted(0.2));
    prop_oneof![
        8 => allocate.prop_map(|((object, before, logical, blocks, size), has_goal, may_use_reserve)| {
            Step::Allocate { object, before, logical, blocks, size, has_goal, may_use_reserve }
        }),
        3 => (prop_oneof![1u32..20, 200u32..300, 1u32..6000], any::<bool>())
            .prop_map(|(blocks, has_goal)| Step::AllocateRun { blocks, has_goal }),
        6 => any::<Index>().prop_map(Step::Record),
        1 => any::<Index>().prop_map(Step::Abandon),
        4 => (any::<Index>(), any::<Index>(), 1u64..5000)
            .prop_map(|(extent, from, blocks)| Step::Free { extent, from, blocks }),
        6 => (any::<Index>(), any::<Index>(), any::<Index>(), 1u64..5000, any::<bool>()).prop_map(
            |(record, extent, from, blocks, is_applied)| Step::Batch { record, extent, from, blocks, is_applied }
        ),
        3 => Just(Step::Durable),
        1 => Just(Step::BeginRead),
        2 => any::<Index>().prop_map(Step::EndRead),
        1 => (0u64..6).prop_map(Step::DropWindows),
        2 => (0u64..3, 0u64..4, prop_oneof![Just(u64::MAX), 0u64..600])
            .prop_map(|(passes, idle, blocks_max)| Step::GiveUpIdle { passes, idle, blocks_max }),
        1 => (0u32..3, 0u32..40_000).prop_map(|(group, start)| Step::SetPointer(group, start)),
        1 => (0usize..3).prop_map(Step::ChangePolicy),
        1 => Just(Step::Unload),
        1 => Just(Step::Restart),
    ]
}

fn policy(number: usize) -> Policy {
    let table = ["32 64 128", "256 512 1024 2048"].get(number).map(|table| table.parse().unwrap());
    Policy { prealloc_table: table, reserve_blocks: RESERVE, ..Policy::default() }
}

/// The naive state of a block. Blocks in windows count as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InProgress,
    Used,
    Retired,
}

/// Blocks that wait: by the change that freed them, and the reads that were in progress then.
struct Waiting {
    blocks: Range<u64>,
    change: u64,
    reads: Vec<u32>,
}

struct Model {
    allocator: Allocator,
    states: Vec<State>,
    in_progress: Vec<Range<u64>>,
    used: Vec<Range<u64>>,
    waiting: Vec<Waiting>,
    change: u64,
    durable: u64,
    reads: BTreeMap<u32, ReadTicket>,
    next_read: u32,
    time: u64,
    /// What the device has recorded.
    disk: Vec<FreeRuns>,
}

impl Model {
    fn new() -> Self {
        let geometry = Geometry::new(BLOCKS).unwrap();
        Self {
            allocator: Allocator::new(geometry, policy(2)),
            states: vec![State::Free; BLOCKS as usize],
            in_progress: Vec::new(),
            used: Vec::new(),
            waiting: Vec::new(),
            change: 0,
            durable: 0,
            reads: BTreeMap::new(),
            next_read: 0,
            time: 0,
            disk: (0..geometry.groups()).map(|group| FreeRuns::all(geometry.blocks_of(group))).collect(),
        }
    }

    fn change_state(&mut self, blocks: &Range<u64>, from: State, to: State) {
        let states = &mut self.states[blocks.start as usize..blocks.end as usize];
        assert!(states.iter().all(|state| *state == from), "{blocks:?} are {from:?}");
        states.fill(to);
    }

    fn count(&self, state: State) -> u64 {
        self.states.iter().filter(|one| **one == state).count() as u64
    }

    fn load(&mut self, group: u32) {
        self.allocator.load(group, &bitmap(&self.disk[group as usize])).expect("the device has what it was told");
    }

    fn allocate(&mut self, request: &Request) {
        loop {
            match self.allocator.allocate(request) {
                Ok(allocation) => {
                    let device = allocation.device;
                    assert!(device.start < device.end && device.end - device.start <= u64::from(request.blocks));
                    self.change_state(&device, State::Free, State::InProgress);
                    self.in_progress.push(device);
                    return;
                }
                Err(Refusal::Load(group)) => self.load(group),
                Err(Refusal::NoSpace) => {
                    let reserve = if request.may_use_reserve { 0 } else { RESERVE };
                    assert!(self.count(State::Free) <= reserve, "there is space");
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn set_pointer(&mut self, group: u32, start: u32) {
        self.allocator.set_pointer(group, start);
        let geometry = self.allocator.geometry();
        let has_block = group < geometry.groups() && start < geometry.blocks_of(group);
        let expected = if has_block { (group, start) } else { (group % geometry.groups(), 0) };
        assert_eq!((self.allocator.mb_last_group(), self.allocator.mb_last_start()), expected);
    }

    fn give_up_idle(&mut self, passes: u64, idle: u64, blocks_max: u64) {
        self.time += passes;
        self.allocator.set_time(self.time);
        let before = self.allocator.window_blocks();
        let given = self.allocator.give_up_idle((self.time + 1).saturating_sub(idle), blocks_max).unwrap();
        let left = self.allocator.window_blocks();
        assert_eq!(left + given, before);
        assert!(idle > 0 || left == 0 || given >= blocks_max, "all windows were used before now: {left} blocks");
    }

    fn allocate_run(&mut self, blocks: u32, goal: Option<u64>) {
        let before = (self.allocator.mb_last_group(), self.allocator.window_blocks());
        let longest = self.allocator.longest_run();
        let found = loop {
            match self.allocator.allocate_run(blocks, goal) {
                Ok(found) => break found,
                Err(Refusal::Load(group)) => self.load(group),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((self.allocator.mb_last_group(), self.allocator.window_blocks()), before);
        let Some(allocation) = found else {
            let free = self.allocator.free_blocks();
            assert!(longest < blocks || free < u64::from(blocks) + RESERVE, "there is a run of {longest}");
            return;
        };
        let device = allocation.device;
        assert!(longest >= blocks && device.end - device.start == u64::from(blocks));
        self.change_state(&device, State::Free, State::InProgress);
        self.in_progress.push(device);
    }

    /// A part of a used extent, and the number of the extent.
    fn used_part(&self, extent: Index, from: Index, blocks: u64) -> Option<(usize, Range<u64>)> {
        if self.used.is_empty() {
            return None;
        }
        let place = extent.index(self.used.len());
        let extent = self.used[place].clone();
        let start = extent.start + from.index((extent.end - extent.start) as usize) as u64;
        Some((place, start..extent.end.min(start + blocks)))
    }

    fn record(&mut self, place: usize) {
        let device = self.in_progress.swap_remove(place);
        self.allocator.record(&device).unwrap();
        self.change_state(&device, State::InProgress, State::Used);
        assert!(self.allocator.record(&device).is_err() && self.allocator.abandon(&device).is_err());
        self.used.push(device);
    }

    fn batch(&mut self, record: usize, (place, freed): (usize, Range<u64>), is_applied: bool) {
        let named = self.in_progress[record].clone();
        let geometry = self.allocator.geometry();
        let groups: Vec<u32> = geometry.pieces(freed.clone()).map(|(group, _)| group).collect();
        for group in groups {
            if !self.allocator.is_loaded(group) {
                self.load(group);
            }
        }
        self.allocator.stage([&named].into_iter(), [&freed].into_iter()).unwrap();
        let mut then = self.states.clone();
        then[named.start as usize..named.end as usize].fill(State::Used);
        then[freed.start as usize..freed.end as usize].fill(State::Retired);
        for (group, _) in geometry.pieces(named).chain(geometry.pieces(freed.clone())) {
            let staged = self.allocator.staged(group).expect("the batch changes the group");
            assert!(staged.iter().eq(unused_runs(&then, geometry, group)), "group {group} as it will be");
            assert_eq!(FreeRuns::from_bitmap(&bitmap(staged), geometry.blocks_of(group)), *staged);
        }
        if is_applied {
            self.record(record);
            self.free(place, freed);
        }
    }

    fn free(&mut self, place: usize, freed: Range<u64>) {
        let extent = self.used[place].clone();
        self.change += 1;
        loop {
            match self.allocator.free(&freed, self.change) {
                Ok(()) => break,
                Err(Refusal::Load(group)) => self.load(group),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(self.allocator.free(&freed, self.change), Err(Refusal::Inconsistent(_))), "freed once");
        self.change_state(&freed, State::Used, State::Retired);
        self.used.remove(place);
        let parts = [extent.start..freed.start, freed.end..extent.end];
        self.used.extend(parts.into_iter().filter(|part| !part.is_empty()));
        let reads = self.reads.keys().copied().collect();
        self.waiting.push(Waiting { blocks: freed, change: self.change, reads });
    }

    /// What may be used again now, in the order in which it was freed.
    fn release(&mut self, released: &[Range<u64>]) {
        let waits = |waiting: &Waiting| {
            waiting.change > self.durable || waiting.reads.iter().any(|read| self.reads.contains_key(read))
        };
        let count = self.waiting.iter().position(waits).unwrap_or(self.waiting.len());
        let ready: Vec<_> = self.waiting.drain(..count).map(|waiting| waiting.blocks).collect();
        assert_eq!(released, ready);
        for blocks in ready {
            self.change_state(&blocks, State::Retired, State::Free);
        }
    }

    fn restart(&mut self) {
        let geometry = self.allocator.geometry();
        let summaries = self.disk.iter().map(FreeRuns::summary).collect();
        self.allocator = Allocator::open(geometry, policy(2), summaries).expect("the summaries are those of the runs");
        for state in self.states.iter_mut().filter(|state| **state != State::Used) {
            *state = State::Free;
        }
        self.in_progress.clear();
        self.waiting.clear();
        self.reads.clear();
        (self.change, self.durable, self.time) = (0, 0, 0);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Allocate { object: number, before, logical, blocks, size, has_goal, may_use_reserve } => {
                let goal = self.used.last().filter(|_| has_goal).map(|extent| extent.end);
                let object = object(number);
                let locality = number % 2;
                self.allocate(&Request {
                    object,
                    write_start: logical.saturating_sub(before),
                    logical,
                    blocks,
                    size: logical + size,
                    goal,
                    locality,
                    may_use_reserve,
                });
            }
            Step::AllocateRun { blocks, has_goal } => {
                let goal = self.used.last().filter(|_| has_goal).map(|extent| extent.end);
                self.allocate_run(blocks, goal);
            }
            Step::Record(index) if !self.in_progress.is_empty() => {
                self.record(index.index(self.in_progress.len()));
            }
            Step::Abandon(index) if !self.in_progress.is_empty() => {
                let device = self.in_progress.swap_remove(index.index(self.in_progress.len()));
                self.allocator.abandon(&device).unwrap();
                self.change_state(&device, State::InProgress, State::Free);
            }
            Step::Record(_) | Step::Abandon(_) => {}
            Step::Free { extent, from, blocks } => {
                if let Some((place, freed)) = self.used_part(extent, from, blocks) {
                    self.free(place, freed);
                }
            }
            Step::Batch { record, extent, from, blocks, is_applied } => {
                if let Some(part) = self.used_part(extent, from, blocks).filter(|_| !self.in_progress.is_empty()) {
                    self.batch(record.index(self.in_progress.len()), part, is_applied);
                }
            }
            Step::Durable => {
                self.durable = self.change;
                let released = self.allocator.durable(self.change, usize::MAX).unwrap();
                self.release(&released);
            }
            Step::BeginRead => {
                self.reads.insert(self.next_read, self.allocator.begin_read());
                self.next_read += 1;
            }
            Step::EndRead(index) => {
                let read = self.reads.keys().nth(index.index(self.reads.len().max(1))).copied();
                let Some(ticket) = read.and_then(|read| self.reads.remove(&read)) else { return };
                let released = self.allocator.end_read(ticket).unwrap();
                self.release(&released);
            }
            Step::DropWindows(number) => self.allocator.drop_windows(object(number)).unwrap(),
            Step::GiveUpIdle { passes, idle, blocks_max } => self.give_up_idle(passes, idle, blocks_max),
            Step::SetPointer(group, start) => self.set_pointer(group, start),
            Step::ChangePolicy(number) => self.allocator.set_policy(policy(number)),
            Step::Unload => self.allocator.unload(0),
            Step::Restart => self.restart(),
        }
    }

    /// Records what changed, and compares everything.
    fn check(&mut self) {
        self.allocator.audit();
        let geometry = self.allocator.geometry();
        for group in 0..geometry.groups() {
            if let Some(recorded) = self.allocator.recorded(group) {
                self.disk[group as usize] = recorded;
            }
            let naive = unused_runs(&self.states, geometry, group);
            assert!(self.disk[group as usize].iter().eq(naive), "group {group} is recorded as it is");
        }
        let free = self.allocator.free_blocks() + self.allocator.window_blocks();
        assert_eq!(free, self.count(State::Free));
        assert_eq!(self.allocator.retired_blocks(), self.count(State::Retired));
    }
}

/// Runs of blocks of a group that no record names.
fn unused_runs(states: &[State], geometry: Geometry, group: u32) -> Vec<Range<u32>> {
    let start = geometry.start_of(group);
    let states = &states[start as usize..(start + u64::from(geometry.blocks_of(group))) as usize];
    let (mut runs, mut next) = (Vec::new(), 0);
    for run in states.chunk_by(|a, b| (*a == State::Used) == (*b == State::Used)) {
        if run[0] != State::Used {
            runs.push(next..next + run.len() as u32);
        }
        next += run.len() as u32;
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn blocks_have_the_states_of_a_naive_map(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
            model.check();
        }
    }
}

/// A run of data that move: after those before them, else where it leaves the longest runs whole.
#[test]
fn data_that_move_go_on_or_take_the_shortest_run_that_suffices() {
    let geometry = Geometry::new(BLOCKS).unwrap();
    let mut allocator = Allocator::new(geometry, Policy::default());
    for used in [0..10, 110..120, 170..180, 1000..1010] {
        allocator.claim(&used).unwrap();
    }
    let mut find = |blocks, goal| {
        let found = allocator.allocate_run(blocks, goal).unwrap().map(|found| found.device);
        found.inspect(|found| allocator.abandon(found).unwrap())
    };
    assert_eq!(find(50, None), Some(120..170));
    assert_eq!(find(51, None), Some(10..61));
    assert_eq!(find(500, None), Some(180..680));
    assert_eq!(find(40, Some(200)), Some(200..240), "after those before them");
    assert_eq!(find(40, Some(980)), Some(120..160), "there are too few");
    assert_eq!(find(40, Some(115)), Some(120..160), "it is used");
    assert_eq!(find(40, Some(40_000)), Some(120..160), "the device has no such block");
    assert_eq!(find(2900, Some(32_768)), Some(32_768..35_668), "in the group of the goal first");
    assert_eq!(find(32_000, None), None);
    assert_eq!(allocator.longest_run(), 32_768 - 1010);
}

#[test]
fn what_the_device_says_is_not_believed_if_it_contradicts_itself() {
    let geometry = Geometry::new(BLOCKS).unwrap();
    let mut allocator = Allocator::new(geometry, Policy::default());
    assert!(matches!(allocator.free(&(0..10), 1), Err(Refusal::Inconsistent(_))), "nothing is used");
    assert!(matches!(allocator.free(&(BLOCKS..BLOCKS + 1), 1), Err(Refusal::Inconsistent(_))), "not on the device");
    let mut runs = FreeRuns::all(geometry.blocks_of(0));
    runs.take(&(5..9)).unwrap();
    let summaries = vec![runs.summary(), FreeRuns::all(geometry.blocks_of(1)).summary()];
    assert!(Allocator::open(geometry, Policy::default(), summaries[..1].to_vec()).is_err());
    let mut wrong = summaries.clone();
    wrong[1].free += 1;
    assert!(Allocator::open(geometry, Policy::default(), wrong).is_err());
    let mut opened = Allocator::open(geometry, Policy::default(), summaries).unwrap();
    assert_eq!(opened.free(&(5..9), 1), Err(Refusal::Load(0)));
    let mut other = runs.clone();
    other.take(&(100..101)).unwrap();
    assert!(opened.load(0, &bitmap(&other)).is_err());
    opened.load(0, &bitmap(&runs)).unwrap();
    assert!(matches!(opened.free(&(4..6), 1), Err(Refusal::Inconsistent(_))), "one of them is free");
    opened.free(&(5..9), 1).unwrap();
    assert!(opened.durable(1, usize::MAX).unwrap().into_iter().eq(std::iter::once(5..9)));
}

#[test]
fn nothing_is_given_out_of_a_group_that_is_out_of_use() {
    let geometry = Geometry::new(BLOCKS).unwrap();
    let mut runs = FreeRuns::all(geometry.blocks_of(0));
    runs.take(&(32_000..32_768)).unwrap();
    let mut second = FreeRuns::all(geometry.blocks_of(1));
    second.take(&(0..100)).unwrap();
    let summaries = vec![runs.summary(), second.summary()];
    let mut allocator = Allocator::open(geometry, Policy::default(), summaries).unwrap();
    allocator.put_out_of_use(0);
    assert_eq!(allocator.free_blocks(), 2900);
    allocator.audit();
    // What spans both groups is freed where it can be.
    assert_eq!(allocator.free(&(32_700..32_800), 1), Err(Refusal::Load(1)));
    allocator.load(1, &bitmap(&second)).unwrap();
    let freed = 32_700..32_800;
    allocator.stage(std::iter::empty(), std::iter::once(&freed)).unwrap();
    assert!(allocator.staged(0).is_none());
    assert_eq!(allocator.staged(1).unwrap().summary().free, 2932);
    allocator.free(&freed, 1).unwrap();
    assert!(allocator.durable(1, usize::MAX).unwrap().into_iter().eq(std::iter::once(32_768..32_800)));
    allocator.audit();
    let mut given = 0;
    let request = |blocks| Request {
        object: object(1),
        write_start: 0,
        logical: 0,
        blocks,
        size: 0,
        goal: Some(5),
        locality: 0,
        may_use_reserve: true,
    };
    loop {
        match allocator.allocate(&request(512)) {
            Ok(allocation) => {
                assert!(allocation.device.start >= 32_768, "{allocation:?}");
                given += allocation.device.end - allocation.device.start;
            }
            Err(refusal) => break assert_eq!(refusal, Refusal::NoSpace),
        }
    }
    assert_eq!(given, 2932);
    allocator.claim(&(10..20)).unwrap();
    allocator.audit();
}
