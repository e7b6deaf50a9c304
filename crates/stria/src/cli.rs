//! The command line of `stria`: its commands, in the words of a manual page.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use lfs::explain::{AdviseArgs, ExplainArgs};
use node::{
    ctl::CtlArgs,
    format::FormatArgs,
    fsck::FsckArgs,
    inspect::InspectArgs,
    mount::{MountArgs, UmountArgs},
    mount_guard::MountGuardArgs,
    serve::ServeArgs,
    up::UpArgs,
};
use studies::{
    AgeingArgs, BenchCommand, DemoArgs, E1Workload, ExperimentArgs, MetadataArgs, PredictArgs, ServiceThreadsArgs,
    StudyCommand,
};

/// StriaFS: a parallel file system in user space that chooses file layouts by itself.
#[derive(Debug, Parser)]
#[command(name = "stria", version, propagate_version = true)]
#[command(
    after_help = "Start here:\n  stria demo                   shows the file system at work and cleans up\n  stria up --mount /mnt/stria  brings one up in this directory and keeps it"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole file system in this process and mount it
    ///
    /// Runs the management service, metadata targets, object storage targets and a client, with all
    /// data under one directory. The first run formats the directory; later runs find its data
    /// again. Stays in the foreground; Ctrl-C unmounts the file system and stops the process.
    /// Formatting needs 100 MiB for each target, plus 144 MiB: 744 MiB with 4 object storage
    /// targets.
    Up(UpArgs),
    /// Show the file system at work: copy, stripe, read back, compare, clean up
    Demo(DemoArgs),
    /// Format the targets of this host that are named in a configuration file
    Format(FormatArgs),
    /// Serve the targets of this host until Ctrl-C or SIGTERM
    Serve(ServeArgs),
    /// Mount a file system
    ///
    /// SOURCE is HOST[:PORT]:/FSNAME, the address of the management service and the name of the
    /// file system. Several addresses, separated by commas, are tried in turn. Continues in the
    /// background once the mount works, unless --foreground is given.
    #[command(after_help = node::mount_options::help())]
    Mount(MountArgs),
    /// Unmount a file system
    Umount(UmountArgs),
    /// Lustre's lfs: layouts and space of mounted file systems (also when called as lfs)
    #[command(disable_help_flag = true)]
    Lfs {
        /// Command and options; see stria lfs --help.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Show and set parameters, statistics and states of this host's daemons (Lustre's lctl)
    ///
    /// Asks all daemons of this user on this host: stria up, stria serve and stria mount. If
    /// several answer, a line "# SOURCE: DAEMON, process PID" precedes each answer. Commands that
    /// change something apply to one file system only: if there are daemons of several file
    /// systems, select one with --fs or --run-dir.
    Ctl(CtlArgs),
    /// Decode what is on disk, read only
    ///
    /// Shows the identity, journal, tables and host files of targets that are not being served, and
    /// any damage. The tables are read from a copy in a temporary directory (set TMPDIR to choose
    /// it). A journal segment can also be inspected while its target is in use.
    Inspect(InspectArgs),
    /// Explain the layout of files: the reasons for it, its cost and speed, and what would be
    /// better; or, with --service, the number of threads of a service
    Explain(ExplainArgs),
    /// Recommend a layout for a planned job
    Advise(AdviseArgs),
    /// Check a file system: compare the namespace with the objects; repair with --repair
    ///
    /// Works through the servers, so it can check a running file system while it is in use. Shows
    /// its progress on standard error.
    Fsck(FsckArgs),
    /// Measure performance, compared with a local file system on the same disk
    Bench(BenchArgs),
    /// Repeat published studies of striping, live or in virtual time
    Study(StudyArgs),
    /// Run whole clusters in virtual time from seeds, to find bugs
    Lab(LabArgs),
    /// Write manual pages and completions, for packages
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// Unblock the programs that use a mount if its daemon is killed
    #[command(hide = true)]
    MountGuard(MountGuardArgs),
}

/// Arguments of `stria generate`.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// Directory in which man and completions are created
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Arguments of `stria bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// Benchmark to run
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// Arguments of `stria study`.
#[derive(Clone, Debug, Args)]
pub struct StudyArgs {
    /// Study to run
    #[command(subcommand)]
    pub command: StudyCommand,
}

/// Arguments of `stria lab`.
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// What to run
    #[command(subcommand)]
    pub command: LabCommand,
}

/// Commands of `stria lab`.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Run seeds; if one fails, print the command that repeats it
    Run {
        /// Number of seeds
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// First seed
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Run this seed only, and print its event log on standard output
        #[arg(long, conflicts_with_all = ["seeds", "first"])]
        seed: Option<u64>,
        /// Operations per client
        #[arg(long, default_value_t = 100)]
        operations: u64,
        /// Workload: serial, concurrent, power, timeouts or contended [default: all in turn]
        #[arg(long)]
        mode: Option<lab::Mode>,
    },
    /// Compare rates that the lab predicts for this machine with measured ones
    Predict(PredictArgs),
    /// `stria study`, in virtual time
    #[command(hide = true)]
    E1 {
        /// Table 3 (ior), 4 (netflow) or 5 (blast)
        #[arg(value_enum, default_value_t = E1Workload::Ior)]
        workload: E1Workload,
        /// For blast-nodes: largest number of nodes
        #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
        nodes_max: u32,
        /// Arguments of all experiments.
        #[command(flatten)]
        arguments: ExperimentArgs,
    },
    /// `stria study service-threads lab`
    #[command(hide = true)]
    E2 {
        /// Arguments of all experiments.
        #[command(flatten)]
        arguments: ServiceThreadsArgs,
    },
    /// `stria study stripe-advice lab`
    #[command(hide = true)]
    E3 {
        /// Arguments of all experiments.
        #[command(flatten)]
        arguments: ExperimentArgs,
    },
    /// `stria study metadata-scaling lab`
    #[command(hide = true)]
    E5 {
        /// Arguments of the study.
        #[command(flatten)]
        arguments: MetadataArgs,
    },
    /// `stria study ageing lab`
    #[command(hide = true)]
    Ageing {
        /// Arguments of the study.
        #[command(flatten)]
        arguments: AgeingArgs,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Below the options clap breaks lines at the width of the terminal: lines broken by hand must
    /// fit the narrowest usual terminal, and longer lines must be whole paragraphs.
    #[test]
    fn lines_of_help_are_broken_in_one_place_only() {
        const COLUMNS: usize = 80;
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for (number, line) in lines.iter().enumerate() {
                let is_blank = |other: Option<&&str>| other.is_none_or(|other| other.is_empty());
                let before = number.checked_sub(1).and_then(|number| lines.get(number));
                let is_paragraph = is_blank(before) && is_blank(lines.get(number + 1)) && !line.starts_with(' ');
                assert!(line.chars().count() <= COLUMNS || is_paragraph, "stria {}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
