//! Invalid configuration files, ports and mounts.

use std::{fs, net::TcpListener, time::Duration};

use crate::{
    common::keys,
    site::{Site, timed},
};

/// Writes a configuration and gives the refusal of `stria serve`.
fn serve_refused(site: &Site, text: &str) -> crate::site::Refusal {
    fs::write(site.place("wrong.toml"), text).unwrap();
    site.refused(&["serve", &site.place("wrong.toml").to_string_lossy()])
}

#[test]
fn wrong_configurations_are_refused_with_key_and_reason() {
    let site = Site::new(1);
    let good = site.config_text();
    for (from, to, expected) in [
        ("memory_mib = 64", "memory_mb = 64", &["unknown field `memory_mb`", "wrong.toml"][..]),
        ("memory_mib = 64", "memory_mib = -1", &["memory_mib"]),
        ("memory_mib = 64", "memory_mib = 1", &["memory_mib"]),
        ("memory_mib = 64", "memory_mib = 9000000000000000", &["memory_mib"]),
        ("memory_mib = 64", "memory_mib = \"much\"", &["memory_mib", "expected u64"]),
        ("role = \"ost\"", "role = \"osd\"", &["unknown variant `osd`", "`ost`"]),
        ("index = 0", "index = 70000", &["index", "u16"]),
        ("run_dir", "mgs = \"10.77.0.2\"\nrun_dir", &["serves the MGS itself"]),
        ("run_dir", "advertise = \":988\"\nrun_dir", &["advertise = \":988\"", "HOST:PORT"]),
        ("index = 0", "index = 65535", &["65535 is reserved"]),
        ("fsname = \"stria\"", "fsname = \"a file system\"", &["cannot name a file system"]),
        ("fsname = \"stria\"\n", "", &["missing field `fsname`"]),
        ("listen = \"10.77.0.1:988\"", "listen = \"10.77.0.1:port\"", &["listen", "10.77.0.1:port"]),
        ("listen = \"10.77.0.1:988\"", "listen = \"\"", &["listen"]),
        ("[[target]]", "[[target", &["wrong.toml", "line"]),
    ] {
        assert!(good.contains(from), "{from}");
        serve_refused(&site, &good.replacen(from, to, 1)).says(expected);
    }
    let refusal = site.refused(&["serve", "/nonexistent/site.toml"]);
    refusal.says(&["/nonexistent/site.toml", "No such file"]);
    assert_eq!(refusal.0.matches("No such file").count(), 1, "{refusal:?}");
    site.refused(&["serve", "/dev/null"]).says(&["missing field"]);
    site.refused(&["serve", &site.place("").to_string_lossy()]).says(&["directory"]);
}

#[test]
fn wrong_parameters_in_a_configuration_are_refused_by_name() {
    let site = Site::new(1);
    let good = site.config_text();
    fs::write(site.config(), format!("{good}\n[parameters]\n\"no.such.parameter\" = 1\n")).unwrap();
    site.refused(&["format", &site.config()]).says(&["no parameter matches 'no.such.parameter'"]);
    let up = site.place("never").to_string_lossy().into_owned();
    site.refused(&["up", "--dir", &up, "--set", "no.such=1"]).says(&["no parameter matches 'no.such'"]);
    assert!(!site.place("never").exists(), "nothing is made for a daemon that is refused");
    fs::write(site.config(), &good).unwrap();
    site.stria(&["format", &site.config()]);
    for (parameters, expected) in [
        ("\"ost.OSS.ost_io.threads_max\" = 0", "ost.OSS.ost_io.threads_max"),
        ("\"ost.OSS.ost_io.threads_max\" = \"many\"", "ost.OSS.ost_io.threads_max"),
        ("\"no.such.parameter\" = 1", "no.such.parameter"),
        ("\"obdfilter.*.stats.more\" = 1", "obdfilter.*.stats.more"),
        ("\"version\" = \"2\"", "version"),
    ] {
        site.configure(&format!("[parameters]\n{parameters}\n"));
        site.refused(&["serve", &site.config()]).says(&[expected]);
    }
    site.configure("[parameters]\n\"ost.OSS.ost_io.threads_max\" = 3\n");
    let mut site = site;
    site.serve();
    assert_eq!(site.ctl(&["get_param", "ost.OSS.ost_io.threads_max"]).trim(), "ost.OSS.ost_io.threads_max=3");
}

