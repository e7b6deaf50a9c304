//! The MDT's proxy for another MDT: has it prepare its parts of operations, delivers decisions, and
//! tells it of this start. One per MDT, each with its own connection and task, so that an MDT that
//! is down delays nothing else.
//!
//! Decisions are delivered at least once, in order, when they are durable here: records are removed
//! after the other MDT has answered, which it does when it has carried them out durably. It leaves
//! out what it has carried out before, by the sequence numbers.
//!
//! Life cycle: begun when the map has the MDT; once the decisions of former starts are delivered,
//! this start joins ([`Join`]); until the answer this MDT does not know what the other one may have
//! decided.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use rpc::{
    Answered, Endpoint, Question,
    message::{
        MdtReply, MdtRequest,
        mdt_peer::{Above, Ancestry, Decisions, Join, Joined, OperationId, Part, Prepare},
    },
    unexpected,
};
use rt::{Instant, clock};
use types::{
    FsError, FsResult, MdtIndex,
    limits::{BODY_BYTES_MAX, DECISIONS_PER_MESSAGE_MAX},
};

use super::{Mdt, proxy_connection::ProxyConnection};
use crate::{
    ops,
    peers::PreparedPart,
    tables::{COUNTERS, DECISIONS, counter, decision},
};

/// Pause after something that failed.
const RETRY: Duration = Duration::from_secs(1);
/// The same if the other MDT has only begun to start.
const MOMENT: Duration = Duration::from_millis(20);
/// Bytes of decisions in one message after which no further one follows: what they change, mostly
/// in one batch, should keep nobody waiting.
const DECISIONS_BYTES: usize = 16 << 10;

const _: () = assert!(DECISIONS_BYTES + kv::VALUE_BYTES_MAX < BODY_BYTES_MAX, "the last decision fits the message");

/// See the module documentation.
pub(crate) struct MdtProxy {
    mdt: MdtIndex,
    /// When it began.
    begun: Instant,
    pub(super) connection: ProxyConnection,
}

/// What the proxy has done since this start.
struct State {
    /// The last decision before this start.
    of_former_starts: u64,
    joining: Joining,
}

enum Joining {
    No,
    /// The other MDT has answered; decisions of it may be on their way.
    Answered(Joined),
    Done,
}

/// What the next request says.
struct Parcel {
    records: Vec<Vec<u8>>,
    places: RangeInclusive<u64>,
}

/// Whether an error says only that one of the two MDTs is not there, or waits itself.
fn is_absence(error: &FsError) -> bool {
    matches!(error, FsError::Unreachable { .. } | FsError::Evicted | FsError::AwaitsMdt(_) | FsError::NoDevice)
}

impl MdtProxy {
    /// Begins to work.
    pub fn start(mdt: &Arc<Mdt>, peer: MdtIndex, endpoint: Endpoint, active: bool) -> Arc<Self> {
        let wakeup = mdt.namespace().peer_wakeup(peer);
        let connection = ProxyConnection::new(mdt.import_of(peer, endpoint), active, wakeup);
        let proxy = Arc::new(MdtProxy { mdt: peer, begun: mdt.seams.clock.now(), connection });
        mdt.spawn("mdt_decisions", proxy.clone().run(mdt.clone()));
        mdt.spawn("mdt_peer_space", proxy.clone().watch_space(mdt.clone()));
        proxy
    }

    /// The other MDT.
    pub(super) fn peer(&self) -> MdtIndex {
        self.mdt
    }

