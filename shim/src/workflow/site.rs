//! Where the shards of one database are and how to log in there. Plain data.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pgdog_core::ids::ShardNumber;

use crate::net::Dialer;
use crate::nodes::{Address, Cluster};

use super::error::WorkflowError;

/// A picture of one logical database, taken anew before a task is worked on.
#[derive(Debug, Clone)]
pub struct Site {
    /// Name of the logical database.
    pub database: String,
    /// Who we are in `pgdog.tasks.coordinator`.
    pub instance_id: String,
    /// Superuser that the work is done as (`schema_admin`).
    pub user: String,
    /// Its password, none under trust.
    pub password: Option<String>,
    /// How nodes are connected to.
    pub dialer: Arc<Dialer>,
    /// Limit for a connection to be made.
    pub connect_timeout: Duration,
    /// How long a cutover waits for the gates before it parks again; none: without end.
    pub cutover_timeout: Option<Duration>,
    /// Folder of `pg_dump` and `pg_restore`; none: looked for.
    pub bindir: Option<PathBuf>,
    /// Primaries of the serving shards, index = shard number.
    pub serving: Vec<Address>,
    /// Declared future shards.
    pub provisioning: Vec<(ShardNumber, Address)>,
}

impl Site {
    /// The picture that the cluster has now.
    pub fn of(cluster: &Cluster) -> Self {
        let settings = cluster.settings();
        let topology = cluster.topology();
        Self {
            database: settings.database.clone(),
            instance_id: cluster.instance_id().to_owned(),
            user: settings.user.clone(),
            password: settings.password.clone(),
            dialer: settings.dialer.clone(),
            connect_timeout: settings.connect_timeout,
            cutover_timeout: settings.cutover_timeout,
            bindir: None,
            serving: topology
                .shards
                .iter()
                .map(|shard| shard.primary.clone())
                .collect(),
            provisioning: cluster.provisioning(),
        }
    }

    /// Shard 0, where the tasks are.
    ///
    /// # Errors
    /// When no shard serves.
    pub fn first(&self) -> Result<&Address, WorkflowError> {
        self.serving.first().ok_or_else(|| {
            WorkflowError::Wrong(format!("no shard of database \"{}\" serves", self.database))
        })
    }

    /// The shards that served before `new` came: after the flip it is among `serving` itself.
    pub fn old_shards(&self, new: ShardNumber) -> &[Address] {
        let end = self.serving.len().min(usize::from(new.0));
        &self.serving[..end]
    }

    /// Where the new shard is, before and after the flip.
    pub fn new_shard(&self, new: ShardNumber) -> Option<&Address> {
        self.serving.get(usize::from(new.0)).or_else(|| {
            let declared = self.provisioning.iter().find(|(number, _)| *number == new);
            declared.map(|(_, address)| address)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address {
            host: "h".into(),
            port,
            database: "d".into(),
        }
    }

    #[test]
    fn the_new_shard_is_found_before_and_after_the_flip() {
        let mut site = Site {
            database: "prod".into(),
            instance_id: "i".into(),
            user: "u".into(),
            password: None,
            dialer: Arc::default(),
            connect_timeout: Duration::from_secs(1),
            cutover_timeout: None,
            bindir: None,
            serving: vec![address(1), address(2)],
            provisioning: vec![(ShardNumber(2), address(3)), (ShardNumber(3), address(4))],
        };
        assert_eq!(site.new_shard(ShardNumber(2)), Some(&address(3)));
        assert_eq!(site.old_shards(ShardNumber(2)).len(), 2);
        site.serving.push(address(3));
        site.provisioning.remove(0);
        assert_eq!(site.new_shard(ShardNumber(2)), Some(&address(3)));
        assert_eq!(site.old_shards(ShardNumber(2)).len(), 2);
        assert_eq!(site.new_shard(ShardNumber(7)), None);
    }
}
