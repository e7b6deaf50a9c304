//! The decision where a write goes: a pure function of the free space, the windows and the policy.
//!
//! | request | gets |
//! |---|---|
//! | in a window of its object | its place in the window |
//! | small, of a small object | the next blocks of the window that its locality shares |
//! | the same at the object's end, if windows are adaptive | a new window of the object, as below |
//! | any other | a new window: the blocks after the object's last ones if they are free, otherwise the next free run from the allocation pointer on that is as long as the window |
//!
//! With adaptive windows, small objects fill what others have left: a window for them is in a group
//! whose longest run is as short as possible, in its shortest run that suffices, so that they do
//! not cut long runs into pieces; so do windows of objects below 1 MiB. And longer windows of
//! objects begin and end with stripes of 1 MiB while there are such places: a window is rather
//! halved than unaligned.
//!
//! If no run is as long, the window is halved until one is. A plan may be for fewer blocks than
//! were asked for; the rest is asked for again.
//!
//! The allocation pointer (`mb_last_group`) is where the last new window ended, so windows of
//! different writers follow each other, as on ldiskfs. Runs of powers of two are aligned if they
//! can be, so that a window does not share a stripe of a RAID with another one.

use std::ops::Range;

use crate::{
    free_index::FreeIndex,
    free_runs::FreeRuns,
    geometry::{GROUP_BLOCKS, Geometry},
    policy::Policy,
    request::Request,
    windows::{Window, Windows},
};

/// The free space, as far as it is known.
pub trait Space {
    /// The groups.
    fn geometry(&self) -> Geometry;
    /// Longest runs of all groups.
    fn index(&self) -> &FreeIndex;
    /// Free runs of a group, if it is loaded.
    fn runs(&self, group: u32) -> Option<&FreeRuns>;
    /// Free blocks of the device.
    fn free(&self) -> u64;
    /// Where the last new window ended.
    fn pointer(&self) -> u64;
    /// Where the last new window in what others have left ended, if windows are adaptive.
    fn shared_pointer(&self) -> u64;
}

/// Shortest run in which an adaptive window for small objects begins: 16 KiB. Shorter ones are used
/// when there are no others: objects that are written together would be apart.
const SHARED_BLOCKS_MIN: u32 = 4;

/// With what adaptive windows of objects are aligned: 1 MiB, a stripe of an array of 8+2 drives.
const STRIPE_BLOCKS: u32 = 256;

/// What is to be done for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Use this part of the object's window.
    FromWindow(Window),
    /// Use the first blocks of the locality's window.
    FromShared(Range<u64>),
    /// Take this run; the request gets its first blocks, the rest becomes a window.
    Run {
        /// Blocks of the device.
        run: Range<u64>,
        /// How many of them the request gets.
        blocks: u32,
        /// The window belongs to the locality, not to the object.
        is_shared: bool,
        /// It is of what others have left, where small objects go.
        is_left_over: bool,
    },
    /// Load this group, and plan again.
    Load(u32),
    /// Windows must become smaller, then plan again.
    ShrinkWindows,
    /// All blocks are used, or reserved.
    NoSpace,
}

