//! The targets: one function per decoder.

use std::{
    ffi::{OsStr, OsString},
    fmt::Debug,
    os::unix::ffi::OsStrExt,
    sync::{Arc, LazyLock},
};
use zerocopy::FromBytes;

use bytes::Bytes;
use fuse::protocol::ring::{EntryHeader, decode_entry};
use fuse::{MountOptions, MountSource, mount::helper::HelperRequest};
use host::ioctl::PendingReplies;
use kv::{
    Checkpoint, ColdStore, Config, Lsn, MemoryCold, Operation, Store, Table, Term, TreeCold,
    inspect::{self, Schema},
    journal::format::{HeaderState, RECORD_HEADER_BYTES, Record, SegmentHeader, decode_batch},
    superblock::{STORE_FILE, Superblock},
};
use layout::{
    lov,
    text::{self, yaml},
};
use lfs::{
    options::{self, OptionSpec, Takes, long_option, option},
    size,
};
use mds::{
    inspect::MdtSchema,
    tables::{INODES, inode::Inode},
};
use mgs::inspect::MgsSchema;
use oss::{
    chunk_record::ChunkRecord,
    device_label::DeviceLabel,
    device_records::DeviceRecords,
    group_record::{decode_summary, encode_summary},
    inspect::OstSchema,
    object_record::ObjectRecord,
    tables::{CHUNKS, GROUPS, OBJECTS},
};
use rpc::message::control::{ControlReply, ControlRequest};
use rpc::{
    codec::{
        self,
        opcode::{Family, Opcode},
    },
    message::{
        ClientReply, ClientRequest, ReplyExtension, RequestExtension, bounds,
        session::{Connect, Connected},
    },
};
use rt::{
    Address, Device, Frame, FrameHeader,
    frame::HEADER_BYTES,
    memory::{MemoryDevice, MemoryTransport, seams},
    parameters::{Parameter, ParameterTree},
};
use serde::{Serialize, de::DeserializeOwned};
use types::{Fid, FsError, InodeNumber, access_list::AccessList, limits::BLOCK_BYTES};

pub use crate::images::images;

use crate::corpus::{self, SMALL_STORE};

/// A decoder to be fed.
pub struct FuzzTarget {
    /// Name, which also chooses its random numbers.
    pub name: &'static str,
    /// Inputs of one run of `cargo test`.
    pub inputs: u64,
    /// Makes valid inputs.
    pub corpus: Corpus,
    /// Decodes; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Makes checksums and lengths right, so that the input gets past them.
    pub seal: Option<fn(&mut [u8])>,
}

/// What makes valid inputs of a target.
pub type Corpus = fn() -> Vec<Vec<u8>>;

const fn target(name: &'static str, inputs: u64, corpus: Corpus, run: fn(&[u8])) -> FuzzTarget {
    FuzzTarget { name, inputs, corpus, run, seal: None }
}

/// All targets.
pub fn all() -> Vec<FuzzTarget> {
    vec![
        frames(),
        requests(),
        extensions(),
        replies(),
        greetings(),
        journal_records(),
        journal_segment_headers(),
        store_files(),
        stores(),
        trees(),
        mdt_records(),
        ost_records(),
        device_records(),
        device_labels(),
        images(),
        mgs_records(),
        access_lists(),
        layout_xattrs(),
        kernel_requests(),
        ring_requests(),
        control_pages(),
        mount_options(),
        lfs_command_lines(),
        parameters(),
    ]
}

