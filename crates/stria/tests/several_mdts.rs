//! A file system with several MDTs.

mod common;

use std::fs;

use common::{FileSystem, Transport};

/// The number in a line of `lfs df -i` or `df`, by its column.
fn column(text: &str, line: &str, number: usize) -> u64 {
    let found = text.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("no {line} in:\n{text}"));
    let word = found.split_whitespace().nth(number).unwrap_or_else(|| panic!("no column {number} in: {found}"));
    word.parse().unwrap_or_else(|_| panic!("no number in column {number} of: {found}"))
}

/// Further MDTs are in use at once, and shown wherever targets are.
#[test]
fn up_takes_further_mdts() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    fs::write(system.root().join("old"), b"old").expect("write");
    assert_eq!(system.shell("lfs mdts $A").succeed(), "MDTS:\n0: stria-MDT0000_UUID ACTIVE\n");
    system.unmount(0);
    system.set_mdts(3);
    system.mount(0);
    assert_eq!(fs::read(system.root().join("old")).expect("read"), b"old");
    let expected = "MDTS:\n0: stria-MDT0000_UUID ACTIVE\n1: stria-MDT0001_UUID ACTIVE\n2: stria-MDT0002_UUID ACTIVE\n";
    assert_eq!(system.shell("lfs mdts $A").succeed(), expected);
    assert_eq!(system.shell("lfs check mds $A | wc -l").succeed(), "3\n");
    let inodes = system.shell("lfs df -i $A").succeed();
    let used: u64 = (0..3).map(|index| column(&inodes, &format!("MDT000{index}"), 2)).sum();
    assert_eq!((used, column(&inodes, "filesystem_summary:", 2)), (2, 2), "the root and a file:\n{inodes}");
    assert_eq!(column(&system.shell("df -i $A").succeed(), &system.root().display().to_string(), 2), used);
    for parameter in ["mdt.*.open_files", "lod.*.stripecount", "mdc.*.state", "ldlm.namespaces.*.lru_size"] {
        let shown = system.ctl(&format!("get_param {parameter}"));
        let of_mdts = shown.lines().filter(|line| line.contains("-MDT000")).count();
        assert_eq!(of_mdts, 3, "{parameter}:\n{shown}");
    }
    system.ctl("set_param lod.stria-MDT0002-mdtlov.stripecount=2");
    fs::write(system.root().join("new"), b"new").expect("write");
    system.shell("sync -f $A/new").succeed();
    system.finish();
}
