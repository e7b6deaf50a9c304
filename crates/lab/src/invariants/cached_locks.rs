//! Nobody serves from a cache under a lock that the MDT does not know as granted: neither a client
//! nor a cache above it.
//!
//! This is what makes caches coherent: the MDT changes nothing that others hold locks on. It is
//! checked after every step of the simulation, since the moment between the end of a lock and the
//! end of what is served under it may be a single step.
//!
//! Holds at every moment, whatever fails: a client stops serving before it gives a lock back, when
//! its connection breaks, and when its lease ends by its own clock, before the MDT drops the locks.
//! On a new connection it serves under the locks that the MDT has granted again, as soon as its
//! claims are answered. A cache above has dropped its copies before a lock is given back and before
//! a new connection begins; otherwise they are valid no longer than the lease, at the end of which
//! the MDT drops the locks of an evicted client. Two cases are none:
//!
//! - After its restart the MDT knows no locks. It makes no change before the clients of its former
//!   start have come back, or their leases have ended, also those of clients that were evicted;
//!   until then such a client serves what it knew.
//! - An inode that is gone has no locks. Nothing of it can change any more.

use std::sync::Arc;

use crate::{
    cluster::{Cluster, client_host},
    server::Role,
    upper_cache::UpperCopies,
    workload::Verdict,
};
use client::{FileSystem, ServedLock};
use mds::Mdt;
use rpc::message::{lock::InodeBits, mgs::TargetRole};
use types::{ClientId, InodeNumber, MdtIndex};

/// Checks after every step from now on; a violation ends the run.
pub(super) fn watch(cluster: &Cluster) {
    let observed = cluster.clone();
    cluster.simulation().observe(move || {
        if let Err(violation) = check(&observed) {
            let name = "nobody serves from a cache whose lock the MDT does not know";
            observed.fail(format!("invariant \"{name}\" is violated: {violation}"));
        }
    });
}

fn check(cluster: &Cluster) -> Verdict {
    let (clients, above) = (cluster.file_systems(), cluster.upper_caches());
    let look = |role: Role| {
        let check = |serving: &crate::server::Serving| match (&serving.mdt, role.target()) {
            (Some(mdt), Some(TargetRole::Mdt(index))) => {
                check_all((mdt, index), &clients).and_then(|()| check_above(mdt, &above))
            }
            _ => Ok(()),
        };
        cluster.inspect(role, check).unwrap_or(Ok(()))
    };
    cluster.mds_roles().try_for_each(look)
}

fn check_all((mdt, index): (&Mdt, MdtIndex), clients: &[(u16, Arc<FileSystem>)]) -> Verdict {
    for (number, file_system) in clients {
        let Some((client, locks)) = file_system.served_locks(index) else { continue };
        let Some((lock, known)) = unknown(&locks, |lock| mdt.cached_by_lock(client, lock.inode, lock.handle)) else {
            continue;
        };
        if is_excused(mdt, client, lock.inode) {
            continue;
        }
        return Err(format!("{} ({client}) serves under {lock:?}, the MDT knows {known:?}", client_host(*number)));
    }
    Ok(())
}

fn check_above(mdt: &Mdt, caches: &[(u16, Arc<UpperCopies>)]) -> Verdict {
    for (number, cache) in caches {
        for (client, inode, needed) in cache.needed() {
            let known = mdt.cached_by(client, inode);
            if known & needed != needed && !is_excused(mdt, client, inode) {
                return Err(format!(
                    "the cache above {} ({client}) serves {needed} of {inode}, the MDT knows {known}",
                    client_host(*number)
                ));
            }
        }
    }
    Ok(())
}

/// See the module documentation.
fn is_excused(mdt: &Mdt, client: ClientId, inode: InodeNumber) -> bool {
    mdt.spares(client) || !mdt.has_inode(inode)
}

/// The first lock that the MDT does not know in full, and what it knows of it.
fn unknown(locks: &[ServedLock], known: impl Fn(&ServedLock) -> InodeBits) -> Option<(ServedLock, InodeBits)> {
    locks.iter().map(|lock| (*lock, known(lock))).find(|(lock, known)| !(lock.bits & !*known).is_empty())
}

#[cfg(test)]
mod tests {
    use types::{InodeNumber, LockHandle};

    use super::*;

    #[test]
    fn a_lock_that_is_not_known_in_full_is_found() {
        let lock = |bits| ServedLock { inode: InodeNumber(0x100), handle: LockHandle(7), bits: InodeBits(bits) };
        let served = [lock(1), lock(3)];
        assert_eq!(unknown(&served, |_| InodeBits(7)), None);
        assert_eq!(unknown(&served, |_| InodeBits(1)), Some((lock(3), InodeBits(1))));
        assert_eq!(unknown(&served, |_| InodeBits::NONE), Some((lock(1), InodeBits::NONE)));
    }
}