fn put_u32(input: &mut [u8], offset: usize, value: u32) {
    if let Some(place) = input.get_mut(offset..offset + 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

/// Makes the checksum right that stands after 60 bytes: of frames, segments and store files.
fn seal_60(input: &mut [u8]) {
    if let Some(content) = input.get(..60) {
        let sum = crc_fast::crc32_iscsi(content);
        put_u32(input, 60, sum);
    }
}

/// Header and body of a frame.
pub fn frames() -> FuzzTarget {
    fn run(input: &[u8]) {
        let _ = FrameHeader::check_beginning(input);
        let Some((header, body)) = input.split_first_chunk::<HEADER_BYTES>() else { return };
        let Ok(header) = FrameHeader::decode(header) else { return };
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        let frame = Frame { header, body: Bytes::copy_from_slice(body), bulk: Bytes::new() };
        let _ = (frame.check_lengths(), frame.check_body());
    }
    FuzzTarget { seal: Some(seal_60), ..target("frames", 40_000, corpus::frames, run) }
}

/// Two bytes of opcode, then the body.
pub fn requests() -> FuzzTarget {
    target("requests", 60_000, corpus::requests, |input| {
        let Some((opcode, body)) = input.split_first_chunk() else { return };
        let opcode = Opcode(u16::from_le_bytes(*opcode));
        let _ = (opcode.to_string(), opcode.kind());
        if let Ok(request) = codec::decode_request(opcode, body) {
            let _ = (bounds::check(&request), request.row());
            let again =
                codec::encode_request(&Default::default(), &request).expect("what was received can be sent").bytes;
            assert_eq!(codec::decode_request(opcode, &again).as_ref(), Ok(&request));
        }
    })
}

/// A byte that chooses the extension or the callback, then its bytes.
pub fn extensions() -> FuzzTarget {
    fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
        if let Ok(value) = codec::decode::<T>(bytes) {
            let again = codec::encode(&value).expect("what was received can be sent");
            assert_eq!(codec::decode::<T>(&again).as_ref(), Ok(&value));
        }
    }
    target("extensions", 60_000, corpus::extensions, |input| {
        let Some((choice, bytes)) = input.split_first() else { return };
        match choice % 4 {
            0 => check::<RequestExtension>(bytes),
            1 => check::<ReplyExtension>(bytes),
            2 => check::<ClientRequest>(bytes),
            _ => check::<ClientReply>(bytes),
        }
        if let Ok(extension) = codec::decode_extension(bytes) {
            let _ = bounds::check_extension(&extension);
        }
    })
}

/// A byte that chooses the family, then the body.
pub fn replies() -> FuzzTarget {
    target("replies", 60_000, corpus::replies, |input| {
        let Some((choice, body)) = input.split_first() else { return };
        let family = [Family::Mdt, Family::Ost, Family::Mgs][usize::from(choice % 3)];
        if let Ok(reply) = codec::decode_reply(family, body) {
            let again = codec::encode_reply(&Default::default(), &reply).expect("what was received can be sent").bytes;
            assert_eq!(codec::decode_reply(family, &again).as_ref(), Ok(&reply));
        }
    })
}

/// A byte that chooses the message, then what opens a session, or an error.
pub fn greetings() -> FuzzTarget {
    fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &[u8]) {
        if let Ok(value) = codec::decode::<T>(body) {
            let again = codec::encode(&value).expect("what was received can be sent");
            assert_eq!(codec::decode::<T>(&again).as_ref(), Ok(&value));
        }
    }
    target("greetings", 40_000, corpus::greetings, |input| match input.split_first() {
        Some((choice, body)) if choice % 3 == 0 => round_trip::<Connect>(body),
        Some((choice, body)) if choice % 3 == 1 => round_trip::<Connected>(body),
        Some((_, body)) => round_trip::<FsError>(body),
        None => {}
    })
}

/// A record and its batch.
pub fn journal_records() -> FuzzTarget {
    fn run(input: &[u8]) {
        if let Some(record) = Record::decode(input) {
            let end = RECORD_HEADER_BYTES + record.payload_bytes as usize;
            let payload = Bytes::copy_from_slice(&input[RECORD_HEADER_BYTES..end]);
            let _ = decode_batch(payload).map(|operations| {
                let mut again = bytes::BytesMut::new();
                record.encode(&operations, &mut again);
                assert_eq!(Record::decode(&again), Some(record));
            });
        }
        let _ = decode_batch(Bytes::copy_from_slice(input));
    }
    FuzzTarget { seal: Some(seal_record), ..target("journal_records", 40_000, corpus::journal_records, run) }
}

/// Makes the first record's length and checksum right.
fn seal_record(input: &mut [u8]) {
    if input.len() >= RECORD_HEADER_BYTES {
        let payload_bytes = (input.len() - RECORD_HEADER_BYTES) as u32;
        put_u32(input, 4, payload_bytes);
        let sum = crc_fast::crc32_iscsi(&input[4..]);
        put_u32(input, 0, sum);
    }
}

/// The header of a segment.
pub fn journal_segment_headers() -> FuzzTarget {
    fn run(input: &[u8]) {
        if let HeaderState::Valid(header) = SegmentHeader::decode(input) {
            assert_eq!(SegmentHeader::decode(&header.encode()), HeaderState::Valid(header));
        }
    }
    FuzzTarget {
        seal: Some(seal_60),
        ..target("journal_segment_headers", 40_000, corpus::journal_segment_headers, run)
    }
}

/// A runtime for what is asynchronous.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

