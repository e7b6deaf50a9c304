//! Pools of OSTs, from `stria ctl` to the placement of files, on mounts.

mod common;

use std::fs::File;

use common::{FileSystem, Place, TIMEOUT, Transport, wait_for};
use rustix::fs::{FallocateFlags, fallocate};

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
    let refused = |command: &str, said: &[&str]| {
        let output = ctl(&system, command);
        assert_ne!(output.status, 0, "{command}");
        let lines: Vec<&str> = output.stderr.lines().map(|line| line.trim_start_matches("stria: ")).collect();
        assert_eq!(lines, said, "{command}");
        output.stdout
    };
    refused("pool_new stria.fast", &["Pool stria.fast already exists"]);
    refused("pool_add stria.fast OST0009", &["OST stria-OST0009_UUID is not part of the 'stria' fs."]);
    refused("pool_destroy stria.fast", &["Pool stria.fast not empty, please remove all members"]);
    refused("pool_add stria.slow OST0000", &["Pool stria.slow not found"]);
    let members = [
        "OST stria-OST0001_UUID is already in pool stria.fast",
        "OST stria-OST0003_UUID is already in pool stria.fast",
    ];
    assert_eq!(refused("pool_add stria.fast OST[1-3]", &members), "OST stria-OST0002_UUID added to pool stria.fast\n");
    refused("pool_list stria.slow", &["Pool stria.slow not found"]);
    refused("pool_list other", &["no daemon on this host belongs to file system 'other'"]);
    let stranger = ["OST stria-OST0000_UUID not found in pool stria.fast"];
    assert_eq!(
        refused("pool_remove stria.fast OST0000 OST0002", &stranger),
        "OST stria-OST0002_UUID removed from pool stria.fast\n"
    );
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

/// From `lfs setstripe -p` to the OSTs of files, in every way that a pool can be asked for.
#[test]
fn pools_are_asked_for_inherited_ignored_and_spilled() {
    // A device of its own, of which a part is used that no disk of a host has to have in use.
    let mut place = Place::new();
    let device = place.mount_device("up", "size=2g");
    let mut system = FileSystem::start_in(place, Transport::InProcess, 1);
    let ballast = File::create(device.join("ballast")).expect("create");
    fallocate(&ballast, FallocateFlags::empty(), 0, 64 << 20).expect("three percent of the device");
    let run_dir = system.place().data("up").join("run").display().to_string();
    let point = system.root().display().to_string();
    let shell = |system: &FileSystem, line: &str| {
        let line = line.replace("CTL", &format!("stria ctl --run-dir {run_dir}")).replace("MNT", &point);
        system.shell(&line)
    };
    for line in [
        "CTL pool_new stria.fast",
        "CTL pool_add stria.fast stria-OST[0-1]",
        "CTL pool_new stria.slow",
        "CTL pool_add stria.slow stria-OST[2-3]",
        "mkdir MNT/d && lfs setstripe -p fast -c -1 MNT/d",
    ] {
        shell(&system, line).succeed();
    }
    // The OSTs of a file's first component, and its pool.
    let layout = |system: &FileSystem, make: &str, name: &str| {
        shell(system, &format!("{make} MNT/d/{name}")).succeed();
        let shown = shell(system, &format!("lfs getstripe MNT/d/{name}")).succeed();
        let osts = shown.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u32>().ok());
        let mut osts: Vec<u32> = osts.collect();
        osts.sort_unstable();
        let pool = shell(system, &format!("lfs getstripe -p MNT/d/{name}")).succeed();
        (osts, pool.trim().to_owned())
    };
    let (fast, slow, all) = (vec![0, 1], vec![2, 3], vec![0, 1, 2, 3]);
    assert_eq!(layout(&system, "touch", "inherited"), (fast.clone(), "fast".to_owned()));
    assert_eq!(layout(&system, "lfs setstripe -p inherit -S 1M", "inherit"), (fast.clone(), "fast".to_owned()));
    assert_eq!(layout(&system, "lfs setstripe -p slow", "own"), (slow.clone(), "slow".to_owned()));
    for none in ["ignore", "none"] {
        assert_eq!(layout(&system, &format!("lfs setstripe -p {none}"), none), (all.clone(), String::new()), "{none}");
    }
    assert_ne!(shell(&system, "lfs setstripe -p absent MNT/d/absent").output().status, 0);
    // Each component its pool; the second gets its objects when it is written.
    shell(&system, "lfs setstripe -E 1M -c -1 -p fast -E -1 -c -1 -p slow MNT/d/both").succeed();
    shell(&system, "dd if=/dev/zero of=MNT/d/both bs=1M seek=1 count=1 conv=notrunc status=none").succeed();
    let shown = shell(&system, "lfs getstripe -y MNT/d/both").succeed();
    let pools: Vec<&str> =
        shown.lines().filter_map(|line| line.trim().strip_prefix("lmm_pool:")).map(str::trim).collect();
    assert_eq!(pools, ["fast", "slow"], "{shown}");

    // Spilling: every pool is used to more than one percent, since the device is.
    let spill = "lod.*.pool.fast.spill";
    assert_eq!(shell(&system, &format!("CTL get_param -n {spill}_threshold_pct")).succeed().trim(), "0");
    for refused in ["_target=absent", "_target=fast", "_threshold_pct=101"] {
        assert_ne!(shell(&system, &format!("CTL set_param '{spill}{refused}'")).output().status, 0, "{refused}");
    }
    shell(&system, &format!("CTL set_param -P '{spill}_target=slow'")).succeed();
    shell(&system, &format!("CTL set_param -P '{spill}_threshold_pct=1'")).succeed();
    let spilled = |system: &FileSystem, name: &str| layout(system, "touch", name) == (slow.clone(), "slow".to_owned());
    let mut attempt = 0;
    wait_for("spilling", TIMEOUT, || {
        attempt += 1;
        spilled(&system, &format!("spilled{attempt}")).then_some(())
    });
    system.unmount(0);
    system.mount(0);
    wait_for("spilling after a restart", TIMEOUT, || {
        attempt += 1;
        spilled(&system, &format!("spilled{attempt}")).then_some(())
    });
    assert_ne!(shell(&system, "CTL get_param -n lod.*.pool.fast.spill_hit").succeed().trim(), "0");
    assert_eq!(layout(&system, "lfs setstripe -p ignore", "ignoring").0, all);
    shell(&system, &format!("CTL set_param '{spill}_threshold_pct=0'")).succeed();
    assert_eq!(layout(&system, "touch", "back"), (fast, "fast".to_owned()));
    system.finish();
}
