//! A small language for tables of tests: one system call, or a few, per line, and an answer in
//! words. Changes answer `ok`; everything that fails answers the name of its error.
//!
//! Paths are relative to the directory of the [`Workplace`]. Nothing here needs quotes: words are
//! separated by single spaces.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File, Metadata},
    io::{Read, Seek, SeekFrom, Write},
    mem::MaybeUninit,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RawDir, RenameFlags, Timespec, Timestamps,
        XattrFlags,
    },
    io::Errno,
};

type Fallible = Result<String, Errno>;

/// Where commands are executed, and what they keep open.
pub struct Workplace {
    root: PathBuf,
    files: BTreeMap<String, File>,
}

impl Workplace {
    /// Commands are relative to `root`.
    pub fn new(root: PathBuf) -> Self {
        Self { root, files: BTreeMap::new() }
    }

    /// Executes one command, or several that are separated by `; `, as their answers are.
    pub fn execute(&mut self, line: &str) -> String {
        let answer = |command: &str| {
            let words: Vec<&str> = command.split(' ').collect();
            self.command(&words).unwrap_or_else(error_name)
        };
        line.split("; ").map(answer).collect::<Vec<_>>().join("; ")
    }

    fn at(&self, path: &str) -> PathBuf {
        if path == "." { self.root.clone() } else { self.root.join(path) }
    }

    fn command(&mut self, words: &[&str]) -> Fallible {
        match words {
            // Looks.
            ["stat", path, fields @ ..] => Ok(show(&errno(fs::symlink_metadata(self.at(path)))?, fields)),
            ["cat", path] => contents(open(&self.at(path), OFlags::RDONLY | OFlags::NONBLOCK)?),
            ["open", path, mode] => {
                let flags = open_flags(mode) | OFlags::NONBLOCK;
                open(&self.at(path), flags).map(drop)?;
                done()
            }
            ["names", path] => names(&self.at(path)),
            ["readlink", path] => Ok(rustix::fs::readlink(self.at(path), Vec::new())?.to_string_lossy().into_owned()),
            ["getxattr", path, name] => {
                let mut value = vec![0; 4096];
                let count = rustix::fs::getxattr(self.at(path), *name, value.as_mut_slice())?;
                Ok(String::from_utf8_lossy(&value[..count]).into_owned())
            }
            ["listxattr", path] => user_xattrs(&self.at(path)),
            ["access", path, wanted] => {
                rustix::fs::accessat(CWD, self.at(path), access_wanted(wanted), AtFlags::EACCESS)?;
                done()
            }
            // Of files that are kept open.
            ["keep", name, path, mode] => {
                let file = open(&self.at(path), open_flags(mode) | OFlags::NONBLOCK)?;
                self.files.insert((*name).to_owned(), file);
                done()
            }
            ["drop", name] => {
                self.files.remove(*name);
                done()
            }
            ["fstat", name, fields @ ..] => Ok(show(&errno(self.file(name)?.metadata())?, fields)),
            ["fcat", name] => {
                let mut file = self.file(name)?;
                errno(file.seek(SeekFrom::Start(0)))?;
                let mut text = String::new();
                errno(file.read_to_string(&mut text))?;
                Ok(text)
            }
            // From the beginning, as after rewinddir(3).
            ["fnames", name] => names_again(self.file(name)?),
            ["fwrite", name, text] => {
                errno(self.file(name)?.write_all_at(text.as_bytes(), 0))?;
                done()
            }
            ["fchmod", name, mode] => {
                rustix::fs::fchmod(self.file(name)?, Mode::from_bits_retain(octal(mode)))?;
                done()
            }
            _ => self.change(words).and_then(|()| done()),
        }
    }

    fn file(&self, name: &str) -> Result<&File, Errno> {
        self.files.get(name).ok_or(Errno::BADF)
    }

