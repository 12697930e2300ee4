//! Changes of sharded rows wherever they are: an UPDATE, DELETE or TRUNCATE that no key binds to
//! one shard runs on all of them, if each can tell from its own rows which it changes, and how.

use super::class::Class;
use super::decide::Decision;
use super::{AllReason, Outcome, refuse};
use crate::plan::{Kind, Value};

impl Decision<'_> {
    /// The route of a change of rows on several shards; `refused` of everything else.
    pub(super) fn changed(&self, refused: Outcome) -> Outcome {
        let statement = self.statement;
        let Some(change) = statement.change.as_ref() else {
            return refused;
        };
        if statement.kind != Kind::Write || statement.prepared.is_some() {
            return refused;
        }
        let more = |index: usize| {
            let target = change.targets.contains(&index);
            let sharded = matches!(self.classes[index], Class::Sharded(_));
            statement.relations[index].written != target || target && !sharded
        };
        if let Some(more) = (0..self.classes.len()).find(|index| more(*index)) {
            let name = self.name(more);
            return refuse::unspread(format!("it does more than that to table \"{name}\""));
        }
        if change.shows {
            return refuse::shown_change();
        }
        let targets = &statement.relations[change.targets.clone()];
        let mut assigned = targets.iter().flat_map(|target| &target.assigned);
        if let Some((column, _)) = assigned.find(|(_, value)| matches!(value, Some(Value::Default)))
        {
            return refuse::unspread(format!(
                "the default of column \"{column}\" may be another value on every shard"
            ));
        }
        // A TRUNCATE looks at no rows.
        match statement.levels.all.first().map(|top| self.is_split(top)) {
            None | Some(Ok(())) => self.all(AllReason::Change, "rows on every shard"),
            Some(Err(why)) => refuse::unspread(why),
        }
    }
}
