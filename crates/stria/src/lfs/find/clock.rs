//! Times as `lfs find` reads and prints them: ages with units, points in local time.

use std::{fs::Metadata, os::unix::fs::MetadataExt, time::SystemTime};

/// One of the four times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Last read.
    Access,
    /// Made.
    Birth,
    /// Attributes changed.
    Change,
    /// Data changed.
    Modification,
}

/// Seconds and nanoseconds since 1970.
pub type Moment = (i64, i64);

impl Clock {
    /// By the letter of `--newerXY`.
    pub fn of_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'a' => Clock::Access,
            'B' => Clock::Birth,
            'c' => Clock::Change,
            'm' => Clock::Modification,
            _ => return None,
        })
    }

    /// When it was, if the file system knows.
    pub fn read(self, metadata: &Metadata) -> Option<Moment> {
        match self {
            Clock::Access => Some((metadata.atime(), metadata.atime_nsec())),
            Clock::Change => Some((metadata.ctime(), metadata.ctime_nsec())),
            Clock::Modification => Some((metadata.mtime(), metadata.mtime_nsec())),
            Clock::Birth => metadata.created().ok().map(moment),
        }
    }
}

/// A time of the standard library.
pub fn moment(time: SystemTime) -> Moment {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, i64::from(since.subsec_nanos())),
        Err(before) => (-(before.duration().as_secs() as i64), 0),
    }
}

/// Reads an age; seconds, and the length of its unit. Without a unit: days.
pub fn age(text: &str) -> Option<(u64, u64)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "" | "d" => 86400,
        "w" => 7 * 86400,
        "y" => 365 * 86400,
        _ => return None,
    };
    let number: u64 = text[..digits].parse().ok()?;
    Some((number.checked_mul(unit).filter(|seconds| i64::try_from(*seconds).is_ok())?, unit))
}

/// Reads a point in time: `@` and seconds, or local time as `2026-01-31[ 12:00[:00]]`.
pub fn point(text: &str) -> Option<Moment> {
    if let Some(seconds) = text.strip_prefix('@') {
        return Some((seconds.parse().ok()?, 0));
    }
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "0:0"));
    let date: Vec<i32> = date.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let time: Vec<i32> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let ([year, month, day], [hour, minute, ..]) = (&date[..], &time[..]) else { return None };
    // SAFETY: all fields are numbers and a pointer that mktime does not read.
    let mut broken: libc::tm = unsafe { std::mem::zeroed() };
    broken.tm_year = year.checked_sub(1900)?;
    broken.tm_mon = month.checked_sub(1)?;
    (broken.tm_mday, broken.tm_hour, broken.tm_min) = (*day, *hour, *minute);
    broken.tm_sec = time.get(2).copied().unwrap_or(0);
    broken.tm_isdst = -1;
    let valid = (0..12).contains(&broken.tm_mon)
        && (1..=31).contains(day)
        && (0..24).contains(hour)
        && (0..60).contains(minute)
        && (0..=60).contains(&broken.tm_sec)
        && time.len() <= 3;
    // SAFETY: the struct is ours and filled.
    valid.then(|| (unsafe { libc::mktime(&mut broken) }, 0))
}

/// Local time in the manner of ctime(3), as find(1) prints it: `Sat Jan 31 12:00:00.0000000000 2026`.
pub fn shown((seconds, nanoseconds): Moment) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // SAFETY: all fields are numbers and a pointer; localtime_r fills them.
    let mut broken: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values, for the call only.
    if unsafe { libc::localtime_r(&seconds, &mut broken) }.is_null() {
        return seconds.to_string();
    }
    let day = DAYS[broken.tm_wday.rem_euclid(7) as usize];
    let month = MONTHS[broken.tm_mon.rem_euclid(12) as usize];
    let libc::tm { tm_mday, tm_hour, tm_min, tm_sec, tm_year, .. } = broken;
    let year = i64::from(tm_year) + 1900;
    format!("{day} {month} {tm_mday:2} {tm_hour:02}:{tm_min:02}:{tm_sec:02}.{nanoseconds:09}0 {year}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_units() {
        assert_eq!(age("2"), Some((2 * 86400, 86400)));
        assert_eq!(age("90s"), Some((90, 1)));
        assert_eq!(age("1w"), Some((7 * 86400, 7 * 86400)));
        for wrong in ["", "d", "2x", "-1", "99999999999999999999", "9223372036854775807y"] {
            assert_eq!(age(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn points_are_read_as_they_are_shown() {
        assert_eq!(point("@12"), Some((12, 0)));
        let noon = point("2026-01-31 12:00:00").unwrap();
        assert_eq!(shown(noon), "Sat Jan 31 12:00:00.0000000000 2026");
        assert_eq!(point("2026-01-31T12:00"), Some(noon));
        assert_eq!(point("2026-01-31").map(|(start, _)| noon.0 - start), Some(12 * 3600));
        for wrong in ["", "yesterday", "2026-13-01", "2026-01-31 25:00", "2026-01", "2026-01-31 1:2:3:4"] {
            assert_eq!(point(wrong), None, "{wrong}");
        }
    }
}
