//! OSTs whose objects are on a device, or in one large file, beside OSTs with host files.

mod common;

use std::{
    fs,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    process::Command,
};

use common::{
    FileSystem, Program, TIMEOUT,
    load::{Load, Random, compare_file},
    programs::program,
    wait_for,
};

/// A block device over a file.
struct LoopDevice {
    device: String,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    fn new(bytes: u64) -> Self {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(bytes).expect("length");
        let device = program("losetup").args(["--find", "--show"]).arg(file.path()).succeed();
        Self { device: device.trim().to_owned(), _file: file }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.device]).status();
        assert!(std::thread::panicking() || detached.is_ok_and(|status| status.success()), "{} stays", self.device);
    }
}

/// What `stria inspect` says of an OST that is not served.
fn inspect(system: &FileSystem, ost: usize) -> String {
    system.shell(&format!("stria inspect {}", system.place().data(&format!("ost{ost}")).display())).succeed()
}

#[test]
fn what_is_acknowledged_survives_the_death_of_the_server() {
    let device = LoopDevice::new(512 << 20);
    let on_device = format!("--device {}", device.device);
    let mut system = FileSystem::start_on_devices(&["--size 512M", &on_device], 2);
    fs::create_dir(system.root().join("wide")).expect("mkdir");
    system.shell("lfs setstripe -c -1 -S 64k $A/wide").succeed();
    let df = system.shell("lfs df $A").succeed();
    let size = |ost: &str| {
        let line = df.lines().find(|line| line.contains(ost)).expect("the OST is listed");
        line.split_whitespace().nth(1).and_then(|size| size.parse::<u64>().ok()).expect("its size in KiB")
    };
    assert_eq!((size("OST0000"), size("OST0001")), (512 << 10, 512 << 10), "{df}");
    let large = Random(1).bytes(100 << 20);
    for round in 0..2 {
        let names = [format!("wide/{round}-0"), format!("wide/{round}-1")];
        names.iter().for_each(|name| fs::create_dir(system.root().join(name)).expect("mkdir"));
        let load = Load::start(system.root(), &[&names[0], &names[1]], round);
        fs::write(system.path(1).join("wide/large"), &large).expect("write");
        load.wait_for_progress(40);
        system.kill_server(1);
        for ost in 0..2 {
            let inspected = inspect(&system, ost);
            assert!(inspected.contains("device") && !inspected.contains("DAMAGE"), "{inspected}");
        }
        system.start_server(1);
        load.wait_for_progress(40);
        load.stop().compare(system.root());
        compare_file(&system.root().join("wide/large"), &large);
        system.check();
    }
    fs::remove_file(system.root().join("wide/large")).expect("unlink");
    system.finish();
}

