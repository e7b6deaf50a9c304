//! `stria advise`: the layout for a planned job. It needs no file system.

use clap::Args;
use layout::cost::{self, Estimate, Job, STRIPE_BYTES_COMPARED};
use serde_json::json;

use super::{Speeds, bytes, counted, duration, megabytes};
use crate::lfs::size;

/// Processes on one client where nobody says how many.
const PROCESSES_PER_CLIENT: u32 = 16;

/// Arguments of `stria advise`.
#[derive(Clone, Debug, Args)]
pub struct AdviseArgs {
    /// Processes that write at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub processes: u32,
    /// Bytes of all files together, as 100G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// One file of all processes
    #[arg(long, conflicts_with = "per_process", required_unless_present = "per_process")]
    pub shared: bool,
    /// A file of each process
    #[arg(long)]
    pub per_process: bool,
    /// Nodes they run on [default: 16 processes on each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub clients: Option<u32>,
    /// OSTs of the file system
    #[arg(long, default_value_t = 80, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub osts: u32,
    /// As a JSON object; "best" is the fewest stripes within a tenth of the shortest time
    #[arg(long)]
    pub json: bool,
    /// The speeds to reckon with
    #[command(flatten)]
    pub speeds: Speeds,
}

fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text, false).filter(|bytes| *bytes > 0).ok_or_else(|| "expected a size such as 100G".to_owned())
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
    let files = if job.shared { "one shared file".to_owned() } else { format!("{} files", job.processes) };
    let mut text = format!(
        "{} on {} write {} in {files}\n",
        counted(u64::from(job.processes), "process").replace("processs", "processes"),
        counted(u64::from(job.clients), "client"),
        bytes(job.bytes)
    );
    let row = |what: &str, estimate: &Estimate| {
        format!("  {what:<22} {:>10}  {:>12}\n", duration(estimate.us), megabytes(estimate.bytes_per_second))
    };
    for count in counts(arguments.osts) {
        let estimate = cost::fixed(&hardware, job, count, STRIPE_BYTES_COMPARED);
        text.push_str(&row(&counted(u64::from(count), "stripe"), &estimate));
    }
    let (best, automatic) = (cost::best_fixed(&hardware, job, STRIPE_BYTES_COMPARED), cost::automatic(&hardware, job));
    text.push_str(&row(&format!("best fixed: {}", best.stripes), &best));
    text.push_str(&row(&format!("automatic: up to {}", automatic.stripes), &automatic));
    text.push_str("  Best fixed: the fewest stripes within a tenth of the shortest time.\n");
    text.push_str(&verdict(&best, &automatic));
    text.push_str(&format!("  {}\n", arguments.speeds.assumption(arguments.osts)));
    text
}

fn verdict(best: &Estimate, automatic: &Estimate) -> String {
    if automatic.us <= best.us + best.us / 10 {
        return "  Leave it to the file system: nothing fixed is a tenth faster.\n".to_owned();
    }
    let percent = (automatic.us - best.us).saturating_mul(100) / best.us.max(1);
    format!(
        "  lfs setstripe -c {} DIR before the job: automatic layouts take {percent}% longer here.\n",
        if best.stripes == 0 { 1 } else { best.stripes }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(processes: u32, size: u64, shared: bool) -> AdviseArgs {
        let speeds = Speeds { ost_speed: 350, client_speed: 3000 };
        let per_process = !shared;
        AdviseArgs { processes, size, shared, per_process, clients: None, osts: 80, json: false, speeds }
    }

    fn advice(processes: u32, size: u64, shared: bool) -> String {
        let arguments = arguments(processes, size, shared);
        let clients = processes.div_ceil(PROCESSES_PER_CLIENT);
        as_text(&Job { processes, clients, bytes: size, shared }, &arguments)
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
