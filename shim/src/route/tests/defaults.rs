//! `stamps (id, note, at)`: the defaults of `id` and `at` differ between shards.

use super::*;

#[test]
fn a_write_that_leaves_a_differing_default_is_refused() {
    for (sql, column) in [
        ("INSERT INTO stamps (note) VALUES ('a')", "id"),
        ("INSERT INTO stamps (id, note) VALUES (1, 'a')", "at"),
        ("INSERT INTO public.stamps VALUES (1, 'a')", "at"),
        (
            "INSERT INTO stamps VALUES (1, 'a', $1), (2, 'b', DEFAULT)",
            "at",
        ),
        ("INSERT INTO stamps (at, id) VALUES ($1, DEFAULT)", "id"),
        (
            "INSERT INTO stamps (at, id) VALUES ($1, 1), ($1, DEFAULT)",
            "id",
        ),
        ("INSERT INTO stamps DEFAULT VALUES", "id"),
        ("INSERT INTO stamps SELECT 1, 'a'", "at"),
        ("INSERT INTO stamps SELECT * FROM tenants", "at"),
        ("INSERT INTO stamps SELECT t.*, 'x' FROM tenants t", "id"),
        (
            "INSERT INTO stamps (id, note) SELECT id, 'x' FROM tenants",
            "at",
        ),
        ("UPDATE stamps SET at = DEFAULT WHERE id = 1", "at"),
        ("UPDATE stamps SET (note, id) = ('a', DEFAULT)", "id"),
        (
            "INSERT INTO stamps VALUES (1, 'a', $1) ON CONFLICT (id) DO UPDATE SET at = DEFAULT",
            "at",
        ),
        ("COPY stamps (id, note) FROM STDIN", "at"),
        (
            "MERGE INTO stamps s USING tenants t ON s.id = t.id \
             WHEN NOT MATCHED THEN INSERT (id, note) VALUES (t.id, 'a')",
            "at",
        ),
        (
            "MERGE INTO stamps s USING tenants t ON s.id = t.id \
             WHEN NOT MATCHED THEN INSERT VALUES (t.id, 'a', DEFAULT)",
            "at",
        ),
        (
            "MERGE INTO stamps s USING tenants t ON s.id = t.id \
             WHEN NOT MATCHED THEN INSERT DEFAULT VALUES",
            "id",
        ),
        (
            "MERGE INTO stamps s USING tenants t ON s.id = t.id \
             WHEN MATCHED THEN UPDATE SET at = DEFAULT",
            "at",
        ),
        (
            "WITH r AS (UPDATE rates SET pct = 1 RETURNING pct) \
             INSERT INTO stamps (id, note) SELECT pct, 'a' FROM r",
            "at",
        ),
    ] {
        let fault = refused(sql);
        assert_eq!(fault.sqlstate(), "0A000", "{sql}");
        let detail = fault.detail().unwrap_or_default();
        assert!(
            detail.contains(&format!("\"stamps\".\"{column}\"")),
            "{sql}: {detail}"
        );
        let hint = format!("Give the value of \"{column}\" in the statement.");
        assert_eq!(fault.hint(), Some(hint), "{sql}");
    }
}

#[test]
fn a_write_that_gives_every_value_goes_everywhere() {
    for sql in [
        "INSERT INTO stamps VALUES (1, 'a', '2026-01-01'), ($1, NULL, $2)",
        "INSERT INTO stamps VALUES (1, DEFAULT, $1)",
        "INSERT INTO stamps (at, id) VALUES ($1, $2)",
        "INSERT INTO stamps (at, id) SELECT * FROM tenants",
        "INSERT INTO stamps SELECT * FROM rates",
        "INSERT INTO stamps SELECT * FROM (VALUES (1, 'a', $1)) v",
        "INSERT INTO stamps VALUES (1, 'a', $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at",
        "UPDATE stamps SET note = DEFAULT, at = $1",
        "DELETE FROM stamps",
        "TRUNCATE stamps",
        "COPY stamps FROM STDIN",
        "COPY stamps (at, id) FROM STDIN",
        "MERGE INTO stamps s USING tenants t ON s.id = t.id \
         WHEN NOT MATCHED THEN INSERT (id, at) VALUES (t.id, $1)",
        "INSERT INTO rates (code) VALUES (DEFAULT)",
    ] {
        to_all(sql, AllReason::OmniWrite);
    }
}

#[test]
fn what_overrides_given_values_is_refused() {
    unsupported("INSERT INTO stamps OVERRIDING USER VALUE VALUES (1, 'a', $1)");
    unsupported("COPY stamps FROM STDIN (DEFAULT 'f')");
    to_all(
        "INSERT INTO stamps OVERRIDING SYSTEM VALUE VALUES (1, 'a', $1)",
        AllReason::OmniWrite,
    );
}

#[test]
fn one_shard_computes_what_it_likes() {
    let sql = "INSERT INTO stamps (note) VALUES ('a')";
    let one = route(
        &statement(sql),
        &NoParams,
        &topology(1),
        &SessionView::default(),
    );
    assert!(matches!(one, Outcome::Ready(_)), "{one:?}");
}

#[test]
fn a_table_whose_columns_nobody_knows_takes_no_inserts() {
    let mut known = topology(3);
    known.unlisted = Unlisted::Omnisharded;
    let go = |sql: &str| route(&statement(sql), &NoParams, &known, &SessionView::default());
    for sql in [
        "INSERT INTO notes (a) VALUES (1)",
        "UPDATE notes SET a = DEFAULT",
    ] {
        let outcome = go(sql);
        assert!(matches!(outcome, Outcome::Refused(_)), "{sql}: {outcome:?}");
    }
    let outcome = go("UPDATE notes SET a = 1");
    assert!(matches!(outcome, Outcome::Ready(_)), "{outcome:?}");
}

#[test]
fn stored_rows_are_not_filled_with_what_differs() {
    for sql in [
        "ALTER TABLE rates ADD COLUMN t timestamptz DEFAULT now()",
        "ALTER TABLE rates ADD COLUMN n int, ADD COLUMN t timestamptz NOT NULL DEFAULT now()",
        "ALTER TABLE rates ADD COLUMN n bigserial",
        "ALTER TABLE rates ADD COLUMN n int GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE rates ALTER COLUMN code TYPE text USING code || random()",
    ] {
        unsupported(sql);
    }
    for sql in [
        "ALTER TABLE rates ADD COLUMN t timestamptz DEFAULT '2026-01-01'",
        "ALTER TABLE rates ALTER COLUMN at SET DEFAULT now()",
        "ALTER TABLE rates ALTER COLUMN code TYPE text USING upper(code)",
        "ALTER TABLE orders ADD COLUMN t timestamptz DEFAULT now()",
        "ALTER TABLE orders ADD COLUMN n bigserial",
    ] {
        to_all(sql, AllReason::Ddl);
    }
}
