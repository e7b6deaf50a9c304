//! Wakes threads that are blocked in a read of the device.
//!
//! An unmount ends those reads by itself; a lazy unmount of a busy mount does not, and there is no
//! other way out of a blocking read than a signal. (Waiting with poll(2) instead would cost
//! additional system calls for every request and wake all workers for each.) The signal is a
//! real-time signal that nothing else in the process uses; its handler does nothing, and its
//! arrival makes the read return EINTR.

use std::os::unix::thread::JoinHandleExt;
use std::sync::Once;
use std::thread::JoinHandle;
use std::time::Duration;

extern "C" fn nothing(_signal: libc::c_int) {}

fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 6
}

/// Installs the handler, once per process.
pub fn prepare() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the structure is plain data for which zeros are valid; the handler does nothing
        // and so is safe in any signal context. No SA_RESTART: system calls are to return.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(signal(), &raw const action, std::ptr::null_mut())
        };
        assert_eq!(result, 0, "a real-time signal accepts a handler");
    });
}

/// Wakes a thread until it has ended. The thread must look at its stop flag before each blocking
/// read; as a signal may arrive between that look and the read, it is sent again until the thread
/// is gone.
pub fn wake_until_ended(thread: &JoinHandle<()>) {
    const PAUSE: Duration = Duration::from_millis(1);
    while !thread.is_finished() {
        // SAFETY: the thread has not been joined (we hold its handle), so its id is valid, ended or
        // not.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), signal()) };
        std::thread::sleep(PAUSE);
    }
}
