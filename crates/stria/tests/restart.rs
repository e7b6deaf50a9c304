//! Stopping, restarting and killing servers: acknowledged changes are there afterwards, and waiting
//! programs continue.

mod common;

use std::{
    fs::{self, File, Permissions},
    io::{Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    time::Duration,
};

use common::{
    Daemon, FileSystem, Place, TIMEOUT, Transport,
    file_system::stria,
    load::{Load, Random},
    programs::program,
};
use rustix::process::Signal;

/// Directories for workers: one with files over all targets, one with the default layout.
const DIRECTORIES: [&str; 2] = ["wide", "plain"];

fn prepare_load(system: &FileSystem) {
    DIRECTORIES.iter().for_each(|name| fs::create_dir(system.root().join(name)).expect("mkdir"));
    system.shell("lfs setstripe -c -1 -S 64k $A/wide").succeed();
}

#[test]
fn up_finds_its_data_again() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let root = system.root().to_owned();
    let large = Random(1).bytes(30 << 20);
    system.shell("lfs setstripe -c 4 -S 1M $A/large").succeed();
    fs::write(root.join("large"), &large).expect("write");
    fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
    for number in 0..500 {
        fs::write(root.join(format!("a/b/c/{number}")), number.to_string()).expect("write");
    }
    let everything = "cd $A && find . -printf '%p %y %m %s %n %T@ %i\\n' | sort && getfattr -Rhdm- . && getfacl -RnP .";
    system.shell("cd $A/a && ln b/c/1 hard && ln -s nowhere soft && mkfifo pipe && setfacl -m u:7:r b/c/2 && chmod 4711 b/c/3 && setfattr -n user.x -v y b").succeed();
    let before = system.shell(everything).succeed();
    for _ in 0..2 {
        system.unmount(0);
        assert_eq!(fs::read_dir(&root).expect("the mount point").count(), 0, "unmounted");
        system.mount(0);
        assert_eq!(system.shell(everything).succeed(), before);
        assert!(fs::read(root.join("large")).expect("read") == large);
    }
    system.finish();
}

/// More targets at a later start: old files stay where they are, new ones use all.
#[test]
fn up_takes_further_targets() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    fs::write(system.root().join("old"), b"old").expect("write");
    system.unmount(0);
    system.set_osts(6);
    system.mount(0);
    assert_eq!(fs::read(system.root().join("old")).expect("read"), b"old");
    assert_eq!(system.shell("lfs setstripe -c -1 $A/new && lfs getstripe -c $A/new").succeed(), "6\n");
    system.finish();
}

#[test]
fn what_up_acknowledged_survives_its_death_under_load() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    prepare_load(&system);
    for round in 0..3 {
        let names: Vec<String> = (0..4).map(|n| format!("{}/{round}-{n}", DIRECTORIES[n % 2])).collect();
        names.iter().for_each(|name| fs::create_dir(system.root().join(name)).expect("mkdir"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let load = Load::start(system.root(), &names, round);
        load.wait_for_progress(40);
        system.kill_client(0);
        let written = load.failed();
        system.mount(0);
        written.compare(system.root());
        // Nothing is left of the interrupted operations that would hinder new ones.
        fs::write(system.root().join(names[0]).join("after"), b"x").expect("write");
        fs::remove_file(system.root().join(names[0]).join("after")).expect("unlink");
    }
    system.finish();
}

/// The client died with its servers: no lock waits for it to come back.
#[test]
fn after_the_death_of_up_nobody_waits_for_its_own_client() {
    /// Half of what clients elsewhere have to come back.
    const SOON: Duration = Duration::from_secs(15);
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let path = system.root().join("log");
    let mut log = File::options().append(true).create(true).open(&path).expect("open");
    log.write_all(b"before").expect("append");
    system.kill_client(0);
    drop(log);
    system.mount(0);
    let run_dir = system.place().data("up").join("run");
    let status = format!("stria ctl --run-dir {} get_param -n mdt.*.recovery_status", run_dir.display());
    common::wait_for("nobody is waited for", SOON, || {
        (system.shell(&status).succeed() == "status: COMPLETE\n").then_some(())
    });
    let mut log = File::options().append(true).open(&path).expect("open");
    log.write_all(b" and after").expect("append");
    assert_eq!(fs::read_to_string(&path).expect("read"), "before and after");
    drop(log);
    system.finish();
}

#[test]
fn clients_wait_for_killed_servers_and_go_on() {
    const MDS: usize = 0;
    const OSS: usize = 1;
    let mut system = FileSystem::start(Transport::Tcp, 2);
    prepare_load(&system);
    let load = Load::start(system.root(), &DIRECTORIES, 7);
    for victims in [&[MDS][..], &[OSS], &[MDS, OSS]] {
        load.wait_for_progress(20);
        victims.iter().for_each(|server| system.kill_server(*server));
        victims.iter().for_each(|server| system.start_server(*server));
        load.wait_for_progress(20);
    }
    let written = load.stop();
    written.compare(system.path(0));
    written.compare(system.path(1));
    system.finish();
}

/// Open files, also removed ones, and locks live on when servers are killed and started again.
#[test]
fn open_files_and_locks_outlive_servers() {
    let mut system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).to_owned(), system.path(1).to_owned());
    let open = |path: &std::path::Path| {
        File::options().read(true).write(true).create(true).truncate(false).open(path).expect("open")
    };
    let (mut kept, removed, locked) = (open(&a.join("kept")), open(&a.join("removed")), open(&a.join("locked")));
    kept.write_all_at(b"before", 0).expect("write");
    removed.write_all_at(b"removed", 0).expect("write");
    fs::remove_file(b.join("removed")).expect("unlink");
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("free");
    for server in [0, 1] {
        system.kill_server(server);
        system.start_server(server);
    }
    let refused = rustix::fs::flock(open(&b.join("locked")), rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK), "still locked");
    kept.write_all_at(b" and after", 6).expect("write");
    let mut text = String::new();
    kept.rewind().expect("seek");
    kept.read_to_string(&mut text).expect("read");
    assert_eq!(text, "before and after");
    assert_eq!(fs::read_to_string(b.join("kept")).expect("read"), text);
    removed.write_all_at(b"!", 7).expect("write");
    let mut found = [0; 8];
    removed.read_exact_at(&mut found, 0).expect("read");
    assert_eq!((&found, removed.metadata().expect("stat").nlink()), (b"removed!", 0));
    drop((kept, removed, locked));
    // The kernel tells of a close a moment later.
    let b_locked = open(&b.join("locked"));
    common::wait_for("closed is unlocked", TIMEOUT, || {
        rustix::fs::flock(&b_locked, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()
    });
    drop(b_locked);
    system.finish();
}

