//! Numbers of inodes are given once, by the MDT that they name, and its counts are right.

use super::{Invariant, Snapshot};
use crate::{server::MDT, workload::Verdict};

/// Numbers given twice would make one of two files on two MDTs, or of a new file and the objects of
/// one that is gone.
///
/// Holds at every moment, after every fault: an inode is made in the batch that advances the
/// counter, and after a power loss of the MDT the counter skips all numbers that it may have
/// forgotten (`mds::mdt::life_cycle`). So no OST has an object of a number that is still to be
/// given. The number of inodes in use is changed in the batches that make and remove them.
pub(super) struct Numbers;

impl Invariant for Numbers {
    fn name(&self) -> &'static str {
        "numbers of inodes are given once"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = &now.mdt else { return Ok(()) };
        let next = mdt.counters.next_inode;
        let in_use = mdt.inodes.keys().map(|number| (*number, "an inode of the MDT".to_owned()));
        let in_objects = now.osts.iter().flat_map(|(ost, state)| {
            state.objects.keys().map(move |object| (object.inode, format!("in the name of object {object} on {ost}")))
        });
        for (number, place) in in_use.chain(in_objects) {
            if number.mdt() != MDT || number.counter() >= next {
                return Err(format!("number {number} is {place}, but {MDT} gives {next:#x} next"));
            }
        }
        let counted = mdt.inodes.len() as u64;
        if counted != mdt.counters.inodes {
            return Err(format!("{MDT} counts {} inodes in use and has {counted}", mdt.counters.inodes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use types::{InodeNumber, MdtIndex};

    use super::*;
    use crate::invariants::sample::{FILE, mdt, move_object, object, sound};

    #[test]
    fn a_number_in_use_is_not_given_again() {
        let mut snapshot = sound();
        mdt(&mut snapshot).counters.next_inode = FILE.counter();
        let violation = Numbers.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("number {FILE} is an inode of the MDT")), "{violation}");
    }

    #[test]
    fn a_number_in_the_name_of_an_object_is_not_given_again() {
        let (mut snapshot, number) = (sound(), InodeNumber(1 << 20));
        move_object(&mut snapshot, object(FILE, 0), object(number, 0));
        let violation = Numbers.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("{} on OST0000", object(number, 0))), "{violation}");
    }

    #[test]
    fn an_mdt_has_inodes_of_its_own() {
        let mut snapshot = sound();
        let mdt = mdt(&mut snapshot);
        let inode = mdt.inodes.remove(&FILE).unwrap();
        mdt.inodes.insert(InodeNumber::new(MdtIndex(1), FILE.counter()), inode);
        assert!(Numbers.check(&snapshot).is_err());
    }

    #[test]
    fn the_count_of_inodes_is_right() {
        let mut snapshot = sound();
        mdt(&mut snapshot).counters.inodes += 1;
        let violation = Numbers.check(&snapshot).unwrap_err();
        assert!(violation.contains("counts 3 inodes in use and has 2"), "{violation}");
    }
}
