//! How messages become bytes: postcard's encoding of primitives, with every named struct
//! length-prefixed.
//!
//! | serde type | bytes |
//! |---|---|
//! | bool, u8, i8 | one byte |
//! | u16..u64 | LEB128, least significant group first; a value must not exceed its type |
//! | i16..i64 | zigzag, then LEB128 |
//! | f32, f64 | IEEE 754, little endian |
//! | string, byte array, sequence, map | number of bytes or elements as LEB128, then these |
//! | option | 0, or 1 and the value |
//! | tuple, tuple struct, newtype | the elements, nothing else |
//! | struct with named fields, also as an enum variant | length of the fields in bytes as LEB128, then the fields |
//! | enum | number of the variant as LEB128, then its contents |
//!
//! So a struct grows at its end: a receiver skips fields after those that it knows, and fields
//! missing at the end become their default if they have `#[serde(default)]`, otherwise it is an
//! error. Every field must encode to at least one byte, and `skip_serializing_if` must not be used:
//! both would make an absent field ambiguous.
//!
//! Decoding never panics and never allocates more than the input justifies: counts are checked
//! against the bytes that remain, and nesting is bounded by [`DEPTH_MAX`].

mod decode;
mod encode;
pub mod opcode;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use types::{FsError, ProtocolError, limits::BODY_BYTES_MAX};

use crate::message::{Reply, ReplyExtension, Request, RequestExtension};
use decode::Decoder;
use encode::Encoder;
use opcode::{Family, Opcode};

/// Deepest nesting of structs, enums, options and sequences. The messages need about 12.
pub const DEPTH_MAX: u32 = 48;

/// Why a message cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// It is larger than a frame's body may be.
    #[error("message of more than {BODY_BYTES_MAX} bytes")]
    TooLarge,
    /// A sequence without a known length, or a type the encoding does not have.
    #[error("{0} cannot be encoded")]
    Unsupported(&'static str),
    /// An error of the type's own `Serialize`.
    #[error("{0}")]
    Message(String),
}

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageDecodeError {
    /// The message ends early.
    #[error("message ends early")]
    Truncated,
    /// A number is too large for its type.
    #[error("number out of range")]
    NumberRange,
    /// A count says more than the remaining bytes can hold.
    #[error("count of {count} with {remaining} bytes left")]
    CountRange {
        /// The count.
        count: u64,
        /// Bytes left.
        remaining: usize,
    },
    /// Neither 0 nor 1 where a bool or option stands.
    #[error("byte {0} is neither 0 nor 1")]
    NotBool(u8),
    /// A string is not UTF-8, or a character is not one.
    #[error("text is not UTF-8")]
    NotText,
    /// Nested deeper than [`DEPTH_MAX`].
    #[error("nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// Bytes after the message.
    #[error("{0} bytes after the message")]
    Trailing(usize),
    /// No such message in this version.
    #[error("unknown message {0:#06x}")]
    UnknownOpcode(u16),
    /// The body is another message than the header says.
    #[error("header says message {header:#06x}, body says {body:#06x}")]
    OpcodeMismatch {
        /// The header's opcode.
        header: u16,
        /// What the body holds.
        body: u16,
    },
    /// The encoding does not tell its types.
    #[error("{0} cannot be decoded")]
    Unsupported(&'static str),
    /// An error of the type's own `Deserialize`: unknown variant, missing field.
    #[error("{0}")]
    Message(String),
}

impl From<EncodeError> for FsError {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::TooLarge => FsError::TooBig,
            other => ProtocolError::Codec(other.to_string()).into(),
        }
    }
}

impl From<MessageDecodeError> for FsError {
    fn from(error: MessageDecodeError) -> Self {
        match error {
            MessageDecodeError::UnknownOpcode(opcode) => ProtocolError::UnknownMessage(opcode),
            other => ProtocolError::Codec(other.to_string()),
        }
        .into()
    }
}

/// Encodes one value; at most [`BODY_BYTES_MAX`] bytes.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, EncodeError> {
    let mut encoder = Encoder::new();
    value.serialize(&mut encoder)?;
    encoder.finish(0)
}

/// The body of a frame: an extension, which may be empty, and a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// All of it.
    pub bytes: Bytes,
    /// How much of it is the extension.
    pub extension_bytes: u16,
}

impl From<Bytes> for Body {
    /// A message alone.
    fn from(bytes: Bytes) -> Self {
        Self { bytes, extension_bytes: 0 }
    }
}

/// Encodes a message with what is to travel with it.
fn encode_beside<E: Serialize + Default + PartialEq, T: Serialize + ?Sized>(
    extension: &E,
    value: &T,
) -> Result<Body, EncodeError> {
    let mut encoder = Encoder::new();
    if *extension != E::default() {
        extension.serialize(&mut encoder)?;
    }
    let extension_bytes = encoder.len();
    value.serialize(&mut encoder)?;
    let bytes = encoder.finish(extension_bytes)?;
    Ok(Body { bytes, extension_bytes: extension_bytes as u16 })
}

/// Decodes what travels with a message.
pub fn decode_extension<E: DeserializeOwned + Default>(bytes: &[u8]) -> Result<E, MessageDecodeError> {
    if bytes.is_empty() { Ok(E::default()) } else { decode(bytes) }
}

/// Decodes one value that fills `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageDecodeError> {
    let mut decoder = Decoder::new(bytes);
    let value = T::deserialize(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

/// Encodes a request; its family is in the header's opcode ([`opcode::of`]).
pub fn encode_request(extension: &RequestExtension, request: &Request) -> Result<Body, EncodeError> {
    match request {
        Request::Mdt(request) => encode_beside(extension, request),
        Request::Ost(request) => encode_beside(extension, request),
        Request::Mgs(request) => encode_beside(extension, request),
    }
}

/// Decodes a request with this opcode.
pub fn decode_request(opcode: Opcode, message: &[u8]) -> Result<Request, MessageDecodeError> {
    let unknown = MessageDecodeError::UnknownOpcode(opcode.0);
    if opcode.kind().is_none() {
        return Err(unknown);
    }
    let request = match opcode.family().ok_or(unknown)? {
        Family::Mdt => Request::Mdt(decode(message)?),
        Family::Ost => Request::Ost(decode(message)?),
        Family::Mgs => Request::Mgs(decode(message)?),
    };
    let found = opcode::of(&request);
    if found != opcode {
        return Err(MessageDecodeError::OpcodeMismatch { header: opcode.0, body: found.0 });
    }
    Ok(request)
}

/// Encodes a reply.
pub fn encode_reply(extension: &ReplyExtension, reply: &Reply) -> Result<Body, EncodeError> {
    match reply {
        Reply::Mdt(reply) => encode_beside(extension, reply),
        Reply::Ost(reply) => encode_beside(extension, reply),
        Reply::Mgs(reply) => encode_beside(extension, reply),
    }
}

/// Decodes a reply to a request of this family.
pub fn decode_reply(family: Family, message: &[u8]) -> Result<Reply, MessageDecodeError> {
    Ok(match family {
        Family::Mdt => Reply::Mdt(decode(message)?),
        Family::Ost => Reply::Ost(decode(message)?),
        Family::Mgs => Reply::Mgs(decode(message)?),
    })
}

#[cfg(test)]
mod tests;
