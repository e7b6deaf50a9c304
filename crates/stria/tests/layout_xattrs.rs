//! Layouts as extended attributes, and the programs that copy attributes.

mod common;

use std::path::Path;

use common::{FileSystem, Output, Transport};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec, lov};

/// Ids of nobody and nogroup.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

fn count(count: u32) -> StripeSpec {
    StripeSpec { stripe_count: StripeCount::Exactly(count), stripe_bytes: Some(1 << 20), ..StripeSpec::default() }
}

fn run(system: &FileSystem, line: &str) -> Output {
    system.shell(line).env("LC_ALL", "C").output()
}

fn succeed(system: &FileSystem, line: &str) -> String {
    let output = run(system, line);
    assert_eq!((output.status, output.stderr.as_str()), (0, ""), "{line}\n{}", output.stdout);
    output.stdout
}

/// The value of an attribute.
fn value(path: &Path, name: &str) -> Vec<u8> {
    let mut buffer = vec![0; 65536];
    let length = rustix::fs::lgetxattr(path, name, &mut buffer[..]).unwrap_or_else(|error| panic!("{name}: {error}"));
    buffer.truncate(length);
    buffer
}

/// What a layout was asked for, of every file and directory below `directory`, without what was
/// chosen for it.
fn layouts(system: &FileSystem, directory: &str) -> String {
    let skip = "-e l_ost -e l_fid -e offset -e objects -e layout_gen -e flags";
    succeed(
        system,
        &format!(
            "cd {directory} && find . | sort | while read -r f; do echo \"$f\"; lfs getstripe -d -y \"$f\" | grep -v {skip}; done"
        ),
    )
}

#[test]
fn layouts_are_read_as_attributes() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let root = system.root();
    succeed(&system, "cd $A && mkdir d && lfs setstripe -c 2 -S 1M d && touch plain && mkdir none");
    succeed(&system, "cd $A && lfs setstripe -E 4M -c 1 -S 1M -E -1 -c 3 composite");
    let default = lov::encode_default(&LayoutSpec::Plain(count(2)));
    assert_eq!(value(&root.join("d"), "lustre.lov"), default);
    let components = [(4 << 20, 1), (END_OF_FILE, 3)];
    let component = |(end, stripes)| ComponentSpec { end, backing: BackingSpec::Striped(count(stripes)) };
    let expected = LayoutSpec::Composite(components.map(component).to_vec());
    for name in ["lustre.lov", "trusted.lov"] {
        assert_eq!(lov::decode(&value(&root.join("composite"), name)), Ok(expected.clone()), "{name}");
    }
    let yaml = succeed(&system, "lfs getstripe -y $A/composite");
    assert_eq!(value(&root.join("composite"), "stria.layout"), yaml.as_bytes());
    let listed = |line: &str| succeed(&system, &format!("cd $A && {line} | grep -v '^$'"));
    let all = "# file: composite\nlustre.lov\ntrusted.lov\n# file: d\nlustre.lov\ntrusted.lov\n";
    assert_eq!(listed("getfattr -m - composite d none"), all);
    assert_eq!(listed(&format!("{AS_NOBODY} getfattr -m - plain")), "# file: plain\nlustre.lov\n");
    system.finish();
}

#[test]
fn layouts_are_set_as_attributes_while_there_are_no_data() {
    let system = FileSystem::start(Transport::Tcp, 2);
    system.end_automatic_layouts();
    succeed(&system, "cd $A && lfs setstripe -E 4M -c 1 -E -1 -c 3 source");
    let copy = "setfattr -n lustre.lov -v $(getfattr -n lustre.lov -e hex source | sed -n s/^lustre.lov=//p)";
    // mknod(2) of a regular file is what tar does before it sets attributes.
    succeed(&system, "cd $A && python3 -c 'import os; os.mknod(\"fresh\", 0o100644)'");
    succeed(&system, &format!("cd $A && {copy} fresh && echo text > fresh"));
    assert_eq!(succeed(&system, "lfs getstripe --component-count $B/fresh"), "2\n");
    assert_eq!(succeed(&system, "cat $B/fresh"), "text\n");
    // With data it is ignored, as in Lustre.
    succeed(&system, &format!("cd $A && echo text > written && {copy} written"));
    assert_eq!(succeed(&system, "cat $B/written && lfs getstripe --component-count $B/written"), "text\n0\n");
    // A directory's default; by its owner only.
    succeed(&system, &format!("cd $A && mkdir d && {copy} d && touch d/f"));
    assert_eq!(succeed(&system, "lfs getstripe --component-count $B/d/f"), "2\n");
    let refused = run(&system, &format!("cd $A && {AS_NOBODY} {copy} d"));
    assert_ne!(refused.status, 0, "{}", refused.stdout);
    succeed(&system, "setfattr -x lustre.lov $A/d");
    assert_eq!(succeed(&system, "lfs getstripe -dR -c $B/d"), "0\n");
    // As text.
    succeed(&system, "cd $A && mkdir t && setfattr -n stria.layout -v \"$(lfs getstripe -y source)\" t && touch t/f");
    assert_eq!(succeed(&system, "lfs getstripe --component-count $B/t/f"), "2\n");
    for wrong in ["-n lustre.lov -v 0x00", "-n lustre.lov -v 0xd00bd60bffffffff", "-n stria.layout -v nonsense"] {
        let refused = run(&system, &format!("cd $A && setfattr {wrong} d"));
        assert!(refused.stderr.contains("Invalid argument"), "{wrong}: {}", refused.stderr);
    }
    system.finish();
}

