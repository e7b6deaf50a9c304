//! `lfs migrate` and `lfs swap_layouts` on mounts: data, layouts and attributes afterwards, what
//! prevents it, and what an interruption leaves behind.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use common::{
    FileSystem, Output, TIMEOUT, Transport,
    file_system::stria,
    load::{Random, compare_file},
    programs::copy_program,
    wait_for,
};
use rustix::fs::{Mode, OFlags};

fn lfs(system: &FileSystem, line: &str) -> Output {
    system.shell(&format!("cd $A && lfs {line}")).env("LC_ALL", "C").output()
}

fn succeed(system: &FileSystem, line: &str) -> String {
    let output = lfs(system, line);
    assert_eq!((output.status, output.stderr.as_str()), (0, ""), "lfs {line}");
    output.stdout
}

/// What migration must not change.
fn identity(path: &Path) -> (u64, u64, u32, u32, i64, i64, u64) {
    let found = fs::metadata(path).expect("it exists");
    (found.ino(), found.size(), found.mode(), found.uid(), found.mtime(), found.mtime_nsec(), found.nlink())
}

fn old_time(path: &Path) {
    let time =
        fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123));
    File::options().write(true).open(path).expect("open").set_times(time).expect("times");
}

/// `lfs` in the background.
fn start(system: &FileSystem, arguments: &[&str], path: &Path) -> std::process::Child {
    let mut command: Command = stria();
    command.arg("lfs").args(arguments).arg(path).current_dir(system.root());
    command.spawn().expect("it starts")
}

#[test]
fn files_get_other_layouts_with_their_data_under_the_same_inode() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let path = system.root().join("file");
    succeed(&system, "setstripe -c 1 -S 1M -i 0 file");
    let data = Random(7).bytes((9 << 20) + 12345);
    fs::write(&path, &data).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("chmod");
    fs::hard_link(&path, system.root().join("second")).expect("link");
    old_time(&path);
    let before = identity(&path);
    for (options, field, shown) in [
        ("-c 3 -S 64k", "-c", "3"),
        ("-c 2 -o 3,1", "-i", "3"),
        ("-E 1M -L mdt -E 4M -c 1 -E -1 -c -1", "--component-count", "3"),
        ("-E 64K -L mdt -E eof -c 4", "--component-count", "2"),
        ("-n -C 8", "-L", "raid0,overstriped"),
        ("-E 256M -z 64M -c 2 -E -1 -c 1", "--component-count", "3"),
        ("--block -c 1 -S 4M", "-S", "4194304"),
    ] {
        assert_eq!(succeed(&system, &format!("migrate {options} file")), "", "{options}");
        assert_eq!(succeed(&system, &format!("getstripe {field} file")), format!("{shown}\n"), "{options}");
        assert_eq!(identity(&path), before, "{options}");
        assert!(fs::read(&path).expect("read") == data, "{options}");
        system.check();
    }
    // It can be changed like any other file.
    let mut grown = File::options().append(true).open(&path).expect("open");
    grown.write_all(b"more").expect("write");
    grown.sync_all().expect("fsync");
    drop(grown);
    assert_eq!(fs::metadata(&path).expect("stat").size(), data.len() as u64 + 4);
    File::options().write(true).open(&path).expect("open").set_len(100).expect("truncate");
    assert!(fs::read(&path).expect("read") == data[..100]);
    system.finish();
}

#[test]
fn copies_defaults_and_automatic_layouts_are_taken() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let data = Random(8).bytes(3 << 20);
    system.shell("cd $A && mkdir dir && lfs setstripe -c 3 -S 2M dir && lfs setstripe -c 1 dir/file").succeed();
    fs::write(system.root().join("dir/file"), &data).expect("write");
    let count = || succeed(&system, "getstripe -c dir/file");
    succeed(&system, "migrate dir/file");
    assert_eq!(count(), "3\n", "of the directory");
    succeed(&system, "migrate -S 1M dir/file");
    assert_eq!((count().as_str(), succeed(&system, "getstripe -S dir/file").as_str()), ("3\n", "1048576\n"));
    system.shell("cd $A && lfs setstripe -c 2 -S 4M like && lfs migrate --copy=like dir/file").succeed();
    assert_eq!((count().as_str(), succeed(&system, "getstripe -S dir/file").as_str()), ("2\n", "4194304\n"));
    system
        .shell("cd $A && lfs setstripe -c 4 wide && lfs getstripe -y wide > y && lfs migrate --yaml=y dir/file")
        .succeed();
    assert_eq!(count(), "4\n");
    succeed(&system, "migrate -A dir/file");
    assert!(succeed(&system, "getstripe dir/file").contains("automatic"));
    assert!(fs::read(system.root().join("dir/file")).expect("read") == data);
    // An empty file, and one that was never opened.
    system.shell("cd $A && lfs setstripe -c 1 never && : > empty && printf 'never\\0empty\\0' > list").succeed();
    assert_eq!(succeed(&system, "migrate -v -c 2 -0 --files-from=list"), "never\nempty\n");
    assert_eq!(succeed(&system, "find never empty -c 2"), "never\nempty\n");
    system.finish();
}

