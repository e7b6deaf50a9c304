//! `stria bench queues`: the processor time that the queues of services, request schedulers and
//! tuners add to a create and to a read of 4 KiB.
//!
//! Servers and a client in this process, connected over TCP, so that all of it is counted to the
//! nanosecond. Variants take turns in short blocks, in an order that changes with each round, and
//! only blocks of one round are compared: what else the machine does affects all of them alike. The
//! queue with fifo, which every request passes, cannot be switched off: it is measured by itself,
//! and compared with what a request costs in all.
//!
//! Downside: a difference also contains what other numbers of threads do to the rest of the code.

use std::{io, path::PathBuf};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use host::progress;
use nrs::Facts;
use rpc::{Admission, message::mgs::TargetRole};
use types::{ClientId, JobName, MdtIndex, OstIndex};

use super::{
    both_ends::BothEnds,
    interval::{Interval, Verdict},
    leftovers::Place,
    report::empty_table,
    target::{BenchTarget, NativeTarget, TargetFile},
    workers::{self, own_cpu},
};

/// What the queues and the tuner may add.
const BOUND: f64 = 0.02;
/// So many are under way at once: enough for tuners to have something to do, and for requests to
/// meet in queues.
const WORKERS: usize = 8;
const OSTS: u16 = 4;
const READ_BYTES: usize = 4096;
const FILE_BYTES: u64 = 16 << 20;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct QueuesArgs {
    /// Rounds, in each of which every variant is measured once
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    rounds: u32,
    /// Files that are made in a block
    #[arg(long, default_value_t = 400, value_name = "N", value_parser = clap::value_parser!(u32).range(8..))]
    creates: u32,
    /// Reads in a block
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = clap::value_parser!(u32).range(8..))]
    reads: u32,
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// No tuner, fifo.
    Plain,
    /// Tuners on all services and connections.
    Tuners,
    /// Schedulers in whose queues every request is put.
    Crrn,
    Orr,
    Trr,
    /// By all fields, with a rate that nothing reaches.
    Tbf,
}

impl Variant {
    const ALL: [Variant; 6] =
        [Variant::Plain, Variant::Tuners, Variant::Crrn, Variant::Orr, Variant::Trr, Variant::Tbf];

    fn name(self) -> String {
        match self {
            Variant::Plain => "no tuner, fifo".to_owned(),
            Variant::Tuners => "tuners on".to_owned(),
            _ => format!("scheduler {}", self.policy()),
        }
    }

    fn policy(self) -> &'static str {
        match self {
            Variant::Plain | Variant::Tuners => "fifo",
            Variant::Crrn => "crrn",
            Variant::Orr => "orr",
            Variant::Trr => "trr",
            Variant::Tbf => "tbf",
        }
    }
}

/// Makes the servers and the client what is to be measured.
fn become_variant(system: &BothEnds, variant: Variant) -> anyhow::Result<()> {
    let on = variant == Variant::Tuners;
    let refused = |refused| anyhow::anyhow!("{refused}");
    for service in system.services() {
        let is_measured = ["mdt", "ost", "ost_io"].contains(&service.name());
        if on && is_measured {
            service.tune()
        } else {
            // Tuners are on by default.
            service.stop_tuning()
        }
        if is_measured {
            service.set_policy(variant.policy().parse().map_err(refused)?);
            if variant == Variant::Tbf {
                service.change_policy_rules("change default rate=1000000", &[]).map_err(refused)?;
            }
        }
    }
    let roles = (0..OSTS).map(|index| TargetRole::Ost(OstIndex(index))).chain([TargetRole::Mdt(MdtIndex(0))]);
    roles.for_each(|role| system.file_system.set_tuner(role, on));
    Ok(())
}

/// Requests that the services executed so far.
fn requests(system: &BothEnds) -> u64 {
    system.services().iter().map(|service| service.statistics().requests).sum()
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Files are made and closed.
    Create,
    /// Reads of [`READ_BYTES`] at random.
    Read,
}

impl Work {
    const ALL: [Work; 2] = [Work::Create, Work::Read];

    fn name(self) -> &'static str {
        match self {
            Work::Create => "create",
            Work::Read => "4 KiB read",
        }
    }
}

/// What a block cost per operation.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Nanoseconds of processor time.
    cpu_ns: f64,
    /// Requests to services.
    requests: f64,
}

/// All blocks of one kind of work: a row for each round, with a column for each variant.
type Rounds = Vec<[Cost; Variant::ALL.len()]>;

