//! All servers that are up, as they are between two steps of the simulation.
//!
//! Taken without a request: no task runs meanwhile, so that the states of all servers are of the
//! same moment. A server that is down or starting is left out; one that is suspended is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use client::{FileSystem, Served};
use layout::Location;
use mds::{
    Mdt,
    tables::{
        COUNTERS, DEFERRED_LOG, ENTRIES, INODES, SESSIONS,
        codec::{client_of_key, inode_of_key},
        counter::{self, Counters},
        deferred_log::{self, DeferredOperation},
        entry::EntryRecord,
        inode::Inode,
    },
};
use oss::{
    Ost,
    chunk_record::{BlockState, ChunkRecord},
    object_record::ObjectRecord,
    superblock::{TOTALS_KEY, Totals},
    tables::{CHUNKS, EVICTED, META, OBJECTS, parse_client_key, parse_object_key, parse_part_key},
};
use rpc::message::{mgs::ClusterMap, ost::ObjectAttributes};
use types::{ClientId, Damage, FsError, FsResult, InodeNumber, MdtIndex, ObjectId, OstIndex, RecordDamage, SpaceUsage};

use crate::{
    ProcessId,
    cluster::{Cluster, client_host},
    server::{MDT, Role},
};

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The cluster map as the MGS shows it.
    pub mgs: Option<KnownMap>,
    /// Which MDT this is about.
    pub index: MdtIndex,
    /// That MDT.
    pub mdt: Option<MdtState>,
    /// OSTs.
    pub osts: BTreeMap<OstIndex, OstState>,
    /// Cluster maps as clients and servers know them.
    pub maps: Vec<KnownMap>,
    /// What clients serve from their caches of the MDT.
    pub served: Vec<(String, Served)>,
    /// Servers that have ever lost power, whether they are up or not.
    pub lost_power: BTreeSet<Role>,
}

/// A cluster map, and the process that knows it.
#[derive(Clone, Debug)]
pub struct KnownMap {
    /// Host of the process.
    pub host: String,
    /// The process.
    pub process: ProcessId,
    /// The map; version 0: none is known yet.
    pub map: Arc<ClusterMap>,
}

/// The MDT.
#[derive(Clone, Debug)]
pub struct MdtState {
    /// The process that serves it.
    pub process: ProcessId,
    /// Its counters.
    pub counters: Counters,
    /// All inodes.
    pub inodes: BTreeMap<InodeNumber, Inode>,
    /// Objects whose data are on the MDT.
    pub data: BTreeMap<ObjectId, ObjectAttributes>,
    /// Bytes of those of them that clients serve from their caches.
    pub small_files: BTreeMap<ObjectId, Vec<u8>>,
    /// Objects that OSTs are to be told to destroy.
    pub to_destroy: BTreeSet<(OstIndex, ObjectId)>,
    /// Clients that OSTs are to be told to refuse.
    pub to_refuse: BTreeSet<(ClientId, OstIndex)>,
    /// Clients with a recorded session.
    pub sessions: BTreeSet<ClientId>,
    /// Evicted clients whose locks are kept, and the OSTs that may not refuse them yet.
    pub fences: BTreeMap<ClientId, BTreeSet<OstIndex>>,
    /// Holders of exclusive data locks.
    pub exclusive: BTreeMap<InodeNumber, ClientId>,
    /// Space of OSTs as they reported it last.
    pub reports: BTreeMap<OstIndex, SpaceUsage>,
    /// Names of directories, and where they lead.
    pub names: BTreeMap<(InodeNumber, Vec<u8>), InodeNumber>,
    /// Clients of a former start that have not come back yet.
    pub recovering: BTreeSet<ClientId>,
}

/// An OST.
#[derive(Clone, Debug)]
pub struct OstState {
    /// The process that serves it.
    pub process: ProcessId,
    /// Everything it has applied would survive a power loss.
    pub is_durable: bool,
    /// Its objects.
    pub objects: BTreeMap<ObjectId, ObjectRecord>,
    /// Blocks that hold data, and those of them that are inline, by the states of all blocks.
    pub held: BTreeMap<ObjectId, (u64, u64)>,
    /// Sums over all objects, as the OST keeps them.
    pub totals: Totals,
    /// What is wrong with the records of its device, if it has one.
    pub device: Vec<String>,
    /// Clients that it refuses, since an MDT evicted them.
    pub refused: BTreeSet<ClientId>,
}

