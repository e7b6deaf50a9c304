//! Round trips of every message, growth both ways, and input that is not a message.

use layout::{ComponentId, Layout, LayoutSpec, PlainLayout, StripeCount, StripeSpec};
use lock::{HeldLock, LockFamily, LockMode, LockRange};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use types::{
    Attributes, ClientId, Credentials, Damage, DeviceId, DirectoryDefault, DirectoryMap, FileKind, Generation,
    InodeNumber, LockHandle, MdtIndex, NameHash, NodeKind, ObjectId, OstIndex, Owner, ProtocolError, Refusal,
    SetAttributes, SetTime, ShardCount, SpaceUsage, Stripes, Timestamp, TooMany,
};

use super::*;
use crate::auth::{Role, Ticket};
use crate::message::{
    Compound, CompoundReply, LeaveFullOst, LeaveStep, MdtReply, MdtRequest, MgsReply, MgsRequest, OstReply, OstRequest,
    Relocation, Step, StepInode, StepReply,
    kind::{MdtKind, RequestKind},
    mdt::*,
    mdt_peer::*,
    mgs::*,
    moved_inode::*,
    name_repair::*,
    ost::{
        Changed, Extent, ExtentPlace, ExtentsQuery, FoundExtents, Moved, ObjectAttributes, Read, ReadDone, SpaceChange,
        TargetCondition, Write,
    },
    session::{Claim, Connect, Connected},
};

const INODE: InodeNumber = InodeNumber(0x0001_0000_0000_0123);
const TIME: Timestamp = Timestamp { seconds: -5, nanoseconds: 999_999_999 };

fn layout() -> Layout {
    let osts = (0..200).map(OstIndex).collect();
    Layout::plain(Generation(3), PlainLayout { stripe_bytes: 1 << 20, osts }, StripeSpec::default())
}

fn spec() -> LayoutSpec {
    LayoutSpec::Plain(StripeSpec {
        stripe_count: StripeCount::Exactly(4),
        stripe_bytes: Some(65536),
        first_ost: Some(OstIndex(2)),
        ..StripeSpec::default()
    })
}

fn attributes() -> Attributes {
    Attributes {
        inode: INODE,
        kind: FileKind::Regular,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: u32::MAX,
        device: 0,
        size: u64::MAX,
        blocks: 8,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
        flags: 0,
        project: 6,
    }
}

fn entry() -> Entry {
    Entry {
        attributes: attributes(),
        size_unknown: Some(Box::new(layout())),
        accounted: TIME,
        quiet: Some(3),
        changes: 4,
        records: 5,
        map_version: 0,
        access_list: true,
        no_public_xattrs: true,
        epoch: None,
    }
}

fn opened() -> Opened {
    Opened { entry: entry(), layout: Some(layout()), epoch: 9, truncate: true, capabilities: true }
}

fn update() -> SizeUpdate {
    SizeUpdate { epoch: 4, size: 5, blocks: 6, mtime: None, changes: 7 }
}

fn held() -> HeldLock {
    HeldLock {
        inode: INODE,
        family: LockFamily::Posix,
        client: ClientId(8),
        owner: 7,
        pid: 6,
        range: LockRange { start: 0, end: u64::MAX },
        mode: LockMode::Exclusive,
    }
}

fn root() -> Credentials {
    Credentials { uid: 1, gid: 2, groups: Some(vec![3, 300_000]) }
}

