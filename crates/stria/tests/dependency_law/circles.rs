//! Cycles of imports within crates: files that can only be understood together.
//!
//! A file depends on another one if it names something that is defined there, in a `use` or in a
//! longer path; `mod` and re-exports alone are no dependencies. In crates that promise more, a
//! re-exported name counts as the file that re-exports, and a re-export as a dependency of it.
//! Downside: calls of methods that other files of the crate implement are not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    LAW,
    reader::{Import, imports_and_paths, sources, without_comments_and_literals},
};

/// How many files a circle may have.
const CIRCLE_FILES_MAX: usize = 4;

/// Crates in which re-exports count.
const RE_EXPORTS_COUNT: &[&str] = &["kv", "layout", "mds", "mgs", "oss"];

/// Re-exports of re-exports, at most: ends a search that goes round in a circle.
const RE_EXPORTS_DEEP: usize = 16;

type Module = Vec<String>;

/// What each file depends on, and the paths in it that say so.
type Dependencies = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// The files of a crate, and what each of them imports and names.
struct Crate {
    files: BTreeMap<Module, (Vec<Import>, BTreeSet<String>)>,
    re_exports_count: bool,
}

/// The module of a file, by its path below `crates`.
fn module_of(file: &str) -> Module {
    let below = file.split_once("/src/").expect("sources are in src").1;
    let mut module: Module = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    module.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    module
}

impl Crate {
    fn new(files: &BTreeMap<String, String>, re_exports_count: bool) -> Crate {
        let read = |(file, text): (&String, &String)| {
            (module_of(file), imports_and_paths(&without_comments_and_literals(text)))
        };
        Crate { files: files.iter().map(read).collect(), re_exports_count }
    }

    /// The path from the root of the crate, if it leads into the crate.
    fn rooted(&self, module: &[String], path: &str) -> Option<Module> {
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
                self.files.contains_key(&child).then_some(())?;
            }
        }
        at.extend(words);
        Some(at)
    }

    /// The file to which a path from a module leads.
    fn file_of(&self, module: &[String], path: &str, re_exports_deep: usize) -> Option<Module> {
        let path = match path.split_once("::") {
            Some((first, rest)) => match self.import(module, first) {
                Some(import) if import.path != first => format!("{}::{rest}", import.path),
                _ => path.to_owned(),
            },
            None => path.to_owned(),
        };
        let whole = self.rooted(module, &path)?;
        let mut at = whole.clone();
        while !self.files.contains_key(&at) {
            at.pop()?;
        }
        let rest = &whole[at.len()..];
        let re_export = rest.first().and_then(|name| self.import(&at, name));
        match re_export {
            Some(import) if !self.re_exports_count && re_exports_deep < RE_EXPORTS_DEEP => {
                let path = [std::slice::from_ref(&import.path), &rest[1..]].concat().join("::");
                self.file_of(&at, &path, re_exports_deep + 1)
            }
            _ => Some(at),
        }
    }

    /// What a file calls by this name, if it is imported.
    fn import(&self, module: &[String], name: &str) -> Option<&Import> {
        self.files[module].0.iter().find(|import| import.name == name)
    }

    /// The dependencies of all files.
    fn dependencies(&self) -> Dependencies {
        let used = |(module, (imports, paths)): (&Module, &(Vec<Import>, BTreeSet<String>))| {
            let names: BTreeSet<&str> = paths.iter().filter_map(|path| path.split("::").next()).collect();
            let counts =
                |import: &&Import| self.re_exports_count || !import.is_shown || names.contains(import.name.as_str());
            let imported = imports.iter().filter(counts).map(|import| &import.path);
            // A word alone is a variable as well as a module.
            let named = imported.chain(paths).filter(|path| path.contains("::"));
            let mut used: BTreeMap<Module, BTreeSet<String>> = BTreeMap::new();
            for path in named {
                if let Some(other) = self.file_of(module, path, 0).filter(|other| other != module) {
                    used.entry(other).or_default().insert(path.clone());
                }
            }
            (module.clone(), used)
        };
        self.files.iter().map(used).collect()
    }
}

