//! A file system of one daemon and one mount on a host of its own, for destructive tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::common::{
    Daemon, Output, Place, Program, TIMEOUT, keys,
    network::{Host, Network},
    programs::program,
    wait_for,
};

/// The program under test.
pub const STRIA: &str = env!("CARGO_BIN_EXE_stria");

/// See the module documentation. Everything ends when it is dropped.
pub struct Site {
    /// Where.
    pub host: Host,
    osts: u16,
    daemon: Option<Daemon>,
    mount: Option<Daemon>,
    /// Directories mounted below the targets.
    mounted: Vec<PathBuf>,
    point: PathBuf,
    _network: Network,
    place: Place,
}

/// What a program that failed printed.
#[derive(Debug)]
pub struct Refusal(pub String);

impl Refusal {
    /// Checks that the error says all this.
    #[track_caller]
    pub fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.0.contains(part), "'{part}' is missing in: {}", self.0);
        }
    }
}

impl Site {
    /// A site whose configuration has this many OSTs; nothing is formatted yet.
    pub fn new(osts: u16) -> Site {
        let network = Network::new();
        let mut place = Place::new();
        let (host, point) = (network.host("site"), place.mount_point("mnt"));
        let site = Site { host, osts, daemon: None, mount: None, mounted: Vec::new(), point, _network: network, place };
        site.configure("");
        site
    }

    /// A site that is formatted, serves and is mounted.
    pub fn running(osts: u16) -> Site {
        let mut site = Site::new(osts);
        site.stria(&["format", &site.config()]);
        site.serve();
        site.mount("rw");
        site
    }

    /// A path in the site's place.
    pub fn place(&self, name: &str) -> PathBuf {
        self.place.data(name)
    }

