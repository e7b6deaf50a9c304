//! `stria study`: the published studies by what they are about, live on this machine or in virtual
//! time. `bench e1`, `bench e2`, `bench e3`, `bench e5`, `lab e1`, `lab e2`, `lab e3` and `lab e5`
//! are other names of the same.

use clap::{Args, Subcommand};

use crate::{
    bench::{
        ageing::{self, LiveAgeingOptions},
        scaling::{self, ScalingOptions},
        study::{self, BlastOptions, E1Command, NetflowOptions, PresetOptions},
        threads::{self, LiveOptions},
    },
    experiment::{self, AgeingArgs, E1Workload, ExperimentArgs, MetadataArgs, MixedArgs, ServiceThreadsArgs},
};

/// A study.
#[derive(Clone, Debug, Subcommand)]
pub enum StudyCommand {
    /// IOR on one shared file: fixed stripe counts compared with layouts that get more stripes
    /// after watermarks (dynamic striping, table 3)
    IorSegments {
        /// Where.
        #[command(subcommand)]
        on: On<PresetOptions>,
    },
    /// Flow records: indexed with large reads, then modelled host by host with very small random
    /// reads (dynamic striping, table 4)
    FlowRecords {
        /// Where.
        #[command(subcommand)]
        on: On<NetflowOptions>,
    },
    /// BLAST over a database in fragments, by many processes (dynamic striping, table 5)
    Blast {
        /// Where.
        #[command(subcommand)]
        on: On<BlastOptions>,
    },
    /// BLAST on 16 to 512 nodes and 128 OSTs, in virtual time only
    BlastNodes(BlastNodes),
    /// Numbers of service threads and of requests in flight, under direct I/O, and the tuner that
    /// finds them
    ServiceThreads {
        /// Where.
        #[command(subcommand)]
        on: On<LiveOptions, ServiceThreadsArgs>,
    },
    /// Advice on stripe counts: a file per process compared with a shared file, all layouts in
    /// every cell
    StripeAdvice {
        /// Where.
        #[command(subcommand)]
        on: On<PresetOptions>,
    },
    /// Ageing of an OST: what fragmentation costs, by the size of pre-allocation windows, in the
    /// study's way or by a mixed year of use
    Ageing {
        /// Where.
        #[command(subcommand)]
        on: AgeingOn,
    },
    /// Metadata scaling: mknod, stat and unlink on 1 to 64 metadata servers with 1 to 6 metadata
    /// targets each, in separate directories and in one striped directory
    MetadataScaling {
        /// Where.
        #[command(subcommand)]
        on: On<ScalingOptions, MetadataArgs>,
    },
}

/// What a study runs on.
#[derive(Clone, Debug, Subcommand)]
pub enum On<L: Args, V: Args = ExperimentArgs> {
    /// Run in miniature on this machine, on targets with limited rates
    #[command(long_flag = "live")]
    Live(L),
    /// Run in virtual time: the shipped code on a model of the study's cluster
    #[command(long_flag = "lab")]
    Lab(V),
}

/// What ages an OST: in virtual time, the shipped allocator on a model of the study's array of
/// rotating drives; or live, an OST on a device or a file of this machine.
#[derive(Clone, Debug, Subcommand)]
pub enum AgeingOn {
    /// As in the study, on a device or in a file of this machine, with the whole engine of an OST:
    /// bitmaps and free space are real, rates as far as the device shows positioning
    Live(LiveAgeingOptions),
    /// As in the study: fill the OST with 20 files that grow at once, remove one after the other
    Lab(AgeingArgs),
    /// By a mixed year of use: files of published sizes and lifetimes are written and removed at a
    /// constant fill; all rates are compared with those of a fresh copy of the same data
    Mixed(MixedArgs),
}

/// Arguments of BLAST on many nodes.
#[derive(Clone, Debug, Args)]
pub struct BlastNodes {
    /// Largest number of nodes
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    nodes_max: u32,
    /// Arguments of all experiments.
    #[command(flatten)]
    arguments: ExperimentArgs,
}

/// Runs `stria study`.
pub fn run(command: StudyCommand) -> anyhow::Result<()> {
    /// Of workloads that have a fixed number of nodes.
    const NODES_MAX: u32 = 512;
    let lab = |workload, arguments| experiment::e1(workload, NODES_MAX, &arguments);
    match command {
        StudyCommand::IorSegments { on: On::Live(options) } => study::run_e1(&E1Command::Ior(options)),
        StudyCommand::IorSegments { on: On::Lab(arguments) } => lab(E1Workload::Ior, arguments),
        StudyCommand::FlowRecords { on: On::Live(options) } => study::run_e1(&E1Command::Netflow(options)),
        StudyCommand::FlowRecords { on: On::Lab(arguments) } => lab(E1Workload::Netflow, arguments),
        StudyCommand::Blast { on: On::Live(options) } => study::run_e1(&E1Command::Blast(options)),
        StudyCommand::Blast { on: On::Lab(arguments) } => lab(E1Workload::Blast, arguments),
        StudyCommand::BlastNodes(BlastNodes { nodes_max, arguments }) => {
            experiment::e1(E1Workload::BlastNodes, nodes_max, &arguments)
        }
        StudyCommand::ServiceThreads { on: On::Live(options) } => threads::run(&options),
        StudyCommand::ServiceThreads { on: On::Lab(arguments) } => experiment::e2(&arguments),
        StudyCommand::StripeAdvice { on: On::Live(options) } => study::run_e3(&options),
        StudyCommand::StripeAdvice { on: On::Lab(arguments) } => experiment::e3(&arguments),
        StudyCommand::Ageing { on: AgeingOn::Live(options) } => ageing::run(&options),
        StudyCommand::Ageing { on: AgeingOn::Lab(arguments) } => experiment::ageing(&arguments),
        StudyCommand::Ageing { on: AgeingOn::Mixed(arguments) } => experiment::mixed(&arguments),
        StudyCommand::MetadataScaling { on: On::Live(options) } => scaling::run(&options),
        StudyCommand::MetadataScaling { on: On::Lab(arguments) } => experiment::metadata(&arguments),
    }
}
