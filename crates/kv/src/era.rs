//! How often changes that were not durable may have been lost with the host: a record that the user
//! of a store keeps in it, so that it knows, and can tell its clients, that such changes may be
//! lost.
//!
//! A process that dies loses nothing: the kernel has what it wrote. A host that fails (power,
//! crash, reboot) loses what was not flushed. So a start counts a loss if the host was restarted
//! and the last user of the store did not shut down cleanly. The user also counts a loss if it
//! finds data missing for another reason, for example after a flush that failed.
//!
//! Life cycle: [`PowerLossEra::at_start`], durable before anything is acknowledged;
//! [`PowerLossEra::at_rest`], durable as the last change of a clean shutdown. Downside: a store
//! that is opened on another host counts a loss too, which is safe.

use std::fmt;

use bytes::Bytes;

use crate::{Batch, Error, Result, Store, Table};

/// Bytes of the record: version (1), run of the host (8; 0: at rest), era (8); little endian.
pub const ERA_BYTES: usize = 17;

const VERSION: u8 = 1;
/// More starts than any store has.
const COUNT_MAX: u64 = 1 << 62;

/// The record. The default is that of a new store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerLossEra {
    /// Run of the host in which the store is used ([`rt::Clock::boot`]); 0 while it is not.
    boot: u64,
    count: u64,
}

impl PowerLossEra {
    /// The record of a start, from the one found. `boot`: present run of the host.
    pub fn at_start(self, boot: u64) -> PowerLossEra {
        let lossy = self.boot != 0 && self.boot != boot;
        PowerLossEra { boot, count: self.count + u64::from(lossy) }
    }

    /// The record of a start that finds changes missing, although the host's run says nothing of
    /// it: a flush had failed.
    pub fn with_missing(self) -> PowerLossEra {
        PowerLossEra { count: self.count + 1, ..self }
    }

    /// The record of an orderly end.
    pub fn at_rest(self) -> PowerLossEra {
        PowerLossEra { boot: 0, ..self }
    }

    /// Starts so far that may have found changes missing.
    pub fn count(self) -> u64 {
        self.count
    }

    /// The record found in a store.
    pub fn load(store: &Store, table: Table, key: &[u8]) -> Result<PowerLossEra> {
        store.get(table, key)?.map_or(Ok(PowerLossEra::default()), |value| PowerLossEra::decode(&value))
    }

    /// Makes the record durable, and with it everything applied before.
    pub async fn save(self, store: &Store, table: Table, key: &'static [u8]) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(table, Bytes::from_static(key), self.encode());
        store.durable(store.apply_reserved(batch)?).await
    }

    /// The bytes to store.
    pub fn encode(self) -> Vec<u8> {
        [[VERSION].as_slice(), &self.boot.to_le_bytes(), &self.count.to_le_bytes()].concat()
    }

    /// From stored bytes.
    pub fn decode(value: &[u8]) -> Result<PowerLossEra> {
        let damaged = |reason: &str| Error::Corrupt {
            file: "the record of the power-loss era".to_owned(),
            offset: 0,
            reason: reason.to_owned(),
        };
        let (&version, rest) = value.split_first().ok_or_else(|| damaged("empty"))?;
        if version != VERSION {
            return Err(damaged("unknown version"));
        }
        let (boot, count) = rest.split_first_chunk().ok_or_else(|| damaged("truncated"))?;
        let count = u64::from_le_bytes(count.try_into().map_err(|_| damaged("wrong length"))?);
        if count > COUNT_MAX {
            return Err(damaged("count out of range"));
        }
        Ok(PowerLossEra { boot: u64::from_le_bytes(*boot), count })
    }
}

impl fmt::Display for PowerLossEra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.boot {
            0 => write!(f, "at rest")?,
            boot => write!(f, "in use in run {boot:016x} of its host")?,
        }
        write!(f, ", {} starts that may have found unsynced changes missing", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_run_of_the_host_loses_and_only_without_an_orderly_end() {
        let first = PowerLossEra::default().at_start(7);
        assert_eq!(first.count(), 0);
        assert_eq!(first.at_start(7).count(), 0, "the process died");
        let second = first.at_start(8);
        assert_eq!(second.count(), 1, "the host ended");
        assert_eq!(second.at_rest().at_start(9).count(), 1, "it had ended in good order");
    }

    #[test]
    fn records_survive_the_trip() {
        let record = PowerLossEra { boot: 1 << 60, count: 3 };
        let bytes = record.encode();
        assert_eq!((bytes.len(), bytes[0]), (ERA_BYTES, VERSION));
        assert_eq!(PowerLossEra::decode(&bytes).unwrap(), record);
        assert!(PowerLossEra::decode(&bytes[1..]).is_err() && PowerLossEra::decode(&bytes[..16]).is_err());
        assert!(PowerLossEra::decode(&[9; ERA_BYTES]).is_err() && PowerLossEra::decode(&[]).is_err());
    }
}
