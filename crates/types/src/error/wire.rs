//! The form of an error in messages, generation 1 of the wire: causes that the domain tells apart
//! ([`Damage`] and the like) are text in it.
//!
//! Invariant: an error has the same text before and after the wire, except that control characters
//! arrive as `?`: users and logs get these texts, and a peer that has proved nothing may send them.
//! Downside: a receiver cannot tell those causes apart. A later generation can send them as fields;
//! this form must stay for peers of this one.

use serde::{Deserialize, Serialize};

use super::{Damage, FsError, ProtocolError, Refusal, TooMany};
use crate::{MdtIndex, ObjectId, OstIndex};

/// [`FsError`] in a message. Variants are only ever appended: their order is the wire format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WireError {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    AccessDenied,
    NotPermitted,
    Invalid,
    NameTooLong,
    Loop,
    TooManyLinks,
    CrossDevice,
    Busy,
    NoSpace,
    Quota,
    ReadOnly,
    FileTooLarge,
    BadHandle,
    Stale,
    NoData,
    Range,
    TooBig,
    NotSupported,
    NotTty,
    NoDeviceOrAddress,
    NoDevice,
    WouldBlock,
    Deadlock,
    Interrupted,
    NoLocks,
    Overflow,
    Device {
        target: String,
        detail: String,
    },
    Corrupt {
        object: ObjectId,
        ost: OstIndex,
        offset: u64,
    },
    Transfer,
    Unreachable {
        target: String,
        seconds: u32,
        #[serde(default)]
        cause: Option<String>,
    },
    Damaged(String),
    Protocol(String),
    GroupsNeeded,
    Evicted,
    Refused(String),
    CorruptOnMdt {
        object: ObjectId,
        mdt: MdtIndex,
        offset: u64,
    },
    LayoutChanged,
    TooMany(String),
    TextFileBusy,
    AwaitsMdt(MdtIndex),
}

impl From<FsError> for WireError {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NotFound => WireError::NotFound,
            FsError::Exists => WireError::Exists,
            FsError::NotDirectory => WireError::NotDirectory,
            FsError::IsDirectory => WireError::IsDirectory,
            FsError::NotEmpty => WireError::NotEmpty,
            FsError::AccessDenied => WireError::AccessDenied,
            FsError::NotPermitted => WireError::NotPermitted,
            FsError::Invalid => WireError::Invalid,
            FsError::NameTooLong => WireError::NameTooLong,
            FsError::Loop => WireError::Loop,
            FsError::TooManyLinks => WireError::TooManyLinks,
            FsError::CrossDevice => WireError::CrossDevice,
            FsError::Busy => WireError::Busy,
            FsError::NoSpace => WireError::NoSpace,
            FsError::Quota => WireError::Quota,
            FsError::ReadOnly => WireError::ReadOnly,
            FsError::FileTooLarge => WireError::FileTooLarge,
            FsError::BadHandle => WireError::BadHandle,
            FsError::Stale => WireError::Stale,
            FsError::NoData => WireError::NoData,
            FsError::Range => WireError::Range,
            FsError::TooBig => WireError::TooBig,
            FsError::NotSupported => WireError::NotSupported,
            FsError::NotTty => WireError::NotTty,
            FsError::NoDeviceOrAddress => WireError::NoDeviceOrAddress,
            FsError::NoDevice => WireError::NoDevice,
            FsError::WouldBlock => WireError::WouldBlock,
            FsError::Deadlock => WireError::Deadlock,
            FsError::Interrupted => WireError::Interrupted,
            FsError::NoLocks => WireError::NoLocks,
            FsError::Overflow => WireError::Overflow,
            FsError::Device { target, detail } => WireError::Device { target, detail },
            FsError::Corrupt { object, ost, offset } => WireError::Corrupt { object, ost, offset },
            FsError::Transfer => WireError::Transfer,
            FsError::Unreachable { target, seconds, cause } => WireError::Unreachable { target, seconds, cause },
            FsError::Damaged(cause) => WireError::Damaged(cause.to_string()),
            FsError::Protocol(cause) => WireError::Protocol(cause.to_string()),
            FsError::GroupsNeeded => WireError::GroupsNeeded,
            FsError::Evicted => WireError::Evicted,
            FsError::Refused(cause) => WireError::Refused(cause.to_string()),
            FsError::CorruptOnMdt { object, mdt, offset } => WireError::CorruptOnMdt { object, mdt, offset },
            FsError::LayoutChanged => WireError::LayoutChanged,
            FsError::TooMany(cause) => WireError::TooMany(cause.to_string()),
            FsError::TextFileBusy => WireError::TextFileBusy,
            FsError::AwaitsMdt(mdt) => WireError::AwaitsMdt(mdt),
        }
    }
}

