//! Decodes the bytes of one request into its [`Operation`].
//!
//! ```text
//! | InHeader, 40 bytes | fixed structure of the opcode | name\0 [name\0] or data |
//! ```
//! Structures are copied out; names and data are borrowed from the buffer. Bytes beyond what the
//! opcode needs are ignored, so that newer kernels may append. Over io_uring the fixed structure
//! and what follows it are in different places ([`super::ring`]).

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::flags::init::INIT_EXT;
use super::opcode::Opcode;
use super::request::{
    AccessIn, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn,
    GetAttributesIn, GetXattrIn, InHeader, InitIn, InterruptIn, IoctlIn, LinkIn, LockIn, MakeDirectoryIn, MakeNodeIn,
    OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SeekIn, SetAttributesIn, SetXattrIn, StatxIn, WriteIn,
};

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestDecodeError {
    /// Fewer bytes than a header.
    #[error("{bytes} bytes are too few for a request header")]
    NoHeader {
        /// Bytes there were.
        bytes: usize,
    },
    /// The header's length is not the number of bytes read.
    #[error("request {unique} claims {claimed} bytes, {read} were read")]
    Length {
        /// Which request.
        unique: u64,
        /// Length in the header.
        claimed: u32,
        /// Bytes read.
        read: usize,
    },
    /// No operation has this number.
    #[error("unknown operation {opcode} in request {unique}")]
    UnknownOpcode {
        /// Which request.
        unique: u64,
        /// The number.
        opcode: u32,
    },
    /// The body ends too early or a name has no NUL.
    #[error("malformed {} request {unique}", opcode.label())]
    Malformed {
        /// Which request.
        unique: u64,
        /// What it claims to be.
        opcode: Opcode,
    },
}

/// The feature bits and versions of INIT.
#[derive(Clone, Copy, Debug)]
pub struct Init {
    /// Versions and read-ahead.
    pub init: InitIn,
    /// All 64 feature bits.
    pub flags: u64,
}

/// What is asked, with names and data borrowed from the buffer. The inode it is about is in the
/// header.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields are named after what they hold; the structures document themselves")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget(ForgetIn),
    /// As many [`ForgetOne`] as fit.
    BatchForget {
        forgets: &'a [u8],
    },
    GetAttributes(GetAttributesIn),
    Statx(StatxIn),
    SetAttributes(SetAttributesIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        node: MakeNodeIn,
        name: &'a [u8],
    },
    MakeDirectory {
        directory: MakeDirectoryIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        rename: Rename2In,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        link: LinkIn,
        name: &'a [u8],
    },
    Open(OpenIn),
    OpenDirectory(OpenIn),
    Create {
        create: CreateIn,
        name: &'a [u8],
    },
    TemporaryFile {
        create: CreateIn,
    },
    Read(ReadIn),
    Write {
        write: WriteIn,
        data: &'a [u8],
    },
    StatFs,
    Release(ReleaseIn),
    ReleaseDirectory(ReleaseIn),
    Flush(FlushIn),
    Fsync(FsyncIn),
    FsyncDirectory(FsyncIn),
    SyncFs,
    SetXattr {
        set: SetXattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        get: GetXattrIn,
        name: &'a [u8],
    },
    ListXattr(GetXattrIn),
    RemoveXattr {
        name: &'a [u8],
    },
    ReadDirectory(ReadIn),
    ReadDirectoryPlus(ReadIn),
    GetLock(LockIn),
    SetLock {
        lock: LockIn,
        wait: bool,
    },
    Access(AccessIn),
    Interrupt(InterruptIn),
    Ioctl {
        ioctl: IoctlIn,
        data: &'a [u8],
    },
    Fallocate(FallocateIn),
    Seek(SeekIn),
    CopyFileRange {
        copy: CopyFileRangeIn,
        wide: bool,
    },
    Init(Init),
    Destroy,
    /// Known, and refused permanently with ENOSYS: the kernel does without.
    Refused,
}

