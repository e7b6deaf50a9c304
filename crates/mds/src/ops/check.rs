//! Check (and repair) of the namespace.
//!
//! Every invariant checked is local: a record against the few records that it names, read in one
//! transaction. So the check goes through the tables page by page, and other requests are executed
//! in between; a finding was true at the moment of the check.
//!
//! | pass | checked | repaired by |
//! |---|---|---|
//! | entries | the directory exists; the inode exists, has the kind, knows the name | removing the entry, or adding the name to the inode |
//! | inodes | a striped directory and its shards know each other; a name in a wrong shard (fsck moves it); each name it knows exists and leads to it; count of links; directories: count of subdirectories, no cycle; without a name: recorded as an orphan | forgetting the name, setting the count, a name in `lost+found`, the record |
//! | entries | names of a shard whose record is lost | none: fsck makes the shard again if a map has it |
//! | links | the inode exists and is no directory | removing the link |
//! | xattrs | the inode exists | removing the attribute |
//! | orphans | the inode exists without a name | removing the record |
//! | data | an object's file exists and its layout has it; a block has its object; the object's count of blocks, none after its end | removing object or block, counting again |
//!
//! Entries come before inodes, so that a name the inode did not know counts as one of its names
//! afterwards.

use std::collections::BTreeSet;

use layout::{Layout, Location};
use rpc::message::{
    mdt::Finding,
    name_repair::{MISPLACED, NAMELESS},
};
use types::{FsError, FsResult, InodeNumber, MdtIndex, ObjectId, limits::BLOCK_BYTES};

use super::{lost_and_found, shard_repairs};
use crate::{
    tables::{
        DATA, ENTRIES, INODES, LINKS, ORPHANS, XATTRS, codec,
        data::{self, DataKey, ObjectRecord},
        entry::{EntryRecord, NamedInode},
        inode::{Inode, Link, Striping},
        link, orphan, xattr,
    },
    transaction::{Transaction, entries::FoundEntry},
};

/// Findings in one answer; more are counted in the last one.
const FINDINGS_MAX: usize = 2000;

/// What becomes of the names of a lost shard.
const KEPT: &str = "they are kept: repair again with all MDTs in use, when no names of the directory move";

/// What a check has found so far.
pub(crate) struct CheckReport {
    repair: bool,
    findings: Vec<Finding>,
    omitted: usize,
    /// Directories known to hang together with the root.
    anchored: BTreeSet<InodeNumber>,
    /// Shards without a record that were reported.
    lost_shards: BTreeSet<InodeNumber>,
}

impl CheckReport {
    /// Nothing found yet.
    pub fn new(repair: bool) -> Self {
        let (anchored, lost_shards) = (BTreeSet::new(), BTreeSet::new());
        Self { repair, findings: Vec::new(), omitted: 0, anchored, lost_shards }
    }

    /// A record that cannot be decoded.
    pub fn damaged(&mut self, key: &[u8], problem: String) {
        let inode = codec::split_number("key", key).map_or(InodeNumber(0), |(number, _)| InodeNumber(number));
        self.add(inode, problem, false);
    }

    /// What was found; the last one counts those that are not listed.
    pub fn into_findings(mut self) -> Vec<Finding> {
        if self.omitted > 0 {
            let problem = format!("{} further problems are not listed", self.omitted);
            self.findings.push(Finding { inode: InodeNumber(0), problem, repaired: self.repair });
        }
        self.findings
    }

    fn add(&mut self, inode: InodeNumber, problem: String, repaired: bool) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { inode, problem, repaired });
        } else {
            self.omitted += 1;
        }
    }
}

