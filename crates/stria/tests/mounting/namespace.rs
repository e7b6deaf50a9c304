//! A mount namespace of one test: no other process of the host sees what is mounted, bound or
//! configured in it.
//!
//! It has an `/etc` of its own (fstab, fuse.conf), a `/run/stria` in which only its own daemons are
//! found, and a `/dev/fuse` that every user may open, as udev creates it. Remaining mounts in it
//! are unmounted when it is dropped, and the processes that serve them end.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Daemon, FileSystem, Output, Place, Program, programs};

/// Ids of nobody and nogroup: the ordinary user of these tests.
pub const NOBODY: u32 = 65534;

/// Detaches all StriaFS mounts of a namespace without asking the processes that serve them.
const DETACH: &str = "findmnt -rn -o TARGET -t fuse.stria | xargs -r umount -cl";

/// See the module documentation.
pub struct Namespace {
    holder: Daemon,
    /// Variables for every command.
    variables: Vec<(&'static str, PathBuf)>,
    /// Directories with short names: mount points, the programs.
    root: tempfile::TempDir,
}

impl Namespace {
    /// A new namespace. Its commands have `$S`, a directory that anybody may enter, with the mount
    /// points `mnt` and, of nobody, `own` and the private `runtime`; `stria` and `lfs` are on their
    /// PATH; `pgrep $MOUNTING` finds the background processes of mounts.
    pub fn new(place: &Place) -> Self {
        let root = tempfile::Builder::new().prefix("stria-").tempdir_in("/tmp").expect("directory");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("own directory");
        let mut command = Command::new(programs::installed("unshare"));
        command.args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep infinity"]);
        let mut holder = Daemon::start("namespace", command, &place.data("namespace.log"));
        holder.wait_for("ready");
        let mounting = format!("--ns {} --nslist mnt -f -- --detached", holder.pid());
        let variables = vec![("S", root.path().to_owned()), ("MOUNTING", mounting.into())];
        let namespace = Self { holder, variables, root };
        // Mounts of other tests, which may hang, are copied into a new namespace. One below another
        // goes with it, and is then not found.
        namespace.shell(DETACH).output();
        let prepare = format!(
            "set -e; cd $S; mkdir bin mnt own; mkdir -m 700 runtime; chown {NOBODY} own runtime
            touch bin/stria; mount --bind {} bin/stria; ln -s stria bin/lfs
            cp -a /etc etc; : > etc/fuse.conf; : > etc/fstab; mount --bind etc /etc
            mkdir -p /run/stria; mount -t tmpfs -o mode=700 run /run/stria
            mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse",
            env!("CARGO_BIN_EXE_stria")
        );
        namespace.shell(&prepare).succeed();
        namespace
    }

    /// As [`Namespace::new`], with `$SOURCE`: what `stria mount` mounts of a file system over TCP.
    pub fn beside(system: &FileSystem) -> Self {
        let mut namespace = Self::new(system.place());
        namespace.set("SOURCE", system.source());
        namespace.install_key(&system.place().data("mgs0/client.key"));
        namespace
    }

    /// Puts the key of clients where root and the ordinary user look for it, also as that of a
    /// file system `other`.
    pub fn install_key(&self, key: &Path) {
        let line = format!(
            "set -e; mkdir -p /etc/stria; mkdir -p -m 700 $S/keys; chown {NOBODY} $S/keys
            for name in stria other; do
                install -m 600 {0} /etc/stria/$name.client.key
                sed -i 's/ stria / '$name' /' /etc/stria/$name.client.key
                install -m 600 -o {NOBODY} /etc/stria/$name.client.key $S/keys/$name.client.key
            done",
            key.display()
        );
        self.shell(&line).succeed();
    }

    /// From now on `/tmp` has nothing but `$S`, and what is made there no other process of the host
    /// sees.
    pub fn make_tmp_private(&self) {
        let line = "set -e; mkdir $S/tmp; mount -t tmpfs -o mode=1777 tmp $S/tmp; mkdir $S/tmp/${S#/tmp/}
            mount --rbind $S $S/tmp/${S#/tmp/}; mount --move $S/tmp /tmp; cd /tmp; test \"$(ls -A)\" = \"${S#/tmp/}\"";
        self.shell(line).succeed();
    }

    /// Sets a variable of all later commands.
    pub fn set(&mut self, name: &'static str, value: impl Into<PathBuf>) {
        self.variables.push((name, value.into()));
    }

    /// `$S`, as seen from inside.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// A line for the shell, run by root. Standard error comes with the output, in order.
    pub fn shell(&self, line: &str) -> Program {
        self.run(&[], line)
    }

    /// A line for the shell, run by an ordinary user.
    pub fn as_nobody(&self, line: &str) -> Program {
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
        let runtime = self.root().join("runtime");
        let program = self.run(&["setpriv", &ids[0], &ids[1], &ids[2]], line).env("XDG_RUNTIME_DIR", runtime);
        program.env("STRIA_KEY_DIR", self.root().join("keys"))
    }

    /// Something that runs until it is stopped, as an ordinary user or root.
    pub fn daemon(&self, name: &str, ordinary: bool, line: &str, log: &Path) -> Daemon {
        let line = format!("exec {line}");
        let Program(command) = if ordinary { self.as_nobody(&line) } else { self.shell(&line) };
        Daemon::start(name, command, log)
    }

    fn run(&self, prefix: &[&str], line: &str) -> Program {
        let mut command = Command::new(programs::installed("nsenter"));
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid()));
        command.args(prefix).args(["bash", "-c", line]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}/bin:{path}:/usr/sbin:/sbin", self.root().display()));
        command.env("LC_ALL", "C").env_remove("XDG_RUNTIME_DIR").current_dir("/");
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        Program(command)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.shell(DETACH).output();
    }
}

/// Runs a line that must fail on its own, in words; what it said.
#[track_caller]
pub fn refused(program: Program) -> String {
    let Output { status, stdout, stderr } = program.output();
    assert!((1..128).contains(&status), "ended with {status}: {stdout}{stderr}");
    assert!(!stderr.contains("panicked at"), "{stderr}");
    besides_log(&stderr)
}

/// What was said, without the note on hosts that have no system log.
pub fn besides_log(stderr: &str) -> String {
    stderr.split_inclusive('\n').filter(|line| !line.contains("there is no system log (/dev/log) here")).collect()
}
