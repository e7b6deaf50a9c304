//! Sessions at a shell as documents show them: what is typed, and what comes out.
//!
//! `$ ` begins a command, `> ` continues it, the lines below are what it prints, on either output, in the order in which a
//! terminal shows it. `$A`, `$B`, ... stand for the mounts, in commands and in what they print.

use super::FileSystem;

/// A command, and what it must print.
#[derive(Debug)]
pub struct Example {
    /// Line of the document.
    pub line: usize,
    /// What is typed.
    pub command: String,
    /// What is printed.
    pub expected: String,
}

/// The examples in numbered lines.
pub fn examples<'a>(lines: impl IntoIterator<Item = (usize, &'a str)>) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for (line, text) in lines {
        match (text.strip_prefix("$ "), text.strip_prefix("> "), examples.last_mut()) {
            (Some(command), _, _) => {
                examples.push(Example { line, command: command.to_owned(), expected: String::new() });
            }
            (_, Some(more), Some(example)) => example.command.push_str(&format!("\n{more}")),
            (_, _, Some(example)) => example.expected.push_str(&format!("{text}\n")),
            (_, _, None) => panic!("line {line}: a session begins with a command"),
        }
    }
    examples
}

/// Lines of the blocks of a Markdown document that are marked as `console`.
pub fn console_blocks(document: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = Vec::new();
    for (number, text) in (1..).zip(document.lines()) {
        if text.starts_with("```") {
            inside = text == "```console";
        } else if inside {
            lines.push((number, text));
        }
    }
    lines
}

/// Runs all examples in order; each must print what it says.
pub fn run(system: &FileSystem, document: &str, examples: &[Example]) {
    for Example { line, command, expected } in examples {
        let printed = system.shell(&format!("exec 2>&1\n{command}")).env("LC_ALL", "C").output().stdout;
        let expected = system.with_mount_points(expected);
        assert_eq!(printed, expected, "{document}, line {line}: {command}");
    }
}
