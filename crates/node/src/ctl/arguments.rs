//! The command line of `stria ctl`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Fields of the JSON lines of `stria ctl`.
const CTL_JSON: &str = "\
JSON (--json): one object per line. All have
  fsname, source, role, pid    file system and daemon that answers
Further fields:
  get_param, set_param         name, value, writable, doc, min, max, default
  list_param                   the same without value
  dl                           state, kind, name, address
  pool_list                    pool, osts

Unknown values are null. Commands that only change something print nothing: see their exit status.";

/// Arguments of `stria ctl`.
#[derive(Clone, Debug, Args)]
#[command(after_help = CTL_JSON)]
pub struct CtlArgs {
    /// Directory with the control sockets of this host's daemons [default: /run/stria; for users
    /// other than root: $XDG_RUNTIME_DIR/stria, or /tmp/stria-UID]
    #[arg(long, value_name = "DIR", global = true)]
    pub run_dir: Option<PathBuf>,
    /// Ask only daemons of this file system: its name, or its mount source, such as
    /// 10.0.0.1:988:/stria or /srv/data:/stria
    #[arg(long, value_name = "NAME", global = true)]
    pub fs: Option<String>,
    /// Print answers as JSON lines
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Commands of `stria ctl`.
#[derive(Clone, Debug, Subcommand)]
pub enum CtlCommand {
    /// Show parameters and statistics; names may contain * and ?
    #[command(name = "get_param")]
    GetParam {
        /// Print values only
        #[arg(short = 'n')]
        values_only: bool,
        /// Show the permanent settings of the file system (set_param -P), in the order in which
        /// they are stored
        #[arg(short = 'P', conflicts_with = "patterns")]
        permanent: bool,
        /// Names or patterns
        #[arg(required_unless_present = "permanent", value_name = "NAME")]
        patterns: Vec<String>,
    },
    /// List parameters with their meaning, range and default, and whether they can be set
    #[command(name = "list_param")]
    ListParam {
        /// Print names only; = marks those that can be set
        #[arg(short = 'F', long = "classify")]
        mark: bool,
        /// Print names only, as lctl does
        #[arg(short, long)]
        names_only: bool,
        /// Names or patterns
        #[arg(default_value = "*")]
        patterns: Vec<String>,
    },
    /// Set parameters on this host, or (-P) permanently on the whole file system
    ///
    /// -P stores the setting at the management service; all daemons and mounts of the file system
    /// adopt it, including those that start later. get_param -P shows the stored settings, and
    /// set_param -P -d NAME removes one: running daemons keep its value until they stop, or until
    /// it is set again.
    #[command(name = "set_param")]
    SetParam {
        /// Set permanently, for all daemons and mounts, through the management service
        #[arg(short = 'P')]
        permanent: bool,
        /// Remove permanent settings: give their NAMEs as get_param -P shows them
        #[arg(short = 'd', requires = "permanent")]
        delete: bool,
        /// NAME=VALUE; the name may be a pattern
        #[arg(required = true, value_name = "NAME=VALUE")]
        assignments: Vec<String>,
    },
    /// List targets and their states as known to the daemons of this host (Lustre's dl)
    Dl,
    /// Create an empty pool of OSTs
    #[command(name = "pool_new")]
    PoolNew {
        /// FSNAME.POOL
        pool: String,
    },
    /// Add OSTs to a pool
    #[command(name = "pool_add")]
    PoolAdd {
        /// FSNAME.POOL
        pool: String,
        /// OSTs, such as stria-OST0003 or stria-OST[0-6/2,a] (hexadecimal)
        #[arg(required = true)]
        osts: Vec<String>,
    },
    /// Remove OSTs from a pool; files keep their objects there
    #[command(name = "pool_remove")]
    PoolRemove {
        /// FSNAME.POOL
        pool: String,
        /// OSTs, such as stria-OST0003 or stria-OST[0-6/2,a] (hexadecimal)
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
    /// Deactivate a target: no client or server uses it any more
    ///
    /// Clients and servers stop sending requests to it and waiting for it, and it gets no new
    /// files; access to data on it fails at once with an input/output error. The metadata target
    /// with the root directory cannot be deactivated.
    Deactivate {
        /// Target, such as stria-OST0003
        target: String,
    },
    /// Activate a target again
    Activate {
        /// Target, such as stria-OST0003
        target: String,
    },
}
