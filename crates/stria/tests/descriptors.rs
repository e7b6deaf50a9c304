//! A process that may open fewer files than it has objects. This test has a process of its own,
//! because it lowers the limit of the process, which daemons inherit.

mod common;

use std::fs;

use common::{FileSystem, Transport, load::Random};
use rustix::process::{Resource, Rlimit, setrlimit};

/// All that the targets of one process may have, for tables, journals, connections and objects.
const DESCRIPTORS: u64 = 256;
/// Files, each of an object with a host file of its own.
const FILES: u64 = 600;
const FILE_BYTES: u64 = 96 << 10;

/// A target that ran out of descriptors while flushing took no changes any more until the process
/// was started again.
#[test]
fn more_objects_than_descriptors_are_written_flushed_and_read() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) }).expect("setrlimit");
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let directory = system.root().join("plain");
    fs::create_dir(&directory).expect("mkdir");
    system.shell("lfs setstripe -c 1 $A/plain").succeed();
    let contents = |number: u64| Random(number).bytes(FILE_BYTES);
    for number in 1..=FILES {
        fs::write(directory.join(number.to_string()), contents(number)).expect("write");
        if number % (FILES / 4) == 0 {
            system.shell("lfs sync $A").succeed();
        }
    }
    for number in 1..=FILES {
        assert!(fs::read(directory.join(number.to_string())).expect("read") == contents(number), "file {number}");
    }
    system.unmount(0);
    system.mount(0);
    assert!(fs::read(directory.join("1")).expect("read") == contents(1));
    system.finish();
}
