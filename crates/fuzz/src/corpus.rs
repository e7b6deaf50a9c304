//! Valid inputs to start from: records of the image in `crates/stria/tests/inspect`, and messages
//! of every kind.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock},
};

use bytes::{Bytes, BytesMut};
use fuse::protocol::Opcode as KernelOpcode;
use kv::{
    Batch, Checkpoint, ColdStore, Config, Lsn, MemoryCold, Operation, Store, Table, Term, TreeCold,
    cold::tree::TreePart,
    inspect::Finding,
    journal::{
        format::{Record, SEGMENT_HEADER_BYTES, SegmentHeader, payload_bytes},
        logged::LoggedOperation,
        patch::Patch,
    },
    superblock::STORE_FILE,
};
use layout::{
    BackingSpec, ComponentId, ComponentSpec, END_OF_FILE, Extent, Layout, LayoutSpec, PlainLayout, StripeCount,
    StripeSpec, lov, text,
};
use lock::{LockFamily, LockMode, LockRange};
use mds::tables::{DATA, REPLIES, data};
use oss::{
    chunk_record::{BlockState, ChunkRecord, Former},
    device_label::DeviceLabel,
    tables::{BITMAPS, CHUNKS, GROUPS, group_key, part_key, piece_key},
};
use rpc::Role;
use rpc::message::control::{ControlReply, ControlRequest};
use rpc::{
    codec::{self, opcode},
    message::{
        ClientReply, ClientRequest, Compound, CompoundReply, LeaveFullOst, LeaveStep, MdtReply, MdtRequest, MgsReply,
        MgsRequest, OstReply, OstRequest, Relocation, ReplyExtension, Request, RequestExtension, Step, StepInode,
        StepReply,
        client::{Blocking, Glimpsed},
        extension::{Change, ChangedName, Chosen, ClosedBeside, InodeVersion, Sequence, SpaceReport},
        lock::{CacheMode, Enqueue, Granted, InodeBits, Resource, inode_bit},
        mdt::{
            Access, ClaimLocks, Close, Create, CreateUnnamed, DataVersion, Entry, Finding as CheckFinding, GetLock,
            LockClaim, Lookup, MovingNames, NotedAccess, Open, OpenFlags, OpenId, ReadDirectory, Reclaim,
            RegisterOpens, Rename, RenameMode, ReturningNames, SetLock, SetXattr, SizeUpdate, SourceData, SwapLayouts,
            SwapSide, WaitTicket, XattrMode,
        },
        mdt_peer::{
            Above, AddLink, Ancestry, CopyAttributes, Decided, Decisions, DropLink, FollowName, GiveNames, Join,
            Joined, MakeDirectory, MoveLink, MoveName, OperationId, Part, Prepare, Prepared, RemoteName, RemoteNames,
            RemoteNamesAfter, SplitDirectory,
        },
        mgs::{ClusterMap, MapTarget, Register, TargetRole, TargetState},
        moved_inode::{GivenInode, GivenName, LeadNames},
        name_repair::{CorrectLink, NameRepair, NameState},
        ost::{self, ObjectAttributes, ReadDone, SpaceChange, TargetCondition},
        session::{Claim, Connect, Connected},
    },
    stored_reply,
};
use rt::{
    Device, FrameHeader, Seams,
    memory::{MemoryDevice, MemoryTransport, seams},
    real::{Execution, IoThreads, LocalDirectory},
};
use types::{
    Attributes, ClientId, Credentials, DirectoryDefault, DirectoryMap, FileKind, FsError, Generation, InodeNumber,
    LockHandle, MdtIndex, NameHash, NodeKind, ObjectId, OstIndex, Owner, SetAttributes, SetTime, ShardCount,
    SpaceUsage, Stripes, Timestamp,
};

const INODE: InodeNumber = InodeNumber(0x100);
const OBJECT: ObjectId = ObjectId::new(INODE, 1);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Operations in the journals of the image's targets, by the beginning of the target's name.
static IMAGE: LazyLock<Vec<(String, Operation)>> = LazyLock::new(|| {
    let place = tempfile::tempdir().expect("a directory");
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stria/tests/inspect/image.tar.gz");
    let unpacked = Command::new("tar").arg("-xzSf").arg(image).arg("-C").arg(place.path()).status();
    assert!(unpacked.expect("tar is installed").success(), "the image cannot be unpacked");
    let mut operations = Vec::new();
    for entry in place.path().join("image").read_dir().expect("the image is a directory") {
        let target: PathBuf = entry.expect("the image can be read").path();
        let name = target.file_name().expect("a target has a name").to_string_lossy().into_owned();
        let threads = Arc::new(IoThreads::new("corpus", 1).expect("threads"));
        let device = LocalDirectory::open(target.join("journal"), Execution::Inline, threads).expect("a journal");
        let mut visit = |finding| {
            if let Finding::Record { operations: Ok(found), .. } = finding {
                let whole = found.into_iter().filter_map(|operation| match operation {
                    LoggedOperation::Whole(operation) => Some((name.clone(), operation)),
                    LoggedOperation::Patched(..) => None,
                });
                operations.extend(whole);
            }
            true
        };
        block_on(kv::inspect::journal(&device, &mut visit)).expect("the journal can be read");
    }
    operations
});

