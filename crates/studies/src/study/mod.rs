//! Published studies as data: what they ran, at which size, and the expected results.
//!
//! A [`Study`] is a list of [`Job`]s with statements to compare with their results ([`shape`]). The
//! same jobs run live, in miniature (`stria bench e1`), and in virtual time ([`run`](mod@run),
//! `stria lab e1`). Rates are compared within one run only.
//!
//! Downside: sizes are divided to limit the run time ([`Scale`]); effects that depend on absolute
//! sizes, such as a cache that a file does not fit into, have to be scaled with them.

pub mod blast;
pub mod e1;
pub mod e2;
pub mod e3;
pub mod e4;
pub mod e5;
pub mod flow;
pub mod netflow;
pub mod run;
pub mod service_threads;
pub mod shape;
pub mod tuned;

use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec};

/// By how much a study is made smaller than it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Scale {
    /// Divides sizes of files and watermarks.
    pub bytes: u64,
    /// Divides numbers of OSTs and stripe counts.
    pub osts: u32,
    /// Divides numbers of tasks.
    pub tasks: u32,
}

impl Scale {
    /// As published.
    pub const FULL: Scale = Scale { bytes: 1, osts: 1, tasks: 1 };

    /// A stripe count, at least 1.
    fn count(self, published: u32) -> u32 {
        (published / self.osts).max(1)
    }
}

/// A part of a file and its stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it ends; [`END_OF_FILE`] for the rest.
    pub end: u64,
    /// Stripes.
    pub stripe_count: StripeCount,
    /// Bytes per stripe.
    pub stripe_bytes: u64,
}

/// The requested layout of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Striping {
    /// In segments, one after the other.
    Segments(Vec<Segment>),
    /// As the file system decides.
    Automatic,
}

impl Segment {
    /// As a request for a file of its own.
    pub fn stripes(&self) -> StripeSpec {
        StripeSpec { stripe_count: self.stripe_count, stripe_bytes: Some(self.stripe_bytes), ..StripeSpec::default() }
    }
}

impl Striping {
    /// The whole file in one.
    pub fn plain(stripe_count: StripeCount, stripe_bytes: u64) -> Self {
        Striping::Segments(vec![Segment { end: END_OF_FILE, stripe_count, stripe_bytes }])
    }

    /// As a request for a file.
    pub fn spec(&self) -> LayoutSpec {
        match self {
            Striping::Automatic => LayoutSpec::Automatic,
            Striping::Segments(segments) => match segments.as_slice() {
                [segment] if segment.end == END_OF_FILE => LayoutSpec::Plain(segment.stripes()),
                segments => LayoutSpec::Composite(
                    segments
                        .iter()
                        .map(|segment| ComponentSpec {
                            end: segment.end,
                            backing: BackingSpec::Striped(segment.stripes()),
                        })
                        .collect(),
                ),
            },
        }
    }
}

/// Who writes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One file; each task has a block of it, in order of rank.
    Shared,
    /// Each task has a file.
    FilePerTask,
}

/// One configuration of a study: all tasks write, then all read the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name in the study.
    pub name: String,
    /// What is set for it besides, for studies that compare settings.
    pub setting: String,
    /// The layout of its files.
    pub striping: Striping,
    /// Who writes what.
    pub pattern: Pattern,
    /// Tasks.
    pub tasks: u32,
    /// Bytes of each task.
    pub task_bytes: u64,
    /// Bytes of each call.
    pub transfer_bytes: u64,
}

impl Job {
    /// Bytes of all tasks.
    pub fn bytes(&self) -> u64 {
        u64::from(self.tasks) * self.task_bytes
    }

    /// Whether another one differs by its name only.
    fn does_the_same_as(&self, other: &Job) -> bool {
        *self == Job { name: self.name.clone(), ..other.clone() }
    }

    /// Files it needs.
    pub fn files(&self) -> u32 {
        match self.pattern {
            Pattern::Shared => 1,
            Pattern::FilePerTask => self.tasks,
        }
    }

    /// Number of a task's file, and where its block begins in it.
    pub fn place(&self, rank: u32) -> (u32, u64) {
        match self.pattern {
            Pattern::Shared => (0, u64::from(rank) * self.task_bytes),
            Pattern::FilePerTask => (rank, 0),
        }
    }

