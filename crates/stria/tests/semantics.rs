//! Runs the examples of docs/semantics.md, in order, on two mounts over TCP.

mod common;

use common::{FileSystem, Transport};

const SEMANTICS: &str = include_str!("../../../docs/semantics.md");

/// A command, and what it must print.
#[derive(Debug)]
struct Example {
    line: usize,
    command: String,
    expected: String,
}

/// The lines of all console blocks: `$ ` begins a command, `> ` continues it, the rest is what it prints.
fn examples(document: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut inside = false;
    for (number, text) in (1..).zip(document.lines()) {
        if text.starts_with("```") {
            inside = text == "```console";
        } else if inside {
            match (text.strip_prefix("$ "), text.strip_prefix("> "), examples.last_mut()) {
                (Some(command), _, _) => {
                    examples.push(Example { line: number, command: command.to_owned(), expected: String::new() });
                }
                (_, Some(more), Some(example)) => example.command.push_str(&format!("\n{more}")),
                (_, _, Some(example)) => example.expected.push_str(&format!("{text}\n")),
                (_, _, None) => panic!("line {number}: a console block begins with a command"),
            }
        }
    }
    examples
}

#[test]
fn every_example_prints_what_the_document_says() {
    let examples = examples(SEMANTICS);
    assert!(examples.len() > 20, "examples are missing");
    let system = FileSystem::start(Transport::Tcp, 2);
    for Example { line, command, expected } in examples {
        // Standard output and errors in the order in which they come, as a terminal shows them.
        let printed = system.shell(&format!("exec 2>&1\n{command}")).env("LC_ALL", "C").output().stdout;
        let mounts = [("$A", system.path(0)), ("$B", system.path(1))];
        let expected = mounts.iter().fold(expected, |text, (name, path)| text.replace(name, &path.to_string_lossy()));
        assert_eq!(printed, expected, "docs/semantics.md, line {line}: {command}");
    }
    system.finish();
}
