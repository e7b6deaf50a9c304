//! The expected results of a study: its statements, compared with measured rates. Absolute numbers
//! depend on the hardware; a statement that does not hold is reported with its results, never
//! adjusted.

use std::collections::BTreeMap;

use super::Outcome;

/// By how much two rates may differ and still be called equal.
pub const EQUAL_WITHIN: f64 = 0.05;

/// Median rates in MiB/s by job and phase.
#[derive(Clone, Debug, Default)]
pub struct Rates(BTreeMap<(String, &'static str), f64>);

/// One sentence and whether it holds.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Finding {
    /// The sentence, as the study has it.
    pub sentence: String,
    /// Whether it holds here.
    pub holds: bool,
    /// The results it was judged by.
    pub results: String,
}

impl Finding {
    /// Whether all it is about was measured: what was not is NaN ([`Rates::get`]), also in its
    /// results.
    pub fn is_measured(&self) -> bool {
        !self.results.contains("NaN")
    }
}

impl Rates {
    /// Medians over repetitions.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut all: BTreeMap<(String, &'static str), Vec<f64>> = BTreeMap::new();
        for outcome in outcomes {
            all.entry((outcome.job.clone(), outcome.phase)).or_default().push(outcome.rate());
        }
        Rates(all.into_iter().filter_map(|(key, rates)| Some((key, median(rates)?))).collect())
    }

    /// The rate of a job's phase; NaN if it was not measured, so that no sentence about it holds.
    pub fn get(&self, job: &str, phase: &'static str) -> f64 {
        self.0.get(&(job.to_owned(), phase)).copied().unwrap_or(f64::NAN)
    }

    /// Lowest and highest rate of these jobs in a phase; NaN if one of them was not measured.
    pub fn range<S: AsRef<str>>(&self, phase: &'static str, jobs: &[S]) -> (f64, f64) {
        let rates = || jobs.iter().map(|job| self.get(job.as_ref(), phase));
        (rates().fold(f64::INFINITY, smaller), rates().fold(f64::NEG_INFINITY, larger))
    }

    /// "Every one of `better` beats every one of `worse` in this phase." Equal ones do not.
    pub fn beats(&self, sentence: &str, phase: &'static str, better: &[&str], worse: &[&str]) -> Finding {
        let (lowest, highest) = (self.range(phase, better).0, self.range(phase, worse).1);
        Finding {
            sentence: sentence.to_owned(),
            holds: lowest > highest * (1.0 + EQUAL_WITHIN),
            results: format!("lowest {}, highest of the others {}", shown(lowest), shown(highest)),
        }
    }

    /// "This one is equal or better than that one in this phase."
    pub fn not_worse(&self, sentence: &str, phase: &'static str, one: &str, other: &str) -> Finding {
        let (mine, theirs) = (self.get(one, phase), self.get(other, phase));
        Finding {
            sentence: sentence.to_owned(),
            holds: mine >= theirs * (1.0 - EQUAL_WITHIN),
            results: format!("{one} {}, {other} {}", shown(mine), shown(theirs)),
        }
    }
}

/// A rate with as many digits as tell something.
fn shown(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.2} MiB/s") } else { format!("{rate:.0} MiB/s") }
}

/// As `f64::min`, but what was not measured stays so.
fn smaller(one: f64, other: f64) -> f64 {
    if one.is_nan() || other.is_nan() { f64::NAN } else { one.min(other) }
}

/// As `f64::max`, but what was not measured stays so.
fn larger(one: f64, other: f64) -> f64 {
    if one.is_nan() || other.is_nan() { f64::NAN } else { one.max(other) }
}

/// The middle of the values, of an even number the upper one; `None` of none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The lower quartile of costs: other load on the machine only adds to them. `None` of none.
pub fn least_disturbed(mut costs: Vec<f64>) -> Option<f64> {
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 4).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(job: &str, seconds: f64) -> Outcome {
        Outcome { job: job.to_owned(), phase: "read", bytes: 100 << 20, operations: 1, seconds }
    }

    #[test]
    fn sentences_hold_by_medians_and_never_without_a_measurement() {
        let outcomes = [outcome("a", 1.0), outcome("a", 9.0), outcome("a", 1.0), outcome("b", 1.03), outcome("c", 2.0)];
        let rates = Rates::of(&outcomes);
        assert_eq!(rates.get("a", "read"), 100.0);
        assert!(rates.beats("", "read", &["a", "b"], &["c"]).holds);
        assert!(!rates.beats("", "read", &["a", "c"], &["b"]).holds);
        assert!(!rates.beats("", "read", &["a"], &["b"]).holds, "within five percent is equal");
        assert!(rates.not_worse("", "read", "b", "a").holds, "within five percent is equal");
        assert!(!rates.not_worse("", "read", "c", "a").holds);
        assert!(!rates.beats("", "read", &["a", "missing"], &["c"]).holds);
        assert!(!rates.beats("", "read", &["a"], &["missing"]).holds);
        assert!(!rates.not_worse("", "write", "a", "b").holds);
    }
}
