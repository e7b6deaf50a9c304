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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use bytes::Bytes;
    use rpc::{
        Call, Handler, Key, Keyring,
        checksum::checksums,
        message::{
            OstReply, OstRequest, Reply, Request,
            ost::{Read, Write},
        },
    };
    use rt::real::{Cores, SystemEntropy};
    use types::{ClientId, InodeNumber, ObjectId, Owner, Slot, Xid};

    use super::*;
    use crate::{
        config::{Role, TargetConfig},
        inspect::{InspectionReport, map, target as inspected},
        process,
        storage::OneDeviceStorage,
        target::{self, OpenTarget, Threads},
    };

    /// Objects of all sizes, each of one byte.
    const SIZES: [usize; 4] = [100, 70 << 10, 1 << 20, 3 << 20];

    fn object(round: u64, number: usize) -> ObjectId {
        ObjectId::new(InodeNumber(0x1000 + round * 16 + number as u64), 0)
    }

    /// Opens the target as a server does, reads what earlier rounds wrote, and writes more.
    async fn serve(cores: &Cores, config: &TargetConfig, round: u64) {
        let threads = Threads::start().unwrap();
        let (seams, keys) = (process::seams(cores), Keyring::default());
        let opened = target::open(&seams, config, "stria", &threads, 64 << 20, &keys).await.unwrap();
        let OpenTarget::Ost(ost) = opened else { panic!("it is an OST") };
        let ask = async |request, data| {
            let call = Call::plain(ClientId(1), Slot(0), Xid(1), Request::Ost(request), data);
            let answer = ost.clone().handle(call).await;
            (answer.reply.unwrap(), answer.bulk)
        };
        for (number, bytes) in SIZES.into_iter().enumerate() {
            let data = Bytes::from(vec![round as u8 + 1; bytes]);
            let (object, owner) = (object(round, number), Owner::default());
            let checksums = checksums(0, &data);
            let write = Write { object, offset: 0, checksums, sync: false, layout_generation: 0, owner };
            ask(OstRequest::Write(write), data).await;
        }
        for (before, (number, bytes)) in
            (0..=round).flat_map(|round| SIZES.into_iter().enumerate().map(move |one| (round, one)))
        {
            let read = Read { object: object(before, number), offset: 0, bytes: bytes as u32, layout_generation: 0 };
            let (reply, data) = ask(OstRequest::Read(read), Bytes::new()).await;
            assert!(matches!(reply, Reply::Ost(OstReply::Read(_))));
            assert!(data.len() == bytes && data.iter().all(|byte| *byte == before as u8 + 1), "{before} {number}");
        }
        assert_eq!(ost.check_device(), Ok(Vec::new()));
        ost.stop().await.unwrap();
    }

    /// What `stria inspect` says of it, and of its map, and the damage it finds.
    fn inspect(cores: &Cores, path: &Path) -> (String, u64) {
        let mut output = Vec::new();
        let mut report = InspectionReport::new(&mut output, false, false, None);
        cores.block_on(inspected::inspect(path, &mut report)).unwrap();
        cores.block_on(map::inspect(path, &map::Drawings::default(), &mut report)).unwrap();
        let damage = report.finish().unwrap();
        (String::from_utf8(output).unwrap(), damage)
    }

    #[test]
    fn a_target_without_a_directory_is_served_and_inspected() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ost");
        let config = TargetConfig { role: Role::Ost, index: 3, dir: path.clone(), on_device: true };
        let storage = OneDeviceStorage { size: Some(256 << 20), ..OneDeviceStorage::default() };
        one_device::format(&config, &storage, "stria", &Key::random(&SystemEntropy), None).unwrap();
        for round in 0..3 {
            let cores = Cores::start(1).unwrap();
            cores.block_on(serve(&cores, &config, round));
            cores.shutdown();
        }
        let cores = Cores::start(1).unwrap();
        let before = std::fs::read(&path).unwrap();
        let (found, damage) = inspect(&cores, &path);
        for expected in [
            "stria-OST0003 of file system 'stria'",
            "segments of 1048576 bytes",
            "cold store: batches",
            "objects: 12 entries",
            "65536 blocks of 4 KiB",
        ] {
            assert!(found.contains(expected), "{expected}: {found}");
        }
        assert_eq!(damage, 0, "{found}");
        assert!(std::fs::read(&path).unwrap() == before, "nothing was changed");
        // The first node of the tree: after 16 segments of 1 MiB, aligned to 4 MiB.
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        for number in 1..20u64 {
            file.write_all_at(&[0xff; 100], (20 << 20) + number * (16 << 10) + 1000).unwrap();
        }
        let (found, damage) = inspect(&cores, &path);
        assert!(damage > 0 && found.contains("of the tables' tree is damaged"), "{found}");
        cores.shutdown();
    }
}
