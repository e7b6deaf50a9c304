//! Damaged files below a target: reported by name, never served.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    common::{TIMEOUT, programs::program, wait_for},
    site::Site,
};

/// All regular files below a directory, in order.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Flips one bit.
fn flip(path: &Path, offset: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], offset).unwrap();
}

#[track_caller]
fn fails_with_eio<T: std::fmt::Debug>(result: io::Result<T>) {
    let error = result.expect_err("the data are damaged");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
}

/// A file of 1 MiB whose object has a host file; its path in the mount and the host file.
fn large_file(site: &Site) -> (PathBuf, PathBuf) {
    let path = site.file_on("large", 0);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&crate::large_contents(), 0).unwrap();
    file.sync_all().unwrap();
    let mut objects = files_below(&site.place("ost0/objects"));
    assert_eq!(objects.len(), 1, "{objects:?}");
    (path, objects.remove(0))
}

/// The damage is an error that names the object, in both logs and, with what is `found` there, in
/// fsck, and only there.
#[track_caller]
fn expect_damage(site: &Site, path: &Path, object: &Path, offset: usize, found: &str) {
    let mut piece = vec![0; 4096];
    let file = File::open(path).unwrap();
    fails_with_eio(file.read_exact_at(&mut piece, offset as u64));
    // Another part of the file is as it was.
    let other = if offset < 512 << 10 { 900 << 10 } else { 4096 };
    file.read_exact_at(&mut piece, other as u64).unwrap();
    assert_eq!(piece, crate::large_contents()[other..other + 4096]);
    let name = object.file_name().unwrap().to_string_lossy().into_owned();
    let inode = u64::from_str_radix(name.split('.').next().unwrap(), 16).unwrap();
    let named = types::ObjectId::new(types::InodeNumber(inode), 0);
    let expected = format!("checksum mismatch in object {named} on OST0000");
    let log = site.mount_log();
    assert!(log.contains(&expected), "'{expected}' is missing in: {log}");
    let (log, expected) = (site.log(), format!("checksum mismatch target=stria-OST0000 object={named}"));
    assert!(log.contains(&expected), "'{expected}' is missing in: {log}");
    let object = format!("{named} on ");
    site.findings().says(&[&object, found, "1 problem; ", "from a copy", "--repair cannot bring lost data back"]);
}

#[test]
fn flipped_bits_in_an_object_are_errors_with_its_name() {
    let site = Site::running(1);
    let (path, object) = large_file(&site);
    flip(&object, 500_000, 3);
    expect_damage(&site, &path, &object, 499_712, "checksum mismatch in object");
    // Written again, the block is good again.
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&crate::large_contents()[499_712..503_808], 499_712).unwrap();
    assert_eq!(fs::read(&path).unwrap(), crate::large_contents());
    site.expect_clean();
}

#[test]
fn truncated_objects_are_errors_with_their_name() {
    let site = Site::running(1);
    let (path, object) = large_file(&site);
    File::options().write(true).open(&object).unwrap().set_len(600_000).unwrap();
    expect_damage(&site, &path, &object, 700_416, "is too short, 600000 bytes instead of ");
}

#[test]
fn missing_objects_are_errors_with_their_name() {
    let mut site = Site::running(1);
    let (path, object) = large_file(&site);
    site.kill();
    fs::remove_file(&object).unwrap();
    site.serve();
    fails_with_eio(fs::read(&path));
    let missing = format!("its host file objects/{}", object.parent().unwrap().file_name().unwrap().to_string_lossy());
    site.findings().says(&["on stria-OST0000", &missing, "is missing"]);
    // Without reading data, too.
    let found = site.output(&["fsck", "10.77.0.1:/stria"]);
    assert!(found.status == 1 && found.stdout.contains(&missing), "{found:?}");
    // Deleting what is broken works.
    fs::remove_file(&path).unwrap();
    wait_for("the end of the object", TIMEOUT, || {
        (site.output(&["fsck", "10.77.0.1:/stria"]).status == 0).then_some(())
    });
}

/// A user with files there loses nothing by a repair.
#[test]
fn unreferenced_host_files_are_removed_and_files_of_others_are_not() {
    let site = Site::new(1);
    let directory = site.place("up").to_string_lossy().into_owned();
    let mut up = site.daemon("up", &["up", "--dir", &directory, "--osts", "1", "--mount", &site.name("")]);
    up.wait_for("mounted at");
    fs::write(site.file_on("large", 0), crate::large_contents()).unwrap();
    up.stop();
    site.stria(&["fsck", "--data", &directory]);
    let objects = site.place("up/ost0/objects");
    let foreign = [objects.join("junk"), objects.join("6e/zz"), objects.join("0000000000009999.00000000.00")];
    let unreferenced = objects.join("99/0000000000009999.00000000.00");
    for file in foreign.iter().chain([&unreferenced]) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "somebody's").unwrap();
    }
    let found = site.stria(&["fsck", &directory]);
    let named = |file: &Path, problem: &str| {
        let line = format!("{}: {problem}\n", file.display());
        assert!(found.contains(&line), "'{line}' is missing in: {found}");
    };
    foreign.iter().for_each(|file| named(file, "does not belong to StriaFS"));
    named(&unreferenced, "host file that belongs to no object");
    let repaired = site.stria(&["fsck", "--repair", &directory]);
    assert!(
        repaired.contains("host file that belongs to no object (removed)")
            && repaired.contains("3 files not from StriaFS")
    );
    assert!(!unreferenced.exists() && foreign.iter().all(|file| file.exists()), "{repaired}");
    foreign.iter().for_each(|file| fs::remove_file(file).unwrap());
    let json = site.stria(&["fsck", "--data", "--json", &directory]);
    assert!(json.starts_with(r#"{"summary":"clean""#) && json.lines().count() == 1, "{json}");
}

/// The journal segment with the most bytes used: its path and a place after the end of its last
/// record, which may be zeros.
fn journal_end(target: &Path) -> (PathBuf, u64) {
    let used = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
    };
    let segments = files_below(&target.join("journal")).into_iter().filter(|path| !path.ends_with("store"));
    let (path, end) = segments.map(|path| (path.clone(), used(&path))).max_by_key(|(_, end)| *end).unwrap();
    (path, end.next_multiple_of(8) + 8192)
}

