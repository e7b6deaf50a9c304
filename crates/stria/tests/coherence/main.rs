//! What one mount did, another sees at once, however much both have cached: each pair of operations
//! that can conflict, from warm caches.
//!
//! Each row of the [table](rows) is tried in both directions between two mounts and within one, by
//! root, by two users, and with root changing what a user looks at. The observing side looks twice
//! before the change, so that its caches are warm, at once after the change's system call has
//! returned, and twice more, from caches that are warm again.

#[path = "../common/mod.rs"]
mod common;

mod inode_rows;
mod races;
mod row;
mod rows;

use std::os::unix::fs::PermissionsExt;

use common::{Agent, FileSystem, Transport, User, agent::ROOT};
use row::Row;

/// A group of both users.
const SHARED_GROUP: u32 = 6000;
const OWNER: User = User { name: "owner", id: 5001, groups: &[SHARED_GROUP] };
const OTHER: User = User { name: "other", id: 5002, groups: &[SHARED_GROUP] };

/// With so many failures a test ends early.
const FAILURES_MAX: usize = 25;

/// Which mount changes, and which one looks.
const DIRECTIONS: [(usize, usize); 3] = [(0, 1), (1, 0), (0, 0)];
/// Which user changes, and which one looks.
const USERS: [(User, User); 3] = [(ROOT, ROOT), (OWNER, OTHER), (ROOT, OTHER)];

#[test]
fn each_change_is_seen_at_once_from_warm_caches() {
    table("rw");
}

#[test]
fn each_change_is_seen_at_once_where_only_the_servers_check_permissions() {
    table("rw,no_default_permissions");
}

#[test]
fn each_change_is_seen_at_once_by_mounts_that_cache_nothing() {
    // Modes are those that rows ask for.
    rustix::process::umask(rustix::fs::Mode::empty());
    let system = start("rw");
    system.switch_caches_off();
    try_all(&system);
    system.finish();
}

/// Directories of rows are striped over all MDTs, or on another one than the root, in turn.
#[test]
fn each_change_is_seen_at_once_in_striped_and_remote_directories() {
    let system = start_with_mdts("rw", 3);
    try_all(&system);
    system.finish();
}

fn start(options: &str) -> FileSystem {
    start_with_mdts(options, 1)
}

fn start_with_mdts(options: &str, mdts: u16) -> FileSystem {
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut system = FileSystem::start_with_mdts(Transport::Tcp, 0, mdts);
    system.set_mount_options(options);
    system.add_clients(2);
    system.without_spread();
    std::fs::set_permissions(system.root(), std::fs::Permissions::from_mode(0o755)).expect("own file system");
    system
}

fn table(options: &str) {
    let system = start(options);
    try_all(&system);
    system.finish();
}

/// Tries every row in every way, and tells all failures at once.
fn try_all(system: &FileSystem) {
    let (mut failures, mut tried) = (Vec::new(), 0);
    for row in rows::ROWS.iter().flat_map(|rows| rows.iter()) {
        for (changing, looking) in DIRECTIONS {
            for (changer, looker) in USERS.into_iter().filter(|(changer, looker)| row.is_for(*changer, *looker)) {
                let case = Case { row, number: tried, changing, looking, changer, looker };
                failures.extend(case.run(system).err().map(|reason| format!("{case}: {reason}")));
                tried += 1;
                if failures.len() >= FAILURES_MAX {
                    panic!("{FAILURES_MAX} of the first {tried} cases failed:\n{}", failures.join("\n"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {tried} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// A row in one way.
struct Case<'a> {
    row: &'a Row,
    number: usize,
    changing: usize,
    looking: usize,
    changer: User,
    looker: User,
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = |mount: usize| char::from(b'A' + mount as u8);
        let Case { row, changer, looker, .. } = self;
        let (changing, looking) = (letter(self.changing), letter(self.looking));
        write!(f, "{}: {} changes on {changing}, {} looks on {looking}", row.name, changer.name, looker.name)
    }
}

impl Case<'_> {
    fn run(&self, system: &FileSystem) -> Result<(), String> {
        let name = format!("case{}", self.number);
        let directory = system.path(self.changing).join(&name);
        match (system.mdts(), self.number % 2) {
            (1, _) => std::fs::create_dir(&directory).map_err(|error| format!("mkdir: {error}"))?,
            (_, 0) => drop(system.shell(&format!("lfs mkdir -c -1 {}", directory.display())).succeed()),
            _ => drop(system.shell(&format!("lfs mkdir -i 1 {}", directory.display())).succeed()),
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).map_err(|e| e.to_string())?;
        std::os::unix::fs::chown(&directory, Some(self.changer.id), Some(self.changer.id))
            .map_err(|error| format!("chown: {error}"))?;
        let changer = Agent::start(directory, self.changer);
        let looker = Agent::start(system.path(self.looking).join(&name), self.looker);
        for line in self.row.prepare {
            expect(&changer, line, &all_ok(line), "preparation")?;
        }
        if !self.row.hold.is_empty() {
            expect(&looker, self.row.hold, &all_ok(self.row.hold), "preparation of the observer")?;
        }
        let mut before = self.row.before;
        for (change, after) in self.row.steps {
            for time in ["at first", "again"] {
                expect(&looker, self.row.look, before, &format!("{time}, before '{change}'"))?;
            }
            expect(&changer, change, &all_ok(change), "change")?;
            for time in ["at once", "again", "for the third time"] {
                expect(&looker, self.row.look, after, &format!("{time}, after '{change}'"))?;
            }
            before = after;
        }
        for (line, answer) in self.row.finally {
            expect(&looker, line, answer, "at the end")?;
        }
        Ok(())
    }
}

/// What commands answer if all of them succeed.
fn all_ok(line: &str) -> String {
    vec!["ok"; line.split("; ").count()].join("; ")
}

fn expect(agent: &Agent, line: &str, expected: &str, when: &str) -> Result<(), String> {
    let found = agent.run(line);
    if found == expected {
        return Ok(());
    }
    Err(format!("{when}: '{line}' answered '{found}', not '{expected}'"))
}
