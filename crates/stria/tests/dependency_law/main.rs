//! The dependency law of the crates, checked against the manifests; the seams, and the order within
//! crates, checked against the sources.
//!
//! ```text
//! types <- layout, lock, nrs, blocks     pure; so is tuner, which depends on nothing
//! types <- rt <- kv              the outside world, and what stands on its devices
//! layout, lock, nrs, tuner, rt <- rpc <- {client, mds, oss, mgs};   kv <- {mds, oss, mgs}
//! rpc <- host <- {fuse, lfs};   client <- {fuse, lfs}
//! fuse, the servers <- node;    the servers, client <- lab;    lfs, node, lab <- studies;
//! fuse, lfs, the servers <- fuzz;   everything but fuzz <- stria
//! ```
//!
//! The sources are read as text: comments, literals and test modules are dropped, `use` trees are
//! written out, and what is left must not name a forbidden path. A macro could hide one, but no
//! such macros are used here.

mod circles;
mod reader;

use std::{collections::BTreeSet, fs};

use reader::{all_files, crates_dir, names, paths, sources, without_comments_and_literals};

/// What each crate may depend on within the workspace.
const LAW: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("layout", &["types"]),
    ("lock", &["types"]),
    ("nrs", &["types"]),
    ("blocks", &["types"]),
    ("tuner", &[]),
    ("rt", &["types"]),
    ("kv", &["types", "rt"]),
    ("rpc", &["types", "layout", "lock", "nrs", "tuner", "rt"]),
    ("mgs", &["types", "layout", "lock", "rt", "rpc", "kv"]),
    ("mds", &["types", "layout", "lock", "rt", "rpc", "kv"]),
    ("oss", &["types", "layout", "lock", "blocks", "rt", "rpc", "kv"]),
    ("client", &["types", "layout", "lock", "rt", "rpc"]),
    ("host", &["types", "layout", "lock", "rt", "rpc"]),
    ("fuse", &["types", "layout", "lock", "rt", "rpc", "client", "host"]),
    ("lfs", &["types", "layout", "rt", "rpc", "client", "host"]),
    (
        "node",
        &["types", "layout", "lock", "nrs", "tuner", "rt", "rpc", "kv", "mgs", "mds", "oss", "client", "host", "fuse"],
    ),
    ("lab", &["types", "layout", "lock", "tuner", "rt", "rpc", "kv", "mgs", "mds", "oss", "client"]),
    (
        "studies",
        &[
            "types", "layout", "lock", "nrs", "blocks", "rt", "rpc", "kv", "mgs", "mds", "oss", "client", "host",
            "lfs", "node", "lab",
        ],
    ),
    ("fuzz", &["types", "layout", "lock", "rt", "rpc", "kv", "mgs", "mds", "oss", "host", "fuse", "lfs"]),
    ("stria", &["types", "rt", "fuse", "lfs", "node", "lab", "studies"]),
];

/// Crates without I/O, clock or task, and the outside crates they may use.
const PURE: &[&str] = &["types", "layout", "lock", "nrs", "blocks", "tuner"];
const PURE_MAY_USE: &[&str] = &["serde", "thiserror"];

/// Crates that know the outside world only through the seams of `rt`.
const BEHIND_SEAMS: &[&str] =
    &["types", "layout", "lock", "nrs", "blocks", "tuner", "rpc", "kv", "mgs", "mds", "oss", "client"];
const OUTSIDE_PATHS: &[&str] = &[
    "tokio::time",
    "tokio::net",
    "tokio::fs",
    "tokio::task",
    "tokio::spawn",
    "tokio::runtime",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::thread",
    "std::net",
    "rand",
    "getrandom",
];

/// Crates whose behaviour must not depend on the order of a hash table. (`BTreeMap` keeps order;
/// tables that are only looked up in may come from other crates.)
const ORDERED: &[&str] = &["types", "layout", "lock", "nrs", "blocks", "tuner", "rpc", "mgs", "mds", "oss", "client"];
const HASHED_PATHS: &[&str] = &["std::collections::HashMap", "std::collections::HashSet"];

/// Parts of these that touch nothing outside: whether the current thread unwinds is known to the
/// compiler's runtime.
const INSIDE_PATHS: &[&str] = &["std::thread::panicking"];

/// Crates that may name the FUSE crates.
const KNOW_FUSE: &[&str] = &["fuse", "node", "fuzz", "stria"];
const FUSE_PATHS: &[&str] = &["fuse", "fuser"];

/// Sources, or directories of them, that represent the outside world themselves: behind a trait,
/// with an in-memory twin that the lab uses.
const IMPLEMENTATIONS_OF_SEAMS: &[&str] =
    &["kv/src/cold/fjall.rs", "kv/src/cold/fjall/", "kv/src/cold/readers.rs", "kv/src/cold/worker.rs"];

/// Parts of crates that nothing outside of them names, but the root of the crate, which shows them
/// to other crates.
const SEALED: &[(&str, &[&str])] = &[
    // The MDT around its namespace: what decides and changes knows nothing of requests, tasks and
    // OSTs.
    ("mds/src/mdt", &["crate::mdt", "crate::Mdt"]),
];

