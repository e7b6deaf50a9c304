//! The replies of changes, so that a repetition has one effect also across a restart of the server:
//! a client that changed an object without receiving the reply, and asks again after others have
//! changed it, gets the reply that was lost.
//!
//! The reply is put in the batch of the change ([`Origin::keep`]), in the last one if there are
//! several: it exists if, and only if, the whole change exists, whether the process was killed or
//! the host lost power. A request that changes nothing, or failed, leaves no reply: its repetition
//! is its first effect. A restarted server makes everything it finds durable before it serves (see
//! `directory`), so a repetition of a synchronous write may be answered at once. Bytes that were
//! written in place are not in the batch: if they were lost but the batch was not, the reply is
//! removed before the blocks are reset ([`whose_blocks`]), and the repetition writes them again. A
//! later write that overwrote some of them and was synced has flushed all of them, so the
//! repetition undoes nothing that was promised.
//!
//! The value is that of [`rpc::stored_reply`], with a [`StoredReply`].
//!
//! Replies of a client are deleted when it ends its session or starts another one, and when an MDT
//! has it refused. A session whose lease has expired, or that comes from an earlier start of the
//! server, may be continued: its replies are deleted after [`ABSENT_MAX`]. A client in this process
//! ends with it, so nothing is kept for it.
//!
//! Bounded by slots times clients, below 100 bytes each. Downside: each change takes as many bytes
//! in the journal; and if a change has several batches (an overwrite of more than a megabyte, a
//! large removal), those that were applied are applied again.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use kv::{Batch, Loading, Store};
use parking_lot::Mutex;
use rpc::{
    Call, SessionEvent,
    message::{OstReply, ost::Changed},
    stored_reply,
};
use rt::{Clock, Instant};
use types::{ClientId, ObjectId, Slot, Xid};

use crate::tables::REPLIES;

/// How long the replies of a client are kept that nothing was heard of. Clients give requests up
/// after their `timeout`, 100 s unless set otherwise, and an MDT that has not learned of one for
/// its lease has it refused here.
const ABSENT_MAX: Duration = Duration::from_secs(3600);

/// A reply, and where its change has bytes in place: object, first block and the one after the
/// last, or nothing.
pub type StoredReply = (OstReply, Option<(ObjectId, u64, u64)>);

/// The request that a change is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    client: ClientId,
    slot: Slot,
    xid: Xid,
}

impl Origin {
    /// The request's reply joins the batch of its change, which wrote these blocks in place.
    pub(crate) fn keep(self, changed: Changed, in_place: Option<(ObjectId, Range<u64>)>, batch: &mut Batch) {
        let in_place = in_place.map(|(object, blocks)| (object, blocks.start, blocks.end));
        assert!(in_place.is_none_or(|(_, start, end)| start < end), "a write in place concerns a block at least");
        let reply: StoredReply = (OstReply::Changed(changed), in_place);
        let value = stored_reply::encode(self.xid, &reply).expect("a few numbers fit any message");
        batch.put(REPLIES, Bytes::copy_from_slice(&stored_reply::key(self.client, self.slot)), value);
    }
}

/// Keys of the replies of changes that wrote any of these blocks in place.
pub(crate) fn whose_blocks(kv: &Store, missing: &[(ObjectId, BTreeSet<u64>)]) -> Result<Vec<Bytes>, kv::Error> {
    let mut keys = Vec::new();
    kv.scan(REPLIES, &[], None, &mut |key, value| {
        let reply: Option<(_, StoredReply)> = stored_reply::decode(value).ok();
        if let Some((_, (_, Some((object, start, end))))) = reply
            && start < end
            && missing.iter().any(|(of, blocks)| *of == object && blocks.range(start..end).next().is_some())
        {
            keys.push(Bytes::copy_from_slice(key));
        }
        true
    })?;
    Ok(keys)
}

#[derive(Default)]
struct State {
    /// Clients that live in this process.
    in_process: BTreeSet<ClientId>,
    /// Clients that have replies but no session, and since when.
    absent: BTreeMap<ClientId, Instant>,
}