/// No directory, no link: the configuration names the device, which has everything.
#[test]
fn an_ost_needs_nothing_but_its_device() {
    let device = LoopDevice::new(512 << 20);
    let alone = format!("alone:{}", device.device);
    let mut system = FileSystem::start_on_devices(&["alone --size 512M", &alone], 2);
    let file = system.place().data("ost0");
    fs::create_dir(system.root().join("wide")).expect("mkdir");
    system.shell("lfs setstripe -c 2 -i 0 -S 64k $A/wide").succeed();
    let df = system.shell("lfs df $A").succeed();
    for ost in ["OST0000", "OST0001"] {
        let line = df.lines().find(|line| line.contains(ost)).expect("the OST is listed");
        // A quarter is for the tables.
        assert_eq!(line.split_whitespace().nth(1), Some("393216"), "{df}");
    }
    let large = Random(1).bytes(100 << 20);
    let paths = [file.display().to_string(), device.device.clone()];
    for round in 0..2 {
        let names = [format!("wide/{round}-0"), format!("wide/{round}-1")];
        names.iter().for_each(|name| fs::create_dir(system.root().join(name)).expect("mkdir"));
        let load = Load::start(system.root(), &[&names[0], &names[1]], round);
        fs::write(system.path(1).join("wide/large"), &large).expect("write");
        load.wait_for_progress(40);
        for path in &paths {
            let refused = system.shell(&format!("stria inspect {path}")).output();
            assert!(refused.status != 0 && refused.stderr.contains("in use"), "{}", refused.stderr);
        }
        system.kill_server(1);
        for path in &paths {
            let inspected = system.shell(&format!("stria inspect {path}")).succeed();
            for expected in ["of file system 'stria'", "cold store: batches", "131072 blocks", "chunks: "] {
                assert!(inspected.contains(expected), "{expected}: {inspected}");
            }
            assert!(!inspected.contains("DAMAGE"), "{inspected}");
            let map = system.shell(&format!("stria inspect --map {path}")).succeed();
            assert!(map.contains("131072 blocks of 4 KiB") && map.contains("no damage found"), "{map}");
        }
        system.start_server(1);
        load.wait_for_progress(40);
        load.stop().compare(system.root());
        compare_file(&system.root().join("wide/large"), &large);
        system.check();
    }
    // Of two copies of the label one is enough.
    system.kill_server(1);
    let image = fs::File::options().read(true).write(true).open(&file).expect("open");
    image.write_all_at(&[0; 4096], 0).expect("write");
    system.start_server(1);
    compare_file(&system.root().join("wide/large"), &large);
    let mut label = [0; 8];
    image.read_exact_at(&mut label, 0).expect("read");
    assert_eq!(&label, b"StriaOST", "it was written again");
    // It is a target already, and stays one.
    let configuration = system.place().data("oss.toml");
    let format = |options: &str| system.shell(&format!("stria format {} {options}", configuration.display())).output();
    let refused = format("");
    assert!(refused.status != 0 && refused.stderr.contains("already holds stria-OST"), "{}", refused.stderr);
    assert!(format("--missing-only").stdout.contains("already formatted"));
    fs::remove_file(system.root().join("wide/large")).expect("unlink");
    system.finish();
}

#[test]
fn files_move_between_devices_and_host_files() {
    let system = FileSystem::start_on_devices(&["--size 256M"], 1);
    let path = system.root().join("file");
    let data = Random(7).bytes((9 << 20) + 12345);
    system.shell("lfs setstripe -c 1 -S 1M -i 0 $A/file").succeed();
    fs::write(&path, &data).expect("write");
    for ost in [3, 0] {
        system.shell(&format!("lfs migrate -c 1 -S 1M -o {ost} $A/file")).succeed();
        assert_eq!(system.shell("lfs getstripe -i $A/file").succeed().trim(), ost.to_string());
        compare_file(&path, &data);
    }
    system.shell("cp $A/file $A/copy && cmp $A/file $A/copy && truncate -s 5000000 $A/file").succeed();
    compare_file(&path, &data[..5_000_000]);
    system.finish();
}

#[test]
fn programs_find_what_they_wrote_on_a_device() {
    let system = FileSystem::start_on_devices(&["--size 256M"], 1);
    system.shell("mkdir $A/d && lfs setstripe -c 1 -i 0 $A/d").succeed();
    let fio = "fio --name=x --directory=$A/d --size=24M --ioengine=psync --verify=crc32c --verify_fatal=1 --verify_state_save=0";
    for job in ["--rw=write --bs=1M", "--rw=randwrite --bs=4k --io_size=8M", "--rw=randwrite --bsrange=1k-256k"] {
        system.shell(&format!("{fio} {job} --end_fsync=1")).succeed();
    }
    // Full, and overwritten.
    system.shell("! dd if=/dev/zero of=$A/d/fill bs=1M status=none 2>/dev/null").succeed();
    system.shell("dd if=/dev/urandom of=$A/d/fill bs=1M count=100 conv=notrunc,fsync status=none").succeed();
    system.shell("rm $A/d/fill").succeed();
    // A removed file has its space until the metadata server has told the OST.
    wait_for("space of the removed file", TIMEOUT, || {
        let reserved = system.shell("fallocate -l 100M $A/d/reserved").output();
        (reserved.status == 0).then_some(())
    });
    system.finish();
}

