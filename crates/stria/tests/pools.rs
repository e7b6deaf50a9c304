//! Pools of OSTs, from `stria ctl` to the placement of files, on mounts.

mod common;

use common::{FileSystem, Transport};

#[test]
fn a_pool_restricts_new_files_and_survives_a_restart() {
    let mut system = FileSystem::start(Transport::InProcess, 1);
    let run_dir = system.place().data("up").join("run").display().to_string();
    let ctl =
        |system: &FileSystem, command: &str| system.shell(&format!("stria ctl --run-dir {run_dir} {command}")).output();
    assert_eq!(ctl(&system, "pool_new stria.fast").stdout, "Pool stria.fast created\n");
    let added = ctl(&system, "pool_add stria.fast stria-OST[1-3/2]");
    assert_eq!(
        added.stdout,
        "OST stria-OST0001_UUID added to pool stria.fast\nOST stria-OST0003_UUID added to pool stria.fast\n"
    );
    assert_ne!(ctl(&system, "pool_new stria.fast").status, 0, "it exists");
    assert_ne!(ctl(&system, "pool_add stria.fast OST0009").status, 0, "no such OST");
    assert_ne!(ctl(&system, "pool_destroy stria.fast").status, 0, "it is not empty");
    system.unmount(0);
    system.mount(0);
    assert_eq!(ctl(&system, "pool_list stria").stdout, "Pools from stria:\nstria.fast\n");
    let members = "Pool: stria.fast\nstria-OST0001_UUID\nstria-OST0003_UUID\n";
    assert_eq!(ctl(&system, "pool_list stria.fast").stdout, members);
    let point = system.root().display().to_string();
    let listed = system.shell(&format!("lfs pool_list {point}")).succeed();
    assert_eq!(listed, "Pools from stria:\nstria.fast\n");
    let df = system.shell(&format!("lfs df -o -p fast {point}")).succeed();
    let shown: Vec<&str> = df.lines().filter(|line| line.contains("[OST:")).collect();
    assert_eq!(shown.len(), 2, "{df}");
    assert!(shown[0].contains("OST0001") && shown[1].contains("OST0003"), "{df}");
    assert_eq!(system.shell(&format!("lfs df -p absent {point}")).output().status, libc::ENOENT);
    system.finish();
}
