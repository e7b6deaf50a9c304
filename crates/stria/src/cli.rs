//! The command line of `stria`: what people can ask for, in the words of a manual page.

use std::{ffi::OsString, num::NonZero, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::node::config::Role;

/// StriaFS: a parallel file system in user space that stripes itself.
#[derive(Debug, Parser)]
#[command(name = "stria", version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "Start here:\n  stria demo                  shows the file system at work and cleans up\n  stria up --mount /mnt/stria brings one up in this directory and keeps it"
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
    /// Management service, metadata targets, object storage targets and a client, all data under one directory. Formats
    /// the directory the first time and finds its data afterwards. Stays in the foreground; Ctrl-C unmounts and stops.
    Up(UpArgs),
    /// Show the file system at work: copy, stripe, read back, compare, clean up
    Demo(DemoArgs),
    /// Format targets of this host, by a configuration file
    Format(FormatArgs),
    /// Serve the targets of this host until Ctrl-C or SIGTERM
    Serve(ServeArgs),
    /// Mount a file system
    ///
    /// SOURCE is HOST[:PORT]:/FSNAME, the address of the management service and the file system's name. Goes to the
    /// background once the mount works, unless --foreground. From /etc/fstab:
    ///   10.0.0.1:/stria  /mnt/stria  fuse.stria  defaults,_netdev  0 0
    Mount(MountArgs),
    /// Unmount
    Umount(UmountArgs),
    /// Lustre's lfs: layouts and space of mounted file systems (also when called as lfs)
    #[command(disable_help_flag = true)]
    Lfs {
        /// Command and options; see stria lfs --help.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Parameters, statistics and states of the daemons of this host (Lustre's lctl)
    Ctl(CtlArgs),
    /// Decode what is on disk, read only
    Inspect(InspectArgs),
    /// Say why files lie as they do, what that costs and serves, and what would be better
    Explain(crate::explain::ExplainArgs),
    /// Say which layout suits a planned job
    Advise(crate::explain::AdviseArgs),
    /// Check a file system: namespace against objects; repair with --repair
    Fsck(FsckArgs),
    /// Measure, beside a local file system on the same disk
    Bench(BenchArgs),
    /// Run whole clusters in virtual time from seeds, and look for faults
    Lab(LabArgs),
}

/// Arguments of `stria up`.
#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Where all data live; created if missing
    #[arg(long, default_value = "./stria-data", value_name = "DIR")]
    pub dir: PathBuf,
    /// Object storage targets (of a new file system; later runs may add some)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub osts: Option<u16>,
    /// Metadata targets; one for now
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1))]
    pub mdts: u16,
    /// Where to mount [default: DIR/mnt]
    #[arg(long, value_name = "PATH")]
    pub mount: Option<PathBuf>,
    /// Serve other hosts too, at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Name of a new file system [default: stria]
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,
    /// Set a parameter at start; may be repeated
    #[arg(short, long = "set", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,
}

/// Arguments of `stria demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Where the temporary file system lives; on the disk to be shown
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Tree to copy [default: a source tree found on this host]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Size of the large file in MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    pub large_mib: u64,
    /// Object storage targets
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub osts: u16,
}

/// Arguments of `stria format`.
#[derive(Clone, Debug, Args)]
pub struct FormatArgs {
    /// Configuration of the daemon whose targets are to be formatted
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// Only targets of this role
    #[arg(long)]
    pub role: Option<Role>,
    /// Skip targets that are formatted already, for adding new ones
    #[arg(long)]
    pub missing_only: bool,
}

/// Arguments of `stria serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Configuration of the daemon
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
}

/// Arguments of `stria mount`.
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// HOST[:PORT]:/FSNAME
    pub source: String,
    /// Where
    pub mount_point: PathBuf,
    /// Mount options as mount(8) gives them, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Ignore mount options that are not understood
    #[arg(short, long)]
    pub sloppy: bool,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Log file of the background process [default: the system's log]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Started by another `stria mount`, which waits
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
}

impl MountArgs {
    /// Whether the process logs to the system's log: nobody sees its standard error.
    pub fn uses_system_log(&self) -> bool {
        self.detached && self.log.is_none()
    }
}

/// Arguments of `stria umount`.
#[derive(Clone, Debug, Args)]
pub struct UmountArgs {
    /// Mount point
    pub mount_point: PathBuf,
    /// Detach even if files are open
    #[arg(short, long)]
    pub lazy: bool,
}