#[test]
fn a_device_in_use_and_one_with_data_are_refused() {
    let device = LoopDevice::new(64 << 20);
    let on_device = format!("--device {}", device.device);
    let mut system = FileSystem::start_on_devices(&[&on_device], 1);
    fs::write(system.root().join("file"), Random(3).bytes(1 << 20)).expect("write");
    let other = system.place().data("other.toml");
    let directory: PathBuf = system.place().data("other");
    let text = format!(
        "fsname = \"stria\"\nlisten = \"127.0.0.1:1\"\nmgs = \"127.0.0.1:2\"\n[[target]]\nrole = \"ost\"\nindex = 9\ndir = \"{}\"\n",
        directory.display()
    );
    fs::write(&other, text).expect("configuration");
    let format = |system: &FileSystem, options: &str| -> common::Output {
        let line: Program = system.shell(&format!("stria format {} --engine blocks {options}", other.display()));
        line.output()
    };
    let image = system.place().data("image");
    fs::write(&image, vec![1; 64 << 20]).expect("image");
    let on_image = format!("--device {}", image.display());
    for (options, expected) in [
        (on_device.as_str(), "it is in use"),
        (&format!("{on_device} --force"), "it is in use"),
        (&on_image, "its first 128 KiB are not all zeros; if they are not needed any more, use --force"),
        ("--device /dev/null", "neither a block device nor a file"),
        ("--size 1M", "--size"),
        ("", "needs --device DEV or --size SIZE"),
    ] {
        let refused = format(&system, options);
        assert!(refused.status != 0 && refused.stderr.contains(expected), "{options}: {}", refused.stderr);
    }
    assert!(fs::read(&image).expect("image").iter().all(|byte| *byte == 1), "it is as it was");
    system.kill_server(1);
    let refused = format(&system, &on_device);
    assert!(refused.status != 0 && refused.stderr.contains("it has the data of stria-OST0000"), "{}", refused.stderr);
    let formatted = format(&system, &format!("{on_image} --force"));
    assert!(formatted.status == 0, "{}", formatted.stderr);
    // Somebody else has the device.
    let serve = || system.shell(&format!("stria serve {}", system.place().data("oss.toml").display())).output();
    let held =
        fs::File::options().read(true).write(true).custom_flags(libc::O_EXCL).open(&device.device).expect("open");
    let server = serve();
    assert!(server.status != 0 && server.stderr.contains("in use"), "{}", server.stderr);
    drop(held);
    // Another device in its place, as after a change of names.
    let link = system.place().data("ost0").join("device");
    fs::rename(&link, link.with_extension("kept")).expect("rename");
    let server = serve();
    assert!(server.status != 0 && server.stderr.contains("is missing"), "{}", server.stderr);
    for (other, expected) in [(&other, "smaller than it was formatted"), (&image, "belongs to stria-OST0009")] {
        std::os::unix::fs::symlink(other, &link).expect("link");
        let server = serve();
        assert!(server.status != 0 && server.stderr.contains(expected), "{}", server.stderr);
        fs::remove_file(&link).expect("unlink");
    }
    let missing = system.place().data("missing");
    std::os::unix::fs::symlink(&missing, &link).expect("link");
    let server = serve();
    assert!(server.status != 0 && server.stderr.contains("No such file"), "{}", server.stderr);
    assert!(!missing.exists(), "it is not made");
    fs::remove_file(&link).expect("unlink");
    fs::rename(link.with_extension("kept"), &link).expect("rename");
    system.start_server(1);
    system.finish();
}

