//! Placement: on which OSTs the stripes of a new file go.
//!
//! Two regimes, as in Lustre's LOD (lustre/lod/lod_qos.c and obdclass/lu_tgt_descs.c; manual,
//! chapter "Managing Free Space"):
//! - *Round robin* while the fullest usable target has at least `100 - qos_threshold_rr` percent of
//!   the emptiest one's free space. Each file takes the targets after those of the previous file;
//!   its first stripe rotates within that group, so that first stripes are distributed as evenly as
//!   all stripes. Targets with fewer objects that are being written to come before others (not in
//!   Lustre): a round continues over idle targets. Among equals, targets that were busy much more
//!   of the time than the others come last: they are slow, or have more to do. Targets with far
//!   more transfers than the others, from any source, are used only if the others do not
//!   suffice.
//! - *Weighted* otherwise: stripes are drawn without replacement with probability proportional to
//!   `weight = available - penalty` (never below 0). A chosen target's penalty becomes
//!   `penalty / 2 + available * (100 - qos_prio_free) / 100`; with every stripe placed, each
//!   penalty falls by `available * (100 - qos_prio_free) / 100 / (targets - 1)`. So `qos_prio_free`
//!   100 considers only space, and smaller values avoid targets chosen recently. Penalties are
//!   forgotten when round robin takes over again. (Lustre has a second penalty per server; here a
//!   target stands for itself.) A target with objects that are being written to counts as if its
//!   weight were shared among them and the new one (not in Lustre; at `qos_prio_free` 90, more
//!   below it, not at all at 100), so that the emptiest target does not get every stripe while it
//!   is the busiest.
//!
//! Targets on one device share its free space: each counts with its share, so a device gets data
//! according to its space, not its number of targets, and round robin alternates between devices.
//!
//! Not used: targets that are inactive, not connected, read-only, closed for creation, or without
//! any space; and, as long as there are others, those with less free than their reserve
//! (`reserved_permille` of the capacity, Lustre's `reserved_mb_low` of 0.1%, or `reserved_bytes`).
//! If all are below it, the one with the most space gets the whole file: there must be no `NoSpace`
//! while any target has space, and stripes on several almost full targets would only fail sooner.
//! After these come targets that recently refused a request for lack of space, or cannot create
//! objects: their free bytes say nothing about inodes or a quota. Of these, the one with the oldest
//! refusal is tried. Degraded targets are used only if the others do not suffice. Targets whose
//! connection is interrupted come last, since it is not known yet whether they will be back in a
//! moment or are dead: they are used only for an explicitly requested number of stripes, or if
//! there are no others. A requested first OST is used or refused, never replaced; the stripes after
//! it follow in the order of indices, as in Lustre.
//!
//! Life cycle: one [`Placement`] per MDT, volatile; after a restart the round starts again, which
//! has no visible effect. Downside: MDTs do not know each other's placements, only the resulting
//! space.

use std::{cmp::Reverse, collections::BTreeMap};

use types::{
    DeviceId, FsError, OstIndex, SplitMix64,
    limits::{BULK_BYTES_MAX, STRIPE_COUNT_MAX},
};

use crate::spec::{ResolvedCount, ResolvedSpec};

/// What is left of 100 by the default priority of free space: with it, an object that is being
/// written to counts as much as the one to be placed.
const LOAD_SCALE: u32 = 10;

/// Fewer transfers in work than this beyond twice the average, in thousandths, do not make a target
/// the last choice: one client may have as many.
const BUSY_TRANSFERS_PERMILLE_MIN: u64 = 8000;
/// From so many on it comes after others that are as good: a quarter of the time with one transfer.
const STRAINED_TRANSFERS_PERMILLE_MIN: u64 = 250;

/// The parameters of placement, under Lustre's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementPolicy {
    /// Round robin while free space differs by less than this many percent (0..=100; 100: always
    /// round robin).
    pub qos_threshold_rr: u32,
    /// Priority of free space over wide distribution, in percent (0..=100).
    pub qos_prio_free: u32,
    /// A target with less than this many thousandths of its capacity free gets new objects only if
    /// all are like that.
    pub reserved_permille: u32,
    /// So does one with less than this many bytes free. More than the largest write takes: a target
    /// that refused one for want of space must come after others, or the next file is placed where
    /// its first write fails.
    pub reserved_bytes: u64,
}

impl Default for PlacementPolicy {
    /// Lustre's defaults: 17%, 90%, and 0.1% as `reserved_mb_low`; two of the largest writes.
    fn default() -> Self {
        Self {
            qos_threshold_rr: 17,
            qos_prio_free: 90,
            reserved_permille: 1,
            reserved_bytes: 2 * BULK_BYTES_MAX as u64,
        }
    }
}

impl PlacementPolicy {
    /// Free bytes below which a target of this capacity comes after others.
    pub fn bytes_reserved(&self, bytes_total: u64) -> u64 {
        let share = u128::from(bytes_total) * u128::from(self.reserved_permille) / 1000;
        u64::try_from(share).unwrap_or(u64::MAX).max(self.reserved_bytes)
    }
}

