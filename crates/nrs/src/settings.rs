//! Settings of the policies, as lctl(8) reads and writes them.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use crate::{Direction, Refused};

/// Requests of a batch.
pub const QUANTA: RangeInclusive<u16> = 1..=u16::MAX;
/// Seconds of a delay.
pub const DELAYS_S: RangeInclusive<u16> = 0..=u16::MAX;
/// Requests of a hundred that are delayed.
pub const PERCENTAGES: RangeInclusive<u16> = 0..=100;

/// Settings of all policies of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `nrs_crrn_quantum`.
    pub crrn_quantum: u16,
    /// `nrs_orr_*`.
    pub orr: BatchSettings,
    /// `nrs_trr_*`.
    pub trr: BatchSettings,
    /// `nrs_delay_*`.
    pub delay: DelaySettings,
}

/// Lustre's defaults, but orr and trr are for reads and writes.
impl Default for Settings {
    fn default() -> Self {
        let batch = BatchSettings { quantum: 256, supported: Supported::ReadsAndWrites };
        let delay = DelaySettings { min_s: 5, max_s: 300, percent: 100 };
        Self { crrn_quantum: 8, orr: batch, trr: batch, delay }
    }
}

/// Settings of orr or trr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// Requests executed in one turn of an object or target.
    pub quantum: u16,
    /// Which requests it is for.
    pub supported: Supported,
}

/// Settings of delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelaySettings {
    /// Least delay, in seconds.
    pub min_s: u16,
    /// Longest delay, in seconds.
    pub max_s: u16,
    /// Requests of a hundred that are delayed.
    pub percent: u16,
}

/// Which requests for data orr and trr are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supported {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Both.
    ReadsAndWrites,
}

impl Supported {
    /// Whether these are among them.
    pub fn has(self, direction: Direction) -> bool {
        match self {
            Supported::Reads => direction == Direction::Read,
            Supported::Writes => direction == Direction::Write,
            Supported::ReadsAndWrites => true,
        }
    }
}

impl FromStr for Supported {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        match text {
            "reads" => Ok(Supported::Reads),
            "writes" => Ok(Supported::Writes),
            "reads_and_writes" => Ok(Supported::ReadsAndWrites),
            _ => Err(Refused::new("expected reads, writes or reads_and_writes")),
        }
    }
}

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Supported::Reads => "reads",
            Supported::Writes => "writes",
            Supported::ReadsAndWrites => "reads_and_writes",
        })
    }
}

impl Settings {
    /// Their names, below a service.
    pub const NAMES: [&str; 10] = [
        "nrs_crrn_quantum",
        "nrs_orr_quantum",
        "nrs_orr_offset_type",
        "nrs_orr_supported",
        "nrs_trr_quantum",
        "nrs_trr_offset_type",
        "nrs_trr_supported",
        "nrs_delay_min",
        "nrs_delay_max",
        "nrs_delay_pct",
    ];

    /// One of them, as `get_param` shows it: `reg_quantum:8`.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = match name {
            "nrs_crrn_quantum" => self.crrn_quantum.to_string(),
            "nrs_orr_quantum" => self.orr.quantum.to_string(),
            "nrs_trr_quantum" => self.trr.quantum.to_string(),
            "nrs_orr_offset_type" | "nrs_trr_offset_type" => "logical".to_owned(),
            "nrs_orr_supported" => self.orr.supported.to_string(),
            "nrs_trr_supported" => self.trr.supported.to_string(),
            "nrs_delay_min" => self.delay.min_s.to_string(),
            "nrs_delay_max" => self.delay.max_s.to_string(),
            "nrs_delay_pct" => self.delay.percent.to_string(),
            _ => return None,
        };
        Some(format!("reg_{}:{value}", key(name)))
    }

    /// The same with one of them changed: to `16` or `reg_quantum:16`, say.
    pub fn with(mut self, name: &str, text: &str) -> Result<Self, Refused> {
        let value = value(key(name), text.trim())?;
        let number = |range: RangeInclusive<u16>| {
            let expected = || Refused::new(format!("expected a number from {} to {}", range.start(), range.end()));
            value.parse().ok().filter(|number| range.contains(number)).ok_or_else(expected)
        };
        match name {
            "nrs_crrn_quantum" => self.crrn_quantum = number(QUANTA)?,
            "nrs_orr_quantum" => self.orr.quantum = number(QUANTA)?,
            "nrs_trr_quantum" => self.trr.quantum = number(QUANTA)?,
            "nrs_orr_offset_type" | "nrs_trr_offset_type" => match value {
                "logical" => {}
                "physical" => {
                    return Err(Refused::new("places on the device are not known to the scheduler; allowed: logical"));
                }
                _ => return Err(Refused::new("expected logical")),
            },
            "nrs_orr_supported" => self.orr.supported = value.parse()?,
            "nrs_trr_supported" => self.trr.supported = value.parse()?,
            "nrs_delay_min" => self.delay.min_s = number(DELAYS_S)?,
            "nrs_delay_max" => self.delay.max_s = number(DELAYS_S)?,
            "nrs_delay_pct" => self.delay.percent = number(PERCENTAGES)?,
            _ => return Err(Refused::new(format!("there is no setting {name}; allowed: {}", Self::NAMES.join(", ")))),
        }
        let DelaySettings { min_s, max_s, .. } = self.delay;
        if min_s > max_s {
            let text =
                format!("nrs_delay_min, {min_s} s, would be above nrs_delay_max, {max_s} s; change the other first");
            return Err(Refused::new(text));
        }
        Ok(self)
    }
}

/// What is written before the value: `quantum` of `nrs_orr_quantum`, `delay_min` of
/// `nrs_delay_min`.
fn key(name: &str) -> &str {
    let name = name.strip_prefix("nrs_").unwrap_or(name);
    ["crrn_", "orr_", "trr_"].iter().find_map(|policy| name.strip_prefix(policy)).unwrap_or(name)
}

/// The value alone.
fn value<'a>(key: &str, text: &'a str) -> Result<&'a str, Refused> {
    match text.split_once(':') {
        None => Ok(text),
        Some((named, value)) if named.strip_prefix("reg_") == Some(key) => Ok(value),
        Some((named, _)) if named.starts_with("hp_") => Err(Refused::new(crate::selection::HIGH_PRIORITY)),
        Some((named, _)) => {
            Err(Refused::new(format!("'{named}' is not expected; write the value alone, or reg_{key}:")))
        }
    }
}
