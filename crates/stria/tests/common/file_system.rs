//! A whole file system of the shipped binary for one test, over either transport.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{Daemon, Output, Place, Port, Program, keys};

/// How clients and targets talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `stria up`: everything in one process, one mount.
    InProcess,
    /// `stria serve` twice (MGS and MDT; OSTs) and `stria mount` for each client, over loopback.
    Tcp,
}

/// OSTs of every file system here.
pub const OSTS: u16 = 4;

/// The daemons of a [`Transport::Tcp`] file system, in the order they start; further MDTs that are
/// processes of their own come after them.
const SERVERS: [&str; 2] = ["mds", "oss"];

/// A running file system.
pub struct FileSystem {
    transport: Transport,
    clients: Vec<Client>,
    servers: Vec<Server>,
    place: Place,
    /// MDTs and OSTs that `up` is started with.
    mdts: u16,
    osts: u16,
    /// Over TCP: further MDTs are processes of their own, not with the OSTs.
    mdts_apart: bool,
    /// Options of mounts over TCP, as after `-o`.
    mount_options: String,
    /// What daemons log, as in `STRIA_LOG`.
    log: Option<&'static str>,
    finished: bool,
}

struct Client {
    point: PathBuf,
    daemon: Option<Daemon>,
}

struct Server {
    config: PathBuf,
    name: String,
    port: Port,
    daemon: Option<Daemon>,
}

/// The binary under test.
pub fn stria() -> Command {
    Command::new(env!("CARGO_BIN_EXE_stria"))
}

impl FileSystem {
    /// Starts a new file system and mounts it `clients` times ([`Transport::InProcess`]: once).
    pub fn start(transport: Transport, clients: usize) -> Self {
        Self::start_in(Place::new(), transport, clients)
    }

    /// As [`FileSystem::start`], in a place that was prepared: what `up` has there is in `up`.
    pub fn start_in(place: Place, transport: Transport, clients: usize) -> Self {
        Self::start_with(place, transport, clients, 1)
    }

    /// As [`FileSystem::start`], with several MDTs; over TCP the first one is a process of its own,
    /// and the others are with the OSTs. Directories are on the MDT of their name.
    pub fn start_with_mdts(transport: Transport, clients: usize, mdts: u16) -> Self {
        let system = Self::start_with(Place::new(), transport, clients, mdts);
        if clients > 0 {
            system.without_spread();
        }
        system
    }

    /// New directories are on the MDT of their name: tests choose others.
    pub fn without_spread(&self) {
        self.shell("lfs setdirstripe -d $A").succeed();
    }

    /// As [`FileSystem::start_with_mdts`] over TCP, with each MDT in a process of its own:
    /// [`FileSystem::server_of_mdt`].
    pub fn start_with_mdts_apart(clients: usize, mdts: u16) -> Self {
        let mut system = Self::not_started(Place::new(), Transport::Tcp, mdts);
        system.mdts_apart = true;
        system.start_first_time(&[]);
        system.add_clients(clients);
        if clients > 0 {
            system.without_spread();
        }
        system
    }

    fn start_with(place: Place, transport: Transport, clients: usize, mdts: u16) -> Self {
        assert!(transport == Transport::Tcp || clients == 1, "one process has one mount");
        let mut system = Self::not_started(place, transport, mdts);
        if transport == Transport::Tcp {
            system.start_first_time(&[]);
        }
        system.add_clients(clients);
        system
    }

    /// As [`FileSystem::start`] over TCP; the first OSTs keep their objects on devices, which are
    /// made as `stria format` is asked for each: `--size 64M`, or `--device /dev/loop0`. Those that
    /// have nothing but a device: `alone:PATH`, and options, if any; `alone` for a file in place of
    /// the directory.
    pub fn start_on_devices(devices: &[&str], clients: usize) -> Self {
        let mut system = Self::not_started(Place::new(), Transport::Tcp, 1);
        system.start_first_time(devices);
        system.add_clients(clients);
        system
    }

    /// As [`FileSystem::start_on_devices`], with nothing in host files.
    pub fn start_all_on_devices(clients: usize) -> Self {
        Self::start_on_devices(&["--size 256M"; OSTS as usize], clients)
    }

    fn not_started(place: Place, transport: Transport, mdts: u16) -> Self {
        Self {
            transport,
            clients: Vec::new(),
            servers: Vec::new(),
            place,
            mdts,
            osts: OSTS,
            mdts_apart: false,
            mount_options: "rw".to_owned(),
            log: None,
            finished: false,
        }
    }