/// What placement knows of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OstStatus {
    /// Which.
    pub index: OstIndex,
    /// The administrators want it used.
    pub active: bool,
    /// It answers.
    pub connected: bool,
    /// Its connection is interrupted, but not for so long that it counts as dead.
    pub interrupted: bool,
    /// When it refused something for lack of space, if that was a moment ago: nanoseconds on any
    /// clock; the largest number if it has no room for another object.
    pub refused_ns: Option<u64>,
    /// It creates no new objects.
    pub no_create: bool,
    /// It refuses writes.
    pub read_only: bool,
    /// It works, but a device below it is degraded.
    pub degraded: bool,
    /// Capacity in bytes.
    pub bytes_total: u64,
    /// Bytes free for users, on its device.
    pub bytes_available: u64,
    /// The device it lives on, if that is known.
    pub device: Option<DeviceId>,
    /// How many targets that take new objects live on its device, itself included.
    pub sharing: u32,
    /// Objects on it that are being written to, as far as is known.
    pub objects_written: u32,
    /// Thousandths of reads and writes that it has in work, on average of the last seconds, for
    /// whomever.
    pub transfers_permille: u32,
}

/// Why a target is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// Deactivated by the administrators.
    Inactive,
    /// Does not answer.
    Disconnected,
    /// Refuses writes.
    ReadOnly,
    /// Creates no new objects.
    NoCreate,
    /// Has no space.
    Full,
}

impl OstStatus {
    /// Why no new object may go here; `None` if one may.
    pub fn exclusion(&self) -> Option<Exclusion> {
        if !self.active {
            Some(Exclusion::Inactive)
        } else if !self.connected {
            Some(Exclusion::Disconnected)
        } else if self.read_only {
            Some(Exclusion::ReadOnly)
        } else if self.no_create {
            Some(Exclusion::NoCreate)
        } else if self.bytes_available == 0 {
            Some(Exclusion::Full)
        } else {
            None
        }
    }

    /// Whether nothing but its silence speaks against new objects, as far as is known from before.
    fn would_take_objects(&self) -> bool {
        Self { connected: true, ..*self }.exclusion().is_none()
    }

    /// Its part of what is free on its device: in sums over targets each device counts once.
    pub fn bytes_of_own(&self) -> u64 {
        self.bytes_available / u64::from(self.sharing.max(1))
    }

    /// Whether it has less free than its reserve.
    fn shortage(&self, policy: &PlacementPolicy) -> Shortage {
        match self.bytes_available {
            free if free < policy.reserved_bytes => Shortage::OfBytes,
            free if free < policy.bytes_reserved(self.bytes_total) => Shortage::OfShare,
            _ => Shortage::None,
        }
    }
}

/// What a target lacks, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shortage {
    None,
    /// It has less than the share of its capacity that is reserved, which may be much.
    OfShare,
    /// It has hardly anything.
    OfBytes,
}

/// The targets that take new objects. If none does, and none is full: those that only do not
/// answer. A write to them waits for its server, as a write to an existing file does; that there is
/// no space would be wrong.
fn usable(targets: &[OstStatus]) -> Vec<&OstStatus> {
    let excluded = |reason| targets.iter().filter(move |target| target.exclusion() == reason);
    if excluded(None).next().is_none() && excluded(Some(Exclusion::Full)).next().is_none() {
        return excluded(Some(Exclusion::Disconnected)).filter(|target| target.would_take_objects()).collect();
    }
    excluded(None).collect()
}

/// The targets that new objects go to unless a request names others: those that suit best.
pub fn preferred<'a>(targets: &'a [OstStatus], policy: &PlacementPolicy) -> Vec<&'a OstStatus> {
    let mut usable = usable(targets);
    let rank = |target: &&OstStatus| (target.interrupted, target.refused_ns, target.shortage(policy));
    let Some(best) = usable.iter().map(rank).min() else { return usable };
    usable.retain(|target| rank(target) == best);
    if best.2 == Shortage::OfBytes {
        let most = usable.iter().copied().max_by_key(|target| (target.bytes_available, Reverse(target.index)));
        return most.into_iter().collect();
    }
    usable
}

/// The targets after those that are preferred: so many stripes were asked for that they are better
/// than none.
fn last_resort<'a>(count: ResolvedCount, targets: &'a [OstStatus], policy: &PlacementPolicy) -> Vec<&'a OstStatus> {
    if matches!(count, ResolvedCount::All | ResolvedCount::PerOst(_)) {
        return Vec::new();
    }
    awaited(targets, policy)
}

/// The targets that would be preferred, were their connections not interrupted at the moment.
pub fn awaited<'a>(targets: &'a [OstStatus], policy: &PlacementPolicy) -> Vec<&'a OstStatus> {
    let preferred = preferred(targets, policy);
    let has_space = |target: &&OstStatus| {
        target.exclusion().is_none() && target.refused_ns.is_none() && target.shortage(policy) == Shortage::None
    };
    let usable = targets.iter().filter(|target| target.interrupted).filter(has_space);
    usable.filter(|target| preferred.iter().all(|other| other.index != target.index)).collect()
}

/// Why a file found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There is no OST, or none that takes new objects for reasons other than space.
    #[error("no OST accepts new objects")]
    NoUsableTarget,
    /// Every OST that would take new objects is full.
    #[error("all OSTs are full")]
    NoSpace,
    /// No such OST.
    #[error("there is no {0}")]
    UnknownTarget(OstIndex),
    /// The requested OST accepts no new objects.
    #[error("{0} does not accept new objects ({1:?})")]
    TargetUnusable(OstIndex, Exclusion),
}

impl From<PlacementError> for FsError {
    /// As Lustre answers: EINVAL for an OST that does not exist, ENOSPC where none can be used.
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::UnknownTarget(_) => FsError::Invalid,
            PlacementError::NoUsableTarget | PlacementError::NoSpace | PlacementError::TargetUnusable(..) => {
                FsError::NoSpace
            }
        }
    }
}

