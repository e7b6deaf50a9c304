//! The background process of a mount: the same program again, in its foreground mode and in a
//! session of its own.
//!
//! Life cycle: [`start`] starts it and waits. As long as the starter waits, the process ends
//! together with it, so that a mount that was given up does not appear later. When the mount works,
//! the process becomes independent ([`stand_alone`]), prints [`READY`], which ends the wait, and
//! from then on writes only to its log ([`fall_silent`]). If it ends before, its error message
//! becomes the error of the starter.
//!
//! It keeps nothing of its starter for which other programs may wait: no descriptors, no terminal,
//! no working directory.

use std::{
    fmt::Display,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use rustix::process::{Signal, geteuid, set_parent_process_death_signal, setsid};

use crate::{ctl::run_dir, mount::MountArgs, reachability::WAITING, system_log::SystemLog};

/// What a mounting process says when the mount works.
pub const READY: &str = "mounted";
/// What a process that failed says before its reason.
const REASON: &str = "stria: ";

/// Mounts in the background; returns when the mount works or has failed.
pub fn start(arguments: &MountArgs) -> anyhow::Result<()> {
    // What a mount that works has to say of its log; one that does not gives its reason here.
    let mut notice = None;
    let log = match &arguments.log {
        Some(path) => Some((path.clone(), opened(path)?)),
        None if SystemLog::is_served() => None,
        None => {
            let own = own_log(&run_dir::default_path(), &arguments.mount_point);
            notice = Some(match &own {
                Ok((path, _)) => {
                    format!("there is no system log (/dev/log) here: the mount logs to {}", path.display())
                }
                Err(error) => format!(
                    "there is no system log (/dev/log) here, and no log file can be opened ({error}): name one with --log"
                ),
            });
            own.ok()
        }
    };
    let (log, mut errors) = match log {
        Some((path, file)) => (Some(path), file),
        None => (None, tempfile::tempfile().context("cannot create a temporary file")?),
    };
    // What earlier mounts have written into the file is not this one's reason.
    let begin = errors.metadata()?.len();
    let mut command = command(arguments, log.as_deref())?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
    // SAFETY: setsid, prctl and close_range are async-signal-safe and touch no memory of this
    // process.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // Rust's own descriptors close themselves; those that this process was given must not
            // live as long as the mount, because others may wait for their end. A kernel without
            // the call (before 5.11) leaves them open.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start the background process")?;
    let output = child.stdout.take().context("the child's output is not piped")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line.starts_with(READY) {
            notice.into_iter().for_each(tell);
            return Ok(());
        }
        if line.starts_with(WAITING) {
            tell(line);
        }
    }
    let status = child.wait()?;
    let mut text = Vec::new();
    errors.seek(SeekFrom::Start(begin))?;
    errors.read_to_end(&mut text)?;
    match String::from_utf8_lossy(&text).lines().rev().find_map(|line| line.strip_prefix(REASON)) {
        Some(reason) => bail!("{reason}"),
        None => bail!("the background process failed without giving a reason ({status})"),
    }
}

/// Tells the starter; a starter that does not read it gets the outcome nevertheless.
fn tell(text: impl Display) {
    let _ = writeln!(io::stderr(), "stria: {text}");
}

/// The requested log.
fn opened(path: &Path) -> anyhow::Result<File> {
    File::options().read(true).append(true).create(true).open(path).context("cannot open the log file")
}

/// A log of this mount alone in the run directory: `mount-mnt-data.log`, for its user to read.
/// Root's run directory is that of the servers too, which run as another user: what that one may
/// have put there in the log's place is refused.
fn own_log(run_dir: &Path, point: &Path) -> io::Result<(PathBuf, File)> {
    run_dir::prepare(run_dir)?;
    let point = std::path::absolute(point)?;
    let parts: Vec<String> = point.iter().skip(1).map(|part| part.to_string_lossy().into_owned()).collect();
    // A file name has 255 bytes at most; the end of a long path tells mounts apart best.
    let name: Vec<char> = parts.join("-").chars().collect();
    let end: String = name[name.len().saturating_sub(50)..].iter().collect();
    let path = run_dir.join(format!("mount-{end}.log"));
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    // Neither a link is followed nor a pipe waited for.
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != geteuid().as_raw() || found.nlink() != 1 {
        let text = format!("{} is not a regular file that this user alone owns", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok((path, file))
}

/// The command line of the background process.
fn command(arguments: &MountArgs, log: Option<&Path>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's executable")?);
    command.args(["mount", "--foreground", "--detached"]);
    command.args(arguments.sloppy.then_some("--sloppy"));
    if let Some(key) = &arguments.key {
        command.arg("--key").arg(std::path::absolute(key)?);
    }
    command.args(arguments.options.iter().map(|text| format!("-o{text}")));
    if let Some(log) = log {
        command.arg("--log").arg(log);
    }
    command.arg("--").arg(&arguments.source).arg(&arguments.mount_point);
    Ok(command)
}

/// In the background process: it outlives the starter, and holds no directory.
pub fn stand_alone() -> anyhow::Result<()> {
    set_parent_process_death_signal(None)?;
    std::env::set_current_dir("/").context("cannot leave the working directory")
}

/// In the background process: its output is not read any more. `logs`: except for its standard
/// error, which is the log.
pub fn fall_silent(logs: bool) -> anyhow::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    if !logs {
        rustix::stdio::dup2_stderr(&nowhere)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_log_in_the_run_directory_is_its_users_alone_and_no_link() {
        let place = tempfile::tempdir().unwrap();
        let (run_dir, precious) = (place.path().join("run"), place.path().join("precious"));
        let (path, mut log) = own_log(&run_dir, Path::new("/mnt/data")).unwrap();
        assert_eq!(path, run_dir.join("mount-mnt-data.log"));
        assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        log.write_all(b"line").unwrap();
        let (_, again) = own_log(&run_dir, Path::new("/mnt/data")).unwrap();
        assert_eq!(again.metadata().unwrap().len(), 4, "earlier lines stay");

        std::fs::write(&precious, "text").unwrap();
        symlink(&precious, run_dir.join("mount-a.log")).unwrap();
        symlink(place.path().join("new"), run_dir.join("mount-b.log")).unwrap();
        std::fs::hard_link(&precious, run_dir.join("mount-c.log")).unwrap();
        std::fs::create_dir(run_dir.join("mount-d.log")).unwrap();
        for point in ["/a", "/b", "/c", "/d"] {
            assert!(own_log(&run_dir, Path::new(point)).is_err(), "{point}");
        }
        assert!(!place.path().join("new").exists());
    }
}