#[test]
fn a_port_in_use_and_an_address_of_somebody_else_are_named() {
    let mut site = Site::new(1);
    site.stria(&["format", &site.config()]);
    site.serve();
    let other = site.config_text().replace(&site.place("").to_string_lossy().into_owned(), "/dev/shm/stria-none");
    serve_refused(&site, &other).says(&["/dev/shm/stria-none", "format"]);
    let place = site.place("other");
    let other = site.config_text().replace(&*site.place("").to_string_lossy(), &format!("{}/", place.display()));
    fs::write(site.place("other.toml"), &other).unwrap();
    let config = site.place("other.toml").to_string_lossy().into_owned();
    site.stria(&["format", &config]);
    site.refused(&["serve", &config]).says(&["10.77.0.1:988", "in use"]);
    fs::write(site.place("other.toml"), other.replace("10.77.0.1:988", "192.0.2.1:988")).unwrap();
    site.refused(&["serve", &config]).says(&["192.0.2.1:988", "assign requested address"]);
    fs::write(site.place("other.toml"), other.replace("10.77.0.1:988", "no.such.host.invalid:988")).unwrap();
    site.refused(&["serve", &config]).says(&["no.such.host.invalid:988"]);
}

#[test]
fn the_wrong_management_service_and_none_at_all_are_told_apart() {
    let mut site = Site::new(1);
    let place = site.place("");
    let ost = |fsname: &str, index: u16, mgs: &str| {
        format!(
            "fsname = \"{fsname}\"\nlisten = \"10.77.0.1:989\"\nmgs = \"{mgs}\"\nrun_dir = \"{0}/run2\"\n\
             [[target]]\nrole = \"ost\"\nindex = {index}\ndir = \"{0}/{fsname}-{index}\"\n",
            place.display()
        )
    };
    let config = site.place("ost.toml").to_string_lossy().into_owned();
    site.stria(&["format", &site.config()]);
    site.serve();
    keys::rename(&site.keys(), "other");
    fs::write(&config, ost("other", 7, "10.77.0.1:988")).unwrap();
    site.stria(&["format", &config]);
    site.refused(&["serve", &config]).says(&["other-OST0007", "serves file system 'stria'"]);
    // An index that another target has.
    fs::write(&config, ost("stria", 0, "10.77.0.1:988")).unwrap();
    site.stria(&["format", &config]);
    site.refused(&["serve", &config]).says(&["stria-OST0000", "the index is taken"]);
    // A port where something else listens, here an OST.
    let mount = |source: &str| site.refused(&["mount", "--foreground", source, &site.name("")]);
    mount("10.77.0.1:/other").says(&["the file system at this address is 'stria', not 'other'"]);
    // The user is told at once what the mount waits for, also if it is in the background.
    for arguments in [&["mount", "--foreground"][..], &["mount"]] {
        let mounting = site.output(&[arguments, &["10.77.0.1:1:/stria", &site.name("")]].concat());
        assert_eq!(mounting.status, 1, "{mounting:?}");
        let cause = "MGS 10.77.0.1:1: connection refused; is stria serve running there?";
        assert!(mounting.stderr.contains(&format!("stria: cannot reach {cause}")), "{mounting:?}");
        let said = mounting.stdout + &mounting.stderr;
        assert!(said.contains(&format!("waiting for {cause} (giving up after 30 s)")), "{said}");
    }
}

