//! What a client knows about its data files, kept outside of all simulated processes, so that it
//! outlives them.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use client::OpenFile;
use rt::Instant;
use types::InodeNumber;

use super::{
    alarm::Alarm,
    block::{Block, Version, version_of},
};

/// Blocks of a file at most.
pub const BLOCKS: u64 = 100;

/// How blocks change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Written.
    Write,
    /// Written, and durable once that is acknowledged.
    SynchronousWrite,
    /// Punched or cut off.
    Hole,
}

/// What is known of a file.
pub struct FileLedger {
    pub inode: InodeNumber,
    pub blocks: Vec<Block>,
    /// When its creation was acknowledged.
    pub created: Instant,
    /// Its name is durable.
    pub durable: bool,
    /// Its open, and what a sync through it has to say.
    pub open: Option<Arc<OpenFile>>,
    pub alarm: Alarm,
    /// Number of the open.
    pub open_number: u32,
    /// Something was, or may have been, lost, and no sync has reported it before the last close: a
    /// client that opens it again may get a report.
    pub loss_untold: bool,
    /// How many give it another layout: what is copied may have been lost before, and lie where
    /// nothing is lost.
    pub movers: u32,
    /// Another client may have moved it since its last sync: what this client wrote may have been
    /// on any OST.
    pub strewn: bool,
    /// Something was changed without a promise since its last sync: a loss may be told of it, even
    /// if a synchronous write has overwritten every block of it before.
    pub unsynced: bool,
}

impl FileLedger {
    /// A file that was just created and opened.
    pub fn new(inode: InodeNumber, created: Instant, open: Arc<OpenFile>) -> Self {
        Self { open: Some(open), ..Self::closed(inode, created) }
    }

    fn closed(inode: InodeNumber, created: Instant) -> Self {
        Self {
            inode,
            blocks: vec![Block::default(); BLOCKS as usize],
            created,
            durable: false,
            open: None,
            alarm: Alarm::default(),
            open_number: 0,
            loss_untold: false,
            movers: 0,
            strewn: false,
            unsynced: false,
        }
    }

    /// The open ends: a client that closes without a sync gets no report of losses, but the next
    /// one may.
    pub fn take_open(&mut self) -> Option<Arc<OpenFile>> {
        self.open_number += 1;
        self.loss_untold |= std::mem::take(&mut self.alarm).is_pending();
        self.open.take()
    }

    /// A sync that began at `begun` succeeded. Where a move that is in progress leaves what is
    /// written from now on is open.
    pub fn synced(&mut self, begun: Instant) {
        self.made_durable(begun);
        self.strewn = self.movers > 0;
    }

    /// All that was acknowledged at `begun` is durable.
    pub fn made_durable(&mut self, begun: Instant) {
        self.blocks.iter_mut().for_each(|block| block.synced(begun));
        self.unsynced = false;
    }

    /// Whether a power loss may take something that was not synced.
    pub fn is_dirty(&self) -> bool {
        self.unsynced || self.blocks.iter().any(Block::is_dirty)
    }

    /// Whether the file may hold these data after a power loss at `at`, wherever it is.
    pub fn may_hold(&self, data: &[u8], at: Instant, bound: Duration) -> bool {
        let may = |(number, block): (u64, &Block)| {
            version_of(number, data, 0).is_some_and(|found| block.possible(true, at, bound).contains(&found))
        };
        (0..).zip(&self.blocks).all(may)
    }

    pub fn blocks_mut(&mut self, blocks: Range<u64>) -> &mut [Block] {
        &mut self.blocks[blocks.start as usize..blocks.end as usize]
    }
}

/// A file whose name was removed.
pub struct Removed {
    pub file: FileLedger,
    /// When that was acknowledged; `None`: in progress.
    pub acknowledged: Option<Instant>,
}

/// All of a client's files.
#[derive(Default)]
pub struct Ledger {
    pub files: BTreeMap<String, FileLedger>,
    /// Removals that may not be durable.
    pub removed: BTreeMap<String, Removed>,
    /// The MDT lost power, and no sync of this client has noticed yet: a client that opens a file
    /// before one does may get a report.
    pub mdt_loss_unnoticed: bool,
    /// Two files whose layouts are being swapped.
    pub swapping: Option<(String, String)>,
    next_file: u32,
    next_version: Version,
}

