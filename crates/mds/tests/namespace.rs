//! Names, links, renames, directories.

use crate::common;

use common::*;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{RenameMode, open_flag},
};
use types::{FileKind, FsError, InodeNumber, NodeKind};

#[tokio::test]
async fn a_new_file_is_found_with_its_attributes() {
    let fs = Fixture::new().await;
    let file = fs.create(&user(5), ROOT, "f", NodeKind::Regular, 0o640).await;
    assert_eq!(file, Err(FsError::AccessDenied), "the root directory is root's");
    let file = fs.file(ROOT, "f").await;
    let entry = fs.lookup(&user(5), ROOT, "f").await.unwrap();
    let attributes = entry.attributes;
    assert_eq!((attributes.inode, attributes.kind, attributes.mode), (file, FileKind::Regular, 0o644));
    assert_eq!((attributes.links, attributes.size, entry.size_unknown), (1, 0, None));
    assert_eq!(fs.lookup(&root(), ROOT, "g").await, Err(FsError::NotFound));
    assert_eq!(fs.lookup(&root(), file, "g").await, Err(FsError::NotDirectory));
    assert_eq!(fs.lookup(&root(), InodeNumber(0x999), "g").await, Err(FsError::Stale));
}

#[tokio::test]
async fn names_have_their_limits() {
    let fs = Fixture::new().await;
    let longest = "n".repeat(255);
    fs.file(ROOT, &longest).await;
    let too_long = "n".repeat(256);
    for (name, error) in [
        (too_long.as_str(), FsError::NameTooLong),
        ("", FsError::Invalid),
        ("a/b", FsError::Invalid),
        ("a\0b", FsError::Invalid),
    ] {
        assert_eq!(fs.lookup(&root(), ROOT, name).await, Err(error.clone()), "{name:?}");
        assert_eq!(fs.create(&root(), ROOT, name, NodeKind::Regular, 0).await, Err(error), "{name:?}");
    }
    for name in [".", ".."] {
        assert_eq!(fs.create(&root(), ROOT, name, NodeKind::Directory, 0).await, Err(FsError::Exists));
        assert_eq!(fs.unlink(&root(), ROOT, name).await, Err(FsError::IsDirectory));
    }
    assert_eq!(fs.rmdir(&root(), ROOT, ".").await, Err(FsError::Invalid));
    assert_eq!(fs.rmdir(&root(), ROOT, "..").await, Err(FsError::NotEmpty));
}

#[tokio::test]
async fn dots_lead_to_self_and_parent() {
    let fs = Fixture::new().await;
    let outer = fs.mkdir(ROOT, "outer").await;
    let inner = fs.mkdir(outer, "inner").await;
    let inode = async |parent, name| fs.lookup(&root(), parent, name).await.unwrap().attributes.inode;
    assert_eq!(inode(inner, ".").await, inner);
    assert_eq!(inode(inner, "..").await, outer);
    assert_eq!(inode(ROOT, "..").await, ROOT);
}

/// What a file handle leads to is asked for by `.` and `..`.
#[tokio::test]
async fn inodes_of_any_kind_are_found_by_number_until_they_are_removed() {
    let fs = Fixture::new().await;
    let closed = fs.create(&root(), ROOT, "closed", NodeKind::Directory, 0o700).await.unwrap();
    let file = fs.file(closed, "file").await;
    let link = fs.create(&root(), closed, "link", NodeKind::Symlink(b"x".to_vec()), 0o777).await.unwrap();
    let inode = async |number, name| fs.lookup(&user(5), number, name).await.map(|found| found.attributes.inode);
    for number in [closed, file, link] {
        assert_eq!(inode(number, ".").await, Ok(number));
    }
    assert_eq!(inode(closed, "..").await, Ok(ROOT));
    assert_eq!(inode(file, "..").await, Err(FsError::NotDirectory));
    assert_eq!(inode(InodeNumber(file.0 + 1000), ".").await, Err(FsError::Stale));
    assert_eq!(inode(InodeNumber(file.0 + 1000), "..").await, Err(FsError::Stale));
    // It stays while it is open, and not for those who only knew its number.
    let (opened, _) = fs.open(ALICE, &root(), file, open_flag::READ).await.unwrap();
    fs.unlink(&root(), closed, "file").await.unwrap();
    fs.unlink(&root(), closed, "link").await.unwrap();
    assert_eq!(inode(file, ".").await, Ok(file));
    assert_eq!(inode(link, ".").await, Err(FsError::Stale));
    fs.close(ALICE, file, opened, None).await.unwrap();
    assert_eq!(inode(file, ".").await, Err(FsError::Stale));
    // The parent of a directory that is open was removed after it.
    let inner = fs.mkdir(closed, "inner").await;
    fs.open(ALICE, &root(), inner, open_flag::READ).await.unwrap();
    fs.rmdir(&root(), closed, "inner").await.unwrap();
    fs.rmdir(&root(), ROOT, "closed").await.unwrap();
    assert_eq!(inode(inner, ".").await, Ok(inner));
    assert_eq!(inode(inner, "..").await, Err(FsError::Stale));
}