/// The memory of placement: where the round stands, and which targets were chosen recently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Position of the next stripe in round robin; taken modulo the number of usable targets.
    cursor: u64,
    /// Weighted regime: bytes to subtract from a target's free space.
    penalties: BTreeMap<OstIndex, u64>,
}

impl Placement {
    /// Starts with the round at `cursor`, a random number: so MDTs do not all begin with the first
    /// OST.
    pub fn new(cursor: u64) -> Self {
        Self { cursor: cursor % (1 << 32), ..Self::default() }
    }

    /// Chooses an OST for each stripe in stripe order. Without overstriping they are distinct: as
    /// many as asked for, or as there are usable ones. `targets` in ascending order of index (of a
    /// pool: only its own); `random` is a fresh random number.
    ///
    /// ```
    /// use layout::{OstStatus, Placement, PlacementPolicy, ResolvedCount, ResolvedSpec};
    /// use types::OstIndex;
    ///
    /// let target = |index| OstStatus {
    ///     index: OstIndex(index),
    ///     active: true,
    ///     connected: true,
    ///     interrupted: false,
    ///     refused_ns: None,
    ///     no_create: index == 2,
    ///     read_only: false,
    ///     degraded: false,
    ///     bytes_total: 1 << 40,
    ///     bytes_available: 1 << 39,
    ///     device: None,
    ///     sharing: 1,
    ///     objects_written: 0,
    ///     transfers_permille: 0,
    /// };
    /// let targets = [0, 1, 2, 3].map(target);
    /// let mut placement = Placement::new(0);
    /// let mut choose = |stripe_count| {
    ///     let spec = ResolvedSpec { stripe_count, ..ResolvedSpec::default() };
    ///     placement.choose(&spec, &targets, &PlacementPolicy::default(), 7).unwrap()
    /// };
    /// assert_eq!(choose(ResolvedCount::All).len(), 3, "OST 2 creates no new objects");
    /// let (first, second) = (choose(ResolvedCount::AtMost(1)), choose(ResolvedCount::AtMost(1)));
    /// assert_ne!(first, second, "round robin, as all have the same space");
    /// ```
    pub fn choose(
        &mut self,
        spec: &ResolvedSpec,
        targets: &[OstStatus],
        policy: &PlacementPolicy,
        random: u64,
    ) -> Result<Vec<OstIndex>, PlacementError> {
        assert!(targets.is_sorted_by(|a, b| a.index < b.index), "targets must be ascending and distinct");
        if !spec.osts.is_empty() {
            return listed(spec, targets);
        }
        let distinct = self.choose_distinct(spec, targets, policy, random)?;
        let count = match spec.stripe_count {
            ResolvedCount::AtMost(_) | ResolvedCount::All => distinct.len(),
            ResolvedCount::Overstriped(count) => count as usize,
            ResolvedCount::PerOst(count) => (distinct.len() * count as usize).min(STRIPE_COUNT_MAX as usize),
        };
        Ok(distinct.iter().copied().cycle().take(count).collect())
    }

    fn choose_distinct(
        &mut self,
        spec: &ResolvedSpec,
        targets: &[OstStatus],
        policy: &PlacementPolicy,
        random: u64,
    ) -> Result<Vec<OstIndex>, PlacementError> {
        let usable = preferred(targets, policy);
        let last = last_resort(spec.stripe_count, targets, policy);
        if let Some(first) = spec.first_ost {
            return choose_from(first, spec.stripe_count, targets, (&usable, &last));
        }
        if usable.is_empty() {
            let full = targets.iter().any(|target| target.exclusion() == Some(Exclusion::Full));
            return Err(if full { PlacementError::NoSpace } else { PlacementError::NoUsableTarget });
        }
        let count = stripes(spec.stripe_count, usable.len() + last.len());
        let (healthy, degraded): (Vec<_>, Vec<_>) = usable.iter().copied().partition(|target| !target.degraded);
        let balanced = is_balanced(&usable, policy);
        if balanced {
            self.penalties.clear();
        }
        let mut dice = Dice(SplitMix64(random));
        let mut chosen = Vec::with_capacity(count);
        // By weight, space decides: the emptiest target may be busy for a long time.
        let busy_from = if balanced { far_above(&healthy, BUSY_TRANSFERS_PERMILLE_MIN) } else { u64::MAX };
        let (busy, idle): (Vec<_>, Vec<_>) =
            healthy.into_iter().partition(|target| u64::from(target.transfers_permille) >= busy_from);
        for group in [idle, busy, degraded, last] {
            let wanted = (count - chosen.len()).min(group.len());
            if wanted == 0 {
                continue;
            }
            if balanced {
                self.round_robin(&group, wanted, &mut chosen);
            } else {
                self.weighted(group, wanted, policy, &mut dice, &mut chosen);
            }
        }
        assert_eq!(chosen.len(), count, "every stripe has a target");
        Ok(chosen)
    }