    /// Mounts the file system so many times more, with the options that count now.
    pub fn add_clients(&mut self, clients: usize) {
        for client in self.clients.len()..self.clients.len() + clients {
            let letter = char::from(b'a' + u8::try_from(client).expect("few clients"));
            let point = self.place.mount_point(&letter.to_string());
            self.clients.push(Client { point, daemon: None });
            self.mount(client);
        }
    }

    /// From its next start on, `up` has that many MDTs.
    pub fn set_mdts(&mut self, mdts: u16) {
        self.mdts = mdts;
    }

    /// Adds an MDT, a process of its own, while all others run. Returns its index.
    pub fn add_mdt(&mut self) -> u16 {
        assert!(self.transport == Transport::Tcp, "up has all targets in one process");
        let index = self.mdts;
        self.mdts += 1;
        self.add_server(&format!("mdt{index}"), &[]);
        index
    }

    /// From its next start on, `up` has that many OSTs.
    pub fn set_osts(&mut self, osts: u16) {
        self.osts = osts;
    }

    /// From the next mount on, these options count.
    pub fn set_mount_options(&mut self, options: &str) {
        options.clone_into(&mut self.mount_options);
    }

    /// From their next start on, daemons log this.
    pub fn set_log(&mut self, filter: &'static str) {
        self.log = Some(filter);
    }

    fn daemon_command(&self) -> Command {
        let mut command = self.command();
        command.envs(self.log.map(|filter| ("STRIA_LOG", filter)));
        command
    }

    /// The program, which finds the keys of this file system.
    fn command(&self) -> Command {
        let mut command = stria();
        keys::let_find(&mut command, &self.place, &self.mgs_directory());
        command
    }

    /// Where the management service is, if it is a process of its own.
    fn mgs_directory(&self) -> PathBuf {
        self.place.data("mgs0")
    }

    /// How many MDTs it has.
    pub fn mdts(&self) -> u16 {
        self.mdts
    }

    /// Mount point of a client.
    pub fn path(&self, client: usize) -> &Path {
        &self.clients[client].point
    }

    /// Mount point of the only or first client.
    pub fn root(&self) -> &Path {
        self.path(0)
    }

    /// Its directories.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Mounts a client (again); `up` starts everything.
    pub fn mount(&mut self, client: usize) {
        let point = &self.clients[client].point;
        let mut command = self.daemon_command();
        match self.transport {
            Transport::InProcess => {
                command.arg("up").args(["--mdts", &self.mdts.to_string(), "--osts", &self.osts.to_string()]);
                command.arg("--dir").arg(self.place.data("up")).arg("--mount").arg(point);
            }
            Transport::Tcp => {
                command.args(["mount", "--foreground", "-o", &self.mount_options, &self.source()]).arg(point);
            }
        }
        let log = self.place.data(&format!("client{client}.log"));
        let mut daemon = Daemon::start(&format!("client {client}"), command, &log);
        daemon.wait_for("mounted");
        self.clients[client].daemon = Some(daemon);
    }

    /// Stops a client cleanly.
    pub fn unmount(&mut self, client: usize) {
        self.clients[client].daemon.take().expect("it is mounted").stop();
    }

    /// What the process of a client has logged since it started.
    pub fn client_log(&self, client: usize) -> String {
        self.clients[client].daemon.as_ref().expect("it is mounted").logged()
    }

    /// Kills the process of a client: `up` with all its targets, or `mount` alone.
    pub fn kill_client(&mut self, client: usize) {
        self.clients[client].daemon.take().expect("it is mounted").kill();
    }

    /// Process of a client.
    pub fn client_pid(&self, client: usize) -> u32 {
        self.clients[client].daemon.as_ref().expect("it is mounted").pid()
    }

    /// The server of an MDT, where each is a process of its own.
    pub fn server_of_mdt(&self, mdt: u16) -> usize {
        assert!(self.mdts_apart && mdt < self.mdts, "MDT {mdt} has a process");
        if mdt == 0 { 0 } else { SERVERS.len() - 1 + usize::from(mdt) }
    }

    /// Kills a server (0: MGS and MDT, 1: OSTs); clients stay.
    pub fn kill_server(&mut self, server: usize) {
        self.servers[server].daemon.take().expect("it runs").kill();
    }

    /// Process of a server.
    pub fn server_pid(&self, server: usize) -> u32 {
        self.servers[server].daemon.as_ref().expect("it runs").pid()
    }

