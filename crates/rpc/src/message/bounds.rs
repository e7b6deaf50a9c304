//! How much one request may ask for: the limits that do not depend on the state of a target,
//! checked before its handler sees the request. Limits that depend on state (for example, how many
//! files a client has open) are checked by the handler.
//!
//! Every request is listed here, so that a new one has to declare the bounds of its lists, lengths
//! and sizes. Names, symbolic links and extended attributes are checked by the MDT: which error a
//! program gets for one that is too long depends on the other errors of the call.

use types::{
    Credentials, DataChanges, FsError, FsResult, Refusal, SetAttributes, Timestamp,
    limits::{
        ACCESSES_PER_MESSAGE_MAX, CLIENT_NAME_BYTES_MAX, CLOSES_PER_MESSAGE_MAX, DECISIONS_PER_MESSAGE_MAX,
        EXCLUSIVES_PER_CLIENT_MAX, FENCE_GENERATION_MAX, FENCE_OBJECTS_MAX, FILE_BLOCKS_MAX, FILE_BYTES_MAX,
        FILE_CHANGES_MAX, GIVEN_NAMES_MAX, GROUPS_MAX, JOB_NAME_BYTES_MAX, LOCKS_PER_MESSAGE_MAX, NODE_NAME_BYTES_MAX,
        OBJECTS_PER_REQUEST_MAX, OPENS_PER_MESSAGE_MAX, PREPARED_PER_MDT_MAX, RECLAIM_ENTRIES_MAX, SHARDS_MAX,
        TARGET_NAME_BYTES_MAX,
    },
};

use super::{
    Compound, LeaveFullOst, LeaveStep, MdtRequest, OstRequest, Request, RequestExtension, Step,
    mdt::{Reclaim, SizeUpdate},
    mdt_peer::{Decisions, Part},
    ost::CHECK_OBJECTS_MAX,
    session::Connect,
};

/// Nanoseconds of a second: those of a time are fewer.
const NANOSECONDS: u32 = 1_000_000_000;
/// Counting up from it never overflows.
const SEQUENCE_MAX: u64 = 1 << 62;
/// OSTs there can be.
const OSTS_MAX: usize = 1 << 16;

/// Fails if a request asks for more than any may.
pub fn check(request: &Request) -> FsResult<()> {
    match request {
        Request::Mdt(request) => check_mdt(request),
        Request::Ost(request) => check_ost(request),
        // The MGS bounds what it keeps (crate mgs, `cluster`), and all of that is text.
        Request::Mgs(_) => Ok(()),
    }
}

/// The same of what is said with it. This build has no locks on data, replays nothing, and sends
/// the sequence numbers of MDTs in the requests themselves: what refers to any of these is refused.
pub fn check_extension(extension: &RequestExtension) -> FsResult<()> {
    let RequestExtension { job, lock, cancels, replay, sequence, closes, .. } = extension;
    if cancels.len() > LOCKS_PER_MESSAGE_MAX || closes.len() > CLOSES_PER_MESSAGE_MAX || job.len() > JOB_NAME_BYTES_MAX
    {
        return Err(FsError::TooBig);
    }
    if !job.bytes().all(|byte| byte.is_ascii_graphic()) || closes.iter().any(|close| close.flock_owner.is_some()) {
        return Err(FsError::Invalid);
    }
    match lock.is_some() || replay.is_some() || sequence.is_some() {
        true => Err(FsError::NotSupported),
        false => Ok(()),
    }
}

