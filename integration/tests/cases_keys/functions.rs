//! Functions whose calls may mean any table: which of them a call means.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use pgdog_integration::wire::{Batch, Wire, rows, shape};
use pgdog_integration::{Cluster, wait_until};

use super::catalog::{done, refused};

const LIMIT: Duration = Duration::from_secs(60);

/// Names are looked for where the server's configuration says, which by itself begins with a schema
/// of the user's name, and of whichever user a role has made of him.
pub async fn functions_are_looked_for_where_a_server_does(cluster: &Cluster) -> anyhow::Result<()> {
    let user = cluster.description().user.clone();
    for shard in 0..2 {
        let role = format!("CREATE ROLE keeper; GRANT keeper TO {user}");
        cluster.primary(shard).await?.batch_execute(&role).await?;
    }
    let mut client = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        &format!("CREATE SCHEMA {user}"),
        &format!(
            "CREATE FUNCTION {user}.of_user() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1'"
        ),
        "CREATE SCHEMA keeper",
        "CREATE FUNCTION keeper.of_role() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1'",
        "GRANT USAGE ON SCHEMA keeper TO keeper",
        "CREATE SCHEMA far",
        "CREATE FUNCTION far.of_all() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1'",
    ] {
        done(&mut client, sql).await.context(sql.to_owned())?;
    }
    refused(&mut client, "SELECT of_user()", "0A000").await?;
    let write = "INSERT INTO rates VALUES ('u', of_user())";
    refused(&mut client, write, "0A000").await?;
    // Nobody finds these, PostgreSQL no more than we.
    for sql in ["SELECT of_role()", "SELECT of_all()"] {
        refused(&mut client, sql, "42883").await?;
    }
    done(&mut client, "SET ROLE keeper").await?;
    refused(&mut client, "SELECT of_role()", "0A000").await?;
    refused(&mut client, "SELECT of_user()", "42883").await?;
    done(&mut client, "RESET ROLE").await?;
    refused(&mut client, "SELECT of_user()", "0A000").await?;
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        for sql in [
            "ALTER SYSTEM SET search_path = far, public",
            "SELECT pg_reload_conf()",
        ] {
            node.batch_execute(sql).await?;
        }
        wait_until("the server's own path", LIMIT, || async {
            let path = node.value("SHOW search_path").await?;
            Ok((path == "far, public").then_some(()))
        })
        .await?;
    }
    let mut later = Wire::connect(&cluster.login(0)).await?;
    refused(&mut later, "SELECT of_all()", "0A000").await?;
    for shard in 0..2 {
        let node = cluster.primary(shard).await?;
        for sql in ["ALTER SYSTEM RESET search_path", "SELECT pg_reload_conf()"] {
            node.batch_execute(sql).await?;
        }
    }
    for sql in [
        format!("DROP SCHEMA {user} CASCADE"),
        "DROP SCHEMA keeper CASCADE".to_owned(),
        "DROP SCHEMA far CASCADE".to_owned(),
    ] {
        done(&mut client, &sql).await?;
    }
    Ok(())
}

/// A function call message names a function by its number, and nothing tells its tables.
pub async fn calls_by_number_need_a_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    done(
        &mut client,
        "CREATE FUNCTION by_number() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 7'",
    )
    .await?;
    let number = "/* pgdog_shard: 1 */ SELECT 'by_number'::regproc::oid::int";
    let oid = rows(&client.query(number).await?)[0][0]
        .clone()
        .context("a number")?;
    // No formats of arguments, no arguments, the result as text.
    let body = [&oid.parse::<u32>()?.to_be_bytes()[..], &[0; 6]].concat();
    let call = || Batch::new().message(b'F', &body);
    done(&mut client, "BEGIN").await?;
    let answer = shape(&client.ask(&call()).await?);
    ensure!(answer == "E(0A000) Z(E)", "{answer}");
    done(&mut client, "ROLLBACK").await?;
    done(&mut client, "SET pgdog.shard = 1").await?;
    let answer = shape(&client.ask(&call()).await?);
    ensure!(
        answer.ends_with("Z(I)") && !answer.contains('E'),
        "{answer}"
    );
    done(&mut client, "RESET pgdog.shard").await?;
    done(&mut client, "DROP FUNCTION by_number()").await
}

/// A function that is sent to the wrong shard, and a trigger that thinks of another key.
pub async fn rows_that_code_writes_are_of_its_shard(cluster: &Cluster) -> anyhow::Result<()> {
    let mut client = Wire::connect(&cluster.login(0)).await?;
    for sql in [
        "CREATE FUNCTION place(tenant bigint, number bigint) RETURNS void LANGUAGE sql VOLATILE \
         AS 'INSERT INTO orders VALUES (tenant, number, 1, ''placed'')'",
        "CREATE FUNCTION copy_line() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO orders VALUES (NEW.sku::bigint, NEW.id, 1, 'copied'); RETURN NULL; END $$",
        "CREATE TRIGGER copies AFTER INSERT ON lines FOR EACH ROW EXECUTE FUNCTION copy_line()",
        "/* pgdog_shard: 0 */ SELECT place(11, 7001)",
        "/* pgdog_shard: 1 */ SELECT place(12, 7001)",
        "INSERT INTO lines VALUES (11, 7002, '13')",
    ] {
        done(&mut client, sql).await.context(sql)?;
    }
    for sql in [
        "/* pgdog_shard: 0 */ SELECT place(12, 7003)",
        "/* pgdog_shard: 1 */ SELECT place(11, 7003)",
        "INSERT INTO lines VALUES (11, 7003, '12')",
        "INSERT INTO lines VALUES (12, 7003, '11')",
    ] {
        refused(&mut client, sql, "23514").await.context(sql)?;
    }
    for (shard, tenants) in [(0, "11,13"), (1, "12")] {
        let node = cluster.primary(shard).await?;
        let stored = node
            .value(
                "SELECT string_agg(tenant_id::text, ',' ORDER BY tenant_id) FROM orders \
                 WHERE id BETWEEN 7001 AND 7003",
            )
            .await?;
        ensure!(stored == tenants, "shard {shard}: {stored}");
    }
    for sql in [
        "DROP TRIGGER copies ON lines",
        "DELETE FROM lines WHERE id > 7000",
        "DELETE FROM orders WHERE id BETWEEN 7001 AND 7003",
    ] {
        done(&mut client, sql).await.context(sql)?;
    }
    Ok(())
}