/// Runs `stria bench queues`.
pub fn run(arguments: &QueuesArgs) -> anyhow::Result<()> {
    let place = Place::new("stria-bench-", arguments.dir.as_deref())?;
    let system = BothEnds::start(&place.path().join("data"), OSTS)?;
    let file = make_file(&system.target)?;
    let (mut creates, mut reads) = (Rounds::new(), Rounds::new());
    for round in 0..arguments.rounds {
        progress::show(format_args!("round {} of {}", round + 1, arguments.rounds));
        for (work, rounds) in Work::ALL.into_iter().zip([&mut creates, &mut reads]) {
            rounds.push(one_round(&system, &*file, work, round, arguments)?);
        }
    }
    file.close()?;
    let queue_ns = queue_cost(&system)?;
    progress::done();
    println!("processor time of client and servers together, over TCP; medians with 95% confidence");
    println!("{}", table(&creates, &reads));
    print!("{}", verdicts(&[(Work::Create, &creates), (Work::Read, &reads)], queue_ns));
    Ok(())
}

fn make_file(target: &NativeTarget) -> io::Result<Box<dyn TargetFile>> {
    let file = target.create("data")?;
    let data = Bytes::from(vec![1; 1 << 20]);
    (0..FILE_BYTES >> 20).try_for_each(|index| file.write_at(&data, index << 20))?;
    file.sync()?;
    Ok(file)
}

/// All variants once. The first one changes with the round.
fn one_round(
    system: &BothEnds,
    file: &dyn TargetFile,
    work: Work,
    round: u32,
    arguments: &QueuesArgs,
) -> anyhow::Result<[Cost; Variant::ALL.len()]> {
    let mut costs = [None; Variant::ALL.len()];
    for turn in 0..costs.len() {
        let number = (turn + round as usize) % costs.len();
        become_variant(system, Variant::ALL[number])?;
        costs[number] = Some(match work {
            Work::Create => creates(system, arguments.creates)?,
            Work::Read => reads(system, file, arguments.reads)?,
        });
    }
    become_variant(system, Variant::Plain)?;
    anyhow::ensure!(costs.iter().all(Option::is_some), "a variant was not measured");
    Ok(costs.map(Option::unwrap_or_default))
}

/// A block: `operation(rank, number)` for so many numbers of each worker.
fn block(
    system: &BothEnds,
    operations: u32,
    operation: impl Fn(usize, u64) -> io::Result<()> + Sync,
) -> io::Result<Cost> {
    let each = u64::from(operations) / WORKERS as u64;
    let (cpu, before) = (own_cpu(), requests(system));
    workers::run(WORKERS, |rank| (0..each).try_for_each(|number| operation(rank, number)))?;
    let done = (each * WORKERS as u64) as f64;
    let cpu = own_cpu().saturating_sub(cpu);
    Ok(Cost { cpu_ns: cpu.as_nanos() as f64 / done, requests: (requests(system) - before) as f64 / done })
}

fn creates(system: &BothEnds, operations: u32) -> io::Result<Cost> {
    let name = |rank: usize, number: u64| format!("file.{rank}.{number}");
    let cost = block(system, operations, |rank, number| system.target.create(&name(rank, number))?.close())?;
    workers::run(WORKERS, |rank| {
        (0..u64::from(operations) / WORKERS as u64).try_for_each(|number| system.target.unlink(&name(rank, number)))
    })?;
    Ok(cost)
}

fn reads(system: &BothEnds, file: &dyn TargetFile, operations: u32) -> io::Result<Cost> {
    let records = FILE_BYTES / READ_BYTES as u64;
    block(system, operations, |rank, number| {
        // A prime: far apart, and no worker reads the same as another at the same time.
        let record = (rank as u64 * 1009 + number * 7919) % records;
        file.read_at(&mut [0; READ_BYTES], record * READ_BYTES as u64)
    })
}

/// Nanoseconds of processor time of a request in a queue with fifo: it is admitted and ends.
fn queue_cost(system: &BothEnds) -> anyhow::Result<f64> {
    const REQUESTS: u32 = 200_000;
    let services = system.services();
    let io = services.iter().find(|service| service.name() == "ost_io").context("no service ost_io")?;
    let clock = system.clock();
    let facts = || Facts {
        client: ClientId(1),
        nid: "0@lo".into(),
        job: JobName::default(),
        uid: 0,
        gid: 0,
        project: 0,
        opcode: "ost_read",
        target: 0,
        data: None,
    };
    let before = own_cpu();
    for _ in 0..REQUESTS {
        match io.admit(clock.now(), facts)? {
            Admission::Now(permit) => drop(permit),
            Admission::Queued(_) => anyhow::bail!("an idle service lets a request wait"),
        }
    }
    Ok(own_cpu().saturating_sub(before).as_nanos() as f64 / f64::from(REQUESTS))
}

