//! Manual routing: the client names the shard, or a key.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::placement::Key;

use crate::plan::Hint;

use super::class::Class;
use super::decide::Decision;
use super::{Outcome, SessionView, refuse};

impl Decision<'_> {
    /// The shard that the client names itself: hint, then `pgdog.shard`, then a key.
    pub(super) fn named_shard(
        &mut self,
        session: &SessionView<'_>,
    ) -> Result<Option<(ShardNumber, String)>, Outcome> {
        let (shard, key, reason) = match (&self.statement.hint, session) {
            (Some(Hint::Shard(shard)), _) => (Some(*shard), None, "hint"),
            (Some(Hint::Key(key)), _) => (None, Some(key.as_str()), "hint"),
            (
                _,
                SessionView {
                    shard: Some(shard), ..
                },
            ) => (Some(*shard), None, "pgdog.shard"),
            (_, SessionView { sharding_key, .. }) => (None, *sharding_key, "pgdog.sharding_key"),
        };
        if let Some(shard) = shard {
            let count = self.topology.shards.len();
            if usize::from(shard) >= count {
                return Err(Outcome::Refused(Fault::BadParameter {
                    name: "pgdog.shard".to_owned(),
                    value: shard.to_string(),
                    why: format!("there are {count} shards, counted from 0"),
                }));
            }
            return Ok(Some((ShardNumber(shard), reason.to_owned())));
        }
        let Some(key) = key else { return Ok(None) };
        let Some(table) = self.table_of_key() else {
            return Err(refuse::ambiguous_key());
        };
        let data_type = self.binder.table(table).rule.data_type;
        let parsed = Key::parse(data_type, key).map_err(Outcome::Refused)?;
        match self
            .binder
            .shard_of(&parsed, table)
            .map_err(Outcome::Refused)?
        {
            Some(shard) => Ok(Some((shard, format!("{reason} {parsed}")))),
            None => Err(Outcome::NeedLookup(std::mem::take(&mut self.binder.wanted))),
        }
    }

    /// The table whose rule places a key that the client names.
    fn table_of_key(&self) -> Option<usize> {
        let own = self.classes.iter().find_map(|class| match class {
            Class::Sharded(table) => Some(*table),
            _ => None,
        });
        let first = self.topology.sharded.first();
        let same = first.is_some_and(|first| {
            self.topology
                .sharded
                .iter()
                .all(|table| table.rule == first.rule)
        });
        own.or(same.then_some(0))
    }
}
