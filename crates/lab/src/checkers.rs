//! What must be true once all faults are over: one checker per invariant, each a function that
//! describes violations in words.
//!
//! A checker looks from outside, through the requests that `stria fsck` uses, and uses its own
//! arithmetic. To add one: write a function `async fn name(cluster, inspector) -> Verdict`, state
//! in its documentation which promise it checks, and call it from [`at_rest`] (clients mounted,
//! nothing running) or [`abandoned`] (no client left).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use layout::{Layout, Location};
use oss::{Ost, scrub_record::ScrubStatus};
use rpc::{
    SessionInfo,
    message::{mdt::ScannedInode, ost::ObjectAttributes},
};
use types::{FsResult, InodeNumber, ObjectId};

use crate::{
    cluster::Cluster,
    inspector::Inspector,
    invariants::is_clean,
    server::{Role, Serving},
    workload::Verdict,
};

/// How long anything may take once all faults are over. The longest wait is for the end of a client
/// that died: its locks are free when its lease has run out and all OSTs refuse it; if the MDT
/// restarted meanwhile, the lease begins again.
pub const LIVENESS_BOUND: Duration = Duration::from_secs(300);
/// Objects without a file that stay for so long do not go by themselves.
const ORPHANS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two looks at something that is expected to come.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Liveness: what is waited for comes within [`LIVENESS_BOUND`] once all faults are over.
pub async fn finishes<T>(cluster: &Cluster, what: &str, work: impl Future<Output = T>) -> Result<T, String> {
    let finished = cluster.within(LIVENESS_BOUND, work).await;
    finished.ok_or_else(|| format!("{what}: not finished {LIVENESS_BOUND:?} after the last fault"))
}

/// All checks of a cluster at rest: a client is mounted at least, and nothing runs.
///
/// A power loss may take changes that were not synced from one server, while another keeps what
/// belongs to them: then objects of files whose creation the MDT lost remain ([`orphans_go`]
/// removes them), and an OST may have less than the MDT knows. `stria fsck` repairs both; what does
/// hold is checked all the same.
pub async fn at_rest(cluster: &Cluster) -> Verdict {
    let checks = async {
        recovery_ends(cluster).await?;
        let inspector = Inspector::open(cluster);
        operations_of_several_mdts_end(cluster, &inspector).await?;
        namespace_is_clean(&inspector).await?;
        objects_verify(&inspector).await?;
        every_size_becomes_known(cluster, &inspector).await?;
        if cluster.mds_roles().any(|role| cluster.lost_power(role)) {
            destroy_orphans(cluster, &inspector).await?;
        }
        deferred_log_drains(cluster, &inspector).await?;
        scrubs_find_all_whole(cluster).await?;
        if !cluster.roles().into_iter().any(|role| matches!(role, Role::Oss(_)) && cluster.lost_power(role)) {
            sizes_agree(&inspector).await?;
        }
        inspector.close().await;
        Ok(())
    };
    finishes(cluster, "the checks", checks).await?
}

/// All checks when no client is left.
pub async fn abandoned(cluster: &Cluster) -> Verdict {
    let checks = async {
        eventually(cluster, no_sessions_are_left).await?;
        eventually(cluster, nothing_is_open).await?;
        let inspector = Inspector::open(cluster);
        no_locks_are_left(&inspector).await?;
        inspector.close().await;
        Ok(())
    };
    finishes(cluster, "the checks without clients", checks).await?
}

/// Looks again until the check passes, for as long as anything may take.
async fn eventually(cluster: &Cluster, check: impl Fn(&Cluster) -> Verdict) -> Verdict {
    let deadline = cluster.simulation().now() + LIVENESS_BOUND / 2;
    loop {
        let verdict = check(cluster);
        if verdict.is_ok() || cluster.simulation().now() > deadline {
            return verdict;
        }
        cluster.simulation().sleep(LOOK_AGAIN).await;
    }
}