/// What a variant costs more than the plain one, as a part of it.
fn added(rounds: &Rounds, variant: Variant) -> Option<Interval> {
    let of = |costs: &[Cost; Variant::ALL.len()]| costs[variant as usize].cpu_ns / costs[0].cpu_ns - 1.0;
    Interval::of_median(&rounds.iter().map(of).collect::<Vec<_>>())
}

fn cost(rounds: &Rounds, variant: Variant, value: impl Fn(&Cost) -> f64) -> Option<Interval> {
    Interval::of_median(&rounds.iter().map(|costs| value(&costs[variant as usize])).collect::<Vec<_>>())
}

fn table(creates: &Rounds, reads: &Rounds) -> comfy_table::Table {
    let mut table = empty_table(&["", "us per create", "more", "us per 4 KiB read", "more"], &[1, 2, 3, 4]);
    for variant in Variant::ALL {
        let mut row = vec![variant.name()];
        for rounds in [creates, reads] {
            let cost = cost(rounds, variant, |cost| cost.cpu_ns / 1000.0);
            row.push(cost.map_or_else(String::new, |cost| cost.to_string()));
            let more = added(rounds, variant).filter(|_| variant != Variant::Plain);
            row.push(more.map_or_else(String::new, |more| more.percent()));
        }
        table.add_row(row);
    }
    table
}

fn verdicts(all: &[(Work, &Rounds)], queue_ns: f64) -> String {
    let mut text = String::new();
    for (work, rounds) in all {
        let name = work.name();
        if let Some(more) = added(rounds, Variant::Tuners) {
            let verdict = more.at_most(BOUND);
            let advice = if verdict == Verdict::Open { "; raise --rounds to find out" } else { "" };
            text.push_str(&format!("{verdict:>13}: tuners add at most 2% to a {name} ({}{advice})\n", more.percent()));
        }
        let plain = cost(rounds, Variant::Plain, |cost| cost.cpu_ns);
        let requests = cost(rounds, Variant::Plain, |cost| cost.requests);
        if let Some((plain, requests)) = plain.zip(requests) {
            let part = requests.mean * queue_ns / plain.mean;
            let verdict = if part <= BOUND { Verdict::Holds } else { Verdict::DoesNotHold };
            text.push_str(&format!(
                "{verdict:>13}: the queue is at most 2% of a {name} ({:.2}%: {queue_ns:.0} ns for each of {:.1} requests)\n",
                part * 100.0,
                requests.mean
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(tuners: f64) -> Rounds {
        let cost = |cpu_ns| Cost { cpu_ns, requests: 2.0 };
        // The machine becomes slower and slower, which concerns all variants alike.
        let round = |slow: f64| {
            let mut costs = [cost(1.2e5 * slow); Variant::ALL.len()];
            (costs[0], costs[1]) = (cost(1e5 * slow), cost(1e5 * slow * tuners));
            costs
        };
        (0..20).map(|round_number| round(1.0 + 0.05 * f64::from(round_number))).collect()
    }

    #[test]
    fn only_blocks_of_one_round_are_compared() {
        let more = added(&rounds(1.01), Variant::Tuners).unwrap();
        assert!((more.mean - 0.01).abs() < 1e-9 && more.error < 1e-9, "{more:?}");
        let text = verdicts(&[(Work::Create, &rounds(1.01))], 100.0);
        assert!(text.contains("holds: tuners add at most 2% to a create (+1.0%"), "{text}");
        assert!(verdicts(&[(Work::Create, &rounds(1.03))], 100.0).contains("DOES NOT HOLD: tuners"));
        assert!(text.contains("(0.13%: 100 ns for each of 2.0 requests)"), "{text}");
        assert!(verdicts(&[(Work::Read, &rounds(1.0))], 3000.0).contains("DOES NOT HOLD: the queue"));
        assert!(table(&rounds(1.0), &rounds(1.0)).to_string().contains("+20.0%"));
    }

    #[test]
    fn variants_differ_and_are_measured() {
        let place = tempfile::tempdir().unwrap();
        let system = BothEnds::start(&place.path().join("data"), OSTS).unwrap();
        let file = make_file(&system.target).unwrap();
        let arguments = QueuesArgs { rounds: 2, creates: 8, reads: 16, dir: None };
        for work in Work::ALL {
            let costs = one_round(&system, &*file, work, 1, &arguments).unwrap();
            assert!(costs.iter().all(|cost| cost.cpu_ns > 0.0 && cost.requests >= 1.0), "{work:?}: {costs:?}");
        }
        become_variant(&system, Variant::Tuners).unwrap();
        let modes: Vec<_> = system.services().iter().map(|service| service.tuning().mode()).collect();
        assert_eq!(modes.iter().filter(|mode| **mode == rpc::Mode::On).count(), 3, "{modes:?}");
        assert!(queue_cost(&system).unwrap() > 0.0);
        file.close().unwrap();
    }
}
