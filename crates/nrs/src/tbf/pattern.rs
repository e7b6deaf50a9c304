//! Patterns in rules: `*` stands for any characters, `[2-5,8]` for numbers, as in
//! `192.168.*.[2-5]@tcp` or `dd.*`.

use std::ops::RangeInclusive;

use crate::Refused;

/// Longest pattern.
const PATTERN_BYTES_MAX: usize = 128;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// All digits that follow, as one number.
    Number(Vec<RangeInclusive<u32>>),
    Any,
}

impl Part {
    /// The rest of the text after this, which is not [`Part::Any`].
    fn matched<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        match self {
            Part::Byte(byte) => text.strip_prefix(std::slice::from_ref(byte)),
            Part::Number(ranges) => {
                let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let number: u32 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
                ranges.iter().any(|range| range.contains(&number)).then_some(&text[digits..])
            }
            Part::Any => None,
        }
    }
}

impl Pattern {
    /// The pattern for a text.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let limits = format!("a pattern has 1 to {PATTERN_BYTES_MAX} printable characters: '{text}'");
            return Err(Refused::new(limits));
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.bytes().next() {
            let mut taken = 1;
            match first {
                b'*' => parts.push(Part::Any),
                b'[' => {
                    let expected = || Refused::new(format!("expected numbers such as [2-5,8] in '{text}'"));
                    let end = rest.find(']').ok_or_else(expected)?;
                    let ranges: Option<Vec<_>> = rest[1..end].split(',').map(parse_range).collect();
                    parts.push(Part::Number(ranges.ok_or_else(expected)?));
                    taken = end + 1;
                }
                byte => parts.push(Part::Byte(byte)),
            }
            rest = &rest[taken..];
        }
        Ok(Self(parts))
    }

    /// Length of the shortest text that it matches, if numbers have one digit.
    pub fn bytes_min(&self) -> usize {
        self.0.iter().filter(|part| **part != Part::Any).count()
    }

    /// Whether it matches the whole text. Only the last `*` is ever tried again: what stands before
    /// it has been matched as early as possible.
    pub fn matches(&self, text: &str) -> bool {
        let (mut parts, mut rest) = (&self.0[..], text.as_bytes());
        // What follows the last `*`, and the text that it has not swallowed.
        let mut star: Option<(&[Part], &[u8])> = None;
        loop {
            match parts {
                [Part::Any, after @ ..] => {
                    star = Some((after, rest));
                    parts = after;
                    continue;
                }
                [part, after @ ..] => {
                    if let Some(left) = part.matched(rest) {
                        (parts, rest) = (after, left);
                        continue;
                    }
                }
                [] if rest.is_empty() => return true,
                [] => {}
            }
            // A number does not begin within another one.
            loop {
                let Some((after, [swallowed, left @ ..])) = star else { return false };
                star = Some((after, left));
                if !(swallowed.is_ascii_digit() && matches!(after, [Part::Number(_), ..])) {
                    (parts, rest) = (after, left);
                    break;
                }
            }
        }
    }
}

/// `5` or `2-5`.
pub fn parse_range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok()?..=last.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("dd.0", "dd.0", true),
            ("dd.0", "dd.01", false),
            ("dd.*", "dd.500", true),
            ("*.500", "cp.500", true),
            ("*.500", "cp.5000", false),
            ("*", "", true),
            ("**a", "ba", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("192.168.*.[2-5,8]@tcp", "192.168.1.5@tcp", true),
            ("192.168.*.[2-5,8]@tcp", "192.168.1.8@tcp", true),
            ("192.168.*.[2-5,8]@tcp", "192.168.1.52@tcp", false),
            ("192.168.*.[2-5,8]@tcp", "192.168.1.6@tcp", false),
            ("*[10-20]", "node15", true),
            ("*[10-20]", "node150", false),
            ("*[10-20]", "node215", false),
            ("*[10-20]*", "node215.15", true),
            ("node1[0-9]", "node15", true),
            ("*[1-5].*", "job13.0", false),
            ("*[1-5].*", "job13.5.0", true),
            ("[0-9]", "99999999999999999999", false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn other_patterns_are_refused() {
        for wrong in ["", "a b", "[", "[]", "[a]", "[5-2]", "[1-]", "\u{e4}", &"a".repeat(129)] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