    /// A path in the mount.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// As [`Site::path`], as an argument.
    pub fn name(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// The daemon's configuration file.
    pub fn config(&self) -> String {
        self.place("site.toml").to_string_lossy().into_owned()
    }

    /// Configuration of a daemon that serves everything of this site.
    pub fn config_text(&self) -> String {
        let place = self.place("").display().to_string();
        let place = place.trim_end_matches('/');
        let mut text = format!(
            "fsname = \"stria\"\nlisten = \"10.77.0.1:988\"\nrun_dir = \"{place}/run\"\nmemory_mib = 64\n\
             [[target]]\nrole = \"mgs\"\ndir = \"{place}/mgs\"\n[[target]]\nrole = \"mdt\"\ndir = \"{place}/mdt0\"\n"
        );
        for index in 0..self.osts {
            text.push_str(&format!("[[target]]\nrole = \"ost\"\nindex = {index}\ndir = \"{place}/ost{index}\"\n"));
        }
        text
    }

    /// Writes the configuration with `more` after it.
    pub fn configure(&self, more: &str) {
        fs::write(self.place("site.toml"), self.config_text() + more).expect("the place is ours");
    }

    /// Mounts something on a directory of the site before it is used; unmounted with the site.
    pub fn attach(&mut self, directory: &str, arguments: &[&str]) {
        let point = self.place(directory);
        fs::create_dir(&point).expect("the directory is new");
        program("mount").args(arguments).arg(&point).succeed();
        self.mounted.push(point);
    }

    /// Starts the daemon.
    pub fn serve(&mut self) {
        let serves = self.try_serve();
        assert!(serves, "{}", fs::read_to_string(self.place("site.log")).unwrap_or_default());
    }

    /// Starts the daemon; false if it refuses.
    pub fn try_serve(&mut self) -> bool {
        let mut daemon = self.daemon("site", &["serve", &self.config()]);
        let serves = daemon.comes_to("serving ").is_some();
        self.daemon = serves.then_some(daemon);
        serves
    }

    /// Starts something that runs until it is stopped.
    pub fn daemon(&self, name: &str, arguments: &[&str]) -> Daemon {
        Daemon::start(name, self.command(arguments), &self.place(&format!("{name}.log")))
    }

    /// kill -9 of the daemon.
    pub fn kill(&mut self) {
        self.daemon.take().expect("the daemon runs").kill();
    }

    /// Clean end of the daemon.
    pub fn stop(&mut self) {
        self.daemon.take().expect("the daemon runs").stop();
    }

    /// What the present daemon has logged.
    pub fn log(&self) -> String {
        self.daemon.as_ref().expect("the daemon runs").logged()
    }

    /// What the mount has logged.
    pub fn mount_log(&self) -> String {
        self.mount.as_ref().expect("the mount exists").logged()
    }

    /// Memory of the daemon in bytes.
    pub fn daemon_memory(&self) -> u64 {
        self.daemon.as_ref().expect("the daemon runs").memory_bytes()
    }

    /// Mounts, and waits until all targets are connected.
    pub fn mount(&mut self, options: &str) {
        let mut daemon =
            self.daemon("mount", &["mount", "--foreground", "10.77.0.1:/stria", &self.name(""), "-o", options]);
        daemon.wait_for("mounted ");
        self.mount = Some(daemon);
        self.wait_for_osts(usize::from(self.osts));
    }

    /// Mounts; false if that is refused.
    pub fn try_mount(&mut self) -> bool {
        let mut daemon = self.daemon("mount", &["mount", "--foreground", "10.77.0.1:/stria", &self.name("")]);
        let mounted = daemon.comes_to("mounted ").is_some();
        self.mount = mounted.then_some(daemon);
        mounted
    }

    /// Clean end of the mount.
    pub fn unmount(&mut self) {
        self.mount.take().expect("the mount exists").stop();
    }

    /// Waits until this many OSTs are active.
    #[track_caller]
    pub fn wait_for_osts(&self, count: usize) {
        wait_for("active targets", TIMEOUT, || {
            let list = self.stria(&["lfs", "osts", &self.name("")]);
            (list.matches(" ACTIVE").count() == count).then_some(())
        });
    }

    /// Directory of the keys that programs on this site find.
    pub fn keys(&self) -> PathBuf {
        keys::installed(&self.place, &self.place("mgs"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(STRIA);
        command.args(arguments).env("RUST_BACKTRACE", "0");
        command.env("STRIA_KEY_DIR", self.keys());
        command
    }

    /// Runs `stria` with these arguments; its output.
    #[track_caller]
    pub fn stria(&self, arguments: &[&str]) -> String {
        Program(self.command(arguments)).succeed()
    }

    /// Runs `stria` with these arguments to its end, whatever that is.
    pub fn output(&self, arguments: &[&str]) -> Output {
        Program(self.command(arguments)).output()
    }

    /// Runs `stria` with these arguments, which must fail on its own in words of one or a few
    /// lines.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> Refusal {
        let Output { status, stdout, stderr } = self.output(arguments);
        assert!((1..128).contains(&status), "stria {arguments:?} ended with {status}: {stdout}{stderr}");
        assert!(!stderr.contains("panicked at"), "stria {arguments:?}: {stderr}");
        let said = stderr.lines().filter(|line| !line.contains(" INFO ")).count();
        assert!((1..12).contains(&said), "stria {arguments:?}: {stderr}");
        Refusal(stderr)
    }

    /// Runs `stria ctl` on the daemon.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let run_dir = self.place("run").to_string_lossy().into_owned();
        self.stria(&[&["ctl", "--run-dir", &run_dir], arguments].concat())
    }

    /// Runs `stria ctl` on the daemon, which must refuse.
    #[track_caller]
    pub fn ctl_refused(&self, arguments: &[&str]) -> Refusal {
        let run_dir = self.place("run").to_string_lossy().into_owned();
        self.refused(&[&["ctl", "--run-dir", &run_dir], arguments].concat())
    }

    /// A new file whose only stripe is on this OST.
    #[track_caller]
    pub fn file_on(&self, name: &str, ost: u16) -> PathBuf {
        self.stria(&["lfs", "setstripe", "-c", "1", "-i", &ost.to_string(), &self.name(name)]);
        self.path(name)
    }

    /// The OST of a file's first stripe.
    #[track_caller]
    pub fn ost_of(&self, name: &str) -> u16 {
        let text = self.stria(&["lfs", "getstripe", "-i", &self.name(name)]);
        text.trim().parse().unwrap_or_else(|_| panic!("lfs getstripe -i: {text}"))
    }

    /// Checks the file system; panics with the findings if it is not clean.
    #[track_caller]
    pub fn expect_clean(&self) {
        self.stria(&["fsck", "--data", "10.77.0.1:/stria"]);
    }

    /// What fsck finds; it must find something.
    #[track_caller]
    pub fn findings(&self) -> Refusal {
        let Output { status, stdout, stderr } = self.output(&["fsck", "--data", "10.77.0.1:/stria"]);
        assert_ne!(status, 0, "fsck found nothing: {stdout}");
        Refusal(stdout + &stderr)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for daemon in [self.mount.take(), self.daemon.take()].into_iter().flatten() {
            if std::thread::panicking() {
                eprintln!("{}", daemon.log());
            }
        }
        self.mounted.push(self.point.clone());
        for point in self.mounted.iter().rev() {
            // Fails if it is not mounted, which is as good.
            let _ = Command::new("umount").arg("-l").arg(point).output();
        }
    }
}

/// How long an operation took.
pub fn timed<T>(operation: impl FnOnce() -> T) -> (T, Duration) {
    let begun = std::time::Instant::now();
    let result = operation();
    (result, begun.elapsed())
}