/// Records of the image's targets of a kind: table, length of the key, key, value.
fn records_of(kind: &str) -> Vec<Vec<u8>> {
    let of_kind = IMAGE.iter().filter(|(target, _)| target.starts_with(kind));
    let records = of_kind.filter_map(|(_, operation)| match operation {
        Operation::Put(table, key, value) => Some([&[table.0, key.len() as u8], &key[..], &value[..]].concat()),
        Operation::Delete(..) => None,
    });
    records.collect()
}

pub(crate) fn mdt_records() -> Vec<Vec<u8>> {
    let mut records = records_of("mdt");
    let object = data::ObjectRecord { size: 4000, mtime: Timestamp::default(), blocks: 1, changes: 1 }.encode();
    let block = data::encode_block(0x1234_5678, &[7; 300]);
    for (key, value) in [(data::object_key(OBJECT), object), (data::block_key(OBJECT, 3), block)] {
        records.push([&[DATA.0, key.len() as u8], &key[..], &value[..]].concat());
    }
    records
}

pub(crate) fn ost_records() -> Vec<Vec<u8>> {
    let superblock = |blocks| {
        let engine = oss::Engine::on_device(blocks);
        let record = oss::Superblock { index: OstIndex(1), identity: [5; 16], fsname: "stria".to_owned(), engine };
        let key = oss::superblock::SUPERBLOCK_KEY;
        [&[oss::tables::META.0, key.len() as u8], key, &record.encode()].concat()
    };
    let superblocks = [4096, 0, 1, u64::MAX].map(superblock);
    records_of("ost").into_iter().chain(device_records()).chain(superblocks).collect()
}

/// What an OST with a device has in its tables.
pub(crate) fn device_records() -> Vec<Vec<u8>> {
    let mut chunk = ChunkRecord::default();
    for block in 0..9 {
        let epoch = block % 3;
        chunk.set(block, BlockState::OnDevice { checksum: 7, epoch, address: 100 + block * 2 / 3 });
        if epoch == 2 {
            chunk.set_former(block, Former { checksum: 8, address: 300 });
        }
    }
    chunk.set(20, BlockState::Inline { checksum: 9 });
    // A summary has a version and three numbers.
    let summary = [&[1][..], &[0, 0x80, 0, 0], &[0, 0x40, 0, 0], &[2, 0, 0, 0]].concat();
    let records = [
        (CHUNKS, part_key(OBJECT, 3).to_vec(), chunk.encode()),
        (GROUPS, group_key(1).to_vec(), summary),
        (BITMAPS, piece_key(0, 5).to_vec(), vec![0x81; 64]),
    ];
    let entry =
        |(table, key, value): (Table, Vec<u8>, Vec<u8>)| [&[table.0, key.len() as u8], &key[..], &value].concat();
    records.into_iter().map(entry).collect()
}

pub(crate) fn device_labels() -> Vec<Vec<u8>> {
    let label = |fsname: &str, blocks| {
        let (tables, fsname) = (oss::tables_part::TablesPart::of_new(blocks, None), fsname.to_owned());
        DeviceLabel { index: OstIndex(1), identity: [5; 16], fsname, blocks, tables, key: None }
    };
    [("stria", 4096), ("a", 1 << 40), ("b", 0), ("c", 1), ("d", u64::MAX)]
        .map(|(name, blocks)| label(name, blocks).encode())
        .to_vec()
}

/// Nodes of the trees here.
pub const TREE_NODES: usize = 24;
/// Their size.
pub const TREE_NODE_BYTES: usize = 4096;

/// The place of a tree that is a whole device.
pub fn tree_part(device: &MemoryDevice) -> TreePart {
    let device: Arc<dyn Device> = Arc::new(device.clone());
    let bytes = (TREE_NODES * TREE_NODE_BYTES) as u64;
    TreePart { at_once: device.clone(), device, file: "tree".to_owned(), offset: 0, bytes }
}

/// Trees with several levels and a value in nodes of its own.
pub(crate) fn trees() -> Vec<Vec<u8>> {
    block_on(async {
        let device = MemoryDevice::new();
        let part = tree_part(&device);
        device.truncate("tree", part.bytes).await.expect("memory");
        TreeCold::create(&part, TREE_NODE_BYTES, 7).await.expect("memory");
        let tree = TreeCold::open(&part, 0).expect("it was made");
        let mut images = Vec::new();
        for round in 0u8..2 {
            let put = |number: u8| Operation::Put(Table(1), vec![number; 40].into(), vec![round; 150].into());
            let long = Operation::Put(Table(2), Bytes::from_static(b"long"), vec![3; 9000].into());
            tree.write((0..80).map(put).chain([long]).collect()).await.expect("there is room");
            tree.commit(Checkpoint { store: 5, lsn: Lsn(1), term: Term(0) }).await.expect("memory");
            images.push(device.read("tree", 0, vec![0; part.bytes as usize]).await.expect("memory").0);
        }
        images
    })
}