/// Decides for a request.
pub fn plan(space: &impl Space, windows: &Windows, policy: &Policy, request: &Request) -> Plan {
    assert!(request.blocks > 0, "a request is for some blocks");
    if let Some(window) = windows.of_object(request.object, request.logical) {
        return Plan::FromWindow(Window { blocks: window.blocks.min(request.blocks), ..window });
    }
    let end = request.logical + u64::from(request.blocks);
    let size = end.max(request.size);
    let is_large = policy.is_large(request.blocks, size);
    let is_shared = !is_large && !policy.goes_on((request.logical, end), size);
    if is_shared && let Some(window) = windows.of_locality(request.locality) {
        let blocks = (window.end - window.start).min(u64::from(request.blocks));
        return Plan::FromShared(window.start..window.start + blocks);
    }
    // Windows never take the reserve.
    let free_for_windows = space.free().saturating_sub(policy.reserve_blocks);
    let free = if request.may_use_reserve { space.free() } else { free_for_windows };
    if free < u64::from(request.blocks) && windows.blocks() > 0 {
        return Plan::ShrinkWindows;
    }
    if free == 0 {
        return Plan::NoSpace;
    }
    let window_end = if is_shared {
        request.logical + u64::from(policy.mb_group_prealloc.max(request.blocks))
    } else {
        let counts = (windows.count(), windows.blocks());
        // Most objects of one small write are complete: what is left of it needs no window.
        let is_rest_of_first = !is_large && request.write_start == 0 && end < u64::from(policy.mb_small_req);
        let wanted = match is_rest_of_first {
            true => end,
            false => policy.window_end((request.logical, end), (size, is_large), free_for_windows, counts),
        };
        windows.next_of_object(request.object, request.logical).map_or(wanted, |next| wanted.min(next))
    };
    let blocks = u64::from(request.blocks).min(free).min(window_end - request.logical) as u32;
    let wanted = blocks.max((window_end - request.logical).min(free_for_windows) as u32);
    let is_left_over = policy.is_adaptive() && !is_large && (is_shared || wanted < STRIPE_BLOCKS);
    // A locality takes holes for the request as they are, an object those that its window fits.
    let least = if is_shared { blocks } else { wanted };
    match find(space, policy, request, (blocks, wanted), is_left_over.then_some(least)) {
        Ok(run) => Plan::Run { blocks: blocks.min((run.end - run.start) as u32), run, is_shared, is_left_over },
        Err(group) => Plan::Load(group),
    }
}

/// A run of at most `wanted` blocks, of which at least one is free; or the group that must be
/// loaded. `needed`: blocks of the request; `left_over`: look at what others have left first, for
/// so many blocks.
fn find(
    space: &impl Space,
    policy: &Policy,
    request: &Request,
    (needed, wanted): (u32, u32),
    left_over: Option<u32>,
) -> Result<Range<u64>, u32> {
    if let Some(run) = after_the_last(space, policy, request, (needed, wanted))? {
        return Ok(run);
    }
    if let Some(least) = left_over
        && let Some(run) = in_what_is_left(space, policy, (least, wanted))?
    {
        return Ok(run);
    }
    if policy.is_adaptive()
        && left_over.is_none()
        && let Some(run) = in_stripes(space, policy, wanted)?
    {
        return Ok(run);
    }
    let geometry = space.geometry();
    let (first, within) = place_of(geometry, space.pointer());
    let mut length = wanted.min(GROUP_BLOCKS);
    let group = loop {
        assert!(length > 0, "some block is free");
        match space.index().next(first, length) {
            Some(group) => break group,
            None => length = length.next_power_of_two() / 2,
        }
    };
    let runs = space.runs(group).ok_or(group)?;
    let from = if group == first { within } else { 0 };
    let start = place(runs, length, from, policy.mb_max_to_scan).expect("the index says that the group has such a run");
    let run = runs.run_at(start).expect("a place is free");
    let start_of_group = geometry.start_of(group);
    Ok(start_of_group + u64::from(start)..start_of_group + u64::from(run.end.min(start + wanted)))
}

