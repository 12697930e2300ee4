//! Whether a query may say where keys live, as far as its text tells: the node, which also knows
//! tables and functions, has the last word.

use pg_query::NodeEnum;
use pg_query::protobuf::{Node, SelectStmt, Token};

use super::{Kind, parse};

/// Why a node will refuse a lookup query; none if its text gives no reason.
pub fn unfit_lookup(query: &str) -> Option<String> {
    let plan = match parse(query) {
        Ok(plan) => plan,
        Err(error) => return Some(error.message),
    };
    let [statement] = plan.statements.as_slice() else {
        return Some("it must be one SELECT".to_owned());
    };
    let parsed = pg_query::parse(query, 0).ok()?.protobuf;
    let node = parsed.stmts.first().and_then(|raw| raw.stmt.as_ref());
    let Some(NodeEnum::SelectStmt(select)) = node.and_then(|node| node.node.as_ref()) else {
        return Some("it must be one SELECT".to_owned());
    };
    let mut called = statement.functions.called.iter();
    let of_builtins = |schema: Option<&str>| matches!(schema, None | Some("pg_catalog"));
    let unfit = called.find(|one| {
        let name = one.name.as_str();
        of_builtins(one.schema.as_deref())
            && (is_unfit(name) || name == "age" && one.arguments == 1)
    });
    if let Some(unfit) = unfit {
        return Some(format!(
            "it calls {}(), and its answer must depend on rows of tables alone",
            unfit.name
        ));
    }
    if let Some(word) = unfit_word(query) {
        return Some(format!(
            "it uses {word}, and its answer must depend on rows of tables alone"
        ));
    }
    if statement.kind != Kind::Read || select.into_clause.is_some() {
        return Some("it must be one SELECT that only reads".to_owned());
    }
    if column_count(select).is_some_and(|count| count != 1) {
        return Some("it must answer one column".to_owned());
    }
    (statement.params != 1).then(|| "it must have $1 as its only parameter".to_owned())
}

/// Why a whole map cannot be one: its columns are keys and their values.
pub fn unfit_map(query: &str) -> Option<String> {
    let parsed = match pg_query::parse(query, 0) {
        Ok(parsed) => parsed.protobuf,
        Err(error) => return Some(error.to_string()),
    };
    let node = parsed.stmts.first().and_then(|raw| raw.stmt.as_ref());
    let count = match node.and_then(|node| node.node.as_ref()) {
        Some(NodeEnum::SelectStmt(select)) => column_count(select),
        _ => None,
    };
    count
        .is_some_and(|count| count < 2)
        .then(|| "it must answer keys and their values, in two columns".to_owned())
}

/// How many columns a query has; none if only its tables tell.
fn column_count(select: &SelectStmt) -> Option<usize> {
    if let Some(arm) = &select.larg {
        return column_count(arm);
    }
    if let Some(NodeEnum::List(row)) = select.values_lists.first().and_then(|n| n.node.as_ref()) {
        return Some(row.items.len());
    }
    let targets = &select.target_list;
    (!targets.iter().any(is_star)).then_some(targets.len())
}

fn is_star(target: &Node) -> bool {
    let Some(NodeEnum::ResTarget(target)) = &target.node else {
        return false;
    };
    let value = target.val.as_ref().and_then(|value| value.node.as_ref());
    let last = match value {
        Some(NodeEnum::ColumnRef(column)) => column.fields.last(),
        // (row).*
        Some(NodeEnum::AIndirection(part)) => part.indirection.last(),
        _ => None,
    };
    matches!(
        last.and_then(|last| last.node.as_ref()),
        Some(NodeEnum::AStar(_))
    )
}

/// Functions of PostgreSQL that are volatile, or answer of the session.
fn is_unfit(name: &str) -> bool {
    const PREFIXES: [&str; 5] = [
        "pg_advisory_",
        "pg_try_advisory_",
        "lo_",
        "pg_sleep",
        "pg_stat_get_",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "now"
                | "transaction_timestamp"
                | "statement_timestamp"
                | "clock_timestamp"
                | "timeofday"
                | "random"
                | "random_normal"
                | "setseed"
                | "gen_random_uuid"
                | "uuidv4"
                | "uuidv7"
                | "nextval"
                | "setval"
                | "currval"
                | "lastval"
                | "set_config"
                | "current_setting"
                | "current_schema"
                | "current_schemas"
                | "current_query"
                | "pg_backend_pid"
                | "inet_client_addr"
                | "inet_client_port"
                | "has_table_privilege"
                | "pg_has_role"
                | "txid_current_if_assigned"
                | "pg_is_in_recovery"
                | "row_security_active"
        )
}

