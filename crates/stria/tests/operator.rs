//! What an operator of one host does: several file systems side by side, `stria ctl` without a
//! directory, answers for programs.
//!
//! Needs root and FUSE.

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use common::{Daemon, FileSystem, Output, Place, Program, TIMEOUT, Transport, file_system::stria, wait_for};
use serde_json::Value;

/// A `stria up` of its own.
struct Up {
    name: &'static str,
    daemon: Daemon,
    point: PathBuf,
    /// What `--fs` takes.
    source: String,
    run_dir: PathBuf,
}

impl Up {
    fn start(place: &mut Place, name: &'static str) -> Self {
        let (directory, point) = (place.data(name), place.mount_point(name));
        let mut command = stria();
        command.env("STRIA_LOG", "info");
        command.args(["up", "--osts", "2", "--dir"]).arg(&directory).arg("--mount").arg(&point);
        let mut daemon = Daemon::start(name, command, &place.data(&format!("{name}.log")));
        daemon.wait_for("mounted");
        let directory = directory.canonicalize().unwrap();
        Self { name, daemon, point, source: format!("{}:/stria", directory.display()), run_dir: directory.join("run") }
    }

    /// `stria ctl` on this file system only.
    fn ctl(&self, arguments: &[&str]) -> String {
        ctl(&[&["--fs", &self.source], arguments].concat()).succeed()
    }
}

fn ctl(arguments: &[&str]) -> Program {
    Program(stria()).arg("ctl").args(arguments)
}

/// The JSON lines of a program.
fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

/// Two file systems of one name: both are found and named, and nothing is changed by guess.
#[test]
fn ctl_finds_the_daemons_of_its_user_and_changes_only_the_one_that_is_named() {
    let mut place = Place::new();
    let [one, other] = ["one", "other"].map(|name| Up::start(&mut place, name));
    let shown = lines(&ctl(&["--json", "get_param", "timeout"]).succeed());
    for up in [&one, &other] {
        let of_this: Vec<&Value> = shown.iter().filter(|line| line["source"] == *up.source).collect();
        let [answer] = of_this[..] else { panic!("{} answers once: {shown:?}", up.name) };
        assert_eq!(
            (&answer["fsname"], &answer["role"], &answer["value"]),
            (&"stria".into(), &"stria up".into(), &"100".into())
        );
    }
    let heading = |up: &Up| format!("# {}: stria up, process ", up.source);
    let text = ctl(&["get_param", "timeout"]).succeed();
    assert!(text.contains(&heading(&one)) && text.contains(&heading(&other)), "{text}");
    for command in [&["set_param", "timeout=77"][..], &["pool_new", "stria.p"], &["deactivate", "stria-OST0001"]] {
        let Output { status, stderr, .. } = ctl(command).output();
        assert_eq!(status, 1, "{command:?}: {stderr}");
        for up in [&one, &other] {
            assert!(stderr.contains(&format!("--fs {} ", up.source)), "{command:?}: {stderr}");
        }
    }
    other.ctl(&["set_param", "timeout=78"]);
    ctl(&["--run-dir", &one.run_dir.to_string_lossy(), "set_param", "timeout=79"]).succeed();
    let timeout = |up: &Up| up.ctl(&["get_param", "-n", "timeout"]);
    assert_eq!((timeout(&one), timeout(&other)), ("79\n".to_owned(), "78\n".to_owned()));
    assert_eq!(one.ctl(&["pool_list", "stria"]), "Pools from stria:\n");
    let (Up { daemon, source, .. }, gone) = (one, other);
    gone.daemon.kill();
    let refused = ctl(&["--fs", &gone.source, "dl"]).output();
    assert!(refused.status == 1 && !refused.stdout.contains("OST"), "{refused:?}");
    assert!(ctl(&["--fs", &source, "dl"]).succeed().contains("stria-OST0001"));
    daemon.stop();
}

#[test]
fn parameters_are_described() {
    let mut place = Place::new();
    let up = Up::start(&mut place, "up");
    let text = up.ctl(&["list_param", "obdfilter.*OST0000.commit_interval_ms"]);
    let expected = "\
obdfilter.stria-OST0000.commit_interval_ms
    longest time in ms that written data stay unflushed
    can be set; 1 to 86400000; default 1000
";
    assert!(text.ends_with(expected), "{text}");
    // Nothing changes for a while.
    let ages = ["mdt.*.undurable_age_ms", "obdfilter.*.undurable_age_ms"];
    wait_for("everything to be durable", TIMEOUT, || {
        (up.ctl(&[&["get_param", "-n"], &ages[..]].concat()) == "0\n0\n0\n").then_some(())
    });
    for line in lines(&up.ctl(&["--json", "list_param"])) {
        assert!(line["doc"].as_str().is_some_and(|doc| !doc.is_empty()), "{line}");
    }
    up.daemon.stop();
}

