//! On which processors a process runs, and with how many cores (Lustre's ptlrpcd threads): chosen
//! at its start, the processors also while it runs (`cpu_pattern`). And whether its host's idle
//! processors halt while it is busy (`idle_poll`).
//!
//! Downside: the number of cores is fixed. A task, its timers and its sockets belong to the core on
//! which they began, so a core cannot end before all of them have.

use std::str::FromStr;

use rt::{
    parameters::{Parameter, ParameterError, ParameterTree},
    real::{
        Cores, IdlePoll, RestrictError, cores::CORES_MAX, idle_poll, idle_poll_stats, parse_processors,
        processors_in_use, restrict_processors, set_idle_poll, show_processors,
    },
};

/// Processors that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// As `0-3,8`, or as Lustre writes a single partition: `0[0-3,8]`.
impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let inner = text.strip_prefix("0[").and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let expected = || format!("expected processors such as 0-3,8, found '{text}'; a process has one CPU partition");
        parse_processors(inner).map(CpuList).ok_or_else(expected)
    }
}

/// What a process is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// The processors it uses; `None`: all that it may use.
    pub cpus: Option<CpuList>,
    /// Number of its cores; `None`: one for each of these processors.
    pub cores: Option<usize>,
}

impl CpuOptions {
    /// The cores of a process that serves targets.
    pub fn start(&self) -> anyhow::Result<Cores> {
        self.begin()?;
        Ok(Cores::start_or_all(self.cores)?)
    }

    /// Those of a process with a mount: each bound to a processor, if there are as many.
    pub fn start_bound(&self) -> anyhow::Result<Cores> {
        self.begin()?;
        Ok(Cores::start_bound(self.cores)?)
    }

    fn begin(&self) -> anyhow::Result<()> {
        self.restrict()?;
        Ok(set_idle_poll(IdlePoll::Auto)?)
    }

    /// Restricts the process to its processors, unless that was done.
    pub fn restrict(&self) -> Result<(), RestrictError> {
        self.cpus.as_ref().map_or(Ok(()), |CpuList(processors)| restrict_processors(processors))
    }
}

/// Number of cores in a text.
pub fn parse_cores(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=CORES_MAX).contains(number));
    number.ok_or_else(|| format!("expected a number of cores from 1 to {CORES_MAX}, found '{text}'"))
}

/// Registers the parameters of a process with so many cores.
pub fn register(tree: &ParameterTree, cores: usize) -> Result<(), ParameterError> {
    let doc = "processors that the threads of this process use, as 0-3,8; the number of its cores stays";
    let set = |text: &str| {
        let CpuList(processors) = text.parse()?;
        restrict_processors(&processors).map_err(|error| error.to_string())
    };
    let get = || show_processors(&processors_in_use());
    tree.register("cpu_pattern", Parameter::writable(doc, get, set))?;
    let doc = "while requests follow one another, keep idle processors of this host from halting: auto (on virtual \
               machines of few processors whose kernel halts them at once), on, or off";
    let set = |text: &str| set_idle_poll(text.parse()?).map_err(|error| error.to_string());
    tree.register("idle_poll", Parameter::writable(doc, || idle_poll().to_string(), set))?;
    let doc = "whether idle processors are kept from halting at this moment, how often they were, and for how long";
    tree.register("idle_poll_stats", Parameter::read_only(doc, idle_poll_stats))?;
    let doc = "CPU partitions of this process: there is one, with these processors";
    let get = || {
        let processors: Vec<String> = processors_in_use().iter().map(usize::to_string).collect();
        format!("0\t: {}", processors.join(" "))
    };
    tree.register("cpu_partition_table", Parameter::read_only(doc, get))?;
    let doc = "cores of this process: threads that send, receive and execute requests, as ptlrpcd threads of Lustre";
    tree.register("cores", Parameter::read_only(doc, move || cores.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_written_with_or_without_their_partition() {
        for (text, processors) in [("0-2,5", vec![0, 1, 2, 5]), (" 0[3,1]\n", vec![1, 3])] {
            assert_eq!(text.parse(), Ok(CpuList(processors)), "{text}");
        }
        for wrong in ["", "0[0-1] 1[2-3]", "1[0]", "N", "all", "0-"] {
            let refused = wrong.parse::<CpuList>().unwrap_err();
            assert!(refused.contains("expected processors such as 0-3,8"), "{refused}");
        }
        assert_eq!(parse_cores("3"), Ok(3));
        for wrong in ["0", "1025", "many", ""] {
            assert!(parse_cores(wrong).is_err_and(|refused| refused.contains("from 1 to 1024")), "{wrong}");
        }
    }
}
