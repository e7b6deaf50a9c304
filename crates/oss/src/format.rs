//! Making a target.

use bytes::Bytes;
use kv::Batch;
use rt::Seams;
use types::{OstIndex, limits::FSNAME_BYTES_MAX};

use crate::{
    directory::device::format_device,
    superblock::{CLEAN_KEY, Engine, SUPERBLOCK_KEY, Superblock},
    tables::META,
    target::{OpenError, Ost, OstDevices, open_tables},
};

impl Ost {
    /// Makes a new target on empty devices, with host files for its objects.
    pub async fn format(
        seams: &Seams,
        devices: &OstDevices,
        fsname: &str,
        index: OstIndex,
        config: kv::Config,
    ) -> Result<Superblock, OpenError> {
        Self::format_with(seams, devices, fsname, index, Engine::Directory, config).await
    }

    /// As [`Ost::format`]; the engine says where the data of objects will be. A device
    /// ([`DEVICE_FILE`] among the objects' files) has been made, and has its length.
    pub async fn format_with(
        seams: &Seams,
        devices: &OstDevices,
        fsname: &str,
        index: OstIndex,
        engine: Engine,
        config: kv::Config,
    ) -> Result<Superblock, OpenError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if fsname.is_empty() || fsname.len() > FSNAME_BYTES_MAX || !fsname.bytes().all(good) {
            return Err(OpenError::FsName(fsname.to_owned()));
        }
        let kv = open_tables(seams, devices, config).await?;
        if let Some(bytes) = kv.get(META, SUPERBLOCK_KEY)? {
            kv.close().await?;
            return Err(OpenError::AlreadyFormatted(Superblock::decode(&bytes)?.target()));
        }
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&seams.entropy.next_u64().to_le_bytes());
        identity[8..].copy_from_slice(&seams.entropy.next_u64().to_le_bytes());
        let superblock = Superblock { index, identity, fsname: fsname.to_owned(), engine };
        let mut batch = match engine {
            Engine::Directory => Batch::default(),
            Engine::Blocks { blocks, .. } => match format_device(&*devices.objects, &superblock, blocks).await {
                Ok(batch) => batch,
                Err(error) => {
                    kv.close().await?;
                    return Err(OpenError::Device(error.to_string()));
                }
            },
        };
        batch.put(META, Bytes::from_static(SUPERBLOCK_KEY), superblock.encode());
        batch.put(META, Bytes::from_static(CLEAN_KEY), Bytes::new());
        kv.durable(kv.apply(batch)?).await?;
        kv.close().await?;
        Ok(superblock)
    }
}
