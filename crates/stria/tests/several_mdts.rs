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
    let of_locks =
        ["ldlm.namespaces.*.lru_size", "ldlm.namespaces.mdt-*_UUID.lock_count", "ldlm.namespaces.*-mdc.lock_count"];
    for parameter in ["mdt.*.open_files", "lod.*.stripecount", "mdc.*.state"].into_iter().chain(of_locks) {
        let shown = system.ctl(&format!("get_param {parameter}"));
        let of_mdts = shown.lines().filter(|line| line.contains("-MDT000")).count();
        assert_eq!(of_mdts, 3, "{parameter}:\n{shown}");
    }
    system.ctl("set_param lod.stria-MDT0002-mdtlov.stripecount=2");
    fs::write(system.root().join("new"), b"new").expect("write");
    system.shell("sync -f $A/new").succeed();
    system.finish();
}

/// A script with a directory on each metadata target, as programs use them.
#[test]
fn directories_on_several_mdts_are_like_others() {
    let mut system = FileSystem::start_with_mdts(Transport::InProcess, 1, 4);
    let show = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    show("for i in 1 2 3; do lfs mkdir -i $i d$i; done; lfs mkdir -i 0 d1/back; mkdir plain; lfs mkdir plain/same");
    assert_eq!(show("lfs getdirstripe d1"), "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n");
    assert_eq!(show("lfs getdirstripe -i . d1 d2 d3 d1/back plain/same").replace('\n', " "), "0 1 2 3 0 0 ");
    show("mkdir d1/sub; for i in 1 2 3; do for f in a b c; do echo $i$f > d$i/$f; done; done; echo x > d1/sub/x");
    assert_eq!(show("lfs getdirstripe -i d1/sub; lfs getstripe -m d1/sub/x").replace('\n', " "), "1 1 ");
    assert_eq!(show("cat d?/?"), "1a\n1b\n1c\n2a\n2b\n2c\n3a\n3b\n3c\n");
    assert_eq!(show("find . -type f | wc -l; find . -type d | wc -l; stat -c %h . d1"), "10\n8\n6\n4\n");
    assert_eq!(show("cd d1/sub && pwd -P && cd ../back && pwd -P").lines().count(), 2);
    assert_eq!(show("lfs fid2path . $(lfs path2fid d1/sub/x)"), show("realpath d1/sub/x"));
    // A rename within a directory on another target is one; between them programs copy.
    show("mv d2/a d2/renamed; mv d2/renamed d3/; mv d1/sub d2/; cp -r d3 copy");
    let before = show("stat -c %i d3 d3/b");
    assert_eq!(
        show("mv d3 new; mv -T new plain/moved; stat -c %i plain/moved plain/moved/b; mv plain/moved d3"),
        before
    );
    assert_eq!(show("cat d3/renamed d2/sub/x copy/a; ls d1"), "2a\nx\n3a\na\nb\nback\nc\n");
    let refused = system.shell("cd $A && ln d1/b d2/link").output();
    assert!(refused.status != 0 && refused.stderr.contains("Invalid cross-device link"), "{}", refused.stderr);
    for (line, status, said) in [
        ("lfs mkdir -i 9 none", libc::ENODEV, "dirstripe error on 'none': No such device"),
        ("lfs mkdir -i 1 d1", libc::EEXIST, "dirstripe error on 'd1': stripe already set"),
        ("lfs mkdir -c 2 none", libc::EOPNOTSUPP, "not supported yet"),
        ("rmdir d1", 1, "Directory not empty"),
    ] {
        let refused = system.shell(&format!("cd $A && {line}")).output();
        assert!(refused.status == status && refused.stderr.contains(said), "{line}: {refused:?}");
    }
    // Everything is there after the death of all targets at once, and nothing is left in doubt.
    system.kill_client(0);
    system.mount(0);
    let show = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    assert_eq!(show("cat d3/renamed d2/sub/x copy/a; find . | wc -l"), "2a\nx\n3a\n23\n");
    show("rm -r d1 copy && rmdir plain/same && lfs mkdir -i 3 d1 && echo again > d1/file");
    assert_eq!(show("cat d1/file; lfs getdirstripe -m d1; stat -c %h ."), "again\n3\n6\n");
    system.finish();
}

/// Two processes with an MDT each. What does not need the one that is down goes on, the rest waits.
#[test]
fn what_needs_an_mdt_that_is_down_waits_for_it() {
    const MDS: usize = 0;
    const OTHER: usize = 1;
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 2, 2);
    system
        .shell("cd $A && lfs mkdir -i 1 far && mkdir near && lfs mkdir -i 0 far/back && echo text > far/file")
        .succeed();
    assert_eq!(system.shell("cat $B/far/file && ls $B/far").succeed(), "text\nback\nfile\n");
    system.kill_server(OTHER);
    system.shell("cd $A && mkdir near/new && mv near/new near/moved && ls near").succeed();
    let begin = |line: &str| {
        let program = system.shell(line);
        std::thread::spawn(move || program.succeed())
    };
    let read = begin("cat $A/far/file");
    let made = begin("lfs mkdir -i 1 $A/far2 && lfs getdirstripe -m $A/far2");
    let below = begin("mkdir $B/far/below && ls $B/far");
    system.shell("cd $A && mkdir near/second && rmdir near/moved").succeed();
    assert!(!read.is_finished() && !made.is_finished() && !below.is_finished(), "they wait");
    system.start_server(OTHER);
    assert_eq!(read.join().expect("no panic"), "text\n");
    assert_eq!(made.join().expect("no panic"), "1\n");
    assert_eq!(below.join().expect("no panic"), "back\nbelow\nfile\n");
    // Then the one that has the names, in the end both.
    system.kill_server(MDS);
    system.start_server(MDS);
    system.shell("cd $B && rm -r far/below far/back && lfs mkdir -i 0 far/again && rmdir far2").succeed();
    [MDS, OTHER].into_iter().for_each(|server| system.kill_server(server));
    [MDS, OTHER].into_iter().for_each(|server| system.start_server(server));
    assert_eq!(
        system.shell("cd $A && ls . far && lfs getdirstripe -m far/again").succeed(),
        ".:\nfar\nnear\n\nfar:\nagain\nfile\n0\n"
    );
    system.finish();
}
