//! What requests of a mount cost its process and its servers: processor time, context switches and
//! system calls per operation of a program.
//!
//! `cargo run -p stria-rt --example request_cost DIRECTORY REQUESTS NAME=PID...`
//!
//! DIRECTORY is below the mount, and is made if it is missing; each NAME is printed, each PID is a
//! process to look at. Times and switches are from /proc, for all threads of a process; system
//! calls are counted by `perf stat` in a further round, because that takes time. `loopback_floor`
//! tells what a request over TCP costs at least. Operations that the mount answers by itself show
//! what the kernel's boundary costs; for `stat` and `lookup` to ask the MDT each time, it must
//! grant no locks: `stria ctl set_param mdt.*.cache_locks=0` before the mount.

use std::{
    error::Error,
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    time::Instant,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a read.
const READ_BYTES: usize = 4096;
/// Bytes of the file that is read.
const FILE_BYTES: u64 = 1 << 20;

/// Argument of a run that does one round and says nothing.
const ONLY: &str = "only=";

/// A process that is looked at.
struct Observed {
    name: String,
    pid: u32,
}

/// What a process has used so far.
#[derive(Clone, Copy, Default)]
struct Used {
    processor_ns: u64,
    switches: u64,
}

impl Observed {
    fn parse(text: &str) -> Outcome<Self> {
        let (name, pid) = text.split_once('=').ok_or("expected NAME=PID")?;
        Ok(Self { name: name.to_owned(), pid: pid.parse()? })
    }

    /// The sum over its threads. One that ends meanwhile is missing.
    fn used(&self) -> Outcome<Used> {
        let mut used = Used::default();
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let thread = thread?.path();
            let Ok(times) = fs::read_to_string(thread.join("schedstat")) else { continue };
            let Ok(status) = fs::read_to_string(thread.join("status")) else { continue };
            used.processor_ns += times.split_whitespace().next().ok_or("an empty schedstat")?.parse::<u64>()?;
            let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            used.switches += switches.ok_or("no count of switches")?.trim().parse::<u64>()?;
        }
        Ok(used)
    }

    /// Counts its system calls while this program, started again, does one round of an operation.
    fn count_calls(&self, directory: &Path, requests: u32, operation: &str) -> Outcome<u64> {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &self.pid.to_string(), "--"]);
        perf.arg(std::env::current_exe()?).arg(directory).arg(requests.to_string()).arg(format!("{ONLY}{operation}"));
        let said = String::from_utf8(perf.output()?.stderr)?;
        let count = said.lines().find(|line| line.contains("raw_syscalls")).and_then(|line| line.split(',').next());
        Ok(count.ok_or_else(|| format!("perf: {said}"))?.parse()?)
    }
}

/// An operation of a program, the n-th of its kind.
type Operation<'a> = (&'static str, Box<dyn FnMut(u32) -> Outcome<()> + 'a>);

fn operations<'a>(directory: &'a Path, file: &'a File) -> [Operation<'a>; 4] {
    let missing = |n: u32| match fs::symlink_metadata(directory.join(format!("missing{n}"))) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => Err(format!("a missing file: {other:?}").into()),
    };
    let mut created = 0;
    let create = move |_| {
        created += 1;
        let path = directory.join(format!("{}.{created}", std::process::id()));
        OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(())
    };
    let read = |n: u32| {
        let offset = u64::from(n) * READ_BYTES as u64 % FILE_BYTES;
        Ok(file.read_exact_at(&mut [0; READ_BYTES], offset)?)
    };
    [
        ("stat", Box::new(|_| Ok(file.metadata().map(drop)?))),
        ("lookup", Box::new(missing)),
        ("create and close", Box::new(create)),
        ("read 4 KiB", Box::new(read)),
    ]
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: request_cost DIRECTORY REQUESTS NAME=PID...";
    let (directory, requests) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?.parse::<u32>()?);
    let mut arguments = arguments.peekable();
    let only = arguments.next_if(|text| text.starts_with(ONLY));
    let observed: Vec<Observed> = arguments.map(|text| Observed::parse(&text)).collect::<Outcome<_>>()?;
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    let path = directory.join("contents");
    if !path.exists() {
        fs::write(&path, vec![7; FILE_BYTES as usize])?;
    }
    let file = File::open(&path)?;
    let per = |count: u64| count as f64 / f64::from(requests);
    for (name, mut operate) in operations(directory, &file) {
        let mut round = || (0..requests).try_for_each(&mut operate);
        if let Some(only) = &only {
            if only.strip_prefix(ONLY) == Some(name) {
                round()?;
            }
            continue;
        }
        round()?;
        let before = observed.iter().map(Observed::used).collect::<Outcome<Vec<_>>>()?;
        let began = Instant::now();
        round()?;
        println!("{name}: {:.0} us each", began.elapsed().as_secs_f64() * 1e6 / f64::from(requests));
        let after = observed.iter().map(Observed::used).collect::<Outcome<Vec<_>>>()?;
        for ((observed, before), after) in observed.iter().zip(&before).zip(&after) {
            let calls = observed.count_calls(directory, requests, name)?;
            println!(
                "    {}: {:.1} us of processor time, {:.2} switches, {:.1} system calls",
                observed.name,
                per(after.processor_ns - before.processor_ns) / 1e3,
                per(after.switches - before.switches),
                per(calls),
            );
        }
    }
    Ok(())
}
