//! Directories whose names are on several MDTs, used by programs on two mounts.

mod common;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{FileSystem, TIMEOUT, Transport, wait_for};

/// MDTs of the file systems here.
const MDTS: u16 = 4;

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("readdir");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
}

/// Names are created, linked, renamed and removed on one mount; the other one, which has looked at
/// everything before, sees it at once.
#[test]
fn names_of_a_striped_directory_are_the_same_on_two_mounts() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a(
        "lfs mkdir -c -1 s && lfs mkdir -c 2 -i 3 -H crush two && lfs setdirstripe -i 2,0,1 listed && lfs mkdir -c 1 plain",
    );
    assert_eq!(a("lfs getdirstripe -c s two listed plain").replace('\n', " "), "4 2 3 0 ");
    assert_eq!(
        b("lfs getdirstripe -i s two listed; lfs getdirstripe -H s two").replace('\n', " "),
        "0 3 2 fnv_1a_64 crush "
    );
    assert_eq!(
        b("lfs find . -T 2; lfs find . -H crush; lfs find . -T 1; lfs find two --printf '%Lh\\n'"),
        "./two\n./two\n.\n./plain\ncrush\n"
    );
    assert_eq!(b("lfs getdirstripe listed | awk 'NR > 2 {print $1}'").replace('\n', " "), "2 0 1 ");
    // The first requests of several processes, before either mount knows the map.
    a("for i in $(seq 8); do mkdir s/first.$i & done; wait");
    b("for i in $(seq 8); do rmdir s/first.$i & done; wait");
    let all = "ls s | wc -l; ls -f s | sort -u | wc -l; stat -c %h s; find s -type f | wc -l";
    assert_eq!(b(all), "0\n2\n2\n0\n");
    a("cd s && for i in $(seq 100); do echo $i > f$i; done; mkdir d1 d2 d3 d4 d5");
    assert_eq!(b(all), "105\n107\n7\n100\n");
    assert_eq!(b("lfs getstripe -m s/f* | sort -u | wc -l; cat s/f* | sort -n | tail -1"), "4\n100\n");
    // Renames within the directory, between parts and over other names; out of it and into it. `..`
    // of a directory whose name is in a stripe, on the same metadata target and on another one.
    a("mkdir s/near && lfs mkdir -i 1 s/far1 && lfs mkdir -i 2 s/far2");
    for mount in [&a as &dyn Fn(&str) -> String, &b] {
        let above = mount("for d in s/near s/far?; do ls -ai $d; done | awk '$2 == \"..\" {print $1}' | sort -u");
        assert_eq!(above, mount("stat -c %i s"));
    }
    a("rmdir s/near s/far?");
    let before = b("stat -c %i s/f1 s/d1");
    a("cd s && for i in $(seq 100); do mv f$i g$i; done; mv d1 e1");
    assert_eq!(a("stat -c %i s/g1 s/e1"), before);
    assert_eq!(b(all), "105\n107\n7\n100\n");
    assert_eq!(b("ls s/f* 2>&1 | grep -c 'No such'; cat s/g7"), "1\n7\n");
    a("mv s/g1 s/g2; mv s/g3 two/; mv two/g3 plain/; mv s/e1 two/; mv plain/g3 s/; mv -T two/e1 s/d2");
    assert_eq!(b(all), "103\n105\n6\n99\n");
    assert_eq!(b("cat s/g2 s/g3; ls two plain"), "1\n3\nplain:\n\ntwo:\n");
    // Links, of which each mount knows the count.
    a("cd s && for i in $(seq 8); do ln g2 l$i; done; ln g2 ../plain/l");
    assert_eq!(b("stat -c %h s/g2 s/l8 plain/l; rm s/l1 plain/l; stat -c %h s/g2"), "10\n10\n10\n8\n");
    assert_eq!(a("echo more >> s/l2; cat s/g2; rm s/l*; stat -c %h s/g2"), "1\nmore\n1\n");
    // Removal: only when it is empty, wherever its last name is.
    for (line, said) in [
        ("rmdir s", "Directory not empty"),
        ("mv -T plain s", "Directory not empty"),
        ("mv s s/d2/s", "subdirectory of itself"),
        ("lfs mkdir -c 24 none", "24 stripes are not possible: 4 metadata targets in use"),
        ("lfs mkdir -i 0,9 none", "there is no MDT with index 9"),
        ("lfs mkdir -c 2 s", "stripe already set"),
        ("ls none", "No such file"),
    ] {
        let refused = system.shell(&format!("cd $B && {line}")).output();
        assert!(refused.status != 0 && refused.stderr.contains(said), "{line}: {refused:?}");
    }
    a("rm s/g*");
    assert_eq!(b(all), "4\n6\n6\n0\n");
    assert!(system.shell("rmdir $A/s").output().stderr.contains("not empty"));
    b("rmdir s/d? && rmdir s && ! test -e s");
    assert_eq!(a("ls; mkdir s && lfs getdirstripe -c s"), "listed\nplain\ntwo\n0\n");
    a(
        "touch two/x && mkdir two/y && mkdir -p listed/deep/er && rm -r two listed/deep && mv -T plain listed && rmdir listed s",
    );
    assert_eq!(b("ls -A | wc -l; stat -c %h ."), "0\n2\n");
    system.finish();
}

