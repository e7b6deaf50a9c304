//! Programs that people use, on mounts.

mod common;

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use common::{FileSystem, Program, Transport, programs::program};

/// Makes a tree like those of sources: small files in many directories, some larger ones, links of
/// both kinds, modes, times, empty files and directories. From 200 files on there is some of
/// everything.
fn make_tree(root: &Path, files: usize) {
    fs::create_dir(root).expect("mkdir");
    for number in 0..files {
        let directory = root.join(format!("part{}/sub{}", number % 23, number % 7));
        fs::create_dir_all(&directory).expect("mkdir");
        let path = directory.join(format!("file{number}.txt"));
        let length = match number % 50 {
            0 => 0,
            1 => 700_000 + number,
            _ => number * 37 % 9000,
        };
        let text = format!("line {number} of a file that is like others\n");
        fs::write(&path, text.repeat(length / text.len() + 1).get(..length).expect("ASCII")).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode([0o644, 0o600, 0o755][number % 3])).expect("chmod");
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000 + number as u64 * 1000, 123_456_789);
        File::options().write(true).open(&path).expect("open").set_modified(time).expect("utimes");
        match number % 40 {
            3 => symlink(format!("../sub{}/file{number}.txt", number % 7), root.join(format!("link{number}"))),
            5 => fs::hard_link(&path, root.join(format!("hard{number}"))),
            7 => fs::create_dir(root.join(format!("empty{number}"))),
            _ => Ok(()),
        }
        .expect("link");
    }
}

/// Nothing differs: names, contents, links, modes and times.
fn assert_same(one: &Path, other: &Path) {
    let mut rsync = program("rsync");
    rsync = rsync.args(["-aHn", "--checksum", "--delete", "--itemize-changes"]);
    let changes = rsync.arg(format!("{}/", one.display())).arg(format!("{}/", other.display())).succeed();
    assert_eq!(changes, "", "rsync would still change this");
}

fn local() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory")
}

#[test]
fn rsync_copies_once_and_finds_nothing_to_do_the_second_time() {
    rsync_there_and_back(FileSystem::start(Transport::Tcp, 2));
}

/// Each operation asks the servers.
#[test]
fn rsync_copies_without_caches() {
    let system = FileSystem::start(Transport::Tcp, 2);
    system.switch_caches_off();
    rsync_there_and_back(system);
}

fn rsync_there_and_back(system: FileSystem) {
    let place = local();
    let source = place.path().join("tree");
    make_tree(&source, 600);
    let copy = |to: &Path| {
        let rsync = program("rsync").args(["-aH", "--stats"]).arg(format!("{}/", source.display())).arg(to);
        let text = rsync.succeed();
        let line = text.lines().find(|line| line.starts_with("Number of regular files transferred:"));
        line.and_then(|line| line.rsplit(' ').next())
            .expect("statistics")
            .replace(',', "")
            .parse::<u32>()
            .expect("a number")
    };
    assert!(copy(&system.path(0).join("tree")) > 560);
    // The second client finds what the first one wrote.
    assert_eq!(copy(&system.path(1).join("tree")), 0, "nothing is copied twice");
    assert_same(&source, &system.path(1).join("tree"));
    // Back again, and away with it.
    program("rsync").args(["-aH"]).arg(system.path(1).join("tree")).arg(place.path().join("back")).succeed();
    assert_same(&source, &place.path().join("back/tree"));
    program("rm").args(["-r"]).arg(system.path(0).join("tree")).succeed();
    assert_eq!(fs::read_dir(system.path(1)).expect("opendir").count(), 0);
    system.finish();
}

#[test]
fn tar_and_cp_make_faithful_copies() {
    copies_are_faithful(FileSystem::start(Transport::InProcess, 1));
}

#[test]
fn tar_and_cp_make_faithful_copies_over_tcp() {
    copies_are_faithful(FileSystem::start(Transport::Tcp, 1));
}

fn copies_are_faithful(system: FileSystem) {
    let place = local();
    let source = place.path().join("tree");
    make_tree(&source, 400);
    let root = system.root();
    let script = "set -e -o pipefail
        tar -C \"$FROM\" -cf \"$A/tree.tar\" tree
        mkdir \"$A/untar\" && tar -C \"$A/untar\" -xpf \"$A/tree.tar\"
        tar -C \"$A/untar\" --compare -f \"$A/tree.tar\"
        tar -C \"$A/untar\" -cf - tree | tar -C \"$FROM\" --compare -f -
        cp -a \"$A/untar/tree\" \"$A/copy\"
        diff -r --no-dereference \"$FROM/tree\" \"$A/copy\"";
    system.shell(script).env("FROM", place.path()).succeed();
    assert_same(&source, &root.join("untar/tree"));
    assert_same(&source, &root.join("copy"));
    system.finish();
}

#[test]
fn git_clones_checks_and_commits() {
    git_works(FileSystem::start(Transport::Tcp, 1));
}

#[test]
fn git_clones_checks_and_commits_in_one_process() {
    git_works(FileSystem::start(Transport::InProcess, 1));
}

/// Each operation asks the servers.
#[test]
fn git_clones_checks_and_commits_without_caches() {
    let system = FileSystem::start(Transport::Tcp, 1);
    system.switch_caches_off();
    git_works(system);
}