fn check_mdt(request: &MdtRequest) -> FsResult<()> {
    use MdtRequest as R;
    match request {
        R::Lookup(who, _)
        | R::Access(who, ..)
        | R::Create(who, _)
        | R::CreateUnnamed(who, _)
        | R::Open(who, _)
        | R::ExclusiveBegin(who, _)
        | R::Unlink(who, _)
        | R::Rename(who, _)
        | R::Link(who, _)
        | R::GetXattr(who, ..)
        | R::ListXattr(who, _)
        | R::SetXattr(who, _)
        | R::RemoveXattr(who, ..)
        | R::SetDefaultLayout(who, ..)
        | R::InodePaths(who, _)
        | R::Check(who, _)
        | R::ScanInodes(who, ..)
        | R::ChangeLayout(who, ..)
        | R::DropPrivileges(who, _)
        | R::DataVersion(who, _)
        | R::RemoteNames(who, _)
        | R::MoveInode(who, _)
        | R::RepairName(who, _) => check_groups(who),
        R::MakeDirectory(who, make) => {
            check_groups(who)?;
            within("stripes", make.stripes.mdts.len(), SHARDS_MAX)
        }
        R::SetDirectoryDefault(who, _, default) => {
            check_groups(who)?;
            if default.is_none_or(|default| default.is_possible()) { Ok(()) } else { Err(FsError::Invalid) }
        }
        R::SplitDirectory(who, split) => {
            check_groups(who)?;
            within("stripes", split.stripes.mdts.len(), SHARDS_MAX)?;
            if split.stripes.mdts.is_empty() { Err(FsError::Invalid) } else { Ok(()) }
        }
        R::Prepare(prepare) => match &prepare.part {
            Part::MakeDirectory
            | Part::MakeShard
            | Part::AddLink(_)
            | Part::CopyAttributes(_)
            | Part::Tree
            | Part::FollowName(_)
            | Part::GiveInode(_)
            | Part::GiveStriped(_)
            | Part::GiveNames(_)
            | Part::CorrectLink(_) => Ok(()),
            Part::LeadNames(part) => within("names", part.names.len(), GIVEN_NAMES_MAX),
            Part::DropLink(part) => check_groups(&part.who),
            Part::MoveLink(part) => check_groups(&part.who),
            Part::MoveName(part) => check_groups(&part.who),
        },
        R::Decisions(Decisions { first, .. }) if *first > SEQUENCE_MAX => Err(FsError::Overflow),
        R::Decisions(decisions) => within("decisions", decisions.records.len(), DECISIONS_PER_MESSAGE_MAX),
        R::Join(join) => within("operations", join.promised.len(), PREPARED_PER_MDT_MAX),
        R::SetAttributes(who, _, set) => check_groups(who).and_then(|()| check_seen(set)),
        R::Compound(compound) => check_compound(compound),
        R::RepairSize(who, _, update) => check_groups(who).and_then(|()| check_size_update(update)),
        R::SwapLayouts(who, swap) => {
            check_groups(who)?;
            check_size_update(&swap.first.known)?;
            check_size_update(&swap.second.known)
        }
        R::ReportSize(report) => check_size_update(&report.update),
        // They end something whatever they tell with it: what is impossible of that is not believed
        // (`SizeUpdate::possible`).
        R::Close(_) | R::ExclusiveEnd(_) => Ok(()),
        R::Reclaim(reclaim) => check_reclaim(reclaim),
        R::LeaveFullOst(LeaveFullOst { step: LeaveStep::Relocate(relocation), .. }) => {
            within("slots", relocation.slots.len(), OBJECTS_PER_REQUEST_MAX)?;
            within("OSTs", relocation.refused.len(), OSTS_MAX)
        }
        R::CancelLocks(handles) => within("locks", handles.len(), LOCKS_PER_MESSAGE_MAX),
        R::RegisterOpens(register) => within("opens", register.opens.len(), OPENS_PER_MESSAGE_MAX),
        R::ClaimLocks(claim) => within("locks", claim.locks.len(), LOCKS_PER_MESSAGE_MAX),
        R::NoteAccesses(accesses) => {
            within("accesses", accesses.len(), ACCESSES_PER_MESSAGE_MAX)?;
            if accesses.iter().all(|access| is_time(&access.time)) { Ok(()) } else { Err(FsError::Invalid) }
        }
        R::ChangeData(request) | R::ReadData(request) => check_ost(request),
        R::GetAttributes(_)
        | R::ClearPrivileges(_)
        | R::ReadLink(_)
        | R::ReadDirectory(_)
        | R::GetLayout(_)
        | R::SetLock(_)
        | R::CancelLock(_)
        | R::GetLock(_)
        | R::StatFs
        | R::Commit
        | R::Ping
        | R::Disconnect
        | R::Instantiate(_)
        | R::ReportFull(_)
        | R::LeaveFullOst(_)
        | R::Abort(_)
        | R::Above(_) => Ok(()),
        R::PlaceElsewhere(removed) | R::RenewLayout(removed) | R::LeaveOut(removed) => removed.never(),
    }
}