/// Files are migrated whichever MDTs they and their names are on, and leave no name behind.
#[test]
fn files_of_a_striped_directory_are_migrated_on_any_mdt() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("mkdir d && for i in $(seq 40); do echo $i > d/f$i; done");
    a("lfs setdirstripe -c -1 d && for i in $(seq 41 80); do echo $i > d/f$i; done");
    assert_eq!(b("lfs getstripe -m d/f* | sort -u | wc -l"), "4\n");
    let before = b("stat -c '%i %s %h' d/f*");
    a("lfs migrate -c 1 -S 1M d/f*");
    assert_eq!(b("stat -c '%i %s %h' d/f*"), before);
    assert_eq!(
        b("lfs getstripe -S d/f* | sort -u; ls -A d | wc -l; cat d/f* | sort -n | uniq | wc -l"),
        "1048576\n80\n80\n"
    );
    // One that has no name beside it any more, nor a part of the directory: also for a user, and
    // with the layout of new files there.
    a("lfs mkdir -i 2 far && lfs setstripe -c 2 -S 2M far && ln d/f1 far/f && rm d/f1");
    assert_ne!(b("lfs getstripe -m far/f"), "2\n");
    let before = b("stat -c '%i %s %h' far/f");
    for (options, expected) in [("", "2 2097152\n"), ("-c 1 -S 1M", "1 1048576\n"), ("--restripe", "2 2097152\n")] {
        a(&format!("lfs migrate {options} far/f"));
        assert_eq!(b("echo $(lfs getstripe -c far/f) $(lfs getstripe -S far/f)"), expected, "{options}");
        assert_eq!(b("stat -c '%i %s %h' far/f; cat far/f; ls -A far"), format!("{before}1\nf\n"));
    }
    a("chown 5001 far far/f");
    let user = |user: &str| {
        let line = format!("cd $A && setpriv --reuid={user} --clear-groups lfs migrate -c 1 far/f");
        system.shell(&line).output()
    };
    assert_eq!(user("5001").status, 0, "{:?}", user("5001"));
    assert_eq!(user("5002").status, libc::EACCES);
    system.finish();
}

/// Owner, permissions, access lists and times are those of one directory, for root and for users.
#[test]
fn attributes_of_a_striped_directory_hold_for_all_its_names() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    let user = |id: u32, line: &str| {
        let line = format!("cd $B && setpriv --reuid={id} --regid={id} --clear-groups bash -c '{line}'");
        system.shell(&line).output()
    };
    a("lfs mkdir -c 4 s && touch s/{a..p} && chmod 755 . s");
    assert_eq!(b("stat -c %a s; ls s | wc -l"), "755\n16\n");
    for (change, line, said) in [
        ("true", "touch s/new", "Permission denied"),
        ("true", "for i in {a..p}; do ! rm -f s/$i || echo removed >&2; done", "Permission denied"),
        ("chmod 700 s", "ls s", "Permission denied"),
        ("true", "cat s/a", "Permission denied"),
        ("chmod 1777 s", "rm s/{a..p}", "Operation not permitted"),
        ("true", "lfs mkdir -c 2 s/new", "Operation not permitted"),
    ] {
        a(change);
        let refused = user(5001, line);
        assert!(refused.stderr.contains(said) && !refused.stderr.contains("removed"), "{change}; {line}: {refused:?}");
    }
    assert_eq!(user(5001, "mkdir s/{1..8} && touch s/own{1..8} && mv s/own1 s/moved && ls s | wc -l").stdout, "32\n");
    assert!(user(5002, "rm s/own{2..8}").stderr.contains("not permitted"), "they are another user's, and s is sticky");
    assert_eq!(a("stat -c %U:%h s; stat -c %u s/moved s/1"), "root:10\n5001\n5001\n");
    a("chown 5002:5003 s && chmod 2770 s");
    assert_eq!(b("stat -c %u:%g:%a s"), "5002:5003:2770\n");
    assert!(user(5001, "ls s").stderr.contains("Permission denied"));
    assert_eq!(
        user(5002, "mkdir s/{q..z} && stat -c %g:%a s/{q..z} | sort -u && rmdir s/{q..z}").stdout,
        "5003:2755\n"
    );
    // Access lists, and those that names inherit.
    a("setfacl -m u:5001:rwx s && setfacl -d -m u:5001:rw s");
    assert_eq!(user(5001, "touch s/by{1..8} && stat -c %G s/by1 > /dev/null && ls s | wc -l").stdout, "40\n");
    assert_eq!(b("getfacl -cp s/by? | grep -c user:5001:rw"), "8\n");
    a("setfacl -b s && rm -r s/own? s/by? s/moved s/?");
    assert!(user(5001, "ls s").stderr.contains("Permission denied"));
    // Times: those of the last change, wherever it was; or those that were set.
    a("touch -d @1000000000 s");
    assert_eq!(b("stat -c %Y:%X s"), "1000000000:1000000000\n");
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        a(&format!("touch -d @1000000000 s && touch s/{name}"));
        assert_eq!(b("test $(stat -c %Y s) -gt 1700000000 && stat -c %X s"), "1000000000\n", "{name}");
    }
    // Extended attributes and flags of the directory itself.
    a("setfattr -n user.x -v y s && lfs setstripe -c 2 s && touch s/{A..H}");
    assert_eq!(b("getfattr --only-values -n user.x s; lfs getstripe -c s/{A..H} | sort -u"), "y2\n");
    a("chattr +i s");
    for line in ["touch s/new", "rm -f s/A", "mv s/A s/B", "ln s/A s/new"] {
        let refused = system.shell(&format!("cd $B && {line}")).output();
        assert!(refused.status != 0 && refused.stderr.contains("not permitted"), "{line}: {refused:?}");
    }
    a("chattr -i s && rm -r s");
    system.finish();
}

