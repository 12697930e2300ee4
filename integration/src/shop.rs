//! The multi-tenant data set: plans, tenants, users, orders.
//!
//! Tenant `t` of the first `tenants` lives on shard `t % shards`.

use std::fmt::Write as _;

use anyhow::Context as _;

use crate::client::{Client, describe};
use crate::cluster::Cluster;
use crate::suite::Claim;

/// Tables and what lives where.
const SCHEMA: &str = include_str!("../../sql/demo/schema.sql");
const PLACEMENT: &str = include_str!("../../sql/demo/placement.sql");

/// Names of the counters that the load increments.
pub const COUNTERS: [&str; 8] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];

/// How much data.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Number of tenants, 1..=tenants.
    pub tenants: i64,
    /// Users of each tenant.
    pub users: i64,
    /// Orders of each tenant.
    pub orders: i64,
}

impl Size {
    /// Enough to tell tenants apart.
    pub const SMALL: Size = Size {
        tenants: 20,
        users: 5,
        orders: 20,
    };

    /// Rows over all.
    pub fn rows(self) -> i64 {
        self.tenants * (1 + self.users + self.orders)
    }
}

/// Lays a little of it, as the preparation of a [`crate::suite`].
pub const SMALL: Claim = ("prepare", |cluster| Box::pin(create(cluster, Size::SMALL)));

/// Creates the tables through the first shim and fills them.
///
/// # Errors
/// When a statement fails.
pub async fn create(cluster: &Cluster, size: Size) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    run_script(&client, SCHEMA).await.context("schema")?;
    run_script(&client, PLACEMENT).await.context("placement")?;
    let shards = cluster.description().shards.len() as i64;
    omni_rows(&client, size, shards).await?;
    for tenant in 1..=size.tenants {
        insert(
            &client,
            "users (tenant_id, id, email)",
            1..=size.users,
            |row, id| write!(row, "({tenant}, {id}, 'user{id}@tenant{tenant}.example')"),
        )
        .await?;
        let columns = "orders (tenant_id, id, user_id, total_cents, memo)";
        insert(&client, columns, 1..=size.orders, |row, id| {
            let (user, cents) = (1 + id % size.users.max(1), (id * 7919) % 50_000);
            write!(
                row,
                "({tenant}, {id}, {user}, {cents}, 'order {id} of tenant {tenant}')"
            )
        })
        .await?;
    }
    Ok(())
}

async fn omni_rows(client: &Client, size: Size, shards: i64) -> anyhow::Result<()> {
    run(
        client,
        "INSERT INTO plans \
         VALUES ('free', 'Free', 0), ('team', 'Team', 4900), ('corp', 'Corp', 49000)",
    )
    .await?;
    insert(
        client,
        "tenants (id, name, plan, shard_id)",
        1..=size.tenants,
        |row, id| {
            let plan = ["free", "team", "corp"][(id % 3) as usize];
            write!(row, "({id}, 'Tenant {id}', '{plan}', {})", id % shards)
        },
    )
    .await?;
    let counters: Vec<String> = COUNTERS
        .iter()
        .map(|name| format!("('{name}', 0)"))
        .collect();
    run(
        client,
        &format!("INSERT INTO counters VALUES {}", counters.join(", ")),
    )
    .await
}

/// Rows of one key at a time, so that each statement has one shard.
async fn insert(
    client: &Client,
    target: &str,
    ids: std::ops::RangeInclusive<i64>,
    mut row: impl FnMut(&mut String, i64) -> std::fmt::Result,
) -> anyhow::Result<()> {
    let ids: Vec<i64> = ids.collect();
    for batch in ids.chunks(1000) {
        let mut sql = format!("INSERT INTO {target} VALUES ");
        for (n, id) in batch.iter().enumerate() {
            if n > 0 {
                sql.push_str(", ");
            }
            row(&mut sql, *id)?;
        }
        run(client, &sql).await?;
    }
    Ok(())
}

/// One statement after the other, each in a transaction of its own.
async fn run_script(client: &Client, script: &str) -> anyhow::Result<()> {
    let code: String = script
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .fold(String::new(), |mut code, line| {
            code.push_str(line);
            code.push('\n');
            code
        });
    for statement in code
        .split(';')
        .map(str::trim)
        .filter(|statement| !statement.is_empty())
    {
        run(client, statement).await?;
    }
    Ok(())
}

async fn run(client: &Client, sql: &str) -> anyhow::Result<()> {
    client.batch_execute(sql).await.map_err(|error| {
        let start: String = sql.chars().take(120).collect();
        anyhow::anyhow!("{}: {start}", describe(&error))
    })
}