fn mdt_requests() -> Vec<MdtRequest> {
    use MdtRequest as R;
    let name = || b"name \xff of 255 bytes".to_vec();
    let open = (OpenId(77), OpenFlags(open_flag::READ | open_flag::WRITE));
    let create = Create {
        parent: INODE,
        name: name(),
        kind: NodeKind::Symlink(b"target".to_vec()),
        mode: 0o7777,
        umask: 0o22,
        layout: Some(spec()),
        open: Some(open),
    };
    let set = SetAttributes {
        mode: Some(1),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(TIME)),
        ..Default::default()
    };
    let lock = SetLock {
        inode: INODE,
        family: LockFamily::Flock,
        owner: 1,
        pid: 2,
        range: LockRange { start: 3, end: 4 },
        mode: LockMode::Shared,
        ticket: Some(WaitTicket(1)),
    };
    let exclusive = ExclusiveBegin { inode: INODE, open: Some(OpenId(1)), purpose: ExclusivePurpose::Truncate(5) };
    let claim = LockClaim { handle: LockHandle(12), inode: INODE, bits: lock::InodeBits(3), version: 300 };
    vec![
        R::Lookup(root(), Lookup { parent: INODE, name: name() }),
        R::GetAttributes(INODE),
        R::SetAttributes(root(), INODE, set),
        R::Access(root(), INODE, 7),
        R::Create(root(), create),
        R::CreateUnnamed(root(), CreateUnnamed { parent: INODE, mode: 1, umask: 2, open }),
        R::Open(root(), Open { inode: INODE, open: OpenId(5), flags: OpenFlags(3) }),
        R::Close(Close { inode: INODE, open: OpenId(5), update: Some(update()), flock_owner: Some(1) }),
        R::ReportSize(ReportSize { inode: INODE, update: update() }),
        R::ExclusiveBegin(root(), exclusive),
        R::ExclusiveEnd(ExclusiveEnd { inode: INODE, update: None }),
        R::ClearPrivileges(INODE),
        R::Unlink(root(), Unlink { parent: INODE, name: name(), directory: true }),
        R::Rename(
            root(),
            Rename {
                parent: INODE,
                name: name(),
                new_parent: INODE,
                new_name: name(),
                mode: RenameMode::Exchange,
                source_data: SourceData::Synced(INODE),
                mdt_era: Some(3),
                same_directory: true,
            },
        ),
        R::Link(root(), Link { inode: INODE, parent: INODE, name: name() }),
        R::ReadLink(INODE),
        R::ReadDirectory(ReadDirectory {
            inode: INODE,
            open: OpenId(1),
            cookie: 2,
            entries_max: 3,
            attributes: true,
            unasked: Some(OpenFlags(65)),
        }),
        R::GetXattr(root(), INODE, name()),
        R::ListXattr(root(), INODE),
        R::SetXattr(root(), SetXattr { inode: INODE, name: name(), value: vec![0; 65536], mode: XattrMode::Replace }),
        R::RemoveXattr(root(), INODE, name()),
        R::GetLayout(INODE),
        R::SetDefaultLayout(root(), INODE, Some(spec())),
        R::InodePaths(root(), INODE),
        R::SetLock(lock),
        R::CancelLock(CancelLock { inode: INODE, family: LockFamily::Posix, ticket: WaitTicket(1) }),
        R::GetLock(GetLock { inode: INODE, owner: 1, range: LockRange { start: 0, end: 1 }, mode: LockMode::Shared }),
        R::StatFs,
        R::Commit,
        R::Reclaim(Reclaim {
            opens: vec![(INODE, OpenId(1), OpenFlags(2))],
            locks: vec![held()],
            done: true,
            exclusives: vec![(INODE, None)],
            layouts: vec![(INODE, layout())],
        }),
        R::Ping,
        R::Check(root(), true),
        R::ScanInodes(root(), INODE, 100),
        R::RepairSize(root(), INODE, update()),
        R::Disconnect,
        R::Instantiate(Instantiate { inode: INODE, open: OpenId(7), start: 1 << 20, end: 1 << 40 }),
        R::ChangeData(OstRequest::Space(
            ObjectId::new(INODE, 0),
            SpaceChange::Truncate { size: 5 },
            7,
            Owner::default(),
        )),
        R::ReadData(OstRequest::Read(Read {
            object: ObjectId::new(INODE, 0),
            offset: 4096,
            bytes: 4096,
            layout_generation: 7,
        })),
        R::Compound(compound()),
        R::ChangeLayout(
            root(),
            INODE,
            LayoutChange::Delete { components: vec![ComponentId(3)], generation: Generation(5) },
        ),
        R::ReportFull(OstIndex(3)),
        R::DataVersion(root(), DataVersion { inode: INODE, hold_writers: Some(OpenId(5)) }),
        R::SwapLayouts(root(), swap()),
        R::DropPrivileges(root(), INODE),
        R::CancelLocks(vec![LockHandle(12), LockHandle(u64::MAX)]),
        R::RegisterOpens(RegisterOpens { opens: vec![(INODE, OpenId(3), OpenFlags(1))], complete: true }),
        R::ClaimLocks(ClaimLocks { era: 2, locks: vec![claim; 3] }),
        R::LeaveFullOst(LeaveFullOst {
            inode: INODE,
            open: OpenId(5),
            generation: Generation(1),
            step: LeaveStep::Relocate(Relocation { epoch: 7, slots: vec![0, 1999], refused: vec![OstIndex(3)] }),
        }),
        R::NoteAccesses(vec![Access { inode: INODE, lock: LockHandle(u64::MAX), time: TIME }; 2]),
        R::MakeDirectory(
            root(),
            MakeDirectory {
                parent: INODE,
                name: name(),
                mode: 0o777,
                umask: 0o22,
                mdt: MdtIndex(300),
                stripes: stripes(),
            },
        ),
        R::Prepare(Prepare { operation: operation(), part: Part::DropLink(removal()) }),
        R::Abort(operation()),
        R::Decisions(Decisions { source: MdtIndex(1), first: 300, records: vec![vec![1; 200]; 2] }),
        R::Join(Join { source: MdtIndex(1), start: 1 << 32, promised: vec![operation()] }),
        R::RemoteNames(root(), RemoteNamesAfter { of_names: true, key: Some(vec![1; 16]) }),
        R::Above(Above { directory: INODE, from: InodeNumber(9) }),
        R::SetDirectoryDefault(root(), INODE, Some(directory_default())),
        R::SplitDirectory(root(), SplitDirectory { directory: INODE, stripes: stripes() }),
        R::MoveInode(root(), INODE),
        R::RepairName(root(), NameRepair::Settle(remote_name())),
    ]
}

fn operation() -> OperationId {
    OperationId { coordinator: MdtIndex(2), start: 1 << 32, number: 7 }
}

fn removal() -> DropLink {
    let parent = Attributes::zeroed(INODE, FileKind::Directory);
    DropLink { inode: INODE, parent, name: b"name".to_vec(), directory: true, who: root() }
}

