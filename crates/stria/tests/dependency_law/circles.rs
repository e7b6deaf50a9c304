//! Cycles of imports within crates: files that can only be understood together.
//!
//! A file depends on another one if it names it or something in it, in a `use` or in a longer path;
//! `mod` alone is no dependency. A re-export counts as the file that re-exports. Downside: calls of
//! methods that other files of the crate implement are not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::reader::{paths, sources, without_comments_and_literals};

/// Crates, and how many files a circle in them may have.
const CIRCLES: &[(&str, usize)] = &[("kv", 4), ("layout", 4), ("mds", 4), ("mgs", 4), ("oss", 4)];

type Module = Vec<String>;

/// The module of a file, by its path below `crates`.
fn module_of(file: &str) -> Module {
    let below = file.split_once("/src/").expect("sources are in src").1;
    let mut module: Module = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    module.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    module
}

/// The path from the root of the crate, if it leads into the crate.
fn from_the_root(module: &[String], path: &str, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut words = path.split("::").map(str::to_owned).peekable();
    let mut at = module.to_vec();
    match words.peek().map(String::as_str)? {
        "crate" => {
            words.next();
            at.clear();
        }
        "self" => drop(words.next()),
        "super" => {
            while words.next_if(|word| word == "super").is_some() {
                at.pop();
            }
        }
        child => {
            let child = [module, &[child.to_owned()]].concat();
            modules.contains(&child).then_some(())?;
        }
    }
    at.extend(words);
    Some(at)
}

/// What each file of a crate depends on.
fn dependencies(files: &BTreeMap<String, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let modules: BTreeSet<Module> = files.keys().map(|file| module_of(file)).collect();
    let used = |(file, text): (&String, &String)| {
        let module = module_of(file);
        let paths = paths(&without_comments_and_literals(text));
        // What a `use` brings into the file, by its name there.
        let imported: BTreeMap<&str, &String> = paths
            .iter()
            .filter(|path| ["crate::", "self::", "super::"].iter().any(|root| path.starts_with(root)))
            .filter_map(|path| path.rsplit_once("::").map(|(_, name)| (name, path)))
            .collect();
        let whole = |path: &String| match path.split_once("::") {
            Some((first, rest)) if imported.contains_key(first) => format!("{}::{rest}", imported[first]),
            _ => path.clone(),
        };
        let file_of = |path: &String| {
            // A word alone is a variable as well as a module.
            path.contains("::").then_some(())?;
            let mut at = from_the_root(&module, &whole(path), &modules)?;
            while !modules.contains(&at) {
                at.pop()?;
            }
            (at != module).then_some(at)
        };
        let used = paths.iter().filter_map(file_of).collect();
        (module, used)
    };
    files.iter().map(used).collect()
}

/// Everything that can be reached.
fn reachable(dependencies: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![from]);
    while let Some(module) = pending.pop() {
        pending.extend(dependencies[module].iter().filter(|used| found.insert((*used).clone())));
    }
    found
}

/// Files that depend on each other, all of them: circles do not overlap.
fn circles(files: &BTreeMap<String, String>) -> BTreeSet<BTreeSet<Module>> {
    let dependencies = dependencies(files);
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        dependencies.keys().map(|module| (module, reachable(&dependencies, module))).collect();
    let circle_of = |module: &&Module| -> BTreeSet<Module> {
        reached[*module].iter().filter(|other| reached[*other].contains(*module)).cloned().collect()
    };
    reached.keys().map(circle_of).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn circles_of_imports_are_small() {
    let mut breaches = Vec::new();
    for (name, files_max) in CIRCLES {
        for circle in circles(&sources(name)).into_iter().filter(|circle| circle.len() > *files_max) {
            let modules: Vec<String> = circle.iter().map(|module| format!("{name}::{}", module.join("::"))).collect();
            breaches.push(format!("{} files import each other: {}", modules.len(), modules.join(", ")));
        }
    }
    assert_eq!(breaches, Vec::<String>::new());
}

#[test]
fn circles_are_found_whatever_the_path() {
    let files = |texts: &[(&str, &str)]| -> BTreeMap<String, String> {
        texts.iter().map(|(file, text)| (format!("some/src/{file}"), (*text).to_owned())).collect()
    };
    let found = |texts: &[(&str, &str)]| -> Vec<usize> { circles(&files(texts)).iter().map(BTreeSet::len).collect() };
    assert_eq!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "")]), []);
    assert_eq!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::{b::B};"), ("b.rs", "use super::a;")]), [2]);
    assert_eq!(
        found(&[("lib.rs", ""), ("a.rs", "fn f() { crate::b::g() }"), ("b.rs", "fn g() { crate::a::f() }")]),
        [2]
    );
    assert_eq!(
        found(&[
            ("lib.rs", "pub use a::A;"),
            ("a/mod.rs", "mod c; use c::C;"),
            ("a/c.rs", "use crate::b;\nfn f() { b::d::D }"),
            ("b/mod.rs", "pub mod d;"),
            ("b/d.rs", "use crate::A;"),
        ]),
        [4],
        "the root shows a, which uses c, which uses d, which uses the root"
    );
}
