//! What a change of a value changes in it. The journal has that instead of the new value where it
//! has the value before: most changes of a record are of few of its bytes.
//!
//! A patch replaces one range of bytes, from the first that differs to the last. It carries the
//! checksum of the value that results, so that it is never applied to any other than the one it was
//! made for. Downside: two changes that are far apart in a value are as long as what is between
//! them.

use bytes::{Bytes, BytesMut};

use super::format::checksum;

/// A patch is made if it saves so many bytes: one takes time to be found, and to be applied.
const SAVED_BYTES_MIN: usize = 32;
/// Bytes that are compared at a time.
const COMPARED_BYTES: usize = 16;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where the bytes are that are replaced.
    pub offset: u32,
    /// How many they are.
    pub removed: u32,
    /// CRC-32C of the whole value afterwards.
    pub checksum: u32,
    /// What replaces them.
    pub inserted: Bytes,
}

impl Patch {
    /// What makes `new` of `old`, if that is shorter than `new`.
    pub fn between(old: &[u8], new: &Bytes) -> Option<Self> {
        if new.len() < SAVED_BYTES_MIN {
            return None;
        }
        let start = common_start(old, new);
        let end = common_end(&old[start..], &new[start..]);
        let inserted = new.slice(start..new.len() - end);
        if new.len() - inserted.len() < SAVED_BYTES_MIN {
            return None;
        }
        let (offset, removed) = (u32::try_from(start).ok()?, u32::try_from(old.len() - start - end).ok()?);
        Some(Self { offset, removed, checksum: checksum(&[new]), inserted })
    }

    /// The value that it makes of `old`; `None` if it was not made for that.
    pub fn apply(&self, old: &[u8]) -> Option<Bytes> {
        let (start, rest) = old.split_at_checked(self.offset as usize)?;
        let (_, end) = rest.split_at_checked(self.removed as usize)?;
        let mut new = BytesMut::with_capacity(start.len() + self.inserted.len() + end.len());
        [start, &self.inserted, end].into_iter().for_each(|part| new.extend_from_slice(part));
        (checksum(&[&new]) == self.checksum).then(|| new.freeze())
    }
}

/// How many bytes are the same at the beginning of both.
fn common_start(one: &[u8], other: &[u8]) -> usize {
    let chunks = one.chunks_exact(COMPARED_BYTES).zip(other.chunks_exact(COMPARED_BYTES));
    let same = COMPARED_BYTES * chunks.take_while(|(one, other)| one == other).count();
    same + one[same..].iter().zip(&other[same..]).take_while(|(one, other)| one == other).count()
}

/// How many bytes are the same at the end of both.
fn common_end(one: &[u8], other: &[u8]) -> usize {
    let chunks = one.rchunks_exact(COMPARED_BYTES).zip(other.rchunks_exact(COMPARED_BYTES));
    let same = COMPARED_BYTES * chunks.take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[..one.len() - same], &other[..other.len() - same]);
    same + one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: usize, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let mut value = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
        change(&mut value);
        value.into()
    }

    #[test]
    fn what_is_patched_is_the_new_value() {
        let old = value(300, |_| {});
        for (new, offset, removed, inserted) in [
            (value(300, |new| new[100] = 255), 100, 1, 1),
            (value(300, |new| (new[0], new[299]) = (255, 254)), 0, 0, 0),
            (value(300, |new| drop(new.splice(20..30, [255; 3]))), 20, 10, 3),
            (value(300, |new| new.insert(40, 255)), 40, 0, 1),
            (value(300, |new| new.extend([255; 9])), 300, 0, 9),
            (value(300, |new| new.truncate(290)), 290, 10, 0),
            (value(300, |_| {}), 300, 0, 0),
        ] {
            let Some(patch) = Patch::between(&old, &new) else {
                assert_eq!((offset, removed, inserted), (0, 0, 0), "all of it changes");
                continue;
            };
            assert_eq!((patch.offset, patch.removed, patch.inserted.len()), (offset, removed, inserted));
            assert_eq!(patch.apply(&old), Some(new));
        }
        // Where the same bytes come again and again, start and end do not overlap.
        let (old, new) = ([3; 100], Bytes::from_static(&[3; 90]));
        let patch = Patch::between(&old, &new).unwrap();
        assert_eq!((patch.offset, patch.removed, patch.apply(&old)), (90, 10, Some(new)));
    }

    #[test]
    fn a_patch_of_another_value_is_refused() {
        let (old, new) = (value(300, |_| {}), value(300, |new| new[100] = 255));
        let patch = Patch::between(&old, &new).unwrap();
        for other in [&old[..200], &old[..100], &old[1..], &[], &value(300, |new| new[7] = 255)] {
            assert_eq!(patch.apply(other), None);
        }
    }
}