/// Checks one record: key and value.
pub(crate) type Pass = fn(&mut Transaction<'_>, &mut CheckReport, &[u8], &[u8]) -> FsResult<()>;

/// The passes in their order, each over the records of one table.
pub(crate) const PASSES: [(kv::Table, Pass); 7] = [
    (ENTRIES, entry),
    (INODES, inode),
    (ENTRIES, entry_of_lost_shard),
    (LINKS, further_link),
    (XATTRS, attribute),
    (ORPHANS, orphan_record),
    (DATA, data_record),
];

/// Checks one record as it is now, if it still exists.
pub(crate) fn record(
    txn: &mut Transaction<'_>,
    report: &mut CheckReport,
    table: kv::Table,
    key: &[u8],
    pass: Pass,
) -> FsResult<()> {
    let Some(value) = txn.get(table, key)? else { return Ok(()) };
    let (findings, omitted) = (report.findings.len(), report.omitted);
    let outcome = pass(txn, report, key, &value);
    if outcome.is_err() {
        // Nothing was repaired, and an attempt that was given up finds the same again.
        report.findings.truncate(findings);
        report.omitted = omitted;
    }
    outcome
}

fn entry(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], value: &[u8]) -> FsResult<()> {
    let (directory, position) = EntryRecord::decode_key(key)?;
    let Some(target) = EntryRecord::decode(value)?.target else { return Ok(()) };
    let found = FoundEntry { position, target };
    let name = String::from_utf8_lossy(&found.target.name).into_owned();
    let parent = txn.find_inode(directory)?;
    if parent.is_none() && directory.is_shard() {
        // It may be made again, with these names.
        return Ok(());
    }
    if !parent.as_ref().is_some_and(Inode::is_directory) {
        return drop_entry(txn, report, directory, &found, format!("name '{name}' in a directory that does not exist"));
    }
    if let Some(Striping::Shard(place)) = parent.as_ref().map(|parent| &parent.striping)
        && !place.has(&found.target.name)
    {
        // Nothing finds it. fsck renames it from outside.
        report.add(directory, format!("name '{name}' {MISPLACED}"), false);
    }
    if !txn.is_here(found.target.inode) {
        // Which fsck compares with what the other MDT has.
        return Ok(());
    }
    let Some(mut inode) = txn.find_inode(found.target.inode)? else {
        let problem = format!("name '{name}' in directory {directory} refers to an inode that does not exist");
        return drop_entry(txn, report, directory, &found, problem);
    };
    let number = inode.number();
    if inode.kind() != found.target.kind {
        let problem = format!("name '{name}' says {:?}, the inode is {:?}", found.target.kind, inode.kind());
        report.add(number, problem, report.repair);
        if report.repair {
            txn.retarget_entry(directory, &found, number, inode.kind())?;
        }
    }
    let named = Link { parent: directory, name: found.target.name.clone() };
    if txn.has_link(&inode, &named)? {
        return Ok(());
    }
    let problem = format!("name '{name}' in directory {directory} is unknown to its inode");
    if inode.is_directory() {
        match first_link(txn, &inode)? {
            FirstLink::Absent => {}
            FirstLink::Holds => {
                return drop_entry(txn, report, directory, &found, format!("{problem}: a directory with two names"));
            }
            FirstLink::Elsewhere(mdt) => {
                report.add(number, format!("{problem}, which has another name on {mdt}"), false);
                return Ok(());
            }
        }
    }
    report.add(number, problem, report.repair);
    if report.repair {
        if inode.is_directory() {
            inode.first_link = None;
        }
        txn.add_link(&mut inode, named);
        txn.put_inode(&inode);
    }
    Ok(())
}

/// A name in a shard that does not exist. It is kept: only the map of the directory says whether
/// the shard has to exist, and that may be on an MDT which is out of use, or could not be read.
fn entry_of_lost_shard(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], value: &[u8]) -> FsResult<()> {
    let (directory, _) = EntryRecord::decode_key(key)?;
    let Some(target) = EntryRecord::decode(value)?.target.filter(|_| directory.is_shard()) else { return Ok(()) };
    if is_in_doubt(txn, &[directory]) || txn.find_inode(directory)?.is_some() || !report.lost_shards.insert(directory) {
        return Ok(());
    }
    let name = String::from_utf8_lossy(&target.name);
    let problem = format!("name '{name}', and maybe others, in a shard whose record is lost; {KEPT}");
    report.add(directory, problem, false);
    Ok(())
}

fn drop_entry(
    txn: &mut Transaction<'_>,
    report: &mut CheckReport,
    directory: InodeNumber,
    found: &FoundEntry,
    problem: String,
) -> FsResult<()> {
    report.add(found.target.inode, problem, report.repair);
    if report.repair { txn.remove_entry(directory, found) } else { Ok(()) }
}

/// Whether an entry leads from this name to this inode.
fn leads_to(txn: &Transaction<'_>, named: &Link, inode: InodeNumber) -> FsResult<bool> {
    if inode.is_shard() {
        let map = txn.find_inode(named.parent)?.and_then(|master| master.map());
        return Ok(map.is_some_and(|map| map.shards.contains(&inode)));
    }
    Ok(txn.find_entry(named.parent, &named.name)?.is_some_and(|found| found.target.inode == inode))
}

/// Whether this name may be on its way to a directory or a shard whose names move.
fn is_on_the_way(txn: &Transaction<'_>, named: &Link) -> FsResult<bool> {
    Ok(txn.find_inode(named.parent)?.is_some_and(|directory| directory.names_move()))
}

