//! Requests that only read, beside each other: none waits for the namespace longer than a change
//! has it.
//!
//! A request reads, and is granted the locks that it wants, while it keeps changes out. So the
//! reply shows no half of a change, and with a lock goes what is current when it is granted: a
//! change that comes later finds the lock and asks for it. What a request turns out to change, such
//! as an access time, it changes in a second run, alone.

use kv::{Loading, Lsn, Supply};
use rpc::{
    Call,
    message::{MdtReply, MdtRequest, lock::Granted},
};
use types::FsResult;

use super::{
    Mdt,
    handler::{Told, without_data},
};
use crate::{
    error::store_error,
    invitations::Invitations,
    lock_callbacks::Caller,
    namespace::{Attempt, Namespace},
    ops,
    transaction::Context,
};

/// The answer with the locks that go along, and clients that are to be asked for theirs.
type Answer = (FsResult<(MdtReply, Vec<Granted>)>, Vec<Caller>);

/// A look at the namespace.
struct Look {
    found: Result<Answer, Unanswered>,
    /// The last change before it.
    last: Lsn,
    loading: Loading,
}

/// Why a look at the namespace brought no answer.
enum Unanswered {
    /// Something has to be loaded first.
    Missed,
    /// It is to be executed alone.
    Alone,
}

impl Mdt {
    /// Answers a request that only reads, if it can be executed beside others.
    pub(super) async fn read_beside(
        &self,
        call: &Call,
        request: &MdtRequest,
        told: &mut Told,
    ) -> FsResult<Option<MdtReply>> {
        let mut look = self.look_beside(call, request, Loading::default());
        loop {
            match look.found {
                Ok((outcome, callers)) => {
                    self.ask_back(callers);
                    if !self.store.is_shown(look.last) {
                        let shown = Box::pin(self.store.shown(look.last)).await;
                        shown.map_err(|error| store_error(&self.target, &error))?;
                    }
                    let (reply, granted) = outcome?;
                    told.granted = granted;
                    return Ok(Some(reply));
                }
                Err(Unanswered::Alone) => return Ok(None),
                // In a box: most need not wait, and the future is moved when it is made.
                Err(Unanswered::Missed) => look = Box::pin(self.look_again(call, request, look.loading)).await?,
            }
        }
    }

    async fn look_again(&self, call: &Call, request: &MdtRequest, mut loading: Loading) -> FsResult<Look> {
        self.store.load_missed(&mut loading).await.map_err(|error| store_error(&self.target, &error))?;
        Ok(self.look_beside(call, request, loading))
    }

    fn look_beside(&self, call: &Call, request: &MdtRequest, loading: Loading) -> Look {
        let namespace = self.reading();
        // This ends what is kept of the request that had its slot before the restart.
        let is_kept = namespace.volatile.recovery.replies.contains_key(&(call.client, call.slot));
        let found = match is_kept {
            true => Err(Unanswered::Alone),
            false => self.look_once(call, request, &namespace, &loading),
        };
        Look { found, last: namespace.last(), loading }
    }

    fn look_once(
        &self,
        call: &Call,
        request: &MdtRequest,
        namespace: &Namespace,
        loading: &Loading,
    ) -> Result<Answer, Unanswered> {
        let wanted = self.wanted(call);
        let context = self.context_beside(call);
        let outcome = namespace.look(&context, loading, |txn| ops::run(txn, request));
        let mut reply = match outcome {
            Some(Attempt::Done(Ok(reply))) => reply,
            Some(Attempt::Done(Err(error))) => return Ok((Err(error), Vec::new())),
            Some(Attempt::GivenUp) => return Err(Unanswered::Missed),
            Some(Attempt::Blocked(_)) | None => return Err(Unanswered::Alone),
        };
        // It is noted which client may report.
        if Invitations::are_in(&reply) {
            return Err(Unanswered::Alone);
        }
        let (mut granted, mut callers) = (Vec::new(), Vec::new());
        if let Some(wanted) = wanted {
            granted = namespace.grant(call.client, without_data(wanted), request, &mut reply);
            callers = namespace.volatile.cache.lock().take_asked();
        }
        Ok((Ok((reply, granted)), callers))
    }

    /// As [`Mdt::context`], without what only changes need to know.
    fn context_beside(&self, call: &Call) -> Context {
        Context {
            client: call.client,
            features: call.features,
            now: self.seams.clock.wall(),
            now_ns: self.seams.clock.now().0,
            parameters: self.parameters(),
            era: self.era.count(),
            moved_bytes_max: 0,
            supply: Supply::default(),
        }
    }
}