pub(crate) fn mgs_records() -> Vec<Vec<u8>> {
    records_of("mgs")
}

/// A store with a few batches, and where they are.
pub struct SmallStore {
    /// Its number.
    pub store: u64,
    /// The contents of the file that identifies it.
    pub store_file: Vec<u8>,
    /// Its journal.
    pub segment: Vec<u8>,
    /// Offsets of the records in `segment`.
    pub records: Vec<usize>,
}

/// See [`SmallStore`].
pub static SMALL_STORE: LazyLock<SmallStore> = LazyLock::new(|| {
    block_on(async {
        let (device, cold) = (MemoryDevice::new(), MemoryCold::new());
        let seams: Seams = seams(&MemoryTransport::new(), 1);
        let (shared, cold): (Arc<dyn Device>, Arc<dyn ColdStore>) = (Arc::new(device.clone()), Arc::new(cold));
        let store = Store::open(seams, shared, cold.clone(), Config::small(), &mut |_, _| {}).await.expect("opens");
        for number in 0u8..8 {
            let mut batch = Batch::default();
            batch.put(Table(number), vec![number; 5], vec![number; 40]);
            batch.delete(Table(1), vec![number]);
            store.durable(store.apply(batch).expect("there is room")).await.expect("memory does not fail");
        }
        let Checkpoint { store: id, .. } = cold.checkpoint().expect("memory").expect("a store has one");
        let read = async |name: &str, bytes: usize| {
            let (mut contents, filled) = device.read(name, 0, vec![0; bytes]).await.expect("memory");
            contents.truncate(filled);
            contents
        };
        let (store_file, segment) = (read(STORE_FILE, 4096).await, read("journal.0", 8 << 10).await);
        let mut records = Vec::new();
        let mut offset = SEGMENT_HEADER_BYTES as usize;
        while let Some(record) = segment.get(offset..).and_then(Record::decode) {
            records.push(offset);
            offset += record.space() as usize;
        }
        assert!(records.len() >= 8, "{}", records.len());
        SmallStore { store: id, store_file, segment, records }
    })
});

pub(crate) fn stores() -> Vec<Vec<u8>> {
    vec![SMALL_STORE.segment.clone()]
}

pub(crate) fn store_files() -> Vec<Vec<u8>> {
    vec![SMALL_STORE.store_file.clone()]
}

pub(crate) fn journal_segment_headers() -> Vec<Vec<u8>> {
    let header = SegmentHeader { store: 7, sequence: 1 << 33, first: Lsn(9), segment_bytes: 16 << 20 };
    vec![header.encode().to_vec(), SMALL_STORE.segment[..64].to_vec()]
}

pub(crate) fn journal_records() -> Vec<Vec<u8>> {
    let whole = |(_, operation): &(String, Operation)| LoggedOperation::new(operation, None);
    let patch = Patch { offset: 7, removed: 3, checksum: 5, inserted: Bytes::from_static(b"new") };
    let patched = LoggedOperation::Patched(Table(3), Bytes::from_static(b"key"), patch);
    let batches = IMAGE.chunks(3).map(|operations| operations.iter().map(whole).collect::<Vec<_>>());
    let batches = batches.chain([vec![patched]]);
    let encode = |batch: Vec<LoggedOperation>| {
        let payload_bytes = payload_bytes(&batch) as u32;
        let record = Record { lsn: Lsn(8), store: 7, sequence: 1, flushed: Lsn(5), term: Term(2), payload_bytes };
        let mut bytes = BytesMut::new();
        record.encode(&batch, &mut bytes);
        bytes.to_vec()
    };
    batches.map(encode).filter(|record| record.len() < 8192).collect()
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let header = FrameHeader { version: 1, opcode: 0x0201, slot: 3, xid: 9, connection: 1, ..FrameHeader::default() };
    let frame = rt::Frame::new(header, Bytes::from_static(b"body"), Bytes::new()).expect("small");
    vec![[&frame.header.encode()[..], b"body"].concat()]
}

fn layout() -> Layout {
    let plain = PlainLayout { stripe_bytes: 65536, osts: vec![OstIndex(3), OstIndex(0)] };
    Layout::plain(Generation(1), plain, StripeSpec::default())
}

fn spec() -> LayoutSpec {
    LayoutSpec::Plain(StripeSpec {
        stripe_count: StripeCount::Exactly(2),
        stripe_bytes: Some(65536),
        first_ost: Some(OstIndex(1)),
        ..StripeSpec::default()
    })
}

fn update() -> SizeUpdate {
    SizeUpdate {
        epoch: 3,
        size: 1 << 40,
        blocks: 8,
        mtime: Some(Timestamp { seconds: -1, nanoseconds: 7 }),
        changes: 1 << 40,
    }
}

