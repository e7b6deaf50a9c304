//! Configuration files. Not among the targets of libFuzzer: an operator writes them, and the crate
//! that reads them needs all of the daemons.

use std::path::Path;

use fuzz::FuzzTarget;

fn examples() -> Vec<Vec<u8>> {
    let file = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
        std::fs::read(path).expect("the examples are there")
    };
    ["mds.toml", "oss1.toml"].map(file).to_vec()
}

fn read(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let _ = toml::from_str::<node::config::Config>(&text).map(|config| config.check());
}

#[test]
fn configurations() {
    crate::run(&FuzzTarget { name: "configurations", inputs: 3_000, corpus: examples, run: read, seal: None });
}
