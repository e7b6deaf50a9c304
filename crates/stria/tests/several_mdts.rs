//! A file system with several MDTs.

mod common;

use std::{
    fs,
    time::{Duration, Instant},
};

use common::{FileSystem, TIMEOUT, Transport, wait_for};

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
    system.shell("mkdir $A/before && lfs getdirstripe -m $A/before").succeed();
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
    assert_eq!(
        (used, column(&inodes, "filesystem_summary:", 2)),
        (3, 3),
        "the root, a directory and a file:\n{inodes}"
    );
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
    // Without a word from anybody the upper directories are on all of them, also below one that was
    // there before.
    let show = |line: &str| system.shell(&format!("cd $A && {line}")).succeed().replace('\n', " ");
    assert_eq!(show("mkdir a b c && lfs getdirstripe -m a b c | sort"), "0 1 2 ");
    assert_eq!(show("mkdir before/a before/b before/c && lfs getdirstripe -m before/? | sort"), "0 1 2 ");
    let default = |inherit_rr: u32| {
        format!(
            "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: {inherit_rr} "
        )
    };
    assert_eq!(show("lfs getdirstripe -D . a"), [default(3), default(2)].concat());
    // From the fourth level on they are where their names are.
    show("mkdir -p a/2/3/x a/2/3/y a/2/3/z");
    assert_eq!(show("lfs getdirstripe -m a/2/3/? | uniq"), show("lfs getdirstripe -m a/2/3"));
    show("lfs setdirstripe -d . && mkdir here1 here2");
    assert_eq!(show("lfs getdirstripe -m here1 here2"), "0 0 ");
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
    // Nobody sees the names below a directory that is private, wherever it is.
    show("lfs mkdir -i 1 -o 700 d2/private && lfs mkdir -i 3 d2/private/in && touch d2/private/in/file");
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let of_file = format!("{nobody} lfs fid2path . $(lfs path2fid d2/private/in/file)");
    let refused = system.shell(&format!("cd $A && {of_file}")).output();
    assert!(refused.status == libc::EACCES && refused.stdout.is_empty(), "{refused:?}");
    show("chmod 711 d2/private");
    assert_eq!(show(&of_file), show("realpath d2/private/in/file"));
    show("rm -r d2/private");
    // A rename on another target, and between them.
    show("mv d2/a d2/renamed; mv d2/renamed d3/; mv d1/sub d2/; cp -r d3 copy");
    let before = show("stat -c %i d3 d3/b");
    assert_eq!(
        show("mv d3 new; mv -T new plain/moved; stat -c %i plain/moved plain/moved/b; mv plain/moved d3"),
        before
    );
    assert_eq!(show("cat d3/renamed d2/sub/x copy/a; ls d1"), "2a\nx\n3a\na\nb\nback\nc\n");
    assert_eq!(show("ln d1/b d2/link; stat -c %h d1/b d2/link; rm d2/link; stat -c %h d1/b"), "2\n2\n1\n");
    for (line, status, said) in [
        ("lfs mkdir -i 9 none", libc::ENODEV, "dirstripe error on 'none': No such device"),
        ("lfs mkdir -i 1 d1", libc::EEXIST, "dirstripe error on 'd1': stripe already set"),
        ("lfs mkdir -c 5 none", libc::ENODEV, "5 stripes are not possible: 4 metadata targets in use"),
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

/// Programs move, link and replace files between directories of different metadata targets, and
/// another client, which knows all names and attributes, sees it at once.
#[test]
fn programs_move_and_link_files_between_mdts() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, 3);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("for i in 0 1 2; do lfs mkdir -i $i d$i; done; echo text > d0/file; mkdir d0/sub; echo inner > d0/sub/inner");
    let look = || b("ls -li d0 d1 d2 > /dev/null; cat d?/file d?/link d?/new 2> /dev/null || true");
    assert_eq!(look(), "text\n");
    let before = a("stat -c %i d0/file d0/sub d0/sub/inner");
    a("mv d0/file d1/file && mv d0/sub d2/sub");
    assert_eq!(look(), "text\n");
    assert_eq!(b("stat -c %i d1/file d2/sub d2/sub/inner"), before);
    assert_eq!(b("stat -c %h d0 d2; cd d2/sub && pwd -P | sed 's,.*/d2,d2,'"), "2\n3\nd2/sub\n");
    // Links, which count on each client.
    a("ln d1/file d2/link && ln d1/file d0/link");
    assert_eq!(look(), "text\ntext\ntext\n");
    assert_eq!(b("stat -c %h d1/file d0/link"), "3\n3\n");
    a("rm d1/file && echo more >> d2/link");
    assert_eq!(b("stat -c %h d0/link && cat d0/link && ls d1"), "2\ntext\nmore\n");
    // One file takes the place of another, which stays readable where it is open.
    a("echo new > d1/new");
    assert_eq!(b("exec 3< d2/link; cd $A && mv d1/new d2/link && rm d0/link && cat <&3"), "text\nmore\n");
    assert_eq!(look(), "new\n");
    // No directory comes below itself, and none takes the place of one that is not empty.
    for (line, said) in [
        ("mv d2 d2/sub/d2", "subdirectory of itself"),
        ("mkdir -p d1/sub/full && mv d2/sub d1", "Directory not empty"),
        ("ln d2/sub d1/link", "hard link not allowed for directory"),
    ] {
        let refused = system.shell(&format!("cd $A && {line}")).output();
        assert!(refused.status != 0 && refused.stderr.contains(said), "{line}: {refused:?}");
    }
    a("rmdir d1/sub/full && mv -T d2/sub d1/sub");
    assert_eq!(b("ls d2; cat d1/sub/inner; stat -c %h d1 d2"), "link\ninner\n3\n2\n");
    // A repository is moved, and cloned with links to its objects.
    a("git init -q d0/repository && cd d0/repository && git config user.email x@y && git config user.name z && \
       seq 1000 > numbers && git add . && git commit -q -m first && git repack -q -a -d");
    a("mv d0/repository d1/ && git clone -q d1/repository d2/clone && rm -r d1/repository/.git/objects");
    assert_eq!(b("cd d2/clone && git fsck --no-progress && git log --format=%s && tail -1 numbers"), "first\n1000\n");
    // Copies made of links to an older one, on another target.
    a("rsync -a d2/clone/ d0/first/ && rsync -a --link-dest=$A/d0/first d2/clone/ d1/second/ && rm -r d0/first");
    assert_eq!(b("diff -r d2/clone d1/second && tail -1 d1/second/numbers && rm -r d1/second d2/clone"), "1000\n");
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

