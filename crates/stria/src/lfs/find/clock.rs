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

/// Seconds of a day.
const DAY: u64 = 86400;
/// Seconds of a minute.
pub const MINUTE: u64 = 60;

/// Reads an age; seconds, and the length of its smallest unit. Several units add up, as in `8h20m`; without one it is a number
/// of `bare_unit`s.
fn age_in(text: &str, bare_unit: u64) -> Option<(u64, u64)> {
    let (mut sum, mut smallest, mut rest) = (0_u64, u64::MAX, text);
    while smallest == u64::MAX || !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let unit = match rest[digits..].chars().next() {
            Some('s') => 1,
            Some('m') => MINUTE,
            Some('h') => 60 * MINUTE,
            Some('d') => DAY,
            Some('w') => 7 * DAY,
            Some('y') => 365 * DAY,
            // Only the last number may be without a unit, and only if it is the only one.
            None if rest.len() == text.len() => bare_unit,
            _ => return None,
        };
        let number: u64 = rest[..digits].parse().ok()?;
        sum = sum.checked_add(number.checked_mul(unit)?)?;
        smallest = smallest.min(unit);
        rest = rest.get(digits + 1..).unwrap_or_default();
    }
    i64::try_from(sum).is_ok().then_some((sum, smallest))
}

/// [`age_in`] days.
pub fn age(text: &str) -> Option<(u64, u64)> {
    age_in(text, DAY)
}

/// [`age_in`] minutes.
pub fn age_in_minutes(text: &str) -> Option<(u64, u64)> {
    age_in(text, MINUTE)
}

/// Reads a point in time: seconds since 1970, with or without `@`, or local time as `2026-01-31[ 12:00[:00]]`, or today's
/// `12:00[:00]`.
pub fn point(text: &str) -> Option<Moment> {
    let seconds = text.strip_prefix('@').unwrap_or(text);
    if let Ok(seconds) = seconds.parse() {
        return Some((seconds, 0));
    }
    let today;
    let (date, time) = match text.split_once([' ', 'T']) {
        Some((date, time)) => (date, time),
        None if text.contains(':') => {
            today = self::today();
            (&*today, text)
        }
        None => (text, "0:0"),
    };
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

/// Today's local date, as `2026-01-31`.
fn today() -> String {
    let (now, _) = moment(SystemTime::now());
    // SAFETY: all fields are numbers and a pointer; localtime_r fills them.
    let mut broken: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values, for the call only. If it fails, the date is none and is refused.
    unsafe { libc::localtime_r(&now, &mut broken) };
    let libc::tm { tm_year, tm_mon, tm_mday, .. } = broken;
    format!("{}-{}-{tm_mday}", i64::from(tm_year) + 1900, tm_mon + 1)
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
        assert_eq!(age("8h20m"), Some((500 * 60, 60)));
        assert_eq!(age("1y2d3s"), Some((367 * 86400 + 3, 1)));
        assert_eq!((age("0"), age("0s")), (Some((0, 86400)), Some((0, 1))));
        assert_eq!((age_in_minutes("5"), age_in_minutes("1h")), (Some((300, 60)), Some((3600, 3600))));
        let huge = "9223372036854775807s1s";
        for wrong in
            ["", "d", "2x", "-1", "1d2", "1dd", "1\u{e4}", "99999999999999999999", "9223372036854775807y", huge]
        {
            assert_eq!(age(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn points_are_read_as_they_are_shown() {
        assert_eq!((point("@12"), point("12")), (Some((12, 0)), Some((12, 0))));
        let at = |text| point(text).map(|(seconds, _)| seconds).unwrap();
        assert_eq!(at("10:30:15") - at("10:30"), 15, "today");
        let noon = point("2026-01-31 12:00:00").unwrap();
        assert_eq!(shown(noon), "Sat Jan 31 12:00:00.0000000000 2026");
        assert_eq!(point("2026-01-31T12:00"), Some(noon));
        assert_eq!(point("2026-01-31").map(|(start, _)| noon.0 - start), Some(12 * 3600));
        for wrong in
            ["", "yesterday", "2026-13-01", "2026-01-31 25:00", "2026-01", "2026-01-31 1:2:3:4", "25:00", "1:2:3:4"]
        {
            assert_eq!(point(wrong), None, "{wrong}");
        }
    }
}
