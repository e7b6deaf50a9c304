//! Open: permission, kind, the write epoch, and O_TRUNC.

use layout::{
    automatic::{self, BEGINNING_BYTES},
    cost::Hardware,
    migration::{self, Comparison},
};
use rpc::message::{
    MdtReply,
    mdt::{Open, OpenFlags, OpenId, Opened, open_flag},
};
use types::{Credentials, FileKind, FsError, FsResult, permission};

use super::{attributes, exclusive};
use crate::{
    known_size,
    opens::{OpenFile, OpenKey},
    protection,
    tables::inode::Inode,
    transaction::Transaction,
};

/// Outcome of an attempt to open.
pub(crate) enum Opening {
    /// It is open.
    Opened(Box<Opened>),
    /// O_TRUNC must wait for the exclusive data lock, a writer for the end of an open that holds
    /// writers off, or everybody for the layout.
    Waiting,
}

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Open) -> FsResult<MdtReply> {
    let inode = txn.inode(request.inode)?;
    let flags = OpenFlags(request.flags.0 & !open_flag::UNREGISTERED);
    match open_inode(txn, who, inode, request.open, flags)? {
        Opening::Opened(opened) => Ok(MdtReply::Opened(opened)),
        Opening::Waiting => Ok(MdtReply::Waiting),
    }
}

/// Opens an inode that exists.
pub(crate) fn open_inode(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    mut inode: Inode,
    open: OpenId,
    flags: OpenFlags,
) -> FsResult<Opening> {
    check_kind(&inode, flags)?;
    txn.require(who, &inode, wanted(flags))?;
    protection::check_open(&inode.attributes, flags)?;
    let before = inode.clone();
    let reads = flags.has(open_flag::READ) || flags.has(open_flag::EXECUTE);
    if reads && !flags.has(open_flag::NO_ACCESS_TIME) && !inode.is_directory() {
        attributes::note_access(txn, &mut inode);
    }
    let changes = flags.has(open_flag::WRITE) || flags.has(open_flag::TRUNCATE);
    if changes {
        // Needed below, when what is missing is not loaded any more: waits change the volatile
        // state.
        txn.has_capabilities(&inode)?;
    }
    // A repeated request is for a file that is already open here: the open that holds writers off
    // waits for this client.
    let key = OpenKey { client: txn.context.client, open };
    txn.check_open_limit(key, Some(inode.number()))?;
    let again = txn.volatile.opens.get(key).is_some_and(|file| file.inode == inode.number() && file.writes());
    let must_wait = txn.volatile.is_layout_changing(inode.number())
        || (changes && !again && txn.volatile.must_wait(inode.number(), key.client));
    if must_wait {
        txn.wait_for(inode.number());
        return Ok(Opening::Waiting);
    }
    let truncates = flags.has(open_flag::TRUNCATE) && inode.kind() == FileKind::Regular;
    // A file that is exactly empty has nothing to cut off, but counts as truncated.
    let empty = inode.size_known && inode.attributes.size == 0 && inode.attributes.blocks == 0;
    if truncates && !empty && !exclusive::take(txn, inode.number())? {
        return Ok(Opening::Waiting);
    }
    if truncates {
        let now = txn.now();
        txn.drop_privileges(who, &mut inode)?;
        inode.change_contents(now);
    }
    let capabilities = flags.has(open_flag::WRITE) && txn.has_capabilities(&inode)?;
    let opened = Opened { capabilities, ..register(txn, &mut inode, open, flags, truncates && !empty) };
    if reads && !flags.has(open_flag::WRITE) && !flags.has(open_flag::UNCOUNTED) {
        note_reader(txn, &inode);
    }
    if inode != before {
        txn.put_inode(&inode);
    }
    Ok(Opening::Opened(Box::new(opened)))
}

/// Counts the time that a reader loses because a finished file does not have the layout that it
/// would get now, if there is space for a second copy.
fn note_reader(txn: &mut Transaction<'_>, inode: &Inode) {
    let size = inode.attributes.size;
    let finished = inode.size_known && size > BEGINNING_BYTES;
    let Some(layout) = inode.layout().filter(|layout| finished && automatic::is_automatic(layout)) else { return };
    if txn.context.parameters.migration_bytes_per_second == 0 {
        return;
    }
    let usable = txn.volatile.targets.available_parts(&txn.context.parameters.placement);
    let available: Vec<u64> = usable.into_iter().map(|(_, free)| free).collect();
    if !migration::has_space(0, size, &available) {
        return;
    }
    let hardware = Hardware::with_osts(available.len() as u32);
    let compared = Comparison::new(&hardware, layout, size, &available);
    txn.volatile.moves.read(inode.number(), &compared);
}

/// Gives an open its epoch and enters it, of a file that is taken to have no capabilities. The
/// caller stores the inode. `truncate`: it took the exclusive data lock.
pub(crate) fn register(
    txn: &mut Transaction<'_>,
    inode: &mut Inode,
    open: OpenId,
    flags: OpenFlags,
    truncate: bool,
) -> Opened {
    let key = OpenKey { client: txn.context.client, open };
    let writes = inode.kind() == FileKind::Regular && flags.has(open_flag::WRITE);
    let quiet = is_quiet(txn, inode, Some(key), truncate);
    let exact = quiet && (inode.size_known || truncate);
    let began = writes && !known_size::may_have_objects(inode);
    let epoch = match (writes, truncate) {
        (true, _) => known_size::open_for_write(inode, quiet),
        (false, true) => known_size::begin_truncation(inode, false, quiet),
        (false, false) => inode.epoch,
    };
    if truncate {
        inode.attributes.size = 0;
        inode.attributes.blocks = 0;
    }
    let mut entry = inode.entry();
    if writes && exact {
        entry.size_unknown = None;
    }
    txn.open_at_commit(key, OpenFile { inode: inode.number(), flags, epoch: Some(epoch), began });
    Opened { entry, layout: inode.layout().cloned(), epoch, truncate, capabilities: false }
}

/// Whether no client but `except` may change the file's data without asking first (module
/// `known_size`). `own_lock`: the exclusive data lock is the caller's.
pub(crate) fn is_quiet(txn: &Transaction<'_>, inode: &Inode, except: Option<OpenKey>, own_lock: bool) -> bool {
    let volatile = &txn.volatile;
    !volatile.recovery.running()
        && !volatile.opens.written_by_others(inode.number(), except)
        && (own_lock || volatile.exclusive.holder(inode.number()).is_none())
        && !volatile.fences.touch(inode.osts())
}

/// What kinds of files no user can open in this way (may_open of Linux).
fn check_kind(inode: &Inode, flags: OpenFlags) -> FsResult<()> {
    let changes = flags.has(open_flag::WRITE) || flags.has(open_flag::TRUNCATE);
    match inode.kind() {
        FileKind::Symlink => Err(FsError::Loop),
        FileKind::Directory if changes => Err(FsError::IsDirectory),
        kind if kind != FileKind::Regular && flags.has(open_flag::EXECUTE) => Err(FsError::AccessDenied),
        _ => Ok(()),
    }
}

fn wanted(flags: OpenFlags) -> u32 {
    let bit = |flag: u32, permission: u32| if flags.has(flag) { permission } else { 0 };
    bit(open_flag::READ, permission::READ)
        | bit(open_flag::WRITE, permission::WRITE)
        | bit(open_flag::TRUNCATE, permission::WRITE)
        | bit(open_flag::EXECUTE, permission::EXECUTE)
}
