//! What all explanations are made of: numbers, ranges and requests in words.

use layout::{Extent, StripeCount, StripeSpec};
use serde_json::Value;
use types::counted;

use crate::size;

/// An explanation: for people and for programs.
pub struct Explanation {
    pub text: String,
    pub json: Value,
}

/// A number of bytes, shortest.
pub fn bytes(number: u64) -> String {
    if number < 1024 {
        return format!("{number} B");
    }
    let text = size::human(number);
    let (value, unit) = text.split_at(text.len() - 1);
    format!("{} {unit}iB", value.strip_suffix(".0").unwrap_or(value))
}

/// Where a component ends.
pub fn position(offset: u64) -> String {
    if offset == layout::END_OF_FILE { "the end".to_owned() } else { bytes(offset) }
}

/// From where to where a component reaches; with all digits where the short ones do not tell its
/// ends apart.
pub fn range(extent: Extent) -> String {
    let (start, end) = (position(extent.start), position(extent.end));
    if start != end {
        return format!("{start} .. {end}");
    }
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")];
    let divides = |shift: &u32| extent.start.is_multiple_of(1 << shift) && extent.end.is_multiple_of(1 << shift);
    let (shift, unit) = units.into_iter().find(|(shift, _)| divides(shift)).unwrap_or((0, "B"));
    format!("{} .. {} {unit}", extent.start >> shift, extent.end >> shift)
}

/// Requested stripes, in words.
pub fn stripes_asked(stripes: &StripeSpec) -> String {
    let listed: Vec<String> = stripes.osts.iter().map(|ost| ost.0.to_string()).collect();
    let (count, place) = match stripes.stripe_count {
        _ if !listed.is_empty() => {
            let target = if listed.len() == 1 { "OST" } else { "OSTs" };
            (counted(listed.len(), "stripe"), format!(" on {target} {}", listed.join(", ")))
        }
        StripeCount::Default => ("the default number of stripes".to_owned(), String::new()),
        StripeCount::Exactly(count) => (counted(count, "stripe"), String::new()),
        StripeCount::All => ("a stripe".to_owned(), " on every OST".to_owned()),
        StripeCount::Overstriped(count) => (counted(count, "stripe"), ", several on one OST if necessary".to_owned()),
        StripeCount::PerOst(count) => (counted(count, "stripe"), " on every OST".to_owned()),
    };
    let size = stripes.stripe_bytes.map(|size| format!(" of {}", bytes(size))).unwrap_or_default();
    let pool = stripes.restricted_to().map(|pool| format!(" in pool '{pool}'")).unwrap_or_default();
    format!("{count}{size}{place}{pool}")
}

/// A speed.
pub fn megabytes(bytes_per_second: u64) -> String {
    format!("{} MB/s", bytes_per_second / 1_000_000)
}

/// A time, with the digits that matter.
pub fn duration(microseconds: u64) -> String {
    match microseconds {
        0..=9_999 => format!("{:.1} ms", microseconds as f64 / 1e3),
        10_000..=999_999 => format!("{} ms", microseconds / 1000),
        _ => format!("{:.1} s", microseconds as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([bytes(0), bytes(1 << 20), bytes(1536 << 20)], ["0 B", "1 MiB", "1.5 GiB"]);
        assert_eq!([duration(150), duration(20_500), duration(2_500_000)], ["0.1 ms", "20 ms", "2.5 s"]);
        assert_eq!(position(u64::MAX), "the end");
        assert_eq!(range(Extent { start: 64 << 20, end: 1 << 30 }), "64 MiB .. 1 GiB");
        assert_eq!(range(Extent { start: 1 << 30, end: (1 << 30) + (1 << 20) }), "1024 .. 1025 MiB");
        assert_eq!(range(Extent { start: (64 << 40) - (4 << 20), end: 64 << 40 }), "67108860 .. 67108864 MiB");
    }
}
