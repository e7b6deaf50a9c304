//! Possible processors: the kernel has a queue for each.

use std::{fs, io};

/// Where Linux lists them, as in `0-3,8`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// How many there are, online or not.
pub fn possible() -> io::Result<u16> {
    let text = fs::read_to_string(POSSIBLE)?;
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, format!("{POSSIBLE} has '{}'", text.trim()));
    count(text.trim()).ok_or_else(unexpected)
}

fn count(list: &str) -> Option<u16> {
    list.split(',').try_fold(0_u16, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, expected) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(count(list), Some(expected), "{list}");
        }
        for wrong in ["", "x", "3-1", "0-", "0-65535"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        assert!(possible().unwrap() >= 1);
    }
}
