//! fjall's journals and the kernel's page cache: data that a failed sync left there look written
//! and are marked as clean, and no later sync writes them. So when fjall is opened, the contents of
//! its journals are written again, in place, as a store does with its own journal: then the next
//! sync covers them, or fails.
//!
//! Tables do not need this: fjall does not use a table whose sync failed. Nor do journals that it
//! makes when it is opened: nothing was written to them yet, and they are holes of 64 MiB.
//!
//! Downside: journals of up to 64 MiB are read and written at each opening. A host file system that
//! never writes in place may have no space for it on a full device: then this is logged, and the
//! journals are trusted.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::error::is_no_space;

/// fjall begins another journal, and removes the one before, when one is larger than this; nothing
/// makes it do so earlier.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Copied in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Space that the journals in a directory may take besides what they have: what is written stays in
/// them, although tables have it too, until the next one begins.
pub(super) fn growth_bytes(directory: &Path) -> io::Result<u64> {
    let mut taken = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path().extension() == Some(OsStr::new("jnl")) {
            // Their lengths say nothing: they are sparse. One may go meanwhile.
            taken += entry.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        }
    }
    Ok(JOURNAL_BYTES.saturating_sub(taken))
}

/// Journals in the directory of a database that is to be opened; none if it is to be created.
pub(super) fn found_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension() == Some(OsStr::new("jnl")));
    Ok(paths)
}

/// Writes journals of an open database again, and syncs them. Others may append meanwhile, and
/// remove journals.
pub(super) fn write_again(journals: &[PathBuf]) -> io::Result<()> {
    let mut piece = Vec::new();
    for path in journals {
        let file = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        piece.resize(PIECE_BYTES, 0);
        match write_file_again(&file, &mut piece) {
            Err(error) if is_no_space(&error) => {
                tracing::warn!(path = %path.display(), %error, "cannot rewrite a journal of the cold store");
            }
            written => written?,
        }
    }
    Ok(())
}

fn write_file_again(file: &File, piece: &mut [u8]) -> io::Result<()> {
    let mut offset = 0;
    loop {
        let count = file.read_at(piece, offset)?;
        if count == 0 {
            return file.sync_all();
        }
        file.write_all_at(&piece[..count], offset)?;
        offset += count as u64;
    }
}
