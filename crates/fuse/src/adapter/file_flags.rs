//! Flags of files (chattr, lsattr): Linux turns FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR
//! and FS_IOC_FSSETXATTR into IOCTL requests with the same numbers, on a file or directory that it
//! opens for them. By then it has checked that a caller that changes immutable or append-only may
//! do so (CAP_LINUX_IMMUTABLE), and the MDT requires root.
//!
//! Downside: the kernel does not learn the flags, so `statx` does not show them, and mapping an
//! append-only file for writing fails only when it is written back.

use types::{
    FsError, FsResult, SetAttributes,
    attributes::file_flag::{APPEND_ONLY, IMMUTABLE},
};

use super::Call;
use crate::protocol::{reply::IoctlOut, request::IoctlIn};
use crate::session::Answer;
use bytes::Bytes;

/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// A flag here, as FS_ *_FL, and as FS_XFLAG_*.
const FLAGS: [(u32, u32, u32); 2] = [(IMMUTABLE, 0x10, 0x8), (APPEND_ONLY, 0x20, 0x10)];

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
}

impl Form {
    fn number(self, (_, word, structure): (u32, u32, u32)) -> u32 {
        match self {
            Form::Word => word,
            Form::Structure => structure,
        }
    }

    /// What the caller reads; both begin with the flags.
    fn encode(self, flags: u32) -> Vec<u8> {
        let set = FLAGS.into_iter().filter(|known| flags & known.0 != 0);
        let mut bytes = set.fold(0, |set, known| set | self.number(known)).to_ne_bytes().to_vec();
        if self == Form::Structure {
            bytes.resize(FSXATTR_BYTES, 0);
        }
        bytes
    }

    /// What the caller wrote; flags that files do not have here, and sizes of extents or projects,
    /// are not supported.
    fn decode(self, data: &[u8]) -> FsResult<u32> {
        let (word, rest) = data.split_first_chunk::<4>().ok_or(FsError::Invalid)?;
        let mut given = u32::from_ne_bytes(*word);
        let mut flags = 0;
        for known in FLAGS {
            if given & self.number(known) != 0 {
                flags |= known.0;
                given &= !self.number(known);
            }
        }
        // The number of extents, in the middle of the structure, is read only.
        let counts = |at: &usize| !(4..8).contains(at);
        let further = rest.iter().enumerate().any(|(at, byte)| counts(&at) && *byte != 0);
        if given != 0 || (self == Form::Structure && further) { Err(FsError::NotSupported) } else { Ok(flags) }
    }
}

/// Executes one.
pub async fn serve(call: Call, request: Request, ioctl: IoctlIn, data: &[u8]) -> FsResult<Answer> {
    let call = &call;
    if request.sets {
        call.adapter.writability.require()?;
        let changes = SetAttributes { flags: Some(request.form.decode(data)?), ..SetAttributes::default() };
        let set = |credentials| async move {
            call.file_system().set_attributes(&credentials, call.inode, changes, None).await.map(drop)
        };
        call.caller.run(set).await?;
        return Ok(Answer::of(&IoctlOut::default()));
    }
    let attributes = call.file_system().get_attributes(call.inode, None).await?;
    let mut value = request.form.encode(attributes.flags);
    if value.len() > ioctl.out_size as usize {
        return Err(FsError::Invalid);
    }
    value.truncate(ioctl.out_size as usize);
    Ok(Answer { pieces: vec![Bytes::from(value)], ..Answer::of(&IoctlOut::default()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_translate_in_both_forms() {
        for (form, both) in [(Form::Word, 0x30_u32), (Form::Structure, 0x18)] {
            for flags in [0, IMMUTABLE, APPEND_ONLY, IMMUTABLE | APPEND_ONLY] {
                assert_eq!(form.decode(&form.encode(flags)), Ok(flags));
            }
            assert_eq!(form.encode(IMMUTABLE | APPEND_ONLY)[..4], both.to_ne_bytes());
            assert_eq!(form.decode(&[0xff; 28]), Err(FsError::NotSupported));
            assert_eq!(form.decode(&[0; 3]), Err(FsError::Invalid));
        }
        let mut with_project = Form::Structure.encode(IMMUTABLE);
        with_project[12] = 7;
        assert_eq!(Form::Structure.decode(&with_project), Err(FsError::NotSupported));
        assert_eq!(Request::of(0), None);
    }
}
