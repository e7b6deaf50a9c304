//! The adapter: one function per operation of the kernel, translating to the [`client`] API and
//! back, and nothing else.
//!
//! | kernel | here | client |
//! |---|---|---|
//! | node id | inode number (the root is 1 in both) | [`InodeNumber`] |
//! | file handle | number of an entry in [`Handles`](handles::Handles) | `OpenFile` |
//! | uid, gid, thread id | [`Caller`](caller::Caller) | [`Credentials`](types::Credentials), groups only on request |
//! | INTERRUPT | [`Interrupts`](interrupts::Interrupts) | a lock, an open or a truncation that waits is given up, and the search for space to reserve; everything, if the caller is being killed ([`attend`](attend::attend)) |
//! | errno | [`host::errno`] | [`FsError`](types::FsError) |
//!
//! Node ids are inode numbers. What the kernel may cache of them is decided in
//! [`kernel_cache`](crate::kernel_cache). Absent names are answered with an error, which the kernel
//! does not cache. Downside: an inode that is unlinked while only a path descriptor (O_PATH) or a
//! working directory refers to it is gone at once.

mod attend;
mod call;
mod caller;
mod changes;
mod convert;
mod directory;
mod fatal;
mod file;
mod file_flags;
mod handles;
mod interrupts;
mod lock;
mod namespace;
mod programs;
mod walkers;
mod xattr;

use std::{fmt::Display, sync::Arc, time::Instant};

use bytes::Bytes;
use rt::{BoxFuture, trace::Origin};
use types::{FsResult, InodeNumber};
use zerocopy::FromBytes;

use crate::protocol::request::ForgetOne;
use crate::protocol::{Incoming, Opcode, Operation};
use crate::session::{Answer, Handler, Notifications, Responder};
use attend::{Wait, attend};
pub use call::Adapter;
use call::{Call, Work};
use caller::Caller;
use host::errno::Errno;

impl Handler for Adapter {
    fn handle(
        self: Arc<Self>,
        incoming: Incoming<'_>,
        data: Bytes,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        let header = incoming.header;
        match incoming.operation {
            Operation::Forget(forget) => {
                self.kernel.forget(header.node, forget.lookups);
                responder.forget();
            }
            Operation::BatchForget { forgets } => {
                let mut rest = forgets;
                while let Ok((ForgetOne { node, lookups }, further)) = ForgetOne::read_from_prefix(rest) {
                    self.kernel.forget(node, lookups);
                    rest = further;
                }
                responder.forget();
            }
            Operation::Interrupt(interrupt) => {
                self.interrupts.interrupt(interrupt.unique);
                self.pending.interrupt(interrupt.unique);
                responder.forget();
            }
            Operation::Destroy => responder.send(Ok(Answer::done())),
            Operation::Init(_) | Operation::Refused => responder.refuse(Errno::NO_SUCH_OPERATION),
            operation => {
                let trace = self.trace_of(header.unique);
                let span = span(incoming.opcode, trace, header.node);
                let (caller, inode, unique) = (Caller::new(&header), InodeNumber(header.node), header.unique);
                let job = self.file_system.job_ids().of(|| self.programs.job(&caller));
                let origin = Origin { trace, uid: header.uid, gid: header.gid, job, project: 0 };
                let wait = Wait { adapter: self.clone(), opcode: incoming.opcode, caller, inode, unique, trace };
                let mut change = changes::begin(&self, header.node, &operation);
                let work = dispatch(Call { adapter: self, caller, inode, unique }, operation, data);
                let work = attend(wait, rt::trace::scoped(origin, work));
                let error: fn(&FsResult<Answer>) -> Option<&dyn Display> = |answer| match answer {
                    Ok(_) => None,
                    Err(error) => Some(error),
                };
                let work = rt::trace::observed(span, Instant::now, work, error);
                return Some(Box::pin(async move {
                    let answer = work.await;
                    if let Some(change) = &mut change {
                        change.has_dropped_listings().await;
                    }
                    // Before the kernel gives its locks back.
                    drop(change);
                    responder.send(answer);
                }));
            }
        }
        None
    }

    fn answered_late(&self) {
        // This runs right after an answer, which waits for nothing.
        drop(self.kernel.is_overdue());
    }

