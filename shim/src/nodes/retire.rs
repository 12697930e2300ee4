//! The end of a database that is not configured any more: its clients leave first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Address, Cluster};

/// How often is looked whether the last guest has left.
const LOOK: Duration = Duration::from_millis(50);

/// Who uses a database, and whether they should leave.
#[derive(Default)]
pub(super) struct House {
    retired: CancellationToken,
    guests: Arc<()>,
}

/// Somebody uses the database, for as long as this lives.
#[derive(Debug, Clone)]
pub struct Guest(#[allow(dead_code, reason = "counted, not read")] Arc<()>);

impl Cluster {
    /// Every node that is known.
    pub fn addresses(&self) -> Vec<Address> {
        let nodes = self.nodes.read();
        let nodes = nodes.unwrap_or_else(|poison| poison.into_inner());
        nodes.keys().cloned().collect()
    }

    /// The number of [`Cluster::topology`], which costs less to look at.
    pub fn picture(&self) -> u64 {
        self.picture.load(Ordering::Acquire)
    }

    /// To be kept by whoever uses the database.
    pub fn guest(&self) -> Guest {
        Guest(self.house.guests.clone())
    }

    /// Whether the database, or this way to serve it, is to end.
    pub fn is_retired(&self) -> bool {
        self.house.retired.is_cancelled()
    }

    /// Cancelled when the database is to end.
    pub fn retired(&self) -> CancellationToken {
        self.house.retired.clone()
    }

    /// Asks all guests to leave at the end of their transactions, waits for them up to `limit`, and
    /// ends the background work. The lock that vouches for their transactions is held so long.
    pub async fn retire(&self, limit: Duration) {
        self.house.retired.cancel();
        let empty = async {
            while Arc::strong_count(&self.house.guests) > 1 {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(limit, empty).await.is_err() {
            tracing::warn!(
                database = self.name(),
                "clients stay on a database that ends"
            );
        }
        self.stop().await;
    }
}
