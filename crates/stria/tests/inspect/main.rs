//! `stria inspect` on a small file system that was written once and is kept unchanged: the output
//! is that of the golden files, damage does not stop the decoding, nothing is changed, and the
//! current program can still use the data.
//!
//! `STRIA_UPDATE_GOLDEN=1 cargo test -p stria --test inspect` rewrites the golden files for the
//! same image: use it when the output has changed. `STRIA_UPDATE_GOLDEN=image` makes a new image
//! first (as root, with FUSE): needed when a format changes so that old images do not open, which
//! must then be stated in docs/disk_format.md.

#[path = "../common/mod.rs"]
mod common;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Once,
};

use common::{
    Daemon, Output, Place, Program, TIMEOUT,
    file_system::stria,
    programs::{program, shell},
    wait_for,
};
use tempfile::TempDir;

/// The inode of the file `large`, whose two objects have host files.
const LARGE: &str = "[0x200000400:0x100:0x0]";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inspect").join(name)
}

/// Whether `STRIA_UPDATE_GOLDEN` is one of these.
fn updating(wanted: &[&str]) -> bool {
    std::env::var_os("STRIA_UPDATE_GOLDEN").is_some_and(|value| wanted.iter().any(|wanted| value == *wanted))
}

/// The image, unpacked.
struct Image {
    place: TempDir,
}

impl Image {
    fn unpack() -> Image {
        static MADE: Once = Once::new();
        if updating(&["image"]) {
            MADE.call_once(make_image);
        }
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        program("tar").args(["-xzSf"]).arg(golden("image.tar.gz")).arg("-C").arg(place.path()).succeed();
        Image { place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join("image").join(name)
    }

    /// Runs `stria inspect` on something in the image; its own path is taken out of what it says.
    fn inspect(&self, name: &str, options: &[&str]) -> Output {
        let path = self.path(name);
        let path = path.to_str().unwrap().trim_end_matches('/');
        let mut output = Program(stria()).arg("inspect").arg(path).args(options).output();
        let root = self.place.path().to_str().unwrap();
        output.stdout = output.stdout.replace(root, "");
        output.stderr = output.stderr.replace(root, "");
        output
    }

    fn flip(&self, name: &str, offset: u64) {
        let file = File::options().read(true).write(true).open(self.path(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
    }

    /// All files with their contents and times.
    fn contents(&self) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
        let mut found = BTreeMap::new();
        let mut directories = vec![self.path("")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    let modified = path.metadata().unwrap().modified().unwrap();
                    found.insert(path.clone(), (fs::read(path).unwrap(), modified));
                }
            }
        }
        found
    }
}

/// Compares with a golden file, or writes it.
#[track_caller]
fn expect_golden(name: &str, found: &str) {
    if updating(&["1", "image"]) {
        return fs::write(golden(name), found).unwrap();
    }
    let expected = fs::read_to_string(golden(name)).unwrap();
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {name}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "lines of {name}");
}

#[test]
fn every_structure_is_decoded_and_nothing_is_changed() {
    let image = Image::unpack();
    let before = image.contents();
    for (name, options) in
        [("totals.txt", &[][..]), ("everything.txt", &["--verbose"]), ("inode.txt", &["--inode", LARGE])]
    {
        let Output { status, stdout, stderr } = image.inspect("", options);
        assert_eq!((status, stderr.as_str()), (0, ""), "{stdout}");
        expect_golden(name, &stdout);
    }
    let Output { status, stdout, .. } = image.inspect("mgs/journal/journal.0", &[]);
    assert_eq!(status, 0);
    expect_golden("segment.txt", &stdout);
    assert!(before == image.contents(), "inspect changed something");
}

#[test]
fn damage_is_described_in_its_place_and_the_rest_is_shown() {
    let image = Image::unpack();
    let whole = image.inspect("", &[]).stdout;
    image.flip("ost0/stria-target.toml", 0);
    image.flip("mgs/journal/store", 20);
    image.flip("mdt0/journal/journal.0", 4096 + 100);
    fs::remove_dir_all(image.path("ost1/cold")).unwrap();
    let Output { status, stdout, stderr } = image.inspect("", &[]);
    assert_eq!(status, 1, "{stdout}{stderr}");
    for expected in [
        "DAMAGED identity: /image/ost0/stria-target.toml: damaged",
        "DAMAGED store: store is damaged at byte 0",
        "DAMAGED journal: journal.",
        "DAMAGED /image/ost1/cold is missing",
    ] {
        assert!(stdout.contains(expected), "'{expected}' is missing in: {stdout}");
    }
    assert!(stderr.contains("damage found in"), "{stderr}");
    // What is not damaged is there as before: the tables of the MDT as the cold store has them,
    // those of the MGS.
    for line in whole.lines().filter(|line| line.contains("  targets: ") || line.contains("  cluster: ")) {
        assert!(stdout.contains(line), "'{line}' is missing in: {stdout}");
    }
}