/// A decoded request.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The caller, and the inode of the request.
    pub header: InHeader,
    /// Name of the operation, for spans and statistics.
    pub opcode: Opcode,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// Decodes what one read(2) of the device returned.
pub fn decode(bytes: &[u8]) -> Result<Incoming<'_>, RequestDecodeError> {
    let Ok((header, rest)) = InHeader::read_from_prefix(bytes) else {
        return Err(RequestDecodeError::NoHeader { bytes: bytes.len() });
    };
    if header.length as usize != bytes.len() {
        return Err(RequestDecodeError::Length { unique: header.unique, claimed: header.length, read: bytes.len() });
    }
    decode_body(header, rest, &[])
}

/// Decodes the request of a header whose body begins with `fixed` and continues with `payload`. No
/// structure, name or data is in both.
pub(super) fn decode_body<'a>(
    header: InHeader,
    fixed: &'a [u8],
    payload: &'a [u8],
) -> Result<Incoming<'a>, RequestDecodeError> {
    let unique = header.unique;
    let extensions = usize::from(header.extension_units) * 8;
    let opcode = Opcode::from_number(header.opcode)
        .ok_or(RequestDecodeError::UnknownOpcode { unique, opcode: header.opcode })?;
    let body = if payload.is_empty() {
        fixed.len().checked_sub(extensions).map(|end| Body { rest: &fixed[..end], payload })
    } else {
        payload.len().checked_sub(extensions).map(|end| Body { rest: fixed, payload: &payload[..end] })
    };
    let operation =
        body.and_then(|body| body.operation(opcode)).ok_or(RequestDecodeError::Malformed { unique, opcode })?;
    Ok(Incoming { header, opcode, operation })
}

/// The unread part of a request's body. Every reader returns `None` if it ends too early.
struct Body<'a> {
    rest: &'a [u8],
    /// What follows `rest`.
    payload: &'a [u8],
}

