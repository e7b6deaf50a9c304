//! Devices that are full or become read-only.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
};

use rustix::{
    fs::{FallocateFlags, fallocate, statvfs},
    io::Errno,
};

use crate::{
    common::{TIMEOUT, programs::program, wait_for},
    site::Site,
};

/// A device on which little is left besides the reserve that a target keeps for itself.
const SMALL: &str = "size=300m";

/// Formats, serves and mounts a site with a small device below each of `small`.
fn site_with_small(osts: u16, small: &[&str]) -> Site {
    site_with(osts, small, SMALL)
}

/// With a device of this size below each of `limited`.
fn site_with(osts: u16, limited: &[&str], size: &str) -> Site {
    let mut site = Site::new(osts);
    for directory in limited {
        site.attach(directory, &["-t", "tmpfs", "-o", size, "small"]);
    }
    site.stria(&["format", &site.config()]);
    site.serve();
    site.mount("rw");
    site
}

/// Writes pieces until there is no space; returns how many bytes were written. Anything but ENOSPC
/// is a failure.
fn fill(path: &Path) -> u64 {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    let piece = vec![0x5a; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.write(&piece) {
            Ok(written) => bytes += written as u64,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                return bytes;
            }
        }
    }
}

/// Writes to a file on this target until `lfs df` shows the target as full; returns how many bytes
/// were written. Work in the background gives space back after the first ENOSPC.
#[track_caller]
fn fill_target(site: &Site, path: &Path, target: &str) -> u64 {
    let mut bytes = 0;
    wait_for("a full target", TIMEOUT, || {
        bytes += fill(path);
        let df = site.stria(&["lfs", "df", &site.name("")]);
        df.lines().any(|line| line.contains(target) && line.contains("100%")).then_some(())
    });
    bytes
}

#[test]
fn a_full_target_says_so_keeps_what_it_has_and_recovers_by_deleting() {
    let mut site = site_with_small(1, &["ost0"]);
    fs::write(site.path("before"), vec![1; 100_000]).unwrap();
    let filled = fill_target(&site, &site.path("big"), "OST0000");
    assert!(filled > 16 << 20, "a small device is not full after {filled} bytes");
    assert_eq!(fs::metadata(site.path("big")).unwrap().len(), filled);
    assert_eq!(fs::read(site.path("before")).unwrap(), vec![1; 100_000]);
    assert_eq!(fs::read(site.path("big")).unwrap(), vec![0x5a; filled as usize]);
    // A restart of a full target works as well.
    site.kill();
    site.serve();
    assert_eq!(fs::read(site.path("big")).unwrap(), vec![0x5a; filled as usize]);
    fs::remove_file(site.path("big")).unwrap();
    wait_for("the space of the deleted file", TIMEOUT, || fs::write(site.path("after"), vec![2; 8 << 20]).ok());
    assert_eq!(fs::read(site.path("after")).unwrap(), vec![2; 8 << 20]);
    site.expect_clean();
}

/// Size of a file system, and what it has for users.
fn space_of(path: &Path) -> (u64, u64) {
    let space = statvfs(path).unwrap();
    (space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize)
}

/// `df` showed four times the disk, and writers met its end at a quarter of that.
#[test]
fn targets_in_directories_of_one_device_show_its_space_once_and_fill_it() {
    let mut site = Site::new(4);
    attach_ext4(&mut site, "disk", 2048);
    let below = |text: String, target: &str| text.replace(&format!("/{target}\""), &format!("/disk/{target}\""));
    let config = ["mdt0", "ost0", "ost1", "ost2", "ost3"].into_iter().fold(site.config_text(), below);
    fs::write(site.config(), config).unwrap();
    site.stria(&["format", &site.config()]);
    site.serve();
    site.mount("rw");
    let (device_bytes, _) = space_of(&site.place("disk"));
    let (bytes, promised) = space_of(&site.path(""));
    assert_eq!(bytes, device_bytes);
    let filled = fill(&site.path("big"));
    // Tables grow with the data, and give back what they had when they are rewritten.
    let about = promised / 20 * 19..promised / 20 * 21;
    assert!(about.contains(&filled), "{filled} of {promised} bytes");
    let (_, left) = space_of(&site.path(""));
    assert!(left < device_bytes / 50, "{left} bytes are said to be left");
    let df = site.stria(&["lfs", "df", &site.name("")]);
    assert!(df.ends_with("\none device, counted once: MDT:0 OST:0 OST:1 OST:2 OST:3\n"), "{df}");
    fs::remove_file(site.path("big")).unwrap();
    wait_for("the space of the deleted file", TIMEOUT, || (space_of(&site.path("")).1 > promised / 2).then_some(()));
    site.expect_clean();
}

