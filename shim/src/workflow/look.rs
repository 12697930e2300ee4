//! Look before you lock: who would the fence have to wait for?

use super::error::WorkflowError;
use super::node::Node;

/// Nobody may hold a gate for longer than this when the fence is tried.
const PATIENCE_S: f64 = 1.0;

/// Somebody who holds a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// Node.
    pub node: String,
    /// `pid 12 (psql)` or `prepared transaction g`.
    pub who: String,
    /// Since when its transaction runs.
    pub age_s: f64,
}

/// All holders of all gates, the oldest first.
///
/// # Errors
/// When a node does not answer.
pub async fn holders(nodes: &[Node]) -> Result<Vec<Holder>, WorkflowError> {
    let mut found = Vec::new();
    for node in nodes {
        for row in node.rows("looking at the gate", HOLDERS, &[]).await? {
            let (who, age_s) = (row.get(0), row.get(1));
            found.push(Holder {
                node: node.name().to_owned(),
                who,
                age_s,
            });
        }
    }
    found.sort_by(|a, b| b.age_s.total_cmp(&a.age_s));
    Ok(found)
}

/// The holder that is not worth waiting for, in words; none when the fence may be tried.
pub fn blocker(holders: &[Holder]) -> Option<String> {
    let oldest = holders.iter().find(|holder| holder.age_s > PATIENCE_S)?;
    let Holder { node, who, age_s } = oldest;
    Some(format!(
        "{who} on {node} has held the gate for {age_s:.1} s"
    ))
}

/// Everybody who holds a gate, in words, for the operator.
pub fn named(holders: &[Holder]) -> String {
    let named = holders
        .iter()
        .take(5)
        .map(|h| format!("{} on {}", h.who, h.node));
    named.collect::<Vec<_>>().join(", ")
}

// A prepared transaction has no pid. Its relation lock and its xid share a virtual transaction,
// and the xid leads to the gid.
const HOLDERS: &str = "
WITH holder AS (
  SELECT pid, virtualtransaction FROM pg_locks
  WHERE locktype = 'relation' AND relation = 'pgdog.gate'::regclass AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND pid IS DISTINCT FROM pg_backend_pid()
)
SELECT coalesce('pid ' || a.pid || ' (' || a.application_name || ')',
                'prepared transaction ' || x.gid, 'somebody unknown'),
       coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared)),
                0)::float8
FROM holder h
LEFT JOIN pg_stat_activity a ON a.pid = h.pid
LEFT JOIN pg_locks t ON h.pid IS NULL AND t.locktype = 'transactionid'
     AND t.virtualtransaction = h.virtualtransaction
LEFT JOIN pg_prepared_xacts x ON x.transaction = t.transactionid";

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(who: &str, age_s: f64) -> Holder {
        Holder {
            node: "n".into(),
            who: who.into(),
            age_s,
        }
    }

    #[test]
    fn short_transactions_are_waited_for_and_long_ones_are_named() {
        assert_eq!(blocker(&[holder("pid 1", 0.4)]), None);
        let text = blocker(&[holder("prepared transaction g", 7.0), holder("pid 1", 0.4)]).unwrap();
        assert!(
            text.contains("prepared transaction g on n") && text.contains("7.0 s"),
            "{text}"
        );
    }
}