    /// Takes the next `wanted` targets of the round. Where the stripe count and the number of
    /// targets have a common divisor, files would begin with the same few targets forever: so when
    /// the starts have come full circle, files begin one further within their group.
    fn round_robin(&mut self, targets: &[&OstStatus], wanted: usize, chosen: &mut Vec<OstIndex>) {
        let targets = &by_turns_of_devices(targets);
        let (count, wanted) = (targets.len() as u64, wanted as u64);
        let circle = count / greatest_common_divisor(count, wanted) * wanted;
        let turn = self.cursor / circle;
        let mut order: Vec<&OstStatus> =
            (0..count).map(|step| targets[((self.cursor + step) % count) as usize]).collect();
        let strained_from = far_above(targets, STRAINED_TRANSFERS_PERMILLE_MIN);
        order.sort_by_key(|target| (target.objects_written, u64::from(target.transfers_permille) >= strained_from));
        order.truncate(wanted as usize);
        order.rotate_left((turn % wanted) as usize);
        chosen.extend(order.iter().map(|target| target.index));
        self.cursor += wanted;
    }

    fn weighted(
        &mut self,
        mut targets: Vec<&OstStatus>,
        wanted: usize,
        policy: &PlacementPolicy,
        dice: &mut Dice,
        chosen: &mut Vec<OstIndex>,
    ) {
        let all = targets.clone();
        for _ in 0..wanted {
            let position = self.draw(&targets, policy, dice);
            let target = targets.swap_remove(position);
            chosen.push(target.index);
            self.penalise(target, &all, policy);
        }
    }

    /// Position of the target drawn.
    fn draw(&self, targets: &[&OstStatus], policy: &PlacementPolicy, dice: &mut Dice) -> usize {
        let total: u128 = targets.iter().map(|target| u128::from(self.weight(target, policy))).sum();
        if total == 0 {
            return dice.below(targets.len() as u128) as usize;
        }
        let mut point = dice.below(total);
        for (position, target) in targets.iter().enumerate() {
            let weight = u128::from(self.weight(target, policy));
            if point < weight {
                return position;
            }
            point -= weight;
        }
        unreachable!("the point is below the sum of the weights")
    }

    fn weight(&self, target: &OstStatus, policy: &PlacementPolicy) -> u64 {
        let penalty = self.penalties.get(&target.index).copied().unwrap_or(0);
        let free = target.bytes_of_own().saturating_sub(penalty);
        let besides_space = u128::from(100 - policy.qos_prio_free.min(100));
        let shared = u128::from(LOAD_SCALE) + u128::from(target.objects_written) * besides_space;
        (u128::from(free) * u128::from(LOAD_SCALE) / shared) as u64
    }

    fn penalise(&mut self, used: &OstStatus, all: &[&OstStatus], policy: &PlacementPolicy) {
        let full_penalty = |target: &OstStatus| {
            (u128::from(target.bytes_of_own()) * u128::from(100 - policy.qos_prio_free.min(100)) / 100) as u64
        };
        let others = (all.len() as u64 - 1).max(1);
        let penalty = self.penalties.entry(used.index).or_default();
        *penalty = (*penalty / 2).saturating_add(full_penalty(used));
        for target in all {
            if let Some(penalty) = self.penalties.get_mut(&target.index) {
                *penalty = penalty.saturating_sub(full_penalty(target) / others);
            }
        }
    }
}

fn stripes(count: ResolvedCount, usable: usize) -> usize {
    let limit = usable.min(STRIPE_COUNT_MAX as usize);
    match count {
        ResolvedCount::AtMost(count) | ResolvedCount::Overstriped(count) => limit.min(count as usize),
        ResolvedCount::All | ResolvedCount::PerOst(_) => limit,
    }
}

/// Exactly the requested OSTs, from the requested first one around the end of the list; each must
/// be usable.
fn listed(spec: &ResolvedSpec, targets: &[OstStatus]) -> Result<Vec<OstIndex>, PlacementError> {
    for wanted in &spec.osts {
        let target = targets.iter().find(|target| target.index == *wanted);
        if let Some(reason) = target.ok_or(PlacementError::UnknownTarget(*wanted))?.exclusion() {
            return Err(PlacementError::TargetUnusable(*wanted, reason));
        }
    }
    let start = spec.first_ost.and_then(|first| spec.osts.iter().position(|ost| *ost == first)).unwrap_or(0);
    Ok(spec.osts.iter().copied().cycle().skip(start).take(spec.osts.len()).collect())
}

/// The requested first OST, then the preferred ones after it by index, around the end, then the
/// last resort likewise.
fn choose_from(
    first: OstIndex,
    count: ResolvedCount,
    targets: &[OstStatus],
    (preferred, last): (&[&OstStatus], &[&OstStatus]),
) -> Result<Vec<OstIndex>, PlacementError> {
    let wanted = targets.iter().find(|target| target.index == first);
    if let Some(reason) = wanted.ok_or(PlacementError::UnknownTarget(first))?.exclusion() {
        return Err(PlacementError::TargetUnusable(first, reason));
    }
    let around = |group: &[&OstStatus], degraded: bool| -> Vec<OstIndex> {
        let alike = group.iter().filter(|target| target.degraded == degraded);
        let (before, after): (Vec<_>, Vec<_>) = alike.map(|target| target.index).partition(|index| *index < first);
        [after, before].concat().into_iter().filter(|index| *index != first).collect()
    };
    let others: Vec<OstIndex> =
        [around(preferred, false), around(preferred, true), around(last, false), around(last, true)].concat();
    let count = stripes(count, others.len() + 1);
    Ok(std::iter::once(first).chain(others.into_iter().take(count - 1)).collect())
}

/// From how many thousandths of transfers in work on a target has far more than the others:
/// `least_permille` beyond twice the average, so that most targets have fewer.
fn far_above(targets: &[&OstStatus], least_permille: u64) -> u64 {
    let all: u64 = targets.iter().map(|target| u64::from(target.transfers_permille)).sum();
    let average = all / (targets.len() as u64).max(1);
    2 * average + least_permille
}

