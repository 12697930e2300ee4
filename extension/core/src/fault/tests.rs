//! Every fault speaks in PostgreSQL's style.

use super::*;

/// Codes of PostgreSQL's `errcodes.txt` that are used here.
const CODES: &[&str] = &[
    "08001", "08006", "08007", "08P01", "0A000", "22003", "22023", "22P02", "23502", "23514",
    "25006", "25P02", "25P03", "28P01", "3D000", "40001", "42501", "42601", "42704", "42P01",
    "53300", "55000", "55P03", "57014", "57P01", "57P03", "57P05", "58000", "F0000", "XX000",
];

fn text() -> String {
    "orders".into()
}

/// One of each.
// A list: splitting it would hide a row.
#[expect(clippy::too_many_lines)]
fn all() -> Vec<Fault> {
    let (table, key, why, shard) = (text, text, text, ShardNumber(1));
    let (floor, what, node) = (Lsn(0x5A2), text, text);
    let hint = Some("Do it.".to_owned());
    vec![
        Fault::NoReplicaCaughtUp {
            shard,
            floor,
            best: None,
            eta_ms: None,
        },
        Fault::WriteLostInFailover {
            shard,
            floor,
            timeline: Timeline(2),
            forked_at: Lsn(1),
        },
        Fault::StaleTopology {
            session: Epoch(1),
            node: Epoch(2),
        },
        Fault::GateBusy {
            shard,
            holder: Some(text()),
        },
        Fault::WrongState {
            what: what(),
            why: why(),
            hint: hint.clone(),
        },
        Fault::SchemaFrozen { task: TaskId(3) },
        Fault::DirectWrite { table: table() },
        Fault::BadParameter {
            name: text(),
            value: text(),
            why: why(),
        },
        Fault::UnknownObject {
            kind: "task",
            name: text(),
        },
        Fault::BadConfig {
            place: text(),
            why: why(),
            hint: hint.clone(),
        },
        Fault::Refused {
            what: what(),
            why: why(),
            hint,
        },
        Fault::UndeclaredTable { table: table() },
        Fault::UndefinedTable { table: table() },
        Fault::Syntax {
            message: text(),
            position: None,
        },
        Fault::PermissionDenied { what: what() },
        Fault::NullKey {
            table: table(),
            column: text(),
        },
        Fault::KeyTypeMismatch {
            data_type: "bigint",
            value: text(),
            out_of_range: true,
        },
        Fault::KeyTypeMismatch {
            data_type: "bigint",
            value: text(),
            out_of_range: false,
        },
        Fault::NoMappingRule { key: key() },
        Fault::MisplacedRow {
            table: table(),
            key: key(),
            belongs: shard,
            here: shard,
        },
        Fault::LookupMissing {
            table: table(),
            key: key(),
        },
        Fault::LookupNull {
            table: table(),
            key: key(),
        },
        Fault::LookupAmbiguous {
            table: table(),
            key: key(),
            rows: 2,
        },
        Fault::LookupWrongType {
            table: table(),
            key: key(),
            value: text(),
            expected: "uuid",
        },
        Fault::LookupOutOfRange {
            table: table(),
            key: key(),
            value: text(),
            shards: 2,
        },
        Fault::LookupFailed {
            table: table(),
            why: why(),
        },
        Fault::ShardsDisagree {
            what: what(),
            answers: vec![(shard, "3 rows".into())],
        },
        Fault::OutcomeUnknown {
            gid: text(),
            why: why(),
        },
        Fault::HalfCommitted {
            gid: text(),
            missing: vec![shard],
        },
        Fault::AbortedTransaction,
        Fault::ReadOnlyTransaction {
            command: "INSERT".into(),
        },
        Fault::Cancelled {
            by: "user request".into(),
        },
        Fault::ShuttingDown { who: text() },
        Fault::IdleTimeout {
            in_transaction: true,
            limit_ms: 1,
        },
        Fault::IdleTimeout {
            in_transaction: false,
            limit_ms: 1,
        },
        Fault::ServerLost {
            node: node(),
            why: why(),
        },
        Fault::CannotConnect {
            node: node(),
            why: why(),
        },
        Fault::NoNode {
            shard,
            role: "primary",
        },
        Fault::TooMany {
            what: what(),
            limit: 5,
        },
        Fault::PoolTimeout {
            pool: text(),
            waited_ms: 5,
        },
        Fault::LoginFailed { user: text() },
        Fault::OtherVerifier {
            user: text(),
            node: text(),
        },
        Fault::UnknownDatabase { database: text() },
        Fault::ProtocolViolation { why: why() },
        Fault::Internal { why: why() },
    ]
}

#[test]
fn codes_are_postgres_own() {
    for fault in all() {
        assert!(
            CODES.contains(&fault.sqlstate()),
            "{} {fault}",
            fault.sqlstate()
        );
    }
}

#[test]
fn messages_are_one_lower_case_line_and_hints_are_sentences() {
    for fault in all() {
        let message = fault.message();
        let first = message.chars().next().expect("a message has words");
        assert!(
            !first.is_uppercase() && !message.ends_with('.'),
            "{message}"
        );
        assert!(
            !message.contains('\n') && !message.contains("  "),
            "{message}"
        );
        if let Some(sentence) = fault.hint() {
            assert!(
                sentence.starts_with(|c: char| c.is_uppercase()),
                "{sentence}"
            );
            assert!(sentence.ends_with(['.', ';']), "{sentence}");
        }
        if let Some(line) = fault.detail() {
            assert!(!line.ends_with('.') && !line.contains("  "), "{line}");
        }
    }
}

#[test]
fn what_may_have_happened_already_is_never_called_retryable() {
    let uncertain = [
        Fault::ServerLost {
            node: text(),
            why: text(),
        },
        Fault::OutcomeUnknown {
            gid: text(),
            why: text(),
        },
        Fault::HalfCommitted {
            gid: text(),
            missing: vec![ShardNumber(1)],
        },
    ];
    assert!(uncertain.iter().all(|fault| !fault.retryable()));
}