impl<'a> Body<'a> {
    fn operation(mut self, opcode: Opcode) -> Option<Operation<'a>> {
        Some(match opcode {
            Opcode::Lookup => Operation::Lookup { name: self.name()? },
            Opcode::Forget => Operation::Forget(self.take()?),
            Opcode::BatchForget => self.batch_forget()?,
            Opcode::GetAttributes => Operation::GetAttributes(self.take()?),
            Opcode::Statx => Operation::Statx(self.take()?),
            Opcode::SetAttributes => Operation::SetAttributes(self.take()?),
            Opcode::ReadLink => Operation::ReadLink,
            Opcode::Symlink => Operation::Symlink { name: self.name()?, target: self.name()? },
            Opcode::MakeNode => Operation::MakeNode { node: self.take()?, name: self.name()? },
            Opcode::MakeDirectory => Operation::MakeDirectory { directory: self.take()?, name: self.name()? },
            Opcode::Unlink => Operation::Unlink { name: self.name()? },
            Opcode::RemoveDirectory => Operation::RemoveDirectory { name: self.name()? },
            Opcode::Rename => {
                let RenameIn { new_parent } = self.take()?;
                self.rename(Rename2In { new_parent, flags: 0, padding: 0 })?
            }
            Opcode::Rename2 => {
                let rename = self.take()?;
                self.rename(rename)?
            }
            Opcode::Link => Operation::Link { link: self.take()?, name: self.name()? },
            Opcode::StatFs => Operation::StatFs,
            Opcode::SyncFs => Operation::SyncFs,
            Opcode::SetXattr => self.set_xattr()?,
            Opcode::GetXattr => Operation::GetXattr { get: self.take()?, name: self.name()? },
            Opcode::ListXattr => Operation::ListXattr(self.take()?),
            Opcode::RemoveXattr => Operation::RemoveXattr { name: self.name()? },
            Opcode::Access => Operation::Access(self.take()?),
            Opcode::Interrupt => Operation::Interrupt(self.take()?),
            Opcode::Init => self.init()?,
            Opcode::Destroy => Operation::Destroy,
            Opcode::Bmap | Opcode::Poll | Opcode::NotifyReply => Operation::Refused,
            _ => return self.file_operation(opcode),
        })
    }

    /// The operations on open files.
    fn file_operation(mut self, opcode: Opcode) -> Option<Operation<'a>> {
        Some(match opcode {
            Opcode::Open => Operation::Open(self.take()?),
            Opcode::OpenDirectory => Operation::OpenDirectory(self.take()?),
            Opcode::Create => Operation::Create { create: self.take()?, name: self.name()? },
            Opcode::TemporaryFile => Operation::TemporaryFile { create: self.take()? },
            Opcode::Read => Operation::Read(self.take()?),
            Opcode::Write => {
                let write: WriteIn = self.take()?;
                Operation::Write { write, data: self.bytes(write.size)? }
            }
            Opcode::Release => Operation::Release(self.take()?),
            Opcode::ReleaseDirectory => Operation::ReleaseDirectory(self.take()?),
            Opcode::Flush => Operation::Flush(self.take()?),
            Opcode::Fsync => Operation::Fsync(self.take()?),
            Opcode::FsyncDirectory => Operation::FsyncDirectory(self.take()?),
            Opcode::ReadDirectory => Operation::ReadDirectory(self.take()?),
            Opcode::ReadDirectoryPlus => Operation::ReadDirectoryPlus(self.take()?),
            Opcode::GetLock => Operation::GetLock(self.take()?),
            Opcode::SetLock => Operation::SetLock { lock: self.take()?, wait: false },
            Opcode::SetLockWait => Operation::SetLock { lock: self.take()?, wait: true },
            Opcode::Ioctl => {
                let ioctl: IoctlIn = self.take()?;
                Operation::Ioctl { ioctl, data: self.bytes(ioctl.in_size)? }
            }
            Opcode::Fallocate => Operation::Fallocate(self.take()?),
            Opcode::Seek => Operation::Seek(self.take()?),
            Opcode::CopyFileRange => Operation::CopyFileRange { copy: self.take()?, wide: false },
            Opcode::CopyFileRange64 => Operation::CopyFileRange { copy: self.take()?, wide: true },
            _ => return None,
        })
    }

    fn rename(mut self, rename: Rename2In) -> Option<Operation<'a>> {
        Some(Operation::Rename { rename, name: self.name()?, new_name: self.name()? })
    }

    fn set_xattr(mut self) -> Option<Operation<'a>> {
        let set: SetXattrIn = self.take()?;
        Some(Operation::SetXattr { set, name: self.name()?, value: self.bytes(set.size)? })
    }

    fn batch_forget(mut self) -> Option<Operation<'a>> {
        let BatchForgetIn { count, .. } = self.take()?;
        let bytes = count.checked_mul(size_of::<ForgetOne>() as u32)?;
        Some(Operation::BatchForget { forgets: self.bytes(bytes)? })
    }

    fn init(mut self) -> Option<Operation<'a>> {
        let init: InitIn = self.take()?;
        let mut flags = u64::from(init.flags);
        if flags & INIT_EXT != 0 {
            flags |= u64::from(self.take::<u32>()?) << 32;
        }
        Some(Operation::Init(Init { init, flags }))
    }

    /// What is read next: never empty while anything is left.
    fn next(&mut self) -> &'a [u8] {
        if self.rest.is_empty() {
            self.rest = std::mem::take(&mut self.payload);
        }
        self.rest
    }

    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.next()).ok()?;
        self.rest = rest;
        Some(value)
    }

    /// A name up to its NUL. It may be empty: that is for the file system to refuse.
    fn name(&mut self) -> Option<&'a [u8]> {
        let next = self.next();
        let end = next.iter().position(|byte| *byte == 0)?;
        let (name, rest) = next.split_at(end);
        self.rest = &rest[1..];
        Some(name)
    }

    fn bytes(&mut self, bytes: u32) -> Option<&'a [u8]> {
        let (data, rest) = self.next().split_at_checked(bytes as usize)?;
        self.rest = rest;
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let header = InHeader {
            length: (size_of::<InHeader>() + body.len()) as u32,
            opcode,
            unique: 7,
            node: 1,
            ..InHeader::default()
        };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn names_are_cut_at_their_nul() {
        let bytes = request(Opcode::Symlink as u32, b"link\0target/of it\0");
        let incoming = decode(&bytes).unwrap();
        assert_eq!(incoming.header.unique, 7);
        let Operation::Symlink { name, target } = incoming.operation else { panic!("{incoming:?}") };
        assert_eq!((name, target), (&b"link"[..], &b"target/of it"[..]));
    }

    #[test]
    fn both_renames_decode_alike() {
        let old = [RenameIn { new_parent: 9 }.as_bytes(), b"a\0b\0"].concat();
        let new = [Rename2In { new_parent: 9, flags: 1, padding: 0 }.as_bytes(), b"a\0b\0"].concat();
        for (opcode, body, flags) in [(Opcode::Rename, old, 0), (Opcode::Rename2, new, 1)] {
            let bytes = request(opcode as u32, &body);
            let Operation::Rename { rename, name, new_name } = decode(&bytes).unwrap().operation else { panic!() };
            assert_eq!((rename.new_parent, rename.flags, name, new_name), (9, flags, &b"a"[..], &b"b"[..]));
        }
    }

    #[test]
    fn the_upper_feature_bits_need_the_extension_bit() {
        let plain = InitIn { major: 7, minor: 31, read_ahead_bytes_max: 0, flags: 1 };
        let bytes = request(26, plain.as_bytes());
        let Operation::Init(init) = decode(&bytes).unwrap().operation else { panic!() };
        assert_eq!(init.flags, 1);

        let extended = InitIn { flags: 1 | INIT_EXT as u32, ..plain };
        let bytes = request(26, &[extended.as_bytes(), 16_u32.as_bytes(), &[0; 44]].concat());
        let Operation::Init(init) = decode(&bytes).unwrap().operation else { panic!() };
        assert_eq!(init.flags, 1 | INIT_EXT | 1 << 36);
    }

    #[test]
    fn what_is_too_short_is_refused_by_name() {
        assert_eq!(decode(&[0; 39]).unwrap_err(), RequestDecodeError::NoHeader { bytes: 39 });
        let mut bytes = request(1, b"name\0");
        bytes.pop();
        assert!(matches!(decode(&bytes).unwrap_err(), RequestDecodeError::Length { unique: 7, claimed: 45, read: 44 }));
        let unterminated = request(1, b"name");
        let malformed = RequestDecodeError::Malformed { unique: 7, opcode: Opcode::Lookup };
        assert_eq!(decode(&unterminated).unwrap_err(), malformed);
        let lying = WriteIn { size: 5, ..WriteIn::default() };
        let bytes = request(16, &[lying.as_bytes(), b"four"].concat());
        assert!(matches!(decode(&bytes).unwrap_err(), RequestDecodeError::Malformed { opcode: Opcode::Write, .. }));
        assert!(matches!(decode(&request(7, b"")).unwrap_err(), RequestDecodeError::UnknownOpcode { opcode: 7, .. }));
    }

    #[test]
    fn extensions_are_not_part_of_the_body() {
        let mut bytes = request(16, &[WriteIn { size: 8, ..WriteIn::default() }.as_bytes(), &[1; 8]].concat());
        assert!(decode(&bytes).is_ok());
        bytes[36] = 1; // extension_units
        assert!(decode(&bytes).is_err());
        bytes[36] = 255;
        assert!(decode(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn random_bodies_never_panic(
            opcode in 0_u32..60,
            body in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200),
        ) {
            if let Ok(incoming) = decode(&request(opcode, &body)) {
                prop_assert_eq!(incoming.opcode as u32, opcode);
            }
        }
    }
}