fn mdt_requests() -> Vec<MdtRequest> {
    let root = Credentials { uid: 1000, gid: 1000, groups: Some(vec![4, 20]) };
    let (name, open) = (b"name".to_vec(), OpenId(5));
    let set = SetAttributes { mode: Some(0o644), atime: Some(SetTime::Now), ..SetAttributes::default() };
    let side = SwapSide { inode: INODE, open: Some(open), known: update() };
    let lock = SetLock {
        inode: INODE,
        family: LockFamily::Posix,
        owner: 1,
        pid: 2,
        range: LockRange { start: 0, end: u64::MAX },
        mode: LockMode::Exclusive,
        ticket: Some(WaitTicket(3)),
    };
    let create = Create {
        parent: INODE,
        name: name.clone(),
        kind: NodeKind::Symlink(b"target".to_vec()),
        mode: 0o777,
        umask: 0o22,
        open: Some((open, OpenFlags(3))),
        layout: Some(spec()),
    };
    let claim = LockClaim { handle: LockHandle(5), inode: INODE, bits: InodeBits(3), version: 300 };
    let leave = |step| MdtRequest::LeaveFullOst(LeaveFullOst { inode: INODE, open, generation: Generation(4), step });
    vec![
        MdtRequest::Lookup(root.clone(), Lookup { parent: INODE, name: name.clone() }),
        MdtRequest::SetAttributes(root.clone(), INODE, set),
        MdtRequest::Create(root.clone(), create),
        MdtRequest::CreateUnnamed(
            root.clone(),
            CreateUnnamed { parent: INODE, mode: 1, umask: 2, open: (open, OpenFlags(3)) },
        ),
        MdtRequest::Open(root.clone(), Open { inode: INODE, open, flags: OpenFlags(3) }),
        MdtRequest::Close(Close { inode: INODE, open, update: Some(update()), flock_owner: Some(1) }),
        MdtRequest::Rename(
            root.clone(),
            Rename {
                parent: INODE,
                name: name.clone(),
                new_parent: INODE,
                new_name: name.clone(),
                mode: RenameMode::Exchange,
                source_data: SourceData::Synced(INODE),
                mdt_era: Some(3),
                same_directory: true,
            },
        ),
        MdtRequest::ReadDirectory(ReadDirectory {
            inode: INODE,
            open,
            cookie: 2,
            entries_max: 3,
            attributes: true,
            unasked: None,
        }),
        MdtRequest::SetXattr(
            root.clone(),
            SetXattr { inode: INODE, name: name.clone(), value: vec![7; 50], mode: XattrMode::Create },
        ),
        MdtRequest::SetDefaultLayout(root.clone(), INODE, Some(spec())),
        MdtRequest::SetLock(lock),
        MdtRequest::GetLock(GetLock {
            inode: INODE,
            owner: 1,
            range: LockRange { start: 5, end: 6 },
            mode: LockMode::Shared,
        }),
        MdtRequest::Reclaim(Reclaim { opens: vec![(INODE, open, OpenFlags(1))], done: true, ..Reclaim::default() }),
        MdtRequest::Ping,
        MdtRequest::ChangeData(OstRequest::Space(OBJECT, ost::SpaceChange::Truncate { size: 5 }, 1, Owner::default())),
        MdtRequest::Compound(compound()),
        MdtRequest::RepairSize(root, INODE, update()),
        MdtRequest::ReportFull(OstIndex(3)),
        leave(LeaveStep::Relocate(Relocation { epoch: 7, slots: vec![0, 1], refused: vec![OstIndex(3)] })),
        leave(LeaveStep::Fence(ComponentId(3))),
        leave(LeaveStep::LeaveOut(ComponentId(3), Extent { start: 4096, end: 8192 })),
        MdtRequest::DataVersion(Credentials::root(), DataVersion { inode: INODE, hold_writers: Some(open) }),
        MdtRequest::SwapLayouts(Credentials::root(), SwapLayouts { first: side, second: side }),
        MdtRequest::DropPrivileges(Credentials::root(), INODE),
        MdtRequest::CancelLocks(vec![LockHandle(5), LockHandle(1 << 40)]),
        MdtRequest::RegisterOpens(RegisterOpens { opens: vec![(INODE, open, OpenFlags(1))], complete: true }),
        MdtRequest::ClaimLocks(ClaimLocks { era: 1, locks: vec![claim; 2] }),
        MdtRequest::NoteAccesses(vec![Access { inode: INODE, lock: LockHandle(5), time: Timestamp::default() }; 2]),
    ]
    .into_iter()
    .chain(between_mdts())
    .collect()
}

fn operation() -> OperationId {
    OperationId { coordinator: MdtIndex(1), start: 1 << 32, number: 5 }
}