#[test]
fn holes_stay_holes_and_progress_is_shown() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let path = system.root().join("sparse");
    succeed(&system, "setstripe -c 2 -S 1M sparse");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    file.write_all_at(b"middle", 300 << 20).expect("write");
    file.set_len(1 << 30).expect("truncate");
    drop(file);
    let shown = succeed(&system, "migrate --stats -W 100 -c 4 sparse");
    assert!(shown.starts_with("- { seconds: ") && shown.ends_with("size: 1073741824, percent: 100.0 }\n"), "{shown}");
    let found = fs::metadata(&path).expect("stat");
    assert!(found.size() == 1 << 30 && found.blocks() < 100, "{} blocks", found.blocks());
    let mut middle = [0; 8];
    File::open(&path).expect("open").read_exact_at(&mut middle, (300 << 20) - 1).expect("read");
    assert_eq!(&middle, b"\0middle\0");
    system.finish();
}

#[test]
fn layouts_are_swapped_with_the_data() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let paths = ["one", "two"].map(|name| system.root().join(name));
    succeed(&system, "setstripe -c 3 -S 64k one");
    succeed(&system, "setstripe -E 64K -L mdt -E -1 -c 1 -S 1M two");
    let data = [Random(1).bytes(1 << 20), Random(2).bytes(200_000)];
    for (path, data) in paths.iter().zip(&data) {
        fs::write(path, data).expect("write");
        old_time(path);
    }
    fs::set_permissions(&paths[0], fs::Permissions::from_mode(0o640)).expect("chmod");
    let times = |path: &PathBuf| fs::metadata(path).expect("stat").mtime();
    let inodes = paths.clone().map(|path| fs::metadata(path).expect("stat").ino());
    for turn in 0..3 {
        succeed(&system, "swap_layouts one two");
        let (first, second) = if turn % 2 == 0 { (1, 0) } else { (0, 1) };
        // On another client too.
        for client in 0..2 {
            let read = |name: &str| fs::read(system.path(client).join(name)).expect("read");
            assert!(read("one") == data[first] && read("two") == data[second], "turn {turn}, client {client}");
        }
        assert_eq!(paths.clone().map(|path| fs::metadata(path).expect("stat").ino()), inodes);
        assert!(times(&paths[0]) == 1234 && times(&paths[1]) == 1234);
        assert_eq!(fs::metadata(&paths[0]).expect("stat").mode() & 0o777, 0o640);
        system.check();
    }
    assert_eq!(succeed(&system, "getstripe --component-count one two"), "2\n0\n");
    // Each continues for itself, and takes its own objects along when it goes.
    File::options().append(true).open(&paths[0]).expect("open").write_all(&data[0]).expect("write");
    assert!(fs::read(&paths[0]).expect("read") == [&data[1][..], &data[0]].concat());
    assert!(fs::read(&paths[1]).expect("read") == data[0]);
    fs::remove_file(&paths[0]).expect("unlink");
    assert!(fs::read(&paths[1]).expect("read") == data[0]);
    fs::remove_file(&paths[1]).expect("unlink");
    system.finish();
}

