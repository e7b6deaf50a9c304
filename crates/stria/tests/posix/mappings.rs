//! Mapped files: between processes of one client, and between clients as far as docs/semantics.md
//! guarantees it.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use super::calls::{Mapping, open};
use crate::common::{FileSystem, Transport, programs::program};

const BYTES: usize = 1 << 20;

#[test]
fn shared_mappings_are_one_memory_and_reach_other_clients_when_synchronised() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("file"), system.path(1).join("file"));
    let file = open(&a, 0);
    file.set_len(BYTES as u64).expect("truncate");
    let mut one = Mapping::new(&file, BYTES, libc::MAP_SHARED).expect("mmap");
    let mut two = Mapping::new(&open(&a, 0), BYTES, libc::MAP_SHARED).expect("mmap");
    one.bytes()[4000..5000].fill(1);
    assert!(two.bytes()[4000..5000] == [1; 1000], "one memory");
    // System calls of the same client see it at once, also those of another process; other clients
    // after msync.
    let mut found = [0; 1000];
    open(&a, 0).read_exact_at(&mut found, 4000).expect("read");
    assert_eq!(found, [1; 1000]);
    let script = "tail -c +4001 \"$1\" | head -c 1000 | tr -d '\\1' | wc -c";
    let left = program("bash").args(["-c", script, "bash"]).arg(&a).succeed();
    assert_eq!(left.trim(), "0", "another process reads what was mapped");
    one.sync().expect("msync");
    File::open(&b).expect("open").read_exact_at(&mut found, 4000).expect("read");
    assert_eq!(found, [1; 1000]);
    // What is written by system calls shows in the mappings.
    file.write_all_at(&[2; 500], 4100).expect("write");
    assert!(two.bytes()[4100..4600] == [2; 500]);
    // Unmapping writes back.
    two.bytes()[BYTES - 1] = 9;
    drop((one, two, file));
    open(&a, 0).sync_all().expect("fsync");
    assert_eq!(fs::read(&b).expect("read")[BYTES - 1], 9);
    system.finish();
}

#[test]
fn private_mappings_change_nothing() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let path = system.root().join("file");
    fs::write(&path, vec![5; BYTES]).expect("write");
    let mut private = Mapping::new(&open(&path, 0), BYTES, libc::MAP_PRIVATE).expect("mmap");
    private.bytes().fill(6);
    assert!(private.bytes().iter().all(|byte| *byte == 6));
    drop(private);
    assert!(fs::read(&path).expect("read").iter().all(|byte| *byte == 5));
    system.finish();
}

/// Programs are mapped when they run, also while their file is replaced.
#[test]
fn programs_run_from_a_mount() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let (a, b) = (system.path(0).join("true"), system.path(1).join("true"));
    fs::copy("/bin/true", &a).expect("copy");
    assert!(program(&b.to_string_lossy()).output().status == 0);
    fs::copy("/bin/false", a.with_extension("new")).expect("copy");
    fs::rename(a.with_extension("new"), &a).expect("rename");
    assert!(program(&b.to_string_lossy()).output().status == 1, "the other client runs the new program");
    system.finish();
}
