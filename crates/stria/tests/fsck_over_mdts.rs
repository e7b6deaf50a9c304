//! `stria fsck --repair` of a namespace over several metadata targets: records are changed in the
//! tables of a stopped file system, found, repaired, and all that was not damaged is as before.

mod common;

use std::sync::Arc;

use common::{FileSystem, Transport};
use kv::{Batch, Config, FjallCold, Store, cold::fjall::FjallOptions};
use mds::tables::{
    ENTRIES, INODES, LINKS,
    entry::{EntryRecord, NamedInode, Position},
    inode::{Inode, Link},
    link,
};
use rt::{
    memory::{MemoryTransport, seams},
    real::{Execution, IoThreads, LocalDirectory},
};
use types::{DirectoryMap, FileKind, InodeNumber};

const MEMORY_BYTES: u64 = 64 << 20;

/// Changes the tables of a metadata target of a stopped file system.
fn damage(system: &FileSystem, mdt: u16, change: impl FnOnce(&Store, &mut Batch)) {
    let directory = system.place().data(&format!("up/mdt{mdt}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let threads = Arc::new(IoThreads::new("io", 1).expect("a thread"));
        let device = LocalDirectory::open(directory.join("journal"), Execution::Inline, threads).expect("a journal");
        let options = FjallOptions::for_budget(MEMORY_BYTES / 2);
        let cold = FjallCold::open(&directory.join("cold"), options).expect("tables");
        let config = Config { memory_bytes: MEMORY_BYTES / 2, ..Config::default() };
        let seams = seams(&MemoryTransport::new(), 1);
        let store =
            Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await.expect("it opens");
        let mut batch = Batch::default();
        change(&store, &mut batch);
        let lsn = store.apply(batch).expect("it is applied");
        store.durable(lsn).await.expect("it is durable");
        store.close().await.expect("it is closed");
    });
}

fn entry_key(directory: InodeNumber, name: &str) -> Vec<u8> {
    EntryRecord::key(directory, Position::of_name_in(directory, name.as_bytes()))
}

fn entry(name: &str, inode: InodeNumber, kind: FileKind) -> Vec<u8> {
    EntryRecord { more: false, target: Some(NamedInode { name: name.as_bytes().to_vec(), inode, kind }) }.encode()
}

fn inode_of(store: &Store, number: InodeNumber) -> Inode {
    let value = store.get(INODES, &Inode::key(number)).expect("tables are read").expect("the inode exists");
    Inode::decode(number, &value).expect("its record is sound")
}

/// A directory has one subdirectory more or less.
fn change_links(store: &Store, batch: &mut Batch, directory: InodeNumber, change: i32) {
    let mut inode = inode_of(store, directory);
    inode.attributes.links = inode.attributes.links.checked_add_signed(change).expect("it has that many");
    batch.put(INODES, Inode::key(directory), inode.encode());
}

/// The map of a striped directory.
fn map_of(system: &FileSystem, directory: InodeNumber) -> DirectoryMap {
    let mut map = None;
    damage(system, directory.mdt().0, |store, _| map = inode_of(store, directory).map());
    map.expect("it is striped")
}

/// The inode of a path in the mount.
fn number(system: &FileSystem, path: &str) -> InodeNumber {
    let shown = system.shell(&format!("stat -c %i $A/{path}")).succeed();
    InodeNumber(shown.trim().parse().expect("a number"))
}

/// fsck finds each of these, repairs them when it is told to, and finds nothing afterwards.
fn finds_and_repairs(system: &FileSystem, problems: &[&str]) {
    let found = system.fsck(&[]);
    assert!(found.status == 1 && !found.stdout.contains("(repaired)"), "{found:?}");
    for problem in problems {
        assert!(found.stdout.contains(problem), "{problem}:\n{}", found.stdout);
    }
    assert_eq!(system.fsck(&[]).stdout, found.stdout, "looking changes nothing");
    let repaired = system.fsck(&["--repair"]);
    assert!(repaired.status == 0 && repaired.stdout.contains("\nclean: "), "{repaired:?}");
    system.check();
}

const UNDAMAGED: &str = "cd $A && find safe d0 d1 striped -printf '%i %n %m %s %p\n' | sort; cat safe/*/* | sum";

