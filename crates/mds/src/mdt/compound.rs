//! Compounds: data are verified before the namespace is locked and after it is released, as those
//! of other requests.

use bytes::{Bytes, BytesMut};
use rpc::{
    Call,
    message::{Compound, CompoundReply, MdtReply, Step, StepReply},
};
use types::{FsError, FsResult, MdtIndex, ProtocolError, limits::COMPOUND_REPLY_BYTES_MAX};

use super::{Mdt, handler::Told, waiter::Waiter};
use crate::{
    data::{NewData, StoredData},
    namespace::{Attempts, Namespace},
    ops::{
        compound::{self, Executed},
        row::{MdtRow, counter_of_step},
    },
};

/// The data of the writes of a compound, as its bulk data have them.
fn new_data(compound: &Compound, bulk: &Bytes) -> FsResult<Vec<NewData>> {
    let (found, expected) = (bulk.len() as u64, compound.bytes_written());
    if found != expected {
        return Err(ProtocolError::DataBytes { found, expected }.into());
    }
    let mut bulk = bulk.clone();
    let mut new = Vec::new();
    for step in &compound.steps {
        if let Step::Write { offset, bytes, checksums, .. } = step {
            new.push(NewData::verified(*offset, &bulk.split_to(*bytes as usize), checksums)?);
        }
    }
    Ok(new)
}

/// Completes the replies of reads. Damage ends the reply there, although later steps were executed.
fn completed(mut reply: CompoundReply, found: &[(usize, StoredData)], mdt: MdtIndex) -> (CompoundReply, Bytes) {
    let mut bulk = BytesMut::new();
    for (step, stored) in found {
        match stored.verified(mdt) {
            Ok((done, data)) => {
                reply.replies[*step] = StepReply::Read(done);
                bulk.extend_from_slice(&data);
            }
            Err(error) => {
                reply.replies.truncate(*step);
                reply.error = Some(error);
                break;
            }
        }
    }
    (reply, bulk.freeze())
}

impl Mdt {
    /// Most bytes that the batch of a compound has besides those of one creation: its data, its
    /// stored reply, and the layouts and targets of links of what it creates.
    fn bytes_limit(&self, compound: &Compound) -> u64 {
        let creates = |step: &&Step| matches!(step, Step::Create { .. });
        let creations = compound.steps.iter().filter(creates).count() as u64;
        let records = COMPOUND_REPLY_BYTES_MAX as u64 + creations * kv::VALUE_BYTES_MAX as u64;
        // Few layouts are as heavy as that.
        let bytes_written = compound.bytes_written();
        (bytes_written + records).min(self.moved_bytes_limit()).max(bytes_written)
    }

    /// Executes a compound, with fresh news of the OSTs' space if a step fails for lack of it;
    /// `told`: what its client is told with the reply.
    pub(super) async fn compound(
        &self,
        call: &Call,
        compound: &Compound,
        row: &MdtRow<'_>,
        told: &mut Told,
    ) -> FsResult<(MdtReply, Bytes)> {
        compound.check()?;
        let new = new_data(compound, &call.bulk)?;
        if let Some(reply) = self.first_answer(call, row).await? {
            return Ok((reply, Bytes::new()));
        }
        let mut refreshed = false;
        let (reply, found) = loop {
            let mut lacks_osts = false;
            let transact = |namespace: &mut Namespace, attempts: &mut Attempts| {
                let context = self.context_of(call);
                let mut lengthened = None;
                let outcome = namespace.attempt(&context, Some(attempts), |txn| {
                    let Executed { reply, found } = compound::run(txn, compound, &new)?;
                    lacks_osts = reply.error == Some(FsError::NoSpace) && txn.lacks_osts() && !refreshed;
                    if lacks_osts {
                        return Err(FsError::NoSpace);
                    }
                    if row.stored {
                        txn.keep_reply(call, &MdtReply::Compound(reply.clone()))?;
                    }
                    lengthened = txn.lengthened();
                    Ok((reply, found))
                });
                outcome.map(|outcome| {
                    let (lsn, mut change) = (namespace.last(), namespace.take_change());
                    // The steps show inodes as they were in between.
                    let changed = namespace.shown_beside(&context, &mut change, None);
                    let told = Told { change, changed, ..Told::default() };
                    (outcome, lsn, told, lengthened.map(|before| before.unwrap_or(lsn)))
                })
            };
            let (outcome, lsn, news, lengthened) = self
                .load_and_run(Some(Waiter::of(call, row.service)), Some(self.bytes_limit(compound)), transact)
                .await?;
            self.written(lsn).await?;
            if lacks_osts {
                refreshed = true;
                self.refresh_all_space(row.service).await;
                continue;
            }
            let executed = outcome?;
            *told = news;
            if let Some(lsn) = lengthened {
                self.lengthened_for_good(lsn).await?;
            }
            break executed;
        };
        let executed = compound.steps.iter().take(reply.replies.len());
        executed.for_each(|step| self.statistics.count(counter_of_step(step)));
        let (reply, bulk) = completed(reply, &found, self.options.index);
        Ok((MdtReply::Compound(reply), bulk))
    }
}
