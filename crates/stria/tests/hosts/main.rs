//! Several hosts: changes of one client are visible to another, and what is left when servers,
//! clients and cables fail under load.
//!
//! Every test has a cluster of its own in network namespaces. Needs root.

mod cluster;
#[path = "../common/mod.rs"]
mod common;

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use cluster::{Client, Cluster, LEASE};
use common::{
    TIMEOUT,
    load::{self, Load, Written},
    wait_for,
};

/// Directories for workers on both clients: some with files over all targets, some with the default
/// layout.
fn prepare_load(cluster: &Cluster) {
    let client = &cluster.clients[0];
    for name in ["a0", "a1", "b0", "b1"] {
        fs::create_dir(client.path(name)).unwrap();
    }
    for name in ["a0", "b0"] {
        client.lfs(&["setstripe", "-c", "-1", "-S", "64K", &client.path(name).to_string_lossy()]);
    }
}

/// Workers on both clients.
struct Loads([Load; 2]);

impl Loads {
    fn start(cluster: &Cluster, seed: u64) -> Loads {
        prepare_load(cluster);
        let [first, second] = [0, 1].map(|index| cluster.clients[index].point.clone());
        Loads([Load::start(&first, &["a0", "a1"], seed), Load::start(&second, &["b0", "b1"], seed + 1)])
    }

    #[track_caller]
    fn wait_for_progress(&self) {
        self.0.iter().for_each(|load| load.wait_for_progress(20));
    }

    /// Ends the load; everything acknowledged is there, seen from both clients, and the file system
    /// is clean.
    #[track_caller]
    fn verify(self, cluster: &Cluster) {
        let written: Vec<Written> = self.0.into_iter().map(Load::stop).collect();
        for client in &cluster.clients {
            written.iter().for_each(|written| written.compare(&client.point));
        }
        cluster.expect_clean();
    }
}

#[test]
fn clients_on_several_hosts_see_each_others_changes() {
    let cluster = Cluster::start(&["rw", "rw"]);
    let [one, two] = [&cluster.clients[0], &cluster.clients[1]];
    fs::write(one.path("greeting"), "hello").unwrap();
    assert_eq!(fs::read_to_string(two.path("greeting")).unwrap(), "hello");
    fs::write(two.path("greeting"), "good bye").unwrap();
    assert_eq!(fs::read_to_string(one.path("greeting")).unwrap(), "good bye");
    fs::create_dir(one.path("wide")).unwrap();
    one.lfs(&["setstripe", "-c", "-1", "-S", "64K", &one.path("wide").to_string_lossy()]);
    let contents = load::Random(7).bytes(3 << 20);
    fs::write(two.path("wide/file"), &contents).unwrap();
    load::compare_file(&one.path("wide/file"), &contents);
    assert_eq!(one.lfs(&["getstripe", "-c", &one.path("wide/file").to_string_lossy()]).trim(), "4");
    fs::rename(one.path("greeting"), one.path("wide/moved")).unwrap();
    assert!(!two.path("greeting").exists());
    assert_eq!(fs::metadata(two.path("wide/moved")).unwrap().size(), 8);

    let point = two.point.to_string_lossy().into_owned();
    let df = two.lfs(&["df", &point]);
    for target in
        ["stria-MDT0000_UUID", "stria-OST0000_UUID", "stria-OST0001_UUID", "stria-OST0002_UUID", "stria-OST0003_UUID"]
    {
        assert!(df.contains(target), "{df}");
    }
    let check = two.lfs(&["check", "all", &point]);
    assert_eq!(check.matches("active").count(), 5, "{check}");
    cluster.expect_clean();
}

/// Servers in turn are killed under load, and come back.
fn servers_die(cluster: &mut Cluster, down: Duration) {
    let loads = Loads::start(cluster, 1);
    for victim in 0..3 {
        loads.wait_for_progress();
        let server = if victim == 0 { &mut cluster.mds } else { &mut cluster.oss[victim - 1] };
        server.kill();
        thread::sleep(down);
        server.start();
        loads.wait_for_progress();
    }
    loads.verify(cluster);
}

#[test]
fn servers_that_die_under_load_and_come_back_at_once_lose_nothing() {
    servers_die(&mut Cluster::start(&["rw", "rw"]), Duration::ZERO);
}

#[test]
fn servers_that_die_under_load_and_come_back_later_lose_nothing() {
    servers_die(&mut Cluster::start(&["rw", "rw"]), Duration::from_secs(4));
}

