//! What this MDT has to give to others ([`crate::balance`]), for the client that moves it.
//!
//! Directories are found in the table of inodes, from where the last pass ended: the next ones that
//! have a name, and from each the way up, as long as what is below fits and is idle. So whole
//! subtrees move, and the namespace is never walked: a pass looks at some thousand inodes, and at
//! the names below directories until they are too many.
//!
//! What was moved to this MDT, or made here, is told by its number: those that were given out less
//! than the idle time ago, or before this start knows which these are, stay. So what has moved does
//! not move on or back soon, and for that time after a start nothing moves.
//!
//! Life cycle: one for each start, volatile; [`BalancePlanner::next`] again and again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use rpc::{ImportState, message::session::feature};
use rt::Instant;
use types::{Attributes, FileKind, FsError, FsResult, InodeNumber, MdtIndex, Timestamp};

use super::Mdt;
use crate::{
    balance::{self, BalancePolicy, Subtree, Surplus},
    ops::lost_and_found::LOST_AND_FOUND,
    tables::{
        INODES,
        codec::inode_of_key,
        entry::Position,
        inode::{Brief, Inode, Link, Striping},
    },
    transaction::Transaction,
};

/// Inodes in which a pass looks for directories.
const SCANNED_MAX: usize = 8192;
/// Of these, in one look: others wait meanwhile.
const SCANNED_AT_ONCE: usize = 128;
/// Names that a pass looks at below directories.
const NAMES_MAX: u64 = 65_536;
/// Of these, in one look.
const NAMES_AT_ONCE: usize = 256;
/// Subtrees that one pass chooses from.
const SUBTREES_MAX: usize = 32;
/// What one pass gives at most: others may have changed by then.
const GIVEN_MAX: u64 = 16_384;
/// Numbers that were next at some time; the oldest one is as old as the idle time.
const NUMBERS_KEPT: u32 = 64;
/// What has more names does not move at once.
const NAMES_OF_ONE_MAX: u64 = types::limits::GIVEN_NAMES_MAX as u64;

/// What is to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancePlan {
    /// Where to.
    pub to: MdtIndex,
    /// How many inodes at most.
    pub inodes: u64,
    /// Directories with what is below them.
    pub directories: Vec<InodeNumber>,
}

/// Whether it gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceState {
    /// The budget is 0.
    #[default]
    Off,
    /// This MDT has no more than its part, or not clearly.
    Balanced,
    /// It has this to give.
    Gives(Surplus),
    /// An MDT is of an earlier release, or this one recovers, or has not been there for as long as
    /// directories must be idle.
    Waits,
}

impl fmt::Display for BalanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BalanceState::Off => write!(f, "off"),
            BalanceState::Balanced => write!(f, "balanced"),
            BalanceState::Gives(Surplus { to, inodes }) => write!(f, "gives {inodes} inodes to {to}"),
            BalanceState::Waits => write!(f, "waits"),
        }
    }
}

/// See the module documentation.
pub struct BalancePlanner {
    mdt: Arc<Mdt>,
    /// The next look begins after this inode.
    cursor: InodeNumber,
    /// The number that was next at a time.
    numbers: VecDeque<(Instant, u64)>,
    state: BalanceState,
    /// How often each MDT had told its space when the last pass ended.
    told: BTreeMap<MdtIndex, u64>,
}

/// What a subtree may be.
struct Limits {
    inodes: u64,
    /// Inodes from this number on are new here.
    first_new: u64,
    now: Timestamp,
    idle: Duration,
}

/// A pass through the tables.
struct Pass<'p> {
    planner: &'p BalancePlanner,
    limits: Limits,
    /// Names that may be looked at yet.
    names: u64,
    /// Directories that are in what was found, or that were looked at.
    seen: BTreeSet<InodeNumber>,
    found: Vec<Subtree>,
}

impl BalancePlanner {
    /// Nothing known.
    pub fn new(mdt: Arc<Mdt>) -> Self {
        Self {
            mdt,
            cursor: InodeNumber(0),
            numbers: VecDeque::new(),
            state: BalanceState::default(),
            told: BTreeMap::new(),
        }
    }

    /// What was planned has been done: what others have told so far is of before.
    pub fn ended(&mut self) {
        self.told = self.mdt.namespace().volatile.spread.lock().told();
    }

    /// Whether all that answer have told their space again since the last pass: twice, because the
    /// first may have been on its way.
    fn is_told(&self) -> bool {
        let namespace = self.mdt.namespace();
        let spread = namespace.volatile.spread.lock();
        let (now, before) = (spread.told(), |mdt: &MdtIndex| self.told.get(mdt).copied().unwrap_or(0));
        spread.fills().iter().all(|fill| now.get(&fill.mdt).is_some_and(|told| *told >= before(&fill.mdt) + 2))
    }

    /// What was found out last.
    pub fn state(&self) -> BalanceState {
        self.state
    }

