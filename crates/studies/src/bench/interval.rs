//! Means and medians with confidence intervals, from few repetitions.

use std::fmt;

/// Of 95%: Student's t for this many degrees of freedom, from 1 on. Beyond, the last is used: a
/// little too large.
const T_95: [f64; 12] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179];
/// Beyond the table, from so many degrees of freedom on.
const T_95_OF_30: f64 = 2.042;

/// A mean or a median, and how far it may be off, with a confidence of 95%.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// Mean or median.
    pub mean: f64,
    /// Half of the interval's width; infinite for one value.
    pub error: f64,
}

impl Interval {
    /// Of independent values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        match count {
            0 => None,
            1 => Some(Self { mean, error: f64::INFINITY }),
            _ => {
                let freedom = count - 1;
                let largest = T_95[T_95.len() - 1];
                let t = T_95.get(freedom - 1).copied().unwrap_or(if freedom >= 30 { T_95_OF_30 } else { largest });
                Some(Self { mean, error: t * (squares / freedom as f64 / count as f64).sqrt() })
            }
        }
    }

    /// The median of independent values, some of which may be far off, with the interval between
    /// the two of them that enclose it with this confidence; `None` of none.
    pub fn of_median(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let middle = *sorted.get(count / 2)?;
        // How many are below the median is binomial: sqrt(count) / 2 is its standard deviation.
        let below = count as f64 / 2.0 - 1.96 * (count as f64).sqrt() / 2.0;
        let error = match below {
            below if below >= 1.0 => {
                let (low, high) = (sorted[below as usize - 1], sorted[count - below as usize]);
                (middle - low).max(high - middle)
            }
            _ => f64::INFINITY,
        };
        Some(Self { mean: middle, error })
    }

    /// Whether it is at least so much.
    pub fn at_least(&self, bound: f64) -> Verdict {
        match self.mean {
            mean if mean - self.error >= bound => Verdict::Holds,
            mean if mean + self.error < bound => Verdict::DoesNotHold,
            _ => Verdict::Open,
        }
    }

    /// Whether it is at most so much.
    pub fn at_most(&self, bound: f64) -> Verdict {
        Self { mean: -self.mean, ..*self }.at_least(-bound)
    }

    /// In per cent, with its sign.
    pub fn percent(&self) -> String {
        format!("{:+.1}% \u{b1}{:.1}%", self.mean * 100.0, self.error * 100.0)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.mean.abs() < 10.0 { 3 } else { 1 };
        write!(out, "{:.digits$} \u{b1}{:.digits$}", self.mean, self.error)
    }
}

/// What an interval says about a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Verdict {
    /// All of it is on the right side.
    Holds,
    /// None of it is.
    DoesNotHold,
    /// The bound is within it: more repetitions are needed.
    Open,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "DOES NOT HOLD",
            Verdict::Open => "OPEN",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_wide_as_its_values_and_their_number_make_it() {
        assert_eq!(Interval::of(&[]), None);
        let one = Interval::of(&[5.0]).unwrap();
        assert!(one.mean == 5.0 && one.error.is_infinite() && one.at_least(4.0) == Verdict::Open);
        // Standard deviation 2, three values: 4.303 * 2 / sqrt(3).
        let three = Interval::of(&[8.0, 10.0, 12.0]).unwrap();
        assert!((three.mean, (three.error - 4.968).abs() < 0.001) == (10.0, true), "{three:?}");
        let equal = Interval::of(&[3.0; 40]).unwrap();
        assert_eq!((equal.mean, equal.error), (3.0, 0.0));
    }

    #[test]
    fn a_median_does_not_care_about_values_that_are_far_off() {
        assert_eq!(Interval::of_median(&[]), None);
        assert!(Interval::of_median(&[1.0; 5]).unwrap().error.is_infinite(), "too few");
        let mut values: Vec<f64> = (1..=100).map(f64::from).collect();
        // The 40th and the 61st of 100.
        assert_eq!(Interval::of_median(&values), Some(Interval { mean: 51.0, error: 11.0 }));
        values[99] = 1e9;
        assert_eq!(Interval::of_median(&values), Some(Interval { mean: 51.0, error: 11.0 }));
    }

    #[test]
    fn a_bound_within_the_interval_stays_open() {
        let interval = Interval { mean: 0.97, error: 0.01 };
        assert_eq!(interval.at_least(0.95), Verdict::Holds);
        assert_eq!(interval.at_least(0.98 + 1e-9), Verdict::DoesNotHold);
        assert_eq!(interval.at_least(0.97), Verdict::Open);
        assert_eq!(interval.at_most(0.99), Verdict::Holds);
        assert_eq!(interval.at_most(0.95), Verdict::DoesNotHold);
        assert_eq!(interval.at_most(0.97), Verdict::Open);
        assert_eq!(
            (interval.percent(), interval.to_string()),
            ("+97.0% \u{b1}1.0%".into(), "0.970 \u{b1}0.010".into())
        );
    }
}