fn check_ost(request: &OstRequest) -> FsResult<()> {
    use OstRequest as R;
    match request {
        R::Glimpse(objects) | R::Sync(objects) | R::Destroy(objects, _) => {
            within("objects", objects.len(), OBJECTS_PER_REQUEST_MAX)
        }
        R::Check(objects) => within("objects", objects.len(), CHECK_OBJECTS_MAX as usize),
        R::Fence(_, generation) if *generation > FENCE_GENERATION_MAX => Err(FsError::Overflow),
        R::Fence(objects, _) => within("objects", objects.len(), FENCE_OBJECTS_MAX),
        // An OST takes a number of extents as the nearest one allowed.
        R::Extents(_) => Ok(()),
        // Ranges and sizes depend on what they are of: an OST's object can be as large as a file,
        // one on an MDT cannot.
        R::Write(_)
        | R::Read(_)
        | R::Space(..)
        | R::Seek(..)
        | R::StatFs
        | R::ListObjects(..)
        | R::Verify(_)
        | R::Evict(..)
        | R::Ping
        | R::Disconnect => Ok(()),
    }
}

fn check_compound(compound: &Compound) -> FsResult<()> {
    check_groups(&compound.who)?;
    compound.check()?;
    let sets = compound
        .steps
        .iter()
        .filter_map(|step| if let Step::SetAttributes { set, .. } = step { Some(set) } else { None });
    sets.into_iter().try_for_each(check_seen)
}

fn check_seen(set: &SetAttributes) -> FsResult<()> {
    let seen = set.seen.as_ref().map(|seen| &seen.changes);
    let is_possible = |seen: &DataChanges| seen.count <= FILE_CHANGES_MAX && is_time(&seen.last);
    if seen.is_none_or(is_possible) { Ok(()) } else { Err(FsError::Invalid) }
}

fn check_groups(who: &Credentials) -> FsResult<()> {
    within("groups", who.groups.as_ref().map_or(0, Vec::len), GROUPS_MAX)
}

fn check_size_update(update: &SizeUpdate) -> FsResult<()> {
    if update.is_possible() { Ok(()) } else { Err(FsError::FileTooLarge) }
}

fn is_time(time: &Timestamp) -> bool {
    time.nanoseconds < NANOSECONDS
}

fn check_reclaim(reclaim: &Reclaim) -> FsResult<()> {
    within("opens", reclaim.opens.len(), RECLAIM_ENTRIES_MAX)?;
    within("locks", reclaim.locks.len(), RECLAIM_ENTRIES_MAX)?;
    within("exclusive locks", reclaim.exclusives.len(), EXCLUSIVES_PER_CLIENT_MAX)?;
    within("layouts", reclaim.layouts.len(), RECLAIM_ENTRIES_MAX)
}

fn within(what: &str, count: usize, max: usize) -> FsResult<()> {
    if count <= max {
        return Ok(());
    }
    tracing::debug!(what, count, max, "a request names too many");
    Err(FsError::TooBig)
}

impl SizeUpdate {
    /// Whether a file can have this size and these blocks.
    pub fn is_possible(&self) -> bool {
        self.size <= FILE_BYTES_MAX
            && self.blocks <= FILE_BLOCKS_MAX
            && self.changes <= FILE_CHANGES_MAX
            && self.mtime.as_ref().is_none_or(is_time)
    }

    /// The update, if a file can have such a size.
    pub fn possible(update: Option<&Self>) -> Option<&Self> {
        update.filter(|update| update.is_possible())
    }
}