/// Whether free space is even enough for round robin.
fn is_balanced(usable: &[&OstStatus], policy: &PlacementPolicy) -> bool {
    let available = || usable.iter().map(|target| u128::from(target.bytes_of_own()));
    let (least, most) = (available().min().unwrap_or(0), available().max().unwrap_or(0));
    most * u128::from(100 - policy.qos_threshold_rr.min(100)) <= least * 100
}

/// The targets in an order in which neighbours are on different devices as far as possible: the
/// first of each device, then the second of each.
fn by_turns_of_devices<'a>(targets: &[&'a OstStatus]) -> Vec<&'a OstStatus> {
    let mut seen: BTreeMap<DeviceId, u32> = BTreeMap::new();
    let mut turn = |target: &OstStatus| {
        let seen = seen.entry(target.device?).or_default();
        *seen += 1;
        Some(*seen)
    };
    let mut turns: Vec<_> = targets.iter().map(|target| (turn(target).unwrap_or(1), *target)).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, target)| target).collect()
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Numbers drawn from one random number.
struct Dice(SplitMix64);

impl Dice {
    /// Nearly uniform in `0..bound`; `bound` is not 0 and far below 2^128.
    fn below(&mut self, bound: u128) -> u128 {
        (u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn target(index: u16, available: u64) -> OstStatus {
        OstStatus {
            index: OstIndex(index),
            active: true,
            connected: true,
            interrupted: false,
            refused_ns: None,
            no_create: false,
            read_only: false,
            degraded: false,
            bytes_total: 1000 * GIB,
            bytes_available: available,
            device: None,
            sharing: 1,
            objects_written: 0,
            transfers_permille: 0,
        }
    }

    fn spec(count: u32) -> ResolvedSpec {
        ResolvedSpec { stripe_count: ResolvedCount::AtMost(count), ..ResolvedSpec::default() }
    }

    /// Places `files` files; returns stripes and first stripes per target.
    fn place(targets: &[OstStatus], counts: &[u32], files: u64, policy: &PlacementPolicy) -> (Vec<u64>, Vec<u64>) {
        let (mut placement, mut dice) = (Placement::new(7), SplitMix64(42));
        let (mut all, mut first) = (vec![0; targets.len()], vec![0; targets.len()]);
        for file in 0..files {
            let count = counts[file as usize % counts.len()];
            let chosen = placement.choose(&spec(count), targets, policy, dice.next_u64()).unwrap();
            let distinct: std::collections::BTreeSet<_> = chosen.iter().collect();
            assert_eq!(distinct.len(), chosen.len(), "a target twice in {chosen:?}");
            first[chosen[0].0 as usize] += 1;
            chosen.iter().for_each(|ost| all[ost.0 as usize] += 1);
        }
        (all, first)
    }

    fn spread(counts: &[u64]) -> u64 {
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    }

    /// Targets with the given free space, by the devices they live on.
    fn on_devices(devices: &[(u64, u64)]) -> Vec<OstStatus> {
        let sharing = |device: u64| devices.iter().filter(|(other, _)| *other == device).count() as u32;
        let status = |(index, (device, available)): (u16, &(u64, u64))| OstStatus {
            device: Some(DeviceId(*device)),
            sharing: sharing(*device),
            ..target(index, *available)
        };
        (0..).zip(devices).map(status).collect()
    }

    #[test]
    fn a_device_gets_stripes_by_its_space_not_by_its_number_of_targets() {
        let policy = PlacementPolicy::default();
        let uneven = on_devices(&[(1, 800 * GIB), (1, 800 * GIB), (1, 800 * GIB), (1, 800 * GIB), (2, 800 * GIB)]);
        let (all, _) = place(&uneven, &[1], 10_000, &policy);
        assert!((4000..6000).contains(&all[4]), "half of all: {all:?}");
        let even = on_devices(&[(1, 800 * GIB), (1, 800 * GIB), (2, 800 * GIB), (2, 800 * GIB)]);
        let (all, _) = place(&even, &[1], 10_000, &policy);
        assert!(spread(&all) <= 1, "round robin: {all:?}");
        let one = on_devices(&[(1, GIB); 4]);
        assert!(spread(&place(&one, &[3], 10_000, &policy).0) <= 1, "all on one device are equal");
    }

    #[test]
    fn stripes_of_a_file_go_to_different_devices_first() {
        let targets = on_devices(&[(1, 800 * GIB), (1, 800 * GIB), (2, 800 * GIB), (2, 800 * GIB)]);
        let mut placement = Placement::default();
        for _ in 0..8 {
            let chosen = placement.choose(&spec(2), &targets, &PlacementPolicy::default(), 5).unwrap();
            let device = |ost: &OstIndex| targets[usize::from(ost.0)].device;
            assert_ne!(device(&chosen[0]), device(&chosen[1]), "{chosen:?}");
        }
    }

    #[test]
    fn round_robin_balances_stripes_and_first_stripes() {
        let policy = PlacementPolicy::default();
        for osts in [1u16, 2, 3, 4, 6, 7, 16, 64] {
            let targets: Vec<_> = (0..osts).map(|index| target(index, 500 * GIB + u64::from(index) * GIB)).collect();
            for count in [1u32, 2, 3, 4, 5, 8, 64] {
                let files = 10_000;
                let (all, first) = place(&targets, &[count], files, &policy);
                let stripes = u64::from(count.min(u32::from(osts))) * files;
                assert_eq!(all.iter().sum::<u64>(), stripes);
                assert!(spread(&all) <= 2 + stripes / u64::from(osts) / 50, "{osts} OSTs, {count}: {all:?}");
                assert!(spread(&first) <= 2 + files / u64::from(osts) / 10, "{osts} OSTs, {count}: first {first:?}");
            }
        }
    }

    #[test]
    fn the_emptier_target_gets_less_while_it_is_the_busier_one() {
        let share = |objects_written: u32, qos_prio_free: u32| {
            let busy = OstStatus { objects_written, ..target(1, 800 * GIB) };
            let policy = PlacementPolicy { qos_prio_free, ..PlacementPolicy::default() };
            let (all, _) = place(&[target(0, 200 * GIB), busy], &[1], 10_000, &policy);
            all[1] / 100
        };
        // Space alone: 80 %. Shared by four: 50 %.
        assert!((70..=85).contains(&share(0, 90)), "{}", share(0, 90));
        assert!((40..=60).contains(&share(3, 90)), "{}", share(3, 90));
        assert!(share(30, 90) < 20, "{}", share(30, 90));
        assert!(share(3, 60) < share(3, 90), "{} {}", share(3, 60), share(3, 90));
        assert!((78..=82).contains(&share(30, 100)), "{}", share(30, 100));
    }

    #[test]
    fn few_targets_are_busier_than_the_others() {
        let busy = |transfers: &[u32]| {
            let targets: Vec<_> =
                transfers.iter().map(|count| OstStatus { transfers_permille: *count, ..target(0, GIB) }).collect();
            let all: Vec<&OstStatus> = targets.iter().collect();
            let busy_from = far_above(&all, BUSY_TRANSFERS_PERMILLE_MIN);
            transfers.iter().filter(|count| u64::from(**count) >= busy_from).count()
        };
        let even = [30_000, 33_000, 29_000, 40_000];
        assert_eq!([busy(&[]), busy(&[1_000_000]), busy(&[0, 0, 0, 7_000]), busy(&even)], [0; 4]);
        assert_eq!(busy(&[0, 0, 0, 20_000]), 1);
        assert_eq!(busy(&[0, 0, 0, 0, 0, 90_000, 80_000]), 2);
        assert_eq!(busy(&[u32::MAX; 5]), 0);
        let targets: Vec<_> = (0..6)
            .map(|index| OstStatus { transfers_permille: if index == 2 { 50_000 } else { 1000 }, ..target(index, GIB) })
            .collect();
        let (all, _) = place(&targets, &[1, 2], 100, &PlacementPolicy::default());
        assert!(all[2] == 0 && spread(&[all[0], all[1], all[3], all[4], all[5]]) <= 4, "{all:?}");
        let (all, _) = place(&targets, &[6], 10, &PlacementPolicy::default());
        assert_eq!(all, [10; 6], "all means all");
    }

    /// One writer's files, one after the other: a slow target is at work for most of the time, a
    /// fast one is done at once.
    #[test]
    fn targets_that_are_at_work_more_of_the_time_come_behind_others_as_good() {
        let targets: Vec<_> = (0..8)
            .map(|index| OstStatus {
                transfers_permille: if index == 3 { 590 } else { 59 },
                objects_written: u32::from(index == 5),
                ..target(index, GIB)
            })
            .collect();
        let (all, _) = place(&targets, &[1], 100, &PlacementPolicy::default());
        assert_eq!((all[3], all[5]), (0, 0));
        assert!(all.iter().all(|count| *count < 30), "the next ones in the round get a share more: {all:?}");
        let (all, _) = place(&targets, &[7], 100, &PlacementPolicy::default());
        assert_eq!((all[3], all[5]), (100, 0), "nobody writes to it");
        let even: Vec<_> = targets.iter().map(|target| OstStatus { transfers_permille: 590, ..*target }).collect();
        let (all, _) = place(&even, &[1], 70, &PlacementPolicy::default());
        assert!(all[3] >= 8 && all[5] == 0, "{all:?}");
    }

    #[test]
    fn round_robin_balances_mixed_counts() {
        let targets: Vec<_> = (0..8).map(|index| target(index, 500 * GIB)).collect();
        let (all, _) = place(&targets, &[1, 4, 2, 8, 3], 10_000, &PlacementPolicy::default());
        let mean = all.iter().sum::<u64>() / 8;
        assert!(spread(&all) < mean / 20, "{all:?}");
    }

    #[test]
    fn a_round_begins_with_targets_that_nobody_writes_to() {
        let mut targets: Vec<_> = (0..6).map(|index| target(index, 500 * GIB)).collect();
        for (target, written) in targets.iter_mut().zip([2, 0, 1, 0, 0, 3]) {
            target.objects_written = written;
        }
        let (mut placement, policy) = (Placement::default(), PlacementPolicy::default());
        let mut choose = |count| {
            let mut chosen = placement.choose(&spec(count), &targets, &policy, 1).unwrap();
            chosen.sort_unstable();
            chosen.iter().map(|ost| ost.0).collect::<Vec<_>>()
        };
        assert_eq!((choose(3), choose(4), choose(5)), (vec![1, 3, 4], vec![1, 2, 3, 4], vec![0, 1, 2, 3, 4]));
        let singles: std::collections::BTreeSet<_> = (0..6).flat_map(|_| choose(1)).collect();
        assert_eq!(singles, [1, 3, 4].into(), "in turns");
    }

    #[test]
    fn threshold_decides_the_regime() {
        let policy = PlacementPolicy::default();
        let even = [target(0, 830), target(1, 1000)];
        let uneven = [target(0, 829), target(1, 1000)];
        assert!(is_balanced(&even.iter().collect::<Vec<_>>(), &policy));
        assert!(!is_balanced(&uneven.iter().collect::<Vec<_>>(), &policy));
        let always = PlacementPolicy { qos_threshold_rr: 100, ..policy };
        assert!(is_balanced(&uneven.iter().collect::<Vec<_>>(), &always));
    }

    #[test]
    fn weights_follow_free_space() {
        let policy = PlacementPolicy { qos_prio_free: 100, ..PlacementPolicy::default() };
        let targets = [target(0, 100 * GIB), target(1, 200 * GIB), target(2, 700 * GIB)];
        let (all, _) = place(&targets, &[1], 20_000, &policy);
        for (placed, expected) in all.iter().zip([2_000u64, 4_000, 14_000]) {
            assert!(placed.abs_diff(expected) < expected / 8, "{all:?}");
        }
        let (wide, _) = place(&targets, &[1], 20_000, &PlacementPolicy { qos_prio_free: 0, ..policy });
        assert!(wide[0] > all[0], "low priority of space spreads wider: {wide:?} against {all:?}");
        let (default, _) = place(&targets, &[1], 20_000, &PlacementPolicy::default());
        assert!(default[2] > default[1] && default[1] > default[0], "{default:?}");
    }

    #[test]
    fn unusable_targets_are_left_out() {
        let mut targets: Vec<_> = (0..6).map(|index| target(index, 500 * GIB)).collect();
        targets[0].active = false;
        targets[1].connected = false;
        targets[2].read_only = true;
        targets[3].no_create = true;
        targets[4].bytes_available = GIB - 1;
        let policy = PlacementPolicy::default();
        let mut placement = Placement::default();
        let all = ResolvedSpec { stripe_count: ResolvedCount::All, ..ResolvedSpec::default() };
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Ok(vec![OstIndex(5)]));
        assert_eq!(placement.choose(&spec(100), &targets, &policy, 1), Ok(vec![OstIndex(5)]));
        (targets[4].bytes_available, targets[5].bytes_available) = (0, 0);
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Err(PlacementError::NoSpace));
        targets[1].active = false;
        assert_eq!(placement.choose(&all, &targets[..4], &policy, 1), Err(PlacementError::NoUsableTarget));
        assert_eq!(placement.choose(&all, &[], &policy, 1), Err(PlacementError::NoUsableTarget));
    }

