//! What goes over the wire: requests with the rules they must keep, and answers. Named as the contract names them.

pub mod again;
pub mod attempts;
pub mod batch;
pub mod cursor;
pub mod dispatch;
pub mod events;
pub mod raw;
pub mod runs;
pub mod sessions;
pub mod tasks;
pub mod workers;

use std::time::Duration;

/// The longest that a request may wait for something to happen; more is lowered to it, below what proxies allow.
pub const MAX_WAIT: Duration = Duration::from_secs(50);

/// The largest integer that every client's numbers hold exactly.
pub const MAX_INTEGER: i64 = 9_007_199_254_740_991;

/// The longest reason of a cancel, and comment of a drain.
const MAX_REASON_BYTES: usize = 4096;

/// The most items of a page.
pub const MAX_LIMIT: i64 = 500;

/// The items of a page when the request does not say.
pub const DEFAULT_LIMIT: i64 = 50;