async fn device_with(files: &[(&str, &[u8])]) -> MemoryDevice {
    let device = MemoryDevice::new();
    for (name, contents) in files {
        device.write(name, 0, vec![Bytes::copy_from_slice(contents)]).await.expect("the name is good");
        device.flush(name).await.expect("memory is flushed");
    }
    device
}

/// Opens a store on what is there; if that works, the store does.
async fn open_and_use(device: MemoryDevice, store: u64) {
    let cold = MemoryCold::new();
    cold.commit(Checkpoint { store, lsn: Lsn(0), term: Term(0) }).await.expect("memory takes everything");
    let (seams, config) = (seams(&MemoryTransport::new(), 1), Config::small());
    let opened = Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await;
    let Ok(store) = opened else { return };
    let mut batch = kv::Batch::default();
    batch.put(Table(1), &b"new"[..], &b"value"[..]);
    if let Ok(lsn) = store.apply(batch) {
        store.durable(lsn).await.expect("memory does not fail");
        assert_eq!(store.get(Table(1), b"new").expect("it was written").as_deref(), Some(&b"value"[..]));
    }
    store.close().await.expect("memory does not fail");
}

/// A tree of tables on a device: it is opened and works, or is refused; damage is an error.
pub fn trees() -> FuzzTarget {
    fn run(input: &[u8]) {
        block_on(async {
            let mut image = input.to_vec();
            image.resize(corpus::TREE_NODES * corpus::TREE_NODE_BYTES, 0);
            let device = device_with(&[("tree", &image)]).await;
            let Ok(tree) = TreeCold::open(&corpus::tree_part(&device), 0) else { return };
            for table in 0..4 {
                let _ = tree.scan(Table(table), &[], None, &mut |_, _| true);
                let _ = (tree.get(Table(table), &[7; 40]), tree.get(Table(table), b"long"));
            }
            let key = Bytes::from_static(b"new");
            let put = Operation::Put(Table(1), key.clone(), key.clone());
            let delete = Operation::Delete(Table(2), Bytes::from_static(b"long"));
            // Where a sealed nonsense leads nobody knows; but not to a panic.
            let _ = (tree.write(vec![put, delete]).await, tree.commit(Checkpoint::default()).await);
            let _ = tree.get(Table(1), &key);
        });
    }
    FuzzTarget { seal: Some(seal_tree), ..target("trees", 1_000, corpus::trees, run) }
}

/// Makes the checksums of the root's places and of all nodes right.
fn seal_tree(input: &mut [u8]) {
    for (number, node) in input.chunks_exact_mut(corpus::TREE_NODE_BYTES).enumerate() {
        let (sum, at) = match number < 2 {
            true => (crc_fast::crc32_iscsi(&node[..508]), 508),
            false => (crc_fast::crc32_iscsi(&node[4..]), 0),
        };
        put_u32(node, at, sum);
    }
}

/// The file that says which store it is.
pub fn store_files() -> FuzzTarget {
    fn run(input: &[u8]) {
        block_on(async {
            let device = device_with(&[(STORE_FILE, input)]).await;
            if let Ok(Some(superblock)) = Superblock::read(&device).await {
                device.set_capacity(8 << 20);
                open_and_use(device, superblock.store).await;
            }
        });
    }
    FuzzTarget { seal: Some(seal_60), ..target("store_files", 2_000, corpus::store_files, run) }
}

/// A whole store, whose only segment is the input: it opens and works, or is refused; inspecting it
/// never ends early.
pub fn stores() -> FuzzTarget {
    fn run(input: &[u8]) {
        block_on(async {
            let small = LazyLock::force(&SMALL_STORE);
            let device = device_with(&[(STORE_FILE, &small.store_file), ("journal.0", input)]).await;
            inspect::journal(&device, &mut |_| true).await.expect("memory can be read");
            let _ = inspect::replay(&device, small.store, Checkpoint::default(), &mut |_, _| {}).await;
            open_and_use(device, small.store).await;
        });
    }
    FuzzTarget { seal: Some(seal_segment), ..target("stores", 400, corpus::stores, run) }
}

/// Makes the checksums of the header and of all records right that are where the records of the
/// small store are.
fn seal_segment(input: &mut [u8]) {
    seal_60(input);
    for offset in &SMALL_STORE.records {
        let Some(record) = input.get(*offset..) else { return };
        let Some(length) = record.get(4..8).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
        else {
            return;
        };
        let Some(content) = record.get(4..(length as usize).saturating_add(RECORD_HEADER_BYTES)) else { continue };
        let sum = crc_fast::crc32_iscsi(content);
        put_u32(input, *offset, sum);
    }
}

