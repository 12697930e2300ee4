//! Operator verbs on the admin database: one file per verb, each with one `COMMAND`.
//!
//! [`COMMANDS`] is the table of what exists. A command's `words` are matched from the start of the
//! text without regard to case, the longest match wins; what follows is given to `run` as
//! arguments. To add a verb: write its file, add one line to the table.

pub mod host;

mod add_shard;
mod ban;
mod command;
mod cutover;
mod parse;
mod pause;
mod plan_shard;
mod reconnect;
mod reload;
mod set;
mod show_bans;
mod show_clients;
mod show_config;
mod show_databases;
mod show_floors;
mod show_instances;
mod show_lists;
mod show_lookups;
mod show_pools;
mod show_prepared;
mod show_replication;
mod show_replication_slots;
mod show_servers;
mod show_stats;
mod show_tasks;
mod show_topology;
mod show_transactions;
mod show_version;
mod shutdown;
mod stop_task;
mod verify_shard;

use std::sync::Arc;

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;

use crate::nodes::{Cluster, Role, tasks};

pub use command::{Args, Command, Output, Running};
pub use host::Host;

/// What exists, in the order in which an unknown command is told.
const COMMANDS: &[&Command] = &[
    &show_clients::COMMAND,
    &show_servers::COMMAND,
    &show_pools::COMMAND,
    &show_stats::COMMAND,
    &show_bans::COMMAND,
    &show_databases::COMMAND,
    &show_replication::COMMAND,
    &show_replication_slots::COMMAND,
    &show_floors::COMMAND,
    &show_topology::COMMAND,
    &show_lookups::COMMAND,
    &show_instances::COMMAND,
    &show_tasks::COMMAND,
    &show_transactions::COMMAND,
    &show_prepared::COMMAND,
    &show_lists::COMMAND,
    &show_config::COMMAND,
    &show_version::COMMAND,
    &add_shard::COMMAND,
    &cutover::BY_SHARD,
    &cutover::BY_TASK,
    &stop_task::COMMAND,
    &plan_shard::COMMAND,
    &verify_shard::COMMAND,
    &reload::COMMAND,
    &reconnect::COMMAND,
    &pause::PAUSE,
    &pause::RESUME,
    &ban::BAN,
    &ban::UNBAN,
    &set::COMMAND,
    &shutdown::COMMAND,
];

/// Runs operator commands.
pub struct Admin {
    host: Arc<dyn Host>,
}

impl Admin {
    /// `host` gives access to the running process.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host }
    }

    /// The running process.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// Runs one command; an empty text gives an empty output.
    ///
    /// # Errors
    /// 42601 for a command that does not exist; else what the command says.
    pub async fn run(&self, text: &str) -> Result<Output, Fault> {
        let words = parse::words(text)?;
        if words.is_empty() {
            return Ok(Output::default());
        }
        let Some(command) = find(&words) else {
            return Err(unknown(&words));
        };
        let args = Args {
            words: words[command.words.len()..]
                .iter()
                .map(|word| word.text.clone())
                .collect(),
            usage: command.usage,
        };
        (command.run)(self, &args).await
    }

    /// The logical database of that name.
    ///
    /// # Errors
    /// 3D000.
    pub fn cluster(&self, database: &str) -> Result<Arc<Cluster>, Fault> {
        self.host
            .clusters()
            .into_iter()
            .find(|cluster| cluster.name() == database)
            .ok_or_else(|| Fault::UnknownDatabase {
                database: database.to_owned(),
            })
    }

    /// The logical database whose shard 0 has that task.
    ///
    /// # Errors
    /// 42704 when none has it.
    pub async fn cluster_of_task(&self, task: i64) -> Result<Arc<Cluster>, Fault> {
        let id = pgdog_core::ids::TaskId(task);
        for cluster in self.host.clusters() {
            if !cluster.is_plain() && tasks::get(&cluster, id).await?.is_some() {
                return Ok(cluster);
            }
        }
        Err(Fault::UnknownObject {
            kind: "task",
            name: task.to_string(),
        })
    }
}

/// The command with the most words that the text starts with.
fn find(words: &[parse::Word]) -> Option<&'static Command> {
    COMMANDS
        .iter()
        .copied()
        .filter(|command| {
            words.len() >= command.words.len()
                && command
                    .words
                    .iter()
                    .zip(words)
                    .all(|(ours, theirs)| theirs.is(ours))
        })
        .max_by_key(|command| command.words.len())
}

fn unknown(words: &[parse::Word]) -> Fault {
    let text = words
        .iter()
        .map(|word| word.text.as_str())
        .collect::<Vec<_>>()
        .join(" ");
    let known = COMMANDS
        .iter()
        .map(|command| command.usage)
        .collect::<Vec<_>>()
        .join("; ");
    Fault::Syntax {
        message: format!("unknown admin command \"{text}\"; there are: {known}"),
        position: None,
    }
}

/// Logical database, shard and role of a node, for rows that know an address only.
fn place(
    clusters: &[Arc<Cluster>],
    host: &str,
    port: u16,
) -> (Option<String>, Option<ShardNumber>, Option<Role>) {
    for cluster in clusters {
        for shard in &cluster.topology().shards {
            let is_node =
                |address: &crate::nodes::Address| address.host == host && address.port == port;
            if is_node(&shard.primary) {
                let name = cluster.name().to_owned();
                return (Some(name), Some(shard.shard), Some(Role::Primary));
            }
            if shard.replicas.iter().any(is_node) {
                let name = cluster.name().to_owned();
                return (Some(name), Some(shard.shard), Some(Role::Replica));
            }
        }
    }
    (None, None, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<&'static str> {
        find(&parse::words(text).expect("readable")).map(|command| command.usage)
    }

    #[test]
    fn verbs_are_found_whatever_their_case_and_the_longest_wins() {
        assert_eq!(found("show Pools;"), Some("SHOW POOLS"));
        assert_eq!(found("SHOW REPLICATION"), Some("SHOW REPLICATION"));
        assert_eq!(
            found("show replication_slots"),
            Some("SHOW REPLICATION_SLOTS")
        );
        assert_eq!(found("SHOW"), None);
        assert_eq!(found("\"show\" pools"), None, "a quoted word is no verb");
    }

    #[test]
    fn every_command_is_found_by_its_own_words() {
        for command in COMMANDS {
            assert_eq!(found(&command.words.join(" ")), Some(command.usage));
            assert!(
                command.usage.starts_with(command.words[0]),
                "{}",
                command.usage
            );
        }
    }

    #[test]
    fn an_unknown_command_tells_what_there_is() {
        let fault = unknown(&parse::words("DO THIS").expect("readable"));
        assert_eq!(fault.sqlstate(), "42601");
        assert!(fault.message().contains("DO THIS") && fault.message().contains("SHOW TASKS"));
    }
}
