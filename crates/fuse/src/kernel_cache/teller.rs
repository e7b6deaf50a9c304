//! The thread that tells the kernel what is outdated, except for single names: attributes of
//! inodes, and all names together. Neither waits for a lock that a request may hold.
//!
//! An inode that the kernel does not know yet, because the first reply about it is on its way,
//! cannot be outdated: the kernel is told again until it knows the inode, or has forgotten it.
//! After [`WITHDRAWAL_TIMEOUT`] the reply has long been processed, so the kernel has dropped it.
//!
//! It is also the watchdog of withdrawals.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use super::{
    names::{Invalidation, Names, Overdue, WITHDRAWAL_TIMEOUT},
    statistics::{Count, Statistics},
    table::{Name, NamesEnd, Table},
    waiting::Waiting,
    withdrawal::{Finished, Parts},
};
use crate::session::{Notifications, Notified};

/// Pause before the kernel is told again.
const PAUSE: Duration = Duration::from_millis(1);
/// How often names that are being withdrawn are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What to tell.
#[derive(Debug)]
pub enum Job {
    /// The attributes of these inodes are outdated.
    Attributes(Vec<u64>, Finished),
    /// All names are outdated. Not before this moment, if one is given.
    Epoch(Vec<Finished>, Option<Instant>),
    /// No client waits for the names of this inode: they stay valid until their time has expired.
    Names(u64, Finished),
    /// Listings that are served from now on are to be looked after.
    Watch,
}

/// The kernel drops the attributes of an inode, and its access lists.
pub fn drop_attributes(notifications: &Notifications, table: &Table, node: u64) -> Notified {
    let mark = table.list_mark(node);
    let told = notifications.attributes(node);
    if let Some(mark) = mark.filter(|_| told == Notified::Done) {
        table.list_dropped(node, mark);
    }
    told
}

/// Inodes that the kernel did not know.
#[derive(Debug)]
struct Unknown {
    nodes: Vec<u64>,
    since: Instant,
    finished: Finished,
}

/// See the module documentation.
pub struct Teller {
    pub notifications: Notifications,
    pub table: Arc<Table>,
    pub names: Arc<Names>,
    pub waiting: Arc<Waiting>,
    pub statistics: Arc<Statistics>,
    unknown: Vec<Unknown>,
    epochs: Vec<(Vec<Finished>, Instant)>,
    /// Names that are valid until then.
    waits: BTreeMap<Instant, Vec<Finished>>,
    /// Inodes with replies that may make a name valid.
    preparing: Vec<(u64, Finished)>,
    /// There may be listings that open handles are served from.
    watches: bool,
}

impl Teller {
    pub fn new(
        notifications: Notifications,
        table: Arc<Table>,
        names: Arc<Names>,
        waiting: Arc<Waiting>,
        statistics: Arc<Statistics>,
    ) -> Self {
        Self {
            notifications,
            table,
            names,
            waiting,
            statistics,
            unknown: Vec::new(),
            epochs: Vec::new(),
            waits: BTreeMap::new(),
            preparing: Vec::new(),
            watches: false,
        }
    }

