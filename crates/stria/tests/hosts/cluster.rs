//! One metadata server, two object storage servers with two targets each, and clients, each on a
//! host of its own.
//!
//! ```text
//! mds 10.77.0.1: MGS, MDT0000     oss1 10.77.0.2: OST0000, OST0001     oss2 10.77.0.3: OST0002, OST0003
//! client1 10.77.0.4               client2 10.77.0.5                    ...
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::common::{
    Daemon, Place, Program, TIMEOUT, keys,
    network::{Host, Network},
    wait_for,
};

/// A session without a request for this long is evicted (`LEASE` of the program).
pub const LEASE: Duration = Duration::from_secs(30);
const FSNAME: &str = "stria";

/// The program under test, on a host.
fn stria(host: &Host, keys: &Path) -> Command {
    let mut command = host.command(env!("CARGO_BIN_EXE_stria"));
    command.env("STRIA_KEY_DIR", keys);
    command
}

/// A host that serves targets.
pub struct Server {
    /// Where.
    pub host: Host,
    config: PathBuf,
    keys: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
}

impl Server {
    /// Serves, and waits until it says so.
    pub fn start(&mut self) {
        let mut command = stria(&self.host, &self.keys);
        command.arg("serve").arg(&self.config);
        let mut daemon = Daemon::start(&self.host.name, command, &self.log);
        daemon.wait_for("serving ");
        self.daemon = Some(daemon);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.daemon.take().expect("the server runs").kill();
    }
}

/// A host that has the file system mounted.
pub struct Client {
    /// Where.
    pub host: Host,
    /// The mount.
    pub point: PathBuf,
    options: String,
    keys: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
}

impl Client {
    /// Mounts, and waits until the mount works.
    pub fn mount(&mut self) {
        let mut command = stria(&self.host, &self.keys);
        command.args(["mount", "--foreground", &source(), &self.point.to_string_lossy(), "-o", &self.options]);
        let mut daemon = Daemon::start(&self.host.name, command, &self.log);
        daemon.wait_for("mounted ");
        self.daemon = Some(daemon);
    }

    /// kill -9; the dead mount is detached.
    pub fn kill(&mut self) {
        self.daemon.take().expect("the client runs").kill();
        detach(&self.point);
    }

    /// What the client's process has logged.
    pub fn log(&self) -> String {
        self.daemon.as_ref().expect("the client runs").logged()
    }

    /// A path in the mount.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// Runs `lfs` on this client; its output.
    #[track_caller]
    pub fn lfs(&self, arguments: &[&str]) -> String {
        Program(stria(&self.host, &self.keys)).arg("lfs").args(arguments).succeed()
    }

    /// Runs `lfs` on this client, which must fail; all it says.
    #[track_caller]
    pub fn lfs_failure(&self, arguments: &[&str]) -> String {
        let output = Program(stria(&self.host, &self.keys)).arg("lfs").args(arguments).output();
        assert_ne!(output.status, 0, "lfs {arguments:?} succeeded: {}", output.stdout);
        output.stdout + &output.stderr
    }
}

fn source() -> String {
    format!("10.77.0.1:/{FSNAME}")
}

fn detach(point: &Path) {
    // Fails if it is not mounted, which is as good.
    let _ = Command::new("umount").arg("-l").arg(point).output();
}

/// A whole file system on several hosts. Everything ends when it is dropped.
pub struct Cluster {
    /// The metadata server.
    pub mds: Server,
    /// The object storage servers.
    pub oss: [Server; 2],
    /// Clients.
    pub clients: Vec<Client>,
    _network: Network,
    place: Place,
    /// One cluster at a time: a dozen processes are enough for small machines.
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Formats, starts and mounts everything; one client for each text of mount options.
    pub fn start(client_options: &[&str]) -> Cluster {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = Place::new();
        let network = Network::new();
        let [mds, oss1, oss2] = ["mds", "oss1", "oss2"].map(|name| network.host(name));
        let mut mds = server(&place, mds, &[("mgs", 0), ("mdt", 0)]);
        let mut oss =
            [server(&place, oss1, &[("ost", 0), ("ost", 1)]), server(&place, oss2, &[("ost", 2), ("ost", 3)])];
        mds.start();
        oss.iter_mut().for_each(Server::start);
        let clients = (1..).zip(client_options).map(|(number, options)| {
            let host = network.host(&format!("client{number}"));
            let point = place.mount_point(&format!("client{number}"));
            let log = place.data(&format!("client{number}.log"));
            let (options, keys) = ((*options).to_owned(), keys_of(&place));
            let mut client = Client { host, point, options, keys, log, daemon: None };
            client.mount();
            client
        });
        let clients = clients.collect();
        let cluster = Cluster { mds, oss, clients, _network: network, place, _turn: turn };
        cluster.wait_for_targets();
        cluster
    }

    /// Waits until every client sees all targets.
    pub fn wait_for_targets(&self) {
        for client in &self.clients {
            wait_for("all targets active", TIMEOUT, || {
                let list = client.lfs(&["osts", &client.point.to_string_lossy()]);
                (list.matches(" ACTIVE").count() == 4).then_some(())
            });
        }
    }

    /// Checks the file system from a client's host; panics with the findings if it is not clean.
    /// What was said.
    #[track_caller]
    pub fn expect_clean(&self) -> String {
        let fsck = Program(stria(&self.clients[0].host, &self.clients[0].keys)).args(["fsck", "--data", &source()]);
        let said = fsck.succeed();
        assert!(said.contains(" 0 problems"), "{said}");
        said
    }

    /// Begins a check from a client's host that may not end by itself; what it says on standard
    /// error is its log.
    pub fn begin_check(&self) -> Daemon {
        let mut command = stria(&self.clients[0].host, &self.clients[0].keys);
        command.args(["fsck", &source()]);
        Daemon::start("fsck", command, &self.place.data("fsck.log"))
    }

    fn daemons(&self) -> impl Iterator<Item = &Daemon> {
        let servers = [&self.mds].into_iter().chain(&self.oss).map(|server| &server.daemon);
        servers.chain(self.clients.iter().map(|client| &client.daemon)).flatten()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.daemons().for_each(|daemon| eprintln!("{}", daemon.log()));
        }
        for client in &mut self.clients {
            drop(client.daemon.take());
            detach(&client.point);
        }
    }
}

/// The directory of keys, with those that exist.
fn keys_of(place: &Place) -> PathBuf {
    keys::installed(place, &place.data("mgs0"))
}

/// Writes the configuration of a host like those in examples/ and formats its targets.
fn server(place: &Place, host: Host, targets: &[(&str, u16)]) -> Server {
    let mut text = format!(
        "fsname = \"{FSNAME}\"\nlisten = \"0.0.0.0:988\"\nadvertise = \"{}:988\"\nrun_dir = \"{}\"\nmemory_mib = 64\n",
        host.address,
        place.data("run").join(&host.name).display()
    );
    if !targets.iter().any(|(role, _)| *role == "mgs") {
        text.push_str("mgs = \"10.77.0.1:988\"\n");
    }
    for (role, index) in targets {
        let dir = place.data(&format!("{role}{index}"));
        text.push_str(&format!("\n[[target]]\nrole = \"{role}\"\nindex = {index}\ndir = \"{}\"\n", dir.display()));
    }
    let config = place.data(&format!("{}.toml", host.name));
    fs::write(&config, text).expect("the place is ours");
    let keys = keys_of(place);
    Program(stria(&host, &keys)).arg("format").arg(&config).succeed();
    let log = place.data(&format!("{}.log", host.name));
    Server { host, config, keys, log, daemon: None }
}
