//! Directories that do not contain what the configuration says.

use std::{fs, time::Duration};

use crate::{
    common::programs::program,
    site::{Site, timed},
};

#[test]
fn format_touches_only_empty_directories() {
    let site = Site::new(1);
    let ost = site.place("ost0");
    fs::create_dir(&ost).unwrap();
    fs::write(ost.join("thesis.tex"), "years of work").unwrap();
    site.refused(&["format", &site.config()]).says(&["stria-OST0000", "is not empty", "thesis.tex"]);
    assert_eq!(fs::read_to_string(ost.join("thesis.tex")).unwrap(), "years of work");
    assert_eq!(fs::read_dir(&ost).unwrap().count(), 1, "nothing was added");
    fs::remove_file(ost.join("thesis.tex")).unwrap();
    assert!(!site.place("mgs").exists() && !site.place("mdt0").exists(), "nothing was made before the refusal");
    site.stria(&["format", "--missing-only", &site.config()]);
    site.refused(&["format", &site.config()]).says(&["already holds MGS"]);
    fs::remove_dir_all(&ost).unwrap();
    fs::write(&ost, "a file").unwrap();
    site.refused(&["format", "--missing-only", &site.config()]).says(&["ost0 is not a directory"]);
    site.refused(&["serve", &site.config()]).says(&["ost0"]);
}

/// A device of 600 MB was formatted, and had no room for a file afterwards.
#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let mut site = Site::new(1);
    site.attach("small", &["-t", "tmpfs", "-o", "size=600m", "small"]);
    let small = site.place("small");
    let entries = || fs::read_dir(&small).unwrap().count();
    let (dir, file, point) = (small.join("up"), site.place("file"), site.place("point"));
    fs::write(&file, "text").unwrap();
    let [dir_name, file_name, point_name] = [&dir, &file, &point].map(|path| path.to_string_lossy().into_owned());
    let up = ["up", "--dir", &dir_name, "--mount"];
    site.refused(&[&up[..], &[&point_name]].concat()).says(&[
        "small has 600 MiB free",
        "the MGS, 1 MDT, 4 OSTs there need 744 MiB",
        "a larger device, or fewer OSTs",
    ]);
    assert!(entries() == 0 && !point.exists());
    program("mount").args(["-o", "remount,size=744m"]).arg(&small).succeed();
    site.refused(&[&up[..], &[&file_name]].concat()).says(&["file is not a directory"]);
    site.refused(&[&up[..], &[&format!("{file_name}/below")]].concat()).says(&["is not a directory"]);
    // Where the kernel makes all entries; parameters that no process takes; a file in place of the
    // directory.
    site.refused(&[&up[..], &["/proc/stria"]].concat())
        .says(&["cannot create the mount point", "cannot create anything in /proc"]);
    for wrong in ["timeout=soon", "obdfilter.*.readonly=2", "lod.*.nonsense=1"] {
        site.refused(&[&up[..], &[&point_name, "-p", wrong]].concat()).says(&["cannot set", wrong]);
    }
    site.refused(&["up", "--dir", &file_name]).says(&["file is not a directory; name a new or empty one"]);
    assert!(entries() == 0 && !point.exists());
    // Nobody is asked for what cannot be mounted anyway.
    let mount = |point: &str| site.refused(&["mount", "10.77.0.1:1:/stria", point]);
    let (refused, took) = timed(|| mount(&file_name));
    refused.says(&["file is not a directory"]);
    assert!(took < Duration::from_secs(10), "{took:?}");
    mount(&point_name).says(&["point does not exist"]);
    // As much as was said to be needed is enough to begin with.
    let mut daemon = site.daemon("up", &[&up[..], &[&point_name]].concat());
    daemon.wait_for("mounted at");
    fs::write(point.join("file"), vec![7; 8 << 20]).unwrap();
    assert_eq!(fs::read(point.join("file")).unwrap(), vec![7; 8 << 20]);
    site.refused(&["up", "--dir", &format!("{dir_name}2"), "--mount", &point_name]).says(&["already mounted"]);
    assert!(!small.join("up2").exists());
    daemon.stop();
}