    fn change(&self, words: &[&str]) -> Result<(), Errno> {
        match words {
            ["create", path, mode] => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                drop(rustix::fs::open(self.at(path), flags, Mode::from_bits_retain(octal(mode)))?);
                Ok(())
            }
            // As `echo text > path` does, with a mode for a new file.
            ["write", path, text, rest @ ..] => {
                let mode = rest.first().map_or(0o666, |mode| octal(mode));
                let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NONBLOCK;
                let file = rustix::fs::open(self.at(path), flags, Mode::from_bits_retain(mode))?;
                errno(File::from(file).write_all(text.as_bytes()))
            }
            ["append", path, text] => {
                let file = open(&self.at(path), OFlags::APPEND | OFlags::WRONLY)?;
                errno((&file).write_all(text.as_bytes()))
            }
            ["truncate", path, size] => truncate(&self.at(path), size.parse().expect("a size")),
            ["punch", path, offset, bytes] => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                self.allocate(path, flags, offset, bytes)
            }
            ["allocate", path, bytes] => self.allocate(path, FallocateFlags::empty(), "0", bytes),
            ["unlink", path] => rustix::fs::unlink(self.at(path)),
            ["rmdir", path] => rustix::fs::rmdir(self.at(path)),
            ["mkdir", path, mode] => rustix::fs::mkdir(self.at(path), Mode::from_bits_retain(octal(mode))),
            ["mkfifo", path, mode] => self.make_node(path, FileType::Fifo, 0, mode),
            ["mksocket", path, mode] => self.make_node(path, FileType::Socket, 0, mode),
            ["mkdevice", path, major, minor, mode] => {
                let number = |text: &str| text.parse().expect("a number");
                let device = rustix::fs::makedev(number(major), number(minor));
                self.make_node(path, FileType::CharacterDevice, device, mode)
            }
            ["symlink", target, path] => rustix::fs::symlink(*target, self.at(path)),
            ["link", from, to] => rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty()),
            ["rename", from, to] => self.rename(from, to, RenameFlags::empty()),
            ["exchange", from, to] => self.rename(from, to, RenameFlags::EXCHANGE),
            ["noreplace", from, to] => self.rename(from, to, RenameFlags::NOREPLACE),
            // A file that gets its name when it is complete.
            ["publish", path, text] => {
                let flags = OFlags::TMPFILE | OFlags::WRONLY;
                let file = File::from(rustix::fs::open(&self.root, flags, Mode::from_bits_retain(0o666))?);
                errno((&file).write_all(text.as_bytes()))?;
                let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, unnamed, CWD, self.at(path), AtFlags::SYMLINK_FOLLOW)
            }
            // `i`, `a` or `-`, as after `chattr =`.
            ["chattr", path, flags] => {
                let flags = match *flags {
                    "i" => IFlags::IMMUTABLE,
                    "a" => IFlags::APPEND,
                    "-" => IFlags::empty(),
                    _ => panic!("no such flag: {flags}"),
                };
                rustix::fs::ioctl_setflags(open(&self.at(path), OFlags::RDONLY)?, flags)
            }
            ["chmod", path, mode] => rustix::fs::chmod(self.at(path), Mode::from_bits_retain(octal(mode))),
            ["chown", path, user, group] => {
                let id = |text: &str| text.parse().ok();
                errno(std::os::unix::fs::lchown(self.at(path), id(user), id(group)))
            }
            ["setxattr", path, name, value] => {
                rustix::fs::setxattr(self.at(path), *name, value.as_bytes(), XattrFlags::empty())
            }
            ["removexattr", path, name] => rustix::fs::removexattr(self.at(path), *name),
            // Owner, one other user, group, mask, others: digits as in modes.
            ["setfacl", path, user, digits] => {
                let list = access_list(user.parse().expect("a user"), digits);
                rustix::fs::setxattr(self.at(path), ACCESS_LIST, &list, XattrFlags::empty())
            }
            ["setdefault", path, user, digits] => {
                let list = access_list(user.parse().expect("a user"), digits);
                rustix::fs::setxattr(self.at(path), "system.posix_acl_default", &list, XattrFlags::empty())
            }
            ["nofacl", path] => rustix::fs::removexattr(self.at(path), ACCESS_LIST),
            ["utimens", path, seconds] => {
                let time = Timespec { tv_sec: seconds.parse().expect("seconds"), tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::empty())
            }
            [command @ ("migrate" | "setstripe"), path, stripes] => {
                let mut lfs = Command::new(env!("CARGO_BIN_EXE_stria"));
                run(lfs.args(["lfs", command, "-c", stripes]).arg(self.at(path)))
            }
            // A copy of a file from anywhere.
            ["copy", from, to, mode] => {
                errno(fs::copy(from, self.at(to)))?;
                rustix::fs::chmod(self.at(to), Mode::from_bits_retain(octal(mode)))
            }
            // Executes a program, which must do nothing but succeed.
            ["execute", path] => run(&mut Command::new(self.at(path))),
            _ => panic!("no such command: {words:?}"),
        }
    }

    fn make_node(&self, path: &str, kind: FileType, device: u64, mode: &str) -> Result<(), Errno> {
        rustix::fs::mknodat(CWD, self.at(path), kind, Mode::from_bits_retain(octal(mode)), device)
    }

    fn allocate(&self, path: &str, flags: FallocateFlags, offset: &str, bytes: &str) -> Result<(), Errno> {
        let number = |text: &str| text.parse().expect("a number");
        rustix::fs::fallocate(open(&self.at(path), OFlags::WRONLY)?, flags, number(offset), number(bytes))
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
        rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)
    }
}

const ACCESS_LIST: &str = "system.posix_acl_access";

fn done() -> Fallible {
    Ok("ok".to_owned())
}

