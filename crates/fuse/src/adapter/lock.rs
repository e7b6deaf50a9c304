//! Advisory locks: fcntl(2) and flock(2), distinguished by a flag.

use client::LockRequest;
use rpc::message::mdt::{HeldLock, LockFamily, LockMode, LockRange};
use types::{FsError, FsResult};

use super::call::{Call, Work};
use super::interrupts::Registration;
use crate::protocol::flags::lock as lock_flag;
use crate::protocol::reply::LockOut;
use crate::protocol::request::{FileLock, LockIn};
use crate::session::Answer;

/// GETLK.
pub async fn get(call: Call, lock: LockIn) -> FsResult<Answer> {
    let held = call.file_system().get_lock(call.inode, lock.owner, range(&lock), mode(lock.lock.kind)?).await?;
    let lock = match held {
        None => FileLock { kind: libc::F_UNLCK as u32, ..lock.lock },
        Some(held) => file_lock(&held, held.client == call.file_system().client_id()),
    };
    Ok(Answer::of(&LockOut { lock }))
}

/// SETLK and SETLKW. A waiting request can be interrupted from the moment it is decoded: it is
/// registered before its future is first polled. The kernel hears EINTR only when nothing of the
/// request is left: it may repeat it at once.
pub fn set(call: Call, lock: LockIn, wait: bool) -> Work {
    let registration = wait.then(|| call.adapter.interrupts.register(call.unique));
    Box::pin(async move { set_lock(&call, &lock, registration).await.map(|()| Answer::done()) })
}

/// It waits if it can be interrupted.
async fn set_lock(call: &Call, lock: &LockIn, registration: Option<Registration>) -> FsResult<()> {
    let flock = lock.lock_flags & lock_flag::FLOCK != 0;
    let request = LockRequest {
        family: if flock { LockFamily::Flock } else { LockFamily::Posix },
        owner: lock.owner,
        pid: lock.lock.pid,
        range: range(lock),
        mode: mode(lock.lock.kind)?,
        wait: registration.is_some(),
    };
    let (file_system, handles) = (call.file_system(), &call.adapter.handles);
    let file = handles.get(lock.handle)?;
    match registration {
        Some(mut registration) => {
            let interrupted = async move { registration.interrupted().await };
            file_system.set_lock_unless(&file, request, interrupted).await?;
        }
        None => {
            let mut outcome = file_system.set_lock(&file, request).await;
            if outcome == Err(FsError::WouldBlock) && handles.closings(call.inode, lock.handle).await {
                outcome = file_system.set_lock(&file, request).await;
            }
            outcome?;
        }
    }
    match (request.family, request.mode) {
        (LockFamily::Flock, mode) => handles.note_flock(lock.handle, mode != LockMode::Unlock),
        (LockFamily::Posix, LockMode::Unlock) => {}
        (LockFamily::Posix, _) => handles.note_lock_owner(lock.handle, lock.owner),
    }
    Ok(())
}

fn range(lock: &LockIn) -> LockRange {
    LockRange { start: lock.lock.start, end: lock.lock.end }
}

fn mode(kind: u32) -> FsResult<LockMode> {
    match kind.cast_signed() {
        libc::F_RDLCK => Ok(LockMode::Shared),
        libc::F_WRLCK => Ok(LockMode::Exclusive),
        libc::F_UNLCK => Ok(LockMode::Unlock),
        _ => Err(FsError::Invalid),
    }
}

/// A lock as F_GETLK shows it. The process of a lock held through another mount means nothing here
/// and is shown as 0.
fn file_lock(held: &HeldLock, ours: bool) -> FileLock {
    let kind = match held.mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
        LockMode::Unlock => libc::F_UNLCK,
    };
    FileLock { start: held.range.start, end: held.range.end, kind: kind as u32, pid: if ours { held.pid } else { 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClientId, InodeNumber};

    #[test]
    fn processes_of_other_mounts_are_not_named() {
        let held = HeldLock {
            inode: InodeNumber(300),
            family: LockFamily::Posix,
            client: ClientId(1),
            owner: 2,
            pid: 77,
            range: LockRange { start: 5, end: 9 },
            mode: LockMode::Exclusive,
        };
        assert_eq!(file_lock(&held, true), FileLock { start: 5, end: 9, kind: 1, pid: 77 });
        assert_eq!(file_lock(&held, false).pid, 0);
    }

    #[test]
    fn unknown_kinds_of_locks_are_refused() {
        assert_eq!(mode(2), Ok(LockMode::Unlock));
        assert_eq!(mode(3), Err(FsError::Invalid));
    }
}
