//! Files get other layouts under power loss: from their client, from another one, and by swapping
//! two files' layouts.
//!
//! When a migration succeeds, the moved data are durable, and none of them were lost on the way. A
//! migration that is interrupted by the power loss may have copied the rest of the file; then the
//! data are either at their new place, where nothing may have been lost, or all at the old one. A
//! swap that succeeds is durable; one that is interrupted has happened as a whole or not at all.

use rt::Entropy;
use types::{Credentials, FsError, FsResult, InodeNumber};

use super::{Verdict, data::Worker};
use crate::migration::{self, Manner};

impl Worker {
    async fn give_layout(&self, inode: InodeNumber) -> FsResult<bool> {
        let layout = self.random.below(256) as u8;
        let manner = if self.random.below(3) == 0 { Manner::Background } else { Manner::Tool };
        let moved = migration::migrate(&self.file_system, inode, migration::layout(layout), manner).await;
        self.note(format_args!("inode {inode} to layout {layout}, {manner:?} -> {moved:?}"));
        moved
    }

    /// Moves one of this client's files.
    pub async fn migrate(&self, name: &str) -> Verdict {
        self.close(name).await?;
        let (inode, may_tell) = {
            let mut ledger = self.ledger.lock();
            let unnoticed = ledger.mdt_loss_unnoticed;
            let file = ledger.file(name);
            file.movers += 1;
            (file.inode, unnoticed || file.loss_untold)
        };
        let begun = self.simulation.now();
        let moved = self.give_layout(inode).await;
        if self.blackout.happened() {
            return Ok(());
        }
        let mut ledger = self.ledger.lock();
        let file = ledger.file(name);
        file.movers -= 1;
        match moved {
            Ok(true) => file.made_durable(begun),
            Ok(false) => {}
            // It syncs, and so it tells of losses.
            Err(FsError::Device { .. }) if may_tell => {}
            Err(error) => return Err(format!("migrate {name}: {error}")),
        }
        Ok(())
    }

    /// Moves a file that another client uses.
    pub async fn migrate_of_neighbour(&self) -> Verdict {
        let files: Vec<(String, InodeNumber)> = {
            let ledger = self.neighbour.lock();
            ledger.files.iter().map(|(name, file)| (name.clone(), file.inode)).collect()
        };
        if files.is_empty() {
            return Ok(());
        }
        let (name, inode) = self.random.pick(&files).clone();
        let may_tell = self.ledger.lock().mdt_loss_unnoticed;
        if let Some(file) = self.neighbour.lock().find(&name) {
            file.movers += 1;
            file.strewn = true;
        }
        let moved = self.give_layout(inode).await;
        if self.blackout.happened() {
            return Ok(());
        }
        if let Some(file) = self.neighbour.lock().find(&name) {
            file.movers -= 1;
        }
        match moved {
            Ok(_) => Ok(()),
            Err(FsError::Device { .. }) if may_tell => Ok(()),
            // Removed meanwhile.
            Err(FsError::NotFound | FsError::Stale) => Ok(()),
            Err(error) => Err(format!("migrate {name} of a neighbour: {error}")),
        }
    }

    /// Swaps the layouts of two of this client's files.
    pub async fn swap(&self, one: &str, other: &str) -> Verdict {
        if one == other {
            return Ok(());
        }
        self.close(one).await?;
        self.close(other).await?;
        let (first, second) = {
            let mut ledger = self.ledger.lock();
            (ledger.file(one).inode, ledger.file(other).inode)
        };
        let swapped = self.try_swap((one, first), (other, second)).await;
        self.note(format_args!("swap {one} and {other} -> {swapped:?}"));
        let mut ledger = self.ledger.lock();
        match swapped {
            Ok(()) => {
                ledger.swapping = None;
                ledger.swapped(one, other);
                Ok(())
            }
            Err(_) if self.blackout.happened() => Ok(()),
            // A neighbour moves one of them; or both have too much on the MDT for one batch of a
            // small journal.
            Err(FsError::Busy | FsError::TooBig) => {
                ledger.swapping = None;
                Ok(())
            }
            Err(error) => Err(format!("swap {one} and {other}: {error}")),
        }
    }

    async fn try_swap(&self, (one, first): (&str, InodeNumber), (other, second): (&str, InodeNumber)) -> FsResult<()> {
        let root = Credentials::root();
        let first_version = self.file_system.data_version(&root, first, None).await?;
        let second_version = self.file_system.data_version(&root, second, None).await?;
        {
            let mut ledger = self.ledger.lock();
            ledger.swapping = Some((one.to_owned(), other.to_owned()));
            for name in [one, other] {
                ledger.file(name).strewn = true;
            }
        }
        self.file_system.swap_layouts(&root, (first, first_version, false), (second, Some(second_version))).await
    }
}