/// What a listing shows while names come and go: each name that stays, once.
#[test]
fn listings_show_names_that_stay_once() {
    const STAY: usize = 700;
    const COME: usize = 60;
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    system.shell("cd $A && lfs mkdir -c -1 s").succeed();
    let [ours, theirs] = [0, 1].map(|mount| system.path(mount).join("s"));
    let expected: BTreeSet<String> = (0..STAY).map(|number| format!("stays{number}")).collect();
    for name in &expected {
        fs::write(ours.join(name), b"").expect("write");
    }
    let is_over = AtomicBool::new(false);
    let come_and_go = |directory: &Path, prefix: &str| {
        while !is_over.load(Ordering::Relaxed) {
            for number in 0..COME {
                fs::write(directory.join(format!("{prefix}{number}")), b"").expect("write");
            }
            for number in 0..COME {
                let from = directory.join(format!("{prefix}{number}"));
                let to = directory.join(format!("{prefix}moved{number}"));
                fs::rename(from, &to).expect("rename");
                fs::remove_file(to).expect("remove");
            }
        }
    };
    std::thread::scope(|scope| {
        for (directory, prefix) in [(&ours, "a"), (&theirs, "b")] {
            scope.spawn(move || come_and_go(directory, prefix));
        }
        let looked = std::panic::catch_unwind(|| {
            for round in 0..20 {
                for directory in [&ours, &theirs] {
                    let found = names(directory);
                    let staying: Vec<&String> = found.iter().filter(|name| name.starts_with("stays")).collect();
                    let distinct: BTreeSet<String> = staying.iter().map(|name| (*name).clone()).collect();
                    assert_eq!(staying.len(), distinct.len(), "round {round}: a name twice");
                    assert!(distinct == expected, "round {round}: {} of {STAY} names", distinct.len());
                }
            }
        });
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = looked {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(names(&ours).len(), STAY);
    // And what removes as it lists comes to an end.
    system.shell("rm -r $B/s && ! test -e $A/s").succeed();
    system.finish();
}

/// Trees are copied, packed, compared and searched as any other.
#[test]
fn programs_copy_and_search_striped_directories() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("lfs mkdir -c 4 s && lfs mkdir -c 3 -i 1 s/inner && lfs mkdir -i 2 s/far && mkdir s/near");
    a(
        "for d in s s/inner s/far s/near; do for i in $(seq 40); do echo $d $i > $d/file.$i; done; ln -s file.1 $d/link; done",
    );
    a("ln s/file.1 s/inner/hard; chown 5001:5002 s/file.2 s/inner; chmod 750 s/inner; touch -d @1000000000 s/inner s");
    let inodes = a("lfs df -i . | grep filesystem_summary");
    let used = inodes.split_whitespace().nth(2).expect("a column");
    assert_eq!(used, "176", "the root, 4 directories with 7 shards, 160 files and 4 links: {inodes}");
    b("cp -a s copy && diff -r s copy && stat -c %Y:%a:%u copy copy/inner");
    assert_eq!(b("stat -c %Y:%a:%u copy/inner; stat -c %h copy/file.1"), "1000000000:750:5001\n2\n");
    b("tar cf s.tar s && mkdir unpacked && tar xf s.tar -C unpacked && diff -r s unpacked/s");
    a("rsync -a --delete s/ copy/ && lfs mkdir -c -1 synced && rsync -aH s/ synced/ && diff -r s synced");
    assert_eq!(
        b(
            "find s -type f | wc -l; find s -type d | wc -l; lfs find s -type f | wc -l; lfs find s -name 'file.1*' | wc -l"
        ),
        "161\n4\n161\n44\n"
    );
    assert_eq!(b("du -a s | wc -l; ls -lR s | grep -c ^-; ls -l s | grep -c ^d"), "168\n161\n3\n");
    assert_eq!(
        b("realpath s/inner/file.3 | sed 's,.*/s/,,'; lfs fid2path . $(lfs path2fid s/inner/file.3) | sed 's,.*/s/,,'"),
        "inner/file.3\ninner/file.3\n"
    );
    assert_eq!(b("cd s/inner && /bin/pwd | sed 's,.*/s,s,'; cd .. && /bin/pwd | sed 's,.*/,,'"), "s/inner\ns\n");
    a("git init -q synced/git && cd synced/git && git config user.email x@y && git config user.name z && \
       seq 1000 > numbers && git add . && git commit -q -m first && git repack -q -a -d && git gc -q");
    a("lfs mkdir -c -1 clones && git clone -q synced/git clones/clone");
    assert_eq!(
        b("cd clones/clone && git fsck --no-progress && git log --format=%s && tail -1 numbers"),
        "first\n1000\n"
    );
    system.check();
    b("rm -rf s copy unpacked s.tar synced clones");
    assert_eq!(a("ls -A | wc -l; stat -c %h ."), "0\n2\n");
    system.finish();
}

/// More stripes than metadata targets: of new directories, of one that exists, by a default, and of
/// one that moves.
#[test]
fn directories_have_several_stripes_on_a_target() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, 2);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed().replace('\n', " ");
    a("lfs mkdir -C 5 s && lfs mkdir -C -3 -i 1 -H crush each && lfs mkdir -C 3 -i 1,0 listed");
    assert_eq!(b("lfs getdirstripe -c s each listed; lfs getdirstripe -i s each listed"), "5 6 3 0 1 1 ");
    assert_eq!(
        b("lfs getdirstripe -H s each; lfs getdirstripe listed | awk 'NR > 2 {print $1}'"),
        "fnv_1a_64,overstriped crush,overstriped 1 0 1 "
    );
    let all = "ls s | wc -l; ls -f s | sort -u | wc -l; stat -c %h s; find s -type f | wc -l";
    a("cd s && for i in $(seq 60); do echo $i > f$i; done; mkdir d{1..8} && chmod 777 .");
    assert_eq!(b(all), "68 70 10 60 ");
    // Renames between any two stripes, by a user that may not write to what is renamed.
    let user = "setpriv --reuid=5001 --regid=5001 --clear-groups bash -c";
    a(&format!("cd s && {user} 'for i in {{1..60}}; do mv f$i g$i; done; for i in {{1..8}}; do mv -T d$i e$i; done'"));
    assert_eq!(b(all), "68 70 10 60 ");
    assert_eq!(b("cat s/g* | sort -n | tail -1; ls s/f* 2>&1 | grep -c 'No such'; cat s/g7"), "60 1 7 ");
    a("cd s && mv -T e1 e2 && mv g1 g2 && mv g3 ../each/ && mv ../each/g3 h3 && ln g4 ../listed/l && lfs path2fid g4");
    assert_eq!(b("ls s | wc -l; stat -c %h s s/g4; cat s/g2 s/h3 listed/l"), "66 9 2 1 3 4 ");
    system.check();
    for (line, status, said) in [
        ("rmdir s", 1, "Directory not empty"),
        (
            "lfs mkdir -c 4 none",
            libc::ENODEV,
            "4 stripes are not possible: 2 metadata targets in use (-c -1: all of them; -C 4: several",
        ),
        ("lfs mkdir -C -32 -i 7 none", libc::ENODEV, "there is no MDT with index 7"),
        ("lfs mkdir -C 1001 none", libc::ENODEV, "1001 stripes are not possible: a directory has at most 1000"),
        ("lfs setdirstripe -C 4 s", libc::EOPNOTSUPP, "it has other stripes already"),
        ("ls none", 2, "No such file"),
    ] {
        let refused = system.shell(&format!("cd $B && {line}")).output();
        assert!(refused.status == status && refused.stderr.contains(said), "{line}: {refused:?}");
    }
    b("rm -r s/* && rmdir s && rm -r listed each && ! test -e s");
    // A directory that exists, while both use it; and back.
    a("mkdir d && cd d && for i in $(seq 300); do echo $i > f$i; done; mkdir s1 s2");
    let all = "ls d | wc -l; ls -f d | sort -u | wc -l; stat -c %h d; cat d/f* | sort -n | tail -1";
    assert_eq!(b(all), "302 304 4 300 ");
    for (line, count) in [("-C 5", 5), ("-c 1", 0), ("-C -2", 4)] {
        a(&format!("lfs setdirstripe {line} d && lfs setdirstripe {line} d"));
        assert_eq!(b("lfs getdirstripe -c d"), format!("{count} "), "{line}");
        assert_eq!(b(all), "302 304 4 300 ", "{line}");
    }
    a("lfs migrate -m 1 -C 6 d");
    assert_eq!(b(all), "302 304 4 300 ");
    assert_eq!(
        b("lfs getdirstripe -c d d/s1; lfs getdirstripe -i d; lfs getstripe -m d/f* | sort | uniq | wc -l"),
        "6 6 1 2 "
    );
    a("lfs migrate -m 0 d");
    assert_eq!(b(all), "302 304 4 300 ");
    assert_eq!(b("lfs getdirstripe -c d; lfs getstripe -m d/f* | sort -u"), "0 0 ");
    // mkdir(2), by a default.
    a(
        "mkdir by && lfs setdirstripe -D -C 4 by && mkdir -p by/x/y && lfs setdirstripe -D -C -2 -X -1 by/x/y && mkdir by/x/y/z",
    );
    let line = |count: i32, levels: i32| {
        format!(
            "lmv_stripe_count: {count} lmv_stripe_offset: -1 lmv_hash_type: none,overstriped lmv_max_inherit: {levels} \
             lmv_max_inherit_rr: 0 "
        )
    };
    assert_eq!(b("lfs getdirstripe -c by by/x by/x/y by/x/y/z"), "0 4 4 4 ");
    assert_eq!(b("lfs getdirstripe -D by; lfs getdirstripe -D by/x/y/z"), [line(4, 3), line(-2, -1)].concat());
    a("chmod 700 by/x && touch by/x/{a..p} && rm -r by d");
    system.finish();
}