impl Connect {
    /// Fails if its names are none that a client or a target can have.
    pub fn check(&self) -> FsResult<()> {
        let named = [
            ("client", &self.client_name, CLIENT_NAME_BYTES_MAX),
            ("client's host", &self.node, NODE_NAME_BYTES_MAX),
            ("target", &self.target, TARGET_NAME_BYTES_MAX),
        ];
        for (whose, name, bytes_max) in named {
            if name.len() > bytes_max || name.chars().any(char::is_control) {
                return Err(Refusal::ConnectName { whose, bytes: name.len(), bytes_max }.into());
            }
        }
        Ok(())
    }
}

/// A client's name as it can be sent.
pub(crate) fn client_name(name: &str) -> String {
    sendable(name, CLIENT_NAME_BYTES_MAX)
}

/// A host's name as it can be sent.
pub(crate) fn node_name(name: &str) -> String {
    sendable(name, NODE_NAME_BYTES_MAX)
}

/// Long names are cut, and what is not printable becomes `?`.
fn sendable(name: &str, bytes_max: usize) -> String {
    let printable = name.chars().map(|one| if one.is_control() { '?' } else { one });
    let mut sent = String::new();
    for one in printable {
        if sent.len() + one.len_utf8() > bytes_max {
            break;
        }
        sent.push(one);
    }
    sent
}

#[cfg(test)]
mod tests {
    use types::{
        ClientId, Generation, InodeNumber, MdtIndex, ObjectId, SeenChanges, SeenProof, limits::COMPOUND_STEPS_MAX,
    };

    use super::*;
    use crate::auth::Role;
    use crate::message::{
        Relocation, StepInode,
        mdt::{OpenId, ReportSize},
        mdt_peer::{Join, OperationId},
    };

    fn objects(count: usize) -> Vec<ObjectId> {
        vec![ObjectId::default(); count]
    }

    fn update(size: u64, blocks: u64, nanoseconds: u32) -> SizeUpdate {
        let mtime = Some(Timestamp { seconds: i64::MAX, nanoseconds });
        SizeUpdate { epoch: 1, size, blocks, mtime, changes: FILE_CHANGES_MAX }
    }

    #[test]
    fn lists_are_as_long_as_they_may_be_and_no_longer() {
        type Asks = fn(usize) -> Request;
        let cases: [(Asks, usize); 11] = [
            (
                |count| {
                    let (source, records) = (MdtIndex(1), vec![Vec::new(); count]);
                    Request::Mdt(MdtRequest::Decisions(Decisions { source, first: 1, records }))
                },
                DECISIONS_PER_MESSAGE_MAX,
            ),
            (
                |count| {
                    let operation = OperationId { coordinator: MdtIndex(0), start: 1, number: 1 };
                    let promised = vec![operation; count];
                    Request::Mdt(MdtRequest::Join(Join { source: MdtIndex(1), start: 1, promised }))
                },
                PREPARED_PER_MDT_MAX,
            ),
            (|count| Request::Ost(OstRequest::Glimpse(objects(count))), OBJECTS_PER_REQUEST_MAX),
            (|count| Request::Ost(OstRequest::Sync(objects(count))), OBJECTS_PER_REQUEST_MAX),
            (|count| Request::Ost(OstRequest::Destroy(objects(count), None)), OBJECTS_PER_REQUEST_MAX),
            (|count| Request::Ost(OstRequest::Check(objects(count))), CHECK_OBJECTS_MAX as usize),
            (|count| Request::Ost(OstRequest::Fence(objects(count), 1)), FENCE_OBJECTS_MAX),
            (
                |count| {
                    let relocation = Relocation { epoch: 1, slots: vec![0; count], refused: Vec::new() };
                    let (inode, open, generation) = (InodeNumber(1), OpenId(1), Generation(1));
                    let step = LeaveStep::Relocate(relocation);
                    Request::Mdt(MdtRequest::LeaveFullOst(LeaveFullOst { inode, open, generation, step }))
                },
                OBJECTS_PER_REQUEST_MAX,
            ),
            (|count| Request::Mdt(MdtRequest::ReadData(OstRequest::Glimpse(objects(count)))), OBJECTS_PER_REQUEST_MAX),
            (
                |count| {
                    let who = Credentials { groups: Some(vec![1; count]), ..Credentials::root() };
                    Request::Mdt(MdtRequest::ListXattr(who, InodeNumber(1)))
                },
                GROUPS_MAX,
            ),
            (
                |count| {
                    let exclusives = vec![(InodeNumber(1), None); count];
                    Request::Mdt(MdtRequest::Reclaim(Reclaim { exclusives, ..Reclaim::default() }))
                },
                EXCLUSIVES_PER_CLIENT_MAX,
            ),
        ];
        for (asks, max) in cases {
            assert_eq!(check(&asks(max)), Ok(()));
            assert_eq!(check(&asks(max + 1)), Err(FsError::TooBig));
        }
    }

