//! Measurements and studies: the performance of this file system, compared with a local one, on a
//! mount and in virtual time.
//!
//! - `bench`: rates of a file system that this process starts, or of a mounted one, and studies in
//!   miniature on it;
//! - `command`: `stria study`, which runs a study on either;
//! - `study`: the published studies as jobs, and their models in virtual time on the cluster of the
//!   crate `lab`;
//! - `model`: disks and links on which the lab's cluster runs in `study`;
//! - `experiment`: runs the studies and shows the results as tables, figures and JSON lines;
//! - `predict`: the same calls live and in virtual time, side by side;
//! - `demo`: the demonstration on real files;
//! - `ageing_report`: what both runs of the study of ageing show;
//! - `directory_places`: where the directories of metadata benchmarks are.
//!
//! Nothing here is needed to use the file system. Downside: a model is only as good as its
//! assumptions (docs/decisions/0011-models.md); `bench` shows what this machine does at this
//! moment.

mod ageing_report;
mod bench;
mod command;
mod demo;
mod directory_places;
mod experiment;
mod figure;
mod json_lines;
mod model;
mod predict;
mod study;

pub use bench::{BenchCommand, run as run_bench};
pub use command::{StudyCommand, run as run_study};
pub use demo::{DemoArgs, run as run_demo};
pub use experiment::{
    AgeingArgs, E1Workload, ExperimentArgs, MetadataArgs, ServiceThreadsArgs, ageing, e1, e2, e3, metadata,
};
pub use predict::{PredictArgs, run as predict};
