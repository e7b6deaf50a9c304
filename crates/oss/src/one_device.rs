//! A target that has nothing but its device: the tables are in a part of it
//! ([`TablesPart`]), the objects in the rest.
//!
//! Journal, tree and objects are written to one file, so a flush of one is a flush of all, and one
//! that fails is a failure of all: the device below has to see to that, if its file system forgets
//! failures (as [`rt::real::LocalDirectory`] does).

use std::{io, sync::Arc};

use bytes::Bytes;
use kv::{TreeCold, region::RegionFiles};
use rt::{BoxFuture, Device};
use types::{SpaceUsage, limits::BLOCK_BYTES};

use crate::{
    device_label::DeviceLabel, directory::device::DEVICE_FILE, tables_part::TablesPart, target::OstDevices,
    throughput::Throughput,
};

/// The device, by what uses it.
#[derive(Clone)]
pub struct OneDevice {
    /// For what must not take virtual time, see [`kv::cold::tree::TreePart::at_once`].
    pub at_once: Arc<dyn Device>,
    /// For the tables; calls should run at once.
    pub tables: Arc<dyn Device>,
    /// For the data of objects; calls should run on I/O threads.
    pub objects: Arc<dyn Device>,
}

impl OneDevice {
    /// Begins to format: a device of so many blocks is no target any more, whatever happens to it
    /// from here on.
    pub async fn clear_labels(&self, blocks: u64) -> io::Result<()> {
        for place in DeviceLabel::places(blocks) {
            let zeros = Bytes::from_static(&[0; BLOCK_BYTES as usize]);
            self.tables.write(DEVICE_FILE, place * BLOCK_BYTES, vec![zeros]).await?;
        }
        // Before the journal is cleared: without this, a power loss could leave the old target
        // with its old tables and without its journal.
        self.tables.flush(DEVICE_FILE).await
    }

    /// Makes empty tables. `tree`: a random number.
    pub async fn format(&self, part: &TablesPart, tree: u64) -> io::Result<()> {
        let layout = part.layout().ok_or_else(impossible)?;
        layout.format(self.tables.clone(), DEVICE_FILE, part.node_bytes as usize, tree).await
    }

    /// The tables' cold store, to look at: nothing is written.
    pub fn look(&self, part: &TablesPart, cache_bytes: usize) -> io::Result<TreeCold> {
        let layout = part.layout().ok_or_else(impossible)?;
        TreeCold::look(&layout.tree(self.at_once.clone(), self.tables.clone(), DEVICE_FILE), cache_bytes)
    }

    /// What a target opens. `threads`: the tables' tree has threads of its own.
    pub fn open(
        &self,
        part: &TablesPart,
        cache_bytes: usize,
        threads: bool,
        throughput: Arc<Throughput>,
    ) -> io::Result<OstDevices> {
        let layout = part.layout().ok_or_else(impossible)?;
        let tree = TreeCold::open(&layout.tree(self.at_once.clone(), self.tables.clone(), DEVICE_FILE), cache_bytes)?;
        let tree = Arc::new(if threads { tree.with_threads()? } else { tree });
        Ok(OstDevices {
            objects: Arc::new(OneFile { device: self.objects.clone(), tree: tree.clone() }),
            journal: Arc::new(RegionFiles::new(self.tables.clone(), DEVICE_FILE, layout, Some(tree.clone()))),
            cold: tree,
            throughput,
        })
    }
}

fn impossible() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no tables can be where the label of the device says")
}

/// The device for objects: a single file, and the space that is left for the tables.
struct OneFile {
    device: Arc<dyn Device>,
    tree: Arc<TreeCold>,
}

fn ready<T: Send + 'static>(result: io::Result<T>) -> BoxFuture<'static, io::Result<T>> {
    Box::pin(std::future::ready(result))
}

fn only_one(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("a device has no file '{file}'"))
}

impl OneFile {
    fn change(
        &self,
        file: &str,
        change: impl FnOnce(&dyn Device) -> BoxFuture<'static, io::Result<()>>,
    ) -> BoxFuture<'static, io::Result<()>> {
        if file == DEVICE_FILE { change(&*self.device) } else { ready(Err(only_one(file))) }
    }
}

impl Device for OneFile {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        if file == DEVICE_FILE { self.device.read(file, offset, buffer) } else { ready(Ok((buffer, 0))) }
    }

    fn read_bytes(&self, file: &str, offset: u64, bytes: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        if file == DEVICE_FILE { self.device.read_bytes(file, offset, bytes) } else { ready(Ok(Bytes::new())) }
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, |device| device.write(file, offset, pieces))
    }

    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, |device| device.write_cached(file, offset, pieces))
    }

    fn cached_area_bytes(&self) -> u64 {
        self.device.cached_area_bytes()
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        if file == DEVICE_FILE { self.device.flush(file) } else { ready(Ok(())) }
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        if file == DEVICE_FILE { self.device.length(file) } else { ready(Ok(None)) }
    }

    /// The length of a device does not change.
    fn truncate(&self, file: &str, _length: u64) -> BoxFuture<'static, io::Result<()>> {
        ready(Err(only_one(file)))
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, |device| device.punch(file, offset, bytes))
    }

    fn discard(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, |device| device.discard(file, offset, bytes))
    }

    fn takes_discards(&self, file: &str) -> BoxFuture<'static, io::Result<bool>> {
        self.device.takes_discards(file)
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, |device| device.allocate(file, offset, bytes))
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        if file == DEVICE_FILE { ready(Err(only_one(file))) } else { ready(Ok(())) }
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let found = DEVICE_FILE.starts_with(prefix).then(|| DEVICE_FILE.to_owned());
        ready(Ok(found.into_iter().collect()))
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        ready(Ok(self.tree.space()))
    }
}

#[cfg(test)]
mod tests {
    use rt::memory::{MemoryDevice, SeededEntropy, Unflushed};
    use types::OstIndex;

    use super::*;
    use crate::directory::device::write_labels;

    /// Formatting again goes on with the journal, which must not be gone before the label is.
    #[tokio::test]
    async fn a_device_whose_labels_were_cleared_is_no_target_after_a_power_loss() {
        const BLOCKS: u64 = 1 << 20;
        for unflushed in [Unflushed::Lost, Unflushed::KeptOrLost, Unflushed::Torn] {
            let memory = MemoryDevice::new();
            memory.truncate(DEVICE_FILE, BLOCKS * BLOCK_BYTES).await.unwrap();
            let device: Arc<dyn Device> = Arc::new(memory.clone());
            let one = OneDevice { at_once: device.clone(), tables: device.clone(), objects: device.clone() };
            let (identity, tables) = ([1; 16], TablesPart::of_new(BLOCKS, None));
            let fsname = "stria".to_owned();
            let label = DeviceLabel { index: OstIndex(1), identity, fsname, blocks: BLOCKS, tables, key: None };
            write_labels(&*device, &label).await.unwrap();
            one.clear_labels(BLOCKS).await.unwrap();
            let after = memory.power_loss(&SeededEntropy::new(1), unflushed);
            for place in DeviceLabel::places(BLOCKS) {
                let read = after.read(DEVICE_FILE, place * BLOCK_BYTES, vec![0; BLOCK_BYTES as usize]).await;
                assert!(DeviceLabel::decode(&read.unwrap().0).is_err(), "{unflushed:?} {place}");
            }
        }
    }
}