    async fn run(self: Arc<Self>, mdt: Arc<Mdt>) {
        let (mut state, mut warned) = (None, None);
        while !self.connection.ended() {
            let progress = mdt.namespace().volatile.peers.progress();
            match self.connection.unless_ended(self.step(&mdt, &mut state)).await {
                None => {}
                Some(Ok(true)) => warned = None,
                Some(Ok(false)) => {
                    let awaits_decisions = matches!(&state, Some(State { joining: Joining::Answered(_), .. }));
                    let reason = async {
                        tokio::select! {
                            biased;
                            () = self.connection.wakeup.notified() => {}
                            () = progress, if awaits_decisions => {}
                        }
                    };
                    self.connection.unless_ended(reason).await;
                }
                Some(Err(error)) => {
                    let pause = if matches!(error, FsError::AwaitsMdt(_)) { MOMENT } else { RETRY };
                    if is_absence(&error) || warned.as_ref() == Some(&error) {
                        tracing::debug!(target = %mdt.name(), peer = %self.mdt, %error, "cannot tell another MDT; trying again later");
                    } else {
                        tracing::warn!(target = %mdt.name(), peer = %self.mdt, %error, "another MDT does not take what it is told; all that this one decides for it waits, trying again");
                        warned = Some(error);
                    }
                    self.connection.unless_ended(clock::sleep(&*mdt.seams.clock, pause)).await;
                }
            }
        }
    }

    /// At most one request; false if there is nothing to do. Decisions of this start do not wait
    /// for the other MDT to have joined, which may wait for them itself.
    async fn step(&self, mdt: &Mdt, state: &mut Option<State>) -> FsResult<bool> {
        if !self.connection.is_active() {
            return Ok(false);
        }
        let state = match state {
            Some(state) => state,
            None => state.insert(State { of_former_starts: self.last_decision(mdt).await?, joining: Joining::No }),
        };
        if let Joining::Answered(answer) = &state.joining
            && mdt.transact(mdt.principal.client(), |txn| ops::peers::joined(txn, self.mdt, answer)).await?
        {
            tracing::info!(target = %mdt.name(), peer = %self.mdt, "joined another MDT");
            state.joining = Joining::Done;
        }
        let parcel = self.next_parcel(mdt).await?;
        let is_of_former_start = parcel.as_ref().is_some_and(|parcel| *parcel.places.start() <= state.of_former_starts);
        if matches!(state.joining, Joining::No) && !is_of_former_start {
            state.joining = Joining::Answered(self.join(mdt).await?);
            return Ok(true);
        }
        let Some(parcel) = parcel else { return Ok(false) };
        self.deliver(mdt, parcel).await?;
        Ok(true)
    }

    /// Sequence number of the last decision for this MDT; 0: there is none to deliver.
    async fn last_decision(&self, mdt: &Mdt) -> FsResult<u64> {
        mdt.look(mdt.principal.client(), |txn| ops::peers::last_decision(txn, self.mdt)).await
    }

    /// The first decisions for this MDT that fit one request.
    async fn next_parcel(&self, mdt: &Mdt) -> FsResult<Option<Parcel>> {
        let (mut records, mut places) = (Vec::new(), Vec::new());
        mdt.look(mdt.principal.client(), |txn| {
            // Of an attempt that was given up.
            records.clear();
            places.clear();
            let mut bytes = 0;
            txn.visit_decisions(self.mdt, &mut |sequence, value| {
                // Only damage makes a gap.
                if places.last().is_some_and(|last| sequence.checked_sub(1) != Some(*last)) {
                    return Ok(false);
                }
                bytes += value.len();
                records.push(value.to_vec());
                places.push(sequence);
                Ok(records.len() < DECISIONS_PER_MESSAGE_MAX && bytes < DECISIONS_BYTES)
            })
        })
        .await?;
        Ok(match (places.first(), places.last()) {
            (Some(first), Some(last)) => Some(Parcel { records, places: *first..=*last }),
            _ => None,
        })
    }

    async fn deliver(&self, mdt: &Mdt, Parcel { records, places }: Parcel) -> FsResult<()> {
        let (first, last) = places.clone().into_inner();
        // The other MDT does not forget with us.
        mdt.durable().await?;
        let decisions = Decisions { source: mdt.options.index, first, records };
        match self.call(MdtRequest::Decisions(decisions)).await? {
            MdtReply::Done => {}
            reply => return Err(unexpected(reply)),
        }
        mdt.transact(mdt.principal.client(), |txn| {
            txn.release_space();
            places.clone().for_each(|sequence| txn.delete(DECISIONS, decision::key(self.mdt, sequence)));
            txn.put(COUNTERS, counter::decided_key(self.mdt), counter::encode_number(last));
            Ok(())
        })
        .await
    }

