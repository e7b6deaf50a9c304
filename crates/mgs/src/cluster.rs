//! The cluster map as a state machine: requests in, decisions and records to store out. No I/O.
//!
//! Invariants: targets are MDTs by index, then OSTs by index; an index belongs to one uuid and a
//! uuid to one index, permanently; the version grows with every change and with nothing else; the
//! map fits a message.

use kv::Batch;
use layout::spec::{POOL_NAME_BYTES_MAX, is_pool_name};
use rpc::message::mgs::{ClusterMap, MapTarget, Pool, Register, TargetRole, TargetState};
use types::{
    FsError, FsResult, MdtIndex, OstIndex, Refusal,
    limits::{ADDRESSES_PER_TARGET_MAX, BODY_BYTES_MAX, FSNAME_BYTES_MAX},
};

use crate::tables;

/// Most targets of a file system.
pub const TARGETS_MAX: usize = 4096;
/// Most bytes of all addresses of a target together, with a separator after each.
pub const ADDRESS_BYTES_MAX: usize = 128;
/// Longest uuid.
pub const UUID_BYTES_MAX: usize = 64;
/// Most bytes of all permanent parameters together, patterns and values.
pub const PARAMETERS_BYTES_MAX: usize = 64 << 10;
/// Longest pattern of a parameter, and longest value.
pub const PARAMETER_BYTES_MAX: usize = 4096;

/// Most pools.
pub const POOLS_MAX: usize = 128;
/// Most OSTs in all pools together.
pub const POOL_MEMBERS_MAX: usize = 16384;
/// Names that mean something else where a pool is asked for (Lustre's reserved ones).
const POOL_NAMES_RESERVED: [&str; 3] = ["none", "ignore", "inherit"];
/// An encoded index of an OST, and what a pool takes besides its name and members.
const POOL_MEMBER_BYTES: usize = 3;

/// The target of the root directory.
const ROOT_MDT: TargetRole = TargetRole::Mdt(MdtIndex(0));

/// Role, index, state and lengths of an encoded target, generously.
const TARGET_OVERHEAD_BYTES: usize = 16;
const _: () = assert!(
    TARGETS_MAX * (ADDRESS_BYTES_MAX + UUID_BYTES_MAX + TARGET_OVERHEAD_BYTES)
        + 2 * PARAMETERS_BYTES_MAX
        + POOLS_MAX * (POOL_NAME_BYTES_MAX + 2 * POOL_MEMBER_BYTES)
        + POOL_MEMBERS_MAX * POOL_MEMBER_BYTES
        < BODY_BYTES_MAX,
    "the largest map fits a message"
);

/// The map, and where its parameters are stored.
#[derive(Clone, Debug)]
pub struct Cluster {
    map: ClusterMap,
    /// Ordinal of each parameter of the map, same order.
    ordinals: Vec<u64>,
}

impl Cluster {
    /// A new file system without targets, and its first records.
    pub fn create(fsname: &str) -> FsResult<(Self, Batch)> {
        check_fsname(fsname)?;
        let map = ClusterMap { version: 1, fsname: fsname.to_owned(), ..ClusterMap::default() };
        let cluster = Cluster { map, ordinals: Vec::new() };
        let mut batch = Batch::default();
        cluster.put_version(&mut batch);
        Ok((cluster, batch))
    }

    /// The file system as stored: the cluster record, targets by key, parameters by key, pools by
    /// name.
    pub fn load(
        record: (u64, String),
        targets: Vec<MapTarget>,
        parameters: Vec<(u64, String, String)>,
        pools: Vec<Pool>,
    ) -> Self {
        let (version, fsname) = record;
        let ordinals = parameters.iter().map(|(ordinal, ..)| *ordinal).collect();
        let parameters = parameters.into_iter().map(|(_, pattern, value)| (pattern, value)).collect();
        Cluster { map: ClusterMap { version, fsname, targets, parameters, pools }, ordinals }
    }

