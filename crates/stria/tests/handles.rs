//! File handles: name_to_handle_at(2) and open_by_handle_at(2), which NFS servers in the kernel
//! use.

mod common;

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::{ffi::OsStrExt, fs::MetadataExt, fs::symlink},
    },
    path::{Path, PathBuf},
};

use common::{FileSystem, TIMEOUT, Transport, wait_for};

/// Bytes of the longest handle (MAX_HANDLE_SZ).
const BYTES_MAX: usize = 128;

/// `struct file_handle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES_MAX],
}

impl Handle {
    /// Of what a path names; of a symbolic link itself.
    fn of(path: &Path) -> Self {
        let mut handle = Handle { bytes: BYTES_MAX as u32, kind: 0, handle: [0; BYTES_MAX] };
        let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        let mut mount = 0_i32;
        // SAFETY: the structure is the kernel's, with the room that it says it has; the name ends
        // with NUL.
        let outcome = unsafe {
            let handle = &raw mut handle;
            libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, name.as_ptr(), handle, &raw mut mount, 0)
        };
        assert_eq!(outcome, 0, "{}: {}", path.display(), io::Error::last_os_error());
        handle
    }

    fn open_with(&self, mount: &Path, flags: i32) -> io::Result<File> {
        let mount = File::open(mount).expect("the mount point");
        let mut handle = *self;
        // SAFETY: as above; the descriptor is new, and nobody else's.
        unsafe {
            let descriptor =
                libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, flags | libc::O_CLOEXEC);
            if descriptor < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(descriptor as i32)) }
        }
    }

    fn open(&self, mount: &Path) -> io::Result<File> {
        self.open_with(mount, libc::O_RDONLY)
    }

    /// The same handle with one byte changed.
    fn forged(&self, position: usize) -> Self {
        let mut forged = *self;
        forged.handle[position] ^= 0x55;
        forged
    }
}

fn text(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    text
}

fn is_stale(outcome: io::Result<File>) -> bool {
    outcome.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
}

/// Where the kernel says that an open directory is.
fn place(directory: &File) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).expect("procfs")
}

/// Every handle leads to its inode; directories have their paths.
fn check(mount: &Path, handles: &[(&str, Handle)]) {
    for (name, handle) in handles {
        let metadata = fs::symlink_metadata(mount.join(name)).expect("stat");
        let found =
            handle.open_with(mount, libc::O_PATH | libc::O_NOFOLLOW).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.metadata().expect("stat").ino(), metadata.ino(), "{name}");
        if metadata.is_dir() {
            let directory = handle.open(mount).expect("open");
            assert_eq!(place(&directory), mount.join(name), "{name}");
        } else if metadata.is_file() {
            assert_eq!(text(handle.open(mount).expect("open")), *name);
        }
    }
}

#[test]
fn handles_lead_to_their_files_after_restarts_of_everything() {
    let mut system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).to_owned(), system.path(1).to_owned());
    fs::create_dir_all(a.join("outer/inner")).expect("mkdir");
    for name in ["file", "outer/inner/deep", "outer/linked"] {
        fs::write(a.join(name), name).expect("write");
    }
    fs::hard_link(a.join("outer/linked"), a.join("second")).expect("link");
    symlink("file", a.join("symlink")).expect("symlink");
    let names = ["", "file", "outer", "outer/inner", "outer/inner/deep", "outer/linked", "symlink"];
    let handles = names.map(|name| (name.trim_end_matches('/'), Handle::of(&a.join(name))));
    check(&a, &handles);
    // Inodes that this mount has never been told of.
    check(&b, &handles);
    // Servers that have forgotten them, and mounts that never knew them.
    for client in 0..2 {
        system.unmount(client);
    }
    for server in 0..2 {
        system.kill_server(server);
    }
    for server in 0..2 {
        system.start_server(server);
    }
    for client in 0..2 {
        system.mount(client);
    }
    check(&b, &handles);
    // A directory that moved is found where it is.
    fs::rename(b.join("outer/inner"), b.join("moved")).expect("rename");
    let inner = handles[3].1.open(&a).expect("open");
    assert_eq!(place(&inner), a.join("moved"));
    assert_eq!(text(handles[4].1.open(&a).expect("open")), "outer/inner/deep");
    // What is written through a handle is written.
    let mut file = handles[1].1.open_with(&a, libc::O_WRONLY | libc::O_TRUNC).expect("open");
    file.write_all(b"by handle").expect("write");
    drop((file, inner));
    assert_eq!(fs::read_to_string(b.join("file")).expect("read"), "by handle");
    system.finish();
}

#[test]
fn stale_and_forged_handles_are_refused() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).to_owned(), system.path(1).to_owned());
    let make = |name: &str| {
        fs::write(a.join(name), name).expect("write");
        Handle::of(&a.join(name))
    };
    let (removed, elsewhere, open, linked) = (make("removed"), make("elsewhere"), make("open"), make("linked"));
    fs::hard_link(a.join("linked"), a.join("other name")).expect("link");
    fs::create_dir(a.join("d")).expect("mkdir");
    let directory = Handle::of(&a.join("d"));
    let kept = File::open(a.join("open")).expect("open");
    for name in ["removed", "open", "linked"] {
        fs::remove_file(a.join(name)).expect("unlink");
    }
    fs::remove_dir(a.join("d")).expect("rmdir");
    fs::remove_file(b.join("elsewhere")).expect("unlink");
    for (mount, handle) in [(&a, &removed), (&b, &removed), (&a, &directory), (&b, &directory), (&b, &elsewhere)] {
        assert!(is_stale(handle.open(mount)), "{handle:?}");
    }
    // This mount knew it, and may open it for a moment.
    wait_for("the end of a removed file", TIMEOUT, || is_stale(elsewhere.open(&a)).then_some(()));
    assert_eq!(text(open.open(&a).expect("it is open")), "open");
    assert_eq!(text(linked.open(&a).expect("it has another name")), "linked");
    drop(kept);
    wait_for("the end of a removed file", TIMEOUT, || is_stale(open.open(&b)).then_some(()));
    // Another inode, another generation, no metadata server.
    for position in 0..linked.bytes as usize {
        assert!(is_stale(linked.forged(position).open(&b)), "byte {position} of {linked:?}");
    }
    assert_eq!(text(linked.open(&b).expect("it is as before")), "linked");
    system.finish();
}
