//! The scenarios, one file each. A new one is a file with a `SCENARIO` and a line in [`ALL`].

mod crowd;
mod expiry;
mod feed;
mod fleet;
mod handover;
mod parked;
mod settle;

use futures_util::future::BoxFuture;

use super::BenchError;
use super::figure::Figure;
use super::ground::Ground;

/// A round under way.
pub(super) type Round<'a> = BoxFuture<'a, Result<Vec<Figure>, BenchError>>;

/// Something to be measured.
pub(super) struct Scenario {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// What it measures, in a line.
    pub(super) about: &'static str,
    /// Whether it takes so long that it is run only when it is named.
    pub(super) long: bool,
    /// One round of it: the same figures in the same order each time. It leaves no run and no worker behind that the
    /// next would feel.
    pub(super) run: fn(&Ground) -> Round<'_>,
}

/// All of them, in the order in which they run: what leaves the most behind comes last.
pub(super) const ALL: [&Scenario; 7] = [
    &handover::SCENARIO,
    &expiry::SCENARIO,
    &feed::SCENARIO,
    &settle::SCENARIO,
    &parked::SCENARIO,
    &crowd::SCENARIO,
    &fleet::SCENARIO,
];