#[test]
fn who_is_in_use_is_not_swapped() {
    let system = FileSystem::start(Transport::Tcp, 2);
    system
        .shell("cd $A && lfs setstripe -c 1 one && lfs setstripe -c 2 two && echo one > one && echo two > two")
        .succeed();
    let busy = |line: &str| {
        let output = lfs(&system, line);
        assert_eq!(output.status, libc::EBUSY, "{line}: {}", output.stderr);
    };
    for client in 0..2 {
        let path = system.path(client).join("one");
        for options in [OpenOptions::new().read(true), OpenOptions::new().append(true)] {
            let open = options.open(&path).expect("open");
            busy("swap_layouts one two");
            busy("swap_layouts two one");
            busy("migrate -n -c 4 one");
            drop(open);
        }
    }
    for (line, status) in [
        ("swap_layouts one", 4),
        ("swap_layouts one one", libc::EINVAL),
        ("swap_layouts one .", libc::EISDIR),
        ("swap_layouts one nofile", libc::ENOENT),
        ("migrate -c 2 .", libc::EISDIR),
        ("migrate -c 2 nofile", libc::ENOENT),
        ("migrate -p nopool one", libc::EINVAL),
    ] {
        assert_eq!(lfs(&system, line).status, status, "{line}");
    }
    assert_eq!(system.shell("cd $B && cat one two && lfs getstripe -c one two").succeed(), "one\ntwo\n1\n2\n");
    succeed(&system, "swap_layouts one two");
    system.finish();
}

/// A user who may not write to a file cannot move it; the set-id bits of others' files do not
/// survive what they could not write.
#[test]
fn permission_is_that_to_write() {
    let system = FileSystem::start(Transport::InProcess, 1);
    system
        .shell("cd $A && mkdir -m 777 open && cd open && echo a > closed && echo b > shared && chmod 4777 shared")
        .succeed();
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let run = |line: &str| {
        let path = system.place().bin().join("lfs");
        system.shell(&format!("cd $A/open && {nobody} {} {line}", path.display())).output()
    };
    let lfs = system.place().bin().join("lfs");
    // The binary itself may be where others cannot read.
    fs::remove_file(&lfs).expect("the link of this test");
    copy_program(&lfs);
    assert_eq!(run("migrate -c 2 closed").status, libc::EACCES);
    assert_eq!(run("swap_layouts closed shared").status, libc::EACCES);
    let moved = run("migrate -c 2 shared");
    assert_eq!((moved.status, moved.stderr.as_str()), (0, ""));
    assert_eq!(
        system.shell("cd $A/open && cat shared && stat -c %a shared && lfs getstripe -c shared").succeed(),
        "b\n777\n2\n"
    );
    system.finish();
}

/// A writer that comes while a file is moved waits until it has moved; what it writes then is kept.
#[test]
fn writers_wait_until_a_file_has_moved() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let path = system.root().join("file");
    succeed(&system, "setstripe -c 1 file");
    let data = Random(3).bytes(8 << 20);
    fs::write(&path, &data).expect("write");
    // Two seconds of copying.
    let mut moving = start(&system, &["migrate", "-W", "4", "-c", "4"], &path);
    let there = system.path(1).join("file");
    wait_for("the migration holds writers off", TIMEOUT, || is_held(&system).then_some(()));
    let mut writer = File::options().append(true).open(&there).expect("open");
    assert_eq!(succeed(&system, "getstripe -c file"), "4\n", "it has moved by now");
    writer.write_all(b"the end").expect("write");
    drop(writer);
    assert!(moving.wait().expect("it ends").success());
    assert!(fs::read(&path).expect("read") == [&data[..], b"the end"].concat());
    system.finish();
}

/// Each would wait until the other has closed the file, and writers for both, forever.
#[test]
fn several_migrations_of_one_file_come_one_after_the_other() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let path = system.root().join("file");
    succeed(&system, "setstripe -c 1 file");
    let data = Random(3).bytes(4 << 20);
    fs::write(&path, &data).expect("write");
    // Long enough for the others to come while it copies.
    let mut moving = vec![start(&system, &["migrate", "-W", "2", "-c", "2"], &path)];
    wait_for("the migration holds writers off", TIMEOUT, || is_held(&system).then_some(()));
    for client in 0..2 {
        moving.push(start(&system, &["migrate", "-c", "3"], &system.path(client).join("file")));
    }
    for tool in &mut moving {
        let status = wait_for("the migration ends", TIMEOUT, || tool.try_wait().expect("it is a child"));
        assert!(status.success(), "{status}");
    }
    assert_eq!(succeed(&system, "getstripe -c file"), "3\n", "of the last ones");
    assert!(fs::read(system.path(1).join("file")).expect("read") == data);
    system.finish();
}