/// A tree of files moves to another metadata target and back while programs use it.
#[test]
fn a_tree_moves_between_mdts_while_it_is_used() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, 3);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("mkdir -p tree/sub/deep tree/other; for i in $(seq 60); do echo $i > tree/sub/f$i; done");
    a(
        "head -c 300000 /dev/urandom > tree/large; ln tree/large tree/sub/deep/link; ln -s large tree/symlink; mkfifo tree/fifo",
    );
    a("setfattr -n user.a -v b tree/sub 2> /dev/null || true; chmod 1750 tree/other; touch -d @7 tree/sub/f7");
    let look = |who: &dyn Fn(&str) -> String| {
        who("find tree -printf '%P %y %m %n %s %T@ %l\\n' | sort; cat tree/sub/f* tree/large | md5sum")
    };
    let (before, numbers) = (look(&b), b("ls -di tree"));
    // Everything on a target, by its inodes.
    let on = |mdt: &str| a(&format!("find tree -type d -exec lfs getdirstripe -m {{}} + | grep -cv '^{mdt}$' || true"));
    assert_eq!(a("lfs migrate -m 2 tree"), "");
    assert_eq!((look(&a), look(&b), on("2")), (before.clone(), before.clone(), "0\n".to_owned()));
    assert_ne!(b("ls -di tree"), numbers);
    assert_eq!(a("lfs getstripe -m tree/large tree/sub/f1").replace('\n', " "), "2 2 ");
    // Another client reads all the time, and the first one writes.
    let reader = "for i in $(seq 12); do for f in $B/tree/sub/f*; do cat $f; done | md5sum; done | sort -u | wc -l";
    let reader = system.shell(reader);
    let reader = std::thread::spawn(move || reader.output());
    for mdt in [1, 0, 2, 1] {
        let moved = a(&format!(
            "lfs migrate -m {mdt} -v tree > moved 2>&1; lfs migrate -m {mdt} tree 2> left; cat left; wc -l < moved"
        ));
        println!("{moved}");
        a(&format!("echo {mdt} >> tree/large; echo new > tree/sub/deep/new{mdt}"));
    }
    let read = reader.join().expect("the reader ends");
    assert_eq!((read.stdout.as_str(), read.stderr.as_str()), ("1\n", ""));
    a("lfs migrate -m 0 tree");
    assert_eq!(on("0"), "0\n");
    assert_eq!(
        a("stat -c %h tree/large; tail -n 4 tree/sub/deep/link; ls tree/sub/deep"),
        b("stat -c %h tree/large; tail -n 4 tree/sub/deep/link; ls tree/sub/deep")
    );
    // What is open stays, and is named.
    let refused = system.shell("cd $A && exec 5< tree/sub/f1 && lfs migrate -m 1 tree").output();
    assert_eq!(refused.status, libc::EBUSY);
    assert!(refused.stderr.contains("tree/sub/f1 stays on its MDT: it is in use"), "{refused:?}");
    assert_eq!(a("lfs getstripe -m tree/sub/f1 tree/sub/f2").replace('\n', " "), "0 1 ");
    let root = system.shell("lfs migrate -m 1 -d $A").output();
    assert!(root.stderr.contains("the root directory and lost+found do not move"), "{root:?}");
    let none = system.shell("cd $A && lfs migrate -m 7 tree").output();
    assert_eq!(none.status, libc::ENODEV, "{none:?}");
    assert_eq!(a("rm -r tree && ls"), "left\nmoved\n");
    system.finish();
}