    /// The work of the thread, until all senders are gone.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let pause = if !self.unknown.is_empty() || !self.epochs.is_empty() || !self.preparing.is_empty() {
                Some(PAUSE)
            } else if self.names.is_busy() || !self.waits.is_empty() || self.watches {
                Some(LOOK)
            } else {
                None
            };
            let job = match pause {
                Some(pause) => jobs.recv_timeout(pause),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(job) => self.execute(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look(Instant::now());
        }
        self.names.end();
    }

    fn execute(&mut self, job: Job) {
        match job {
            Job::Attributes(nodes, finished) => self.tell(Unknown { nodes, since: Instant::now(), finished }),
            Job::Epoch(finished, Some(not_before)) => self.epochs.push((finished, not_before)),
            Job::Epoch(finished, None) => self.epoch(finished),
            Job::Names(node, finished) => self.wait(node, finished),
            Job::Watch => self.watches = true,
        }
    }

    /// Waits until the names of an inode that are valid now are not any more.
    fn wait(&mut self, node: u64, finished: Finished) {
        match self.table.names_end(node, Instant::now()) {
            None => finished.tell(),
            Some(NamesEnd::Soon) => self.preparing.push((node, finished)),
            Some(NamesEnd::At(end)) => self.waits.entry(end).or_default().push(finished),
        }
    }

    /// Tells the kernel of these inodes; keeps those that it may not know yet.
    fn tell(&mut self, mut told: Unknown) {
        told.nodes.retain(|node| {
            self.statistics.add(Count::AttributesDropped);
            drop_attributes(&self.notifications, &self.table, *node) == Notified::Unknown && self.table.knows(*node)
        });
        if told.nodes.is_empty() {
            told.finished.tell();
        } else {
            self.unknown.push(told);
        }
    }

    fn epoch(&self, finished: Vec<Finished>) {
        self.notifications.epoch();
        self.statistics.add(Count::Epochs);
        finished.into_iter().for_each(Finished::tell);
    }

    /// Continues what could not be done at once, and reports what takes too long.
    fn look(&mut self, now: Instant) {
        for (node, finished) in std::mem::take(&mut self.preparing) {
            self.wait(node, finished);
        }
        let later = self.waits.split_off(&now);
        std::mem::replace(&mut self.waits, later).into_values().flatten().for_each(Finished::tell);
        for unknown in std::mem::take(&mut self.unknown) {
            if now.saturating_duration_since(unknown.since) < WITHDRAWAL_TIMEOUT {
                self.tell(unknown);
                continue;
            }
            self.report_unknown(&unknown.nodes);
            unknown.finished.tell();
        }
        for (finished, not_before) in std::mem::take(&mut self.epochs) {
            if now >= not_before {
                self.epoch(finished);
            } else {
                self.epochs.push((finished, not_before));
            }
        }
        if self.watches {
            for node in self.table.expired_listings(now) {
                // Nothing waits for it.
                let (name, finished) = (Arc::new(Name::new(node, b"")), Parts::default().add());
                self.names.withdraw(name, Invalidation::Listing, now, finished);
            }
            self.watches = self.table.keeps_watch();
        }
        let Overdue { names, finished, listings } = self.names.overdue(now);
        listings.into_iter().for_each(|directory| self.report_listing(directory));
        if !finished.is_empty() {
            self.report_names(&names);
            self.epoch(finished);
        }
    }

    /// One line for all of them: they came with one withdrawal.
    fn report_unknown(&self, nodes: &[u64]) {
        let Some(first) = nodes.first() else { return };
        self.statistics.add(Count::Overdue);
        tracing::warn!(
            inode = %types::InodeNumber(*first),
            inodes = nodes.len(),
            requests = self.waiting.describe(*first),
            "the kernel does not know inodes that it was given a second ago. The unanswered requests of the first one \
             are listed"
        );
    }

    fn report_listing(&self, directory: u64) {
        self.statistics.add(Count::Overdue);
        tracing::warn!(
            directory = %types::InodeNumber(directory),
            requests = self.waiting.describe(directory),
            "the kernel has not dropped the names of a directory for a second: a program is slow to take them; it may \
             see outdated names if it reads the directory again. The unanswered requests of the directory are listed"
        );
    }

    /// One line for each directory.
    fn report_names(&self, names: &[Arc<Name>]) {
        let directories: BTreeSet<u64> = names.iter().map(|name| name.parent).collect();
        for directory in directories {
            let first = names.iter().find(|name| name.parent == directory);
            let name = first.map(|name| String::from_utf8_lossy(&name.bytes).into_owned()).unwrap_or_default();
            let requests = self.waiting.describe(directory);
            self.statistics.add(Count::Overdue);
            tracing::warn!(
                directory = %types::InodeNumber(directory),
                name,
                requests,
                "the kernel has not dropped a name for a second; declaring all names outdated instead. The unanswered \
                 requests of the directory are listed"
            );
        }
    }
}

#[cfg(test)]
#[path = "teller_tests.rs"]
mod tests;
