//! How policies, settings and rules are written, and what is refused.

use nrs::{Selection, Settings};

use crate::requests::queue;

const OPCODES: &[&str] = &["ost_write", "ost_read"];

#[test]
fn policies_are_written_as_lctl_does() {
    for (text, shown) in [
        ("fifo", "fifo"),
        (" crrn\n", "crrn"),
        ("trr reg", "trr"),
        ("tbf", "tbf"),
        ("tbf jobid", "tbf jobid"),
        ("tbf opcode reg", "tbf opcode"),
        ("tbf nid+jobid", "tbf nid+jobid"),
        ("tbf gid+uid reg", "tbf uid+gid"),
        ("tbf projid", "tbf projid"),
        ("tbf nid+jobid+opcode+uid+gid+projid", "tbf"),
    ] {
        assert_eq!(text.parse::<Selection>().map(|selection| selection.to_string()), Ok(shown.to_owned()));
    }
    for (text, said) in [
        (
            "",
            "unknown policy ''; allowed: fifo, crrn, orr, trr, tbf [nid|jobid|opcode|uid|gid|projid, or several joined by +], delay",
        ),
        ("nosuch", "unknown policy 'nosuch'"),
        ("tbf nid+jobid+nid", "'nid' is there twice in 'nid+jobid+nid'"),
        ("tbf nid+", "unknown field ''; allowed: nid, jobid"),
        ("tbf nid jobid", "'jobid' is not expected after tbf nid"),
        ("tbf job", "unknown field 'job'; allowed: nid, jobid"),
        ("crrn jobid", "'jobid' is not expected after crrn"),
        ("crrn reg reg", "not expected"),
        ("crrn hp", "urgent requests have a service of their own"),
    ] {
        let refused = text.parse::<Selection>().unwrap_err().to_string();
        assert!(refused.contains(said), "{text}: {refused}");
    }
}

#[test]
fn settings_are_shown_with_their_scope_and_taken_with_or_without() {
    let settings = Settings::default();
    for (name, shown) in [
        ("nrs_crrn_quantum", "reg_quantum:8"),
        ("nrs_orr_quantum", "reg_quantum:256"),
        ("nrs_orr_offset_type", "reg_offset_type:logical"),
        ("nrs_trr_supported", "reg_supported:reads_and_writes"),
        ("nrs_delay_min", "reg_delay_min:5"),
        ("nrs_delay_max", "reg_delay_max:300"),
        ("nrs_delay_pct", "reg_delay_pct:100"),
    ] {
        assert_eq!(settings.get(name).as_deref(), Some(shown));
        assert_eq!(settings.with(name, shown), Ok(settings), "what is shown can be written");
    }
    assert!(Settings::NAMES.iter().all(|name| settings.get(name).is_some()));
    assert_eq!(settings.with("nrs_crrn_quantum", "16").unwrap().crrn_quantum, 16);
    for (name, text, said) in [
        ("nrs_crrn_quantum", "0", "expected a number from 1 to 65535"),
        ("nrs_crrn_quantum", "many", "expected a number"),
        ("nrs_crrn_quantum", "hp_quantum:5", "hp is not possible"),
        ("nrs_crrn_quantum", "quantum:5", "'quantum' is not expected"),
        ("nrs_orr_offset_type", "physical", "allowed: logical"),
        ("nrs_orr_supported", "all", "expected reads, writes or reads_and_writes"),
        ("nrs_delay_min", "301", "would be above nrs_delay_max, 300 s"),
        ("nrs_delay_max", "4", "nrs_delay_min, 5 s"),
        ("nrs_delay_pct", "101", "expected a number from 0 to 100"),
    ] {
        let refused = settings.with(name, text).unwrap_err().to_string();
        assert!(refused.contains(said), "{name}={text}: {refused}");
    }
}

#[test]
fn rules_are_shown_as_they_are_compared() {
    let mut queue = queue("tbf jobid");
    assert_eq!(queue.rules(), "default {*} 10000, ref 0\n");
    for text in [
        "start one jobid={dd.0 cp.*} rate=100",
        "reg start two jobid={ cat.0 } rate=1",
        "start three jobid={x} rate=5 rank=one",
        "change one rate=50",
        "change default rate=7",
        "change two rank=default",
    ] {
        queue.change_rules(0, text, OPCODES).unwrap();
    }
    let expected = "three {x} 5, ref 0\none {dd.0 cp.*} 50, ref 0\ntwo {cat.0} 1, ref 0\ndefault {*} 7, ref 0\n";
    assert_eq!(queue.rules(), expected);
    queue.change_rules(0, "stop one", OPCODES).unwrap();
    queue.select(0, "tbf jobid".parse().unwrap(), 0);
    assert!(queue.rules().starts_with("three "), "the same policy again keeps its rules");
    queue.select(0, "tbf uid".parse().unwrap(), 0);
    assert_eq!(queue.rules(), "default {*} 10000, ref 0\n");
}

