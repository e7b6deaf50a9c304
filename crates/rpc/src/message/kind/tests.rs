//! The tables against the messages themselves.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor, value},
    forward_to_deserialize_any,
};

use super::*;
use crate::message::{MdtRequest, MgsRequest, OstRequest};

/// Decodes nothing: it fails with the names of the variants that it is asked for, separated by
/// spaces.
struct Variants;

impl<'de> Deserializer<'de> for Variants {
    type Error = value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, value::Error> {
        Err(value::Error::custom(variants.join(" ")))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        Err(value::Error::custom("not an enum"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}

fn variants_of<T: for<'de> Deserialize<'de> + fmt::Debug>() -> String {
    T::deserialize(Variants).unwrap_err().to_string()
}

fn names_of(kinds: &[impl fmt::Debug]) -> String {
    kinds.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn kinds_are_the_variants_of_requests_in_their_order() {
    assert_eq!(names_of(&MdtKind::ALL), variants_of::<MdtRequest>());
    assert_eq!(names_of(&OstKind::ALL), variants_of::<OstRequest>());
    assert_eq!(names_of(&MgsKind::ALL), variants_of::<MgsRequest>());
}

#[test]
fn every_kind_has_its_own_place_and_name() {
    assert!(RequestKind::all().map(RequestKind::index).eq(0..RequestKind::COUNT));
    let mut names: Vec<_> = RequestKind::all().map(|kind| kind.row().name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RequestKind::COUNT);
}