/// It would wait for the migration, which waits until it has closed what it reads.
#[test]
fn a_program_that_reads_a_file_and_then_writes_it_does_not_wait_for_a_migration() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let path = system.root().join("file");
    succeed(&system, "setstripe -c 1 file");
    let data = Random(3).bytes(4 << 20);
    fs::write(&path, &data).expect("write");
    let mut moving = start(&system, &["migrate", "-W", "2", "-c", "4"], &path);
    wait_for("the migration holds writers off", TIMEOUT, || is_held(&system).then_some(()));
    let there = system.path(1).join("file");
    let reader = File::open(&there).expect("open for reading");
    let mut writer = File::options().append(true).open(&there).expect("open for writing");
    writer.write_all(b"the end").expect("write");
    drop((reader, writer));
    let status = wait_for("the migration ends", TIMEOUT, || moving.try_wait().expect("it is a child"));
    assert!(status.success(), "{status}");
    assert_eq!(succeed(&system, "getstripe -c file"), "4\n", "copied once more");
    assert!(fs::read(&path).expect("read") == [&data[..], b"the end"].concat());
    system.finish();
}

/// Else not even SIGKILL would end a process before somebody else's migration has.
#[test]
fn who_waits_for_a_migration_can_be_interrupted() {
    type Wait = fn(&Path) -> io::Result<()>;
    let system = FileSystem::start(Transport::Tcp, 2);
    let path = system.root().join("file");
    succeed(&system, "setstripe -c 1 file");
    let data = vec![7; 96 << 20];
    fs::write(&path, &data).expect("write");
    // It would take longer than anything in a test does.
    let mut moving = start(&system, &["migrate", "-W", "1", "-c", "4"], &path);
    wait_for("the migration holds writers off", TIMEOUT, || is_held(&system).then_some(()));
    // SAFETY: it is this process's child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(moving.id().cast_signed(), libc::SIGSTOP) }, 0);
    let waits: [Wait; 3] = [
        |path| open_once(path, OFlags::WRONLY | OFlags::APPEND),
        |path| open_once(path, OFlags::WRONLY | OFlags::TRUNC),
        truncate_by_path,
    ];
    for wait in waits {
        let there = system.path(1).join("file");
        assert_eq!(interrupted(move || wait(&there)).kind(), io::ErrorKind::Interrupted);
    }
    moving.kill().expect("it runs");
    moving.wait().expect("it ends");
    File::options().append(true).open(&path).expect("open").write_all(b"the end").expect("write");
    assert!(fs::read(&path).expect("read") == [&data[..], b"the end"].concat());
    system.finish();
}

/// Not [`File::open`], which tries again.
fn open_once(path: &Path, flags: OFlags) -> io::Result<()> {
    Ok(rustix::fs::open(path, flags, Mode::empty()).map(drop)?)
}

fn truncate_by_path(path: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero and lives until the call returns.
    match unsafe { libc::truncate(path.as_ptr(), 5) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a call that waits forever fails under signals.
fn interrupted(call: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Error {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing; without SA_RESTART the call ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: pthread_self has no preconditions.
        sender.send(unsafe { libc::pthread_self() }).expect("the test listens");
        call()
    });
    let number = receiver.recv().expect("the thread says who it is");
    // A signal before the call waits does nothing, so it is sent until the call has ended.
    wait_for("the call has ended", TIMEOUT, || {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(number, libc::SIGUSR1) };
        thread.is_finished().then_some(())
    });
    thread.join().expect("it does not panic").expect_err("the file is held")
}

/// Whether the unnamed file of a migration exists: then writers are held off.
fn is_held(system: &FileSystem) -> bool {
    fs::read_dir("/proc").expect("proc").flatten().any(|process| {
        let descriptors = fs::read_dir(process.path().join("fd"));
        let mut links = descriptors.into_iter().flatten().flatten().filter_map(|link| fs::read_link(link.path()).ok());
        links.any(|link| link.starts_with(system.root()) && link.to_string_lossy().ends_with("(deleted)"))
    })
}