#[test]
fn targets_on_two_devices_show_the_space_of_both() {
    let site = site_with_small(2, &["ost0", "ost1"]);
    let (one, two) = (space_of(&site.place("ost0")).0, space_of(&site.place("ost1")).0);
    assert_eq!(space_of(&site.path("")).0, one + two);
    let json = site.stria(&["lfs", "df", "-o", "--json", &site.name("")]);
    let lines: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_ne!(lines[0]["device"], lines[1]["device"], "{json}");
    assert!(lines[0]["device"].is_string(), "{json}");
    assert_eq!(lines[2]["bytes_total"], one + two, "{json}");
}

#[test]
fn new_files_find_space_as_long_as_any_target_has_some() {
    let site = site_with_small(3, &["ost0", "ost1"]);
    site.file_on("big", 0);
    fill(&site.path("big"));
    let write = |number: u8| fs::write(site.path(format!("f{number}")), vec![number; 1 << 20]).unwrap();
    (0..100).for_each(write);
    // Filled by somebody else: neither the metadata server nor the target knows before a write is
    // refused.
    let ballast = site.place("ost1/ballast");
    fill(&ballast);
    (100..200).for_each(write);
    for number in 100..200 {
        assert_eq!(site.ost_of(&format!("f{number}")), 2);
    }
    fs::remove_file(ballast).unwrap();
    for number in 0..200u8 {
        assert_eq!(fs::read(site.path(format!("f{number}"))).unwrap(), vec![number; 1 << 20]);
    }
    site.expect_clean();
}

/// Targets that are not full may still not have room for so much at once.
#[test]
fn a_reservation_larger_than_the_file_system_is_refused_and_leaves_it_usable() {
    let site = site_with_small(2, &["ost0", "ost1"]);
    let path = site.path("large");
    let file = File::create_new(&path).unwrap();
    let reserve = |offset: u64, bytes: u64| fallocate(&file, FallocateFlags::empty(), offset, bytes);
    assert_eq!(reserve(300 << 30, 20 << 30), Err(Errno::NOSPC), "more than is asked for without a look at the space");
    assert_eq!(reserve(0, 900 << 20), Err(Errno::NOSPC));
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 1);
    drop(file);
    fs::remove_file(path).unwrap();
    wait_for("the space of the deleted file", TIMEOUT, || fs::write(site.path("after"), vec![2; 8 << 20]).ok());
    assert_eq!(fs::read(site.path("after")).unwrap(), vec![2; 8 << 20]);
    site.expect_clean();
}

/// Bytes of the files that [`make_on`] makes.
const MADE_BYTES: usize = 3_000_100;

/// A file with an automatic layout and its data, all of ones, whose first stripe is on this OST.
/// Files that were placed elsewhere remain under other names: the space of removed ones would come
/// back at some later time.
#[track_caller]
fn make_on(site: &Site, name: &str, ost: u16) {
    let mut attempts = 0;
    wait_for("placement on the target", TIMEOUT, || {
        let is_written = fs::write(site.path(name), vec![1; MADE_BYTES]).is_ok();
        let is_there = is_written && site.ost_of(name) == ost;
        if !is_there && site.path(name).exists() {
            attempts += 1;
            fs::rename(site.path(name), site.path(format!("{name}.{attempts}"))).unwrap();
        }
        is_there.then_some(())
    });
}