/// One metadata target has all stripes.
#[test]
fn a_directory_is_striped_on_one_target() {
    let system = FileSystem::start(Transport::Tcp, 2);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed().replace('\n', " ");
    a("lfs mkdir -C 4 s && mkdir d && touch d/f{1..40} && lfs setdirstripe -C 3 d && lfs mkdir -c -1 plain");
    assert_eq!(b("lfs getdirstripe -c s d plain; ls d | wc -l"), "4 3 0 40 ");
    a("cd s && touch f{1..40} && mkdir d{1..4} && for i in {1..40}; do mv f$i g$i; done; mv g1 ../d/; mv -T d1 d2");
    assert_eq!(b("ls s | wc -l; stat -c %h s; find s -name 'g*' | wc -l; ls d | wc -l"), "42 5 39 41 ");
    a("lfs setdirstripe -c 1 d && lfs setdirstripe -D -C 2 plain && mkdir plain/x");
    assert_eq!(b("lfs getdirstripe -c d plain/x; ls d | wc -l"), "0 2 41 ");
    assert!(system.shell("rmdir $B/s").output().stderr.contains("not empty"));
    b("rm -r s d plain");
    assert_eq!(a("ls -A | wc -l"), "0\n");
    system.finish();
}

/// A directory gets stripes while both mounts use it, and have cached all of it before.
#[test]
fn a_directory_gets_stripes_while_it_is_used() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("mkdir d && cd d && for i in $(seq 300); do echo $i > f$i; done; mkdir s1 s2; lfs mkdir -i 1 far; ln f1 l1");
    let all = "ls d | wc -l; ls -f d | sort -u | wc -l; stat -c %h d; cat d/f* | wc -l";
    assert_eq!([a(all), b(all)], ["304\n306\n5\n300\n"; 2]);
    let shown = "stat -c '%n %i %s %h %a %Y %Z' d/f* d/s*";
    let before = b(shown);
    let line = "cd $B && exec 3< d/f7 && for i in $(seq 200); do echo $i > d/n$i && rm d/f$((i + 50)) && test ! -e d/f$((i + 50)) \
                || exit 1; done; cat <&3";
    let user = system.shell(line);
    let user = std::thread::spawn(move || user.succeed());
    a("lfs setdirstripe -c -1 d && lfs setdirstripe -c -1 d");
    assert_eq!(user.join().expect("no panic"), "7\n");
    assert_eq!([a(all), b(all)], ["304\n306\n5\n100\n"; 2]);
    assert_eq!(
        b("lfs getdirstripe -c d; lfs getdirstripe -i d; cat d/n* | sort -n | tail -1").replace('\n', " "),
        "4 0 200 "
    );
    let left =
        |shown: &str| shown.lines().filter(|line| line.starts_with("d/f1 ")).map(str::to_owned).collect::<Vec<_>>();
    let after = a(shown);
    assert_eq!((left(&after), left(&after).len()), (left(&before), 1), "programs see the same files");
    for (line, said) in [
        ("lfs setdirstripe -c 2 d", "it has other stripes already"),
        ("lfs setdirstripe -c 1 -i 3 d", "without stripes its names are on"),
        ("lfs mkdir -c 2 d", "stripe already set"),
        ("lfs setdirstripe -c 9 d/s1", "9 stripes are not possible"),
        ("rmdir d", "Directory not empty"),
    ] {
        let refused = system.shell(&format!("cd $A && {line}")).output();
        assert!(refused.status != 0 && refused.stderr.contains(said), "{line}: {refused:?}");
    }
    // And loses them again.
    let line = "cd $B && exec 3< d/f8 && for i in $(seq 50); do echo $i > d/m$i && rm d/n$i && test ! -e d/n$i || exit 1; done; \
                cat <&3";
    let user = system.shell(line);
    let user = std::thread::spawn(move || user.succeed());
    a("lfs setdirstripe -c 1 d && lfs setdirstripe -c 1 d");
    assert_eq!(user.join().expect("no panic"), "8\n");
    assert_eq!([a(all), b(all)], ["304\n306\n5\n100\n"; 2]);
    assert_eq!(b("lfs getdirstripe -c d; cat d/m* d/n* | sort -n | tail -1").replace('\n', " "), "0 200 ");
    // What is on another target than its name in the shard gets another ctime.
    let without_ctime = |lines: Vec<String>| -> Vec<String> {
        lines.iter().filter_map(|line| line.rsplit_once(' ')).map(|(rest, _)| rest.to_owned()).collect()
    };
    let after = without_ctime(left(&a(shown)));
    assert_eq!((after.len(), after), (1, without_ctime(left(&before))), "programs see the same files");
    b("mv d/f1 d/moved && cat d/moved d/l1 && rm -r d");
    a("test ! -e d");
    system.finish();
}

