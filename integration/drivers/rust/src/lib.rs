//! Where the suites of the Rust drivers connect to: the environment that `../cluster` prints.

use std::time::Duration;

use anyhow::Context as _;

/// No test is about time: this is only how long a broken one may hang.
const DEADLINE: Duration = Duration::from_secs(120);

/// Whose connections are asked for.
#[derive(Debug, Clone, Copy)]
pub enum Account {
    /// The application.
    App,
    /// The application with three server connections.
    Small,
}

/// A connection URL for an account.
///
/// # Errors
/// When the environment does not say where.
pub fn url(account: Account) -> anyhow::Result<String> {
    let user = match account {
        Account::App => variable("PGUSER")?,
        Account::Small => variable("PGDOG_SMALL_USER").or_else(|_| variable("PGUSER"))?,
    };
    Ok(format!(
        "postgres://{user}:{}@{}:{}/{}",
        variable("PGPASSWORD")?,
        variable("PGHOST")?,
        variable("PGPORT")?,
        variable("PGDATABASE")?,
    ))
}

/// How many clients at once use the small pool. In session mode a client keeps its server.
pub fn crowd() -> i32 {
    match std::env::var("PGDOG_POOLER_MODE").as_deref() {
        Ok("session") => 3,
        _ => 30,
    }
}

/// Runs a test until its deadline.
///
/// # Errors
/// What the test returns, or that it hangs.
pub async fn within_deadline<F>(test: F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    tokio::time::timeout(DEADLINE, test)
        .await
        .context("not done within the deadline")?
}

fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set; see integration/drivers/cluster"))
}
