//! The adapter of a mount, and what every operation of the kernel gets of it.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use client::FileSystem;
use host::ioctl::PendingReplies;
use rt::BoxFuture;
use types::{Attributes, FileKind, FsError, FsResult, InodeNumber};

use super::caller::Caller;
use super::convert::{AccessTimes, entry_out};
use super::handles::Handles;
use super::interrupts::Interrupts;
use super::programs::Programs;
use super::walkers::Walkers;
use crate::kernel_cache::{KernelCache, Shown, Validity};
use crate::mount::{MountOptions, writability::Writability};
use crate::protocol::reply::EntryOut;
use crate::session::Answer;

/// Serves one mount from one [`FileSystem`].
pub struct Adapter {
    pub(super) file_system: Arc<FileSystem>,
    pub(super) kernel: Arc<KernelCache>,
    pub(super) handles: Handles,
    /// Requests that any signal ends.
    pub(super) interrupts: Interrupts,
    /// Pending requests, which a fatal signal ends.
    pub(super) pending: Interrupts,
    pub(super) control_replies: PendingReplies,
    pub(super) writability: Arc<Writability>,
    pub(super) access_times: AccessTimes,
    pub(super) programs: Programs,
    pub(super) walkers: Walkers,
}

/// What every operation gets: the mount, the caller and the inode it is about.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) adapter: Arc<Adapter>,
    pub(super) caller: Caller,
    pub(super) inode: InodeNumber,
    /// The kernel's number of the request.
    pub(super) unique: u64,
}

impl Call {
    /// What the operation goes to.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.adapter.file_system
    }

    /// What the kernel may keep of the attributes of an inode that it knows, and their newest
    /// state.
    pub fn given(&self, attributes: &Attributes) -> (Attributes, Validity) {
        self.adapter.kernel.give(self.file_system(), attributes, Shown::Inode, false)
    }

    /// An inode that the kernel counts as looked up.
    pub fn entry(&self, attributes: &Attributes, shown: Shown<'_>) -> EntryOut {
        let (attributes, validity) = self.adapter.kernel.give(self.file_system(), attributes, shown, true);
        entry_out(&attributes, validity)
    }

    /// A program asks for the attributes of an inode, by a name in `parent` if that is known.
    pub fn looks_at(&self, attributes: &Attributes, parent: Option<InodeNumber>) {
        let walkers = &self.adapter.walkers;
        if attributes.kind == FileKind::Directory || !walkers.tries(Instant::now()) {
            return;
        }
        match parent {
            Some(parent) => walkers.looks(self.caller.thread, [parent.0]),
            None => walkers.looks(self.caller.thread, self.adapter.kernel.parents(self.inode.0)),
        }
    }

    /// The outcome of a change of names. The kernel assumes that a change that failed did not
    /// happen; after some errors this is not certain.
    pub fn certain<T>(&self, outcome: FsResult<T>) -> FsResult<T> {
        if let Err(FsError::Unreachable { .. } | FsError::Stale | FsError::Interrupted) = outcome {
            self.adapter.kernel.is_uncertain();
        }
        outcome
    }
}

/// The work of an operation.
pub(super) type Work = BoxFuture<'static, FsResult<Answer>>;

impl Adapter {
    /// An adapter without open files, of a mount that was made with these options, and of which
    /// `writability` tells.
    pub fn new(file_system: Arc<FileSystem>, options: &MountOptions, writability: Arc<Writability>) -> Arc<Self> {
        let kernel = KernelCache::new(options.default_permissions);
        let upper: Weak<KernelCache> = Arc::downgrade(&kernel);
        file_system.set_upper_cache(upper);
        Arc::new(Self {
            file_system,
            kernel,
            handles: Handles::default(),
            interrupts: Interrupts::default(),
            pending: Interrupts::default(),
            control_replies: PendingReplies::default(),
            writability,
            access_times: AccessTimes::from(options.flags),
            programs: Programs::default(),
            walkers: Walkers::new(Instant::now()),
        })
    }

    /// What the kernel caches.
    pub fn kernel_cache(&self) -> &Arc<KernelCache> {
        &self.kernel
    }

    /// Identifies a request in the logs of this process and of every server that works for it: the
    /// mount's identity in the upper half, the kernel's number of the request in the lower. Never
    /// 0, which means "no request".
    pub(super) fn trace_of(&self, unique: u64) -> u64 {
        (1 << 63) | (self.file_system.client_id().0 << 32) | ((unique >> 1) & 0xffff_ffff)
    }
}
