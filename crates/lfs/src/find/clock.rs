//! Times as `lfs find` reads and prints them: ages with units, and points in local time.

use std::{fs::Metadata, os::unix::fs::MetadataExt, time::SystemTime};

use jiff::{Timestamp, Zoned, civil::Time, fmt::strtime, tz::TimeZone};

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

/// Reads an age; seconds, and the length of its smallest unit. Several units add up, as in `8h20m`;
/// without one it is a number of `bare_unit`s.
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

/// Reads a point in time: seconds since 1970, with or without `@`, or local time as `2026-01-31[
/// 12:00[:00]]`, or today's `12:00[:00]`. `None`: it is none, or no day of the calendar.
pub fn point(text: &str) -> Option<Moment> {
    let seconds = text.strip_prefix('@').unwrap_or(text);
    if let Ok(seconds) = seconds.parse() {
        return Some((seconds, 0));
    }
    let read = |format: &&str| strtime::parse(format, text).ok();
    let dated = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d"];
    let local = match dated.iter().find_map(read) {
        Some(read) => read.to_date().map(|date| date.to_datetime(read.to_time().unwrap_or(Time::midnight()))),
        None => {
            ["%H:%M:%S", "%H:%M"].iter().find_map(read)?.to_time().map(|time| Zoned::now().date().to_datetime(time))
        }
    };
    // What the clocks skip or repeat twice a year is read as most calendars do.
    let zoned = local.ok()?.to_zoned(TimeZone::system()).ok()?;
    Some((zoned.timestamp().as_second(), 0))
}

/// Local time in the manner of ctime(3), as find(1) prints it: `Sat Jan 31 12:00:00.0000000000
/// 2026`.
pub fn shown((seconds, nanoseconds): Moment) -> String {
    match Timestamp::new(seconds, 0) {
        Ok(time) => {
            let local = time.to_zoned(TimeZone::system());
            local.strftime(&format!("%a %b %e %H:%M:%S.{nanoseconds:09}0 %Y")).to_string()
        }
        // Beyond the calendar.
        Err(_) => seconds.to_string(),
    }
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
        assert!(point("2028-02-29").is_some() && point("2026-12-31 23:59").is_some());
        assert_eq!(shown((i64::MAX, 0)), i64::MAX.to_string(), "beyond the calendar");
        for wrong in ["2026-02-31", "2026-02-29 12:00", "2026-04-31 12:00:00", "2026-00-01", "2026-01-00"] {
            assert_eq!(point(wrong), None, "no such day: {wrong}");
        }
        for wrong in
            ["", "yesterday", "2026-13-01", "2026-01-31 25:00", "2026-01", "2026-01-31 1:2:3:4", "25:00", "1:2:3:4"]
        {
            assert_eq!(point(wrong), None, "{wrong}");
        }
    }
}
