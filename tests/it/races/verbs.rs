//! What takes part in the matrix: verbs, and the starts in which they have a say.

/// One verb of somebody, or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Another worker polls.
    Claim,
    Ack,
    Renew,
    Report,
    Release,
    Cancel,
    HoldExpiry,
    ClaimExpiry,
    LeaseExpiry,
    Retry,
    /// The worker comes back with a new session.
    Register,
    /// The worker that claims is drained.
    Drain,
    /// The run dispatches a child.
    Child,
}

pub const VERBS: [Verb; 13] = [
    Verb::Claim,
    Verb::Ack,
    Verb::Renew,
    Verb::Report,
    Verb::Release,
    Verb::Cancel,
    Verb::HoldExpiry,
    Verb::ClaimExpiry,
    Verb::LeaseExpiry,
    Verb::Retry,
    Verb::Register,
    Verb::Drain,
    Verb::Child,
];

/// How a run stands when both verbs come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Start {
    /// Queued, and a worker is idle.
    Free,
    /// Queued, and its hold is over; workers have come too late.
    Expired,
    /// Claimed by the worker.
    Claimed,
    /// Claimed by the worker, and too long ago.
    Lapsed,
    /// Acknowledged by the worker.
    Running,
    /// The same, and the worker was silent for longer than its lease.
    Silent,
    /// Reported as failed by the worker.
    Failed,
}

impl Start {
    pub const ALL: [Self; 7] =
        [Self::Free, Self::Expired, Self::Claimed, Self::Lapsed, Self::Running, Self::Silent, Self::Failed];
}

impl Verb {
    /// The starts in which it has something to do, or the other verb may give it something, or take it away.
    pub fn starts(self) -> &'static [Start] {
        use Start::{Claimed, Expired, Failed, Free, Lapsed, Running, Silent};
        match self {
            Self::Claim | Self::Drain => &[Free, Expired, Lapsed, Silent],
            Self::Ack => &[Claimed, Lapsed],
            Self::Renew | Self::Report | Self::Release => &[Claimed, Lapsed, Running, Silent],
            Self::Cancel | Self::Retry | Self::Child => &Start::ALL,
            Self::HoldExpiry => &[Expired],
            Self::ClaimExpiry => &[Lapsed],
            Self::LeaseExpiry => &[Silent],
            Self::Register => &[Expired, Claimed, Lapsed, Running, Silent, Failed],
        }
    }

    /// The statements by one of which its transaction is known.
    pub fn writes(self) -> &'static [&'static str] {
        match self {
            Self::Claim => &["store::claim::write"],
            Self::Renew => &["store::beats::renewed"],
            Self::Register => &["store::session::begin"],
            Self::Drain => &["store::worker::drain"],
            Self::Child => &["store::create::create"],
            Self::Retry => &["store::again::queue", "store::save::runs"],
            Self::Ack
            | Self::Report
            | Self::Release
            | Self::Cancel
            | Self::HoldExpiry
            | Self::ClaimExpiry
            | Self::LeaseExpiry => &["store::save::runs"],
        }
    }
}

/// Those that cannot meet, and why.
pub const APART: &[(Verb, &[Verb], &str)] = &[
    (
        Verb::HoldExpiry,
        &[Verb::Ack, Verb::Renew, Verb::Report, Verb::Release, Verb::ClaimExpiry, Verb::LeaseExpiry],
        "a hold runs out while nobody has the task: there is no claim, no lease and no token of it",
    ),
    (Verb::Claim, &[Verb::Ack], "nobody claims what is claimed, and nothing else can be acknowledged"),
    (Verb::ClaimExpiry, &[Verb::LeaseExpiry], "a claim that is not acknowledged has no lease"),
    (Verb::Ack, &[Verb::LeaseExpiry], "the lease begins with the ack; a repeat of it writes nothing"),
];
