//! Sizes as `lfs` reads and prints them. [`types::size`] explains the units; printed sizes use
//! powers of 1024.

use types::size::{self, SizeError};

/// Reads a stripe size or the end of a component: a bare number below 4096 means KiB.
pub fn of_stripes(text: &str) -> Result<u64, SizeError> {
    let bytes = size::parse(text, 1)?;
    let bare = size::split(text.trim()).1.is_empty();
    Ok(if bare && bytes < 4096 { bytes << 10 } else { bytes })
}

/// What to add to a message about a size that was refused: nothing, unless its unit may mean
/// several things.
pub fn hint(text: &str) -> String {
    match size::parse(text, 1) {
        Err(ambiguous @ SizeError::Ambiguous { .. }) => format!(": {ambiguous}"),
        _ => String::new(),
    }
}

/// A size for people, as `lfs df -h` prints it: one decimal and a unit.
pub fn human(bytes: u64) -> String {
    scaled(bytes, 1024)
}

/// As [`human`], with units that are powers of this.
pub fn scaled(bytes: u64, power: u32) -> String {
    let (mut value, power) = (bytes as f64, f64::from(power));
    for unit in ["", "K", "M", "G", "T", "P", "E"] {
        if value < power || unit == "E" {
            return format!("{value:.1}{unit}");
        }
        value /= power;
    }
    unreachable!("the last unit ends the loop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("64k", 65536), ("4G", 4 << 30), ("1", 1024), ("65537", 65537), ("64B", 64)] {
            assert_eq!(of_stripes(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "abc", "-1", "4X", "99999999999999999999", "16E0", "17E9", "1mb"] {
            assert!(of_stripes(wrong).is_err(), "{wrong}");
        }
        assert!(hint("1mb").contains("write M for 1024^2 bytes or MB for 1000^2 bytes"));
        assert_eq!(hint("abc"), "");
    }

    #[test]
    fn sizes_are_printed() {
        assert_eq!(human(0), "0.0");
        assert_eq!(human(1776 * 1024), "1.7M");
        assert_eq!(human(3474180 * 1024), "3.3G");
        assert_eq!(scaled(3474180 * 1024, 1000), "3.6G");
    }
}
