//! Where a target's journal, cold store and device are: below its directory, or on its device.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use kv::{ColdStore, FjallCold, cold::fjall::FjallOptions, region::RegionFiles};
use oss::{directory::device::DEVICE_FILE, one_device::OneDevice, tables_part::TablesPart};
use rt::Device;

use super::device::ReadOnlyDirectory;
use crate::one_device;

/// Memory for nodes of a tree that is looked at.
const TREE_CACHE_BYTES: usize = 16 << 20;

/// The parts of a target, read only.
pub struct Parts {
    /// The target's directory, or its device.
    path: PathBuf,
    place: Place,
}

enum Place {
    Directory,
    Device(OneDevice, TablesPart),
}

impl Parts {
    /// Those of the target in a directory, or on a device.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        let parts = |place| Self { path: path.to_owned(), place };
        if !one_device::is_device(path) {
            return Ok(parts(Place::Directory));
        }
        let label = one_device::label(path).with_context(|| format!("cannot read {}", path.display()))?;
        let tables = label.and_then(|label| label.tables);
        let tables = tables.with_context(|| format!("{} is not the device of a target", path.display()))?;
        let device: Arc<dyn Device> = Arc::new(ReadOnlyDirectory::of_file(path, DEVICE_FILE));
        let device = OneDevice { at_once: device.clone(), tables: device.clone(), objects: device };
        Ok(parts(Place::Device(device, tables)))
    }

    /// Directories of the target that are missing.
    pub fn missing(&self) -> Vec<PathBuf> {
        match self.place {
            Place::Directory => {
                ["journal", "cold"].map(|part| self.path.join(part)).into_iter().filter(|path| !path.is_dir()).collect()
            }
            Place::Device(..) => Vec::new(),
        }
    }

    /// Where the journal is, for messages.
    pub fn journal_path(&self) -> PathBuf {
        match self.place {
            Place::Directory => self.path.join("journal"),
            Place::Device(..) => self.path.clone(),
        }
    }

    /// The files of the store and its journal.
    pub fn journal(&self) -> anyhow::Result<Arc<dyn Device>> {
        Ok(match &self.place {
            Place::Directory => Arc::new(ReadOnlyDirectory::new(&self.path.join("journal"))),
            Place::Device(device, tables) => {
                let layout = tables.layout().context("the label names an impossible part for the tables")?;
                Arc::new(RegionFiles::new(device.tables.clone(), DEVICE_FILE, layout, None))
            }
        })
    }

    /// The cold store; fjall's is copied to `scratch`.
    pub fn cold(&self, scratch: &Path) -> io::Result<Box<dyn ColdStore>> {
        Ok(match &self.place {
            Place::Directory => {
                let cold = self.path.join("cold");
                Box::new(FjallCold::open_copy(&cold, &scratch.join("cold"), FjallOptions::default())?)
            }
            Place::Device(device, tables) => Box::new(device.look(tables, TREE_CACHE_BYTES)?),
        })
    }

    /// Where an OST's device is, if it has one.
    pub fn device_path(&self) -> PathBuf {
        match self.place {
            Place::Directory => self.path.join(DEVICE_FILE),
            Place::Device(..) => self.path.clone(),
        }
    }
}
