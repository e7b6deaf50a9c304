//! Operations on open files.
//!
//! Files are opened for direct I/O: every read and write of a program is a request, and nothing
//! stays in the page cache, where other clients' writes would not reach it. Mappings use the page
//! cache nevertheless (DIRECT_IO_ALLOW_MMAP); their changes arrive as WRITE with the CACHE bit,
//! through any handle open for writing.

use std::sync::Arc;

use bytes::Bytes;
use client::control;
use client::{AllocateMode, CreatedFile, Interruption, OpenFile, SeekTarget, WriteOptions};
use rpc::message::control::{ControlReply, ControlRequest};
use rpc::message::mdt::open_flag;
use rpc::message::volatile_name;
use types::mode::PERMISSIONS;
use types::{FileKind, FsError, FsResult, InodeNumber, MdtIndex};

use super::call::Call;
use super::changes;
use super::convert::open_flags;
use super::file_flags;
use crate::kernel_cache::Shown;
use crate::protocol::flags::{fsync as fsync_flag, open_reply, release as release_flag, write as write_flag};
use crate::protocol::reply::{CopyFileRangeOut, IoctlOut, OpenOut, SeekOut, WriteOut};
use crate::protocol::request::{
    CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, FsyncIn, IoctlIn, OpenIn, ReadIn, ReleaseIn, SeekIn, WriteIn,
};
use crate::session::Answer;
use host::ioctl::STRIA_IOC_CALL;

/// Most bytes copied for one COPY_FILE_RANGE: the caller cannot be interrupted before the answer,
/// and asks again.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// OPEN. O_TRUNC comes with it. The kernel refuses to open for writing what is being executed, but
/// looks only after OPEN whether it may be truncated by O_RDONLY | O_TRUNC: that is decided here.
/// With `no_default_permissions`, before permissions are checked.
pub async fn open(call: Call, open: OpenIn) -> FsResult<Answer> {
    let flags = open_flags(open.flags, call.adapter.access_times.kept_of_files);
    let call = &call;
    let truncates_unchecked = flags.has(open_flag::TRUNCATE) && !flags.has(open_flag::WRITE);
    if truncates_unchecked && call.adapter.handles.is_executed(call.inode).await {
        return Err(FsError::TextFileBusy);
    }
    let open = |interruption: Interruption| {
        let open = move |credentials| {
            let interruption = interruption.clone();
            async move { call.file_system().open_unless(&credentials, call.inode, flags, interruption).await }
        };
        async move { call.caller.run(open).await }
    };
    let before = call.adapter.kernel.opens(call.file_system(), call.inode);
    let file = call.adapter.interrupts.unless_interrupted(call.unique, open).await?;
    if !flags.has(open_flag::NO_ACCESS_TIME) {
        call.adapter.kernel.opened(call.file_system(), call.inode, before);
    }
    Ok(Answer::of(&enter(call, file)))
}

/// CREATE: open(2) with O_CREAT of a name that the kernel believes to be absent. One that asks for
/// a file without a name is not made.
pub async fn create(call: Call, create: CreateIn, name: Vec<u8>) -> FsResult<Answer> {
    if let Some(mdt) = volatile_name::mdt_of(&name) {
        return create_unnamed(call, create, Some((mdt, volatile_name::beside_which(&name)))).await;
    }
    let name = &name;
    let flags = open_flags(create.flags, call.adapter.access_times.kept_of_files);
    let call = &call;
    let mode = create.mode & PERMISSIONS;
    let modes = (mode, create.umask);
    let open = |interruption: Interruption| {
        let open = move |credentials| {
            let interruption = interruption.clone();
            async move {
                let file_system = call.file_system();
                file_system.create_open_unless(&credentials, call.inode, name, modes, flags, interruption).await
            }
        };
        async move { call.caller.run(open).await }
    };
    let created = call.adapter.interrupts.unless_interrupted(call.unique, open).await?;
    if created.attributes.kind != FileKind::Regular {
        // Another client made something else of this name meanwhile. The kernel accepts only a
        // regular file here; a stale answer makes it look the name up again and do what is right
        // for what it finds.
        call.file_system().close(created.file, None).await?;
        return Err(FsError::Stale);
    }
    Ok(enter_created(call, created, Shown::Made(call.inode, name)))
}

