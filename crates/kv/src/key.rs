//! A key as the tables hold it: short keys (nearly all are short) are stored in the tree's nodes
//! themselves, so that a look-up follows no pointer per comparison, and the first 16 bytes are
//! compared as one number.

use std::cmp::Ordering;

/// Longest key stored in place: the size that makes a `Key` 32 bytes.
const INLINE_BYTES: usize = 30;

/// An owned key, ordered by its bytes.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

/// Bytes that are compared first.
const PREFIX_BYTES: usize = 16;

const _: () = assert!(PREFIX_BYTES <= INLINE_BYTES, "every key has a prefix");
const _: () = assert!(size_of::<Key>() == 32, "keys fill their place in a node");

impl Key {
    pub(crate) fn new(key: &[u8]) -> Key {
        if key.len() <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            bytes[..key.len()].copy_from_slice(key);
            Key::Inline { length: key.len() as u8, bytes }
        } else {
            Key::Heap(key.into())
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Key::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Key::Heap(bytes) => bytes,
        }
    }

    /// The first bytes as a number, with zeros after short keys: where two keys' numbers differ,
    /// they are ordered as the keys, for the shorter key is then either different in its own bytes
    /// or a beginning of the longer one.
    fn prefix(&self) -> u128 {
        let bytes = match self {
            Key::Inline { bytes, .. } => &bytes[..PREFIX_BYTES],
            Key::Heap(bytes) => &bytes[..PREFIX_BYTES],
        };
        u128::from_be_bytes(bytes.try_into().expect("keys on the heap are longer"))
    }

    /// Memory outside of the key itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Key::Inline { .. } => 0,
            Key::Heap(bytes) => bytes.len(),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.prefix().cmp(&other.prefix()).then_with(|| self.as_slice().cmp(other.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_bytes() {
        let mut keys = vec![vec![]];
        for length in [1, 2, 15, 16, 17, 30, 31, 40] {
            for (first, last) in [(0, 0), (0, 1), (1, 0), (1, 1), (255, 0), (255, 255)] {
                let mut key = vec![first; length];
                key[length - 1] = last;
                keys.push(key);
            }
        }
        for one in &keys {
            for other in &keys {
                assert_eq!(Key::new(one).cmp(&Key::new(other)), one.cmp(other), "{one:?} {other:?}");
                assert_eq!(Key::new(one) == Key::new(other), one == other);
            }
        }
    }

    #[test]
    fn keys_keep_their_bytes_and_their_order_across_the_inline_limit() {
        let keys: Vec<Vec<u8>> = (0..64).map(|length| vec![7; length]).collect();
        for pair in keys.windows(2) {
            assert_eq!(Key::new(&pair[0]).as_slice(), &pair[0][..]);
            assert!(Key::new(&pair[0]) < Key::new(&pair[1]));
        }
        assert!(Key::new(&[8]) > Key::new(&[7; 40]));
        assert_eq!(Key::new(&[7; 30]).heap_bytes(), 0);
        assert_eq!(Key::new(&[7; 31]).heap_bytes(), 31);
    }
}