/// Its data stay where they are, and what is written from then on goes elsewhere, whichever client
/// has it open.
#[test]
fn a_file_goes_on_elsewhere_when_its_target_fills_up() {
    let site = site_with_small(2, &["ost0"]);
    site.ctl(&["set_param", "obdfilter.stria-OST0001.no_create=1"]);
    make_on(&site, "log", 0);
    site.ctl(&["set_param", "obdfilter.stria-OST0001.no_create=0"]);
    make_on(&site, "probe", 1);
    let reader = File::open(site.path("log")).unwrap();
    let ballast = site.place("ost0/ballast");
    fill(&ballast);
    std::thread::scope(|scope| {
        for mark in [2, 3] {
            let mut log = File::options().append(true).open(site.path("log")).unwrap();
            scope.spawn(move || (0..200).for_each(|_| log.write_all(&[mark; 10_007]).unwrap()));
        }
    });
    assert_eq!(site.ost_of("log"), 1);
    let mut data = vec![0; 3_000_100 + 400 * 10_007];
    reader.read_exact_at(&mut data, 0).unwrap();
    let (before, lines) = data.split_at(3_000_100);
    assert!(before.iter().all(|byte| *byte == 1));
    assert!(lines.chunks(10_007).all(|line| line.iter().all(|byte| *byte == line[0])));
    let of = |mark: u8| lines.chunks(10_007).filter(|line| line[0] == mark).count();
    assert_eq!((of(2), of(3)), (200, 200));
    assert_eq!(fs::metadata(site.path("log")).unwrap().len(), data.len() as u64);
    fs::remove_file(&ballast).unwrap();
    site.expect_clean();
    fs::remove_file(site.path("log")).unwrap();
}

/// What it has is overwritten where it lies, as often as one likes; what it gets lies elsewhere,
/// after its end, in holes and after these.
#[test]
fn a_file_on_a_full_target_is_overwritten_and_grows() {
    let site = site_with_small(2, &["ost0"]);
    site.ctl(&["set_param", "obdfilter.stria-OST0001.no_create=1"]);
    make_on(&site, "file", 0);
    site.file_on("chosen", 0);
    let filled = fill_target(&site, &site.path("chosen"), "OST0000");
    site.ctl(&["set_param", "obdfilter.stria-OST0001.no_create=0"]);
    let file = File::options().read(true).write(true).open(site.path("file")).unwrap();
    for mark in 2..6 {
        file.write_all_at(&vec![mark; MADE_BYTES], 0).unwrap();
        file.sync_all().unwrap();
    }
    let far = 40 << 20;
    let mut expected = vec![0; far + 5000];
    expected[..MADE_BYTES].fill(5);
    for (start, bytes, mark) in
        [(MADE_BYTES, 2 << 20, 6), (far, 5000, 7), (20 << 20, 1 << 20, 8), (1_000_000, 4 << 20, 9)]
    {
        file.write_all_at(&vec![mark; bytes], start as u64).unwrap();
        expected[start..start + bytes].fill(mark);
    }
    assert!(fs::read(site.path("file")).unwrap() == expected);
    // If the target was chosen explicitly, the choice is kept: data there can be overwritten, and
    // no more fit.
    let chosen = File::options().read(true).write(true).open(site.path("chosen")).unwrap();
    chosen.write_all_at(&vec![9; 4 << 20], 0).unwrap();
    chosen.sync_all().unwrap();
    // (Some room may have come back meanwhile.)
    let filled = filled + fill(&site.path("chosen"));
    let data = fs::read(site.path("chosen")).unwrap();
    assert!(data.len() as u64 == filled && data[..4 << 20].iter().all(|byte| *byte == 9));
    drop((file, chosen));
    site.expect_clean();
}