/// Table, length of the key, key, value: what the schemas of `stria inspect` decode, and the
/// servers with them.
fn record(schema: &dyn Schema, input: &[u8]) -> Option<(Table, Vec<u8>, Vec<u8>)> {
    let (&[table, key_bytes], rest) = input.split_first_chunk()?;
    let (key, value) = rest.split_at_checked(usize::from(key_bytes))?;
    let table = Table(table % 14);
    let _ = inspect::describe(schema, table, key, Some(value));
    let _ = inspect::describe(schema, table, key, None);
    schema.concerns(table, key, value, 0x100);
    Some((table, key.to_vec(), value.to_vec()))
}

/// Records of an MDT.
pub fn mdt_records() -> FuzzTarget {
    target("mdt_records", 60_000, corpus::mdt_records, |input| {
        if let Some((INODES, _, value)) = record(&MdtSchema, input)
            && let Ok(inode) = Inode::decode(InodeNumber(7), &value)
        {
            assert_eq!(Inode::decode(InodeNumber(7), &inode.encode()).as_ref(), Ok(&inode));
        }
    })
}

/// Records of an OST's device, alone: the labels of the device belong to nothing then.
pub fn device_records() -> FuzzTarget {
    target("device_records", 20_000, corpus::device_records, |input| {
        let Some((table, key, value)) = record(&OstSchema, input) else { return };
        for blocks in [2, 40_000] {
            let mut device = DeviceRecords::default();
            device.note(table, &key, &value);
            assert!(!device.problems(oss::Engine::on_device(blocks)).is_empty(), "the labels are used");
        }
    })
}

/// Labels of devices.
pub fn device_labels() -> FuzzTarget {
    let run = |input: &[u8]| {
        if let Ok(label) = DeviceLabel::decode(input) {
            assert_eq!(DeviceLabel::decode(&label.encode()).as_ref(), Ok(&label));
            let [first, last] = DeviceLabel::places(label.blocks);
            assert!(first < last && last.checked_mul(BLOCK_BYTES).is_some(), "both copies have an offset");
        }
    };
    FuzzTarget { seal: Some(seal_label), ..target("device_labels", 20_000, corpus::device_labels, run) }
}

/// Makes the checksum of a label right.
fn seal_label(input: &mut [u8]) {
    if let Some(content) = input.get(..4092) {
        let sum = crc_fast::crc32_iscsi(content);
        put_u32(input, 4092, sum);
    }
}

/// Records of an OST.
pub fn ost_records() -> FuzzTarget {
    target("ost_records", 60_000, corpus::ost_records, |input| match record(&OstSchema, input) {
        Some((OBJECTS, _, value)) => {
            if let Ok(object) = ObjectRecord::decode(&value) {
                assert_eq!(ObjectRecord::decode(&object.encode()), Ok(object));
            }
        }
        Some((GROUPS, _, value)) => {
            if let Ok(summary) = decode_summary(&value) {
                assert_eq!(encode_summary(summary), value);
            }
        }
        Some((CHUNKS, _, value)) => {
            if let Ok(chunk) = ChunkRecord::decode(&value) {
                assert_eq!(ChunkRecord::decode(&chunk.encode()), Ok(chunk));
            }
        }
        Some((oss::tables::META, key, value)) if key == oss::superblock::SUPERBLOCK_KEY => {
            if let Ok(superblock) = oss::Superblock::decode(&value)
                && let oss::Engine::Blocks { blocks, .. } = superblock.engine
            {
                assert!(DeviceLabel::places(blocks)[1].checked_mul(BLOCK_BYTES).is_some(), "its label has an offset");
            }
        }
        _ => {}
    })
}

/// Records of the management service.
pub fn mgs_records() -> FuzzTarget {
    target("mgs_records", 40_000, corpus::mgs_records, |input| drop(record(&MgsSchema, input)))
}

/// Values of `system.posix_acl_access`.
pub fn access_lists() -> FuzzTarget {
    target("access_lists", 40_000, corpus::access_lists, |input| {
        if let Ok(Some(list)) = AccessList::decode(input) {
            assert_eq!(AccessList::decode(&list.encode()), Ok(Some(list)));
        }
    })
}

/// Values of `lustre.lov` and of the readable attribute, which users set: layouts in binary form
/// and as text. What is possible can be shown and set again.
pub fn layout_xattrs() -> FuzzTarget {
    target("layout_xattrs", 40_000, corpus::layout_xattrs, |input| {
        let text = std::str::from_utf8(input).ok().and_then(|text| yaml::parse(text).ok());
        for spec in lov::decode(input).into_iter().chain(text) {
            if spec.validate(u64::MAX).is_ok() {
                lov::decode(&lov::encode_default(&spec)).expect("what was set can be set again");
                yaml::parse(&text::default_yaml(&spec)).expect("what is shown can be set");
            }
        }
    })
}

