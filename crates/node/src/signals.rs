//! Signals: the first Ctrl-C, SIGTERM or end of the terminal asks for a clean stop, a second Ctrl-C
//! or SIGTERM ends the process at once.
//!
//! The end of a terminal (SIGHUP) is signalled by the kernel and once more by the shell, so it
//! never counts as a second request. A process that was started to outlive its terminal (`nohup`)
//! ignores it from the start, and continues.
//!
//! A closed pipe (SIGPIPE) ends tools only, see [`end_by_closed_pipes`].

use std::{ffi::c_int, io};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use tokio::sync::watch;

/// Becomes true when the process is asked to stop.
pub fn stop_requested() -> io::Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let mut signals = Signals::new(stopping(&std::fs::read_to_string("/proc/self/status")?))?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if *sender.borrow() && signal != SIGHUP {
                eprintln!("stopping immediately; acknowledged changes are safe, clients will reconnect");
                std::process::exit(130);
            }
            sender.send_replace(true);
        }
    })?;
    Ok(receiver)
}

/// From now on the process ends, as programs of a pipeline do, when it writes into a pipe that
/// nobody reads. Rust ignores SIGPIPE from the beginning, which is right for processes that serve
/// or hold a mount. Nothing that writes to TCP may run then.
pub fn end_by_closed_pipes() {
    // SAFETY: SIGPIPE exists, the default action is no function of this process, and no other
    // thread changes it.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// The signals that ask this process to stop; `status` is what proc(5) says of it.
pub fn stopping(status: &str) -> Vec<c_int> {
    let mut signals = vec![SIGINT, SIGTERM];
    if !is_ignored(status, SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Whether a signal's bit is set in the mask of ignored ones.
fn is_ignored(status: &str, signal: c_int) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_terminal_stops_whoever_was_not_started_to_outlive_it() {
        let status = |ignored: &str| format!("Name:\tstria\nSigBlk:\tffffffffffffffff\nSigIgn:\t{ignored}\n");
        assert_eq!(stopping(&status("0000000000001000")), [SIGINT, SIGTERM, SIGHUP]);
        assert_eq!(stopping(&status("0000000000001001")), [SIGINT, SIGTERM]);
        assert!(stopping("").contains(&SIGHUP));
    }
}