/// The tables of a metadata target have their device to themselves until somebody else fills it:
/// creating ends with ENOSPC and nothing else, reading and removing continue, and so does
/// everything once there is space, without a restart.
#[test]
fn a_metadata_target_without_space_says_so_and_goes_on_when_it_has_some() {
    let mut site = site_with_small(1, &["mdt0"]);
    let make = |directory: &str, number: usize| {
        let path = site.path(format!("{directory}/{number}-{}", "x".repeat(200)));
        File::create(path).map(drop)
    };
    fs::create_dir(site.path("before")).unwrap();
    (0..2000).for_each(|number| make("before", number).unwrap());
    for round in 0..2 {
        let directory = format!("round{round}");
        fs::create_dir(site.path(&directory)).unwrap();
        let ballast = site.place("mdt0/ballast");
        fill(&ballast);
        let refused = (0..100_000).find_map(|number| make(&directory, number).err());
        assert_eq!(refused.expect("the device is full").raw_os_error(), Some(libc::ENOSPC));
        fill_target(&site, &ballast, "MDT0000");
        // A reader of the directory would note it there; a program that removes everything reads it
        // again and again.
        let read = || fs::read_dir(site.path("before")).unwrap().map(Result::unwrap).count();
        assert_eq!(read(), 2000 - 1000 * round);
        fs::remove_file(site.path(format!("before/{}-{}", 1000 * round, "x".repeat(200)))).unwrap();
        assert_eq!(read(), 1999 - 1000 * round);
        for number in 1000 * round + 1..1000 * (round + 1) {
            let path = site.path(format!("before/{number}-{}", "x".repeat(200)));
            assert_eq!(fs::metadata(&path).unwrap().len(), 0);
            fs::remove_file(&path).unwrap();
        }
        fs::remove_file(&ballast).unwrap();
        wait_for("creating", TIMEOUT, || make(&directory, 200_000).ok());
        (200_001..201_000).for_each(|number| make(&directory, number).unwrap());
    }
    let names = |directory: &str| fs::read_dir(site.path(directory)).unwrap().count();
    let before = (names("before"), names("round0"), names("round1"));
    assert_eq!(before.0, 0);
    site.expect_clean();
    site.kill();
    site.serve();
    let names = |directory: &str| fs::read_dir(site.path(directory)).unwrap().count();
    assert_eq!((names("before"), names("round0"), names("round1")), before);
    site.expect_clean();
}

/// What is left of a metadata target's device is for names: files go to the object storage targets
/// from their first byte on, also where a directory's default would put their beginning on the
/// metadata target; only a file that asks for that still gets it.
#[test]
fn a_metadata_target_with_little_space_keeps_it_for_names() {
    // Room besides the journal, the reserve of up to 96 MiB and what is kept for names, an eighth.
    let site = site_with(1, &["mdt0"], "size=700m");
    let try_write = |name: &str| {
        fs::write(site.path(name), vec![7; 50_000])?;
        std::io::Result::Ok(site.stria(&["lfs", "getstripe", &site.name(name)]).contains("mdt"))
    };
    let on_mdt = |name: &str| try_write(name).unwrap();
    fs::create_dir(site.path("default")).unwrap();
    site.stria(&["lfs", "setstripe", "-E", "64K", "-L", "mdt", "-E", "-1", &site.name("default")]);
    assert!(on_mdt("before") && on_mdt("default/before"));
    let ballast = site.place("mdt0/ballast");
    let filled = fill(&ballast);
    File::options().write(true).open(&ballast).unwrap().set_len(filled - (130 << 20)).unwrap();
    let mut number = 0;
    wait_for("a file without data on the metadata target", TIMEOUT, || {
        number += 1;
        // For a moment it may be known as full.
        (!try_write(&format!("after{number}")).ok()?).then_some(())
    });
    assert!(!on_mdt("default/after"));
    site.stria(&["lfs", "setstripe", "-E", "64K", "-L", "mdt", "-E", "-1", &site.name("asked")]);
    assert!(on_mdt("asked"));
    fs::remove_file(&ballast).unwrap();
    wait_for("data on the metadata target", TIMEOUT, || {
        number += 1;
        on_mdt(&format!("after{number}")).then_some(())
    });
    site.expect_clean();
}

/// An ext4 on a file, mounted on a directory of the site.
fn attach_ext4(site: &mut Site, directory: &str, mib: u64) -> String {
    let image = site.place(&format!("{directory}.img")).to_string_lossy().into_owned();
    File::create(&image).and_then(|file| file.set_len(mib << 20)).unwrap();
    program("mkfs.ext4").args(["-q", "-E", "root_owner=0:0", "-O", "^has_journal", &image]).succeed();
    site.attach(directory, &["-o", "loop,errors=remount-ro", &image]);
    let point = site.place(directory);
    fs::remove_dir(point.join("lost+found")).unwrap();
    let device = program("findmnt").args(["-n", "-o", "SOURCE"]).arg(&point).succeed();
    device.trim().trim_start_matches("/dev/").to_owned()
}

