//! Comparisons as `lfs getstripe` and `lfs find` accept them: `N` equal to, `+N` more than, `-N`
//! less than; `!` before any of them negates it.

use std::cmp::Ordering;

/// One comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare {
    wanted: Ordering,
    /// What to compare with.
    pub value: u64,
    negated: bool,
}

impl Compare {
    /// Reads one; `value` reads what follows the sign. `None`: it is none.
    pub fn parse(text: &str, negated: bool, value: impl FnOnce(&str) -> Option<u64>) -> Option<Self> {
        let (text, negated) = text.strip_prefix(['!', '^']).map_or((text, negated), |rest| (rest, !negated));
        // -1 is a value of its own: the end of the file.
        let (wanted, text) = if text == "-1" { (Ordering::Equal, text) } else { sign(text) };
        Some(Self { wanted, value: value(text)?, negated })
    }

    /// Reads one of a value that is never -1, so that `-1` means less than 1.
    pub fn parse_count(text: &str, value: impl FnOnce(&str) -> Option<u64>) -> Option<Self> {
        let (wanted, text) = sign(text);
        Some(Self { wanted, value: value(text)?, negated: false })
    }

    /// The opposite, if `negated`.
    pub fn negated(self, negated: bool) -> Self {
        Self { negated: self.negated != negated, ..self }
    }

    /// Whether `found` is as wanted.
    pub fn matches(&self, found: u64) -> bool {
        (found.cmp(&self.value) == self.wanted) != self.negated
    }
}

/// What a sign asks for, and the text after it.
pub fn sign(text: &str) -> (Ordering, &str) {
    match text.as_bytes() {
        [b'+', ..] => (Ordering::Greater, &text[1..]),
        [b'-', ..] => (Ordering::Less, &text[1..]),
        _ => (Ordering::Equal, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(text: &str, negated: bool) -> Vec<u64> {
        let compare = Compare::parse(text, negated, |digits| digits.parse().ok()).unwrap();
        (0..5).filter(|value| compare.matches(*value)).collect()
    }

    #[test]
    fn signs_and_negation_are_understood() {
        assert_eq!(matches("2", false), [2]);
        assert_eq!(matches("+2", false), [3, 4]);
        assert_eq!(matches("-2", false), [0, 1]);
        assert_eq!(matches("2", true), [0, 1, 3, 4]);
        assert_eq!(matches("!+2", false), [0, 1, 2]);
        assert_eq!(matches("!2", true), [2]);
        assert_eq!(Compare::parse_count("-1", |digits| digits.parse().ok()).map(|one| one.matches(0)), Some(true));
        assert_eq!(Compare::parse("x", false, |digits| digits.parse().ok()), None);
    }
}