fn law(name: &str) -> &'static [&'static str] {
    LAW.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("crate {name} is not in the law: add it")).1
}

/// Names in `[dependencies]` and `[build-dependencies]`, and, apart, in `[dev-dependencies]`.
fn dependencies(name: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let path = crates_dir().join(name).join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let manifest: toml::Table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let names = |section: &str| -> BTreeSet<String> {
        let table = manifest.get(section).and_then(toml::Value::as_table);
        table.into_iter().flat_map(|table| table.keys().cloned()).collect()
    };
    (&names("dependencies") | &names("build-dependencies"), names("dev-dependencies"))
}

#[test]
fn the_law_knows_every_crate() {
    let found: BTreeSet<String> = fs::read_dir(crates_dir())
        .expect("the crates can be listed")
        .map(|entry| entry.expect("the crates can be listed"))
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().into_string().expect("crates have plain names"))
        .collect();
    let known: BTreeSet<String> = LAW.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, known);
}

#[test]
fn crates_depend_only_downwards() {
    let known: BTreeSet<&str> = LAW.iter().map(|(name, _)| *name).collect();
    let mut breaches = Vec::new();
    for (name, allowed) in LAW {
        let (built, tested) = dependencies(name);
        let inside = |used: &&String| known.contains(used.as_str());
        for used in built.iter().filter(inside).filter(|used| !allowed.contains(&used.as_str())) {
            breaches.push(format!("{name} depends on {used}"));
        }
        for used in tested.iter().filter(inside).filter(|used| law(used).contains(name)) {
            breaches.push(format!("tests of {name} depend on {used}, which stands above it"));
        }
        if PURE.contains(name) {
            let outside = built.iter().filter(|used| !known.contains(used.as_str()));
            for used in outside.filter(|used| !PURE_MAY_USE.contains(&used.as_str())) {
                breaches.push(format!("{name} is pure but depends on {used}"));
            }
        }
        if !KNOW_FUSE.contains(name) && FUSE_PATHS.iter().any(|fuse| built.contains(*fuse)) {
            breaches.push(format!("{name} knows FUSE"));
        }
    }
    assert_eq!(breaches, Vec::<String>::new());
}

#[test]
fn sources_respect_the_seams() {
    let mut breaches = Vec::new();
    for (name, _) in LAW {
        let rules = [
            (BEHIND_SEAMS.contains(name), OUTSIDE_PATHS),
            (ORDERED.contains(name), HASHED_PATHS),
            (!KNOW_FUSE.contains(name), FUSE_PATHS),
        ];
        let applied = rules.into_iter().filter(|(applies, _)| *applies);
        let forbidden: Vec<&str> = applied.flat_map(|(_, paths)| paths.iter().copied()).collect();
        for (file, text) in sources(name) {
            if IMPLEMENTATIONS_OF_SEAMS.iter().any(|part| file.starts_with(part)) {
                continue;
            }
            let mut paths = paths(&without_comments_and_literals(&text));
            paths.retain(|path| !INSIDE_PATHS.contains(&path.as_str()));
            breaches.extend(forbidden.iter().filter(|path| names(&paths, path)).map(|path| format!("{file}: {path}")));
        }
    }
    assert_eq!(breaches, Vec::<String>::new());
}

#[test]
fn nothing_outside_of_a_sealed_part_names_it() {
    let mut breaches = Vec::new();
    for (part, sealed) in SEALED {
        assert!(crates_dir().join(part).is_dir(), "{part} is a directory");
        let (name, _) = part.split_once('/').expect("a part has its crate's name");
        for (file, text) in sources(name) {
            if file.strip_prefix(part).is_some_and(|rest| rest.starts_with('/')) {
                continue;
            }
            let paths: BTreeSet<String> =
                paths(&without_comments_and_literals(&text)).iter().map(|path| from_the_root(path)).collect();
            let named = sealed.iter().filter(|path| names(&paths, path));
            breaches.extend(named.map(|path| format!("{file}: {path}")));
        }
    }
    assert_eq!(breaches, Vec::<String>::new());
}

/// CONTRIBUTING.md, Code, 7. Rows of tables cannot be wrapped; pictures and examples are in fences.
#[test]
fn comments_wrap_at_100_columns() {
    const COLUMNS: usize = 100;
    let mut long = Vec::new();
    for (file, text) in all_files() {
        let mut in_fence = false;
        for (number, line) in (1..).zip(text.lines()) {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                in_fence = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!', ' ']);
            in_fence ^= comment.starts_with("```");
            if !in_fence && !comment.starts_with('|') && line.chars().count() > COLUMNS {
                long.push(format!("{file}:{number}"));
            }
        }
    }
    assert_eq!(long, Vec::<String>::new());
}

/// A path that goes up from its module, as if the module were in the root of its crate: no
/// directory may hide a sealed part.
fn from_the_root(path: &str) -> String {
    let rest = path.trim_start_matches("super::");
    if rest.len() < path.len() { format!("crate::{rest}") } else { path.to_owned() }
}
