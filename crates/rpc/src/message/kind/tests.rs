//! The tables against the messages themselves.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor, value},
    forward_to_deserialize_any,
};

use super::*;
use crate::{
    auth::Role,
    message::{
        ClientReply, ClientRequest, MdtReply, MdtRequest, MgsReply, MgsRequest, OstReply, OstRequest,
        kind::row::Permission,
    },
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

/// What the tables of a part of the document say: numbers beside names, several of each in a cell
/// separated by commas.
fn numbered(part: &str) -> BTreeSet<(u8, &str)> {
    let mut found = BTreeSet::new();
    for row in part.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for pair in cells.chunks_exact(2) {
            let names = pair[1].split(" (").next().unwrap_or_default().split(", ");
            found
                .extend(pair[0].split(", ").zip(names).filter_map(|(number, name)| Some((number.parse().ok()?, name))));
        }
    }
    found
}

#[test]
fn the_document_has_every_message_under_its_number() {
    const DOCUMENT: &str = include_str!("../../../../../docs/wire_protocol.md");
    let (_, messages) = DOCUMENT.split_once("## Messages").unwrap();
    let (requests, replies) = messages.split_once("Replies have no opcodes").unwrap();
    let replies = replies.split_once("`Check`, sent by fsck").unwrap().0;
    let check = |part: &str, all: &[String]| {
        let written = numbered(part);
        let expected: BTreeSet<(u8, &str)> =
            all.iter().flat_map(|names| names.split(' ').enumerate().map(|(at, name)| (at as u8, name))).collect();
        assert_eq!(written, expected);
    };
    check(requests, &[variants_of::<MdtRequest>(), variants_of::<OstRequest>(), variants_of::<MgsRequest>()]);
    let of_clients = variants_of::<ClientReply>();
    check(replies, &[variants_of::<MdtReply>(), variants_of::<OstReply>(), variants_of::<MgsReply>(), of_clients]);
    for (number, name) in variants_of::<ClientRequest>().split(' ').enumerate() {
        let row = format!("\n| {:#06x} | {name}", 0x0400 + number);
        assert!(DOCUMENT.contains(&row), "{row}");
    }
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
            ("mdt_prepare", Permission::Mdts),
            ("mdt_abort", Permission::Mdts),
            ("mdt_decisions", Permission::Mdts),
            ("mdt_join", Permission::Mdts),
            ("mdt_remote_names", Permission::Tools),
            ("mdt_above", Permission::Mdts),
            ("mdt_repair_name", Permission::Repair),
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
