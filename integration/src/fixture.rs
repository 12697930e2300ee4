//! The tables that the required cases speak of, and shims configured for them.
//!
//! `tenants` is the map: 11, 13 and 0 live on shard 0; 12, 14 and -5 on shard 1. With one shard
//! everything lives there.

use anyhow::Context as _;

use crate::client::{Client, Login};
use crate::cluster::Cluster;
use crate::wait::wait_until;
use crate::wire::Wire;

const TABLES: [&str; 7] = [
    "CREATE TABLE tenants (id bigint PRIMARY KEY, shard_id int)",
    "SELECT pgdog.omni_table('tenants')",
    "CREATE TABLE orders (tenant_id bigint NOT NULL, id bigint, qty int, memo text, \
     PRIMARY KEY (tenant_id, id))",
    "CREATE TABLE lines (tenant_id bigint, id bigint, sku text)",
    "CREATE TABLE rates (code text PRIMARY KEY, pct numeric)",
    "SELECT pgdog.omni_table('rates')",
    "INSERT INTO rates VALUES ('a', 1.5), ('b', 2.5)",
];

const MAP: [(i64, u16); 6] = [(11, 0), (12, 1), (13, 0), (14, 1), (-5, 1), (0, 0)];

/// Creates the tables through the first shim.
///
/// # Errors
/// When a statement fails.
pub async fn create(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    let shards = cluster.description().shards.len() as u16;
    for sql in TABLES {
        client.batch_execute(sql).await.context(sql)?;
    }
    for (tenant, shard) in MAP {
        let shard = shard.min(shards - 1);
        let sql = format!("INSERT INTO tenants VALUES ({tenant}, {shard})");
        client.batch_execute(&sql).await.context(sql)?;
    }
    for table in ["orders", "lines"] {
        let sql = format!(
            "SELECT pgdog.shard_table('{table}', 'tenant_id', lookup_query => \
             'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard')"
        );
        client.batch_execute(&sql).await.context(sql)?;
    }
    Ok(())
}

/// Changes lines of a shim's configuration and starts it again. A line replaces the one of the
/// same key, or is added to `[general]`.
///
/// # Errors
/// When the shim does not start with it.
pub async fn configure(cluster: &Cluster, shim: usize, lines: &[&str]) -> anyhow::Result<()> {
    let path = &cluster.description().shims[shim].config;
    let mut text = std::fs::read_to_string(path)?;
    for line in lines {
        let key = line.split('=').next().unwrap_or_default();
        let kept = text.lines().filter(|old| !old.starts_with(key));
        text = kept.collect::<Vec<_>>().join("\n");
        text = text.replacen("[general]\n", &format!("[general]\n{line}\n"), 1);
        text.push('\n');
    }
    std::fs::write(path, text)?;
    cluster.kill_shim(shim)?;
    cluster.restart_shim(shim).await
}

/// How the superuser logs in on the primary of a shard, around the shim.
///
/// # Errors
/// When there is no such shard.
pub fn direct(cluster: &Cluster, shard: u16) -> anyhow::Result<Login> {
    let d = cluster.description();
    Ok(Login {
        port: cluster.shard(shard)?.primary.port,
        user: d.superuser.user.clone(),
        password: d.superuser.password.clone(),
        database: d.database.clone(),
        options: String::new(),
    })
}

/// How the application logs in without asking for tokens: exactly what PostgreSQL sends comes back.
pub fn plain(cluster: &Cluster, shim: usize) -> Login {
    Login {
        options: String::new(),
        ..cluster.login(shim)
    }
}

/// The application through a shim, message by message.
///
/// # Errors
/// When the login fails.
pub async fn wire(cluster: &Cluster, shim: usize) -> anyhow::Result<Wire> {
    Wire::connect(&plain(cluster, shim)).await
}

/// Rows of a table that match, on one shard.
///
/// # Errors
/// When they cannot be counted.
pub async fn count(cluster: &Cluster, shard: u16, what: &str) -> anyhow::Result<i64> {
    let node = cluster.primary(shard).await?;
    let sql = format!("SELECT count(*) FROM {what}");
    Ok(node.value(&sql).await?.parse()?)
}

/// Waits until no server session of the application matches a condition on `pg_stat_activity`.
///
/// # Errors
/// When one still does after a minute.
pub async fn none_left(cluster: &Cluster, shard: u16, condition: &str) -> anyhow::Result<()> {
    let node: Client = cluster.primary(shard).await?;
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
         AND pid <> pg_backend_pid() AND usename = 'app' AND ({condition})"
    );
    let limit = std::time::Duration::from_secs(60);
    wait_until(condition, limit, || async {
        Ok((node.value(&sql).await? == "0").then_some(()))
    })
    .await
}

/// Resident memory of a shim, in KB.
///
/// # Errors
/// When it does not run.
pub fn resident_kb(cluster: &Cluster, shim: usize) -> anyhow::Result<u64> {
    status_kb(cluster, shim, "VmRSS:")
}

/// Begins to look for the most memory that a shim takes; returns what it takes now, in KB.
///
/// # Errors
/// When it does not run.
pub fn watch_peak(cluster: &Cluster, shim: usize) -> anyhow::Result<u64> {
    let pid = cluster.shim_pid(shim).context("this shim does not run")?;
    // 5: the peak is what it is now (proc(5)).
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    resident_kb(cluster, shim)
}

/// The most memory that a shim took since [`watch_peak`], in KB.
///
/// # Errors
/// When it does not run.
pub fn peak_kb(cluster: &Cluster, shim: usize) -> anyhow::Result<u64> {
    status_kb(cluster, shim, "VmHWM:")
}

fn status_kb(cluster: &Cluster, shim: usize, key: &str) -> anyhow::Result<u64> {
    let pid = cluster.shim_pid(shim).context("this shim does not run")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kb = line.with_context(|| format!("no {key}"))?;
    Ok(kb.trim().trim_end_matches(" kB").parse()?)
}

/// Makes `parents` and `children`, sharded by `tenant_id`, of which a child without its parent is
/// found at the commit.
///
/// # Errors
/// When a statement fails.
pub async fn create_deferred(cluster: &Cluster) -> anyhow::Result<()> {
    let client = cluster.connect().await?;
    for sql in [
        "CREATE TABLE parents (tenant_id bigint, id bigint, PRIMARY KEY (tenant_id, id))",
        "CREATE TABLE children (tenant_id bigint, id bigint, FOREIGN KEY (tenant_id, id) \
         REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
    ] {
        client.batch_execute(sql).await.context(sql)?;
    }
    for table in ["parents", "children"] {
        let sql = format!(
            "SELECT pgdog.shard_table('{table}', 'tenant_id', lookup_query => \
             'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard')"
        );
        client.batch_execute(&sql).await.context(sql)?;
    }
    Ok(())
}

/// Whether cases run at full size instead of the size that fits into CI: `FULL_SIZE=1`.
pub fn full_size() -> bool {
    std::env::var_os("FULL_SIZE").is_some()
}
