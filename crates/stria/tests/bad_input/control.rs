//! `stria ctl`: unknown parameters, invalid values, deactivated targets.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    time::Duration,
};

use crate::{
    common::{Output, Program, TIMEOUT, wait_for},
    site::{STRIA, Site, timed},
};

#[test]
fn wrong_parameters_are_refused_with_name_and_reason() {
    let mut site = Site::running(1);
    let threads = "ost.OSS.ost_io.threads_max";
    site.ctl_refused(&["get_param", "no.such.parameter"]).says(&["no parameter matches 'no.such.parameter'"]);
    site.ctl_refused(&["list_param", "no.such.*"]).says(&["no parameter matches 'no.such.*'"]);
    for (assignment, expected) in [
        ("ost.OSS.ost_io.threads_max", "expected NAME=VALUE"),
        ("ost.OSS.ost_io.threads_max=0", "threads_max"),
        ("ost.OSS.ost_io.threads_max=-1", "threads_max"),
        ("ost.OSS.ost_io.threads_max=many", "threads_max"),
        ("version=7", "version"),
        ("obdfilter.*.readonly=2", "readonly"),
        ("lod.*.stripesize=1000", "stripesize"),
        ("lod.*.stripesize=65537", "65536"),
        ("ost.OSS.ost_io.nrs_policies=nosuch", "allowed: fifo, crrn, orr, trr, tbf [nid|jobid|opcode|uid|gid|projid"),
        ("ost.OSS.ost_io.nrs_policies=crrn hp", "urgent requests have a service of their own"),
        (
            "mds.MDS.mdt.nrs_policies=tbf project",
            "unknown field 'project'; allowed: nid, jobid, opcode, uid, gid, projid",
        ),
        ("ldlm.services.ldlm_canceld.nrs_policies=fifo", "nrs_policies"),
        ("ost.OSS.ost_io.nrs_crrn_quantum=0", "expected a number from 1 to 65535"),
        ("ost.OSS.ost_io.nrs_orr_offset_type=physical", "allowed: logical"),
        ("ost.OSS.ost_io.nrs_trr_supported=all", "expected reads, writes or reads_and_writes"),
        ("ost.OSS.ost_io.nrs_delay_pct=101", "expected a number from 0 to 100"),
        ("ost.OSS.ost_create.threads_max=1", "an object is created by its first write"),
        ("ost.OSS.ost_io.req_history=1", "there is no 'ost.OSS.ost_io.req_history'"),
        ("cpu_pattern=all", "expected processors such as 0-3,8"),
    ] {
        site.ctl_refused(&["set_param", assignment]).says(&[expected]);
        site.ctl_refused(&["set_param", "-P", assignment]).says(&[expected]);
    }
    site.ctl_refused(&["set_param", "ost.OSS.ost_io.nrs_tbf_rule=stop one"]).says(&["rules are for tbf"]);
    site.ctl(&["set_param", "ost.OSS.ost_io.nrs_policies=tbf"]);
    for (rule, expected) in [
        ("begin one", "expected start NAME CONDITIONS rate=RATE"),
        ("start one uid={1}", "a rule has a rate"),
        ("start one uid={1} rate=0", "expected a rate from 1 to 1000000"),
        ("start one opcode={ost_nosuch} rate=1", "unknown opcode 'ost_nosuch'; allowed: "),
        ("start one user={1} rate=1", "unknown field 'user'; allowed: nid, jobid, opcode, uid, gid, projid"),
        ("stop one", "there is no rule one; there are: default"),
        ("stop default", "cannot be stopped"),
    ] {
        site.ctl_refused(&["set_param", &format!("ost.OSS.ost_io.nrs_tbf_rule={rule}")]).says(&[expected]);
    }
    site.ctl(&["set_param", "ost.OSS.ost_io.nrs_policies=fifo"]);
    // Not even for others: nothing of this file system has such a name.
    site.ctl_refused(&["set_param", "-P", "lod.*.nonsense=1"])
        .says(&["has a parameter 'lod.*.nonsense'", "list_param"]);
    site.ctl_refused(&["set_param", "-P", "lod.*.stripcount=1"]).says(&["did you mean lod.*.stripecount?"]);
    site.ctl_refused(&["set_param", "lod.*.stripcount=1"]).says(&["did you mean lod.*.stripecount?"]);
    assert_eq!(site.ctl(&["get_param", "-P"]), "");
    site.ctl_refused(&["set_param", "no.such.parameter=1"]).says(&["no parameter matches 'no.such.parameter'"]);
    site.ctl_refused(&["set_param", &format!("{threads}=")]).says(&["threads_max"]);
    // A mount on another host may have it.
    site.ctl(&["set_param", "-P", "osc.*.max_rpcs_in_flight=7"]);
    assert_eq!(site.ctl(&["get_param", "-P"]), "osc.*.max_rpcs_in_flight=7\n");
    site.ctl(&["set_param", "-P", "-d", "osc.*.max_rpcs_in_flight"]);
    assert_eq!(site.ctl(&["get_param", "-P"]), "");
    site.ctl_refused(&["set_param", "-P", "-d", "osc.*.max_rpcs_in_flight"]).says(&["is stored", "get_param -P"]);
    let before = site.ctl(&["get_param", "-n", threads]);
    site.ctl(&["set_param", "-P", &format!("{threads}=5")]);
    wait_for("the permanent parameter", TIMEOUT, || {
        (site.ctl(&["get_param", "-n", threads]).trim() == "5").then_some(())
    });
    assert_ne!(before.trim(), "5");
    site.stop();
    site.serve();
    wait_for("the permanent parameter after a restart", TIMEOUT, || {
        (site.ctl(&["get_param", "-n", threads]).trim() == "5").then_some(())
    });
    let nobody = site.place("nobody");
    fs::create_dir(&nobody).unwrap();
    site.refused(&["ctl", "--run-dir", &nobody.to_string_lossy(), "get_param", "*"]).says(&["no stria daemon answers"]);
}

