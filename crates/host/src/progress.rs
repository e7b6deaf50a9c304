//! The progress of long work, on standard error: one line that is overwritten on a terminal, and
//! separate lines in files and pipes, where lines cannot be overwritten.

use std::{fmt::Display, io::IsTerminal};

/// Goes to the beginning of the line and empties it.
const AGAIN: &str = "\r\x1b[K";

/// Says what is being done now.
pub fn show(now: impl Display) {
    if std::io::stderr().is_terminal() {
        eprint!("{AGAIN}{now}");
    } else {
        eprintln!("{now}");
    }
}

/// The work is done: takes the line away.
pub fn done() {
    if std::io::stderr().is_terminal() {
        eprint!("{AGAIN}");
    }
}

/// Says something that is to stay, between what is being done.
pub fn tell(what: impl Display) {
    done();
    eprintln!("{what}");
}