/// Files that depend on each other, all of them: circles do not overlap.
fn circles(dependencies: &Dependencies) -> BTreeSet<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        dependencies.keys().map(|module| (module, reachable(dependencies, module))).collect();
    let circle_of = |module: &&Module| -> BTreeSet<Module> {
        reached[*module].iter().filter(|other| reached[*other].contains(*module)).cloned().collect()
    };
    reached.keys().map(circle_of).filter(|circle| circle.len() > 1).collect()
}

/// Everything that can be reached.
fn reachable(dependencies: &Dependencies, from: &Module) -> BTreeSet<Module> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![from]);
    while let Some(module) = pending.pop() {
        pending.extend(dependencies[module].keys().filter(|used| found.insert((*used).clone())));
    }
    found
}

#[test]
fn circles_of_imports_are_small() {
    let mut breaches = Vec::new();
    for (name, _) in LAW {
        let dependencies = Crate::new(&sources(name), RE_EXPORTS_COUNT.contains(name)).dependencies();
        for circle in circles(&dependencies).iter().filter(|circle| circle.len() > CIRCLE_FILES_MAX) {
            breaches.push(format!("{name}: {} files import each other", circle.len()));
            for module in circle {
                let ties = dependencies[module].iter().filter(|(other, _)| circle.contains(*other));
                let ties: Vec<&str> = ties.flat_map(|(_, paths)| paths).map(String::as_str).collect();
                breaches.push(format!("  crate::{} names {}", module.join("::"), ties.join(", ")));
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn circles_are_found_whatever_the_path() {
    let found = |texts: &[(&str, &str)], re_exports_count: bool| -> Vec<usize> {
        let files = texts.iter().map(|(file, text)| (format!("some/src/{file}"), (*text).to_owned())).collect();
        circles(&Crate::new(&files, re_exports_count).dependencies()).iter().map(BTreeSet::len).collect()
    };
    for re_exports_count in [false, true] {
        let found = |texts: &[(&str, &str)]| found(texts, re_exports_count);
        assert_eq!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "")]), []);
        assert_eq!(
            found(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::{b::B};"), ("b.rs", "use super::a::A;")]),
            [2]
        );
        assert_eq!(
            found(&[
                ("lib.rs", ""),
                ("a.rs", "use crate::b as other;\nfn f() { other::g() }"),
                ("b.rs", "use super::a;")
            ]),
            [2]
        );
        assert_eq!(
            found(&[("lib.rs", ""), ("a.rs", "fn f() { crate::b::g() }"), ("b.rs", "fn g() { crate::a::f() }")]),
            [2]
        );
    }
    let shown = [
        ("lib.rs", "pub use a::A;"),
        ("a/mod.rs", "mod c; use c::C;"),
        ("a/c.rs", "use crate::b;\nfn f() { b::d::D }"),
        ("b/mod.rs", "pub mod d;"),
        ("b/d.rs", "use crate::A;"),
    ];
    assert_eq!(found(&shown, true), [4], "the root shows a, which uses c, which uses d, which uses the root");
    assert_eq!(found(&shown, false), [3], "a is defined in its own file, not in the root");
    let twice = [
        ("lib.rs", "pub use a::B as Other;"),
        ("a/mod.rs", "mod b; mod c; pub(crate) use b::B;"),
        ("a/b.rs", "use super::c::C;"),
        ("a/c.rs", "fn f() { crate::Other::new() }"),
    ];
    assert_eq!(found(&twice, false), [2], "b is found through two re-exports");
    let round = [("lib.rs", "pub use a::A;"), ("a.rs", "pub use crate::A;\nfn f() { A::new() }")];
    assert_eq!(found(&round, false), [], "re-exports of each other define nothing");
}
