//! Reads sources as text: comments, literals and test modules are dropped, and what is left is
//! taken apart into paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The directory of all crates.
pub fn crates_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is among the others").to_owned()
}

/// Sources of a crate without tests: path below `crates`, text.
pub fn sources(name: &str) -> BTreeMap<String, String> {
    let (root, mut sources, mut pending) = (crates_dir(), BTreeMap::new(), vec![crates_dir().join(name).join("src")]);
    let mut test_modules = BTreeSet::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("sources can be listed").map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("sources are text");
            let (kept, modules) = without_tests(&text);
            let dir = match path.file_stem().and_then(|stem| stem.to_str()) {
                Some("lib" | "main" | "mod") | None => path.parent().expect("a file has a directory").to_owned(),
                Some(stem) => path.with_file_name(stem),
            };
            test_modules.extend(modules.into_iter().map(|module| dir.join(module)));
            sources.insert(path, kept);
        }
    }
    let is_test = |path: &Path| test_modules.iter().any(|module| path.with_extension("").starts_with(module));
    let below = |path: &Path| path.strip_prefix(&root).expect("below the crates").to_string_lossy().into_owned();
    sources.into_iter().filter(|(path, _)| !is_test(path)).map(|(path, text)| (below(&path), text)).collect()
}

/// All Rust files below the crates, tests included, and their text.
pub fn all_files() -> BTreeMap<String, String> {
    let (root, mut files, mut pending) = (crates_dir(), BTreeMap::new(), vec![crates_dir()]);
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("crates can be listed").map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("sources are text");
            files.insert(path.strip_prefix(&root).expect("below the crates").to_string_lossy().into_owned(), text);
        }
    }
    files
}

/// The text up to its test module, and the names of test modules that are files of their own.
pub fn without_tests(text: &str) -> (String, Vec<String>) {
    let (mut kept, mut modules) = (String::new(), Vec::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]"
            && let Some(module) =
                lines.peek().and_then(|next| next.split_whitespace().skip_while(|word| *word != "mod").nth(1))
        {
            match module.strip_suffix(';') {
                Some(module) => modules.push(module.to_owned()),
                None => break,
            }
        }
        kept.push_str(line);
        kept.push('\n');
    }
    (kept, modules)
}

/// Replaces comments, strings and characters by spaces.
pub fn without_comments_and_literals(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(character) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if character == '"' {
            let end = rest[1..].char_indices().scan(false, |escaped, (position, character)| {
                let closes = character == '"' && !*escaped;
                *escaped = character == '\\' && !*escaped;
                Some((position, closes))
            });
            end.into_iter().find(|(_, closes)| *closes).map_or(rest.len(), |(position, _)| position + 2)
        } else if let Some(hashes) = raw_string(rest, kept.chars().next_back()) {
            let close = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            rest[start..].find(&close).map_or(rest.len(), |end| start + end + close.len())
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            rest[2..].find('\'').map_or(rest.len(), |end| end + 3)
        } else {
            0
        };
        if skipped == 0 {
            kept.push(character);
            rest = &rest[character.len_utf8()..];
        } else {
            kept.push(' ');
            rest = &rest[skipped..];
        }
    }
    kept
}

/// Number of `#` of a raw string that begins here.
fn raw_string(rest: &str, before: Option<char>) -> Option<usize> {
    if before.is_some_and(|character| character.is_alphanumeric() && character != 'b') {
        return None;
    }
    let inner = rest.strip_prefix('r')?.trim_start_matches('#');
    inner.starts_with('"').then(|| rest.len() - 1 - inner.len())
}

/// Every path in the text, `use` trees written out: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
pub fn paths(text: &str) -> BTreeSet<String> {
    let (imports, mut paths) = imports_and_paths(text);
    paths.extend(imports.into_iter().map(|import| import.path));
    paths
}

/// One name that a `use` brings into a file.
pub struct Import {
    pub path: String,
    /// What the file calls it, and others if they name it there.
    pub name: String,
    /// Whether it is a re-export (`pub use`, `pub(crate) use`).
    pub is_shown: bool,
}