/// Whether the name that a directory knows exists.
pub(super) enum FirstLink {
    Holds,
    /// It knows none, or one that does not exist.
    Absent,
    /// Only this other MDT can say.
    Elsewhere(MdtIndex),
}

pub(super) fn first_link(txn: &Transaction<'_>, inode: &Inode) -> FsResult<FirstLink> {
    Ok(match &inode.first_link {
        Some(named) if !txn.is_here(named.parent) => FirstLink::Elsewhere(named.parent.mdt()),
        Some(named) if leads_to(txn, named, inode.number())? => FirstLink::Holds,
        _ => FirstLink::Absent,
    })
}

fn inode(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], value: &[u8]) -> FsResult<()> {
    let number = codec::inode_of_key("inode", key)?;
    let mut inode = txn.decode_inode(number, value)?;
    if number.is_shard()
        && let Some(link) = unknown_link(txn, &inode)?
    {
        return check_unknown(txn, report, inode, &link);
    }
    let before = inode.clone();
    let names = count_names(txn, report, &mut inode)?;
    if number == InodeNumber::ROOT && txn.mdt == MdtIndex(0) {
        check_subdirectories(txn, report, &mut inode)?;
    } else if names == 0 {
        check_nameless(txn, report, &mut inode)?;
    } else if inode.is_directory() {
        check_subdirectories(txn, report, &mut inode)?;
        check_anchor(txn, report, &mut inode)?;
    } else if inode.attributes.links != names {
        report.add(number, format!("{} links, but {names} names", inode.attributes.links), report.repair);
        inode.attributes.links = names;
    }
    if names > 0 {
        check_shards(txn, report, &inode)?;
    }
    // One without a name may have ended.
    if report.repair && inode != before && txn.find_inode(number)?.is_some() {
        txn.put_inode(&inode);
    }
    Ok(())
}

/// Whether another MDT may have decided to change one of these. A check does not wait for that: it
/// could not once it has repaired a part, and the next check sees the result.
fn is_in_doubt(txn: &Transaction<'_>, inodes: &[InodeNumber]) -> bool {
    let peers = &txn.volatile.peers;
    peers.may_come_from(txn.mdt).is_some() || inodes.iter().any(|inode| peers.locked_by(*inode).is_some())
}

/// The link of a shard to a directory of this MDT that does not know it, if it has one.
fn unknown_link(txn: &Transaction<'_>, shard: &Inode) -> FsResult<Option<Link>> {
    let Some(link) = shard.first_link.as_ref().filter(|link| txn.is_here(link.parent)) else { return Ok(None) };
    let is_unknown = shard.attributes.links > 0 && !leads_to(txn, link, shard.number())? && !is_on_the_way(txn, link)?;
    Ok(is_unknown.then(|| link.clone()))
}

/// Ends such a shard if it has no names. Nothing else leads to those that it has.
fn check_unknown(txn: &mut Transaction<'_>, report: &mut CheckReport, mut shard: Inode, link: &Link) -> FsResult<()> {
    let number = shard.number();
    if is_in_doubt(txn, &[number, link.parent]) {
        return Ok(());
    }
    let is_empty = txn.is_empty_directory(number)?;
    let words = if is_empty { "an empty shard" } else { "a shard with names" };
    let repair = report.repair && is_empty;
    report.add(number, format!("{words} that directory {} does not know", link.parent), repair);
    if repair { txn.drop_link(&mut shard, link) } else { Ok(()) }
}

/// Names that lead to the inode; those that do not are forgotten. Names on other MDTs are believed:
/// fsck compares them; and those that may come from one, after the inode has heard of it.
fn count_names(txn: &mut Transaction<'_>, report: &mut CheckReport, inode: &mut Inode) -> FsResult<u32> {
    let number = inode.number();
    let mut names = txn.further_links(number, usize::MAX)?;
    names.extend(inode.first_link.clone());
    let mut count = 0;
    for named in names {
        if !txn.is_here(named.parent) || leads_to(txn, &named, number)? || is_on_the_way(txn, &named)? {
            count += 1;
            continue;
        }
        let name = String::from_utf8_lossy(&named.name).into_owned();
        report.add(number, format!("name '{name}' in directory {} does not refer to it", named.parent), report.repair);
        if report.repair {
            txn.remove_link(inode, &named)?;
        }
    }
    Ok(count)
}

