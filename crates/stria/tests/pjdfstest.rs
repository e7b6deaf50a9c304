//! pjdfstest: what POSIX requires of a file system, 400 tests, on mounts in one process and over
//! TCP, with objects in host files and on devices. `./test` runs all of it over `/dev/fuse` and
//! over io_uring.

mod common;

use std::{collections::BTreeSet, path::Path};

use common::{FileSystem, Transport, programs::installed};

/// Tests that are skipped: docs/semantics.md says why.
const SKIPPED: &str = include_str!("pjdfstest/skipped.txt");
const SEMANTICS: &str = include_str!("../../../docs/semantics.md");

/// How the tests of one run ended.
struct Verdict {
    passed: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

/// Runs the tests whose names contain `pattern`; none may fail.
///
/// Those of read-only mounts remount through mount(8), which calls the binary by its name and a
/// PATH of its own: hence the name space of mounts in which it is in /usr/local/sbin.
fn pjdfstest(system: &FileSystem, config: &str, pattern: &str) -> Verdict {
    let line = "exec unshare --mount --propagation private bash -c '
        mount --bind \"$BIN\" /usr/local/sbin && exec \"$TOOL\" -c \"$CONFIG\" -p \"$A\" -s \"$OTHER\" $PATTERN'";
    let output = system
        .shell(line)
        .env("BIN", system.place().bin())
        .env("TOOL", installed("pjdfstest"))
        .env("CONFIG", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pjdfstest").join(config))
        .env("PATTERN", pattern)
        .env("OTHER", env!("CARGO_TARGET_TMPDIR"))
        .env("NO_COLOR", "1")
        .output();
    let ended = |how: &str| -> BTreeSet<String> {
        let ends = output.stdout.lines().filter_map(|line| line.trim_end().rsplit_once(' '));
        ends.filter(|(_, end)| *end == how).map(|(name, _)| name.trim().to_owned()).collect()
    };
    assert!(output.status == 0 && ended("FAILED").is_empty(), "{}{}", output.stdout, output.stderr);
    Verdict { passed: ended("ok"), skipped: ended("skipped") }
}

fn run(system: FileSystem) {
    system.expect_offered_transport();
    let all = pjdfstest(&system, "config.toml", "");
    // A process of their own: other tests leave files open, and then nothing can be made read-only.
    let read_only = pjdfstest(&system, "remount.toml", "erofs");
    assert!(all.passed.len() > 350 && read_only.passed.len() > 10, "tests are missing");
    let skipped: Vec<&str> = all.skipped.difference(&read_only.passed).map(String::as_str).collect();
    assert_eq!(skipped, SKIPPED.lines().collect::<Vec<_>>(), "tests that are skipped, and those that may be");
    system.finish();
}

#[test]
fn posix_holds_in_one_process() {
    run(FileSystem::start(Transport::InProcess, 1));
}

#[test]
fn posix_holds_over_tcp_with_objects_on_devices() {
    run(FileSystem::start_all_on_devices(1));
}

#[test]
fn posix_holds_where_all_directories_are_striped() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 1, 4);
    system.shell("lfs setdirstripe -D -c -1 -X -1 $A").succeed();
    run(system);
}

#[test]
fn posix_holds_where_nothing_is_cached_and_only_the_servers_check_permissions() {
    let mut system = FileSystem::start(Transport::Tcp, 0);
    system.set_mount_options("rw,no_default_permissions");
    system.add_clients(1);
    system.switch_caches_off();
    run(system);
}

#[test]
fn every_skipped_test_is_named_in_the_semantics() {
    for name in SKIPPED.lines() {
        assert!(SEMANTICS.contains(&format!("`{name}`")), "{name} is missing in docs/semantics.md");
    }
}
