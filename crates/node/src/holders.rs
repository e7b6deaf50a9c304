//! The processes that use a mount, for messages about a busy one: found by their working
//! directories, open files, programs and roots in /proc.
//!
//! Downside: a user other than root sees only processes of that user, and mapped files that are
//! closed are not found.

use std::path::Path;

/// Most processes that are named.
const NAMED_MAX: usize = 5;

/// `in use by bash (1234), vim (1240)`, or how to find out.
pub fn describe(point: &Path) -> String {
    let found = find(point);
    if found.is_empty() {
        return format!("in use; fuser -vm {} or lsof shows which programs use it", point.display());
    }
    let more = if found.len() > NAMED_MAX { ", ..." } else { "" };
    let named: Vec<String> = found.into_iter().take(NAMED_MAX).collect();
    format!("in use by {}{more}", named.join(", "))
}

/// `bash (1234)` of each process, but this one.
fn find(point: &Path) -> Vec<String> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    processes.sort_unstable();
    let users = processes.into_iter().filter(|process| *process != own && uses(*process, point));
    users.map(|process| format!("{} ({process})", name(process))).collect()
}

/// Whether a link of the process leads below `point`. The links are read, not followed: nothing
/// asks the mount.
fn uses(process: u32, point: &Path) -> bool {
    let directory = Path::new("/proc").join(process.to_string());
    let leads_there = |link: &Path| std::fs::read_link(link).is_ok_and(|found| found.starts_with(point));
    if ["cwd", "root", "exe"].iter().any(|link| leads_there(&directory.join(link))) {
        return true;
    }
    let files = std::fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| leads_there(&file.path()))
}

fn name(process: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn processes_are_found_by_working_directory_and_open_files() {
        let place = tempfile::tempdir().unwrap();
        let point = place.path().canonicalize().unwrap();
        let hint = format!("in use; fuser -vm {} or lsof shows which programs use it", point.display());
        assert_eq!(describe(&point), hint, "nobody does, and this process is left out");
        // Both run until their input ends; they have started when they write.
        let run = |configure: &dyn Fn(&mut Command)| {
            let mut command = Command::new("cat");
            configure(command.stdin(Stdio::piped()).stdout(Stdio::null()));
            command.spawn().unwrap()
        };
        let mut inside = run(&|command| {
            command.current_dir(&point);
        });
        let file = File::create(point.join("file")).unwrap();
        let mut reader = run(&|command| {
            command.stderr(file.try_clone().unwrap());
        });
        let expected = format!("in use by cat ({}), cat ({})", inside.id(), reader.id());
        // `spawn` returns once the program is executed, so both are called cat.
        assert_eq!(describe(&point), expected);
        for process in [&mut inside, &mut reader] {
            drop(process.stdin.take());
            assert!(process.wait().unwrap().success());
        }
        assert_eq!(describe(&point), hint);
    }
}
