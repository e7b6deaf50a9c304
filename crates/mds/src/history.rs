//! The sizes that files of a directory grew to, by the pattern of their names: a prediction for the
//! next one of them. Volatile: after a restart nothing is known, and files grow step by step as the
//! first ones did.
//!
//! A pattern is a name without its numbers (`step-0017.h5` and `step-0018.h5` have the same one).
//! The expected size is the smaller one of the last two files, so that one large file among small
//! ones does not mislead.
//!
//! Invariants: at most [`PATTERNS_MAX`] patterns of names are known, and the least recently used
//! one is forgotten first; the two sizes of a pattern are those of two files. Small files do not
//! create a pattern: there are many of them, and they need no decision.
//!
//! Downside: files that are renamed after they were written count under the names with which they
//! are closed.

use std::collections::BTreeMap;

use types::InodeNumber;

/// Patterns known: with names of 255 bytes, 2 MiB of memory.
const PATTERNS_MAX: usize = 4096;

type Key = (InodeNumber, Vec<u8>);

/// Sizes of the last two files of a pattern.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    last_file: InodeNumber,
    last_bytes: u64,
    before_bytes: Option<u64>,
    /// In the order of uses.
    used: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct History {
    patterns: BTreeMap<Key, Sizes>,
    /// Patterns by when they were used.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
}

impl History {
    /// A file was finished under this name. `begins`: it is worth a pattern of its own.
    pub fn note(&mut self, directory: InodeNumber, name: &[u8], file: InodeNumber, bytes: u64, begins: bool) {
        let key = (directory, pattern(name));
        let known = self.patterns.get(&key).copied();
        if known.is_none() && !begins {
            return;
        }
        let before_bytes = match known {
            Some(sizes) if sizes.last_file == file => sizes.before_bytes,
            Some(sizes) => Some(sizes.last_bytes),
            None => None,
        };
        self.use_now(key, Sizes { last_file: file, last_bytes: bytes, before_bytes, used: 0 });
    }

    /// What a file of this name is expected to grow to; 0 if nothing is known.
    pub fn expected(&mut self, directory: InodeNumber, name: &[u8]) -> u64 {
        let key = (directory, pattern(name));
        let Some(sizes) = self.patterns.get(&key).copied() else { return 0 };
        self.use_now(key, sizes);
        sizes.before_bytes.map_or(0, |before| before.min(sizes.last_bytes))
    }

    fn use_now(&mut self, key: Key, sizes: Sizes) {
        self.uses += 1;
        self.by_use.insert(self.uses, key.clone());
        if let Some(former) = self.patterns.insert(key, Sizes { used: self.uses, ..sizes }) {
            self.by_use.remove(&former.used);
        }
        if self.patterns.len() > PATTERNS_MAX
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.patterns.remove(&oldest);
        }
        assert_eq!(self.patterns.len(), self.by_use.len(), "each pattern has its place in the order of uses");
    }
}

/// A name with every number in it as 0.
fn pattern(name: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(name.len());
    for byte in name {
        match (byte.is_ascii_digit(), pattern.last()) {
            (true, Some(b'0')) => {}
            (true, _) => pattern.push(b'0'),
            (false, _) => pattern.push(*byte),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber(1);
    const MIB: u64 = 1 << 20;

    fn note(history: &mut History, name: &str, file: u64, bytes: u64) {
        history.note(DIRECTORY, name.as_bytes(), InodeNumber(file), bytes, bytes > MIB);
    }

    fn expected(history: &mut History, name: &str) -> u64 {
        history.expected(DIRECTORY, name.as_bytes())
    }

    #[test]
    fn numbers_do_not_tell_names_apart() {
        assert_eq!(pattern(b"step-0017.h5"), b"step-0.h0");
        assert_eq!(pattern(b"10"), pattern(b"9"));
        assert_ne!(pattern(b"a1.h5"), pattern(b"b1.h5"));
        assert_eq!(pattern(b""), b"");
    }

    #[test]
    fn two_files_of_a_pattern_tell_what_the_third_will_need() {
        let mut history = History::default();
        assert_eq!(expected(&mut history, "step-1"), 0);
        note(&mut history, "step-1", 11, 100 * MIB);
        assert_eq!(expected(&mut history, "step-2"), 0, "one may be an exception");
        note(&mut history, "step-1", 11, 110 * MIB);
        assert_eq!(expected(&mut history, "step-2"), 0, "the same file, written to again");
        note(&mut history, "step-2", 12, 90 * MIB);
        assert_eq!((expected(&mut history, "step-3"), expected(&mut history, "other")), (90 * MIB, 0));
        assert_eq!(history.expected(InodeNumber(2), b"step-3"), 0, "in this directory");
        note(&mut history, "step-3", 13, 10);
        assert_eq!(expected(&mut history, "step-4"), 10, "they have become small");
    }

    #[test]
    fn patterns_are_bounded_and_those_in_use_are_kept() {
        let mut history = History::default();
        let letters = |number: usize| -> String {
            number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
        };
        note(&mut history, "used", 1, 5 * MIB);
        note(&mut history, "used", 2, 5 * MIB);
        for number in 0..2 * PATTERNS_MAX {
            note(&mut history, &letters(number), 3, 5 * MIB);
            note(&mut history, "small files begin none", 4, 5);
            if number % 1000 == 0 {
                assert_eq!(expected(&mut history, "used"), 5 * MIB);
            }
        }
        assert_eq!((history.patterns.len(), history.by_use.len()), (PATTERNS_MAX, PATTERNS_MAX));
        assert!(history.patterns.values().all(|sizes| history.by_use.contains_key(&sizes.used)));
    }
}