fn parts() -> [Part; 14] {
    let (name, new_name, who) = (b"name".to_vec(), b"new".to_vec(), Credentials::root());
    let (inode, parent) = (INODE, Attributes::zeroed(INODE, FileKind::Directory));
    let drop = DropLink { inode, parent, name: name.clone(), directory: true, who: who.clone() };
    let (new_parent, moved) = (INODE, new_name.clone());
    let rename = MoveLink {
        inode,
        parent,
        name: name.clone(),
        new_parent,
        new_name: moved,
        who: who.clone(),
        same_directory: true,
    };
    let of_name = MoveName {
        parent: INODE,
        name: name.clone(),
        new_parent: parent,
        new_name,
        target: Some((INODE, FileKind::Fifo)),
        exchange: true,
        era: Some(3),
        who,
        same_directory: true,
    };
    let add = AddLink { inode, parent: INODE, name };
    [
        Part::MakeDirectory,
        Part::DropLink(drop),
        Part::MoveLink(rename),
        Part::AddLink(add),
        Part::MoveName(of_name),
        Part::Tree,
        Part::MakeShard,
        Part::CopyAttributes(CopyAttributes { shard: INODE.as_shard(), master: INODE }),
        Part::FollowName(FollowName { inode, parent: INODE, name: b"name".to_vec(), shard: INODE.as_shard() }),
        Part::GiveInode(INODE),
        Part::LeadNames(LeadNames { parent: INODE, names: vec![b"name".to_vec(); 2], inode: InodeNumber(9) }),
        Part::GiveNames(GiveNames { shard: INODE.as_shard(), master: inode, names_max: 7 }),
        Part::GiveStriped(INODE),
        Part::CorrectLink(CorrectLink { inode, parent: INODE, name: b"name".to_vec(), state: NameState::Exists }),
    ]
}

fn directory_default() -> DirectoryDefault {
    let (first, hash) = (Some(MdtIndex(3)), Some(NameHash::Crush2));
    DirectoryDefault { count: ShardCount::Exactly(300), first, hash, levels: Some(3), spread_levels: Some(0) }
}

fn between_mdts() -> Vec<MdtRequest> {
    let (source, name, who) = (MdtIndex(1), b"name".to_vec(), Credentials::root());
    let prepare = |part| MdtRequest::Prepare(Prepare { operation: operation(), part });
    let stripes = Stripes { hash: NameHash::Crush2, mdts: vec![MdtIndex(300), MdtIndex(0)] };
    let others = [
        MdtRequest::SplitDirectory(who.clone(), SplitDirectory { directory: INODE, stripes: stripes.clone() }),
        MdtRequest::MakeDirectory(
            who.clone(),
            MakeDirectory { parent: INODE, name, mode: 0o777, umask: 0o22, mdt: MdtIndex(300), stripes },
        ),
        MdtRequest::MoveInode(who.clone(), INODE),
        MdtRequest::RepairName(who.clone(), NameRepair::Rescue(INODE)),
        MdtRequest::Abort(operation()),
        MdtRequest::Decisions(Decisions { source, first: 9, records: vec![vec![1, 2, 3]; 2] }),
        MdtRequest::Join(Join { source, start: 1 << 32, promised: vec![operation()] }),
        MdtRequest::RemoteNames(who, RemoteNamesAfter { of_names: true, key: Some(vec![1; 16]) }),
        MdtRequest::Above(Above { directory: INODE, from: InodeNumber(9) }),
        MdtRequest::SetDirectoryDefault(Credentials::root(), INODE, Some(directory_default())),
    ];
    parts().into_iter().map(prepare).chain(others).collect()
}

fn compound() -> Compound {
    let (made, open) = (StepInode::Of(1), OpenId(5));
    let steps = vec![
        Step::Lookup { parent: StepInode::Known(INODE), name: b"directory".to_vec() },
        Step::Create {
            parent: StepInode::Of(0),
            name: b"name".to_vec(),
            kind: NodeKind::Regular,
            mode: 0o644,
            umask: 0o22,
            layout: Some(spec()),
            open: Some((open, OpenFlags(3))),
        },
        Step::Write { inode: made, offset: 0, bytes: 9, checksums: vec![u32::MAX; 3] },
        Step::Close { inode: made, open, written: Some(2) },
        Step::SetAttributes { inode: made, set: SetAttributes { mode: Some(0o600), ..SetAttributes::default() } },
        Step::Open { inode: made, open, flags: OpenFlags(1) },
        Step::Read { inode: made, offset: 4096, bytes: 300 },
        Step::GetXattr { inode: made, name: b"user.a".to_vec() },
    ];
    Compound { who: Credentials::root(), steps }
}