#[tokio::test]
async fn directories_count_their_subdirectories() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    assert_eq!((fs.links(ROOT).await, fs.links(directory).await), (3, 2));
    fs.mkdir(directory, "e").await;
    fs.file(directory, "f").await;
    assert_eq!(fs.links(directory).await, 3);
    assert_eq!(fs.rmdir(&root(), ROOT, "d").await, Err(FsError::NotEmpty));
    assert_eq!(fs.rmdir(&root(), directory, "f").await, Err(FsError::NotDirectory));
    assert_eq!(fs.unlink(&root(), directory, "e").await, Err(FsError::IsDirectory));
    fs.rmdir(&root(), directory, "e").await.unwrap();
    fs.unlink(&root(), directory, "f").await.unwrap();
    assert_eq!(fs.links(directory).await, 2);
    fs.rmdir(&root(), ROOT, "d").await.unwrap();
    assert_eq!(fs.links(ROOT).await, 2);
    assert_eq!(fs.stat(directory).await, Err(FsError::Stale));
}

#[tokio::test]
async fn hard_links_share_the_inode_and_outlive_the_first_name() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    let file = fs.file(ROOT, "a").await;
    fs.link(&root(), file, directory, "b").await.unwrap();
    fs.link(&root(), file, ROOT, "c").await.unwrap();
    assert_eq!(fs.links(file).await, 3);
    assert_eq!(fs.link(&root(), file, ROOT, "c").await, Err(FsError::Exists));
    assert_eq!(fs.link(&root(), directory, ROOT, "x").await, Err(FsError::NotPermitted));
    fs.unlink(&root(), ROOT, "a").await.unwrap();
    fs.unlink(&root(), ROOT, "c").await.unwrap();
    assert_eq!(fs.lookup(&root(), directory, "b").await.unwrap().attributes.inode, file);
    assert_eq!(paths(&fs, file).await, ["d/b"]);
    fs.unlink(&root(), directory, "b").await.unwrap();
    assert_eq!(fs.stat(file).await, Err(FsError::Stale));
    let link = fs.create(&root(), ROOT, "s", NodeKind::Symlink(b"t".to_vec()), 0).await.unwrap();
    fs.link(&root(), link, ROOT, "s2").await.unwrap();
    assert_eq!(fs.links(link).await, 2);
    assert_eq!(fs.check(false).await, []);
}