impl Snapshot {
    /// Everything as it is now. Fails if a record cannot be read, which no fault of the lab causes.
    pub fn of(cluster: &Cluster) -> Result<Snapshot, String> {
        let known = cluster.watchers().into_iter();
        let maps = known.map(|(host, process, watcher)| KnownMap { host, process, map: watcher.map() });
        let mut snapshot = Snapshot { maps: maps.collect(), ..Snapshot::of_mdt(cluster, MDT)? };
        for role in cluster.roles() {
            let Some(process) = cluster.process_of(role) else { continue };
            let look = |serving: &crate::server::Serving| {
                if let Some(mgs) = &serving.mgs {
                    snapshot.mgs = Some(KnownMap { host: role.host(), process, map: mgs.map() });
                }
                for ost in &serving.osts {
                    let state = OstState::of(ost, process).map_err(|error| unreadable(role, error))?;
                    snapshot.osts.insert(ost.index(), state);
                }
                Ok::<(), String>(())
            };
            cluster.inspect(role, look).transpose()?;
        }
        Ok(snapshot)
    }

    /// An MDT, and what clients serve from their caches of it.
    pub fn of_mdt(cluster: &Cluster, index: MdtIndex) -> Result<Snapshot, String> {
        let systems = cluster.file_systems().into_iter();
        let mdts = cluster.options().mdts;
        let of_system = |(client, system): (u16, Arc<FileSystem>)| {
            let mut served = system.served(index)?;
            // Names here of inodes on other MDTs, which are known with these.
            for of_other in (0..mdts).filter_map(|other| system.served(MdtIndex(other)).filter(|_| other != index.0)) {
                served.names.extend(of_other.names.into_iter().filter(|(parent, ..)| parent.mdt() == index));
            }
            Some((client_host(client), served))
        };
        let served: Vec<_> = systems.filter_map(of_system).collect();
        let (role, roles) = (Role::Mds(index.0), cluster.roles().into_iter());
        let lost_power = roles.filter(|role| cluster.lost_power(*role)).collect();
        let look = |process| {
            let state = |serving: &crate::server::Serving| Some(MdtState::of(serving.mdt.as_ref()?, process, &served));
            cluster.inspect(role, state).flatten().transpose().map_err(|error| unreadable(role, error))
        };
        let mdt = cluster.process_of(role).map_or(Ok(None), look)?;
        Ok(Snapshot { index, mdt, served, lost_power, ..Snapshot::default() })
    }

    /// Whether the MDT has ever lost power, and with it changes that others had seen.
    pub fn mdt_lost_power(&self) -> bool {
        self.lost_power.contains(&Role::Mds(self.index.0))
    }

    /// Whether an OST has ever lost power.
    pub fn ost_lost_power(&self, ost: OstIndex) -> bool {
        self.lost_power.contains(&Role::Oss(ost.0))
    }
}

fn unreadable(role: Role, error: FsError) -> String {
    format!("{role}: a record cannot be read: {error}")
}

/// A key that no record of this kind has.
fn malformed(what: &'static str, key: &[u8]) -> FsError {
    Damage::new(what, RecordDamage::Key(key.to_vec())).into()
}

