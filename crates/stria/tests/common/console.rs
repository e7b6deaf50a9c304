//! Shell sessions as documents show them: commands and their output.
//!
//! `$ ` starts a command, `> ` continues it, and the lines below are its output (standard output
//! and standard error), in the order in which a terminal shows it. `$A`, `$B`, ... stand for the
//! mounts, in commands and in their output.

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

/// The examples as one script for `bash`, whose output [`check_session`] reads: variables,
/// functions and jobs stay from one to the next.
pub fn session(examples: &[Example]) -> String {
    let marked = |Example { line, command, .. }: &Example| format!("{command}\nprintf '\\n{MARK}%s\\n' {line}\n");
    format!("exec 2>&1\n{}", examples.iter().map(marked).collect::<String>())
}

/// Compares what a session printed with what the document says, where `...` stands for any text.
pub fn check_session(document: &str, examples: &[Example], output: &str) {
    let mut rest = output;
    for Example { line, command, expected } in examples {
        let mark = format!("\n{MARK}{line}\n");
        let (printed, after) =
            rest.split_once(&*mark).unwrap_or_else(|| panic!("{document}, line {line}: {command}: no end: {rest}"));
        assert!(
            is_like(printed, expected),
            "{document}, line {line}: {command}\n--- printed:\n{printed}--- expected:\n{expected}---"
        );
        rest = after;
    }
}

/// Stands between what two commands of a session print.
const MARK: &str = "--- end of line ";
/// What differs from run to run.
const ANYTHING: &str = "...";

fn is_like(text: &str, pattern: &str) -> bool {
    // Alone on a line it stands for any lines, also none.
    let lines = pattern.split_inclusive('\n').map(|line| if line.trim_end() == ANYTHING { ANYTHING } else { line });
    let pattern: &str = &lines.collect::<String>();
    let Some((begin, rest)) = pattern.split_once(ANYTHING) else { return text == pattern };
    let Some(mut text) = text.strip_prefix(begin) else { return false };
    let mut parts: Vec<&str> = rest.split(ANYTHING).collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = text.split_once(part) else { return false };
        text = after;
    }
    text.ends_with(end)
}

/// Runs all examples in order; each must print what it says.
pub fn run(system: &FileSystem, document: &str, examples: &[Example]) {
    for Example { line, command, expected } in examples {
        let printed = system.shell(&format!("exec 2>&1\n{command}")).env("LC_ALL", "C").output().stdout;
        let expected = system.with_mount_points(expected);
        assert_eq!(printed, expected, "{document}, line {line}: {command}");
    }
}
