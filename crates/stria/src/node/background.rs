//! The background process of a mount: the same program again, in its foreground mode and in a session of its own.
//!
//! Life cycle: [`start`] starts it and waits. As long as somebody waits, the process ends with the one who does, so that a
//! mount that was given up does not appear later. When the mount works, it lets go of that ([`stand_alone`]), says
//! [`READY`], which ends the wait, and from then on writes to its log alone ([`fall_silent`]). If it ends before, the
//! reason it gave becomes the error of the one who waits.
//!
//! It keeps nothing of its starter that others may wait for: no descriptors, no terminal, no working directory.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use crate::cli::MountArgs;

/// What a mounting process says when the mount works.
pub const READY: &str = "mounted";
/// What a mounting process says when that takes longer, before what it waits for.
pub const WAITING: &str = "waiting for";
/// What a process that failed says before its reason.
const REASON: &str = "stria: ";

/// Mounts in the background; returns when the mount works or has failed.
pub fn start(arguments: &MountArgs) -> anyhow::Result<()> {
    let mut errors = match &arguments.log {
        Some(path) => File::options().read(true).append(true).create(true).open(path),
        None => tempfile::tempfile(),
    }
    .context("cannot open the log file")?;
    // What earlier mounts have written into the file is not this one's reason.
    let begin = errors.metadata()?.len();
    let mut command = command(arguments)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
    // SAFETY: setsid, prctl and close_range are async-signal-safe and touch no memory of this process.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // Rust's own descriptors close themselves; those that this process was given, and whoever waits for their
            // end, must not live as long as the mount. A kernel without the call (before 5.11) leaves them open.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start the background process")?;
    let output = child.stdout.take().context("the child's output is not piped")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line.starts_with(READY) {
            return Ok(());
        }
        if line.starts_with(WAITING) {
            // Whoever does not read it gets the outcome all the same.
            let _ = writeln!(io::stderr(), "stria: {line}");
        }
    }
    let status = child.wait()?;
    let mut text = Vec::new();
    errors.seek(SeekFrom::Start(begin))?;
    errors.read_to_end(&mut text)?;
    match String::from_utf8_lossy(&text).lines().rev().find_map(|line| line.strip_prefix(REASON)) {
        Some(reason) => bail!("{reason}"),
        None => bail!("the background process gave no reason ({status})"),
    }
}

/// The command line of the background process.
fn command(arguments: &MountArgs) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's file")?);
    command.args(["mount", "--foreground", "--detached"]);
    command.args(arguments.sloppy.then_some("--sloppy"));
    command.args(arguments.options.iter().map(|text| format!("-o{text}")));
    if let Some(log) = &arguments.log {
        command.arg("--log").arg(log);
    }
    command.arg("--").arg(&arguments.source).arg(&arguments.mount_point);
    Ok(command)
}

/// In the background process: it outlives the one who waits, and holds no directory.
pub fn stand_alone() -> anyhow::Result<()> {
    set_parent_process_death_signal(None)?;
    std::env::set_current_dir("/").context("cannot leave the working directory")
}

/// In the background process: nobody reads its output any more. `logs`: except for its standard error, which is the log.
pub fn fall_silent(logs: bool) -> anyhow::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    if !logs {
        rustix::stdio::dup2_stderr(&nowhere)?;
    }
    Ok(())
}