impl From<WireError> for FsError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::NotFound => FsError::NotFound,
            WireError::Exists => FsError::Exists,
            WireError::NotDirectory => FsError::NotDirectory,
            WireError::IsDirectory => FsError::IsDirectory,
            WireError::NotEmpty => FsError::NotEmpty,
            WireError::AccessDenied => FsError::AccessDenied,
            WireError::NotPermitted => FsError::NotPermitted,
            WireError::Invalid => FsError::Invalid,
            WireError::NameTooLong => FsError::NameTooLong,
            WireError::Loop => FsError::Loop,
            WireError::TooManyLinks => FsError::TooManyLinks,
            WireError::CrossDevice => FsError::CrossDevice,
            WireError::Busy => FsError::Busy,
            WireError::NoSpace => FsError::NoSpace,
            WireError::Quota => FsError::Quota,
            WireError::ReadOnly => FsError::ReadOnly,
            WireError::FileTooLarge => FsError::FileTooLarge,
            WireError::BadHandle => FsError::BadHandle,
            WireError::Stale => FsError::Stale,
            WireError::NoData => FsError::NoData,
            WireError::Range => FsError::Range,
            WireError::TooBig => FsError::TooBig,
            WireError::NotSupported => FsError::NotSupported,
            WireError::NotTty => FsError::NotTty,
            WireError::NoDeviceOrAddress => FsError::NoDeviceOrAddress,
            WireError::NoDevice => FsError::NoDevice,
            WireError::WouldBlock => FsError::WouldBlock,
            WireError::Deadlock => FsError::Deadlock,
            WireError::Interrupted => FsError::Interrupted,
            WireError::NoLocks => FsError::NoLocks,
            WireError::Overflow => FsError::Overflow,
            WireError::Device { target, detail } => {
                FsError::Device { target: printable(target), detail: printable(detail) }
            }
            WireError::Corrupt { object, ost, offset } => FsError::Corrupt { object, ost, offset },
            WireError::Transfer => FsError::Transfer,
            WireError::Unreachable { target, seconds, cause } => {
                FsError::Unreachable { target: printable(target), seconds, cause: cause.map(printable) }
            }
            WireError::Damaged(text) => Damage::Told(printable(text)).into(),
            WireError::Protocol(text) => ProtocolError::Told(printable(text)).into(),
            WireError::GroupsNeeded => FsError::GroupsNeeded,
            WireError::Evicted => FsError::Evicted,
            WireError::Refused(text) => Refusal::Told(printable(text)).into(),
            WireError::CorruptOnMdt { object, mdt, offset } => FsError::CorruptOnMdt { object, mdt, offset },
            WireError::LayoutChanged => FsError::LayoutChanged,
            WireError::TooMany(text) => TooMany::Told(printable(text)).into(),
            WireError::TextFileBusy => FsError::TextFileBusy,
            WireError::AwaitsMdt(mdt) => FsError::AwaitsMdt(mdt),
        }
    }
}