/// Parts of all kinds.
fn parts() -> Vec<Part> {
    let DropLink { inode, parent, name, who, .. } = removal();
    let (new_name, target) = (b"new".to_vec(), Some((INODE, FileKind::Fifo)));
    let of_name = MoveName {
        parent: INODE,
        name: name.clone(),
        new_parent: parent,
        new_name: new_name.clone(),
        target,
        exchange: true,
        era: Some(3),
        who: who.clone(),
        same_directory: true,
    };
    vec![
        Part::MakeDirectory,
        Part::DropLink(removal()),
        Part::MoveLink(MoveLink {
            inode,
            parent,
            name: name.clone(),
            new_parent: INODE,
            new_name,
            who,
            same_directory: true,
        }),
        Part::AddLink(AddLink { inode, parent: INODE, name }),
        Part::MoveName(of_name),
        Part::Tree,
        Part::MakeShard,
        Part::CopyAttributes(CopyAttributes { shard: INODE, master: InodeNumber(9) }),
        Part::FollowName(FollowName { inode: INODE, parent: INODE, name: b"name".to_vec(), shard: InodeNumber(9) }),
        Part::GiveInode(INODE),
        Part::LeadNames(LeadNames { parent: INODE, names: vec![b"name".to_vec(); 2], inode: InodeNumber(9) }),
        Part::GiveNames(GiveNames { shard: InodeNumber(9).as_shard(), master: INODE, names_max: 1 << 40 }),
        Part::GiveStriped(INODE),
        Part::CorrectLink(CorrectLink {
            inode: INODE,
            parent: INODE,
            name: b"name".to_vec(),
            state: NameState::Absent,
        }),
    ]
}

/// Numbers whose requests were removed.
const REMOVED: [MdtKind; 3] = [MdtKind::PlaceElsewhere, MdtKind::RenewLayout, MdtKind::LeaveOut];

/// Steps of all kinds.
fn compound() -> Compound {
    let (known, found, name) = (StepInode::Known(INODE), StepInode::Of(0), || b"name".to_vec());
    let (open, flags) = (OpenId(5), OpenFlags(open_flag::READ | open_flag::WRITE));
    let set = SetAttributes { mode: Some(0o600), ..Default::default() };
    let steps = vec![
        Step::Lookup { parent: known, name: name() },
        Step::GetAttributes { inode: found },
        Step::SetAttributes { inode: found, set },
        Step::Access { inode: found, mask: 4 },
        Step::ReadLink { inode: found },
        Step::GetXattr { inode: found, name: name() },
        Step::Open { inode: found, open, flags },
        Step::Create {
            parent: found,
            name: name(),
            kind: NodeKind::Regular,
            mode: 0o644,
            umask: 0o22,
            layout: Some(spec()),
            open: Some((open, flags)),
        },
        Step::Write { inode: StepInode::Of(7), offset: 4096, bytes: 5000, checksums: vec![u32::MAX; 2] },
        Step::Read { inode: StepInode::Of(7), offset: 0, bytes: 65536 },
        Step::Close { inode: StepInode::Of(7), open, written: Some(8) },
    ];
    Compound { who: root(), steps }
}

fn swap() -> SwapLayouts {
    let known = SizeUpdate { epoch: 7, size: 1 << 40, blocks: 8, mtime: None, changes: 9 };
    let first = SwapSide { inode: INODE, open: Some(OpenId(5)), known };
    SwapLayouts { first, second: SwapSide { inode: InodeNumber(9), open: None, known } }
}

fn ost_requests() -> Vec<OstRequest> {
    use OstRequest as R;
    let object = ObjectId::new(INODE, 1999);
    vec![
        R::Write(Write {
            object,
            offset: 1 << 60,
            checksums: vec![u32::MAX; 1024],
            sync: true,
            layout_generation: 1,
            owner: Owner::default(),
        }),
        R::Read(Read { object, offset: 0, bytes: 4 << 20, layout_generation: u64::MAX }),
        R::Space(object, SpaceChange::Zero { offset: 1, bytes: 2, extend: true }, 3, Owner::default()),
        R::Seek(object, 4096, false),
        R::Glimpse(vec![object, object]),
        R::Sync(vec![]),
        R::Destroy(vec![object], None),
        R::StatFs,
        R::ListObjects(Some(object), 10),
        R::Verify(object),
        R::Evict(ClientId(u64::MAX), None),
        R::Ping,
        R::Disconnect,
        R::Fence(vec![object], 8),
        R::Check(vec![object]),
        R::Extents(ExtentsQuery { object, offset: 1 << 40, bytes: u64::MAX, extents_max: 1024 }),
    ]
}

fn mgs_requests() -> Vec<MgsRequest> {
    use MgsRequest as R;
    let register = Register {
        fsname: "stria".to_owned(),
        role: TargetRole::Ost(OstIndex(4)),
        uuid: "0-1-2".to_owned(),
        addresses: vec!["host:988".to_owned(), "[::1]:988".to_owned()],
        space: SpaceUsage { bytes_total: 1 << 50, ..Default::default() },
        condition: TargetCondition { degraded: true, ..Default::default() },
    };
    vec![
        R::Register(register),
        R::GetMap(3),
        R::SetParameter("a.*.b".to_owned(), "1".to_owned()),
        R::SetState(TargetRole::Mdt(MdtIndex(0)), TargetState::Inactive),
        R::Ping,
        R::PoolNew("fast".to_owned()),
        R::PoolAdd("fast".to_owned(), vec![OstIndex(0), OstIndex(300)]),
        R::PoolRemove("fast".to_owned(), vec![OstIndex(0)]),
        R::PoolDestroy("fast".to_owned()),
        R::Disconnect,
    ]
}

