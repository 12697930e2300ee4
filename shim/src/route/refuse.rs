//! Refusals, with what to do instead.

use pgdog_core::fault::Fault;

use super::Outcome;

const NAME_SHARD: &str = "Name the shard: SET pgdog.shard, or a comment /* pgdog_shard: 0 */.";

fn refused(what: impl Into<String>, why: impl Into<String>, hint: impl Into<String>) -> Outcome {
    Outcome::Refused(Fault::Refused {
        what: what.into(),
        why: why.into(),
        hint: Some(hint.into()),
    })
}

/// Rows that could not be told apart.
pub(super) fn copy_option(table: &str, what: &str) -> Outcome {
    refused(
        format!("COPY into sharded table \"{table}\" with {what}"),
        "its rows could not be told apart exactly as PostgreSQL does",
        "Leave it out, or insert the rows.",
    )
}

/// Rows whose key only their server computes.
pub(super) fn uncopied_key(table: &str, column: &str) -> Outcome {
    refused(
        format!("COPY into sharded table \"{table}\" without its sharding key"),
        format!("its rows do not give \"{column}\""),
        "Name the columns, with the sharding key among them.",
    )
}

/// A key that is given and then replaced by the next value of a sequence.
pub(super) fn replaced_key(table: &str, column: &str) -> Outcome {
    refused(
        format!("OVERRIDING USER VALUE in a write to sharded table \"{table}\""),
        format!("its sharding key \"{column}\" would be another one than the one that is given"),
        "Leave it out, or use OVERRIDING SYSTEM VALUE.",
    )
}

/// A column that says nothing about where its row lives.
pub(super) fn unfit_key(table: &str, column: &str, why: &str) -> Outcome {
    refused(
        format!("a statement on sharded table \"{table}\""),
        format!("its sharding key \"{column}\" {why}"),
        "Change the column to smallint, integer, bigint, text, varchar or uuid, stored and with a \
         deterministic collation.",
    )
}

/// A function of a user, outside of any statement that has a shard.
pub(super) fn opaque_call(function: &str) -> Outcome {
    refused(
        format!("function \"{function}\" on a database with more than one shard"),
        "it may read or write tables whose rows are on several shards",
        "Name the shard or the key: SET pgdog.shard or pgdog.sharding_key, or a comment \
         /* pgdog_shard: 0 */. A function whose result depends on its arguments alone can be \
         declared IMMUTABLE.",
    )
}

/// A function of a user in a write that runs on every shard.
pub(super) fn opaque_value(table: &str, function: &str) -> Outcome {
    refused(
        format!("function \"{function}\" in a write to omnisharded table \"{table}\""),
        "every shard would call it for itself, and the results may differ",
        "Compute it first and pass the value. A function whose result depends on its arguments \
         alone can be declared IMMUTABLE.",
    )
}

/// A statement whose tables cannot be seen.
pub(super) fn opaque(why: &str) -> Outcome {
    refused(
        "this statement on a database with more than one shard",
        why,
        NAME_SHARD,
    )
}

/// Nothing in the statement says which shard.
pub(super) fn unbound(table: &str, column: &str, verb: &str) -> Outcome {
    refused(
        format!("{verb} table \"{table}\" without its sharding key"),
        format!("its rows are on several shards, and no condition binds \"{column}\" to values"),
        format!("Add a condition \"{column}\" = ... that every row fulfils; an OR binds nothing."),
    )
}

/// The keys of one table belong to several shards.
pub(super) fn several_shards(table: &str, keys: &str, inserts: bool) -> Outcome {
    let hint = if inserts {
        "Insert the rows of each shard with a statement of their own, in one transaction."
    } else {
        "Send one statement for each key."
    };
    let what = format!("one statement for rows of table \"{table}\" on several shards");
    refused(what, format!("{keys} are on different shards"), hint)
}

/// Two tables of a statement are bound to different shards.
pub(super) fn parts_disagree(first: (&str, &str), second: (&str, &str)) -> Outcome {
    refused(
        "a statement over several shards",
        format!(
            "table \"{}\" is bound by {}, table \"{}\" by {}, which is another shard",
            first.0, first.1, second.0, second.1
        ),
        "Bind all tables of the statement to keys of one shard.",
    )
}