/// A server that stays away ends the wait with an error, and the mount works again when it is back.
#[test]
fn a_server_that_stays_away_is_an_error_in_the_end() {
    let mut system = FileSystem::start(Transport::Tcp, 1);
    system.unmount(0);
    system.set_mount_options("timeout=2");
    system.mount(0);
    let root = system.root().to_owned();
    fs::write(root.join("file"), b"x").expect("write");
    system.kill_server(0);
    let failed = fs::metadata(root.join("file")).expect_err("nobody answers");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
    system.start_server(0);
    common::wait_for("the mount works again", TIMEOUT, || fs::read(root.join("file")).ok());
    // Programs that wait can be interrupted.
    system.kill_server(0);
    let line = format!("timeout --signal=INT 0.5 stat {}; test $? = 124", root.join("file").display());
    program("bash").args(["-c", &line]).succeed();
    system.start_server(0);
    common::wait_for("the mount works again", TIMEOUT, || fs::read(root.join("file")).ok());
    system.finish();
}

/// A benchmark that would never end by itself: what unpacks its archive waits until the benchmark's
/// directory is gone.
#[test]
fn an_interrupted_benchmark_leaves_neither_servers_nor_mounts_nor_data() {
    const TAR: &str = "#!/bin/sh\nif [ \"$1\" != -xf ]; then PATH=${PATH#*:}; exec tar \"$@\"; fi\necho unpacking\n\
        exec >/dev/null 2>&1\nwhile [ -e \"$2\" ]; do sleep 0.1; done\n";
    let place = Place::new();
    let [bin, source, work] = ["bin", "source", "work"].map(|name| place.data(name));
    [&bin, &source, &work].into_iter().for_each(|directory| fs::create_dir(directory).expect("mkdir"));
    fs::write(source.join("file"), "of a tree").expect("write");
    fs::write(bin.join("tar"), TAR).expect("write");
    fs::set_permissions(bin.join("tar"), Permissions::from_mode(0o755)).expect("chmod");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = stria();
        command.args(["bench", "tree", "--systems", "tcp-mount", "--repeat", "1", "--osts", "1"]).env("PATH", &path);
        command.arg("--source").arg(&source).arg("--dir").arg(&work);
        let mut bench = Daemon::start("bench", command, &place.data("bench.log"));
        bench.wait_for("unpacking");
        assert_eq!(bench.end_by(signal).code(), Some(128 + signal.as_raw()));
        assert_eq!(fs::read_dir(&work).expect("the directory given").count(), 0, "{signal:?}");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(work.to_str().expect("UTF-8")), "{mounts}");
    }
}