fn failed<T>(what: &str, result: FsResult<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Recovery of the MDT ends: every client of the former start comes back.
async fn recovery_ends(cluster: &Cluster) -> Verdict {
    loop {
        let has_recovered = |role: Role| {
            let over = |serving: &Serving| serving.mdt.as_ref().is_none_or(|mdt| mdt.recovering_clients().is_empty());
            cluster.inspect(role, over).unwrap_or(false)
        };
        if cluster.mds_roles().all(has_recovered) {
            return Ok(());
        }
        cluster.simulation().sleep(LOOK_AGAIN).await;
    }
}

/// A scrub of every OST reads all data that it has, and finds no damage.
async fn scrubs_find_all_whole(cluster: &Cluster) -> Verdict {
    let osts = |look: &dyn Fn(&Ost) -> Verdict| {
        let of_role =
            |role| cluster.inspect(role, |serving: &Serving| serving.osts.iter().try_for_each(|ost| look(ost)));
        cluster.roles().into_iter().filter_map(of_role).collect::<Verdict>()
    };
    osts(&|ost| {
        ost.scrub_once();
        Ok(())
    })?;
    let all_are_through = |_: &Cluster| {
        osts(&|ost| match ost.last_scrub() {
            Some(scrub) if scrub.status == ScrubStatus::Completed => Ok(()),
            scrub => Err(format!("the scrub of {} does not end: {scrub:?}", ost.name())),
        })
    };
    eventually(cluster, all_are_through).await?;
    osts(&|ost| {
        let scrub = ost.last_scrub().unwrap_or_default();
        is_clean(ost.index(), Some(&scrub))?;
        let blocks = ost.blocks_with_data();
        // More, if objects were destroyed meanwhile.
        match scrub.blocks >= blocks {
            true => Ok(()),
            false => Err(format!("the scrub of {} has read {} of {blocks} blocks", ost.name(), scrub.blocks)),
        }
    })
}

type Objects = BTreeMap<Location, Vec<(ObjectId, ObjectAttributes)>>;

async fn all_objects(inspector: &Inspector) -> Result<Objects, String> {
    let mut objects = Objects::new();
    for holder in inspector.holders() {
        objects.insert(holder, failed(&format!("objects of {holder:?}"), inspector.objects(holder).await)?);
    }
    Ok(objects)
}

/// Objects that no file has, with their targets.
fn orphans(inodes: &[ScannedInode], objects: &Objects) -> BTreeSet<(Location, ObjectId)> {
    let layouts = inodes.iter().filter_map(|scanned| Some((scanned.entry.attributes.inode, scanned.layout.as_ref()?)));
    let expected: BTreeSet<(Location, ObjectId)> = layouts
        .flat_map(|(inode, layout)| layout.objects().map(move |(slot, at)| (at, layout.object(inode, slot))))
        .collect();
    let belongs = |holder: Location, object: ObjectId| expected.contains(&(holder, object));
    let each = objects.iter().flat_map(|(holder, objects)| objects.iter().map(|(object, _)| (*holder, *object)));
    each.filter(|(holder, object)| !belongs(*holder, *object)).collect()
}

/// Does what `stria fsck --repair` does about objects without a file. Nobody misses anything
/// afterwards: that is for the caller to see.
pub async fn orphans_go(cluster: &Cluster) -> Verdict {
    let repair = async {
        recovery_ends(cluster).await?;
        let inspector = Inspector::open(cluster);
        let destroyed = destroy_orphans(cluster, &inspector).await?;
        inspector.close().await;
        cluster.log().event("tool", format_args!("{destroyed} objects without a file destroyed"));
        Ok(())
    };
    finishes(cluster, "the removal of objects without a file", repair).await?
}

/// Destroys the objects without a file that do not go by themselves; how many those were.
async fn destroy_orphans(cluster: &Cluster, inspector: &Inspector) -> Result<usize, String> {
    let look = async || {
        let objects = all_objects(inspector).await?;
        Ok::<_, String>(orphans(&failed("scan of inodes", inspector.inodes().await)?, &objects))
    };
    let mut known = look().await?;
    loop {
        cluster.simulation().sleep(ORPHANS_TIMEOUT).await;
        let now = look().await?;
        if now == known {
            break;
        }
        known = now;
    }
    for (holder, object) in &known {
        failed(&format!("destroy {object} on {holder:?}"), inspector.destroy(*holder, *object).await)?;
    }
    Ok(known.len())
}

/// No object is left without its file once the MDT has told the OSTs what to destroy.
pub async fn deferred_log_drains(cluster: &Cluster, inspector: &Inspector) -> Verdict {
    let deadline = cluster.simulation().now() + LIVENESS_BOUND / 2;
    loop {
        let inodes = failed("scan of inodes", inspector.inodes().await)?;
        let orphans = orphans(&inodes, &all_objects(inspector).await?);
        let Some((holder, object)) = orphans.first() else { return Ok(()) };
        if cluster.simulation().now() > deadline {
            return Err(format!(
                "{} objects without a file are never destroyed, as {object} on {holder:?}",
                orphans.len()
            ));
        }
        cluster.simulation().sleep(LOOK_AGAIN).await;
    }
}

/// Between MDTs nothing is prepared, in progress or to be delivered any more, and each name that
/// leads to another MDT has its inode there, and the other way round: no directory is lost, none
/// has two names, and none is left without a name.
async fn operations_of_several_mdts_end(cluster: &Cluster, inspector: &Inspector) -> Verdict {
    if cluster.options().mdts == 1 {
        return Ok(());
    }
    let deadline = cluster.simulation().now() + LIVENESS_BOUND / 2;
    loop {
        let pending = |role: Role| {
            let pending = |serving: &Serving| serving.mdt.as_ref().map_or(0, |mdt| mdt.pending_of_several());
            cluster.inspect(role, pending).unwrap_or(usize::MAX)
        };
        let pending: Vec<usize> = cluster.mds_roles().map(pending).collect();
        let names = failed("names that lead to other MDTs", inspector.remote_names(true).await)?;
        let inodes = failed("inodes with names on other MDTs", inspector.remote_names(false).await)?;
        if names == inodes && pending.iter().all(|pending| *pending == 0) {
            return Ok(());
        }
        if cluster.simulation().now() > deadline {
            return Err(format!(
                "operations between MDTs do not end: {pending:?} of each; names {names:?}, inodes {inodes:?}"
            ));
        }
        cluster.simulation().sleep(LOOK_AGAIN).await;
    }
}

/// The MDT's own check of its tables finds nothing.
async fn namespace_is_clean(inspector: &Inspector) -> Verdict {
    let findings = failed("check of the namespace", inspector.findings().await)?;
    let Some(first) = findings.first() else { return Ok(()) };
    Err(format!("{} findings in the namespace, first: inode {}: {}", findings.len(), first.inode, first.problem))
}

/// Every stored byte matches its checksum.
async fn objects_verify(inspector: &Inspector) -> Verdict {
    for (holder, objects) in all_objects(inspector).await? {
        for (object, _) in objects {
            failed(&format!("object {object} of {holder:?}"), inspector.verify(holder, object).await)?;
        }
    }
    Ok(())
}

/// The size and the blocks that the objects of a file imply.
fn implied_by_objects(number: InodeNumber, layout: &Layout, objects: &Objects) -> (u64, u64) {
    let size_and_blocks = |(slot, location)| {
        let id = layout.object(number, slot);
        let found = objects[&location].iter().find(|(object, _)| *object == id);
        found.map_or((0, 0), |(_, attributes)| (layout.file_size(slot, attributes.size), attributes.blocks))
    };
    layout.objects().map(size_and_blocks).fold((0, 0), |all, one| (all.0.max(one.0), all.1 + one.1))
}

/// What the MDT says are a file's size and blocks is what its objects say; so no object that the
/// size needs is missing.
async fn sizes_agree(inspector: &Inspector) -> Verdict {
    let inodes = failed("scan of inodes", inspector.inodes().await)?;
    let objects = all_objects(inspector).await?;
    for ScannedInode { entry, layout, busy, .. } in &inodes {
        let Some(layout) = layout.as_ref().filter(|_| entry.size_unknown.is_none() && !busy) else { continue };
        let number = entry.attributes.inode;
        let implied = implied_by_objects(number, layout, &objects);
        let known = (entry.attributes.size, entry.attributes.blocks);
        if implied != known {
            return Err(format!(
                "inode {number}: the MDT knows size and blocks {known:?}, the objects imply {implied:?}"
            ));
        }
    }
    Ok(())
}

/// A client that looks at a file reports its size if no client has it open, however its writers
/// ended.
async fn every_size_becomes_known(cluster: &Cluster, inspector: &Inspector) -> Verdict {
    let deadline = cluster.simulation().now() + LIVENESS_BOUND / 2;
    loop {
        let inodes = failed("scan of inodes", inspector.inodes().await)?;
        let size_unknown = inodes.iter().filter(|scanned| scanned.entry.size_unknown.is_some() && !scanned.busy);
        let size_unknown: Vec<InodeNumber> = size_unknown.map(|scanned| scanned.entry.attributes.inode).collect();
        let Some(first) = size_unknown.first() else { return Ok(()) };
        let client = cluster.clients().first().copied().ok_or("no client is there to look")?;
        let (file_system, _) = cluster.file_system(client).ok_or("no client is there to look")?;
        if cluster.simulation().now() > deadline {
            return Err(format!("inode {first}: closed everywhere, but the MDT never knows its size"));
        }
        let look = async move {
            for inode in size_unknown {
                file_system.get_attributes(inode, None).await?;
            }
            FsResult::Ok(())
        };
        failed("look at all files", cluster.on_client(client, look).await.ok_or("a client died")?)?;
        cluster.simulation().sleep(LOOK_AGAIN).await;
    }
}

/// Clients' sessions at all targets. (Sessions at the MGS hold nothing and end with their lease.)
fn client_sessions(cluster: &Cluster) -> impl Iterator<Item = (Role, SessionInfo)> + '_ {
    cluster.roles().into_iter().filter(|role| *role != Role::Mgs).flat_map(|role| {
        let sessions = cluster.inspect(role, |serving| serving.server.sessions(&role.target_name()));
        let of_clients =
            sessions.unwrap_or_default().into_iter().filter(|session| session.client_name.starts_with("client"));
        of_clients.map(move |session| (role, session))
    })
}

