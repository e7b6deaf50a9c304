//! Closes that came along with a request ([`RequestExtension::closes`]): they are executed before
//! it, each by itself, and waited for by nobody.
//!
//! They wait for tables to be loaded and for room in the store, not for locks, clients or other
//! MDTs: a close that has to wait for one of these is left to its client, which repeats it by a
//! request of its own. A close that is repeated does no harm, so nothing is stored for a
//! repetition.
//!
//! [`RequestExtension::closes`]: rpc::message::RequestExtension::closes

use kv::Lsn;
use rpc::{
    Call,
    message::{
        MdtReply,
        extension::ClosedBeside,
        mdt::{Close, Closed},
    },
};
use rt::CpuKind;
use types::{ClientId, FsResult};

use super::Mdt;
use crate::{
    namespace::{Attempt, Attempts, Namespace},
    ops,
    statistics::OperationCounter,
};

/// What became of them.
#[derive(Default)]
pub(super) struct LateCloses {
    /// What the client is told, in order.
    pub(super) closed: Vec<Option<ClosedBeside>>,
    /// The last change that they made.
    pub(super) lsn: Option<Lsn>,
}

impl Mdt {
    /// Executes the closes that came with a request.
    pub(super) async fn close_beside(&self, call: &Call) -> LateCloses {
        let mut done = LateCloses::default();
        for close in &call.extension.closes {
            self.seams.cpu.spend(CpuKind::MetadataChange, 0).await;
            self.statistics.count(OperationCounter::Close);
            let outcome = self.close_one(call.client, close).await.unwrap_or_else(|error| {
                tracing::debug!(client = %call.client, inode = %close.inode, %error, "cannot close");
                None
            });
            done.closed.push(outcome.map(|(closed, lsn)| {
                done.lsn = Some(lsn);
                closed
            }));
        }
        done
    }

    /// `None`: it would have to wait.
    async fn close_one(&self, client: ClientId, close: &Close) -> FsResult<Option<(ClosedBeside, Lsn)>> {
        let attempt = |namespace: &mut Namespace, attempts: &mut Attempts| {
            let context = self.context(client);
            match namespace.attempt(&context, Some(attempts), |txn| ops::close::run(txn, close)) {
                Attempt::GivenUp => Attempt::GivenUp,
                Attempt::Blocked(_) => Attempt::Done(Ok(None)),
                Attempt::Done(Err(error)) => Attempt::Done(Err(error)),
                Attempt::Done(Ok(reply)) => {
                    let mut change = namespace.take_change();
                    let shown = namespace.shown_beside(&context, &mut change, Some(&reply));
                    let size_wanted = match reply {
                        MdtReply::Closed(Closed { size_wanted }) => size_wanted.map(|(epoch, _)| epoch),
                        _ => None,
                    };
                    let version = change.inodes.into_iter().find(|version| version.inode == close.inode);
                    let entry = shown.into_iter().find(|entry| entry.attributes.inode == close.inode);
                    let closed = ClosedBeside { size_wanted, version, entry };
                    Attempt::Done(Ok(Some((closed, namespace.last()))))
                }
            }
        };
        self.load_and_run(None, Some(0), attempt).await?
    }
}