    #[test]
    fn where_no_target_answers_files_go_to_those_that_will() {
        let mut targets: Vec<_> = (0..4).map(|index| target(index, 500 * GIB)).collect();
        targets.iter_mut().for_each(|target| target.connected = false);
        targets[1].no_create = true;
        targets[2].bytes_available = 0;
        let (policy, mut placement) = (PlacementPolicy::default(), Placement::default());
        let all = ResolvedSpec { stripe_count: ResolvedCount::All, ..ResolvedSpec::default() };
        let mut chosen = placement.choose(&all, &targets, &policy, 1).unwrap();
        chosen.sort();
        assert_eq!(chosen, [OstIndex(0), OstIndex(3)]);
        targets[2].connected = true;
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Err(PlacementError::NoSpace), "a full one answers");
    }

    #[test]
    fn below_their_reserve_the_target_with_most_space_is_taken() {
        let mut targets: Vec<_> = (0..3).map(|index| target(index, 5 << 20)).collect();
        targets[1].bytes_available = 6 << 20;
        let (policy, mut placement) = (PlacementPolicy::default(), Placement::default());
        let all = ResolvedSpec { stripe_count: ResolvedCount::All, ..ResolvedSpec::default() };
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Ok(vec![OstIndex(1)]));
        targets[1].interrupted = true;
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Ok(vec![OstIndex(0)]));
        targets[1].bytes_available = 500 * GIB;
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Ok(vec![OstIndex(0)]), "the other may be dead");
        let chosen = ResolvedSpec { first_ost: Some(OstIndex(2)), ..all.clone() };
        assert_eq!(placement.choose(&chosen, &targets, &policy, 1), Ok(vec![OstIndex(2), OstIndex(0)]));
        targets[2].bytes_available = policy.bytes_reserved(targets[2].bytes_total);
        assert_eq!(placement.choose(&all, &targets, &policy, 1), Ok(vec![OstIndex(2)]));
    }

    /// Their bytes say nothing: they may lack inodes, or a quota may be used up.
    #[test]
    fn targets_that_refuse_come_behind_those_that_have_hardly_anything() {
        let mut targets: Vec<_> = (0..4).map(|index| target(index, 500 * GIB)).collect();
        targets[1].refused_ns = Some(8);
        let (policy, mut placement) = (PlacementPolicy::default(), Placement::default());
        let all = ResolvedSpec { stripe_count: ResolvedCount::All, ..ResolvedSpec::default() };
        let mut choose = |targets: &[OstStatus]| {
            let mut chosen = placement.choose(&all, targets, &policy, 1)?;
            chosen.sort_unstable();
            Ok(chosen.into_iter().map(|ost| ost.0).collect::<Vec<_>>())
        };
        assert_eq!(choose(&targets), Ok(vec![0, 2, 3]));
        (targets[0].bytes_available, targets[3].bytes_available) = (0, 0);
        targets[2].bytes_available = 4096;
        assert_eq!(choose(&targets), Ok(vec![2]), "it has not refused yet");
        targets[2].refused_ns = Some(9);
        assert_eq!(choose(&targets), Ok(vec![1]), "it may have room by now");
        targets[1].refused_ns = Some(10);
        assert_eq!(choose(&targets), Ok(vec![2]), "in turns");
        targets[2].refused_ns = Some(11);
        targets[1].interrupted = true;
        assert_eq!(choose(&targets), Ok(vec![2]));
        targets[0] = target(0, 500 * GIB);
        assert!(awaited(&targets, &policy).is_empty(), "nor is it waited for");
        targets.iter_mut().for_each(|target| target.active = target.index == OstIndex(1));
        assert_eq!(choose(&targets), Ok(vec![1]), "nobody else is left");
        targets[1].bytes_available = 0;
        assert_eq!(choose(&targets), Err(PlacementError::NoSpace));
    }

    #[test]
    fn targets_that_lack_only_their_share_of_free_space_share_new_objects() {
        let policy = PlacementPolicy::default();
        let mut targets: Vec<_> = (0..3).map(|index| target(index, GIB)).collect();
        targets.iter_mut().for_each(|target| target.bytes_total = 20_000 * GIB);
        let all = ResolvedSpec { stripe_count: ResolvedCount::All, ..ResolvedSpec::default() };
        let chosen = Placement::default().choose(&all, &targets, &policy, 1);
        assert_eq!(chosen.map(|osts| osts.len()), Ok(3), "each has a GiB");
        targets[2].bytes_available = 21 * GIB;
        assert_eq!(Placement::default().choose(&all, &targets, &policy, 1), Ok(vec![OstIndex(2)]));
    }

    #[test]
    fn interrupted_targets_are_the_very_last_resort() {
        let mut targets: Vec<_> = (0..4).map(|index| target(index, 500 * GIB)).collect();
        (targets[1].interrupted, targets[2].degraded) = (true, true);
        let policy = PlacementPolicy::default();
        let (all, _) = place(&targets, &[1, 2, 3], 1000, &policy);
        assert_eq!(all[1], 0);
        let (all, _) = place(&targets, &[4], 1000, &policy);
        assert_eq!(all[1], 1000, "so many were asked for");
        let all = ResolvedSpec { stripe_count: ResolvedCount::All, ..ResolvedSpec::default() };
        let choose = |spec: &ResolvedSpec, targets: &[OstStatus]| {
            let mut chosen = Placement::default().choose(spec, targets, &policy, 1)?;
            chosen[1..].sort_unstable();
            Ok(chosen.iter().map(|ost| ost.0).collect::<Vec<_>>())
        };
        assert_eq!(choose(&all, &targets).map(|chosen| chosen.len()), Ok(3));
        let asked_for = ResolvedSpec { first_ost: Some(OstIndex(1)), ..all.clone() };
        assert_eq!(choose(&asked_for, &targets), Ok(vec![1, 0, 2, 3]), "it was asked for, and may be back in a moment");
        for index in [0, 2, 3] {
            targets[index].bytes_available = 0;
        }
        assert_eq!(choose(&all, &targets), Ok(vec![1]));
        targets[1].connected = false;
        assert_eq!(choose(&all, &targets), Err(PlacementError::NoSpace), "by now it is dead");
    }

    #[test]
    fn requested_first_targets_are_followed_by_index_and_condition() {
        let mut targets: Vec<_> = (0..6).map(|index| target(index, 500 * GIB)).collect();
        (targets[3].interrupted, targets[4].degraded) = (true, true);
        let spec = ResolvedSpec { first_ost: Some(OstIndex(2)), ..spec(6) };
        let chosen = Placement::default().choose(&spec, &targets, &PlacementPolicy::default(), 1).unwrap();
        assert_eq!(chosen.iter().map(|ost| ost.0).collect::<Vec<_>>(), [2, 5, 0, 1, 4, 3]);
    }

    #[test]
    fn degraded_targets_are_a_last_resort() {
        let mut targets: Vec<_> = (0..4).map(|index| target(index, 500 * GIB)).collect();
        targets[1].degraded = true;
        let policy = PlacementPolicy::default();
        let (all, _) = place(&targets, &[3], 1000, &policy);
        assert_eq!(all[1], 0);
        let (all, _) = place(&targets, &[4], 1000, &policy);
        assert_eq!(all[1], 1000);
    }

    #[test]
    fn the_first_target_is_honoured_or_refused() {
        let mut targets: Vec<_> = (0..4).map(|index| target(index, 500 * GIB)).collect();
        targets[0].read_only = true;
        let policy = PlacementPolicy::default();
        let mut placement = Placement::default();
        let mut choose = |first, count| {
            let spec = ResolvedSpec { first_ost: Some(OstIndex(first)), ..spec(count) };
            placement.choose(&spec, &targets, &policy, 5)
        };
        assert_eq!(choose(2, 3), Ok(vec![OstIndex(2), OstIndex(3), OstIndex(1)]));
        assert_eq!(choose(3, 1), Ok(vec![OstIndex(3)]));
        assert_eq!(choose(99, 1), Err(PlacementError::UnknownTarget(OstIndex(99))));
        assert_eq!(choose(0, 1), Err(PlacementError::TargetUnusable(OstIndex(0), Exclusion::ReadOnly)));
    }
}