    /// What a server has logged since it started.
    pub fn server_log(&self, server: usize) -> String {
        self.servers[server].daemon.as_ref().expect("it runs").logged()
    }

    /// Starts a server, after it was killed at its old address.
    pub fn start_server(&mut self, server: usize) {
        let Server { config, name, .. } = &self.servers[server];
        let mut command = self.daemon_command();
        command.arg("serve").arg(config);
        let mut daemon = Daemon::start(name, command, &self.place.data(&format!("{name}.log")));
        daemon.wait_for("serving");
        self.servers[server].daemon = Some(daemon);
    }

    /// What `stria mount` mounts: `HOST:PORT:/stria`.
    pub fn source(&self) -> String {
        format!("{}:/stria", self.servers[0].port.address())
    }

    /// Stops everything, and lets `stria fsck` look at it: the stopped directory, or the servers
    /// without clients.
    pub fn finish(mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].daemon.is_some() {
                self.unmount(client);
            }
        }
        self.check();
        for server in &mut self.servers {
            server.daemon.take().expect("servers run until the end").stop();
        }
        self.finished = true;
    }

    /// `stria fsck`, reading all data: there must be nothing to complain about.
    pub fn check(&self) {
        let Output { status, stdout, stderr } = self.fsck(&["--data"]);
        assert!(status == 0 && stdout.contains(" 0 problems"), "fsck ended with {status}:\n{stdout}{stderr}");
    }

    /// `stria fsck` with these options.
    pub fn fsck(&self, options: &[&str]) -> Output {
        let source = match self.transport {
            Transport::InProcess => self.place.data("up").into_os_string(),
            Transport::Tcp => self.source().into(),
        };
        Program(self.command()).arg("fsck").arg(source).args(options).output()
    }

    /// A command line with `lfs` and `stria` on PATH, and `A`, `B`, ... for the mounts.
    pub fn shell(&self, line: &str) -> Program {
        let mut program = super::programs::shell(line).env("PATH", self.place.path_variable());
        program = program.env("STRIA_KEY_DIR", keys::installed(&self.place, &self.mgs_directory()));
        for client in &self.clients {
            program = program.env(&variable(&client.point), &client.point);
        }
        program
    }

    /// Runs `stria ctl` on the daemon that has the metadata target; it must succeed.
    pub fn ctl(&self, command: &str) -> String {
        let run_dir = match self.transport {
            Transport::InProcess => self.place.data("up").join("run"),
            Transport::Tcp => self.place.data("run"),
        };
        self.shell(&format!("stria ctl --run-dir {} {command}", run_dir.display())).succeed()
    }

    /// The clients cache nothing from now on: each operation asks the servers.
    pub fn switch_caches_off(&self) {
        self.ctl_of_clients("set_param 'ldlm.namespaces.*.lru_size=0'");
    }

    /// Runs `stria ctl` on each client; it must succeed.
    pub fn ctl_of_clients(&self, command: &str) {
        (0..self.clients.len()).for_each(|client| drop(self.ctl_of_client(client, command)));
    }

    /// Runs `stria ctl` on a client; it must succeed.
    pub fn ctl_of_client(&self, client: usize, command: &str) -> String {
        if self.transport == Transport::InProcess {
            return self.ctl(command);
        }
        // The sockets of all mounts of this host are in one directory.
        let (pid, directory) = (self.client_pid(client), self.place.data(&format!("client{client}.run")));
        std::fs::create_dir_all(&directory).expect("directory of the test");
        let link = directory.join(format!("{pid}.sock"));
        if !link.is_symlink() {
            std::os::unix::fs::symlink(format!("/run/stria/{pid}.sock"), link).expect("link");
        }
        self.shell(&format!("stria ctl --run-dir {} {command}", directory.display())).succeed()
    }

    /// Requests to the mounts must come as the kernel offers it at present: tests that are run once
    /// for each way must not fall back to the other one silently.
    pub fn expect_offered_transport(&self) {
        let expected = if offers_ring() { "io_uring" } else { "dev_fuse" };
        for client in 0..self.clients.len() {
            assert_eq!(self.ctl_of_client(client, "get_param -n fuse.transport").trim(), expected, "client {client}");
        }
    }

    /// Files that nobody chooses a layout for have one stripe from now on, as Lustre's users expect
    /// without a default.
    pub fn end_automatic_layouts(&self) {
        self.ctl("set_param 'lod.*.automatic=0'");
    }

    /// `text` with the mount points for `$A`, `$B`, ...
    pub fn with_mount_points(&self, text: &str) -> String {
        self.clients.iter().fold(text.to_owned(), |text, client| {
            let name = format!("${}", variable(&client.point));
            text.replace(&name, &client.point.to_string_lossy())
        })
    }

    /// Formats and serves.
    fn start_first_time(&mut self, devices: &[&str]) {
        let apart = (1..self.mdts).filter(|_| self.mdts_apart).map(|index| format!("mdt{index}"));
        let names: Vec<String> = SERVERS.into_iter().map(str::to_owned).chain(apart).collect();
        names.iter().for_each(|name| self.add_server(name, devices));
    }

    fn add_server(&mut self, name: &str, devices: &[&str]) {
        let (config, port) = (self.place.data(&format!("{name}.toml")), Port::reserve());
        let mgs = self.servers.first().map(|server| server.port.address());
        let mut text = self.configuration(name, &port.address(), mgs.as_deref());
        for (index, device) in devices.iter().enumerate().filter(|_| name == "oss") {
            if let Some(rest) = device.strip_prefix("alone") {
                let usual = self.place.data(&format!("ost{index}")).display().to_string();
                let path = rest.split(' ').next().and_then(|path| path.strip_prefix(':')).unwrap_or(&usual);
                text = text.replace(&format!("dir = \"{usual}\""), &format!("device = \"{path}\""));
            }
        }
        let osts: Vec<&str> = text.split_inclusive("[[target]]\n").collect();
        for (index, device) in devices.iter().enumerate().filter(|_| name == "oss") {
            let one = format!("{}{}", osts[0], osts[index + 1].trim_end_matches("[[target]]\n"));
            std::fs::write(&config, one).expect("configuration");
            let is_alone = device.starts_with("alone");
            let options = device.split(' ').skip(usize::from(is_alone)).collect::<Vec<_>>();
            let engine: &[&str] = if is_alone { &[] } else { &["--engine", "blocks"] };
            Program(self.command()).arg("format").arg(&config).args(engine).args(options).succeed();
        }
        std::fs::write(&config, text).expect("configuration");
        let options: &[&str] = if devices.is_empty() { &[] } else { &["--missing-only"] };
        Program(self.command()).arg("format").arg(&config).args(options).succeed();
        self.servers.push(Server { config, name: name.to_owned(), port, daemon: None });
        self.start_server(self.servers.len() - 1);
    }

    fn configuration(&self, name: &str, listen: &str, mgs: Option<&str>) -> String {
        let run_dir = self.place.data("run");
        let mut text = format!("fsname = \"stria\"\nlisten = \"{listen}\"\nrun_dir = \"{}\"\n", run_dir.display());
        if let Some(mgs) = mgs {
            text.push_str(&format!("mgs = \"{mgs}\"\n"));
        }
        let mut target = |role: &str, index: u16| {
            let dir = self.place.data(&format!("{role}{index}"));
            let dir = dir.display();
            text.push_str(&format!("[[target]]\nrole = \"{role}\"\nindex = {index}\ndir = \"{dir}\"\n"));
        };
        match name {
            "mds" => ["mgs", "mdt"].into_iter().for_each(|role| target(role, 0)),
            "oss" => {
                (1..self.mdts).filter(|_| !self.mdts_apart).for_each(|index| target("mdt", index));
                (0..OSTS).for_each(|index| target("ost", index));
            }
            _ => {
                let index = name.strip_prefix("mdt").and_then(|index| index.parse().ok());
                target("mdt", index.expect("the other servers are MDTs"));
            }
        }
        text
    }
}

/// Whether the kernel offers FUSE over io_uring at present.
pub fn offers_ring() -> bool {
    std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok_and(|offered| offered.starts_with('Y'))
}

/// The variable that names a mount point to a shell: `A` for `.../a`.
fn variable(point: &Path) -> String {
    point.file_name().expect("mount points have names").to_string_lossy().to_uppercase()
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test has failed: say what the daemons said, before they are killed.
            for daemon in self.clients.iter().filter_map(|client| client.daemon.as_ref()) {
                eprintln!("{}", daemon.log());
            }
            for daemon in self.servers.iter().filter_map(|server| server.daemon.as_ref()) {
                eprintln!("{}", daemon.log());
            }
        } else {
            assert!(self.finished, "a test ends with finish(), so that the file system is checked");
        }
    }
}
