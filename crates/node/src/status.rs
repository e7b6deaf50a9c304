//! Messages of a daemon to its operator: a few lines on standard output; the rest goes to the log.

use std::{fmt::Display, io::Write};

/// Prints one line at once, also into pipes.
pub fn say(text: impl Display) {
    let mut output = std::io::stdout().lock();
    // A daemon continues when its status is not read any more.
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}