fn requests() -> Vec<Request> {
    let mdt = mdt_requests().into_iter().map(Request::Mdt);
    let ost = ost_requests().into_iter().map(Request::Ost);
    mdt.chain(ost).chain(mgs_requests().into_iter().map(Request::Mgs)).collect()
}

/// Replies of all kinds.
fn compound_reply() -> CompoundReply {
    let attributes = ObjectAttributes { size: 1, blocks: 2, mtime: TIME, changes: 3 };
    let replies = vec![
        StepReply::Done,
        StepReply::Entry(entry()),
        StepReply::Created(Created { entry: entry(), created: true, opened: Some(opened()) }),
        StepReply::Opened(opened()),
        StepReply::Closed(Closed { size_wanted: None }),
        StepReply::Target(b"target".to_vec()),
        StepReply::Value(vec![1, 2, 3]),
        StepReply::Written(Changed { before: attributes, after: attributes }),
        StepReply::Read(ReadDone { checksums: vec![1, 2], size: 3 }),
        StepReply::Waiting,
        StepReply::AskObjects(layout()),
    ];
    CompoundReply { replies, error: Some(FsError::NotFound) }
}

fn mdt_replies() -> Vec<MdtReply> {
    use MdtReply as R;
    let directory_entry = DirectoryEntry {
        name: vec![b'n'; 255],
        inode: INODE,
        kind: FileKind::Fifo,
        cookie: i64::MAX as u64,
        entry: Some(entry()),
        locks: vec![(LockHandle(7), lock::InodeBits(lock::inode_bit::LOOKUP))],
        version: 300,
    };
    let info = LayoutInfo {
        layout: Some(layout()),
        own_default: Some(Box::new(spec())),
        effective_default: None,
        map: Some(map()),
        directory_default: Some(directory_default()),
    };
    vec![
        R::Done,
        R::Entry(entry()),
        R::Created(Box::new(Created { entry: entry(), created: true, opened: Some(opened()) })),
        R::Opened(Box::new(opened())),
        R::Closed(Closed { size_wanted: Some((4, layout())) }),
        R::ExclusiveGranted(Box::new(ExclusiveGranted { entry: entry(), layout: layout(), epoch: 6 })),
        R::Waiting,
        R::Target(vec![b'/'; 4095]),
        R::Directory(vec![directory_entry.clone(); 20], true),
        R::Value(vec![1, 2, 3]),
        R::Names(vec![b"user.a".to_vec(), vec![]]),
        R::Layout(info),
        R::Paths(vec![b"a/b".to_vec()]),
        R::Lock(Some(held())),
        R::Space(SpaceUsage::default()),
        R::Findings(vec![Finding { inode: INODE, problem: "links 2, names 1".to_owned(), repaired: false }]),
        R::Scanned(vec![ScannedInode { entry: entry(), layout: None, busy: false, damaged: false }]),
        R::Data(OstReply::Read(ReadDone { checksums: vec![1, 2], size: 3 })),
        R::Compound(compound_reply()),
        R::Version(u64::MAX),
        R::NotReclaimed(NotReclaimed { lost: vec![INODE], undone: vec![InodeNumber(9)] }),
        R::SyncFirst(SyncFirst { inode: INODE, layout: layout() }),
        R::Absent,
        R::LocksClaimed(vec![None, Some(LockHandle(u64::MAX))]),
        R::Queued,
        R::AccessesNoted(vec![Some(NotedAccess { version: 7, time: TIME }), None]),
        R::Remote(INODE),
        R::PathsBelow(vec![(INODE, b"a/b".to_vec())]),
        R::Prepared(Box::new(Prepared {
            inode: INODE,
            start: 1 << 32,
            kind: FileKind::Regular,
            undurable: Some(layout()),
            parent: Some(Attributes::zeroed(INODE, FileKind::Directory)),
            map: Some(map()),
            entry: Some(Box::new(entry())),
        })),
        R::Joined(Joined { start: 1 << 32, last: 300, ended: vec![operation()] }),
        R::RemoteNames(RemoteNames { found: vec![remote_name()], next: Some(vec![1; 16]) }),
        R::Ancestry(Ancestry::GoesOn(INODE)),
        R::Striped(map()),
        R::Decided(Box::new(Decided { entry: entry(), map: Some(map()) })),
        R::MovingNames(MovingNames { entries: vec![directory_entry.clone(); 3], end: true, place: 1 << 60 }),
        R::Given(Box::new(given())),
        R::ReturningNames(ReturningNames {
            entries: vec![directory_entry; 3],
            end: true,
            places: vec![(INODE.as_shard(), 1 << 60); 4],
        }),
    ]
}

fn given() -> GivenInode {
    GivenInode {
        start: 1 << 32,
        record: vec![3; 130],
        xattrs: vec![(b"user.a".to_vec(), vec![1; 200])],
        links: vec![(INODE, b"other".to_vec())],
        data: vec![(vec![0; 4], vec![7; 4100])],
        names: vec![GivenName { name: b"name".to_vec(), inode: INODE, kind: FileKind::Fifo }],
    }
}