/// A text of another process as it may be shown: on one line, and without commands to a terminal.
fn printable(text: String) -> String {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "?"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientId, InodeNumber, RecordDamage};

    fn text() -> String {
        "why".to_owned()
    }

    /// Every variant with its bytes in postcard's encoding. The codec of messages adds a length
    /// before the fields of a struct; its own test is `rpc::codec`.
    fn published() -> Vec<(WireError, &'static str)> {
        let target = || "T".to_owned();
        let object = ObjectId::new(InodeNumber(0x0001_0000_0000_0100), 2);
        vec![
            (WireError::NotFound, "00"),
            (WireError::Exists, "01"),
            (WireError::NotDirectory, "02"),
            (WireError::IsDirectory, "03"),
            (WireError::NotEmpty, "04"),
            (WireError::AccessDenied, "05"),
            (WireError::NotPermitted, "06"),
            (WireError::Invalid, "07"),
            (WireError::NameTooLong, "08"),
            (WireError::Loop, "09"),
            (WireError::TooManyLinks, "0a"),
            (WireError::CrossDevice, "0b"),
            (WireError::Busy, "0c"),
            (WireError::NoSpace, "0d"),
            (WireError::Quota, "0e"),
            (WireError::ReadOnly, "0f"),
            (WireError::FileTooLarge, "10"),
            (WireError::BadHandle, "11"),
            (WireError::Stale, "12"),
            (WireError::NoData, "13"),
            (WireError::Range, "14"),
            (WireError::TooBig, "15"),
            (WireError::NotSupported, "16"),
            (WireError::NotTty, "17"),
            (WireError::NoDeviceOrAddress, "18"),
            (WireError::NoDevice, "19"),
            (WireError::WouldBlock, "1a"),
            (WireError::Deadlock, "1b"),
            (WireError::Interrupted, "1c"),
            (WireError::NoLocks, "1d"),
            (WireError::Overflow, "1e"),
            (WireError::Device { target: target(), detail: text() }, "1f015403776879"),
            (WireError::Corrupt { object, ost: OstIndex(3), offset: 4096 }, "20808280808080400200038020"),
            (WireError::Transfer, "21"),
            (WireError::Unreachable { target: target(), seconds: 100, cause: None }, "2201546400"),
            (WireError::Unreachable { target: target(), seconds: 100, cause: Some(text()) }, "220154640103776879"),
            (WireError::Damaged(text()), "2303776879"),
            (WireError::Protocol(text()), "2403776879"),
            (WireError::GroupsNeeded, "25"),
            (WireError::Evicted, "26"),
            (WireError::Refused(text()), "2703776879"),
            (WireError::CorruptOnMdt { object, mdt: MdtIndex(3), offset: 4096 }, "28808280808080400200038020"),
            (WireError::LayoutChanged, "29"),
            (WireError::TooMany(text()), "2a03776879"),
            (WireError::TextFileBusy, "2b"),
            (WireError::AwaitsMdt(MdtIndex(3)), "2c03"),
        ]
    }

    #[test]
    fn bytes_stay_as_published() {
        for (error, hex) in published() {
            let bytes = postcard::to_allocvec(&error).unwrap();
            let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, hex, "{error:?}");
            assert_eq!(postcard::from_bytes(&bytes), Ok(error));
        }
        postcard::from_bytes::<WireError>(&[0x2c]).expect_err("a variant that is not in the list");
    }

    #[test]
    fn the_documentation_has_every_error_under_its_number() {
        let text = include_str!("../../../../docs/wire_protocol.md");
        for (error, hex) in published() {
            let name: String = format!("{error:?}").chars().take_while(char::is_ascii_alphanumeric).collect();
            let number = u8::from_str_radix(&hex[..2], 16).unwrap();
            assert!(text.contains(&format!("| {number} | {name} ")), "{number} {name}");
        }
    }

    #[test]
    fn texts_of_peers_have_no_control_characters() {
        let text = || "\u{1b}[31mred\n\u{9b}stria: mounted é".to_owned();
        for error in [
            WireError::Device { target: text(), detail: text() },
            WireError::Unreachable { target: text(), seconds: 1, cause: Some(text()) },
            WireError::Damaged(text()),
            WireError::Protocol(text()),
            WireError::Refused(text()),
            WireError::TooMany(text()),
        ] {
            let shown = FsError::from(error).to_string();
            assert!(shown.contains("?[31mred??stria: mounted é"), "{shown}");
            assert!(!shown.contains(char::is_control), "{shown}");
        }
    }

    #[test]
    fn what_arrives_is_sent_on_as_it_was() {
        for (error, _) in published() {
            assert_eq!(WireError::from(FsError::from(error.clone())), error);
        }
    }

    /// Only the text of these causes is sent.
    #[test]
    fn a_cause_reads_the_same_after_the_wire() {
        let causes: [FsError; 4] = [
            Damage::new("directory entry", RecordDamage::Short).into(),
            ProtocolError::Checksums { found: 1, pieces: 2 }.into(),
            Refusal::UnknownPool("fast".to_owned()).into(),
            TooMany::OpenFiles { client: ClientId(1), target: "stria-MDT0000".to_owned(), files: 3 }.into(),
        ];
        for cause in causes {
            let told: FsError = postcard::from_bytes(&postcard::to_allocvec(&cause).unwrap()).unwrap();
            assert_eq!(told.to_string(), cause.to_string());
            assert_eq!(std::mem::discriminant(&told), std::mem::discriminant(&cause));
        }
    }
}