/// Directories with more names than move at once, and striped ones, move while their files are
/// used. A command that was killed is run again.
#[test]
fn large_and_striped_directories_move_to_one_mdt_or_several() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, 3);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("mkdir -p tree/large/sub && cd tree/large && seq 1030 | xargs touch && echo text > text && ln text sub/link");
    a("lfs mkdir -c 3 tree/striped && cd tree/striped && seq 30 | xargs touch && mkdir sub");
    // The size of a striped directory is that of its shards.
    let look = |who: &dyn Fn(&str) -> String| who("find tree -printf '%P %y %m %n %T@\\n' | sort");
    let mut before = look(&b);
    let mdts = |line: &str| a(&format!("{line} | sort | uniq -c | tr -s ' \\n' ' '"));
    let files = "find tree -type f -exec lfs getstripe -m {} +";
    let reader = system.shell("for i in $(seq 300); do cat $B/tree/large/text; done | uniq -c");
    let reader = std::thread::spawn(move || reader.output());
    for (destination, counts, first, everywhere) in
        [("2", "0 0 0 0 0 ", "2", true), ("0,1", "2 2 2 2 2 ", "0", false), ("1", "0 0 0 0 0 ", "1", true)]
    {
        let migrate = format!("lfs migrate -m {destination} tree");
        a(&format!("timeout -s KILL 0.7 {migrate} 2> /dev/null; for i in 1 2 3; do {migrate} && break; done"));
        assert_eq!((look(&a), look(&b)), (before.clone(), before.clone()), "{destination}");
        let stripes = a("find tree -type d -exec lfs getdirstripe -c {} +").replace('\n', " ");
        assert_eq!(stripes, counts, "{destination}");
        let masters = a("find tree -type d -exec lfs getdirstripe -m {} + | sort -u");
        assert_eq!(masters, format!("{first}\n"), "{destination}");
        let of_files = mdts(files);
        let found = of_files.split_whitespace().skip(1).step_by(2).collect::<Vec<_>>();
        assert_eq!(found, if everywhere { vec![first] } else { vec!["0", "1"] }, "{of_files}");
        // Once with all these files is enough.
        a("cd tree/large && seq 41 1030 | xargs rm -f");
        before = look(&b);
    }
    let read = reader.join().expect("the reader ends");
    assert_eq!((read.stdout.trim(), read.stderr.as_str()), ("300 text", ""));
    a("rm -r tree && ls");
    system.finish();
}