fn register() -> Register {
    Register {
        fsname: "stria".to_owned(),
        role: TargetRole::Ost(OstIndex(4)),
        uuid: "0-1-2".to_owned(),
        addresses: vec!["host:988".to_owned(), "other:988".to_owned()],
        space: SpaceUsage { bytes_total: 1 << 50, ..SpaceUsage::default() },
        condition: TargetCondition { degraded: true, ..TargetCondition::default() },
    }
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    let ost = [
        OstRequest::Write(ost::Write {
            object: OBJECT,
            offset: 1 << 50,
            checksums: vec![7; 9],
            sync: true,
            layout_generation: 1,
            owner: Owner::default(),
        }),
        OstRequest::Read(ost::Read { object: OBJECT, offset: 4096, bytes: 1 << 20, layout_generation: 1 }),
        OstRequest::Space(OBJECT, SpaceChange::Allocate { offset: 1, bytes: 2, extend: true }, 1, Owner::default()),
        OstRequest::Fence(vec![OBJECT], 5),
        OstRequest::Glimpse(vec![OBJECT, OBJECT]),
        OstRequest::ListObjects(Some(OBJECT), 5),
        OstRequest::Extents(ost::ExtentsQuery { object: OBJECT, offset: 4096, bytes: u64::MAX, extents_max: 7 }),
        OstRequest::Evict(ClientId(9), None),
    ];
    let mgs = [
        MgsRequest::Register(register()),
        MgsRequest::GetMap(3),
        MgsRequest::SetParameter("a.*".to_owned(), "1".to_owned()),
        MgsRequest::SetState(TargetRole::Mdt(MdtIndex(0)), TargetState::Inactive),
        MgsRequest::PoolAdd("fast".to_owned(), vec![OstIndex(0), OstIndex(300)]),
    ];
    let requests = mdt_requests().into_iter().map(Request::Mdt);
    let requests = requests.chain(ost.into_iter().map(Request::Ost)).chain(mgs.into_iter().map(Request::Mgs));
    let encode = |request: Request| {
        let body = codec::encode_request(&Default::default(), &request).expect("small").bytes;
        [&opcode::of(&request).0.to_le_bytes()[..], &body].concat()
    };
    requests.map(encode).collect()
}

pub(crate) fn replies() -> Vec<Vec<u8>> {
    let target = MapTarget {
        role: TargetRole::Ost(OstIndex(2)),
        uuid: "u".to_owned(),
        addresses: vec!["host:988".to_owned()],
        state: TargetState::Active,
    };
    let map = ClusterMap {
        version: 7,
        fsname: "stria".to_owned(),
        targets: vec![target],
        parameters: vec![("a".to_owned(), "b".to_owned())],
        pools: Vec::new(),
    };
    let attributes = ObjectAttributes {
        size: 1 << 30,
        blocks: 8,
        mtime: Timestamp { seconds: 1, nanoseconds: 2 },
        changes: 1 << 40,
    };
    let ost = [
        OstReply::Read(ReadDone { checksums: vec![1, 2, 3], size: 9 }),
        OstReply::Attributes(vec![attributes; 3]),
        OstReply::Found(Some(1 << 40)),
        OstReply::Space(SpaceUsage::default(), TargetCondition::default()),
        OstReply::Objects(vec![(OBJECT, attributes)]),
        OstReply::Extents(ost::FoundExtents {
            extents: vec![
                ost::Extent { offset: 0, bytes: 4096, place: ost::ExtentPlace::Tables },
                ost::Extent { offset: 8192, bytes: 1 << 40, place: ost::ExtentPlace::Device(1 << 50) },
            ],
            next: Some(1 << 41),
        }),
    ];
    let finding = CheckFinding { inode: INODE, problem: "links 2, names 1".to_owned(), repaired: false };
    let stored = IMAGE.iter().filter_map(|(target, operation)| match operation {
        Operation::Put(REPLIES, _, value) if target.starts_with("mdt") => stored_reply::decode(value).ok(),
        _ => None,
    });
    let read = StepReply::Read(ReadDone { checksums: vec![1, 2], size: 9 });
    let replies = vec![StepReply::Done, StepReply::Target(b"target".to_vec()), read, StepReply::Waiting];
    let compound = CompoundReply { replies, error: Some(FsError::NotFound) };
    let found = RemoteName { inode: INODE, parent: InodeNumber(1), name: b"name".to_vec(), kind: FileKind::Directory };
    let shards = DirectoryMap { master: INODE, hash: NameHash::Fnv1a64, shards: vec![INODE.as_shard()] };
    let further = [
        MdtReply::Remote(INODE),
        MdtReply::PathsBelow(vec![(INODE, b"a/b".to_vec())]),
        MdtReply::Prepared(Box::new(Prepared {
            inode: INODE,
            start: 1 << 32,
            kind: FileKind::Regular,
            undurable: Some(layout()),
            parent: Some(Attributes::zeroed(INODE, FileKind::Directory)),
            map: Some(shards.clone()),
            entry: Some(Box::new(Entry::of(Attributes::zeroed(INODE, FileKind::Regular)))),
        })),
        MdtReply::Decided(Box::new(Decided {
            entry: Entry::of(Attributes::zeroed(INODE, FileKind::Directory)),
            map: Some(shards.clone()),
        })),
        MdtReply::Striped(shards),
        MdtReply::MovingNames(MovingNames { entries: Vec::new(), end: true, place: 1 << 60 }),
        MdtReply::Given(Box::new(GivenInode {
            record: vec![3; 130],
            links: vec![(INODE, b"other".to_vec())],
            names: vec![GivenName { name: b"name".to_vec(), inode: INODE, kind: FileKind::Fifo }],
            ..GivenInode::default()
        })),
        MdtReply::ReturningNames(ReturningNames {
            entries: Vec::new(),
            end: true,
            places: vec![(INODE.as_shard(), u64::MAX)],
        }),
        MdtReply::Ancestry(Ancestry::GoesOn(INODE)),
        MdtReply::Joined(Joined { start: 3, last: 7, ended: vec![operation()] }),
        MdtReply::RemoteNames(RemoteNames { found: vec![found], next: Some(vec![1; 16]) }),
        MdtReply::Findings(vec![finding]),
        MdtReply::Names(vec![vec![7; 9]]),
        MdtReply::Compound(compound),
        MdtReply::Absent,
        MdtReply::LocksClaimed(vec![Some(LockHandle(5)), None]),
        MdtReply::AccessesNoted(vec![Some(NotedAccess { version: 5, time: Timestamp::default() }), None]),
    ];
    let mdt = stored.map(|(_, reply)| reply).chain(further);
    let tagged = |tag: u8, body: Bytes| [&[tag], &body[..]].concat();
    mdt.map(|reply| tagged(0, codec::encode(&reply).expect("small")))
        .chain(ost.map(|reply| tagged(1, codec::encode(&reply).expect("small"))))
        .chain([tagged(2, codec::encode(&MgsReply::Map(map)).expect("small"))])
        .collect()
}