#[test]
fn wrong_rules_are_refused_with_what_is_allowed() {
    let mut queue = queue("tbf");
    queue.change_rules(0, "start one uid={500} rate=1", OPCODES).unwrap();
    let before = queue.rules();
    for (text, said) in [
        ("", "expected start NAME CONDITIONS rate=RATE"),
        ("begin one", "found 'begin'"),
        ("start one uid={1} rate=1", "there is a rule one already"),
        ("start two uid={1}", "a rule has a rate"),
        ("start two uid={1} rate=0", "expected a rate from 1 to 1000000"),
        ("start two uid={1} rate=1000001", "expected a rate"),
        ("start two uid={1} rate=1 realtime=1", "'realtime=1' is not expected; allowed: rate=RATE, rank=RULE"),
        ("start two uid={1} rate=1 rank=nosuch", "there is no rule nosuch; there are: one, default"),
        ("start two rate=1", "expected CONDITIONS rate=RATE after the name"),
        ("start two", "expected CONDITIONS rate=RATE after the name"),
        ("start", "not a name of a rule"),
        ("start two rate=1 uid={1}", "a rule has a rate after its conditions"),
        ("start two nid={bogus} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start two nid={10.0.0.1@ib} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start two nid={10.0.0.1@ib*} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start two nid={@tcp} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start two uid={1,2} rate=1", "with blanks between them"),
        ("start two uid={} rate=1", "1 to 64 values"),
        ("start two uid={x} rate=1", "expected ids"),
        ("start two projid={x} rate=1", "expected ids"),
        ("start two user={1} rate=1", "unknown field 'user'"),
        ("start two opcode={ost_punch} rate=1", "unknown opcode 'ost_punch'; allowed: ost_write, ost_read"),
        ("start two nid={10.0.[0@tcp} rate=1", "expected numbers"),
        ("start two uid={1}& rate=1", "expected a condition such as uid={0} after '&'"),
        ("start two uid={1 rate=1", "expected CONDITIONS rate=RATE"),
        ("start two uid={1}uid={2} rate=1", "values have no braces"),
        ("start two nid={10.0.0.300@tcp} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start two nid={1@lo} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start two nid={host*} rate=1", "expected an address such as 10.0.0.1@tcp"),
        ("start a_name_that_is_long uid={1} rate=1", "not a name of a rule"),
        ("start b\u{e4}d uid={1} rate=1", "not a name of a rule"),
        ("change one", "nothing to change"),
        ("change nosuch rate=1", "there is no rule nosuch"),
        ("change default rank=one", "always the last one"),
        ("stop nosuch", "there is no rule nosuch"),
        ("stop default", "cannot be stopped"),
        ("stop one now", "'now' is not expected"),
        ("hp start two uid={1} rate=1", "hp is not possible"),
    ] {
        let refused = queue.change_rules(0, text, OPCODES).unwrap_err().to_string();
        assert!(refused.contains(said), "{text}: {refused}");
    }
    assert_eq!(queue.rules(), before, "what is refused changes nothing");
    let mut by_job = self::queue("tbf jobid");
    for (text, said) in [
        ("start two uid={1} rate=1", "are for jobid={...}, not for uid"),
        ("start two jobid={a},jobid={b} rate=1", "has one condition"),
        ("start two jobid={32_characters_are_no_name_of_a_j*} rate=1", "at most 31 characters"),
    ] {
        let refused = by_job.change_rules(0, text, OPCODES).unwrap_err().to_string();
        assert!(refused.contains(said), "{text}: {refused}");
    }
    let mut by_two = self::queue("tbf nid+jobid");
    by_two.change_rules(0, "start two jobid={a}&nid={10.0.0.1@tcp},jobid={b} rate=1", OPCODES).unwrap();
    for nid in ["10.0.0.1@tcp0", "10.*", "*", "0@lo", "10.0.0.[1-9]@*"] {
        by_two.change_rules(0, &format!("start any nid={{{nid}}}&jobid={{a}} rate=1"), OPCODES).unwrap();
        by_two.change_rules(0, "stop any", OPCODES).unwrap();
    }
    let refused = by_two.change_rules(0, "start one jobid={a}&uid={1} rate=1", OPCODES).unwrap_err().to_string();
    assert!(refused.contains("of tbf nid+jobid are for nid={...} and jobid={...}, not for uid"), "{refused}");
    let expected = "two jobid={a}&nid={10.0.0.1@tcp},jobid={b} 1, ref 0\ndefault * 10000, ref 0\n";
    assert_eq!(by_two.rules(), expected);
    let refused = self::queue("crrn").change_rules(0, "stop one", OPCODES).unwrap_err().to_string();
    assert!(refused.contains("the policy is crrn; rules are for tbf"), "{refused}");
}

#[test]
fn there_is_a_limit_of_rules() {
    let mut queue = queue("tbf uid");
    for number in 1..nrs::tbf::RULES_MAX {
        queue.change_rules(0, &format!("start rule{number} uid={{{number}}} rate=1"), OPCODES).unwrap();
    }
    let refused = queue.change_rules(0, "start more uid={0} rate=1", OPCODES).unwrap_err().to_string();
    assert!(refused.contains("the most a service has"), "{refused}");
}