/// The shards of a striped directory on this MDT exist, and are its own; fsck compares others.
fn check_shards(txn: &mut Transaction<'_>, report: &mut CheckReport, inode: &Inode) -> FsResult<()> {
    let Some(map) = inode.map() else { return Ok(()) };
    for shard in map.shards.iter().copied().filter(|shard| shard.mdt() == map.master.mdt()) {
        if is_in_doubt(txn, &[shard, map.master]) {
            continue;
        }
        match txn.find_inode(shard)? {
            Some(found) if found.master() == Some(map.master) => {}
            Some(_) => report.add(map.master, format!("its shard {shard} is another directory's"), false),
            None => {
                let repair = report.repair && map.is_possible() && !inode.names_move();
                report.add(map.master, shard_repairs::lost(shard), repair);
                if repair {
                    shard_repairs::make_here(txn, inode, shard)?;
                }
            }
        }
    }
    Ok(())
}

fn check_subdirectories(txn: &mut Transaction<'_>, report: &mut CheckReport, inode: &mut Inode) -> FsResult<()> {
    let links = txn.links_of_directory(inode.number())?;
    if inode.attributes.links != links {
        report.add(
            inode.number(),
            format!("{} links, but {} subdirectories", inode.attributes.links, links - 2),
            report.repair,
        );
        inode.attributes.links = links;
    }
    Ok(())
}

/// An inode without a name must be an orphan: unlinked while open, or never named.
fn check_nameless(txn: &mut Transaction<'_>, report: &mut CheckReport, inode: &mut Inode) -> FsResult<()> {
    let number = inode.number();
    let recorded = txn.get(ORPHANS, &orphan::key(number))?.is_some();
    if inode.attributes.links == 0 {
        if recorded {
            return Ok(());
        }
        report.add(number, "without a name, and not recorded as unlinked".to_owned(), report.repair);
        if report.repair {
            txn.put(ORPHANS, orphan::key(number), orphan::value());
            txn.reap(number)?;
        }
        return Ok(());
    }
    let (repair, why) = may_rescue(txn, report, number)?;
    report.add(number, format!("{} links, but {NAMELESS}{why}", inode.attributes.links), repair);
    if repair {
        inode.first_link = None;
        inode.attributes.links = if inode.is_directory() { inode.attributes.links } else { 1 };
        rescue(txn, inode)?;
        if inode.is_directory() {
            let mut silent = CheckReport::new(true);
            check_subdirectories(txn, &mut silent, inode)?;
        }
        if recorded {
            txn.delete(ORPHANS, orphan::key(number));
        }
    }
    Ok(())
}

/// A directory must be below the root.
fn check_anchor(txn: &mut Transaction<'_>, report: &mut CheckReport, inode: &mut Inode) -> FsResult<()> {
    let number = inode.number();
    let (mut way, mut at) = (vec![number], txn.parent_of(inode));
    while at != InodeNumber::ROOT && txn.is_here(at) && !report.anchored.contains(&at) {
        if way.contains(&at) {
            let (repair, why) = may_rescue(txn, report, number)?;
            report.add(number, format!("is in a cycle of {} directories{why}", way.len()), repair);
            if repair {
                cut_circle(txn, inode)?;
            }
            return Ok(());
        }
        way.push(at);
        match txn.find_inode(at)? {
            Some(parent) if parent.first_link.is_some() => at = txn.parent_of(&parent),
            // The parent itself is reported and rescued.
            _ => return Ok(()),
        }
    }
    report.anchored.extend(way);
    Ok(())
}

/// Takes a directory out of a cycle of directories and puts it into `lost+found`.
fn cut_circle(txn: &mut Transaction<'_>, inode: &mut Inode) -> FsResult<()> {
    let Some(old) = inode.first_link.take() else { return Ok(()) };
    if let Some(found) = txn.find_entry(old.parent, &old.name)? {
        txn.remove_entry(old.parent, &found)?;
    }
    if old.parent == inode.number() {
        inode.attributes.links = inode.attributes.links.saturating_sub(1);
    } else if let Some(mut parent) = txn.find_inode(old.parent)? {
        parent.attributes.links = parent.attributes.links.saturating_sub(1);
        txn.put_inode(&parent);
    }
    rescue(txn, inode)
}

/// Whether an inode is put into `lost+found` here, and what to say if it could be but is not. One
/// of another MDT than the root is put there at fsck's request; a shard belongs to its directory.
fn may_rescue(txn: &Transaction<'_>, report: &CheckReport, number: InodeNumber) -> FsResult<(bool, String)> {
    if !report.repair || number.is_shard() {
        return Ok((false, String::new()));
    }
    Ok(match lost_and_found::is_usable(txn)? {
        Some(true) if lost_and_found::has_name_for(txn, number)? => (true, String::new()),
        Some(true) => (false, format!("; {}", lost_and_found::FULL)),
        Some(false) => (false, format!("; {}", lost_and_found::UNUSABLE)),
        None => (false, String::new()),
    })
}