pub(crate) fn extensions() -> Vec<Vec<u8>> {
    let resource = Resource::Inode(INODE, InodeBits(inode_bit::LOOKUP));
    let wanted = Enqueue { resource, mode: CacheMode::Read, opportunistic: true };
    let versions = vec![InodeVersion { inode: INODE, before: 1, after: 2 }];
    let change = Change { lsn: types::Lsn(9), era: 1, versions, chosen: Chosen::default() };
    let request = RequestExtension {
        uid: 1000,
        gid: 100,
        job: "cc.1000".to_owned(),
        lock: Some(LockHandle(1)),
        wanted: Some(wanted),
        cancels: vec![LockHandle(2), LockHandle(300)],
        space: Some(SpaceReport::default()),
        replay: Some(change.clone()),
        sequence: Some(Sequence { source: MdtIndex(1), number: 2, era: 3 }),
        closes: vec![Close { inode: INODE, open: OpenId(3), update: None, flock_owner: None }],
        project: 300,
    };
    let granted = Granted { handle: LockHandle(5), resource, mode: CacheMode::Write, version: 6 };
    let reply = ReplyExtension {
        change: Some(change),
        committed: types::Lsn(8),
        granted: vec![granted],
        space: 1 << 20,
        changed: Vec::new(),
        data: Some(ReadDone { checksums: vec![1, 2], size: 5000 }),
        unregistered: true,
        names: vec![ChangedName {
            directory: InodeNumber(2),
            name: b"name".to_vec(),
            cookie: 1 << 40,
            target: Some((InodeNumber(3), FileKind::Regular)),
        }],
        closed: vec![None, Some(ClosedBeside { size_wanted: Some(7), ..ClosedBeside::default() })],
    };
    let blocking = ClientRequest::Blocking(Blocking { handle: LockHandle(5), resource, mode: CacheMode::Write });
    let glimpsed = ClientReply::Glimpse(Glimpsed { size: 9, mtime: None });
    let messages = [codec::encode(&request), codec::encode(&reply), codec::encode(&blocking), codec::encode(&glimpsed)];
    let chosen = |(choice, bytes): (usize, Result<Bytes, _>)| [&[choice as u8][..], &bytes.expect("small")].concat();
    messages.into_iter().enumerate().map(chosen).collect()
}

pub(crate) fn greetings() -> Vec<Vec<u8>> {
    let connect = Connect {
        version_min: 1,
        version_max: 1,
        features: 0,
        target: "stria-OST0003".to_owned(),
        client: ClientId(u64::MAX),
        client_name: "host:1".to_owned(),
        connection: Generation(1),
        resume: true,
        incarnation: 7,
        role: Role::Repair,
        node: "host".to_owned(),
        claim: Some(Claim::Key { nonce: [9; 32] }),
    };
    let connected = Connected {
        version: 1,
        features: 0,
        incarnation: 9,
        resumed: true,
        slots: 256,
        lease_ms: 30_000,
        era: 0,
        urgent_slots: 1,
        ticket: None,
    };
    let errors = [
        FsError::NotFound,
        FsError::Corrupt { object: OBJECT, ost: OstIndex(1), offset: 4096 },
        FsError::Unreachable {
            target: "stria-OST0003".to_owned(),
            seconds: 100,
            cause: Some("connection refused".to_owned()),
        },
    ];
    let mut inputs = vec![
        [&[0], &codec::encode(&connect).expect("small")[..]].concat(),
        [&[1], &codec::encode(&connected).expect("small")[..]].concat(),
    ];
    inputs.extend(errors.iter().map(|error| [&[2], &codec::encode(error).expect("small")[..]].concat()));
    inputs
}

