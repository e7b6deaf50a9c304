//! Submissions of FUSE commands. The io-uring crate's `UringCmd80` has no field for the address and
//! number of the iovecs of REGISTER, so the submission is laid out here.

use io_uring::squeue;
use zerocopy::{Immutable, IntoBytes};

use super::memory::Vectors;
use crate::protocol::ring::{COMMIT_AND_FETCH, REGISTER, RingCommand};

/// IORING_OP_URING_CMD.
const URING_CMD: u8 = 46;

/// `struct io_uring_sqe` with 128 bytes (IORING_SETUP_SQE128), in the form of URING_CMD.
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    command: u32,
    padding: u32,
    address: u64,
    length: u32,
    command_flags: u32,
    user_data: u64,
    buffer_index: u16,
    personality: u16,
    splice_descriptor: u32,
    /// The first of 80 bytes for the command.
    fuse: RingCommand,
    unused: [u64; 7],
}

const _: () = assert!(size_of::<Submission>() == size_of::<squeue::Entry128>());

impl Submission {
    fn new(device: i32, command: u32, entry: usize, fuse: RingCommand) -> Self {
        Self { opcode: URING_CMD, descriptor: device, command, user_data: entry as u64, fuse, ..Self::default() }
    }

    fn finish(self) -> squeue::Entry128 {
        // SAFETY: both are 128 bytes of plain data in the kernel's layout.
        unsafe { std::mem::transmute::<Submission, squeue::Entry128>(self) }
    }
}

/// Gives an entry to a queue. The vectors must stay where they are until the submission has been
/// passed on, and the memory that they name until the command has completed.
pub fn register(device: i32, entry: usize, vectors: *const Vectors, queue: u16) -> squeue::Entry128 {
    let fuse = RingCommand { queue, ..RingCommand::default() };
    let submission = Submission::new(device, REGISTER, entry, fuse);
    let length = size_of::<Vectors>() / size_of::<libc::iovec>();
    Submission { address: vectors as u64, length: length as u32, ..submission }.finish()
}

/// A registration that the kernel is sure to refuse: it has no entry. It ends the waiting for
/// queues, and requests go to `/dev/fuse`.
pub fn withdraw(device: i32) -> squeue::Entry128 {
    Submission::new(device, REGISTER, 0, RingCommand::default()).finish()
}

/// Answers a request and gives its entry back.
pub fn commit(device: i32, entry: usize, queue: u16, commit_id: u64) -> squeue::Entry128 {
    let fuse = RingCommand { queue, commit_id, ..RingCommand::default() };
    Submission::new(device, COMMIT_AND_FETCH, entry, fuse).finish()
}
