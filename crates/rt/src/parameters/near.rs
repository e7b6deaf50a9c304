//! Existing names similar to an unknown one, for people who mistyped it.
//!
//! Downside: no similar names are found for a name with too few or too many parts.

use super::glob::{matches, parts};

/// Most names that are offered.
const NEAR_MAX: usize = 3;
/// Share of a part's letters that must agree: `stripcount` is near to `stripecount`, `nonsense` to
/// nothing.
const SIMILARITY_MIN: f64 = 0.6;

/// The names near to a pattern, nearest first: the pattern with the parts corrected in which it
/// differs from one of `names`.
pub fn near<'n>(pattern: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let mut found: Vec<(f64, String)> = Vec::new();
    for (similarity, corrected) in names.into_iter().filter_map(|name| corrected(pattern, name)) {
        if found.iter().all(|(_, known)| *known != corrected) {
            found.push((similarity, corrected));
        }
    }
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    found.into_iter().take(NEAR_MAX).map(|(_, corrected)| corrected).collect()
}

/// The pattern such that it matches `name`, and how near it was; `None` if some part is too far
/// off.
fn corrected(pattern: &str, name: &str) -> Option<(f64, String)> {
    let (wanted, present): (Vec<&str>, Vec<&str>) = (parts(pattern).collect(), parts(name).collect());
    if wanted.len() != present.len() {
        return None;
    }
    let (mut total, mut corrected) = (0.0, Vec::new());
    for (wanted, present) in wanted.into_iter().zip(present) {
        let (similarity, part) = match matches(wanted, present) {
            true => (1.0, wanted),
            false => (strsim::normalized_damerau_levenshtein(wanted, present), present),
        };
        if similarity < SIMILARITY_MIN {
            return None;
        }
        total += similarity;
        corrected.push(part);
    }
    Some((total, corrected.join(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = [
        "lod.stria-MDT0000-mdtlov.stripecount",
        "lod.stria-MDT0000-mdtlov.stripesize",
        "obdfilter.stria-OST0000.stats",
        "obdfilter.stria-OST0001.stats",
        "timeout",
    ];

    #[test]
    fn what_was_mistyped_is_corrected_and_patterns_stay() {
        assert_eq!(near("lod.*.stripcount", NAMES), ["lod.*.stripecount"]);
        assert_eq!(near("lod.*.stripe_size", NAMES), ["lod.*.stripesize"]);
        assert_eq!(near("obdfiler/*/stats", NAMES), ["obdfilter.*.stats"]);
        assert_eq!(near("obdfilter.stria-OST001.stats", NAMES).len(), 2, "either target may be meant");
        assert_eq!(near("timeot", NAMES), ["timeout"]);
    }

    #[test]
    fn what_resembles_nothing_gets_no_offer() {
        for far in ["lod.*.nonsense", "timeout.now", "", "*.*", "no.such.parameter"] {
            assert_eq!(near(far, NAMES), [""; 0], "{far}");
        }
    }
}
