//! Flags and project ids of files (chattr, lsattr): Linux turns FS_IOC_GETFLAGS, FS_IOC_SETFLAGS,
//! FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR into IOCTL requests with the same numbers, on a file or
//! directory that it opens for them. By then it has checked that a caller that changes immutable or
//! append-only may do so (CAP_LINUX_IMMUTABLE), and the MDT requires root.
//!
//! Only `struct fsxattr` has a project id: flags (4), size of extents (4), number of extents (4),
//! project id (4), size of extents of copies (4), padding (8).
//!
//! Downside: the kernel does not learn the flags, so `statx` does not show them, and mapping an
//! append-only file for writing fails only when it is written back.

use std::ops::Range;

use types::{
    Attributes, FsError, FsResult, SetAttributes,
    attributes::file_flag::{APPEND_ONLY, IMMUTABLE, PROJECT_INHERIT},
};

use super::call::Call;
use host::project::{FS_IOC_FSGETXATTR, FSXATTR_BYTES, PROJECT};

use crate::protocol::{reply::IoctlOut, request::IoctlIn};
use crate::session::Answer;
use bytes::Bytes;

/// Where it has the number of extents, which is read only.
const EXTENTS: Range<usize> = 8..12;
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// A flag here, as FS_ *_FL, and as FS_XFLAG_*.
const FLAGS: [(u32, u32, u32); 3] =
    [(IMMUTABLE, 0x10, 0x8), (APPEND_ONLY, 0x20, 0x10), (PROJECT_INHERIT, 0x2000_0000, 0x200)];

/// How the caller writes flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A word of FS_ *_FL.
    Word,
    /// `struct fsxattr`, with FS_XFLAG_*.
    Structure,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    form: Form,
    sets: bool,
}

impl Request {
    /// The request of this number, if it is about flags.
    pub fn of(command: u32) -> Option<Request> {
        let (form, sets) = match command {
            FS_IOC_GETFLAGS => (Form::Word, false),
            FS_IOC_SETFLAGS => (Form::Word, true),
            FS_IOC_FSGETXATTR => (Form::Structure, false),
            FS_IOC_FSSETXATTR => (Form::Structure, true),
            _ => return None,
        };
        Some(Request { form, sets })
    }

    /// Whether it changes them.
    pub fn sets(self) -> bool {
        self.sets
    }
}

impl Form {
    fn number(self, (_, word, structure): (u32, u32, u32)) -> u32 {
        match self {
            Form::Word => word,
            Form::Structure => structure,
        }
    }

    /// What the caller reads; both begin with the flags.
    fn encode(self, Attributes { flags, project, .. }: &Attributes) -> Vec<u8> {
        let set = FLAGS.into_iter().filter(|known| flags & known.0 != 0);
        let mut bytes = set.fold(0, |set, known| set | self.number(known)).to_ne_bytes().to_vec();
        if self == Form::Structure {
            bytes.resize(FSXATTR_BYTES, 0);
            bytes[PROJECT].copy_from_slice(&project.to_ne_bytes());
        }
        bytes
    }

    /// What the caller wrote; flags that files do not have here, and sizes of extents, are not
    /// supported.
    fn decode(self, data: &[u8]) -> FsResult<SetAttributes> {
        let word = data.first_chunk::<4>().ok_or(FsError::Invalid)?;
        let mut given = u32::from_ne_bytes(*word);
        let mut flags = 0;
        for known in FLAGS {
            if given & self.number(known) != 0 {
                flags |= known.0;
                given &= !self.number(known);
            }
        }
        if given != 0 {
            return Err(FsError::NotSupported);
        }
        let flags = SetAttributes { flags: Some(flags), ..SetAttributes::default() };
        if self == Form::Word {
            return Ok(flags);
        }
        let unsupported = |at: &usize| *at >= word.len() && !EXTENTS.contains(at) && !PROJECT.contains(at);
        if data.iter().enumerate().any(|(at, byte)| unsupported(&at) && *byte != 0) {
            return Err(FsError::NotSupported);
        }
        let project = data.get(PROJECT).and_then(|bytes| bytes.try_into().ok()).ok_or(FsError::Invalid)?;
        Ok(SetAttributes { project: Some(u32::from_ne_bytes(project)), ..flags })
    }
}

/// Executes one.
pub async fn serve(call: Call, request: Request, ioctl: IoctlIn, data: &[u8]) -> FsResult<Answer> {
    let call = &call;
    if request.sets {
        call.adapter.writability.require()?;
        let changes = request.form.decode(data)?;
        let set = |credentials| async move {
            call.file_system().set_attributes(&credentials, call.inode, changes, None).await.map(drop)
        };
        call.caller.run(set).await?;
        return Ok(Answer::of(&IoctlOut::default()));
    }
    let attributes = call.file_system().get_attributes(call.inode, None).await?;
    let mut value = request.form.encode(&attributes);
    if value.len() > ioctl.out_size as usize {
        return Err(FsError::Invalid);
    }
    value.truncate(ioctl.out_size as usize);
    Ok(Answer { pieces: vec![Bytes::from(value)], ..Answer::of(&IoctlOut::default()) })
}

#[cfg(test)]
mod tests {
    use types::{FileKind, InodeNumber};

    use super::*;

    fn attributes(flags: u32, project: u32) -> Attributes {
        Attributes { flags, project, ..Attributes::zeroed(InodeNumber::ROOT, FileKind::Directory) }
    }

    #[test]
    fn flags_translate_in_both_forms() {
        for (form, both) in [(Form::Word, 0x30_u32), (Form::Structure, 0x18)] {
            for flags in [0, IMMUTABLE, APPEND_ONLY, PROJECT_INHERIT, IMMUTABLE | APPEND_ONLY] {
                let set = form.decode(&form.encode(&attributes(flags, 0))).unwrap();
                assert_eq!(set.flags, Some(flags));
                assert_eq!(set.project, (form == Form::Structure).then_some(0));
            }
            assert_eq!(form.encode(&attributes(IMMUTABLE | APPEND_ONLY, 7))[..4], both.to_ne_bytes());
            assert_eq!(form.decode(&[0xff; 28]), Err(FsError::NotSupported));
            assert_eq!(form.decode(&[0; 3]), Err(FsError::Invalid));
        }
        assert_eq!(Request::of(0), None);
    }

    #[test]
    fn projects_are_in_the_structure_and_sizes_of_extents_are_not_supported() {
        let mut structure = Form::Structure.encode(&attributes(PROJECT_INHERIT, 0x0102_0304));
        assert_eq!(structure[PROJECT], 0x0102_0304_u32.to_ne_bytes());
        structure[EXTENTS.start] = 9;
        let set = Form::Structure.decode(&structure).unwrap();
        assert_eq!((set.flags, set.project), (Some(PROJECT_INHERIT), Some(0x0102_0304)));
        for sizes in [4, 16, 27] {
            let mut structure = structure.clone();
            structure[sizes] = 1;
            assert_eq!(Form::Structure.decode(&structure), Err(FsError::NotSupported));
        }
        assert_eq!(Form::Structure.decode(&structure[..12]), Err(FsError::Invalid));
    }
}