/// Arguments of `stria ctl`.
#[derive(Clone, Debug, Args)]
pub struct CtlArgs {
    /// Directory with the control sockets of this host's daemons [default: /run/stria; of a user who is not root:
    /// $XDG_RUNTIME_DIR/stria, or /tmp/stria-UID]
    #[arg(long, value_name = "DIR", global = true)]
    pub run_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Commands of `stria ctl`.
#[derive(Clone, Debug, Subcommand)]
pub enum CtlCommand {
    /// Show parameters and statistics: names with * and ?
    #[command(name = "get_param")]
    GetParam {
        /// Values only
        #[arg(short = 'n')]
        values_only: bool,
        /// Names or patterns
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// List names of parameters
    #[command(name = "list_param")]
    ListParam {
        /// Mark those that can be set with =
        #[arg(short = 'F')]
        mark: bool,
        /// Names or patterns
        #[arg(default_value = "*")]
        patterns: Vec<String>,
    },
    /// Set parameters on this host, or (-P) permanently on the whole file system
    #[command(name = "set_param")]
    SetParam {
        /// Permanently, for all daemons and mounts, through the management service
        #[arg(short = 'P')]
        permanent: bool,
        /// NAME=VALUE; the name may be a pattern
        #[arg(required = true)]
        assignments: Vec<String>,
    },
    /// List targets and their states as the daemons of this host know them (Lustre's dl)
    Dl,
    /// Make a pool of OSTs, empty
    #[command(name = "pool_new")]
    PoolNew {
        /// FSNAME.POOL
        pool: String,
    },
    /// Put OSTs into a pool
    #[command(name = "pool_add")]
    PoolAdd {
        /// FSNAME.POOL
        pool: String,
        /// OSTs, as stria-OST0003 or stria-OST[0-6/2,a] (hexadecimal)
        #[arg(required = true)]
        osts: Vec<String>,
    },
    /// Take OSTs out of a pool; files keep their objects there
    #[command(name = "pool_remove")]
    PoolRemove {
        /// FSNAME.POOL
        pool: String,
        /// OSTs, as stria-OST0003 or stria-OST[0-6/2,a] (hexadecimal)
        #[arg(required = true)]
        osts: Vec<String>,
    },
    /// Remove an empty pool
    #[command(name = "pool_destroy")]
    PoolDestroy {
        /// FSNAME.POOL
        pool: String,
    },
    /// List the pools of a file system, or the OSTs of one
    #[command(name = "pool_list")]
    PoolList {
        /// FSNAME or FSNAME.POOL
        name: String,
    },
    /// Take a target out of use
    Deactivate {
        /// Target, as stria-OST0003
        target: String,
    },
    /// Take a target into use again
    Activate {
        /// Target, as stria-OST0003
        target: String,
    },
}

/// Arguments of `stria inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// Directory of a target (not in use) or of several, or a journal segment
    pub path: PathBuf,
    /// Decode every record and key, not only totals
    #[arg(short, long)]
    pub verbose: bool,
    /// Only this inode (a FID or a number): all its records, and its blocks against their checksums
    #[arg(long, value_name = "FID")]
    pub inode: Option<String>,
}

/// Arguments of `stria fsck`.
#[derive(Clone, Debug, Args)]
pub struct FsckArgs {
    /// HOST[:PORT]:/FSNAME of a running file system, or the directory of a stopped `stria up`
    pub source: OsString,
    /// Repair what can be repaired
    #[arg(long)]
    pub repair: bool,
    /// Also read all data and verify checksums
    #[arg(long)]
    pub data: bool,
    /// Findings as JSON lines
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stria bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// Which
    #[command(subcommand)]
    pub command: crate::bench::BenchCommand,
}

/// Arguments of `stria lab`.
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// What
    #[command(subcommand)]
    pub command: LabCommand,
}

/// Commands of `stria lab`.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Run seeds; a failing one prints the command that repeats it
    Run {
        /// How many seeds
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// First seed
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// One seed only, with its event log on standard output
        #[arg(long, conflicts_with_all = ["seeds", "first"])]
        seed: Option<u64>,
        /// Operations per client
        #[arg(long, default_value_t = 100)]
        operations: u64,
        /// Workload: serial, concurrent, power or impatient [default: by turns]
        #[arg(long)]
        mode: Option<lab::Mode>,
    },
    /// Study E1, dynamic striping, on 64 OSTs and 16 clients in virtual time, with the servers' cache and without
    E1 {
        /// Table 3 (ior), 4 (netflow) or 5 (blast)
        #[arg(value_enum, default_value_t = E1Workload::Ior)]
        workload: E1Workload,
        /// Of blast-nodes: no more nodes than this
        #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
        nodes_max: u32,
        /// Arguments of all experiments.
        #[command(flatten)]
        arguments: ExperimentArgs,
    },
    /// Study E3, advice on striping, on 80 OSTs in virtual time
    E3 {
        /// Arguments of all experiments.
        #[command(flatten)]
        arguments: ExperimentArgs,
    },
}

/// Workloads of study E1.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum E1Workload {
    /// One shared file, written and read in large calls
    Ior,
    /// Flow records, read in large calls, then one by one
    Netflow,
    /// A database of fragments, which every process searches
    Blast,
    /// The same on 16 to 512 nodes and 128 OSTs
    BlastNodes,
}

/// Arguments of experiments in virtual time.
#[derive(Clone, Debug, Args)]
pub struct ExperimentArgs {
    /// Divide sizes of files by this
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub scale: u64,
    /// Decides interleavings and placements
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw figures (SVG) into this directory, which must exist
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Write every result to this file as a JSON line, as soon as it is there
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Only configurations whose line of progress contains this, as "IOR.4", "64 nodes", "1 MiB" or "shared x160"
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Go on with a run that was ended: take what the file of --json has of it, run the rest
    #[arg(long, requires = "json")]
    pub resume: bool,
    /// Run so many configurations at a time; by default one on each core. Each takes memory, results do not depend on it
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
}
