//! Stored passwords of roles, as the nodes keep them: what clients are checked by.
//!
//! Asked of shard 0, whose primary and replicas keep the same. Kept for a second: a changed
//! password counts at once for who logs in seldom, and within that second in a storm of logins.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use pgdog_core::fault::Fault;

use super::cluster::Cluster;
use super::control::Session;
use super::topology::Address;
use super::trouble;

/// How long an answer counts.
const KEPT: Duration = Duration::from_secs(1);
/// Names that are kept; anybody can make them up.
const NAMES: u64 = 10_000;

const VERIFIER: &str = "SELECT pgdog.verifier($1)";
/// Without the extension: what a superuser can see.
const PLAIN_VERIFIER: &str = "SELECT rolpassword FROM pg_catalog.pg_authid \
     WHERE rolname = $1::text \
       AND (rolvaliduntil IS NULL OR rolvaliduntil > pg_catalog.statement_timestamp())";

/// What the nodes said about names.
pub(super) struct Verifiers {
    cache: Cache<String, Option<Arc<str>>>,
}

impl Verifiers {
    pub(super) fn new() -> Self {
        let cache = Cache::builder()
            .time_to_live(KEPT)
            .max_capacity(NAMES)
            .build();
        Self { cache }
    }

    /// The stored password of a role; one question for all who ask at the same time.
    pub(super) async fn of(
        &self,
        cluster: &Cluster,
        user: &str,
    ) -> Result<Option<Arc<str>>, Fault> {
        self.cache
            .try_get_with_by_ref(user, ask(cluster, user))
            .await
            .map_err(|fault: Arc<Fault>| (*fault).clone())
    }

    pub(super) async fn forget(&self, user: &str) {
        self.cache.invalidate(user).await;
    }
}

impl Cluster {
    /// The stored password of a role, in the form of `pg_authid`; the extension makes one up for
    /// a role that does not exist. Whether it may log in is asked once the password is right.
    ///
    /// # Errors
    /// No node of shard 0 answers, or none lets us see it.
    pub async fn verifier(&self, user: &str) -> Result<Option<Arc<str>>, Fault> {
        self.verifiers.of(self, user).await
    }

    /// A login by that verifier failed: it may have been changed.
    pub async fn forget_verifier(&self, user: &str) {
        self.verifiers.forget(user).await;
    }
}

async fn ask(cluster: &Cluster, user: &str) -> Result<Option<Arc<str>>, Fault> {
    let mut last = None;
    for address in addresses(cluster) {
        let asked = match cluster.node(&address).link.session().await {
            Ok(session) => ask_node(&session, user).await,
            Err(fault) => Err(fault),
        };
        match asked {
            Ok(verifier) => return Ok(verifier),
            Err(fault) => {
                tracing::debug!(database = cluster.name(), node = %address,
                    error = %fault.message(), "cannot read a verifier");
                last = Some(fault);
            }
        }
    }
    Err(last.unwrap_or_else(|| trouble::no_primary(pgdog_core::ids::ShardNumber(0))))
}

/// The nodes of shard 0: those that answer first, and the primary first among them.
fn addresses(cluster: &Cluster) -> Vec<Address> {
    let topology = cluster.topology();
    let Some(shard) = topology.shards.first() else {
        return Vec::new();
    };
    let mut addresses = vec![shard.primary.clone()];
    addresses.extend(shard.replicas.iter().cloned());
    addresses.sort_by_key(|address| cluster.node(address).view().facts.is_none());
    addresses
}

async fn ask_node(session: &Session, user: &str) -> Result<Option<Arc<str>>, Fault> {
    let rows = match session.query(VERIFIER, &[&user]).await {
        // Neither the function nor its schema: no extension, or an older one.
        Err(Fault::Node(said)) if matches!(said.code.as_str(), "42883" | "3F000") => {
            session.query(PLAIN_VERIFIER, &[&user]).await?
        }
        answer => answer?,
    };
    let verifier = rows.first().and_then(|row| row.get::<_, Option<&str>>(0));
    Ok(verifier.map(Arc::from))
}