/// So many blocks that follow each other, for data that are moved: from `goal` on if they are free
/// there; otherwise in the shortest run that has them, of the next group that has one. `None` if no
/// group has one; the group that must be loaded first.
pub fn find_run(space: &impl Space, blocks: u32, goal: Option<u64>) -> Result<Option<Range<u64>>, u32> {
    let geometry = space.geometry();
    let goal = goal.filter(|goal| *goal < geometry.blocks());
    let near = goal.map_or(0, |goal| geometry.group_of(goal));
    if let Some(goal) = goal.filter(|_| space.index().longest_of(near) >= blocks) {
        let within = (goal - geometry.start_of(near)) as u32;
        let run = space.runs(near).ok_or(near)?.run_at(within);
        if run.is_some_and(|run| run.end - within >= blocks) {
            return Ok(Some(goal..goal + u64::from(blocks)));
        }
    }
    let Some(group) = space.index().next(near, blocks) else { return Ok(None) };
    let runs = space.runs(group).ok_or(group)?;
    let length = |run: &Range<u32>| run.end - run.start;
    let shortest = runs.iter().filter(|run| length(run) >= blocks).min_by_key(length);
    let start = geometry.start_of(group) + u64::from(shortest.expect("the index says that there is one").start);
    Ok(Some(start..start + u64::from(blocks)))
}

/// The group of a pointer, and its block there.
fn place_of(geometry: Geometry, pointer: u64) -> (u32, u32) {
    let pointer = if pointer < geometry.blocks() { pointer } else { 0 };
    let group = geometry.group_of(pointer);
    (group, (pointer - geometry.start_of(group)) as u32)
}

/// A run of at least `least` blocks for small objects: in a group whose longest run is short.
fn in_what_is_left(
    space: &impl Space,
    policy: &Policy,
    (least, wanted): (u32, u32),
) -> Result<Option<Range<u64>>, u32> {
    let geometry = space.geometry();
    let (first, _) = place_of(geometry, space.shared_pointer());
    let length = least.max(SHARED_BLOCKS_MIN).min(wanted).min(GROUP_BLOCKS);
    let Some(group) = space.index().next_shortest(first, length) else { return Ok(None) };
    let runs = space.runs(group).ok_or(group)?;
    let suffices = |run: &Range<u32>| run.end - run.start >= length;
    let shortest = |scan_max: u32| {
        let runs = runs.iter().take(scan_max as usize).filter(suffices);
        runs.min_by_key(|run| (run.end - run.start, run.start))
    };
    let run = shortest(policy.mb_max_to_scan).or_else(|| shortest(u32::MAX));
    let start_of_group = geometry.start_of(group);
    Ok(run.map(|run| {
        let end = run.end.min(run.start + wanted);
        start_of_group + u64::from(run.start)..start_of_group + u64::from(end)
    }))
}

/// A run for a window of an object that begins and ends with stripes: the next one from the
/// pointer on that is as long as is wanted, or half as long, and so on down to a stripe. `None`:
/// the window is not of whole stripes, or there is none.
fn in_stripes(space: &impl Space, policy: &Policy, wanted: u32) -> Result<Option<Range<u64>>, u32> {
    let geometry = space.geometry();
    let (first, within) = place_of(geometry, space.pointer());
    if !wanted.is_multiple_of(STRIPE_BLOCKS) {
        return Ok(None);
    }
    let mut length = wanted.min(GROUP_BLOCKS);
    while length >= STRIPE_BLOCKS {
        // A run that is longer by almost a stripe has a place in any case.
        for sought in [length, (length + STRIPE_BLOCKS - 1).min(GROUP_BLOCKS)] {
            let Some(group) = space.index().next(first, sought) else { break };
            let runs = space.runs(group).ok_or(group)?;
            let from = if group == first { within } else { 0 };
            let Some(start) = place_in_stripes(runs, length, from, policy.mb_max_to_scan) else { continue };
            let run = runs.run_at(start).expect("a place is free");
            let end = start + (run.end - start).min(wanted) / STRIPE_BLOCKS * STRIPE_BLOCKS;
            let start_of_group = geometry.start_of(group);
            return Ok(Some(start_of_group + u64::from(start)..start_of_group + u64::from(end)));
        }
        length = length.next_power_of_two() / 2;
    }
    Ok(None)
}