/// Gives a nameless inode a name in `lost+found`. The caller stores the inode.
fn rescue(txn: &mut Transaction<'_>, inode: &mut Inode) -> FsResult<()> {
    let directory = lost_and_found::open(txn)?;
    let link = lost_and_found::free_name(txn, directory.number(), inode.number())?.ok_or(FsError::Exists)?;
    let target = NamedInode { name: link.name.clone(), inode: inode.number(), kind: inode.kind() };
    inode.first_link = Some(link);
    lost_and_found::add(txn, directory, target)
}

fn further_link(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], value: &[u8]) -> FsResult<()> {
    let (number, named) = link::decode_key(key)?;
    link::decode_value(value)?;
    if txn.find_inode(number)?.is_some_and(|inode| !inode.is_directory()) {
        return Ok(());
    }
    let name = String::from_utf8_lossy(&named.name).into_owned();
    report.add(number, format!("name '{name}' of an inode that does not exist"), report.repair);
    if report.repair {
        txn.delete(LINKS, key.to_vec());
    }
    Ok(())
}

fn attribute(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], _: &[u8]) -> FsResult<()> {
    let (number, name) = xattr::decode_key(key)?;
    if txn.find_inode(number)?.is_some() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(name).into_owned();
    report.add(number, format!("attribute '{name}' of an inode that does not exist"), report.repair);
    if report.repair {
        txn.delete(XATTRS, key.to_vec());
    }
    Ok(())
}

fn orphan_record(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], value: &[u8]) -> FsResult<()> {
    let number = orphan::decode_key(key)?;
    orphan::decode_value(value)?;
    let problem = match txn.find_inode(number)? {
        None => "recorded as unlinked, but does not exist",
        Some(inode) if inode.attributes.links > 0 => "recorded as unlinked, but has a name",
        Some(_) if txn.is_open(number) || txn.volatile.removed.contains(number) => return Ok(()),
        Some(_) if !txn.volatile.recovery.ended => return Ok(()),
        // It may get a name.
        Some(_) if txn.volatile.peers.locked_by(number).is_some() => return Ok(()),
        Some(_) => "unlinked and not open, but not removed",
    };
    report.add(number, problem.to_owned(), report.repair);
    if report.repair {
        txn.reap(number)?;
    }
    Ok(())
}

fn data_record(txn: &mut Transaction<'_>, report: &mut CheckReport, key: &[u8], value: &[u8]) -> FsResult<()> {
    match data::decode_key(key)? {
        DataKey::Object(object) => data_object(txn, report, object, ObjectRecord::decode(value)?),
        DataKey::Block(object, block) => {
            data::decode_block(value)?;
            if txn.get(DATA, &data::object_key(object))?.is_some() {
                return Ok(());
            }
            report.add(object.inode, format!("block {block} of data without an object {object}"), report.repair);
            if report.repair {
                txn.delete(DATA, key.to_vec());
            }
            Ok(())
        }
    }
}

fn data_object(
    txn: &mut Transaction<'_>,
    report: &mut CheckReport,
    object: ObjectId,
    record: ObjectRecord,
) -> FsResult<()> {
    let inode = txn.find_inode(object.inode)?;
    let layout = inode.as_ref().and_then(|inode| inode.layout());
    let is_here = |layout: &&Layout| layout.location(object.slot) == Some(Location::Mdt);
    if layout.filter(is_here).is_none_or(|layout| layout.object(object.inode, object.slot) != object) {
        let problem = format!("orphan object {object} on {}: {} bytes that belong to no file", txn.mdt, record.size);
        report.add(object.inode, problem, report.repair);
        if report.repair {
            txn.delete_prefix(DATA, &data::object_key(object))?;
        }
        return Ok(());
    }
    let (mut held, mut after) = (0, Vec::new());
    txn.visit_blocks(object, 0..u64::MAX, |block, _| {
        if block < record.size.div_ceil(BLOCK_BYTES) {
            held += 1;
        } else {
            after.push(block);
        }
        Ok(true)
    })?;
    if held == record.blocks && after.is_empty() {
        return Ok(());
    }
    let problem = format!(
        "object {object} on {} records {} blocks, but has {held}, and {} after its end",
        txn.mdt,
        record.blocks,
        after.len()
    );
    report.add(object.inode, problem, report.repair);
    if report.repair {
        txn.put(DATA, data::object_key(object), ObjectRecord { blocks: held, ..record }.encode());
        after.into_iter().for_each(|block| txn.delete(DATA, data::block_key(object, block)));
    }
    Ok(())
}
