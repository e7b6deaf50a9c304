//! Which job the requests of a mount belong to (Lustre's `jobid_var` and `jobid_name`).

use std::{fmt, str::FromStr};

use parking_lot::Mutex;
use types::JobName;

/// Where the name of a job comes from; the words are Lustre's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobSource {
    /// Requests name no job.
    #[default]
    Disable,
    /// Program and user: `dd.0`.
    ProgramAndUser,
    /// One name for the whole mount.
    Mount,
}

impl JobSource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Disable, Self::ProgramAndUser, Self::Mount];
}

impl fmt::Display for JobSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobSource::Disable => "disable",
            JobSource::ProgramAndUser => "procname_uid",
            JobSource::Mount => "nodelocal",
        })
    }
}

impl FromStr for JobSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|source| source.to_string() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(|source| source.to_string()).join(", ")))
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct JobIds(Mutex<(JobSource, JobName)>);

impl JobIds {
    /// Where names come from.
    pub fn source(&self) -> JobSource {
        self.0.lock().0
    }

    /// Changes it.
    pub fn set_source(&self, source: JobSource) {
        self.0.lock().0 = source;
    }

    /// The name for [`JobSource::Mount`].
    pub fn name(&self) -> JobName {
        self.0.lock().1
    }

    /// Changes it.
    pub fn set_name(&self, name: JobName) {
        self.0.lock().1 = name;
    }

    /// The job of a request, whose program and user `describe` tells, if they are asked for.
    pub fn of(&self, describe: impl FnOnce() -> JobName) -> JobName {
        let (source, name) = *self.0.lock();
        match source {
            JobSource::Disable => JobName::NONE,
            JobSource::ProgramAndUser => describe(),
            JobSource::Mount => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_decides_and_only_one_asks_for_the_program() {
        let jobs = JobIds::default();
        jobs.set_name(JobName::new("night"));
        assert_eq!(jobs.of(|| unreachable!()), JobName::NONE);
        for (text, expected) in [("procname_uid", "dd.0"), ("nodelocal", "night"), ("disable", "")] {
            jobs.set_source(text.parse().unwrap());
            assert_eq!(jobs.source().to_string(), text);
            assert_eq!(jobs.of(|| JobName::new("dd.0")).as_str(), expected);
        }
        let error = "PBS_JOBID".parse::<JobSource>().unwrap_err();
        assert_eq!(error, "expected one of disable, procname_uid, nodelocal");
    }
}