fn directory_default() -> DirectoryDefault {
    let (first, hash) = (Some(MdtIndex(300)), Some(NameHash::Crush));
    DirectoryDefault { count: ShardCount::Exactly(1000), first, hash, levels: Some(250), spread_levels: Some(0) }
}

fn map() -> DirectoryMap {
    DirectoryMap { master: INODE, hash: NameHash::Crush, shards: vec![INODE.as_shard(), InodeNumber(9).as_shard()] }
}

fn stripes() -> Stripes {
    Stripes { hash: NameHash::AllCharacters, mdts: vec![MdtIndex(300), MdtIndex(0)] }
}

fn remote_name() -> RemoteName {
    RemoteName { inode: INODE, parent: InodeNumber(1), name: b"name".to_vec(), kind: FileKind::Directory }
}

fn replies() -> Vec<Reply> {
    let attributes = ObjectAttributes { size: 1, blocks: 2, mtime: TIME, changes: 3 };
    let changed = Changed { before: attributes, after: attributes };
    let target = MapTarget {
        role: TargetRole::Mdt(MdtIndex(1)),
        uuid: "u".to_owned(),
        addresses: vec!["a:1".to_owned()],
        state: TargetState::Active,
    };
    let map = ClusterMap {
        version: 2,
        fsname: "stria".to_owned(),
        targets: vec![target; 3],
        parameters: vec![("a".to_owned(), "b".to_owned())],
        pools: vec![Pool { name: "fast".to_owned(), osts: vec![OstIndex(1)] }],
    };
    let ost = [
        OstReply::Done,
        OstReply::Changed(changed),
        OstReply::Read(ReadDone { checksums: vec![1, 2], size: 3 }),
        OstReply::Found(Some(4)),
        OstReply::Attributes(vec![attributes; 3]),
        OstReply::Space(SpaceUsage::default(), TargetCondition::default()),
        OstReply::Objects(vec![(ObjectId::new(INODE, 0), attributes)]),
        OstReply::Damage(vec![(ObjectId::new(INODE, 0), "its host file is missing".to_owned())]),
        OstReply::Extents(FoundExtents {
            extents: vec![
                Extent { offset: 0, bytes: 4096, place: ExtentPlace::Tables },
                Extent { offset: 8192, bytes: 1 << 20, place: ExtentPlace::Device(1 << 40) },
                Extent { offset: 1 << 30, bytes: 4096, place: ExtentPlace::HostFile },
            ],
            next: Some(2 << 30),
        }),
    ];
    let mgs = [MgsReply::Done, MgsReply::Map(map)];
    let mdt = mdt_replies().into_iter().map(Reply::Mdt);
    mdt.chain(ost.map(Reply::Ost)).chain(mgs.map(Reply::Mgs)).collect()
}

fn family_of(reply: &Reply) -> Family {
    match reply {
        Reply::Mdt(_) => Family::Mdt,
        Reply::Ost(_) => Family::Ost,
        Reply::Mgs(_) => Family::Mgs,
    }
}

#[test]
fn every_request_survives_the_wire_under_its_own_opcode() {
    let mut seen = Vec::new();
    for request in requests() {
        let opcode = opcode::of(&request);
        let body = encode_request(&Default::default(), &request).unwrap().bytes;
        assert_eq!(u16::from(body[0]), opcode.0 & 0xff, "{opcode}: the opcode's variant is the body's");
        assert_eq!(decode_request(opcode, &body).as_ref(), Ok(&request));
        seen.push(opcode.kind().unwrap());
    }
    let is_removed = |kind: &RequestKind| REMOVED.map(RequestKind::Mdt).contains(kind);
    let present: Vec<_> = RequestKind::all().filter(|kind| !is_removed(kind)).collect();
    assert_eq!(seen, present, "the samples cover the table");
}

#[test]
fn every_part_of_an_operation_survives_the_wire() {
    for part in parts() {
        let request = Request::Mdt(MdtRequest::Prepare(Prepare { operation: operation(), part }));
        let body = encode_request(&Default::default(), &request).unwrap().bytes;
        assert_eq!(decode_request(opcode::of(&request), &body), Ok(request));
    }
}

#[test]
fn removed_requests_are_refused_whatever_they_contain() {
    for kind in REMOVED {
        for contents in [&[][..], &[0], &[5, 1, 2, 3, 4, 5]] {
            let body = [&[kind as u8], contents].concat();
            let refused = decode::<MdtRequest>(&body).unwrap_err().to_string();
            assert!(refused.contains("was removed"), "{kind:?}: {refused}");
        }
    }
}

#[test]
fn every_reply_survives_the_wire() {
    for reply in replies() {
        let body = encode_reply(&Default::default(), &reply).unwrap().bytes;
        assert_eq!(decode_reply(family_of(&reply), &body), Ok(reply));
    }
}

#[test]
fn accesses_have_these_bytes() {
    let time = Timestamp { seconds: -5, nanoseconds: 300 };
    let request = MdtRequest::NoteAccesses(vec![Access { inode: InodeNumber(7), lock: LockHandle(9), time }]);
    // Number; how many; length, inode, lock, and the time after its length.
    let golden = [51, 1, 6, 7, 9, 3, 9, 0xac, 2];
    assert_eq!(encode(&request).unwrap()[..], golden);
    assert_eq!(decode::<MdtRequest>(&golden), Ok(request));
    let reply = MdtReply::AccessesNoted(vec![None, Some(NotedAccess { version: 7, time })]);
    let golden = [26, 2, 0, 1, 5, 7, 3, 9, 0xac, 2];
    assert_eq!(encode(&reply).unwrap()[..], golden);
    assert_eq!(decode::<MdtReply>(&golden), Ok(reply));
}

