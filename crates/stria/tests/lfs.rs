//! `lfs` on mounts: formats, exit statuses and errors, for root and for other users.

mod common;

use std::{
    ffi::OsStr,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, chown},
    },
    path::Path,
};

use common::{
    FileSystem, Output, Transport, console,
    file_system::stria,
    programs::{copy_program, program},
};

/// A session whose output has Lustre's columns.
const FORMATS: &str = include_str!("lfs/formats.console");
/// The same for layouts of components.
const COMPOSITE: &str = include_str!("lfs/composite.console");
/// Searches.
const FIND: &str = include_str!("lfs/find.console");
/// Where directories are, with the commands that were captured, on as many MDTs.
const DIRECTORIES: &str = include_str!("lfs/directories.console");
const EDGE_CASES: &str = include_str!("lfs/edge_cases.tsv");

/// Ids of nobody and nogroup.
const NOBODY: u32 = 65534;

#[test]
fn layouts_fids_and_targets_are_shown_in_lustres_formats() {
    let system = FileSystem::start(Transport::Tcp, 1);
    system.end_automatic_layouts();
    let examples = console::examples((1..).zip(FORMATS.lines()));
    assert!(examples.len() > 40, "examples are missing");
    console::run(&system, "lfs/formats.console", &examples);
    system.finish();
}

#[test]
fn components_are_shown_and_changed_as_in_lustre() {
    let system = FileSystem::start(Transport::InProcess, 1);
    system.end_automatic_layouts();
    let examples = console::examples((1..).zip(COMPOSITE.lines()));
    assert!(examples.len() > 25, "examples are missing");
    console::run(&system, "lfs/composite.console", &examples);
    system.finish();
}

#[test]
fn files_are_found_by_their_attributes_and_layouts() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let examples = console::examples((1..).zip(FIND.lines()));
    assert!(examples.len() > 30, "examples are missing");
    console::run(&system, "lfs/find.console", &examples);
    system.finish();
}

#[test]
fn directories_are_shown_in_lustres_formats() {
    let system = FileSystem::start_with_mdts(Transport::InProcess, 1, 2);
    let examples = console::examples((1..).zip(DIRECTORIES.lines()));
    assert!(examples.len() > 30, "examples are missing");
    console::run(&system, "lfs/directories.console", &examples);
    system.finish();
}

/// A line of the table.
struct EdgeCase<'a> {
    command: &'a str,
    status: i32,
    first_line: &'a str,
}

fn edge_cases() -> Vec<EdgeCase<'static>> {
    let lines = EDGE_CASES.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let parse = |line: &'static str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let (status, first_line) = match columns[..] {
            // Where StriaFS differs on purpose, its own answer counts.
            [_, _, _, status, first_line] => (status, first_line),
            [_, status, first_line] => (status, first_line),
            [_, status] => (status, ""),
            _ => panic!("not a line of the table: {line}"),
        };
        let status = status.parse().unwrap_or_else(|_| panic!("no exit status in: {line}"));
        EdgeCase { command: columns[0], status, first_line }
    };
    lines.map(parse).collect()
}

/// Runs the table in a new directory, through the prefix `runner` (`setpriv ...` for another user).
fn run_edge_cases(system: &FileSystem, name: &str, owner: u32, runner: &str) {
    let directory = system.root().join(name);
    std::fs::create_dir(&directory).expect("directory");
    for path in [directory.clone(), directory.join("exist")] {
        if path != directory {
            std::fs::write(&path, b"").expect("file");
        }
        chown(path, Some(owner), Some(owner)).expect("chown");
    }
    let foreign = system.place().bin().join("notlustre");
    std::fs::write(&foreign, b"").expect("file");
    let cases = edge_cases();
    assert!(cases.len() > 60, "lines of the table are missing");
    for EdgeCase { command, status, first_line } in cases {
        let real = |text: &str| text.replace("/tmp/notlustre", &foreign.to_string_lossy());
        let line = format!("exec 2>&1; cd {}; {runner} {}", directory.display(), real(command));
        let output = system.shell(&line).env("LC_ALL", "C").output();
        let printed = output.stdout.lines().next().unwrap_or_default();
        assert_eq!((output.status, printed), (status, &*real(first_line)), "{command} ({runner})");
    }
}

#[test]
fn edge_cases_end_as_in_lustre_for_any_user() {
    let system = FileSystem::start(Transport::InProcess, 1);
    system.end_automatic_layouts();
    run_edge_cases(&system, "root", 0, "");
    let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    // The binary itself may be where others cannot read.
    let lfs = system.place().bin().join("lfs");
    std::fs::remove_file(&lfs).expect("the link of this test");
    copy_program(&lfs);
    run_edge_cases(&system, "nobody", NOBODY, &nobody);
    as_nobody_by_permissions(&system, &nobody);
    system.finish();
}

