//! The deserializer. It reads a slice; a struct narrows the slice to its own bytes while it is
//! read.

use std::fmt;

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor, value::U32Deserializer};

use super::{DEPTH_MAX, MessageDecodeError};

impl de::Error for MessageDecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        MessageDecodeError::Message(message.to_string())
    }
}

/// What remains of a message.
pub(super) struct Decoder<'de> {
    input: &'de [u8],
    depth: u32,
}

impl<'de> Decoder<'de> {
    pub(super) fn new(input: &'de [u8]) -> Self {
        Self { input, depth: 0 }
    }

    pub(super) fn finish(self) -> Result<(), MessageDecodeError> {
        if self.input.is_empty() { Ok(()) } else { Err(MessageDecodeError::Trailing(self.input.len())) }
    }

    fn take(&mut self, bytes: usize) -> Result<&'de [u8], MessageDecodeError> {
        let (taken, rest) = self.input.split_at_checked(bytes).ok_or(MessageDecodeError::Truncated)?;
        self.input = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, MessageDecodeError> {
        let (first, rest) = self.input.split_first().ok_or(MessageDecodeError::Truncated)?;
        self.input = rest;
        Ok(*first)
    }

    fn unsigned(&mut self) -> Result<u64, MessageDecodeError> {
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let group = u64::from(byte & 0x7f);
            if shift == 63 && group > 1 {
                return Err(MessageDecodeError::NumberRange);
            }
            value |= group << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(MessageDecodeError::NumberRange)
    }

    fn narrow<T: TryFrom<u64>>(&mut self) -> Result<T, MessageDecodeError> {
        T::try_from(self.unsigned()?).map_err(|_| MessageDecodeError::NumberRange)
    }

    fn signed<T: TryFrom<i64>>(&mut self) -> Result<T, MessageDecodeError> {
        let raw = self.unsigned()?;
        let value = (raw >> 1) as i64 ^ -((raw & 1) as i64);
        T::try_from(value).map_err(|_| MessageDecodeError::NumberRange)
    }

    /// A count of things that take at least one byte each.
    fn count(&mut self) -> Result<usize, MessageDecodeError> {
        let count = self.unsigned()?;
        let remaining = self.input.len();
        match usize::try_from(count) {
            Ok(count) if count <= remaining => Ok(count),
            _ => Err(MessageDecodeError::CountRange { count, remaining }),
        }
    }

    fn flag(&mut self) -> Result<bool, MessageDecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(MessageDecodeError::NotBool(other)),
        }
    }

    fn text(&mut self) -> Result<&'de str, MessageDecodeError> {
        let bytes = self.count()?;
        std::str::from_utf8(self.take(bytes)?).map_err(|_| MessageDecodeError::NotText)
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, MessageDecodeError>,
    ) -> Result<T, MessageDecodeError> {
        if self.depth == DEPTH_MAX {
            return Err(MessageDecodeError::TooDeep);
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn named_struct<V: Visitor<'de>>(
        &mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        let bytes = self.count()?;
        let own = self.take(bytes)?;
        let rest = std::mem::replace(&mut self.input, own);
        let value = self.deeper(|decoder| visitor.visit_seq(Fields { left: fields.len(), decoder }))?;
        self.input = rest;
        Ok(value)
    }

    fn elements<V: Visitor<'de>>(&mut self, count: usize, visitor: V) -> Result<V::Value, MessageDecodeError> {
        self.deeper(|decoder| visitor.visit_seq(Elements { left: count, decoder }))
    }
}

/// Fields of a named struct: those present, as far as this side knows them.
struct Fields<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Fields<'_, 'de> {
    type Error = MessageDecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, MessageDecodeError> {
        if self.left == 0 || self.decoder.input.is_empty() {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }
}

/// Elements of a sequence, tuple or map.
struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Elements<'_, 'de> {
    type Error = MessageDecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, MessageDecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.min(self.decoder.input.len()))
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_, 'de> {
    type Error = MessageDecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, MessageDecodeError> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, MessageDecodeError> {
        seed.deserialize(&mut *self.decoder)
    }
}

impl<'de> de::EnumAccess<'de> for &mut Decoder<'de> {
    type Error = MessageDecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), MessageDecodeError> {
        let index: U32Deserializer<MessageDecodeError> = self.narrow::<u32>()?.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Decoder<'de> {
    type Error = MessageDecodeError;

    fn unit_variant(self) -> Result<(), MessageDecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, MessageDecodeError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, MessageDecodeError> {
        self.elements(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        self.named_struct(fields, visitor)
    }
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = MessageDecodeError;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, MessageDecodeError> {
        Err(MessageDecodeError::Unsupported("a value of unknown type"))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_bool(self.flag()?)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_i8(self.byte()? as i8)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_i16(self.signed()?)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_i32(self.signed()?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_i64(self.signed()?)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_u8(self.byte()?)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_u16(self.narrow()?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_u32(self.narrow()?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_u64(self.unsigned()?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        let bytes = self.take(4)?.try_into().expect("four bytes were taken");
        visitor.visit_f32(f32::from_le_bytes(bytes))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        let bytes = self.take(8)?.try_into().expect("eight bytes were taken");
        visitor.visit_f64(f64::from_le_bytes(bytes))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        let mut characters = self.text()?.chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => visitor.visit_char(character),
            _ => Err(MessageDecodeError::NotText),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        let bytes = self.count()?;
        visitor.visit_borrowed_bytes(self.take(bytes)?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        if self.flag()? { self.deeper(|decoder| visitor.visit_some(decoder)) } else { visitor.visit_none() }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        self.deeper(|decoder| visitor.visit_newtype_struct(decoder))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        let count = self.count()?;
        self.elements(count, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, MessageDecodeError> {
        self.elements(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        self.elements(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, MessageDecodeError> {
        let count = self.count()?;
        self.deeper(|decoder| visitor.visit_map(Elements { left: count, decoder }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        self.named_struct(fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, MessageDecodeError> {
        self.deeper(|decoder| visitor.visit_enum(decoder))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, MessageDecodeError> {
        Err(MessageDecodeError::Unsupported("a field name"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, MessageDecodeError> {
        Err(MessageDecodeError::Unsupported("an ignored value"))
    }
}
