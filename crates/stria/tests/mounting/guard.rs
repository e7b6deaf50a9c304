//! The guard of a mount frees programs when the daemon is killed while a thread of it is stuck in
//! the kernel.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

use crate::common::{FileSystem, TIMEOUT, Transport, wait_for};

/// How long programs may wait for an error after the daemon was killed: the guard needs one second.
const FREED_WITHIN: Duration = Duration::from_secs(20);
/// Server of the OSTs.
const OSS: usize = 1;

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process as i32).expect("a process has a number");
    kill_process(process, signal).expect("the process is there");
}

/// Ends the connection of a mount if the test fails, so that the test does not hang instead.
struct EndsConnection(PathBuf);

impl Drop for EndsConnection {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = unmount(&self.0, UnmountFlags::FORCE);
        }
    }
}

/// Starts `stat` of a file; waits until it waits for an answer of the mount.
fn stuck_stat(path: PathBuf) -> Child {
    let mut command = Command::new("stat");
    let child = command.arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stat");
    let waits_in = format!("/proc/{}/wchan", child.id());
    wait_for("a request that waits for the OSTs", TIMEOUT, || {
        let function = fs::read_to_string(&waits_in).expect("the process is there");
        function.contains("request_wait_answer").then_some(())
    });
    child
}

/// A LOOKUP that waits for the OSTs holds the lock of its directory. A name in the directory is
/// withdrawn meanwhile: the thread that tells the kernel waits for that lock. Then the daemon is
/// killed. Its thread lives on, and keeps the connection open on whose end it waits.
#[test]
fn programs_are_freed_when_a_daemon_is_killed_whose_thread_waits_for_a_directory() {
    let mut system = FileSystem::start(Transport::Tcp, 2);
    let [mine, other] = [0, 1].map(|client| system.path(client).join("d"));
    fs::create_dir(&other).unwrap();
    let removed = ["removed0", "removed1", "removed2", "removed3", "removed4"];
    removed.iter().for_each(|name| fs::write(other.join(name), "").unwrap());
    // Only its writer and the OSTs know its size. The first mount has not looked it up.
    let mut growing = fs::File::create(other.join("growing")).unwrap();
    growing.write_all(&[7; 1 << 20]).unwrap();
    fs::metadata(mine.join(removed[0])).expect("the directory is known");
    let _ends_connection = EndsConnection(system.path(0).to_owned());
    signal(system.server_pid(OSS), Signal::STOP);
    let mut stat = stuck_stat(mine.join("growing"));
    // A removal returns when the kernel has been told in another way, after a second. On a busy
    // host the kernel may have dropped the name before.
    let is_stuck = removed.iter().any(|name| {
        fs::metadata(mine.join(name)).expect("the kernel caches the name");
        fs::remove_file(other.join(name)).unwrap();
        system.client_log(0).contains("the kernel has not dropped a name for a second")
    });
    assert!(is_stuck, "no thread is stuck: {}", system.client_log(0));
    signal(system.client_pid(0), Signal::KILL);
    let status = wait_for("the end of a program that used the mount", FREED_WITHIN, || stat.try_wait().unwrap());
    assert!(!status.success(), "there is nobody who could have answered it");
    system.kill_client(0);
    signal(system.server_pid(OSS), Signal::CONT);
    system.mount(0);
    drop(growing);
    assert_eq!(fs::metadata(mine.join("growing")).unwrap().len(), 1 << 20);
    system.finish();
}
