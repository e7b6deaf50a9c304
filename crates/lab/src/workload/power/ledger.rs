//! What a client knows of its data files, outside of all simulated processes, so that it outlives them.

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
    /// Something was, or may have been, lost, and no sync has told before the last close: whoever opens it again may hear of it.
    pub loss_untold: bool,
    /// Somebody gives it another layout: what is copied may have been lost before, and lie where nothing is lost.
    pub moving: bool,
    /// Somebody else may have moved it since its last sync: what this client wrote may have been on any OST.
    pub strewn: bool,
}

impl FileLedger {
    /// A file that was just created and opened.
    pub fn new(inode: InodeNumber, created: Instant, open: Arc<OpenFile>) -> Self {
        Self {
            inode,
            blocks: vec![Block::default(); BLOCKS as usize],
            created,
            durable: false,
            open: Some(open),
            alarm: Alarm::default(),
            open_number: 0,
            loss_untold: false,
            moving: false,
            strewn: false,
        }
    }

    /// The open ends: who closes without a sync does not hear of losses, but the next one may.
    pub fn take_open(&mut self) -> Option<Arc<OpenFile>> {
        self.open_number += 1;
        self.loss_untold |= std::mem::take(&mut self.alarm).is_pending();
        self.open.take()
    }

    /// Whether the file may hold these data after a loss of power at `at`, wherever it lies.
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
    /// When that was acknowledged; `None`: under way.
    pub acknowledged: Option<Instant>,
}

/// All of a client's files.
#[derive(Default)]
pub struct Ledger {
    pub files: BTreeMap<String, FileLedger>,
    /// Removals that may not be durable.
    pub removed: BTreeMap<String, Removed>,
    /// The MDT lost power, and no sync of this client has noticed yet: whoever opens a file before one does may hear of it.
    pub mdt_loss_unnoticed: bool,
    /// Two files whose layouts are being swapped.
    pub swapping: Option<(String, String)>,
    next_file: u32,
    next_version: Version,
}

impl Ledger {
    /// A file of this client; files leave the ledger between rounds only, and when their removal begins.
    pub fn file(&mut self, name: &str) -> &mut FileLedger {
        self.files.get_mut(name).expect("the worker knows which files there are")
    }

    /// A file that may have been removed meanwhile: for those who are not its client.
    pub fn find(&mut self, name: &str) -> Option<&mut FileLedger> {
        match self.removed.get_mut(name) {
            Some(removed) => Some(&mut removed.file),
            None => self.files.get_mut(name),
        }
    }

    /// Two closed files have swapped their layouts, and so what they hold; what was lost of it is told with it.
    pub fn swapped(&mut self, one: &str, other: &str) {
        let mut first = std::mem::take(&mut self.file(one).blocks);
        std::mem::swap(&mut first, &mut self.file(other).blocks);
        self.file(one).blocks = first;
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
    pub fn begin(&mut self, name: &str, blocks: Range<u64>, hole: bool) -> Version {
        self.next_version += 1;
        let version = if hole { 0 } else { self.next_version };
        let file = self.file(name);
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
