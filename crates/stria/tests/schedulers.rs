//! Request schedulers and service threads of a running file system: every policy takes effect, what
//! `get_param` shows has Lustre's form, and what is not allowed is refused with what is.

mod common;

use std::time::{Duration, Instant};

use common::{FileSystem, TIMEOUT, Transport, wait_for};

/// A file of 2 MiB on an OST.
fn with_file() -> FileSystem {
    let system = FileSystem::start(Transport::InProcess, 1);
    let write = "lfs setstripe -c 1 $A/file && dd if=/dev/urandom of=$A/file bs=64k count=32 conv=notrunc status=none";
    system.shell(write).succeed();
    system
}

/// One value.
fn value(system: &FileSystem, name: &str) -> String {
    system.ctl(&format!("get_param -n {name}")).trim_end().to_owned()
}

/// `nrs_policies` of an idle service.
fn idle(started: &str) -> String {
    let policy = |name: &str| {
        let (title, state) = match started.split(' ').next() {
            Some(chosen) if chosen == name => (started, "started"),
            _ if name == "fifo" => (name, "started"),
            _ => (name, "stopped"),
        };
        let fallback = if name == "fifo" { "yes" } else { "no" };
        format!("\n  - name: {title}\n    state: {state}\n    fallback: {fallback}\n    queued: 0\n    active: 0\n")
    };
    let policies: String = ["fifo", "crrn", "orr", "trr", "tbf", "delay"].map(policy).concat();
    format!("regular_requests:{}", policies.trim_end())
}

#[test]
fn every_policy_can_be_used_while_files_are_written() {
    let system = with_file();
    system.ctl("set_param '*.*.*.nrs_delay_min=0' '*.*.*.nrs_delay_max=0' ost.OSS.ost_io.nrs_delay_max=1");
    assert_eq!(value(&system, "ost.OSS.ost_io.nrs_delay_max"), "reg_delay_max:1");
    // Servers ask each other for their space now and then.
    let wait_until_idle = |service: &str, policy: &str| {
        wait_for(&format!("{service} idle with {policy}"), TIMEOUT, || {
            (value(&system, &format!("{service}.nrs_policies")) == idle(policy)).then_some(())
        });
    };
    wait_until_idle("ost.OSS.ost_io", "fifo");
    for policy in ["crrn", "orr", "trr", "tbf", "tbf jobid", "tbf nid+uid", "delay", "fifo"] {
        system.ctl(&format!("set_param 'ost.OSS.*.nrs_policies={policy}' 'mds.MDS.*.nrs_policies={policy}'"));
        for service in ["ost.OSS.ost", "ost.OSS.ost_io", "mds.MDS.mdt", "mds.MDS.mdt_readpage", "mds.MDS.mdt_io"] {
            wait_until_idle(service, policy);
        }
        let requests = value(&system, "obdfilter.*.stats");
        // Several at a time, so that some wait.
        let write = "for n in 0 1 2 3; do
                dd if=$A/file of=$A/copy$n bs=64k skip=$((n * 8)) count=8 oflag=direct iflag=direct status=none & done; wait
            cat $A/copy? | cmp - $A/file";
        system.shell(write).succeed();
        assert_ne!(value(&system, "obdfilter.*.stats"), requests);
    }
    // Each of the two requests.
    system.ctl("set_param ost.OSS.ost_io.nrs_delay_max=2 ost.OSS.ost_io.nrs_delay_min=2");
    system.ctl("set_param ost.OSS.ost_io.nrs_policies=delay");
    let begun = Instant::now();
    system.shell("dd if=$A/file of=/dev/null bs=64k count=2 iflag=direct status=none").succeed();
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    system.ctl("set_param ost.OSS.ost_io.nrs_policies=fifo");
    system.finish();
}

/// Requests that wait in tbf.
fn held_back(system: &FileSystem) -> usize {
    let policies = value(system, "ost.OSS.ost_io.nrs_policies");
    let tbf = policies.split("- name: ").find(|policy| policy.starts_with("tbf")).expect("tbf is shown");
    let queued = tbf.lines().find_map(|line| line.trim().strip_prefix("queued: ")).expect("it has a number");
    queued.parse().expect("a number")
}