/// Far less than a client waits for a server that does not answer, and far more than an answer
/// takes.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_target_out_of_use_gets_no_files_and_fails_at_once() {
    let site = Site::running(3);
    let path = site.file_on("there", 1);
    fs::write(&path, "there").unwrap();
    site.ctl_refused(&["deactivate", "stria-OST0009"]).says(&["there is no target 'stria-OST0009'"]);
    site.ctl_refused(&["deactivate", "OST0001"]).says(&["there is no target 'OST0001'"]);
    site.ctl_refused(&["deactivate", "stria-MDT0000"]).says(&["stria-MDT0000 holds the root directory", "unmount it"]);
    site.ctl(&["deactivate", "stria-OST0001"]);
    site.wait_for_osts(2);
    let check = site.stria(&["lfs", "check", "all", &site.name("")]);
    assert!(check.lines().any(|line| line.ends_with("stria ctl activate stria-OST0001")), "{check}");
    let df = site.stria(&["lfs", "df", &site.name("")]);
    assert!(df.lines().any(|line| line.contains("OST0001") && line.contains("inactive")), "{df}");
    // The MDT learns it from the same map.
    wait_for("placement without the target", TIMEOUT, || {
        let refused = site.output(&["lfs", "setstripe", "-i", "1", &site.name("refused")]);
        let _ = fs::remove_file(site.path("refused"));
        (refused.status != 0).then_some(())
    });
    for number in 0..12 {
        let name = format!("new{number}");
        fs::write(site.path(&name), "elsewhere").unwrap();
        assert_ne!(site.ost_of(&name), 1, "{name}");
    }
    let (read, took) = timed(|| fs::read(&path));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(took < SOON, "{took:?}");
    let (written, took) = timed(|| File::options().write(true).open(&path).and_then(|file| file.write_at(b"x", 0)));
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(took < SOON, "{took:?}");
    let (checked, took) = timed(|| site.output(&["fsck", "10.77.0.1:/stria"]));
    assert!(took < SOON, "{took:?}");
    assert!(checked.stderr.contains("OST0001 is deactivated and was not checked"), "{checked:?}");
    let verdict = "no problems; 1 deactivated target not checked; sizes of 1 file not compared";
    assert_eq!((checked.status, checked.stdout.lines().last()), (0, Some(verdict)), "{checked:?}");
    site.ctl(&["activate", "stria-OST0001"]);
    site.wait_for_osts(3);
    assert_eq!(fs::read_to_string(&path).unwrap(), "there");
    site.expect_clean();
}

/// Runs a line of the shell whose descriptor 4 is a pipe that nobody reads any more, and nobody can
/// begin to.
fn with_closed_pipe(site: &Site, line: &str) -> Output {
    let pipe = site.place("pipe").display().to_string();
    let _ = fs::remove_file(&pipe);
    let line = format!("mkfifo {pipe} && exec 3<>{pipe} 4>{pipe} 3>&- && {line}");
    Program(site.host.command("bash"))
        .args(["-c", &line])
        .env("STRIA", STRIA)
        .env("STRIA_KEY_DIR", site.keys())
        .output()
}

#[test]
fn a_closed_pipe_ends_tools_quietly_and_no_daemon() {
    let mut site = Site::running(1);
    let run_dir = site.place("run").display().to_string();
    let (config, root) = (site.config(), site.name(""));
    fs::write(site.path("file"), "of an inode").unwrap();
    for tool in [
        format!("ctl --run-dir {run_dir} list_param '*'"),
        format!("ctl --run-dir {run_dir} get_param '*'"),
        format!("lfs df {root}"),
        "lfs help".to_owned(),
        "lfs --list-commands".to_owned(),
        format!("explain {root}/file"),
        "fsck 10.77.0.1:/stria".to_owned(),
    ] {
        // As a shell says of a program that was ended by SIGPIPE.
        let ended = with_closed_pipe(&site, &format!("\"$STRIA\" {tool} >&4"));
        assert_eq!((ended.status, &*ended.stderr), (128 + libc::SIGPIPE, ""), "{tool}");
    }
    let usage = with_closed_pipe(&site, "\"$STRIA\" lfs 2>&4");
    assert_eq!(usage.status, 128 + libc::SIGPIPE, "standard error counts as well");
    site.unmount();
    site.stop();
    let daemon = format!(
        "{{ \"$STRIA\" serve {config} >&4 & }}; until \"$STRIA\" ctl --run-dir {run_dir} dl; do kill -0 $! || exit 1; sleep 0.1; done
        kill $! && wait $!"
    );
    let served = with_closed_pipe(&site, &daemon);
    assert_eq!(served.status, 0, "{}{}", served.stdout, served.stderr);
}
