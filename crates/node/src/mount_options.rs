//! The mount options in words, for `stria mount --help` and the manual page.

use std::fmt::Write as _;

/// What comes before the colon, and what it means.
const MEANINGS: &[(&str, &str)] = &[
    ("ro, rw", "read only; read and write (default)"),
    ("suid, nosuid", "let set-user-ID bits take effect (default, for root), or not (always, for other users)"),
    ("dev, nodev", "let device files act as devices, or not (default, and always for users other than root)"),
    ("allow_dev", "the same as dev, for /etc/fstab and mount(8), which does not pass dev on"),
    ("exec, noexec", "allow the execution of files (default), or not"),
    ("sync, async", "make each write durable before it returns, or not (default)"),
    ("dirsync", "make each change of a directory durable before it returns"),
    ("atime, noatime", "update times of last access (default), or do not"),
    ("diratime, nodiratime", "the same for directories"),
    ("relatime, norelatime", "update times of last access only if they are older than the last change, or do not"),
    ("strictatime", "update times of last access at every access"),
    (
        "allow_other",
        "allow access by all users: default if root mounts; others need user_allow_other in /etc/fuse.conf",
    ),
    ("noallow_other", "allow access only by the user who mounts, not even by root"),
    (
        "default_permissions, no_default_permissions",
        "let the kernel check permissions and ACLs too, including those of FIFOs and devices, and cache names and \
         attributes (default), or not",
    ),
    (
        "io_uring=HOW",
        "how requests come from the kernel: auto (default: over io_uring if the kernel offers it, else over \
         /dev/fuse), on (over io_uring, or do not mount), off",
    ),
    ("threads=N", "number of threads that read /dev/fuse, 1 to 1024 (default: one per core); not for io_uring"),
    ("cpus=LIST", "processors that the mount uses, as 0-3:8 (default: all that it may use); see cpu_pattern"),
    ("cores=N", "number of threads that send and receive requests, 1 to 1024 (default: one per processor)"),
    ("timeout=SECONDS", "how long a call waits for a server that does not answer (default: 100)"),
    ("key=FILE", "file of the client key (default: /etc/stria/FSNAME.client.key)"),
    ("remount", "change ro, rw and other flags of the existing mount"),
    ("defaults", "no effect; a placeholder in /etc/fstab"),
    (
        "auto, noauto, nofail, _netdev, x-*",
        "for mount(8) and systemd; also user, users, nouser, owner, group, comment=",
    ),
];

/// Width of the help: wider lines would be wrapped without regard to columns.
const COLUMNS: usize = 79;
/// Where the meanings begin.
const MEANING_COLUMN: usize = 24;

/// What stands below the options of `stria mount --help`.
pub fn help() -> String {
    let mut text = String::from("Mount options (-o, separated by commas; a later one overrides an earlier one):\n");
    for (names, meaning) in MEANINGS {
        let mut line = format!("  {names}");
        if line.len() >= MEANING_COLUMN {
            let _ = writeln!(text, "{line}");
            line.clear();
        }
        for part in wrapped(meaning, COLUMNS - MEANING_COLUMN) {
            let _ = writeln!(text, "{line:<MEANING_COLUMN$}{part}");
            line.clear();
        }
    }
    text.push_str("\nIn /etc/fstab:\n  10.0.0.1:/stria  /mnt/stria  fuse.stria  defaults,_netdev  0 0");
    text
}

/// Lines of whole words, `width` bytes at most unless a word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The single options that are documented, values included.
    fn documented() -> Vec<&'static str> {
        let names = MEANINGS.iter().flat_map(|(names, _)| names.split(", "));
        names.map(|name| name.split('=').next().unwrap_or(name)).collect()
    }

    #[test]
    fn every_option_is_documented_and_every_documented_one_understood() {
        let documented = documented();
        for flag in fuse::mount::options::flag_names() {
            assert!(documented.contains(&flag), "{flag} is not documented");
        }
        let own = ["cores", "cpus", "key", "timeout"];
        for name in documented {
            let value = match name {
                "threads" => "=1",
                "io_uring" => "=off",
                _ => "",
            };
            let mut options = fuse::MountOptions::default();
            options.add(&format!("{}{value}", name.replace('*', "systemd.automount"))).unwrap();
            assert!(options.others.is_empty() || own.contains(&name), "{name} is not understood");
        }
    }

    #[test]
    fn lines_fit_a_terminal_and_keep_their_columns() {
        for line in help().lines() {
            assert!(line.len() <= COLUMNS, "{line}");
        }
        let line = "  suid, nosuid          let set-user-ID bits take effect (default, for root),\n\
                    \x20                       or not (always, for other users)\n";
        assert!(help().contains(line), "{}", help());
    }
}
