//! The rows of `stria lab predict`: the same calls of the client library, live and in virtual time.

use std::sync::Arc;

use client::{FileSystem, NewNode, OpenFile, WriteOptions};
use layout::StripeCount;
use rpc::message::mdt::{OpenFlags, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind};

use crate::{model::spindle::zeros, study::Striping};

const MIB: u64 = 1 << 20;
const SMALL_BYTES: u64 = 4096;
/// A file that is closed: its size is known to the MDT, which a stat asks alone.
const CLOSED: &[u8] = b"closed";
const FLAGS: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);
/// Streams of the rows with several, each with a file of its own.
pub const STREAMS: u16 = 4;

/// One kind of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Attributes of a file, asked of the MDT.
    Stat,
    /// A file is made and closed.
    Create,
    /// A file is removed.
    Remove,
    /// 1 MiB after the other.
    Write,
    /// 1 MiB after the other, of what was written.
    Read,
    /// 4 KiB somewhere in what was written.
    ReadSmall,
}

/// A row: calls, and how many streams of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What is called.
    pub calls: Calls,
    /// Streams.
    pub streams: u16,
    /// A cost was derived from this very row: it is not counted.
    pub is_calibrated: bool,
}

const fn row(calls: Calls, streams: u16) -> Row {
    Row { calls, streams, is_calibrated: false }
}

/// All rows, in the order in which they run: each finds what those before have left.
pub const ROWS: [Row; 9] = [
    Row { calls: Calls::Stat, streams: 1, is_calibrated: true },
    row(Calls::Create, 1),
    row(Calls::Remove, 1),
    // Another row of the calibration: a call of 1 MiB.
    Row { calls: Calls::Write, streams: 1, is_calibrated: true },
    row(Calls::Read, 1),
    row(Calls::ReadSmall, 1),
    row(Calls::Write, STREAMS),
    row(Calls::Read, STREAMS),
    row(Calls::ReadSmall, STREAMS),
];

impl Row {
    /// Its name in the table.
    pub fn name(self) -> String {
        let calls = match self.calls {
            Calls::Stat => "stat",
            Calls::Create => "create and close",
            Calls::Remove => "remove",
            Calls::Write => "write 1 MiB",
            Calls::Read => "read 1 MiB",
            Calls::ReadSmall => "read 4 KiB at random",
        };
        match self.streams {
            1 => calls.to_owned(),
            streams => format!("{calls}, {streams} streams"),
        }
    }

    /// Whether its error counts in the mean that has a bound: sequential and metadata rows.
    pub fn is_counted(self) -> bool {
        !self.is_calibrated && self.calls != Calls::ReadSmall
    }

    /// Calls of each stream in a block.
    pub fn count(self, scale: u64) -> u64 {
        let full = match self.calls {
            Calls::Stat | Calls::ReadSmall => 2000,
            Calls::Create | Calls::Remove => 500,
            Calls::Write | Calls::Read => 64,
        };
        (full / scale.max(1)).max(4)
    }
}

/// What the rows work on.
#[derive(Clone)]
pub struct Subject {
    file_system: Arc<FileSystem>,
    credentials: Credentials,
    /// One for each stream.
    files: Vec<Arc<OpenFile>>,
    /// Bytes of each.
    file_bytes: u64,
}

impl Subject {
    /// Makes the files, which `round` distinguishes from those of others. Each is on one OST. Round
    /// 0 also makes the file that stats ask for.
    pub async fn new(file_system: Arc<FileSystem>, round: u32, scale: u64) -> FsResult<Self> {
        let credentials = Credentials::root();
        // Every stat is a request.
        file_system.set_cached_locks_max(MdtIndex(0), 0)?;
        let mut files = Vec::new();
        for stream in 0..STREAMS {
            let node = NewNode {
                parent: InodeNumber::ROOT,
                name: format!("stream.{round}.{stream}").into_bytes(),
                kind: NodeKind::Regular,
                mode: 0o600,
                umask: 0,
                layout: Some(Striping::plain(StripeCount::Exactly(1), MIB).spec()),
            };
            let made = file_system.create(&credentials, node).await?;
            files.push(file_system.open(&credentials, made.inode, FLAGS).await?);
        }
        if round == 0 {
            let made = file_system.create_open(&credentials, InodeNumber::ROOT, CLOSED, 0o600, 0, FLAGS).await?;
            file_system.close(made.file, None).await?;
        }
        let file_bytes = row(Calls::Write, 1).count(scale) * MIB;
        Ok(Self { file_system, credentials, files, file_bytes })
    }

    /// Closes and removes the files.
    pub async fn remove(self, round: u32) -> FsResult<()> {
        for (stream, file) in self.files.into_iter().enumerate() {
            self.file_system.close(file, None).await?;
            let name = format!("stream.{round}.{stream}");
            self.file_system.unlink(&self.credentials, InodeNumber::ROOT, name.as_bytes()).await?;
        }
        if round == 0 {
            self.file_system.unlink(&self.credentials, InodeNumber::ROOT, CLOSED).await?;
        }
        Ok(())
    }

    /// One call of a stream.
    pub async fn call(&self, calls: Calls, stream: u16, number: u64) -> FsResult<()> {
        let (file_system, file) = (&self.file_system, &self.files[usize::from(stream)]);
        let name = || format!("file.{stream}.{number}").into_bytes();
        match calls {
            Calls::Stat => {
                file_system.lookup(&self.credentials, InodeNumber::ROOT, CLOSED).await?;
            }
            Calls::Create => {
                let root = InodeNumber::ROOT;
                let made = file_system.create_open(&self.credentials, root, &name(), 0o600, 0, FLAGS).await?;
                file_system.close(made.file, None).await?;
            }
            Calls::Remove => file_system.unlink(&self.credentials, InodeNumber::ROOT, &name()).await?,
            Calls::Write => {
                let data = zeros(MIB as usize);
                let written = file_system.write(file, number * MIB, data, WriteOptions::default()).await?;
                if written as u64 != MIB {
                    return Err(FsError::NoSpace);
                }
            }
            Calls::Read => self.read(file, number * MIB, MIB).await?,
            Calls::ReadSmall => {
                // A prime: far apart.
                let record = number * 7919 % (self.file_bytes / SMALL_BYTES);
                self.read(file, record * SMALL_BYTES, SMALL_BYTES).await?;
            }
        }
        Ok(())
    }

    async fn read(&self, file: &Arc<OpenFile>, offset: u64, bytes: u64) -> FsResult<()> {
        let data = self.file_system.read(file, offset, bytes as usize).await?;
        let found: usize = data.into_pieces().iter().map(bytes::Bytes::len).sum();
        if found as u64 == bytes { Ok(()) } else { Err(FsError::Invalid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_held_out_sequential_and_metadata_rows_are_counted() {
        let counted: Vec<String> = ROWS.into_iter().filter(|row| row.is_counted()).map(Row::name).collect();
        let expected = ["create and close", "remove", "read 1 MiB", "write 1 MiB, 4 streams", "read 1 MiB, 4 streams"];
        assert_eq!(counted, expected);
        // What is removed was made, and what is read was written.
        for (made, used) in [(Calls::Create, Calls::Remove), (Calls::Write, Calls::Read)] {
            assert!(row(made, 1).count(1) >= row(used, 1).count(1));
        }
    }
}