/// Small files live in the tables of their target, whose space comes back by rewriting them. (What
/// comes back of the tables' journals, which may have half of this small a device, differs from
/// time to time.)
#[test]
fn a_device_full_of_small_files_takes_as_many_again_once_they_are_deleted() {
    let mut site = Site::new(1);
    attach_ext4(&mut site, "ost0", 768);
    site.stria(&["format", &site.config()]);
    site.serve();
    site.mount("rw");
    let contents = |number: usize| vec![number as u8; 60 << 10];
    let write = |round: usize, number: usize| fs::write(site.path(format!("{round}/{number}")), contents(number));
    // Else they begin on the metadata target.
    site.stria(&["lfs", "setstripe", "-c", "1", &site.name("")]);
    // More than the device has room for.
    let mut files = (768 << 20) / (60 << 10);
    for round in 0..4 {
        fs::create_dir(site.path(format!("{round}"))).unwrap();
        for number in 0..files {
            if let Err(error) = write(round, number) {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                if round == 0 {
                    assert!(number > 2000, "{number} files on a device of 768 MiB");
                    files = number / 2;
                    break;
                }
                // Rewriting tables is work that waits for others on a busy machine.
                wait_for("the space of deleted files", TIMEOUT * 4, || {
                    let written = write(round, number);
                    let is_full = written.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC));
                    (!is_full).then_some(written)
                })
                .unwrap();
            }
        }
        assert!(files < 7000, "the device was never full");
        for number in (0..files).step_by(97) {
            assert_eq!(fs::read(site.path(format!("{round}/{number}"))).unwrap(), contents(number));
        }
        fs::remove_dir_all(site.path(format!("{round}"))).unwrap();
    }
    site.expect_clean();
}

#[test]
fn a_device_that_turns_read_only_is_shown_and_avoided_and_its_files_stay_readable() {
    let mut site = Site::new(2);
    let device = attach_ext4(&mut site, "ost0", 512);
    site.stria(&["format", &site.config()]);
    site.serve();
    site.mount("rw");
    // Where a file is placed shows at its creation.
    site.ctl(&["set_param", "lod.*.automatic=0"]);
    let path = site.file_on("there", 0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&vec![3; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    // As the kernel does it when the device fails.
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "test").unwrap();

    let error = wait_for("the error of the device", TIMEOUT, || file.write_at(&[4; 100_000], 0).err());
    assert!([Some(libc::EROFS), Some(libc::EIO)].contains(&error.raw_os_error()), "{error}");
    wait_for("R in lfs df", TIMEOUT, || {
        let df = site.stria(&["lfs", "df", &site.name("")]);
        df.lines().any(|line| line.contains("OST:0]") && line.trim_end().ends_with('R')).then_some(())
    });
    let failure = site.ctl(&["get_param", "-n", "obdfilter.stria-OST0000.failure"]);
    assert!(failure.contains("Read-only file system") || failure.contains("os error 30"), "{failure}");
    // The MDT hears of it when it asks the next time.
    wait_for("placement without the target", TIMEOUT, || {
        let refused = site.output(&["lfs", "setstripe", "-i", "0", &site.name("refused")]);
        let _ = fs::remove_file(site.path("refused"));
        (refused.status != 0).then_some(())
    });
    for number in 0..8 {
        let name = format!("new{number}");
        fs::write(site.path(&name), vec![5; 100_000]).unwrap();
        assert_eq!(site.ost_of(&name), 1);
    }
    // Where a write failed, either contents may be found; everywhere else what was synced.
    let synced = |path: &Path| fs::read(path).unwrap()[100_000..] == vec![3; (1 << 20) - 100_000];
    assert!(synced(&path));
    drop(file);
    site.unmount();
    site.kill();

    // The operator repairs the file system and mounts it again.
    let (point, image) = (site.place("ost0"), site.place("ost0.img"));
    program("umount").arg(&point).succeed();
    // Another test's name space of mounts may hold a copy of this one. Until that ends the kernel
    // keeps the file system, and mount(8) would mount it again as it is: read-only.
    wait_for("the end of the file system in the kernel", TIMEOUT * 4, || {
        (!Path::new("/sys/fs/ext4").join(&device).exists()).then_some(())
    });
    let repaired = program("e2fsck").args(["-f", "-p"]).arg(&image).output();
    assert!(repaired.status <= 1, "{repaired:?}");
    program("mount").args(["-o", "loop"]).args([&image, &point]).succeed();
    site.serve();
    site.mount("rw");
    assert!(synced(&path));
    fs::write(&path, "again").unwrap();
    site.expect_clean();
}