#[test]
fn counts_of_shards_have_the_bytes_of_counts_of_mdts() {
    #[derive(Serialize)]
    struct Before {
        count: Option<u16>,
        first: Option<MdtIndex>,
        hash: Option<NameHash>,
        levels: Option<u8>,
        spread_levels: Option<u8>,
    }
    for (now, before) in [
        (ShardCount::All, None),
        (ShardCount::Exactly(2), Some(2)),
        (ShardCount::Overstriped(4), Some(0x8004)),
        (ShardCount::PerMdt(2), Some(0xc002)),
    ] {
        let DirectoryDefault { first, hash, levels, spread_levels, .. } = directory_default();
        let former = Before { count: before, first, hash, levels, spread_levels };
        let default = DirectoryDefault { count: now, ..directory_default() };
        let bytes = encode(&default).unwrap();
        assert_eq!(bytes, encode(&former).unwrap(), "{now:?}");
        assert_eq!(decode::<DirectoryDefault>(&bytes), Ok(default));
    }
}

#[test]
fn a_compound_has_these_bytes() {
    let steps = vec![
        Step::Lookup { parent: StepInode::Known(InodeNumber(1)), name: b"f".to_vec() },
        Step::Open { inode: StepInode::Of(0), open: OpenId(7), flags: OpenFlags(1) },
        Step::Read { inode: StepInode::Of(1), offset: 0, bytes: 300 },
        Step::Close { inode: StepInode::Of(1), open: OpenId(7), written: None },
    ];
    let who = Credentials { uid: 2, gid: 3, groups: None };
    let request = MdtRequest::Compound(Compound { who, steps });
    // Number and length of the compound; who; number of steps.
    let mut golden = vec![38, 30, 3, 2, 3, 0, 4];
    golden.extend([0, 4, 0, 1, 1, b'f']);
    golden.extend([6, 4, 1, 0, 7, 1]);
    golden.extend([9, 5, 1, 1, 0, 0xac, 2]);
    golden.extend([10, 4, 1, 1, 7, 0]);
    assert_eq!(encode(&request).unwrap()[..], golden);
    assert_eq!(decode::<MdtRequest>(&golden), Ok(request));
    let error = Some(FsError::NotSupported);
    let reply = MdtReply::Compound(CompoundReply { replies: vec![StepReply::Done, StepReply::Waiting], error });
    let encoded = encode(&reply).unwrap();
    assert_eq!(encoded[..6], [18, encoded[1], 2, 0, 9, 1]);
    assert_eq!(decode(&encoded), Ok(reply));
}

