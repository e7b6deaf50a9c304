//! A key as the tables hold it: short ones, which nearly all are, lie in the tree's nodes themselves, so that a look-up
//! follows no pointer per comparison.

use std::{borrow::Borrow, cmp::Ordering};

/// Longest key stored in place: the size that makes a `Key` 32 bytes.
const INLINE_BYTES: usize = 30;

/// An owned key, ordered by its bytes.
#[derive(Clone)]
pub(crate) enum Key {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

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

    /// Memory outside of the key itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Key::Inline { .. } => 0,
            Key::Heap(bytes) => bytes.len(),
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
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
        self.as_slice().cmp(other.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
