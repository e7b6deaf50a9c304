//! The tuner: finds the number of service threads of a service, or of requests in flight to a
//! target, at which most work is done.
//!
//! [`Tuner::step`] takes counters and answers with a setting and the time of the next step. It
//! compares settings by trials: the present setting and another one take turns in short windows, so
//! that a load that grows or shrinks meanwhile counts for both, until the difference of their rates
//! is clear, or no difference is found in time. The method and the reasons for it are in
//! `docs/decisions/0051-tuner.md`.
//!
//! Pure: no clock, no thread, no random numbers. Time is passed in, in nanoseconds of a clock that
//! does not go back; the same measurements give the same settings.
//!
//! Invariants: a setting is within its limits; without measured work nothing changes; outside of a
//! trial the setting is the last one that won a trial.
//!
//! Downside: only differences that stand out from the noise of some seconds are found, and the
//! trials cost up to a few percent of the rate while a setting is searched for.

mod decision;
mod limits;
mod measurement;
mod noise;
mod trial;
mod tuner;

pub use decision::{Decision, LOG_DECISIONS_MAX, Outcome};
pub use limits::Limits;
pub use measurement::Measurement;
pub use tuner::{Step, Tuner};
