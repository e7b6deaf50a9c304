//! Checks data files after a power loss: everything that must be there is there, and nothing that
//! cannot be.

use std::time::Duration;

use bytes::Bytes;
use layout::Location;
use rpc::message::mdt::{OpenFlags, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber, limits::BLOCK_BYTES};

use super::{
    Verdict,
    alarm::Lost,
    block::{BLOCK, version_of},
    data::Worker,
    ledger::{BLOCKS, FileLedger, Removed},
    loss::Loss,
};
use crate::server::Role;

/// What may be in a file's place.
#[derive(Clone, Copy)]
struct Expected {
    inode: InodeNumber,
    may_be_there: bool,
    may_be_gone: bool,
}

/// Whether an object's holder lost power.
fn is_hit(loss: &Loss, holder: Location) -> bool {
    match holder {
        Location::Ost(ost) => loss.roles.contains(&Role::Oss(ost.0)),
        Location::Mdt => loss.hit_names(),
    }
}

impl Worker {
    /// Finds out whether a swap has happened that the power loss interrupted: then what the files
    /// hold shows it. It is durable or has not happened at all; so if one of the files is gone, it
    /// has not.
    async fn resolve_swap(&self, loss: &Loss, bound: Duration) -> Verdict {
        let Some((one, other)) = self.ledger.lock().swapping.take() else { return Ok(()) };
        let mut as_before = true;
        for name in [&one, &other] {
            match self.file_system.lookup(&Credentials::root(), InodeNumber::ROOT, name.as_bytes()).await {
                Ok(_) => {}
                Err(FsError::NotFound) => return Ok(()),
                Err(error) => return Err(format!("look-up of {name}: {error}")),
            }
            let inode = self.ledger.lock().file(name).inode;
            let data = self.read_whole(inode).await.map_err(|error| format!("{name}: read: {error}"))?;
            as_before &= self.ledger.lock().file(name).may_hold(&data, loss.at, bound);
        }
        if !as_before {
            self.ledger.lock().swapped(&one, &other);
        }
        self.note(format_args!("the swap of {one} and {other} has {}happened", if as_before { "not " } else { "" }));
        Ok(())
    }

    /// Looks at all files, and continues from what is there. `bound`: longest time that an
    /// acknowledged change is in danger.
    pub async fn judge(&self, loss: &Loss, bound: Duration) -> Verdict {
        self.resolve_swap(loss, bound).await?;
        let (files, removed) = {
            let mut ledger = self.ledger.lock();
            ledger.mdt_loss_unnoticed = !loss.clients && (ledger.mdt_loss_unnoticed || loss.hit_names());
            if loss.clients {
                ledger.files.values_mut().for_each(|file| drop(file.take_open()));
            }
            (std::mem::take(&mut ledger.files), std::mem::take(&mut ledger.removed))
        };
        let young = |acknowledged| loss.hit_names() && loss.at.since(acknowledged) <= bound;
        for (name, file) in files {
            let may_be_gone = !file.durable && young(file.created);
            let expected = Expected { inode: file.inode, may_be_there: true, may_be_gone };
            self.judge_file(&name, file, expected, loss, bound).await.map_err(|reason| format!("{name}: {reason}"))?;
        }
        for (name, Removed { file, acknowledged }) in removed {
            let may_be_there = acknowledged.is_none_or(young);
            let expected = Expected { inode: file.inode, may_be_there, may_be_gone: true };
            self.judge_file(&name, file, expected, loss, bound)
                .await
                .map_err(|reason| format!("{name}, which was removed: {reason}"))?;
        }
        Ok(())
    }

    async fn judge_file(
        &self,
        name: &str,
        mut file: FileLedger,
        expected: Expected,
        loss: &Loss,
        bound: Duration,
    ) -> Verdict {
        if !self.is_there(name, expected).await? {
            self.note(format_args!("{name} is gone"));
            if let Some(open) = file.open {
                // The file is gone permanently; so may be the open.
                drop(self.file_system.close(open, None).await);
            }
            return Ok(());
        }
        let data = self.read_whole(file.inode).await.map_err(|error| format!("read: {error}"))?;
        let info = self.file_system.layout_info(file.inode).await;
        let layout = info.map_err(|error| format!("layout: {error}"))?.layout.ok_or("has no layout")?;
        // A truncation changes objects of which it cuts off nothing, too.
        let any_hit = layout.objects().any(|(_, location)| is_hit(loss, location));
        let dirty = any_hit && file.is_dirty();
        let perhaps = loss.hit_names() || dirty || file.strewn && loss.hit_objects();
        let moving = std::mem::take(&mut file.movers) > 0 && (loss.hit_names() || loss.hit_objects());
        let mut lost = Lost { perhaps, ..Lost::default() };
        // Growth that the MDT lost, and no client that has the file open is left to claim: it reads
        // as holes.
        let claimed = file.open.is_some() && !loss.clients;
        let growth_lost = loss.hit_names() && !claimed && layout.as_plain().is_none();
        for number in 0..BLOCKS {
            let holder = layout.ranges(number * BLOCK_BYTES, BLOCK_BYTES).next().map(|range| range.location);
            let found = version_of(number, &data, 0);
            let here = holder.is_some_and(|holder| is_hit(loss, holder));
            let hit = here || moving || growth_lost && found == Some(0);
            let block = &mut file.blocks[number as usize];
            let possible = block.possible(hit, loss.at, bound);
            match found {
                Some(version) if possible.contains(&version) => {
                    let gone = block.is_lost(version, file.open_number);
                    match holder {
                        Some(Location::Ost(_)) => lost.at_ost |= gone,
                        Some(Location::Mdt) | None => lost.at_mdt |= gone,
                    }
                    // What was in progress may have come after the loss, as late as now.
                    block.adopt(version, hit.then_some(loss.at), self.simulation.now());
                }
                found => {
                    return Err(format!(
                        "block {number} on {holder:?} is version {found:?}, expected one of {possible:?}"
                    ));
                }
            }
        }
        if file.open.is_some() {
            file.alarm.lost(lost);
        } else {
            // The memory of closed files ends with the client.
            file.loss_untold = !loss.clients && (file.loss_untold || lost.certainly() || lost.perhaps);
        }
        self.note(format_args!("{name} is as it should be, {lost:?}"));
        self.ledger.lock().files.insert(name.to_owned(), file);
        Ok(())
    }

    async fn is_there(&self, name: &str, expected: Expected) -> Result<bool, String> {
        let found = self.file_system.lookup(&Credentials::root(), InodeNumber::ROOT, name.as_bytes()).await;
        match found {
            Ok(found) if found.inode != expected.inode => {
                Err(format!("is inode {} now, was {}", found.inode, expected.inode))
            }
            Ok(_) if expected.may_be_there => Ok(true),
            Ok(_) => Err("is there".to_owned()),
            Err(FsError::NotFound) if expected.may_be_gone => Ok(false),
            Err(error) => Err(format!("look-up: {error}")),
        }
    }

    async fn read_whole(&self, inode: InodeNumber) -> FsResult<Bytes> {
        let file = self.file_system.open(&Credentials::root(), inode, OpenFlags(open_flag::READ)).await?;
        let data = self.file_system.read(&file, 0, (BLOCKS as usize + 1) * BLOCK).await;
        self.file_system.close(file, None).await?;
        Ok(data?.into_bytes())
    }
}
