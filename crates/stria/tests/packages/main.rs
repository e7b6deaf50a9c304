//! The Debian package, as users meet it: built from the binary under test, installed in a minimal
//! Debian, served as defined in its unit, mounted by fstab, operated as described in
//! docs/operating.md, purged.

#[path = "../common/mod.rs"]
mod common;
mod debian;
mod operating;

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use common::{
    Daemon, Place, Program, TIMEOUT,
    programs::{program, shell},
};
use debian::{Debian, Unit};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// What `stria generate` writes is in one place, from which packages take it.
static GENERATED: Mutex<()> = Mutex::new(());

/// Makes what packages are made of, and returns where.
fn generate() -> PathBuf {
    let directory = Path::new(REPOSITORY).join("packaging/generated");
    let _ = fs::remove_dir_all(&directory);
    program(env!("CARGO_BIN_EXE_stria")).arg("generate").arg(&directory).succeed();
    directory
}

/// Builds the package around the binary under test, which is not compiled again.
fn build(package: &Path) {
    let _guard = GENERATED.lock().unwrap_or_else(PoisonError::into_inner);
    generate();
    let profile = match Path::new(env!("CARGO_BIN_EXE_stria")).parent().and_then(Path::file_name) {
        Some(directory) if directory == "debug" => "dev".into(),
        directory => directory.expect("binaries are in the directory of their profile").to_owned(),
    };
    let build = program("cargo-deb").arg("deb").args(["-p", "stria", "--no-build", "--fast", "--strip", "--profile"]);
    build.arg(profile).arg("--output").arg(package).within(Path::new(REPOSITORY)).succeed();
}

/// Reads messages to the service manager up to one that contains `wanted`.
fn heard(manager: &UnixDatagram, server: &Daemon, wanted: &str) -> String {
    loop {
        let mut bytes = [0; 4096];
        let length = manager
            .recv(&mut bytes)
            .unwrap_or_else(|error| panic!("'{wanted}' was not heard: {error}\n{}", server.log()));
        let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if message.contains(wanted) {
            return message;
        }
    }
}

const CONFIGURATION: &str = r#"
fsname = "stria"
listen = "127.0.0.1:988"
memory_mib = 64
[[target]]
role = "mgs"
dir = "/var/lib/stria/mgs"
[[target]]
role = "mdt"
dir = "/var/lib/stria/mdt0"
[[target]]
role = "ost"
index = 0
dir = "/var/lib/stria/ost0"
"#;

#[test]
fn the_package_installs_serves_mounts_and_goes() {
    let place = Place::new();
    let debian = Debian::new(&place);
    build(&debian.path("/stria.deb"));
    debian.shell("dpkg -i /stria.deb").succeed();
    debian.shell("stria --version && lfs --version && test -s /usr/share/man/man1/stria-mount.1.gz").succeed();
    assert_eq!(debian.shell("readlink -f /sbin/mount.fuse.stria").succeed(), "/usr/bin/stria\n");
    let sections = program("readelf").args(["--sections", "--wide"]).arg(debian.path("/usr/bin/stria")).succeed();
    let kept = [".debug_info", ".debug_line", ".symtab"].into_iter().find(|section| sections.contains(section));
    assert_eq!(kept, None, "it has debug information:\n{sections}");
    debian.shell(". /usr/share/bash-completion/completions/stria && complete -p stria").succeed();

    // As packaging/README.md says.
    fs::write(debian.path("/etc/stria/fs.toml"), CONFIGURATION).expect("the package makes /etc/stria");
    debian.shell("stria format --user stria /etc/stria/fs.toml").succeed();
    let owners = "find /var/lib/stria -printf '%u:%g\\n' | sort -u";
    assert_eq!(debian.shell(owners).succeed(), "stria:stria\n");

    let socket = debian.path("/notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(TIMEOUT)).expect("an option of every socket");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("its own file");
    let unit = Unit::read(&debian.path("/usr/lib/systemd/system/stria-serve@.service"), "fs");
    assert_eq!(unit.value("Type"), "notify");
    let Program(command) = debian.service(&unit).env("NOTIFY_SOCKET", "/notify");
    let server = Daemon::start("stria-serve@fs", command, &place.data("serve.log"));
    assert_eq!(heard(&manager, &server, "STATUS="), "STATUS=opening 3 targets\n");
    let ready = heard(&manager, &server, "READY=1");
    assert!(ready.contains("STATUS=serving MGS, stria-MDT0000, stria-OST0000 at 127.0.0.1:988; not reg"), "{ready}");
    assert!(!heard(&manager, &server, "STATUS=serving").contains("not registered"));

    debian.shell("install -m 600 /var/lib/stria/mgs/client.key /etc/stria/stria.client.key").succeed();
    fs::write(debian.path("/etc/fstab"), "127.0.0.1:/stria /mnt/stria fuse.stria defaults,_netdev 0 0\n")
        .expect("write");
    debian.shell("mkdir /mnt/stria && mount /mnt/stria && mountpoint /mnt/stria").succeed();
    debian.shell("cp -r /usr/share/doc /mnt/stria && diff -r /usr/share/doc /mnt/stria/doc").succeed();
    assert_eq!(debian.shell("stat -c %U:%G /mnt/stria").succeed(), "root:root\n", "it is not the servers'");
    // Root finds the server, which is another user's, and the mount.
    let daemons = debian.shell("stria ctl dl").succeed();
    assert!(daemons.contains("stria serve") && daemons.contains("stria mount at /mnt/stria"), "{daemons}");
    debian.shell("lfs df /mnt/stria && umount /mnt/stria && ! mountpoint /mnt/stria").succeed();

    server.stop();
    let mut last = [0; 256];
    let length = manager.recv(&mut last).expect("it said that it stops");
    assert!(last[..length].starts_with(b"STOPPING=1\nSTATUS="));
    debian.shell("dpkg --purge stria").succeed();
    let left = "find /usr /etc -name '*stria*' ! -path '/etc/stria*'; find /usr/bin -name lfs";
    assert_eq!(debian.shell(left).succeed(), "");
    // What users made stays.
    debian.shell("test -f /etc/stria/fs.toml && test -d /var/lib/stria/ost0/objects").succeed();
}

#[test]
fn systemd_understands_the_unit() {
    let place = Place::new();
    let unit = fs::read_to_string(format!("{REPOSITORY}/packaging/systemd/stria-serve@.service")).expect("the unit");
    // It must name a program that exists.
    let path = place.data("stria-serve@.service");
    fs::write(&path, unit.replace("/usr/bin/stria", env!("CARGO_BIN_EXE_stria"))).expect("write");
    let output = program("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    assert_eq!((output.status, &*output.stdout, &*output.stderr), (0, "", ""));
}

#[test]
fn manual_pages_and_completions_are_well_formed() {
    let _guard = GENERATED.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = generate();
    let lint = format!("cd {}/man && mandoc -T lint -W error man1/* man8/*", directory.display());
    let output = shell(&lint).output();
    assert_eq!((output.status, &*output.stdout, &*output.stderr), (0, "", ""));
    shell(&format!("cd {}/completions/bash && for file in *; do bash -n $file || exit; done", directory.display()))
        .succeed();
    let complete = ". ./lfs && COMP_WORDS=(lfs getst) COMP_CWORD=1 && _lfs lfs getst lfs && echo ${COMPREPLY[@]}";
    let completed = shell(complete).within(&directory.join("completions/bash")).succeed();
    assert_eq!(completed, "getstripe\n");
}