#[test]
fn a_compound_has_no_steps_of_other_kinds() {
    // A step that is none, and one that would be a compound.
    for step in [&[11, 0][..], &[38, 30, 3, 2, 3, 0, 1], &[0x80, 0x80, 0x80, 0x80, 0x80]] {
        let mut bytes = vec![38, 0, 3, 2, 3, 0, 1];
        bytes.extend(step);
        bytes[1] = bytes.len() as u8 - 2;
        assert!(decode::<MdtRequest>(&bytes).is_err(), "{bytes:?}");
    }
    // More steps than there are bytes.
    let many = [38, 9, 3, 2, 3, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(matches!(decode::<MdtRequest>(&many), Err(MessageDecodeError::CountRange { .. })));
}

#[test]
fn errors_and_greetings_survive_the_wire() {
    let errors = [
        FsError::NotFound,
        FsError::Evicted,
        FsError::Unreachable {
            target: "stria-OST0003".to_owned(),
            seconds: 100,
            cause: Some("connection refused".to_owned()),
        },
        FsError::Corrupt { object: ObjectId::default(), ost: OstIndex(3), offset: 4096 },
        Damage::Told("why".to_owned()).into(),
        FsError::CorruptOnMdt { object: ObjectId::default(), mdt: MdtIndex(3), offset: 4096 },
        FsError::LayoutChanged,
        FsError::TextFileBusy,
        FsError::AwaitsMdt(MdtIndex(3)),
    ];
    for error in errors {
        assert_eq!(decode::<FsError>(&encode(&error).unwrap()), Ok(error));
    }
    let connect = Connect {
        version_min: 1,
        version_max: 2,
        features: u64::MAX,
        target: "MGS".to_owned(),
        client: ClientId(1),
        client_name: "host".to_owned(),
        connection: Generation(1),
        resume: true,
        incarnation: 5,
        role: Role::Mover,
        node: "host".to_owned(),
        claim: Some(Claim::Key { nonce: [9; 32] }),
    };
    assert_eq!(decode(&encode(&connect).unwrap()), Ok(connect));
    let ticket = Ticket::issue(&"11".repeat(32).parse().unwrap(), "MGS", ClientId(1), 2);
    let connected = Connected {
        version: 1,
        features: 0,
        incarnation: 2,
        resumed: true,
        slots: 256,
        lease_ms: 30_000,
        era: 3,
        urgent_slots: 1,
        ticket: Some(ticket),
    };
    assert_eq!(decode(&encode(&connected).unwrap()), Ok(connected));
}

/// Those with contents. The numbers of all variants are in the tests of `types::error`.
#[test]
fn bytes_of_errors_are_the_published_ones() {
    let (target, why) = (|| "T".to_owned(), || "why".to_owned());
    let object = ObjectId::new(InodeNumber(0x0001_0000_0000_0100), 2);
    let published = [
        (FsError::NotFound, "00"),
        (FsError::Device { target: target(), detail: why() }, "1f06015403776879"),
        (FsError::Corrupt { object, ost: OstIndex(3), offset: 4096 }, "200d09808280808080400200038020"),
        (FsError::Unreachable { target: target(), seconds: 100, cause: None }, "220401546400"),
        (FsError::Unreachable { target: target(), seconds: 100, cause: Some(why()) }, "22080154640103776879"),
        (Damage::new("data", "why").into(), "2309646174613a20776879"),
        (ProtocolError::Codec(why()).into(), "2403776879"),
        (Refusal::Told(why()).into(), "2703776879"),
        (FsError::CorruptOnMdt { object, mdt: MdtIndex(3), offset: 4096 }, "280d09808280808080400200038020"),
        (FsError::LayoutChanged, "29"),
        (TooMany::Told(why()).into(), "2a03776879"),
        (FsError::TextFileBusy, "2b"),
    ];
    for (error, hex) in published {
        let found: String = encode(&error).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{error:?}");
    }
}

#[test]
fn opcodes_are_the_published_ones() {
    let published = [
        (MdtRequest::Lookup(root(), Lookup { parent: INODE, name: vec![] }), 0x0100),
        (MdtRequest::Ping, 0x011e),
        (MdtRequest::Disconnect, 0x0122),
        (MdtRequest::Instantiate(Instantiate { inode: INODE, open: OpenId(7), start: 0, end: 1 }), 0x0123),
        (MdtRequest::ReadData(OstRequest::Glimpse(vec![])), 0x0125),
        (MdtRequest::Compound(compound()), 0x0126),
        (MdtRequest::ChangeLayout(root(), INODE, LayoutChange::Add(vec![])), 0x0127),
        (MdtRequest::ReportFull(OstIndex(0)), 0x0128),
    ];
    for (request, opcode) in published {
        assert_eq!(opcode::of(&Request::Mdt(request)).0, opcode);
    }
    assert_eq!(opcode::of(&Request::Ost(OstRequest::Ping)).0, 0x020b);
    assert_eq!(opcode::of(&Request::Mgs(MgsRequest::Ping)).0, 0x0304);
    assert_eq!(opcode::CONNECT.0, 0x0001);
}

/// A message as an old binary knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Old {
    inner: OldInner,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OldInner {
    a: u32,
}

/// The same message as a new binary knows it: it grew within and at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct New {
    inner: NewInner,
    name: String,
    #[serde(default)]
    more: Vec<u64>,
    #[serde(default = "seven")]
    number: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NewInner {
    a: u32,
    #[serde(default)]
    b: Option<String>,
}

/// As `New`, but its author forgot the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Careless {
    inner: OldInner,
    name: String,
    more: u8,
}

fn seven() -> u8 {
    7
}

#[test]
fn messages_grow_both_ways() {
    let old = vec![Old { inner: OldInner { a: 1 }, name: "x".repeat(200) }; 2];
    let new = vec![
        New {
            inner: NewInner { a: 1, b: Some("y".repeat(20_000)) },
            name: "x".repeat(200),
            more: vec![u64::MAX; 3],
            number: 9
        };
        2
    ];
    assert_eq!(decode::<Vec<Old>>(&encode(&new).unwrap()), Ok(old.clone()));
    let defaulted = New { inner: NewInner { a: 1, b: None }, name: "x".repeat(200), more: vec![], number: 7 };
    assert_eq!(decode::<Vec<New>>(&encode(&old).unwrap()), Ok(vec![defaulted; 2]));
    assert_eq!(decode::<Vec<New>>(&encode(&new).unwrap()), Ok(new));
    assert!(matches!(decode::<Vec<Careless>>(&encode(&old).unwrap()), Err(MessageDecodeError::Message(_))));
}

/// A rename as clients sent it before they could make the source's data durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OldRename {
    parent: InodeNumber,
    name: Vec<u8>,
    new_parent: InodeNumber,
    new_name: Vec<u8>,
    mode: RenameMode,
}

#[test]
fn a_rename_of_an_old_client_is_carried_out_at_once() {
    let (parent, name, mode) = (INODE, vec![1], RenameMode::Replace);
    let old = OldRename { parent, name: name.clone(), new_parent: parent, new_name: name.clone(), mode };
    let source_data = SourceData::AsIs;
    let new = Rename {
        parent,
        name: name.clone(),
        new_parent: parent,
        new_name: name,
        mode,
        source_data,
        mdt_era: None,
        same_directory: false,
    };
    assert_eq!(decode::<Rename>(&encode(&old).unwrap()), Ok(new.clone()));
    let new = Rename { source_data: SourceData::SyncIfAsked, ..new };
    assert_eq!(decode::<OldRename>(&encode(&new).unwrap()), Ok(old), "an old MDT does as it always did");
}

