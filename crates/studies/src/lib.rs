//! Measurements and studies: what this file system reaches, beside a local one, on a mount and in virtual time.
//!
//! - `bench`: rates of a file system that this process starts, or of a mounted one, and studies in miniature on it;
//! - `command`: `stria study`, which runs a study on either;
//! - `study`: the published studies as jobs, and their models in virtual time on the cluster of the crate `lab`;
//! - `model`: disks and links that the cluster of the lab stands on in `study`;
//! - `experiment`: those, run and shown as tables, figures and JSON lines;
//! - `demo`: the main job on real input.
//!
//! Nothing here is needed to use the file system. Downside: a model says what its assumptions say
//! (docs/decisions/0011-models.md); `bench` says what this machine does at this moment.

mod bench;
mod command;
mod demo;
mod experiment;
mod figure;
mod model;
mod study;

pub use bench::{BenchCommand, run as run_bench};
pub use command::{StudyCommand, run as run_study};
pub use demo::{DemoArgs, run as run_demo};
pub use experiment::{E1Workload, ExperimentArgs, e1, e3};