    fn begins(&self, notifications: Notifications) {
        self.kernel.begin(notifications);
    }
}

fn span(opcode: Opcode, trace: u64, node: u64) -> tracing::Span {
    tracing::debug_span!(
        "fuse",
        operation = opcode.label(),
        trace = %rt::trace::shown(trace),
        inode = %types::InodeNumber(node)
    )
}

/// The work of an operation on names and inodes; those on open files are in [`dispatch_file`].
fn dispatch(call: Call, operation: Operation<'_>, data: Bytes) -> Work {
    match operation {
        Operation::Lookup { name } => Box::pin(namespace::lookup(call, name.to_vec())),
        Operation::GetAttributes(get) => Box::pin(namespace::get_attributes(call, get)),
        Operation::Statx(get) => Box::pin(namespace::statx(call, get)),
        Operation::SetAttributes(set) => Box::pin(namespace::set_attributes(call, set)),
        Operation::ReadLink => Box::pin(namespace::read_link(call)),
        Operation::Symlink { name, target } => Box::pin(namespace::symlink(call, name.to_vec(), target.to_vec())),
        Operation::MakeNode { node, name } => Box::pin(namespace::make_node(call, node, name.to_vec())),
        Operation::MakeDirectory { directory, name } => {
            Box::pin(namespace::make_directory(call, directory, name.to_vec()))
        }
        Operation::Unlink { name } => Box::pin(namespace::unlink(call, name.to_vec())),
        Operation::RemoveDirectory { name } => Box::pin(namespace::remove_directory(call, name.to_vec())),
        Operation::Rename { rename, name, new_name } => {
            Box::pin(namespace::rename(call, rename, name.to_vec(), new_name.to_vec()))
        }
        Operation::Link { link, name } => Box::pin(namespace::link(call, link, name.to_vec())),
        Operation::Access(access) => Box::pin(namespace::access(call, access)),
        Operation::StatFs => Box::pin(namespace::stat_fs(call)),
        Operation::SyncFs => Box::pin(namespace::sync_fs(call)),
        Operation::SetXattr { set, name, value } => Box::pin(xattr::set(call, set, name.to_vec(), value.to_vec())),
        Operation::GetXattr { get, name } => Box::pin(xattr::get(call, get, name.to_vec())),
        Operation::ListXattr(get) => Box::pin(xattr::list(call, get)),
        Operation::RemoveXattr { name } => Box::pin(xattr::remove(call, name.to_vec())),
        operation => dispatch_file(call, operation, data),
    }
}

/// The work of an operation on open files and directories.
fn dispatch_file(call: Call, operation: Operation<'_>, data: Bytes) -> Work {
    match operation {
        Operation::Open(open) => Box::pin(file::open(call, open)),
        Operation::Create { create, name } => Box::pin(file::create(call, create, name.to_vec())),
        Operation::TemporaryFile { create } => Box::pin(file::create_unnamed(call, create, None)),
        Operation::Read(read) => Box::pin(file::read(call, read)),
        Operation::Write { write, .. } => Box::pin(file::write(call, write, data)),
        Operation::Release(release) | Operation::ReleaseDirectory(release) => Box::pin(file::release(call, release)),
        Operation::Flush(flush) => Box::pin(file::flush(call, flush)),
        Operation::Fsync(fsync) | Operation::FsyncDirectory(fsync) => Box::pin(file::fsync(call, fsync)),
        Operation::Fallocate(fallocate) => Box::pin(file::fallocate(call, fallocate)),
        Operation::Seek(seek) => Box::pin(file::seek(call, seek)),
        Operation::CopyFileRange { copy, wide } => Box::pin(file::copy_range(call, copy, wide)),
        Operation::Ioctl { ioctl, data } => Box::pin(file::ioctl(call, ioctl, data.to_vec())),
        Operation::OpenDirectory(open) => Box::pin(directory::open(call, open)),
        Operation::ReadDirectory(read) => Box::pin(directory::read(call, read, false)),
        Operation::ReadDirectoryPlus(read) => Box::pin(directory::read(call, read, true)),
        Operation::GetLock(lock) => Box::pin(lock::get(call, lock)),
        Operation::SetLock { lock, wait } => lock::set(call, lock, wait),
        other => unreachable!("{other:?} is handled before"),
    }
}
