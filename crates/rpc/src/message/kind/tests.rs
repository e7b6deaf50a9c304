//! The tables against the messages themselves.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor, value},
    forward_to_deserialize_any,
};

use super::*;
use crate::{
    auth::Role,
    message::{MdtRequest, MgsRequest, OstRequest, kind::row::Permission},
};

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

/// A request that only some may send must be added here deliberately.
#[test]
fn restricted_requests_are_these() {
    let restricted: Vec<(&str, Permission)> = RequestKind::all()
        .map(|kind| (kind.row().name, kind.row().permission))
        .filter(|(_, permission)| *permission != Permission::Everybody)
        .collect();
    assert_eq!(
        restricted,
        [
            ("mdt_check", Permission::Tools),
            ("mdt_scan_inodes", Permission::Tools),
            ("mdt_repair_size", Permission::Repair),
            ("ost_destroy", Permission::MdtsAndRepair),
            ("ost_list_objects", Permission::Tools),
            ("ost_verify", Permission::Tools),
            ("ost_evict", Permission::Mdts),
            ("ost_fence", Permission::Mdts),
            ("ost_check", Permission::Tools),
            ("mgs_register", Permission::Targets),
            ("mgs_set_parameter", Permission::ServerKey),
            ("mgs_set_state", Permission::ServerKey),
            ("mgs_pool_new", Permission::ServerKey),
            ("mgs_pool_add", Permission::ServerKey),
            ("mgs_pool_remove", Permission::ServerKey),
            ("mgs_pool_destroy", Permission::ServerKey),
        ]
    );
    for (role, permitted) in [
        (Role::Client, &[][..]),
        (
            Role::Mdt,
            &[
                Permission::Tools,
                Permission::ServerKey,
                Permission::Targets,
                Permission::Mdts,
                Permission::MdtsAndRepair,
            ],
        ),
        (Role::Ost, &[Permission::Tools, Permission::ServerKey, Permission::Targets]),
        (Role::Mgs, &[Permission::Tools, Permission::ServerKey, Permission::Targets]),
        (Role::Mover, &[Permission::Tools, Permission::ServerKey]),
        (Role::Tool, &[Permission::Tools]),
        (Role::Repair, &[Permission::Tools, Permission::ServerKey, Permission::MdtsAndRepair, Permission::Repair]),
    ] {
        for (name, permission) in &restricted {
            assert_eq!(permission.allows(role), permitted.contains(permission), "{role}: {name}");
        }
    }
}
