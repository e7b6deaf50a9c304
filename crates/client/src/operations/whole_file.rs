//! Whole small files in one request, if their layout has them on the MDT: for programs that use
//! this client directly and treat a file as a value that is created once and read as a whole. If
//! the data are elsewhere, the usual requests follow.
//!
//! A mount cannot use them: another client could change the data returned with an open before the
//! kernel asks for them.

use std::sync::Arc;

use bytes::Bytes;
use rpc::{
    Answered, Question, checksum,
    message::{
        MdtReply, MdtRequest,
        mdt::{CreateWithData, FileRead, OpenFlags, ReadFile, open_flag},
    },
};
use types::{Attributes, Credentials, FsError, FsResult, InodeNumber, ProtocolError};

use crate::{FileSystem, NewFile, ReadData, WriteOptions, statistics::Operation, targets::connection::unexpected};

/// The largest number of bytes sent with a creation, or requested with an open, before it is known
/// that they are on the MDT.
pub const WHOLE_FILE_BYTES_MAX: usize = 64 * 1024;
/// How often data that arrive damaged are requested again.
const ATTEMPTS: usize = 4;

impl FileSystem {
    /// Creates a regular file with these contents; the name must not exist. Up to
    /// [`WHOLE_FILE_BYTES_MAX`] bytes on the MDT it is there whole or not at all, whatever fails.
    /// Else it is created, written and closed, and removed again if that fails.
    pub async fn create_with_data(
        self: &Arc<Self>,
        credentials: &Credentials,
        file: NewFile,
        data: Bytes,
    ) -> FsResult<Attributes> {
        if data.len() <= WHOLE_FILE_BYTES_MAX {
            match self.create_on_mdt(credentials, &file, &data).await {
                Err(FsError::NotSupported) => {}
                outcome => return outcome,
            }
        }
        self.create_and_write(credentials, file, data).await
    }

    async fn create_on_mdt(&self, credentials: &Credentials, file: &NewFile, data: &Bytes) -> FsResult<Attributes> {
        let NewFile { parent, name, mode, umask } = file.clone();
        let checksums = checksum::checksums(0, data);
        let create = CreateWithData { parent, name, mode, umask, checksums };
        let request = MdtRequest::CreateWithData(credentials.clone(), create);
        let mut outcome = Err(FsError::Transfer);
        for _ in 0..ATTEMPTS {
            outcome = loop {
                let answered = self.call(parent, Question::with_bulk(request.clone(), data.clone())).await;
                match answered.map(|answered| answered.reply) {
                    Ok(MdtReply::Waiting) => {}
                    Ok(MdtReply::Created(created)) => break Ok(created.entry.attributes),
                    Ok(reply) => break Err(unexpected(reply)),
                    Err(error) => break Err(error),
                }
            };
            if outcome != Err(FsError::Transfer) {
                break;
            }
        }
        if outcome.is_ok() {
            self.count(Operation::Mknod);
            self.statistics.count_bytes(Operation::WriteBytes, data.len());
        }
        outcome
    }

    async fn create_and_write(
        self: &Arc<Self>,
        credentials: &Credentials,
        file: NewFile,
        data: Bytes,
    ) -> FsResult<Attributes> {
        let NewFile { parent, name, mode, umask } = file;
        let flags = OpenFlags(open_flag::WRITE | open_flag::EXCLUSIVE);
        let created = self.create_open(credentials, parent, &name, mode, umask, flags).await?;
        let inode = created.attributes.inode;
        let outcome = self.write_all(&created.file, data).await;
        let closed = self.close(created.file, None).await;
        match outcome.and(closed) {
            Ok(()) => self.get_attributes(inode, None).await,
            Err(error) => {
                if let Err(left) = self.unlink(credentials, parent, &name).await {
                    tracing::warn!(%inode, error = %left, "cannot remove a file that could not be written");
                }
                Err(error)
            }
        }
    }

    async fn write_all(self: &Arc<Self>, file: &Arc<crate::OpenFile>, mut data: Bytes) -> FsResult<()> {
        let mut offset = 0;
        while !data.is_empty() {
            let written = self.write(file, offset, data.clone(), WriteOptions::default()).await?;
            let _ = data.split_to(written);
            offset += written as u64;
        }
        Ok(())
    }

    /// Attributes and all data of a file: `name` in the directory `inode`, or `inode` itself.
    /// `FileTooLarge` if it has more than `bytes_max` bytes.
    pub async fn open_and_read(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        name: Option<&[u8]>,
        bytes_max: usize,
    ) -> FsResult<(Attributes, ReadData)> {
        let entry = match self.read_on_mdt(credentials, inode, name, bytes_max.min(WHOLE_FILE_BYTES_MAX)).await? {
            (entry, Some(data)) => {
                self.count(Operation::Open);
                self.statistics.count_bytes(Operation::ReadBytes, data.len());
                return Ok((entry, data));
            }
            (entry, None) => entry,
        };
        let file = self.open(credentials, entry.inode, OpenFlags(open_flag::READ)).await?;
        let outcome = self.read(&file, 0, bytes_max.saturating_add(1)).await;
        let attributes = self.get_attributes(entry.inode, Some(&file)).await;
        self.close(file, None).await?;
        match outcome? {
            data if data.len() > bytes_max => Err(FsError::FileTooLarge),
            data => Ok((attributes?, data)),
        }
    }

    async fn read_on_mdt(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        name: Option<&[u8]>,
        bytes_max: usize,
    ) -> FsResult<(Attributes, Option<ReadData>)> {
        let read = ReadFile { inode, name: name.map(<[u8]>::to_vec), bytes_max: bytes_max as u32 };
        for _ in 0..ATTEMPTS {
            let request = MdtRequest::ReadFile(credentials.clone(), read.clone());
            let Answered { reply, bulk, .. } = self.call(inode, request).await?;
            let FileRead { entry, checksums } = match reply {
                MdtReply::File(file) => file,
                reply => return Err(unexpected(reply)),
            };
            let Some(checksums) = checksums else { return Ok((entry.attributes, None)) };
            let (found, expected) = (bulk.len() as u64, entry.attributes.size);
            if found != expected {
                return Err(ProtocolError::DataBytes { found, expected }.into());
            }
            match checksum::verify(0, &bulk, &checksums) {
                Ok(()) => {
                    let mut data = ReadData::default();
                    data.push(bulk);
                    return Ok((entry.attributes, Some(data)));
                }
                Err(FsError::Transfer) => tracing::warn!(inode = %entry.attributes.inode, "data arrived damaged"),
                Err(error) => return Err(error),
            }
        }
        Err(FsError::Transfer)
    }
}