    /// Tells of this start. Nothing of the former ones is on its way any more.
    async fn join(&self, mdt: &Mdt) -> FsResult<Joined> {
        // What this start has found must not be lost after others have answered it.
        mdt.durable().await?;
        let (source, start, promised) = {
            let namespace = mdt.namespace();
            let peers = &namespace.volatile.peers;
            (mdt.options.index, peers.start(), peers.promised_to(self.mdt).collect())
        };
        match self.call(MdtRequest::Join(Join { source, start, promised })).await? {
            MdtReply::Joined(answer) => Ok(answer),
            reply => Err(unexpected(reply)),
        }
    }

    /// Waits until requests to the MDT can go out. `NoDeviceOrAddress`: it is not in use.
    pub async fn ready(&self) -> FsResult<()> {
        match self.connection.is_active() {
            true => self.connection.import.connected().await,
            false => Err(FsError::NoDeviceOrAddress),
        }
    }

    /// What a client is told while requests to the MDT cannot go out: to ask again, until it has
    /// been silent for too long ([`Parameters::mdt_silence`]).
    ///
    /// [`Parameters::mdt_silence`]: crate::Parameters::mdt_silence
    pub fn absence(&self, mdt: &Mdt) -> FsError {
        let import = &self.connection.import;
        let silence = mdt.seams.clock.now().since(import.last_heard().max(self.begun));
        let silence_max = mdt.parameters().mdt_silence;
        if silence_max.is_zero() || silence < silence_max {
            return FsError::AwaitsMdt(self.mdt);
        }
        let seconds = u32::try_from(silence.as_secs()).unwrap_or(u32::MAX);
        let cause = import.cause().map(|cause| cause.to_string());
        FsError::Unreachable { target: import.target().to_owned(), seconds, cause }
    }

    /// Has the MDT prepare a part. Completes when it has answered, or never will: from then on
    /// nothing is prepared because of this.
    pub async fn prepare(&self, mdt: &Mdt, operation: OperationId, part: Part) -> FsResult<PreparedPart> {
        let request = MdtRequest::Prepare(Prepare { operation, part });
        loop {
            let mut late = None;
            let outcome = self.connection.import.call(Question::with_late_outcome(request.clone(), &mut late)).await;
            if let Some(late) = late {
                // It may be executed yet.
                late.known().await;
            }
            let is_wanted = || !self.connection.ended() && mdt.namespace().volatile.peers.is_running(operation);
            match outcome {
                // The MDT has started again, or ended the session with all its requests.
                Err(FsError::Evicted) if is_wanted() => {}
                Ok(Answered { reply: MdtReply::Prepared(prepared), .. }) => {
                    return Ok(PreparedPart::Prepared(prepared));
                }
                Ok(Answered { reply: MdtReply::Given(given), .. }) => {
                    return Ok(PreparedPart::Given(Arc::from(given)));
                }
                Ok(Answered { reply, .. }) => return Err(unexpected(reply)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks what the MDT knows of a way to the root.
    pub async fn above(&self, way: Above) -> FsResult<Ancestry> {
        match self.call(MdtRequest::Above(way)).await? {
            MdtReply::Ancestry(found) => Ok(found),
            reply => Err(unexpected(reply)),
        }
    }

    /// Tells that an operation will not be decided, as soon as the MDT can be told.
    pub async fn abort(&self, mdt: &Mdt, operation: OperationId) {
        loop {
            let outcome = self.connection.unless_ended(self.call(MdtRequest::Abort(operation))).await;
            let Some(Err(error)) = outcome else { return };
            tracing::debug!(target = %mdt.name(), peer = %self.mdt, %error, "cannot end an operation; trying again later");
            if self.connection.unless_ended(clock::sleep(&*mdt.seams.clock, RETRY)).await.is_none() {
                return;
            }
        }
    }

    /// A request that may be repeated: in another session too, if the MDT has started again.
    pub(super) async fn call(&self, request: MdtRequest) -> FsResult<MdtReply> {
        loop {
            match self.connection.import.call(request.clone()).await {
                Err(FsError::Evicted) if !self.connection.ended() => {}
                answered => return Ok(answered?.reply),
            }
        }
    }
}