#[test]
fn administrators_see_where_data_are() {
    let mut system = FileSystem::start_on_devices(&["--size 256M"], 1);
    let data = Random(11).bytes(3 << 20);
    let source = system.place().data("source");
    fs::write(&source, &data).expect("write");
    for (name, ost) in [("file", 0), ("hosted", 1)] {
        system.shell(&format!("lfs setstripe -c 1 -S 1M -i {ost} $A/{name}")).succeed();
        // From memory that is aligned: else the kernel makes requests that end within a block.
        system.shell(&format!("dd if={} of=$A/{name} bs=1M conv=notrunc status=none", source.display())).succeed();
    }
    system.shell("lfs setstripe -c 1 -i 0 $A/small && echo text > $A/small && mkdir $A/d && sync -f $A").succeed();
    let shown = system.shell("lfs fiemap $A/file").succeed();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].ends_with("/file is 3145728 (768 blocks of 4096 bytes)"), "{shown}");
    assert!(lines[1].contains("device_logical:"), "{shown}");
    let in_order = lines[2].starts_with("   0:          0..       767:") && lines[2].ends_with(":    768: 0000: last");
    assert!(in_order && lines[3].ends_with("/file: 1 extent found"), "{shown}");
    for (name, expected) in [("hosted", ": 0001: unknown_loc,last\n"), ("small", ":      1: 0000: inline,last\n")] {
        let shown = system.shell(&format!("lfs fiemap $A/{name}")).succeed();
        assert!(shown.contains(expected), "{shown}");
    }
    // The bytes are there.
    let device = system.place().data("ost0").join("device");
    let mut found = vec![0; data.len()];
    for line in system.shell("lfs fiemap --json $A/file").succeed().lines() {
        let extent: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        let number = |name: &str| extent[name].as_u64().expect("a number") as usize;
        let part = number("offset")..number("offset") + number("bytes");
        let opened = fs::File::open(&device).expect("the device");
        opened.read_exact_at(&mut found[part], number("device_offset") as u64).expect("read");
    }
    assert!(found == data);
    for (name, expected) in [("d", "Is a directory"), ("none", "No such file"), ("/etc/passwd", "Inappropriate ioctl")]
    {
        let path = if name.starts_with('/') { name.to_owned() } else { format!("$A/{name}") };
        let refused = system.shell(&format!("lfs fiemap {path}")).output();
        assert!(refused.status != 0 && refused.stderr.contains(expected), "{}", refused.stderr);
    }
    let statistics = system.ctl("get_param -n obdfilter.stria-OST0000.mb_stats");
    assert!(
        statistics.contains("blocks          65536\n") && statistics.contains("groups          2\n"),
        "{statistics}"
    );
    let groups = system.ctl("get_param -n obdfilter.stria-OST0000.mb_groups");
    assert!(groups.lines().count() >= 2 && groups.contains("1 "), "{groups}");
    assert!(system.ctl("get_param -n obdfilter.stria-OST0001.mb_stats").contains("no device"));
    let map = |system: &FileSystem, rest: &str| system.shell(&format!("stria inspect --map {rest}")).output();
    let directory = system.place().data("");
    let place = |name: &str| directory.join(name).display().to_string();
    let (ost, svg, png) = (place("ost0"), place("map.svg"), place("map.png"));
    let refused = map(&system, &ost);
    assert!(refused.status != 0 && refused.stderr.contains("in use by another stria process"), "{}", refused.stderr);
    for (path, expected) in [
        (place("nowhere"), "No such file"),
        (device.display().to_string(), "is the device of stria-OST0000"),
        ("/dev/null".to_owned(), "is not the directory of a target"),
    ] {
        let refused = map(&system, &path);
        assert!(refused.status != 0 && refused.stderr.contains(expected), "{}", refused.stderr);
    }
    system.kill_server(1);
    let refused = map(&system, &place("ost1"));
    assert!(refused.status != 0 && refused.stderr.contains("keeps each object in a file"), "{}", refused.stderr);
    let shown = map(&system, &format!("{ost} --svg {svg} --png {png}"));
    assert_eq!((shown.status, shown.stderr.as_str()), (0, ""));
    for expected in [
        "65536 blocks of 4 KiB in 2 allocation groups, 1.2% used",
        "objects: 1 with 768 blocks in 1 piece; layout score 1.000",
        "free space: 64766 blocks in ",
        "no damage found",
    ] {
        assert!(shown.stdout.contains(expected), "{expected}: {}", shown.stdout);
    }
    let pictured: Vec<&str> = shown.stdout.lines().filter(|line| line.starts_with('|')).collect();
    // A cell of 128 KiB for each of 2048.
    assert_eq!((pictured.len(), pictured[0].chars().count()), (32, 66), "{}", shown.stdout);
    assert_eq!(shown.stdout.chars().filter(|cell| "░▒▓█".contains(*cell)).count(), 24 + 2, "{}", shown.stdout);
    assert!(fs::read_to_string(&svg).expect("the picture").starts_with("<svg "));
    assert!(fs::read(&png).expect("the image").starts_with(b"\x89PNG\r\n"));
    let json = map(&system, &format!("{ost} --json")).stdout;
    let line: serde_json::Value = serde_json::from_str(json.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["kind"], &line["blocks"], &line["pieces"]), (&"map".into(), &65536.into(), &1.into()), "{json}");
    system.start_server(1);
    system.finish();
}