/// An MDT that is added while others are in use is used at once, also by a mount that was there
/// before; and eight are as good as two.
#[test]
fn an_eighth_mdt_is_added_under_mounts() {
    const MDTS: u16 = 8;
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS - 1);
    system.shell("cd $A && lfs mkdir -c -1 seven && touch seven/{a..z} && ls -l $B/seven").succeed();
    let refused = system.shell("lfs mkdir -c 8 $A/all").output();
    assert!(refused.stderr.contains("8 stripes are not possible: 7 metadata targets in use"), "{refused:?}");
    assert_eq!(system.add_mdt(), MDTS - 1);
    let mdts = |mount: &str| system.shell(&format!("lfs mdts ${mount} | grep -c ACTIVE")).succeed();
    for mount in ["A", "B"] {
        wait_for("the mount knows the new MDT", TIMEOUT, || (mdts(mount) == "8\n").then_some(()));
    }
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("lfs mkdir -i 7 new && echo text > new/file && mkdir new/sub && lfs mkdir -c 8 all && lfs mkdir -c -1 -i 7 each");
    a(
        "cd all && for i in {1..100}; do echo $i > f$i; done && mkdir d{1..8} && for i in {1..50}; do mv f$i ../each/g$i; done",
    );
    assert_eq!(b("lfs getdirstripe -c all each seven; lfs getdirstripe -i new each").replace('\n', " "), "8 8 7 7 7 ");
    assert_eq!(b("cat new/file all/f100 each/g1; ls all each | wc -l; stat -c %h all"), "text\n100\n1\n111\n10\n");
    assert_eq!(b("lfs getstripe -m all/f* each/* | sort -n | uniq | tr '\\n' ' '"), "0 1 2 3 4 5 6 7 ");
    assert_eq!(b("lfs df . | grep -c '\\[MDT:'; lfs df -i . | grep -c '\\[MDT:'"), "8\n8\n");
    // What was there before moves to it, and back to all.
    a("lfs migrate -m 7 seven && lfs getdirstripe -i seven && lfs migrate -m -1 seven || true");
    b("mv new/sub all/ && mv seven/a new/ && mv all/d1 new/ && rm -r all each seven");
    assert_eq!(a("ls new; ls"), "a\nd1\nfile\nnew\n");
    system.finish();
}

/// Two of three MDTs are killed, and one of them is away for longer: what does not need that one
/// goes on, the rest waits until it is back.
#[test]
fn one_of_two_mdts_that_were_killed_stays_away_longer() {
    let mut system = FileSystem::start_with_mdts_apart(2, 3);
    system
        .shell("cd $A && for i in 0 1 2; do lfs mkdir -i $i d$i && mkdir d$i/sub && echo $i > d$i/file; done")
        .succeed();
    system.shell("cd $A && lfs mkdir -c -1 s && touch s/{a..z} && ls -lR $B").succeed();
    let at_once = "mkdir NAME/new && mv NAME/new NAME/moved && cat NAME/file && ln NAME/file NAME/link && rm NAME/link";
    // The first target has the root and the tree, and the management service is in its process.
    for (killed, late, restarted) in [([1, 2], 1, 2), ([0, 1], 1, 0)] {
        let servers = killed.map(|mdt| system.server_of_mdt(mdt));
        servers.iter().for_each(|server| system.kill_server(*server));
        system.start_server(system.server_of_mdt(restarted));
        for mdt in (0..3).filter(|mdt| *mdt != late) {
            let line = format!("cd $A && {} && rmdir $B/d{mdt}/moved", at_once.replace("NAME", &format!("d{mdt}")));
            assert_eq!(system.shell(&line).succeed(), format!("{mdt}\n"), "{killed:?}, without {late}");
        }
        let begin = |line: &str| {
            let program = system.shell(line);
            std::thread::spawn(move || program.succeed())
        };
        let waits = [
            begin(&format!("cat $B/d{late}/file")),
            begin("ls $B/s | wc -l"),
            begin(&format!("mv $A/d{restarted}/sub $A/d{late}/other && ls $A/d{late}")),
        ];
        // Since then, others have been answered.
        system.shell(&format!("cd $B/d{restarted} && {} && rmdir moved", at_once.replace("NAME", "."))).succeed();
        assert!(waits.iter().all(|wait| !wait.is_finished()), "they wait for MDT {late}");
        system.start_server(system.server_of_mdt(late));
        let answers = waits.map(|wait| wait.join().expect("no panic"));
        assert_eq!(answers, [format!("{late}\n"), "26\n".to_owned(), "file\nother\nsub\n".to_owned()]);
        system.shell(&format!("mv $B/d{late}/other $B/d{restarted}/sub")).succeed();
    }
    system.finish();
}