/// The blocks after the object's last ones, if they are free: with adaptive windows if they suffice
/// for the request, in whole stripes if there are any, because they cost no positioning; with a
/// table only if the whole window is free (ldiskfs: `ext4_mb_find_by_goal`).
fn after_the_last(
    space: &impl Space,
    policy: &Policy,
    request: &Request,
    (needed, wanted): (u32, u32),
) -> Result<Option<Range<u64>>, u32> {
    let geometry = space.geometry();
    let Some(goal) = request.goal.filter(|goal| *goal < geometry.blocks()) else { return Ok(None) };
    let group = geometry.group_of(goal);
    if space.index().longest_of(group) == 0 {
        return Ok(None);
    }
    let runs = space.runs(group).ok_or(group)?;
    let start_of_group = geometry.start_of(group);
    let Some(run) = runs.run_at((goal - start_of_group) as u32) else { return Ok(None) };
    let free = (start_of_group + u64::from(run.end) - goal).min(u64::from(wanted)) as u32;
    let (least, blocks) = match policy.prealloc_table {
        Some(_) => (wanted, free),
        None if free == wanted => (needed, free),
        None => (needed, (free / STRIPE_BLOCKS * STRIPE_BLOCKS).max(free.min(needed))),
    };
    Ok((blocks >= least).then(|| goal..goal + u64::from(blocks)))
}

/// Where a run of `length` blocks fits in a group, beginning with a stripe: aligned as a power of
/// two and from a block on if possible, and found within `scan_max` runs.
fn place_in_stripes(runs: &FreeRuns, length: u32, from: u32, scan_max: u32) -> Option<u32> {
    let fits = |from: u32, alignment: u32| {
        let start_in = |run: Range<u32>| {
            let start = run.start.max(from).next_multiple_of(alignment);
            (start + length <= run.end).then_some(start)
        };
        runs.runs_from(from).take(scan_max as usize).find_map(start_in)
    };
    let alignment = if length.is_power_of_two() { length } else { STRIPE_BLOCKS };
    let either = |from: u32| fits(from, alignment).or_else(|| fits(from, STRIPE_BLOCKS));
    either(from).or_else(|| either(0))
}

/// Where a run of `length` blocks fits in a group: aligned and from a block on, if possible, and
/// found within `scan_max` runs; otherwise anywhere.
fn place(runs: &FreeRuns, length: u32, from: u32, scan_max: u32) -> Option<u32> {
    let fits = |from: u32, alignment: u32, scan_max: u32| {
        let start_in = |run: Range<u32>| {
            let start = run.start.max(from).next_multiple_of(alignment);
            (start + length <= run.end).then_some(start)
        };
        runs.runs_from(from).take(scan_max as usize).find_map(start_in)
    };
    let aligned = |from| if length.is_power_of_two() { fits(from, length, scan_max) } else { None };
    let from_pointer = aligned(from).or_else(|| fits(from, 1, scan_max));
    from_pointer.or_else(|| aligned(0)).or_else(|| fits(0, 1, u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_aligned_and_follow_the_pointer_where_they_can() {
        let mut runs = FreeRuns::all(4096);
        for used in [0..1, 1000..1001, 3000..3001] {
            runs.take(&used).unwrap();
        }
        assert_eq!(place(&runs, 256, 0, 100), Some(256));
        assert_eq!(place(&runs, 256, 257, 100), Some(512));
        assert_eq!(place(&runs, 100, 257, 100), Some(257), "only powers of two are aligned");
        assert_eq!(place(&runs, 1024, 1001, 100), Some(1024));
        assert_eq!(place(&runs, 1999, 500, 100), Some(1001), "not aligned if it does not fit otherwise");
        assert_eq!(place(&runs, 1095, 3500, 100), Some(1001), "from the start if there is nothing after");
        assert_eq!(place(&runs, 2000, 0, 100), None);
        assert_eq!(place(&runs, 1024, 0, 1), Some(1001), "the first one that fits, where no more are looked at");
        assert_eq!(place(&runs, 1024, 1001, 1), Some(1024));
    }
}