#[test]
fn all_servers_die_together_and_lose_nothing() {
    let mut cluster = Cluster::start(&["rw", "rw"]);
    let loads = Loads::start(&cluster, 5);
    loads.wait_for_progress();
    cluster.oss.iter_mut().for_each(|server| server.kill());
    cluster.mds.kill();
    cluster.oss.iter_mut().for_each(|server| server.start());
    cluster.mds.start();
    loads.wait_for_progress();
    loads.verify(&cluster);
}

#[test]
fn cables_cut_for_seconds_lose_nothing() {
    /// Shorter than the lease: nobody is evicted.
    const CUT: Duration = Duration::from_secs(6);
    let cluster = Cluster::start(&["rw", "rw"]);
    let loads = Loads::start(&cluster, 11);
    let hosts = [&cluster.mds.host, &cluster.oss[0].host, &cluster.oss[1].host, &cluster.clients[0].host];
    for host in hosts {
        loads.wait_for_progress();
        host.cut();
        thread::sleep(CUT);
        host.repair();
        loads.wait_for_progress();
    }
    loads.verify(&cluster);
}

/// Opens for reading and writing and takes the whole-file lock; `None` if somebody else has it.
fn try_lock(path: &Path) -> Option<File> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(fs::TryLockError::WouldBlock) => None,
        Err(fs::TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
    }
}

/// Waits until the lock of a client that is gone falls to another; checks that it did not do so at
/// once. (To open the file for writing may take as long, if the lost client has cached its
/// attributes.)
#[track_caller]
fn inherit_lock(path: &Path) -> File {
    let begun = Instant::now();
    let file = wait_for("the lock of the lost client", LEASE + TIMEOUT, || try_lock(path));
    // Clients say something at least every third of a lease; busy hosts need some of the rest.
    let waited = begun.elapsed();
    assert!(waited > LEASE / 4, "the lease was cut short: {waited:?}");
    file
}

#[test]
fn locks_of_a_dead_client_go_to_others_after_its_lease() {
    let mut cluster = Cluster::start(&["rw", "rw"]);
    fs::write(cluster.clients[0].path("ledger"), "one").unwrap();
    let held = try_lock(&cluster.clients[0].path("ledger")).expect("nobody else has the lock");
    // Removed while it is open: its objects must not stay behind forever.
    let orphan = cluster.clients[0].path("orphan");
    let open_orphan = File::create(&orphan).unwrap();
    open_orphan.write_all_at(&[7; 100_000], 0).unwrap();
    fs::remove_file(&orphan).unwrap();
    // Nobody told how large it is.
    let written = File::create(cluster.clients[0].path("written")).unwrap();
    written.write_all_at(&[7; 100_000], 0).unwrap();
    cluster.clients[0].kill();
    drop((held, open_orphan, written));
    let mut file = inherit_lock(&cluster.clients[1].path("ledger"));
    file.write_all(b"two").unwrap();
    cluster.clients[0].mount();
    assert_eq!(fs::read_to_string(cluster.clients[0].path("ledger")).unwrap(), "two");
    assert!(cluster.expect_clean().contains("1 file size not known to the MDT after a writer died"));
    // The next client that looks at it asks the objects, and tells.
    assert_eq!(fs::metadata(cluster.clients[0].path("written")).unwrap().size(), 100_000);
    assert!(!cluster.expect_clean().contains("writers died"));
}

#[test]
fn a_client_cut_off_for_longer_than_its_lease_is_fenced_and_works_again() {
    let cluster = Cluster::start(&["rw", "rw"]);
    let [one, two] = [&cluster.clients[0], &cluster.clients[1]];
    fs::write(one.path("ledger"), "before").unwrap();
    let held = try_lock(&one.path("ledger")).expect("nobody else has the lock");
    one.host.cut();
    // On its way when the cable is pulled, and delivered only after others took over: it must not
    // be executed.
    let late_file = held.try_clone().unwrap();
    let late = thread::spawn(move || late_file.write_all_at(b"late!!", 0));
    let mut file = inherit_lock(&two.path("ledger"));
    file.write_all(b"theirs").unwrap();
    assert!(!late.is_finished(), "the late write waits for its server");
    one.host.repair();
    wait_for("the end of the late write", TIMEOUT, || late.is_finished().then_some(()));
    late.join().unwrap().expect_err("a write under a lock that was lost succeeded");
    assert_eq!(fs::read_to_string(two.path("ledger")).unwrap(), "theirs");
    held.write_all_at(b"later!", 0).expect_err("a file opened before the eviction can be written");
    drop(held);

    assert_eq!(fs::read_to_string(one.path("ledger")).unwrap(), "theirs");
    drop(file);
    let mut again = wait_for("the lock", TIMEOUT, || try_lock(&one.path("ledger")));
    again.write_all(b"after!").unwrap();
    assert_eq!(fs::read_to_string(two.path("ledger")).unwrap(), "after!");
    cluster.expect_clean();
}