impl MdtState {
    fn of(mdt: &Mdt, process: ProcessId, served: &[(String, Served)]) -> FsResult<Self> {
        let mut counters = None;
        mdt.scan_table(COUNTERS, |key, value| {
            if key == counter::COUNTERS {
                counters = Some(Counters::decode(value)?);
            }
            Ok(())
        })?;
        let counters = counters.ok_or_else(|| Damage::new("counters", "missing"))?;
        let mut inodes = BTreeMap::new();
        mdt.scan_table(INODES, |key, value| {
            let number = inode_of_key("inode", key)?;
            inodes.insert(number, Inode::decode(number, value)?);
            Ok(())
        })?;
        let mut data = BTreeMap::new();
        for object in inodes.values().filter_map(data_on_mdt) {
            data.extend(mdt.data_attributes(object)?.map(|attributes| (object, attributes)));
        }
        let served = served.iter().flat_map(|(_, served)| &served.data).map(|(object, _)| *object);
        let small_files = served.map(|object| Ok((object, mdt.data_of(object)?))).collect::<FsResult<_>>()?;
        let (mut to_destroy, mut to_refuse, mut sessions) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        mdt.scan_table(DEFERRED_LOG, |key, value| {
            let (ost, _) = deferred_log::decode_key(key)?;
            match DeferredOperation::decode(value)? {
                DeferredOperation::Destroy(object) => to_destroy.insert((ost, object)),
                DeferredOperation::Evict(client) => to_refuse.insert((client, ost)),
            };
            Ok(())
        })?;
        mdt.scan_table(SESSIONS, |key, _| {
            sessions.insert(client_of_key("session", key)?);
            Ok(())
        })?;
        let mut names = BTreeMap::new();
        mdt.scan_table(ENTRIES, |key, value| {
            let (directory, _) = EntryRecord::decode_key(key)?;
            let named = EntryRecord::decode(value)?.target;
            names.extend(named.map(|named| ((directory, named.name), named.inode)));
            Ok(())
        })?;
        let regular = inodes.values().filter(|inode: &&Inode| inode.layout().is_some()).map(Inode::number);
        let exclusive = mdt.exclusive_holders(regular).into_iter().collect();
        let reports = mdt.osts().into_iter().filter_map(|(ost, view)| Some((ost, view.report?.space))).collect();
        let fences = mdt.fences();
        let recovering = mdt.recovering_clients().into_iter().collect();
        Ok(Self {
            process,
            counters,
            inodes,
            data,
            small_files,
            to_destroy,
            to_refuse,
            sessions,
            fences,
            exclusive,
            reports,
            names,
            recovering,
        })
    }

    /// Every object on an OST that a layout names, with its file: also of files that were never
    /// opened for writing, which have a layout and no objects.
    pub fn named(&self) -> impl Iterator<Item = (ObjectId, OstIndex, &Inode)> {
        self.inodes.values().flat_map(|inode| {
            let layout = inode.layout().into_iter();
            layout.flat_map(move |layout| {
                let namer = layout.namer(inode.number());
                layout.objects().filter_map(move |(slot, location)| match location {
                    Location::Ost(ost) => Some((ObjectId::new(namer, slot), ost, inode)),
                    Location::Mdt => None,
                })
            })
        })
    }

    /// The same by object. No object is named twice: see `slots`.
    pub fn owners(&self) -> BTreeMap<ObjectId, (OstIndex, &Inode)> {
        self.named().map(|(object, ost, inode)| (object, (ost, inode))).collect()
    }
}

/// The object of a file whose data are on the MDT.
fn data_on_mdt(inode: &Inode) -> Option<ObjectId> {
    let layout = inode.layout()?;
    let (slot, _) = layout.objects().find(|(_, location)| *location == Location::Mdt)?;
    Some(layout.object(inode.number(), slot))
}

impl OstState {
    fn of(ost: &Ost, process: ProcessId) -> FsResult<Self> {
        let (mut objects, mut held, mut refused) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut totals = Totals::default();
        ost.scan_table(META, |key, value| {
            if key == TOTALS_KEY {
                totals = Totals::decode(value)?;
            }
            Ok(())
        })?;
        ost.scan_table(OBJECTS, |key, value| {
            let object = parse_object_key(key).ok_or_else(|| malformed("object", key))?;
            objects.insert(object, ObjectRecord::decode(value)?);
            Ok(())
        })?;
        ost.scan_table(CHUNKS, |key, value| {
            let (object, _) = parse_part_key(key).ok_or_else(|| malformed("chunk", key))?;
            let record = ChunkRecord::decode(value)?;
            let of_object: &mut (u64, u64) = held.entry(object).or_default();
            for state in record.states() {
                of_object.0 += u64::from(*state != BlockState::Absent);
                of_object.1 += u64::from(state.is_inline());
            }
            Ok(())
        })?;
        ost.scan_table(EVICTED, |key, _| {
            refused.insert(parse_client_key(key).ok_or_else(|| malformed("evicted client", key))?);
            Ok(())
        })?;
        let tables = ost.table_statistics();
        let is_durable = tables.applied == tables.durable;
        let device = ost.check_device()?;
        Ok(Self { process, is_durable, objects, held, totals, device, refused })
    }
}