#[test]
fn a_rule_limits_its_job_and_no_other() {
    const DD: &str = "dd if=/dev/zero of=$A/file bs=64k count=30 conv=notrunc oflag=direct status=none";
    let system = with_file();
    system.ctl("set_param jobid_var=procname_uid");
    let set = |rule: &str| system.ctl(&format!("set_param 'ost.OSS.ost_io.nrs_tbf_rule={rule}'"));
    system.ctl("set_param 'ost.OSS.ost_io.nrs_policies=tbf jobid'");
    set("start slow jobid={dd.0} rate=10");
    set("start other jobid={cp.0 cat.*} rate=5000");
    let begun = Instant::now();
    system.shell(DD).succeed();
    let took = begun.elapsed();
    // A full bucket has 3 tokens, so the last request has to wait for 2.7 s.
    assert!(took >= Duration::from_millis(2600), "30 requests at 10 per second took {took:?}");
    let rules = value(&system, "ost.OSS.ost_io.nrs_tbf_rule");
    let expected =
        "regular_requests:\nCPT 0:\nother {cp.0 cat.*} 5000, ref 0\nslow {dd.0} 10, ref 1\ndefault {*} 10000, ref ";
    assert!(rules.starts_with(expected), "{rules}");

    set("change slow rate=1");
    std::thread::scope(|scope| {
        let dd = system.shell(DD);
        let dd = scope.spawn(move || dd.succeed());
        wait_for("a request that is held back", TIMEOUT, || (held_back(&system) > 0).then_some(()));
        // It has a long time to go.
        system.shell("cp $A/file $A/copy && cat $A/copy > /dev/null").succeed();
        let is_held_back = !dd.is_finished();
        set("stop slow");
        dd.join().expect("dd succeeds");
        assert!(is_held_back, "the other job did not wait for it");
    });
    let rules = value(&system, "ost.OSS.ost_io.nrs_tbf_rule");
    assert!(rules.starts_with("regular_requests:\nCPT 0:\nother {cp.0 cat.*} 5000, ref "), "{rules}");
    system.ctl("set_param ost.OSS.ost_io.nrs_policies=fifo");
    assert_eq!(value(&system, "ost.OSS.ost_io.nrs_tbf_rule"), "regular_requests:");
    system.finish();
}

/// The project is that of the file, not that of the user.
#[test]
fn a_rule_limits_the_files_of_a_project() {
    let system = with_file();
    system.shell("cp $A/file $A/other && chattr -p 42 $A/file").succeed();
    system.ctl("set_param 'ost.OSS.ost_io.nrs_policies=tbf projid'");
    system.ctl("set_param 'ost.OSS.ost_io.nrs_tbf_rule=start slow projid={42} rate=10'");
    let timed = |command: &str| {
        let begun = Instant::now();
        system.shell(command).succeed();
        begun.elapsed()
    };
    for command in [
        "dd if=/dev/zero of=$A/file bs=64k count=30 conv=notrunc oflag=direct status=none",
        "dd if=$A/file of=/dev/null bs=64k count=30 iflag=direct status=none",
    ] {
        let took = timed(command);
        assert!(took >= Duration::from_millis(2600), "30 requests at 10 per second took {took:?}");
    }
    // As requests of the project, these would take 117 s.
    system.ctl("set_param 'ost.OSS.ost_io.nrs_tbf_rule=change slow rate=1'");
    let took = timed("dd if=$A/other of=/dev/null bs=16k count=120 iflag=direct status=none");
    assert!(took < Duration::from_secs(100), "{took:?}");
    system.finish();
}

/// Every service with service threads, and the most that it can have.
const SERVICES: &[(&str, usize)] = &[
    ("ost.OSS.ost", 4096),
    ("ost.OSS.ost_io", 1024),
    ("mds.MDS.mdt", 4096),
    ("mds.MDS.mdt_readpage", 4096),
    ("mds.MDS.mdt_io", 4096),
    ("mds.MDS.mdt_recovery", 4096),
    ("mgs.MGS.mgs", 4096),
    ("ldlm.services.ldlm_canceld", 4096),
];

#[test]
fn every_service_has_threads_that_can_be_changed() {
    let system = with_file();
    let shown = system.ctl("list_param '*.*.*.threads_max'");
    let mut names: Vec<_> = SERVICES.iter().map(|(service, _)| format!("{service}.threads_max")).collect();
    names.sort();
    let shown: Vec<_> = shown.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(shown, names, "the table has all of them");
    let run_dir = system.place().data("up").join("run");
    let refused = |command: &str, reason: &str| {
        let output = system.shell(&format!("stria ctl --run-dir {} {command}", run_dir.display())).output();
        assert!(output.status != 0 && output.stderr.contains(reason), "{command}: {}", output.stderr);
    };
    for (service, most) in SERVICES {
        let of = |name: &str| value(&system, &format!("{service}.{name}")).parse::<usize>().expect("a number");
        for number in ["0", "10000", "-1", "many", "''"] {
            for name in ["threads_max", "threads_min"] {
                refused(
                    &format!("set_param {service}.{name}={number}"),
                    &format!("expected a number from 1 to {most}"),
                );
            }
        }
        refused(&format!("set_param {service}.threads_started=1"), "is read-only");
        system.ctl(&format!("set_param {service}.threads_max=5 {service}.threads_min=3"));
        assert_eq!((of("threads_min"), of("threads_max")), (3, 5), "{service}");
        assert!((3..=5).contains(&of("threads_started")), "{service}");
        refused(&format!("set_param {service}.threads_max=2"), "threads_min is 3; lower it first");
        refused(&format!("set_param {service}.threads_min=6"), "threads_max is 5; raise it first");
        system.ctl(&format!("set_param {service}.threads_max={most}"));
        assert_eq!(of("threads_max"), *most, "{service}");
        system.ctl(&format!("set_param {service}.threads_min=1 {service}.threads_max=64"));
    }
    system.finish();
}