/// The time for which another MDT is waited for counts from the next moment on, also for what waits
/// already.
#[test]
fn how_long_an_mdt_is_waited_for_is_set_while_processes_wait() {
    const OTHER: usize = 1;
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 1, 2);
    let parameter = "mdt.stria-MDT0000.mdt_timeout";
    system.ctl(&format!("set_param {parameter}=0"));
    system.kill_server(OTHER);
    let begin = |line: &str| {
        let program = system.shell(line);
        std::thread::spawn(move || program.output())
    };
    let waits = begin("lfs mkdir -i 1 $A/far");
    system.shell("mkdir $A/here && mkdir $A/here/new && rmdir $A/here/new").succeed();
    assert!(!waits.is_finished(), "it waits");
    system.ctl(&format!("set_param {parameter}=1"));
    let failed = waits.join().expect("no panic");
    assert!(failed.status == libc::EIO && failed.stderr.contains("Input/output error"), "{failed:?}");
    system.ctl(&format!("set_param {parameter}=0"));
    let waits = begin("lfs mkdir -i 1 $A/far && lfs getdirstripe -i $A/far");
    system.start_server(OTHER);
    assert_eq!(waits.join().expect("no panic").stdout, "1\n");
    system.finish();
}

/// A migration ends at the first thing that needs an MDT which is not there, whoever needs it,
/// names that, and goes on when it is back.
#[test]
fn a_migration_ends_if_an_mdt_is_absent_and_goes_on_when_it_is_back() {
    let mut system = FileSystem::start_with_mdts_apart(0, 3);
    system.ctl("set_param -P 'mdt.*.mdt_timeout=1'");
    system.set_mount_options("timeout=2");
    system.add_clients(1);
    system.without_spread();
    let a = |system: &FileSystem, line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    a(&system, "mkdir -p tree/{a,b,c} && touch tree/{a,b,c}/{1..20} && lfs migrate -m 1 tree/b");
    let absent = system.server_of_mdt(1);
    system.kill_server(absent);
    // This mount; the MDT to which it moves, for what is in it; this mount for what has moved.
    for line in ["lfs migrate -m 1 tree", "lfs migrate -m 2 tree", "lfs migrate -m 0 tree/b tree/a"] {
        let begun = Instant::now();
        let ended = system.shell(&format!("cd $A && {line}")).output();
        assert_eq!(ended.status, libc::EIO, "{line}: {ended:?}");
        let said =
            ["stria-MDT0001 d", "0 moved, run the command again when it is there: it goes on where it ended (5)"];
        assert!(said.iter().all(|said| ended.stderr.contains(said)), "{line}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{line}: {}", ended.stderr);
        // Each of 64 would take 2 s.
        assert!(begun.elapsed() < Duration::from_secs(60), "{line}: {:?}", begun.elapsed());
    }
    system.start_server(absent);
    let places = "find tree -type d -exec lfs getdirstripe -m {} + -o -exec lfs getstripe -m {} + | sort | uniq -c";
    // The others hear of it in a moment, and do not wait long for it.
    let migrate = || system.shell("lfs migrate -m 2 $A/tree").output().status;
    wait_for("all that moves", TIMEOUT, || (migrate() == 0).then_some(()));
    assert_eq!(a(&system, places).split_whitespace().collect::<Vec<_>>(), ["64", "2"]);
    system.finish();
}
