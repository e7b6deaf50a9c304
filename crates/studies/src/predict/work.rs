//! The rows of `stria lab predict`: the same calls of the client library, live and in virtual time.

use std::{collections::BTreeMap, sync::Arc};

use client::{FileSystem, NewNode, OpenFile, WriteOptions};
use layout::StripeCount;
use rpc::message::mdt::{OpenFlags, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind};

use crate::{model::spindle::zeros, study::Striping};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SMALL_BYTES: u64 = 4096;
/// Bytes of each stream's file: few enough that the host's memory takes what all streams write.
const FILE_BYTES: u64 = 16 * MIB;
const MDT: MdtIndex = MdtIndex(0);
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
    /// So many bytes after the other, from the beginning of a new file.
    Write(u64),
    /// So many bytes after the other, of what as many streams have written so.
    Read(u64),
    /// 4 KiB somewhere in what as many streams have written 1 MiB after the other.
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

/// A row of the calibration.
const fn calibrated(calls: Calls) -> Row {
    Row { calls, streams: 1, is_calibrated: true }
}

/// All rows, in the order in which they run: each finds what those before have left.
pub const ROWS: [Row; 20] = [
    calibrated(Calls::Stat),
    row(Calls::Create, 1),
    row(Calls::Remove, 1),
    row(Calls::Stat, STREAMS),
    row(Calls::Create, STREAMS),
    row(Calls::Remove, STREAMS),
    row(Calls::Write(64 * KIB), 1),
    row(Calls::Read(64 * KIB), 1),
    row(Calls::Write(256 * KIB), 1),
    row(Calls::Read(256 * KIB), 1),
    calibrated(Calls::Write(MIB)),
    calibrated(Calls::Read(MIB)),
    row(Calls::ReadSmall, 1),
    row(Calls::Write(64 * KIB), STREAMS),
    row(Calls::Read(64 * KIB), STREAMS),
    row(Calls::Write(256 * KIB), STREAMS),
    row(Calls::Read(256 * KIB), STREAMS),
    row(Calls::Write(MIB), STREAMS),
    row(Calls::Read(MIB), STREAMS),
    row(Calls::ReadSmall, STREAMS),
];

impl Calls {
    /// Bytes of the calls by which the file was written that these work on, if there is one.
    fn written_by(self) -> Option<u64> {
        match self {
            Calls::Stat | Calls::Create | Calls::Remove => None,
            Calls::Write(bytes) | Calls::Read(bytes) => Some(bytes),
            Calls::ReadSmall => Some(MIB),
        }
    }
}

impl Row {
    /// Its name in the table.
    pub fn name(self) -> String {
        let size = |bytes: u64| match bytes {
            MIB.. => format!("{} MiB", bytes / MIB),
            _ => format!("{} KiB", bytes / KIB),
        };
        let calls = match self.calls {
            Calls::Stat => "stat".to_owned(),
            Calls::Create => "create and close".to_owned(),
            Calls::Remove => "remove".to_owned(),
            Calls::Write(bytes) => format!("write {}", size(bytes)),
            Calls::Read(bytes) => format!("read {}", size(bytes)),
            Calls::ReadSmall => "read 4 KiB at random".to_owned(),
        };
        match self.streams {
            1 => calls,
            streams => format!("{calls}, {streams} streams"),
        }
    }

    /// Whether its error counts in the mean that has a bound: sequential and metadata rows.
    pub fn is_counted(self) -> bool {
        !self.is_calibrated && self.calls != Calls::ReadSmall
    }

    /// Whether it leaves data that are not durable.
    pub fn writes(self) -> bool {
        matches!(self.calls, Calls::Write(_))
    }

    /// Calls of each stream in a block.
    pub fn count(self, scale: u64) -> u64 {
        let full = match self.calls {
            Calls::Stat | Calls::ReadSmall => 2000,
            Calls::Create | Calls::Remove => 500,
            Calls::Write(bytes) | Calls::Read(bytes) => FILE_BYTES / bytes,
        };
        (full / scale.max(1)).max(4)
    }
}

/// Files that one row writes, and others read: bytes of a write, and streams.
type Written = (u64, u16);

/// What the rows work on.
#[derive(Clone)]
pub struct Subject {
    file_system: Arc<FileSystem>,
    credentials: Credentials,
    round: u32,
    scale: u64,
    /// Locks that the client caches at most, unless a row is to ask for everything.
    locks_max: usize,
    /// One for each stream.
    files: BTreeMap<Written, Vec<Arc<OpenFile>>>,
}

fn name_of((bytes, streams): Written, round: u32, stream: u16) -> Vec<u8> {
    format!("stream.{round}.{bytes}.{streams}.{stream}").into_bytes()
}