    /// What is to move now; its directories may be none: those that were looked at are in use or do
    /// not fit. `None`: nothing.
    pub async fn next(&mut self) -> FsResult<Option<BalancePlan>> {
        let policy = self.mdt.parameters().balance;
        let Some(first_new) = self.first_new(policy.idle) else {
            self.state = if policy.inodes_per_second == 0 { BalanceState::Off } else { BalanceState::Waits };
            return Ok(None);
        };
        if !self.is_told() {
            return Ok(None);
        }
        let is_giving = matches!(self.state, BalanceState::Gives(_));
        self.state = self.mdt.surplus(&policy, is_giving);
        let BalanceState::Gives(surplus) = self.state else { return Ok(None) };
        let surplus = Surplus { inodes: surplus.inodes.min(GIVEN_MAX), ..surplus };
        let now = self.mdt.seams.clock.wall();
        let limits = Limits { inodes: surplus.inodes, first_new, now, idle: policy.idle };
        let mut pass = Pass { planner: self, limits, names: NAMES_MAX, seen: BTreeSet::new(), found: Vec::new() };
        let cursor = pass.run().await?;
        let directories = balance::choose(&pass.found, &surplus, &policy);
        self.cursor = cursor;
        Ok(Some(BalancePlan { to: surplus.to, inodes: surplus.inodes, directories }))
    }

    /// Inodes with smaller numbers are here for longer than that. `None`: it is not known yet.
    fn first_new(&mut self, idle: Duration) -> Option<u64> {
        let (now, next) = (self.mdt.seams.clock.now(), self.mdt.reading().counters().next_inode);
        if self.numbers.back().is_none_or(|(at, _)| now.since(*at) >= idle / NUMBERS_KEPT) {
            self.numbers.push_back((now, next));
        }
        // The last one that is old enough, and those after it.
        while self.numbers.get(1).is_some_and(|(at, _)| now.since(*at) >= idle) {
            self.numbers.pop_front();
        }
        self.numbers.front().filter(|(at, _)| now.since(*at) >= idle).map(|(_, next)| *next)
    }
}

impl Mdt {
    fn surplus(&self, policy: &BalancePolicy, is_giving: bool) -> BalanceState {
        let knows = feature::MOVING_NAMES | feature::MOVING_INODES | feature::MOVING_STRIPED;
        if policy.inodes_per_second == 0 {
            return BalanceState::Off;
        }
        if !self.recovering_clients().is_empty() || self.none_is_older(knows).is_err() {
            return BalanceState::Waits;
        }
        let me = self.options.index;
        let is_there = |mdt: &MdtIndex| {
            let proxy = self.mdt_proxies.lock().get(mdt).cloned();
            *mdt == me
                || proxy.is_some_and(|proxy| {
                    proxy.connection.is_active() && proxy.connection.import.state() == ImportState::Full
                })
        };
        let mut fills = self.namespace().volatile.spread.lock().fills();
        fills.retain(|fill| is_there(&fill.mdt));
        match balance::surplus(me, &fills, policy, is_giving) {
            Some(surplus) => BalanceState::Gives(surplus),
            None => BalanceState::Balanced,
        }
    }
}

impl Pass<'_> {
    /// Looks for what may move; returns where it ended.
    async fn run(&mut self) -> FsResult<InodeNumber> {
        let BalancePlanner { mdt, cursor, .. } = self.planner;
        let mut cursor = *cursor;
        for _ in 0..SCANNED_MAX / SCANNED_AT_ONCE {
            let page = mdt.look(mdt.principal.client(), |txn| directories_after(txn, cursor)).await?;
            let Some(last) = page.last else {
                // From the beginning with the next pass.
                return Ok(InodeNumber(0));
            };
            for directory in page.directories {
                self.try_from(directory).await?;
                if self.found.len() >= SUBTREES_MAX || self.names == 0 {
                    return Ok(directory);
                }
            }
            cursor = last;
        }
        Ok(cursor)
    }

    /// The largest subtree with this directory that may move.
    async fn try_from(&mut self, directory: InodeNumber) -> FsResult<()> {
        let (mut next, mut largest) = (Some(directory), None);
        while let Some(at) = next.filter(|at| self.seen.insert(*at)) {
            match self.measure(at).await {
                Ok(Some((subtree, above))) => (next, largest) = (above, Some(subtree)),
                // What is damaged stays where it is.
                Ok(None) | Err(FsError::Damaged(_)) => break,
                Err(error) => return Err(error),
            }
        }
        self.found.extend(largest);
        Ok(())
    }

    /// A directory with what is below it, if it may move, and the directory above it, if that is
    /// here.
    async fn measure(&mut self, top: InodeNumber) -> FsResult<Option<(Subtree, Option<InodeNumber>)>> {
        let (mdt, limits) = (&self.planner.mdt, &self.limits);
        let client = mdt.principal.client();
        let Some(movable) = mdt.look(client, |txn| movable(txn, top, limits)).await? else { return Ok(None) };
        let (mut inodes, mut last_use, mut inside) = (1, movable.last_use, BTreeSet::from([top]));
        let mut to_visit = vec![top];
        while let Some(directory) = to_visit.pop() {
            let (mut names, mut after) = (0, Some(Position(0)));
            while let Some(position) = after {
                let Some(page) = mdt.look(client, |txn| names_after(txn, directory, position, limits)).await? else {
                    return Ok(None);
                };
                (names, inodes, after) = (names + page.names, inodes + page.inodes, page.last);
                self.names = self.names.saturating_sub(page.names);
                if inodes > limits.inodes || names > NAMES_OF_ONE_MAX || self.names == 0 {
                    return Ok(None);
                }
                last_use = last_use.max(page.last_use);
                inside.extend(page.directories.iter().copied());
                to_visit.extend(page.directories);
            }
        }
        // They are a part of it.
        self.seen.extend(inside);
        let idle = limits.idle_since(last_use);
        let subtree = Subtree { directory: top, inodes, idle, above: movable.above.mdt() };
        let is_here = movable.above.mdt() == top.mdt() && movable.above != InodeNumber::ROOT;
        Ok(Some((subtree, is_here.then_some(movable.above))))
    }
}