    /// The map as of now.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// A target reports. `None` if the map knows all that.
    pub fn register(&mut self, report: &Register) -> FsResult<Option<Batch>> {
        let name = report.role.target_name(&report.fsname);
        if report.fsname != self.map.fsname {
            return Err(Refusal::OtherFileSystem { target: name, served: self.map.fsname.clone() }.into());
        }
        check_text(&name, "uuid", &report.uuid, UUID_BYTES_MAX)?;
        check_addresses(&name, &report.addresses)?;
        let (uuid, addresses) = (&report.uuid, &report.addresses);
        if let Some(known) = self.map.targets.iter().find(|target| target.uuid == *uuid && target.role != report.role) {
            let registered = known.role.target_name(&self.map.fsname);
            return Err(Refusal::OtherIndex { target: name, uuid: uuid.clone(), registered }.into());
        }
        let state = match self.position(report.role) {
            Ok(position) => {
                let known = &self.map.targets[position];
                if known.uuid != *uuid {
                    return Err(Refusal::IndexTaken {
                        target: name,
                        uuid: uuid.clone(),
                        owner: known.uuid.clone(),
                        address: known.addresses.join(","),
                    }
                    .into());
                }
                if known.addresses == *addresses {
                    return Ok(None);
                }
                known.state
            }
            Err(_) if self.map.targets.len() >= TARGETS_MAX => {
                return Err(Refusal::TooManyTargets { target: name, targets_max: TARGETS_MAX }.into());
            }
            Err(_) => TargetState::Active,
        };
        let target = MapTarget { role: report.role, uuid: uuid.clone(), addresses: addresses.clone(), state };
        Ok(Some(self.put_target(target)))
    }

    /// The administrators want a target used, or not. `None` if it is so. The MDT with the root
    /// directory is always used: without it no name is found.
    pub fn set_state(&mut self, role: TargetRole, state: TargetState) -> FsResult<Option<Batch>> {
        let position = self.position(role).map_err(|_| FsError::NoDevice)?;
        if (role, state) == (ROOT_MDT, TargetState::Inactive) {
            return Err(Refusal::HoldsRoot(role.target_name(&self.map.fsname)).into());
        }
        let known = &self.map.targets[position];
        if known.state == state {
            return Ok(None);
        }
        let target = MapTarget { state, ..known.clone() };
        Ok(Some(self.put_target(target)))
    }

    /// Sets a permanent parameter, or removes it if `value` is empty. It becomes the last in order.
    /// `None` if it is so.
    pub fn set_parameter(&mut self, pattern: &str, value: &str) -> FsResult<Option<Batch>> {
        check_text("parameter", "name", pattern, PARAMETER_BYTES_MAX)?;
        if value.len() > PARAMETER_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let known = self.map.parameters.iter().position(|(known, _)| known == pattern);
        let is_last = known.is_some_and(|position| position + 1 == self.map.parameters.len());
        match known {
            None if value.is_empty() => return Ok(None),
            Some(position) if is_last && self.map.parameters[position].1 == value => return Ok(None),
            _ => {}
        }
        let used: usize = self.map.parameters.iter().map(|(pattern, value)| pattern.len() + value.len()).sum();
        if !value.is_empty() && used + pattern.len() + value.len() > PARAMETERS_BYTES_MAX {
            return Err(FsError::NoSpace);
        }
        let mut batch = Batch::default();
        if let Some(position) = known {
            self.map.parameters.remove(position);
            batch.delete(tables::PARAMETERS, tables::encode_ordinal(self.ordinals.remove(position)));
        }
        if !value.is_empty() {
            let ordinal = self.ordinals.last().map_or(0, |last| last + 1);
            self.map.parameters.push((pattern.to_owned(), value.to_owned()));
            self.ordinals.push(ordinal);
            let record = tables::encode_parameter(pattern, value);
            batch.put(tables::PARAMETERS, tables::encode_ordinal(ordinal), record);
        }
        self.map.version += 1;
        self.put_version(&mut batch);
        Ok(Some(batch))
    }

    /// Makes an empty pool.
    pub fn new_pool(&mut self, name: &str) -> FsResult<Option<Batch>> {
        if !is_pool_name(name) || POOL_NAMES_RESERVED.contains(&name) {
            return Err(Refusal::PoolName { name: name.to_owned(), bytes_max: POOL_NAME_BYTES_MAX }.into());
        }
        match self.pool_position(name) {
            Ok(_) => Err(FsError::Exists),
            Err(_) if self.map.pools.len() >= POOLS_MAX => Err(FsError::NoSpace),
            Err(position) => {
                self.map.pools.insert(position, Pool { name: name.to_owned(), osts: Vec::new() });
                Ok(Some(self.put_pool(position)))
            }
        }
    }

