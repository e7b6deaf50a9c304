//! Reading directories.

use std::time::{Duration, Instant};

use client::DirectoryItem;
use rpc::message::mdt::open_flag;
use types::{FsError, FsResult};

use super::Call;
use super::convert::{dirent_kind, entry_out, open_flags};
use crate::kernel_cache::{Shown, Validity};
use crate::protocol::directory::DirectoryBuffer;
use crate::protocol::reply::{EntryOut, OpenOut};
use crate::protocol::request::{OpenIn, ReadIn};
use crate::session::Answer;

/// Bytes of a name assumed when asking for as many entries as will fit: the most that fit beside the
/// 24 bytes of an entry without a name (rounded up to 8). Names of up to 8 bytes fill the room that
/// the kernel gives; of longer ones, those that no longer fit are asked for again.
const NAME_BYTES_ASSUMED: usize = 8;

/// A page that took longer makes nothing valid: the kernel counts from when it gets it.
const PAGE_TIME_MAX: Duration = Duration::from_millis(100);

/// OPENDIR. Entries are not cached by the kernel.
pub async fn open(call: Call, open: OpenIn) -> FsResult<Answer> {
    let flags = open_flags(open.flags, call.adapter.access_times.kept_of_directories);
    let call = &call;
    let open = |credentials| async move { call.file_system().open(&credentials, call.inode, flags).await };
    let before = call.adapter.kernel.opens(call.file_system(), call.inode);
    let directory = call.caller.run(open).await?;
    if !flags.has(open_flag::NO_ACCESS_TIME) {
        call.adapter.kernel.opened(call.file_system(), call.inode, before);
    }
    Ok(Answer::of(&OpenOut { handle: call.adapter.handles.insert(directory), flags: 0, backing: 0 }))
}

/// What READDIRPLUS shows of an entry. The kernel counts a lookup for each, but for `.` and `..` and
/// those of which nothing is shown.
fn lookup(call: &Call, item: &DirectoryItem) -> EntryOut {
    let Some(attributes) = &item.attributes else { return EntryOut::default() };
    if matches!(item.name.as_slice(), b"." | b"..") {
        return entry_out(attributes, Validity::default());
    }
    call.entry(attributes, Shown::Found(call.inode, &item.name))
}

/// READDIR, and READDIRPLUS with attributes.
pub async fn read(call: Call, read: ReadIn, plus: bool) -> FsResult<Answer> {
    let directory = call.adapter.handles.get(read.handle)?;
    let capacity = read.size as usize;
    let entries_max = (capacity / DirectoryBuffer::entry_bytes(NAME_BYTES_ASSUMED, plus)).max(1) as u32;
    let page = call.file_system().read_directory(&directory, read.offset, entries_max, plus).await?;
    if !plus {
        return fill(&page.items, capacity, plus, |_, _| EntryOut::default());
    }
    call.adapter.kernel.gives_page();
    let begun = Instant::now();
    let mut shown = Vec::with_capacity(page.items.len());
    let answer = fill(&page.items, capacity, plus, |item, fits| {
        let entry = if fits { lookup(&call, item) } else { EntryOut::default() };
        shown.push(entry);
        entry
    });
    let answer = if begun.elapsed() < PAGE_TIME_MAX {
        answer
    } else {
        // The same once more: the lookups have been counted.
        let mut shown = shown.into_iter();
        fill(&page.items, capacity, plus, |_, _| shown.next().map(EntryOut::without_validity).unwrap_or_default())
    };
    call.adapter.kernel.gives_page();
    answer.map(|answer| Answer { decided: Some(begun), ..answer })
}

/// A page of as many items as fit. `show`: what READDIRPLUS shows of one, and whether it fits.
fn fill(
    items: &[DirectoryItem],
    capacity: usize,
    plus: bool,
    mut show: impl FnMut(&DirectoryItem, bool) -> EntryOut,
) -> FsResult<Answer> {
    let mut buffer = DirectoryBuffer::new(capacity);
    for (number, item) in items.iter().enumerate() {
        let fits = buffer.has_room_for(item.name.len(), plus);
        let lookup = plus.then(|| show(item, fits));
        if !buffer.push(lookup.as_ref(), item.inode.0, item.cookie, dirent_kind(item.kind), &item.name) {
            if number == 0 {
                // An empty answer would mean the end of the directory.
                return Err(FsError::Invalid);
            }
            break;
        }
    }
    Ok(Answer::bytes(buffer.finish()))
}
