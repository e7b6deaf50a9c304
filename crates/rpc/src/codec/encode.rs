//! The serializer. Struct lengths are filled in when the struct ends; a struct of 128 bytes or more
//! is then moved to make room for the longer length, which costs one short copy per level and saves
//! a second pass over every message.

use std::fmt;

use bytes::Bytes;
use serde::ser::{self, Serialize};
use types::limits::{BODY_BYTES_MAX, EXTENSION_BYTES_MAX};

use super::EncodeError;

impl ser::Error for EncodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        EncodeError::Message(message.to_string())
    }
}

/// Collects the bytes of one message.
pub(super) struct Encoder {
    out: Vec<u8>,
}

/// First allocation: most messages fit without a second one.
const CAPACITY: usize = 192;

impl Encoder {
    pub(super) fn new() -> Self {
        Self { out: Vec::with_capacity(CAPACITY) }
    }

    /// Bytes encoded so far.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// What was encoded: a message, after an extension of so many bytes.
    pub(super) fn finish(self, extension_bytes: usize) -> Result<Bytes, EncodeError> {
        if extension_bytes > EXTENSION_BYTES_MAX || self.out.len() - extension_bytes > BODY_BYTES_MAX {
            return Err(EncodeError::TooLarge);
        }
        Ok(self.out.into())
    }

    fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn signed(&mut self, value: i64) {
        self.unsigned(((value << 1) ^ (value >> 63)) as u64);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.unsigned(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    fn begin_struct(&mut self) -> Struct<'_> {
        let start = self.out.len();
        self.out.push(0);
        Struct { encoder: self, start }
    }
}

/// Bytes that `value` takes as LEB128.
fn unsigned_bytes(value: usize) -> usize {
    (usize::BITS - value.leading_zeros()).div_ceil(7).max(1) as usize
}

/// A struct being encoded: one byte at `start` is reserved for its length.
pub(super) struct Struct<'a> {
    encoder: &'a mut Encoder,
    start: usize,
}

impl Struct<'_> {
    fn field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let before = self.encoder.out.len();
        value.serialize(&mut *self.encoder)?;
        if self.encoder.out.len() == before {
            return Err(EncodeError::Unsupported("an empty field"));
        }
        Ok(())
    }

    fn finish(self) {
        let out = &mut self.encoder.out;
        let first = self.start + 1;
        let mut length = out.len() - first;
        let prefix = unsigned_bytes(length);
        if prefix > 1 {
            let end = out.len();
            out.resize(end + prefix - 1, 0);
            out.copy_within(first..end, self.start + prefix);
        }
        for byte in &mut out[self.start..self.start + prefix] {
            let more = if length >= 0x80 { 0x80 } else { 0 };
            *byte = length as u8 & 0x7f | more;
            length >>= 7;
        }
    }
}

impl<'a> ser::Serializer for &'a mut Encoder {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Struct<'a>;
    type SerializeStructVariant = Struct<'a>;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), EncodeError> {
        self.out.push(u8::from(value));
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), EncodeError> {
        self.out.push(value as u8);
        Ok(())
    }

    fn serialize_i16(self, value: i16) -> Result<(), EncodeError> {
        self.signed(i64::from(value));
        Ok(())
    }

    fn serialize_i32(self, value: i32) -> Result<(), EncodeError> {
        self.signed(i64::from(value));
        Ok(())
    }

    fn serialize_i64(self, value: i64) -> Result<(), EncodeError> {
        self.signed(value);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), EncodeError> {
        self.out.push(value);
        Ok(())
    }

    fn serialize_u16(self, value: u16) -> Result<(), EncodeError> {
        self.unsigned(u64::from(value));
        Ok(())
    }

    fn serialize_u32(self, value: u32) -> Result<(), EncodeError> {
        self.unsigned(u64::from(value));
        Ok(())
    }

    fn serialize_u64(self, value: u64) -> Result<(), EncodeError> {
        self.unsigned(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), EncodeError> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), EncodeError> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), EncodeError> {
        self.bytes(value.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), EncodeError> {
        self.bytes(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), EncodeError> {
        self.bytes(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), EncodeError> {
        self.out.push(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        self.out.push(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), EncodeError> {
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), EncodeError> {
        Ok(())
    }

    fn serialize_unit_variant(self, _name: &'static str, index: u32, _: &'static str) -> Result<(), EncodeError> {
        self.unsigned(u64::from(index));
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.unsigned(u64::from(index));
        value.serialize(self)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self, EncodeError> {
        self.unsigned(length.ok_or(EncodeError::Unsupported("a sequence of unknown length"))? as u64);
        Ok(self)
    }

    fn serialize_tuple(self, _length: usize) -> Result<Self, EncodeError> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> Result<Self, EncodeError> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> Result<Self, EncodeError> {
        self.unsigned(u64::from(index));
        Ok(self)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self, EncodeError> {
        self.unsigned(length.ok_or(EncodeError::Unsupported("a map of unknown length"))? as u64);
        Ok(self)
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Struct<'a>, EncodeError> {
        Ok(self.begin_struct())
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> Result<Struct<'a>, EncodeError> {
        self.unsigned(u64::from(index));
        Ok(self.begin_struct())
    }
}

impl ser::SerializeSeq for &mut Encoder {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeTuple for &mut Encoder {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeTupleStruct for &mut Encoder {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeTupleVariant for &mut Encoder {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeMap for &mut Encoder {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::SerializeStruct for Struct<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), EncodeError> {
        self.field(value)
    }

    fn skip_field(&mut self, _: &'static str) -> Result<(), EncodeError> {
        Err(EncodeError::Unsupported("a skipped field"))
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Struct<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), EncodeError> {
        self.field(value)
    }

    fn skip_field(&mut self, _: &'static str) -> Result<(), EncodeError> {
        Err(EncodeError::Unsupported("a skipped field"))
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish();
        Ok(())
    }
}
