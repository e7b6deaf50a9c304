//! A count and what is counted, in words for people: `1 problem`, `2 problems`.
//!
//! Downside: it knows only regular English plurals.

use std::fmt::Display;

/// The count before its noun, which is given in the singular and gets its plural where the count is
/// not 1. Of several words the last one is the noun. Also of abbreviations: `2 OSTs`.
pub fn counted<N: Display + PartialEq + From<bool>>(count: N, noun: &str) -> String {
    if count == N::from(true) { format!("1 {noun}") } else { format!("{count} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    let before_y = noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u']));
    match before_y {
        Some(stem) => format!("{stem}ies"),
        None if ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(end)) => format!("{noun}es"),
        None => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_everything_else_plural() {
        assert_eq!([0_u64, 1, 2].map(|count| counted(count, "object")), ["0 objects", "1 object", "2 objects"]);
        assert_eq!([1_usize, 4].map(|count| counted(count, "OST")), ["1 OST", "4 OSTs"]);
        assert_eq!(counted(2_u16, "unreferenced file"), "2 unreferenced files");
    }

    #[test]
    fn plurals_are_spelled_as_english_spells_them() {
        assert_eq!(
            ["directory", "process", "batch", "key", "index"].map(plural),
            ["directories", "processes", "batches", "keys", "indexes"]
        );
    }
}