#[test]
fn damaged_blocks_and_missing_host_files_are_found_by_inode() {
    let image = Image::unpack();
    let objects = |ost: &str| {
        let directory = image.path(ost).join("objects/00");
        fs::read_dir(directory).unwrap().next().unwrap().unwrap().path()
    };
    let first = objects("ost0");
    image.flip(first.strip_prefix(image.path("")).unwrap().to_str().unwrap(), 5 * 4096 + 7);
    fs::remove_file(objects("ost1")).unwrap();
    let Output { status, stdout, .. } = image.inspect("", &["--inode", LARGE]);
    assert_eq!(status, 1, "{stdout}");
    assert!(stdout.contains("at byte 20480: checksum"), "{stdout}");
    assert!(stdout.contains("its host file") && stdout.contains("is missing"), "{stdout}");
}

#[test]
fn what_is_no_target_is_refused() {
    let image = Image::unpack();
    for (path, expected) in [
        ("mdt0/journal", "is neither a target"),
        ("mdt0/journal/store", "is not a journal segment"),
        ("nothing", "cannot inspect"),
    ] {
        let Output { status, stderr, .. } = image.inspect(path, &[]);
        assert_eq!(status, 1);
        assert!(stderr.contains(expected), "{stderr}");
    }
    let Output { status, stderr, .. } = image.inspect("", &["--inode", "nonsense"]);
    assert_eq!(status, 1);
    assert!(stderr.contains("'nonsense' is neither a FID"), "{stderr}");
}

#[test]
fn a_target_in_use_is_refused_and_its_journal_is_readable() {
    let mut place = Place::new();
    let (directory, mut daemon) = start(&mut place, &[]);
    let target = directory.join("mdt0");
    let Output { status, stderr, .. } = Program(stria()).arg("inspect").arg(&target).output();
    assert_eq!(status, 1);
    assert!(stderr.contains("is in use by another stria process"), "{stderr}");
    let text = Program(stria()).arg("inspect").arg(target.join("journal/journal.0")).succeed();
    assert!(text.contains("sessions"), "{text}");
    daemon.stop();
    Program(stria()).arg("inspect").arg(&target).succeed();
    (_, daemon) = start(&mut place, &[]);
    daemon.stop();
}

#[test]
fn the_image_can_still_be_used() {
    let image = Image::unpack();
    let mut place = Place::new();
    fs::rename(image.path(""), place.data("up")).unwrap();
    let (_, daemon) = start(&mut place, &[]);
    let mount = place.mount_point("mnt");
    assert_eq!(fs::read(mount.join("large")).unwrap(), large());
    assert_eq!(fs::read_to_string(mount.join("directory/hard")).unwrap(), "small");
    assert_eq!(fs::read_link(mount.join("link")).unwrap(), Path::new("directory/hard"));
    assert_eq!(fs::read_to_string(mount.join("later")).unwrap(), "written by the second life");
    daemon.stop();
    assert!(Program(stria()).arg("fsck").arg(place.data("up")).arg("--data").succeed().contains(" 0 problems"));
}

fn large() -> Vec<u8> {
    (0..1u32 << 20).map(|number| (number >> 8) as u8).collect()
}

fn start(place: &mut Place, options: &[&str]) -> (PathBuf, Daemon) {
    let (directory, mount) = (place.data("up"), place.mount_point("mnt"));
    let mut command = stria();
    command.arg("up").args(["--osts", "2"]).args(options);
    command.arg("--dir").arg(&directory).arg("--mount").arg(mount);
    let mut daemon = Daemon::start("up", command, &place.data("up.log"));
    daemon.wait_for("mounted");
    (directory, daemon)
}

/// One life that ends well, and one that is killed: there is something in the cold stores and in
/// the journals.
fn make_image() {
    let mut place = Place::new();
    let (directory, daemon) = start(&mut place, &[]);
    let mount = place.mount_point("mnt");
    Program(stria()).args(["lfs", "setstripe", "-c", "2", "-S", "64K"]).arg(mount.join("large")).succeed();
    let file = File::options().write(true).open(mount.join("large")).unwrap();
    file.write_all_at(&large(), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::write(mount.join("small"), "small").unwrap();
    shell("mkdir directory; ln small directory/hard; ln -s directory/hard link; mkfifo fifo; setfattr -n user.colour -v blue small")
        .within(&mount)
        .succeed();
    daemon.stop();
    let (_, daemon) = start(&mut place, &[]);
    fs::write(mount.join("later"), "written by the second life").unwrap();
    fs::write(mount.join("gone"), "removed by the second life").unwrap();
    fs::remove_file(mount.join("gone")).unwrap();
    shell("chmod 600 small; mv fifo directory; setfattr -x user.colour small").within(&mount).succeed();
    // The journal's last record says that those before it are durable: damage in them is no torn
    // end.
    Program(stria()).args(["lfs", "sync"]).arg(&mount).succeed();
    shell("chmod 755 directory").within(&mount).succeed();
    daemon.kill();
    fs::remove_dir_all(directory.join("run")).unwrap();
    let image = directory.with_file_name("image");
    fs::rename(directory, &image).unwrap();
    wait_for("the mount to be detached", TIMEOUT, || {
        rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).ok()
    });
    let parent = image.parent().unwrap();
    shell("find image -name 'journal.*' -exec fallocate --dig-holes {} \\; && tar --sparse --owner=0 --group=0 --sort=name -cf - image | gzip -9n > image.tar.gz")
        .within(parent)
        .succeed();
    fs::copy(parent.join("image.tar.gz"), golden("image.tar.gz")).unwrap();
}