/// The answer to `StatFs`, byte by byte, and as it was before targets named their devices and the
/// speeds of these.
#[test]
fn space_names_its_device_and_is_understood_without() {
    let space = SpaceUsage {
        bytes_total: 1,
        bytes_free: 2,
        bytes_available: 3,
        inodes_total: 4,
        inodes_free: 5,
        device: Some(DeviceId(0x80)),
    };
    let condition = TargetCondition {
        read: Moved { bytes: 6, busy_us: 7 },
        written: Moved { bytes: 8, busy_us: 9 },
        ..TargetCondition::default()
    };
    let reply = |space| OstReply::Space(space, condition);
    let golden = [5, 8, 1, 2, 3, 4, 5, 1, 0x80, 1, 10, 0, 0, 0, 0, 2, 6, 7, 2, 8, 9];
    assert_eq!(encode(&reply(space)).unwrap()[..], golden);
    assert_eq!(decode::<OstReply>(&golden), Ok(reply(space)));
    let old = [5, 5, 1, 2, 3, 4, 5, 4, 0, 0, 0, 0];
    assert_eq!(
        decode::<OstReply>(&old),
        Ok(OstReply::Space(SpaceUsage { device: None, ..space }, TargetCondition::default()))
    );
}

#[test]
fn what_is_no_message_is_named() {
    assert_eq!(decode::<u32>(&[]), Err(MessageDecodeError::Truncated));
    assert_eq!(decode::<u32>(&[0x80]), Err(MessageDecodeError::Truncated));
    assert_eq!(decode::<u32>(&[0xff, 0xff, 0xff, 0xff, 0x1f]), Err(MessageDecodeError::NumberRange));
    assert_eq!(decode::<u64>(&[0xff; 10]), Err(MessageDecodeError::NumberRange));
    assert_eq!(decode::<bool>(&[2]), Err(MessageDecodeError::NotBool(2)));
    assert_eq!(decode::<Vec<u8>>(&[5, 0]), Err(MessageDecodeError::CountRange { count: 5, remaining: 1 }));
    assert_eq!(decode::<String>(&[1, 0xff]), Err(MessageDecodeError::NotText));
    assert_eq!(decode::<u8>(&[1, 2, 3]), Err(MessageDecodeError::Trailing(2)));
    assert!(matches!(decode::<FileKind>(&[99]), Err(MessageDecodeError::Message(_))));
    let unknown = Opcode(0x01ff);
    assert_eq!(decode_request(unknown, &[]), Err(MessageDecodeError::UnknownOpcode(0x01ff)));
    let ping = encode_request(&Default::default(), &Request::Mdt(MdtRequest::Ping)).unwrap().bytes;
    let mismatch = MessageDecodeError::OpcodeMismatch { header: 0x0122, body: 0x011e };
    assert_eq!(decode_request(Opcode(0x0122), &ping), Err(mismatch));
    let too_large = vec![0u8; BODY_BYTES_MAX];
    assert_eq!(encode(&too_large), Err(EncodeError::TooLarge));
}

/// A list that nests as deep as its bytes say.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Nested(Option<Box<Nested>>);

#[test]
fn nesting_is_bounded() {
    let mut bytes = vec![1; 1000];
    bytes.push(0);
    assert_eq!(decode::<Nested>(&bytes), Err(MessageDecodeError::TooDeep));
    assert!(decode::<Nested>(&[1, 1, 1, 0]).is_ok());
}

#[test]
fn ambiguous_fields_cannot_be_encoded() {
    #[derive(Serialize)]
    struct Empty {
        nothing: (),
    }
    assert!(encode(&Empty { nothing: () }).is_err());
}

/// A type without named structs: its encoding is postcard's, byte by byte.
type Primitives = (bool, u8, u16, u32, u64, (i8, i16, i32, i64), String, Option<Vec<u16>>, char);

proptest! {
    #[test]
    fn primitives_are_postcards(value in any::<Primitives>()) {
        let ours = encode(&value).unwrap();
        prop_assert_eq!(&ours[..], &postcard::to_allocvec(&value).unwrap()[..]);
        prop_assert_eq!(decode::<Primitives>(&ours), Ok(value));
    }

    #[test]
    fn structs_of_every_length_carry_it(bytes in 0usize..40_000) {
        let value = Old { inner: OldInner { a: 5 }, name: "z".repeat(bytes) };
        prop_assert_eq!(decode::<Old>(&encode(&value).unwrap()), Ok(value));
    }

    #[test]
    fn random_bytes_never_panic(opcode in 0u16..0x0400, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_request(Opcode(opcode), &bytes);
        for family in [Family::Mdt, Family::Ost, Family::Mgs] {
            let _ = decode_reply(family, &bytes);
        }
        let _ = decode::<FsError>(&bytes);
        let _ = decode::<Connect>(&bytes);
    }

    /// Damaged real messages reach deeper than random bytes. What still decodes encodes again.
    #[test]
    fn damaged_messages_never_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let samples = requests();
        let request = which.get(&samples);
        let mut body = encode_request(&Default::default(), request).unwrap().bytes.to_vec();
        let position = at.index(body.len());
        body[position] = byte;
        if let Ok(other) = decode_request(opcode::of(request), &body) {
            prop_assert!(encode_request(&Default::default(), &other).is_ok());
        }
        body.truncate(cut.index(body.len() + 1));
        let _ = decode_request(opcode::of(request), &body);
    }
}
