//! What clients serve from their caches is what the MDT has, but for access times: reading waits
//! for nobody, so others may serve an earlier access time until they have given back the lock.

use types::{Attributes, InodeNumber, Timestamp};

use super::{Invariant, MdtState, Snapshot};
use crate::workload::Verdict;

/// A stat without a request would be a wrong answer.
///
/// Holds at every moment: the MDT makes a change only when all others have stopped serving what it
/// concerns, and the client that changes something stops before it sends the request. Only a power
/// loss of the MDT takes what was served already; nothing is said once that has happened. Inodes
/// that are gone are not looked at: their numbers are never used again.
pub(super) struct ServedIsTrue;

impl Invariant for ServedIsTrue {
    fn name(&self) -> &'static str {
        "what clients serve from their caches is what the MDT has"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = now.mdt.as_ref().filter(|_| !now.mdt_lost_power()) else { return Ok(()) };
        for (host, served) in &now.served {
            for attributes in &served.attributes {
                compare(mdt, host, attributes, |known| Attributes { atime: Timestamp::default(), ..*known })?;
            }
            for attributes in &served.permissions {
                compare(mdt, host, attributes, |known| (known.kind, known.mode, known.uid, known.gid))?;
            }
            for (number, generation) in &served.layouts {
                let layout = mdt.inodes.get(number).and_then(|inode| inode.layout());
                if let Some(layout) = layout.filter(|layout| layout.generation != *generation) {
                    let found = layout.generation;
                    return Err(format!("{host} serves layout {generation:?} of inode {number}, it has {found:?}"));
                }
            }
            for (object, data) in &served.data {
                let found = mdt.small_files.get(object).filter(|_| mdt.inodes.contains_key(&object.inode));
                if let Some(found) = found.filter(|found| found.as_slice() != &data[..]) {
                    let (served, found) = (data.len(), found.len());
                    return Err(format!("{host} serves {served} bytes of {object}, it has {found}, or others"));
                }
            }
            for (parent, name, leads) in &served.names {
                let found = mdt.names.get(&(*parent, name.clone())).copied();
                if found != *leads && mdt.inodes.contains_key(parent) {
                    let name = String::from_utf8_lossy(name);
                    return Err(format!("{host} serves that {name} in {parent} is {leads:?}, it is {found:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Compares a part of the attributes that a client serves.
fn compare<T: PartialEq + std::fmt::Debug>(
    mdt: &MdtState,
    host: &str,
    served: &Attributes,
    part: impl Fn(&Attributes) -> T,
) -> Verdict {
    let number: InodeNumber = served.inode;
    let Some(inode) = mdt.inodes.get(&number) else { return Ok(()) };
    let (served, found) = (part(served), part(&inode.attributes));
    if served == found {
        return Ok(());
    }
    Err(format!("{host} serves {served:?} of inode {number}, it has {found:?}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use client::Served;

    use super::*;
    use crate::{
        invariants::sample::{CLIENT, FILE, NEXT, inode, layout_of, mdt, object, sound},
        server::Role,
    };

    /// It stands for a directory.
    const DIRECTORY: InodeNumber = NEXT;

    /// A cluster in which a client serves what is true.
    fn serving() -> Snapshot {
        let mut snapshot = sound();
        let attributes = inode(&mut snapshot, FILE).attributes;
        let generation = layout_of(&mut snapshot, FILE).generation;
        mdt(&mut snapshot).small_files = [(object(FILE, 0), b"data".to_vec())].into();
        let name = |name: &str, leads| (DIRECTORY, name.as_bytes().to_vec(), leads);
        mdt(&mut snapshot).names = [((DIRECTORY, b"file".to_vec()), FILE)].into();
        let served = Served {
            client: CLIENT,
            attributes: vec![attributes],
            permissions: vec![attributes],
            layouts: vec![(FILE, generation)],
            data: vec![(object(FILE, 0), Bytes::from_static(b"data"))],
            names: vec![name("file", Some(FILE)), name("missing", None)],
        };
        snapshot.served = vec![("client0".to_owned(), served)];
        snapshot
    }

    #[test]
    fn the_truth_passes() {
        assert_eq!(ServedIsTrue.check(&serving()), Ok(()));
    }

    #[test]
    fn stale_attributes_are_found() {
        let mut snapshot = serving();
        inode(&mut snapshot, FILE).attributes.size += 1;
        let violation = ServedIsTrue.check(&snapshot).unwrap_err();
        assert!(violation.starts_with("client0 serves"), "{violation}");
        snapshot.lost_power = [Role::Mds(0)].into();
        assert_eq!(ServedIsTrue.check(&snapshot), Ok(()), "it may have been lost");
    }

    #[test]
    fn stale_permissions_are_found() {
        let mut snapshot = serving();
        snapshot.served[0].1.attributes.clear();
        inode(&mut snapshot, FILE).attributes.size += 1;
        assert_eq!(ServedIsTrue.check(&snapshot), Ok(()), "no permission depends on it");
        inode(&mut snapshot, FILE).attributes.mode = 0;
        assert!(ServedIsTrue.check(&snapshot).is_err());
    }

    #[test]
    fn layouts_that_were_changed_are_found() {
        let mut snapshot = serving();
        let layout = layout_of(&mut snapshot, FILE);
        layout.generation = layout.generation.next();
        let violation = ServedIsTrue.check(&snapshot).unwrap_err();
        assert!(violation.starts_with("client0 serves layout"), "{violation}");
    }

    #[test]
    fn data_that_were_replaced_are_found() {
        let mut snapshot = serving();
        mdt(&mut snapshot).small_files = [(object(FILE, 0), b"dada".to_vec())].into();
        let violation = ServedIsTrue.check(&snapshot).unwrap_err();
        assert!(violation.starts_with("client0 serves 4 bytes"), "{violation}");
    }

    #[test]
    fn names_that_lead_elsewhere_are_found() {
        let mut snapshot = serving();
        snapshot.served[0].1.names.push((DIRECTORY, b"file".to_vec(), None));
        assert!(ServedIsTrue.check(&snapshot).is_err());
    }
}
