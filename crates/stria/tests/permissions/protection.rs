//! The settings `fs.protected_*` of this host, switched on for a test.

use std::{fs, path::PathBuf};

/// Settings, and their values while the test runs: 2 concerns directories that a group may write
/// to.
const SETTINGS: [(&str, &str); 4] =
    [("protected_symlinks", "1"), ("protected_hardlinks", "1"), ("protected_fifos", "2"), ("protected_regular", "2")];

/// As long as it lives, the settings are on. They are the host's.
pub struct Protection {
    before: Vec<(PathBuf, String)>,
}

impl Protection {
    /// Switches them on.
    pub fn on() -> Self {
        let mut before = Vec::new();
        for (name, value) in SETTINGS {
            let path = PathBuf::from("/proc/sys/fs").join(name);
            let old = fs::read_to_string(&path).expect("Linux 4.19 and later have these settings");
            fs::write(&path, value).expect("this test changes settings of the host and needs root");
            before.push((path, old));
        }
        Self { before }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            // It was possible a moment ago; if it is not now, the test has said enough.
            let _ = fs::write(path, value);
        }
    }
}