/// Files of several sizes, some synced, on object targets.
fn write_files(site: &Site) {
    // Else they begin on the metadata target.
    site.stria(&["lfs", "setstripe", "-c", "1", &site.name("")]);
    for number in 0..40u32 {
        let file = File::create(site.path(format!("f{number}"))).unwrap();
        file.write_all_at(&vec![number as u8 + 1; 1000 * number as usize], 0).unwrap();
        if number % 4 == 0 {
            file.sync_all().unwrap();
        }
    }
}

fn compare_files(site: &Site) {
    for number in 0..40u32 {
        let expected = vec![number as u8 + 1; 1000 * number as usize];
        assert_eq!(fs::read(site.path(format!("f{number}"))).unwrap(), expected, "f{number}");
    }
}

#[test]
fn garbage_behind_a_journals_end_is_a_torn_tail() {
    let mut site = Site::running(1);
    write_files(&site);
    site.kill();
    for target in ["mgs", "mdt0", "ost0"] {
        let (segment, end) = journal_end(&site.place(target));
        let file = File::options().write(true).open(segment).unwrap();
        file.write_all_at(&[0xa5; 5000], end).unwrap();
    }
    site.serve();
    compare_files(&site);
    site.expect_clean();
}

#[test]
fn damage_in_the_middle_of_a_journal_is_refused_with_file_and_offset() {
    let mut site = Site::running(1);
    write_files(&site);
    site.kill();
    for target in ["mdt0", "ost0"] {
        let name = if target == "mdt0" { "stria-MDT0000" } else { "stria-OST0000" };
        let (segment, end) = journal_end(&site.place(target));
        let middle = end / 2;
        flip(&segment, middle, 5);
        let refusal = site.refused(&["serve", &site.config()]);
        refusal.says(&[name, "journal.", "is damaged at byte ", "was flushed before"]);
        let offset =
            refusal.0.split("is damaged at byte ").nth(1).and_then(|rest| rest.split(':').next()?.parse().ok());
        let offset: u64 = offset.unwrap_or_else(|| panic!("{refusal:?}"));
        assert!(offset <= middle && middle - offset < 100_000, "{offset} {middle}");
        flip(&segment, middle, 5);
    }
    site.serve();
    compare_files(&site);
    site.expect_clean();
}

fn copy_tree(from: &Path, to: &Path) {
    program("cp").args(["-a", "--sparse=always"]).args([from, to]).succeed();
}

/// Every flipped bit in the cold store is noticed: the target is refused, an operation fails, or
/// the bit did not matter. What must never happen is that something else is read.
#[test]
fn flipped_bits_in_the_cold_store_never_give_wrong_data() {
    let mut site = Site::running(1);
    write_files(&site);
    site.unmount();
    // A clean end writes everything to the cold store.
    site.stop();
    let mut noticed = 0;
    for target in ["mdt0", "ost0"] {
        let cold = site.place(target).join("cold");
        let saved = site.place("saved");
        copy_tree(&cold, &saved);
        for file in files_below(&saved) {
            let bytes = fs::read(&file).unwrap();
            // Space after the contents does not count.
            let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { continue };
            let name = file.strip_prefix(&saved).unwrap();
            for part in [1, 2, 3] {
                let offset = (last * part / 4) as u64;
                flip(&cold.join(name), offset, 2);
                let trial = Trial::run(&mut site);
                noticed += u32::from(trial != Trial::Unharmed);
                println!("{target} {} byte {offset}: {trial:?}", name.display());
                fs::remove_dir_all(&cold).unwrap();
                copy_tree(&saved, &cold);
            }
        }
        fs::remove_dir_all(&saved).unwrap();
    }
    assert!(noticed > 0, "the bits were flipped where nobody looks");
    site.serve();
    site.mount("rw");
    compare_files(&site);
    site.expect_clean();
}

#[derive(Debug, PartialEq, Eq)]
enum Trial {
    Refused,
    Failed,
    Unharmed,
}

impl Trial {
    /// Starts, reads everything, stops; panics if something reads as what it is not.
    fn run(site: &mut Site) -> Trial {
        if !site.try_serve() {
            return Trial::Refused;
        }
        if !site.try_mount() {
            site.kill();
            return Trial::Failed;
        }
        let mut failed = false;
        for number in 0..40u32 {
            match fs::read(site.path(format!("f{number}"))) {
                Ok(found) => assert_eq!(found, vec![number as u8 + 1; 1000 * number as usize], "f{number}"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "f{number}: {error}");
                    failed = true;
                }
            }
        }
        site.unmount();
        site.kill();
        if failed { Trial::Failed } else { Trial::Unharmed }
    }
}