/// What others may not do they may not do through `lfs` either; asking needs no more than stat(2)
/// does.
fn as_nobody_by_permissions(system: &FileSystem, nobody: &str) {
    let directory = system.root().join("closed");
    std::fs::create_dir(&directory).expect("directory");
    std::fs::write(directory.join("secret"), b"x").expect("file");
    std::fs::set_permissions(directory.join("secret"), std::fs::Permissions::from_mode(0o600)).expect("own file");
    let run = |line: &str| -> Output { system.shell(&format!("{nobody} lfs {line}")).within(&directory).output() };
    let refused = run("setstripe -c 2 new");
    assert_eq!(refused.status, libc::EACCES, "{}", refused.stderr);
    let refused = run("setstripe -c 2 .");
    assert!(refused.status == libc::EACCES || refused.status == libc::EPERM, "{}", refused.stderr);
    assert_eq!(run("getstripe -c secret"), Output { status: 0, stdout: "1\n".to_owned(), stderr: String::new() });
    assert_eq!(run("path2fid secret").status, 0);
    for command in ["df", "df -i", "osts", "mdts", "check servers", "getname"] {
        let output = run(&format!("{command} {}", system.root().display()));
        assert_eq!((output.status, output.stderr.as_str()), (0, ""), "lfs {command}");
    }
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).expect("own directory");
    let line = format!("{nobody} lfs getstripe {}/secret", directory.display());
    let refused = system.shell(&line).output();
    assert_eq!(refused.status, libc::EACCES, "{}", refused.stderr);
}

/// Rows of `lfs df`: every target, the summary, and numbers that end where their titles end.
#[test]
fn df_shows_every_target_in_lustres_columns() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let point = system.root().display().to_string();
    let df = |options: &str| system.shell(&format!("lfs df {options} {point}")).succeed();
    let titles = [
        ("", "UUID                   1K-blocks        Used   Available Use%  Mounted on"),
        ("-h", "UUID                       bytes        Used   Available Use%  Mounted on"),
        ("-i", "UUID                      Inodes       IUsed       IFree IUse%  Mounted on"),
    ];
    for (options, title) in titles {
        let text = df(options);
        let lines: Vec<&str> = text.lines().collect();
        let mut places = vec![("stria-MDT0000_UUID".to_owned(), format!("{point}[MDT:0]"))];
        places.extend((0..4).map(|ost| (format!("stria-OST{ost:04}_UUID"), format!("{point}[OST:{ost}]"))));
        assert_eq!(lines[0], title);
        for (line, (name, place)) in lines[1..].iter().zip(&places) {
            assert_row(line, name, place);
        }
        assert_eq!(lines[6], "", "{text}");
        assert_row(lines[7], "filesystem_summary:", &point);
        assert_eq!(lines[8..], ["one device, counted once: MDT:0 OST:0 OST:1 OST:2 OST:3"], "{text}");
    }
    assert!(df("-m").contains("[MDT:0]") && !df("-m").contains("[OST:"));
    assert!(df("-o").contains("[OST:3]") && !df("-o").contains("[MDT:"));
    // The system's own df sees the same file system.
    let system_df = program("df").args(["--output=source,fstype,target"]).arg(system.root()).succeed();
    let row: Vec<&str> = system_df.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[1..], ["fuse.stria", point.as_str()]);
    assert!(row[0].ends_with(":/stria"), "{row:?}");
    system.finish();
}

fn assert_row(line: &str, name: &str, place: &str) {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || ".KMGTPE".contains(c));
    assert!(line.starts_with(&format!("{name} ")) && line.ends_with(&format!("%  {place}")), "{line}");
    for end in [32, 44, 56] {
        let (before, after) = line.split_at(end);
        let number = before.rsplit(' ').next().unwrap_or_default();
        assert!(is_number(number) && after.starts_with(' '), "a number ends at column {end}: {line}");
    }
}

/// `lfs` of a mounted file system works on paths of any kind.
#[test]
fn unusual_names_work() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let long = "n".repeat(255);
    for name in ["with blank", "-c", "new\nline", "umläut", long.as_str()] {
        let path = system.root().join(name);
        let set = |path: &Path| program_lfs(&system).args(["setstripe", "-c", "2", "--"]).arg(path).succeed();
        set(&path);
        let count = program_lfs(&system).args(["getstripe", "-c", "--"]).arg(&path).succeed();
        assert_eq!(count, "2\n", "{name}");
    }
    system.finish();
}

fn program_lfs(system: &FileSystem) -> common::Program {
    program(&system.place().bin().join("lfs").to_string_lossy())
}

/// Names are bytes. What is printed can be given back.
#[test]
fn names_that_are_no_text_are_taken_and_shown_as_they_are() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let directory = OsStr::from_bytes(b"caf\xe9\n\xff");
    let path = system.root().join(directory);
    std::fs::create_dir(&path).expect("directory");
    let lfs = |arguments: &[&str], path: &Path| {
        let output = stria().arg("lfs").args(arguments).arg(path).output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    lfs(&["setstripe", "-c", "2"], &path);
    let file = path.join(OsStr::from_bytes(b"-\xe9"));
    lfs(&["setstripe", "-c", "3", "--"], &file);
    assert_eq!(lfs(&["getstripe", "-c"], &file), b"3\n");
    let shown = lfs(&["getstripe", "-r"], system.root());
    let expected = [file.as_os_str().as_bytes(), b"\nlmm_stripe_count:  3\n"].concat();
    assert!(shown.windows(expected.len()).any(|window| window == expected), "{}", String::from_utf8_lossy(&shown));
    let fid = String::from_utf8(lfs(&["path2fid"], &file)).expect("a FID is text");
    let output = stria().args(["lfs", "fid2path"]).arg(&file).arg(fid.trim()).output().expect("it runs");
    assert_eq!(output.stdout, [file.as_os_str().as_bytes(), b"\n"].concat());
    let parents = lfs(&["path2fid", "--parents"], &file);
    assert!(parents.ends_with(b":0x0]/-\xe9\n"), "{}", String::from_utf8_lossy(&parents));
    let absent = stria().args(["lfs", "getstripe"]).arg(path.join("absent")).output().expect("it runs");
    assert_eq!(absent.status.code(), Some(libc::ENOENT));
    system.finish();
}
