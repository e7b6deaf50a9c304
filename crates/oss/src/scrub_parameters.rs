//! Parameters of the scrub, in the shape of Lustre's (`osd-*.*.auto_scrub`, `oi_scrub`, `lctl
//! lfsck_start`): it is started and stopped by hand, or begins by itself.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use rt::parameters::{Parameter, parse_number};

use crate::{Ost, directory::DirectoryStore, parameters::LIMIT_MBPS, scrub_record::ScrubRecord};

/// Seconds between two scrubs: up to ten years.
pub const AUTO_SCRUB_SECONDS: RangeInclusive<u64> = 0..=315_360_000;

impl Ost {
    /// Begins a scrub from the beginning. From now on none begins by itself.
    pub fn scrub_once(&self) {
        self.options.lock().auto_scrub = Duration::ZERO;
        DirectoryStore::start_scrub(&self.directory, true);
    }

    /// Blocks that hold data: a scrub reads all of them.
    pub fn blocks_with_data(&self) -> u64 {
        self.directory.blocks_with_data()
    }

    /// The present scrub, or the last one.
    pub fn last_scrub(&self) -> Option<ScrubRecord> {
        self.directory.last_scrub()
    }

    pub(crate) fn scrub_parameters(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let (get, set) = (self.clone(), self.clone());
        let scrub = Parameter::writable(
            "what the scrub does; start: reads all data and compares their checksums, goes on with what was stopped; \
             reset: from the beginning; stop",
            move || get.directory.scrub_status().to_owned(),
            move |text| {
                match text.trim() {
                    "start" => DirectoryStore::start_scrub(&set.directory, false),
                    "reset" => DirectoryStore::start_scrub(&set.directory, true),
                    "stop" => set.directory.stop_scrub(),
                    other => return Err(format!("'{other}' is none of start, stop and reset")),
                }
                Ok(())
            },
        );
        vec![
            ("scrub", scrub),
            (
                "scrub_mbps",
                self.setting(
                    "MiB/s that a scrub reads; 0: no limit; it gives way to requests in any case",
                    |text| parse_number(text, &LIMIT_MBPS),
                    |options| options.scrub_bytes_per_second >> 20,
                    |options, mebibytes| options.scrub_bytes_per_second = mebibytes << 20,
                )
                .within(LIMIT_MBPS),
            ),
            (
                "auto_scrub",
                self.setting(
                    "seconds after the end of a scrub after which the next one begins by itself; 0: never",
                    |text| parse_number(text, &AUTO_SCRUB_SECONDS),
                    |options| options.auto_scrub.as_secs(),
                    |options, seconds| options.auto_scrub = Duration::from_secs(seconds),
                )
                .within(AUTO_SCRUB_SECONDS),
            ),
            (
                "scrub_report",
                self.shown("how far the scrub is, and the damage it found", |ost| ost.directory.scrub_report()),
            ),
        ]
    }
}
