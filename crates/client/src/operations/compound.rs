//! Compounds that open a file: what the MDT leaves open belongs to this mount, whatever becomes of
//! the caller.

use std::sync::Arc;

use bytes::Bytes;
use rpc::{
    Answered, Question,
    message::{
        Compound, CompoundReply, MdtReply, MdtRequest, StepReply,
        mdt::{Created, OpenFlags, OpenId},
    },
};
use types::{FsError, FsResult, InodeNumber};

use crate::{
    FileSystem, Interruption, OpenFile,
    cancellation::finish::finish,
    targets::connection::{stale_if_evicted, unexpected},
};

/// How often a compound is sent whose data arrive damaged, in either direction.
pub(crate) const ATTEMPTS: usize = 4;

/// What came of a compound.
pub(crate) struct CompoundOutcome {
    /// The replies of its steps.
    pub reply: CompoundReply,
    /// Data that it read.
    pub data: Bytes,
    /// The file, if it is left open.
    pub left_open: Option<Arc<OpenFile>>,
}

/// Whether a step made a file.
fn makes(reply: &StepReply) -> bool {
    matches!(reply, StepReply::Created(Created { created: true, .. }))
}

impl FileSystem {
    /// Sends a compound with one open, `open`, which truncates nothing, to the MDT of the inode
    /// `at`; again while it is told to wait.
    pub(crate) async fn open_by_compound(
        self: &Arc<Self>,
        at: InodeNumber,
        compound: Compound,
        open: (OpenId, OpenFlags),
        data: Bytes,
    ) -> FsResult<CompoundOutcome> {
        let this = self.clone();
        finish(&self.seams.spawn, move |abandoned| async move {
            this.begin(at, &abandoned).await?;
            let interruption = Interruption::default().or_abandoned(abandoned);
            let before = this.before_open(at)?;
            let given_up = this.given_up(at)?;
            let mut late_outcome = None;
            let mut attempts = 0;
            let answered = loop {
                attempts += 1;
                let request = MdtRequest::Compound(compound.clone());
                let late_outcome = Some(&mut late_outcome);
                let question = Question { late_outcome, ..Question::with_bulk(request, data.clone()) };
                match this.ask_until_ready(at, question, &interruption).await {
                    Err(FsError::Transfer) if attempts < ATTEMPTS => {}
                    answered => break answered,
                }
            };
            let Answered { reply, bulk, .. } = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    if let Some(late_outcome) = late_outcome {
                        given_up.open(late_outcome, (at, open.0), false, None);
                    }
                    return Err(stale_if_evicted(error));
                }
            };
            let MdtReply::Compound(reply) = reply else { return Err(unexpected(reply)) };
            let left = reply.opens_left(&compound).next();
            let left_open = match left {
                Some((_, opened)) => {
                    let created = reply.replies.iter().any(makes);
                    Some(this.opened(open, opened, created, before, None).await?)
                }
                None => None,
            };
            Ok(CompoundOutcome { reply, data: bulk, left_open })
        })
        .await
    }
}
