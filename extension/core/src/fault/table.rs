//! What each fault says: code, message, detail, hint and retry side by side.

use super::{Fault, Row};

/// A row that does not promise that a retry helps.
fn row(code: &'static str, message: impl Into<String>) -> Row {
    Row {
        code,
        message: message.into(),
        detail: None,
        hint: None,
        retryable: false,
    }
}

impl Row {
    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn maybe_hint(mut self, hint: &Option<String>) -> Self {
        self.hint.clone_from(hint);
        self
    }

    fn retry(mut self) -> Self {
        self.retryable = true;
        self
    }
}

impl Fault {
    // One table: splitting it would hide a row.
    #[expect(clippy::too_many_lines)]
    pub(super) fn row(&self) -> Row {
        match self {
            Fault::NoReplicaCaughtUp {
                shard,
                floor,
                best,
                eta_ms,
            } => {
                let best_text = match best {
                    Some(best) => format!(
                        "best replayed {best}, {} bytes behind",
                        floor.0.saturating_sub(best.0)
                    ),
                    None => "no replica has reported a position".into(),
                };
                let eta = eta_ms.map_or("eta_ms=unknown".into(), |ms| format!("eta_ms={ms}"));
                row(
                    "58000",
                    format!("no replica of shard {shard} has replayed {floor}"),
                )
                .detail(format!("shard={shard} floor={floor}, {best_text}, {eta}"))
                .hint(
                    "Retry later, raise pgdog.min_lsn_wait, \
                         or SET pgdog.min_lsn_primary_fallback = on.",
                )
                .retry()
            }
            Fault::WriteLostInFailover {
                shard,
                floor,
                timeline,
                forked_at,
            } => row(
                "58000",
                format!("position {floor} of shard {shard} does not exist any more"),
            )
            .detail(format!(
                "write lost in failover: timeline {timeline} forked at {forked_at}, \
                         before {floor}"
            ))
            .hint("Check what the lost transaction did, then RESET pgdog.min_lsn."),
            Fault::StaleTopology { session, node } => row("40001", "stale topology")
                .detail(format!("session epoch {session}, node epoch {node}"))
                .hint("Retry the transaction.")
                .retry(),
            Fault::GateBusy { shard, holder } => {
                row("55P03", format!("omni writes of shard {shard} are paused"))
                    .detail(match holder {
                        Some(holder) => format!("the gate is held by {holder}"),
                        None => "the gate is held by another transaction".into(),
                    })
                    .hint("Retry the transaction.")
                    .retry()
            }
            Fault::WrongState { what, why, hint } => {
                row("55000", what).detail(why).maybe_hint(hint)
            }
            Fault::SchemaFrozen { task } => {
                row("55000", format!("schema is frozen by task {task}"))
                    .detail("a new shard is being built from this schema")
                    .hint(format!(
                        "Wait until the task has ended, or stop it: STOP_TASK {task};"
                    ))
            }
            Fault::DirectWrite { table } => {
                row("55000", "direct writes to sharded tables are refused")
                    .detail(format!("table {table} is placed by pgdog"))
                    .hint("Connect through pgdog, or SET pgdog.allow_direct_writes = on.")
            }
            Fault::BadParameter { name, value, why } => row(
                "22023",
                format!("invalid value for parameter \"{name}\": \"{value}\""),
            )
            .detail(why),
            Fault::UnknownObject { kind, name } => {
                row("42704", format!("{kind} \"{name}\" does not exist"))
            }
            Fault::BadConfig { place, why, hint } => {
                row("F0000", format!("{place}: {why}")).maybe_hint(hint)
            }
            Fault::Refused { what, why, hint } => row("0A000", format!("{what} is not supported"))
                .detail(why)
                .maybe_hint(hint),
            Fault::UndeclaredTable { table } => row(
                "0A000",
                format!("table \"{table}\" is neither sharded nor omnisharded"),
            )
            .detail("a database with more than one shard must know where its rows live")
            .hint(format!(
                "Declare it: SELECT pgdog.omni_table('{table}'); \
                         or SELECT pgdog.shard_table('{table}', 'column');"
            )),
            Fault::UndefinedTable { table } => {
                row("42P01", format!("relation \"{table}\" does not exist"))
            }
            Fault::Syntax { message, .. } => row("42601", message),
            Fault::PermissionDenied { what } => {
                row("42501", format!("permission denied to {what}"))
            }
            Fault::NullKey { table, column } => row(
                "23502",
                format!("null value in sharding key \"{column}\" of relation \"{table}\""),
            )
            .hint("Give every written row a sharding key."),
            Fault::KeyTypeMismatch {
                data_type,
                value,
                out_of_range: true,
            } => row(
                "22003",
                format!("value \"{value}\" is out of range for type {data_type}"),
            ),
            Fault::KeyTypeMismatch {
                data_type,
                value,
                out_of_range: false,
            } => row(
                "22P02",
                format!("invalid input syntax for type {data_type}: \"{value}\""),
            )
            .detail(format!("the sharding key is declared as {data_type}")),
            Fault::NoMappingRule { key } => row(
                "23514",
                format!("no mapping rule covers sharding key {key}"),
            )
            .hint("Add a list, range or default rule with pgdog.shard_table()."),
            Fault::MisplacedRow {
                table,
                key,
                belongs,
                here,
            } => row(
                "23514",
                format!("row of \"{table}\" does not belong to shard {here}"),
            )
            .detail(format!("sharding key {key} belongs to shard {belongs}")),
            Fault::LookupMissing { table, key } => row(
                "58000",
                format!("no shard is known for key {key} of \"{table}\""),
            )
            .detail("the lookup query returned no row")
            .hint("Insert the key into the lookup table first, then retry.")
            .retry(),
            Fault::LookupNull { table, key } => row(
                "58000",
                format!("the lookup for key {key} of \"{table}\" returned NULL"),
            )
            .hint("Set the placement in the lookup table, then retry.")
            .retry(),
            Fault::LookupAmbiguous { table, key, rows } => row(
                "58000",
                format!("the lookup for key {key} of \"{table}\" is ambiguous"),
            )
            .detail(format!("the lookup query returned {rows} rows, expected 1"))
            .hint("Make the looked-up column unique."),
            Fault::LookupWrongType {
                table,
                key,
                value,
                expected,
            } => row(
                "58000",
                format!("the lookup for key {key} of \"{table}\" returned no {expected}"),
            )
            .detail(format!("value \"{value}\""))
            .hint("Correct lookup_query, lookup_result or data_type of the table."),
            Fault::LookupOutOfRange {
                table,
                key,
                value,
                shards,
            } => row(
                "58000",
                format!("the lookup for key {key} of \"{table}\" names shard {value}"),
            )
            .detail(format!("there are {shards} shards, numbered from 0"))
            .hint("Correct the lookup table, or add the shard first."),
            Fault::LookupFailed { table, why } => {
                row("58000", format!("the lookup for \"{table}\" failed"))
                    .detail(why)
                    .retry()
            }
            Fault::ShardsDisagree { what, answers } => {
                let answers: Vec<_> = answers
                    .iter()
                    .map(|(shard, says)| format!("shard {shard}: {says}"))
                    .collect();
                row("XX000", format!("shards disagree on {what}"))
                    .detail(answers.join(", "))
                    .hint("The transaction was rolled back. Compare the shards: VERIFY SHARD.")
            }
            Fault::OutcomeUnknown { gid, why } => row(
                "08007",
                format!("outcome of transaction \"{gid}\" is not known yet"),
            )
            .detail(why)
            .hint("It is resolved in the background; read before you write again."),
            Fault::HalfCommitted { gid, missing } => {
                let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
                let missing = missing.join(", ");
                row(
                    "XX000",
                    format!("transaction \"{gid}\" is committed on some shards only"),
                )
                .detail(format!(
                    "on shards {missing} it was rolled back after all shards had prepared it, by \
                     hand or by a failover; on the others it is committed"
                ))
                .hint("SHOW TRANSACTIONS on the admin database lists it until it is repaired.")
            }
            Fault::AbortedTransaction => row(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
            ),
            Fault::ReadOnlyTransaction { command } => row(
                "25006",
                format!("cannot execute {command} in a read-only transaction"),
            ),
            Fault::Cancelled { by } => row("57014", format!("canceling statement due to {by}")),
            Fault::ShuttingDown { who } => row(
                "57P01",
                format!("terminating connection because {who} is shutting down"),
            )
            .hint("Connect again.")
            .retry(),
            Fault::IdleTimeout {
                in_transaction: true,
                limit_ms,
            } => row(
                "25P03",
                "terminating connection due to idle-in-transaction timeout",
            )
            .detail(format!("limit {limit_ms} ms")),
            Fault::IdleTimeout {
                in_transaction: false,
                limit_ms,
            } => row(
                "57P05",
                "terminating connection due to idle-session timeout",
            )
            .detail(format!("limit {limit_ms} ms")),
            Fault::ServerLost { node, why } => {
                row("08006", format!("connection to {node} was lost"))
                    .detail(why)
                    .hint("A write that was under way may or may not have happened.")
            }
            Fault::CannotConnect { node, why } => row("08001", format!("cannot connect to {node}"))
                .detail(why)
                .retry(),
            Fault::NoNode { shard, role } => row(
                "57P03",
                format!("shard {shard} has no {role} at the moment"),
            )
            .retry(),
            Fault::TooMany { what, limit } => row("53300", format!("too many {what}"))
                .detail(format!("limit {limit}"))
                .retry(),
            Fault::PoolTimeout { pool, waited_ms } => row(
                "53300",
                format!("no server connection became free in pool {pool}"),
            )
            .detail(format!("waited {waited_ms} ms"))
            .hint("Raise default_pool_size or checkout_timeout.")
            .retry(),
            Fault::LoginFailed { user } => row(
                "28P01",
                format!("password authentication failed for user \"{user}\""),
            ),
            Fault::OtherVerifier { user, node } => row(
                "28P01",
                format!("password authentication failed for user \"{user}\""),
            )
            .detail(format!(
                "{node} keeps another verifier of that role's password"
            ))
            .hint(
                "Give the role the same verifier everywhere: ALTER ROLE ... PASSWORD takes \
                 rolpassword as it stands in pg_authid of shard 0.",
            ),
            Fault::UnknownDatabase { database } => {
                row("3D000", format!("database \"{database}\" does not exist"))
            }
            Fault::ProtocolViolation { why } => row("08P01", format!("protocol violation: {why}")),
            Fault::Node(error) => Row {
                code: "XX000",
                message: error.message.clone(),
                detail: error.detail.clone(),
                hint: error.hint.clone(),
                // Serialization failure, deadlock, lock not available: PostgreSQL's own retries.
                retryable: matches!(error.code.as_str(), "40001" | "40P01" | "55P03"),
            },
            Fault::Internal { why } => row("XX000", format!("internal error: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fault::{Fault, NodeError};
    use crate::ids::{Epoch, ShardNumber, TaskId, Timeline};
    use crate::lsn::Lsn;

    #[test]
    fn a_refused_floor_tells_the_distance_and_the_eta() {
        let fault = Fault::NoReplicaCaughtUp {
            shard: ShardNumber(1),
            floor: Lsn(0x5A2),
            best: Some(Lsn(0x581)),
            eta_ms: Some(2000),
        };
        assert_eq!(fault.sqlstate(), "58000");
        assert_eq!(fault.message(), "no replica of shard 1 has replayed 0/5A2");
        assert_eq!(
            fault.detail().as_deref(),
            Some("shard=1 floor=0/5A2, best replayed 0/581, 33 bytes behind, eta_ms=2000")
        );
        assert!(fault.retryable());
    }

    #[test]
    fn a_lost_write_says_so_and_is_not_worth_a_retry() {
        let fault = Fault::WriteLostInFailover {
            shard: ShardNumber(0),
            floor: Lsn(0x200),
            timeline: Timeline(2),
            forked_at: Lsn(0x100),
        };
        assert!(
            fault
                .detail()
                .is_some_and(|d| d.contains("write lost in failover"))
        );
        assert!(!fault.retryable());
    }

    #[test]
    fn codes_are_those_of_postgres() {
        let cases: [(Fault, &str, bool); 8] = [
            (
                Fault::StaleTopology {
                    session: Epoch(1),
                    node: Epoch(2),
                },
                "40001",
                true,
            ),
            (
                Fault::GateBusy {
                    shard: ShardNumber(0),
                    holder: None,
                },
                "55P03",
                true,
            ),
            (Fault::SchemaFrozen { task: TaskId(7) }, "55000", false),
            (Fault::UndeclaredTable { table: "t".into() }, "0A000", false),
            (
                Fault::LookupMissing {
                    table: "t".into(),
                    key: "1".into(),
                },
                "58000",
                true,
            ),
            (
                Fault::TooMany {
                    what: "clients".into(),
                    limit: 1,
                },
                "53300",
                true,
            ),
            (Fault::AbortedTransaction, "25P02", false),
            (Fault::NoMappingRule { key: "1".into() }, "23514", false),
        ];
        for (fault, code, retryable) in cases {
            assert_eq!(
                (fault.sqlstate(), fault.retryable()),
                (code, retryable),
                "{fault}"
            );
        }
    }

    #[test]
    fn an_error_of_a_node_keeps_its_own_words() {
        let fault = Fault::Node(Box::new(NodeError {
            node: "10.0.0.1:5432".into(),
            code: "40P01".into(),
            message: "deadlock detected".into(),
            detail: Some("d".into()),
            hint: None,
            more: Vec::new(),
        }));
        assert_eq!((fault.sqlstate(), fault.retryable()), ("40P01", true));
        assert_eq!(fault.to_string(), "deadlock detected | d");
    }

    #[test]
    fn faults_stay_small_enough_to_be_returned_by_value() {
        assert!(std::mem::size_of::<Fault>() < 128);
    }
}
