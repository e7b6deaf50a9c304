//! chattr +i and +a: the result of each operation, which is the same as on ext4.

use crate::common::{FileSystem, Transport, programs::program};

/// What ext4 of Linux 6.18 answers; a line for each operation below, first for +i, then for +a.
const ON_EXT4: &str = include_str!("protection.txt");

const OPERATIONS: &str = include_str!("protection.sh");

#[test]
fn immutable_and_append_only_forbid_what_they_do_on_ext4() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let found =
        system.shell(&format!("mkdir $A/tested && chmod 777 $A/tested && cd $A/tested\n{OPERATIONS}")).succeed();
    for (expected, found) in ON_EXT4.lines().zip(found.lines()) {
        // The kernel decides access(2) by owner and mode, and does not know the flags.
        let expected = if expected.starts_with("access:") { "access: done" } else { expected };
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), ON_EXT4.lines().count());
    system.finish();
}

/// What is protected is so on every client, and may still be moved by root.
#[test]
fn flags_hold_on_all_clients_and_data_may_move() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let run = |line: &str| system.shell(line);
    run("cd $A && lfs setstripe -c 1 f && echo data > f && chattr +i f").succeed();
    assert!(run("lsattr $B/f").succeed().starts_with("----i"));
    assert_ne!(run("echo more >> $B/f").output().status, 0);
    run("lfs migrate -c 2 $B/f").succeed();
    assert_eq!(run("cat $A/f && lfs getstripe -c $A/f").succeed(), "data\n2\n");
    // A program cannot get rid of O_APPEND.
    run("chattr -i $A/f && chattr +a $A/f").succeed();
    let clears = "import fcntl, os, sys\n\
        f = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n\
        fcntl.fcntl(f, fcntl.F_SETFL, 0)\n\
        os.pwrite(f, b'over', 0)";
    let outcome = program("python3").args(["-c", clears]).arg(system.path(1).join("f")).output();
    assert!(outcome.status != 0 && outcome.stderr.contains("PermissionError"), "{}", outcome.stderr);
    run("chattr -a $B/f && rm $A/f").succeed();
    system.finish();
}

/// What `lsattr -p` shows before the flags is the project id.
#[test]
fn project_ids_are_inherited_on_all_clients() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let run = |line: &str| system.shell(line);
    run("mkdir $A/d && chattr -p 77 $A/d && chattr +P $A/d").succeed();
    run("touch $B/d/f && mkdir $B/d/e && touch $B/d/e/f $B/plain").succeed();
    for (name, project) in [("d/f", "77"), ("d/e/f", "77"), ("plain", "0")] {
        let shown = run(&format!("lsattr -p $A/{name}")).succeed();
        assert_eq!(shown.split_whitespace().next(), Some(project), "{shown}");
    }
    assert!(run("lsattr -d $A/d/e").succeed().contains('P'));
    let other = "setpriv --reuid 5 --regid 5 --clear-groups chattr -p 1 $A/d/f";
    run("chown 5 $A/d/f").succeed();
    assert_ne!(run(other).output().status, 0);
    system.finish();
}