#[test]
fn names_and_inodes_that_contradict_each_other_are_repaired() {
    let mut system = FileSystem::start_with_mdts(Transport::InProcess, 1, 2);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    a("lfs mkdir -i 0 d0; lfs mkdir -i 1 d1; lfs mkdir -i 0 safe; lfs mkdir -i 0 safe/0; lfs mkdir -i 1 safe/1");
    a(
        "for i in {1..20}; do echo $i > safe/0/f$i; echo $i > safe/1/f$i; done; ln safe/0/f1 safe/1/l; ln safe/1/f2 safe/0/l",
    );
    a("echo linked > d1/linked && ln d1/linked d0/linked");
    let before = a(UNDAMAGED);
    a("for f in dangling nameless; do echo $f > d1/$f && mv d1/$f d0/$f; done");
    a("lfs mkdir -i 1 d0/lost && echo inner > d0/lost/inner");
    let [d0, linked, dangling, lost] = ["d0", "d1/linked", "d0/dangling", "d0/lost"].map(|path| number(&system, path));
    system.unmount(0);
    damage(&system, 0, |_, batch| {
        ["nameless", "lost"].iter().for_each(|name| batch.delete(ENTRIES, entry_key(d0, name)))
    });
    damage(&system, 1, |_, batch| {
        batch.delete(LINKS, link::key(linked, &Link { parent: d0, name: b"linked".to_vec() }));
        batch.delete(INODES, Inode::key(dangling));
    });
    let problems = [
        "name 'dangling' in directory ",
        "name 'nameless' in directory ",
        "name 'lost' in directory ",
        "name 'linked' in directory ",
    ];
    finds_and_repairs(&system, &problems);
    system.mount(0);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    assert_eq!(a(UNDAMAGED), before);
    assert_eq!(a("cat d0/linked; stat -c %h d0/linked d0"), "linked\n2\n2\n");
    assert_eq!(a(&format!("cat lost+found/#{:x}/inner; ls lost+found | wc -l", lost.0)), "inner\n2\n");
    assert_eq!(a("cat $(find lost+found -maxdepth 1 -type f)"), "nameless\n");
    a("mv lost+found/* d0 && rm -r d0 d1");
    system.finish();
}

/// Names that nothing finds, since they are not in the shard that their hash says: one whose right
/// shard has no such name, one whose has another file of that name, one of a directory.
#[test]
fn names_in_wrong_shards_are_moved() {
    let mut system = FileSystem::start_with_mdts(Transport::InProcess, 1, 2);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    a(
        "mkdir safe d0 d1; lfs mkdir -i 0 -c 2 striped && for i in {1..20}; do echo $i > striped/f$i; done; mkdir -p safe/1",
    );
    a("echo x > safe/1/x");
    let before = a(UNDAMAGED);
    a(
        "echo single > striped/single; echo first > striped/twice; mkdir striped/directory; echo in > striped/directory/in",
    );
    a("lfs mkdir -i 0 other && echo second > other/second");
    let striped = number(&system, "striped");
    let misplaced = ["single", "directory"].map(|name| (name, number(&system, &format!("striped/{name}"))));
    let (second, other) = (number(&system, "other/second"), number(&system, "other"));
    system.unmount(0);
    let map = map_of(&system, striped);
    let shard_but = |name: &str| {
        let right = map.shard_of(name.as_bytes()).expect("it has shards");
        (right, *map.shards.iter().find(|shard| **shard != right).expect("two shards"))
    };
    for (name, inode) in misplaced {
        let (right, wrong) = shard_but(name);
        let kind = if name == "single" { FileKind::Regular } else { FileKind::Directory };
        let moved = |shard: InodeNumber, store: &Store, batch: &mut Batch| {
            let found = inode_of(store, shard);
            let links = found.attributes.links + u32::from(kind == FileKind::Directory && shard == wrong)
                - u32::from(kind == FileKind::Directory && shard == right);
            let attributes = types::Attributes { links, ..found.attributes };
            batch.put(INODES, Inode::key(shard), Inode { attributes, ..found }.encode());
        };
        damage(&system, right.mdt().0, |store, batch| {
            batch.delete(ENTRIES, entry_key(right, name));
            moved(right, store, batch);
        });
        damage(&system, wrong.mdt().0, |store, batch| {
            batch.put(ENTRIES, entry_key(wrong, name), entry(name, inode, kind));
            moved(wrong, store, batch);
        });
        damage(&system, inode.mdt().0, |store, batch| {
            let first_link = Some(Link { parent: wrong, name: name.as_bytes().to_vec() });
            batch.put(INODES, Inode::key(inode), Inode { first_link, ..inode_of(store, inode) }.encode());
        });
    }
    // The file of the directory without stripes has its name in the wrong shard now.
    let (_, wrong) = shard_but("twice");
    damage(&system, second.mdt().0, |store, batch| {
        batch.delete(ENTRIES, entry_key(other, "second"));
        let first_link = Some(Link { parent: wrong, name: b"twice".to_vec() });
        batch.put(INODES, Inode::key(second), Inode { first_link, ..inode_of(store, second) }.encode());
    });
    damage(&system, wrong.mdt().0, |_, batch| {
        batch.put(ENTRIES, entry_key(wrong, "twice"), entry("twice", second, FileKind::Regular));
    });
    let is_misplaced = |name: &str| format!("name '{name}' is in a shard to which it does not belong");
    let problems = ["single", "directory", "twice"].map(is_misplaced);
    finds_and_repairs(&system, &problems.each_ref().map(String::as_str));
    system.mount(0);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    assert_eq!(a("cat striped/single striped/directory/in striped/twice"), "single\nin\nfirst\n");
    assert_eq!(a(&format!("cat striped/twice.#{:x}", second.0)), "second\n");
    a("rm -r striped/single striped/directory striped/twice* other");
    assert_eq!(a(UNDAMAGED), before);
    a("rm -r striped");
    system.finish();
}