#[test]
fn a_client_cut_off_for_less_than_its_lease_keeps_its_locks_and_files() {
    let cluster = Cluster::start(&["rw", "rw"]);
    let [one, two] = [&cluster.clients[0], &cluster.clients[1]];
    fs::write(one.path("ledger"), "before").unwrap();
    let held = try_lock(&one.path("ledger")).expect("nobody else has the lock");
    one.host.cut();
    thread::sleep(LEASE / 4);
    one.host.repair();
    held.write_all_at(b"within", 0).unwrap();
    assert!(try_lock(&two.path("ledger")).is_none(), "the lock was lost");
    assert_eq!(fs::read_to_string(two.path("ledger")).unwrap(), "within");
}

#[test]
fn a_restarted_metadata_server_gives_locks_back_to_their_owners() {
    let mut cluster = Cluster::start(&["rw", "rw"]);
    fs::write(cluster.clients[0].path("ledger"), "before").unwrap();
    let mut held = try_lock(&cluster.clients[0].path("ledger")).expect("nobody else has the lock");
    fs::remove_file(cluster.clients[1].path("ledger")).unwrap();
    cluster.mds.kill();
    cluster.mds.start();
    // Unlinked, but open: it lives on, and so do the lock and the place of reading.
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before");
    fs::write(cluster.clients[1].path("ledger"), "another").unwrap();
    let other = try_lock(&cluster.clients[1].path("ledger"));
    assert!(other.is_some(), "another file of the same name has its own lock");
    drop((held, other));
    cluster.expect_clean();
}

/// How long an operation took that must fail with EIO.
#[track_caller]
fn fails_after<T: std::fmt::Debug>(operation: impl FnOnce() -> std::io::Result<T>) -> Duration {
    let begun = Instant::now();
    let error = operation().expect_err("the server is away");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    begun.elapsed()
}

fn striped_file(client: &Client, name: &str, first_ost: u16) -> File {
    let path = client.path(name);
    client.lfs(&["setstripe", "-c", "1", "-i", &first_ost.to_string(), &path.to_string_lossy()]);
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_timeout_is_an_error_that_names_the_target() {
    const MOUNT_TIMEOUT: Duration = Duration::from_secs(5);
    let mut cluster = Cluster::start(&["timeout=5"]);
    let [lost, fine] = [("lost", 0), ("fine", 2)].map(|(name, ost)| striped_file(&cluster.clients[0], name, ost));
    lost.write_all_at(b"kept", 0).unwrap();
    cluster.oss[0].kill();
    let waited = fails_after(|| lost.write_all_at(b"lost", 0));
    assert!(waited >= MOUNT_TIMEOUT && waited < TIMEOUT, "{waited:?}");
    let client = &cluster.clients[0];
    let log = client.log();
    assert!(log.contains("stria-OST0000") && log.contains("did not answer for 5 s"), "{log}");
    fine.write_all_at(b"fine", 0).expect("the other server is there");
    let check = client.lfs_failure(&["check", "osts", &client.point.to_string_lossy()]);
    assert!(check.contains("stria-OST0000-osc") && check.contains("not answering"), "{check}");
    assert!(check.contains("no answer from 2 servers"), "{check}");

    // A check says at once what it waits for, into a file too.
    let checking = cluster.begin_check();
    wait_for("what the check waits for", TIMEOUT, || {
        let said = checking.logged();
        let lost = ["stria-OST0000", "stria-OST0001"]
            .map(|ost| format!("waiting for {ost} 10.77.0.2:988: connection refused"));
        lost.iter().all(|line| said.contains(line)).then_some(())
    });
    checking.kill();

    cluster.mds.kill();
    let waited = fails_after(|| fs::metadata(cluster.clients[0].path("fine")));
    assert!(waited >= MOUNT_TIMEOUT && waited < TIMEOUT, "{waited:?}");
    let log = cluster.clients[0].log();
    assert!(log.contains("stria-MDT0000 did not answer for 5 s"), "{log}");

    cluster.mds.start();
    cluster.oss[0].start();
    cluster.wait_for_targets();
    let mut text = [0; 4];
    wait_for("the object of the lost server", TIMEOUT, || lost.read_exact_at(&mut text, 0).ok());
    assert_eq!(&text, b"kept");
    drop((lost, fine));
    cluster.expect_clean();
}
