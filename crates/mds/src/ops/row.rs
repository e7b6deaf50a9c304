//! The table of facts about each request that only the MDT knows: how it is counted, served,
//! answered and stored. Facts that its clients know too are in [`rpc::message::kind`].

use rpc::message::{
    Compound, LeaveFullOst, MdtRequest, OstRequest, Step,
    kind::Effect,
    mdt::{ExclusivePurpose, OpenFlags, OpenId, Reclaim, SetLock},
    mdt_peer::Part,
};
use types::{Credentials, LockHandle, NodeKind, OstIndex};

use super::layout_xattrs;
use crate::statistics::OperationCounter;

/// The service of requests that change or look at a few records.
pub(crate) const SERVICE: &str = "mdt";
/// The service of requests that visit many records.
const PAGE_SERVICE: &str = "mdt_readpage";
/// The service of requests with data.
const DATA_SERVICE: &str = "mdt_io";
/// The service of clients that come back, and of other MDTs: others wait for them.
const RECOVERY_SERVICE: &str = "mdt_recovery";

/// How a request is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answering<'a> {
    /// By its operation, in a transaction ([`super::run`]).
    Operation,
    /// With the space of the target.
    Space,
    /// Once everything is durable.
    Commit,
    /// With what is found in the namespace and, perhaps, repaired.
    Check(&'a Credentials, bool),
    /// Once these locks are given back.
    CancelLocks(&'a [LockHandle]),
    /// Once the session has ended.
    Disconnect,
    /// Once this OST was asked for its space.
    ReportFull(OstIndex),
    /// With how data changed.
    ChangeData(&'a OstRequest),
    /// With data.
    ReadData(&'a OstRequest),
    /// With the replies of its steps.
    Compound(&'a Compound),
}

/// What the MDT knows of a request before it is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MdtRow<'a> {
    /// Under which name it is counted; `None`: its steps are.
    pub counter: Option<OperationCounter>,
    /// Its service.
    pub service: &'static str,
    /// How it is answered.
    pub answering: Answering<'a>,
    /// Its reply is stored with its changes, because a repetition after a restart must not be
    /// executed again. Not stored: what only opens (the repetition opens again), reads, what holds
    /// under one epoch or generation only, and instantiations (the repetition finds them done); and
    /// closes: a client that did not learn of its close has claimed the open back, so the
    /// repetition has something to close.
    pub stored: bool,
    /// Its reply waits until its changes are durable: a client continues writing under a new layout
    /// although this MDT loses power and restarts.
    pub durable: bool,
    /// Its operation changes no volatile state, and tables at most by an access time: it is
    /// executed beside others, and alone only if it turns out to change something or to wait.
    pub reads_beside: bool,
    /// It may give a file objects, so it needs OSTs.
    pub places_objects: bool,
    /// Its change of a layout, after which objects may have to be fenced.
    pub leave: Option<&'a LeaveFullOst>,
    /// It moves data from file to file within this MDT, or brings those of a file that moves, as
    /// many as fit into a batch.
    pub moves_data: bool,
    /// The open that it makes together with a file.
    pub opens: Option<(OpenId, OpenFlags)>,
    /// The lock that it asks for.
    pub lock: Option<&'a SetLock>,
    /// What it claims again after a restart.
    pub reclaims: Option<&'a Reclaim>,
    /// With it the client has told of all that it opened without asking on earlier connections.
    pub registers_all_opens: bool,
}

impl<'a> MdtRow<'a> {
    /// Of a request that is executed by its operation at once, and gives no file objects.
    fn new(request: &MdtRequest, counter: Option<OperationCounter>) -> Self {
        Self {
            counter,
            service: SERVICE,
            answering: Answering::Operation,
            stored: request.row().effect == Effect::Namespace,
            durable: false,
            reads_beside: false,
            places_objects: false,
            leave: None,
            moves_data: false,
            opens: None,
            lock: None,
            reclaims: None,
            registers_all_opens: false,
        }
    }

    /// Whether a client may send the request before it claims the locks of its former connection:
    /// it tells what the client has.
    pub(crate) fn precedes_claims(&self, request: &MdtRequest) -> bool {
        self.service == RECOVERY_SERVICE || request.row().urgent
    }

    fn served_by(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    fn answered(self, answering: Answering<'a>) -> Self {
        Self { answering, ..self }
    }

    fn stored(self) -> Self {
        Self { stored: true, ..self }
    }

    fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    fn beside(self) -> Self {
        Self { reads_beside: true, ..self }
    }

    fn placing_if(self, places_objects: bool) -> Self {
        Self { places_objects, ..self }
    }

    fn placing(self) -> Self {
        self.placing_if(true)
    }

    fn moving_data(self) -> Self {
        Self { moves_data: true, ..self }
    }

    fn opening(self, opens: Option<(OpenId, OpenFlags)>) -> Self {
        Self { opens, ..self }
    }

    fn locking(self, lock: &'a SetLock) -> Self {
        Self { lock: Some(lock), ..self }
    }

    fn reclaiming(self, reclaim: &'a Reclaim) -> Self {
        Self { reclaims: Some(reclaim), ..self }
    }
}

/// The row of a request.
pub(crate) fn row(request: &MdtRequest) -> MdtRow<'_> {
    use MdtRequest as R;
    use OperationCounter as C;
    let row = |counter| MdtRow::new(request, Some(counter));
    match request {
        R::Lookup(..) => row(C::Lookup).beside(),
        R::GetAttributes(_) => row(C::Getattr).beside(),
        R::SetAttributes(..) => row(C::Setattr),
        R::Access(..) => row(C::Access).beside(),
        R::Create(_, create) => row(counter_of_creation(&create.kind, create.open.is_some()))
            .placing_if(create.kind == NodeKind::Regular)
            .opening(create.open),
        R::CreateUnnamed(_, create) => row(C::Create).placing().opening(Some(create.open)),
        R::Open(..) => row(C::Open),
        R::Close(_) => row(C::Close),
        R::ReportSize(_) => row(C::ReportSize),
        R::ExclusiveBegin(_, begin) => {
            row(C::Exclusive).placing_if(matches!(begin.purpose, ExclusivePurpose::Truncate(_)))
        }
        R::ExclusiveEnd(_) => row(C::Exclusive),
        R::ClearPrivileges(_) => row(C::Setattr),
        R::Unlink(_, unlink) => row(if unlink.directory { C::Rmdir } else { C::Unlink }),
        R::Rename(..) => row(C::Rename),
        R::Link(..) => row(C::Link),
        R::ReadLink(_) => row(C::Readlink).beside(),
        R::ReadDirectory(_) => row(C::Readdir).served_by(PAGE_SERVICE).beside(),
        R::GetXattr(..) | R::ListXattr(..) => row(C::Getxattr).beside(),
        R::SetXattr(_, set) => row(C::Setxattr).placing_if(layout_xattrs::is_layout(&set.name)),
        R::RemoveXattr(..) => row(C::Setxattr),
        R::GetLayout(_) => row(C::Layout),
        R::SetDefaultLayout(..) | R::SetDirectoryDefault(..) | R::SplitDirectory(..) => row(C::Layout),
        R::InodePaths(..) => row(C::Path),
        R::SetLock(set) => row(C::Lock).locking(set),
        R::CancelLock(_) => row(C::Lock),
        R::GetLock(_) => row(C::Lock),
        R::StatFs => row(C::Statfs).answered(Answering::Space),
        R::Commit => row(C::Sync).answered(Answering::Commit),
        R::Reclaim(reclaim) => row(C::Session).served_by(RECOVERY_SERVICE).reclaiming(reclaim),
        R::Ping => row(C::Ping),
        R::Check(who, repair) => row(C::Check).served_by(PAGE_SERVICE).answered(Answering::Check(who, *repair)),
        R::ScanInodes(..) => row(C::Check).served_by(PAGE_SERVICE),
        R::RepairSize(..) => row(C::ReportSize),
        R::Disconnect => row(C::Session).answered(Answering::Disconnect),
        R::Instantiate(_) => row(C::Layout).placing(),
        R::ChangeData(change) => {
            row(counter_of_change(change)).served_by(DATA_SERVICE).answered(Answering::ChangeData(change)).stored()
        }
        R::ReadData(question) => row(C::Read).served_by(DATA_SERVICE).answered(Answering::ReadData(question)),
        R::Compound(compound) => {
            let moves_data = compound.bytes_read() + compound.bytes_written() > 0;
            let creates = |step: &Step| matches!(step, Step::Create { kind: NodeKind::Regular, .. });
            MdtRow::new(request, None)
                .served_by(if moves_data { DATA_SERVICE } else { SERVICE })
                .placing_if(compound.steps.iter().any(creates))
                .answered(Answering::Compound(compound))
        }
        R::ChangeLayout(..) => row(C::Layout).placing().stored(),
        R::ReportFull(ost) => row(C::Statfs).answered(Answering::ReportFull(*ost)),
        R::DataVersion(..) => row(C::Layout),
        R::SwapLayouts(..) => row(C::Layout).stored().durable().moving_data(),
        R::LeaveFullOst(leave) => MdtRow { leave: Some(leave), ..row(C::Layout).durable() },
        R::DropPrivileges(..) => row(C::Setattr),
        R::RegisterOpens(register) => MdtRow { registers_all_opens: register.complete, ..row(C::Open) },
        R::NoteAccesses(_) => row(C::NoteAccesses),
        R::ClaimLocks(_) => row(C::Lock).served_by(RECOVERY_SERVICE),
        R::MakeDirectory(..) => row(C::Mkdir),
        R::MoveInode(..) => row(C::Rename).moving_data(),
        R::RepairName(..) => row(C::Check),
        R::Prepare(prepare) => {
            let lasts = !matches!(prepare.part, Part::MakeDirectory | Part::MakeShard);
            MdtRow { durable: lasts, ..row(C::Session) }
        }
        R::Abort(_) => row(C::Session).served_by(RECOVERY_SERVICE),
        // The answer to Join names decisions, for which the other MDT waits then.
        R::Join(_) | R::Decisions(_) => row(C::Session).served_by(RECOVERY_SERVICE).durable(),
        R::RemoteNames(..) => row(C::Check).served_by(PAGE_SERVICE),
        R::Above(_) => row(C::Session),
        R::CancelLocks(handles) => row(C::Lock).answered(Answering::CancelLocks(handles)),
        R::PlaceElsewhere(removed) | R::RenewLayout(removed) | R::LeaveOut(removed) => removed.never(),
    }
}

/// Under which name a step of a compound is counted.
pub(crate) fn counter_of_step(step: &Step) -> OperationCounter {
    match step {
        Step::Lookup { .. } => OperationCounter::Lookup,
        Step::GetAttributes { .. } => OperationCounter::Getattr,
        Step::SetAttributes { .. } => OperationCounter::Setattr,
        Step::Access { .. } => OperationCounter::Access,
        Step::ReadLink { .. } => OperationCounter::Readlink,
        Step::GetXattr { .. } => OperationCounter::Getxattr,
        Step::Open { .. } => OperationCounter::Open,
        Step::Create { kind, open, .. } => counter_of_creation(kind, open.is_some()),
        Step::Write { .. } => OperationCounter::Write,
        Step::Read { .. } => OperationCounter::Read,
        Step::Close { .. } => OperationCounter::Close,
    }
}

fn counter_of_creation(kind: &NodeKind, opens: bool) -> OperationCounter {
    match kind {
        _ if opens => OperationCounter::Create,
        NodeKind::Directory => OperationCounter::Mkdir,
        NodeKind::Symlink(_) => OperationCounter::Symlink,
        NodeKind::Regular
        | NodeKind::Fifo
        | NodeKind::Socket
        | NodeKind::CharacterDevice(_)
        | NodeKind::BlockDevice(_) => OperationCounter::Mknod,
    }
}

fn counter_of_change(change: &OstRequest) -> OperationCounter {
    if matches!(change, OstRequest::Write(_)) { OperationCounter::Write } else { OperationCounter::Punch }
}
