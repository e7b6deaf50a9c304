//! What an operation consists of where names and files are on several MDTs. Each half happens at
//! one moment, both between the beginning and the end of the operation: a look asks the MDT of the
//! name, then that of the file; a list asks the MDT of each shard of a striped directory.

use types::{DirectoryMap, FsError};

use super::{
    NAMES,
    history::Event,
    name_of,
    state::{Operation, Outcome},
};

/// The parts of an operation, in the order in which they happened. `maps`: of the directories.
pub fn halves(event: Event, maps: &[Option<DirectoryMap>]) -> Vec<Event> {
    let part = |operation, outcome| Event { operation, outcome, ..event.clone() };
    match (&event.operation, &event.outcome) {
        (Operation::Look(place), Outcome::Shown(shown)) => vec![
            part(Operation::Leads(*place), Outcome::Leads(shown.inode)),
            part(Operation::Stat(shown.inode), event.outcome.clone()),
        ],
        (Operation::Link(inode, place), Outcome::Shown(_)) => vec![
            part(Operation::LinkName(*inode, *place), Outcome::Done),
            part(Operation::Stat(*inode), event.outcome.clone()),
        ],
        // The file may have gone before the link, or after it.
        (Operation::Link(..), Outcome::Failed(FsError::Stale)) => vec![part(event.operation, Outcome::Unknown)],
        (Operation::List(directory), Outcome::Names(names)) => {
            let shard = |name: &u8| {
                let map = maps[usize::from(*directory)].as_ref()?;
                Some(map.hash.shard(&name_of(*name), map.shards.len()))
            };
            let mut all: Vec<u8> = (0..NAMES).collect();
            all.sort_by_key(shard);
            let of_name = |name| {
                let place = (*directory, name);
                match names.iter().find(|(listed, _)| *listed == name) {
                    Some((_, inode)) => part(Operation::Leads(place), Outcome::Leads(*inode)),
                    None => part(Operation::Look(place), Outcome::Failed(FsError::NotFound)),
                }
            };
            all.into_iter().map(of_name).collect()
        }
        _ => vec![event],
    }
}

#[cfg(test)]
mod tests {
    use types::{InodeNumber, MdtIndex, NameHash};

    use super::*;
    use crate::workload::contended::state::Shown;

    fn event(operation: Operation, outcome: Outcome) -> Event {
        Event { operation, outcome, begun: 1, ended: 4 }
    }

    #[test]
    fn a_look_tells_the_file_and_then_its_attributes() {
        let shown = Outcome::Shown(Shown { inode: InodeNumber(7), mode: 0o600, links: 1 });
        let parts = halves(event(Operation::Look((0, 1)), shown.clone()), &[None, None]);
        assert_eq!(parts[0].operation, Operation::Leads((0, 1)));
        assert_eq!((&parts[1].operation, &parts[1].outcome), (&Operation::Stat(InodeNumber(7)), &shown));
        assert!(parts.iter().all(|part| (part.begun, part.ended) == (1, 4)));
        let missing = Outcome::Failed(FsError::NotFound);
        assert_eq!(halves(event(Operation::Look((0, 1)), missing), &[None, None]).len(), 1);
    }

    #[test]
    fn a_list_tells_the_names_of_one_shard_after_those_of_another() {
        let shards = [0, 1].map(|mdt| InodeNumber::new(MdtIndex(mdt), 0x300).as_shard());
        let map = DirectoryMap { master: InodeNumber(299), hash: NameHash::AllCharacters, shards: shards.to_vec() };
        let names = Outcome::Names(vec![(0, InodeNumber(7)), (2, InodeNumber(8))]);
        let parts = halves(event(Operation::List(1), names), &[None, Some(map.clone())]);
        let told: Vec<u8> = parts
            .iter()
            .map(|part| match part.operation {
                Operation::Leads((1, name)) | Operation::Look((1, name)) => name,
                other => panic!("{other:?}"),
            })
            .collect();
        let shard = |name: &u8| map.hash.shard(&name_of(*name), 2);
        assert_eq!(told.len(), usize::from(NAMES));
        assert!(told.is_sorted_by_key(shard));
    }
}