/// Names that cannot move for a while are a matter of one line in the log, which says why, and what
/// to do.
#[test]
fn names_that_do_not_move_are_said_once_to_wait_for_a_server() {
    const OTHER: usize = 1;
    const NAMES: usize = 8_000;
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 1, 2);
    system.shell(&format!("mkdir $A/d && cd $A/d && seq {NAMES} | xargs touch")).succeed();
    let warned = |system: &FileSystem| {
        let log = system.server_log(0);
        log.lines()
            .filter(|line| line.contains("names of a directory do not move"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (first, split) = loop {
        let split = system.shell("lfs setdirstripe -c 2 $A/d");
        let split = std::thread::spawn(move || split.succeed());
        system.shell("until test $(lfs getdirstripe -c $A/d) = 2; do :; done").succeed();
        system.kill_server(OTHER);
        let first = wait_for("a warning", TIMEOUT, || match warned(&system).pop() {
            None => split.is_finished().then_some(None),
            warning => Some(warning),
        });
        match first {
            Some(first) => break (first, split),
            // All had moved by then: once more.
            None => {
                system.start_server(OTHER);
                system.shell("lfs setdirstripe -c 1 $A/d").succeed();
            }
        }
    };
    assert!(
        first.contains("WARN") && first.contains("start that metadata target") && first.contains("MDT0001"),
        "{first}"
    );
    system.start_server(OTHER);
    split.join().expect("no panic");
    assert_eq!(warned(&system), [first], "once a minute");
    assert_eq!(system.shell("ls $A/d | wc -l").succeed(), format!("{NAMES}\n"));
    system.finish();
}

/// Two processes with MDTs. Names of the MDT that is there are used; the rest waits.
#[test]
fn a_striped_directory_outlives_its_servers() {
    const MDS: usize = 0;
    const OTHER: usize = 1;
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 2, 2);
    system.shell("cd $A && lfs mkdir -c 2 s && touch s/{a..p} && ls -l $B/s").succeed();
    let of = |mdt: &str| {
        let line = format!("cd $A/s && for f in {{a..p}}; do test $(lfs getstripe -m $f) != {mdt} || echo $f; done");
        let found = system.shell(&line).succeed();
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (near, far) = (of("0"), of("1"));
    assert!(!near.is_empty() && !far.is_empty() && near.len() + far.len() == 16, "{near:?} {far:?}");
    system.kill_server(OTHER);
    system.shell(&format!("cd $A/s && mv {0} {0} 2> /dev/null; stat -c %h . && cat {0} && rm {0}", near[0])).succeed();
    let begin = |line: &str| {
        let program = system.shell(line);
        std::thread::spawn(move || program.succeed())
    };
    let waits = [
        begin(&format!("cat $A/s/{} && echo read", far[0])),
        begin("ls $B/s | wc -l"),
        begin("chmod 711 $B/s && stat -c %a $A/s"),
        begin("lfs mkdir -c 2 $A/second && lfs getdirstripe -c $A/second"),
        begin("mkdir $A/empty && rmdir $A/s 2>&1 | grep -o 'not empty' || true"),
    ];
    assert!(!waits[0].is_finished() && !waits[1].is_finished() && !waits[2].is_finished(), "they wait");
    system.start_server(OTHER);
    let answers = waits.map(|wait| wait.join().expect("no panic"));
    assert_eq!(answers, ["read\n", "15\n", "711\n", "2\n", "not empty\n"]);
    for servers in [&[MDS][..], &[OTHER], &[MDS, OTHER]] {
        servers.iter().for_each(|server| system.kill_server(*server));
        servers.iter().for_each(|server| system.start_server(*server));
        let line = "cd $B && mv s/{a..p} second/ 2> /dev/null; ls second | wc -l; mv second/* s/; stat -c %a:%h s; \
                    rmdir second && lfs mkdir -c -1 -i 1 second && ls -A s second | wc -l";
        assert_eq!(system.shell(line).succeed(), "15\n711:2\n18\n");
    }
    system.shell("rm -r $A/s $A/second $A/empty && ls -A $B").succeed();
    system.finish();
}

/// mkdir(2) as well, once the root has a default.
#[test]
fn programs_make_striped_directories_by_the_default_of_the_root() {
    let system = FileSystem::start_with_mdts(Transport::Tcp, 2, MDTS);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    let b = |line: &str| system.shell(&format!("cd $B && {line}")).succeed();
    a("mkdir before && lfs setdirstripe -D -c -1 -X -1 .");
    let line = |count: i32, levels: i32| {
        format!(
            "lmv_stripe_count: {count} lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: {levels} lmv_max_inherit_rr: 0\n"
        )
    };
    assert_eq!(b("lfs getdirstripe -D ."), line(-1, -1));
    assert_eq!(b("lfs getdirstripe -c before; lfs getdirstripe -D before"), format!("0\n{}", line(1, -1)));
    a("mkdir -p deep/{a,b,c}/{d,e}/f/g && lfs mkdir plain_option && lfs mkdir -c 1 plain && lfs mkdir -c 2 two");
    assert_eq!(b("find deep -type d -exec lfs getdirstripe -c {} + | sort | uniq -c | tr -s ' '"), " 22 4\n");
    assert_eq!(b("lfs getdirstripe -c plain_option plain two | tr '\\n' ' '"), "4 0 2 ");
    assert_eq!(b("lfs getdirstripe -D plain; lfs getdirstripe -c deep/c/e/f/g"), format!("{}4\n", line(-1, -1)));
    a("rmdir plain_option plain two before");
    // A tree as users have it: packed, copied, compared, renamed from both mounts.
    a("cp -a /usr/share/perl5/. tree/ 2> /dev/null || cp -a /usr/share/misc/. tree/; \
       for d in deep/*/*; do for i in $(seq 30); do echo $d $i > $d/f$i; done; ln -s ../../f1 $d/f/g/link; ln $d/f1 $d/f/hard; done");
    b(
        "cp -a deep copy && diff -r deep copy && tar cf deep.tar deep && mkdir out && tar xf deep.tar -C out && diff -r deep out/deep",
    );
    assert_eq!(a("find copy out -type d -exec lfs getdirstripe -c {} + | sort -u; find copy | wc -l"), "4\n214\n");
    b("diff -r tree tree && rsync -aH tree/ mirror/ && diff -r tree mirror");
    a("git init -q git && cd git && git config user.email x@y && git config user.name z && cp -r ../deep . && \
       git add . && git commit -q -m first && git gc -q && git fsck --no-progress");
    assert_eq!(b("git clone -q git clone && diff -r git/deep clone/deep && git -C clone log --format=%s"), "first\n");
    a(
        "mv deep/a/d deep/b/moved && mv deep/b tree/ && mv -T copy/a/e/f copy/a/d/f/g/f 2>/dev/null; mv out/deep/c out/c",
    );
    assert_eq!(
        b("ls tree/b/moved | wc -l; ls deep; cat tree/b/moved/f7; cat out/c/e/f30"),
        "31\na\nc\ndeep/a/d 7\ndeep/c/e 30\n"
    );
    let refused = system.shell("mv $A/out $A/out/c/e/out").output();
    assert!(refused.stderr.contains("subdirectory of itself"), "{refused:?}");
    system.check();
    b("rm -rf deep copy out deep.tar tree mirror git clone");
    assert_eq!(a("ls -A | wc -l; stat -c %h ."), "0\n2\n");
    // For some levels only, on one target, by names, and not any more.
    a("mkdir l && lfs setdirstripe -D -c 2 l && mkdir -p l/1/2/3/4");
    assert_eq!(b("lfs getdirstripe -c l/1 l/1/2 l/1/2/3 l/1/2/3/4 | tr '\\n' ' '"), "2 2 2 0 ");
    assert_eq!(b("lfs getdirstripe -D -X l l/1 l/1/2 l/1/2/3 | tr '\\n' ' '"), "3 2 1 -1 ");
    a("lfs setdirstripe -D -c 1 -i 3 . && mkdir -p on3/below && lfs setdirstripe -D -c 1 --max-inherit-rr 1 .");
    assert_eq!(
        b("lfs getdirstripe -i on3 on3/below | tr '\\n' ' '; mkdir s{1..30}; lfs getdirstripe -i s* | sort -u | wc -l"),
        "3 3 4\n"
    );
    a("lfs setdirstripe -d . && mkdir after");
    assert_eq!(b("lfs getdirstripe -c after; lfs getdirstripe -D after"), format!("0\n{}", line(1, -1)));
    for (line, status, said) in [
        ("lfs setdirstripe -D -c 5 .", libc::ENODEV, "dirstripe error on '.': 5 stripes are not possible: 4 metadata"),
        ("lfs setdirstripe -D -i 9 .", libc::ENODEV, "there is no MDT with index 9"),
        ("lfs setdirstripe -D -c 2 none", libc::ENOENT, "lfs setdirstripe: unable to open 'none': No such file or"),
        ("touch f; lfs setdirstripe -D -c 2 f", libc::ENOTDIR, "unable to open 'f': Not a directory"),
        ("lfs setdirstripe -D -c 2 /tmp", libc::ENOTTY, "on '/tmp'"),
        ("setpriv --reuid=5001 --clear-groups lfs setdirstripe -D -c 2 l", libc::EPERM, "Operation not permitted"),
        ("setpriv --reuid=5001 --clear-groups lfs setdirstripe -d l", libc::EPERM, "Operation not permitted"),
        ("setpriv --reuid=5001 --clear-groups lfs setdirstripe -d .", libc::EPERM, "Operation not permitted"),
    ] {
        let refused = system.shell(&format!("cd $A && {line}")).output();
        assert!(refused.status == status && refused.stderr.contains(said), "{line}: {refused:?}");
    }
    // Who made the file system owns its root, and may set the default there.
    let owner = "chown 5001 . && setpriv --reuid=5001 --clear-groups lfs setdirstripe";
    a(&format!("{owner} -D -c 2 ."));
    assert_eq!(b("lfs getdirstripe -D -c ."), "2\n");
    let refused = system.shell("cd $A && setpriv --reuid=5002 --clear-groups lfs setdirstripe -d .").output();
    assert!(refused.status == libc::EPERM && refused.stderr.contains("not permitted"), "{refused:?}");
    a(&format!("{owner} -d . && chown 0 ."));
    // Who owns another directory may not.
    for options in ["-D -c 2", "-D -c 1 -i 1", "-d"] {
        let refused =
            system.shell(&format!("cd $A && {} {options} l", owner.replace("chown 5001 .", "chown 5001 l"))).output();
        assert!(refused.status == libc::EPERM && refused.stderr.contains("not permitted"), "{options}: {refused:?}");
    }
    a("chown 0 l");
    assert_eq!(b("lfs getdirstripe -D ."), line(1, -1));
    // Users make such directories, where they may write.
    a("chmod 777 l");
    let line =
        "cd $A/l && setpriv --reuid=5001 --regid=5001 --clear-groups bash -c 'mkdir -p own/own && touch own/own/f'";
    system.shell(line).succeed();
    assert_eq!(b("lfs getdirstripe -c l/own l/own/own | tr '\\n' ' '; stat -c %u:%a l/own"), "2 2 5001:755\n");
    system.finish();
}

/// An MDT that is taken out of use, and one that is down.
#[test]
fn defaults_hold_while_servers_come_and_go() {
    const OTHER: usize = 1;
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 1, 2);
    system.shell("cd $A && lfs setdirstripe -D -c -1 -X -1 . && mkdir -p a/b").succeed();
    system.kill_server(OTHER);
    let program = system.shell("cd $A && mkdir -p c/d && lfs getdirstripe -c c c/d");
    let waits = std::thread::spawn(move || program.succeed());
    system.start_server(OTHER);
    assert_eq!(waits.join().expect("no panic"), "2\n2\n");
    for servers in [&[0][..], &[OTHER], &[0, OTHER]] {
        servers.iter().for_each(|server| system.kill_server(*server));
        servers.iter().for_each(|server| system.start_server(*server));
        assert_eq!(
            system
                .shell("cd $A && mkdir a/b/{1..6} && lfs getdirstripe -c a/b/{1..6} | sort -u && rmdir a/b/?")
                .succeed(),
            "2\n"
        );
    }
    system.shell("rm -r $A/a $A/c && ls -A $A").succeed();
    system.finish();
}