/// See the module documentation.
pub(crate) struct Replies {
    kv: Arc<Store>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Replies {
    /// Takes over what a former start has kept.
    pub fn load(kv: Arc<Store>, clock: Arc<dyn Clock>) -> Result<Self, kv::Error> {
        let (now, mut absent) = (clock.now(), BTreeMap::new());
        kv.scan(REPLIES, &[], None, &mut |key, _| {
            absent.extend(stored_reply::parse_key(key).ok().map(|(client, _)| (client, now)));
            true
        })?;
        Ok(Self { kv, clock, state: Mutex::new(State { absent, ..State::default() }) })
    }

    /// The origin of the change that a call requests; `None` if its reply cannot be requested
    /// again.
    pub fn origin(&self, call: &Call) -> Option<Origin> {
        let in_process = self.state.lock().in_process.contains(&call.client);
        (!in_process).then_some(Origin { client: call.client, slot: call.slot, xid: call.xid })
    }

    /// The last reply kept for a slot; `None` also if it is damaged.
    pub fn find(&self, client: ClientId, slot: Slot) -> Option<(Xid, OstReply)> {
        let value = self.kv.get(REPLIES, &stored_reply::key(client, slot)).ok()??;
        let stored: Result<(_, StoredReply), _> = stored_reply::decode(&value);
        let (xid, (reply, _)) =
            stored.inspect_err(|error| tracing::error!(%client, ?slot, %error, "a stored reply is damaged")).ok()?;
        Some((xid, reply))
    }

    /// A session begins or ends.
    pub async fn session_event(&self, event: SessionEvent) -> Result<(), kv::Error> {
        let over = self.note(event);
        for client in over {
            self.forget(client).await?;
        }
        Ok(())
    }

    /// Takes over what an event says; returns the clients whose replies cannot be asked for any
    /// more.
    fn note(&self, event: SessionEvent) -> BTreeSet<ClientId> {
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        debug_assert!(
            state.absent.keys().all(|client| !state.in_process.contains(client)),
            "only clients elsewhere are absent"
        );
        let mut over: BTreeSet<ClientId> =
            state.absent.extract_if(.., |_, since| now.since(*since) > ABSENT_MAX).map(|(client, _)| client).collect();
        match event {
            SessionEvent::Opened { client, resumed, in_process, .. } => {
                state.absent.remove(&client);
                if in_process {
                    state.in_process.insert(client);
                } else {
                    state.in_process.remove(&client);
                }
                if !resumed {
                    over.insert(client);
                }
            }
            SessionEvent::Evicted(client) => {
                if !state.in_process.remove(&client) {
                    state.absent.insert(client, now);
                }
            }
            SessionEvent::Closed(client) => {
                state.in_process.remove(&client);
                over.insert(client);
            }
        }
        over
    }

    /// The removal of a client's replies.
    fn removal(&self, client: ClientId, loading: &Loading) -> Result<Batch, kv::Error> {
        let mut batch = Batch::default();
        let from = stored_reply::key(client, Slot(0));
        self.kv.reads(Some(loading)).scan(REPLIES, &from, None, &mut |key, _| {
            let is_of_client = stored_reply::parse_key(key).is_ok_and(|(of, _)| of == client);
            if is_of_client {
                batch.delete(REPLIES, Bytes::copy_from_slice(key));
            }
            is_of_client
        })?;
        Ok(batch)
    }

    /// Removes a client's replies. Durable, lest a power loss brings them back for a session that
    /// counts again.
    pub async fn forget(&self, client: ClientId) -> Result<(), kv::Error> {
        let mut loading = Loading::default();
        let batch = loop {
            match self.removal(client, &loading) {
                Err(kv::Error::Missed) => self.kv.load_missed(&mut loading).await?,
                batch => break batch?,
            }
        };
        if batch.is_empty() {
            return Ok(());
        }
        loop {
            match self.kv.apply_reserved(batch.clone()) {
                Ok(lsn) => return self.kv.durable(lsn).await,
                Err(kv::Error::Overloaded) => self.kv.ready().await?,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Owner;

    use rpc::{
        Handler, Role,
        checksum::checksums,
        message::{OstRequest, Request, ost::Write},
    };

    use super::*;
    use crate::directory::test_store::{OBJECT, TestStore, quiet};

    const CLIENT: ClientId = ClientId(7);

    async fn write(test: &TestStore, client: ClientId) {
        let bulk = Bytes::from_static(b"data");
        let write = Write {
            object: OBJECT,
            offset: 0,
            checksums: checksums(0, &bulk),
            sync: false,
            layout_generation: 0,
            owner: Owner::default(),
        };
        let request = Request::Ost(OstRequest::Write(write));
        let call = Call::plain(client, Slot(5), Xid(9), request, bulk);
        test.ost.clone().handle(call).await.reply.unwrap();
    }

    fn is_kept(test: &TestStore, client: ClientId) -> bool {
        test.ost.persistent_reply(client, Slot(5)).is_some_and(|(xid, _)| xid == Xid(9))
    }

    fn opened(client: ClientId, in_process: bool) -> SessionEvent {
        SessionEvent::Opened { client, resumed: true, in_process, role: Role::Client }
    }

    #[test]
    fn a_reply_is_small_beside_its_change() {
        let mtime = types::Timestamp { seconds: 1 << 33, nanoseconds: 999_999_999 };
        let attributes =
            rpc::message::ost::ObjectAttributes { size: 1 << 40, blocks: 1 << 31, mtime, changes: 1 << 30 };
        let mut batch = Batch::default();
        let origin = Origin { client: CLIENT, slot: Slot(5), xid: Xid(9) };
        let in_place = Some((OBJECT, 1 << 30..1 << 31));
        origin.keep(Changed { before: attributes, after: attributes }, in_place, &mut batch);
        assert!(batch.operations.iter().map(kv::Operation::bytes).sum::<usize>() < 100);
    }

    #[tokio::test]
    async fn nothing_is_kept_for_clients_of_this_process() {
        let test = TestStore::new(quiet()).await;
        for in_process in [true, false] {
            test.ost.clone().session_event(opened(CLIENT, in_process)).await;
            write(&test, CLIENT).await;
            assert_eq!(is_kept(&test, CLIENT), !in_process);
        }
    }

    #[tokio::test]
    async fn replies_of_a_client_that_nothing_is_heard_of_end_at_last() {
        let test = TestStore::new(quiet()).await;
        write(&test, CLIENT).await;
        let others_come = async |client| test.ost.clone().session_event(opened(ClientId(client), false)).await;
        others_come(1).await;
        test.ost.clone().session_event(SessionEvent::Evicted(CLIENT)).await;
        test.pass(ABSENT_MAX / 2);
        others_come(2).await;
        assert!(is_kept(&test, CLIENT));
        test.pass(ABSENT_MAX / 2);
        others_come(3).await;
        assert!(!is_kept(&test, CLIENT));
    }

    /// The time of a client that comes back starts again.
    #[tokio::test]
    async fn replies_of_a_client_that_is_here_stay() {
        let test = TestStore::new(quiet()).await;
        write(&test, CLIENT).await;
        for event in [SessionEvent::Evicted(CLIENT), opened(CLIENT, false)] {
            test.ost.clone().session_event(event).await;
        }
        test.pass(2 * ABSENT_MAX);
        test.ost.clone().session_event(opened(ClientId(1), false)).await;
        assert!(is_kept(&test, CLIENT));
    }
}