#[test]
fn as_many_requests_execute_as_there_are_threads() {
    const THREADS: &str = "ost.OSS.ost_io.threads";
    let system = with_file();
    system.ctl("set_param 'obdfilter.*.limit_latency_us=100000'");
    // 16 reads at once, again and again.
    let read = "for round in 1 2 3 4; do for n in $(seq 16); do
            dd if=$A/file of=/dev/null bs=64k skip=$n count=1 iflag=direct status=none & done; wait; done";
    for threads in [3, 7, 2] {
        system.ctl(&format!("set_param {THREADS}_max={threads}"));
        wait_for("so many that execute at once", TIMEOUT, || {
            system.shell(read).succeed();
            (value(&system, &format!("{THREADS}_started")) == threads.to_string()).then_some(())
        });
    }
    system.ctl("set_param 'obdfilter.*.limit_latency_us=0'");
    system.finish();
}

#[test]
fn the_processors_of_a_process_can_be_changed_while_it_runs() {
    let system = with_file();
    let threads = || {
        let status = format!("grep -h Cpus_allowed_list /proc/{}/task/*/status | sort -u", system.client_pid(0));
        let lists = system.shell(&status).succeed();
        lists.lines().map(|line| line.rsplit('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let all = value(&system, "cpu_pattern");
    let cores: usize = value(&system, "cores").parse().expect("a number");
    assert!(cores >= 1);
    let last = all.rsplit([',', '-']).next().expect("there is a processor").to_owned();
    system.ctl(&format!("set_param cpu_pattern={last}"));
    assert_eq!(value(&system, "cpu_pattern"), last);
    assert_eq!(value(&system, "cpu_partition_table"), format!("0\t: {last}"));
    assert_eq!(threads(), [last.as_str()], "of all threads");
    system.shell("cp $A/file $A/copy && cmp $A/file $A/copy").succeed();
    assert_eq!(threads(), [last.as_str()], "also of those that began since");
    assert_eq!(value(&system, "cores"), cores.to_string(), "their number stays");
    system.ctl(&format!("set_param 'cpu_pattern=0[{all}]'"));
    assert_eq!(value(&system, "cpu_pattern"), all);
    assert!(threads().contains(&all), "threads that are not bound use all again: {:?}", threads());
    let run_dir = system.place().data("up").join("run");
    for (wrong, reason) in [
        ("cpu_pattern=1023", format!("this process may not use processor 1023; allowed: {all}")),
        ("cpu_pattern=", "expected processors such as 0-3,8".to_owned()),
        ("'cpu_pattern=0[0] 1[1]'", "a process has one CPU partition".to_owned()),
        ("cores=2", "is read-only".to_owned()),
        ("max_ptlrpcds=2", "is fixed when a process starts (mount option cores=N".to_owned()),
    ] {
        let output = system.shell(&format!("stria ctl --run-dir {} set_param {wrong}", run_dir.display())).output();
        assert!(output.status != 0 && output.stderr.contains(&reason), "{wrong}: {}", output.stderr);
    }
    assert_eq!(value(&system, "cpu_pattern"), all, "what is refused changes nothing");
    system.finish();
}

#[test]
fn a_mount_starts_with_the_processors_and_cores_that_it_is_given() {
    let mut system = FileSystem::start(Transport::Tcp, 0);
    system.set_mount_options("cpus=0,cores=3");
    system.add_clients(1);
    let of_client = |name: &str| system.ctl_of_client(0, &format!("get_param -n {name}"));
    assert_eq!(of_client("cores"), "3\n");
    assert_eq!(of_client("cpu_pattern"), "0\n");
    system.shell("dd if=/dev/zero of=$A/file bs=1M count=4 status=none && cat $A/file > /dev/null").succeed();
    system.finish();
}
