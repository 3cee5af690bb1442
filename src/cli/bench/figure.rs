//! Figures: what a round of a scenario measures.

use std::time::Duration;

/// One figure of one round.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// Of what, in words; the same in every round.
    pub(super) what: String,
    /// In which unit; empty for a count.
    pub(super) unit: &'static str,
    /// The value, or why there is none.
    pub(super) value: Result<f64, String>,
    /// What it must not exceed.
    pub(super) at_most: Option<f64>,
    /// The figure of `pgbench` that it is to be compared with, in the same unit.
    pub(super) beside: Option<f64>,
}

impl Figure {
    /// A figure that need not be anything.
    pub(super) fn new(what: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self { what: what.into(), unit, value: Ok(value), at_most: None, beside: None }
    }

    /// One that could not be measured here.
    pub(super) fn absent(what: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        Self { what: what.into(), unit, value: Err(why.into()), at_most: None, beside: None }
    }

    /// With what it must not exceed.
    pub(super) fn at_most(self, most: f64) -> Self {
        Self { at_most: Some(most), ..self }
    }

    /// With what it is to be compared with.
    pub(super) fn beside(self, other: Option<f64>) -> Self {
        Self { beside: other, ..self }
    }
}

/// Times that were taken of many equal things.
#[derive(Clone, Debug, Default)]
pub(super) struct Times(Vec<Duration>);

impl Times {
    pub(super) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// In milliseconds: the least time that so many of a hundred do not exceed. Of no times at all, none.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    }

    /// In milliseconds.
    pub(super) fn median(&self) -> f64 {
        self.percentile(50)
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Self(times.into_iter().collect())
    }
}

/// The middle one of some values; of an even number the lower of two. `None` of none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_taken() {
        let times: Times = (1..=200).rev().map(Duration::from_millis).collect();
        let told = [times.median(), times.percentile(99), times.percentile(100)].map(|time| time.to_string());
        assert_eq!(told, ["100", "198", "200"]);
        let one: Times = [Duration::from_micros(1500)].into_iter().collect();
        assert_eq!([one.median(), one.percentile(99)].map(|time| time.to_string()), ["1.5", "1.5"]);
        assert!(Times::default().median().is_nan());
    }

    #[test]
    fn the_median_of_rounds_is_one_of_them() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(1.0));
        assert_eq!(median([]), None);
    }
}
