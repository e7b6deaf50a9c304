//! What each of several users may do on a mount, from warm caches, is what the same user may do in
//! the same tree of a local file system: special files, programs, search of directories, protection
//! of links and files in sticky directories, access lists, groups.
//!
//! Each [group](table) is made twice: on a local file system, and on StriaFS with two mounts. All
//! users look three times on each, root changes something (on StriaFS through the other mount), and
//! all look again. Then they attempt what changes the tree, one after the other, and the trees are
//! compared. Each answer must be that of the local file system.

#[path = "../common/mod.rs"]
mod common;

mod protection;
mod table;

use std::path::Path;

use common::{Agent, FileSystem, Place, Transport, User, agent::ROOT};
use protection::Protection;
use table::{GROUPS, Group};

/// A group that some users belong to.
const STAFF: u32 = 6000;
const USERS: [User; 4] = [
    ROOT,
    User { name: "owner", id: 5001, groups: &[] },
    User { name: "member", id: 5002, groups: &[STAFF, 6001] },
    User { name: "stranger", id: 5003, groups: &[] },
];

/// The same directory in all places.
struct Places<'a> {
    local: &'a Path,
    mounts: [&'a Path; 2],
}

#[test]
fn users_may_do_what_they_may_do_locally() {
    // Modes are those that rows ask for.
    rustix::process::umask(rustix::fs::Mode::empty());
    let _protection = Protection::on();
    let mut place = Place::new();
    let local = place.mount_point("local");
    let mut system = FileSystem::start_in(place, Transport::Tcp, 0);
    // `dev`: devices are compared, too.
    system.set_mount_options("rw,dev,default_permissions");
    system.add_clients(2);
    let places = Places { local: &local, mounts: [system.path(0), system.path(1)] };
    let mut failures = Vec::new();
    for group in GROUPS {
        for path in [places.local, places.mounts[0]] {
            std::fs::create_dir(path.join(group.name)).expect("a new directory");
        }
        try_group(group, &places, &mut failures);
    }
    assert!(failures.is_empty(), "{} answers differ:\n{}", failures.len(), failures.join("\n"));
    system.finish();
}

fn try_group(group: &Group, places: &Places<'_>, failures: &mut Vec<String>) {
    let within = |path: &Path| path.join(group.name);
    let agents = |path: &Path| USERS.map(|user| Agent::start(within(path), user));
    let local = agents(places.local);
    let mounts = places.mounts.map(agents);
    let mut compare = |line: &str, user: usize, mount: usize, when: &str| {
        let (expected, found) = (local[user].run(line), mounts[mount][user].run(line));
        if expected != found {
            let (name, user, mount) = (group.name, USERS[user].name, ["A", "B"][mount]);
            failures
                .push(format!("{name}: {user} on {mount}, {when}: '{line}' answered '{found}', locally '{expected}'"));
        }
    };
    // Root prepares and changes through the first mount.
    for line in group.prepare {
        compare(line, 0, 0, "preparation");
    }
    let mut look = |when: &str| {
        for line in group.looks {
            for user in 0..USERS.len() {
                for mount in [1, 0, 1] {
                    compare(line, user, mount, when);
                }
            }
        }
    };
    for time in ["cold", "warm", "warm again"] {
        look(time);
    }
    for change in group.changes {
        let [expected, found] = [&local[0], &mounts[0][0]].map(|agent| agent.run(change));
        assert_eq!(expected, found, "{}: '{change}'", group.name);
        for time in ["at once", "again"] {
            look(&format!("{time}, after '{change}'"));
        }
    }
    attempts(group, &local, &mounts, failures);
}

/// What changes the tree: each user in turn, on either mount.
fn attempts(group: &Group, local: &[Agent; 4], mounts: &[[Agent; 4]; 2], failures: &mut Vec<String>) {
    for (number, line) in group.attempts.iter().enumerate() {
        for user in (0..USERS.len()).rev() {
            let mount = (number + user) % 2;
            let (expected, found) = (local[user].run(line), mounts[mount][user].run(line));
            if expected != found {
                let (name, user) = (group.name, USERS[user].name);
                failures.push(format!("{name}: {user}: attempt '{line}' answered '{found}', locally '{expected}'"));
            }
            for line in group.shows {
                let expected = local[0].run(line);
                for mount in mounts {
                    let found = mount[0].run(line);
                    if expected != found {
                        let (name, user) = (group.name, USERS[user].name);
                        failures.push(format!(
                            "{name}: after an attempt of {user}, '{line}' is '{found}', locally '{expected}'"
                        ));
                    }
                }
            }
        }
    }
}