pub(crate) fn access_lists() -> Vec<Vec<u8>> {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [entry(1, 7, none), entry(2, 6, 1000), entry(4, 5, none), entry(16, 7, none), entry(32, 0, none)];
    vec![[&2u32.to_le_bytes()[..], &entries.concat()].concat()]
}

pub(crate) fn layout_xattrs() -> Vec<Vec<u8>> {
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(2), ..StripeSpec::default() };
    let component = |end, backing| ComponentSpec { end, backing };
    let composite = LayoutSpec::Composite(vec![
        component(1 << 20, BackingSpec::Mdt),
        component(1 << 30, BackingSpec::Extended(stripes.clone(), 64 << 20)),
        component(END_OF_FILE, BackingSpec::Striped(StripeSpec { pool: Some("fast".to_owned()), ..stripes })),
    ]);
    let specs = [spec(), composite, LayoutSpec::Automatic];
    let binary = specs.iter().map(lov::encode_default).chain([lov::encode(INODE, &layout())]);
    binary.chain(specs.iter().map(|spec| text::default_yaml(spec).into_bytes())).collect()
}

/// A request of each kind with enough bytes for any structure, and names.
pub(crate) fn kernel_requests() -> Vec<Vec<u8>> {
    let request = |opcode: KernelOpcode| {
        let mut bytes = vec![0; 40];
        bytes[4..8].copy_from_slice(&(opcode as u32).to_le_bytes());
        bytes[8] = 5;
        bytes[16] = 1;
        for number in 0u8..12 {
            bytes.extend_from_slice(&u64::from(number).to_le_bytes());
        }
        bytes.extend_from_slice(b"name\0other\0");
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    let name_only = |opcode: KernelOpcode| {
        let mut bytes = request(opcode);
        bytes.drain(40..136);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    KernelOpcode::ALL.iter().flat_map(|opcode| [request(*opcode), name_only(*opcode)]).collect()
}

/// The same requests, as the kernel splits them for an entry of a ring.
pub(crate) fn ring_requests() -> Vec<Vec<u8>> {
    const HEADER_BYTES: usize = 40;
    const PART_BYTES: usize = 128;
    const STATE_BYTES: usize = 32;
    let split = |request: Vec<u8>| {
        let (header, body) = request.split_at(HEADER_BYTES);
        // Structures are whole words, and only opcodes without one begin with a name.
        let structure_bytes = if body.first() == Some(&b'n') { 0 } else { 96 };
        let (structure, payload) = body.split_at(structure_bytes);
        let mut entry = header.to_vec();
        entry.resize(PART_BYTES, 0);
        entry.extend_from_slice(structure);
        entry.resize(2 * PART_BYTES + STATE_BYTES, 0);
        let payload_at = 2 * PART_BYTES + 16;
        entry[payload_at..payload_at + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        entry.extend_from_slice(payload);
        entry
    };
    kernel_requests().into_iter().map(split).collect()
}

pub(crate) fn control_pages() -> Vec<Vec<u8>> {
    let requests = [ControlRequest::Targets, ControlRequest::Name, ControlRequest::InodePaths(INODE)];
    let replies = [
        ControlReply::Paths(vec![b"a/b".to_vec()]),
        ControlReply::Layout {
            inode: INODE,
            directory: false,
            layout: Some(layout()),
            own_default: Some(spec()),
            effective_default: None,
            map: None,
            directory_default: Some(directory_default()),
        },
    ];
    let mut inputs: Vec<Vec<u8>> =
        requests.iter().map(|request| rpc::codec::encode(request).expect("small").to_vec()).collect();
    inputs.extend(replies.iter().map(|reply| rpc::codec::encode(reply).expect("small").to_vec()));
    // A page as the tool sends it: its head, as documented at the ioctl, then the request.
    inputs.extend(pages(&inputs));
    inputs
}

fn pages(payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let page = |payload: &Vec<u8>| {
        let length = (payload.len() as u32).to_le_bytes();
        [&b"SFIO"[..], &[1, 0, 0, 0], &[0; 8], &[0; 4], &length, payload].concat()
    };
    payloads.iter().map(page).collect()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn mount_options() -> Vec<Vec<u8>> {
    texts(&[
        "defaults,ro,nosuid,_netdev,x-systemd.automount,timeout=30,threads=4,comment=a b",
        "mgs1:9800,[fe80::1]:9800:/stria",
        "10.0.0.1:/stria /mnt/stria -o rw,timeout=5 -n -v -t fuse.stria",
        "remount,rw,allow_other",
    ])
}

pub(crate) fn lfs_command_lines() -> Vec<Vec<u8>> {
    texts(&[
        "setstripe -c -1 -S4M --stripe-count=7 -vv file -- -c",
        "getstripe --hex --stripe 64k 16E 1048576",
        "fid2path /mnt [0x200000400:0x100:0x0]",
    ])
}

pub(crate) fn parameters() -> Vec<Vec<u8>> {
    texts(&[
        "ost.OSS.ost_io.threads_max=4",
        "obdfilter.*.stats=",
        "*.*.?=18446744073709551615",
        "lod.*.stripesize=65536",
    ])
}
