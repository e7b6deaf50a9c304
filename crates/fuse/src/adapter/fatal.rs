//! Whether a thread is being killed, judged by its signals in `/proc`.
//!
//! The kernel interrupts a request for any signal, once, and does not say which. If it is fatal,
//! the request must be answered so that the process can end. Usually it is SIGKILL: Linux also
//! sends it to each thread when one thread ends the process, and when another signal without a core
//! dump does. For other signals it matters how the process handles them.
//!
//! A process that is already exiting closes its files; the kernel does not interrupt these requests
//! at all.
//!
//! Downside: a caller that is not visible in `/proc` (in another pid namespace) counts as not being
//! killed.

use std::fs;

/// SIGKILL in a mask of `/proc`.
const KILL: u64 = bit(libc::SIGKILL);
/// Signals that by default do not end a process: they are ignored or stop it.
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGCONT)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH);

const fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// Looks whether a thread that waits for an answer is being killed.
pub fn is_being_killed(thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| has_fatal_signal(&status))
}

/// Looks whether a thread that waits for an answer has a signal that ends interruptible waits.
pub fn has_signal(thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| pending(&status) & !mask(&status, "SigBlk") != 0)
}

/// Looks whether a thread that waits for an answer is ending.
pub fn is_ending(thread: u32) -> bool {
    let stat = fs::read(format!("/proc/{thread}/stat"));
    stat.is_ok_and(|stat| has_ending_flag(&String::from_utf8_lossy(&stat)))
}

/// The decision, from the text of `/proc/<tid>/stat`: the seventh field after the name, which may
/// contain anything.
fn has_ending_flag(stat: &str) -> bool {
    /// PF_EXITING of Linux.
    const EXITING: u32 = 4;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(6).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// The decision, from the text of `/proc/<tid>/status`.
fn has_fatal_signal(status: &str) -> bool {
    // What a tracer makes of other signals is not known before it is asked.
    let traced = !matches!(value(status, "TracerPid"), "" | "0");
    let kept = mask(status, "SigBlk") | mask(status, "SigIgn") | mask(status, "SigCgt") | HARMLESS;
    let fatal = if traced { KILL } else { KILL | !kept };
    pending(status) & fatal != 0
}

/// Signals that are pending for the thread or its process.
fn pending(status: &str) -> u64 {
    mask(status, "SigPnd") | mask(status, "ShdPnd")
}

fn mask(status: &str, name: &str) -> u64 {
    u64::from_str_radix(value(status, name), 16).unwrap_or(0)
}

fn value<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map_or("", str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u64; 5] = [0; 5];

    /// Pending for the thread and the process, blocked, ignored, caught; and the tracer.
    fn fatal([thread, process, blocked, ignored, caught]: [u64; 5], tracer: u32) -> bool {
        has_fatal_signal(&format!(
            "Name:\tSigPnd: 100\nTracerPid:\t{tracer}\nThreads:\t1\nSigQ:\t1/2\nSigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\nCapInh:\t0\n"
        ))
    }

    #[test]
    fn kill_is_fatal_whatever_else_is_said() {
        assert!(fatal([KILL, 0, 0, 0, 0], 0));
        assert!(fatal([0, KILL, u64::MAX, u64::MAX, u64::MAX], 7));
        assert!(!fatal(NOTHING, 0));
    }

    #[test]
    fn other_signals_are_fatal_unless_the_process_lives_on() {
        let quit = bit(libc::SIGQUIT);
        assert!(fatal([0, quit, 0, 0, 0], 0) && fatal([quit, 0, 0, 0, 0], 0));
        for position in 2..5 {
            let mut masks = [0, quit, 0, 0, 0];
            masks[position] = quit;
            assert!(!fatal(masks, 0), "blocked, ignored or caught");
        }
        assert!(!fatal([0, quit, 0, 0, 0], 7), "a tracer decides");
        assert!(fatal([0, bit(libc::SIGRTMIN()), 0, 0, 0], 0));
        assert!(!fatal([HARMLESS, HARMLESS, 0, 0, 0], 0));
    }

    #[test]
    fn a_process_that_ends_is_known_by_its_flag() {
        assert!(has_ending_flag("77 (a ) b) D 1 77 77 0 -1 4194308 100 0"));
        assert!(!has_ending_flag("77 (a ) b) D 1 77 77 0 -1 4194304 100 0"));
        assert!(!has_ending_flag("77 (4 4 4 4 4 4 4 4) D 1 77") && !has_ending_flag(""));
        assert!(!is_ending(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()));
    }

    #[test]
    fn what_cannot_be_read_is_not_fatal() {
        assert!(!has_fatal_signal("") && !has_fatal_signal("SigPnd:\nShdPnd:\tnot a number\n"));
        assert!(!is_being_killed(u32::MAX));
        let this_thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(!is_being_killed(this_thread) && !has_signal(this_thread));
    }
}
