//! Functions, and tables with triggers, whose code leaves something on its server connection.
//!
//! Read from the texts in the catalog: what they name directly, and through other functions. What
//! ends with the transaction (SET LOCAL, `set_config(..., true)`, locks of transactions) is left
//! out. C functions count as harmless.

use std::collections::HashMap;

use pgdog_core::fault::Fault;

use super::Cluster;

/// What code leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaves {
    /// Temporary tables, locks and the like, of which the server can tell.
    Objects,
    /// Settings, of which nobody can tell.
    Settings,
}

/// See the module.
#[derive(Debug, Default)]
pub struct StatefulCode {
    functions: HashMap<String, Leaves>,
    tables: HashMap<String, Leaves>,
}

impl StatefulCode {
    /// What a statement leaves through functions that it calls, or triggers of tables that it
    /// writes.
    pub fn leaves<'a>(
        &self,
        called: impl Iterator<Item = &'a str>,
        written: impl Iterator<Item = &'a str>,
    ) -> Option<Leaves> {
        if self.functions.is_empty() {
            return None;
        }
        let called = called.filter_map(|name| self.functions.get(name));
        let written = written.filter_map(|name| self.tables.get(name));
        called.chain(written).max().copied()
    }

    fn note(&mut self, kind: &str, name: String, sets: bool) {
        let leaves = if sets {
            Leaves::Settings
        } else {
            Leaves::Objects
        };
        let names = match kind {
            "table" => &mut self.tables,
            _ => &mut self.functions,
        };
        let known = names.entry(name).or_insert(leaves);
        *known = leaves.max(*known);
    }
}

impl Cluster {
    /// Reads the catalog of shard 0's primary.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn stateful_code(&self) -> Result<StatefulCode, Fault> {
        let topology = self.topology();
        let mut code = StatefulCode::default();
        let Some(first) = topology.shards.first() else {
            return Ok(code);
        };
        let node = self.node(&first.primary);
        for row in node.link.session().await?.query(CODE, &[]).await? {
            code.note(row.get(0), row.get(1), row.get(2));
        }
        Ok(code)
    }
}

/// A statement begins at the start, behind a semicolon, quote or dollar, or behind these words.
const CODE: &str = r#"
WITH RECURSIVE texts AS (
    SELECT p.oid, p.proname::text AS name, l.lanname IN ('sql', 'plpgsql') AS plain,
        pg_catalog.regexp_replace(pg_catalog.regexp_replace(lower(
            coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc)),
            '--[^\n]*', '', 'g'), '/\*.*?\*/', '', 'g') AS body
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgdog')
        AND l.lanname NOT IN ('c', 'internal')
), judged AS (
    SELECT oid, name, body,
        NOT plain
        OR body ~ ('(^|[;''"$]|\mbegin\M|\mthen\M|\melse\M|\mloop\M)\s*'
            || '(set\s+(?!local\M)|reset\M|load\M)')
        OR (SELECT pg_catalog.count(*) FROM pg_catalog.regexp_matches(body, 'set_config', 'g'))
            > (SELECT pg_catalog.count(*) FROM pg_catalog.regexp_matches(body,
                'set_config\s*\([^;]*?,\s*(true|''t''|''true'')\s*(::\s*boolean)?\s*\)', 'g'))
            AS sets,
        body ~ ('\m(pg_advisory_lock|pg_try_advisory_lock|temp|temporary|pg_temp'
            || '|listen|hold|prepare|dblink_connect)') AS keeps
    FROM texts
), stateful AS (
    SELECT oid, name, sets FROM judged WHERE sets OR keeps
    UNION
    SELECT j.oid, j.name, s.sets FROM stateful s
    JOIN judged j ON pg_catalog.strpos(j.body, lower(s.name)) > 0
)
SELECT 'function', name, pg_catalog.bool_or(sets) FROM stateful GROUP BY name
UNION ALL
SELECT 'table', c.relname::text, pg_catalog.bool_or(s.sets) FROM stateful s
    JOIN pg_catalog.pg_trigger t ON t.tgfoid = s.oid AND NOT t.tgisinternal
    JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid GROUP BY c.relname"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_triggers_are_found_and_settings_count_more() {
        let mut code = StatefulCode::default();
        code.note("function", "f".to_owned(), false);
        code.note("function", "f".to_owned(), true);
        code.note("table", "t".to_owned(), false);
        let leaves = |called: &[&'static str], written: &[&'static str]| {
            code.leaves(called.iter().copied(), written.iter().copied())
        };
        assert_eq!(leaves(&["f"], &[]), Some(Leaves::Settings));
        assert_eq!(leaves(&[], &["t"]), Some(Leaves::Objects));
        assert_eq!(leaves(&["f"], &["t"]), Some(Leaves::Settings));
        assert_eq!(leaves(&["g"], &["u"]), None);
    }
}
