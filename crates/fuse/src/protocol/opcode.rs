//! Operations that the kernel requests (`enum fuse_opcode`).

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $label:literal;)*) => {
        /// What a request is. Numbers are the kernel's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "each is the kernel's FUSE_ constant of that name")]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// All of them, by number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// The opcode of this number, if it is known.
            pub fn from_number(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// Name for logs and statistics: the kernel's, in lower case.
            pub fn label(self) -> &'static str {
                match self {
                    $(Opcode::$name => $label,)*
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, "lookup";
    Forget = 2, "forget";
    GetAttributes = 3, "getattr";
    SetAttributes = 4, "setattr";
    ReadLink = 5, "readlink";
    Symlink = 6, "symlink";
    MakeNode = 8, "mknod";
    MakeDirectory = 9, "mkdir";
    Unlink = 10, "unlink";
    RemoveDirectory = 11, "rmdir";
    Rename = 12, "rename";
    Link = 13, "link";
    Open = 14, "open";
    Read = 15, "read";
    Write = 16, "write";
    StatFs = 17, "statfs";
    Release = 18, "release";
    Fsync = 20, "fsync";
    SetXattr = 21, "setxattr";
    GetXattr = 22, "getxattr";
    ListXattr = 23, "listxattr";
    RemoveXattr = 24, "removexattr";
    Flush = 25, "flush";
    Init = 26, "init";
    OpenDirectory = 27, "opendir";
    ReadDirectory = 28, "readdir";
    ReleaseDirectory = 29, "releasedir";
    FsyncDirectory = 30, "fsyncdir";
    GetLock = 31, "getlk";
    SetLock = 32, "setlk";
    SetLockWait = 33, "setlkw";
    Access = 34, "access";
    Create = 35, "create";
    Interrupt = 36, "interrupt";
    Bmap = 37, "bmap";
    Destroy = 38, "destroy";
    Ioctl = 39, "ioctl";
    Poll = 40, "poll";
    NotifyReply = 41, "notify_reply";
    BatchForget = 42, "batch_forget";
    Fallocate = 43, "fallocate";
    ReadDirectoryPlus = 44, "readdirplus";
    Rename2 = 45, "rename2";
    Seek = 46, "lseek";
    CopyFileRange = 47, "copy_file_range";
    SyncFs = 50, "syncfs";
    TemporaryFile = 51, "tmpfile";
    Statx = 52, "statx";
    CopyFileRange64 = 53, "copy_file_range_64";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_are_a_bijection() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
        }
        for unknown in [0, 7, 19, 48, 49, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::from_number(unknown), None);
        }
    }
}