/// Two directories of different targets are each below the other: nobody reaches them. They are
/// reported, and nothing of them changes.
#[test]
fn directories_that_are_below_themselves_are_reported() {
    let mut system = FileSystem::start_with_mdts(Transport::InProcess, 1, 2);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    a("mkdir safe d0 d1 safe/1; lfs mkdir -i 0 -c 2 striped; echo x > safe/1/x; lfs mkdir -i 0 striped/sub");
    a("lfs mkdir -i 1 safe/one && lfs mkdir -i 0 safe/one/zero && lfs mkdir -i 1 safe/one/zero/one");
    let before = a(UNDAMAGED);
    a("lfs mkdir -i 1 top && lfs mkdir -i 0 top/zero && lfs mkdir -i 1 top/zero/one && echo in > top/zero/one/in");
    a("lfs mkdir -i 0 top/zero/one/beside");
    let [top, one] = ["top", "top/zero/one"].map(|path| number(&system, path));
    system.unmount(0);
    damage(&system, 0, |store, batch| {
        batch.delete(ENTRIES, entry_key(InodeNumber::ROOT, "top"));
        change_links(store, batch, InodeNumber::ROOT, -1);
    });
    damage(&system, 1, |store, batch| {
        batch.put(ENTRIES, entry_key(one, "back"), entry("back", top, FileKind::Directory));
        let first_link = Some(Link { parent: one, name: b"back".to_vec() });
        batch.put(INODES, Inode::key(top), Inode { first_link, ..inode_of(store, top) }.encode());
        change_links(store, batch, one, 1);
    });
    for arguments in [&[][..], &["--repair"]] {
        let found = system.fsck(arguments);
        let reported = found.stdout.matches("is below itself, by way of several MDTs").count();
        assert!(found.status == 1 && reported == 1 && !found.stdout.contains("(repaired)"), "{found:?}");
    }
    system.mount(0);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    assert_eq!(a(UNDAMAGED), before);
    assert_eq!(a("ls -d lost+found 2> /dev/null | wc -l"), "0\n");
    // As it was, all of it is there.
    system.unmount(0);
    damage(&system, 0, |store, batch| {
        batch.put(ENTRIES, entry_key(InodeNumber::ROOT, "top"), entry("top", top, FileKind::Directory));
        change_links(store, batch, InodeNumber::ROOT, 1);
    });
    damage(&system, 1, |store, batch| {
        batch.delete(ENTRIES, entry_key(one, "back"));
        let first_link = Some(Link { parent: InodeNumber::ROOT, name: b"top".to_vec() });
        batch.put(INODES, Inode::key(top), Inode { first_link, ..inode_of(store, top) }.encode());
        change_links(store, batch, one, -1);
    });
    system.finish();
}

/// The records of both stripes of a directory are lost; one is on the target of the directory.
#[test]
fn lost_stripes_are_made_again_with_their_names() {
    let mut system = FileSystem::start_with_mdts(Transport::InProcess, 1, 2);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    a("mkdir -p safe/1 d0 d1; echo x > safe/1/x; lfs mkdir -i 0 -c 2 -o 750 striped");
    a("for i in {1..20}; do echo $i > striped/f$i; mkdir striped/d$i; done; ln striped/f1 striped/link");
    let before = a(UNDAMAGED);
    let striped = number(&system, "striped");
    system.unmount(0);
    for shard in map_of(&system, striped).shards {
        damage(&system, shard.mdt().0, |_, batch| batch.delete(INODES, Inode::key(shard)));
    }
    finds_and_repairs(&system, &["its shard ", "has this shard on MDT0001, where it does not exist"]);
    system.mount(0);
    let a = |line: &str| system.shell(&format!("cd $A && {line}")).succeed();
    assert_eq!(a(UNDAMAGED), before);
    assert_eq!(a("cat striped/f* | sort -n | tail -n 1; touch striped/new{1..8}; ls striped | wc -l"), "20\n49\n");
    a("rm -r striped");
    system.finish();
}
