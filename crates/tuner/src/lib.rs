//! The tuner: finds the number of service threads of a service, or of requests in flight to a
//! target, at which most work is done.
//!
//! [`Tuner::step`] takes counters and answers with a setting and the time of the next step. It
//! compares settings by trials: another setting for some time, then the present one again. What was
//! measured of each setting is pooled (`records`), and a trial lasts until the difference is clear
//! by the noise over so long a time (`noise`), or is not found in time. The method and the reasons
//! for it are in `docs/decisions/0051-tuner.md`.
//!
//! Pure: no clock, no thread, no random numbers. Time is passed in, in nanoseconds of a clock that
//! does not go back; the same measurements give the same settings.
//!
//! Invariants: a setting is within its limits; without measured work nothing changes; outside of a
//! trial the setting is the last one that won a trial, or was taken because
//! requests waited.
//!
//! Downside: only differences that stand out from the noise of some seconds are found, and the
//! trials cost up to a few percent of the rate while a setting is searched for.

mod beginning;
mod decision;
mod limits;
mod measurement;
mod noise;
mod phase;
mod records;
mod search;
mod step;
mod trial;
mod tuner;

pub use decision::{Decision, LOG_DECISIONS_MAX, Outcome};
pub use limits::Limits;
pub use measurement::Measurement;
pub use step::Step;
pub use tuner::Tuner;