/// A tree with layouts of its own everywhere.
const TREE: &str = "cd $A && mkdir -p tree/wide && lfs setstripe -c 4 -S 1M tree/wide
    lfs setstripe -E 1M -c 1 -S 64K -E 16M -c 2 -E -1 -c -1 tree/grows && dd if=/dev/urandom of=tree/grows bs=1M count=5 status=none
    lfs setstripe -C 6 tree/over && echo text > tree/over && lfs setstripe -c 3 tree/empty
    echo other > tree/wide/file && cp tree/grows tree/wide/data";

#[test]
fn tar_keeps_the_layouts_of_files_and_directories() {
    let system = FileSystem::start(Transport::Tcp, 2);
    succeed(&system, TREE);
    succeed(&system, "tar -C $A --xattrs --xattrs-include='*' -cf $A/tar tree");
    succeed(&system, "mkdir $B/copy && tar -C $B/copy --xattrs --xattrs-include='*' -xpf $A/tar");
    succeed(&system, "diff -r $A/tree $B/copy/tree");
    assert_eq!(layouts(&system, "$A/copy/tree"), layouts(&system, "$A/tree"));
    system.finish();
}

/// How wide it becomes is decided again; so are new files of a directory whose default is automatic
/// where that of the file system is not.
#[test]
fn copies_of_automatic_layouts_are_automatic() {
    let system = FileSystem::start(Transport::Tcp, 2);
    succeed(
        &system,
        "cd $A && mkdir tree && head -c 3M /dev/urandom > tree/large && echo text > tree/small && touch tree/empty",
    );
    succeed(&system, "cd $A && mkdir tree/d && printf 'lmm_pattern: automatic\\n' | lfs setstripe -y - tree/d");
    assert_eq!(succeed(&system, "lfs getstripe --component-count $B/tree/large"), "3\n", "it has grown");
    succeed(&system, "mkdir $A/plain && lfs setstripe -c 1 $A/plain");
    let tar = "tar --xattrs --xattrs-include='*'";
    succeed(&system, &format!("mkdir $B/plain/tar && {tar} -C $A -cf - tree | {tar} -C $B/plain/tar -xpf -"));
    succeed(&system, "rsync -aX $A/tree $B/rsync && cp -a $A/tree $B/cp");
    for copy in ["plain/tar/tree", "rsync/tree", "cp"] {
        succeed(&system, &format!("diff -r $A/tree $B/{copy} && touch $B/{copy}/d/new"));
        for file in ["large", "small", "empty", "d/new"] {
            let explained = succeed(&system, &format!("stria explain $B/{copy}/{file}"));
            assert!(explained.contains("automatic: the layout grows with the file"), "{copy}: {explained}");
            assert!(!explained.contains("requested"), "{copy}: {explained}");
        }
    }
    // Of what it has become nothing is taken over.
    succeed(&system, "lfs setstripe --copy=$A/tree/large $A/plain/new");
    assert_eq!(succeed(&system, "lfs getstripe --component-count $B/plain/new"), "2\n");
    system.finish();
}

/// Both set attributes when the data are written: too late for files, in time for what is made in
/// directories.
#[test]
fn rsync_and_cp_copy_between_mounts_without_errors() {
    let system = FileSystem::start(Transport::Tcp, 2);
    succeed(&system, TREE);
    succeed(&system, "rsync -aX $A/tree $B/rsync && diff -r $A/tree $B/rsync/tree");
    let again = succeed(&system, "rsync -aX --itemize-changes $A/tree $B/rsync | grep -v -e '^.[df]........x' || true");
    assert_eq!(again, "", "nothing but attributes that name other objects");
    succeed(&system, "cp -a $A/tree $B/cp && diff -r $A/tree $B/cp");
    for copy in ["rsync/tree", "cp"] {
        assert_eq!(
            succeed(&system, &format!("lfs getstripe -d -c -S $B/{copy}/wide")),
            succeed(&system, "lfs getstripe -d -c -S $A/tree/wide")
        );
    }
    assert_eq!(succeed(&system, "lfs getstripe -c $B/rsync/tree/wide/file"), "4\n");
    // From a file system without layouts, and to one.
    succeed(&system, "mkdir $A/../local && cp -a $A/tree $A/../local/ && diff -r $A/tree $A/../local/tree");
    succeed(&system, "rsync -aX $A/../local/tree/ $B/rsync/tree && diff -r $A/tree $B/rsync/tree && rm -r $A/../local");
    system.finish();
}