async fn paths(fs: &Fixture, inode: InodeNumber) -> Vec<String> {
    match fs.call(ALICE, MdtRequest::InodePaths(root(), inode)).await.unwrap() {
        MdtReply::Paths(paths) => paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn paths_name_every_link_and_follow_renames() {
    let fs = Fixture::new().await;
    let a = fs.mkdir(ROOT, "a").await;
    let b = fs.mkdir(a, "b").await;
    let file = fs.file(b, "f").await;
    fs.link(&root(), file, ROOT, "g").await.unwrap();
    let mut found = paths(&fs, file).await;
    found.sort();
    assert_eq!(found, ["a/b/f", "g"]);
    assert_eq!(paths(&fs, ROOT).await, [""]);
    fs.rename(&root(), (ROOT, "a"), (ROOT, "z"), RenameMode::Replace).await.unwrap();
    assert!(paths(&fs, file).await.contains(&"z/b/f".to_owned()));
    let hidden = fs.create(&root(), ROOT, "hidden", NodeKind::Directory, 0o700).await.unwrap();
    let secret = fs.file(hidden, "s").await;
    assert_eq!(fs.call(ALICE, MdtRequest::InodePaths(user(5), secret)).await, Err(FsError::AccessDenied));
}

#[tokio::test]
async fn rename_replaces_what_posix_allows() {
    let fs = Fixture::new().await;
    let (d, e) = (fs.mkdir(ROOT, "d").await, fs.mkdir(ROOT, "e").await);
    let (f, g) = (fs.file(ROOT, "f").await, fs.file(ROOT, "g").await);
    let replace = RenameMode::Replace;
    assert_eq!(fs.rename(&root(), (ROOT, "f"), (ROOT, "d"), replace).await, Err(FsError::IsDirectory));
    assert_eq!(fs.rename(&root(), (ROOT, "d"), (ROOT, "f"), replace).await, Err(FsError::NotDirectory));
    assert_eq!(fs.rename(&root(), (ROOT, "x"), (ROOT, "f"), replace).await, Err(FsError::NotFound));
    fs.rename(&root(), (ROOT, "f"), (ROOT, "g"), replace).await.unwrap();
    assert_eq!(fs.stat(g).await, Err(FsError::Stale));
    assert_eq!(fs.lookup(&root(), ROOT, "g").await.unwrap().attributes.inode, f);
    fs.file(e, "inside").await;
    assert_eq!(fs.rename(&root(), (ROOT, "d"), (ROOT, "e"), replace).await, Err(FsError::NotEmpty));
    fs.unlink(&root(), e, "inside").await.unwrap();
    fs.rename(&root(), (ROOT, "d"), (ROOT, "e"), replace).await.unwrap();
    assert_eq!(fs.lookup(&root(), ROOT, "e").await.unwrap().attributes.inode, d);
    assert_eq!((fs.links(ROOT).await, fs.stat(e).await), (3, Err(FsError::Stale)));
    assert_eq!(fs.names(ROOT).await, ["e", "g"]);
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_directory_never_becomes_its_own_descendant() {
    let fs = Fixture::new().await;
    let a = fs.mkdir(ROOT, "a").await;
    let b = fs.mkdir(a, "b").await;
    let c = fs.mkdir(b, "c").await;
    let replace = RenameMode::Replace;
    assert_eq!(fs.rename(&root(), (ROOT, "a"), (a, "x"), replace).await, Err(FsError::Invalid));
    assert_eq!(fs.rename(&root(), (ROOT, "a"), (c, "x"), replace).await, Err(FsError::Invalid));
    assert_eq!(fs.rename(&root(), (b, "c"), (ROOT, "a"), replace).await, Err(FsError::NotEmpty));
    assert_eq!(fs.rename(&root(), (b, "c"), (ROOT, "a"), RenameMode::Exchange).await, Err(FsError::Invalid));
    fs.rename(&root(), (a, "b"), (ROOT, "b"), replace).await.unwrap();
    assert_eq!(fs.lookup(&root(), b, "..").await.unwrap().attributes.inode, ROOT);
    assert_eq!((fs.links(ROOT).await, fs.links(a).await), (4, 2));
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn rename_modes_noreplace_and_exchange() {
    let fs = Fixture::new().await;
    let d = fs.mkdir(ROOT, "d").await;
    let e = fs.mkdir(d, "e").await;
    let f = fs.file(ROOT, "f").await;
    assert_eq!(fs.rename(&root(), (ROOT, "f"), (ROOT, "d"), RenameMode::NoReplace).await, Err(FsError::Exists));
    assert_eq!(fs.rename(&root(), (ROOT, "f"), (ROOT, "y"), RenameMode::Exchange).await, Err(FsError::NotFound));
    fs.rename(&root(), (ROOT, "f"), (d, "e"), RenameMode::Exchange).await.unwrap();
    assert_eq!(fs.lookup(&root(), ROOT, "f").await.unwrap().attributes.inode, e);
    assert_eq!(fs.lookup(&root(), d, "e").await.unwrap().attributes.inode, f);
    assert_eq!(fs.lookup(&root(), e, "..").await.unwrap().attributes.inode, ROOT);
    assert_eq!((fs.links(ROOT).await, fs.links(d).await), (4, 2));
    fs.rename(&root(), (ROOT, "f"), (ROOT, "n"), RenameMode::NoReplace).await.unwrap();
    assert_eq!(fs.names(ROOT).await, ["d", "n"]);
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn renaming_one_link_onto_another_does_nothing() {
    let fs = Fixture::new().await;
    let f = fs.file(ROOT, "f").await;
    fs.link(&root(), f, ROOT, "g").await.unwrap();
    fs.rename(&root(), (ROOT, "f"), (ROOT, "g"), RenameMode::Replace).await.unwrap();
    assert_eq!(fs.names(ROOT).await, ["f", "g"]);
    assert_eq!(fs.links(f).await, 2);
    fs.rename(&root(), (ROOT, "g"), (ROOT, "h"), RenameMode::Replace).await.unwrap();
    assert_eq!(fs.names(ROOT).await, ["f", "h"]);
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn special_files_keep_their_kind_and_device() {
    let fs = Fixture::new().await;
    let kinds = [
        (NodeKind::Fifo, FileKind::Fifo, 0),
        (NodeKind::Socket, FileKind::Socket, 0),
        (NodeKind::CharacterDevice(0x103), FileKind::CharacterDevice, 0x103),
        (NodeKind::BlockDevice(0x801), FileKind::BlockDevice, 0x801),
    ];
    for (number, (kind, expected, device)) in kinds.into_iter().enumerate() {
        let inode = fs.create(&root(), ROOT, &format!("n{number}"), kind, 0o600).await.unwrap();
        let attributes = fs.stat(inode).await.unwrap().attributes;
        assert_eq!((attributes.kind, attributes.device), (expected, device));
    }
    let open = fs.create(&root(), ROOT, "public", NodeKind::Directory, 0o777).await.unwrap();
    let device = NodeKind::CharacterDevice(1);
    assert_eq!(fs.create(&user(5), open, "c", device, 0).await, Err(FsError::NotPermitted));
    fs.create(&user(5), open, "fifo", NodeKind::Fifo, 0).await.unwrap();
}

#[tokio::test]
async fn symlinks_hold_up_to_4095_bytes() {
    let fs = Fixture::new().await;
    let longest = vec![b't'; 4095];
    let link = fs.create(&root(), ROOT, "l", NodeKind::Symlink(longest.clone()), 0).await.unwrap();
    let attributes = fs.stat(link).await.unwrap().attributes;
    assert_eq!((attributes.mode, attributes.size), (0o777, 4095));
    assert_eq!(fs.call(ALICE, MdtRequest::ReadLink(link)).await, Ok(MdtReply::Target(longest)));
    assert_eq!(fs.call(ALICE, MdtRequest::ReadLink(ROOT)).await, Err(FsError::Invalid));
    let too_long = NodeKind::Symlink(vec![b't'; 4096]);
    assert_eq!(fs.create(&root(), ROOT, "m", too_long, 0).await, Err(FsError::NameTooLong));
    assert_eq!(fs.open(ALICE, &root(), link, READ).await, Err(FsError::Loop));
}

#[tokio::test]
async fn open_with_creation_opens_what_exists_unless_exclusive() {
    let fs = Fixture::new().await;
    let (_, first) = fs.create_open(ALICE, ROOT, "f", READ | WRITE).await.unwrap();
    assert!(first.created);
    let (_, second) = fs.create_open(ALICE, ROOT, "f", READ).await.unwrap();
    assert!(!second.created);
    assert_eq!(first.entry.attributes.inode, second.entry.attributes.inode);
    let exclusive = fs.create_open(ALICE, ROOT, "f", READ | open_flag::EXCLUSIVE).await;
    assert_eq!(exclusive, Err(FsError::Exists));
    fs.mkdir(ROOT, "d").await;
    assert_eq!(fs.create_open(ALICE, ROOT, "d", READ).await, Err(FsError::IsDirectory));
    assert_eq!(fs.open(ALICE, &root(), ROOT, WRITE).await, Err(FsError::IsDirectory));
}

#[tokio::test]
async fn a_directory_is_read_in_pages_of_any_size() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    let mut expected = Vec::new();
    for number in 0..300 {
        let name = format!("file{number}");
        fs.file(directory, &name).await;
        expected.push(name);
    }
    expected.sort();
    for page in [1, 2, 7, 1000] {
        let entries = fs.list(directory, page).await;
        assert_eq!((&entries[0].name[..], &entries[1].name[..]), (&b"."[..], &b".."[..]));
        assert_eq!((entries[0].inode, entries[1].inode), (directory, ROOT));
        assert!(entries.is_sorted_by(|a, b| a.cookie < b.cookie));
        assert!(entries[2..].iter().all(|entry| entry.entry.is_some()));
        let mut names: Vec<_> = entries[2..].iter().map(|e| String::from_utf8(e.name.clone()).unwrap()).collect();
        names.sort();
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn what_stays_is_read_exactly_once_while_a_directory_changes() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    for number in 0..100 {
        fs.file(directory, &format!("stays{number}")).await;
        fs.file(directory, &format!("goes{number}")).await;
    }
    let (open, _) = fs.open(ALICE, &root(), directory, READ).await.unwrap();
    let (mut cookie, mut seen, mut round) = (0, Vec::new(), 0);
    loop {
        let (entries, complete) = fs.read_directory(directory, open, cookie, 5).await.unwrap();
        cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        seen.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        if complete {
            break;
        }
        if round < 100 {
            fs.unlink(&root(), directory, &format!("goes{round}")).await.unwrap();
            fs.file(directory, &format!("comes{round}")).await;
        }
        round += 1;
    }
    for number in 0..100 {
        let name = format!("stays{number}");
        assert_eq!(seen.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
    let unopened = fs.open_id();
    assert_eq!(fs.read_directory(directory, unopened, 0, 5).await, Err(FsError::BadHandle));
}

#[tokio::test]
async fn nothing_can_be_made_in_a_removed_directory() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    let (open, _) = fs.open(ALICE, &root(), directory, READ).await.unwrap();
    fs.rmdir(&root(), ROOT, "d").await.unwrap();
    assert_eq!(fs.links(directory).await, 0);
    let made = fs.create(&root(), directory, "f", NodeKind::Regular, 0).await;
    assert_eq!(made, Err(FsError::NotFound));
    let file = fs.file(ROOT, "f").await;
    assert_eq!(fs.link(&root(), file, directory, "f").await, Err(FsError::NotFound));
    let renamed = fs.rename(&root(), (ROOT, "f"), (directory, "f"), RenameMode::Replace).await;
    assert_eq!(renamed, Err(FsError::NotFound));
    assert_eq!(fs.read_directory(directory, open, 0, 9).await.unwrap().0.len(), 2);
    fs.close(ALICE, directory, open, None).await.unwrap();
    assert_eq!(fs.stat(directory).await, Err(FsError::Stale));
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn everything_is_there_after_a_crash() {
    let mut fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    for number in 0..50 {
        fs.file(directory, &format!("f{number}")).await;
    }
    fs.rename(&root(), (directory, "f7"), (ROOT, "seven"), RenameMode::Replace).await.unwrap();
    let names = fs.names(directory).await;
    fs.restart_and_recover().await;
    assert_eq!(fs.names(directory).await, names);
    assert_eq!(fs.names(ROOT).await, ["d", "seven"]);
    let before = fs.lookup(&root(), ROOT, "seven").await.unwrap().attributes.inode;
    let after = fs.file(ROOT, "new").await;
    assert!(after > before, "numbers are never used again");
    assert_eq!(fs.check(false).await, []);
}
