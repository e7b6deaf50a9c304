//! A host with only a minimal Debian: a directory, entered by chroot, with mounts and a network of
//! its own.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{
    Daemon, Place, Program,
    programs::{installed, program},
};

/// What `./test` makes once, by mmdebstrap.
const IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/debian.tar");

/// See the module documentation. What is still mounted in it is unmounted when it is dropped.
pub struct Debian {
    holder: Daemon,
    root: PathBuf,
    /// Where its system's log would be; nobody reads it.
    _log: UnixDatagram,
}

impl Debian {
    /// A new host, in a directory of this place.
    pub fn new(place: &Place) -> Self {
        assert!(Path::new(IMAGE).exists(), "{IMAGE} is missing; ./test makes what the tests need");
        let root = place.data("debian");
        fs::create_dir(&root).expect("directory");
        program("tar").args(["--extract", "--numeric-owner", "--file", IMAGE]).within(&root).succeed();
        let log = UnixDatagram::bind(root.join("dev/log")).expect("the socket of the system's log");
        let mut command = Command::new(installed("unshare"));
        command.args(["--mount", "--net", "--propagation", "private", "sh", "-c", "echo ready; exec sleep infinity"]);
        let mut holder = Daemon::start("debian", command, &place.data("debian.log"));
        holder.wait_for("ready");
        let debian = Self { holder, root, _log: log };
        // A mount of its own, so that the mounts in it can be made private.
        let mounts =
            "mount --bind \"$0\" \"$0\"; cd \"$0\"; ip link set lo up; mknod dev/fuse c 10 229; chmod 666 dev/fuse
            mount -t proc proc proc; mount -t sysfs -o ro sys sys; mount -t tmpfs run run";
        debian.outside(&["bash", "-e", "-c", mounts, &debian.root.to_string_lossy()]).succeed();
        debian
    }

    /// A path of this host as the test sees it. (Not below `/run`, nor on what is mounted there.)
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A line for this host's shell, run by root.
    pub fn shell(&self, line: &str) -> Program {
        self.run(&["bash", "-c", line])
    }

    /// What the service manager would run for a unit, as its user.
    pub fn service(&self, unit: &Unit) -> Program {
        let capability = unit.value("AmbientCapabilities").trim_start_matches("CAP_").to_lowercase();
        let user = unit.value("User");
        let capabilities: Vec<String> = ["inh", "ambient"].map(|set| format!("--{set}-caps=-all,+{capability}")).into();
        let bounding = format!("--bounding-set=-all,+{capability}");
        let mut words =
            vec!["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--pdeathsig=KILL"];
        words.extend(capabilities.iter().map(String::as_str));
        words.push(&bounding);
        words.extend(["env"]);
        words.extend(unit.values("Environment"));
        words.extend(unit.value("ExecStart").split(' '));
        self.run(&words)
    }

    fn run(&self, words: &[&str]) -> Program {
        let root = self.root.to_string_lossy();
        self.outside(&[&["chroot", &root], words].concat())
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C")
    }

    /// A command of the test's own system in this host's mounts and network.
    fn outside(&self, words: &[&str]) -> Program {
        let [mounts, network] = [("mount", "mnt"), ("net", "net")]
            .map(|(option, name)| format!("--{option}=/proc/{}/ns/{name}", self.holder.pid()));
        let mut command = Command::new(installed("nsenter"));
        command.args([mounts, network]).args(words);
        Program(command)
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        self.outside(&["bash", "-c", "findmnt -rn -o TARGET -t fuse.stria | xargs -r umount -l"]).output();
    }
}

/// A systemd unit.
pub struct Unit {
    /// Keys and values, in order.
    settings: Vec<(String, String)>,
}

impl Unit {
    /// Reads the template of an instance.
    pub fn read(path: &Path, instance: &str) -> Self {
        let text = fs::read_to_string(path).expect("the unit").replace("%i", instance);
        let settings = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        Self { settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect() }
    }

    /// The values of a key.
    pub fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        self.settings.iter().filter(move |(found, _)| found == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key that is there.
    pub fn value(&self, key: &str) -> &str {
        self.values(key).next().unwrap_or_else(|| panic!("the unit has no {key}"))
    }
}
