//! Clients that the MDT evicts lose nothing to others before all OSTs refuse them.

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, InodeNumber, OstIndex};

use super::{Invariant, MdtState, Snapshot};
use crate::{ProcessId, workload::Verdict};

/// A late write of an evicted client must not reach what another client has locked since.
///
/// Holds at every moment, after every fault:
/// - the batch that ends the session of a client that may still write tells all OSTs to refuse it,
///   in the deferred operation log. From then on until each of them has done so durably, it counts
///   as fenced (`mds::volatile::Fences`), also after a restart of the MDT, and keeps what it held;
/// - an entry leaves the log after the OST has acknowledged it. (That is checked while the MDT's
///   process lives: its death may take an entry that was never written.);
/// - a client that was evicted goes on with another id, and OSTs refuse the old one permanently. So
///   no client with a session at the MDT is refused by an OST.
///
/// All OSTs of the lab are in use: one that is not would not be waited for.
#[derive(Default)]
pub(super) struct Refusals {
    process: Option<ProcessId>,
    /// Entries of the log that earlier looks saw, and whose OST has not been seen to refuse the
    /// client.
    told: BTreeSet<(ClientId, OstIndex)>,
    /// Exclusive data locks of fenced clients.
    kept: BTreeMap<ClientId, BTreeSet<InodeNumber>>,
}

impl Invariant for Refusals {
    fn name(&self) -> &'static str {
        "evicted clients are refused before others get what they held"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = &now.mdt else { return Ok(()) };
        if self.process != Some(mdt.process) {
            *self = Refusals { process: Some(mdt.process), ..Refusals::default() };
        }
        for (client, ost) in &mdt.to_refuse {
            if !mdt.fences.get(client).is_some_and(|osts| osts.contains(ost)) {
                return Err(format!("{ost} is to refuse client {client}, whose locks are not kept until then"));
            }
            if mdt.sessions.contains(client) {
                return Err(format!("{ost} is to refuse client {client}, which has a session at the MDT"));
            }
        }
        self.check_told(now, mdt)?;
        self.check_kept(mdt)?;
        for (ost, state) in &now.osts {
            if let Some(client) = state.refused.intersection(&mdt.sessions).next() {
                return Err(format!("{ost} refuses client {client}, which has a session at the MDT"));
            }
        }
        Ok(())
    }
}

impl Refusals {
    fn check_told(&mut self, now: &Snapshot, mdt: &MdtState) -> Verdict {
        self.told.extend(&mdt.to_refuse);
        let delivered: Vec<_> = self.told.difference(&mdt.to_refuse).copied().collect();
        for (client, ost) in delivered {
            let Some(state) = now.osts.get(&ost) else { continue };
            if !state.refused.contains(&client) {
                return Err(format!("{ost} was told to refuse client {client}, and does not"));
            }
            self.told.remove(&(client, ost));
        }
        Ok(())
    }

    fn check_kept(&mut self, mdt: &MdtState) -> Verdict {
        self.kept.retain(|client, _| mdt.fences.contains_key(client));
        for client in mdt.fences.keys() {
            let held = mdt.exclusive.iter().filter(|(_, holder)| *holder == client).map(|(inode, _)| *inode);
            let kept = self.kept.entry(*client).or_insert_with(|| held.collect());
            // The inode may be gone: no lock of it matters any more.
            let lost = kept.iter().find(|inode| {
                mdt.inodes.contains_key(inode) && mdt.exclusive.get(inode).is_none_or(|holder| holder != client)
            });
            if let Some(inode) = lost {
                return Err(format!(
                    "client {client}, which OSTs {:?} may not refuse yet, no longer has the exclusive data lock of \
                     inode {inode}",
                    mdt.fences[client]
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::sample::{CLIENT, FILE, FIRST, mdt, ost, sound};

    /// A client that holds a lock and is evicted.
    fn evicted() -> Snapshot {
        let mut snapshot = sound();
        let mdt = mdt(&mut snapshot);
        mdt.sessions.remove(&CLIENT);
        mdt.to_refuse.insert((CLIENT, FIRST));
        mdt.fences.insert(CLIENT, [FIRST].into());
        mdt.exclusive.insert(FILE, CLIENT);
        snapshot
    }

    #[test]
    fn an_eviction_in_its_steps_is_sound() {
        let (mut refusals, mut snapshot) = (Refusals::default(), evicted());
        assert_eq!(refusals.check(&snapshot), Ok(()));
        ost(&mut snapshot).refused.insert(CLIENT);
        assert_eq!(refusals.check(&snapshot), Ok(()));
        mdt(&mut snapshot).to_refuse.clear();
        assert_eq!(refusals.check(&snapshot), Ok(()));
        mdt(&mut snapshot).fences.clear();
        mdt(&mut snapshot).exclusive.clear();
        assert_eq!(refusals.check(&snapshot), Ok(()));
    }

    #[test]
    fn an_ost_that_was_told_refuses_the_client() {
        let (mut refusals, mut snapshot) = (Refusals::default(), evicted());
        assert_eq!(refusals.check(&snapshot), Ok(()));
        mdt(&mut snapshot).to_refuse.clear();
        let state = snapshot.osts.remove(&FIRST).unwrap();
        assert_eq!(refusals.check(&snapshot), Ok(()), "nobody can say");
        snapshot.osts.insert(FIRST, state);
        let violation = refusals.check(&snapshot).unwrap_err();
        assert_eq!(violation, format!("OST0000 was told to refuse client {CLIENT}, and does not"));
        mdt(&mut snapshot).process = ProcessId(100);
        assert_eq!(refusals.check(&snapshot), Ok(()), "the death of the MDT may take the entry");
    }

    #[test]
    fn locks_are_kept_until_all_osts_refuse_the_client() {
        let mut snapshot = evicted();
        mdt(&mut snapshot).fences.clear();
        let violation = Refusals::default().check(&snapshot).unwrap_err();
        assert!(violation.contains("whose locks are not kept"), "{violation}");
        for other in [None, Some(ClientId(77))] {
            let (mut refusals, mut snapshot) = (Refusals::default(), evicted());
            assert_eq!(refusals.check(&snapshot), Ok(()));
            mdt(&mut snapshot).exclusive = other.map(|other| (FILE, other)).into_iter().collect();
            let violation = refusals.check(&snapshot).unwrap_err();
            assert!(violation.contains(&format!("the exclusive data lock of inode {FILE}")), "{violation}");
        }
    }

    #[test]
    fn a_client_with_a_session_is_not_refused() {
        let mut snapshot = sound();
        ost(&mut snapshot).refused.insert(CLIENT);
        let violation = Refusals::default().check(&snapshot).unwrap_err();
        assert!(violation.starts_with("OST0000 refuses client"), "{violation}");
        let mut snapshot = evicted();
        mdt(&mut snapshot).sessions.insert(CLIENT);
        assert!(Refusals::default().check(&snapshot).is_err());
    }
}