    /// Puts OSTs into a pool. `Exists` if all are in it.
    pub fn add_to_pool(&mut self, name: &str, osts: &[OstIndex]) -> FsResult<Option<Batch>> {
        let position = self.pool_position(name).map_err(|_| FsError::NotFound)?;
        if osts.iter().any(|ost| self.position(TargetRole::Ost(*ost)).is_err()) {
            return Err(FsError::NoDevice);
        }
        let members: usize = self.map.pools.iter().map(|pool| pool.osts.len()).sum();
        let mut changed = self.map.pools[position].osts.clone();
        changed.extend(osts);
        changed.sort_unstable();
        changed.dedup();
        if members - self.map.pools[position].osts.len() + changed.len() > POOL_MEMBERS_MAX {
            return Err(FsError::NoSpace);
        }
        self.set_pool(position, changed).map(Some).ok_or(FsError::Exists)
    }

    /// Takes OSTs out of a pool. `NoDevice` if none is in it.
    pub fn remove_from_pool(&mut self, name: &str, osts: &[OstIndex]) -> FsResult<Option<Batch>> {
        let position = self.pool_position(name).map_err(|_| FsError::NotFound)?;
        let mut changed = self.map.pools[position].osts.clone();
        changed.retain(|ost| !osts.contains(ost));
        self.set_pool(position, changed).map(Some).ok_or(FsError::NoDevice)
    }

    /// Removes an empty pool.
    pub fn destroy_pool(&mut self, name: &str) -> FsResult<Option<Batch>> {
        let position = self.pool_position(name).map_err(|_| FsError::NotFound)?;
        if !self.map.pools[position].osts.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.map.pools.remove(position);
        let mut batch = Batch::default();
        batch.delete(tables::POOLS, name.as_bytes().to_vec());
        self.map.version += 1;
        self.put_version(&mut batch);
        Ok(Some(batch))
    }

    /// Where a pool is, or where it belongs.
    fn pool_position(&self, name: &str) -> Result<usize, usize> {
        self.map.pools.binary_search_by(|pool| pool.name.as_str().cmp(name))
    }

    fn set_pool(&mut self, position: usize, osts: Vec<OstIndex>) -> Option<Batch> {
        if self.map.pools[position].osts == osts {
            return None;
        }
        self.map.pools[position].osts = osts;
        Some(self.put_pool(position))
    }

    fn put_pool(&mut self, position: usize) -> Batch {
        let pool = &self.map.pools[position];
        let mut batch = Batch::default();
        batch.put(tables::POOLS, pool.name.as_bytes().to_vec(), tables::encode_pool(pool));
        self.map.version += 1;
        self.put_version(&mut batch);
        batch
    }

    /// Where a target is, or where it belongs.
    fn position(&self, role: TargetRole) -> Result<usize, usize> {
        self.map.targets.binary_search_by_key(&role, |target| target.role)
    }

    fn put_target(&mut self, target: MapTarget) -> Batch {
        let mut batch = Batch::default();
        batch.put(tables::TARGETS, tables::encode_role(target.role), tables::encode_target(&target));
        match self.position(target.role) {
            Ok(position) => self.map.targets[position] = target,
            Err(position) => self.map.targets.insert(position, target),
        }
        self.map.version += 1;
        self.put_version(&mut batch);
        batch
    }

    fn put_version(&self, batch: &mut Batch) {
        batch.put(tables::CLUSTER, Vec::new(), tables::encode_cluster(self.map.version, &self.map.fsname));
    }
}

/// Whether a name can be a file system's: 1-8 characters of `[-_a-zA-Z0-9]`, as Lustre.
pub fn check_fsname(fsname: &str) -> FsResult<()> {
    let good = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
    if (1..=FSNAME_BYTES_MAX).contains(&fsname.len()) && fsname.chars().all(good) {
        return Ok(());
    }
    Err(Refusal::FileSystemName(fsname.to_owned()).into())
}

fn check_text(whose: &str, what: &'static str, text: &str, bytes_max: usize) -> FsResult<()> {
    if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        return Err(Refusal::Text { whose: whose.to_owned(), what, bytes_max }.into());
    }
    Ok(())
}