/// Words that stand for such functions, and what takes other rows each time.
fn unfit_word(query: &str) -> Option<&'static str> {
    let scanned = pg_query::scan(query).ok()?;
    let mut tokens = scanned.tokens.iter();
    tokens.find_map(|token| match Token::try_from(token.token).ok()? {
        Token::CurrentDate => Some("CURRENT_DATE"),
        Token::CurrentTime => Some("CURRENT_TIME"),
        Token::CurrentTimestamp => Some("CURRENT_TIMESTAMP"),
        Token::Localtime => Some("LOCALTIME"),
        Token::Localtimestamp => Some("LOCALTIMESTAMP"),
        Token::CurrentRole => Some("CURRENT_ROLE"),
        Token::CurrentUser | Token::User => Some("CURRENT_USER"),
        Token::SessionUser => Some("SESSION_USER"),
        Token::CurrentCatalog => Some("CURRENT_CATALOG"),
        Token::Tablesample => Some("TABLESAMPLE"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_rows_by_key_is_a_lookup() {
        for query in [
            "SELECT shard_id FROM tenants WHERE id = $1",
            "SELECT t.* FROM tenants t WHERE id = $1;",
            "SELECT coalesce(a.s, b.s) FROM a LEFT JOIN b USING (k) WHERE a.k = $1::bigint",
            "SELECT s FROM m WHERE k = $1 ORDER BY at DESC LIMIT 1",
            "SELECT s FROM m WHERE k = $1 UNION SELECT s FROM n WHERE k = $1",
            "VALUES ($1)",
            "SELECT max(s) FROM m WHERE age(at, until) > '1 day' AND k = $1",
            "SELECT s FROM m WHERE k = $1 AND note <> 'now() FOR UPDATE CURRENT_DATE'",
            "SELECT app.random(s) FROM m WHERE k = $1",
        ] {
            assert_eq!(unfit_lookup(query), None, "{query}");
        }
    }

    #[test]
    fn what_a_node_would_refuse_is_told_with_the_reason() {
        for (query, why) in [
            ("SELEC 1", "syntax error"),
            ("SELECT s FROM m WHERE k = $1; SELECT 1", "one SELECT"),
            ("", "one SELECT"),
            ("DELETE FROM m WHERE k = $1 RETURNING s", "one SELECT"),
            ("EXPLAIN SELECT s FROM m WHERE k = $1", "one SELECT"),
            ("EXPLAIN (PGDOG) SELECT s FROM m WHERE k = $1", "one SELECT"),
            ("SELECT s INTO x FROM m WHERE k = $1", "only reads"),
            ("SELECT s FROM m WHERE k = $1 FOR UPDATE", "only reads"),
            (
                "WITH d AS (DELETE FROM m WHERE k = $1 RETURNING s) SELECT s FROM d",
                "only reads",
            ),
            ("SELECT s, k FROM m WHERE k = $1", "one column"),
            ("SELECT s FROM m WHERE k = $1 AND l = $2", "only parameter"),
            ("SELECT s FROM m", "only parameter"),
            ("SELECT s FROM m WHERE k = $1 AND at < now()", "now()"),
            ("SELECT pg_catalog.random() FROM m WHERE k = $1", "random()"),
            ("SELECT nextval('s') FROM m WHERE k = $1", "nextval()"),
            (
                "SELECT s FROM m WHERE k = $1 AND age(at) > '1 day'",
                "age()",
            ),
            (
                "SELECT s FROM m WHERE k = $1 AND u = current_user",
                "CURRENT_USER",
            ),
            (
                "SELECT s FROM m TABLESAMPLE SYSTEM (1) WHERE k = $1",
                "TABLESAMPLE",
            ),
        ] {
            let unfit = unfit_lookup(query).unwrap_or_default();
            assert!(unfit.contains(why), "{query}: {unfit}");
        }
    }

    #[test]
    fn a_map_has_two_columns() {
        assert_eq!(unfit_map("SELECT k, s FROM m"), None);
        assert_eq!(unfit_map("SELECT * FROM m;"), None);
        assert!(unfit_map("SELECT k FROM m").is_some());
        assert!(unfit_map("SELECT k,").is_some());
    }
}