/// Clients that unmounted have no session at any target.
fn no_sessions_are_left(cluster: &Cluster) -> Verdict {
    match client_sessions(cluster).next() {
        Some((role, session)) => Err(format!("{role} still has a session of {}", session.client_name)),
        None => Ok(()),
    }
}

/// Waits until no target executes a request of a client. All clients have died: some of their
/// requests may wait for locks of others of them, and are executed when those are evicted.
pub async fn requests_end(cluster: &Cluster) {
    while client_sessions(cluster).any(|(_, session)| session.running > 0) {
        cluster.simulation().sleep(LOOK_AGAIN).await;
    }
}

/// Clients that unmounted have nothing open.
fn nothing_is_open(cluster: &Cluster) -> Verdict {
    for role in cluster.mds_roles() {
        let open = cluster.inspect(role, |serving| serving.mdt.as_ref().map_or(0, |mdt| mdt.open_files()));
        if open != Some(0) {
            return Err(format!("files are open without clients at {role}: {open:?}"));
        }
    }
    Ok(())
}

/// Clients that unmounted hold no advisory lock.
async fn no_locks_are_left(inspector: &Inspector) -> Verdict {
    for scanned in failed("scan of inodes", inspector.inodes().await)? {
        let number = scanned.entry.attributes.inode;
        if scanned.layout.is_some()
            && let Some(held) = failed(&format!("locks of {number}"), inspector.lock_on(number).await)?
        {
            return Err(format!("inode {number} is still locked by {}", held.client));
        }
    }
    Ok(())
}
