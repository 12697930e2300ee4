//! `COPY ... FROM STDIN` into a sharded table: the rows tell where they go, each for itself.

use pgdog_core::ids::ShardNumber;

use crate::nodes::topology::Copied;

use super::class::Class;
use super::decide::Decision;
use super::{AllReason, Outcome, Rows, refuse};

impl Decision<'_> {
    /// To every shard, or nowhere when the rows could not be told apart.
    pub(super) fn copied_rows(&self, only: Option<ShardNumber>) -> Outcome {
        let sharded = self.classes.iter().enumerate();
        let sharded = sharded.filter_map(|(index, class)| match class {
            Class::Sharded(table) => Some((index, *table)),
            _ => None,
        });
        let sharded: Vec<_> = sharded.collect();
        let ([(index, table)], Some(copy)) = (sharded.as_slice(), &self.statement.copy_in) else {
            return refuse::opaque("COPY reads a sharded table");
        };
        let name = self.name(*index);
        if let Some(what) = &copy.refused {
            return refuse::copy_option(name, what);
        }
        if let Some(encoding) = copy.encoding.as_deref().filter(|name| !is_plain(name)) {
            return refuse::copy_option(name, &format!("encoding \"{encoding}\""));
        }
        let declared = self.binder.table(*table);
        if let Some(why) = &declared.unfit {
            return refuse::unfit_key(name, &declared.column, why);
        }
        let listed = &self.statement.relations[*index].insert_columns;
        let copied = match listed.is_empty() {
            true => declared.copied,
            false => match listed.iter().position(|column| *column == declared.column) {
                None => return Outcome::Refused(super::bind::null_key(declared)),
                Some(key) => Some(Copied {
                    key,
                    columns: listed.len(),
                }),
            },
        };
        let Some(Copied { key, columns }) = copied else {
            return refuse::uncopied_key(name, &declared.column);
        };
        let rows = Rows {
            table: *table,
            place: key,
            columns,
            only,
        };
        self.all(AllReason::Rows(rows), "copied rows")
    }
}

/// Whether every byte below 128 of an encoding is ASCII, also inside of a character.
pub fn is_plain(encoding: &str) -> bool {
    const PLAIN: [&str; 14] = [
        "utf8",
        "unicode",
        "sqlascii",
        "latin",
        "iso8859",
        "win12",
        "windows12",
        "win866",
        "win874",
        "windows866",
        "windows874",
        "koi8",
        "euc",
        "mule",
    ];
    let name: String = encoding
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    PLAIN.iter().any(|plain| name.starts_with(plain))
}
