//! Files whose beginning is on the MDT, through the kernel: they behave like other files, even
//! after their server was killed.

mod common;

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

use common::{FileSystem, Program, Transport, programs::program};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec};
use rpc::message::control::{ControlReply, ControlRequest};

/// Where the part on the MDT ends.
const ON_MDT: u64 = 64 << 10;

/// Makes a directory whose files begin on the MDT and continue in stripes.
fn directory(root: &Path) -> std::path::PathBuf {
    let directory = root.join("directory");
    fs::create_dir(&directory).unwrap();
    let stripes =
        StripeSpec { stripe_count: StripeCount::Exactly(2), stripe_bytes: Some(64 << 10), ..StripeSpec::default() };
    let components = vec![
        ComponentSpec { end: ON_MDT, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes) },
    ];
    let request = ControlRequest::SetDefaultLayout(Some(LayoutSpec::Composite(components)));
    let reply = host::ioctl::call(File::open(&directory).unwrap(), &request).unwrap();
    assert!(matches!(reply, ControlReply::Done), "{reply:?}");
    directory
}

/// Bytes that are different everywhere.
fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251 * 7 + at) as u8).collect()
}

#[test]
fn what_was_written_is_there_after_the_server_was_killed() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let directory = directory(system.root());
    let sizes = [0, 1, 4096, 5000, ON_MDT as usize, ON_MDT as usize + 1, 1 << 20];
    for size in sizes {
        fs::write(directory.join(size.to_string()), contents(size)).unwrap();
    }
    fs::write(directory.join("removed"), contents(30_000)).unwrap();
    fs::remove_file(directory.join("removed")).unwrap();
    // Open when the server dies, and never closed.
    let open = File::create(directory.join("open")).unwrap();
    open.write_all_at(&contents(10_000), ON_MDT - 5000).unwrap();
    drop(open);
    system.kill_client(0);
    system.mount(0);
    for size in sizes {
        let path = directory.join(size.to_string());
        assert!(fs::read(&path).unwrap() == contents(size), "{size} bytes");
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(size as u64 / 2).unwrap();
        file.set_len(size as u64).unwrap();
        let mut expected = contents(size / 2);
        expected.resize(size, 0);
        assert!(fs::read(&path).unwrap() == expected, "{size} bytes, the second half cut off and grown again");
    }
    let found = fs::read(directory.join("open")).unwrap();
    assert!(found[..ON_MDT as usize - 5000].iter().all(|byte| *byte == 0));
    assert!(found[ON_MDT as usize - 5000..] == contents(10_000));
    assert!(!directory.join("removed").exists());
    system.finish();
}

/// Random operations over the end of the part on the MDT, by calls and by mappings, every read
/// compared.
#[test]
fn fsx_finds_nothing_at_the_boundary() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let directory = directory(system.root());
    for (seed, mix) in ["calls", "mapped", "aligned"].into_iter().enumerate() {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fsx/{mix}.toml"));
        let Program(mut command) = program("fsx");
        command.arg("-f").arg(config).args(["-S", &seed.to_string(), "-N", "5000"]);
        command.args(["-P", env!("CARGO_TARGET_TMPDIR")]).arg(directory.join(mix));
        let output = Program(command).output();
        assert!(output.status == 0, "fsx, {mix}:\n{}{}", output.stdout, output.stderr);
    }
    system.finish();
}