fn errno<T>(result: std::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).unwrap_or_else(|_| panic!("not an octal number: {text}"))
}

fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn open_flags(mode: &str) -> OFlags {
    match mode {
        "r" => OFlags::RDONLY,
        "w" => OFlags::WRONLY,
        "rw" => OFlags::RDWR,
        "creat" => OFlags::WRONLY | OFlags::CREATE,
        "path" => OFlags::PATH,
        "d" => OFlags::RDONLY | OFlags::DIRECTORY,
        _ => panic!("no such mode: {mode}"),
    }
}

fn access_wanted(wanted: &str) -> rustix::fs::Access {
    use rustix::fs::Access;
    let one = |letter| match letter {
        'r' => Access::READ_OK,
        'w' => Access::WRITE_OK,
        'x' => Access::EXEC_OK,
        'e' => Access::EXISTS,
        _ => panic!("no such access: {letter}"),
    };
    wanted.chars().map(one).fold(Access::EXISTS, |all, one| all | one)
}

fn contents(mut file: File) -> Fallible {
    let mut bytes = Vec::new();
    errno(file.read_to_end(&mut bytes))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Names with a letter for their kinds.
fn names(path: &Path) -> Fallible {
    let mut names = Vec::new();
    for entry in errno(fs::read_dir(path))? {
        let entry = errno(entry)?;
        let kind = kind_letter(&errno(entry.file_type())?);
        names.push(format!("{}{kind}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.join(" "))
}

/// The names of a directory that is kept open.
fn names_again(directory: &File) -> Fallible {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend((name != "." && name != "..").then_some(name));
    }
    names.sort();
    Ok(names.join(" "))
}

fn kind_letter(kind: &fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "/",
        kind if kind.is_symlink() => "@",
        kind if kind.is_fifo() => "|",
        kind if kind.is_socket() => "=",
        kind if kind.is_char_device() => "%",
        _ => "",
    }
}

/// These fields, or that there is something.
fn show(found: &Metadata, fields: &[&str]) -> String {
    let one = |field: &&str| match *field {
        "size" => found.size().to_string(),
        "mode" => format!("{:o}", found.mode() & 0o7777),
        "kind" => format!("{:o}", found.mode() & 0o170_000),
        "links" => found.nlink().to_string(),
        "uid" => found.uid().to_string(),
        "gid" => found.gid().to_string(),
        "mtime" => found.mtime().to_string(),
        // Tables set times of 1970.
        "age" => if found.mtime() < 1_000_000 { "old" } else { "new" }.to_owned(),
        _ => panic!("no such field: {field}"),
    };
    if fields.is_empty() {
        return "there".to_owned();
    }
    fields.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn user_xattrs(path: &Path) -> Fallible {
    let mut list = vec![0u8; 65536];
    let count = rustix::fs::listxattr(path, list.as_mut_slice())?;
    let names = list[..count].split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut names: Vec<_> = names.filter(|name| name.starts_with("user.")).map(|name| name.into_owned()).collect();
    names.sort();
    Ok(names.join(" "))
}

fn truncate(path: &Path, size: i64) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => errno(Err(std::io::Error::last_os_error())),
    }
}

/// Runs a program to its successful end; EIO if it fails by itself.
fn run(command: &mut Command) -> Result<(), Errno> {
    let output = errno(command.output())?;
    if output.status.success() {
        return Ok(());
    }
    eprintln!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Err(Errno::IO)
}

/// An access list as in `linux/posix_acl_xattr.h`: owner, one other user, group, mask, others.
fn access_list(user: u32, digits: &str) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let tags = [(1u16, NO_ID), (2, user), (4, NO_ID), (0x10, NO_ID), (0x20, NO_ID)];
    let permissions: Vec<u16> = digits.chars().map(|digit| digit.to_digit(8).expect("a digit") as u16).collect();
    assert_eq!(permissions.len(), tags.len(), "one digit for each entry");
    let mut list = 2u32.to_le_bytes().to_vec();
    for ((tag, id), permission) in tags.into_iter().zip(permissions) {
        list.extend(tag.to_le_bytes());
        list.extend(permission.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Names of the errors that tables expect; others as the library writes them.
fn error_name(errno: Errno) -> String {
    let name = match errno {
        Errno::NOENT => "ENOENT",
        Errno::ACCESS => "EACCES",
        Errno::PERM => "EPERM",
        Errno::EXIST => "EEXIST",
        Errno::ISDIR => "EISDIR",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::NODATA => "ENODATA",
        Errno::NXIO => "ENXIO",
        Errno::STALE => "ESTALE",
        Errno::INVAL => "EINVAL",
        Errno::BADF => "EBADF",
        Errno::LOOP => "ELOOP",
        Errno::IO => "EIO",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        other => return format!("error: {other}"),
    };
    name.to_owned()
}
