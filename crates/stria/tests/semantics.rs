//! Runs the examples of docs/semantics.md, in order, on two mounts over TCP.

mod common;

use common::{FileSystem, Transport, console};

const SEMANTICS: &str = include_str!("../../../docs/semantics.md");

#[test]
fn every_example_prints_what_the_document_says() {
    let examples = console::examples(console::console_blocks(SEMANTICS));
    assert!(examples.len() > 20, "examples are missing");
    let system = FileSystem::start(Transport::Tcp, 2);
    console::run(&system, "docs/semantics.md", &examples);
    system.finish();
}
