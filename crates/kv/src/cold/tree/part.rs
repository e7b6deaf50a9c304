//! The tree's part of a device: pages of nodes, and the places of the root.

use std::{io, sync::Arc};

use bytes::Bytes;
use rt::Device;

use super::root::{PLACE_BYTES, PLACES, Root};
use crate::cold::worker::wait;

/// Pages that are written with one request.
const PAGES_MAX: usize = 64;

/// Where a tree is.
#[derive(Clone)]
pub struct TreePart {
    /// The device, for what must not take virtual time: reads, and opening. Operations block the
    /// thread until they are done.
    pub at_once: Arc<dyn Device>,
    /// The same device, for everything else.
    pub device: Arc<dyn Device>,
    /// File of the device.
    pub file: String,
    /// Where the part begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl TreePart {
    /// A page; short if the device ends within it. Blocks.
    pub(super) fn read_page(&self, number: u64, node_bytes: usize) -> io::Result<Bytes> {
        self.read(number.saturating_mul(node_bytes as u64), node_bytes)
    }

    fn read(&self, at: u64, bytes: usize) -> io::Result<Bytes> {
        if at.saturating_add(bytes as u64) > self.bytes {
            return Ok(Bytes::new());
        }
        let (mut buffer, filled) = wait(self.at_once.read(&self.file, self.offset + at, vec![0; bytes]))?;
        buffer.truncate(filled);
        Ok(buffer.into())
    }

    /// The root of the last commit; `None` if there is none. Blocks.
    pub(super) fn read_root(&self) -> io::Result<Option<Root>> {
        let mut found: Option<Root> = None;
        for place in 0..PLACES {
            let bytes = self.read(place * PLACE_BYTES as u64, PLACE_BYTES)?;
            if let Some(root) = Root::decode(&bytes)?
                && found.is_none_or(|found| found.commit < root.commit)
            {
                found = Some(root);
            }
        }
        Ok(found)
    }

    /// Writes pages, in ascending order of their numbers, with as few requests as possible.
    pub(super) async fn write_pages(&self, node_bytes: usize, pages: Vec<(u64, Bytes)>) -> io::Result<()> {
        let mut run: Vec<Bytes> = Vec::new();
        let mut start = 0;
        for (number, page) in pages {
            if !run.is_empty() && (number != start + run.len() as u64 || run.len() == PAGES_MAX) {
                self.write(start * node_bytes as u64, std::mem::take(&mut run)).await?;
            }
            if run.is_empty() {
                start = number;
            }
            run.push(page);
        }
        if run.is_empty() {
            return Ok(());
        }
        self.write(start * node_bytes as u64, run).await
    }

    async fn write(&self, at: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        assert!(at.saturating_add(bytes as u64) <= self.bytes, "the tree keeps to its part of the device");
        self.device.write(&self.file, self.offset + at, pieces).await
    }

    /// Writes a root to its place and makes it durable.
    pub(super) async fn write_root(&self, root: &Root) -> io::Result<()> {
        self.write(Root::place(root.commit), vec![root.encode()]).await?;
        self.flush().await
    }

    /// Makes everything that was written durable.
    pub(super) async fn flush(&self) -> io::Result<()> {
        self.device.flush(&self.file).await
    }
}