    /// A task's calls: offset and length.
    pub fn transfers(&self, rank: u32) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (start, bytes, step) = (self.place(rank).1, self.task_bytes, self.transfer_bytes);
        (0..bytes.div_ceil(step)).map(move |call| (start + call * step, step.min(bytes - call * step)))
    }
}

/// What one phase of one job took.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Outcome {
    /// Name of the job.
    pub job: String,
    /// What was done.
    pub phase: &'static str,
    /// Bytes moved.
    pub bytes: u64,
    /// Calls.
    pub operations: u64,
    /// Seconds from the first task's start to the last one's end.
    pub seconds: f64,
}

impl Outcome {
    /// MiB per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds.max(1e-9)
    }
}

/// A study to be run.
#[derive(Clone, Debug)]
pub struct Study {
    /// Name, as `e1 ior`.
    pub name: &'static str,
    /// By how much it is smaller than published.
    pub scale: Scale,
    /// Number of OSTs of the file system.
    pub osts: u32,
    /// Its configurations.
    pub jobs: Vec<Job>,
    /// What must come out.
    pub shape: fn(&Study, &shape::Rates) -> Vec<shape::Finding>,
}

impl Study {
    /// Its sentences, held against what came out.
    pub fn findings(&self, outcomes: &[Outcome]) -> Vec<shape::Finding> {
        (self.shape)(self, &shape::Rates::of(outcomes))
    }

    /// Configurations that this scale leaves no difference between but their names, together: where
    /// stripe counts or numbers of tasks are divided, those that were published as different may
    /// become the same.
    pub fn indistinguishable(&self) -> Vec<Vec<&Job>> {
        let mut kinds: Vec<Vec<&Job>> = Vec::new();
        for job in &self.jobs {
            let same = |kind: &&mut Vec<&Job>| kind.first().is_some_and(|first| first.does_the_same_as(job));
            match kinds.iter_mut().find(same) {
                Some(kind) => kind.push(job),
                None => kinds.push(vec![job]),
            }
        }
        kinds.retain(|kind| kind.len() > 1);
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_tasks_cover_a_shared_file_once() {
        let job = Job {
            name: "j".to_owned(),
            setting: String::new(),
            striping: Striping::Automatic,
            pattern: Pattern::Shared,
            tasks: 3,
            task_bytes: 10,
            transfer_bytes: 4,
        };
        let calls: Vec<_> = (0..3).flat_map(|rank| job.transfers(rank)).collect();
        assert_eq!(calls[..4], [(0, 4), (4, 4), (8, 2), (10, 4)]);
        assert_eq!(calls.iter().map(|(_, bytes)| bytes).sum::<u64>(), job.bytes());
        let own = Job { pattern: Pattern::FilePerTask, ..job };
        assert_eq!((own.place(2), own.files()), ((2, 0), 3));
    }

    #[test]
    fn published_configurations_differ_and_small_scales_may_leave_no_difference() {
        let aggregates = [e3::Aggregate::Large];
        for study in [
            e1::ior(Scale::FULL),
            e1::netflow(Scale::FULL),
            e1::blast(Scale::FULL),
            e1::blast_nodes(Scale::FULL, 512),
            e2::sweep(Scale::FULL),
            e3::matrix(Scale::FULL, &aggregates),
        ] {
            assert!(study.indistinguishable().is_empty(), "{}", study.name);
        }
        // 4, 8 and 16 stripes become 1, 1 and 2.
        let study = e1::ior(Scale { osts: 8, ..Scale::FULL });
        let names = |kinds: Vec<Vec<&Job>>| -> Vec<Vec<String>> {
            kinds.iter().map(|kind| kind.iter().map(|job| job.name.clone()).collect()).collect()
        };
        assert_eq!(names(study.indistinguishable()), [["IOR.1", "IOR.2"]]);
    }

    #[test]
    fn one_segment_is_a_plain_layout_and_several_are_components() {
        let whole = Striping::plain(StripeCount::Exactly(4), 1 << 20);
        assert!(matches!(whole.spec(), LayoutSpec::Plain(_)));
        let Striping::Segments(mut segments) = whole else { panic!("segments") };
        segments.insert(0, Segment { end: 1 << 30, stripe_count: StripeCount::All, stripe_bytes: 1 << 20 });
        let spec = Striping::Segments(segments).spec();
        assert!(matches!(&spec, LayoutSpec::Composite(components) if components.len() == 2));
        assert_eq!(spec.validate(0), Ok(()));
    }
}