/// What the kernel writes to /dev/fuse.
pub fn kernel_requests() -> FuzzTarget {
    fn run(input: &[u8]) {
        if let Ok(incoming) = fuse::protocol::decode(input) {
            let _ = (incoming.opcode.label(), format!("{:?}", incoming.operation));
        }
    }
    fn seal(input: &mut [u8]) {
        let bytes = input.len() as u32;
        put_u32(input, 0, bytes);
    }
    FuzzTarget { seal: Some(seal), ..target("kernel_requests", 60_000, corpus::kernel_requests, run) }
}

/// What the kernel writes into an entry of a ring: header, then payload.
pub fn ring_requests() -> FuzzTarget {
    fn run(input: &[u8]) {
        let Ok((entry, payload)) = EntryHeader::read_from_prefix(input) else { return };
        if let Ok(incoming) = decode_entry(&entry, payload) {
            let _ = (incoming.opcode.label(), format!("{:?}", incoming.operation));
        }
    }
    target("ring_requests", 60_000, corpus::ring_requests, run)
}

/// Pages of the control ioctl, which any user may send, and what comes back.
pub fn control_pages() -> FuzzTarget {
    target("control_pages", 40_000, corpus::control_pages, |input| {
        let replies = PendingReplies::default();
        let execute = |request: ControlRequest| async move {
            let _ = format!("{request:?}");
            Ok(ControlReply::Done)
        };
        let _ = block_on(replies.serve(1000, input, execute));
        let _ = rpc::codec::decode::<ControlRequest>(input);
        let _ = rpc::codec::decode::<ControlReply>(input);
    })
}

/// Options, sources and command lines of mount(8).
pub fn mount_options() -> FuzzTarget {
    target("mount_options", 40_000, corpus::mount_options, |input| {
        let text = String::from_utf8_lossy(input);
        let mut options = MountOptions::default();
        let _ = options.add(&text);
        if let Ok(source) = text.parse::<MountSource>() {
            assert_eq!(source.to_string().parse().as_ref(), Ok(&source), "{text}");
        }
        let _ = Address::with_port(&text).is_complete();
        let _ = HelperRequest::parse(words(input));
    })
}

/// Arguments of a command.
fn words(input: &[u8]) -> Vec<OsString> {
    input.split(|byte| *byte == b' ').map(|word| OsStr::from_bytes(word).to_owned()).collect()
}

const LFS_OPTIONS: &[OptionSpec] = &[
    option('c', &["stripe-count", "count"], Takes::Value),
    option('S', &["stripe-size"], Takes::OptionalValue),
    option('v', &["verbose"], Takes::Nothing),
    long_option(&["hex-idx"], Takes::Nothing),
];

/// Words of `lfs`, sizes, FIDs.
pub fn lfs_command_lines() -> FuzzTarget {
    target("lfs_command_lines", 40_000, corpus::lfs_command_lines, |input| {
        let _ = options::parse(LFS_OPTIONS, &words(input));
        for word in String::from_utf8_lossy(input).split(' ') {
            let _ = (size::of_stripes(word), size::hint(word), types::size::parse(word, 512));
            if let Ok(fid) = word.parse::<Fid>() {
                assert_eq!(fid.to_string().parse().as_ref(), Ok(&fid));
                let _ = fid.inode();
            }
        }
    })
}

/// `NAME=VALUE` of `stria ctl`, with patterns.
pub fn parameters() -> FuzzTarget {
    static TREE: LazyLock<ParameterTree> = LazyLock::new(|| {
        let tree = ParameterTree::new();
        for name in ["ost.OSS.ost_io.threads_max", "obdfilter.stria-OST0000.stats", "version"] {
            tree.register(name, Parameter::writable("", String::new, |_| Ok(()))).expect("the names are good");
        }
        tree
    });
    target("parameters", 40_000, corpus::parameters, |input| {
        let text = String::from_utf8_lossy(input);
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        let _ = (TREE.get(name), TREE.list_recursive(name), TREE.set(name, value));
        let _ = rt::parameters::parse_number(value, &(1..=u64::MAX));
        let _ = rt::parameters::parse_size(value, 1 << 20, &(0..=u64::MAX));
        let _ = TREE.register(name, Parameter::read_only("", String::new)).map(|()| TREE.unregister(name));
    })
}