#[test]
fn what_keeps_a_mount_or_a_server_from_its_management_service_is_named_at_once() {
    let mut site = Site::new(1);
    // Its keys are made with it.
    site.stria(&["format", &site.config()]);
    let mounting = |name: &str, source: &str, cause: &str| {
        let mut daemon = site.daemon(name, &["mount", "--foreground", source, &site.name("")]);
        let (line, took) = timed(|| daemon.wait_for("waiting for"));
        assert!(line.contains(cause), "{line}");
        assert!(took < Duration::from_secs(15), "half of the time it waits: {took:?}");
        daemon.kill();
    };
    mounting("unknown", "no.such.host.invalid:/stria", "MGS no.such.host.invalid:988: does not resolve: ");
    mounting("refused", "10.77.0.1:/stria", "MGS 10.77.0.1:988: connection refused; is stria serve running there?");
    // A port that takes connections and says nothing.
    let listening = site.host.within(|| TcpListener::bind("10.77.0.1:990")).unwrap();
    mounting("silent", "10.77.0.1:990:/stria", "MGS 10.77.0.1:990: no answer; is the host up");
    drop(listening);

    let config = site.place("ost.toml").to_string_lossy().into_owned();
    let place = site.place("").display().to_string();
    let text = format!(
        "fsname = \"stria\"\nlisten = \"10.77.0.1:989\"\nmgs = \"10.77.0.1:988\"\nrun_dir = \"{place}/run2\"\n\
         [[target]]\nrole = \"ost\"\nindex = 7\ndir = \"{place}/ost7\"\n"
    );
    fs::write(&config, text).unwrap();
    site.stria(&["format", &config]);
    let mut waiting = site.daemon("oss", &["serve", &config]);
    let line = waiting.wait_for("waiting for");
    assert!(line.ends_with("MGS 10.77.0.1:988: connection refused; is stria serve running there?"), "{line}");
    let run_dir = site.place("run2").to_string_lossy().into_owned();
    site.refused(&["ctl", "--run-dir", &run_dir, "pool_new", "stria.fast"])
        .says(&["cannot reach MGS 10.77.0.1:988: connection refused"]);
    site.serve();
    waiting.wait_for("registered with MGS 10.77.0.1:988");
    let log = waiting.logged();
    assert_eq!(log.matches("cannot reach MGS 10.77.0.1:988: connection refused").count(), 1, "not once per try: {log}");
    waiting.stop();
}

#[test]
fn a_mount_names_the_metadata_target_it_waits_for() {
    let mut site = Site::new(1);
    let place = site.place("").display().to_string();
    let config = site.place("mds.toml").to_string_lossy().into_owned();
    let text = format!(
        "fsname = \"stria\"\nlisten = \"10.77.0.1:989\"\nmgs = \"10.77.0.1:988\"\nrun_dir = \"{place}/run2\"\n\
         [[target]]\nrole = \"mdt\"\ndir = \"{place}/mdt\"\n"
    );
    fs::write(&config, text).unwrap();
    let service = site.config_text().split("[[target]]").take(2).collect::<Vec<_>>().join("[[target]]");
    assert!(service.contains("\"mgs\"") && !service.contains("\"mdt\""), "{service}");
    fs::write(site.config(), service).unwrap();
    for config in [&site.config(), &config] {
        site.stria(&["format", config]);
    }
    let mut server = site.daemon("mds", &["serve", &config]);
    server.wait_for("waiting for MGS");
    site.serve();
    server.wait_for("registered with MGS 10.77.0.1:988");
    server.stop();
    let mounting = site.output(&["mount", "10.77.0.1:/stria", &site.name("")]);
    assert_eq!(mounting.status, 1, "{mounting:?}");
    let cause = "stria-MDT0000 10.77.0.1:989: connection refused; is stria serve running there?";
    assert!(mounting.stderr.contains(&format!("stria: cannot reach {cause}")), "{mounting:?}");
    let said = mounting.stdout + &mounting.stderr;
    assert!(said.contains(&format!("waiting for {cause} (giving up after 30 s)")), "{said}");
}