fn git_works(system: FileSystem) {
    let place = local();
    let script = "set -e
        export HOME=\"$FROM\" GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        cd \"$FROM/tree\" && rmdir empty* && git init -q -b main . && git add -A && git commit -qm first
        for round in 1 2 3 4 5; do
            for file in part1/sub*/*.txt; do echo \"round $round\" >> \"$file\"; done
            git commit -qam \"round $round\"
        done
        git clone -q \"$FROM/tree\" \"$A/clone\" && cd \"$A/clone\"
        git fsck --full --strict
        test -z \"$(git status --porcelain)\"
        diff -r --no-dereference -x .git \"$FROM/tree\" .
        git checkout -q -b work HEAD~3 && git merge -q --no-ff main -m merge
        git mv part2 moved && git rm -rq part3 && git commit -qm moves
        git gc -q --prune=now && git fsck --full --strict
        git clone -q --no-local \"$A/clone\" \"$A/second\" && cd \"$A/second\" && git fsck --full --strict
        test -z \"$(git status --porcelain)\"
        git log --oneline | wc -l";
    make_tree(&place.path().join("tree"), 300);
    let commits = system.shell(script).env("FROM", place.path()).succeed();
    assert_eq!(commits.lines().last(), Some("8"));
    system.finish();
}

#[test]
fn cargo_builds_and_tests_a_crate() {
    let system = FileSystem::start(Transport::Tcp, 1);
    let script = "set -e
        cd \"$A\" && mkdir -p small/src small/tests && cd small
        printf '[package]\\nname = \"small\"\\nversion = \"0.1.0\"\\nedition = \"2024\"\\n[workspace]\\n' > Cargo.toml
        printf 'pub fn double(x: u32) -> u32 { x * 2 }\\n' > src/lib.rs
        printf 'fn main() { println!(\"{}\", small::double(21)); }\\n' > src/main.rs
        printf '#[test]\\nfn doubles() { assert_eq!(small::double(4), 8); }\\n' > tests/doubles.rs
        unset CARGO_TARGET_DIR CARGO_MANIFEST_DIR RUSTFLAGS
        cargo build -q --offline && cargo test -q --offline > /dev/null
        printf 'pub fn double(x: u32) -> u32 { x + x + 0 }\\n' > src/lib.rs
        cargo build -q --offline
        ./target/debug/small
        cargo build --offline 2>&1 | grep -c Compiling || true";
    let output = system.shell(script).env("CARGO_NET_OFFLINE", "true").succeed();
    assert_eq!(output, "42\n0\n", "it runs, and nothing is built twice");
    system.finish();
}

/// Writers, each a process of its own, while readers look on.
fn sqlite_under_load(system: &FileSystem, journal: &str, clients: &[usize]) {
    const WRITERS: usize = 3;
    const ROUNDS: usize = 25;
    let databases: Vec<PathBuf> =
        clients.iter().map(|client| system.path(*client).join(format!("{journal}.db"))).collect();
    let sql = |client: usize, text: &str| -> Program {
        program("sqlite3").args(["-batch", "-bail", "-cmd", ".timeout 60000"]).arg(&databases[client]).arg(text)
    };
    let (sql, last) = (&sql, clients.len() - 1);
    let mode = sql(0, &format!("PRAGMA journal_mode={journal}")).succeed();
    assert_eq!(mode.trim(), journal);
    let make = "CREATE TABLE account(id INTEGER PRIMARY KEY, money INTEGER); CREATE TABLE log(writer, round, text);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 100) INSERT INTO account SELECT i, 1000 FROM n;";
    sql(0, make).succeed();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let client = writer % clients.len();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let transfer = format!(
                        "BEGIN IMMEDIATE;
                         UPDATE account SET money = money - {round} WHERE id = 1 + abs(random()) % 100;
                         INSERT INTO log VALUES({writer}, {round}, hex(randomblob(2000)));
                         UPDATE account SET money = money + {round} WHERE id = 1 + abs(random()) % 100;
                         COMMIT;"
                    );
                    sql(client, &transfer).succeed();
                }
            });
        }
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                assert_eq!(sql(last, "SELECT count(*) FROM account").succeed(), "100\n");
            }
        });
    });
    for client in 0..clients.len() {
        assert_eq!(sql(client, "PRAGMA integrity_check").succeed(), "ok\n");
        let text = sql(client, "SELECT count(*), count(DISTINCT text) FROM log").succeed();
        assert_eq!(text, format!("{0}|{0}\n", WRITERS * ROUNDS), "every commit is there");
    }
}

#[test]
fn sqlite_keeps_its_promises_with_a_rollback_journal_also_across_clients() {
    let system = FileSystem::start(Transport::Tcp, 2);
    sqlite_under_load(&system, "delete", &[0, 1]);
    system.finish();
}

/// The shared memory of a write-ahead log is a mapped file: for the processes of one client, as on
/// any network file system.
#[test]
fn sqlite_keeps_its_promises_with_a_write_ahead_log() {
    let system = FileSystem::start(Transport::InProcess, 1);
    sqlite_under_load(&system, "wal", &[0]);
    system.finish();
}
