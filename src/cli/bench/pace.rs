//! Requests at a steady pace, whatever becomes of those before: a slow answer does not spare the service the next one.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::BenchError;
use crate::cli::ambient::now;

/// How long after the last was sent all must be answered.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends `number` requests, `per_second` of them a second, and waits for all; their answers in no certain order.
///
/// # Errors
///
/// The first failure, or that some are not answered.
pub(super) async fn paced<T, F>(
    number: usize,
    per_second: u32,
    mut send: impl FnMut(usize) -> F,
) -> Result<Vec<T>, BenchError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, BenchError>> + Send + 'static,
{
    let (mut under_way, mut done) = (JoinSet::new(), Vec::with_capacity(number));
    let mut next = now();
    for index in 0..number {
        sleep_until(next).await;
        next += Duration::from_secs(1) / per_second;
        under_way.spawn(send(index));
        while let Some(answered) = under_way.try_join_next() {
            done.push(answered.map_err(|error| lost(&error))??);
        }
    }
    let rest = async {
        while let Some(answered) = under_way.join_next().await {
            done.push(answered.map_err(|error| lost(&error))??);
        }
        Ok::<(), BenchError>(())
    };
    timeout(PATIENCE, rest).await.map_err(|_| BenchError::Missing("requests were not answered".to_owned()))??;
    Ok(done)
}

fn lost(error: &tokio::task::JoinError) -> BenchError {
    BenchError::Missing(format!("a request of the bench: {error}"))
}
