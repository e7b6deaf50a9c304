//! The rows of the table in decision note 0031, "Why no callback waits for a lock of the kernel".

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
};

use rpc::message::{MdtRequest, OstRequest, Request, mdt::Create};
use rustix::fs::{
    CWD, FileType, IFlags, Mode, RenameFlags, XattrFlags, ioctl_setflags, mknodat, removexattr, renameat_with, setxattr,
};
use types::NodeKind;

/// What becomes of a callback for a name in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// INVAL_ENTRY waits for the answer, which waits for no client.
    Waits,
    /// All names are outdated at once.
    Epoch,
    /// No lock is held: INVAL_ENTRY waits for nothing.
    NothingWaits,
}

/// A row, or one of the operations of a row. Paths are those of a directory that [`make_tree`] has
/// filled.
pub struct Case {
    pub name: &'static str,
    /// By both clients, before the first of them has everything cached: what the operation needs
    /// open.
    pub prepare: fn(ours: &Path, theirs: &Path) -> Option<File>,
    /// By the other client, afterwards: makes the operation ask the MDT.
    pub disturb: fn(theirs: &Path),
    /// What holds the lock of the directory `d`.
    pub operate: fn(ours: &Path, opened: Option<&File>) -> io::Result<()>,
    /// Its request.
    pub held: fn(&Request) -> bool,
    pub then: Then,
    /// The error of the operation.
    pub fails: Option<i32>,
    /// Names that are there afterwards, or not.
    pub leaves: &'static [(&'static str, bool)],
}

/// A directory `d` with a file, a file `x` and a directory, and a directory besides.
pub fn make_tree(directory: &Path) {
    for name in ["d/sub", "other/sub"] {
        fs::create_dir_all(directory.join(name)).unwrap();
    }
    for name in ["d/x", "d/file", "d/target", "other/file"] {
        fs::write(directory.join(name), b"text").unwrap();
        fs::set_permissions(directory.join(name), Permissions::from_mode(0o644)).unwrap();
    }
}

fn nothing_opened(_: &Path, _: &Path) -> Option<File> {
    None
}

fn opened_file(ours: &Path, _: &Path) -> Option<File> {
    Some(OpenOptions::new().read(true).write(true).open(ours.join("d/file")).unwrap())
}

fn opened_directory(ours: &Path, _: &Path) -> Option<File> {
    Some(File::open(ours.join("d")).unwrap())
}

fn nothing(_: &Path) {}

/// A client that knew all names of the directory has to ask again whether one exists.
fn another_name(theirs: &Path) {
    fs::write(theirs.join("d/another"), b"").unwrap();
}

fn is_lookup(request: &Request) -> bool {
    matches!(request, Request::Mdt(MdtRequest::Lookup(..)))
}

fn creates(request: &Request, is_kind: fn(&NodeKind) -> bool) -> bool {
    matches!(request, Request::Mdt(MdtRequest::Create(_, Create { kind, .. })) if is_kind(kind))
}

fn is_unlink(request: &Request) -> bool {
    matches!(request, Request::Mdt(MdtRequest::Unlink(_, unlink)) if !unlink.directory)
}

fn is_rmdir(request: &Request) -> bool {
    matches!(request, Request::Mdt(MdtRequest::Unlink(_, unlink)) if unlink.directory)
}

fn is_rename(request: &Request) -> bool {
    matches!(request, Request::Mdt(MdtRequest::Rename(..)))
}

fn sets_attributes(request: &Request) -> bool {
    matches!(request, Request::Mdt(MdtRequest::SetAttributes(..)))
}

const PLAIN: Case = Case {
    name: "",
    prepare: nothing_opened,
    disturb: nothing,
    operate: |_, _| Ok(()),
    held: |_| false,
    then: Then::Epoch,
    fails: None,
    leaves: &[],
};