    #[test]
    fn a_compound_is_bounded_as_its_steps_are() {
        let ask = |who, steps| check(&Request::Mdt(MdtRequest::Compound(Compound { who, steps })));
        let inode = StepInode::Known(InodeNumber(1));
        let look = Step::GetAttributes { inode };
        assert_eq!(ask(Credentials::root(), vec![look.clone(); COMPOUND_STEPS_MAX]), Ok(()));
        assert_eq!(ask(Credentials::root(), vec![look.clone(); COMPOUND_STEPS_MAX + 1]), Err(FsError::TooBig));
        let many = Credentials { groups: Some(vec![1; GROUPS_MAX + 1]), ..Credentials::root() };
        assert_eq!(ask(many, vec![look]), Err(FsError::TooBig));
        let changes = DataChanges { count: FILE_CHANGES_MAX + 1, last: Timestamp::default() };
        let seen = Some(SeenChanges { changes, proof: SeenProof::Alone { epoch: 1 } });
        let set = SetAttributes { seen, ..SetAttributes::default() };
        assert_eq!(ask(Credentials::root(), vec![Step::SetAttributes { inode, set }]), Err(FsError::Invalid));
    }

    #[test]
    fn sizes_and_generations_end_where_arithmetic_is_still_safe() {
        let report =
            |update| check(&Request::Mdt(MdtRequest::ReportSize(ReportSize { inode: InodeNumber(1), update })));
        assert_eq!(report(update(FILE_BYTES_MAX, FILE_BLOCKS_MAX, NANOSECONDS - 1)), Ok(()));
        for impossible in [
            update(FILE_BYTES_MAX + 1, 0, 0),
            update(u64::MAX, 0, 0),
            update(0, FILE_BLOCKS_MAX + 1, 0),
            update(0, 0, NANOSECONDS),
            SizeUpdate { changes: FILE_CHANGES_MAX + 1, ..update(0, 0, 0) },
        ] {
            assert_eq!(report(impossible), Err(FsError::FileTooLarge), "{impossible:?}");
            assert_eq!(SizeUpdate::possible(Some(&impossible)), None);
        }
        let fence = |generation| check(&Request::Ost(OstRequest::Fence(objects(1), generation)));
        assert_eq!((fence(FENCE_GENERATION_MAX), fence(u64::MAX)), (Ok(()), Err(FsError::Overflow)));
    }

    #[test]
    fn names_of_clients_are_short_and_printable() {
        let connect = |client_name: &str, target: &str| Connect {
            version_min: 2,
            version_max: 2,
            features: 0,
            target: target.to_owned(),
            client: ClientId(1),
            client_name: client_name.to_owned(),
            connection: Generation(1),
            resume: false,
            incarnation: 0,
            role: Role::Client,
            node: "host".to_owned(),
            claim: None,
        };
        let long = "ü".repeat(CLIENT_NAME_BYTES_MAX);
        assert_eq!(connect("host:1", "stria-OST0003").check(), Ok(()));
        for (name, target) in [(&long[..], "MGS"), ("two\nlines", "MGS"), ("host:1", &long[..])] {
            assert!(matches!(connect(name, target).check(), Err(FsError::Refused(_))), "{name} {target}");
        }
        assert_eq!(client_name("host:1"), "host:1");
        for name in [&long[..], "two\nlines"] {
            assert_eq!(connect(&client_name(name), "MGS").check(), Ok(()));
        }
    }
}