impl Subject {
    /// Makes the files, which `round` distinguishes from those of others. Each is on one OST. Round
    /// 0 also makes the file that stats ask for.
    pub async fn new(file_system: Arc<FileSystem>, round: u32, scale: u64) -> FsResult<Self> {
        let credentials = Credentials::root();
        let locks_max = file_system.cached_locks(MDT).map_or(0, |(_, most)| most);
        let mut files = BTreeMap::new();
        for row in ROWS.into_iter().filter(|row| row.writes()) {
            let Some(bytes) = row.calls.written_by() else { continue };
            let written = (bytes, row.streams);
            let mut of_streams = Vec::new();
            for stream in 0..row.streams {
                let node = NewNode {
                    parent: InodeNumber::ROOT,
                    name: name_of(written, round, stream),
                    kind: NodeKind::Regular,
                    mode: 0o600,
                    umask: 0,
                    layout: Some(Striping::plain(StripeCount::Exactly(1), MIB).spec()),
                };
                let made = file_system.create(&credentials, node).await?;
                of_streams.push(file_system.open(&credentials, made.inode, FLAGS).await?);
            }
            files.insert(written, of_streams);
        }
        if round == 0 {
            let made = file_system.create_open(&credentials, InodeNumber::ROOT, CLOSED, 0o600, 0, FLAGS).await?;
            file_system.close(made.file, None).await?;
        }
        Ok(Self { file_system, credentials, round, scale, locks_max, files })
    }

    /// Closes and removes the files.
    pub async fn remove(self) -> FsResult<()> {
        for (written, files) in self.files {
            for (stream, file) in (0..).zip(files) {
                self.file_system.close(file, None).await?;
                let name = name_of(written, self.round, stream);
                self.file_system.unlink(&self.credentials, InodeNumber::ROOT, &name).await?;
            }
        }
        if self.round == 0 {
            self.file_system.unlink(&self.credentials, InodeNumber::ROOT, CLOSED).await?;
        }
        Ok(())
    }

    /// Before a row: every stat is a request, but without locks every write would be two, because
    /// the MDT would be asked whether the file has capabilities.
    pub fn begin(&self, row: Row) -> FsResult<()> {
        let locks_max = if row.calls.written_by().is_none() { 0 } else { self.locks_max };
        self.file_system.set_cached_locks_max(MDT, locks_max)
    }

    /// Makes durable what a row has written, so that nothing of it is left to those after it.
    pub async fn settle(&self, row: Row) -> FsResult<()> {
        if row.writes() {
            for stream in 0..row.streams {
                self.file_system.fsync(self.file(row, stream)?, false).await?;
            }
        }
        Ok(())
    }

    fn file(&self, row: Row, stream: u16) -> FsResult<&Arc<OpenFile>> {
        let files = row.calls.written_by().and_then(|bytes| self.files.get(&(bytes, row.streams)));
        files.and_then(|files| files.get(usize::from(stream))).ok_or(FsError::Invalid)
    }

    /// One call of a stream of a row.
    pub async fn call(&self, row: Row, stream: u16, number: u64) -> FsResult<()> {
        let file_system = &self.file_system;
        let name = || format!("file.{stream}.{number}").into_bytes();
        match row.calls {
            Calls::Stat => {
                file_system.lookup(&self.credentials, InodeNumber::ROOT, CLOSED).await?;
            }
            Calls::Create => {
                let root = InodeNumber::ROOT;
                let made = file_system.create_open(&self.credentials, root, &name(), 0o600, 0, FLAGS).await?;
                file_system.close(made.file, None).await?;
            }
            Calls::Remove => file_system.unlink(&self.credentials, InodeNumber::ROOT, &name()).await?,
            Calls::Write(bytes) => {
                let (data, file) = (zeros(bytes as usize), self.file(row, stream)?);
                let written = file_system.write(file, number * bytes, data, WriteOptions::default()).await?;
                if written as u64 != bytes {
                    return Err(FsError::NoSpace);
                }
            }
            Calls::Read(bytes) => self.read(self.file(row, stream)?, number * bytes, bytes).await?,
            Calls::ReadSmall => {
                let file_bytes = Row { calls: Calls::Write(MIB), ..row }.count(self.scale) * MIB;
                // A prime: far apart.
                let record = number * 7919 % (file_bytes / SMALL_BYTES);
                self.read(self.file(row, stream)?, record * SMALL_BYTES, SMALL_BYTES).await?;
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
        let (counted, others): (Vec<Row>, Vec<Row>) = ROWS.into_iter().partition(|row| row.is_counted());
        let names: Vec<String> = others.into_iter().map(Row::name).collect();
        let small = "read 4 KiB at random";
        assert_eq!(names, ["stat", "write 1 MiB", "read 1 MiB", small, &format!("{small}, 4 streams")]);
        assert_eq!(counted.len(), 15);
        assert_eq!(counted[5].name(), "write 64 KiB");
    }

    #[test]
    fn what_is_read_or_removed_was_made_before() {
        for (number, row) in ROWS.into_iter().enumerate() {
            let maker = match row.calls {
                Calls::Stat | Calls::Create | Calls::Write(_) => continue,
                Calls::Remove => Calls::Create,
                Calls::Read(bytes) => Calls::Write(bytes),
                Calls::ReadSmall => Calls::Write(MIB),
            };
            let made = ROWS[..number].iter().find(|made| made.calls == maker && made.streams == row.streams);
            let made = made.unwrap_or_else(|| panic!("{} needs another row before it", row.name()));
            assert!(row.calls == Calls::ReadSmall || made.count(7) == row.count(7), "{}", row.name());
        }
    }
}
