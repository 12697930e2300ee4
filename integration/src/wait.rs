//! Conditions with a deadline, in place of sleeps.

use std::time::{Duration, Instant};

use anyhow::bail;

/// Between two looks: what is waited for happens elsewhere, and nobody tells of it.
const PERIOD: Duration = Duration::from_millis(20);

/// Asks until there is an answer.
///
/// # Errors
/// The question's own error, or `what` when the deadline passes first.
pub async fn wait_until<T, F>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Option<T>>>,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("waited {:.1} s in vain: {what}", limit.as_secs_f64());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Lets time pass where that is what a claim is about: a cancel that comes at some moment of a
/// statement, a client that is silent for so long.
pub async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}
