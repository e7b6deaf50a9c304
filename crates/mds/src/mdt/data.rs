//! Requests for data: checksums and copies, which take time, are made outside of the namespace's
//! lock; the data, the attributes of the object and the reply for a repetition are one batch.
//!
//! Downside: the bytes go through the journal and into the tables. They are written twice, and take
//! memory that the namespace needs. So only the beginnings of files belong here
//! (`lod.*.dom_stripesize`).

use bytes::Bytes;
use rpc::{
    Call, Handler,
    message::{MdtReply, OstReply, OstRequest},
};
use types::{FsResult, limits::BULK_BYTES_MAX, limits::STRIPE_BYTES_MIN};

use super::{Mdt, handler::Told, waiter::Waiter};
use crate::{
    data::NewData,
    error::store_error,
    namespace::{Attempts, Namespace},
    ops::data,
    transaction::Transaction,
};

/// Most bytes of a file on an MDT whose store has these segments: what one request can write is one
/// batch, and at most half a segment.
fn bytes_on_mdt_limit(segment_bytes: u64) -> u64 {
    (segment_bytes / 2).min(BULK_BYTES_MAX as u64) / STRIPE_BYTES_MIN * STRIPE_BYTES_MIN
}

/// Most bytes that one batch can move from file to file: with what the store is asked to have room
/// for besides them ([`Mdt::with_space`]) at most three quarters of a segment, and a batch for any
/// store.
fn moved_bytes_limit(segment_bytes: u64) -> u64 {
    (segment_bytes / 16 * 9).min(kv::config::BATCH_BYTES_MAX / 16 * 15)
}

impl Mdt {
    /// Most bytes of data that can be moved from file to file at once.
    pub(crate) fn moved_bytes_limit(&self) -> u64 {
        moved_bytes_limit(self.options.store.segment_bytes)
    }

    /// Most bytes of a file that this MDT can hold, whatever is asked for.
    pub fn bytes_on_mdt_limit(&self) -> u64 {
        bytes_on_mdt_limit(self.options.store.segment_bytes)
    }

    /// Executes a change of data.
    pub(crate) async fn change_data(&self, call: &Call, request: &OstRequest) -> FsResult<MdtReply> {
        let new = match request {
            OstRequest::Write(write) => Some(NewData::verified(write.offset, &call.bulk, &write.checksums)?),
            _ => None,
        };
        let execute = |txn: &mut Transaction<'_>| {
            let changed = match (request, &new) {
                (OstRequest::Write(write), Some(new)) => {
                    data::check_writer(txn, write.object)?;
                    data::write(txn, write.object, new)?
                }
                (OstRequest::Space(object, change, ..), _) => {
                    data::check_writer(txn, *object)?;
                    data::space(txn, *object, *change)?
                }
                _ => return Err(txn.misdirected("changes of data on an MDT")),
            };
            let reply = MdtReply::Data(OstReply::Changed(changed));
            txn.keep_reply(call, &reply)?;
            Ok(reply)
        };
        let outcome = match self.repeated(call).await {
            Ok(None) => {
                let bytes = call.bulk.len() as u64;
                let attempt = |namespace: &mut Namespace, attempts: &mut Attempts| {
                    let context = self.context(call.client);
                    namespace.attempt(&context, Some(attempts), execute)
                };
                self.load_and_run(Some(Waiter::of(call, self.service(&call.request))), Some(bytes), attempt)
                    .await
                    .and_then(|outcome| outcome)
            }
            Ok(Some(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        let lsn = self.reading().last();
        if request.row().durable {
            self.store.durable(lsn).await.map_err(|error| store_error(self.name(), &error))?;
        } else {
            self.written(lsn).await?;
        }
        outcome
    }

    /// Answers a question for data; `told`: what its client is told beside the reply.
    pub(super) async fn read_data(
        &self,
        call: &Call,
        request: &OstRequest,
        told: &mut Told,
    ) -> FsResult<(MdtReply, Bytes)> {
        let wanted = self.wanted(call);
        let look = |namespace: &mut Namespace, attempts: &mut Attempts| {
            let context = self.context(call.client);
            let outcome = namespace.attempt(&context, Some(attempts), |txn| data::find(txn, request));
            outcome.map(|outcome| {
                let granted = match (&outcome, wanted) {
                    (Ok(data::Found::Data(stored)), Some(wanted)) if stored.is_small_file() => {
                        namespace.grant_data(call.client, wanted, stored.object.inode)
                    }
                    _ => None,
                };
                (outcome, granted, namespace.last())
            })
        };
        let (found, granted, lsn) = self.load_and_run(None, None, look).await?;
        self.written(lsn).await?;
        told.granted.extend(granted);
        let (reply, bulk) = match found? {
            data::Found::Reply(reply) => (reply, Bytes::new()),
            data::Found::Data(stored) => {
                let (done, bulk) = stored.verified(self.options.index)?;
                (OstReply::Read(done), bulk)
            }
        };
        Ok((MdtReply::Data(reply), bulk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_the_largest_size_is_one_batch() {
        assert_eq!(bytes_on_mdt_limit(kv::Config::default().segment_bytes), 4 << 20);
        assert_eq!(bytes_on_mdt_limit(kv::Config::small().segment_bytes), 128 << 10);
        assert_eq!(bytes_on_mdt_limit(64 << 10), 0, "too small for any");
        // The largest file can move, and two of half the size.
        for segment_bytes in [kv::Config::default().segment_bytes, kv::Config::small().segment_bytes] {
            assert!(moved_bytes_limit(segment_bytes) > bytes_on_mdt_limit(segment_bytes) / 16 * 17);
        }
    }
}