/// A migration that is killed in the middle leaves the file as it was, and nothing else.
#[test]
fn an_end_in_the_middle_leaves_the_file_as_it_was() {
    let mut system = FileSystem::start(Transport::Tcp, 1);
    let path = system.root().join("file");
    succeed(&system, "setstripe -c 1 file");
    let data = Random(4).bytes(8 << 20);
    fs::write(&path, &data).expect("write");
    let mut moving = start(&system, &["migrate", "-W", "1", "-c", "4"], &path);
    wait_for("the migration copies", TIMEOUT, || is_held(&system).then_some(()));
    moving.kill().expect("kill");
    moving.wait().expect("it ended");
    // Writers continue, and everything of the attempt goes.
    File::options().append(true).open(&path).expect("open").write_all(b"!").expect("write");
    assert_eq!(succeed(&system, "getstripe -c file"), "1\n");
    assert!(fs::read(&path).expect("read") == [&data[..], b"!"].concat());
    system.check();
    // The servers in the middle of another: the tool finds its way.
    let mut moving = start(&system, &["migrate", "-W", "4", "-c", "4"], &path);
    wait_for("the migration copies", TIMEOUT, || is_held(&system).then_some(()));
    for server in [0, 1] {
        system.kill_server(server);
        system.start_server(server);
    }
    let moved = moving.wait().expect("it ends").success();
    let count = succeed(&system, "getstripe -c file");
    assert_eq!(count, if moved { "4\n" } else { "1\n" });
    assert!(fs::read(&path).expect("read") == [&data[..], b"!"].concat());
    system.check();
    succeed(&system, "migrate -c 3 file");
    // What was moved is found by new starts of everything.
    for server in [0, 1] {
        system.kill_server(server);
        system.start_server(server);
    }
    system.unmount(0);
    system.mount(0);
    assert!(fs::read(&path).expect("read") == [&data[..], b"!"].concat());
    assert_eq!(succeed(&system, "getstripe -c file"), "3\n");
    system.finish();
}

/// Moves and swaps, and at some moment in the middle the tools end, or the metadata server, or
/// both: then fsck finds nothing wrong, has nothing to repair, and the files read back as they
/// were.
#[test]
fn fsck_finds_nothing_wrong_whoever_ends_in_the_middle_of_moves() {
    const ROUNDS: u64 = 9;
    let mut system = FileSystem::start(Transport::Tcp, 1);
    let mut random = Random(12);
    let paths = ["moved", "grown", "one", "two"].map(|name| system.root().join(name));
    let mut data = [3, 4, 5, 6].map(|seed| Random(seed).bytes((1 << 20) + 1000 * seed));
    for (path, data) in paths.iter().zip(&data) {
        fs::write(path, data).expect("write");
    }
    for round in 0..ROUNDS {
        let count = (1 + round % 4).to_string();
        let mut tools = vec![
            start(&system, &["migrate", "-c", &count], &paths[0]),
            start(&system, &["migrate", "-E", "64K", "-L", "mdt", "-E", "eof", "-c", &count], &paths[1]),
            start(&system, &["swap_layouts", &paths[2].to_string_lossy()], &paths[3]),
        ];
        // Any moment will do.
        std::thread::sleep(std::time::Duration::from_millis(random.below(120)));
        let (server_ends, tools_end) = (round % 3 != 0, round % 3 != 1);
        if tools_end {
            tools.iter_mut().for_each(|tool| tool.kill().expect("kill"));
        }
        if server_ends {
            system.kill_server(0);
            system.start_server(0);
        }
        for tool in &mut tools {
            tool.wait().expect("it ends");
        }
        system.check();
        // The swap happened or not, as a whole.
        if fs::read(&paths[2]).expect("read") == data[3] {
            data.swap(2, 3);
        }
        for (path, data) in paths.iter().zip(&data) {
            compare_file(path, data);
        }
        // The first look has reported the sizes that were unknown.
        let repaired = system.fsck(&["--data", "--repair"]);
        assert!(repaired.status == 0 && repaired.stdout.contains(" 0 problems"), "round {round}: {repaired:?}");
        for (path, data) in paths.iter().zip(&data) {
            compare_file(path, data);
        }
        File::options().append(true).open(&paths[1]).expect("open").write_all(b"more").expect("write");
        data[1].extend(b"more");
    }
    system.finish();
}
