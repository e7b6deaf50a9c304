//! Whether this process still has files of a closed fjall database open.
//!
//! Dropping a database waits for fjall's thread, which counts as ended a moment before it drops
//! what it holds. If it holds the last reference to the journal, the thread then writes the rest of
//! the journal from memory, and closes it. After a failed write there is such a rest, and a caller
//! that has opened the database again by then writes to the same place. fjall does not report this,
//! but the operating system knows which files are open.
//!
//! Downside: all descriptors of the process are examined, at a few microseconds each. Without /proc
//! nothing is known, and nothing is waited for.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

/// Pause between two looks.
const POLL: Duration = Duration::from_millis(1);
/// Files that are still open then belong to other code.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until no file of a directory is open in this process.
pub(super) fn wait_for_none_below(directory: &Path) {
    // A directory that is gone has no files.
    let Ok(directory) = fs::canonicalize(directory) else { return };
    let begin = Instant::now();
    while is_any_below(&directory).unwrap_or(false) {
        if begin.elapsed() > TIMEOUT {
            tracing::warn!(directory = %directory.display(), "files of the closed cold store are still open");
            return;
        }
        std::thread::sleep(POLL);
    }
}

fn is_any_below(directory: &Path) -> io::Result<bool> {
    for descriptor in fs::read_dir("/proc/self/fd")? {
        // Others are closed meanwhile.
        if fs::read_link(descriptor?.path()).is_ok_and(|file| file.starts_with(directory)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_found_until_it_is_closed() {
        let place = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(place.path()).unwrap();
        let [cold, other] = ["cold", "cold2"].map(|name| directory.join(name));
        for directory in [&cold, &other] {
            fs::create_dir(directory).unwrap();
        }
        let _neighbour = fs::File::create(other.join("0.jnl")).unwrap();
        assert!(!is_any_below(&cold).unwrap());
        let journal = fs::File::create(cold.join("0.jnl")).unwrap();
        assert!(is_any_below(&cold).unwrap());
        let closing = std::thread::spawn(move || drop(journal));
        wait_for_none_below(&cold);
        closing.join().unwrap();
        assert!(!is_any_below(&cold).unwrap());
        wait_for_none_below(&directory.join("none"));
    }
}