/// What the text imports, and every path in it outside of `use`.
pub fn imports_and_paths(text: &str) -> (Vec<Import>, BTreeSet<String>) {
    let tokens = tokens(text);
    let (mut imports, mut paths, mut position) = (Vec::new(), BTreeSet::new(), 0);
    while position < tokens.len() {
        if tokens[position] == "use" {
            let is_shown = position > 0 && ["pub", ")"].contains(&tokens[position - 1]);
            position = use_tree(&tokens, position + 1, "", is_shown, &mut imports);
        } else if is_word(tokens[position]) {
            let mut path = tokens[position].to_owned();
            while tokens.get(position + 1) == Some(&"::") && tokens.get(position + 2).is_some_and(|next| is_word(next))
            {
                path = format!("{path}::{}", tokens[position + 2]);
                position += 2;
            }
            paths.insert(path);
            position += 1;
        } else {
            position += 1;
        }
    }
    (imports, paths)
}

/// Reads one branch of a `use` tree; returns the position after it.
fn use_tree(tokens: &[&str], mut position: usize, prefix: &str, is_shown: bool, imports: &mut Vec<Import>) -> usize {
    let (mut path, mut alias) = (prefix.to_owned(), None);
    while let Some(token) = tokens.get(position) {
        match *token {
            "::" => {}
            "{" => {
                position += 1;
                while tokens.get(position).is_some_and(|token| *token != "}") {
                    position = use_tree(tokens, position, &path, is_shown, imports);
                    position += usize::from(tokens.get(position) == Some(&","));
                }
                return position + 1;
            }
            "as" => {
                position += 1;
                alias = tokens.get(position);
            }
            "self" if !path.is_empty() => {}
            word if is_word(word) || word == "*" => {
                path = if path.is_empty() { word.to_owned() } else { format!("{path}::{word}") };
            }
            _ => break,
        }
        position += 1;
    }
    let name = alias.copied().or(path.rsplit("::").next()).unwrap_or_default().to_owned();
    imports.push(Import { path, name, is_shown });
    position
}

fn is_word(token: &str) -> bool {
    token.starts_with(|character: char| character.is_alphabetic() || character == '_')
}

/// Words, `::`, and single other characters.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    while let Some(character) = rest.chars().next() {
        let word = |character: char| character.is_alphanumeric() || character == '_';
        let length = if word(character) {
            rest.find(|character| !word(character)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            character.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Whether `forbidden` or something in it is named, or everything around it is imported
/// (`use std::time;`). A path of one word is a crate: it counts only with something after it.
pub fn names(paths: &BTreeSet<String>, forbidden: &str) -> bool {
    paths.iter().any(|path| {
        let inside = path.strip_prefix(forbidden).is_some_and(|rest| rest.starts_with("::"));
        let itself = path == forbidden && forbidden.contains("::");
        let parent = forbidden.rsplit_once("::").map(|(parent, _)| parent);
        let around = parent.is_some_and(|parent| {
            (path == parent && parent.contains("::")) || path.strip_prefix(parent) == Some("::*")
        });
        inside || itself || around
    })
}

#[test]
fn the_reader_sees_through_disguises() {
    let sees = |text: &str, path: &str| names(&paths(&without_comments_and_literals(text)), path);
    assert!(sees("fn f() { std::thread::sleep(x) }", "std::thread"));
    assert!(sees("use std::{sync::Arc, thread};", "std::thread"));
    assert!(sees("use std::{time::{Duration, Instant as Now}};", "std::time::Instant"));
    assert!(sees("use std::{time};", "std::time::Instant"));
    assert!(sees("use std::time::*;", "std::time::Instant"));
    assert!(sees("use tokio::{sync::watch, time::{self, sleep}};", "tokio::time"));
    assert!(sees("let map: std::collections::HashMap<u8, u8>;", "std::collections::HashMap"));
    assert!(sees("let c = '\"'; use tokio::net::TcpStream; let d = '\"';", "tokio::net"));
    assert!(sees("fuse::mount(path)", "fuse"));
    assert!(!sees(
        "// std::thread\n/* tokio::net */ let x = \"tokio::time \\\" std::thread\"; r#\"std::thread\"#;",
        "std::thread"
    ));
    assert!(!sees("use std::time::Duration; use rt::Instant;", "std::time::Instant"));
    assert!(!sees("use std::collections::BTreeMap;", "std::collections::HashMap"));
    assert!(!sees("let fuse = 1; x.fuse()", "fuse"));
    assert!(!sees("fn f<'a>(x: &'a str) { tokio::sync::Notify::new() }", "tokio::net"));
    let (kept, modules) =
        without_tests("use a;\n#[cfg(test)]\nmod helper;\nuse b;\n#[cfg(test)]\nmod tests {\nuse c;\n}\n");
    assert!(kept.contains("use b;") && !kept.contains("use c;"));
    assert_eq!(modules, ["helper"]);
}
