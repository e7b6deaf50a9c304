//! Sizes as `lfs` reads and prints them: units K, M, G, T, P, E are powers of 1024.

/// Reads a size in bytes. A bare number below 4096 means KiB where `bare_kib` (stripe sizes, component ends).
/// `None`: not a size.
pub fn parse(text: &str, bare_kib: bool) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].to_ascii_lowercase().as_str() {
        "" if bare_kib && number < 4096 => 10,
        "" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        _ => return None,
    };
    number.checked_mul(1 << shift)
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
        assert_eq!(parse("64k", true), Some(65536));
        assert_eq!(parse("4G", true), Some(4 << 30));
        assert_eq!(parse("1", true), Some(1024));
        assert_eq!(parse("65537", true), Some(65537));
        assert_eq!(parse("12", false), Some(12));
        for wrong in ["", "abc", "-1", "4X", "99999999999999999999", "16E0", "17E9"] {
            assert_eq!(parse(wrong, true), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_printed() {
        assert_eq!(human(0), "0.0");
        assert_eq!(human(1776 * 1024), "1.7M");
        assert_eq!(human(3474180 * 1024), "3.3G");
        assert_eq!(scaled(3474180 * 1024, 1000), "3.6G");
    }
}
