//! `stria advise`: the layout for a planned job. It needs no file system.

use clap::Args;
use layout::cost::{self, Estimate, Job, STRIPE_BYTES_COMPARED};
use serde_json::json;
use types::{counted, size};

use super::{
    speeds::Speeds,
    words::{bytes, duration, megabytes},
};

/// Processes on one client by default.
const PROCESSES_PER_CLIENT: u32 = 16;

/// Arguments of `stria advise`.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("files").required(true))]
pub struct AdviseArgs {
    /// Number of processes that write at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub processes: u32,
    /// Total size of all files, such as 100G; K, M, G, T are powers of 1024, KB, MB, GB, TB powers
    /// of 1000
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// One file shared by all processes
    #[arg(long, group = "files")]
    pub shared: bool,
    /// One file per process
    #[arg(long, group = "files")]
    pub per_process: bool,
    /// Number of nodes that the processes run on [default: one for every 16 processes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub clients: Option<u32>,
    /// Number of OSTs of the file system
    #[arg(long, default_value_t = 80, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub osts: u32,
    /// Print a JSON object; "best" is the fewest stripes within 10% of the shortest time
    #[arg(long)]
    pub json: bool,
    /// The speeds to estimate with
    #[command(flatten)]
    pub speeds: Speeds,
}

fn parse_size(text: &str) -> Result<u64, String> {
    match size::parse(text, 1).map_err(|error| error.to_string())? {
        0 => Err("expected at least 1 byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Runs `stria advise`.
pub fn run(arguments: &AdviseArgs) {
    let clients = arguments.clients.unwrap_or(arguments.processes.div_ceil(PROCESSES_PER_CLIENT));
    let job = Job { processes: arguments.processes, clients, bytes: arguments.size, shared: arguments.shared };
    if arguments.json {
        println!("{}", as_json(&job, arguments));
    } else {
        print!("{}", as_text(&job, arguments));
    }
}

/// The fixed counts that are compared.
fn counts(osts: u32) -> Vec<u32> {
    let mut counts: Vec<u32> = [1, 4, 16, osts].into_iter().filter(|count| *count <= osts).collect();
    counts.dedup();
    counts
}

fn as_json(job: &Job, arguments: &AdviseArgs) -> serde_json::Value {
    let hardware = arguments.speeds.hardware(arguments.osts);
    let shown = |estimate: Estimate| json!({ "stripe_count": estimate.stripes, "us": estimate.us, "bytes_per_second": estimate.bytes_per_second });
    let fixed = |count| shown(cost::fixed(&hardware, job, count, STRIPE_BYTES_COMPARED));
    json!({
        "processes": job.processes,
        "clients": job.clients,
        "bytes": job.bytes,
        "shared": job.shared,
        "osts": arguments.osts,
        "fixed": counts(arguments.osts).into_iter().map(fixed).collect::<Vec<_>>(),
        "best": shown(cost::best_fixed(&hardware, job, STRIPE_BYTES_COMPARED)),
        "automatic": shown(cost::automatic(&hardware, job)),
    })
}

fn as_text(job: &Job, arguments: &AdviseArgs) -> String {
    let hardware = arguments.speeds.hardware(arguments.osts);
    let files = if job.shared { "one shared file".to_owned() } else { counted(job.processes, "file") };
    let mut text = format!(
        "{} on {} write {} in {files}\n",
        counted(job.processes, "process"),
        counted(job.clients, "client"),
        bytes(job.bytes)
    );
    let row = |what: &str, estimate: &Estimate| {
        format!("  {what:<22} {:>10}  {:>12}\n", duration(estimate.us), megabytes(estimate.bytes_per_second))
    };
    for count in counts(arguments.osts) {
        let estimate = cost::fixed(&hardware, job, count, STRIPE_BYTES_COMPARED);
        text.push_str(&row(&counted(count, "stripe"), &estimate));
    }
    let (best, automatic) = (cost::best_fixed(&hardware, job, STRIPE_BYTES_COMPARED), cost::automatic(&hardware, job));
    text.push_str(&row(&format!("best fixed: {}", best.stripes), &best));
    text.push_str(&row(&format!("automatic: up to {}", automatic.stripes), &automatic));
    text.push_str("  Best fixed: the fewest stripes within 10% of the shortest time.\n");
    text.push_str(&verdict(&best, &automatic));
    text.push_str(&format!("  {}\n", arguments.speeds.assumption(arguments.osts)));
    text
}

fn verdict(best: &Estimate, automatic: &Estimate) -> String {
    if automatic.us <= best.us + best.us / 10 {
        return "  Leave it to the file system: no fixed layout is 10% faster.\n".to_owned();
    }
    let percent = (automatic.us - best.us).saturating_mul(100) / best.us.max(1);
    format!(
        "  lfs setstripe -c {} DIR before the job: automatic layouts take {percent}% longer here.\n",
        if best.stripes == 0 { 1 } else { best.stripes }
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The command alone.
    #[derive(Debug, Parser)]
    struct Planned {
        #[command(flatten)]
        _arguments: AdviseArgs,
    }

    fn arguments(processes: u32, size: u64, shared: bool) -> AdviseArgs {
        let speeds = Speeds { ost_speed: Some(350), client_speed: 3000 };
        let per_process = !shared;
        AdviseArgs { processes, size, shared, per_process, clients: None, osts: 80, json: false, speeds }
    }

    fn advice(processes: u32, size: u64, shared: bool) -> String {
        let arguments = arguments(processes, size, shared);
        let clients = processes.div_ceil(PROCESSES_PER_CLIENT);
        as_text(&Job { processes, clients, bytes: size, shared }, &arguments)
    }

    #[test]
    fn wrong_usage_shows_both_kinds_of_files() {
        let wrong = ["advise", "--processes", "5", "--size", "1T"];
        let refused = Planned::try_parse_from(wrong).unwrap_err().to_string();
        assert!(refused.contains("--shared|--per-process"), "{refused}");
        let both = [&wrong[..], &["--shared", "--per-process"]].concat();
        Planned::try_parse_from(both).unwrap_err();
        let one = [&wrong[..], &["--per-process"]].concat();
        Planned::try_parse_from(one).unwrap();
    }

    /// The corners of Antypas' matrices.
    #[test]
    fn large_jobs_are_left_to_the_file_system() {
        for processes in [512, 1024, 2048, 4096] {
            for shared in [true, false] {
                let text = advice(processes, 1 << 40, shared);
                assert!(text.contains("Leave it to the file system"), "{text}");
            }
        }
        let text = advice(1, 100 << 30, true);
        assert!(text.starts_with("1 process on 1 client write 100 GiB in one shared file\n"), "{text}");
    }
}
