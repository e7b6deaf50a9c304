//! Cluster maps only get newer, and no process has one that the MGS has not shown.

use std::{collections::BTreeMap, sync::Arc};

use rpc::message::mgs::ClusterMap;

use super::{Invariant, KnownMap, Snapshot};
use crate::{ProcessId, workload::Verdict};

/// A client that goes back to an older map would look for a target where it was before; two maps of
/// one version would never be brought together, since a version is all that is asked for.
///
/// Holds at every moment, after every fault: the MGS shows a map once it is durable, so no start of
/// it has an older one, and clients have what it has shown (`mgs::service`).
#[derive(Default)]
pub(super) struct Maps {
    versions: BTreeMap<u64, Arc<ClusterMap>>,
    of_processes: BTreeMap<ProcessId, u64>,
    of_mgs: u64,
}

impl Invariant for Maps {
    fn name(&self) -> &'static str {
        "cluster maps only get newer"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        if let Some(mgs) = &now.mgs {
            self.look(mgs, None)?;
            if mgs.map.version < self.of_mgs {
                return Err(format!("the MGS shows map {} after map {}", mgs.map.version, self.of_mgs));
            }
            self.of_mgs = mgs.map.version;
        }
        for known in &now.maps {
            self.look(known, now.mgs.as_ref())?;
        }
        self.of_processes.retain(|process, _| now.maps.iter().any(|known| known.process == *process));
        Ok(())
    }
}

impl Maps {
    fn look(&mut self, known: &KnownMap, mgs: Option<&KnownMap>) -> Verdict {
        let KnownMap { host, process, map } = known;
        let version = map.version;
        if let Some(mgs) = mgs.filter(|mgs| mgs.map.version < version) {
            return Err(format!("{host} knows map {version}, the MGS shows map {}", mgs.map.version));
        }
        let before = self.of_processes.insert(*process, version).unwrap_or_default();
        if version < before {
            return Err(format!("{host} knows map {version} after map {before}"));
        }
        let first = self.versions.entry(version).or_insert_with(|| map.clone());
        if !Arc::ptr_eq(first, map) && first != map {
            return Err(format!("{host} knows {map:?}, another process knew {first:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::sample::sound;

    fn change(known: &mut KnownMap, change: impl FnOnce(&mut ClusterMap)) {
        change(Arc::make_mut(&mut known.map));
    }

    #[test]
    fn a_map_that_the_mgs_has_not_shown_is_found() {
        let mut snapshot = sound();
        change(&mut snapshot.maps[0], |map| map.version += 1);
        let violation = Maps::default().check(&snapshot).unwrap_err();
        assert_eq!(violation, "client0 knows map 4, the MGS shows map 3");
        snapshot.mgs = None;
        assert_eq!(Maps::default().check(&snapshot), Ok(()), "nobody can say");
    }

    #[test]
    fn nobody_goes_back() {
        let (mut maps, mut snapshot) = (Maps::default(), sound());
        assert_eq!(maps.check(&snapshot), Ok(()));
        change(&mut snapshot.maps[0], |map| map.version -= 1);
        assert_eq!(maps.check(&snapshot).unwrap_err(), "client0 knows map 2 after map 3");
        let mut snapshot = sound();
        change(snapshot.mgs.as_mut().unwrap(), |map| map.version -= 1);
        snapshot.mgs.as_mut().unwrap().process = ProcessId(100);
        assert_eq!(maps.check(&snapshot).unwrap_err(), "the MGS shows map 2 after map 3");
    }

    #[test]
    fn a_version_is_one_map() {
        let mut snapshot = sound();
        change(&mut snapshot.maps[0], |map| map.fsname.push('x'));
        assert!(Maps::default().check(&snapshot).unwrap_err().starts_with("client0 knows ClusterMap"));
    }
}
