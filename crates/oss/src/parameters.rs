//! Parameters of a target, under Lustre's names (`obdfilter.<target>.<name>`): read, and changed at run time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use types::{FsError, FsResult};

use crate::Ost;

/// Names of all parameters, and whether they can be set.
pub const NAMES: [(&str, bool); 17] = [
    ("brw_stats", true),
    ("commit_interval_ms", true),
    ("degraded", true),
    ("dirty_files", false),
    ("evicted_clients", false),
    ("filesfree", false),
    ("filestotal", false),
    ("kbytesavail", false),
    ("kbytesfree", false),
    ("kbytestotal", false),
    ("no_create", true),
    ("readonly", true),
    ("reserved_mb", true),
    ("stats", true),
    ("uuid", false),
    ("writeback_idle_ms", true),
    ("writeback_mb", true),
];

impl Ost {
    /// Value of a parameter; `NotFound` for other names.
    pub async fn parameter(&self, name: &str) -> FsResult<String> {
        let flag = |flag: &AtomicBool| u8::from(flag.load(Ordering::Relaxed)).to_string();
        let options = self.options.lock().clone();
        Ok(match name {
            "brw_stats" => self.statistics.figures().brw_stats(),
            "commit_interval_ms" => options.commit_interval.as_millis().to_string(),
            "degraded" => flag(&self.degraded),
            "dirty_files" => self.directory.dirty_files().to_string(),
            "evicted_clients" => self.evictions.count().to_string(),
            "filesfree" => self.space().await?.inodes_free.to_string(),
            "filestotal" => self.space().await?.inodes_total.to_string(),
            "kbytesavail" => (self.space().await?.bytes_available / 1024).to_string(),
            "kbytesfree" => (self.space().await?.bytes_free / 1024).to_string(),
            "kbytestotal" => (self.space().await?.bytes_total / 1024).to_string(),
            "no_create" => flag(&self.no_create),
            "readonly" => u8::from(self.condition().read_only).to_string(),
            "reserved_mb" => (options.reserve_bytes >> 20).to_string(),
            "stats" => self.statistics.figures().to_string(),
            "uuid" => self.uuid(),
            "writeback_idle_ms" => options.write_back_idle.as_millis().to_string(),
            "writeback_mb" => (options.write_back_bytes >> 20).to_string(),
            _ => return Err(FsError::NotFound),
        })
    }

    /// Sets a parameter. `NotFound` for other names, `AccessDenied` for those that only show something, `Invalid` for
    /// values out of range. Setting `stats` or `brw_stats`, to anything, resets all figures.
    pub fn set_parameter(&self, name: &str, value: &str) -> FsResult<()> {
        let (_, settable) = NAMES.iter().find(|(known, _)| *known == name).ok_or(FsError::NotFound)?;
        if !settable {
            return Err(FsError::AccessDenied);
        }
        let number = || value.trim().parse::<u64>().map_err(|_| FsError::Invalid);
        let flag = |flag: &AtomicBool| {
            let on = match value.trim() {
                "0" => false,
                "1" => true,
                _ => return Err(FsError::Invalid),
            };
            flag.store(on, Ordering::Relaxed);
            Ok(())
        };
        let mib = || number()?.checked_mul(1 << 20).ok_or(FsError::Invalid);
        match name {
            "stats" | "brw_stats" => self.statistics.reset(),
            "degraded" => flag(&self.degraded)?,
            "no_create" => flag(&self.no_create)?,
            "readonly" => flag(&self.read_only)?,
            "commit_interval_ms" => {
                let interval = number()?;
                if interval == 0 {
                    return Err(FsError::Invalid);
                }
                self.options.lock().commit_interval = Duration::from_millis(interval);
            }
            "reserved_mb" => self.options.lock().reserve_bytes = mib()?,
            "writeback_mb" => self.options.lock().write_back_bytes = mib()?,
            "writeback_idle_ms" => self.options.lock().write_back_idle = Duration::from_millis(number()?),
            _ => return Err(FsError::NotFound),
        }
        Ok(())
    }
}