/// The key would change.
pub(super) fn key_update(table: &str, column: &str) -> Outcome {
    refused(
        format!("changing the sharding key \"{column}\" of table \"{table}\""),
        "the row might belong to another shard afterwards",
        "Delete the row and insert it with its new key, in one transaction.",
    )
}

/// An omnisharded table would be filled with what differs between shards.
pub(super) fn divergent(table: &str, name: &str) -> Outcome {
    refused(
        format!("{name} in a write to omnisharded table \"{table}\""),
        "every shard would compute another value",
        "Compute the value in the application and send it.",
    )
}

/// Every shard would fill a column of an omnisharded table for itself.
pub(super) fn differing_default(table: &str, column: &str) -> Outcome {
    refused(
        format!("leaving column \"{column}\" of omnisharded table \"{table}\" to its default"),
        format!("every shard would compute another value of \"{table}\".\"{column}\""),
        format!("Give the value of \"{column}\" in the statement."),
    )
}

/// The columns of a table are not known, so nobody can tell what it would be filled with.
pub(super) fn unknown_columns(table: &str) -> Outcome {
    refused(
        format!("inserting into undeclared table \"{table}\", whose columns are not known yet"),
        "every shard might compute another value of a column that is left out",
        "Commit the transaction that creates it first; insert into the table, not into a view.",
    )
}

/// An omnisharded table would be written by rows that only one shard has.
pub(super) fn omni_reads(table: &str, read: &str, kind: &str) -> Outcome {
    refused(
        format!("a write to omnisharded table \"{table}\" that reads {kind} \"{read}\""),
        "every shard would see other rows",
        "Read first, then write the values.",
    )
}

/// Both kinds of table are written at once.
pub(super) fn omni_and_sharded(omni: &str, sharded: &str) -> Outcome {
    refused(
        format!("writing omnisharded \"{omni}\" and sharded \"{sharded}\" in one statement"),
        "one runs on every shard, the other on one",
        "Use two statements in one transaction.",
    )
}

/// A whole sharded table is meant.
pub(super) fn whole_table(verb: &str, table: &str) -> Outcome {
    refused(
        format!("{verb} sharded table \"{table}\""),
        "its rows are on several shards",
        NAME_SHARD,
    )
}

/// `CREATE TABLE AS` over a sharded table.
pub(super) fn definition_reads(table: &str) -> Outcome {
    refused(
        format!("creating a table from rows of sharded table \"{table}\""),
        "every shard would keep other rows under one name",
        "Create the table first, declare it, then insert.",
    )
}

/// A client's own two-phase commit.
pub(super) fn two_phase() -> Outcome {
    refused(
        "PREPARE TRANSACTION on a database with more than one shard",
        "pgdog commits in two phases by itself",
        "Use COMMIT.",
    )
}

/// The row would be where nobody looks for it.
pub(super) fn misplaced(table: &str, reason: &str) -> Outcome {
    refused(
        format!("a row of table \"{table}\" on another shard than its key's"),
        format!("{reason} does not belong to the shard that was named"),
        "RESET pgdog.shard, or take the hint out.",
    )
}

/// A text of several statements that go to different places.
pub(super) fn mixed_text() -> Outcome {
    refused(
        "one query text whose statements go to different shards",
        "they would not be one transaction",
        "Send them one by one between BEGIN and COMMIT.",
    )
}

/// `pgdog.sharding_key` without a table that tells its rule.
pub(super) fn ambiguous_key() -> Outcome {
    refused(
        "pgdog.sharding_key for this statement",
        "it names no sharded table, and the declared ones have different rules",
        NAME_SHARD,
    )
}

/// A read whose parts are not the whole.
pub(super) fn unmerged(why: impl Into<String>) -> Outcome {
    refused("this read of rows on several shards", why, ONE_SHARD)
}

/// A change of rows that shards cannot make each by itself.
pub(super) fn unspread(why: impl Into<String>) -> Outcome {
    refused("this change of rows on several shards", why, ONE_SHARD)
}

/// A change of rows on all shards that would have to answer rows, too.
pub(super) fn shown_change() -> Outcome {
    refused(
        "rows of a change on several shards",
        "RETURNING and EXPLAIN are answered by one shard only",
        "Bind the sharding key to a value, or leave RETURNING out.",
    )
}

const ONE_SHARD: &str =
    "Bind the sharding key of each table to a value, or join the tables on their keys.";
