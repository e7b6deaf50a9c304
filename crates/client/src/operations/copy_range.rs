//! copy_file_range(2): through this client, in large pieces.

use std::sync::Arc;

use types::{FsError, FsResult};

use crate::{FileSystem, OpenFile, WriteOptions};

/// Bytes read and written at once.
const COPY_BYTES: u64 = 16 << 20;

impl FileSystem {
    /// copy_file_range(2): returns the bytes copied, fewer than asked for at the end of `from` or
    /// before an error. Ranges that overlap within one file are `Invalid`. Holes are copied as
    /// zeros.
    pub async fn copy_range(
        self: &Arc<Self>,
        from: (&Arc<OpenFile>, u64),
        to: (&Arc<OpenFile>, u64),
        bytes: u64,
        options: WriteOptions,
    ) -> FsResult<u64> {
        let ((source, source_offset), (sink, sink_offset)) = (from, to);
        let apart = source_offset.abs_diff(sink_offset) >= bytes;
        if source.inode() == sink.inode() && !apart {
            return Err(FsError::Invalid);
        }
        source.check_readable()?;
        sink.check_writable()?;
        let mut copied = 0;
        while copied < bytes {
            let wanted = (bytes - copied).min(COPY_BYTES);
            match self.copy_piece((source, source_offset + copied), (sink, sink_offset + copied), wanted, options).await
            {
                Ok(piece) => {
                    assert!(piece <= wanted, "no more is copied than was asked for");
                    copied += piece;
                    if piece < wanted {
                        break;
                    }
                }
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(copied)
    }

    async fn copy_piece(
        self: &Arc<Self>,
        (source, source_offset): (&Arc<OpenFile>, u64),
        (sink, sink_offset): (&Arc<OpenFile>, u64),
        bytes: u64,
        options: WriteOptions,
    ) -> FsResult<u64> {
        let data = self.read(source, source_offset, bytes as usize).await?.into_bytes();
        Ok(self.write(sink, sink_offset, data, options).await? as u64)
    }
}
