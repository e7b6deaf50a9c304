//! Reading directories.

use std::time::{Duration, Instant};

use client::{DirectoryItem, EntryAttributes, LockSpan};
use types::{Attributes, FileKind, FsError, FsResult};

use super::call::Call;
use super::convert::{dirent_kind, entry_out, open_flags};
use crate::kernel_cache::{Ending, Opening, Validity};
use crate::protocol::directory::DirectoryBuffer;
use crate::protocol::flags::open_reply;
use crate::protocol::reply::{EntryOut, OpenOut};
use crate::protocol::request::{OpenIn, ReadIn};
use crate::session::Answer;

/// Bytes of a name assumed when asking for as many entries as will fit: the most that fit beside
/// the 24 bytes of an entry without a name (rounded up to 8). Names of up to 8 bytes fill the room
/// that the kernel gives; of longer ones, those that no longer fit are asked for again.
const NAME_BYTES_ASSUMED: usize = 8;

/// A page that took longer makes nothing valid: the kernel counts from when it gets it.
const PAGE_TIME_MAX: Duration = Duration::from_millis(100);

/// An answer that ends a directory, and after which the kernel does not take the names that it
/// keeps for all: shorter than an entry.
const SHORT_END: [u8; 8] = [0; 8];

/// OPENDIR. Opening a directory changes no time of it, other than reading it, after which the
/// kernel asks for the access time again by itself.
pub async fn open(call: Call, open: OpenIn) -> FsResult<Answer> {
    let flags = open_flags(open.flags, call.adapter.access_times.kept_of_directories);
    let call = &call;
    let open = |credentials| async move { call.file_system().open(&credentials, call.inode, flags).await };
    let directory = call.caller.run(open).await?;
    Ok(Answer::deciding(|| {
        let looks = call.adapter.walkers.is_shown(call.caller.thread, Instant::now());
        let flags = match call.adapter.kernel.opens_directory(call.file_system(), &directory, looks) {
            None => 0,
            // Without the first flag the kernel would drop what it has.
            Some(Opening::Apart) => open_reply::KEEP_CACHE,
            Some(Opening::Anew) => open_reply::CACHE_DIR,
            Some(Opening::Joined) => open_reply::CACHE_DIR | open_reply::KEEP_CACHE,
        };
        let handle = call.adapter.handles.insert_directory(directory, flags & open_reply::CACHE_DIR != 0);
        Answer::of(&OpenOut { handle, flags, backing: 0 })
    }))
}

/// What READDIRPLUS shows of each entry. The kernel counts a lookup for each, but for `.` and `..`
/// and those of which nothing is shown.
fn lookups(call: &Call, items: &[DirectoryItem], wanted: EntryAttributes) -> Vec<EntryOut> {
    let is_dots = |item: &DirectoryItem| matches!(item.name.as_slice(), b"." | b"..");
    fn shown(item: &DirectoryItem, wanted: EntryAttributes) -> Option<&Attributes> {
        item.attributes.as_ref().filter(|_| wanted.includes(item.kind))
    }
    let found: Vec<(&[u8], &Attributes)> = items
        .iter()
        .filter(|item| !is_dots(item))
        .filter_map(|item| Some((item.name.as_slice(), shown(item, wanted)?)))
        .collect();
    let mut given = call.adapter.kernel.give_page(call.file_system(), call.inode, &found).into_iter();
    let lookup = |item: &DirectoryItem| match shown(item, wanted) {
        Some(attributes) if is_dots(item) => entry_out(attributes, Validity::default()),
        Some(_) => {
            let (attributes, validity) = given.next().expect("as many as were found");
            entry_out(&attributes, validity)
        }
        None => EntryOut::default(),
    };
    items.iter().map(lookup).collect()
}

/// READDIR, and READDIRPLUS with attributes: of files only if the program seems to look at them.
pub async fn read(call: Call, read: ReadIn, plus: bool) -> FsResult<Answer> {
    let (directory, keeps_names) = call.adapter.handles.get_directory(read.handle)?;
    let asked = Instant::now();
    let capacity = read.size as usize;
    let entries_max = (capacity / DirectoryBuffer::entry_bytes(NAME_BYTES_ASSUMED, plus)).max(1) as u32;
    let wanted = match plus {
        false => EntryAttributes::None,
        true if call.adapter.walkers.is_shown(call.caller.thread, asked) => EntryAttributes::OfAll,
        true => EntryAttributes::OfDirectories,
    };
    let page = call.file_system().read_directory(&directory, read.offset, entries_max, wanted).await?;
    let items = &page.items[..count_that_fit(&page.items, capacity, plus)];
    if items.is_empty() && !page.items.is_empty() {
        // An empty answer would mean the end of the directory.
        return Err(FsError::Invalid);
    }
    let files = items.iter().filter(|item| item.kind != FileKind::Directory).count();
    let is_shown = plus && call.adapter.walkers.lists(call.caller.thread, call.inode.0, files, asked);
    let wanted = if is_shown { wanted } else { EntryAttributes::OfDirectories };
    if keeps_names && items.is_empty() {
        return Ok(end(&call, page.span, asked));
    }
    if keeps_names {
        call.adapter.kernel.shows_names(call.inode, page.span, asked);
        if plus && wanted != EntryAttributes::OfAll && files > 0 {
            call.adapter.kernel.shows_bare(call.inode);
        }
    }
    if !plus {
        return Ok(fill(items, None));
    }
    call.adapter.kernel.gives_page();
    let begun = Instant::now();
    let shown = lookups(&call, items, wanted);
    let answer = fill(items, Some(&shown));
    let answer = if begun.elapsed() < PAGE_TIME_MAX {
        answer
    } else {
        // The same once more: the lookups have been counted.
        let shown: Vec<_> = shown.into_iter().map(EntryOut::without_validity).collect();
        fill(items, Some(&shown))
    };
    call.adapter.kernel.gives_page();
    Ok(Answer { decided: Some(begun), ..answer })
}

/// The end of a directory whose names the kernel keeps.
fn end(call: &Call, span: Option<LockSpan>, asked: Instant) -> Answer {
    Answer::deciding(|| match call.adapter.kernel.shows_end(call.inode, span, asked) {
        Ending::Complete | Ending::Dropped => Answer::done(),
        Ending::Short => Answer::bytes(SHORT_END.to_vec()),
    })
}

/// How many of the first items fit into an answer.
fn count_that_fit(items: &[DirectoryItem], capacity: usize, plus: bool) -> usize {
    let ends = items.iter().scan(0, |bytes, item| {
        *bytes += DirectoryBuffer::entry_bytes(item.name.len(), plus);
        Some(*bytes)
    });
    ends.take_while(|end| *end <= capacity).count()
}

/// An answer of items that fit, with what READDIRPLUS shows of each. It takes as much memory as
/// they need: the room that the kernel gives is far larger than most directories.
fn fill(items: &[DirectoryItem], shown: Option<&[EntryOut]>) -> Answer {
    let bytes = items.iter().map(|item| DirectoryBuffer::entry_bytes(item.name.len(), shown.is_some())).sum();
    let mut buffer = DirectoryBuffer::new(bytes);
    for (number, item) in items.iter().enumerate() {
        let lookup = shown.map(|shown| &shown[number]);
        let fits = buffer.push(lookup, item.inode.0, item.cookie, dirent_kind(item.kind), &item.name);
        assert!(fits, "the items were counted by their bytes");
    }
    Answer::bytes(buffer.finish())
}