pub const CASES: &[Case] = &[
    Case {
        name: "LOOKUP",
        disturb: another_name,
        operate: |ours, _| fs::metadata(ours.join("d/missing")).map(drop),
        held: is_lookup,
        then: Then::Waits,
        fails: Some(libc::ENOENT),
        ..PLAIN
    },
    Case {
        name: "READDIR",
        disturb: another_name,
        operate: |ours, _| fs::read_dir(ours.join("d"))?.try_for_each(|entry| entry.map(drop)),
        held: |request| matches!(request, Request::Mdt(MdtRequest::ReadDirectory(_))),
        then: Then::Waits,
        ..PLAIN
    },
    Case {
        name: "CREATE",
        operate: |ours, _| File::create_new(ours.join("d/new")).map(drop),
        held: |request| creates(request, |kind| matches!(kind, NodeKind::Regular)),
        leaves: &[("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "MKNOD",
        operate: |ours, _| {
            mknodat(CWD, ours.join("d/new"), FileType::Fifo, Mode::from_raw_mode(0o644), 0)?;
            Ok(())
        },
        held: |request| creates(request, |kind| matches!(kind, NodeKind::Fifo)),
        leaves: &[("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "MKDIR",
        operate: |ours, _| fs::create_dir(ours.join("d/new")),
        held: |request| creates(request, |kind| matches!(kind, NodeKind::Directory)),
        leaves: &[("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "SYMLINK",
        operate: |ours, _| symlink("file", ours.join("d/new")),
        held: |request| creates(request, |kind| matches!(kind, NodeKind::Symlink(_))),
        leaves: &[("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "LINK",
        operate: |ours, _| fs::hard_link(ours.join("d/file"), ours.join("d/new")),
        held: |request| matches!(request, Request::Mdt(MdtRequest::Link(..))),
        leaves: &[("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "UNLINK",
        operate: |ours, _| fs::remove_file(ours.join("d/file")),
        held: is_unlink,
        leaves: &[("d/file", false)],
        ..PLAIN
    },
    Case {
        name: "RMDIR",
        operate: |ours, _| fs::remove_dir(ours.join("d/sub")),
        held: is_rmdir,
        leaves: &[("d/sub", false)],
        ..PLAIN
    },
    Case {
        name: "RENAME",
        operate: |ours, _| fs::rename(ours.join("d/file"), ours.join("d/new")),
        held: is_rename,
        leaves: &[("d/file", false), ("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "RENAME onto an existing name",
        operate: |ours, _| fs::rename(ours.join("d/file"), ours.join("d/target")),
        held: is_rename,
        leaves: &[("d/file", false), ("d/target", true)],
        ..PLAIN
    },
    Case {
        name: "RENAME out of the directory",
        operate: |ours, _| fs::rename(ours.join("d/file"), ours.join("other/new")),
        held: is_rename,
        leaves: &[("d/file", false), ("other/new", true)],
        ..PLAIN
    },
    Case {
        name: "RENAME into the directory",
        operate: |ours, _| fs::rename(ours.join("other/file"), ours.join("d/new")),
        held: is_rename,
        leaves: &[("other/file", false), ("d/new", true)],
        ..PLAIN
    },
    Case {
        name: "RENAME that exchanges",
        operate: |ours, _| {
            renameat_with(CWD, ours.join("d/file"), CWD, ours.join("other/file"), RenameFlags::EXCHANGE)?;
            Ok(())
        },
        held: is_rename,
        leaves: &[("d/file", true), ("other/file", true)],
        ..PLAIN
    },
    Case {
        name: "SETATTR of the directory",
        operate: |ours, _| fs::set_permissions(ours.join("d"), Permissions::from_mode(0o711)),
        held: sets_attributes,
        ..PLAIN
    },
    Case {
        name: "SETXATTR of the directory",
        operate: |ours, _| {
            setxattr(ours.join("d"), "user.name", b"value", XattrFlags::empty())?;
            Ok(())
        },
        held: |request| matches!(request, Request::Mdt(MdtRequest::SetXattr(..))),
        ..PLAIN
    },
    Case {
        name: "REMOVEXATTR of the directory",
        prepare: |_, theirs| {
            setxattr(theirs.join("d"), "user.name", b"value", XattrFlags::empty()).unwrap();
            None
        },
        operate: |ours, _| {
            removexattr(ours.join("d"), "user.name")?;
            Ok(())
        },
        held: |request| matches!(request, Request::Mdt(MdtRequest::RemoveXattr(..))),
        ..PLAIN
    },
    Case {
        name: "FS_IOC_SETFLAGS of the directory",
        prepare: opened_directory,
        operate: |_, opened| {
            ioctl_setflags(opened.unwrap(), IFlags::from_bits_retain(PROJECT_INHERIT))?;
            Ok(())
        },
        held: sets_attributes,
        ..PLAIN
    },
    Case {
        name: "RENAME of the directory to another parent",
        operate: |ours, _| fs::rename(ours.join("d"), ours.join("other/d")),
        held: is_rename,
        leaves: &[("d", false), ("other/d/file", true)],
        ..PLAIN
    },
    Case {
        name: "RMDIR of the directory",
        operate: |ours, _| fs::remove_dir(ours.join("d")),
        held: is_rmdir,
        then: Then::Waits,
        fails: Some(libc::ENOTEMPTY),
        ..PLAIN
    },
    Case {
        name: "RENAME onto the directory",
        operate: |ours, _| fs::rename(ours.join("other"), ours.join("d")),
        held: is_rename,
        then: Then::Waits,
        fails: Some(libc::ENOTEMPTY),
        ..PLAIN
    },
    Case {
        name: "FSYNCDIR",
        prepare: opened_directory,
        operate: |_, opened| opened.unwrap().sync_all(),
        held: |request| matches!(request, Request::Mdt(MdtRequest::Commit)),
        then: Then::Waits,
        ..PLAIN
    },
    Case {
        name: "TMPFILE",
        operate: |ours, _| {
            let flags = libc::O_TMPFILE;
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(ours.join("d")).map(drop)
        },
        held: |request| matches!(request, Request::Mdt(MdtRequest::CreateUnnamed(..))),
        then: Then::NothingWaits,
        ..PLAIN
    },
    Case {
        name: "OPEN",
        operate: |ours, _| OpenOptions::new().write(true).open(ours.join("d/file")).map(drop),
        held: |request| matches!(request, Request::Mdt(MdtRequest::Open(..))),
        then: Then::NothingWaits,
        ..PLAIN
    },
    Case {
        name: "GETATTR",
        prepare: opened_file,
        disturb: |theirs| fs::set_permissions(theirs.join("d/file"), Permissions::from_mode(0o600)).unwrap(),
        operate: |_, opened| opened.unwrap().metadata().map(drop),
        held: |request| matches!(request, Request::Mdt(MdtRequest::GetAttributes(_))),
        then: Then::NothingWaits,
        ..PLAIN
    },
    Case {
        name: "READ",
        prepare: opened_file,
        operate: |_, opened| opened.unwrap().read_exact(&mut [0; 4]),
        held: |request| matches!(request, Request::Ost(OstRequest::Read(_))),
        then: Then::NothingWaits,
        ..PLAIN
    },
    Case {
        name: "WRITE",
        prepare: opened_file,
        operate: |_, opened| opened.unwrap().write_all(b"news"),
        held: |request| matches!(request, Request::Ost(OstRequest::Write(_))),
        then: Then::NothingWaits,
        ..PLAIN
    },
];

/// FS_PROJINHERIT_FL.
const PROJECT_INHERIT: u32 = 0x2000_0000;