/// Addresses as they can be stored: some, not too many, all different, each a text without the
/// separator.
fn check_addresses(whose: &str, addresses: &[String]) -> FsResult<()> {
    let bytes: usize = addresses.iter().map(|address| address.len() + tables::ADDRESS_SEPARATOR.len_utf8()).sum();
    let is_repeated = |(at, address)| addresses[..at].contains(address);
    let is_good = !addresses.iter().any(|address| address.contains(tables::ADDRESS_SEPARATOR))
        && !addresses.iter().enumerate().any(is_repeated);
    if addresses.is_empty() || addresses.len() > ADDRESSES_PER_TARGET_MAX || bytes > ADDRESS_BYTES_MAX || !is_good {
        let (addresses_max, bytes_max) = (ADDRESSES_PER_TARGET_MAX, ADDRESS_BYTES_MAX);
        return Err(Refusal::Addresses { target: whose.to_owned(), addresses_max, bytes_max }.into());
    }
    addresses.iter().try_for_each(|address| check_text(whose, "address", address, ADDRESS_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::TargetCondition;
    use types::{OstIndex, SpaceUsage};

    use super::*;

    fn report(role: TargetRole, uuid: &str, address: &str) -> Register {
        Register {
            fsname: "stria".into(),
            role,
            uuid: uuid.into(),
            addresses: address.split(',').map(str::to_owned).collect(),
            space: SpaceUsage::default(),
            condition: TargetCondition::default(),
        }
    }

    fn ost(index: u16) -> TargetRole {
        TargetRole::Ost(OstIndex(index))
    }

    fn refusal(result: FsResult<Option<Batch>>) -> String {
        match result {
            Err(FsError::Refused(refusal)) => refusal.to_string(),
            other => panic!("expected a refusal: {other:?}"),
        }
    }

    #[test]
    fn targets_keep_their_order_and_the_version_counts_changes() {
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        for role in [ost(3), TargetRole::Mdt(MdtIndex(1)), ost(0), TargetRole::Mdt(MdtIndex(0))] {
            let uuid = format!("{role:?}");
            assert!(cluster.register(&report(role, &uuid, "a:1")).unwrap().is_some());
            assert!(cluster.register(&report(role, &uuid, "a:1")).unwrap().is_none(), "nothing new");
        }
        let roles: Vec<_> = cluster.map().targets.iter().map(|target| target.role).collect();
        assert_eq!(roles, [TargetRole::Mdt(MdtIndex(0)), TargetRole::Mdt(MdtIndex(1)), ost(0), ost(3)]);
        assert_eq!(cluster.map().version, 5);
    }

    #[test]
    fn an_index_belongs_to_one_target() {
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        cluster.register(&report(ost(0), "u0", "a:1")).unwrap();
        let taken = refusal(cluster.register(&report(ost(0), "u1", "b:1")));
        assert_eq!(taken, "stria-OST0000: the index is taken by uuid u0 at a:1, this target has uuid u1");
        let moved = refusal(cluster.register(&report(ost(1), "u0", "a:1")));
        assert_eq!(moved, "stria-OST0001: uuid u0 is registered as stria-OST0000");
        let foreign = refusal(cluster.register(&Register { fsname: "other".into(), ..report(ost(2), "u2", "a:1") }));
        assert_eq!(foreign, "other-OST0002: this management service serves file system 'stria'");
        assert_eq!(cluster.map().version, 2);
    }

    #[test]
    fn the_target_of_the_root_directory_is_never_taken_out_of_use() {
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        for index in 0..2 {
            let role = TargetRole::Mdt(MdtIndex(index));
            cluster.register(&report(role, &format!("u{index}"), "a:1")).unwrap();
        }
        let refused = refusal(cluster.set_state(ROOT_MDT, TargetState::Inactive));
        assert!(refused.starts_with("stria-MDT0000 holds the root directory"), "{refused}");
        assert_eq!((cluster.map().version, cluster.map().targets[0].state), (3, TargetState::Active));
        assert!(cluster.set_state(TargetRole::Mdt(MdtIndex(1)), TargetState::Inactive).unwrap().is_some());
        // A file system whose MDT was taken out by an earlier version can be put right.
        assert!(cluster.set_state(ROOT_MDT, TargetState::Active).unwrap().is_none());
    }

    #[test]
    fn an_address_moves_and_the_state_stays() {
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        cluster.register(&report(ost(0), "u0", "a:1")).unwrap();
        assert!(cluster.set_state(ost(0), TargetState::Inactive).unwrap().is_some());
        assert!(cluster.set_state(ost(0), TargetState::Inactive).unwrap().is_none());
        assert_eq!(cluster.set_state(ost(9), TargetState::Inactive), Err(FsError::NoDevice));
        assert!(cluster.register(&report(ost(0), "u0", "b:1")).unwrap().is_some());
        let target = &cluster.map().targets[0];
        assert_eq!((&target.addresses[..], target.state), (&["b:1".to_owned()][..], TargetState::Inactive));
        assert!(cluster.register(&report(ost(0), "u0", "b:1,c:1")).unwrap().is_some(), "another address of the same");
        assert!(cluster.register(&report(ost(0), "u0", "b:1,c:1")).unwrap().is_none());
        assert_eq!(cluster.map().targets[0].addresses, ["b:1", "c:1"]);
    }

    #[test]
    fn parameters_keep_the_order_of_setting() {
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        for (pattern, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), ("b", "")] {
            assert!(cluster.set_parameter(pattern, value).unwrap().is_some(), "{pattern}={value}");
        }
        assert_eq!(cluster.set_parameter("a", "4"), Ok(None));
        assert_eq!(cluster.set_parameter("b", ""), Ok(None), "removing what is not there is no change");
        let expected = [("c".to_owned(), "3".to_owned()), ("a".to_owned(), "4".to_owned())];
        assert_eq!(cluster.map().parameters, expected);
        assert!(cluster.ordinals.is_sorted());
    }

    #[test]
    fn pools_are_named_sets_of_osts() {
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        for index in 0..3 {
            cluster.register(&report(ost(index), &format!("u{index}"), "a:1")).unwrap();
        }
        for name in ["slow", "fast"] {
            assert!(cluster.new_pool(name).unwrap().is_some());
        }
        assert_eq!(cluster.new_pool("fast"), Err(FsError::Exists));
        for name in ["", "none", "inherit", "a/b", "sixteencharacter"] {
            refusal(cluster.new_pool(name));
        }
        let osts = |indices: &[u16]| indices.iter().copied().map(OstIndex).collect::<Vec<_>>();
        assert_eq!(cluster.add_to_pool("absent", &osts(&[0])), Err(FsError::NotFound));
        assert_eq!(cluster.add_to_pool("fast", &osts(&[0, 9])), Err(FsError::NoDevice));
        assert!(cluster.add_to_pool("fast", &osts(&[2, 0])).unwrap().is_some());
        assert_eq!(cluster.add_to_pool("fast", &osts(&[0])), Err(FsError::Exists));
        assert_eq!(cluster.destroy_pool("fast"), Err(FsError::NotEmpty));
        let names: Vec<_> = cluster.map().pools.iter().map(|pool| (pool.name.as_str(), pool.osts.len())).collect();
        assert_eq!(names, [("fast", 2), ("slow", 0)]);
        assert_eq!(cluster.map().pools[0].osts, osts(&[0, 2]));
        assert!(cluster.remove_from_pool("fast", &osts(&[0, 2, 7])).unwrap().is_some());
        assert_eq!(cluster.remove_from_pool("fast", &osts(&[0])), Err(FsError::NoDevice));
        let version = cluster.map().version;
        assert!(cluster.destroy_pool("fast").unwrap().is_some());
        assert_eq!((cluster.map().version, cluster.destroy_pool("fast")), (version + 1, Err(FsError::NotFound)));
        for number in 1..POOLS_MAX {
            cluster.new_pool(&format!("p{number}")).unwrap();
        }
        assert_eq!(cluster.new_pool("over"), Err(FsError::NoSpace));
    }

    #[test]
    fn everything_has_a_limit() {
        for name in ["", "ninechars", "a b", "stri\u{e4}"] {
            assert!(Cluster::create(name).is_err(), "{name}");
        }
        let (mut cluster, _) = Cluster::create("stria").unwrap();
        refusal(cluster.register(&report(ost(0), "", "a:1")));
        refusal(cluster.register(&report(ost(0), "u", &"a".repeat(129))));
        refusal(cluster.register(&report(ost(0), "u\n", "a:1")));
        refusal(cluster.register(&report(ost(0), "u", "a:1,")));
        refusal(cluster.register(&report(ost(0), "u", "1,2,3,4,5,6,7,8,9")));
        refusal(cluster.register(&report(ost(0), "u", "a:1,b:1,a:1")));
        refusal(cluster.register(&report(ost(0), "u", &format!("{},b", "a".repeat(126)))));
        refusal(cluster.register(&Register { addresses: vec![], ..report(ost(0), "u", "a:1") }));
        refusal(cluster.register(&Register { addresses: vec!["a:1,b:1".into()], ..report(ost(0), "u", "a:1") }));
        let long = "v".repeat(PARAMETER_BYTES_MAX);
        assert_eq!(cluster.set_parameter("p", &(long.clone() + "v")), Err(FsError::TooBig));
        let mut set = 0;
        while cluster.set_parameter(&format!("p{set}"), &long).is_ok() {
            set += 1;
        }
        assert_eq!(cluster.set_parameter("q", &long), Err(FsError::NoSpace));
        assert_eq!(set, PARAMETERS_BYTES_MAX / (PARAMETER_BYTES_MAX + 3));
    }
}
