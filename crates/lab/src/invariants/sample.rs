//! A small sound cluster, for tests that break it: two files, the first with an object on each of
//! two OSTs, the second never opened for writing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use layout::{Layout, PlainLayout, StripeSpec};
use mds::tables::{
    counter::Counters,
    inode::{Inode, InodeData},
};
use oss::{object_record::ObjectRecord, superblock::Totals};
use rpc::message::mgs::ClusterMap;
use types::{
    Accounted, Attributes, ClientId, FileKind, Generation, InodeNumber, ObjectId, OstIndex, SpaceUsage,
    limits::BLOCK_BYTES,
};

use super::{KnownMap, MdtState, OstState, Snapshot};
use crate::ProcessId;

pub const FILE: InodeNumber = InodeNumber(0x100);
pub const NEXT: InodeNumber = InodeNumber(0x101);
pub const FIRST: OstIndex = OstIndex(0);
pub const SECOND: OstIndex = OstIndex(1);
pub const CLIENT: ClientId = ClientId(5);
const STRIPE_BYTES: u64 = 64 << 10;
const STRIPE_BLOCKS: u64 = STRIPE_BYTES / BLOCK_BYTES;

pub fn object(inode: InodeNumber, slot: u32) -> ObjectId {
    ObjectId::new(inode, slot)
}

/// See the module documentation.
pub fn sound() -> Snapshot {
    let map = ClusterMap { version: 3, fsname: "lab".to_owned(), ..ClusterMap::default() };
    let known = |host: &str, process| KnownMap {
        host: host.to_owned(),
        process: ProcessId(process),
        map: Arc::new(map.clone()),
    };
    let osts = [(FIRST, 3, object(FILE, 0)), (SECOND, 4, object(FILE, 1))];
    Snapshot {
        mgs: Some(known("mgs", 1)),
        index: crate::server::MDT,
        mdt: Some(sound_mdt()),
        osts: osts.map(|(ost, process, object)| (ost, sound_ost(ProcessId(process), object))).into(),
        maps: vec![known("client0", 5), known("mds", 2)],
        served: Vec::new(),
        lost_power: BTreeSet::new(),
    }
}

fn sound_mdt() -> MdtState {
    let space =
        SpaceUsage { bytes_total: 9, bytes_free: 8, bytes_available: 7, inodes_total: 6, inodes_free: 5, device: None };
    let mut written = regular(FILE);
    written.epoch = 2;
    written.attributes.size = 2 * STRIPE_BYTES;
    written.attributes.blocks = 2 * STRIPE_BYTES / 512;
    MdtState {
        process: ProcessId(2),
        counters: Counters { next_inode: 0x102, inodes: 2 },
        inodes: [(FILE, written), (NEXT, regular(NEXT))].into(),
        data: BTreeMap::new(),
        small_files: BTreeMap::new(),
        to_destroy: BTreeSet::new(),
        to_refuse: BTreeSet::new(),
        sessions: [CLIENT].into(),
        fences: BTreeMap::new(),
        exclusive: BTreeMap::new(),
        reports: [(FIRST, space)].into(),
        names: BTreeMap::new(),
        recovering: BTreeSet::new(),
    }
}

fn sound_ost(process: ProcessId, object: ObjectId) -> OstState {
    let record = ObjectRecord {
        size: STRIPE_BYTES,
        blocks: STRIPE_BLOCKS,
        inline_blocks: 1,
        changes: 1,
        ..ObjectRecord::default()
    };
    OstState {
        process,
        is_durable: true,
        objects: [(object, record)].into(),
        held: [(object, (STRIPE_BLOCKS, 1))].into(),
        totals: Totals { objects: 1, blocks: STRIPE_BLOCKS },
        device: Vec::new(),
        refused: BTreeSet::new(),
    }
}

/// A file without data, whose size is known.
fn regular(number: InodeNumber) -> Inode {
    let plain = PlainLayout { stripe_bytes: STRIPE_BYTES, osts: vec![FIRST, SECOND] };
    Inode {
        attributes: Attributes { mode: 0o644, links: 1, ..Attributes::zeroed(number, FileKind::Regular) },
        version: 1,
        size_known: true,
        epoch: 0,
        map_version: 0,
        striping: Default::default(),
        accounted: Accounted::default(),
        access_list: false,
        default_list: false,
        xattrs: false,
        not_linkable: false,
        directory_default: None,
        first_link: None,
        data: InodeData::Regular(Layout::plain(Generation(1), plain, StripeSpec::default())),
    }
}

pub fn mdt(snapshot: &mut Snapshot) -> &mut MdtState {
    snapshot.mdt.as_mut().expect("it is up")
}

/// The first OST.
pub fn ost(snapshot: &mut Snapshot) -> &mut OstState {
    snapshot.osts.get_mut(&FIRST).expect("it is up")
}

pub fn inode(snapshot: &mut Snapshot, number: InodeNumber) -> &mut Inode {
    mdt(snapshot).inodes.get_mut(&number).expect("it exists")
}

pub fn layout_of(snapshot: &mut Snapshot, number: InodeNumber) -> &mut Layout {
    match &mut inode(snapshot, number).data {
        InodeData::Regular(layout) => layout,
        _ => panic!("inode {number} has no layout"),
    }
}

/// Gives an object of the first OST another name.
pub fn move_object(snapshot: &mut Snapshot, from: ObjectId, to: ObjectId) {
    let ost = ost(snapshot);
    let record = ost.objects.remove(&from).expect("it exists");
    ost.objects.insert(to, record);
}