/// TMPFILE; `place`: on this MDT, if need be beside this file.
pub async fn create_unnamed(
    call: Call,
    create: CreateIn,
    place: Option<(MdtIndex, Option<InodeNumber>)>,
) -> FsResult<Answer> {
    let flags = open_flags(create.flags, call.adapter.access_times.kept_of_files);
    let call = &call;
    let (mode, umask) = (create.mode & PERMISSIONS, create.umask);
    let open = |credentials| async move {
        let (file_system, parent) = (call.file_system(), call.inode);
        match place {
            Some((mdt, beside)) => {
                let place = (parent, mdt);
                file_system.create_unnamed_on_or_beside(&credentials, place, beside, mode, umask, flags).await
            }
            None => file_system.create_unnamed(&credentials, parent, mode, umask, flags).await,
        }
    };
    let created = call.caller.run(open).await?;
    Ok(enter_created(call, created, Shown::Unnamed))
}

fn enter_created(call: &Call, created: CreatedFile, shown: Shown<'_>) -> Answer {
    Answer::deciding(|| {
        let entry = call.entry(&created.attributes, shown);
        Answer::pair(&entry, &enter(call, created.file))
    })
}

/// Gives an open file its handle.
fn enter(call: &Call, file: Arc<OpenFile>) -> OpenOut {
    let flags = open_reply::DIRECT_IO | open_reply::PARALLEL_DIRECT_WRITES;
    OpenOut { handle: call.adapter.handles.insert(file), flags, backing: 0 }
}

/// READ.
pub async fn read(call: Call, read: ReadIn) -> FsResult<Answer> {
    let file = call.adapter.handles.get(read.handle)?;
    let data = call.file_system().read(&file, read.offset, read.size as usize).await?;
    Ok(Answer { pieces: data.into_pieces(), ..Answer::default() })
}

/// WRITE. For O_APPEND the kernel sends the end it knows of; the client appends to the end there
/// is. What is written back from mappings has its place, and no writer whose privileges could
/// matter.
pub async fn write(call: Call, write: WriteIn, data: Bytes) -> FsResult<Answer> {
    let file = call.adapter.handles.get(write.handle)?;
    let has = |flags: libc::c_int| write.flags & flags.cast_unsigned() != 0;
    let written_back = write.write_flags & write_flag::CACHE != 0;
    let options = WriteOptions {
        append: has(libc::O_APPEND) && !written_back,
        sync: has(libc::O_DSYNC),
        keep_set_id: write.write_flags & write_flag::KILL_SUIDGID == 0,
    };
    let bytes = call.file_system().write(&file, write.offset, data, options).await?;
    Ok(Answer::of(&WriteOut { size: bytes as u32, padding: 0 }))
}

/// RELEASE and RELEASEDIR: the last descriptor is gone.
pub async fn release(call: Call, release: ReleaseIn) -> FsResult<Answer> {
    let released = call.adapter.handles.remove(release.handle)?;
    if released.keeps_names() {
        call.adapter.kernel.closes_directory(call.inode);
    }
    for owner in released.lock_owners() {
        if let Err(error) = call.file_system().flush(released.file(), *owner).await {
            tracing::warn!(%error, "cannot release the locks of a closed file");
        }
    }
    let flock_owner = (release.release_flags & release_flag::FLOCK_UNLOCK != 0).then_some(release.lock_owner);
    call.file_system().close(released.file().clone(), flock_owner).await?;
    Ok(Answer::done())
}

/// FLUSH: a descriptor is gone.
pub async fn flush(call: Call, flush: FlushIn) -> FsResult<Answer> {
    let file = call.adapter.handles.get(flush.handle)?;
    call.file_system().flush(&file, flush.lock_owner).await?;
    call.adapter.handles.flushed(flush.handle, flush.lock_owner);
    Ok(Answer::done())
}

/// FSYNC and FSYNCDIR.
pub async fn fsync(call: Call, fsync: FsyncIn) -> FsResult<Answer> {
    let file = call.adapter.handles.get(fsync.handle)?;
    call.file_system().fsync(&file, fsync.fsync_flags & fsync_flag::DATA_ONLY != 0).await?;
    Ok(Answer::done())
}