impl Ledger {
    /// A file of this client; files leave the ledger between rounds only, and when their removal
    /// begins.
    pub fn file(&mut self, name: &str) -> &mut FileLedger {
        self.files.get_mut(name).expect("the worker knows which files there are")
    }

    /// A file that may have been removed meanwhile: for other clients.
    pub fn find(&mut self, name: &str) -> Option<&mut FileLedger> {
        match self.removed.get_mut(name) {
            Some(removed) => Some(&mut removed.file),
            None => self.files.get_mut(name),
        }
    }

    /// Two closed files have swapped their layouts, and so what they hold; what was lost of it is
    /// told with it.
    pub fn swapped(&mut self, one: &str, other: &str) {
        let mut first = std::mem::take(&mut self.file(one).blocks);
        std::mem::swap(&mut first, &mut self.file(other).blocks);
        self.file(one).blocks = first;
        let of_one = self.file(one).unsynced;
        self.file(one).unsynced = std::mem::replace(&mut self.file(other).unsynced, of_one);
        let untold = self.file(one).loss_untold || self.file(other).loss_untold;
        let strewn = self.file(one).strewn || self.file(other).strewn;
        for name in [one, other] {
            let file = self.file(name);
            file.blocks.iter_mut().for_each(Block::forget_opens);
            (file.loss_untold, file.strewn) = (untold, strewn);
        }
    }

    /// Number of the next file.
    pub fn new_file(&mut self) -> u32 {
        self.next_file += 1;
        self.next_file
    }

    /// Notes that `blocks` of a file are about to become a new version, or holes.
    pub fn begin(&mut self, name: &str, blocks: Range<u64>, change: Change) -> Version {
        self.next_version += 1;
        let version = if change == Change::Hole { 0 } else { self.next_version };
        let file = self.file(name);
        file.unsynced |= change != Change::SynchronousWrite;
        let open = file.open_number;
        file.blocks_mut(blocks).iter_mut().for_each(|block| block.begin(version, open));
        version
    }

    /// A sync of everything the MDT knew at `begun` succeeded.
    pub fn names_synced(&mut self, begun: Instant) {
        for file in self.files.values_mut().filter(|file| file.created <= begun) {
            file.durable = true;
        }
        self.removed.retain(|_, removed| removed.acknowledged.is_none_or(|time| time > begun));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "a";

    fn ledger() -> Ledger {
        let file = FileLedger::closed(InodeNumber(1), Instant(1));
        Ledger { files: BTreeMap::from([(NAME.to_owned(), file)]), ..Ledger::default() }
    }

    /// What is written between the sync and the end of the move was on an OST that may hold nothing
    /// of the file afterwards; if that OST loses power then, the next sync cannot know that it lost
    /// nothing of this.
    #[test]
    fn a_sync_during_a_move_does_not_say_where_the_file_will_be() {
        let mut ledger = ledger();
        let file = ledger.file(NAME);
        file.strewn = true;
        for movers in [2, 1, 0] {
            file.movers = movers;
            file.synced(Instant(2));
            assert_eq!(file.strewn, movers > 0, "{movers} who move it");
        }
    }

    /// The client remembers by object what it did not sync, not by block.
    #[test]
    fn a_loss_may_be_told_of_what_a_synchronous_write_has_overwritten() {
        let mut ledger = ledger();
        let mut write = |change, at| {
            let version = ledger.begin(NAME, 5..6, change);
            let file = ledger.file(NAME);
            file.blocks[5].acknowledge(version, at);
            if change == Change::SynchronousWrite {
                file.blocks[5].synced(at);
            }
            file.is_dirty()
        };
        assert!(!write(Change::SynchronousWrite, Instant(2)), "it is durable");
        assert!(write(Change::Write, Instant(3)));
        assert!(write(Change::SynchronousWrite, Instant(4)));
        ledger.file(NAME).synced(Instant(5));
        assert!(!ledger.file(NAME).is_dirty());
    }
}
