//! Sizes as people write them: the only place that defines units of bytes, for commands,
//! configuration files and parameters alike.
//!
//! | unit | bytes |
//! |---|---|
//! | none | what the caller says, usually 1 |
//! | `B` | 1 |
//! | `K`, `Ki`, `KiB`, and so on with `M`, `G`, `T`, `P`, `E`; in any case | powers of 1024, as in Lustre's `lfs` |
//! | `KB`, `MB`, and so on; `kB` too | powers of 1000, as in the International System of Units and Lustre's `lctl` |
//!
//! `kb`, `Mb` and the like are refused, because they may be bits; so is a lone `b`, which means a
//! block in `find`.

use std::str::FromStr;

/// What a size looks like, for messages.
pub const EXPECTED: &str = "a size such as 64K, 1MiB (powers of 1024) or 1MB (powers of 1000)";

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It is not a number with a unit.
    #[error("expected {EXPECTED}")]
    Malformed,
    /// Its unit may mean several things.
    #[error("the unit '{unit}' is ambiguous: write {instead}")]
    Ambiguous {
        /// The unit.
        unit: String,
        /// Units that mean one thing each.
        instead: String,
    },
    /// It does not fit 64 bits.
    #[error("the size exceeds 2^64 bytes")]
    TooLarge,
}

/// Reads a size in bytes. A number without a unit counts `bare_unit_bytes` each.
pub fn parse(text: &str, bare_unit_bytes: u64) -> Result<u64, SizeError> {
    let (number, unit) = split(text.trim());
    let number = match u64::from_str(number) {
        Ok(number) => number,
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => return Err(SizeError::TooLarge),
        Err(_) => return Err(SizeError::Malformed),
    };
    let unit_bytes = if unit.is_empty() { bare_unit_bytes } else { unit_bytes(unit)? };
    number.checked_mul(unit_bytes).ok_or(SizeError::TooLarge)
}

/// A number and its unit.
pub fn split(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (&text[..digits], text[digits..].trim_start())
}

/// Bytes of one of a unit.
pub fn unit_bytes(unit: &str) -> Result<u64, SizeError> {
    if unit == "B" {
        return Ok(1);
    }
    if unit == "b" {
        let instead = "B for bytes, or K for 1024 bytes".to_owned();
        return Err(SizeError::Ambiguous { unit: unit.to_owned(), instead });
    }
    let mut rest = unit.chars();
    let prefix = rest.next().ok_or(SizeError::Malformed)?.to_ascii_uppercase();
    let power = "KMGTPE".find(prefix).ok_or(SizeError::Malformed)? as u32 + 1;
    match rest.as_str() {
        "" => Ok(1024_u64.pow(power)),
        rest if rest.eq_ignore_ascii_case("i") || rest.eq_ignore_ascii_case("ib") => Ok(1024_u64.pow(power)),
        "B" => Ok(1000_u64.pow(power)),
        "b" => {
            let instead = format!("{prefix} for 1024^{power} bytes or {prefix}B for 1000^{power} bytes");
            Err(SizeError::Ambiguous { unit: unit.to_owned(), instead })
        }
        _ => Err(SizeError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_one_meaning() {
        for (text, bytes) in [
            ("12", 12),
            ("12B", 12),
            ("64k", 65536),
            ("64 KiB", 65536),
            ("1m", 1 << 20),
            ("1M", 1 << 20),
            ("1Mi", 1 << 20),
            ("1mib", 1 << 20),
            ("1MB", 1_000_000),
            ("1kB", 1000),
            ("4G", 4 << 30),
            ("4GB", 4_000_000_000),
            ("15E", 15 << 60),
            (" 2T ", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text, 1), Ok(bytes), "{text}");
        }
        assert_eq!(parse("64", 1 << 20), Ok(64 << 20));
        assert_eq!(parse("64M", 1 << 20), Ok(64 << 20), "a unit of its own takes precedence");
    }

    #[test]
    fn what_is_no_size_or_may_be_two_is_refused() {
        for text in ["", "M", "-1", "+1", "1X", "4KiBB", "1Bi", "1M2", "1.5G", "0x10", "1\u{e4}", "B"] {
            assert_eq!(parse(text, 1), Err(SizeError::Malformed), "{text}");
        }
        for text in ["16E", "99999999999999999999", "99999999999999999999K", "17E"] {
            assert_eq!(parse(text, 1), Err(SizeError::TooLarge), "{text}");
        }
        for (text, expected) in [
            ("1mb", "the unit 'mb' is ambiguous: write M for 1024^2 bytes or MB for 1000^2 bytes"),
            ("1Kb", "the unit 'Kb' is ambiguous: write K for 1024^1 bytes or KB for 1000^1 bytes"),
            ("8b", "the unit 'b' is ambiguous: write B for bytes, or K for 1024 bytes"),
        ] {
            assert_eq!(parse(text, 1).unwrap_err().to_string(), expected);
        }
    }
}