/// Of a healthy file system: every line parses, what identifies things is there, and nothing is
/// called damaged.
#[test]
fn what_is_shown_to_people_is_there_for_programs() {
    let mut place = Place::new();
    let up = Up::start(&mut place, "up");
    let (path, file) = (up.point.clone(), up.point.join("file"));
    fs::write(&file, vec![7; 300_000]).unwrap();
    let lfs = |arguments: &[&str], path: &Path| Program(stria()).arg("lfs").args(arguments).arg(path).succeed();
    let df = lines(&lfs(&["df", "--json"], &path));
    let kinds: Vec<&Value> = df.iter().map(|line| &line["kind"]).collect();
    assert_eq!(kinds, ["mdt", "ost", "ost", "summary"]);
    let [layout] = &lines(&lfs(&["getstripe", "--json"], &file))[..] else { panic!("one file, one line") };
    let components = layout["components"].as_array().unwrap();
    assert_eq!((&layout["kind"], &components[0]["pattern"]), (&"file".into(), &"mdt".into()));
    assert!(layout["fid"].as_str().is_some_and(|fid| fid.starts_with("[0x")), "{layout}");
    let Output { status, stderr, .. } = Program(stria()).arg("explain").arg(place.data("up.log")).output();
    assert!(status == 1 && stderr.contains("is not on a StriaFS file system"), "{stderr}");
    assert!(stderr.contains(&*path.to_string_lossy()), "it says where one is: {stderr}");
    let directory = place.data("up");
    up.daemon.stop();
    let log = fs::read_to_string(place.data("up.log")).unwrap();
    assert!(log.contains(" target=stria-MDT0000 "), "{log}");
    assert!(!log.contains("target_name") && !log.contains("target=\""), "names of targets have one form: {log}");
    // Twice, so that the journals have remains of an earlier use.
    for _ in 0..2 {
        let fsck = |options: &[&str]| Program(stria()).arg("fsck").args(options).arg(&directory).succeed();
        assert!(fsck(&[]).ends_with(" 0 problems, 0 repaired\nclean\n"));
        let [summary] = &lines(&fsck(&["--json"]))[..] else { panic!("nothing but the summary") };
        assert_eq!((&summary["summary"], &summary["problems"]), (&"clean".into(), &0.into()));
    }
    let text = Program(stria()).arg("inspect").arg(&directory).succeed();
    assert!(
        text.ends_with("\nno damage found\n") && !text.contains("DAMAGED") && !text.contains("not a record"),
        "{text}"
    );
    let inspected = lines(&Program(stria()).args(["inspect", "--json"]).arg(&directory).succeed());
    let summary = inspected.last().unwrap();
    assert_eq!((&summary["kind"], &summary["targets"], &summary["damage"]), (&"summary".into(), &4.into(), &0.into()));
    // An unreferenced file next to the objects: no problem, and not clean either, in both forms.
    fs::write(directory.join("ost0/objects/unreferenced"), "not ours").unwrap();
    let fsck = Program(stria()).arg("fsck").arg(&directory).succeed();
    assert!(fsck.ends_with("\nno problems; 1 unreferenced file\n"), "{fsck}");
    let found = lines(&Program(stria()).args(["fsck", "--json"]).arg(&directory).succeed());
    assert_eq!((&found[1]["summary"], &found[1]["unreferenced"]), (&"no problems".into(), &1.into()));
    damage(&directory.join("mdt0/stria-target.toml"));
    let Output { status, stdout, .. } = Program(stria()).args(["inspect", "--json"]).arg(&directory).output();
    let damaged = lines(&stdout);
    assert_eq!((status, damaged.iter().filter(|line| line["kind"] == "damage").count()), (1, 2), "{stdout}");
    assert_eq!(damaged.last().unwrap()["damage"], 2, "{stdout}");
}

/// Turns a byte over.
fn damage(path: &Path) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    file.write_all_at(&[!byte[0]], 0).unwrap();
}

/// The end of one request in a log: its line, and its trace id.
fn request<'l>(log: &'l str, parts: &[&str]) -> Option<(&'l str, &'l str)> {
    let line =
        log.lines().find(|line| line.contains("done micros=") && parts.iter().all(|part| line.contains(part)))?;
    let (_, rest) = line.split_once("trace=")?;
    Some((line, &rest[..16]))
}

#[test]
fn a_request_is_found_by_its_trace_id_in_the_logs_of_both_sides() {
    let mut system = FileSystem::start(Transport::Tcp, 1);
    system.set_log("debug");
    system.unmount(0);
    system.kill_server(0);
    system.start_server(0);
    system.mount(0);
    let directory = system.root().join("made");
    fs::create_dir_all(directory.join("inside")).unwrap();
    fs::remove_dir(&directory).unwrap_err();
    for (operation, result) in [("mkdir", "result=\"ok\""), ("rmdir", "result=directory not empty")] {
        let asked = wait_for("the end of a request in the mount's log", TIMEOUT, || {
            let log = system.client_log(0);
            request(&log, &[operation, result]).map(|(_, trace)| trace.to_owned())
        });
        wait_for("the same request in the server's log", TIMEOUT, || {
            request(&system.server_log(0), &["stria-MDT0000", &asked, result]).map(|_| ())
        });
    }
    system.finish();
}