/// FALLOCATE. The kernel says of writes only whether the caller may keep set-id bits; here its
/// credentials do. While space is looked for, it can be interrupted.
pub async fn fallocate(call: Call, fallocate: FallocateIn) -> FsResult<Answer> {
    let file = call.adapter.handles.get(fallocate.handle)?;
    let mode = AllocateMode::from_linux(fallocate.mode)?;
    let (call, file, range) = (&call, &file, (fallocate.offset, fallocate.length));
    let reserve = |interruption: Interruption| {
        let reserve = move |credentials| {
            let interruption = interruption.clone();
            async move { call.file_system().allocate_unless(&credentials, file, mode, range, interruption).await }
        };
        async move { call.caller.run(reserve).await }
    };
    call.adapter.interrupts.unless_interrupted(call.unique, reserve).await?;
    Ok(Answer::done())
}

/// LSEEK: only for data and holes; the kernel knows the other kinds.
pub async fn seek(call: Call, seek: SeekIn) -> FsResult<Answer> {
    let file = call.adapter.handles.get(seek.handle)?;
    let target = match seek.whence.cast_signed() {
        libc::SEEK_DATA => SeekTarget::Data,
        libc::SEEK_HOLE => SeekTarget::Hole,
        _ => return Err(FsError::Invalid),
    };
    Ok(Answer::of(&SeekOut { offset: call.file_system().seek(&file, seek.offset, target).await? }))
}

/// COPY_FILE_RANGE, with the older 32-bit answer or the newer one.
pub async fn copy_range(call: Call, copy: CopyFileRangeIn, wide: bool) -> FsResult<Answer> {
    if copy.flags != 0 {
        return Err(FsError::Invalid);
    }
    let from = call.adapter.handles.get(copy.handle_in)?;
    let to = call.adapter.handles.get(copy.handle_out)?;
    let options = WriteOptions { keep_set_id: call.caller.uid == 0, ..WriteOptions::default() };
    let bytes = copy.length.min(COPY_BYTES_MAX);
    let copied = call.file_system().copy_range((&from, copy.offset_in), (&to, copy.offset_out), bytes, options).await?;
    Ok(if wide {
        Answer::of(&CopyFileRangeOut { bytes: copied })
    } else {
        Answer::of(&WriteOut { size: copied as u32, padding: 0 })
    })
}

/// IOCTL: flags of files, the control channel, and nothing else. The kernel does not know what it
/// changes, so a read-only mount is noticed here.
pub async fn ioctl(call: Call, request: IoctlIn, data: Vec<u8>) -> FsResult<Answer> {
    if let Some(flags) = file_flags::Request::of(request.command) {
        return file_flags::serve(call, flags, request, &data).await;
    }
    if request.command != STRIA_IOC_CALL {
        return Err(FsError::NotTty);
    }
    let call = &call;
    let replies = &call.adapter.control_replies;
    // Few requests need one, and refuse themselves if there is none.
    let open = call.adapter.handles.get(request.handle).ok().map(|file| file.id());
    let execute = |control: ControlRequest| async move {
        let control = &control;
        if control.changes() {
            call.adapter.writability.require()?;
        }
        let change = changes::begin_control(&call.adapter, call.inode.0, control);
        let named = changes::named_by_control(call.inode.0, control);
        let mut change = change.map(|change| change.of_name_in(named));
        if let Some(change) = &mut change {
            change.has_dropped_listings().await;
        }
        let execute = |credentials| async move {
            match control::execute(call.file_system(), &credentials, (call.inode, open), control.clone()).await {
                ControlReply::Error(FsError::GroupsNeeded) => Err(FsError::GroupsNeeded),
                reply => Ok(reply),
            }
        };
        let executed = call.caller.run(execute).await;
        if let Some(change) = &mut change {
            change.has_named().await;
        }
        executed
    };
    let page = replies.serve(call.caller.uid, &data, execute).await?;
    if page.len() > request.out_size as usize {
        return Err(FsError::Invalid);
    }
    Ok(Answer { pieces: vec![Bytes::from(page)], ..Answer::of(&IoctlOut::default()) })
}