#[test]
fn wrong_sources_mount_points_and_options_are_refused() {
    let mut site = Site::running(1);
    let source = "10.77.0.1:/stria";
    let file = site.place("file");
    fs::write(&file, "").unwrap();
    let mount = |source: &str, point: &str, more: &[&str]| {
        site.refused(&[&["mount", "--foreground", source, point], more].concat())
    };
    mount(source, &site.name(""), &[]).says(&["already mounted", site.name("").trim_end_matches('/')]);
    mount(source, "/nonexistent/point", &[]).says(&["/nonexistent/point does not exist"]);
    mount(source, &file.to_string_lossy(), &[]).says(&["file is not a directory"]);
    let point = site.place("second");
    fs::create_dir(&point).unwrap();
    let point = point.to_string_lossy().into_owned();
    mount("/dev/sda1", &point, &[]).says(&["'/dev/sda1' is not a source"]);
    mount("10.77.0.1:/", &point, &[]).says(&["file system name"]);
    mount("10.77.0.1:/much-too-long", &point, &[]).says(&["much-too-long"]);
    mount("10.77.0.1:99999:/stria", &point, &[]).says(&["10.77.0.1:99999"]);
    for (options, expected) in [
        ("frobnicate", "frobnicate"),
        ("timeout=0", "timeout=0: expected seconds"),
        ("timeout=soon", "timeout=soon: expected seconds"),
        ("cpus=", "mount option cpus: expected processors such as 0-3,8"),
        ("cpus=0:x", "mount option cpus: expected processors such as 0-3,8"),
        ("cores=1025", "mount option cores: expected a number of cores from 1 to 1024"),
        ("timeout", "timeout"),
        ("threads=0", "threads=0"),
        ("ro=1", "ro=1"),
    ] {
        mount(source, &point, &["-o", options]).says(&["mount option", expected]);
        // In the background, the reason must come back as well.
        site.refused(&["mount", source, &point, "-o", options]).says(&["mount option", expected]);
    }
    site.refused(&["umount", &point]).says(&["is not a StriaFS mount"]);
    site.refused(&["umount", "/nonexistent/point"]).says(&["/nonexistent/point does not exist"]);
    // After all that, the mount works.
    fs::write(site.path("file"), "fine").unwrap();
    site.unmount();
    site.refused(&["umount", &site.name("")]).says(&["is not a StriaFS mount"]);
    site.mount("ro");
    assert_eq!(fs::write(site.path("file"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(site.path("file")).unwrap(), "fine");
}

#[test]
fn fewer_osts_than_exist_are_refused_by_up() {
    let site = Site::new(1);
    let dir = site.place("up").to_string_lossy().into_owned();
    let mut up = site.daemon("up", &["up", "--dir", &dir, "--osts", "3", "--mount", &site.name("")]);
    up.wait_for("mounted at");
    fs::write(site.path("kept"), "kept").unwrap();
    // A second process on the same directory.
    site.refused(&["up", "--dir", &dir]).says(&["in use by another stria process"]);
    up.stop();
    site.refused(&["up", "--dir", &dir, "--osts", "2"]).says(&["has 3 OSTs", "--osts 2"]);
    fs::rename(site.place("up/ost1"), site.place("away")).unwrap();
    site.refused(&["up", "--dir", &dir]).says(&["up/ost1 is missing", "up/ost2 exists"]);
    fs::rename(site.place("away"), site.place("up/ost1")).unwrap();
    // The last one: nothing in the directory says that it is missing, but the file system does.
    fs::rename(site.place("up/ost2"), site.place("away")).unwrap();
    let mut up = site.daemon("up", &["up", "--dir", &dir, "--mount", &site.name("")]);
    up.wait_for("warning: stria-OST0002 is not in");
    up.wait_for("mounted at");
    up.stop();
    site.refused(&["up", "--dir", &dir, "--osts", "4"])
        .says(&["stria-OST0002 belongs to this file system", "put it back"]);
    assert!(!site.place("up/ost2").exists() && !site.place("up/ost3").exists(), "nothing was made in its place");
    fs::rename(site.place("away"), site.place("up/ost2")).unwrap();
    for (arguments, expected) in [
        (&["--osts", "0"][..], "0"),
        (&["--osts", "many"], "many"),
        (&["--mdts", "0"], "0"),
        (&["--mdts", "65"], "65"),
        (&["--fsname", "much too long"], "cannot name a file system"),
        (&["--fsname", "other"], "holds MGS of file system 'stria'"),
        (&["--set", "nonsense"], "NAME=VALUE"),
        (&["--set", "no.such=1"], "no.such"),
        (&["--cpus", "0-"], "expected processors such as 0-3,8"),
        (&["--cpus", "1023"], "this process may not use processor 1023; allowed: "),
        (&["--cores", "0"], "expected a number of cores from 1 to 1024"),
        (&["--frobnicate"], "frobnicate"),
        (&["--listen", "192.0.2.1:1"], "192.0.2.1:1"),
    ] {
        site.refused(&[&["up", "--dir", &dir, "--mount", &site.name("")], arguments].concat()).says(&[expected]);
    }
    // A mount that is refused leaves no mount point.
    let mut up = site.daemon("up", &["up", "--dir", &dir, "--mount", &site.name("")]);
    up.wait_for("mounted at");
    let point = site.place("other/point").to_string_lossy().into_owned();
    site.refused(&["up", "--dir", &dir, "--mount", &point]).says(&["in use by another stria process"]);
    assert!(!site.place("other").exists());
    up.stop();
}