impl Limits {
    fn last_use(&self, attributes: &Attributes) -> Timestamp {
        // Anybody may set a time of access, also to one to come.
        if attributes.atime <= self.now { attributes.ctime.max(attributes.atime) } else { attributes.ctime }
    }

    fn idle_since(&self, last_use: Timestamp) -> Duration {
        Duration::from_secs(self.now.seconds.saturating_sub(last_use.seconds).try_into().unwrap_or(0))
    }

    fn is_idle(&self, inode: &Inode) -> bool {
        self.idle_since(self.last_use(&inode.attributes)) >= self.idle
    }
}

/// A part of the table of inodes.
struct InodePage {
    directories: Vec<InodeNumber>,
    last: Option<InodeNumber>,
}

/// Directories that have names of their own, among the next inodes. A record that does not decode
/// stays.
fn directories_after(txn: &Transaction<'_>, after: InodeNumber) -> FsResult<InodePage> {
    let (mut directories, mut last) = (Vec::new(), None);
    for (key, value) in txn.page(INODES, Some(&Inode::key(after)), SCANNED_AT_ONCE)? {
        let inode = inode_of_key("inode", &key)?;
        last = Some(inode);
        let is_one = |brief: Brief| brief.kind == FileKind::Directory && !brief.may_move;
        directories.extend(Some(inode).filter(|_| Brief::of(&value).is_ok_and(is_one)));
    }
    Ok(InodePage { directories, last })
}

/// A directory that may move.
struct Movable {
    above: InodeNumber,
    last_use: Timestamp,
}

fn movable(txn: &Transaction<'_>, directory: InodeNumber, limits: &Limits) -> FsResult<Option<Movable>> {
    let Some(inode) = txn.find_inode(directory)? else { return Ok(None) };
    let may_move = inode.is_directory()
        && inode.striping == Striping::None
        && directory != InodeNumber::ROOT
        && directory.counter() < limits.first_new
        && limits.is_idle(&inode)
        && !txn.is_open(directory);
    let link = inode.first_link.as_ref().filter(|_| may_move);
    let is_kept = |link: &Link| link.parent == InodeNumber::ROOT && link.name == LOST_AND_FOUND;
    let last_use = limits.last_use(&inode.attributes);
    Ok(link.filter(|link| !is_kept(link)).map(|link| Movable { above: link.parent, last_use }))
}

/// A part of the names of a directory.
#[derive(Default)]
struct NamePage {
    names: u64,
    /// Of these, inodes of this MDT.
    inodes: u64,
    last_use: Timestamp,
    directories: Vec<InodeNumber>,
    /// The last name, if there may be more.
    last: Option<Position>,
}

/// `None`: something there is in use, or is not to move.
fn names_after(
    txn: &Transaction<'_>,
    directory: InodeNumber,
    after: Position,
    limits: &Limits,
) -> FsResult<Option<NamePage>> {
    let mut found = Vec::new();
    txn.visit_entries(directory, after, &mut |entry| {
        found.push(entry);
        Ok(found.len() < NAMES_AT_ONCE)
    })?;
    let last = found.last().filter(|_| found.len() == NAMES_AT_ONCE).map(|entry| entry.position);
    let mut page = NamePage { names: found.len() as u64, last, ..NamePage::default() };
    let here = || found.iter().map(|entry| entry.target.inode).filter(|inode| txn.is_here(*inode));
    txn.need_inodes(here())?;
    for number in here() {
        let Some(inode) = txn.find_inode(number)? else { continue };
        page.inodes += 1;
        page.last_use = page.last_use.max(limits.last_use(&inode.attributes));
        if inode.is_directory() && inode.striping == Striping::None {
            if movable(txn, number, limits)?.is_none() {
                return Ok(None);
            }
            page.directories.push(number);
        } else if !limits.is_idle(&inode) || txn.is_open(number) {
            return Ok(None);
        }
    }
    Ok(Some(page))
}