#[test]
fn targets_that_are_somebody_elses_are_refused() {
    let site = Site::new(2);
    site.refused(&["serve", &site.config()]).says(&["mgs is not a StriaFS target", "stria format"]);
    site.stria(&["format", &site.config()]);
    let good = site.config_text();
    let refuse = |text: String, expected: &[&str]| {
        fs::write(site.place("site.toml"), text).unwrap();
        site.refused(&["serve", &site.config()]).says(expected);
    };
    refuse(
        good.replace("fsname = \"stria\"", "fsname = \"other\""),
        &["holds MGS of file system 'stria'", "file system 'other'"],
    );
    refuse(
        good.replace("index = 1", "index = 9"),
        &["ost1 holds stria-OST0001", "the configuration says stria-OST0009"],
    );
    refuse(
        good.replace("/mdt0\"", "/swap\"").replace("/ost0\"", "/mdt0\"").replace("/swap\"", "/ost0\""),
        &["ost0 holds stria-OST0000", "the configuration says stria-MDT0000"],
    );
    // Renamed directories whose identity fits but whose tables are another target's.
    let identity = |target: &str| site.place(target).join("stria-target.toml");
    let [first, second] = ["ost0", "ost1"].map(|target| fs::read_to_string(identity(target)).unwrap());
    fs::write(identity("ost0"), &second).unwrap();
    fs::write(identity("ost1"), &first).unwrap();
    refuse(
        good.replace("index = 0", "index = 7").replace("index = 1", "index = 0").replace("index = 7", "index = 1"),
        &["cannot open stria-OST0001 in", "stria-OST0000 is here"],
    );
    // Versions of the past and of the future.
    for (version, expected) in [("1", "ost0 has format version 1"), ("3", "ost0 has format version 3")] {
        let other = first.replace("format_version = 2", &format!("format_version = {version}"));
        assert_ne!(other, first);
        fs::write(identity("ost0"), other).unwrap();
        fs::write(identity("ost1"), &second).unwrap();
        refuse(good.clone(), &[expected, "reads version 2"]);
    }
    fs::write(identity("ost0"), "format_version = 2\nfsname = \"str").unwrap();
    refuse(good.clone(), &["stria-target.toml: damaged"]);
    fs::write(identity("ost0"), &first).unwrap();
    let mut site = site;
    site.configure("");
    site.serve();
    site.mount("rw");
    fs::write(site.path("fine"), "fine").unwrap();
}

#[test]
fn stores_of_another_version_or_target_are_refused_by_file() {
    let mut site = Site::running(2);
    fs::write(site.path("kept"), vec![7; 300_000]).unwrap();
    site.unmount();
    site.stop();
    let store = site.place("mdt0/journal/store");
    let good = fs::read(&store).unwrap();
    let mut future = good.clone();
    future[8] = 9;
    let sum = crc_fast::crc32_iscsi(&future[..60]);
    future[60..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&store, &future).unwrap();
    site.refused(&["serve", &site.config()]).says(&["stria-MDT0000", "store has format version 9"]);
    fs::write(&store, fs::read(site.place("mgs/journal/store")).unwrap()).unwrap();
    site.refused(&["serve", &site.config()]).says(&["stria-MDT0000", "belongs to store"]);
    fs::write(&store, [0; 64]).unwrap();
    site.refused(&["serve", &site.config()]).says(&["stria-MDT0000", "store"]);
    fs::write(&store, &good).unwrap();
    fs::rename(site.place("mdt0/cold"), site.place("mdt0/colder")).unwrap();
    site.refused(&["serve", &site.config()]).says(&["stria-MDT0000", "mdt0/cold is missing"]);
    let _ = fs::remove_dir_all(site.place("mdt0/cold"));
    fs::rename(site.place("mdt0/colder"), site.place("mdt0/cold")).unwrap();
    fs::rename(site.place("ost1/objects"), site.place("ost1/away")).unwrap();
    site.refused(&["serve", &site.config()]).says(&["stria-OST0001", "ost1/objects is missing"]);
    let _ = fs::remove_dir_all(site.place("ost1/objects"));
    fs::rename(site.place("ost1/away"), site.place("ost1/objects")).unwrap();
    site.serve();
    site.mount("rw");
    assert_eq!(fs::read(site.path("kept")).unwrap(), vec![7; 300_000]);
    site.expect_clean();
}

#[test]
fn one_process_serves_a_directory() {
    let mut site = Site::running(1);
    let other = site.config_text().replace("10.77.0.1:988", "10.77.0.1:989");
    fs::write(site.place("other.toml"), other).unwrap();
    let other = site.place("other.toml").to_string_lossy().into_owned();
    site.refused(&["serve", &other]).says(&["is in use by another stria process"]);
    site.refused(&["format", &site.config()]).says(&["already holds MGS"]);
    fs::write(site.path("file"), "fine").unwrap();
    site.kill();
    site.serve();
    assert_eq!(fs::read_to_string(site.path("file")).unwrap(), "fine");
}
